"""The tour: 2 + 3 and one linear layer, through every form that the engine gives them.

Start reading here. Each step prints what the engine holds at that point; the printed text is
asserted, and docs/engine.md shows the same text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import open_mapping, open_pocl, with_units

from imgmlp.engine import Device, Tensor, compile, cond, loop
from imgmlp.engine.ir.kernel import render_procedure
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.printer import render_nodes, render_tree
from imgmlp.engine.ir.uops import render_uops

PAGE = (Path(__file__).parent.parent / "docs" / "engine.md").read_text("utf-8")


@pytest.fixture(scope="module")
def device() -> Device:
    found = open_mapping("one")
    assert isinstance(found, Device)
    return found


def shown(text: str) -> str:
    """The text, which docs/engine.md must contain word for word."""
    assert text.strip("\n") in PAGE, f"docs/engine.md does not show:\n{text}"
    return text


def test_two_plus_three(device: Device) -> None:
    # A Tensor is an expression. Nothing has run, and nothing has been uploaded.
    two, three = Tensor([2.0], device, name="two"), Tensor([3.0], device, name="three")
    total = two + three
    assert not total.realized
    assert total.node.op is Op.ADD
    assert total.node.src == (two.node, three.node)

    # First form: Nodes say what is computed. The same expression is the same Node.
    assert (two + three).node is total.node
    shown(render_nodes([total.node]))

    # Second form: a Procedure says which kernels run and what each leaves where.
    program = compile(lambda: {"sum": total}, device)
    assert shown(render_procedure(program.stages.procedure)).splitlines() == [
        "k0_map [1]",
        "    sum[0] = add(two[0], three[0])",
    ]

    # Third form: UOps say how a kernel runs, instruction by instruction.
    (code,) = program.stages.codes
    shown(render_uops(code))

    # From them comes OpenCL C, which the driver compiles.
    shown(program.stages.source[program.stages.source.index("__kernel") :])

    # Replaying is enqueueing launches whose arguments are already set.
    program.run()
    assert program.read("sum") == 5.0
    assert total.realize().item() == 5.0
    assert total.realized


def test_one_linear_layer(device: Device) -> None:
    x = Tensor(np.ones((4, 3), np.float32), device, name="x")  # [rows, inputs]
    weight = Tensor(np.full((3, 5), 2.0, np.float32), device, name="weight")  # [inputs, outputs]
    bias = Tensor(np.full(5, -7.0, np.float32), device, name="bias")  # [outputs]
    y = (x @ weight + bias).relu()  # [rows, outputs]
    shown(render_nodes([y.node]))
    shown(render_tree([y.node]))  # the same from the result down

    # Product, bias and activation are one kernel.
    program = compile(lambda: {"y": y}, device)
    assert len(program.stages.procedure.kernels) == 1
    shown(render_procedure(program.stages.procedure))
    shown(render_uops(program.stages.codes[0]))
    program.run()
    assert np.array_equal(program.read("y"), np.zeros((4, 5)))  # 6 - 7 is below zero


def test_one_training_step_of_the_layer(device: Device) -> None:
    x = Tensor(np.ones((4, 3), np.float32), device, name="x")
    weight = Tensor(np.full((3, 5), 2.0, np.float32), device, name="weight")
    bias = Tensor(np.zeros(5, np.float32), device, name="bias")

    def step() -> dict[str, Tensor]:
        loss = (x @ weight + bias).square().sum()
        # Gradients are Nodes like any other; the assignments are made after all reads.
        for parameter, slope in zip((weight, bias), loss.gradient([weight, bias]), strict=True):
            parameter.assign(parameter - slope * 0.01)
        return {"loss": loss}

    program = compile(step, device)
    # The weight gradient updates the weights where they are; the bias gradient comes with it
    # or by itself, and the loss is read from the forward product.
    assert shown(render_procedure(program.stages.procedure))
    written = [b.name for k in program.stages.procedure.kernels for b in k.writes()]
    assert {"weight", "bias", "loss"} <= set(written)
    program.run()
    assert program.read("loss") == 4 * 5 * 6.0**2
    assert np.allclose(weight.numpy(), 2.0 - 0.01 * 4 * 2 * 6.0)
    assert np.allclose(bias.numpy(), -0.01 * 4 * 2 * 6.0)


def test_two_layers_are_one_block() -> None:
    device = with_units(open_pocl(), 2)  # on others a launch is of one step

    def whole(name: str, *shape: int) -> Tensor:
        return Tensor(np.ones(shape, np.float32), device, name=name)

    x, weight, last = whole("x", 1024, 8), whole("weight", 8, 16), whole("last", 16, 16)

    def step() -> dict[str, Tensor]:
        loss = ((x @ weight).relu() @ last).square().sum()
        gradients = loss.gradient([weight, last])
        for parameter, gradient in zip([weight, last], gradients, strict=True):
            parameter.assign(parameter - gradient * 1e-5)
        return {"loss": loss}

    # What belongs to rows of the batch becomes one launch, whose groups walk tiles of rows;
    # sums over rows are partial sums, one for each group, which the kernels after it add.
    program = compile(step, device)
    assert "for each tile" in shown(render_procedure(program.stages.procedure))
    program.run()
    assert program.read("loss") == 1024 * 16 * (16 * 8.0) ** 2
    assert np.allclose(last.numpy(), 1.0 - 1e-5 * 2 * 1024 * 8 * 128)


def test_a_loop(device: Device) -> None:
    matrix = Tensor(np.full((2, 2), 2.0, np.float32), device, name="matrix")
    v = Tensor(np.ones(2, np.float32), device, name="v")
    # The body is called once, with Tensors that stand for any iteration's values.
    y = loop(3, lambda i, v: matrix @ v + i, v)
    shown(render_nodes([y.node]))

    # Its kernels appear once as well; the host replays them.
    program = compile(lambda: {"y": y}, device)
    shown(render_procedure(program.stages.procedure))
    program.run()
    assert np.array_equal(program.read("y"), [4 * (4 * 4 + 1) + 2] * 2)


def test_a_choice(device: Device) -> None:
    matrix = Tensor(np.full((2, 2), 2.0, np.float32), device, name="matrix")
    left = Tensor(np.int32(1), device, name="left")

    def step() -> dict[str, Tensor]:
        y = cond(left, lambda: matrix @ matrix, lambda: matrix * 3)
        left.assign(left - 1)
        return {"y": y}

    # Kernels that only one of the values needs begin with a look at the condition.
    program = compile(step, device)
    shown(render_procedure(program.stages.procedure))
    shown(program.stages.source[program.stages.source.rindex("__kernel") :])
    for wanted in (8.0, 6.0):
        program.run()
        assert np.array_equal(program.read("y"), np.full((2, 2), wanted))
