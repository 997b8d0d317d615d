"""Vectorisation of what is computed from a product's tile in registers: 8 or 16 columns at once.

In: the Code of a kernel for a CPU. Out: the loops over columns that are written as vectors, and the
values in them that are vectors.

Drivers' compilers vectorise loops over arrays in memory well. A tile that stays in registers must
be written as vectors. That is done where its columns meet only plain arithmetic on float32 or int32
and neighbours in memory; all else is written column by column. Results must not change by a bit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from imgmlp.engine.ir.dtype import bool_, f32, i32
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import ONE, Expr, Var
from imgmlp.engine.ir.target import MIN_VECTOR_WIDTH
from imgmlp.engine.ir.uops import Code, Product, Range, U, UOp

FLOAT_VECTOR_OPERATIONS = {
    Op.ADD,
    Op.SUB,
    Op.MUL,
    Op.DIV,
    Op.NEG,
    Op.MULACC,
    Op.MAX,
    Op.LT,
    Op.EXP2,
}
LOGIC_OPERATIONS = {Op.AND, Op.OR, Op.XOR}
INT_VECTOR_OPERATIONS = {
    Op.ADD,
    Op.SUB,
    Op.MUL,
    Op.NEG,
    Op.MAX,
    Op.LT,
    Op.EQ,
    Op.SHL,
    Op.SHR,
} | LOGIC_OPERATIONS
VECTOR_DTYPES = {f32, i32}
CHEAP_OPERATIONS = {Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.MULACC, Op.MAX, Op.LT, Op.WHERE}
SCALAR_LOOP_UOPS = {U.CONST, U.LOAD, U.STORE}  # what else a loop over scattered elements may have


def vectorise_columns(code: Code) -> tuple[dict[int, int], dict[int, int]]:
    """RANGEs over columns that take several at once, and the values that are vectors in them.

    Both are numbers of UOps, each with its number of columns.
    """
    ranges: dict[int, int] = {}
    vectors: dict[int, int] = {}
    for begin, end in _column_loops(code):
        values = _vector_values(code, begin, end)
        if values is not None:
            ranges[begin] = _tile_vector_width(code, begin, end)
            vectors |= dict.fromkeys(values, ranges[begin])
    return ranges, vectors


def _tile_vector_width(code: Code, begin: int, end: int) -> int:
    """The vector width of the tile whose columns a loop goes over."""
    element = next(u for u in code.uops[begin:end] if u.op is U.ELEMENT)
    tile: Product = code.uops[element.src[0]].arg
    return tile.vector_width


def _column_loops(code: Code) -> Iterator[tuple[int, int]]:
    """Innermost RANGEs over all columns of a tile, each with its END."""
    for i, u in enumerate(code.uops):
        if u.op is U.RANGE and u.arg.kind == "column" and u.arg.limit is None:
            ends = (j for j in range(i + 1, len(code.uops)) if code.uops[j].op in (U.END, U.RANGE))
            end = next(ends)
            if code.uops[end].op is U.END:
                yield i, end


def _vector_values(code: Code, begin: int, end: int) -> set[int] | None:
    """The UOps of a loop whose values are vectors; None if one has no form for vectors."""
    loop: Range = code.uops[begin].arg
    column = Var(loop.name, 0, loop.count - 1)
    stores = [u for u in code.uops[begin:end] if u.op in (U.STORE, U.STORE_ADD)]
    written = {(u.src[0], u.arg) for u in stores}
    vectors: set[int] = set()
    for i in range(begin + 1, end):
        u = code.uops[i]
        if not can_vectorise(code, u, column, vectors, written) or (
            u.op is U.LOAD and len(u.src) > 1
        ):
            return None
        follows = any(s in vectors for s in u.src)
        along = u.op is U.LOAD and column in u.arg[0].variables()
        if u.op is U.ELEMENT or along or (u.op is U.ALU and follows):
            vectors.add(i)
    return vectors


def can_vectorise(
    code: Code, u: UOp, column: Var, vectors: set[int],
    written: Collection[tuple[int, Expr]] = (), strides: Collection[int] = (0, 1),
) -> bool:  # fmt: skip
    """Whether a UOp has a form for vectors, or is the same for all columns.

    A load may have one of `strides`; `written` has (parameter, offset) of the loop's stores.
    """
    if u.op is U.ELEMENT:
        tile: Product = code.uops[u.src[0]].arg
        return tile.is_in_registers and tile.vector_width % MIN_VECTOR_WIDTH == 0
    if u.op is U.LOAD:
        offset, valid = u.arg
        plain = u.dtype in VECTOR_DTYPES and valid is ONE
        other = any(data == u.src[0] and place is not offset for data, place in written)
        return plain and memory_stride(offset, column) in strides and not other
    if u.op in (U.STORE, U.STORE_ADD):
        plain = code.uops[u.src[0]].dtype in VECTOR_DTYPES and len(u.src) == 2
        return plain and memory_stride(u.arg, column) == 1
    if u.op is not U.ALU:
        return u.op is U.CONST
    operands = [code.uops[s].dtype for s in u.src]
    if u.arg is Op.WHERE:
        return u.dtype in VECTOR_DTYPES
    if u.arg in LOGIC_OPERATIONS and u.dtype is bool_:
        return all(s in vectors for s in u.src)
    if u.arg is Op.CAST:
        return u.dtype in VECTOR_DTYPES and operands[0] in VECTOR_DTYPES
    if all(kind is i32 for kind in operands):
        return u.arg in INT_VECTOR_OPERATIONS
    return u.arg in FLOAT_VECTOR_OPERATIONS and all(kind is f32 for kind in operands)


def memory_stride(offset: Expr, column: Var) -> int | None:
    """The stride of an offset along columns if it is 0, 1 or 2, else None."""
    for n in range(3):
        if column not in (offset - column * n).variables():
            return n
    return None


def is_scattered_loop(code: Code, begin: int) -> bool:
    """Whether a loop of cheap arithmetic reads and writes only elements that are far apart.

    Vectors of them would have to be gathered and scattered element by element.
    """
    loop: Range = code.uops[begin].arg
    end = next(j for j in range(begin + 1, len(code.uops)) if code.uops[j].op in (U.END, U.RANGE))
    inside = code.uops[begin + 1 : end]
    if loop.kind != "loop" or code.uops[end].op is not U.END:
        return False
    if not all(
        u.op in SCALAR_LOOP_UOPS or (u.op is U.ALU and u.arg in CHEAP_OPERATIONS) for u in inside
    ):
        return False
    column = Var(loop.name, 0, loop.count - 1)
    places = [u.arg[0] if u.op is U.LOAD else u.arg for u in inside if u.op in (U.LOAD, U.STORE)]
    return bool(places) and all(memory_stride(place, column) is None for place in places)


def loops_around_register_products(code: Code) -> set[int]:
    """RANGEs around products in registers, whose counters have 64 bits.

    LLVM takes long to prove for many nested loops that a counter of 32 bits does not overflow.
    """
    opened: list[int] = []
    loops: set[int] = set()
    for i, u in enumerate(code.uops):
        if u.op is U.RANGE:
            opened.append(i)
        elif u.op is U.END:
            opened.pop()
        elif u.op is U.PRODUCT and u.arg.is_in_registers:
            loops.update(opened)
    return loops


def products_fused_into_sums(code: Code) -> set[int]:
    """float32 products that only one sum, difference or accumulation reads.

    Written as one expression with it, they become one multiply-add. The difference of two products
    is excluded: only one of them would be rounded, and a * b - b * a would not be 0.
    """
    users: dict[int, list[UOp]] = {}
    for u in code.uops:
        for s in u.src:
            users.setdefault(s, []).append(u)
    products = (i for i, u in enumerate(code.uops) if (u.op, u.arg) == (U.ALU, Op.MUL))
    fused: set[int] = set()
    for i in products:
        alone = len(users.get(i, ())) == 1 and code.uops[i].dtype is f32
        if alone and _is_sum_of_products(code, users[i][0]):
            fused.add(i)
    return fused


def _is_sum_of_products(code: Code, u: UOp) -> bool:
    if u.op is U.ACCUMULATE:
        return u.arg[0] is Op.SUM
    return u.op is U.ALU and u.arg in (Op.ADD, Op.SUB) and not is_difference_of_products(code, u)


def is_difference_of_products(code: Code, u: UOp) -> bool:
    """Whether a UOp is the difference of two float32 products."""
    if (u.op, u.arg, u.dtype) != (U.ALU, Op.SUB, f32):
        return False
    return all((code.uops[s].op, code.uops[s].arg) == (U.ALU, Op.MUL) for s in u.src)
