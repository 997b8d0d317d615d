"""Exact dense layers on NumPy, and the entropy network that consists of them.

Part of the file format (docs/format-imlp.md). They run in float64, where every sum is exact because
it needs fewer than 53 bits: a layer is a matrix product, an activation a table look-up.
kernels/latents.cl and codec.latent.synthesis compute the same with 32-bit integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import MAX_LATENT, MAX_VALUE, MIN_LATENT, VALUE_BITS, Quantized
from imgmlp.codec.latent.probabilities import (
    MEAN_BITS,
    PHASES,
    SCALE_BITS,
    SCALES,
    UNIT_SCALE_INDEX,
)

Array = np.ndarray[Any, Any]

ONE = 1 << VALUE_BITS
LOG_SCALE_OFFSET = 4  # a latent's scale is exp(s - LOG_SCALE_OFFSET)
_FRACTION_BITS = VALUE_BITS + 2  # of smoothstep and its argument


def activate_exactly(x: Array, bits: int = VALUE_BITS) -> Array:
    """The activation x * smoothstep(x / 4 + 1/2) of integers with `bits` fractional bits: int64."""
    near = np.minimum(x, 2 << bits)  # from 2 on, the activation is the identity
    u = np.maximum((near >> bits - VALUE_BITS) + 2 * ONE, 0)  # x / 4 + 1/2, of 4096
    smoothstep = (u * u >> _FRACTION_BITS) * (3 * 4 * ONE - 2 * u) >> _FRACTION_BITS
    activated: Array = (near * smoothstep + 2 * ONE >> _FRACTION_BITS) + (x - near)
    return activated


@cache
def activation_table() -> Array:
    """The activations of -2 * ONE to MAX_VALUE: float64. Below -2 * ONE they are 0."""
    return activate_exactly(np.arange(-2 * ONE, MAX_VALUE + 1)).astype(np.float64)


def layer_matrix(networks: Mapping[str, Quantized], name: str, bits: int = VALUE_BITS) -> Array:
    """Weights and biases as one matrix: float64 [outputs, inputs + 1].

    It multiplies inputs with `bits` fractional bits, followed by a 1.
    """
    weight, bias = networks[f"{name}.weight"], networks[f"{name}.bias"]
    weights = np.ldexp(weight.values.astype(np.float64), -weight.exponent)
    biases = np.ldexp(bias.values.astype(np.float64), bits - bias.exponent)
    return np.concatenate([weights.reshape(-1, biases.size).T, biases[:, None]], axis=1)


class EntropyNetwork:
    """The entropy network of a file: the distributions of up to `max_count` latents at a time."""

    def __init__(self, networks: Mapping[str, Quantized], neighbours: int, max_count: int) -> None:
        layers = [layer_matrix(networks, f"entropy.{number}") for number in range(3)]
        self._neighbours = neighbours
        layers[0][:, :neighbours] *= ONE  # latents have no fractional bits
        for hidden in layers[:2]:
            hidden[:, -1] += 2 * ONE  # the table of activations begins at x = -2
        # From VALUE_BITS to the units of means and scales, so that both begin at 0.
        layers[2] /= np.array([[1 << VALUE_BITS - MEAN_BITS], [1 << VALUE_BITS - SCALE_BITS]])
        layers[2][:, -1] += [
            -MIN_LATENT * PHASES,
            UNIT_SCALE_INDEX - (LOG_SCALE_OFFSET << SCALE_BITS),
        ]
        for weights in layers:
            weights[:, -1] += 0.5  # with it, truncation rounds to the nearest
        self._layers = layers
        # Buffers for the inputs (the last row stays 1, for the bias), sums and rounded sums.
        self._values = [np.ones((weights.shape[1], max_count)) for weights in layers]
        self._sums = [np.empty((len(weights), max_count)) for weights in layers]
        self._indices = [np.empty(sums.shape, np.intp) for sums in self._sums]
        self._table = activation_table()
        self._max_outputs = np.array([[(MAX_LATENT - MIN_LATENT) * PHASES], [SCALES - 1]], np.intp)

    def __call__(self, neighbours: Array, hyperlatents: Array | int = 0) -> tuple[Array, Array]:
        """The numbers of distributions and the rounded means: intp [count] each.

        `neighbours` are [neighbours, count]; `hyperlatents`, if there are any, are
        [hyperlatents, count] with VALUE_BITS fractional bits.
        """
        count = neighbours.shape[1]
        self._values[0][: self._neighbours, :count] = neighbours
        self._values[0][self._neighbours : -1, :count] = hyperlatents
        for number in range(3):
            sums, indices = self._sums[number][:, :count], self._indices[number][:, :count]
            np.matmul(self._layers[number], self._values[number][:, :count], out=sums)
            np.copyto(indices, sums, casting="unsafe")
            if number < 2:
                activations = self._values[number + 1][:-1, :count]
                self._table.take(indices, out=activations, mode="clip")
        np.minimum(np.maximum(indices, 0, out=indices), self._max_outputs, out=indices)
        mean = indices[0] + (PHASES >> 1)
        return indices[1] * PHASES + (mean & PHASES - 1), (mean >> MEAN_BITS) + MIN_LATENT
