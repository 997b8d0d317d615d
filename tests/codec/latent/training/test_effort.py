"""How many steps an effort means, and which runs are short or have hyperlatents."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from imgmlp.codec.latent import encode as latent
from imgmlp.codec.latent.training import effort
from imgmlp.codec.latent.training.buckets import TrainingSetup
from imgmlp.codec.training.target import Workload
from imgmlp.engine import open_device
from imgmlp.errors import UsageError


def test_efforts_range_from_300_to_100000_steps() -> None:
    steps = [effort.steps_of_effort(level) for level in range(1, 10)]
    assert steps[0] == 300
    assert steps[-1] == 100_000
    factors = [b / a for a, b in pairwise(steps)]
    assert max(factors) / min(factors) < 1.01
    for level in (0, 10):
        with pytest.raises(UsageError, match=f"effort is {level}"):
            latent.workload(level, None)


@pytest.mark.parametrize("lanes", ["one", "group"])
def test_rdoq_budget_grows_with_the_steps_of_a_run(lanes: str) -> None:
    """Runs of a few steps have none."""
    ends = sorted(effort.RDOQ_BUDGETS[lanes])
    results = [effort.rdoq_budget(n, lanes) for n in (0, *ends, 100_000)]
    assert [each.judged for each in results[:2]] == [0, effort.RDOQ_BUDGETS[lanes][ends[0]].judged]
    assert all(one.judged < other.judged for one, other in pairwise(results[:-1]))
    assert results[-1] == results[-2]
    assert [effort.rdoq_budget(n - 1, lanes) for n in ends] == results[: len(ends)]


def test_long_runs_of_large_pictures_expect_hyperlatents() -> None:
    """Pictures of more than a megapixel have fewer steps for the same effort."""
    device = open_device("numpy")

    def have(height: int, width: int, level: int, seconds: float | None = None) -> bool:
        return effort.expects_hyperlatents(
            (height, width, 3), latent.workload(level, seconds), device
        )

    assert have(512, 768, 8)
    assert have(1000, 1100, 8)
    assert have(1000, 1800, 9)
    assert not have(512, 768, 7)
    assert not have(1000, 1300, 8)
    assert not have(1000, 2000, 9)
    assert not have(256, 256, 9)  # its networks are small
    assert not have(512, 768, 9, 60.0)
    assert have(512, 768, 1, 1e9)
    assert not have(4096, 4097, 1, 1e9)
    assert effort.expects_hyperlatents((512, 768, 3), Workload(0), device) is False


def test_runs_of_few_expected_steps_are_short() -> None:
    device: Any = SimpleNamespace(info=SimpleNamespace(kind="cpu", compute_units=2), lanes="one")

    def short(workload: Workload, height: int = 512, width: int = 768) -> bool:
        return effort.is_short((height, width, 3), workload, device)

    assert short(latent.workload(1, None))
    assert not short(latent.workload(2, None))
    assert short(latent.workload(None, None))
    assert not short(latent.workload(None, None), 64, 64)
    assert short(latent.workload(4, None), 100, 40)  # the shared bucket computes little more
    assert not short(latent.workload(4, None), 20, 900)  # it has windows
    assert not short(latent.workload(7, None), 100, 40)
    assert short(latent.workload(9, None), 100, 70)  # the shared bucket computes nothing more
    assert not short(latent.workload(9, None), 20, 999)
    assert short(latent.workload(1, None), 20, 999)
    assert short(latent.workload(5, None), 64, 20)
    assert not short(latent.workload(4, None), 256, 256)
    assert short(latent.workload(None, 30.0))
    assert not short(latent.workload(None, 300.0))
    device.info.compute_units = 200  # so many cores take many steps in that time
    assert short(latent.workload(1, None))
    assert not short(latent.workload(None, 30.0))


def test_small_pictures_get_more_steps_in_short_runs() -> None:
    assert effort.steps_for_pixels(300, 256 * 256) == 300
    assert effort.steps_for_pixels(300, 128 * 128) == effort.steps_for_pixels(300, 9) == 600
    assert effort.steps_for_pixels(100_000, 128 * 128) < 101_000
    steps = [effort.steps_for_pixels(300, n * 2**10) for n in range(1, 80)]
    assert all(a >= b for a, b in pairwise(steps))


def test_larger_pictures_get_fewer_steps_but_at_least_9() -> None:
    assert effort.steps_for_pixels(300, 768 * 512) == 300
    assert effort.steps_for_pixels(300, 10_000_000) < 15
    steps = [effort.steps_for_pixels(300, n * 2**20) for n in range(1, 60)]
    assert all(a >= b for a, b in pairwise(steps))
    assert steps[-1] == 9


def test_short_runs_in_many_windows_get_fewer_steps() -> None:
    """Only short runs on processors have many windows, unless their steps are quick."""
    device = open_device("numpy")
    device.info = replace(device.info, kind="cpu")  # a device that compiles

    def steps(height: int, width: int, short: bool = True) -> int:
        return effort.steps_for_setup(300, TrainingSetup((height, width, 3), device, short))

    assert steps(512, 768) == steps(768, 512) == 300
    assert steps(256, 256) == steps(512, 768, short=False) == 300
    assert 196 < steps(300, 300) < steps(256, 290) < 300
    assert steps(40, 700) == steps(40, 700, short=False) == effort.steps_for_pixels(300, 28_000)
