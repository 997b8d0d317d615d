"""A large picture from a small step: a compiled program that fills one piece after the other."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from imgmlp.codec.training.memory_limits import detached, explain
from imgmlp.engine import AnyDevice, NumpyDevice, Program, Receiver
from imgmlp.errors import ImgmlpWarning, OutOfMemoryError

T = TypeVar("T")
Array = np.ndarray[Any, Any]
Corner = tuple[int, int]  # top and left

LEAST = 256  # pixels of a piece that is not halved any more
NUMPYS = 1 << 12  # pixels of a piece for NumPy: what a layer makes of more leaves the caches
GPUS = 16  # times as many pixels a piece for a GPU, whose launches take less than starting them
SMALL, THIN = 32, 16  # pixels along the sides of small pictures, along the short one of thin ones
# Pieces up to which thin pictures have those of others, which take less than compiling.
FEW = 16
SAMPLED, FEWEST = 2**19, 16  # pixels, and pieces, that stand for a large picture's, at least


class Piece(Protocol):
    """A step whose output "pixels" is uint8 [rows, columns, channels] of a picture."""

    rows: int
    columns: int
    program: Program

    def move_to(self, top: int, left: int) -> None: ...


class Make(Protocol):
    """Makes a Piece of so many pixels for a device."""

    def __call__(self, device: AnyDevice, rows: int, columns: int) -> Piece: ...


def fitting(width: int, height: int, pixels: int) -> tuple[int, int]:
    """(rows, columns) of a piece of at most so many pixels, as wide as can be."""
    columns = min(width, pixels)
    return min(height, max(1, pixels // columns)), columns


def common(width: int, height: int, pixels: int) -> tuple[int, int]:
    """(rows, columns) of a piece of at most so many pixels, the same for nearly all pictures.

    Pieces may reach past a picture's edges, so that what was compiled for one serves others.
    """
    if width <= SMALL and height <= SMALL and pixels >= SMALL**2:
        return SMALL, SMALL
    rows = 1 << int(math.log2(pixels)) // 2
    if -(-height // rows) * -(-width // (pixels // rows)) <= FEW:
        return rows, pixels // rows
    if height <= THIN:
        rows = min(rows, THIN)
    elif width <= THIN:
        rows = max(rows, pixels // THIN)
    return rows, pixels // rows


def at_once(device: AnyDevice, pixels: int) -> int:
    """Most pixels of a piece on a device, where a processor takes so many."""
    if isinstance(device, NumpyDevice):
        return min(pixels, NUMPYS)
    return GPUS * pixels if device.lanes == "group" else pixels


def assemble(
    make: Make,
    device: AnyDevice,
    size: tuple[int, int],
    channels: int,
    pixels: int,
) -> Array:
    """The whole picture of a (width, height) size, uint8 [height, width, channels].

    It comes in pieces of at most so many pixels (see at_once), and of half as many, with an
    ImgmlpWarning, where they do not fit in the device's memory. Raises OutOfMemoryError if small
    ones do not either.
    """
    width, height = size
    picture = np.empty((height, width, channels), np.uint8)
    _with_piece(make, device, size, pixels, partial(fill, picture))
    return picture


def timed(
    make: Make, device: AnyDevice, size: tuple[int, int], pixels: int, times: int, most: float
) -> float:
    """Seconds that `assemble` takes, once all is compiled.

    By doing it so many times, or as much of it as takes `most` seconds.
    """
    use = partial(_timed, size=size, times=times, most=most)
    return _with_piece(make, device, size, pixels, use)


def sampled(
    make: Make, device: AnyDevice, size: tuple[int, int], pixels: int
) -> list[tuple[Corner, Array]]:
    """Some parts of what `assemble` gives, which stand for all of it: their upper left corners, and
    uint8 [rows, columns, channels]."""
    return _with_piece(make, device, size, pixels, partial(_sampled, size=size))


def sampled_share(device: AnyDevice, size: tuple[int, int], pixels: int) -> float:
    """Of all parts, how many `sampled` gives, memory permitting; 1 of small pictures."""
    rows, columns = _fitting(device)(*size, at_once(device, pixels))
    corners = _corners(size, rows, columns)
    return len(_some(corners, rows * columns)) / len(corners)


def _with_piece(
    make: Make, device: AnyDevice, size: tuple[int, int], pixels: int, use: Callable[[Piece], T]
) -> T:
    width, height = size
    pixels = at_once(device, pixels)
    while True:
        rows, columns = _fitting(device)(width, height, pixels)
        try:
            return use(make(device, rows, columns))
        except OutOfMemoryError as error:
            if device.lost:
                raise
            problem = detached(error)
        if rows * columns <= LEAST:
            what = f"decoding {rows * columns} pixels at a time"
            raise explain(problem, what, device, partial(make, rows=rows, columns=columns))
        pixels = rows * columns // 2
        text = f"{problem}: going on with {pixels:,} pixels at a time instead of {2 * pixels:,}"
        warnings.warn(text, ImgmlpWarning, stacklevel=4)  # whoever decodes


def _fitting(device: AnyDevice) -> Callable[[int, int, int], tuple[int, int]]:
    return fitting if isinstance(device, NumpyDevice) else common  # NumPy compiles nothing


def fill(picture: Array, piece: Piece) -> None:
    """All of uint8 [height, width, channels]; pieces may reach past its edges."""

    def place(corner: Corner, values: dict[str, Array]) -> None:
        top, left = corner
        target = picture[top : top + piece.rows, left : left + piece.columns]
        target[...] = values["pixels"][: target.shape[0], : target.shape[1]]

    height, width, _ = picture.shape
    receiver = Receiver(piece.program, ["pixels"], place)
    for corner in _corners((width, height), piece.rows, piece.columns):
        _compute(piece, corner, receiver)
    receiver.wait()


def _sampled(piece: Piece, size: tuple[int, int]) -> list[tuple[Corner, Array]]:
    (width, height), found = size, list[tuple[Corner, Array]]()

    def keep(corner: Corner, values: dict[str, Array]) -> None:
        top, left = corner
        found.append((corner, values["pixels"][: height - top, : width - left]))

    receiver = Receiver(piece.program, ["pixels"], keep)
    corners = _corners(size, piece.rows, piece.columns)
    for corner in _some(corners, piece.rows * piece.columns):
        _compute(piece, corner, receiver)
    receiver.wait()
    return found


def _some(corners: Sequence[Corner], pixels: int) -> list[Corner]:
    """One by chance out of each of some runs of pieces with so many pixels; all of few."""
    count = max(FEWEST, SAMPLED // pixels)
    if 2 * count > len(corners):
        return [*corners]
    generator = np.random.Generator(np.random.PCG64(0))
    return [corners[generator.choice(run)] for run in np.array_split(range(len(corners)), count)]


def _timed(piece: Piece, size: tuple[int, int], times: int, most: float) -> float:
    corners = _corners(size, piece.rows, piece.columns)
    receiver = Receiver(piece.program, ["pixels"], lambda _corner, _values: None)
    _compute(piece, corners[0], receiver)  # which may compile
    receiver.wait()
    began, done = time.perf_counter(), 0
    while done < times * len(corners) and (not done or time.perf_counter() - began <= most):
        _compute(piece, corners[done % len(corners)], receiver)
        done += 1
    receiver.wait()
    return (time.perf_counter() - began) / done * len(corners)


def _corners(size: tuple[int, int], rows: int, columns: int) -> list[Corner]:
    width, height = size
    lefts, tops = range(0, width, columns), range(0, height, rows)
    return [(top, left) for left in lefts for top in tops]


def _compute(piece: Piece, corner: Corner, receiver: Receiver) -> None:
    """Begin with a piece once the one before is done: one in flight keeps the memory bounded."""
    piece.move_to(*corner)  # of which the host does its part meanwhile
    receiver.wait()
    piece.program.run()
    receiver.send(corner)
