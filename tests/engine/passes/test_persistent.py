"""Persistent kernels run several steps in one launch, with equal results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import EMULATED, open_mapping, open_pocl, with_units
from reference import close
from test_prologue import descent_program

from imgmlp.engine import AnyDevice, Device, Program, RawKernel, open_device
from imgmlp.engine.codegen.render import building_block
from imgmlp.engine.ir.kernel import Block, Guard, Kernel, Loop, Persistent, Procedure
from imgmlp.engine.ir.target import MAX_UNITS_PER_PHASE
from imgmlp.engine.lowering import linearize
from imgmlp.engine.passes import persistent
from imgmlp.engine.passes.persistent import MAX_STEPS_PER_LAUNCH, make_persistent

STEPS = 2 * MAX_STEPS_PER_LAUNCH + 5


@pytest.fixture(params=["pocl", *EMULATED[:2]])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    if request.param == "pocl":
        return open_pocl()
    opened = open_mapping(request.param)
    opened.keeps_groups = True
    return opened


def training_procedure() -> Procedure:
    """A block and the launches after it."""
    return descent_program(open_device("numpy"))[0].stages.procedure


def output_bytes(program: Program) -> list[bytes]:
    return [program.read(name).tobytes() for name in program.outputs]


# --- results ---


def test_persistent_launch_of_several_steps_equals_single_steps(device: AnyDevice) -> None:
    program, weights = descent_program(device)
    expected, truth = descent_program(open_device("numpy"))
    (launch,) = program.stages.procedure.kernels
    assert isinstance(launch, Persistent)
    assert isinstance(launch.phases[0], Block)
    for count in (1, STEPS, 2):
        program.run(count)
        expected.run(count)
    assert program.read("count") == STEPS + 3
    for actual, other in zip(weights, truth, strict=True):
        assert close(actual.numpy(), other.numpy(), roundings=256)


def test_results_do_not_depend_on_the_steps_per_launch() -> None:
    first, *others = [descent_program(open_pocl())[0] for _ in range(3)]
    first.run(STEPS)
    for _ in range(STEPS):
        others[0].run()
    for count in (3, 1, STEPS - 4):
        others[1].run(count)
    assert output_bytes(first) == output_bytes(others[0]) == output_bytes(others[1])


@pytest.mark.parametrize("units", [1, MAX_UNITS_PER_PHASE])
def test_persistent_and_separate_launches_give_identical_bits(
    monkeypatch: pytest.MonkeyPatch, units: int
) -> None:
    monkeypatch.setattr(linearize, "MAX_UNITS_PER_PHASE", units)
    stays = descent_program(open_pocl())[0]
    monkeypatch.setattr(Device, "keeps_groups", False)
    leaves = descent_program(open_pocl())[0]
    assert len(leaves.stages.procedure.kernels) > 1
    stays.run(STEPS)
    leaves.run(STEPS)
    assert output_bytes(stays) == output_bytes(leaves)


def test_phases_of_a_persistent_kernel_order_accesses_without_race() -> None:
    """All phases are in one launch; without phases the same accesses are a race."""
    device = with_units(open_device("numpy:uops"), 2)  # each of which runs a group
    device.keeps_groups = True
    program = descent_program(device)[0]
    program.run()
    (code,) = program.stages.codes
    flat = [replace(u, arg=replace(u.arg, kind="member")) if is_phase(u) else u for u in code.uops]
    program.stages = replace(program.stages, codes=(replace(code, uops=tuple(flat)),))
    with pytest.raises(ValueError, match="race"):
        program.run()


def is_phase(u: object) -> bool:
    return getattr(getattr(u, "arg", None), "kind", None) == "phase"


# --- distribution of work among groups ---

TURNS = """
__kernel void t_turns(volatile __global uint *turns, __global uint *out, int steps) {
  const int units[] = {5, 1, 3};
  Turn turn = {0, -1};
  while (take_turn(turns, &turn, units, 3, 3 * steps)) {
    if (turn.phase % 3 == 0) out[turn.unit] += turn.unit + 1;
    if (turn.phase % 3 == 1) {
      out[5] = 0;
      for (int i = 0; i < 5; ++i) out[5] += out[i];
    }
    if (turn.phase % 3 == 2) out[6 + turn.unit] += out[5];
  }
}
"""


@pytest.mark.parametrize("patience", [1, 20000])
def test_take_turn_distributes_phases_among_any_number_of_groups(patience: int) -> None:
    """There may be one group, more groups than threads, or groups that do not wait."""
    device = open_pocl()
    source = building_block("persistent") + TURNS
    kernel = RawKernel(device, source, "t_turns", MAX_IDLE_CHECKS=patience)
    turns = np.zeros(48, np.uint32)
    for groups in (1, 2, 7):
        out, steps = np.zeros(9, np.uint32), 50
        kernel(groups, 1, turns, out, np.int32(steps))
        first = 15 * steps * (steps + 1) // 2
        assert out.tolist() == [*(steps * n for n in range(1, 6)), 15 * steps, *[first] * 3]
        assert not turns.any()


# --- conditions of persistent kernels ---


def test_operation_limit_reduces_the_steps_per_persistent_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (launch,) = make_persistent(training_procedure()).kernels
    assert isinstance(launch, Persistent)
    assert launch.steps == MAX_STEPS_PER_LAUNCH
    work = persistent.MAX_OPERATIONS_PER_LAUNCH
    while launch.steps == MAX_STEPS_PER_LAUNCH:
        work //= 2
        monkeypatch.setattr(persistent, "MAX_OPERATIONS_PER_LAUNCH", work)
        (launch,) = make_persistent(training_procedure()).kernels
    assert launch.steps >= 2
    monkeypatch.setattr(persistent, "MAX_OPERATIONS_PER_LAUNCH", work // MAX_STEPS_PER_LAUNCH)
    assert len(make_persistent(training_procedure()).kernels) > 1


def test_block_with_more_groups_than_units_per_phase_is_not_persistent() -> None:
    """A phase distributes at most MAX_UNITS_PER_PHASE units of work."""
    block, *after = training_procedure().items
    assert isinstance(block, Block)
    for groups, stays in ((MAX_UNITS_PER_PHASE, True), (MAX_UNITS_PER_PHASE + 1, False)):
        wide = Procedure((replace(block, tiles=groups, groups=groups), *after))
        assert isinstance(make_persistent(wide).kernels[0], Persistent) is stays


def test_procedure_without_block_or_with_loop_or_guard_is_not_persistent() -> None:
    block, *after = training_procedure().kernels
    assert isinstance(block, Block)
    plain = Procedure((*block.kernels[:2], *after))
    assert make_persistent(plain) is plain
    looped = Procedure((block, Loop(2, Procedure(tuple(after)), frozenset())))
    assert make_persistent(looped) is looped
    (kernel, *_) = block.kernels
    assert isinstance(kernel, Kernel)
    guarded = Procedure((block, replace(kernel, guards=(Guard(kernel.stores[0].place, True),))))
    assert make_persistent(guarded) is guarded
