"""A large picture from a small step: a compiled program that fills one piece after the other."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any, Protocol

import numpy as np

from imgmlp.codec.training.memory_limits import detached, explain
from imgmlp.engine import AnyDevice, NumpyDevice, Program, Receiver
from imgmlp.errors import ImgmlpWarning, OutOfMemoryError

Array = np.ndarray[Any, Any]

LEAST = 256  # pixels of a piece that is not halved any more
NUMPYS = 1 << 14  # pixels of a piece for NumPy: near its caches, yet its threads meet seldom
GPUS = 16  # times as many pixels a piece for a GPU, whose launches take less than starting them
SMALL, THIN = 32, 16  # pixels along the sides of small pictures, along the short one of thin ones
# Pieces up to which thin pictures have those of others, which take less than compiling.
FEW = 16


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
    pixels = at_once(device, pixels)
    fit = fitting if isinstance(device, NumpyDevice) else common  # NumPy compiles nothing
    while True:
        rows, columns = fit(width, height, pixels)
        try:
            fill(picture, make(device, rows, columns))
            return picture
        except OutOfMemoryError as error:
            if device.lost:
                raise
            problem = detached(error)
        if rows * columns <= LEAST:
            what = f"decoding {rows * columns} pixels at a time"
            raise explain(problem, what, device, partial(make, rows=rows, columns=columns))
        pixels = rows * columns // 2
        text = f"{problem}: going on with {pixels:,} pixels at a time instead of {2 * pixels:,}"
        warnings.warn(text, ImgmlpWarning, stacklevel=3)  # whoever decodes


def fill(picture: Array, piece: Piece) -> None:
    """All of uint8 [height, width, channels]; pieces may reach past its edges."""

    def place(corner: tuple[int, int], values: dict[str, Array]) -> None:
        top, left = corner
        target = picture[top : top + piece.rows, left : left + piece.columns]
        target[...] = values["pixels"][: target.shape[0], : target.shape[1]]

    receiver = Receiver(piece.program, ["pixels"], place)
    for left in range(0, picture.shape[1], piece.columns):
        for top in range(0, picture.shape[0], piece.rows):
            piece.move_to(top, left)
            piece.program.run()
            receiver.send((top, left))
            receiver.wait()  # one piece in flight keeps the memory bounded
