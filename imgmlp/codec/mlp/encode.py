"""From a picture to the sections of an .imlp file: train, round and code a network for a target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.mlp import rate_model, rooms
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.opening import SEED, opened
from imgmlp.codec.mlp.qat_step import BATCH, LearningStep, too_large
from imgmlp.codec.mlp.rounding_search import FINE, Rounding, Trial, paid_weights
from imgmlp.codec.mlp.size_search import LEAST, PILOT_RATE, PILOTS, SizeSearch, pilot_weights
from imgmlp.codec.mlp.training_phases import MlpTrainer, MlpTrainerState
from imgmlp.codec.training.checkpoint import Snapshot
from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.codec.training.draft import Draft, draft
from imgmlp.codec.training.memory_limits import within_memory
from imgmlp.codec.training.pace import Work, usual_speed
from imgmlp.codec.training.replay import decibels, mean_loss, seconds_a_step
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import STEPS, TOLERANCE, Goal, Kind, Workload
from imgmlp.codec.training.trainer import Ended
from imgmlp.engine import AnyDevice
from imgmlp.image import Picture

Array = np.ndarray[Any, Any]

AIM = 0.99  # of the bytes wanted
ATTEMPTS, MOST_ATTEMPTS = 4, 6  # networks that are tried for a quality; more if none came near
NEAR = 1.05  # times the bytes that the quality seems to need, which a file may have
PILOT = 10  # a run's steps for each step of a short one that shows how hard a picture is
LEAST_PILOT = 1_500  # steps: after fewer little can be said of many
PILOT_LIMITED = 6  # times fewer than a run's they are, at least, where the time is limited
ONE_SHORT = 0.2  # of the time left, at most, that of a short run
SEEN = 55  # pixels that training sees for each weight; with fewer, weights are not worth their time
HASTY = 5_000  # steps of a run, where only its time is known; it should not have fewer
BARELY = 2_000  # the same where a smaller network would miss its quality
SMALL = 2_000.0  # weights, of which fewer take hardly less time
BEYOND = 0.2  # dB beyond its target of a network that needs no other attempt
CLOSE = 0.05  # the same of small networks, which are soon trained again
# Operations of an attempt so short that others follow with the networks beside its own, of which
# chance makes one up to 0.5 dB better: about 10 s of two cores of a processor.
BRIEF = 1e12
RIVALS: dict[Kind, int] = {"bytes": 2, "lambda": 2, "psnr": 6}  # such attempts, at most
# Attempts that a limited time should do: the first one hardly ends at a quality. And as many more,
# about, as short runs take.
IN_TIME: dict[Kind, float] = {"bytes": 1.0, "lambda": 1.0, "psnr": 2.5}
SHORT_RUNS = 0.3
HURRY = 20.0  # seconds of a limit, from which on there is time to compile for short runs
MOST_SHORT = 0.5  # of a limit, after which no other short run begins
FEWER = 0.6  # of the steps that an attempt should have, at least, for which it is begun
CHECKS = 3  # times that a file is decoded once it is chosen, at most
TRIALS = 8  # times that files are decoded to choose one of a quality, as a rule
WITHIN = 1.5  # doublings of the usual number of weights within which a first short run's are


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
        if encoder.best is None or encoder.distance(found) < encoder.distance(encoder.best):
            encoder.best = found
        if found.diverged or not encoder.again():
            return encoder.best


def work(picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice) -> Work:
    """What training for a target and checking files will take, about."""
    samples = picture.width * picture.height
    weights, steps = _usual_weights(picture, wanted, workload), workload.steps * workload.wider
    shape, channels = rate_model.network_shape(weights, picture.channels), picture.channels
    shapes, runs = [shape], 1.0
    if workload.seconds is None and _training(weights, steps) <= BRIEF:
        shapes, runs = rate_model.neighbours(shape), runs + RIVALS[wanted.kind]
    elif wanted.kind == "psnr":
        runs += ATTEMPTS / 2 - 1
    programs = [step_program(shape, workload.wider, device) for shape in shapes]
    if wanted.kind != "bytes":
        runs += PILOTS / 2 * 1.5 * max(1 / PILOT, min(0.5, LEAST_PILOT / max(workload.steps, 1)))
        first = rate_model.network_shape(pilot_weights(samples), channels)
        programs.append(step_program(first, workload.wider, device))
    programs += [decoding_program(shape, device, samples) for shape in shapes]
    room = rooms.training(shape, device)
    if rooms.opening_steps(shape, device, workload.steps, BATCH * workload.wider):
        room = shape  # for most of them
    read = rooms.decoding(shape, device, samples).parameters
    operations = _training(room.parameters, runs * steps) + 2 * CHECKS * read * samples
    return Work(runs * workload.steps, operations, tuple(dict.fromkeys(programs)))


def _usual_weights(picture: Picture, wanted: Goal, workload: Workload) -> float:
    """What a picture of the middling kind needs for a target, and training can teach."""
    most = 8 * picture.pixels.nbytes / rate_model.BITS
    if wanted.kind == "bytes":
        return min(paid_weights(picture, wanted.value), most)
    taught = max(SMALL, workload.steps * workload.wider * BATCH / SEEN)
    usual = rate_model.usual_weights(wanted, picture.width * picture.height)
    return min(usual, most, taught)


def step_program(shape: Shape, wider: int, device: AnyDevice) -> str:
    """What compile_times.py knows the step by that a network's training begins with."""
    return f"mlp step: {rooms.training(shape, device)} {BATCH * wider}"


def decoding_program(shape: Shape, device: AnyDevice, pixels: int) -> str:
    """The same of decoding so many."""
    return f"mlp decoding: {rooms.decoding(shape, device, pixels)}"


def _training(weights: float, steps: float) -> float:
    """Operations of so many steps of a network."""
    return 6 * weights * steps * BATCH


class _Encoder:
    """The runs that lead to one target with one picture: short ones first, if it needs them."""

    def __init__(
        self, picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, run: Run
    ) -> None:
        self.picture, self.wanted, self.device = picture, wanted, device
        self.workload, self.run, self.saved = workload, run, run.saved
        limited = workload.seconds is not None
        self.rounding = Rounding(picture, wanted, device, self._too_late, limited)
        self.samples = picture.width * picture.height
        self.resumed = 0
        self.spent = 0.0  # seconds of the runs that were stopped
        self.hit = False  # the latest attempt needs no other one
        self.best: Draft | None = None  # of the attempts
        self.used: tuple[Shape, int, Shape, LearningStep, dict[str, Array]] | None = None
        self.paces: dict[tuple[Shape, int], float] = {}
        self.compiled = CompileTimes(device)
        self.seconds = workload.seconds  # that there are, from the beginning
        # Whether no short runs are needed any more.
        self.searched = wanted.kind == "bytes" or not self._has_short_runs()
        self.limit = workload.seconds and run.began + workload.seconds  # of the clock
        most = self._most_weights()
        first = min(self._first_weights(), most)
        self.sizes = SizeSearch(wanted, self.samples, picture.channels, most, first)
        if self.saved is not None:
            self._restore(self.saved)
            self.limit = self.limit and self.limit - self.spent

    def _restore(self, saved: Snapshot) -> None:
        self.sizes.restore(saved.values)
        steps, wider = saved.values["workload"]  # as the time was shared out before
        self.workload = Workload(steps, None, wider)
        self.spent, self.searched = saved.values["spent"], saved.values["searched"]
        if saved.values["best"] is not None:
            self.best = Draft(saved.arrays["best_file"].tobytes(), saved.values["best"])

    def untrained(self) -> Draft | None:
        """A file that took no training, if it is all that the target can ask for."""
        found = self.rounding.one_colour()
        return None if found is None else self._draft(found, MlpTrainerState(0, 0.0), 0.0)

    def _most_weights(self) -> float:
        """Those that the pixels themselves would pay for, and not more than training can teach."""
        most = 8 * self.picture.pixels.nbytes / rate_model.BITS
        if self.wanted.kind == "bytes" or self.workload.seconds is not None:
            return most
        return min(most, max(SMALL, self.workload.steps * self.workload.wider * BATCH / SEEN))

    def _first_weights(self) -> float:
        """How many weights the network should have; unless bytes say so, that of a short run."""
        if self.wanted.kind == "bytes":
            return paid_weights(self.picture, self.wanted.value)
        return pilot_weights(self.samples) if not self.searched else self._guessed()

    def _guessed(self) -> float:
        """How many weights the target seems to need, where there is no time for short runs."""
        found = PILOT_RATE * self.samples / rate_model.BITS  # there may be no time for another one
        usual = rate_model.usual_weights(self.wanted, self.samples)
        return max(LEAST, min(max(usual, found / 2**WITHIN), found * 2**WITHIN))

    def search(self) -> None:
        """Find by short runs how many weights a quality or a price needs."""
        if self.workload.seconds is not None:
            self._share_out()
        while not self._known_enough():
            trainer = self._start(self._short)
            self._run(trainer)
            step, steps = trainer.step, trainer.state.steps
            loss = mean_loss(float(step.smooth.item()), step.done) / step.counted
            pilots = self.sizes.pilots
            pilots.append([float(step.shape.parameters), float(steps), decibels(loss)])
            if len(pilots) % 2 == 0:
                self.sizes.resize(self._whole)

    def _share_out(self) -> None:
        """Have as many steps as an effort that takes about the time that there is."""
        shape, runs, larger = self.sizes.shape(), IN_TIME[self.wanted.kind], 1.0
        if self.wanted.kind != "bytes":  # which say how large it is
            runs += SHORT_RUNS
            usual = max(_usual_weights(self.picture, self.wanted, self.workload), LEAST)
            larger = max(usual / shape.parameters, 0.5)
        seconds = self._for_training(shape) / runs
        steps, wider = self.workload.within(seconds, lambda n: larger * self._pace(shape, n))
        self.workload = Workload(steps, None, wider)
        self.sizes.most = min(self.sizes.most, self._most_weights())

    def _share_again(self) -> None:
        """The same by the network that short runs have found, before the first attempt with it."""
        shape, before = self.sizes.shape(), self.workload.steps
        seconds = self._for_training(shape) / IN_TIME[self.wanted.kind]
        steps, wider = self.workload.within(seconds, partial(self._pace, shape))
        least = min(BARELY, before) if self.wanted.kind == "psnr" else 1
        self.workload = Workload(max(steps, least), None, wider)

    def _known_enough(self) -> bool:
        """Whether no more short runs are needed, or there is no time for them."""
        if not self.searched and len(self.sizes.pilots) % 2 == 0:
            self.searched = self._too_late_for_short_runs()
            if self.searched and not self.sizes.pilots:
                self.sizes.weights = min(self._guessed(), self.sizes.most)
        self.searched = self.searched or self.sizes.searched()
        return self.searched

    def _too_late_for_short_runs(self) -> bool:
        if self.seconds is None:
            return False
        late = self._left() < MOST_SHORT * self.seconds
        return late or (self.seconds < HURRY and self._compiling(self.sizes.shape()) > 0)

    def _has_short_runs(self) -> bool:
        """Whether a limit leaves time to compile what short runs need and an attempt may not."""
        return self.seconds is None or self.seconds >= HURRY or self._compiled_short()

    def _compiled_short(self) -> bool:
        shape = rate_model.network_shape(pilot_weights(self.samples), self.picture.channels)
        return self._compiling(shape) == 0

    def _short(self, shape: Shape) -> MlpTrainerState:
        """The beginning of a short run; the first of two is half as long as the second."""
        price = rate_model.first_price(shape.parameters, self.samples)
        most = self.workload.steps // (2 if self.limit is None else PILOT_LIMITED)
        steps = max(self.workload.steps // PILOT, min(LEAST_PILOT, most), 1)
        halvings = 1 - len(self.sizes.pilots) % 2
        if self.limit is not None and not halvings:  # which may have cut off the first of two
            steps = 2 * int(self.sizes.pilots[-1][1])
        return MlpTrainerState(max(1, steps >> halvings), price, wider=self.workload.wider)

    def _whole(self, _weights: float) -> float:
        """How many steps an attempt with so many weights has."""
        return float(self.workload.steps)

    def _left(self) -> float:
        """Seconds."""
        assert self.limit is not None
        return max(self.limit - time.perf_counter(), 1e-3)

    def _fits(self) -> bool:
        """Whether there is time for an attempt with the network that is wanted."""
        if self.limit is None:
            return True
        shape, least = self.sizes.shape(), FEWER * self.workload.steps
        seconds = least * self._likely_pace(shape) + self._compiling(shape)
        if seconds >= self._left():
            return False  # before what decodes it is compiled
        return seconds + self._rounding(shape) < self._left()

    def _too_late(self) -> bool:
        """Whether there is just time for the checks of a file that is there."""
        shape = self.sizes.shape()
        return self.limit is not None and self._left() < CHECKS * self._checking(shape)

    def _checking(self, shape: Shape) -> float:
        """Seconds that a check of a file takes; what it needs is compiled if it is not yet."""
        seconds = self.rounding.seconds(shape, self._budget(shape) / shape.parameters)
        self.compiled.note(self._decoding_program(shape))
        return seconds

    def _decoding_program(self, shape: Shape) -> str:
        return decoding_program(shape, self.device, self.samples)

    def _pace(self, shape: Shape, wider: int) -> float:
        """Seconds that a step takes, tried the first time that it is asked."""
        if (shape, wider) not in self.paces:
            trial = self._trainer(shape, MlpTrainerState(10**6, 0.0, wider=wider))
            most = 0.5 if self.limit is None else min(0.5, self._left() / 50)
            self.paces[shape, wider] = seconds_a_step(trial.step.program, most)
            self.compiled.note(step_program(shape, wider, self.device))
        return self.paces[shape, wider]

    def _for_training(self, shape: Shape) -> float:
        """Seconds that there are for an attempt's steps."""
        return max(1e-3, self._left() - self._rounding(shape))

    def _rounding(self, shape: Shape) -> float:
        """Seconds that choosing and checking a file take once a network is trained."""
        return (CHECKS + TRIALS * (self.wanted.kind == "psnr")) * self._checking(shape)

    def _afford(self) -> None:
        """Take a smaller network where the time is too short for training one so large.

        Below HASTY steps twice the steps bring more than twice the weights, which take as long.
        """
        shape, before = self.sizes.shape(), self.sizes.weights
        if self.limit is None or self.sizes.attempts:  # for which there is time
            return
        seconds, compiling = self._left(), self._compiling(shape)
        if seconds < HURRY and self.sizes.pilots and compiling > 0:
            self.sizes.make_do()
            return
        if before <= SMALL:
            return
        barely = min(BARELY, self.workload.steps)
        least = barely if self.wanted.kind == "psnr" else HASTY
        share = (seconds - compiling) / self._likely_pace(shape) / least
        if share >= 1:
            return
        self.sizes.weights = self.sizes.most = max(SMALL, before * share)
        what = f"{seconds:.3g} seconds are too few for training {before:,.0f} weights"
        self.run.say(f"{what}: taking {self.sizes.weights:,.0f}, which give a better picture")

    def _compiling(self, shape: Shape) -> float:
        """Seconds that a network of a shape takes to compile here, about."""
        step = step_program(shape, self.workload.wider, self.device)
        return self.compiled.expected((step, self._decoding_program(shape)))

    def _likely_pace(self, shape: Shape) -> float:
        """Seconds that a step would take, by the largest network that was tried, if any was."""
        if not self.paces:
            return 6 * shape.parameters * BATCH / usual_speed(self.device)
        tried = max((s for s, _ in self.paces), key=lambda s: s.parameters)
        return self._pace(tried, 1) * max(shape.parameters / tried.parameters, 0.5)

    def attempt(self) -> Draft:
        """Train a network and make a file of it."""
        began = time.perf_counter()
        if self.saved is None:
            self._afford()
            if self.limit is not None and not self.sizes.attempts:
                self._share_again()
        trainer = self._start(self._beginning)
        before = trainer.state.seconds
        ended = self._run(trainer)
        seconds = before + time.perf_counter() - began
        if trainer.state.phase < 2:  # it diverged, or was too short for looks
            trainer.fix_steps()
        found, first = self.rounding.best(trainer.arrays(), trainer.choices(), trainer.step.shape)
        self._learn(found, first)
        made = self._draft(found, trainer.state, seconds, ended == "diverged")
        self.compiled.note(self._decoding_program(trainer.step.shape))
        return made

    def _learn(self, found: Trial, first: Trial) -> None:
        """What an attempt says of others: by the bytes of its weights, however coarse these are."""
        paid = first.size - self.rounding.overhead(first.network.shape)
        size = float(first.network.shape.parameters)
        self.sizes.attempts.append([max(8 * paid / rate_model.BITS, 1.0), first.psnr, size])
        hit = self.wanted.hit_by(found.size, found.psnr)
        beyond = CLOSE if size < SMALL else BEYOND
        self.hit = hit and -TOLERANCE <= first.psnr - self.wanted.value <= beyond

    def distance(self, found: Draft) -> tuple[bool, float]:
        return found.distance(self.wanted, self.picture)

    def again(self) -> bool:
        """Whether another attempt may come nearer to the target, or to it with fewer bytes."""
        tried = len(self.sizes.attempts) - self.sizes.rivals
        if self._brief() and self.sizes.challenge(RIVALS[self.wanted.kind]):
            return True
        over = self.wanted.kind != "psnr" or tried == MOST_ATTEMPTS
        best = -math.inf if self.best is None else self.best.metrics["psnr"]
        hit = self.hit or (self.sizes.rivals > 0 and self.wanted.value - best <= TOLERANCE)
        if over or hit:
            return False
        other = self.sizes.again(best, self._whole)
        return other and not (tried >= ATTEMPTS and self._near()) and self._fits()

    def _brief(self) -> bool:
        """Whether attempts are so short that several are worth their time."""
        steps = self.workload.steps * self.workload.wider
        return self.limit is None and _training(self.sizes.attempts[-1][2], steps) <= BRIEF

    def _near(self) -> bool:
        """Whether the best file has the quality, and hardly more bytes than it seems to need."""
        if self.best is None:
            return False
        size, quality = len(self.best.bytes), self.best.metrics["psnr"]
        needed = self.sizes.weights * rate_model.BITS / 8
        needed += self.rounding.overhead(self.sizes.shape())
        return self.wanted.misses(size, quality) is None and size <= NEAR * needed

    def _beginning(self, shape: Shape) -> MlpTrainerState:
        """Of an attempt."""
        steps, wider = self.workload.steps, self.workload.wider
        if self.limit is not None:
            fitting = self._for_training(shape) / self._pace(shape, wider)
            steps = max(1, min(steps, int(fitting)))
        return MlpTrainerState(
            steps, rate_model.first_price(self.sizes.weights, self.samples), wider=wider
        )

    def _start(self, begin: Callable[[Shape], MlpTrainerState]) -> MlpTrainer:
        """A trainer at its beginning, or where a checkpoint left it."""
        shape, saved = self.sizes.shape(), self.saved
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
        shape, wider = trainer.step.shape, trainer.state.wider
        opening = rooms.opening_steps(shape, self.device, trainer.state.steps, BATCH * wider)
        if self.limit is not None:  # whose steps are counted by how long they take there
            opening = 0
        goes_over = opening > 0
        ended: Ended = "done"
        if trainer.step.done < opening:
            ended = opened(trainer, opening, self.run, self._complete)
            goes_over = ended == "done" and trainer.paused
        self.compiled.note(step_program(shape, wider, self.device))
        if goes_over:
            self._go_over(trainer)
        if goes_over or not opening:
            ended = trainer.run(self.run, self._complete)
        if ended == "interrupted":
            raise self.run.interrupted(self._reached(trainer))
        return ended

    def _trainer(self, shape: Shape, state: MlpTrainerState) -> MlpTrainer:
        room = rooms.training(shape, self.device)
        step, budget = self._step(shape, state.wider, room), self._budget(shape)
        limit, most = self.limit, 0
        if limit is not None and not self.searched:
            share = ONE_SHORT * (1 + len(self.sizes.pilots) % 2) / 2
            limit = time.perf_counter() + share * self._left()
        elif limit is not None:
            limit = time.perf_counter() + self._for_training(shape)
            most = 0 if self.wanted.kind == "psnr" else STEPS  # as others may follow
        return MlpTrainer(step, state, budget, limit, most)

    def _go_over(self, trainer: MlpTrainer) -> None:
        """To a program of the network's own size."""
        shape, reached = trainer.step.shape, trainer.step.state()
        step = self._step(shape, trainer.state.wider, shape)
        step.restore(reached)
        trainer.go_over(step)

    def _step(self, shape: Shape, wider: int, room: Shape) -> LearningStep:
        """Of a network of a shape, at its beginning; the latest one is taken again if it fits."""
        if self.used is None or self.used[:3] != (shape, wider, room):
            self.used = None  # so that its memory is free
            pixels, where = self.picture.pixels, (self.device, BATCH * wider, room)
            step = within_memory(
                partial(LearningStep, pixels, shape, SEED, *where),
                lambda error: too_large(error, pixels, shape, *where),
            )
            self.used = shape, wider, room, step, step.state()
        *_, step, start = self.used
        step.restore(start)
        return step

    def _budget(self, shape: Shape) -> float:
        """Bits for all weights, no more than they can use.

        A network has about as many weights as the target needs, and just their bits.
        """
        if not self.searched:
            return rate_model.BITS * shape.parameters
        bits = rate_model.BITS * self.sizes.weights
        if self.wanted.kind == "bytes":
            bits = 8 * (AIM * self.wanted.value - self.rounding.overhead(shape))
        return min(max(8.0, bits), FINE * shape.parameters)

    def _complete(self, snapshot: Snapshot) -> Snapshot:
        """A trainer's snapshot with that of the runs before it."""
        own = self.sizes.values()
        own["spent"] = self.spent + time.perf_counter() - self.run.began
        own["searched"] = self.searched
        own["workload"] = self.workload.steps, self.workload.wider
        own["best"] = None if self.best is None else self.best.metrics
        arrays: dict[str, Array] = {}
        if self.best is not None:
            arrays["best_file"] = np.frombuffer(self.best.bytes, np.uint8)
        return Snapshot(snapshot.arrays | arrays, snapshot.values | own)

    def _reached(self, trainer: MlpTrainer) -> str:
        steps = trainer.reached()
        return steps if self.searched else f"{steps} of a short run for the network's size"

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
            "batch": BATCH * state.wider,
            "seconds": seconds,
        }
        made = draft(self.picture, self.wanted, "mlp", found.sections, pixels, own)
        decode = self.rounding.decode
        return replace(made, diverged=diverged, resumed=self.resumed, decode=decode)
