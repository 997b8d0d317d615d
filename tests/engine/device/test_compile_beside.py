"""Helper processes compile some kernels of a program to machine code, in parallel to this one."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import open_pocl

from imgmlp import child
from imgmlp.engine import Device
from imgmlp.engine.device import compile_beside, compile_for, kernel_cache, opencl
from imgmlp.engine.device.base import Launch
from imgmlp.engine.device.compile_beside import Task, compiling_processes, process_count
from imgmlp.errors import DeviceError

KERNEL_COUNT = 6


@pytest.fixture
def shared_cache(pocl: Device) -> Path:
    folder = kernel_cache.cache_folder()
    assert folder is not None
    return folder


def new_source(kernels: int = KERNEL_COUNT) -> tuple[str, list[str]]:
    """Source of new kernels, each of which adds its number to half of a value.

    The names are unique, as PoCL's cache ignores comments.
    """
    own = f"{os.getpid()}_{time.time_ns()}"
    names = [f"beside_{own}_{n}" for n in range(kernels)]
    text = "".join(
        f"__kernel void {name}(__global float *x, const int from) "
        f"{{ for (int i = from; i < 4; ++i) x[i] = 0.5f * x[i] + {n}.0f; }}\n"
        for n, name in enumerate(names)
    )
    return text, names


@pytest.fixture
def private_caches(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The private cache folders of the helpers that a test starts."""
    folders, kind = list[Path](), child.Helper

    def started(module: str, place: str, **variables: str) -> child.Helper:
        folders.append(Path(place))
        return kind(module, place, **variables)

    monkeypatch.setattr(child, "Helper", started)
    return folders


def wait_for_end(helper: child.Helper) -> None:
    end = time.monotonic() + 120
    helper.wait(lambda: time.monotonic() > end)
    assert not helper.working


def value_after_all(kernels: int) -> list[float]:
    value = 0.0
    for n in range(kernels):
        value = 0.5 * value + n
    return [value] * 4


def launches_of(device: Device, source: str, names: Sequence[str]) -> tuple[Any, list[Launch]]:
    values = device.alloc(16)
    device.write(values, np.zeros(4, np.float32))
    handles = device.build(source, names)
    arguments = values, np.int32(0)
    return values, [device.bind(handles[name], arguments, (1,), (1,)) for name in names]


@pytest.mark.parametrize(
    ("kernels", "cores", "setting", "processes"),
    [
        (40, 2, None, 1),
        (40, 1, None, 0),
        (40, 16, None, 3),
        (40, 16, "1", 1),
        (40, 16, "9", 9),
        (40, 16, "0", 0),
        (40, 16, "-1", 0),
        (40, 16, "many", 3),
        (9, 16, None, 2),
        (3, 16, None, 0),
    ],
)
def test_number_of_compiling_processes_depends_on_cores_and_kernels(
    kernels: int, cores: int, setting: str | None, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(child.COMPILERS_VARIABLE, raising=False)
    if setting is not None:
        monkeypatch.setenv(child.COMPILERS_VARIABLE, setting)
    assert process_count(kernels, cores) == processes


@pytest.mark.parametrize("count", [1, 2])
def test_machine_code_of_helpers_is_used_at_launch(
    count: int, pocl: Device, shared_cache: Path, private_caches: list[Path]
) -> None:
    source, names = new_source()
    values, launches = launches_of(pocl, source, names)
    tasks = [Task.of(launch) for launch in launches]
    with compiling_processes(pocl.info.spec, source, (), tasks, count) as helpers:
        assert len(helpers) == count
        for helper in helpers:
            wait_for_end(helper)
            assert helper.done
        (program,) = (path.parent for path in shared_cache.glob(f"[A-Z][A-Z]/*/{names[-1]}"))
        code = {path: path.stat().st_mtime_ns for path in program.rglob("*.so")}
        assert {path.stem for path in code} == set(names)
        pocl.launch_all(launches)
        pocl.finish()
    assert code == {path: path.stat().st_mtime_ns for path in program.rglob("*.so")}
    actual = np.empty(4, np.float32)
    pocl.read(values, actual)
    assert actual.tolist() == value_after_all(KERNEL_COUNT)
    assert len(private_caches) == count
    assert not any(place.exists() for place in private_caches)


def test_existing_machine_code_is_not_compiled_again(
    pocl: Device, private_caches: list[Path]
) -> None:
    source, names = new_source()
    _, launches = launches_of(pocl, source, names)
    pocl.launch_all(launches)
    tasks = [Task.of(launch) for launch in launches]
    with compiling_processes(pocl.info.spec, source, (), tasks, 1) as (helper,):
        wait_for_end(helper)
        assert helper.done
        (place,) = private_caches
        assert compile_for.opened(place)
        assert not list(place.glob(f"{compile_for.PROGRAM_FOLDERS}/{names[0]}"))


def test_helper_processes_start_no_helpers_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    child_environment: dict[str, str] = {}
    monkeypatch.setattr("subprocess.Popen", lambda *_, env, **__: child_environment.update(env))
    monkeypatch.setenv(child.COMPILERS_VARIABLE, "5")
    child.Helper("calendar", OWN="3")
    assert (child_environment[child.COMPILERS_VARIABLE], child_environment["OWN"]) == ("0", "3")
    child.Helper("calendar", may_have_helpers=True)
    assert child_environment[child.COMPILERS_VARIABLE] == "5"


def test_helpers_are_requested_once_after_a_slow_first_launch(
    pocl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first slow launch, helpers are requested once for the remaining kernels."""
    requests: list[tuple[list[str], int]] = []

    def noted(spec: str, source: str, options: Any, tasks: Any, count: int) -> Any:
        assert source == text
        requests.append(([task.kernel for task in tasks], count))
        return contextlib.nullcontext()

    monkeypatch.setattr(opencl, "compiling_processes", noted)
    monkeypatch.setattr(opencl, "MIN_COLD_SECONDS", 1e-3)
    monkeypatch.setattr(opencl, "available_cores", lambda: 2)
    monkeypatch.setattr(pocl, "info", replace(pocl.info, compute_units=3))
    monkeypatch.setenv(child.COMPILERS_VARIABLE, "5")
    text, names = new_source()
    _, launches = launches_of(pocl, text, names)
    pocl.launch_all(launches)
    assert requests == [(names[1:], 1)]
    pocl.launch_all(launches)
    assert len(requests) == 1


def test_step_with_compiling_helpers_gives_the_same_results(
    pocl: Device, monkeypatch: pytest.MonkeyPatch, private_caches: list[Path]
) -> None:
    monkeypatch.setattr(opencl, "MIN_COLD_SECONDS", 0.0)
    monkeypatch.setattr(opencl, "available_cores", lambda: 2)
    monkeypatch.setattr(pocl, "info", replace(pocl.info, compute_units=2))
    monkeypatch.setenv(child.COMPILERS_VARIABLE, "1")
    values, launches = launches_of(pocl, *new_source())
    pocl.launch_all(launches)
    actual = np.empty(4, np.float32)
    pocl.read(values, actual)
    assert actual.tolist() == value_after_all(KERNEL_COUNT)
    (place,) = private_caches
    assert not place.exists()


def test_slow_launches_of_compiled_kernels_request_no_helpers(
    pocl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of compilation counts, not that of the previous kernel."""
    source, names = new_source()
    pocl.launch_all(launches_of(pocl, source, names)[1])
    requests = list[Any]()
    monkeypatch.setattr(
        opencl, "compiling_processes", lambda *arguments: requests.append(arguments)
    )
    other = open_pocl()
    monkeypatch.setattr(other, "_launch_first", partial(launch_slowly, other._launch_first))
    other.launch_all(launches_of(other, source, names)[1])
    assert requests == []


def launch_slowly(launch_first: Any, launch: Launch, queue: Any) -> Any:
    time.sleep(2 * opencl.MIN_COLD_SECONDS)
    return launch_first(launch, queue)


def test_launch_error_names_its_kernel(pocl: Device) -> None:
    source, names = new_source()
    _, launches = launches_of(pocl, source, names)
    launches[1].global_size = (3,)
    launches[1].local_size = (2,)
    with pytest.raises(DeviceError, match=names[1]):
        pocl.launch_all(launches)


def test_failing_helper_does_not_affect_launches(pocl: Device) -> None:
    source, names = new_source()
    values, launches = launches_of(pocl, source, names)
    tasks = [Task.of(launch) for launch in launches]
    with compiling_processes("99:0", source, (), tasks, 1) as (helper,):
        wait_for_end(helper)
        assert not helper.done
        pocl.launch_all(launches)
    actual = np.empty(4, np.float32)
    pocl.read(values, actual)
    assert actual[0] > KERNEL_COUNT - 1


def test_helpers_are_ended_when_no_longer_needed(
    pocl: Device, shared_cache: Path, private_caches: list[Path]
) -> None:
    source, names = new_source()
    _, launches = launches_of(pocl, source, names)
    with compiling_processes(pocl.info.spec, source, (), [Task.of(one) for one in launches], 1) as (
        helper,
    ):
        (place,) = private_caches
        assert place.parent == shared_cache
    assert not helper.working
    assert not place.exists()


def test_tasks_with_large_buffers_stay_in_the_main_process(
    shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[dict[str, Any]] = []

    def started(_: str, place: str, **__: str) -> Any:
        requests.append(json.loads((Path(place) / compile_beside.REQUEST_FILE).read_text()))
        return contextlib.nullcontext()

    monkeypatch.setattr(child, "Helper", started)
    most = compile_beside.MAX_TASK_BYTES
    tasks = [Task(f"k{n}", (1,), (1,), [n * most // 4, ["<i4", 7]]) for n in range(7)]
    with compiling_processes("0:0", "", (), tasks, 2):
        pass
    assert [[task["kernel"] for task in one["tasks"]] for one in requests] == [
        ["k4", "k2", "k0"],
        ["k3", "k1"],
    ]


def test_task_arguments_are_buffer_sizes_and_typed_numbers(pocl: Device) -> None:
    memory, number = pocl.alloc(20), np.uint32(2**31 + 1)
    launch = SimpleNamespace(
        handle=SimpleNamespace(name="k"), global_size=(8,), local_size=None, kept=[memory, number]
    )
    task = Task.of(launch)  # type: ignore[arg-type]
    assert (task.kernel, task.global_size, task.local_size) == ("k", (8,), ())
    assert task.arguments == [20, ["<u4", 2**31 + 1]]
    again = [compile_for._argument(pocl, one) for one in task.arguments]
    assert again[0].nbytes == 20
    assert again[1] == number
    assert again[1].dtype == number.dtype
    values = np.ones(5, np.float32)
    pocl.read(again[0], values)
    assert not values.any()


def test_machine_code_is_moved_without_overwriting(tmp_path: Path) -> None:
    own, shared_cache = tmp_path / "own", tmp_path / "shared"
    for kernel in ("new", "old"):
        (own / kernel / "1-1-1").mkdir(parents=True)
        (own / kernel / "1-1-1" / "code.so").write_text("its own")
    (shared_cache / "old" / "1-1-1").mkdir(parents=True)
    (shared_cache / "old" / "1-1-1" / "code.so").write_text("theirs")
    for kernel in ("new", "old", "none"):
        compile_for.hand_over(own / kernel, shared_cache / kernel)
    contents = {str(p.relative_to(shared_cache)): p.read_text() for p in shared_cache.rglob("*.so")}
    assert contents == {"new/1-1-1/code.so": "its own", "old/1-1-1/code.so": "theirs"}


def test_bitcode_of_the_newest_programs_is_linked(tmp_path: Path) -> None:
    own, past = tmp_path / "imgmlp-pocl-own", time.time() - 1000
    for n in range(compile_for.MAX_LINKED_PROGRAMS + 3):
        program = tmp_path / "AB" / f"C{n}"
        (program / "kernel").mkdir(parents=True)
        (program / compile_for.BITCODE_FILE).write_text(f"bitcode {n}")
        (program / compile_for.OPENED_MARK).touch()
        os.utime(program, (past + n, past + n))
    (tmp_path / "AB" / "C1" / "compiled since").mkdir()
    (tmp_path / "programs").mkdir()
    own.mkdir()
    compile_for.link_bitcode(tmp_path, own)
    lent = {str(p.relative_to(own)): p.read_text() for p in own.rglob("*") if p.is_file()}
    assert lent == {f"AB/C{n}/{compile_for.BITCODE_FILE}": f"bitcode {n}" for n in (1, 4, 5, 6)}
    assert compile_for.opened(own) == []
    compile_for.link_bitcode(tmp_path, own)  # repeated linking keeps existing files


def test_helper_without_disk_space_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = {"spec": "0:0", "source": "", "options": [], "tasks": []}
    (tmp_path / compile_beside.REQUEST_FILE).write_text(json.dumps(request))
    opened = list[str]()
    monkeypatch.setattr(compile_for, "has_space", lambda _: False)
    monkeypatch.setattr(compile_for, "open_untried", opened.append)
    compile_for.run(tmp_path, lambda: False)
    assert opened == []


@pytest.mark.parametrize("compiling", [False, True], ids=["begins", "compiles"])
def test_helper_whose_parent_died_leaves_no_files(
    pocl: Device, shared_cache: Path, private_caches: list[Path], compiling: bool
) -> None:
    source, names = new_source(60)
    _, launches = launches_of(pocl, source, names)
    with compiling_processes(pocl.info.spec, source, (), [Task.of(one) for one in launches], 1) as (
        helper,
    ):
        helper.wait(lambda: not compiling or bool(compile_for.opened(private_caches[0])))
        assert helper._process is not None
        assert helper._process.stdin is not None
        helper._process.stdin.close()  # as the end of this process would close it
        wait_for_end(helper)
        assert not helper.done
        assert not private_caches[0].exists()
        assert not all(
            any(shared_cache.glob(f"{compile_for.PROGRAM_FOLDERS}/{name}")) for name in names
        )


@pytest.mark.parametrize("error", [None, OSError], ids=["ends", "fails"])
def test_orphaned_helper_removes_its_files_only_after_the_current_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError] | None
) -> None:
    """It runs in a thread here, which blocks where the process would exit."""
    leaving, seen = list[threading.Thread](), list[bool]()

    def listen(leave: Callable[[], None]) -> None:
        leaving.append(threading.Thread(target=leave, daemon=True))

    def compiling(own: Path, enough: Callable[[], bool]) -> None:
        seen.append(enough())
        leaving[0].start()
        leaving[0].join(0.2)
        seen.extend([enough(), own.exists()])
        if error is not None:
            raise error

    monkeypatch.setattr(child, "end_with_parent", listen)
    monkeypatch.setattr(compile_for, "run", compiling)
    main = threading.Thread(target=compile_for.main, args=(tmp_path,), daemon=True)
    main.start()
    main.join(0.5)
    assert main.is_alive()
    leaving[0].join(60)
    assert seen == [False, True, True]
    assert not tmp_path.exists()


def test_old_folders_of_ended_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "old", "new"
    for name in names:
        (tmp_path / f"{kernel_cache.PRIVATE_PREFIX}{name}").mkdir()
    past = time.time() - 2 * kernel_cache.MAX_LEFTOVER_AGE
    os.utime(tmp_path / f"{kernel_cache.PRIVATE_PREFIX}old", (past, past))
    kernel_cache._remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{kernel_cache.PRIVATE_PREFIX}new"]
