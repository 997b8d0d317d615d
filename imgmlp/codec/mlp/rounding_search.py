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
from imgmlp.codec.mlp.network import Network, Shape, are_equal
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
# The speed of decoding is measured by this many decodings, or by as much as takes these seconds.
TIMED_DECODINGS = 2
MAX_TIMING_SECONDS = 0.5
# Parts of a picture represent it if their visible fraction is at least this factor of the whole's.
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
    weights = 8 * size / rate_model.BITS_PER_WEIGHT
    for _ in range(2):  # the overhead depends on the number of layers
        other_bytes = overhead(picture, rate_model.network_shape(weights, picture.channels))
        weights = max(1.0, 8 * (size - other_bytes) / rate_model.BITS_PER_WEIGHT)
    return weights


@dataclass(frozen=True, eq=False)
class Trial:
    """A rounded network that could be the result."""

    network: Network
    choices: list[Choice]
    sections: tuple[Section, ...]
    size: int  # bytes of the whole file
    psnr: float  # dB; NaN where the target does not need it
    is_estimate: bool = False  # whether `psnr` was measured on parts of the picture only


class Rounding:
    """Rounds the trained networks of one picture for one target, and decodes them on a device.

    `is_out_of_time` is asked before every trial, and ends the search. With `keeps_cut`, networks of
    a shape whose `decoding_seconds` were measured are rounded such that the program that was
    compiled for that can decode them.
    """

    def __init__(
        self,
        picture: Picture,
        wanted: Goal,
        device: AnyDevice,
        is_out_of_time: Callable[[], bool] = lambda: False,
        keeps_cut: bool = False,
    ) -> None:
        self.picture, self.wanted = picture, wanted
        self._is_out_of_time, self._keeps_cut = is_out_of_time, keeps_cut
        self._decoder = integer_inference.Decoder(picture.width, picture.height, device)
        self._seconds: dict[Shape, float] = {}  # of decoding
        # The most bits per weight that a decoder was compiled for, and its cut.
        self._compiled_cuts: dict[Shape, tuple[float, int]] = {}
        self._latest: tuple[Network, Array] | None = None  # the latest decoded network, its pixels
        # dB to add to the PSNR of parts of the picture, by the first network of each shape.
        self._psnr_corrections: dict[Shape, float] = {}

    def one_colour(self, trained: draft.Draft | None = None) -> Trial | None:
        """The smallest possible file, which is of one colour.

        None unless it is all that the target can ask for, or nearer to it than a `trained` one.
        """
        pixels, wanted = self.picture.pixels, self.wanted
        levels = np.rint(_mean_colour(pixels))
        reached = psnr(pixels, np.broadcast_to(levels.astype(np.uint8), pixels.shape))
        network = uniform_network(levels)
        suffices = wanted.kind == "psnr" and reached >= wanted.value
        if wanted.kind == "bytes" or trained is not None:
            size = draft.size(self.picture, "mlp", _sections(network))
            suffices = suffices or (wanted.kind == "bytes" and size > wanted.value)
        if trained is not None:
            distance = draft.distance(size, reached, wanted, self.picture)
            suffices = suffices or distance < trained.distance(wanted, self.picture)
        return self._trial(network, []) if suffices or math.isinf(reached) else None

    def overhead(self, shape: Shape) -> int:
        """Bytes of a file with a network of this shape, without its weights."""
        return overhead(self.picture, shape)

    def decoding_seconds(self, shape: Shape, bits: float) -> float:
        """Seconds to decode a network of a shape whose weights take `bits` each.

        Compiles the decoder first unless that is done. How its sums are cut depends on the size of
        weights, and so on their bits: a decoder for few bits may serve more bits, or not.
        """
        compiled_bits, cut = self._compiled_cuts.get(shape, (0.0, None))
        if bits > compiled_bits:
            network = _typical_network(shape, bits)
            if cut is None or not integer_inference.is_cut_exact(network, cut):
                self._seconds[shape], cut = self._time_decoding(network)
            self._compiled_cuts[shape] = bits, cut
        return self._seconds[shape]

    def _time_decoding(self, network: Network) -> tuple[float, int]:
        """The seconds that decoding takes, and how hidden layers are cut."""
        seconds = self._decoder.seconds(network, TIMED_DECODINGS, MAX_TIMING_SECONDS)
        cut = self._decoder.cut
        assert cut is not None
        return seconds, cut

    def best(self, arrays: list[Array], choices: list[Choice], shape: Shape) -> tuple[Trial, Trial]:
        """The network of these arrays whose file is nearest to the target, and the network as it
        is with the trained step sizes.

        Both size and PSNR grow with the bits that step sizes are chosen for, so the search brackets
        these bits. If the nearest file is still too large or too good, weights are rounded towards
        zero.
        """
        wanted = self.wanted
        self._psnr_corrections.pop(shape, None)  # may be of a network with less training
        first = self._rounded(arrays, choices, shape)
        if (
            wanted.kind == "bytes"
            and MIN_BYTES_FRACTION * wanted.value <= first.size <= wanted.value
        ):
            return first, first
        sizes, bits = bit_allocation.log_sizes(choices), bit_allocation.total_bits(arrays, choices)
        max_bits = max(bits, min(1.6 * bits, MAX_BITS_PER_WEIGHT * shape.parameters))
        if wanted.kind == "psnr" and wanted.value - first.psnr > MAX_MISSING_PSNR:
            return first, first
        interval = (0.1 * bits, bits) if is_too_much(wanted, first) else (bits, max_bits)

        def with_budget(budget: float) -> Trial:
            coarser_or_finer = bit_allocation.choose_step_sizes(arrays, sizes, budget)
            return self._rounded(arrays, coarser_or_finer, shape)

        trials = [first, *approached(wanted, first, interval, with_budget, self._is_out_of_time)]
        too_much = [trial for trial in trials if is_too_much(wanted, trial)]
        if too_much and not wanted.hit_by(trials[-1].size, trials[-1].psnr):
            start = nearest(wanted, too_much)

            def shifted(shift: float) -> Trial:
                return self._rounded(arrays, start.choices, shape, -shift)

            interval = -MAX_SHIFT_TOWARDS_ZERO, 0.0
            trials += approached(wanted, start, interval, shifted, self._is_out_of_time)
        return self._nearest(self._with_psnrs(trials)), first

    def _nearest(self, trials: list[Trial]) -> Trial:
        """The trial nearest to the target.

        Towards a PSNR, the nearest one is measured on the whole picture and the estimates of the
        others are corrected accordingly, until the nearest was measured or the time is over.
        """
        best = nearest(self.wanted, trials)
        while best.is_estimate and self.wanted.kind == "psnr":
            exact = replace(best, psnr=self._whole_psnr(best.network), is_estimate=False)
            shift = exact.psnr - best.psnr
            trials = [
                exact
                if trial is best
                else replace(trial, psnr=trial.psnr + shift * trial.is_estimate)
                for trial in trials
            ]
            best = exact if self._is_out_of_time() else nearest(self.wanted, trials)
        return best

    def rounded_psnr(self, arrays: list[Array], choices: list[Choice], shape: Shape) -> float:
        """The PSNR of the rounded network, in dB."""
        return self._rounded(arrays, choices, shape).psnr

    def _with_psnrs(self, trials: list[Trial]) -> list[Trial]:
        """Towards a number of bytes, the trials that keep it, with their PSNR; all trials as they
        are if fewer than two keep it, or for other targets."""
        small = [trial for trial in trials if trial.size <= self.wanted.value]
        if self.wanted.kind != "bytes" or len(small) < 2:
            return trials
        measured: list[Trial] = []
        for trial in small:
            if not (measured and self._is_out_of_time()):
                measured.append(self._with_psnr(trial))
        return measured

    @property
    def sampled_fraction(self) -> float:
        """The time to measure the PSNR of a trial, as a fraction of that to decode the picture.

        The first trial of a shape may take all of it.
        """
        return self._decoder.sampled_fraction

    def _with_psnr(self, trial: Trial) -> Trial:
        """A trial with its PSNR; for a large picture with an estimate by parts of it.

        Towards a PSNR, the first trial of a shape is measured on the whole picture as well, and the
        difference is added to the estimates of later ones.
        """
        network = trial.network
        estimate = None if self.sampled_fraction == 1 else self._psnr_of_parts(network)
        if estimate is None:
            return replace(trial, psnr=self._whole_psnr(network))
        if self.wanted.kind != "psnr":  # other targets only compare estimates
            return replace(trial, psnr=estimate, is_estimate=True)
        if network.shape not in self._psnr_corrections:
            exact = self._whole_psnr(network)
            self._psnr_corrections[network.shape] = exact - estimate
            return replace(trial, psnr=exact)
        corrected = estimate + self._psnr_corrections[network.shape]
        return replace(trial, psnr=corrected, is_estimate=True)

    def _psnr_of_parts(self, network: Network) -> float | None:
        """The PSNR of some parts of the picture; None if they do not represent it."""
        originals, parts = [], self._decoder.parts(network)
        for (top, left), part in parts:
            rows, columns, channels = part.shape
            original = self.picture.pixels[top : top + rows, left : left + columns]
            originals.append(original.reshape(1, -1, channels))
        joined = np.concatenate([part.reshape(1, -1, part.shape[-1]) for _, part in parts], 1)
        pixels = np.concatenate(originals, 1)
        least = MIN_VISIBLE_RATIO * visible_fraction(self.picture.pixels)
        if visible_fraction(pixels) < least:
            return None
        estimate = psnr(pixels, joined)
        return estimate if math.isfinite(estimate) else None

    def _whole_psnr(self, network: Network) -> float:
        return psnr(self.picture.pixels, self.decoded(network))

    def _rounded(
        self, arrays: list[Array], choices: list[Choice], shape: Shape, towards_zero: float = 0.0
    ) -> Trial:
        _, cut = self._compiled_cuts.get(shape, (0.0, None)) if self._keeps_cut else (0.0, None)
        network = bit_allocation.network(arrays, choices, shape, towards_zero, cut)
        return self._trial(network, choices)

    def _trial(self, network: Network, choices: list[Choice]) -> Trial:
        """The file of a network; it is decoded only if the target is a PSNR."""
        sections = _sections(network)
        size = draft.size(self.picture, "mlp", sections)
        trial = Trial(network, choices, sections, size, math.nan)
        return self._with_psnr(trial) if self.wanted.kind == "psnr" else trial

    def decoded(self, network: Network) -> Array:
        """uint8 [height, width, channels]; the latest network's pixels are cached."""
        if self._latest is None or not are_equal(self._latest[0], network):
            began = time.perf_counter()
            self._latest = network, self._decoder.decode(network)
            if network.shape in self._seconds:  # the load of the device may have changed
                self._seconds[network.shape] = time.perf_counter() - began
        return self._latest[1]


def read_back(network: Network, pixels: Array, written: Container) -> Array:
    """The pixels of a file that was written, verified without decoding all of it.

    `pixels` are what the encoder decoded from `network`. Raises FormatError if the file holds
    another network, which shows an error in coding or writing even if it changes no pixel, or if a
    corner of the pixels differs from NumPy's, which shows an error of a driver.
    """
    if not are_equal(decode.network_of(written), network):
        raise FormatError("it holds another network than was coded")
    corner = integer_inference.corner(network, written.header.width, written.header.height)
    if not np.array_equal(pixels[-corner.shape[0] :, -corner.shape[1] :], corner):
        raise FormatError("its pixels are not NumPy's")
    return pixels


def smallest_size(picture: Picture) -> int:
    """About how many bytes the smallest possible file has, which is of one colour.

    The colour is that of the first pixel, as the mean of many pixels takes a second.
    """
    levels = picture.pixels[0, 0].astype(np.float64)
    return draft.size(picture, "mlp", _sections(uniform_network(levels)))


def _sections(network: Network) -> tuple[Section, Section]:
    head, coded = network.sections()
    return Section(container.NETWORK, head), Section(container.WEIGHTS, coded)


def _typical_network(shape: Shape, bits: float) -> Network:
    """A random network whose weights take about `bits` each."""
    generator = np.random.default_rng(0)
    deviation = 2**bits / _BITS_TO_DEVIATION * step_size(_EXACT_LEVELS_STEP)
    arrays = [generator.normal(0.0, deviation, size) for size in shape.shapes]
    choices = [Choice(_EXACT_LEVELS_STEP, 0)] * (shape.hidden + 1)
    return bit_allocation.network(arrays, choices, shape)


def _mean_colour(pixels: Array) -> Array:
    """[channels]: the mean of the visible samples; 0 if there are none."""
    if not has_alpha(pixels):
        means: Array = pixels.mean(axis=(0, 1))
        return means
    alpha = pixels[:, :, -1]
    sums = pixels[:, :, :-1].sum(axis=(0, 1), where=(alpha > 0)[:, :, None], dtype=np.float64)
    return np.append(sums / max(np.count_nonzero(alpha), 1), alpha.mean())


def uniform_network(levels: Array) -> Network:
    """The smallest network that answers with these levels, [channels], for every pixel."""
    shape = Shape(1, 1, 1, len(levels))
    arrays = [np.zeros(size) for size in shape.shapes]
    arrays[-1] = levels / 255 - 0.5
    return bit_allocation.network(arrays, [Choice(_EXACT_LEVELS_STEP, 0)] * 2, shape)
