"""The sanitizer reports accesses outside of a Buffer and races, and nothing else."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from imgmlp.engine.ir.dtype import f16, f32
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.oracle.sanitizer import Loops, Sanitizer

OUT = Buffer((6,), f32, name="out")
ITEMS = Loops(("item",), (6,))
LANES = Loops(("group", "lane"), (2, 3))
EACH = np.arange(6)


def watching(groups: int = 6, items: int = 6) -> Sanitizer:
    return Sanitizer("k", {OUT: np.arange(6, dtype=np.float32)}, [OUT], [OUT], groups, items)


def test_stores_reach_memory_and_masked_reads_give_zero() -> None:
    watch = watching()
    watch.write("a store", OUT, EACH, EACH != 4, ITEMS, EACH * 2.0)
    assert np.array_equal(watch.memory[OUT], [0, 2, 4, 6, 4, 10])
    actual = watch.read("a read", OUT, EACH * 100, EACH == 0, ITEMS)
    assert np.array_equal(actual, [0] * 6)


def test_float16_is_read_as_float32() -> None:
    half = Buffer((2,), f16, name="half")
    watch = Sanitizer("k", {half: np.array([0.5, 1], np.float16)}, [half], [], 1, 1)
    assert watch.read("a read", half, np.arange(2), None, Loops()).dtype == np.float32


@pytest.mark.parametrize("by", [-1, 1])
def test_access_out_of_bounds_is_refused(by: int) -> None:
    wrong = 6 if by > 0 else -1
    with pytest.raises(IndexError, match=rf"k: a read touches element {wrong} of out f32\[6\]"):
        watching().read("a read", OUT, EACH + by, None, ITEMS)
    with pytest.raises(IndexError, match=rf"k: a store touches element {wrong} of out"):
        watching().write("a store", OUT, EACH + by, None, ITEMS, EACH)


def test_two_work_items_that_write_one_element_race() -> None:
    with pytest.raises(ValueError, match="k: a store two iterations write element 0 of out"):
        watching().write("a store", OUT, EACH // 2, None, ITEMS, EACH)


def test_work_items_that_overwrite_stores_of_others_race() -> None:
    watch = watching()
    watch.write("one", OUT, EACH, None, ITEMS, EACH)
    watch.write("two", OUT, EACH, None, ITEMS, EACH)  # each item overwrites its own element
    with pytest.raises(ValueError, match="k: three races with two for element 5 of out"):
        watch.write("three", OUT, EACH[::-1], None, ITEMS, EACH)


@pytest.mark.parametrize("first", ["read", "store"])
def test_work_item_that_reads_what_another_writes_races(first: str) -> None:
    for offsets, fine in ((EACH, True), (EACH[::-1], False)):
        watch, race = watching(), "k: a read races with a store for element 5 of out"
        with contextlib.nullcontext() if fine else pytest.raises(ValueError, match=race):
            if first == "read":
                watch.read("a read", OUT, offsets, None, ITEMS)
            watch.write("a store", OUT, EACH, None, ITEMS, EACH)
            if first == "store":
                watch.read("a read", OUT, offsets, None, ITEMS)
            watch.finish()


def test_writing_what_all_work_items_read_races_unless_there_is_one() -> None:
    for items in (6, 1):
        watch = watching(items, items)
        watch.read("a read", OUT, np.zeros(1, int), None, Loops())
        watch.write("a store", OUT, EACH, None, ITEMS, EACH)
        if items == 1:
            watch.finish()
        else:
            with pytest.raises(ValueError, match="races"):
                watch.finish()


@pytest.mark.parametrize(("barrier", "distance", "fine"), [
    (False, 0, True), (False, 1, False),  # written by the neighbouring lane
    (True, 1, True), (True, 3, False),  # written by the other group
])  # fmt: skip
def test_barrier_orders_the_lanes_of_a_group_only(barrier: bool, distance: int, fine: bool) -> None:
    watch, own = watching(groups=2), EACH.reshape(2, 3)
    group, lane = own // 3, own % 3
    watch.write("a store", OUT, own, None, LANES, own)
    if barrier:
        watch.barrier()
    offsets = (group + distance // 3) % 2 * 3 + (lane + distance) % 3
    race = "k: a read races with a store"
    with contextlib.nullcontext() if fine else pytest.raises(ValueError, match=race):
        watch.read("a read", OUT, offsets, None, LANES)


def test_iterations_of_one_loop_race_but_consecutive_loops_do_not() -> None:
    """A work-item may read in a second loop what it wrote in a first, at any iteration."""
    own, turned = EACH.reshape(2, 3), EACH.reshape(2, 3)[:, ::-1]
    inner = [Loops(("item", name), (2, 3)) for name in "ab"]
    watch = watching()
    watch.write("a store", OUT, own, None, inner[0], own)
    watch.read("a read", OUT, turned, None, inner[1])
    with pytest.raises(ValueError, match="races"):
        watch.read("a read", OUT, turned, None, inner[0])


def test_buffers_of_one_kernel_share_no_bytes() -> None:
    arena, other = np.zeros(10, np.float32), Buffer((6,), f32, name="other")
    memory = {OUT: arena[:6], other: arena[4:]}
    Sanitizer("k", memory, [OUT, other], [], 1, 1)  # reading shared bytes is allowed
    with pytest.raises(ValueError, match=r"k: out f32\[6\] and other f32\[6\] share bytes"):
        Sanitizer("k", memory, [other], [OUT], 1, 1)
