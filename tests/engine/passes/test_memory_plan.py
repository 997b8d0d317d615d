"""The memory plan: which buffers share bytes, what that saves, and that no freed byte is read."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from conftest import open_mapping, small_pixels
from poison import run_poisoned

from imgmlp.codec.float_mlp.config import PRESETS
from imgmlp.codec.float_mlp.features import encoding
from imgmlp.codec.float_mlp.fit import TrainingStep
from imgmlp.engine import Device, Program, Tensor, compile, loop, nn, optim
from imgmlp.engine.passes.memory_plan import MemoryPlan, plan_memory
from imgmlp.engine.runtime.buffers import read_buffer, write_buffer


def opened(mapping: str, slices: bool) -> Device:
    """A device of a mapping, which can slice allocations or cannot."""
    device = open_mapping(mapping)
    assert isinstance(device, Device)
    if slices and not device.can_slice:
        pytest.skip("its driver crashes where allocations are sliced")
    device.can_slice = slices
    return device


@pytest.fixture(
    scope="module",
    params=[("one", True), ("one", False), ("group", True), ("group", False)],
    ids=lambda p: f"{p[0]}-{'slices' if p[1] else 'whole'}",
)
def device(request: pytest.FixtureRequest) -> Device:
    return opened(*request.param)


def chain(device: Device, links: int = 6) -> Program:
    """Consecutive products, each of which needs only the one before it."""
    x = Tensor(np.eye(40, dtype=np.float32) * 2, device)

    def step() -> dict[str, Tensor]:
        y = x
        for _ in range(links):
            y = y @ x
        return {"y": y}

    return compile(step, device)


def branches(device: Device) -> Program:
    """Values of many sizes and dtypes with long and short lifetimes."""
    x = Tensor(np.linspace(-1, 1, 30 * 20, dtype=np.float32).reshape(30, 20), device)
    count = Tensor(np.int32(3), device)

    def step() -> dict[str, Tensor]:
        product = x @ x.transpose()  # [30, 30], read early and late
        rows = product.softmax()
        joined = Tensor.concat([rows @ x, x.sum(1, keepdims=True)], 1)  # [30, 21]
        index = (x[:, 0] * 10).cast(count.dtype).abs() % 30
        count.assign(count + index.sum())
        x.assign(x * 0.5 + (product @ joined)[:, 1:] * 0.01)
        return {"joined": joined, "picked": joined.gather(index), "wide": product.max(0)}

    return compile(step, device)


def network(device: Device) -> Program:
    """The trainer's step on a small picture."""
    pixels = small_pixels()
    height, width, channels = pixels.shape
    settings = replace(PRESETS["default"], batch=70, hidden=16)
    frequencies = encoding(settings, width, height)
    shape = settings.architecture(channels)
    return TrainingStep(pixels, shape, frequencies, settings, device).program


def transformer(device: Device) -> Program:
    """One encoder layer, its loss, all gradients and AdamW."""
    net = nn.Sequential(
        nn.TransformerEncoder(12, 3, 20, 1, device), nn.Linear.random(12, 5, 99, device)
    )
    rng = np.random.default_rng(0)
    x = Tensor(rng.standard_normal((2, 7, 12)).astype(np.float32), device)
    target = Tensor(rng.integers(0, 5, 14), device)
    optimizer = optim.AdamW(net.parameters())

    def step() -> dict[str, Tensor]:
        loss = nn.cross_entropy(net(x).reshape(14, 5), target)
        optimizer.step(loss)
        return {"loss": loss}

    return compile(step, device)


def looped(device: Device) -> Program:
    """Values that are carried between iterations, and temporaries of one iteration."""
    matrix = Tensor(np.linspace(0, 1, 400, dtype=np.float32).reshape(20, 20), device)

    def body(i: Tensor, v: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        w = (matrix @ v.reshape(20, 1)).reshape(20)
        w = w / w.square().sum().sqrt()
        return w, kept + (w.reshape(20, 1) @ w.reshape(1, 20)).softmax()

    def step() -> dict[str, Tensor]:
        start = matrix[:, 3] + 1.0
        vector, kept = loop(5, body, start, matrix @ matrix)
        return {"vector": vector, "kept": (kept @ kept).sum(1)}

    return compile(step, device)


PROGRAMS = [chain, branches, network, transformer, looped]


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda build: build.__name__)
def program(request: pytest.FixtureRequest, device: Device) -> Program:
    compiled: Program = request.param(device)
    return compiled


def contents(program: Program) -> dict[str, np.ndarray]:
    """Every state and output, by position and name."""
    states = [*(state for state, _ in program.updates), *program.outputs.values()]
    return {f"{i} {s}": read_buffer(program.device, s) for i, s in enumerate(states)}


def contents_after_two_runs(program: Program, poisoned: bool) -> dict[str, np.ndarray]:
    """The contents after two runs; the states are restored afterwards."""
    states = [state for state, _ in program.updates]
    before = [read_buffer(program.device, s) for s in states]
    for _ in range(2):
        run_poisoned(program) if poisoned else program.run()
    contents_after = contents(program)
    for state, data in zip(states, before, strict=True):
        write_buffer(state, data)
    return contents_after


def test_no_kernel_reads_memory_that_the_plan_has_freed(program: Program) -> None:
    expected = contents_after_two_runs(program, poisoned=False)
    actual = contents_after_two_runs(program, poisoned=True)
    for name, values in expected.items():
        assert np.array_equal(actual[name], values), name
        assert np.isfinite(values).all(), name


def test_poisoned_run_detects_a_buffer_freed_too_early(device: Device) -> None:
    program = chain(device)
    memory = program.stages.memory
    shorter = {b: (first, first) for b, (first, _) in memory.live_ranges.items()}
    program.__dict__["stages"] = replace(
        program.stages, memory=replace(memory, live_ranges=shorter)
    )
    run_poisoned(program)
    assert np.isnan(program.read("y")).any()


def disjoint(plan: MemoryPlan) -> bool:
    """Whether no two Buffers that are alive together share a byte."""
    for a, b in combinations(plan.offsets, 2):
        (first, last), (begin, end) = plan.live_ranges[a], plan.live_ranges[b]
        if first <= end and begin <= last:
            low, high = plan.offsets[a], plan.offsets[b]
            if low < high + b.nbytes and high < low + a.nbytes:
                return False
    return True


def test_buffers_alive_together_share_no_bytes(program: Program) -> None:
    memory = program.stages.memory
    assert disjoint(memory)
    assert set(memory.offsets) == set(program.stages.procedure.intermediates())
    assert memory.arena_bytes <= memory.separate_bytes


def test_without_slicing_every_buffer_starts_an_allocation(program: Program) -> None:
    procedure = program.stages.procedure
    packed, pooled = (plan_memory(procedure, 128, slices) for slices in (True, False))
    assert len(packed.allocations) == 1
    assert set(pooled.offsets.values()) == set(pooled.allocation_offsets())
    sizes = dict(zip(pooled.allocation_offsets(), pooled.allocations, strict=True))
    assert all(b.nbytes <= sizes[offset] for b, offset in pooled.offsets.items())
    assert packed.arena_bytes <= pooled.arena_bytes <= pooled.separate_bytes


def test_chain_of_products_needs_two_buffers_of_memory(device: Device) -> None:
    for links in (4, 9):
        memory = chain(device, links).stages.memory
        assert len(memory.offsets) == links - 1
        assert memory.arena_bytes == 2 * 6400  # 40 * 40 floats, a multiple of 128 bytes
        assert f"using 12,800 of {6400 * (links - 1):,} bytes" in memory.summary()


@pytest.mark.parametrize("slices", [True, False])
def test_usage_counts_allocations_while_they_live(slices: bool) -> None:
    device = opened("one", slices)
    program, usage = chain(device), device.usage
    arena = 1 if slices else 2
    assert len(program.arena) == arena
    assert usage.live == arena + 2  # the state and the output
    assert usage.live_bytes == 2 * 6400 + 2 * 6400
    made = usage.live + usage.freed
    program.run(5)
    program.wait()
    assert usage.live + usage.freed == made  # replaying allocates nothing
    del program
    assert (usage.live, usage.live_bytes, usage.freed) == (0, 0, made)
