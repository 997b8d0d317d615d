"""Quantises the networks of a trained step: a search finds the best step size of each tensor.

Afterwards single weights are moved by one step size, and rounded latents by one, where that is
better still. The best is the least D + lambda R of the whole file: the squared error and the
latents' bits that the quantised networks give, and the bits of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import ModelShape, Quantized, check_networks, quantized
from imgmlp.codec.latent.sections import default_exponent, network_bits
from imgmlp.codec.latent.step.latent_step import PARTS, LatentStep, Part, part_of
from imgmlp.codec.latent.step.parameters import flat_of, flat_of_quantized, networks_of
from imgmlp.codec.latent.training import progressive_quantisation, rdoq
from imgmlp.codec.latent.training.rdoq import Budget
from imgmlp.codec.latent.training.weight_moves import Refinement
from imgmlp.codec.training.replay import decibels
from imgmlp.errors import FormatError

Array = np.ndarray[Any, Any]


# Trials that move a single weight, per training step. Large pictures get fewer of them, since
# networks are a smaller part of their files.
WEIGHT_TRIALS_PER_STEP = 0.5
LARGE_PICTURE_PIXELS = 2**16
LARGE_PICTURE_WEIGHT_TRIALS_PER_STEP = 0.1
MAX_WEIGHT_TRIALS = 1000
MAX_EARLY_WEIGHT_TRIALS = 150  # before further passes, after which weights are moved again
# The fraction of a file that networks must be for a second search for their step sizes.
MIN_NETWORK_FRACTION = 0.25
# If no step size with a larger exponent is valid, weights are clipped to MAX_WEIGHT and get this
# exponent. Sums of 64 such weights need fewer than 32 bits.
MIN_STEP_EXPONENT = 4
MAX_WEIGHT = 8.0


@dataclass(frozen=True)
class Figures:
    """Estimated figures of rounded networks, computed in floats as training does."""

    error: float  # mean squared, on [0, 1], of samples that count
    bits: float  # of the latents and of the networks

    @property
    def psnr(self) -> float:
        """dB of the picture, including the rounding of its samples to 8 bits."""
        return decibels(self.error + 1 / (12 * 255**2))


def weight_trials(steps: int, pixels: int) -> int:
    """Trials of single weights after so many training steps."""
    is_large = pixels >= LARGE_PICTURE_PIXELS
    per_step = LARGE_PICTURE_WEIGHT_TRIALS_PER_STEP if is_large else WEIGHT_TRIALS_PER_STEP
    return min(int(per_step * steps), MAX_WEIGHT_TRIALS)


class Search:
    """Searches the step sizes of all tensors, one after the other, for the least D + lambda R.

    It asks `enough` before every trial whether to stop with what it has found so far.
    """

    def __init__(
        self,
        step: LatentStep,
        exponents: Mapping[str, int] | None = None,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        self.step, self._enough = step, enough
        self.floats = networks_of(np.nan_to_num(step.flat.numpy()), step.parameter_shapes)
        self.exponents = dict(exponents or {name: default_exponent(name) for name in self.floats})
        # Caches: the error or rate by the weights that it depends on, the bits of a tensor by its
        # exponent and values, and the quantised tensor by its name and exponent.
        self._judged: dict[tuple[Part, bytes], float] = {}
        self._bits: dict[tuple[str, int, bytes], float] = {}
        self._quantised: dict[tuple[str, int], Quantized] = {}
        # The fraction that counts of the cost that rounding adds to that of unrounded networks.
        self._rounding_weight, self._unrounded_cost = 1.0, 0.0

    def run(self, lmbda: float, rounds: int = 2) -> dict[str, Quantized]:
        """Quantised networks with the least D + lambda R, searched for from the present step sizes.

        Each round goes through all tensors once.
        """
        best, limited = self._cost(self._rounded(self.exponents), lmbda), False
        while best == math.inf and not limited:
            limited = min(self.exponents.values()) <= MIN_STEP_EXPONENT
            if limited:  # always valid in a file, even if they give no useful picture
                self._limit()
            else:  # the layers' sums need too many bits
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
        self._quantised.clear()

    def best_networks(
        self,
        lmbda: float,
        count: int,
        searching: bool,
        hurried: Callable[[], bool] = lambda: False,
    ) -> dict[str, Quantized]:
        """The networks for a file, progressively quantised in `count` training steps if that helps.

        With `searching`, step sizes are searched for first. Without it, this is done only if
        progressive quantisation does not help, or if the networks are still a large part of the
        file; the latter then takes another `count` steps, unless `hurried` says that there is no
        time.
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
        """The bits of the latents and of networks whose cost was computed before."""
        rate = self._judged[self._key("bits", judged)]
        return rate * self.step.pixels + self._network_bits(judged)

    def quantised(
        self, networks: dict[str, Quantized], lmbda: float, count: int
    ) -> dict[str, Quantized]:
        """Progressively quantised networks if their D + lambda R is lower, or else `networks`."""
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
        """Exponents with the least D + lambda R that progressive quantisation will probably reach.

        It is assumed to leave the usual fraction of the cost of rounding.
        """
        now, (error, rate) = self.exponents, self.step.judge(floats)
        free = error * self.step.visible_fraction + lmbda * rate
        if not math.isfinite(free):  # the networks exploded: no cost can be compared with theirs
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
        """Move rounded latents of the step by one where that lowers D + lambda R."""
        if not budget.judged or (least := self._cost(networks, lmbda)) == math.inf:
            return
        grids = [grid.copy() for grid in self.step.grids()]
        judged, self._judged = self._judged, {}
        rdoq.optimise(self.step, flat_of_quantized(networks), lmbda, budget, enough)
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
        """Networks with a lower D + lambda R, in which single weights are moved by one step size.

        It tries as many moves as `weight_trials` allows, but at most `most`, until `enough` says
        to stop.
        """
        refinement = Refinement(self.step, networks, lmbda)
        refinement.run(min(weight_trials(self.step.done, self.step.pixels), most), enough)
        found = refinement.networks()
        return found if _is_valid(self.step.shape, found) else networks

    def _along(self, name: str, lmbda: float, best: float) -> float:
        """Change one tensor's exponent by one as long as that lowers the cost; return that."""
        for way in (-1, 1):
            while not self._enough():
                changed = {**self.exponents, name: self.exponents[name] + way}
                cost = self._cost(self._rounded(changed), lmbda)
                if cost >= best:
                    break
                best, self.exponents = cost, changed
        return best

    def figures(self, networks: Mapping[str, Quantized]) -> Figures:
        error, rate = self.step.judge(flat_of_quantized(networks))
        return Figures(error, rate * self.step.pixels + self._network_bits(networks))

    def _network_bits(self, networks: Mapping[str, Quantized]) -> float:
        return sum(self._tensor_bits(name, tensor) for name, tensor in networks.items())

    def _tensor_bits(self, name: str, tensor: Quantized) -> float:
        key = name, tensor.exponent, tensor.values.tobytes()
        if key not in self._bits:
            self._bits[key] = network_bits({name: tensor}, self.step.pretrained)
        return self._bits[key]

    def bits(self) -> float:
        """About how many bits the networks take in a file."""
        return self._network_bits(self._rounded(self.exponents))

    def _rounded(self, exponents: Mapping[str, int]) -> dict[str, Quantized]:
        for name, values in self.floats.items():
            if (name, exponents[name]) not in self._quantised:
                self._quantised[name, exponents[name]] = quantized(values, exponents[name])
        return {name: self._quantised[name, exponents[name]] for name in self.floats}

    def _cost(self, networks: Mapping[str, Quantized], lmbda: float) -> float:
        """D + lambda R, with D the squared error on [0, 1] and R in bits per pixel.

        It is infinite for networks that are not valid in a file or give NaN.
        """
        keys = [self._key(part, networks) for part in PARTS]
        asked = [key for key in keys if key not in self._judged]
        for part, _ in asked:
            self.step.ask(flat_of_quantized(networks), part)
        # Meanwhile the device computes what was asked for.
        valid, bits = _is_valid(self.step.shape, networks), self._network_bits(networks)
        for key in asked:
            self._judged[key] = self.step.answer()
        if not valid:
            return math.inf
        error, rate = (self._judged[key] for key in keys)
        cost = error * self.step.visible_fraction + lmbda * rate
        cost = self._unrounded_cost + self._rounding_weight * (cost - self._unrounded_cost)
        cost += lmbda * bits / self.step.pixels
        return math.inf if math.isnan(cost) else cost

    def _key(self, part: Part, networks: Mapping[str, Quantized]) -> tuple[Part, bytes]:
        """The cache key of the error or the rate: the weights that it depends on."""
        own = (one.floats().tobytes() for name, one in networks.items() if part_of(name) == part)
        return part, b"".join(own)


def _is_valid(shape: ModelShape, networks: Mapping[str, Quantized]) -> bool:
    """Whether a file may have these networks."""
    try:
        check_networks(shape, networks)
    except FormatError:
        return False
    return True
