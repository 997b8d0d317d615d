"""Hyperlatents: grids that synthesis does not see, as contexts of the entropy network only.

They are coded before the others, so that all of these may be told by the one above each of them.
For latent_ablation.py, which says what they are worth; files have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import BICUBIC
from imgmlp.codec.latent.plane import REACH, Extent, Grid
from imgmlp.codec.latent.training import latent_step, operations
from imgmlp.codec.latent.training.latent_step import LatentStep
from imgmlp.codec.training.perceptron import perceptron
from imgmlp.engine import Tensor, optim

SCALES = (4, 5, 6)  # of 1/16, 1/32 and 1/64 of the picture
WEIGHT_BITS = 7  # that a file would have for one, about
STEP = 2.0**-6  # of these


class _Extent(Extent):
    """What is behind the picture's own grids are hyperlatents."""

    def span(self, axis: int, level: int, halo: int = 0) -> tuple[int, int]:
        own = len(self.plane.grids) - len(SCALES)
        return super().span(axis, SCALES[level - own] if level >= own else level, halo)


class Hyperlatents(LatentStep):
    """A step of a whole picture of at least 7 grids that has them as well."""

    smooth = False  # whether finer grids see them enlarged as maps are, not the nearest one
    direct = False  # whether they move means and scales themselves, past the network

    def _first_extent(self) -> Extent:
        extent = super()._first_extent()
        plane, near = extent.plane, extent.plane.grids[SCALES[0]]
        row, column, grids = near.row + near.height + REACH, near.column, list(plane.grids)
        for scale in SCALES:  # below grids of the same widths, where nothing is
            grid = plane.grids[scale]
            grids.append(Grid(grid.height, grid.width, row, column))
            column += grid.width + REACH
        wide = replace(plane, grids=tuple(grids))
        return _Extent(wide, extent.picture, extent.corner, extent.size)

    def _frame(self) -> None:
        super()._frame()
        self.bicubic = Tensor(np.float32(BICUBIC), self.device, name="bicubic")
        self.enlarging = dict[operations.Key, Tensor]()
        self.hyper = self.plane.grids[self.levels :]
        self.plane = replace(self.plane, grids=self.plane.grids[: self.levels])
        drawn = np.random.Generator(np.random.PCG64(self.seed)).standard_normal(
            (len(SCALES), 2 if self.direct else self.entropy_shapes[0][1])
        )
        self.beside = Tensor((0.1 * drawn).astype(np.float32), self.device, name="beside")

    def _optimizers(self) -> tuple[optim.Adam, Any]:
        rest = self.control[5], latent_step.BETAS, self.epsilon
        self.adam_beside = optim.Adam([self.beside], *rest)
        return super()._optimizers()

    def _moving(self) -> dict[str, Tensor]:
        others = [self.beside, *self.adam_beside.state()]
        return super()._moving() | {f"beside_{n}": each for n, each in enumerate(others)}

    def _step(self) -> dict[str, Tensor]:
        """As without them, and their weights moved too."""
        price, scale = self.control[6], self.control[8]
        seen, slope = self._quantised()
        error, bits = self._forward(seen, self.flat)
        loss = (error * (1 / self.channels) + bits * price) * scale
        by_seen, slopes, by_beside = loss.gradient([seen, self.flat, self.beside])
        by_flat = slopes * (1.0 / scale) + self._by_weight_bits() * (price * self.control[10])
        larger = self.control[11]
        self.adam_latents.apply([by_seen * (larger / scale) * slope])
        norm, most = by_flat.square().sum().sqrt(), self.control[9]
        clipped = larger * most / norm.maximum(most)
        self.adam.apply([by_flat * clipped])
        self.adam_beside.apply([by_beside * (clipped / scale)])
        self.count.assign(self.count + 1)
        return {"error": error, "bits": bits, "slopes": slopes}

    def _bits(self, framed: Tensor, seen: Tensor, layers: list[Tensor]) -> Tensor:
        contexts = operations.Contexts.apply(framed, self.plane)
        above = self._above(seen)
        if self.direct:
            found = perceptron(contexts.permute(1, 0), layers) + above.permute(1, 0) @ self.beside
        else:
            contexts = Tensor.concat([contexts, above], 0)
            first = Tensor.concat([layers[0], self.beside], 0)
            found = perceptron(contexts.permute(1, 0), [first, *layers[1:]])
        values, own = (
            each.reshape(-1)[self.plane.first : self.plane.first + self.plane.places]
            for each in (seen, self.own)
        )
        bits = operations.Bits.apply(values, found[:, 0], found[:, 1])
        return (bits * own).sum()

    def _above(self, seen: Tensor) -> Tensor:
        """[3, places]: of every grid the hyperlatents above each value, none of hyperlatents."""
        own = [seen[g.row : g.row + g.height, g.column : g.column + g.width] for g in self.hyper]
        found = dict[int, Tensor]()
        for level in range(self.levels - 1, -1, -1):
            there = [n for n, scale in enumerate(SCALES) if scale <= level]
            maps = []
            for n in there:
                apart = 1 << (level - SCALES[n])
                maps.append(own[n][::apart, ::apart].unsqueeze(0))
            if len(there) < len(SCALES):
                maps.append(self._enlarged(found[level + 1][len(there) :], level))
            found[level] = Tensor.concat(maps, 0)
        return self._in_plane(found)

    def _enlarged(self, maps: Tensor, level: int) -> Tensor:
        """Maps [c, h, w] of the next coarser grid, as large as this one."""
        grid = self.plane.grids[level]
        c, h, w = maps.shape
        if not self.smooth:
            return maps.repeat(2, 1).repeat(2, 2)[:, : grid.height, : grid.width]
        if self.device.lanes == "group":
            tables = operations.tables_for(c, h, w, grid.height, grid.width)
            self.enlarging |= {
                sizes: Tensor(values, self.device, name=f"takes {sizes}")
                for sizes, values in tables.items()
            }
        size = grid.height, grid.width
        return operations.upsampled(maps, self.bicubic, *size, self.enlarging)

    def _in_plane(self, maps: dict[int, Tensor]) -> Tensor:
        """Maps [3, h, w] of every grid, where the grids are."""
        plane, whole = self.plane, Tensor.zeros(1, 1, 1)
        for level, grid in enumerate(plane.grids):
            down = grid.row, plane.rows - grid.row - grid.height
            across = grid.column, plane.pitch - grid.column - grid.width
            whole = whole + maps[level].pad((0, 0), down, across)
        first = self.plane.first
        return whole.reshape(len(SCALES), -1)[:, first : first + self.plane.places]

    def write_grids(self, grids: Sequence[Any]) -> None:
        """All of them, or those that synthesis sees: the others begin from zero."""
        known = len(grids) - self.levels
        nothing = [np.zeros((grid.height, grid.width)) for grid in self.hyper[known:]]
        super().write_grids([*grids, *nothing])

    def finish(self) -> float:
        """Round the weights that no file has yet; returns their bits."""
        self.beside.write(np.rint(self.beside.numpy() / STEP) * np.float32(STEP))
        return float(WEIGHT_BITS * self.beside.numpy().size)
