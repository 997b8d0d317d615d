"""Tile skipping: a tile computes nothing for sums over rows to which it adds only zeros.

In: the terms of a tile's sums, and the kernels of the tile. Out: kernels with guards.

The terms of a sum may be where(condition, terms, 0), with a condition that is the same for all rows
of a tile. Then the kernels for that sum are guarded by the condition, and take the terms without
it. A kernel must be guarded only if nothing unguarded reads its values. (A skipped tile also skips
infinities and NaNs that a factor of 0 would have turned into NaN.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from imgmlp.engine.ir.graph import Buffer, Node, base, const, move
from imgmlp.engine.ir.index_values import index_value, source_and_access
from imgmlp.engine.ir.kernel import Guard, Kernel
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, Op
from imgmlp.engine.ir.symbolic import ONE, Expr, Var, unravel


def split_condition(terms: Node) -> tuple[Node, Node] | None:
    """(condition, terms) of a tile's terms that are all 0 unless one bool is true; else None."""
    if terms.op is Op.PERMUTE:
        inner = split_condition(terms.src[0])
        return inner and (inner[0], move(Op.PERMUTE, inner[1], terms.arg))
    if terms.op is not Op.WHERE or terms.src[2] is not const(0, terms.dtype, terms.shape):
        return None
    condition, values, _ = terms.src
    indices = [Var(f"i{axis}", 0, n - 1) for axis, n in enumerate(condition.shape)]
    if not _is_uniform(condition, indices):
        return None
    first = move(Op.SHRINK, condition, tuple((0, 1) for _ in indices))
    return move(Op.RESHAPE, first, ()), values


def _is_uniform(node: Node, indices: Sequence[Expr]) -> bool:
    """Whether a value is the same at all indices of a tile."""
    value = index_value(node, indices)
    if value is not None:
        return _depends_on_tile_only(value)
    if node.op in ELEMENTWISE:
        return all(_is_uniform(source, indices) for source in node.src)
    if node.op not in MOVEMENT and node.op is not Op.BUFFER:
        return False
    source, moved = source_and_access(node)
    offset, valid = moved.index(indices)
    if source.op is Op.BUFFER:
        return valid is ONE and _depends_on_tile_only(offset)
    return valid is ONE and _is_uniform(source, unravel(offset, source.shape))


def _depends_on_tile_only(value: Expr) -> bool:
    return all(v.name == "tile" for v in value.variables())


def guard_kernels(
    kernels: Sequence[Kernel], when: Mapping[Node, Node], own: set[Buffer]
) -> list[Kernel] | None:
    """The kernels of a tile, with guards on those that add to the places in `when`.

    A kernel that stores only to the tile's `own` Buffers gets the guard of its readers, if they all
    have the same. None if a kernel adds to several places with different conditions.
    """
    wanted = {_piece(place): condition for place, condition in when.items()}
    guarded, seen = list[Kernel](), set[Node]()
    for kernel in kernels:
        pieces = [_piece(s.place) for s in kernel.all_stores()]
        conditions = {wanted.get(piece) for piece in pieces}
        if len(conditions) > 1:
            return None
        (condition,) = conditions
        if condition is not None:
            kernel = replace(kernel, guards=(*kernel.guards, Guard(condition, True)))
            seen.update(pieces)
        guarded.append(kernel)
    if seen != wanted.keys():
        return None
    for number, kernel in reversed(list(enumerate(kernels))):
        written = own.intersection(kernel.writes())
        readers = {k.guards for k in guarded if k is not kernel and written.intersection(k.reads())}
        if not kernel.guards and written.issuperset(kernel.writes()) and len(readers) == 1:
            guarded[number] = replace(
                guarded[number], guards=guarded[number].guards or readers.pop()
            )
    return guarded


def _piece(place: Node) -> Node:
    """The piece of a Buffer that a place covers, without reshapes."""
    return base(place, MOVEMENT - {Op.SHRINK})
