"""Tensors without elements behave as NumPy's empty arrays, on every device and in every form."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import operations
import pytest
from conftest import open_opencl
from reference import close

from imgmlp.engine import AnyDevice, Receiver, Tensor, compile, cond, dtype, loop, nn

Shapes = tuple[tuple[int, ...], ...]


def shapes_with_zeros(row: operations.Row) -> list[Shapes]:
    """The shapes of a row's inputs with each of their sizes replaced by 0 everywhere."""
    sizes = sorted({n for shape in row.shapes for n in shape} - {1})
    return [tuple(tuple(0 if n == z else n for n in s) for s in row.shapes) for z in sizes]


def numpy_result(row: operations.Row, shapes: Shapes) -> np.ndarray | None:
    """NumPy's result, or None if NumPy refuses these shapes."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about means of empty arrays
            result = operations.evaluated(row.array, [np.ones(s) for s in shapes])
    except (IndexError, ValueError):
        return None
    return np.asarray(result)


# Not compared: windows without elements, topk of more elements than there are, and shrinking to
# ranges outside of an axis are refused; attention without features has scores of 0, where NumPy
# divides 0 by 0.
UNLIKE_NUMPY = ("conv", "topk", "attention", "shrink")
CASES = [
    (row, shapes)
    for rows in operations.ROWS.values()
    for row in rows
    for shapes in shapes_with_zeros(row)
    if not any(word in row.tensor for word in UNLIKE_NUMPY)
    and numpy_result(row, shapes) is not None
]


def test_operations_on_empty_tensors_equal_numpys(device: AnyDevice) -> None:
    assert len(CASES) > 200
    outputs: dict[str, Tensor] = {}
    for i, (row, shapes) in enumerate(CASES):
        inputs = [Tensor(np.ones(s, np.float32), device) for s in shapes]
        outputs[f"{i}"] = answer = operations.evaluated(row.tensor, inputs)
        if answer.dtype.is_float:
            slopes = answer.sum().gradient(inputs)
            assert [g.shape for g in slopes] == [*shapes]
            outputs |= {f"{i} {n}": g for n, g in enumerate(slopes)}
    program = compile(lambda: outputs, device)
    program.run()
    for i, (row, shapes) in enumerate(CASES):
        expected, value = numpy_result(row, shapes), program.read(f"{i}")
        assert value.shape == expected.shape, row.tensor  # type: ignore[union-attr]
        assert close(value, expected), row.tensor


@pytest.mark.parametrize("shape", [(0, 100), (100, 0), (2, 0, 70)])
def test_sorting_empty_tensors_keeps_shape_and_dtype(
    device: AnyDevice, shape: tuple[int, ...]
) -> None:
    x = Tensor(np.zeros(shape), device)
    for axis in range(len(shape)):
        order, values = x.argsort(axis), x.sort(axis, descending=True)
        most, places = x.topk(min(3, shape[axis]), axis)
        assert (order.shape, order.dtype) == (values.shape, dtype.i32) == (shape, dtype.i32)
        assert most.shape == places.numpy().shape
        (slope,) = (values.sum() + most.sum()).gradient([x])
        assert slope.numpy().shape == order.numpy().shape == shape


def test_empty_tensors_are_created_read_and_written(device: AnyDevice) -> None:
    x = Tensor([], device)
    assert (x.shape, x.dtype, x.realized, len(x), [*x]) == ((0,), dtype.f32, True, 0, [])
    assert x.numpy().shape == (0,)
    for made in (
        Tensor.zeros(0, 3),
        Tensor.empty(2, 0),
        Tensor.arange(3, 3),
        Tensor.uniform((0,), 1),
    ):
        assert made.numpy().shape == made.shape
        assert made.node.size == 0
    y = Tensor(np.zeros((0, 3), np.uint8), device, requires_grad=False)
    assert y.assign(y + 1).write(np.zeros((0, 3), np.uint8)).realize().numpy().dtype == np.uint8
    with pytest.raises(ValueError, match="no single number"):
        x.item()
    for other in (np.zeros((5, 3), np.uint8), np.zeros((0, 3), np.float32)):
        with pytest.raises(ValueError, match="cannot take"):
            y.write(other)


def test_reductions_of_no_elements_give_the_neutral_element_or_are_refused(
    device: AnyDevice,
) -> None:
    x = Tensor(np.zeros((0, 3)), device)
    assert x.sum(0).numpy().tolist() == [0, 0, 0]
    assert x.prod(0).numpy().tolist() == x.prod(np.int64(0)).numpy().tolist() == [1, 1, 1]
    assert x.unsqueeze(0).squeeze().shape == x.squeeze(()).shape == (0, 3)
    assert x.sum().item() == 0
    assert np.isnan(x.mean().item())
    assert x.max(1).shape == (0,)
    assert x.logsumexp(0).numpy().tolist() == [-np.inf] * 3
    for act in (x.max, x.min, lambda: x.argmax(0), lambda: x.transpose().cummax(1).max(1)):
        with pytest.raises(ValueError, match=r"^(arg)?(max|min): f32.* has no elements"):
            act()


def test_concat_pad_product_and_indexing_take_empty_tensors(device: AnyDevice) -> None:
    x, y = Tensor(np.zeros((0, 3)), device), Tensor([[1.0, 2.0, 3.0]], device)
    assert Tensor.concat([x, y, x]).numpy().tolist() == [[1, 2, 3]]
    assert (y.transpose() @ x[:, :0].reshape(0, 3)[:0].pad((0, 1), (0, 0))).shape == (3, 3)
    assert (Tensor(np.zeros((2, 0)), device) @ x).numpy().tolist() == [[0, 0, 0]] * 2
    assert x.pad((1, 0), (0, 1)).numpy().tolist() == [[0, 0, 0, 0]]
    assert y[1:].shape == y[np.zeros(1, bool)].shape == y.gather(np.zeros(0, int)).shape == (0, 3)
    assert y[False].shape == (0, 1, 3)
    assert y[0, False].shape == (0, 3)
    with pytest.raises(IndexError, match="no rows"):
        x.gather(Tensor([0], device))
    with pytest.raises(ValueError, match="beside a 0"):
        x.reshape(0, -1)


def test_compiled_step_mixes_empty_and_other_tensors(device: AnyDevice) -> None:
    """Empty Tensors are outputs, carried by loops, chosen by cond, and inputs of layers."""
    x, n = Tensor(np.zeros((0, 4)), device), Tensor([3.0], device)

    def step() -> dict[str, Tensor]:
        carried = loop(2, lambda i, a, b: (a + i, b * 2), x, n)
        both = cond(n.max() > 1, lambda: (x + 1, n), lambda: (x, n + 1))
        (slope,) = (n * 2 + carried[0].sum() + both[0].sum()).sum().gradient([x])
        layer = nn.Linear.random(4, 5, 1, device)(x)
        return {"none": carried[0], "twice": carried[1], "slope": slope, "layer": layer} | {
            "only": loop(3, lambda i, a: a * 2, x)
        }

    program = compile(step, device)
    received: list[dict[str, np.ndarray]] = []
    receiver = Receiver(program, ["none", "twice"], lambda tag, got: received.append(got))
    program.run()
    receiver.send()
    receiver.wait()
    assert received[0]["none"].shape == (0, 4)
    assert received[0]["twice"].tolist() == [12]
    shapes = {name: program.read(name).shape for name in ("slope", "layer", "only")}
    assert shapes == {"slope": (0, 4), "layer": (0, 5), "only": (0, 4)}


@pytest.mark.parametrize("make", [lambda: Tensor.zeros(-1), lambda: Tensor.full((2, -3), 1)])
def test_negative_sizes_are_refused(make: Callable[[], Tensor]) -> None:
    with pytest.raises(ValueError, match="negative"):
        make()


def test_compiled_step_of_empty_tensors_only_runs() -> None:
    device = open_opencl()
    program = compile(lambda: {"x": Tensor(np.zeros((3, 0)), device) * 2}, device)
    program.run()
    assert program.read("x").shape == (3, 0)
