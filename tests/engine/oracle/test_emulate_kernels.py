"""Procedures run by NumPy report faults. Tests of programs compare their values."""

from __future__ import annotations

import numpy as np
import pytest

from imgmlp.engine.ir.dtype import f32, i32
from imgmlp.engine.ir.graph import Buffer, Node, buffer, concat, dot, gather, move, reduce
from imgmlp.engine.ir.kernel import Kernel, Procedure, Store
from imgmlp.engine.ir.op import Op
from imgmlp.engine.oracle.emulate_kernels import run_procedure
from imgmlp.engine.oracle.sanitizer import Memory

X, OUT = Buffer((4, 3), f32, name="x"), Buffer((4, 3), f32, name="out")


def run(value: Node, place: Node, memory: Memory) -> None:
    kernel = Kernel("k0_map", value.shape, (Store(place, value),), None)
    run_procedure(Procedure((kernel,)), memory)


def memory() -> dict[Buffer, np.ndarray]:
    return {X: np.arange(12, dtype=np.float32), OUT: np.zeros(12, np.float32)}


def test_emulated_kernel_reads_and_writes_through_views() -> None:
    """The kernel reads a masked view and a reshaped value, and writes every other row."""
    x = buffer(X)
    shifted = move(Op.PAD, move(Op.SHRINK, x, ((0, 1), (0, 3))), ((1, 0), (0, 0)))  # [2, 3]
    mixed = move(Op.SHRINK, move(Op.RESHAPE, x * 2.0, (3, 4)), ((0, 2), (0, 3)))
    held = memory()
    run(shifted + mixed, move(Op.STRIDE, buffer(OUT), (2, 1)), held)
    first = held[X].reshape(4, 3)[0]
    doubled = held[X].reshape(3, 4)[:2, :3] * 2
    expected = doubled + np.stack([np.zeros(3), first])
    assert np.array_equal(held[OUT].reshape(4, 3)[::2], expected)
    assert not held[OUT].reshape(4, 3)[1::2].any()


def test_computed_value_of_many_elements_is_read_through_views() -> None:
    """More elements than NumPy's buffers hold at a time."""
    many, out = Buffer((17, 512), f32, name="many"), Buffer((17, 512, 1), f32, name="out")
    held = {many: np.arange(17 * 512, dtype=np.float32), out: np.zeros(17 * 512, np.float32)}
    run(move(Op.RESHAPE, buffer(many) + 1.0, (17, 512, 1)), buffer(out), held)
    assert np.array_equal(held[out], held[many] + 1)


def test_emulated_kernels_see_stores_of_earlier_kernels() -> None:
    held = memory()
    one = Kernel("k0_map", (4, 3), (Store(buffer(OUT), buffer(X) + 1.0),), None)
    two = Kernel("k1_map", (4, 3), (Store(buffer(X), buffer(OUT) * 2.0),), None)
    run_procedure(Procedure((one, two)), held)
    assert np.array_equal(held[X], (np.arange(12) + 1) * 2)


def test_product_may_read_another_part_of_the_buffer_that_it_writes() -> None:
    joined, weight = Buffer((1, 7), f32, name="joined"), Buffer((3, 4), f32, name="weight")
    left = move(Op.SHRINK, buffer(joined), ((0, 1), (0, 3)))
    place = move(Op.SHRINK, buffer(joined), ((0, 1), (3, 7)))
    held = {joined: np.arange(7, dtype=np.float32), weight: np.arange(12, dtype=np.float32)}
    run(dot(left, buffer(weight)), place, held)
    expected = np.arange(3) @ np.arange(12).reshape(3, 4)
    assert np.array_equal(held[joined], [0, 1, 2, *expected])


def test_store_out_of_bounds_is_reported() -> None:
    small = Buffer((2, 3), f32, name="small")
    held = memory() | {small: np.zeros(6, np.float32)}
    with pytest.raises(IndexError, match=r"k0_map: a store .* of small f32\[2, 3\]"):
        run(buffer(X), buffer(small), held)


def test_gathered_row_out_of_bounds_is_reported() -> None:
    index = Buffer((3,), i32, name="index")
    held = memory() | {index: np.array([0, 4, 1], np.int32)}
    with pytest.raises(IndexError, match=r"k0_map: there is no row 4 in a table \(4, 3\)"):
        run(gather(buffer(X), buffer(index)), buffer(OUT), held)


def test_two_elements_stored_to_one_place_are_reported() -> None:
    one = Buffer((1, 3), f32, name="one")
    held = memory() | {one: np.zeros(3, np.float32)}
    with pytest.raises(ValueError, match=r"k0_map: a store two iterations write element .* of one"):
        run(buffer(X), move(Op.EXPAND, buffer(one), (4, 3)), held)


@pytest.mark.parametrize("value", [
    move(Op.STRIDE, buffer(X), (-1, 1)),
    buffer(X) + move(Op.EXPAND, move(Op.RESHAPE, reduce(Op.SUM, buffer(X), (1,)), (4, 1)), (4, 3)),
])  # fmt: skip
def test_element_that_reads_what_another_one_writes_is_reported(value: Node) -> None:
    with pytest.raises(ValueError, match=r"k0_map: a read.* races with a store for element"):
        run(value, buffer(X), memory())


def test_overlapping_buffers_are_reported() -> None:
    arena = np.zeros(20, np.float32)
    with pytest.raises(ValueError, match=r"k0_map: out f32\[4, 3\] and x f32\[4, 3\] share bytes"):
        run(buffer(X), buffer(OUT), {X: arena[:12], OUT: arena[8:]})


def test_operation_that_kernels_do_not_have_is_reported() -> None:
    with pytest.raises(ValueError, match="k0_map: CONCAT cannot be emulated"):
        run(concat([buffer(X), buffer(X)], 0), buffer(OUT), memory())
