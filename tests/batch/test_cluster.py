"""Workers of a Dask cluster do files; one that is lost, or should not be there, harms no other."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import Command, environment
from drivers import files, left_by_a_killed, until
from PIL import Image
from works import WAIT, Acting, tries

from imgmlp.batch.work import Record, Task
from imgmlp.errors import DeviceError, Interrupted

WITHOUT = "needs Dask: pip install distributed fsspec s3fs"
dask = pytest.importorskip("dask", reason=WITHOUT)
distributed = pytest.importorskip("distributed", reason=WITHOUT)

from imgmlp.batch import cluster as clusters  # noqa: E402
from imgmlp.batch.cluster import CHUNK_PIXELS, MAX_CHUNK_TASKS, Cluster  # noqa: E402
from tools import kill_cluster  # noqa: E402


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers of this machine that find this folder's modules, and are given up for lost soon."""
    here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, here)))
    monkeypatch.setenv("IMGMLP_DEVICE", "9:9")  # which --device comes before
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        yield


def run(cluster: Cluster, tasks: Sequence[Task]) -> list[Record]:
    records = list(cluster.run(iter(tasks), lambda: False, lambda: None))
    return sorted(records, key=lambda record: record.task.source)


def opened(address: str = "local") -> Cluster:
    return Cluster(Acting(), address, "numpy", 1)


@pytest.mark.usefixtures("local")
def test_a_file_that_fails_stops_no_other(tmp_path: Path) -> None:
    tasks = files(tmp_path, "good", "bad", "fault", "no device once", "good", "no device")
    records = run(opened(), tasks)
    assert [record.task for record in records] == tasks
    problems = [record.problem or "" for record in records]
    assert (problems[1], records[1].exit_code) == ("no picture", 3)
    assert "unexpected ZeroDivisionError" in problems[2]
    assert problems[5] == "it is gone"
    assert [problems[number] for number in (0, 3, 4)] == [""] * 3
    assert [tries(task.source) for task in tasks[3:]] == [2, 1, 3]
    assert records[0].device.startswith("numpy of tcp://")


@pytest.mark.usefixtures("local")
def test_what_somebody_writes_after_a_file_was_handed_out_stays(tmp_path: Path) -> None:
    (task,) = files(tmp_path, "somebody writes it")
    task = replace(task, output=tmp_path / "out")
    (record,) = run(opened(), [task])
    assert record.problem == f"{task.output} exists already"
    assert (tmp_path / "out").read_bytes() == b"theirs"


@pytest.mark.usefixtures("local")
def test_a_file_that_ends_its_worker_stops_no_other(tmp_path: Path) -> None:
    tasks = files(tmp_path, "good", "die once", "die", "good", "good")
    records = run(opened(), tasks)
    problems = [record.problem or "" for record in records]
    assert "every worker that tried it died" in problems[2]
    assert [problems[number] for number in (0, 1, 3, 4)] == [""] * 4
    assert min(tries(task.source) for task in tasks[1:3]) >= 2


@pytest.mark.usefixtures("local")
def test_a_worker_with_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = opened()
    cluster._job = replace(cluster._job, version="9.9")  # as one that comes after the others has it
    (record,) = run(cluster, files(tmp_path, "good"))
    assert "but this machine has 9.9" in (record.problem or "")
    assert "same version" in record.hint
    assert tries(record.task.source) == 0
    monkeypatch.setattr(clusters, "version", lambda _: "9.9")
    with pytest.raises(DeviceError, match=r"has imgmlp .* but this machine has 9\.9"):
        opened()


@pytest.mark.usefixtures("local")
def test_a_full_disk_ends_the_run(tmp_path: Path) -> None:
    tasks = files(tmp_path, "full", *["good"] * (3 * MAX_CHUNK_TASKS))
    records = run(opened(), tasks)
    assert 1 <= len(records) < len(tasks)


def test_who_asks_to_stop_waits_for_nobody(tmp_path: Path, local: None) -> None:
    records = opened().run(iter(files(tmp_path, "good")), lambda: True, lambda: None)
    assert list(records) == []


DRIVER = """
import sys
from pathlib import Path
from imgmlp.batch.cluster import Cluster
from imgmlp.batch.work import Task
from works import Acting
if __name__ == "__main__":
    tasks = [Task(Path(name)) for name in sys.argv[1:]]
    cluster = Cluster(Acting(), "local", "numpy", 1)
    list(cluster.run(iter(tasks), lambda: False, lambda: None))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_local_workers_end_with_the_command(tmp_path: Path) -> None:
    assert left_by_a_killed(DRIVER, files(tmp_path, "wait")) == []


def test_no_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "ANSWER_TIMEOUT", 0.5)
    with socket.socket() as silent:  # answers nobody
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DeviceError, match="no cluster answers") as caught:
            opened(address)
    assert "dask scheduler" in caught.value.hint


@pytest.mark.parametrize("address", ["tls://127.0.0.1:1", "ucx://127.0.0.1:1"])
def test_an_address_that_dask_lacks_something_for_is_an_error(address: str) -> None:
    with pytest.raises(DeviceError, match=address) as caught:
        opened(address)
    assert "certificates" in caught.value.hint


def test_a_worker_that_leaves_in_good_order_does_not_count_as_lost(tmp_path: Path) -> None:
    cluster = Cluster.__new__(Cluster)
    cluster._again = deque()
    record = Record(Task(tmp_path / "a"))
    for error, lost in ((Interrupted("leaves"), 0), (DeviceError("fails"), 1)):
        record.fail(error)
        done = SimpleNamespace(result=lambda timeout: [record], release=lambda: None)
        assert list(cluster._ended(done, clusters._Chunk([record.task]))) == []
        assert cluster._again.pop() == clusters._Chunk([record.task], lost)


def test_a_cluster_without_workers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = distributed.Client.wait_for_workers
    monkeypatch.setattr(
        distributed.Client, "wait_for_workers", lambda self, count, timeout: wait(self, count, 0.1)
    )
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0") as empty,
        pytest.raises(DeviceError, match="has no worker") as caught,
    ):
        opened(empty.scheduler_address)
    assert "dask worker tcp://" in caught.value.hint


def test_small_files_travel_together() -> None:
    small = [Task(Path(str(number)), weight=1) for number in range(MAX_CHUNK_TASKS + 1)]
    large = [Task(Path("large"), weight=CHUNK_PIXELS)] * 2
    chunks = list(clusters._chunks(iter([*large, *small])))
    assert [len(chunk.tasks) for chunk in chunks] == [1, 1, MAX_CHUNK_TASKS, 1]


def test_a_task_means_the_same_in_any_folder(tmp_path: Path) -> None:
    sent = clusters._with_absolute_paths(
        Task(Path("a.png"), Path("out/a.imlp"), replace=True, weight=3)
    )
    here = Path.cwd()
    assert sent == Task(here / "a.png", here / "out/a.imlp", replace=True, weight=3)
    stored = Path("s3://bucket/a.png")
    assert clusters._with_absolute_paths(Task(stored)).source == stored


def test_workers_and_scheduler_are_killed_and_every_output_is_there_once(tmp_path: Path) -> None:
    found = kill_cluster.run(tmp_path / "run", pictures=8, kills=3, limit=600)
    killed = found["killed"]
    assert isinstance(killed, dict)
    assert 1 <= sum(killed.values()) <= 3  # all may be done before the last of them
    assert isinstance(found["exit codes"], list)
    assert found["exit codes"][-1:] == [0]
    assert (found["verified"], found["faults"], found["told twice"]) == (8, [], 0)
    beside = found["beside them"]
    assert isinstance(beside, list)  # a lost worker may leave a hidden state, and nothing in part
    assert [name for name in beside if not name.endswith(".checkpoint")] == []


def test_a_command_that_always_fails_is_not_given_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill_cluster, "MAX_FAILURES", 2)
    monkeypatch.setattr(kill_cluster.sys, "executable", shutil.which("false"))
    found = kill_cluster.run(tmp_path / "run", pictures=1, kills=1)
    assert found["exit codes"] == [1, 1]
    assert (found["verified"], found["told twice"]) == (0, 0)


def test_a_folder_is_encoded_on_local_workers(imgmlp: Command, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, colour in (("a", 10), ("b", 20)):
        Image.new("RGB", (9, 7), (colour, 0, 0)).save(tmp_path / "in" / f"{name}.png")
    inputs, out = tmp_path / "in", tmp_path / "out"
    command = ("encode", inputs, "--out", out, "--cluster", "local", "--device", "numpy")
    imgmlp(*command)
    assert {path.name for path in out.glob("*.imlp")} == {"a.imlp", "b.imlp"}
    again = imgmlp(*command)
    assert "2 files done before, and unchanged since" in again.stderr


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="there are no such signals")
def test_ctrl_c_is_told_in_our_own_words_alone(tmp_path: Path) -> None:
    """Local workers are in the terminal's foreground as well."""
    (tmp_path / "in/sub").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (48, 48, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "in/sub/a.png")
    arguments = ["--cluster", "local", "--device", "numpy", "--time", "10m", "--no-progress"]
    process = subprocess.Popen(
        [sys.executable, "-m", "imgmlp", "encode", "-r", "in", "--out", "out", *arguments],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until((tmp_path / "out/sub").exists)  # which a worker makes
    os.killpg(process.pid, signal.SIGINT)
    _, told = process.communicate(timeout=WAIT)
    assert process.returncode == Interrupted.exit_code
    assert told.splitlines()[1:] == [
        "error: stopped with 1 file left to do",
        "hint: the same command continues with the others",
    ]


def test_options_that_a_cluster_cannot_follow_are_refused(
    in_process: Command, tmp_path: Path
) -> None:
    Image.new("RGB", (9, 7)).save(tmp_path / "a.png")
    picture, out = tmp_path / "a.png", tmp_path / "out"
    command = ("encode", picture, "--out", out, "--cluster", "tcp://127.0.0.1:1")
    for wrong, problem in (
        (("--device", "all"), "uses one device"),
        (("--jobs", "2"), "--jobs is for processes on this machine"),
    ):
        assert problem in in_process(*command, *wrong, check=2).stderr
    assert not out.exists()
    somewhere = in_process("encode", picture, "--out", out, "--cluster", "somewhere", check=2)
    assert "--cluster is 'somewhere'" in somewhere.stderr
    nowhere = in_process("encode", tmp_path, "--cluster", "local", check=2)
    assert "where should the outputs" in nowhere.stderr


def test_a_cluster_that_does_not_answer_is_told(imgmlp: Command, tmp_path: Path) -> None:
    Image.new("RGB", (9, 7)).save(tmp_path / "a.png")
    picture, out = tmp_path / "a.png", tmp_path / "out"
    command = ("encode", picture, "--out", out, "--cluster", "tcp://127.0.0.1:1")
    soon = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}  # read as Dask is loaded
    nobody = imgmlp(*command, "--device", "9:9", env=soon, check=6)  # which workers may have
    assert "no cluster answers" in nobody.stderr
    assert not out.exists()
