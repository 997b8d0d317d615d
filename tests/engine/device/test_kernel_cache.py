"""Compiled kernels are cached in memory for each device, and on disk for all processes."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import OPENCL, environment, open_opencl
from test_discover import run_python

from imgmlp.engine import Device, Tensor, compile
from imgmlp.engine.device import kernel_cache
from imgmlp.engine.device.driver_errors import LastingError
from imgmlp.errors import DeviceError, ImgmlpWarning

# A process that compiles one step, whose kernels depend on the number in its argument.
STEP_PROCESS = f"""
import sys
import numpy as np
from imgmlp.engine import Tensor, open_device
x = Tensor(np.arange(5, dtype=np.float32), open_device({OPENCL["device"]!r}))
print(float((x * float(sys.argv[1])).sum().item()))
"""


def test_device_compiles_equal_sources_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device, compiled = open_opencl(), []
    build = device._compile
    monkeypatch.setattr(device, "_compile", lambda *a: compiled.append(a[0]) or build(*a))
    for shape in ((3,), (3,), (5,)):
        x = Tensor(np.ones(shape, np.float32), device)
        program = compile(lambda x=x: {"y": x + 1}, device)
        program.run()
        assert (program.read("y") == 2).all()
    assert len(compiled) == len(set(compiled)) == 2


@pytest.mark.parametrize("times", [1, 2])
def test_cache_removed_during_compilation_is_recreated_or_named_in_the_error(
    pocl: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    place, build, tries = tmp_path / "cache", pocl._built, iter(range(times))
    monkeypatch.setenv("POCL_CACHE_DIR", str(place))

    def built(*given: Any) -> Any:
        assert place.is_dir()
        if next(tries, None) is not None:
            shutil.rmtree(place)
            return build("a fault", ["-DOF_THE=cache"])
        return build(*given)

    monkeypatch.setattr(pocl, "_built", built)
    source = f"__kernel void t_removed(__global float *x) {{ x[0] = {times}; }}"
    given = source, ["t_removed"], ["-DANY"]
    if times == 1:
        assert pocl.build(*given)
        return
    with pytest.raises(DeviceError, match=f"{place} was removed") as raised:
        pocl.build(*given)
    assert not isinstance(
        raised.value, LastingError
    )  # a lasting error would be remembered for a day


def run_step(folder: Path, factor: float) -> set[Path]:
    """Run STEP with its cache in a folder; what the folder then holds, marks of PoCL's aside."""
    env = environment(XDG_CACHE_HOME=str(folder), POCL_CACHE_DIR=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", STEP_PROCESS, str(factor)],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"{10.0 * factor}\n", "")
    files = {p for p in folder.rglob("*") if p.is_file() and p.name not in ("last_accessed",)}
    return {p for p in files if not p.name.startswith("tempfile")}


def test_next_process_compiles_only_new_kernels(pocl: Device, tmp_path: Path) -> None:
    first = run_step(tmp_path, 3)
    assert any(path.suffix == ".so" for path in first)
    stamps = {path: path.stat().st_mtime_ns for path in first if path.suffix == ".so"}
    assert run_step(tmp_path, 3) == first
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    more = run_step(tmp_path, 4)
    assert more > first  # another source
    assert {path.suffix for path in more - first} >= {".so"}


def test_private_cache_folder_is_recognised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    kernel_cache.choose_cache()
    assert not kernel_cache.is_private()
    monkeypatch.delenv("POCL_CACHE_DIR")
    monkeypatch.setattr(kernel_cache, "_user_cache", lambda: None)
    kernel_cache.choose_cache()
    assert kernel_cache.is_private()


def test_old_private_folders_of_killed_processes_are_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "_user_cache", lambda: None)
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    old, young = (tmp_path / f"{kernel_cache.PRIVATE_PREFIX}{name}" for name in ("old", "young"))
    for folder, age in ((old, 1.1), (young, 0.9)):
        (folder / "program").mkdir(parents=True)
        made = time.time() - age * kernel_cache.MAX_PRIVATE_AGE
        os.utime(folder, (made, made))
    kernel_cache.choose_cache()
    assert kernel_cache.is_private()
    assert (old.exists(), young.exists()) == (False, True)


def test_without_platformdirs_the_cache_folder_is_private(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    monkeypatch.setattr(kernel_cache, "platformdirs", None)
    kernel_cache.choose_cache()
    assert kernel_cache.is_private()


@pytest.mark.skipif(kernel_cache.fcntl is None, reason="no locks on this system")
def test_long_wait_for_a_lock_warns_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    monkeypatch.setattr(kernel_cache, "SILENT_WAIT", 0.0)
    with kernel_cache.locked(path, 10.0, "nobody"):  # free: no warning
        with (
            pytest.warns(ImgmlpWarning) as warned,
            kernel_cache.locked(path, 0.1, "another process"),
        ):
            pass  # continues without the lock
        assert [str(one.message) for one in warned] == ["waiting for another process"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with kernel_cache.locked(path, 0.1):
                pass


# The step of STEP, where no file can have more than so many bytes.
LIMIT_FILE_SIZE = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
"""


def test_file_size_limit_raises_an_error_instead_of_killing_the_process(
    pocl: Device, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMIT_FILE_SIZE + STEP_PROCESS, "3"],
        env=environment(XDG_CACHE_HOME=str(tmp_path), POCL_CACHE_DIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stderr  # not killed by a signal
    last = done.stderr.splitlines()[-1]
    assert "DeviceError: PoCL" in last
    assert "what kernels are compiled to cannot be written to" in last
    assert "ulimit -f" in last


def raise_disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_makes_the_cache_folder_private(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("os.posix_fallocate", raise_disk_full)
    kernel_cache.choose_cache()
    assert kernel_cache.is_private()


def test_disk_without_fallocate_counts_as_having_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unknown(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("os.posix_fallocate", unknown)
    assert kernel_cache.has_space(tmp_path)


def test_full_disk_during_compilation_raises_a_device_error(
    pocl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Tensor(np.ones(7, np.float32), pocl)
    monkeypatch.setattr("os.posix_fallocate", raise_disk_full)
    with pytest.raises(DeviceError, match="cannot be written") as raised:
        (x * 0.123).sum().item()
    assert "POCL_CACHE_DIR" in raised.value.hint
    monkeypatch.undo()
    assert (x + 1).sum().item() == 14  # the device still works


# --- the folder ---


def test_each_processor_has_its_own_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    seen = []
    aa, bb = "aa" * 8, "bb" * 8
    for digest in (aa, bb, aa):
        monkeypatch.setattr(kernel_cache, "processor_digest", lambda digest=digest: digest)
        kernel_cache.choose_cache()  # also from the other's folder, as a child on another machine
        seen.append(kernel_cache.cache_folder())
    assert seen == [tmp_path / f"processor-{digest}" for digest in (aa, bb, aa)]


def test_folder_of_the_user_is_kept_as_the_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("processor-cache", f"processor-{'a' * 17}", f"my-processor-{'a' * 16}"):
        monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / name))
        kernel_cache.choose_cache()
        chosen = kernel_cache.cache_folder()
        assert chosen is not None
        assert chosen.parent == tmp_path / name
        assert kernel_cache.PROCESSOR_FOLDER.fullmatch(chosen.name)


def test_processor_digest_depends_on_flags_and_model(
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


# Files of a program in PoCL's cache, and the fraction that is left. Bitcode has no length field.
@pytest.mark.parametrize(("part", "left"), [(".so", 0), (".so", 0.5), (".bc", 0)])
def test_truncated_cache_files_are_compiled_again(
    pocl: Device, tmp_path: Path, part: str, left: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are checked after a restart of the machine, as PoCL would abort when loading them."""
    first = run_step(tmp_path, 3)
    place = kernel_cache._processor_folder(tmp_path)
    code = next(p for p in first if p.suffix == ".so" and "probe" not in p.name)
    cut = (
        code if part == ".so" else place.joinpath(*code.relative_to(place).parts[:2]) / "program.bc"
    )
    assert cut in first
    cut.write_bytes(cut.read_bytes()[: int(left * cut.stat().st_size)])
    (place / "imgmlp-boot").write_text("an earlier start")
    assert run_step(tmp_path, 3) == first
    assert kernel_cache._is_whole(cut)
    cut.write_bytes(b"")
    monkeypatch.setenv("POCL_CACHE_DIR", str(place))
    kernel_cache.choose_cache()  # no longer after a start
    assert cut.exists()
    kernel_cache.remove_damaged(place)
    assert not cut.exists()
    assert run_step(tmp_path, 3) == first


@pytest.mark.skipif(sys.platform != "linux", reason="machine code is of another kind here")
@pytest.mark.parametrize("size", [4, 16, 0x29, 63])
def test_machine_code_shorter_than_its_header_is_not_whole(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.so").write_bytes((kernel_cache.ELF_MAGIC + bytes(64))[:size])
    assert not kernel_cache._is_whole(tmp_path / "a.so")


# A process with a device, and one that is forked from it.
FORKED_PROCESS = f"""
import os
import numpy as np
from imgmlp.engine import Tensor, open_device
from imgmlp.errors import DeviceError
device = open_device({OPENCL["device"]!r})
x = Tensor(np.ones(5, np.float32), device)
print(float((x + 1).sum().item()), flush=True)
if os.fork():
    os.wait()
else:
    for use in (lambda: open_device("auto"), lambda: (x + 2).sum().item()):
        try:
            use()
        except DeviceError as error:
            print(error, "spawn" in error.hint, flush=True)
    print(open_device("numpy").info.spec, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_process_gets_an_error_instead_of_a_deadlock() -> None:
    run = [sys.executable, "-W", "ignore", "-c", FORKED_PROCESS]
    env = environment()
    done = subprocess.run(run, env=env, capture_output=True, text=True, timeout=600, check=False)
    message = "this process was forked from one that had opened an OpenCL device True"
    assert (done.stdout.splitlines(), done.stderr) == (["10.0", message, message, "numpy"], "")


# A new process that computes a sum with a kernel and prints it.
SUM_PROCESS = f"""
import numpy as np
from imgmlp.engine import Tensor, open_device
device = open_device({OPENCL["device"]!r})
print(float((Tensor(np.arange(5.0), device) * 3).sum().item()))
"""


@pytest.mark.parametrize(
    "changes",
    [
        {"HOME": None, "XDG_CACHE_HOME": None},
        {"HOME": "/nonexistent", "XDG_CACHE_HOME": None},
        {"HOME": "/proc", "XDG_CACHE_HOME": "/proc"},
    ],
    ids=["no HOME", "HOME that is not there", "HOME that cannot be written"],
)
def test_kernels_run_without_a_writable_cache_folder(changes: dict[str, str | None]) -> None:
    done = run_python(SUM_PROCESS, POCL_CACHE_DIR=None, **changes)
    assert (done.stdout, done.stderr) == ("30.0\n", "")


@pytest.mark.parametrize(
    ("processes", "rounds"), [(4, 1), pytest.param(16, 50, marks=pytest.mark.soak)]
)
def test_concurrent_processes_on_an_empty_cache_all_succeed(
    tmp_path: Path, processes: int, rounds: int
) -> None:
    for turn in range(rounds):
        cache = tmp_path / str(turn) / "pocl"
        cache.mkdir(parents=True)
        env = environment(XDG_CACHE_HOME=str(cache.parent), POCL_CACHE_DIR=str(cache))
        env |= {"PYTHONWARNINGS": "ignore:waiting for another process"}  # as on a busy machine
        command = [sys.executable, "-c", SUM_PROCESS]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started = [subprocess.Popen(command, env=env, **pipes) for _ in range(processes)]
        for process in started:
            out, err = process.communicate(timeout=300)
            assert (out, err) == (b"30.0\n", b"")
        assert any(cache.iterdir())
