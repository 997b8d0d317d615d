"""Rate-distortion optimised quantisation: whole latents moved by one where D + lambda R falls.

Rounding takes the nearest whole number of each latent whatever happens to its neighbours, and for
some latents another number is better. The gradient says which moves could pay. Moves that hardly
influence each other are tried together, and each is judged by what it costs around it, so that one
evaluation of the picture judges hundreds of moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import MAX_LATENT, MIN_LATENT
from imgmlp.codec.latent.plane import Extent
from imgmlp.codec.latent.step.latent_step import LatentStep

Array = np.ndarray[Any, Any]

# A move gains GAIN_FACTOR times what the gradient says, and loses about LOSS_FACTOR times lambda
# since it goes too far. It is tried where the gain is at least MIN_GAIN_TO_LOSS times the loss.
GAIN_FACTOR = 0.85
LOSS_FACTOR = 4.0
MIN_GAIN_TO_LOSS = 0.6
# A round that saves less than this fraction of what errors and a grid's bits cost in a window is
# the last one there.
MIN_SAVING = 3e-5
MAX_LEVELS = 5  # the finest, whose latents are moved; coarser and extra grids bring little
# Latents to either side of a moved one, with their pixels, by which the move is judged. What is
# further away hardly changes, and a larger neighbourhood leaves fewer moves to a round.
NEIGHBOURHOOD = 2


@dataclass(frozen=True)
class Budget:
    """How long better latents are searched for, at most."""

    sweeps: int = 0  # through the picture, each with a gradient of its own
    rounds: int = 0  # of trials in each sweep, for every grid

    @property
    def judged(self) -> int:
        """How often D and R of the whole picture are computed for it."""
        return self.sweeps * MAX_LEVELS * (self.rounds + 1)


NO_BUDGET = Budget()


def optimise(
    step: LatentStep,
    flat: Array,
    lmbda: float,
    budget: Budget,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Move whole latents of a step where that lowers D + lambda R with networks [parameters], until
    `enough` says so."""
    for _, extent in product(range(budget.sweeps), step.windows):
        if enough():
            return
        slopes = step.latent_slopes(extent, flat, lmbda)
        for level in range(min(MAX_LEVELS, step.levels) - 1, -1, -1):
            _Moves(step, extent, flat, lmbda, level).run(slopes[level], budget.rounds, enough)


class _Moves:
    """The moves in one grid of a window."""

    def __init__(
        self, step: LatentStep, extent: Extent, flat: Array, lmbda: float, level: int
    ) -> None:
        self.step, self.extent, self.flat, self.lmbda = step, extent, flat, lmbda
        self.level = level
        self.grid: Array = extent.cut(step.grids())[level].copy()  # [h, w]

    def run(self, slopes: Array, rounds: int, enough: Callable[[], bool]) -> None:
        """Try moves against the gradient [h, w] of D + lambda R, the most promising first."""
        way = np.where(slopes > 0, np.float32(-1), np.float32(1))
        ranks = self._ranked(GAIN_FACTOR * np.abs(slopes), self.grid + way)
        before: Array | None = None
        for _ in range(rounds):
            at = np.nonzero((ranks > 0) & (ranks == _largest_around(ranks, 2 * NEIGHBOURHOOD)))
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
            if -more[pays].sum() < MIN_SAVING * before.sum():
                return

    def _ranked(self, gains: Array, moved: Array) -> Array:
        """Ranks of moves that could pay, int32 [h, w]: the highest gains most, 0 for no move."""
        loss = LOSS_FACTOR * self.lmbda
        possible = (moved >= MIN_LATENT) & (moved <= MAX_LATENT) & (gains > MIN_GAIN_TO_LOSS * loss)
        for axis in (0, 1):
            begin, end = self.extent.span(axis, self.level)
            lines = np.moveaxis(possible, axis, 0)
            if begin:  # what lies beyond the window is not judged here
                lines[:NEIGHBOURHOOD] = False
            if end << self.level < self.extent.picture[axis]:
                lines[-NEIGHBOURHOOD:] = False
        ranks = np.zeros(gains.shape, np.int32)
        where = np.flatnonzero(possible)
        order = np.argsort(gains.reshape(-1)[where], kind="stable")
        ranks.reshape(-1)[where[order]] = np.arange(1, len(where) + 1)
        return ranks

    def _costs(self) -> Array:
        """What each latent's bits and pixels cost: float64 [h, w], padded by NEIGHBOURHOOD."""
        self.step.put(self.extent, self.level, self.grid)
        errors, bits = self.step.costs(self.extent, self.flat)
        errors = _block_sums(errors, 2**self.level)
        found = bits[self.level].astype(np.float64) * self.lmbda + errors / self.step.channels
        return np.pad(found, NEIGHBOURHOOD)


def _block_sums(values: Array, side: int) -> Array:
    """Sums over blocks of a side, the last of which may be less high or wide."""
    height, width = (-(-size // side) for size in values.shape)
    whole = np.zeros((height * side, width * side), values.dtype)
    whole[: values.shape[0], : values.shape[1]] = values
    rows = whole.reshape(height, side, width * side).sum(1)
    found: Array = rows.reshape(height, width, side).sum(2)
    return found


def _places_around(at: tuple[Array, ...]) -> list[tuple[Array, ...]]:
    """The places within NEIGHBOURHOOD of places [n], as indices of an array padded by it."""
    rows, columns = at
    return [(rows + y, columns + x) for y, x in product(range(2 * NEIGHBOURHOOD + 1), repeat=2)]


def _largest_around(values: Array, distance: int) -> Array:
    """The maximum of [h, w] within so many rows and columns of each place."""
    for axis in (0, 1):
        lines = np.moveaxis(values, axis, 0)
        found = np.pad(lines, [(distance, distance), (0, 0)])
        seen, all_seen = 1, 2 * distance + 1
        while seen < all_seen:
            further = min(seen, all_seen - seen)
            found = np.maximum(found[:-further], found[further:])
            seen += further
        values = np.moveaxis(found, 0, axis)
    return values
