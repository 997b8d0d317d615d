"""Where grids and pixels lie in memory while a picture is trained.

All grids stand in one plane of rows of the same pitch, with zeros between them, so that the
neighbours of every value are at the same distances: what a network sees of them are the same
plane, shifted. Pixels have a plane of the same pitch. A large picture passes through the plane of a
window, part by part. Nothing here knows of networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import NEIGHBOUR_RADIUS

Array = np.ndarray[Any, Any]
Span = tuple[int, int]  # first, and the one after the last
Size = tuple[int, int]  # rows and columns
Slices = tuple[slice, slice]  # of rows and columns

# Rows that hold all neighbours above a row, and what its first ones are left of.
AROUND = NEIGHBOUR_RADIUS + 1
ALIGN = 16  # elements that a row's pitch is a multiple of
TILE = 256  # positions that all that are computed together are a multiple of
# Sides that programs are made for: powers of two up to SMALL_SIDE, then multiples of SIDE_UNIT.
LEAST_SIDE, SMALL_SIDE, SIDE_UNIT = 32, 128, 64


def common_side(side: int) -> int:
    """Rows or columns of a program that serves pictures of so many, and of many other sizes."""
    return power_of_two(side) if side <= SMALL_SIDE else -(-side // SIDE_UNIT) * SIDE_UNIT


def power_of_two(side: int) -> int:
    """At least so many rows or columns, and no fewer than LEAST_SIDE."""
    return max(LEAST_SIDE, 1 << (side - 1).bit_length())


@dataclass(frozen=True)
class Grid:
    """One grid, and where its first value stands among the rows that are computed."""

    height: int
    width: int
    row: int
    column: int
    level: int


@dataclass(frozen=True)
class Plane:
    """The finest grid, below it the next one, and beside that the others; zeros around each.

    Where that takes fewer positions, as of what is much higher than wide, each is below the one
    before. Hyperlatents are below the grids that they are as large as, extra grids below all.
    """

    grids: tuple[Grid, ...]  # finest first, those that are no levels last
    pitch: int
    rows: int
    coded: int  # rows whose bits are computed, from number `halo` on
    pixel_rows: int  # of the plane of pixels, without margins
    halo: int = 0

    @staticmethod
    def of(
        height: int, width: int, levels: int, halo: int = 0, others: Sequence[int] = ()
    ) -> Plane:
        """For so many pixels, and so many values of every grid around those that they have; with
        hyperlatents as large as the grids of some levels, or others as large as the finest."""
        sizes = [
            (-(-height // 2**n) + 2 * halo, -(-width // 2**n) + 2 * halo) for n in range(levels)
        ]
        usual = _laid_out(sizes, _places(sizes), halo, others)
        if any(others):  # which have no place there
            return usual
        below = _laid_out(sizes, _one_below(sizes), halo, others)
        return min(usual, below, key=lambda plane: plane.places + plane.pixels)

    @property
    def places(self) -> int:
        """Positions whose bits are computed."""
        return self.coded * self.pitch

    @property
    def first(self) -> int:
        """The first of them."""
        return self.halo * self.pitch

    @property
    def pixels(self) -> int:
        """Positions of the plane of pixels that are computed."""
        return self.pixel_rows * self.pitch

    @property
    def margin(self) -> int:
        """Zeros before and after the plane of pixels."""
        return 2 * self.pitch


def _laid_out(
    sizes: Sequence[Size], places: Iterable[Size], halo: int, others: Sequence[int]
) -> Plane:
    """With grids of such sizes, their halo included, at such places."""
    pairs = enumerate(zip(sizes, places, strict=True))
    grids = [Grid(*size, *place, n) for n, (size, place) in pairs]
    if any(others):
        below = grids[others[0]].row + grids[others[0]].height + NEIGHBOUR_RADIUS
        grids += [replace(grids[n], row=below) for n in others]
    else:
        below = max(grid.row + grid.height for grid in grids) + NEIGHBOUR_RADIUS
        step = grids[0].height + NEIGHBOUR_RADIUS
        grids += [replace(grids[0], row=below + n * step) for n in range(len(others))]
    pitch = max(grid.column + grid.width + NEIGHBOUR_RADIUS for grid in grids)
    bottom = max(grid.row + grid.height for grid in grids)
    pitch = -(-pitch // ALIGN) * ALIGN
    unit = TILE // math.gcd(TILE, pitch)
    # AROUND as rows use what is above them.
    counts = bottom - 2 * halo + AROUND, sizes[0][0]
    coded, pixel_rows = (-(-n // unit) * unit for n in counts)
    rows = max(halo + coded, bottom, *(g.row + pixel_rows for g in grids if g.level == 0))
    return Plane(tuple(grids), pitch, rows, coded, pixel_rows, halo)


def _one_below(sizes: Sequence[Size]) -> Iterator[Size]:
    """Row and column of every grid, all of them one below the other."""
    row = 0
    for height, _ in sizes:
        yield row, 0
        row += height + NEIGHBOUR_RADIUS


def _places(sizes: Sequence[Size]) -> Iterator[Size]:
    """Row and column of every grid: the third right of the second, the others below the third."""
    corner = 0, 0
    for level, (h, w) in enumerate(sizes):
        yield corner
        row, column = corner
        below = row + h + NEIGHBOUR_RADIUS, column
        beside = row, column + w + NEIGHBOUR_RADIUS
        corner = below if level in (0, 2) else beside


@dataclass(frozen=True)
class Extent:
    """What of a picture's grids stands in a plane: all, or a window's own values and a halo.

    A window begins at a multiple of 2^(levels - 1) in both directions, so that every grid is cut
    between the values that belong to the same value of the next coarser one.
    """

    plane: Plane
    picture: tuple[int, int]  # height, width
    corner: tuple[int, int]  # row and column at which the own part begins
    size: tuple[int, int]  # its rows and columns, which may reach past the picture
    halo: int = 0  # values of every grid around the own ones

    def span(self, axis: int, level: int, halo: int = 0) -> Span:
        """Along an axis of the picture's grid: the own values, or those around them as well."""
        begin, end = self.corner[axis], self.corner[axis] + self.size[axis]
        there = -(-self.picture[axis] // 2**level)
        return max(0, (begin >> level) - halo), min(there, -(-end // 2**level) + halo)

    def bounds(self, axis: int, level: int, halo: int) -> Span:
        """The same along an axis of the plane's grid."""
        first, end = self.span(axis, level, halo)
        moved = self.halo - (self.corner[axis] >> level)
        return first + moved, end + moved

    @cached_property
    def frame(self) -> tuple[Span, ...]:
        """All that tells one window from another, but for what is in it."""
        levels = (grid.level for grid in self.plane.grids)
        return tuple(self.bounds(axis, n, self.halo) for n in levels for axis in (0, 1))

    @property
    def ends(self) -> list[Array]:
        """int32 [grids, 2] each: where they begin and where they end in theirs of the plane."""
        found = [
            [self.bounds(axis, grid.level, self.halo) for axis in (0, 1)]
            for grid in self.plane.grids
        ]
        return list(np.ascontiguousarray(np.array(found, np.int32).transpose(2, 0, 1)))

    @property
    def pixels(self) -> int:
        """How many are its own."""
        rows, columns = (self.span(axis, 0) for axis in (0, 1))
        return (rows[1] - rows[0]) * (columns[1] - columns[0])

    @cached_property
    def _slices(self) -> dict[int, list[tuple[Slices, Slices]]]:
        """By a halo, of every grid what stands in the plane, in its grid and there."""
        return {halo: self._sliced(halo) for halo in {0, self.halo}}

    def _sliced(self, halo: int) -> list[tuple[Slices, Slices]]:
        found = []
        for grid in self.plane.grids:
            rows, columns = (slice(*self.span(axis, grid.level, halo)) for axis in (0, 1))
            (top, bottom), (left, right) = (self.bounds(axis, grid.level, halo) for axis in (0, 1))
            there = slice(grid.row + top, grid.row + bottom)
            found.append(((rows, columns), (there, slice(grid.column + left, grid.column + right))))
        return found

    def cut(self, grids: Sequence[Array], halo: int = 0) -> list[Array]:
        """Of the picture's grids, finest first, what stands in the plane, with a halo of 0 or all
        of it; views."""
        return [grid[own] for grid, (own, _) in zip(grids, self._slices[halo], strict=True)]

    def parts(self, plane: Array, halo: int = 0) -> list[Array]:
        """Of a plane [rows, pitch] where these stand, finest first; views."""
        return [plane[there] for _, there in self._slices[halo]]

    def gathered(self, grids: Sequence[Array], halo: int = 0) -> Array:
        """float32 [rows, pitch]: the picture's grids as the plane has them."""
        found = np.zeros((self.plane.rows, self.plane.pitch), np.float32)
        for part, values in zip(self.parts(found, halo), self.cut(grids, halo), strict=True):
            part[:] = values
        return found

    def taken(self, halo: int = 0) -> Array:
        """float32 [rows, pitch]: 1 where the plane has a value of a grid."""
        found = np.zeros((self.plane.rows, self.plane.pitch), np.float32)
        for part in self.parts(found, halo):
            part[:] = 1
        return found

    def samples(self, found: Array, halo: int = 0) -> Array:
        """Of samples [channels, pixels of the plane], those of the picture, [channels, h, w]."""
        rows, columns = (slice(*self.bounds(axis, 0, halo)) for axis in (0, 1))
        part: Array = found.reshape(len(found), -1, self.plane.pitch)[:, rows, columns]
        return part

    def inside(self, halo: int = 0) -> Array:
        """float32 [pixels of the plane]: 1 where the picture is."""
        found = np.zeros((1, self.plane.pixels), np.float32)
        self.samples(found, halo)[:] = 1
        return found.reshape(-1)

    def target(self, pixels: Array) -> Array:
        """float32 [channels, pixels of the plane], from the uint8 [h, w, channels] picture."""
        found = np.zeros((pixels.shape[2], self.plane.pixels), np.float32)
        rows, columns = (slice(*self.span(axis, 0)) for axis in (0, 1))
        part = pixels[rows, columns].transpose(2, 0, 1)
        self.samples(found)[:] = part / np.float32(255) - np.float32(0.5)
        return found
