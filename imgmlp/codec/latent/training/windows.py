"""A large picture, trained window by window: the device holds the intermediates of one window.

A training step visits every window once, in random order. The host owns the latents of the picture.
A visit sends the device the latents of the window and a halo around them, as wide as contexts,
upsampling and convolutions reach; the window's own latents are updated, the halo is not. Together
the windows are therefore judged by the same reconstruction as the whole picture. Networks and their
optimiser state stay on the device and are updated in every visit.

The device also keeps pages (`Pages`) of what differs between windows: the moments of Adam for each
window's latents, the target samples if the picture is not too large, and masks of where a window
ends in the plane, which many windows share.

buckets.py decides which pictures are trained so, and in windows of which size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from imgmlp.codec.latent.plane import Extent, Plane, Span
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep, Part, joined
from imgmlp.codec.latent.training.buckets import TrainingSetup, is_gpu
from imgmlp.engine import AnyDevice, Feeder, Pages, Receiver, Tensor
from imgmlp.image import visible_fraction

Array = np.ndarray[Any, Any]

HALO = 4  # values of every grid, on each side of a window's own, that its pixels depend on
# Pixels by which networks are judged, about: those of some windows, which stand for all.
JUDGED_PIXELS = 2**19
GPU_STEPS_PER_VISIT = 8  # program steps of a window on a GPU before the next window is sent
# Pixels of a picture up to which the samples of all windows stay on the device. The larger limit is
# for GPUs where they take no more than a fraction of the memory.
MAX_RESIDENT_PIXELS = 1 << 20
MAX_RESIDENT_PIXELS_ON_GPUS = 1 << 26
MAX_RESIDENT_MEMORY_FRACTION = 1 / 16
MOMENTS = "first", "second"  # names of the latents' Adam moments in a state


class WindowStep(LatentStep):
    """The LatentStep of a picture that fits into one window.

    `window` is its rows and columns; by default those that suit the picture and the device.
    """

    def __init__(
        self,
        pixels: Array,
        seed: int,
        device: AnyDevice,
        architecture: Architecture,
        window: tuple[int, int] | None = None,
    ) -> None:
        self._window = window or TrainingSetup(pixels.shape, device).window_size
        super().__init__(pixels, seed, device, architecture, self._window)

    def _initial_extent(self) -> Extent:
        plane = Plane.of(*self._window, self.levels, HALO, self.shape.additional_levels)
        return Extent(plane, (self.height, self.width), (0, 0), self._window, HALO)

    def _make_masks(self) -> list[Tensor]:
        """As in LatentStep, but held by two Tensors, as the host needs time for each that it
        sends."""
        plane = self.extent.plane
        bounds, masks = (Tensor(values, self.device) for values in _mask_arrays(self.extent))
        self.grid_begins, self.grid_ends = bounds[0], bounds[1]
        count, shape = plane.rows * plane.pitch, (plane.rows, plane.pitch)
        self.latent_mask, self.own_latent_mask = (
            masks[n * count : (n + 1) * count].reshape(*shape) for n in (0, 1)
        )
        pixel_masks = masks[2 * count :].reshape(2, plane.pixels)
        self.pixel_mask, self.own_pixel_mask = pixel_masks[0], pixel_masks[1]
        return [bounds, masks]


class WindowedStep(WindowStep):
    """The step of a picture of any number of windows, by the program of one window."""

    def __init__(
        self,
        pixels: Array,
        seed: int,
        device: AnyDevice,
        architecture: Architecture,
        window: tuple[int, int] | None = None,
    ) -> None:
        self._picture = pixels
        super().__init__(pixels, seed, device, architecture, window)
        self.steps_at_once = GPU_STEPS_PER_VISIT if is_gpu(device) else 1
        self.windows = self._all_windows()
        self._judged_windows = self._sample_windows()
        # What the host owns: latents, and the bias corrections of their Adam at the last step.
        self._grids = [np.zeros(size, np.float32) for size in self.shape.grid_sizes]
        self._corrections = [np.zeros((), np.float32)] * 2
        # Whole steps that are done, and the windows visited in the one that is not.
        self._steps, self._visited = 0, 0
        # The latents of the last visited window as they were before its visit.
        self._replaced: list[Array] = []
        # Error and bits: summed over the windows visited so far, and of the last whole step.
        self._sums, self._last_sums = np.zeros(2), np.zeros(2)
        # Pages: moments by window number, masks by `Extent.mask_key`, targets by window corner.
        self._moments = self._moment_pages()
        self._mask_pages = [Pages(t) for t in self.extent_tensors]
        self._mask_numbers = {self.extent.mask_key: 0}
        self._target_pages, self._target_numbers = Pages(self.target), dict[Span, int]()
        self._feeders: dict[Tensor, Feeder] = {}
        self._sent_control = np.zeros(0, np.float32)  # what the device has

    # --- the windows ---

    def _all_windows(self) -> list[Extent]:
        rows, columns = self._window
        return [
            replace(self.extent, corner=(top, left))
            for top in range(0, self.height, rows)
            for left in range(0, self.width, columns)
        ]

    def _sample_windows(self) -> list[Extent]:
        """Windows drawn at random, of about JUDGED_PIXELS in all."""
        order = np.random.Generator(np.random.PCG64(self.seed)).permutation(len(self.windows))
        before = np.cumsum([0, *(self.windows[n].pixels for n in order)])[:-1]
        return [self.windows[n] for n in sorted(order[before < JUDGED_PIXELS].tolist())]

    def _moment_pages(self) -> list[Pages]:
        """The first and the second moments of latents. Page 0 is scratch space for visits that
        shall leave no trace; window n has page n + 1."""
        first, second, *_ = self.adam_latents.state()
        pages, zeros = [Pages(first), Pages(second)], np.zeros(first.shape, np.float32)
        for each in pages:
            for _ in self.windows:
                each.add(zeros)
        return pages

    def _enter(self, extent: Extent, moment_page: int = 0) -> None:
        """Have the device work on a window: with its moments, masks, target and latents."""
        for pages in self._moments:
            pages.turn(moment_page)
        self._turn_masks(extent)
        self._turn_target(extent)
        self._send_latents(extent)

    def _turn_masks(self, extent: Extent) -> None:
        if extent.mask_key not in self._mask_numbers:
            values = *_mask_arrays(extent), *joined(self._upsampling_tables(extent))
            added = [p.add(v) for p, v in zip(self._mask_pages, values, strict=True)]
            self._mask_numbers[extent.mask_key] = added[0]
        for pages in self._mask_pages:
            pages.turn(self._mask_numbers[extent.mask_key])

    def _turn_target(self, extent: Extent) -> None:
        """Turn to the window's samples, of 14 bytes for every three about; large pictures have one
        page, which is overwritten."""
        if not self._keeps_samples:
            self._send(self.target, extent.target(self._picture))
            return
        if extent.corner not in self._target_numbers:
            page = self._target_pages.add(extent.target(self._picture))
            self._target_numbers[extent.corner] = page
        self._target_pages.turn(self._target_numbers[extent.corner])

    @property
    def _keeps_samples(self) -> bool:
        """Whether the samples of all windows stay on the device."""
        nbytes = 4 * self.channels * self.plane.pixels * len(self.windows)
        most = MAX_RESIDENT_MEMORY_FRACTION * self.device.info.memory
        on_gpu = is_gpu(self.device) and nbytes <= most
        return self.pixels <= (MAX_RESIDENT_PIXELS_ON_GPUS if on_gpu else MAX_RESIDENT_PIXELS)

    def _send_latents(self, extent: Extent) -> None:
        """Send the latents that a window sees, which visits of other windows may have changed, and
        what is to hold in it."""
        self.extent = extent
        self._send(self.latents, extent.assemble(self._grids, HALO))
        # Bits of weights belong to the whole picture: each window has its part of them.
        factor = self.weight_rate_factor * extent.pixels / self.pixels
        # Noise stays the same until all windows have been visited. Gradients of some windows alone
        # need another noise in every visit, though with its opposite in the next window.
        takes_turns = self.steps_at_once == 1 and self._current_control.latent_lr > 0
        interval = len(self.windows) if takes_turns else 1
        control = self._current_control.array(self.channels, extent.pixels, factor, interval)
        if not np.array_equal(control, self._sent_control):
            self._send(self.control, control)
            self._sent_control = control

    def _send(self, tensor: Tensor, value: Array) -> None:
        """Write a Tensor; without waiting for the device, if the program reads it."""
        if tensor.node.arg not in self.program.inputs:
            tensor.write(value)
            return
        if tensor not in self._feeders:
            self._feeders[tensor] = Feeder(self.program, tensor)
        self._feeders[tensor].send(value)

    def _store_latents(self, extent: Extent, latents: Array) -> None:
        """Copy a window's latents, as a visit left them on the device, to the picture's grids."""
        self._replaced = [values.copy() for values in extent.cut(self._grids)]
        _assign(extent.cut(self._grids), extent.parts(latents))

    # --- the step ---

    @property
    def done(self) -> int:
        return self._steps

    def run(self, count: int, enough: Callable[[], bool] = lambda: False) -> bool:
        """Visit every window, for `count` steps of the program each. False if it was `enough`
        between two windows; the next call goes on with the rest."""
        generator = np.random.Generator(np.random.PCG64([self.seed, self._steps]))
        order = generator.permutation(len(self.windows)).tolist()
        window: int | None = self._begin_next(order, count)
        while window is not None:
            following = None
            # The next visit is prepared while the device is busy with this one.
            if self._visited + 1 < len(order) and not enough():
                following = order[self._visited + 1]
                self._begin(following, count)
            latents, sums = self._finish()
            self._store_latents(self.windows[window], latents)
            self._sums, self._visited = self._sums + sums, self._visited + 1
            window = following
        if self._visited < len(order):
            return False
        self._corrections = [tensor.numpy() for tensor in self.adam_latents.corrections]
        self._steps, self._visited, self._replaced = self._steps + count, 0, []
        self._last_sums, self._sums = self._sums, np.zeros(2)
        return True

    def _begin_next(self, order: Sequence[int], count: int) -> int:
        """Begin the visit that a step goes on with, and return its window.

        Each visit begins while the one before is on the device, and so sees the latents that the
        window before had until then. A step that was stopped goes on in the same way.
        """
        window = order[self._visited]
        if not self._replaced:
            self._begin(window, count)
            return window
        before = self.windows[order[self._visited - 1]].cut(self._grids)
        now = [values.copy() for values in before]
        _assign(before, self._replaced)
        self._begin(window, count)
        _assign(before, now)
        return window

    def _begin(self, window: int, count: int, moves: bool = True) -> None:
        """Enqueue the visit of a window behind the one before; unless it `moves`, the window's
        moments stay as they are."""
        self._enter(self.windows[window], 1 + window if moves else 0)
        for tensor, value in zip(self.adam_latents.corrections, self._corrections, strict=True):
            self._send(tensor, value)
        self.program.run(count)
        self._results.send()

    def _finish(self) -> tuple[Array, Array]:
        """Wait for the oldest visit: its latents [rows, pitch], and [error, bits] of its last
        step."""
        self._results.wait(1)
        results = self._arrays
        return results["latents"], np.array([results["error"], results["bits"]], np.float64)

    @cached_property
    def _results(self) -> Receiver:
        """Receives what a visit leaves, before the values of the next one are written."""

        def keep(_: object, results: dict[str, Array]) -> None:
            self._arrays = results

        return Receiver(self.program, ["error", "bits"], keep, {"latents": self.latents})

    def figures(self) -> tuple[float, float]:
        error, bits = self._last_sums.tolist()
        return self.mean(error), bits / self.pixels

    def pace(self, most: float) -> float:
        def visit() -> None:
            self._begin(0, 1, moves=False)
            self._finish()

        before = self._device_state()
        visit()  # which may compile for seconds
        count, began, seconds = 0, time.perf_counter(), 0.0
        while seconds < most:
            visit()
            count, seconds = count + 1, time.perf_counter() - began
        self._restore_device_state(before)
        return seconds / count * len(self.windows)

    def steer(self, control: Control) -> None:
        self._current_control = control

    # --- from and to the host ---

    def ask(self, flat: Array, part: Part) -> None:
        """As in LatentStep, by the sample of windows."""
        self._candidates.send(flat)
        for extent in self._judged_windows:
            self._turn_masks(extent)
            if part == "error":
                self._turn_target(extent)
            self._send_latents(extent)
            self._judging[part].run()
            self._figures[part].send(part)
        self._pending.append(part)

    def answer(self) -> float:
        part, total = self._pending.pop(0), 0.0
        for _ in self._judged_windows:
            self._figures[part].wait(1)
            total += self._latest
        pixels, samples = self._judged_size
        return total / (samples if part == "error" else pixels)

    @cached_property
    def _judged_size(self) -> tuple[int, float]:
        """Pixels of the sample of windows, and how many of their samples count."""
        pixels, samples = 0, 0.0
        for extent in self._judged_windows:
            rows, columns = (slice(*extent.span(axis, 0)) for axis in (0, 1))
            pixels += extent.pixels
            samples += (
                extent.pixels * self.channels * visible_fraction(self._picture[rows, columns])
            )
        return pixels, max(samples, 1.0)

    def _restore_after_overflow(self, state: dict[str, Array]) -> None:
        super()._restore_after_overflow(state)
        for pages in self._moments:
            pages.write(0, np.zeros(self.latents.shape, np.float32))

    def _step_of(self, extent: Extent) -> None:
        self._enter(extent)
        super()._step_of(extent)

    def costs(self, extent: Extent, flat: Array) -> tuple[Array, list[Array]]:
        self._enter(extent)
        return super().costs(extent, flat)

    def put(self, extent: Extent, level: int, values: Array) -> None:
        extent.cut(self._grids)[level][:] = values

    def picture(self) -> Array:
        pixels = np.empty((self.height, self.width, self.channels), np.uint8)
        for extent in self.windows:
            self._enter(extent)
            rows, columns = (slice(*extent.span(axis, 0)) for axis in (0, 1))
            pixels[rows, columns] = super().picture()
        return pixels

    def grids(self) -> list[Array]:
        return self._grids

    def write_grids(self, grids: Sequence[Array]) -> None:
        self._grids = [np.array(grid, np.float32) for grid in grids]

    def _moving(self) -> dict[str, Tensor]:
        tensors = super()._moving().items()
        return {name: t for name, t in tensors if not name.startswith(("latents", "grids"))}

    def state(self) -> dict[str, Array]:
        state = self._device_state()
        for name, grids in self._latent_state().items():
            state |= {f"{name}_{n}": grid for n, grid in enumerate(grids)}
        state |= {f"replaced_{n}": values.copy() for n, values in enumerate(self._replaced)}
        counts = {"steps": np.array(self._steps), "turn": np.array(self._visited)}
        return state | counts | {"found": self._sums.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        self._restore_device_state(arrays)
        for name, held in (("latents", self._grids), ("corrections", self._corrections)):
            held[:] = [arrays[f"{name}_{n}"].copy() for n in range(len(held))]
        for name, pages in zip(MOMENTS, self._moments, strict=True):
            grids = [arrays[f"{name}_{n}"] for n in range(len(self._grids))]
            for number, extent in enumerate(self.windows, 1):
                pages.write(number, extent.assemble(grids))
        self._steps, self._visited = int(arrays["steps"]), int(arrays["turn"])
        replaced = (f"replaced_{n}" for n in range(len(self._grids)))
        self._replaced = [arrays[name].copy() for name in replaced if self._visited]
        self._sums = arrays["found"].copy()

    def handed_to(self, step: LatentStep) -> dict[str, Array]:
        """The state from which the whole picture's step goes on.

        Its gradients of networks are sums over all windows, so that Adam's mean of gradients grows
        by their number and the mean of squares by its square.
        """
        state, count = self._device_state(), len(self.windows)
        state["networks_0"] *= count
        state["networks_1"] *= count**2
        state["latents"] = step.extent.assemble(self._grids)
        moments = (step.extent.assemble(self._on_grids(pages)) for pages in self._moments)
        for n, array in enumerate([*moments, *self._corrections]):
            state[f"grids_{n}"] = array
        return state | {"count": np.array(self._steps, np.uint32)}

    def _latent_state(self) -> dict[str, list[Array]]:
        """Latents, their moments, and the bias corrections of these; the first two by grids."""
        latents = [grid.copy() for grid in self._grids]
        moments = dict(zip(MOMENTS, map(self._on_grids, self._moments), strict=True))
        return {"latents": latents, **moments, "corrections": list(self._corrections)}

    def _on_grids(self, pages: Pages) -> list[Array]:
        """The windows' pages, put together to arrays like the picture's grids."""
        grids = [np.zeros_like(grid) for grid in self._grids]
        for number, extent in enumerate(self.windows, 1):
            _assign(extent.cut(grids), extent.parts(pages.read(number)))
        return grids


def _assign(grids: Sequence[Array], values: Sequence[Array]) -> None:
    """Overwrite arrays, which may be views."""
    for grid, value in zip(grids, values, strict=True):
        grid[:] = value


def _mask_arrays(extent: Extent) -> list[Array]:
    """Where a window ends in the plane: int32 [2, grids, 2], first and end of every grid; and
    float32 masks one after the other: of values that exist, halo included, of the window's own
    ones, and the same two of pixels."""
    masks = [
        extent.value_mask(HALO),
        extent.value_mask(),
        extent.pixel_mask(HALO),
        extent.pixel_mask(),
    ]
    return [np.stack(extent.grid_bounds), np.concatenate([mask.reshape(-1) for mask in masks])]
