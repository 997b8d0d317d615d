"""Kernels of whole rows: what is kept between stages, and equal values in every mapping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import EMULATED, open_mapping
from reference import close

from imgmlp.engine import Program, Tensor, compile, dtype
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.uops import Range, U

Array = np.ndarray[Any, Any]


def rows(form: str, *shapes: tuple[int, int]) -> tuple[Program, dict[str, Array]]:
    """A program that computes softmax, normalised rows and deviations, and expected values."""
    device, expected = open_mapping(form), {}
    arrays = [np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in shapes]
    tensors = [Tensor(a, device) for a in arrays]
    for i, x in enumerate(arrays):
        powers = np.exp(x - x.max(1, keepdims=True))
        expected[f"softmax {i}"] = powers / powers.sum(1, keepdims=True)
        expected[f"normal {i}"] = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
        expected[f"deviation {i}"] = x.std(1)

    def step() -> dict[str, Tensor]:
        outputs = {}
        for i, x in enumerate(tensors):
            deviation = x.variance(-1, keepdims=True).sqrt()
            outputs[f"softmax {i}"] = x.softmax(-1)
            outputs[f"normal {i}"] = (x - x.mean(-1, keepdims=True)) / deviation
            outputs[f"deviation {i}"] = deviation.reshape(-1)
        return outputs

    return compile(step, device, general=True), expected


@pytest.mark.parametrize("form", ["one", "group", *EMULATED])
def test_row_kernels_of_all_lengths_equal_numpy(form: str) -> None:
    """Short rows, whole vectors and groups, and a few elements more; odd numbers of rows."""
    more = [] if form == "group" else [(3, 64), (2, 256)]  # lanes take long to compile
    program, expected = rows(form, (70, 5), (67, 131), *more)
    program.run()
    for name, truth in expected.items():
        assert close(program.read(name), truth), name


def uops(form: str, length: int, kind: dtype.DType = dtype.f32) -> list[Any]:
    device = open_mapping(form)
    x = Tensor(np.ones((64, length), np.float32), device)
    (code,) = compile(lambda: {"y": x.softmax(-1).cast(kind)}, device).stages.codes
    return list(code.uops)


def exponentials(instructions: list[Any]) -> int:
    return sum(u.arg is Op.EXP2 for u in instructions if u.op is U.ALU)


@pytest.mark.parametrize("length", [9, 8192, 9001])
def test_row_exponentials_are_kept_in_the_output_buffer(length: int) -> None:
    instructions = uops("numpy:uops", length)
    assert exponentials(instructions) == 1
    assert sum(u.op is U.STORE for u in instructions) == 2
    assert not any(u.op is U.SET for u in instructions)


@pytest.mark.parametrize(("length", "times"), [(9, 1), (8192, 1), (9000, 3), (9001, 4)])
def test_row_exponentials_for_another_output_dtype_are_private_or_recomputed(
    length: int, times: int
) -> None:
    """A row that does not fit is computed again. The sum has separate loops for its last vector and
    for the remaining terms."""
    instructions = uops("numpy:uops", length, dtype.f16)
    assert exponentials(instructions) == times
    assert sum(u.op is U.SET for u in instructions) == (times == 1)
    assert sum(u.op is U.STORE for u in instructions) == 1


def test_lanes_keep_loaded_rows_and_exponentials_in_registers() -> None:
    instructions = uops("numpy:uops-group", 256)
    assert sum(u.op is U.LOAD for u in instructions) == 1
    kept = [u.arg[0] for u in instructions if u.op is U.ACC and u.arg[1] is None]
    assert kept == [2, 2]  # the row and its exponentials, two elements of each a lane


def test_lanes_keep_no_rows_too_long_for_registers() -> None:
    instructions = uops("numpy:uops-group", 128 * 65)
    assert not any(u.op is U.SET for u in instructions)
    loops = [u.arg for u in instructions if u.op is U.RANGE and u.arg.count == 65]
    assert all(isinstance(r, Range) and r.kind == "loop" for r in loops)


def test_cheap_row_values_are_recomputed() -> None:
    device = open_mapping("numpy:uops")
    x = Tensor(np.ones((64, 64), np.float32), device)
    program = compile(lambda: {"y": x * 2 - (x * 2).max(-1, keepdims=True)}, device)
    assert not any(u.op is U.SET for code in program.stages.codes for u in code.uops)
