"""Every deliberate failure has an exit code of its own and carries advice."""

from __future__ import annotations

import inspect
import re

import pytest

from imgmlp import errors
from imgmlp.cli.commands import app
from imgmlp.errors import ImgmlpError, OutOfMemoryError, problem_of

EXIT_CODES = {
    "ImgmlpError": 1,
    "TrainingError": 1,
    "UsageError": 2,
    "PictureError": 3,
    "FormatError": 4,
    "TargetError": 5,
    "DeviceError": 6,
    "OutOfMemoryError": 7,
    "OutputError": 8,
    "Interrupted": 130,
}
CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
KINDS = [kind for kind in CLASSES if not issubclass(kind, Warning)]


def test_exit_codes_are_those_that_are_promised() -> None:
    assert {kind.__name__: kind.exit_code for kind in KINDS} == EXIT_CODES


def test_the_help_names_every_exit_code() -> None:
    assert app.info.epilog is not None
    named = {int(code) for code in re.findall(r"\d+", app.info.epilog)}
    assert named == {0, *EXIT_CODES.values()}


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_one_line_and_a_hint(kind: type[ImgmlpError]) -> None:
    error = kind("what is wrong", hint="what to do")
    assert (str(error), error.hint) == ("what is wrong", "what to do")
    assert isinstance(error, ImgmlpError)
    assert not isinstance(error, OSError | ValueError)


def test_only_what_the_system_says_of_no_file_is_a_working_folder_that_is_gone() -> None:
    gone = problem_of(FileNotFoundError(2, "No such file or directory"))
    assert "current folder was removed" in str(gone)
    for other in (FileNotFoundError("no such driver"), FileNotFoundError(2, "No such", "a.png")):
        assert "current folder" not in str(problem_of(other))


def test_a_module_that_finds_no_memory_is_a_lack_of_memory() -> None:
    told = "/lib/a.so: failed to map segment from shared object: Cannot allocate memory"
    assert problem_of(ImportError(told)).exit_code == OutOfMemoryError.exit_code
    assert problem_of(ImportError("no module named a")).exit_code == 1
