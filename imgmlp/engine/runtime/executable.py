"""An executable step: OpenCL C, and the numbers that its launches need.

It has no Nodes, UOps or Buffers, so that it can be cached as text for other processes.
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

KERNEL = "__kernel "  # the beginning of each function of a source
MIN_PART_LENGTH = 20_000  # characters of kernels in a part of a source, except for the last one


class Call(NamedTuple):
    """One kernel's launch."""

    function: str  # its name in the source
    arguments: tuple[int, ...]  # Buffers by number: those of the graph, then intermediates
    global_size: int
    local_size: int
    is_persistent: bool  # whether its arguments begin with the phase counters and the steps to do


class IntermediatePlace(NamedTuple):
    """The memory of an intermediate."""

    allocation: int  # its number
    offset: int  # bytes
    nbytes: int


@dataclass(frozen=True)
class Executable:
    """A step for one kind of device."""

    source: str
    calls: tuple[Call, ...]
    order: tuple[int, ...]  # positions of calls as the step runs them
    steps: int  # the most that one launch may do; 0 if each step is launched by itself
    allocations: tuple[int, ...]  # bytes of each allocation of intermediates
    places: tuple[IntermediatePlace, ...]  # of each intermediate
    block_rows: int  # of a block's tile; 0 if there is no block
    side: tuple[int, ...]  # the fields of a `SideQueue`, positions in the order; empty without one

    @staticmethod
    def of(stages: Stages, given: Sequence[Buffer]) -> Executable:
        """From a lowered step; `given` are the Buffers of its graph in their order."""
        memory, procedure, starts = (
            stages.memory,
            stages.procedure,
            stages.memory.allocation_offsets(),
        )
        places = []
        for storage, offset in memory.offsets.items():
            n = bisect_right(starts, offset) - 1
            places.append(IntermediatePlace(n, offset - starts[n], storage.nbytes))
        numbers = {b: i for i, b in enumerate([*given, *memory.offsets])}

        def call(code: Code, function: str) -> Call:
            arguments = tuple(numbers[b] for b in code.buffers)
            return Call(
                function, arguments, code.global_size, code.local_size, bool(code.phase_units)
            )

        calls = map(call, stages.codes, stages.functions)
        max_steps = [k.steps for k in procedure.kernels if isinstance(k, Persistent)]
        blocks = (k.rows for k in procedure.phases if isinstance(k, Block))
        return Executable(
            stages.source, tuple(calls), tuple(procedure.order()), min(max_steps, default=0),
            memory.allocations, tuple(places), next(blocks, 0),
            () if procedure.side is None else astuple(procedure.side),
        )  # fmt: skip

    def text(self) -> str:
        """As JSON, which `parse` reads."""
        return json.dumps(vars(self), separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> Executable:
        """The inverse of `text`. Raises ValueError, KeyError or TypeError for other texts."""
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("this is no Executable")
        calls = (Call(f, tuple(arguments), *rest) for f, arguments, *rest in fields.pop("calls"))
        places = tuple(IntermediatePlace(*place) for place in fields.pop("places"))
        for name in ("order", "allocations", "side"):
            fields[name] = tuple(fields[name])
        return Executable(calls=tuple(calls), places=places, **fields)


def functions(source: str) -> tuple[str, dict[str, str]]:
    """The text before the kernels of a source, and the text of each kernel by its name."""
    head, *texts = source.split(KERNEL)
    return head, {text.partition("void ")[2].partition("(")[0]: KERNEL + text for text in texts}


def parts(source: str) -> dict[str, list[str]]:
    """Parts of a source that can be built separately, each with the names of its kernels."""
    head, texts = functions(source)
    sources, text, names = dict[str, list[str]](), "", list[str]()
    for name, function in texts.items():
        text, names = text + function, [*names, name]
        if len(text) >= MIN_PART_LENGTH:
            sources[head + text], text, names = names, "", []
    if names:
        sources[head + text] = names
    return sources
