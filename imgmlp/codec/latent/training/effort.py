"""What an effort, a picture's size and a target mean in training steps and passes.

Everything here is a rule that counts. Nothing measures time: files must not depend on how fast a
device happens to be. What the steps cost in seconds is cost_model.py's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from imgmlp.codec.latent.training.buckets import TrainingSetup, is_gpu
from imgmlp.codec.latent.training.forms import (
    MAX_SMALL_PIXELS,
    has_hyperlatents,
    is_quick,
    operations_of,
)
from imgmlp.codec.latent.training.initialisation import is_graphic
from imgmlp.codec.latent.training.latent_trainer import PASS_LENGTH
from imgmlp.codec.latent.training.lmbdas import Lambdas
from imgmlp.codec.latent.training.picture_analysis import extra_grids
from imgmlp.codec.latent.training.rdoq import NO_BUDGET, Budget
from imgmlp.codec.latent.training.schedule import FULL_ANNEALING
from imgmlp.codec.latent.training.windows import JUDGED_PIXELS
from imgmlp.codec.training.passes import MAX_PASSES
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.codec.training.time_estimate import typical_speed
from imgmlp.engine import AnyDevice
from imgmlp.errors import UsageError
from imgmlp.image import Picture

EFFORT_LEVELS = 9
MIN_EFFORT_STEPS = 300  # of effort 1
MAX_EFFORT_STEPS = 100_000  # of effort 9, and of any run in a limited time
DEFAULT_SECONDS = 20.0  # that an encode should take if neither effort nor time is given

# Small pictures get up to twice the steps, since after few of them every way to a target ended with
# another file. The bonus is whole up to SMALL_PIXELS and shrinks to nothing at MEDIUM_PIXELS.
SMALL_PIXELS, MEDIUM_PIXELS = 2**14, 2**16
MAX_BONUS_STEPS = 600
# Small pictures also get passes after the run that do not depend on the target: as many as a target
# may take, since otherwise the kind of target would decide how good the file is.
MAX_UNCONDITIONAL_PASSES = MAX_PASSES
MAX_UNCONDITIONAL_PASS_STEPS = 1800  # of all of these passes together

# Large pictures get fewer steps, so that beyond LARGE_PIXELS time hardly grows for a while.
LARGE_PIXELS = 2**20
LARGE_STEPS_EXPONENT = 1.55
MIN_LARGE_STEPS_FRACTION = 1 / 35

# A short run in many windows gets fewer steps: the number of windows to the power of -EXPONENT.
WINDOW_STEPS_EXPONENT = 0.24
MIN_WINDOW_STEPS_FRACTION = 0.65

# Longest pass of a small picture that misses its dB although bits are as cheap as they usefully
# get: about as long as the run that its effort means for a larger picture.
MAX_PASS_STEP_PIXELS = 2e7  # steps times pixels
MAX_PASS_STEPS = 4800

MAX_SHORT_SECONDS = 60.0  # time limits up to which programs should serve pictures of any size
MIN_SECONDS_FOR_EXTRA_GRIDS = 30.0  # time limits that allow compiling a rarely used program

# Progressive quantisation of the networks, after a run and after each of its passes: a fraction of
# the steps before it, with a floor for short runs that may in turn take no more than a larger
# fraction of them. Where networks move once a step, rather than with each of many windows, it takes
# WHOLE_PICTURE_FACTOR times as many.
QUANTISATION_FRACTION = 0.06
MAX_QUANTISATION_STEPS = 600
MIN_QUANTISATION_STEPS = 24
MAX_SHORT_QUANTISATION_FRACTION = 0.15
WHOLE_PICTURE_FACTOR = 2
# Shorter runs do without it, and so do smaller pictures, whose networks stay near the pretrained
# ones. A run that is also followed by a search for step sizes has to be longer.
MIN_STEPS_TO_QUANTISE = 40
MIN_STEPS_TO_QUANTISE_AND_SEARCH = 400
MIN_PIXELS_TO_QUANTISE = 2**16
# Below so many of its steps (counted for many windows) the networks' step sizes are not searched
# for, since the search takes longer and the result is about as good without it. It is still done
# towards targets, for pictures that are judged in part, and for networks that are a large part of
# the file.
MIN_QUANTISATION_STEPS_FOR_SEARCH = 100

# How long rate-distortion optimised quantisation of the latents goes on, each time, by the lanes of
# a device and the least number of steps before it. Steps of a GPU are so quick that the host's part
# takes as long as many of them.
RDOQ_BUDGETS: dict[str, dict[int, Budget]] = {
    "one": {50: Budget(1, 1), 100: Budget(1, 2), 200: Budget(1, 4), 3000: Budget(3, 8)},
    "group": {2500: Budget(1, 2), 5000: Budget(1, 4), 30_000: Budget(2, 6)},
}


@dataclass(frozen=True)
class RunSteps:
    """What a run will consist of, as far as that can be foreseen."""

    steps: int  # of the run itself
    runs: int  # 2 where the run is likely to start over
    passes: float  # expected after the run
    unconditional_passes: int  # that take place whatever the target needs
    quantisation_steps: float  # of progressive quantisation, after the run and its passes

    @property
    def total(self) -> float:
        """All training steps."""
        return (self.runs + self.passes * PASS_LENGTH) * self.steps + self.quantisation_steps

    @property
    def files(self) -> float:
        """How many times the networks are rounded to a file."""
        return self.runs + self.passes


def foreseen_run(
    picture: Picture,
    goal: Goal,
    workload: Workload,
    steps: int,
    unconditional_passes: int,
    windows: int,
) -> RunSteps:
    """A run of `steps`, in which networks move with each of so many windows."""
    pixels = picture.width * picture.height
    passes = _expected_passes(goal, unconditional_passes)
    quantisation = quantisation_steps(goal, steps, pixels, windows)
    in_passes = quantisation_steps(goal, round(PASS_LENGTH * steps), pixels, windows)
    return RunSteps(
        steps=steps,
        runs=1 + expects_restart(picture, goal, workload, steps),
        passes=passes,
        unconditional_passes=unconditional_passes,
        quantisation_steps=quantisation + passes * in_passes,
    )


def _expected_passes(goal: Goal, unconditional: int) -> float:
    if goal.kind == "lambda":
        return unconditional
    return min(max(unconditional + 1, MAX_PASSES / 4), MAX_PASSES)


# --- from an effort to steps ---


def workload(level: int | None, seconds: float | None) -> Workload:
    """The training that an effort from 1 to 9 means, or without one as much as fits the time.

    Raises UsageError.
    """
    if level is None:
        return Workload(0, seconds)
    if not 1 <= level <= EFFORT_LEVELS:
        hint = f"use a whole number from 1 to {EFFORT_LEVELS}"
        raise UsageError(f"--effort is {level}", hint=hint)
    return Workload(steps_of_effort(level), seconds)


def steps_of_effort(level: int) -> int:
    """Steps of an effort from 1 to 9; each level has the same factor to the one below."""
    ratio = MAX_EFFORT_STEPS / MIN_EFFORT_STEPS
    return round(MIN_EFFORT_STEPS * math.pow(ratio, (level - 1) / (EFFORT_LEVELS - 1)))


def steps_for_pixels(steps: int, pixels: int) -> int:
    """An effort's steps adapted to a picture's size.

    Fewer steps than any effort has were asked for exactly, so that they get no bonus.
    """
    if pixels <= LARGE_PIXELS:
        bonus = round(_smallness(pixels) * min(steps, MAX_BONUS_STEPS))
        return steps + bonus * (steps >= MIN_EFFORT_STEPS)
    fraction = math.pow(LARGE_PIXELS / pixels, LARGE_STEPS_EXPONENT)
    return math.ceil(steps * max(fraction, MIN_LARGE_STEPS_FRACTION))


def steps_for_setup(steps: int, setup: TrainingSetup) -> int:
    """An effort's steps adapted to a picture's size and to the windows it is trained in.

    In a short run in many windows, networks move with every window and each step takes longer, so
    that it needs fewer steps. Thin pictures would lose more than they save, and large pictures have
    quick steps anyway.
    """
    pixels = setup.shape[0] * setup.shape[1]
    adapted = steps_for_pixels(steps, pixels)
    in_windows = setup.is_short and setup.uses_windows and not setup.has_thin_windows
    if not in_windows or (pixels > MAX_SMALL_PIXELS and is_quick(setup.device, setup.is_short)):
        return adapted
    fraction = math.pow(setup.window_count, -WINDOW_STEPS_EXPONENT)
    return math.ceil(adapted * max(fraction, MIN_WINDOW_STEPS_FRACTION))


def unconditional_passes(steps: int, pixels: int) -> int:
    """Passes that follow a run of a small picture, whatever its target is.

    Each of them makes a better file: without them, a run that hits its target at once would end
    with a worse one than a run that does not.
    """
    most = min(
        MAX_UNCONDITIONAL_PASSES, int(MAX_UNCONDITIONAL_PASS_STEPS / (PASS_LENGTH * max(steps, 1)))
    )
    return round(_smallness(pixels) * most) * (steps >= MIN_EFFORT_STEPS)


def _smallness(pixels: int) -> float:
    """1 up to SMALL_PIXELS, falling to 0 at MEDIUM_PIXELS."""
    ratio = MEDIUM_PIXELS / max(pixels, SMALL_PIXELS)
    return max((ratio - 1) / (MEDIUM_PIXELS / SMALL_PIXELS - 1), 0.0)


def expects_restart(picture: Picture, goal: Goal, workload: Workload, steps: int) -> bool:
    """Whether a run is likely to start over at another lambda, as those of few colours do."""
    possible = may_restart(goal, workload, steps, picture.width * picture.height)
    return possible and is_graphic(picture.pixels, steps)


def may_restart(goal: Goal, workload: Workload, steps: int, pixels: int) -> bool:
    """Whether a run may start over: towards dB, without a time limit, if it is no longer than a
    pass may be."""
    unlimited = goal.kind == "psnr" and workload.seconds is None
    return unlimited and steps <= max_pass_steps(pixels)


def max_pass_steps(pixels: int) -> float:
    """Steps of the longest pass that a picture may get for missing dB."""
    return min(MAX_PASS_STEP_PIXELS / pixels, MAX_PASS_STEPS)


# --- what a run of the expected length is trained with ---


def expected_steps(shape: tuple[int, ...], workload: Workload, device: AnyDevice) -> float:
    """About how many steps a run will have, whatever the speed of this one device is."""
    if workload.seconds is not None or not workload.steps:
        return _steps_in(shape, workload.seconds or DEFAULT_SECONDS, device)
    return steps_for_pixels(workload.steps, shape[0] * shape[1])


def _steps_in(shape: tuple[int, ...], seconds: float, device: AnyDevice) -> float:
    """Steps that a typical device of this kind takes in so many seconds."""
    return seconds * typical_speed(device) / (shape[0] * shape[1] * operations_of(shape))


def is_short(shape: tuple[int, ...], workload: Workload, device: AnyDevice) -> bool:
    """Whether compiling a program for the picture's size would take a large part of the time.

    The speed of this one device does not count, so that files do not depend on it.
    """
    pixels, operations = shape[0] * shape[1], operations_of(shape)
    setup = TrainingSetup(shape, device)
    if workload.seconds is None and workload.steps:
        steps = min(workload.steps, steps_for_pixels(workload.steps, pixels))
        if setup.starts_in_windows:
            return steps <= MIN_EFFORT_STEPS
        return steps <= MIN_EFFORT_STEPS or not setup.own_bucket_pays(steps, operations)
    seconds = workload.seconds or DEFAULT_SECONDS
    expected = _steps_in(shape, seconds, device)
    hurried = seconds <= MAX_SHORT_SECONDS and expected <= FULL_ANNEALING
    return hurried and not (is_gpu(device) and setup.own_bucket_pays(expected, operations))


def hyperlatents_and_extra_grids(
    picture: Picture, goal: Goal, workload: Workload, device: AnyDevice
) -> tuple[bool, int]:
    """Whether the model has hyperlatents, and how many extra grids; no model has both."""
    extra = expected_extra_grids(picture, goal, workload, device)
    return not extra and expects_hyperlatents(picture.pixels.shape, workload, device), extra


def expects_hyperlatents(shape: tuple[int, ...], workload: Workload, device: AnyDevice) -> bool:
    """Whether the run has enough steps for hyperlatents."""
    return has_hyperlatents(shape, expected_steps(shape, workload, device))


def expected_extra_grids(
    picture: Picture, goal: Goal, workload: Workload, device: AnyDevice
) -> int:
    """How many extra grids the picture gets.

    A short time limit allows none: their program has probably never been compiled here before.
    """
    if workload.seconds is not None and workload.seconds < MIN_SECONDS_FOR_EXTRA_GRIDS:
        return 0
    steps = expected_steps(picture.pixels.shape, workload, device)
    return extra_grids(picture.pixels, Lambdas(picture, goal).initial(), steps)


# --- what follows a run or a pass ---


def quantisation_steps(goal: Goal, steps: int, pixels: int, windows: int) -> int:
    """Steps of progressive quantisation after so many steps of a run or a pass.

    `windows` is the number of windows with each of which networks move in a step.
    """
    can_skip_search = _can_skip_search(goal, pixels)
    shortest = MIN_STEPS_TO_QUANTISE if can_skip_search else MIN_STEPS_TO_QUANTISE_AND_SEARCH
    if steps < shortest or pixels < MIN_PIXELS_TO_QUANTISE:
        return 0
    factor = WHOLE_PICTURE_FACTOR if windows == 1 else 1
    least = min(factor * MIN_QUANTISATION_STEPS, round(MAX_SHORT_QUANTISATION_FRACTION * steps))
    return min(max(round(factor * QUANTISATION_FRACTION * steps), least), MAX_QUANTISATION_STEPS)


def skips_search(goal: Goal, steps: int, pixels: int) -> bool:
    """Whether the networks' step sizes are not searched for after so many steps."""
    is_quantised = quantisation_steps(goal, steps, pixels, 1) > 0
    is_brief = round(QUANTISATION_FRACTION * steps) < MIN_QUANTISATION_STEPS_FOR_SEARCH
    return _can_skip_search(goal, pixels) and is_quantised and is_brief


def _can_skip_search(goal: Goal, pixels: int) -> bool:
    """Whether the search could take longer than a brief progressive quantisation."""
    return goal.kind == "lambda" and pixels <= JUDGED_PIXELS


def rdoq_budget(steps: int, lanes: str) -> Budget:
    """The budget for optimising latents after a run of so many steps, and after its passes."""
    most = max((least for least in RDOQ_BUDGETS[lanes] if steps >= least), default=None)
    return NO_BUDGET if most is None else RDOQ_BUDGETS[lanes][most]
