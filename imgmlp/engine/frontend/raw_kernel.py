"""Hand-written kernels: OpenCL C as text, launched on a grid with arrays and compared with NumPy.

    add = RawKernel(device, '''
    __kernel void add_ten(__global float *out, __global const float *a, int size) {
      const int i = get_global_id(0);
      if (i < size) out[i] = a[i] + 10;
    }''', "add_ten")
    add(256, 64, out, a, a.size)  # 256 items in groups of 64
    compare(out, a + 10)

This is for learning, and for what the engine cannot generate; its own kernels are generated.
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

# NumPy's names of OpenCL C's scalar types
SCALAR_TYPES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4",
    "long": "i8", "ulong": "u8", "half": "f2", "float": "f4", "double": "f8",
}  # fmt: skip


@dataclass
class _Copy:
    """The copy of an array on the device, shared by all arguments that are this array."""

    what: str  # the argument, for error messages
    array: Array
    allocation: Allocation
    written: bool  # whether the kernel may write it, so that it is copied back


class RawKernel:
    """A kernel of an OpenCL C source, compiled for a device; calling it runs it.

    Each keyword defines a macro: `LANES=64` becomes `-D LANES=64`. Raises LastingError, a
    DeviceError, if the source does not compile, with the compiler's log in `hint` and as a note;
    DeviceError on NumPy's device, which has no compiler; ValueError if the source has no kernel of
    that name; TypeError if `device` is no device, or `source` or `name` is no str.
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
                raise  # the source has it, so its compiled program is damaged
            raise misuse(ValueError, f"the source has no kernel {name}") from error
        except DeviceError as error:
            error.add_note(error.hint)  # Python prints the log with the error
            raise
        self.parameters = device.parameters(self._handle)  # type and name of each

    def __call__(self, global_size: Size, local_size: Size, *arguments: Argument) -> None:
        """Run it on a grid of `global_size` work-items in groups of `local_size`, and wait.

        Arrays are copied to the device. Those that are writeable and not declared const are copied
        back. An array that is passed several times has one copy. A Tensor stays on the device; an
        unrealized one may only be passed for a const parameter.

        Raises TypeError if a dtype is not the declared one, a size is no whole number, or a
        parameter is `__local` memory. Raises ValueError if the groups do not fill the grid, the
        declared type cannot hold a number, an unrealized Tensor might be written, arrays overlap of
        which one may be written, or a Tensor has no elements.
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
        """The shortest of some runs, in microseconds on the device. Arrays are not copied back.

        Raises the same as a call, and ValueError if `runs` is less than 1.
        """
        check_runs(self.name, runs)
        launch, _ = self._bind(global_size, local_size, arguments)
        self.device.time_launches([launch])  # a warm-up
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
                _check_dtype(what, kind, argument.dtype)
                written = argument.flags.writeable and not kind.startswith(CONST)
                bound.append(self._copy_of(what, argument, written, copies))
            elif isinstance(argument, Tensor):
                _check_dtype(what, kind, np.dtype(argument.dtype.np))
                if kind and not (argument.realized or kind.startswith(CONST)):
                    text = "only a realized Tensor can be written; call realize() first, or declare"
                    raise misuse(ValueError, f"{what}: {text} it const")
                bound.append(self._allocation_of(argument, not kind.startswith(CONST)))
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

    def _copy_of(self, what: str, array: Array, written: bool, copies: list[_Copy]) -> Allocation:
        """The allocation with an array's elements: a new copy, or one of `copies`."""
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

    def _allocation_of(self, tensor: Tensor, written: bool) -> Allocation:
        """The allocation with a Tensor's elements. An expression is computed, but stays unrealized.

        A Tensor that may be `written` counts as computed on the device afterwards, so that its
        values are checked before they are used as indices.
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
    """Whether two arrays are views of the same elements in the same order."""
    first, second = a.__array_interface__["data"][0], b.__array_interface__["data"][0]
    return (first, a.shape, a.strides, a.dtype) == (second, b.shape, b.strides, b.dtype)


def _sizes(size: Size) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, size if isinstance(size, tuple) else (size,)))
    except TypeError:
        text = f"{size!r} is no size of a grid or a group: whole numbers only, several as a tuple"
        raise misuse(TypeError, text) from None


def _check_dtype(what: str, declared: str, given: np.dtype[Any]) -> None:
    """Raise TypeError for an array whose dtype is not the declared element type.

    A vector type counts as its scalar type.
    """
    if not declared:
        return  # the driver does not know
    _check_address_space(what, declared)
    if not declared.endswith("*"):
        raise misuse(TypeError, f"{what} takes a number, an array was given")
    wanted = SCALAR_TYPES.get(declared.removeprefix(CONST).removesuffix("*").rstrip("0123456789"))
    if wanted is not None and np.dtype(wanted) != given:
        raise misuse(TypeError, f"{what} was given {given}; use .astype(np.{np.dtype(wanted)})")


def _check_address_space(what: str, declared: str) -> None:
    if declared.startswith(LOCAL):
        advice = "declare it inside of the kernel, with its size"
        raise misuse(TypeError, f"{what} is memory that a group shares, not an argument; {advice}")


def _number(what: str, declared: str, given: np.generic | float) -> np.generic:
    """A number in the declared type; if the driver does not know that, as int or float."""
    _check_address_space(what, declared)
    if declared.endswith("*"):
        raise misuse(TypeError, f"{what} was given {given!r}; pass an array or a Tensor")
    if not isinstance(given, int | float | np.integer | np.floating | np.bool_):
        wanted = "a number" if declared else "a number, an array or a Tensor"
        raise misuse(TypeError, f"{what} was given {given!r}; pass {wanted}")
    kind, element = SCALAR_TYPES.get(declared), declared.rstrip("0123456789")
    if kind is None and element in SCALAR_TYPES:
        text = f"{what} is a vector, which no number is; declare {element} parameters, or pass"
        raise misuse(TypeError, f"{text} an array for a pointer")
    if kind is None:
        kind = given.dtype.str if isinstance(given, np.generic) else "i4"
        kind = "f4" if isinstance(given, float) else kind
    declared_type = np.dtype(kind)
    try:
        with np.errstate(all="ignore"):
            number: np.generic = declared_type.type(given)
    except (ValueError, OverflowError):  # for example NaN as an integer
        number = np.float64("nan")
    rounds = declared_type.kind == "f" and isinstance(given, float | np.floating)
    if number != given and not rounds:
        raise misuse(ValueError, f"{what} cannot hold {given!r}")
    return number


def compare(found: Any, specification: Any, rtol: float = 1e-5, atol: float | Array = 1e-6) -> None:
    """Raise AssertionError, naming the first wrong element, unless `found` equals `specification`.

    Elements may differ by `rtol` times the specified element plus `atol`, which is a number or an
    array. For long sums, a suitable `atol` is a fraction of the sum of absolute values. NaN equals
    NaN.
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
