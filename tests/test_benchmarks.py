"""The scripts in benchmarks/: what type checkers do not see of their options and replacements."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import latent_ablation
from imgmlp.codec.latent.training import latent_trainer

SCRIPTS = sorted(Path(latent_ablation.__file__).parent.glob("*.py"))


def _destination(call: ast.Call) -> str:
    """The attribute in which argparse stores the option of an `add_argument` call."""
    for keyword in call.keywords:
        if keyword.arg == "dest":
            return str(ast.literal_eval(keyword.value))
    names = [str(ast.literal_eval(one)) for one in call.args]
    longest = next((name for name in names if name.startswith("--")), names[0])
    return longest.lstrip("-").replace("-", "_")


def _parsed_names(nodes: Sequence[ast.AST]) -> set[str]:
    """The variables to which a script assigns the result of `parse_args`."""
    return {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign) and "parse_args" in ast.dump(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_options_that_a_script_reads_are_those_that_it_declares(script: Path) -> None:
    nodes = list(ast.walk(ast.parse(script.read_text())))
    declared = {
        _destination(node)
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
    }
    names = _parsed_names(nodes)
    read = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in names
    }
    assert read <= declared
    assert bool(read) == bool(declared)


def test_variants_without_noise_or_with_constant_rates_change_the_trainers_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = [latent_trainer.control(done, 100, 1e-3) for done in (0, 50)]
    assert usual[1].noise_scale > 0
    assert usual[1].latent_lr < usual[0].latent_lr
    changed = {}
    for variant in latent_ablation.variants():
        with monkeypatch.context() as patched:
            for (module, name), value in variant.constants.items():
                patched.setattr(module, name, value)
            changed[variant.name] = latent_trainer.control(50, 100, 1e-3)
    assert changed["no noise"].noise_scale == 0
    assert changed["constant learning rates"].latent_lr == usual[0].latent_lr
