"""cond inside a step: each replay computes the taken branch alone."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Lowered, open_mapping
from poison import run_poisoned
from reference import close
from small_programs import symmetric

from imgmlp.engine import AnyDevice, Device, Program, Tensor, compile, cond, loop
from imgmlp.engine import dtype as dt
from imgmlp.engine.ir.op import Op
from imgmlp.engine.oracle import interpret


def countdown_program(device: AnyDevice) -> tuple[Program, Tensor]:
    """A step whose condition is a state that counts down and selects the other branch from 0 on."""
    a = Tensor(symmetric(5), device)
    left = Tensor(np.int32(2), device)
    state = Tensor(np.ones((5, 5)), device)
    recorded = Tensor(np.zeros(5), device)

    def step() -> dict[str, Tensor]:
        c = left > 0
        y, total = cond(
            c,
            lambda: ((a @ a + 1.0).softmax(), (a @ state).sum()),
            lambda: (a * 2.0, a.sum() * 0.5),
        )
        state.assign(cond(c, lambda: state * 2.0 + y, lambda: state))
        recorded.assign(cond(left, lambda: y.sum(0), lambda: recorded))
        left.assign(left - 1)
        return {"y": y, "total": total, "joined": Tensor.concat([y, state])}

    return compile(step, device), state


def test_condition_of_cond_may_change_between_replays(device: AnyDevice) -> None:
    program, state = countdown_program(device)
    a, expected = symmetric(5).astype(np.float64), np.ones((5, 5))
    e = np.exp(a @ a + 1 - (a @ a + 1).max(1, keepdims=True))
    sizes = np.abs(expected)
    for left in (2, 1, 0, -1):
        program.run()
        y = e / e.sum(1, keepdims=True) if left > 0 else a * 2
        total = (a @ expected).sum() if left > 0 else a.sum() * 0.5
        assert close(program.read("y"), y, roundings=256)
        assert close(program.read("total"), total, (np.abs(a) @ sizes).sum(), roundings=256)
        assert close(program.read("joined"), np.concatenate([y, expected]), roundings=256)
        expected = expected * 2 + y if left > 0 else expected
        sizes = sizes * 2 + np.abs(y)
        assert close(state.numpy(), expected, sizes, roundings=256)


def test_untaken_branch_writes_no_memory(kernels: Device) -> None:
    """Memory of intermediate values is unchanged if the branch that needs them is not taken."""
    a, c = Tensor(symmetric(5), kernels), Tensor(np.int32(0), kernels)
    choice = cond(c, lambda: (a @ a).softmax() + 1.0, lambda: a * 2.0)
    program = compile(lambda: {"y": choice}, kernels)
    plan = program.stages.memory
    assert len(plan.offsets) >= 2  # the product in the branch, and the condition
    arena = dict(
        zip(plan.allocation_offsets(), program.arena, strict=True)
    )  # one, or several allocations
    for allocation in arena.values():
        kernels.write(allocation, np.full(allocation.nbytes, 0x55, np.uint8))
    for taken in (False, True):
        c.write(np.array(taken, np.int32))
        program.run()
        for storage, offset in plan.offsets.items():
            start = max(place for place in arena if place <= offset)
            actual = np.empty(arena[start].nbytes, np.uint8)
            kernels.read(arena[start], actual)
            untouched = (actual[offset - start :][: storage.nbytes] == 0x55).all()
            assert untouched == (not taken and storage.dtype is not dt.bool_)


def test_guarded_kernels_are_right_when_their_memory_is_reused(kernels: Device) -> None:
    plain, poisoned = countdown_program(kernels)[0], countdown_program(kernels)[0]
    for _ in range(3):
        plain.run()
        run_poisoned(poisoned)
        for name in ("y", "total", "joined"):
            assert np.array_equal(plain.read(name), poisoned.read(name))


def test_state_unchanged_by_a_branch_is_not_copied(lowered: Lowered) -> None:
    x, c = Tensor([1.0, 2.0]), Tensor([True])

    def step() -> dict[str, Tensor]:
        x.assign(cond(c, lambda: x * 2, lambda: x))
        return {}

    assert len(lowered(step).codes) == 1


def test_cond_in_a_loop_stops_newton_iterations_after_convergence(device: AnyDevice) -> None:
    """Iterations after the first small step leave the value unchanged."""
    two = Tensor([2.0], device)

    def body(i: Tensor, x: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        better = (x + two / x) * 0.5
        near = ((better - x).abs() < 1e-3).cast(dt.i32).sum()
        return cond(near, lambda: (x, steps), lambda: (better, steps + 1))

    x, steps = loop(30, body, Tensor([1.0], device), Tensor(np.int32(0), device))
    assert x.item() == pytest.approx(np.sqrt(2), abs=1e-3)
    assert steps.item() == 3


def test_nested_conds_with_a_loop_follow_their_conditions(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0], device)
    number = Tensor(np.int32(0), device)

    def step() -> dict[str, Tensor]:
        inner = cond(number < 2, lambda: loop(3, lambda i, y: y * x + i, x), lambda: x * 7)
        y = cond(number < 1, lambda: -x, lambda: inner + 1)
        number.assign(number + 1)
        return {"y": y}

    program = compile(step, device)
    for expected in ([-1.0, -2.0], [5.0, 21.0], [8.0, 15.0]):
        program.run()
        assert np.array_equal(program.read("y"), expected)


def test_numpy_device_computes_only_the_taken_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(interpret.FUNCTIONS, Op.SIN, None)
    x = Tensor([1.0, 2.0], open_mapping("numpy"))
    true = Tensor(np.bool_(True), x.device)
    assert cond(true, x.sum, lambda: x.sin().sum()).item() == 3
    with pytest.raises(TypeError):
        cond(true.logical_not(), x.sum, lambda: x.sin().sum()).item()


def test_cond_on_a_constant_keeps_only_the_taken_branch(lowered: Lowered) -> None:
    x = Tensor([1.0, 2.0])
    yes = Tensor.full((), 3) > 2
    stages = lowered(lambda: {"y": cond(yes, lambda: x * 3, x.sin)})
    assert [n.op for n in stages.nodes] == [Op.MUL]
    assert len(stages.codes) == 1


def test_listings_show_guards_of_cond_branches(lowered: Lowered) -> None:
    x, c = Tensor([1.0, 2.0]), Tensor(np.int32(1))
    stages = lowered(lambda: {"y": cond(c, lambda: x * 2, lambda: x + 1)})
    assert "COND" in stages.show("nodes")
    assert "[label=true]" in stages.show("dot")
    assert "  if t" in stages.show("procedure")
    assert "  unless t" in stages.show("procedure")
    assert "GUARD" in stages.show("uops")
    assert stages.source.count("return;") == 2
