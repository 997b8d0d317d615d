"""What can be asked for, and how much work that is worth."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from imgmlp.codec.training import target
from imgmlp.codec.training.target import PSNR_TOLERANCE, Goal, Workload
from imgmlp.errors import UsageError


def test_quality_stands_for_a_lambda_of_bits() -> None:
    assert target.choose(100).value == pytest.approx(2e-2 * 200**-0.6)
    assert target.choose(100, quality=0).value == pytest.approx(2e-2)
    assert target.choose(100, quality=100).value == pytest.approx(1e-4)


def test_bits_a_pixel_are_bytes() -> None:
    assert target.choose(1001, bpp=0.5) == Goal("bytes", 62)
    assert target.choose(1024, bpp=1e-4) == Goal("bytes", 1)
    assert target.choose(1, size="20k") == Goal("bytes", 20_000)
    assert target.choose(1, psnr=30.0) == Goal("psnr", 30.0)
    assert target.choose(1, lmbda=1e-3) == Goal("lambda", 1e-3)


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), ("20000", 20_000), ("20k", 20_000), ("1.5M", 1_500_000),
                        ("134217728", 2**27), ("1.001k", 1001), ("4.0", 4)]
)  # fmt: skip
def test_bytes_are_written_as_people_do(text: str, count: int) -> None:
    assert target.parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "0", "k", "-5", "1e9", "20g", "9999m", "134217729", "0.0001", "²", "1.5", "1.0005k"],
)
def test_other_texts_are_no_bytes(text: str) -> None:
    with pytest.raises(UsageError, match="--bytes") as refused:
        target.parse_bytes(text)
    assert "from 1 to 134,217,728" in refused.value.hint


@pytest.mark.parametrize(
    "given",
    [{"quality": 101.0}, {"bpp": 0.0}, {"psnr": float("nan")}, {"lmbda": -1.0}, {"quality": -1.0}],
)
def test_values_out_of_range_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="use a value" if not given else "--"):
        target.choose(100, **given)  # type: ignore[arg-type]


def test_two_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="--bpp and --psnr"):
        target.choose(100, bpp=1.0, psnr=30.0)


def test_a_miss_is_told_in_figures() -> None:
    assert Goal("bytes", 1000).misses(1000, 1.0) is None
    assert Goal("bytes", 1000).misses(1001, 1.0) == "1,001 bytes instead of 1,000"
    assert Goal("psnr", 30).misses(1, 29.91) is None
    assert Goal("psnr", 30).misses(1, 29.88) == "29.88 dB instead of 30"
    assert Goal("lambda", 1e-3).misses(1, 1.0) is None


def test_a_file_that_keeps_the_bytes_is_no_miss_but_a_hit_only_if_it_uses_them() -> None:
    for size, hit in [(10, False), (979, False), (980, True), (1000, True), (1001, False)]:
        assert Goal("bytes", 1000).hit_by(size, 1.0) is hit
        assert Goal("bytes", 1000).hit_by(size, math.inf) is (size <= 1000)  # which needs no more
        assert (Goal("bytes", 1000).misses(size, 1.0) is None) is (size <= 1000)


def test_too_good_is_no_miss() -> None:
    assert Goal("psnr", 30).misses(1, 30.12) is None
    assert Goal("psnr", 30).misses(1, math.inf) is None
    assert Goal("bytes", 1000).misses(60, math.inf) is None
    assert Goal("bytes", 50).misses(60, math.inf) is not None


def test_too_good_is_no_hit_either() -> None:
    assert not Goal("psnr", 30).hit_by(1, 30.12)
    assert Goal("psnr", 30).hit_by(1, 30.08)


def test_what_is_off_by_just_what_is_tolerated_is_a_hit() -> None:
    wanted = Goal("psnr", PSNR_TOLERANCE)  # from which nothing else is just so far
    assert wanted.misses(9, 0.0) is None
    assert wanted.hit_by(9, 0.0)
    assert wanted.hit_by(9, 2 * PSNR_TOLERANCE)
    assert wanted.distance(9, 0.0) == (False, 9)


def test_all_of_the_bytes_are_not_too_many() -> None:
    assert Goal("bytes", 100).distance(100, 3.0) == (False, -3.0)
    assert Goal("bytes", 100).distance(100, math.nan) == (False, 0.0)


def test_of_files_that_keep_a_target_the_best_is_nearest() -> None:
    def order(wanted: Goal, *files: tuple[int, float]) -> bool:
        distances = [wanted.distance(*file) for file in files]
        return distances == sorted(set(distances))

    assert order(Goal("psnr", 30), (80, 29.95), (90, math.inf), (100, 30), (20, 29.8), (200, 20))
    assert order(Goal("bytes", 100), (90, 2.0), (99, 1.0), (101, 3.0), (110, 3.0))
    unknown = math.nan  # dB
    assert order(Goal("bytes", 100), (99, unknown), (90, unknown), (101, unknown))


def test_each_effort_is_more_work() -> None:
    levels = {level: target.workload(level, None) for level in range(1, 10)}
    assert target.workload(None, 2.0) == replace(levels[5], seconds=2.0)
    found = {level: (work.steps, work.wider) for level, work in levels.items()}
    assert [found[n] for n in (1, 4, 5, 9)] == [(3_750, 1), (30_000, 1), (60_000, 1), (60_000, 8)]
    products = [steps * wider for steps, wider in found.values()]
    assert all(1.5 * less <= more <= 2 * less for less, more in pairwise(products))
    for level in (0, 10):
        with pytest.raises(UsageError, match="--effort"):
            target.workload(level, None)


@pytest.mark.parametrize(
    ("seconds", "work"), [(None, (7, 2)), (1e-9, (1, 1)), (60.0, (60_000, 1)), (150.0, (50_000, 3))]
)
def test_time_for_more_than_the_usual_steps_goes_into_wider_ones(
    seconds: float | None, work: tuple[int, int]
) -> None:
    assert Workload(7, wider=2).within(seconds, lambda wider: 1e-3 * wider) == work
