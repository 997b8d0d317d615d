"""What a Program needs of a lowered step to run it: OpenCL C, and numbers for its launches.

No Nodes, no UOps and no Buffers, so that it can be kept as text and be another process's.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, NamedTuple

from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.kernel import Block, Persistent
from imgmlp.engine.ir.uops import Code

if TYPE_CHECKING:
    from imgmlp.engine.compiler import Stages

KERNEL = "__kernel "  # how each function of a source begins
PART = 20_000  # characters of kernels from which on another part of a source begins


class Call(NamedTuple):
    """One kernel's launch."""

    function: str  # of the source
    arguments: tuple[int, ...]  # Buffers by number: those of the graph, then intermediates
    global_size: int
    local_size: int
    is_persistent: bool  # whether its arguments begin with the phase counters and the steps to do


class Place(NamedTuple):
    """Where an intermediate lies; in bytes."""

    allocation: int  # which one
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Executable:
    """A step for one kind of device."""

    source: str
    calls: tuple[Call, ...]
    order: tuple[int, ...]  # positions of calls as the step runs them
    steps: int  # most that one launch may do at once; 0 if each is launched by itself
    allocations: tuple[int, ...]  # bytes of each that holds intermediates
    places: tuple[Place, ...]  # of each intermediate
    block_rows: int  # of a block's tile; 0 if there is no block
    side: tuple[int, ...]  # positions in the order, as `SideQueue` has them; none if it has no such

    @staticmethod
    def of(stages: Stages, given: Sequence[Buffer]) -> Executable:
        """What is left of a lowered step; `given` are the Buffers of its graph in their order."""
        memory, procedure, starts = (
            stages.memory,
            stages.procedure,
            stages.memory.allocation_offsets(),
        )
        places = []
        for storage, offset in memory.offsets.items():
            n = bisect_right(starts, offset) - 1
            places.append(Place(n, offset - starts[n], storage.nbytes))
        numbers = {b: i for i, b in enumerate([*given, *memory.offsets])}

        def call(code: Code, function: str) -> Call:
            arguments = tuple(numbers[b] for b in code.buffers)
            return Call(
                function, arguments, code.global_size, code.local_size, bool(code.phase_units)
            )

        calls = map(call, stages.codes, stages.functions)
        stays = [k.steps for k in procedure.kernels if isinstance(k, Persistent)]
        blocks = (k.rows for k in procedure.phases if isinstance(k, Block))
        return Executable(
            stages.source, tuple(calls), tuple(procedure.order()), min(stays, default=0),
            memory.allocations, tuple(places), next(blocks, 0),
            () if procedure.side is None else astuple(procedure.side),
        )  # fmt: skip

    def text(self) -> str:
        """As JSON, which `parse` reads."""
        return json.dumps(vars(self), separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> Executable:
        """What `text` gave. Raises ValueError, KeyError or TypeError for what it did not give."""
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("this is no Executable")
        calls = (Call(f, tuple(arguments), *rest) for f, arguments, *rest in fields.pop("calls"))
        places = tuple(Place(*place) for place in fields.pop("places"))
        for name in ("order", "allocations", "side"):
            fields[name] = tuple(fields[name])
        return Executable(calls=tuple(calls), places=places, **fields)


def functions(source: str) -> tuple[str, dict[str, str]]:
    """What stands before the kernels of a source, and the text of each by its name."""
    head, *texts = source.split(KERNEL)
    return head, {text.partition("void ")[2].partition("(")[0]: KERNEL + text for text in texts}


def parts(source: str) -> dict[str, list[str]]:
    """A source in parts that can be built by themselves, and the names of the kernels of each."""
    head, texts = functions(source)
    sources, text, names = dict[str, list[str]](), "", list[str]()
    for name, function in texts.items():
        text, names = text + function, [*names, name]
        if len(text) >= PART:
            sources[head + text], text, names = names, "", []
    if names:
        sources[head + text] = names
    return sources
