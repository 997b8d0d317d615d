"""Tensor: the lazy API that users write networks with.

A Tensor wraps a Node and its device. Operations only build more Nodes; nothing runs until
`realize()`, `numpy()` or a compiled step needs a value. The operations are inherited, one class for
each family, from `imgmlp/engine/operations`: elementwise.py, movement.py, reduction.py,
functions.py, indexing.py, scans.py, windows.py, creation.py. This module adds gradients, state
and the transfer of values from and to the host.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from imgmlp.engine.device.discover import AnyDevice
from imgmlp.engine.frontend import tracing
from imgmlp.engine.frontend.numpy_functions import call_numpy_function, check_not_traced
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.dtype import Array, DType
from imgmlp.engine.ir.graph import Buffer, Node
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import OutOfBoundsError, misuse
from imgmlp.engine.operations.autograd import gradient as node_gradient
from imgmlp.engine.operations.creation import Creation
from imgmlp.engine.operations.elementwise import Operand, check_tensor, node_of
from imgmlp.engine.operations.operands import (
    Scalar,
    broadcast,
    check_device,
    from_host,
    narrow,
    out_of_bounds,
)
from imgmlp.engine.runtime.buffers import check_like, read_buffer, write_buffer
from imgmlp.engine.runtime.program import run_once


class Tensor(Creation):
    """A multidimensional array on a device, either realized or still an expression.

    `data` is anything that `np.asarray` accepts. float64 becomes f32 and int64 becomes i32, unless
    `dtype` is given. With `requires_grad`, `backward()` of a loss accumulates into `grad`.
    Raises TypeError for a dtype that the engine does not have, and for a `device` that is none,
    such as the name of one.
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

    # --- properties ---

    @property
    def strides(self) -> tuple[int, ...]:
        """Per axis, the number of elements from one index to the next in row-major order."""
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    def flat_index(self, *indices: int) -> int:
        """The row-major position of an element. Raises IndexError for an index out of bounds."""
        if len(indices) != len(self.shape):
            text = f"{len(indices)} indices for a Tensor of shape {self.shape}"
            raise misuse(OutOfBoundsError, text)
        for axis, (i, n) in enumerate(zip(indices, self.shape, strict=True)):
            if not 0 <= i < n:
                raise out_of_bounds(i, axis, self.shape)
        return sum(i * s for i, s in zip(indices, self.strides, strict=True))

    @property
    def realized(self) -> bool:
        """Whether the value is in memory already, or has no elements."""
        return self.node.op is Op.BUFFER or not self.node.size

    def __repr__(self) -> str:
        state = "realized" if self.realized else graph.label(self.node)
        where = self.device.info.spec if self.device is not None else "any device"
        return f"Tensor({self.dtype.name}{list(self.shape)}, {state}, {where})"

    # --- gradients ---

    def gradient(self, wrt: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of this scalar with respect to each Tensor of `wrt`, in its shape.

        A Tensor that the scalar does not depend on gets zeros. Raises ValueError if this Tensor has
        not exactly one element; TypeError if it is not a float, if `wrt` is not a list of Tensors,
        or if this depends on one of them that is not a float.
        """
        # A single Tensor is refused, because iterating over it would yield its rows.
        others = [wrt] if isinstance(wrt, Tensor) else [w for w in wrt if not isinstance(w, Tensor)]
        if others:
            kind = type(others[0]).__name__
            raise misuse(TypeError, f"gradient: takes a list of Tensors, not {kind}")
        if any(not w.dtype.is_float for w in wrt):
            used = set(graph.toposort([self.node]))
            for w in wrt:
                if w.node in used:
                    _check_float("gradient", w)
        nodes = node_gradient(self.node, [w.node for w in wrt])
        return [Tensor(n, self.device or w.device) for n, w in zip(nodes, wrt, strict=True)]

    @property
    def requires_grad(self) -> bool:
        """Whether `backward()` accumulates into `grad`. Setting it on integers is a TypeError."""
        return id(self) in _requiring_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if wanted:
            _check_float("requires_grad", self)
        self._grad: Tensor | None = None
        if wanted:
            _requiring_grad[id(self)] = self
        else:
            _requiring_grad.pop(id(self), None)

    @property
    def grad(self) -> Tensor | None:
        """The sum of all gradients since `zero_grad()`; zeros if no loss used this Tensor.

        None if the Tensor does not require a gradient. Changes that are made while a step, or the
        body of a loop or a choice, is traced are undone at the end of the trace.
        """
        if not self.requires_grad:
            return None
        zeros = Tensor.zeros(*self.shape, dtype=self.dtype, device=self.device)
        return zeros if self._grad is None else self._grad

    def zero_grad(self) -> None:
        """Reset the accumulated gradient."""
        if self.requires_grad:
            self._set_grad(None)

    def _set_grad(self, grad: Tensor | None) -> None:
        """Replace the accumulated gradient; while a step is traced, until the end of the trace."""
        before = self._grad
        tracing.at_end(lambda: setattr(self, "_grad", before))
        self._grad = grad

    def backward(self) -> None:
        """Add the gradients of this scalar to the `grad` of every Tensor that requires one.

        They are computed at once, or as a part of the step that is being traced. Raises ValueError
        if this scalar depends on no Tensor that requires a gradient.
        """
        used = set(graph.toposort([self.node]))
        leaves = [t for t in list(_requiring_grad.values()) if t.node in used]
        # Ordered by age, so that the same program gives the same kernels in every process.
        wrt = sorted(leaves, key=lambda t: t.node.number)
        if not wrt:
            text = "no Tensor that requires a gradient leads to this loss; realize() ends gradients"
            layers = "layers of nn ask for none, as optimizer.step(loss) builds theirs"
            raise misuse(ValueError, f"backward: {text}; {layers}")
        gradients = self.gradient(wrt)
        sums = [g if t._grad is None else t._grad + g for t, g in zip(wrt, gradients, strict=True)]
        if not tracing.is_tracing():
            _realize(sums)
        for t, g in zip(wrt, sums, strict=True):
            t._set_grad(g)

    # --- state and values ---

    def assign(self, value: Operand) -> Tensor:
        """Give a realized Tensor a new value: at once, or at the end of the step being traced.

        Within a step, every use reads the value from before the step. Outside of a step, all
        expressions read the new value from now on, even those built earlier; see `assign_all`.
        """
        if not self.realized:
            raise misuse(
                ValueError, "assign: only a realized Tensor holds state; call realize() first"
            )
        node = graph.cast(node_of(value, self.dtype), self.dtype)
        node = broadcast(node, self.shape, "assign")
        if node.size and not tracing.assign(self.node.arg, node):
            run_once(self._device_to_run_on(), [(self.node.arg, node)])
        return self

    def _device_to_run_on(self) -> AnyDevice:
        """This Tensor's device, or else the one to which a Program uploaded a Buffer it reads."""
        if self.device is not None:
            return self.device
        for node in graph.toposort([self.node]):
            if node.op is Op.BUFFER and node.arg.device is not None:
                device: AnyDevice = node.arg.device
                return device
        raise misuse(ValueError, f"{self!r} was made without a device; pass device=open_device()")

    def realize(self, name: str = "") -> Tensor:
        """Compute the value now and put it in place of the expression, as a leaf of the graph.

        Gradients end here, as at every leaf. A value that is in memory already is not copied, not
        even by `contiguous()`: a realized Tensor, or one that a reshape or cast leaves as it is,
        changes when that storage is assigned, whereas `(x + 0).realize()` does not. `name` is the
        storage's name in listings.
        """
        _realize([self], name)
        return self

    def write(self, array: Array) -> Tensor:
        """Replace the value of a realized Tensor by an array of the host, for all later steps.

        float64 becomes f32 and int64 becomes i32, as in the constructor. Raises ValueError if the
        shape or another dtype differs, if an i32 cannot hold a value, or if this Tensor has no
        device; TypeError while a step is traced, because the step would not repeat the write.
        """
        if tracing.is_tracing():
            advice = "a step assigns, and a Feeder sends it values"
            raise misuse(TypeError, f"write: is no part of a step that is built; {advice}")
        if not self.realized:
            raise misuse(
                ValueError, "write: only a realized Tensor holds state; call realize() first"
            )
        array = narrow(np.asarray(array), self.dtype)
        if self.node.size:
            self._device_to_run_on()  # raises ValueError if there is none
            write_buffer(self.node.arg, array)
        else:
            check_like(Buffer(self.shape, self.dtype), array)
        return self

    def numpy(self) -> Array:
        """The value as a NumPy array of the same shape and dtype.

        This Tensor does not change: an expression stays one, and gradients still flow through it.
        """
        if not self.node.size:
            return np.empty(self.shape, self.dtype.np)
        realized = Tensor(self.node, self.device).realize()
        return read_buffer(realized._device_to_run_on(), realized.node.arg)

    def item(self) -> Scalar:
        """The only element as a Python number. Raises ValueError unless there is exactly one."""
        if self.node.size != 1:
            raise misuse(ValueError, f"item: a Tensor of shape {self.shape} is no single number")
        value: Scalar = self.numpy().item()
        return value

    def __bool__(self) -> bool:
        """Whether the only element is not zero, computed now. TypeError while a step is traced."""
        if tracing.is_tracing():
            advice = "a step is built once, for all values; use Tensor.where"
            raise misuse(TypeError, f"bool of a Tensor of shape {self.shape}: {advice}")
        if self.node.size != 1:
            several = "several elements are neither true nor false; use any() or all()"
            none = "it has no element that could be true or false; look at its shape"
            advice = several if self.node.size else none
            raise misuse(ValueError, f"bool of a Tensor of shape {self.shape}: {advice}")
        return bool(self.item())

    def __float__(self) -> float:
        """Refused with a TypeError: waiting for the device should be visible, as `item()` is."""
        raise misuse(TypeError, f"float of a Tensor of shape {self.shape}: use item()")

    def __int__(self) -> int:
        """Refused with a TypeError, as `float` is."""
        raise misuse(TypeError, f"int of a Tensor of shape {self.shape}: use item()")

    def __copy__(self) -> Tensor:
        return Tensor(self.node, self.device)

    def __reduce_ex__(self, protocol: object) -> str:
        """Refused with a TypeError: a device's memory can be neither pickled nor deep-copied."""
        advice = "keep its numpy(), and make Tensor(array, device) of it"
        raise misuse(TypeError, f"a Tensor cannot be pickled or copied deeply; {advice}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The current value, always copied: what np.asarray and most of NumPy's functions use.

        NumPy's ufuncs, such as np.exp, refuse a Tensor instead. Raises ValueError for copy=False,
        TypeError if one of NumPy's other functions is called while a step is traced.
        """
        check_not_traced()
        if copy is False:
            text = "a Tensor's value is on its device, and NumPy has a copy only"
            raise misuse(ValueError, f"{text}; leave out copy=False")
        return self.numpy().astype(dtype or self.dtype.np, copy=False)

    def __array_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """What NumPy does when one of its functions, such as np.where, is given a Tensor."""
        return call_numpy_function(function, types, arguments, keywords)


def assign_all(pairs: Iterable[tuple[Tensor, Operand]]) -> None:
    """Assign several realized Tensors at once: every value is computed before any is stored.

    In a step all assignments behave so. Outside of one, consecutive `assign` calls would compute
    the second value from the first Tensor's new value. Raises ValueError if a Tensor gets two
    values, TypeError for an object that is not a Tensor.
    """
    if tracing.is_tracing():
        _assign_each(pairs)
        return
    pairs = list(pairs)  # evaluated before the capture, within which a RawKernel could not run
    with tracing.capture() as updates:
        _assign_each(pairs)
    if updates:
        run_once(pairs[0][0]._device_to_run_on(), updates)


def _assign_each(pairs: Iterable[tuple[Tensor, Operand]]) -> None:
    for state, value in pairs:
        check_tensor("assign_all", state)
        state.assign(value)


# Every living Tensor with `requires_grad`, by its id().
_requiring_grad: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


def _check_float(operation: str, tensor: Tensor) -> None:
    if not tensor.dtype.is_float:
        text = f"{operation}: {tensor.dtype.name} has no gradients; cast to f32"
        raise misuse(TypeError, text)


def _realize(tensors: Sequence[Tensor], name: str = "") -> None:
    """Compute several Tensors of one device together, now."""
    lazy = [t for t in tensors if not t.realized]
    if not lazy:
        return
    updates = [(Buffer(t.shape, t.dtype, t._device_to_run_on(), name=name), t.node) for t in lazy]
    run_once(lazy[0]._device_to_run_on(), updates)
    for t, (storage, _) in zip(lazy, updates, strict=True):
        t.node = graph.buffer(storage)
