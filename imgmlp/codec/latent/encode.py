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

    A run that was stopped goes on where it was. Raises Interrupted once the state is saved, if
    `run` is asked to stop.
    """
    return _Encoder(picture, wanted, workload, device, run).encode()


class _Encoder:
    """One training towards one target with one picture."""

    def __init__(
        self, picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
    ) -> None:
        self.picture, self.wanted, self.device, self.run = picture, wanted, device, run
        self.plan = RunPlan(picture, wanted, workload, device, run)
        self.lmbdas = Lambdas(picture, wanted)
        self.first = self.lmbdas.initial()
        most = self.lmbdas.max_weights()
        self.forms = Forms(
            picture.pixels, self.plan.setup, most, self.plan.hyperlatents, self.first
        )
        self.resumed = 0
        self.passes: Passes  # of a run that has begun
        self.best: Draft | None = None  # of the passes

    def encode(self) -> Draft:
        trainer = self._begun()
        prepare(trainer.step.shape, self.device)
        while True:
            ended = self._train(trainer)
            if ended == "interrupted":
                raise self.run.interrupted(trainer.describe_steps())
            snapshot = trainer.final_snapshot()
            if self.run.due(True):  # what follows may be stopped as well
                self.run.keep(self._complete(snapshot))
            found, first = self._rounded(trainer)
            found = replace(found, diverged=ended == "diverged")
            if self.best is None or self._distance(found) < self._distance(self.best):
                self.best = found
            self.passes.add(trainer.state.lmbda, first)
            longer = self.passes.step_factor()
            steps = self.plan.pass_steps(trainer.pass_steps, longer)
            over = ended == "diverged" or not steps
            if over or self.passes.suffice(len(found.bytes), found.metrics["psnr"], first):
                return replace(self.best, resumed=self.resumed)
            trainer.step.restore(snapshot.arrays)  # which rounding has changed
            if longer > 1:
                missing = self.wanted.value - first.psnr
                self.run.say(f"{steps:,} steps more, as {missing:.2f} dB are missing")
            lmbda, until = self.passes.next_lmbda(), self.plan.pass_deadline()
            no_pass = len(self.passes.results) == 1 and not trainer.state.is_repetition
            may = no_pass and self.plan.may_restart(trainer.state.run_steps)
            if may and trainer.lmbda_was_too_low(lmbda):
                trainer.repeat_run(self.passes.next_lmbda(restarts=trainer.state.lmbda_is_fixed))
                self.passes.restart()
                again = f"{trainer.state.steps:,} steps once more"
                self.run.say(f"{again}, as bits were too cheap at first")
            else:
                trainer.begin_pass(lmbda, first.model.networks, steps, until)

    def _begun(self) -> LatentTrainer:
        """A run at its beginning, or where a checkpoint left it."""
        saved, plan, first = self.run.saved, self.plan, self.first
        step = self.forms.first(saved.values["form"] if saved is not None else None)
        plan.start(is_opening=self.forms.is_in_opening)
        if saved is None:
            state = LatentTrainerState(plan.choose_steps(step, first), first)
        else:
            state = LatentTrainerState.of(saved.values)
        steps = state.run_steps or state.steps
        limited = plan.workload.seconds is not None
        if saved is None and plan.has_fixed_lmbda:
            state.fix_lmbda(self.lmbdas.fixed_lmbda(limited=limited))
        anew = self._anew(step, steps)
        least, tried = plan.unconditional_passes(steps), list[PassResult]()
        if saved is None:
            initialise(step, self.picture.pixels, first, steps)
        else:
            step.restore(saved.arrays)
            self.resumed = step.done
            tried = [PassResult(*one) for one in saved.values["tried"]]
            self.best = Draft.of(saved)
        limits = plan.set_deadline(state)
        pricing = self.lmbdas.pricing(least, limited=limited)
        cheapest = self.lmbdas.min_lmbda()
        dear = GRAPHIC_LMBDA_FACTOR if is_graphic(self.picture.pixels, steps) else 1.0
        trainer = LatentTrainer(step, state, pricing, *limits, anew, cheapest, dear)
        longest = plan.max_pass_factor(trainer.pass_steps)
        lowest = self.lmbdas.min_lmbda_in_passes()
        self.passes = Passes(self.wanted, lowest, least, longest, tried)
        if plan.costs.switches_program(steps):
            trainer.pause_after(plan.costs.opening_steps, may_be_late=plan.deadline is not None)
        if saved is None:
            trainer.rescale()
        else:
            self.run.say(f"continuing after {trainer.describe_steps()}")
        return trainer

    def _anew(self, step: LatentStep, steps: int) -> Callable[[float], None] | None:
        """What brings a step that was just made back to its beginning, for a lambda; nothing does
        where that stays as it is."""
        if self.wanted.kind == "lambda":
            return None
        made = {name: _folded(array) for name, array in step.state().items()}

        def again(lmbda: float) -> None:
            step.restore(made)
            initialise(step, self.picture.pixels, lmbda, steps)

        return again

    def _train(self, trainer: LatentTrainer) -> RunOutcome:
        """A pass, which may begin in a program for many sizes and go over to the picture's own."""
        if trainer.pause_at is not None:
            compiler = bucket_compiler(trainer.step, self.plan.setup.bucket)
            waits = self.plan.deadline is None  # which leaves no time for that
            ended = trainer.run_while_compiling(
                compiler, self.run, self._complete, "pictures", waits
            )
            if ended != "done" or not trainer.is_paused:
                self.plan.note_step_seconds(trainer.seconds_per_step)
                return ended
            self._go_over(trainer)
        ended = trainer.run(self.run, self._complete)
        self.plan.note_step_seconds(trainer.seconds_per_step)
        return ended

    def _go_over(self, trainer: LatentTrainer) -> None:
        """To the picture's own bucket, where there is memory for it."""
        reached, step = trainer.step, self.forms.whole()
        if step is None:
            trainer.cancel_pause()
            return
        anew = self._anew(step, trainer.state.run_steps)
        step.restore(reached.handed_to(step))
        step.steer(control(0, MAX_EFFORT_STEPS, self.first))
        self.plan.switch_program(step.pace(BRIEF_TIMING_SECONDS))
        trainer.switch_step(step, anew)

    def _rounded(self, trainer: LatentTrainer) -> tuple[Draft, Written]:
        """The file of a trained step, and the one that was not changed for the target."""
        began, limit = time.perf_counter(), self.plan.deadline
        reached, state = trainer.describe_steps(), trainer.state

        def over(share: float) -> bool:
            if self.run.stopping():
                raise self.run.interrupted(reached)
            return limit is not None and time.perf_counter() > began + share * (limit - began)

        steps = state.steps - state.pass_began
        refining = self.plan.refining(steps, state.run_steps, self.passes.passes_left)
        made = self.picture, self.wanted, trainer.step, self.device, state.exponents
        rounding = Rounding(*made, over, refining)
        found, first = rounding.best(state.lmbda)
        networks = first.model.networks  # another pass begins near to these
        state.exponents = {name: tensor.exponent for name, tensor in networks.items()}
        drafted = self._draft(found, trainer)
        self.plan.note_rounding(time.perf_counter() - began)
        return drafted, first

    def _distance(self, found: Draft) -> tuple[bool, float]:
        return found.distance(self.wanted, self.picture)

    def _complete(self, snapshot: Snapshot) -> Snapshot:
        """A trainer's snapshot with that of the passes before it."""
        values: dict[str, Any] = {"tried": self.passes.results, "form": self.forms.name}
        values |= snapshot.values | self.plan.checkpoint_values()
        return Draft.kept(self.best, Snapshot(snapshot.arrays, values))

    def _draft(self, found: Written, trainer: LatentTrainer) -> Draft:
        shape = found.model.shape
        parts = dict(zip(("header", "networks", "latents"), found.sections, strict=True))
        own = {
            "lambda": trainer.state.lmbda,
            "network": _described(shape),
            "parameters": sum(int(np.prod(size)) for size in shape.tensor_shapes.values()),
            "network_bytes": len(parts["header"].data) + len(parts["networks"].data),
            "latent_bytes": len(parts["latents"].data),
            "steps": trainer.state.steps,
            "seconds": trainer.state.seconds,
        }
        made = draft(self.picture, self.wanted, "latent", found.sections, found.pixels, own)
        return replace(made, decode=partial(found.read_back, self.device))


def _folded(array: Array) -> Array:
    """One zero for all, where there is nothing else: of a step at its beginning that is most."""
    return array if array.any() else np.broadcast_to(np.zeros((), array.dtype), array.shape)


def _described(shape: ModelShape) -> str:
    s, e = shape.synthesis_width, shape.entropy_width
    synthesis = f"{shape.synthesis_inputs}-{s}-{s}-{shape.channels}"
    contexts = shape.neighbours + len(shape.hyperlatent_levels)
    return f"{synthesis}, {contexts}-{e}-{e}-2"
