"""Which program trains a picture: one for its size, for a room that others share, or for windows.

On processors, where compiling takes long, short runs do with programs that serve many sizes:
windows, of other kinds for thin pictures, or rooms of few kinds for small ones. On GPUs, where
compiling takes as long as thousands of steps, short runs are in rooms of few kinds. Long runs take
their first steps so as well, while another process compiles for a room of the picture's own, where
a step takes less time.

    python -m imgmlp.codec.latent.training.rooms DEVICE NUMBER...

is that process; the numbers are height, width and channels of the picture, seed, widths of both
networks, their start, whether there are hyperlatents, how many more grids there are, and rows and
columns of the room, or 0 for a program of the picture's size.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from imgmlp import child
from imgmlp.codec.latent.plane import SMALL_SIDE, common_side
from imgmlp.codec.latent.step.latent_step import LatentStep, levels_of
from imgmlp.engine import AnyDevice, open_device

Room = tuple[int, int] | None  # rows and columns; None for those of the picture alone

# Rows and columns of a window, multiples of 2^(levels - 1). A processor's caches hold what a small
# one needs, which makes up for its halo; a GPU has too little to do with it.
SIZE, SIZE_ON_GPUS = (256, 256), (512, 512)
# Instead of six of them, as many photographs would need, one, whose latents do not come and go.
ONE = (512, 768)
FILLED = 4  # times as many pixels as a picture has, at most, in windows for it
# Sides of those for processors that pictures have which would fill less of the usual ones: the
# short one, in which there is but one window, and the long one.
THIN = (64, 256), (32, 512), (128, 256)
# Rows and columns of those on GPUs, or columns and rows, for all pictures that fill a part of one.
COARSE = (
    (128, 256), (256, 256), (256, 384), (512, 512), (512, 768), (1024, 1024), (1024, 1536),
    (1536, 2048), (2048, 3072), (3072, 4096),
)  # fmt: skip
# Most pixels that are trained as a whole, of which a step and what judges it take some 310 bytes
# each: on processors, of a picture, and on GPUs, to which windows' data have a longer way, of its
# room, which then has 4 GB; an extra grid takes BY_EXTRA times as much again.
WHOLE, WHOLE_ON_GPUS, BY_EXTRA = 3 * 2**20, 12_900_000, 0.3
# Operations before a run goes over to a room of its own, by which the number of steps hangs on the
# picture alone: 10 seconds of two cores, which compile for a room in some 20 beside that, and 2 of
# an H200, which takes some 5. What is computed more is for nothing where it was compiled before.
MEANWHILE, MEANWHILE_ON_GPUS = 1e12, 5e13
# Times as many that a run must have, or programs that serve many sizes do for all of it.
WORTH_OPENING = 4
# Operations, about what compiling takes, that a room of its own must spare a run; on GPUs a second
# of an H200, as their speeds differ more.
SPARED, SPARED_ON_GPUS = 2e12, 3e13
AROUND_ONE = 0.06  # of a step's time in the only window of a picture, that its halo takes


@dataclass(frozen=True)
class Place:
    """Where a picture is trained: what it is for a device, in a run that is short or not."""

    shape: tuple[int, ...]  # of its pixels
    device: AnyDevice
    # Whether compiling takes much of a run, which on processors, that compile and compute for long,
    # had better take programs that know no size.
    short: bool = False
    extra: int = 0  # grids of its own size, beside the finest

    @property
    def shortly(self) -> Place:
        """The same in a short run."""
        return replace(self, short=True)

    # --- windows ---

    @property
    def fits_windows(self) -> bool:
        """Whether it can be trained in windows, which small pictures hardly fill."""
        return self.covered <= FILLED * self.shape[0] * self.shape[1] or self.is_thin

    @property
    def is_thin(self) -> bool:
        """Whether it would hardly fill the usual windows, but has others."""
        return self.window in (*THIN, *(sides[::-1] for sides in THIN))

    @property
    def window(self) -> tuple[int, int]:
        """Rows and columns of its windows."""
        usual = SIZE_ON_GPUS if is_gpu(self.device) else SIZE
        height, width = self.shape[:2]
        if is_gpu(self.device) or max(height, width) <= SMALL_SIDE:
            return usual
        along = partial(_along, self.shape)
        if self._covered(usual) <= FILLED * height * width:
            one = along(ONE)
            alone = self._covered(usual) == self._covered(one) == math.prod(one)
            return one if alone else usual
        within = [sides for sides in map(along, THIN) if min(sides) >= min(height, width)]
        return min(within, key=self._covered, default=usual)

    @property
    def covered(self) -> int:
        """Pixels that its windows compute, of the picture or beyond it."""
        return self._covered(self.window)

    def _covered(self, window: tuple[int, int]) -> int:
        sides = zip(self.shape[:2], window, strict=True)
        return math.prod(-(-side // of) * of for side, of in sides)

    @property
    def windows(self) -> int:
        """How many that are."""
        return self.covered // math.prod(self.window)

    @property
    def in_windows(self) -> bool:
        """Whether it should be in windows: for all the memory that it needs, or as they serve
        pictures of any size."""
        pixels, most = float(self.shape[0] * self.shape[1]), WHOLE
        if is_gpu(self.device):
            pixels, most = self._computed * (1 + BY_EXTRA * self.extra), WHOLE_ON_GPUS
        elif self.short and compiles_long(self.device) and max(self.shape[:2]) > SMALL_SIDE:
            most = 0
        elif self.is_thin:  # whose rooms have up to 32 times as many
            pixels = self._computed
        return pixels > most and self.fits_windows

    @property
    def begins_in_windows(self) -> bool:
        """Whether a run should at least begin so."""
        return replace(self, short=True, extra=0).in_windows

    # --- rooms ---

    @property
    def room(self) -> Room:
        """Rows and columns that a step is made for, so that what was compiled for one picture
        serves others; None for just its own, which takes 3% less time on processors and none on
        GPUs."""
        found = common_side(self.shape[0]), common_side(self.shape[1])
        if not _compiles(self.device):
            return None
        if self.short and max(found) <= SMALL_SIDE:
            return max(found), max(found)
        if is_gpu(self.device):
            return (self._coarse if self.short else None) or found
        return None if self._fills(found) else found

    @property
    def _coarse(self) -> Room:
        """The smallest of few rooms that has room for it; None if it fills too little of that."""
        height, width = self.shape[:2]
        fitting = (
            sides for sides in map(partial(_along, self.shape), COARSE)
            if sides[0] >= height and sides[1] >= width
        )  # fmt: skip
        found = next(fitting, None)
        return found if found and math.prod(found) <= FILLED * height * width else None

    def _fills(self, room: tuple[int, int]) -> bool:
        """Whether it has a program for itself; small ones are trained faster than compiled."""
        return self.shape[:2] == room and max(room) > SMALL_SIDE

    @property
    def _computed(self) -> int:
        """Pixels of its room."""
        return math.prod(self.room or self.shape[:2])

    # --- from one to the other ---

    @property
    def begins_elsewhere(self) -> bool:
        """Whether a run begins in a program that serves more sizes than the one it may go over
        to."""
        if self.short or not _compiles(self.device) or self.in_windows:
            return False
        own, shared = self.room, self.shortly.room
        if is_gpu(self.device):
            # Both are there for a moment, as this one's and the other process's are before that.
            both = self.opening_pixels + self.own_pixels
            return own != shared and both * (1 + BY_EXTRA * self.extra) <= WHOLE_ON_GPUS
        return self.begins_in_windows or own != shared

    def opening_steps(self, operations: int) -> int:
        """That such a run takes there, of so many operations a pixel; 0 if it stays as it
        begins."""
        if not self.begins_elsewhere:
            return 0
        meanwhile = MEANWHILE_ON_GPUS if is_gpu(self.device) else MEANWHILE
        return math.ceil(meanwhile / (self.opening_pixels * operations))

    @property
    def opening_pixels(self) -> int:
        """That a step of a program for many sizes computes."""
        return self.covered if self.begins_in_windows else self.shortly._computed

    @property
    def own_pixels(self) -> int:
        """That a step computes which such a run goes over to, about."""
        if self.begins_in_windows and not self.is_thin:
            return self.shape[0] * self.shape[1]
        return replace(self, short=False)._computed

    def own_room_pays(self, steps: float, operations: int) -> bool:
        """Whether so many steps should have one that is compiled for, of what is one window or
        none, or is in a room of few kinds."""
        spared: float = self.opening_pixels - self.own_pixels
        if self.begins_in_windows:
            spared += AROUND_ONE * self.covered
        return steps * spared * operations >= (SPARED_ON_GPUS if is_gpu(self.device) else SPARED)

    def goes_over(self, steps: int, opening: int, operations: int) -> bool:
        """Whether a run of so many steps leaves the program for many sizes that it opens in, after
        so many of them, for its own: from many windows, with which networks move, for that
        alone."""
        one = self.begins_in_windows and self.windows == 1
        asks = (one and not self.is_thin) or is_gpu(self.device)
        pays = not asks or self.own_room_pays(steps, operations)
        return pays and 0 < WORTH_OPENING * opening <= steps

    def step_program(self, widths: tuple[int, int], hyper: bool = False) -> str:
        """What compile_times.py knows the step by that a run begins with."""
        height, width, channels = self.shape
        first = replace(self, short=self.short or self.begins_elsewhere)
        if first.in_windows:
            sizes = "windows of {}x{}".format(*self.window)
        elif first.room:
            sizes = "{}x{}".format(*first.room)
        else:
            sizes = f"{height}x{width} alone"
        levels = levels_of(height, width, first.room)
        extra = f", {self.extra} extra" * (self.extra > 0)
        kind = f"widths {widths}" + ", hyperlatents" * hyper + extra
        return f"latent step: {sizes} x{channels}, {levels} levels, {kind}"


def _along(shape: tuple[int, ...], sides: tuple[int, int]) -> tuple[int, int]:
    """The sides of a window that is no higher than wide, the way round that pixels have."""
    return sides if shape[0] <= shape[1] else sides[::-1]


def room_compiler(like: LatentStep, room: Room) -> child.Helper:
    """The process that compiles what trains the picture that a step is for in a room."""
    shape = like.shape
    sizes = like.height, like.width, like.channels, like.seed, shape.synthesis, shape.entropy
    has = int(shape.hyper), shape.extra
    told = map(str, (*sizes, like.start.number, *has, *(room or (0,))))
    spec, beside = like.device.info.spec, is_gpu(like.device)  # which leaves cores to others
    return child.Helper("imgmlp.codec.latent.training.rooms", spec, *told, may_have_helpers=beside)


def compile_room(spec: str, *told: str) -> None:
    """What that process does."""
    height, width, channels, seed, hidden, entropy, start, hyper, extra, *room = map(int, told)
    step = LatentStep(
        np.zeros((height, width, channels), np.uint8), seed, open_device(spec),
        hidden=hidden, entropy=entropy, start=start,
        room=(room[0], room[1]) if room[0] else None, hyper=bool(hyper), extra=extra,
    )  # fmt: skip
    step.judge(step.flat.numpy())
    step.run(1)


def is_gpu(device: AnyDevice) -> bool:
    """Whether it is one, or a dry run of one; NumPy is none, whatever lanes it stands in for."""
    return _compiles(device) and device.lanes == "group"


def _compiles(device: AnyDevice) -> bool:
    return device.info.kind != "numpy"


def compiles_long(device: AnyDevice) -> bool:
    """Whether a device takes seconds to compile what is trained for seconds, as processors do."""
    return _compiles(device) and not is_gpu(device)


if __name__ == "__main__":
    child.end_with_parent()
    compile_room(*sys.argv[1:])
