"""Vectors of 16 give the same values, and are generated only for devices that allow them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from conftest import open_mapping
from reference import close
from simulated import OTHERS, PRODUCTS, STEPS

from imgmlp.engine import AnyDevice, Device, NumpyDevice, Tensor, compile
from imgmlp.engine.codegen.render import building_block
from imgmlp.engine.ir.uops import U

PROGRAMS = PRODUCTS | OTHERS | STEPS
BLOCKS = ("scalar", "vectors", "reduce", "product_one", "persistent")


def opened(name: str, vector: int = 16) -> AnyDevice:
    """A device with vectors of this many elements; the test is skipped if there is none."""
    device = open_mapping(name)
    if isinstance(device, Device) and device.vector_width < 16:
        pytest.skip(f"{device.info.name} has vectors of 8 only, with which all other tests run")
    device.vector_width = vector
    return device


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("form", "vector"), [("numpy:uops", 16), ("one", 16), ("one", 8)])
def test_vectors_of_8_and_16_give_the_same_values(form: str, vector: int, name: str) -> None:
    program, expected = PROGRAMS[name](opened(form, vector)), PROGRAMS[name](NumpyDevice())
    program.run()
    expected.run()
    for output in program.outputs:
        actual, truth = program.read(output), expected.read(output)
        assert close(actual, truth, roundings=1024), output


@pytest.mark.parametrize(
    ("columns", "inner", "tiles"),
    [
        (64, 7, [32]),
        (72, 7, [32, 8]),
        (24, 7, [16, 8]),
        (48, 7, [32, 16]),
        (31, 7, [32]),
        (20, 7, [16, 8]),
        (12, 7, [16]),
        (3, 7, [8]),
        (48, 300, [32, 32]),
    ],
)
def test_columns_beyond_whole_tiles_use_narrower_tiles(
    columns: int, inner: int, tiles: list[int]
) -> None:
    device = opened("numpy:uops")
    x, y = (Tensor(np.ones(s, np.float32), device) for s in ((9, inner), (inner, columns)))
    (code,) = compile(lambda: {"y": x @ y}, device).stages.codes
    tile_widths = [u.arg.tile_columns for u in code.uops if u.op is U.PRODUCT]
    assert list(dict.fromkeys(tile_widths)) == list(dict.fromkeys(tiles))


def test_only_loops_without_sums_get_the_wide_vector_hint() -> None:
    """In loops with sums the hint would let a compiler change the order of additions."""
    device = opened("numpy:uops")
    x = Tensor(np.ones((40, 32), np.float32), device)
    hint = "#pragma clang loop vectorize_width(16)"

    def source(y: Tensor) -> str:
        return compile(lambda: {"y": y}, device).stages.source

    assert hint in source(x * 2 + 1)
    assert hint not in source(x.sum())
    assert hint not in source(x[:, :9] * 2)


@pytest.mark.parametrize("lanes", ["one", "group"])
@pytest.mark.parametrize("name", STEPS)
def test_vectors_of_16_occur_only_in_code_for_devices_that_allow_them(
    name: str, lanes: str
) -> None:
    """Other compilers abort or hang at any vector of 16; on a GPU lanes are the vectors."""
    device = open_mapping("numpy:uops" if lanes == "one" else "numpy:uops-group")
    narrow = PROGRAMS[name](device).stages.source
    device.vector_width = 16
    source = PROGRAMS[name](device).stages.source
    for block in BLOCKS:
        narrow = narrow.replace(building_block(block), "")
    assert not re.search(r"(float|int)16|NARROW 16|vectorize_width", narrow)
    assert ("#define NARROW 16" in source) is (lanes == "one")
