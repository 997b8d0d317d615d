"""Products on matrix units: which sums each lane holds, and kernels emulated lane by lane."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import warps
from conftest import with_units
from test_block import blocks, filled, gradients, leaf_values, network

from imgmlp.engine import AnyDevice, Program, Tensor, compile, compiler, dtype, open_device
from imgmlp.engine.ir.kernel import storage
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.symbolic import Var
from imgmlp.engine.ir.target import (
    GPU_TILE_SIDE,
    LANES_PER_GROUP,
    NARROW_TILE_COLUMNS,
    SLIM_TILE_COLUMNS,
    Precision,
)
from imgmlp.engine.lowering.matmul_kernels import Fragments
from imgmlp.engine.oracle.interpret import evaluate

compiled = pytest.mark.skipif(warps.COMPILER is None, reason="there is no g++")


@pytest.fixture
def device() -> AnyDevice:
    opened = with_units(open_device("numpy:uops-group"), 1)  # so that groups have several tiles
    opened.has_matrix_units = True
    return opened


@pytest.mark.parametrize(
    "size",
    [
        *itertools.product((8, 16, 32, 64), (SLIM_TILE_COLUMNS, GPU_TILE_SIDE)),
        (GPU_TILE_SIDE, NARROW_TILE_COLUMNS),
    ],
)
def test_fragments_assign_each_sum_of_a_tile_to_one_lane(size: tuple[int, int]) -> None:
    """As in mma m16n8 each lane holds two neighbours: row lane / 4, columns 2 * (lane % 4)."""
    lane, pair = Var("lane", 0, LANES_PER_GROUP - 1), Var("pair", 0, size[0] * size[1] // 256 - 1)
    row, column = Fragments.of(*size).place(lane, pair)
    seen = set()
    for values in itertools.product(range(lane.hi + 1), range(pair.hi + 1)):
        env = dict(zip(("lane", "pair"), values, strict=True))
        r, c = int(row.evaluate(env)), int(column.evaluate(env))
        assert (r % 8, c % 8) == (values[0] % 32 // 4, values[0] % 4 * 2)
        seen |= {(r, c), (r, c + 1)}
    assert seen == set(itertools.product(range(size[0]), range(size[1])))


@compiled
@pytest.mark.parametrize("precision", ["half", "float32"])
def test_integer_valued_products_on_matrix_units_are_exact(
    device: AnyDevice, precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Odd sizes, transposed factors and tiles of all heights."""
    monkeypatch.setattr(
        compiler, "_matrix_units_pay", lambda _: True
    )  # float32 has them in blocks only
    rng, expected, tensors = np.random.default_rng(0), {}, {}
    sizes = [(1, 3, 1), (9, 24, 70), (40, 130, 5), (64, 64, 64), (200, 17, 3), (130, 65, 100)]
    sizes += [(7, 40, 32), (13, 9, 24), (30, 70, 17), (100, 33, 32)]  # tiles of half the columns
    for n, (rows, inner, columns) in enumerate(sizes):
        a = rng.integers(-3, 4, (rows, inner)).astype(np.float32)
        b = rng.integers(-3, 4, (inner, columns)).astype(np.float32)
        for flip in range(4):
            left = Tensor(np.ascontiguousarray(a.T), device).transpose() if flip & 1 else None
            right = Tensor(np.ascontiguousarray(b.T), device).transpose() if flip & 2 else None
            x = Tensor(a, device) if left is None else left
            y = Tensor(b, device) if right is None else right
            tensors[f"{n}.{flip}"], expected[f"{n}.{flip}"] = (x, y), a @ b
    program = compile(
        lambda: {k: x @ y + 1 for k, (x, y) in tensors.items()}, device, precision=precision
    )
    warps.run(program, tmp_path, monkeypatch)
    for name, product in expected.items():
        assert np.array_equal(program.read(name), product + 1), name


CASES: list[tuple[Precision, int, list[int], int, bool]] = [
    # precision, batch, sizes, matrices that are copied, factors in local memory
    ("half", 331, [16, 64, 64, 3], 3, True),
    ("half", 300, [8, 128, 64, 3], 1, True),
    ("half", 300, [24, 24, 32, 7, 2], 4, True),
    ("half", 290, [1, 9, 1, 1], 3, True),  # factors of one row or one column
    ("half", 260, [3, 420, 2], 0, False),
    ("float32", 331, [16, 64, 64, 3], 2, True),
    ("float32", 300, [24, 24, 32, 7, 2], 3, True),
    ("float32", 290, [1, 9, 1, 1], 3, True),
]
LIMITS: dict[Precision, float] = {"half": 1e-2, "float32": 2e-6}


@compiled
@pytest.mark.parametrize(("precision", "batch", "sizes", "copied", "near"), CASES)
def test_network_gradients_on_matrix_units_are_right_over_several_tiles(
    device: AnyDevice, precision: Precision, batch: int, sizes: list[int], copied: int, near: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each group has several tiles, and the last tile is partial."""
    outputs = network(device, batch, sizes, Tensor.sin)
    program = Program(device, outputs, [], precision=precision)
    (block,) = blocks(program.stages.procedure)
    assert block.tiles > block.groups
    assert sum(k.name == "copy" for k in block.prologue) == copied
    factors = {storage(s) for k in block.kernels if k.core is not None for s in k.core.src}
    assert any(isinstance(b, LocalBuffer) and b.pitch for b in factors) is near
    expected = evaluate(list(outputs.values()), leaf_values(outputs), wide=True)
    for _ in range(2):  # the second run finds what the first left in memory
        warps.run(program, tmp_path, monkeypatch)
        for name, value in zip(outputs, expected, strict=True):
            error = float(np.abs(program.read(name) - value).max())
            assert error <= LIMITS[precision] * float(np.abs(value).max()), name


@compiled
def test_values_beyond_local_memory_are_stored_as_float16(
    device: AnyDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward pass needs the inputs of the sines, which are factors of no product.

    They do not fit into local memory as float32.
    """
    sizes = [(200, 16), (16, 32), (32, 32), (32, 32)]
    h, *weights = (filled(device, *size).realize() for size in sizes)
    for number, weight in enumerate(weights):
        h = (h @ (weight * 0.3)).sin() if number else h @ (weight * 0.3)
    outputs = gradients(h.square().mean(), *weights)
    program = Program(device, outputs, [], precision="half")
    (block,) = blocks(program.stages.procedure)
    factors = {storage(s) for k in block.kernels if k.core is not None for s in k.core.src}
    kept = {b for k in block.kernels for b in k.writes() if isinstance(b, LocalBuffer)} - factors
    assert [b.extent for b in kept if b.stored is dtype.f16]
    assert warps.local_bytes(program.stages.source) <= warps.LOCAL
    expected = evaluate(list(outputs.values()), leaf_values(outputs), wide=True)
    warps.run(program, tmp_path, monkeypatch)
    for name, value in zip(outputs, expected, strict=True):
        error = float(np.abs(program.read(name) - value).max())
        assert error <= LIMITS["half"] * float(np.abs(value).max()), name


NOT_FINITE = [0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0xFF800000]  # GPUs make the first


@compiled
@pytest.mark.parametrize("precision", ["half", "float32"])
def test_matrix_units_propagate_nan_and_infinity(
    device: AnyDevice, precision: Precision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One element of an input or a weight is set; rounding a NaN may carry into its sign bit."""
    x, weight, last = (filled(device, *size) for size in ((70, 9), (9, 17), (17, 3)))
    rows = (x @ weight + weight[0]).leaky_relu(0.1) @ last
    outputs = gradients(rows.square().sum(), weight, last) | {"rows": rows.node}
    program = Program(device, outputs, [], precision=precision)
    assert blocks(program.stages.procedure)
    for bits, leaf in itertools.product(NOT_FINITE, (x, weight)):
        before = leaf.numpy()
        changed = before.copy()
        changed.view(np.uint32)[4, 7] = bits
        leaf.write(changed)
        expected = evaluate(list(outputs.values()), leaf_values(outputs), wide=True)
        warps.run(program, tmp_path, monkeypatch)
        for name, value in zip(outputs, expected, strict=True):
            actual = program.read(name)
            assert not np.isfinite(actual[~np.isfinite(value)]).any(), f"{name}, {bits:x}"
            if np.isnan(changed).any():
                assert np.array_equal(np.isnan(actual), np.isnan(value)), f"{name}, {bits:x}"
        leaf.write(before)


@pytest.mark.parametrize(("units", "groups"), [(1, 3), (4, 12)])
def test_float32_matrices_of_several_tiles_are_read_from_global_memory(
    device: AnyDevice, units: int, groups: int
) -> None:
    """With several tiles per group, the cache holds the matrices from the first tile on.

    Groups with one tile each copy them slice by slice. Without sums in registers three groups run
    on a unit at a time.
    """
    with_units(device, units)
    x, last = filled(device, 768, 64) * 2.0, filled(device, 64, 3)
    for n in range(2):
        x = (x @ (filled(device, 64, 64) * (n + 1)).realize()).relu()
    program = Program(device, {"y": (x @ last).node}, [])
    (block,) = blocks(program.stages.procedure)
    assert (block.tiles, block.groups) == (12, groups)
    source = program.stages.source
    begin = source.index("__local", source.index("imgmlp_"))
    assert ("global_factor(data" in source[begin:], "_slice_memory" in source[begin:]) == (
        units == 1,
        units > 1,
    )
