"""How long the networks of a picture are trained: what an effort or a time limit means for the runs
that lead to one target, and for how large networks are."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from imgmlp.codec.mlp import buckets, rate_model
from imgmlp.codec.mlp.estimate import (
    MIN_PIXELS_PER_WEIGHT,
    SMALL_NETWORK_WEIGHTS,
    decoding_program,
    pilot_steps,
    step_program,
)
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import BATCH
from imgmlp.codec.mlp.rate_model import RunResult
from imgmlp.codec.mlp.rounding_search import (
    MAX_BITS_PER_WEIGHT,
    MAX_TIMING_SECONDS,
    TIMED_DECODINGS,
    Rounding,
    paid_weights,
)
from imgmlp.codec.mlp.size_search import (
    MIN_PILOT_WEIGHTS,
    PILOT_RATE,
    TIMED_PILOT_WEIGHTS,
    SizeSearch,
    pilot_weights,
)
from imgmlp.codec.mlp.training_phases import MlpTrainer, MlpTrainerState
from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.codec.training.pace import usual_speed
from imgmlp.codec.training.passes import AIMED_BYTES_FRACTION
from imgmlp.codec.training.replay import seconds_a_step
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import STEPS, Goal, Kind, Workload
from imgmlp.engine import AnyDevice, Device
from imgmlp.image import Picture

PILOT_TIME_FRACTION = (
    0.05  # of a limited time, that of a short run; four times as much where steps are slow
)
MAIN_TIME_FRACTION = 0.8  # of the time left after short runs, that for the steps of what they found
MIN_TIMED_STEPS = 5_000  # steps of a run, where only its time is known; it should not have fewer
MIN_TIMED_STEPS_FOR_PSNR = 2_000  # the same where a smaller network would miss its quality
MIN_TIMED_PILOT_STEPS = 1_000  # steps of a short run in a limited time: fewer say little
# Of the time for an attempt's steps, those before it is seen how far from a quality it ends.
FIRST_PART_FRACTIONS: dict[Kind, float] = {"bytes": 1.0, "lambda": 1.0, "psnr": 0.9}
MIN_SECONDS_TO_COMPILE_PILOTS = (
    20.0  # seconds of a limit, from which on there is time to compile for short runs
)
MIN_SECONDS_FOR_PILOTS = (
    1.5  # seconds of a limit, below which short runs would leave too little for others
)
MAX_PILOT_TIME_FRACTION, MAX_SECOND_PILOT_TIME_FRACTION = (
    0.5,
    0.4,
)  # of a limit, after which no short run begins, nor a second one
MIN_STEPS_FRACTION = (
    0.6  # of the steps that an attempt should have, at least, for which it is begun
)
# Of what a step of a network takes, at least, one of a far smaller one: on processors (90 µs of 470
# were seen on two cores of an AMD EPYC, family 25) and elsewhere, where launches count.
MIN_PACE_RATIO_ON_CPUS, MIN_PACE_RATIO_ELSEWHERE = 0.2, 0.5
DECODING_PACE_RATIO = 0.5  # of what a step takes for a pixel, what decoding takes, about
USUAL_TRIALS = 8  # files of which one of a quality is chosen, as a rule
DECODING_TIME_MARGIN = 1.25  # times as long as it was timed that the last decoding may take
MAX_CHOOSING_TIME_FRACTION = 0.2  # of the time left that this may take, or there are fewer
MAX_PILOT_DOUBLINGS = (
    1.5  # doublings of the usual number of weights within which a first short run's are
)


class Lengths:
    """The steps, weights and bits of each run, by what there is of time.

    `begun` makes a trainer, whose pace is tried.
    """

    def __init__(
        self,
        picture: Picture,
        wanted: Goal,
        workload: Workload,
        device: AnyDevice,
        run: Run,
        rounding: Rounding,
        begun: Callable[[Shape, MlpTrainerState], MlpTrainer],
    ) -> None:
        self.picture, self.wanted, self.workload = picture, wanted, workload
        self.device, self.run, self.rounding, self._begun = device, run, rounding, begun
        self.samples = picture.width * picture.height
        self.paces: dict[tuple[Shape, int], float] = {}
        self.compiled = CompileTimes(device)
        self.spent = 0.0  # seconds of the runs that were stopped
        self.seconds = workload.seconds  # that there are, from the beginning
        # Whether no short runs are needed any more.
        self.searched = wanted.kind == "bytes" or not self._has_short_runs()
        self.limit = workload.seconds and run.began + workload.seconds  # of the clock
        most = self._most_weights()
        first = min(self._first_weights(), most)
        self.sizes = SizeSearch(wanted, self.samples, picture.channels, most, first)

    def values(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        workload = self.workload.steps, self.workload.wider
        spent = self.spent + time.perf_counter() - self.run.began
        own = {"spent": spent, "searched": self.searched, "workload": workload}
        return self.sizes.values() | own

    def restore(self, values: Mapping[str, Any]) -> None:
        """Go on where another process was stopped, with the time that it left."""
        self.sizes.restore(values)
        steps, wider = values["workload"]  # as the time was shared out before
        self.workload = Workload(steps, None, wider)
        self.spent, self.searched = values["spent"], values["searched"]
        self.limit = self.limit and self.limit - self.spent

    def _most_weights(self) -> float:
        """Those that the pixels themselves would pay for, and not more than training can teach."""
        most = 8 * self.picture.pixels.nbytes / rate_model.BITS_PER_WEIGHT
        if self.wanted.kind == "bytes" or self.workload.seconds is not None:
            return most
        return min(
            most,
            max(
                SMALL_NETWORK_WEIGHTS,
                self.workload.steps * self.workload.wider * BATCH / MIN_PIXELS_PER_WEIGHT,
            ),
        )

    def _first_weights(self) -> float:
        """How many weights the network should have; unless bytes say so, that of a short run."""
        if self.wanted.kind == "bytes":
            return paid_weights(self.picture, self.wanted.value)
        return self._short_weights() if not self.searched else self._guessed()

    def _short_weights(self) -> float:
        return pilot_weights(self.samples) if self.seconds is None else TIMED_PILOT_WEIGHTS

    def _guessed(self) -> float:
        """How many weights the target seems to need, where there is no time for short runs."""
        found = (
            PILOT_RATE * self.samples / rate_model.BITS_PER_WEIGHT
        )  # there may be no time for another one
        usual = rate_model.usual_weights(self.wanted, self.samples)
        return max(
            MIN_PILOT_WEIGHTS,
            min(max(usual, found / 2**MAX_PILOT_DOUBLINGS), found * 2**MAX_PILOT_DOUBLINGS),
        )

    def _has_short_runs(self) -> bool:
        """Whether a limit leaves time to compile what short runs need and an attempt may not."""
        if self.seconds is None or self.seconds >= MIN_SECONDS_TO_COMPILE_PILOTS:
            return True
        return self.seconds >= MIN_SECONDS_FOR_PILOTS and self._compiled_short()

    def _compiled_short(self) -> bool:
        shape = rate_model.network_shape(TIMED_PILOT_WEIGHTS, self.picture.channels)
        return self._compiling(shape) == 0

    def share_out(self) -> None:
        """Have as many steps in the first attempt as there is time for."""
        shape = self.sizes.shape()
        pace = partial(self.pace, shape)
        steps, wider = self.workload.within(self._for_first(shape), pace)
        self.workload = Workload(steps, None, wider)

    def afford(self) -> None:
        """Take a smaller network where the time is too short for training one so large.

        Below MIN_TIMED_STEPS, twice the steps bring more than twice the weights, which take as
        long.
        """
        shape, before = self.sizes.shape(), self.sizes.weights
        if self.limit is None or self.sizes.attempts:  # for which there is time
            return
        seconds, compiling = self._left(), self._compiling(shape)
        if seconds < MIN_SECONDS_TO_COMPILE_PILOTS and self.sizes.pilots and compiling > 0:
            self.sizes.use_compiled()
            return
        if (
            before <= SMALL_NETWORK_WEIGHTS or self.sizes.pilots
        ):  # which have told how large it should be
            return
        barely = min(MIN_TIMED_STEPS_FOR_PSNR, self.workload.steps)
        least = barely if self.wanted.kind == "psnr" else MIN_TIMED_STEPS
        pace, share = self._likely_pace(shape), 1.0
        for _ in range(3):  # as choosing a file of a quality takes as long with any network
            taken = share * least * pace + self._foreseen_checks(share * pace)
            share *= (seconds - compiling) / taken
        if share >= 1:
            return
        self.sizes.weights = self.sizes.most = max(SMALL_NETWORK_WEIGHTS, before * share)
        what = f"{seconds:.3g} seconds are too few for training {before:,.0f} weights"
        self.run.say(f"{what}: taking {self.sizes.weights:,.0f}, which give a better picture")

    def known_enough(self) -> bool:
        """Whether no more short runs are needed, or there is no time for them."""
        if not self.searched and self.seconds is not None:
            self.searched = self._too_late_for_short_runs()
            if self.searched and not self.sizes.pilots:
                self.sizes.weights = min(self._guessed(), self.sizes.most)
            self.searched = self.searched or self.sizes.foreseen()
        self.searched = self.searched or (self.seconds is None and self.sizes.searched())
        return self.searched

    def learn(self, pilot: RunResult) -> None:
        """What a short run says of the network's size."""
        self.sizes.pilots.append(pilot)
        if self.seconds is not None:
            self.sizes.choose_for_time_limit(self.fitting)
        elif len(self.sizes.pilots) % 2 == 0:
            self.sizes.resize(self.whole)

    def _too_late_for_short_runs(self) -> bool:
        assert self.seconds is not None
        most = MAX_SECOND_PILOT_TIME_FRACTION if self.sizes.pilots else MAX_PILOT_TIME_FRACTION
        late = self._left() < (1 - most) * self.seconds
        return late or (
            self.seconds < MIN_SECONDS_TO_COMPILE_PILOTS and self._compiling(self.sizes.shape()) > 0
        )

    def short(self, shape: Shape) -> MlpTrainerState:
        """The beginning of a short run; without a limit of two, the first is half as long."""
        lmbda = rate_model.initial_lmbda(shape.parameters, self.samples)
        if self.seconds is not None:
            steps = int(PILOT_TIME_FRACTION * self.seconds / self.pace(shape, 1))
            return MlpTrainerState(min(max(steps, MIN_TIMED_PILOT_STEPS), STEPS), lmbda)
        steps = pilot_steps(self.workload.steps) >> 1 - len(self.sizes.pilots) % 2
        return MlpTrainerState(max(1, steps), lmbda, wider=self.workload.wider)

    def beginning(self, shape: Shape) -> MlpTrainerState:
        """Of an attempt."""
        steps, wider = self.workload.steps, self.workload.wider
        if self.limit is not None:
            fitting = self._for_first(shape) / self.pace(shape, wider)
            steps = max(1, min(steps, int(fitting)))
        return MlpTrainerState(
            steps, rate_model.initial_lmbda(self.sizes.weights, self.samples), wider=wider
        )

    def deadline(self, shape: Shape) -> tuple[float | None, int]:
        """When a run that begins now is over, on the clock, and steps up to which it may grow."""
        if self.limit is None:
            return None, 0
        if not self.searched:
            return time.perf_counter() + 4 * PILOT_TIME_FRACTION * self._left(), 0
        return time.perf_counter() + self._for_first(shape), STEPS

    def whole(self, _weights: float) -> float:
        """How many steps an attempt with so many weights has."""
        return float(self.workload.steps)

    def fitting(self, weights: float) -> float:
        """The same in a limited time, by what steps take that were tried."""
        pace = self._likely_pace(self.sizes.shape_of(weights))
        seconds = self._left() - self._foreseen_checks(pace)
        return min(max(MAIN_TIME_FRACTION * seconds / pace, 1.0), STEPS)

    def _foreseen_checks(self, pace: float) -> float:
        """Seconds that checks take, and timing the first one, by what a step does."""
        check = DECODING_PACE_RATIO * pace * self.samples / BATCH
        return self._checks(check) * check + min(TIMED_DECODINGS * check, MAX_TIMING_SECONDS)

    def exchanges(self, shape: Shape, steps: int, reached: float) -> bool:
        """Whether to go on with another network, by the dB that a run has `reached` early on.

        With a larger one only where so large ones were seen, and there is time for enough steps.
        """
        found = rate_model.expected_final_psnr(reached, shape.parameters, steps)
        weights = self.sizes.replacement(shape.parameters, found)
        if weights is None or self._compiling(self.sizes.shape_of(weights)) > 0:
            return False
        if weights > shape.parameters and (
            shape.parameters > rate_model.MAX_EARLY_CHECK_WEIGHTS
            or self.fitting(weights) < rate_model.MIN_EARLY_CHECK_STEPS
        ):
            return False
        self.sizes.weights, self.sizes.exchanged = weights, True
        self.run.say(f"{found:.1f} dB are to be expected: taking {self.sizes.shape()}")
        return True

    def fits(self) -> bool:
        """Whether there is time for an attempt with the network that is wanted."""
        if self.limit is None:
            return True
        shape, least = self.sizes.shape(), MIN_STEPS_FRACTION * self.workload.steps
        seconds = least * self._likely_pace(shape) + self._compiling(shape)
        if seconds >= self._left():
            return False  # before what decodes it is compiled
        return seconds + self._settling(shape) < self._left()

    def too_late(self) -> bool:
        """Whether there is just time for the checks of a file that is there."""
        shape = self.sizes.shape()
        last = DECODING_TIME_MARGIN + self.rounding.judged_fraction
        return self.limit is not None and self._left() < last * self._checking(shape)

    def for_training(self, shape: Shape) -> float:
        """Seconds that there are for an attempt's steps."""
        return max(1e-3, self._left() - self._settling(shape))

    def _for_first(self, shape: Shape) -> float:
        """The same before it is seen how far from a quality it ends."""
        return FIRST_PART_FRACTIONS[self.wanted.kind] * self.for_training(shape)

    def _settling(self, shape: Shape) -> float:
        """Seconds that choosing and checking a file take once a network is trained."""
        check = self._checking(shape)
        return self._checks(check) * check

    def _checks(self, check: float) -> float:
        """Times that files are decoded then, where each takes so many seconds."""
        share = self.rounding.judged_fraction
        if self.wanted.kind != "psnr":
            return DECODING_TIME_MARGIN + share
        return (
            1
            + DECODING_TIME_MARGIN
            + min(
                USUAL_TRIALS * share, MAX_CHOOSING_TIME_FRACTION * self._left() / max(check, 1e-9)
            )
        )

    def _checking(self, shape: Shape) -> float:
        """Seconds that a check of a file takes; what it needs is compiled if it is not yet."""
        seconds = self.rounding.seconds(shape, self.budget(shape) / shape.parameters)
        self.compiled.note(self._decoding_program(shape))
        return seconds

    def _decoding_program(self, shape: Shape) -> str:
        return decoding_program(shape, self.device, self.samples)

    def _left(self) -> float:
        """Seconds."""
        assert self.limit is not None
        return max(self.limit - time.perf_counter(), 1e-3)

    def pace(self, shape: Shape, wider: int) -> float:
        """Seconds that a step takes in a limited time, tried the first time that it is asked."""
        if (shape, wider) not in self.paces:
            trial = self._begun(shape, MlpTrainerState(10**6, 0.0, wider=wider))
            most = min(0.5, self._left() / 100)
            self.paces[shape, wider] = seconds_a_step(trial.step.program, most)
            self.compiled.note(step_program(shape, wider, self.device, steps=0))
        return self.paces[shape, wider]

    def note_pace(self, trainer: MlpTrainer) -> None:
        """How long steps of a run in a limited time took, which tells more than a trial; none of
        them twice."""
        if self.limit is not None and trainer.pace is not None and not trainer.state.retries:
            self.paces[trainer.step.shape, trainer.state.wider] = trainer.pace

    def _likely_pace(self, shape: Shape) -> float:
        """Seconds that a step would take, by the largest network that was tried, if any was."""
        if not self.paces:
            return 6 * shape.parameters * BATCH / usual_speed(self.device)
        tried = max((s for s, _ in self.paces), key=lambda s: s.parameters)
        bucket_parameters = [
            buckets.training_shape(one, self.device).parameters for one in (shape, tried)
        ]
        processor = isinstance(self.device, Device) and self.device.lanes != "group"
        least = MIN_PACE_RATIO_ON_CPUS if processor else MIN_PACE_RATIO_ELSEWHERE
        return self.pace(tried, 1) * max(bucket_parameters[0] / bucket_parameters[1], least)

    def _compiling(self, shape: Shape) -> float:
        """Seconds that a network of a shape takes to compile for a limited time, about."""
        step = step_program(shape, self.workload.wider, self.device, steps=0)
        return self.compiled.expected((step, self._decoding_program(shape)))

    def budget(self, shape: Shape) -> float:
        """Bits for all weights, no more than they can use.

        A network has about as many weights as the target needs, and just their bits.
        """
        if not self.searched:
            return rate_model.BITS_PER_WEIGHT * shape.parameters
        bits = rate_model.BITS_PER_WEIGHT * self.sizes.weights
        if self.wanted.kind == "bytes":
            bits = 8 * (AIMED_BYTES_FRACTION * self.wanted.value - self.rounding.overhead(shape))
        return min(max(8.0, bits), MAX_BITS_PER_WEIGHT * shape.parameters)
