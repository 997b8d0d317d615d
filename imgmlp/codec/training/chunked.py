"""Decodes a large picture piece by piece with a compiled program for one piece."""

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

MIN_PIECE_PIXELS = 256  # pieces of as many pixels are not halved any more if memory is short
# Pixels of a piece on NumPy: the activations of larger pieces do not fit into the caches.
NUMPY_PIECE_PIXELS = 1 << 12
# Factor of the pixels of a piece on a GPU, where launches are shorter than the time to start them.
GPU_PIECE_FACTOR = 16
# The usual piece is about square. Small and thin pictures get pieces of their own shape.
SMALL_PICTURE_SIDE = 32  # pixels
THIN_PICTURE_SIDE = 16  # pixels along the short side
MAX_USUAL_PIECES = 16  # of a thin picture: computing them takes less time than compiling
# A sample of a large picture has at least as many pixels and pieces.
MIN_SAMPLE_PIXELS = 2**19
MIN_SAMPLE_PIECES = 16


class Piece(Protocol):
    """A step that computes a piece of a picture: "pixels", uint8 [rows, columns, channels]."""

    rows: int
    columns: int
    program: Program

    def move_to(self, top: int, left: int) -> None: ...


class Make(Protocol):
    """Makes a Piece of rows x columns pixels for a device."""

    def __call__(self, device: AnyDevice, rows: int, columns: int) -> Piece: ...


def widest_piece(width: int, height: int, pixels: int) -> tuple[int, int]:
    """(rows, columns) of the widest piece of at most `pixels` pixels."""
    columns = min(width, pixels)
    return min(height, max(1, pixels // columns)), columns


def shared_piece(width: int, height: int, pixels: int) -> tuple[int, int]:
    """(rows, columns) of a piece of at most `pixels` pixels, the same for nearly all pictures.

    Pieces may extend beyond the picture, so that pictures of many sizes share a compiled program.
    """
    if max(width, height) <= SMALL_PICTURE_SIDE and pixels >= SMALL_PICTURE_SIDE**2:
        return SMALL_PICTURE_SIDE, SMALL_PICTURE_SIDE
    rows = 1 << int(math.log2(pixels)) // 2
    if -(-height // rows) * -(-width // (pixels // rows)) <= MAX_USUAL_PIECES:
        return rows, pixels // rows
    if height <= THIN_PICTURE_SIDE:
        rows = min(rows, THIN_PICTURE_SIDE)
    elif width <= THIN_PICTURE_SIDE:
        rows = max(rows, pixels // THIN_PICTURE_SIDE)
    return rows, pixels // rows


def max_piece_pixels(device: AnyDevice, pixels: int) -> int:
    """The most pixels of a piece on a device, if they are `pixels` on a CPU with OpenCL."""
    if isinstance(device, NumpyDevice):
        return min(pixels, NUMPY_PIECE_PIXELS)
    return GPU_PIECE_FACTOR * pixels if device.lanes == "group" else pixels


def assemble(
    make: Make,
    device: AnyDevice,
    size: tuple[int, int],
    channels: int,
    pixels: int,
) -> Array:
    """The whole picture of a (width, height) size, uint8 [height, width, channels].

    Pieces have at most `pixels` pixels (see max_piece_pixels). If they do not fit into the device's
    memory, they are halved with an ImgmlpWarning. Raises OutOfMemoryError if even the smallest do
    not fit.
    """
    width, height = size
    picture = np.empty((height, width, channels), np.uint8)
    _with_piece(make, device, size, pixels, partial(fill, picture))
    return picture


def timed(
    make: Make, device: AnyDevice, size: tuple[int, int], pixels: int, times: int, most: float
) -> float:
    """Seconds that `assemble` takes, without compiling.

    It is measured for `times` pictures, but at most for `most` seconds.
    """
    use = partial(_timed, size=size, times=times, most=most)
    return _with_piece(make, device, size, pixels, use)


def sampled(
    make: Make, device: AnyDevice, size: tuple[int, int], pixels: int
) -> list[tuple[Corner, Array]]:
    """A random sample of the pieces of `assemble`: (upper left corner, uint8 [rows, columns,
    channels]) each."""
    return _with_piece(make, device, size, pixels, partial(_sampled, size=size))


def sampled_fraction(device: AnyDevice, size: tuple[int, int], pixels: int) -> float:
    """The fraction of all pieces that `sampled` returns if memory suffices; 1 for small
    pictures."""
    rows, columns = _piece_shape(device)(*size, max_piece_pixels(device, pixels))
    corners = _corners(size, rows, columns)
    return len(_sample_of(corners, rows * columns)) / len(corners)


def _with_piece(
    make: Make, device: AnyDevice, size: tuple[int, int], pixels: int, use: Callable[[Piece], T]
) -> T:
    width, height = size
    pixels = max_piece_pixels(device, pixels)
    while True:
        rows, columns = _piece_shape(device)(width, height, pixels)
        try:
            return use(make(device, rows, columns))
        except OutOfMemoryError as error:
            if device.lost:
                raise
            problem = detached(error)
        if rows * columns <= MIN_PIECE_PIXELS:
            what = f"decoding {rows * columns} pixels at a time"
            raise explain(problem, what, device, partial(make, rows=rows, columns=columns))
        pixels = rows * columns // 2
        text = f"{problem}: going on with {pixels:,} pixels at a time instead of {2 * pixels:,}"
        warnings.warn(text, ImgmlpWarning, stacklevel=4)  # the caller of `assemble`'s caller


def _piece_shape(device: AnyDevice) -> Callable[[int, int, int], tuple[int, int]]:
    is_compiled = not isinstance(device, NumpyDevice)
    return shared_piece if is_compiled else widest_piece


def fill(picture: Array, piece: Piece) -> None:
    """Compute all pieces of a picture, uint8 [height, width, channels]."""

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
    (width, height), pieces = size, list[tuple[Corner, Array]]()

    def keep(corner: Corner, values: dict[str, Array]) -> None:
        top, left = corner
        pieces.append((corner, values["pixels"][: height - top, : width - left]))

    receiver = Receiver(piece.program, ["pixels"], keep)
    corners = _corners(size, piece.rows, piece.columns)
    for corner in _sample_of(corners, piece.rows * piece.columns):
        _compute(piece, corner, receiver)
    receiver.wait()
    return pieces


def _sample_of(corners: Sequence[Corner], pixels: int) -> list[Corner]:
    """A random corner from each of several runs of corners, or all corners if there are few.

    Pieces have `pixels` pixels.
    """
    count = max(MIN_SAMPLE_PIECES, MIN_SAMPLE_PIXELS // pixels)
    if 2 * count > len(corners):
        return [*corners]
    generator = np.random.Generator(np.random.PCG64(0))
    return [corners[generator.choice(run)] for run in np.array_split(range(len(corners)), count)]


def _timed(piece: Piece, size: tuple[int, int], times: int, most: float) -> float:
    corners = _corners(size, piece.rows, piece.columns)
    receiver = Receiver(piece.program, ["pixels"], lambda _corner, _values: None)
    _compute(piece, corners[0], receiver)  # it may compile
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
    """Start a piece once the one before is done, so that memory stays bounded."""
    piece.move_to(*corner)  # the host prepares it while the device computes the one before
    receiver.wait()
    piece.program.run()
    receiver.send(corner)
