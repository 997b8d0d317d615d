"""The synthesis network with integers: the same pixels, bit for bit, on every device.

Part of the file format (docs/format-imlp.md). Values and sums fit in 32 bits, which
`model.check_networks` proves. There are two implementations of the same arithmetic:

- On a compiling device, matrix products run in float32, the fastest type that every device has.
  Each operand is split into its low bits and the rest, so that both partial sums stay below 2**24
  and are exact in any order of addition.
- On NumPy, which has float64 on every processor, no split is needed.

Both compute the picture in pieces. A piece needs HALO more pixels on every side for the two
convolutions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.latent.exact_layers import ONE, activate_exactly, activation_table, layer_matrix
from imgmlp.codec.latent.model import MAX_VALUE, PIXEL_BITS, VALUE_BITS, LatentModel
from imgmlp.codec.latent.upsampling import padded_span, synthesis_inputs
from imgmlp.codec.training.chunked import assemble
from imgmlp.engine import AnyDevice, NumpyDevice, Tensor, compile, dtype

Array = np.ndarray[Any, Any]

HALO = 2  # pixels around a piece that its two 3x3 convolutions see
CORNER_SIDE = 64  # pixels along the sides of the corner that is compared between devices
DEVICE_PIECE_PIXELS = 1 << 14
NUMPY_PIECE_SIDE = 128  # pixels; the values of a piece should stay in the caches
_DENSE_PIXELS = 1 << 12  # pixels of a NumPy piece that pass through the dense layers at once
_LOW_BITS = 9  # of a value's 19 bits, sign included


def synthesize(model: LatentModel, device: AnyDevice) -> Array:
    """The picture of a model: uint8 [height, width, channels]."""
    if isinstance(device, NumpyDevice) and device.form == "nodes":
        return _synthesize_with_numpy(model)
    shape = model.shape
    size = shape.width, shape.height
    return assemble(partial(_DevicePiece, model), device, size, shape.channels, DEVICE_PIECE_PIXELS)


# --- on a compiling device ---


class _DevicePiece:
    """A compiled program that computes rows x columns pixels anywhere in a picture."""

    def __init__(self, model: LatentModel, device: AnyDevice, rows: int, columns: int) -> None:
        self.model, self.networks, self.device = model, model.networks, device
        self.rows, self.columns = rows, columns
        size = (rows + 2 * HALO, columns + 2 * HALO)
        inputs = np.zeros((*size, model.shape.synthesis_inputs), np.int32)
        self.values = Tensor(inputs, device, name="maps")
        self.inside = Tensor(np.zeros((*size, 1), np.int32), device, name="inside")
        self.parameters = self._parameters()
        states = [self.values, self.inside, *self.parameters.values()]
        self.program = compile(self._step, device, precision="exact", depends_on=(), states=states)

    def move_to(self, top: int, left: int) -> None:
        """Load the inputs of the piece at a position; they are 0 outside of the picture."""
        shape = self.model.shape
        rows, to_rows = padded_span(top, self.rows, shape.height, HALO)
        columns, to_columns = padded_span(left, self.columns, shape.width, HALO)
        values = np.zeros(self.values.shape, np.int32)
        values[to_rows, to_columns] = synthesis_inputs(self.model, rows, columns).transpose(1, 2, 0)
        inside = np.zeros(self.inside.shape, np.int32)
        inside[to_rows, to_columns] = 1
        self.values.write(values)
        self.inside.write(inside)

    def _step(self) -> dict[str, Tensor]:
        rows, columns, inputs = self.values.shape
        x = self.values.reshape(rows * columns, inputs)
        for number in range(2):
            x = activate(self._dense(x, f"synthesis.{number}"))
        y = self._dense(x, "synthesis.2").reshape(rows, columns, -1)
        y = y * self.inside
        y = y[1:-1, 1:-1] + activate(self._convolve(y, 0), PIXEL_BITS)
        y = _clamp(y) * self.inside[1:-1, 1:-1]
        return {"pixels": to_samples(y[1:-1, 1:-1] + self._convolve(y, 1))}

    def _parameters(self) -> dict[str, Tensor]:
        """For each layer: weights, biases in the unit of its sums (int32), and its `rescale` scale.

        They are inputs of the program instead of constants, so that it serves other files as well.
        """
        arrays = {}
        for name in (*(f"synthesis.{n}" for n in range(3)), "residual.0", "residual.1"):
            weight, bias = self.networks[f"{name}.weight"], self.networks[f"{name}.bias"]
            is_dense = name.startswith("synthesis")
            bits = VALUE_BITS if is_dense else PIXEL_BITS
            finer = PIXEL_BITS - VALUE_BITS if name == "synthesis.2" else 0
            values = weight.values
            arrays[f"{name}.weight"] = values.astype(np.float32) if is_dense else values
            arrays[f"{name}.bias"] = bias.values << bits + weight.exponent - bias.exponent
            arrays[f"{name}.scale"] = rescale_parameters(weight.exponent - finer)
        return {name: Tensor(array, self.device, name=name) for name, array in arrays.items()}

    def _dense(self, x: Tensor, name: str) -> Tensor:
        """A dense layer without activation: int32 [rows, inputs] -> [rows, outputs]."""
        weights, biases, scale = self._layer(name)
        low = (x & (1 << _LOW_BITS) - 1).cast(dtype.f32) @ weights
        high = (x >> _LOW_BITS).cast(dtype.f32) @ weights
        sums = low.cast(dtype.i32) + high.cast(dtype.i32) * (1 << _LOW_BITS) + biases
        return rescale(sums, scale)

    def _convolve(self, y: Tensor, number: int) -> Tensor:
        """A 3x3 convolution without padding, of int32 [rows, columns, channels] in PIXEL_BITS."""
        kernel, sums, scale = self._layer(f"residual.{number}")
        rows, columns, channels = y.shape
        for down, right, channel in np.ndindex(3, 3, channels):
            part = y[down : down + rows - 2, right : right + columns - 2, channel : channel + 1]
            sums = sums + part * kernel[down, right, channel]
        return rescale(sums, scale)

    def _layer(self, name: str) -> list[Tensor]:
        return [self.parameters[f"{name}.{kind}"] for kind in ("weight", "bias", "scale")]


def rescale_parameters(exponent: int) -> Array:
    """What `rescale` needs to divide by 2**exponent: int32 [factor, rounding term, shift]."""
    if exponent <= 0:
        return np.array([1 << -exponent, 0, 0], np.int32)
    return np.array([1, 1 << exponent - 1, exponent], np.int32)


def rescale(sums: Tensor, scale: Tensor) -> Tensor:
    """Sums divided by a power of two, rounded, and clamped to ±MAX_VALUE."""
    return _clamp((sums * scale[0] + scale[1]) >> scale[2])


def _clamp(values: Tensor) -> Tensor:
    return values.maximum(-MAX_VALUE).minimum(MAX_VALUE)


def activate(x: Tensor, bits: int = VALUE_BITS) -> Tensor:
    """The activation x * smoothstep(x / 4 + 1/2) of int32 values with `bits` fractional bits."""
    fraction_bits = VALUE_BITS + 2
    near = x.minimum(2 << bits)  # from 2 on, the activation is the identity
    u = ((near >> bits - VALUE_BITS) + 2 * ONE).maximum(0)  # x / 4 + 1/2, of 4096
    smoothstep = ((u * u) >> fraction_bits) * (3 * 4 * ONE - u * 2) >> fraction_bits
    return ((near * smoothstep + 2 * ONE) >> fraction_bits) + (x - near)


def to_samples(outputs: Tensor) -> Tensor:
    """Outputs in PIXEL_BITS, -1/2 for black and 1/2 for white, as uint8 samples."""
    one = 1 << PIXEL_BITS
    value = (outputs + one // 2).maximum(0).minimum(one)
    return ((value * 255 + one // 2) >> PIXEL_BITS).cast(dtype.u8)


# --- on NumPy ---


def _synthesize_with_numpy(model: LatentModel) -> Array:
    shape, synthesis = model.shape, _NumpySynthesis(model)
    picture = np.empty((shape.height, shape.width, shape.channels), np.uint8)
    rows, columns = _piece_side(shape.width), _piece_side(shape.height)
    for top in range(0, shape.height, rows):
        for left in range(0, shape.width, columns):
            part = picture[top : top + rows, left : left + columns]
            part[...] = synthesis.piece(top, left, *part.shape[:2])
    return picture


def _piece_side(across: int) -> int:
    """Pixels along a piece; if the picture has few pixels across, more, for about the same area."""
    return max(NUMPY_PIECE_SIDE, NUMPY_PIECE_SIDE**2 // (across + 2 * HALO))


def corner(model: LatentModel) -> Array:
    """The bottom right corner of the picture, by NumPy, for comparison with a device: uint8."""
    shape = model.shape
    rows, columns = min(CORNER_SIDE, shape.height), min(CORNER_SIDE, shape.width)
    synthesis = _NumpySynthesis(model)
    return synthesis.piece(shape.height - rows, shape.width - columns, rows, columns)


class _NumpySynthesis:
    """Computes pieces in float64, in less than half the time of the same Tensor operations."""

    def __init__(self, model: LatentModel) -> None:
        self._model = model
        dense = [layer_matrix(model.networks, f"synthesis.{number}") for number in range(3)]
        for hidden in dense[:2]:
            hidden[:, -1] += 2 * ONE  # the table of activations begins at x = -2
        dense[2] *= 1 << PIXEL_BITS - VALUE_BITS
        residual = [layer_matrix(model.networks, f"residual.{n}", PIXEL_BITS) for n in range(2)]
        for weights in (*dense, *residual):
            weights[:, -1] += 0.5  # with it, flooring rounds to the nearest
        self._dense, self._residual = dense, residual

    def piece(self, top: int, left: int, rows: int, columns: int) -> Array:
        """A piece anywhere in the picture: uint8 [rows, columns, channels]."""
        shape = self._model.shape
        row_span, to_rows = padded_span(top, rows, shape.height, HALO)
        column_span, to_columns = padded_span(left, columns, shape.width, HALO)
        inputs = synthesis_inputs(self._model, row_span, column_span)
        y = np.zeros((shape.channels, rows + 2 * HALO, columns + 2 * HALO))
        inside = (slice(None), to_rows, to_columns)  # outside of the picture y stays 0
        y[inside] = self._dense_outputs(inputs)
        after_residual = np.zeros_like(y)
        z = self._convolve(y, 0).astype(np.int64)
        after_residual[:, 1:-1, 1:-1] = _floor_and_clamp(
            y[:, 1:-1, 1:-1] + activate_exactly(z, PIXEL_BITS)
        )
        y[inside] = after_residual[inside]
        inner = y[:, 1:-1, 1:-1]
        return _samples(inner[:, 1:-1, 1:-1] + self._convolve(inner, 1)).transpose(1, 2, 0)

    def _dense_outputs(self, inputs: Array) -> Array:
        """int32 [inputs, rows, columns] -> float64 [channels, rows, columns], in PIXEL_BITS."""
        values = inputs.reshape(len(inputs), -1)
        outputs = np.empty((len(self._dense[-1]), values.shape[1]))
        for begin in range(0, values.shape[1], _DENSE_PIXELS):
            x = values[:, begin : begin + _DENSE_PIXELS]
            for weights in self._dense[:2]:
                indices = (weights @ _with_ones(x)).astype(np.intp)
                x = activation_table().take(indices, mode="clip")
            outputs[:, begin : begin + _DENSE_PIXELS] = self._dense[2] @ _with_ones(x)
        return _floor_and_clamp(outputs).reshape(-1, *inputs.shape[1:])

    def _convolve(self, y: Array, number: int) -> Array:
        """A 3x3 convolution without padding: float64 [channels, h, w] -> [channels, h-2, w-2]."""
        channels, rows, columns = y.shape
        rows, columns = rows - 2, columns - 2
        patches = np.ones((9 * channels + 1, rows, columns))  # the last of them is for the bias
        for at, (down, right) in enumerate(np.ndindex(3, 3)):
            shifted = y[:, down : down + rows, right : right + columns]
            patches[at * channels : (at + 1) * channels] = shifted
        sums = self._residual[number] @ patches.reshape(len(patches), -1)
        return _floor_and_clamp(sums).reshape(channels, rows, columns)


def _with_ones(values: Array) -> Array:
    """Values [inputs, pixels] and a row of ones for the bias: float64 [inputs + 1, pixels]."""
    extended = np.empty((len(values) + 1, values.shape[1]))
    extended[:-1], extended[-1] = values, 1
    return extended


def _floor_and_clamp(values: Array) -> Array:
    clamped: Array = np.clip(np.floor(values), -MAX_VALUE, MAX_VALUE)
    return clamped


def _samples(outputs: Array) -> Array:
    """`to_samples` on NumPy."""
    one = 1 << PIXEL_BITS
    value = np.clip(outputs + one // 2, 0, one).astype(np.int64)
    samples: Array = (value * 255 + one // 2 >> PIXEL_BITS).astype(np.uint8)
    return samples
