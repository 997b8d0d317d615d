"""Rate-distortion optimised quantisation of trained pictures, in searches and in files."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_pixels
from latent_steps import (
    LMBDA,
    PRETRAINED_4,
    Array,
    grids_of,
    patterned_picture,
    round_latents,
    total_cost,
    whole_step,
    windowed_step,
)

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.encoder import Encoded, encode
from imgmlp.codec.latent.model import Quantized
from imgmlp.codec.latent.plane import Extent
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.step.parameters import flat_of
from imgmlp.codec.latent.training import effort, rdoq, rounding_search
from imgmlp.codec.latent.training.bit_allocation import Search
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.rdoq import MAX_LEVELS, NO_BUDGET, Budget
from imgmlp.codec.latent.training.rounding_search import Refining, Rounding
from imgmlp.codec.training import passes
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Kind, Workload
from imgmlp.engine import open_device
from imgmlp.errors import Interrupted
from imgmlp.image import Picture


@functools.cache
def _trained_state() -> tuple[LatentStep, dict[str, Array]]:
    step = LatentStep(patterned_picture(21, 30), 0, open_device("numpy"), PRETRAINED_4)
    LatentTrainer(step, LatentTrainerState(60, LMBDA)).run()
    return step, step.state()


@pytest.fixture
def trained_step() -> LatentStep:
    """A trained step whose latents are not rounded."""
    step, state = _trained_state()
    step.restore(state)
    return step


def test_wrongly_rounded_latents_are_moved_back(trained_step: LatentStep) -> None:
    """Only latents whose wrong rounding costs more than 10 bits are counted."""
    step, flat = round_latents(trained_step), trained_step.flat.numpy()
    rdoq.optimise(step, flat, LMBDA, Budget(3, 8))
    least, grids = total_cost(step, flat), [grid.copy() for grid in step.grids()]
    results = list[bool]()
    for way, place in itertools.product((-1, 1), itertools.product((0, 10, 20), (0, 9, 29))):
        wrong = [grid.copy() for grid in grids]
        wrong[0][place] += way
        step.write_grids(wrong)
        if total_cost(step, flat) - least > 10 * LMBDA:
            rdoq.optimise(step, flat, LMBDA, Budget(1, 4))
            results.append(bool(step.grids()[0][place] == grids[0][place]))
    assert len(results) > 5
    assert sum(results) > 0.8 * len(results)


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_rdoq_lowers_the_cost_of_a_picture(form: str) -> None:
    pixels = patterned_picture(20, 28, 4)
    step = round_latents(whole_step(pixels) if form == "whole" else windowed_step(pixels, (16, 16)))
    flat, before = step.flat.numpy(), [grid.copy() for grid in step.grids()]
    costs = [total_cost(step, flat)]
    for _ in range(2):
        rdoq.optimise(step, flat, LMBDA, Budget(1, 4))
        costs.append(total_cost(step, flat))
    assert costs[0] > costs[1] > costs[2]
    for grid, old in zip(step.grids(), before, strict=True):
        assert np.abs(grid - old).max() <= 2
        assert np.array_equal(grid, np.rint(grid))
    assert all((grid != old).any() for grid, old in zip(step.grids()[:3], before, strict=False))


def test_rdoq_moves_neither_coarse_grids_nor_hyperlatents() -> None:
    step = round_latents(whole_step(patterned_picture(12, 40), has_hyperlatents=True))
    flat, before = step.flat.numpy(), [grid.copy() for grid in step.grids()]
    cost = total_cost(step, flat)
    rdoq.optimise(step, flat, LMBDA, Budget(2, 4))
    assert total_cost(step, flat) < cost
    moved = [bool((grid != old).any()) for grid, old in zip(step.grids(), before, strict=True)]
    assert moved[:3] == [True] * 3
    assert moved[MAX_LEVELS:] == [False] * (len(moved) - MAX_LEVELS)


@pytest.mark.parametrize("size", [(1, 1), (1, 40)])
def test_rdoq_lowers_the_cost_of_the_smallest_pictures(size: tuple[int, int]) -> None:
    step = round_latents(whole_step(patterned_picture(40, 40)[-size[0] :, -size[1] :]))
    flat = step.flat.numpy()
    cost = total_cost(step, flat)
    rdoq.optimise(step, flat, LMBDA, Budget(3, 8))
    assert total_cost(step, flat) < cost


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_search_judges_networks_with_the_moved_latents(form: str) -> None:
    """Costs judged before the move are discarded."""
    pixels = patterned_picture(20, 28)
    step = round_latents(whole_step(pixels) if form == "whole" else windowed_step(pixels, (16, 16)))
    search = Search(step)
    networks = search._rounded(search.exponents)
    others = search._rounded(dict.fromkeys(networks, 6))
    before = [search._cost(one, LMBDA) for one in (networks, others)]
    search.optimise_latents(networks, LMBDA, Budget(1, 4))
    results = [search._cost(one, LMBDA) for one in (networks, others)]
    assert results == [Search(step)._cost(one, LMBDA) for one in (networks, others)]
    assert results[0] < before[0]
    assert results[1] != before[1]


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_latent_moves_that_raise_the_judged_cost_are_undone(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The costs judged before remain valid."""

    def make_worse(step: LatentStep, *_: object) -> None:
        for extent, level in itertools.product(step.windows, range(2)):
            step.put(extent, level, extent.cut(step.grids())[level] + 3)

    monkeypatch.setattr(rdoq, "optimise", make_worse)
    pixels = patterned_picture(20, 28)
    step = round_latents(whole_step(pixels) if form == "whole" else windowed_step(pixels, (16, 16)))
    search, grids = Search(step), [grid.copy() for grid in step.grids()]
    networks = search._rounded(search.exponents)
    others = search._rounded(dict.fromkeys(networks, 6))
    before = [search._cost(one, LMBDA) for one in (networks, others)]
    search.optimise_latents(networks, LMBDA, Budget(1, 4))
    assert all(map(np.array_equal, step.grids(), grids))
    monkeypatch.setattr(step, "ask", None)  # all costs are cached
    assert [search._cost(one, LMBDA) for one in (networks, others)] == before


@pytest.mark.usefixtures("four_grids")
def test_latent_moves_outside_the_judged_windows_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such moves occur where time runs out before the turn of the judged windows."""
    monkeypatch.setattr("imgmlp.codec.latent.training.windows.JUDGED_PIXELS", 1)
    step = round_latents(windowed_step(patterned_picture(20, 60), (16, 16)))
    unseen = next(extent for extent in step.windows if extent not in step._judged_windows)
    values = unseen.cut(step.grids())[0] + 1
    monkeypatch.setattr(rdoq, "optimise", lambda *_: step.put(unseen, 0, values))
    search = Search(step)
    search.optimise_latents(search._rounded(search.exponents), LMBDA, Budget(1, 1))
    assert np.array_equal(unseen.cut(step.grids())[0], values)


def test_rdoq_gets_the_networks_budget_and_stop_condition_of_the_search(
    trained_step: LatentStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[tuple[Any, ...]]()
    monkeypatch.setattr(rdoq, "optimise", lambda *given: calls.append(given))
    round_latents(trained_step)
    over = False
    search = Search(trained_step)
    networks = search._rounded(dict.fromkeys(search.exponents, 5))
    search.optimise_latents(networks, 3e-3, Budget(2, 3), lambda: over)
    ((step, flat, lmbda, budget, enough),) = calls
    assert (step, lmbda, budget) == (trained_step, 3e-3, Budget(2, 3))
    assert np.array_equal(flat, flat_of({n: tensor.floats() for n, tensor in networks.items()}))
    assert not enough()
    over = True
    assert enough()


@pytest.mark.parametrize("exponent", [0, 15])
def test_latents_stay_unmoved_for_networks_that_no_file_can_hold(
    exponent: int, trained_step: LatentStep
) -> None:
    """Exploded networks are an example; their errors may be NaN."""
    step = round_latents(trained_step)
    search, grids = Search(step), [grid.copy() for grid in step.grids()]
    usual = search._rounded(search.exponents).items()
    networks = {n: Quantized(np.full_like(t.values, 2**28), exponent) for n, t in usual}
    with np.errstate(all="ignore"):
        search.optimise_latents(networks, LMBDA, Budget(1, 2))
    assert all(map(np.array_equal, step.grids(), grids))


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_file_has_moved_latents_and_others_as_trained(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latents move before and after single weights; unmoved ones may still be rounded inwards."""
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
    pixels = patterned_picture(20, 28)
    step = whole_step(pixels) if form == "whole" else windowed_step(pixels, (16, 16))
    given, before = step.grids(), [grid.copy() for grid in step.grids()]
    arguments = Picture(pixels), Goal("lambda", LMBDA), step, step.device, {}
    result, without = (
        Rounding(*arguments, refining=each)
        for each in (Refining(5, budget=Budget(4, 2)), Refining())
    )
    expected = [grid.copy() for grid in grids_of(step)]
    file, _ = result.best(LMBDA)
    (one, *first_arguments), networks, (other, *second_arguments) = done
    assert first_arguments == second_arguments == [LMBDA, Budget(4, 2)]
    assert other is networks
    assert one.keys() == other.keys()
    inwards = without._write_rounded(0.3)
    assert not np.array_equal(inwards[0], expected[0])
    for row in (0, 2):
        expected[0][row, 7] += 3
        inwards[0][row, 7] = expected[0][row, 7]  # an integer stays as it is
    assert all(map(np.array_equal, file.model.latents, expected))
    assert all(map(np.array_equal, result._write_rounded(0.3), inwards))
    assert all(map(np.array_equal, given, before))  # arrays given out before did not change


PIXELS = small_pixels()[:12, :17]


def encode_small(steps: int, target: Goal | None = None, run: Run | None = None) -> Encoded:
    goal, work = target or Goal("lambda", 3e-3), Workload(steps)
    return encode(Picture(PIXELS), goal, work, open_device("numpy"), run, "latent")


def test_rdoq_lowers_the_rate_distortion_cost_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = []
    for budget in (NO_BUDGET, Budget(1, 4)):
        monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {1: budget})
        encoded = encode_small(12)
        decoded = decoder.decode(container.parse(encoded.bytes), open_device("numpy"))
        assert np.array_equal(decoded, encoded.pixels)
        error = np.mean((decoded - PIXELS.astype(np.float64)) ** 2) / 255**2
        costs.append(error + 3e-3 * 8 * len(encoded.bytes) / (12 * 17))
    assert costs[1] < costs[0]


@pytest.mark.parametrize(
    ("kind", "time_fraction"), [("lambda", 1.0), ("bytes", rounding_search.MAX_REFINEMENT_TIME)]
)
def test_rdoq_leaves_time_to_approach_a_target(
    kind: Kind, time_fraction: float, trained_step: LatentStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_conditions = list[Callable[[], bool]]()
    monkeypatch.setattr(rdoq, "optimise", lambda *given: stop_conditions.append(given[-1]))
    goal, enough = Goal(kind, 1e-3 if kind == "lambda" else 60), lambda share: share < 1
    rounding = Rounding(
        Picture(PIXELS),
        goal,
        trained_step,
        trained_step.device,
        {},
        enough,
        Refining(5, budget=Budget(1, 1)),
    )
    rounding._optimise_latents(rounding._search.run(LMBDA), LMBDA)
    assert [enough() for enough in stop_conditions] == [time_fraction < 1]


def test_passes_use_the_rdoq_budget_of_the_first_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Passes lengthen the run but do not change the budget."""
    budgets = list[Budget]()
    monkeypatch.setattr(passes, "MAX_PASSES", 1)
    monkeypatch.setattr(rounding_search, "MAX_FILES", 1)
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {1: Budget(1, 1), 13: Budget(2, 2)})
    monkeypatch.setattr(rdoq, "optimise", lambda *given: budgets.append(given[3]))
    encode_small(12, Goal("bytes", 60))
    assert budgets == [Budget(1, 1)] * 4


def test_run_interrupted_during_rdoq_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(effort.RDOQ_BUDGETS, "one", {1: Budget(1, 2)})
    checkpoint, put = Checkpoint(tmp_path / "c", "k"), LatentStep.put
    expected, puts = encode_small(8).bytes, list[int]()

    def record(step: LatentStep, extent: Extent, level: int, values: Array) -> None:
        puts.append(level)
        put(step, extent, level, values)

    monkeypatch.setattr(LatentStep, "put", record)
    with pytest.raises(Interrupted):
        encode_small(8, run=Run(None, lambda: len(puts) > 5, checkpoint=checkpoint))
    encoded = encode_small(8, run=Run(checkpoint=checkpoint))
    assert encoded.resumed == 8
    assert encoded.bytes == expected
