"""Lowered programs are cached on disk, and found again for equal steps only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
    loop,
    memory_needed,
    open_device,
    optim,
)
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.graph import Node, concat, const
from imgmlp.engine.ir.target import Target
from imgmlp.engine.runtime import program, program_cache
from imgmlp.engine.runtime.executable import Executable
from imgmlp.engine.runtime.program_cache import FOLDER, identify, key

Step = Callable[[AnyDevice], Program]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of entries, private to a test."""
    monkeypatch.setattr(program_cache, "cache_folder", lambda: tmp_path)
    return tmp_path / FOLDER


def training_program(device: AnyDevice, rows: int = 640, rate: float = 0.01) -> Program:
    """Adam on two layers: a block, sums over rows and states."""
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


def control_flow_program(device: AnyDevice) -> Program:
    """A loop inside of cond, with a gather."""
    matrix = Tensor(np.eye(3, dtype=np.float32) * 2, device)
    left = Tensor(np.int32(1), device)
    index = Tensor(np.array([2, 0], np.int32), device)

    def step() -> dict[str, Tensor]:
        left.assign(left - 1)
        powers = loop(4, lambda i, v: matrix @ v + i, matrix)
        y = cond(left, lambda: powers, lambda: matrix * 3)
        return {"loss": y.gather(index), "first": y}

    return compile(step, device)


def run_and_read(compiled: Program) -> list[bytes]:
    """All outputs after some steps."""
    compiled.run(3)
    return [compiled.read(name).tobytes() for name in compiled.outputs]


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture
def forbid_lowering(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function after whose call any lowering fails the test."""

    def lower(*_: object) -> None:
        raise AssertionError("lowered again")

    return lambda: monkeypatch.setattr("imgmlp.engine.compiler.lower", lower)


@pytest.mark.parametrize("step", [training_program, control_flow_program])
def test_equal_step_is_not_lowered_again(
    step: Step, kernels: Device, folder: Path, forbid_lowering: Callable[[], None]
) -> None:
    before = kernels.lowering
    expected = run_and_read(step(kernels))
    assert len(entries(folder)) == 1
    taken = kernels.lowering - before
    assert taken > 0
    forbid_lowering()
    cached = step(kernels)
    assert run_and_read(cached) == expected
    assert cached.time(1)
    assert kernels.lowering - before == taken


def test_stages_of_a_cached_step_can_be_inspected(folder: Path) -> None:
    device = open_opencl()
    first, second = training_program(device), training_program(device)
    assert "stages" not in vars(second)
    assert second.stages.source == second.executable.source == first.stages.source
    assert "imgmlp_" in second.stages.show("source")
    assert len(second.render_times(1).splitlines()) == 2 + len(second.launches)


def test_debug_lowers_a_cached_step_to_show_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = open_opencl()
    training_program(device)
    monkeypatch.setenv("DEBUG", "1")
    assert "stages" in vars(training_program(device))
    assert "milliseconds to compile" in capsys.readouterr().err


def test_memory_needed_and_compile_share_the_cache_entry(
    folder: Path, forbid_lowering: Callable[[], None]
) -> None:
    device = open_opencl()
    expected = memory_needed(training_program, device)
    forbid_lowering()
    training_program(device)
    assert memory_needed(training_program, device) == expected


# --- keys of entries ---


def graph_key(step: Step) -> str:
    return identify(step(open_device("numpy")).updates)[0]


def small_step(
    shape: tuple[int, ...] = (4, 4), kind: type = np.float32, factor: float = 2.0, axis: int = 0,
    swapped: bool = False, crossed: bool = False, one: bool = False, times: int = 3,
    name: str = "x", seed: int = 0,
) -> Step:  # fmt: skip
    """A small step; the arguments are what may differ."""

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
    expected = graph_key(small_step())
    assert graph_key(small_step(name="other", seed=1)) == expected
    device = open_device("numpy")
    first = small_step()(device)
    kept = [
        Tensor(np.float32(i), device) * 2.0 + 1.0 for i in range(3)
    ]  # constants created earlier
    assert identify(small_step()(device).updates)[0] == identify(first.updates)[0] == expected
    assert len(kept) == 3


def test_generated_source_ignores_other_graphs_of_the_process() -> None:
    """Otherwise the driver's cache would have no entry for the same step compiled later."""
    device = open_opencl()

    def filling(n: int) -> Node:
        return const(n + 0.5, f32, (3 + n, 5 + n))

    def source() -> str:
        parts = (Tensor(np.ones((4, 5 + n), np.float32), device).node for n in range(3))
        outputs = {f"y{n}": concat([part, filling(n)], 0) for n, part in enumerate(parts)}
        return Program(device, outputs, ()).executable.source

    expected = source()
    held = [filling(n) for n in (2, 1, 0)]
    assert source() == expected
    assert len(held) == 3


def test_key_ignores_functions_of_constants_held_by_others() -> None:
    """A function of a constant is one Node wherever it is built, as its gradient has one rule."""
    device = open_device("numpy")

    def filling(n: int) -> Tensor:
        return Tensor.full((2, 5 + n), 0.5).tanh()

    def key_of_step() -> str:
        x = [Tensor(np.ones((4, 5 + n), np.float32), device) for n in range(2)]
        outputs = lambda: {str(n): Tensor.concat([x[n], filling(n)]) for n in range(2)}  # noqa: E731
        return identify(compile(outputs, device).updates)[0]

    expected = key_of_step()
    held = [filling(n) for n in (1, 0)]
    assert key_of_step() == expected
    assert len(held) == 2


@pytest.mark.parametrize(
    "other",
    [
        small_step(shape=(4, 5)), small_step(shape=(2, 8)), small_step(kind=np.int32),
        small_step(factor=3.0), small_step(factor=-2.0), small_step(axis=1),
        small_step(swapped=True), small_step(crossed=True), small_step(one=True),
        small_step(times=4),
    ],
)  # fmt: skip
def test_different_graphs_have_different_keys(other: Step) -> None:
    assert graph_key(other) != graph_key(small_step())


def test_zeros_of_both_signs_have_different_keys() -> None:
    def step(zero: float) -> Step:
        return lambda device: compile(
            lambda: {"y": Tensor(np.ones(2, np.float32), device).maximum(zero)}, device
        )

    assert graph_key(step(0.0)) != graph_key(step(-0.0))


def test_buffers_are_ordered_by_first_use() -> None:
    compiled = small_step()(open_device("numpy"))
    _, buffers = identify(compiled.updates)
    assert [b.name for b in buffers] == ["x", "x2", "product", "after"]


OTHER_TARGETS = [
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
    other = {n for t in OTHER_TARGETS for n in t.__slots__ if getattr(t, n) != getattr(usual, n)}
    assert other == set(usual.__slots__)  # every field of Target
    names = [key("a", target, False) for target in [Target(), *OTHER_TARGETS]]
    names += [key("a", Target(), True), key("b", Target(), False)]
    monkeypatch.setattr(program_cache, "source_digest", lambda: "another version")
    names.append(key("a", Target(), False))
    assert len(set(names)) == len(OTHER_TARGETS) + 4
    monkeypatch.undo()
    monkeypatch.setattr(program_cache.np, "__version__", "another")
    assert key("a", Target(), False) not in names


def test_source_digest_is_taken_at_import() -> None:
    """Otherwise a process running the old version would store its entries for the updated one."""
    code = "import imgmlp.engine.runtime.program_cache as cache; "
    code += "print(cache.source_digest.cache_info().currsize)"
    command = [sys.executable, "-c", code]
    process = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=True)
    assert int(process.stdout) == 1


def test_step_with_smaller_tiles_has_an_entry_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, forbid_lowering: Callable[[], None]
) -> None:
    messages: list[str] = []
    monkeypatch.setattr(program, "warn", lambda text, _: messages.append(text))
    monkeypatch.setattr(Device, "keeps_groups", False)  # only then the shortage is checked
    device = with_units(open_mapping("one"), 2)
    large = training_program(device).executable.block_rows
    monkeypatch.setattr(Device, "shortage", lambda *_: None if messages else "no room")
    assert training_program(device).executable.block_rows == large // 2 > 0
    assert len(entries(folder)) == 2
    forbid_lowering()
    messages.clear()
    assert training_program(device).executable.block_rows == large // 2
    assert len(messages) == 1


# --- damaged entries ---


def truncated(text: bytes) -> bytes:
    return text[: len(text) // 2]


def with_flipped_bit(text: bytes) -> bytes:
    middle = len(text) // 2
    return text[:middle] + bytes([text[middle] ^ 1]) + text[middle + 1 :]


def with_valid_digest(text: str) -> Callable[[bytes], bytes]:
    """Other text with the digest of this entry."""

    def made(_: bytes) -> bytes:
        return f"{program_cache._digest(ENTRY_NAME[0], text)}\n{text}".encode()

    return made


ENTRY_NAME: list[str] = [""]  # set by the test


@pytest.mark.parametrize(
    "spoil",
    [
        truncated, with_flipped_bit, lambda _: b"", lambda _: b"\xff\xfe\n", lambda _: b"{}",
        lambda text: text.partition(b"\n")[2], lambda text: text + b" ",
        with_valid_digest("[]"), with_valid_digest("{}"), with_valid_digest('"text"'),
        with_valid_digest("nothing of JSON"),
        with_valid_digest('{"calls": 3, "places": [], "order": [], "allocations": []}'),
    ],
)  # fmt: skip
def test_damaged_entry_is_rewritten(spoil: Callable[[bytes], bytes], folder: Path) -> None:
    device = open_device("numpy:uops")
    expected = small_step()(device).executable
    (path,) = entries(folder)
    good, ENTRY_NAME[0] = path.read_bytes(), path.stem
    assert program_cache.load(path.stem, Executable.parse) == expected
    path.write_bytes(spoil(good))
    assert program_cache.load(path.stem, Executable.parse) is None
    lowered = small_step()(device)
    assert lowered.executable == expected
    assert "stages" in vars(lowered)
    assert path.read_bytes() == good


def test_entry_of_another_step_is_rejected(folder: Path) -> None:
    device = open_device("numpy:uops")
    assert small_step()(device).executable
    (path,) = entries(folder)
    assert control_flow_program(device).executable
    (other,) = set(entries(folder)) - {path}
    other.write_bytes(path.read_bytes())
    assert program_cache.load(path.stem, Executable.parse) is not None
    assert program_cache.load(other.stem, Executable.parse) is None


# --- the folder ---


def test_step_is_lowered_if_the_cache_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("read-only")

    device = open_opencl()
    expected = run_and_read(training_program(device))
    (path,) = entries(folder)
    path.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", refuse)
        assert run_and_read(training_program(device)) == expected
    assert not entries(folder)  # no temporary file either
    folder.rmdir()
    folder.write_text("no folder")
    assert run_and_read(training_program(device)) == expected
    monkeypatch.setattr(program_cache, "cache_folder", lambda: None)
    assert run_and_read(training_program(device)) == expected


def test_least_recently_used_entries_are_removed_beyond_the_limits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device("numpy:uops")
    steps = [small_step(shape=(4, n)) for n in range(2, 6)]
    for age, step in enumerate(steps[:3]):
        old = set(entries(folder))
        assert step(device).executable
        (new,) = set(entries(folder)) - old
        os.utime(new, (1e9 + age, 1e9 + age))
    oldest, second, third = sorted(entries(folder), key=lambda p: p.stat().st_mtime)
    assert program_cache.load(oldest.stem, Executable.parse)  # now it is the most recently used one
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
    assert small_step(shape=(4, 8))(device).executable
    assert len([path for path in entries(folder) if path != lately]) == 2
    monkeypatch.setattr(program_cache, "MAX_ENTRY_BYTES", 10)
    before = entries(folder)
    assert small_step(shape=(4, 9))(device).executable
    assert entries(folder) == before


# A process that compiles a step on a signal, and prints whether it lowered it, and its outputs.
COMPILING_PROCESS = """
import sys
sys.path[:0] = sys.argv[1:3]
from test_program_cache import run_and_read, training_program
from conftest import OPENCL, open_opencl
OPENCL["device"] = sys.argv[3]
device = open_opencl()
print("ready", flush=True)
sys.stdin.readline()
found = training_program(device)
print("stages" in vars(found), b"".join(run_and_read(found)).hex())
"""


def test_concurrent_processes_share_the_cache_safely(tmp_path: Path) -> None:
    tests = [str(Path(__file__).parents[n]) for n in (0, 2)]
    command = [sys.executable, "-c", COMPILING_PROCESS, *tests, OPENCL["device"]]

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
