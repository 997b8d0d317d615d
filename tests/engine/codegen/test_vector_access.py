"""Neighbouring elements that a lane loads or stores as one vector."""

from __future__ import annotations

from dataclasses import replace

import pytest

from imgmlp.engine.codegen.matrix_units import element_index
from imgmlp.engine.codegen.vector_access import VectorAccess
from imgmlp.engine.ir.dtype import f16, f32
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.symbolic import Expr, Var
from imgmlp.engine.ir.uops import Code, Range, U, UOp

LINE = Var("l", 0, 7)
GLOBAL, LOCAL_BUFFER, RANGE = 0, 1, 2


def loop(
    count: int = 2, kind: str = "vector", inner: bool = False, size: int = 1024
) -> tuple[Code, Var]:
    """Code with a loop over neighbours, and its variable."""
    local = LocalBuffer.of((16, 64), f32, f16, "local")
    more = [UOp(U.RANGE, None, (), Range("m", 3)), UOp(U.END, None, (), None)] if inner else []
    uops = [
        UOp(U.GLOBAL, f32, (), (Buffer((size,), f32), True)),
        UOp(U.LOCAL_BUFFER, f16, (), local),
        UOp(U.RANGE, None, (), Range("n", count, kind)),
        *more,
        UOp(U.END, None, (), None),
    ]
    return Code("k", tuple(uops), (), 1, 1), Var("n", 0, count - 1)


@pytest.mark.parametrize(
    ("count", "kind", "inner"), [(3, "vector", False), (2, "loop", False), (2, "vector", True)]
)
def test_only_innermost_vector_loops_of_power_of_two_access_vectors(
    count: int, kind: str, inner: bool
) -> None:
    assert VectorAccess.of(loop(count, kind, inner)[0], RANGE) is None


@pytest.mark.parametrize("count", [2, 4])
def test_aligned_neighbours_are_loaded_and_stored_as_a_vector(count: int) -> None:
    code, n = loop(count)
    access = VectorAccess.of(code, RANGE)
    assert access is not None
    begin: Expr = LINE * 64 + 8
    data = f"data{GLOBAL} + {begin}"
    assert (
        access.load(GLOBAL, begin + n)
        == f"FLOAT_OF_{count}(*(__global const float{count} *)({data}), n)"
    )
    assert access.store(GLOBAL, begin + n, 7) == "side2_0[n] = v7;"
    assert access.declared == [f"float side2_0[{count}];"]
    assert access.stores[0].startswith(
        f"*(__global float{count} *)({data}) = (float{count})(side2_0[0]"
    )


@pytest.mark.parametrize("rest", [1, LINE, LINE * 3])
def test_unaligned_or_strided_elements_are_accessed_one_by_one(rest: Expr | int) -> None:
    code, n = loop()
    access = VectorAccess.of(code, RANGE)
    assert access is not None
    for offset in (n + rest, n * 2 + 8, LINE * 2, (n + LINE) % 4):
        assert access.load(GLOBAL, offset) is None
        assert access.store(GLOBAL, offset, 7) is None
    assert not access.declared
    assert not access.stores


@pytest.mark.parametrize(("size", "at_once"), [(1022, False), (1024, True)])
def test_masked_vector_load_does_not_reach_beyond_the_buffer(size: int, at_once: bool) -> None:
    """Some neighbours are masked by padding and may lie beyond the Buffer."""
    code, n = loop(4, size=size)
    access = VectorAccess.of(code, RANGE)
    assert access is not None
    assert (access.load(GLOBAL, LINE * 128 + 124 + n, is_masked=True) is not None) is at_once
    assert access.load(GLOBAL, LINE * 128 + n) is not None


def test_float16_in_global_memory_is_accessed_one_by_one() -> None:
    """Any device may have float16 in global memory, not only one with matrix units."""
    code, n = loop()
    halves = UOp(U.GLOBAL, f16, (), (Buffer((1024,), f16), True))
    access = VectorAccess.of(replace(code, uops=(halves, *code.uops[1:])), RANGE)
    assert access is not None
    assert access.load(GLOBAL, LINE * 64 + n) is None
    assert access.store(GLOBAL, LINE * 64 + n, 7) is None


def test_float16_in_local_memory_is_rounded_and_stored_in_pairs() -> None:
    code, n = loop()
    access = VectorAccess.of(code, RANGE)
    assert access is not None
    assert access.store(LOCAL_BUFFER, LINE * 64 + 8 + n, 7) is not None
    assert "*(__local uint *)" in access.stores[0]
    assert "halves_2(side2_0[0], side2_0[1])" in access.stores[0]
    assert str(access.load(LOCAL_BUFFER, LINE * 64 + n)).startswith(
        "HALF_OF_2(*(__local const uint *)"
    )


def test_swizzled_float16_lines_have_no_bank_conflicts() -> None:
    """The same 8 columns (16 bytes) of 8 lines lie in different banks of 128 bytes."""
    code, _ = loop()
    for column in range(0, 64, 8):
        place = element_index(code, LOCAL_BUFFER, LINE * 64 + column)
        places = [int(place.evaluate({"l": line})) for line in range(8)]
        assert len({p % 64 // 8 for p in places}) == 8
        assert all(p // 64 == line and p % 8 == 0 for line, p in enumerate(places))


@pytest.mark.parametrize("columns", [3, 8, 16, 40, 100, 128])
def test_float16_lines_of_any_length_are_padded_or_swizzled(columns: int) -> None:
    local = LocalBuffer.of((16, columns), f32, f16, "local")
    chunks = local.pitch // 8
    assert local.pitch >= columns
    assert chunks % 2 == 1 or chunks % 8 == 0  # padded, or swizzled


@pytest.mark.parametrize(("lines", "squares"), [(8, [5]), (4, [2, 3])])
def test_swizzled_float32_squares_have_no_bank_conflicts(lines: int, squares: list[int]) -> None:
    """Eight lines of one square of 16 bytes, and four lines of two squares, are read at once."""
    local, at = LocalBuffer.of((32, 64), f32, f32, "local"), Var("at", 0, 32 * 64 - 1)
    cells = [int(local.cell(at).evaluate({"at": i})) for i in range(local.size)]
    assert sorted(cells) == list(range(local.size))
    read = [cells[(16 + n) * 64 + s * 4] for n in range(lines) for s in squares]
    assert sorted(cell // 4 % 8 for cell in read) == list(range(8))
