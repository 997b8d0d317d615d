"""From trained numbers to whole ones: which steps of the format a network gets.

Training finds steps as real numbers. Here each layer gets one that exists, all of them together
within a budget of bits if there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.quantize import STEPS, coded_bits, nearest_step, quantize, step_size
from imgmlp.codec.mlp.integer_inference import is_exact
from imgmlp.codec.mlp.network import LAST_STEP, MAX_FINER, Layer, Network, Shape
from imgmlp.errors import FormatError

MIN_BUDGET_USE = 0.993  # of a budget that is to be used
_MAX_CHANGES_PER_LAYER = 24  # for each layer

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Choice:
    """A layer's step, and by how many halvings the step of its biases is smaller."""

    step: int
    finer: int

    def sizes(self) -> tuple[float, float]:
        size = step_size(self.step)
        return size, size / 2**self.finer


def choose_step_sizes(
    arrays: Sequence[Array], wished: Array, budget: float | None = None
) -> list[Choice]:
    """Steps for W0, b0, W1, b1 ... near `wished`, the logarithms (base 2) of those from training.

    With a budget, in bits, the layers whose steps are furthest on the wrong side of the wish
    change first, until the budget is kept and nearly used, or cannot be.
    """
    layers = len(arrays) // 2
    choices = [_nearest(wished, n, _coarsest(n, layers)) for n in range(layers)]
    if budget is None:
        return choices
    known = _BitsCache(arrays)
    bits = known.bits(choices)
    tried = {_distance(bits, budget): choices}
    for _ in range(_MAX_CHANGES_PER_LAYER * layers):
        if MIN_BUDGET_USE * budget <= bits <= budget:
            return choices
        off = [np.log2(step_size(c.step)) - wished[2 * n] for n, c in enumerate(choices)]
        more = bits > budget
        order = np.argsort(off) if more else np.argsort(off)[::-1]
        choices = _moved(choices, [int(n) for n in order], 1 if more else -1, layers)
        bits = known.bits(choices)
        tried[_distance(bits, budget)] = choices
    return tried[min(tried)]


class _BitsCache:
    """What layers cost with the choices that were tried, each computed once."""

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
    """How far from a budget; any that keeps it is nearer than one that does not."""
    return bits > budget, abs(bits - budget)


def _coarsest(number: int, layers: int) -> int:
    return LAST_STEP if number == layers - 1 else STEPS - 1


def _nearest(wished: Array, number: int, largest: int) -> Choice:
    of_weights, of_biases = (float(w) for w in wished[2 * number : 2 * number + 2])
    finer = min(max(round(of_weights - of_biases), 0), MAX_FINER)
    return Choice(nearest_step(2.0**of_weights, largest), finer)


def _moved(choices: list[Choice], order: list[int], by: int, layers: int) -> list[Choice]:
    """The first layer of an order that can has a coarser or finer step."""
    for n in order:
        step = choices[n].step + by
        if 0 <= step <= _coarsest(n, layers):
            return [*choices[:n], replace(choices[n], step=step), *choices[n + 1 :]]
    return choices


def total_bits(arrays: Sequence[Array], choices: Sequence[Choice]) -> float:
    """What all arrays cost with these steps, coded."""
    sizes = [size for choice in choices for size in choice.sizes()]
    return sum(coded_bits(quantize(a, s)) for a, s in zip(arrays, sizes, strict=True))


def log_sizes(choices: Sequence[Choice]) -> Array:
    """float32 [tensors]: logarithms (base 2) of all steps."""
    return np.log2([size for choice in choices for size in choice.sizes()]).astype(np.float32)


def network(
    arrays: Sequence[Array],
    choices: Sequence[Choice],
    shape: Shape,
    towards_zero: float = 0.0,
    cut: int | None = None,
) -> Network:
    """The network of whole numbers; steps grow where its sums would need more than 32 bits.

    They do so too where decoding would not be exact with a cut of hidden layers, if one is given.
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
        last = choice.step == STEPS - 1
        if cut is None or last or is_exact(whole, cut):
            try:
                return Layer(whole, quantize(biases, of_biases), choice.step, choice.finer)
            except FormatError:
                if last:
                    raise
        choice = replace(choice, step=choice.step + 1)
