"""Random steps of all that a Tensor can do, each also as a program of NumPy's in float64.

A graph is text: lines of tests/graph_templates.py, loops and choices with lines of their own, then
gradients, gradients of these, and new values of states. What is drawn is tried at once on arrays,
so that shapes fit and numbers stay finite and small. The same seed gives the same graph.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from graph_filling import Filled, Unfit, fit
from graph_templates import FAMILIES, Template
from graph_text import ARRAY_NAMES, TENSOR_NAMES, Array, Body, Graph, Hold, Line, cast, pruned, text

from imgmlp.engine import Tensor, dtype, open_device

MOST = 1000.0  # how large a float may be: halves end at 65504
ELEMENTS = 400  # at most, of a value


def drawn(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    """Floats around zero, integers that are small or of any size."""
    to = np.dtype(kind)
    if to.kind == "f":
        return np.asarray(rng.uniform(-2, 2, shape).astype(to))
    low, high = (0, 2) if to.kind == "b" else (np.iinfo(to).min, int(np.iinfo(to).max) + 1)
    if to.kind != "b" and rng.integers(2):
        low, high = max(low, -9), 9
    return np.asarray(rng.integers(low, high, shape).astype(to))


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
        if n < 1:
            raise Unfit
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
        """A Tensor from the host."""
        array, name = drawn(self.rng, shape, kind), self.name(letter)
        self.leaves[name] = array
        self.tensors[name] = Tensor(array, self.device)
        self.arrays[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
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
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            try:
                found = np.asarray(eval(array, ARRAY_NAMES | self.arrays | {"hold": Hold(None)}))  # noqa: S307
            except (IndexError, ValueError, TypeError):
                raise Unfit from None
        if found.size > ELEMENTS:
            raise Unfit
        seen: Tensor = eval(tensor, TENSOR_NAMES | self.tensors)  # noqa: S307
        assert seen.shape == found.shape, f"{tensor}: {seen.shape} is not {found.shape}"
        kind = seen.dtype.name
        found = cast(found, kind)
        if not np.all(np.isfinite(found)) or (seen.dtype.is_float and np.any(np.abs(found) > MOST)):
            raise Unfit
        name = self.name("v")
        self.arrays[name] = found
        self.tensors[name] = Tensor(np.asarray(found, seen.dtype.np), self.device)
        kinds = ((found.shape, seen.dtype.np.str),)
        return Line((name,), tensor, f"cast({array}, {kind!r})", (), kinds)

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
        self.arrays[turn], self.tensors[turn] = (
            np.asarray(0, np.int32),
            Tensor.full((), 0, dtype.i32, self.device),
        )
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
            exec(whole.array_code, arrays)
        tensors = TENSOR_NAMES | self.tensors
        exec(whole.tensor_code, tensors)
        for name in line.names:
            found, kind = np.asarray(arrays[name]), tensors[name].dtype
            if not np.all(np.isfinite(found)) or (kind.is_float and np.any(np.abs(found) > MOST)):
                raise Unfit
            self.arrays[name] = found
            self.tensors[name] = Tensor(np.asarray(found, kind.np), self.device)
        kinds = ((self.arrays[n].shape, self.tensors[n].dtype.np.str) for n in line.names)
        return replace(line, kinds=tuple(kinds))

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

    def updates(
        self, pool: Sequence[str], lines: list[Line], slopes: Sequence[str]
    ) -> dict[str, str]:
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
