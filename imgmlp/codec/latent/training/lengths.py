"""How long a picture is trained: what an effort, a time limit or neither of them means for it."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from imgmlp.codec.latent.latents_kernel import has_processor
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.bit_allocation import FIRST_TRIALS, MOST_TRIALS, trials
from imgmlp.codec.latent.training.forms import (
    SMALL_PICTURE,
    has_hyperlatents,
    is_quick,
    operations_of,
    widths,
)
from imgmlp.codec.latent.training.lmbdas import Lambdas
from imgmlp.codec.latent.training.phases import (
    FEWEST_LIMITED,
    HURRIED,
    SHORTER,
    LatentTrainerState,
    control,
    is_graphic,
)
from imgmlp.codec.latent.training.picture_analysis import extra_grids
from imgmlp.codec.latent.training.rdoq import NO_BUDGET, Budget
from imgmlp.codec.latent.training.rooms import Place, is_gpu
from imgmlp.codec.latent.training.rounding_search import SHAVES, SHAVING_DOUBLINGS, Refining
from imgmlp.codec.latent.training.windows import JUDGED
from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.codec.training.pace import Work, usual_speed
from imgmlp.codec.training.passes import MOST
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import AnyDevice, NumpyDevice
from imgmlp.errors import UsageError
from imgmlp.image import Picture
from imgmlp.text import duration

LEVELS = 9  # of effort
FEWEST, MOST_STEPS = 300, 100_000  # of the lowest and of the highest of them
# Small pictures have as many steps again, but no more than MORE: with few, each way to a target
# ended with another file. Of SMALLER pixels and fewer; of SOME none.
SMALLER, SOME, MORE = 2**14, 2**16, 600
# Passes of them after a run in any case, at most, and steps of all of these, at most: as many as a
# target may take, as what it is asked by would decide how many there are.
FIRST_PASSES, AGAIN = MOST, 1800
# What a pass of a small picture may have where dB are missing though bits are as cheap as pays:
# steps times pixels, and steps. About as long as the run of an effort for larger pictures.
PASS_STEPS_PIXELS, PASS_STEPS = 2e7, 4800
# Larger pictures have fewer steps, so that for some time they take no longer; a share, at least.
LARGE, BY_LARGER, LEAST_SHARE = 2**20, 1.55, 1 / 35
TOO_FEW = 30  # below which latents are far from what they can be
# Steps that are trained even where the time limit leaves no room for them: a share of its time,
# where something had to be compiled.
AT_LEAST = 0.25
# Of the steps of a short run, by a power of how many windows there are, and at least.
BY_WINDOWS, LEAST_IN_WINDOWS = 0.24, 0.65
# Seconds of a limit up to which a program should serve pictures of any size, and of one from which
# there is time to compile what few pictures need.
BRIEF, COMPILES = 60.0, 30.0
USUAL, LONGEST = 20.0, 25.0  # seconds that an encode should take if nobody says how long, and may
SETTLING = 25  # steps that take as long as the search for rounded networks, of what they compute
JUDGED_IN_SEARCH = 50  # networks that it judges, about: a GPU waits for the host then
SETTLED = 1 / 6  # of a limited time, at most, for that search and for better latents
TRIAL = 0.2  # of a step, that moving a single weight takes about
SINGLE = 0.05  # of a limited time for these, at most: the first of them bring most
# Steps in which networks harden: a share of a run's, and most; of short ones LEAST, but no more
# than a larger share. AS_WHOLE times as many where networks move once a step, not with each of many
# windows. None in runs below SHORTEST, or SHORTEST_SEARCHED where there is a search as well, nor
# for fewer pixels, whose networks stay near to a start.
HARDENING, MOST_HARDENING, LEAST_HARDENING, OF_SHORT, AS_WHOLE = 0.06, 600, 24, 0.15, 2
SHORTEST, SHORTEST_SEARCHED, HARDLY = 40, 400, 2**16
# Of the time that a limit leaves after the search, for hardening: a target needs some after it.
HARDENED, HARDENED_TOWARDS = 0.9, 0.4
# Steps of it with many windows, below which the steps of networks are not searched for: that takes
# longer, and what hardens is about as good without. But for a target, for pictures of which a part
# is judged, and, after hardening, where networks are a large part of the file.
FEW_HARDENING = 100
# How long better latents are looked for after so many steps and more, each time; before single
# weights and after them. A GPU waits for the host then, which takes as long as many steps.
RDOQ: dict[str, dict[int, Budget]] = {
    "one": {50: Budget(1, 1), 100: Budget(1, 2), 200: Budget(1, 4), 3000: Budget(3, 8)},
    "group": {2500: Budget(1, 2), 5000: Budget(1, 4), 30_000: Budget(2, 6)},
}
RDOQ_TIMES = 2
# What a look takes beside what the device judges, in seconds and seconds of every pixel, and steps
# that take as long as judging.
LOOK_SECONDS, BY_PIXELS, JUDGEMENT = 5e-4, 1.2e-8, 0.4
ROUNDS = 4  # in which steps and what follows them are made to fit
# Seconds of steps by which their pace is found, and where it decides nothing.
TRIED, TRIED_BRIEFLY = 0.15, 0.03
# What writing a file and decoding it takes: the time of so many steps, and seconds, of every pixel,
# whose latents are coded one by one, by NumPy where no processor has a driver, and of any picture.
CHECKING, CODING, CODING_BY_NUMPY, STARTING = 5, 1e-6, 5e-6, 0.4
# Seconds of a step and of rounding networks beside what is computed: launches of kernels that have
# little to do in small pictures, and what the host does.
BESIDE_STEP, BESIDE_ROUNDING = {"one": 1.5e-3, "group": 1e-4}, 0.2
# The same for NumPy, which takes so long for any picture; and how many times as long an operation
# takes it here as in training an MLP, whose products are larger.
NUMPY_BESIDE_STEP, NUMPY_BESIDE_ROUNDING, NUMPY_SLOWER = 0.01, 1.0, 4.0
# Seconds of a step that are the same in a room of any size, by those of 512×768 and smaller ones of
# an H200: launches that follow each other.
FIXED = {"one": 0.0, "group": 1.6e-4}
TELLING = 5e9  # operations of a step from which they take a GPU longer than its launches do
LAST_PASSES = 1  # that are left, at most, when all trials of single weights are made
# Of a pass's steps, that a limited time must leave room for; of what the file before it took, what
# its own may take.
LEAST_AGAIN, SOONER = 0.2, 0.6
# Of a limited time, for the run before any pass: what misses its dB needs one, while a file of
# somewhat too few bytes is better than one of shorter training.
MAIN = {"lambda": 1.0, "psnr": 0.8, "bytes": 0.95}
# Of a run of few colours towards dB whose lambda stays: such a share, as passes find lambda;
# and steps, up to which it does. With more of them latents follow its changes about as well.
MAIN_STEADY, MOST_STEADY = 0.65, 1000


def steps_of(level: int) -> int:
    """Of an effort from 1 to 9, each the same factor above the one below."""
    return round(FEWEST * math.pow(MOST_STEPS / FEWEST, (level - 1) / (LEVELS - 1)))


def for_pixels(steps: int, pixels: int) -> int:
    """Of an effort's steps, those of a picture of so many pixels; fewer are meant as they are."""
    if pixels <= LARGE:
        return steps + round(_smallness(pixels) * min(steps, MORE)) * (steps >= FEWEST)
    return math.ceil(steps * max(math.pow(LARGE / pixels, BY_LARGER), LEAST_SHARE))


def least_passes(steps: int, pixels: int) -> int:
    """Passes after a run of so many steps of a small picture, whatever its target is.

    Each makes a better file, so that without them what hits its target at once would be worse.
    """
    most = min(FIRST_PASSES, int(AGAIN / (SHORTER * max(steps, 1))))
    return round(_smallness(pixels) * most) * (steps >= FEWEST)


def _smallness(pixels: int) -> float:
    """From 1 of SMALLER pixels and fewer to 0 of SOME."""
    return max((SOME / max(pixels, SMALLER) - 1) / (SOME / SMALLER - 1), 0.0)


def starts_over(picture: Picture, wanted: Goal, workload: Workload, steps: int) -> bool:
    """Whether a run of so many is likely to be done once more, as those of few colours are."""
    may = _may_start_over(wanted, workload, steps, picture.width * picture.height)
    return may and is_graphic(picture.pixels, steps)


def _may_start_over(wanted: Goal, workload: Workload, steps: int, pixels: int) -> bool:
    """Whether a run of so many may be: for dB, without a limit, where a pass may have as many."""
    may = wanted.kind == "psnr" and workload.seconds is None
    return may and steps <= _most_of_pass(pixels)


def _most_of_pass(pixels: int) -> float:
    return min(PASS_STEPS_PIXELS / pixels, PASS_STEPS)


def workload(level: int | None, seconds: float | None) -> Workload:
    """Training of an effort from 1 to 9; of none, as much as takes the usual time.

    Raises UsageError.
    """
    if level is None:
        return Workload(0, seconds)
    if not 1 <= level <= LEVELS:
        raise UsageError(f"--effort is {level}", hint=f"use a whole number from 1 to {LEVELS}")
    return Workload(steps_of(level), seconds)


def work(picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice) -> Work:
    """What training for a target takes, about; just the usual time where that is chosen."""
    shape = height, width, _ = picture.pixels.shape
    hyper, more = beside_levels(picture, wanted, workload, device)
    place, pixels = Place(shape, device, is_short(shape, workload, device), more), height * width
    quick = is_quick(device, place.short)
    hidden, each = widths(shape, math.inf, quick), operations_of(shape, quick)
    trained = trained_steps(workload.steps, place)
    passes = _passes(wanted, least_passes(trained, pixels))
    opening = place.opening_steps(each)
    leaves = place.goes_over(trained, opening, each)
    parts = 1 if leaves else _parts(replace(place, short=place.short or opening > 0))
    hardening = _all_hardening(wanted, trained, passes, pixels, parts)
    runs = 1 + starts_over(picture, wanted, workload, trained)
    steps = (runs + passes * SHORTER) * trained + hardening
    programs = (place.step_program(hidden, hyper),)
    if not steps:
        return Work(0, 0, programs, USUAL)
    judged, before = pixels, float(opening)
    windows = place.in_windows
    if windows:
        judged, before = min(pixels, JUDGED), steps
    elif place.short or (opening and not leaves):
        before = steps
    computed = before * (place.covered if windows else place.opening_pixels)
    computed += (steps - before) * place.own_pixels
    interpreted = isinstance(device, NumpyDevice)
    files = runs + passes
    beside = steps * (NUMPY_BESIDE_STEP if interpreted else BESIDE_STEP[device.lanes])
    beside += files * (NUMPY_BESIDE_ROUNDING if interpreted else BESIDE_ROUNDING)
    searched = 0.0 if _goes_without(wanted, trained, pixels) else files
    looks = files * RDOQ_TIMES * rdoq_budget(trained, device.lanes).judged
    computed += searched * SETTLING * judged + looks * JUDGEMENT * pixels
    beside += looks * (LOOK_SECONDS + BY_PIXELS * pixels)
    beside += pixels * (CODING if has_processor(device) else CODING_BY_NUMPY)
    computed *= operations_of(shape, quick, more) * (NUMPY_SLOWER if interpreted else 1.0)
    return Work(steps, computed, programs, beside, _kind(windows))


def _kind(in_windows: bool) -> str:
    """Of steps that compute about as many operations a second."""
    return "latent step" + ", in windows" * in_windows


def _passes(wanted: Goal, least: int) -> float:
    """After a run, about."""
    return least if wanted.kind == "lambda" else min(max(least + 1, MOST / 4), MOST)


def trained_steps(steps: int, place: Place) -> int:
    """Of an effort's steps, those of a picture. A short run in many windows takes fewer: networks
    move with every window, and each step takes longer; but not those of thin pictures, where it
    costs more than it spares, nor of large ones, whose steps are quick."""
    pixels = place.shape[0] * place.shape[1]
    found = for_pixels(steps, pixels)
    windows = place.short and place.in_windows and not place.is_thin
    if not windows or (pixels > SMALL_PICTURE and is_quick(place.device, place.short)):
        return found
    return math.ceil(found * max(math.pow(place.windows, -BY_WINDOWS), LEAST_IN_WINDOWS))


def is_short(shape: tuple[int, ...], workload: Workload, device: AnyDevice) -> bool:
    """Whether compiling for a picture's size would take much of the time; not by how fast just this
    device is, so that files do not hang on that."""
    pixels, seconds, each = shape[0] * shape[1], workload.seconds, operations_of(shape)
    place = Place(shape, device)
    if seconds is None and workload.steps:
        steps = min(workload.steps, for_pixels(workload.steps, pixels))
        if place.begins_in_windows:
            return steps <= FEWEST
        return steps <= FEWEST or not place.own_room_pays(steps, each)
    seconds = seconds or USUAL
    expected = _expected(shape, seconds, device)
    hurried = seconds <= BRIEF and expected <= HURRIED
    return hurried and not (is_gpu(device) and place.own_room_pays(expected, each))


def is_long(shape: tuple[int, ...], workload: Workload, device: AnyDevice) -> bool:
    """Whether there are steps enough for hyperlatents."""
    return has_hyperlatents(shape, foreseen(shape, workload, device))


def extra_of(picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice) -> int:
    """How many more grids a picture has, if a limit leaves time to compile for them, which nobody
    may have needed before."""
    if workload.seconds is not None and workload.seconds < COMPILES:
        return 0
    steps = foreseen(picture.pixels.shape, workload, device)
    return extra_grids(picture.pixels, Lambdas(picture, wanted).first(), steps)


def beside_levels(
    picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice
) -> tuple[bool, int]:
    """Whether there are hyperlatents, and how many more grids; no model has both."""
    more = extra_of(picture, wanted, workload, device)
    return not more and is_long(picture.pixels.shape, workload, device), more


def foreseen(shape: tuple[int, ...], workload: Workload, device: AnyDevice) -> float:
    """Steps of a run, about; not by how fast just this device is."""
    if workload.seconds is not None or not workload.steps:
        return _expected(shape, workload.seconds or USUAL, device)
    return for_pixels(workload.steps, shape[0] * shape[1])


def _expected(shape: tuple[int, ...], seconds: float, device: AnyDevice) -> float:
    """Steps in so many seconds on a device of the middling kind."""
    return seconds * usual_speed(device) / (shape[0] * shape[1] * operations_of(shape))


class Lengths:
    """How many steps one run has, and until when it may go on."""

    def __init__(
        self, picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
    ) -> None:
        self.pixels = picture.width * picture.height
        self.picture, self.wanted, self.workload, self.run = picture, wanted, workload, run
        self.spent = 0.0  # seconds of the runs that were stopped
        self.pace = 0.0  # seconds that a step takes now, once it is known
        self.judging = 0.0  # seconds that judging networks takes, once it is known
        if run.saved is None:
            self.long, extra = beside_levels(picture, wanted, workload, device)
        else:
            saved = run.saved.values
            self.long, extra, self.spent = saved["long"], saved["extra"], saved["spent"]
            self.pace, self.judging = saved["pace"], saved["judging"]
        shape: tuple[int, ...] = picture.pixels.shape
        self.place = Place(shape, device, is_short(shape, workload, device), extra)
        # Steps of a program for many sizes that a run begins with which goes over to its own.
        self.opening = self.place.opening_steps(operations_of(shape))
        self.opened = False  # whether it is there now
        self.steady = False  # whether lambda of the run stays, though it goes towards dB
        self.limit: float | None = None  # of the clock
        self.rounding = 0.0  # seconds that the latest file took, once there is one
        self._compiled = CompileTimes(device)

    def values(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        spent = self.spent + time.perf_counter() - self.run.began
        own = {"pace": self.pace, "judging": self.judging, "spent": spent}
        return own | {"long": self.long, "extra": self.place.extra}

    def begin(self, opened: bool) -> None:
        """With a step; whether that is the program for many sizes, or goes on as it is."""
        self.opened = opened

    def go_over(self, pace: float) -> None:
        """To the picture's own program, of which a step takes so many seconds."""
        self.opened, self.pace = False, pace

    def note_pace(self, pace: float | None) -> None:
        """What steps took in the end, if that is known: others may have come or gone."""
        self.pace = pace or self.pace

    def note_rounding(self, seconds: float) -> None:
        """That the latest file took."""
        self.rounding = seconds

    def of(self, step: LatentStep, lmbda: float) -> int:
        """Steps of a run that begins with this one; says how long they take."""
        pace = self.pace = self._tried(step, lmbda)
        self._note_speed(step, pace)
        if self.workload.seconds is not None:
            steps, self.steady = self.fitting(self.workload.seconds, pace)
            if steps < TOO_FEW:
                needed = self._seconds(TOO_FEW, pace) + self._checking(pace)
                self.run.say(f"too little time for this picture: {duration(needed)} would do")
        elif self.workload.steps:
            steps = self._trained(self.workload.steps)
        else:
            every = {n: self._trained(steps_of(n)) for n in range(1, LEVELS + 1)}
            level = max((n for n in every if self._seconds(every[n], pace) <= LONGEST), default=1)
            steps = every[level]
            self.run.say(f"effort {level} of {LEVELS}, as it suits this device; --effort decides")
        if self.workload.seconds is None:
            self.steady = self._is_steady(steps)
        again = self.least_passes(steps)
        times = "once" if again == 1 else f"{again} times"
        more = f" and {times} {round(SHORTER * steps):,} again" if again else ""
        time_left = duration(self._told(steps, pace))
        self.run.say(f"{steps:,} steps{more}, about {time_left} from here")
        return steps

    def _note_speed(self, step: LatentStep, pace: float) -> None:
        """How fast a GPU is, which nothing tells before it has compiled, nor do small pictures."""
        shape, extra = self.place.shape, self.place.extra
        pixels = math.prod(step.room or shape[:2]) * len(step.windows)
        computed = pixels * operations_of(shape, extra=extra)
        if is_gpu(self.place.device) and computed >= TELLING:
            self._compiled.note_speed(_kind(len(step.windows) > 1), computed / pace)

    def limits(self, state: LatentTrainerState) -> tuple[float | None, int]:
        """Of the clock, when training must be done, and most steps in that time, if it is given."""
        seconds = self.workload.seconds
        if seconds is None:
            return None, 0
        training, rounding = self._in_limited_time(state.steps)
        self.limit = self.run.began + seconds - self.spent - self._checking(self.pace)
        if self.run.saved is None:
            now = time.perf_counter()
            self.limit = max(self.limit, now + training + rounding)
        return self.limit - rounding, MOST_STEPS if self.wanted.kind == "lambda" else state.steps

    def _in_limited_time(self, steps: int) -> tuple[float, float]:
        """Seconds that so many steps take, and those in which their networks are rounded."""
        training = steps * self._mean_pace(steps, self.pace)
        hardening = self._hardening(steps) * self.pace
        both = training + hardening
        looking = self._search(steps) + self._rdoq(steps, self.pace)
        rounding = min(looking, SETTLED / (1 - SETTLED) * both)
        single = self._single(steps)
        rounding += single / (1 - single) * both + hardening
        if self.wanted.kind == "bytes":
            rounding += min(len(SHAVING_DOUBLINGS) * SHAVES * self.judging / 2, SINGLE * both)
        return training, rounding

    def again(self, usual: int, longer: float = 1.0) -> int:
        """Steps of another pass: so many times as many as usual, or what a limit leaves time for; 0
        where that is too little."""
        until, wanted = self.until(), round(longer * usual)
        if until is None:
            return wanted
        fitting = int((until - time.perf_counter()) / self.pace)
        return min(wanted, fitting) if fitting >= max(LEAST_AGAIN * usual, 1) else 0

    def longest(self, usual: int) -> float:
        """How many times as many steps as usual a pass may have."""
        return max(_most_of_pass(self.pixels) / usual, 1.0)

    def may_start_over(self, steps: int) -> bool:
        """Whether a run of so many may be done once more."""
        return _may_start_over(self.wanted, self.workload, steps, self.pixels)

    def until(self) -> float | None:
        """Of the clock, when another pass must be done for a file like the latest to be made."""
        return None if self.limit is None else self.limit - SOONER * self.rounding

    def refining(self, steps: int, first: int, to_come: int) -> Refining:
        """What is done after so many steps of a run or a pass, of a run that had `first`, with so
        many passes to come in any case."""
        return Refining(
            trials=MOST_TRIALS if to_come <= LAST_PASSES else FIRST_TRIALS,
            hardening=self.hardening(steps),
            searching=self.searching(steps),
            shaving=self.limit is not None,
            budget=rdoq_budget(first, self.place.device.lanes),
        )

    def hardening(self, steps: int) -> int:
        """Steps in which networks harden after so many of a run or a pass."""
        found = self._hardening(steps)
        if self.limit is None:
            return found
        share = HARDENED if self.wanted.kind == "lambda" else HARDENED_TOWARDS
        looking = self._search(steps) + self._rdoq(steps, self.pace)
        left = self.limit - time.perf_counter() - looking
        return max(0, min(found, int(share * left / self.pace)))

    def searching(self, steps: int) -> bool:
        """Whether the steps of networks are searched for, after so many steps of a run."""
        return not _goes_without(self.wanted, steps, self.pixels)

    def least_passes(self, steps: int) -> int:
        """After so many steps, whether they are needed or not."""
        return least_passes(steps, self.pixels) if self.workload.seconds is None else 0

    def goes_over(self, steps: int) -> bool:
        """Whether a run of so many does, from where it is."""
        each = operations_of(self.place.shape)
        return self.opened and self.place.goes_over(steps, self.opening, each)

    def fitting(self, seconds: float, pace: float) -> tuple[int, bool]:
        """Steps that a time limit leaves room for, or what there must be; and whether lambda
        stays in them."""
        left = self.run.began + seconds - self._checking(pace) - time.perf_counter()
        steps = self.fitting_in(MAIN_STEADY * left, pace)
        steady = self._is_steady(steps)
        if not steady:
            steps = self.fitting_in(MAIN[self.wanted.kind] * left, pace)
        least = max(FEWEST_LIMITED, int(AT_LEAST * seconds / pace))
        steps = max(steps, least)
        if self.goes_over(steps):
            steps = self.opening + int((steps - self.opening) * pace / self._own_pace(pace))
        return min(steps, MOST_STEPS), steady

    def _is_steady(self, steps: int) -> bool:
        few = steps <= MOST_STEADY or self.may_start_over(steps)
        return self.wanted.kind == "psnr" and few and is_graphic(self.picture.pixels, steps)

    def fitting_in(self, room: float, pace: float) -> int:
        """Steps of which so many seconds leave time, with all that follows them."""
        before, steps = 0, int(room / pace)
        for _ in range(ROUNDS):
            before, steps = steps, self._in(room, steps, pace)
        return min(before, steps)  # which go up and down where a longer run takes a search

    def _in(self, room: float, steps: int, pace: float) -> int:
        """Steps of which so many seconds leave time, with what follows about so many."""
        room -= min(self._search(steps) + self._rdoq(steps, pace), SETTLED * room)
        hardening = self._hardening(steps) / max(steps, 1)
        return int((1 - self._single(steps)) * room / (pace * (1 + hardening)))

    def _own_pace(self, pace: float) -> float:
        """Seconds of a step after the opening, of which one in it takes `pace`, about."""
        fixed = min(FIXED[self.place.device.lanes], pace)
        share = self.place.own_pixels / self.place.opening_pixels
        return fixed + share * (pace - fixed)

    def _mean_pace(self, steps: int, pace: float) -> float:
        """Seconds of each of so many steps, of which one at the beginning takes `pace`."""
        if not self.goes_over(steps):
            return pace
        later = (steps - self.opening) * self._own_pace(pace)
        return (self.opening * pace + later) / steps

    def _trained(self, steps: int) -> int:
        return trained_steps(steps, self.place)

    def _tried(self, step: LatentStep, lmbda: float) -> float:
        """Seconds that a step takes; tried, and undone. What training needs is compiled then."""
        step.judge(step.flat.numpy())
        step.steer(control(0, MOST_STEPS, lmbda))
        decides = self.workload.seconds is not None or not self.workload.steps
        pace = step.pace(TRIED if decides else TRIED_BRIEFLY)
        began = time.perf_counter()
        step.judge(step.flat.numpy())
        self.judging = time.perf_counter() - began
        quick = is_quick(self.place.device, self.place.short)
        hidden = widths(self.place.shape, math.inf, quick)
        self._compiled.note(self.place.step_program(hidden, self.long))
        return pace

    def _hardening(self, steps: int) -> int:
        return _hardening(self.wanted, steps, self.pixels, self._parts(steps))

    def _parts(self, steps: int) -> int:
        """With how many parts of a picture networks move in each of so many steps, in the end."""
        stays = self.opened and not self.goes_over(steps)
        return _parts(replace(self.place, short=self.place.short or stays))

    def _search(self, steps: int) -> float:
        """Seconds of the search for rounded networks after so many."""
        return JUDGED_IN_SEARCH * self.judging if self.searching(steps) else 0.0

    def _rdoq(self, steps: int, pace: float) -> float:
        """Seconds that looking for better latents takes after so many."""
        budget = rdoq_budget(steps, self.place.device.lanes)
        parts = self.pixels / JUDGED if self._parts(steps) > 1 else 1.0
        judging = self.judging * max(parts, 1.0)  # of all windows, not of some that stand for them
        looks = budget.judged * (judging + LOOK_SECONDS + BY_PIXELS * self.pixels)
        return RDOQ_TIMES * (looks + budget.sweeps * pace)

    def _single(self, steps: int) -> float:
        """Share of a limited time for single weights."""
        return min(SINGLE, TRIAL * trials(steps, self.pixels) / max(steps, 1))

    def _checking(self, pace: float) -> float:
        """Seconds that writing a file and decoding it take."""
        coding = CODING if has_processor(self.place.device) else CODING_BY_NUMPY
        return CHECKING * pace + coding * self.pixels + STARTING

    def _told(self, steps: int, pace: float) -> float:
        """Seconds that so many steps and what follows take: of a limit what is left, at most, or
        what is done even where too little is."""
        found = self._seconds(steps, pace)
        if self.workload.seconds is None:
            return found
        left = self.run.began + self.workload.seconds - time.perf_counter()
        most = max(left, sum(self._in_limited_time(steps)))
        return most if self.steady else min(found, most)  # whose passes take what there is

    def _seconds(self, steps: int, pace: float) -> float:
        pace = self._mean_pace(steps, pace)
        passes = _passes(self.wanted, self.least_passes(steps))
        runs = 1 + starts_over(self.picture, self.wanted, self.workload, steps)
        trained = (runs + passes * SHORTER) * steps
        last = LAST_PASSES + passes - self.least_passes(steps)
        refined = min(passes, last) + 1  # the others move few single weights
        most = trials(steps, self.pixels)
        moved = refined * most + (1 + passes - refined) * min(FIRST_TRIALS, most)
        parts = self._parts(steps)
        trained += _all_hardening(self.wanted, steps, passes, self.pixels, parts)
        rounding = self._search(steps) + self._rdoq(steps, pace)
        return (trained + TRIAL * moved) * pace + (runs + passes) * rounding


def rdoq_budget(steps: int, lanes: str) -> Budget:
    """How long better latents are looked for after a run of so many, and after its passes."""
    most = max((least for least in RDOQ[lanes] if steps >= least), default=None)
    return NO_BUDGET if most is None else RDOQ[lanes][most]


def _parts(place: Place) -> int:
    """With how many parts of a picture networks move in a step."""
    return place.windows if place.in_windows else 1


def _goes_without(wanted: Goal, steps: int, pixels: int) -> bool:
    """Whether the steps of networks are not searched for."""
    hardens = _hardening(wanted, steps, pixels, 1) > 0
    return _may_go_without(wanted, pixels) and hardens and round(HARDENING * steps) < FEW_HARDENING


def _may_go_without(wanted: Goal, pixels: int) -> bool:
    """Whether that would take longer than a few steps in which they harden."""
    return wanted.kind == "lambda" and pixels <= JUDGED


def _all_hardening(wanted: Goal, steps: int, passes: float, pixels: int, parts: int) -> float:
    """Steps of it after a run of so many, and after each of its passes."""
    again = _hardening(wanted, round(SHORTER * steps), pixels, parts)
    return _hardening(wanted, steps, pixels, parts) + passes * again


def _hardening(wanted: Goal, steps: int, pixels: int, parts: int) -> int:
    shortest = SHORTEST if _may_go_without(wanted, pixels) else SHORTEST_SEARCHED
    if steps < shortest or pixels < HARDLY:
        return 0
    times = AS_WHOLE if parts == 1 else 1
    least = min(times * LEAST_HARDENING, round(OF_SHORT * steps))
    return min(max(round(times * HARDENING * steps), least), MOST_HARDENING)
