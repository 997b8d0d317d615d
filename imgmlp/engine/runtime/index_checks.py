"""Whether a step's computed indices are rows of the tables that they gather from: under DEBUG, and
of what runs only once, by the user's own indices.

A program of its own finds the least and the greatest index of each GATHER from the state that the
step is about to read. It takes row 0 for wrong ones, so it touches nothing that is not there.
Targets of losses, which are compared with all classes, are looked at in the same way. A
loop carries both ends along; what only one way of a choice needs counts where that way is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from imgmlp.engine.ir.control_flow import Body, parameter, result
from imgmlp.engine.ir.dtype import bool_, i32
from imgmlp.engine.ir.graph import (
    Buffer,
    Node,
    alu,
    cast,
    const,
    gather,
    kind_of,
    make,
    rebuild,
    reduce,
    toposort,
)
from imgmlp.engine.ir.kernel import Update
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse
from imgmlp.engine.oracle.index_bounds import gather_index

Check = tuple[Node, Buffer, Buffer]  # what takes rows, its greatest index, and ~ of its least
Ends = tuple[Node, Node, Node]  # the same as values
LOWEST = const(i32.min, i32)
FIRST = 1 << 20  # position of the first PARAMETER that is carried for a check


def index_checks(
    updates: Sequence[Update], wanted: Callable[[Node], bool] | None = None
) -> list[tuple[Check, list[Update]]]:
    """What to look at after which updates of other Buffers; nothing where nothing is taken.

    Of all that takes rows, or of what is `wanted`, outside of loops.
    """
    values = [value for _, value in updates]
    if wanted and not any(gather_index(n) and wanted(n) for n in toposort(values)):
        return []
    checks: list[tuple[Check, list[Update]]] = []
    for node, *ends in _safe(values)[1]:
        if wanted and not wanted(node):
            continue
        kept = [Buffer((), i32, name=name) for name in ("greatest", "least")]
        checks.append(((node, kept[0], kept[1]), list(zip(kept, ends, strict=True))))
    return checks


def _safe(values: Sequence[Node]) -> tuple[list[Node], list[Ends]]:
    """The values where wrong indices are 0, and both ends of the indices of what takes rows."""
    safe: dict[Node, Node] = {}
    all_ends: dict[Node, list[Ends]] = {}
    order = toposort(values)
    for node in order:
        sources = tuple(safe[s] for s in node.src)
        if node.op is Op.LOOP:
            safe[node], all_ends[node] = _loop(node, sources)
        elif node.op is Op.GATHER:
            safe[node], all_ends[node] = _gather(node, *sources)
        else:
            safe[node] = rebuild(node, sources)
            if (taken := gather_index(node)) is not None:
                all_ends[node] = [_ends(node, safe[taken[0]])]
    needed = _needed(values, order, safe)
    ends = []
    for node, several in all_ends.items():
        for at, *pair in several:
            if (when := needed[node]) is not None:
                pair = [alu(Op.WHERE, when, end, LOWEST) for end in pair]
            ends.append((at, pair[0], pair[1]))
    return [safe[v] for v in values], ends


def _gather(node: Node, table: Node, index: Node) -> tuple[Node, list[Ends]]:
    index = cast(index, i32)
    zero = const(0, i32, index.shape)
    inside = alu(Op.AND, zero < index + 1, index < const(table.shape[0], i32, index.shape))
    return gather(table, alu(Op.WHERE, inside, index, zero)), [_ends(node, index)]


def _ends(node: Node, index: Node) -> Ends:
    index = cast(index, i32)
    flipped = alu(Op.XOR, index, const(-1, i32, index.shape))
    most, least = (reduce(Op.REDUCE_MAX, n, range(len(n.shape))) for n in (index, flipped))
    return node, most, least


def _loop(node: Node, sources: Sequence[Node]) -> tuple[Node, list[Ends]]:
    """A loop that carries the ends of its own indices as well."""
    body: Body = node.arg
    states, (depth, _) = len(body.values), body.parameters[0].arg
    values, ends = _safe(body.values)
    own = [parameter(depth, FIRST + i, LOWEST) for i in range(2 * len(ends))]
    flat = [end for _, *pair in ends for end in pair]
    values += [alu(Op.MAX, p, end) for p, end in zip(own, flat, strict=True)]
    parameters = (*body.parameters[:states], *own, *body.parameters[states:])
    given = (*sources[:states], *(LOWEST for _ in own), *sources[states:])
    new = make(Op.LOOP, given, Body(body.count, parameters, tuple(values)), (), node.dtype)
    places = range(states, states + len(own), 2)
    pairs = ((result(new, i), result(new, i + 1)) for i in places)
    return new, [(at, *pair) for (at, *_), pair in zip(ends, pairs, strict=True)]


def _needed(
    values: Sequence[Node], order: Sequence[Node], safe: dict[Node, Node]
) -> dict[Node, Node | None]:
    """When each Node's value is used: a bool of shape (), or None for always."""
    when_needed: dict[Node, Node | None] = dict.fromkeys(values)
    for node in reversed(order):
        when = when_needed[node]
        conditions: list[Node | None] = [when] * len(node.src)
        if node.op is Op.COND:
            chosen = safe[node.src[0]]
            ways = (chosen, alu(Op.XOR, chosen, const(True, bool_)))
            conditions[1:] = [w if when is None else alu(Op.AND, when, w) for w in ways]
        for source, condition in zip(node.src, conditions, strict=True):
            previous = when_needed.get(source, condition)
            both = previous is not None and condition is not None
            when_needed[source] = alu(Op.OR, previous, condition) if both else None  # type: ignore[arg-type]
    return when_needed


def refuse(node: Node, greatest: int, flipped: int) -> None:
    """Raise OutOfBoundsError if an index is none of the rows that are taken by it."""
    taken, least = gather_index(node), -1 - flipped
    assert taken is not None
    wrong, last = least if least < 0 else greatest, taken[1] - 1
    if least >= 0 and greatest <= last:  # also where none was taken
        return
    text = f"nll_loss: a computed target is {wrong}, of classes"
    if node.op is Op.GATHER:
        table = kind_of(node.src[0])
        text = f"gather: a computed index is {wrong}, of a table {table} with rows"
    raise misuse(OutOfBoundsError, f"{text} 0 to {last}")
