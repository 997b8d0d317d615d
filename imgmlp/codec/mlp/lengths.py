"""How long networks are trained, and how large they may be, for an effort or a time limit."""

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
from imgmlp.codec.training.passes import AIMED_BYTES_FRACTION
from imgmlp.codec.training.replay import seconds_a_step
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import DEFAULT_EFFORT_STEPS, Goal, Kind, Workload
from imgmlp.codec.training.time_estimate import typical_speed
from imgmlp.engine import AnyDevice, Device
from imgmlp.image import Picture

# Pilots (short runs) in a limited time. Fractions are of the whole limit.
PILOT_TIME_FRACTION = 0.05  # of one pilot; up to four times as much where steps are slow
MAX_PILOT_TIME_FRACTION = 0.5  # after which the first pilot does not begin
MAX_SECOND_PILOT_TIME_FRACTION = 0.4  # after which the second one does not begin
MIN_TIMED_PILOT_STEPS = 1_000  # fewer say little
MIN_SECONDS_FOR_PILOTS = 1.5  # shorter limits have no time for them
MIN_SECONDS_TO_COMPILE_PILOTS = 20.0  # shorter limits have no time to compile their program
# Without pilots, the weights of a network are guessed within so many doublings of PILOT_RATE.
MAX_PILOT_DOUBLINGS = 1.5

# Attempts in a limited time.
MAIN_TIME_FRACTION = 0.8  # of the time left after pilots, for an attempt's steps
MIN_TIMED_STEPS = 5_000  # for which a smaller network is taken
MIN_TIMED_STEPS_FOR_PSNR = 2_000  # the same towards a PSNR, which a smaller network might miss
MIN_STEPS_FRACTION = 0.6  # of an attempt's steps, for which a further attempt is begun
# The fraction of an attempt's time after which its distance from the target is measured.
FIRST_PART_FRACTIONS: dict[Kind, float] = {"bytes": 1.0, "lambda": 1.0, "psnr": 0.9}

# Estimates of time. A step of a far smaller network takes at least this fraction of the time: 90 of
# 470 µs were measured on two cores of an AMD EPYC, family 25. On other devices launches count.
MIN_PACE_RATIO_ON_CPUS = 0.2
MIN_PACE_RATIO_ELSEWHERE = 0.5
DECODING_PACE_RATIO = 0.5  # time to decode a pixel, in that of training one
USUAL_TRIALS = 8  # roundings of a network that are decoded towards a PSNR
MAX_CHOOSING_TIME_FRACTION = 0.2  # of the time left, for these trials
DECODING_TIME_MARGIN = 1.25  # factor by which the last decoding may be slower than measured


class Lengths:
    """The steps, weights and bits of each run, by the effort or the time that is left.

    `begun` makes a trainer, whose speed is measured.
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
        """The state, for a checkpoint."""
        workload = self.workload.steps, self.workload.wider
        spent = self.spent + time.perf_counter() - self.run.began
        own = {"spent": spent, "searched": self.searched, "workload": workload}
        return self.sizes.values() | own

    def restore(self, values: Mapping[str, Any]) -> None:
        """Continue the state of a process that was stopped, with the time that it left."""
        self.sizes.restore(values)
        steps, wider = values["workload"]  # as the time was shared out before
        self.workload = Workload(steps, None, wider)
        self.spent, self.searched = values["spent"], values["searched"]
        self.limit = self.limit and self.limit - self.spent

    def _most_weights(self) -> float:
        """The most weights: as many as the bits of the raw pixels, and as training can teach."""
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
        """How many weights the first network should have: a pilot, unless bytes decide."""
        if self.wanted.kind == "bytes":
            return paid_weights(self.picture, self.wanted.value)
        return self._short_weights() if not self.searched else self._guessed()

    def _short_weights(self) -> float:
        return pilot_weights(self.samples) if self.seconds is None else TIMED_PILOT_WEIGHTS

    def _guessed(self) -> float:
        """How many weights the target is likely to need, where there is no time for pilots."""
        found = (
            PILOT_RATE * self.samples / rate_model.BITS_PER_WEIGHT
        )  # there may be no time for another one
        usual = rate_model.usual_weights(self.wanted, self.samples)
        return max(
            MIN_PILOT_WEIGHTS,
            min(max(usual, found / 2**MAX_PILOT_DOUBLINGS), found * 2**MAX_PILOT_DOUBLINGS),
        )

    def _has_short_runs(self) -> bool:
        """Whether there is time for pilots, and to compile the program that they need."""
        if self.seconds is None or self.seconds >= MIN_SECONDS_TO_COMPILE_PILOTS:
            return True
        return self.seconds >= MIN_SECONDS_FOR_PILOTS and self._compiled_short()

    def _compiled_short(self) -> bool:
        shape = rate_model.network_shape(TIMED_PILOT_WEIGHTS, self.picture.channels)
        return self._compiling(shape) == 0

    def share_out(self) -> None:
        """Give the first attempt as many steps as there is time for."""
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
        """Whether no more pilots are needed, or there is no time for them."""
        if not self.searched and self.seconds is not None:
            self.searched = self._too_late_for_short_runs()
            if self.searched and not self.sizes.pilots:
                self.sizes.weights = min(self._guessed(), self.sizes.most)
            self.searched = self.searched or self.sizes.foreseen()
        self.searched = self.searched or (self.seconds is None and self.sizes.searched())
        return self.searched

    def learn(self, pilot: RunResult) -> None:
        """Adapt the network's size to the result of a pilot."""
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
        """The initial state of a pilot. Without a limit, the first of two has half the steps."""
        lmbda = rate_model.initial_lmbda(shape.parameters, self.samples)
        if self.seconds is not None:
            steps = int(PILOT_TIME_FRACTION * self.seconds / self.pace(shape, 1))
            return MlpTrainerState(
                min(max(steps, MIN_TIMED_PILOT_STEPS), DEFAULT_EFFORT_STEPS), lmbda
            )
        steps = pilot_steps(self.workload.steps) >> 1 - len(self.sizes.pilots) % 2
        return MlpTrainerState(max(1, steps), lmbda, wider=self.workload.wider)

    def beginning(self, shape: Shape) -> MlpTrainerState:
        """The initial state of an attempt."""
        steps, wider = self.workload.steps, self.workload.wider
        if self.limit is not None:
            fitting = self._for_first(shape) / self.pace(shape, wider)
            steps = max(1, min(steps, int(fitting)))
        return MlpTrainerState(
            steps, rate_model.initial_lmbda(self.sizes.weights, self.samples), wider=wider
        )

    def deadline(self, shape: Shape) -> tuple[float | None, int]:
        """When a run that begins now has to end, and the steps that it may be prolonged to."""
        if self.limit is None:
            return None, 0
        if not self.searched:
            return time.perf_counter() + 4 * PILOT_TIME_FRACTION * self._left(), 0
        return time.perf_counter() + self._for_first(shape), DEFAULT_EFFORT_STEPS

    def whole(self, _weights: float) -> float:
        """Steps of an attempt without a time limit; they do not depend on the weights."""
        return float(self.workload.steps)

    def fitting(self, weights: float) -> float:
        """Steps of an attempt in a limited time, by the measured speeds."""
        pace = self._likely_pace(self.sizes.shape_of(weights))
        seconds = self._left() - self._foreseen_checks(pace)
        return min(max(MAIN_TIME_FRACTION * seconds / pace, 1.0), DEFAULT_EFFORT_STEPS)

    def _foreseen_checks(self, pace: float) -> float:
        """Seconds to check files, and to time the first check, by the seconds of a step."""
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
        """Whether there is time for another attempt."""
        if self.limit is None:
            return True
        shape, least = self.sizes.shape(), MIN_STEPS_FRACTION * self.workload.steps
        seconds = least * self._likely_pace(shape) + self._compiling(shape)
        if seconds >= self._left():
            return False  # before what decodes it is compiled
        return seconds + self._settling(shape) < self._left()

    def too_late(self) -> bool:
        """Whether the time left is only enough to check the file that was found."""
        shape = self.sizes.shape()
        last = DECODING_TIME_MARGIN + self.rounding.judged_fraction
        return self.limit is not None and self._left() < last * self._checking(shape)

    def for_training(self, shape: Shape) -> float:
        """Seconds left for an attempt's steps."""
        return max(1e-3, self._left() - self._settling(shape))

    def _for_first(self, shape: Shape) -> float:
        """Seconds of these before the distance from the target is measured."""
        return FIRST_PART_FRACTIONS[self.wanted.kind] * self.for_training(shape)

    def _settling(self, shape: Shape) -> float:
        """Seconds that choosing and checking a file take after training."""
        check = self._checking(shape)
        return self._checks(check) * check

    def _checks(self, check: float) -> float:
        """How many times files are decoded then, if each takes `check` seconds."""
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
        """Seconds to check a file; compiles its program unless that is done."""
        seconds = self.rounding.seconds(shape, self.budget(shape) / shape.parameters)
        self.compiled.record(self._decoding_program(shape))
        return seconds

    def _decoding_program(self, shape: Shape) -> str:
        return decoding_program(shape, self.device, self.samples)

    def _left(self) -> float:
        """Seconds left of the limit."""
        assert self.limit is not None
        return max(self.limit - time.perf_counter(), 1e-3)

    def pace(self, shape: Shape, wider: int) -> float:
        """Seconds per step in a limited time; measured at the first call."""
        if (shape, wider) not in self.paces:
            trial = self._begun(shape, MlpTrainerState(10**6, 0.0, wider=wider))
            most = min(0.5, self._left() / 100)
            self.paces[shape, wider] = seconds_a_step(trial.step.program, most)
            self.compiled.record(step_program(shape, wider, self.device, steps=0))
        return self.paces[shape, wider]

    def note_pace(self, trainer: MlpTrainer) -> None:
        """How long steps of a run in a limited time took, which tells more than a trial; none of
        them twice."""
        if (
            self.limit is not None
            and trainer.seconds_per_step is not None
            and not trainer.state.retries
        ):
            self.paces[trainer.step.shape, trainer.state.wider] = trainer.seconds_per_step

    def _likely_pace(self, shape: Shape) -> float:
        """Seconds per step, estimated by the largest network that was measured, if any was."""
        if not self.paces:
            return 6 * shape.parameters * BATCH / typical_speed(self.device)
        tried = max((s for s, _ in self.paces), key=lambda s: s.parameters)
        bucket_parameters = [
            buckets.training_shape(one, self.device).parameters for one in (shape, tried)
        ]
        processor = isinstance(self.device, Device) and self.device.lanes != "group"
        least = MIN_PACE_RATIO_ON_CPUS if processor else MIN_PACE_RATIO_ELSEWHERE
        return self.pace(tried, 1) * max(bucket_parameters[0] / bucket_parameters[1], least)

    def _compiling(self, shape: Shape) -> float:
        """Estimated seconds to compile the programs of a network in a limited time."""
        step = step_program(shape, self.workload.wider, self.device, steps=0)
        return self.compiled.expected_seconds((step, self._decoding_program(shape)))

    def budget(self, shape: Shape) -> float:
        """Bits of all weights: BITS_PER_WEIGHT of those that the target needs, or those left of the
        wanted bytes, but no more than the weights can use."""
        if not self.searched:
            return rate_model.BITS_PER_WEIGHT * shape.parameters
        bits = rate_model.BITS_PER_WEIGHT * self.sizes.weights
        if self.wanted.kind == "bytes":
            bits = 8 * (AIMED_BYTES_FRACTION * self.wanted.value - self.rounding.overhead(shape))
        return min(max(8.0, bits), MAX_BITS_PER_WEIGHT * shape.parameters)
