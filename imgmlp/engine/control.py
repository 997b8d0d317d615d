"""Loops as part of a step.

What Python's own `for` cannot give: a loop whose body is compiled once and replayed, however
many iterations there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

from imgmlp.engine import flow, graph
from imgmlp.engine.dtype import i32
from imgmlp.engine.elementwise import common_device
from imgmlp.engine.graph import kind_of
from imgmlp.engine.misuse import misuse
from imgmlp.engine.step import capture
from imgmlp.engine.tensor import Tensor

_depth = [0]  # loops around the one being built


@overload
def loop(count: int, body: Callable[[Tensor, Tensor], Tensor], initial: Tensor, /) -> Tensor: ...
@overload
def loop(
    count: int,
    body: Callable[..., Sequence[Tensor]],
    first: Tensor,
    second: Tensor,
    /,
    *rest: Tensor,
) -> tuple[Tensor, ...]: ...
def loop(
    count: int, body: Callable[..., Tensor | Sequence[Tensor]], *initial: Tensor
) -> Tensor | tuple[Tensor, ...]:
    """What `count` iterations make of the initial values: one Tensor of one, a tuple of several.

    `body(i, *carried)` is called once. It takes the number of the iteration (i32 of shape ()),
    and the values carried from the one before; it returns as many, of the same shapes and
    dtypes. It may use any Tensor from outside; what it computes of those alone is computed once,
    before the loop. On a device, the kernels of the body are replayed `count` times.

    Gradients go through all iterations, by unrolling them: that takes memory and operations
    for each, and raises ValueError where those are too many. Taken inside of the body, as an
    optimizer does, they are part of it and cost nothing more.

    Raises TypeError or ValueError if the count is not a whole number from 0, or if the body
    returns other shapes or dtypes or assigns a state.
    """
    _check_count(count)
    if not initial or not all(isinstance(t, Tensor) for t in initial):
        raise misuse(TypeError, "loop: needs Tensors to carry from iteration to iteration")
    device = common_device(*initial)
    depth = _depth[0]
    index = flow.parameter(depth, 0, graph.const(0, i32))
    carried = [flow.parameter(depth, 1 + i, t.node) for i, t in enumerate(initial)]
    _depth[0] += 1
    try:
        with capture() as updates:
            returned = body(*(Tensor(node, device) for node in (index, *carried)))
    finally:
        _depth[0] -= 1
    found = (returned,) if isinstance(returned, Tensor) else tuple(returned)
    _check_returned(initial, found, assigned=bool(updates))
    starts, values = [t.node for t in initial], [t.node for t in found]
    if index in graph.toposort(values):
        starts, carried = [graph.const(0, i32), *starts], [index, *carried]
        values = [index + 1, *values]
    ends = flow.loop(count, depth, starts, carried, values)[-len(initial) :]
    device = common_device(*initial, *found)
    results = tuple(Tensor(node, device) for node in ends)
    return results[0] if len(results) == 1 else results


def _check_count(count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool):
        raise misuse(
            TypeError,
            f"loop: the count must be an int, known when the step is built, not {count!r}",
        )
    if count < 0:
        raise misuse(ValueError, f"loop: {count} iterations; the count must not be negative")


def _check_returned(initial: Sequence[Tensor], found: Sequence[Tensor], assigned: bool) -> None:
    if assigned:
        raise misuse(
            ValueError,
            "loop: the body assigns a state; carry its value and assign what the loop returns",
        )
    if not all(isinstance(t, Tensor) for t in found):
        kinds = ", ".join(type(t).__name__ for t in found)
        raise misuse(TypeError, f"loop: the body must return Tensors, not {kinds}")
    if len(found) != len(initial):
        raise misuse(
            ValueError, f"loop: the body takes {len(initial)} values, but returns {len(found)}"
        )
    for i, (before, after) in enumerate(zip(initial, found, strict=True)):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise misuse(
                ValueError,
                f"loop: value {i} enters the body as {kind_of(before.node)} and leaves it as "
                f"{kind_of(after.node)}; shape and dtype must stay",
            )
