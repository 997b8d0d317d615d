"""Numbers are written as people read them, and names so that they order nothing."""

from __future__ import annotations

import io
import os
import sys
import unicodedata
from collections.abc import Callable
from threading import Timer

import pytest

from imgmlp.text import duration, guard_streams, printable, write_data


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (59.96, "1:00"), (60, "1:00"), (125, "2:05"),
     (3599.6, "1:00:00"), (3725, "1:02:05"), (float("nan"), "unknown time")],
)  # fmt: skip
def test_durations_have_the_largest_unit_that_they_fill(seconds: float, text: str) -> None:
    assert duration(seconds) == text


CATEGORIES = {"Cc", "Zl", "Zp"}  # controls, and what ends a line or a paragraph
# Unicode's property Bidi_Control: three marks, and those of embeddings, overrides and isolates.
MARKS = "\u061c\u200e\u200f"
TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def test_nothing_printable_moves_the_cursor_or_turns_the_writing_round() -> None:
    for character in map(chr, range(0x110000)):
        turns = unicodedata.bidirectional(character) in TURNING or character in MARKS
        if turns or unicodedata.category(character) in CATEGORIES:
            assert printable(character).isascii(), ascii(character)
    assert printable("é×Ж אב") == "é×Ж אב"


def print_guarded(data: bytes) -> None:
    guard_streams()
    print(data.decode(), end="", flush=True)


@pytest.mark.skipif(sys.platform == "win32", reason="pipes wait there")
@pytest.mark.parametrize("write", [print_guarded, write_data])
def test_a_slow_reader_is_waited_for_also_where_writes_do_not_wait(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[bytes], None]
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data, found = b"all of it" * 100_000, list[bytes]()  # more than a pipe holds

    def read() -> None:
        with open(reader, "rb") as stream:
            found.append(stream.read())

    with io.TextIOWrapper(io.FileIO(writer, "wb")) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", None)
        slow = Timer(0.1, read)
        slow.start()
        write(data)
    slow.join()
    assert found == [data]
