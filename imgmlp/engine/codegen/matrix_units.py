"""OpenCL C for matrix units: local memory of factors, and calls of kernels/product_matrix.cl."""

from __future__ import annotations

from collections.abc import Iterator

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


def product_calls(code: Code, u: UOp) -> Iterator[str]:
    """A product whose factors are in local memory, pass through it, or are read where they are."""
    p: Product = u.arg
    rows, columns = tile_size(p.tile_rows, p.rows_left), tile_size(p.tile_columns, p.columns_left)
    sides = (
        (
            p.left_offset,
            p.left_row_stride,
            p.left_term_stride,
            p.is_left_aligned,
            max(16, p.tile_rows),
            rows,
        ),
        (
            p.right_offset,
            p.right_column_stride,
            p.right_term_stride,
            p.is_right_aligned,
            p.tile_columns,
            columns,
        ),
    )
    sliced = _sliced_sides(code)
    staged, factors = [], []
    for name, data, side in zip(FACTOR_SIDES, u.src, sides, strict=False):
        begin, step, inner, aligned, width, count = side
        first, source = begin.render("/"), code.uops[data]
        along = int(inner == 1)
        if source.op is U.LOCAL_BUFFER:
            along = int(inner == 1 or (inner == 0 and step != 1))  # an axis of one element has 0
            place = f"{first} + first * {inner}, {source.arg.pitch}"
            factors.append(f"near((uint)(size_t)data{data}, {place}, {along})")
        elif name in sliced:
            place = f"0, DEPTH, {along}" if along else f"0, TILE, {along}"
            factors.append(f"near((uint)(size_t){name}_slice, {place})")
            begin_at = f"data{data} + {first} + first * {inner}, {step}, {inner}, {int(aligned)}"
            sizes = f"{count}, {p.terms} - first"
            staged.append(f"load_slice({name}_slice, {width}, {begin_at}, {sizes});")
        else:
            factors.append(f"far(data{data} + {first} + first * {inner}, {step}, {inner})")
    wait = ["barrier(CLK_LOCAL_MEM_FENCE);"] if staged else []
    sums = f"v{u.src[2]}, v{u.src[2]}_sums, {int(p.has_column_sums)}"
    depth = f"min(DEPTH, {p.terms} - first)" if p.terms % SLICE_TERMS_MULTIPLE else "DEPTH"
    sizes = f"{rows}, {columns}, {depth}"
    yield "#pragma unroll 1"
    yield f"for (int first = 0; first < {p.terms}; first += DEPTH) {{"
    yield from (*wait, *staged, *wait)
    yield f"tile_product_{p.name}({sums}, {', '.join(factors)}, {sizes});"
    yield "}"


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
