"""Indices that the host gives, checked before a step takes rows by them.

An index is given where moving, casting and joining alone make it of Buffers that the host filled,
and of constants. Each of its Buffers keeps which values must lie where, so that whatever the host
puts there later is checked as well. What is computed otherwise is checked under DEBUG
(runtime/index_checks.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from weakref import ref

import numpy as np

from imgmlp.engine.ir import graph
from imgmlp.engine.ir.control_flow import parameter
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.graph import Buffer, Node, substitute, toposort
from imgmlp.engine.ir.op import MOVEMENT, Op
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse
from imgmlp.engine.oracle.interpret import Evaluation

MOVED = MOVEMENT | {Op.BUFFER, Op.CONST, Op.IOTA, Op.CAST, Op.CONCAT, Op.CONTIGUOUS, Op.GATHER}
SAME = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.FUNCTION})  # has all of its first source

Sources = tuple["ref[Buffer]", ...]  # Buffers that keep an index do not keep each other


def _moved_from(value: Node) -> list[Node] | None:
    """The BUFFERs that a value is moved from; None if it is computed."""
    nodes = toposort([value], lambda n: n.src if n.op in MOVED else ())
    return [n for n in nodes if n.op is Op.BUFFER] if all(n.op in MOVED for n in nodes) else None


def is_given(value: Node) -> bool:
    """Whether the host gave all that a value is moved from."""
    leaves = _moved_from(value)
    return leaves is not None and all(n.arg.host is not None or n.arg.given for n in leaves)


def limit(index: Node, low: int, high: int) -> int | None:
    """Have an index stay from `low` up to `high` - 1, if it is given: one of now that does not."""
    while index.op in SAME:
        index = index.src[0]
    leaves = _moved_from(index)
    if leaves is None:
        return None
    (moved,) = substitute([index], {n: parameter(0, i, n) for i, n in enumerate(leaves)})
    key = moved, tuple(ref(n.arg) for n in leaves)
    wrong = _wrong(*key, low, high)
    if wrong is None:
        for n in leaves:
            least, end = n.arg.limits.get(key, (low, high))
            n.arg.limits[key] = max(low, least), min(high, end)
    return wrong


def check_written(storage: Buffer, array: Array) -> None:
    """Refuse what the host would put into a Buffer that steps take rows by."""
    for (index, sources), limits in storage.limits.items():
        _refuse(storage, _wrong(index, sources, *limits, storage, array), *limits)


def check_assigned(storage: Buffer, value: Node) -> None:
    """The same for what a step will put there, as far as that is given, now and later."""
    for (index, sources), limits in list(storage.limits.items()):
        buffers = [source() for source in sources]
        if all(b is not None for b in buffers):
            values = [value if b is storage else graph.buffer(b) for b in buffers if b is not None]
            replaced = dict(zip(_parameters(index), values, strict=True))
            _refuse(storage, limit(substitute([index], replaced)[0], *limits), *limits)


def _refuse(storage: Buffer, wrong: int | None, low: int, high: int) -> None:
    if wrong is not None:
        problem = f"{storage!r} holds indices from {low} to {high - 1}, and {wrong} is none of them"
        raise misuse(OutOfBoundsError, problem)


def _wrong(
    index: Node, sources: Sequence[ref[Buffer]], low: int, high: int,
    written: Buffer | None = None, array: Array | None = None,
) -> int | None:  # fmt: skip
    """An index out of bounds, as far as anyone knows, once an array is written to a Buffer."""
    if not index.size:
        return None
    buffers = [source() for source in sources]
    arrays = [array if b is written and b is not None else _values(b) for b in buffers]
    known = {p: a for p, a in zip(_parameters(index), arrays, strict=True) if a is not None}
    if len(known) < len(arrays):
        return None
    (found,) = _evaluation(index).run({}, known)
    if low <= found.min() and found.max() < high:
        return None
    return int(found[(found < low) | (found >= high)].flat[0])


def _values(storage: Buffer | None) -> Array | None:
    """What the host put into a Buffer, by way of its device where the host has no copy left."""
    if storage is None or storage.host is not None:
        return None if storage is None else storage.host
    if not storage.given or storage.data is None or storage.data.handle is None:  # of a dry run
        return None
    array = np.empty(storage.shape, storage.dtype.np)
    storage.device.read(storage.data, array)
    return array


def _parameters(index: Node) -> list[Node]:
    """What stands for its Buffers, in their order."""
    found = (n for n in toposort([index]) if n.op is Op.PARAMETER)
    return sorted(found, key=lambda n: n.arg)


@lru_cache(maxsize=256)
def _evaluation(index: Node) -> Evaluation:
    return Evaluation([index])
