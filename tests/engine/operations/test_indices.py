"""Gather and scatter by computed indices.

Few indices are compared with every position; many are sorted first. Both give equal results.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from reference import close

from imgmlp.engine import AnyDevice, Tensor, compile, dtype, open_device
from imgmlp.engine.ir.graph import toposort
from imgmlp.engine.ir.op import Op
from imgmlp.engine.operations import scans

KINDS = (dtype.f32, dtype.f16, dtype.i32, dtype.u8, dtype.bool_)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, shape)


def test_scatter_and_gather_by_sorted_indices_equal_those_by_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_device("numpy")
    x, new = (Tensor(drawn(2, n, 3, seed=n), device).cast(dtype.f32) for n in (5, 70))
    at = Tensor(
        drawn(2, 70, 3, seed=1) + drawn(2, 70, 3) - 1, device
    )  # -1 and 5 are out of bounds and ignored
    rows = Tensor(drawn(3, 40, seed=2), device)

    def step() -> dict[str, Tensor]:
        outputs = {"added": x.scatter_add(1, at, new), "last": x.scatter(1, at, new)}
        outputs["rows"] = x.reshape(5, 6).gather(rows).square()
        for name, y in list(outputs.items()):
            first = (y * y.square()).sum().gradient([x, new])
            second = sum((g.square().sum() for g in first), y.sum()).gradient([x, new])
            outputs |= {f"{name} {i}": g for i, g in enumerate([*first, *second])}
        return outputs

    compared = compile(step, device)
    monkeypatch.setattr(scans, "MAX_INDEX_COMPARISONS", 0)
    is_sorted = compile(step, device)
    for program in (compared, is_sorted):
        program.run()
    for name in compared.outputs:
        assert close(is_sorted.read(name), compared.read(name)), name


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_scatter_add_by_sorted_indices_equals_comparison_for_every_dtype(
    kind: dtype.DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device("numpy")
    x, new = (Tensor(drawn(n, seed=n), device).cast(kind) for n in (9, 300))
    at = Tensor(drawn(300), device)
    before = x.scatter_add(0, at, new)
    monkeypatch.setattr(scans, "MAX_INDEX_COMPARISONS", 0)
    after = x.scatter_add(0, at, new)
    assert after.dtype is before.dtype
    assert np.array_equal(after.numpy(), before.numpy())


def test_scatter_along_a_long_axis_compares_no_index_with_every_element() -> None:
    size = 1 << 15
    x, at = Tensor(np.ones(size, np.float32)), Tensor(np.arange(size)[::-1].copy())
    (slope,) = x.gather(at).square().sum().gradient([x])
    for y in (x.scatter_add(0, at, x), x.scatter(0, at, x), slope):
        nodes = toposort([y.node])
        assert max(n.size for n in nodes) < size * 200
        assert Op.LOOP in {n.op for n in nodes}


def test_scatter_without_indices_changes_nothing() -> None:
    x, none = Tensor(drawn(4, 3), open_device("numpy")), drawn(0, 3)
    for y in (x.scatter(0, none, none), x.scatter_add(0, none, none)):
        assert np.array_equal(y.numpy(), x.numpy())


@pytest.mark.parametrize(
    "act",
    [
        lambda x, at: x.take_along_axis(at, 1), lambda x, at: x[at[:, 0], at[:, 0]],
        lambda x, at: x[Tensor(at[:, 0]), at[:, 0]], lambda x, at: x.reshape(-1)[[5]],
        lambda x, at: x.argsort(), lambda x, at: x[None, :, :64].expand(700, 70_000, 64).sort(),
        lambda x, at: x.scatter_add(1, at, at), lambda x, at: x.scatter(1, at, at),
    ],
)  # fmt: skip
def test_operations_refuse_more_elements_than_an_i32_can_index(
    act: Callable[[Tensor, np.ndarray], Tensor],
) -> None:
    """Flat indices would wrap. The expanded Tensor is never stored here."""
    x, at = Tensor(np.ones((70_000, 1), np.float32)), np.full((70_000, 1), 7, np.int32)
    with pytest.raises(ValueError, match="more than an i32 can count"):
        act(x.expand(70_000, 40_000), at)


def test_gradient_of_gather_adds_up_repeated_rows(device: AnyDevice) -> None:
    table = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    index = np.array([[3, 0], [3, 8], [3, 1]])
    t, i = Tensor(table, device), Tensor(index, device)
    program = compile(
        lambda: {"rows": t.gather(i), "g": (t.gather(i).square().sum()).gradient([t])[0]}, device
    )
    program.run()
    assert np.array_equal(program.read("rows"), table[index])
    expected = np.zeros((9, 5))
    np.add.at(expected, index, 2 * table[index])
    assert close(program.read("g"), expected, np.abs(expected), roundings=4)
