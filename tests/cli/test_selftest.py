"""`imgmlp devices --check`: a process for each device, whatever becomes of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from conftest import Command

from imgmlp.cli import devices, selftest
from imgmlp.engine import Finding, list_devices
from imgmlp.engine.device.numpy_device import numpy_info
from imgmlp.errors import DeviceError
from imgmlp.terminal import Terminal


def test_every_device_is_tested(imgmlp: Command) -> None:
    reports = json.loads(imgmlp("devices", "--check", "--json").stdout)
    assert [r["spec"] for r in reports] == [d.spec for d in list_devices()]
    for report in reports:
        assert report["passed"], report
        assert {"build", "product", "training step"} <= {c["name"] for c in report["checks"]}


def test_one_device_is_tested_by_name(in_process: Command) -> None:
    lines = in_process("devices", "--check", "--device", "numpy").stdout.splitlines()
    assert lines[0].startswith("numpy  NumPy")
    assert all(line.endswith("  ok") for line in lines[1:])
    assert "7:7" in in_process("devices", "--check", "--device", "7:7", check=6).stderr


def test_what_was_found_is_forgotten_by_a_check(imgmlp: Command, tmp_path: Path) -> None:
    """Also by a new process, which was told of no folder; of one device, only what is its own."""
    found = [device.spec for device in list_devices() if device.kind == "cpu"]
    if not found:
        pytest.skip("no processor has an OpenCL driver")
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "POCL_CACHE_DIR": ""}
    cpu = ("--device", found[0])  # by its name: another driver may stand by
    imgmlp("devices", *cpu, env=env)
    (kept,) = (tmp_path / ".cache").rglob("probe-*.json")
    another = kept.with_name("probe-0123456789abcdef.json")
    for options, gone in ((cpu, {kept}), ((), {kept, another})):
        for path in (kept, another):
            path.write_text('{"problem": "made up", "lifetime": 86400}')
        assert "made up" in imgmlp("devices", *cpu, env=env, check=6).stderr
        assert "made up" not in imgmlp("devices", "--check", *options, env=env).stdout
        assert {path for path in (kept, another) if not path.exists()} == gone
        imgmlp("devices", *cpu, env=env)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo assertion >&2; kill -SEGV $$", "signal SIGSEGV: assertion"),
        ("echo 'error: lost' >&2; echo 'hint: x' >&2; exit 6", "exit code 6: error: lost"),
        ("echo '[]'", "exit code 0: no output"),
    ],
)
def test_a_driver_that_ends_the_process_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, words: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (found,) = selftest.examine(numpy_info())
    assert not found.passed
    assert words in found.problem
    assert "driver" in found.hint


def test_a_driver_that_does_not_answer_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(selftest, "TIMEOUT_SECONDS", 0.1)
    (found,) = selftest.examine(numpy_info())
    assert "no answer" in found.problem


def test_a_failure_ends_with_the_exit_code_of_devices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [Finding("build"), Finding("product", False, "off by 3", "update the driver")]
    monkeypatch.setattr(devices, "list_devices", lambda: [numpy_info()])
    monkeypatch.setattr(selftest, "examine", lambda info: bad)
    with pytest.raises(DeviceError, match="failed on numpy") as raised:
        devices.run(Terminal(), as_json=False, check=True)
    assert raised.value.exit_code == 6
    out = capsys.readouterr().out
    assert "product         FAILED: off by 3" in out
    assert "update the driver" in out
    terminal = Terminal()
    with pytest.raises(DeviceError):
        devices.run(terminal, as_json=True, check=True)
    assert terminal.has_printed_json  # the error is no second JSON
    (report,) = json.loads(capsys.readouterr().out)
    assert not report["passed"]
    assert report["checks"][1]["hint"] == "update the driver"


def test_a_check_of_one_device_removes_what_is_damaged_of_kernels(
    imgmlp: Command, tmp_path: Path
) -> None:
    """Which other commands would end at, so that they passed the device over."""
    place = {"POCL_CACHE_DIR": str(tmp_path / "pocl")}
    imgmlp("devices", "--check", "--device", "cpu", env=place)
    kept = [path for path in (tmp_path / "pocl").rglob("*.so") if path.stat().st_size]
    if not kept:
        pytest.skip("this is of PoCL's only")
    for path in kept:
        path.write_bytes(b"")
    imgmlp("devices", "--check", "--device", "cpu", env=place)
    assert all(path.stat().st_size for path in (tmp_path / "pocl").rglob("*.so"))
