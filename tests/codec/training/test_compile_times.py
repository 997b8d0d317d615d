"""What is remembered of how long programs took to compile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imgmlp.codec.training import compile_times, pace
from imgmlp.codec.training.compile_times import NAME, PROCESSORS, UNKNOWN, CompileTimes
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
    times.note(program)


def test_a_program_of_a_known_kind_takes_as_long_as_the_others(device: Any) -> None:
    assert CompileTimes(device).expected(["step: a"]) == UNKNOWN
    for program, seconds in (("step: a", 6.0), ("step: b", 8.0), ("decoding: a", 2.0)):
        compiled(device, program, seconds)
    assert CompileTimes(device).expected(["step: a", "decoding: a"]) == 0
    assert CompileTimes(device).expected(["step: c", "step: b", "decoding: c"]) == 7.0 + 2.0


def test_what_is_large_takes_processors_longer_until_more_is_known(device: Any) -> None:
    (slow,) = PROCESSORS
    assert CompileTimes(device).expected([f"{slow}: a"]) == PROCESSORS[slow] > UNKNOWN
    compiled(device, f"{slow}: b", 7.0)
    assert CompileTimes(device).expected([f"{slow}: a"]) == 7.0
    device.info.kind, device.info.name = "gpu", "another"
    assert CompileTimes(device).expected([f"{slow}: a"]) == UNKNOWN


def test_what_is_done_before_the_driver_compiles_takes_time_as_well(device: Any) -> None:
    times = CompileTimes(device)
    device.compiling, device.lowering = 2.0, 3.0
    times.note("step: a")
    assert times.expected(["step: b"]) == 5.0


def test_a_speed_is_that_of_the_last_time(device: Any) -> None:
    times = CompileTimes(device)
    assert times.speed("step") is None
    for noted, kept in ((2e12, 2e12), (2.1e12, 2e12), (3e12, 3e12), (1e12, 1e12)):
        times.note_speed("step", noted)
        assert CompileTimes(device).speed("step") == kept
    assert times.speed("decoding") is None
    assert times.expected(["step: a"]) == UNKNOWN


@pytest.mark.parametrize(
    ("known", "clock", "seconds"),
    [(2e12, 1000, 50.0), (None, 1000, 1e14 / 7.68e12), (None, 0, 1e14 / pace.GPU)],
)
def test_how_fast_a_graphics_card_is_it_has_shown_or_its_clock_tells(
    known: float | None, clock: int, seconds: float, device: Any
) -> None:
    device.lanes, device.info.clock, device.info.compute_units = "group", clock, 100
    if known:
        CompileTimes(device).note_speed("step", known)
    found = pace.Work(10, 1e14, (), kind="step").seconds(device)
    assert found == pytest.approx(pace.READY + seconds)


def test_what_was_compiled_for_another_processor_says_nothing(device: Any) -> None:
    compiled(device, "step: a", 6.0)
    device.info.compiled_for = "another"
    assert CompileTimes(device).expected(["step: a"]) == UNKNOWN


def test_what_another_version_compiled_tells_only_how_long_it_takes(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(device, "step: a", 6.0)
    monkeypatch.setattr(compile_times, "source_digest", lambda: "0" * 64)
    assert CompileTimes(device).expected(["step: a"]) == 6.0
    compiled(device, "step: a", 0.2)
    assert CompileTimes(device).expected(["step: a"]) == 0
    assert (tmp_path / NAME).read_text().count("step: a") == 1  # the older one is forgotten


def test_what_the_driver_found_says_nothing_of_what_it_compiles(device: Any) -> None:
    compiled(device, "step: a", 6.0)
    compiled(device, "step: b", 0.1)
    compiled(device, "step: a", 0.1)
    assert CompileTimes(device).expected(["step: b"]) == 0
    assert CompileTimes(device).expected(["step: c"]) == 6.0


def test_each_program_has_what_was_compiled_since_the_one_before(device: Any) -> None:
    times = CompileTimes(device)
    for program, seconds in (("step: a", 6.0), ("decoding: a", 2.0)):
        device.compiling += seconds
        times.note(program)
    assert times.expected(["step: b"]) == 6.0
    assert times.expected(["decoding: b"]) == 2.0


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 3}', '{"a": {"b": "c"}}', "\xff"])
def test_a_damaged_record_is_as_good_as_none(device: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text, "latin-1")
    assert CompileTimes(device).expected(["step: a"]) == UNKNOWN
    compiled(device, "step: a", 6.0)
    assert CompileTimes(device).expected(["step: a"]) == 0


def test_without_a_place_or_a_compiler_nothing_is_kept(
    device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CompileTimes(open_device("numpy")).note("step: a")
    assert CompileTimes(open_device("numpy")).expected(["step: b"]) == 0
    monkeypatch.setattr(compile_times, "cache_folder", lambda: None)
    compiled(device, "step: a", 6.0)
    assert CompileTimes(device).expected(["step: a"]) == UNKNOWN
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(compile_times, "cache_folder", lambda: tmp_path / "gone")
    compiled(device, "step: a", 6.0)
    assert CompileTimes(device).expected(["step: a"]) == UNKNOWN
