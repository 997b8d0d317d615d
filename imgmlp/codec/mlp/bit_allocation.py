"""Rounds trained parameters: chooses each layer's step size from those of the file format.

Training learns step sizes as real numbers. Here each layer gets one of the format's, so that all of
them together stay within a budget of bits, if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.quantize import (
    STEP_SIZES,
    coded_bits,
    nearest_step,
    quantize,
    step_size,
)
from imgmlp.codec.mlp.integer_inference import is_exact
from imgmlp.codec.mlp.network import MAX_FINER, MAX_LAST_LAYER_STEP, Layer, Network, Shape
from imgmlp.errors import FormatError

MIN_BUDGET_USE = 0.993  # of the bits; with fewer, finer step sizes are looked for
_MAX_CHANGES_PER_LAYER = 24  # of its step size, on average, until the search ends

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Choice:
    """The step sizes of a layer."""

    step: int  # the number of the weights' step size in the format
    finer: int  # halvings by which the biases' step size is smaller

    def sizes(self) -> tuple[float, float]:
        """The step sizes of weights and biases."""
        size = step_size(self.step)
        return size, size / 2**self.finer


def choose_step_sizes(
    arrays: Sequence[Array], learned: Array, budget: float | None = None
) -> list[Choice]:
    """Step sizes of the layers of W0, b0, W1, b1 ..., near those learned by training.

    `learned` has their logarithms to base 2, [tensors]. With a budget in bits, step sizes change
    one by one, first where they deviate most from the learned ones in the wrong direction, until
    the budget is met and nearly used. If that cannot be, the nearest result is returned.
    """
    layers = len(arrays) // 2
    choices = [_nearest(learned, n, _coarsest(n, layers)) for n in range(layers)]
    if budget is None:
        return choices
    cache = _BitsCache(arrays)
    bits = cache.bits(choices)
    tried = {_distance(bits, budget): choices}
    for _ in range(_MAX_CHANGES_PER_LAYER * layers):
        if MIN_BUDGET_USE * budget <= bits <= budget:
            return choices
        deviations = [np.log2(step_size(c.step)) - learned[2 * n] for n, c in enumerate(choices)]
        exceeds = bits > budget
        order = np.argsort(deviations) if exceeds else np.argsort(deviations)[::-1]
        choices = _moved(choices, [int(n) for n in order], 1 if exceeds else -1, layers)
        bits = cache.bits(choices)
        tried[_distance(bits, budget)] = choices
    return tried[min(tried)]


class _BitsCache:
    """Bits of layers, computed once for each choice."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = arrays
        self._bits: dict[tuple[int, Choice], float] = {}

    def bits(self, choices: Sequence[Choice]) -> float:
        for n, choice in enumerate(choices):
            if (n, choice) not in self._bits:
                layer = self._arrays[2 * n : 2 * n + 2]
                self._bits[n, choice] = total_bits(layer, [choice])
        return sum(self._bits[key] for key in enumerate(choices))


def _distance(bits: float, budget: float) -> tuple[bool, float]:
    """Distance from a budget, as a sort key: all that meet it come before those that do not."""
    return bits > budget, abs(bits - budget)


def _coarsest(number: int, layers: int) -> int:
    return MAX_LAST_LAYER_STEP if number == layers - 1 else STEP_SIZES - 1


def _nearest(learned: Array, number: int, largest: int) -> Choice:
    of_weights, of_biases = (float(w) for w in learned[2 * number : 2 * number + 2])
    finer = min(max(round(of_weights - of_biases), 0), MAX_FINER)
    return Choice(nearest_step(2.0**of_weights, largest), finer)


def _moved(choices: list[Choice], order: list[int], by: int, layers: int) -> list[Choice]:
    """Choices in which the first layer of `order` that can be changed has another step size."""
    for n in order:
        step = choices[n].step + by
        if 0 <= step <= _coarsest(n, layers):
            return [*choices[:n], replace(choices[n], step=step), *choices[n + 1 :]]
    return choices


def total_bits(arrays: Sequence[Array], choices: Sequence[Choice]) -> float:
    """Bits of all arrays, rounded with these step sizes and coded."""
    sizes = [size for choice in choices for size in choice.sizes()]
    return sum(coded_bits(quantize(a, s)) for a, s in zip(arrays, sizes, strict=True))


def log_sizes(choices: Sequence[Choice]) -> Array:
    """float32 [tensors]: the logarithms to base 2 of all step sizes."""
    return np.log2([size for choice in choices for size in choice.sizes()]).astype(np.float32)


def network(
    arrays: Sequence[Array],
    choices: Sequence[Choice],
    shape: Shape,
    towards_zero: float = 0.0,
    cut: int | None = None,
) -> Network:
    """The network of integers.

    Step sizes become coarser where sums would need more than 32 bits, or where decoding hidden
    layers with the given `cut` would not be exact.
    """
    layers = []
    for n, choice in enumerate(choices):
        within = cut if 0 < n < len(choices) - 1 else None
        layers.append(_layer(arrays[2 * n], arrays[2 * n + 1], choice, towards_zero, within))
    return Network(shape, tuple(layers))


def _layer(
    weights: Array, biases: Array, choice: Choice, towards_zero: float, cut: int | None
) -> Layer:
    while True:
        of_weights, of_biases = choice.sizes()
        whole = quantize(weights, of_weights, towards_zero)
        last = choice.step == STEP_SIZES - 1
        if cut is None or last or is_exact(whole, cut):
            try:
                return Layer(whole, quantize(biases, of_biases), choice.step, choice.finer)
            except FormatError:
                if last:
                    raise
        choice = replace(choice, step=choice.step + 1)
