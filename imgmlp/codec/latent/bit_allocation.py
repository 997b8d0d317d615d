"""From a trained step to a model of whole numbers: each tensor gets the step that serves best.

Best is the least D + lambda R of the whole file: the squared error and the bits of latents as the
networks with rounded weights give them, and the bits of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from imgmlp.codec.latent.operations import WIDTH
from imgmlp.codec.latent.plane import REACH
from imgmlp.codec.latent.sections import network_bits
from imgmlp.codec.latent.training_step import LatentStep
from imgmlp.codec.training.replay import decibels
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


@dataclass(frozen=True)
class Figures:
    """What rounded networks give, as floats in training have it."""

    error: float  # mean squared, on [0, 1], of samples that count
    bits: float  # of the latents and of the networks

    @property
    def psnr(self) -> float:
        """dB of the picture, whose samples are rounded."""
        return decibels(self.error + 1 / (12 * 255**2))


class Search:
    """Steps of all tensors, one after the other, by what they give and cost.

    It takes what it has found once `enough` says so, which is asked before every trial.
    """

    def __init__(
        self,
        step: LatentStep,
        exponents: Mapping[str, int] | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self.step, self._enough, self._shape = step, enough, shape_of(step)
        self.floats = networks_of(step, step.flat.numpy())
        self.exponents = dict(exponents or {n: START[n.rpartition(".")[2]] for n in self.floats})
        self._tried: dict[tuple[tuple[str, int], ...], Figures | None] = {}
        self._bits: dict[tuple[str, int], float] = {}  # of a tensor with a step

    def run(self, price: float, rounds: int = 2) -> dict[str, Quantized]:
        """The networks with the least D + lambda R near those that the last search found."""
        while (best := self._cost(self.exponents, price)) == math.inf:  # sums need too many bits
            self.exponents = {n: e - 1 for n, e in self.exponents.items()}
        for _ in range(rounds):
            before = best
            for name in self.floats:
                best = self._along(name, price, best)
            if best == before or self._enough():
                break
        return self._rounded(self.exponents)

    def _along(self, name: str, price: float, best: float) -> float:
        """Change one tensor's step as long as that is better; returns the least cost."""
        for way in (-1, 1):
            while not self._enough():
                changed = {**self.exponents, name: self.exponents[name] + way}
                cost = self._cost(changed, price)
                if cost >= best:
                    break
                best, self.exponents = cost, changed
        return best

    def figures(self, networks: Mapping[str, Quantized]) -> Figures:
        flat = flat_of(self.step, {n: q.floats() for n, q in networks.items()})
        error, rate = self.step.judge(flat)
        return Figures(error, rate * self.step.pixels + self._network_bits(networks))

    def _network_bits(self, networks: Mapping[str, Quantized]) -> float:
        for name, tensor in networks.items():
            if (name, tensor.exponent) not in self._bits:
                self._bits[name, tensor.exponent] = network_bits({name: tensor})
        return sum(self._bits[name, tensor.exponent] for name, tensor in networks.items())

    def bits(self) -> float:
        """About what a file would spend on the networks."""
        return self._network_bits(self._rounded(self.exponents))

    def _rounded(self, exponents: Mapping[str, int]) -> dict[str, Quantized]:
        return {n: quantized(a, exponents[n]) for n, a in self.floats.items()}

    def _cost(self, exponents: Mapping[str, int], price: float) -> float:
        """D + lambda R in mean squared error on [0, 1] and bits per pixel."""
        key = tuple(exponents.items())
        if key not in self._tried:
            networks = self._rounded(exponents)
            good = _is_valid(self._shape, networks)
            self._tried[key] = self.figures(networks) if good else None
        found = self._tried[key]
        if found is None:
            return math.inf
        return found.error * self.step.counted + price * found.bits / self.step.pixels


def _is_valid(shape: ModelShape, networks: Mapping[str, Quantized]) -> bool:
    """Whether a file may have these."""
    try:
        check_networks(shape, networks)
    except FormatError:
        return False
    return True


def model_of(step: LatentStep, price: float) -> LatentModel:
    """The model of whole numbers."""
    networks = Search(step).run(price)
    return LatentModel(shape_of(step), grids_of(step), networks)


def grids_of(step: LatentStep) -> tuple[Array, ...]:
    """int8: every grid's values, rounded as in training."""
    found = []
    for grid in step.grids():
        whole = np.floor(grid + np.float32(0.5))
        found.append(np.clip(whole, LEAST, LARGEST).astype(np.int8))
    return tuple(found)
