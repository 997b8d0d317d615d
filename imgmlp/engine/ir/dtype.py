"""The number types of the engine, and their promotion.

Seven types can be stored. Two weak types are those of Python's numbers, which adapt to the other
operand: half + 3 stays half. Promotion is the least upper bound on the lattice below. This module
knows only NumPy's types and the names of those of OpenCL C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy

from imgmlp.engine.ir.usage_errors import misuse

NumpyDType = numpy.dtype[Any]
Array = numpy.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class DType:
    """A number type. There is one object for each, so `is` compares.

    `priority` grows along every arrow of the promotion lattice. `cl` is the type's name in
    OpenCL C, empty for a weak type, which has no representation until `concrete` gives it one.
    """

    name: str
    cl: str = field(compare=False)
    storage: NumpyDType | None = field(compare=False, repr=False)
    priority: int = field(compare=False, repr=False)

    @property
    def np(self) -> NumpyDType:
        """The NumPy type of the same representation; TypeError for a weak type."""
        if self.storage is None:
            raise misuse(TypeError, f"{self.name} has no representation; make it concrete first")
        return self.storage

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.np.itemsize

    @property
    def is_weak(self) -> bool:
        return self.storage is None

    @property
    def is_float(self) -> bool:
        return self is weak_float or (self.storage is not None and self.storage.kind == "f")

    @property
    def is_int(self) -> bool:
        """An integer of either sign; bool is none."""
        return self is weak_int or (self.storage is not None and self.storage.kind in "iu")

    @property
    def min(self) -> int | float:
        """The least value, with which a maximum begins: minus infinity for floats."""
        if self.np.kind == "f":
            return -float("inf")
        return 0 if self.np.kind == "b" else int(numpy.iinfo(self.np).min)

    @property
    def max(self) -> int | float:
        """The greatest value, with which a minimum begins: infinity for floats."""
        if self.np.kind == "f":
            return float("inf")
        return 1 if self.np.kind == "b" else int(numpy.iinfo(self.np).max)


# The bool of OpenCL C has no defined size in a buffer, so bools are stored as bytes 0 or 1.
bool_ = DType("bool", "uchar", numpy.dtype(numpy.bool_), 0)
weak_int = DType("weak_int", "", None, 1)
i8 = DType("i8", "char", numpy.dtype(numpy.int8), 2)
u8 = DType("u8", "uchar", numpy.dtype(numpy.uint8), 3)
i32 = DType("i32", "int", numpy.dtype(numpy.int32), 4)
u32 = DType("u32", "uint", numpy.dtype(numpy.uint32), 5)
weak_float = DType("weak_float", "", None, 6)
f16 = DType("f16", "half", numpy.dtype(numpy.float16), 7)
f32 = DType("f32", "float", numpy.dtype(numpy.float32), 8)

# The types that each type is promoted to next. i8 and u8 are promoted to i32. No 32-bit type holds
# all values of i32 and u32, so they are promoted to u32 as in C: sums and products are right modulo
# 2^32, as hashes of counters need; cast to i32 if the sign matters. Every float is above every
# integer: an integer never decides how precise a float is.
_WIDENS_TO: dict[DType, tuple[DType, ...]] = {
    bool_: (weak_int,),
    weak_int: (i8, u8),
    i8: (i32,),
    u8: (i32,),
    i32: (u32,),
    u32: (weak_float,),
    weak_float: (f16,),
    f16: (f32,),
    f32: (),
}


def _upper_bounds(dtype: DType) -> set[DType]:
    return {dtype}.union(*(_upper_bounds(wider) for wider in _WIDENS_TO[dtype]))


@cache
def promote(*dtypes: DType) -> DType:
    """The least upper bound of one or more types, in whatever order.

    It is weak only if all of them are weak. Otherwise a weak bound becomes concrete: i32 and
    weak_float give f32.
    """
    if not dtypes:
        raise misuse(TypeError, "promote: needs at least one dtype")
    bound = min(set.intersection(*map(_upper_bounds, dtypes)), key=lambda d: d.priority)
    python_only = all(d.is_weak for d in dtypes)
    return bound if python_only else concrete(bound)


def concrete(dtype: DType) -> DType:
    """The type in which a value is stored: i32 or f32 for a weak one, else the type itself."""
    return i32 if dtype is weak_int else f32 if dtype is weak_float else dtype


def check(dtype: DType, operation: str) -> None:
    """Raise TypeError for anything but a DType that can be stored, such as a NumPy dtype."""
    if not isinstance(dtype, DType) or dtype.is_weak:
        names = ", ".join(d.name.replace("bool", "bool_") for d in _WIDENS_TO if not d.is_weak)
        raise misuse(TypeError, f"{operation}: {dtype!r} is none of engine.dtype's {names}")


def as_float(value: float) -> float:
    """A Python number as a float; an integer that is too large becomes infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def wrapped_number(value: float, dtype: DType) -> bool | int | float:
    """The number as a Python bool, int or float, as the dtype is; integers wrap to its range."""
    if not dtype.is_int:
        return bool(value) if dtype is bool_ else as_float(value)
    low = int(dtype.min)
    return (int(value) - low) % (1 << (8 * dtype.itemsize)) + low


_FROM_NUMPY = {d.np: d for d in _WIDENS_TO if not d.is_weak} | {
    numpy.dtype(numpy.int64): i32,
    numpy.dtype(numpy.float64): f32,
}
_NEAREST = {"i": "int32", "u": "uint32", "f": "float32"}


def from_numpy(dtype: Any) -> DType:
    """The type in which an array of a NumPy dtype is stored.

    int64 becomes i32 and float64 becomes f32, because NumPy uses these for Python's numbers. The
    caller checks that the integers fit. Raises TypeError for other types that cannot be stored.
    """
    source = numpy.dtype(dtype)
    if source in _FROM_NUMPY:
        return _FROM_NUMPY[source]
    if source.kind in _NEAREST:
        raise misuse(
            TypeError,
            f"{source} arrays cannot be kept; cast with .astype({_NEAREST[source.kind]!r})",
        )
    if source.kind == "c":
        raise misuse(TypeError, f"{source} arrays cannot be kept; take .real and .imag apart")
    raise misuse(TypeError, f"{source} arrays hold no numbers")


def of(value: Any) -> DType:
    """The type of a Python number (bool, or a weak one), an array or a NumPy dtype."""
    if isinstance(value, numpy.ndarray | numpy.generic):
        return from_numpy(value.dtype)
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        return weak_int
    if isinstance(value, float):
        return weak_float
    if isinstance(value, numpy.dtype | type):
        return from_numpy(value)
    raise misuse(TypeError, f"{type(value).__name__} is no number, array or NumPy dtype")
