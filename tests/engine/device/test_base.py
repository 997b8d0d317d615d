"""A failing launch or event raises an error and makes the device unusable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import OPENCL, open_opencl

from imgmlp.cli import parsing, train
from imgmlp.cli.train import Outputs
from imgmlp.engine import Device, Program, Tensor, compile
from imgmlp.engine.device.base import Event
from imgmlp.errors import DeviceError
from imgmlp.terminal import Terminal

cl = pytest.importorskip("pyopencl")


@pytest.fixture
def device() -> Device:
    return open_opencl()


def two_launches(device: Device) -> tuple[Program, Tensor]:
    state = Tensor(np.ones((3, 4), np.float32), device)
    total = Tensor(np.zeros(7, np.float32), device)

    def step() -> dict[str, Tensor]:
        state.assign(state * 2)
        total.assign(total + state.sum())
        return {"all": total.sum()}

    program = compile(step, device)
    assert len(program.launches) >= 2
    return program, state


def test_failed_launch_makes_the_device_unusable(device: Device) -> None:
    program, state = two_launches(device)
    program.run()
    program.wait()
    broken = program.launches[1]
    broken.local_size = (3,)  # not what its kernel was compiled for: the driver refuses it
    with pytest.raises(DeviceError, match=f"launching kernel {broken.handle.name}") as raised:
        program.run()
    assert raised.value.exit_code == 6
    uses = (program.run, program.wait, program.marker, state.numpy, lambda: program.read("all"))
    for use in uses:
        with pytest.raises(DeviceError, match="is lost") as refused:
            use()
        assert broken.handle.name in str(refused.value)
        assert "open the device again" in refused.value.hint
    lazy = state + 1
    with pytest.raises(DeviceError, match="is lost"):
        lazy.realize()
    assert not lazy.realized
    again = open_opencl()
    assert (Tensor(np.ones(3), again) + 1).numpy().tolist() == [2, 2, 2]


class FailingEvent:
    """An OpenCL event that ended with an error, as after the loss of the device."""

    command_execution_status = -5

    def __init__(self, device: Device) -> None:
        self.device = device

    def wait(self) -> None:
        cl.Buffer(self.device._context, cl.mem_flags.READ_WRITE, size=0)  # raises


@pytest.mark.parametrize("use", ["wait", "done"])
def test_asynchronous_failure_is_raised_when_its_event_is_queried(device: Device, use: str) -> None:
    pending = Event(FailingEvent(device), device._queued)
    with pytest.raises(DeviceError, match="waiting for the device"):
        getattr(pending, use)()
    with pytest.raises(DeviceError, match="is lost"):
        device.finish()


def test_training_on_a_lost_device_leaves_no_file(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_all, runs = Device.launch_all, []

    def launch(device: Device, launches: list) -> None:
        runs.append(launches)
        if len(runs) == 15:
            launches[-1].local_size = (3,)
        launch_all(device, launches)

    monkeypatch.setattr(Device, "launch_all", launch)
    # No checkpoint is written, however slow this machine is.
    monkeypatch.setattr("imgmlp.codec.training.checkpoint.SAVE_INTERVAL", float("inf"))
    outputs = picture.parent / "a.npz", picture.parent / "a.png"
    settings = parsing.training_settings("default", steps=300, batch=64, hidden=8, layers=1)
    with pytest.raises(DeviceError, match="launching kernel"):
        train.run(Terminal(), picture, Outputs(*outputs), settings, OPENCL["device"], False)
    assert [path.name for path in picture.parent.iterdir()] == [picture.name]
