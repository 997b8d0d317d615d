"""The emulator of Procedures in NumPy: it evaluates the expressions of kernels at their places.

The interpreter of Nodes defines what a step computes. Here the step runs as it was scheduled, with
the offsets that views and index expressions give. So a wrong value, an index out of bounds or a
race is found in the form of the compiler that introduced it. All elements of a kernel are computed
at once; the terms of a reduction or product are further axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from imgmlp.engine.ir.access import Access
from imgmlp.engine.ir.dtype import Array, DType
from imgmlp.engine.ir.graph import Node, Shape, buffer
from imgmlp.engine.ir.index_values import source_and_access
from imgmlp.engine.ir.kernel import (
    Block,
    Kernel,
    Persistent,
    Procedure,
    Store,
    access,
    part_begin,
    storage,
)
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, REDUCE, Op
from imgmlp.engine.ir.symbolic import ONE, Expr, Var
from imgmlp.engine.oracle.interpret import FUNCTIONS
from imgmlp.engine.oracle.sanitizer import Loops, Memory, Sanitizer, register_dtype

Indices = tuple[Array, ...]  # an array for each axis; they broadcast


def run_procedure(procedure: Procedure, memory: Memory) -> None:
    """Run all kernels in order. Raises IndexError and ValueError as Sanitizer does."""
    kernels = procedure.kernels
    with np.errstate(all="ignore"):
        for position in procedure.order():
            launch = kernels[position]
            for phase in launch.phases if isinstance(launch, Persistent) else [launch]:
                if isinstance(phase, Block):
                    _run_block(phase, memory)
                else:
                    for kernel in [phase] if isinstance(phase, Kernel) else phase.members:
                        _KernelRun(kernel, memory, {}).run()


def _run_block(block: Block, memory: Memory) -> None:
    """Run the work-groups of a block one after the other, each on its share of the tiles."""
    begin = 0
    for group in range(block.groups):
        for kernel in block.prologue:
            _KernelRun(kernel, memory, {"group": group}).run()
        end = begin + block.tiles // block.groups + (group < block.tiles % block.groups)
        for tile in range(begin, end):
            for kernel in block.kernels:
                _KernelRun(kernel, memory, {"group": group, "tile": tile}).run()
        begin = end


class _KernelRun:
    """One run of a kernel, in a Block for one group and tile.

    The unordered loops of the Sanitizer are the axes of a store's shape.
    """

    def __init__(self, kernel: Kernel, memory: Memory, variables: dict[str, int]) -> None:
        self.kernel, self.variables = kernel, variables
        elements = math.prod(kernel.shape)
        read, written = kernel.reads(), kernel.writes()
        self.sanitizer = Sanitizer(kernel.name, memory, read, written, elements, elements)
        self.loops = Loops()
        self.cache: dict[tuple[Node, int, int], tuple[Any, ...]] = {}

    def run(self) -> None:
        if any(bool(self.value(g.condition, (), None)) != g.expected for g in self.kernel.guards):
            return
        self._store("i", self.kernel.stores, self.kernel.shape)
        if self.kernel.row_stores:
            self._store("t", self.kernel.row_stores, self.kernel.row_stores[0].place.shape)
        if self.kernel.column_sums is not None:
            self._store("s", [self.kernel.column_sums], self.kernel.column_sums.place.shape)
        self.sanitizer.finish()

    def _store(self, letter: str, stores: Sequence[Store], shape: Shape) -> None:
        """Compute all values, then store them: nothing is overwritten before it is read."""
        self.loops = Loops(tuple(f"{letter}{axis}" for axis in range(len(shape))), shape)
        indices = index_grid(shape)
        values = [self.value(s.value, indices, None) for s in stores]
        for store, value in zip(stores, values, strict=True):
            offsets, valid = offsets_at(access(store.place), indices)
            if valid is not None:
                raise ValueError(f"{self.kernel.name}: {store.target!r} has holes where it stores")
            target, offsets = store.target, offsets + self._begin(store.place)
            if store.adds:
                value = value + self.sanitizer.read(
                    "an addition", target, offsets, None, self.loops
                )
            self.sanitizer.write("a store", target, offsets, None, self.loops, value)

    def _begin(self, place: Node) -> int:
        """The offset of the part that belongs to the running group or tile."""
        offset: int = part_begin(place).evaluate(self.variables)
        return offset

    def value(self, node: Node, indices: Indices, mask: Array | None) -> Array:
        """A Node's elements at some indices; nothing is read where `mask` is false."""
        key = node, id(indices), id(mask)
        if key not in self.cache:  # which holds the arrays, so that their ids stay valid
            self.cache[key] = self._compute(node, indices, mask), indices, mask
        values: Array = self.cache[key][0]
        return values

    def _compute(self, node: Node, indices: Indices, mask: Array | None) -> Array:
        if node.op is Op.CONST:
            return np.asarray(node.arg, node.dtype.np).astype(register_dtype(node.dtype))
        if node.op is Op.IOTA:
            return indices[0].astype(register_dtype(node.dtype))
        if node.op is Op.PART and node.src[0].op is Op.IOTA:
            return (indices[0] + self._begin(node)).astype(register_dtype(node.dtype))
        if node.op in (Op.BUFFER, Op.PART) or node.op in MOVEMENT:
            return self._moved(node, indices, mask)
        if node.op is Op.GATHER:
            return self._gathered(node, indices, mask)
        if node.op in ELEMENTWISE:
            return apply_op(node.op, node, *(self.value(s, indices, mask) for s in node.src))
        if node.op in REDUCE:
            return self._reduced(node, indices, mask)
        if node.op is Op.DOT:
            return self._product(node, indices, mask)
        raise ValueError(f"{self.kernel.name}: {node.op.name} cannot be emulated")

    def _moved(self, node: Node, indices: Indices, mask: Array | None) -> Array:
        source, moved = source_and_access(node)
        offsets, valid = offsets_at(moved, indices)
        inside = conjunction(valid, mask)
        if source.op is Op.PART and source.src[0].op is not Op.IOTA:
            offsets, source = offsets + self._begin(source), buffer(storage(source))
        if source.op is Op.BUFFER:
            what = f"a read of {node.op.name.lower()}" if node.op in MOVEMENT else "a read"
            return self.sanitizer.read(what, source.arg, offsets, inside, self.loops)
        if inside is not None:
            offsets = np.where(inside, offsets, 0)
        if offsets.min() < 0 or offsets.max() >= source.size:
            raise IndexError(f"{self.kernel.name}: {moved} leads out of {source.shape}")
        values = self.value(source, _unravel(offsets, source.shape), inside)
        return values if valid is None else np.where(valid, values, values.dtype.type(0))

    def _gathered(self, node: Node, indices: Indices, mask: Array | None) -> Array:
        table, index = node.src
        rank = len(index.shape)
        rows = np.asarray(self.value(index, indices[:rank], mask), np.int64)
        out_of_range = conjunction((rows < 0) | (rows >= table.shape[0]), mask)
        if out_of_range is not None and out_of_range.any():
            row = np.broadcast_to(rows, out_of_range.shape)[out_of_range][0]
            raise IndexError(f"{self.kernel.name}: there is no row {row} in a table {table.shape}")
        return self.value(table, (rows, *indices[rank:]), mask)

    def _reduced(self, node: Node, indices: Indices, mask: Array | None) -> Array:
        (source,) = node.src
        count = len(node.arg)
        inner = index_grid([source.shape[axis] for axis in node.arg], _rank(indices))
        along = dict(zip(node.arg, inner, strict=True))
        outside = iter(_add_inner_axes(indices, count))
        every = tuple(along[a] if a in along else next(outside) for a in range(len(source.shape)))
        guard = None if mask is None else _add_inner_axes([mask], count)[0]
        terms = self.value(source, every, guard)
        shape = np.broadcast_shapes(terms.shape, *(i.shape for i in every))
        join = np.sum if node.op is Op.SUM else np.max
        axes = tuple(range(len(shape) - count, len(shape)))
        return np.asarray(
            join(np.broadcast_to(terms, shape), axis=axes), register_dtype(node.dtype)
        )

    def _product(self, node: Node, indices: Indices, mask: Array | None) -> Array:
        """A product at a whole grid of indices, by factors [..., M, 1, K] and [..., 1, N, K]."""
        *lead, row, column = _add_inner_axes(indices, 1)
        (inner,) = index_grid([node.src[0].shape[-1]], _rank(indices))
        guard = None if mask is None else _add_inner_axes([mask], 1)[0]
        left = self.value(node.src[0], (*lead, row, inner), guard)
        right = self.value(node.src[1], (*lead, inner, column), guard)
        *batch, rows, columns = node.shape
        left = np.broadcast_to(left, (*batch, rows, 1, inner.size))[..., 0, :]
        right = np.broadcast_to(right, (*batch, 1, columns, inner.size))[..., 0, :, :]
        product: Array = left @ right.swapaxes(-1, -2)
        return product


def _add_inner_axes(arrays: Sequence[Array], count: int) -> Indices:
    """The arrays with `count` more axes at the end."""
    return tuple(a[(..., *[None] * count)] for a in arrays)


def _unravel(flat: Array, shape: Shape) -> Indices:
    """np.unravel_index, which NumPy 2.4 gets wrong beyond 8,192 elements in several axes."""
    indices = []
    for size in reversed(shape):
        indices.append(flat % size)
        flat = flat // size
    return tuple(reversed(indices))


def _rank(indices: Indices) -> int:
    return max((i.ndim for i in indices), default=0)


# --- shared by both emulators ---


def index_grid(shape: Sequence[int], outer: int = 0) -> Indices:
    """The indices of all elements of a shape, an array for each axis, after `outer` more axes."""
    return tuple(np.ogrid[tuple(slice(0, n) for n in [*[1] * outer, *shape])])[outer:]


def conjunction(one: Array | None, other: Array | None) -> Array | None:
    """The conjunction of two conditions, where None is always true."""
    if one is None or other is None:
        return other if one is None else one
    both: Array = one & other
    return both


def offsets_at(where: Access, indices: Indices) -> tuple[Array, Array | None]:
    """The offsets of elements at some indices, and where they exist (None: everywhere)."""
    variables: list[Expr] = [Var(f"i{a}", 0, n - 1) for a, n in enumerate(where.shape)]
    env = {f"i{axis}": index for axis, index in enumerate(indices)}
    offset, valid = where.index(variables)
    offsets = np.asarray(offset.evaluate(env), np.int64)
    if not offsets.ndim:
        offsets = offsets.reshape([1] * _rank(indices))
    return offsets, None if valid is ONE else np.asarray(valid.evaluate(env)) != 0


def apply_op(op: Op, result: Any, *src: Array) -> Array:
    """The result of an elementwise operation, rounded to the dtype of `result`."""
    dtype: DType = result.dtype
    if op is Op.WHERE:  # the condition may be an index, which is 0 or 1
        src = (src[0] != 0, *src[1:])
    return np.asarray(FUNCTIONS[op](result)(*src), dtype.np).astype(
        register_dtype(dtype), copy=False
    )
