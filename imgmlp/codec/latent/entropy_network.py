"""The entropy network in whole numbers: from a latent's neighbours to its distribution.

Part of the file format (docs/format-imlp.md). Runs on NumPy, in float64, where every sum of the
network is exact, as it needs less than 53 bits; kernels/latents.cl does the same in 32 bits.
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


@cache
def activations() -> Array:
    """float64: of x = -2 * ONE to LIMIT, x times a share that grows from 0 at -2 to 1 at 2."""
    x = np.arange(-2 * ONE, LIMIT + 1)
    u = np.minimum(x + 2 * ONE, 4 * ONE)
    share = (u * u >> _FINER) * (3 * 4 * ONE - 2 * u) >> _FINER
    found: Array = (x * share + 2 * ONE >> _FINER).astype(np.float64)
    return found


class EntropyNetwork:
    """What the entropy network of a file says of latents, at most `most` of them at a time."""

    def __init__(self, networks: Mapping[str, Quantized], most: int) -> None:
        layers = [_layer(networks, number) for number in range(3)]
        layers[0][:, :-1] *= ONE  # latents have no fraction
        for layer in layers[:2]:
            layer[:, -1] += 2 * ONE  # where the table of activations begins
        # from 2**-VALUE_BITS to the units of means and scales, and there from 0 on
        layers[2] /= np.array([[1 << VALUE_BITS - MEAN_BITS], [1 << VALUE_BITS - SCALE_BITS]])
        layers[2][:, -1] += [-LEAST * PHASES, MIDDLE - (OFFSET << SCALE_BITS)]
        for layer in layers:
            layer[:, -1] += 0.5  # so that cutting off rounds
        self._layers = layers
        self._values = [np.ones((layer.shape[1], most)) for layer in layers]  # a 1 for the bias
        self._sums = [np.empty((len(layer), most)) for layer in layers]
        self._indices = [np.empty(sums.shape, np.intp) for sums in self._sums]
        self._table = activations()
        self._most = np.array([[(LARGEST - LEAST) * PHASES], [SCALES - 1]], np.intp)

    def __call__(self, neighbours: Array) -> tuple[Array, Array]:
        """[neighbours, count] -> numbers of distributions and rounded means, intp [count]."""
        count = neighbours.shape[1]
        self._values[0][:-1, :count] = neighbours
        for number in range(3):
            sums, indices = self._sums[number][:, :count], self._indices[number][:, :count]
            np.matmul(self._layers[number], self._values[number][:, :count], out=sums)
            np.copyto(indices, sums, casting="unsafe")
            if number < 2:
                target = self._values[number + 1][:-1, :count]
                self._table.take(indices, out=target, mode="clip")
        np.clip(indices, 0, self._most, out=indices)
        mean = indices[0] + (PHASES >> 1)
        return indices[1] * PHASES + (mean & PHASES - 1), (mean >> MEAN_BITS) + LEAST


def _layer(networks: Mapping[str, Quantized], number: int) -> Array:
    """float64 [outputs, inputs + 1]: weights and biases, in 2**-VALUE_BITS of the outputs."""
    weight, bias = (networks[f"entropy.{number}.{what}"] for what in ("weight", "bias"))
    weights = np.ldexp(weight.values.T.astype(np.float64), -weight.exponent)
    biases = np.ldexp(bias.values.astype(np.float64), VALUE_BITS - bias.exponent)
    return np.concatenate([weights, biases[:, None]], axis=1)
