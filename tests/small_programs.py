"""Operands that tests of Tensors and gradients share, and one program for the values of many."""

from __future__ import annotations

from typing import Any

import numpy as np
from conftest import open_mapping

from imgmlp.engine import AnyDevice, Tensor, compile

Array = np.ndarray[Any, Any]


def draw(rng: np.random.Generator, *shape: int) -> Array:
    return rng.uniform(-1, 1, shape).astype(np.float32)


def symmetric(n: int) -> Array:
    a = np.random.default_rng(n).standard_normal((n, n)).astype(np.float32)
    return a @ a.T


def pair(kind: str = "u1") -> Tensor:
    """The integers 2 and 3 in a NumPy dtype, on the NumPy device."""
    return Tensor(np.array([2, 3], kind), open_mapping("numpy"))


def results(outputs: dict[str, Tensor], device: AnyDevice) -> dict[str, Array]:
    """The values of several Tensors from one program: a driver compiles many small ones slowly."""
    program = compile(lambda: outputs, device)
    program.run()
    return {name: program.read(name) for name in outputs}
