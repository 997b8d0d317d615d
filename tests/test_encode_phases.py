"""benchmarks/encode_phases.py replaces functions by name: they must exist under these names."""

from __future__ import annotations

import functools
import importlib

from benchmarks import encode_phases


def test_functions_of_all_phases_exist() -> None:
    for module, function in encode_phases.PHASES.values():
        holder = importlib.import_module(module)
        assert callable(functools.reduce(getattr, function.split("."), holder)), function


def test_timeline_records_nested_calls_with_their_depth() -> None:
    timeline = encode_phases.Timeline()
    timeline.calls = [(0.5, 0.25, 1, "inner"), (0.5, 0.002, 1, "brief"), (0.4, 0.5, 0, "outer")]
    lines = timeline.render(1.0).splitlines()
    assert lines == ["  0.400   0.500  outer", "  0.500   0.250    inner", "  1.000          end"]
