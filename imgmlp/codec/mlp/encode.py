"""From a picture to the sections of an .imlp file: train, round and code a network for a target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.mlp import buckets, opening, rate_model
from imgmlp.codec.mlp.estimate import (
    SMALL_NETWORK_WEIGHTS,
    USUAL_ATTEMPTS,
    decoding_program,
    operations,
    rivals,
    step_program,
)
from imgmlp.codec.mlp.lengths import Lengths
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import BATCH
from imgmlp.codec.mlp.rate_model import EARLY_CHECK_FRACTION, MIN_EARLY_CHECK_STEPS, RunResult
from imgmlp.codec.mlp.rounding_search import Rounding, Trial, read_back
from imgmlp.codec.mlp.steps import StepCache
from imgmlp.codec.mlp.training_phases import MlpTrainer, MlpTrainerState, Phase
from imgmlp.codec.training.checkpoint import Snapshot
from imgmlp.codec.training.draft import Draft, draft
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import PSNR_TOLERANCE, Goal, Workload
from imgmlp.codec.training.trainer import RunOutcome
from imgmlp.engine import AnyDevice
from imgmlp.image import Picture

Array = np.ndarray[Any, Any]

# Attempts towards a PSNR.
MAX_ATTEMPTS = 6
MAX_SIZE_RATIO = 1.05  # of a file's bytes to those that the PSNR seems to need; larger: try again
MAX_SURPLUS_PSNR = 0.2  # dB beyond the target that need no other attempt
MAX_SMALL_SURPLUS_PSNR = 0.05  # the same of small networks, which are trained quickly
# Passes at the end of a limited time, with other bits.
MAX_PASSES = 4
PASS_FRACTION = 0.05  # steps of a pass, as a fraction of the run's
MAX_PASS_PSNR = 1.5  # dB that passes may change
MIN_PASS_GAIN = 0.1  # dB that a pass has to bring for another to follow
# The early check counts if it took place at EARLY_CHECK_FRACTION of the run, within this factor.
MIN_EARLY_CHECK_ACCURACY = 0.7
MIN_SENSIBLE_STEPS = 10  # after fewer steps in a limited time, users are told to allow more


def untrained(
    picture: Picture, wanted: Goal, device: AnyDevice, trained: Draft | None = None
) -> Draft | None:
    """A file of one colour, if that is all that the target can ask for, or nearer to it than a
    `trained` one."""
    return _Encoder(picture, wanted, Workload(0), device, Run()).untrained(trained)


def encode(
    picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
) -> Draft:
    """Train a network on a picture, round it and code it.

    A run that was stopped goes on where it was. Raises Interrupted once the state is saved, if
    `run` is asked to stop.
    """
    encoder = _Encoder(picture, wanted, workload, device, run)
    encoder.search()
    while True:
        found = encoder.attempt()
        if encoder.best is None or encoder.distance(found) < encoder.distance(encoder.best):
            encoder.best = found
        if found.diverged or not encoder.again():
            return replace(encoder.best, resumed=encoder.resumed)


class _Encoder:
    """The runs that lead to one target with one picture: short ones first, if it needs them."""

    def __init__(
        self, picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
    ) -> None:
        self.picture, self.wanted, self.device = picture, wanted, device
        self.run, self.saved = run, run.saved
        limited = workload.seconds is not None
        self.rounding = Rounding(picture, wanted, device, self._too_late, limited)
        self.step_cache = StepCache(picture, device)
        given = picture, wanted, workload, device, run, self.rounding
        self.lengths = Lengths(*given, self._trainer)
        self.sizes = self.lengths.sizes
        self.resumed = 0
        self.hit = False  # the latest attempt needs no other one
        self.best: Draft | None = None  # of the attempts
        if self.saved is not None:
            self._restore(self.saved)

    def _too_late(self) -> bool:
        return self.lengths.too_late()

    def _restore(self, saved: Snapshot) -> None:
        self.lengths.restore(saved.values)
        self.best = Draft.in_snapshot(saved)

    def untrained(self, trained: Draft | None = None) -> Draft | None:
        """A file that took no training, if it is all that the target can ask for, or nearer to
        it."""
        found = self.rounding.one_colour(trained)
        return None if found is None else self._draft(found, MlpTrainerState(0, 0.0), 0.0)

    def search(self) -> None:
        """Find by short runs how many weights a quality or a lambda needs."""
        while not self.lengths.known_enough():
            trainer = self._start(self.lengths.short)
            self._run(trainer)
            self.lengths.note_pace(trainer)
            weights, steps = trainer.step.shape.parameters, trainer.state.steps
            self.lengths.learn(RunResult(float(weights), float(steps), trainer.quality))

    def attempt(self) -> Draft:
        """Train a network and make a file of it."""
        began = time.perf_counter()
        if self.saved is None:
            self.lengths.afford()
            if self.lengths.limit is not None and not self.sizes.attempts:
                self.lengths.share_out()
        trainer = self._start(self.lengths.beginning)
        before = trainer.state.seconds
        trainer, ended = self._suited(trainer)
        if ended == "done":
            ended = self._run(trainer)
        seconds = before + time.perf_counter() - began
        if (
            self.lengths.limit is not None
            and trainer.state.steps < MIN_SENSIBLE_STEPS
            and self.best is None
        ):
            self.run.say("too little time for this picture, which had hardly any steps; give more")
        if trainer.state.phase < Phase.ROUNDING:  # it diverged, or was too short for looks
            trainer.fix_step_sizes()
        if self._aims() and ended == "done":
            self._approach(trainer)
        found, first = self.rounding.best(trainer.arrays(), trainer.choices(), trainer.step.shape)
        self._learn(found, first)
        made = self._draft(found, trainer.state, seconds, ended == "diverged")
        self._note(decoding_program(trainer.step.shape, self.device, self.lengths.samples))
        return made

    def _suited(self, trainer: MlpTrainer) -> tuple[MlpTrainer, RunOutcome]:
        """What goes on with a first attempt for a quality, and how its first steps ended.

        Itself, or the trainer of another network that had better take its place.
        """
        state, glance = trainer.state, math.ceil(EARLY_CHECK_FRACTION * trainer.state.steps)
        first = self._aims() and self.sizes.checks_early and not self.sizes.attempts
        if not first or state.steps < MIN_EARLY_CHECK_STEPS or trainer.step.done >= glance:
            return trainer, "done"
        trainer.pause_at = glance
        ended = self._run(trainer)
        steps = trainer.state.steps  # which may be others by now
        tells = (
            MIN_EARLY_CHECK_ACCURACY
            < glance / (EARLY_CHECK_FRACTION * steps)
            < 1 / MIN_EARLY_CHECK_ACCURACY
        )
        seen = ended == "done" and trainer.is_paused and tells
        trainer.pause_at = None
        if not seen or not self.lengths.exchanges(trainer.step.shape, steps, trainer.quality):
            return trainer, ended
        self.lengths.share_out()
        return self._start(self.lengths.beginning), ended

    def _aims(self) -> bool:
        """Whether a single run is to end at a quality."""
        limited = self.lengths.limit is not None and self.lengths.searched
        return limited and self.wanted.kind == "psnr"

    def _approach(self, trainer: MlpTrainer) -> None:
        """Train a little more with other bits as long as the quality is not met, a pass helps, and
        there is time for a whole one; in the end go back to where it was nearest.

        After a stop in a pass that one is gone on with, and then this begins anew.
        """
        steps, shape = math.ceil(PASS_FRACTION * trainer.state.steps), trainer.step.shape
        nearest: tuple[tuple[bool, float], Snapshot] | None = None
        before = math.inf  # dB that were missing
        for passes in range(MAX_PASSES + 1):
            reached = self.rounding.reached(trainer.arrays(), trainer.choices(), shape)
            missing, seconds = self.wanted.value - reached, self.lengths.for_training(shape)
            distance = missing > PSNR_TOLERANCE, abs(missing)
            if nearest is None or distance < nearest[0]:
                nearest = distance, trainer.snapshot()
            fitting = int(seconds / self.lengths.pace(shape, trainer.state.wider))
            over = passes == MAX_PASSES or not PSNR_TOLERANCE < abs(missing) <= MAX_PASS_PSNR
            if over or fitting < steps or (missing > 0 and before - missing < MIN_PASS_GAIN):
                break
            before = missing if missing > 0 else math.inf
            trainer.extend(steps, missing, time.perf_counter() + seconds)
            if self._run(trainer) != "done":
                break
        assert nearest is not None
        trainer.restore(nearest[1])

    def _note(self, program: str) -> None:
        """That it is compiled."""
        self.lengths.compiled.record(program)

    def _learn(self, found: Trial, first: Trial) -> None:
        """What an attempt says of others: by the bytes of its weights, however coarse these are."""
        paid = first.size - self.rounding.overhead(first.network.shape)
        size = float(first.network.shape.parameters)
        self.sizes.add_attempt(max(8 * paid / rate_model.BITS_PER_WEIGHT, 1.0), first.psnr, size)
        hit = self.wanted.hit_by(found.size, found.psnr)
        beyond = MAX_SMALL_SURPLUS_PSNR if size < SMALL_NETWORK_WEIGHTS else MAX_SURPLUS_PSNR
        self.hit = hit and -PSNR_TOLERANCE <= first.psnr - self.wanted.value <= beyond

    def distance(self, found: Draft) -> tuple[bool, float]:
        return found.distance(self.wanted, self.picture)

    def again(self) -> bool:
        """Whether another attempt may come nearer to the target, or to it with fewer bytes."""
        tried = len(self.sizes.attempts) - self.sizes.rivals
        if self.sizes.challenge(self._rivals()):
            return True
        over = self.wanted.kind != "psnr" or tried == MAX_ATTEMPTS
        best = -math.inf if self.best is None else self.best.metrics["psnr"]
        hit = self.hit or (self.sizes.rivals > 0 and self.wanted.value - best <= PSNR_TOLERANCE)
        if over or hit:
            return False
        other = self.sizes.again(best, self.lengths.whole)
        return other and not (tried >= USUAL_ATTEMPTS and self._near()) and self.lengths.fits()

    def _rivals(self) -> int:
        """How many attempts beside the one that is wanted there may be, by how long the latest
        took."""
        if self.lengths.limit is not None:
            return 0
        workload = self.lengths.workload
        steps = workload.steps * workload.wider
        return rivals(self.wanted.kind, operations(self.sizes.attempts[-1].size, steps))

    def _near(self) -> bool:
        """Whether the best file has the quality, and hardly more bytes than it seems to need."""
        if self.best is None:
            return False
        size, quality = len(self.best.bytes), self.best.metrics["psnr"]
        needed = self.sizes.weights * rate_model.BITS_PER_WEIGHT / 8
        needed += self.rounding.overhead(self.sizes.shape())
        return self.wanted.misses(size, quality) is None and size <= MAX_SIZE_RATIO * needed

    def _start(self, begin: Callable[[Shape], MlpTrainerState]) -> MlpTrainer:
        """A trainer at its beginning, or where a checkpoint left it."""
        shape, saved = self.sizes.shape(), self.saved
        self.saved = None
        if saved is None:
            return self._trainer(shape, begin(shape))
        state = MlpTrainerState.of(saved.values)
        if self.lengths.limit is not None:
            self.lengths.pace(shape, state.wider)  # whose trial would undo what is restored
        trainer = self._trainer(shape, state)
        trainer.step.restore(saved.arrays)
        self.resumed = trainer.step.done
        self.run.say(f"continuing after {self._reached(trainer)}")
        return trainer

    def _run(self, trainer: MlpTrainer) -> RunOutcome:
        """Go on to the end. Raises Interrupted."""
        shape, wider = trainer.step.shape, trainer.state.wider
        steps = self._bucket_steps(trainer.state)
        first = buckets.opening_steps(shape, self.device, steps, BATCH * wider)
        goes_over = first > 0
        ended: RunOutcome = "done"
        if trainer.step.done < first:
            trainer.pause_at = first
            compiler = opening.compiler(trainer.step)
            ended = trainer.run_while_compiling(compiler, self.run, self._complete, "networks")
            goes_over = ended == "done" and trainer.is_paused
        self._note(step_program(shape, wider, self.device, steps))
        if goes_over:
            self._go_over(trainer)
        if goes_over or not first:
            ended = trainer.run(self.run, self._complete)
        if ended == "interrupted":
            raise self.run.interrupted(self._reached(trainer))
        return ended

    def _trainer(self, shape: Shape, state: MlpTrainerState) -> MlpTrainer:
        batch = BATCH * state.wider
        bucket = buckets.training_shape(shape, self.device, self._bucket_steps(state), batch)
        step, budget = self.step_cache.get(shape, state.wider, bucket), self.lengths.budget(shape)
        limit, most = self.lengths.deadline(shape)
        goal = self.wanted.value if self._aims() else None
        return MlpTrainer(step, state, budget, limit, most, goal)

    def _bucket_steps(self, state: MlpTrainerState) -> int:
        """The steps that a bucket is chosen by; 0 with a time limit, which leaves them open."""
        return state.steps if self.lengths.limit is None else 0

    def _go_over(self, trainer: MlpTrainer) -> None:
        """To a program of the network's own size."""
        shape, reached = trainer.step.shape, trainer.step.state()
        step = self.step_cache.get(shape, trainer.state.wider, shape)
        step.restore(reached)
        trainer.switch_step(step)

    def _complete(self, snapshot: Snapshot) -> Snapshot:
        """A trainer's snapshot with that of the runs before it."""
        values = snapshot.values | self.lengths.values()
        return Draft.added_to(Snapshot(snapshot.arrays, values), self.best)

    def _reached(self, trainer: MlpTrainer) -> str:
        steps = trainer.describe_steps()
        return steps if self.lengths.searched else f"{steps} of a short run for the network's size"

    def _draft(
        self, found: Trial, state: MlpTrainerState, seconds: float, diverged: bool = False
    ) -> Draft:
        pixels, parameters = self.rounding.decoded(found.network), found.network.shape.parameters
        own = {
            "lambda": state.lmbda,
            "network": str(found.network.shape),
            "parameters": parameters,
            "bits_per_weight": 8 * len(found.sections[-1].data) / parameters,
            "steps": state.steps,
            "batch": BATCH * state.wider,
            "seconds": seconds,
        }
        made = draft(self.picture, self.wanted, "mlp", found.sections, pixels, own)
        decode = partial(read_back, found.network, pixels)
        return replace(made, diverged=diverged, resumed=self.resumed, decode=decode)
