"""Compiles the program for a network's own shape in another process while a run begins in a bucket.

Long runs on processors change to that program once it is compiled. The process is

    python -m imgmlp.codec.mlp.opening DEVICE NUMBER...

where the numbers are the network's frequencies, hidden layers, width and channels, and the pixels
of a training step.
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
    """Start the process that compiles the step `like` without its bucket."""
    shape = like.shape
    numbers = shape.frequencies, shape.hidden, shape.width, shape.channels, like.batch
    spec = like.device.info.spec
    return child.Helper("imgmlp.codec.mlp.opening", spec, *map(str, numbers))


def compile_step(spec: str, *arguments: str) -> None:
    """Compile a step; the work of the process."""
    *numbers, batch = map(int, arguments)
    shape = Shape(*numbers)
    empty = np.zeros((1, 1, shape.channels), np.uint8)
    LearningStep(empty, shape, SEED, open_device(spec), batch).run(1)


if __name__ == "__main__":
    child.end_with_parent()
    compile_step(*sys.argv[1:])
