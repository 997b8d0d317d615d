"""The record of how long programs took to compile, and the estimates made from it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imgmlp.codec.training import compile_times, time_estimate
from imgmlp.codec.training.compile_times import (
    CPU_COMPILE_SECONDS,
    DEFAULT_COMPILE_SECONDS,
    FILE_NAME,
    CompileTimes,
)
from imgmlp.engine import open_device


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(compile_times, "cache_folder", lambda: tmp_path)
    info = SimpleNamespace(
        platform="p", name="n", driver="d", version="v", compiled_for="c", kind="cpu"
    )
    return SimpleNamespace(info=info, compiling=0.0, lowering=0.0)


def compiled(device: Any, program: str, seconds: float) -> None:
    times = CompileTimes(device)
    device.compiling += seconds
    times.record(program)


def test_a_new_program_takes_the_median_time_of_its_kind(device: Any) -> None:
    assert CompileTimes(device).expected_seconds(["step: a"]) == DEFAULT_COMPILE_SECONDS
    for program, seconds in (("step: a", 6.0), ("step: b", 8.0), ("decoding: a", 2.0)):
        compiled(device, program, seconds)
    assert CompileTimes(device).expected_seconds(["step: a", "decoding: a"]) == 0
    assert CompileTimes(device).expected_seconds(["step: c", "step: b", "decoding: c"]) == 7.0 + 2.0


def test_slow_kinds_have_a_default_time_of_their_own_on_cpus(device: Any) -> None:
    (slow,) = CPU_COMPILE_SECONDS
    assert (
        CompileTimes(device).expected_seconds([f"{slow}: a"])
        == CPU_COMPILE_SECONDS[slow]
        > DEFAULT_COMPILE_SECONDS
    )
    compiled(device, f"{slow}: b", 7.0)
    assert CompileTimes(device).expected_seconds([f"{slow}: a"]) == 7.0
    device.info.kind, device.info.name = "gpu", "another"
    assert CompileTimes(device).expected_seconds([f"{slow}: a"]) == DEFAULT_COMPILE_SECONDS


def test_lowering_counts_as_compile_time(device: Any) -> None:
    times = CompileTimes(device)
    device.compiling, device.lowering = 2.0, 3.0
    times.record("step: a")
    assert times.expected_seconds(["step: b"]) == 5.0


def test_only_a_changed_speed_is_recorded(device: Any) -> None:
    times = CompileTimes(device)
    assert times.speed("step") is None
    for measured, recorded in ((2e12, 2e12), (2.1e12, 2e12), (3e12, 3e12), (1e12, 1e12)):
        times.record_speed("step", measured)
        assert CompileTimes(device).speed("step") == recorded
    assert times.speed("decoding") is None
    assert times.expected_seconds(["step: a"]) == DEFAULT_COMPILE_SECONDS


@pytest.mark.parametrize(
    ("recorded", "clock", "seconds"),
    [
        (2e12, 1000, 50.0),
        (None, 1000, 1e14 / 7.68e12),
        (None, 0, 1e14 / time_estimate.DEFAULT_GPU_SPEED),
    ],
)
def test_the_speed_of_a_gpu_is_recorded_or_follows_from_its_clock(
    recorded: float | None, clock: int, seconds: float, device: Any
) -> None:
    device.lanes, device.info.clock, device.info.compute_units = "group", clock, 100
    if recorded:
        CompileTimes(device).record_speed("step", recorded)
    found = time_estimate.Work(10, 1e14, (), kind="step").seconds(device)
    assert found == pytest.approx(time_estimate.SETUP_SECONDS + seconds)


def test_programs_compiled_for_another_processor_do_not_count(device: Any) -> None:
    compiled(device, "step: a", 6.0)
    device.info.compiled_for = "another"
    assert CompileTimes(device).expected_seconds(["step: a"]) == DEFAULT_COMPILE_SECONDS


def test_a_program_of_another_source_version_counts_for_its_time_only(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(device, "step: a", 6.0)
    monkeypatch.setattr(compile_times, "source_digest", lambda: "0" * 64)
    assert CompileTimes(device).expected_seconds(["step: a"]) == 6.0
    compiled(device, "step: a", 0.2)
    assert CompileTimes(device).expected_seconds(["step: a"]) == 0
    assert (tmp_path / FILE_NAME).read_text().count(
        "step: a"
    ) == 1  # the entry of the other version is gone


def test_cache_hits_are_left_out_of_the_median(device: Any) -> None:
    compiled(device, "step: a", 6.0)
    compiled(device, "step: b", 0.1)
    compiled(device, "step: a", 0.1)
    assert CompileTimes(device).expected_seconds(["step: b"]) == 0
    assert CompileTimes(device).expected_seconds(["step: c"]) == 6.0


def test_a_program_gets_the_time_since_the_previous_record(device: Any) -> None:
    times = CompileTimes(device)
    for program, seconds in (("step: a", 6.0), ("decoding: a", 2.0)):
        device.compiling += seconds
        times.record(program)
    assert times.expected_seconds(["step: b"]) == 6.0
    assert times.expected_seconds(["decoding: b"]) == 2.0


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 3}', '{"a": {"b": "c"}}', "\xff"])
def test_a_damaged_record_counts_as_empty(device: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text, "latin-1")
    assert CompileTimes(device).expected_seconds(["step: a"]) == DEFAULT_COMPILE_SECONDS
    compiled(device, "step: a", 6.0)
    assert CompileTimes(device).expected_seconds(["step: a"]) == 0


def test_nothing_is_recorded_without_a_cache_folder_or_a_compiler(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CompileTimes(open_device("numpy")).record("step: a")
    assert CompileTimes(open_device("numpy")).expected_seconds(["step: b"]) == 0
    monkeypatch.setattr(compile_times, "cache_folder", lambda: None)
    compiled(device, "step: a", 6.0)
    assert CompileTimes(device).expected_seconds(["step: a"]) == DEFAULT_COMPILE_SECONDS
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(compile_times, "cache_folder", lambda: tmp_path / "gone")
    compiled(device, "step: a", 6.0)
    assert CompileTimes(device).expected_seconds(["step: a"]) == DEFAULT_COMPILE_SECONDS
