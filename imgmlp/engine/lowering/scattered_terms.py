"""Sums of values that each fill a part of a row and are zero elsewhere, on a CPU.

As gradients of slices are: of many places in a plane one for each slice. Element by element all
conditions of all terms would be asked everywhere. So a row of such a sum is made before the loop
over its columns: each term is added where it lies, and what is asked of it is asked once a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgmlp.engine.ir.conditions import at_least, conj, less
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, Op
from imgmlp.engine.ir.symbolic import ONE, Expr
from imgmlp.engine.ir.uops import Range, U
from imgmlp.engine.lowering.expressions import Lowering

FULL = 0.5  # share of a row that a term fills at most
LONGEST = 1 << 13  # elements of a row that is kept
MOST = 1 << 15  # of all rows of a kernel: they lie on a thread's stack, as little as 512 KiB
MANY = 256  # terms of a sum at most: sums of sums that are read more than once have any number


class Scattered:
    """Such sums of a kernel, each as a row of so many elements, which a loop over columns reads."""

    def __init__(self, lower: Lowering, values: Sequence[Node], rows: Sequence[Expr]) -> None:
        """`values` are a kernel's, of one shape; `rows` are the indices of a row."""
        self.lower, shape = lower, values[0].shape
        found = _sums(values) if shape[-1] <= LONGEST and len(rows) == len(shape) - 1 else []
        found = found[: MOST // max(shape[-1], 1)]
        self._kept = [(node, self._row(node, rows)) for node in found]

    def at(self, indices: Sequence[Expr]) -> None:
        """Have the sums' elements at these indices come from the rows."""
        lower, column = self.lower, indices[-1]
        for node, kept in self._kept:
            element = lower.build.emit(U.LANE, node.dtype, (kept,), column, [column])
            lower.memo[node, tuple(indices), ONE] = element

    def _row(self, node: Node, rows: Sequence[Expr]) -> int:
        build, dtype = self.lower.build, node.dtype
        kept = build.effect(U.ACC, (), (node.shape[-1], 0), dtype)
        for term in _terms(node):
            *outer, (before, _) = term.arg
            inside = [
                conj(at_least(index, first), less(index, size - last))
                for index, (first, last), size in zip(rows, outer, term.shape, strict=False)
            ]
            build.open(Range("x", 1, "loop", conj(*inside)), holds=True)
            column = before + build.open(Range("p", term.src[0].shape[-1]))
            value = self.lower.value(term, [*rows, column])
            so_far = build.effect(U.LANE, (kept,), column, dtype)  # which an earlier term changed
            value = build.emit(U.ALU, dtype, (so_far, value), Op.ADD)
            build.effect(U.KEEP, (kept, value), column, dtype)
            build.close(2)
        return kept


def _sums(values: Sequence[Node]) -> list[Node]:
    """The largest sums of two and more such terms that values of a kernel are made of."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(values)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is Op.ADD and node.shape == values[0].shape and _is_scattered(node):
            found[node] = None
        elif node.op in ELEMENTWISE or node.op in MOVEMENT:
            stack += node.src
    return list(found)


def _is_scattered(node: Node) -> bool:
    terms = _terms(node)
    return len(terms) <= MANY and all(_fills_little(term) for term in terms)


def _terms(node: Node) -> list[Node]:
    """Of a sum of sums, in the order in which they are added; of MANY not all."""
    found, stack = list[Node](), [node]
    while stack and len(found) <= MANY:
        node = stack.pop()
        if node.op is Op.ADD:
            stack += reversed(node.src)
        else:
            found.append(node)
    return found


def _fills_little(node: Node) -> bool:
    """Whether a value is zero in most columns."""
    return node.op is Op.PAD and node.src[0].shape[-1] <= FULL * node.shape[-1]
