"""Indices are bounds-checked, wherever they come from and whenever they change.

Without the check each of these cases read foreign memory or crashed the process.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from imgmlp.engine import (
    AnyDevice,
    Feeder,
    Pages,
    Program,
    Tensor,
    compile,
    cond,
    dtype,
    loop,
    nn,
    open_device,
)
from imgmlp.engine.ir.usage_errors import OutOfBoundsError

DEVICE = open_device("numpy")
TOO_LARGE = 10**8
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def tensor(array: object) -> Tensor:
    return Tensor(np.asarray(array), DEVICE)


def table() -> Tensor:
    return tensor(X)


def uploaded(array: object) -> Tensor:
    """A Tensor of which the host keeps no copy."""
    result = tensor(array)
    (result + 1).numpy()
    assert result.node.arg.host is None
    return result


INDICES = np.int32([0, 1, TOO_LARGE])
OUT_OF_BOUNDS: dict[str, Callable[[Tensor], Tensor]] = {
    "u8": lambda x: x.take_along_axis(np.array([[200]] * 3, np.uint8), 1),
    "i8": lambda x: x.take_along_axis(np.array([[-1]] * 3, np.int8), 1),
    "u32": lambda x: x.take_along_axis(np.array([[TOO_LARGE]] * 3, np.uint32), 1),
    "part": lambda x: x.gather(tensor(INDICES)[1:]),
    "part, negative": lambda x: x[tensor(-INDICES)[1:]],
    "flip": lambda x: x.gather(tensor(INDICES).flip(0)),
    "concat": lambda x: x.gather(Tensor.concat([tensor([0, 1]), tensor(INDICES)])),
    "cast": lambda x: x.gather(tensor(INDICES).cast(dtype.u32)),
    "floats": lambda x: x.gather(tensor([0.0, 7.5]).cast(dtype.i32)),
    "pad": lambda x: x.gather(tensor(INDICES).pad((0, 1))),
    "expand": lambda x: x.gather(tensor(INDICES).reshape(3, 1).expand(3, 5)[1:]),
    "taken": lambda x: x.gather(tensor(INDICES)[[0, 2]]),
    "range": lambda x: x.gather(Tensor.arange(4)),
    "uploaded": lambda x: x.gather(uploaded(INDICES)),
    "uploaded, part": lambda x: x.gather(uploaded(INDICES)[2:]),
    "realized": lambda x: x.gather(tensor(INDICES)[1:].realize()),
    "assigned": lambda x: x.gather(tensor([0, 0, 0]).assign(INDICES)),
    "assigned by a Tensor": lambda x: x.gather(tensor([0, 0, 0]).assign(tensor(INDICES))),
    "written": lambda x: x.gather(tensor(np.zeros(3, np.int32)).write(INDICES)),
    "target": lambda x: nn.nll_loss(x, tensor([0, 0, 1, 9])[1:]),
}


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_host_indices_out_of_bounds_are_refused(name: str) -> None:
    with pytest.raises(OutOfBoundsError, match=r"index (-?\d+) is out of bounds"):
        OUT_OF_BOUNDS[name](table())


def test_bounds_are_checked_for_each_table() -> None:
    index = tensor(np.int32([0, 5]))
    tensor(np.zeros((9, 2))).gather(index).numpy()
    with pytest.raises(OutOfBoundsError, match="index 5 "):
        table().gather(index)
    index.write(np.int32([0, 8]))  # row 8 exists in the only table that is read by it


def test_only_indices_inside_the_view_that_is_read_are_checked() -> None:
    index = tensor(INDICES)
    parts = index[:2], Tensor.concat([index, index])[3:5], index.cast(dtype.u8)[:2]
    for taken in (kept := [table().gather(part) for part in parts]):
        assert np.array_equal(taken.numpy(), X[[0, 1]])
    index.write(np.int32([2, 2, -5]))
    with pytest.raises(OutOfBoundsError, match="from 0 to 2, and 3 is none"):
        index.write(np.int32([0, 3, 0]))
    del kept, taken
    index.write(np.int32([0, 3, 0]))


GATHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x[J]": lambda x, j: x[j],
    "x[:, J]": lambda x, j: x[:, j],
    "take": lambda x, j: x.take(j),
    "part": lambda x, j: x.gather(j[1:]),
    "cast": lambda x, j: x.gather(j.cast(dtype.u32)),
    "concat": lambda x, j: x.gather(Tensor.concat([tensor([1, 2]), j])),
}


@pytest.mark.parametrize("name", GATHERS)
def test_indices_written_after_compilation_are_checked(name: str) -> None:
    x, index = table(), tensor(np.int32([0, 1]))
    program = compile(lambda: {"y": GATHERS[name](x, index)}, DEVICE)
    feeder, bad = Feeder(program, index), np.int32([0, TOO_LARGE])
    for put in (index.write, feeder.send, index.assign, lambda a: index.assign(tensor(a))):
        with pytest.raises(OutOfBoundsError, match=f"{TOO_LARGE} is none of them"):
            put(bad)
    feeder.send(np.int32([1, 2]))
    program.run()
    expected = compile(lambda: {"y": GATHERS[name](x, tensor([1, 2]))}, DEVICE)
    expected.run()
    assert np.array_equal(program.read("y"), expected.read("y"))


def test_indices_assigned_by_a_step_are_checked_at_compilation_and_on_write() -> None:
    x, index, next_one = table(), tensor(np.int32([0, 1])), tensor(np.int32([2, 2]))

    def step(value: Tensor) -> dict[str, Tensor]:
        index.assign(value)
        return {"y": x.gather(index)}

    with pytest.raises(OutOfBoundsError, match="3 is none of them"):
        compile(lambda: step(tensor([3, 0])), DEVICE)
    program = compile(lambda: step(next_one), DEVICE)
    program.run(2)
    assert np.array_equal(program.read("y"), X[[2, 2]])
    with pytest.raises(OutOfBoundsError, match="-1 is none of them"):
        next_one.write(np.int32([0, -1]))


def test_indices_computed_by_a_step_are_not_checked_by_the_host() -> None:
    index = tensor(np.int32([5, 4]))
    program = compile(lambda: {"index": index.assign(index - 3)}, DEVICE)
    taken = compile(lambda: {"y": table().gather(index - 1)}, DEVICE)
    program.run()
    assert index.numpy().tolist() == [2, 1]
    table().gather(index)  # the host neither knows the indices nor reads them back
    taken.run()
    assert taken.read("y").tolist() == X[[1, 0]].tolist()


def test_indices_fed_after_a_step_are_checked_as_host_indices() -> None:
    index = tensor(np.int32([0, 1]))
    program = compile(lambda: {"index": index.assign(index + 1)}, DEVICE)
    program.run()
    Feeder(program, index).send(np.int32([0, 9]))
    with pytest.raises(OutOfBoundsError, match="index 9 "):
        table().gather(index)


COMPUTED_INDICES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "key": lambda x, i: x[i + 4],
    "keys": lambda x, i: x[i - 3, i + 12],
    "negative": lambda x, i: x[i - 7],
    "far": lambda x, i: x[i * 100_000_000],
    "take": lambda x, i: x.take(i + 1, 1),
    "gather": lambda x, i: x.gather(i + 1),
    "gather, negative": lambda x, i: x.gather(i - 4),
    "by values": lambda x, i: x.gather((x[0, :2] + 6.5).cast(dtype.i32)),
    "take_along_axis": lambda x, i: x.take_along_axis((i + 9).reshape(1, 1)),
    "in an index": lambda x, i: x.gather(i.gather(i - 2) - 3),
    "target": lambda x, i: nn.nll_loss(x[:1], i + 1),
    "target, negative": lambda x, i: nn.cross_entropy(x[:1], i - 4),
    "of a gradient": lambda x, i: nn.cross_entropy(x[:1], i + 1).gradient([x])[0],
}


@pytest.mark.parametrize("name", COMPUTED_INDICES)
def test_immediately_computed_indices_are_checked(device: AnyDevice, name: str) -> None:
    x, i = Tensor(X, device), Tensor([3], device)
    state = Tensor(np.float32(5), device)
    with pytest.raises(OutOfBoundsError, match=r"a computed (index|target) is"):
        COMPUTED_INDICES[name](x, i).numpy()
    with pytest.raises(IndexError, match=r"a computed (index|target) is"):
        state.assign(COMPUTED_INDICES[name](x, i).sum())
    assert state.item() == 5


WRITERS: dict[str, Callable[[Program, Tensor, np.ndarray], object]] = {
    "made": lambda program, index, array: None,
    "write": lambda program, index, array: index.write(array),
    "Feeder": lambda program, index, array: Feeder(program, index).send(array),
    "page": lambda program, index, array: (pages := Pages(index)).turn(pages.add(array)),
    "page, written": lambda program, index, array: Pages(index).write(0, array),
}


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_indices_updated_by_a_compiled_step_are_checked_as_computed(
    device: AnyDevice, name: str, seen: bool
) -> None:
    """The host has set the indices in one of several ways before, with or without a copy left."""
    x, index = Tensor(X, device), Tensor(np.int32([0, 1]), device)
    taken = x[index]
    if seen:
        taken.numpy()
    program = compile(lambda: {"index": index.assign(index + 1)}, device)
    WRITERS[name](program, index, np.int32([1, 0]))
    assert taken.numpy().shape == (2, 4)
    program.run(20)
    with pytest.raises(OutOfBoundsError, match=r"a computed index is 2[01]"):
        taken.numpy()
    index.write(np.int32([2, 2]))
    assert np.array_equal(taken.numpy(), X[[2, 2]])


def test_indices_updated_immediately_are_checked_as_host_indices(device: AnyDevice) -> None:
    index = Tensor(np.int32([0, 7]), device)
    index.assign(index.flip(0))
    with pytest.raises(OutOfBoundsError, match="index 7 is out of bounds"):
        Tensor(X, device).gather(index)


def test_computed_indices_in_bounds_are_accepted(
    device: AnyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, i = Tensor(X, device), Tensor([3, 4], device)
    assert np.array_equal(x[i - 3].numpy(), X[[0, 1]])
    assert np.array_equal(x[i - 6, 2 - (i - 3)].numpy(), X[[-3, -2], [2, 1]])
    made, run = [], Program.run

    def noted(program: Program) -> None:
        made.append(program)
        run(program)

    monkeypatch.setattr(Program, "run", noted)
    assert np.array_equal(x[Tensor([-1, 1], device)].numpy(), X[[-1, 1]])
    assert np.array_equal(x.sort(0, descending=True).numpy(), X[::-1])
    assert len(made) == 2  # no further program reads valid indices back
    assert nn.nll_loss(x[:2], i - 1).numpy() == -(X[0, 2] + X[1, 3]) / 2


def test_comparison_with_a_range_is_not_bounds_checked() -> None:
    index = tensor(np.int32([1, 6])) + 1
    compared = Tensor.arange(4).reshape(1, 4).eq(index.reshape(2, 1))
    loss = nn.nll_loss(tensor(np.ones((2, 4))), index)
    assert compared.numpy().tolist() == [[False, False, True, False], [False] * 4]
    with pytest.raises(OutOfBoundsError, match="a computed target is 7"):
        loss.numpy()


def test_index_buffer_is_freed_with_its_last_reader() -> None:
    gc.disable()
    try:
        index = tensor(np.int32([0, 1]))
        buffer_reference = weakref.ref(index.node.arg)
        y = table().gather(Tensor.concat([index.detach()[:1], index[1:]]))
        assert y.numpy().tolist() == X[:2].tolist()
        del y, index
        assert buffer_reference() is None
    finally:
        gc.enable()


READERS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "expression": lambda x, i: x[i],
    "by lines": lambda x, i: x.take_along_axis(i.reshape(2, 1), 0),
    "target": lambda x, i: nn.nll_loss(x[:2], i),
    "gradient": lambda x, i: (x * x).gather(i).square().sum().gradient([x]),
    "gradient without the rows": lambda x, i: x.gather(i).sum().gradient([x]),
    "gradient by lines": lambda x, i: (
        x.take_along_axis(i.reshape(2, 1), 0).sum().gradient([x.realize()])
    ),
    "gradient of many rows": lambda x, i: (
        x.gather(i.reshape(1, 2).broadcast_to((1 << 20, 2))).sum().gradient([x.realize()])
    ),
    "program of a gradient": lambda x, i: compile(
        lambda: {"g": x.gather(i).sum().gradient([x])[0] * 2}, DEVICE
    ),
    "program": lambda x, i: compile(lambda: {"y": x.gather(i) * 2}, DEVICE),
    "another's state": lambda x, i: compile(
        lambda: {"y": x.gather(s := tensor(np.int32([0, 0]))), "s": s.assign(i)}, DEVICE
    ),
    "loop": lambda x, i: loop(2, lambda n, y: y + y.gather(i).sum(), x),
    "loop, captured": lambda x, i: loop(2, lambda n, y: y + x.gather(i).sum(), x),
    "choice": lambda x, i: cond(tensor([1]), lambda: x.gather(i), lambda: x[:2]),
}


@pytest.mark.parametrize("name", READERS)
def test_bounds_hold_as_long_as_a_reader_exists(name: str) -> None:
    index = tensor(np.int32([0, 1]))
    reader = READERS[name](table(), index)
    for _ in range(2):
        gc.collect()
        with pytest.raises(OutOfBoundsError, match=f"{TOO_LARGE} is none of them"):
            index.write(np.int32([0, TOO_LARGE]))
    del reader
    gc.collect()
    if name.startswith("loop"):  # the bounds of a loop outlive its result
        with pytest.raises(OutOfBoundsError):
            index.write(np.int32([0, TOO_LARGE]))
    else:
        index.write(np.int32([0, TOO_LARGE]))
        assert not index.node.arg.limits


def test_bounds_of_freed_readers_are_dropped() -> None:
    order, data = tensor(np.arange(40, dtype=np.int32)), tensor(np.zeros((40, 2)))
    for begin in range(20):
        assert data[order[begin : begin + 5]].numpy().shape == (5, 2)
    assert not order.node.arg.limits
    assert not order.node.arg.readers


@pytest.mark.parametrize("rows", [(2, 4), (4, 2)])
def test_indices_must_satisfy_the_narrowest_bounds_of_all_readers(rows: tuple[int, int]) -> None:
    """Two steps gather from tables of different sizes by the same indices, in either order."""
    at, kept = tensor(np.zeros(3, np.int32)), []
    for count in rows:
        narrow = tensor(np.zeros(count, np.float32))
        kept.append(compile(lambda: {"y": narrow.gather(at)}, DEVICE))  # noqa: B023 (traced now)
    with pytest.raises(OutOfBoundsError, match="from 0 to 1, and 3 is none of them"):
        at.write(np.int32([0, 3, 1]))
