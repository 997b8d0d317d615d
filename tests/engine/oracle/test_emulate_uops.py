"""UOps run by NumPy report injected faults. Tests of programs compare their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from reference import close

from imgmlp.engine.ir.dtype import f32, i32
from imgmlp.engine.ir.graph import Buffer, Node, buffer, dot, gather, move, reduce
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Const
from imgmlp.engine.ir.target import Lanes, Target
from imgmlp.engine.ir.uops import Code, Range, U, UOp
from imgmlp.engine.lowering.linearize import linearize
from imgmlp.engine.oracle import emulate_uops
from imgmlp.engine.oracle.emulate_uops import run_code
from imgmlp.engine.passes.schedule import schedule

X = Buffer((40, 70), f32, name="x")
START = np.random.default_rng(0).uniform(-1, 1, X.size).astype(np.float32)
LANES: tuple[Lanes, ...] = ("one", "group")


def lowered(value: Node, lanes: Lanes, target: Buffer | None = None) -> tuple[Code, Buffer]:
    """The UOps of one kernel, and the Buffer that it fills."""
    out = target or Buffer(value.shape, value.dtype, "here", name="out")
    (kernel,) = schedule([(out, value)]).kernels
    return linearize(kernel, Target(lanes, 2)), out


def run(code: Code, out: Buffer, **more: np.ndarray) -> np.ndarray:
    held = {b: more.get(b.name, START.copy()) for b in code.buffers if b is not out}
    held[out] = START.copy() if out is X else np.zeros(out.size, out.dtype.np)
    run_code(code, held)
    return held[out].reshape(out.shape)


def changed(code: Code, change: Callable[[UOp], UOp | None]) -> Code:
    """The code with instructions replaced where `change` returns another one."""
    return replace(code, uops=tuple(change(u) or u for u in code.uops))


VALUES = {
    "map": buffer(X) * 2.0,
    "rows": reduce(Op.SUM, buffer(X), (1,)),
    "columns": reduce(Op.SUM, buffer(X), (0,)),
    "product": dot(buffer(X), move(Op.PERMUTE, buffer(X), (1, 0))),
}


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", VALUES)
def test_emulated_launch_equals_numpy(name: str, lanes: Lanes) -> None:
    x = START.reshape(X.shape)
    expected = {"map": x * 2, "rows": x.sum(1), "columns": x.sum(0), "product": x @ x.T}[name]
    code, out = lowered(VALUES[name], lanes)
    assert close(run(code, out), expected)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", VALUES)
def test_store_index_out_of_bounds_is_reported(name: str, lanes: Lanes) -> None:
    def one_further(u: UOp) -> UOp | None:
        return replace(u, arg=u.arg + 1) if u.op is U.STORE else None

    code, out = lowered(VALUES[name], lanes)
    wrong = rf"{code.name}: instruction \d+, STORE, touches element {out.size} of out"
    with pytest.raises(IndexError, match=wrong):
        run(changed(code, one_further), out)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", VALUES)
def test_two_work_items_storing_one_element_are_reported(name: str, lanes: Lanes) -> None:
    def halved(u: UOp) -> UOp | None:
        return replace(u, arg=u.arg // 2) if u.op is U.STORE else None

    code, out = lowered(VALUES[name], lanes)
    wrong = rf"{code.name}: instruction \d+, STORE, two iterations write element \d+ of out"
    with pytest.raises(ValueError, match=wrong):
        run(changed(code, halved), out)


@pytest.mark.parametrize("lanes", LANES)
def test_reading_what_another_work_item_overwrites_is_reported(lanes: Lanes) -> None:
    def reversed_(u: UOp) -> UOp | None:
        if u.op is not U.LOAD:
            return None
        return replace(u, arg=(Const(X.size - 1) - u.arg[0], u.arg[1]))

    code, out = lowered(VALUES["map"], lanes, X)
    assert np.array_equal(run(code, out).ravel(), START * 2)
    wrong = rf"{code.name}: instruction \d+, LOAD, races with instruction \d+, STORE, for .* of x"
    with pytest.raises(ValueError, match=wrong):
        run(changed(code, reversed_), out)


def test_lanes_that_all_store_a_sum_are_reported() -> None:
    def every_lane(u: UOp) -> UOp | None:
        expected = u.op is U.RANGE and u.arg.name == "first"
        return replace(u, arg=Range("first", 64, "lane")) if expected else None

    code, out = lowered(VALUES["rows"], "group")
    with pytest.raises(ValueError, match="two iterations write element"):
        run(changed(code, every_lane), out)


def test_barrier_that_not_all_lanes_reach_is_reported() -> None:
    """A barrier inside of a loop that some lanes leave early would never end."""
    code, out = lowered(VALUES["rows"], "group")
    at = next(i for i, u in enumerate(code.uops) if u.op is U.COMBINE)
    shifted = [replace(u, src=tuple(s + (s >= at) for s in u.src)) for u in code.uops[at:]]
    loop = UOp(U.RANGE, i32, (), Range("few", 3, "lane"))
    uops = (*code.uops[:at], loop, *shifted, UOp(U.END, None, (), None))
    with pytest.raises(ValueError, match="GROUP_REDUCE, waits for lanes that do not come there"):
        run(replace(code, uops=uops), out)


@pytest.mark.parametrize("lanes", LANES)
def test_gathered_row_out_of_bounds_is_reported(lanes: Lanes) -> None:
    index = Buffer((5,), i32, name="index")
    code, out = lowered(gather(buffer(X), buffer(index)), lanes)
    fine = np.array([3, 0, 39, 1, 1], np.int32)
    assert np.array_equal(run(code, out, index=fine), START.reshape(X.shape)[fine])
    wrong = rf"{code.name}: instruction \d+, LOAD, takes row 40 of x f32\[40, 70\]"
    with pytest.raises(IndexError, match=wrong):
        run(code, out, index=fine + 1)


def test_too_few_work_items_leave_elements_unwritten() -> None:
    code, out = lowered(VALUES["map"], "group")
    values = run(replace(code, global_size=64), out).ravel()
    assert np.array_equal(values[:64], START[:64] * 2)
    assert not values[64:].any()


def test_unknown_instruction_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(emulate_uops.UOP_FUNCTIONS, U.ALU)
    code, out = lowered(VALUES["map"], "one")
    with pytest.raises(ValueError, match=rf"{code.name}: .* a kind that cannot be emulated: ALU"):
        run(code, out)


def test_every_instruction_can_be_emulated() -> None:
    assert set(U) == {*emulate_uops.UOP_FUNCTIONS, U.RANGE, U.END}
