"""Reverse-mode gradients: one table of vector-Jacobian products.

For an operation `ans = op(*src)`, `VJP[op]` is a function of the upstream gradient `g`
(the gradient of the loss with respect to `ans`), of `ans` and of the sources. It returns the
gradient of the loss with respect to each source, or None where a source has no gradient.
The rules build ordinary Nodes, so the backward graph is simplified, fused and planned together
with the forward graph. This module executes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from imgmlp.engine.ir.control_flow import (
    Body,
    cond,
    dependent_nodes,
    results,
    unrolled_states,
    upstream_parameters,
)
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
from imgmlp.engine.oracle.index_bounds import keep_bounds_for_gradient

Gradients = tuple[Node | None, ...]
LN2 = math.log(2.0)
MAX_UNROLLED_OPERATIONS = 5_000  # of a loop that is differentiated, over all its iterations


def zeros_like(node: Node) -> Node:
    return const(0, node.dtype, node.shape)


def select(condition: Node, a: Node, b: Node) -> Node:
    return alu(Op.WHERE, condition, a, b)


def restore_axes(node: Node, shape: Sequence[int], axes: Sequence[int]) -> Node:
    """Broadcast a reduced value back to `shape`, along the axes that the reduction removed."""
    with_ones = tuple(1 if i in axes else n for i, n in enumerate(shape))
    return move(Op.EXPAND, move(Op.RESHAPE, node, with_ones), tuple(shape))


def transposed(node: Node) -> Node:
    """Swap the last two axes."""
    rank = len(node.shape)
    return move(Op.PERMUTE, node, (*range(rank - 2), rank - 1, rank - 2))


def _max(g: Node, ans: Node, x: Node, y: Node) -> Gradients:
    part = select(alu(Op.EQ, x, y), g * 0.5, g)  # equal operands get half of the gradient each
    return select(x < y, zeros_like(g), part), select(y < x, zeros_like(g), part)


def _reduce_max(g: Node, ans: Node, x: Node) -> Gradients:
    """The gradient is divided equally among all elements that are the maximum."""
    axes = ans.arg
    # Counted in f32, because f16 overflows above 65504.
    is_max = cast(alu(Op.EQ, x, restore_axes(ans, x.shape, axes)), f32)
    per_maximum = cast(g, f32) / reduce(Op.SUM, is_max, axes)
    return (cast(is_max * restore_axes(per_maximum, x.shape, axes), x.dtype),)


def _expand(g: Node, ans: Node, x: Node) -> Gradients:
    """The gradient of a broadcast is a sum over the broadcast axes."""
    axes = [i for i, (n, m) in enumerate(zip(x.shape, ans.shape, strict=True)) if n != m]
    return (move(Op.RESHAPE, reduce(Op.SUM, g, axes), x.shape),)


def _stride(g: Node, ans: Node, x: Node) -> Gradients:
    """Insert zeros between the elements that were taken, then flip the axes of negative steps."""
    steps = ans.arg
    shape = g.shape
    # Each axis [n] becomes [n, 1], is padded to [n, |step|] and flattened to [n * |step|].
    with_ones = move(Op.RESHAPE, g, tuple(m for n in shape for m in (n, 1)))
    gaps = tuple(p for s in steps for p in ((0, 0), (0, abs(s) - 1)))
    dense = move(Op.PAD, with_ones, gaps)
    dense = move(Op.RESHAPE, dense, tuple(n * abs(s) for n, s in zip(shape, steps, strict=True)))
    common = tuple((0, min(a, b)) for a, b in zip(dense.shape, x.shape, strict=True))
    dense = move(Op.SHRINK, dense, common)
    missing = tuple((0, b - a) for a, b in zip(dense.shape, x.shape, strict=True))
    dense = move(Op.PAD, dense, missing)
    return (move(Op.STRIDE, dense, tuple(1 if s > 0 else -1 for s in steps)),)


def _gather(g: Node, ans: Node, table: Node, index: Node) -> Gradients:
    """Each row of the table receives the sum of `g` where it was gathered, in index order.

    The sum is dense: it is written over [indices, rows, columns] with a mask of `index == row`.
    """
    rows, indices = table.shape[0], math.prod(index.shape)
    columns = math.prod(table.shape[1:])
    shape = (indices, rows, columns)

    def along(node: Node, axis: int) -> Node:
        ones = tuple(n if i == axis else 1 for i, n in enumerate(shape))
        return move(Op.EXPAND, move(Op.RESHAPE, node, ones), shape)

    is_row = alu(Op.EQ, along(cast(index, i32), 0), along(iota(rows), 1))
    terms = move(Op.EXPAND, move(Op.RESHAPE, g, (indices, 1, columns)), shape)
    by_row = reduce(Op.SUM, select(is_row, terms, zeros_like(terms)), (0,))
    return move(Op.RESHAPE, by_row, table.shape), None


def _concat(g: Node, ans: Node, *parts: Node) -> Gradients:
    """Each part receives its own slice of `g`."""
    gradients, begin, axis = [], 0, ans.arg
    for part in parts:
        end = begin + part.shape[axis]
        ranges = tuple((begin, end) if i == axis else (0, n) for i, n in enumerate(g.shape))
        gradients.append(move(Op.SHRINK, g, ranges))
        begin = end
    return tuple(gradients)


def _inverse_permutation(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(i) for i in range(len(axes)))


def _inverse_pad_or_shrink(
    pairs: Sequence[tuple[int, int]], larger: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """The SHRINK ranges that undo PAD widths, or the PAD widths that undo SHRINK ranges.

    `larger` is the shape on the padded side of either.
    """
    return tuple((a, n - b) for (a, b), n in zip(pairs, larger, strict=True))


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
    Op.PERMUTE: lambda g, ans, x: (move(Op.PERMUTE, g, _inverse_permutation(ans.arg)),),
    Op.EXPAND: _expand,
    Op.PAD: lambda g, ans, x: (move(Op.SHRINK, g, _inverse_pad_or_shrink(ans.arg, ans.shape)),),
    Op.SHRINK: lambda g, ans, x: (move(Op.PAD, g, _inverse_pad_or_shrink(ans.arg, x.shape)),),
    Op.STRIDE: _stride,
    Op.DOT: lambda g, ans, a, b: (dot(g, transposed(b)), dot(transposed(a), g)),
    Op.GATHER: _gather,
    Op.CONCAT: _concat,
    Op.CONTIGUOUS: lambda g, ans, x: (g,),
    Op.FUNCTION: lambda g, ans, answer, *inputs: (None, *ans.arg(g, answer, *inputs)),
}


def gradient(loss: Node, wrt: Sequence[Node]) -> list[Node]:
    """Gradients of a scalar loss with respect to each Node of `wrt`.

    They are zeros for a Node that the loss does not use. Raises ValueError if the loss is not one
    element, or depends on `wrt` through a loop of more than MAX_UNROLLED_OPERATIONS; TypeError if
    it is not a float.
    """
    if loss.size != 1:
        raise misuse(
            ValueError, f"gradient: the loss must be a single number, not of shape {loss.shape}"
        )
    if not loss.dtype.is_float:
        raise misuse(TypeError, f"gradient: the loss must be a float, not {loss.dtype.name}")
    gradients = _backward([(loss, const(1, loss.dtype, loss.shape))], wrt)
    return [zeros_like(w) if g is None else g for w, g in zip(wrt, gradients, strict=True)]


def _backward(
    seeds: Sequence[tuple[Node, Node]], wrt: Sequence[Node], through_wrt: bool = True
) -> list[Node | None]:
    """The reverse sweep: gradients with respect to each of `wrt`; None stands for zeros.

    `seeds` pairs the roots with their upstream gradients. Without `through_wrt` the Nodes of `wrt`
    are leaves, and nothing flows from one of them to what it is computed from.
    """
    roots, leaves = [root for root, _ in seeds], set(wrt)
    order = toposort(roots)
    active = dependent_nodes(order, leaves)
    contributions: dict[Node, list[Node]] = {}
    for root, upstream in seeds:
        contributions.setdefault(root, []).append(upstream)
    for node in reversed(order):
        if node in active and (through_wrt or node not in leaves):
            for source, g in _source_gradients(node, contributions, roots, leaves):
                if g is not None and source in active and source.dtype.is_float:
                    contributions.setdefault(source, []).append(g)
    return [total(contributions[w]) if w in contributions else None for w in wrt]


def _source_gradients(
    node: Node, contributions: dict[Node, list[Node]], roots: Sequence[Node], wrt: set[Node]
) -> Iterable[tuple[Node, Node | None]]:
    """Pairs of a source and its gradient through this Node, whose own gradient is complete."""
    if node.op is Op.LOOP:
        upstream = [total(contributions[r]) if r in contributions else None for r in results(node)]
        return zip(node.src, _loop(node, upstream), strict=True)
    if node not in contributions:
        return ()
    g = total(contributions[node])
    if node.op is Op.COND:
        return _cond(node, g, roots, wrt)
    vjp = VJP.get(node.op)  # integers and comparisons have none: constant almost everywhere
    if vjp is None:
        return ()
    gradients = vjp(g, node, *node.src)
    if node.op in (Op.GATHER, Op.FUNCTION):
        keep_bounds_for_gradient(gradients, g, node)
    return zip(node.src, gradients, strict=True)


def _sources_without(choice: Node, value: Node, node: Node) -> Sequence[Node]:
    """The sources of a Node; the COND `choice` is taken not to use `value`."""
    return [s for s in node.src if s is not value] if node is choice else node.src


def _is_result_of(node: Node, loops: set[Node]) -> bool:
    """Whether a Node is a RESULT of one of these LOOPs, whose gradients are taken together."""
    return node.op is Op.RESULT and node.src[0] in loops


def _cond(
    node: Node, g: Node, roots: Sequence[Node], wrt: set[Node]
) -> Iterable[tuple[Node, Node]]:
    """Gradients through a COND: a COND of the gradients through either value.

    Each value is differentiated down to the Nodes that it shares with the rest of the graph. So
    what only one of the values needs gets no gradient kernel that runs when the other is chosen.
    """
    condition, *values = node.src
    by_value: list[dict[Node, Node]] = []  # the gradients through each value, by shared Node
    for value in values:
        without_value = partial(_sources_without, node, value)
        rest = set(toposort([*roots, *wrt], without_value))
        shared = [n for n in toposort([value]) if n in rest or _is_result_of(n, rest) or not n.src]
        gradients = _backward([(value, g)], shared, through_wrt=False)
        by_value.append({n: d for n, d in zip(shared, gradients, strict=True) if d is not None})
    for target in (
        n for n in toposort(values) if any(n in gradients_of for gradients_of in by_value)
    ):
        chosen, otherwise = (
            gradients_of.get(target, zeros_like(target)) for gradients_of in by_value
        )
        yield target, cond(condition, chosen, otherwise)


def _loop(loop: Node, upstream: Sequence[Node | None]) -> Gradients:
    """Gradients with respect to the sources of a LOOP: its initial, then its captured values.

    One iteration is differentiated symbolically. Its gradients are then substituted for every
    iteration from the last to the first, so forward and backward are both unrolled. The gradient of
    a carried value flows on to the iteration before; those of a captured value are added up.
    """
    if all(g is None for g in upstream):
        return (None,) * len(loop.src)
    body: Body = loop.arg
    _check_unrolled_size(body)
    seeds = upstream_parameters(body)
    float_seeds = [(v, g) for v, g in zip(body.values, seeds, strict=True) if v.dtype.is_float]
    gradients = _backward(float_seeds, body.parameters)
    connected = [i for i, g in enumerate(gradients) if g is not None]
    of_captured: dict[int, list[Node]] = {i: [] for i in connected}
    carried = [
        zeros_like(v) if g is None else g for v, g in zip(body.values, upstream, strict=True)
    ]
    *states_before, _ = unrolled_states(loop)
    for values in reversed(states_before):
        arguments = [*values, *loop.src[len(values) :], *carried]
        replaced = dict(zip([*body.parameters, *seeds], arguments, strict=True))
        of_iteration = substitute([g for g in gradients if g is not None], replaced)
        carried = [zeros_like(v) for v in values]
        for i, g in zip(connected, of_iteration, strict=True):
            if i < len(values):
                carried[i] = g
            else:
                of_captured[i].append(g)
    captured = (
        total(of_captured[i]) if of_captured.get(i) else None
        for i in range(len(carried), len(gradients))
    )
    return (*carried, *captured)


def _check_unrolled_size(body: Body) -> None:
    size = body.size()
    if size > MAX_UNROLLED_OPERATIONS:
        raise misuse(
            ValueError,
            f"gradient: a loop of {body.count:,} iterations would be unrolled to {size:,} "
            f"operations, more than {MAX_UNROLLED_OPERATIONS:,}; loop fewer times, or take the "
            "gradient inside of the loop's body",
        )


def total(parts: Sequence[Node]) -> Node:
    """The sum of several gradients of one Node.

    Parts that are padded slices which together tile an axis become one CONCAT instead.
    """
    concatenated = _concatenated(parts)
    if concatenated is not None:
        return concatenated
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def _concatenated(parts: Sequence[Node]) -> Node | None:
    """The CONCAT that equals the sum of these PADs; None where they do not tile one axis."""
    axis = None
    begins = {}  # from where each unpadded part begins along the axis to that part
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
