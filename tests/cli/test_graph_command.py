"""`imgmlp graph`: every form of the training step, and its figures as JSON."""

from __future__ import annotations

import json

import pytest
from conftest import OPENCL, Command

from imgmlp.engine.compiler import FORMS

SMALL = ("--batch", "50", "--hidden", "8", "--layers", "1", "--features", "8", "--size", "31x24")


@pytest.mark.parametrize(
    ("form", "words"),
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
def test_each_form_shows_what_it_is(in_process: Command, form: str, words: list[str]) -> None:
    assert form in FORMS
    shown = in_process("graph", *SMALL, "--form", form).stdout
    for word in words:
        assert word in shown


def test_the_default_step_keeps_its_promises(in_process: Command) -> None:
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


def test_times_are_those_of_the_kernels_that_ran(imgmlp: Command) -> None:
    shown = imgmlp(
        "graph", *SMALL, "--form", "times", "--general", "--device", OPENCL["device"]
    ).stdout
    lines = shown.splitlines()
    assert "microseconds" in lines[0]
    launches = [line for line in lines[1:] if "writes" in line]
    assert f"all {len(launches)} launches" in lines[-1]
    assert all(float(line.split()[1]) > 0 for line in launches)
    assert sum("_product" in line or "_fused" in line for line in launches) >= 4


def test_numpy_has_no_kernels_to_time(in_process: Command) -> None:
    assert "NumPy" in in_process("graph", *SMALL, "--form", "times", check=6).stderr


def test_half_precision_is_shown_where_there_are_matrix_units(in_process: Command) -> None:
    done = in_process("graph", *SMALL, "--precision", "half", "--device", "numpy")
    assert "has no matrix units for half precision: using float32" in done.stderr
    assert done.stdout == in_process("graph", *SMALL, "--device", "numpy").stdout


def test_what_the_general_scheduler_gives_has_the_same_figures(in_process: Command) -> None:
    general = in_process("graph", *SMALL, "--json", "--general").stdout
    assert (
        json.loads(general).keys()
        == json.loads(in_process("graph", *SMALL, "--json").stdout).keys()
    )


def test_debug_shows_the_step_on_stderr_and_leaves_stdout_alone(in_process: Command) -> None:
    done = in_process("graph", *SMALL, "--json", env={"DEBUG": "1"})
    assert done.stdout == in_process("graph", *SMALL, "--json").stdout
    assert "writes" in done.stderr


def test_an_unknown_form_is_a_usage_error(in_process: Command) -> None:
    assert "error:" in in_process("graph", "--form", "picture", check=2).stderr


def test_figures_have_no_other_form(in_process: Command) -> None:
    assert "--form" in in_process("graph", *SMALL, "--json", "--form", "dot", check=2).stderr
