"""From a picture to the sections of an .imlp file: train, round and code a latent model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.latent.latents_kernel import prepare
from imgmlp.codec.latent.model import ModelShape
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.buckets import bucket_compiler
from imgmlp.codec.latent.training.cost_model import estimate_work
from imgmlp.codec.latent.training.effort import MAX_EFFORT_STEPS, workload
from imgmlp.codec.latent.training.forms import Forms
from imgmlp.codec.latent.training.initialisation import initialise, is_graphic
from imgmlp.codec.latent.training.latent_trainer import (
    GRAPHIC_LMBDA_FACTOR,
    LatentTrainer,
    LatentTrainerState,
)
from imgmlp.codec.latent.training.lmbdas import Lambdas
from imgmlp.codec.latent.training.rounding_search import Rounding, Written
from imgmlp.codec.latent.training.run_plan import BRIEF_TIMING_SECONDS, RunPlan
from imgmlp.codec.latent.training.schedule import control
from imgmlp.codec.training.checkpoint import Snapshot
from imgmlp.codec.training.draft import Draft, draft
from imgmlp.codec.training.passes import Passes, PassResult
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.codec.training.trainer import RunOutcome
from imgmlp.engine import AnyDevice
from imgmlp.image import Picture

__all__ = ["encode", "estimate_work", "workload"]

Array = np.ndarray[Any, Any]


def encode(
    picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
) -> Draft:
    """Train a latent model on a picture, round it and code it.

    A run that was interrupted before continues from its checkpoint. If `run` is asked to stop, the
    state is saved and Interrupted is raised.
    """
    return _Encoder(picture, wanted, workload, device, run).encode()


class _Encoder:
    """The encoding of one picture for one target."""

    def __init__(
        self, picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
    ) -> None:
        self.picture, self.wanted, self.device, self.run = picture, wanted, device, run
        self.plan = RunPlan(picture, wanted, workload, device, run)
        self.lmbdas = Lambdas(picture, wanted)
        self.initial_lmbda = self.lmbdas.initial()
        self.forms = Forms(
            picture.pixels,
            self.plan.setup,
            self.lmbdas.max_weights(),
            self.plan.hyperlatents,
            self.initial_lmbda,
        )
        self.resumed = 0  # steps that an interrupted run had done
        self.passes: Passes  # set by _prepare_trainer
        self.best: Draft | None = None  # of the run and its passes

    def encode(self) -> Draft:
        trainer = self._prepare_trainer()
        prepare(trainer.step.shape, self.device)
        while True:
            outcome = self._train(trainer)
            if outcome == "interrupted":
                raise self.run.interrupted(trainer.describe_steps())
            snapshot = trainer.final_snapshot()
            if self.run.should_save(True):  # rounding may be interrupted as well
                self.run.save(self._complete(snapshot))
            result, first = self._round(trainer)
            result = replace(result, diverged=outcome == "diverged")
            if self.best is None or self._distance(result) < self._distance(self.best):
                self.best = result
            self.passes.add(trainer.state.lmbda, first)
            longer = self.passes.step_factor()
            steps = self.plan.pass_steps(trainer.pass_steps, longer)
            is_over = outcome == "diverged" or not steps
            if is_over or self.passes.suffice(len(result.bytes), result.metrics["psnr"], first):
                return replace(self.best, resumed=self.resumed)
            trainer.step.restore(snapshot.arrays)  # rounding has changed the latents
            if longer > 1:
                missing = self.wanted.value - first.psnr
                self.run.say(f"{steps:,} steps more, as {missing:.2f} dB are missing")
            self._begin_pass(trainer, first, steps)

    def _begin_pass(self, trainer: LatentTrainer, first: Written, steps: int) -> None:
        """Begin a pass, or repeat the whole run if its lambda was far too low at first."""
        lmbda, limit = self.passes.next_lmbda(), self.plan.pass_deadline()
        is_first_run = len(self.passes.results) == 1 and not trainer.state.is_repetition
        may_repeat = is_first_run and self.plan.may_restart(trainer.state.run_steps)
        if not (may_repeat and trainer.lmbda_was_too_low(lmbda)):
            trainer.begin_pass(lmbda, first.model.networks, steps, limit)
            return
        trainer.repeat_run(self.passes.next_lmbda(restarts=trainer.state.lmbda_is_fixed))
        self.passes.restart()
        repeated = f"{trainer.state.steps:,} steps once more"
        self.run.say(f"{repeated}, as bits were too cheap at first")

    def _prepare_trainer(self) -> LatentTrainer:
        """A run before its first step, or where a checkpoint left it."""
        saved, plan, lmbda = self.run.saved, self.plan, self.initial_lmbda
        step = self.forms.first(saved.values["form"] if saved is not None else None)
        plan.start(is_opening=self.forms.is_in_opening)
        if saved is None:
            state = LatentTrainerState(plan.choose_steps(step, lmbda), lmbda)
        else:
            state = LatentTrainerState.of(saved.values)
        steps = state.run_steps or state.steps
        is_limited = plan.workload.seconds is not None
        if saved is None and plan.has_fixed_lmbda:
            state.fix_lmbda(self.lmbdas.fixed_lmbda(limited=is_limited))
        restart = self._restart_of(step, steps)
        min_passes, results = plan.unconditional_passes(steps), list[PassResult]()
        if saved is None:
            initialise(step, self.picture.pixels, lmbda, steps)
        else:
            step.restore(saved.arrays)
            self.resumed = step.done
            results = [PassResult(*one) for one in saved.values["tried"]]
            self.best = Draft.in_snapshot(saved)
        limit, max_steps = plan.set_deadline(state)
        trainer = LatentTrainer(
            step,
            state,
            self.lmbdas.pricing(min_passes, limited=is_limited),
            limit,
            max_steps,
            restart,
            self.lmbdas.min_lmbda(),
            GRAPHIC_LMBDA_FACTOR if is_graphic(self.picture.pixels, steps) else 1.0,
        )
        max_factor = plan.max_pass_factor(trainer.pass_steps)
        min_lmbda = self.lmbdas.min_lmbda_in_passes()
        self.passes = Passes(self.wanted, min_lmbda, min_passes, max_factor, results)
        if plan.costs.switches_program(steps):
            trainer.pause_after(plan.costs.opening_steps, may_be_late=plan.deadline is not None)
        if saved is None:
            trainer.rescale()
        else:
            self.run.say(f"continuing after {trainer.describe_steps()}")
        return trainer

    def _restart_of(self, step: LatentStep, steps: int) -> Callable[[float], None] | None:
        """A function that brings a new step back to its state before training, for a lambda.

        None for a target lambda, as its run never restarts.
        """
        if self.wanted.kind == "lambda":
            return None
        created = {name: _fold_zeros(array) for name, array in step.state().items()}

        def restart(lmbda: float) -> None:
            step.restore(created)
            initialise(step, self.picture.pixels, lmbda, steps)

        return restart

    def _train(self, trainer: LatentTrainer) -> RunOutcome:
        """Do a run or a pass.

        It may begin in a program that is compiled for many sizes, and switch to the picture's own
        when that is compiled.
        """
        if trainer.pause_at is not None:
            compiler = bucket_compiler(trainer.step, self.plan.setup.bucket)
            waits = self.plan.deadline is None  # a time limit leaves no time for waiting
            outcome = trainer.run_while_compiling(
                compiler, self.run, self._complete, "pictures", waits
            )
            if outcome != "done" or not trainer.is_paused:
                self.plan.note_step_seconds(trainer.seconds_per_step)
                return outcome
            self._switch_program(trainer)
        outcome = trainer.run(self.run, self._complete)
        self.plan.note_step_seconds(trainer.seconds_per_step)
        return outcome

    def _switch_program(self, trainer: LatentTrainer) -> None:
        """Go on in the picture's own bucket, if there is memory for it."""
        previous, step = trainer.step, self.forms.whole()
        if step is None:
            trainer.cancel_pause()
            return
        restart = self._restart_of(step, trainer.state.run_steps)
        step.restore(previous.handed_to(step))
        step.steer(control(0, MAX_EFFORT_STEPS, self.initial_lmbda))
        self.plan.switch_program(step.pace(BRIEF_TIMING_SECONDS))
        trainer.switch_step(step, restart)

    def _round(self, trainer: LatentTrainer) -> tuple[Draft, Written]:
        """Round a trained step for the target.

        Returns the file that comes nearest to the target, and the one before any changes towards
        it.
        """
        began, limit = time.perf_counter(), self.plan.deadline
        progress, state = trainer.describe_steps(), trainer.state

        def is_over(fraction: float) -> bool:
            """Whether this fraction of the time for rounding is over."""
            if self.run.stopping():
                raise self.run.interrupted(progress)
            return limit is not None and time.perf_counter() > began + fraction * (limit - began)

        steps = state.steps - state.pass_began
        refining = self.plan.refining(steps, state.run_steps, self.passes.passes_left)
        rounding = Rounding(
            self.picture, self.wanted, trainer.step, self.device, state.exponents, is_over, refining
        )
        nearest, first = rounding.best(state.lmbda)
        # The search after another pass begins with these step sizes.
        state.exponents = {name: one.exponent for name, one in first.model.networks.items()}
        result = self._draft(nearest, trainer)
        self.plan.note_rounding(time.perf_counter() - began)
        return result, first

    def _distance(self, result: Draft) -> tuple[bool, float]:
        return result.distance(self.wanted, self.picture)

    def _complete(self, snapshot: Snapshot) -> Snapshot:
        """Add to a trainer's snapshot what a later process needs to continue the encoding."""
        values: dict[str, Any] = {"tried": self.passes.results, "form": self.forms.name}
        values |= snapshot.values | self.plan.checkpoint_values()
        return Draft.added_to(Snapshot(snapshot.arrays, values), self.best)

    def _draft(self, file: Written, trainer: LatentTrainer) -> Draft:
        shape = file.model.shape
        parts = dict(zip(("header", "networks", "latents"), file.sections, strict=True))
        own = {
            "lambda": trainer.state.lmbda,
            "network": _describe(shape),
            "parameters": sum(int(np.prod(size)) for size in shape.tensor_shapes.values()),
            "network_bytes": len(parts["header"].data) + len(parts["networks"].data),
            "latent_bytes": len(parts["latents"].data),
            "steps": trainer.state.steps,
            "seconds": trainer.state.seconds,
        }
        made = draft(self.picture, self.wanted, "latent", file.sections, file.pixels, own)
        return replace(made, decode=partial(file.read_back, self.device))


def _fold_zeros(array: Array) -> Array:
    """An array of zeros in the memory of one; most arrays of a new step are zero."""
    return array if array.any() else np.broadcast_to(np.zeros((), array.dtype), array.shape)


def _describe(shape: ModelShape) -> str:
    """The widths of the layers of both networks."""
    s, e = shape.synthesis_width, shape.entropy_width
    synthesis = f"{shape.synthesis_inputs}-{s}-{s}-{shape.channels}"
    contexts = shape.neighbours + len(shape.hyperlatent_levels)
    return f"{synthesis}, {contexts}-{e}-{e}-2"
