"""Of all files that trained numbers can be rounded to, the one that is nearest to a target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Header, Section
from imgmlp.codec.mlp import bit_allocation, integer_inference
from imgmlp.codec.mlp.bit_allocation import Choice
from imgmlp.codec.mlp.network import Network, Shape
from imgmlp.codec.training.target import Target
from imgmlp.engine import AnyDevice
from imgmlp.image import Picture, psnr

Array = np.ndarray[Any, Any]

TRIALS = 12  # other steps that are tried for a target
INWARDS = 0.3  # of a step: how far rounding towards zero may go
FINE = 10.0  # bits of a weight, above which no picture gets better
_EVEN = 52  # number of a step, 2**-9, with which biases are every level of 8 bits


@dataclass(frozen=True, eq=False)
class Trial:
    """A network that could be the result."""

    network: Network
    head: bytes  # the data of its two sections
    coded: bytes
    size: int  # bytes of the whole file
    psnr: float  # NaN where the target does not ask


@dataclass(frozen=True, eq=False)
class Rounding:
    """What one picture's numbers become for one target, judged on a device."""

    picture: Picture
    wanted: Target
    device: AnyDevice

    def one_colour(self) -> Trial | None:
        """The smallest file that there is, if it is all that the target can ask for."""
        pixels = self.picture.pixels
        levels = np.rint(pixels.mean(axis=(0, 1)))  # [channels]
        reached = psnr(pixels, np.broadcast_to(levels.astype(np.uint8), pixels.shape))
        enough = self.wanted.kind == "psnr" and reached >= self.wanted.value
        return self._trial(even(levels)) if enough or math.isinf(reached) else None

    def best(self, arrays: list[Array], choices: list[Choice], shape: Shape) -> Trial:
        """The network of these numbers, rounded otherwise if that brings it nearer to the target.

        Both size and quality grow with the bits that steps are chosen for, so those are halved
        in on. What remains too much is taken away by rounding towards zero.
        """
        first = self._trial(bit_allocation.network(arrays, choices, shape))
        sizes, bits = bit_allocation.log_sizes(choices), bit_allocation.total_bits(arrays, choices)
        most = max(bits, min(1.6 * bits, FINE * shape.parameters))
        ends = (0.1 * bits, bits) if self._too_much(first) else (bits, most)

        def stepped(budget: float) -> tuple[list[Choice], Trial]:
            found = bit_allocation.settle(arrays, sizes, budget)
            return found, self._trial(bit_allocation.network(arrays, found, shape))

        tried = [(choices, first), *self._halved(first, ends, stepped)]
        over = [pair for pair in tried if self._too_much(pair[1])]
        if over:
            base, _ = min(over, key=lambda pair: self._distance(pair[1]))

            def inwards(share: float) -> tuple[list[Choice], Trial]:
                return base, self._trial(bit_allocation.network(arrays, base, shape, -share))

            nearest = min((pair[1] for pair in tried), key=self._distance)
            tried += self._halved(nearest, (-INWARDS, 0.0), inwards)
        return min((pair[1] for pair in tried), key=self._distance)

    def _halved(
        self,
        nearest: Trial,
        ends: tuple[float, float],
        make: Callable[[float], tuple[list[Choice], Trial]],
    ) -> list[tuple[list[Choice], Trial]]:
        """Trials between two ends, of which the upper one gives more, until the target is hit."""
        low, high = ends
        tried: list[tuple[list[Choice], Trial]] = []
        for _ in range(TRIALS):
            if self.wanted.hit_by(nearest.size, nearest.psnr):
                break
            middle = (low + high) / 2
            choices, nearest = make(middle)
            tried.append((choices, nearest))
            low, high = (low, middle) if self._too_much(nearest) else (middle, high)
        return tried

    def _too_much(self, trial: Trial) -> bool:
        reached = trial.psnr if self.wanted.kind == "psnr" else trial.size
        return reached > self.wanted.value

    def _distance(self, trial: Trial) -> tuple[bool, float]:
        return self.wanted.distance(trial.size, trial.psnr)

    def _trial(self, found: Network) -> Trial:
        """What a network would be as a file; it is decoded only if its quality matters."""
        head, coded = found.sections()
        size, quality = len(self.written(head, coded, bytes(8))), math.nan
        if self.wanted.kind == "psnr":
            quality = psnr(self.picture.pixels, self.decoded(found))
        return Trial(found, head, coded, size, quality)

    def written(self, head: bytes, coded: bytes, digest: bytes) -> bytes:
        """The file of a network whose sections these are, and which decodes to this digest."""
        height, width, channels = self.picture.pixels.shape
        sections = [Section(container.NETWORK, head), Section(container.WEIGHTS, coded)]
        if self.picture.icc:
            sections.append(Section(container.ICC, self.picture.icc))
        return container.write(Header(width, height, channels, digest), sections)

    def decoded(self, found: Network) -> Array:
        return integer_inference.decode(found, self.picture.width, self.picture.height, self.device)


def even(levels: Array) -> Network:
    """The smallest network that answers with these levels, [channels], for every pixel."""
    shape = Shape(1, 1, 1, len(levels))
    arrays = [np.zeros(size) for size in shape.shapes]
    arrays[-1] = levels / 255 - 0.5
    return bit_allocation.network(arrays, [Choice(_EVEN, 0)] * 2, shape)
