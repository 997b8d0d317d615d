"""Elementwise kernels: transposing through tiles, vectors of neighbours, and large indices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import open_mapping, with_units

from imgmlp.engine import AnyDevice, Program, Tensor, compile, dtype
from imgmlp.engine.compiler import lower
from imgmlp.engine.ir.dtype import f32, i8
from imgmlp.engine.ir.graph import Buffer, Node, buffer, move
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import Lanes, Target
from imgmlp.engine.ir.uops import U, UOp
from imgmlp.engine.oracle.emulate_uops import run_code


@pytest.fixture(scope="module", params=["one", "group", "numpy:uops", "numpy:uops-group"])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def tiles(program: Program) -> int:
    """The number of values that go through a tile."""
    return sum(u.op is U.SET for code in program.stages.codes for u in code.uops)


def test_transposed_operand_beside_a_contiguous_one_is_tiled(device: AnyDevice) -> None:
    """Odd sizes, a batch axis, and two results of different dtypes."""
    x = np.random.default_rng(0).standard_normal((2, 70, 131)).astype(np.float32)
    y = np.arange(2 * 131 * 70, dtype=np.float32).reshape(2, 131, 70)
    a, b = Tensor(x, device), Tensor(y, device)

    def step() -> dict[str, Tensor]:
        turned = a.transpose()
        return {"sum": turned * 2 + b, "sign": (turned < 0).cast(dtype.i32)}

    program = compile(step, device)
    program.run()
    assert np.array_equal(program.read("sum"), x.transpose(0, 2, 1) * 2 + y)
    assert np.array_equal(program.read("sign"), x.transpose(0, 2, 1) < 0)
    if device.lanes == "group":  # the transposed input, before the computation
        assert tiles(program) == 1
        return
    assert tiles(program) == 2  # results
    early = [u.arg[1] for code in program.stages.codes for u in code.uops if u.op is U.PREFETCH]
    assert set(early) == {False, True}  # lines that will be read, and those that will be written


def strides(program: Program, op: U) -> set[int]:
    """The distances in memory between neighbouring lanes, of all loads or stores."""
    (code,) = program.stages.codes
    offsets = [u.arg[0] if op is U.LOAD else u.arg for u in code.uops if u.op is op]
    return {
        abs(
            o.substitute(dict.fromkeys(names, 0) | {lane: 1}).lo
            - o.substitute(dict.fromkeys(names, 0)).lo
        )
        for o in offsets
        for names in [[v.name for v in o.variables()]]
        for lane in {"l", "m"} & set(names)
    }


def test_lanes_access_neighbours_when_transposing() -> None:
    """Lanes share cache lines for the transposed operand and for the other one."""
    device = open_mapping("numpy:uops-group")
    x, y = (Tensor(np.zeros((96, 64)), device) for _ in range(2))
    program = compile(lambda: {"y": x.transpose() + y.reshape(64, 96)}, device)
    assert strides(program, U.LOAD) == strides(program, U.STORE) == {1}


def test_transposing_tile_has_no_bank_conflicts() -> None:
    device = open_mapping("numpy:uops-group")
    x = Tensor(np.zeros((64, 64)), device)
    (code,) = compile(lambda: {"y": x.transpose() * 2}, device).stages.codes
    for uop in (u for u in code.uops if u.op in (U.SET, U.GET)):
        lanes = [
            uop.arg.evaluate(dict.fromkeys("rq", 0) | {"l": lane, "m": lane}) for lane in range(32)
        ]
        assert len({place % 32 for place in lanes}) == 32


def test_omitted_barrier_of_a_tile_is_reported_as_a_race() -> None:
    """The emulator reports it if the barrier is left out."""
    device = open_mapping("numpy:uops-group")
    x = Tensor(np.zeros((64, 64), np.float32), device)
    (code,) = compile(lambda: {"y": x.transpose() * 2}, device).stages.codes
    nothing = UOp(U.CONST, dtype.f32, (), 0)
    torn = replace(code, uops=tuple(nothing if u.op is U.BARRIER else u for u in code.uops))
    memory = {b: np.zeros(b.size, np.float32) for b in code.buffers}
    run_code(code, memory)
    with pytest.raises(ValueError, match=r"races with .* local"):
        run_code(torn, memory)


@pytest.mark.parametrize(("size", "count"), [(1 << 16, 8), (1 << 15, 1), ((1 << 16) + 8, 1)])
def test_lanes_process_several_elements_of_large_maps(size: int, count: int) -> None:
    device = with_units(open_mapping("numpy:uops-group"), 2)
    x = np.arange(size, dtype=np.float32)
    program = compile(lambda: {"y": Tensor(x, device) * 2}, device)
    (code,) = program.stages.codes
    assert code.global_size == -(-size // count // code.local_size) * code.local_size
    assert strides(program, U.LOAD) == ({4} if count > 1 else set())  # neighbours move at once
    program.run()
    assert np.array_equal(program.read("y"), x * 2)


def test_padding_and_special_values_pass_through_tiles(device: AnyDevice) -> None:
    x = np.full((20, 90), -0.0, np.float32)
    x[3, :4] = np.nan, np.inf, -np.inf, 1
    program = compile(lambda: {"y": Tensor(x, device).transpose().pad((1, 2), (0, 3))}, device)
    program.run()
    actual = program.read("y")
    assert np.array_equal(actual, np.pad(x.T, ((1, 2), (0, 3))), equal_nan=True)
    assert np.signbit(actual[1:-2, :20]).sum() == np.signbit(x).sum()
    assert tiles(program) == 1


@pytest.mark.parametrize("form", ["numpy:uops", "numpy:uops-group"])
@pytest.mark.parametrize("of", ["rows", "short", "reversed"])
def test_contiguous_short_and_reversed_reads_need_no_tiles(of: str, form: str) -> None:
    device = open_mapping(form)
    x = Tensor(np.zeros((64, 64)), device)
    moved = {"rows": x + 1, "short": x[:, :8].transpose() + 1, "reversed": x[:, ::-1] + 1}[of]
    assert tiles(compile(lambda: {"y": moved}, device)) == 0


@pytest.mark.parametrize(
    ("written", "read"),
    [((1 << 31,), (1,)), ((1 << 16, 1 << 15), (1 << 16, 1)), ((4,), (1 << 31,))],
)
@pytest.mark.parametrize("lanes", ["one", "group"])
def test_kernels_of_more_elements_than_int32_counts_are_refused(
    lanes: Lanes, written: tuple[int, ...], read: tuple[int, ...]
) -> None:
    """One element fewer compiles; no memory is allocated."""
    source = buffer(Buffer(read, i8))

    def value(shape: tuple[int, ...]) -> Node:
        if len(shape) == 1 and shape[0] < source.size:
            return move(Op.SHRINK, source, ((source.size - shape[0], source.size),))
        return move(Op.EXPAND, source, shape)

    target = Target(lanes=lanes)
    with pytest.raises(ValueError, match=r"2,147,483,648 elements are more .* 2,147,483,647"):
        lower([(Buffer(written, i8), value(written))], target)
    fits = (written[0] - 1, *written[1:])
    if len(written) == 1 and written[0] > 4:
        lower([(Buffer(fits, i8), value(fits))], target)


def test_arange_beyond_int32_is_refused() -> None:
    with pytest.raises(ValueError, match="i32 cannot hold 2147483648"):
        Tensor.arange((1 << 31) + 1)
    assert Tensor.arange(1 << 31).shape == (1 << 31,)


@pytest.mark.parametrize(("first", "at_once"), [(4, True), (1, False)])
def test_lanes_load_aligned_neighbours_as_a_vector(first: int, at_once: bool) -> None:
    """If the first element is not aligned, neighbouring lanes load one element each."""
    x = buffer(Buffer((1 << 17,), f32))
    shifted = move(Op.SHRINK, x, ((first, first + (1 << 16)),))
    stages = lower([(Buffer(shifted.shape, shifted.dtype), shifted * 2.0)], Target(lanes="group"))
    assert ("FLOAT_OF_4" in stages.source.rpartition("__kernel")[2]) == at_once


def test_lanes_store_single_elements_if_reads_are_strided() -> None:
    x = buffer(Buffer((1 << 18,), f32))
    apart = move(Op.SHRINK, move(Op.RESHAPE, x, (1 << 17, 2)), ((0, 1 << 17), (0, 1)))
    value = move(Op.RESHAPE, apart, (1 << 17,)) * 2.0
    stages = lower([(Buffer(value.shape, value.dtype), value)], Target(lanes="group"))
    stored = [line for line in stages.source.splitlines() if "*(__global float4 *)" in line]
    assert not stored


@pytest.mark.parametrize("rows", [514, 516, 517])
def test_maps_of_partial_groups_are_right(device: AnyDevice, rows: int) -> None:
    """Some of these fill the last group with four elements per lane, some do not."""
    x = np.random.default_rng(5).standard_normal((rows, 128)).astype(np.float32)
    given = Tensor(x, device)
    program = compile(lambda: {"y": given * 2.0 + 1.0, "z": given[:, ::-1] - 1.0}, device)
    program.run()
    np.testing.assert_allclose(program.read("y"), x * 2 + 1, rtol=1e-6)
    np.testing.assert_allclose(program.read("z"), x[:, ::-1] - 1, rtol=1e-6)


@pytest.mark.parametrize("units", [1, 2, 4, 16])
def test_few_long_rows_are_split_evenly_among_cores(units: int) -> None:
    """Nearly evenly, if no number of pieces is divisible by the cores.

    Short rows, and more rows than groups, are not split.
    """

    def shares(columns: int, count: int = 3) -> tuple[int, int]:
        """The number of pieces of `count` rows, and of the groups that share them."""
        whole = buffer(Buffer((count, columns + 5), f32))
        rows = move(Op.SHRINK, whole, ((0, count), (0, columns)))
        (code,) = lower(
            [(Buffer((count, columns), f32), rows * 2.0)], Target(compute_units=units)
        ).codes
        (share,) = (u.arg for u in code.uops if u.op is U.RANGE and u.arg.kind == "share")
        return share.count, code.global_size

    pieces, groups = shares(1 << 18)
    assert pieces % groups == 0
    assert groups % units == 0
    pieces, groups = shares(767 * 511)  # 7 * 13 * 59 * 73
    assert -(-pieces // groups) * groups <= 1.2 * pieces
    assert groups == 4 * units
    assert shares(262_147) == (3, min(3, 4 * units))  # a prime number
    assert shares(1 << 13)[0] == 3
    assert shares(1 << 14, 8 * units + 1)[0] == 8 * units + 1
    assert shares(1 << 14)[0] <= 12  # pieces have at least 4,096 elements


def test_pieces_of_long_rows_keep_their_positions(device: AnyDevice) -> None:
    x = np.random.default_rng(0).standard_normal((3, (1 << 16) + 5)).astype(np.float32)
    given = Tensor(x, device)
    program = compile(lambda: {"y": given[:, 2:-3] * 2.0}, device)
    program.run()
    assert np.array_equal(program.read("y"), x[:, 2:-3] * 2)


def test_index_arithmetic_beyond_int32_is_right(device: AnyDevice) -> None:
    count = 60_000
    given = Tensor(np.arange(count, dtype=np.float32), device)
    program = compile(lambda: {"y": given.repeat(count)[:: count - 1]}, device)
    program.run()
    places = np.arange(count + 2, dtype=np.int64) * (count - 1)
    assert np.array_equal(program.read("y"), places // count)
