"""--device may name several devices, and small pictures share a GPU."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from imgmlp.batch import devices
from imgmlp.batch.devices import MAX_PROCESSES_PER_GPU, is_several, named, processes
from imgmlp.engine import DeviceInfo, open_device
from imgmlp.errors import DeviceError, UsageError

NUMPY = open_device("numpy").info
FOUND: list[DeviceInfo] = [
    replace(NUMPY, spec="0:0", kind="gpu"),
    replace(NUMPY, spec="0:1", kind="gpu"),
    replace(NUMPY, spec="1:0", kind="cpu"),
    replace(NUMPY, spec="2:0", kind="simulator"),
    NUMPY,
]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("all", ["0:0", "0:1", "1:0"]),
        ("GPUs", ["0:0", "0:1"]),
        ("0:1, 1:0", ["0:1", "1:0"]),
        ("cpu,cpu,numpy:uops", ["cpu", "cpu", "numpy:uops"]),
        ("auto", ["auto"]),
    ],
)
def test_names_of_several_devices(spec: str, expected: list[str]) -> None:
    assert [name for name, _ in named(spec, FOUND)] == expected
    assert is_several(spec) == (len(expected) > 1)


def test_it_is_known_which_are_gpus() -> None:
    assert named("0:0,1:0,auto,gpu,cpu", FOUND) == [
        ("0:0", True),
        ("1:0", False),
        ("auto", True),
        ("gpu", True),
        ("cpu", False),
    ]
    assert named("auto", FOUND[2:]) == [("auto", False)]


@pytest.mark.parametrize("spec", ["9:9", "9:9,0:0", "0:0,,0:1", "0:0,gpus"])
def test_what_is_not_there_is_refused(spec: str) -> None:
    with pytest.raises(DeviceError):
        named(spec, FOUND)
    for of_no_kind in ("gpus", "gpu", "numpy,gpu"):
        with pytest.raises(DeviceError):
            named(of_no_kind, FOUND[2:])
    with pytest.raises(DeviceError, match="no device 'cpu'"):
        named("gpu,cpu", FOUND[:2])


def test_what_cannot_be_meant_is_refused_before_drivers_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "list_devices", lambda: pytest.fail("drivers are asked"))
    for spec in ("all", "GPUs", "0:1, 1:0", "cpu,numpy:uops", "auto", "9:9", "simulator"):
        devices.check(spec, 64)
    for spec in ("bogus", "0:0,", "0:0,gpus", "0"):
        with pytest.raises(DeviceError, match="no device"):
            devices.check(spec, None)
    for jobs in (0, 65):
        with pytest.raises(UsageError, match="--jobs"):
            devices.check("auto", jobs)


def test_what_there_is_is_told_where_a_device_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="no device '9:9'") as raised:
        named("9:9", FOUND)
    assert "0:0 is " in raised.value.hint


def test_numpy_asks_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "list_devices", lambda: pytest.fail("drivers are asked"))
    assert named("numpy,numpy:uops") == [("numpy", False), ("numpy:uops", False)]


def test_small_pictures_share_a_gpu_and_large_ones_do_not() -> None:
    both = [("0:0", True), ("1:0", False)]
    small, large = (processes(both, None, side**2, 99) for side in (64.0, 4000.0))
    assert sorted(small) == ["0:0"] * MAX_PROCESSES_PER_GPU + ["1:0"]
    assert small[:2] == large == ["0:0", "1:0"]  # each device before any has a second one
    assert processes(both, None, 256.0**2, 99).count("0:0") == 8
    assert processes(both, 2, 4000.0**2) == ["0:0", "1:0"] * 2


def test_processes_on_gpus_have_a_core_each() -> None:
    gpus = [("0:0", True), ("0:1", True)]
    assert processes(gpus, None, 64.0**2, 7) == ["0:0", "0:1"] * 3
    assert processes(gpus, None, 64.0**2, 1) == ["0:0", "0:1"]
    assert processes(gpus, 4, 64.0**2, 2) == ["0:0", "0:1"] * 4  # as was asked for


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a system that can")
def test_cores_that_this_process_may_not_use_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert processes([("0:0", True)], None, 64.0**2) == ["0:0"] * 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert processes([("0:0", True)], None, 64.0**2) == ["0:0"] * MAX_PROCESSES_PER_GPU
