"""Tracing: a Python function is called once, and the Nodes and assignments it makes are its step.

`compile` turns a traced step into a Program.
"""

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


class _TraceState(threading.local):
    """What this thread is tracing; other threads may compute at once meanwhile.

    The lists are stacks, because the body of a loop or a choice is traced within a step.
    """

    def __init__(self) -> None:
        self.captured: list[list[Update]] = []  # the assignments of each trace
        self.undo_actions: list[list[Callable[[], None]]] = []  # to run at the end of each trace
        self.deferred: list[list[Program]] = []  # Programs of each `together` that are not ready


_state = _TraceState()


@contextmanager
def capture() -> Iterator[list[Update]]:
    """Trace: collect assignments instead of making them, and undo other changes at the end."""
    _state.captured.append([])
    _state.undo_actions.append([])
    try:
        yield _state.captured[-1]
    finally:
        _state.captured.pop()
        for undo in reversed(_state.undo_actions.pop()):
            undo()


def at_end(undo: Callable[[], None]) -> None:
    """Call `undo` at the end of the innermost trace; without a trace, never."""
    if _state.undo_actions:
        _state.undo_actions[-1].append(undo)


def assign(state: Buffer, value: Node) -> bool:
    """Record the assignment of a Buffer in the innermost trace; False if there is none.

    Raises ValueError if the trace has assigned the Buffer before.
    """
    captured = _state.captured
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


def is_tracing() -> bool:
    """Whether this thread is tracing, so that nothing may run now."""
    return bool(_state.captured)


@contextmanager
def together() -> Iterator[None]:
    """Defer building the Programs that this thread compiles within, until the end of the block.

    Other processes can then build one Program's kernels while the next one is lowered. Errors of
    the driver are raised at the end of the block, or when one of the Programs is run before that.
    """
    programs = list[Program]()
    _state.deferred.append(programs)
    try:
        yield
    finally:
        _state.deferred.pop()
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
    """Trace a function that builds one step out of Tensors, and compile it to a Program.

    step: called once. It returns outputs by name, which `Program.read` and Receivers read; what it
        assigns becomes the state after the step. A state that it returns, as it is or reshaped, is
        also read as of after the step, and so is a value that it both returns and assigns,
        including what was written to that state since. Nothing runs until `Program.run`.
    general: keep to the general scheduler, without block programs.
    precision: of matrix products; sums and Buffers are always float32.
        "half" rounds factors to 16 bits where the device has matrix units, and only there;
        `Program.precision` tells whether it does. Other readers of such a factor may also get the
        rounded value. The loss should be a sum, or scaled if it is a mean over many rows: in 16
        bits gradients below 6e-5 lose digits, and those below 3e-8 are zero.
        "exact" does not even split factors into two numbers for matrix units, so that products of
        integers are the same on all devices as long as all sums stay within 2**24.
    beside: a Program on the same device that lends the kernels which both have, and its memory for
        intermediates if that suffices.
    depends_on: allows an earlier process's result to be reused without calling `step`, which must
        be a method then (TypeError otherwise). `repr(depends_on)` must determine, together with the
        class of the object and the shapes and dtypes of `states`, everything that the step
        computes. Steps of classes outside of imgmlp are never cached, because a change of their
        code would go unnoticed.
    states: with `depends_on`, all realized Tensors that the step uses.
    """
    if not callable(step):
        text = f"compile: takes a function that returns a dict of Tensors, not {step!r}"
        raise misuse(TypeError, text)
    check_device("compile", device)
    deferred, traceable = _state.deferred, None
    with _without_gc():
        if depends_on is not None and (name := _name_of(step)):
            name = f"{name} {depends_on!r}"
            method = WeakMethod(step)  # its object may hold the Program: no reference cycle
            buffers = [t.node.arg for t in states]
            traceable = Traceable(name, buffers, lambda: _traced(_alive(method)))
        traced: Traced = _traced(step) if traceable is None else ({}, [])
        program = Program(
            device, *traced, general, precision,
            beside=beside, traceable=traceable, is_deferred=bool(deferred),
        )  # fmt: skip
    if deferred:
        deferred[-1].append(program)
    return program


def _name_of(step: Step) -> str:
    """A name that identifies a method of imgmlp's classes; "" for a class outside of imgmlp.

    The cache's keys contain a digest of imgmlp's source, but not of other code.
    """
    if not isinstance(step, MethodType):
        text = f"compile: depends_on is for a method of an object that holds the states, not {step}"
        raise misuse(TypeError, f"{text}; leave it out")
    kind = type(step.__self__)
    if not kind.__module__.startswith("imgmlp."):  # which source_digest is of
        return ""
    return f"{kind.__module__}.{kind.__qualname__} {step.__module__}.{step.__qualname__}"


def _alive(method: WeakMethod[Step]) -> Step:
    """The method, to be traced late. Raises ReferenceError if its object has been freed."""
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
def _without_gc() -> Iterator[None]:
    """Switch the garbage collector off: tracing and lowering allocate many objects that stay, and
    repeated collections took a sixth of the time."""
    wanted = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if wanted:
            gc.enable()
