"""Convolutions, pooling, interpolation and einsum.

A convolution is a sum of taps if it has few weights, and a matrix product otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import open_mapping
from reference import close

from imgmlp.engine import Tensor, compile, dtype, open_device
from imgmlp.engine.ir.graph import toposort
from imgmlp.engine.ir.op import Op
from imgmlp.engine.operations import windows

NUMPY = open_device("numpy")

OPTIONS: list[dict[str, Any]] = [
    {"padding": 1}, {"padding": (0, 1), "dilation": (2, 1)}, {"groups": 2, "padding": 1},
    {"groups": 4}, {"dilation": 2, "padding": 2},
]  # fmt: skip


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    rng, device = np.random.default_rng(0), open_device("numpy")
    return [Tensor(rng.standard_normal(s).astype(np.float32), device) for s in shapes]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_convolution_by_taps_equals_convolution_by_matrix_product(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = drawn((1, 4, 7, 6), (4, 4 // options.get("groups", 1), 3, 2))

    def values_and_gradients() -> list[np.ndarray]:
        y = x.conv2d(w, **options)
        first = (y * y).sum().gradient([x, w])
        second = ((first[0] * first[0]).sum() + (first[1] * first[1]).sum()).gradient([x, w])
        return [t.numpy() for t in (y, *first, *second)]

    summed = values_and_gradients()
    monkeypatch.setattr(windows, "MAX_WEIGHTS_AS_TAPS", 0)
    for value, expected in zip(summed, values_and_gradients(), strict=True):
        assert close(value, expected)


def test_gradient_of_an_image_convolved_with_itself_is_twice_the_image() -> None:
    (x,) = drawn((1, 1, 3, 3))
    (by_x,) = x.conv2d(x).sum().gradient([x])  # the sum of squares
    assert close(by_x.numpy(), 2 * x.numpy())


@pytest.mark.parametrize(
    ("shape", "outputs", "stride", "product"),
    [
        ((1, 8, 9, 9), 4, 1, False),
        ((1, 8, 9, 9), 16, 1, True),
        ((2, 8, 9, 9), 4, 1, True),
        ((1, 8, 9, 9), 4, 2, True),
    ],
)
def test_convolution_with_few_weights_is_not_a_matrix_product(
    shape: tuple[int, ...], outputs: int, stride: int, product: bool
) -> None:
    x, w = drawn(shape, (outputs, 8, 3, 3))
    y = x.conv2d(w, padding=1, stride=stride)
    (by_x,) = (y * y).sum().gradient([x])
    for node in (y.node, by_x.node):
        assert (Op.DOT in {n.op for n in toposort([node])}) == product


@pytest.mark.parametrize("count", [1, 2])
def test_upstream_gradient_is_computed_once_for_all_taps(count: int) -> None:
    """A kernel for a GPU multiplies nothing but taps by weights."""
    device = open_device("numpy:uops-group")
    x, w = (Tensor(np.ones(s, np.float32), device) for s in ((1, 3, 9, 9), (2, 3, 3, 3)))

    def step() -> dict[str, Tensor]:
        y = x.conv2d(w, padding=1).relu().square()
        slopes = (y * y).sum().gradient([x, w][:count])
        return {f"slope{i}": g for i, g in enumerate(slopes)}

    uops = next(c.uops for c in compile(step, device).stages.codes if "slope0" in str(c.uops))
    assert sum(u.arg is Op.MUL for u in uops) == w.node.size


def test_depthwise_convolution_is_not_a_matrix_product() -> None:
    x, w = drawn((1, 16, 5, 5), (16, 1, 3, 3))
    assert Op.DOT not in {n.op for n in toposort([x.conv2d(w, groups=16).node])}


@pytest.mark.parametrize(
    "options",
    [{"stride": 0}, {"stride": -1}, {"stride": 2.0}, {"stride": (1, 1, 1)}, {"dilation": 0},
     {"padding": -1}, {"kernel": 0}, {"kernel": (2, "2")}, {"padding": 2}, {"padding": (0, 2)},
     {"padding": 5, "dilation": 9}],
    ids=str,
)  # fmt: skip
def test_invalid_windows_are_refused(options: dict[str, Any]) -> None:
    """Windows of padding alone are refused as well: they have no largest element."""
    (x,) = drawn((1, 1, 5, 5))
    assert x.max_pool2d(2, stride=np.int64(1), padding=(1, 0)).shape == (1, 1, 6, 4)
    with pytest.raises(ValueError, match=next(iter(options))):
        x.max_pool2d(**{"kernel": 2, **options})


def test_padding_is_allowed_if_each_pooling_window_has_a_pixel() -> None:
    (x,) = drawn((1, 1, 3, 4))
    assert x.max_pool2d(2, 1, (1, 2), 2).shape == (1, 1, 3, 6)
    assert np.array_equal(x.max_pool2d(3, 3, 2, (2, 3)).numpy(), x[:, :, :1, 1:2].numpy())


def test_max_pooling_of_padded_bools_is_bool() -> None:
    x = Tensor(np.eye(3, dtype=bool).reshape(1, 1, 3, 3), open_device("numpy"))
    pooled = x.max_pool2d(2, 1, 1)
    assert pooled.dtype is dtype.bool_
    assert pooled[0, 0, 0].numpy().tolist() == [True, True, False, False]


def test_transposed_convolution_takes_integers() -> None:
    device = open_device("numpy")
    x = Tensor(np.arange(4, dtype=np.int32).reshape(1, 1, 2, 2), device)
    actual = x.conv_transpose2d(Tensor.ones(1, 1, 2, 2), stride=2).numpy()
    assert np.array_equal(actual[0, 0], np.repeat(np.repeat([[0, 1], [2, 3]], 2, 0), 2, 1))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda x, w: x.conv2d(w, np.ones(2)), r"^conv2d: .* \(2,\) .* 4 outputs"),
        (lambda x, w: x.conv2d(w, np.ones((1, 4, 1))), r"^conv2d: .* \(1, 4, 1\)"),
        (lambda x, w: x[:, :1].conv2d(w[:1, :1], np.ones(3)), "1 outputs"),
        (lambda x, w: x.conv_transpose2d(w, np.ones(1)), r"^conv_transpose2d: .* \(1,\)"),
        (lambda x, w: x.conv2d(w, groups=0), "0 groups"),
        (lambda x, w: x[:, :0].conv2d(w, groups=0), "0 groups"),
    ],
)
def test_convolution_refuses_mismatched_bias_and_groups(
    act: Callable[[Tensor, Tensor], Tensor], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        act(*drawn((1, 4, 5, 5), (4, 4, 3, 3)))


def test_convolution_and_einsum_take_arrays() -> None:
    rng = np.random.default_rng(8)
    x, w, bias = (
        rng.standard_normal(n).astype(np.float32) for n in ((1, 3, 6, 7), (3, 3, 3, 3), 3)
    )
    for convolution in (Tensor.conv2d, Tensor.conv_transpose2d):
        actual, expected = (
            convolution(Tensor(x, NUMPY), *(Tensor(v, NUMPY) if made else v for v in (w, bias)))
            for made in (False, True)
        )
        assert np.array_equal(actual.numpy(), expected.numpy())
    product = Tensor.einsum("ij,kj->ik", Tensor(x[0, 0], NUMPY), x[0, 1])
    assert close(product.numpy(), x[0, 0] @ x[0, 1].T)


def test_interpolation_does_not_spread_infinity_and_nan() -> None:
    device = open_mapping("numpy")
    a = np.arange(30, dtype=np.float32).reshape(5, 6)
    a[1, 2], a[4, 0] = np.inf, np.nan
    for size in [(5, 6), (3, 9), (10, 12), (2, 2)]:
        rows, columns = (np.arange(n) * m // n for n, m in zip(size, a.shape, strict=True))
        actual = Tensor(a, device).interpolate(size).numpy()
        assert np.array_equal(actual, a[rows][:, columns], equal_nan=True)
    linear = Tensor(a, device).interpolate((5, 6), "linear").numpy()
    assert np.array_equal(linear, a, equal_nan=True)
    wide = Tensor(a, device).interpolate((10, 6), "linear").numpy()
    assert (~np.isfinite(wide)).sum() == 7  # weighted with one of the two: four elements and three
    whole = Tensor(np.int32([[1 << 30 | 1, 3]]), device).interpolate((2, 4))
    assert whole.numpy().tolist() == [[1 << 30 | 1] * 2 + [3] * 2] * 2


@pytest.mark.parametrize(
    ("formula", "shapes"),
    [
        ("...i->...", ((2, 3),)), ("...i->", ((3,),)), ("...i->", ((2, 3),)),
        ("...i->i", ((2, 3),)), ("...->", ((2, 3),)), ("...i,...i->", ((2, 3), (2, 3))),
        ("...i,i->", ((3,), (3,))), ("ij->...", ((2, 3),)), ("i...j->ij", ((2, 3),)),
        ("i...,j...->ij", ((2, 1), (3, 1))), ("...j,...j->...", ((2, 1, 3), (4, 3))),
        ("...ii->...i", ((2, 1, 3),)), ("...ij", ((2, 3, 4),)), ("bA", ((2, 3),)),
        ("ab,b->a", ((2, 1), (3,))), ("ab,ab->ab", ((1, 3), (2, 1))), ("i,i->", ((0,), (1,))),
        ("ii->i", ((1, 3),)), ("ij,", ((2, 3),)), (",i->i", ((), (2,))), ("i-j", ((2, 3, 4),)),
        ("i......j->ij", ((2, 3),)), ("i->i->i", ((2,),)), ("ij->ii", ((2, 2),)),
        ("i->...i...", ((2,),)), ("é->é", ((2,),)),
    ],
)  # fmt: skip
def test_einsum_accepts_and_refuses_the_formulas_of_numpy(
    formula: str, shapes: tuple[tuple[int, ...], ...]
) -> None:
    arrays = [np.random.default_rng(0).integers(1, 9, s).astype(np.float32) for s in shapes]
    device = open_mapping("numpy")
    tensors = [Tensor(a, device) for a in arrays]
    try:
        expected = np.einsum(formula, *arrays)
    except ValueError:
        with pytest.raises(ValueError, match="einsum"):
            Tensor.einsum(formula, *tensors)
    else:
        actual = Tensor.einsum(formula, *tensors).numpy()
        assert actual.shape == np.shape(expected)
        assert np.array_equal(actual, expected)
