"""What the engine's results are compared with: layers in NumPy, written from their formulas, and
how far from float64 the rounding of a number format may lead, on any processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def close(actual: Any, expected: Any, magnitude: Any = None, roundings: float = 64) -> bool:
    """Whether rounding explains every difference from what float64 gives.

    A value that is rounded is off by at most half a unit in its last place: 2**-24 of a float32,
    2**-11 of a half. `magnitude` is how large what was added or multiplied on the way got, for
    each element or for all: of a sum the sum of absolute values (Higham, Accuracy and Stability
    of Numerical Algorithms, section 3.1), in whatever order a processor adds. If it is not given,
    it is the largest that is expected. `roundings` is how many of them come one after another.
    Infinities and NaNs must be the same, whole numbers exact.
    """
    found, wanted = np.asarray(actual), np.asarray(expected, np.float64)
    assert found.shape == wanted.shape, f"{found.shape} is not {wanted.shape}"
    if magnitude is None:
        magnitude = np.max(np.abs(wanted), initial=0, where=np.isfinite(wanted))
    unit = np.finfo(found.dtype).eps / 2 if found.dtype.kind == "f" else 0
    with np.errstate(invalid="ignore"):
        near = np.abs(found.astype(np.float64) - wanted) <= roundings * unit * magnitude
    near &= np.isfinite(wanted)  # a magnitude may be infinite where finite values are wanted, too
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    return bool(np.all(near | same))


def linear(x: Array, weight: Array, bias: Array) -> Array:
    return x @ weight + bias


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def normed(x: Array, scale: Array, shift: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift


def attention(x: Array, heads: int, into: Sequence[Array], out: Sequence[Array]) -> Array:
    """[batch, time, features] -> the same, one sequence and one head at a time."""
    size = x.shape[-1] // heads
    query, key, value = np.split(linear(x, *into), 3, axis=-1)
    found = np.zeros_like(query)
    for b in range(x.shape[0]):
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            weights = softmax(query[b, :, part] @ key[b, :, part].T / np.sqrt(size))
            found[b, :, part] = weights @ value[b, :, part]
    return linear(found, *out)


def encoder(x: Array, heads: int, v: Sequence[Array]) -> Array:
    """A transformer encoder layer from its 12 parameters, in the order the engine lists them."""
    middle = normed(x + attention(x, heads, v[0:2], v[2:4]), *v[8:10])
    hidden = np.maximum(linear(middle, *v[4:6]), 0)
    return normed(middle + linear(hidden, *v[6:8]), *v[10:12])


def cross_entropy(logits: Array, target: Array) -> float:
    """Mean over the rows of -log softmax(logits)[target]."""
    chances = softmax(logits)[np.arange(len(target)), target]
    return float(-np.log(chances).mean())
