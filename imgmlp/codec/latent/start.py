"""Networks trained over many pictures, from which those of one picture begin.

Part of the file format (docs/format-imlp.md): files hold differences from them, so a start that is
shipped never changes; better ones get other numbers. benchmarks/latent_start.py makes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import LEVELS, ModelShape
from imgmlp.errors import FormatError

Array = np.ndarray[Any, Any]

EXPONENT = 11  # starts are whole numbers of 2**-EXPONENT
CHANNELS = 3  # of the pictures that they were trained over
WIDTHS = {
    1: (16, 12),
    2: (32, 24),
}  # of the hidden layers of synthesis and entropy network of each start


@dataclass(frozen=True, eq=False)
class Start:
    """The networks that a number names, fitted to a model's shape."""

    number: int
    tensors: Mapping[str, Array]  # int32, those of shape.tensors that it has

    def rounded(self, name: str, exponent: int) -> Array | int:
        """int32: a tensor in steps of 2**-exponent, halves up; 0 for one that it has not."""
        if name not in self.tensors:
            return 0
        coarser = EXPONENT - exponent
        values = self.tensors[name]
        if coarser <= 0:
            return values << -coarser
        return values + (1 << coarser - 1) >> coarser

    def floats(self) -> dict[str, Array]:
        """float32, exactly."""
        found = self.tensors.items()
        return {name: np.ldexp(values.astype(np.float32), -EXPONENT) for name, values in found}


def newest(widths: tuple[int, int]) -> int:
    """The number of the start that networks of these widths should have; 0 if there is none."""
    return max((number for number, known in WIDTHS.items() if known == widths), default=0)


def widths_of(number: int) -> tuple[int, int]:
    """Of the networks that have this start. Raises FormatError if there is none."""
    if number not in WIDTHS:
        raise FormatError(f"start {number} is not known here", hint="update imgmlp")
    return WIDTHS[number]


def start_of(number: int, shape: ModelShape) -> Start:
    """A start for networks of a shape; number 0 has no tensor. Raises FormatError."""
    if number == 0:
        return Start(0, {})
    tensors, sizes = {}, shape.tensors
    for name, values in _stored(number).items():
        size = sizes[name]
        if name in ("synthesis.0.weight", "upsampling"):  # a row each grid: the last one repeats
            tensors[name] = values[np.minimum(np.arange(size[0]), len(values) - 1)]
        elif values.shape == size:
            tensors[name] = values
    return Start(number, tensors)


@cache
def _stored(number: int) -> dict[str, Array]:
    data = resources.files("imgmlp.codec.latent").joinpath(f"start-{number}.bin").read_bytes()
    values, found = np.frombuffer(data, ">i2").astype(np.int32), {}
    for name, size in shape_of(widths_of(number)).tensors.items():
        found[name], values = np.split(values, [math.prod(size)])
        found[name] = found[name].reshape(size)
    return found


def shape_of(widths: tuple[int, int]) -> ModelShape:
    """That of the models whose networks are stored; of its pictures' size nothing depends."""
    return ModelShape(1, 1, CHANNELS, LEVELS, *widths)


def stored(networks: Mapping[str, Array]) -> bytes:
    """The content of a start's file, of networks of real numbers in a file's order."""
    numbers = [np.rint(np.ldexp(np.float64(values), EXPONENT)) for values in networks.values()]
    return np.concatenate([array.ravel() for array in numbers]).astype(">i2").tobytes()
