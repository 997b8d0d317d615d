"""The prologue of a block: it saves launches, and uses current weights in every step."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import EMULATED, open_mapping, with_units
from reference import close

from imgmlp.engine import AnyDevice, Program, Tensor, compile, open_device, optim
from imgmlp.engine.ir.kernel import Block, Fused
from imgmlp.engine.ir.target import Lanes
from imgmlp.engine.tiling import prologue

ROWS, FEATURES = 130, 16


@pytest.fixture(scope="module", params=["one", *EMULATED])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).uniform(-0.5, 0.5, shape).astype(np.float32)


def descent_program(device: AnyDevice) -> tuple[Program, list[Tensor]]:
    """A program of AdamW steps on two layers with a falling learning rate, and the weights."""
    x, y = Tensor(draw(ROWS, FEATURES), device), Tensor(draw(ROWS, FEATURES), device)
    weights = [Tensor(draw(FEATURES, FEATURES) * scale, device) for scale in (1.0, 2.0)]
    count = Tensor(np.float32(0), device, name="count")
    optimizer = optim.AdamW(weights, lr=0.1 / (count + 1.0))

    def step() -> dict[str, Tensor]:
        loss = ((x @ weights[0]).leaky_relu(0.1) @ weights[1] - y).square().mean()
        optimizer.step(loss)
        count.assign(count + 1.0)
        return {"loss": loss, "count": count}

    return compile(step, device), weights


@pytest.mark.parametrize("lanes", ["one", "group"])
def test_step_with_an_optimizer_is_two_launches(lanes: Lanes) -> None:
    device = with_units(open_device("numpy"), 2)
    device.lanes = lanes
    block, after = descent_program(device)[0].stages.procedure.kernels
    assert isinstance(block, Block)
    assert isinstance(after, Fused)
    transposed = [k for k in block.prologue if k.name == "copy"]
    assert len(transposed) == (
        lanes == "one"
    )  # with lanes a product reads both layouts equally fast


def test_copies_of_large_matrices_are_a_launch_before_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prologue, "MAX_COPIED_ELEMENTS", FEATURES * FEATURES - 1)
    copied, block, _ = descent_program(with_units(open_device("numpy"), 2))[
        0
    ].stages.procedure.kernels
    assert isinstance(copied, Fused)  # with the copies of states
    assert (FEATURES, FEATURES) in [k.shape for k in copied.members]
    assert isinstance(block, Block)
    assert [k.name for k in block.prologue] == ["clear"]


def test_weights_written_by_the_host_between_steps_are_used(device: AnyDevice) -> None:
    results = []
    for where in (device, open_device("numpy")):
        program, weights = descent_program(where)
        program.run(3)
        weights[1].write(draw(FEATURES, FEATURES) * 3)
        program.run()
        loss = program.read("loss")
        weights[0].write(weights[0].numpy() * -1)
        program.run(2)
        assert program.read("count") == 6
        results.append([loss, program.read("loss"), *(w.numpy() for w in weights)])
    for value, expected in zip(*results, strict=True):
        assert close(value, expected, roundings=256)


def test_split_and_repeated_runs_give_identical_bits(device: AnyDevice) -> None:
    whole, parts = descent_program(device), descent_program(device)
    whole[0].run(4)
    for _ in range(2):
        parts[0].run(2)
        states = [t.numpy() for t in parts[1]]  # read back and set again
        for tensor, array in zip(parts[1], states, strict=True):
            tensor.write(array)
    for one, other in zip(whole[1], parts[1], strict=True):
        assert np.array_equal(one.numpy(), other.numpy())
