"""Lambda of a run towards a target: where it begins, how it changes, and its limits."""

from __future__ import annotations

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

from imgmlp.codec.bitstream import metadata_sections
from imgmlp.codec.latent.training.picture_analysis import Spectrum
from imgmlp.codec.training.passes import AIMED_BYTES_FRACTION, PASS_SAVING
from imgmlp.codec.training.target import Goal
from imgmlp.codec.training.trainer import MAX_LMBDA, MIN_LMBDA, LmbdaUpdate
from imgmlp.image import Picture

# Training towards a PSNR aims at some dB more than wanted, as it is easy to take some away again;
# at more of them under a time limit, which may leave no time for a further pass.
PSNR_MARGIN = 0.05
PSNR_MARGIN_IN_LIMITED_TIME = 0.12
# The fraction of the wanted bytes that training under a time limit aims at. To remove a few bytes
# too many costs 1 dB and more.
AIM_IN_LIMITED_TIME = 0.96
LMBDA_FACTOR_PER_DB = 1.3  # for every dB beyond the aim, at each update of lambda
# The lowest useful lambda of a wanted PSNR, as a fraction of the mean squared error that it means.
# Were every sample of three worth its bits, a bit a pixel would save ln 4 / 3 of that error.
# Networks of short runs err as well, which halves it; and a model that is trained too little may
# look as if a lower lambda would help.
MIN_LMBDA_PER_ERROR = 0.2
# Passes go below that lambda, by this factor, where dB are missing. At lower lambdas latents get
# finer, which cost pictures of 48×40 and 64×64 pixels up to 6 dB, as a pass is too short to learn
# them again.
MIN_LMBDA_FACTOR_IN_PASSES = 0.4
# The fixed lambda of a short run towards a PSNR, for pictures of few colours: at least that many
# times the error that the PSNR means. Under a time limit, which may leave no time to make up for
# missing dB, it is a fraction of the lambda that the transform says instead.
FIXED_LMBDA_PER_ERROR = 5.0
FIXED_LMBDA_FACTOR_IN_LIMITED_TIME = 0.6
# What a file consists of.
OVERHEAD_BYTES = 40  # beside weights, latents and metadata
BITS_PER_WEIGHT = 7.0  # after rounding
MAX_NETWORK_FRACTION = 0.3  # of the wanted bytes, for networks

# What changes from now to the end of a run, times the square of the fraction that is left:
# bits a pixel that latents get cheaper by, and the largest part of their bits that these are.
LATENT_RATE_SAVED, MAX_LATENT_PART_SAVED = 0.15, 0.33
NETWORK_PART_SAVED = 0.5  # of the networks' bits, times the fourth power of that fraction
# dB gained at a reference lambda, how many more for every halving of it, and for every dB above
# FINE_PSNR; and the fewest.
PSNR_GAINED, REFERENCE_LMBDA, PSNR_GAINED_PER_HALVING = 1.1, 8e-4, 0.24
FINE_PSNR, PSNR_GAINED_PER_FINE_DB, MIN_PSNR_GAINED = 39.0, 0.5, 0.3

# By picture and target, as the transform of a large picture takes a while.
_initial_lmbdas: WeakKeyDictionary[Picture, dict[Goal, float]] = WeakKeyDictionary()


class Forecast(NamedTuple):
    """What a run in progress will end with."""

    rate: float  # bits a pixel, of latents
    network_bits: float
    psnr: float  # dB


def forecast(rate: float, network_bits: float, psnr: float, left: float, lmbda: float) -> Forecast:
    """From what rounding would give now, where a fraction `left` of the run is still to come, at
    this lambda. Fitted to runs of several pictures: docs/compression-trials.md.
    """
    halvings = math.log2(REFERENCE_LMBDA / lmbda)
    fine = max(psnr - FINE_PSNR, 0.0)
    gained = PSNR_GAINED + PSNR_GAINED_PER_HALVING * halvings + PSNR_GAINED_PER_FINE_DB * fine
    saved = min(LATENT_RATE_SAVED, MAX_LATENT_PART_SAVED * rate)
    return Forecast(
        rate - saved * left**2,
        network_bits * (1 - NETWORK_PART_SAVED * (left**2) ** 2),
        psnr + max(gained, MIN_PSNR_GAINED) * left**2,
    )


class Lambdas:
    """The lambdas of one picture's runs towards one target."""

    def __init__(self, picture: Picture, wanted: Goal) -> None:
        self.wanted, self._picture = wanted, picture
        self._other_bytes = OVERHEAD_BYTES + metadata_sections.size(picture.metadata)

    def initial(self) -> float:
        """The lambda that a run begins with, as the spectrum of the picture suggests."""
        cached = _initial_lmbdas.setdefault(self._picture, {})
        if self.wanted not in cached:
            cached[self.wanted] = self._by_spectrum()
        return cached[self.wanted]

    def _by_spectrum(self) -> float:
        value = self.wanted.value
        if self.wanted.kind == "lambda":
            return value
        spectrum = Spectrum(self._picture.pixels)
        if self.wanted.kind == "psnr":
            lmbda = spectrum.lmbda_of_error(self._wanted_error())
        else:
            lmbda = spectrum.lmbda_of_bits(8 * self._model_bytes())
        return min(max(lmbda, self.min_lmbda(), MIN_LMBDA), MAX_LMBDA)

    def min_lmbda(self) -> float:
        """The lambda below which no run needs to look for its target."""
        if self.wanted.kind != "psnr":
            return 0.0
        return MIN_LMBDA_PER_ERROR * self._wanted_error()

    def _wanted_error(self) -> float:
        """The mean squared error on [0, 1] that the wanted PSNR means."""
        return math.pow(10, -self.wanted.value / 10)

    def fixed_lmbda(self, limited: bool) -> float:
        """The lambda of a short run of few colours towards a PSNR: it stays, as the latents of such
        pictures do not follow changes."""
        if limited:
            lmbda = FIXED_LMBDA_FACTOR_IN_LIMITED_TIME * self.initial()
            return max(lmbda, self.min_lmbda(), MIN_LMBDA)
        return max(self.initial(), FIXED_LMBDA_PER_ERROR * self._wanted_error())

    def min_lmbda_in_passes(self) -> float:
        """The lowest lambda of the passes after a run."""
        return max(MIN_LMBDA_FACTOR_IN_PASSES * self.min_lmbda(), MIN_LMBDA)

    def pricing(self, passes: int = 0, limited: bool = False) -> LmbdaUpdate | None:
        """The function from a forecast of bits and dB to the factor that lambda is multiplied by;
        None where lambda stays.

        So many passes follow the run for certain; in a `limited` time maybe none.
        """
        value = self.wanted.value
        if self.wanted.kind == "lambda":
            return None
        if self.wanted.kind == "psnr":
            margin = PSNR_MARGIN_IN_LIMITED_TIME if limited else PSNR_MARGIN
            return lambda _, psnr: LMBDA_FACTOR_PER_DB ** (psnr - value - margin)
        aim = AIM_IN_LIMITED_TIME if limited else AIMED_BYTES_FRACTION
        wanted_bits = 8 * (self._model_bytes() - (1 - aim) * value)
        wanted_bits = max(math.exp2(PASS_SAVING["bytes"] * passes) * wanted_bits, 1.0)
        return lambda bits, _: bits / wanted_bits

    def max_weights(self) -> float:
        """How many weights the wanted bytes allow for."""
        if self.wanted.kind != "bytes":
            return math.inf
        return 8 * MAX_NETWORK_FRACTION * self._model_bytes() / BITS_PER_WEIGHT

    def _model_bytes(self) -> float:
        """The wanted bytes that are left for weights and latents."""
        return max(self.wanted.value - self._other_bytes, 1 / 8)
