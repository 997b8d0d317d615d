"""What is trained: networks of which widths, and the picture as a whole, in a room, or in windows.

A room is for rows and columns that pictures of many sizes share, so that what was compiled for one
serves the others (`rooms.Place.room`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import HYPERLATENTS, MOST_ABOVE, ModelShape, usual_levels
from imgmlp.codec.latent.starts import USUAL_LMBDA, newest_start
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.rooms import Place, Room, compiles_long
from imgmlp.codec.latent.training.windows import WindowedStep, WindowStep
from imgmlp.codec.training.memory_limits import explain, smaller_picture, within_memory
from imgmlp.engine import AnyDevice
from imgmlp.errors import OutOfMemoryError

Array = np.ndarray[Any, Any]

SEED = 0
WHOLE, IN_A_ROOM, IN_WINDOWS = "whole", "in a room", "in windows"
IN_A_SHARED_ROOM = "in a shared room"  # from which a run goes over to one of the two first
ICON, SMALL_PICTURE = 64, 100_000  # pixels along the longer side, and in all, at most
# Widths of the hidden layers of synthesis and of the entropy network: of icons; of small pictures
# and of the short runs of others, which have nearly twice as many steps so; and of long ones.
TINY, SMALL, LARGE = (16, 12), (16, 16), (32, 24)
LEAST_FOR_LOW = 4096  # pixels, which begin from a start for where bits are cheap
LONG = 40_000  # steps from which hyperlatents pay, which make each of them take a quarter longer
SMALL_PARTS = 8_000  # operations of a pixel in a step, of what is no layer, by the time they take


class Forms:
    """The steps that a picture may be trained by."""

    def __init__(
        self,
        pixels: Array,
        place: Place,
        most_weights: float,
        hyper: bool = False,
        lmbda: float = USUAL_LMBDA,
    ) -> None:
        """`pixels` are uint8 [h, w, channels]; `hyper` says that a run is long enough for
        hyperlatents, and `lmbda` what a bit a pixel costs first."""
        self.pixels, self.place, self.device = pixels, place, place.device
        self.name = ""  # of the form that was taken; what a checkpoint has for it
        quick = is_quick(place.device, place.short)
        self._widths, self._lmbda = widths(pixels.shape, most_weights, quick), lmbda
        self.hyper = hyper and self._widths == widths(pixels.shape, math.inf)

    def first(self, name: str | None = None) -> LatentStep:
        """What a run begins with: of that name, if one is given, or the first for which there is
        memory. Raises OutOfMemoryError, which says what would fit."""
        forms = self._all()
        if name is None and self.opens and self.place.begins_in_windows:
            name = IN_WINDOWS
        wanted = forms if name is None else {name: forms[name]}
        return within_memory(
            partial(self._taken, wanted),
            partial(too_large, self.place, hyper=self.hyper),
        )

    def whole(self) -> LatentStep | None:
        """That of the whole picture; None if there is no memory for it."""
        before = self.name
        try:
            return self._taken(self._whole_forms())
        except OutOfMemoryError:
            if self.device.lost:
                raise
            self.name = before
            return None

    @property
    def opens(self) -> bool:
        """Whether a run should begin in another form than it may go over to."""
        return self.place.begins_elsewhere

    @property
    def opened(self) -> bool:
        """Whether that is the one which was taken."""
        return self.opens and self.name in (IN_WINDOWS, IN_A_SHARED_ROOM)

    def _all(self) -> dict[str, Callable[[], LatentStep]]:
        """By name; each takes more memory than the next one."""
        found = dict[str, Callable[[], LatentStep]]()
        if self.opens and not self.place.begins_in_windows:
            found = {IN_A_SHARED_ROOM: partial(self._whole, self.place.shortly.room)}
        if not self.place.in_windows:
            found |= self._whole_forms()
        if self.place.fits_windows:
            found[IN_WINDOWS] = self._in_windows
        return found

    def _whole_forms(self) -> dict[str, Callable[[], LatentStep]]:
        found: dict[str, Callable[[], LatentStep]] = {WHOLE: partial(self._whole, None)}
        if shared := self.place.room:
            found = {IN_A_ROOM: partial(self._whole, shared)} | found
        return found

    def _taken(self, forms: dict[str, Callable[[], LatentStep]]) -> LatentStep:
        *larger, last = forms
        for self.name in larger:
            try:
                return forms[self.name]()
            except OutOfMemoryError:
                if self.device.lost:
                    raise
        self.name = last
        return forms[last]()

    @property
    def _start(self) -> int:
        few = self.pixels.shape[0] * self.pixels.shape[1] < LEAST_FOR_LOW
        return newest_start(self._widths, USUAL_LMBDA if few else self._lmbda)

    def _whole(self, room: Room) -> LatentStep:
        hidden, entropy = self._widths
        return LatentStep(
            self.pixels, SEED, self.device, hidden=hidden, entropy=entropy,
            start=self._start, room=room, hyper=self.hyper, extra=self.place.extra,
        )  # fmt: skip

    def _in_windows(self) -> LatentStep:
        kind = WindowedStep if self.place.windows > 1 else WindowStep
        return kind(
            self.pixels, SEED, self.device, *self._widths, self._start,
            hyper=self.hyper, extra=self.place.extra,
        )  # fmt: skip


def has_hyperlatents(shape: tuple[int, ...], steps: float) -> bool:
    """Whether these are worth their time and their weights' bits in so many steps of a picture."""
    height, width, _ = shape
    large = SMALL_PICTURE < height * width <= MOST_ABOVE
    return large and steps >= LONG and usual_levels(height, width) > HYPERLATENTS[-1]


def is_quick(device: AnyDevice, short: bool) -> bool:
    """Whether a run has small networks for the sake of more steps: a GPU has enough of them, and
    without compiling, runs of any length are called short."""
    return short and compiles_long(device)


def widths(shape: tuple[int, ...], most: float, quick: bool = False) -> tuple[int, int]:
    """Of the hidden layers of synthesis and of the entropy network, for pixels of a shape.

    Small pictures have no room for large networks, few bytes none for more than `most` weights, and
    a `quick` run no time.
    """
    height, width, channels = shape
    if max(height, width) <= ICON:
        return TINY
    small = quick or height * width <= SMALL_PICTURE or _weights(LARGE, channels) > most
    return SMALL if small else LARGE


def operations_of(shape: tuple[int, ...], quick: bool = False, extra: int = 0) -> int:
    """Of a pixel in a step, for pixels of a shape, with so many extra grids."""
    hidden, channels = widths(shape, math.inf, quick), shape[2]
    more = extra * _weights(hidden, channels, "entropy")
    return 6 * (_weights(hidden, channels) + more) + SMALL_PARTS


def _weights(hidden: tuple[int, int], channels: int, network: str = "") -> int:
    """Of all networks, or of one."""
    tensors = ModelShape(64, 64, channels, 7, *hidden).tensors.items()
    return sum(int(np.prod(size)) for name, size in tensors if name.startswith(network))


def too_large(place: Place, error: OutOfMemoryError, hyper: bool = False) -> OutOfMemoryError:
    """What to say where the step does not fit in a device's memory, and which picture would."""
    height, width, channels = place.shape

    def build(width: int, height: int, device: AnyDevice) -> LatentStep:
        pixels = np.zeros((height, width, channels), np.uint8)
        hidden, entropy = widths(pixels.shape, math.inf)
        has = hyper and has_hyperlatents(pixels.shape, math.inf)  # which small ones never have
        own = hidden, entropy, 0, None, has, place.extra
        if Place(pixels.shape, device).fits_windows:  # which were tried last
            return WindowedStep(pixels, SEED, device, *own)
        return LatentStep(pixels, SEED, device, *own)

    what = f"training a latent model of {width}×{height} pixels"
    ways = (smaller_picture(width, height, build),)
    return explain(error, what, place.device, partial(build, width, height), ways)
