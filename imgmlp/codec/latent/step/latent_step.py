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
from imgmlp.codec.latent.plane import AROUND, LEAST_SIDE, TILE, Extent, Plane
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

# Tables for doubling maps, by a level and how many of them become as large as its grid.
Takes = dict[tuple[int, int], list[Array]]

# What networks are judged by, and those of them that it is apart: the squared error is that of
# synthesis and upsampling, the bits that of the entropy network.
Part = Literal["error", "bits"]
PARTS: tuple[Part, ...] = "error", "bits"

HIDDEN = 32  # of synthesis
ENTROPY = 24
FILTERED = 32  # of synthesis, from which on it sees the finest grid through a filter as well
BETAS = (0.9, 0.98)
MOMENTUM = 0.8  # of latents, whose noise turns round in every second step
EPSILON = 4e-3  # of gradients by single latents, which are sums over pixels
MEANT = 1e-3  # lambda that EPSILON is for; with a smaller one gradients are as many times smaller
BESIDE = 0.4  # times what is drawn for them, weights of hyperlatents in the beginning
FLAT = 1e3  # temperature at which the slope of soft rounding is 1
STEP = 2.0**-7  # of weights, as far as what they cost is concerned
# Times lambda that their bits cost, of which the loss has a rough estimate: differences from a
# start, most of which small pictures can spare, and weights without one.
DIFFERENCES, WEIGHTS = 3.0, 1.0
SMALL, CHEAPER = 2**14, 0.72  # pixels; with more, differences are cheaper by this power of them
SCALED = 0.25  # what times lambda the loss is in gradients
# For every channel, what it is at most: an error of 1, of black for white, has a gradient of 1024
# in a sample then, and halves end at 64 times that, which is left for what networks make of it.
MOST_SCALED = 2.0**9
# The share of samples that somebody sees, from which on layers that give a value a channel begin
# from a start: where alpha cuts out most of a picture they learn it better from nothing.
SEEN = 0.8
IN_LEAST = 6  # grids of all pictures in the smallest bucket, as many as those that fill it have
# Values of the plane, at least, of which some tell what weights of networks should be; a GPU, whose
# lanes go on together, takes all.
MANY, TILES = 2**16, 4  # of how many tiles one tells them
CLIP = 0.1  # most that the norm of the networks' gradient, for a mean over pixels, may be


def levels_of(height: int, width: int, bucket: tuple[int, int] | None) -> int:
    """How many grids a picture has that is trained in a bucket.

    Small ones share the programs of the smallest bucket: what is beyond a grid of one value has one
    as well.
    """
    return max(default_levels(height, width), IN_LEAST if bucket == (LEAST_SIDE, LEAST_SIDE) else 0)


class Steering(NamedTuple, Generic[T]):
    """What `Control` comes to for a step: one float32 array on the device, in this order."""

    inverse: T  # of the temperature of soft rounding
    spread: T  # what makes soft rounding keep whole numbers
    share: T  # of noise, as in Control, and so on
    noise: T
    latents: T
    networks: T
    lmbda: T
    rounding: T
    scale: T  # times what the loss is
    most: T  # that the norm of the networks' gradient may be
    weights: T  # times lambda that their bits cost
    larger: T  # times what gradients are taken to be, beside EPSILON
    apart: T
    tiles: T
    memory: T
    momentum: T


@dataclass
class Control:
    """What the host decides while the step is replayed."""

    lmbda: float  # squared error on [0, 1] that a bit a pixel is worth
    temperature: float = 0.3  # of soft rounding
    share: float = 0.63  # of noise: 1 is uniform, 1/2 most around the middle
    noise: float = 1.0
    latents: float = 0.2  # learning rate, in quantisation steps
    networks: float = 1e-2  # learning rate
    rounding: bool = False
    tiles: int = 1  # of which one tells the gradients of networks' weights, where it may
    memory: float = BETAS[1]  # what is left of networks' squared gradients in a step
    momentum: float = MOMENTUM  # what is left of latents' gradients

    def array(self, channels: int, pixels: int, weights: float, apart: int = 1) -> Array:
        """float32 [16], the Steering of a step of so many pixels and samples of each, where bits of
        weights cost so many times lambda, and so many steps of the program are from one of a latent
        to its next.
        """
        # Gradients in half precision need a loss that is large enough.
        scale = min(max(SCALED / max(self.lmbda, 1e-9), 1.0), MOST_SCALED * channels)
        steering = Steering(
            inverse=1 / self.temperature,
            spread=0.5 / math.tanh(0.5 / self.temperature),
            share=self.share,
            noise=self.noise,
            latents=self.latents,
            networks=self.networks,
            lmbda=self.lmbda,
            rounding=float(self.rounding),
            scale=scale,
            most=CLIP * pixels,
            weights=weights,
            larger=max(MEANT / max(self.lmbda, 1e-9), 1.0),
            apart=apart,
            tiles=self.tiles,
            memory=self.memory,
            momentum=self.momentum,
        )
        return np.array(steering, np.float32)


def still(lmbda: float) -> Control:
    """Of a step by which nothing moves."""
    rates: dict[str, Any] = {"latents": 0.0, "networks": 0.0, "momentum": 0.0}
    return Control(lmbda, temperature=FLAT, noise=0.0, rounding=True, **rates)


class LatentStep(Resumable):
    """State on the device, and the program that moves it. `pixels` are uint8 [h, w, channels].

    With a `bucket` of (rows, columns), at least those of the picture, the program serves all
    pictures of as many levels that fit into it: sizes are then known to the device alone.
    """

    def __init__(
        self, pixels: Array, seed: int, device: AnyDevice,
        hidden: int = HIDDEN, entropy: int = ENTROPY, start: int = 0,
        bucket: tuple[int, int] | None = None, hyper: bool = False, extra: int = 0,
    ) -> None:  # fmt: skip
        self.height, self.width, self.channels = pixels.shape
        self.levels = levels_of(self.height, self.width, bucket)
        size = self.height, self.width, self.channels, self.levels
        filtered = hidden >= FILTERED  # whose weights would cost small pictures too much
        self.shape = ModelShape(
            *size, hidden, entropy, has_filter=filtered, has_hyperlatents=hyper, extra_grids=extra
        )  # in a file
        self.start = pretrained_networks(start, self.shape)
        self.counted: float = visible_fraction(pixels)
        self.mostly_seen = self.counted >= SEEN
        self.seed, self.device = seed, device
        self.bucket = bucket
        self.extent = extent = self._first_extent()
        self.windows = [extent]
        self._judges = [extent]  # the windows that networks are judged by
        self.plane = plane = extent.plane
        self.synthesis_shapes = _layers(self.shape.synthesis_inputs, hidden, hidden, self.channels)
        self.convolution_shapes = [(9 * self.channels, self.channels), (self.channels,)] * 2
        contexts = operations.NEIGHBOURS + len(self.shape.hyperlatent_levels)
        self.entropy_shapes = _layers(contexts, entropy, entropy, 2)
        self.shapes = [*self.synthesis_shapes, *self.convolution_shapes, *self.entropy_shapes]
        self.shapes += [(upsampling.TAPS,)] * (self.levels - 1) + [FILTER_SHAPE] * filtered
        self.target = Tensor(extent.target(pixels), device, name="target")
        known = self._takes(extent)
        tables = [Tensor(values, device, name="tables") for values in joined(known)]
        self.framing = [*self._frame(), *tables]
        self.tables = _parted(known, *tables)
        self.enlarging = Tensor(
            np.array(BICUBIC_TAPS, np.float32), device, name="enlarging"
        )  # of hyperlatents
        drawn = self._drawn()
        flat = self._started(drawn)
        self.flat = Tensor(flat, device, name="networks")
        self.cheapest = Tensor(self._started(np.zeros_like(drawn)), device, name="start")
        self.free = Tensor(np.ones_like(flat), device, name="free")  # 0 where they stand still
        empty = np.zeros((plane.rows, plane.pitch), np.float32)
        self.latents = Tensor(empty, device, name="latents")  # all grids, as they lie in the plane
        self.candidate = Tensor(flat, device, name="candidate")  # to be judged
        self._steered = Control(0.0)
        self.control = Tensor(self._steered.array(1, 1, 0.0), device, name="control")
        alpha = np.arange(self.channels) == self.channels - 1
        self.is_alpha = Tensor(alpha.astype(np.float32), device, name="alpha")
        self.count = Tensor(np.uint32(0), device, name="count")
        self.adam_latents, self.adam = self._optimizers()
        self._asked: list[Part] = []  # and not answered
        self._given = 0.0  # what was waited for
        with together():
            self.program = self._compiled(self._step, device, "half")
            if device.builds_in_parts:  # nothing is trained without what judges it
                _ = self._judging

    def _optimizers(self) -> tuple[optim.Adam, optim.Adam]:
        """What moves the latents, and what moves the networks."""
        told = self.steering
        of_latents, of_networks = (told.momentum, BETAS[1]), (BETAS[0], told.memory)
        latents = optim.Adam([self.latents], told.latents, of_latents, EPSILON)
        rates = told.networks * self.free
        return latents, optim.Adam([self.flat], rates, of_networks, EPSILON)

    def _compiled(
        self, step: Callable[[], dict[str, Tensor]], device: AnyDevice,
        precision: Precision = "float32", beside: Program | None = None,
    ) -> Program:  # fmt: skip
        """A program that is not traced where an earlier process has left what came of it."""
        own = self.plane, self.bucket is None, self.channels, self.shapes, self.seed
        depends_on = *own, self.extent.halo
        return compile(
            step, device, precision=precision, beside=beside,
            depends_on=depends_on, states=self._states(),
        )  # fmt: skip

    def _states(self) -> list[Tensor]:
        """All that a step takes."""
        fixed = [*self.framing, self.target, self.cheapest, self.free, self.candidate]
        moving = LatentStep._moving(self).values()
        return [*fixed, self.control, self.is_alpha, self.enlarging, *moving]

    def _takes(self, extent: Extent) -> Takes:
        """What doubling takes of so many maps that become as large as a level's grid, by both, of
        what an extent has in the plane; nothing where no lanes of a GPU look it up."""
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

    # --- what does not change ---

    def _first_extent(self) -> Extent:
        """What is in the plane at the beginning."""
        size = self.height, self.width
        rows, columns = self.bucket or size
        plane = Plane.of(rows, columns, self.levels, others=self.shape.additional_levels)
        return Extent(plane, size, (0, 0), size)

    def _frame(self) -> list[Tensor]:
        """What tells where the picture ends and what of it counts and moves: all that is there.
        Returns what holds that in memory."""
        extent, device = self.extent, self.device
        self.firsts: Tensor | None = None
        self.ends = Tensor(extent.ends[1], device, name="sizes")
        self.inside = Tensor(extent.inside(extent.halo), device, name="inside")
        self.taken = Tensor(extent.taken(extent.halo), device, name="taken")
        self.own, self.own_pixels = self.taken, self.inside
        return [self.ends, self.inside, self.taken]

    def _started(self, flat: Array) -> Array:
        """float32 [parameters]: those of the start, others as they are."""
        drawn, begun = networks_of(flat, self.shapes), self.start.floats()
        if not self.mostly_seen:
            begun = {n: v for n, v in begun.items() if n.rpartition(".")[0] not in OUTPUT_LAYERS}
        colours = self.channels - (self.channels in (2, 4))
        # What no start has, and noise alone would move from 0: rows and columns from which on it
        # is drawn, and how large. Hyperlatents', those of extra grids, and alpha's.
        alone = (
            ("entropy.0.weight", operations.NEIGHBOURS, 0, BESIDE),
            ("synthesis.0.weight", self.shape.synthesis_inputs - self.shape.extra_grids, 0, 1.0),
            ("synthesis.2.weight", 0, colours, 1.0),
        )
        for name, row, column, share in alone:
            if name in begun:
                begun[name][row:, column:] = share * drawn[name][row:, column:]
        return flat_of(drawn | begun)

    def _drawn(self) -> Array:
        """float32 [parameters]: random networks."""
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
        """What it is told, on the device."""
        return Steering(*(self.control[n] for n in range(len(Steering._fields))))

    def _step(self) -> dict[str, Tensor]:
        told = self.steering
        lmbda, scale, larger = told.lmbda, told.scale, told.larger
        seen, slope = self._quantised()
        error, bits = (costs.sum() for costs in self._forward(seen, self.flat))
        loss = (error * (1 / self.channels) + bits * lmbda) * scale
        by_seen, slopes = loss.gradient([seen, self.flat])
        by_flat = slopes * (1.0 / scale) + self._by_weight_bits() * (lmbda * told.weights)
        self.adam_latents.apply([by_seen * (larger / scale) * slope])
        norm = by_flat.square().sum().sqrt()
        self.adam.apply([by_flat * (larger * told.most / norm.maximum(told.most))])
        self.count.assign(self.count + 1)
        return {"error": error, "bits": bits, "slopes": slopes}

    def _by_weight_bits(self) -> Tensor:
        """Gradient of what weights cost, about log2(1 + d / STEP) bits at a distance d from those
        that cost least.
        """
        away = self.flat - self.cheapest
        size = away.abs()
        return away / ((size + 1e-9) * (size + STEP)) * (1 / math.log(2))

    def _forward(self, seen: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
        """What the plane of grids [rows, pitch] gives with networks [parameters]: squared errors
        [channels, pixels of the plane] and bits [places]."""
        synthesis, convolutions, entropy, taps = self._networks(flat)
        zeros = Tensor.zeros(AROUND, self.plane.pitch)
        framed = Tensor.concat([zeros, seen, zeros], 0)
        seen = framed[AROUND : AROUND + self.plane.rows]  # so that it stands in memory once
        bits = self._bits(framed, seen, entropy)
        answer = self._answer(seen, synthesis, convolutions, taps)
        return ((answer - self.target) * self._seen()).square(), bits

    def _networks(self, flat: Tensor) -> list[list[Tensor]]:
        """The tensors of synthesis, its convolutions, the entropy network, and upsampling with
        the filter."""
        arrays = nn.slices(flat, self.shapes)
        ends = np.cumsum([len(self.synthesis_shapes), 4, len(self.entropy_shapes)])
        return [arrays[a:b] for a, b in zip([0, *ends], [*ends, None], strict=True)]

    def _seen(self) -> Tensor:
        """1 where samples count, [channels or 1, pixels of the plane]: in the picture, and where
        alpha is not 0."""
        inside = self.own_pixels.reshape(1, -1)
        if self.channels not in (2, 4):
            return inside
        colours = self.channels - 1
        visible = ((self.target[colours:] + 0.5) * 512.0).minimum(1.0)  # 512 > 255
        return visible.maximum(self.is_alpha.reshape(-1, 1)) * inside

    def _quantised(self) -> tuple[Tensor, Tensor]:
        """The plane of grids as the networks see it, and the slopes of that."""
        values, told = self.latents, self.steering
        noise = self._noise(told.share) * told.noise
        once, first = operations.soft_round(values, told.inverse, told.spread)
        twice, second = operations.soft_round(once + noise, told.inverse, told.spread)
        seen = twice + (operations.nearest(values) - twice) * told.rounding
        return _limited(seen) * self.taken, first * second * self.own

    def _noise(self, share: Tensor) -> Tensor:
        """Around 0, within half a step.

        Every second step of a latent has that of the one before with the other sign, so that what
        gradients owe to it cancels as far as it is linear. (Where a GPU takes several steps of a
        window at once, an odd number of them leaves one without its other.)
        """
        turn = self.count // self.steering.apart.cast(dtype.u32)
        bits = Tensor.random_bits(self.latents.shape, (self.seed, turn // 2))
        return operations.noise(bits, share) * (1.0 - (turn % 2).cast(dtype.f32) * 2.0)

    def _bits(self, framed: Tensor, seen: Tensor, layers: list[Tensor]) -> Tensor:
        contexts = operations.Contexts.apply(framed, self.plane)
        if self.shape.has_hyperlatents:
            above = hyperlatents.hyperlatent_maps(seen, self.plane, self.levels, self._enlarged)
            contexts = Tensor.concat([contexts, above], 0)
        some = self._telling(self.plane.places)
        found = perceptron(contexts.permute(1, 0), layers, some)  # [places, 2]
        seen, own = (
            values.reshape(-1)[self.plane.first : self.plane.first + self.plane.places]
            for values in (seen, self.own)
        )
        bits = operations.Bits.apply(seen, found[:, 0], found[:, 1])
        return bits * own

    def _telling(self, rows: int) -> Some | None:
        """Which of so many rows tell the gradients of a network's weights, those of other tiles in
        every step; None for all of them."""
        if self.device.lanes == "group" or rows < MANY:
            return None
        times = self.steering.tiles
        turn = (Tensor.arange(rows) // TILE).cast(dtype.u32) + self.count
        return (turn % times.cast(dtype.u32)).eq(0).reshape(rows, 1), times

    def _answer(
        self, seen: Tensor, synthesis: list[Tensor], convolutions: list[Tensor],
        taps: list[Tensor],
    ) -> Tensor:  # fmt: skip
        """The picture, [channels, pixels of the plane]."""
        x = self._maps(seen, taps).permute(1, 0)
        inside = self.inside.reshape(1, -1)
        some = self._telling(self.plane.pixels)
        y = perceptron(x, synthesis, some).permute(1, 0) * inside  # [channels, pixels]
        ones = (self.channels, 1)
        w, b, w2, b2 = convolutions
        z = operations.Convolution.apply(y, w, self.plane, some) + b.reshape(*ones)
        y = (y + Activation.apply(z)) * inside
        return y + operations.Convolution.apply(y, w2, self.plane, some) + b2.reshape(*ones)

    def _maps(self, seen: Tensor, taps: list[Tensor]) -> Tensor:
        """Every grid as large as the picture, and the finest through a filter, [inputs, pixels of
        the plane]."""
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
        """Maps [c, h, w] of the next coarser level, as large as a level's grid."""
        grid, halo = self.plane.grids[level], self.extent.halo
        maps = self._with_ends(maps, level + 1)
        tables = self.tables[level, maps.shape[0]] if self.tables else None
        return upsampling.upsample(maps, taps, grid.height, grid.width, tables, halo)

    def _enlarged(self, maps: Tensor, level: int) -> Tensor:
        """The same of hyperlatents' maps."""
        return self._upsampled(maps, self.enlarging, level)

    def _with_ends(self, maps: Tensor, level: int) -> Tensor:
        """Maps [c, h, w] of a level, which repeat their ends where there is room around them that
        no tables tell of."""
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
        return self._forward(_limited(operations.nearest(self.latents)), flat)

    @cached_property
    def _candidates(self) -> Feeder:
        return Feeder(self._judging["error"], self.candidate)

    @cached_property
    def _figures(self) -> dict[Part, Receiver]:
        def keep(part: Part, found: dict[str, Array]) -> None:
            self._given = float(found[part])

        return {part: Receiver(self._judging[part], [part], keep) for part in PARTS}

    def judge(self, flat: Array) -> tuple[float, float]:
        """The mean squared error on [0, 1], of samples that count, and the bits per pixel that
        rounded grids and these networks give.
        """
        for part in PARTS:
            self.ask(flat, part)
        return self.answer(), self.answer()

    @property
    def ahead(self) -> int:
        """How many networks to ask for before an answer is waited for: a device waits for the host
        otherwise; NumPy has answered when it is asked."""
        return 1 if self.device.info.kind == "numpy" else 2

    def ask(self, flat: Array, part: Part) -> None:
        """Begin to judge networks by one of what `judge` gives, which takes half as long.

        `answer` gives that, in the order of asking.
        """
        self._candidates.send(flat)
        self._judging[part].run()
        self._figures[part].send(part)
        self._asked.append(part)

    def answer(self) -> float:
        """Of the first networks that were asked for and not answered yet."""
        part = self._asked.pop(0)
        self._figures[part].wait(1)
        return self.mean(self._given) if part == "error" else self._given / self.pixels

    def mean(self, error: float) -> float:
        """Of a sum over the samples that count."""
        samples: float = self.pixels * self.channels * self.counted
        return error / samples

    @cached_property
    def _showing(self) -> Program:
        return self._compiled(self._show, self.device, beside=self.program)

    def _show(self) -> dict[str, Tensor]:
        synthesis, convolutions, _, taps = self._networks(self.flat)
        seen = _limited(operations.nearest(self.latents))
        answer = self._answer(seen, synthesis, convolutions, taps)
        level = ((answer + 0.5).maximum(0.0).minimum(1.0) * 255.0 + 0.5).cast(dtype.u8)
        return {"pixels": level}

    def picture(self) -> Array:
        """What rounded grids and the present networks give, uint8 [height, width, channels]."""
        self._showing.run()
        found = self.extent.samples(self._showing.read("pixels"))
        return np.ascontiguousarray(found.transpose(1, 2, 0))

    def slopes(self, flat: Array, lmbda: float) -> Array:
        """The gradient of D + lambda R of what `judge` gives by these networks, float32
        [parameters]."""
        found = np.zeros(flat.shape)
        with self._standing_still(flat, lmbda):
            for extent in self._judges:
                self._step_of(extent)
                found += self.program.read("slopes") / Steering(*self.control.numpy()).scale
        return (found / sum(extent.pixels for extent in self._judges)).astype(np.float32)

    def latent_slopes(self, extent: Extent, flat: Array, lmbda: float) -> list[Array]:
        """The gradient of D + lambda R, summed over pixels, by the rounded latents of a window,
        float32 [h, w] of every grid."""
        with self._standing_still(flat, lmbda):
            self._step_of(extent)
            mean: Array = self.adam_latents.state()[0].numpy()  # of one gradient, as nothing stays
            return self.extent.parts(mean / Steering(*self.control.numpy()).larger)

    @contextmanager
    def _standing_still(self, flat: Array, lmbda: float) -> Iterator[None]:
        """Steps with these networks by which nothing moves but means of gradients, which are the
        latest gradient's; afterwards everything is as it was."""
        before, steered = self._staying(), self._steered
        self.flat.write(flat)
        self.steer(still(lmbda))
        try:
            yield
        finally:
            self._back_to(before)
            self.steer(steered)

    def _step_of(self, extent: Extent) -> None:
        """Take one of a window, which leaves the latents as they are on the host."""
        self.program.run()

    def costs(self, extent: Extent, flat: Array) -> tuple[Array, list[Array]]:
        """What `judge` sums up, of one of the `windows`: squared errors, summed over channels, of
        its pixels, float32 [h, w], and bits of its latents, float32 [h, w] of every grid."""
        self._candidates.send(flat)
        for part in PARTS:
            self._judging[part].run()
        errors = self.extent.samples(self._judging["error"].read("errors").reshape(1, -1))[0]
        plane = self.plane
        bits = np.zeros(plane.rows * plane.pitch, np.float32)
        bits[plane.first : plane.first + plane.places] = self._judging["bits"].read("all bits")
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
        """The latents, float32 [h, w] each, finest first."""
        return self.extent.parts(self.latents.numpy())

    def write_grids(self, grids: Sequence[Array]) -> None:
        """Replace the latents by others of the same sizes; between grids the plane stays zero."""
        self.latents.write(self.extent.gathered(grids))

    def steer(self, control: Control) -> None:
        """What the steps from now on obey."""
        self._steered = control
        self.control.write(control.array(self.channels, self.pixels, self.weights))

    @property
    def weights(self) -> float:
        """Times lambda that bits of weights cost in training."""
        if not self.start.number:
            return WEIGHTS
        cheaper: float = min(1.0, SMALL / self.pixels) ** CHEAPER
        return DIFFERENCES * cheaper

    def figures(self) -> tuple[float, float]:
        """The mean squared error and the bits per pixel of the last step."""
        error, bits = (float(self.program.read(name)) for name in ("error", "bits"))
        return self.mean(error), bits / self.pixels

    def pace(self, most: float) -> float:
        """Seconds that a step takes, by a trial of at least so many, which is undone."""
        start = self.state()
        found = seconds_a_step(self.program, most)
        self.restore(start)
        return found

    def handed_to(self, step: LatentStep) -> dict[str, Array]:
        """What another step of the same picture goes on from, whose plane is another one."""
        found = self.state()
        for name in ("latents", "grids_0", "grids_1"):  # and what moves them
            found[name] = step.extent.gathered(self.extent.parts(found[name]))
        return found

    def _staying(self) -> dict[str, Array]:
        """All that moves and stays on the device, where a state may have more."""
        return Resumable.state(self)

    def _back_to(self, staying: dict[str, Array]) -> None:
        Resumable.restore(self, staying)

    def _moving(self) -> dict[str, Tensor]:
        named = {"flat": self.flat, "latents": self.latents, "count": self.count}
        for prefix, adam in (("networks", self.adam), ("grids", self.adam_latents)):
            named |= {f"{prefix}_{n}": tensor for n, tensor in enumerate(adam.state())}
        return named


def joined(known: Takes) -> list[Array]:
    """All tables one after the other, if there are any."""
    every = [table.reshape(-1) for tables in known.values() for table in tables]
    return [np.concatenate(every)] if every else []


def _parted(known: Takes, *joined: Tensor) -> dict[tuple[int, int], upsampling.Tables]:
    """The same of a Tensor that has them so, as views."""
    found, at = dict[tuple[int, int], upsampling.Tables](), 0
    for key, arrays in known.items():
        views = list[Tensor]()
        for array in arrays:
            views.append(joined[0][at : at + array.size].reshape(*array.shape))
            at += array.size
        found[key] = upsampling.Tables(*views)
    return found


def _limited(values: Tensor) -> Tensor:
    return values.maximum(-64.0).minimum(63.0)


def _layers(*widths: int) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for inputs, outputs in pairwise(widths):
        found += [(inputs, outputs), (outputs,)]
    return found
