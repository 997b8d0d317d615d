"""DEBUG prints more to stderr with each level, and changes no result; it checks indices."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import FORMS, MAPPINGS, open_mapping

from imgmlp.engine import AnyDevice, Feeder, Program, Tensor, compile, cond, dtype, loop, nn
from imgmlp.engine.runtime import debug

# Words that the output of each level contains, from 1 on, but not that of lower levels.
WORD_OF_LEVEL = ("launches of", "bytes in use", "RANGE", "__kernel")


@pytest.mark.parametrize(
    ("text", "level"),
    [("", 0), ("0", 0), ("1", 1), (" 3 ", 3), ("4", 4), ("9", 4), ("-1", 0), ("*", 0), ("yes", 0)],
)
def test_debug_level_is_parsed_and_clamped(
    monkeypatch: pytest.MonkeyPatch, text: str, level: int
) -> None:
    monkeypatch.setenv("DEBUG", text)
    assert debug.level() == level


def cube_program(device: AnyDevice) -> tuple[Program, Tensor]:
    """A state that becomes its third matrix power, with one stored intermediate value."""
    state = Tensor(np.ones((3, 3), np.float32), device, name="state")

    def step() -> dict[str, Tensor]:
        state.assign(state @ (state @ state))
        return {}

    return compile(step, device), state


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_each_debug_level_prints_more_and_keeps_results(
    mapping: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = open_mapping(mapping)
    for level in range(5):
        monkeypatch.setenv("DEBUG", str(level))
        program, state = cube_program(device)
        program.run(2)
        assert (state.numpy() == 9**4).all()
        out, err = capsys.readouterr()
        assert not out
        assert ("milliseconds to compile: simplify " in err) == (level > 0)
        assert [word in err for word in WORD_OF_LEVEL] == [level > i for i in range(4)]
        assert ("##" in err) == (level >= 2)  # the chart of the memory plan
        timed = err.count("microseconds, in the first run")
        assert timed == (level > 0 and mapping != "numpy")


def test_debug_output_without_stderr_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    debug.tell("lost")


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("wrong", [5, -1, 2**30])
def test_computed_index_out_of_bounds_is_refused_before_the_step_stores(
    name: str, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checked index was itself gathered from a table of indices."""
    monkeypatch.setenv("DEBUG", "1")
    device = open_mapping(name)
    table, first = np.arange(10.0, dtype=np.float32).reshape(5, 2), np.array([1, 3, 0, 4])
    rows, where, moved = Tensor(table, device), Tensor(first, device), Tensor([0], device)
    program = compile(lambda: {"y": rows.gather(where.gather((where + moved) % 4) + moved)}, device)
    program.run(2)
    expected = table[first[first % 4]]
    assert np.array_equal(program.read("y"), expected)
    moved.write(np.array([wrong], np.int32))
    with pytest.raises(IndexError, match=r"a computed index is .* with rows 0 to 4"):
        program.run()
    assert np.array_equal(program.read("y"), expected)


@pytest.mark.parametrize("name", FORMS)
def test_computed_target_that_is_no_class_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBUG", "1")
    device = open_mapping(name)
    x, target = Tensor(np.zeros((2, 3)), device), Tensor([0, 1], device)
    program = compile(lambda: {"y": nn.nll_loss(x, target + 1)}, device)
    program.run()
    target.write(np.int32([0, 2]))
    with pytest.raises(IndexError, match="nll_loss: a computed target is 3, of classes 0 to 2"):
        program.run()


def test_index_check_uses_the_precision_of_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEBUG", "1")
    device = open_mapping("numpy")
    rows, at = Tensor(np.arange(4.0), device), Tensor(np.ones((1, 1), np.float32), device)
    program = compile(lambda: {"y": rows.gather((at @ at).cast(dtype.i32))}, device, True, "exact")
    assert program._checks is not None
    assert (program._checks.general, program._checks.precision) == (True, "exact")


@pytest.mark.parametrize("name", FORMS)
def test_indices_are_checked_in_loops_and_taken_branches(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop goes one row further with each iteration; the taken branch uses valid rows."""
    monkeypatch.setenv("DEBUG", "1")
    device = open_mapping(name)
    rows, begin = Tensor(np.arange(10.0), device), Tensor(np.int32(0), device)

    def further(i: Tensor, total: Tensor) -> Tensor:
        at = begin + i
        near = cond(at < 8, lambda: rows.gather(at + 2), lambda: rows.gather(at - 8))
        return total + near + loop(2, lambda j, t: t + rows.gather(at + j), total * 0)

    step = {"y": loop(3, further, Tensor(np.float32(0), device))}
    program = compile(lambda: step, device)
    for first in (0, 6):
        begin.write(np.asarray(first, np.int32))
        program.run()
        ats = range(first, first + 3)
        assert program.read("y") == sum((a + 2 if a < 8 else a - 8) + 2 * a + 1 for a in ats)
    begin.write(np.asarray(7, np.int32))
    with pytest.raises(IndexError, match=r"a computed index is 10, of a table .* rows 0 to 9"):
        program.run()


@pytest.mark.parametrize("by", ["write", "send"])
def test_indices_from_the_host_are_bounds_checked(by: str) -> None:
    device = open_mapping("numpy")
    rows, where = Tensor(np.arange(5.0), device), Tensor([[1, 2], [3, 4]], device)
    program = compile(lambda: {"y": rows.gather(where.reshape(4))}, device)
    give = where.write if by == "write" else Feeder(program, where).send
    give(np.array([[0, 1], [2, 3]], np.int32))
    for wrong in (5, -1):
        with pytest.raises(IndexError, match=f"from 0 to 4, and {wrong} is none"):
            give(np.array([[0, 1], [2, wrong]], np.int32))
    program.run()
    assert program.read("y").tolist() == [0, 1, 2, 3]
