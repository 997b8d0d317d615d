"""Layers in whole numbers on NumPy, and the entropy network that is made of them.

Part of the file format (docs/format-imlp.md). They run in float64, where every sum is exact, as it
needs less than 53 bits: a layer is a product of matrices, an activation a look into a table.
kernels/latents.cl and codec.latent.synthesis do the same in 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import LARGEST, LEAST, LIMIT, VALUE_BITS, Quantized
from imgmlp.codec.latent.probabilities import MEAN_BITS, MIDDLE, PHASES, SCALE_BITS, SCALES

Array = np.ndarray[Any, Any]

ONE = 1 << VALUE_BITS
OFFSET = 4  # of the logarithm of a scale: exp(s - OFFSET)
_FINER = VALUE_BITS + 2  # bits of the share in an activation


def activated(x: Array, bits: int = VALUE_BITS) -> Array:
    """int64, in 2**-bits: x times a share that grows from 0 at x = -2 to 1 at x = 2."""
    near = np.minimum(x, 2 << bits)
    u = np.maximum((near >> bits - VALUE_BITS) + 2 * ONE, 0)
    share = (u * u >> _FINER) * (3 * 4 * ONE - 2 * u) >> _FINER
    found: Array = (near * share + 2 * ONE >> _FINER) + (x - near)
    return found


@cache
def activations() -> Array:
    """float64: those of x = -2 * ONE to LIMIT; below they are 0."""
    return activated(np.arange(-2 * ONE, LIMIT + 1)).astype(np.float64)


def layer(networks: Mapping[str, Quantized], name: str, bits: int = VALUE_BITS) -> Array:
    """float64 [outputs, inputs + 1]: weights and biases, for values in 2**-bits and a 1."""
    weight, bias = networks[f"{name}.weight"], networks[f"{name}.bias"]
    weights = np.ldexp(weight.values.astype(np.float64), -weight.exponent)
    biases = np.ldexp(bias.values.astype(np.float64), bits - bias.exponent)
    return np.concatenate([weights.reshape(-1, biases.size).T, biases[:, None]], axis=1)


class EntropyNetwork:
    """What the entropy network of a file says of latents, at most `most` of them at a time."""

    def __init__(self, networks: Mapping[str, Quantized], neighbours: int, most: int) -> None:
        layers = [layer(networks, f"entropy.{number}") for number in range(3)]
        self._neighbours = neighbours
        layers[0][:, :neighbours] *= ONE  # latents have no fraction
        for hidden in layers[:2]:
            hidden[:, -1] += 2 * ONE  # where the table of activations begins
        # from 2**-VALUE_BITS to the units of means and scales, and there from 0 on
        layers[2] /= np.array([[1 << VALUE_BITS - MEAN_BITS], [1 << VALUE_BITS - SCALE_BITS]])
        layers[2][:, -1] += [-LEAST * PHASES, MIDDLE - (OFFSET << SCALE_BITS)]
        for weights in layers:
            weights[:, -1] += 0.5  # so that cutting off rounds
        self._layers = layers
        self._values = [np.ones((weights.shape[1], most)) for weights in layers]  # a 1 for the bias
        self._sums = [np.empty((len(weights), most)) for weights in layers]
        self._indices = [np.empty(sums.shape, np.intp) for sums in self._sums]
        self._table = activations()
        self._most = np.array([[(LARGEST - LEAST) * PHASES], [SCALES - 1]], np.intp)

    def __call__(self, neighbours: Array, above: Array | int = 0) -> tuple[Array, Array]:
        """[neighbours, count], and [hyperlatents, count] in 2**-VALUE_BITS, if there are any ->
        numbers of distributions and rounded means, intp [count].
        """
        count = neighbours.shape[1]
        self._values[0][: self._neighbours, :count] = neighbours
        self._values[0][self._neighbours : -1, :count] = above
        for number in range(3):
            sums, indices = self._sums[number][:, :count], self._indices[number][:, :count]
            np.matmul(self._layers[number], self._values[number][:, :count], out=sums)
            np.copyto(indices, sums, casting="unsafe")
            if number < 2:
                target = self._values[number + 1][:-1, :count]
                self._table.take(indices, out=target, mode="clip")
        np.minimum(np.maximum(indices, 0, out=indices), self._most, out=indices)
        mean = indices[0] + (PHASES >> 1)
        return indices[1] * PHASES + (mean & PHASES - 1), (mean >> MEAN_BITS) + LEAST
