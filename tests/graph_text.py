"""A step as lines of Python for Tensors, and as the same lines of NumPy's in float64."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

import numpy as np
from operations import attend, conv, erf, erfc, linear, pooled, spread

from imgmlp.engine import Tensor, cond, dtype, loop, nn

Array = np.ndarray[Any, Any]
NAME = re.compile(r"\b[vxstabwgh]\d+\b")


@dataclass(frozen=True)
class Body:
    """A function of a loop or a choice."""

    name: str
    parameters: tuple[str, ...]
    lines: tuple[Line, ...]
    returned: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """names = tensor, or = array in NumPy; None where only the engine knows, as of gradients.

    `kinds` are shapes and NumPy's dtypes of the values, where something else could stand for them.
    """

    names: tuple[str, ...]
    tensor: str
    array: str | None
    bodies: tuple[Body, ...] = ()
    kinds: tuple[tuple[tuple[int, ...], str], ...] = ()

    def used(self) -> set[str]:
        """Names of values outside that it needs."""
        found = set(NAME.findall(self.tensor)) - {b.name for b in self.bodies}
        for body in self.bodies:
            inner = set(body.returned).union(*(line.used() for line in body.lines))
            found |= inner - {n for line in body.lines for n in line.names} - {*body.parameters}
        return found


@dataclass(frozen=True)
class Graph:
    """A step: what it reads, what it computes, what it gives, and what states become."""

    leaves: dict[str, Array]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    updates: dict[str, str] = field(default_factory=dict)

    @functools.cached_property
    def tensor_code(self) -> CodeType:
        return compile("\n".join(text(self.lines)), "<graph>", "exec")

    @functools.cached_property
    def array_code(self) -> CodeType:
        return compile("\n".join(text(self.lines, arrays=True)), "<graph in NumPy>", "exec")

    def tensors(self, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
        """Every value by name, as expressions of leaves on a device."""
        names = TENSOR_NAMES | leaves
        exec(self.tensor_code, names)
        return {n: v for n, v in names.items() if isinstance(v, Tensor)}

    def arrays(self, leaves: dict[str, Array], held: list[Array] | None = None) -> dict[str, Array]:
        """Every value that NumPy knows, floats in float64; detached values are those `held`."""
        wide = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in leaves.items()}
        names = ARRAY_NAMES | wide | {"hold": Hold(held)}
        with np.errstate(all="ignore"):
            exec(self.array_code, names)
        values = {n: v for n, v in names.items() if NAME.fullmatch(n) and not callable(v)}
        return {n: np.asarray(v) for n, v in values.items()}


class Hold:
    """x itself, which is noted down, or what was noted down when it was called as often before.

    Where another way is taken than then it is no number.
    """

    def __init__(self, held: list[Array] | None) -> None:
        self.seen: list[Array] = [] if held is None else held
        self.left = iter([*self.seen]) if held else None

    def __call__(self, x: Array) -> Array:
        if self.left is not None:
            before = next(self.left, np.empty(0))
            return before if before.shape == x.shape else np.full(x.shape, np.nan)
        self.seen.append(x)
        return x


def text(lines: Sequence[Line], arrays: bool = False, indent: str = "") -> list[str]:
    """Lines of Python, for Tensors or for NumPy."""
    found = []
    for line in lines:
        if arrays and line.array is None:
            continue
        for body in line.bodies:
            found.append(f"{indent}def {body.name}({', '.join(body.parameters)}):")
            found += text(body.lines, arrays, indent + "    ")
            found.append(f"{indent}    return {', '.join(body.returned)}")
        names = ", ".join(line.names)
        names = f"[{names}]" if ".gradient([" in line.tensor else names
        found.append(f"{indent}{names} = {line.array if arrays else line.tensor}")
    return found


def pruned(graph: Graph) -> Graph:
    """Without the lines and leaves that nothing needs."""
    needed = {*graph.outputs, *graph.updates.values(), *graph.updates}
    lines = _kept(graph.lines, needed)
    leaves = {n: a for n, a in graph.leaves.items() if n in needed}
    return Graph(leaves, lines, graph.outputs, graph.updates)


def _kept(lines: Sequence[Line], needed: set[str]) -> tuple[Line, ...]:
    """The lines that lead to what is needed, without those of their bodies that do not."""
    found = []
    for line in reversed(lines):
        if needed & {*line.names}:
            bodies = (replace(b, lines=_kept(b.lines, {*b.returned})) for b in line.bodies)
            line = replace(line, bodies=tuple(bodies))
            found.append(line)
            needed |= line.used()
    return tuple(reversed(found))


# --- what the texts call ---


def cast(x: Any, kind: str) -> Array:
    """To a dtype of the engine, floats staying float64."""
    x = np.asarray(x)
    if kind in ("f16", "f32"):
        return x.astype(np.float64)
    to = np.dtype({"i8": "i1", "u8": "u1", "i32": "i4", "u32": "u4", "bool": "?"}[kind])
    if x.dtype.kind == "f" and kind != "bool":
        x = np.trunc(x).astype(np.int64)
    return x.astype(to)


def looped(count: int, body: Callable[..., Any], *carried: Array) -> Any:
    for i in range(count):
        returned = body(np.asarray(i, np.int32), *carried)
        carried = returned if isinstance(returned, tuple) else (returned,)
    return carried if len(carried) > 1 else carried[0]


def put(x: Array, axis: int, index: Array, values: Array) -> Array:
    found = x.copy()
    np.put_along_axis(found, index, np.broadcast_to(values, index.shape), axis)
    return found


def added(x: Array, axis: int, index: Array, values: Array) -> Array:
    found = x.copy()
    places = list(np.indices(index.shape))
    places[axis] = index
    np.add.at(found, tuple(places), values)
    return found


TENSOR_NAMES: dict[str, Any] = {
    "np": np, "nn": nn, "dtype": dtype, "Tensor": Tensor, "loop": loop, "cond": cond,
}  # fmt: skip
ARRAY_NAMES: dict[str, Any] = {
    "np": np, "cast": cast, "looped": looped, "put": put, "added": added, "erf": erf, "erfc": erfc,
    "conv": conv, "spread": spread, "pooled": pooled, "linear": linear, "attend": attend,
    "chosen": lambda c, a, b: a() if c else b(),
}  # fmt: skip
