"""Steps: functions that build one, the assignments they make, and compiling them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from weakref import WeakMethod

from imgmlp.engine.device.discover import AnyDevice
from imgmlp.engine.ir.graph import Buffer, Node
from imgmlp.engine.ir.kernel import Update
from imgmlp.engine.ir.target import Precision
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import Elementwise
from imgmlp.engine.operations.operands import check_device
from imgmlp.engine.runtime.outline import Traceable, Traced
from imgmlp.engine.runtime.program import Program

Step = Callable[[], Mapping[str, Elementwise]]


class _Building(threading.local):
    """A thread's own: what others compute meanwhile is no part of its step."""

    def __init__(self) -> None:
        self.captured: list[list[Update]] = []  # assignments of its steps, innermost last
        self.undone: list[list[Callable[[], None]]] = []  # with each of them
        self.unready: list[list[Program]] = []  # those compiled together, innermost last


_building = _Building()


@contextmanager
def capture() -> Iterator[list[Update]]:
    """Within, assignments are noted down instead of made; at its end `at_end` undoes the rest."""
    _building.captured.append([])
    _building.undone.append([])
    try:
        yield _building.captured[-1]
    finally:
        _building.captured.pop()
        for undo in reversed(_building.undone.pop()):
            undo()


def at_end(undo: Callable[[], None]) -> None:
    """Have something undone once the innermost step, body or choice is built; not if none is."""
    if _building.undone:
        _building.undone[-1].append(undo)


def assign(state: Buffer, value: Node) -> bool:
    """Give a Buffer a new value at the end of the step being built; False if none is.

    Raises ValueError if the step has given it one before.
    """
    captured = _building.captured
    if captured:
        if any(state is other for other, _ in captured[-1]):
            name = state.name or "a state"
            raise misuse(
                ValueError,
                f"assign: {name} gets two values in one step; every use reads the one from before "
                "the step, so put both changes into one value",
            )
        captured[-1].append((state, value))
    return bool(captured)


def is_building() -> bool:
    """Whether a step is being built, so that nothing is to run now."""
    return bool(_building.captured)


@contextmanager
def together() -> Iterator[None]:
    """Programs that this thread compiles within are ready when it is left: where other processes
    build parts of programs, they have those of all before while the next one is lowered.

    What the driver refuses is raised then, or when one is run before.
    """
    programs = list[Program]()
    _building.unready.append(programs)
    try:
        yield
    finally:
        _building.unready.pop()
    for program in programs:
        program.get_ready()


def compile(
    step: Step,
    device: AnyDevice,
    general: bool = False,
    precision: Precision = "float32",
    beside: Program | None = None,
    depends_on: object = None,
    states: Sequence[Elementwise] = (),
) -> Program:
    """A Program from a function that builds one step out of Tensors.

    `step` is called once. What it returns by name can be read by a Receiver; what it
    assigns becomes the state after the step. A state that it returns itself, or by an operation
    that changes nothing of it, is read as it is after the step, too. A value that it returns and
    assigns as well is read from the state, with whatever was written there since. Nothing runs
    until `Program.run`. `general` keeps to what the general scheduler makes of it. With a
    `precision` of "half" products round their factors to 16 bits where the device has matrix units,
    and only there: `Program.precision` says whether. Whatever else reads such a factor may read it
    rounded; sums and Buffers stay float32. The loss should be a sum, or scaled, if its mean is over
    many rows: gradients below 6e-5 lose digits in 16 bits, and those below 3e-8 are zero. With
    "exact" no factor is split either, as matrix units need it: products of whole numbers are the
    same everywhere as long as all sums stay within 2**24. A Program `beside` it, on the same
    device, lends it kernels that both have, and its memory for intermediates, if there is enough of
    it.

    Where `depends_on` is given, `step` is a method and may not be called at all: an earlier process
    has kept what came of it. Then `repr(depends_on)` must tell all that changes what the step
    computes, beside the class of its object and the shapes and dtypes of `states`, realized
    Tensors, the only ones that it takes. Nothing is kept of a class outside of imgmlp: nobody
    would notice that its code has changed. Raises TypeError for another function.
    """
    if not callable(step):
        text = f"compile: takes a function that returns a dict of Tensors, not {step!r}"
        raise misuse(TypeError, text)
    check_device("compile", device)
    unready, known = _building.unready, None
    with _uncollected():
        if depends_on is not None and (name := _name_of(step)):
            name = f"{name} {depends_on!r}"
            method = WeakMethod(step)  # not of what holds the Program, which nobody would free then
            known = Traceable(name, [t.node.arg for t in states], lambda: _traced(_alive(method)))
        traced: Traced = _traced(step) if known is None else ({}, [])
        found = Program(
            device, *traced, general, precision,
            beside=beside, traceable=known, is_deferred=bool(unready),
        )  # fmt: skip
    if unready:
        unready[-1].append(found)
    return found


def _name_of(step: Step) -> str:
    """What tells a method from all others of this version of imgmlp; nothing for those of classes
    outside of it, as nothing that is kept on disk names the version of their code."""
    if not isinstance(step, MethodType):
        text = f"compile: depends_on is for a method of an object that holds the states, not {step}"
        raise misuse(TypeError, f"{text}; leave it out")
    kind = type(step.__self__)
    if not kind.__module__.startswith("imgmlp."):  # which source_digest is of
        return ""
    return f"{kind.__module__}.{kind.__qualname__} {step.__module__}.{step.__qualname__}"


def _alive(method: WeakMethod[Step]) -> Step:
    step = method()
    if step is None:
        raise ReferenceError("what the Program was compiled for is gone, and its graph with it")
    return step


def _traced(step: Step) -> Traced:
    with capture() as updates:
        outputs = step()
    if not isinstance(outputs, Mapping):
        kind = type(outputs).__name__
        raise misuse(TypeError, f"compile: the step must return a dict of Tensors, not {kind}")
    for name, t in outputs.items():
        if not isinstance(t, Elementwise):
            kind = type(t).__name__
            raise misuse(TypeError, f"compile: output {name!r} must be a Tensor, not {kind}")
    return {name: t.node for name, t in outputs.items()}, updates


@contextmanager
def _uncollected() -> Iterator[None]:
    """Nobody looks for garbage meanwhile: most of what is made stays, and to look through it all
    again and again took a sixth of the time."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()
