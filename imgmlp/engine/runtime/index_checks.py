"""Under DEBUG: whether a step's computed indices are rows of the tables that they gather from.

A program of its own finds the least and the greatest index of each GATHER from the state that the
step is about to read. It takes row 0 for wrong ones, so it touches nothing that is not there. What
is gathered inside of a loop or a choice is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgmlp.engine.ir.dtype import i32
from imgmlp.engine.ir.graph import (
    Buffer,
    Node,
    alu,
    cast,
    const,
    gather,
    kind_of,
    rebuild,
    reduce,
    toposort,
)
from imgmlp.engine.ir.kernel import Update
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse

Check = tuple[Node, Buffer, Buffer]  # a GATHER, its greatest index, and ~ of its least


def index_checks(updates: Sequence[Update]) -> list[tuple[Check, list[Update]]]:
    """What to look at after which updates of other Buffers; nothing where nothing is gathered."""
    safe: dict[Node, Node] = {}
    found: list[tuple[Check, list[Update]]] = []
    for node in toposort([value for _, value in updates]):
        if node.op is not Op.GATHER:
            safe[node] = rebuild(node, tuple(safe[s] for s in node.src))
            continue
        table, index = (safe[s] for s in node.src)
        index = cast(index, i32)
        flipped = alu(Op.XOR, index, const(-1, i32, index.shape))
        ends = [reduce(Op.REDUCE_MAX, n, range(len(n.shape))) for n in (index, flipped)]
        kept = [Buffer((), i32, name=name) for name in ("greatest", "least")]
        found.append(((node, kept[0], kept[1]), list(zip(kept, ends, strict=True))))
        zero = const(0, i32, index.shape)
        inside = alu(Op.AND, zero < index + 1, index < const(table.shape[0], i32, index.shape))
        safe[node] = gather(table, alu(Op.WHERE, inside, index, zero))
    return found


def refuse(node: Node, greatest: int, flipped: int) -> None:
    """Raise OutOfBoundsError if an index of a GATHER is none of its table's rows."""
    table, least = node.src[0], -1 - flipped
    if least < 0 or greatest >= table.shape[0]:
        wrong = least if least < 0 else greatest
        raise misuse(
            OutOfBoundsError,
            f"gather: a computed index is {wrong}, of a table {kind_of(table)} with rows 0 to "
            f"{table.shape[0] - 1}",
        )
