"""Lowering of sums of padded values on a CPU: each term is added only where it is not zero.

The gradient of several slices is a sum of terms that are zero in most of a row. Computed element by
element, each element would test the bounds of every term. Instead a whole row of the sum is formed
in a private array before the loop over columns: each term is added where it lies, and its bounds
are tested once for each row.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgmlp.engine.ir.conditions import all_of, at_least, less
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, Op
from imgmlp.engine.ir.symbolic import ONE, Expr
from imgmlp.engine.ir.uops import Range, U
from imgmlp.engine.lowering.expressions import Lowering

MAX_FILLED_FRACTION = 0.5  # of a row, by a term
MAX_ROW_ELEMENTS = 1 << 13  # of a row in a private array
# Of all such rows of a kernel: they lie on a thread's stack, which may be as small as 512 KiB.
MAX_STACK_ELEMENTS = 1 << 15
MAX_TERMS = 256  # of a sum; shared sums of sums may have any number when written out


class ScatteredSums:
    """The sums of padded values in a kernel; a loop over columns reads their elements from rows."""

    def __init__(self, lower: Lowering, values: Sequence[Node], rows: Sequence[Expr]) -> None:
        """Form the rows. `values` are those of a kernel's stores; `rows` are a row's indices."""
        self.lower, shape = lower, values[0].shape
        nodes = (
            _sums(values) if shape[-1] <= MAX_ROW_ELEMENTS and len(rows) == len(shape) - 1 else []
        )
        nodes = nodes[: MAX_STACK_ELEMENTS // max(shape[-1], 1)]
        self._kept = [(node, self._row(node, rows)) for node in nodes]

    def at(self, indices: Sequence[Expr]) -> None:
        """Have the elements of the sums at these indices read from their rows."""
        lower, column = self.lower, indices[-1]
        for node, kept in self._kept:
            element = lower.build.emit(U.GET, node.dtype, (kept,), column, [column])
            lower.memo[node, tuple(indices), ONE] = element

    def _row(self, node: Node, rows: Sequence[Expr]) -> int:
        build, dtype = self.lower.build, node.dtype
        kept = build.effect(U.ACC, (), (node.shape[-1], 0), dtype)
        for term in _terms(node):
            *outer, (before, _) = term.arg
            inside = [
                all_of(at_least(index, first), less(index, size - last))
                for index, (first, last), size in zip(rows, outer, term.shape, strict=False)
            ]
            build.open(Range("x", 1, "loop", all_of(*inside)), keeps_loads=True)
            column = before + build.open(Range("p", term.src[0].shape[-1]))
            value = self.lower.value(term, [*rows, column])
            so_far = build.effect(U.GET, (kept,), column, dtype)  # the sum of earlier terms
            value = build.emit(U.ALU, dtype, (so_far, value), Op.ADD)
            build.effect(U.SET, (kept, value), column, dtype)
            build.close(2)
        return kept


def _sums(values: Sequence[Node]) -> list[Node]:
    """The outermost sums of padded terms in some values."""
    sums: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = list(values)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op is Op.ADD and node.shape == values[0].shape and _is_scattered(node):
            sums[node] = None
        elif node.op in ELEMENTWISE or node.op in MOVEMENT:
            stack += node.src
    return list(sums)


def _is_scattered(node: Node) -> bool:
    terms = _terms(node)
    return len(terms) <= MAX_TERMS and all(_is_mostly_zero(term) for term in terms)


def _terms(node: Node) -> list[Node]:
    """Of a sum of sums, in the order in which they are added, up to MAX_TERMS + 1."""
    terms, stack = list[Node](), [node]
    while stack and len(terms) <= MAX_TERMS:
        node = stack.pop()
        if node.op is Op.ADD:
            stack += reversed(node.src)
        else:
            terms.append(node)
    return terms


def _is_mostly_zero(node: Node) -> bool:
    """Whether a value is zero in most columns."""
    return node.op is Op.PAD and node.src[0].shape[-1] <= MAX_FILLED_FRACTION * node.shape[-1]
