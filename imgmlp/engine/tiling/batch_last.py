"""Tiles whose rows are neighbours in memory, as they are in what the tiles begin with.

Inputs may have their batch as the last axis: an image's channels one after the other. A tile's
values lie the same way then, [columns, rows], on processors whose vectors take neighbours:
of layers with 24 or 3 columns no vector is half empty, and nothing is turned around to be stored.
Each value of the graph is the same as before, as what is computed is only seen transposed.
"""

from __future__ import annotations

from collections.abc import Sequence

from imgmlp.engine.ir.graph import Node, base, const, make, move
from imgmlp.engine.ir.op import ELEMENTWISE, Op
from imgmlp.engine.tiling.batch_axis import Kind, Kinds

TURNED = (1, 0)


def factors_batch_last(nodes: Sequence[Node], kinds: Kinds) -> set[Node]:
    """What products read of the batch's inputs, if all of it has the batch as its last axis."""
    found: dict[Node, bool] = {}
    for node in nodes:
        if node.op is Op.DOT and kinds.of[node] is Kind.ROW and of_rows(node, kinds):
            factor = base(node.src[0])
            if factor in kinds.light:
                rank = len(factor.shape)
                found[factor] = kinds.axis(factor, rank) == rank - 1 > 0
    return set(found) if all(found.values()) else set()


def of_rows(node: Node, kinds: Kinds) -> bool:
    """Whether a value is [rows, columns]."""
    return len(node.shape) == 2 and kinds.axis(node, 2) == 0


def transposed(node: Node) -> Node:
    """[columns, rows] of a value [rows, columns], or the other way round."""
    if node.op is Op.PERMUTE and node.arg == TURNED:
        return node.src[0]
    if node.op is Op.CONST:
        return const(node.arg, node.dtype, node.shape[::-1])
    if node.op is Op.RESHAPE and node.shape[1] == 1:
        return move(Op.RESHAPE, node, node.shape[::-1])
    return move(Op.PERMUTE, node, TURNED)


def computed_transposed(node: Node) -> Node:
    """A value [rows, columns] as the transpose of what is computed, where there is a way."""
    if node.op not in ELEMENTWISE | {Op.DOT, Op.CONCAT}:
        return node
    sources = tuple(map(transposed, node.src))
    if node.op is Op.DOT:
        sources = sources[::-1]
    arg = 1 - node.arg if node.op is Op.CONCAT else node.arg
    return transposed(make(node.op, sources, arg, node.shape[::-1], node.dtype))
