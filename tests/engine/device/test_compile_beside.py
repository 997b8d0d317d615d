"""Machine code that other processes make while one makes that of a program's other kernels."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
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
from imgmlp.engine.device.compile_beside import Task, beside, wanted

KERNELS = 6


@pytest.fixture
def pocl() -> Device:
    return open_pocl()


@pytest.fixture
def shared(pocl: Device) -> Path:
    found = kernel_cache.current()
    assert found is not None
    return found


def new_source() -> tuple[str, list[str]]:
    """Kernels that nobody has compiled yet: each adds its number to half of a value.

    Their names are new, as PoCL knows programs by what is left of them without comments.
    """
    own = f"{os.getpid()}_{time.time_ns()}"
    names = [f"beside_{own}_{n}" for n in range(KERNELS)]
    text = "".join(
        f"__kernel void {name}(__global float *x, const int from) "
        f"{{ for (int i = from; i < 4; ++i) x[i] = 0.5f * x[i] + {n}.0f; }}\n"
        for n, name in enumerate(names)
    )
    return text, names


def launches_of(device: Device, source: str, names: Sequence[str]) -> tuple[Any, list[Launch]]:
    values = device.alloc(16)
    device.write(values, np.zeros(4, np.float32))
    handles = device.build(source, names)
    arguments = values, np.int32(0)
    return values, [device.bind(handles[name], arguments, (1,), (1,)) for name in names]


@pytest.mark.parametrize(
    ("kernels", "cores", "told", "processes"),
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
def test_there_are_processes_for_cores_and_for_kernels_that_are_worth_them(
    kernels: int, cores: int, told: str | None, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(child.COMPILERS, raising=False)
    if told is not None:
        monkeypatch.setenv(child.COMPILERS, told)
    assert wanted(kernels, cores) == processes


@pytest.mark.parametrize("count", [1, 2])
def test_what_they_make_is_there_for_whoever_launches_it(
    count: int, pocl: Device, shared: Path
) -> None:
    source, names = new_source()
    before = set(shared.iterdir())
    values, launches = launches_of(pocl, source, names)
    tasks = [Task.of(launch) for launch in launches]
    with beside(pocl.info.spec, source, (), tasks, count) as helpers:
        assert len(helpers) == count
        for helper in helpers:
            helper.wait()
            assert helper.done
        (program,) = (path.parent for path in shared.glob(f"[A-Z][A-Z]/*/{names[-1]}"))
        code = {path: path.stat().st_mtime_ns for path in program.rglob("*.so")}
        assert {path.stem for path in code} == set(names)
        pocl.launch_all(launches)
        pocl.finish()
    assert code == {path: path.stat().st_mtime_ns for path in program.rglob("*.so")}
    found = np.empty(4, np.float32)
    pocl.read(values, found)
    expected = 0.0
    for n in range(KERNELS):
        expected = 0.5 * expected + n
    assert found.tolist() == [expected] * 4
    left = {p for p in shared.iterdir() if p.name.startswith(kernel_cache.PRIVATE)}
    assert not left - before


def test_of_a_step_whose_kernels_are_new_others_make_some(
    pocl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked once, after the first launch that took long, for those that are to come."""
    asked: list[tuple[list[str], int]] = []

    def noted(spec: str, source: str, options: Any, tasks: Any, count: int) -> Any:
        assert source == text
        asked.append(([task.kernel for task in tasks], count))
        return contextlib.nullcontext()

    monkeypatch.setattr(opencl, "beside", noted)
    monkeypatch.setattr(opencl, "COLD", 1e-3)
    monkeypatch.setattr(pocl, "_cores", lambda: 2)
    monkeypatch.setenv(child.COMPILERS, "5")
    text, names = new_source()
    _, launches = launches_of(pocl, text, names)
    pocl.launch_all(launches)
    assert asked == [(names[1:], 1)]
    pocl.launch_all(launches)
    assert len(asked) == 1


def test_a_process_that_fails_harms_nobody(pocl: Device) -> None:
    source, names = new_source()
    values, launches = launches_of(pocl, source, names)
    tasks = [Task.of(launch) for launch in launches]
    with beside("99:0", source, (), tasks, 1) as (helper,):
        helper.wait()
        assert not helper.done
        pocl.launch_all(launches)
    found = np.empty(4, np.float32)
    pocl.read(values, found)
    assert found[0] > KERNELS - 1


def test_those_that_are_not_needed_any_more_are_ended(pocl: Device, shared: Path) -> None:
    source, names = new_source()
    _, launches = launches_of(pocl, source, names)
    before = set(shared.glob(f"{kernel_cache.PRIVATE}*"))
    with beside(pocl.info.spec, source, (), [Task.of(one) for one in launches], 1) as (helper,):
        (place,) = set(shared.glob(f"{kernel_cache.PRIVATE}*")) - before
    assert not helper.working
    assert not place.exists()


def test_large_kernels_are_for_the_process_that_has_their_memory(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []

    def started(_: str, place: str, **__: str) -> Any:
        told.append(json.loads((Path(place) / compile_beside.TOLD).read_text()))
        return contextlib.nullcontext()

    monkeypatch.setattr(child, "Helper", started)
    most = compile_beside.LARGEST
    tasks = [Task(f"k{n}", (1,), (1,), [n * most // 4, ["<i4", 7]]) for n in range(7)]
    with beside("0:0", "", (), tasks, 2):
        pass
    assert [[task["kernel"] for task in one["tasks"]] for one in told] == [
        ["k4", "k2", "k0"],
        ["k3", "k1"],
    ]


def test_arguments_are_told_as_bytes_and_numbers(pocl: Device) -> None:
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
    found = np.ones(5, np.float32)
    pocl.read(again[0], found)
    assert not found.any()


def test_code_is_moved_at_once_and_never_over_what_is_there(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    for kernel in ("new", "old"):
        code = own / "AB" / "CD" / kernel / "1-1-1"
        code.mkdir(parents=True)
        (code / f"{kernel}.so").write_text("its own")
    theirs = shared / "AB" / "CD" / "old" / "1-1-1"
    theirs.mkdir(parents=True)
    (theirs / "old.so").write_text("theirs")
    assert compile_for.hand_over(own, shared, "new")
    assert compile_for.hand_over(own, shared, "old")
    found = {path.name: path.read_text() for path in shared.rglob("*.so")}
    assert found == {"new.so": "its own", "old.so": "theirs"}
    assert not compile_for.hand_over(own, shared, "none")
    (own / "EF" / "GH" / "other").mkdir(parents=True)  # a program that the cache has not
    assert not compile_for.hand_over(own, shared, "other")


def test_a_kernel_that_is_kept_is_not_made_again(tmp_path: Path) -> None:
    own, shared = tmp_path / "own", tmp_path / "shared"
    (own / "AB" / "CD").mkdir(parents=True)
    (shared / "AB" / "CD" / "one").mkdir(parents=True)
    (shared / "EF" / "GH" / "two").mkdir(parents=True)
    assert not compile_for.is_kept(shared, own, "one")  # of a program that nobody has opened
    (own / "AB" / "CD" / compile_for.OPENED).touch()
    assert compile_for.is_kept(shared, own, "one")
    assert not compile_for.is_kept(shared, own, "two")


def test_bitcode_is_lent_and_nothing_else(tmp_path: Path) -> None:
    shared = tmp_path
    own = shared / "imgmlp-pocl-own"
    own.mkdir()
    program = shared / "AB" / "CD"
    (program / "kernel").mkdir(parents=True)
    (program / compile_for.BITCODE).write_text("bitcode")
    (shared / "programs").mkdir()
    compile_for.lend(shared, own)
    assert [path.relative_to(own) for path in own.rglob("*") if path.is_file()] == [
        Path("AB", "CD", compile_for.BITCODE)
    ]
    compile_for.lend(shared, own)  # what is there already stays


def test_what_ended_processes_left_is_swept_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "old", "new"
    for name in names:
        (tmp_path / f"{kernel_cache.PRIVATE}{name}").mkdir()
    past = time.time() - 2 * kernel_cache.STALE_AFTER
    os.utime(tmp_path / f"{kernel_cache.PRIVATE}old", (past, past))
    kernel_cache._sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{kernel_cache.PRIVATE}new"]
