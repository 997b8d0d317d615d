"""The outline of a step's graph: what a Program needs of it once the step is lowered.

It says which of the given Tensors the step reads and assigns, in which order, and what its outputs
are. It is cached as text by program_cache.py, so that the next process need not trace the step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from imgmlp.engine.device.discover import AnyDevice
from imgmlp.engine.ir import dtype
from imgmlp.engine.ir.graph import Buffer, Node
from imgmlp.engine.ir.kernel import Update

Traced = tuple[Mapping[str, Node], Sequence[Update]]  # outputs by name, and assignments


@dataclass(frozen=True)
class Traceable:
    """A step that need not be traced if its outline is cached."""

    name: str  # names all that the graph depends on but shapes and dtypes of the states
    states: Sequence[Buffer]  # the Buffers that it may read and assign
    trace: Callable[[], Traced]

    def identification(self) -> str:
        """The text that identifies the step to other processes."""
        first = [self.states.index(b) for b in self.states]  # a Buffer may occur twice
        kinds = [(b.shape, b.dtype.name, n) for b, n in zip(self.states, first, strict=True)]
        return f"{self.name} {kinds}"


@dataclass(frozen=True)
class Outline:
    """What `of` keeps of a graph. A Buffer is the number of a state or the name of an output."""

    graph: str  # digest (program_cache.identify)
    buffers: tuple[int | str, ...]
    outputs: Mapping[str, int | tuple[tuple[int, ...], str]]  # state, or shape and dtype
    reads: tuple[int, ...]  # states
    assigns: tuple[int, ...]  # states
    limits: Sequence[Sequence[Any]]  # bounds of states that are indices (oracle/index_bounds.py)

    @staticmethod
    def of(
        identity: tuple[str, Sequence[Buffer]],
        outputs: Mapping[str, Buffer],
        reads: Set[Buffer],
        assigns: Set[Buffer],
        limits: Sequence[Sequence[Any]] | None,
        states: Sequence[Buffer],
    ) -> Outline | None:
        """The outline of a traced step; None if it has a Buffer that is neither a state nor an
        output, or an index with unknown limits."""
        graph, given = identity
        numbers: dict[Buffer, int | str] = {b: name for name, b in outputs.items()}
        numbers |= {b: number for number, b in enumerate(states)}
        are_all_numbered = {*given, *outputs.values()} <= {*numbers} and reads <= {*states}
        if not are_all_numbered or limits is None:
            return None
        output_facts = {
            name: number if isinstance(number := numbers[b], int) else (b.shape, b.dtype.name)
            for name, b in outputs.items()
        }
        taken, changed = (
            tuple(number for number, b in enumerate(states) if b in some)
            for some in (reads, assigns)
        )
        return Outline(
            graph, tuple(numbers[b] for b in given), output_facts, taken, changed, limits
        )

    def bound(
        self, states: Sequence[Buffer], device: AnyDevice
    ) -> tuple[list[Buffer], dict[str, Buffer]]:
        """The graph's Buffers and the outputs of the step with these states."""
        outputs = {
            name: states[output]
            if isinstance(output, int)
            else Buffer(output[0], getattr(dtype, output[1]), device, name=name)
            for name, output in self.outputs.items()
        }
        return [states[n] if isinstance(n, int) else outputs[n] for n in self.buffers], outputs

    def text(self) -> str:
        """As JSON, which `parse` reads."""
        return json.dumps(vars(self), separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> Outline:
        """The inverse of `text`. Raises ValueError, KeyError or TypeError for other texts."""
        fields: dict[str, Any] = json.loads(text)
        outputs = {
            name: output if isinstance(output, int) else (tuple(output[0]), output[1])
            for name, output in fields["outputs"].items()
        }
        buffers, reads, assigns = (tuple(fields[name]) for name in ("buffers", "reads", "assigns"))
        return Outline(fields["graph"], buffers, outputs, reads, assigns, fields["limits"])
