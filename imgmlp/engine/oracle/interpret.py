"""The interpreter of Node graphs in NumPy: the oracle of tests, and the device called `numpy`.

Each operation is an entry of a table. Arithmetic has the width of the Node's dtype, as on a device;
with `wide=True` floats are float64, with which tests compare. An Evaluation prepares all that does
not depend on the values of Buffers, and can be run many times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from imgmlp.engine.ir.dtype import Array, DType
from imgmlp.engine.ir.graph import Buffer, Node, toposort
from imgmlp.engine.ir.op import BINARY, CONTROL, ELEMENTWISE, LOAD, MOVEMENT, Op

Values = Mapping[Buffer, Array]
NodeValues = dict[Node, Any]  # an array for each Node; for a LOOP the list of its carried values


def lowbias32(x: Array) -> Array:
    """A 32-bit bijection of low bias: constants by C. Wellons' hash-prospector."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    mixed: Array = x ^ (x >> np.uint32(16))
    return mixed


def select(condition: Array, x: Array, y: Array) -> Array:
    """np.where(condition, x, y) of one dtype, without branches: y ^ ((x ^ y) * condition).

    np.where branches for each element, which processors cannot predict: on a Xeon with AVX-512 it
    takes six to ten times as long.
    """
    bits, shape = np.dtype(f"u{x.itemsize}"), condition.shape
    condition = condition.astype(np.bool_, copy=False)  # the emulators have integers there
    x_bits, y_bits = (_uniform(v, shape).view(bits) for v in (x, y))
    difference = np.asarray(x_bits ^ y_bits)
    target = difference if difference.shape == shape else None
    difference = np.multiply(difference, condition, out=target, dtype=bits)
    difference ^= y_bits
    chosen: Array = difference.view(x.dtype)
    return chosen


def _uniform(x: Array, shape: tuple[int, ...]) -> Array:
    """A single element of an array that repeats it over a whole shape; other arrays as they are."""
    return x[(slice(0, 1),) * x.ndim] if x.shape == shape and not any(x.strides) else x


def multiply_add(x: Array, y: Array, z: Array) -> Array:
    """x * y + z. Halves are rounded once, as products of halves are exact in float32."""
    if x.dtype != np.float16:
        return x * y + z
    return (x.astype(np.float32) * y + z).astype(np.float16)


def broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """np.broadcast_to(x, shape) of an array that fits, in a third of the time for small ones."""
    one = np.nditer(x, ("multi_index", "zerosize_ok"), ("readonly",), itershape=shape, order="C")
    view: Array = one.itviews[0]
    return view


def pad_with_zeros(x: Array, shape: tuple[int, ...], inside: tuple[slice, ...]) -> Array:
    """Zeros around an array. np.pad takes several times as long for small arrays."""
    padded = np.zeros(shape, x.dtype)
    padded[inside] = x
    return padded


def _pad_interior(node: Node) -> tuple[slice, ...]:
    """Where the source of a PAD lies within the result."""
    sides = zip(node.arg, node.shape, strict=True)
    return tuple(slice(before, size - after) for (before, after), size in sides)


def _slices(ranges: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(begin, end) for begin, end in ranges)


# For each operation: from a Node to the function that computes its value from those of its sources.
FUNCTIONS: dict[Op, Callable[[Node], Callable[..., Any]]] = {
    Op.CAST: lambda node: lambda x: x.astype(node.dtype.np),
    Op.NEG: lambda node: np.negative,
    Op.EXP2: lambda node: np.exp2,
    Op.LOG2: lambda node: np.log2,
    Op.SIN: lambda node: np.sin,
    Op.COS: lambda node: np.cos,
    Op.SQRT: lambda node: np.sqrt,
    Op.HASH: lambda node: lowbias32,
    Op.ADD: lambda node: np.add,
    Op.SUB: lambda node: np.subtract,
    Op.MUL: lambda node: np.multiply,
    Op.DIV: lambda node: np.divide if node.dtype.is_float else np.floor_divide,
    Op.MOD: lambda node: np.remainder,
    Op.FMOD: lambda node: np.fmod,
    Op.MAX: lambda node: np.maximum,
    Op.LT: lambda node: np.less,
    Op.EQ: lambda node: np.equal,
    Op.XOR: lambda node: np.bitwise_xor,
    Op.AND: lambda node: np.bitwise_and,
    Op.OR: lambda node: np.bitwise_or,
    Op.SHL: lambda node: np.left_shift,
    Op.SHR: lambda node: np.right_shift,
    Op.WHERE: lambda node: select,
    Op.MULACC: lambda node: multiply_add,
    Op.SUM: lambda node: lambda x: np.add.reduce(x, node.arg, x.dtype),
    Op.REDUCE_MAX: lambda node: partial(np.maximum.reduce, axis=node.arg),
    Op.RESHAPE: lambda node: lambda x: x.reshape(node.shape),
    Op.PERMUTE: lambda node: lambda x: x.transpose(node.arg),
    Op.EXPAND: lambda node: partial(broadcast, shape=node.shape),
    Op.PAD: lambda node: partial(pad_with_zeros, shape=node.shape, inside=_pad_interior(node)),
    Op.SHRINK: lambda node: itemgetter(_slices(node.arg)),
    Op.STRIDE: lambda node: itemgetter(tuple(slice(None, None, s) for s in node.arg)),
    Op.DOT: lambda node: np.matmul,
    Op.GATHER: lambda node: lambda table, index: np.asarray(table).take(index, 0),
    Op.CONCAT: lambda node: lambda *parts: np.concatenate(parts, node.arg),
    Op.CONTIGUOUS: lambda node: partial(np.asarray, order="C"),
    Op.FUNCTION: lambda node: lambda answer, *inputs: answer,
}


# Operations that broadcast one operand to the shape of others by themselves.
BROADCASTING = BINARY | {Op.MULACC}
# Operations whose values take no memory of their own, or are counted elsewhere.
WITHOUT_MEMORY = (MOVEMENT - {Op.PAD}) | CONTROL | (LOAD - {Op.IOTA}) | {Op.FUNCTION, Op.CONTIGUOUS}


def numpy_dtype(dtype: DType, wide: bool) -> np.dtype[Any]:
    return np.dtype(np.float64) if wide and dtype.is_float else np.dtype(dtype.np)


class Evaluation:
    """The computation of some Nodes from the values of Buffers, which can be run many times.

    Uniform values are computed once, here, and so is the last use of each other value. Of a COND
    only the chosen value is computed, by an Evaluation of its own, which drops no value of the
    `retained` Nodes that is there when it begins.
    """

    def __init__(
        self, roots: Sequence[Node], wide: bool = False, retained: Iterable[Node] | None = None
    ) -> None:
        self.roots, self.wide = roots, wide
        self._broadcast: Set[Node] = frozenset()
        order = toposort(roots, _unconditional_sources)
        self._uniform = self._uniform_values(order)
        already_computed = {*self._uniform, *(n for n in order if n.op is Op.PARAMETER)}
        if retained is None:  # otherwise other Evaluations may read any value
            self._broadcast = _broadcast_by_numpy(order, roots, already_computed)
        dead = _last_uses(order, roots, already_computed.union(retained or ()))
        self._calls = [
            (
                node,
                self._function(node),
                _single_source(node.src),
                _source_getter(node.src),
                dead.get(node, ()),
            )
            for node in order
            if node not in already_computed
        ]
        self._chosen: dict[Node, Evaluation] = {}  # by the source of a COND

    def _uniform_values(self, order: Sequence[Node]) -> NodeValues:
        """The values of Nodes that repeat one number, whatever the Buffers hold."""
        numbers: NodeValues = {}
        with np.errstate(all="ignore"):
            for node in order:
                if node.op is Op.CONST:
                    numbers[node] = np.asarray(node.arg, numpy_dtype(node.dtype, self.wide))
                elif all(s in numbers for s in node.src):
                    if node.op in MOVEMENT - {Op.PAD}:
                        numbers[node] = numbers[node.src[0]]
                    elif node.op in ELEMENTWISE and (function := self._function(node)):
                        numbers[node] = function(*[numbers[s] for s in node.src])
        return {node: np.broadcast_to(number, node.shape) for node, number in numbers.items()}

    def run(self, values: Values, done: Mapping[Node, Array] | None = None) -> list[Array]:
        """The values of the roots, from the values of Buffers, and of Nodes that are `done`."""
        with np.errstate(all="ignore"):
            return self._run(dict(done or {}), values)

    def _run(self, done: NodeValues, values: Values) -> list[Any]:
        """As `run`; computed values are added to `done`."""
        done |= self._uniform
        for node, function, only, taken, dead in self._calls:
            if node in done:
                continue
            if function is not None:
                done[node] = function(*taken(done)) if only is None else function(done[only])
            elif node.op is Op.COND:
                done[node] = self._choose(node, done, values)
            else:
                kind = numpy_dtype(node.dtype, self.wide)
                done[node] = np.asarray(values[node.arg], kind).reshape(node.shape)
            for old in dead:
                done.pop(old, None)  # the Evaluation of a COND may have removed it
        return [np.asarray(done[r]) for r in self.roots]

    def _function(self, node: Node) -> Callable[..., Any] | None:
        """The function from the values of a Node's sources to its own, if there is one."""
        if node.op in (Op.BUFFER, Op.COND):
            return None
        if node in self._broadcast:
            return _identity
        if node.op is Op.IOTA:
            return partial(np.arange, node.shape[0], dtype=node.dtype.np)
        if node.op is Op.CAST and self.wide and node.dtype.is_float:
            return lambda x: x.astype(np.float64)
        if node.op is Op.LOOP:
            return self._loop(node)
        if node.op is Op.RESULT:
            return itemgetter(node.arg)
        return FUNCTIONS[node.op](node)

    def _choose(self, node: Node, done: NodeValues, values: Values) -> Any:
        condition, a, b = node.src
        chosen = a if done[condition] else b
        if chosen not in done:
            if chosen not in self._chosen:
                self._chosen[chosen] = Evaluation([chosen], self.wide, retained=list(done))
            self._chosen[chosen]._run(done, values)
        return done[chosen]

    def _loop(self, node: Node) -> Callable[..., list[Array]]:
        """The function from a LOOP's sources to its carried values after the last iteration."""
        count, parameters = node.arg.count, node.arg.parameters
        body = Evaluation(node.arg.values, self.wide)
        states = len(body.roots)

        def run(*sources: Array) -> list[Array]:
            carried, captured = list(sources[:states]), sources[states:]
            for _ in range(count):
                carried = body._run(dict(zip(parameters, [*carried, *captured], strict=True)), {})
            return carried

        return run


def _single_source(sources: Sequence[Node]) -> Node | None:
    return sources[0] if len(sources) == 1 else None


def _source_getter(sources: Sequence[Node]) -> Callable[[NodeValues], Sequence[Any]]:
    """The function that takes the values of several sources, or of none, from all values."""
    return itemgetter(*sources) if len(sources) > 1 else lambda done: ()


def evaluate(roots: Sequence[Node], values: Values, wide: bool = False) -> list[Array]:
    """The values of the roots, from the values of the Buffers that they read."""
    return Evaluation(roots, wide).run(values)


def peak_bytes(roots: Sequence[Node]) -> int:
    """The most bytes of values that `evaluate` holds at one time; views count as nothing."""
    order = toposort(roots, _unconditional_sources)
    dead = _last_uses(order, roots, set())
    now = most = 0
    for node in order:
        now += value_bytes(node)
        most = max(most, now)
        now -= sum(map(value_bytes, dead.get(node, ())))
    return most


def value_bytes(node: Node) -> int:
    """Bytes of a Node's value beyond those of its sources."""
    return 0 if node.op in WITHOUT_MEMORY else node.size * node.dtype.itemsize


def _identity(x: Array) -> Array:
    return x


def _broadcast_by_numpy(
    order: Sequence[Node], roots: Sequence[Node], already_computed: Set[Node]
) -> Set[Node]:
    """EXPANDs that need not be done, as NumPy broadcasts an operand faster by itself.

    Another operand must have the whole shape. The result is empty if there is a COND, as the value
    that it chooses may read any other one.
    """
    if any(node.op is Op.COND for node in order):
        return frozenset()
    by_broadcasting = {n for n in order if n.op is Op.EXPAND}.difference(roots, already_computed)
    for node in order:
        if node.op not in BROADCASTING:
            by_broadcasting.difference_update(node.src)
        elif by_broadcasting.issuperset(node.src):
            by_broadcasting.discard(node.src[0])
    return by_broadcasting


def _last_uses(
    order: Sequence[Node], roots: Sequence[Node], already_computed: Set[Node]
) -> dict[Node, list[Node]]:
    """For each Node the values whose last use it is.

    Freeing memory early lets it be reused. That saves more time than the arithmetic takes, as the
    system clears all new memory. The result is empty if there is a COND, which may need any value.
    """
    last_uses: dict[Node, list[Node]] = {}
    if any(node.op is Op.COND for node in order):
        return last_uses
    retained = {*roots, *already_computed}
    for node in reversed(order):
        if node not in already_computed:
            last = [s for s in node.src if s not in retained]
            if len(last) > 1:
                last = list(dict.fromkeys(last))
            if last:
                retained.update(last)
                last_uses[node] = last
    return last_uses


def _unconditional_sources(node: Node) -> Sequence[Node]:
    return node.src[:1] if node.op is Op.COND else node.src
