"""Where grids and pixels lie in memory while a picture is trained.

All grids stand in one plane of rows of the same pitch, with zeros between them, so that the
neighbours of every value are at the same distances: what a network sees of them are the same
plane, shifted. Pixels have a plane of the same pitch. Nothing here knows of networks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

REACH = 3  # rows above, and columns to either side, that a context comes from
AROUND = REACH + 1  # rows that hold all neighbours above a row, and what its first ones are left of
ALIGN = 16  # elements that a row's pitch is a multiple of
TILE = 256  # positions that all that are computed together are a multiple of
# Sides that programs are made for: powers of two up to SMALL, then multiples of UNIT.
LEAST, SMALL, UNIT = 32, 128, 64


def common_side(side: int) -> int:
    """Rows or columns of a program that serves pictures of so many, and of many other sizes."""
    if side <= SMALL:
        return max(LEAST, 1 << (side - 1).bit_length())
    return -(-side // UNIT) * UNIT


@dataclass(frozen=True)
class Grid:
    """One grid, and where its first value stands among the rows that are computed."""

    height: int
    width: int
    row: int
    column: int


@dataclass(frozen=True)
class Plane:
    """The finest grid, and below it the others side by side; zeros around each of them."""

    grids: tuple[Grid, ...]  # finest first
    pitch: int
    rows: int  # that are computed
    pixel_rows: int  # of the plane of pixels, without margins

    @staticmethod
    def of(height: int, width: int, levels: int) -> Plane:
        sizes = [(-(-height // 2**n), -(-width // 2**n)) for n in range(levels)]
        beside = sum(w + REACH for _, w in sizes[1:])
        pitch = -(-max(width + REACH, beside) // ALIGN) * ALIGN
        grids, row, column = [Grid(height, width, 0, 0)], height + REACH, 0
        for h, w in sizes[1:]:
            grids.append(Grid(h, w, row, column))
            column += w + REACH
        used = row + (sizes[1][0] if levels > 1 else 0) + AROUND  # which use what is above them
        unit = TILE // math.gcd(TILE, pitch)
        rows, pixel_rows = (-(-n // unit) * unit for n in (used, height))
        return Plane(tuple(grids), pitch, rows, pixel_rows)

    @property
    def places(self) -> int:
        """Positions that are computed."""
        return self.rows * self.pitch

    @property
    def pixels(self) -> int:
        """Positions of the plane of pixels that are computed."""
        return self.pixel_rows * self.pitch

    @property
    def margin(self) -> int:
        """Zeros before and after the plane of pixels."""
        return 2 * self.pitch
