"""The search for rounded networks and the file that is nearest to a target."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from conftest import small_pixels
from latent_encoding import PIXELS

from imgmlp.codec.latent.model import Quantized
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import bit_allocation, rounding_search
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.rounding_search import Refining, Trial, Written
from imgmlp.codec.training.target import Goal
from imgmlp.engine import open_device
from imgmlp.image import Picture


@pytest.mark.parametrize("goal", [Goal("lambda", 3e-3), Goal("bytes", 200)])
def test_weight_refinement_leaves_time_to_approach_a_target(goal: Goal) -> None:
    picture, device = Picture(PIXELS[:5, :6]), open_device("numpy")
    step = LatentStep(picture.pixels, 0, device, Architecture(4, 4))
    LatentTrainer(step, LatentTrainerState(4, 3e-3)).run()
    requests = list[float]()

    def is_over(share: float) -> bool:
        requests.append(share)
        return True

    rounding_search.Rounding(picture, goal, step, device, {}, is_over).best(3e-3)
    assert (rounding_search.MAX_REFINEMENT_TIME in requests) == (goal.kind == "bytes")


@pytest.mark.parametrize(("elapsed_fraction", "quantisations"), [(0.29, 2), (0.31, 1)])
def test_second_quantisation_runs_only_if_time_is_left(
    elapsed_fraction: float, quantisations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = list[int]()

    def fake_quantise(
        search: bit_allocation.Search, networks: dict[str, Quantized], lmbda: float, count: int
    ) -> dict[str, Quantized]:
        counts.append(count)
        search._cost(networks, lmbda)
        return dict(networks)

    monkeypatch.setattr(bit_allocation.Search, "quantised", fake_quantise)
    monkeypatch.setattr(bit_allocation, "MIN_NETWORK_FRACTION", 0.0)
    picture, device = Picture(PIXELS[:5, :6]), open_device("numpy")
    arguments = (
        picture,
        Goal("lambda", 3e-3),
        LatentStep(picture.pixels, 0, device, Architecture(4, 4)),
    )
    refining = Refining(5, quantisation_steps=3, searching=False)
    rounding = rounding_search.Rounding(
        *arguments, device, {}, lambda share: share <= elapsed_fraction, refining
    )
    rounding.best(3e-3)
    assert counts == [3] * quantisations


@pytest.mark.parametrize(("fraction", "lmbdas"), [(0.99, 1), (0.5, 3)])
def test_shaving_raises_lambda_until_the_file_is_small_enough(fraction: float, lmbdas: int) -> None:
    """Each lambda continues from the weights that the one before has moved."""
    step = LatentStep(small_pixels(), 0, open_device("numpy"), Architecture(8, 8))
    LatentTrainer(step, LatentTrainerState(30, 1e-4)).run()
    arguments = step, open_device("numpy"), {}
    first = rounding_search.Rounding(Picture(small_pixels()), Goal("bytes", 10**6), *arguments)
    networks = first._search.refined(first._search.run(1e-4), 1e-4, most=50)
    before = first._trial(networks, 0.0)
    goal = Goal("bytes", fraction * before.size)
    rounding = rounding_search.Rounding(Picture(small_pixels()), goal, *arguments)
    tried = rounding._shaved(networks, 1e-4, lambda: False)
    assert [trial.shaved for trial in tried] == list(
        rounding_search.SHAVING_LMBDA_DOUBLINGS[:lmbdas]
    )
    assert all(later.size < earlier.size for earlier, later in pairwise([before, *tried]))
    assert len(rounding._shaved(networks, 1e-4, lambda: True)) == 1  # time is over at once


@pytest.mark.parametrize(
    ("shaving", "size", "is_shaved"), [(False, 60, False), (True, 60, True), (True, 10**6, False)]
)
def test_shaving_runs_only_for_too_large_files_without_a_further_pass(
    shaving: bool, size: int, is_shaved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[bool] = []
    monkeypatch.setattr(
        rounding_search.Rounding, "_shaved", lambda *_: requests.append(True) or list[Trial]()
    )
    picture, device = Picture(PIXELS), open_device("numpy")
    step = LatentStep(picture.pixels, 0, device, Architecture(4, 4))
    LatentTrainer(step, LatentTrainerState(4, 3e-3)).run()
    arguments = picture, Goal("bytes", size), step, device, {}
    rounding_search.Rounding(*arguments, refining=Refining(5, shaving=shaving)).best(3e-3)
    assert bool(requests) is is_shaved


@pytest.mark.parametrize(("shaved", "files"), [(0, 1), (1, 2)])
def test_shaved_networks_are_written_as_a_file_of_their_own(
    shaved: int, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even with equal exponents and latents."""
    picture, device = Picture(PIXELS), open_device("numpy")
    step = LatentStep(picture.pixels, 0, device, Architecture(4, 4))
    arguments = picture, Goal("bytes", 60), step, device, {}
    rounding = rounding_search.Rounding(*arguments, refining=Refining(5))
    written: list[int] = []
    write = rounding._written

    def record_call(trial: Trial) -> rounding_search.Written:
        written.append(trial.shaved)
        return write(trial)

    monkeypatch.setattr(rounding_search, "MAX_FILES", 2)
    monkeypatch.setattr(rounding, "_written", record_call)
    monkeypatch.setattr(
        rounding,
        "_nearest",
        lambda networks, _: replace(rounding._trial(networks, 0.0), shaved=shaved),
    )
    rounding.best(3e-3)
    assert written == [0, shaved][:files]


@pytest.mark.parametrize("trials", [5, 10_000])
def test_shaving_takes_no_more_trials_than_refining(
    trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a limited time has no room for more."""
    step = LatentStep(PIXELS, 0, open_device("numpy"), Architecture(4, 4))
    arguments = Picture(PIXELS), Goal("bytes", 60), step, open_device("numpy"), {}
    rounding = rounding_search.Rounding(*arguments, refining=Refining(trials, shaving=True))
    networks, requests = rounding._search.run(3e-3, rounds=1), list[int]()
    monkeypatch.setattr(
        rounding._search, "refined", lambda *given: requests.append(given[-1]) or networks
    )
    rounding._shaved(networks, 3e-3, lambda: False)
    assert set(requests) == {min(trials, rounding_search.SHAVING_TRIALS)}


def test_lossless_file_leaves_the_psnr_offset_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_device("numpy")
    step = LatentStep(PIXELS, 0, device, Architecture(4, 4))
    arguments = Picture(PIXELS), Goal("psnr", 10.0), step, device, {}
    rounding = rounding_search.Rounding(*arguments, refining=Refining(5))
    write, files = rounding._written, list[Written]()

    def record_written(trial: Trial) -> Written:
        files.append(write(trial))
        return files[-1] if len(files) > 1 else replace(files[-1], psnr=math.inf)

    monkeypatch.setattr(rounding, "_written", record_written)
    _, first = rounding.best(3e-3)
    assert first.psnr == math.inf
    assert math.isfinite(rounding._psnr_offset)
