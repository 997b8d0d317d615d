"""From latents to the picture, in whole numbers: the same bits on every device.

Part of the file format (docs/format-imlp.md). Values and sums fit in 32 bits
(`model.check_networks` proves it). Products of matrices run in float32, the fastest that every
device has, in two parts: the lower bits of the values and the rest, whose sums stay below 2**24
and so are exact, in whatever order they are added up.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import LIMIT, PIXEL_BITS, VALUE_BITS, LatentModel, Quantized
from imgmlp.codec.latent.upsampling import Span, upsample
from imgmlp.codec.training.chunked import assemble
from imgmlp.engine import AnyDevice, Tensor, compile, dtype

Array = np.ndarray[Any, Any]

ONE = 1 << VALUE_BITS
PIXELS_AT_ONCE = 1 << 14
HALO = 2  # pixels around a piece that its convolutions see
_LOW_BITS = 9  # of a value's 19 with its sign


def synthesize(model: LatentModel, device: AnyDevice) -> Array:
    """uint8 [height, width, channels]: the picture."""
    shape = model.shape
    size = shape.width, shape.height
    return assemble(partial(_Piece, model), device, size, shape.channels, PIXELS_AT_ONCE)


class _Piece:
    """A step that makes rows x columns pixels anywhere in a picture."""

    def __init__(self, model: LatentModel, device: AnyDevice, rows: int, columns: int) -> None:
        self.model, self.networks, self.device = model, model.networks, device
        self.rows, self.columns = rows, columns
        around = (rows + 2 * HALO, columns + 2 * HALO)
        self.values = Tensor(np.zeros((*around, model.shape.levels), np.int32), device, name="maps")
        self.inside = Tensor(np.zeros((*around, 1), np.int32), device, name="inside")
        self.scales = self._scales()
        self.program = compile(self._step, device, precision="exact")

    def move_to(self, top: int, left: int) -> None:
        """Load the maps around another piece; zeros past the picture's edges."""
        shape = self.model.shape
        rows, to_rows = _around(top, self.rows, shape.height)
        columns, to_columns = _around(left, self.columns, shape.width)
        maps = upsample(self.model.latents, self.networks["upsampling"], rows, columns)
        values = np.zeros(self.values.shape, np.int32)
        values[to_rows, to_columns] = maps.transpose(1, 2, 0)
        inside = np.zeros(self.inside.shape, np.int32)
        inside[to_rows, to_columns] = 1
        self.values.write(values)
        self.inside.write(inside)

    def _step(self) -> dict[str, Tensor]:
        rows, columns, levels = self.values.shape
        x = self.values.reshape(rows * columns, levels)
        for number in range(2):
            x = activate(self._sums(x, f"synthesis.{number}"))
        y = self._sums(x, "synthesis.2").reshape(rows, columns, -1)
        y = y * self.inside
        y = y[1:-1, 1:-1] + activate(self._convolved(y, 0), PIXEL_BITS)
        y = _bounded(y) * self.inside[1:-1, 1:-1]
        return {"pixels": levels_of(y[1:-1, 1:-1] + self._convolved(y, 1))}

    def _scales(self) -> dict[str, Tensor]:
        """What `rescale` takes for each layer; no constants, so that kernels serve other files."""
        finer = {"synthesis.2": PIXEL_BITS - VALUE_BITS}
        found = {}
        for name in (*(f"synthesis.{n}" for n in range(3)), "residual.0", "residual.1"):
            exponent = self.networks[f"{name}.weight"].exponent - finer.get(name, 0)
            found[name] = Tensor(scale_of(exponent), self.device, name=f"{name}.scale")
        return found

    def _parameters(self, name: str, bits: int) -> tuple[Quantized, Tensor]:
        """Weights, and biases in the unit of the sums that they join, int32."""
        weight, bias = self.networks[f"{name}.weight"], self.networks[f"{name}.bias"]
        sums = bias.values << bits + weight.exponent - bias.exponent
        return weight, Tensor(sums, self.device, name=f"{name}.bias")

    def _sums(self, x: Tensor, name: str) -> Tensor:
        """int32 [rows, inputs] -> [rows, outputs], both in the unit of the layer's place."""
        weight, biases = self._parameters(name, VALUE_BITS)
        weights = Tensor(weight.values.astype(np.float32), self.device, name=f"{name}.weight")
        low = (x & (1 << _LOW_BITS) - 1).cast(dtype.f32) @ weights
        high = (x >> _LOW_BITS).cast(dtype.f32) @ weights
        sums = low.cast(dtype.i32) + high.cast(dtype.i32) * (1 << _LOW_BITS) + biases
        return rescale(sums, self.scales[name])

    def _convolved(self, y: Tensor, number: int) -> Tensor:
        """int32 [rows, columns, channels] in 2**-PIXEL_BITS, of all pixels with neighbours."""
        weight, biases = self._parameters(f"residual.{number}", PIXEL_BITS)
        rows, columns, channels = y.shape
        kernel = Tensor(weight.values, self.device, name=f"residual.{number}.weight")
        sums = biases
        for down, right, channel in np.ndindex(3, 3, channels):
            part = y[down : down + rows - 2, right : right + columns - 2, channel : channel + 1]
            sums = sums + part * kernel[down, right, channel]
        return rescale(sums, self.scales[f"residual.{number}"])


def _around(begin: int, count: int, size: int) -> tuple[Span, slice]:
    """Of a piece with its halo, the span that lies in the picture, and where that is in it."""
    first, end = max(0, begin - HALO), min(size, begin + count + HALO)
    return (first, end), slice(first - begin + HALO, end - begin + HALO)


def scale_of(exponent: int) -> Array:
    """What `rescale` takes to divide by 2**exponent: int32 [factor, half of a unit, shift]."""
    if exponent <= 0:
        return np.array([1 << -exponent, 0, 0], np.int32)
    return np.array([1, 1 << exponent - 1, exponent], np.int32)


def rescale(sums: Tensor, scale: Tensor) -> Tensor:
    """Sums divided by a power of two, rounded, and no larger than values may be."""
    return _bounded((sums * scale[0] + scale[1]) >> scale[2])


def _bounded(values: Tensor) -> Tensor:
    return values.maximum(-LIMIT).minimum(LIMIT)


def activate(x: Tensor, bits: int = VALUE_BITS) -> Tensor:
    """x, in 2**-bits, times a share that grows from 0 at x = -2 to 1 at x = 2."""
    finer = VALUE_BITS + 2
    near = x.minimum(2 << bits)
    u = ((near >> bits - VALUE_BITS) + 2 * ONE).maximum(0)  # of 4096
    share = ((u * u) >> finer) * (3 * 4 * ONE - u * 2) >> finer
    return ((near * share + 2 * ONE) >> finer) + (x - near)


def levels_of(answers: Tensor) -> Tensor:
    """Answers around 0, in 2**-PIXEL_BITS, to samples: -1/2 is black, 1/2 white."""
    one = 1 << PIXEL_BITS
    value = (answers + one // 2).maximum(0).minimum(one)
    return ((value * 255 + one // 2) >> PIXEL_BITS).cast(dtype.u8)
