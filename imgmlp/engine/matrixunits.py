"""OpenCL C around kernels/product_half.cl: local memory, elements of it, and calls of products."""

from __future__ import annotations

from collections.abc import Iterator

from imgmlp.engine.local import CHUNK, LocalRoom
from imgmlp.engine.symbolic import Const, Expr
from imgmlp.engine.uops import Code, Product, U, UOp

SIDES = ("left", "right")


def at_most(size: int, left: Expr | None) -> str:
    """How many rows or columns a tile has, of `size` if it is not the last one."""
    if left is None or isinstance(left, Const):
        return str(size if left is None else min(size, left.value))
    return f"({left.render('/')} < {size} ? {left.render('/')} : {size})"


def element(code: Code, data: int, offset: Expr) -> Expr:
    """The index of an element in a GLOBAL or a ROOM. Those of one chunk stay neighbours."""
    room = code.uops[data].arg
    if not isinstance(room, LocalRoom) or not room.pitch or room.pitch % 64:
        return offset
    line, column = offset // room.pitch, offset % room.pitch
    return line * room.pitch + (column ^ line % CHUNK * CHUNK)


def rooms(code: Code) -> Iterator[str]:
    """Declarations of the local memory of a kernel's ROOMs."""
    for i, u in enumerate(code.uops):
        if u.op is U.ROOM and u.dtype is not None:
            beyond = CHUNK if u.arg.pitch else 0  # what may be read beside the last line
            yield from _declared(f"data{i}", u.dtype.cl, u.arg.size + beyond)


def slices(code: Code) -> Iterator[str]:
    """Those of factors that pass through it, and of column sums that lanes exchange."""
    products = [u for u in code.uops if u.op is U.PRODUCT]
    for side, name in enumerate(SIDES):
        if any(code.uops[u.src[side]].op is U.GLOBAL for u in products):
            yield from _declared(f"{name}_slice", "half", "TILE * SLICE_PITCH")
    if any(u.op is U.COLUMNS for u in code.uops):
        yield "__local float columns[LANES];"


def _declared(name: str, kind: str, size: int | str) -> Iterator[str]:
    """Without an extension there are pointers to half only, no variables."""
    memory = f"{'ushort' if kind == 'half' else kind} {name}_memory[{size}]"
    yield f"__local {memory} __attribute__((aligned(16)));"
    yield f"__local {kind} *const {name} = (__local {kind} *){name}_memory;"


def product(code: Code, u: UOp) -> Iterator[str]:
    """A product of what is in local memory, or comes there slice by slice."""
    p: Product = u.arg
    rows, columns = at_most(p.tile_rows, p.rows), at_most(p.tile_columns, p.columns)
    sides = (
        (p.left, p.left_row, p.left_inner, p.left_aligned, max(16, p.tile_rows), rows),
        (p.right, p.right_column, p.right_inner, p.right_aligned, p.tile_columns, columns),
    )
    staged, factors = [], []
    for name, data, side in zip(SIDES, u.src, sides, strict=False):
        begin, step, inner, aligned, width, count = side
        first, room = begin.render("/"), code.uops[data]
        along = int(inner == 1 or (inner == 0 and step != 1))  # one element's stride is 0
        if room.op is U.ROOM:
            place = f"{first} + first * {inner}, {room.arg.pitch}"
            factors.append(f"(uint)(size_t)data{data}, {place}, {along}")
            continue
        factors.append(f"(uint)(size_t){name}_slice, 0, SLICE_PITCH, {along}")
        source = f"data{data} + {first}, {step}, {inner}, {int(aligned)}"
        staged.append(f"load_slice({name}_slice, {width}, {source}, {count}, first, {p.inner});")
    wait = ["barrier(CLK_LOCAL_MEM_FENCE);"] if staged else []
    sums = f"v{u.src[2]}, v{u.src[2]}_sums, {int(p.summed)}"
    sizes = f"{rows}, {columns}, filled({p.inner}, first)"
    yield f"for (int first = 0; first < {p.inner}; first += DEPTH) {{"
    yield from (*wait, *staged, *wait)
    yield f"tile_product_{p.name}({sums}, {', '.join(factors)}, {sizes});"
    yield "}"
