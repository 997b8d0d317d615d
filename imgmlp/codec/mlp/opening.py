"""Long runs on processors begin in a room that many networks share, while another process compiles
what they go over to: a program of the network's own size.

    python -m imgmlp.codec.mlp.opening DEVICE NUMBER...

is that process; the numbers are frequencies, hidden layers, width and channels of the network, and
pixels of a step.
"""

from __future__ import annotations

import sys

import numpy as np

from imgmlp import child
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import LearningStep
from imgmlp.engine import open_device

SEED = 0


def compiler(like: LearningStep) -> child.Helper:
    """The process that compiles what trains a step's network without a room."""
    shape = like.shape
    numbers = shape.frequencies, shape.hidden, shape.width, shape.channels, like.batch
    spec = like.device.info.spec
    return child.Helper("imgmlp.codec.mlp.opening", spec, *map(str, numbers))


def compile_step(spec: str, *told: str) -> None:
    """What that process does."""
    *numbers, batch = map(int, told)
    shape = Shape(*numbers)
    empty = np.zeros((1, 1, shape.channels), np.uint8)
    LearningStep(empty, shape, SEED, open_device(spec), batch).run(1)


if __name__ == "__main__":
    child.end_with_parent()
    compile_step(*sys.argv[1:])
