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
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import BATCH
from imgmlp.codec.mlp.rate_model import EARLY_CHECK_FRACTION, MIN_EARLY_CHECK_STEPS, RunResult
from imgmlp.codec.mlp.rounding_search import Rounding, Trial, read_back
from imgmlp.codec.mlp.run_planner import RunPlanner
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

# Attempts (whole runs with one network each) towards a PSNR.
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

    An interrupted run continues from its checkpoint. Raises Interrupted once the state is saved, if
    `run` is asked to stop.
    """
    encoder = _Encoder(picture, wanted, workload, device, run)
    encoder.search()
    while True:
        latest = encoder.attempt()
        if encoder.best is None or encoder.distance(latest) < encoder.distance(encoder.best):
            encoder.best = latest
        if latest.diverged or not encoder.plan_next_attempt():
            return replace(encoder.best, resumed=encoder.resumed)


class _Encoder:
    """The runs that lead to one target with one picture: pilots, if it needs them, then attempts.

    RunPlanner and SizeSearch decide what each run is like; this class trains and makes files.
    """

    def __init__(
        self, picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
    ) -> None:
        self.picture, self.wanted, self.device = picture, wanted, device
        self.run, self.saved = run, run.saved
        is_limited = workload.seconds is not None
        self.rounding = Rounding(picture, wanted, device, self._is_out_of_time, is_limited)
        self.step_cache = StepCache(picture, device)
        arguments = picture, wanted, workload, device, run, self.rounding
        self.planner = RunPlanner(*arguments, self._trainer)
        self.sizes = self.planner.sizes
        self.resumed = 0  # steps that the interrupted run had done
        self.is_hit = False  # whether the latest attempt needs no other one
        self.best: Draft | None = None  # of the attempts
        if self.saved is not None:
            self.planner.restore(self.saved.values)
            self.best = Draft.in_snapshot(self.saved)

    def _is_out_of_time(self) -> bool:
        return self.planner.is_out_of_time()

    def untrained(self, trained: Draft | None = None) -> Draft | None:
        """A file that took no training, if it is all that the target can ask for, or nearer to it
        than a `trained` one."""
        trial = self.rounding.one_colour(trained)
        return None if trial is None else self._draft(trial, MlpTrainerState(0, 0.0), 0.0)

    def search(self) -> None:
        """Find by pilots how many weights a PSNR or a lambda needs."""
        while not self.planner.end_search():
            trainer = self._begin_or_resume(self.planner.pilot_state)
            self._run(trainer)
            self.planner.record_pace(trainer)
            weights, steps = trainer.step.shape.parameters, trainer.state.steps
            self.planner.add_pilot(RunResult(float(weights), float(steps), trainer.quality))

    def attempt(self) -> Draft:
        """Train a network and make a file of it."""
        began = time.perf_counter()
        is_limited = self.planner.deadline is not None
        if self.saved is None:
            self.planner.shrink_to_time_limit()
            if is_limited and not self.sizes.attempts:
                self.planner.plan_first_attempt()
        trainer = self._begin_or_resume(self.planner.attempt_state)
        seconds_before = trainer.state.seconds
        trainer, ended = self._check_early(trainer)
        if ended == "done":
            ended = self._run(trainer)
        seconds = seconds_before + time.perf_counter() - began
        if is_limited and trainer.state.steps < MIN_SENSIBLE_STEPS and self.best is None:
            self.run.say("too little time for this picture, which had hardly any steps; give more")
        if trainer.state.phase < Phase.ROUNDING:  # it diverged, or was too short for checks
            trainer.fix_step_sizes()
        if self._trains_towards_psnr() and ended == "done":
            self._run_passes(trainer)
        shape = trainer.step.shape
        trial, unchanged = self.rounding.best(trainer.arrays(), trainer.choices(), shape)
        self._record_attempt(trial, unchanged)
        result = self._draft(trial, trainer.state, seconds, ended == "diverged")
        self.planner.compile_times.record(
            decoding_program(shape, self.device, self.planner.samples)
        )
        return result

    def _check_early(self, trainer: MlpTrainer) -> tuple[MlpTrainer, RunOutcome]:
        """Run the first part of a first attempt towards a PSNR, and replace its network if the
        PSNR that it should end with is far from the target.

        Returns the trainer to continue with, and how the first part ended. Other attempts are
        returned as they are.
        """
        state, check_step = trainer.state, math.ceil(EARLY_CHECK_FRACTION * trainer.state.steps)
        is_first = not self.sizes.attempts
        is_checked = self._trains_towards_psnr() and self.sizes.checks_early and is_first
        is_long = state.steps >= MIN_EARLY_CHECK_STEPS
        if not is_checked or not is_long or trainer.step.done >= check_step:
            return trainer, "done"
        trainer.pause_at = check_step
        ended = self._run(trainer)
        steps = trainer.state.steps  # the run may be longer or shorter than planned by now
        accuracy = check_step / (EARLY_CHECK_FRACTION * steps)
        is_accurate = MIN_EARLY_CHECK_ACCURACY < accuracy < 1 / MIN_EARLY_CHECK_ACCURACY
        was_checked = ended == "done" and trainer.is_paused and is_accurate
        trainer.pause_at = None
        if not was_checked or not self.planner.replace_network(
            trainer.step.shape, steps, trainer.quality
        ):
            return trainer, ended
        self.planner.plan_first_attempt()
        return self._begin_or_resume(self.planner.attempt_state), ended

    def _trains_towards_psnr(self) -> bool:
        """Whether a single run, in a limited time, should end at a PSNR."""
        is_limited = self.planner.deadline is not None and self.planner.search_is_over
        return is_limited and self.wanted.kind == "psnr"

    def _run_passes(self, trainer: MlpTrainer) -> None:
        """Train a little more with other bits as long as the PSNR is not met, a pass helps, and
        there is time for a whole one. Ends with the state that was nearest to the PSNR.

        A pass that was interrupted is finished first; then the passes are counted from 0.
        """
        steps, shape = math.ceil(PASS_FRACTION * trainer.state.steps), trainer.step.shape
        nearest: tuple[tuple[bool, float], Snapshot] | None = None
        missing_before = math.inf  # dB
        for passes in range(MAX_PASSES + 1):
            psnr = self.rounding.rounded_psnr(trainer.arrays(), trainer.choices(), shape)
            missing, seconds = self.wanted.value - psnr, self.planner.training_seconds(shape)
            distance = missing > PSNR_TOLERANCE, abs(missing)
            if nearest is None or distance < nearest[0]:
                nearest = distance, trainer.snapshot()
            affordable_steps = int(seconds / self.planner.pace(shape, trainer.state.batch_factor))
            is_last = passes == MAX_PASSES or not PSNR_TOLERANCE < abs(missing) <= MAX_PASS_PSNR
            gains_little = missing > 0 and missing_before - missing < MIN_PASS_GAIN
            if is_last or affordable_steps < steps or gains_little:
                break
            missing_before = missing if missing > 0 else math.inf
            trainer.extend(steps, missing, time.perf_counter() + seconds)
            if self._run(trainer) != "done":
                break
        assert nearest is not None
        trainer.restore(nearest[1])

    def _record_attempt(self, trial: Trial, unchanged: Trial) -> None:
        """Record what an attempt led to, and whether another one may be needed.

        The search for a size counts the bytes of the weights as they were trained (`unchanged`),
        whatever their step sizes are.
        """
        shape = unchanged.network.shape
        paid_bytes, weights = unchanged.size - self.rounding.overhead(shape), shape.parameters
        paid_weights = max(8 * paid_bytes / rate_model.BITS_PER_WEIGHT, 1.0)
        self.sizes.add_attempt(paid_weights, unchanged.psnr, float(weights))
        is_small = weights < SMALL_NETWORK_WEIGHTS
        most = MAX_SMALL_SURPLUS_PSNR if is_small else MAX_SURPLUS_PSNR
        is_hit = self.wanted.hit_by(trial.size, trial.psnr)
        self.is_hit = is_hit and -PSNR_TOLERANCE <= unchanged.psnr - self.wanted.value <= most

    def distance(self, result: Draft) -> tuple[bool, float]:
        return result.distance(self.wanted, self.picture)

    def plan_next_attempt(self) -> bool:
        """Choose the network of another attempt.

        Returns whether it may come nearer to the target, or to it with fewer bytes.
        """
        tried = len(self.sizes.attempts) - self.sizes.rivals_tried
        if self.sizes.choose_rival(self._max_rivals()):
            return True
        is_over = self.wanted.kind != "psnr" or tried == MAX_ATTEMPTS
        best_psnr = -math.inf if self.best is None else self.best.metrics["psnr"]
        is_reached = self.sizes.rivals_tried > 0 and self.wanted.value - best_psnr <= PSNR_TOLERANCE
        if is_over or self.is_hit or is_reached:
            return False
        is_new = self.sizes.resize_after_attempt(best_psnr, self.planner.effort_steps)
        is_near = tried >= USUAL_ATTEMPTS and self._is_near_target()
        return is_new and not is_near and self.planner.has_time_for_attempt()

    def _max_rivals(self) -> int:
        """The most rivals of the network that the target asks for, by the work of an attempt."""
        if self.planner.deadline is not None:
            return 0
        workload = self.planner.workload
        steps = workload.steps * workload.batch_factor
        return rivals(self.wanted.kind, operations(self.sizes.attempts[-1].network_weights, steps))

    def _is_near_target(self) -> bool:
        """Whether the best file has the PSNR, and hardly more bytes than it seems to need."""
        if self.best is None:
            return False
        size, psnr = len(self.best.bytes), self.best.metrics["psnr"]
        needed = self.sizes.weights * rate_model.BITS_PER_WEIGHT / 8
        needed += self.rounding.overhead(self.sizes.shape())
        return self.wanted.misses(size, psnr) is None and size <= MAX_SIZE_RATIO * needed

    def _begin_or_resume(self, begin: Callable[[Shape], MlpTrainerState]) -> MlpTrainer:
        """A trainer at its beginning, or where a checkpoint left it."""
        shape, saved = self.sizes.shape(), self.saved
        self.saved = None
        if saved is None:
            return self._trainer(shape, begin(shape))
        state = MlpTrainerState.of(saved.values)
        if self.planner.deadline is not None:
            # Measured before the state is restored, as it changes the state of the cached step.
            self.planner.pace(shape, state.batch_factor)
        trainer = self._trainer(shape, state)
        trainer.step.restore(saved.arrays)
        self.resumed = trainer.step.done
        self.run.say(f"continuing after {self._describe_progress(trainer)}")
        return trainer

    def _run(self, trainer: MlpTrainer) -> RunOutcome:
        """Train to the end or to the pause. Raises Interrupted."""
        shape, batch_factor = trainer.step.shape, trainer.state.batch_factor
        steps = self._bucket_steps(trainer.state)
        opening_steps = buckets.opening_steps(shape, self.device, steps, BATCH * batch_factor)
        switches = opening_steps > 0
        ended: RunOutcome = "done"
        if trainer.step.done < opening_steps:
            trainer.pause_at = opening_steps
            compiler = opening.compiler(trainer.step)
            ended = trainer.run_while_compiling(
                compiler, self.run, self._add_encoder_state, "networks"
            )
            switches = ended == "done" and trainer.is_paused
        self.planner.compile_times.record(step_program(shape, batch_factor, self.device, steps))
        if switches:
            self._switch_to_own_program(trainer)
        if switches or not opening_steps:
            ended = trainer.run(self.run, self._add_encoder_state)
        if ended == "interrupted":
            raise self.run.interrupted(self._describe_progress(trainer))
        return ended

    def _trainer(self, shape: Shape, state: MlpTrainerState) -> MlpTrainer:
        batch = BATCH * state.batch_factor
        bucket = buckets.training_shape(shape, self.device, self._bucket_steps(state), batch)
        step = self.step_cache.get(shape, state.batch_factor, bucket)
        budget = self.planner.bit_budget(shape)
        limit, max_steps = self.planner.run_limits(shape)
        goal = self.wanted.value if self._trains_towards_psnr() else None
        return MlpTrainer(step, state, budget, limit, max_steps, goal)

    def _bucket_steps(self, state: MlpTrainerState) -> int:
        """The steps that a bucket is chosen by; 0 with a time limit, which leaves them open."""
        return state.steps if self.planner.deadline is None else 0

    def _switch_to_own_program(self, trainer: MlpTrainer) -> None:
        """Continue with the program for the network's own shape."""
        shape, state = trainer.step.shape, trainer.step.state()
        step = self.step_cache.get(shape, trainer.state.batch_factor, shape)
        step.restore(state)
        trainer.switch_step(step)

    def _add_encoder_state(self, snapshot: Snapshot) -> Snapshot:
        """A trainer's snapshot with the state of the planner and the best file so far."""
        values = snapshot.values | self.planner.values()
        return Draft.added_to(Snapshot(snapshot.arrays, values), self.best)

    def _describe_progress(self, trainer: MlpTrainer) -> str:
        steps = trainer.describe_steps()
        is_attempt = self.planner.search_is_over
        return steps if is_attempt else f"{steps} of a short run for the network's size"

    def _draft(
        self, trial: Trial, state: MlpTrainerState, seconds: float, diverged: bool = False
    ) -> Draft:
        pixels, parameters = self.rounding.decoded(trial.network), trial.network.shape.parameters
        figures = {
            "lambda": state.lmbda,
            "network": str(trial.network.shape),
            "parameters": parameters,
            "bits_per_weight": 8 * len(trial.sections[-1].data) / parameters,
            "steps": state.steps,
            "batch": BATCH * state.batch_factor,
            "seconds": seconds,
        }
        result = draft(self.picture, self.wanted, "mlp", trial.sections, pixels, figures)
        decode = partial(read_back, trial.network, pixels)
        return replace(result, diverged=diverged, resumed=self.resumed, decode=decode)
