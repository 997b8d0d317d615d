"""A device is tried once, in another process; the outcome is stored, failures for some time."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import environment, open_pocl

from imgmlp.engine import open_device
from imgmlp.engine.device import discover, probe, trial
from imgmlp.engine.device.base import DeviceInfo
from imgmlp.engine.device.discover import find
from imgmlp.engine.device.driver_errors import build_failure, disk_full
from imgmlp.engine.device.numpy_device import numpy_info
from imgmlp.engine.device.probe import Outcome
from imgmlp.errors import DeviceError, ImgmlpError, ImgmlpWarning, OutOfMemoryError

OBJDUMP = shutil.which("objdump")


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder without outcomes."""
    monkeypatch.setattr(probe, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(probe, "_working", set())
    return tmp_path


@pytest.fixture(scope="module")
def info() -> DeviceInfo:
    """The info of a device that does not exist."""
    return DeviceInfo("9:9", "a maker", "a processor", "cpu", 2, 1 << 30, 1 << 15, "1.0", "3.0")


@pytest.fixture(scope="module")
def cpu_info() -> DeviceInfo:
    for _, info in find()[0]:
        if info.kind == "cpu":
            return info
    pytest.skip("no processor has an OpenCL driver")


@pytest.fixture
def next_outcomes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The problems that the next trials will report, as lasting ones; each is consumed."""
    left: list[str] = []
    monkeypatch.setattr(
        probe, "_try_device", lambda info: Outcome(left.pop(0), probe.FAILURE_LIFETIME)
    )
    return left


@pytest.fixture
def replace_trial_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """A function that replaces the trial process by a shell script."""

    def use(script: str) -> None:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))

    return use


def probe_anew(info: DeviceInfo) -> str:
    """The problem of a device as a new process would determine it."""
    probe._working.clear()
    return probe.problem_of(0, info)


def test_device_is_tried_once_per_driver(
    empty_cache: Path, next_outcomes: list[str], info: DeviceInfo
) -> None:
    next_outcomes += ["", "broken"]
    assert [probe_anew(info), probe_anew(info)] == ["", ""]
    other = replace(info, driver="newer")  # another driver version is tried again
    assert [
        probe_anew(other),
        probe_anew(other),
        probe_anew(info),
    ] == ["broken", "broken", ""]
    assert next_outcomes == []


@pytest.mark.parametrize(
    "changed", ["driver", "version", "compiled_for", "name", "platform", "spec"]
)
def test_key_depends_on_everything_that_may_change_the_outcome(
    info: DeviceInfo, changed: str
) -> None:
    assert probe._key(0, info) != probe._key(0, replace(info, **{changed: "another"}))


def test_key_depends_on_installed_linkers(
    monkeypatch: pytest.MonkeyPatch, info: DeviceInfo
) -> None:
    keys = set()
    for installed in ((), ("ld",), ("ld", "gcc")):
        here = dict.fromkeys(installed, "/usr/bin")
        monkeypatch.setattr(probe.shutil, "which", lambda name, here=here, **_: here.get(name))
        keys.add(probe._key(0, info))
    assert len(keys) == 3


def test_key_depends_on_whether_path_is_set(
    monkeypatch: pytest.MonkeyPatch,
    info: DeviceInfo,
    empty_cache: Path,
    replace_trial_process: Callable[[str], None],
) -> None:
    """Without PATH a missing linker is not remembered for environments with PATH."""
    keys = {probe._key(0, info)}
    replace_trial_process(f"echo error: {probe.LINKER_ERROR} >&2; kill -ABRT $$")
    monkeypatch.delenv("PATH")
    keys.add(probe._key(0, info))
    monkeypatch.setattr(probe.shutil, "which", lambda name, path=None: path and f"/usr/bin/{name}")
    keys.add(probe._key(0, info))
    assert len(keys) == 2
    assert "set PATH" in probe_anew(info)


def test_key_depends_on_driver_library_and_source_files(
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
    monkeypatch.setattr(probe, "SOURCE_MODULES", ("probe",))
    keys.add(probe._key(0, info))
    assert len(keys) == 4


def test_key_of_an_unknown_library_ignores_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, info: DeviceInfo, tmp_path: Path
) -> None:
    monkeypatch.setattr(probe, "_library_of", lambda handle: "")
    monkeypatch.chdir(tmp_path)
    before = probe._key(0, info)
    (tmp_path / "written.imlp").write_text("as every command does")
    os.utime(tmp_path, (0, 0))
    assert probe._key(0, info) == before


@pytest.mark.skipif(not probe.MAPS.exists(), reason="only Linux says what a process has loaded")
def test_library_of_a_device_is_found() -> None:
    for handle, info in find()[0]:
        if info.platform == "Portable Computing Language":
            assert "pocl" in Path(probe._library_of(handle.int_ptr)).name
            return
    pytest.skip("there is no PoCL")


def test_failure_is_remembered_for_a_day(
    empty_cache: Path, next_outcomes: list[str], info: DeviceInfo
) -> None:
    next_outcomes += ["broken", "", "never"]
    assert [probe_anew(info), probe_anew(info)] == ["broken", "broken"]
    (kept,) = empty_cache.glob("probe-*.json")
    then = kept.stat().st_mtime - probe.FAILURE_LIFETIME - 60
    os.utime(kept, (then, then))
    assert probe_anew(info) == ""
    os.utime(kept, (then, then))
    assert probe_anew(info) == ""  # success is remembered for longer
    assert next_outcomes == ["never"]


def test_timeout_is_remembered_for_some_minutes(
    monkeypatch: pytest.MonkeyPatch,
    empty_cache: Path,
    info: DeviceInfo,
    replace_trial_process: Callable[[str], None],
) -> None:
    """The machine may just have been busy."""
    replace_trial_process("exec sleep 60")
    monkeypatch.setattr(probe, "_timeout", lambda: 0.5)
    slow = probe_anew(info)
    assert slow.startswith("no answer")
    replace_trial_process("echo works")
    monkeypatch.setattr(probe, "_timeout", lambda: probe.TIMEOUT)
    assert probe_anew(info) == slow  # the next command does not wait again
    (kept,) = empty_cache.glob("probe-*.json")
    then = kept.stat().st_mtime - probe.TIMEOUT_LIFETIME - 60
    assert then > kept.stat().st_mtime - probe.FAILURE_LIFETIME
    os.utime(kept, (then, then))
    assert probe_anew(info) == ""


def test_forgotten_or_damaged_outcome_is_tried_again(
    empty_cache: Path, next_outcomes: list[str], info: DeviceInfo
) -> None:
    next_outcomes += ["broken", "", "", "", ""]
    assert probe_anew(info) == "broken"
    probe.forget_all()
    assert probe_anew(info) == ""
    (kept,) = empty_cache.glob("probe-*.json")
    for text in ("", '{"problem": ', '{"problem": 3}'):
        kept.write_text(text)
        assert probe_anew(info) == ""
    assert next_outcomes == []


@pytest.mark.parametrize("folder", [None, Path("/proc/none")])
def test_device_is_tried_once_per_process_without_a_cache(
    monkeypatch: pytest.MonkeyPatch,
    empty_cache: Path,
    next_outcomes: list[str],
    info: DeviceInfo,
    folder: Path | None,
) -> None:
    monkeypatch.setattr(probe, "cache_folder", lambda: folder)
    next_outcomes += [""]
    assert [probe.problem_of(0, info), probe.problem_of(0, info)] == ["", ""]
    assert next_outcomes == []


def test_outcome_that_cannot_be_stored_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path, next_outcomes: list[str], info: DeviceInfo
) -> None:
    """In a sticky folder another user's file cannot be replaced."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "replace", refuse)
    next_outcomes += ["broken", ""]
    assert [probe_anew(info), probe_anew(info)] == ["broken", ""]
    assert not list(empty_cache.glob("probe-*"))


# The trial process


def test_trial_of_a_working_device_reports_no_problem(
    empty_cache: Path, cpu_info: DeviceInfo
) -> None:
    assert probe._try_device(cpu_info).problem == ""


def test_missing_device_is_a_temporary_problem(empty_cache: Path, info: DeviceInfo) -> None:
    problem, believed = probe._try_device(info)
    assert "not there" in problem
    assert not believed


@pytest.mark.parametrize(
    ("script", "words", "lasts"),
    [
        ("echo assertion >&2; kill -ILL $$", "signal SIGILL: assertion", True),
        ("kill -SEGV $$", "signal SIGSEGV", True),
        ("kill -ABRT $$", "signal SIGABRT", True),
        ("echo a kernel does not compile", "a kernel does not compile", True),
        ("kill -KILL $$", "signal SIGKILL", False),  # as when memory is short
        ("kill -TERM $$", "signal SIGTERM", False),
        ("echo no memory; exit 75", "no memory", False),
        ("exit 3", "exit code 3: without a word", False),
        ("exit 0", "exit code 0: without a word", False),
        (f"echo error: {probe.LINKER_ERROR} >&2; kill -ABRT $$", "install gcc", True),
    ],
)
def test_crash_of_the_trial_process_is_a_problem_and_driver_faults_last(
    empty_cache: Path,
    info: DeviceInfo,
    replace_trial_process: Callable[[str], None],
    script: str,
    words: str,
    lasts: bool,
) -> None:
    """Outcomes that depend on the state of the machine, not the driver, are not stored."""
    replace_trial_process(script)
    assert words in probe_anew(info)
    replace_trial_process("echo works")
    assert (words in probe_anew(info)) == lasts
    assert len(list(empty_cache.glob("probe-*"))) == 1


def test_trial_that_crashes_on_a_damaged_kernel_is_repeated_without_it(
    empty_cache: Path, info: DeviceInfo, replace_trial_process: Callable[[str], None]
) -> None:
    damaged = empty_cache / "AB" / "PROGRAM" / "kernel" / "1" / "kernel.so"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"")
    replace_trial_process(f"[ -e {damaged} ] && kill -ABRT $$; echo works")
    assert probe_anew(info) == ""
    assert not damaged.exists()


def test_timeout_grows_with_the_load_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    for load in (0.0, 2.0, 6.0, 1000.0):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0), raising=False)
        limits.append(probe._timeout() / probe.TIMEOUT)
    monkeypatch.delattr(os, "getloadavg")
    limits.append(probe._timeout() / probe.TIMEOUT)
    assert limits == [1.0, 1.0, 3.0, probe.MAX_LOAD, 1.0]


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.ENOENT])
def test_failure_to_start_the_trial_process_is_a_temporary_problem(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path, info: DeviceInfo, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(probe.child, "run", fail)
    problem = probe_anew(info)
    assert problem == f"no process can be started to try it ({os.strerror(number)})"
    assert not list(empty_cache.glob("probe-*"))


@pytest.mark.parametrize(
    ("source", "words"), [("1.1f", "wrong numbers"), ("nothing", "does not compile")]
)
def test_wrong_results_of_the_driver_are_a_lasting_problem(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cpu_info: DeviceInfo,
    source: str,
    words: str,
) -> None:
    monkeypatch.setattr(trial, "SOURCE", trial.SOURCE.replace("1.0f", source))
    assert trial.main(cpu_info.spec) == 0
    assert words in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("64 bytes do not fit"),
        disk_full(None),
        build_failure("", "clBuildProgram failed: OUT_OF_HOST_MEMORY", numpy_info()),
    ],
    ids=["memory of the device", "disk", "memory"],
)
def test_lack_of_memory_or_disk_is_a_temporary_problem(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cpu_info: DeviceInfo,
    error: ImgmlpError,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(trial.Device, "build", fail)
    assert trial.main(cpu_info.spec) == probe.TEMPORARY_FAILURE
    assert str(error) in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.skipif(OBJDUMP is None, reason="objdump, which shows instructions, is not there")
def test_trial_kernel_uses_avx512_only_with_vectors_of_16(tmp_path: Path) -> None:
    """AVX-512 instructions are recognised by their zmm registers."""
    pocl = open_pocl()
    code = f"from imgmlp.engine.device import trial; trial.main({pocl.info.spec!r})"
    env = environment(POCL_CACHE_DIR=str(tmp_path))
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=300)
    (made,) = tmp_path.rglob("imgmlp_probe*.so")
    disassembly = subprocess.run(
        [str(OBJDUMP), "-d", made], capture_output=True, text=True, check=True
    )
    assert ("%zmm" in disassembly.stdout) == (pocl.vector_width == 16)


def test_concurrent_processes_try_a_device_once(tmp_path: Path, cpu_info: DeviceInfo) -> None:
    """Processes that waited use the stored outcome."""
    code = f"""
import sys, pathlib
from imgmlp.engine import open_device
from imgmlp.engine.device import probe
tried, log = probe._try_device, pathlib.Path(sys.argv[1])
def counted(info):
    with log.open("a") as file:
        file.write("tried ")
    return tried(info)
probe._try_device = counted
print(open_device({cpu_info.spec!r}).info.spec)
"""
    env = os.environ | {"POCL_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code, str(tmp_path / "log")]
    started = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE) for _ in range(4)]
    assert [p.communicate(timeout=300)[0].decode().strip() for p in started] == [cpu_info.spec] * 4
    assert (tmp_path / "log").read_text() == "tried "


def test_lock_timeout_exceeds_the_longest_trial(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path, next_outcomes: list[str], info: DeviceInfo
) -> None:
    """Otherwise a busy machine would try the device twice at the same time."""
    waits = []

    def watch(path: Path, timeout: float, holder: str) -> AbstractContextManager[None]:
        waits.append((timeout, holder))
        return nullcontext()

    monkeypatch.setattr(probe, "locked", watch)
    next_outcomes += [""]
    probe_anew(info)
    ((timeout, holder),) = waits
    assert timeout >= probe.TIMEOUT * probe.MAX_LOAD + 10
    assert info.describe() in holder


# Opening a device


@pytest.mark.parametrize("error", [DeviceError("opening failed"), OutOfMemoryError("no memory")])
def test_device_that_fails_to_open_is_skipped_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    empty_cache: Path,
    next_outcomes: list[str],
    info: DeviceInfo,
    error: ImgmlpError,
) -> None:
    class Closed:
        def __init__(self, handle: object, info: DeviceInfo) -> None:
            self.info = info
            if info.spec == "8:0":
                raise error

    pairs = [(SimpleNamespace(int_ptr=0), replace(info, spec=spec)) for spec in ("8:0", "9:0")]
    monkeypatch.setattr(discover, "find", lambda: (pairs, None))
    monkeypatch.setattr(discover, "Device", Closed)
    next_outcomes += ["", "", "", "tried again"]
    with pytest.warns(ImgmlpWarning, match=str(error)):
        assert open_device("auto").info.spec == "9:0"
    with pytest.raises(DeviceError, match=str(error)) as raised:
        open_device("8:0")
    assert raised.value.exit_code == 6
    with pytest.raises(DeviceError, match="tried again"):
        open_device("8:0")
    assert open_device("9:0").info.spec == "9:0"
    assert next_outcomes == []
