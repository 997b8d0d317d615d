"""Half precision: which devices use it, how blocks are tiled for it, and what notes say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import QUICK, Command, open_mapping, open_pocl

from imgmlp.codec.float_mlp.config import PRESETS, Settings
from imgmlp.engine import AnyDevice, Program, Tensor, compile, open_device
from imgmlp.engine.device import driver
from imgmlp.engine.ir.kernel import Block
from imgmlp.engine.ir.target import Precision
from imgmlp.errors import UsageError


def layer(where: AnyDevice, precision: Precision) -> Program:
    """A layer's gradients on 20 rows; that of the bias is a column sum of a product's factor."""
    random = np.random.default_rng(0)
    x, weight = (Tensor(random.normal(size=s).astype(np.float32), where) for s in ((20, 9), (9, 5)))
    bias = Tensor(np.ones(5, np.float32), where)

    def step() -> dict[str, Tensor]:
        error = (x @ weight + bias).square().sum()
        slopes = error.gradient([weight, bias])
        return {"weight": slopes[0], "bias": slopes[1]}

    return compile(step, where, precision=precision)


def test_half_precision_uses_matrix_instructions_on_devices_with_matrix_units() -> None:
    where = open_device("numpy:uops-group")
    where.has_matrix_units = True
    program = layer(where, "half")
    source = program.stages.source
    assert program.precision == "half"
    assert "mma.sync.aligned.m16n8k16" in source
    assert source.count("#define TILE_PRODUCT") == 1
    assert "mma" not in layer(where, "float32").stages.source


@pytest.mark.parametrize(
    ("precision", "often", "launches"),
    [("half", 128, 1), ("half", 256, 2), ("float32", 32, 1), ("float32", 64, 2), ("exact", 32, 2)],
)
def test_gathered_rows_used_often_are_multiplied_once_per_table_row(
    precision: Precision, often: int, launches: int
) -> None:
    """Beyond that a launch before the block multiplies the table."""
    where = open_device("numpy:uops-group")
    where.has_matrix_units = True
    table, weight = (Tensor(np.ones((8, 8), np.float32), where) for _ in range(2))
    index = Tensor(np.zeros(8 * often, np.int32), where)

    def decoded() -> dict[str, Tensor]:
        return {"y": (table.gather(index) @ weight).sin() @ weight}

    procedure = compile(decoded, where, precision=precision).stages.procedure
    assert len(procedure.kernels) == launches


@pytest.mark.parametrize(
    ("precision", "width", "storing", "keeping"),
    [("float32", 16, 3, 3), ("half", 16, 4, 4), ("half", 64, 4, 2), ("float32", 64, 3, 2)],
)
def test_blocks_that_keep_sums_in_registers_have_fewer_groups(
    precision: Precision, width: int, storing: int, keeping: int
) -> None:
    """Large sums fill the registers, so that two groups run on a unit instead of three or four."""
    where = open_device("numpy:uops-group")
    where.has_matrix_units = True
    units = where.info.compute_units
    x, weight = (
        Tensor(np.ones(s, np.float32), where) for s in ((4096 * units, width), (width, width))
    )

    def groups(expected: Callable[[Tensor], Tensor]) -> int:
        def step() -> dict[str, Tensor]:
            return {"y": expected(((x @ weight).sin() @ weight).sin() @ weight)}

        program = compile(step, where, precision=precision)
        (block,) = [k for k in program.stages.procedure.kernels if isinstance(k, Block)]
        return block.groups

    assert groups(lambda y: y) == storing * units
    assert groups(lambda y: y.square().sum().gradient([weight])[0]) == keeping * units


@pytest.mark.parametrize(
    ("precision", "width", "rows", "note"),
    [
        ("float32", 64, 32, "; larger tiles have no room in local memory"),
        ("float32", 96, 64, "; no matrix units: a tile's factors have no room in local memory"),
        ("half", 64, 64, " sums over rows"),
        ("half", 96, 64, "; a tile's factors have no room in local memory and pass through it in"),
    ],
)
def test_note_says_what_does_not_fit_into_local_memory(
    precision: Precision, width: int, rows: int, note: str
) -> None:
    where = open_device("numpy:uops-group")
    where.has_matrix_units = True
    shapes = (64 * where.info.compute_units, 64), (64, width), (width, width), (width, width)
    x, *weights = (Tensor(np.ones(s, np.float32), where) for s in shapes)

    def step() -> dict[str, Tensor]:
        y = x
        for weight in weights:
            y = (y @ weight).sin()
        slopes = y.square().sum().gradient(weights)
        return {f"slope{n}": slope for n, slope in enumerate(slopes)}

    procedure = compile(step, where, precision=precision).stages.procedure
    (block,) = [k for k in procedure.kernels if isinstance(k, Block)]
    assert block.rows == rows
    assert note in procedure.note
    assert ("local memory" in procedure.note) == ("local memory" in note)


@pytest.mark.parametrize("name", ["numpy", "one"])
def test_devices_without_matrix_units_multiply_in_float32(name: str) -> None:
    where = open_mapping(name)
    programs: list[Program] = [layer(where, p) for p in ("half", "float32")]  # type: ignore[arg-type]
    assert [p.precision for p in programs] == ["float32", "float32"]
    assert programs[0].stages.source == programs[1].stages.source
    for program in programs:
        program.run()
    for output in ("weight", "bias"):
        assert np.array_equal(*(p.read(output) for p in programs))


@pytest.mark.parametrize(("major", "wanted"), [(7, False), (8, True), (9, True), (None, False)])
def test_matrix_units_need_compute_capability_8(
    major: int | None, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_info(_: Any) -> int:
        if major is None:
            raise driver.cl.LogicError("INVALID_VALUE")
        return major

    assert driver.has_matrix_units(SimpleNamespace(get_info=get_info)) is wanted


def test_pocl_has_no_matrix_units() -> None:
    device = open_pocl()
    assert not device.has_matrix_units


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="'int8'; use 'float32' or 'half'"):
        layer(open_device("numpy"), "int8")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="precision is 'int8'"):
        Settings("default", precision="int8")  # type: ignore[arg-type]
    assert PRESETS["default"].precision == "float32"


def test_train_warns_that_it_falls_back_to_float32_and_trains_the_same(
    imgmlp: Command, picture: Path
) -> None:
    done = imgmlp("train", picture, *QUICK, "--precision", "half")
    assert "has no matrix units for half precision: using float32" in done.stderr
    plain = imgmlp("train", picture, *QUICK, "-o", "plain.npz", "--png", "plain.png")
    assert "matrix units" not in plain.stderr
    folder = picture.parent
    assert (folder / "weights.npz").read_bytes() == (folder / "plain.npz").read_bytes()
