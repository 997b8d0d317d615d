"""The training loop: its pace, and running while another process compiles."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
from conftest import stops_after

from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.trainer import Trainer, TrainerState


class Step:
    """Steps that only take a millisecond each."""

    steps_at_once, done = 1, 0

    def run(self, count: int, _: Callable[[], bool]) -> bool:
        time.sleep(1e-3 * count)
        self.done += count
        return True

    def state(self) -> dict[str, np.ndarray]:
        return {"done": np.array(self.done)}


class CountingTrainer(Trainer[Any, TrainerState]):
    """A trainer that decides nothing at its checks."""

    def preview(self) -> np.ndarray:
        return np.zeros((1, 1, 3), np.uint8)

    def _check(self, _: object) -> bool:
        return True

    def _steer(self) -> None:
        pass


class Compiler:
    """Replaces the process that compiles; it ends after so many queries, successfully or not."""

    def __init__(self, queries: int, succeeds: bool) -> None:
        self._has_ended, self._succeeds, self.waits = stops_after(queries), succeeds, 0
        self.leave: Callable[[], object] = lambda: None  # called at the end of its context

    @property
    def working(self) -> bool:
        return not self._has_ended()

    @property
    def done(self) -> bool:
        return not self.working and self._succeeds

    def wait(self, _: object) -> None:
        self.waits += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def paused_at_10() -> CountingTrainer:
    trainer = CountingTrainer(Step(), TrainerState(40, 1.0), check_interval=5)
    trainer.pause_at = 10
    return trainer


def run_beside(
    trainer: CountingTrainer, compiler: Any, run: Run | None = None, waits: bool = True
) -> str:
    return trainer.run_while_compiling(
        compiler, run or Run(), lambda snapshot: snapshot, "tests", waits
    )


def test_pace_of_a_run_does_not_count_what_follows_its_steps() -> None:
    trainer, compiler, paces = paused_at_10(), Compiler(0, succeeds=True), list[float | None]()
    compiler.leave = lambda: paces.append(trainer.seconds_per_step)
    assert run_beside(trainer, compiler) == "done"
    time.sleep(0.01)
    assert paces == [trainer.seconds_per_step]
    assert paces[0] is not None
    assert paces[0] >= 1e-3


@pytest.mark.parametrize("succeeds", [True, False])
def test_paused_trainer_waits_until_the_compiler_process_has_ended(succeeds: bool) -> None:
    trainer, compiler, notes = paused_at_10(), Compiler(1, succeeds), list[str]()
    assert run_beside(trainer, compiler, Run(note=notes.append)) == "done"
    assert (trainer.done, trainer.is_paused, compiler.waits) == (10, True, 1)
    assert notes == ["still compiling for tests of this size"]


def test_trainer_that_does_not_wait_continues_until_the_compiler_is_done() -> None:
    trainer, compiler = paused_at_10(), Compiler(5, succeeds=True)
    assert run_beside(trainer, compiler, waits=False) == "done"
    assert trainer.is_paused
    assert trainer.done in range(15, 40, 5)
    assert compiler.waits == 0


def test_trainer_that_does_not_wait_runs_to_the_end_if_the_compiler_failed() -> None:
    trainer = paused_at_10()
    assert run_beside(trainer, Compiler(2, succeeds=False), waits=False) == "done"
    assert (trainer.done, trainer.is_paused) == (40, False)


def test_interruption_while_waiting_for_the_compiler_saves_the_state(tmp_path: Any) -> None:
    trainer, checkpoint = paused_at_10(), Checkpoint(tmp_path / "c", "k")
    run = Run(should_stop=lambda: trainer.done == 10, checkpoint=checkpoint)
    assert run_beside(trainer, Compiler(1, succeeds=True), run) == "interrupted"
    saved = checkpoint.load()
    assert saved is not None
    assert saved.arrays["done"] == 10


def test_final_snapshot_is_the_last_good_state_if_values_diverged_later() -> None:
    trainer = paused_at_10()
    initial = trainer.final_snapshot()
    assert initial.arrays["done"] == 0
    trainer.step.restore = trainer.step.__dict__.update
    trainer.pause_at = None
    assert trainer.run() == "done"
    assert trainer.final_snapshot().arrays["done"] == 40
    trainer.step.done = float("nan")
    assert trainer.final_snapshot().arrays["done"] == 0
    assert trainer.step.done == 0


class ReportingTrainer(CountingTrainer):
    """A trainer that records at every check its pace and the seconds left, by its own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(Step(), TrainerState(40, 1.0), check_interval=5)
        self.now, self.delay = 0.0, 0.0  # the second: extra seconds of the next steps
        self.step_seconds = 1e-3
        self.reports: list[tuple[float, float]] = []
        self.step.run = self._take
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr("imgmlp.codec.training.trainer.time", clock)

    def _take(self, count: int, _: object) -> bool:
        self.now, self.delay = self.now + self.step_seconds * count + self.delay, 0.0
        self.step.done += count
        return True

    def _check(self, _: object) -> bool:
        progress = self._progress(0.5)
        self.reports.append((progress.steps_per_second, progress.seconds_left))
        return True


@pytest.mark.parametrize("steps_at_once", [1, 5])
def test_time_left_excludes_compilation_after_a_pause(
    steps_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first steps end at a check."""
    trainer = ReportingTrainer(monkeypatch)
    trainer.step.steps_at_once, trainer.pause_at = steps_at_once, 10
    assert trainer.run() == "done"
    trainer.pause_at, trainer.delay, trainer.step_seconds = None, 0.5, 5e-4
    assert trainer.run() == "done"
    before = 2 + (steps_at_once == 5)  # checks before a new pace is known
    assert [pace for pace, _ in trainer.reports] == pytest.approx(
        [1000] * before + [2000] * (8 - before)
    )
    for (pace, left), done in zip(trainer.reports, range(5, 41, 5), strict=True):
        assert left == pytest.approx((40 - done) / pace)


def test_pace_of_a_run_without_a_pause_counts_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones count too, as they may be most of the steps of a short run."""
    trainer = ReportingTrainer(monkeypatch)
    trainer.step.steps_at_once, trainer.delay = 5, 0.5
    assert trainer.run() == "done"
    expected = [done / (0.5 + done / 1000) for done in range(5, 41, 5)]
    assert [pace for pace, _ in trainer.reports] == pytest.approx(expected)


def test_restarted_run_reports_its_earlier_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = ReportingTrainer(monkeypatch)
    trainer.pause_at = 10
    trainer.run()
    trainer.step.done = trainer.done = 0
    trainer._timed_from = 0, trainer.now
    trainer._check(None)
    assert trainer.reports[-1] == pytest.approx((1000, 0.04))
