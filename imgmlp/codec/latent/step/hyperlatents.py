"""Maps of hyperlatents as inputs of the entropy network, in floats for training.

codec/latent/hyperlatents.py computes the same in integers for files.
"""

from __future__ import annotations

from collections.abc import Callable

from imgmlp.codec.latent.model import HYPERLATENT_LEVELS, NEAREST_BELOW_LEVEL
from imgmlp.codec.latent.plane import Grid, Plane
from imgmlp.engine import Tensor


def hyperlatent_maps(
    latents: Tensor, plane: Plane, levels: int, upsample: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """What each position of the other grids sees of the hyperlatents: [hyperlatents, places].

    `latents` is the plane of all grids [rows, pitch]; the hyperlatents stand behind its first
    `levels` grids. `upsample(maps, level)` doubles maps [c, h, w] to the size of that level.
    """
    hyperlatents = [
        latents[g.row : g.row + g.height, g.column : g.column + g.width].unsqueeze(0)
        for g in plane.grids[levels:]
    ]
    # From the coarsest level to the finest, each with a map of every hyperlatent: subsampled to
    # levels coarser than the hyperlatent itself, or doubled from its map at the next coarser level.
    all_maps, coarser = Tensor.zeros(1, 1, 1), hyperlatents[0]
    for level in range(levels - 1, -1, -1):
        grid, maps = plane.grids[level], list[Tensor]()
        for own_level, values in zip(HYPERLATENT_LEVELS, hyperlatents, strict=True):
            if own_level <= level:
                maps.append(_subsampled(values, 1 << level - own_level, plane.halo))
        if len(maps) < len(hyperlatents):
            rest = coarser[len(maps) :]
            repeats = level < NEAREST_BELOW_LEVEL
            maps.append(_repeated(rest, grid, plane.halo) if repeats else upsample(rest, level))
        coarser = maps[0] if len(maps) == 1 else Tensor.concat(maps, 0)
        rows = grid.row, plane.rows - grid.row - grid.height
        columns = grid.column, plane.pitch - grid.column - grid.width
        all_maps = all_maps + coarser.pad((0, 0), rows, columns)
    flat = all_maps.reshape(len(hyperlatents), -1)
    return flat[:, plane.first_coded : plane.first_coded + plane.coded_positions]


def _subsampled(maps: Tensor, stride: int, halo: int) -> Tensor:
    """Every `stride`-th row and column of maps [c, h, w], with zeros for the halo."""
    if stride == 1:
        return maps
    rows, columns = (slice(halo, size - halo if halo else None, stride) for size in maps.shape[1:])
    inner = maps[:, rows, columns]
    return inner.pad((0, 0), (halo, halo), (halo, halo)) if halo else inner


def _repeated(maps: Tensor, grid: Grid, halo: int) -> Tensor:
    """Maps [c, h, w] of the next coarser level, doubled by repetition to the size of a grid."""
    doubled = maps.repeat(2, 1).repeat(2, 2)
    return doubled[:, halo : halo + grid.height, halo : halo + grid.width]
