"""Tensors from nothing but a shape: constants, ranges and random numbers.

Constants and ranges are stored nowhere: the kernels that use them compute them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, TypeAlias

import numpy as np

from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.dtype import DType
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations import random
from imgmlp.engine.operations.elementwise import Elementwise, common_device
from imgmlp.engine.operations.operands import (
    Scalar,
    check_shape,
    from_host,
    full_node,
    unpack_sizes,
)
from imgmlp.engine.operations.windows import Windows

Seed: TypeAlias = "Elementwise | int | tuple[Elementwise | int, ...]"


class Creation(Windows):
    """Constructors of new Tensors. Sizes that are negative raise ValueError."""

    __slots__ = ()

    @classmethod
    def full(
        cls, shape: Sequence[int], value: Scalar, dtype: DType | None = None, device: Any = None
    ) -> Self:
        """A Tensor whose elements are all `value`; its dtype is the value's by default."""
        kind = dtype or dt.concrete(dt.of(value))
        dt.check(kind, "full")
        return cls(full_node("full", value, kind, check_shape("full", shape)), device)

    @classmethod
    def zeros(cls, *shape: int | Sequence[int], dtype: DType = dt.f32, device: Any = None) -> Self:
        """Zeros. The sizes are separate arguments, or one tuple."""
        dt.check(dtype, "zeros")
        return cls(graph.const(0, dtype, check_shape("zeros", unpack_sizes(shape))), device)

    @classmethod
    def ones(cls, *shape: int | Sequence[int], dtype: DType = dt.f32, device: Any = None) -> Self:
        """Ones. The sizes are separate arguments, or one tuple."""
        dt.check(dtype, "ones")
        return cls(graph.const(1, dtype, check_shape("ones", unpack_sizes(shape))), device)

    @classmethod
    def empty(
        cls, *shape: int | Sequence[int], dtype: DType = dt.f32, device: Any = None, name: str = ""
    ) -> Self:
        """A realized Tensor that is to be written or assigned. Until then it holds zeros."""
        dt.check(dtype, "empty")
        zeros = np.zeros(check_shape("empty", unpack_sizes(shape)), dtype.np)
        return cls(from_host(zeros, device, dtype, name), device)

    @classmethod
    def arange(
        cls, start: float, stop: float | None = None, step: float = 1, dtype: DType | None = None,
        device: Any = None,
    ) -> Self:  # fmt: skip
        """The numbers from `start` in steps of `step` up to `stop`, which is excluded.

        A single argument is the `stop`, and `start` is 0. The dtype is i32 if all arguments are
        integers, otherwise f32, unless `dtype` is given. Raises ValueError for a step of 0.
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
            full_node("arange", end, dt.i32 if whole and not kind.is_int else kind)
        numbers = graph.cast(graph.iota(count), dt.i32 if whole else dt.f32)
        if step != 1:
            numbers = numbers * step
        return cls(graph.cast(numbers + start if start else numbers, kind), device)

    @classmethod
    def eye(
        cls, rows: int, columns: int | None = None, diagonal: int = 0, dtype: DType = dt.f32,
        device: Any = None,
    ) -> Self:  # fmt: skip
        """Ones along a diagonal, zeros elsewhere. A positive `diagonal` is above the main one."""
        column = cls.arange(rows if columns is None else columns, device=device)
        row = cls.arange(rows, device=device).reshape(rows, 1)
        return (column - row).eq(diagonal).cast(dtype)

    def full_like(self, value: Scalar, dtype: DType | None = None) -> Self:
        """A Tensor whose elements are all `value`, of this shape and dtype, on this device."""
        return self.full(self.shape, value, dtype or self.dtype, self.device)

    @classmethod
    def random_bits(cls, shape: Sequence[int], seed: Seed, device: Any = None) -> Self:
        """Uniform u32: a hash of each element's index and the seed.

        A seed is an integer or a u32 Tensor of one element, or a tuple of these. An integer beyond
        32 bits counts as several, its lowest 32 bits first; a negative one is taken as its two's
        complement. The device is by default that of the seed's Tensors.
        """
        parts = seed if isinstance(seed, tuple) else (seed,)
        device = device or common_device(*(p for p in parts if isinstance(p, Elementwise)))
        nodes = [p.node if isinstance(p, Elementwise) else p for p in parts]
        return cls(random.bits(shape, nodes), device)

    @classmethod
    def uniform(cls, shape: Sequence[int], seed: Seed, device: Any = None) -> Self:
        """Uniform f32 in [0, 1), with 24 random bits each."""
        bits = cls.random_bits(shape, seed, device)
        return cls(random.uniform(bits.node), bits.device)

    @classmethod
    def normal(
        cls,
        shape: Sequence[int],
        seed: Seed,
        mean: float = 0.0,
        variance: float = 1.0,
        device: Any = None,
    ) -> Self:
        """Gaussian f32 by the method of Box and Muller (1958).

        Raises ValueError for a negative variance.
        """
        bits = cls.random_bits(shape, seed, device)
        return cls(random.normal(bits.node, mean, variance), bits.device)
