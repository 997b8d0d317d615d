"""Tiles stored as [columns, rows], so that vectors take neighbouring rows of the batch.

In: the Nodes of a step and their Kinds. Out: the inputs that have the batch as their last axis, and
the rewriting of a tile's values to transposed ones.

Inputs may have the batch last, such as an image whose channels are planes. On CPUs, a tile's values
are then computed in the same layout: vectors of rows are full even in layers of 24 or 3 columns,
and results are stored without a transpose. Values must not change: each is a transposed view of
what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgmlp.engine.ir.graph import Node, base, const, make, move
from imgmlp.engine.ir.op import ELEMENTWISE, Op
from imgmlp.engine.tiling.batch_axis import BatchKinds, Kind

TRANSPOSE = (1, 0)


def factors_batch_last(nodes: Sequence[Node], kinds: BatchKinds) -> set[Node]:
    """Inputs of ROW products, if all of them have the batch as their last axis; else none."""
    has_batch_last: dict[Node, bool] = {}
    for node in nodes:
        if node.op is Op.DOT and kinds.of[node] is Kind.ROW and is_rows_by_columns(node, kinds):
            factor = base(node.src[0])
            if factor in kinds.cheap:
                rank = len(factor.shape)
                has_batch_last[factor] = kinds.axis(factor, rank) == rank - 1 > 0
    return set(has_batch_last) if all(has_batch_last.values()) else set()


def is_rows_by_columns(node: Node, kinds: BatchKinds) -> bool:
    """Whether a value has the axes [rows of the batch, columns]."""
    return len(node.shape) == 2 and kinds.axis(node, 2) == 0


def transposed(node: Node) -> Node:
    """The transpose of a value of two axes, without another movement where possible."""
    if node.op is Op.PERMUTE and node.arg == TRANSPOSE:
        return node.src[0]
    if node.op is Op.CONST:
        return const(node.arg, node.dtype, node.shape[::-1])
    if node.op is Op.RESHAPE and node.shape[1] == 1:
        return move(Op.RESHAPE, node, node.shape[::-1])
    return move(Op.PERMUTE, node, TRANSPOSE)


def computed_transposed(node: Node) -> Node:
    """A value [rows, columns] as the transpose of a value computed from transposed sources.

    Operations for which there is no such form are returned as they are.
    """
    if node.op not in ELEMENTWISE | {Op.DOT, Op.CONCAT}:
        return node
    sources = tuple(map(transposed, node.src))
    if node.op is Op.DOT:
        sources = sources[::-1]
    arg = 1 - node.arg if node.op is Op.CONCAT else node.arg
    return transposed(make(node.op, sources, arg, node.shape[::-1], node.dtype))
