"""`imgmlp graph`: every form of the training step, and its figures as JSON."""

from __future__ import annotations

import json

import pytest
from conftest import OPENCL, Command

from imgmlp.engine.compiler import FORMS

SMALL = ("--batch", "50", "--hidden", "8", "--layers", "1", "--features", "8", "--size", "31x24")


@pytest.mark.parametrize(
    ("form", "terms"),
    [
        ("dot", ["digraph", "->", "DOT"]),
        ("nodes", ["BUFFER x_table", "HASH", "GATHER"]),
        ("tree", ["BUFFER parameters", "  ", " Intermediate"]),
        ("procedure", ["product", "around DOT", "parameters"]),
        ("memory", ["saves", "#", "partial_sums f32["]),
        ("uops", ["RANGE", "PRODUCT", "STORE"]),
        ("source", ["__kernel", "lowbias32", "tile_product"]),
    ],
)
def test_each_form_of_graph_contains_its_terms(
    in_process: Command, form: str, terms: list[str]
) -> None:
    assert form in FORMS
    shown = in_process("graph", *SMALL, "--form", form).stdout
    for word in terms:
        assert word in shown


def test_default_step_stays_within_launch_and_memory_limits(in_process: Command) -> None:
    figures = json.loads(in_process("graph", "--json").stdout)
    assert figures["launches"] <= 5
    assert figures["kernels"] <= figures["launches"]
    assert figures["saved"] >= 0.7
    assert figures["saved"] == 1 - figures["arena_bytes"] / figures["intermediate_bytes"]
    assert figures["note"].startswith("block: 3072 rows in ")
    assert "3072 rows in" in in_process("graph").stdout
    general = json.loads(in_process("graph", "--json", "--general").stdout)
    assert general["launches"] <= 14
    assert general["saved"] >= 0.7


def test_times_form_lists_every_launch(imgmlp: Command) -> None:
    shown = imgmlp(
        "graph", *SMALL, "--form", "times", "--general", "--device", OPENCL["device"]
    ).stdout
    lines = shown.splitlines()
    assert "microseconds" in lines[0]
    launches = [line for line in lines[1:] if "writes" in line]
    assert f"all {len(launches)} launches" in lines[-1]
    assert all(float(line.split()[1]) > 0 for line in launches)
    assert sum("_product" in line or "_fused" in line for line in launches) >= 4


def test_times_form_is_refused_on_numpy(in_process: Command) -> None:
    assert "NumPy" in in_process("graph", *SMALL, "--form", "times", check=6).stderr


def test_half_precision_without_matrix_units_falls_back_to_float32(in_process: Command) -> None:
    done = in_process("graph", *SMALL, "--precision", "half", "--device", "numpy")
    assert "has no matrix units for half precision: using float32" in done.stderr
    assert done.stdout == in_process("graph", *SMALL, "--device", "numpy").stdout


def test_general_schedule_has_the_same_figures_in_json(in_process: Command) -> None:
    general = in_process("graph", *SMALL, "--json", "--general").stdout
    assert (
        json.loads(general).keys()
        == json.loads(in_process("graph", *SMALL, "--json").stdout).keys()
    )


def test_debug_prints_the_step_to_stderr_only(in_process: Command) -> None:
    done = in_process("graph", *SMALL, "--json", env={"DEBUG": "1"})
    assert done.stdout == in_process("graph", *SMALL, "--json").stdout
    assert "writes" in done.stderr


def test_unknown_form_is_a_usage_error(in_process: Command) -> None:
    assert "error:" in in_process("graph", "--form", "picture", check=2).stderr


def test_json_with_another_form_is_refused(in_process: Command) -> None:
    assert "--form" in in_process("graph", *SMALL, "--json", "--form", "dot", check=2).stderr
