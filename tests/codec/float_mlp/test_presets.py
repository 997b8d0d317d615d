"""The numbers of the presets, which are the defaults, and their texts in help and docstrings."""

import re

import pytest
from conftest import Command
from test_public_api import HEAVY, modules_after

import imgmlp as package
from imgmlp.codec.float_mlp.config import PRESETS
from imgmlp.codec.float_mlp.presets import NUMBERS, usual


def test_light_numbers_equal_those_of_the_presets() -> None:
    assert {*NUMBERS} == {*PRESETS}
    for name, numbers in NUMBERS.items():
        assert vars(PRESETS[name]) | vars(numbers) == vars(PRESETS[name])


def test_default_text_shows_other_presets_only_if_they_differ() -> None:
    assert usual("steps") == "[default: 10000]"
    assert usual("batch") == "[default: 3072; --preset seed: 512]"


def test_importing_preset_numbers_loads_no_heavy_module() -> None:
    assert not modules_after("import imgmlp.codec.float_mlp.presets") & {*HEAVY}


@pytest.mark.parametrize("command", ["train", "graph"])
def test_help_shows_the_numbers_of_every_preset(in_process: Command, command: str) -> None:
    help_text = " ".join(in_process(command, "--help", env={"COLUMNS": "80"}).stdout.split())
    options = {part.split()[0]: part for part in re.split(r" --(?=\w+ [A-Z])", help_text)}
    for name in {"train": vars(NUMBERS["default"]), "graph": ["batch", "hidden", "layers"]}[
        command
    ]:
        assert usual(name) in options[name], name


def test_docstring_of_train_lists_the_numbers_of_the_presets() -> None:
    docstring = " ".join((package.train.__doc__ or "").split())
    presets = docstring[docstring.index('preset "default" has') :]
    usual, seed = presets.split('preset "seed"', maxsplit=1)
    for name in ("steps", "batch", "lr", "layers", "hidden", "features", "seed"):
        assert re.search(rf"\b{getattr(NUMBERS['default'], name)}\b", usual), name
    differing = vars(NUMBERS["seed"]).items() - vars(NUMBERS["default"]).items()
    assert differing
    for name, value in differing:
        assert f"{name} of {value}" in seed
