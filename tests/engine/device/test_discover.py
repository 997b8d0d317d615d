"""Which device is taken: one that works is found, and what was asked for is never replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from imgmlp.engine import NumpyDevice, open_device
from imgmlp.engine.device import discover
from imgmlp.engine.device.base import DeviceInfo
from imgmlp.engine.device.numpy_device import numpy_info
from imgmlp.errors import DeviceError, ImgmlpWarning


class Opened:
    """A device that was opened, without its driver."""

    def __init__(self, handle: object, info: DeviceInfo) -> None:
        self.info = info


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Has devices listed that have the problems given."""
    handle, info = SimpleNamespace(int_ptr=0), replace(numpy_info(), kind="cpu")

    def show(problems: dict[str, str]) -> None:
        pairs = [(handle, replace(info, spec=spec)) for spec in problems]
        monkeypatch.setattr(discover, "Device", Opened)
        monkeypatch.setattr(discover, "find", lambda: (pairs, None))
        monkeypatch.setattr(discover, "problem_of", lambda handle, info: problems[info.spec])

    return show


def test_auto_skips_broken_devices_with_a_warning(listed: Callable[[dict[str, str]], None]) -> None:
    listed({"8:0": "its compiler broke", "9:0": ""})
    for spec in ("auto", "cpu"):
        with pytest.warns(ImgmlpWarning) as said:
            assert open_device(spec).info.spec == "9:0"
        (one,) = said
        assert "its compiler broke" in str(one.message)
        assert "devices --check" in str(one.message)
        assert "\n" not in str(one.message)


def test_auto_falls_back_to_numpy_and_warns_of_its_speed(
    listed: Callable[[dict[str, str]], None],
) -> None:
    listed({"8:0": "broken", "9:0": "lost"})
    with pytest.warns(ImgmlpWarning) as said:
        assert isinstance(open_device("auto"), NumpyDevice)
    first, second, numpy = (str(one.message) for one in said)
    assert "broken" in first
    assert "lost" in second
    assert "many times as long" in numpy


def test_open_device_refuses_anything_but_a_name() -> None:
    with pytest.raises(TypeError, match="open_device takes a name such as 'auto'"):
        open_device(None)  # type: ignore[arg-type]


def test_open_quietly_warns_of_nothing(
    listed: Callable[[dict[str, str]], None], recwarn: pytest.WarningsRecorder
) -> None:
    listed({"8:0": "its compiler broke", "9:0": ""})
    found = discover.open_quietly("cpu")
    assert found is not None
    assert found.info.spec == "9:0"
    assert discover.open_quietly("gpu") is None
    listed({"8:0": "broken"})
    assert discover.open_quietly("cpu") is None
    assert not recwarn.list


@pytest.mark.parametrize("spec", ["8:0", "cpu"])
def test_named_device_is_never_replaced(
    listed: Callable[[dict[str, str]], None], recwarn: pytest.WarningsRecorder, spec: str
) -> None:
    listed({"8:0": "broken"})
    with pytest.raises(DeviceError, match="does not work: broken") as raised:
        open_device(spec)
    assert raised.value.exit_code == 6
    assert "--device numpy" in raised.value.hint
    assert not recwarn.list
    assert isinstance(discover.open_untried(spec), Opened)


@pytest.mark.parametrize(
    ("spec", "problem", "advice"),
    [
        ("GPU", "no device of the kind 'gpu'", "imgmlp devices --check"),
        ("8:0,8:1", "no device '8:0,8:1'", "name one: 8:0 is"),
        ("mine", "no device 'mine'", "auto, gpu, cpu and numpy"),
    ],
)
def test_error_of_an_unknown_device_name_suggests_valid_ones(
    listed: Callable[[dict[str, str]], None], spec: str, problem: str, advice: str
) -> None:
    listed({"8:0": ""})
    with pytest.raises(DeviceError, match=problem) as raised:
        open_device(spec)
    assert advice in raised.value.hint
