"""Reverse-mode gradients: one table of vector-Jacobian products.

A rule takes `g`, the gradient of the loss by the answer, the answer itself and the
sources, and gives a gradient for each source, or None where there is none to give.
Rules build Nodes like any other, so the backward graph is simplified, fused and
planned with the forward one. This module executes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from imgmlp.engine.ir.control_flow import Body, cond, dependent, received, results, states
from imgmlp.engine.ir.dtype import f32, i32
from imgmlp.engine.ir.graph import (
    Node,
    alu,
    cast,
    concat,
    const,
    dot,
    iota,
    move,
    reduce,
    substitute,
    toposort,
)
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.oracle.given_indices import keep_for

Gradients = tuple[Node | None, ...]
LN2 = math.log(2.0)
MOST_UNROLLED = 5_000  # operations of a loop that a gradient goes through


def zeros_like(node: Node) -> Node:
    return const(0, node.dtype, node.shape)


def select(condition: Node, a: Node, b: Node) -> Node:
    return alu(Op.WHERE, condition, a, b)


def restore_axes(node: Node, shape: Sequence[int], axes: Sequence[int]) -> Node:
    """A reduced value, repeated along the axes that the reduction removed."""
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    return move(Op.EXPAND, move(Op.RESHAPE, node, kept), tuple(shape))


def transposed(node: Node) -> Node:
    """The last two axes exchanged."""
    rank = len(node.shape)
    return move(Op.PERMUTE, node, (*range(rank - 2), rank - 1, rank - 2))


def _max(g: Node, ans: Node, x: Node, y: Node) -> Gradients:
    half = select(alu(Op.EQ, x, y), g * 0.5, g)  # equal values share
    return select(x < y, zeros_like(g), half), select(y < x, zeros_like(g), half)


def _reduce_max(g: Node, ans: Node, x: Node) -> Gradients:
    axes = ans.arg
    chosen = cast(alu(Op.EQ, x, restore_axes(ans, x.shape, axes)), f32)  # as halves count to 65504
    share = cast(g, f32) / reduce(Op.SUM, chosen, axes)  # equal values share
    return (cast(chosen * restore_axes(share, x.shape, axes), x.dtype),)


def _expand(g: Node, ans: Node, x: Node) -> Gradients:
    axes = [i for i, (n, m) in enumerate(zip(x.shape, ans.shape, strict=True)) if n != m]
    return (move(Op.RESHAPE, reduce(Op.SUM, g, axes), x.shape),)


def _stride(g: Node, ans: Node, x: Node) -> Gradients:
    """Zeros between the elements that were taken, then backwards where the step was."""
    steps = ans.arg
    shape = g.shape
    apart = move(Op.RESHAPE, g, tuple(m for n in shape for m in (n, 1)))
    gaps = tuple(p for s in steps for p in ((0, 0), (0, abs(s) - 1)))
    dense = move(Op.PAD, apart, gaps)
    dense = move(Op.RESHAPE, dense, tuple(n * abs(s) for n, s in zip(shape, steps, strict=True)))
    fits = tuple((0, min(a, b)) for a, b in zip(dense.shape, x.shape, strict=True))
    dense = move(Op.SHRINK, dense, fits)
    dense = move(
        Op.PAD, dense, tuple((0, b - a) for a, b in zip(dense.shape, x.shape, strict=True))
    )
    return (move(Op.STRIDE, dense, tuple(1 if s > 0 else -1 for s in steps)),)


def _gather(g: Node, ans: Node, table: Node, index: Node) -> Gradients:
    """Each row of the table receives the sum over the places that took it, in order."""
    rows, places = table.shape[0], math.prod(index.shape)
    row = math.prod(table.shape[1:])
    shape = (places, rows, row)

    def along(node: Node, axis: int) -> Node:
        ones = tuple(n if i == axis else 1 for i, n in enumerate(shape))
        return move(Op.EXPAND, move(Op.RESHAPE, node, ones), shape)

    taken = alu(Op.EQ, along(cast(index, i32), 0), along(iota(rows), 1))
    parts = move(Op.EXPAND, move(Op.RESHAPE, g, (places, 1, row)), shape)
    total = reduce(Op.SUM, select(taken, parts, zeros_like(parts)), (0,))
    return move(Op.RESHAPE, total, table.shape), None


def _concat(g: Node, ans: Node, *parts: Node) -> Gradients:
    found, begin, axis = [], 0, ans.arg
    for part in parts:
        end = begin + part.shape[axis]
        limits = tuple((begin, end) if i == axis else (0, n) for i, n in enumerate(g.shape))
        found.append(move(Op.SHRINK, g, limits))
        begin = end
    return tuple(found)


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(i) for i in range(len(axes)))


def _other_side(
    pairs: Sequence[tuple[int, int]], shape: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The widths of a PAD as the range between them, and the range of a SHRINK as such widths."""
    return tuple((a, n - b) for (a, b), n in zip(pairs, shape, strict=True))


VJP: dict[Op, Callable[..., Gradients]] = {
    Op.CAST: lambda g, ans, x: (cast(g, x.dtype) if x.dtype.is_float else None,),
    Op.NEG: lambda g, ans, x: (-g,),
    Op.EXP2: lambda g, ans, x: (g * ans * LN2,),
    Op.LOG2: lambda g, ans, x: (g / (x * LN2),),
    Op.SIN: lambda g, ans, x: (g * alu(Op.COS, x),),
    Op.COS: lambda g, ans, x: (-(g * alu(Op.SIN, x)),),
    Op.SQRT: lambda g, ans, x: (g * 0.5 / ans,),
    Op.ADD: lambda g, ans, x, y: (g, g),
    Op.SUB: lambda g, ans, x, y: (g, -g),
    Op.MUL: lambda g, ans, x, y: (g * y, g * x),
    Op.DIV: lambda g, ans, x, y: (g / y, -(g * ans / y)),
    Op.MAX: _max,
    Op.WHERE: lambda g, ans, c, x, y: (
        None,
        select(c, g, zeros_like(g)),
        select(c, zeros_like(g), g),
    ),
    Op.MULACC: lambda g, ans, x, y, z: (g * y, g * x, g),
    Op.SUM: lambda g, ans, x: (restore_axes(g, x.shape, ans.arg),),
    Op.REDUCE_MAX: _reduce_max,
    Op.RESHAPE: lambda g, ans, x: (move(Op.RESHAPE, g, x.shape),),
    Op.PERMUTE: lambda g, ans, x: (move(Op.PERMUTE, g, _inverse(ans.arg)),),
    Op.EXPAND: _expand,
    Op.PAD: lambda g, ans, x: (move(Op.SHRINK, g, _other_side(ans.arg, ans.shape)),),
    Op.SHRINK: lambda g, ans, x: (move(Op.PAD, g, _other_side(ans.arg, x.shape)),),
    Op.STRIDE: _stride,
    Op.DOT: lambda g, ans, a, b: (dot(g, transposed(b)), dot(transposed(a), g)),
    Op.GATHER: _gather,
    Op.CONCAT: _concat,
    Op.CONTIGUOUS: lambda g, ans, x: (g,),
    Op.FUNCTION: lambda g, ans, answer, *inputs: (None, *ans.arg(g, answer, *inputs)),
}


def gradient(loss: Node, wrt: Sequence[Node]) -> list[Node]:
    """Gradients of a scalar by each Node of `wrt`; zeros for one that the loss does not use.

    Raises ValueError if the loss is not one element, or depends on `wrt` through a loop of
    more than MOST_UNROLLED operations; TypeError if it is not a float.
    """
    if loss.size != 1:
        raise misuse(
            ValueError, f"gradient: the loss must be a single number, not of shape {loss.shape}"
        )
    if not loss.dtype.is_float:
        raise misuse(TypeError, f"gradient: the loss must be a float, not {loss.dtype.name}")
    found = _gradients([(loss, const(1, loss.dtype, loss.shape))], wrt)
    return [zeros_like(w) if g is None else g for w, g in zip(wrt, found, strict=True)]


def _gradients(
    seeds: Sequence[tuple[Node, Node]], wrt: Sequence[Node], beyond: bool = True
) -> list[Node | None]:
    """Gradients by each of `wrt` of some values with gradients of their own; None for zeros.

    Without `beyond`, what `wrt` depends on counts as given.
    """
    values, ends = [value for value, _ in seeds], set(wrt)
    order = toposort(values)
    active = dependent(order, ends)
    parts: dict[Node, list[Node]] = {}
    for value, g in seeds:
        parts.setdefault(value, []).append(g)
    for node in reversed(order):
        if node in active and (beyond or node not in ends):
            for source, part in _sent_back(node, parts, values, ends):
                if part is not None and source in active and source.dtype.is_float:
                    parts.setdefault(source, []).append(part)
    return [total(parts[w]) if w in parts else None for w in wrt]


def _sent_back(
    node: Node, parts: dict[Node, list[Node]], roots: Sequence[Node], wrt: set[Node]
) -> Iterable[tuple[Node, Node | None]]:
    """What other Nodes receive, given what this one received itself."""
    if node.op is Op.LOOP:
        ends = [total(parts[r]) if r in parts else None for r in results(node)]
        return zip(node.src, _loop(node, ends), strict=True)
    if node not in parts:
        return ()
    g = total(parts[node])
    if node.op is Op.COND:
        return _cond(node, g, roots, wrt)
    rule = VJP.get(node.op)  # none for integers and comparisons: constant almost everywhere
    if rule is None:
        return ()
    found = rule(g, node, *node.src)
    if node.op in (Op.GATHER, Op.FUNCTION):
        keep_for(found, g, node)
    return zip(node.src, found, strict=True)


def _sources_but(choice: Node, value: Node, node: Node) -> Sequence[Node]:
    """The sources of a Node; those of a COND without one of its values."""
    return [s for s in node.src if s is not value] if node is choice else node.src


def _of_loop(node: Node, loops: set[Node]) -> bool:
    """Whether a Node is the RESULT of one of these LOOPs, whose gradients are taken together."""
    return node.op is Op.RESULT and node.src[0] in loops


def _cond(
    node: Node, g: Node, roots: Sequence[Node], wrt: set[Node]
) -> Iterable[tuple[Node, Node]]:
    """A choice between the gradients of both values, by what is needed without them too.

    So the gradient of what only one value needs is not computed unless that value was.
    """
    condition, *values = node.src
    parts: list[dict[Node, Node]] = []
    for value in values:
        without = partial(_sources_but, node, value)
        others = set(toposort([*roots, *wrt], without))
        shared = [n for n in toposort([value]) if n in others or _of_loop(n, others) or not n.src]
        found = _gradients([(value, g)], shared, beyond=False)
        parts.append({n: part for n, part in zip(shared, found, strict=True) if part is not None})
    for target in (n for n in toposort(values) if any(n in p for p in parts)):
        chosen, otherwise = (p.get(target, zeros_like(target)) for p in parts)
        yield target, cond(condition, chosen, otherwise)


def _loop(loop: Node, ends: Sequence[Node | None]) -> Gradients:
    """One iteration's gradients, repeated from the last iteration to the first.

    Every iteration is spelled out, the values that it starts from too.
    """
    if all(g is None for g in ends):
        return (None,) * len(loop.src)
    body: Body = loop.arg
    _check_unrolled(body)
    seeds = received(body)
    floats = [(v, g) for v, g in zip(body.values, seeds, strict=True) if v.dtype.is_float]
    found = _gradients(floats, body.parameters)
    used = [i for i, g in enumerate(found) if g is not None]
    parts: dict[int, list[Node]] = {i: [] for i in used}
    carried = [zeros_like(v) if g is None else g for v, g in zip(body.values, ends, strict=True)]
    *before, _ = states(loop)
    for values in reversed(before):
        given = [*values, *loop.src[len(values) :], *carried]
        replaced = dict(zip([*body.parameters, *seeds], given, strict=True))
        sent = substitute([g for g in found if g is not None], replaced)
        carried = [zeros_like(v) for v in values]
        for i, g in zip(used, sent, strict=True):
            if i < len(values):
                carried[i] = g
            else:
                parts[i].append(g)
    captured = (total(parts[i]) if parts.get(i) else None for i in range(len(carried), len(found)))
    return (*carried, *captured)


def _check_unrolled(body: Body) -> None:
    size = body.size()
    if size > MOST_UNROLLED:
        raise misuse(
            ValueError,
            f"gradient: a loop of {body.count:,} iterations would be unrolled to {size:,} "
            f"operations, more than {MOST_UNROLLED:,}; loop fewer times, or take the gradient "
            "inside of the loop's body",
        )


def total(parts: Sequence[Node]) -> Node:
    """The sum; parts that are padded slices which tile an axis are put side by side instead."""
    tiled = _side_by_side(parts)
    if tiled is not None:
        return tiled
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def _side_by_side(parts: Sequence[Node]) -> Node | None:
    axis = None
    begins = {}
    for part in parts:
        if part.op is not Op.PAD:
            return None
        padded = [i for i, pair in enumerate(part.arg) if pair != (0, 0)]
        if len(padded) != 1 or axis not in (None, padded[0]):
            return None
        axis = padded[0]
        begins[part.arg[axis][0]] = part.src[0]
    if axis is None:
        return None
    end = 0
    for begin, part in sorted(begins.items()):
        if begin != end:
            return None
        end += part.shape[axis]
    if end != parts[0].shape[axis] or len(begins) != len(parts):
        return None
    return concat([part for _, part in sorted(begins.items())], axis)
