"""Tensor: the lazy API that users write networks with.

A Tensor wraps a Node and remembers its device; nothing runs until `realize()`, `numpy()` or
a compiled step does. Its operations come in families, each a class and a module of its own:
elementwise.py, movement.py, reduction.py, functions.py, indexing.py, scans.py, windows.py. What
makes, differentiates and runs one is here.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from imgmlp.engine.device.discover import AnyDevice
from imgmlp.engine.frontend import tracing
from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.dtype import Array, DType
from imgmlp.engine.ir.graph import Buffer, Node
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse
from imgmlp.engine.operations import random
from imgmlp.engine.operations.autograd import gradient as node_gradient
from imgmlp.engine.operations.elementwise import Operand, check_tensor, common_device, node_of
from imgmlp.engine.operations.operands import (
    Scalar,
    broadcast,
    check_device,
    filled,
    from_host,
    narrowed,
    out_of_bounds,
    spread,
    whole_shape,
)
from imgmlp.engine.operations.windows import Windows
from imgmlp.engine.runtime.buffers import check_like, read_buffer, write_buffer
from imgmlp.engine.runtime.program import run_once

Seed: TypeAlias = "Tensor | int | tuple[Tensor | int, ...]"


class Tensor(Windows):
    """A value of some shape and dtype on a device, perhaps not computed yet.

    `data` is anything that NumPy takes; float64 becomes f32 and int64 becomes i32 unless
    `dtype` says otherwise. Raises TypeError for a dtype that the engine has not, and for what is no
    device, such as its name. With `requires_grad`, `backward()` of a loss adds to its `grad`.
    """

    __slots__ = ("_grad",)

    def __init__(
        self,
        data: Any,
        device: AnyDevice | None = None,
        dtype: DType | None = None,
        name: str = "",
        requires_grad: bool = False,
    ) -> None:
        if device is not None:
            check_device("Tensor", device)
        node = data if isinstance(data, Node) else from_host(data, device, dtype, name)
        super().__init__(node, device)
        if requires_grad:
            self.requires_grad = True

    # --- what it is ---

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis of the realized, row-major value."""
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    def flat_index(self, *indices: int) -> int:
        """Position of an element in the row-major value. Raises IndexError outside the shape."""
        if len(indices) != len(self.shape):
            text = f"{len(indices)} indices for a Tensor of shape {self.shape}"
            raise misuse(OutOfBoundsError, text)
        for axis, (i, n) in enumerate(zip(indices, self.shape, strict=True)):
            if not 0 <= i < n:
                raise out_of_bounds(i, axis, self.shape)
        return sum(i * s for i, s in zip(indices, self.strides, strict=True))

    @property
    def realized(self) -> bool:
        """Whether the value stands in memory, or needs none."""
        return self.node.op is Op.BUFFER or not self.node.size

    def __repr__(self) -> str:
        state = "realized" if self.realized else graph.label(self.node)
        where = self.device.info.spec if self.device is not None else "any device"
        return f"Tensor({self.dtype.name}{list(self.shape)}, {state}, {where})"

    # --- making ---

    @staticmethod
    def full(
        shape: Sequence[int], value: Scalar, dtype: DType | None = None, device: Any = None
    ) -> Tensor:
        """One value everywhere; stored nowhere. Raises ValueError for a size below 0."""
        kind = dtype or dt.concrete(dt.of(value))
        dt.check(kind, "full")
        return Tensor(filled("full", value, kind, whole_shape("full", shape)), device)

    @staticmethod
    def zeros(*shape: int | Sequence[int], dtype: DType = dt.f32, device: Any = None) -> Tensor:
        """As `full` with 0; sizes one by one, or as one tuple."""
        dt.check(dtype, "zeros")
        return Tensor(graph.const(0, dtype, whole_shape("zeros", spread(shape))), device)

    @staticmethod
    def ones(*shape: int | Sequence[int], dtype: DType = dt.f32, device: Any = None) -> Tensor:
        """As `full` with 1."""
        dt.check(dtype, "ones")
        return Tensor(graph.const(1, dtype, whole_shape("ones", spread(shape))), device)

    @staticmethod
    def empty(
        *shape: int | Sequence[int], dtype: DType = dt.f32, device: Any = None, name: str = ""
    ) -> Tensor:
        """A realized Tensor to be written or assigned; zeros until then."""
        dt.check(dtype, "empty")
        zeros = np.zeros(whole_shape("empty", spread(shape)), dtype.np)
        return Tensor(zeros, device, dtype, name)

    @staticmethod
    def arange(
        start: float, stop: float | None = None, step: float = 1, dtype: DType | None = None,
        device: Any = None,
    ) -> Tensor:  # fmt: skip
        """From `start` (0 if it is the only one) in steps up to `stop`, which is not reached.

        i32 unless one of them is a float or a dtype is given. Raises ValueError for steps of 0.
        """
        start, stop = (0, start) if stop is None else (start, stop)
        whole = all(isinstance(v, int | np.integer) for v in (start, stop, step))
        kind = dtype or (dt.i32 if whole else dt.f32)
        dt.check(kind, "arange")
        if not step or not all(map(math.isfinite, (start, stop, step))):
            text = f"steps of {step} never lead from {start} to {stop}"
            raise misuse(ValueError, f"arange: {text}")
        count = max(0, math.ceil((stop - start) / step))
        for end in (start, start + (count - 1) * step) if count else ():
            filled("arange", end, dt.i32 if whole and not kind.is_int else kind)
        numbers = graph.cast(graph.iota(count), dt.i32 if whole else dt.f32)
        if step != 1:
            numbers = numbers * step
        return Tensor(graph.cast(numbers + start if start else numbers, kind), device)

    @staticmethod
    def eye(
        rows: int, columns: int | None = None, diagonal: int = 0, dtype: DType = dt.f32,
        device: Any = None,
    ) -> Tensor:  # fmt: skip
        """1 along a diagonal, 0 elsewhere; diagonals above the main one are positive."""
        across = Tensor.arange(rows if columns is None else columns, device=device)
        down = Tensor.arange(rows, device=device).reshape(rows, 1)
        return (across - down).eq(diagonal).cast(dtype)

    def full_like(self, value: Scalar, dtype: DType | None = None) -> Tensor:
        """One value everywhere, in this shape and dtype, on this device."""
        return Tensor.full(self.shape, value, dtype or self.dtype, self.device)

    @staticmethod
    def random_bits(shape: Sequence[int], seed: Seed, device: Any = None) -> Tensor:
        """Uniform u32 by hashing a counter with the seed: numbers or u32 of one element.

        A number beyond 32 bits counts as several, the lowest 32 bits first; one below 0 is its
        two's complement.
        Where no device is given, it is that of the seed's Tensors.
        """
        parts = seed if isinstance(seed, tuple) else (seed,)
        device = device or common_device(*(p for p in parts if isinstance(p, Tensor)))
        nodes = [p.node if isinstance(p, Tensor) else p for p in parts]
        return Tensor(random.bits(shape, nodes), device)

    @staticmethod
    def uniform(shape: Sequence[int], seed: Seed, device: Any = None) -> Tensor:
        """Uniform f32 in [0, 1), 24 random bits each."""
        bits = Tensor.random_bits(shape, seed, device)
        return Tensor(random.uniform(bits.node), bits.device)

    @staticmethod
    def normal(
        shape: Sequence[int],
        seed: Seed,
        mean: float = 0.0,
        variance: float = 1.0,
        device: Any = None,
    ) -> Tensor:
        """Gaussian f32 by Box and Muller (1958) from two hashes of the counter.

        Raises ValueError for a variance below 0.
        """
        bits = Tensor.random_bits(shape, seed, device)
        return Tensor(random.normal(bits.node, mean, variance), bits.device)

    # --- gradients ---

    def gradient(self, wrt: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of this single number by each of `wrt`, in its shape; zeros where unconnected.

        Raises ValueError if this is not one element; TypeError if it is no float, or one of
        `wrt` is no Tensor, or none of floats and this depends on it.
        """
        alone = isinstance(wrt, Tensor)  # and would be taken for its rows
        wrong = [type(w) for w in ([wrt] if alone else wrt) if alone or not isinstance(w, Tensor)]
        if wrong:
            raise misuse(TypeError, f"gradient: takes a list of Tensors, not {wrong[0].__name__}")
        if any(not w.dtype.is_float for w in wrt):
            used = set(graph.toposort([self.node]))
            for w in wrt:
                if w.node in used:
                    _check_float("gradient", w)
        nodes = node_gradient(self.node, [w.node for w in wrt])
        return [Tensor(n, self.device or w.device) for n, w in zip(nodes, wrt, strict=True)]

    @property
    def requires_grad(self) -> bool:
        """Whether `backward()` adds to `grad`; TypeError when set for what is no float."""
        return id(self) in _requiring

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if wanted:
            _check_float("requires_grad", self)
        self._grad: Tensor | None = None
        if wanted:
            _requiring[id(self)] = self
        else:
            _requiring.pop(id(self), None)

    @property
    def grad(self) -> Tensor | None:
        """The sum of gradients since `zero_grad()`, zeros where no loss used this Tensor.

        None if it does not require one. What a step that is being built adds or forgets, or the
        body of a loop or a choice, ends with it.
        """
        if not self.requires_grad:
            return None
        zeros = Tensor.zeros(*self.shape, dtype=self.dtype, device=self.device)
        return zeros if self._grad is None else self._grad

    def zero_grad(self) -> None:
        """Forget the gradients added up so far."""
        if self.requires_grad:
            self._put_grad(None)

    def _put_grad(self, found: Tensor | None) -> None:
        """Another sum of gradients, within a step until it is built: nobody else has its values."""
        before = self._grad
        tracing.at_end(lambda: setattr(self, "_grad", before))
        self._grad = found

    def backward(self) -> None:
        """Add the gradients of this single number to `grad` of every Tensor that requires it.

        They are computed now, from the values of now, or with the step being compiled.
        Raises ValueError if no Tensor that requires a gradient leads to this one.
        """
        used = set(graph.toposort([self.node]))
        # in order of age, so that the same program gives the same kernels in every process
        wrt = sorted(
            (t for t in list(_requiring.values()) if t.node in used), key=lambda t: t.node.number
        )
        if not wrt:
            text = "no Tensor that requires a gradient leads to this loss; realize() ends gradients"
            layers = "layers of nn ask for none, as optimizer.step(loss) builds theirs"
            raise misuse(ValueError, f"backward: {text}; {layers}")
        found = self.gradient(wrt)
        sums = [g if t._grad is None else t._grad + g for t, g in zip(wrt, found, strict=True)]
        if not tracing.is_building():
            _realize(sums)
        for t, g in zip(wrt, sums, strict=True):
            t._put_grad(g)

    # --- running ---

    def assign(self, value: Operand) -> Tensor:
        """Give a realized Tensor a new value: at once, or at the end of the step being compiled.

        Within one step every use reads the value from before the step. Outside of one, expressions
        read the new value from now on, also those that were built before; see `assign_all`.
        """
        if not self.realized:
            raise misuse(
                ValueError, "assign: only a realized Tensor holds state; call realize() first"
            )
        node = graph.cast(node_of(value, self.dtype), self.dtype)
        node = broadcast(node, self.shape, "assign")
        if node.size and not tracing.assign(self.node.arg, node):
            run_once(self._run_on(), [(self.node.arg, node)])
        return self

    def _run_on(self) -> AnyDevice:
        """Its device, or that where a Program has put the states that it is made of."""
        if self.device is not None:
            return self.device
        for node in graph.toposort([self.node]):
            if node.op is Op.BUFFER and node.arg.device is not None:
                found: AnyDevice = node.arg.device
                return found
        raise misuse(ValueError, f"{self!r} was made without a device; pass device=open_device()")

    def realize(self, name: str = "") -> Tensor:
        """Compute the value now, in place of the expression; later uses read it.

        Gradients end here, as they do at any value that stands in memory. What is in memory as it
        is (a realized Tensor, also where it is reshaped or cast to what it is already) is not
        copied, by `contiguous()` neither: it changes when that is assigned, and `(x + 0).realize()`
        does not. Listings show the storage by its name.
        """
        _realize([self], name)
        return self

    def write(self, array: Array) -> Tensor:
        """Replace the value of a realized Tensor from the host, for the steps that follow.

        float64 becomes f32 and int64 becomes i32, as when a Tensor is made. Raises ValueError if
        the shape or another dtype differs, for what an i32 cannot hold, or if this has no device;
        TypeError while a step is built, which would not do it again.
        """
        if tracing.is_building():
            advice = "a step assigns, and a Feeder sends it values"
            raise misuse(TypeError, f"write: is no part of a step that is built; {advice}")
        if not self.realized:
            raise misuse(
                ValueError, "write: only a realized Tensor holds state; call realize() first"
            )
        array = narrowed(np.asarray(array), self.dtype)
        if self.node.size:
            self._run_on()
            write_buffer(self.node.arg, array)
        else:
            check_like(Buffer(self.shape, self.dtype), array)
        return self

    def numpy(self) -> Array:
        """The value as a NumPy array of the same shape and dtype.

        Looking changes nothing: what was an expression stays one and has gradients still.
        """
        if not self.node.size:
            return np.empty(self.shape, self.dtype.np)
        seen = Tensor(self.node, self.device).realize()
        return read_buffer(seen._run_on(), seen.node.arg)

    def item(self) -> Scalar:
        """The only element as a Python number. Raises ValueError if there are several."""
        if self.node.size != 1:
            raise misuse(ValueError, f"item: a Tensor of shape {self.shape} is no single number")
        value: Scalar = self.numpy().item()
        return value

    def __bool__(self) -> bool:
        """Whether the only element is not zero, computed now; not while a step is built."""
        if tracing.is_building():
            advice = "a step is built once, for all values; use Tensor.where"
            raise misuse(TypeError, f"bool of a Tensor of shape {self.shape}: {advice}")
        if self.node.size != 1:
            several = "several elements are neither true nor false; use any() or all()"
            none = "it has no element that could be true or false; look at its shape"
            advice = several if self.node.size else none
            raise misuse(ValueError, f"bool of a Tensor of shape {self.shape}: {advice}")
        return bool(self.item())

    def __float__(self) -> float:
        """Refused, as to wait for a number should be seen in a program: that is `item()`."""
        raise misuse(TypeError, f"float of a Tensor of shape {self.shape}: use item()")

    def __int__(self) -> int:
        """Refused as `float` is."""
        raise misuse(TypeError, f"int of a Tensor of shape {self.shape}: use item()")

    def __copy__(self) -> Tensor:
        return Tensor(self.node, self.device)

    def __reduce_ex__(self, protocol: object) -> str:
        """Refused: neither pickles nor deep copies can have a device's memory."""
        advice = "keep its numpy(), and make Tensor(array, device) of it"
        raise misuse(TypeError, f"a Tensor cannot be pickled or copied deeply; {advice}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """What NumPy's functions take a Tensor for, but for those of each element such as np.exp,
        which refuse it, and a few that call its method of their name: its value, always a copy.

        Raises ValueError where no copy is wanted.
        """
        if copy is False:
            text = "a Tensor's value is on its device, and NumPy has a copy only"
            raise misuse(ValueError, f"{text}; leave out copy=False")
        return self.numpy().astype(dtype or self.dtype.np, copy=False)

    def __array_function__(
        self, function: Any, kinds: Any, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """NumPy's functions do what they do, and reduce a Tensor's value.

        Raises TypeError for these while a step is built, which would have the value of then.
        """
        if function in _REDUCTIONS:
            name = function.__name__
            if tracing.is_building():
                advice = "a Tensor's own operations are part of a step that is built"
                raise misuse(TypeError, f"np.{name} of a Tensor: {advice}")
            first = {key: np.asarray(value) for key, value in named.items() if key == "a"}
            arguments = (*map(np.asarray, arguments[:1]), *arguments[1:])
            named = named | first
        return np.ndarray.__array_function__(np.empty(0), function, (), arguments, named)


# Which would call the Tensor's own methods, with arguments that these have not.
_REDUCTIONS: set[Any] = {
    *(np.sum, np.prod, np.mean, np.var, np.std, np.all, np.any),
    *(np.max, np.min, np.amax, np.amin, np.ptp),
}


def assign_all(pairs: Iterable[tuple[Tensor, Operand]]) -> None:
    """Give each realized Tensor its new value, all of them computed from the values before.

    Outside of a step too, where one `assign` after the other would have the second value computed
    from what the first has moved. Raises ValueError for a Tensor that gets two, TypeError for what
    is none.
    """
    if tracing.is_building():
        _assign_each(pairs)
        return
    pairs = list(pairs)  # before the capture, within which no kernel by hand could run
    with tracing.capture() as updates:
        _assign_each(pairs)
    if updates:
        run_once(pairs[0][0]._run_on(), updates)


def _assign_each(pairs: Iterable[tuple[Tensor, Operand]]) -> None:
    for state, value in pairs:
        check_tensor("assign_all", state)
        state.assign(value)


_requiring: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


def _check_float(operation: str, tensor: Tensor) -> None:
    if not tensor.dtype.is_float:
        text = f"{operation}: {tensor.dtype.name} has no gradients; cast to f32"
        raise misuse(TypeError, text)


def _realize(tensors: Sequence[Tensor], name: str = "") -> None:
    """Compute some Tensors of one device now, together."""
    lazy = [t for t in tensors if not t.realized]
    if not lazy:
        return
    updates = [(Buffer(t.shape, t.dtype, t._run_on(), name=name), t.node) for t in lazy]
    run_once(lazy[0]._run_on(), updates)
    for t, (storage, _) in zip(lazy, updates, strict=True):
        t.node = graph.buffer(storage)
