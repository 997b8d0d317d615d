"""What DEBUG shows: more with each level, on stderr, and nothing that changes a result."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import FORMS, MAPPINGS, open_mapping

from imgmlp.engine import AnyDevice, Feeder, Program, Tensor, compile
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


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("wrong", [5, -1, 2**30])
def test_a_computed_index_that_is_no_row_is_refused_before_it_is_used(
    name: str, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that came from a table itself; nothing is stored then."""
    monkeypatch.setenv("DEBUG", "1")
    device = open_mapping(name)
    table, first = np.arange(10.0, dtype=np.float32).reshape(5, 2), np.array([1, 3, 0, 4])
    rows, where, moved = Tensor(table, device), Tensor(first, device), Tensor([0], device)
    program = compile(lambda: {"y": rows.gather(where.gather((where + moved) % 4) + moved)}, device)
    program.run(2)
    wanted = table[first[first % 4]]
    assert np.array_equal(program.read("y"), wanted)
    moved.write(np.array([wrong], np.int32))
    with pytest.raises(IndexError, match=r"a computed index is .* with rows 0 to 4"):
        program.run()
    assert np.array_equal(program.read("y"), wanted)


@pytest.mark.parametrize("by", ["write", "send"])
def test_indices_from_the_host_are_rows_of_what_they_gather_from(by: str) -> None:
    device = open_mapping("numpy")
    rows, where = Tensor(np.arange(5.0), device), Tensor([[1, 2], [3, 4]], device)
    program = compile(lambda: {"y": rows.gather(where.reshape(4))}, device)
    give = where.write if by == "write" else Feeder(program, where).send
    give(np.array([[0, 1], [2, 3]], np.int32))
    for wrong in (5, -1):
        with pytest.raises(IndexError, match=f"5 rows, and {wrong} is none"):
            give(np.array([[0, 1], [2, wrong]], np.int32))
    program.run()
    assert program.read("y").tolist() == [0, 1, 2, 3]
