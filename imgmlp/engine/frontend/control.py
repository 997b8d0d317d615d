"""Control flow inside of a step: `loop` and `cond`.

Python's own `for` and `if` run while a step is traced. `loop` instead compiles its body once and
replays it for any number of iterations, and `cond` chooses by a value that only the device knows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.frontend.tracing import capture
from imgmlp.engine.ir import control_flow, graph
from imgmlp.engine.ir.control_flow import building
from imgmlp.engine.ir.dtype import bool_, i32
from imgmlp.engine.ir.graph import kind_of
from imgmlp.engine.ir.kernel import Update
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import common_device

_loop_numbers = itertools.count()  # a unique number for each loop that is traced


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
    """The carried values after `count` iterations: a Tensor if there is one, otherwise a tuple.

    `body(i, *carried)` is called once, to be traced. It takes the iteration number (i32 of shape
    ()) and the values carried from the iteration before, and returns as many values of the same
    shapes and dtypes. It may use any Tensor from outside; what depends only on those is computed
    once, before the loop. On a device, the kernels of the body are replayed `count` times.

    A gradient through the loop unrolls it, which takes memory and operations for each iteration,
    and raises ValueError if those are too many. A gradient taken inside of the body, as by an
    optimizer, is a part of the body and needs no unrolling.

    Raises TypeError or ValueError if the count is not a non-negative integer, or if the body
    returns other shapes or dtypes or assigns a state. A value of the body that is not returned
    cannot be used outside of it, nor in another loop.
    """
    _check_count(count)
    _check_functions("loop", body)
    if not initial or not all(isinstance(t, Tensor) for t in initial):
        raise misuse(TypeError, "loop: needs Tensors to carry from iteration to iteration")
    device = common_device(*initial)
    depth, own = building.depth, next(_loop_numbers)
    index = control_flow.parameter(depth, 0, graph.const(0, i32), own)
    carried = [control_flow.parameter(depth, 1 + i, t.node, own) for i, t in enumerate(initial)]
    building.depth += 1
    try:
        with capture() as updates:
            returned = body(*(Tensor(node, device) for node in (index, *carried)))
    finally:
        building.depth -= 1
    new_values = _tensors("loop: the body", returned)
    _check_carried(initial, new_values)
    _check_assigned("loop: the body", updates)
    sized = [i for i, t in enumerate(initial) if t.node.size]  # others have nothing to compute
    starts, values = ([several[i].node for i in sized] for several in (initial, new_values))
    carried = [carried[i] for i in sized]
    if index in graph.toposort(values):
        starts, carried = [graph.const(0, i32), *starts], [index, *carried]
        values = [index + 1, *values]
    loops = control_flow.loop(int(count), depth, starts, carried, values) if sized else []
    final = dict(zip(sized, loops[-len(sized) :], strict=True))
    device = common_device(*initial, *new_values)
    results = tuple(Tensor(final.get(i, t.node), device) for i, t in enumerate(initial))
    return results[0] if len(results) == 1 else results


@overload
def cond(
    condition: Tensor, then: Callable[[], Tensor], otherwise: Callable[[], Tensor]
) -> Tensor: ...
@overload
def cond(
    condition: Tensor,
    then: Callable[[], tuple[Tensor, ...]],
    otherwise: Callable[[], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]: ...
def cond(
    condition: Tensor,
    then: Callable[[], Tensor | tuple[Tensor, ...]],
    otherwise: Callable[[], Tensor | tuple[Tensor, ...]],
) -> Tensor | tuple[Tensor, ...]:
    """The result of `then` if the condition is true on the device, otherwise that of `otherwise`.

    The condition is a bool or integer Tensor of one element; an integer is true unless it is 0.
    Both functions are called once, without arguments, to be traced. They return a Tensor or a tuple
    of Tensors, of the same shapes and dtypes. Only the chosen one's kernels run, and only its
    gradients'. Values that are needed elsewhere too, and within a loop those that do not depend on
    carried values, are computed in any case. For cheap values, Tensor.where is faster.

    Raises TypeError for another condition or an argument that is no function; TypeError or
    ValueError if the results differ in number, shape or dtype, or if a function assigns a state.
    """
    if not isinstance(condition, Tensor) or condition.dtype.is_float or condition.node.size != 1:
        what = kind_of(condition.node) if isinstance(condition, Tensor) else repr(condition)
        raise misuse(
            TypeError, f"cond: the condition must be one bool or integer Tensor, not {what}"
        )
    _check_functions("cond", then, otherwise)
    several, updates = list[Any](), list[Update]()
    for branch in (then, otherwise):  # in traces of their own, as `grad` is undone after each
        with capture() as assigned:
            several.append(branch())
        updates += assigned
    first, second = (_tensors("cond: a function", returned) for returned in several)
    _check_assigned("cond: a function", updates)
    if len(first) != len(second):
        raise misuse(ValueError, f"cond: {len(first)} values if true, but {len(second)} if not")
    for i, (a, b) in enumerate(zip(first, second, strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise misuse(
                ValueError,
                f"cond: value {i} is {kind_of(a.node)} if true and {kind_of(b.node)} if not; shape "
                "and dtype must agree",
            )
    choice = condition.cast(bool_).reshape().node
    device = common_device(condition, *first, *second)
    pairs = zip(first, second, strict=True)
    results = tuple(Tensor(control_flow.cond(choice, a.node, b.node), device) for a, b in pairs)
    return results[0] if isinstance(several[0], Tensor) else results


def _check_count(count: int) -> None:
    if not isinstance(count, int | np.integer) or isinstance(count, bool):
        raise misuse(
            TypeError,
            f"loop: the count must be an int, known when the step is built, not {count!r}",
        )
    if count < 0:
        raise misuse(ValueError, f"loop: {count} iterations; the count must not be negative")


def _check_functions(where: str, *functions: object) -> None:
    for function in functions:
        if not callable(function):
            kind = type(function).__name__
            raise misuse(TypeError, f"{where}: takes functions that return Tensors, not {kind}")


def _tensors(where: str, returned: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    tensors = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if not all(isinstance(t, Tensor) for t in tensors):
        kinds = ", ".join(type(t).__name__ for t in tensors)
        raise misuse(TypeError, f"{where} must return Tensors, not {kinds}")
    return tensors


def _check_assigned(where: str, updates: Sequence[Update]) -> None:
    if updates:
        raise misuse(
            ValueError, f"{where} assigns a state; return the value, and assign the result"
        )


def _check_carried(initial: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    if len(results) != len(initial):
        raise misuse(
            ValueError, f"loop: the body takes {len(initial)} values, but returns {len(results)}"
        )
    for i, (before, after) in enumerate(zip(initial, results, strict=True)):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise misuse(
                ValueError,
                f"loop: value {i} enters the body as {kind_of(before.node)} and leaves it as "
                f"{kind_of(after.node)}; shape and dtype must stay",
            )
