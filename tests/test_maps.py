"""Kernels that read along one axis and write along another: in tiles, and still the same values."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import open_mapping

from imgmlp.engine import AnyDevice, Program, Tensor, compile, dtype
from imgmlp.engine.uops import U


@pytest.fixture(scope="module", params=["one", "numpy:uops"])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def tiles(program: Program) -> int:
    """How many values stay in a tile between being computed and stored."""
    return sum(u.op is U.KEEP for code in program.stages.codes for u in code.uops)


def test_a_transpose_beside_what_is_read_along_goes_through_tiles(device: AnyDevice) -> None:
    """Sizes that tiles do not divide, a batch axis, two results of two dtypes."""
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
    assert tiles(program) == 2
    early = [u.arg[1] for code in program.stages.codes for u in code.uops if u.op is U.PREFETCH]
    assert set(early) == {False, True}  # lines that will be read, and those that will be written


def test_padding_and_infinities_pass_through_tiles(device: AnyDevice) -> None:
    x = np.full((20, 90), -0.0, np.float32)
    x[3, :4] = np.nan, np.inf, -np.inf, 1
    program = compile(lambda: {"y": Tensor(x, device).transpose().pad((1, 2), (0, 3))}, device)
    program.run()
    found = program.read("y")
    assert np.array_equal(found, np.pad(x.T, ((1, 2), (0, 3))), equal_nan=True)
    assert np.signbit(found[1:-2, :20]).sum() == np.signbit(x).sum()
    assert tiles(program) == 1


@pytest.mark.parametrize("of", ["rows", "short", "reversed"])
def test_what_is_read_along_or_short_needs_no_tiles(of: str) -> None:
    device = open_mapping("numpy:uops")
    x = Tensor(np.zeros((64, 64)), device)
    moved = {"rows": x + 1, "short": x[:, :8].transpose() + 1, "reversed": x[:, ::-1] + 1}[of]
    assert tiles(compile(lambda: {"y": moved}, device)) == 0
