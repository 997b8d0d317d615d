"""OpenCL C for matrix units: local memory of factors, and calls of kernels/product_matrix.cl."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from imgmlp.engine.ir.dtype import DType, f32
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.symbolic import Const, Expr
from imgmlp.engine.ir.target import FACTOR_SLICE_BYTES, LOCAL_MEMORY_BYTES
from imgmlp.engine.ir.uops import Code, Product, U, UOp

FACTOR_SIDES = ("left", "right")
# Products of a multiple of so many terms consist of whole slices: DEPTH in the kernel divides it.
SLICE_TERMS_MULTIPLE = 64


def tile_size(size: int, left: Expr | None) -> str:
    """The number of rows or columns of a tile: `size`, or what is `left` if that is less."""
    if left is None or isinstance(left, Const):
        return str(size if left is None else min(size, left.value))
    return f"({left.render('/')} < {size} ? {left.render('/')} : {size})"


def element_index(code: Code, data: int, offset: Expr) -> Expr:
    """The index of the element at an offset in a GLOBAL or LOCAL_BUFFER, which may be swizzled."""
    storage = code.uops[data].arg
    return storage.cell(offset) if isinstance(storage, LocalBuffer) else offset


def local_buffer_declarations(code: Code) -> Iterator[str]:
    """Declarations of a kernel's local buffers."""
    for i, u in enumerate(code.uops):
        if u.op is U.LOCAL_BUFFER and u.dtype is not None:
            yield from _local_declarations(f"data{i}", u.dtype.cl, u.arg.cells)


def slice_declarations(code: Code, stored: DType) -> Iterator[str]:
    """Declarations of the slices of factors that pass through local memory, and of column sums."""
    for name in _sliced_sides(code):
        yield from _local_declarations(
            f"{name}_slice", stored.cl, FACTOR_SLICE_BYTES // stored.itemsize
        )
    if any(u.op is U.COLUMN_SUMS for u in code.uops):
        yield "__local float columns[LANES];"


def _local_declarations(name: str, kind: str, size: int) -> Iterator[str]:
    """An array in local memory. Halves are declared as ushort: without an extension OpenCL C has
    pointers to half, but no variables."""
    memory = f"{'ushort' if kind == 'half' else kind} {name}_memory[{size}]"
    yield f"__local {memory} __attribute__((aligned(16)));"
    yield f"__local {kind} *const {name} = (__local {kind} *){name}_memory;"


class _FactorCall(NamedTuple):
    """One factor of a product: its argument, and the call that copies a slice of it if needed."""

    argument: str
    load_slice: str | None = None


def product_calls(code: Code, u: UOp) -> Iterator[str]:
    """A product whose factors are in local memory, pass through it, or are read where they are."""
    p: Product = u.arg
    rows, columns = tile_size(p.tile_rows, p.rows_left), tile_size(p.tile_columns, p.columns_left)
    left = _factor_call(
        code, u, 0, p.left_offset, p.left_row_stride, p.left_term_stride,
        max(16, p.tile_rows), int(p.is_left_aligned), rows,
    )  # fmt: skip
    right = _factor_call(
        code, u, 1, p.right_offset, p.right_column_stride, p.right_term_stride,
        p.tile_columns, int(p.is_right_aligned), columns,
    )  # fmt: skip
    loads = [factor.load_slice for factor in (left, right) if factor.load_slice is not None]
    wait = ["barrier(CLK_LOCAL_MEM_FENCE);"] if loads else []
    sums = f"v{u.src[2]}, v{u.src[2]}_sums, {int(p.has_column_sums)}"
    depth = f"min(DEPTH, {p.terms} - first)" if p.terms % SLICE_TERMS_MULTIPLE else "DEPTH"
    factors = f"{left.argument}, {right.argument}"
    yield "#pragma unroll 1"
    yield f"for (int first = 0; first < {p.terms}; first += DEPTH) {{"
    yield from (*wait, *loads, *wait)
    yield f"tile_product_{p.name}({sums}, {factors}, {rows}, {columns}, {depth});"
    yield "}"


def _factor_call(
    code: Code,
    u: UOp,
    side: int,
    offset: Expr,
    stride: int,
    term_stride: int,
    width: int,
    is_aligned: int,
    count: str,
) -> _FactorCall:
    """The left (side 0) or right (1) factor of a product, from term `first` on.

    It has `width` rows (or columns) in the tile, of which `count` exist; `stride` leads from one to
    the next.
    """
    data, name, p = u.src[side], FACTOR_SIDES[side], u.arg
    begin, source = offset.render("/"), code.uops[data]
    along = int(term_stride == 1)
    if source.op is U.LOCAL_BUFFER:
        along = int(term_stride == 1 or (term_stride == 0 and stride != 1))  # 0: of one element
        place = f"{begin} + first * {term_stride}, {source.arg.pitch}"
        return _FactorCall(f"local_factor((uint)(size_t)data{data}, {place}, {along})")
    address = f"data{data} + {begin} + first * {term_stride}, {stride}, {term_stride}"
    if name not in _sliced_sides(code):
        return _FactorCall(f"global_factor({address})")
    place = f"0, {'DEPTH' if along else 'TILE'}, {along}"
    sizes = f"{is_aligned}, {count}, {p.terms} - first"
    return _FactorCall(
        f"local_factor((uint)(size_t){name}_slice, {place})",
        f"load_slice({name}_slice, {width}, {address}, {sizes});",
    )


def _sliced_sides(code: Code) -> list[str]:
    """The sides whose factors pass through local memory slice by slice, if it has room.

    In float32, groups with several tiles read matrices where they are, as the cache holds them.
    """
    products = [u for u in code.uops if u.op is U.PRODUCT]
    wanted = [
        name
        for side, name in enumerate(FACTOR_SIDES)
        if any(code.uops[u.src[side]].op is U.GLOBAL for u in products)
    ]
    lefts = [code.uops[u.src[0]] for u in products]
    near = all(left.op is U.LOCAL_BUFFER and left.dtype is f32 for left in lefts)
    if near and _has_several_tiles(code):
        return []
    taken = sum(u.arg.local_bytes for u in code.uops if u.op is U.LOCAL_BUFFER)
    return wanted if taken + FACTOR_SLICE_BYTES * len(wanted) <= LOCAL_MEMORY_BYTES else []


def _has_several_tiles(code: Code) -> bool:
    """Whether this is a block whose groups have more than one tile."""
    loops = {u.arg.name: u.arg.count for u in code.uops if u.op is U.RANGE}
    return "tile" in loops and loops["tile"] > loops["group"]
