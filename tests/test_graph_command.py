"""`imgmlp graph`: every form of the training step, and its figures as JSON."""

from __future__ import annotations

import json

import pytest
from conftest import Command

from imgmlp.engine.stages import FORMS

SMALL = ("--batch", "50", "--hidden", "8", "--layers", "1", "--features", "8", "--size", "31x24")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("dot", ["digraph", "->", "DOT"]),
        ("nodes", ["BUFFER x_table", "HASH", "GATHER"]),
        ("procedure", ["product", "around DOT", "parameters"]),
        ("memory", ["saves", "#", "f32[50, 8]"]),
        ("uops", ["RANGE", "PRODUCT", "STORE"]),
        ("source", ["__kernel", "lowbias32", "tile_product"]),
    ],
)
def test_each_form_shows_what_it_is(imgmlp: Command, form: str, words: list[str]) -> None:
    assert form in FORMS
    shown = imgmlp("graph", *SMALL, "--form", form).stdout
    for word in words:
        assert word in shown


def test_the_default_step_keeps_its_promises(imgmlp: Command) -> None:
    figures = json.loads(imgmlp("graph", "--json").stdout)
    assert figures["launches"] <= 14
    assert figures["kernels"] <= figures["launches"]
    assert figures["saved"] >= 0.7
    assert figures["saved"] == 1 - figures["arena_bytes"] / figures["intermediate_bytes"]
    assert "14" in imgmlp("graph").stdout


def test_an_unknown_form_is_a_usage_error(imgmlp: Command) -> None:
    assert "error:" in imgmlp("graph", "--form", "picture", check=2).stderr
