"""Executables: their source in parts, and programs that are compiled together."""

from __future__ import annotations

import numpy as np
import pytest

from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.engine import (
    Device,
    Tensor,
    compile,
    compiler,
    open_device,
    together,
)
from imgmlp.engine.ir.target import Target
from imgmlp.engine.runtime import executable, program


def test_source_is_split_into_parts_with_a_common_head_and_each_kernel_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = "#define ONE 1\n"
    kernels = [f"__kernel void k{n}(int x) {{ {'x += ONE; ' * n} }}\n" for n in range(7)]
    monkeypatch.setattr(executable, "MIN_PART_LENGTH", 80)
    split_parts = executable.parts(head + "".join(kernels))
    assert [name for names in split_parts.values() for name in names] == [f"k{n}" for n in range(7)]
    *full, last = split_parts.values()
    assert full == [["k0", "k1", "k2"], ["k3", "k4"]]
    assert last == ["k5", "k6"]
    for text, names in split_parts.items():
        assert text == head + "".join(kernels[int(name[1:])] for name in names)
    monkeypatch.undo()
    assert list(executable.parts(head + "".join(kernels)).values()) == [[f"k{n}" for n in range(7)]]


def test_latent_step_is_large_and_split_into_several_parts() -> None:
    pixels = np.zeros((128, 128, 3), np.uint8)
    step = LatentStep(pixels, 0, open_device("numpy"))
    assert len(step.program._nodes()) > program.MANY_NODES
    source = compiler.lower(step.program.updates, Target(lanes="group")).source
    assert len(executable.parts(source)) > 4


def test_program_compiled_together_is_built_at_its_first_use(pocl: Device) -> None:
    x = Tensor(np.arange(4, dtype=np.float32), pocl)

    def step() -> dict[str, Tensor]:
        y = (x * 2.0).contiguous()
        return {"sum": y.sum(), "largest": y.max()}

    with together():
        first = compile(step, pocl)
        with together():
            second = compile(step, pocl, beside=first)
        second.run()
        assert second.read("sum") == 12
        third = compile(step, pocl)
        third.run()
    first.run()
    for each in (first, third):
        assert each.read("largest") == 6


def test_failed_joint_compilation_does_not_affect_the_next_program(pocl: Device) -> None:
    x = Tensor(np.arange(4, dtype=np.float32), pocl)

    def step() -> dict[str, Tensor]:
        return {"sum": x.sum()}

    def both() -> None:
        with together():
            compile(step, pocl)
            compile(lambda: step()["sum"], pocl)

    with pytest.raises(TypeError, match="return a dict"):
        both()
    program = compile(step, pocl)
    program.run()
    assert program.read("sum") == 6
