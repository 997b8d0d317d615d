"""From a trained step to a model of whole numbers: each tensor gets the step that serves best.

Best is the least D + lambda R of the whole file: the squared error and the bits of latents as the
networks with rounded weights give them, and the bits of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import (
    LARGEST,
    LEAST,
    NEIGHBOURS,
    LatentModel,
    ModelShape,
    Quantized,
    check_networks,
    quantized,
)
from imgmlp.codec.latent.parts import WIDTH
from imgmlp.codec.latent.plane import REACH
from imgmlp.codec.latent.sections import network_bits
from imgmlp.codec.latent.train import LatentStep
from imgmlp.errors import FormatError

Array = np.ndarray[Any, Any]

START = {"weight": 7, "bias": 7, "upsampling": 8}  # exponents of steps to begin with


def shape_of(step: LatentStep) -> ModelShape:
    hidden, entropy_hidden = step.synthesis_shapes[1][0], step.entropy_shapes[1][0]
    size = step.height, step.width, step.channels, step.levels
    return ModelShape(*size, hidden, entropy_hidden)


def networks_of(step: LatentStep, flat: Array) -> dict[str, Array]:
    """The flat parameters as a file's tensors."""
    parts = np.split(flat, np.cumsum([int(np.prod(s)) for s in step.shapes])[:-1])
    arrays = [p.reshape(s) for p, s in zip(parts, step.shapes, strict=True)]
    synthesis, residual, context = arrays[:6], arrays[6:10], arrays[10:16]
    found = dict(zip(_names("entropy"), context, strict=True))
    found["entropy.0.weight"] = found["entropy.0.weight"][_order()]
    found["upsampling"] = np.array(arrays[16:]).reshape(-1, 4)
    found |= dict(zip(_names("synthesis"), synthesis, strict=True))
    c = step.channels
    for number in range(2):
        weight = residual[2 * number].reshape(c, 3, 3, c).transpose(1, 2, 0, 3)
        found[f"residual.{number}.weight"] = weight
        found[f"residual.{number}.bias"] = residual[2 * number + 1]
    return found


def flat_of(step: LatentStep, networks: Mapping[str, Array]) -> Array:
    """The other way around; float32 [parameters]."""
    context = [networks[name] for name in _names("entropy")]
    back = np.empty_like(context[0])
    back[_order()] = context[0]
    c = step.channels
    found = [networks[name] for name in _names("synthesis")]
    for number in range(2):
        weight = networks[f"residual.{number}.weight"].transpose(2, 0, 1, 3).reshape(9 * c, c)
        found += [weight, networks[f"residual.{number}.bias"]]
    found += [back, *context[1:], networks["upsampling"]]
    return np.concatenate([np.ravel(a) for a in found]).astype(np.float32)


def _names(network: str) -> list[str]:
    return [f"{network}.{n}.{kind}" for n in range(3) for kind in ("weight", "bias")]


def _order() -> list[int]:
    """Which row of the trained first layer is each neighbour's."""
    return [(up + REACH) * WIDTH + right + REACH for up, right in NEIGHBOURS]


class Search:
    """Steps of all tensors, one after the other, by what they give and cost."""

    def __init__(self, step: LatentStep, price: float) -> None:
        self.step, self.price = step, price
        self.floats = networks_of(step, step.flat.numpy())
        self.exponents = {n: START[n.rpartition(".")[2]] for n in self.floats}
        self.tried: dict[tuple[tuple[str, int], ...], float] = {}

    def run(self, rounds: int = 2) -> dict[str, Quantized]:
        while (best := self._cost(self.exponents)) == math.inf:  # sums would need too many bits
            self.exponents = {n: e - 1 for n, e in self.exponents.items()}
        for _ in range(rounds):
            before = best
            for name in self.floats:
                for way in (-1, 1):
                    while True:
                        changed = {**self.exponents, name: self.exponents[name] + way}
                        cost = self._cost(changed)
                        if cost >= best:
                            break
                        best, self.exponents = cost, changed
            if best == before:
                break
        return self._rounded(self.exponents)

    def _rounded(self, exponents: Mapping[str, int]) -> dict[str, Quantized]:
        return {n: quantized(a, exponents[n]) for n, a in self.floats.items()}

    def _cost(self, exponents: Mapping[str, int]) -> float:
        key = tuple(exponents.items())
        if key not in self.tried:
            networks = self._rounded(exponents)
            good = _is_valid(shape_of(self.step), networks)
            self.tried[key] = self._judged(networks) if good else math.inf
        return self.tried[key]

    def _judged(self, networks: Mapping[str, Quantized]) -> float:
        """D + lambda R in mean squared error on [0, 1] and bits per pixel."""
        flat = flat_of(self.step, {n: q.floats() for n, q in networks.items()})
        error, bits = self.step.judge(flat)
        return error + self.price * (bits + network_bits(networks) / self.step.pixels)


def _is_valid(shape: ModelShape, networks: Mapping[str, Quantized]) -> bool:
    """Whether a file may have these."""
    try:
        check_networks(shape, networks)
    except FormatError:
        return False
    return True


def model_of(step: LatentStep, price: float) -> LatentModel:
    """The model of whole numbers."""
    networks = Search(step, price).run()
    return LatentModel(shape_of(step), grids_of(step), networks)


def grids_of(step: LatentStep) -> tuple[Array, ...]:
    """int8: every grid's values, rounded as in training."""
    found = []
    for grid in step.grids():
        whole = np.floor(grid + np.float32(0.5))
        found.append(np.clip(whole, LEAST, LARGEST).astype(np.int8))
    return tuple(found)
