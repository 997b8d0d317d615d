"""How long an MLP is trained in a limited time, and what is compiled for it."""

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
from imgmlp.codec.mlp.lengths import (
    DECODING_TIME_MARGIN,
    MAX_CHOOSING_TIME_FRACTION,
    MIN_PACE_RATIO_ELSEWHERE,
    MIN_PACE_RATIO_ON_CPUS,
    MIN_TIMED_STEPS,
    MIN_TIMED_STEPS_FOR_PSNR,
    USUAL_TRIALS,
    Lengths,
)
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.rate_model import RunResult
from imgmlp.codec.mlp.rounding_search import MAX_BITS_PER_WEIGHT, TIMED_DECODINGS, Rounding, even
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


def test_a_time_limit_decides_how_long_to_train() -> None:
    found = run(Goal("lambda", 1e-2), workload=Workload(1, seconds=0.5))
    assert 1 <= found.metrics["steps"] < 5000


def test_what_is_compiled_at_first_does_not_count_as_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def slow_at_first(count: int) -> None:
        clock[0] += 1e-3 * count if clock[0] else 20.0

    program = SimpleNamespace(run=slow_at_first, wait=lambda: None)
    trainer = SimpleNamespace(step=SimpleNamespace(program=program))
    monkeypatch.setattr(_Encoder, "_trainer", lambda *_: trainer)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    picture, device = Picture(small_pixels()), open_device("numpy")
    encoder = _Encoder(picture, Goal("bytes", 300), Workload(120, seconds=60), device, Run())
    assert encoder.lengths.pace(encoder.sizes.shape(), 1) == pytest.approx(1e-3)
    then = clock[0]
    assert encoder.lengths.pace(encoder.sizes.shape(), 1) == pytest.approx(1e-3)
    assert clock[0] == then  # nothing is timed twice


def test_a_network_too_large_for_the_time_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "imgmlp.codec.mlp.lengths.DEFAULT_EFFORT_STEPS", 0
    )  # whatever the steps really take
    monkeypatch.setattr("imgmlp.codec.mlp.lengths.MIN_TIMED_STEPS", 20)
    monkeypatch.setattr("imgmlp.codec.mlp.lengths.SMALL_NETWORK_WEIGHTS", 200)
    monkeypatch.setattr("imgmlp.codec.mlp.lengths.typical_speed", lambda _: 6 * 1024 / 1e-3)
    monkeypatch.setattr(Lengths, "pace", lambda self, shape, wider: 1e-3 * shape.parameters)
    notes: list[str] = []
    arguments = Picture(small_pixels()), Goal("bytes", 20_000), Workload(1, seconds=10)
    found = encode(*arguments, open_device("numpy"), Run(note=notes.append))
    assert len(notes) == 1
    assert "seconds are too few for training 3,369 weights: taking" in notes[0]
    assert 10 <= found.metrics["steps"] < 40
    assert len(found.bytes) < 10_000  # rather than filled with digits that nobody sees
    assert found.metrics["bits_per_weight"] < 1.1 * MAX_BITS_PER_WEIGHT
    assert found.metrics["psnr"] > 10


def test_where_the_time_is_short_no_other_network_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begun(seconds: float) -> _Encoder:
        arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=seconds)
        return _Encoder(*arguments, open_device("numpy"), Run())

    assert not begun(10).lengths.known_enough()
    monkeypatch.setattr(CompileTimes, "expected_seconds", lambda *_: 5.0)
    assert begun(10).lengths.known_enough()  # without a single short run
    assert not begun(4).lengths.fits()
    assert begun(1000).lengths.fits()
    assert not begun(1000).lengths.known_enough()


@pytest.mark.parametrize("wanted", [Goal("psnr", 21), Goal("lambda", 1e-2)])
def test_a_time_limit_finds_the_size_of_a_network_by_a_short_run(
    wanted: Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guess by what pictures of the middling kind need was up to eight times too large.

    Nearly all of the time is left to the network that was found.
    """
    monkeypatch.setattr("imgmlp.codec.mlp.lengths.MIN_TIMED_PILOT_STEPS", 1)
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    monkeypatch.setattr(Lengths, "pace", lambda *_: 1e-2)
    monkeypatch.setattr(Rounding, "seconds", lambda *_: 1e-2)
    limited = Workload(goals.DEFAULT_EFFORT_STEPS, seconds=3)
    run = Run(began=100.0)
    encoder = _Encoder(Picture(small_pixels()), wanted, limited, open_device("numpy"), run)
    encoder.search()
    assert 1 <= len(encoder.sizes.pilots) <= 2
    assert all(steps == 15 for _, steps, _ in encoder.sizes.pilots)  # a twentieth
    encoder.sizes.weights = 5_000.0
    encoder.lengths.share_out()
    runs = 3 / 1e-2 / encoder.lengths.workload.steps  # that there is time for
    assert runs < (1.4 if wanted.kind == "psnr" else 1.2)


@pytest.mark.parametrize(
    ("reached", "missing", "nearest"),
    [
        ([20.7, 20.95], [0.3], 1),
        ([21.4, 21.3, 21.25, 21.2, 21.15], [-0.4, -0.3, -0.25, -0.2], 4),
        ([20.7, 20.85, 20.6], [0.3, 0.15], 1),  # the second pass brought less than nothing
        ([20.5, 20.55], [0.5], 1),  # too little for another one
        ([21.3, 20.75, 20.76], [-0.3, 0.25], 0),  # what has the quality is nearer
        ([20.95], [], 0),
        ([19.0], [], 0),
    ],
)
def test_a_limited_run_that_ends_near_its_quality_goes_on_with_other_bits(
    reached: list[float], missing: list[float], nearest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it has the quality, as long as that helps, four times at most; and in the end back to
    where it was nearest. What is far from it a few steps do not change."""
    tried, back = passes(reached, [10.0] * 5, monkeypatch)
    assert [lacking for _, lacking in tried] == pytest.approx(missing)
    assert {steps for steps, _ in tried} <= {50}  # a twentieth
    assert back == [nearest]


@pytest.mark.parametrize(("seconds", "count"), [([0.04], 0), ([0.075, 0.02], 1)])
def test_a_limited_run_goes_on_for_whole_passes_only(
    seconds: list[float], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of which takes 50 ms."""
    tried, back = passes([20.5, 20.8], seconds, monkeypatch)
    assert len(tried) == count
    assert back == [count]


def test_a_pass_that_diverges_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, back = passes([20.5, 20.8], [10.0] * 2, monkeypatch, "diverged")
    assert len(tried) == 1
    assert back == [0]


def passes(
    reached: list[float], seconds: list[float], monkeypatch: pytest.MonkeyPatch, ended: str = "done"
) -> tuple[list[tuple[int, float]], list[int]]:
    """Steps and missing dB of the passes that an encoder for 21 dB has after 1,000 steps of 1 ms,
    and after how many of them was what it goes back to."""
    left, times = iter(reached), iter(seconds)
    tried, back = list[tuple[int, float]](), list[int]()
    monkeypatch.setattr(Lengths, "pace", lambda *_: 1e-3)
    monkeypatch.setattr(Lengths, "for_training", lambda *_: next(times))
    monkeypatch.setattr(Rounding, "reached", lambda *_: next(left))
    monkeypatch.setattr(_Encoder, "_run", lambda *_: ended)
    arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=30)
    trainer: Any = SimpleNamespace(
        state=SimpleNamespace(steps=1000, wider=1),
        step=SimpleNamespace(shape=None),
        arrays=list,
        choices=list,
        extend=lambda steps, lacking, _limit: tried.append((steps, lacking)),
        snapshot=lambda: len(tried),
        restore=back.append,
    )
    _Encoder(*arguments, open_device("numpy"), Run())._approach(trainer)
    return tried, back


@pytest.mark.parametrize(
    ("done", "quality", "compiling", "grown", "larger"),
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
def test_a_limited_run_that_begins_too_well_or_badly_goes_on_with_another_network(
    done: int,
    quality: float,
    compiling: float,
    grown: int,
    larger: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Early in it, if that is known by then, and with one that is compiled already."""
    monkeypatch.setattr(Lengths, "_compiling", lambda *_: compiling)
    monkeypatch.setattr(Lengths, "fitting", lambda *_: 8000.0)
    arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=30)
    encoder = _Encoder(*arguments, open_device("numpy"), Run())
    encoder.lengths.searched = True
    encoder.sizes.weights = 871.0
    pauses: list[int] = []

    def run(trainer: Any) -> str:
        pauses.append(trainer.pause_at)
        trainer.state.steps = grown
        return "done"

    monkeypatch.setattr(encoder, "_run", run)
    shape = encoder.sizes.shape()
    trainer: Any = SimpleNamespace(
        state=SimpleNamespace(steps=6000),
        step=SimpleNamespace(shape=shape, done=done),
        quality=quality,
        is_paused=True,
        pause_at=None,
    )
    other: Any = object()
    monkeypatch.setattr(encoder, "_start", lambda _: other)
    monkeypatch.setattr(Lengths, "share_out", lambda _: None)
    assert encoder._suited(trainer) == (other if larger else trainer, "done")
    assert pauses == ([] if done else [1200])
    assert trainer.pause_at is None
    assert np.sign(encoder.sizes.shape().parameters - shape.parameters) == larger
    seen = len(pauses)
    if not larger:
        encoder.sizes.attempts = [Attempt(871.0, 24.0, 871.0)]
    assert encoder._suited(trainer) == (trainer, "done")  # once, and before any attempt
    assert len(pauses) == seen


@pytest.mark.parametrize(
    ("weights", "fitting", "taken"),
    [(4931.0, 8000.0, True), (4931.0, 4000.0, False), (7179.0, 8000.0, False)],
)
def test_a_larger_network_needs_time_for_its_steps_and_runs_that_it_was_seen_in(
    weights: float, fitting: float, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lengths, "_compiling", lambda *_: 0.0)
    monkeypatch.setattr(Lengths, "fitting", lambda *_: fitting)
    arguments = Picture(small_pixels()), Goal("psnr", 40), Workload(100, seconds=30)
    lengths = _Encoder(*arguments, open_device("numpy"), Run()).lengths
    lengths.sizes.weights, lengths.sizes.most = weights, 50_000.0
    shape = lengths.sizes.shape()
    assert lengths.exchanges(shape, 20_000, 34.0) is taken
    assert (lengths.sizes.weights > weights) is taken
    lengths.sizes.weights = weights
    assert lengths.exchanges(shape, 20_000, 40.0)  # a smaller one in any case
    assert lengths.sizes.weights < weights


@pytest.mark.parametrize(
    ("seconds", "pace", "retries", "noted"),
    [(30, 2e-3, 0, True), (None, 2e-3, 0, False), (30, None, 0, False), (30, 2e-3, 1, False)],
)
def test_how_long_steps_take_is_known_from_short_runs(
    seconds: float | None, pace: float | None, retries: int, noted: bool
) -> None:
    arguments = Picture(small_pixels()), Goal("psnr", 40), Workload(100, seconds=seconds)
    lengths = _Encoder(*arguments, open_device("numpy"), Run()).lengths
    shape = lengths.sizes.shape()
    state = MlpTrainerState(100, 1e-3, retries=retries)
    trainer: Any = SimpleNamespace(
        step=SimpleNamespace(shape=shape), state=state, seconds_per_step=pace
    )
    lengths.note_pace(trainer)
    assert lengths.paces == ({(shape, 1): pace} if noted else {})


def test_a_search_notes_how_long_steps_of_its_short_runs_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = Picture(small_pixels()), Goal("psnr", 40), Workload(100, seconds=30)
    encoder = _Encoder(*arguments, open_device("numpy"), Run())
    shape, known = encoder.sizes.shape(), iter([False, True])
    step, state = SimpleNamespace(shape=shape), MlpTrainerState(100, 1e-3)
    trainer = SimpleNamespace(step=step, state=state, seconds_per_step=2e-3, quality=30.0)
    monkeypatch.setattr(Lengths, "known_enough", lambda _: next(known))
    monkeypatch.setattr(encoder, "_start", lambda _: trainer)
    monkeypatch.setattr(encoder, "_run", lambda _: "done")
    before = encoder.sizes.weights
    encoder.search()
    assert encoder.lengths.paces[shape, 1] == 2e-3
    assert encoder.sizes.weights != before  # by what the run says of others


def test_a_run_that_ends_or_diverges_before_it_is_looked_at_keeps_its_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=30)
    encoder = _Encoder(*arguments, open_device("numpy"), Run())
    encoder.lengths.searched = True
    state, step = SimpleNamespace(steps=6000), SimpleNamespace(shape=None, done=0)
    for ended in ("done", "diverged"):
        monkeypatch.setattr(encoder, "_run", lambda _, ended=ended: ended)
        trainer: Any = SimpleNamespace(
            state=state, step=step, is_paused=ended != "done", pause_at=None
        )
        assert encoder._suited(trainer) == (trainer, ended)
        assert trainer.pause_at is None
    state.steps = 4000  # too few to tell
    monkeypatch.setattr(encoder, "_run", None)
    assert encoder._suited(trainer) == (trainer, "done")


def test_seconds_until_a_run_is_looked_at_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer adds them up by itself as well; those of another process are before these."""
    arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100)
    encoder = _Encoder(*arguments, open_device("numpy"), Run())
    state = SimpleNamespace(seconds=1000.0, phase=Phase.ROUNDING)
    step = SimpleNamespace(shape=encoder.sizes.shape())
    trainer: Any = SimpleNamespace(state=state, step=step, arrays=list, choices=list)

    def suited(_: Any) -> tuple[Any, str]:
        state.seconds += 500.0
        return trainer, "done"

    told: list[float] = []
    monkeypatch.setattr(encoder, "_start", lambda _: trainer)
    monkeypatch.setattr(encoder, "_suited", suited)
    monkeypatch.setattr(encoder, "_run", lambda _: "done")
    monkeypatch.setattr(encoder, "_learn", lambda *_: None)
    monkeypatch.setattr(encoder, "_draft", lambda *given: told.append(given[2]))
    monkeypatch.setattr(Rounding, "best", lambda *_: (None, None))
    encoder.attempt()
    assert told == [pytest.approx(1000.0, abs=100.0)]


@pytest.mark.parametrize("searched", [False, True])
def test_a_limited_run_that_was_stopped_keeps_its_number_of_steps(
    searched: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a short run and in the first attempt, on a machine that does less in the meantime."""
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    monkeypatch.setattr("imgmlp.codec.mlp.lengths.MIN_TIMED_PILOT_STEPS", 1)
    monkeypatch.setattr(Rounding, "seconds", lambda *_: 1e-2)
    checkpoint = Checkpoint(tmp_path / "c", "k")

    def begun(pace: float) -> _Encoder:
        monkeypatch.setattr(Lengths, "pace", lambda *_: pace)
        limited = Workload(goals.DEFAULT_EFFORT_STEPS, seconds=3)
        run = Run(checkpoint=checkpoint, began=100.0)
        return _Encoder(Picture(small_pixels()), Goal("psnr", 21), limited, device, run)

    device = open_device("numpy")
    first = begun(1e-2)
    if searched:
        first.lengths.searched = True
        first.search()
    first.run.should_stop = lambda: True
    with pytest.raises(Interrupted, match="stopped after"):
        (first.attempt if searched else first.search)()
    second = begun(2e-2)
    second.search()
    kept, given = second.lengths.workload, first.lengths.workload
    assert (kept.steps, kept.wider) == (given.steps, given.wider)


def test_what_is_restored_in_a_limited_time_is_not_undone_by_trying_its_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of one network are made once, and a trial has them begin anew."""
    monkeypatch.setattr(Rounding, "seconds", lambda *_: 1e-2)
    checkpoint, device = Checkpoint(tmp_path / "c", "k"), open_device("numpy")
    limited = Workload(goals.DEFAULT_EFFORT_STEPS, seconds=60)

    def begun() -> _Encoder:
        run = Run(checkpoint=checkpoint)
        found = _Encoder(Picture(small_pixels()), Goal("psnr", 21), limited, device, run)
        found.lengths.searched = True
        return found

    first = begun()
    first.run.should_stop = lambda: True
    with pytest.raises(Interrupted, match="stopped after"):
        first.attempt()
    second = begun()
    assert second.saved is not None
    wanted = second.saved.arrays
    trainer = second._start(second.lengths.beginning)
    second.lengths.pace(trainer.step.shape, trainer.state.wider)
    found = trainer.step.state()
    assert found.keys() <= wanted.keys()
    assert all(np.array_equal(found[name], wanted[name]) for name in found)
    assert trainer.step.done > 0


def test_a_network_whose_checks_take_the_time_that_is_left_has_no_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a picture of 8 megapixels in 20 seconds a large one was trained for one."""
    monkeypatch.setattr("time.perf_counter", lambda: 100.0)
    monkeypatch.setattr(Lengths, "_likely_pace", lambda _, shape: 1e-7 * shape.parameters)
    arguments = (
        Picture(small_pixels()),
        Goal("lambda", 1e-3),
        Workload(goals.DEFAULT_EFFORT_STEPS, seconds=20),
    )
    lengths = _Encoder(*arguments, open_device("numpy"), Run(began=100.0)).lengths
    small = [lengths.fitting(weights) for weights in (500, 5_000, 50_000)]
    lengths.samples = 8 * 10**6
    large = [lengths.fitting(weights) for weights in (500, 5_000, 50_000)]
    assert large[0] > 0.9 * small[0]
    assert 2_000 < large[1] < 0.9 * small[1]
    assert large[2] == 1 < small[2]


def test_where_short_runs_would_come_too_late_the_guessed_size_is_taken(
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
    encoder.sizes.weights, clock[0] = 123.0, 140.0  # once its programs were compiled
    assert encoder.lengths.known_enough()
    assert encoder.sizes.weights == min(encoder.lengths._guessed(), encoder.sizes.most)


def test_a_second_short_run_leaves_most_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    arguments = Picture(small_pixels()), Goal("psnr", 20), Workload(100, seconds=60)
    lengths = _Encoder(*arguments, open_device("numpy"), Run(began=100.0)).lengths
    lengths.sizes.pilots.append(RunResult(4000.0, 1000.0, 30.0))
    lengths.sizes.weights = 100.0  # of which a run of so many says little
    clock[0] = 123.0
    assert not lengths.known_enough()
    clock[0] = 125.0
    assert lengths.known_enough()


def test_the_shortest_limits_have_no_short_runs() -> None:
    def lengths(seconds: float) -> Lengths:
        arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=seconds)
        return _Encoder(*arguments, open_device("numpy"), Run()).lengths

    assert lengths(1.0).known_enough()
    assert not lengths(2.0).known_enough()


@pytest.mark.parametrize("wanted", [Goal("bytes", 700), Goal("psnr", 21), Goal("lambda", 1e-3)])
def test_after_training_for_a_time_nothing_more_is_compiled(
    wanted: Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though weights come out too large for what was compiled."""
    happened: list[str] = []
    made, trained = integer_inference._Piece.__init__, Trainer.run
    checked = integer_inference.corner

    def piece(*args: Any) -> None:
        happened.append("compiled")
        made(*args)
        monkeypatch.setattr(integer_inference, "LARGEST_SUM", 500)

    def run(*args: Any) -> Any:
        happened.append("trained")
        return trained(*args)

    def corner(*args: Any) -> np.ndarray:
        before = [*happened]
        found = checked(*args)
        happened[:] = before  # NumPy compiles nothing
        return found

    monkeypatch.setattr(integer_inference, "corner", corner)
    monkeypatch.setattr(integer_inference._Piece, "__init__", piece)
    monkeypatch.setattr(Trainer, "run", run)
    monkeypatch.setattr(CompileTimes, "expected_seconds", lambda *_: 5.0)
    limited = Workload(1, seconds=3)
    found = encode(Picture(small_pixels()), wanted, limited, open_device("numpy"))
    assert happened[0] == "compiled"
    assert set(happened[1:]) == {"trained"}  # a quality may be sought once more
    monkeypatch.undo()
    assert (
        decoder.decode(container.parse(found.bytes), open_device("numpy")) == found.pixels
    ).all()


def test_where_the_time_is_short_the_network_that_is_compiled_has_the_bits_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CompileTimes, "expected_seconds", lambda *_: 5.0)
    arguments = Picture(small_pixels()), Goal("psnr", 21), Workload(100, seconds=10)
    encoder = _Encoder(*arguments, open_device("numpy"), Run())
    encoder.lengths.searched = True
    encoder.sizes.pilots, encoder.sizes.weights = [RunResult(4000.0, 50.0, 22.0)], 3000.0
    encoder.lengths.afford()
    shape = encoder.sizes.shape()
    assert shape == rate_model.network_shape(4000.0, 3)
    assert encoder.lengths.budget(shape) == 3000 * rate_model.BITS_PER_WEIGHT
    encoder.sizes.weights = 500.0
    encoder.lengths.afford()
    assert encoder.sizes.shape() == shape
    assert encoder.lengths.budget(shape) == 4000 * MIN_BITS_PER_WEIGHT
    monkeypatch.setattr(
        CompileTimes, "expected_seconds", lambda *_: 0.0
    )  # another was compiled before
    encoder.sizes.weights, encoder.sizes.size = 500.0, None
    encoder.lengths.afford()
    assert encoder.sizes.shape() == rate_model.network_shape(500.0, 3)


@pytest.mark.parametrize(
    ("wanted", "samples"),
    [(Goal("bytes", 6000), 5000), (Goal("bytes", 6000), 1_000_000), (Goal("psnr", 30), 1_000_000)],
)
def test_a_network_is_so_small_that_its_steps_and_its_checks_fit(
    wanted: Goal, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of a large picture are most of what there is time for."""
    monkeypatch.setattr(CompileTimes, "expected_seconds", lambda *_: 0.0)
    monkeypatch.setattr(Lengths, "_likely_pace", lambda _, shape: 1e-6 * shape.parameters)
    limited = Workload(100, seconds=20)
    encoder = _Encoder(Picture(small_pixels()), wanted, limited, open_device("numpy"), Run())
    encoder.lengths.searched, encoder.lengths.samples = True, samples
    encoder.sizes.weights = encoder.sizes.most = 20_000.0
    encoder.workload = encoder.lengths.workload = Workload(10**5)
    encoder.lengths.afford()
    pace = 1e-6 * encoder.sizes.weights
    steps = MIN_TIMED_STEPS_FOR_PSNR if wanted.kind == "psnr" else MIN_TIMED_STEPS
    assert encoder.sizes.weights > SMALL_NETWORK_WEIGHTS
    assert 16 < steps * pace + encoder.lengths._foreseen_checks(pace) <= 20.2


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_choosing_a_file_takes_a_share_of_the_time_at_most(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of large pictures, parts of which are decoded to choose, more files can be looked at."""
    monkeypatch.setattr(integer_inference.Decoder, "judged_fraction", share)

    def checks(wanted: Goal, check: float) -> float:
        limited = Workload(100, seconds=20)
        encoder = _Encoder(Picture(small_pixels()), wanted, limited, open_device("numpy"), Run())
        return encoder.lengths._checks(check) - DECODING_TIME_MARGIN

    assert checks(Goal("psnr", 21), 1e-3) == pytest.approx(1 + share * USUAL_TRIALS)
    choosing = min(share * USUAL_TRIALS, MAX_CHOOSING_TIME_FRACTION * 20 / 4)
    assert checks(Goal("psnr", 21), 4.0) == pytest.approx(1 + choosing, rel=0.1)
    for wanted in (Goal("bytes", 300), Goal("lambda", 1)):
        assert checks(wanted, 4.0) == pytest.approx(share)


@pytest.mark.parametrize(
    ("pixels", "times"), [(1e-6, 1 + 12 * TIMED_DECODINGS), (1e-3, 1 + 8), (1.0, 2)]
)
def test_decoding_is_timed_by_as_much_as_takes_a_while(
    pixels: float, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12 pieces of 64 pixels, after the first one, which may compile."""
    clock, moved = [0.0], list[tuple[int, int]]()

    def move(piece: Any, top: int, left: int) -> None:
        clock[0] += 64 * pixels if moved else 30.0
        moved.append((top, left))

    monkeypatch.setattr(integer_inference, "DECODED_PIXELS", 64)
    monkeypatch.setattr(integer_inference._Piece, "move_to", move)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    pictured = Picture(np.zeros((24, 32, 3), np.uint8))
    rounding = Rounding(pictured, Goal("bytes", 300), open_device("numpy"))
    seconds, _ = rounding._timed(even(np.array([10, 20, 30])))
    assert seconds == pytest.approx(24 * 32 * pixels)
    assert len(moved) == times


def test_much_time_goes_into_wider_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "DEFAULT_EFFORT_STEPS", 10)
    monkeypatch.setattr(
        "imgmlp.codec.mlp.lengths.DEFAULT_EFFORT_STEPS", 0
    )  # whatever the steps really take
    monkeypatch.setattr(Lengths, "pace", lambda self, shape, wider: 4.0 * wider)
    big = Picture(np.resize(small_pixels(), (48, 64, 1)))  # 3 of the usual batches
    found = run(Goal("bytes", 300), big, Workload(1, seconds=100))
    assert (found.metrics["steps"], found.metrics["batch"]) == (8, 3072)


@pytest.mark.parametrize("wanted", [Goal("bytes", 700), Goal("psnr", 21), Goal("lambda", 1e-3)])
def test_all_runs_together_keep_the_time(wanted: Goal, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that only steps move; checks take a second each."""
    clock = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(Lengths, "pace", lambda self, shape, wider: pace(shape, wider))
    monkeypatch.setattr(Rounding, "seconds", lambda *_: 1.0)
    replay, decode = Trainer._replay, integer_inference.Decoder.decode

    def pace(shape: Shape, wider: int) -> float:
        return 1e-4 * shape.parameters * wider

    def slowly(trainer: MlpTrainer, run: Run) -> bool:
        before = trainer.done
        whole = replay(trainer, run)
        clock[0] += (trainer.done - before) * pace(trainer.step.shape, trainer.state.wider)
        return whole

    def checked(*args: Any) -> np.ndarray:
        clock[0] += 1.0
        return decode(*args)

    monkeypatch.setattr(Trainer, "_replay", slowly)
    monkeypatch.setattr(integer_inference.Decoder, "decode", checked)
    limited = Workload(1, seconds=60)
    encode(Picture(small_pixels()), wanted, limited, open_device("numpy"), Run(began=100.0))
    assert 100 + 30 < clock[0] <= 100 + 60


def test_a_time_limit_counts_from_when_the_command_began() -> None:
    began = time.perf_counter() - 3600
    picture, device = Picture(small_pixels()), open_device("numpy")
    late = encode(picture, Goal("bytes", 300), Workload(1, seconds=60), device, Run(began=began))
    assert late.metrics["steps"] <= 2


@pytest.mark.parametrize(
    ("form", "share"),
    [
        ("numpy", MIN_PACE_RATIO_ELSEWHERE),
        ("one", MIN_PACE_RATIO_ON_CPUS),
        ("group", MIN_PACE_RATIO_ELSEWHERE),
    ],
)
def test_steps_of_far_smaller_networks_take_less_on_processors(form: str, share: float) -> None:
    """As little as a fifth there; elsewhere no less than half, as launches take their time."""
    arguments = Picture(small_pixels()), Goal("psnr", 30), Workload(100, seconds=30)
    lengths = _Encoder(*arguments, open_mapping(form), Run()).lengths
    tried, small = (rate_model.network_shape(weights, 3) for weights in (4267, 531))
    lengths.paces = {(tried, 1): 1e-3}
    assert lengths._likely_pace(small) == pytest.approx(1e-3 * share)
    assert lengths._likely_pace(tried) == pytest.approx(1e-3)
