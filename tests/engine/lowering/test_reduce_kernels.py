"""Reductions: the order of memory reads, results, and totals in registers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import EMULATED, open_mapping, with_units
from reference import close

from imgmlp.engine import AnyDevice, Program, Tensor, open_device
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.graph import Buffer, buffer
from imgmlp.engine.ir.graph import reduce as reduced
from imgmlp.engine.ir.kernel import Kernel, Store
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Var
from imgmlp.engine.ir.target import LANES_PER_GROUP, Target
from imgmlp.engine.ir.uops import Builder, Code, U
from imgmlp.engine.lowering.linearize import linearize
from imgmlp.engine.lowering.map_kernels import stride
from imgmlp.engine.lowering.reduce_kernels import totals_in_registers

Reduce = Callable[[Tensor], Tensor]
REDUCTIONS: dict[str, Reduce] = {
    "rows": lambda x: x.sum(1),
    "columns": lambda x: x.sum(0),
    "rows of the transposed": lambda x: x.permute(1, 0).sum(1),
    "columns of the transposed": lambda x: x.permute(1, 0).sum(0),
    "rows of what is made of the transposed": lambda x: (x * 2.0 + 1.0).permute(1, 0).max(1),
    "both": lambda x: x.permute(1, 0).sum(),
}


def program(device: AnyDevice, reduce: Reduce, *shape: int) -> tuple[Program, list[np.ndarray]]:
    """A program that reduces a matrix; its expected result, and that of the magnitudes."""
    values = np.random.default_rng(shape).uniform(-1, 1, shape).astype(np.float32)
    host = open_device("numpy")
    expected = [reduce(Tensor(v, host)).numpy() for v in (values, np.abs(values))]
    return Program(device, {"y": reduce(Tensor(values, device)).node}, []), expected


@pytest.mark.parametrize("shape", [(40, 21), (5, 1100), (1100, 5), (24, 301)])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("form", EMULATED)
def test_reductions_of_every_layout_are_right(form: str, name: str, shape: tuple[int, int]) -> None:
    compiled, expected = program(open_device(form), REDUCTIONS[name], *shape)
    compiled.run()
    assert close(compiled.read("y"), *expected)


def test_sums_of_masked_reads_are_not_unrolled() -> None:
    """A compiler would take seconds for them, and generate branches instead of vectors."""
    device = open_device("numpy:uops")
    for pads, written in ((0, True), (1, False)):
        compiled, expected = program(
            device, lambda x, n=pads: x.pad((n, n), (0, 0)).sum(0), 5, 1100
        )  # type: ignore[misc]
        compiled.run()
        assert close(compiled.read("y"), *expected)
        rows, _ = program(device, lambda x, n=pads: x.pad((0, 0), (n, n)).sum(1), 5, 1100)  # type: ignore[misc]
        assert ("unaligned_float8" in rows.stages.source.partition("__kernel")[2]) == written


@pytest.mark.parametrize("name", REDUCTIONS)
def test_innermost_loop_of_a_reduction_reads_neighbours(name: str) -> None:
    """Whichever axis is summed, contiguous or not."""
    compiled, _ = program(open_device("numpy:uops"), REDUCTIONS[name], 64, 48)
    (code,) = compiled.stages.codes
    assert steps(code) == {1}


def test_column_sums_of_wide_rows_read_long_stretches() -> None:
    """4,096 columns are not read as 16 elements from each of many memory pages."""
    device = with_units(open_device("numpy:uops"), 2)
    compiled, _ = program(device, REDUCTIONS["columns"], 64, 4096)
    (code,) = compiled.stages.codes
    inner = [u.arg.count for u in code.uops if u.op is U.RANGE and u.arg.kind == "vector"]
    assert min(inner) > 64


@pytest.mark.parametrize(("shape", "parts"), [((64, 2100), 8), ((24, 301), 4), ((66, 1100), 1)])
def test_lanes_share_the_terms_of_column_sums(shape: tuple[int, int], parts: int) -> None:
    """Neighbouring lanes read neighbours; a group computes LANES_PER_GROUP / parts sums."""
    compiled, expected = program(open_mapping("group"), REDUCTIONS["columns"], *shape)
    (code,) = compiled.stages.codes
    joined = [u.arg[1] for u in code.uops if u.op is U.GROUP_REDUCE]
    assert joined == ([LANES_PER_GROUP // parts] if parts > 1 else [])
    compiled.run()
    assert close(compiled.read("y"), *expected)


@pytest.mark.parametrize(("terms", "beside", "lanes"),
                         [(2853, False, 256), (2853, True, 128), (900, False, 128)])  # fmt: skip
def test_long_sum_alone_in_its_launch_has_more_lanes(terms: int, beside: bool, lanes: int) -> None:
    """In a launch with other kernels all groups have one size."""
    compiled, expected = program(open_mapping("group"), REDUCTIONS["both"], terms // 3, 3)
    (kernel,) = compiled.stages.procedure.kernels
    assert linearize(kernel, Target("group", 2), beside).local_size == lanes
    compiled.run()
    assert close(compiled.read("y"), *expected)


def test_lanes_without_a_sum_read_no_memory() -> None:
    """They do not read common factors of a sum either: no memory may follow the last one."""
    x, b = (np.arange(n, dtype=np.float32) for n in (64 * 8, 8))
    device = open_device("numpy:uops-group")  # the emulator refuses reads beyond a Buffer
    total = (Tensor(x.reshape(64, 8), device) + Tensor(b, device)).square().sum(axis=0)
    assert np.array_equal(total.numpy(), np.square(x.reshape(64, 8) + b).sum(axis=0))


def steps(code: Code) -> set[int]:
    """The memory strides of the innermost loop, of each load inside of it."""
    loops: list[Var] = []
    strides = set()
    for u in code.uops:
        if u.op is U.RANGE:
            loops.append(Var(u.arg.name, 0, u.arg.count - 1))
        elif u.op is U.END:
            loops.pop()
        elif u.op is U.LOAD and len(loops) > 1:
            strides.add(stride(u.arg[0], loops, loops[-1]))
    return strides


@pytest.mark.parametrize(
    ("axes", "adds", "doubled", "kept"),
    [
        ((0, 1), True, False, True),
        ((0, 1), False, False, False),
        ((0, 1), True, True, False),
        ((1,), True, False, True),
        ((0,), True, False, False),
    ],
)
def test_only_small_totals_that_are_plainly_added_stay_in_registers(
    axes: tuple[int, ...], adds: bool, doubled: bool, kept: bool
) -> None:
    """A total that is transformed, or replaces the stored one, is needed tile by tile."""
    total = reduced(Op.SUM, buffer(Buffer((4, 30), f32)), axes)
    place = buffer(Buffer(total.shape, f32))
    store = Store(place, total + total if doubled else total, adds)
    kernel = Kernel("total", total.shape, (store,), total)
    assert (kernel in totals_in_registers([kernel], Builder())) is kept
