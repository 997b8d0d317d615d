"""The search for exponents of networks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from latent_steps import PRETRAINED_1, draw, grids_of, small_picture

from imgmlp.codec.latent.model import LatentModel
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import PARTS, LatentStep, Part, part_of
from imgmlp.codec.latent.step.parameters import flat_of, networks_of
from imgmlp.codec.latent.training import bit_allocation
from imgmlp.codec.latent.training.bit_allocation import MAX_WEIGHT, Search
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
    assert bit_allocation.weight_trials(100_000, 2**20) == 1000
