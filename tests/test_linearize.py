"""Reductions on a processor: which way memory is read, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import EMULATED

from imgmlp.engine import AnyDevice, Program, Tensor, open_device
from imgmlp.engine.maps import stride
from imgmlp.engine.symbolic import Var
from imgmlp.engine.uops import Code, U

Reduce = Callable[[Tensor], Tensor]
REDUCTIONS: dict[str, Reduce] = {
    "rows": lambda x: x.sum(1),
    "columns": lambda x: x.sum(0),
    "rows of the transposed": lambda x: x.permute(1, 0).sum(1),
    "columns of the transposed": lambda x: x.permute(1, 0).sum(0),
    "rows of what is made of the transposed": lambda x: (x * 2.0 + 1.0).permute(1, 0).max(1),
    "both": lambda x: x.permute(1, 0).sum(),
}


def program(device: AnyDevice, reduce: Reduce, *shape: int) -> tuple[Program, np.ndarray]:
    """A reduction of a matrix, and its result in float64."""
    values = np.random.default_rng(shape).uniform(-1, 1, shape).astype(np.float32)
    host = open_device("numpy")
    wanted = reduce(Tensor(values, host)).numpy()
    return Program(device, {"y": reduce(Tensor(values, device)).node}, []), wanted


@pytest.mark.parametrize("shape", [(40, 21), (5, 1100), (1100, 5)])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("form", EMULATED)
def test_results(form: str, name: str, shape: tuple[int, int]) -> None:
    found, wanted = program(open_device(form), REDUCTIONS[name], *shape)
    found.run()
    assert np.allclose(found.read("y"), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_neighbours_are_read_one_after_the_other(name: str) -> None:
    """Whichever axis is summed, and whether or not it is the one that lies together in memory."""
    found, _ = program(open_device("numpy:uops"), REDUCTIONS[name], 64, 48)
    (code,) = found.stages.codes
    assert steps(code) == {1}


def test_of_wide_rows_much_is_read_at_once() -> None:
    """Of 4,096 columns no line of 16 from each of many pages."""
    found, _ = program(open_device("numpy:uops"), REDUCTIONS["columns"], 64, 4096)
    (code,) = found.stages.codes
    inner = [u.arg.count for u in code.uops if u.op is U.RANGE and u.arg.kind == "vector"]
    assert min(inner) > 64


def steps(code: Code) -> set[int]:
    """How far a step of the innermost loop goes in memory, of each load inside of it."""
    loops: list[Var] = []
    found = set()
    for u in code.uops:
        if u.op is U.RANGE:
            loops.append(Var(u.arg.name, 0, u.arg.count - 1))
        elif u.op is U.END:
            loops.pop()
        elif u.op is U.LOAD and len(loops) > 1:
            found.add(stride(u.arg[0], loops, loops[-1]))
    return found
