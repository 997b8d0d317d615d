"""Vectorisation of sums on a CPU: 8 or 16 terms, or outputs, at once.

In: the Code of a kernel. Out: the accumulators that are vectors, the loops that add to them, and
the values in these that are vectors.

A driver's compiler vectorises most unrolled loops over neighbours by itself. It misses those where
it does not see that two places are neighbours, or where they are every other element. So sums are
written as vectors, under the conditions of register_vectors.py. A remainder of fewer than 8 terms
is added term by term. Sums of neighbouring outputs are vectors as well, with an output in each
element; written as single elements they take nine times as long to compile.
"""

from __future__ import annotations

from collections.abc import Iterator

from imgmlp.engine.codegen.register_vectors import can_vectorise, memory_stride
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Var
from imgmlp.engine.ir.target import MIN_VECTOR_WIDTH
from imgmlp.engine.ir.uops import Code, Range, U

EVERY_OTHER = 2  # the stride of terms of which two vector loads bring one vector


def vectorise_sums(code: Code, widest: int) -> tuple[set[int], dict[int, int], dict[int, int]]:
    """Accumulators that are vectors of terms; RANGEs that add to them, with their terms at once;
    and the values that are vectors, with their widths. All are numbers of UOps."""
    sums: set[int] = set()
    ranges: dict[int, int] = {}
    vectors: dict[int, int] = {}
    for acc, u in enumerate(code.uops):
        if u.op is U.ACC and u.dtype is f32 and u.arg[0] % widest == 0 and u.arg[1] == 0:
            loops = _adding_loops(code, acc, widest)
            if loops is not None:
                sums.add(acc)
                for begin, width, values in loops:
                    ranges[begin] = width
                    vectors |= dict.fromkeys(values, width)
    return sums, ranges, vectors


def vectorise_outputs(code: Code, widest: int) -> tuple[set[int], dict[int, int], dict[int, int]]:
    """The same for accumulators of neighbouring outputs, to each of which a loop adds a term."""
    sums: set[int] = set()
    ranges: dict[int, int] = {}
    vectors: dict[int, int] = {}
    for acc, u in enumerate(code.uops):
        if u.op is U.ACC and u.dtype is f32 and u.arg[0] % widest == 0 and u.arg[1] == 0:
            users = [i for i, user in enumerate(code.uops) if acc in user.src]
            adding = [i for i in users if code.uops[i].op is U.ACCUMULATE]
            if {code.uops[i].op for i in users} != {U.ACCUMULATE, U.GET}:
                continue
            loops = list(_innermost_loops(code, adding))
            vectors_of_loops = [
                _vector_values(code, *loop, acc)
                for loop in loops
                if _covers_accumulators(code, loop[0], acc)
            ]
            if len(vectors_of_loops) == len(adding) and None not in vectors_of_loops:
                sums.add(acc)
                ranges |= {begin: widest for begin, _ in loops}
                vectors |= {value: widest for values in vectors_of_loops for value in values or ()}
    return sums, ranges, vectors


def _covers_accumulators(code: Code, begin: int, acc: int) -> bool:
    """Whether a loop goes over all elements of an ACC."""
    loop: Range = code.uops[begin].arg
    return loop.kind == "vector" and loop.limit is None and loop.count == code.uops[acc].arg[0]


def _adding_loops(code: Code, acc: int, widest: int) -> list[tuple[int, int, set[int]]] | None:
    """(RANGE, terms at once, vectors in it) of the loops that add to an ACC; None if one cannot."""
    users = [i for i, u in enumerate(code.uops) if acc in u.src]
    if {code.uops[i].op for i in users} != {U.ACCUMULATE, U.COMBINE}:
        return None
    loops = []
    for begin, end in _innermost_loops(code, [i for i in users if code.uops[i].op is U.ACCUMULATE]):
        loop: Range = code.uops[begin].arg
        width = (
            widest
            if loop.count % widest == 0
            else MIN_VECTOR_WIDTH
            if loop.count == MIN_VECTOR_WIDTH
            else 1
        )
        if (
            loop.kind != "vector"
            or loop.limit is not None
            or width == 1 < loop.count // MIN_VECTOR_WIDTH
        ):
            return None
        values = _vector_values(code, begin, end, acc)
        if values is None:
            return None
        loops.append((begin, width, values if width > 1 else set[int]()))
    return loops if any(width > 1 for _, width, _ in loops) else None


def _innermost_loops(code: Code, places: list[int]) -> Iterator[tuple[int, int]]:
    """The innermost RANGE around each of some UOps, and its END."""
    for place in places:
        begin = next(i for i in range(place, -1, -1) if code.uops[i].op in (U.RANGE, U.END))
        end = next(i for i in range(place, len(code.uops)) if code.uops[i].op is U.END)
        if code.uops[begin].op is U.RANGE:
            yield begin, end


def _vector_values(code: Code, begin: int, end: int, acc: int) -> set[int] | None:
    """The UOps of a loop whose values are vectors; None if one has no form for vectors."""
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
        if not outside or not can_vectorise(code, u, term, vectors, strides=(0, 1, EVERY_OTHER)):
            return None
        along = u.op is U.LOAD and memory_stride(u.arg[0], term) != 0
        if along or (u.op is U.ALU and any(s in vectors for s in u.src)):
            vectors.add(i)
    return vectors
