"""Which instructions run on neighbouring columns of a product's tile at once, 8 or 16.

Compilers are good at loops over arrays in memory; a tile that is to stay in registers needs
vectors that are written as such. That is done where a tile's columns meet nothing but plain
arithmetic on float32 or int32 and neighbours in memory; anything else goes column by column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from imgmlp.engine.ir.dtype import bool_, f32, i32
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import ONE, Expr, Var
from imgmlp.engine.ir.target import NARROW
from imgmlp.engine.ir.uops import Code, Product, Range, U, UOp

ARITHMETIC = {Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.NEG, Op.MULACC, Op.MAX, Op.LT, Op.EXP2}
LOGIC = {Op.AND, Op.OR, Op.XOR}
WHOLE = {Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.MAX, Op.LT, Op.EQ, Op.SHL, Op.SHR} | LOGIC
NUMBERS = {f32, i32}
CHEAP = {Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.MULACC, Op.MAX, Op.LT, Op.WHERE}
PLACED = {U.CONST, U.LOAD, U.STORE}  # with these they may be in a loop over elements apart


def in_vectors(code: Code) -> tuple[dict[int, int], dict[int, int]]:
    """RANGEs over columns that can take several at once, and the values in them that are vectors;
    each with how many columns that are."""
    ranges: dict[int, int] = {}
    vectors: dict[int, int] = {}
    for begin, end in _columns(code):
        found = _vectors(code, begin, end)
        if found is not None:
            ranges[begin] = _width(code, begin, end)
            vectors |= dict.fromkeys(found, ranges[begin])
    return ranges, vectors


def _width(code: Code, begin: int, end: int) -> int:
    """The columns that a tile's product takes at once."""
    element = next(u for u in code.uops[begin:end] if u.op is U.ELEMENT)
    tile: Product = code.uops[element.src[0]].arg
    return tile.vector


def _columns(code: Code) -> Iterator[tuple[int, int]]:
    """RANGEs over all columns of a tile in registers, each with its END."""
    for i, u in enumerate(code.uops):
        if u.op is U.RANGE and u.arg.kind == "column" and u.arg.limit is None:
            ends = (j for j in range(i + 1, len(code.uops)) if code.uops[j].op in (U.END, U.RANGE))
            end = next(ends)
            if code.uops[end].op is U.END:
                yield i, end


def _vectors(code: Code, begin: int, end: int) -> set[int] | None:
    """The vectors among the instructions of a loop; None if it needs one that has none."""
    loop: Range = code.uops[begin].arg
    column = Var(loop.name, 0, loop.count - 1)
    stores = [u for u in code.uops[begin:end] if u.op in (U.STORE, U.ADD)]
    written = {(u.src[0], u.arg) for u in stores}
    vectors: set[int] = set()
    for i in range(begin + 1, end):
        u = code.uops[i]
        if not fits(code, u, column, vectors, written) or (u.op is U.LOAD and len(u.src) > 1):
            return None
        follows = any(s in vectors for s in u.src)
        along = u.op is U.LOAD and column in u.arg[0].variables()
        if u.op is U.ELEMENT or along or (u.op is U.ALU and follows):
            vectors.add(i)
    return vectors


def fits(
    code: Code, u: UOp, column: Var, vectors: set[int],
    written: Collection[tuple[int, Expr]] = (), steps: Collection[int] = (0, 1),
) -> bool:  # fmt: skip
    """Whether an instruction has a form for vectors, or stays the same for all columns; what it
    loads for neighbours may be so many `steps` apart."""
    if u.op is U.ELEMENT:
        tile: Product = code.uops[u.src[0]].arg
        return tile.registers and tile.vector % NARROW == 0
    if u.op is U.LOAD:
        offset, valid = u.arg
        plain = u.dtype in NUMBERS and valid is ONE
        other = any(data == u.src[0] and place is not offset for data, place in written)
        return plain and step(offset, column) in steps and not other
    if u.op in (U.STORE, U.ADD):
        plain = code.uops[u.src[0]].dtype in NUMBERS and len(u.src) == 2
        return plain and step(u.arg, column) == 1
    if u.op is not U.ALU:
        return u.op is U.CONST
    operands = [code.uops[s].dtype for s in u.src]
    if u.arg is Op.WHERE:
        return u.dtype in NUMBERS
    if u.arg in LOGIC and u.dtype is bool_:
        return all(s in vectors for s in u.src)
    if u.arg is Op.CAST:
        return u.dtype in NUMBERS and operands[0] in NUMBERS
    if all(kind is i32 for kind in operands):
        return u.arg in WHOLE
    return u.arg in ARITHMETIC and all(kind is f32 for kind in operands)


def step(offset: Expr, column: Var) -> int | None:
    """How far apart in memory neighbouring columns are, if that is at most 2."""
    for n in range(3):
        if column not in (offset - column * n).variables():
            return n
    return None


def apart(code: Code, begin: int) -> bool:
    """Whether a loop of cheap arithmetic reads and writes nothing but elements that are far apart,
    so that vectors of them would be put together and taken apart one by one."""
    loop: Range = code.uops[begin].arg
    end = next(j for j in range(begin + 1, len(code.uops)) if code.uops[j].op in (U.END, U.RANGE))
    inside = code.uops[begin + 1 : end]
    if loop.kind != "loop" or code.uops[end].op is not U.END:
        return False
    if not all(u.op in PLACED or (u.op is U.ALU and u.arg in CHEAP) for u in inside):
        return False
    column = Var(loop.name, 0, loop.count - 1)
    places = [u.arg[0] if u.op is U.LOAD else u.arg for u in inside if u.op in (U.LOAD, U.STORE)]
    return bool(places) and all(step(place, column) is None for place in places)


def around_registers(code: Code) -> set[int]:
    """RANGEs around products in registers, to count in 64 bits.

    Of many loops LLVM needs long to see that 32 bits do not overflow.
    """
    opened: list[int] = []
    found: set[int] = set()
    for i, u in enumerate(code.uops):
        if u.op is U.RANGE:
            opened.append(i)
        elif u.op is U.END:
            opened.pop()
        elif u.op is U.PRODUCT and u.arg.registers:
            found.update(opened)
    return found


def products_in_sums(code: Code) -> set[int]:
    """Products of float32 that nothing but one sum or difference reads: its terms, or what is
    added to accumulators.

    Compilers make one instruction of them where they stand in one expression, and only there. Not
    of the difference of two, of which just one would be rounded: a * b - b * a would not be 0.
    """
    users: dict[int, list[UOp]] = {}
    for u in code.uops:
        for s in u.src:
            users.setdefault(s, []).append(u)
    products = (i for i, u in enumerate(code.uops) if (u.op, u.arg) == (U.ALU, Op.MUL))
    found: set[int] = set()
    for i in products:
        alone = len(users.get(i, ())) == 1 and code.uops[i].dtype is f32
        if alone and _adds(code, users[i][0]):
            found.add(i)
    return found


def _adds(code: Code, u: UOp) -> bool:
    if u.op is U.ACCUMULATE:
        return u.arg[0] is Op.SUM
    return u.op is U.ALU and u.arg in (Op.ADD, Op.SUB) and not subtracts_products(code, u)


def subtracts_products(code: Code, u: UOp) -> bool:
    """Whether an instruction is the difference of two products of float32."""
    if (u.op, u.arg, u.dtype) != (U.ALU, Op.SUB, f32):
        return False
    return all((code.uops[s].op, code.uops[s].arg) == (U.ALU, Op.MUL) for s in u.src)
