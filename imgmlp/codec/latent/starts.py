"""Networks that come with imgmlp, from which those of a picture begin, and files hold differences.

Knows neither files nor devices; only which networks there are, of which widths.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from imgmlp.codec.latent.model import LEVELS, Array, ModelShape
from imgmlp.errors import FormatError

START_EXPONENT = 11  # starts are whole numbers of 2**-START_EXPONENT
START_CHANNELS = 3  # of the pictures that they were trained over
# Widths of the hidden layers of synthesis and entropy network of each start, by its number.
START_WIDTHS = {
    1: (16, 12), 2: (32, 24), 3: (32, 24), 4: (16, 12), 5: (32, 24), 6: (16, 16),
    7: (16, 16), 8: (32, 24), 9: (16, 12),
}  # fmt: skip
FILTERED_STARTS = {5, 8}  # which have a filter
OPAQUE = 1 << START_EXPONENT - 1  # in the same numbers, of which black is -OPAQUE
OF_PIXELS = {"synthesis.2", "residual.0", "residual.1"}  # layers that give a value a channel
# Lambda that steps of latents suit which begin from a start: the usual one, and that of starts for
# where bits cost LOW or less.
USUAL_LMBDA, LOW_LMBDAS, LOW = 8e-4, {7: 1e-5, 8: 1e-5, 9: 1e-5}, 4e-5


@dataclass(frozen=True, eq=False)
class Start:
    """Networks trained over many pictures, from which those of one picture begin, for one shape.

    Files hold differences from them, so a start that is shipped never changes; better ones get
    other numbers. benchmarks/latent_start.py makes them.
    """

    number: int
    tensors: Mapping[str, Array]  # int32, those of shape.tensors that it has

    def rounded(self, name: str, exponent: int) -> Array | int:
        """int32: a tensor in steps of 2**-exponent, halves up; 0 for one that it has not."""
        if name not in self.tensors:
            return 0
        coarser = START_EXPONENT - exponent
        values = self.tensors[name]
        if coarser <= 0:
            return values << -coarser
        return values + (1 << coarser - 1) >> coarser

    def floats(self) -> dict[str, Array]:
        """float32, exactly."""
        found = self.tensors.items()
        return {
            name: np.ldexp(values.astype(np.float32), -START_EXPONENT) for name, values in found
        }


def newest_start(widths: tuple[int, int], lmbda: float = USUAL_LMBDA) -> int:
    """The number of the start that networks of these widths should have where a bit a pixel costs
    so much; 0 if there is none."""
    fitting = (number for number, known in START_WIDTHS.items() if known == widths)
    return max((n for n in fitting if (n in LOW_LMBDAS) == (lmbda <= LOW)), default=0)


def lmbda_of(number: int) -> float:
    """Lambda that steps of latents suit which begin from a start."""
    return LOW_LMBDAS.get(number, USUAL_LMBDA)


def widths_of(number: int) -> tuple[int, int]:
    """Of the networks that have this start. Raises FormatError if there is none."""
    if number not in START_WIDTHS:
        raise FormatError(f"start {number} is not known here", hint="update imgmlp")
    return START_WIDTHS[number]


def start_of(number: int, shape: ModelShape) -> Start:
    """A start for networks of a shape; number 0 has no tensor. Raises FormatError."""
    if number == 0:
        return Start(0, {})
    tensors, sizes = {}, shape.tensors
    for name, values in _stored(number).items():
        if name == "synthesis.0.weight":
            grids, own = np.split(values, [LEVELS])  # and the filter's row, if it has one
            own = own if len(own) else np.zeros_like(grids[:1])
            seen = [_rows(grids, shape.levels), own[: shape.filtered]]
            tensors[name] = np.pad(np.concatenate(seen), ((0, shape.extra), (0, 0)))
        elif name == "upsampling":
            tensors[name] = _rows(values, shape.levels - 1)
        elif name == "entropy.0.weight":  # to whose rows for hyperlatents it adds nothing
            tensors[name] = np.pad(values, ((0, len(shape.hyperlatents)), (0, 0)))
        elif name in sizes:
            tensors[name] = _of_channels(name, values, shape.channels)
    return Start(number, tensors)


def _of_channels(name: str, values: Array, channels: int) -> Array:
    """A tensor as pictures of so many channels have it: gray by what gives the mean of a start's
    colours for a gray picture, and alpha by nothing."""
    if name.rpartition(".")[0] not in OF_PIXELS:
        return values
    convolves = values.ndim == 4
    if channels < START_CHANNELS:
        inner = (2, 3) if convolves else -1
        values = (values.sum(inner, np.int32, keepdims=True) + 1) // START_CHANNELS
    alpha = (0, channels - values.shape[-1])
    before = [(0, 0)] * (values.ndim - 1 - convolves)
    fill = OPAQUE if name == "synthesis.2.bias" else 0
    return np.pad(values, [*before, *[alpha] * (1 + convolves)], constant_values=fill)


def _rows(values: Array, count: int) -> Array:
    """So many rows, one of each grid: the last one stands for those beyond it."""
    return values[np.minimum(np.arange(count), len(values) - 1)]


@cache
def _stored(number: int) -> dict[str, Array]:
    data = resources.files("imgmlp.codec.latent").joinpath(f"start-{number}.bin").read_bytes()
    values, found = np.frombuffer(data, ">i2").astype(np.int32), {}
    filtered = number in FILTERED_STARTS
    for name, size in _shape_of(widths_of(number), filtered).tensors.items():
        found[name], values = np.split(values, [math.prod(size)])
        found[name] = found[name].reshape(size)
    return found


def _shape_of(widths: tuple[int, int], filtered: bool) -> ModelShape:
    """That of the models whose networks are stored; of its pictures' size nothing depends."""
    return ModelShape(1, 1, START_CHANNELS, LEVELS, *widths, filtered=filtered)


def stored_start(networks: Mapping[str, Array]) -> bytes:
    """The content of a start's file, of networks of real numbers in a file's order; what two bytes
    do not hold becomes the nearest that they do."""
    numbers = np.concatenate([values.astype(np.float64).ravel() for values in networks.values()])
    whole = np.rint(np.ldexp(numbers, START_EXPONENT)).clip(-(2**15), 2**15 - 1)
    data: bytes = whole.astype(">i2").tobytes()
    return data
