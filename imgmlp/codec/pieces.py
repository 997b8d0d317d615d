"""A large picture from a small step: a compiled program that fills one piece after the other."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from imgmlp.engine import Program, Receiver

Array = np.ndarray[Any, Any]


class Piece(Protocol):
    """A step whose output "pixels" is uint8 [rows, columns, channels] of a picture."""

    rows: int
    columns: int
    program: Program

    def move_to(self, top: int, left: int) -> None: ...


def fitting(width: int, height: int, pixels: int) -> tuple[int, int]:
    """(rows, columns) of a piece of at most so many pixels, as wide as can be."""
    columns = min(width, pixels)
    return min(height, max(1, pixels // columns)), columns


def assemble(piece: Piece, width: int, height: int, channels: int) -> Array:
    """The whole picture, uint8 [height, width, channels]; pieces may reach past its edges."""
    picture = np.empty((height, width, channels), np.uint8)

    def place(corner: tuple[int, int], values: dict[str, Array]) -> None:
        top, left = corner
        target = picture[top : top + piece.rows, left : left + piece.columns]
        target[...] = values["pixels"][: target.shape[0], : target.shape[1]]

    receiver = Receiver(piece.program, ["pixels"], place)
    for left in range(0, width, piece.columns):
        for top in range(0, height, piece.rows):
            piece.move_to(top, left)
            piece.program.run()
            receiver.send((top, left))
            receiver.wait()  # one piece in flight keeps the memory bounded
    return picture
