"""Gradients at kinks and ties, through integers, repeated use and states, and of compositions.

test_values_and_gradients.py compares every operation's gradient with finite differences. Here
are the cases that finite differences cannot check, and compositions whose gradient is known in
closed form or from central differences of the graph itself in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping
from reference import close
from small_programs import results

from imgmlp.engine import AnyDevice, Tensor, dtype
from imgmlp.engine.ir.graph import Buffer, Node, buffer, const, move, reduce, toposort
from imgmlp.engine.ir.op import BITWISE, COMPARE, CONTROL, LOAD, Op
from imgmlp.engine.operations.autograd import VJP, gradient, total
from imgmlp.engine.oracle.interpret import evaluate

Array = np.ndarray[Any, Any]
# Step h of central differences in float64, whose error is about h**2 + 1e-16 / h.
DIFFERENCE_STEP = 1e-6
TOLERANCE = 1e-7  # relative to the largest slope


def test_every_differentiable_operation_has_a_gradient_rule() -> None:
    assert set(VJP) == set(Op) - LOAD - BITWISE - COMPARE - {Op.HASH, Op.MOD, Op.FMOD} - CONTROL


# --- kinks and ties ---


def test_gradients_of_saturated_activations_equal_their_asymptotes(device: AnyDevice) -> None:
    """exp overflows there; a gradient of infinity times zero would be NaN."""
    x = Tensor([-1000.0, -50.0, -12.0, 12.0, 50.0, 1000.0], device)
    g = {"sigmoid": x.sigmoid(), "tanh": x.tanh(), "gelu": x.gelu()}
    actual = results({name: v.sum().gradient([x])[0] for name, v in g.items()}, device)
    share = 1 / (1 + np.exp(-np.array([50.0, 50, 12, 12, 50, 50])))  # flat at 50 already
    assert close(actual["sigmoid"], share * (1 - share), 1, roundings=4)
    assert close(actual["tanh"], [0] * 6, 1, roundings=4)
    assert close(actual["gelu"], [0, 0, 0, 1, 1, 1], 1, roundings=4)
    far = Tensor([-3e38, -1e20, 1e20, 3e38], device)  # their cubes overflow
    slopes = far.gelu().sum().gradient([far])[0], far.gelu(exact=True).sum().gradient([far])[0]
    assert [t.numpy().tolist() for t in slopes] == [[0, 0, 1, 1]] * 2


def test_gradient_at_a_kink_is_the_documented_one(device: AnyDevice) -> None:
    """At 0 the slope of relu is 0, of leaky relu and abs 1; equal operands of maximum share it."""
    x = Tensor([-2.0, 0.0, 3.0], device)
    y = Tensor([-2.0, 1.0, 3.0], device)
    g = {
        "relu": x.relu(),
        "leaky": x.leaky_relu(0.25),
        "elu": (x * 0.5 + 1).elu() + x.maximum(0.0).elu(),
        "abs": x.abs(),
        "sign": x.sign() * 5 + x,
        "max": x.maximum(y),
        "min": x.minimum(y),
        "clip": x.maximum(0.0).minimum(1.0),
        "copysign": x.copysign(Tensor([1.0, -1.0, -1.0], device)),
        "where": Tensor.where(x < y, x * 3, y),
    }
    actual = results({name: v.sum().gradient([x])[0] for name, v in g.items()}, device)
    expected = {
        "relu": [0, 0, 1],
        "leaky": [0.25, 1, 1],
        "elu": [0.5, 1, 1.5],  # elu has no kink
        "abs": [-1, 1, 1],
        "sign": [1, 1, 1],
        "max": [0.5, 0, 0.5],
        "min": [0.5, 1, 0.5],
        "clip": [0, 0.5, 0],
        "copysign": [-1, -1, -1],
        "where": [0, 3, 0],
    }
    for name, value in expected.items():
        assert actual[name].tolist() == value, name


def test_equal_maxima_of_a_reduction_share_the_gradient(device: AnyDevice) -> None:
    x = Tensor([[1.0, 4.0, 4.0, 4.0], [7.0, 0.0, -1.0, 7.0]], device)
    weights = Tensor([6.0, 10.0], device)
    actual = results(
        {
            "rows": (x.max(1) * weights).sum().gradient([x])[0],
            "all": x.max().gradient([x])[0],
            "kept": (x - x.max(1, keepdims=True)).sum().gradient([x])[0],
        },
        device,
    )
    third = 1 / 3  # rounded to float32
    expected = {
        "rows": [[0, 2, 2, 2], [5, 0, 0, 5]],
        "all": [[0, 0, 0, 0], [0.5, 0, 0, 0.5]],
        "kept": [[1, -third, -third, -third], [-1, 1, 1, -1]],
    }
    for name, value in expected.items():
        assert close(actual[name], value, np.abs(value), roundings=4), name


def test_more_equal_maxima_than_float16_can_count_share_the_gradient(device: AnyDevice) -> None:
    x = Tensor(np.zeros(70_000, np.float16), device)
    (slope,) = x.max().gradient([x])
    assert slope.dtype is dtype.f16
    assert np.array_equal(slope.numpy(), np.full(70_000, 1 / 70_000, np.float16))


def test_gradients_of_both_operands_of_maximum_add_up_to_one(device: AnyDevice) -> None:
    x, y = Tensor([1.0, 2.0, 3.0], device), Tensor([1.0, 5.0, 0.0], device)
    gx, gy = x.maximum(y).sum().gradient([x, y])
    assert (gx + gy).numpy().tolist() == [1, 1, 1]
    assert x.maximum(x).sum().gradient([x])[0].numpy().tolist() == [1, 1, 1]


# --- what is constant, and what is not connected ---


def test_integers_and_comparisons_stop_gradients(device: AnyDevice) -> None:
    x = Tensor([0.5, -1.5, 2.5], device)
    outputs = {
        "truncated": x.cast(dtype.i32).cast(dtype.f32) * x,
        "compared": (x < 1).cast(dtype.f32) * x,
        "index": x.gather(x.maximum(0.0).cast(dtype.i32)),
    }
    actual = results({n: v.sum().gradient([x])[0] for n, v in outputs.items()}, device)
    assert actual["truncated"].tolist() == [0, -1, 2]
    assert actual["compared"].tolist() == [1, 1, 0]
    assert actual["index"].tolist() == [2, 0, 1]


def test_unconnected_tensors_have_zero_gradients_of_their_shape_and_dtype(
    device: AnyDevice,
) -> None:
    x = Tensor([1.0, 2.0], device)
    unused = Tensor(np.ones((3, 1), np.float16), device)
    whole = Tensor([1, 2], device)
    gradients = (x * np.float32([1, 2])).sum().gradient([unused, whole, x])
    assert [g.shape for g in gradients] == [(3, 1), (2,), (2,)]
    assert gradients[0].dtype is dtype.f16
    assert gradients[0].numpy().tolist() == [[0], [0], [0]]
    assert gradients[1].numpy().tolist() == [0, 0]
    assert gradients[2].numpy().tolist() == [1, 2]


def test_gradients_are_taken_by_intermediates_and_by_the_loss(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0], device)
    y = x * 3
    loss = (y * y).sum()
    gx, gy, gloss = loss.gradient([x, y, loss])
    assert gx.numpy().tolist() == [18, 36]
    assert gy.numpy().tolist() == [6, 12]
    assert gloss.numpy().tolist() == 1


def test_gradient_of_a_tensor_used_often_is_the_sum_over_its_uses(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0, 3.0], device)
    used = x * x + x + x[::-1] * 10 + Tensor.concat([x[1:], x[:1]]) * 100 + x.sum()
    assert used.sum().gradient([x])[0].numpy().tolist() == [116, 118, 120]


def test_reading_a_value_keeps_its_gradient_and_realize_makes_a_leaf(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0], device)
    y = x * 3
    assert y.numpy().tolist() == [3, 6]
    loss = (y * y).sum()
    assert loss.item() == 45
    assert loss.gradient([x])[0].numpy().tolist() == [18, 36]
    z = (x * 3).realize()  # realized: a leaf of the graph
    by_x, by_z = (z * z).sum().gradient([x, z])
    assert by_x.numpy().tolist() == [0, 0]
    assert by_z.numpy().tolist() == [6, 12]


def test_second_derivatives_are_exact(device: AnyDevice) -> None:
    """Second derivatives of x**3, of sin, and of leaky relu, whose slope is constant."""
    x = Tensor([0.5, -1.5], device)
    slope = (x**3 + x.sin() + x.leaky_relu(0.5)).sum().gradient([x])[0]
    curve = slope.sum().gradient([x])[0]
    a = np.array([0.5, -1.5])
    assert close(slope.numpy(), 3 * a**2 + np.cos(a) + [1, 0.5], 3 * a**2 + 2, roundings=8)
    assert close(curve.numpy(), 6 * a - np.sin(a), 6 * np.abs(a) + 1, roundings=8)


# --- tables and movements ---


@pytest.mark.parametrize("table", [(9, 5), (9,), (3, 2, 4)])
@pytest.mark.parametrize("places", [(), (7,), (2, 3)])
def test_gradient_of_a_gathered_row_is_the_sum_over_its_uses(
    table: tuple[int, ...], places: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal(table).astype(np.float32)
    index = rng.integers(0, 3, places)  # three rows only: many repeat
    weights = rng.standard_normal(places + table[1:])
    expected = np.zeros(table)
    np.add.at(expected, index, weights)
    for name in MAPPINGS[:2]:
        device = open_mapping(name)
        t, w = Tensor(values, device), Tensor(weights, device)
        actual = (t.gather(Tensor(index, device)) * w).sum().gradient([t])[0].numpy()
        assert close(actual, expected, roundings=16)  # sums of up to seven float32


MOVEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        f"steps {a} {b}": lambda x, a=a, b=b: x.stride(a, b)
        for a, b in itertools.product((1, -1, 2, -3, 9), (1, -2, 4))
    },
    "inside": lambda x: x[1:-1, 2:9:3],
    "pads": lambda x: x.pad((2, 1), (0, 3)).flip(0)[1:],
    "again": lambda x: x.reshape(11, 7).transpose()[::2].reshape(-1)[3:40],
    "repeat": lambda x: x.reshape(7, 1, 11).expand(7, 3, 11).permute(2, 1, 0),
    "rows apart": lambda x: Tensor.concat([x[0], x[-1], x[0]]),
    "halves": lambda x: Tensor.concat([x[:, :5] * 2, x[:, 5:]], 1) * Tensor.concat([x[:3], x[3:]]),
    "corner": lambda x: x.shrink((0, 1), (10, 11)).expand(4, 5),
    "number": lambda x: x[3, 4] * x[3],
    "all": lambda x: x.sum(0).reshape(1, 11).expand(7, 11) * x.max(1, keepdims=True),
}


def test_gradients_of_movements_equal_finite_differences(device: AnyDevice) -> None:
    x = np.random.default_rng(2).uniform(-1, 1, (7, 11)).astype(np.float32)
    tensor = Tensor(x, device)
    losses = {name: weighted_loss(act(tensor), device) for name, act in MOVEMENTS.items()}
    actual = results({n: loss.gradient([tensor])[0] for n, loss in losses.items()}, device)
    for name, loss in losses.items():
        (expected,) = central_differences(loss.node, [tensor.node], {tensor.node.arg: x})
        # a weight is at most 2.5, and elements are smaller than 1
        assert close(actual[name], expected, np.abs(expected) + 2.5), name


def weighted_loss(answer: Tensor, device: AnyDevice) -> Tensor:
    """A scalar loss in which every element of the answer has a different weight."""
    weights = Tensor.arange(answer.node.size, dtype=dtype.f32).reshape(*answer.shape).sin() + 1.5
    return (answer * weights).sum()


def central_differences(loss: Node, wrt: Sequence[Node], held: dict[Buffer, Array]) -> list[Array]:
    """Central differences of a loss by each element of Buffers, in float64."""
    for node in toposort([loss]):
        if node.op is Op.BUFFER:
            held.setdefault(node.arg, np.asarray(node.arg.host))
    gradients = []
    for leaf in wrt:
        start = held[leaf.arg].astype(np.float64)
        slope = np.zeros(start.shape)
        for place in np.ndindex(start.shape):
            ends = []
            for sign in (1, -1):
                moved = start.copy()
                moved[place] += sign * DIFFERENCE_STEP
                ends.append(evaluate([loss], held | {leaf.arg: moved}, wide=True)[0])
            slope[place] = (ends[0] - ends[1]).item() / (2 * DIFFERENCE_STEP)
        gradients.append(slope)
    return gradients


def test_gradients_of_a_mixed_network_equal_finite_differences_in_float64() -> None:
    """Both sides are in float64, so that small errors of gradient rules are detected."""
    rng = np.random.default_rng(3)
    shapes = [(5, 3), (3, 4), (4,), (6, 4), ()]
    x, w, b, table, scale = (Tensor(rng.uniform(0.2, 1, s)) for s in shapes)
    hidden = (x @ w + b).leaky_relu(0.1)
    rows = table.gather(Tensor([[0, 5], [0, 2], [1, 0], [3, 3], [5, 5]])).mean(1)
    joined = Tensor.concat([hidden.tanh(), rows.sigmoid(), hidden / rows], 1).softmax()
    curved = (joined * 3).sin() * joined.log().abs() + (joined + scale).sqrt().exp2()
    loss = (
        curved.variance(0).sum()
        + curved.max(1).mean()
        + hidden.multiply_add(scale, rows).square().mean()
    )
    wrt = [t.node for t in (x, w, b, table, scale)]
    held = {n.arg: np.asarray(n.arg.host) for n in toposort([loss.node]) if n.op is Op.BUFFER}
    actual = evaluate(gradient(loss.node, wrt), held, wide=True)
    for leaf, g, expected in zip(
        shapes, actual, central_differences(loss.node, wrt, held), strict=True
    ):
        assert np.abs(g - expected).max() <= TOLERANCE * np.abs(expected).max(), leaf


def test_float16_sums_accumulate_in_float32_forward_and_backward(device: AnyDevice) -> None:
    """Partial sums exceed the range or the precision of float16; the results do not."""
    big = np.array([6e4, 6e4, -6e4, -6e4], np.float16)
    x, one = Tensor(big, device), Tensor(np.ones((1, 1), np.float16), device)
    many = Tensor(np.full(30_000, 0.1, np.float16), device)
    actual = results(
        {
            "sum": x.sum(), "mean": x.abs().mean(), "rows": x.reshape(2, 2).mean(1),
            "variance": (x * (1 / 1024)).variance(), "long": many.sum(),
            "expanded": (one.expand(4, 1).reshape(4) * x).sum().gradient([one])[0],
        },
        device,
    )  # fmt: skip
    assert all(value.dtype == np.float16 for value in actual.values())
    assert actual["sum"] == 0
    assert actual["mean"] == big[0]
    assert actual["rows"].tolist() == [big[0], -big[0]]
    assert actual["expanded"].tolist() == [[0]]
    assert actual["long"] == np.float16(30_000 * float(np.float16(0.1)))
    assert actual["variance"] == (float(big[0]) / 1024) ** 2


# --- the shape of the backward graph ---


def test_gradients_of_slices_that_tile_a_tensor_are_concatenated() -> None:
    parts = [const(float(i), dtype.f32, (2, i)) for i in (1, 2, 3)]
    padded = [
        move(Op.PAD, part, ((0, 0), (begin, 6 - begin - part.shape[1])))
        for part, begin in zip(parts, (0, 1, 3), strict=True)
    ]
    assert total(padded[::-1]).op is Op.CONCAT
    assert total(padded[::-1]).src == tuple(parts)
    long = move(Op.PAD, const(7.0, dtype.f32, (2, 4)), ((0, 0), (0, 2)))
    overlapping = [long, move(Op.PAD, const(8.0, dtype.f32, (2, 2)), ((0, 0), (2, 2)))]
    for some in (padded[:2], [*padded, padded[0]], [padded[0], padded[2]], overlapping):
        added = total(some)
        assert added.op is Op.ADD
        expected = sum(evaluate([p], {})[0] for p in some)
        assert np.array_equal(evaluate([added], {})[0], expected)


def test_gradient_of_a_product_reads_the_other_factor_only() -> None:
    x, y = (buffer(Buffer((2, 3), dtype.f32)) for _ in range(2))
    (g,) = gradient(reduce(Op.SUM, x * y, (0, 1)), [x])
    assert y in toposort([g])
    assert x not in toposort([g])


def test_equal_values_share_the_gradient_of_maximum_and_max(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0, 2.0], device)
    y = Tensor([1.0, 0.0, 3.0], device)
    assert np.array_equal(x.maximum(y).sum().gradient([x])[0].numpy(), [0.5, 1.0, 0.0])
    assert np.array_equal(x.max().gradient([x])[0].numpy(), [0.0, 0.5, 0.5])


def test_unused_tensors_and_signs_of_copysign_have_zero_gradients(device: AnyDevice) -> None:
    x, unused = Tensor([1.0, 2.0], device), Tensor([[3.0]], device)
    assert np.array_equal(x.sum().gradient([unused])[0].numpy(), [[0.0]])
    sign = Tensor([-1.0, 1.0], device)
    assert np.array_equal(x.copysign(sign).sum().gradient([sign])[0].numpy(), [0.0, 0.0])


def test_detached_factor_contributes_no_gradient(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0], device)
    assert (x.detach() * x).sum().gradient([x])[0].numpy().tolist() == [1, 2]
