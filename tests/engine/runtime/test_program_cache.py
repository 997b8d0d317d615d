"""What lowering gave is found again by the next process, for the same step alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
from conftest import OPENCL, environment, open_mapping, open_opencl, with_units

from imgmlp.engine import (
    AnyDevice,
    Device,
    Program,
    Tensor,
    compile,
    cond,
    dtype,
    loop,
    memory_needed,
    open_device,
    optim,
)
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.graph import Node, concat, const
from imgmlp.engine.ir.target import Target
from imgmlp.engine.ir.usage_errors import OutOfBoundsError
from imgmlp.engine.oracle.index_bounds import export_bounds, import_bounds
from imgmlp.engine.runtime import program, program_cache
from imgmlp.engine.runtime.executable import Executable
from imgmlp.engine.runtime.program_cache import FOLDER, identify, key
from imgmlp.errors import ImgmlpWarning

Step = Callable[[AnyDevice], Program]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where entries are, of this test alone."""
    monkeypatch.setattr(program_cache, "cache_folder", lambda: tmp_path)
    return tmp_path / FOLDER


def learning(device: AnyDevice, rows: int = 640, rate: float = 0.01) -> Program:
    """Some steps of Adam on two layers: a block, sums over rows and states."""
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((rows, 5)).astype(np.float32), device)
    weights = [
        Tensor(rng.standard_normal(shape).astype(np.float32), device, requires_grad=True)
        for shape in ((5, 8), (8, 3))
    ]
    adam = optim.Adam(weights, rate)

    def step() -> dict[str, Tensor]:
        loss = ((x @ weights[0]).leaky_relu(0.1) @ weights[1]).square().sum()
        adam.step(loss)
        return {"loss": loss, "first": weights[0] * 1.0}

    return compile(step, device)


def control(device: AnyDevice) -> Program:
    """A loop in a choice, with a gather."""
    matrix = Tensor(np.eye(3, dtype=np.float32) * 2, device)
    left = Tensor(np.int32(1), device)
    index = Tensor(np.array([2, 0], np.int32), device)

    def step() -> dict[str, Tensor]:
        left.assign(left - 1)
        powers = loop(4, lambda i, v: matrix @ v + i, matrix)
        y = cond(left, lambda: powers, lambda: matrix * 3)
        return {"loss": y.gather(index), "first": y}

    return compile(step, device)


def values(found: Program) -> list[bytes]:
    """All outputs after some steps."""
    found.run(3)
    return [found.read(name).tobytes() for name in found.outputs]


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called, nothing can be lowered."""

    def lower(*_: object) -> None:
        raise AssertionError("lowered again")

    return lambda: monkeypatch.setattr("imgmlp.engine.compiler.lower", lower)


@pytest.mark.parametrize("step", [learning, control])
def test_equal_step_is_not_lowered_again(
    step: Step, kernels: Device, folder: Path, refused: Callable[[], None]
) -> None:
    before = kernels.lowering
    wanted = values(step(kernels))
    assert len(entries(folder)) == 1
    taken = kernels.lowering - before
    assert taken > 0
    refused()
    found = step(kernels)
    assert values(found) == wanted
    assert found.time(1)
    assert kernels.lowering - before == taken


def test_stages_of_a_cached_step_can_be_inspected(folder: Path) -> None:
    device = open_opencl()
    first, second = learning(device), learning(device)
    assert "stages" not in vars(second)
    assert second.stages.source == second.executable.source == first.stages.source
    assert "imgmlp_" in second.stages.show("source")
    assert len(second.render_times(1).splitlines()) == 2 + len(second.launches)


def test_debug_lowers_a_cached_step_to_show_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = open_opencl()
    learning(device)
    monkeypatch.setenv("DEBUG", "1")
    assert "stages" in vars(learning(device))
    assert "milliseconds to compile" in capsys.readouterr().err


def test_memory_needed_and_compile_share_the_cache_entry(
    folder: Path, refused: Callable[[], None]
) -> None:
    device = open_opencl()
    wanted = memory_needed(learning, device)
    refused()
    learning(device)
    assert memory_needed(learning, device) == wanted


# --- whose an entry is ---


def graph(step: Step) -> str:
    return identify(step(open_device("numpy")).updates)[0]


def simple(
    shape: tuple[int, ...] = (4, 4), kind: type = np.float32, factor: float = 2.0, axis: int = 0,
    swapped: bool = False, crossed: bool = False, one: bool = False, times: int = 3,
    name: str = "x", seed: int = 0,
) -> Step:  # fmt: skip
    """A small step and what may be different in it."""

    def step(device: AnyDevice) -> Program:
        data = np.random.default_rng(seed).uniform(1, 9, shape).astype(kind)
        x, y = Tensor(data, device, name=name), Tensor(data + 1, device, name=name + "2")
        y = x if one else y

        def build() -> dict[str, Tensor]:
            a, b = (y, x) if swapped else (x, y)
            product = (a * factor - b).sum(axis)
            after = loop(times, lambda i, v: v * 2 + i, product)
            if not one:
                (y if crossed else x).assign(x + 1)
                (x if crossed else y).assign(y + 2)
            return {"product": product, "after": after}

        return compile(build, device)

    return step


def test_key_ignores_data_names_and_other_graphs_of_the_process() -> None:
    wanted = graph(simple())
    assert graph(simple(name="other", seed=1)) == wanted
    device = open_device("numpy")
    first = simple()(device)
    kept = [
        Tensor(np.float32(i), device) * 2.0 + 1.0 for i in range(3)
    ]  # constants of an older age
    assert identify(simple()(device).updates)[0] == identify(first.updates)[0] == wanted
    assert len(kept) == 3


def test_generated_source_ignores_other_graphs_of_the_process() -> None:
    """Or the same step, once more in a process, would find nothing of what the driver keeps."""
    device = open_opencl()

    def filling(n: int) -> Node:
        return const(n + 0.5, f32, (3 + n, 5 + n))

    def source() -> str:
        parts = (Tensor(np.ones((4, 5 + n), np.float32), device).node for n in range(3))
        outputs = {f"y{n}": concat([part, filling(n)], 0) for n, part in enumerate(parts)}
        return Program(device, outputs, ()).executable.source

    wanted = source()
    held = [filling(n) for n in (2, 1, 0)]
    assert source() == wanted
    assert len(held) == 3


def test_key_ignores_functions_of_constants_held_by_others() -> None:
    """Which are one Node wherever they are asked for, as their gradients have one rule."""
    device = open_device("numpy")

    def filling(n: int) -> Tensor:
        return Tensor.full((2, 5 + n), 0.5).tanh()

    def found() -> str:
        x = [Tensor(np.ones((4, 5 + n), np.float32), device) for n in range(2)]
        outputs = lambda: {str(n): Tensor.concat([x[n], filling(n)]) for n in range(2)}  # noqa: E731
        return identify(compile(outputs, device).updates)[0]

    wanted = found()
    held = [filling(n) for n in (1, 0)]
    assert found() == wanted
    assert len(held) == 2


@pytest.mark.parametrize(
    "other",
    [
        simple(shape=(4, 5)), simple(shape=(2, 8)), simple(kind=np.int32), simple(factor=3.0),
        simple(factor=-2.0), simple(axis=1), simple(swapped=True), simple(crossed=True),
        simple(one=True), simple(times=4),
    ],
)  # fmt: skip
def test_different_graphs_have_different_keys(other: Step) -> None:
    assert graph(other) != graph(simple())


def test_zeros_of_both_signs_have_different_keys() -> None:
    def step(zero: float) -> Step:
        return lambda device: compile(
            lambda: {"y": Tensor(np.ones(2, np.float32), device).maximum(zero)}, device
        )

    assert graph(step(0.0)) != graph(step(-0.0))


def test_buffers_are_ordered_by_first_use() -> None:
    found = simple()(open_device("numpy"))
    _, buffers = identify(found.updates)
    assert [b.name for b in buffers] == ["x", "x2", "product", "after"]


TARGETS = [
    Target(lanes="group"),
    Target(compute_units=2),
    Target(vector_width=16),
    Target(alignment=256),
    Target(can_slice=False),
    Target(can_join_kernels=False),
    Target(keeps_groups=True),
    Target(product_mode="half"),
    Target(max_tile_rows=128),
    Target(has_queues=True),
    Target(side_block_rows=64),
]


def test_key_depends_on_target_source_scheduler_and_numpy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = Target()
    other = {n for t in TARGETS for n in t.__slots__ if getattr(t, n) != getattr(usual, n)}
    assert other == set(usual.__slots__)  # all that a Target says
    names = [key("a", target, False) for target in [Target(), *TARGETS]]
    names += [key("a", Target(), True), key("b", Target(), False)]
    monkeypatch.setattr(program_cache, "source_digest", lambda: "another version")
    names.append(key("a", Target(), False))
    assert len(set(names)) == len(TARGETS) + 4
    monkeypatch.undo()
    monkeypatch.setattr(program_cache.np, "__version__", "another")
    assert key("a", Target(), False) not in names


def test_source_digest_is_taken_at_import() -> None:
    """Else a process that compiles after an update gave the new version what the old one made."""
    code = "import imgmlp.engine.runtime.program_cache as cache; "
    code += "print(cache.source_digest.cache_info().currsize)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=True)
    assert int(found.stdout) == 1


def test_step_with_smaller_tiles_has_an_entry_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[[], None]
) -> None:
    told: list[str] = []
    monkeypatch.setattr(program, "warn", lambda text, _: told.append(text))
    monkeypatch.setattr(Device, "keeps_groups", False)  # as on devices that may be short of it
    device = with_units(open_mapping("one"), 2)
    large = learning(device).executable.block_rows
    monkeypatch.setattr(Device, "shortage", lambda *_: None if told else "no room")
    assert learning(device).executable.block_rows == large // 2 > 0
    assert len(entries(folder)) == 2
    refused()
    told.clear()
    assert learning(device).executable.block_rows == large // 2
    assert len(told) == 1


# --- entries that are no good ---


def cut(text: bytes) -> bytes:
    return text[: len(text) // 2]


def flipped(text: bytes) -> bytes:
    middle = len(text) // 2
    return text[:middle] + bytes([text[middle] ^ 1]) + text[middle + 1 :]


def sealed(text: str) -> Callable[[bytes], bytes]:
    """Something else that is whole, and says that it belongs here."""

    def made(_: bytes) -> bytes:
        return f"{program_cache._digest(NAME[0], text)}\n{text}".encode()

    return made


NAME: list[str] = [""]  # of the entry


@pytest.mark.parametrize(
    "spoil",
    [
        cut, flipped, lambda _: b"", lambda _: b"\xff\xfe\n", lambda _: b"{}",
        lambda text: text.partition(b"\n")[2], lambda text: text + b" ",
        sealed("[]"), sealed("{}"), sealed('"text"'), sealed("nothing of JSON"),
        sealed('{"calls": 3, "places": [], "order": [], "allocations": []}'),
    ],
)  # fmt: skip
def test_damaged_entry_is_rewritten(spoil: Callable[[bytes], bytes], folder: Path) -> None:
    device = open_device("numpy:uops")
    wanted = simple()(device).executable
    (path,) = entries(folder)
    good, NAME[0] = path.read_bytes(), path.stem
    assert program_cache.load(path.stem, Executable.parse) == wanted
    path.write_bytes(spoil(good))
    assert program_cache.load(path.stem, Executable.parse) is None
    found = simple()(device)
    assert found.executable == wanted
    assert "stages" in vars(found)
    assert path.read_bytes() == good


def test_entry_of_another_step_is_rejected(folder: Path) -> None:
    device = open_device("numpy:uops")
    assert simple()(device).executable
    (path,) = entries(folder)
    assert control(device).executable
    (other,) = set(entries(folder)) - {path}
    other.write_bytes(path.read_bytes())
    assert program_cache.load(path.stem, Executable.parse) is not None
    assert program_cache.load(other.stem, Executable.parse) is None


# --- where they are kept ---


def test_step_is_lowered_if_the_cache_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("read-only")

    device = open_opencl()
    wanted = values(learning(device))
    (path,) = entries(folder)
    path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", refuse)
        assert values(learning(device)) == wanted
    assert not entries(folder)  # nor what could not get its name
    folder.rmdir()
    folder.write_text("no folder")
    assert values(learning(device)) == wanted
    monkeypatch.setattr(program_cache, "cache_folder", lambda: None)
    assert values(learning(device)) == wanted


def test_least_recently_used_entries_are_removed_beyond_the_limits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device("numpy:uops")
    steps = [simple(shape=(4, n)) for n in range(2, 6)]
    for age, step in enumerate(steps[:3]):
        old = set(entries(folder))
        assert step(device).executable
        (new,) = set(entries(folder)) - old
        os.utime(new, (1e9 + age, 1e9 + age))
    oldest, second, third = sorted(entries(folder), key=lambda p: p.stat().st_mtime)
    assert program_cache.load(oldest.stem, Executable.parse)  # so it is not that any more
    left, lately = folder / "killed.1-2", folder / "at-work.1-2"
    for path in (left, lately):
        path.write_text("")
    os.utime(left, (1e9, 1e9))
    size = sum(path.stat().st_size for path in entries(folder))
    monkeypatch.setattr(program_cache, "MAX_TOTAL_BYTES", size)
    assert steps[3](device).executable
    assert not {second, left} & set(entries(folder))
    assert {oldest, third, lately} < set(entries(folder))
    monkeypatch.setattr(program_cache, "MAX_ENTRIES", 2)
    assert simple(shape=(4, 8))(device).executable
    assert len([path for path in entries(folder) if path != lately]) == 2
    monkeypatch.setattr(program_cache, "MAX_ENTRY_BYTES", 10)
    before = entries(folder)
    assert simple(shape=(4, 9))(device).executable
    assert entries(folder) == before


# A process that compiles a step when it is told to, and says what it gave and whether it was kept.
PROCESS = """
import sys
sys.path[:0] = sys.argv[1:3]
from test_program_cache import learning, values
from conftest import OPENCL, open_opencl
OPENCL["device"] = sys.argv[3]
device = open_opencl()
print("ready", flush=True)
sys.stdin.readline()
found = learning(device)
print("stages" in vars(found), b"".join(values(found)).hex())
"""


def test_concurrent_processes_share_the_cache_safely(tmp_path: Path) -> None:
    tests = [str(Path(__file__).parents[n]) for n in (0, 2)]
    command = [sys.executable, "-c", PROCESS, *tests, OPENCL["device"]]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=environment(POCL_CACHE_DIR=str(tmp_path)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def told(processes: list[subprocess.Popen[str]]) -> list[list[str]]:
        for process in processes:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
        return [process.communicate(timeout=600)[0].split() for process in processes]

    first, second = told([start(), start()])
    assert first[1] == second[1]
    (folder,) = tmp_path.glob(f"processor-*/{FOLDER}")
    assert [path.suffix for path in entries(folder)] == [".json"]
    assert told([start()]) == [["False", first[1]]]


def test_identifying_a_graph_visits_each_node_once() -> None:
    device = open_device("numpy")
    x = Tensor(np.float32(1), device)

    def step() -> dict[str, Tensor]:
        y = x
        for i in range(3000):
            y = y + y * (1 + i * 1e-3)
        return {"y": y}

    _, buffers = identify(compile(step, device).updates)
    assert len(buffers) == 2


# --- steps that need not be traced either ---

OURS = "imgmlp.steps"  # a module whose classes an outline is kept of


class Counting:
    """A step that counts how often it is traced: counts, and gives what a Tensor holds times it."""

    __module__ = OURS

    def __init__(self, device: AnyDevice, factor: float = 2.0, size: int = 6, more: bool = False):
        self.x = Tensor(np.arange(size, dtype=np.float32), device, name="x")
        self.count = Tensor(np.float32(0), device, name="count")
        self.factor, self.more, self.traced = factor, more, 0
        states = [self.x, self.count]
        self.program = compile(self.step, device, depends_on=factor, states=states)

    def step(self) -> dict[str, Tensor]:
        self.traced += 1
        self.count.assign(self.count + 1)
        found = self.x * self.count * self.factor
        if self.more:
            found = found + Tensor(np.ones(self.x.shape, np.float32), self.x.device)
        return {"scaled": found, "sum": found.sum(), "x": self.x, "count": self.count + 1}


def given(step: Counting) -> dict[str, list[float]]:
    step.program.run(3)
    return {name: step.program.read(name).ravel().tolist() for name in step.program.outputs}


def test_outline_replaces_tracing(folder: Path) -> None:
    device = open_opencl()
    first, second = Counting(device), Counting(device)
    assert (first.traced, second.traced) == (1, 0)
    assert given(second) == given(first)
    assert given(second)["scaled"] == [0, 10, 20, 30, 40, 50]  # from the state that is its own
    assert first.program.inputs == {t.node.arg for t in (first.x, first.count)}
    assert second.program.inputs == {t.node.arg for t in (second.x, second.count)}


@pytest.mark.parametrize("other", [{"factor": 3.0}, {"size": 7}])
def test_outline_depends_on_the_arguments_of_the_step(
    folder: Path, other: dict[str, float]
) -> None:
    device = open_opencl()
    assert given(Counting(device)) != given(found := Counting(device, **other))
    assert found.traced == 1


class Doubling:
    """A step that its subclasses complete."""

    __module__ = OURS

    def __init__(self, device: AnyDevice) -> None:
        self.x = Tensor(np.float32([1, 2]), device)
        self.program = compile(self.step, device, depends_on=(), states=[self.x])

    def step(self) -> dict[str, Tensor]:
        return {"y": self.changed(self.x)}

    def changed(self, x: Tensor) -> Tensor:
        return x * 2


def test_outline_depends_on_the_class_of_the_step(folder: Path) -> None:
    class Squaring(Doubling):
        __module__ = OURS

        def changed(self, x: Tensor) -> Tensor:
            return x * x + 100

    device = open_opencl()
    for kind, wanted in ((Doubling, [2, 4]), (Squaring, [101, 104])) * 2:
        program = kind(device).program
        program.run()
        assert program.read("y").tolist() == wanted


def test_no_outline_is_stored_for_classes_outside_of_the_package(folder: Path) -> None:
    class Other(Counting):
        __module__ = __name__

    device = open_opencl()
    found = [Other(device) for _ in range(2)]
    assert [step.traced for step in found] == [1, 1]
    assert given(found[0]) == given(Counting(device))


def test_depends_on_is_refused_for_other_callables_than_methods() -> None:
    device = open_device("numpy")
    x = Tensor(np.float32([1]), device)
    with pytest.raises(TypeError, match="depends_on is for a method"):
        compile(lambda: {"y": x + 1}, device, depends_on=1, states=[x])


def test_step_with_undeclared_tensors_is_traced_each_time(folder: Path) -> None:
    device = open_opencl()
    first, second = (Counting(device, more=True) for _ in range(2))
    assert given(second) == given(first)
    assert second.traced == 1


def test_untraced_step_can_be_inspected_while_its_object_lives(folder: Path) -> None:
    device = open_opencl()
    first, second = Counting(device), Counting(device)
    assert second.program.stages.source == first.program.executable.source
    assert identify(second.program.updates)[0] == identify(first.program.updates)[0]
    assert given(second) == given(first)
    third = Counting(device).program
    with pytest.raises(ReferenceError, match="is gone"):
        _ = third.stages


def test_step_is_traced_if_the_executable_of_its_outline_is_gone(folder: Path) -> None:
    device = open_opencl()
    Counting(device)
    for path in entries(folder):
        if "source" in path.read_text():
            path.unlink()
    found = Counting(device)
    assert found.traced == 1
    assert given(found) == given(Counting(device))


def test_untraced_step_is_traced_for_smaller_tiles(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_opencl()
    wanted = given(Counting(device))
    short = iter(["too large"])
    monkeypatch.setattr(device, "shortage", lambda *_: next(short, None))
    with pytest.warns(ImgmlpWarning, match="too large"):
        found = Counting(device)
    assert found.traced == 1
    assert given(found) == wanted


def limited(of: Tensor, rows: int) -> Program:
    """Another program, which takes some of so many rows by a Tensor."""
    table = Tensor(np.zeros(rows, np.float32), of.device)
    return compile(lambda: {"y": table.gather(of)}, of.device)


class Taking:
    """A step that takes rows by indices that the host gives, of a column of its own.

    `narrow`: of how many rows of others programs take some by its indices, and by its last one.
    """

    __module__ = OURS

    def __init__(
        self, device: AnyDevice, indices: Sequence[int], rows: int = 4, narrow: Sequence[int] = ()
    ) -> None:
        self.x = Tensor(np.arange(rows, dtype=np.float32) ** 2, device, name="x")
        self.at = Tensor(np.int32([[n, n + 70] for n in indices]), device, name="at")
        self.last = Tensor(np.int32([0]), device, name="last")
        (self.last + 1).numpy()  # so that it is on the device
        self.traced, states = 0, [self.x, self.at, self.last]
        both = zip((self.at[:, 0], self.last), narrow, strict=False)
        self.others = [limited(index, count) for index, count in both]
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
    first, second = (Taking(device, [3, 0, 2]) for _ in range(2))
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
        step = Taking(device, [3, 0, 2])
        step.program.run()
        given = [t.node.arg.is_from_host for t in (step.x, step.at, step.last)]
        assert (step.traced, given) == (traced, [True, True, False])


def test_wrong_initial_indices_of_an_untraced_step_are_refused(folder: Path) -> None:
    device = open_opencl()
    Taking(device, [3, 0, 2])
    with pytest.raises(OutOfBoundsError, match="index 4"):
        Taking(device, [3, 4, 2])


def test_bounds_in_an_outline_are_those_of_the_step_alone(folder: Path) -> None:
    """What another program has them limited to does not tell steps apart, and stays."""
    device = open_opencl()
    Taking(device, [3, 0, 2])
    found = Taking.__new__(Taking)
    found.x, found.last = (Tensor(np.zeros(n, t), device) for n, t in ((4, "f4"), (1, "i4")))
    found.at, found.traced = Tensor(np.zeros((3, 2), np.int32), device), 0
    narrow = Tensor(np.zeros(2, np.float32), device)
    other = compile(lambda: {"y": narrow.gather(found.at[:, 1])}, device)
    states = [found.x, found.at, found.last]
    found.program = compile(found.step, device, depends_on=4, states=states)
    assert found.traced == 0
    for wrong in ([[4, 0]] * 3, [[0, 2]] * 3):
        with pytest.raises(OutOfBoundsError):
            found.at.write(np.int32(wrong))
    del other
    found.at.write(np.int32([[0, 2]] * 3))
    del found.program
    found.at.write(np.int32([[4, 2]] * 3))


def test_values_assigned_by_a_step_obey_bounds_of_other_programs(folder: Path) -> None:
    """For which its graph is looked at, though there is an outline."""
    device = open_opencl()
    Taking(device, [3, 0, 2])
    step = Taking(device, [1, 0, 1], narrow=(4, 2))
    assert step.traced == 1
    with pytest.raises(OutOfBoundsError, match="3 is none of them"):
        step.at.write(np.int32([[0, 0], [1, 0], [3, 0]]))


def test_bounds_of_other_programs_are_not_stored_in_the_outline(folder: Path) -> None:
    device = open_opencl()
    first = Taking(device, [1, 0, 1], narrow=(2, 4))
    with pytest.raises(OutOfBoundsError):
        first.at.write(np.int32([[3, 0]] * 3))
    second = Taking(device, [1, 0, 1])
    assert second.traced == 0
    second.at.write(np.int32([[3, 0]] * 3))
    assert second.taken()["taken"] == [9, 9, 9]


def test_step_with_a_repeated_state_has_another_outline(folder: Path) -> None:
    device = open_opencl()

    class Two:
        __module__ = OURS

        def __init__(self, a: Tensor, b: Tensor) -> None:
            self.a, self.b = a, b
            self.program = compile(self.step, device, depends_on=0, states=[a, b])

        def step(self) -> dict[str, Tensor]:
            return {"y": self.a * 10 + self.b}

    one, other = (Tensor(np.float32([n]), device) for n in (1, 5))
    for pair, wanted in (((one, one), 11), ((one, other), 15), ((other, other), 55)):
        two = Two(*pair)
        two.program.run()
        assert two.program.read("y") == wanted


@pytest.mark.parametrize("told", [
    [[[["BUFFER", [], None, [1], "i32"]], [7], [0, 3]]],
    [[[["NOTHING", [], None, [1], "i32"]], [0], [0, 3]]],
    [[[], [0], [0, 3]]], [7], [[[["PARAMETER", [], [0, 0], [3], "i33"]], [0], [0, 3]]],
])  # fmt: skip
def test_invalid_bounds_in_an_entry_are_ignored(told: list[Any]) -> None:
    device = open_device("numpy")
    states = [Tensor(np.int32([1]), device).node.arg]
    assert not import_bounds(told, states, [], device)
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
        gone = ref(Counting(device))
        assert gone() is None
