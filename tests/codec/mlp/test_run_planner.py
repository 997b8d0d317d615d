"""Pilots and attempts in a limited time: their steps, network sizes, bits and compilation."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import open_mapping, small_pixels

from imgmlp.codec import decoder
from imgmlp.codec import encoder as any_codec
from imgmlp.codec.bitstream import container
from imgmlp.codec.encoder import Encoded
from imgmlp.codec.mlp import integer_inference, rate_model
from imgmlp.codec.mlp.encode import _Encoder
from imgmlp.codec.mlp.estimate import SMALL_NETWORK_WEIGHTS
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.rate_model import RunResult
from imgmlp.codec.mlp.rounding_search import (
    MAX_BITS_PER_WEIGHT,
    TIMED_DECODINGS,
    Rounding,
    uniform_network,
)
from imgmlp.codec.mlp.run_planner import (
    DECODING_TIME_MARGIN,
    MAX_CHOOSING_TIME_FRACTION,
    MIN_PACE_RATIO_ELSEWHERE,
    MIN_PACE_RATIO_ON_CPUS,
    MIN_TIMED_STEPS,
    MIN_TIMED_STEPS_FOR_PSNR,
    USUAL_TRIALS,
    RunPlanner,
)
from imgmlp.codec.mlp.size_search import MIN_BITS_PER_WEIGHT, Attempt
from imgmlp.codec.mlp.training_phases import MlpTrainer, MlpTrainerState, Phase
from imgmlp.codec.training import target as goals
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.codec.training.trainer import Trainer
from imgmlp.engine import open_device
from imgmlp.errors import Interrupted
from imgmlp.image import Picture

encode = partial(any_codec.encode, codec="mlp")
pytestmark = pytest.mark.usefixtures("trained")

SHORT = Workload(120)


def run(target: Goal, picture: Picture | None = None, workload: Workload = SHORT) -> Encoded:
    return encode(picture or Picture(small_pixels()), target, workload, open_device("numpy"))


def test_time_limit_decides_the_number_of_steps() -> None:
    encoded = run(Goal("lambda", 1e-2), workload=Workload(1, seconds=0.5))
    assert 1 <= encoded.metrics["steps"] < 5000


def test_measured_pace_excludes_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def slow_at_first(count: int) -> None:
        clock[0] += 1e-3 * count if clock[0] else 20.0

    program = SimpleNamespace(run=slow_at_first, wait=lambda: None)
    trainer = SimpleNamespace(step=SimpleNamespace(program=program))
    monkeypatch.setattr(_Encoder, "_trainer", lambda *_: trainer)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    picture, device = Picture(small_pixels()), open_device("numpy")
    encoder = _Encoder(picture, Goal("bytes", 300), Workload(120, seconds=60), device, Run())
    assert encoder.planner.pace(encoder.sizes.shape(), 1) == pytest.approx(1e-3)
    then = clock[0]
    assert encoder.planner.pace(encoder.sizes.shape(), 1) == pytest.approx(1e-3)
    assert clock[0] == then  # nothing is timed twice


def test_network_too_large_for_the_time_limit_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "imgmlp.codec.mlp.run_planner.DEFAULT_EFFORT_STEPS", 0
    )  # no run is prolonged
    monkeypatch.setattr("imgmlp.codec.mlp.run_planner.MIN_TIMED_STEPS", 20)
    monkeypatch.setattr("imgmlp.codec.mlp.run_planner.SMALL_NETWORK_WEIGHTS", 200)
    monkeypatch.setattr("imgmlp.codec.mlp.run_planner.typical_speed", lambda _: 6 * 1024 / 1e-3)
    monkeypatch.setattr(
        RunPlanner, "pace", lambda self, shape, batch_factor: 1e-3 * shape.parameters
    )
    notes: list[str] = []
    arguments = Picture(small_pixels()), Goal("bytes", 20_000), Workload(1, seconds=10)
    encoded = encode(*arguments, open_device("numpy"), Run(note=notes.append))
    assert len(notes) == 1
    assert "seconds are too few for training 3,369 weights: taking" in notes[0]
    assert 10 <= encoded.metrics["steps"] < 40
    assert len(encoded.bytes) < 10_000  # rather than filled with digits that nobody sees
    assert encoded.metrics["bits_per_weight"] < 1.1 * MAX_BITS_PER_WEIGHT
    assert encoded.metrics["psnr"] > 10


def test_short_time_limits_compile_no_further_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begun(seconds: float) -> _Encoder:
        arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=seconds)
        return _Encoder(*arguments, open_device("numpy"), Run())

    assert not begun(10).planner.end_search()
    monkeypatch.setattr(CompileTimes, "expected_seconds", lambda *_: 5.0)
    assert begun(10).planner.end_search()  # without a single pilot
    assert not begun(4).planner.has_time_for_attempt()
    assert begun(1000).planner.has_time_for_attempt()
    assert not begun(1000).planner.end_search()


@pytest.mark.parametrize("wanted", [Goal("psnr", 21), Goal("lambda", 1e-2)])
def test_limited_search_runs_at_most_two_pilots_of_a_twentieth_of_the_time(
    wanted: Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly all of the time is left to the attempt.

    Without pilots, the size for a typical picture was up to eight times too large.
    """
    monkeypatch.setattr("imgmlp.codec.mlp.run_planner.MIN_TIMED_PILOT_STEPS", 1)
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    monkeypatch.setattr(RunPlanner, "pace", lambda *_: 1e-2)
    monkeypatch.setattr(Rounding, "decoding_seconds", lambda *_: 1e-2)
    limited = Workload(goals.DEFAULT_EFFORT_STEPS, seconds=3)
    run = Run(began=100.0)
    encoder = _Encoder(Picture(small_pixels()), wanted, limited, open_device("numpy"), run)
    encoder.search()
    assert 1 <= len(encoder.sizes.pilots) <= 2
    assert all(steps == 15 for _, steps, _ in encoder.sizes.pilots)  # a twentieth
    encoder.sizes.weights = 5_000.0
    encoder.planner.plan_first_attempt()
    attempts = 3 / 1e-2 / encoder.planner.workload.steps  # that there would be time for
    assert attempts < (1.4 if wanted.kind == "psnr" else 1.2)


@pytest.mark.parametrize(
    ("reached", "missing", "nearest"),
    [
        ([20.7, 20.95], [0.3], 1),
        ([21.4, 21.3, 21.25, 21.2, 21.15], [-0.4, -0.3, -0.25, -0.2], 4),
        ([20.7, 20.85, 20.6], [0.3, 0.15], 1),  # the second pass lowered the PSNR
        ([20.5, 20.55], [0.5], 1),  # too little gain for another pass
        ([21.3, 20.75, 20.76], [-0.3, 0.25], 0),  # a state that reaches the PSNR counts as nearer
        ([20.95], [], 0),
        ([19.0], [], 0),
    ],
)
def test_limited_run_near_its_psnr_gets_passes_with_other_bits(
    reached: list[float], missing: list[float], nearest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are up to four passes, as long as the PSNR is missed and they help. In the end the
    nearest state is restored. A run far from its PSNR gets none, as few steps cannot change that.
    """
    tried, restored = passes(reached, [10.0] * 5, monkeypatch)
    assert [missing_psnr for _, missing_psnr in tried] == pytest.approx(missing)
    assert {steps for steps, _ in tried} <= {50}  # a twentieth
    assert restored == [nearest]


@pytest.mark.parametrize(("seconds", "count"), [([0.04], 0), ([0.075, 0.02], 1)])
def test_limited_run_begins_only_passes_that_fit_in_the_time(
    seconds: list[float], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass takes 50 ms."""
    tried, restored = passes([20.5, 20.8], seconds, monkeypatch)
    assert len(tried) == count
    assert restored == [count]


def test_diverged_pass_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, restored = passes([20.5, 20.8], [10.0] * 2, monkeypatch, "diverged")
    assert len(tried) == 1
    assert restored == [0]


def passes(
    reached: list[float], seconds: list[float], monkeypatch: pytest.MonkeyPatch, ended: str = "done"
) -> tuple[list[tuple[int, float]], list[int]]:
    """Steps and missing dB of each pass that follows 1,000 steps of 1 ms towards 21 dB, and after
    how many passes the state was that is restored in the end.

    `reached` are the PSNRs after the run and its passes, `seconds` the time left for training.
    """
    psnrs, times = iter(reached), iter(seconds)
    tried, restored = list[tuple[int, float]](), list[int]()
    monkeypatch.setattr(RunPlanner, "pace", lambda *_: 1e-3)
    monkeypatch.setattr(RunPlanner, "training_seconds", lambda *_: next(times))
    monkeypatch.setattr(Rounding, "rounded_psnr", lambda *_: next(psnrs))
    monkeypatch.setattr(_Encoder, "_run", lambda *_: ended)
    arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=30)
    trainer: Any = SimpleNamespace(
        state=SimpleNamespace(steps=1000, batch_factor=1),
        step=SimpleNamespace(shape=None),
        arrays=list,
        choices=list,
        extend=lambda steps, missing, _limit: tried.append((steps, missing)),
        snapshot=lambda: len(tried),
        restore=restored.append,
    )
    _Encoder(*arguments, open_device("numpy"), Run())._run_passes(trainer)
    return tried, restored


@pytest.mark.parametrize(
    ("done", "psnr", "compile_seconds", "new_steps", "larger"),
    [
        (0, 24.0, 0.0, 6000, -1),
        (0, 17.0, 0.0, 6000, 1),
        (0, 20.2, 0.0, 6000, 0),
        (0, 24.0, 3.0, 6000, 0),
        (0, 17.0, 3.0, 6000, 0),
        (0, 24.0, 0.0, 12_000, 0),
        (0, 17.0, 0.0, 3_000, 0),
        (1200, 24.0, 0.0, 6000, 0),
    ],
)
def test_early_check_replaces_a_network_that_is_far_from_its_psnr(
    done: int,
    psnr: float,
    compile_seconds: float,
    new_steps: int,
    larger: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new network has to be compiled already, and the run as long as planned."""
    monkeypatch.setattr(RunPlanner, "_compile_seconds", lambda *_: compile_seconds)
    monkeypatch.setattr(RunPlanner, "affordable_steps", lambda *_: 8000.0)
    arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=30)
    encoder = _Encoder(*arguments, open_device("numpy"), Run())
    encoder.planner.search_is_over = True
    encoder.sizes.weights = 871.0
    pauses: list[int] = []

    def run(trainer: Any) -> str:
        pauses.append(trainer.pause_at)
        trainer.state.steps = new_steps
        return "done"

    monkeypatch.setattr(encoder, "_run", run)
    shape = encoder.sizes.shape()
    trainer: Any = SimpleNamespace(
        state=SimpleNamespace(steps=6000),
        step=SimpleNamespace(shape=shape, done=done),
        quality=psnr,
        is_paused=True,
        pause_at=None,
    )
    other: Any = object()
    monkeypatch.setattr(encoder, "_begin_or_resume", lambda _: other)
    monkeypatch.setattr(RunPlanner, "plan_first_attempt", lambda _: None)
    assert encoder._check_early(trainer) == (other if larger else trainer, "done")
    assert pauses == ([] if done else [1200])
    assert trainer.pause_at is None
    assert np.sign(encoder.sizes.shape().parameters - shape.parameters) == larger
    checks = len(pauses)
    if not larger:
        encoder.sizes.attempts = [Attempt(871.0, 24.0, 871.0)]
    assert encoder._check_early(trainer) == (
        trainer,
        "done",
    )  # only once, and only before the first attempt
    assert len(pauses) == checks


@pytest.mark.parametrize(
    ("weights", "fitting", "taken"),
    [(4931.0, 8000.0, True), (4931.0, 4000.0, False), (7179.0, 8000.0, False)],
)
def test_larger_replacement_needs_enough_time_and_a_size_that_the_model_knows(
    weights: float, fitting: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunPlanner, "_compile_seconds", lambda *_: 0.0)
    monkeypatch.setattr(RunPlanner, "affordable_steps", lambda *_: fitting)
    arguments = Picture(small_pixels()), Goal("psnr", 40), Workload(100, seconds=30)
    planner = _Encoder(*arguments, open_device("numpy"), Run()).planner
    planner.sizes.weights, planner.sizes.max_weights = weights, 50_000.0
    shape = planner.sizes.shape()
    assert planner.replace_network(shape, 20_000, 34.0) is taken
    assert (planner.sizes.weights > weights) is taken
    planner.sizes.weights = weights
    assert planner.replace_network(shape, 20_000, 40.0)  # a smaller network is always possible
    assert planner.sizes.weights < weights


@pytest.mark.parametrize(
    ("seconds", "pace", "retries", "noted"),
    [(30, 2e-3, 0, True), (None, 2e-3, 0, False), (30, None, 0, False), (30, 2e-3, 1, False)],
)
def test_pace_is_recorded_of_limited_runs_without_retries(
    seconds: float | None, pace: float | None, retries: int, noted: bool
) -> None:
    arguments = Picture(small_pixels()), Goal("psnr", 40), Workload(100, seconds=seconds)
    planner = _Encoder(*arguments, open_device("numpy"), Run()).planner
    shape = planner.sizes.shape()
    state = MlpTrainerState(100, 1e-3, retries=retries)
    trainer: Any = SimpleNamespace(
        step=SimpleNamespace(shape=shape), state=state, seconds_per_step=pace
    )
    planner.record_pace(trainer)
    assert planner.paces == ({(shape, 1): pace} if noted else {})


def test_search_records_the_pace_of_its_pilots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = Picture(small_pixels()), Goal("psnr", 40), Workload(100, seconds=30)
    encoder = _Encoder(*arguments, open_device("numpy"), Run())
    shape, is_over = encoder.sizes.shape(), iter([False, True])
    step, state = SimpleNamespace(shape=shape), MlpTrainerState(100, 1e-3)
    trainer = SimpleNamespace(step=step, state=state, seconds_per_step=2e-3, quality=30.0)
    monkeypatch.setattr(RunPlanner, "end_search", lambda _: next(is_over))
    monkeypatch.setattr(encoder, "_begin_or_resume", lambda _: trainer)
    monkeypatch.setattr(encoder, "_run", lambda _: "done")
    before = encoder.sizes.weights
    encoder.search()
    assert encoder.planner.paces[shape, 1] == 2e-3
    assert encoder.sizes.weights != before  # adapted to the result of the pilot


def test_run_that_ends_or_diverges_before_its_early_check_keeps_its_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=30)
    encoder = _Encoder(*arguments, open_device("numpy"), Run())
    encoder.planner.search_is_over = True
    state, step = SimpleNamespace(steps=6000), SimpleNamespace(shape=None, done=0)
    for ended in ("done", "diverged"):
        monkeypatch.setattr(encoder, "_run", lambda _, ended=ended: ended)
        trainer: Any = SimpleNamespace(
            state=state, step=step, is_paused=ended != "done", pause_at=None
        )
        assert encoder._check_early(trainer) == (trainer, ended)
        assert trainer.pause_at is None
    state.steps = 4000  # too few for an early check
    monkeypatch.setattr(encoder, "_run", None)
    assert encoder._check_early(trainer) == (trainer, "done")


def test_seconds_before_the_early_check_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer counts them as well. Those of an interrupted process are added."""
    arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100)
    encoder = _Encoder(*arguments, open_device("numpy"), Run())
    state = SimpleNamespace(seconds=1000.0, phase=Phase.ROUNDING)
    step = SimpleNamespace(shape=encoder.sizes.shape())
    trainer: Any = SimpleNamespace(state=state, step=step, arrays=list, choices=list)

    def suited(_: Any) -> tuple[Any, str]:
        state.seconds += 500.0
        return trainer, "done"

    seconds: list[float] = []
    monkeypatch.setattr(encoder, "_begin_or_resume", lambda _: trainer)
    monkeypatch.setattr(encoder, "_check_early", suited)
    monkeypatch.setattr(encoder, "_run", lambda _: "done")
    monkeypatch.setattr(encoder, "_record_attempt", lambda *_: None)
    monkeypatch.setattr(encoder, "_draft", lambda *arguments: seconds.append(arguments[2]))
    monkeypatch.setattr(Rounding, "best", lambda *_: (None, None))
    encoder.attempt()
    assert seconds == [pytest.approx(1000.0, abs=100.0)]


@pytest.mark.parametrize("searched", [False, True])
def test_resumed_limited_run_keeps_its_number_of_steps(
    searched: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether a pilot or the first attempt was interrupted, and though steps are slower now."""
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    monkeypatch.setattr("imgmlp.codec.mlp.run_planner.MIN_TIMED_PILOT_STEPS", 1)
    monkeypatch.setattr(Rounding, "decoding_seconds", lambda *_: 1e-2)
    checkpoint = Checkpoint(tmp_path / "c", "k")

    def begun(pace: float) -> _Encoder:
        monkeypatch.setattr(RunPlanner, "pace", lambda *_: pace)
        limited = Workload(goals.DEFAULT_EFFORT_STEPS, seconds=3)
        run = Run(checkpoint=checkpoint, began=100.0)
        return _Encoder(Picture(small_pixels()), Goal("psnr", 21), limited, device, run)

    device = open_device("numpy")
    first = begun(1e-2)
    if searched:
        first.planner.search_is_over = True
        first.search()
    first.run.should_stop = lambda: True
    with pytest.raises(Interrupted, match="stopped after"):
        (first.attempt if searched else first.search)()
    second = begun(2e-2)
    second.search()
    resumed, original = second.planner.workload, first.planner.workload
    assert (resumed.steps, resumed.batch_factor) == (original.steps, original.batch_factor)


def test_measuring_the_pace_does_not_undo_a_restored_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step of a network is cached, and measuring its pace resets its state."""
    monkeypatch.setattr(Rounding, "decoding_seconds", lambda *_: 1e-2)
    checkpoint, device = Checkpoint(tmp_path / "c", "k"), open_device("numpy")
    limited = Workload(goals.DEFAULT_EFFORT_STEPS, seconds=60)

    def begun() -> _Encoder:
        run = Run(checkpoint=checkpoint)
        encoder = _Encoder(Picture(small_pixels()), Goal("psnr", 21), limited, device, run)
        encoder.planner.search_is_over = True
        return encoder

    first = begun()
    first.run.should_stop = lambda: True
    with pytest.raises(Interrupted, match="stopped after"):
        first.attempt()
    second = begun()
    assert second.saved is not None
    saved = second.saved.arrays
    trainer = second._begin_or_resume(second.planner.attempt_state)
    second.planner.pace(trainer.step.shape, trainer.state.batch_factor)
    state = trainer.step.state()
    assert state.keys() <= saved.keys()
    assert all(np.array_equal(state[name], saved[name]) for name in state)
    assert trainer.step.done > 0


def test_checks_of_files_reduce_the_affordable_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A large network for 8 megapixels in 20 seconds once got a single second of training."""
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    monkeypatch.setattr(RunPlanner, "_expected_pace", lambda _, shape: 1e-7 * shape.parameters)
    arguments = (
        Picture(small_pixels()),
        Goal("lambda", 1e-3),
        Workload(goals.DEFAULT_EFFORT_STEPS, seconds=20),
    )
    planner = _Encoder(*arguments, open_device("numpy"), Run(began=100.0)).planner
    small = [planner.affordable_steps(weights) for weights in (500, 5_000, 50_000)]
    planner.samples = 8 * 10**6
    large = [planner.affordable_steps(weights) for weights in (500, 5_000, 50_000)]
    assert large[0] > 0.9 * small[0]
    assert 2_000 < large[1] < 0.9 * small[1]
    assert large[2] == 1 < small[2]


def test_typical_size_is_taken_when_it_is_too_late_for_pilots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    arguments = (
        Picture(small_pixels()),
        Goal("psnr", 40),
        Workload(goals.DEFAULT_EFFORT_STEPS, seconds=60),
    )
    encoder = _Encoder(*arguments, open_device("numpy"), Run(began=100.0))
    encoder.sizes.weights, clock[0] = 123.0, 140.0  # the clock after compiling the programs
    assert encoder.planner.end_search()
    assert encoder.sizes.weights == min(
        encoder.planner._weights_without_pilots(), encoder.sizes.max_weights
    )


def test_second_pilot_begins_only_in_the_first_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    arguments = Picture(small_pixels()), Goal("psnr", 20), Workload(100, seconds=60)
    planner = _Encoder(*arguments, open_device("numpy"), Run(began=100.0)).planner
    planner.sizes.pilots.append(RunResult(4000.0, 1000.0, 30.0))
    planner.sizes.weights = 100.0  # a pilot with 4,000 weights says little about so few
    clock[0] = 123.0
    assert not planner.end_search()
    clock[0] = 125.0
    assert planner.end_search()


def test_shortest_time_limits_have_no_pilots() -> None:
    def planner(seconds: float) -> RunPlanner:
        arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=seconds)
        return _Encoder(*arguments, open_device("numpy"), Run()).planner

    assert planner(1.0).end_search()
    assert not planner(2.0).end_search()


@pytest.mark.parametrize("wanted", [Goal("bytes", 700), Goal("psnr", 21), Goal("lambda", 1e-3)])
def test_nothing_is_compiled_after_training_in_a_limited_time(
    wanted: Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if trained weights are too large for the decoder that was compiled."""
    events: list[str] = []
    init, train = integer_inference._Piece.__init__, Trainer.run
    numpy_corner = integer_inference.corner

    def piece(*args: Any) -> None:
        events.append("compiled")
        init(*args)
        monkeypatch.setattr(integer_inference, "MAX_EXACT_WEIGHT_SUM", 500)

    def run(*args: Any) -> Any:
        events.append("trained")
        return train(*args)

    def corner(*args: Any) -> np.ndarray:
        before = [*events]
        pixels = numpy_corner(*args)
        events[:] = before  # NumPy compiles nothing
        return pixels

    monkeypatch.setattr(integer_inference, "corner", corner)
    monkeypatch.setattr(integer_inference._Piece, "__init__", piece)
    monkeypatch.setattr(Trainer, "run", run)
    monkeypatch.setattr(CompileTimes, "expected_seconds", lambda *_: 5.0)
    limited = Workload(1, seconds=3)
    encoded = encode(Picture(small_pixels()), wanted, limited, open_device("numpy"))
    assert events[0] == "compiled"
    assert set(events[1:]) == {"trained"}  # a PSNR may take passes
    monkeypatch.undo()
    assert (
        decoder.decode(container.parse(encoded.bytes), open_device("numpy")) == encoded.pixels
    ).all()


def test_short_time_limits_use_the_compiled_pilot_network_with_other_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CompileTimes, "expected_seconds", lambda *_: 5.0)
    arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=10)
    encoder = _Encoder(*arguments, open_device("numpy"), Run())
    encoder.planner.search_is_over = True
    encoder.sizes.pilots, encoder.sizes.weights = [RunResult(4000.0, 50.0, 22.0)], 3000.0
    encoder.planner.shrink_to_time_limit()
    shape = encoder.sizes.shape()
    assert shape == rate_model.network_shape(4000.0, 3)
    assert encoder.planner.bit_budget(shape) == 3000 * rate_model.BITS_PER_WEIGHT
    encoder.sizes.weights = 500.0
    encoder.planner.shrink_to_time_limit()
    assert encoder.sizes.shape() == shape
    assert encoder.planner.bit_budget(shape) == 4000 * MIN_BITS_PER_WEIGHT
    monkeypatch.setattr(
        CompileTimes, "expected_seconds", lambda *_: 0.0
    )  # all networks are compiled
    encoder.sizes.weights, encoder.sizes.network_weights = 500.0, None
    encoder.planner.shrink_to_time_limit()
    assert encoder.sizes.shape() == rate_model.network_shape(500.0, 3)


@pytest.mark.parametrize(
    ("wanted", "samples"),
    [(Goal("bytes", 6000), 5000), (Goal("bytes", 6000), 1_000_000), (Goal("psnr", 30), 1_000_000)],
)
def test_shrunk_network_leaves_time_for_steps_and_checks(
    wanted: Goal, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks of a large picture take most of the time."""
    monkeypatch.setattr(CompileTimes, "expected_seconds", lambda *_: 0.0)
    monkeypatch.setattr(RunPlanner, "_expected_pace", lambda _, shape: 1e-6 * shape.parameters)
    limited = Workload(100, seconds=20)
    encoder = _Encoder(Picture(small_pixels()), wanted, limited, open_device("numpy"), Run())
    encoder.planner.search_is_over, encoder.planner.samples = True, samples
    encoder.sizes.weights = encoder.sizes.max_weights = 20_000.0
    encoder.workload = encoder.planner.workload = Workload(10**5)
    encoder.planner.shrink_to_time_limit()
    pace = 1e-6 * encoder.sizes.weights
    steps = MIN_TIMED_STEPS_FOR_PSNR if wanted.kind == "psnr" else MIN_TIMED_STEPS
    assert encoder.sizes.weights > SMALL_NETWORK_WEIGHTS
    assert 16 < steps * pace + encoder.planner._expected_check_seconds(pace) <= 20.2


@pytest.mark.parametrize("sampled", [1.0, 0.1])
def test_choosing_a_file_takes_a_limited_fraction_of_the_time(
    sampled: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More files of large pictures can be compared, as only parts of them are decoded."""
    monkeypatch.setattr(integer_inference.Decoder, "sampled_fraction", sampled)

    def checks(wanted: Goal, check: float) -> float:
        limited = Workload(100, seconds=20)
        encoder = _Encoder(Picture(small_pixels()), wanted, limited, open_device("numpy"), Run())
        return encoder.planner._check_count(check) - DECODING_TIME_MARGIN

    assert checks(Goal("psnr", 21), 1e-3) == pytest.approx(1 + sampled * USUAL_TRIALS)
    choosing = min(sampled * USUAL_TRIALS, MAX_CHOOSING_TIME_FRACTION * 20 / 4)
    assert checks(Goal("psnr", 21), 4.0) == pytest.approx(1 + choosing, rel=0.1)
    for wanted in (Goal("bytes", 300), Goal("lambda", 1)):
        assert checks(wanted, 4.0) == pytest.approx(sampled)


@pytest.mark.parametrize(
    ("seconds_per_pixel", "count"), [(1e-6, 1 + 12 * TIMED_DECODINGS), (1e-3, 1 + 8), (1.0, 2)]
)
def test_timing_of_decoding_stops_after_enough_seconds(
    seconds_per_pixel: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The picture has 12 pieces of 64 pixels. The first one may compile and is not timed."""
    clock, moved = [0.0], list[tuple[int, int]]()

    def move(piece: Any, top: int, left: int) -> None:
        clock[0] += 64 * seconds_per_pixel if moved else 30.0
        moved.append((top, left))

    monkeypatch.setattr(integer_inference, "DECODED_PIXELS", 64)
    monkeypatch.setattr(integer_inference._Piece, "move_to", move)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    picture = Picture(np.zeros((24, 32, 3), np.uint8))
    rounding = Rounding(picture, Goal("bytes", 300), open_device("numpy"))
    seconds, _ = rounding._time_decoding(uniform_network(np.array([10, 20, 30])))
    assert seconds == pytest.approx(24 * 32 * seconds_per_pixel)
    assert len(moved) == count


def test_long_time_limits_get_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "DEFAULT_EFFORT_STEPS", 10)
    monkeypatch.setattr(
        "imgmlp.codec.mlp.run_planner.DEFAULT_EFFORT_STEPS", 0
    )  # no run is prolonged
    monkeypatch.setattr(RunPlanner, "pace", lambda self, shape, batch_factor: 4.0 * batch_factor)
    big = Picture(np.resize(small_pixels(), (48, 64, 1)))  # 3 of the usual batches
    encoded = run(Goal("bytes", 300), big, Workload(1, seconds=100))
    assert (encoded.metrics["steps"], encoded.metrics["batch"]) == (8, 3072)


@pytest.mark.parametrize("wanted", [Goal("bytes", 700), Goal("psnr", 21), Goal("lambda", 1e-3)])
def test_all_runs_together_keep_the_time_limit(
    wanted: Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only training steps and checks advance the clock; each check takes a second."""
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(
        RunPlanner, "pace", lambda self, shape, batch_factor: pace(shape, batch_factor)
    )
    monkeypatch.setattr(Rounding, "decoding_seconds", lambda *_: 1.0)
    replay, decode = Trainer._replay, integer_inference.Decoder.decode

    def pace(shape: Shape, batch_factor: int) -> float:
        return 1e-4 * shape.parameters * batch_factor

    def timed_replay(trainer: MlpTrainer, run: Run) -> bool:
        before = trainer.done
        is_complete = replay(trainer, run)
        clock[0] += (trainer.done - before) * pace(trainer.step.shape, trainer.state.batch_factor)
        return is_complete

    def timed_decode(*args: Any) -> np.ndarray:
        clock[0] += 1.0
        return decode(*args)

    monkeypatch.setattr(Trainer, "_replay", timed_replay)
    monkeypatch.setattr(integer_inference.Decoder, "decode", timed_decode)
    limited = Workload(1, seconds=60)
    encode(Picture(small_pixels()), wanted, limited, open_device("numpy"), Run(began=100.0))
    assert 100 + 30 < clock[0] <= 100 + 60


def test_time_limit_counts_from_the_beginning_of_the_command() -> None:
    began = time.perf_counter() - 3600
    picture, device = Picture(small_pixels()), open_device("numpy")
    encoded = encode(picture, Goal("bytes", 300), Workload(1, seconds=60), device, Run(began=began))
    assert encoded.metrics["steps"] <= 2


@pytest.mark.parametrize(
    ("mapping", "ratio"),
    [
        ("numpy", MIN_PACE_RATIO_ELSEWHERE),
        ("one", MIN_PACE_RATIO_ON_CPUS),
        ("group", MIN_PACE_RATIO_ELSEWHERE),
    ],
)
def test_expected_pace_of_far_smaller_networks_is_bounded_per_device(
    mapping: str, ratio: float
) -> None:
    """At least a fifth of the time on CPUs, and half of it elsewhere, where launches count."""
    arguments = Picture(small_pixels()), Goal("psnr", 30), Workload(100, seconds=30)
    planner = _Encoder(*arguments, open_mapping(mapping), Run()).planner
    measured, small = (rate_model.network_shape(weights, 3) for weights in (4267, 531))
    planner.paces = {(measured, 1): 1e-3}
    assert planner._expected_pace(small) == pytest.approx(1e-3 * ratio)
    assert planner._expected_pace(measured) == pytest.approx(1e-3)
