"""The shape of the pieces in which pictures are decoded, and the order of their computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from imgmlp.codec.training import chunked
from imgmlp.codec.training.chunked import (
    MAX_USUAL_PIECES,
    MIN_PIECE_PIXELS,
    MIN_SAMPLE_PIECES,
    _corners,
    _sample_of,
    fill,
    shared_piece,
)

PIXELS = 1 << 15


def test_pictures_of_different_sizes_have_the_same_pieces() -> None:
    sizes = [(128, 128), (768, 512), (97, 4001), (33, 20), (5000, 17), (1, 999), (2000, 3)]
    assert {shared_piece(*size, PIXELS) for size in sizes} == {(128, 256)}


@pytest.mark.parametrize("pixels", [5, 40, MIN_PIECE_PIXELS, 1000, PIXELS, 16 * PIXELS])
@pytest.mark.parametrize("size", [(1, 1), (32, 32), (1, 10**6), (10**6, 1), (500, 3), (300, 200)])
def test_pieces_are_neither_empty_nor_too_large(size: tuple[int, int], pixels: int) -> None:
    rows, columns = shared_piece(*size, pixels)
    assert 1 <= rows * columns <= pixels


def test_pieces_of_thin_pictures_are_thin() -> None:
    for size in ((10**6, 1), (1, 10**6)):
        rows, columns = shared_piece(*size, PIXELS)
        assert min(rows, columns) == 16


def test_thin_pictures_of_few_pieces_share_the_usual_piece() -> None:
    assert shared_piece(64 * MAX_USUAL_PIECES, 16, 64 * 64) == (64, 64)
    assert shared_piece(64 * MAX_USUAL_PIECES + 1, 16, 64 * 64) == (16, 256)


def test_sampled_pieces_lie_in_all_parts_of_the_picture() -> None:
    corners = _corners((3456, 2304), 128, 256)
    sample = _sample_of(corners, PIXELS)
    assert len({*sample}) == MIN_SAMPLE_PIECES
    assert {(top // 1152, left // 1728) for top, left in sample} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert len({top for top, _ in sample}) > MIN_SAMPLE_PIECES / 2
    assert _sample_of(corners[: MIN_SAMPLE_PIECES + 1], PIXELS) == corners[: MIN_SAMPLE_PIECES + 1]


class Receiver:
    """Delivers all requested pieces when it is waited for."""

    def __init__(self, program: Any, _names: object, callback: Any) -> None:
        self.program, self.callback, self.waiting = program, callback, list[Any]()

    def send(self, tag: Any) -> None:
        self.waiting.append((tag, self.program.made))
        self.program.most = max(self.program.most, len(self.waiting))

    def wait(self) -> None:
        for tag, made in self.waiting:
            self.callback(tag, {"pixels": made})
        self.waiting.clear()


class Numbered:
    """A piece of 2 x 3 pixels with the number of its position, and its program in one."""

    rows, columns, most, failing = 2, 3, 0, -1

    def __init__(self) -> None:
        self.program, self.events, self.number = self, list[str](), 0

    def move_to(self, top: int, left: int) -> None:
        self.number = top // 2 + left // 3 * 10
        self.events.append(f"move {self.number}")

    def run(self) -> None:
        if self.number == self.failing:
            raise RuntimeError("the device fails")
        self.events.append(f"run {self.number}")
        self.made = np.full((2, 3, 1), self.number, np.uint8)


def test_piece_is_prepared_while_the_previous_one_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All pieces get to their positions, also past the edges, and only one is in flight."""
    monkeypatch.setattr(chunked, "Receiver", Receiver)
    piece, picture = Numbered(), np.full((5, 4, 1), 99, np.uint8)
    fill(picture, piece)  # type: ignore[arg-type]
    assert picture[:, :, 0].tolist() == [
        [0, 0, 0, 10], [0, 0, 0, 10], [1, 1, 1, 11], [1, 1, 1, 11], [2, 2, 2, 12],
    ]  # fmt: skip
    assert piece.most == 1
    numbers = (0, 1, 2, 10, 11, 12)
    assert piece.events == [f"{what} {n}" for n in numbers for what in ("move", "run")]
    piece.failing, picture[:] = 11, 99
    with pytest.raises(RuntimeError, match="the device fails"):
        fill(picture, piece)  # type: ignore[arg-type]
