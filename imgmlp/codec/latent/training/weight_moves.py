"""Moves single weights of quantised networks by one step size where that lowers D + lambda R.

Along a single weight the cost is very nearly a parabola. The gradient says how it begins, and the
variance of the gradient under the noise that stands for rounding says how much it bends: as for the
empirical Fisher information, the curvature is nearly proportional to it. So moves are tried in the
order of what they will probably gain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from imgmlp.codec.bitstream import code_lengths
from imgmlp.codec.latent.model import Quantized
from imgmlp.codec.latent.sections import cheapest_coding
from imgmlp.codec.latent.step.latent_step import PARTS, GradientOf, LatentStep, Part, part_of
from imgmlp.codec.latent.step.parameters import flat_of_quantized, networks_of

Array = np.ndarray[Any, Any]

NOISY_GRADIENTS = 16  # whose variance is taken
# Fewer trials are not worth these gradients: moves are then ordered by a single one alone.
MIN_TRIALS_FOR_CURVATURE = 100
# All weights move at once by this fraction of their step sizes, up or down at random, to measure
# the ratio of curvature and variance. It counts as much as so many trials do later.
PROBE_SIZE, PROBE_TRIALS = 0.5, 5
CURVATURE_GRADIENTS = NOISY_GRADIENTS + 2  # with those of the probe
# The fraction of the predicted excess that a move must outweigh to be tried, since predictions of
# single weights are wrong by a factor of two or so.
PREDICTION_WEIGHT = 0.25
TINY = 1e-300  # instead of a sum of 0, to divide by
WAYS = -1, 1
MOVES_PER_GRADIENT = 4  # of which each makes the slopes of all others less true


class Move(NamedTuple):
    """A change of one coded weight by one step size. Costs are in units of D + lambda R."""

    at: int  # index of the symbol
    way: int  # -1 or 1
    saved: float  # by the symbol's own bits
    slope: float  # cost in error and latents' bits, by the gradient


class ExcessCosts:
    """What moves of single weights cost beyond their slopes, in units of D + lambda R: half the
    curvature times the squared step size.

    For weights that were tried it is known. For others it is taken to be proportional to
    `variances` [weights], by a factor for each part of the cost, which trials correct.
    """

    def __init__(
        self, variances: Array, are_of: Mapping[Part, Array], sums: Mapping[Part, float]
    ) -> None:
        """`are_of` says which weights change a part, bool [weights]; `sums` are estimates of the
        sum of their excess costs, of which only positive ones are used."""
        self._variances = np.where(np.isfinite(variances), variances, 0.0)
        self._are_of = are_of
        self._measured, self._is_tried = np.zeros(len(variances)), np.zeros(len(variances), bool)
        self._factors = {
            part: max(sums[part], 0.0) / max(float(self._variances[which].sum()), TINY)
            for part, which in are_of.items()
        }

    @classmethod
    def unpredicted(cls, weights: int) -> ExcessCosts:
        """No excess is predicted for weights that were not tried."""
        return cls(np.zeros(weights), {}, {})

    def note(self, at: int, excess: float) -> None:
        """Note what a trial of one weight cost beyond its slope."""
        self._measured[at], self._is_tried[at] = max(excess, 0.0), True

    def predicted(self) -> tuple[Array, Array]:
        """What each move probably costs beyond its slope, and what of it is certain enough to
        exclude moves: float64 [weights] both."""
        excess = np.zeros(len(self._variances))
        for part, which in self._are_of.items():
            excess[which] = self._factor(part) * self._variances[which]
        sure = np.where(self._is_tried, self._measured, PREDICTION_WEIGHT * excess)
        return np.where(self._is_tried, self._measured, excess), sure

    def _factor(self, part: Part) -> float:
        """The ratio of excess and variance: the geometric mean of the probe's and the trials'."""
        is_known = self._is_tried & np.isfinite(self._measured) & (self._measured > 0)
        which = self._are_of[part] & is_known & (self._variances > 0)
        ratios, first = self._measured[which] / self._variances[which], self._factors[part]
        if first > 0:
            ratios = np.concatenate([ratios, np.full(PROBE_TRIALS, first)])
        return float(np.exp(np.log(ratios).mean())) if len(ratios) else 0.0


class Refinement:
    """Moves single weights by one step size where that lowers D + lambda R of the file.

    Each move is tried by itself. Moves are those of the coded symbols, whose own bits count as
    well. `networks()` returns the present networks.
    """

    def __init__(self, step: LatentStep, networks: Mapping[str, Quantized], lmbda: float) -> None:
        self.step, self._first = step, networks
        self._bit_cost = lmbda / step.pixels
        self._lmbda = lmbda
        self._flat = flat_of_quantized(networks)
        places = networks_of(np.arange(len(self._flat)), step.parameter_shapes)
        self._places = np.concatenate([places[name].ravel() for name in networks])
        self._parts = [part_of(name) for name in networks for _ in range(places[name].size)]
        symbols = [_symbols(name, tensor, step) for name, tensor in networks.items()]
        self._symbols, self._scales, self._sizes = (
            np.concatenate(arrays) for arrays in zip(*symbols, strict=True)
        )
        self._saved = np.empty((len(WAYS), len(self._symbols)))  # by the bits of each move
        # Indices of the weights for which this is to be computed, since they have moved.
        self._outdated = list(range(len(self._symbols)))
        self._excess = ExcessCosts.unpredicted(len(self._symbols))

    def run(self, trials: int, enough: Callable[[], bool]) -> None:
        """Try at most so many moves, until none pays or `enough` says to stop."""
        if trials < 1 or enough():
            return
        with self.step.gradients(self._lmbda) as gradient_at:
            most = trials  # that may pay before the next gradient
            if trials >= MIN_TRIALS_FOR_CURVATURE:
                self._excess = self._predictable_excess(gradient_at, enough)
                most = MOVES_PER_GRADIENT
            best, moved = {part: self._cost(part) for part in PARTS}, True
            while moved and trials > 0 and not enough():
                moves = islice(self._promising(gradient_at), trials)
                tried, moved = self._try_in_turn(moves, most, best, enough)
                trials -= tried

    def _try_in_turn(
        self, moves: Iterator[Move], most: int, best: dict[Part, float], enough: Callable[[], bool]
    ) -> tuple[int, bool]:
        """Try moves until so many of them paid. Returns how many were tried, and whether any paid.

        `best` is the cost of both parts, which falls with each that paid.
        """
        paid = tried = 0
        for move in moves:
            part, before = self._parts[move.at], self._flat
            self._flat = before.copy()
            self._flat[self._places[move.at]] += move.way * self._sizes[move.at]
            cost, tried = self._cost(part), tried + 1
            self._excess.note(move.at, cost - best[part] - move.slope)
            if cost - move.saved < best[part]:
                best[part], paid = cost, paid + 1
                self._symbols[move.at] += move.way
                self._outdated.append(move.at)
            else:
                self._flat = before
            if paid == most or enough():
                break
        return tried, paid > 0

    def networks(self) -> dict[str, Quantized]:
        floats = networks_of(self._flat, self.step.parameter_shapes)
        return {
            name: Quantized(
                np.rint(np.ldexp(floats[name].astype(np.float64), tensor.exponent)).astype(
                    np.int32
                ),
                tensor.exponent,
            )
            for name, tensor in self._first.items()
        }

    def _cost(self, part: Part) -> float:
        """The part of D + lambda R that is due to the error, or to the latents' bits."""
        self.step.ask(self._flat, part)
        return self.step.answer() * (self.step.visible_fraction if part == "error" else self._lmbda)

    def _promising(self, gradient_at: GradientOf) -> Iterator[Move]:
        """Moves that may pay by the present gradient, those first that will probably gain most."""
        costs = np.outer(WAYS, self._slopes(gradient_at(self._flat)))  # [ways, weights]
        gains = self._saved_bits() - costs
        excess, sure = self._excess.predicted()
        ways, weights = np.nonzero(gains > sure)
        order = np.argsort((excess - gains)[ways, weights], kind="stable")
        for way, at in zip(ways[order].tolist(), weights[order].tolist(), strict=True):
            if at not in self._outdated:
                yield Move(at, WAYS[way], float(self._saved[way, at]), float(costs[way, at]))

    def _saved_bits(self) -> Array:
        """What each move saves by the weight's own bits: float64 [ways, weights]."""
        symbols, scales = self._symbols[self._outdated], self._scales[self._outdated]
        now = code_lengths.code_lengths(symbols, scales)
        for saved, way in zip(self._saved, WAYS, strict=True):
            moved = code_lengths.code_lengths(symbols + way, scales)
            saved[self._outdated] = self._bit_cost * (now - moved)
        self._outdated.clear()
        return self._saved

    def _slopes(self, gradient: Array) -> Array:
        """What moving each coded weight up costs by a gradient [parameters]: float64 [weights]."""
        slopes: Array = gradient[self._places].astype(np.float64) * self._sizes
        return slopes

    def _predictable_excess(
        self, gradient_at: GradientOf, enough: Callable[[], bool]
    ) -> ExcessCosts:
        """The excess costs, by gradients at the present networks; without any prediction if it is
        `enough` before these are computed."""
        noisy = list[Array]()
        for _ in range(NOISY_GRADIENTS):
            noisy.append(self._slopes(gradient_at(self._flat, True)))
            if enough():
                return self._excess
        ways = np.random.Generator(np.random.PCG64(self.step.seed)).choice([-1, 1], len(noisy[0]))
        moved = [self._flat.copy(), self._flat.copy()]
        for flat, way in zip(moved, (-1, 1), strict=True):
            flat[self._places] += way * PROBE_SIZE * ways * self._sizes
        below, above = (self._slopes(gradient_at(flat)) for flat in moved)
        # With the matrix H of second derivatives and z the move of all weights, the gradients
        # differ by 2 H z. In the mean over random signs z' H z is the sum of all curvatures
        # (Hutchinson, 1989).
        with np.errstate(invalid="ignore"):  # gradients may have overflowed
            excess = ways * (above - below) / (4 * PROBE_SIZE)
            variances = np.var(noisy, axis=0)
        excess = np.where(np.isfinite(excess), excess, 0.0)
        are_of = self._weights_of_parts()
        sums = {part: float(excess[which].sum()) for part, which in are_of.items()}
        return ExcessCosts(variances, are_of, sums)

    def _weights_of_parts(self) -> dict[Part, Array]:
        """Which weights change each part of the cost, bool [weights]."""
        return {part: np.array([one == part for one in self._parts]) for part in PARTS}


def _symbols(name: str, tensor: Quantized, step: LatentStep) -> tuple[Array, Array, Array]:
    """A tensor as it is coded, for each weight: symbol, number of its distribution, step size."""
    base, number, _ = cheapest_coding(name, tensor, step.pretrained)
    symbols = (tensor.values - base).ravel().astype(np.int64)
    sizes = np.full(symbols.shape, np.float32(2.0**-tensor.exponent))
    return symbols, np.full(symbols.shape, number), sizes
