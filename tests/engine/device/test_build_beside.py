"""Parts of programs that other processes build while one builds the rest."""

from __future__ import annotations

import io
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import BUILT_TWICE, open_pocl

from imgmlp import child
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.engine import Device, Tensor, compile, compiler, open_device, together
from imgmlp.engine.device import build_beside, build_for, building, driver
from imgmlp.engine.device.build_beside import Builders
from imgmlp.engine.device.discover import open_untried
from imgmlp.engine.ir.target import Target
from imgmlp.engine.runtime import executable, program
from imgmlp.errors import DeviceError

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

PARTS = [f"part {n}" for n in range(5)]
SOON = 20.0  # seconds, after which a test has failed


class Fake:
    """A process that is ready, and done with a part, when it is told so."""

    def __init__(self, *_: str) -> None:
        self.told = list[str]()
        self.answers: queue.Queue[bool] = queue.Queue()
        self.ended = False
        self.changed = threading.Event()

    def wait_until_ready(self) -> bool:
        return self.answers.get()

    def send(self, line: str) -> None:
        self.told.append(json.loads(line))
        self.changed.set()

    def wait_for(self, parts: int) -> None:
        end = time.monotonic() + SOON
        while len(self.told) < parts:
            assert time.monotonic() < end
            self.changed.wait(0.01)
            self.changed.clear()

    def kill(self) -> None:
        self.answers.put(False)

    def end(self) -> None:
        self.ended = True
        self.kill()

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Fake]]:
    found = list[Fake]()

    def started(*told: str) -> Fake:
        found.append(Fake(*told))
        return found[-1]

    monkeypatch.setattr(child, "Worker", started)
    monkeypatch.setattr(build_beside, "IDLE_TIMEOUT", 1000.0)  # so that nobody is woken by it
    monkeypatch.setattr(build_beside, "EXPECTED_TIMEOUT", 1000.0)
    yield found
    for fake in found:
        fake.end()


def gone(builders: Builders) -> None:
    for thread in builders._threads:
        thread.join(SOON)
        assert not thread.is_alive()
    assert not builders.working


class Own:
    """What is built here, in order; something happens after the first."""

    def __init__(self, after_first: Callable[[], object] = lambda: None, slow: float = 0.0) -> None:
        self.built, self._then, self._slow = list[str](), after_first, slow

    def __call__(self, part: str) -> None:
        self.built.append(part)
        if len(self.built) == 1:
            self._then()
        elif part == PARTS[-1]:
            time.sleep(self._slow)


def test_helper_processes_build_the_last_parts_and_all_are_loaded_here(fakes: list[Fake]) -> None:
    builders = Builders("0:0", 2)

    def others() -> None:
        for fake in fakes:
            fake.answers.put(True)
        for fake in fakes:
            fake.wait_for(1)
        for fake in fakes:
            fake.answers.put(True)

    own = Own(others)
    builders.build(PARTS, own)
    taken = {part for fake in fakes for part in fake.told}
    assert {PARTS[4], PARTS[3]} <= taken
    assert own.built[0] == PARTS[0]
    assert sorted(own.built) == PARTS
    mine = [part for part in own.built if part not in taken]
    assert own.built[: len(mine)] == mine == PARTS[: len(mine)]
    assert builders.working
    builders.close()
    assert all(fake.ended for fake in fakes)
    gone(builders)


def test_helpers_build_offered_parts_once_before_they_are_requested(fakes: list[Fake]) -> None:
    """And build none of it twice."""
    builders = Builders("0:0", 1)
    (fake,) = fakes
    fake.answers.put(True)
    builders.offer(PARTS[:3])
    fake.wait_for(1)
    builders.offer(PARTS[2:4])
    fake.answers.put(True)
    fake.wait_for(2)
    own = Own(lambda: fake.answers.put(True))
    builders.build(PARTS[:3], own)
    assert fake.told[:2] == [PARTS[2], PARTS[3]]
    assert len(set(fake.told)) == len(fake.told)
    assert sorted(own.built) == PARTS[:3]
    builders.build(PARTS[3:], own)
    assert sorted(own.built) == PARTS


def test_failure_of_an_offered_part_is_raised_only_to_its_requester(fakes: list[Fake]) -> None:
    """And not who builds something else."""
    builders, own = Builders("0:0", 1), list[str]()

    def build(part: str) -> None:
        if part == PARTS[4]:
            raise DeviceError("it does not compile")
        own.append(part)

    builders.offer(PARTS[4:])
    builders.build(PARTS[:2], build)
    assert own == PARTS[:2]
    builders.offer(PARTS[4:])
    with pytest.raises(DeviceError):
        builders.build(PARTS[4:], build)


def test_build_does_not_wait_for_helpers_that_are_not_ready(fakes: list[Fake]) -> None:
    own, builders = Own(), Builders("0:0", 2)
    waited = builders.build(PARTS, own)
    assert own.built == PARTS
    assert waited < 1
    assert not any(fake.told for fake in fakes)


def test_idle_helpers_build_parts_of_the_next_program(fakes: list[Fake]) -> None:
    builders = Builders("0:0", 1)
    (fake,) = fakes
    fake.answers.put(True)

    def done() -> None:
        fake.wait_for(len(fake.told) + 1)
        fake.answers.put(True)

    for first in (0, 2):
        own = Own(done)
        builders.build(PARTS[first:], own)
        assert sorted(own.built) == PARTS[first:]
    assert fake.told.count(PARTS[4]) == 2


def test_part_of_a_helper_that_ends_is_built_here(fakes: list[Fake]) -> None:
    builders = Builders("0:0", 1)
    (fake,) = fakes
    fake.answers.put(True)

    def ends() -> None:
        fake.wait_for(1)
        fake.answers.put(False)

    own = Own(ends, slow=2 * build_beside.MIN_BUILD_SECONDS)
    assert builders.build(PARTS, own) < SOON
    assert own.built == PARTS
    assert fake.told == [PARTS[4]]
    gone(builders)
    assert not builders.is_useless  # it is another one's turn


def test_unresponsive_helper_is_abandoned(
    fakes: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_beside, "LAST_PARTS_TIMEOUT", 0.1)
    builders = Builders("0:0", 1)
    (fake,) = fakes
    fake.answers.put(True)
    own = Own(lambda: fake.wait_for(1))
    assert builders.build(PARTS, own) == 0  # which nothing was compiled in
    assert own.built == PARTS
    assert fake.ended
    assert builders.is_useless
    gone(builders)


@pytest.mark.parametrize(("slow", "useless"), [(0.0, False), (0.06, True)])
def test_helpers_end_if_the_driver_caches_nothing(
    slow: float, useless: bool, fakes: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_beside, "MIN_BUILD_SECONDS", 0.05)
    builders = Builders("0:0", 1)
    (fake,) = fakes
    fake.answers.put(True)

    def done() -> None:
        fake.wait_for(1)
        fake.answers.put(True)

    builders.build(PARTS, Own(done, slow))
    assert PARTS[4] in fake.told
    assert (builders.is_useless, fake.ended, builders.working) == (useless, useless, not useless)


def test_failing_part_raises_and_clears_the_queue(fakes: list[Fake]) -> None:
    builders = Builders("0:0", 1)
    (fake,) = fakes

    def fails(_: str) -> None:
        raise DeviceError("it does not compile")

    with pytest.raises(DeviceError):
        builders.build(PARTS, fails)
    assert not builders._waiting
    fake.answers.put(True)
    own = Own()
    builders.build(PARTS[:1], own)
    assert own.built == PARTS[:1]
    assert not set(fake.told) & set(PARTS[1:])


def test_idle_helpers_end_after_a_timeout(
    fakes: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_beside, "IDLE_TIMEOUT", 0.01)
    builders = Builders("0:0", 2)
    for fake in fakes:
        fake.answers.put(True)
    time.sleep(0.05)
    assert builders.working  # a program is expected
    builders.build([], Own())
    gone(builders)
    assert all(fake.ended for fake in fakes)
    assert not builders.is_useless


def test_helpers_stay_while_another_program_is_expected(
    fakes: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_beside, "EXPECTED_TIMEOUT", 0.0)
    builders = Builders("0:0", 1)
    monkeypatch.setattr(build_beside, "EXPECTED_TIMEOUT", 1000.0)
    builders.expect()
    (fake,) = fakes
    fake.answers.put(True)
    own = Own(lambda: (fake.wait_for(1), fake.answers.put(True)))
    builders.build(PARTS, own)
    assert PARTS[4] in fake.told


def test_waiting_helpers_end_at_once_when_closed(fakes: list[Fake]) -> None:
    builders = Builders("0:0", 2)
    fakes[0].answers.put(True)
    builders.close()
    gone(builders)
    assert all(fake.ended for fake in fakes)


def test_helpers_that_never_get_ready_are_not_replaced(fakes: list[Fake]) -> None:
    builders = Builders("0:0", 2)
    assert not builders.is_useless
    for fake in fakes:
        fake.answers.put(False)
    gone(builders)
    assert builders.is_useless


def test_number_of_helpers_is_reduced_if_threads_cannot_start(
    fakes: list[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if len(fakes) > 1:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    builders = Builders("0:0", 3)
    assert [fake.ended for fake in fakes] == [False, True, True]
    assert len(builders._threads) == 1
    monkeypatch.undo()


# --- the process ---

SOURCE = "__kernel void t_part(__global float *x) { x[get_global_id(0)] += 1; }"


@pytest.fixture
def pocl() -> Device:
    return open_pocl()


def test_helper_process_reports_ready_and_built(pocl: Device) -> None:
    answers = io.StringIO()
    build_for.serve(pocl.info.spec, io.StringIO(json.dumps(SOURCE) + "\n"), answers)
    assert answers.getvalue().splitlines() == ["ready", "built"]


def test_helper_process_builds_on_the_named_device(pocl: Device) -> None:
    answers = io.StringIO()
    with pytest.raises(DeviceError, match="compile"):
        build_for.serve(pocl.info.spec, io.StringIO(json.dumps(f"#error\n{BUILT_TWICE}")), answers)
    assert answers.getvalue() == "ready\n"
    with pytest.raises(DeviceError, match="99:0"):
        build_for.serve("99:0", io.StringIO(), answers)


def test_helper_process_keeps_the_probe_outcome(
    monkeypatch: pytest.MonkeyPatch, pocl: Device
) -> None:
    """It is not the process's own cache, as that of those that compile kernels is."""
    forgotten = list[object]()
    monkeypatch.setattr(
        "imgmlp.engine.device.discover.forget_outcome", lambda *of: forgotten.append(of)
    )
    build_for.serve(pocl.info.spec, io.StringIO(), io.StringIO())
    assert forgotten == []
    open_untried(pocl.info.spec)
    assert len(forgotten) == 1  # so that it would have been seen


def test_worker_process_answers_requests_until_it_is_closed(pocl: Device) -> None:
    with child.Worker(build_beside.MODULE, pocl.info.spec) as worker:
        assert worker.wait_until_ready()
        worker.send(json.dumps(SOURCE))
        assert worker.wait_until_ready()
        worker.send("no JSON")
        assert not worker.wait_until_ready()
        end = time.monotonic() + SOON
        worker.wait(lambda: time.monotonic() > end)
        assert not worker.working
        worker.send(json.dumps(SOURCE))  # to nobody
        assert not worker.wait_until_ready()
    worker.send(json.dumps(SOURCE))  # to one that was left
    assert not worker.wait_until_ready()
    process = worker._process
    assert process is not None
    assert process.poll() is not None
    assert process.stdin.closed
    assert process.stdout.closed


def test_helper_processes_build_parts(pocl: Device) -> None:
    builders = Builders(pocl.info.spec, 2)
    sources = [SOURCE.replace("t_part", f"t_part{n}") for n in range(4)]
    theirs = set[str]()

    def own(part: str) -> None:
        end = time.monotonic() + SOON
        while part == sources[0] and not builders._built:
            assert time.monotonic() < end
            time.sleep(0.01)
        theirs.update(builders._built)
        pocl.build(part, ())

    builders.build(sources, own)
    assert theirs <= set(sources)
    assert sources[3] in theirs
    builders.close()
    gone(builders)


def test_worker_that_cannot_be_started_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("subprocess.Popen", refused)
    with child.Worker(build_beside.MODULE, "0:0") as worker:
        assert not worker.wait_until_ready()


# --- the device and its programs ---


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Builders that a device begins, without processes."""
    found = list[Any]()

    class Noted:
        def __init__(self, spec: str, count: int) -> None:
            self.spec, self.count, self.parts = spec, count, list[str]()
            self.offered = list[str]()
            self.working, self.is_useless, self.expected = True, False, 0
            found.append(self)

        def expect(self) -> None:
            self.expected += 1

        def offer(self, parts: list[str]) -> None:
            self.offered += parts

        def build(self, parts: list[str], own: Callable[[str], object]) -> float:
            self.parts += parts
            for part in reversed(parts):
                own(part)
            return 3.0

        def close(self) -> None:
            self.working = False

    monkeypatch.setattr(building, "Builders", Noted)
    monkeypatch.setattr(building, "available_cores", lambda: 9)
    monkeypatch.setenv(child.COMPILERS_VARIABLE, "5")
    return found


def as_nvidia(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "info", replace(device.info, platform=driver.NVIDIA))


def test_helpers_are_started_for_drivers_that_compile_at_build(
    pocl: Device, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pocl.expect_programs()
    assert started == []
    as_nvidia(pocl, monkeypatch)
    pocl.expect_programs()
    pocl.expect_programs()
    assert [(one.spec, one.count, one.expected) for one in started] == [(pocl.info.spec, 5, 1)]
    started[0].working = False
    pocl.expect_programs()
    assert len(started) == 2
    started[1].working, started[1].is_useless = False, True
    pocl.expect_programs()
    assert len(started) == 2


def test_helpers_are_closed_when_memory_is_short(
    pocl: Device, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_nvidia(pocl, monkeypatch)
    pocl.expect_programs()
    make = driver.cl.Buffer

    def short(*told: Any, **sizes: Any) -> Any:
        if started[0].working:
            raise driver.cl.MemoryError("none is left")
        return make(*told, **sizes)

    monkeypatch.setattr(driver.cl, "Buffer", short)
    assert pocl.alloc(1000).nbytes == 1000
    pocl.expect_programs()
    pocl.free_memory()
    assert [one.working for one in started] == [False, False]


@pytest.mark.parametrize(("memory", "count"), [(1 << 31, 3), (10 << 30, 5), (1 << 37, 7)])
def test_number_of_helpers_is_limited_by_cores_and_memory(
    memory: int, count: int, pocl: Device, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_nvidia(pocl, monkeypatch)
    monkeypatch.setattr(pocl, "info", replace(pocl.info, memory=memory))
    monkeypatch.delenv(child.COMPILERS_VARIABLE)
    pocl.expect_programs()
    assert [one.count for one in started] == [count]


def test_built_parts_are_not_offered_again(
    pocl: Device, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_nvidia(pocl, monkeypatch)
    one, other = (SOURCE.replace("t_part", f"t_part{time.time_ns()}") for _ in range(2))
    pocl.build(one, ())
    pocl.begin_parts([one, other])  # which nobody would
    pocl.expect_programs()
    pocl.begin_parts([one, other])
    assert started[0].offered == [other]


def test_no_helpers_are_started_if_disabled(
    pocl: Device, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_nvidia(pocl, monkeypatch)
    monkeypatch.setenv(child.COMPILERS_VARIABLE, "0")
    pocl.expect_programs()
    assert started == []


def test_helpers_end_with_the_device(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_pocl()
    as_nvidia(device, monkeypatch)
    device.expect_programs()
    monkeypatch.undo()
    del device
    assert not started[0].working


TEXT = "__kernel void {}(__global float *x) {{ x[0] = {}; }}"


@pytest.mark.parametrize("helped", [False, True])
def test_each_kernel_comes_from_the_part_that_defines_it(
    helped: bool, pocl: Device, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    number = time.time_ns() % 10**6
    parts = {TEXT.format(name, n + number): [name] for n, name in enumerate(["t_a", "t_b", "t_c"])}
    if helped:
        as_nvidia(pocl, monkeypatch)
        pocl.expect_programs()
    before = pocl.compiling
    handles = pocl.build_parts(parts)
    assert [part for one in started for part in one.parts] == list(parts) * helped
    assert (pocl.compiling - before >= 3.0) is helped
    memory, found = pocl.alloc(4), np.empty(1, np.float32)
    for n, name in enumerate(["t_a", "t_b", "t_c"]):
        pocl.launch_all([pocl.bind(handles[name], [memory], (1,), (1,))])
        pocl.read(memory, found)
        assert found[0] == n + number
    pocl.build_parts(parts)
    assert sum(len(one.parts) for one in started) == 3 * helped  # what is built is not built again


@pytest.mark.parametrize(("count", "kept", "begun"), [(3, -1.0, 1), (3, 1000.0, 0), (2, -1.0, 0)])
def test_helpers_are_started_if_the_first_part_was_slow_to_build(
    count: int, kept: float, begun: int,
    pocl: Device, started: list[Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    as_nvidia(pocl, monkeypatch)
    monkeypatch.setattr(building, "MIN_BUILD_SECONDS", kept)
    number = time.time_ns() % 10**6
    parts = {TEXT.format(f"t_{n}", n + number): [f"t_{n}"] for n in range(count)}
    assert set(pocl.build_parts(parts)) == {f"t_{n}" for n in range(count)}
    assert [one.parts for one in started] == [list(parts)[1:]] * begun


def test_source_is_split_into_parts_with_a_common_head_and_each_kernel_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = "#define ONE 1\n"
    kernels = [f"__kernel void k{n}(int x) {{ {'x += ONE; ' * n} }}\n" for n in range(7)]
    monkeypatch.setattr(executable, "MIN_PART_LENGTH", 80)
    found = executable.parts(head + "".join(kernels))
    assert [name for names in found.values() for name in names] == [f"k{n}" for n in range(7)]
    *full, last = found.values()
    assert full == [["k0", "k1", "k2"], ["k3", "k4"]]
    assert last == ["k5", "k6"]
    for text, names in found.items():
        assert text == head + "".join(kernels[int(name[1:])] for name in names)
    monkeypatch.undo()
    assert list(executable.parts(head + "".join(kernels)).values()) == [[f"k{n}" for n in range(7)]]


def test_program_built_in_parts_gives_the_same_results(
    pocl: Device, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes get ready for a graph that is new and large, before it is lowered. What another
    program lends is not built again."""
    monkeypatch.setattr(executable, "MIN_PART_LENGTH", 1)
    monkeypatch.setattr(Device, "builds_in_parts", True)
    order, lower, expect = list[str](), compiler.lower, Device.expect_programs
    monkeypatch.setattr(compiler, "lower", lambda *of: (order.append("lowered"), lower(*of))[1])
    monkeypatch.setattr(
        Device, "expect_programs", lambda own: (order.append("expected"), expect(own))[1]
    )
    number = time.time_ns() % 10**6  # so that no earlier process has it

    def step() -> dict[str, Tensor]:
        x = Tensor(np.arange(64, dtype=np.float32), pocl, name="x")
        y = (x * number).contiguous()
        return {"sum": (y + 1).sum(), "largest": (y - number).max()}

    def both() -> dict[str, Tensor]:
        found = step()
        return found | {"less": (found["sum"] - 3).contiguous()}

    monkeypatch.setattr(program, "MANY_NODES", 10**6)
    small = compile(step, pocl)
    assert order == ["lowered"]
    number += 1
    monkeypatch.setattr(program, "MANY_NODES", 3)
    large = compile(step, pocl)
    assert order == ["lowered", "expected", "lowered"]
    (one,) = started
    functions = {call.function for call in large.executable.calls}
    assert len(one.parts) == len(functions) > 1
    for each, factor in ((small, number - 1), (large, number)):
        each.run()
        assert each.read("sum") == pytest.approx(2016 * factor + 64)
        assert each.read("largest") == pytest.approx(62 * factor)
    other = compile(both, pocl, beside=large)
    other.run()
    assert other.read("less") == pytest.approx(2016 * number + 61)
    new = {call.function for call in other.executable.calls}
    assert len(one.parts) - len(functions) < len(new)


def test_programs_compiled_together_are_all_lowered_before_any_is_built(
    pocl: Device, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one has the kernels of the first."""
    monkeypatch.setattr(Device, "builds_in_parts", True)
    monkeypatch.setattr(program, "MANY_NODES", 0)
    order, lower = list[str](), compiler.lower
    monkeypatch.setattr(compiler, "lower", lambda *of: (order.append("lowered"), lower(*of))[1])
    build_parts = Device.build_parts

    def built(device: Device, parts: dict[str, list[str]]) -> Any:
        order.append("built")
        return build_parts(device, parts)

    monkeypatch.setattr(Device, "build_parts", built)
    x = Tensor(np.arange(64, dtype=np.float32), pocl)
    number = time.time_ns() % 10**6  # so that no earlier process has it

    def step(more: int) -> dict[str, Tensor]:
        y = (x * number).contiguous()
        return {"sum": (y + more).sum(), "largest": y.max()}

    with together():
        first = compile(lambda: step(1), pocl)
        second = compile(lambda: step(2), pocl, beside=first)
        assert order == ["lowered", "lowered"]
        assert not started[0].parts
        offered = list(started[0].offered)
    assert order == ["lowered", "lowered", "built", "built"]
    assert started[0].parts == offered
    assert len(set(offered)) == len(offered) == 2
    assert first.sequence[0].handle is second.sequence[0].handle
    for more, each in ((1, first), (2, second)):
        each.run()
        assert each.read("sum") == pytest.approx(2016 * number + 64 * more)
    third = compile(lambda: step(3), pocl)
    third.run()
    assert third.read("largest") == pytest.approx(63 * number)


def test_program_compiled_together_is_built_at_its_first_use(pocl: Device) -> None:
    x = Tensor(np.arange(4, dtype=np.float32), pocl)

    def step() -> dict[str, Tensor]:
        y = (x * 2.0).contiguous()
        return {"sum": y.sum(), "largest": y.max()}

    with together():
        first = compile(step, pocl)
        with together():
            second = compile(step, pocl, beside=first)
        second.run()
        assert second.read("sum") == 12
        third = compile(step, pocl)
        third.run()
    first.run()
    for each in (first, third):
        assert each.read("largest") == 6


def test_judging_program_is_compiled_with_the_latent_step(
    pocl: Device, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "MANY_NODES", 10**6)
    pixels = np.zeros((2, 3, 3), np.uint8)
    assert "_judging" not in vars(LatentStep(pixels, 0, pocl, Architecture(4, 2)))
    monkeypatch.setattr(Device, "builds_in_parts", True)
    step = LatentStep(pixels, 0, pocl, Architecture(4, 2))
    assert "_judging" in vars(step)
    error, bits = step.judge(step.flat.numpy())
    assert error > 0
    assert bits > 0


def test_failed_joint_compilation_does_not_affect_the_next_program(pocl: Device) -> None:
    x = Tensor(np.arange(4, dtype=np.float32), pocl)

    def step() -> dict[str, Tensor]:
        return {"sum": x.sum()}

    def both() -> None:
        with together():
            compile(step, pocl)
            compile(lambda: step()["sum"], pocl)

    with pytest.raises(TypeError, match="return a dict"):
        both()
    program = compile(step, pocl)
    program.run()
    assert program.read("sum") == 6


def test_latent_step_is_large_and_split_into_several_parts() -> None:
    pixels = np.zeros((128, 128, 3), np.uint8)
    step = LatentStep(pixels, 0, open_device("numpy"))
    assert len(step.program._nodes()) > program.MANY_NODES
    source = compiler.lower(step.program.updates, Target(lanes="group")).source
    assert len(executable.parts(source)) > 4
