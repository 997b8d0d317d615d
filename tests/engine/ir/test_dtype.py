"""Dtypes: their representation in NumPy and C, and promotion."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from imgmlp.engine.ir.dtype import (
    DType,
    bool_,
    concrete,
    f16,
    f32,
    from_numpy,
    i8,
    i32,
    of,
    promote,
    u8,
    u32,
    weak_float,
    weak_int,
)

STORED = [bool_, i8, u8, i32, u32, f16, f32]
ALL = [*STORED, weak_int, weak_float]


@pytest.mark.parametrize(
    ("dtype", "cl", "itemsize", "least", "greatest"),
    [
        (bool_, "uchar", 1, 0, 1),
        (i8, "char", 1, -128, 127),
        (u8, "uchar", 1, 0, 255),
        (i32, "int", 4, -(2**31), 2**31 - 1),
        (u32, "uint", 4, 0, 2**32 - 1),
        (f16, "half", 2, -np.inf, np.inf),
        (f32, "float", 4, -np.inf, np.inf),
    ],
)
def test_stored_dtype_has_a_size_a_range_and_a_c_name(
    dtype: DType, cl: str, itemsize: int, least: float, greatest: float
) -> None:
    assert (dtype.cl, dtype.itemsize, dtype.np.itemsize) == (cl, itemsize, itemsize)
    assert (dtype.min, dtype.max) == (least, greatest)
    assert not dtype.is_weak


def test_dtypes_are_grouped_into_floats_integers_and_weak() -> None:
    assert [d for d in ALL if d.is_float] == [f16, f32, weak_float]
    assert [d for d in ALL if d.is_int] == [i8, u8, i32, u32, weak_int]
    assert [d for d in ALL if d.is_weak] == [weak_int, weak_float]


@pytest.mark.parametrize("dtype", [weak_int, weak_float])
def test_weak_dtype_has_no_representation(dtype: DType) -> None:
    for field in ("np", "itemsize", "min", "max"):
        with pytest.raises(TypeError, match=f"{dtype.name} has no representation"):
            getattr(dtype, field)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((f16, weak_int), f16),  # half + 3 stays half
        ((f16, weak_float), f16),
        ((f16, f32), f32),
        ((i8, u8), i32),
        ((u8, weak_int), u8),
        ((u8, i32), i32),
        ((i32, u32), u32),  # no 64-bit type to hold both: modulo 2^32, as in C
        ((u32, f16), f16),  # an integer does not decide how precise a float is
        ((i32, weak_float), f32),
        ((bool_, weak_int), i32),
        ((bool_, weak_float), f32),
        ((bool_, u8), u8),
        ((bool_, bool_), bool_),
        ((weak_int, weak_float), weak_float),
        ((weak_int, weak_int), weak_int),
        ((f16, i32, weak_float), f16),
    ],
)
def test_promotion_gives_the_documented_dtype(dtypes: tuple[DType, ...], expected: DType) -> None:
    assert promote(*dtypes) is expected


def test_promotion_is_independent_of_the_order() -> None:
    for dtypes in itertools.product(ALL, repeat=3):
        assert len({promote(*order) for order in itertools.permutations(dtypes)}) == 1


def test_promoted_dtype_is_an_upper_bound_of_its_parts() -> None:
    for dtypes in itertools.product(ALL, repeat=3):
        bound = promote(*dtypes)
        assert all(promote(bound, d) is bound for d in dtypes if not d.is_weak or bound.is_weak)
        assert bound.priority >= max(d.priority for d in dtypes)


def test_stored_dtypes_promote_associatively() -> None:
    for a, b, c in itertools.product(STORED, repeat=3):
        assert promote(promote(a, b), c) is promote(a, promote(b, c)) is promote(a, b, c)


def test_promoted_dtype_is_weak_only_among_python_numbers() -> None:
    for a, b in itertools.product(ALL, repeat=2):
        assert promote(a, b).is_weak == (a.is_weak and b.is_weak)


def test_promotion_needs_at_least_one_dtype() -> None:
    with pytest.raises(TypeError, match="at least one"):
        promote()


def test_concrete_maps_weak_dtypes_to_32_bits() -> None:
    assert concrete(weak_int) is i32
    assert concrete(weak_float) is f32
    assert all(concrete(d) is d for d in STORED)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, bool_),
        (3, weak_int),
        (3.0, weak_float),
        (np.float16(3), f16),
        (np.float64(3), f32),  # NumPy's scalars are as strong as its arrays
        (np.zeros(2, np.uint8), u8),
        (np.dtype(np.uint32), u32),
        (np.int8, i8),
    ],
)
def test_dtype_of_a_value_is_inferred(value: Any, expected: DType) -> None:
    assert of(value) is expected


def test_other_objects_have_no_dtype() -> None:
    with pytest.raises(TypeError, match="str is no number"):
        of("3")


def test_stored_dtypes_survive_conversion_to_numpy() -> None:
    assert all(from_numpy(d.np) is d for d in STORED)


def test_arrays_of_python_numbers_are_narrowed_to_32_bits() -> None:
    assert from_numpy(np.array([1, 2]).dtype) is i32
    assert from_numpy(np.array([1.0, 2.0]).dtype) is f32


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        (np.int16, r"int16 .* \.astype\('int32'\)"),
        (np.uint16, r"uint16 .* \.astype\('uint32'\)"),
        (np.uint64, r"uint64 .* \.astype\('uint32'\)"),
        (np.longdouble, r"\.astype\('float32'\)"),
        (np.dtype(np.float32).newbyteorder(), r"\.astype\('float32'\)"),  # foreign byte order
        (np.complex64, r"complex64 .* \.real and \.imag"),
        (np.object_, "object arrays hold no numbers"),
        (np.str_, "hold no numbers"),
    ],
)
def test_unsupported_numpy_dtypes_are_refused_with_advice(dtype: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        from_numpy(dtype)
