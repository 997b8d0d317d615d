"""The memory layout of grids and pixels while a picture is trained.

All grids lie in one plane of rows with the same pitch, with zeros between them. The neighbours of
every value are then at the same offsets, so that the values of one neighbour for all latents are
the plane, shifted. Pixels have another plane of the same pitch. A large picture passes through the
planes of a window, part by part. This module knows nothing of networks.
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
Span = tuple[int, int]  # begin and end
Size = tuple[int, int]  # rows and columns
Slices = tuple[slice, slice]  # of rows and columns

# The neighbours of a row's values lie in this many rows before it: NEIGHBOUR_RADIUS rows above, and
# one more, because columns left of the first one wrap around to the end of the row before.
NEIGHBOUR_ROWS = NEIGHBOUR_RADIUS + 1
PITCH_MULTIPLE = 16  # elements; the pitch of a plane is a multiple of it
TILE_POSITIONS = 256  # the number of positions that are computed is a multiple of it

# Sides that programs are compiled for: powers of two from MIN_SIDE to MAX_POWER_OF_TWO_SIDE, then
# multiples of SIDE_MULTIPLE.
MIN_SIDE = 32
MAX_POWER_OF_TWO_SIDE = 128
SIDE_MULTIPLE = 64


def bucket_side(side: int) -> int:
    """Rows or columns of the program that serves pictures with a side of this length."""
    if side <= MAX_POWER_OF_TWO_SIDE:
        return power_of_two_side(side)
    return -(-side // SIDE_MULTIPLE) * SIDE_MULTIPLE


def power_of_two_side(side: int) -> int:
    """The smallest power of two that is at least `side` and MIN_SIDE."""
    return max(MIN_SIDE, 1 << (side - 1).bit_length())


@dataclass(frozen=True)
class Grid:
    """A grid, and the row and column of the plane where its first value lies."""

    height: int
    width: int
    row: int
    column: int
    level: int


@dataclass(frozen=True)
class Plane:
    """An arrangement of grids, with zeros around each.

    The second grid lies below the finest one, the third to the right of the second, the others in
    a row below the third. If it takes fewer positions, as for pictures that are much higher than
    wide, each grid lies below the one before instead. Hyperlatents lie below the grids of the same
    sizes, extra grids below all others.
    """

    grids: tuple[Grid, ...]  # the pyramid, finest first, then the additional grids
    pitch: int
    rows: int
    coded_rows: int  # rows whose bits are computed, from row `halo` on
    pixel_rows: int  # of the plane of pixels, without margins
    halo: int = 0

    @staticmethod
    def of(
        height: int, width: int, levels: int, halo: int = 0, others: Sequence[int] = ()
    ) -> Plane:
        """The plane with the fewest positions for a picture or a window of this size.

        Every grid has `halo` more values on each side. `others` are the levels whose sizes the
        additional grids have: those of hyperlatents, or 0 for each extra grid.
        """
        sizes = [
            (-(-height // 2**n) + 2 * halo, -(-width // 2**n) + 2 * halo) for n in range(levels)
        ]
        side_by_side = _arrange(sizes, _corners_side_by_side(sizes), halo, others)
        if any(others):  # a single column has no space for hyperlatents
            return side_by_side
        column = _arrange(sizes, _corners_in_column(sizes), halo, others)
        return min(side_by_side, column, key=lambda plane: plane.coded_positions + plane.pixels)

    @property
    def coded_positions(self) -> int:
        """The number of positions whose bits are computed."""
        return self.coded_rows * self.pitch

    @property
    def first_coded(self) -> int:
        """The first position whose bits are computed."""
        return self.halo * self.pitch

    @property
    def pixels(self) -> int:
        """The number of positions of the plane of pixels, without margins."""
        return self.pixel_rows * self.pitch

    @property
    def margin(self) -> int:
        """The number of zeros before the plane of pixels, and after it."""
        return 2 * self.pitch


def _arrange(
    sizes: Sequence[Size], corners: Iterable[Size], halo: int, others: Sequence[int]
) -> Plane:
    """The plane with the pyramid's grids, of these sizes including halos, at these corners."""
    pairs = enumerate(zip(sizes, corners, strict=True))
    grids = [Grid(*size, *corner, level) for level, (size, corner) in pairs]
    if any(others):
        below = grids[others[0]].row + grids[others[0]].height + NEIGHBOUR_RADIUS
        grids += [replace(grids[n], row=below) for n in others]
    else:
        below = max(grid.row + grid.height for grid in grids) + NEIGHBOUR_RADIUS
        step = grids[0].height + NEIGHBOUR_RADIUS
        grids += [replace(grids[0], row=below + n * step) for n in range(len(others))]
    pitch = max(grid.column + grid.width + NEIGHBOUR_RADIUS for grid in grids)
    bottom = max(grid.row + grid.height for grid in grids)
    pitch = -(-pitch // PITCH_MULTIPLE) * PITCH_MULTIPLE
    row_multiple = TILE_POSITIONS // math.gcd(TILE_POSITIONS, pitch)
    # Coded rows include NEIGHBOUR_ROWS below the last grid, whose neighbours are in its rows.
    counts = bottom - 2 * halo + NEIGHBOUR_ROWS, sizes[0][0]
    coded_rows, pixel_rows = (-(-n // row_multiple) * row_multiple for n in counts)
    rows = max(halo + coded_rows, bottom, *(g.row + pixel_rows for g in grids if g.level == 0))
    return Plane(tuple(grids), pitch, rows, coded_rows, pixel_rows, halo)


def _corners_in_column(sizes: Sequence[Size]) -> Iterator[Size]:
    """Row and column of every grid, each below the one before."""
    row = 0
    for height, _ in sizes:
        yield row, 0
        row += height + NEIGHBOUR_RADIUS


def _corners_side_by_side(sizes: Sequence[Size]) -> Iterator[Size]:
    """Row and column of every grid: the third right of the second, the others below it in a row."""
    corner = 0, 0
    for level, (h, w) in enumerate(sizes):
        yield corner
        row, column = corner
        below = row + h + NEIGHBOUR_RADIUS, column
        beside = row, column + w + NEIGHBOUR_RADIUS
        corner = below if level in (0, 2) else beside


@dataclass(frozen=True)
class Extent:
    """The part of a picture's grids that is in a plane: all of it, or a window and its halo.

    A window begins at a multiple of 2^(levels - 1) in both directions, so that every grid is cut
    between the values that belong to the same value of the next coarser one.
    """

    plane: Plane
    picture: tuple[int, int]  # height, width
    corner: tuple[int, int]  # row and column of the picture where the window's own part begins
    size: tuple[int, int]  # of the own part, which may reach beyond the picture
    halo: int = 0  # values of every grid on each side of its own part

    def span(self, axis: int, level: int, halo: int = 0) -> Span:
        """The own values along an axis of the picture's grid, and `halo` more on each side."""
        begin, end = self.corner[axis], self.corner[axis] + self.size[axis]
        grid_side = -(-self.picture[axis] // 2**level)
        return max(0, (begin >> level) - halo), min(grid_side, -(-end // 2**level) + halo)

    def bounds(self, axis: int, level: int, halo: int) -> Span:
        """The same values along an axis of the grid in the plane."""
        first, end = self.span(axis, level, halo)
        shift = self.halo - (self.corner[axis] >> level)
        return first + shift, end + shift

    @cached_property
    def mask_key(self) -> tuple[Span, ...]:
        """The bounds of all grids in the plane. Windows with the same bounds have equal masks."""
        levels = (grid.level for grid in self.plane.grids)
        return tuple(self.bounds(axis, n, self.halo) for n in levels for axis in (0, 1))

    @property
    def grid_bounds(self) -> list[Array]:
        """Where the values of each grid begin and where they end: two of int32 [grids, 2 axes]."""
        bounds = [
            [self.bounds(axis, grid.level, self.halo) for axis in (0, 1)]
            for grid in self.plane.grids
        ]
        return list(np.ascontiguousarray(np.array(bounds, np.int32).transpose(2, 0, 1)))

    @property
    def pixels(self) -> int:
        """The number of own pixels, those of the halo excluded."""
        rows, columns = (self.span(axis, 0) for axis in (0, 1))
        return (rows[1] - rows[0]) * (columns[1] - columns[0])

    @cached_property
    def _slices(self) -> dict[int, list[tuple[Slices, Slices]]]:
        """By halo: for every grid, the slices of the picture's grid and those of the plane."""
        return {halo: self._sliced(halo) for halo in {0, self.halo}}

    def _sliced(self, halo: int) -> list[tuple[Slices, Slices]]:
        slices = []
        for grid in self.plane.grids:
            rows, columns = (slice(*self.span(axis, grid.level, halo)) for axis in (0, 1))
            (top, bottom), (left, right) = (self.bounds(axis, grid.level, halo) for axis in (0, 1))
            there = slice(grid.row + top, grid.row + bottom)
            slices.append(
                ((rows, columns), (there, slice(grid.column + left, grid.column + right)))
            )
        return slices

    def cut(self, grids: Sequence[Array], halo: int = 0) -> list[Array]:
        """Views of the picture's grids: the own values, with `halo`, which is 0 or the full one."""
        return [grid[own] for grid, (own, _) in zip(grids, self._slices[halo], strict=True)]

    def parts(self, plane: Array, halo: int = 0) -> list[Array]:
        """Views of a plane [rows, pitch]: the same values of every grid, finest first."""
        return [plane[there] for _, there in self._slices[halo]]

    def assemble(self, grids: Sequence[Array], halo: int = 0) -> Array:
        """A plane with the values of the picture's grids: float32 [rows, pitch]."""
        plane = np.zeros((self.plane.rows, self.plane.pitch), np.float32)
        for part, values in zip(self.parts(plane, halo), self.cut(grids, halo), strict=True):
            part[:] = values
        return plane

    def value_mask(self, halo: int = 0) -> Array:
        """A plane with 1 where a grid has a value, else 0: float32 [rows, pitch]."""
        mask = np.zeros((self.plane.rows, self.plane.pitch), np.float32)
        for part in self.parts(mask, halo):
            part[:] = 1
        return mask

    def samples(self, values: Array, halo: int = 0) -> Array:
        """A view of samples [channels, positions]: those of the picture, [channels, h, w]."""
        rows, columns = (slice(*self.bounds(axis, 0, halo)) for axis in (0, 1))
        part: Array = values.reshape(len(values), -1, self.plane.pitch)[:, rows, columns]
        return part

    def pixel_mask(self, halo: int = 0) -> Array:
        """1 where the plane of pixels has a pixel of the picture, else 0: float32 [positions]."""
        mask = np.zeros((1, self.plane.pixels), np.float32)
        self.samples(mask, halo)[:] = 1
        return mask.reshape(-1)

    def target(self, pixels: Array) -> Array:
        """The samples of the own pixels minus 1/2: float32 [channels, positions].

        `pixels` are the whole picture, uint8 [h, w, channels].
        """
        samples = np.zeros((pixels.shape[2], self.plane.pixels), np.float32)
        rows, columns = (slice(*self.span(axis, 0)) for axis in (0, 1))
        part = pixels[rows, columns].transpose(2, 0, 1)
        self.samples(samples)[:] = part / np.float32(255) - np.float32(0.5)
        return samples
