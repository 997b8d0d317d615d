"""Persistent work-groups: all launches of a short step become phases of one launch.

In: a scheduled Procedure. Out: the same Procedure, or one with a single Persistent launch whose
work-groups stay for several steps and run one phase after the other.

A CPU driver wakes its threads for every launch and lets them sleep afterwards, which takes up to
10 us each time (docs/performance-notes.md, "Between the launches of short steps"). The pass merges
launches only if a launch then still takes a few milliseconds at most, because nobody can interrupt
it. It must not make a work-group wait for another one that may not be running: whichever groups
run take what is left of a phase (kernels/persistent.cl).
"""

from __future__ import annotations

from imgmlp.engine.ir.kernel import Block, Kernel, Persistent, Phase, Procedure
from imgmlp.engine.ir.target import MAX_UNITS_PER_PHASE
from imgmlp.engine.passes.horizontal_fusion import MAX_LAUNCH_BUFFERS, kernel_operations

MAX_STEPS_PER_LAUNCH = 16  # training steps; more save next to nothing
# Elementary operations. They take some milliseconds, during which the launch cannot be interrupted.
MAX_OPERATIONS_PER_LAUNCH = 1 << 29
MAX_PHASES = 8  # launches of a step; a function with more kernels takes long to compile


def make_persistent(procedure: Procedure) -> Procedure:
    """The step as one Persistent launch, or the Procedure itself if that does not pay.

    It pays for a short step with a Block, all of whose work-groups can stay.
    """
    phases = [item for item in procedure.items if isinstance(item, Phase)]
    if not 1 < len(phases) <= MAX_PHASES or len(phases) < len(procedure.items):
        return procedure
    buffers = {b for p in phases for b in (*p.reads(), *p.writes())}
    guarded = any(k.guards for p in phases for k in _kernels(p))
    steps = min(
        MAX_STEPS_PER_LAUNCH,
        MAX_OPERATIONS_PER_LAUNCH // max(1, sum(map(phase_operations, phases))),
    )
    if steps < 2 or guarded or len(buffers) > MAX_LAUNCH_BUFFERS:
        return procedure
    blocks = [p for p in phases if isinstance(p, Block)]
    if not blocks or max(b.groups for b in blocks) > MAX_UNITS_PER_PHASE:
        return procedure
    return Procedure((Persistent("k0_persistent", tuple(phases), steps),), procedure.note)


def _kernels(phase: Phase) -> tuple[Kernel, ...]:
    return (phase,) if isinstance(phase, Kernel) else phase.parts


def phase_operations(phase: Phase) -> int:
    """Elementary operations of a phase: its elements, each times its number of terms."""
    if isinstance(phase, Block):
        prologue, tile = (
            sum(map(kernel_operations, kernels)) for kernels in (phase.prologue, phase.kernels)
        )
        return phase.groups * prologue + phase.tiles * tile
    return sum(map(kernel_operations, _kernels(phase)))
