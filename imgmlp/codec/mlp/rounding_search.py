"""Searches for the rounding of trained parameters whose file is nearest to a target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Container, Section
from imgmlp.codec.bitstream.quantize import step_size
from imgmlp.codec.mlp import bit_allocation, decode, integer_inference, rate_model
from imgmlp.codec.mlp.bit_allocation import Choice
from imgmlp.codec.mlp.network import Network, Shape, alike
from imgmlp.codec.training import draft
from imgmlp.codec.training.search import approached, is_too_much, nearest
from imgmlp.codec.training.target import Goal
from imgmlp.engine import AnyDevice
from imgmlp.errors import FormatError
from imgmlp.image import Picture, has_alpha, psnr, visible_fraction

Array = np.ndarray[Any, Any]

MAX_SHIFT_TOWARDS_ZERO = 0.3  # in step sizes; shifting costs quality and saves bits
MAX_BITS_PER_WEIGHT = 10.0  # more make no picture better
MAX_MISSING_PSNR = 1.0  # dB; finer steps cannot bring more
# Decoding is timed so many times, or only in part if that takes longer than these seconds.
TIMED_DECODINGS = 2
MAX_TIMING_SECONDS = 0.5
# Parts of a picture stand for all of it if their visible fraction is at least this factor of its.
MIN_VISIBLE_RATIO = 0.5
# A file with at least this fraction of the wanted bytes is left as it was trained. Step sizes other
# than the trained ones, finer ones too, cost 0.3 to 1.2 dB per percent of its bytes.
MIN_BYTES_FRACTION = 0.9
_BITS_TO_DEVIATION = 4.13  # 2**bits / standard deviation of normal weights in step sizes
_EXACT_LEVELS_STEP = 52  # number of the step size 2**-9, with which biases reach all 8-bit levels


def overhead(picture: Picture, shape: Shape) -> int:
    """Bytes of a file with a network of this shape, without its weights."""
    head = bytes(4 + 4 * (shape.hidden + 1))
    parts = Section(container.NETWORK, head), Section(container.WEIGHTS, bytes(2))
    return draft.size(picture, "mlp", parts)


def paid_weights(picture: Picture, size: float) -> float:
    """How many weights a file of `size` bytes has space for, at BITS_PER_WEIGHT each."""
    found = 8 * size / rate_model.BITS_PER_WEIGHT
    for _ in range(2):  # the overhead depends on the number of layers
        beside = overhead(picture, rate_model.network_shape(found, picture.channels))
        found = max(1.0, 8 * (size - beside) / rate_model.BITS_PER_WEIGHT)
    return found


@dataclass(frozen=True, eq=False)
class Trial:
    """A rounded network that could be the result."""

    network: Network
    choices: list[Choice]
    sections: tuple[Section, ...]
    size: int  # bytes of the whole file
    psnr: float  # dB; NaN where the target does not need it
    about: bool = False  # whether `psnr` is an estimate by parts of the picture


class Rounding:
    """What one picture's numbers become for one target, judged on a device.

    `enough` is asked before every trial whether what was found must do. Once `seconds` was asked
    of a shape, its networks are rounded to ones that what was compiled for it can decode, if
    `compiled_once`.
    """

    def __init__(
        self,
        picture: Picture,
        wanted: Goal,
        device: AnyDevice,
        enough: Callable[[], bool] = lambda: False,
        compiled_once: bool = False,
    ) -> None:
        self.picture, self.wanted, self._enough = picture, wanted, enough
        self._compiled_once = compiled_once
        self._decoder = integer_inference.Decoder(picture.width, picture.height, device)
        self._seconds: dict[Shape, float] = {}
        self._compiled: dict[Shape, tuple[float, int]] = {}  # bits of a weight, and the cut for it
        self._latest: tuple[Network, Array] | None = None  # that was decoded, and its pixels
        self._beyond: dict[Shape, float] = {}  # dB of a picture, more than of its parts

    def one_colour(self, trained: draft.Draft | None = None) -> Trial | None:
        """The smallest file that there is, if it is all that the target can ask for, or nearer to
        it than a trained one."""
        pixels = self.picture.pixels
        levels = np.rint(_means(pixels))
        reached = psnr(pixels, np.broadcast_to(levels.astype(np.uint8), pixels.shape))
        found = even(levels)
        enough = self.wanted.kind == "psnr" and reached >= self.wanted.value
        if self.wanted.kind == "bytes" or trained is not None:
            size = draft.size(self.picture, "mlp", _sections(found))
            enough = enough or (self.wanted.kind == "bytes" and size > self.wanted.value)
        if trained is not None:
            nearer = draft.distance(size, reached, self.wanted, self.picture)
            enough = enough or nearer < trained.distance(self.wanted, self.picture)
        return self._trial(found, []) if enough or math.isinf(reached) else None

    def overhead(self, shape: Shape) -> int:
        """Bytes of a file with a network of this shape, without its weights."""
        return overhead(self.picture, shape)

    def seconds(self, shape: Shape, bits: float) -> float:
        """That decoding a network of a shape takes, once it is compiled, which is done now.

        How its sums are cut depends on how large weights are, so on the bits that they take: what
        was compiled for few may do for more, or not.
        """
        before, cut = self._compiled.get(shape, (0.0, None))
        if bits > before:
            found = _usual(shape, bits)
            if cut is None or not integer_inference.is_decoded_with(found, cut):
                self._seconds[shape], cut = self._timed(found)
            self._compiled[shape] = bits, cut
        return self._seconds[shape]

    def _timed(self, found: Network) -> tuple[float, int]:
        """Seconds that decoding takes, and how hidden layers are cut there."""
        seconds = self._decoder.seconds(found, TIMED_DECODINGS, MAX_TIMING_SECONDS)
        cut = self._decoder.cut
        assert cut is not None
        return seconds, cut

    def best(self, arrays: list[Array], choices: list[Choice], shape: Shape) -> tuple[Trial, Trial]:
        """The network of these numbers, rounded otherwise if that brings it nearer to the target.

        And what it would have been as it is.

        Both size and quality grow with the bits that steps are chosen for, so those are halved
        in on. What remains too much is taken away by rounding towards zero.
        """
        wanted = self.wanted
        self._beyond.pop(shape, None)  # which may be of networks with less training
        first = self._rounded(arrays, choices, shape)
        if (
            wanted.kind == "bytes"
            and MIN_BYTES_FRACTION * wanted.value <= first.size <= wanted.value
        ):
            return first, first
        sizes, bits = bit_allocation.log_sizes(choices), bit_allocation.total_bits(arrays, choices)
        most = max(bits, min(1.6 * bits, MAX_BITS_PER_WEIGHT * shape.parameters))
        if wanted.kind == "psnr" and wanted.value - first.psnr > MAX_MISSING_PSNR:
            return first, first
        ends = (0.1 * bits, bits) if is_too_much(wanted, first) else (bits, most)

        def stepped(budget: float) -> Trial:
            found = bit_allocation.choose_step_sizes(arrays, sizes, budget)
            return self._rounded(arrays, found, shape)

        tried = [first, *approached(wanted, first, ends, stepped, self._enough)]
        over = [trial for trial in tried if is_too_much(wanted, trial)]
        if over and not wanted.hit_by(tried[-1].size, tried[-1].psnr):
            start = nearest(wanted, over)

            def inwards(share: float) -> Trial:
                return self._rounded(arrays, start.choices, shape, -share)

            tried += approached(
                wanted, start, (-MAX_SHIFT_TOWARDS_ZERO, 0.0), inwards, self._enough
            )
        return self._chosen(self._judged(tried)), first

    def _chosen(self, tried: list[Trial]) -> Trial:
        """The nearest; for dB by all of its pixels, as long as there is time to see others beside
        it so."""
        found = nearest(self.wanted, tried)
        while found.about and self.wanted.kind == "psnr":
            whole = replace(found, psnr=self._whole_psnr(found.network), about=False)
            shift = whole.psnr - found.psnr
            tried = [
                whole if trial is found else replace(trial, psnr=trial.psnr + shift * trial.about)
                for trial in tried
            ]
            found = whole if self._enough() else nearest(self.wanted, tried)
        return found

    def reached(self, arrays: list[Array], choices: list[Choice], shape: Shape) -> float:
        """The PSNR of the rounded network, in dB."""
        return self._rounded(arrays, choices, shape).psnr

    def _judged(self, tried: list[Trial]) -> list[Trial]:
        """With their dB those that keep the bytes wanted, if there is something to choose."""
        keep = [trial for trial in tried if trial.size <= self.wanted.value]
        if self.wanted.kind != "bytes" or len(keep) < 2:
            return tried
        judged: list[Trial] = []
        for trial in keep:
            if not (judged and self._enough()):
                judged.append(self._with_psnr(trial))
        return judged

    @property
    def judged_fraction(self) -> float:
        """Of a picture's decoding, what judging a trial takes once one of its shape is known."""
        return self._decoder.judged_fraction

    def _with_psnr(self, trial: Trial) -> Trial:
        """A trial with its dB; of a large picture about, by parts of it. Where it is to have so
        many dB, what the first one of its shape has beyond that is added."""
        found = trial.network
        about = None if self.judged_fraction == 1 else self._psnr_of_parts(found)
        if about is None:
            return replace(trial, psnr=self._whole_psnr(found))
        if self.wanted.kind != "psnr":  # which only compares
            return replace(trial, psnr=about, about=True)
        if found.shape not in self._beyond:
            whole = self._whole_psnr(found)
            self._beyond[found.shape] = whole - about
            return replace(trial, psnr=whole)
        return replace(trial, psnr=about + self._beyond[found.shape], about=True)

    def _psnr_of_parts(self, found: Network) -> float | None:
        """PSNR of some parts of the picture; None if they do not represent it."""
        original, parts = [], self._decoder.parts(found)
        for (top, left), part in parts:
            rows, columns, channels = part.shape
            own = self.picture.pixels[top : top + rows, left : left + columns]
            original.append(own.reshape(1, -1, channels))
        joined = [part.reshape(1, -1, part.shape[-1]) for _, part in parts]
        pixels = np.concatenate(original, 1)
        if visible_fraction(pixels) < MIN_VISIBLE_RATIO * visible_fraction(
            self.picture.pixels
        ):  # as hardly anybody sees them
            return None
        about = psnr(pixels, np.concatenate(joined, 1))
        return about if math.isfinite(about) else None

    def _whole_psnr(self, found: Network) -> float:
        return psnr(self.picture.pixels, self.decoded(found))

    def _rounded(
        self, arrays: list[Array], choices: list[Choice], shape: Shape, inwards: float = 0.0
    ) -> Trial:
        _, cut = self._compiled.get(shape, (0.0, None)) if self._compiled_once else (0.0, None)
        found = bit_allocation.network(arrays, choices, shape, inwards, cut)
        return self._trial(found, choices)

    def _trial(self, found: Network, choices: list[Choice]) -> Trial:
        """The file of a network; it is decoded only if the target is a PSNR."""
        sections = _sections(found)
        size = draft.size(self.picture, "mlp", sections)
        trial = Trial(found, choices, sections, size, math.nan)
        return self._with_psnr(trial) if self.wanted.kind == "psnr" else trial

    def decoded(self, found: Network) -> Array:
        """uint8 [height, width, channels]; the latest network's pixels are cached."""
        if self._latest is None or not alike(self._latest[0], found):
            began = time.perf_counter()
            self._latest = found, self._decoder.decode(found)
            if found.shape in self._seconds:  # others may have come to use the device, or gone
                self._seconds[found.shape] = time.perf_counter() - began
        return self._latest[1]


def read_back(network: Network, pixels: Array, found: Container) -> Array:
    """The pixels, once the bytes of a file are seen to hold this network, which gave them.

    What coding or writing got wrong shows here even where it changes no pixel, and what a driver
    gets wrong in a corner that NumPy makes as well. Raises FormatError.
    """
    if not alike(decode.network_of(found), network):
        raise FormatError("it holds another network than was coded")
    ours = integer_inference.corner(network, found.header.width, found.header.height)
    if not np.array_equal(pixels[-ours.shape[0] :, -ours.shape[1] :], ours):
        raise FormatError("its pixels are not NumPy's")
    return pixels


def smallest(picture: Picture) -> int:
    """Bytes of the smallest file that there is, about: of one colour, which is the first pixel's
    here, as a mean of many takes a second."""
    return draft.size(picture, "mlp", _sections(even(picture.pixels[0, 0].astype(np.float64))))


def _sections(network: Network) -> tuple[Section, Section]:
    head, coded = network.sections()
    return Section(container.NETWORK, head), Section(container.WEIGHTS, coded)


def _usual(shape: Shape, bits: float) -> Network:
    """A random network whose weights take so many bits each."""
    chance, deviation = (
        np.random.default_rng(0),
        2**bits / _BITS_TO_DEVIATION * step_size(_EXACT_LEVELS_STEP),
    )
    arrays = [chance.normal(0.0, deviation, size) for size in shape.shapes]
    return bit_allocation.network(
        arrays, [Choice(_EXACT_LEVELS_STEP, 0)] * (shape.hidden + 1), shape
    )


def _means(pixels: Array) -> Array:
    """[channels]: of the samples that count; 0 if there are none."""
    if not has_alpha(pixels):
        means: Array = pixels.mean(axis=(0, 1))
        return means
    alpha = pixels[:, :, -1]
    colours = pixels[:, :, :-1].sum(axis=(0, 1), where=(alpha > 0)[:, :, None], dtype=np.float64)
    return np.append(colours / max(np.count_nonzero(alpha), 1), alpha.mean())


def even(levels: Array) -> Network:
    """The smallest network that answers with these levels, [channels], for every pixel."""
    shape = Shape(1, 1, 1, len(levels))
    arrays = [np.zeros(size) for size in shape.shapes]
    arrays[-1] = levels / 255 - 0.5
    return bit_allocation.network(arrays, [Choice(_EXACT_LEVELS_STEP, 0)] * 2, shape)
