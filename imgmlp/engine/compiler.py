"""All forms of one step, from Nodes to OpenCL C, and how to look at them.

This is the flow of the compiler in one function; it needs no device, only the facts of one that
target.py names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from imgmlp.engine.codegen.render import render
from imgmlp.engine.ir.control_flow import computed
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.kernel import Block, Procedure, Update, render_procedure
from imgmlp.engine.ir.printer import render_dot, render_nodes, render_tree
from imgmlp.engine.ir.target import Multiply, Target
from imgmlp.engine.ir.uops import Code, render_uops
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.lowering.linearize import linearize
from imgmlp.engine.passes.halo_tiles import in_tiles
from imgmlp.engine.passes.horizontal_fusion import fuse
from imgmlp.engine.passes.memory_plan import Plan, plan
from imgmlp.engine.passes.persistent import make_persistent
from imgmlp.engine.passes.schedule import schedule
from imgmlp.engine.passes.side_queue import fuse_aside
from imgmlp.engine.passes.simplify import OFTEN, simplify
from imgmlp.engine.tiling.block import block_procedure, is_staged


@dataclass(frozen=True)
class Stages:
    """What a step becomes, stage by stage."""

    nodes: tuple[Node, ...]  # new values of all states and outputs, simplified
    procedure: Procedure
    memory: Plan
    codes: tuple[Code, ...]  # a kernel's UOps each
    source: str  # OpenCL C
    functions: tuple[str, ...]  # the function of `source` that each kernel calls
    seconds: dict[str, float]  # that each pass took

    def show(self, form: str) -> str:
        """One of FORMS as text. Raises ValueError for another."""
        if form not in FORMS:
            raise misuse(ValueError, f"show: {form!r} is none of the forms {', '.join(FORMS)}")
        return FORMS[form](self)

    def figures(self) -> dict[str, int | float]:
        """Counts and bytes of the step.

        `intermediate_bytes` is what every operation's value would take if each were stored,
        `saved` the share of it that fusion and the memory plan avoid, `saved_by_packing`
        what sharing bytes alone saves of the intermediates that are left.
        """
        unfused = sum(n.size * n.dtype.itemsize for n in computed(self.nodes))
        arena, separate = self.memory.arena_bytes, self.memory.separate_bytes
        return {
            "kernels": len(set(self.functions)),
            "launches": sum(1 for _ in self.procedure.order()),
            "intermediate_bytes": unfused,
            "arena_bytes": arena,
            "saved": 1 - arena / unfused if unfused else 0.0,
            "saved_by_packing": 1 - arena / separate if separate else 0.0,
        }


# Times that a table's rows are taken, from which to multiply the table, in a launch of its own. On
# an H200 it took longer than for matrix units to multiply the rows at 32 times ("split") and 128
# ("half"), and less at 512.
TABLES: dict[Multiply, int] = {"float32": OFTEN, "split": 64, "half": 256}

# Why lanes multiply float32 where there are matrix units.
TOO_LARGE = "no matrix units: a tile's factors have no room in local memory"

FORMS: dict[str, Callable[[Stages], str]] = {
    "dot": lambda stages: render_dot(stages.nodes),
    "nodes": lambda stages: render_nodes(stages.nodes),
    "tree": lambda stages: render_tree(stages.nodes),
    "procedure": lambda stages: render_procedure(stages.procedure),
    "memory": lambda stages: stages.memory.render(),
    "uops": lambda stages: "\n\n".join(f"{c.name}\n{render_uops(c)}" for c in stages.codes),
    "source": lambda stages: stages.source,
}


def lower(updates: Sequence[Update], target: Target, general: bool = False) -> Stages:
    """Every stage of a step that gives each Buffer its new value; `general` leaves out the block
    program."""
    states, values = [state for state, _ in updates], [value for _, value in updates]
    seconds: dict[str, float] = {}

    def scheduled(nodes: Sequence[Node]) -> Procedure:
        step = list(zip(states, nodes, strict=True))
        if general or not target.joins:
            return schedule(step, target.lanes == "group")
        return block_procedure(step, target)

    with _clock(seconds, "simplify"):
        nodes = simplify(values, TABLES[target.multiply])
    with _clock(seconds, "schedule"):
        procedure, lacking = scheduled(nodes), ""
        if target.multiply == "split" and not _pays(procedure):
            target = replace(target, multiply="float32")
            before, large = nodes, _blocks(procedure)
            nodes = simplify(values, TABLES[target.multiply])
            if large or nodes != before:
                procedure = scheduled(nodes)
            lacking = f"; {TOO_LARGE}" if large else ""
        procedure = replace(procedure, note=f"{procedure.note}{lacking}")
    if target.joins:
        with _clock(seconds, "fuse"):
            procedure = in_tiles(procedure) if target.lanes == "group" else procedure
            aside = fuse_aside(procedure) if target.queues else None
            procedure = aside or fuse(procedure)
            procedure = make_persistent(procedure) if target.stays else procedure
    with _clock(seconds, "linearize"):
        codes = tuple(linearize(k, target) for k in procedure.kernels)
    with _clock(seconds, "render"):
        source, functions = render(codes, target)
    with _clock(seconds, "plan"):
        memory = plan(procedure, target.align, target.slices)
    return Stages(tuple(nodes), procedure, memory, codes, source, tuple(functions), seconds)


def _pays(procedure: Procedure) -> bool:
    """Whether matrix units gain by float32: in blocks whose tiles have their factors at hand."""
    blocks = _blocks(procedure)
    return bool(blocks) and all(is_staged(b.kernels) for b in blocks)


def _blocks(procedure: Procedure) -> list[Block]:
    return [k for k in procedure.kernels if isinstance(k, Block)]


@contextmanager
def _clock(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note down how long what is done within takes."""
    begin = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - begin
