"""What bits cost in a run: where its lambda begins, and where it goes for a target."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

from imgmlp.codec.bitstream import metadata_sections
from imgmlp.codec.latent.training.picture_analysis import Spectrum
from imgmlp.codec.training.passes import AIMED_BYTES_FRACTION, PASS_SAVING
from imgmlp.codec.training.target import Goal
from imgmlp.codec.training.trainer import MAX_LMBDA, MIN_LMBDA, LmbdaUpdate
from imgmlp.image import Picture

# dB more than wanted that training aims at, as taking some away is easy; and under a time limit,
# which may leave no time for a pass.
ABOVE, SAFELY_ABOVE = 0.05, 0.12
# Of the bytes wanted, that training under a time limit aims at: a few too many cost a dB and more.
SAFELY = 0.96
SLOW = 1.3  # times lambda for every dB too much, each time that it is looked at
# Of the error that a quality means, what a bit a pixel saves at least: were every sample of three
# worth bits, ln 4 / 3 of it. Networks of short runs err as well, so that it is half of that. What
# is trained too little may look as if less would do.
A_BIT = 0.2
# Times that, which passes may go to for dB that are missing: below it latents get finer, which
# took up to 6 dB from pictures of 48×40 and 64×64 pixels, and there was no time to learn them anew.
IN_PASSES = 0.4
# Of pictures of few colours lambda stays in a short run towards dB: times the error that these
# mean, at least. Under a time limit, which may leave no time for what would be missing, it is below
# that of the transform instead.
STEADY, STEADY_LIMITED = 5.0, 0.6
OVERHEAD = 40  # bytes of a file beside weights and latents
WEIGHT_BITS = 7.0  # of a rounded weight
SHARE = 0.3  # of the bytes wanted that networks may have at most

_first: WeakKeyDictionary[Picture, dict[Goal, float]] = WeakKeyDictionary()


class Lambdas:
    """Of a picture's runs towards a target; `lmbda` is lambda."""

    def __init__(self, picture: Picture, wanted: Goal) -> None:
        self.wanted, self._picture = wanted, picture
        self._beside = OVERHEAD + metadata_sections.size(picture.metadata)

    def first(self) -> float:
        """What its transform says, once; training goes on from there."""
        known = _first.setdefault(self._picture, {})
        if self.wanted not in known:
            known[self.wanted] = self._by_transform()
        return known[self.wanted]

    def _by_transform(self) -> float:
        value = self.wanted.value
        if self.wanted.kind == "lambda":
            return value
        spectrum = Spectrum(self._picture.pixels)
        if self.wanted.kind == "psnr":
            found = spectrum.lmbda_of_error(self._error())
        else:
            found = spectrum.lmbda_of_bits(8 * self._room())
        return min(max(found, self.cheapest(), MIN_LMBDA), MAX_LMBDA)

    def cheapest(self) -> float:
        """Below which no run needs to look for its target."""
        if self.wanted.kind != "psnr":
            return 0.0
        return A_BIT * self._error()

    def _error(self) -> float:
        """Squared, on [0, 1], that the dB wanted mean."""
        return math.pow(10, -self.wanted.value / 10)

    def steady(self, limited: bool) -> float:
        """What stays in a short run of few colours towards dB, whose latents follow no changes."""
        if limited:
            return max(STEADY_LIMITED * self.first(), self.cheapest(), MIN_LMBDA)
        return max(self.first(), STEADY * self._error())

    def cheapest_of_passes(self) -> float:
        """Below which no pass after a run does."""
        return max(IN_PASSES * self.cheapest(), MIN_LMBDA)

    def pricing(self, passes: int = 0, limited: bool = False) -> LmbdaUpdate | None:
        """How many times lambda should become, by the bits and dB that it leads to before so
        many passes, of which a limit may leave time for none; None where it stays."""
        value = self.wanted.value
        if self.wanted.kind == "lambda":
            return None
        if self.wanted.kind == "psnr":
            above = SAFELY_ABOVE if limited else ABOVE
            return lambda _, quality: SLOW ** (quality - value - above)
        whole = 8 * (self._room() - (1 - (SAFELY if limited else AIMED_BYTES_FRACTION)) * value)
        whole = max(math.exp2(PASS_SAVING["bytes"] * passes) * whole, 1.0)
        return lambda bits, _: bits / whole

    def most_weights(self) -> float:
        """That the bytes wanted leave room for."""
        if self.wanted.kind != "bytes":
            return math.inf
        return 8 * SHARE * self._room() / WEIGHT_BITS

    def _room(self) -> float:
        """Bytes for weights and latents, of those wanted."""
        return max(self.wanted.value - self._beside, 1 / 8)
