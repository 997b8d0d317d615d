"""Layers in NumPy, written from their formulas: what the engine's are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


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
