"""The self-test of devices: good ones pass, each kind of fault is detected with fitting advice."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import BUILT_TWICE, FORMS, open_mapping, open_opencl

from imgmlp.engine import check_device, missing_drivers, open_device
from imgmlp.engine.device.numpy_device import numpy_info
from imgmlp.engine.frontend import device_check


@pytest.mark.parametrize("mapping", FORMS)
def test_working_device_passes_every_check(mapping: str) -> None:
    findings = check_device(open_mapping(mapping))
    assert [f.name for f in findings] == ["build", *device_check.TESTS]
    assert [f for f in findings if not f.passed or f.problem or f.hint] == []


def test_every_check_detects_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("numpy")
    read = device.read

    def misread(allocation: Any, array: np.ndarray) -> None:
        read(allocation, array)
        last = array.reshape(-1)[-1:]
        last += np.asarray(np.nan if array.dtype.kind == "f" else 1).astype(array.dtype)

    monkeypatch.setattr(device, "read", misread)
    findings = check_device(device)
    assert not findings[0].passed
    assert "1 of 1 values are wrong" in findings[0].problem
    for name, test in device_check.TESTS.items():
        assert test(device), name


def test_check_allows_rounding_errors_only() -> None:
    expected = np.linspace(-1, 1, 9, dtype=np.float32)
    assert not device_check._difference("x", expected * np.float32(1 + 1e-6), expected)
    assert "off by" in device_check._difference("x", expected * np.float32(1 + 1e-4), expected)
    assert "nan" in device_check._difference("x", expected * np.float32(np.nan), expected)


def test_failing_compiler_is_the_only_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        device_check,
        "PROBE_SOURCE",
        f"__kernel void imgmlp_probe(__global int *x) {{ broken }} {BUILT_TWICE}",
    )
    (findings,) = check_device(open_opencl())
    assert (findings.name, findings.passed) == ("build", False)
    assert "does not compile" in findings.problem
    assert "update or reinstall" in findings.hint
    assert "broken" in findings.hint
    (saved,) = (w for w in findings.hint.split() if w.endswith(".cl"))
    os.unlink(saved)


def test_exception_in_a_check_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(device: Any) -> str:
        raise RuntimeError("lost")

    monkeypatch.setattr(device_check, "TESTS", {"gather": fault})
    finding = check_device(open_device("numpy"))[1]
    assert (finding.passed, finding.problem) == (False, "RuntimeError: lost")


def test_missing_kernel_cache_folder_is_reported_without_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_check, "TESTS", {})
    monkeypatch.setattr(device_check, "is_private", lambda: True)
    finding = check_device(open_opencl())[-1]
    assert finding.passed
    assert "compiles" in finding.problem
    assert "POCL_CACHE_DIR" in finding.hint


def test_missing_driver_advice_names_pocl_variable_or_nvidia_icd(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("OCL_ICD_VENDORS", raising=False)
    monkeypatch.setattr(device_check, "NVIDIA_VERSION_FILE", tmp_path / "absent")
    monkeypatch.setattr(device_check, "RENDER_NODE_FOLDER", tmp_path)
    processor = replace(numpy_info(), kind="cpu", platform="Portable Computing Language")
    assert missing_drivers([processor]) == []
    (none,) = missing_drivers([numpy_info()])
    assert "pyopencl[pocl]" in none
    monkeypatch.setattr(device_check, "NVIDIA_VERSION_FILE", tmp_path)
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path / "gone"))
    variable, nvidia = missing_drivers([processor])
    assert f"OCL_ICD_VENDORS names {tmp_path / 'gone'}" in variable
    assert "nvidia.icd" in nvidia
