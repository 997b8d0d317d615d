"""Helper processes build parts of programs while this process builds the rest."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from imgmlp import child
from imgmlp.engine import Device
from imgmlp.engine.device import build_beside
from imgmlp.engine.device.build_beside import Builders
from imgmlp.errors import DeviceError

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

PARTS = [f"part {n}" for n in range(5)]
TEST_TIMEOUT_SECONDS = 20.0


class FakeWorker:
    """A helper process whose answers, ready or built, come from a queue that tests fill."""

    def __init__(self, *_: str) -> None:
        self.requests = list[str]()
        self.answers: queue.Queue[bool] = queue.Queue()
        self.ended = False
        self.changed = threading.Event()

    def wait_until_ready(self) -> bool:
        return self.answers.get()

    def send(self, line: str) -> None:
        self.requests.append(json.loads(line))
        self.changed.set()

    def wait_for(self, parts: int) -> None:
        end = time.monotonic() + TEST_TIMEOUT_SECONDS
        while len(self.requests) < parts:
            assert time.monotonic() < end
            self.changed.wait(0.01)
            self.changed.clear()

    def kill(self) -> None:
        self.answers.put(False)

    def end(self) -> None:
        self.ended = True
        self.kill()

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeWorker]]:
    started_workers = list[FakeWorker]()

    def started(*arguments: str) -> FakeWorker:
        started_workers.append(FakeWorker(*arguments))
        return started_workers[-1]

    monkeypatch.setattr(child, "Worker", started)
    monkeypatch.setattr(build_beside, "IDLE_TIMEOUT", 1000.0)  # no thread is woken by a timeout
    monkeypatch.setattr(build_beside, "EXPECTED_TIMEOUT", 1000.0)
    yield started_workers
    for worker in started_workers:
        worker.end()


def assert_threads_ended(builders: Builders) -> None:
    for thread in builders._threads:
        thread.join(TEST_TIMEOUT_SECONDS)
        assert not thread.is_alive()
    assert not builders.working


class LocalBuild:
    """Records the parts that this process builds, and calls a function after the first."""

    def __init__(self, after_first: Callable[[], object] = lambda: None, slow: float = 0.0) -> None:
        self.built, self._then, self._slow = list[str](), after_first, slow

    def __call__(self, part: str) -> None:
        self.built.append(part)
        if len(self.built) == 1:
            self._then()
        elif part == PARTS[-1]:
            time.sleep(self._slow)


def test_helper_processes_build_the_last_parts_and_all_are_loaded_here(
    workers: list[FakeWorker],
) -> None:
    builders = Builders("0:0", 2)

    def others() -> None:
        for worker in workers:
            worker.answers.put(True)
        for worker in workers:
            worker.wait_for(1)
        for worker in workers:
            worker.answers.put(True)

    local_build = LocalBuild(others)
    builders.build(PARTS, local_build)
    taken = {part for worker in workers for part in worker.requests}
    assert {PARTS[4], PARTS[3]} <= taken
    assert local_build.built[0] == PARTS[0]
    assert sorted(local_build.built) == PARTS
    mine = [part for part in local_build.built if part not in taken]
    assert local_build.built[: len(mine)] == mine == PARTS[: len(mine)]
    assert builders.working
    builders.close()
    assert all(worker.ended for worker in workers)
    assert_threads_ended(builders)


def test_helpers_build_offered_parts_once_before_they_are_requested(
    workers: list[FakeWorker],
) -> None:
    """Helpers build none of the parts twice."""
    builders = Builders("0:0", 1)
    (worker,) = workers
    worker.answers.put(True)
    builders.offer(PARTS[:3])
    worker.wait_for(1)
    builders.offer(PARTS[2:4])
    worker.answers.put(True)
    worker.wait_for(2)
    local_build = LocalBuild(lambda: worker.answers.put(True))
    builders.build(PARTS[:3], local_build)
    assert worker.requests[:2] == [PARTS[2], PARTS[3]]
    assert len(set(worker.requests)) == len(worker.requests)
    assert sorted(local_build.built) == PARTS[:3]
    builders.build(PARTS[3:], local_build)
    assert sorted(local_build.built) == PARTS


def test_failure_of_an_offered_part_is_raised_only_to_its_requester(
    workers: list[FakeWorker],
) -> None:
    """Building other parts does not raise it."""
    builders, local_build = Builders("0:0", 1), list[str]()

    def build(part: str) -> None:
        if part == PARTS[4]:
            raise DeviceError("it does not compile")
        local_build.append(part)

    builders.offer(PARTS[4:])
    builders.build(PARTS[:2], build)
    assert local_build == PARTS[:2]
    builders.offer(PARTS[4:])
    with pytest.raises(DeviceError):
        builders.build(PARTS[4:], build)


def test_build_does_not_wait_for_helpers_that_are_not_ready(workers: list[FakeWorker]) -> None:
    local_build, builders = LocalBuild(), Builders("0:0", 2)
    waited = builders.build(PARTS, local_build)
    assert local_build.built == PARTS
    assert waited < 1
    assert not any(worker.requests for worker in workers)


def test_idle_helpers_build_parts_of_the_next_program(workers: list[FakeWorker]) -> None:
    builders = Builders("0:0", 1)
    (worker,) = workers
    worker.answers.put(True)

    def done() -> None:
        worker.wait_for(len(worker.requests) + 1)
        worker.answers.put(True)

    for first in (0, 2):
        local_build = LocalBuild(done)
        builders.build(PARTS[first:], local_build)
        assert sorted(local_build.built) == PARTS[first:]
    assert worker.requests.count(PARTS[4]) == 2


def test_part_of_a_helper_that_ends_is_built_here(workers: list[FakeWorker]) -> None:
    builders = Builders("0:0", 1)
    (worker,) = workers
    worker.answers.put(True)

    def ends() -> None:
        worker.wait_for(1)
        worker.answers.put(False)

    local_build = LocalBuild(ends, slow=2 * build_beside.MIN_BUILD_SECONDS)
    assert builders.build(PARTS, local_build) < TEST_TIMEOUT_SECONDS
    assert local_build.built == PARTS
    assert worker.requests == [PARTS[4]]
    assert_threads_ended(builders)
    assert not builders.is_useless  # another helper may be started


def test_unresponsive_helper_is_abandoned(
    workers: list[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_beside, "LAST_PARTS_TIMEOUT", 0.1)
    builders = Builders("0:0", 1)
    (worker,) = workers
    worker.answers.put(True)
    local_build = LocalBuild(lambda: worker.wait_for(1))
    assert builders.build(PARTS, local_build) == 0  # nothing was compiled while waiting
    assert local_build.built == PARTS
    assert worker.ended
    assert builders.is_useless
    assert_threads_ended(builders)


@pytest.mark.parametrize(("slow", "useless"), [(0.0, False), (0.06, True)])
def test_helpers_end_if_the_driver_caches_nothing(
    slow: float, useless: bool, workers: list[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_beside, "MIN_BUILD_SECONDS", 0.05)
    builders = Builders("0:0", 1)
    (worker,) = workers
    worker.answers.put(True)

    def done() -> None:
        worker.wait_for(1)
        worker.answers.put(True)

    builders.build(PARTS, LocalBuild(done, slow))
    assert PARTS[4] in worker.requests
    assert (builders.is_useless, worker.ended, builders.working) == (useless, useless, not useless)


def test_failing_part_raises_and_clears_the_queue(workers: list[FakeWorker]) -> None:
    builders = Builders("0:0", 1)
    (worker,) = workers

    def fails(_: str) -> None:
        raise DeviceError("it does not compile")

    with pytest.raises(DeviceError):
        builders.build(PARTS, fails)
    assert not builders._waiting
    worker.answers.put(True)
    local_build = LocalBuild()
    builders.build(PARTS[:1], local_build)
    assert local_build.built == PARTS[:1]
    assert not set(worker.requests) & set(PARTS[1:])


def test_idle_helpers_end_after_a_timeout(
    workers: list[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_beside, "IDLE_TIMEOUT", 0.01)
    builders = Builders("0:0", 2)
    for worker in workers:
        worker.answers.put(True)
    time.sleep(0.05)
    assert builders.working  # the first program is expected
    builders.build([], LocalBuild())
    assert_threads_ended(builders)
    assert all(worker.ended for worker in workers)
    assert not builders.is_useless


def test_helpers_stay_while_another_program_is_expected(
    workers: list[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_beside, "EXPECTED_TIMEOUT", 0.0)
    builders = Builders("0:0", 1)
    monkeypatch.setattr(build_beside, "EXPECTED_TIMEOUT", 1000.0)
    builders.expect()
    (worker,) = workers
    worker.answers.put(True)
    local_build = LocalBuild(lambda: (worker.wait_for(1), worker.answers.put(True)))
    builders.build(PARTS, local_build)
    assert PARTS[4] in worker.requests


def test_waiting_helpers_end_at_once_when_closed(workers: list[FakeWorker]) -> None:
    builders = Builders("0:0", 2)
    workers[0].answers.put(True)
    builders.close()
    assert_threads_ended(builders)
    assert all(worker.ended for worker in workers)


def test_helpers_that_never_get_ready_are_not_replaced(workers: list[FakeWorker]) -> None:
    builders = Builders("0:0", 2)
    assert not builders.is_useless
    for worker in workers:
        worker.answers.put(False)
    assert_threads_ended(builders)
    assert builders.is_useless


def test_number_of_helpers_is_reduced_if_threads_cannot_start(
    workers: list[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if len(workers) > 1:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    builders = Builders("0:0", 3)
    assert [worker.ended for worker in workers] == [False, True, True]
    assert len(builders._threads) == 1
    monkeypatch.undo()


# --- real processes ---

SOURCE = "__kernel void t_part(__global float *x) { x[get_global_id(0)] += 1; }"


def test_helper_processes_build_parts(pocl: Device) -> None:
    builders = Builders(pocl.info.spec, 2)
    sources = [SOURCE.replace("t_part", f"t_part{n}") for n in range(4)]
    built_by_helpers = set[str]()

    def local_build(part: str) -> None:
        end = time.monotonic() + TEST_TIMEOUT_SECONDS
        while part == sources[0] and not builders._built:
            assert time.monotonic() < end
            time.sleep(0.01)
        built_by_helpers.update(builders._built)
        pocl.build(part, ())

    builders.build(sources, local_build)
    assert built_by_helpers <= set(sources)
    assert sources[3] in built_by_helpers
    builders.close()
    assert_threads_ended(builders)
