"""A large picture, trained window by window: intermediates on the device are those of one window.

A step is a step of every window once, in an order of its own. Latents are the host's; a window has
its own, which it moves, and as many of every grid around them as contexts, upsampling and
convolutions see, which stand still meanwhile. So what windows together are judged by is what the
whole picture would be. Networks and their moments stay on the device and move with every window.
There are pages for moments of latents, one a window, for samples, if the picture is not too large,
and for what tells where it ends, in which few windows differ.

Which pictures are trained so, and how long, is rooms.py's matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from imgmlp.codec.latent.plane import Extent, Plane, Span
from imgmlp.codec.latent.step.latent_step import Control, LatentStep, Part, joined
from imgmlp.codec.latent.training.rooms import Place, is_gpu
from imgmlp.engine import AnyDevice, Feeder, Pages, Receiver, Tensor
from imgmlp.image import counted

Array = np.ndarray[Any, Any]

HALO = 4  # values of every grid that what a window's own pixels need lies in
JUDGED = 2**19  # pixels by which networks are judged, about: some windows stand for all
TOGETHER = 8  # steps of a window there before it is another one's turn
# Pixels of a picture, at most, whose samples stay there; on a GPU if they take no more than a part
# of its memory.
KEPT, KEPT_ON_GPUS, PART = 1 << 20, 1 << 26, 1 / 16
MOMENTS = "first", "second"  # names of latents', in a state


class WindowStep(LatentStep):
    """The LatentStep of a picture that is one window, of any size up to it; `window` is its rows
    and columns, those for the picture on the device if nobody says so."""

    def __init__(
        self, pixels: Array, seed: int, device: AnyDevice, hidden: int, entropy: int, start: int,
        window: tuple[int, int] | None = None, hyper: bool = False, extra: int = 0,
    ) -> None:  # fmt: skip
        self._window = window or Place(pixels.shape, device).window
        super().__init__(pixels, seed, device, hidden=hidden, entropy=entropy, start=start,
                         room=self._window, hyper=hyper, extra=extra)  # fmt: skip

    def _first_extent(self) -> Extent:
        plane = Plane.of(*self._window, self.levels, HALO, self.shape.others)
        return Extent(plane, (self.height, self.width), (0, 0), self._window, HALO)

    def _frame(self) -> list[Tensor]:
        """Two Tensors that hold it all, as each that is sent takes the host a while."""
        plane = self.extent.plane
        bounds, shares = (Tensor(values, self.device) for values in _framed(self.extent))
        self.firsts, self.ends = bounds[0], bounds[1]
        count, shape = plane.rows * plane.pitch, (plane.rows, plane.pitch)
        self.taken, self.own = (shares[n * count : (n + 1) * count].reshape(*shape) for n in (0, 1))
        of_pixels = shares[2 * count :].reshape(2, plane.pixels)
        self.inside, self.own_pixels = of_pixels[0], of_pixels[1]
        return [bounds, shares]


class WindowedStep(WindowStep):
    """That of a picture of any number of windows, by the same program."""

    def __init__(
        self, pixels: Array, seed: int, device: AnyDevice, hidden: int, entropy: int, start: int,
        window: tuple[int, int] | None = None, hyper: bool = False, extra: int = 0,
    ) -> None:  # fmt: skip
        self._picture = pixels
        super().__init__(pixels, seed, device, hidden, entropy, start, window, hyper, extra)
        self.together = TOGETHER if is_gpu(device) else 1
        self.windows = self._all()
        self._judges = self._some()
        self._grids = [np.zeros(size, np.float32) for size in self.shape.grids]
        self._moments = self._own_moments()
        self._corrections = [np.zeros((), np.float32)] * 2
        self._steps, self._turn = 0, 0  # steps of all windows, and windows of the one not done yet
        self._replaced: list[Array] = []  # latents of the last of these, as they were before
        self._found, self._last = np.zeros(2), np.zeros(2)  # error and bits of it, of the last step
        # Pages of the framing, in which few windows differ, and of the target, by windows' corners.
        self._framings, self._frames = [Pages(t) for t in self.framing], {self.extent.frame: 0}
        self._targets, self._corners = Pages(self.target), dict[Span, int]()
        self._feeders: dict[Tensor, Feeder] = {}
        self._told = np.zeros(0, np.float32)  # the control that the device has

    # --- the windows ---

    def _all(self) -> list[Extent]:
        rows, columns = self._window
        return [
            replace(self.extent, corner=(top, left))
            for top in range(0, self.height, rows)
            for left in range(0, self.width, columns)
        ]

    def _some(self) -> list[Extent]:
        """Windows that stand for all of them, drawn among them."""
        order = np.random.Generator(np.random.PCG64(self.seed)).permutation(len(self.windows))
        before = np.cumsum([0, *(self.windows[n].pixels for n in order)])[:-1]
        return [self.windows[n] for n in sorted(order[before < JUDGED].tolist())]

    def _own_moments(self) -> list[Pages]:
        """Of latents, one after the other: page 0 for what shall leave no trace, then windows'."""
        first, second, *_ = self.adam_latents.state()
        found, nothing = [Pages(first), Pages(second)], np.zeros(first.shape, np.float32)
        for pages in found:
            for _ in self.windows:
                pages.add(nothing)
        return found

    def _enter(self, extent: Extent, moments: int = 0) -> None:
        """Have a window's latents and pixels on the device, and what of them counts."""
        for pages in self._moments:
            pages.turn(moments)
        self._turn_frame(extent)
        self._turn_target(extent)
        self._move_to(extent)

    def _turn_frame(self, extent: Extent) -> None:
        if extent.frame not in self._frames:
            values = *_framed(extent), *joined(self._takes(extent))
            added = [p.add(v) for p, v in zip(self._framings, values, strict=True)]
            self._frames[extent.frame] = added[0]
        for pages in self._framings:
            pages.turn(self._frames[extent.frame])

    def _turn_target(self, extent: Extent) -> None:
        """To the page of the window's samples, some 14 bytes for three of them; large pictures have
        one for all windows."""
        if not self._keeps_samples:
            self._give(self.target, extent.target(self._picture))
            return
        if extent.corner not in self._corners:
            self._corners[extent.corner] = self._targets.add(extent.target(self._picture))
        self._targets.turn(self._corners[extent.corner])

    @property
    def _keeps_samples(self) -> bool:
        """Whether there is room for all windows' samples on the device."""
        nbytes = 4 * self.channels * self.plane.pixels * len(self.windows)
        has_room = is_gpu(self.device) and nbytes <= PART * self.device.info.memory
        return self.pixels <= (KEPT_ON_GPUS if has_room else KEPT)

    def _move_to(self, extent: Extent) -> None:
        """Write what windows before this one may have changed, once these have left."""
        self.extent = extent
        self._give(self.latents, extent.gathered(self._grids, HALO))
        weights = self.weights * extent.pixels / self.pixels  # whose bits are the whole picture's
        apart = len(self.windows) if self.together == 1 else 1
        control = self._steered.array(self.channels, extent.pixels, weights, apart)
        if not np.array_equal(control, self._told):
            self._give(self.control, control)
            self._told = control

    def _give(self, tensor: Tensor, value: Array) -> None:
        """Write a Tensor; without waiting, if the step reads it."""
        if tensor.node.arg not in self.program.inputs:
            tensor.write(value)
            return
        if tensor not in self._feeders:
            self._feeders[tensor] = Feeder(self.program, tensor)
        self._feeders[tensor].send(value)

    def _leave(self, extent: Extent, latents: Array) -> None:
        """Have on the host what a window's latents are by now."""
        self._replaced = [values.copy() for values in extent.cut(self._grids)]
        _put(extent.cut(self._grids), extent.parts(latents))

    # --- the step ---

    @property
    def done(self) -> int:
        return self._steps

    def run(self, count: int, enough: Callable[[], bool] = lambda: False) -> bool:
        generator = np.random.Generator(np.random.PCG64([self.seed, self._steps]))
        order = generator.permutation(len(self.windows)).tolist()
        window: int | None = self._first(order, count)
        while window is not None:
            after = None
            if self._turn + 1 < len(order) and not enough():  # while the device is busy
                after = order[self._turn + 1]
                self._begin(after, count)
            latents, figures = self._end()
            self._leave(self.windows[window], latents)
            self._found, self._turn = self._found + figures, self._turn + 1
            window = after
        if self._turn < len(order):
            return False
        self._corrections = [tensor.numpy() for tensor in self.adam_latents.corrections]
        self._steps, self._turn, self._replaced = self._steps + count, 0, []
        self._last, self._found = self._found, np.zeros(2)
        return True

    def _first(self, order: Sequence[int], count: int) -> int:
        """The window that a step goes on with, which begins as it would have after the others.

        Each begins while the one before is on the device, and so sees of that one's latents what
        they were before.
        """
        window = order[self._turn]
        if not self._replaced:
            self._begin(window, count)
            return window
        own = self.windows[order[self._turn - 1]].cut(self._grids)
        now = [values.copy() for values in own]
        _put(own, self._replaced)
        self._begin(window, count)
        _put(own, now)
        return window

    def _begin(self, window: int, count: int, moves: bool = True) -> None:
        """Have the device take steps of a window once it is done with the one before; its moments
        stay as they are unless it `moves`."""
        self._enter(self.windows[window], 1 + window if moves else 0)
        for tensor, value in zip(self.adam_latents.corrections, self._corrections, strict=True):
            self._give(tensor, value)
        self.program.run(count)
        self._left.send()

    def _end(self) -> tuple[Array, Array]:
        """Once the first one is done: latents, and the error and the bits of its last step."""
        self._left.wait(1)
        found = self._arrays
        return found["latents"], np.array([found["error"], found["bits"]], np.float64)

    @cached_property
    def _left(self) -> Receiver:
        """What steps of a window leave, read before the next one's values are written."""

        def keep(_: object, found: dict[str, Array]) -> None:
            self._arrays = found

        return Receiver(self.program, ["error", "bits"], keep, {"latents": self.latents})

    def figures(self) -> tuple[float, float]:
        error, bits = self._last.tolist()
        return self.mean(error), bits / self.pixels

    def pace(self, most: float) -> float:
        def visit() -> None:
            self._begin(0, 1, moves=False)
            self._end()

        before = self._staying()
        visit()  # which may compile for seconds
        count, began, seconds = 0, time.perf_counter(), 0.0
        while seconds < most:
            visit()
            count, seconds = count + 1, time.perf_counter() - began
        self._back_to(before)
        return seconds / count * len(self.windows)

    def steer(self, control: Control) -> None:
        self._steered = control

    # --- from and to the host ---

    def ask(self, flat: Array, part: Part) -> None:
        """By some windows, which stand for all."""
        self._candidates.send(flat)
        for extent in self._judges:
            self._turn_frame(extent)
            if part == "error":
                self._turn_target(extent)
            self._move_to(extent)
            self._judging[part].run()
            self._figures[part].send(part)
        self._asked.append(part)

    def answer(self) -> float:
        part, found = self._asked.pop(0), 0.0
        for _ in self._judges:
            self._figures[part].wait(1)
            found += self._given
        pixels, samples = self._judged
        return found / (samples if part == "error" else pixels)

    @cached_property
    def _judged(self) -> tuple[int, float]:
        """Pixels that networks are judged by, and samples of these that count."""
        pixels, samples = 0, 0.0
        for extent in self._judges:
            rows, columns = (slice(*extent.span(axis, 0)) for axis in (0, 1))
            pixels += extent.pixels
            samples += extent.pixels * self.channels * counted(self._picture[rows, columns])
        return pixels, max(samples, 1.0)

    def _step_of(self, extent: Extent) -> None:
        self._enter(extent)
        super()._step_of(extent)

    def costs(self, extent: Extent, flat: Array) -> tuple[Array, list[Array]]:
        self._enter(extent)
        return super().costs(extent, flat)

    def put(self, extent: Extent, level: int, values: Array) -> None:
        extent.cut(self._grids)[level][:] = values

    def picture(self) -> Array:
        found = np.empty((self.height, self.width, self.channels), np.uint8)
        for extent in self.windows:
            self._enter(extent)
            rows, columns = (slice(*extent.span(axis, 0)) for axis in (0, 1))
            found[rows, columns] = super().picture()
        return found

    def grids(self) -> list[Array]:
        return self._grids

    def write_grids(self, grids: Sequence[Array]) -> None:
        self._grids = [np.array(grid, np.float32) for grid in grids]

    def _moving(self) -> dict[str, Tensor]:
        every = super()._moving().items()
        return {name: t for name, t in every if not name.startswith(("latents", "grids"))}

    def state(self) -> dict[str, Array]:
        found = self._staying()
        for name, grids in self._held().items():
            found |= {f"{name}_{n}": grid for n, grid in enumerate(grids)}
        found |= {f"replaced_{n}": values.copy() for n, values in enumerate(self._replaced)}
        counts = {"steps": np.array(self._steps), "turn": np.array(self._turn)}
        return found | counts | {"found": self._found.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        self._back_to(arrays)
        for name, held in (("latents", self._grids), ("corrections", self._corrections)):
            held[:] = [arrays[f"{name}_{n}"].copy() for n in range(len(held))]
        for name, pages in zip(MOMENTS, self._moments, strict=True):
            grids = [arrays[f"{name}_{n}"] for n in range(len(self._grids))]
            for number, extent in enumerate(self.windows, 1):
                pages.write(number, extent.gathered(grids))
        self._steps, self._turn = int(arrays["steps"]), int(arrays["turn"])
        replaced = (f"replaced_{n}" for n in range(len(self._grids)))
        self._replaced = [arrays[name].copy() for name in replaced if self._turn]
        self._found = arrays["found"].copy()

    def handed_to(self, step: LatentStep) -> dict[str, Array]:
        """What the whole picture's goes on from, where gradients of networks are sums over all
        windows."""
        found, more = self._staying(), len(self.windows)
        found["networks_0"] *= more  # the mean of gradients, and that of their squares
        found["networks_1"] *= more**2
        found["latents"] = step.extent.gathered(self._grids)
        moments = (step.extent.gathered(self._on_grids(pages)) for pages in self._moments)
        for n, array in enumerate([*moments, *self._corrections]):
            found[f"grids_{n}"] = array
        return found | {"count": np.array(self._steps, np.uint32)}

    def _held(self) -> dict[str, list[Array]]:
        """Copies of latents and what moves with them, as the picture's grids have it."""
        latents = [grid.copy() for grid in self._grids]
        moments = dict(zip(MOMENTS, map(self._on_grids, self._moments), strict=True))
        return {"latents": latents, **moments, "corrections": list(self._corrections)}

    def _on_grids(self, pages: Pages) -> list[Array]:
        """Windows' pages, each where it is in the picture."""
        found = [np.zeros_like(grid) for grid in self._grids]
        for number, extent in enumerate(self.windows, 1):
            _put(extent.cut(found), extent.parts(pages.read(number)))
        return found


def _put(grids: Sequence[Array], values: Sequence[Array]) -> None:
    for grid, value in zip(grids, values, strict=True):
        grid[:] = value


def _framed(extent: Extent) -> list[Array]:
    """What the device has of where a window ends: int32 [2, grids, 2], and of values and pixels
    which there are, halo included, and which are its own, float32."""
    values = [extent.taken(HALO), extent.taken(), extent.inside(HALO), extent.inside()]
    return [np.stack(extent.ends), np.concatenate([each.reshape(-1) for each in values])]
