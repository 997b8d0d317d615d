"""Numbers that nobody chooses are those of the presets, and help and docstrings show these."""

import re

import pytest
from conftest import Command
from test_public_api import HEAVY, modules_after

import imgmlp as package
from imgmlp.codec.float_mlp.config import PRESETS
from imgmlp.codec.float_mlp.presets import NUMBERS, usual


def test_presets_have_their_numbers() -> None:
    assert {*NUMBERS} == {*PRESETS}
    for name, numbers in NUMBERS.items():
        assert vars(PRESETS[name]) | vars(numbers) == vars(PRESETS[name])


def test_what_differs_in_another_preset_is_shown_with_its_name() -> None:
    assert usual("steps") == "[default: 10000]"
    assert usual("batch") == "[default: 3072; --preset seed: 512]"


def test_showing_them_loads_nothing_heavy() -> None:
    assert not modules_after("import imgmlp.codec.float_mlp.presets") & {*HEAVY}


@pytest.mark.parametrize("command", ["train", "graph"])
def test_help_shows_the_numbers_of_every_preset(in_process: Command, command: str) -> None:
    shown = " ".join(in_process(command, "--help", env={"COLUMNS": "80"}).stdout.split())
    options = {part.split()[0]: part for part in re.split(r" --(?=\w+ [A-Z])", shown)}
    for name in {"train": vars(NUMBERS["default"]), "graph": ["batch", "hidden", "layers"]}[
        command
    ]:
        assert usual(name) in options[name], name


def test_the_docstring_of_train_tells_them() -> None:
    told = " ".join((package.train.__doc__ or "").split())
    usual, seed = re.split(r'; "seed",', told[told.index('"default" has') :], maxsplit=1)
    for name in ("steps", "batch", "lr", "layers", "hidden", "features", "seed"):
        assert re.search(rf"\b{getattr(NUMBERS['default'], name)}\b", usual), name
    differing = vars(NUMBERS["seed"]).items() - vars(NUMBERS["default"]).items()
    assert differing
    for name, value in differing:
        assert f"{name} of {value}" in seed
