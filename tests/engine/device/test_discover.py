"""Listing and choosing devices: a working one is found, a named one is never replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import environment

from imgmlp.engine import Device, NumpyDevice, list_devices, open_device
from imgmlp.engine.device import discover
from imgmlp.engine.device.base import DeviceInfo
from imgmlp.engine.device.discover import find
from imgmlp.engine.device.numpy_device import numpy_info
from imgmlp.errors import DeviceError, ImgmlpWarning


class FakeDevice:
    """An opened device without a driver."""

    def __init__(self, handle: object, info: DeviceInfo) -> None:
        self.info = info


@pytest.fixture
def list_devices_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """A function that makes these specs be listed, with the problems given."""
    handle, info = SimpleNamespace(int_ptr=0), replace(numpy_info(), kind="cpu")

    def show(problems: dict[str, str]) -> None:
        pairs = [(handle, replace(info, spec=spec)) for spec in problems]
        monkeypatch.setattr(discover, "Device", FakeDevice)
        monkeypatch.setattr(discover, "find", lambda: (pairs, None))
        monkeypatch.setattr(discover, "problem_of", lambda handle, info: problems[info.spec])

    return show


def test_auto_skips_broken_devices_with_a_warning(
    list_devices_with: Callable[[dict[str, str]], None],
) -> None:
    list_devices_with({"8:0": "its compiler broke", "9:0": ""})
    for spec in ("auto", "cpu"):
        with pytest.warns(ImgmlpWarning) as warnings_given:
            assert open_device(spec).info.spec == "9:0"
        (one,) = warnings_given
        assert "its compiler broke" in str(one.message)
        assert "devices --check" in str(one.message)
        assert "\n" not in str(one.message)


def test_auto_falls_back_to_numpy_and_warns_of_its_speed(
    list_devices_with: Callable[[dict[str, str]], None],
) -> None:
    list_devices_with({"8:0": "broken", "9:0": "lost"})
    with pytest.warns(ImgmlpWarning) as warnings_given:
        assert isinstance(open_device("auto"), NumpyDevice)
    first, second, numpy = (str(one.message) for one in warnings_given)
    assert "broken" in first
    assert "lost" in second
    assert "many times as long" in numpy


def test_open_device_refuses_anything_but_a_name() -> None:
    with pytest.raises(TypeError, match="open_device takes a name such as 'auto'"):
        open_device(None)  # type: ignore[arg-type]


def test_open_quietly_warns_of_nothing(
    list_devices_with: Callable[[dict[str, str]], None], recwarn: pytest.WarningsRecorder
) -> None:
    list_devices_with({"8:0": "its compiler broke", "9:0": ""})
    device = discover.open_quietly("cpu")
    assert device is not None
    assert device.info.spec == "9:0"
    assert discover.open_quietly("gpu") is None
    list_devices_with({"8:0": "broken"})
    assert discover.open_quietly("cpu") is None
    assert not recwarn.list


@pytest.mark.parametrize("spec", ["8:0", "cpu"])
def test_named_device_is_never_replaced(
    list_devices_with: Callable[[dict[str, str]], None], recwarn: pytest.WarningsRecorder, spec: str
) -> None:
    list_devices_with({"8:0": "broken"})
    with pytest.raises(DeviceError, match="does not work: broken") as raised:
        open_device(spec)
    assert raised.value.exit_code == 6
    assert "--device numpy" in raised.value.hint
    assert not recwarn.list
    assert isinstance(discover.open_untried(spec), FakeDevice)


@pytest.mark.parametrize(
    ("spec", "problem", "advice"),
    [
        ("GPU", "no device of the kind 'gpu'", "imgmlp devices --check"),
        ("8:0,8:1", "no device '8:0,8:1'", "name one: 8:0 is"),
        ("mine", "no device 'mine'", "auto, gpu, cpu and numpy"),
    ],
)
def test_error_of_an_unknown_device_name_suggests_valid_ones(
    list_devices_with: Callable[[dict[str, str]], None], spec: str, problem: str, advice: str
) -> None:
    list_devices_with({"8:0": ""})
    with pytest.raises(DeviceError, match=problem) as raised:
        open_device(spec)
    assert advice in raised.value.hint


@pytest.mark.parametrize("spec", ["numpy:procedure", "numpy:uops", "numpy:uops-group"])
def test_emulators_of_lowered_forms_are_opened_by_name_but_not_listed(spec: str) -> None:
    device = open_device(spec)
    assert device.info.spec == spec
    assert device.lanes == ("group" if "group" in spec else "one")
    assert spec not in [info.spec for info in list_devices()]


def test_numpy_is_always_listed_last() -> None:
    devices = list_devices()
    assert devices[-1].spec == devices[-1].kind == "numpy"
    assert isinstance(open_device("numpy"), NumpyDevice)
    assert any(d.kind == "cpu" for d in devices)


def test_auto_opens_an_opencl_device() -> None:
    assert isinstance(open_device("auto"), Device)


def test_simulator_is_opened_by_its_name_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The simulator may be listed first, and reports that it is also a GPU."""
    others = [pair for pair in find()[0] if pair[1].kind != "simulator"]
    handle, info = others[0]
    simulator = (handle, replace(info, spec="9:0", kind="simulator"))
    monkeypatch.setattr(discover, "find", lambda: ([simulator, *others], None))
    assert open_device("auto").info.kind != "simulator"
    assert open_device("cpu").info.kind == "cpu"
    assert open_device("simulator").info.spec == open_device("9:0").info.spec == "9:0"
    monkeypatch.setattr(discover, "find", lambda: ([simulator], None))
    for spec in ("cpu", "gpu"):
        with pytest.raises(DeviceError, match="only a simulator") as raised:
            open_device(spec)
        assert "pocl" in raised.value.hint
    with pytest.warns(ImgmlpWarning) as warnings_given:
        assert open_device("auto").info.kind == "numpy"
    first, second = (str(one.message) for one in warnings_given)
    assert "only a simulator" in first
    assert "NumPy computes" in second


def test_listed_spec_opens_its_device() -> None:
    for info in list_devices():
        assert open_device(info.spec).info == info


@pytest.mark.parametrize("spec", ["", "7:0", "0:99", "tpu", "0", "-1:0", "0:0:0"])
def test_error_of_an_unknown_spec_lists_devices(spec: str) -> None:
    with pytest.raises(DeviceError) as raised:
        open_device(spec)
    assert raised.value.exit_code == 6
    assert "0:0" in raised.value.hint
    assert "numpy" in raised.value.hint


def run_python(code: str, **changes: str | None) -> subprocess.CompletedProcess[str]:
    env = environment() | {k: v for k, v in changes.items() if v is not None}
    for name in (k for k, v in changes.items() if v is None):
        env.pop(name, None)
    return subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_without_a_driver_auto_opens_numpy_and_cpu_is_refused() -> None:
    code = """
import warnings
from imgmlp.engine import list_devices, open_device
from imgmlp.errors import DeviceError
print([d.spec for d in list_devices()])
with warnings.catch_warnings(record=True) as said:
    print(open_device("auto").info.spec)
print("pocl" in str(said[0].message), "NumPy computes" in str(said[1].message), len(said))
try:
    open_device("cpu")
except DeviceError as error:
    print(error.exit_code, "pocl" in error.hint.lower(), "numpy" in error.hint)
"""
    done = run_python(code, OCL_ICD_VENDORS="/nonexistent")
    assert done.stdout == "['numpy']\nnumpy\nTrue True 2\n6 True True\n"
    assert done.stderr == ""


@pytest.mark.parametrize("left", ["None", "types.ModuleType('pyopencl')"], ids=["none", "a folder"])
def test_without_pyopencl_auto_opens_numpy(left: str) -> None:
    code = f"""
import sys, types
sys.modules["pyopencl"] = {left}
if sys.modules["pyopencl"]:
    sys.modules["pyopencl"].__file__ = None
from imgmlp.engine import Tensor, list_devices, open_device
print([d.spec for d in list_devices()], (Tensor([1.0], open_device("auto")) + 1).item())
"""
    done = run_python(code)
    assert done.stdout == "['numpy'] 2.0\n", done.stderr
    assert "pyopencl cannot be loaded" in done.stderr


@pytest.mark.parametrize("kind", ["OSError", "RuntimeError", "AttributeError", "ImportError"])
def test_with_broken_pyopencl_numpy_works_and_the_cause_is_shown(tmp_path: Path, kind: str) -> None:
    (tmp_path / "pyopencl.py").write_text(f"raise {kind}('libOpenCL.so:\\nof another machine')")
    code = """
from imgmlp.engine import Tensor, list_devices, open_device
print([d.spec for d in list_devices()], (Tensor([1.0], open_device("numpy")) + 1).item())
open_device("cpu")
"""
    done = run_python(
        code, PYTHONPATH=os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    )
    assert done.stdout == "['numpy'] 2.0\n", done.stderr
    assert "pyopencl cannot be loaded (libOpenCL.so: of another machine)" in done.stderr
