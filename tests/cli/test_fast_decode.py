"""Simple `decode` commands, which start sooner because they run without Typer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, Command
from test_public_api import modules_after

from imgmlp.cli import decode, fast_decode, typer_runner
from imgmlp.cli.decode import Outputs
from imgmlp.cli.folders import Request
from imgmlp.errors import ImgmlpError
from imgmlp.terminal import Terminal

COMPACT = GOLDEN / "rgb-alpha.imlp"


@pytest.mark.parametrize(
    "arguments",
    [
        ["a.imlp"],
        ["a.imlp", "b.npz", "folder"],
        ["-"],
        ["./-a.imlp", "-o", "-"],
        ["--force", "a.imlp", "--output", "b.png"],
        ["-o", "b.jpg", "a.imlp", "--force", "--force"],
        ["-o", "b.png", "gone.imlp", "é\udcff.imlp"],
    ],
)
def test_simple_decode_is_parsed_as_typer_parses_it(
    arguments: list[str], in_process: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Request, Outputs]] = []

    def run(_: Terminal, request: Request, outputs: Outputs) -> int:
        calls.append((request, outputs))
        return 5

    monkeypatch.setattr(decode, "run", run)
    command = fast_decode.parse(["decode", *arguments])
    assert command is not None
    assert command(Terminal()) == 5
    monkeypatch.setattr(fast_decode, "parse", lambda _: None)
    in_process("decode", *arguments, check=5)
    assert len(calls) == 2
    assert calls[0] == calls[1]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["verify", "a.imlp"],
        ["decode"],
        ["decode", "--help"],
        ["decode", "--force"],
        ["decode", "a.imlp", "-o"],
        ["decode", "a.imlp", "-o", "--force"],
        ["decode", "a.imlp", "-o", "--"],
        ["decode", "a.imlp", "-o", "b.png", "-o", "c.png"],
        ["decode", "a.imlp", "-ob.png"],
        ["decode", "a.imlp", "--output=b.png"],
        ["decode", "a.imlp", "--scale", "2"],
        ["decode", "--", "-a.imlp"],
        ["decode", "-q", "a.imlp"],
    ],
)
def test_other_arguments_are_left_to_typer(arguments: list[str]) -> None:
    assert fast_decode.parse(arguments) is None


def test_wildcards_are_left_to_typer_on_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fast_decode, "EXPANDS_WILDCARDS", True)
    assert fast_decode.parse(["decode", "*.imlp"]) is None


def test_simple_decode_does_not_import_typer_or_pydantic(tmp_path: Path) -> None:
    arguments = ["imgmlp", "decode", str(COMPACT), "-o", str(tmp_path / "a.png")]
    code = f"""
import sys
from imgmlp import cli
cli.ending.leave = sys.exit
sys.argv = {arguments!r}
try:
    cli.main()
except SystemExit as end:
    assert end.code == 0
"""
    assert not modules_after(code) & {"typer", "pydantic"}
    assert (tmp_path / "a.png").exists()


def test_hint_of_unknown_option_names_the_commands_help(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: list[Any] = ["imgmlp", "decode", "--unheard-of"]
    monkeypatch.setattr(typer_runner.sys, "argv", arguments)
    with pytest.raises(ImgmlpError, match="No such option") as error:
        typer_runner.run(Terminal())
    assert error.value.hint == "see `imgmlp decode --help`"
