"""The process that builds parts of programs for another one."""

from __future__ import annotations

import io
import json
import time

import pytest
from conftest import BUILT_TWICE

from imgmlp import child
from imgmlp.engine import Device
from imgmlp.engine.device import build_beside, build_for
from imgmlp.engine.device.discover import open_untried
from imgmlp.errors import DeviceError

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


TEST_TIMEOUT_SECONDS = 20.0


SOURCE = "__kernel void t_part(__global float *x) { x[get_global_id(0)] += 1; }"


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
    """It shares the cache of its parent, unlike processes that compile machine code."""
    forgotten = list[object]()
    monkeypatch.setattr(
        "imgmlp.engine.device.discover.forget_outcome", lambda *of: forgotten.append(of)
    )
    build_for.serve(pocl.info.spec, io.StringIO(), io.StringIO())
    assert forgotten == []
    open_untried(pocl.info.spec)
    assert len(forgotten) == 1  # open_untried does forget it


def test_worker_process_answers_requests_until_it_is_closed(pocl: Device) -> None:
    with child.Worker(build_beside.MODULE, pocl.info.spec) as worker:
        assert worker.wait_until_ready()
        worker.send(json.dumps(SOURCE))
        assert worker.wait_until_ready()
        worker.send("no JSON")
        assert not worker.wait_until_ready()
        end = time.monotonic() + TEST_TIMEOUT_SECONDS
        worker.wait(lambda: time.monotonic() > end)
        assert not worker.working
        worker.send(json.dumps(SOURCE))  # the process has ended
        assert not worker.wait_until_ready()
    worker.send(json.dumps(SOURCE))  # after closing
    assert not worker.wait_until_ready()
    process = worker._process
    assert process is not None
    assert process.poll() is not None
    assert process.stdin.closed
    assert process.stdout.closed


def test_worker_that_cannot_be_started_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr("subprocess.Popen", refused)
    with child.Worker(build_beside.MODULE, "0:0") as worker:
        assert not worker.wait_until_ready()
