"""The way into the command: a plain look at a file loads little, all else is the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import conftest
import pytest
from conftest import Command, environment
from test_public_api import HEAVY, modules_after

from imgmlp import __main__ as entry
from imgmlp.codec.decoder import open_stored

GOLDEN = conftest.GOLDEN / "rgb-alpha.imlp"


@pytest.mark.parametrize("option", ["", "--json"])
def test_a_look_at_a_file_loads_neither_numpy_nor_the_command_line(option: str) -> None:
    arguments = [word for word in ("imgmlp", "info", option, str(GOLDEN)) if word]
    code = f"import sys\nfrom imgmlp.__main__ import main\nsys.argv = {arguments!r}\nmain()"
    assert not modules_after(code) & {*HEAVY, "typer", "rich", "pydantic"}


def test_nothing_is_loaded_before_ctrl_c_is_heeded() -> None:
    """As long as something is, Ctrl-C is Python's, which prints a traceback."""
    code = "import os, sys; before = {*sys.modules}; from imgmlp.__main__ import main\n"
    code += "print(*sorted({*sys.modules} - before))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["imgmlp", "imgmlp.__main__"]


def test_it_prints_what_the_command_line_would(imgmlp: Command) -> None:
    plain, longer = (imgmlp("info", *more, GOLDEN).stdout for more in ([], ["--quiet"]))
    assert plain == longer
    assert plain.startswith("format    imgmlp-compact")
    found = json.loads(imgmlp("info", GOLDEN, "--json").stdout)
    assert found == open_stored(GOLDEN).facts


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["info"],
        ["info", "--help"],
        ["info", "-v", str(GOLDEN)],
        ["info", str(GOLDEN), str(GOLDEN)],
        ["info", str(GOLDEN), "--json", "--json"],
        ["verify", str(GOLDEN)],
        ["info", "missing.imlp"],
        ["info", __file__],
    ],
)
def test_all_else_is_left_to_the_command_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.info_output(arguments) is None
    assert capsys.readouterr() == ("", "")


def test_a_shell_that_completes_is_answered_by_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(entry.COMPLETION_VARIABLE, "complete_bash")
    assert entry.info_output(["info", str(GOLDEN)]) is None


def test_errors_are_told_as_ever(imgmlp: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.imlp"
    path.write_bytes(GOLDEN.read_bytes()[:-1])
    done = imgmlp("info", path, check=4)
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {path}: truncated")
