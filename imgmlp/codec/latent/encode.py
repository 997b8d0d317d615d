"""From a picture to the sections of an .imlp file: train, round and code a latent model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import metadata_sections
from imgmlp.codec.latent.model import ModelShape, newest_start
from imgmlp.codec.latent.rounding_search import Rounding, Written
from imgmlp.codec.latent.training_phases import (
    FEWEST,
    HURRIED,
    LEVELS,
    MOST_STEPS,
    SHORTER,
    LatentTrainer,
    LatentTrainerState,
    begin,
    control,
    for_pixels,
    least_passes,
    steps_of,
)
from imgmlp.codec.latent.training_step import LatentStep
from imgmlp.codec.latent.windows import (
    JUDGED,
    MEANWHILE,
    WORTH,
    WindowedStep,
    begins_in_windows,
    covered,
    fits_windows,
    in_windows,
    room,
    room_compiler,
    step_program,
    steps_in_windows,
    windows_of,
)
from imgmlp.codec.training.checkpoint import Snapshot
from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.codec.training.draft import Draft, draft
from imgmlp.codec.training.memory_limits import explain, smaller_picture, within_memory
from imgmlp.codec.training.pace import Work, usual_speed
from imgmlp.codec.training.passes import AIM, MOST, Passes
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.codec.training.trainer import Ended, Pricing
from imgmlp.engine import AnyDevice
from imgmlp.errors import OutOfMemoryError, UsageError
from imgmlp.image import Picture, counted

Array = np.ndarray[Any, Any]

SEED = 0
WINDOWS = "in windows"  # a form of the step
TOO_FEW = 30  # below which latents are far from what they can be
# Steps that are trained even where the time limit leaves no room for them: a share of its time,
# where something had to be compiled, and so many in all.
AT_LEAST, FEWEST_LIMITED = 0.25, 10
# Of the steps of a short run, by a power of how many windows there are, and at least.
BY_WINDOWS, LEAST_IN_WINDOWS = 0.24, 0.65
BRIEF = 60.0  # seconds of a limit up to which a program should serve pictures of any size
USUAL, LONGEST = 20.0, 25.0  # seconds that an encode should take if nobody says how long, and may
SETTLING = 50  # steps that take as long as the search for rounded networks
SETTLED = 1 / 6  # of a limited time, at most, for that search
REFINING, REFINED = 0.2, 2000  # share of the steps, and most, whose time goes to single weights
ABOVE = 0.05  # dB more than wanted that training aims at, as taking some away is easy
SLOW = 1.3  # times the price for every dB too much, each time that it is looked at
# Of the error that a quality means, what a bit a pixel saves at least: were every sample of three
# worth bits, ln 4 / 3 of it. What is trained too little may look as if less would do.
A_BIT = 0.4
# Seconds of steps by which their pace is found, and where it decides nothing.
TRIED, TRIED_BRIEFLY = 0.15, 0.03
# What writing a file and decoding it takes: the time of so many steps, and seconds, of every pixel,
# whose latents are coded one by one, and of any picture.
CHECKING, CODING, STARTING = 5, 1.5e-6, 0.7
MAIN = 0.75  # of the time, if there may be more than one pass
SMALL_PARTS = 8_000  # operations of a pixel in a step, of what is no layer, by the time they take
OVERHEAD = 40  # bytes of a file beside weights and latents
WEIGHT_BITS = 7.0  # of a rounded weight
SHARE = 0.3  # of the bytes wanted that networks may have at most
# (samples of a picture, widths of the hidden layers of synthesis and of the entropy network)
WIDTHS = ((100_000, (16, 12)), (2**62, (32, 24)))


def workload(level: int | None, seconds: float | None) -> Workload:
    """Training of an effort from 1 to 9; of none, as much as takes the usual time.

    Raises UsageError.
    """
    if level is None:
        return Workload(0, seconds)
    if not 1 <= level <= LEVELS:
        raise UsageError(f"--effort is {level}", hint=f"use a whole number from 1 to {LEVELS}")
    return Workload(steps_of(level), seconds)


def encode(
    picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
) -> Draft:
    """Train a latent model on a picture, round it and code it.

    A run that was stopped goes on where it was. Raises Interrupted once the state is saved, if
    `run` is asked to stop.
    """
    return _Encoder(picture, wanted, workload, device, run).encode()


def work(picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice) -> Work:
    """What training for a target takes, about; just the usual time where that is chosen."""
    shape = height, width, _ = picture.pixels.shape
    hidden, pixels = widths(shape, math.inf), height * width
    each, short = _operations(shape), _is_short(shape, workload, device)
    trained = _trained(workload.steps, shape, device, short)
    passes = _passes(wanted, least_passes(trained, pixels))
    steps = (1 + passes * SHORTER) * trained
    programs = (step_program(shape, hidden, device, short),)
    if not steps:
        return Work(0, 0, programs, USUAL)
    judged, windowed = pixels, float(steps_in_windows(shape, device, short, each))
    if in_windows(shape, device, short):
        judged, windowed = min(pixels, JUDGED), steps
    elif trained < WORTH * windowed:
        windowed = steps
    computed = windowed * covered(shape, device) + (steps - windowed) * pixels
    return Work(steps, (computed + (1 + passes) * SETTLING * judged) * each, programs)


def _passes(wanted: Goal, least: int) -> float:
    """After a run, about."""
    return least if wanted.kind == "lambda" else max(least + 1, MOST / 4)


def _trained(steps: int, shape: tuple[int, ...], device: AnyDevice, short: bool) -> int:
    """Of an effort's steps, those of a picture. A short run in many windows takes fewer: networks
    move with every window, and each step takes longer."""
    found = for_pixels(steps, shape[0] * shape[1])
    if not (short and in_windows(shape, device, short)):
        return found
    return math.ceil(
        found * max(math.pow(windows_of(shape, device), -BY_WINDOWS), LEAST_IN_WINDOWS)
    )


def _operations(shape: tuple[int, ...]) -> int:
    """Of a pixel in a step."""
    return 6 * _weights(widths(shape, math.inf), shape[2]) + SMALL_PARTS


def _is_short(shape: tuple[int, ...], workload: Workload, device: AnyDevice) -> bool:
    """Whether compiling for a picture's size would take much of the time; not by how fast just this
    device is, so that files do not hang on that."""
    pixels, seconds, each = shape[0] * shape[1], workload.seconds, _operations(shape)
    if seconds is None and workload.steps:
        steps = min(workload.steps, for_pixels(workload.steps, pixels))
        shared = room(shape, device, True) or shape[:2]
        few = steps * math.prod(shared) * each < WORTH * MEANWHILE
        return steps <= FEWEST or (few and not begins_in_windows(shape, device))
    seconds = seconds or USUAL
    expected = seconds * usual_speed(device) / (pixels * each)
    return seconds <= BRIEF and expected <= HURRIED


class _Encoder:
    """One training towards one target with one picture."""

    def __init__(
        self, picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
    ) -> None:
        self.picture, self.wanted, self.device = picture, wanted, device
        self.workload, self.run = workload, run
        self.samples = picture.width * picture.height
        shape = picture.pixels.shape
        self.short = _is_short(shape, workload, device)
        self.opening = steps_in_windows(shape, device, self.short, _operations(shape))
        self.compiled = CompileTimes(device)
        self.limit: float | None = None  # of the clock
        self.settling: float = SETTLING
        self.pace = 0.0  # seconds that a step takes now, once it is known
        self.resumed = 0
        self.form = ""  # of the step
        self.passes = Passes(wanted)
        self.best: Draft | None = None  # of the passes

    def encode(self) -> Draft:
        trainer = self._begun()
        while True:
            ended = self._train(trainer)
            if ended == "interrupted":
                raise self.run.interrupted(trainer.reached())
            snapshot = trainer.snapshot()
            if self.run.due(True):  # what follows may be stopped as well
                self.run.keep(self._complete(snapshot))
            found, first = self._rounded(trainer)
            if self.best is None or self._distance(found) < self._distance(self.best):
                self.best = found
            self.passes.add(trainer.state.price, first)
            over = ended == "diverged" or self._is_over(trainer.again * self.pace)
            if over or self.passes.enough(len(found.bytes), found.metrics["psnr"], first):
                return replace(self.best, diverged=ended == "diverged", resumed=self.resumed)
            trainer.step.restore(snapshot.arrays)  # which rounding has changed
            trainer.repeat(self.passes.price())

    def _begun(self) -> LatentTrainer:
        step = within_memory(self._step, partial(too_large, self.picture.pixels, self.device))
        self.settling = SETTLING * (1.0 if self.opening else step.sampled)
        return self._trainer(step)

    def _train(self, trainer: LatentTrainer) -> Ended:
        """A pass, which may begin in windows and go over to the whole picture."""
        if trainer.pause is None:
            return self._replayed(trainer)
        with room_compiler(trainer.step, self._shared_room()) as compiler:
            while True:
                ended = self._replayed(trainer)
                if ended != "done" or not trainer.paused:
                    return ended
                if compiler.working and self.limit is None:
                    self.run.say("still compiling for pictures of this size")
                    compiler.wait(self.run.stopping)
                if self.run.stopping():
                    if self.run.due(True):
                        self.run.keep(self._complete(trainer.snapshot()))
                    return "interrupted"
                if compiler.done or self.limit is None:
                    break
                trainer.go_on()  # as a limit leaves no time to wait
        self._go_over(trainer)
        return self._replayed(trainer)

    def _replayed(self, trainer: LatentTrainer) -> Ended:
        ended = trainer.run(self.run, self._complete)
        self.pace = trainer.pace or self.pace  # others may have come or gone
        return ended

    def _go_over(self, trainer: LatentTrainer) -> None:
        """To the whole picture, where there is memory for it."""
        reached = trainer.step
        assert isinstance(reached, WindowedStep)
        step = self._built(self._whole_forms() | {WINDOWS: lambda: reached})
        if step is reached:
            trainer.pause = None
            return
        anew = self._anew(step, trainer.state.first)
        step.restore(reached.as_whole(step))
        step.steer(control(0, MOST_STEPS, self._first_price()))
        self.pace = step.pace(TRIED_BRIEFLY)
        trainer.go_over(step, anew)

    def _rounded(self, trainer: LatentTrainer) -> tuple[Draft, Written]:
        """The file of a trained step, and the one that was not changed for the target."""

        began = time.perf_counter()

        def enough(share: float) -> bool:
            if self.run.stopping():
                raise self.run.interrupted(trainer.reached())
            if self.limit is None:
                return False
            return time.perf_counter() > began + share * (self.limit - began)

        made = self.picture, self.wanted, trainer.step, self.device
        found, first = Rounding(*made, trainer.state.exponents, enough).best(trainer.state.price)
        networks = first.model.networks  # another pass begins near to these
        trainer.state.exponents = {name: tensor.exponent for name, tensor in networks.items()}
        return self._draft(found, trainer), first

    def _distance(self, found: Draft) -> tuple[bool, float]:
        """The smaller, the better a file is; by D + lambda R, where that is what is wanted."""
        if self.wanted.kind != "lambda":
            return found.distance(self.wanted)
        error = math.pow(10, -found.metrics["psnr"] / 10) * counted(self.picture.pixels)
        return False, error + self.wanted.value * found.metrics["bpp"]

    def _is_over(self, taken: float) -> bool:
        """Whether there is no time for so many seconds."""
        return self.limit is not None and time.perf_counter() + taken > self.limit

    def _complete(self, snapshot: Snapshot) -> Snapshot:
        """A trainer's snapshot with that of the passes before it."""
        values: dict[str, Any] = {"tried": self.passes.tried, "pace": self.pace, "best": None}
        values["form"] = self.form
        arrays: dict[str, Array] = {}
        if self.best is not None:
            values["best"] = self.best.metrics
            arrays["best_file"] = np.frombuffer(self.best.bytes, np.uint8)
        return Snapshot(snapshot.arrays | arrays, snapshot.values | values)

    # --- the training ---

    def _step(self) -> LatentStep:
        forms = self._forms()
        if self.run.saved is not None:  # whose arrays are of one form
            form = self.run.saved.values["form"]
            return self._built({form: forms[form]})
        return self._built({WINDOWS: forms[WINDOWS]} if self.opening else forms)

    def _built(self, forms: dict[str, Callable[[], LatentStep]]) -> LatentStep:
        """The first for which there is memory; each takes more than the next one."""
        *larger, last = forms
        for self.form in larger:
            try:
                return forms[self.form]()
            except OutOfMemoryError:
                if self.device.lost:
                    raise
        self.form = last
        return forms[last]()

    def _forms(self) -> dict[str, Callable[[], LatentStep]]:
        """What may be trained, by the name that a checkpoint has for it."""
        shape, found = self.picture.pixels.shape, dict[str, Callable[[], LatentStep]]()
        if not in_windows(shape, self.device, self.short):
            found = self._whole_forms()
        if fits_windows(shape, self.device):
            found[WINDOWS] = self._windowed_step
        return found

    def _whole_forms(self) -> dict[str, Callable[[], LatentStep]]:
        found: dict[str, Callable[[], LatentStep]] = {"whole": partial(self._whole_step, None)}
        if shared := self._shared_room():
            found = {"in a room": partial(self._whole_step, shared)} | found
        return found

    def _shared_room(self) -> tuple[int, int] | None:
        return room(self.picture.pixels.shape, self.device, self.short)

    def _whole_step(self, room: tuple[int, int] | None) -> LatentStep:
        pixels, (hidden, entropy) = self.picture.pixels, self._widths()
        return LatentStep(
            pixels, SEED, self.device, hidden=hidden, entropy=entropy,
            start=newest_start((hidden, entropy)), room=room,
        )  # fmt: skip

    def _windowed_step(self) -> LatentStep:
        pixels, (hidden, entropy) = self.picture.pixels, self._widths()
        return WindowedStep(
            pixels, SEED, self.device, hidden, entropy, newest_start((hidden, entropy))
        )

    def _widths(self) -> tuple[int, int]:
        return widths(self.picture.pixels.shape, self._most_weights())

    def _most_weights(self) -> float:
        """That the bytes wanted leave room for."""
        if self.wanted.kind != "bytes":
            return math.inf
        return 8 * SHARE * self._room() / WEIGHT_BITS

    def _room(self) -> float:
        """Bytes for weights and latents, of those wanted."""
        beside = OVERHEAD + metadata_sections.size(self.picture.metadata)
        return max(self.wanted.value - beside, 1 / 8)

    def _trainer(self, step: LatentStep) -> LatentTrainer:
        """At its beginning, or where a checkpoint left it."""
        saved = self.run.saved
        if saved is None:
            state = LatentTrainerState(self._steps(step), self._first_price())
        else:
            state = LatentTrainerState.of(saved.values)
        first = state.first or state.steps
        anew = self._anew(step, first)
        begin(step, self.picture.pixels, self._first_price(), first)
        self.passes.least = self._least(first)
        if saved is not None:
            step.restore(saved.arrays)
            self.resumed = step.done
            self.passes.tried, self.pace = saved.values["tried"], saved.values["pace"]
            if saved.values["best"] is not None:
                self.best = Draft(saved.arrays["best_file"].tobytes(), saved.values["best"])
        limits = self._limits(state)
        pricing, cheapest = self._pricing(), self._cheapest_price()
        trainer = LatentTrainer(step, state, pricing, *limits, anew, cheapest)
        if self.opening and self.form == WINDOWS:
            trainer.pause_after(self.opening, WORTH)
        if saved is None:
            trainer.suit()
        else:
            self.run.say(f"continuing after {trainer.reached()}")
        return trainer

    def _anew(self, step: LatentStep, steps: int) -> Callable[[float], None] | None:
        """What brings a step that was just made back to its beginning, for a price; nothing does
        where that stays as it is."""
        if self.wanted.kind == "lambda":
            return None
        made = step.state()

        def again(price: float) -> None:
            step.restore(made)
            begin(step, self.picture.pixels, price, steps)

        return again

    # --- how long ---

    def _limits(self, state: LatentTrainerState) -> tuple[float | None, int]:
        """Of the clock, when training must be done, and most steps in that time, if it is given."""
        seconds = self.workload.seconds
        if seconds is None:
            return None, 0
        pace = self._mean_pace(state.steps, self.pace)
        settling = pace * min(self.settling, SETTLED / (1 - SETTLED) * state.steps)
        self.limit = self.run.began + seconds - state.seconds - self._checking(self.pace)
        if self.run.saved is None:
            now = time.perf_counter()
            self.limit = max(self.limit, now + state.steps * pace + settling)
        return self.limit - settling, MOST_STEPS if self.wanted.kind == "lambda" else 0

    def _fitting(self, seconds: float, pace: float) -> int:
        """Steps that a time limit leaves room for, or what there must be."""
        share = 1.0 if self.wanted.kind == "lambda" else MAIN
        left = self.run.began + seconds - self._checking(pace) - time.perf_counter()
        room = share * left / pace
        room -= min(self.settling, SETTLED * room)
        refining = max(0.0, room - FEWEST) * REFINING / (1 + REFINING)
        steps = int(room - min(refining, REFINED))
        least = max(FEWEST_LIMITED, int(AT_LEAST * seconds / pace))
        steps = max(steps, least)
        if self._goes_over(steps):
            steps = self.opening + int((steps - self.opening) / self._share_of_windows())
        return min(steps, MOST_STEPS)

    def _goes_over(self, steps: int) -> bool:
        """Whether a run of so many goes on as the whole picture."""
        return self.form == WINDOWS and 0 < WORTH * self.opening <= steps

    def _share_of_windows(self) -> float:
        """What a step of the whole picture takes, of one in windows, about."""
        return self.samples / covered(self.picture.pixels.shape, self.device)

    def _mean_pace(self, steps: int, pace: float) -> float:
        """Seconds of each of so many steps, of which one at the beginning takes `pace`."""
        if not self._goes_over(steps):
            return pace
        whole = (steps - self.opening) * self._share_of_windows()
        return pace * (self.opening + whole) / steps

    def _steps(self, step: LatentStep) -> int:
        """How many to train; says how long that takes."""
        self.pace = pace = self._pace(step)
        if self.workload.seconds is not None:
            steps = self._fitting(self.workload.seconds, pace)
            if steps < TOO_FEW:
                needed = self._seconds(TOO_FEW, pace) + self._checking(pace)
                text = f"too little time for this picture: {needed:,.0f} seconds would do"
                self.run.say(text)
        elif self.workload.steps:
            steps = self._trained(self.workload.steps)
        else:
            every = {n: self._trained(steps_of(n)) for n in range(1, LEVELS + 1)}
            level = max((n for n in every if self._seconds(every[n], pace) <= LONGEST), default=1)
            steps = every[level]
            self.run.say(f"effort {level} of {LEVELS}, as it suits this device; --effort decides")
        self.run.say(f"{steps:,} steps, about {self._seconds(steps, pace):,.0f} seconds")
        return steps

    def _trained(self, steps: int) -> int:
        return _trained(steps, self.picture.pixels.shape, self.device, self.short)

    def _pace(self, step: LatentStep) -> float:
        """Seconds that a step takes; tried, and undone. What training needs is compiled then."""
        step.judge(step.flat.numpy())
        step.steer(control(0, MOST_STEPS, self._first_price()))
        decides = self.workload.seconds is not None or not self.workload.steps
        pace = step.pace(TRIED if decides else TRIED_BRIEFLY)
        shape = self.picture.pixels.shape
        hidden = widths(shape, math.inf)
        self.compiled.note(step_program(shape, hidden, self.device, self.short))
        return pace

    def _checking(self, pace: float) -> float:
        """Seconds that writing a file and decoding it take."""
        return CHECKING * pace + CODING * self.samples + STARTING

    def _seconds(self, steps: int, pace: float) -> float:
        pace = self._mean_pace(steps, pace)
        passes = _passes(self.wanted, self._least(steps))
        trained = (1 + passes * SHORTER) * steps
        rounding = min(REFINING * steps, REFINED) + self.settling
        return (trained + (1 + passes) * rounding) * pace

    def _least(self, steps: int) -> int:
        """Passes after so many steps, whether they are needed or not."""
        return least_passes(steps, self.samples) if self.workload.seconds is None else 0

    # --- the price of bits ---

    def _first_price(self) -> float:
        """What pictures of the middling kind need; training goes on from there."""
        value = self.wanted.value
        if self.wanted.kind == "lambda":
            return value
        if self.wanted.kind == "psnr":
            return min(1.2 * math.pow(10, -value / 10), 1.0)
        rate = 8 * self._room() / self.samples
        return min(max(8e-4 * math.pow(rate, -1.6), 1e-6), 1.0)

    def _cheapest_price(self) -> float:
        """Below which no run needs to look for its target."""
        if self.wanted.kind != "psnr":
            return 0.0
        return A_BIT * math.pow(10, -self.wanted.value / 10)

    def _pricing(self) -> Pricing | None:
        value = self.wanted.value
        if self.wanted.kind == "lambda":
            return None
        if self.wanted.kind == "psnr":
            return lambda _, quality: SLOW ** (quality - value - ABOVE)
        whole = max(8 * (self._room() - (1 - AIM) * value), 1.0)
        return lambda bits, _: bits / whole

    # --- the result ---

    def _draft(self, found: Written, trainer: LatentTrainer) -> Draft:
        shape = found.model.shape
        parts = dict(zip(("header", "networks", "latents"), found.sections, strict=True))
        own = {
            "lambda": trainer.state.price,
            "network": _described(shape),
            "parameters": sum(int(np.prod(size)) for size in shape.tensors.values()),
            "network_bytes": len(parts["header"].data) + len(parts["networks"].data),
            "latent_bytes": len(parts["latents"].data),
            "steps": trainer.state.steps,
            "seconds": trainer.state.seconds,
        }
        made = draft(self.picture, self.wanted, "latent", found.sections, found.pixels, own)
        return replace(made, decode=partial(found.read_back, self.device))


def widths(shape: tuple[int, ...], most: float) -> tuple[int, int]:
    """Of the hidden layers of synthesis and of the entropy network, for pixels of a shape.

    Small pictures have no room for large networks, and few bytes none for more than `most` weights.
    """
    height, width, channels = shape
    fitting = next(number for number, (size, _) in enumerate(WIDTHS) if height * width <= size)
    while fitting > 0 and _weights(WIDTHS[fitting][1], channels) > most:
        fitting -= 1
    return WIDTHS[fitting][1]


def _weights(hidden: tuple[int, int], channels: int) -> int:
    shape = ModelShape(64, 64, channels, 7, *hidden)
    return sum(int(np.prod(size)) for size in shape.tensors.values())


def _described(shape: ModelShape) -> str:
    s, e = shape.synthesis, shape.entropy
    synthesis = f"{shape.inputs}-{s}-{s}-{shape.channels}"
    return f"{synthesis}, {shape.neighbours}-{e}-{e}-2"


def too_large(pixels: Array, device: AnyDevice, error: OutOfMemoryError) -> OutOfMemoryError:
    """What to say where the step does not fit in a device's memory, and which picture would."""
    height, width, channels = pixels.shape

    def build(width: int, height: int, device: AnyDevice) -> LatentStep:
        pixels = np.zeros((height, width, channels), np.uint8)
        hidden, entropy = widths(pixels.shape, math.inf)
        if fits_windows(pixels.shape, device):  # which were tried last
            return WindowedStep(pixels, SEED, device, hidden, entropy, 0)
        return LatentStep(pixels, SEED, device, hidden=hidden, entropy=entropy)

    what = f"training a latent model of {width}×{height} pixels"
    ways = (smaller_picture(width, height, build),)
    return explain(error, what, device, partial(build, width, height), ways)
