"""Whole latents that are moved by one: what each costs, which are tried, and what files have."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_training_step
from conftest import small_pixels
from latent_steps import draw, grids_of
from test_training_step import bits_of, maps_above, reference
from test_windows import picture

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.encoder import Encoded, encode
from imgmlp.codec.latent.model import MAX_LATENT, MIN_LATENT, Quantized
from imgmlp.codec.latent.plane import Extent, Plane
from imgmlp.codec.latent.step import architecture
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.step.parameters import flat_of
from imgmlp.codec.latent.training import effort, rdoq, rounding_search
from imgmlp.codec.latent.training.bit_allocation import Search
from imgmlp.codec.latent.training.buckets import Bucket
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.rdoq import MAX_LEVELS, NEIGHBOURHOOD, NO_BUDGET, Budget
from imgmlp.codec.latent.training.rounding_search import Refining, Rounding
from imgmlp.codec.latent.training.windows import WindowedStep, WindowStep
from imgmlp.codec.training import passes
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Kind, Workload
from imgmlp.engine import AnyDevice, compile, open_device
from imgmlp.errors import Interrupted
from imgmlp.image import Picture

Array = np.ndarray[Any, Any]
Place = tuple[int, ...]  # row and column

STARTED = Architecture(16, 12, pretrained=4)
LMBDA = 1e-3


def whole(pixels: Array, bucket: Bucket = None, **sizes: Any) -> LatentStep:
    """With latents that are not rounded, and networks that are no start's."""
    return filled(LatentStep(pixels, 0, open_device("numpy"), replace(STARTED, **sizes), bucket))


def parted(pixels: Array, window: tuple[int, int], **sizes: Any) -> WindowedStep:
    """The same in windows."""
    made = WindowedStep(pixels, 0, open_device("numpy"), replace(STARTED, **sizes), window=window)
    filled(made)
    return made


def filled(step: LatentStep) -> LatentStep:
    step.write_grids([2 * draw(*size, seed=n) for n, size in enumerate(step.shape.grid_sizes)])
    step.flat.write(step.flat.numpy() + np.float32(0.02) * draw(*step.flat.shape))
    return step


@pytest.fixture
def four_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """With which a window may be as small as 8 pixels high."""
    monkeypatch.setattr(architecture, "default_levels", lambda *_: 4)


def put_together(step: LatentStep, flat: Array) -> tuple[Array, list[Array]]:
    """What all windows cost, each where it is in the picture."""
    errors = np.full((step.height, step.width), np.nan, np.float32)
    bits = [np.full(size, np.nan, np.float32) for size in step.shape.grid_sizes]
    for extent in step.windows:
        own, of_latents = step.costs(extent, flat)
        rows, columns = (slice(*extent.span(axis, 0)) for axis in (0, 1))
        errors[rows, columns] = own
        for part, values in zip(extent.cut(bits), of_latents, strict=True):
            part[:] = values
    return errors, bits


def total(step: LatentStep, flat: Array, lmbda: float = LMBDA) -> float:
    """D + lambda R, summed over pixels, as what networks are judged by has it."""
    error, rate = step.judge(flat)
    return (error * step.visible_fraction + lmbda * rate) * step.pixels


# --- what latents and pixels cost ---


@pytest.mark.parametrize(
    ("size", "channels", "has"),
    [
        ((66, 70), 3, {}),
        ((20, 130), 4, {"has_hyperlatents": True}),
        ((66, 70), 3, {"extra_grids": 2}),
    ],
)
def test_costs_are_parts_of_what_is_judged_in_windows_as_in_the_whole_picture(
    size: tuple[int, int], channels: int, has: dict[str, Any]
) -> None:
    pixels = picture(*size, channels)
    step, windows = whole(pixels, **has), parted(pixels, (64, 64), **has)
    flat, found = step.flat.numpy(), list[list[Array]]()
    assert len(windows.windows) in (3, 4)
    assert (step.visible_fraction < 1) is (channels == 4)
    for each in (step, windows):
        errors, bits = put_together(each, flat)
        error, rate = each.judge(flat)
        samples = each.pixels * channels * each.visible_fraction
        assert errors.sum(dtype=np.float64) == pytest.approx(error * samples, rel=1e-5)
        own = sum(float(part.sum(dtype=np.float64)) for part in bits)
        assert own == pytest.approx(rate * each.pixels, rel=1e-5)
        found.append([errors, *bits])
    assert len(found[0]) == 1 + step.levels + len(step.shape.additional_levels)
    for one, other in zip(*found, strict=True):
        assert np.allclose(one, other, rtol=1e-3, atol=1e-4)


# Either form of a step by kernels of the one mapping, and by the instructions of the other.
MAPPED = [
    *[("one", "whole"), ("numpy:uops-group", "whole"), ("numpy:procedure", "whole")],
    *[("group", "in windows"), ("numpy:uops", "in windows")],
]


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize(("device", "form"), MAPPED, indirect=["device"])
def test_costs_and_slopes_are_those_of_numpy_on_every_device(device: AnyDevice, form: str) -> None:
    pixels, found = picture(20, 28), list[list[Array]]()
    for each in (open_device("numpy"), device):
        step: LatentStep
        if form == "whole":
            step = filled(LatentStep(pixels, 0, each, STARTED))
        else:
            step = filled(WindowedStep(pixels, 0, each, STARTED, window=(16, 16)))
        flat, values = step.flat.numpy(), list[Array]()
        for extent in step.windows:
            values += step.latent_slopes(extent, flat, LMBDA)
            errors, bits = step.costs(extent, flat)
            values += [errors, *bits]
        found.append([part.copy() for part in values])
    for one, other in zip(*found, strict=True):
        assert np.allclose(one, other, rtol=1e-2, atol=2e-3 * np.abs(one).max())


@pytest.mark.parametrize("extra", [0, 2])
def test_a_room_for_more_changes_neither_costs_nor_slopes(extra: int) -> None:
    """Nor what is around a window."""
    pixels, found, bucket = picture(20, 28), list[list[Array]](), (32, 64)
    steps = [whole(pixels, one, extra_grids=extra) for one in (None, bucket)]
    architecture = steps[0].architecture
    steps.append(filled(WindowStep(pixels, 0, open_device("numpy"), architecture, bucket)))
    for step in steps:
        flat, (extent,) = step.flat.numpy(), step.windows
        errors, bits = step.costs(extent, flat)
        found.append([errors, *bits, *step.latent_slopes(extent, flat, LMBDA)])
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            assert np.allclose(one, same, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("has", [{}, {"has_hyperlatents": True}, {"extra_grids": 2}])
def test_bits_of_a_latent_stand_where_it_does(has: dict[str, Any]) -> None:
    """As plain NumPy has them; those of hyperlatents and extra grids behind those of levels."""
    step = whole(picture(12, 40), **has)
    flat = step.flat.numpy()
    _, bits = step.costs(step.windows[0], flat)
    every = np.split(
        flat.astype(np.float64), np.cumsum([math.prod(s) for s in step.parameter_shapes.tensors])
    )
    layers = [a.reshape(s) for a, s in zip(every, step.parameter_shapes.tensors, strict=False)][
        10:16
    ]
    grids = [np.floor(grid.astype(np.float64) + 0.5) for grid in step.grids()]
    seen, own = grids[: step.levels], grids[step.levels :]
    for n, (grid, found) in enumerate(zip(grids, bits, strict=True)):
        above = np.zeros((3, *grid.shape))
        if step.shape.has_hyperlatents and n < len(seen):
            above = maps_above(own, seen, n)
        assert np.allclose(found, bits_of(grid, layers, above), rtol=1e-3, atol=1e-3), n


def test_an_error_stands_where_its_pixel_does() -> None:
    pixels = picture(21, 30)
    other = pixels.copy()
    other[13, 27] ^= 64
    (errors, _), (found, _) = (
        step.costs(step.windows[0], step.flat.numpy()) for step in map(whole, (pixels, other))
    )
    assert [tuple(place) for place in np.argwhere(errors != found)] == [(13, 27)]
    assert errors.shape == (21, 30)


def test_costs_are_those_of_the_networks_that_are_given() -> None:
    """And of latents as they were put last."""
    step = whole(picture(21, 30))
    flat, (extent,) = step.flat.numpy(), step.windows
    before = put_together(step, flat)
    errors, bits = step.costs(extent, (flat * np.float32(1.1)).astype(np.float32))
    assert not np.allclose(errors, before[0])
    assert not np.allclose(bits[0], before[1][0])
    grids = step.grids()
    step.put(extent, 1, grids[1] + 3)
    assert np.array_equal(step.grids()[1], grids[1] + 3)
    assert all(np.array_equal(*both) for both in zip(step.grids()[2:], grids[2:], strict=True))
    assert not np.allclose(step.costs(extent, flat)[1][1], before[1][1])


@pytest.mark.usefixtures("four_grids")
def test_what_is_put_into_a_window_is_seen_around_it() -> None:
    step = parted(picture(20, 28), (16, 16))
    flat, extent = step.flat.numpy(), step.windows[0]
    grids = [grid.copy() for grid in step.grids()]
    before = [step.costs(window, flat) for window in step.windows]
    step.put(extent, 0, np.full((16, 16), 9, np.float32))
    assert (step.grids()[0][:16, :16] == 9).all()
    grids[0][:16, :16] = 9
    assert all(map(np.array_equal, step.grids(), grids))
    for (old, _), window in zip(before, step.windows, strict=True):
        assert not np.allclose(step.costs(window, flat)[0], old)


# --- the gradient ---


def differs(step: LatentStep, ways: list[Array], slopes: list[Array], loss: Any) -> None:
    """Check slopes by latents of all grids against differences of a loss of grids."""
    grids = [np.floor(grid.astype(np.float64) + 0.5) for grid in step.grids()]
    up, down = (
        loss([g + sign * way for g, way in zip(grids, ways, strict=True)]) for sign in (1e-6, -1e-6)
    )
    found = sum(float((s.astype(np.float64) * w).sum()) for s, w in zip(slopes, ways, strict=True))
    assert found == pytest.approx((up - down) / 2e-6, rel=2e-3)


@pytest.mark.parametrize(
    ("sizes", "lmbda"),
    [
        ({}, 1e-4),
        ({}, 3e-2),
        ({"bucket": (32, 48)}, 3e-2),
        ({"has_hyperlatents": True}, 1e-3),
        ({"extra_grids": 2}, 1e-3),
    ],
)
def test_slopes_by_latents_are_differences_of_what_rounded_ones_cost(
    sizes: dict[str, Any], lmbda: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each grid's by itself, in float64 and value by value."""
    monkeypatch.setattr(test_training_step, "softened", lambda x: x)
    pixels = picture(12, 40) if "has_hyperlatents" in sizes else picture(21, 30)
    step = whole(pixels, **sizes)
    flat = step.flat.numpy() * np.float32(0.9)  # not those that it has
    slopes = step.latent_slopes(step.windows[0], flat, lmbda)
    assert [part.shape for part in slopes] == list(step.shape.grid_sizes)

    def loss(grids: list[Array]) -> float:
        return reference(step, pixels, grids, flat.astype(np.float64), lmbda)

    for level, size in enumerate(step.shape.grid_sizes):
        ways = [np.zeros(each) for each in step.shape.grid_sizes]
        ways[level] = np.sign(slopes[level]) + 0.5 * draw(*size, seed=9)
        differs(step, ways, slopes, loss)


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("number", range(4))
def test_slopes_in_a_window_are_differences_of_what_its_own_part_costs(number: int) -> None:
    """By its own latents; others stand still."""
    step, lmbda = parted(picture(20, 28), (16, 16)), 1e-2
    extent, flat = step.windows[number], step.flat.numpy() * np.float32(0.9)
    slopes = step.latent_slopes(extent, flat, lmbda)
    step.write_grids([np.floor(grid + np.float32(0.5)) for grid in step.grids()])
    step.flat.write(flat)
    step._enter(extent)
    plane, own = step.latents.numpy(), extent.value_mask()

    def summed() -> dict[str, Any]:
        errors, bits = step._forward(step.latents, step.flat)
        return {"cost": errors.sum() * (1 / step.channels) + bits.sum() * lmbda}

    program, costs = compile(summed, step.device), list[float]()
    way = 0.5 * draw(*plane.shape) * own
    for part, slope in zip(extent.parts(way), slopes, strict=True):
        part += np.sign(slope)
    for sign in (2e-3, -2e-3):
        step.latents.write((plane + np.float32(sign) * way).astype(np.float32))
        program.run()
        costs.append(float(program.read("cost")))
    found = sum(
        float((s * w).sum(dtype=np.float64)) for s, w in zip(slopes, extent.parts(way), strict=True)
    )
    assert found == pytest.approx((costs[0] - costs[1]) / 4e-3, rel=1e-2)


def test_slopes_are_by_latents_as_they_are_rounded() -> None:
    step = whole(picture(21, 30))
    flat, (extent,) = step.flat.numpy(), step.windows
    found = step.latent_slopes(extent, flat, LMBDA)
    step.write_grids([np.floor(grid + np.float32(0.5)) for grid in step.grids()])
    for one, other in zip(found, step.latent_slopes(extent, flat, LMBDA), strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-5 * float(np.abs(other).max()))


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_a_step_goes_on_as_if_nobody_had_asked_for_slopes_and_costs(form: str) -> None:
    """Latents, networks, moments, and the count that noise is drawn by; steered as it was."""
    pixels, found = picture(20, 28), list[dict[str, Array]]()
    for asked in (False, True):
        step = whole(pixels) if form == "whole" else parted(pixels, (16, 16))
        step.steer(Control(LMBDA))
        step.run(3)
        before = step.state()
        for extent in step.windows if asked else ():
            step.latent_slopes(extent, step.flat.numpy() * np.float32(1.5), 1e-2)
            step.costs(extent, step.flat.numpy() * np.float32(0.5))
        if asked:
            step.slopes(step.flat.numpy() * np.float32(1.5), 1e-2)
        for name, array in step.state().items():
            assert np.array_equal(array, before[name]), name
        step.run(2)
        found.append(step.state())
    for name, array in found[0].items():
        assert np.array_equal(array, found[1][name]), name


# --- which moves are tried, and which stay ---


class Bowls:
    """A step without networks where nothing meets: what a latent costs is the square of how far it
    is from its best value, once in errors and `dear` times in bits.

    All of its error is in the last of its pixels.
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
        self.dear = [np.ones_like(grid) for grid in best]
        self.slopes: list[Array] | None = None  # or those that are true
        self.puts: list[tuple[int, Array]] = []  # level, and latents
        self.judged = self.asked = 0

    def grids(self) -> list[Array]:
        return self.now

    def put(self, extent: Extent, level: int, values: Array) -> None:
        extent.cut(self.now)[level][:] = values
        self.puts.append((level, values.copy()))

    def latent_slopes(self, extent: Extent, flat: Array, lmbda: float) -> list[Array]:
        assert flat is self.flat
        self.asked += 1
        made = zip(self.now, self.best, self.dear, strict=True)
        true = [2 * (now - best) * (1 + lmbda * dear) for now, best, dear in made]
        return extent.cut(self.slopes or true)

    def costs(self, extent: Extent, flat: Array) -> tuple[Array, list[Array]]:
        assert flat is self.flat
        self.judged += 1
        errors = np.zeros_like(self.now[0])
        for level, away in enumerate(self.away()):
            last = [
                np.minimum((np.arange(n) + 1) << level, end) - 1
                for n, end in zip(away.shape, errors.shape, strict=True)
            ]
            errors[np.ix_(*last)] += self.channels * away
        rows, columns = (slice(*extent.span(axis, 0)) for axis in (0, 1))
        bits = [dear * away for dear, away in zip(self.dear, self.away(), strict=True)]
        return errors[rows, columns], extent.cut(bits)

    def away(self) -> list[Array]:
        return [(now - best) ** 2 for now, best in zip(self.now, self.best, strict=True)]

    def total(self) -> float:
        made = zip(self.away(), self.dear, strict=True)
        return sum(float((away * (1 + DEAR * dear)).sum()) for away, dear in made)

    def move(self, budget: Budget, enough: Callable[[], bool] = lambda: False) -> None:
        step: Any = self
        rdoq.optimise(step, self.flat, DEAR, budget, enough)

    def looks(self, level: int) -> list[list[Place]]:
        """Places that each look at a grid tried, of one window and sweep: what is put there is
        what there was, and then by turns what is tried and what stays."""
        own = [values for n, values in self.puts if n == level]
        tried = zip(own[::2], own[1::2], strict=False)
        return [list(map(tuple, np.argwhere(a != b).tolist())) for a, b in tried]


DEAR = 0.1  # lambda of a bit in bowls
UNTIL_NONE = Budget(1, 1000)  # by one gradient, until there is nothing left to try


def best_ones(height: int, width: int, most: int = 2, levels: int = Bowls.levels) -> list[Array]:
    generator = np.random.default_rng(0)
    sizes = [(-(-height // 2**n), -(-width // 2**n)) for n in range(levels)]
    return [generator.integers(-most, most + 1, size).astype(np.float32) for size in sizes]


def beside_another(extent: Extent, level: int, place: Place) -> bool:
    """Whether a latent of a window is within NEIGHBOURHOOD of what belongs to the next one."""
    for axis, at in enumerate(place):
        begin, end = extent.span(axis, level)
        there = -(-extent.picture[axis] // 2**level)
        if (begin > 0 and at - begin < NEIGHBOURHOOD) or (
            end < there and end - 1 - at < NEIGHBOURHOOD
        ):
            return True
    return False


def around(place: Place, apart: int) -> tuple[slice, ...]:
    """What is not further away, in an array of any size."""
    return tuple(slice(max(0, at - apart), at + apart + 1) for at in place)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little a look saves, it is not the last one."""
    monkeypatch.setattr(rdoq, "MIN_SAVING", 0.0)


@pytest.mark.parametrize("window", [None, (16, 16), (8, 24)])
def test_latents_move_to_where_they_cost_less_but_at_inner_borders_of_windows(
    window: tuple[int, int] | None,
) -> None:
    """What is beyond these is not judged with them; beyond the picture's own there is nothing."""
    step = Bowls(best_ones(37, 45), window)
    step.move(UNTIL_NONE)
    wanted = [np.zeros_like(grid) for grid in step.best]
    for extent in step.windows:
        for level, grid in enumerate(wanted):
            for place in itertools.product(*(range(*extent.span(n, level)) for n in (0, 1))):
                if not beside_another(extent, level, place):
                    grid[place] = np.sign(step.best[level][place])
    assert all(map(np.array_equal, step.now, wanted))
    assert all(grid[0].any() and grid[-1].any() for grid in step.now[:2])
    step.move(UNTIL_NONE)  # by a gradient of its own
    for now, once, best in zip(step.now, wanted, step.best, strict=True):
        assert np.array_equal(now, np.where(once != 0, best, 0))


def test_every_sweep_has_a_gradient_of_its_own() -> None:
    twice, once = (Bowls(best_ones(21, 30)) for _ in range(2))
    twice.move(Budget(2, 1000))
    for _ in range(2):
        once.move(UNTIL_NONE)
    assert all(map(np.array_equal, twice.now, twice.best))
    assert [values.tobytes() for _, values in twice.puts] == [v.tobytes() for _, v in once.puts]
    assert twice.asked == 2


@pytest.mark.usefixtures("patient")
def test_moves_are_tried_once_and_with_others_that_they_do_not_meet() -> None:
    """First those that should gain more than any other near them."""
    step, generator = Bowls(best_ones(21, 30, most=9)), np.random.default_rng(1)
    step.slopes = [generator.standard_normal(grid.shape) for grid in step.best]
    step.move(UNTIL_NONE)
    for level, slopes in enumerate(map(np.abs, step.slopes)):
        gains = np.where(
            rdoq.GAIN_FACTOR * slopes > rdoq.MIN_GAIN_TO_LOSS * rdoq.LOSS_FACTOR * DEAR, slopes, 0
        )
        first = [p for p in np.ndindex(*gains.shape) if 0 < gains[p] == gains[around(p, 4)].max()]
        looks = step.looks(level)
        assert looks[0] == first
        for places in looks:
            for one, other in itertools.combinations(np.array(places), 2):
                assert np.abs(one - other).max() >= 2 * NEIGHBOURHOOD + 1
        tried = [place for places in looks for place in places]
        assert sorted(tried) == [p for p in np.ndindex(*gains.shape) if gains[p]]
    assert len(step.looks(0)[0]) > 5


@pytest.mark.usefixtures("patient")
def test_what_a_gradient_told_wrongly_is_put_back_whatever_moves_beside_it() -> None:
    """As each is judged by what is around it since the last move there."""
    step, generator = Bowls(best_ones(37, 45, most=3)), np.random.default_rng(2)
    step.slopes = [3 + generator.random(grid.shape) for grid in step.best]
    step.slopes = [slopes * generator.choice([-1, 1], slopes.shape) for slopes in step.slopes]
    step.move(UNTIL_NONE)
    for now, best, slopes in zip(step.now, step.best, step.slopes, strict=True):
        way = -np.sign(slopes)
        assert np.array_equal(now, np.where(np.sign(best) == way, way, 0))


@pytest.mark.usefixtures("patient")
def test_a_move_stays_where_errors_and_bits_together_are_less() -> None:
    """By channels and lambda; not where they are the same."""
    step = Bowls([np.ones_like(grid) for grid in best_ones(21, 30)])
    step.dear = [
        np.random.default_rng(n).choice(np.float32([-12, -11, -9, -8]), grid.shape)
        for n, grid in enumerate(step.best)
    ]
    step.slopes = [np.full(grid.shape, -9.0) for grid in step.best]  # which say that all pay
    step.move(UNTIL_NONE)
    for now, dear in zip(step.now, step.dear, strict=True):
        assert np.array_equal(now, dear > -1 / DEAR)
    same = Bowls([np.full_like(grid, 0.5) for grid in step.best])
    same.slopes = step.slopes
    same.move(UNTIL_NONE)
    assert same.judged > 0
    assert not any(grid.any() for grid in same.now)


def test_what_could_hardly_pay_is_not_tried() -> None:
    step = Bowls([np.ones_like(grid) for grid in best_ones(21, 30)])
    least = rdoq.MIN_GAIN_TO_LOSS * rdoq.LOSS_FACTOR * DEAR / rdoq.GAIN_FACTOR
    step.slopes = [
        -least * np.random.default_rng(n).choice([0.99, 1.01], grid.shape)
        for n, grid in enumerate(step.best)
    ]
    step.move(UNTIL_NONE)
    for now, slopes in zip(step.now, step.slopes, strict=True):
        assert np.array_equal(now, slopes < -least)
    judged = step.judged
    step.slopes = [np.full(grid.shape, 0.99 * least) for grid in step.best]
    step.move(UNTIL_NONE)
    assert step.judged == judged  # where nothing is tried


def test_latents_stay_within_what_a_file_may_have() -> None:
    step = Bowls([np.where(grid < 0, -99, 99) for grid in best_ones(21, 30)])
    step.now = [np.sign(best).astype(np.float32) * 61 for best in step.best]
    step.move(Budget(9, 1000))
    for now, best in zip(step.now, step.best, strict=True):
        assert np.array_equal(now, np.where(best < 0, MIN_LATENT, MAX_LATENT))


def test_the_finest_grids_are_moved_the_coarsest_of_them_first() -> None:
    best = [np.ones_like(grid) for grid in best_ones(64, 33, levels=7)]
    step = Bowls(best)
    step.levels = 7
    step.move(UNTIL_NONE)
    assert [bool(grid.any()) for grid in step.now] == [True] * MAX_LEVELS + [False] * (
        7 - MAX_LEVELS
    )
    levels = [level for level, _ in step.puts]
    assert levels == sorted(levels, reverse=True)
    few = Bowls(best[:2] + best[-1:])  # of which the last are hyperlatents
    few.levels = 2
    few.move(UNTIL_NONE)
    assert [bool(grid.any()) for grid in few.now] == [True, True, False]


@pytest.mark.parametrize("budget", [NO_BUDGET, Budget(0, 9), Budget(9, 0)])
def test_without_sweeps_or_looks_nothing_moves(budget: Budget) -> None:
    step = Bowls(best_ones(21, 30))
    step.move(budget)
    assert (step.puts, step.judged) == ([], 0)
    assert not any(grid.any() for grid in step.now)


@pytest.mark.usefixtures("patient")
def test_a_picture_is_judged_as_often_as_is_foreseen() -> None:
    """Where there is something to try in each look."""
    best = [9 + abs(draw(*grid.shape)) for grid in best_ones(200, 200, levels=MAX_LEVELS)]
    for budget in (Budget(1, 1), Budget(1, 4), Budget(3, 2)):
        step = Bowls(best)
        step.levels = MAX_LEVELS
        step.move(budget)
        assert step.judged == budget.judged, budget
    assert NO_BUDGET.judged == 0


@pytest.mark.parametrize(("share", "looks"), [(0.99, 3), (1.01, 1)])
def test_a_look_that_saves_next_to_nothing_is_the_last_one(
    share: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its grid: of three places the one that is tried first saves so much and a bit more."""
    step = Bowls([np.zeros_like(grid) for grid in best_ones(21, 30)])
    step.slopes = [np.zeros_like(grid) for grid in step.best]
    step.best[3][0] = 100  # which costs much and stays so
    for column, slope in enumerate((-9, -8, -7)):
        step.best[0][5, column], step.slopes[0][5, column] = 1, slope
    there = float((step.best[3] ** 2).sum()) + 2 * (1 + DEAR)  # after it
    monkeypatch.setattr(rdoq, "MIN_SAVING", share * (1 + DEAR) / there)
    step.move(UNTIL_NONE)
    assert step.now[0][5, :3].tolist() == [1, 1, 1][:looks] + [0] * (3 - looks)
    assert len(step.looks(0)) == looks


def after(calls: int) -> Callable[[], bool]:
    """What is not enough so many times, and then is."""
    left = iter(range(calls))
    return lambda: next(left, None) is None


@pytest.mark.parametrize("window", [None, (16, 16)])
def test_what_is_enough_ends_it_at_once_and_with_nothing_half_tried(
    window: tuple[int, int] | None,
) -> None:
    """Whenever that is: true ones among what was told stay, and no others; all cost less."""
    calls, totals = list[int](), list[float]()
    for most in range(40):
        step, generator = Bowls(best_ones(21, 30), window), np.random.default_rng(0)
        step.slopes = [9 * generator.standard_normal(grid.shape) for grid in step.best]
        step.move(Budget(1, 5), after(most))
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
def test_the_largest_around_is_that_of_a_plain_loop(size: tuple[int, int], apart: int) -> None:
    values = np.random.default_rng(0).integers(0, 99, size).astype(np.int32)
    found = rdoq._largest_around(values, apart)
    wanted = [values[around(place, apart)].max() for place in np.ndindex(*size)]
    assert found.dtype == np.int32
    assert np.array_equal(found, np.reshape(wanted, size))


@pytest.mark.parametrize("size", [(1, 1), (2, 9), (21, 30), (16, 17)])
@pytest.mark.parametrize("side", [1, 2, 8, 32])
def test_sums_over_blocks_are_those_of_a_plain_loop(size: tuple[int, int], side: int) -> None:
    values = np.random.default_rng(0).random(size).astype(np.float32)
    found = rdoq._block_sums(values, side)
    wanted = np.zeros([-(-n // side) for n in size])
    for y, x in np.ndindex(*size):
        wanted[y // side, x // side] += values[y, x]
    assert found.shape == wanted.shape
    assert np.allclose(found, wanted, rtol=1e-5)


def test_places_around_are_those_of_what_has_a_frame() -> None:
    framed = np.pad(np.ones((3, 4)), NEIGHBOURHOOD)
    at = np.array([0, 2]), np.array([3, 1])
    found = rdoq._places_around(at)
    for n, (row, column) in enumerate(zip(*at, strict=True)):
        own = [(int(rows[n]), int(columns[n])) for rows, columns in found]
        wanted = np.zeros(framed.shape, bool)
        wanted[around((row + NEIGHBOURHOOD, column + NEIGHBOURHOOD), NEIGHBOURHOOD)] = True
        assert sorted(own) == list(map(tuple, np.argwhere(wanted).tolist()))


# --- latents of a picture ---


@functools.cache
def _trained() -> tuple[LatentStep, dict[str, Array]]:
    step = LatentStep(picture(21, 30), 0, open_device("numpy"), STARTED)
    LatentTrainer(step, LatentTrainerState(60, LMBDA)).run()
    return step, step.state()


@pytest.fixture
def trained() -> LatentStep:
    """A step that has just been trained, with latents that are not rounded."""
    step, state = _trained()
    step.restore(state)
    return step


def rounded(step: LatentStep) -> LatentStep:
    step.write_grids([grid.astype(np.float32) for grid in grids_of(step)])
    return step


def test_a_latent_that_was_rounded_wrongly_is_moved_back(trained: LatentStep) -> None:
    """Where that costs as much as several bits."""
    step, flat = rounded(trained), trained.flat.numpy()
    rdoq.optimise(step, flat, LMBDA, Budget(3, 8))
    least, grids = total(step, flat), [grid.copy() for grid in step.grids()]
    found = list[bool]()
    for way, place in itertools.product((-1, 1), itertools.product((0, 10, 20), (0, 9, 29))):
        wrong = [grid.copy() for grid in grids]
        wrong[0][place] += way
        step.write_grids(wrong)
        if total(step, flat) - least > 10 * LMBDA:
            rdoq.optimise(step, flat, LMBDA, Budget(1, 4))
            found.append(bool(step.grids()[0][place] == grids[0][place]))
    assert len(found) > 5
    assert sum(found) > 0.8 * len(found)


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_a_picture_costs_less_with_latents_that_moved(form: str) -> None:
    pixels = picture(20, 28, 4)
    step = rounded(whole(pixels) if form == "whole" else parted(pixels, (16, 16)))
    flat, before = step.flat.numpy(), [grid.copy() for grid in step.grids()]
    costs = [total(step, flat)]
    for _ in range(2):
        rdoq.optimise(step, flat, LMBDA, Budget(1, 4))
        costs.append(total(step, flat))
    assert costs[0] > costs[1] > costs[2]
    for grid, old in zip(step.grids(), before, strict=True):
        assert np.abs(grid - old).max() <= 2
        assert np.array_equal(grid, np.rint(grid))
    assert all((grid != old).any() for grid, old in zip(step.grids()[:3], before, strict=False))


def test_neither_coarse_grids_nor_hyperlatents_are_moved() -> None:
    step = rounded(whole(picture(12, 40), has_hyperlatents=True))
    flat, before = step.flat.numpy(), [grid.copy() for grid in step.grids()]
    cost = total(step, flat)
    rdoq.optimise(step, flat, LMBDA, Budget(2, 4))
    assert total(step, flat) < cost
    moved = [bool((grid != old).any()) for grid, old in zip(step.grids(), before, strict=True)]
    assert moved[:3] == [True] * 3
    assert moved[MAX_LEVELS:] == [False] * (len(moved) - MAX_LEVELS)


@pytest.mark.parametrize("size", [(1, 1), (1, 40)])
def test_latents_of_the_smallest_pictures_are_moved_as_well(size: tuple[int, int]) -> None:
    step = rounded(whole(picture(40, 40)[-size[0] :, -size[1] :]))
    flat = step.flat.numpy()
    cost = total(step, flat)
    rdoq.optimise(step, flat, LMBDA, Budget(3, 8))
    assert total(step, flat) < cost


# --- in the search for a file ---


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_a_search_sees_what_networks_cost_with_latents_that_moved(form: str) -> None:
    """Whichever of them it has judged before."""
    pixels = picture(20, 28)
    step = rounded(whole(pixels) if form == "whole" else parted(pixels, (16, 16)))
    search = Search(step)
    networks = search._rounded(search.exponents)
    others = search._rounded(dict.fromkeys(networks, 6))
    before = [search._cost(one, LMBDA) for one in (networks, others)]
    search.optimise_latents(networks, LMBDA, Budget(1, 4))
    found = [search._cost(one, LMBDA) for one in (networks, others)]
    assert found == [Search(step)._cost(one, LMBDA) for one in (networks, others)]
    assert found[0] < before[0]
    assert found[1] != before[1]


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_latents_whose_moves_make_it_worse_are_as_before(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so is what was judged of them."""

    def worse(step: LatentStep, *_: object) -> None:
        for extent, level in itertools.product(step.windows, range(2)):
            step.put(extent, level, extent.cut(step.grids())[level] + 3)

    monkeypatch.setattr(rdoq, "optimise", worse)
    pixels = picture(20, 28)
    step = rounded(whole(pixels) if form == "whole" else parted(pixels, (16, 16)))
    search, grids = Search(step), [grid.copy() for grid in step.grids()]
    networks = search._rounded(search.exponents)
    others = search._rounded(dict.fromkeys(networks, 6))
    before = [search._cost(one, LMBDA) for one in (networks, others)]
    search.optimise_latents(networks, LMBDA, Budget(1, 4))
    assert all(map(np.array_equal, step.grids(), grids))
    monkeypatch.setattr(step, "ask", None)  # as all of it is known
    assert [search._cost(one, LMBDA) for one in (networks, others)] == before


@pytest.mark.usefixtures("four_grids")
def test_moves_stay_that_the_windows_which_networks_are_judged_by_do_not_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As they were where time is over before the others' turn."""
    monkeypatch.setattr("imgmlp.codec.latent.training.windows.JUDGED_PIXELS", 1)
    step = rounded(parted(picture(20, 60), (16, 16)))
    unseen = next(extent for extent in step.windows if extent not in step._judged_windows)
    values = unseen.cut(step.grids())[0] + 1
    monkeypatch.setattr(rdoq, "optimise", lambda *_: step.put(unseen, 0, values))
    search = Search(step)
    search.optimise_latents(search._rounded(search.exponents), LMBDA, Budget(1, 1))
    assert np.array_equal(unseen.cut(step.grids())[0], values)


def test_latents_are_moved_for_the_networks_of_the_file_until_that_is_enough(
    trained: LatentStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[tuple[Any, ...]]()
    monkeypatch.setattr(rdoq, "optimise", lambda *given: made.append(given))
    rounded(trained)
    over = False
    search = Search(trained)
    networks = search._rounded(dict.fromkeys(search.exponents, 5))
    search.optimise_latents(networks, 3e-3, Budget(2, 3), lambda: over)
    ((step, flat, lmbda, budget, enough),) = made
    assert (step, lmbda, budget) == (trained, 3e-3, Budget(2, 3))
    assert np.array_equal(flat, flat_of({n: tensor.floats() for n, tensor in networks.items()}))
    assert not enough()
    over = True
    assert enough()


@pytest.mark.parametrize("exponent", [0, 15])
def test_latents_stay_where_no_file_may_have_the_networks(
    exponent: int, trained: LatentStep
) -> None:
    """As of some that exploded, whose errors may be no numbers."""
    step = rounded(trained)
    search, grids = Search(step), [grid.copy() for grid in step.grids()]
    usual = search._rounded(search.exponents).items()
    networks = {n: Quantized(np.full_like(t.values, 2**28), exponent) for n, t in usual}
    with np.errstate(all="ignore"):
        search.optimise_latents(networks, LMBDA, Budget(1, 2))
    assert all(map(np.array_equal, step.grids(), grids))


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_a_file_has_latents_that_moved_and_others_as_they_were_trained(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before single weights and after them; what did not move may still be rounded inwards."""
    done, refined = list[Any](), Search.refined

    def move(search: Search, networks: Any, lmbda: float, budget: Budget, _: object) -> None:
        step, extent = search.step, search.step.windows[0]
        values = extent.cut(step.grids())[0].copy()
        values[len(done), 7] += 3
        step.put(extent, 0, values)
        done.append((networks, lmbda, budget))

    def refine(search: Search, *given: Any) -> Any:
        done.append(refined(search, *given))
        return done[-1]

    monkeypatch.setattr(Search, "optimise_latents", move)
    monkeypatch.setattr(Search, "refined", refine)
    pixels = picture(20, 28)
    step = whole(pixels) if form == "whole" else parted(pixels, (16, 16))
    given, before = step.grids(), [grid.copy() for grid in step.grids()]
    made = Picture(pixels), Goal("lambda", LMBDA), step, step.device, {}
    found, without = (
        Rounding(*made, refining=each) for each in (Refining(5, budget=Budget(4, 2)), Refining())
    )
    expected = [grid.copy() for grid in grids_of(step)]
    file, _ = found.best(LMBDA)
    (one, *told), networks, (other, *also) = done
    assert told == also == [LMBDA, Budget(4, 2)]
    assert other is networks
    assert one.keys() == other.keys()
    inwards = without._write_rounded(0.3)
    assert not np.array_equal(inwards[0], expected[0])
    for row in (0, 2):
        expected[0][row, 7] += 3
        inwards[0][row, 7] = expected[0][row, 7]  # a whole number, and none nearer to zero
    assert all(map(np.array_equal, file.model.latents, expected))
    assert all(map(np.array_equal, found._write_rounded(0.3), inwards))
    assert all(map(np.array_equal, given, before))  # whoever has them


PIXELS = small_pixels()[:12, :17]


def encoded(steps: int, target: Goal | None = None, run: Run | None = None) -> Encoded:
    wanted, work = target or Goal("lambda", 3e-3), Workload(steps)
    return encode(Picture(PIXELS), wanted, work, open_device("numpy"), run, "latent")


def test_moves_make_a_files_errors_and_bytes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []
    for budget in (NO_BUDGET, Budget(1, 4)):
        monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {1: budget})
        found = encoded(12)
        decoded = decoder.decode(container.parse(found.bytes), open_device("numpy"))
        assert np.array_equal(decoded, found.pixels)
        error = np.mean((decoded - PIXELS.astype(np.float64)) ** 2) / 255**2
        costs.append(error + 3e-3 * 8 * len(found.bytes) / (12 * 17))
    assert costs[1] < costs[0]


@pytest.mark.parametrize(
    ("kind", "asked"), [("lambda", 1.0), ("bytes", rounding_search.MAX_REFINEMENT_TIME)]
)
def test_latents_leave_time_to_come_near_a_target(
    kind: Kind, asked: float, trained: LatentStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[Callable[[], bool]]()
    monkeypatch.setattr(rdoq, "optimise", lambda *given: made.append(given[-1]))
    wanted, enough = Goal(kind, 1e-3 if kind == "lambda" else 60), lambda share: share < 1
    rounding = Rounding(
        Picture(PIXELS),
        wanted,
        trained,
        trained.device,
        {},
        enough,
        Refining(5, budget=Budget(1, 1)),
    )
    rounding._optimise_latents(rounding._search.run(LMBDA), LMBDA)
    assert [enough() for enough in made] == [asked < 1]


def test_files_of_passes_move_latents_as_the_file_before_them_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though runs get longer by passes."""
    made = list[Budget]()
    monkeypatch.setattr(passes, "MAX_PASSES", 1)
    monkeypatch.setattr(rounding_search, "MAX_FILES", 1)
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {1: Budget(1, 1), 13: Budget(2, 2)})
    monkeypatch.setattr(rdoq, "optimise", lambda *given: made.append(given[3]))
    encoded(12, Goal("bytes", 60))
    assert made == [Budget(1, 1)] * 4


def test_a_run_that_stopped_while_latents_moved_gives_the_bytes_of_one_that_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {1: Budget(1, 2)})
    checkpoint, put = Checkpoint(tmp_path / "c", "k"), LatentStep.put
    expected, puts = encoded(8).bytes, list[int]()

    def noted(step: LatentStep, extent: Extent, level: int, values: Array) -> None:
        puts.append(level)
        put(step, extent, level, values)

    monkeypatch.setattr(LatentStep, "put", noted)
    with pytest.raises(Interrupted):
        encoded(8, run=Run(None, lambda: len(puts) > 5, checkpoint=checkpoint))
    found = encoded(8, run=Run(checkpoint=checkpoint))
    assert found.resumed == 8
    assert found.bytes == expected
