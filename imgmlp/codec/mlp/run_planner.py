"""Plans the runs that lead to a file: their steps, the sizes of their networks, their bits."""

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

# Pilots (short runs that measure the picture) in a limited time. Fractions are of the whole limit.
PILOT_TIME_FRACTION = 0.05  # of one pilot; up to four times as much where steps are slow
MAX_PILOT_TIME_FRACTION = 0.5  # after which the first pilot does not begin
MAX_SECOND_PILOT_TIME_FRACTION = 0.4  # after which the second one does not begin
MIN_TIMED_PILOT_STEPS = 1_000  # fewer say little
MIN_SECONDS_FOR_PILOTS = 1.5  # shorter limits have no time for pilots
MIN_SECONDS_TO_COMPILE_PILOTS = 20.0  # shorter limits have no time to compile a pilot's program
# Without pilots, the weights of a network are at most this many doublings from those of PILOT_RATE.
MAX_PILOT_DOUBLINGS = 1.5

# Attempts (whole runs) in a limited time.
MAIN_TIME_FRACTION = 0.8  # of the time left after pilots, for the steps of an attempt
MIN_TIMED_STEPS = 5_000  # a smaller network is taken rather than fewer steps
MIN_TIMED_STEPS_FOR_PSNR = 2_000  # the same towards a PSNR, which a smaller network might miss
MIN_STEPS_FRACTION = 0.6  # of an attempt's steps, for which a further attempt is begun
# The fraction of an attempt's time after which its distance from the target is measured.
FIRST_PART_FRACTIONS: dict[Kind, float] = {"bytes": 1.0, "lambda": 1.0, "psnr": 0.9}

# Estimates of time. A step of a far smaller network takes at least this fraction of the time: 90 of
# 470 µs were measured on two cores of an AMD EPYC, family 25. On other devices launches count.
MIN_PACE_RATIO_ON_CPUS = 0.2
MIN_PACE_RATIO_ELSEWHERE = 0.5
DECODING_PACE_RATIO = 0.5  # time to decode a pixel, relative to that of training one
USUAL_TRIALS = 8  # roundings of a network that are decoded towards a PSNR
MAX_CHOOSING_TIME_FRACTION = 0.2  # of the time left, for these trials
DECODING_TIME_MARGIN = 1.25  # factor by which the last decoding may be slower than measured


class RunPlanner:
    """Plans pilots and attempts for one target, by an effort or by the time that is left.

    `make_trainer` makes a trainer, whose speed is measured.
    """

    def __init__(
        self,
        picture: Picture,
        wanted: Goal,
        workload: Workload,
        device: AnyDevice,
        run: Run,
        rounding: Rounding,
        make_trainer: Callable[[Shape, MlpTrainerState], MlpTrainer],
    ) -> None:
        self.picture, self.wanted, self.workload = picture, wanted, workload
        self.device, self.run, self.rounding = device, run, rounding
        self._make_trainer = make_trainer
        self.samples = picture.width * picture.height
        # Seconds per step by network and batch (in multiples of BATCH), measured in a limited time.
        self.paces: dict[tuple[Shape, int], float] = {}
        self.compile_times = CompileTimes(device)
        self.seconds_before = 0.0  # seconds of the interrupted runs that this one continues
        self.time_limit = workload.seconds  # None without a limit
        # The moment at which the limit ends, as time.perf_counter counts; None without a limit.
        self.deadline = workload.seconds and run.began + workload.seconds
        # Whether no more pilots are needed, or possible.
        self.search_is_over = wanted.kind == "bytes" or not self._has_time_for_pilots()
        max_weights = self._max_weights()
        weights = min(self._first_weights(), max_weights)
        self.sizes = SizeSearch(wanted, self.samples, picture.channels, max_weights, weights)

    # --- the state, for checkpoints ---

    def values(self) -> dict[str, Any]:
        """The state, for a checkpoint."""
        return self.sizes.values() | {
            "spent": self.seconds_before + time.perf_counter() - self.run.began,
            "searched": self.search_is_over,
            "workload": (self.workload.steps, self.workload.batch_factor),
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Continue the state of an interrupted process, with the time that it left."""
        self.sizes.restore(values)
        steps, batch_factor = values["workload"]  # as planned before the interruption
        self.workload = Workload(steps, None, batch_factor)
        self.seconds_before, self.search_is_over = values["spent"], values["searched"]
        self.deadline = self.deadline and self.deadline - self.seconds_before

    # --- pilots, which show how many weights the target needs ---

    def _max_weights(self) -> float:
        """The most weights: as many as the bits of the raw pixels, and as training can teach."""
        most = 8 * self.picture.pixels.nbytes / rate_model.BITS_PER_WEIGHT
        if self.wanted.kind == "bytes" or self.workload.seconds is not None:
            return most
        trainable = self.workload.steps * self.workload.batch_factor * BATCH / MIN_PIXELS_PER_WEIGHT
        return min(most, max(SMALL_NETWORK_WEIGHTS, trainable))

    def _first_weights(self) -> float:
        """The weights of the first network, which is a pilot unless there are none."""
        if self.wanted.kind == "bytes":
            return paid_weights(self.picture, self.wanted.value)
        if self.search_is_over:
            return self._weights_without_pilots()
        return pilot_weights(self.samples) if self.time_limit is None else TIMED_PILOT_WEIGHTS

    def _weights_without_pilots(self) -> float:
        """How many weights the target is likely to need, where there is no time for pilots."""
        middle = PILOT_RATE * self.samples / rate_model.BITS_PER_WEIGHT
        least, most = middle / 2**MAX_PILOT_DOUBLINGS, middle * 2**MAX_PILOT_DOUBLINGS
        usual = rate_model.usual_weights(self.wanted, self.samples)
        return max(MIN_PILOT_WEIGHTS, min(max(usual, least), most))

    def _has_time_for_pilots(self) -> bool:
        """Whether there is time for pilots, and to compile the program that they need."""
        if self.time_limit is None or self.time_limit >= MIN_SECONDS_TO_COMPILE_PILOTS:
            return True
        shape = rate_model.network_shape(TIMED_PILOT_WEIGHTS, self.picture.channels)
        return self.time_limit >= MIN_SECONDS_FOR_PILOTS and self._compile_seconds(shape) == 0

    def end_search(self) -> bool:
        """End the search if no more pilots are needed, or there is no time for them.

        Returns whether it is over.
        """
        if not self.search_is_over and self.time_limit is not None:
            self.search_is_over = self._is_too_late_for_pilot()
            if self.search_is_over and not self.sizes.pilots:
                self.sizes.weights = min(self._weights_without_pilots(), self.sizes.max_weights)
            self.search_is_over = self.search_is_over or self.sizes.timed_pilots_suffice()
        self.search_is_over = self.search_is_over or (
            self.time_limit is None and self.sizes.pilots_suffice()
        )
        return self.search_is_over

    def _is_too_late_for_pilot(self) -> bool:
        assert self.time_limit is not None
        most = MAX_SECOND_PILOT_TIME_FRACTION if self.sizes.pilots else MAX_PILOT_TIME_FRACTION
        if self._seconds_left() < (1 - most) * self.time_limit:
            return True
        is_short = self.time_limit < MIN_SECONDS_TO_COMPILE_PILOTS
        return is_short and self._compile_seconds(self.sizes.shape()) > 0

    def add_pilot(self, pilot: RunResult) -> None:
        """Adapt the network's size to the result of a pilot."""
        self.sizes.pilots.append(pilot)
        if self.time_limit is not None:
            self.sizes.choose_for_time_limit(self.affordable_steps)
        elif len(self.sizes.pilots) % 2 == 0:
            self.sizes.resize(self.effort_steps)

    def pilot_state(self, shape: Shape) -> MlpTrainerState:
        """The initial state of a pilot. Without a limit, the first of two has half the steps."""
        lmbda = rate_model.initial_lmbda(shape.parameters, self.samples)
        if self.time_limit is not None:
            steps = int(PILOT_TIME_FRACTION * self.time_limit / self.pace(shape, 1))
            return MlpTrainerState(
                min(max(steps, MIN_TIMED_PILOT_STEPS), DEFAULT_EFFORT_STEPS), lmbda
            )
        steps = pilot_steps(self.workload.steps) >> 1 - len(self.sizes.pilots) % 2
        return MlpTrainerState(max(1, steps), lmbda, batch_factor=self.workload.batch_factor)

    # --- attempts ---

    def plan_first_attempt(self) -> None:
        """Give the first attempt as many steps, or as wide ones, as there is time for."""
        shape = self.sizes.shape()
        pace = partial(self.pace, shape)
        steps, batch_factor = self.workload.within(self._first_part_seconds(shape), pace)
        self.workload = Workload(steps, None, batch_factor)

    def shrink_to_time_limit(self) -> None:
        """Take a smaller network for the first attempt where the time is too short to train it.

        Below MIN_TIMED_STEPS, twice the steps bring more than twice the weights, which take as
        long. A network that pilots chose already suits the time, but may have to be compiled.
        """
        shape, before = self.sizes.shape(), self.sizes.weights
        if self.deadline is None or self.sizes.attempts:
            return
        seconds, compiling = self._seconds_left(), self._compile_seconds(shape)
        if seconds < MIN_SECONDS_TO_COMPILE_PILOTS and self.sizes.pilots and compiling > 0:
            self.sizes.use_pilot_network()
            return
        if before <= SMALL_NETWORK_WEIGHTS or self.sizes.pilots:
            return
        least = MIN_TIMED_STEPS
        if self.wanted.kind == "psnr":
            least = min(MIN_TIMED_STEPS_FOR_PSNR, self.workload.steps)
        pace, fraction = self._expected_pace(shape), 1.0
        # Iterated, as the time to choose a file towards a PSNR hardly shrinks with the network.
        for _ in range(3):
            needed = fraction * least * pace + self._expected_check_seconds(fraction * pace)
            fraction *= (seconds - compiling) / needed
        if fraction >= 1:
            return
        weights = max(SMALL_NETWORK_WEIGHTS, before * fraction)
        self.sizes.weights = self.sizes.max_weights = weights
        problem = f"{seconds:.3g} seconds are too few for training {before:,.0f} weights"
        self.run.say(f"{problem}: taking {weights:,.0f}, which give a better picture")

    def attempt_state(self, shape: Shape) -> MlpTrainerState:
        """The initial state of an attempt."""
        steps, batch_factor = self.workload.steps, self.workload.batch_factor
        if self.deadline is not None:
            fitting = self._first_part_seconds(shape) / self.pace(shape, batch_factor)
            steps = max(1, min(steps, int(fitting)))
        lmbda = rate_model.initial_lmbda(self.sizes.weights, self.samples)
        return MlpTrainerState(steps, lmbda, batch_factor=batch_factor)

    def run_limits(self, shape: Shape) -> tuple[float | None, int]:
        """When a run that begins now has to end, and the steps that it may be prolonged to."""
        if self.deadline is None:
            return None, 0
        if not self.search_is_over:
            return time.perf_counter() + 4 * PILOT_TIME_FRACTION * self._seconds_left(), 0
        return time.perf_counter() + self._first_part_seconds(shape), DEFAULT_EFFORT_STEPS

    def bit_budget(self, shape: Shape) -> float:
        """Bits of all weights: BITS_PER_WEIGHT of those that the target needs, or those left of the
        wanted bytes, but no more than the weights can use."""
        if not self.search_is_over:
            return rate_model.BITS_PER_WEIGHT * shape.parameters
        bits = rate_model.BITS_PER_WEIGHT * self.sizes.weights
        if self.wanted.kind == "bytes":
            bits = 8 * (AIMED_BYTES_FRACTION * self.wanted.value - self.rounding.overhead(shape))
        return min(max(8.0, bits), MAX_BITS_PER_WEIGHT * shape.parameters)

    def effort_steps(self, _weights: float) -> float:
        """Steps of an attempt without a time limit; they do not depend on the weights."""
        return float(self.workload.steps)

    def affordable_steps(self, weights: float) -> float:
        """Steps of an attempt in a limited time, by the measured speeds."""
        pace = self._expected_pace(self.sizes.shape_of(weights))
        seconds = self._seconds_left() - self._expected_check_seconds(pace)
        return min(max(MAIN_TIME_FRACTION * seconds / pace, 1.0), DEFAULT_EFFORT_STEPS)

    def replace_network(self, shape: Shape, steps: int, reached: float) -> bool:
        """Choose another network for a run of `shape` that has `reached` this PSNR early on.

        Returns whether it should be replaced. A larger network is chosen only where the model of
        `expected_final_psnr` has seen such large ones, and there is time for enough steps.
        """
        expected = rate_model.expected_final_psnr(reached, shape.parameters, steps)
        weights = self.sizes.replacement(shape.parameters, expected)
        if weights is None or self._compile_seconds(self.sizes.shape_of(weights)) > 0:
            return False
        if weights > shape.parameters and (
            shape.parameters > rate_model.MAX_EARLY_CHECK_WEIGHTS
            or self.affordable_steps(weights) < rate_model.MIN_EARLY_CHECK_STEPS
        ):
            return False
        self.sizes.weights, self.sizes.was_replaced = weights, True
        self.run.say(f"{expected:.1f} dB are to be expected: taking {self.sizes.shape()}")
        return True

    # --- the time that is left, and what takes it ---

    def has_time_for_attempt(self) -> bool:
        """Whether there is time for another attempt."""
        if self.deadline is None:
            return True
        shape, steps = self.sizes.shape(), MIN_STEPS_FRACTION * self.workload.steps
        seconds = steps * self._expected_pace(shape) + self._compile_seconds(shape)
        # First without the decoder, which _finishing_seconds compiles.
        if seconds >= self._seconds_left():
            return False
        return seconds + self._finishing_seconds(shape) < self._seconds_left()

    def is_out_of_time(self) -> bool:
        """Whether the time left is only enough to check the best file so far."""
        shape = self.sizes.shape()
        checks = DECODING_TIME_MARGIN + self.rounding.sampled_fraction
        return self.deadline is not None and self._seconds_left() < checks * self._check_seconds(
            shape
        )

    def training_seconds(self, shape: Shape) -> float:
        """Seconds left for an attempt's steps."""
        return max(1e-3, self._seconds_left() - self._finishing_seconds(shape))

    def _first_part_seconds(self, shape: Shape) -> float:
        """Seconds of an attempt's steps before its distance from the target is measured."""
        return FIRST_PART_FRACTIONS[self.wanted.kind] * self.training_seconds(shape)

    def _finishing_seconds(self, shape: Shape) -> float:
        """Seconds that choosing and checking a file take after training."""
        check = self._check_seconds(shape)
        return self._check_count(check) * check

    def _expected_check_seconds(self, pace: float) -> float:
        """Seconds to choose and check a file and to time the first check, by the seconds per step
        of a network whose decoder is not compiled."""
        check = DECODING_PACE_RATIO * pace * self.samples / BATCH
        return self._check_count(check) * check + min(TIMED_DECODINGS * check, MAX_TIMING_SECONDS)

    def _check_count(self, check: float) -> float:
        """How many times files are decoded after training, if each takes `check` seconds."""
        sampled = self.rounding.sampled_fraction
        if self.wanted.kind != "psnr":
            return DECODING_TIME_MARGIN + sampled
        most = MAX_CHOOSING_TIME_FRACTION * self._seconds_left() / max(check, 1e-9)
        return 1 + DECODING_TIME_MARGIN + min(USUAL_TRIALS * sampled, most)

    def _check_seconds(self, shape: Shape) -> float:
        """Seconds to check a file; compiles its program unless that is done."""
        seconds = self.rounding.decoding_seconds(shape, self.bit_budget(shape) / shape.parameters)
        self.compile_times.record(decoding_program(shape, self.device, self.samples))
        return seconds

    def _seconds_left(self) -> float:
        """Seconds left until the deadline."""
        assert self.deadline is not None
        return max(self.deadline - time.perf_counter(), 1e-3)

    def pace(self, shape: Shape, batch_factor: int) -> float:
        """Seconds per step in a limited time; measured at the first call."""
        if (shape, batch_factor) not in self.paces:
            trial = self._make_trainer(
                shape, MlpTrainerState(10**6, 0.0, batch_factor=batch_factor)
            )
            most = min(0.5, self._seconds_left() / 100)
            self.paces[shape, batch_factor] = seconds_a_step(trial.step.program, most)
            self.compile_times.record(step_program(shape, batch_factor, self.device, steps=0))
        return self.paces[shape, batch_factor]

    def record_pace(self, trainer: MlpTrainer) -> None:
        """Record how long the steps of a run in a limited time took, which is more exact than
        `pace` measures. A run that repeated steps is left out."""
        if self.deadline is None or trainer.state.retries or trainer.seconds_per_step is None:
            return
        self.paces[trainer.step.shape, trainer.state.batch_factor] = trainer.seconds_per_step

    def _expected_pace(self, shape: Shape) -> float:
        """Seconds per step, estimated by the largest network that was measured, if any was."""
        if not self.paces:
            return 6 * shape.parameters * BATCH / typical_speed(self.device)
        largest = max((s for s, _ in self.paces), key=lambda s: s.parameters)
        parameters, largest_parameters = (
            buckets.training_shape(each, self.device).parameters for each in (shape, largest)
        )
        is_cpu = isinstance(self.device, Device) and self.device.lanes != "group"
        least = MIN_PACE_RATIO_ON_CPUS if is_cpu else MIN_PACE_RATIO_ELSEWHERE
        return self.pace(largest, 1) * max(parameters / largest_parameters, least)

    def _compile_seconds(self, shape: Shape) -> float:
        """Estimated seconds to compile the programs of a network in a limited time."""
        step = step_program(shape, self.workload.batch_factor, self.device, steps=0)
        decoding = decoding_program(shape, self.device, self.samples)
        return self.compile_times.expected_seconds((step, decoding))
