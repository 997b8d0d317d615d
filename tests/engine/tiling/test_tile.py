"""How a batch is cut into tiles."""

from __future__ import annotations

import pytest

from imgmlp.engine.tiling.tile import tile_batch


@pytest.mark.parametrize(
    ("batch", "groups", "wanted"),
    [
        (512, 4, (64, 8, 4)),  # tiles of the largest size
        (65_536, 264, (64, 1024, 264)),  # uneven tiles would have a 64th fewer rows: not worth it
        (65_536, 700, (47, 1395, 700)),  # a quarter fewer rows are worth it
        (1000, 4, (63, 16, 4)),  # no divisor fits
        (3, 8, (3, 1, 1)),
    ],
)
def test_batch_is_cut_into_equal_tiles_unless_that_costs_an_eighth(
    batch: int, groups: int, wanted: tuple[int, int, int]
) -> None:
    cut = tile_batch(batch, 64, groups)
    assert (cut.rows, cut.tiles, cut.groups) == wanted
    assert cut.rows * cut.tiles >= batch > cut.rows * (cut.tiles - 1)
    assert cut.even == (batch % cut.rows == 0)
