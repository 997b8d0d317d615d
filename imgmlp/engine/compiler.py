"""The compiler: Nodes go in; OpenCL C and a memory plan come out.

`lower` runs all passes in order. The compiler needs no device, only the facts about one that
ir/target.py lists. `Stages` has every intermediate form, and prints each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from imgmlp.engine.codegen.render import render
from imgmlp.engine.ir.control_flow import computed_nodes
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.kernel import Block, Procedure, Update, render_procedure
from imgmlp.engine.ir.printer import render_dot, render_nodes, render_tree
from imgmlp.engine.ir.target import ProductMode, Target
from imgmlp.engine.ir.uops import Code, render_uops
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.lowering.linearize import linearize
from imgmlp.engine.passes.halo_tiles import fuse_in_halo_tiles
from imgmlp.engine.passes.horizontal_fusion import fuse
from imgmlp.engine.passes.memory_plan import MemoryPlan, plan_memory
from imgmlp.engine.passes.persistent import make_persistent
from imgmlp.engine.passes.schedule import schedule
from imgmlp.engine.passes.side_queue import fuse_in_two_queues
from imgmlp.engine.passes.simplify import MIN_TABLE_REUSE, simplify
from imgmlp.engine.tiling.block import block_procedure, is_staged


@dataclass(frozen=True)
class Stages:
    """All forms of one step, from Nodes to OpenCL C."""

    nodes: tuple[Node, ...]  # new values of all states and outputs, simplified
    procedure: Procedure
    memory: MemoryPlan
    codes: tuple[Code, ...]  # the UOps of each kernel
    source: str  # OpenCL C
    functions: tuple[str, ...]  # the name in `source` of each kernel's function
    seconds: dict[str, float]  # time that each pass took, by its name

    def show(self, form: str) -> str:
        """The text of one of FORMS. Raises ValueError if `form` is none of them."""
        if form not in FORMS:
            raise misuse(ValueError, f"show: {form!r} is none of the forms {', '.join(FORMS)}")
        return FORMS[form](self)

    def figures(self) -> dict[str, int | float]:
        """Counts and bytes of the step.

        `intermediate_bytes` would be needed if every operation's value were stored. `saved` is the
        fraction of it that fusion and the memory plan avoid, `saved_by_packing` the fraction of the
        remaining intermediates' bytes that the memory plan alone saves.
        """
        unfused = sum(n.size * n.dtype.itemsize for n in computed_nodes(self.nodes))
        arena, separate = self.memory.arena_bytes, self.memory.separate_bytes
        return {
            "kernels": len(set(self.functions)),
            "launches": sum(1 for _ in self.procedure.order()),
            "intermediate_bytes": unfused,
            "arena_bytes": arena,
            "saved": 1 - arena / unfused if unfused else 0.0,
            "saved_by_packing": 1 - arena / separate if separate else 0.0,
        }


# How often each row of a table is gathered from where on the whole table is multiplied, in a launch
# of its own. On an H200 matrix units multiplied the gathered rows faster at 32 ("split") and at 128
# times ("half"), and the table faster at 512.
MIN_TABLE_REUSE_BY_MODE: dict[ProductMode, int] = {
    "float32": MIN_TABLE_REUSE,
    "split": 64,
    "half": 256,
}

# Note of a Procedure whose float32 products do not run on the device's matrix units.
NO_ROOM_FOR_MATRIX_UNITS = "no matrix units: a tile's factors have no room in local memory"

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
    """Compile a step that gives each Buffer its new value.

    `general` leaves out the block program, and uses the general scheduler alone.
    """
    states, values = [state for state, _ in updates], [value for _, value in updates]
    seconds: dict[str, float] = {}

    def to_procedure(nodes: Sequence[Node]) -> Procedure:
        step = list(zip(states, nodes, strict=True))
        if general or not target.can_join_kernels:
            return schedule(step, split_products=target.lanes == "group")
        return block_procedure(step, target)

    with _timed(seconds, "simplify"):
        nodes = simplify(values, MIN_TABLE_REUSE_BY_MODE[target.product_mode])
    with _timed(seconds, "schedule"):
        procedure = to_procedure(nodes)
        if target.product_mode == "split" and not _matrix_units_pay(procedure):
            target = replace(target, product_mode="float32")
            nodes_for_units, blocks = nodes, _blocks(procedure)
            nodes = simplify(values, MIN_TABLE_REUSE_BY_MODE[target.product_mode])
            if blocks or nodes != nodes_for_units:
                procedure = to_procedure(nodes)
            if blocks:
                note = f"{procedure.note}; {NO_ROOM_FOR_MATRIX_UNITS}"
                procedure = replace(procedure, note=note)
    if target.can_join_kernels:
        with _timed(seconds, "fuse"):
            procedure = _fuse_launches(procedure, target)
    with _timed(seconds, "linearize"):
        codes = tuple(linearize(k, target) for k in procedure.kernels)
    with _timed(seconds, "render"):
        source, functions = render(codes, target)
    with _timed(seconds, "plan"):
        memory = plan_memory(procedure, target.alignment, target.can_slice)
    return Stages(tuple(nodes), procedure, memory, codes, source, tuple(functions), seconds)


def _fuse_launches(procedure: Procedure, target: Target) -> Procedure:
    """The same kernels in as few launches as the device gains from."""
    if target.lanes == "group":
        procedure = fuse_in_halo_tiles(procedure)
    in_two_queues = fuse_in_two_queues(procedure) if target.has_queues else None
    procedure = in_two_queues or fuse(procedure)
    return make_persistent(procedure) if target.keeps_groups else procedure


def _matrix_units_pay(procedure: Procedure) -> bool:
    """Whether float32 products gain from matrix units: in blocks that have all factors of a tile
    in local memory."""
    blocks = _blocks(procedure)
    return bool(blocks) and all(is_staged(b.kernels) for b in blocks)


def _blocks(procedure: Procedure) -> list[Block]:
    return [k for k in procedure.kernels if isinstance(k, Block)]


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Note the time that the body of a `with` statement takes."""
    begin = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - begin
