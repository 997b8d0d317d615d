"""Convolutions in both of their forms: sums of taps for few weights, else a product of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import close

from imgmlp.engine import Tensor, open_device
from imgmlp.engine.ir.graph import toposort
from imgmlp.engine.ir.op import Op
from imgmlp.engine.operations import windows

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
    monkeypatch.setattr(windows, "WRITTEN_OUT", 0)
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
def test_few_weights_over_one_picture_are_no_product(
    shape: tuple[int, ...], outputs: int, stride: int, product: bool
) -> None:
    x, w = drawn(shape, (outputs, 8, 3, 3))
    y = x.conv2d(w, padding=1, stride=stride)
    (by_x,) = (y * y).sum().gradient([x])
    for node in (y.node, by_x.node):
        assert (Op.DOT in {n.op for n in toposort([node])}) == product


def test_groups_have_sums_of_their_own() -> None:
    x, w = drawn((1, 16, 5, 5), (16, 1, 3, 3))
    assert Op.DOT not in {n.op for n in toposort([x.conv2d(w, groups=16).node])}


def test_integers_are_spread_over_windows_as_floats_are() -> None:
    device = open_device("numpy")
    x = Tensor(np.arange(4, dtype=np.int32).reshape(1, 1, 2, 2), device)
    found = x.conv_transpose2d(Tensor.ones(1, 1, 2, 2), stride=2).numpy()
    assert np.array_equal(found[0, 0], np.repeat(np.repeat([[0, 1], [2, 3]], 2, 0), 2, 1))
