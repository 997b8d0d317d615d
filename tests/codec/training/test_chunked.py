"""The form of the pieces that pictures are decoded in."""

from __future__ import annotations

import pytest

from imgmlp.codec.training.chunked import FEWEST, LEAST, _corners, _some, common

PIXELS = 1 << 15


def test_pictures_of_different_sizes_have_the_same_pieces() -> None:
    sizes = [(128, 128), (768, 512), (97, 4001), (33, 20), (5000, 17), (1, 999), (2000, 3)]
    assert {common(*size, PIXELS) for size in sizes} == {(128, 256)}


@pytest.mark.parametrize("pixels", [5, 40, LEAST, 1000, PIXELS, 16 * PIXELS])
@pytest.mark.parametrize("size", [(1, 1), (32, 32), (1, 10**6), (10**6, 1), (500, 3), (300, 200)])
def test_no_piece_is_empty_or_too_large(size: tuple[int, int], pixels: int) -> None:
    rows, columns = common(*size, pixels)
    assert 1 <= rows * columns <= pixels


def test_little_of_a_piece_of_thin_pictures_is_wasted() -> None:
    for size in ((10**6, 1), (1, 10**6)):
        rows, columns = common(*size, PIXELS)
        assert min(rows, columns) == 16


def test_pieces_that_stand_for_all_lie_everywhere() -> None:
    corners = _corners((3456, 2304), 128, 256)
    found = _some(corners, PIXELS)
    assert len({*found}) == FEWEST
    assert {(top // 1152, left // 1728) for top, left in found} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert len({top for top, _ in found}) > FEWEST / 2
    assert _some(corners[: FEWEST + 1], PIXELS) == corners[: FEWEST + 1]
