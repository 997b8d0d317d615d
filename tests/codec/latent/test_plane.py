"""The plane that holds all latent grids, and the sides of its buckets."""

from __future__ import annotations

import numpy as np
import pytest

from imgmlp.codec.latent.model import NEIGHBOUR_RADIUS, default_levels
from imgmlp.codec.latent.plane import MIN_SIDE, SIDE_MULTIPLE, Plane, bucket_side


def test_bucket_sides_are_few_and_little_larger_than_pictures() -> None:
    buckets = {side: bucket_side(side) for side in range(1, 1025)}
    for side, bucket in buckets.items():
        assert side <= bucket < side + SIDE_MULTIPLE
        assert side <= MIN_SIDE or bucket < 2 * side
    assert len(set(buckets.values())) < 20


@pytest.mark.parametrize("size", [(1, 40), (64, 64), (33, 70), (512, 768)])
@pytest.mark.parametrize("halo", [0, 4])
@pytest.mark.parametrize("extra", [0, 2])
def test_grids_in_a_plane_are_surrounded_by_zeros(
    size: tuple[int, int], halo: int, extra: int
) -> None:
    plane = Plane.of(*size, default_levels(*size), halo, (0,) * extra)
    assert [grid.level for grid in plane.grids[len(plane.grids) - extra :]] == [0] * extra
    for grid in plane.grids:
        if grid.level == 0:  # it is read like an upsampled map, in the columns of pixels
            assert grid.column == 0
            assert grid.row + plane.pixel_rows <= plane.rows
    owners = np.zeros((plane.rows + NEIGHBOUR_RADIUS, plane.pitch + NEIGHBOUR_RADIUS), int)
    for grid in plane.grids:
        row, column = grid.row + NEIGHBOUR_RADIUS, grid.column + NEIGHBOUR_RADIUS
        owners[row : row + grid.height, column : column + grid.width] += 1
    for grid in plane.grids:
        row, column = grid.row + NEIGHBOUR_RADIUS, grid.column + NEIGHBOUR_RADIUS
        around = owners[
            row - NEIGHBOUR_RADIUS : row + grid.height,
            column - NEIGHBOUR_RADIUS : column + grid.width + NEIGHBOUR_RADIUS,
        ]
        assert around.sum() == grid.height * grid.width
        assert column + grid.width <= plane.pitch  # the rest of a row is zero as well
    assert owners.max() == 1


def test_plane_of_a_tall_window_is_as_narrow_as_its_finest_grid() -> None:
    halo = 4
    high, square = (Plane.of(*size, 6, halo) for size in ((512, 32), (256, 256)))
    assert high.pitch == 48  # 32 + 2 * 4 + NEIGHBOUR_RADIUS, rounded up to PITCH_MULTIPLE
    assert {grid.column for grid in high.grids} == {0}
    assert len({grid.column for grid in square.grids}) > 1
