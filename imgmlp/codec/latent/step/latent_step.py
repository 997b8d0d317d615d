"""One training step of a latent model, with all its state on the device.

The step moves grids and networks down the gradient of the mean squared error on [0, 1] plus
lambda times bits per pixel, of latents and of weights; all are summed over pixels, so that no
gradient is tiny. What the host decides while it is replayed stands in `Control`, so that one
program serves all phases and all lambdas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from imgmlp.codec.latent.model import (
    BICUBIC_TAPS,
    FILTER_SHAPE,
    NEAREST_BELOW_LEVEL,
    ModelShape,
    default_levels,
    flat_of,
    networks_of,
)
from imgmlp.codec.latent.plane import MIN_SIDE, NEIGHBOUR_ROWS, TILE_POSITIONS, Extent, Plane
from imgmlp.codec.latent.pretrained import OUTPUT_LAYERS, pretrained_networks
from imgmlp.codec.latent.step import hyperlatents, operations, upsampling
from imgmlp.codec.training.checkpoint import Resumable
from imgmlp.codec.training.perceptron import Activation, Some, perceptron
from imgmlp.codec.training.replay import seconds_a_step
from imgmlp.engine import (
    AnyDevice,
    Feeder,
    Precision,
    Program,
    Receiver,
    Tensor,
    compile,
    dtype,
    nn,
    optim,
    together,
)
from imgmlp.image import visible_fraction

Array = np.ndarray[Any, Any]
T = TypeVar("T")

# Tables for upsampling, by a level and how many maps become as large as its grid.
TableArrays = dict[tuple[int, int], list[Array]]

# What networks are judged by, each of which depends on a part of them only: the squared error on
# synthesis and upsampling, the bits on the entropy network.
Part = Literal["error", "bits"]
PARTS: tuple[Part, ...] = "error", "bits"

# Default widths of hidden layers.
SYNTHESIS_WIDTH, ENTROPY_WIDTH = 32, 24
# Synthesis networks of this width and more see the finest grid through a learned filter as well,
# whose weights would cost small pictures too much.
FILTERED_FROM_WIDTH = 32

# Adam. Latents see noise of alternating sign in successive steps, hence their lower beta1.
NETWORK_BETA1, LATENT_BETA1, BETA2 = 0.9, 0.8, 0.98
# Epsilon is meant for gradients of the loss summed over pixels, at this lambda and higher ones; at
# lower ones gradients are smaller, and are scaled up.
ADAM_EPSILON, EPSILON_LMBDA = 4e-3, 1e-3
MAX_GRADIENT_NORM = 0.1  # of the networks' gradient, for a loss that is a mean over pixels
# Gradients are computed in half precision, so the loss is scaled: lambda times the scale is at
# least this, and the scale at most that for each channel. The latter is because an error of 1, of
# black for white, then has a gradient of 1024 in a sample, and halves end at 64 times that, which
# leaves room for what the networks make of it.
MIN_SCALED_LMBDA, MAX_LOSS_SCALE = 0.25, 2.0**9
FLAT_TEMPERATURE = 1e3  # at which soft rounding is the identity

# The rate of weights, of which the loss has a rough estimate: their step size in it, and what
# lambda is multiplied by for differences from pretrained weights and for weights without these.
WEIGHT_STEP_SIZE = 2.0**-7
DIFFERENCE_RATE_FACTOR, WEIGHT_RATE_FACTOR = 3.0, 1.0
# In pictures of more pixels than the first the factor for differences falls by this power of them.
FULL_FACTOR_PIXELS, RATE_FACTOR_EXPONENT = 2**14, 0.72
HYPERLATENT_WEIGHT_SCALE = 0.4  # of random first-layer weights of hyperlatents

# The fraction of samples that are visible from which on layers that depend on the number of
# channels begin pretrained: cut-outs learn them better from random weights.
MIN_VISIBLE = 0.8
SMALLEST_BUCKET_LEVELS = 6  # grids of all pictures in the smallest bucket
# Where the plane has at least so many values, the networks' gradients are of one in so many of its
# tiles. GPUs take all tiles, as their lanes advance together.
MIN_SUBSAMPLED_PLACES, TILE_SUBSAMPLING = 2**16, 4


def levels_of(height: int, width: int, bucket: tuple[int, int] | None) -> int:
    """How many grids a picture has that is trained in a bucket.

    All pictures in the smallest bucket have as many, so that they share its programs; a grid that
    would be smaller than one value has one as well.
    """
    return max(
        default_levels(height, width),
        SMALLEST_BUCKET_LEVELS if bucket == (MIN_SIDE, MIN_SIDE) else 0,
    )


class Steering(NamedTuple, Generic[T]):
    """What the device is given for a step, from `Control`: float32, in this order."""

    inverse_temperature: T
    rounding_gain: T  # with which soft rounding maps whole numbers to themselves
    noise_shape: T
    noise_scale: T
    latent_lr: T
    network_lr: T
    lmbda: T
    hard_rounding: T  # 1 or 0
    loss_scale: T
    max_norm: T  # of the networks' gradient
    weight_rate_factor: T  # times lambda that bits of weights cost
    gradient_gain: T  # of gradients beside Adam's epsilon
    update_interval: T  # steps from one update of a latent to its next
    tile_subsampling: T
    network_beta2: T
    latent_beta1: T


@dataclass
class Control:
    """What the host decides anew while the program is replayed."""

    lmbda: float  # squared error on [0, 1] that a bit a pixel is worth
    temperature: float = 0.3  # of soft rounding
    noise_shape: float = 0.63  # 1 is uniform noise, 1/2 has most around 0
    noise_scale: float = 1.0
    latent_lr: float = 0.2  # in quantisation steps
    network_lr: float = 1e-2
    hard_rounding: bool = False
    tile_subsampling: int = 1  # one in so many tiles counts in the networks' gradients
    network_beta2: float = BETA2
    latent_beta1: float = LATENT_BETA1

    def array(
        self, channels: int, pixels: int, weight_rate_factor: float, update_interval: int = 1
    ) -> Array:
        """float32 [16], the Steering of a step of a picture of so many channels and pixels."""
        loss_scale = max(MIN_SCALED_LMBDA / max(self.lmbda, 1e-9), 1.0)
        steering = Steering(
            inverse_temperature=1 / self.temperature,
            rounding_gain=0.5 / math.tanh(0.5 / self.temperature),
            noise_shape=self.noise_shape,
            noise_scale=self.noise_scale,
            latent_lr=self.latent_lr,
            network_lr=self.network_lr,
            lmbda=self.lmbda,
            hard_rounding=float(self.hard_rounding),
            loss_scale=min(loss_scale, MAX_LOSS_SCALE * channels),
            max_norm=MAX_GRADIENT_NORM * pixels,
            weight_rate_factor=weight_rate_factor,
            gradient_gain=max(EPSILON_LMBDA / max(self.lmbda, 1e-9), 1.0),
            update_interval=update_interval,
            tile_subsampling=self.tile_subsampling,
            network_beta2=self.network_beta2,
            latent_beta1=self.latent_beta1,
        )
        return np.array(steering, np.float32)


def frozen(lmbda: float) -> Control:
    """A step with rounded latents that moves nothing but Adam's means, which are the gradient."""
    return Control(
        lmbda,
        temperature=FLAT_TEMPERATURE,
        noise_scale=0.0,
        latent_lr=0.0,
        network_lr=0.0,
        hard_rounding=True,
        latent_beta1=0.0,
    )


class LatentStep(Resumable):
    """One training step of a latent model: its program, and its state on the device.

    All grids lie in one plane (codec/latent/plane.py), all weights in one flat array. With a
    `bucket` of (rows, columns), in which the picture fits, the program serves every picture of as
    many levels that does: only the device's arrays know sizes then.
    """

    def __init__(
        self, pixels: Array, seed: int, device: AnyDevice,
        hidden: int = SYNTHESIS_WIDTH, entropy: int = ENTROPY_WIDTH, start: int = 0,
        bucket: tuple[int, int] | None = None, hyper: bool = False, extra: int = 0,
    ) -> None:  # fmt: skip
        """For uint8 pixels [height, width, channels]. `hidden` and `entropy` are the widths of both
        networks, `start` is the number of the pretrained ones or 0, `hyper` says whether there are
        hyperlatents, and `extra` how many grids are as large as the finest beside it."""
        self.height, self.width, self.channels = pixels.shape
        self.seed, self.device, self.bucket = seed, device, bucket
        self.levels = levels_of(self.height, self.width, bucket)
        size = self.height, self.width, self.channels, self.levels
        filtered = hidden >= FILTERED_FROM_WIDTH
        self.shape = ModelShape(
            *size, hidden, entropy, has_filter=filtered, has_hyperlatents=hyper, extra_grids=extra
        )  # in a file
        self.start = pretrained_networks(start, self.shape)
        self.counted: float = visible_fraction(pixels)  # the visible fraction of samples
        self.mostly_seen = self.counted >= MIN_VISIBLE
        self.extent = extent = self._initial_extent()
        self.plane = plane = extent.plane
        self.windows = [extent]  # that one pass over the picture visits
        self._judges = [extent]  # those of them that networks are judged by

        self.synthesis_shapes = _layers(self.shape.synthesis_inputs, hidden, hidden, self.channels)
        self.convolution_shapes = [(9 * self.channels, self.channels), (self.channels,)] * 2
        contexts = operations.NEIGHBOURS + len(self.shape.hyperlatent_levels)
        self.entropy_shapes = _layers(contexts, entropy, entropy, 2)
        self.shapes = [*self.synthesis_shapes, *self.convolution_shapes, *self.entropy_shapes]
        self.shapes += [(upsampling.TAPS,)] * (self.levels - 1) + [FILTER_SHAPE] * filtered

        # What stays as it is in a run.
        self.target = Tensor(extent.target(pixels), device, name="target")
        arrays = self._upsampling_tables(extent)
        tables = [Tensor(values, device, name="tables") for values in joined(arrays)]
        self.framing = [*self._masks(), *tables]
        self.tables = _views_of(arrays, *tables)
        bicubic = np.array(BICUBIC_TAPS, np.float32)
        self.enlarging = Tensor(bicubic, device, name="enlarging")  # upsampling of hyperlatents
        is_alpha = np.arange(self.channels) == self.channels - 1
        self.is_alpha = Tensor(is_alpha.astype(np.float32), device, name="alpha")

        # What the host steers by.
        self._steered = Control(0.0)
        self.control = Tensor(self._steered.array(1, 1, 0.0), device, name="control")
        networks = self._random_networks()
        flat, anchor = map(self._with_pretrained, (networks, np.zeros_like(networks)))
        self.trainable = Tensor(np.ones_like(flat), device, name="trainable")  # 1, or 0 if fixed
        self.rate_anchor = Tensor(anchor, device, name="start")  # weights that cost no bits
        self.candidate = Tensor(flat, device, name="candidate")  # networks to be judged

        # What training moves.
        self.flat = Tensor(flat, device, name="networks")
        empty = np.zeros((plane.rows, plane.pitch), np.float32)
        self.latents = Tensor(empty, device, name="latents")
        self.count = Tensor(np.uint32(0), device, name="count")  # steps done
        self.adam_latents, self.adam = self._optimizers()

        self._pending: list[Part] = []  # judgements asked for and not answered
        self._latest = 0.0  # the judgement received last
        with together():
            self.program = self._compiled(self._step, device, "half")
            if device.builds_in_parts:  # nothing is trained without what judges it
                _ = self._judging

    def _optimizers(self) -> tuple[optim.Adam, optim.Adam]:
        """What moves the latents, and what moves the networks."""
        now = self.steering
        latents = optim.Adam([self.latents], now.latent_lr, (now.latent_beta1, BETA2), ADAM_EPSILON)
        rates, betas = now.network_lr * self.trainable, (NETWORK_BETA1, now.network_beta2)
        return latents, optim.Adam([self.flat], rates, betas, ADAM_EPSILON)

    def _compiled(
        self, step: Callable[[], dict[str, Tensor]], device: AnyDevice,
        precision: Precision = "float32", beside: Program | None = None,
    ) -> Program:  # fmt: skip
        """A program; it is not traced if an earlier process has cached the result."""
        own = self.plane, self.bucket is None, self.channels, self.shapes, self.seed
        depends_on = *own, self.extent.halo
        return compile(
            step, device, precision=precision, beside=beside,
            depends_on=depends_on, states=self._states(),
        )  # fmt: skip

    def _states(self) -> list[Tensor]:
        """All arrays that a step reads."""
        fixed = [*self.framing, self.target, self.rate_anchor, self.trainable, self.candidate]
        moving = LatentStep._moving(self).values()
        return [*fixed, self.control, self.is_alpha, self.enlarging, *moving]

    def _upsampling_tables(self, extent: Extent) -> TableArrays:
        """Index tables for upsampling on a GPU, by the level and the number of maps that become as
        large as its grid; none for other devices."""
        found, halo = dict[tuple[int, int], list[Array]](), extent.halo
        if not operations.has_gpu_lanes(self.target):
            return found
        for level, grid in enumerate(self.plane.grids[: self.levels - 1]):
            used = [extent.bounds(axis, level + 1, halo) for axis in (0, 1)]
            wanted = grid.height + 2 * halo, grid.width + 2 * halo
            hyper = sum(n > level for n in self.shape.hyperlatent_levels) * (
                level >= NEAREST_BELOW_LEVEL
            )
            for count in {self.levels - 1 - level, hyper} - {0}:
                found[level, count] = upsampling.upsampling_tables(count, used, wanted)
        return found

    # --- what stays as it is ---

    def _initial_extent(self) -> Extent:
        """The part of the picture that is in the plane at the beginning: all of it."""
        size = self.height, self.width
        rows, columns = self.bucket or size
        plane = Plane.of(rows, columns, self.levels, others=self.shape.additional_levels)
        return Extent(plane, size, (0, 0), size)

    def _masks(self) -> list[Tensor]:
        """Make the masks of where the picture ends, what of it counts, and what moves. Returns the
        Tensors that hold them."""
        extent, device = self.extent, self.device
        self.firsts: Tensor | None = None
        self.ends = Tensor(extent.grid_bounds[1], device, name="sizes")
        self.inside = Tensor(extent.pixel_mask(extent.halo), device, name="inside")
        self.taken = Tensor(extent.value_mask(extent.halo), device, name="taken")
        self.own, self.own_pixels = self.taken, self.inside
        return [self.ends, self.inside, self.taken]

    def _with_pretrained(self, flat: Array) -> Array:
        """float32 [parameters]: pretrained weights where there are any, the others as given."""
        drawn, begun = networks_of(flat, self.shapes), self.start.floats()
        if not self.mostly_seen:
            begun = {n: v for n, v in begun.items() if n.rpartition(".")[0] not in OUTPUT_LAYERS}
        colours = self.channels - (self.channels in (2, 4))
        # Pretrained networks lack the weights of hyperlatents, of extra grids and of alpha, which
        # noise alone would have to move from 0. From these rows and columns on, random weights are
        # taken, times a scale.
        random = (
            ("entropy.0.weight", operations.NEIGHBOURS, 0, HYPERLATENT_WEIGHT_SCALE),
            ("synthesis.0.weight", self.shape.synthesis_inputs - self.shape.extra_grids, 0, 1.0),
            ("synthesis.2.weight", 0, colours, 1.0),
        )
        for name, row, column, scale in random:
            if name in begun:
                begun[name][row:, column:] = scale * drawn[name][row:, column:]
        return flat_of(drawn | begun)

    def _random_networks(self) -> Array:
        """float32 [parameters]: He-initialised layers; convolutions and biases are zero,
        upsampling is bicubic, and the filter a mean."""
        generator = np.random.Generator(np.random.PCG64(self.seed))
        count, found = len(self.synthesis_shapes), list[Array]()
        last_layer = count + 4 + len(self.entropy_shapes) - 1
        for number, shape in enumerate(self.shapes):
            if number > last_layer:
                found.append(
                    np.full(FILTER_SHAPE, 1 / 9)
                    if shape == FILTER_SHAPE
                    else np.array(BICUBIC_TAPS)
                )
            elif len(shape) == 1 or count <= number < count + 4:
                found.append(np.zeros(shape))
            else:
                last = number in (count - 2, count + 4 + len(self.entropy_shapes) - 2)
                scale = math.sqrt((1 if last else 2) / shape[0])
                found.append(generator.standard_normal(shape) * scale)
        return np.concatenate([f.ravel() for f in found]).astype(np.float32)

    # --- the step ---

    @property
    def steering(self) -> Steering[Tensor]:
        """The entries of `control` on the device."""
        return Steering(*(self.control[n] for n in range(len(Steering._fields))))

    def _step(self) -> dict[str, Tensor]:
        now = self.steering
        scale, gain = now.loss_scale, now.gradient_gain
        rounded, rounding_slope = self._soft_rounded()
        error, bits = (costs.sum() for costs in self._forward(rounded, self.flat))
        loss = (error * (1 / self.channels) + bits * now.lmbda) * scale
        by_rounded, slopes = loss.gradient([rounded, self.flat])
        weight_rate = self._weight_rate_gradient() * (now.lmbda * now.weight_rate_factor)
        by_flat = slopes * (1.0 / scale) + weight_rate
        self.adam_latents.apply([by_rounded * (gain / scale) * rounding_slope])
        norm = by_flat.square().sum().sqrt()
        self.adam.apply([by_flat * (gain * now.max_norm / norm.maximum(now.max_norm))])
        self.count.assign(self.count + 1)
        return {"error": error, "bits": bits, "slopes": slopes}

    def _weight_rate_gradient(self) -> Tensor:
        """Gradient of the weights' rate, about log2(1 + d / WEIGHT_STEP_SIZE) bits for one at a
        distance d from what costs nothing."""
        difference = self.flat - self.rate_anchor
        size = difference.abs()
        return difference / ((size + 1e-9) * (size + WEIGHT_STEP_SIZE)) * (1 / math.log(2))

    def _forward(self, seen: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The forward pass of a plane of grids [rows, pitch] with networks [parameters]: squared
        errors [channels, pixels of the plane] and bits [latents of the plane]."""
        synthesis, convolutions, entropy, taps = self._networks(flat)
        zeros = Tensor.zeros(NEIGHBOUR_ROWS, self.plane.pitch)
        framed = Tensor.concat([zeros, seen, zeros], 0)
        seen = framed[NEIGHBOUR_ROWS : NEIGHBOUR_ROWS + self.plane.rows]  # materialised once
        bits = self._bits(framed, seen, entropy)
        answer = self._reconstruction(seen, synthesis, convolutions, taps)
        return ((answer - self.target) * self._sample_weights()).square(), bits

    def _networks(self, flat: Tensor) -> list[list[Tensor]]:
        """The tensors of: the synthesis network, its convolutions, the entropy network, and
        upsampling kernels with the filter."""
        arrays = nn.slices(flat, self.shapes)
        ends = np.cumsum([len(self.synthesis_shapes), 4, len(self.entropy_shapes)])
        return [arrays[a:b] for a, b in zip([0, *ends], [*ends, None], strict=True)]

    def _sample_weights(self) -> Tensor:
        """1 for samples that count, else 0, [channels or 1, pixels of the plane]: those in the
        picture, and of colours only those under an alpha that is not 0."""
        inside = self.own_pixels.reshape(1, -1)
        if self.channels not in (2, 4):
            return inside
        colours = self.channels - 1
        visible = ((self.target[colours:] + 0.5) * 512.0).minimum(1.0)  # 512 > 255
        return visible.maximum(self.is_alpha.reshape(-1, 1)) * inside

    def _soft_rounded(self) -> tuple[Tensor, Tensor]:
        """The plane of grids as the networks see it, and its derivative by the latents.

        Soft rounding, noise, soft rounding again (Agustsson and Theis, "Universally Quantized
        Neural Compression", 2020); or true rounding.
        """
        latents, now = self.latents, self.steering
        rounding = now.inverse_temperature, now.rounding_gain
        noise = self._noise(now.noise_shape) * now.noise_scale
        once, first = operations.soft_round(latents, *rounding)
        twice, second = operations.soft_round(once + noise, *rounding)
        rounded = twice + (operations.nearest(latents) - twice) * now.hard_rounding
        return _clipped(rounded) * self.taken, first * second * self.own

    def _noise(self, shape: Tensor) -> Tensor:
        """Random values around 0, within half a quantisation step.

        Every second step has the noise of the step before with the other sign, so that its linear
        effect on gradients cancels. (Where a GPU takes an odd number of steps of a window at once,
        one of them has no partner.)
        """
        turn = self.count // self.steering.update_interval.cast(dtype.u32)
        bits = Tensor.random_bits(self.latents.shape, (self.seed, turn // 2))
        return operations.noise(bits, shape) * (1.0 - (turn % 2).cast(dtype.f32) * 2.0)

    def _bits(self, framed: Tensor, seen: Tensor, layers: list[Tensor]) -> Tensor:
        contexts = operations.Contexts.apply(framed, self.plane)
        if self.shape.has_hyperlatents:
            above = hyperlatents.hyperlatent_maps(seen, self.plane, self.levels, self._enlarged)
            contexts = Tensor.concat([contexts, above], 0)
        some = self._subsample(self.plane.coded_positions)
        found = perceptron(contexts.permute(1, 0), layers, some)  # [places, 2]
        seen, own = (
            values.reshape(-1)[
                self.plane.first_coded : self.plane.first_coded + self.plane.coded_positions
            ]
            for values in (seen, self.own)
        )
        bits = operations.Bits.apply(seen, found[:, 0], found[:, 1])
        return bits * own

    def _subsample(self, rows: int) -> Some | None:
        """Which rows of a network's input count in the gradients of its weights: one tile in
        `tile_subsampling`, another one in every step. None if all do."""
        if self.device.lanes == "group" or rows < MIN_SUBSAMPLED_PLACES:
            return None
        times = self.steering.tile_subsampling
        turn = (Tensor.arange(rows) // TILE_POSITIONS).cast(dtype.u32) + self.count
        return (turn % times.cast(dtype.u32)).eq(0).reshape(rows, 1), times

    def _reconstruction(
        self, seen: Tensor, synthesis: list[Tensor], convolutions: list[Tensor],
        taps: list[Tensor],
    ) -> Tensor:  # fmt: skip
        """The picture that synthesis makes of the grids, [channels, pixels of the plane]."""
        x = self._maps(seen, taps).permute(1, 0)
        inside = self.inside.reshape(1, -1)
        some = self._subsample(self.plane.pixels)
        y = perceptron(x, synthesis, some).permute(1, 0) * inside  # [channels, pixels]
        ones = (self.channels, 1)
        w, b, w2, b2 = convolutions
        z = operations.Convolution.apply(y, w, self.plane, some) + b.reshape(*ones)
        y = (y + Activation.apply(z)) * inside
        return y + operations.Convolution.apply(y, w2, self.plane, some) + b2.reshape(*ones)

    def _maps(self, seen: Tensor, taps: list[Tensor]) -> Tensor:
        """The inputs of synthesis, [inputs, pixels of the plane]: every grid upsampled to the
        picture's size, and the finest through a filter as well."""
        rows = self.plane.pixel_rows
        finest = seen[:rows].reshape(1, self.plane.pixels)
        through = []
        if self.shape.has_filter:
            through = [operations.Filter.apply(finest, taps[-1], self.plane)]
        if self.shape.extra_grids:
            extra = self.plane.grids[self.levels :]
            through += [seen[g.row : g.row + rows].reshape(1, self.plane.pixels) for g in extra]
        if self.levels == 1:
            return Tensor.concat([finest, *through], 0)
        views = [
            seen[g.row : g.row + g.height, g.column : g.column + g.width].reshape(
                1, g.height, g.width
            )
            for g in self.plane.grids[: self.levels]
        ]
        maps = views[-1]
        for level in range(self.levels - 2, -1, -1):
            maps = self._upsampled(maps, taps[level], level)
            if level:
                maps = Tensor.concat([views[level], maps], 0)
        finest_grid = self.plane.grids[0]
        beside = (self.levels - 1, finest_grid.height, self.plane.pitch - finest_grid.width)
        maps = Tensor.concat([maps, Tensor.zeros(*beside)], 2)
        if rows > finest_grid.height:
            below = Tensor.zeros(self.levels - 1, rows - finest_grid.height, self.plane.pitch)
            maps = Tensor.concat([maps, below], 1)
        maps = maps.reshape(self.levels - 1, self.plane.pixels)
        return Tensor.concat([finest, maps, *through], 0)

    def _upsampled(self, maps: Tensor, taps: Tensor, level: int) -> Tensor:
        """Maps [c, h, w] of the next coarser level, upsampled to a level's grid."""
        grid, halo = self.plane.grids[level], self.extent.halo
        maps = self._with_repeated_edges(maps, level + 1)
        tables = self.tables[level, maps.shape[0]] if self.tables else None
        return upsampling.upsample(maps, taps, grid.height, grid.width, tables, halo)

    def _enlarged(self, maps: Tensor, level: int) -> Tensor:
        """The same for hyperlatents' maps, by a fixed kernel."""
        return self._upsampled(maps, self.enlarging, level)

    def _with_repeated_edges(self, maps: Tensor, level: int) -> Tensor:
        """Maps [c, h, w] of a level with their edges repeated into the padding of a bucket, unless
        index tables take care of it."""
        for axis in (1, 2) if self.bucket is not None and not self.tables else ():
            at = level, slice(axis - 1, axis)
            first = None if self.firsts is None else self.firsts[at]
            maps = upsampling.EdgeReplication.apply(maps, first, self.ends[at], axis)
        return maps

    # --- from and to the host ---

    @cached_property
    def _judging(self) -> dict[Part, Program]:
        ways = self._judge_error, self._judge_bits
        programs = (self._compiled(way, self.device, beside=self.program) for way in ways)
        return dict(zip(PARTS, programs, strict=True))

    def _judge_error(self) -> dict[str, Tensor]:
        errors, _ = self._judged_by(self.candidate)
        return {"error": errors.sum(), "errors": errors.sum(0)}

    def _judge_bits(self) -> dict[str, Tensor]:
        _, bits = self._judged_by(self.candidate)
        return {"bits": bits.sum(), "all bits": bits}

    def _judged_by(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        return self._forward(_clipped(operations.nearest(self.latents)), flat)

    @cached_property
    def _candidates(self) -> Feeder:
        return Feeder(self._judging["error"], self.candidate)

    @cached_property
    def _figures(self) -> dict[Part, Receiver]:
        def keep(part: Part, found: dict[str, Array]) -> None:
            self._latest = float(found[part])

        return {part: Receiver(self._judging[part], [part], keep) for part in PARTS}

    def judge(self, flat: Array) -> tuple[float, float]:
        """Mean squared error on [0, 1], of samples that count, and bits per pixel, of rounded grids
        with these networks."""
        for part in PARTS:
            self.ask(flat, part)
        return self.answer(), self.answer()

    @property
    def ahead(self) -> int:
        """How many judgements to ask for before the first is waited for, so that the device never
        waits for the host; NumPy answers at once."""
        return 1 if self.device.info.kind == "numpy" else 2

    def ask(self, flat: Array, part: Part) -> None:
        """Start judging networks by one of the figures of `judge`, in half its time. `answer`
        returns them in the order of asking."""
        self._candidates.send(flat)
        self._judging[part].run()
        self._figures[part].send(part)
        self._pending.append(part)

    def answer(self) -> float:
        """Wait for the oldest figure that was asked for."""
        part = self._pending.pop(0)
        self._figures[part].wait(1)
        return self.mean(self._latest) if part == "error" else self._latest / self.pixels

    def mean(self, error: float) -> float:
        """The mean of a sum over the samples that count."""
        samples: float = self.pixels * self.channels * self.counted
        return error / samples

    @cached_property
    def _showing(self) -> Program:
        return self._compiled(self._show, self.device, beside=self.program)

    def _show(self) -> dict[str, Tensor]:
        synthesis, convolutions, _, taps = self._networks(self.flat)
        seen = _clipped(operations.nearest(self.latents))
        answer = self._reconstruction(seen, synthesis, convolutions, taps)
        level = ((answer + 0.5).maximum(0.0).minimum(1.0) * 255.0 + 0.5).cast(dtype.u8)
        return {"pixels": level}

    def picture(self) -> Array:
        """Decode rounded grids with the present networks, uint8 [height, width, channels]."""
        self._showing.run()
        found = self.extent.samples(self._showing.read("pixels"))
        return np.ascontiguousarray(found.transpose(1, 2, 0))

    def slopes(self, flat: Array, lmbda: float) -> Array:
        """Gradient of D + lambda R, as `judge` gives them, by networks, float32 [parameters]."""
        found = np.zeros(flat.shape)
        with self._frozen(flat, lmbda):
            for extent in self._judges:
                self._step_of(extent)
                found += self.program.read("slopes") / Steering(*self.control.numpy()).loss_scale
        return (found / sum(extent.pixels for extent in self._judges)).astype(np.float32)

    def latent_slopes(self, extent: Extent, flat: Array, lmbda: float) -> list[Array]:
        """Gradient of D + lambda R, summed over pixels, by the rounded latents of a window, float32
        [h, w] for every grid."""
        with self._frozen(flat, lmbda):
            self._step_of(extent)
            mean: Array = self.adam_latents.state()[0].numpy()  # of one gradient, as nothing stays
            return self.extent.parts(mean / Steering(*self.control.numpy()).gradient_gain)

    @contextmanager
    def _frozen(self, flat: Array, lmbda: float) -> Iterator[None]:
        """Within this context a step only computes gradients, with these networks. Afterwards
        everything is as it was."""
        before, steered = self._staying(), self._steered
        self.flat.write(flat)
        self.steer(frozen(lmbda))
        try:
            yield
        finally:
            self._back_to(before)
            self.steer(steered)

    def _step_of(self, extent: Extent) -> None:
        """Take one step of a window, without reading latents back."""
        self.program.run()

    def costs(self, extent: Extent, flat: Array) -> tuple[Array, list[Array]]:
        """The terms that `judge` sums, for one of the `windows`: squared errors of its pixels,
        summed over channels, float32 [h, w], and bits of its latents, float32 [h, w] per grid."""
        self._candidates.send(flat)
        for part in PARTS:
            self._judging[part].run()
        errors = self.extent.samples(self._judging["error"].read("errors").reshape(1, -1))[0]
        plane = self.plane
        bits = np.zeros(plane.rows * plane.pitch, np.float32)
        coded = slice(plane.first_coded, plane.first_coded + plane.coded_positions)
        bits[coded] = self._judging["bits"].read("all bits")
        return errors, self.extent.parts(bits.reshape(plane.rows, plane.pitch))

    def put(self, extent: Extent, level: int, values: Array) -> None:
        """Replace a window's latents of one grid."""
        plane = self.latents.numpy()
        extent.parts(plane)[level][:] = values
        self.latents.write(plane)

    @property
    def pixels(self) -> int:
        count: int = self.height * self.width
        return count

    def grids(self) -> list[Array]:
        """The latents, a float32 array [h, w] for each grid, finest first."""
        return self.extent.parts(self.latents.numpy())

    def write_grids(self, grids: Sequence[Array]) -> None:
        """Replace the latents; what lies between grids in the plane stays zero."""
        self.latents.write(self.extent.assemble(grids))

    def steer(self, control: Control) -> None:
        """Set what holds for the steps from now on."""
        self._steered = control
        self.control.write(control.array(self.channels, self.pixels, self.weight_rate_factor))

    @property
    def weight_rate_factor(self) -> float:
        """The factor of lambda for bits of weights in training."""
        if not self.start.number:
            return WEIGHT_RATE_FACTOR
        smaller: float = min(1.0, FULL_FACTOR_PIXELS / self.pixels) ** RATE_FACTOR_EXPONENT
        return DIFFERENCE_RATE_FACTOR * smaller

    def figures(self) -> tuple[float, float]:
        """Mean squared error and bits per pixel of the last step."""
        error, bits = (float(self.program.read(name)) for name in ("error", "bits"))
        return self.mean(error), bits / self.pixels

    def pace(self, most: float) -> float:
        """Seconds a step, measured for at least so many seconds; the state is restored."""
        start = self.state()
        found = seconds_a_step(self.program, most)
        self.restore(start)
        return found

    def handed_to(self, step: LatentStep) -> dict[str, Array]:
        """This state, as another step of the same picture needs it, whose plane differs."""
        found = self.state()
        for name in ("latents", "grids_0", "grids_1"):  # and Adam's means
            found[name] = step.extent.assemble(self.extent.parts(found[name]))
        return found

    def _staying(self) -> dict[str, Array]:
        """The part of the state that is on the device."""
        return Resumable.state(self)

    def _back_to(self, staying: dict[str, Array]) -> None:
        Resumable.restore(self, staying)

    def _moving(self) -> dict[str, Tensor]:
        named = {"flat": self.flat, "latents": self.latents, "count": self.count}
        for prefix, adam in (("networks", self.adam), ("grids", self.adam_latents)):
            named |= {f"{prefix}_{n}": tensor for n, tensor in enumerate(adam.state())}
        return named


def joined(known: TableArrays) -> list[Array]:
    """All tables in one array, if there are any."""
    every = [table.reshape(-1) for tables in known.values() for table in tables]
    return [np.concatenate(every)] if every else []


def _views_of(known: TableArrays, *joined: Tensor) -> dict[tuple[int, int], upsampling.Tables]:
    """Views of such an array on the device, as tables again."""
    found, at = dict[tuple[int, int], upsampling.Tables](), 0
    for key, arrays in known.items():
        views = list[Tensor]()
        for array in arrays:
            views.append(joined[0][at : at + array.size].reshape(*array.shape))
            at += array.size
        found[key] = upsampling.Tables(*views)
    return found


def _clipped(values: Tensor) -> Tensor:
    return values.maximum(-64.0).minimum(63.0)


def _layers(*widths: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for inputs, outputs in pairwise(widths):
        found += [(inputs, outputs), (outputs,)]
    return found
