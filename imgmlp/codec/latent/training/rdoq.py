"""Rate-distortion optimised quantisation: whole latents moved by one where D + lambda R falls.

Rounding takes the nearest whole number of each latent, whatever its neighbours make of theirs, and
for some of them another one is better. The gradient says which moves could pay. Moves that hardly
meet are tried together, and each is judged by what it costs around it, so that one look at a
picture tells of hundreds of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import LARGEST, LEAST
from imgmlp.codec.latent.plane import Extent
from imgmlp.codec.latent.step.latent_step import LatentStep

Array = np.ndarray[Any, Any]

# A move gains TOLD times what the gradient says and loses about LOST times lambda, as it goes too
# far. Which of the two is more is seen by trying, where the first is at least NEARLY so much.
TOLD, LOST, NEARLY = 0.85, 4.0, 0.6
# Share that a look should save of what errors and a grid's bits cost in a window, or it is the last
# one there.
LITTLE = 3e-5
GRIDS = 5  # the finest levels, whose latents are moved; what others and extra grids bring is little
# Latents to either side of one, with their pixels, by which its move is judged. What is further
# away hardly changes, and where less is judged at once there are fewer moves to a look.
NEAR = 2


@dataclass(frozen=True)
class Budget:
    """How long better latents are looked for, at most."""

    sweeps: int = 0  # through the picture, each by a gradient of its own
    looks: int = 0  # of each, at every grid

    @property
    def judged(self) -> int:
        """Times that D and R of the whole picture are computed for it."""
        return self.sweeps * GRIDS * (self.looks + 1)


NO_BUDGET = Budget()


def optimise(
    step: LatentStep,
    flat: Array,
    lmbda: float,
    budget: Budget,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Move whole latents of a step where that is better with networks [parameters], until it is
    `enough`."""
    for _, extent in product(range(budget.sweeps), step.windows):
        if enough():
            return
        slopes = step.latent_slopes(extent, flat, lmbda)
        for level in range(min(GRIDS, step.levels) - 1, -1, -1):
            _Moves(step, extent, flat, lmbda, level).run(slopes[level], budget.looks, enough)


class _Moves:
    """Those of one grid of a window."""

    def __init__(
        self, step: LatentStep, extent: Extent, flat: Array, lmbda: float, level: int
    ) -> None:
        self.step, self.extent, self.flat, self.lmbda = step, extent, flat, lmbda
        self.level = level
        self.grid: Array = extent.cut(step.grids())[level].copy()  # [h, w]

    def run(self, slopes: Array, looks: int, enough: Callable[[], bool]) -> None:
        """By the gradient [h, w] of D + lambda R."""
        way = np.where(slopes > 0, np.float32(-1), np.float32(1))
        ranks = self._ranked(TOLD * np.abs(slopes), self.grid + way)
        before: Array | None = None
        for _ in range(looks):
            at = np.nonzero((ranks > 0) & (ranks == _largest_around(ranks, 2 * NEAR)))
            if not len(at[0]) or enough():
                return
            if before is None:
                before = self._costs()
            ranks[at] = 0
            self.grid[at] += way[at]
            after = self._costs()
            more = np.sum([after[place] - before[place] for place in _places_around(at)], 0)
            pays = more < 0
            back, moved = (tuple(axis[which] for axis in at) for which in (~pays, pays))
            self.grid[back] -= way[back]
            for place in _places_around(moved):
                before[place] = after[place]
            self.step.put(self.extent, self.level, self.grid)
            if -more[pays].sum() < LITTLE * before.sum():
                return

    def _ranked(self, gains: Array, moved: Array) -> Array:
        """int32 [h, w]: moves that could pay, the one that gains most last; 0 for all others."""
        loss = LOST * self.lmbda
        possible = (moved >= LEAST) & (moved <= LARGEST) & (gains > NEARLY * loss)
        for axis in (0, 1):
            begin, end = self.extent.span(axis, self.level)
            lines = np.moveaxis(possible, axis, 0)
            if begin:  # as what is beyond it is not judged here
                lines[:NEAR] = False
            if end << self.level < self.extent.picture[axis]:
                lines[-NEAR:] = False
        ranks = np.zeros(gains.shape, np.int32)
        where = np.flatnonzero(possible)
        order = np.argsort(gains.reshape(-1)[where], kind="stable")
        ranks.reshape(-1)[where[order]] = np.arange(1, len(where) + 1)
        return ranks

    def _costs(self) -> Array:
        """float64 [h, w], with NEAR zeros around them: what each latent's bits and pixels cost."""
        self.step.put(self.extent, self.level, self.grid)
        errors, bits = self.step.costs(self.extent, self.flat)
        errors = _block_sums(errors, 2**self.level)
        found = bits[self.level].astype(np.float64) * self.lmbda + errors / self.step.channels
        return np.pad(found, NEAR)


def _block_sums(values: Array, side: int) -> Array:
    """Sums over blocks of a side, the last of which may be less high or wide."""
    height, width = (-(-size // side) for size in values.shape)
    whole = np.zeros((height * side, width * side), values.dtype)
    whole[: values.shape[0], : values.shape[1]] = values
    rows = whole.reshape(height, side, width * side).sum(1)
    found: Array = rows.reshape(height, width, side).sum(2)
    return found


def _places_around(at: tuple[Array, ...]) -> list[tuple[Array, ...]]:
    """Of places [n] in rows and columns those within NEAR, in what has NEAR zeros around it."""
    rows, columns = at
    return [(rows + y, columns + x) for y, x in product(range(2 * NEAR + 1), repeat=2)]


def _largest_around(values: Array, apart: int) -> Array:
    """The largest of [h, w] not further than so many rows and columns away from each."""
    for axis in (0, 1):
        lines = np.moveaxis(values, axis, 0)
        found = np.pad(lines, [(apart, apart), (0, 0)])
        seen, all_seen = 1, 2 * apart + 1
        while seen < all_seen:
            further = min(seen, all_seen - seen)
            found = np.maximum(found[:-further], found[further:])
            seen += further
        values = np.moveaxis(found, 0, axis)
    return values
