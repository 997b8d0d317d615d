"""Turns a trained step into a model of whole numbers: each tensor gets the step size that is best.

Afterwards single weights are moved by one step, and whole latents by one, where that is better
still. Best is the least D + lambda R of the whole file: the squared error and the latents' bits as
the networks with rounded weights give them, and the bits of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from imgmlp.codec.bitstream import range_coder
from imgmlp.codec.latent.model import (
    ModelShape,
    Quantized,
    check_networks,
    flat_of,
    networks_of,
    quantized,
)
from imgmlp.codec.latent.sections import cheapest_coding, default_exponent, network_bits
from imgmlp.codec.latent.step.latent_step import PARTS, LatentStep, Part
from imgmlp.codec.latent.training import progressive_quantisation, rdoq
from imgmlp.codec.latent.training.rdoq import Budget
from imgmlp.codec.training.replay import decibels
from imgmlp.errors import FormatError

Array = np.ndarray[Any, Any]


# Trials that move a single weight by one step. Networks are a smaller part of a large picture's
# file, so that it gets fewer of them.
WEIGHT_TRIALS_PER_STEP = 0.5
LARGE_PICTURE_PIXELS = 2**16
LARGE_PICTURE_WEIGHT_TRIALS_PER_STEP = 0.1
MAX_WEIGHT_TRIALS = 3000
MAX_EARLY_WEIGHT_TRIALS = 150  # before further passes, which move these weights once more
BEND_WEIGHT = 0.4  # of the extra cost that a move had when it was tried before
MIN_NETWORK_FRACTION = 0.25  # of a file, from which on networks are worth a search for step sizes
# Where no finer step sizes are valid, weights are clipped and get this exponent. Sums of 64 such
# weights need fewer than 32 bits.
MIN_STEP_EXPONENT = 4
MAX_WEIGHT = 8.0


@dataclass(frozen=True)
class Figures:
    """What rounded networks give, as floats in training have it."""

    error: float  # mean squared, on [0, 1], of samples that count
    bits: float  # of the latents and of the networks

    @property
    def psnr(self) -> float:
        """dB of the picture, whose samples are rounded."""
        return decibels(self.error + 1 / (12 * 255**2))


def weight_trials(steps: int, pixels: int) -> int:
    """Trials of single weights after so many training steps."""
    is_large = pixels >= LARGE_PICTURE_PIXELS
    per_step = LARGE_PICTURE_WEIGHT_TRIALS_PER_STEP if is_large else WEIGHT_TRIALS_PER_STEP
    return min(int(per_step * steps), MAX_WEIGHT_TRIALS)


class Search:
    """Searches the step sizes of all tensors, one after the other, for the least D + lambda R.

    It stops with what it has found once `enough` says so, which is asked before every trial.
    """

    def __init__(
        self,
        step: LatentStep,
        exponents: Mapping[str, int] | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self.step, self._enough = step, enough
        self.floats = networks_of(np.nan_to_num(step.flat.numpy()), step.shapes)
        self.exponents = dict(exponents or {name: default_exponent(name) for name in self.floats})
        self._judged: dict[tuple[Part, bytes], float] = {}  # by the values that it depends on
        self._bits: dict[tuple[str, int, bytes], float] = {}  # of a tensor
        self._made: dict[tuple[str, int], Quantized] = {}  # tensors by their steps
        # The fraction that counts of what rounding costs beyond the cost of unrounded networks.
        self._rounding_weight, self._unrounded_cost = 1.0, 0.0

    def run(self, lmbda: float, rounds: int = 2) -> dict[str, Quantized]:
        """The networks with the least D + lambda R near those that the last search found."""
        best, limited = self._cost(self._rounded(self.exponents), lmbda), False
        while best == math.inf and not limited:
            limited = min(self.exponents.values()) <= MIN_STEP_EXPONENT
            if limited:  # a file may have these, even if what they give is no picture
                self._limit()
            else:  # sums need too many bits
                self.exponents = {n: e - 1 for n, e in self.exponents.items()}
            best = self._cost(self._rounded(self.exponents), lmbda)
        for _ in range(rounds):
            before = best
            for name in self.floats:
                best = self._along(name, lmbda, best)
            if best == before or self._enough():
                break
        return self._rounded(self.exponents)

    def _limit(self) -> None:
        """Clip weights that no step size makes valid to what MIN_STEP_EXPONENT makes valid."""
        bounds = -MAX_WEIGHT, MAX_WEIGHT
        self.floats = {name: values.clip(*bounds) for name, values in self.floats.items()}
        self.exponents = dict.fromkeys(self.floats, MIN_STEP_EXPONENT)
        self._judged.clear()
        self._bits.clear()
        self._made.clear()

    def best_networks(
        self,
        lmbda: float,
        count: int,
        searching: bool,
        hurried: Callable[[], bool] = lambda: False,
    ) -> dict[str, Quantized]:
        """The networks of a file, progressively quantised in `count` training steps if that helps.

        Without `searching`, step sizes are not searched for before, if progressive quantisation
        helps. Unless `hurried` then says that there is no time, networks that are still a large
        part of the file are searched for as well, and quantised in as many steps again.
        """
        if searching:
            return self.quantised(self.run(lmbda), lmbda, count)
        usual = self.exponents
        networks = self._rounded(usual)
        found = self.quantised(networks, lmbda, count)
        if found is networks:
            return self.run(lmbda)
        if hurried() or self._network_bits(found) < MIN_NETWORK_FRACTION * self._bits_with(found):
            return found
        exponents, self.exponents = self.exponents, usual
        other = self.quantised(self.run(lmbda), lmbda, count)
        if self._cost(other, lmbda) < self._cost(found, lmbda):
            return other
        self.exponents = exponents
        return found

    def _bits_with(self, judged: Mapping[str, Quantized]) -> float:
        """Of the latents and of networks whose cost is known."""
        rate = self._judged[self._key("bits", judged)]
        return rate * self.step.pixels + self._network_bits(judged)

    def quantised(
        self, networks: dict[str, Quantized], lmbda: float, count: int
    ) -> dict[str, Quantized]:
        """Progressively quantised networks if they have a lower D + lambda R, or these ones."""
        if count < 1:
            return networks
        least, floats = self._cost(networks, lmbda), flat_of(self.floats)
        usual = progressive_quantisation.coarser_exponents(networks)
        tries = [usual]
        if count >= progressive_quantisation.MIN_STEPS_TO_TRY_TWICE:
            tries = [self._predicted_exponents(lmbda, floats), usual]
        for exponents in tries:
            self.step.flat.write(floats)
            found = progressive_quantisation.quantise(
                self.step, exponents, lmbda, count, self._enough
            )
            if self._cost(found, lmbda) < least:
                self.exponents = exponents
                return found
        return networks

    def _predicted_exponents(self, lmbda: float, floats: Array) -> dict[str, int]:
        """Exponents with the least D + lambda R, if progressive quantisation leaves as much of what
        rounding costs as it usually does."""
        now, (error, rate) = self.exponents, self.step.judge(floats)
        free = error * self.step.counted + lmbda * rate
        if not math.isfinite(free):  # of networks that exploded, beside which nothing compares
            return now
        self._rounding_weight = progressive_quantisation.REMAINING_COST_FRACTION
        self._unrounded_cost = free
        try:
            self.run(lmbda, rounds=3)
            return self.exponents
        finally:
            self._rounding_weight, self._unrounded_cost, self.exponents = 1.0, 0.0, now

    def optimise_latents(
        self,
        networks: Mapping[str, Quantized],
        lmbda: float,
        budget: Budget,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Move whole latents of the step where that lowers D + lambda R."""
        if not budget.judged or (least := self._cost(networks, lmbda)) == math.inf:
            return
        grids = [grid.copy() for grid in self.step.grids()]
        judged, self._judged = self._judged, {}
        rdoq.optimise(self.step, _flat(networks), lmbda, budget, enough)
        if not self._cost(networks, lmbda) <= least:  # which may not see all that moved
            self.step.write_grids(grids)
            self._judged = judged

    def refined(
        self,
        networks: dict[str, Quantized],
        lmbda: float,
        enough: Callable[[], bool] = lambda: False,
        most: int = MAX_WEIGHT_TRIALS,
    ) -> dict[str, Quantized]:
        """Networks of nearly these weights with a lower D + lambda R.

        Tries as many moves as `weight_trials` says, at most `most`, until `enough` says so.
        """
        refinement = Refinement(self.step, networks, lmbda)
        refinement.run(min(weight_trials(self.step.done, self.step.pixels), most), enough)
        found = refinement.networks()
        return found if _is_valid(self.step.shape, found) else networks

    def _along(self, name: str, lmbda: float, best: float) -> float:
        """Change one tensor's step size as long as that is better; return the least cost."""
        for way in (-1, 1):
            while not self._enough():
                changed = {**self.exponents, name: self.exponents[name] + way}
                cost = self._cost(self._rounded(changed), lmbda)
                if cost >= best:
                    break
                best, self.exponents = cost, changed
        return best

    def figures(self, networks: Mapping[str, Quantized]) -> Figures:
        error, rate = self.step.judge(_flat(networks))
        return Figures(error, rate * self.step.pixels + self._network_bits(networks))

    def _network_bits(self, networks: Mapping[str, Quantized]) -> float:
        return sum(self._tensor_bits(name, tensor) for name, tensor in networks.items())

    def _tensor_bits(self, name: str, tensor: Quantized) -> float:
        key = name, tensor.exponent, tensor.values.tobytes()
        if key not in self._bits:
            self._bits[key] = network_bits({name: tensor}, self.step.start)
        return self._bits[key]

    def bits(self) -> float:
        """About what a file would spend on the networks."""
        return self._network_bits(self._rounded(self.exponents))

    def _rounded(self, exponents: Mapping[str, int]) -> dict[str, Quantized]:
        for name, values in self.floats.items():
            if (name, exponents[name]) not in self._made:
                self._made[name, exponents[name]] = quantized(values, exponents[name])
        return {name: self._made[name, exponents[name]] for name in self.floats}

    def _cost(self, networks: Mapping[str, Quantized], lmbda: float) -> float:
        """D + lambda R in mean squared error on [0, 1] and bits per pixel; infinity where a file
        may not have these, or what they give is no number."""
        keys = [self._key(part, networks) for part in PARTS]
        asked = [key for key in keys if key not in self._judged]
        for part, _ in asked:
            self.step.ask(_flat(networks), part)
        # While a device judges.
        valid, bits = _is_valid(self.step.shape, networks), self._network_bits(networks)
        for key in asked:
            self._judged[key] = self.step.answer()
        if not valid:
            return math.inf
        error, rate = (self._judged[key] for key in keys)
        cost = error * self.step.counted + lmbda * rate
        cost = self._unrounded_cost + self._rounding_weight * (cost - self._unrounded_cost)
        cost += lmbda * bits / self.step.pixels
        return math.inf if math.isnan(cost) else cost

    def _key(self, part: Part, networks: Mapping[str, Quantized]) -> tuple[Part, bytes]:
        """The weights that one of what a step judges by depends on, which is asked for once."""
        own = (one.floats().tobytes() for name, one in networks.items() if part_of(name) == part)
        return part, b"".join(own)


def part_of(name: str) -> Part:
    """What a tensor changes of what networks are judged by."""
    return "bits" if name.startswith("entropy.") else "error"


def _flat(networks: Mapping[str, Quantized]) -> Array:
    return flat_of({name: tensor.floats() for name, tensor in networks.items()})


def _is_valid(shape: ModelShape, networks: Mapping[str, Quantized]) -> bool:
    """Whether a file may have these."""
    try:
        check_networks(shape, networks)
    except FormatError:
        return False
    return True


class Move(NamedTuple):
    """Of one symbol, by one; costs are D + lambda R."""

    gain: float  # at most, about
    at: int
    way: int
    saved: float  # in bits of its own
    slope: float  # what it costs elsewhere, as the gradient says


class Refinement:
    """Single weights, moved by a step where D + lambda R of the file falls.

    The gradient says which moves could pay, and which of them most; each is tried by itself. What
    moves are the symbols that are coded, so that bits are saved as well. `networks()` are what
    they are by now.
    """

    def __init__(self, step: LatentStep, networks: Mapping[str, Quantized], lmbda: float) -> None:
        self.step, self._first = step, networks
        self._bit = lmbda / step.pixels  # D + lambda R of a bit
        self._unanswered = 0
        self._lmbda = lmbda
        self._flat = _flat(networks)
        places = networks_of(np.arange(len(self._flat)), step.shapes)
        self._places = np.concatenate([places[name].ravel() for name in networks])
        self._parts = [part_of(name) for name in networks for _ in range(places[name].size)]
        parts = [_symbols(name, tensor, step) for name, tensor in networks.items()]
        self._symbols, self._scales, self._sizes = (
            np.concatenate(arrays) for arrays in zip(*parts, strict=True)
        )
        self._bends = np.zeros(len(self._symbols))  # what a move cost more than its slope says

    def run(self, trials: int, enough: Callable[[], bool]) -> None:
        """Try at most so many moves, until none pays or `enough` says so."""
        best, moved = {part: self._cost(part) for part in PARTS}, True
        while moved and trials > 0 and not enough():
            moved = False
            moves, asked = self._promising()[:trials], 0
            for number, move in enumerate(moves):
                if enough():
                    break
                trials -= 1
                while asked < min(number + self.step.ahead, len(moves)):  # as if none paid: few do
                    self._ask(moves[asked].at, moves[asked].way)
                    asked += 1
                at, way, part = move.at, move.way, self._parts[move.at]
                cost = self._answer(part)
                self._bends[at] = max(cost - best[part] - move.slope, 0.0)
                if cost - move.saved < best[part]:
                    best[part], moved = cost, True
                    self._symbols[at] += way
                    self._flat[self._places[at]] += way * self._sizes[at]
                    self._forget()  # those that are without this one
                    asked = number + 1
            self._forget()

    def networks(self) -> dict[str, Quantized]:
        floats = networks_of(self._flat, self.step.shapes)
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
        """Of D + lambda R that of the error, or that of the latents' bits."""
        self._unanswered += 1
        self.step.ask(self._flat, part)
        return self._answer(part)

    def _ask(self, at: int, way: int) -> None:
        """What the cost that it changes would be with one move more."""
        flat = self._flat.copy()
        flat[self._places[at]] += way * self._sizes[at]
        self._unanswered += 1
        self.step.ask(flat, self._parts[at])

    def _answer(self, part: Part) -> float:
        self._unanswered -= 1
        return self.step.answer() * (self.step.counted if part == "error" else self._lmbda)

    def _forget(self) -> None:
        while self._unanswered:
            self._unanswered -= 1
            self.step.answer()

    def _promising(self) -> list[Move]:
        """Moves that may pay, most promising first.

        Costs bend upwards, so that no move gains more than the gradient says; one that was tried
        gains less by what was seen then, of which a part counts, as others have moved since.
        """
        slopes = self.step.slopes(self._flat, self._lmbda)[self._places] * self._sizes
        found = []
        now = range_coder.costs(self._symbols, self._scales)
        for way in (-1, 1):
            saved = self._bit * (now - range_coder.costs(self._symbols + way, self._scales))
            gains = saved - way * slopes - BEND_WEIGHT * self._bends
            found += [
                Move(gains[at], int(at), way, float(saved[at]), float(way * slopes[at]))
                for at in np.flatnonzero(gains > 0)
            ]
        return sorted(found, reverse=True)


def _symbols(name: str, tensor: Quantized, step: LatentStep) -> tuple[Array, Array, Array]:
    """Of a tensor as it is coded: symbols, their distribution's number, and the size of a step."""
    base, number, _ = cheapest_coding(name, tensor, step.start)
    symbols = (tensor.values - base).ravel().astype(np.int64)
    sizes = np.full(symbols.shape, np.float32(2.0**-tensor.exponent))
    return symbols, np.full(symbols.shape, number), sizes
