"""What NumPy's functions, such as np.sum or np.where, do with a Tensor (NumPy's NEP 18).

A function that NumPy implements by a method of its argument, such as np.reshape, calls the Tensor's
method. All others take the Tensor's current value. While a step is traced, that value would
silently become a constant of the step, so it is refused there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from imgmlp.engine.frontend import tracing
from imgmlp.engine.ir.usage_errors import misuse

# NumPy would call a Tensor's method for these too, but with arguments that the method lacks.
_REDUCTIONS: set[Any] = {
    *(np.sum, np.prod, np.mean, np.var, np.std, np.all, np.any),
    *(np.max, np.min, np.amax, np.amin, np.ptp),
}
# Names of a Tensor's operations where they differ from NumPy's.
_OPERATIONS = {"concatenate": "concat", "amax": "max", "amin": "min"}


class _Calls(threading.local):
    """This thread's calls in progress, innermost last: a function, and classes of arguments."""

    def __init__(self) -> None:
        self.stack: list[tuple[Any, Iterable[type]]] = []


_calls = _Calls()


def call_numpy_function(
    function: Any, types: Iterable[type], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Call one of NumPy's functions. `types` are the classes of its arguments, as NumPy gives them.

    Raises TypeError if the function takes a Tensor's value while a step is traced.
    """
    _calls.stack.append((function, types))
    try:
        if function in _REDUCTIONS:
            arguments = (*map(np.asarray, arguments[:1]), *arguments[1:])
            keywords = {k: np.asarray(v) if k == "a" else v for k, v in keywords.items()}
        return np.ndarray.__array_function__(
            np.empty(0), function, (), tuple(arguments), dict(keywords)
        )
    finally:
        _calls.stack.pop()


def check_not_traced() -> None:
    """Raise TypeError if one of NumPy's functions takes a Tensor's value while a step is traced.

    An explicit np.asarray or `numpy()` is allowed, for a value that is meant to be a constant.
    """
    if not _calls.stack or not tracing.is_tracing():
        return
    function, types = _calls.stack[-1]
    name = function.__name__
    operation = _OPERATIONS.get(name, name)
    has_operation = any(hasattr(kind, operation) for kind in types if kind is not np.ndarray)
    advice = f"; use Tensor.{operation}" if has_operation else ""
    text = "a Tensor's own operations are part of a step that is built"
    raise misuse(TypeError, f"np.{name} of a Tensor: {text}{advice}")
