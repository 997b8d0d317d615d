"""Sums over rows that whole tiles are left out of.

Where all terms of a sum are 0 unless a condition holds, and that is the same for all rows of a
tile, the tile has nothing to compute for the sum where it does not hold: its kernels are guarded
by the condition, and take the terms as they are. (Infinities in what such terms are multiplied by
are then left out as well.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from imgmlp.engine.ir.graph import Buffer, Node, base, const, move
from imgmlp.engine.ir.index_values import index_value, through
from imgmlp.engine.ir.kernel import Guard, Kernel
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, Op
from imgmlp.engine.ir.symbolic import ONE, Expr, Var, unravel


def chosen(terms: Node) -> tuple[Node, Node] | None:
    """A bool without which all terms of a tile are 0, and what they are with it; None if nothing
    but each of them says what it is."""
    if terms.op is Op.PERMUTE:
        inner = chosen(terms.src[0])
        return inner and (inner[0], move(Op.PERMUTE, inner[1], terms.arg))
    if terms.op is not Op.WHERE or terms.src[2] is not const(0, terms.dtype, terms.shape):
        return None
    condition, found, _ = terms.src
    indices = [Var(f"i{axis}", 0, n - 1) for axis, n in enumerate(condition.shape)]
    if not _is_everywhere(condition, indices):
        return None
    first = move(Op.SHRINK, condition, tuple((0, 1) for _ in indices))
    return move(Op.RESHAPE, first, ()), found


def _is_everywhere(node: Node, indices: Sequence[Expr]) -> bool:
    """Whether a value is the same at all of these indices."""
    value = index_value(node, indices)
    if value is not None:
        return _is_fixed(value)
    if node.op in ELEMENTWISE:
        return all(_is_everywhere(source, indices) for source in node.src)
    if node.op not in MOVEMENT and node.op is not Op.BUFFER:
        return False
    source, moved = through(node)
    offset, valid = moved.index(indices)
    if source.op is Op.BUFFER:
        return valid is ONE and _is_fixed(offset)
    return valid is ONE and _is_everywhere(source, unravel(offset, source.shape))


def _is_fixed(value: Expr) -> bool:
    return all(v.name == "tile" for v in value.variables())


def guarded(
    kernels: Sequence[Kernel], when: Mapping[Node, Node], own: set[Buffer]
) -> list[Kernel] | None:
    """Kernels that do nothing where the bool of the place that they add to does not hold, nor those
    that leave values in a tile's `own` Buffers for such kernels alone; None if one of them adds to
    several places that are not alike."""
    wanted = {_piece(place): condition for place, condition in when.items()}
    found, seen = list[Kernel](), set[Node]()
    for kernel in kernels:
        pieces = [_piece(s.place) for s in kernel.all_stores()]
        conditions = {wanted.get(piece) for piece in pieces}
        if len(conditions) > 1:
            return None
        (condition,) = conditions
        if condition is not None:
            kernel = replace(kernel, guards=(*kernel.guards, Guard(condition, True)))
            seen.update(pieces)
        found.append(kernel)
    if seen != wanted.keys():
        return None
    for number, kernel in reversed(list(enumerate(kernels))):
        written = own.intersection(kernel.writes())
        readers = {k.guards for k in found if k is not kernel and written.intersection(k.reads())}
        if not kernel.guards and written.issuperset(kernel.writes()) and len(readers) == 1:
            found[number] = replace(found[number], guards=found[number].guards or readers.pop())
    return found


def _piece(place: Node) -> Node:
    """The piece of a Buffer that a place is, in whatever shape."""
    return base(place, MOVEMENT - {Op.SHRINK})
