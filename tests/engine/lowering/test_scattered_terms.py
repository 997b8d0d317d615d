"""Sums of padded terms that each fill a part of a row: added at their positions only."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import open_mapping

from imgmlp.engine import AnyDevice, Program, Tensor, compile
from imgmlp.engine.ir.uops import U

Size = tuple[int, ...]
Part = tuple[Size, Size]  # first row and column, rows and columns

PARTS: list[Part] = [((0, 0), (9, 11)), ((5, 8), (3, 12)), ((11, 29), (1, 1)), ((2, 20), (10, 10))]


@pytest.fixture(scope="module", params=["one", "group", "numpy:uops", "numpy:uops-group"])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def kept(program: Program) -> int:
    """The number of terms that are added to private rows."""
    return sum(u.op is U.SET for code in program.stages.codes for u in code.uops)


def padded(values: list[np.ndarray], shape: Size) -> np.ndarray:
    result = np.zeros(shape, np.float32)
    for ((row, column), (rows, columns)), x in zip(PARTS, values, strict=True):
        result[..., row : row + rows, column : column + columns] += x
    return result


def placed(tensors: list[Tensor], shape: Size) -> Tensor:
    height, width = shape[-2:]
    total: Tensor | None = None
    for ((row, column), (rows, columns)), x in zip(PARTS, tensors, strict=True):
        sides = [(0, 0)] * (len(shape) - 2)
        sides += [(row, height - row - rows), (column, width - column - columns)]
        term = x.pad(*sides)
        total = term if total is None else total + term
    assert total is not None
    return total


@pytest.mark.parametrize("shape", [(12, 30), (2, 12, 30)])
def test_padded_terms_are_added_at_their_positions(device: AnyDevice, shape: Size) -> None:
    """Terms overlap, one is in a corner; the sum is used by two results."""
    random = np.random.default_rng(0)
    whole = random.standard_normal(shape).astype(np.float32)
    values = [random.standard_normal((*shape[:-2], *size)).astype(np.float32) for _, size in PARTS]
    x, parts = Tensor(whole, device), [Tensor(v, device) for v in values]

    def step() -> dict[str, Tensor]:
        total = placed([p * 2 for p in parts], shape)
        return {"y": x * total + 1, "z": total}

    program = compile(step, device)
    program.run()
    total = padded([v * 2 for v in values], shape)
    assert np.array_equal(program.read("z"), total)
    assert np.allclose(program.read("y"), whole * total + 1, rtol=1e-6, atol=1e-6)
    assert kept(program) == (0 if device.lanes == "group" else len(PARTS))


def test_gradients_of_slices_are_added_at_their_positions() -> None:
    device = open_mapping("numpy:uops")
    x = Tensor(np.ones((12, 30), np.float32), device)

    def step() -> dict[str, Tensor]:
        parts = (
            x[row : row + rows, column : column + columns].square().sum()
            for (row, column), (rows, columns) in PARTS
        )
        loss = next(parts)
        for part in parts:
            loss = loss + part
        (slopes,) = loss.gradient([x])
        return {"slopes": slopes}

    program = compile(step, device)
    program.run()
    ones = [np.full(size, 2, np.float32) for _, size in PARTS]
    assert np.array_equal(program.read("slopes"), padded(ones, (12, 30)))
    assert kept(program) == len(PARTS)


@pytest.mark.parametrize(
    ("columns", "count"), [(8, 2), (9, 0)], ids=["half of the row", "more than half"]
)
def test_terms_that_fill_most_of_a_row_are_not_scattered(columns: int, count: int) -> None:
    device = open_mapping("numpy:uops")
    a, b = (Tensor(np.ones((6, columns), np.float32), device) for _ in range(2))

    def step() -> dict[str, Tensor]:
        return {"y": a.pad((0, 2), (0, 16 - columns)) + b.pad((2, 0), (16 - columns, 0))}

    program = compile(step, device)
    program.run()
    expected = np.zeros((8, 16), np.float32)
    expected[:6, :columns] += 1
    expected[2:, 16 - columns :] += 1
    assert np.array_equal(program.read("y"), expected)
    assert kept(program) == count


@pytest.mark.parametrize("name", ["one", "numpy:uops"])
def test_single_column_accumulates_all_overlapping_terms(name: str) -> None:
    """The terms have one or several columns, in any order."""
    device = open_mapping(name)
    x = Tensor(np.arange(24, dtype=np.float32).reshape(3, 8), device)

    def step() -> dict[str, Tensor]:
        parts = x[:, 3], x[:, 2:5], x[1:, 3] * 2, x[:, 3] * 3, x[:, 5]
        loss = parts[0].square().sum()
        for part in parts[1:]:
            loss = loss + part.square().sum()
        (slopes,) = loss.gradient([x])
        return {"slopes": slopes}

    program = compile(step, device)
    program.run()
    times = np.zeros((3, 8), np.float32)
    times[:, 2:6] = 2
    times[:, 3] += 2 + 18
    times[1:, 3] += 8
    assert kept(program) == 4
    assert np.array_equal(program.read("slopes"), times * np.arange(24).reshape(3, 8))


def test_nested_shared_sums_are_not_expanded_exponentially() -> None:
    """Each sum is read twice, so that expanding all would give exponentially many terms."""
    device = open_mapping("numpy:uops")
    a, b = (Tensor(np.ones((2, 3), np.float32), device) for _ in range(2))

    def step() -> dict[str, Tensor]:
        one, other = a.pad((0, 1), (0, 9)), b.pad((1, 0), (9, 0))
        for _ in range(40):
            one, other = one + other, one
        return {"y": one}

    program = compile(step, device)
    program.run()
    numbers = [1, 1]  # Fibonacci's
    while len(numbers) < 42:
        numbers.append(numbers[-1] + numbers[-2])
    expected = np.zeros((3, 12), np.float32)
    expected[:2, :3] += numbers[40]
    expected[1:, 9:] += numbers[39]
    assert np.allclose(program.read("y"), expected)


@pytest.mark.parametrize("name", ["one", "numpy:uops"])
def test_number_of_private_rows_is_limited(name: str) -> None:
    """A kernel's private memory is small; further sums are computed without private rows."""
    device, columns, count = open_mapping(name), 1 << 13, 6
    a, b = (Tensor(np.ones((2, columns // 4), np.float32), device) for _ in range(2))

    def step() -> dict[str, Tensor]:
        y = Tensor.zeros(2, columns)
        for n in range(count):
            begins = (n, columns - n - columns // 4), (columns // 2 + n, columns // 4 - n)
            total = a.pad((0, 0), begins[0]) + b.pad((0, 0), begins[1])
            y = y + total.maximum(0.5)  # prevents merging of the sums
        return {"y": y}

    program = compile(step, device)
    program.run()
    expected = np.full(columns, count * 0.5, np.float32)
    for n in range(count):
        expected[n : n + columns // 4] += 0.5
        expected[columns // 2 + n : columns // 2 + n + columns // 4] += 0.5
    assert kept(program) == 2 * 4
    assert np.array_equal(program.read("y"), np.stack([expected] * 2))
