"""What a latent file holds: grids of whole numbers and networks of whole numbers.

Data and its bounds only: knows neither files nor devices. Everything that exact decoding relies
on, sizes and the bounds of 32-bit sums, is proved here when a model is made, whoever made it.

In real numbers, with `a` the activation x * smoothstep(x / 4 + 1/2):

- entropy network, for every latent, of its causal neighbours x [neighbours]:
  a(x W0 + b0) -> a(. W1 + b1) -> . W2 + b2 = (mean, s); the latent is Laplace distributed around
  mean with scale exp(s - 4), integrated over [v - 1/2, v + 1/2].
- upsampling from grid l + 1 to l, by rows and by columns alike, with taps f of level l:
  out[2i] = f0 in[i-2] + f1 in[i-1] + f2 in[i] + f3 in[i+1], and mirrored
  out[2i+1] = f3 in[i-1] + f2 in[i] + f1 in[i+1] + f0 in[i+2]; past an edge its value is repeated.
- hyperlatents, if there are any, are grids as large as those of the levels HYPERLATENTS. What the
  entropy network sees of them beside its neighbours, of every latent of the other grids, are maps
  as large as the latent's grid: from a coarser level by upsampling with BICUBIC, to levels below
  NEAREST the nearest value, from a finer level every second row and column. Of hyperlatents
  themselves it sees zeros there.
- synthesis, for every pixel, of the maps x [levels], finest first, behind them, if there is a
  filter, the finest grid correlated with its 3x3 weights, with zeros past the edges, and extra
  grids as they are:
  a(x W0 + b0) -> a(. W1 + b1) -> . W2 + b2 = y [channels], then two 3x3 convolutions with zeros
  past the edges: y + a(conv(y, K0) + c0) -> y + conv(y, K1) + c1. Black is -1/2, white 1/2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.range_coder import MAX_MAGNITUDE
from imgmlp.errors import FormatError, check_format

Array = np.ndarray[Any, Any]

LEAST, LARGEST = -64, 63  # latent
FURTHEST = MAX_MAGNITUDE // 2  # weight, in steps: its difference from a start can be coded too
LEVELS = 7
MAX_LEVELS = 12
MAX_EXTRA = 3
MAX_HIDDEN = 128
MAX_WEIGHT = 2**15  # magnitude
MAX_EXPONENT = 15  # of weights

VALUE_BITS = 10  # of the fraction of a map's value or an activation
LIMIT = 2**18 - 1  # of their magnitude, so ±256
PIXEL_BITS = 14  # of the fraction of what the convolutions take and give

REACH = 3  # rows above, and columns to either side, that neighbours of a latent are in
# (rows down, columns to the right) of the neighbours that the entropy network sees, nearest first.
# A network of fewer neighbours sees the first of them.
NEIGHBOURS = tuple(
    sorted(
        [(0, -x) for x in range(1, REACH + 1)]
        + [(-y, x) for y in range(1, REACH + 1) for x in range(-REACH, REACH + 1)],
        key=lambda place: (place[0] ** 2 + place[1] ** 2, place),
    )
)
FILTER = (9,)  # as a step has it, row by row
HYPERLATENTS = 4, 5, 6  # levels of the grids that these are as large as
NEAREST = 2  # the level below which they are repeated
# Pixels of a picture that has them, at most: their maps of the finest grid take 12 bytes for each.
MOST_ABOVE = 2**24
BICUBIC = (-0.0234375, 0.2265625, 0.8671875, -0.0703125)  # Catmull-Rom, a quarter of a pixel off


def usual_levels(height: int, width: int) -> int:
    """How many grids a picture of this size has if nothing else is wanted."""
    pixels = height * width
    wanted = LEVELS + (pixels >= 1_000_000) + (pixels >= 3_000_000)
    needed = (max(height, width) - 1).bit_length() + 1  # the last of them is 1x1
    return min(wanted, needed)


@dataclass(frozen=True)
class ModelShape:
    """All sizes of a model. Raises FormatError for those that no file may have."""

    height: int
    width: int
    channels: int
    levels: int
    synthesis: int = 32  # width of the synthesis' hidden layers
    entropy: int = 24  # width of the entropy network's hidden layers
    neighbours: int = len(NEIGHBOURS)
    filtered: bool = False  # whether synthesis sees the finest grid through a filter as well
    hyper: bool = False  # whether there are hyperlatents
    extra: int = 0  # further grids as large as the finest

    def __post_init__(self) -> None:
        check_format(min(self.height, self.width) >= 1, "there is no picture of this size")
        check_format(1 <= self.channels <= 4, f"{self.channels} channels are neither gray nor RGB")
        check_format(1 <= self.levels <= MAX_LEVELS, f"there are {self.levels} grids")
        for width in (self.synthesis, self.entropy):
            check_format(1 <= width <= MAX_HIDDEN, f"a network's layers are {width} wide")
        known = 1 <= self.neighbours <= len(NEIGHBOURS)
        check_format(known, f"the entropy network has {self.neighbours} neighbours")
        check_format(0 <= self.extra <= MAX_EXTRA, f"there are {self.extra} extra grids")
        if self.hyper:
            check_format(not self.extra, "there are extra grids and hyperlatents")
            check_format(
                self.levels > HYPERLATENTS[-1], f"{self.levels} grids have no hyperlatents"
            )
            check_format(self.height * self.width <= MOST_ABOVE, "this size has no hyperlatents")

    @property
    def grids(self) -> tuple[tuple[int, int], ...]:
        """(height, width) of every grid, finest first, and behind them of the others."""
        return tuple(
            (-(-self.height // (1 << level)), -(-self.width // (1 << level)))
            for level in (*range(self.levels), *self.others)
        )

    @property
    def hyperlatents(self) -> tuple[int, ...]:
        """The levels that those are as large as."""
        return HYPERLATENTS if self.hyper else ()

    @property
    def others(self) -> tuple[int, ...]:
        """The levels that the grids are as large as that are no levels themselves."""
        return self.hyperlatents or (0,) * self.extra

    @property
    def inputs(self) -> int:
        """What synthesis sees of a pixel: its value in every map."""
        return self.levels + self.filtered + self.extra

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of the networks, in the order in which they are coded.

        Weights are [inputs, outputs], of convolutions [rows, columns, inputs, outputs].
        """
        contexts = self.neighbours + len(self.hyperlatents)
        entropy = _dense("entropy", (contexts, self.entropy, self.entropy, 2))
        synthesis = _dense(
            "synthesis", (self.inputs, self.synthesis, self.synthesis, self.channels)
        )
        own: dict[str, tuple[int, ...]] = {"filter": (3, 3)} if self.filtered else {}
        residual: dict[str, tuple[int, ...]] = {}
        for number in range(2):
            residual[f"residual.{number}.weight"] = (3, 3, self.channels, self.channels)
            residual[f"residual.{number}.bias"] = (self.channels,)
        return entropy | {"upsampling": (self.levels - 1, 4)} | synthesis | residual | own


def _dense(name: str, sizes: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        found[f"{name}.{number}.weight"] = (inputs, outputs)
        found[f"{name}.{number}.bias"] = (outputs,)
    return found


@dataclass(frozen=True, eq=False)
class Quantized:
    """A tensor of real numbers values * 2 ** -exponent."""

    values: Array  # int32
    exponent: int

    def floats(self) -> Array:
        """float32 of the same shape, exactly."""
        return np.ldexp(self.values.astype(np.float32), -self.exponent)

    @cached_property
    def magnitudes(self) -> Array:
        """int64 of the same shape."""
        return np.abs(self.values.astype(np.int64))

    @cached_property
    def largest(self) -> int:
        return int(self.magnitudes.max(initial=0))

    @cached_property
    def sums(self) -> Array:
        """int64 [columns]: of the magnitudes in each."""
        found: Array = self.magnitudes.reshape(-1, self.values.shape[-1]).sum(0)
        return found


def quantized(values: Array, exponent: int) -> Quantized:
    """The nearest multiples of a step, halves up. FURTHEST, which no file may have, is the most;
    what is no number is 0."""
    with np.errstate(over="ignore"):
        steps = np.floor(np.ldexp(np.nan_to_num(values.astype(np.float64)), exponent) + 0.5)
    return Quantized(np.clip(steps, -FURTHEST, FURTHEST).astype(np.int32), exponent)


@dataclass(frozen=True, eq=False)
class LatentModel:
    """A picture as whole numbers.

    Raises FormatError for latents or weights out of bounds, and unless every sum that decoding
    makes of them fits in 32 bits.
    """

    shape: ModelShape
    latents: tuple[Array, ...]  # int8 [rows, columns] of each of shape.grids
    networks: Mapping[str, Quantized]  # those of shape.tensors
    start: int = 0  # the number of that from which a file may hold differences

    def __post_init__(self) -> None:
        found = tuple(grid.shape for grid in self.latents)
        check_format(found == self.shape.grids, f"grids are {found}, not {self.shape.grids}")
        for grid in self.latents:
            inside = grid.dtype == np.int8 and grid.min() >= LEAST and grid.max() <= LARGEST
            check_format(inside, f"latents are not int8 from {LEAST} to {LARGEST}")
        check_networks(self.shape, self.networks)

    @property
    def seen(self) -> tuple[Array, ...]:
        """The levels of the pyramid, the finest first."""
        return self.latents[: self.shape.levels]

    @property
    def extra(self) -> tuple[Array, ...]:
        """The further grids of the finest size, which synthesis sees beside the levels."""
        return self.latents[self.shape.levels :] if self.shape.extra else ()

    @property
    def coded(self) -> list[int]:
        """The numbers of grids that are in a file: levels if they are not zeros, all others."""
        levels = self.shape.levels
        return [n for n, grid in enumerate(self.latents) if n >= levels or grid.any()]


def check_networks(shape: ModelShape, networks: Mapping[str, Quantized]) -> None:
    """Raise FormatError unless networks have these shapes, and sums of them fit in 32 bits."""
    shapes = shape.tensors
    check_format(list(networks) == list(shapes), "the networks' tensors are others")
    for name, tensor in networks.items():
        if tensor.values.shape != shapes[name] or tensor.values.dtype != np.int32:
            raise FormatError(f"{name} is {tensor.values.dtype}{list(tensor.values.shape)}")
        finer = VALUE_BITS if name.endswith("bias") else 0
        check_format(0 <= tensor.exponent <= MAX_EXPONENT + finer, f"{name} has no such step")
        check_format(tensor.largest <= MAX_WEIGHT, f"a weight of {name} is too large")
        if name.endswith(".weight"):
            _check_sums(name, tensor, networks[name.replace(".weight", ".bias")])
    least = PIXEL_BITS - VALUE_BITS
    good = networks["synthesis.2.weight"].exponent >= least
    check_format(good, f"the step of synthesis.2.weight is coarser than 2**-{least}")
    for name in {"upsampling", "filter"} & networks.keys():
        taps = networks[name].magnitudes
        most = (taps.sum() if name == "filter" else taps.sum(1)).max(initial=0)
        check_format(int(most) * LIMIT < 2**30, f"sums of {name} need more than 32 bits")


def _check_sums(name: str, weight: Quantized, bias: Quantized) -> None:
    bits = PIXEL_BITS if name.startswith("residual") else VALUE_BITS
    finer = bits + weight.exponent - bias.exponent
    check_format(finer >= 0, f"biases beside {name} are finer than the sums that they join")
    largest = weight.sums * LIMIT + (bias.magnitudes << finer)
    check_format(
        int(largest.max()) < 2**31 - 2 ** (MAX_EXPONENT + VALUE_BITS),
        f"sums of {name} need more than 32 bits",
    )


# --- parameters as a file has them ---


def networks_of(flat: Array, shapes: Sequence[tuple[int, ...]]) -> dict[str, Array]:
    """Flat parameters, which are arrays of these shapes, as a file's tensors."""
    parts = np.split(flat, np.cumsum([int(np.prod(s)) for s in shapes])[:-1])
    arrays = [p.reshape(s) for p, s in zip(parts, shapes, strict=True)]
    synthesis, residual, context = arrays[:6], arrays[6:10], arrays[10:16]
    found = dict(zip(_names("entropy"), context, strict=True))
    first = found["entropy.0.weight"]
    found["entropy.0.weight"] = first[trained_order(len(first))]
    taps, own = (arrays[16:-1], arrays[-1:]) if shapes[-1] == FILTER else (arrays[16:], [])
    found["upsampling"] = np.array(taps).reshape(-1, 4)
    found |= dict(zip(_names("synthesis"), synthesis, strict=True))
    for number in range(2):
        weight, bias = residual[2 * number : 2 * number + 2]
        kernel = weight.reshape(bias.size, 3, 3, bias.size).transpose(1, 2, 0, 3)
        found[f"residual.{number}.weight"] = kernel
        found[f"residual.{number}.bias"] = bias
    return found | ({"filter": own[0].reshape(3, 3)} if own else {})


def flat_of(networks: Mapping[str, Array]) -> Array:
    """The other way around; float32 [parameters]."""
    context = [networks[name] for name in _names("entropy")]
    back = np.empty_like(context[0])
    back[trained_order(len(back))] = context[0]
    found = [networks[name] for name in _names("synthesis")]
    for number in range(2):
        bias = networks[f"residual.{number}.bias"]
        weight = networks[f"residual.{number}.weight"].transpose(2, 0, 1, 3)
        found += [weight.reshape(-1, bias.size), bias]
    found += [back, *context[1:], networks["upsampling"]]
    found += [networks["filter"]] if "filter" in networks else []
    return np.concatenate([np.ravel(a) for a in found]).astype(np.float32)


def _names(network: str) -> list[str]:
    return [f"{network}.{n}.{kind}" for n in range(3) for kind in ("weight", "bias")]


def trained_order(rows: int) -> list[int]:
    """Which row of the trained first layer is each neighbour's; those of hyperlatents come last."""
    near = [(down + REACH) * (2 * REACH + 1) + right + REACH for down, right in NEIGHBOURS]
    return [*near, *range(len(near), rows)]
