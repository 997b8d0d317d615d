"""Targets that can be asked for, and the work of each effort level."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from imgmlp.codec.training import target
from imgmlp.codec.training.target import PSNR_TOLERANCE, Goal, Workload
from imgmlp.errors import UsageError


def test_quality_is_translated_to_a_lambda() -> None:
    assert target.choose(100).value == pytest.approx(2e-2 * 200**-0.6)
    assert target.choose(100, quality=0).value == pytest.approx(2e-2)
    assert target.choose(100, quality=100).value == pytest.approx(1e-4)


def test_bits_per_pixel_and_sizes_are_translated_to_bytes() -> None:
    assert target.choose(1001, bpp=0.5) == Goal("bytes", 62)
    assert target.choose(1024, bpp=1e-4) == Goal("bytes", 1)
    assert target.choose(1, size="20k") == Goal("bytes", 20_000)
    assert target.choose(1, psnr=30.0) == Goal("psnr", 30.0)
    assert target.choose(1, lmbda=1e-3) == Goal("lambda", 1e-3)


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("20000", 20_000), ("20k", 20_000), ("1.5M", 1_500_000),
                        ("134217728", 2**27), ("1.001k", 1001), ("4.0", 4)]
)  # fmt: skip
def test_sizes_may_have_decimal_suffixes(text: str, count: int) -> None:
    assert target.parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "0", "k", "-5", "1e9", "20g", "9999m", "134217729", "0.0001", "²", "1.5", "1.0005k"],
)
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--bytes") as refused:
        target.parse_bytes(text)
    assert "from 1 to 134,217,728" in refused.value.hint


@pytest.mark.parametrize(
    "arguments",
    [{"quality": 101.0}, {"bpp": 0.0}, {"psnr": float("nan")}, {"lmbda": -1.0}, {"quality": -1.0}],
)
def test_values_out_of_range_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="use a value" if not arguments else "--"):
        target.choose(100, **arguments)  # type: ignore[arg-type]


def test_two_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="--bpp and --psnr"):
        target.choose(100, bpp=1.0, psnr=30.0)


def test_miss_is_described_in_figures() -> None:
    assert Goal("bytes", 1000).misses(1000, 1.0) is None
    assert Goal("bytes", 1000).misses(1001, 1.0) == "1,001 bytes instead of 1,000"
    assert Goal("psnr", 30).misses(1, 29.91) is None
    assert Goal("psnr", 30).misses(1, 29.88) == "29.88 dB instead of 30"
    assert Goal("lambda", 1e-3).misses(1, 1.0) is None


def test_smaller_file_is_no_miss_but_a_hit_only_if_it_uses_the_bytes() -> None:
    for size, hit in [(10, False), (979, False), (980, True), (1000, True), (1001, False)]:
        assert Goal("bytes", 1000).hit_by(size, 1.0) is hit
        assert Goal("bytes", 1000).hit_by(size, math.inf) is (size <= 1000)  # lossless
        assert (Goal("bytes", 1000).misses(size, 1.0) is None) is (size <= 1000)


def test_file_beyond_its_target_is_no_miss() -> None:
    assert Goal("psnr", 30).misses(1, 30.12) is None
    assert Goal("psnr", 30).misses(1, math.inf) is None
    assert Goal("bytes", 1000).misses(60, math.inf) is None
    assert Goal("bytes", 50).misses(60, math.inf) is not None


def test_file_beyond_its_psnr_is_no_hit() -> None:
    assert not Goal("psnr", 30).hit_by(1, 30.12)
    assert Goal("psnr", 30).hit_by(1, 30.08)


def test_file_exactly_at_the_tolerance_is_a_hit() -> None:
    wanted = Goal("psnr", PSNR_TOLERANCE)  # 0 dB is exactly the tolerance away from it
    assert wanted.misses(9, 0.0) is None
    assert wanted.hit_by(9, 0.0)
    assert wanted.hit_by(9, 2 * PSNR_TOLERANCE)
    assert wanted.distance(9, 0.0) == (False, 9)


def test_file_of_exactly_the_wanted_bytes_keeps_them() -> None:
    assert Goal("bytes", 100).distance(100, 3.0) == (False, -3.0)
    assert Goal("bytes", 100).distance(100, math.nan) == (False, 0.0)


def test_best_of_the_files_that_keep_a_target_is_nearest() -> None:
    def order(wanted: Goal, *files: tuple[int, float]) -> bool:
        distances = [wanted.distance(*file) for file in files]
        return distances == sorted(set(distances))

    assert order(Goal("psnr", 30), (80, 29.95), (90, math.inf), (100, 30), (20, 29.8), (200, 20))
    assert order(Goal("bytes", 100), (90, 2.0), (99, 1.0), (101, 3.0), (110, 3.0))
    unknown = math.nan  # dB
    assert order(Goal("bytes", 100), (99, unknown), (90, unknown), (101, unknown))


def test_each_effort_level_is_more_work() -> None:
    levels = {level: target.workload(level, None) for level in range(1, 10)}
    assert target.workload(None, 2.0) == replace(levels[5], seconds=2.0)
    workloads = {level: (work.steps, work.batch_factor) for level, work in levels.items()}
    assert [workloads[n] for n in (1, 4, 5, 9)] == [
        (3_750, 1),
        (30_000, 1),
        (60_000, 1),
        (60_000, 8),
    ]
    products = [steps * batch_factor for steps, batch_factor in workloads.values()]
    assert all(1.5 * less <= more <= 2 * less for less, more in pairwise(products))
    for level in (0, 10):
        with pytest.raises(UsageError, match="--effort"):
            target.workload(level, None)


@pytest.mark.parametrize(
    ("seconds", "work"), [(None, (7, 2)), (1e-9, (1, 1)), (60.0, (60_000, 1)), (150.0, (50_000, 3))]
)
def test_time_for_more_than_the_usual_steps_goes_into_larger_batches(
    seconds: float | None, work: tuple[int, int]
) -> None:
    assert (
        Workload(7, batch_factor=2).within(seconds, lambda batch_factor: 1e-3 * batch_factor)
        == work
    )
