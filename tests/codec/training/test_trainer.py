"""The loop that all trainings have: its pace, and going on beside a process that compiles."""

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
    """Steps that do nothing for a while."""

    steps_at_once, done = 1, 0

    def run(self, count: int, _: Callable[[], bool]) -> bool:
        time.sleep(1e-3 * count)
        self.done += count
        return True

    def state(self) -> dict[str, np.ndarray]:
        return {"done": np.array(self.done)}


class Counting(Trainer[Any, TrainerState]):
    """One that decides nothing."""

    def preview(self) -> np.ndarray:
        return np.zeros((1, 1, 3), np.uint8)

    def _check(self, _: object) -> bool:
        return True

    def _steer(self) -> None:
        pass


class Compiler:
    """In the place of a process that has ended after so many looks; what it did is done or not."""

    def __init__(self, looks: int, good: bool) -> None:
        self._over, self._good, self.waited = stops_after(looks), good, 0
        self.leave: Callable[[], object] = lambda: None  # what happens while it is left

    @property
    def working(self) -> bool:
        return not self._over()

    @property
    def done(self) -> bool:
        return not self.working and self._good

    def wait(self, _: object) -> None:
        self.waited += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def begun() -> Counting:
    trainer = Counting(Step(), TrainerState(40, 1.0), check_interval=5)
    trainer.pause_at = 10
    return trainer


def beside(trainer: Counting, compiler: Any, run: Run | None = None, waits: bool = True) -> str:
    return trainer.run_while_compiling(compiler, run or Run(), lambda made: made, "tests", waits)


def test_its_pace_is_that_of_its_steps_whatever_comes_after_them() -> None:
    trainer, compiler, found = begun(), Compiler(0, good=True), list[float | None]()
    compiler.leave = lambda: found.append(trainer.seconds_per_step)
    assert beside(trainer, compiler) == "done"
    time.sleep(0.01)
    assert found == [trainer.seconds_per_step]
    assert found[0] is not None
    assert found[0] >= 1e-3


@pytest.mark.parametrize("good", [True, False])
def test_at_the_pause_it_waits_until_the_process_has_ended(good: bool) -> None:
    trainer, compiler, said = begun(), Compiler(1, good), list[str]()
    assert beside(trainer, compiler, Run(note=said.append)) == "done"
    assert (trainer.done, trainer.is_paused, compiler.waited) == (10, True, 1)
    assert said == ["still compiling for tests of this size"]


def test_or_it_goes_on_from_look_to_look_until_that_is_done() -> None:
    trainer, compiler = begun(), Compiler(5, good=True)
    assert beside(trainer, compiler, waits=False) == "done"
    assert trainer.is_paused
    assert trainer.done in range(15, 40, 5)
    assert compiler.waited == 0


def test_and_to_the_end_where_it_has_failed() -> None:
    trainer = begun()
    assert beside(trainer, Compiler(2, good=False), waits=False) == "done"
    assert (trainer.done, trainer.is_paused) == (40, False)


def test_a_stop_while_it_waits_keeps_where_it_is(tmp_path: Any) -> None:
    trainer, checkpoint = begun(), Checkpoint(tmp_path / "c", "k")
    run = Run(should_stop=lambda: trainer.done == 10, checkpoint=checkpoint)
    assert beside(trainer, Compiler(1, good=True), run) == "interrupted"
    saved = checkpoint.load()
    assert saved is not None
    assert saved.arrays["done"] == 10


def test_what_exploded_after_the_last_look_is_not_what_the_run_made() -> None:
    trainer = begun()
    good = trainer.final_snapshot()
    assert good.arrays["done"] == 0
    trainer.step.restore = trainer.step.__dict__.update
    trainer.pause_at = None
    assert trainer.run() == "done"
    assert trainer.final_snapshot().arrays["done"] == 40
    trainer.step.done = float("nan")
    assert trainer.final_snapshot().arrays["done"] == 0
    assert trainer.step.done == 0


class Telling(Counting):
    """One that tells at every look how fast it is, and how many seconds are left, by its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(Step(), TrainerState(40, 1.0), check_interval=5)
        self.now, self.late = 0.0, 0.0  # and what the next steps take longer
        self.each = 1e-3  # seconds that a step takes
        self.told: list[tuple[float, float]] = []
        self.step.run = self._take
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr("imgmlp.codec.training.trainer.time", clock)

    def _take(self, count: int, _: object) -> bool:
        self.now, self.late = self.now + self.each * count + self.late, 0.0
        self.step.done += count
        return True

    def _check(self, _: object) -> bool:
        found = self._progress(0.5)
        self.told.append((found.steps_per_second, found.seconds_left))
        return True


@pytest.mark.parametrize("steps_at_once", [1, 5])
def test_time_left_says_nothing_of_what_was_compiled_when_it_went_on(
    steps_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the first steps end at a look."""
    trainer = Telling(monkeypatch)
    trainer.step.steps_at_once, trainer.pause_at = steps_at_once, 10
    assert trainer.run() == "done"
    trainer.pause_at, trainer.late, trainer.each = None, 0.5, 5e-4
    assert trainer.run() == "done"
    before = 2 + (steps_at_once == 5)  # looks, which tell the pace until there is another
    assert [pace for pace, _ in trainer.told] == pytest.approx(
        [1000] * before + [2000] * (8 - before)
    )
    for (pace, left), done in zip(trainer.told, range(5, 41, 5), strict=True):
        assert left == pytest.approx((40 - done) / pace)


def test_of_a_run_that_has_not_gone_on_all_steps_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first of them end at a look, they are most of those that there may ever be."""
    trainer = Telling(monkeypatch)
    trainer.step.steps_at_once, trainer.late = 5, 0.5
    assert trainer.run() == "done"
    expected = [done / (0.5 + done / 1000) for done in range(5, 41, 5)]
    assert [pace for pace, _ in trainer.told] == pytest.approx(expected)


def test_a_run_that_begins_anew_tells_the_pace_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Telling(monkeypatch)
    trainer.pause_at = 10
    trainer.run()
    trainer.step.done = trainer.done = 0
    trainer._timed_from = 0, trainer.now
    trainer._check(None)
    assert trainer.told[-1] == pytest.approx((1000, 0.04))
