"""What the environment variable DEBUG shows of every step that is compiled, on stderr.

1 the schedule, and how long each pass of the compiler took and each kernel in the first run, 2
also the memory plan, 3 also the UOps, 4 also the OpenCL C. Anything else shows nothing: other
programs use the name too. For NumPy's device, which has no kernels, it is what a processor would
run.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from imgmlp.engine.device.base import Usage

if TYPE_CHECKING:
    from imgmlp.engine.compiler import Stages

MOST = 4
FORMS_FROM = {2: "memory", 3: "uops", 4: "source"}  # the level from which a form is shown


def level() -> int:
    """How much DEBUG asks for, from 0 to 4."""
    try:
        return min(max(int(os.environ.get("DEBUG", "")), 0), MOST)
    except ValueError:
        return 0


def tell(text: str) -> None:
    """Print to stderr, if there is one that takes it."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def report(stages: Stages, depth: int, usage: Usage) -> str:
    """What a level of DEBUG shows of a step, and of the memory that its device has given."""
    shown = [render_schedule(stages), render_passes(stages)]
    shown += [stages.show(form) for start, form in FORMS_FROM.items() if depth >= start]
    if depth >= 2:
        shown.append(f"device: {usage.summary()}")
    return "\n\n".join(shown) + "\n"


def render_schedule(stages: Stages) -> str:
    """A line a kernel: number, kernel, shape and what it writes."""
    figures = stages.figures()
    head = f"{figures['launches']} launches of {figures['kernels']} kernels"
    rows = (f"{i:4d} {line}" for i, line in enumerate(_described(stages)))
    note = [stages.procedure.note] if stages.procedure.note else []
    return "\n".join([f"{head}, memory {stages.memory.summary()}", *note, *rows])


def render_passes(stages: Stages) -> str:
    """How long each pass of the compiler took."""
    took = ", ".join(f"{name} {1000 * s:.1f}" for name, s in stages.seconds.items())
    return f"milliseconds to compile: {took}"


def render_times(stages: Stages, microseconds: Sequence[float], when: str) -> str:
    """A line a kernel, with its time on the device and the share that it has of the step."""
    total = sum(microseconds)
    lines = [f"times in microseconds, {when}"]
    for i, (line, time) in enumerate(zip(_described(stages), microseconds, strict=True)):
        share = time / total if total else 0.0
        lines.append(f"{i:4d} {time:10.1f} {share:5.0%}  {line}")
    launches = stages.figures()["launches"]
    return "\n".join([*lines, f"     {total:10.1f}        all {launches} launches"])


def _described(stages: Stages) -> Iterator[str]:
    times = Counter(stages.procedure.order())
    for i, kernel in enumerate(stages.procedure.kernels):
        names = ", ".join(b.name or "state" for b in kernel.writes())
        repeated = f", {times[i]} times" if times[i] > 1 else ""
        yield f"{kernel.name:<12} {list(kernel.shape)!s:<16} writes {names}{repeated}"
