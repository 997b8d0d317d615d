"""Kernels written by hand: OpenCL C as text, launched on a grid with arrays, compared with NumPy.

    add = RawKernel(device, '''
    __kernel void add_ten(__global float *out, __global const float *a, int size) {
      const int i = get_global_id(0);
      if (i < size) out[i] = a[i] + 10;
    }''', "add_ten")
    add(256, 64, out, a, a.size)  # 256 items in groups of 64
    compare(out, a + 10)

The engine's own kernels do not come this way: it generates them. This is for learning, and for
what the generator does not make.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from imgmlp.engine.device.base import Allocation, Launch
from imgmlp.engine.device.discover import AnyDevice, distinct_names
from imgmlp.engine.device.driver_errors import UnnamedError
from imgmlp.engine.device.opencl import CONST, LOCAL, Device
from imgmlp.engine.frontend import tracing
from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.operands import check_device
from imgmlp.engine.runtime.buffers import upload
from imgmlp.engine.runtime.program import check_runs
from imgmlp.errors import DeviceError

Size: TypeAlias = int | tuple[int, ...]
Argument: TypeAlias = Array | Tensor | np.generic | float

# OpenCL C's names of what elements and numbers are, in NumPy's
KINDS = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4",
    "long": "i8", "ulong": "u8", "half": "f2", "float": "f4", "double": "f8",
}  # fmt: skip


@dataclass
class _Copy:
    """An array on the device, for every argument that it is given as."""

    what: str
    array: Array
    allocation: Allocation
    written: bool  # by the kernel, so that it comes back


class RawKernel:
    """A kernel of an OpenCL C source, compiled for a device; calling it runs it.

    Every keyword becomes a constant of the source, as `LANES=64` becomes `-D LANES=64`. Raises
    DeviceError if the source does not compile (LastingError, one of its kinds), with the compiler's
    log in `hint` and as a note, and on NumPy's device, which has no compiler; ValueError if the
    source has no kernel of that name; TypeError for what is no device, or no text.
    """

    def __init__(self, device: AnyDevice, source: str, name: str, **constants: float | str) -> None:
        check_device("RawKernel", device)
        for what, text in (("source", source), ("name", name)):
            if not isinstance(text, str):
                raise misuse(TypeError, f"RawKernel: takes the {what} as text, not {text!r}")
        if not isinstance(device, Device):
            raise DeviceError(
                "NumPy's interpreter runs no OpenCL C, so no kernel that is written by hand",
                hint="choose another device; `imgmlp devices` shows what there is",
            )
        self.device = device
        self.name = name
        options = ["-cl-kernel-arg-info", *(f"-D{k}={v}" for k, v in constants.items())]
        try:
            self._handle = device.build(source, [name], options)[name]
        except UnnamedError as error:
            if re.search(rf"__kernel\b[^;{{}}]*\bvoid\s+{re.escape(name)}\s*\(", source):
                raise  # as it has: what was compiled of it is damaged
            raise misuse(ValueError, f"the source has no kernel {name}") from error
        except DeviceError as error:
            error.add_note(error.hint)  # the log, where Python prints the error
            raise
        self.parameters = device.parameters(self._handle)  # type and name of each

    def __call__(self, global_size: Size, local_size: Size, *arguments: Argument) -> None:
        """Run it on a grid of `global_size` work-items in groups of `local_size`, and wait.

        Arrays are copied to the device and, those that are writeable and not declared const, back.
        One that is given several times is one there too. A Tensor stays
        there; one that is not realized is only for what is declared const. Raises TypeError where a
        dtype is not the declared one, for a size that is no whole number, and for `__local` memory,
        ValueError for a grid that the groups do not fill, for a number that the declared type
        cannot hold, for an expression that might be written, for arrays that share a part of their
        memory if one may be written, or for a Tensor without elements.
        """
        launch, copies = self._bind(global_size, local_size, arguments)
        self.device.launch_all([launch])
        for copy in copies:
            if copy.written:
                result = np.empty(copy.array.shape, copy.array.dtype)
                self.device.read(copy.allocation, result)
                copy.array[...] = result
        self.device.finish()
        self.device.release(launch)

    def time(
        self, global_size: Size, local_size: Size, *arguments: Argument, runs: int = 10
    ) -> float:
        """The least time of some runs, in microseconds on the device; arrays stay as they are.

        Raises as a call does, and ValueError for no runs.
        """
        check_runs(self.name, runs)
        launch, _ = self._bind(global_size, local_size, arguments)
        self.device.time_launches([launch])  # what is slow only once
        least = min(self.device.time_launches([launch] * runs))
        self.device.release(launch)
        return least

    def _bind(
        self, global_size: Size, local_size: Size, arguments: Sequence[Argument]
    ) -> tuple[Launch, list[_Copy]]:
        sizes = self._grid(_sizes(global_size), _sizes(local_size))
        if len(arguments) != len(self.parameters):
            wanted = ", ".join(f"{kind} {name}".strip() for kind, name in self.parameters)
            raise misuse(
                TypeError, f"{self.name} takes ({wanted}); {len(arguments)} arguments were given"
            )
        bound: list[Allocation | np.generic] = []
        copies: list[_Copy] = []
        for argument, (kind, name) in zip(arguments, self.parameters, strict=True):
            what = f"{self.name}: {kind} {name}".rstrip()
            if isinstance(argument, np.ndarray):
                _check_kind(what, kind, argument.dtype)
                written = argument.flags.writeable and not kind.startswith(CONST)
                bound.append(self._copied(what, argument, written, copies))
            elif isinstance(argument, Tensor):
                _check_kind(what, kind, np.dtype(argument.dtype.np))
                if kind and not (argument.realized or kind.startswith(CONST)):
                    text = "only a realized Tensor can be written; call realize() first, or declare"
                    raise misuse(ValueError, f"{what}: {text} it const")
                bound.append(self._place(argument, not kind.startswith(CONST)))
            else:
                bound.append(_number(what, kind, argument))
        return self.device.bind(self._handle, bound, *sizes), copies

    def _grid(
        self, items: tuple[int, ...], group: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        fits = 1 <= len(items) == len(group) <= 3 and min(items + group) > 0
        if not fits or any(n % m for n, m in zip(items, group, strict=True)):
            advice = "round up, and let the kernel guard its accesses"
            raise misuse(ValueError, f"groups of {group} do not fill a grid of {items}; {advice}")
        if np.prod(group) > self.device.max_lanes:
            most = f"{self.device.info.describe()} takes {self.device.max_lanes}"
            raise misuse(ValueError, f"{group} are too many work-items for one group; {most}")
        return items, group

    def _copied(self, what: str, array: Array, written: bool, copies: list[_Copy]) -> Allocation:
        """Where an array's elements are: a new copy, or the one that it has among `copies`."""
        for copy in copies:
            if not np.shares_memory(copy.array, array):
                continue
            if _is_same(copy.array, array):
                if written and not copy.written:
                    copy.array, copy.written = array, True
                return copy.allocation
            if written or copy.written:
                text = f"{copy.what} and {what} share a part of their memory; pass a copy of one"
                raise misuse(ValueError, text)
        allocation = self.device.alloc(array.nbytes)
        self.device.write(allocation, array)
        copies.append(_Copy(what, array, allocation, written))
        return allocation

    def _place(self, tensor: Tensor, written: bool) -> Allocation:
        """Where a Tensor's elements are; an expression is computed, and stays one.

        What may be `written` is not what the host put there any more, so that indices are looked at
        before rows are taken by them.
        """
        if tracing.is_tracing():
            advice = "a kernel written by hand runs at once, and cannot be part of a compiled step"
            raise misuse(TypeError, f"{self.name}: {advice}")
        if not tensor.node.size:
            raise misuse(ValueError, f"{self.name}: a Tensor of shape {tensor.shape} has no memory")
        seen = Tensor(tensor.node, tensor.device or self.device).realize()
        storage = seen.node.arg
        if storage.device is None:
            storage.device = self.device
        if storage.device is not self.device:
            here, there = distinct_names(self.device, storage.device)
            raise misuse(ValueError, f"{self.name} is on device {here}, the Tensor on {there}")
        upload(storage)
        storage.is_from_host = storage.is_from_host and not written
        allocation: Allocation = storage.data
        return allocation


def _is_same(a: Array, b: Array) -> bool:
    """Whether two arrays are the same elements in the same order."""
    first, second = a.__array_interface__["data"][0], b.__array_interface__["data"][0]
    return (first, a.shape, a.strides, a.dtype) == (second, b.shape, b.strides, b.dtype)


def _sizes(size: Size) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, size if isinstance(size, tuple) else (size,)))
    except TypeError:
        text = f"{size!r} is no size of a grid or a group: whole numbers only, several as a tuple"
        raise misuse(TypeError, text) from None


def _check_kind(what: str, declared: str, given: np.dtype[Any]) -> None:
    """Refuse elements that the kernel would take for others; vectors stand for their elements."""
    if not declared:
        return  # the driver does not tell
    _check_place(what, declared)
    if not declared.endswith("*"):
        raise misuse(TypeError, f"{what} takes a number, an array was given")
    wanted = KINDS.get(declared.removeprefix(CONST).removesuffix("*").rstrip("0123456789"))
    if wanted is not None and np.dtype(wanted) != given:
        raise misuse(TypeError, f"{what} was given {given}; use .astype(np.{np.dtype(wanted)})")


def _check_place(what: str, declared: str) -> None:
    if declared.startswith(LOCAL):
        advice = "declare it inside of the kernel, with its size"
        raise misuse(TypeError, f"{what} is memory that a group shares, not an argument; {advice}")


def _number(what: str, declared: str, given: np.generic | float) -> np.generic:
    """A number as the kernel declares it; if the driver does not tell, an int or a float."""
    _check_place(what, declared)
    if declared.endswith("*"):
        raise misuse(TypeError, f"{what} was given {given!r}; pass an array or a Tensor")
    if not isinstance(given, int | float | np.integer | np.floating | np.bool_):
        wanted = "a number" if declared else "a number, an array or a Tensor"
        raise misuse(TypeError, f"{what} was given {given!r}; pass {wanted}")
    kind, element = KINDS.get(declared), declared.rstrip("0123456789")
    if kind is None and element in KINDS:
        text = f"{what} is a vector, which no number is; declare {element} parameters, or pass"
        raise misuse(TypeError, f"{text} an array for a pointer")
    if kind is None:
        kind = given.dtype.str if isinstance(given, np.generic) else "i4"
        kind = "f4" if isinstance(given, float) else kind
    held = np.dtype(kind)
    try:
        with np.errstate(all="ignore"):
            number: np.generic = held.type(given)
    except (ValueError, OverflowError):  # such as NaN, of integers
        number = np.float64("nan")
    rounds = held.kind == "f" and isinstance(given, float | np.floating)
    if number != given and not rounds:
        raise misuse(ValueError, f"{what} cannot hold {given!r}")
    return number


def compare(found: Any, specification: Any, rtol: float = 1e-5, atol: float | Array = 1e-6) -> None:
    """Raise AssertionError, naming the first wrong element, unless `found` is as specified.

    Elements may differ by `rtol` of the specified one and by `atol`, of each or of all; of a long
    sum a share of the sum of absolute values is right. NaN is equal to NaN.
    """
    found, wanted = np.asarray(found), np.asarray(specification)
    if found.shape != wanted.shape:
        raise AssertionError(f"the shape is {found.shape}, the specification's {wanted.shape}")
    right = np.isclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True)
    if not right.all():
        place = tuple(int(n) for n in np.argwhere(~right)[0])
        raise AssertionError(
            f"{np.sum(~right)} of {found.size} elements are wrong; the first is at {place}: "
            f"{found[place]}, the specification says {wanted[place]}"
        )
