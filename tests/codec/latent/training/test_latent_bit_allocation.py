"""The search for exponents of networks and the refinement of single weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
from latent_steps import NARROW, PRETRAINED_1, draw, grids_of, small_picture

from imgmlp.codec.latent import sections
from imgmlp.codec.latent.model import LatentModel
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import PARTS, LatentStep, Part
from imgmlp.codec.latent.step.parameters import flat_of, networks_of
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.codec.latent.training import bit_allocation
from imgmlp.codec.latent.training.bit_allocation import MAX_WEIGHT, Refinement, Search, part_of
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.engine import open_device


@pytest.mark.parametrize("size", [1e3, 1e6, np.nan])
def test_exploded_networks_still_become_a_valid_model(size: float) -> None:
    step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
    step.flat.write(np.full(step.flat.shape, size, np.float32))
    networks = Search(step).run(1e-3)
    LatentModel(step.shape, grids_of(step), networks)  # its constructor checks all bounds


def test_cost_of_nan_counts_as_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
    monkeypatch.setattr(step, "answer", lambda: math.nan)
    search = Search(step)
    assert search._cost(search._rounded(search.exponents), 1e-3) == math.inf
    LatentModel(step.shape, grids_of(step), search.run(1e-3))  # the search ends


@pytest.mark.parametrize("size", [1e2, 1e8])
def test_search_ends_with_valid_weights_when_errors_are_nan(size: float) -> None:
    """With large latents, even weights of MAX_WEIGHT may give an error of NaN."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (100, 100, 3)).astype(np.uint8)
    step = LatentStep(pixels, 0, open_device("numpy"))
    step.write_grids([random.integers(-63, 64, grid.shape) for grid in step.grids()])
    step.flat.write(step.flat.numpy() * np.float32(size))
    networks = Search(step).run(1e-3)
    LatentModel(step.shape, grids_of(step), networks)  # its constructor checks all bounds
    assert max(abs(one.floats()).max() for one in networks.values()) <= MAX_WEIGHT


def test_refinement_cost_equals_search_cost_with_invisible_pixels() -> None:
    pixels = np.concatenate([small_picture(), np.zeros_like(small_picture()[:, :, :1])], axis=2)
    pixels[:, ::2, 3] = 255  # the rest is invisible
    step = LatentStep(pixels, 1, open_device("numpy"), PRETRAINED_1)
    assert step.visible_fraction < 1
    search = Search(step)
    networks, lmbda = search.run(1e-3, rounds=1), 1e-3
    result = search._cost(networks, lmbda)
    bits = search._network_bits(networks)
    own = Refinement(step, networks, lmbda)
    assert sum(map(own._cost, PARTS)) + lmbda * bits / step.pixels == pytest.approx(result)


@pytest.mark.parametrize("sizes", [Architecture(8, 4), PRETRAINED_1])
def test_refined_networks_give_a_lower_rate_distortion_cost(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LatentStep(small_picture(), 1, open_device("numpy"), sizes)
    lmbda = 1e-3
    LatentTrainer(step, LatentTrainerState(60, lmbda)).run()
    search = Search(step)
    rounded = search.run(lmbda)
    assert search.refined(rounded, lmbda) is not rounded
    refinement = Refinement(step, rounded, lmbda)
    refinement.run(200, lambda: False)
    costs = []
    for networks in (rounded, refinement.networks()):
        model = LatentModel(step.shape, grids_of(step), networks, step.pretrained.number)
        error = np.mean((synthesize(model, step.device) - small_picture().astype(np.float64)) ** 2)
        bits = 8 * sum(map(len, sections.write(model)))
        costs.append(error / 255**2 + lmbda * bits / step.pixels)
    assert costs[1] < costs[0]
    monkeypatch.setattr(LatentStep, "ahead", 3)  # some trials ahead are in vain then
    ahead = Refinement(step, rounded, lmbda)
    ahead.run(200, lambda: False)
    for name, tensor in ahead.networks().items():
        assert np.array_equal(tensor.values, refinement.networks()[name].values), name
    refinement = Refinement(step, rounded, lmbda)
    refinement.run(200, lambda: True)
    for name, tensor in refinement.networks().items():
        assert np.array_equal(tensor.values, rounded[name].values), name


def test_refinement_moves_weights_only_where_saved_bits_outweigh_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every trial has the same error above that of the first networks; most save bits."""
    step = LatentStep(small_picture(), 1, open_device("numpy"), NARROW)
    networks = Search(step).run(1e-3, rounds=1)
    monkeypatch.setattr(step, "slopes", lambda flat, _: np.zeros_like(flat))
    monkeypatch.setattr(step, "ask", lambda *_: None)
    for lost, expects_moves in ((1e-7, True), (1e3, False)):
        answers = iter([0.0, 0.0])
        monkeypatch.setattr(step, "answer", lambda a=answers, lost=lost: next(a, lost))
        refinement = Refinement(step, networks, 1e-3)
        refinement.run(20, lambda: False)
        result = refinement.networks()
        same = [np.array_equal(one.values, result[n].values) for n, one in networks.items()]
        assert all(same) is not expects_moves


def test_refinement_does_not_retry_rejected_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradients predict no cost for any move; all moves but the first turn out to cost much."""
    step = LatentStep(small_picture(), 1, open_device("numpy"), NARROW)
    networks = Search(step).run(1e-3, rounds=1)
    monkeypatch.setattr(step, "slopes", lambda flat, _: np.zeros_like(flat))
    requests: list[bytes] = []
    monkeypatch.setattr(step, "ask", lambda flat, _: requests.append(flat.tobytes()))
    answers = iter([0.0, 0.0, -1.0])
    monkeypatch.setattr(step, "answer", lambda: next(answers, 1e3))
    refinement = Refinement(step, networks, 1e-3)
    refinement.run(10_000, lambda: False)
    first = len(PARTS)
    assert len(requests) > first + 10
    assert len(set(requests[first:])) == len(requests[first:])
    changed = sum(
        int(np.abs(one.values - networks[name].values).sum())
        for name, one in refinement.networks().items()
    )
    assert changed == 1


@pytest.mark.parametrize("sizes", [PRETRAINED_1, Architecture(32, 24, pretrained=5)])
def test_each_tensor_changes_only_its_own_part_of_the_judgement(sizes: dict[str, int]) -> None:
    """This includes the tensor of the filter."""
    step = LatentStep(small_picture(), 1, open_device("numpy"), sizes)
    step.write_grids([3 * draw(*grid.shape) for grid in step.grids()])
    flat = step.flat.numpy()
    networks = networks_of(flat, step.parameter_shapes)
    first = step.judge(flat)
    seen = set()
    for name, values in networks.items():
        moved = step.judge(flat_of(networks | {name: values + np.float32(0.5)}))
        changed = [part for part, a, b in zip(PARTS, first, moved, strict=True) if a != b]
        assert changed == [part_of(name)], name
        step.ask(flat, part_of(name))
        assert step.answer() == first[PARTS.index(part_of(name))]
        seen.add(part_of(name))
    assert seen == set(PARTS)


def test_search_judges_no_networks_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor's step size affects only its own part of the judgement."""
    step = LatentStep(small_picture(), 1, open_device("numpy"), Architecture(8, 4))
    requests: list[tuple[str, bytes]] = []
    ask = step.ask

    def record(flat: np.ndarray, part: Part) -> None:
        names = [name for name in networks_of(flat, step.parameter_shapes) if part_of(name) == part]
        own = b"".join(networks_of(flat, step.parameter_shapes)[name].tobytes() for name in names)
        requests.append((part, own))
        ask(flat, part)

    monkeypatch.setattr(step, "ask", record)
    search = Search(step)
    search.run(1e-3)
    assert len(requests) > 10
    assert len(set(requests)) == len(requests)


def test_large_pictures_have_fewer_weight_trials() -> None:
    assert bit_allocation.weight_trials(600, 2**16 - 1) == 300
    assert bit_allocation.weight_trials(600, 2**16) == 60
    assert bit_allocation.weight_trials(100_000, 2**20) == 3000
