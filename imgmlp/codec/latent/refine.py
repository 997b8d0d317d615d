"""Single weights of rounded networks, moved by a step where D + lambda R of the file falls.

The gradient says which moves could pay, and which of them most; each is tried by itself. What is
coded are the symbols of codec.latent.sections, so a move may also save bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import range_coder
from imgmlp.codec.latent.model import Quantized
from imgmlp.codec.latent.parameters import flat_of, networks_of
from imgmlp.codec.latent.sections import coding
from imgmlp.codec.latent.training_step import LatentStep

Array = np.ndarray[Any, Any]


class Refinement:
    """The weights of networks as symbols to be moved; `networks()` are what they are by now."""

    def __init__(self, step: LatentStep, networks: Mapping[str, Quantized], price: float) -> None:
        self.step, self._first = step, networks
        self._bit = price / step.pixels  # D + lambda R of a bit
        self._price = price
        self._flat = flat_of({name: tensor.floats() for name, tensor in networks.items()})
        places = networks_of(np.arange(len(self._flat)), step.shapes)
        self._places = np.concatenate([places[name].ravel() for name in networks])
        parts = [_symbols(name, tensor, step) for name, tensor in networks.items()]
        self._symbols, self._scales, self._sizes = (
            np.concatenate(arrays) for arrays in zip(*parts, strict=True)
        )

    def run(self, trials: int, enough: Callable[[], bool]) -> None:
        """Try at most so many moves, until none pays or `enough` says so."""
        best, moved = self._cost(), True
        while moved and trials > 0 and not enough():
            moved = False
            for at, way, saved in self._promising()[:trials]:
                if enough():
                    break
                trials -= 1
                before = self._flat[self._places[at]]
                self._flat[self._places[at]] += way * self._sizes[at]
                cost = self._cost()
                if cost - saved < best:
                    best, moved = cost, True
                    self._symbols[at] += way
                else:
                    self._flat[self._places[at]] = before

    def networks(self) -> dict[str, Quantized]:
        floats = networks_of(self._flat, self.step.shapes)
        return {
            name: Quantized(
                np.rint(np.ldexp(np.float64(floats[name]), tensor.exponent)).astype(np.int32),
                tensor.exponent,
            )
            for name, tensor in self._first.items()
        }

    def _cost(self) -> float:
        """D + lambda R but for the networks' bits."""
        error, rate = self.step.judge(self._flat)
        return error + self._price * rate

    def _promising(self) -> list[tuple[int, int, float]]:
        """Moves that may pay, most promising first: symbol, way, and what is saved in bits' price.

        Costs bend upwards, so that no move gains more than the gradient says.
        """
        by_error, by_rate = self.step.slopes(self._flat)
        slopes = (by_error + self._price * by_rate)[self._places] * self._sizes
        found = []
        now = range_coder.costs(self._symbols, self._scales)
        for way in (-1, 1):
            saved = self._bit * (now - range_coder.costs(self._symbols + way, self._scales))
            gains = saved - way * slopes
            found += [
                (gains[at], int(at), way, float(saved[at])) for at in np.flatnonzero(gains > 0)
            ]
        return [(at, way, saved) for _, at, way, saved in sorted(found, reverse=True)]


def _symbols(name: str, tensor: Quantized, step: LatentStep) -> tuple[Array, Array, Array]:
    """Of a tensor as it is coded: symbols, their distribution's number, and the size of a step."""
    base, number = coding(name, tensor, step.start)
    symbols = (tensor.values - base).ravel().astype(np.int64)
    sizes = np.full(symbols.shape, np.float32(2.0**-tensor.exponent))
    return symbols, np.full(symbols.shape, number), sizes
