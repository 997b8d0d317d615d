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
from functools import partial

import numpy as np

from imgmlp import child
from imgmlp.codec.latent.plane import SMALL, common_side
from imgmlp.codec.latent.training.latent_step import LatentStep, levels_of
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
WORTH = 4  # times as many that a run must have, or programs that serve many sizes do for all of it
# Operations, about what compiling takes, that a room of its own must spare a run; on GPUs a second
# of an H200, as their speeds differ more.
SPARED, SPARED_ON_GPUS = 2e12, 3e13
AROUND_ONE = 0.06  # of a step's time in the only window of a picture, that its halo takes


def fits_windows(shape: tuple[int, ...], device: AnyDevice) -> bool:
    """Whether pixels of a shape can be trained in windows, which small pictures hardly fill."""
    return covered(shape, device) <= FILLED * shape[0] * shape[1] or is_thin(shape, device)


def is_thin(shape: tuple[int, ...], device: AnyDevice) -> bool:
    """Whether they would hardly fill the usual windows, but have others."""
    return window_size(shape, device) in (*THIN, *(sides[::-1] for sides in THIN))


def window_size(shape: tuple[int, ...], device: AnyDevice) -> tuple[int, int]:
    """Rows and columns of windows for pixels of a shape."""
    usual, (height, width) = usual_window(device), shape[:2]
    if is_gpu(device) or max(height, width) <= SMALL:
        return usual
    along = partial(_along, shape)
    if _covered(shape, usual) <= FILLED * height * width:
        one = along(ONE)
        return one if _covered(shape, usual) == _covered(shape, one) == math.prod(one) else usual
    within = [sides for sides in map(along, THIN) if min(sides) >= min(height, width)]
    return min(within, key=partial(_covered, shape), default=usual)


def _along(shape: tuple[int, ...], sides: tuple[int, int]) -> tuple[int, int]:
    """The sides of a window that is no higher than wide, the way round that pixels have."""
    return sides if shape[0] <= shape[1] else sides[::-1]


def usual_window(device: AnyDevice) -> tuple[int, int]:
    return SIZE_ON_GPUS if is_gpu(device) else SIZE


def covered(shape: tuple[int, ...], device: AnyDevice) -> int:
    """Pixels that windows for pixels of a shape compute, of the picture or beyond it."""
    return _covered(shape, window_size(shape, device))


def _covered(shape: tuple[int, ...], window: tuple[int, int]) -> int:
    return math.prod(-(-side // of) * of for side, of in zip(shape[:2], window, strict=True))


def windows_of(shape: tuple[int, ...], device: AnyDevice) -> int:
    """How many that are."""
    return covered(shape, device) // math.prod(window_size(shape, device))


def in_windows(shape: tuple[int, ...], device: AnyDevice, short: bool, extra: int = 0) -> bool:
    """Whether they should be, with so many extra grids: for all that they need, or as a short run,
    on a device that compiles for long and computes for long as well, had better take programs that
    know no size."""
    pixels, most = float(shape[0] * shape[1]), WHOLE
    if is_gpu(device):
        pixels, most = _computed(shape, device, short) * (1 + BY_EXTRA * extra), WHOLE_ON_GPUS
    elif short and compiles_long(device) and max(shape[:2]) > SMALL:
        most = 0
    elif is_thin(shape, device):  # whose rooms have up to 32 times as many
        pixels = _computed(shape, device, short)
    return pixels > most and fits_windows(shape, device)


def begins_in_windows(shape: tuple[int, ...], device: AnyDevice) -> bool:
    """Whether a run should at least begin so."""
    return in_windows(shape, device, short=True)


def room(shape: tuple[int, ...], device: AnyDevice, short: bool) -> Room:
    """Rows and columns that a step for pixels of a shape is made for, so that what was compiled
    for one picture serves others; None for just its own, which takes 3% less time on processors and
    none on GPUs."""
    found = common_side(shape[0]), common_side(shape[1])
    if not _compiles(device):
        return None
    if short and max(found) <= SMALL:
        return max(found), max(found)
    if is_gpu(device):
        return (_coarse(shape) if short else None) or found
    return None if _fills(shape, found) else found


def _coarse(shape: tuple[int, ...]) -> Room:
    """The smallest of few rooms that has room for pixels of a shape; None if they fill too little
    of it."""
    height, width = shape[:2]
    fitting = (
        sides for sides in map(partial(_along, shape), COARSE)
        if sides[0] >= height and sides[1] >= width
    )  # fmt: skip
    found = next(fitting, None)
    return found if found and math.prod(found) <= FILLED * height * width else None


def _fills(shape: tuple[int, ...], room: tuple[int, int]) -> bool:
    """Whether a picture has a program for itself; small ones are trained faster than compiled."""
    return shape[:2] == room and max(room) > SMALL


def begins_elsewhere(
    shape: tuple[int, ...], device: AnyDevice, short: bool, extra: int = 0
) -> bool:
    """Whether a run, with so many extra grids, begins in a program that serves more sizes than the
    one it may go over to."""
    if short or not _compiles(device) or in_windows(shape, device, short, extra):
        return False
    own, shared = (room(shape, device, each) for each in (False, True))
    if is_gpu(device):
        # Both are there for a moment, as this one's and the other process's are before that.
        both = opening_pixels(shape, device) + own_pixels(shape, device)
        return own != shared and both * (1 + BY_EXTRA * extra) <= WHOLE_ON_GPUS
    return begins_in_windows(shape, device) or own != shared


def opening_steps(
    shape: tuple[int, ...], device: AnyDevice, short: bool, operations: int, extra: int = 0
) -> int:
    """That such a run takes there, of so many operations a pixel; 0 if it stays as it begins."""
    if not begins_elsewhere(shape, device, short, extra):
        return 0
    meanwhile = MEANWHILE_ON_GPUS if is_gpu(device) else MEANWHILE
    return math.ceil(meanwhile / (opening_pixels(shape, device) * operations))


def opening_pixels(shape: tuple[int, ...], device: AnyDevice) -> int:
    """That a step of a program for many sizes computes."""
    if begins_in_windows(shape, device):
        return covered(shape, device)
    return _computed(shape, device, short=True)


def own_pixels(shape: tuple[int, ...], device: AnyDevice) -> int:
    """That a step computes which such a run goes over to, about."""
    if begins_in_windows(shape, device) and not is_thin(shape, device):
        return shape[0] * shape[1]
    return _computed(shape, device, short=False)


def _computed(shape: tuple[int, ...], device: AnyDevice, short: bool) -> int:
    return math.prod(room(shape, device, short) or shape[:2])


def own_room_pays(shape: tuple[int, ...], device: AnyDevice, steps: float, operations: int) -> bool:
    """Whether so many steps should have one that is compiled for, of pixels that are one window or
    none, or are in a room of few kinds."""
    spared: float = opening_pixels(shape, device) - own_pixels(shape, device)
    if begins_in_windows(shape, device):
        spared += AROUND_ONE * covered(shape, device)
    return steps * spared * operations >= (SPARED_ON_GPUS if is_gpu(device) else SPARED)


def goes_over(
    shape: tuple[int, ...], device: AnyDevice, steps: int, opening: int, operations: int
) -> bool:
    """Whether a run of so many steps leaves the program for many sizes that it opens in, after so
    many of them, for its own: from many windows, with which networks move, for that alone."""
    one = begins_in_windows(shape, device) and windows_of(shape, device) == 1
    asks = (one and not is_thin(shape, device)) or is_gpu(device)
    pays = not asks or own_room_pays(shape, device, steps, operations)
    return pays and 0 < WORTH * opening <= steps


def step_program(
    shape: tuple[int, ...], widths: tuple[int, int], device: AnyDevice, short: bool,
    hyper: bool = False, extra: int = 0,
) -> str:  # fmt: skip
    """What compile_times.py knows the step by that a run for pixels of a shape begins with."""
    height, width, channels = shape
    first = short or begins_elsewhere(shape, device, short, extra)
    shared = room(shape, device, first)
    if in_windows(shape, device, first, extra):
        sizes = "windows of {}x{}".format(*window_size(shape, device))
    elif shared:
        sizes = "{}x{}".format(*shared)
    else:
        sizes = f"{height}x{width} alone"
    levels = levels_of(height, width, shared)
    kind = f"widths {widths}" + ", hyperlatents" * hyper + f", {extra} extra" * (extra > 0)
    return f"latent step: {sizes} x{channels}, {levels} levels, {kind}"


def room_compiler(like: LatentStep, room: Room) -> child.Helper:
    """The process that compiles what trains the picture that a step is for in a room."""
    shape = like.shape
    sizes = like.height, like.width, like.channels, like.seed, shape.synthesis, shape.entropy
    has = int(shape.hyper), shape.extra
    told = map(str, (*sizes, like.start.number, *has, *(room or (0,))))
    spec, beside = like.device.info.spec, is_gpu(like.device)  # which leaves cores to others
    return child.Helper("imgmlp.codec.latent.training.rooms", spec, *told, helped=beside)


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
