"""From a picture to the bytes of an .imlp file: train, round, code, and decode what was coded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec import compact, container, integer, settle, target
from imgmlp.codec.capacity import within_memory
from imgmlp.codec.checkpoint import Checkpoint, State
from imgmlp.codec.container import Header, Section
from imgmlp.codec.course import Course, Decided, Ended, Pricing
from imgmlp.codec.fit import Progress
from imgmlp.codec.learn import BATCH, LearningStep, too_large
from imgmlp.codec.network import Network, Shape
from imgmlp.codec.settle import Choice
from imgmlp.codec.target import Target
from imgmlp.engine import AnyDevice
from imgmlp.errors import ImgmlpError, Interrupted, OutputError
from imgmlp.image import Picture, psnr

Array = np.ndarray[Any, Any]

SEED = 0
AIM = 0.99  # of the bytes wanted
ATTEMPTS = 3  # networks that are tried for a quality
TRIALS = 12  # other steps that are tried for a target
INWARDS = 0.3  # of a step: how far rounding towards zero may go
PILOT = 10  # a run's steps for each step of a short one that shows how hard a picture is
PILOTS = 2
HASTY = 5_000  # steps of a run, where only its time is known
PILOT_RATE = 0.3  # bits a pixel of its network
DOUBLING = 0.6  # dB that twice the steps bring
SLOW = 1.5  # times the price for every dB too much, each time that it is looked at
ABOVE = 0.15  # dB more than wanted that training aims at, as taking some away is easy
MARGIN = 0.3  # dB by which a network for a quality is chosen too large


@dataclass(frozen=True, eq=False)
class Encoded:
    """A file's bytes, what they decode to, and figures of just these bytes."""

    bytes: bytes = field(repr=False)
    pixels: Array = field(repr=False)  # uint8 [height, width, channels]
    metrics: dict[str, Any]
    missed: str | None = None  # how the target was missed
    diverged: bool = False  # training could not go on; the best state is in the bytes
    resumed: int = 0  # steps that an interrupted run had done


@dataclass(frozen=True)
class Effort:
    """How long to train: so many steps of so many times the usual pixels, or so many seconds."""

    steps: int
    seconds: float | None = None
    wider: int = 1


@dataclass(frozen=True)
class Watch:
    """Who is told of progress, and who may stop it."""

    tell: Callable[[Progress], None] | None = None
    should_stop: Callable[[], bool] | None = None
    note: Callable[[str], None] | None = None


def encode(
    picture: Picture,
    wanted: Target,
    effort: Effort,
    device: AnyDevice,
    checkpoint: Checkpoint | None = None,
    watch: Watch | None = None,
) -> Encoded:
    """Train a network on a picture, round it, code it, and decode what was coded.

    With a checkpoint, a run that was stopped goes on where it was. Raises Interrupted once the
    state is saved, if `watch` asks to stop.
    """
    encoder = _Encoder(picture, wanted, effort, device, checkpoint, watch or Watch())
    while True:
        found = encoder.attempt()
        if encoder.best is None or _miss(found, wanted) < _miss(encoder.best, wanted):
            encoder.best = found
        encoder.attempts += 1
        short = wanted.value - found.metrics["psnr"] if wanted.kind == "psnr" else 0.0
        if short <= target.TOLERANCE or found.diverged or encoder.attempts == ATTEMPTS:
            return encoder.best
        encoder.enlarge(short + MARGIN)


def _miss(found: Encoded, wanted: Target) -> float:
    return abs(found.metrics["psnr"] - wanted.value) if wanted.kind == "psnr" else 0.0


@dataclass(frozen=True, eq=False)
class _Trial:
    """A network that could be the result."""

    network: Network
    head: bytes  # the data of its two sections
    coded: bytes
    size: int  # bytes of the whole file
    psnr: float  # NaN where the target does not ask


class _Encoder:
    """The attempts to reach one target with one picture."""

    def __init__(
        self,
        picture: Picture,
        wanted: Target,
        effort: Effort,
        device: AnyDevice,
        checkpoint: Checkpoint | None,
        watch: Watch,
    ) -> None:
        self.picture, self.wanted, self.device, self.watch = picture, wanted, device, watch
        self.effort, self.checkpoint = effort, checkpoint
        self.samples = picture.width * picture.height
        self.saved = checkpoint.load() if checkpoint is not None else None
        self.resumed, self.unsaved = 0, False
        self.attempts = 0  # that are over
        self.best: Encoded | None = None  # of theirs
        if self.saved is not None:
            self.weights = float(self.saved.facts["weights"])
            self.attempts = int(self.saved.facts["attempts"])
            self.best = self._best_before(self.saved)
        else:
            self.weights = self._first_weights()

    def _best_before(self, saved: State) -> Encoded | None:
        """The best file of the attempts before the one that was stopped."""
        metrics = saved.facts["best"]
        if metrics is None:
            return None
        data = saved.arrays["best_file"].tobytes()
        pixels = compact.decode(container.parse(data), self.device)
        return Encoded(data, pixels, metrics, self.wanted.misses(len(data), metrics["psnr"]))

    def _first_weights(self) -> float:
        """How many weights the network should have."""
        kind, value = self.wanted.kind, self.wanted.value
        if kind == "lambda":
            return target.weights_worth(value, self.samples)
        if kind == "bytes":
            return max(1.0, 8 * (value - target.OVERHEAD) / target.BITS)
        weights = PILOT_RATE * self.samples / target.BITS
        for _ in range(PILOTS):
            weights = self._enlarged(weights, value - self._expected(weights) + MARGIN)
        return weights

    def _expected(self, weights: float) -> float:
        """The dB that a network of so many weights should reach, by a short run."""
        whole = self.effort.steps if self.effort.seconds is None else HASTY
        steps = max(1, whole // PILOT)
        course = self._course(self._shape(weights), Decided(steps, 0.0, self.effort.wider))
        if course.run(should_stop=self.watch.should_stop) == "interrupted":
            raise Interrupted("stopped before there was anything to save", hint="start it again")
        return self._rounded_quality(course) + DOUBLING * math.log2(max(1.0, whole / steps))

    def _rounded_quality(self, course: Course) -> float:
        choices = settle.settle(course.arrays(), course.step.sizes.numpy())
        found = settle.network(course.arrays(), choices, course.step.shape)
        return psnr(self.picture.pixels, self._decoded(found))

    def _shape(self, weights: float) -> Shape:
        return target.network_shape(weights, self.picture.channels)

    def enlarge(self, missing: float) -> None:
        self.weights = self._enlarged(self.weights, missing)

    def _enlarged(self, weights: float, missing: float) -> float:
        """More weights for so many dB more, or fewer; but no more than pixels."""
        most = max(float(self.samples), weights)
        return min(max(target.more_weights(weights, missing), 1.0), most)

    # --- one attempt ---

    def attempt(self) -> Encoded:
        """Train a network and make a file of it."""
        began = time.perf_counter()
        course, before = self._start()
        ended = course.run(self.watch.tell, self.watch.should_stop, self._keep)
        if ended == "interrupted":
            raise self._interrupted(course)
        if course.decided.phase < 2:  # it diverged, or was too short for looks
            course.fix_steps()
        seconds = before + time.perf_counter() - began
        return self._finish(course, ended, seconds)

    def _start(self) -> tuple[Course, float]:
        """A course at its beginning or where a checkpoint left it, and the seconds it took."""
        shape, saved = self._shape(self.weights), self.saved
        self.saved = None
        if saved is None:
            steps, wider = self._work(shape)
            return self._course(shape, Decided(steps, self._price(), wider)), 0.0
        ours = ("weights", "attempts", "best")
        facts = {name: value for name, value in saved.facts.items() if name not in ours}
        decided = Decided(**facts)
        course = self._course(shape, decided)
        course.step.restore(saved.arrays)
        self.resumed = int(course.step.count.item())
        if self.watch.note is not None:
            self.watch.note(f"continuing after {self.resumed:,} of {decided.steps:,} steps")
        return course, decided.seconds

    def _course(self, shape: Shape, decided: Decided) -> Course:
        pixels, device, batch = self.picture.pixels, self.device, BATCH * decided.wider
        make = partial(LearningStep, pixels, shape, SEED, device, batch)
        step = within_memory(make, lambda error: too_large(error, pixels, shape, device, batch))
        return Course(step, decided, self._pricing(), self._budget())

    def _work(self, shape: Shape) -> tuple[int, int]:
        """Steps of the run and how wide they are; with a time limit, as short trials say.

        Time for more than the default effort's steps is better spent on wider ones.
        """
        if self.effort.seconds is None:
            return self.effort.steps, self.effort.wider
        steps, wider = 0, 1
        for wider in target.WIDER:
            steps = max(1, int(self.effort.seconds / self._pace(shape, wider)))
            if steps <= target.STEPS:
                break
        return steps, wider

    def _pace(self, shape: Shape, wider: int) -> float:
        """Seconds that a step takes, by a short trial."""
        trial, pace = self._course(shape, Decided(10**6, 0.0, wider)).step, 0.0
        count = 1
        while pace * count < 0.5 and count < 1000:
            count *= 2
            began = time.perf_counter()
            trial.program.run(count)
            trial.program.wait()
            pace = (time.perf_counter() - began) / count
        return pace

    def _price(self) -> float:
        if self.wanted.kind == "lambda":
            return self.wanted.value
        return target.first_price(self.weights, self.samples)

    def _budget(self) -> float | None:
        """Bits for all weights."""
        if self.wanted.kind != "bytes":
            return None
        overhead = target.OVERHEAD + len(self.picture.icc or b"")
        return max(8.0, 8 * (AIM * self.wanted.value - overhead))

    def _pricing(self) -> Pricing:
        budget, value = self._budget(), self.wanted.value
        if budget is not None:
            return lambda bits, _: (bits / budget) ** 2
        if self.wanted.kind == "psnr":
            return lambda _, quality: SLOW ** (quality - value - ABOVE)
        return lambda *_: 1.0

    def _keep(self, state: State) -> None:
        """Save a state; a run is not worth losing because its checkpoint cannot be written."""
        if self.checkpoint is None or self.unsaved:
            return
        state.facts |= {"weights": self.weights, "attempts": self.attempts, "best": None}
        if self.best is not None:
            state.facts["best"] = self.best.metrics
            state.arrays["best_file"] = np.frombuffer(self.best.bytes, np.uint8)
        try:
            self.checkpoint.save(state)
        except OutputError as error:
            self.unsaved = True
            if self.watch.note is not None:
                self.watch.note(f"no checkpoints: {error}")

    def _interrupted(self, course: Course) -> Interrupted:
        at = f"{int(course.step.count.item()):,} of {course.decided.steps:,} steps"
        if self.checkpoint is None or self.unsaved:
            return Interrupted(f"stopped after {at}", hint="start it again")
        hint = f"the same command goes on from there; its state is in {self.checkpoint.path}"
        return Interrupted(f"stopped after {at}", hint=hint)

    # --- the file ---

    def _finish(self, course: Course, ended: Ended, seconds: float) -> Encoded:
        found = self._best(course.arrays(), course.choices(), course.step.shape)
        pixels = self._decoded(found.network)
        data = self._written(found.head, found.coded, container.digest(pixels))
        again = compact.decode(container.parse(data), self.device)
        if not np.array_equal(again, pixels):
            hint = "this is a fault in imgmlp or in the device's driver; try --device numpy"
            raise ImgmlpError("what was written decodes to another picture", hint=hint)
        quality = psnr(self.picture.pixels, pixels)
        metrics = self._metrics(found, quality, course.decided, seconds)
        missed = self.wanted.misses(len(data), quality)
        return Encoded(data, pixels, metrics, missed, ended == "diverged", self.resumed)

    def _best(self, arrays: list[Array], choices: list[Choice], shape: Shape) -> _Trial:
        """The network of these numbers, rounded otherwise if that brings it nearer to the target.

        Both size and quality grow with the bits that steps are chosen for, so those are halved
        in on. What remains too much is taken away by rounding towards zero.
        """
        first = self._trial(settle.network(arrays, choices, shape))
        sizes, bits = settle.log_sizes(choices), settle.total_bits(arrays, choices)
        ends = (0.1 * bits, bits) if self._too_much(first) else (bits, 1.6 * bits)

        def stepped(budget: float) -> tuple[list[Choice], _Trial]:
            found = settle.settle(arrays, sizes, budget)
            return found, self._trial(settle.network(arrays, found, shape))

        tried = [(choices, first), *self._halved(first, ends, stepped)]
        over = [pair for pair in tried if self._too_much(pair[1])]
        if over:
            base, _ = min(over, key=lambda pair: self._distance(pair[1]))

            def inwards(share: float) -> tuple[list[Choice], _Trial]:
                return base, self._trial(settle.network(arrays, base, shape, -share))

            nearest = min((pair[1] for pair in tried), key=self._distance)
            tried += self._halved(nearest, (-INWARDS, 0.0), inwards)
        return min((pair[1] for pair in tried), key=self._distance)

    def _halved(
        self,
        nearest: _Trial,
        ends: tuple[float, float],
        make: Callable[[float], tuple[list[Choice], _Trial]],
    ) -> list[tuple[list[Choice], _Trial]]:
        """Trials between two ends, of which the upper one gives more, until the target is hit."""
        low, high = ends
        tried: list[tuple[list[Choice], _Trial]] = []
        for _ in range(TRIALS):
            if self.wanted.misses(nearest.size, nearest.psnr) is None:
                break
            middle = (low + high) / 2
            choices, nearest = make(middle)
            tried.append((choices, nearest))
            low, high = (low, middle) if self._too_much(nearest) else (middle, high)
        return tried

    def _too_much(self, trial: _Trial) -> bool:
        reached = trial.psnr if self.wanted.kind == "psnr" else trial.size
        return reached > self.wanted.value

    def _distance(self, trial: _Trial) -> tuple[bool, float]:
        if self.wanted.kind == "psnr":
            return False, abs(trial.psnr - self.wanted.value)
        return self._too_much(trial), abs(trial.size - self.wanted.value)

    def _trial(self, found: Network) -> _Trial:
        """What a network would be as a file; it is decoded only if its quality matters."""
        head, coded = found.sections()
        size, quality = len(self._written(head, coded, bytes(8))), math.nan
        if self.wanted.kind == "psnr":
            quality = psnr(self.picture.pixels, self._decoded(found))
        return _Trial(found, head, coded, size, quality)

    def _written(self, head: bytes, coded: bytes, digest: bytes) -> bytes:
        """The file of a network whose sections these are, and which decodes to this digest."""
        height, width, channels = self.picture.pixels.shape
        sections = [Section(container.NETWORK, head), Section(container.WEIGHTS, coded)]
        if self.picture.icc:
            sections.append(Section(container.ICC, self.picture.icc))
        return container.write(Header(width, height, channels, digest), sections)

    def _decoded(self, found: Network) -> Array:
        return integer.decode(found, self.picture.width, self.picture.height, self.device)

    def _metrics(
        self, found: _Trial, quality: float, decided: Decided, seconds: float
    ) -> dict[str, Any]:
        size, shape = found.size, found.network.shape
        return {
            "width": self.picture.width,
            "height": self.picture.height,
            "channels": self.picture.channels,
            "bytes": size,
            "bpp": 8 * size / self.samples,
            "psnr": quality,
            "target": str(self.wanted),
            "lambda": decided.price,
            "network": str(shape),
            "parameters": shape.parameters,
            "bits_per_weight": 8 * len(found.coded) / shape.parameters,
            "steps": decided.steps,
            "batch": min(BATCH * decided.wider, self.samples),
            "seconds": seconds,
        }
