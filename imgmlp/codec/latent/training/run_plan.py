"""The plan of one run: how many training steps it gets, and until when it may go on.

An effort says how many steps there are, a time limit what they and all that follows may take; with
neither, the device's speed decides.
"""

from __future__ import annotations

import math
import time
from typing import Any

from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.bit_allocation import MAX_EARLY_WEIGHT_TRIALS, MAX_WEIGHT_TRIALS
from imgmlp.codec.latent.training.buckets import TrainingSetup, is_gpu
from imgmlp.codec.latent.training.cost_model import (
    MAX_PASSES_LEFT_FOR_ALL_TRIALS,
    MAX_WEIGHT_TRIAL_FRACTION,
    CostModel,
    speed_kind,
)
from imgmlp.codec.latent.training.effort import (
    EFFORT_LEVELS,
    MAX_EFFORT_STEPS,
    RunSteps,
    foreseen_run,
    hyperlatents_and_extra_grids,
    is_short,
    max_pass_steps,
    may_restart,
    rdoq_budget,
    steps_for_setup,
    steps_of_effort,
    unconditional_passes,
)
from imgmlp.codec.latent.training.forms import is_quick, operations_of, widths
from imgmlp.codec.latent.training.initialisation import is_graphic
from imgmlp.codec.latent.training.latent_trainer import (
    MIN_LIMITED_STEPS,
    PASS_LENGTH,
    LatentTrainerState,
)
from imgmlp.codec.latent.training.rounding_search import (
    SHAVING_LMBDA_DOUBLINGS,
    SHAVING_TRIALS,
    Refining,
)
from imgmlp.codec.latent.training.schedule import control
from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Kind, Workload
from imgmlp.engine import AnyDevice
from imgmlp.image import Picture
from imgmlp.text import duration

MAX_DEFAULT_SECONDS = 25.0  # of the effort that is chosen where neither effort nor time is given
TIMING_SECONDS = 0.15  # of steps that are taken to time them
BRIEF_TIMING_SECONDS = 0.03  # the same where the result decides nothing
MIN_OPERATIONS_TO_RATE_GPU = 5e9  # of a step: with fewer, launches take longer than they do

# --- how a limited time is shared out ---
MIN_USEFUL_STEPS = 30  # below these, latents are far from what they could be
# Training always gets this fraction of the time limit, even if compiling left less than that.
MIN_TRAINING_FRACTION = 0.25
MAX_ROUNDING_FRACTION = 1 / 6  # of the time left, for the search for rounded networks and for RDOQ
# Of the time left after that, for progressive quantisation; a target needs some time later.
MAX_QUANTISATION_FRACTION: dict[Kind, float] = {"lambda": 0.9, "psnr": 0.4, "bytes": 0.4}
# Of the time left, for the run before any pass. A run that misses its dB needs a pass, while a file
# of slightly too few bytes is better than one of shorter training.
RUN_FRACTION: dict[Kind, float] = {"lambda": 1.0, "psnr": 0.8, "bytes": 0.95}
# The same for a run of a picture of few colours towards dB whose lambda is fixed, since its passes
# find lambda. In longer runs latents follow changes of lambda about as well.
FIXED_LMBDA_RUN_FRACTION = 0.65
MAX_FIXED_LMBDA_STEPS = 1000
MIN_PASS_FRACTION = 0.2  # of a pass's usual steps, that the time left must allow
PASS_ROUNDING_FRACTION = 0.6  # of what rounding took before, that it is given after another pass
FITTING_ITERATIONS = 4  # in which a number of steps and what follows them are made to fit


class RunPlan:
    """The steps and deadlines of one run and its passes."""

    def __init__(
        self, picture: Picture, goal: Goal, workload: Workload, device: AnyDevice, run: Run
    ) -> None:
        self.picture, self.goal, self.workload, self.run = picture, goal, workload, run
        self.pixels = picture.width * picture.height
        shape: tuple[int, ...] = picture.pixels.shape
        saved = None if run.saved is None else run.saved.values
        if saved is None:
            self.hyperlatents, extra = hyperlatents_and_extra_grids(picture, goal, workload, device)
        else:
            self.hyperlatents, extra = saved["hyperlatents"], saved["extra_grids"]
        self.setup = TrainingSetup(shape, device, is_short(shape, workload, device), extra)
        opening_steps = self.setup.opening_steps(operations_of(shape))
        self.costs = CostModel(goal, self.setup, opening_steps)
        self.earlier_seconds = 0.0  # of this run, before it was interrupted
        if saved is not None:
            self.earlier_seconds = saved["run_seconds"]
            self.costs.step_seconds = saved["step_seconds"]
            self.costs.judging_seconds = saved["judging_seconds"]
        self.has_fixed_lmbda = False  # whether lambda stays during the run, although it seeks dB
        self.deadline: float | None = None  # on the clock, after which only the file is checked
        self.rounding_seconds = 0.0  # that the latest file took, once there is one
        self._compile_times = CompileTimes(device)

    def checkpoint_values(self) -> dict[str, Any]:
        """What a checkpoint keeps of the plan."""
        return {
            "run_seconds": self.earlier_seconds + time.perf_counter() - self.run.began,
            "step_seconds": self.costs.step_seconds,
            "judging_seconds": self.costs.judging_seconds,
            "hyperlatents": self.hyperlatents,
            "extra_grids": self.setup.extra_grids,
        }

    # --- what the run reports ---

    def start(self, is_opening: bool) -> None:
        """The run has a step; it may be that of a program that serves pictures of many sizes."""
        self.costs.is_opening = is_opening

    def switch_program(self, step_seconds: float) -> None:
        """The run has switched to the picture's own program."""
        self.costs.is_opening, self.costs.step_seconds = False, step_seconds

    def note_step_seconds(self, seconds: float | None) -> None:
        """What steps took in the end, if known: other programs may have come or gone."""
        self.costs.step_seconds = seconds or self.costs.step_seconds

    def note_rounding(self, seconds: float) -> None:
        """What the latest file took, from the trained step on."""
        self.rounding_seconds = seconds

    # --- the run ---

    def choose_steps(self, step: LatentStep, lmbda: float) -> int:
        """The steps of a run that begins with this step; says how long they will take."""
        self.costs.step_seconds = self._timed(step, lmbda)
        self._note_speed(step)
        if self.workload.seconds is not None:
            steps, self.has_fixed_lmbda = self.fitting_run(self.workload.seconds)
            if steps < MIN_USEFUL_STEPS:
                needed = self.run_seconds(MIN_USEFUL_STEPS) + self.costs.check_seconds()
                self.run.say(f"too little time for this picture: {duration(needed)} would do")
        else:
            steps = self._steps_of_effort()
            self.has_fixed_lmbda = self._fixes_lmbda(steps)
        passes = self.unconditional_passes(steps)
        times = "once" if passes == 1 else f"{passes} times"
        more = f" and {times} {round(PASS_LENGTH * steps):,} again" if passes else ""
        time_left = duration(self._announced_seconds(steps))
        self.run.say(f"{steps:,} steps{more}, about {time_left} from here")
        return steps

    def _steps_of_effort(self) -> int:
        """Steps of the effort that was asked for, or of the highest that this device is fast
        enough for."""
        if self.workload.steps:
            return steps_for_setup(self.workload.steps, self.setup)
        efforts = {
            level: steps_for_setup(steps_of_effort(level), self.setup)
            for level in range(1, EFFORT_LEVELS + 1)
        }
        fitting = (n for n in efforts if self.run_seconds(efforts[n]) <= MAX_DEFAULT_SECONDS)
        level = max(fitting, default=1)
        what = f"effort {level} of {EFFORT_LEVELS}"
        self.run.say(f"{what}, as it suits this device; --effort decides")
        return efforts[level]

    def _timed(self, step: LatentStep, lmbda: float) -> float:
        """Seconds of a step, which is tried and undone; compiles what training needs."""
        step.judge(step.flat.numpy())
        step.steer(control(0, MAX_EFFORT_STEPS, lmbda))
        decides = self.workload.seconds is not None or not self.workload.steps
        step_seconds = step.pace(TIMING_SECONDS if decides else BRIEF_TIMING_SECONDS)
        began = time.perf_counter()
        step.judge(step.flat.numpy())
        self.costs.judging_seconds = time.perf_counter() - began
        quick = is_quick(self.setup.device, self.setup.is_short)
        hidden = widths(self.setup.shape, math.inf, quick)
        self._compile_times.record(self.setup.step_program(hidden, self.hyperlatents))
        return step_seconds

    def _note_speed(self, step: LatentStep) -> None:
        """Keep how fast a GPU is. Nothing tells before it has compiled, and small pictures do not
        tell at all."""
        shape, extra = self.setup.shape, self.setup.extra_grids
        pixels = math.prod(step.bucket or shape[:2]) * len(step.windows)
        operations = pixels * operations_of(shape, extra_grids=extra)
        if is_gpu(self.setup.device) and operations >= MIN_OPERATIONS_TO_RATE_GPU:
            speed = operations / self.costs.step_seconds
            self._compile_times.record_speed(speed_kind(len(step.windows) > 1), speed)

    def run_seconds(self, steps: int) -> float:
        """Seconds of a whole run with all its passes."""
        return self.costs.run_seconds(self._foreseen(steps))

    def _foreseen(self, steps: int) -> RunSteps:
        passes, windows = self.unconditional_passes(steps), self.costs.windows(steps)
        return foreseen_run(self.picture, self.goal, self.workload, steps, passes, windows)

    def _announced_seconds(self, steps: int) -> float:
        """Seconds that the run will take with all that follows.

        In a limited time that is what is left at most, unless what takes place in any case takes
        longer.
        """
        seconds = self.run_seconds(steps)
        if self.workload.seconds is None:
            return seconds
        left = self.run.began + self.workload.seconds - time.perf_counter()
        most = max(left, sum(self._limited_seconds(steps)))
        if self.has_fixed_lmbda:  # its passes take all that is left
            return most
        return min(seconds, most)

    # --- a limited time ---

    def fitting_run(self, seconds: float) -> tuple[int, bool]:
        """The steps of a run in a limited time, and whether its lambda is fixed."""
        check_seconds, step_seconds = self.costs.check_seconds(), self.costs.step_seconds
        left = self.run.began + seconds - check_seconds - time.perf_counter()
        steps = self.steps_within(FIXED_LMBDA_RUN_FRACTION * left)
        fixes_lmbda = self._fixes_lmbda(steps)
        if not fixes_lmbda:
            steps = self.steps_within(RUN_FRACTION[self.goal.kind] * left)
        least = max(MIN_LIMITED_STEPS, int(MIN_TRAINING_FRACTION * seconds / step_seconds))
        steps = max(steps, least)
        if self.costs.switches_program(steps):
            opening = self.costs.opening_steps
            later = (steps - opening) * step_seconds / self.costs.own_step_seconds()
            steps = opening + int(later)
        return min(steps, MAX_EFFORT_STEPS), fixes_lmbda

    def _fixes_lmbda(self, steps: int) -> bool:
        """Whether lambda stays during a run of so many steps, although it seeks dB."""
        is_brief = steps <= MAX_FIXED_LMBDA_STEPS or self.may_restart(steps)
        return self.goal.kind == "psnr" and is_brief and is_graphic(self.picture.pixels, steps)

    def steps_within(self, seconds: float) -> int:
        """Steps that fit into so many seconds with all that follows them."""
        before, steps = 0, int(seconds / self.costs.step_seconds)
        for _ in range(FITTING_ITERATIONS):
            before, steps = steps, self._steps_beside(seconds, steps)
        # Steps alternate where a longer run is the first to be followed by a search.
        return min(before, steps)

    def _steps_beside(self, seconds: float, steps: int) -> int:
        """Steps that fit into so many seconds with what follows about so many steps."""
        seconds -= min(self.costs.rounding_seconds(steps), MAX_ROUNDING_FRACTION * seconds)
        quantisation = self.costs.quantisation_steps(steps) / max(steps, 1)
        left = (1 - self.costs.weight_trial_fraction(steps)) * seconds
        return int(left / (self.costs.step_seconds * (1 + quantisation)))

    def set_deadline(self, state: LatentTrainerState) -> tuple[float | None, int]:
        """When training must be done, on the clock, and the most steps it may have until then."""
        seconds = self.workload.seconds
        if seconds is None:
            return None, 0
        training, rounding = self._limited_seconds(state.steps)
        self.deadline = self.run.began + seconds - self.earlier_seconds - self.costs.check_seconds()
        if self.run.saved is None:
            self.deadline = max(self.deadline, time.perf_counter() + training + rounding)
        most = MAX_EFFORT_STEPS if self.goal.kind == "lambda" else state.steps
        return self.deadline - rounding, most

    def _limited_seconds(self, steps: int) -> tuple[float, float]:
        """Seconds of so many steps, and of making a file after them, in a limited time."""
        training = steps * self.costs.mean_step_seconds(steps)
        quantisation = self.costs.quantisation_steps(steps) * self.costs.step_seconds
        both = training + quantisation
        most = MAX_ROUNDING_FRACTION / (1 - MAX_ROUNDING_FRACTION) * both
        rounding = min(self.costs.rounding_seconds(steps), most)
        trials = self.costs.weight_trial_fraction(steps)
        rounding += trials / (1 - trials) * both + quantisation
        if self.goal.kind == "bytes":
            shaving = len(SHAVING_LMBDA_DOUBLINGS) * SHAVING_TRIALS * self.costs.judging_seconds / 2
            rounding += min(shaving, MAX_WEIGHT_TRIAL_FRACTION * both)
        return training, rounding

    # --- passes after the run ---

    def unconditional_passes(self, steps: int) -> int:
        """Passes that follow a run of so many steps whatever its target needs."""
        return unconditional_passes(steps, self.pixels) if self.workload.seconds is None else 0

    def may_restart(self, steps: int) -> bool:
        """Whether a run of so many steps may start over."""
        return may_restart(self.goal, self.workload, steps, self.pixels)

    def max_pass_factor(self, usual: int) -> float:
        """Times as many steps as usual that a pass may have."""
        return max(max_pass_steps(self.pixels) / usual, 1.0)

    def pass_steps(self, usual: int, factor: float = 1.0) -> int:
        """Steps of another pass: `factor` times the usual ones, or what the deadline leaves time
        for; 0 where that is too few."""
        deadline, wanted = self.pass_deadline(), round(factor * usual)
        if deadline is None:
            return wanted
        fitting = int((deadline - time.perf_counter()) / self.costs.step_seconds)
        return min(wanted, fitting) if fitting >= max(MIN_PASS_FRACTION * usual, 1) else 0

    def pass_deadline(self) -> float | None:
        """When another pass must be done, on the clock, to be rounded as the latest was."""
        if self.deadline is None:
            return None
        return self.deadline - PASS_ROUNDING_FRACTION * self.rounding_seconds

    # --- rounding ---

    def refining(self, steps: int, first: int, passes_left: int) -> Refining:
        """What is done for rounded networks and latents after so many steps of a run or a pass.

        `first` are the steps of the run, and `passes_left` the passes still to come in any case.
        """
        is_last = passes_left <= MAX_PASSES_LEFT_FOR_ALL_TRIALS
        trials = MAX_WEIGHT_TRIALS if is_last else MAX_EARLY_WEIGHT_TRIALS
        if self.deadline is not None:
            trials = min(trials, self.costs.affordable_weight_trials(steps))
        return Refining(
            trials=trials,
            quantisation_steps=self.quantisation_steps(steps),
            searching=self.costs.searches(steps),
            shaving=self.deadline is not None,
            budget=rdoq_budget(first, self.setup.device.lanes),
        )

    def quantisation_steps(self, steps: int) -> int:
        """Steps of progressive quantisation that the deadline leaves time for."""
        wanted = self.costs.quantisation_steps(steps)
        if self.deadline is None:
            return wanted
        left = self.deadline - time.perf_counter() - self.costs.rounding_seconds(steps)
        fraction = MAX_QUANTISATION_FRACTION[self.goal.kind]
        return max(0, min(wanted, int(fraction * left / self.costs.step_seconds)))
