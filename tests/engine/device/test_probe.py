"""A device is tried once in a process of its own; what came of it is kept, a failure for a day."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from imgmlp.engine import Device, NumpyDevice, open_device
from imgmlp.engine.device import discover, kernel_cache, probe, trial
from imgmlp.engine.device.base import DeviceInfo
from imgmlp.engine.device.discover import find
from imgmlp.errors import DeviceError, ImgmlpWarning

Pair = tuple[object, DeviceInfo]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder where nothing is known yet."""
    monkeypatch.setattr(probe, "current", lambda: tmp_path)
    monkeypatch.setattr(probe, "_working", set())
    return tmp_path


@pytest.fixture(scope="module")
def info() -> DeviceInfo:
    return open_device("cpu").info


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the next tries will find; each is used up."""
    left: list[str] = []
    monkeypatch.setattr(probe, "_tried", lambda info: left.pop(0))
    return left


def ask(info: DeviceInfo) -> str:
    """As a new process would."""
    probe._working.clear()
    return probe.problem_of(0, info)


def test_an_outcome_is_found_once(place: Path, outcomes: list[str], info: DeviceInfo) -> None:
    outcomes += ["", "broken"]
    assert [ask(info), ask(info)] == ["", ""]
    other = replace(info, driver="newer")  # another driver is tried anew
    assert [ask(other), ask(other), ask(info)] == ["broken", "broken", ""]
    assert outcomes == []


@pytest.mark.parametrize(
    "changed", ["driver", "version", "compiled_for", "name", "platform", "spec"]
)
def test_what_may_change_the_outcome_has_one_of_its_own(info: DeviceInfo, changed: str) -> None:
    assert probe._key(0, info) != probe._key(0, replace(info, **{changed: "another"}))


def test_a_reinstalled_driver_or_program_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, info: DeviceInfo, tmp_path: Path
) -> None:
    library = tmp_path / "libdriver.so"
    monkeypatch.setattr(probe, "_library_of", lambda handle: str(library))
    keys = set()
    for text in ("one", "longer"):
        library.write_text(text)
        keys.add(probe._key(0, info))
    os.utime(library, (0, 0))
    keys.add(probe._key(0, info))
    monkeypatch.setattr(probe, "SOURCES", ("probe",))
    keys.add(probe._key(0, info))
    assert len(keys) == 4


@pytest.mark.skipif(not probe.MAPS.exists(), reason="only Linux says what a process has loaded")
def test_a_devices_library_is_known() -> None:
    for handle, info in find()[0]:
        if info.platform == "Portable Computing Language":
            assert "pocl" in Path(probe._library_of(handle.int_ptr)).name
            return
    pytest.skip("there is no PoCL")


def test_a_failure_is_believed_for_a_day(
    place: Path, outcomes: list[str], info: DeviceInfo
) -> None:
    outcomes += ["broken", "", "never"]
    assert [ask(info), ask(info)] == ["broken", "broken"]
    (kept,) = place.glob("probe-*.json")
    then = kept.stat().st_mtime - probe.DAY - 60
    os.utime(kept, (then, then))
    assert ask(info) == ""
    os.utime(kept, (then, then))
    assert ask(info) == ""  # what works is believed for longer
    assert outcomes == ["never"]


def test_what_is_forgotten_or_damaged_is_tried_again(
    place: Path, outcomes: list[str], info: DeviceInfo
) -> None:
    outcomes += ["broken", "", "", "", ""]
    assert ask(info) == "broken"
    probe.forget()
    assert ask(info) == ""
    (kept,) = place.glob("probe-*.json")
    for text in ("", '{"problem": ', '{"problem": 3}'):
        kept.write_text(text)
        assert ask(info) == ""
    assert outcomes == []


@pytest.mark.parametrize("folder", [None, Path("/proc/none")])
def test_where_nothing_can_be_kept_a_process_tries_once(
    monkeypatch: pytest.MonkeyPatch,
    place: Path,
    outcomes: list[str],
    info: DeviceInfo,
    folder: Path | None,
) -> None:
    monkeypatch.setattr(probe, "current", lambda: folder)
    outcomes += [""]
    assert [probe.problem_of(0, info), probe.problem_of(0, info)] == ["", ""]
    assert outcomes == []


# The process


def test_a_device_that_works_is_tried_and_found_to(place: Path, info: DeviceInfo) -> None:
    assert probe._tried(info) == ""


def test_a_device_that_is_gone_is_a_problem(place: Path, info: DeviceInfo) -> None:
    assert "not there" in probe._tried(replace(info, spec="9:9"))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo assertion >&2; kill -ILL $$", "signal SIGILL: assertion"),
        ("exit 3", "exit code 3: without a word"),
        ("exec sleep 60", "no answer"),
        ("echo a kernel does not compile", "a kernel does not compile"),
        ("exit 0", "exit code 0: without a word"),
    ],
)
def test_a_process_that_is_lost_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, info: DeviceInfo, script: str, words: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(probe, "TIMEOUT", 2.0)
    assert words in probe._tried(info)


def test_no_process_is_a_problem(monkeypatch: pytest.MonkeyPatch, info: DeviceInfo) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert "no process can be started" in probe._tried(info)


def test_wrong_numbers_are_a_failure(monkeypatch: pytest.MonkeyPatch, info: DeviceInfo) -> None:
    monkeypatch.setattr(trial, "SOURCE", trial.SOURCE.replace("1.0f", "1.1f"))
    with pytest.raises(DeviceError, match="wrong numbers"):
        trial.use(info.spec)


def test_processes_that_start_together_try_once(tmp_path: Path, info: DeviceInfo) -> None:
    """Whoever waited finds what was found."""
    code = f"""
import sys, pathlib
from imgmlp.engine import open_device
from imgmlp.engine.device import probe
tried, log = probe._tried, pathlib.Path(sys.argv[1])
def counted(info):
    with log.open("a") as file:
        file.write("tried ")
    return tried(info)
probe._tried = counted
print(open_device({info.spec!r}).info.spec)
"""
    env = os.environ | {"POCL_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    started = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE) for _ in range(4)]
    assert [p.communicate(timeout=300)[0].decode().strip() for p in started] == [info.spec] * 4
    assert (tmp_path / "log").read_text() == "tried "


# Choosing


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Has devices listed that have the problems given; the last is one that there is."""
    real = next(pair for pair in find()[0] if pair[1].kind == "cpu")

    def show(problems: dict[str, str]) -> None:
        pairs = [(real[0], replace(real[1], spec=spec)) for spec in problems]
        monkeypatch.setattr(discover, "find", lambda: (pairs, None))
        monkeypatch.setattr(discover, "problem_of", lambda handle, info: problems[info.spec])

    return show


def test_auto_passes_over_what_does_not_work(listed: Callable[[dict[str, str]], None]) -> None:
    listed({"8:0": "its compiler broke", "9:0": ""})
    for spec in ("auto", "cpu"):
        with pytest.warns(ImgmlpWarning) as said:
            assert open_device(spec).info.spec == "9:0"
        (one,) = said
        assert "its compiler broke" in str(one.message)
        assert "devices --check" in str(one.message)
        assert "\n" not in str(one.message)


def test_auto_ends_at_numpy_and_says_what_it_costs(
    listed: Callable[[dict[str, str]], None],
) -> None:
    listed({"8:0": "broken", "9:0": "lost"})
    with pytest.warns(ImgmlpWarning) as said:
        assert isinstance(open_device("auto"), NumpyDevice)
    first, second, numpy = (str(one.message) for one in said)
    assert "broken" in first
    assert "lost" in second
    assert "many times as long" in numpy


@pytest.mark.parametrize("spec", ["8:0", "cpu"])
def test_what_was_asked_for_is_never_replaced(
    listed: Callable[[dict[str, str]], None], recwarn: pytest.WarningsRecorder, spec: str
) -> None:
    listed({"8:0": "broken"})
    with pytest.raises(DeviceError, match="does not work: broken") as raised:
        open_device(spec)
    assert raised.value.exit_code == 6
    assert "--device numpy" in raised.value.hint
    assert not recwarn.list
    assert isinstance(discover.open_untried(spec), Device)


# The folder


def test_each_processor_has_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    seen = []
    for digest in ("aa", "bb", "aa"):
        monkeypatch.setattr(kernel_cache, "processor_digest", lambda digest=digest: digest)
        kernel_cache.choose_cache()  # also from the other's folder, as a child on another machine
        seen.append(kernel_cache.current())
    assert seen == [tmp_path / "processor-aa", tmp_path / "processor-bb", tmp_path / "processor-aa"]


def test_processors_differ_by_flags_and_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(kernel_cache, "CPUINFO", cpuinfo)
    digests = []
    for model, mhz, flags in [(1, 2, "avx"), (1, 3, "avx"), (2, 2, "avx"), (1, 2, "sse2")]:
        cpuinfo.write_text(f"model\t\t: {model}\ncpu MHz\t: {mhz}\n")
        monkeypatch.setattr(kernel_cache, "processor_flags", lambda flags=flags: frozenset({flags}))
        digests.append(kernel_cache.processor_digest.__wrapped__())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_what_earlier_versions_kept_goes_when_unused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel_cache, "_user_cache", lambda: tmp_path)
    for name in ("AB", "CD", "processor-aa"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kernel.so").write_text("")
    for name in ("AB", "processor-aa"):
        os.utime(tmp_path / name, (0, 0))
    kernel_cache._sweep_unkeyed()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["CD", "processor-aa"]
