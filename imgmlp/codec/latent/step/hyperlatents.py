"""What the entropy network sees of hyperlatents while they are trained, as Tensors.

In whole numbers it is codec/latent/hyperlatents.py that says so.
"""

from __future__ import annotations

from collections.abc import Callable

from imgmlp.codec.latent.model import HYPERLATENTS, NEAREST
from imgmlp.codec.latent.plane import Grid, Plane
from imgmlp.engine import Tensor


def above(
    seen: Tensor, plane: Plane, levels: int, enlarged: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """[hyperlatents, places] of a plane of grids [rows, pitch]: maps of them where other grids are.

    `enlarged` makes maps [c, h, w] of a level out of those of the next coarser one.
    """
    own = [
        seen[g.row : g.row + g.height, g.column : g.column + g.width].unsqueeze(0)
        for g in plane.grids[levels:]
    ]
    whole, coarser = Tensor.zeros(1, 1, 1), own[0]
    for level in range(levels - 1, -1, -1):
        grid, maps = plane.grids[level], list[Tensor]()
        for at, values in zip(HYPERLATENTS, own, strict=True):
            if at <= level:
                maps.append(_thinned(values, 1 << level - at, plane.halo))
        if len(maps) < len(own):
            more = coarser[len(maps) :]
            repeats = level < NEAREST
            maps.append(_repeated(more, grid, plane.halo) if repeats else enlarged(more, level))
        coarser = maps[0] if len(maps) == 1 else Tensor.concat(maps, 0)
        down = grid.row, plane.rows - grid.row - grid.height
        across = grid.column, plane.pitch - grid.column - grid.width
        whole = whole + coarser.pad((0, 0), down, across)
    return whole.reshape(len(own), -1)[:, plane.first : plane.first + plane.places]


def _thinned(maps: Tensor, apart: int, halo: int) -> Tensor:
    """Every so many rows and columns of a finer level's; of a halo, zeros."""
    if apart == 1:
        return maps
    rows, columns = (slice(halo, size - halo if halo else None, apart) for size in maps.shape[1:])
    found = maps[:, rows, columns]
    return found.pad((0, 0), (halo, halo), (halo, halo)) if halo else found


def _repeated(maps: Tensor, grid: Grid, halo: int) -> Tensor:
    """Each value of the next coarser level for 2 x 2 of this one."""
    found = maps.repeat(2, 1).repeat(2, 2)
    return found[:, halo : halo + grid.height, halo : halo + grid.width]
