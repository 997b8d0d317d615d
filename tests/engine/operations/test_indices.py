"""Elements by computed indices: many are sorted, few compared, and both give the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from reference import close

from imgmlp.engine import Tensor, compile, dtype, open_device
from imgmlp.engine.ir.graph import toposort
from imgmlp.engine.ir.op import Op
from imgmlp.engine.operations import scans

KINDS = (dtype.f32, dtype.f16, dtype.i32, dtype.u8, dtype.bool_)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, shape)


def test_many_indices_are_sorted_and_few_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_device("numpy")
    x, new = (Tensor(drawn(2, n, 3, seed=n), device).cast(dtype.f32) for n in (5, 70))
    at = Tensor(drawn(2, 70, 3, seed=1) + drawn(2, 70, 3) - 1, device)  # -1 and 5 lead nowhere
    rows = Tensor(drawn(3, 40, seed=2), device)

    def step() -> dict[str, Tensor]:
        found = {"added": x.scatter_add(1, at, new), "last": x.scatter(1, at, new)}
        found["rows"] = x.reshape(5, 6).gather(rows).square()
        for name, y in list(found.items()):
            first = (y * y.square()).sum().gradient([x, new])
            second = sum((g.square().sum() for g in first), y.sum()).gradient([x, new])
            found |= {f"{name} {i}": g for i, g in enumerate([*first, *second])}
        return found

    compared = compile(step, device)
    monkeypatch.setattr(scans, "MAX_INDEX_COMPARISONS", 0)
    is_sorted = compile(step, device)
    for program in (compared, is_sorted):
        program.run()
    for name in compared.outputs:
        assert close(is_sorted.read(name), compared.read(name)), name


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
def test_scattered_rows_of_every_dtype_are_added(
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


def test_no_index_is_compared_with_each_element_of_a_long_line() -> None:
    size = 1 << 15
    x, at = Tensor(np.ones(size, np.float32)), Tensor(np.arange(size)[::-1].copy())
    (slope,) = x.gather(at).square().sum().gradient([x])
    for y in (x.scatter_add(0, at, x), x.scatter(0, at, x), slope):
        nodes = toposort([y.node])
        assert max(n.size for n in nodes) < size * 200
        assert Op.LOOP in {n.op for n in nodes}


def test_no_indices_change_nothing() -> None:
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
def test_more_elements_than_an_i32_can_index_are_refused(
    act: Callable[[Tensor, np.ndarray], Tensor],
) -> None:
    """Where their places would wrap; none of them lies in memory here."""
    x, at = Tensor(np.ones((70_000, 1), np.float32)), np.full((70_000, 1), 7, np.int32)
    with pytest.raises(ValueError, match="more than an i32 can count"):
        act(x.expand(70_000, 40_000), at)
