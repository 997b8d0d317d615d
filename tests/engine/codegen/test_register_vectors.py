"""Which operations on the columns of a product's tile are vectorised, and their values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from conftest import open_mapping
from reference import close

from imgmlp.engine import AnyDevice, Device, Tensor, compile, dtype, open_device
from imgmlp.engine.codegen.register_vectors import vectorise_columns
from imgmlp.engine.ir.uops import U
from imgmlp.engine.runtime.buffers import write_buffer

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", params=[8, 16])
def device(request: pytest.FixtureRequest) -> Device:
    opened = open_mapping("one")
    assert isinstance(opened, Device)
    if request.param > opened.vector_width:
        pytest.skip(f"{opened.info.name} has no vectors of {request.param}")
    opened.vector_width = request.param
    return opened


def tensor(device: Device, *shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32), device)


EPILOGUES: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], bool]] = {
    "bias and activation": (lambda y, bias, other: (y + bias).leaky_relu(0.1), True),
    "a slope by another tile": (lambda y, bias, other: Tensor.where(other < 0, y * 0.1, y), True),
    "the larger of two": (lambda y, bias, other: y.maximum(0.5) / (other * other + 1), True),
    "an exponential": (lambda y, bias, other: (y * 0.1).exp(), True),
    "a sine": (lambda y, bias, other: (y * 0.1).sin(), False),
    "columns turned round": (lambda y, bias, other: y + bias.flip(0), False),
    "another dtype": (lambda y, bias, other: (y * 2).cast(dtype.i8), False),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_plain_arithmetic_on_neighbouring_columns_is_vectorised(device: Device, name: str) -> None:
    after, expected = EPILOGUES[name]
    x, w, other = tensor(device, 13, 20), tensor(device, 20, 32), tensor(device, 13, 32)
    bias = tensor(device, 32)
    program = compile(lambda: {"y": after(x @ w, bias, other)}, device)
    (code,) = program.stages.codes
    ranges, vectors = vectorise_columns(code)
    stored = [u.src[1] for u in code.uops if u.op is U.STORE]
    assert bool(ranges) is expected
    assert all((value in vectors) is expected for value in stored)
    program.run()
    numpy = open_device("numpy")
    same = [Tensor(t.numpy(), numpy) for t in (x, w, bias, other)]
    assert close(program.read("y"), after(same[0] @ same[1], *same[2:]).numpy())


@pytest.mark.parametrize("in_vectors", [True, False])
def test_vectorised_clipping_limits_numbers_and_keeps_nan(device: Device, in_vectors: bool) -> None:
    x = np.repeat(np.float32([-np.inf, -2, -0.5, 0.25, 0.5, 2, np.inf, np.nan]), 32).reshape(8, 32)
    given = Tensor(x[:, :1] if in_vectors else x, device)
    ones = Tensor(np.ones((1, 32), np.float32), device)

    def limited() -> dict[str, Tensor]:
        y = given @ ones if in_vectors else given
        return {"below": y.minimum(0.5), "above": y.maximum(-0.5), "y": y.maximum(0).minimum(1)}

    program = compile(limited, device)
    program.run()
    assert np.array_equal(program.read("below"), np.minimum(x, 0.5), equal_nan=True)
    assert np.array_equal(program.read("above"), np.maximum(x, -0.5), equal_nan=True)
    assert np.array_equal(program.read("y"), x.clip(0, 1), equal_nan=True)


def test_value_shared_by_all_columns_is_stored_in_each(device: Device) -> None:
    """The stores share the vectorised column loop of a product."""
    x, w, row = tensor(device, 13, 20), tensor(device, 20, 32), tensor(device, 13, 1)
    numbers = Tensor(np.arange(13, dtype=np.int32).reshape(13, 1), device)
    state = Tensor(np.full((13, 32), 9, np.float32), device)

    def memory_stride() -> dict[str, Tensor]:
        state.assign(0.5)
        return {
            "y": (x @ w + row).relu(),
            "row": row.expand(13, 32) + 1,
            "numbers": (numbers * 3).expand(13, 32),
            "unchanged": (x @ w).sum().gradient([state])[0],
        }

    program = compile(memory_stride, device)
    (code,) = [code for code in program.stages.codes if any(u.op is U.PRODUCT for u in code.uops)]
    ranges, vectors = vectorise_columns(code)
    stored = {u.src[1] in vectors for u in code.uops if u.op is U.STORE}
    assert (bool(ranges), stored) == (True, {True, False})
    for name in program.outputs:
        storage = program.storage(name)
        write_buffer(storage, np.full(storage.shape, 9, storage.dtype.np))
    program.run()
    assert np.array_equal(state.numpy(), np.full((13, 32), 0.5))
    assert np.array_equal(program.read("row"), np.broadcast_to(row.numpy() + 1, (13, 32)))
    assert np.array_equal(program.read("numbers"), np.repeat(np.arange(13) * 3, 32).reshape(13, 32))
    assert not program.read("unchanged").any()


def test_integer_operations_on_columns_are_vectorised(device: Device) -> None:
    x, w = RNG.integers(-40, 40, (13, 20)), RNG.integers(-9, 9, (20, 16))
    bias = RNG.integers(-99, 99, 16).astype(np.int32)

    def memory_stride(on: AnyDevice) -> Tensor:
        y = Tensor(x.astype(np.float32), on) @ Tensor(w.astype(np.float32), on)
        sums = y.cast(dtype.i32) + Tensor(bias, on)
        low = ((sums & 255) * 3 - 7).maximum(5).minimum(99) ^ 1
        return Tensor.where(sums < 0, -(sums >> 2), low << 3).cast(dtype.f32) * 0.5

    program = compile(lambda: {"y": memory_stride(device)}, device)
    assert vectorise_columns(program.stages.codes[0])[0]
    program.run()
    expected = memory_stride(open_device("numpy")).numpy()
    assert program.read("y").tolist() == expected.tolist()
    assert np.unique(expected).size > 50


@pytest.mark.parametrize(
    ("rows", "columns", "vectors"),
    [(1, 16, True), (131, 16, True), (70, 8, True), (64, 24, True), (64, 9, False)],
)
def test_vectorised_products_of_partial_tiles_are_right(
    device: Device, rows: int, columns: int, vectors: bool
) -> None:
    x, w = tensor(device, rows, 3), tensor(device, 3, columns)
    program = compile(lambda: {"y": x @ w + 1}, device)
    assert bool(vectorise_columns(program.stages.codes[0])[0]) is vectors
    program.run()
    assert close(program.read("y"), x.numpy() @ w.numpy() + 1)


NO_VECTORIZE_PRAGMA = "#pragma clang loop vectorize(disable)"


@pytest.mark.parametrize(
    ("first", "far"),
    [
        (lambda x: x[:, 3:4] * 0.5 + x[:, 7:8], True),
        (lambda x: (x[:, 3:4] * 0.5 + x[:, 7:8]).exp(), False),
        (lambda x: x[:, :20] * 0.5, False),
    ],
)
def test_cheap_loop_over_strided_elements_is_not_vectorised(
    device: Device, first: Callable[[Tensor], Tensor], far: bool
) -> None:
    """A column of a matrix is copied to another one, with cheap arithmetic."""
    x = tensor(device, 300, 40)
    program = compile(lambda: {"y": Tensor.concat([first(x), x[:, 20:]], 1)}, device)
    assert (NO_VECTORIZE_PRAGMA in program.stages.source) is far
    program.run()
    same = Tensor(x.numpy(), open_device("numpy"))
    assert close(program.read("y"), Tensor.concat([first(same), same[:, 20:]], 1).numpy())


@pytest.mark.parametrize(
    ("rows", "units", "heights", "tiles"),
    [
        (1000, 1, {8: 1, 16: 1}, 16),  # tiles of 63 rows would have 8 parts of 6 and 3 of 5
        (1024, 1, {8: 2, 16: 1}, 16),  # all of them are whole, and need no limits
        (17, 16, {8: 2, 16: 2}, 2),  # two cores get nearly equal shares
    ],
)
def test_tiles_are_chosen_so_that_few_part_heights_are_compiled(
    device: Device, rows: int, units: int, heights: dict[int, int], tiles: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Each part height is a separate piece of source, which takes long to compile."""
    monkeypatch.setattr(device, "info", replace(device.info, compute_units=units))
    x, w = tensor(device, rows, 7), tensor(device, 7, device.vector_width * 2)
    program = compile(lambda: {"y": x @ w}, device)
    source = program.stages.source.partition("__kernel")[2]
    part_heights = set(re.findall(r"\bPRODUCT\((\d+),", source))
    assert len(part_heights) == heights[device.vector_width]
    assert f"share_begin({tiles})" in source
    program.run()
    assert close(program.read("y"), x.numpy() @ w.numpy())
