"""What a run costs in seconds: training steps, the search for rounded networks, and the file.

`estimate_work` says so before anything is compiled, from operations alone. `CostModel` says so once
a step of the run has been timed. Both count what effort.py foresees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from imgmlp.codec.latent.latents_kernel import has_sequential_processor
from imgmlp.codec.latent.training.bit_allocation import MAX_EARLY_WEIGHT_TRIALS, weight_trials
from imgmlp.codec.latent.training.buckets import TrainingSetup
from imgmlp.codec.latent.training.effort import (
    DEFAULT_SECONDS,
    RunSteps,
    foreseen_run,
    hyperlatents_and_extra_grids,
    is_short,
    quantisation_steps,
    rdoq_budget,
    skips_search,
    steps_for_setup,
    unconditional_passes,
)
from imgmlp.codec.latent.training.forms import is_quick, operations_of, widths
from imgmlp.codec.latent.training.weight_moves import (
    CURVATURE_GRADIENTS,
    MIN_TRIALS_FOR_CURVATURE,
)
from imgmlp.codec.latent.training.windows import JUDGED_PIXELS
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.codec.training.time_estimate import Work
from imgmlp.engine import AnyDevice, NumpyDevice
from imgmlp.image import Picture

# The search for rounded networks: before a step is timed, as long as so many steps take; then so
# many times as long as judging one set of networks, since a GPU waits for the host in this search.
SEARCH_STEPS = 25
SEARCH_JUDGEMENTS = 50
# Training steps that trying to move a single weight takes as long as; and with its part of the
# gradients that are computed between trials, where curvature orders them.
WEIGHT_TRIAL_STEPS, ORDERED_WEIGHT_TRIAL_STEPS = 0.2, 0.3
MAX_WEIGHT_TRIAL_FRACTION = 0.05  # of a limited time: the first of these trials bring most
# Unconditional passes that may still follow where single weights get all of their trials; before
# more passes they get no more than MAX_EARLY_WEIGHT_TRIALS.
MAX_PASSES_LEFT_FOR_ALL_TRIALS = 1

# Rate-distortion optimised quantisation takes place before single weights are moved and after it.
RDOQ_TIMES = 2
RDOQ_HOST_SECONDS = 5e-4  # of the host for every judgement of the picture
RDOQ_HOST_SECONDS_PER_PIXEL = 1.2e-8
JUDGEMENT_STEPS = 0.4  # training steps that judging the picture takes as long as

# Seconds of a step and of rounding the networks to a file that do not depend on what is computed:
# the host's own work, and launches of kernels that have little to do in small pictures. By the
# lanes of a device; the interpreter takes so long for any picture.
STEP_OVERHEAD_SECONDS = {"one": 1.5e-3, "group": 1e-4}
ROUNDING_OVERHEAD_SECONDS = 0.2
NUMPY_STEP_OVERHEAD_SECONDS = 0.01
NUMPY_ROUNDING_OVERHEAD_SECONDS = 1.0
# Times as long as an operation takes NumPy here compared with training an MLP, whose matrix
# products are larger.
NUMPY_SLOWDOWN = 4.0
# Seconds of a step that are the same for programs of all sizes: launches that follow each other,
# from steps of 512×768 pixels and fewer on an H200.
FIXED_STEP_SECONDS = {"one": 0.0, "group": 1.6e-4}

# Writing a file and decoding it takes as long as CHECK_STEPS training steps, then as long as coding
# the latents one by one (with NumPy where no processor has a driver), then CHECK_SECONDS.
CHECK_STEPS = 5
CODING_SECONDS_PER_PIXEL = 1e-6
NUMPY_CODING_SECONDS_PER_PIXEL = 5e-6
CHECK_SECONDS = 0.4


def weight_trial_steps(trials: int) -> float:
    """Training steps that so many trials of single weights take as long as."""
    if trials < MIN_TRIALS_FOR_CURVATURE:
        return WEIGHT_TRIAL_STEPS * trials
    return CURVATURE_GRADIENTS + ORDERED_WEIGHT_TRIAL_STEPS * trials


def estimate_work(picture: Picture, goal: Goal, workload: Workload, device: AnyDevice) -> Work:
    """About what training for a target takes, before anything is compiled.

    Without an effort it is the default time, which such a run is given.
    """
    shape = height, width, _ = picture.pixels.shape
    hyper, extra = hyperlatents_and_extra_grids(picture, goal, workload, device)
    setup = TrainingSetup(shape, device, is_short(shape, workload, device), extra)
    pixels = height * width
    quick = is_quick(device, setup.is_short)
    operations = operations_of(shape, quick)
    programs = (setup.step_program(widths(shape, math.inf, quick), hyper),)
    steps = steps_for_setup(workload.steps, setup)
    opening = setup.opening_steps(operations)
    leaves_opening = setup.switches_program(steps, opening, operations)
    stays = replace(setup, is_short=setup.is_short or opening > 0)
    windows = 1 if leaves_opening else _windows_per_step(stays)
    passes = unconditional_passes(steps, pixels)
    run = foreseen_run(picture, goal, workload, steps, passes, windows)
    if not run.total:
        return Work(0, 0, programs, DEFAULT_SECONDS)

    step_pixels = _step_pixels(setup, run.total, opening, leaves_opening)
    judged_pixels = min(pixels, JUDGED_PIXELS) if setup.uses_windows else pixels
    searches = 0.0 if skips_search(goal, steps, pixels) else run.files
    judgements = run.files * RDOQ_TIMES * rdoq_budget(steps, device.lanes).judged
    step_pixels += searches * SEARCH_STEPS * judged_pixels + judgements * JUDGEMENT_STEPS * pixels

    interpreted = isinstance(device, NumpyDevice)
    slowdown = NUMPY_SLOWDOWN if interpreted else 1.0
    computed = step_pixels * (operations_of(shape, quick, extra) * slowdown)
    return Work(
        run.total,
        computed,
        programs,
        _overhead_seconds(run, pixels, judgements, device),
        speed_kind(setup.uses_windows),
    )


def _step_pixels(setup: TrainingSetup, steps: float, opening: int, leaves_opening: bool) -> float:
    """Pixels that all training steps compute together."""
    in_opening = float(opening)
    if setup.uses_windows or setup.is_short or (opening and not leaves_opening):
        in_opening = steps
    first = setup.window_pixels if setup.uses_windows else setup.opening_pixels
    return in_opening * first + (steps - in_opening) * setup.final_pixels


def _overhead_seconds(run: RunSteps, pixels: int, judgements: float, device: AnyDevice) -> float:
    """Seconds of a run that do not depend on how fast the device computes."""
    if isinstance(device, NumpyDevice):
        step, rounding = NUMPY_STEP_OVERHEAD_SECONDS, NUMPY_ROUNDING_OVERHEAD_SECONDS
    else:
        step, rounding = STEP_OVERHEAD_SECONDS[device.lanes], ROUNDING_OVERHEAD_SECONDS
    seconds = run.total * step + run.files * rounding
    seconds += judgements * (RDOQ_HOST_SECONDS + RDOQ_HOST_SECONDS_PER_PIXEL * pixels)
    return seconds + pixels * _coding_seconds_per_pixel(device)


def _coding_seconds_per_pixel(device: AnyDevice) -> float:
    return (
        CODING_SECONDS_PER_PIXEL
        if has_sequential_processor(device)
        else NUMPY_CODING_SECONDS_PER_PIXEL
    )


def speed_kind(in_windows: bool) -> str:
    """The kind of step under which compile_times.py keeps a device's operations per second."""
    return "latent step" + ", in windows" * in_windows


def _windows_per_step(setup: TrainingSetup) -> int:
    """With how many windows of the picture networks move in a step; 1 for the whole picture."""
    return setup.window_count if setup.uses_windows else 1


@dataclass
class CostModel:
    """Seconds that the parts of one run take, once its step has been timed.

    A run may begin with a program that serves pictures of many sizes and switch to one of its own.
    """

    goal: Goal
    setup: TrainingSetup
    opening_steps: int  # before a run switches, if it does
    is_opening: bool = False  # whether it has a step of that program now
    step_seconds: float = 0.0  # as a step takes now
    judging_seconds: float = 0.0  # that judging one set of networks takes

    @property
    def pixels(self) -> int:
        return self.setup.shape[0] * self.setup.shape[1]

    # --- what takes place ---

    def switches_program(self, steps: int) -> bool:
        """Whether a run of so many steps will still switch to a program of its own."""
        operations = operations_of(self.setup.shape)
        return self.is_opening and self.setup.switches_program(
            steps, self.opening_steps, operations
        )

    def windows(self, steps: int) -> int:
        """With how many windows networks move in a step, at the end of a run of so many steps."""
        stays = self.is_opening and not self.switches_program(steps)
        return _windows_per_step(replace(self.setup, is_short=self.setup.is_short or stays))

    def quantisation_steps(self, steps: int) -> int:
        """Steps of progressive quantisation after so many steps of training."""
        return quantisation_steps(self.goal, steps, self.pixels, self.windows(steps))

    def searches(self, steps: int) -> bool:
        """Whether the networks' step sizes are searched for after so many steps of training."""
        return not skips_search(self.goal, steps, self.pixels)

    # --- how long it takes ---

    def own_step_seconds(self) -> float:
        """Seconds of a step once the run has switched to its own program."""
        fixed = min(FIXED_STEP_SECONDS[self.setup.device.lanes], self.step_seconds)
        fraction = self.setup.final_pixels / self.setup.opening_pixels
        return fixed + fraction * (self.step_seconds - fixed)

    def mean_step_seconds(self, steps: int) -> float:
        """Seconds of a step, as the mean over a run of so many steps."""
        if not self.switches_program(steps):
            return self.step_seconds
        later = (steps - self.opening_steps) * self.own_step_seconds()
        return (self.opening_steps * self.step_seconds + later) / steps

    def rounding_seconds(self, steps: int, step_seconds: float | None = None) -> float:
        """Seconds of the search for rounded networks and of moving latents, after so many steps."""
        step_seconds = self.step_seconds if step_seconds is None else step_seconds
        return self.search_seconds(steps) + self.rdoq_seconds(steps, step_seconds)

    def search_seconds(self, steps: int) -> float:
        """Seconds of the search for the networks' step sizes."""
        return SEARCH_JUDGEMENTS * self.judging_seconds if self.searches(steps) else 0.0

    def rdoq_seconds(self, steps: int, step_seconds: float) -> float:
        """Seconds of rate-distortion optimised quantisation of the latents."""
        budget = rdoq_budget(steps, self.setup.device.lanes)
        # Networks are judged by some windows that stand for all, latents by all of them.
        parts = self.pixels / JUDGED_PIXELS if self.windows(steps) > 1 else 1.0
        judging = self.judging_seconds * max(parts, 1.0)
        host = RDOQ_HOST_SECONDS + RDOQ_HOST_SECONDS_PER_PIXEL * self.pixels
        return RDOQ_TIMES * (budget.judged * (judging + host) + budget.sweeps * step_seconds)

    def weight_trial_fraction(self, steps: int) -> float:
        """The fraction of a limited time that moving single weights may take."""
        taken = weight_trial_steps(weight_trials(steps, self.pixels)) / max(steps, 1)
        return min(MAX_WEIGHT_TRIAL_FRACTION, taken)

    def affordable_weight_trials(self, steps: int) -> int:
        """Trials of single weights for which a limited time has room after so many steps."""
        available = self.weight_trial_fraction(steps) * steps
        ordered = int((available - CURVATURE_GRADIENTS) / ORDERED_WEIGHT_TRIAL_STEPS)
        if ordered >= MIN_TRIALS_FOR_CURVATURE:
            return ordered
        return min(int(available / WEIGHT_TRIAL_STEPS), MIN_TRIALS_FOR_CURVATURE - 1)

    def check_seconds(self) -> float:
        """Seconds that writing a file and decoding it take."""
        coding = _coding_seconds_per_pixel(self.setup.device) * self.pixels
        return CHECK_STEPS * self.step_seconds + coding + CHECK_SECONDS

    def run_seconds(self, run: RunSteps) -> float:
        """Seconds of a whole run with all its passes, without the check of its file."""
        step_seconds = self.mean_step_seconds(run.steps)
        all_trials = weight_trials(run.steps, self.pixels)
        last = MAX_PASSES_LEFT_FOR_ALL_TRIALS + run.passes - run.unconditional_passes
        thorough = min(run.passes, last) + 1  # files for which all single weights are tried
        moving = thorough * weight_trial_steps(all_trials)
        early_trials = min(MAX_EARLY_WEIGHT_TRIALS, all_trials)
        moving += (1 + run.passes - thorough) * weight_trial_steps(early_trials)
        training = (run.total + moving) * step_seconds
        return training + run.files * self.rounding_seconds(run.steps, step_seconds)
