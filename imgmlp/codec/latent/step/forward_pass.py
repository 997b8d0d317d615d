"""The forward pass of a latent model in floats: from latents and networks to errors and bits."""

from __future__ import annotations

from imgmlp.codec.latent.model import MAX_LATENT, MIN_LATENT, ModelShape
from imgmlp.codec.latent.plane import NEIGHBOUR_ROWS, TILE_POSITIONS, Extent, Plane
from imgmlp.codec.latent.step import hyperlatents, operations, upsampling
from imgmlp.codec.latent.step.control import Steering
from imgmlp.codec.latent.step.parameters import Networks, Shape, grouped
from imgmlp.codec.training.perceptron import Activation, RowSample, perceptron
from imgmlp.engine import AnyDevice, Tensor, dtype, nn

# Positions from which on the networks' gradients are of some tiles only, as the host steers. GPUs
# take all tiles, as their lanes advance together.
MIN_SUBSAMPLED_POSITIONS = 2**16


class ForwardPass:
    """The graph of the forward pass; `LatentStep` sets what it reads.

    All grids lie in one plane (codec/latent/plane.py). In a bucket, sizes are known to the masks
    and tables only, so that one program serves all pictures that fit.
    """

    device: AnyDevice
    plane: Plane
    extent: Extent  # of the picture or window that is in the plane
    bucket: tuple[int, int] | None
    shape: ModelShape
    parameter_shapes: Networks[Shape]

    # On the device, of the picture or window in the plane.
    target: Tensor  # samples minus 1/2, [channels, pixels of the plane]
    latent_mask: Tensor  # [rows, pitch], 1 where there is a value, else 0
    own_latent_mask: Tensor  # the same without the halo
    pixel_mask: Tensor  # [pixels of the plane], 1 for pixels of the picture, else 0
    own_pixel_mask: Tensor  # the same without the halo
    grid_begins: Tensor | None  # int32 [grids, 2], of rows and columns; None if they are 0
    grid_ends: Tensor
    tables: dict[tuple[int, int], upsampling.Tables]  # for GPUs, by level and number of maps

    # On the device, constants and what the host steers by.
    is_alpha: Tensor  # [channels], 1 for the last one, else 0
    bicubic_taps: Tensor  # of the upsampling of hyperlatents
    control: Tensor  # the values of Steering
    count: Tensor  # of steps

    @property
    def levels(self) -> int:
        """The number of grids in the pyramid."""
        return self.shape.levels

    @property
    def channels(self) -> int:
        return self.shape.channels

    @property
    def steering(self) -> Steering[Tensor]:
        """The entries of `control` on the device."""
        return Steering(*(self.control[n] for n in range(len(Steering._fields))))

    def _forward(self, latents: Tensor, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The forward pass of a plane of grids [rows, pitch] with networks [parameters]: squared
        errors [channels, pixels of the plane] and bits [latents of the plane]."""
        networks = self._networks(flat)
        zeros = Tensor.zeros(NEIGHBOUR_ROWS, self.plane.pitch)
        framed = Tensor.concat([zeros, latents, zeros], 0)
        latents = framed[NEIGHBOUR_ROWS : NEIGHBOUR_ROWS + self.plane.rows]  # materialised once
        bits = self._bits(framed, latents, networks.entropy)
        samples = self._reconstruction(latents, networks)
        return ((samples - self.target) * self._sample_weights()).square(), bits

    def _networks(self, flat: Tensor) -> Networks[Tensor]:
        """The tensors that a flat array [parameters] holds."""
        return grouped(nn.slices(flat, self.parameter_shapes.tensors), self.parameter_shapes)

    def _sample_weights(self) -> Tensor:
        """1 for samples that count, else 0, [channels or 1, pixels of the plane]: those in the
        picture, and of colours only those under an alpha that is not 0."""
        mask = self.own_pixel_mask.reshape(1, -1)
        if self.channels not in (2, 4):
            return mask
        colours = self.channels - 1
        visible = ((self.target[colours:] + 0.5) * 512.0).minimum(1.0)  # 512 > 255
        return visible.maximum(self.is_alpha.reshape(-1, 1)) * mask

    # --- bits ---

    def _bits(self, framed: Tensor, latents: Tensor, layers: list[Tensor]) -> Tensor:
        """Bits of each coded position, 0 where the plane has no latent: [coded positions].

        `framed` is the plane of latents with NEIGHBOUR_ROWS rows of zeros above and below it.
        """
        plane = self.plane
        contexts = operations.Contexts.apply(framed, plane)
        if self.shape.has_hyperlatents:
            maps = hyperlatents.hyperlatent_maps(
                latents, plane, self.levels, self._upsampled_bicubic
            )
            contexts = Tensor.concat([contexts, maps], 0)
        subsample = self._subsample(plane.coded_positions)
        outputs = perceptron(contexts.permute(1, 0), layers, subsample)  # [coded positions, 2]
        coded = slice(plane.first_coded, plane.first_coded + plane.coded_positions)
        values, mask = (t.reshape(-1)[coded] for t in (latents, self.own_latent_mask))
        return operations.Bits.apply(values, outputs[:, 0], outputs[:, 1]) * mask

    def _subsample(self, rows: int) -> RowSample | None:
        """Which rows of a network's input count in the gradients of its weights: one tile in
        `tile_subsampling`, another one in every step. None if all do."""
        if self.device.lanes == "group" or rows < MIN_SUBSAMPLED_POSITIONS:
            return None
        interval = self.steering.tile_subsampling
        turn = (Tensor.arange(rows) // TILE_POSITIONS).cast(dtype.u32) + self.count
        return (turn % interval.cast(dtype.u32)).eq(0).reshape(rows, 1), interval

    # --- samples ---

    def _reconstruction(self, latents: Tensor, networks: Networks[Tensor]) -> Tensor:
        """The samples that synthesis makes of the grids, [channels, pixels of the plane]."""
        x = self._synthesis_inputs(latents, networks.taps).permute(1, 0)
        mask = self.pixel_mask.reshape(1, -1)
        subsample = self._subsample(self.plane.pixels)
        y = perceptron(x, networks.synthesis, subsample).permute(1, 0) * mask  # [channels, pixels]
        column = (self.channels, 1)
        w, b, w2, b2 = networks.convolutions
        z = operations.Convolution.apply(y, w, self.plane, subsample) + b.reshape(*column)
        y = (y + Activation.apply(z)) * mask
        return y + operations.Convolution.apply(y, w2, self.plane, subsample) + b2.reshape(*column)

    def _synthesis_inputs(self, latents: Tensor, taps: list[Tensor]) -> Tensor:
        """The inputs of synthesis, [inputs, pixels of the plane]: every grid upsampled to the
        picture's size, the finest through a filter as well, and extra grids."""
        rows, positions = self.plane.pixel_rows, self.plane.pixels
        finest, others = latents[:rows].reshape(1, positions), list[Tensor]()
        if self.shape.has_filter:
            others = [operations.Filter.apply(finest, taps[-1], self.plane)]
        if self.shape.extra_grids:
            extra = self.plane.grids[self.levels :]
            others += [latents[g.row : g.row + rows].reshape(1, positions) for g in extra]
        if self.levels == 1:
            return Tensor.concat([finest, *others], 0)
        return Tensor.concat([finest, self._upsampled_pyramid(latents, taps), *others], 0)

    def _upsampled_pyramid(self, latents: Tensor, taps: list[Tensor]) -> Tensor:
        """All grids of the pyramid but the finest, upsampled to its size: [levels - 1, pixels of
        the plane]."""
        grids = [
            latents[g.row : g.row + g.height, g.column : g.column + g.width].reshape(
                1, g.height, g.width
            )
            for g in self.plane.grids[: self.levels]
        ]
        maps = grids[-1]
        for level in range(self.levels - 2, -1, -1):
            maps = self._upsampled(maps, taps[level], level)
            if level:
                maps = Tensor.concat([grids[level], maps], 0)
        count, (height, width) = self.levels - 1, maps.shape[1:]
        right = Tensor.zeros(count, height, self.plane.pitch - width)
        maps = Tensor.concat([maps, right], 2)
        if self.plane.pixel_rows > height:
            below = Tensor.zeros(count, self.plane.pixel_rows - height, self.plane.pitch)
            maps = Tensor.concat([maps, below], 1)
        return maps.reshape(count, self.plane.pixels)

    def _upsampled(self, maps: Tensor, taps: Tensor, level: int) -> Tensor:
        """Maps [c, h, w] of the next coarser level, upsampled to a level's grid."""
        grid, halo = self.plane.grids[level], self.extent.halo
        maps = self._with_repeated_edges(maps, level + 1)
        tables = self.tables[level, maps.shape[0]] if self.tables else None
        return upsampling.upsample(maps, taps, grid.height, grid.width, tables, halo)

    def _upsampled_bicubic(self, maps: Tensor, level: int) -> Tensor:
        """The same for hyperlatents' maps, whose kernel is fixed."""
        return self._upsampled(maps, self.bicubic_taps, level)

    def _with_repeated_edges(self, maps: Tensor, level: int) -> Tensor:
        """Maps [c, h, w] of a level with their edges repeated into the padding of a bucket, unless
        index tables take care of it."""
        for axis in (1, 2) if self.bucket is not None and not self.tables else ():
            at = level, slice(axis - 1, axis)
            begin = None if self.grid_begins is None else self.grid_begins[at]
            maps = upsampling.EdgeReplication.apply(maps, begin, self.grid_ends[at], axis)
        return maps


def clipped(latents: Tensor) -> Tensor:
    """Latents within the bounds of the file format."""
    return latents.maximum(float(MIN_LATENT)).minimum(float(MAX_LATENT))
