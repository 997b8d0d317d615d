"""Which terms of a processor's sums are added up several at a time, 8 or 16.

A compiler that finds vectors by itself does so in most loops over neighbours that are written out,
and leaves others as they are, element by element: where it does not see that two places are
neighbours, or where they are every other one. So they are written as vectors here, under the
conditions of register_vectors.py. Fewer than 8 terms, which follow those, go one by one.

So are sums for neighbouring outputs, each of which has its own place in a vector. Written out as
single elements they take nine times as long to compile.
"""

from __future__ import annotations

from collections.abc import Iterator

from imgmlp.engine.codegen.register_vectors import fits, step
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Var
from imgmlp.engine.ir.target import NARROW
from imgmlp.engine.ir.uops import Code, Range, U

EVERY_OTHER = 2  # so far apart in memory are neighbouring terms that two loads bring


def sums_in_vectors(code: Code, widest: int) -> tuple[set[int], dict[int, int], dict[int, int]]:
    """Accumulators that are vectors, the RANGEs that add to them with how many terms they take at
    once, and the values in these that are vectors, each with how many elements."""
    sums: set[int] = set()
    ranges: dict[int, int] = {}
    vectors: dict[int, int] = {}
    for acc, u in enumerate(code.uops):
        if u.op is U.ACC and u.dtype is f32 and u.arg[0] % widest == 0 and u.arg[1] == 0:
            found = _added(code, acc, widest)
            if found is not None:
                sums.add(acc)
                for begin, width, values in found:
                    ranges[begin] = width
                    vectors |= dict.fromkeys(values, width)
    return sums, ranges, vectors


def outputs_in_vectors(code: Code, widest: int) -> tuple[set[int], dict[int, int], dict[int, int]]:
    """The same of accumulators that are neighbouring outputs, to all of which a loop adds a term
    each."""
    sums: set[int] = set()
    ranges: dict[int, int] = {}
    vectors: dict[int, int] = {}
    for acc, u in enumerate(code.uops):
        if u.op is U.ACC and u.dtype is f32 and u.arg[0] % widest == 0 and u.arg[1] == 0:
            users = [i for i, user in enumerate(code.uops) if acc in user.src]
            adding = [i for i in users if code.uops[i].op is U.ACCUMULATE]
            if {code.uops[i].op for i in users} != {U.ACCUMULATE, U.LANE}:
                continue
            loops = list(_loops(code, adding))
            found = [_vectors(code, *loop, acc) for loop in loops if _is_over(code, loop[0], acc)]
            if len(found) == len(adding) and None not in found:
                sums.add(acc)
                ranges |= {begin: widest for begin, _ in loops}
                vectors |= {value: widest for values in found for value in values or ()}
    return sums, ranges, vectors


def _is_over(code: Code, begin: int, acc: int) -> bool:
    """Whether a loop goes over all of an accumulator's places."""
    loop: Range = code.uops[begin].arg
    return loop.kind == "vector" and loop.limit is None and loop.count == code.uops[acc].arg[0]


def _added(code: Code, acc: int, widest: int) -> list[tuple[int, int, set[int]]] | None:
    """The loops that add to accumulators, how many terms they take at once, and their vectors."""
    users = [i for i, u in enumerate(code.uops) if acc in u.src]
    if {code.uops[i].op for i in users} != {U.ACCUMULATE, U.COMBINE}:
        return None
    found = []
    for begin, end in _loops(code, [i for i in users if code.uops[i].op is U.ACCUMULATE]):
        loop: Range = code.uops[begin].arg
        width = widest if loop.count % widest == 0 else NARROW if loop.count == NARROW else 1
        if loop.kind != "vector" or loop.limit is not None or width == 1 < loop.count // NARROW:
            return None
        values = _vectors(code, begin, end, acc)
        if values is None:
            return None
        found.append((begin, width, values if width > 1 else set[int]()))
    return found if any(width > 1 for _, width, _ in found) else None


def _loops(code: Code, places: list[int]) -> Iterator[tuple[int, int]]:
    """The innermost loop around each of some instructions, and its END."""
    for place in places:
        begin = next(i for i in range(place, -1, -1) if code.uops[i].op in (U.RANGE, U.END))
        end = next(i for i in range(place, len(code.uops)) if code.uops[i].op is U.END)
        if code.uops[begin].op is U.RANGE:
            yield begin, end


def _vectors(code: Code, begin: int, end: int, acc: int) -> set[int] | None:
    """The vectors among the instructions of such a loop; None if it needs one that has none."""
    loop: Range = code.uops[begin].arg
    term = Var(loop.name, 0, loop.count - 1)
    vectors: set[int] = set()
    for i in range(begin + 1, end):
        u = code.uops[i]
        if u.op is U.ACCUMULATE:
            if u.arg != (Op.SUM, term) or u.src[0] != acc:
                return None
            continue
        outside = all(s < begin for s in u.src[1:]) if u.op is U.LOAD else True
        if not outside or not fits(code, u, term, vectors, steps=(0, 1, EVERY_OTHER)):
            return None
        along = u.op is U.LOAD and step(u.arg[0], term) != 0
        if along or (u.op is U.ALU and any(s in vectors for s in u.src)):
            vectors.add(i)
    return vectors
