"""`imgmlp devices --check`: tests each device in its own process, which may crash or hang."""

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


def test_check_tests_every_device(imgmlp: Command) -> None:
    reports = json.loads(imgmlp("devices", "--check", "--json").stdout)
    assert [r["spec"] for r in reports] == [d.spec for d in list_devices()]
    for report in reports:
        assert report["passed"], report
        assert {"build", "product", "training step"} <= {c["name"] for c in report["checks"]}


def test_check_tests_one_device_by_name(in_process: Command) -> None:
    lines = in_process("devices", "--check", "--device", "numpy").stdout.splitlines()
    assert lines[0].startswith("numpy  NumPy")
    assert all(line.endswith("  ok") for line in lines[1:])
    assert "7:7" in in_process("devices", "--check", "--device", "7:7", check=6).stderr


def test_check_forgets_cached_outcomes_of_the_tested_devices(
    imgmlp: Command, tmp_path: Path
) -> None:
    """Without cache folders in the environment. With --device, only that device's outcome."""
    cpus = [device.spec for device in list_devices() if device.kind == "cpu"]
    if not cpus:
        pytest.skip("no processor has an OpenCL driver")
    env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "POCL_CACHE_DIR": ""}
    cpu = ("--device", cpus[0])  # by its name, as there may be another driver
    imgmlp("devices", *cpu, env=env)
    (outcome,) = (tmp_path / ".cache").rglob("probe-*.json")
    other_outcome = outcome.with_name("probe-0123456789abcdef.json")
    for options, forgotten in ((cpu, {outcome}), ((), {outcome, other_outcome})):
        for path in (outcome, other_outcome):
            path.write_text('{"problem": "made up", "lifetime": 86400}')
        assert "made up" in imgmlp("devices", *cpu, env=env, check=6).stderr
        assert "made up" not in imgmlp("devices", "--check", *options, env=env).stdout
        assert {path for path in (outcome, other_outcome) if not path.exists()} == forgotten
        imgmlp("devices", *cpu, env=env)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo assertion >&2; kill -SEGV $$", "signal SIGSEGV: assertion"),
        ("echo 'error: lost' >&2; echo 'hint: x' >&2; exit 6", "exit code 6: error: lost"),
        ("echo '[]'", "exit code 0: no output"),
    ],
)
def test_driver_that_ends_the_process_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, expected: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (finding,) = selftest.examine(numpy_info())
    assert not finding.passed
    assert expected in finding.problem
    assert "driver" in finding.hint


def test_driver_that_never_returns_is_given_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(selftest, "TIMEOUT_SECONDS", 0.1)
    (finding,) = selftest.examine(numpy_info())
    assert "no answer" in finding.problem


def test_failed_check_is_exit_6(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [Finding("build"), Finding("product", False, "off by 3", "update the driver")]
    monkeypatch.setattr(devices, "list_devices", lambda: [numpy_info()])
    monkeypatch.setattr(selftest, "examine", lambda info: findings)
    with pytest.raises(DeviceError, match="failed on numpy") as raised:
        devices.run(Terminal(), as_json=False, check=True)
    assert raised.value.exit_code == 6
    out = capsys.readouterr().out
    assert "product         FAILED: off by 3" in out
    assert "update the driver" in out
    terminal = Terminal()
    with pytest.raises(DeviceError):
        devices.run(terminal, as_json=True, check=True)
    assert terminal.has_printed_json  # the error is not printed as JSON again
    (report,) = json.loads(capsys.readouterr().out)
    assert not report["passed"]
    assert report["checks"][1]["hint"] == "update the driver"


def test_check_of_one_device_rebuilds_damaged_cached_kernels(
    imgmlp: Command, tmp_path: Path
) -> None:
    """Other commands would crash on them and then avoid the device."""
    env = {"POCL_CACHE_DIR": str(tmp_path / "pocl")}
    imgmlp("devices", "--check", "--device", "cpu", env=env)
    kernels = [path for path in (tmp_path / "pocl").rglob("*.so") if path.stat().st_size]
    if not kernels:
        pytest.skip("only PoCL has such a cache")
    for path in kernels:
        path.write_bytes(b"")
    imgmlp("devices", "--check", "--device", "cpu", env=env)
    assert all(path.stat().st_size for path in (tmp_path / "pocl").rglob("*.so"))
