"""Random steps of all that a Tensor can do, each also as a program of NumPy's in float64.

A graph is text: lines of tests/graph_templates.py, loops and choices with lines of their own, then
gradients, gradients of these, and new values of states. What is drawn is tried at once on arrays,
so that shapes fit and numbers stay finite and small. The same seed gives the same graph.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from graph_templates import FAMILIES, Template

from imgmlp.engine import Tensor, cond, dtype, loop, nn, open_device

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from operations import attend, conv, erf, linear, pooled, spread

Array = np.ndarray[Any, Any]
NAME = re.compile(r"\b[vxstabwgh]\d+\b")
MOST = 1000.0  # how large a float may be: halves end at 65504
ELEMENTS = 400  # at most, of a value
RUNS = 3  # of a graph with states


@dataclass(frozen=True)
class Body:
    """A function of a loop or a choice."""

    name: str
    parameters: tuple[str, ...]
    lines: tuple[Line, ...]
    returned: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """names = tensor, or = array in NumPy; None where only the engine knows, as of gradients."""

    names: tuple[str, ...]
    tensor: str
    array: str | None
    bodies: tuple[Body, ...] = ()

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
        exec(self.tensor_code, names)  # noqa: S102
        return {n: v for n, v in names.items() if isinstance(v, Tensor)}

    def arrays(self, leaves: dict[str, Array], held: list[Array] | None = None) -> dict[str, Array]:
        """Every value that NumPy knows, floats in float64; detached values are those `held`."""
        wide = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in leaves.items()}
        names = ARRAY_NAMES | wide | {"hold": Hold(held)}
        with np.errstate(all="ignore"):
            exec(self.array_code, names)  # noqa: S102
        values = {n: v for n, v in names.items() if NAME.fullmatch(n) and not callable(v)}
        return {n: np.asarray(v) for n, v in values.items()}


class Hold:
    """x itself, which is noted down, or what was noted down when it was called as often before."""

    def __init__(self, held: list[Array] | None) -> None:
        self.seen: list[Array] = [] if held is None else held
        self.left = iter([*self.seen]) if held else None

    def __call__(self, x: Array) -> Array:
        if self.left is not None:
            return next(self.left)
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
    "np": np, "cast": cast, "looped": looped, "put": put, "added": added, "erf": erf, "conv": conv,
    "spread": spread, "pooled": pooled, "linear": linear, "attend": attend,
    "chosen": lambda c, a, b: a() if c else b(),
}  # fmt: skip


# --- drawing ---


class Unfit(Exception):
    """This cannot be done with that value."""


class Maker:
    """Draws a graph; what it has so far stands in `arrays`, and in `tensors` for dtypes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.device = open_device("numpy")
        self.arrays: dict[str, Array] = {}
        self.tensors: dict[str, Tensor] = {}
        self.leaves: dict[str, Array] = {}
        self.count = 0

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def one_of(self, things: Sequence[Any]) -> Any:
        if not things:
            raise Unfit
        return things[self.below(len(things))]

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def pick(self, pool: Sequence[str], kinds: str, fits: Any = None) -> str:
        """A value of some kinds, mostly a late one."""
        found = [n for n in pool if self.kind(n) in kinds and (fits is None or fits(n))]
        return str(self.one_of(found[-4:] if self.below(3) else found))

    def kind(self, name: str) -> str:
        found = self.tensors[name].dtype
        return "f" if found.is_float else "i" if found.is_int else "b"

    def leaf(self, letter: str, kind: str, shape: tuple[int, ...]) -> str:
        """A Tensor from the host: floats around zero, integers small or of any size."""
        to = np.dtype(kind)
        if to.kind == "f":
            array = self.rng.uniform(-2, 2, shape).astype(to)
        else:
            low, high = (0, 2) if to.kind == "b" else (np.iinfo(to).min, int(np.iinfo(to).max) + 1)
            if to.kind != "b" and self.below(2):
                low, high = max(low, -9), 9
            array = self.rng.integers(low, high, shape).astype(to)
        name = self.name(letter)
        self.leaves[name] = np.asarray(array)
        self.tensors[name] = Tensor(array, self.device)
        self.arrays[name] = np.asarray(array, np.float64) if to.kind == "f" else np.asarray(array)
        return name

    def shape(self) -> tuple[int, ...]:
        sizes = (1, 2, 3, 4, 5, 7, 17, 33)
        while True:
            found = tuple(int(self.one_of(sizes)) for _ in range(self.one_of((0, 1, 2, 2, 2, 3))))
            if math.prod(found) <= 240:
                return found

    # --- lines ---

    def line(self, pool: Sequence[str]) -> Line:
        """One operation on a value of the pool, tried on arrays. Raises Unfit."""
        template: Template = self.one_of(self.one_of(FAMILIES))
        kinds = {"n": "fi", "*": "fib"}.get(template.x, template.x)
        x = self.pick(pool, kinds)
        filled = Filled(self, x, pool)
        tensor = template.tensor.format_map(filled)
        return self.tried(tensor, template.array.format_map(filled))

    def tried(self, tensor: str, array: str) -> Line:
        """A line that works on arrays and stays small; its value joins what there is."""
        with np.errstate(all="ignore"):
            try:
                found = np.asarray(eval(array, ARRAY_NAMES | self.arrays | {"hold": Hold(None)}))
            except (IndexError, ValueError, TypeError):
                raise Unfit from None
        if not 0 < found.size <= ELEMENTS:
            raise Unfit
        seen: Tensor = eval(tensor, TENSOR_NAMES | self.tensors)
        assert seen.shape == found.shape, f"{tensor}: {seen.shape} is not {found.shape}"
        kind = seen.dtype.name
        found = cast(found, kind)
        if not np.all(np.isfinite(found)) or (seen.dtype.is_float and np.abs(found).max() > MOST):
            raise Unfit
        name = self.name("v")
        self.arrays[name], self.tensors[name] = found, Tensor(np.asarray(found, seen.dtype.np), self.device)
        return Line((name,), tensor, f"cast({array}, {kind!r})")

    def grown(self, pool: list[str], count: int, depth: int = 0) -> list[Line]:
        """Lines whose values join the pool."""
        lines: list[Line] = []
        while len(lines) < count:
            what = self.below(16) if depth < 2 else 0
            try:
                make = {14: self.loop, 15: self.choice}.get(what)
                lines.append(make(pool, depth) if make else self.line(pool))
            except Unfit:
                continue
            pool += lines[-1].names
        return lines

    def fitted(self, pool: Sequence[str], like: str) -> tuple[str, str]:
        """A value of the pool with the shape and dtype of another, in both texts; tamed."""
        shape, kind = self.arrays[like].shape, self.tensors[like].dtype.name
        x = self.pick(pool, "f" if kind[0] == "f" else "ib")
        found = fit(x, self.arrays[x].shape, shape)
        if kind[0] == "f":
            return f"({found}).sin().cast(dtype.{kind})", f"np.sin({found})"
        return f"({found}).cast(dtype.{kind.replace('bool', 'bool_')})", found

    def loop(self, pool: list[str], depth: int) -> Line:
        """Some values carried through a few iterations, each of which makes them of anything."""
        starts = [self.pick(pool, "fib") for _ in range(1 + self.below(3))]
        count, turn, carried = self.below(4), self.name("t"), [self.name("a") for _ in starts]
        self.arrays[turn], self.tensors[turn] = np.asarray(0, np.int32), Tensor.full((), 0, dtype.i32, self.device)
        for a, start in zip(carried, starts, strict=True):
            self.arrays[a], self.tensors[a] = self.arrays[start], self.tensors[start]
        inside = [*pool, turn, *carried]
        lines = self.grown(inside, 1 + self.below(4), depth + 1)
        for start in starts:
            lines.append(self.tried(*self.fitted(inside[len(pool) :], start)))
        ends = tuple(line.names[0] for line in lines[-len(starts) :])
        body = Body(self.name("b"), (turn, *carried), tuple(lines), ends)
        given = ", ".join([str(count), body.name, *starts])
        return self.finished(len(starts), f"loop({given})", f"looped({given})", (body,))

    def choice(self, pool: list[str], depth: int) -> Line:
        """One of two ways, by a number that is computed."""
        x = self.pick(pool, "fi")
        condition = self.tried(f"{x}.max() > 0.5", f"np.max({x}) > 0.5")
        like = [self.pick(pool, "fib") for _ in range(1 + self.below(2))]
        bodies = []
        for _ in range(2):
            inside = [*pool]
            lines = self.grown(inside, self.below(3), depth + 1)
            lines += [self.tried(*self.fitted(inside[-4:], n)) for n in like]
            ends = tuple(line.names[0] for line in lines[-len(like) :])
            bodies.append(Body(self.name("b"), (), tuple(lines), ends))
        names = ", ".join(b.name for b in bodies)
        tensor, array = f"cond({condition.tensor}, {names})", f"chosen({condition.array}, {names})"
        return self.finished(len(like), tensor, array, tuple(bodies))

    def finished(self, count: int, tensor: str, array: str, bodies: tuple[Body, ...]) -> Line:
        """A loop or a choice, tried as a whole."""
        line = Line(tuple(self.name("v") for _ in range(count)), tensor, array, bodies)
        whole = Graph({}, (line,), ())
        arrays = ARRAY_NAMES | self.arrays | {"hold": Hold(None)}
        with np.errstate(all="ignore"):
            exec(whole.array_code, arrays)  # noqa: S102
        tensors = TENSOR_NAMES | self.tensors
        exec(whole.tensor_code, tensors)  # noqa: S102
        for name in line.names:
            found, kind = np.asarray(arrays[name]), tensors[name].dtype
            if not np.all(np.isfinite(found)) or (kind.is_float and np.abs(found).max() > MOST):
                raise Unfit
            self.arrays[name] = found
            self.tensors[name] = Tensor(np.asarray(found, kind.np), self.device)
        return line

    # --- gradients, states ---

    def weighted(self, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> str:
        """A number that each element of some values counts in, in its own way."""
        terms = []
        for name, shape in zip(names, shapes, strict=True):
            w = self.name("w")
            self.leaves[w] = np.cos(np.arange(math.prod(shape)) * 1.3 + 0.4).reshape(shape)
            self.leaves[w] = self.leaves[w].astype(np.float32)
            terms.append(f"({name} * {w}).sum()")
        return " + ".join(terms)

    def floats(self) -> list[str]:
        """Leaves to differentiate by."""
        return [n for n in self.leaves if n[0] in "xs" and self.kind(n) == "f"]

    def gradients(self, pool: Sequence[str], lines: list[Line], again: bool) -> list[str]:
        """Lines that differentiate some values by the floats among the leaves; their names."""
        by = self.floats()
        if all(self.kind(n) != "f" for n in pool):
            return []
        ends = dict.fromkeys(self.pick(pool, "f") for _ in range(3))
        h = self.name("h")
        loss = self.weighted([*ends], [self.arrays[n].shape for n in ends])
        slopes = [self.name("g") for _ in by]
        lines.append(Line((h,), loss, loss))
        lines.append(Line(tuple(slopes), f"{h}.gradient([{', '.join(by)}])", None))
        if again and not any(".detach()" in line for line in text(lines)):
            shapes = [self.leaves[n].shape for n in by]
            h, found = self.name("h"), [self.name("g") for _ in by]
            lines.append(Line((h,), self.weighted(slopes, shapes), None))
            lines.append(Line(tuple(found), f"{h}.gradient([{', '.join(by)}])", None))
            return [*slopes, *found]
        return slopes

    def updates(self, pool: Sequence[str], lines: list[Line], slopes: Sequence[str]) -> dict[str, str]:
        """What becomes of each state: something else, itself with a change, or a step downhill."""
        found = {}
        for s in (n for n in self.leaves if n[0] == "s"):
            g = dict(zip(self.floats(), slopes, strict=False)).get(s)
            try:
                line = self.update(pool, s, g if self.below(2) else None)
            except Unfit:
                continue
            lines.append(line)
            found[s] = line.names[0]
        return found

    def update(self, pool: Sequence[str], state: str, slope: str | None) -> Line:
        """One of these; Unfit where nothing has its kind."""
        if slope:
            return Line((self.name("v"),), f"{state} - {slope}.clip(-1, 1) * 0.125", None)
        tensor, array = self.fitted(pool, state)
        if self.kind(state) == "f" and self.below(2):
            tensor, array = (f"{state} * 0.5 + {text} * 0.5" for text in (tensor, array))
        return self.tried(tensor, array)

    def graph(self) -> Graph:
        kinds = ["f4", "f4", "f4", "f2", "f2", "i1", "u1", "i4", "u4", "?"]
        self.leaf("x", self.one_of(["f4", "f2"]), self.shape())
        for _ in range(1 + self.below(3)):
            self.leaf(self.one_of("xxs"), self.one_of(kinds), self.shape())
        pool = [*self.leaves]
        inputs = len(pool)
        lines = self.grown(pool, 3 + self.below(23))
        used = set().union(*(line.used() for line in lines))
        ends = [n for n in pool[inputs:] if n not in used]
        outputs = list(dict.fromkeys([*ends, self.one_of(pool[inputs:])]))
        slopes = self.gradients(pool[inputs:], lines, self.below(3) == 0) if self.below(3) else []
        updates = self.updates(pool, lines, slopes)
        return pruned(Graph(self.leaves, tuple(lines), (*outputs, *slopes), updates))


def fit(x: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """A value in another shape: its elements again and again, as many as there is room for."""
    if shape == wanted:
        return x
    size, room = math.prod(shape), math.prod(wanted)
    again = -(-room // size)
    repeated = f".repeat({again})" if again > 1 else ""
    cut = f"[:{room}]" if size * again > room else ""
    return f"{x}.flatten(){repeated}{cut}.reshape({', '.join(map(str, wanted))})"


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


class Filled(dict[str, str]):
    """What stands in a template's braces, drawn when it is asked for; then it stays."""

    def __init__(self, maker: Maker, x: str, pool: Sequence[str]) -> None:
        super().__init__(x=x)
        self.maker, self.pool, self.array = maker, pool, maker.arrays[x]
        self.operands = [x]

    def __missing__(self, key: str) -> str:
        if key.startswith("fit_"):
            found = self.fit(tuple(int(n) for n in key.split("_")[1:]))
        else:
            found = str(getattr(self, f"_{key}")())
        self[key] = found
        return found

    def fit(self, shape: tuple[int, ...]) -> str:
        x = self.maker.pick(self.pool, "f")
        return fit(x, self.maker.arrays[x].shape, shape)

    def _operand(self, kinds: str) -> str:
        """A value that broadcasts with what there is."""

        def fits(name: str) -> bool:
            try:
                np.broadcast_shapes(*(self.maker.arrays[n].shape for n in [*self.operands, name]))
            except ValueError:
                return False
            return True

        self.operands.append(self.maker.pick(self.pool, kinds, fits))
        return self.operands[-1]

    def _y(self) -> str:
        return self._operand("fi")

    def _z(self) -> str:
        return self._operand("fi")

    def _j(self) -> str:
        return self._operand("i")

    def _b(self) -> str:
        found = self._operand("b")
        self.operands.pop()
        return found

    def _P(self) -> str:
        kinds = {self.maker.tensors[n].dtype for n in self.operands}
        return repr(dtype.concrete(dtype.promote(*kinds)).name)

    def _another(self, shape: tuple[int, ...]) -> str:
        x = self.maker.pick(self.pool, "fi")
        self.operands.append(x)
        return fit(x, self.maker.arrays[x].shape, shape)

    def _other(self) -> str:
        """To stand beside x along `axis`."""
        axis = int(self["axis"]) % self.array.ndim
        n = 1 + self.maker.below(3)
        return self._another(tuple(n if a == axis else m for a, m in enumerate(self.array.shape)))

    def _same(self) -> str:
        return self._another(self.array.shape)

    def _matrix(self) -> str:
        if self.array.ndim != 2:
            raise Unfit
        return self["x"]

    def _right(self) -> str:
        return self.fit((self.array.shape[-1], 1 + self.maker.below(7)))

    def _c(self) -> float:
        return round(float(self.maker.rng.uniform(-3, 3)), 2)

    def _c2(self) -> int:
        if self.array.ndim < 2:
            raise Unfit
        return self.maker.below(5) - 2

    def _k(self) -> int:
        return self.maker.below(4)

    def _keep(self) -> bool:
        return bool(self.maker.below(2))

    def _axis(self) -> int:
        return int(self.maker.one_of(range(-self.array.ndim, self.array.ndim)))

    _axis2 = _axis

    def _axes(self) -> str:
        rank = self.array.ndim
        if not rank or not self.maker.below(3):
            return "None"
        chosen = self.maker.rng.permutation(rank)[: 1 + self.maker.below(rank)]
        return str(tuple(int(a) for a in chosen)) if len(chosen) > 1 else str(chosen[0])

    def _of_size(self, fits: Callable[[int], bool]) -> int:
        return int(self.maker.one_of([a for a, n in enumerate(self.array.shape) if fits(n)]))

    def _shortaxis(self) -> int:
        return self._of_size(lambda n: n <= 7)

    def _longaxis(self) -> int:
        return self._of_size(lambda n: n > 1)

    def _at(self) -> int:
        return 1 + self.maker.below(self.array.shape[int(self["longaxis"])] - 1)

    def _n(self) -> int:
        if not self.array.ndim or self.array.shape[0] > 127:  # to which i8 counts
            raise Unfit
        return self.array.shape[0]

    def _shape(self) -> str:
        size, found = self.array.size, []
        for p in self.maker.rng.permutation([2, 3, 5, 7, 11, 17]):
            if size % p == 0 and self.maker.below(3):
                found.append(int(p))
                size //= int(p)
        found.insert(self.maker.below(len(found) + 1), size)
        if self.maker.below(2):
            found[self.maker.below(len(found))] = -1
        return ", ".join(map(str, found))

    def _order(self) -> str:
        order = iter(self.maker.rng.permutation(self.array.ndim))
        return self._each(lambda n: next(order))

    def _wider(self) -> str:
        shape = [n if n > 1 else self.maker.one_of((1, 3)) for n in self.array.shape]
        return str((*([2] if self.maker.below(2) else []), *shape))

    def _expanded(self) -> str:
        shape = list(np.expand_dims(self.array, int(self["axis"])).shape)
        shape[int(self["axis"])] = 3
        return ", ".join(map(str, shape))

    def _each(self, make: Callable[[int], Any]) -> str:
        if not self.array.ndim:
            raise Unfit
        return ", ".join(str(make(n)) for n in self.array.shape)

    def _pads(self) -> str:
        return self._each(lambda n: (self.maker.below(3), self.maker.below(3)))

    def _box(self) -> str:
        def span(n: int) -> tuple[int, int]:
            begin = self.maker.below(n)
            return begin, begin + 1 + self.maker.below(n - begin)

        return self._each(span)

    def _steps(self) -> str:
        return self._each(lambda n: self.maker.one_of((1, 1, -1, 2, -2, 3)))

    def _key(self) -> str:
        keys = []
        for n in self.array.shape:
            begin = self.maker.one_of(("", self.maker.below(n), self.maker.below(n) - n))
            step = self.maker.one_of(("", -1, 2, -3))
            keys.append(self.maker.one_of((f"{begin}::{step}", ":", self.maker.below(n), f":{n}:{step or 1}")))
        keys.insert(self.maker.below(len(keys) + 1), self.maker.one_of(("None", "...")))
        return ", ".join(map(str, keys))

    def _ints(self) -> str:
        n = int(self["n"])
        return str([self.maker.below(2 * n) - n for _ in range(1 + self.maker.below(5))])

    def _mask(self) -> str:
        if not self.array.ndim:
            raise Unfit
        found = self.maker.rng.integers(0, 2, self.array.shape[-1]).astype(bool)
        found[self.maker.below(len(found))] = True
        return str(found.tolist())

    def _lines(self) -> str:
        axis = int(self["axis"]) % self.array.ndim
        shape = [1 + self.maker.below(3) if a == axis else n for a, n in enumerate(self.array.shape)]
        return str(self.maker.rng.integers(0, self.array.shape[axis], shape).tolist())
