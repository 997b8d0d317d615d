"""Graphs of Nodes as text: numbered listings, trees, and DOT for Graphviz.

The order of Nodes depends on the graph alone, while `toposort` uses the order of their creation.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgmlp.engine.ir.graph import Node, kind_of, label
from imgmlp.engine.ir.op import Op


def _in_order(roots: Sequence[Node]) -> list[Node]:
    """All Nodes that the roots need, each after its sources: depth first, from first to last."""
    done: dict[Node, None] = {}
    waiting = [(root, False) for root in reversed(roots)]
    while waiting:  # the graph may be deeper than Python's stack
        node, ready = waiting.pop()
        if ready:
            done[node] = None
        elif node not in done:
            waiting.append((node, True))
            waiting += [(source, False) for source in reversed(node.src) if source not in done]
    return list(done)


def render_nodes(roots: Sequence[Node]) -> str:
    """A numbered listing with a line for each Node: number, operation, sources, dtype and shape.

    The body of a LOOP follows it, indented and with separate numbers.
    """
    numbers: dict[Node, int] = {}
    lines = []
    for node in _in_order(roots):
        numbers[node] = len(numbers)
        sources = ", ".join(str(numbers[s]) for s in node.src)
        kind = kind_of(node) if node.op is not Op.LOOP else ""
        line = f"{numbers[node]:4d} {label(node):<28} ({sources})".ljust(48) + f" {kind}"
        lines.append(line.rstrip())
        if node.op is Op.LOOP:
            lines += [f"     {line}" for line in node.arg.render().splitlines()]
    return "\n".join(lines)


def render_tree(roots: Sequence[Node]) -> str:
    """Each result with its sources indented below it, numbered as in `render_nodes`.

    A Node that was printed before is an Intermediate. The body of a LOOP, with separate numbers,
    is printed between the LOOP and its sources.
    """
    numbers = {node: i for i, node in enumerate(_in_order(roots))}
    shown: set[Node] = set()
    lines = []
    waiting = [(root, 0) for root in reversed(roots)]
    while waiting:  # the graph may be deeper than Python's stack
        node, depth = waiting.pop()
        margin = "  " * depth
        if node in shown and node.src:
            lines.append(f"{margin}{numbers[node]} Intermediate")
            continue
        shown.add(node)
        kind = f" {kind_of(node)}" if node.op is not Op.LOOP else ""
        lines.append(f"{margin}{numbers[node]} {label(node)}{kind}")
        if node.op is Op.LOOP:
            lines += [f"{margin}  | {line}" for line in render_tree(node.arg.values).splitlines()]
        waiting += [(source, depth + 1) for source in reversed(node.src)]
    return "\n".join(lines)


def render_dot(roots: Sequence[Node]) -> str:
    """The graph as Graphviz DOT: arrows from sources to their users, loops as clusters."""
    lines = ["digraph imgmlp {", "  rankdir=LR; node [shape=box, fontname=monospace];"]
    return "\n".join([*lines, *_dot_lines(roots, "n"), "}"])


def _dot_lines(roots: Sequence[Node], prefix: str) -> list[str]:
    numbers = {node: f"{prefix}{i}" for i, node in enumerate(_in_order(roots))}
    lines = []
    for node, name in numbers.items():
        text = f"{label(node)}\\n{kind_of(node)}".replace('"', "'")
        lines.append(f'  {name} [label="{text}"];')
        marks = (
            ["", " [label=true]", " [label=false]"] if node.op is Op.COND else [""] * len(node.src)
        )
        lines += [
            f"  {numbers[s]} -> {name}{mark};" for s, mark in zip(node.src, marks, strict=True)
        ]
        if node.op is Op.LOOP:
            body = _dot_lines(node.arg.values, f"{name}_")
            lines += [f'  subgraph cluster_{name} {{ label="{node.arg}";', *body, "  }"]
    return lines
