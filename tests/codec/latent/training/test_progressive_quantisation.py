"""Progressive quantisation of networks, and when a search of exponents runs beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from latent_steps import PRETRAINED_1, grids_of, small_picture

from imgmlp.codec.latent.model import LatentModel, Quantized, quantized
from imgmlp.codec.latent.step import control
from imgmlp.codec.latent.step.control import Steering
from imgmlp.codec.latent.step.latent_step import LatentStep, part_of
from imgmlp.codec.latent.step.parameters import flat_of, networks_of
from imgmlp.codec.latent.training import progressive_quantisation, schedule
from imgmlp.codec.latent.training.bit_allocation import Search
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.engine import open_device


@pytest.mark.parametrize("form", ["numpy", "cpu"])
def test_progressive_quantisation_beats_rounding_all_weights_at_once(form: str) -> None:
    """Weights stay as they were rounded, and latents do not change."""
    step, lmbda = LatentStep(small_picture(), 1, open_device(form), PRETRAINED_1), 1e-3
    LatentTrainer(step, LatentTrainerState(60, lmbda)).run()
    step.write_grids([np.floor(grid + np.float32(0.5)) for grid in step.grids()])
    search = Search(step)
    networks = search.run(lmbda)
    exponents = {name: tensor.exponent - 2 for name, tensor in networks.items()}
    floats, grids = step.flat.numpy(), step.grids()
    at_once = {
        n: quantized(a, exponents[n]) for n, a in networks_of(floats, step.parameter_shapes).items()
    }
    result = progressive_quantisation.quantise(step, exponents, lmbda, 60, lambda: False)
    before = Steering(*step.control.numpy())
    step.steer(schedule.control(59, 60, lmbda))
    after = Steering(*step.control.numpy())
    assert (
        before.tile_subsampling == after.tile_subsampling == control.TILE_SUBSAMPLING
    )  # whose speed is measured
    assert {name: tensor.exponent for name, tensor in result.items()} == exponents
    assert search._cost(result, lmbda) < search._cost(at_once, lmbda)
    same = np.concatenate(
        [(one.values == at_once[name].values).ravel() for name, one in result.items()]
    )
    assert progressive_quantisation.ROUNDED_FRACTIONS[0] <= same.mean() < 1
    assert np.array_equal(
        step.flat.numpy(), flat_of({name: one.floats() for name, one in result.items()})
    )
    assert all(map(np.array_equal, step.grids(), grids))
    assert step.trainable.numpy().all()  # all weights are trainable again
    step.flat.write(floats)
    stopped = progressive_quantisation.quantise(step, exponents, lmbda, 60, lambda: True)
    for name, tensor in stopped.items():
        assert np.array_equal(tensor.values, at_once[name].values), name


def test_progressively_quantised_networks_are_used_only_if_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, lmbda = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1), 1e-3
    search = Search(step)
    networks = search.run(lmbda, rounds=1)
    worse = {n: Quantized(t.values + 9, t.exponent) for n, t in networks.items()}
    better, counts, initial_parameters = networks, list[int](), list[np.ndarray]()
    before, floats = dict(search.exponents), step.flat.numpy()

    def fake_quantise(
        step: LatentStep, exponents: dict[str, int], lmbda: float, count: int, _: Any
    ) -> Any:
        counts.append(count)
        initial_parameters.append(step.flat.numpy())
        step.flat.write(np.zeros_like(floats))
        return worse if len(counts) == 1 else better

    monkeypatch.setattr(progressive_quantisation, "quantise", fake_quantise)
    assert search.quantised(networks, lmbda, 0) is networks
    assert search.quantised(networks, lmbda, 40) is networks
    assert counts == [40]
    assert search.exponents == before
    counts.clear()
    better = {n: Quantized(t.values // 2, t.exponent - 1) for n, t in networks.items()}
    predicted_exponents = {n: t.exponent - 3 for n, t in networks.items()}
    monkeypatch.setattr(search, "_predicted_exponents", lambda *_: predicted_exponents)
    monkeypatch.setattr(search, "_cost", lambda one, _: 1.0 if one is better else 2.0)
    assert (
        search.quantised(networks, lmbda, progressive_quantisation.MIN_STEPS_TO_TRY_TWICE) is better
    )
    assert counts == [
        progressive_quantisation.MIN_STEPS_TO_TRY_TWICE,
        progressive_quantisation.MIN_STEPS_TO_TRY_TWICE,
    ]
    assert all(
        np.array_equal(one, floats) for one in initial_parameters
    )  # each starts from the trained parameters
    usual = progressive_quantisation.coarser_exponents(networks)
    assert search.exponents == usual
    for name, tensor in networks.items():
        assert usual[name] == tensor.exponent - (
            tensor.values.size > progressive_quantisation.MIN_WEIGHTS_TO_COARSEN
        )
    assert (
        search.quantised(networks, lmbda, progressive_quantisation.MIN_STEPS_TO_TRY_TWICE) is better
    )
    assert search.exponents == predicted_exponents  # as the predicted exponents were better at once
    assert len(counts) == 3


def test_search_runs_if_requested_or_if_quantisation_does_not_help(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
    search, done, helps = Search(step), list[str](), [False]
    usual = search._rounded(search.exponents)
    searched, quantised = dict(usual), dict(usual)

    def run(*_: object) -> dict[str, Quantized]:
        done.append("search")
        return searched

    def fake_quantise(networks: dict[str, Quantized], _lmbda: float, count: int) -> Any:
        done.append(
            f"{count} from {'rounded' if networks is not searched else 'searched'} networks"
        )
        return quantised if helps[0] else networks

    monkeypatch.setattr(search, "run", run)
    monkeypatch.setattr(search, "quantised", fake_quantise)
    monkeypatch.setattr(search, "_bits_with", lambda _: math.inf)
    for searching, helps[0], actual, expected in (
        (False, True, quantised, ["9 from rounded networks"]),
        (False, False, searched, ["9 from rounded networks", "search"]),
        (True, True, quantised, ["search", "9 from searched networks"]),
        (True, False, searched, ["search", "9 from searched networks"]),
    ):
        done.clear()
        assert search.best_networks(1e-3, 9, searching) is actual
        assert done == expected


@pytest.mark.parametrize("cheaper", [False, True])
def test_search_also_runs_where_networks_are_a_large_part_of_the_file(
    monkeypatch: pytest.MonkeyPatch, cheaper: bool
) -> None:
    step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
    search, lmbda = Search(step), 1e-3
    before = dict(search.exponents)
    coarser, finer = ({name: n + by for name, n in before.items()} for by in (-1, 1))
    without, other = search._rounded(coarser), search._rounded(finer)
    began_from_search = list[bool]()  # whether quantisation began from the searched networks

    def fake_quantise(networks: dict[str, Quantized], _lmbda: float, _count: int) -> Any:
        began_from_search.append(networks is searched)
        search.exponents = finer if began_from_search[-1] else coarser
        return other if began_from_search[-1] else without

    def set_judged_bits(networks: Mapping[str, Quantized], bits: float) -> None:
        each = (networks[name].floats().tobytes() for name in networks if part_of(name) == "bits")
        search._judged["bits", b"".join(each)] = bits / step.pixels

    def run(_: float) -> dict[str, Quantized]:
        assert search.exponents == before  # a search starts from these
        return searched

    searched = dict(without)
    monkeypatch.setattr(search, "run", run)
    monkeypatch.setattr(search, "quantised", fake_quantise)
    monkeypatch.setattr(search, "_cost", lambda one, _: 1.0 + ((one is other) != cheaper))
    own = search._network_bits(without)
    set_judged_bits(without, 3.01 * own)
    assert search.best_networks(lmbda, 9, False) is without
    assert began_from_search == [False]
    set_judged_bits(without, 2.99 * own)
    search.exponents = before
    assert search.best_networks(lmbda, 9, False, hurried=lambda: True) is without
    assert began_from_search == [False, False]
    search.exponents = before
    assert search.best_networks(lmbda, 9, False) is (other if cheaper else without)
    assert began_from_search == [False, False, False, True]
    assert search.exponents == (finer if cheaper else coarser)


def test_predicted_exponents_are_coarser_the_less_cost_remains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, lmbda = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1), 1e-3
    LatentTrainer(step, LatentTrainerState(60, lmbda)).run()
    search = Search(step)
    networks = search.run(lmbda)
    before, cost, floats = dict(search.exponents), search._cost(networks, lmbda), step.flat.numpy()
    totals = []
    for left in (1.0, 0.1):
        monkeypatch.setattr(progressive_quantisation, "REMAINING_COST_FRACTION", left)
        totals.append(sum(search._predicted_exponents(lmbda, floats).values()))
    assert totals[0] > totals[1]  # the less cost remains, the coarser the exponents
    assert search.exponents == before
    assert search._cost(networks, lmbda) == cost


@pytest.mark.parametrize("ample", [10, 11])
def test_exploded_networks_are_quantised_from_the_search_result(
    ample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progressive_quantisation, "MIN_STEPS_TO_TRY_TWICE", ample)
    step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
    step.flat.write(np.full(step.flat.shape, 1e6, np.float32))
    search, grids = Search(step), grids_of(step)
    networks = search.run(1e-3)
    monkeypatch.setattr(step, "judge", lambda _: (math.inf, math.inf))
    result = search.quantised(networks, 1e-3, 10)
    LatentModel(step.shape, grids, result)  # its constructor checks all bounds
    assert math.isfinite(search._cost(result, 1e-3))


def test_quantisation_learning_rate_falls_with_the_number_of_windows() -> None:
    rates: list[float] = []
    for count in (1, 8):
        step: Any = SimpleNamespace(
            windows=[0] * count, steps_at_once=1, run=lambda *_: True,
            steer=lambda control: rates.append(control.network_lr),
        )  # fmt: skip
        progressive_quantisation._learn(step, 1e-3, 1, lambda: False)
    assert rates == pytest.approx(
        [progressive_quantisation.LEARNING_RATE, progressive_quantisation.LEARNING_RATE / 2]
    )
