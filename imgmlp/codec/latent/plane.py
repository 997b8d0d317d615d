"""Where grids and pixels lie in memory while a picture is trained.

All grids stand in one plane of rows of the same pitch, with zeros between them, so that the
neighbours of every value are at the same distances: what a network sees of them are the same
plane, shifted. Pixels have a plane of the same pitch. Nothing here knows of networks.
"""

from __future__ import annotations

from dataclasses import dataclass

REACH = 3  # rows above, and columns to either side, that a context comes from
ALIGN = 16  # elements that a row's pitch is a multiple of
ROWS = 256  # positions that all that are computed together are a multiple of


@dataclass(frozen=True)
class Grid:
    """One grid, and where its first value stands in the plane."""

    height: int
    width: int
    row: int
    column: int


@dataclass(frozen=True)
class Plane:
    """The finest grid, and below it the others side by side; zeros around each of them."""

    grids: tuple[Grid, ...]  # finest first
    pitch: int
    rows: int  # of the whole plane
    pixels: int  # positions of the plane of pixels that are computed, without margins
    places: int  # positions of this plane that are computed, from `first` on

    @staticmethod
    def of(height: int, width: int, levels: int) -> Plane:
        sizes = [(-(-height >> n) if n == 0 else -(-height // 2**n), -(-width // 2**n))
                 for n in range(levels)]  # fmt: skip
        beside = sum(w + REACH for _, w in sizes[1:])
        pitch = -(-max(width + REACH, beside) // ALIGN) * ALIGN
        grids, row, column = [Grid(height, width, REACH + 1, 0)], height + 2 * REACH + 1, 0
        for h, w in sizes[1:]:
            grids.append(Grid(h, w, row, column))
            column += w + REACH
        used = row + (sizes[1][0] if levels > 1 else 0)  # and REACH + 1 rows that used them
        places = -(-used * pitch // ROWS) * ROWS
        rows = REACH + 1 + -(-places // pitch) + REACH + 1
        pixels = -(-height * pitch // ROWS) * ROWS
        return Plane(tuple(grids), pitch, rows, pixels, places)

    @property
    def size(self) -> int:
        """Positions of the whole plane."""
        return self.rows * self.pitch

    @property
    def first(self) -> int:
        """The first position that is computed."""
        return (REACH + 1) * self.pitch

    @property
    def margin(self) -> int:
        """Zeros before and after the plane of pixels."""
        return 2 * self.pitch
