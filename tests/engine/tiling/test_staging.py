"""Staging: which values of a block are in local memory, and which are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import warps
from conftest import with_units
from reference import close
from test_block import blocks, filled, gradients, leaf_values

from imgmlp.engine import AnyDevice, Program, Tensor, open_device
from imgmlp.engine.ir.dtype import f32, i32, u32
from imgmlp.engine.ir.graph import Buffer, Node
from imgmlp.engine.ir.kernel import Block, storage
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.target import LOCAL_MEMORY_BYTES, Precision
from imgmlp.engine.ir.uops import U, UOp
from imgmlp.engine.oracle.emulate_uops import run_code
from imgmlp.engine.oracle.interpret import evaluate

Network = Callable[[Tensor], Tensor]


@pytest.fixture
def device() -> AnyDevice:
    opened = with_units(open_device("numpy:uops-group"), 1)
    opened.has_matrix_units = True
    return opened


def step(
    device: AnyDevice, layers: Network, precision: Precision = "half"
) -> tuple[Program, Block]:
    """The gradients of a network on 200 rows of 16 values, compared with float64."""
    x = filled(device, 200, 16)
    weight = (filled(device, 16, 40) * 0.3).realize()
    outputs: dict[str, Node] = gradients(layers((x @ weight).sin()).square().mean(), weight)
    program = Program(device, outputs, [], precision=precision)
    expected = evaluate(list(outputs.values()), leaf_values(outputs), wide=True)
    program.run()
    for name, value in zip(outputs, expected, strict=True):
        assert close(program.read(name), value, roundings=256)
    (block,) = blocks(program.stages.procedure)
    return program, block


def tile_buffers(block: Block) -> set[Buffer]:
    """The local buffers that kernels of the tile pass to one another."""
    return {b for k in block.kernels for b in k.writes() if isinstance(b, LocalBuffer)}


def factors(block: Block) -> set[Buffer]:
    return {storage(s) for k in block.kernels if k.core is not None for s in k.core.src}


@pytest.mark.parametrize("precision", ["half", "float32"])
def test_factors_for_matrix_units_are_staged_in_local_memory(
    device: AnyDevice, precision: Precision
) -> None:
    weight = filled(device, 40, 24)
    _, block = step(device, lambda h: (h @ weight).sin(), precision)
    staged = tile_buffers(block) & factors(block)
    assert {b.extent for b in staged if isinstance(b, LocalBuffer)} >= {(block.rows, 40)}
    assert (
        sum(b.local_bytes for b in tile_buffers(block) if isinstance(b, LocalBuffer))
        <= LOCAL_MEMORY_BYTES
    )
    assert not any(isinstance(b, LocalBuffer) for b in (*block.reads(), *block.writes()))


@pytest.mark.parametrize(("width", "near"), [(64, True), (400, False)])
def test_float32_uses_matrix_units_only_if_a_tile_fits_local_memory(
    device: AnyDevice, width: int, near: bool
) -> None:
    weight = filled(device, 40, width)
    program, block = step(device, lambda h: (h @ weight).sin() @ weight.transpose(), "float32")
    assert any(isinstance(b, LocalBuffer) for b in factors(block)) is near
    assert ("mma.sync" in program.stages.source) is near
    assert ("no matrix units" in program.stages.procedure.note) is not near
    device.has_matrix_units = False
    plain, _ = step(device, lambda h: (h @ weight).sin() @ weight.transpose(), "float32")
    assert (plain.stages.source == program.stages.source) is not near


def test_scratch_of_reductions_fits_beside_a_full_tile(device: AnyDevice) -> None:
    weights = [(filled(device, 32, 32) * 0.3 * n).realize() for n in range(1, 7)]
    h = filled(device, 200, 32)
    for weight in weights:
        h = (h @ weight + weight[0]).sin()
    outputs: dict[str, Node] = gradients(h.square().sum(), *weights)
    for kind in (i32, u32):  # in addition to the loss, which is float32
        outputs[kind.name] = (h > 0).cast(kind).sum().node
    stages = Program(device, outputs, []).stages
    assert "mma.sync" in stages.source
    assert LOCAL_MEMORY_BYTES < warps.local_bytes(stages.source) <= warps.LOCAL


def test_without_matrix_units_factors_stay_in_global_memory(device: AnyDevice) -> None:
    device.has_matrix_units = False
    weight = filled(device, 40, 24)
    _, block = step(device, lambda h: (h @ weight).sin(), "float32")
    assert not any(isinstance(b, LocalBuffer) for b in factors(block))


@pytest.mark.parametrize(
    ("begin", "end", "near"), [(0, 24, True), (24, 40, True), (0, 20, False), (4, 40, False)]
)
def test_only_factors_of_whole_chunks_are_staged(
    device: AnyDevice, begin: int, end: int, near: bool
) -> None:
    """Beyond a part of a line there are other values instead of zeros."""
    weight, other = filled(device, end - begin, 24), filled(device, 40, 24)
    _, block = step(device, lambda h: (h[:, begin:end] @ weight + h @ other).sin())
    assert any(isinstance(b, LocalBuffer) for b in factors(block)) is near


@pytest.mark.parametrize("precision", ["half", "float32"])
def test_gradient_with_the_batch_as_right_factor_is_right(
    device: AnyDevice, precision: Precision
) -> None:
    """A weight gradient whose right factor is the batch itself."""
    x, weight, last = filled(device, 200, 12), filled(device, 24, 12), filled(device, 3, 24)
    answer = last @ (weight @ x.transpose()).sin()  # [3, batch]
    outputs: dict[str, Node] = gradients(answer.square().sum(), weight, last)
    program = Program(device, outputs, [], precision=precision)
    (block,) = blocks(program.stages.procedure)
    assert block.tiles > 1
    assert "mma.sync" in program.stages.source
    program.run()
    expected = evaluate(list(outputs.values()), leaf_values(outputs), wide=True)
    for name, value in zip(outputs, expected, strict=True):
        assert close(program.read(name), value, roundings=256)


def test_staged_value_may_be_read_in_another_shape(device: AnyDevice) -> None:
    weight = filled(device, 40, 24)

    def layers(h: Tensor) -> Tensor:
        return (h @ weight).sin() + h.reshape(len(h), 4, 10).sum(axis=1).sum(axis=1, keepdims=True)

    _, block = step(device, layers)
    assert tile_buffers(block) & factors(block)


def test_omitted_barriers_are_reported_as_races(device: AnyDevice) -> None:
    weight = filled(device, 40, 24)
    program, _ = step(device, lambda h: (h @ weight).sin())
    (code,) = [c for c in program.stages.codes if any(u.op is U.LOCAL_BUFFER for u in c.uops)]
    waits = [i for i, u in enumerate(code.uops) if u.op is U.BARRIER]
    nothing = UOp(U.CONST, f32, (), 0)
    raced = 0
    for i in waits:
        uops = [nothing if n == i else u for n, u in enumerate(code.uops)]
        memory = {b: np.zeros(b.size, b.dtype.np) for b in code.buffers}
        try:
            run_code(replace(code, uops=tuple(uops)), memory)
        except ValueError:  # a race
            raced += 1
    assert raced >= 2  # some barriers precede a product that copies its factors and waits itself
