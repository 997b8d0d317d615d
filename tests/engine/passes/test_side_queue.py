"""The side queue: which launches run concurrently, in which memory, with equal results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import with_units

from imgmlp.engine import Device, Tensor, compile, compiler, open_device
from imgmlp.engine.compiler import Stages
from imgmlp.engine.device.numpy_device import NumpyDevice
from imgmlp.engine.ir.kernel import Block, Procedure, SideQueue
from imgmlp.engine.passes import side_queue
from imgmlp.engine.passes.memory_plan import spans_overlap
from imgmlp.engine.passes.side_queue import fuse_in_two_queues
from imgmlp.engine.tiling import batch_axis, block

ROWS, WIDE = 4096, 16


def network(rng: np.random.Generator, device: Any, name: str) -> list[Tensor]:
    sizes = (WIDE, WIDE), (WIDE, 4)
    return [
        Tensor((rng.standard_normal(size) * 0.3).astype(np.float32), device, name=f"{name}{n}")
        for n, size in enumerate(sizes)
    ]


class TwoNetworks:
    """Two networks that see the same values and share a loss; each moves down its gradient."""

    def __init__(self, device: Any) -> None:
        rng = np.random.default_rng(3)
        x = rng.standard_normal((ROWS, WIDE)).astype(np.float32)
        self.x = Tensor(x, device, name="x")
        self.left, self.right = (network(rng, device, name) for name in ("left", "right"))
        self.device = device

    def step(self) -> dict[str, Tensor]:
        seen = (self.x * 0.5).contiguous()
        left, right = self._out(seen, self.left), self._out(self._wider(seen), self.right)
        loss = left.square().sum() + right.square().sum()
        weights = [*self.left, *self.right]
        for tensor, slope in zip(weights, loss.gradient(weights), strict=True):
            tensor.assign(tensor - slope * 1e-5)
        return {"loss": loss}

    def _out(self, x: Tensor, weights: list[Tensor]) -> Tensor:
        return (x @ weights[0]).maximum(0.0) @ weights[1]

    def _wider(self, x: Tensor) -> Tensor:
        """Twice as many rows, so that the two networks have different batches."""
        return Tensor.concat([x, x.flip(0)], 0)

    def values(self) -> list[np.ndarray]:
        return [tensor.numpy() for tensor in (*self.left, *self.right)]


def stages(queues: bool, units: bool = False) -> Stages:
    device = open_device("numpy")
    assert isinstance(device, NumpyDevice)
    device.lanes, device.has_queues, device.has_matrix_units = "group", queues, units
    return compile(TwoNetworks(device).step, device).stages


@pytest.fixture(scope="module")
def concurrent() -> Procedure:
    return stages(queues=True).procedure


@pytest.fixture(scope="module")
def side(concurrent: Procedure) -> SideQueue:
    assert concurrent.side is not None
    return concurrent.side


def test_one_of_two_blocks_runs_in_the_side_queue(concurrent: Procedure, side: SideQueue) -> None:
    own, others = (
        concurrent.kernels[side.begin : side.end],
        concurrent.kernels[side.end : side.join],
    )
    assert sum(isinstance(kernel, Block) for kernel in own) == 1
    assert sum(isinstance(kernel, Block) for kernel in others) == 1


def groups_beside(units: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, str]:
    """The groups of the side queue's block, the number of calls of tile_batch, and the source."""
    device, cuts, cut = with_units(open_device("numpy"), units), list[int](), block.tile_batch
    assert isinstance(device, NumpyDevice)
    device.lanes, device.has_queues, device.has_matrix_units = "group", True, True
    monkeypatch.setattr(block, "SIDE_GROUPS_PER_UNIT", 1)
    monkeypatch.setattr(block, "tile_batch", lambda *of: (cuts.append(0), cut(*of))[1])
    compiled = compile(TwoNetworks(device).step, device).stages
    side = compiled.procedure.side
    assert side is not None
    own = compiled.procedure.kernels[side.begin : side.end]
    (groups,) = (kernel.groups for kernel in own if isinstance(kernel, Block))
    monkeypatch.setattr(block, "tile_batch", cut)
    return groups, len(cuts), compiled.source


@pytest.mark.parametrize("units", [8, 7, 13, 24])
def test_block_of_the_side_queue_has_one_group_per_unit(
    units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles may exceed the rows. A wrong guess of which block it is costs compile time only."""
    groups, cuts, source = groups_beside(units, monkeypatch)
    assert groups == units
    monkeypatch.setattr(batch_axis.BatchKinds, "other_product_operations", lambda _: 0)
    again, more, same = groups_beside(units, monkeypatch)
    assert (again, same) == (groups, source)
    assert more > cuts


@pytest.mark.parametrize("queues", [False, True])
def test_note_says_once_why_matrix_units_are_not_used(
    queues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_matrix_units_pay", lambda _: False)
    procedure = stages(queues, units=True).procedure
    assert (procedure.side is not None) is queues
    assert procedure.note.count(compiler.NO_ROOM_FOR_MATRIX_UNITS) == 1


def test_concurrent_queues_touch_no_buffer_that_the_other_writes(
    concurrent: Procedure, side: SideQueue
) -> None:
    own, others = (
        concurrent.kernels[side.begin : side.end],
        concurrent.kernels[side.end : side.join],
    )
    for one, other in ((own, others), (others, own)):
        written = {b for kernel in one for b in kernel.writes()}
        assert written.isdisjoint(
            b for kernel in other for b in (*kernel.reads(), *kernel.writes())
        )


def test_inputs_of_the_side_queue_are_written_before_it_begins(
    concurrent: Procedure, side: SideQueue
) -> None:
    own = concurrent.kernels[side.begin : side.end]
    needed = {b for kernel in own for b in kernel.reads()}
    needed -= {b for kernel in own for b in kernel.writes()}
    assert needed.isdisjoint(b for kernel in concurrent.kernels[side.end :] for b in kernel.writes()
                             if b.device is None)  # fmt: skip


def test_buffers_of_concurrent_queues_share_no_memory(side: SideQueue) -> None:
    memory, procedure = (compiled := stages(queues=True)).memory, compiled.procedure
    places = {b: (at, at + b.nbytes - 1) for b, at in memory.offsets.items()}

    def touched(begin: int, end: int) -> set[Any]:
        kernels = procedure.kernels[begin:end]
        return {b for k in kernels for b in (*k.reads(), *k.writes()) if b in places}

    own, others = touched(side.begin, side.end), touched(side.end, side.join)
    for one in own:
        for other in others - {one}:
            assert not spans_overlap(places[one], places[other])


def test_side_queue_needs_device_queues_and_two_blocks() -> None:
    assert stages(queues=False).procedure.side is None
    device = open_device("numpy")
    assert isinstance(device, NumpyDevice)
    device.lanes, device.has_queues = "group", True
    two = TwoNetworks(device)

    def step() -> dict[str, Tensor]:
        loss = two._out(two.x, two.left).square().sum()
        (slope,) = loss.gradient(two.left[:1])
        two.left[0].assign(two.left[0] - slope)
        return {"loss": loss}

    procedure = compile(step, device).stages.procedure
    assert procedure.side is None
    assert fuse_in_two_queues(procedure) is None


@pytest.mark.parametrize(("most", "apart"), [(2 * ROWS, True), (2 * ROWS - 1, False)])
def test_blocks_beyond_the_row_limit_use_one_queue_and_less_memory(
    most: int, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the limit the program equals that of a device with one queue."""
    cuts, cut = list[int](), block._schedule_blocks

    def counted(*given: Any, **named: Any) -> Procedure:
        cuts.append(given[1].side_block_rows)
        return cut(*given, **named)

    monkeypatch.setattr(side_queue, "MAX_SIDE_BLOCK_ROWS", most)
    monkeypatch.setattr(block, "MAX_SIDE_BLOCK_ROWS", most)
    monkeypatch.setattr(block, "_schedule_blocks", counted)
    plain, count = stages(queues=False), len(cuts)
    with_side_queue = stages(queues=True)
    assert (with_side_queue.procedure.side is not None) is apart
    assert (with_side_queue.memory.arena_bytes > plain.memory.arena_bytes) is apart
    if not apart:
        assert with_side_queue.source == plain.source
        assert cuts == [0] * 2 * count


def test_results_with_a_side_queue_equal_those_of_one_queue(kernels: Device) -> None:
    results = []
    for device in (kernels, open_device("numpy")):
        two = TwoNetworks(device)
        program = compile(two.step, device)
        for _ in range(2):  # some drivers compile at the first run, which does not use queues yet
            program.run(3)
        results.append([program.read("loss"), *two.values()])
    for ours, expected in zip(*results, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


def test_rerun_with_a_side_queue_gives_identical_bits(kernels: Device) -> None:
    results = []
    for _ in range(2):
        two = TwoNetworks(kernels)
        program = compile(two.step, kernels)
        program.run(1)
        program.run(8)
        results.append(two.values())
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
