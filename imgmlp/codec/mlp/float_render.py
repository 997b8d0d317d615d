"""Renders an .imlp network, or one in training, at any size in floating point.

Results are not exact: devices may differ by one level in some samples. The exact decoder is
`integer_inference`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.mlp import buckets, integer_inference, qat_step
from imgmlp.codec.mlp.network import Network, Shape
from imgmlp.codec.training.chunked import assemble
from imgmlp.engine import AnyDevice, Tensor, compile, dtype

Array = np.ndarray[Any, Any]

Size = tuple[int, int]  # width, height

DECODED_PIXELS = 1 << 15  # of a rendering step


def render(network: Network, original: Size, size: Size, device: AnyDevice) -> Array:
    """The picture at `size` instead of its `original` size, uint8 [height, width, channels]."""
    arrays = [array for layer in network.layers for array in layer.floats()]
    return render_floats(arrays, network.shape, original, size, device)


def render_floats(
    arrays: Sequence[Array], shape: Shape, original: Size, size: Size, device: AnyDevice
) -> Array:
    """The same for parameters that are not rounded, float32 W0, b0, W1, b1 ...."""
    make = partial(_Piece, arrays, shape, original, size)
    return assemble(make, device, size, shape.channels, DECODED_PIXELS)


class _Piece:
    """A step that renders rows x columns pixels anywhere in a picture."""

    def __init__(
        self,
        arrays: Sequence[Array],
        shape: Shape,
        original: Size,
        size: Size,
        device: AnyDevice,
        rows: int,
        columns: int,
    ) -> None:
        self.shape, self.original, self.size = shape, original, size
        self.rows, self.columns = rows, columns
        self.bucket = buckets.decoding_shape(shape, device, math.prod(size))
        flat = np.zeros(self.bucket.parameters, np.float32)
        flat[buckets.parameter_indices(shape, self.bucket)] = np.concatenate(
            [a.ravel() for a in arrays]
        )
        self.flat = Tensor(flat, device, name="parameters")
        features = 2 * self.bucket.frequencies
        self.x, self.y = (
            Tensor(np.zeros((samples, features), np.float32), device, name=name)
            for name, samples in (("x_table", self.columns), ("y_table", self.rows))
        )
        self.program = compile(self._step, device)

    def move_to(self, top: int, left: int) -> None:
        """Load the features of another piece, which may reach past the picture's edge."""
        self.x.write(self._features(0, left, self.columns))
        self.y.write(self._features(1, top, self.rows))

    def _features(self, axis: int, begin: int, count: int) -> Array:
        """float32 [count, 2 * frequencies]: sines, then cosines."""
        samples = self.original[axis]
        positions = (np.arange(begin, begin + count) + 0.5) * (samples / self.size[axis])
        cycles = np.array(integer_inference.frequencies(self.shape.frequencies, samples)) / 2**32
        phases = 2 * np.pi * np.outer(positions, cycles)
        table = np.concatenate([np.sin(phases), np.cos(phases)], axis=1).astype(np.float32)
        padding = 2 * (self.bucket.frequencies - self.shape.frequencies)
        return np.pad(table, ((0, 0), (0, padding)))

    def _step(self) -> dict[str, Tensor]:
        rows, columns, features = self.rows, self.columns, self.x.shape[1]
        across = self.x.reshape(1, columns, features).expand(rows, columns, features)
        down = self.y.reshape(rows, 1, features).expand(rows, columns, features)
        pixels = Tensor.concat([across, down], axis=2).reshape(rows * columns, 2 * features)
        output = qat_step.forward(self.flat, self.bucket, pixels)
        level = ((output + 0.5).maximum(0.0).minimum(1.0) * 255.0 + 0.5).cast(dtype.u8)
        return {"pixels": level.reshape(rows, columns, -1)}
