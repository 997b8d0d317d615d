"""Convolutions in both of their forms: sums of taps for few weights, else a product of matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
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
def test_both_forms_have_the_same_values_and_gradients(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = drawn((1, 4, 7, 6), (4, 4 // options.get("groups", 1), 3, 2))

    def found() -> list[np.ndarray]:
        y = x.conv2d(w, **options)
        first = (y * y).sum().gradient([x, w])
        second = ((first[0] * first[0]).sum() + (first[1] * first[1]).sum()).gradient([x, w])
        return [t.numpy() for t in (y, *first, *second)]

    summed = found()
    monkeypatch.setattr(windows, "MAX_WEIGHTS_AS_TAPS", 0)
    for value, wanted in zip(summed, found(), strict=True):
        assert close(value, wanted)


def test_a_convolution_of_a_picture_with_itself() -> None:
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
def test_a_convolution_with_few_weights_is_not_a_matrix_product(
    shape: tuple[int, ...], outputs: int, stride: int, product: bool
) -> None:
    x, w = drawn(shape, (outputs, 8, 3, 3))
    y = x.conv2d(w, padding=1, stride=stride)
    (by_x,) = (y * y).sum().gradient([x])
    for node in (y.node, by_x.node):
        assert (Op.DOT in {n.op for n in toposort([node])}) == product


@pytest.mark.parametrize("count", [1, 2])
def test_the_upstream_gradient_is_computed_once_for_all_taps(count: int) -> None:
    """For a GPU all that a kernel multiplies is a tap by a weight."""
    device = open_device("numpy:uops-group")
    x, w = (Tensor(np.ones(s, np.float32), device) for s in ((1, 3, 9, 9), (2, 3, 3, 3)))

    def step() -> dict[str, Tensor]:
        y = x.conv2d(w, padding=1).relu().square()
        slopes = (y * y).sum().gradient([x, w][:count])
        return {f"slope{i}": g for i, g in enumerate(slopes)}

    uops = next(c.uops for c in compile(step, device).stages.codes if "slope0" in str(c.uops))
    assert sum(u.arg is Op.MUL for u in uops) == w.node.size


def test_groups_are_summed_separately() -> None:
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
    """Also those that would see padding alone, of which nothing is the largest."""
    (x,) = drawn((1, 1, 5, 5))
    assert x.max_pool2d(2, stride=np.int64(1), padding=(1, 0)).shape == (1, 1, 6, 4)
    with pytest.raises(ValueError, match=next(iter(options))):
        x.max_pool2d(**{"kernel": 2, **options})


def test_padding_is_allowed_if_each_window_has_a_pixel() -> None:
    (x,) = drawn((1, 1, 3, 4))
    assert x.max_pool2d(2, 1, (1, 2), 2).shape == (1, 1, 3, 6)
    assert np.array_equal(x.max_pool2d(3, 3, 2, (2, 3)).numpy(), x[:, :, :1, 1:2].numpy())


def test_the_largest_of_bools_at_an_edge_is_a_bool() -> None:
    x = Tensor(np.eye(3, dtype=bool).reshape(1, 1, 3, 3), open_device("numpy"))
    found = x.max_pool2d(2, 1, 1)
    assert found.dtype is dtype.bool_
    assert found[0, 0, 0].numpy().tolist() == [True, True, False, False]


def test_integers_are_spread_over_windows_as_floats_are() -> None:
    device = open_device("numpy")
    x = Tensor(np.arange(4, dtype=np.int32).reshape(1, 1, 2, 2), device)
    found = x.conv_transpose2d(Tensor.ones(1, 1, 2, 2), stride=2).numpy()
    assert np.array_equal(found[0, 0], np.repeat(np.repeat([[0, 1], [2, 3]], 2, 0), 2, 1))


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
def test_factors_that_do_not_fit_are_refused(
    act: Callable[[Tensor, Tensor], Tensor], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        act(*drawn((1, 4, 5, 5), (4, 4, 3, 3)))


def test_factors_may_be_arrays() -> None:
    rng = np.random.default_rng(8)
    x, w, bias = (
        rng.standard_normal(n).astype(np.float32) for n in ((1, 3, 6, 7), (3, 3, 3, 3), 3)
    )
    for convolution in (Tensor.conv2d, Tensor.conv_transpose2d):
        found, wanted = (
            convolution(Tensor(x, NUMPY), *(Tensor(v, NUMPY) if made else v for v in (w, bias)))
            for made in (False, True)
        )
        assert np.array_equal(found.numpy(), wanted.numpy())
    product = Tensor.einsum("ij,kj->ik", Tensor(x[0, 0], NUMPY), x[0, 1])
    assert close(product.numpy(), x[0, 0] @ x[0, 1].T)
