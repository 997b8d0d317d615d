"""Random graphs of all operations agree with NumPy, on the device and in every lowered form.

tools/graphs.py runs any number of them. Deliberate faults test that the graphs detect errors;
docs/engine.md lists how many graphs it took to detect each.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import graph_templates
import numpy as np
import operations
import pytest
from conftest import environment, open_mapping
from graph_check import Expected, expected, faults_of, faults_on, program_of, shrunk, told
from graph_text import Graph, Line, text
from random_graphs import Maker

from imgmlp.engine import open_device
from imgmlp.engine.ir.graph import Node, alu
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.view import View, canonical_view
from imgmlp.engine.operations import autograd, scans
from imgmlp.engine.passes import simplify

GRAPHS_PER_TEST = 20


@functools.cache
def drawn(seed: int) -> tuple[Graph, Expected]:
    graph = Maker(seed).graph()
    return graph, expected(graph)


FORMS = ("numpy:procedure", "numpy:uops", "numpy:uops-group", "numpy")


@pytest.mark.parametrize(
    ("form", "first"), [(FORMS[n // 60], n) for n in range(0, 60 * len(FORMS), GRAPHS_PER_TEST)]
)
def test_random_graphs_and_their_lowered_forms_agree_with_numpy(form: str, first: int) -> None:
    """Both forms of a graph share one test, as computing the expected values takes longest."""
    for seed in range(first, first + GRAPHS_PER_TEST):
        graph, wanted = drawn(seed)
        for name in dict.fromkeys(("numpy", form)):
            faults = faults_on([graph], [wanted], open_device(name), name)[0]
            assert not faults, f"seed {seed}: python tools/graphs.py --first {seed} --count 1"
        assert not wanted.faults, seed


@pytest.mark.parametrize(("form", "first", "count"), [("one", 180, 4), ("group", 184, 2)])
def test_compiled_random_graphs_agree_with_numpy(form: str, first: int, count: int) -> None:
    pairs = [drawn(seed) for seed in range(first, first + count)]
    faults_by_graph = faults_on(
        [g for g, _ in pairs], [w for _, w in pairs], open_mapping(form), form
    )
    for seed, faults in enumerate(faults_by_graph, first):
        assert not faults, f"seed {seed}"


def test_error_bounds_are_tight_and_cover_most_values() -> None:
    """A bound that is too wide would detect no error."""
    close, all_slopes, told_of = [], 0, 0
    for seed in range(40):
        graph, wanted = drawn(seed)
        for near in (n for run in wanted.runs for n in run.values() if n.value.size):
            close.append(np.mean(near.error <= 1e-2 * np.abs(near.value) + 1e-6))
        all_slopes += sum(len(line.names) for line in graph.lines if ".gradient(" in line.tensor)
        told_of += wanted.slopes
    assert np.mean(close) > 0.85
    assert told_of > 0.8 * all_slopes


def test_random_graphs_cover_every_documented_operation() -> None:
    """The templates contain every method of docs/operations.md.

    Exceptions are the methods that draw random numbers, and compositions of others.
    """
    named = r"\.(\w+)\("
    rows = {
        m for rows in operations.ROWS.values() for r in rows for m in re.findall(named, r.tensor)
    }
    exceptions = {"all", "any", "argsort", "layer_norm", "random_bits", "uniform", "normal"}
    texts = [t.tensor for family in graph_templates.FAMILIES for t in family]
    assert not rows - {m for text in texts for m in re.findall(named, text)} - exceptions


def test_sorting_by_merging_agrees_with_numpy_in_random_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        scans, "MAX_COUNTED_LINE", 2
    )  # few lines of a random graph have more than 64
    graphs = (Maker(seed).graph() for seed in range(240, 360))
    ordered = (g for g in graphs if re.search(r"sort\(|topk\(", "".join(text(g.lines))))
    for graph in (next(ordered) for _ in range(20)):
        wanted = expected(graph)
        assert not wanted.faults
        for form in ("numpy", "numpy:procedure"):
            assert not faults_on([graph], [wanted], open_device(form), form)[0]


# --- deliberate faults ---


def test_wrong_shape_without_elements_is_reported_as_a_fault() -> None:
    leaves = {"x1": np.ones((2, 3), np.float32)}
    for array, fault in (("x1[:0]", ""), ("x1[:0, :1]", "its shape is (0, 1), not (0, 3)")):
        graph = Graph(leaves, (Line(("v1",), "x1[:0]", array),), ("v1",))
        assert "".join(f.told for f in faults_of(graph, open_device("numpy"))) == fault
        assert list(program_of([graph], open_device("numpy")).outputs) == ["0 v1"]


def wrong_sign(g: Node, ans: Node, x: Node) -> tuple[Node]:
    return (-(g * alu(Op.COS, x)),)


def mask_off_by_one(view: View, box: tuple[tuple[int, int], ...]) -> View:
    """A padded view whose first mask that ends early ends one later."""
    window = WINDOW(view, box)
    ends = [
        axis
        for axis, (n, r) in enumerate(zip(window.shape, window.ranges, strict=True))
        if r[1] < n
    ]
    ranges = [(b, e + (axis in ends[:1])) for axis, (b, e) in enumerate(window.ranges)]
    return canonical_view(window.shape, window.strides, window.offset, tuple(ranges))


def last_one_lost(view: View, steps: Sequence[int]) -> View:
    """A view that was padded in front and is flipped lacks its last element."""
    strided = STRIDE(view, steps)
    sides = zip(strided.ranges, view.ranges, steps, strict=True)
    ranges = [(b, e - (step < 0 < before and b < e)) for (b, e), (before, _), step in sides]
    return canonical_view(strided.shape, strided.strides, strided.offset, tuple(ranges))


WINDOW, STRIDE = View.window, View.stride
FAULTS: dict[str, tuple[str, int, Callable[[pytest.MonkeyPatch], None]]] = {
    "a wrong sign in a gradient": (
        "numpy", 10, lambda patch: patch.setitem(autograd.VJP, Op.SIN, wrong_sign)
    ),
    "a factor of two in a gradient": (
        "numpy", 40, lambda patch: patch.setitem(autograd.VJP, Op.SQRT, lambda g, y, x: (g / y,))
    ),
    "a mask off by one": (
        "numpy:procedure", 10, lambda patch: patch.setattr(View, "window", mask_off_by_one)
    ),
    "a mask off by one, flipped": (
        "numpy:procedure", 40, lambda patch: patch.setattr(View, "stride", last_one_lost)
    ),
    "a lost rounding": (
        "numpy:procedure", 40,
        lambda p: p.setattr(simplify, "_is_exact_cast", lambda a, b: a.is_float and b.is_float),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_random_graphs_detect_a_deliberate_fault(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, most, inject = FAULTS[fault]
    device = open_device(form)
    inject(monkeypatch)
    took = next((s for s in range(most) if faults_of(Maker(s).graph(), device)), most) + 1
    print(f"{fault}: {took} graphs")
    assert took <= most


def test_failing_graph_is_shrunk_to_a_small_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(autograd.VJP, Op.SIN, wrong_sign)
    device = open_device("numpy")
    graph = next(g for g in (Maker(s).graph() for s in range(10)) if faults_of(g, device))
    small = shrunk(graph, lambda g: any(f.name for f in faults_of(g, device)))
    assert len(small.lines) < 8
    path = tmp_path / "small.py"
    path.write_text(told(small, faults_of(small, device), "device = open_device('numpy')"), "utf-8")
    shown = subprocess.run(
        [sys.executable, path], env=environment(), capture_output=True, text=True, check=True
    )
    assert small.outputs[0] in shown.stdout
    monkeypatch.undo()
    assert not faults_of(small, device)
