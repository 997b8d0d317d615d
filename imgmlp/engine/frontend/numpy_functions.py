"""What NumPy's functions, such as np.sum or np.where, do with a Tensor (NumPy's NEP 18).

They compute with the Tensor's current value. While a step is traced that would make today's value
a constant of the step, so there they are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from imgmlp.engine.frontend import tracing
from imgmlp.engine.ir.usage_errors import misuse

# NumPy implements these by calling the method of the same name, whose arguments differ for Tensors.
_REDUCTIONS: set[Any] = {
    *(np.sum, np.prod, np.mean, np.var, np.std, np.all, np.any),
    *(np.max, np.min, np.amax, np.amin, np.ptp),
}


def call_numpy_function(
    function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """Call one of NumPy's functions with the current values of Tensors.

    Raises TypeError for a reduction while a step is traced.
    """
    if function in _REDUCTIONS:
        if tracing.is_tracing():
            advice = "a Tensor's own operations are part of a step that is built"
            raise misuse(TypeError, f"np.{function.__name__} of a Tensor: {advice}")
        arguments = (*map(np.asarray, arguments[:1]), *arguments[1:])
        keywords = {k: np.asarray(v) if k == "a" else v for k, v in keywords.items()}
    return np.ndarray.__array_function__(
        np.empty(0), function, (), tuple(arguments), dict(keywords)
    )
