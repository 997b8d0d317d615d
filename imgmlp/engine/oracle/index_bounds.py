"""Bounds of indices that come from the host, checked before a step gathers rows by them.

An index comes from the host if it is made of constants and of Buffers that the host filled, by
moving, casting and joining alone. Each of its Buffers keeps the bounds while there is a reader that
gathers by it. So whatever the host writes there later is checked as well. Computed indices are
checked under DEBUG, and if they are computed at once (runtime/index_checks.py).
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

# Operations of which an index from the host may consist.
DATA_MOVEMENT = MOVEMENT | {
    *(Op.BUFFER, Op.CONST, Op.IOTA),
    *(Op.CAST, Op.CONCAT, Op.CONTIGUOUS, Op.GATHER),
}
# Operations whose value has just the elements of its first source.
SAME_ELEMENTS = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.FUNCTION})

Sources = tuple["ref[Buffer]", ...]  # weak: Buffers that keep an index do not keep each other
Key = tuple[Node, Sources]  # an index with PARAMETERs instead of its Buffers, and these
Bounds = tuple[int, int]  # low <= index < high
BoundedIndex = tuple[Node, int, int]  # an index that a user passed, and its bounds


def _source_buffers(value: Node) -> list[Node] | None:
    """The BUFFERs whose elements a value consists of; None if it is computed."""
    nodes = toposort([value], lambda n: n.src if n.op in DATA_MOVEMENT else ())
    if not all(n.op in DATA_MOVEMENT for n in nodes):
        return None
    return [n for n in nodes if n.op is Op.BUFFER]


def is_from_host(value: Node) -> bool:
    """Whether all elements of a value come from the host."""
    leaves = _source_buffers(value)
    return leaves is not None and all(n.arg.host is not None or n.arg.is_from_host for n in leaves)


_user_indices = WeakKeyDictionary[Node, set[Node]]()


def bound_gather(gather: Node, bounded: Sequence[BoundedIndex]) -> None:
    """Keep the bounds of the indices that a user passed to a GATHER, which hold now.

    `gather` may also be a FUNCTION as in `gather_index`. Indices that the engine makes itself are
    right, and need no bounds.
    """
    if bounded:
        _user_indices.setdefault(gather, set()).update(index for index, *_ in bounded)
    for index, low, high in bounded:
        bound_index(index, low, high, gather)


def gather_index(node: Node) -> tuple[Node, int] | None:
    """(index, number of rows) of a Node that gathers rows by an index; None if it does not.

    That is a GATHER, or a bounded FUNCTION of an EQ between positions along the last axis and the
    index.
    """
    if node.op is Op.GATHER:
        return node.src[1], node.src[0].shape[0]
    if node.op is Op.FUNCTION and node in _user_indices:
        return node.src[0].src[1], node.shape[-1]
    return None


# Values made by gradient rules, and the gathered value that they come from. Its bounds must hold
# for them as well, though they need not contain it.
_derived_from = WeakKeyDictionary[Node, Node]()


def keep_bounds_for_gradient(values: Iterable[Node | None], g: Node, gathered: Node) -> None:
    """Keep the bounds of a gathered value's index as long as the values of its gradient rule exist.

    `values` are these values, computed from the value `gathered` and its gradient `g`.
    """
    gather = gathered
    while gather.op in MOVEMENT or gather.op is Op.FUNCTION:
        gather = gather.src[0]
    if gather not in _user_indices:
        return

    def sources(node: Node) -> Sequence[Node]:
        return () if node is g or node.number <= gathered.number else node.src

    for node in toposort(filter(None, values), sources):
        if node is not g and node.number > gathered.number:
            _derived_from[node] = gathered


def has_computed_index(gather: Node) -> bool:
    """Whether an index that the user passed is computed, so that it has no bounds to check."""
    return not all(map(is_from_host, _user_indices.get(gather, ())))


def find_out_of_bounds(index: Node, low: int, high: int) -> int | None:
    """A current element of an index that is not in [low, high); None if there is none or if the
    index is computed."""
    key = _key_of_index(index)
    return None if key is None else _find_wrong_index(*key, low, high)


def bound_index(index: Node, low: int, high: int, reader: object) -> None:
    """Keep bounds for an index that comes from the host, as long as its reader exists.

    The reader is a Node or a Program. What is built in the body of a loop becomes another Node when
    the loop is closed, so there the bounds are kept for good.
    """
    if (key := _key_of_index(index)) is not None:
        _add_bounds(key, (low, high), None if building.depth else reader)


def _key_of_index(index: Node) -> Key | None:
    """An index with PARAMETERs instead of its Buffers, and these; None if it is computed."""
    while index.op in SAME_ELEMENTS:
        index = index.src[0]
    leaves = _source_buffers(index)
    if leaves is None:
        return None
    (moved,) = substitute([index], {n: parameter(0, i, n) for i, n in enumerate(leaves)})
    return moved, tuple(ref(n.arg) for n in leaves)


def _add_bounds(key: Key, bounds: Bounds, reader: object) -> None:
    for storage in filter(None, (source() for source in key[1])):
        _narrow_bounds(storage, key, bounds, storage if reader is None else reader)


def _narrow_bounds(storage: Buffer, key: Key, bounds: Bounds, reader: object) -> None:
    if storage.readers is None:
        storage.readers = WeakKeyDictionary()
    limits = storage.readers.setdefault(reader, {})
    low, high = limits.get(key, bounds)
    limits[key] = max(low, bounds[0]), min(high, bounds[1])


# --- bounds as data, for a process that does not trace the step that set them ---


@contextmanager
def separate_bounds(states: Sequence[Buffer]) -> Iterator[None]:
    """A context in which Buffers have only bounds set there; afterwards also the earlier ones."""
    before = {storage: storage.readers for storage in states}
    for storage in states:
        storage.readers = None
    try:
        yield
    finally:
        for storage, readers in before.items():
            for reader, limits in [] if readers is None else list(readers.items()):
                for key, bounds in limits.items():
                    _narrow_bounds(storage, key, bounds, reader)


def export_bounds(states: Sequence[Buffer]) -> list[list[Any]] | None:
    """The bounds of some Buffers as data for JSON; None if any depends on other Buffers.

    Each entry has the Nodes of an index, sources first, the numbers of its Buffers, and its bounds.
    """
    numbers = {ref(b): number for number, b in enumerate(states)}
    entries: dict[Key, list[Any]] = {}
    for storage in states:
        for (index, sources), limits in storage.limits.items():
            nodes = _nodes_as_data(index)
            if nodes is None or not numbers.keys() >= {*sources}:
                return None
            entries[index, sources] = [nodes, [numbers[s] for s in sources], list(limits)]
    return list(entries.values())


def import_bounds(
    data: Sequence[Sequence[Any]],
    states: Sequence[Buffer],
    assigned: Sequence[Buffer],
    reader: object,
) -> bool:
    """Set exported bounds for these Buffers, as long as their reader exists.

    Sets nothing and returns False if current values are out of bounds, if `data` does not come from
    `export_bounds`, or if a Buffer that the step assigns has other bounds too: these can only be
    checked for the step's graph.
    """
    imported = dict[Key, Bounds]()
    try:
        for nodes, numbers, (low, high) in data:
            imported[_index_from_data(nodes), tuple(ref(states[n]) for n in numbers)] = low, high
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return False
    is_out_of_bounds = any(
        _find_wrong_index(*key, *bounds) is not None for key, bounds in imported.items()
    )
    if is_out_of_bounds or any(
        not storage.limits.items() <= imported.items() for storage in assigned
    ):
        return False
    for key, bounds in imported.items():
        _add_bounds(key, bounds, reader)
    return True


def _nodes_as_data(index: Node) -> list[list[Any]] | None:
    """The Nodes of an index as data, sources first; None if an argument is no whole number."""
    numbers: dict[Node, int] = {}
    entries = []
    for node in toposort([index]):
        if not _is_json_data(node.arg):
            return None
        sources = [numbers[s] for s in node.src]
        entries.append([node.op.name, sources, node.arg, node.shape, node.dtype.name])
        numbers[node] = len(numbers)
    return entries


def _is_json_data(arg: object) -> bool:
    if isinstance(arg, tuple):
        return all(map(_is_json_data, arg))
    return arg is None or type(arg) in (int, bool)


def _index_from_data(data: Sequence[Sequence[Any]]) -> Node:
    nodes: list[Node] = []
    for op, sources, arg, shape, kind in data:
        own = tuple(nodes[n] for n in sources)
        nodes.append(graph.make(Op[op], own, _tuples(arg), tuple(shape), getattr(dtype, kind)))
    return nodes[-1]


def _tuples(arg: Any) -> Any:
    return tuple(map(_tuples, arg)) if isinstance(arg, list) else arg


def check_written(storage: Buffer, array: Array) -> None:
    """Raise OutOfBoundsError if the host is about to write wrong indices to a Buffer."""
    for (index, sources), limits in storage.limits.items():
        _refuse(storage, _find_wrong_index(index, sources, *limits, storage, array), *limits)


def check_assigned(storage: Buffer, value: Node, program: object) -> None:
    """The same for the value that a step assigns, as far as it comes from the host.

    Later writes are checked as well, as long as the step's Program exists.
    """
    for (index, sources), limits in storage.limits.items():
        buffers = [source() for source in sources]
        if all(b is not None for b in buffers):
            values = [value if b is storage else graph.buffer(b) for b in buffers if b is not None]
            replaced = dict(zip(_index_parameters(index), values, strict=True))
            (moved,) = substitute([index], replaced)
            _refuse(storage, find_out_of_bounds(moved, *limits), *limits)
            bound_index(moved, *limits, program)


def _refuse(storage: Buffer, wrong: int | None, low: int, high: int) -> None:
    if wrong is not None:
        problem = f"{storage!r} holds indices from {low} to {high - 1}, and {wrong} is none of them"
        raise misuse(OutOfBoundsError, problem)


def _find_wrong_index(
    index: Node, sources: Sequence[ref[Buffer]], low: int, high: int,
    written: Buffer | None = None, array: Array | None = None,
) -> int | None:  # fmt: skip
    """An element of an index that is out of bounds once an array is written to a Buffer; None if
    there is none or if the host does not know all values."""
    if not index.size:
        return None
    buffers = [source() for source in sources]
    arrays = [array if b is written and b is not None else _host_values(b) for b in buffers]
    values = {p: a for p, a in zip(_index_parameters(index), arrays, strict=True) if a is not None}
    if len(values) < len(arrays):
        return None
    (indices,) = _evaluation(index).run({}, values)
    if low <= indices.min() and indices.max() < high:
        return None
    return int(indices[(indices < low) | (indices >= high)].flat[0])


def _host_values(storage: Buffer | None) -> Array | None:
    """The values that the host wrote to a Buffer, read from the device if there is no copy left."""
    if storage is None or storage.host is not None:
        return None if storage is None else storage.host
    if (
        not storage.is_from_host or storage.data is None or storage.data.handle is None
    ):  # of a dry run
        return None
    array = np.empty(storage.shape, storage.dtype.np)
    storage.device.read(storage.data, array)
    return array


@lru_cache(maxsize=256)
def _index_parameters(index: Node) -> list[Node]:
    """The PARAMETERs of an index, in the order of its Buffers."""
    parameters = (n for n in toposort([index]) if n.op is Op.PARAMETER)
    return sorted(parameters, key=lambda n: n.arg)


@lru_cache(maxsize=256)
def _evaluation(index: Node) -> Evaluation:
    return Evaluation([index])
