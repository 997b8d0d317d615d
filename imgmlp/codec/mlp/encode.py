"""From a picture to the bytes of an .imlp file: train, round, code, and decode what was coded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.float_mlp.fit import Progress
from imgmlp.codec.mlp import bit_allocation
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import BATCH, LearningStep, too_large
from imgmlp.codec.mlp.rounding_search import FINE, Rounding, Trial
from imgmlp.codec.mlp.training_phases import Course, Decided, Ended, Pricing
from imgmlp.codec.training import target
from imgmlp.codec.training.checkpoint import Checkpoint, State
from imgmlp.codec.training.memory_limits import within_memory
from imgmlp.codec.training.target import Target
from imgmlp.engine import AnyDevice
from imgmlp.errors import ImgmlpError, Interrupted, OutputError
from imgmlp.image import Picture, psnr

Array = np.ndarray[Any, Any]

SEED = 0
AIM = 0.99  # of the bytes wanted
ATTEMPTS = 3  # networks that are tried for a quality
PILOT = 10  # a run's steps for each step of a short one that shows how hard a picture is
PILOTS = 2
HASTY = 5_000  # steps of a run, where only its time is known; it should not have fewer
SMALL = 2_000.0  # weights, of which fewer take hardly less time
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
    """How long to train: so many steps of so many times the usual pixels, or so many seconds.

    A quality may take several networks, each of which is trained for so many steps; the seconds are
    those of all that may be tried.
    """

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
    state is saved, if `watch` asks to stop. Where one colour is enough, nothing is trained.
    """
    encoder = _Encoder(picture, wanted, effort, device, checkpoint, watch or Watch())
    if (plain := encoder.untrained()) is not None:
        return plain
    encoder.search()
    while True:
        found = encoder.attempt()
        if encoder.best is None or _distance(found, wanted) < _distance(encoder.best, wanted):
            encoder.best = found
        encoder.attempts += 1
        missing = wanted.value - found.metrics["psnr"] if wanted.kind == "psnr" else 0.0
        done = abs(missing) <= target.TOLERANCE or encoder.attempts == ATTEMPTS
        if done or found.diverged or not encoder.resize(missing):
            return encoder.best


def _distance(found: Encoded, wanted: Target) -> tuple[bool, float]:
    return wanted.distance(len(found.bytes), found.metrics["psnr"])


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
        tries = ATTEMPTS if wanted.kind == "psnr" else 1
        self.seconds = None if effort.seconds is None else effort.seconds / tries  # of an attempt
        self.rounding = Rounding(picture, wanted, device)
        self.samples = picture.width * picture.height
        self.saved = checkpoint.load() if checkpoint is not None else None
        self.resumed, self.unsaved = 0, False
        self.paces: dict[tuple[Shape, int], float] = {}
        self.pilots = self.attempts = 0  # that are over
        self.best: Encoded | None = None  # of the attempts
        self.most = float(self.samples)  # weights that are worth trying for a quality
        if self.saved is not None:
            self.weights = float(self.saved.facts["weights"])
            self.most = float(self.saved.facts["most"])
            self.pilots = int(self.saved.facts["pilots"])
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
        pixels = decoder.decode(container.parse(data), self.device)
        return Encoded(data, pixels, metrics, self.wanted.misses(len(data), metrics["psnr"]))

    # --- how large a network ---

    def _first_weights(self) -> float:
        """How many weights the network should have; for a quality, that of the first short run."""
        kind, value = self.wanted.kind, self.wanted.value
        if kind == "lambda":
            return target.weights_worth(value, self.samples)
        if kind == "bytes":  # those of the pixels themselves at most
            size = min(value, self.picture.pixels.nbytes)
            return max(1.0, 8 * (size - target.OVERHEAD) / target.BITS)
        return PILOT_RATE * self.samples / target.BITS

    def search(self) -> None:
        """Find by short runs how many weights a quality needs."""
        whole = self.effort.steps if self.seconds is None else HASTY
        steps = max(1, whole // PILOT)
        while not self._searched():
            course = self._start(lambda _: Decided(steps, 0.0, self.effort.wider))
            self._run(course)
            longer = DOUBLING * math.log2(max(1.0, whole / steps))
            self.resize(self.wanted.value - self._rounded_quality(course) - longer)
            self.pilots += 1

    def _searched(self) -> bool:
        return self.wanted.kind != "psnr" or self.pilots == PILOTS

    def _rounded_quality(self, course: Course) -> float:
        choices = bit_allocation.settle(course.arrays(), course.step.sizes.numpy())
        found = bit_allocation.network(course.arrays(), choices, course.step.shape)
        return psnr(self.picture.pixels, self.rounding.decoded(found))

    def resize(self, missing: float) -> bool:
        """Have enough weights for so many dB more, but no more than pixels; fewer if it is below 0.

        Never fewer than the smallest network has, as it would be priced and enlarged as if it had
        so few. Returns whether that makes it another network.
        """
        before = self._shape()
        wanted = target.more_weights(self.weights, missing + MARGIN)
        least = target.network_shape(1.0, self.picture.channels).parameters
        self.weights = min(max(wanted, least), self.most)
        return self._shape() != before

    def _shape(self) -> Shape:
        return target.network_shape(self.weights, self.picture.channels)

    def untrained(self) -> Encoded | None:
        """A file that took no training, if it is all that the target can ask for."""
        found = self.rounding.one_colour()
        return None if found is None else self._finish(found, Decided(0, self._price()), 0.0)

    # --- one attempt ---

    def attempt(self) -> Encoded:
        """Train a network and make a file of it."""
        began = time.perf_counter()
        if self.saved is None:
            self._afford()
        course = self._start(self._beginning)
        before = course.decided.seconds
        ended = self._run(course)
        seconds = before + time.perf_counter() - began
        if course.decided.phase < 2:  # it diverged, or was too short for looks
            course.fix_steps()
        found = self.rounding.best(course.arrays(), course.choices(), course.step.shape)
        return self._finish(found, course.decided, seconds, ended == "diverged")

    def _beginning(self, shape: Shape) -> Decided:
        """Of an attempt."""
        steps, wider = self._work(shape)
        return Decided(steps, self._price(), wider)

    def _afford(self) -> None:
        """Take a smaller network where the time is too short for training one so large.

        Below HASTY steps twice the steps bring more than twice the weights, which take as long.
        """
        before, seconds = self.weights, self.seconds
        while seconds is not None and self.weights > SMALL:
            share = seconds / self._pace(self._shape(), 1) / HASTY
            if share >= 1:
                break
            self.weights = max(SMALL, self.weights * min(max(share, 0.1), 0.7))
        if self.weights == before:
            return
        self.most = self.weights
        if self.watch.note is not None:
            each = f" for each of {ATTEMPTS} tries" if self.wanted.kind == "psnr" else ""
            what = f"{seconds:.3g} seconds{each} are too few for {before:,.0f} weights"
            self.watch.note(f"{what}: taking {self.weights:,.0f}, which give a better picture")

    def _start(self, begin: Callable[[Shape], Decided]) -> Course:
        """A course at its beginning, or where a checkpoint left it."""
        shape, saved = self._shape(), self.saved
        self.saved = None
        if saved is None:
            return self._course(shape, begin(shape))
        ours = ("weights", "most", "pilots", "attempts", "best")
        facts = {name: value for name, value in saved.facts.items() if name not in ours}
        decided = Decided(**facts)
        course = self._course(shape, decided)
        course.step.restore(saved.arrays)
        self.resumed = int(course.step.count.item())
        if self.watch.note is not None:
            self.watch.note(f"continuing after {self._reached(course)}")
        return course

    def _run(self, course: Course) -> Ended:
        """Go on to the end. Raises Interrupted."""
        ended = course.run(self.watch.tell, self.watch.should_stop, self._keep)
        if ended == "interrupted":
            raise self._interrupted(course)
        return ended

    def _course(self, shape: Shape, decided: Decided) -> Course:
        pixels, device, batch = self.picture.pixels, self.device, BATCH * decided.wider
        make = partial(LearningStep, pixels, shape, SEED, device, batch)
        step = within_memory(make, lambda error: too_large(error, pixels, shape, device, batch))
        budget = self._budget(shape)
        return Course(step, decided, self._pricing(budget), budget)

    def _work(self, shape: Shape) -> tuple[int, int]:
        """Steps of the run and how wide they are; with a time limit, as short trials say.

        Time for more than the default effort's steps is better spent on wider ones.
        """
        if self.seconds is None:
            return self.effort.steps, self.effort.wider
        steps, wider = 0, 1
        for wider in target.WIDER:
            steps = max(1, int(self.seconds / self._pace(shape, wider)))
            if steps <= target.STEPS:
                break
        return steps, wider

    def _pace(self, shape: Shape, wider: int) -> float:
        """Seconds that a step takes, by a short trial, the first time that it is asked."""
        if (shape, wider) not in self.paces:
            self.paces[shape, wider] = self._timed(shape, wider)
        return self.paces[shape, wider]

    def _timed(self, shape: Shape, wider: int) -> float:
        trial, pace = self._course(shape, Decided(10**6, 0.0, wider)).step, 0.0
        trial.program.run(2)  # the first of them may compile for seconds
        trial.program.wait()
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

    def _budget(self, shape: Shape) -> float | None:
        """Bits for all weights, no more of them than they can use."""
        if self.wanted.kind != "bytes":
            return None
        overhead = target.OVERHEAD + len(self.picture.icc or b"")
        bits = 8 * (AIM * self.wanted.value - overhead)
        return min(max(8.0, bits), FINE * shape.parameters)

    def _pricing(self, budget: float | None) -> Pricing:
        value = self.wanted.value
        if budget is not None:
            return lambda bits, _: (bits / budget) ** 2
        if self.wanted.kind == "psnr":
            return lambda _, quality: SLOW ** (quality - value - ABOVE)
        return lambda *_: 1.0

    def _keep(self, state: State) -> None:
        """Save a state; a run is not worth losing because its checkpoint cannot be written."""
        if self.checkpoint is None or self.unsaved:
            return
        state.facts |= {"weights": self.weights, "most": self.most, "pilots": self.pilots}
        state.facts |= {"attempts": self.attempts, "best": None}
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
        at = self._reached(course)
        if self.checkpoint is None or self.unsaved:
            return Interrupted(f"stopped after {at}", hint="start it again")
        hint = f"the same command goes on from there; its state is in {self.checkpoint.path}"
        return Interrupted(f"stopped after {at}", hint=hint)

    def _reached(self, course: Course) -> str:
        steps = f"{int(course.step.count.item()):,} of {course.decided.steps:,} steps"
        return steps if self._searched() else f"{steps} of a short run for the network's size"

    # --- the file ---

    def _finish(
        self, found: Trial, decided: Decided, seconds: float, diverged: bool = False
    ) -> Encoded:
        pixels = self.rounding.decoded(found.network)
        data = self.rounding.written(found.head, found.coded, container.digest(pixels))
        again = decoder.decode(container.parse(data), self.device)
        if not np.array_equal(again, pixels):
            hint = "this is a fault in imgmlp or in the device's driver; try --device numpy"
            raise ImgmlpError("what was written decodes to another picture", hint=hint)
        quality = psnr(self.picture.pixels, pixels)
        metrics = self._metrics(found, quality, decided, seconds)
        missed = self.wanted.misses(len(data), quality)
        return Encoded(data, pixels, metrics, missed, diverged, self.resumed)

    def _metrics(
        self, found: Trial, quality: float, decided: Decided, seconds: float
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
