"""A decode in plain words is the same with Typer and without, which begins sooner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, Command
from test_public_api import modules_after

from imgmlp.cli import decode, plain, typed
from imgmlp.cli.decode import Outputs
from imgmlp.cli.folders import Request
from imgmlp.errors import ImgmlpError
from imgmlp.terminal import Terminal

FOUND = GOLDEN / "rgb-alpha.imlp"


@pytest.mark.parametrize(
    "asked",
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
def test_plain_words_ask_for_what_typer_would_read(
    asked: list[str], in_process: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Request, Outputs]] = []

    def run(_: Terminal, request: Request, outputs: Outputs) -> int:
        seen.append((request, outputs))
        return 5

    monkeypatch.setattr(decode, "run", run)
    work = plain.work(["decode", *asked])
    assert work is not None
    assert work(Terminal()) == 5
    monkeypatch.setattr(plain, "work", lambda _: None)
    in_process("decode", *asked, check=5)
    assert len(seen) == 2
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    "asked",
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
def test_all_else_is_typers(asked: list[str]) -> None:
    assert plain.work(asked) is None


def test_names_with_a_star_are_typers_where_the_shell_leaves_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "EXPANDS_WILDCARDS", True)
    assert plain.work(["decode", "*.imlp"]) is None


def test_decoding_loads_no_typer(tmp_path: Path) -> None:
    asked = ["imgmlp", "decode", str(FOUND), "-o", str(tmp_path / "a.png")]
    code = f"""
import sys
from imgmlp import cli
cli.ending.leave = sys.exit
sys.argv = {asked!r}
try:
    cli.main()
except SystemExit as end:
    assert end.code == 0
"""
    assert not modules_after(code) & {"typer", "pydantic"}
    assert (tmp_path / "a.png").exists()


def test_a_hint_of_typers_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = ["imgmlp", "decode", "--unheard-of"]
    monkeypatch.setattr(typed.sys, "argv", asked)
    with pytest.raises(ImgmlpError, match="No such option") as told:
        typed.run(Terminal())
    assert told.value.hint == "see `imgmlp decode --help`"
