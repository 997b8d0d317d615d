"""From a picture to the sections of an .imlp file: train, round and code a network for a target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import metadata_sections
from imgmlp.codec.mlp import bit_allocation, rate_model
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import BATCH, LearningStep, too_large
from imgmlp.codec.mlp.rounding_search import FINE, Rounding, Trial
from imgmlp.codec.mlp.training_phases import MlpTrainer, MlpTrainerState
from imgmlp.codec.training.checkpoint import Snapshot
from imgmlp.codec.training.draft import Draft, draft
from imgmlp.codec.training.memory_limits import within_memory
from imgmlp.codec.training.replay import seconds_a_step
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import TOLERANCE, Goal, Workload
from imgmlp.codec.training.trainer import Ended, Pricing
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
    return _Encoder(picture, wanted, Workload(0), device, Run()).untrained()


def encode(
    picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
) -> Draft:
    """Train a network on a picture, round it and code it.

    A run that was stopped goes on where it was. Raises Interrupted once the state is saved, if
    `run` is asked to stop. Where one colour is enough, nothing is trained.
    """
    encoder = _Encoder(picture, wanted, workload, device, run)
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
        self, picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
    ) -> None:
        self.picture, self.wanted, self.device = picture, wanted, device
        self.workload, self.run, self.saved = workload, run, run.saved
        tries = ATTEMPTS if wanted.kind == "psnr" else 1
        whole = workload.seconds
        self.seconds = None if whole is None else whole / tries  # of an attempt
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
        values = self.saved.values
        self.weights, self.most = float(values["weights"]), float(values["most"])
        self.pilots, self.attempts = int(values["pilots"]), int(values["attempts"])
        if values["best"] is not None:
            self.best = Draft(self.saved.arrays["best_file"].tobytes(), values["best"])

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
        whole = self.workload.steps if self.seconds is None else HASTY
        steps = max(1, whole // PILOT)
        while not self._searched():
            trainer = self._start(lambda _: MlpTrainerState(steps, 0.0, self.workload.wider))
            self._run(trainer)
            longer = DOUBLING * math.log2(max(1.0, whole / steps))
            self.resize(self.wanted.value - self._rounded_quality(trainer) - longer)
            self.pilots += 1

    def _searched(self) -> bool:
        return self.wanted.kind != "psnr" or self.pilots == PILOTS

    def _rounded_quality(self, trainer: MlpTrainer) -> float:
        choices = bit_allocation.settle(trainer.arrays(), trainer.step.sizes.numpy())
        found = bit_allocation.network(trainer.arrays(), choices, trainer.step.shape)
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
        return None if found is None else self._draft(found, MlpTrainerState(0, self._price()), 0.0)

    # --- one attempt ---

    def attempt(self) -> Draft:
        """Train a network and make a file of it."""
        began = time.perf_counter()
        if self.saved is None:
            self._afford()
        trainer = self._start(self._beginning)
        before = trainer.state.seconds
        ended = self._run(trainer)
        seconds = before + time.perf_counter() - began
        if trainer.state.phase < 2:  # it diverged, or was too short for looks
            trainer.fix_steps()
        found = self.rounding.best(trainer.arrays(), trainer.choices(), trainer.step.shape)
        return self._draft(found, trainer.state, seconds, ended == "diverged")

    def _beginning(self, shape: Shape) -> MlpTrainerState:
        """Of an attempt."""
        steps, wider = self.workload.within(self.seconds, partial(self._pace, shape))
        return MlpTrainerState(steps, self._price(), wider)

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

    def _start(self, begin: Callable[[Shape], MlpTrainerState]) -> MlpTrainer:
        """A trainer at its beginning, or where a checkpoint left it."""
        shape, saved = self._shape(), self.saved
        self.saved = None
        if saved is None:
            return self._trainer(shape, begin(shape))
        trainer = self._trainer(shape, MlpTrainerState.of(saved.values))
        trainer.step.restore(saved.arrays)
        self.resumed = trainer.step.done
        self.run.say(f"continuing after {self._reached(trainer)}")
        return trainer

    def _run(self, trainer: MlpTrainer) -> Ended:
        """Go on to the end. Raises Interrupted."""
        ended = trainer.run(self.run, self._complete)
        if ended == "interrupted":
            raise self.run.interrupted(self._reached(trainer))
        return ended

    def _trainer(self, shape: Shape, state: MlpTrainerState) -> MlpTrainer:
        pixels, device, batch = self.picture.pixels, self.device, BATCH * state.wider
        make = partial(LearningStep, pixels, shape, SEED, device, batch)
        step = within_memory(make, lambda error: too_large(error, pixels, shape, device, batch))
        budget = self._budget(shape)
        return MlpTrainer(step, state, self._pricing(budget), budget)

    def _pace(self, shape: Shape, wider: int) -> float:
        """Seconds that a step takes, tried the first time that it is asked."""
        if (shape, wider) not in self.paces:
            trial = self._trainer(shape, MlpTrainerState(10**6, 0.0, wider))
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
        overhead = rate_model.OVERHEAD + metadata_sections.size(self.picture.metadata)
        bits = 8 * (AIM * self.wanted.value - overhead)
        return min(max(8.0, bits), FINE * shape.parameters)

    def _pricing(self, budget: float | None) -> Pricing:
        value = self.wanted.value
        if budget is not None:
            return lambda bits, _: (bits / budget) ** 2
        if self.wanted.kind == "psnr":
            return lambda _, quality: SLOW ** (quality - value - ABOVE)
        return lambda *_: 1.0

    def _complete(self, snapshot: Snapshot) -> Snapshot:
        """A trainer's snapshot with that of the attempts."""
        values: dict[str, Any] = {"weights": self.weights, "most": self.most, "pilots": self.pilots}
        values |= {"attempts": self.attempts, "best": None}
        arrays: dict[str, Array] = {}
        if self.best is not None:
            values["best"] = self.best.metrics
            arrays["best_file"] = np.frombuffer(self.best.bytes, np.uint8)
        return Snapshot(snapshot.arrays | arrays, snapshot.values | values)

    def _reached(self, trainer: MlpTrainer) -> str:
        steps = trainer.reached()
        return steps if self._searched() else f"{steps} of a short run for the network's size"

    def _draft(
        self, found: Trial, state: MlpTrainerState, seconds: float, diverged: bool = False
    ) -> Draft:
        pixels, parameters = self.rounding.decoded(found.network), found.network.shape.parameters
        own = {
            "lambda": state.price,
            "network": str(found.network.shape),
            "parameters": parameters,
            "bits_per_weight": 8 * len(found.sections[-1].data) / parameters,
            "steps": state.steps,
            "batch": min(BATCH * state.wider, self.samples),
            "seconds": seconds,
        }
        made = draft(self.picture, self.wanted, "mlp", found.sections, pixels, own)
        return replace(made, diverged=diverged, resumed=self.resumed)
