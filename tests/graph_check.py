"""What a random graph must give, in which forms it is run, and how a graph that fails is told.

Values are compared with the same lines in NumPy's float64, gradients with differences of these, and
gradients of gradients with differences of the gradients. How far off they may be follows from their
operations: tests/rounding_bounds.py.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from graph_text import Array, Graph, Line, pruned, text
from random_graphs import drawn
from rounding_bounds import Near, bounds

from imgmlp.engine import AnyDevice, NumpyDevice, Program, Tensor, compile
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.op import Op
from imgmlp.engine.oracle.interpret import Evaluation

SLACK = 2.0  # times a bound: what products of two errors add, and simplification moves
RUNS = 3  # of a graph with states
STEP = 2.0**-17  # of differences, in float64
NAMES_OF_ENGINE = ("Tensor", "compile", "cond", "dtype", "loop", "nn", "open_device")


@dataclass(frozen=True)
class Fault:
    """A value of a run that is not what it should be."""

    name: str
    run: int
    form: str
    told: str


# --- what must come out ---


@dataclass(frozen=True)
class Expected:
    """Of each run the outputs with bounds, what is wrong with them already, and claims made."""

    runs: list[dict[str, Near]]
    faults: list[Fault]
    slopes: int  # that differences could tell something of


def expected(graph: Graph) -> Expected:
    """Values by the Nodes' meaning, if that is what NumPy's lines and differences say."""
    device = NumpyDevice()
    leaves = {n: Tensor(a, device) for n, a in graph.leaves.items()}
    tensors = graph.tensors(leaves)
    losses = [loss for loss, _ in gradient_lines(graph)]
    names = [*dict.fromkeys((*graph.outputs, *graph.updates.values(), *losses))]
    nodes = [tensors[n].node for n in names]
    held = {n: Near.of(wide(a)) for n, a in graph.leaves.items()}
    loose, arrays = dict(held), {n: h.value for n, h in held.items()}
    runs, faults, unsure = [], [], set[str]()
    known = True
    for run in range(RUNS if graph.updates else 1):
        places = {leaves[n].node.arg: n for n in leaves}
        near, off = (
            dict(
                zip(names, bounds(nodes, {b: h[n] for b, n in places.items()}, halves), strict=True)
            )
            for h, halves in ((held, True), (loose, False))
        )
        runs.append(near)
        if run == 0:  # where rounding decides which way to go, NumPy's lines may go the other one
            unsure = {n for n in names if not np.all(np.isfinite(off[n].error))}
        if known:
            truth = graph.arrays(arrays)
            for n in names:
                if n in truth and not agrees(truth[n], off[n]):
                    faults.append(Fault(n, run, "meaning", difference(truth[n], off[n])))
            known = all(v in truth for v in graph.updates.values())
            arrays |= {s: truth[v] for s, v in graph.updates.items() if known}
        held |= {s: near[v] for s, v in graph.updates.items()}
        loose |= {s: off[v] for s, v in graph.updates.items()}
    more, slopes = slope_faults(graph, leaves, tensors, unsure)
    return Expected(runs, faults + more, slopes)


def wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def agrees(found: Array, near: Near) -> bool:
    """Whether the shape is that, and rounding explains each difference."""
    return np.shape(found) == near.value.shape and not np.any(apart(found, near))


def apart(found: Array, near: Near) -> Array:
    """Where it does not."""
    with np.errstate(all="ignore"):
        off = np.abs(wide(np.asarray(found)).astype(np.float64) - near.value.astype(np.float64))
        same = (found == near.value) | (np.isnan(found) & np.isnan(near.value))
        bad: Array = ~(same | (off <= SLACK * near.error) | np.isinf(near.error))
    return bad


def difference(found: Array, near: Near) -> str:
    """A shape that is wrong, or the first of the elements that are."""
    if np.shape(found) != near.value.shape:
        return f"its shape is {np.shape(found)}, not {near.value.shape}"
    bad = apart(found, near)
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    value, wanted, error = (a[place] for a in (np.asarray(found), near.value, near.error))
    at = f"{np.count_nonzero(bad)} of {bad.size} elements, at {list(place)}"
    return f"{at} it is {value!r}, not {wanted!r} within {SLACK * error:.3g}"


# --- gradients ---


def gradient_lines(graph: Graph) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The losses of a graph, and for each the leaves with the names of its gradients by them."""
    for line in graph.lines:
        loss, dot, rest = line.tensor.partition(".gradient([")
        if dot:
            yield loss, list(zip(rest.removesuffix("])").split(", "), line.names, strict=True))


def slope_faults(
    graph: Graph, leaves: dict[str, Tensor], tensors: dict[str, Tensor], unsure: set[str]
) -> tuple[list[Fault], int]:
    """Gradients against differences: of NumPy's lines, or of the gradients that are in a loss."""
    places = {t.node.arg: n for n, t in leaves.items()}
    rng = np.random.default_rng(0)
    # beside the grid of halves, on which equal values are frequent and have several gradients
    aside = {n: rng.uniform(-1e-3, 1e-3, a.shape) for n, a in graph.leaves.items()}
    at = {n: a + aside[n] if a.dtype.kind == "f" else a for n, a in graph.leaves.items()}
    held: list[Array] = []
    graph.arrays(at, held)
    faults, told = [], 0
    for loss, pairs in gradient_lines(graph):
        first = any(line.names == (loss,) and line.array is not None for line in graph.lines)
        evaluation = Evaluation([tensors[loss].node], wide=True)
        value = (
            functools.partial(_by_lines, graph, held, loss)
            if first
            else functools.partial(_by_nodes, evaluation, places)
        )
        given = FromHost({b: at[n] for b, n in places.items()})
        slopes = Evaluation([tensors[g].node for _, g in pairs], wide=True).run(given)
        for (leaf, name), slope in zip(pairs, slopes, strict=True):
            if first and unsure & {loss, name}:
                continue
            claim, problem = _compared(value, at, leaf, slope)
            told += claim
            if problem:
                faults.append(Fault(name, 0, "differences", problem))
    return faults, told


def _by_lines(graph: Graph, held: list[Array], loss: str, at: dict[str, Array]) -> float:
    return float(graph.arrays(at, held)[loss])


def _by_nodes(evaluation: Evaluation, places: dict[Buffer, str], at: dict[str, Array]) -> float:
    known = {b: at[n] for b, n in places.items()}
    return float(evaluation.run(FromHost(known))[0])


class FromHost(dict[Buffer, Array]):
    """Values of Buffers; those of others are the host's."""

    def __missing__(self, buffer: Buffer) -> Array:
        assert buffer.host is not None
        return buffer.host


def _compared(
    value: Callable[[dict[str, Array]], float], at: dict[str, Array], leaf: str, slope: Array
) -> tuple[bool, str]:
    """Whether differences tell how fast a value changes along a direction, and if so what is wrong.

    By how much they may be off is seen from differences over half the way, and to one side only,
    which a kink makes another, and from how float64 rounds what is subtracted.
    """
    along = np.random.default_rng(at[leaf].size).uniform(0.5, 1.5, at[leaf].shape)
    along *= np.where(np.arange(along.size).reshape(along.shape) % 3, 1, -1)

    def moved(step: float) -> float:
        return value(at | {leaf: at[leaf] + step * along})

    base, *values = (moved(s * STEP) for s in (0, 1, -1, 0.5, -0.5))
    up, down, near_up, near_down = values
    central, nearer = (up - down) / (2 * STEP), (near_up - near_down) / STEP
    sides = abs((up - base) - (base - down)) / STEP
    noise = 2.0**-40 * max(1.0, *map(abs, (base, *values))) / STEP
    terms = slope * along
    off = abs(central - nearer) + sides + noise + 1e-5 * float(np.abs(terms).sum())
    claimed = float(terms.sum())
    if (
        not np.isfinite(off)
        or not np.isfinite(claimed)
        or off > 0.05 * max(1e-3, float(np.abs(terms).sum()), abs(nearer))
    ):
        return False, ""
    if float(np.abs(terms).sum()) * STEP > 0.1 * max(1.0, *map(abs, values)):
        return False, ""  # which turns too fast for differences to see
    wrong = abs(claimed - nearer) > off
    return (
        True,
        f"along a direction it is {claimed!r}, differences say {nearer!r} ± {off:.1g}"
        if wrong
        else "",
    )


# --- what does come out ---


def program_of(graphs: Sequence[Graph], device: AnyDevice) -> Program:
    """Some graphs as one step; an output of the first is called "0 v1", and so on."""
    leaves = [{n: Tensor(a, device, name=n) for n, a in g.leaves.items()} for g in graphs]

    def step() -> dict[str, Tensor]:
        found = {}
        for i, (graph, own) in enumerate(zip(graphs, leaves, strict=True)):
            tensors = graph.tensors(own)
            for state, value in graph.updates.items():
                own[state].assign(tensors[value])
            # a state that is an output would be read as it has become
            given = {n: tensors[n] for n in graph.outputs}
            found |= {f"{i} {n}": t for n, t in given.items() if t.node.op is not Op.BUFFER}
        return found

    return compile(step, device)


def faults_on(
    graphs: Sequence[Graph], wanted: Sequence[Expected], device: AnyDevice, form: str = ""
) -> list[list[Fault]]:
    """What a device makes wrong of some graphs that are one program."""
    program = program_of(graphs, device)
    faults: list[list[Fault]] = [[] for _ in graphs]
    for run in range(max(len(w.runs) for w in wanted)):
        program.run()
        for name in program.outputs:
            i, n = int(name.split()[0]), name.split()[1]
            if run < len(wanted[i].runs):
                found, near = program.read(name), wanted[i].runs[run][n]
                if not agrees(found, near):
                    faults[i].append(Fault(n, run, form, difference(found, near)))
    return faults


def faults_of(graph: Graph, device: AnyDevice, form: str = "") -> list[Fault]:
    """All that is wrong with a graph by itself; an error is a fault too."""
    try:
        wanted = expected(graph)
        return wanted.faults + faults_on([graph], [wanted], device, form)[0]
    except Exception as error:
        return [Fault("", 0, form, f"{type(error).__name__}: {error}")]


# --- a graph that fails ---


def shrunk(graph: Graph, fails: Callable[[Graph], bool]) -> Graph:
    """A graph that still fails, with as little in it as can be found by leaving things out."""
    found = graph
    while (smaller := next(filter(fails, smaller_ones(found)), None)) is not None:
        found = smaller
    return found


def smaller_ones(graph: Graph) -> Iterator[Graph]:
    """A graph with less in it, in one way after the other."""
    kept = (*graph.outputs, *graph.updates.values())
    if graph.updates:
        yield pruned(replace(graph, updates={}))
    if len(graph.outputs) > 1:
        half = len(graph.outputs) // 2
        for outputs in (graph.outputs[:half], graph.outputs[half:]):
            yield pruned(replace(graph, outputs=outputs))
    for i, line in enumerate(graph.lines):
        for lines, leaves in cuts(line):
            whole = (*graph.lines[:i], *lines, *graph.lines[i + 1 :])
            yield pruned(replace(graph, lines=whole, leaves=graph.leaves | leaves))
        for name, kind in zip(line.names, line.kinds, strict=False):
            for other in line.used() if name not in kept else ():
                if kind_of(graph, other) == kind:
                    rest = tuple(renamed(n, name, other) for n in graph.lines[i + 1 :])
                    lines = (*graph.lines[: i + 1], *rest)
                    if (less := pruned(replace(graph, lines=lines))).lines != graph.lines:
                        yield less
    for name, array in graph.leaves.items():
        for simple in (np.zeros_like(array), np.ones_like(array), np.round(array, 1)):
            if not np.array_equal(simple, array) and np.any(array != 1) and np.any(array):
                yield replace(graph, leaves=graph.leaves | {name: simple})


def kind_of(graph: Graph, name: str) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of a value, where they are known."""
    if name in graph.leaves:
        return graph.leaves[name].shape, graph.leaves[name].dtype.str
    kinds = (dict(zip(line.names, line.kinds, strict=False)) for line in graph.lines)
    return next((k[name] for k in kinds if name in k), None)


def renamed(line: Line, old: str, new: str) -> Line:
    """A line that reads another value."""

    def text_of(text: str) -> str:
        return re.sub(rf"\b{old}\b", new, text)

    bodies = tuple(
        replace(
            b,
            lines=tuple(renamed(n, old, new) for n in b.lines),
            returned=tuple(map(text_of, b.returned)),
        )
        for b in line.bodies
    )
    array = line.array and text_of(line.array)
    return replace(line, tensor=text_of(line.tensor), array=array, bodies=bodies)


def cuts(line: Line) -> Iterator[tuple[tuple[Line, ...], dict[str, Array]]]:
    """What may stand for a line: inputs of the same kinds, or itself with less in its bodies."""
    if line.kinds:
        pairs = zip(line.names, line.kinds, strict=True)
        yield (), {n: drawn(np.random.default_rng(0), *kind) for n, kind in pairs}
    terms = line.tensor.split(" + ") if line.names[0].startswith("h") else []
    for i in range(len(terms) if len(terms) > 1 else 0):
        less = " + ".join(terms[:i] + terms[i + 1 :])
        yield (replace(line, tensor=less, array=line.array and less),), {}
    for b, body in enumerate(line.bodies):
        for i, inner in enumerate(body.lines):
            for lines, leaves in cuts(inner):
                less = replace(body, lines=(*body.lines[:i], *lines, *body.lines[i + 1 :]))
                bodies = (*line.bodies[:b], less, *line.bodies[b + 1 :])
                yield (replace(line, bodies=bodies),), leaves


def told(graph: Graph, faults: Sequence[Fault], opened: str) -> str:
    """A program that shows what is wrong; `opened` are the lines that open its device."""
    lines = [*(f"# {f.form}: {f.name}, run {f.run}: {f.told}" for f in faults)]
    lines += [
        "import numpy as np",
        f"from imgmlp.engine import {', '.join(NAMES_OF_ENGINE)}",
        "",
        opened,
    ]
    for name, array in graph.leaves.items():
        one = array.size and np.all(array == array.flat[0])
        given = f"full({array.shape}, {array.flat[0].item()}" if one else f"array({array.tolist()}"
        lines.append(f"{name} = Tensor(np.{given}, np.{array.dtype.name}), device)")
    lines += ["", "def step():", *text(graph.lines, indent="    ")]
    lines += [f"    {s}.assign({v})" for s, v in graph.updates.items()]
    outputs = ", ".join(f"{n!r}: {n}" for n in graph.outputs)
    lines += [f"    return {{{outputs}}}", "", "program = compile(step, device)"]
    lines += [f"for run in range({RUNS if graph.updates else 1}):", "    program.run()"]
    lines += ["    print(run, {n: program.read(n) for n in program.outputs})"]
    return "\n".join(lines)
