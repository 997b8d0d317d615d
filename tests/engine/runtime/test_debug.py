"""What DEBUG shows: more with each level, on stderr, and nothing that changes a result."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping

from imgmlp.engine import AnyDevice, Program, Tensor, compile
from imgmlp.engine.runtime import debug

# What a level shows and no level below it does.
WORDS = ("launches of", "bytes in use", "RANGE", "__kernel")


@pytest.mark.parametrize(
    ("text", "level"),
    [("", 0), ("0", 0), ("1", 1), (" 3 ", 3), ("4", 4), ("9", 4), ("-1", 0), ("*", 0), ("yes", 0)],
)
def test_the_level_is_a_small_number_or_nothing(
    monkeypatch: pytest.MonkeyPatch, text: str, level: int
) -> None:
    monkeypatch.setenv("DEBUG", text)
    assert debug.level() == level


def cube(device: AnyDevice) -> tuple[Program, Tensor]:
    """A state that becomes its third power, with one value that is kept on the way."""
    state = Tensor(np.ones((3, 3), np.float32), device, name="state")

    def step() -> dict[str, Tensor]:
        state.assign(state @ (state @ state))
        return {}

    return compile(step, device), state


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_each_level_shows_more_and_the_step_does_the_same(
    mapping: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = open_mapping(mapping)
    for level in range(5):
        monkeypatch.setenv("DEBUG", str(level))
        program, state = cube(device)
        program.run(2)
        assert (state.numpy() == 9**4).all()
        out, err = capsys.readouterr()
        assert not out
        assert ("milliseconds to compile: simplify " in err) == (level > 0)
        assert [word in err for word in WORDS] == [level > i for i in range(4)]
        assert ("##" in err) == (level >= 2)  # the picture of the memory plan
        timed = err.count("microseconds, in the first run")
        assert timed == (level > 0 and mapping != "numpy")


def test_nothing_is_shown_without_a_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    debug.tell("lost")
