"""Outlines: a step whose outline is stored need not be traced, and is checked as a traced one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
from conftest import open_opencl
from test_program_cache import entries

from imgmlp.engine import (
    AnyDevice,
    Program,
    Tensor,
    compile,
    dtype,
    open_device,
)
from imgmlp.engine.ir.usage_errors import OutOfBoundsError
from imgmlp.engine.oracle.index_bounds import export_bounds, import_bounds
from imgmlp.engine.runtime import program_cache
from imgmlp.engine.runtime.program_cache import FOLDER, identify
from imgmlp.errors import ImgmlpWarning


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of entries, private to a test."""
    monkeypatch.setattr(program_cache, "cache_folder", lambda: tmp_path)
    return tmp_path / FOLDER


PACKAGE_MODULE = "imgmlp.steps"  # outlines are stored for classes of imgmlp only


class CountingStep:
    """A step that counts its runs and scales a Tensor by them; `traced` counts its tracings."""

    __module__ = PACKAGE_MODULE

    def __init__(self, device: AnyDevice, factor: float = 2.0, size: int = 6, more: bool = False):
        self.x = Tensor(np.arange(size, dtype=np.float32), device, name="x")
        self.count = Tensor(np.float32(0), device, name="count")
        self.factor, self.more, self.traced = factor, more, 0
        states = [self.x, self.count]
        self.program = compile(self.step, device, depends_on=factor, states=states)

    def step(self) -> dict[str, Tensor]:
        self.traced += 1
        self.count.assign(self.count + 1)
        scaled = self.x * self.count * self.factor
        if self.more:
            scaled = scaled + Tensor(np.ones(self.x.shape, np.float32), self.x.device)
        return {"scaled": scaled, "sum": scaled.sum(), "x": self.x, "count": self.count + 1}


def outputs_of(step: CountingStep) -> dict[str, list[float]]:
    step.program.run(3)
    return {name: step.program.read(name).ravel().tolist() for name in step.program.outputs}


def test_outline_replaces_tracing(folder: Path) -> None:
    device = open_opencl()
    first, second = CountingStep(device), CountingStep(device)
    assert (first.traced, second.traced) == (1, 0)
    assert outputs_of(second) == outputs_of(first)
    assert outputs_of(second)["scaled"] == [0, 10, 20, 30, 40, 50]  # computed from its own state
    assert first.program.inputs == {t.node.arg for t in (first.x, first.count)}
    assert second.program.inputs == {t.node.arg for t in (second.x, second.count)}


@pytest.mark.parametrize("other", [{"factor": 3.0}, {"size": 7}])
def test_outline_depends_on_the_arguments_of_the_step(
    folder: Path, other: dict[str, float]
) -> None:
    device = open_opencl()
    assert outputs_of(CountingStep(device)) != outputs_of(changed := CountingStep(device, **other))
    assert changed.traced == 1


class DoublingStep:
    """A step that calls a method which subclasses override."""

    __module__ = PACKAGE_MODULE

    def __init__(self, device: AnyDevice) -> None:
        self.x = Tensor(np.float32([1, 2]), device)
        self.program = compile(self.step, device, depends_on=(), states=[self.x])

    def step(self) -> dict[str, Tensor]:
        return {"y": self.changed(self.x)}

    def changed(self, x: Tensor) -> Tensor:
        return x * 2


def test_outline_depends_on_the_class_of_the_step(folder: Path) -> None:
    class Squaring(DoublingStep):
        __module__ = PACKAGE_MODULE

        def changed(self, x: Tensor) -> Tensor:
            return x * x + 100

    device = open_opencl()
    for kind, expected in ((DoublingStep, [2, 4]), (Squaring, [101, 104])) * 2:
        program = kind(device).program
        program.run()
        assert program.read("y").tolist() == expected


def test_no_outline_is_stored_for_classes_outside_of_the_package(folder: Path) -> None:
    class Other(CountingStep):
        __module__ = __name__

    device = open_opencl()
    steps = [Other(device) for _ in range(2)]
    assert [step.traced for step in steps] == [1, 1]
    assert outputs_of(steps[0]) == outputs_of(CountingStep(device))


def test_depends_on_is_refused_for_other_callables_than_methods() -> None:
    device = open_device("numpy")
    x = Tensor(np.float32([1]), device)
    with pytest.raises(TypeError, match="depends_on is for a method"):
        compile(lambda: {"y": x + 1}, device, depends_on=1, states=[x])


def test_step_with_undeclared_tensors_is_traced_each_time(folder: Path) -> None:
    device = open_opencl()
    first, second = (CountingStep(device, more=True) for _ in range(2))
    assert outputs_of(second) == outputs_of(first)
    assert second.traced == 1


def test_untraced_step_can_be_inspected_while_its_object_lives(folder: Path) -> None:
    device = open_opencl()
    first, second = CountingStep(device), CountingStep(device)
    assert second.program.stages.source == first.program.executable.source
    assert identify(second.program.updates)[0] == identify(first.program.updates)[0]
    assert outputs_of(second) == outputs_of(first)
    third = CountingStep(device).program
    with pytest.raises(ReferenceError, match="is gone"):
        _ = third.stages


def test_step_is_traced_if_the_executable_of_its_outline_is_gone(folder: Path) -> None:
    device = open_opencl()
    CountingStep(device)
    for path in entries(folder):
        if "source" in path.read_text():
            path.unlink()
    step = CountingStep(device)
    assert step.traced == 1
    assert outputs_of(step) == outputs_of(CountingStep(device))


def test_untraced_step_is_traced_for_smaller_tiles(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_opencl()
    expected = outputs_of(CountingStep(device))
    short = iter(["too large"])
    monkeypatch.setattr(device, "shortage", lambda *_: next(short, None))
    with pytest.warns(ImgmlpWarning, match="too large"):
        step = CountingStep(device)
    assert step.traced == 1
    assert outputs_of(step) == expected


def gather_program(of: Tensor, rows: int) -> Program:
    """A program that gathers from a table of `rows` rows by the given indices."""
    table = Tensor(np.zeros(rows, np.float32), of.device)
    return compile(lambda: {"y": table.gather(of)}, of.device)


class GatherStep:
    """A step that gathers rows by indices from the host.

    `narrow` are the rows of tables from which other programs gather by the same indices, and by
    the state `last`.
    """

    __module__ = PACKAGE_MODULE

    def __init__(
        self, device: AnyDevice, indices: Sequence[int], rows: int = 4, narrow: Sequence[int] = ()
    ) -> None:
        self.x = Tensor(np.arange(rows, dtype=np.float32) ** 2, device, name="x")
        self.at = Tensor(np.int32([[n, n + 70] for n in indices]), device, name="at")
        self.last = Tensor(np.int32([0]), device, name="last")
        (self.last + 1).numpy()  # now it is on the device
        self.traced, states = 0, [self.x, self.at, self.last]
        both = zip((self.at[:, 0], self.last), narrow, strict=False)
        self.others = [gather_program(index, count) for index, count in both]
        self.program = compile(self.step, device, depends_on=rows, states=states)

    def step(self) -> dict[str, Tensor]:
        self.traced += 1
        column = self.at[:, 0]
        self.last.assign(column[-1:])
        both = Tensor.concat([column[1:].cast(dtype.u32), self.last.cast(dtype.u32)])
        return {"taken": self.x.gather(column), "both": self.x.gather(both)}

    def taken(self) -> dict[str, list[float]]:
        self.program.run()
        return {name: self.program.read(name).tolist() for name in self.program.outputs}


def test_indices_of_an_untraced_step_are_bounds_checked(folder: Path) -> None:
    device = open_opencl()
    first, second = (GatherStep(device, [3, 0, 2]) for _ in range(2))
    assert (first.traced, second.traced) == (1, 0)
    assert first.taken() == {"taken": [9, 0, 4], "both": [0, 4, 0]}
    assert second.taken() == {"taken": [9, 0, 4], "both": [0, 4, 0]}
    for step in (first, second):
        with pytest.raises(OutOfBoundsError, match="4 is none of them"):
            step.at.write(np.int32([[1, 0], [4, 0], [1, 0]]))
        with pytest.raises(OutOfBoundsError, match="5 is none of them"):
            step.last.write(np.int32([5]))
        step.at.write(np.int32([[1, 90], [3, 90], [1, 90]]))
        assert step.taken() == {"taken": [1, 9, 1], "both": [9, 1, 4]}
        assert step.last.numpy() == 1


def test_assigned_states_are_not_from_the_host_traced_or_not(folder: Path) -> None:
    device = open_opencl()
    for traced in (1, 0):
        step = GatherStep(device, [3, 0, 2])
        step.program.run()
        outputs_of = [t.node.arg.is_from_host for t in (step.x, step.at, step.last)]
        assert (step.traced, outputs_of) == (traced, [True, True, False])


def test_wrong_initial_indices_of_an_untraced_step_are_refused(folder: Path) -> None:
    device = open_opencl()
    GatherStep(device, [3, 0, 2])
    with pytest.raises(OutOfBoundsError, match="index 4"):
        GatherStep(device, [3, 4, 2])


def test_bounds_in_an_outline_are_those_of_the_step_alone(folder: Path) -> None:
    """Bounds by another program are no part of the key, and stay in force."""
    device = open_opencl()
    GatherStep(device, [3, 0, 2])
    step = GatherStep.__new__(GatherStep)
    step.x, step.last = (Tensor(np.zeros(n, t), device) for n, t in ((4, "f4"), (1, "i4")))
    step.at, step.traced = Tensor(np.zeros((3, 2), np.int32), device), 0
    narrow = Tensor(np.zeros(2, np.float32), device)
    other = compile(lambda: {"y": narrow.gather(step.at[:, 1])}, device)
    states = [step.x, step.at, step.last]
    step.program = compile(step.step, device, depends_on=4, states=states)
    assert step.traced == 0
    for wrong in ([[4, 0]] * 3, [[0, 2]] * 3):
        with pytest.raises(OutOfBoundsError):
            step.at.write(np.int32(wrong))
    del other
    step.at.write(np.int32([[0, 2]] * 3))
    del step.program
    step.at.write(np.int32([[4, 2]] * 3))


def test_values_assigned_by_a_step_obey_bounds_of_other_programs(folder: Path) -> None:
    """Such a step is traced although there is an outline."""
    device = open_opencl()
    GatherStep(device, [3, 0, 2])
    step = GatherStep(device, [1, 0, 1], narrow=(4, 2))
    assert step.traced == 1
    with pytest.raises(OutOfBoundsError, match="3 is none of them"):
        step.at.write(np.int32([[0, 0], [1, 0], [3, 0]]))


def test_bounds_of_other_programs_are_not_stored_in_the_outline(folder: Path) -> None:
    device = open_opencl()
    first = GatherStep(device, [1, 0, 1], narrow=(2, 4))
    with pytest.raises(OutOfBoundsError):
        first.at.write(np.int32([[3, 0]] * 3))
    second = GatherStep(device, [1, 0, 1])
    assert second.traced == 0
    second.at.write(np.int32([[3, 0]] * 3))
    assert second.taken()["taken"] == [9, 9, 9]


def test_step_with_a_repeated_state_has_another_outline(folder: Path) -> None:
    device = open_opencl()

    class Two:
        __module__ = PACKAGE_MODULE

        def __init__(self, a: Tensor, b: Tensor) -> None:
            self.a, self.b = a, b
            self.program = compile(self.step, device, depends_on=0, states=[a, b])

        def step(self) -> dict[str, Tensor]:
            return {"y": self.a * 10 + self.b}

    one, other = (Tensor(np.float32([n]), device) for n in (1, 5))
    for pair, expected in (((one, one), 11), ((one, other), 15), ((other, other), 55)):
        two = Two(*pair)
        two.program.run()
        assert two.program.read("y") == expected


@pytest.mark.parametrize("stored_bounds", [
    [[[["BUFFER", [], None, [1], "i32"]], [7], [0, 3]]],
    [[[["NOTHING", [], None, [1], "i32"]], [0], [0, 3]]],
    [[[], [0], [0, 3]]], [7], [[[["PARAMETER", [], [0, 0], [3], "i33"]], [0], [0, 3]]],
])  # fmt: skip
def test_invalid_bounds_in_an_entry_are_ignored(stored_bounds: list[Any]) -> None:
    device = open_device("numpy")
    states = [Tensor(np.int32([1]), device).node.arg]
    assert not import_bounds(stored_bounds, states, [], device)
    assert not states[0].limits


def test_bounds_that_depend_on_undeclared_states_are_not_exported() -> None:
    device = open_device("numpy")
    at, other, table = (Tensor(np.int32([0, 1]), device) for _ in range(3))
    kept = compile(lambda: {"y": table.gather(Tensor.concat([at, other]))}, device)
    assert kept.outputs
    assert export_bounds([at.node.arg]) is None
    assert export_bounds([at.node.arg, other.node.arg])


def test_compiled_program_does_not_keep_its_step_object_alive(folder: Path) -> None:
    device = open_opencl()
    for _ in range(2):
        gone = ref(CountingStep(device))
        assert gone() is None
