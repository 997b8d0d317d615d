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
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np

from imgmlp.codec.latent.model import BICUBIC_TAPS, NEAREST_BELOW_LEVEL
from imgmlp.codec.latent.plane import Extent, Plane
from imgmlp.codec.latent.pretrained import pretrained_networks
from imgmlp.codec.latent.step import operations, upsampling
from imgmlp.codec.latent.step.architecture import DEFAULT_ARCHITECTURE, Architecture, levels_of
from imgmlp.codec.latent.step.control import (
    ADAM_EPSILON,
    BETA2,
    NETWORK_BETA1,
    Control,
    Steering,
    gradient_only,
)
from imgmlp.codec.latent.step.forward_pass import ForwardPass, clipped
from imgmlp.codec.latent.step.parameters import (
    parameter_shapes,
    random_parameters,
    with_pretrained,
)
from imgmlp.codec.training.checkpoint import Resumable
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
    optim,
    together,
)
from imgmlp.image import visible_fraction

Array = np.ndarray[Any, Any]

# Tables for upsampling, by a level and how many maps become as large as its grid.
TableArrays = dict[tuple[int, int], list[Array]]

# What networks are judged by, each of which depends on a part of them only: the squared error on
# synthesis and upsampling, the bits on the entropy network.
Part = Literal["error", "bits"]
PARTS: tuple[Part, ...] = "error", "bits"


def part_of(tensor: str) -> Part:
    """Which figure a tensor of the networks changes, by its name."""
    return "bits" if tensor.startswith("entropy.") else "error"


class GradientOf(Protocol):
    """See `LatentStep.gradients`."""

    def __call__(self, flat: Array, is_noisy: bool = False) -> Array: ...


# The rate of weights, of which the loss has a rough estimate: their step size in it, and what
# lambda is multiplied by for differences from pretrained weights and for weights without these.
WEIGHT_STEP_SIZE = 2.0**-7
DIFFERENCE_RATE_FACTOR, WEIGHT_RATE_FACTOR = 3.0, 1.0
# In pictures of more pixels than the first the factor for differences falls by this power of them.
FULL_FACTOR_PIXELS, RATE_FACTOR_EXPONENT = 2**14, 0.72

# The fraction of samples that are visible from which on layers that depend on the number of
# channels begin pretrained: cut-outs learn them better from random weights.
MIN_VISIBLE_FRACTION = 0.8


class LatentStep(ForwardPass, Resumable):
    """One training step of a latent model: its program, and its state on the device.

    With a `bucket` of (rows, columns), in which the picture fits, the program serves every picture
    of as many levels that does.
    """

    def __init__(
        self,
        pixels: Array,
        seed: int,
        device: AnyDevice,
        architecture: Architecture = DEFAULT_ARCHITECTURE,
        bucket: tuple[int, int] | None = None,
    ) -> None:
        """`pixels` are uint8 [height, width, channels]."""
        self.seed, self.device, self.bucket = seed, device, bucket
        self.architecture = architecture
        self.height, self.width, channels = pixels.shape
        levels = levels_of(self.height, self.width, bucket)
        self.shape = architecture.model_shape(self.height, self.width, channels, levels)
        self.parameter_shapes = parameter_shapes(self.shape)
        self.visible_fraction: float = visible_fraction(pixels)  # of the samples
        self.extent = self._initial_extent()
        self.plane = self.extent.plane
        self.windows = [self.extent]  # that one pass over the picture visits
        self._judged_windows = self.windows  # those of them that networks are judged by

        self._make_constants(pixels)
        self._make_parameters()
        latents = np.zeros((self.plane.rows, self.plane.pitch), np.float32)
        self.latents = Tensor(latents, device, name="latents")
        self.count = Tensor(np.uint32(0), device, name="count")  # steps done
        self._current_control = Control(0.0)
        values = self._current_control.array(1, 1, 0.0)
        self.control = Tensor(values, device, name="control")
        self.adam_latents, self.adam = self._optimizers()

        self._pending: list[Part] = []  # judgements asked for and not answered
        self._latest = 0.0  # the judgement received last
        with together():
            self.program = self._compiled(self._step, device, "half")
            if device.builds_in_parts:  # nothing is trained without what judges it
                _ = self._judging

    # --- what is on the device ---

    def _make_constants(self, pixels: Array) -> None:
        """What stays as it is while a picture, or one of its windows, is trained."""
        extent, device = self.extent, self.device
        self.target = Tensor(extent.target(pixels), device, name="target")
        arrays = self._upsampling_tables(extent)
        tables = [Tensor(values, device, name="tables") for values in joined(arrays)]
        self.extent_tensors = [*self._make_masks(), *tables]  # what depends on the extent
        self.tables = _views_of(arrays, *tables)
        self.bicubic_taps = Tensor(np.array(BICUBIC_TAPS, np.float32), device, name="bicubic")
        is_alpha = np.arange(self.channels) == self.channels - 1
        self.is_alpha = Tensor(is_alpha.astype(np.float32), device, name="is_alpha")

    def _make_masks(self) -> list[Tensor]:
        """Set the masks of where the picture ends, what of it counts, and what moves. Returns the
        Tensors that hold them."""
        extent, device = self.extent, self.device
        self.grid_begins = None
        self.grid_ends = Tensor(extent.grid_bounds[1], device, name="grid_ends")
        self.pixel_mask = Tensor(extent.pixel_mask(extent.halo), device, name="pixel_mask")
        self.latent_mask = Tensor(extent.value_mask(extent.halo), device, name="latent_mask")
        self.own_latent_mask, self.own_pixel_mask = self.latent_mask, self.pixel_mask
        return [self.grid_ends, self.pixel_mask, self.latent_mask]

    def _make_parameters(self) -> None:
        device, random = self.device, random_parameters(self.parameter_shapes, self.seed)
        self.pretrained = pretrained_networks(self.architecture.pretrained, self.shape)
        flat, anchor = (
            with_pretrained(given, self.shape, self.pretrained, self.is_mostly_visible)
            for given in (random, np.zeros_like(random))
        )
        self.flat = Tensor(flat, device, name="networks")
        self.trainable = Tensor(np.ones_like(flat), device, name="trainable")  # 1, or 0 if fixed
        self.rate_anchor = Tensor(anchor, device, name="rate_anchor")  # weights that cost no bits
        self.candidate = Tensor(flat, device, name="candidate")  # networks to be judged

    @property
    def is_mostly_visible(self) -> bool:
        """Whether few samples lie under an alpha of 0."""
        return self.visible_fraction >= MIN_VISIBLE_FRACTION

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
        sizes = self.plane, self.bucket is None, self.channels, self.parameter_shapes.tensors
        depends_on = *sizes, self.seed, self.extent.halo
        return compile(
            step, device, precision=precision, beside=beside,
            depends_on=depends_on, states=self._states(),
        )  # fmt: skip

    def _states(self) -> list[Tensor]:
        """All arrays that a step reads."""
        constants = self.target, self.rate_anchor, self.trainable, self.candidate
        moving = LatentStep._moving(self).values()
        return [
            *self.extent_tensors, *constants, self.control, self.is_alpha, self.bicubic_taps,
            *moving,
        ]  # fmt: skip

    def _upsampling_tables(self, extent: Extent) -> TableArrays:
        """Index tables for upsampling on a GPU, by the level and the number of maps that become as
        large as its grid; none for other devices."""
        tables, halo = TableArrays(), extent.halo
        if not operations.has_gpu_lanes(self.target):
            return tables
        for level, grid in enumerate(self.plane.grids[: self.levels - 1]):
            bounds = [extent.bounds(axis, level + 1, halo) for axis in (0, 1)]
            size = grid.height + 2 * halo, grid.width + 2 * halo
            coarser_hyperlatents = sum(n > level for n in self.shape.hyperlatent_levels)
            is_interpolated = level >= NEAREST_BELOW_LEVEL
            for count in {self.levels - 1 - level, coarser_hyperlatents * is_interpolated} - {0}:
                tables[level, count] = upsampling.upsampling_tables(count, bounds, size)
        return tables

    def _initial_extent(self) -> Extent:
        """The part of the picture that is in the plane at the beginning: all of it."""
        size = self.height, self.width
        rows, columns = self.bucket or size
        plane = Plane.of(rows, columns, self.levels, others=self.shape.additional_levels)
        return Extent(plane, size, (0, 0), size)

    # --- the step ---

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
        return clipped(rounded) * self.latent_mask, first * second * self.own_latent_mask

    def _noise(self, shape: Tensor) -> Tensor:
        """Random values around 0, within half a quantisation step.

        Every second step has the noise of the step before with the other sign, so that its linear
        effect on gradients cancels. (Where a GPU takes an odd number of steps of a window at once,
        one of them has no partner.)
        """
        turn = self.count // self.steering.update_interval.cast(dtype.u32)
        bits = Tensor.random_bits(self.latents.shape, (self.seed, turn // 2))
        return operations.noise(bits, shape) * (1.0 - (turn % 2).cast(dtype.f32) * 2.0)

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
        return self._forward(clipped(operations.nearest(self.latents)), flat)

    @cached_property
    def _candidates(self) -> Feeder:
        return Feeder(self._judging["error"], self.candidate)

    @cached_property
    def _figures(self) -> dict[Part, Receiver]:
        def keep(part: Part, outputs: dict[str, Array]) -> None:
            self._latest = float(outputs[part])

        return {part: Receiver(self._judging[part], [part], keep) for part in PARTS}

    def judge(self, flat: Array) -> tuple[float, float]:
        """Mean squared error on [0, 1], of samples that count, and bits per pixel, of rounded grids
        with these networks."""
        for part in PARTS:
            self.ask(flat, part)
        return self.answer(), self.answer()

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
        samples: float = self.pixels * self.channels * self.visible_fraction
        return error / samples

    @cached_property
    def _showing(self) -> Program:
        return self._compiled(self._show, self.device, beside=self.program)

    def _show(self) -> dict[str, Tensor]:
        latents = clipped(operations.nearest(self.latents))
        samples = self._reconstruction(latents, self._networks(self.flat))
        in_range = (samples + 0.5).maximum(0.0).minimum(1.0)
        return {"pixels": (in_range * 255.0 + 0.5).cast(dtype.u8)}

    def picture(self) -> Array:
        """Decode rounded grids with the present networks, uint8 [height, width, channels]."""
        self._showing.run()
        samples = self.extent.samples(self._showing.read("pixels"))
        return np.ascontiguousarray(samples.transpose(1, 2, 0))

    @contextmanager
    def gradients(self, lmbda: float) -> Iterator[GradientOf]:
        """A function of networks [parameters] that gives the gradient by them of D + lambda R, as
        `judge` gives D and R: float32 [parameters]. Given True as well, latents are not rounded but
        have noise as in training, in every call another.

        It is valid within this context, in which networks may be judged as well.
        """

        def gradient_at(flat: Array, is_noisy: bool = False) -> Array:
            control, total = gradient_only(lmbda, is_noisy), np.zeros(flat.shape)
            self.flat.write(flat)
            self.steer(control)
            for extent in self._judged_windows:
                self._step_of(extent)
                total += self.program.read("slopes")
            if not np.isfinite(total).all():  # nor then is Adam's state, and with it the latents
                self._restore_after_overflow(state)
            total /= control.loss_scale(self.channels)
            return (total / sum(e.pixels for e in self._judged_windows)).astype(np.float32)

        with self._state_set_aside() as state:
            yield gradient_at

    def latent_slopes(self, extent: Extent, flat: Array, lmbda: float) -> list[Array]:
        """Gradient of D + lambda R, summed over pixels, by the rounded latents of a window, float32
        [h, w] for every grid."""
        with self._state_set_aside():
            self.flat.write(flat)
            self.steer(gradient_only(lmbda))
            self._step_of(extent)
            mean: Array = self.adam_latents.state()[0].numpy()  # of one gradient, as nothing stays
            return self.extent.parts(mean / Steering(*self.control.numpy()).gradient_gain)

    @contextmanager
    def _state_set_aside(self) -> Iterator[dict[str, Array]]:
        """A context, given the state on the device, after which everything is as it was."""
        state, control = self._device_state(), self._current_control
        try:
            yield state
        finally:
            self._restore_device_state(state)
            self.steer(control)

    def _restore_after_overflow(self, state: dict[str, Array]) -> None:
        """Return to a state from before a gradient that is not finite."""
        self._restore_device_state(state)

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
        self._current_control = control
        self.control.write(control.array(self.channels, self.pixels, self.weight_rate_factor))

    @property
    def weight_rate_factor(self) -> float:
        """The factor of lambda for bits of weights in training."""
        if not self.pretrained.number:
            return WEIGHT_RATE_FACTOR
        smaller: float = min(1.0, FULL_FACTOR_PIXELS / self.pixels) ** RATE_FACTOR_EXPONENT
        return DIFFERENCE_RATE_FACTOR * smaller

    def figures(self) -> tuple[float, float]:
        """Mean squared error and bits per pixel of the last step."""
        error, bits = (float(self.program.read(name)) for name in ("error", "bits"))
        return self.mean(error), bits / self.pixels

    def pace(self, most: float) -> float:
        """Seconds a step, measured for at least so many seconds; the state is restored."""
        state = self.state()
        seconds = seconds_a_step(self.program, most)
        self.restore(state)
        return seconds

    def handed_to(self, step: LatentStep) -> dict[str, Array]:
        """This state, as another step of the same picture needs it, whose plane differs."""
        state = self.state()
        for name in ("latents", "grids_0", "grids_1"):  # and Adam's means
            state[name] = step.extent.assemble(self.extent.parts(state[name]))
        return state

    def _device_state(self) -> dict[str, Array]:
        """The part of the state that is on the device."""
        return Resumable.state(self)

    def _restore_device_state(self, state: dict[str, Array]) -> None:
        Resumable.restore(self, state)

    def _moving(self) -> dict[str, Tensor]:
        named = {"flat": self.flat, "latents": self.latents, "count": self.count}
        for prefix, adam in (("networks", self.adam), ("grids", self.adam_latents)):
            named |= {f"{prefix}_{n}": tensor for n, tensor in enumerate(adam.state())}
        return named


def joined(tables: TableArrays) -> list[Array]:
    """All tables in one array, if there are any."""
    arrays = [array.reshape(-1) for level in tables.values() for array in level]
    return [np.concatenate(arrays)] if arrays else []


def _views_of(
    tables: TableArrays, *joined_tables: Tensor
) -> dict[tuple[int, int], upsampling.Tables]:
    """The tables as views of the array of all of them on the device."""
    views, begin = dict[tuple[int, int], upsampling.Tables](), 0
    for key, arrays in tables.items():
        parts = list[Tensor]()
        for array in arrays:
            part = joined_tables[0][begin : begin + array.size]
            parts.append(part.reshape(*array.shape))
            begin += array.size
        views[key] = upsampling.Tables(*parts)
    return views
