"""What a Program needs of a step's graph once it is lowered, kept so that the next process need not
trace it: which of some Tensors it takes in which order, and what it gives.

Knows no Nodes, nor what the limits mean, and no device's kind; program_cache.py keeps the text.
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

Traced = tuple[Mapping[str, Node], Sequence[Update]]  # outputs by name, and what is assigned


@dataclass(frozen=True)
class Traceable:
    """A step that is traced only where nobody knows its outline."""

    name: str  # of all that its graph depends on, beside shapes and dtypes of the states
    states: Sequence[Buffer]  # that it may read and assign
    trace: Callable[[], Traced]

    def told(self) -> str:
        """What another process knows the step by."""
        first = [self.states.index(b) for b in self.states]  # as one may stand there twice
        kinds = [(b.shape, b.dtype.name, n) for b, n in zip(self.states, first, strict=True)]
        return f"{self.name} {kinds}"


@dataclass(frozen=True)
class Outline:
    """A graph's digest and its Buffers, each the number of a state or the name of an output."""

    graph: str
    buffers: tuple[int | str, ...]
    outputs: Mapping[str, int | tuple[tuple[int, ...], str]]  # states, or shapes and dtypes
    reads: tuple[int, ...]  # states
    assigns: tuple[int, ...]  # states
    limits: Sequence[Sequence[Any]]  # of states that rows are taken by (oracle/index_bounds.py)

    @staticmethod
    def of(
        identity: tuple[str, Sequence[Buffer]],
        outputs: Mapping[str, Buffer],
        reads: Set[Buffer],
        assigns: Set[Buffer],
        limits: Sequence[Sequence[Any]] | None,
        states: Sequence[Buffer],
    ) -> Outline | None:
        """None if the step has a Buffer that is neither a state nor an output, or nobody can tell
        the limits of its indices."""
        graph, given = identity
        numbers: dict[Buffer, int | str] = {b: name for name, b in outputs.items()}
        numbers |= {b: number for number, b in enumerate(states)}
        known = {*given, *outputs.values()} <= {*numbers} and reads <= {*states}
        if not known or limits is None:
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
        """The graph's Buffers and the outputs for these states."""
        outputs = {
            name: states[told]
            if isinstance(told, int)
            else Buffer(told[0], getattr(dtype, told[1]), device, name=name)
            for name, told in self.outputs.items()
        }
        return [states[n] if isinstance(n, int) else outputs[n] for n in self.buffers], outputs

    def text(self) -> str:
        """As JSON, which `parse` reads."""
        return json.dumps(vars(self), separators=(",", ":"))

    @staticmethod
    def parse(text: str) -> Outline:
        """What `text` gave. Raises ValueError, KeyError or TypeError for what it did not give."""
        fields: dict[str, Any] = json.loads(text)
        outputs = {
            name: told if isinstance(told, int) else (tuple(told[0]), told[1])
            for name, told in fields["outputs"].items()
        }
        buffers, reads, assigns = (tuple(fields[name]) for name in ("buffers", "reads", "assigns"))
        return Outline(fields["graph"], buffers, outputs, reads, assigns, fields["limits"])
