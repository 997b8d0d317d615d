"""Indices that the host gives, checked before a step takes rows by them.

An index is given where moving, casting and joining alone make it of Buffers that the host filled,
and of constants. Each of its Buffers keeps which values must lie where, as long as there is what
takes rows by it, so that whatever the host puts there later is checked as well. What is computed
otherwise is checked under DEBUG, and where it is computed at once (runtime/index_checks.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from imgmlp.engine.ir import dtype, graph
from imgmlp.engine.ir.control_flow import building, parameter
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.graph import Buffer, Node, substitute, toposort
from imgmlp.engine.ir.op import MOVEMENT, Op
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse
from imgmlp.engine.oracle.interpret import Evaluation

MOVED = MOVEMENT | {Op.BUFFER, Op.CONST, Op.IOTA, Op.CAST, Op.CONCAT, Op.CONTIGUOUS, Op.GATHER}
SAME = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.FUNCTION})  # has all of its first source

Sources = tuple["ref[Buffer]", ...]  # Buffers that keep an index do not keep each other
Key = tuple[Node, Sources]  # an index, with PARAMETERs for its Buffers
Ends = tuple[int, int]
Asked = tuple[Node, int, int]  # an index that a user gave, from where up to where it must stay


def _moved_from(value: Node) -> list[Node] | None:
    """The BUFFERs that a value is moved from; None if it is computed."""
    nodes = toposort([value], lambda n: n.src if n.op in MOVED else ())
    return [n for n in nodes if n.op is Op.BUFFER] if all(n.op in MOVED for n in nodes) else None


def is_given(value: Node) -> bool:
    """Whether the host gave all that a value is moved from."""
    leaves = _moved_from(value)
    return leaves is not None and all(n.arg.host is not None or n.arg.given for n in leaves)


_asked = WeakKeyDictionary[Node, set[Node]]()


def ask(gather: Node, asked: Sequence[Asked]) -> None:
    """Remember what the user has given a GATHER, or a FUNCTION as in `taken_by`, for indices, none
    of them `beyond`. Those that the engine makes itself are right."""
    if asked:
        _asked.setdefault(gather, set()).update(index for index, *_ in asked)
    for index, low, high in asked:
        limit(index, low, high, gather)


def taken_by(node: Node) -> tuple[Node, int] | None:
    """The index by which a Node takes rows, and how many there are; None if it takes none.

    Beside GATHERs that is a FUNCTION, if it was `asked`, of an EQ of what may be taken, along the
    last axis, and the index.
    """
    if node.op is Op.GATHER:
        return node.src[1], node.src[0].shape[0]
    if node.op is Op.FUNCTION and node in _asked:
        return node.src[0].src[1], node.shape[-1]
    return None


# What gradient rules have made of a value that took rows: it need not contain that, whose limits
# hold for it too.
_made_of = WeakKeyDictionary[Node, Node]()


def keep_for(made: Iterable[Node | None], g: Node, taken: Node) -> None:
    """Have limits of indices by which rows were `taken` hold as long as there is what a gradient
    rule `made` of it and its gradient `g`."""
    gather = taken
    while gather.op in MOVEMENT or gather.op is Op.FUNCTION:
        gather = gather.src[0]
    if gather not in _asked:
        return

    def sources(node: Node) -> Sequence[Node]:
        return () if node is g or node.number <= taken.number else node.src

    for node in toposort(filter(None, made), sources):
        if node is not g and node.number > taken.number:
            _made_of[node] = taken


def may_be_beyond(gather: Node) -> bool:
    """Whether indices that the user gave are computed, so that no limit is known of them."""
    return not all(map(is_given, _asked.get(gather, ())))


def beyond(index: Node, low: int, high: int) -> int | None:
    """An index of now that does not lie from `low` up to `high` - 1, as far as they are given."""
    key = _key_of(index)
    return None if key is None else _wrong(*key, low, high)


def limit(index: Node, low: int, high: int, reader: object) -> None:
    """Have an index stay there, if it is given, as long as there is its reader: a Node or Program.

    What is built in the body of a loop is another Node once the loop is closed; there an index is
    limited for good.
    """
    if (key := _key_of(index)) is not None:
        _keep_limit(key, (low, high), None if building.depth else reader)


def _key_of(index: Node) -> Key | None:
    """An index without its Buffers, and these; None if it is computed."""
    while index.op in SAME:
        index = index.src[0]
    leaves = _moved_from(index)
    if leaves is None:
        return None
    (moved,) = substitute([index], {n: parameter(0, i, n) for i, n in enumerate(leaves)})
    return moved, tuple(ref(n.arg) for n in leaves)


def _keep_limit(key: Key, ends: Ends, reader: object) -> None:
    for storage in filter(None, (source() for source in key[1])):
        _narrow(storage, key, ends, storage if reader is None else reader)


def _narrow(storage: Buffer, key: Key, ends: Ends, reader: object) -> None:
    if storage.readers is None:
        storage.readers = WeakKeyDictionary()
    limits = storage.readers.setdefault(reader, {})
    low, high = limits.get(key, ends)
    limits[key] = max(low, ends[0]), min(high, ends[1])


# What a process tells the next one, which does not trace the step that set the limits


@contextmanager
def own_limits(states: Sequence[Buffer]) -> Iterator[None]:
    """Within, Buffers have no limits but those set here; afterwards those of before as well."""
    before = {storage: storage.readers for storage in states}
    for storage in states:
        storage.readers = None
    try:
        yield
    finally:
        for storage, readers in before.items():
            for reader, limits in [] if readers is None else list(readers.items()):
                for key, ends in limits.items():
                    _narrow(storage, key, ends, reader)


def limits_told(states: Sequence[Buffer]) -> list[list[Any]] | None:
    """What limits some Buffers as data for JSON; None if any depends on something else.

    Each is the Nodes of an index, sources first, the numbers of its Buffers, and its limits.
    """
    numbers = {ref(b): number for number, b in enumerate(states)}
    found: dict[Key, list[Any]] = {}
    for storage in states:
        for (index, sources), limits in storage.limits.items():
            nodes = _nodes_told(index)
            if nodes is None or not numbers.keys() >= {*sources}:
                return None
            found[index, sources] = [nodes, [numbers[s] for s in sources], list(limits)]
    return list(found.values())


def set_limits(
    told: Sequence[Sequence[Any]],
    states: Sequence[Buffer],
    assigned: Sequence[Buffer],
    reader: object,
) -> bool:
    """Limit these Buffers as others like them were, as long as there is their reader.

    False, and nothing, if their values are beyond, if those that the step assigns have other limits
    too, which only its graph can be checked for, or for what `limits_told` has not given.
    """
    found = dict[Key, Ends]()
    try:
        for nodes, numbers, (low, high) in told:
            found[_index_of(nodes), tuple(ref(states[n]) for n in numbers)] = low, high
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return False
    wrong = any(_wrong(*key, *ends) is not None for key, ends in found.items())
    if wrong or any(not storage.limits.items() <= found.items() for storage in assigned):
        return False
    for key, ends in found.items():
        _keep_limit(key, ends, reader)
    return True


def _nodes_told(index: Node) -> list[list[Any]] | None:
    """Those of an index by number, sources first; None if one has more to it than whole numbers."""
    numbers: dict[Node, int] = {}
    found = []
    for node in toposort([index]):
        if not _is_plain(node.arg):
            return None
        sources = [numbers[s] for s in node.src]
        found.append([node.op.name, sources, node.arg, node.shape, node.dtype.name])
        numbers[node] = len(numbers)
    return found


def _is_plain(arg: object) -> bool:
    if isinstance(arg, tuple):
        return all(map(_is_plain, arg))
    return arg is None or type(arg) in (int, bool)


def _index_of(told: Sequence[Sequence[Any]]) -> Node:
    nodes: list[Node] = []
    for op, sources, arg, shape, kind in told:
        own = tuple(nodes[n] for n in sources)
        nodes.append(graph.make(Op[op], own, _tuples(arg), tuple(shape), getattr(dtype, kind)))
    return nodes[-1]


def _tuples(arg: Any) -> Any:
    return tuple(map(_tuples, arg)) if isinstance(arg, list) else arg


def check_written(storage: Buffer, array: Array) -> None:
    """Refuse what the host would put into a Buffer that steps take rows by."""
    for (index, sources), limits in storage.limits.items():
        _refuse(storage, _wrong(index, sources, *limits, storage, array), *limits)


def check_assigned(storage: Buffer, value: Node, program: object) -> None:
    """The same for what a step will put there, as far as that is given, now and later: as long as
    there is its Program."""
    for (index, sources), limits in storage.limits.items():
        buffers = [source() for source in sources]
        if all(b is not None for b in buffers):
            values = [value if b is storage else graph.buffer(b) for b in buffers if b is not None]
            replaced = dict(zip(_parameters(index), values, strict=True))
            (moved,) = substitute([index], replaced)
            _refuse(storage, beyond(moved, *limits), *limits)
            limit(moved, *limits, program)


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


@lru_cache(maxsize=256)
def _parameters(index: Node) -> list[Node]:
    """What stands for its Buffers, in their order."""
    found = (n for n in toposort([index]) if n.op is Op.PARAMETER)
    return sorted(found, key=lambda n: n.arg)


@lru_cache(maxsize=256)
def _evaluation(index: Node) -> Evaluation:
    return Evaluation([index])
