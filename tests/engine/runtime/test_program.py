"""Programs: what a run does and must not do, how results are read, and training programs."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import EMULATED, open_mapping, open_opencl, small_pixels, with_units
from reference import close

from imgmlp.codec.float_mlp.config import PRESETS, Settings
from imgmlp.codec.float_mlp.features import encoding
from imgmlp.codec.float_mlp.fit import TrainingStep
from imgmlp.engine import (
    AnyDevice,
    Device,
    Feeder,
    Pages,
    Program,
    Receiver,
    Tensor,
    compile,
    cond,
    memory_needed,
    nn,
    open_device,
    optim,
)
from imgmlp.engine.device.base import KernelHandle
from imgmlp.engine.ir.kernel import Block, Fused
from imgmlp.engine.ir.target import Lanes
from imgmlp.engine.runtime.executable import functions
from imgmlp.engine.tiling.block import MAX_TILE_ROWS
from imgmlp.errors import ImgmlpWarning, OutOfMemoryError


def counting_program(device: AnyDevice) -> tuple[Program, Tensor]:
    count = Tensor(np.int32(0), device)

    def step() -> dict[str, Tensor]:
        count.assign(count + 1)
        return {"square": count * count}

    return compile(step, device), count


def test_state_carries_over_from_run_to_run(device: AnyDevice) -> None:
    program, count = counting_program(device)
    assert count.item() == 0  # compiling runs nothing
    program.run(7)
    assert program.read("square") == 36
    assert count.item() == 7


def test_concurrent_runs_of_a_program_lose_no_step(device: AnyDevice) -> None:
    threads, runs = 4, 50
    state = Tensor(np.zeros(3, np.float32), device)

    def step() -> dict[str, Tensor]:
        state.assign(state + 1 + 0 * (state.reshape(3, 1) @ state.reshape(1, 3)).sum())
        return {"state": state}

    program = compile(step, device, general=True)  # several launches per step
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for each in [pool.submit(program.run) for _ in range(threads * runs)]:
                each.result()
    finally:
        sys.setswitchinterval(interval)
    assert state.numpy().tolist() == [threads * runs] * 3


@pytest.mark.parametrize(
    ("runs", "error"), [(0, ValueError), (-1, ValueError), ("a", TypeError), (2.0, TypeError)]
)
def test_timing_needs_at_least_one_run(runs: Any, error: type[Exception]) -> None:
    program, _ = counting_program(open_device("numpy"))
    for measure in (program.time, program.render_times):
        with pytest.raises(error, match=rf"time: .* runs?\b.*, not .*{runs}.*test_program\.py"):
            measure(runs)


def test_compile_errors_name_the_line_of_the_caller() -> None:
    device = open_device("numpy")
    x, other = Tensor([1.0], device), Tensor([1.0], open_device("numpy"))
    with pytest.raises(ValueError, match=r"precision is 'double'; .*test_program\.py"):
        compile(lambda: {"y": x * 2}, device, precision="double")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"is on device .*test_program\.py"):
        compile(lambda: {"y": other * 2}, device)


def test_reading_an_output_before_the_first_run_is_refused(device: AnyDevice) -> None:
    total = Tensor(np.float32(3), device)

    def step() -> dict[str, Tensor]:
        total.assign(total + 1)
        return {"twice": total * 2, "total": total, "next": total + 1}

    program = compile(step, device)
    receiver = Receiver(program, ["twice", "total"], lambda *_: None)
    program.run(0)
    with pytest.raises(ValueError, match="'twice' has no value before the first run"):
        program.read("twice")
    with pytest.raises(ValueError, match="'twice' has no value before the first run"):
        receiver.send()
    assert program.read("total") == program.read("next") == 3  # a state has a value
    receiver.send(names=["total"])
    receiver.wait()
    program.run()
    assert program.read("twice") == 6
    assert program.read("total") == 4
    with pytest.raises(TypeError, match=r"run: takes a whole number of steps, not 1\.5"):
        program.run(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="compile: takes a device that open_device"):
        compile(step, None)  # type: ignore[arg-type]


def test_two_programs_share_state(device: AnyDevice) -> None:
    first, count = counting_program(device)
    second = compile(lambda: {"double": count * 2}, device)
    first.run(3)
    second.run()
    assert second.read("double") == 6


def test_programs_beside_each_other_share_the_arena() -> None:
    device = open_opencl()
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device).realize()

    def products(times: int) -> dict[str, Tensor]:
        y = x
        for _ in range(times):
            y = y @ (x.permute(1, 0) @ x)
        return {"y": y}

    large = compile(lambda: products(3), device)
    before = device.usage.live_bytes
    small = compile(lambda: products(2), device, beside=large)
    assert small.arena[0] is large.arena[0]
    assert device.usage.live_bytes - before == small.outputs["y"].nbytes
    none = compile(lambda: {"y": x + 1}, device)
    own = compile(lambda: products(3), device, beside=none)  # the arena of `none` is too small
    assert sum(a.nbytes for a in own.arena) == sum(a.nbytes for a in large.arena) > 0
    values = x.numpy().astype(np.float64)
    for program, times in ((small, 2), (large, 3), (small, 2)):
        program.run()
        expected = values @ np.linalg.matrix_power(values.T @ values, times)
        assert np.allclose(program.read("y"), expected, rtol=1e-5)


def test_programs_beside_each_other_build_common_kernels_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither program builds kernels that only the other one needs."""
    device = open_opencl()
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device).realize()

    def step(last: float) -> dict[str, Tensor]:
        y = (x.permute(1, 0) @ x).contiguous()
        return {"y": (y * last).sum(axis=0)}

    first = compile(lambda: step(2.0), device, general=True)
    built: list[str] = []
    build = type(device).build

    def told(device: Device, source: str, *names: Any) -> dict[str, KernelHandle]:
        built.append(source)
        return build(device, source, *names)

    monkeypatch.setattr(type(device), "build", told)
    second = compile(lambda: step(3.0), device, general=True, beside=first)
    alone = compile(lambda: step(3.0), device, general=True)
    (head, less), (same, whole) = map(functions, built)
    assert head == same
    assert 0 < len(less) < len(whole)
    assert less.items() <= whole.items()
    again = compile(lambda: step(3.0), device, general=True, beside=alone)
    assert len(built) == 2  # the last program needed no build
    expected = (x.numpy().T @ x.numpy()).sum(axis=0)
    for program, times in ((second, 3), (first, 2), (again, 3)):
        program.run()
        assert np.array_equal(program.read("y"), times * expected)


def test_running_again_allocates_builds_and_uploads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_opencl()
    program, count = counting_program(device)
    program.run(2)
    program.wait()

    def forbidden(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("called while replaying")

    for name in ("alloc", "slice", "write", "read", "copy", "build", "bind", "finish"):
        monkeypatch.setattr(device, name, forbidden)
    program.run(5)
    monkeypatch.undo()
    assert count.item() == 7


def test_receiver_delivers_values_of_the_request_in_order(device: AnyDevice) -> None:
    program, _ = counting_program(device)
    received: list[tuple[int, int]] = []
    receiver = Receiver(
        program, ["square"], lambda tag, got: received.append((tag, int(got["square"])))
    )
    for step in range(1, 6):
        program.run()
        receiver.send(step)
    receiver.wait()
    assert received == [(1, 0), (2, 1), (3, 4), (4, 9), (5, 16)]
    receiver.poll()
    assert len(received) == 5


def test_output_that_is_also_assigned_is_read_from_the_state(device: AnyDevice) -> None:
    state = Tensor([1.0, 2.0], device)

    def step() -> dict[str, Tensor]:
        value = state + 1
        state.assign(value)
        return {"value": value}

    program = compile(step, device)
    program.run()
    assert program.read("value").tolist() == [2, 3]
    state.write(np.float32([7, 7]))
    assert program.read("value").tolist() == [7, 7]


def test_tensors_of_another_device_are_refused(device: AnyDevice) -> None:
    other = Tensor([1.0], open_opencl() if device.info.kind == "numpy" else open_device("numpy"))
    with pytest.raises(ValueError, match="device"):
        compile(lambda: {"sum": other + 1}, device)
    with pytest.raises(ValueError, match="different devices"):
        Tensor([1.0], device) + other


def test_state_without_a_device_moves_to_that_of_its_first_program(device: AnyDevice) -> None:
    w = Tensor(np.float32([1, 2]))
    x = Tensor(np.float32([3, 4]), device)
    adam = optim.Adam([w], 0.1)
    with pytest.raises(ValueError, match="was made without a device"):
        w.numpy()
    compile(lambda: adam.step((w * x).sum()) or {}, device).run()
    assert np.allclose(w.numpy(), [0.9, 1.9])
    assert np.allclose((w * 2).numpy(), [1.8, 3.8])
    assert np.allclose(adam.state()[0].numpy(), [0.3, 0.4])
    assert w.write(np.float32([5, 6])).numpy().tolist() == [5, 6]
    assert w.assign(w + 1).numpy().tolist() == [6, 7]


def test_memory_needed_reads_zeros_and_sends_nothing(device: AnyDevice) -> None:
    """Sent values go nowhere, so that programs with Feeders and Receivers can be planned."""
    results: list[object] = []

    def build(on: AnyDevice) -> object:
        x = Tensor(np.float32([1, 2]), on)
        results.append(x.sum().item())
        program = compile(lambda: {"y": x * 2}, on)
        Feeder(program, x).send(np.float32([3, 4]))
        program.run(3)
        results.append(program.read("y").tolist())
        receiver = Receiver(program, ["y"], lambda _, arrays: results.append(arrays["y"].tolist()))
        receiver.send()
        receiver.wait()
        pages = Pages(x)
        pages.turn(pages.add(np.float32([5, 6])))
        results.append(x[Tensor([0, 1], on) + 1].numpy().tolist())
        return program, pages

    assert memory_needed(build, device).total >= 3 * 8
    assert results == [0, [0, 0], [0, 0], [0, 0]]


def test_assignment_outside_of_a_step_is_immediate(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0], device)
    x.assign(x * 3 + 1)
    assert np.array_equal(x.numpy(), [4.0, 7.0])


def training_step(device: AnyDevice, general: bool = False, **changes: Any) -> TrainingStep:
    fields = {**vars(PRESETS["default"]), "batch": 100, **changes}
    settings = Settings(**fields)
    pixels = small_pixels()
    height, width, channels = pixels.shape
    frequencies = encoding(settings, width, height)
    network = settings.architecture(channels)
    return TrainingStep(pixels, network, frequencies, settings, device, general)


@pytest.mark.parametrize("preset", ["default", "seed"])
def test_training_steps_agree_with_numpy(device: AnyDevice, preset: str) -> None:
    """Rounding differs between devices: after 100 steps the loss may differ by 1 in 1,000."""
    count = 20 if device.info.spec in EMULATED else 100
    changes = {**vars(PRESETS[preset]), "steps": 100, "batch": 100}
    losses = []
    for where in (open_device("numpy"), device):
        step = training_step(where, **changes)
        step.program.run(count)
        losses.append(float(step.program.read("smooth")))
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert losses[0] < 0.2 or count < 100


@pytest.mark.parametrize(("memory", "refused"), [(0, False), (7_999, True), (8_000, False)])
def test_numpy_device_refuses_peak_memory_beyond_that_of_the_host(
    memory: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of eight consecutive values of 4,000 bytes are live; a memory of 0 means unknown."""
    numpy = open_device("numpy")
    x = Tensor(np.ones(1000, np.float32), numpy)

    def step() -> dict[str, Tensor]:
        value = x
        for _ in range(4):
            value = (value * x).exp()
        return {"value": value}

    program = compile(step, numpy)
    monkeypatch.setattr("imgmlp.engine.runtime.interpreted.host_memory", lambda: memory)
    if not refused:
        program.run()
        return
    with pytest.raises(OutOfMemoryError, match=r"8,000 bytes at once, this machine has 7,999"):
        program.run()


def test_equal_seeds_train_to_identical_bits(device: AnyDevice) -> None:
    results = list[np.ndarray]()
    # another seed is another source: its kernels would all be compiled
    for seed in (5, 5) if isinstance(device, Device) else (5, 5, 6):
        step = training_step(device, seed=seed, hidden=16, layers=2)
        step.program.run(20)
        results.append(step.flat.numpy())
    same, again, *others = results
    assert np.array_equal(same, again)
    assert not any(np.array_equal(same, other) for other in others)


def test_general_training_step_has_15_kernels_in_at_most_12_launches() -> None:
    program = training_step(open_opencl(), general=True).program
    launches = program.stages.procedure.kernels
    assert sum(len(k.members) if isinstance(k, Fused) else 1 for k in launches) == 15
    assert len(program.launches) <= 12


def test_training_step_with_a_block_has_at_most_2_launches() -> None:
    device = open_opencl()
    program = training_step(device).program
    assert len(program.stages.procedure.phases) == 2
    assert len(program.launches) == (1 if device.keeps_groups else 2)


def test_general_schedule_has_no_block_and_more_launches() -> None:
    device = open_device("numpy")
    general, block = (training_step(device, general=g).program.stages for g in (True, False))
    assert not any(isinstance(launch, Block) for launch in general.procedure.kernels)
    assert sum(isinstance(launch, Block) for launch in block.procedure.kernels) == 1
    assert len(block.procedure.kernels) < len(general.procedure.kernels)


def gradient_program(device: AnyDevice) -> Program:
    """Gradients of two layers, which make a block of tiles of 64 rows."""
    x = Tensor(np.sin(np.arange(640 * 5, dtype=np.float32)).reshape(640, 5), device)
    first, second = (
        Tensor(np.cos(np.arange(n * m, dtype=np.float32)).reshape(n, m), device)
        for n, m in ((5, 4), (4, 3))
    )

    def step() -> dict[str, Tensor]:
        loss = ((x @ first).leaky_relu(0.1) @ second).square().sum()
        return dict(zip("ab", loss.gradient([first, second]), strict=True))

    return compile(step, device)


@pytest.mark.parametrize(
    ("refused", "rows", "message"),
    [(1, 32, "tiles of 32 rows instead of 64"), (2, None, "kernels one by one")],
)
def test_tiles_shrink_if_a_kernel_exceeds_local_memory(
    monkeypatch: pytest.MonkeyPatch, refused: int, rows: int | None, message: str
) -> None:
    monkeypatch.setattr("imgmlp.engine.runtime.program.MIN_TILE_ROWS", 32)
    monkeypatch.setitem(MAX_TILE_ROWS, "one", 64)
    tried: list[str] = []

    def shortage(_: Device, kernel: KernelHandle, lanes: int) -> str | None:
        if "block" not in kernel.name or len(tried) == refused:
            return None
        tried.append(kernel.name)
        return f"{kernel.name} has no room"

    monkeypatch.setattr(Device, "shortage", shortage)
    monkeypatch.setattr(
        Device, "keeps_groups", False
    )  # as on devices whose local memory may be too small
    with pytest.warns(ImgmlpWarning, match=message) as warned:
        program = gradient_program(with_units(open_mapping("one"), 2))
    assert {w.filename for w in warned} == {__file__}  # the warning names the caller of compile
    blocks = [k.rows for k in program.stages.procedure.kernels if isinstance(k, Block)]
    assert blocks == ([rows] if rows else [])
    program.run()
    expected = gradient_program(open_device("numpy"))
    expected.run()
    for name in ("a", "b"):
        assert close(program.read(name), expected.read(name)), name


def test_kernel_beyond_local_memory_in_any_tile_size_is_refused() -> None:
    device = open_mapping("group")
    # negative, because PoCL 5 reports before a launch that kernels need 0 bytes
    device.info = replace(device.info, local_memory=-1)
    with pytest.raises(OutOfMemoryError, match=r"needs [\d,]+ bytes of local memory") as raised:
        gradient_program(device)
    assert raised.value.exit_code == 7


def test_equal_layers_share_kernels() -> None:
    device = open_opencl()
    net = nn.Sequential(*(nn.TransformerEncoder(8, 2, 12, 10 * i, device) for i in range(3)))
    x = Tensor(np.ones((2, 5, 8), np.float32), device)
    program = compile(lambda: {"y": net(x)}, device)
    assert program.stages.source.count("__kernel") <= len(program.launches) // 2


def transformer_program(device: AnyDevice, layers: int) -> Program:
    """A step of gradient descent of a transformer that classifies into 5 classes."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2, 7, 12)).astype(np.float32)  # [batch, time, features]
    x, target = Tensor(values, device), Tensor(rng.integers(0, 5, 14), device)
    encoders = [nn.TransformerEncoder(12, 3, 20, 10 * i, device) for i in range(layers)]
    net = nn.Sequential(*encoders, nn.Linear.random(12, 5, 99, device))
    optimizer = optim.SGD(net.parameters(), lr=0.05)

    def step() -> dict[str, Tensor]:
        loss = nn.cross_entropy(net(x).reshape(14, 5), target)
        optimizer.step(loss)
        return {"loss": loss}

    return compile(step, device)


def test_transformer_loss_curve_is_the_same_on_every_device(device: AnyDevice) -> None:
    """20 steps of gradient descent; float32 rounding stays below 1e-4 of the loss."""
    results = list[list[float]]()
    for where in (open_device("numpy"), device):
        program, losses = transformer_program(where, layers=2), list[float]()
        for _ in range(20):
            program.run()
            losses.append(float(program.read("loss")))
        results.append(losses)
    expected, losses = results
    assert losses == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0] * 0.8


@pytest.mark.parametrize("lanes", ["one", "group"])
def test_kernels_of_one_transformer_layer_are_a_subset_of_those_of_two(lanes: Lanes) -> None:
    """So other tests of one layer compile no kernels in addition to those of two."""
    device = open_device("numpy")
    device.lanes = lanes

    def kernels(layers: int) -> set[str]:
        _, texts = functions(transformer_program(device, layers).stages.source)
        return {text.replace(name, "", 1) for name, text in texts.items()}

    assert kernels(1) < kernels(2)


def test_cond_whose_untaken_branch_needs_an_unread_buffer_runs(device: AnyDevice) -> None:
    """The expressions of a kernel name the buffer, its instructions do not read it."""
    x, y = Tensor(np.ones((1, 5)), device), Tensor(np.full((1, 5), 2.0), device)
    result = cond(x.max() > 2, lambda: x, lambda: x + (y.abs() + 0.5).tril(-1))
    assert result.numpy().tolist() == [[1.0] * 5]
