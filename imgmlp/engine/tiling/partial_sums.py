"""Partial sums over rows: each work-group of a block has its own, which are added afterwards.

So no addition is atomic, and the order of additions is fixed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from imgmlp.engine.ir.graph import Buffer, Node, base, buffer, const, move, part, reduce
from imgmlp.engine.ir.kernel import Kernel, Store
from imgmlp.engine.ir.op import Op
from imgmlp.engine.tiling.prologue import ALIGNMENT_ELEMENTS

MAX_UNROLLED_PARTS = 4  # groups up to which their partial sums are added by single additions


class PartialSums:
    """Where the partial sums of each ACC value lie: in one Buffer with a row for each group.

    The parts of a concatenation of ACC values, such as the gradient of a flat Tensor of parameters,
    lie next to each other in its order, so that its total is one sum.
    """

    def __init__(self, sums: Sequence[Node], after: Sequence[Node], groups: int) -> None:
        self.groups, self.begin = groups, dict[Node, int]()
        self.spans: dict[Node, tuple[int, int]] = {}
        end = 0
        for node in [n for n in after if n.op is Op.CONCAT and len(n.shape) == 1] + list(sums):
            parts = [base(s, {Op.RESHAPE}) for s in node.src] if node.op is Op.CONCAT else [node]
            fresh = len(set(parts)) == len(parts) and not any(p in self.begin for p in parts)
            if not fresh or not all(p in sums and p.dtype is node.dtype for p in parts):
                continue
            begin = end
            for p in parts:
                self.begin[p], end = end, end + p.size
            self.spans[node] = (begin, end)
            end = -(-end // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
        dtypes = dict.fromkeys(s.dtype for s in sums)
        self.buffers = {d: Buffer((groups, end), d, name="partial_sums") for d in dtypes}

    def place(self, node: Node) -> Node:
        """The running group's partial sum of an ACC Node."""
        whole = part(buffer(self.buffers[node.dtype]), "group", self.groups)
        begin = self.begin[node]
        row = move(Op.SHRINK, whole, ((0, 1), (begin, begin + node.size)))
        return move(Op.RESHAPE, row, node.shape)

    def totals(self) -> dict[Node, Node]:
        """Each ACC value, and each concatenation of them, as the sum over all groups."""
        alone = {n: (begin, begin + n.size) for n, begin in self.begin.items()}
        return {n: self._total(n, *span) for n, span in (alone | self.spans).items()}

    def _total(self, node: Node, begin: int, end: int) -> Node:
        partial = buffer(self.buffers[node.dtype])
        rows = move(Op.SHRINK, partial, ((0, self.groups), (begin, end)))
        if self.groups > MAX_UNROLLED_PARTS:
            axes = (0,) if node.shape else (0, 1)
            return move(Op.RESHAPE, reduce(Op.SUM, rows, axes), node.shape)
        parts = [
            move(Op.RESHAPE, move(Op.SHRINK, rows, ((g, g + 1), (0, end - begin))), node.shape)
            for g in range(self.groups)
        ]
        return functools.reduce(Node.__add__, parts)

    def clear(self) -> list[Kernel]:
        """Kernels that set the running group's partial sums to zero."""
        kernels = []
        for dtype, whole in self.buffers.items():
            place = part(buffer(whole), "group", self.groups)
            zero = Store(place, const(0, dtype, place.shape))
            kernels.append(Kernel("clear", place.shape, (zero,), None))
        return kernels
