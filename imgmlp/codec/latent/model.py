"""A latent-coded picture: grids of integer latents and the integer networks that decode them.

This module holds the data and proves its bounds; it knows neither files nor devices. Whoever makes
a `LatentModel`, its sizes and the 32-bit range of every sum are checked, and exact decoding relies
on these checks.

The model in real numbers, where a(x) = x * smoothstep(x / 4 + 1/2) is the activation:

- Entropy network. For every latent it sees the vector x [neighbours] of latents that are already
  decoded: a(x W0 + b0) -> a(. W1 + b1) -> . W2 + b2 = (mean, s). The latent v follows a Laplace
  distribution around `mean` with scale exp(s - 4), integrated over [v - 1/2, v + 1/2].
- Upsampling from grid l + 1 to grid l, first along rows and then along columns, with the taps f of
  level l: out[2i] = f0 in[i-2] + f1 in[i-1] + f2 in[i] + f3 in[i+1], and mirrored
  out[2i+1] = f3 in[i-1] + f2 in[i] + f1 in[i+1] + f0 in[i+2]. Edge values are repeated.
- Hyperlatents (optional) are grids of the same sizes as the levels HYPERLATENT_LEVELS. The entropy
  network of every other grid sees them as additional inputs, resampled to the size of that grid:
  a coarser hyperlatent is upsampled with BICUBIC_TAPS, or repeated for levels below
  NEAREST_BELOW_LEVEL; of a finer one every second row and column is taken. While the hyperlatents
  themselves are coded, these inputs are 0.
- Synthesis network. For every pixel it sees the vector x of the upsampled grids, finest first;
  then, if there is a filter, the finest grid correlated with its 3x3 weights (zeros outside of the
  picture); then the extra grids as they are:
  a(x W0 + b0) -> a(. W1 + b1) -> . W2 + b2 = y [channels]. Two residual 3x3 convolutions with zero
  padding follow: y + a(conv(y, K0) + c0) -> y + conv(y, K1) + c1. Black is -1/2, white is 1/2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.symbol_parts import MAX_MAGNITUDE
from imgmlp.errors import FormatError, check_format

Array = np.ndarray[Any, Any]

# Limits of the file format.
MIN_LATENT, MAX_LATENT = -64, 63
MAX_LEVELS = 12
MAX_EXTRA_GRIDS = 3
MAX_HIDDEN_WIDTH = 128
MAX_WEIGHT = 2**15  # magnitude of a quantised weight, in quantisation steps
MAX_EXPONENT = 15  # of the step size 2**-exponent of weights
# The larger bound of `quantized`: a difference of two such weights can still be entropy coded.
MAX_CODABLE_WEIGHT = MAX_MAGNITUDE // 2
MAX_HYPERLATENT_PIXELS = 2**24  # of a picture; the maps of its finest grid take 12 bytes a pixel

# Fixed-point numbers of exact decoding.
VALUE_BITS = 10  # fractional bits of upsampled latents and activations
PIXEL_BITS = 14  # fractional bits of the inputs and outputs of the residual convolutions
MAX_VALUE = 2**18 - 1  # magnitude of both; with VALUE_BITS that is ±256

DEFAULT_LEVELS = 7
HYPERLATENT_LEVELS = 4, 5, 6
NEAREST_BELOW_LEVEL = 2  # for finer levels, hyperlatents are repeated instead of interpolated
BICUBIC_TAPS = (-0.0234375, 0.2265625, 0.8671875, -0.0703125)  # Catmull-Rom at 1/4 pixel
FILTER_SHAPE = (9,)  # of the filter's trained parameters: 3x3 weights, row by row

NEIGHBOUR_RADIUS = 3  # rows above a latent, and columns to either side, that may hold neighbours
# (rows down, columns to the right) of the causal neighbours, nearest first. An entropy network with
# fewer inputs sees the first of them.
NEIGHBOUR_OFFSETS = tuple(
    sorted(
        [(0, -x) for x in range(1, NEIGHBOUR_RADIUS + 1)]
        + [
            (-y, x)
            for y in range(1, NEIGHBOUR_RADIUS + 1)
            for x in range(-NEIGHBOUR_RADIUS, NEIGHBOUR_RADIUS + 1)
        ],
        key=lambda offset: (offset[0] ** 2 + offset[1] ** 2, offset),
    )
)


def default_levels(height: int, width: int) -> int:
    """The number of pyramid levels for a picture of this size."""
    pixels = height * width
    levels = DEFAULT_LEVELS + (pixels >= 1_000_000) + (pixels >= 3_000_000)
    levels_to_1x1 = (max(height, width) - 1).bit_length() + 1
    return min(levels, levels_to_1x1)


@dataclass(frozen=True)
class ModelShape:
    """All sizes of a model. Raises FormatError for sizes that no file may have."""

    height: int
    width: int
    channels: int
    levels: int
    synthesis_width: int = 32  # of the hidden layers
    entropy_width: int = 24  # of the hidden layers
    neighbours: int = len(NEIGHBOUR_OFFSETS)
    has_filter: bool = False  # whether synthesis also sees the finest grid through a 3x3 filter
    has_hyperlatents: bool = False
    extra_grids: int = 0  # further grids of the finest size; synthesis sees them as they are

    def __post_init__(self) -> None:
        check_format(min(self.height, self.width) >= 1, "there is no picture of this size")
        check_format(1 <= self.channels <= 4, f"{self.channels} channels are neither gray nor RGB")
        check_format(1 <= self.levels <= MAX_LEVELS, f"there are {self.levels} grids")
        for width in (self.synthesis_width, self.entropy_width):
            check_format(1 <= width <= MAX_HIDDEN_WIDTH, f"a network's layers are {width} wide")
        is_known_count = 1 <= self.neighbours <= len(NEIGHBOUR_OFFSETS)
        check_format(is_known_count, f"the entropy network has {self.neighbours} neighbours")
        check_format(
            0 <= self.extra_grids <= MAX_EXTRA_GRIDS, f"there are {self.extra_grids} extra grids"
        )
        if self.has_hyperlatents:
            self._check_hyperlatents()

    def _check_hyperlatents(self) -> None:
        check_format(not self.extra_grids, "there are extra grids and hyperlatents")
        has_levels = self.levels > HYPERLATENT_LEVELS[-1]
        check_format(has_levels, f"{self.levels} grids have no hyperlatents")
        is_small = self.height * self.width <= MAX_HYPERLATENT_PIXELS
        check_format(is_small, "this size has no hyperlatents")

    @property
    def grid_sizes(self) -> tuple[tuple[int, int], ...]:
        """(height, width) of every grid: the pyramid, finest first, then the additional grids."""
        return tuple(
            (-(-self.height // (1 << level)), -(-self.width // (1 << level)))
            for level in (*range(self.levels), *self.additional_levels)
        )

    @property
    def hyperlatent_levels(self) -> tuple[int, ...]:
        """For every hyperlatent grid, the pyramid level of the same size."""
        return HYPERLATENT_LEVELS if self.has_hyperlatents else ()

    @property
    def additional_levels(self) -> tuple[int, ...]:
        """For every grid outside of the pyramid, the pyramid level of the same size."""
        return self.hyperlatent_levels or (0,) * self.extra_grids

    @property
    def synthesis_inputs(self) -> int:
        """How many values the synthesis network sees of a pixel."""
        return self.levels + self.has_filter + self.extra_grids

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of the networks, in the order in which they are coded.

        Weights are [inputs, outputs], of convolutions [rows, columns, inputs, outputs].
        """
        contexts = self.neighbours + len(self.hyperlatent_levels)
        width = self.synthesis_width
        shapes = _dense_shapes("entropy", (contexts, self.entropy_width, self.entropy_width, 2))
        shapes["upsampling"] = (self.levels - 1, 4)
        shapes |= _dense_shapes("synthesis", (self.synthesis_inputs, width, width, self.channels))
        for number in range(2):
            shapes[f"residual.{number}.weight"] = (3, 3, self.channels, self.channels)
            shapes[f"residual.{number}.bias"] = (self.channels,)
        if self.has_filter:
            shapes["filter"] = (3, 3)
        return shapes


def _dense_shapes(name: str, sizes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        shapes[f"{name}.{number}.weight"] = (inputs, outputs)
        shapes[f"{name}.{number}.bias"] = (outputs,)
    return shapes


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantised tensor: integers that stand for the real numbers values * 2**-exponent."""

    values: Array  # int32
    exponent: int

    def floats(self) -> Array:
        """The real numbers, exactly: float32 of the same shape."""
        return np.ldexp(self.values.astype(np.float32), -self.exponent)

    @cached_property
    def magnitudes(self) -> Array:
        """The absolute values: int64 of the same shape."""
        return np.abs(self.values.astype(np.int64))

    @cached_property
    def max_magnitude(self) -> int:
        return int(self.magnitudes.max(initial=0))

    @cached_property
    def column_sums(self) -> Array:
        """For every output, the sum of the magnitudes of its weights: int64 [outputs]."""
        sums: Array = self.magnitudes.reshape(-1, self.values.shape[-1]).sum(0)
        return sums


def quantized(values: Array, exponent: int) -> Quantized:
    """Real numbers rounded to the nearest multiples of 2**-exponent, halves up.

    Results are clipped to ±MAX_CODABLE_WEIGHT, more than a file may have, so that a diverged
    network is refused by the checks instead of wrapping around. NaN becomes 0.
    """
    with np.errstate(over="ignore"):
        steps = np.floor(np.ldexp(np.nan_to_num(values.astype(np.float64)), exponent) + 0.5)
    clipped = np.clip(steps, -MAX_CODABLE_WEIGHT, MAX_CODABLE_WEIGHT)
    return Quantized(clipped.astype(np.int32), exponent)


@dataclass(frozen=True, eq=False)
class LatentModel:
    """A picture as integer latents and integer networks.

    Raises FormatError for latents or weights out of bounds, and unless every sum that decoding
    computes from them fits in 32 bits.
    """

    shape: ModelShape
    latents: tuple[Array, ...]  # int8 [rows, columns] for each of shape.grid_sizes
    networks: Mapping[str, Quantized]  # for each of shape.tensor_shapes
    pretrained: int = 0  # number of the networks that a file may hold differences from; 0: none

    def __post_init__(self) -> None:
        sizes, expected = tuple(grid.shape for grid in self.latents), self.shape.grid_sizes
        check_format(sizes == expected, f"grids are {sizes}, not {expected}")
        for grid in self.latents:
            is_valid = grid.dtype == np.int8 and grid.min() >= MIN_LATENT
            is_valid = is_valid and grid.max() <= MAX_LATENT
            check_format(is_valid, f"latents are not int8 from {MIN_LATENT} to {MAX_LATENT}")
        check_networks(self.shape, self.networks)

    @property
    def pyramid(self) -> tuple[Array, ...]:
        """The grids of the pyramid, finest first."""
        return self.latents[: self.shape.levels]

    @property
    def extra_grids(self) -> tuple[Array, ...]:
        """The further grids of the finest size, which synthesis sees beside the pyramid."""
        return self.latents[self.shape.levels :] if self.shape.extra_grids else ()

    @property
    def coded_grids(self) -> list[int]:
        """The numbers of the grids that a file holds: all but pyramid levels of zeros only."""
        levels = self.shape.levels
        return [n for n, grid in enumerate(self.latents) if n >= levels or grid.any()]


def check_networks(shape: ModelShape, networks: Mapping[str, Quantized]) -> None:
    """Raise FormatError unless tensors have the right shapes and all sums fit in 32 bits."""
    shapes = shape.tensor_shapes
    check_format(list(networks) == list(shapes), "the networks' tensors are others")
    for name, tensor in networks.items():
        if tensor.values.shape != shapes[name] or tensor.values.dtype != np.int32:
            raise FormatError(f"{name} is {tensor.values.dtype}{list(tensor.values.shape)}")
        max_exponent = MAX_EXPONENT + (VALUE_BITS if name.endswith("bias") else 0)
        check_format(0 <= tensor.exponent <= max_exponent, f"{name} has no such step")
        check_format(tensor.max_magnitude <= MAX_WEIGHT, f"a weight of {name} is too large")
        if name.endswith(".weight"):
            _check_layer_sums(name, tensor, networks[name.replace(".weight", ".bias")])
    # The last dense layer goes over from VALUE_BITS to PIXEL_BITS by shifting its sums less far.
    min_exponent = PIXEL_BITS - VALUE_BITS
    is_fine = networks["synthesis.2.weight"].exponent >= min_exponent
    check_format(is_fine, f"the step of synthesis.2.weight is coarser than 2**-{min_exponent}")
    for name in {"upsampling", "filter"} & networks.keys():
        taps = networks[name].magnitudes
        gain = int((taps.sum() if name == "filter" else taps.sum(1)).max(initial=0))
        check_format(gain * MAX_VALUE < 2**30, f"sums of {name} need more than 32 bits")


def _check_layer_sums(name: str, weight: Quantized, bias: Quantized) -> None:
    value_bits = PIXEL_BITS if name.startswith("residual") else VALUE_BITS
    bias_shift = value_bits + weight.exponent - bias.exponent
    check_format(bias_shift >= 0, f"biases beside {name} are finer than the sums that they join")
    max_sums = weight.column_sums * MAX_VALUE + (bias.magnitudes << bias_shift)
    check_format(
        int(max_sums.max()) < 2**31 - 2 ** (MAX_EXPONENT + VALUE_BITS),
        f"sums of {name} need more than 32 bits",
    )
