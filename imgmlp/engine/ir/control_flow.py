"""Control flow as Nodes: loops with carried values, and conditional computation.

A LOOP holds one iteration as a separate graph. The leaves of that are PARAMETER Nodes: first the
carried values, then captured values from outside. RESULT Nodes are the carried values after the
last iteration. A COND is one of two values; what only the other one needs is not computed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from imgmlp.engine.ir.dtype import i32
from imgmlp.engine.ir.graph import Node, make, substitute, toposort
from imgmlp.engine.ir.op import LOAD, MOVEMENT, Op
from imgmlp.engine.ir.printer import render_nodes


class _Building(threading.local):
    """The loops that the current thread is tracing."""

    depth = 0  # number of nested loops whose bodies are being traced


building = _Building()


@dataclass(frozen=True)
class Body:
    """An iteration of a loop of `count`: it computes the new carried `values` from `parameters`."""

    count: int
    parameters: tuple[Node, ...]  # as the LOOP's sources: carried, then captured
    values: tuple[Node, ...]

    def __str__(self) -> str:
        return f"{self.count} times"

    def render(self) -> str:
        """The listing of the iteration, and the numbers of the Nodes that are carried."""
        numbers = {node: i for i, node in enumerate(toposort(self.values))}
        carried = ", ".join(str(numbers[v]) for v in self.values)
        return f"{render_nodes(self.values)}\ncarries ({carried})"

    def size(self) -> int:
        """Operations of all iterations together, including those of inner loops."""
        return self.count * sum(
            node.arg.size() if node.op is Op.LOOP else 1 for node in toposort(self.values)
        )


def parameter(depth: int, position: int, like: Node, own: int | None = None) -> Node:
    """A value that an iteration receives. `depth` is the number of loops around this one. While a
    loop is traced, its `own` number distinguishes its PARAMETERs from those of other loops."""
    arg = (depth, position) if own is None else (depth, position, own)
    return make(Op.PARAMETER, (), arg, like.shape, like.dtype)


def upstream_parameters(body: Body) -> list[Node]:
    """PARAMETERs that stand for the upstream gradients of the values that an iteration returns."""
    depth, _ = body.parameters[0].arg
    return [parameter(depth, -1 - i, value) for i, value in enumerate(body.values)]


def result(loop: Node, position: int) -> Node:
    """A carried value after the last iteration of a LOOP."""
    value = loop.arg.values[position]
    return make(Op.RESULT, (loop,), position, value.shape, value.dtype)


def results(loop: Node) -> list[Node]:
    """All carried values after the last iteration of a LOOP."""
    return [result(loop, i) for i in range(len(loop.arg.values))]


def cond(condition: Node, chosen: Node, otherwise: Node) -> Node:
    """`chosen` where the condition, a bool of shape (), is true; shapes and dtypes agree."""
    return make(Op.COND, (condition, chosen, otherwise), None, chosen.shape, chosen.dtype)


def loop(
    count: int, depth: int, initial: Sequence[Node], carried: Sequence[Node], values: Sequence[Node]
) -> list[Node]:
    """Carried values after `count` iterations, each of which computes `values` from `carried`.

    `carried` are PARAMETERs of this depth, one for each initial value, with its shape and dtype.
    Their `own` numbers are dropped here, so that equal loops are one Node. Values that do not
    depend on them are captured, which means computed once before the loop.
    """
    if count == 0:
        return list(initial)
    captured = _captured(values, set(carried))
    places = [node.arg[1] for node in carried]
    places += range(1 + max(places), 1 + max(places) + len(captured))
    outer = [*carried, *captured]
    inner = [parameter(depth, place, node) for place, node in zip(places, outer, strict=True)]
    values = substitute(values, dict(zip(outer, inner, strict=True)))
    body = Body(count, tuple(inner), tuple(values))
    node = make(Op.LOOP, (*initial, *captured), body, (), i32)
    return list(unrolled_states(node))[-1] if count == 1 else results(node)


def _captured(values: Sequence[Node], carried: set[Node]) -> list[Node]:
    """The topmost Nodes that do not depend on the carried values."""
    varying = dependent_nodes(values, carried)
    reached = toposort(values, lambda n: n.src if n in varying else ())
    return [n for n in reached if n not in varying and n.op not in (Op.CONST, Op.IOTA)]


def dependent_nodes(roots: Iterable[Node], on: set[Node]) -> set[Node]:
    """The Nodes `on`, and those of the graph that depend on one of them."""
    dependents = set(on)
    for node in toposort(roots):
        if any(s in dependents for s in node.src):
            dependents.add(node)
    return dependents


def computed_nodes(roots: Iterable[Node]) -> Iterator[Node]:
    """All Nodes that compute a value; those in the bodies of loops once."""
    for node in toposort(roots):
        if node.op is Op.LOOP:
            yield from computed_nodes(node.arg.values)
        elif node.op not in LOAD | MOVEMENT | {Op.RESULT}:
            yield node


def unrolled_states(loop: Node) -> Iterator[list[Node]]:
    """The carried values before each iteration and after the last, with the LOOP unrolled."""
    body: Body = loop.arg
    carried = len(body.values)
    values, captured = list(loop.src[:carried]), loop.src[carried:]
    yield values
    for _ in range(body.count):
        replaced = dict(zip(body.parameters, [*values, *captured], strict=True))
        values = substitute(body.values, replaced)
        yield values
