"""Rate-distortion optimised quantisation: which moves of latents are tried, and which stay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from latent_steps import Array, draw

from imgmlp.codec.latent.model import MAX_LATENT, MIN_LATENT
from imgmlp.codec.latent.plane import Extent, Plane
from imgmlp.codec.latent.training import rdoq
from imgmlp.codec.latent.training.rdoq import MAX_LEVELS, NEIGHBOURHOOD, NO_BUDGET, Budget

Place = tuple[int, ...]  # row and column


class QuadraticStep:
    """A step without networks, whose latents do not interact.

    A latent costs the square of its distance from its best value: once in errors, and
    `bit_weights` times in bits. All of its error is in the last of its pixels.
    """

    levels, channels = 4, 2

    def __init__(self, best: list[Array], window: tuple[int, int] | None = None) -> None:
        self.best, self.flat = best, np.zeros(0, np.float32)
        height, width = best[0].shape
        rows, columns = window or (height, width)
        plane = Plane.of(rows, columns, len(best), 4 if window else 0)
        self.windows = [
            Extent(plane, (height, width), (top, left), (rows, columns), plane.halo)
            for top, left in itertools.product(range(0, height, rows), range(0, width, columns))
        ]
        self.now = [np.zeros_like(grid) for grid in best]
        self.bit_weights = [np.ones_like(grid) for grid in best]
        self.slopes: list[Array] | None = None  # replaces the true slopes if set
        self.puts: list[tuple[int, Array]] = []  # level and latents
        self.judged = self.asked = 0

    def grids(self) -> list[Array]:
        return self.now

    def put(self, extent: Extent, level: int, values: Array) -> None:
        extent.cut(self.now)[level][:] = values
        self.puts.append((level, values.copy()))

    def latent_slopes(self, extent: Extent, flat: Array, lmbda: float) -> list[Array]:
        assert flat is self.flat
        self.asked += 1
        made = zip(self.now, self.best, self.bit_weights, strict=True)
        true = [2 * (now - best) * (1 + lmbda * bit_weights) for now, best, bit_weights in made]
        return extent.cut(self.slopes or true)

    def costs(self, extent: Extent, flat: Array) -> tuple[Array, list[Array]]:
        assert flat is self.flat
        self.judged += 1
        errors = np.zeros_like(self.now[0])
        for level, squared_distances in enumerate(self.squared_distances()):
            last = [
                np.minimum((np.arange(n) + 1) << level, end) - 1
                for n, end in zip(squared_distances.shape, errors.shape, strict=True)
            ]
            errors[np.ix_(*last)] += self.channels * squared_distances
        rows, columns = (slice(*extent.span(axis, 0)) for axis in (0, 1))
        bits = [
            bit_weights * squared_distances
            for bit_weights, squared_distances in zip(
                self.bit_weights, self.squared_distances(), strict=True
            )
        ]
        return errors[rows, columns], extent.cut(bits)

    def squared_distances(self) -> list[Array]:
        return [(now - best) ** 2 for now, best in zip(self.now, self.best, strict=True)]

    def total(self) -> float:
        made = zip(self.squared_distances(), self.bit_weights, strict=True)
        return sum(
            float((squared_distances * (1 + BIT_LMBDA * bit_weights)).sum())
            for squared_distances, bit_weights in made
        )

    def move(self, budget: Budget, enough: Callable[[], bool] = lambda: False) -> None:
        step: Any = self
        rdoq.optimise(step, self.flat, BIT_LMBDA, budget, enough)

    def tried_places(self, level: int) -> list[list[Place]]:
        """Places that each look at a grid tried, of one window and sweep: what is put there is
        what there was, and then by turns what is tried and what stays."""
        own = [values for n, values in self.puts if n == level]
        tried = zip(own[::2], own[1::2], strict=False)
        return [list(map(tuple, np.argwhere(a != b).tolist())) for a, b in tried]


BIT_LMBDA = 0.1  # lambda of a bit in a QuadraticStep


UNLIMITED_TRIALS = Budget(1, 1000)  # one sweep, until no move is left to try


def optimal_grids(
    height: int, width: int, most: int = 2, levels: int = QuadraticStep.levels
) -> list[Array]:
    generator = np.random.default_rng(0)
    sizes = [(-(-height // 2**n), -(-width // 2**n)) for n in range(levels)]
    return [generator.integers(-most, most + 1, size).astype(np.float32) for size in sizes]


def is_near_another_window(extent: Extent, level: int, place: Place) -> bool:
    """Whether a latent of a window is within NEIGHBOURHOOD of latents of another window."""
    for axis, at in enumerate(place):
        begin, end = extent.span(axis, level)
        run = -(-extent.picture[axis] // 2**level)
        if (begin > 0 and at - begin < NEIGHBOURHOOD) or (
            end < run and end - 1 - at < NEIGHBOURHOOD
        ):
            return True
    return False


def neighbourhood(place: Place, distance: int) -> tuple[slice, ...]:
    """Index an array by all places at most `distance` away in either axis."""
    return tuple(slice(max(0, at - distance), at + distance + 1) for at in place)


@pytest.fixture
def no_minimum_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials go on however little the last one saved."""
    monkeypatch.setattr(rdoq, "MIN_SAVING", 0.0)


@pytest.mark.parametrize("window", [None, (16, 16), (8, 24)])
def test_latents_move_to_lower_cost_except_at_inner_window_borders(
    window: tuple[int, int] | None,
) -> None:
    """Costs beyond inner borders are not judged; beyond the picture's borders there are none."""
    step = QuadraticStep(optimal_grids(37, 45), window)
    step.move(UNLIMITED_TRIALS)
    expected = [np.zeros_like(grid) for grid in step.best]
    for extent in step.windows:
        for level, grid in enumerate(expected):
            for place in itertools.product(*(range(*extent.span(n, level)) for n in (0, 1))):
                if not is_near_another_window(extent, level, place):
                    grid[place] = np.sign(step.best[level][place])
    assert all(map(np.array_equal, step.now, expected))
    assert all(grid[0].any() and grid[-1].any() for grid in step.now[:2])
    step.move(UNLIMITED_TRIALS)  # with a new gradient
    for now, once, best in zip(step.now, expected, step.best, strict=True):
        assert np.array_equal(now, np.where(once != 0, best, 0))


def test_every_sweep_computes_its_own_gradient() -> None:
    twice, once = (QuadraticStep(optimal_grids(21, 30)) for _ in range(2))
    twice.move(Budget(2, 1000))
    for _ in range(2):
        once.move(UNLIMITED_TRIALS)
    assert all(map(np.array_equal, twice.now, twice.best))
    assert [values.tobytes() for _, values in twice.puts] == [v.tobytes() for _, v in once.puts]
    assert twice.asked == 2


@pytest.mark.usefixtures("no_minimum_saving")
def test_each_move_is_tried_once_together_with_independent_ones() -> None:
    """Moves with the largest predicted gain in their neighbourhood come first."""
    step, generator = QuadraticStep(optimal_grids(21, 30, most=9)), np.random.default_rng(1)
    step.slopes = [generator.standard_normal(grid.shape) for grid in step.best]
    step.move(UNLIMITED_TRIALS)
    for level, slopes in enumerate(map(np.abs, step.slopes)):
        gains = np.where(
            rdoq.GAIN_FACTOR * slopes > rdoq.MIN_GAIN_TO_LOSS * rdoq.LOSS_FACTOR * BIT_LMBDA,
            slopes,
            0,
        )
        first = [
            p for p in np.ndindex(*gains.shape) if 0 < gains[p] == gains[neighbourhood(p, 4)].max()
        ]
        tried_places = step.tried_places(level)
        assert tried_places[0] == first
        for places in tried_places:
            for one, other in itertools.combinations(np.array(places), 2):
                assert np.abs(one - other).max() >= 2 * NEIGHBOURHOOD + 1
        tried = [place for places in tried_places for place in places]
        assert sorted(tried) == [p for p in np.ndindex(*gains.shape) if gains[p]]
    assert len(step.tried_places(0)[0]) > 5


@pytest.mark.usefixtures("no_minimum_saving")
def test_moves_that_raise_the_cost_are_undone() -> None:
    """Each move is judged by the costs around it since the last move there."""
    step, generator = QuadraticStep(optimal_grids(37, 45, most=3)), np.random.default_rng(2)
    step.slopes = [3 + generator.random(grid.shape) for grid in step.best]
    step.slopes = [slopes * generator.choice([-1, 1], slopes.shape) for slopes in step.slopes]
    step.move(UNLIMITED_TRIALS)
    for now, best, slopes in zip(step.now, step.best, step.slopes, strict=True):
        way = -np.sign(slopes)
        assert np.array_equal(now, np.where(np.sign(best) == way, way, 0))


@pytest.mark.usefixtures("no_minimum_saving")
def test_move_stays_only_if_error_plus_lambda_times_bits_falls() -> None:
    """A move that leaves the cost unchanged is undone as well."""
    step = QuadraticStep([np.ones_like(grid) for grid in optimal_grids(21, 30)])
    step.bit_weights = [
        np.random.default_rng(n).choice(np.float32([-12, -11, -9, -8]), grid.shape)
        for n, grid in enumerate(step.best)
    ]
    step.slopes = [
        np.full(grid.shape, -9.0) for grid in step.best
    ]  # which predict that all moves pay
    step.move(UNLIMITED_TRIALS)
    for now, bit_weights in zip(step.now, step.bit_weights, strict=True):
        assert np.array_equal(now, bit_weights > -1 / BIT_LMBDA)
    same = QuadraticStep([np.full_like(grid, 0.5) for grid in step.best])
    same.slopes = step.slopes
    same.move(UNLIMITED_TRIALS)
    assert same.judged > 0
    assert not any(grid.any() for grid in same.now)


def test_moves_with_too_small_a_predicted_gain_are_not_tried() -> None:
    step = QuadraticStep([np.ones_like(grid) for grid in optimal_grids(21, 30)])
    least = rdoq.MIN_GAIN_TO_LOSS * rdoq.LOSS_FACTOR * BIT_LMBDA / rdoq.GAIN_FACTOR
    step.slopes = [
        -least * np.random.default_rng(n).choice([0.99, 1.01], grid.shape)
        for n, grid in enumerate(step.best)
    ]
    step.move(UNLIMITED_TRIALS)
    for now, slopes in zip(step.now, step.slopes, strict=True):
        assert np.array_equal(now, slopes < -least)
    judged = step.judged
    step.slopes = [np.full(grid.shape, 0.99 * least) for grid in step.best]
    step.move(UNLIMITED_TRIALS)
    assert step.judged == judged  # nothing was tried


def test_moved_latents_stay_within_the_codable_range() -> None:
    step = QuadraticStep([np.where(grid < 0, -99, 99) for grid in optimal_grids(21, 30)])
    step.now = [np.sign(best).astype(np.float32) * 61 for best in step.best]
    step.move(Budget(9, 1000))
    for now, best in zip(step.now, step.best, strict=True):
        assert np.array_equal(now, np.where(best < 0, MIN_LATENT, MAX_LATENT))


def test_only_the_finest_grids_are_moved_coarsest_first() -> None:
    best = [np.ones_like(grid) for grid in optimal_grids(64, 33, levels=7)]
    step = QuadraticStep(best)
    step.levels = 7
    step.move(UNLIMITED_TRIALS)
    assert [bool(grid.any()) for grid in step.now] == [True] * MAX_LEVELS + [False] * (
        7 - MAX_LEVELS
    )
    levels = [level for level, _ in step.puts]
    assert levels == sorted(levels, reverse=True)
    few = QuadraticStep(best[:2] + best[-1:])  # the last grid holds hyperlatents
    few.levels = 2
    few.move(UNLIMITED_TRIALS)
    assert [bool(grid.any()) for grid in few.now] == [True, True, False]


@pytest.mark.parametrize("budget", [NO_BUDGET, Budget(0, 9), Budget(9, 0)])
def test_empty_budget_moves_nothing(budget: Budget) -> None:
    step = QuadraticStep(optimal_grids(21, 30))
    step.move(budget)
    assert (step.puts, step.judged) == ([], 0)
    assert not any(grid.any() for grid in step.now)


@pytest.mark.usefixtures("no_minimum_saving")
def test_number_of_judgements_equals_that_of_the_budget() -> None:
    """Every trial has moves left here."""
    best = [9 + abs(draw(*grid.shape)) for grid in optimal_grids(200, 200, levels=MAX_LEVELS)]
    for budget in (Budget(1, 1), Budget(1, 4), Budget(3, 2)):
        step = QuadraticStep(best)
        step.levels = MAX_LEVELS
        step.move(budget)
        assert step.judged == budget.judged, budget
    assert NO_BUDGET.judged == 0


@pytest.mark.parametrize(("fraction", "trials"), [(0.99, 3), (1.01, 1)])
def test_grid_is_abandoned_after_a_trial_that_saves_almost_nothing(
    fraction: float, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three places in the finest grid, the first saves about MIN_SAVING of the cost."""
    step = QuadraticStep([np.zeros_like(grid) for grid in optimal_grids(21, 30)])
    step.slopes = [np.zeros_like(grid) for grid in step.best]
    step.best[3][0] = 100  # a large cost that stays
    for column, slope in enumerate((-9, -8, -7)):
        step.best[0][5, column], step.slopes[0][5, column] = 1, slope
    cost_after_move = float((step.best[3] ** 2).sum()) + 2 * (1 + BIT_LMBDA)  # after the first move
    monkeypatch.setattr(rdoq, "MIN_SAVING", fraction * (1 + BIT_LMBDA) / cost_after_move)
    step.move(UNLIMITED_TRIALS)
    assert step.now[0][5, :3].tolist() == [1, 1, 1][:trials] + [0] * (3 - trials)
    assert len(step.tried_places(0)) == trials


def true_after(calls: int) -> Callable[[], bool]:
    """A stop condition that is false for a number of calls, then true."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


@pytest.mark.parametrize("window", [None, (16, 16)])
def test_stop_request_ends_rdoq_at_once_without_half_tried_moves(
    window: tuple[int, int] | None,
) -> None:
    """Whenever it comes, only moves that lower the cost stay, and more calls never cost more."""
    calls, totals = list[int](), list[float]()
    for most in range(40):
        step, generator = QuadraticStep(optimal_grids(21, 30), window), np.random.default_rng(0)
        step.slopes = [9 * generator.standard_normal(grid.shape) for grid in step.best]
        step.move(Budget(1, 5), true_after(most))
        for now, best, slopes in zip(step.now, step.best, step.slopes, strict=True):
            assert (now[now != 0] == -np.sign(slopes)[now != 0]).all()
            assert (now[now != 0] == np.sign(best)[now != 0]).all()
        calls.append(step.judged)
        totals.append(step.total())
    assert calls[:2] == [0, 0]
    assert calls == sorted(calls)
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] < totals[1] == totals[0]


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (13, 7), (30, 31)])
@pytest.mark.parametrize("apart", [0, 1, 2, 4])
def test_largest_around_equals_a_plain_loop(size: tuple[int, int], apart: int) -> None:
    values = np.random.default_rng(0).integers(0, 99, size).astype(np.int32)
    result = rdoq._largest_around(values, apart)
    expected = [values[neighbourhood(place, apart)].max() for place in np.ndindex(*size)]
    assert result.dtype == np.int32
    assert np.array_equal(result, np.reshape(expected, size))


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (21, 30), (16, 17)])
@pytest.mark.parametrize("side", [1, 2, 8, 32])
def test_block_sums_equal_a_plain_loop(size: tuple[int, int], side: int) -> None:
    values = np.random.default_rng(0).random(size).astype(np.float32)
    result = rdoq._block_sums(values, side)
    expected = np.zeros([-(-n // side) for n in size])
    for y, x in np.ndindex(*size):
        expected[y // side, x // side] += values[y, x]
    assert result.shape == expected.shape
    assert np.allclose(result, expected, rtol=1e-5)


def test_places_around_are_the_neighbourhood_in_a_padded_array() -> None:
    framed = np.pad(np.ones((3, 4)), NEIGHBOURHOOD)
    at = np.array([0, 2]), np.array([3, 1])
    result = rdoq._places_around(at)
    for n, (row, column) in enumerate(zip(*at, strict=True)):
        own = [(int(rows[n]), int(columns[n])) for rows, columns in result]
        expected = np.zeros(framed.shape, bool)
        expected[neighbourhood((row + NEIGHBOURHOOD, column + NEIGHBOURHOOD), NEIGHBOURHOOD)] = True
        assert sorted(own) == list(map(tuple, np.argwhere(expected).tolist()))
