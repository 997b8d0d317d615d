"""Random numbers as Nodes: a counter that is hashed with seeds, with equal bits on all devices.

There is no state. The seeds identify a stream of numbers; they may be computed values, such as the
number of a training step.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence

from imgmlp.engine.ir.dtype import f32, u32
from imgmlp.engine.ir.graph import Node, alu, cast, const, iota, move
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.operands import check_shape

UINT32_MAX = 0xFFFFFFFF
GOLDEN_RATIO_32 = 0x9E3779B9  # 2**32 / golden ratio: keeps streams of different seeds apart


def bits(shape: Sequence[int], seeds: Sequence[Node | int]) -> Node:
    """Uniform u32: the hash lowbias32 of a counter and the seeds.

    Seeds are integers or Nodes of one element. An integer beyond 32 bits counts as several, its
    lowest 32 bits first.
    """
    shape = check_shape("random numbers", shape)
    count = math.prod(shape)
    mixed = const(0, u32, (1,))
    for word in itertools.chain.from_iterable(map(_words, seeds)):
        mixed = alu(Op.HASH, mixed + word + GOLDEN_RATIO_32)
    counter = alu(Op.HASH, cast(iota(count), u32))
    drawn = alu(Op.HASH, counter + move(Op.EXPAND, mixed, (count,)))
    return move(Op.RESHAPE, drawn, shape)


def _words(seed: Node | int) -> list[Node]:
    """The 32-bit words of a seed; of a negative integer those of its two's complement."""
    if isinstance(seed, Node):
        if seed.dtype.is_float:
            text = f"random numbers: a seed of {seed.dtype.name} is no whole number"
            raise misuse(TypeError, text)
        return [move(Op.RESHAPE, cast(seed, u32), (1,))]
    try:
        left = operator.index(seed)
    except TypeError:
        raise misuse(TypeError, f"random numbers: seed {seed!r} is no whole number") from None
    words = [left & UINT32_MAX]
    while (left := left >> 32) not in (0, -1):
        words.append(left & UINT32_MAX)
    return [const(word, u32, (1,)) for word in words]


def uniform(random_bits: Node) -> Node:
    """Uniform f32 in [0, 1) from the 24 highest bits of each u32."""
    high = alu(Op.SHR, random_bits, const(8, u32, random_bits.shape))
    return cast(high, f32) * 2.0**-24


def normal(random_bits: Node, mean: float, variance: float) -> Node:
    """Gaussian f32 by the method of Box and Muller (1958), from each u32 and its hash.

    Raises ValueError for a negative variance.
    """
    if not variance >= 0:
        raise misuse(ValueError, f"normal: the variance must not be below 0, not {variance}")
    u = uniform(random_bits)
    radius = alu(Op.SQRT, alu(Op.LOG2, 1.0 - u) * (-2.0 * variance * math.log(2)))
    angle = uniform(alu(Op.HASH, random_bits)) * (2 * math.pi)
    return radius * alu(Op.SIN, angle + math.pi / 2) + mean
