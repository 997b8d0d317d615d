"""From a picture to the sections of an .imlp file: train, round and code a network for a target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.mlp import bit_allocation, rate_model
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import BATCH, LearningStep, too_large
from imgmlp.codec.mlp.rounding_search import FINE, Rounding, Trial
from imgmlp.codec.mlp.training_phases import Course, Decided
from imgmlp.codec.training.checkpoint import State
from imgmlp.codec.training.draft import Draft, draft
from imgmlp.codec.training.loop import Ended, Pricing
from imgmlp.codec.training.memory_limits import within_memory
from imgmlp.codec.training.replay import seconds_a_step
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import TOLERANCE, Effort, Goal
from imgmlp.engine import AnyDevice
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


def untrained(picture: Picture, wanted: Goal, device: AnyDevice) -> Draft | None:
    """A file of one colour, if that is all that the target can ask for."""
    return _Encoder(picture, wanted, Effort(0), device, Run()).untrained()


def encode(picture: Picture, wanted: Goal, effort: Effort, device: AnyDevice, run: Run) -> Draft:
    """Train a network on a picture, round it and code it.

    A run that was stopped goes on where it was. Raises Interrupted once the state is saved, if
    `run` is asked to stop. Where one colour is enough, nothing is trained.
    """
    encoder = _Encoder(picture, wanted, effort, device, run)
    if (plain := encoder.untrained()) is not None:
        return plain
    encoder.search()
    while True:
        found = encoder.attempt()
        if encoder.best is None or found.distance(wanted) < encoder.best.distance(wanted):
            encoder.best = found
        encoder.attempts += 1
        missing = wanted.value - found.metrics["psnr"] if wanted.kind == "psnr" else 0.0
        done = abs(missing) <= TOLERANCE or encoder.attempts == ATTEMPTS
        if done or found.diverged or not encoder.resize(missing):
            return encoder.best


class _Encoder:
    """The attempts to reach one target with one picture."""

    def __init__(
        self, picture: Picture, wanted: Goal, effort: Effort, device: AnyDevice, run: Run
    ) -> None:
        self.picture, self.wanted, self.device = picture, wanted, device
        self.effort, self.run, self.saved = effort, run, run.saved
        tries = ATTEMPTS if wanted.kind == "psnr" else 1
        self.seconds = None if effort.seconds is None else effort.seconds / tries  # of an attempt
        self.rounding = Rounding(picture, wanted, device)
        self.samples = picture.width * picture.height
        self.resumed = 0
        self.paces: dict[tuple[Shape, int], float] = {}
        self.pilots = self.attempts = 0  # that are over
        self.best: Draft | None = None  # of the attempts
        self.most = float(self.samples)  # weights that are worth trying for a quality
        if self.saved is None:
            self.weights = self._first_weights()
            return
        facts = self.saved.facts
        self.weights, self.most = float(facts["weights"]), float(facts["most"])
        self.pilots, self.attempts = int(facts["pilots"]), int(facts["attempts"])
        if facts["best"] is not None:
            self.best = Draft(self.saved.arrays["best_file"].tobytes(), facts["best"])

    # --- how large a network ---

    def _first_weights(self) -> float:
        """How many weights the network should have; for a quality, that of the first short run."""
        kind, value = self.wanted.kind, self.wanted.value
        if kind == "lambda":
            return rate_model.weights_worth(value, self.samples)
        if kind == "bytes":  # those of the pixels themselves at most
            size = min(value, self.picture.pixels.nbytes)
            return max(1.0, 8 * (size - rate_model.OVERHEAD) / rate_model.BITS)
        return PILOT_RATE * self.samples / rate_model.BITS

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
        wanted = rate_model.more_weights(self.weights, missing + MARGIN)
        least = rate_model.network_shape(1.0, self.picture.channels).parameters
        self.weights = min(max(wanted, least), self.most)
        return self._shape() != before

    def _shape(self) -> Shape:
        return rate_model.network_shape(self.weights, self.picture.channels)

    def untrained(self) -> Draft | None:
        """A file that took no training, if it is all that the target can ask for."""
        found = self.rounding.one_colour()
        return None if found is None else self._draft(found, Decided(0, self._price()), 0.0)

    # --- one attempt ---

    def attempt(self) -> Draft:
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
        return self._draft(found, course.decided, seconds, ended == "diverged")

    def _beginning(self, shape: Shape) -> Decided:
        """Of an attempt."""
        steps, wider = self.effort.within(self.seconds, partial(self._pace, shape))
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
        each = f" for each of {ATTEMPTS} tries" if self.wanted.kind == "psnr" else ""
        what = f"{seconds:.3g} seconds{each} are too few for {before:,.0f} weights"
        self.run.say(f"{what}: taking {self.weights:,.0f}, which give a better picture")

    def _start(self, begin: Callable[[Shape], Decided]) -> Course:
        """A course at its beginning, or where a checkpoint left it."""
        shape, saved = self._shape(), self.saved
        self.saved = None
        if saved is None:
            return self._course(shape, begin(shape))
        facts = {field.name: saved.facts[field.name] for field in fields(Decided)}
        course = self._course(shape, Decided(**facts))
        course.step.restore(saved.arrays)
        self.resumed = course.step.done
        self.run.say(f"continuing after {self._reached(course)}")
        return course

    def _run(self, course: Course) -> Ended:
        """Go on to the end. Raises Interrupted."""
        ended = course.run(self.run, self._complete)
        if ended == "interrupted":
            raise self.run.interrupted(self._reached(course))
        return ended

    def _course(self, shape: Shape, decided: Decided) -> Course:
        pixels, device, batch = self.picture.pixels, self.device, BATCH * decided.wider
        make = partial(LearningStep, pixels, shape, SEED, device, batch)
        step = within_memory(make, lambda error: too_large(error, pixels, shape, device, batch))
        budget = self._budget(shape)
        return Course(step, decided, self._pricing(budget), budget)

    def _pace(self, shape: Shape, wider: int) -> float:
        """Seconds that a step takes, tried the first time that it is asked."""
        if (shape, wider) not in self.paces:
            trial = self._course(shape, Decided(10**6, 0.0, wider))
            self.paces[shape, wider] = seconds_a_step(trial.step.program)
        return self.paces[shape, wider]

    def _price(self) -> float:
        if self.wanted.kind == "lambda":
            return self.wanted.value
        return rate_model.first_price(self.weights, self.samples)

    def _budget(self, shape: Shape) -> float | None:
        """Bits for all weights, no more of them than they can use."""
        if self.wanted.kind != "bytes":
            return None
        overhead = rate_model.OVERHEAD + len(self.picture.icc or b"")
        bits = 8 * (AIM * self.wanted.value - overhead)
        return min(max(8.0, bits), FINE * shape.parameters)

    def _pricing(self, budget: float | None) -> Pricing:
        value = self.wanted.value
        if budget is not None:
            return lambda bits, _: (bits / budget) ** 2
        if self.wanted.kind == "psnr":
            return lambda _, quality: SLOW ** (quality - value - ABOVE)
        return lambda *_: 1.0

    def _complete(self, state: State) -> State:
        """A course's state with that of the attempts."""
        facts: dict[str, Any] = {"weights": self.weights, "most": self.most, "pilots": self.pilots}
        facts |= {"attempts": self.attempts, "best": None}
        arrays: dict[str, Array] = {}
        if self.best is not None:
            facts["best"] = self.best.metrics
            arrays["best_file"] = np.frombuffer(self.best.bytes, np.uint8)
        return State(state.arrays | arrays, state.facts | facts)

    def _reached(self, course: Course) -> str:
        steps = course.reached()
        return steps if self._searched() else f"{steps} of a short run for the network's size"

    def _draft(
        self, found: Trial, decided: Decided, seconds: float, diverged: bool = False
    ) -> Draft:
        pixels, parameters = self.rounding.decoded(found.network), found.network.shape.parameters
        own = {
            "lambda": decided.price,
            "network": str(found.network.shape),
            "parameters": parameters,
            "bits_per_weight": 8 * len(found.sections[-1].data) / parameters,
            "steps": decided.steps,
            "batch": min(BATCH * decided.wider, self.samples),
            "seconds": seconds,
        }
        made = draft(self.picture, self.wanted, "mlp", found.sections, pixels, own)
        return replace(made, diverged=diverged, resumed=self.resumed)
