"""Tiles that add nothing to a masked sum over rows are skipped for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import EMULATED, open_mapping, with_units

from imgmlp.engine import AnyDevice, Program, Tensor
from imgmlp.engine import dtype as dt
from imgmlp.engine.ir.kernel import Block, Kernel

ROWS = 2048  # 8 tiles of 256, four for each unit
RowMask = Callable[[Any, Any], Any]  # a mask of row numbers and a turn, both int32


@pytest.fixture(scope="module", params=["one", *EMULATED])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return with_units(open_mapping(request.param), 2)  # each unit has several tiles


def one_of_four(rows: Any, turn: Any) -> Any:
    return (rows // 256 + turn) % 4 == 0


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).uniform(-1, 1, shape).astype(np.float32)


def mask(chosen: RowMask, turn: int, rows: int) -> np.ndarray:
    """float64 [rows, 1]"""
    selected: np.ndarray = chosen(np.arange(rows), turn).reshape(rows, 1)
    return selected.astype(np.float64)


def step(
    device: AnyDevice,
    chosen: RowMask,
    rows: int = ROWS,
    also: tuple[bool, bool] = (False, False),
    other: RowMask | None = None,
    biases: RowMask | None = None,
) -> tuple[Program, Tensor]:
    """Gradients of two layers by the rows that `chosen` selects at a turn, and that turn.

    `other` selects the rows of the second layer, `biases` those of both biases. `also` adds
    gradients by all rows, before and after these.
    """
    x, goal = (Tensor(values(rows, n), device) for n in (24, 16))
    first, second = Tensor(values(24, 16), device), Tensor(values(16, 16), device)
    turn = Tensor(np.int32(1), device)
    masks = (ask(Tensor.arange(rows), turn) for ask in (chosen, other or chosen))
    asked = (results.reshape(rows, math.prod(results.shape) // rows) for results in masks)
    hidden = (x @ first).maximum(0.0)
    error = hidden @ second - goal
    inner = Tensor.where(hidden > 0.0, error @ second.permute(1, 0), 0.0)
    results = {"loss": error.square().sum()}
    for (name, read, slope), some in zip(
        (("first", x, inner), ("second", hidden, error)), asked, strict=True
    ):
        kept, every = Tensor.where(some, slope, 0.0), read.permute(1, 0) @ slope
        if also[0]:
            results[f"all of {name}"] = every
        results[name] = read.permute(1, 0) @ kept
        results[f"{name} bias"] = kept.sum(0)
        if biases:
            own = biases(Tensor.arange(rows), turn).reshape(rows, 1)
            results[f"{name} bias"] = Tensor.where(own, slope, 0.0).sum(0)
        if also[1]:
            results[f"all of {name}"] = every
    return Program(device, {name: t.node for name, t in results.items()}, []), turn


def wanted(
    some: np.ndarray, rows: int = ROWS, other: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    x, goal, first, second = (
        values(*shape).astype(np.float64) for shape in ((rows, 24), (rows, 16), (24, 16), (16, 16))
    )
    hidden = np.maximum(x @ first, 0)
    error = hidden @ second - goal
    inner = (error @ second.T) * (hidden > 0)
    results = {"loss": np.square(error).sum()}
    second_some = some if other is None else other
    for name, read, slope, kept in (
        ("first", x, inner, some),
        ("second", hidden, error, second_some),
    ):
        results[name], results[f"{name} bias"] = read.T @ (slope * kept), (slope * kept).sum(0)
        results[f"all of {name}"] = read.T @ slope
    return results


def check(program: Program, expected: dict[str, np.ndarray]) -> None:
    program.run()
    for name in program.outputs:
        scale = max(np.abs(expected[name]).max(), 1e-30)
        assert np.abs(program.read(name) - expected[name]).max() <= 1e-5 * scale, name


def guarded(program: Program) -> list[Kernel]:
    (block,) = (k for k in program.stages.procedure.phases if isinstance(k, Block))
    return [kernel for kernel in block.kernels if kernel.guards]


def test_tiles_without_chosen_rows_are_skipped_in_sums(device: AnyDevice) -> None:
    program, turn = step(device, one_of_four)
    for now in range(3):
        turn.write(np.int32(now))
        check(program, wanted(mask(one_of_four, now, ROWS)))


def test_only_kernels_needed_by_masked_sums_are_guarded() -> None:
    """Guarded are one product per layer, which also sums its bias, and the one input kernel that
    only a guarded product reads."""
    program, _ = step(with_units(open_mapping("numpy:procedure"), 2), one_of_four)
    inner, *kernels = guarded(program)
    assert len(kernels) == 2
    (own,) = inner.writes()
    assert [own in kernel.reads() for kernel in kernels].count(True) == 1
    for kernel in kernels:
        assert kernel.column_sums is not None
        assert "where" not in str(kernel.core)
        assert {s.target.name for s in kernel.all_stores()} == {"partial_sums"}


@pytest.mark.parametrize(
    ("chosen", "rows"),
    [
        (lambda rows, turn: rows // 100 % 3 == turn, ROWS),  # not by whole tiles
        (lambda rows, turn: rows % 2 == turn, ROWS),
        (one_of_four, 1111),  # tiles of other sizes
        (one_of_four, 512),  # a tile for each unit, whose sums must be there
    ],
)
def test_masks_not_constant_per_tile_are_applied_row_by_row(
    device: AnyDevice, chosen: RowMask, rows: int
) -> None:
    program, _ = step(device, chosen, rows)
    assert not guarded(program)
    check(program, wanted(mask(chosen, 1, rows), rows))


@pytest.mark.parametrize("also", [(True, False), (False, True)])
def test_unmasked_sum_beside_a_masked_one_uses_all_tiles(
    device: AnyDevice, also: tuple[bool, bool]
) -> None:
    program, _ = step(device, one_of_four, also=also)
    check(program, wanted(mask(one_of_four, 1, ROWS)))


def test_masked_sums_may_have_different_masks(device: AnyDevice) -> None:
    def other(rows: Any, turn: Any) -> Any:
        return (rows // 512 + turn) % 2 == 0

    program, _ = step(device, one_of_four, other=other)
    both = mask(one_of_four, 1, ROWS), mask(other, 1, ROWS)
    check(program, wanted(both[0], other=both[1]))


def test_sums_with_different_masks_of_the_same_rows_are_right(device: AnyDevice) -> None:
    """One kernel would add up sums of the same rows, two of some tiles and one of all."""
    x = Tensor(values(ROWS, 16), device)
    h = (x @ Tensor(values(16, 16), device)).maximum(0.0)
    rows = Tensor.arange(ROWS)
    halves = [(rows // 256 % 2 == n).reshape(ROWS, 1) for n in (0, 1)]
    results = {f"half {n}": Tensor.where(half, h, 0.0).sum(0) for n, half in enumerate(halves)}
    results["all"] = h.sum(0)
    program = Program(device, {name: t.node for name, t in results.items()}, [])
    hidden = np.maximum(values(ROWS, 16).astype(np.float64) @ values(16, 16), 0)
    tiles = hidden.reshape(-1, 256, 16)
    parts = {"half 0": tiles[::2], "half 1": tiles[1::2], "all": tiles}
    check(program, {name: part.sum((0, 1)) for name, part in parts.items()})


def every_row(rows: Any, turn: Any) -> Any:
    return rows >= 0


def three_of_four(rows: Any, turn: Any) -> Any:
    return (rows // 256 + turn) % 4 > 0


@pytest.mark.parametrize("biases", [every_row, three_of_four])
def test_bias_gradient_with_another_mask_than_its_weights_is_right(
    device: AnyDevice, biases: RowMask
) -> None:
    """A product would add up both with one mask."""
    program, _ = step(device, one_of_four, biases=biases)
    expected, own = (wanted(mask(chosen, 1, ROWS)) for chosen in (one_of_four, biases))
    check(program, expected | {name: own[name] for name in own if name.endswith("bias")})


def test_mask_of_some_columns_skips_no_tile(device: AnyDevice) -> None:
    def left_half(rows: Any, turn: Any) -> Any:
        some = one_of_four(rows, turn).reshape(ROWS, 1).cast(dt.f32).expand(ROWS, 8)
        return some.pad((0, 0), (0, 8)) > 0.5

    program, _ = step(device, left_half)
    check(program, wanted(mask(one_of_four, 1, ROWS) * (np.arange(16) < 8)))
    assert not guarded(program)


def test_padded_mask_is_false_beyond_its_end(device: AnyDevice) -> None:
    """The padding is false in whole tiles or in a part of one."""
    for count in (1024, 1000):
        begun = Tensor.arange(count) // 256 % 2 == 0
        padded = begun.cast(dt.f32).pad((0, ROWS - count)) > 0.5
        program, _ = step(device, lambda rows, turn, padded_mask=padded: padded_mask)
        some = np.zeros((ROWS, 1))
        some[:count, 0] = np.arange(count) // 256 % 2 == 0
        check(program, wanted(some))


def test_mask_may_apply_to_either_factor(device: AnyDevice) -> None:
    x, g = (Tensor(values(ROWS, n), device) for n in (24, 16))
    weight = Tensor(values(16, 16), device)
    some = one_of_four(Tensor.arange(ROWS), 1).reshape(ROWS, 1)
    product = Tensor.where(some, x, 0.0).permute(1, 0) @ (g @ weight)
    program = Program(device, {"found": product.node, "loss": (g @ weight).sum().node}, [])
    slope = values(ROWS, 16).astype(np.float64) @ values(16, 16)
    kept = values(ROWS, 24) * mask(one_of_four, 1, ROWS)
    check(program, {"found": kept.T @ slope, "loss": slope.sum()})
    assert bool(guarded(program)) == (device.lanes == "one")


def test_masked_out_rows_with_a_nonzero_value_are_added(device: AnyDevice) -> None:
    x, weights = Tensor(values(ROWS, 24), device), Tensor(values(24, 16), device)
    some = one_of_four(Tensor.arange(ROWS), 1).reshape(ROWS, 1)
    out = x @ weights
    slope = x.permute(1, 0) @ Tensor.where(some, out, 0.5)
    program = Program(device, {"slope": slope.node, "loss": out.square().sum().node}, [])
    read = values(ROWS, 24).astype(np.float64)
    made = read @ values(24, 16)
    kept = np.where(mask(one_of_four, 1, ROWS) > 0, made, 0.5)
    check(program, {"slope": read.T @ kept, "loss": np.square(made).sum()})


def test_sums_are_zero_if_every_tile_is_skipped(device: AnyDevice) -> None:
    program, _ = step(device, lambda rows, turn: rows // 256 + 9 == turn)
    check(program, wanted(np.zeros((ROWS, 1))))
