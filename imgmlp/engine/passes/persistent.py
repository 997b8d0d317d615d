"""Steps without launches in between: work-groups that stay, and do one phase after the other.

At each launch a driver wakes its threads and they fall asleep after it, which takes a CPU up to
ten microseconds each time. Where a whole step takes little more, all of its launches become
phases of one, which does several steps. Nothing waits for a group that may not run: whoever is
there takes what is left of a phase (kernels/persistent.cl).
"""

from __future__ import annotations

from imgmlp.engine.ir.kernel import Block, Kernel, Persistent, Phase, Procedure
from imgmlp.engine.ir.target import MOST_UNITS
from imgmlp.engine.passes.horizontal_fusion import MOST_BUFFERS, work

MOST_STEPS = 16  # of a launch; more save next to nothing
MOST_WORK = 1 << 29  # operations of a launch, some milliseconds: until then nobody can stop it
MOST_PHASES = 8  # more kernels in one function take long to compile


def make_persistent(procedure: Procedure) -> Procedure:
    """The same launches as phases of one, if a step takes little time and there is a block, all of
    whose groups can stay."""
    phases = [item for item in procedure.items if isinstance(item, Phase)]
    if not 1 < len(phases) <= MOST_PHASES or len(phases) < len(procedure.items):
        return procedure
    buffers = {b for p in phases for b in (*p.reads(), *p.writes())}
    guarded = any(k.guards for p in phases for k in _kernels(p))
    steps = min(MOST_STEPS, MOST_WORK // max(1, sum(map(operations, phases))))
    if steps < 2 or guarded or len(buffers) > MOST_BUFFERS:
        return procedure
    blocks = [p for p in phases if isinstance(p, Block)]
    if not blocks or max(b.groups for b in blocks) > MOST_UNITS:
        return procedure
    return Procedure((Persistent("k0_persistent", tuple(phases), steps),), procedure.note)


def _kernels(phase: Phase) -> tuple[Kernel, ...]:
    return (phase,) if isinstance(phase, Kernel) else phase.parts


def operations(phase: Phase) -> int:
    """Elements computed, each counted as often as it has terms."""
    if isinstance(phase, Block):
        prologue, tile = (sum(map(work, kernels)) for kernels in (phase.prologue, phase.kernels))
        return phase.groups * prologue + phase.tiles * tile
    return sum(map(work, _kernels(phase)))
