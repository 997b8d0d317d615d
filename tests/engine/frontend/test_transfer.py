"""Feeders and Receivers: each step sees the value sent before it, and nothing blocks."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping
from reference import close

from imgmlp.engine import AnyDevice, Device, Feeder, Program, Receiver, Tensor, compile

cl = pytest.importorskip("pyopencl")


@pytest.fixture(scope="module", params=MAPPINGS)
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def accumulating_program(device: AnyDevice) -> tuple[Program, Tensor]:
    """A step that accumulates its input in a total, and outputs the sum of the last input."""
    x = Tensor(np.zeros((50, 40), np.float32), device, name="x")
    total = Tensor(np.zeros((), np.float32), device, name="total")

    def step() -> dict[str, Tensor]:
        last = x.sum()
        total.assign(total + last)
        return {"last": last, "total": total}

    return compile(step, device), x


def filled(value: float) -> np.ndarray:
    return np.full((50, 40), value / 2000, np.float32)


def test_each_step_reads_the_value_sent_before_it(device: AnyDevice) -> None:
    program, x = accumulating_program(device)
    feeder, received = Feeder(program, x), []
    receiver = Receiver(program, ["last"], lambda tag, got: received.append((tag, got["last"])))
    for i in range(10):
        values = filled(i)
        feeder.send(values)
        values[...] = -1  # send copies the values
        program.run()
        receiver.send(i)
    receiver.wait()
    assert [tag for tag, _ in received] == list(range(10))
    assert close(np.array([last for _, last in received]), np.arange(10), np.arange(10))
    assert close(program.read("total"), sum(range(10)))
    program.run()  # the last value stays
    assert close(program.read("last"), 9)


def test_receiver_gets_state_as_of_its_request(device: AnyDevice) -> None:
    x = Tensor(np.zeros((50, 40), np.float32), device, name="x")
    total = Tensor(np.zeros((50, 40), np.float32), device, name="total")
    unrelated = Tensor(np.zeros(3, np.float32), device)

    def step() -> dict[str, Tensor]:
        total.assign(total + x)
        return {"sum": x.sum()}

    program = compile(step, device)
    feeders, received = [Feeder(program, tensor) for tensor in (x, total)], []
    receiver = Receiver(program, ["sum"], lambda _, got: received.append(got), {"total": total})
    for i in range(4):
        program.run()
        receiver.send()
        for feeder in feeders:  # takes effect after the requested values are read
            feeder.send(filled(i))
    receiver.wait()
    assert close(np.array([got["sum"] for got in received]), [0, 0, 1, 2])
    for i, got in enumerate(received):
        assert np.array_equal(got["total"], filled(2 * max(i - 1, 0)))
    for tensor in (unrelated, x * 2):
        with pytest.raises(ValueError, match="nothing that the program has in memory"):
            Receiver(program, [], lambda *_: None, {"beside": tensor})
    with pytest.raises(ValueError, match="'sums' is no output of the program, which has sum"):
        Receiver(program, ["sums"], lambda *_: None)
    with pytest.raises(ValueError, match="sum is an output"):
        Receiver(program, ["sum"], lambda *_: None, {"sum": total})
    one = Receiver(program, "sum", lambda _, got: received.append(got), {"total": total})
    one.send(names="sum")
    one.send()
    one.wait()
    assert [list(got) for got in received[-2:]] == [["sum"], ["sum", "total"]]


@pytest.mark.parametrize("mapping", ["one", "group"])
def test_sending_and_receiving_do_not_wait_for_a_busy_device(mapping: str) -> None:
    device = open_mapping(mapping)
    assert isinstance(device, Device)
    program, x = accumulating_program(device)
    program.run()  # its kernels are compiled from here on
    feeder, received = Feeder(program, x), []
    receiver = Receiver(program, ["last"], lambda tag, got: received.append(got["last"]))
    feeder.send(filled(3))
    program.run()
    gate = cl.UserEvent(device._context)
    cl.enqueue_barrier(device._queue, wait_for=[gate])
    try:
        program.run()
        receiver.send()
        feeder.send(filled(4))
        program.run()
        receiver.send()
        receiver.poll()
        assert not received
    finally:
        gate.set_status(cl.command_execution_status.COMPLETE)
    receiver.wait()
    assert close(np.array(received), [3, 4])


def test_feeder_sends_dtypes_of_one_and_two_bytes(device: AnyDevice) -> None:
    for kind in (np.bool_, np.float16):
        x = Tensor(np.zeros(5, kind), device)
        program = compile(lambda x=x: {"copy": Tensor.concat([x, x])}, device)
        values = np.arange(5).astype(kind)
        Feeder(program, x).send(values)
        program.run()
        assert np.array_equal(program.read("copy"), np.concatenate([values, values]))


def test_feeder_refuses_wrong_shapes_dtypes_and_tensors(device: AnyDevice) -> None:
    program, x = accumulating_program(device)
    feeder = Feeder(program, x)
    for wrong in (np.zeros((40, 50), np.float32), np.zeros((50, 40))):
        for given in (wrong, wrong.tolist()):
            with pytest.raises(ValueError, match=r"x f32\[50, 40\] cannot take"):
                feeder.send(given)  # type: ignore[arg-type]
    for other in (Tensor([1.0], device), x + 1):
        with pytest.raises(ValueError, match="nothing that the program reads"):
            Feeder(program, other)
    with pytest.raises(TypeError, match="Feeder: takes a Tensor, not ndarray"):
        Feeder(program, filled(1))  # type: ignore[arg-type]


def test_staging_array_without_elements_is_allocated() -> None:
    for mapping in ("one", "numpy"):
        assert open_mapping(mapping).staging((0, 3), np.float32).shape == (0, 3)
