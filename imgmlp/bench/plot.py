"""Plots the results of `imgmlp bench kernels` with matplotlib, an optional dependency."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, BinaryIO

from imgmlp.bench.kernels import COPY, Point

LINE_STYLES = {"imgmlp": "o-", "NumPy": "s-", "PyTorch": "^-", COPY: "k--"}


def save(points: Sequence[Point], title: str, stream: BinaryIO, kind: str) -> None:
    """Write a file with a panel for each case, speed over size. `kind` is png or svg."""
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    pyplot: Any = import_module("matplotlib.pyplot")
    cases = list(dict.fromkeys(p.case for p in points))
    figure, axes = pyplot.subplots(1, len(cases), figsize=(4 * len(cases), 3.6), squeeze=False)
    for case, panel in zip(cases, axes[0], strict=True):
        own = [p for p in points if p.case is case]
        for name in own[0].seconds:
            speeds = [p.speed(name) for p in own]
            panel.plot([p.side for p in own], speeds, LINE_STYLES.get(name, "x-"), label=name)
        panel.set(title=case.name, xlabel="side of the matrix", ylabel=case.unit, ylim=(0, None))
        panel.set_xscale("log", base=2)
        panel.grid(alpha=0.3)
    axes[0][0].legend()
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(stream, format=kind, dpi=120)
    pyplot.close(figure)
