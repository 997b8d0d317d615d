"""From latents to the picture, in whole numbers: the same bits on every device.

Part of the file format (docs/format-imlp.md). Values and sums fit in 32 bits
(`model.check_networks` proves it). Products of matrices run in float32, the fastest that every
device has, in two parts: the lower bits of the values and the rest, whose sums stay below 2**24
and so are exact, in whatever order they are added up. NumPy, which has float64 on every processor,
does without parts.

Before that all grids become maps as large as the picture. From the coarsest on: what there is
doubles its size by a filter of the level, by columns, then by rows, and the next grid joins it. Any
part of the picture can be had alone, so that large ones need little memory. NumPy does it for every
device, as sizes are another picture's each time, and compiling would take longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.latent.exact_layers import ONE, activated, activations, layer
from imgmlp.codec.latent.model import LIMIT, PIXEL_BITS, VALUE_BITS, LatentModel, Quantized
from imgmlp.codec.training.chunked import assemble
from imgmlp.engine import AnyDevice, NumpyDevice, Tensor, compile, dtype

Array = np.ndarray[Any, Any]
Span = tuple[int, int]  # first, and the one after the last

PIXELS_AT_ONCE = 1 << 14
SIDE = 128  # pixels along a piece of NumPy's, whose values should be near to caches
_AT_ONCE = 1 << 12  # of its pixels in the layers, which are still nearer
CORNER = 64  # pixels along the sides of what is compared between devices
HALO = 2  # pixels around a piece that its convolutions see
_TAPS = 4
_BEFORE, _AFTER = 2, 2  # how far away from a sample those are that its two halves need
_LOW_BITS = 9  # of a value's 19 with its sign


def synthesize(model: LatentModel, device: AnyDevice) -> Array:
    """uint8 [height, width, channels]: the picture."""
    if isinstance(device, NumpyDevice) and device.form == "nodes":
        return _by_numpy(model)
    shape = model.shape
    size = shape.width, shape.height
    return assemble(partial(_Piece, model), device, size, shape.channels, PIXELS_AT_ONCE)


class _Piece:
    """A step that makes rows x columns pixels anywhere in a picture."""

    def __init__(self, model: LatentModel, device: AnyDevice, rows: int, columns: int) -> None:
        self.model, self.networks, self.device = model, model.networks, device
        self.rows, self.columns = rows, columns
        around = (rows + 2 * HALO, columns + 2 * HALO)
        self.values = Tensor(np.zeros((*around, model.shape.inputs), np.int32), device, name="maps")
        self.inside = Tensor(np.zeros((*around, 1), np.int32), device, name="inside")
        self.parameters = self._parameters()
        states = [self.values, self.inside, *self.parameters.values()]
        self.program = compile(self._step, device, precision="exact", depends_on=(), states=states)

    def move_to(self, top: int, left: int) -> None:
        """Load the maps around another piece; zeros past the picture's edges."""
        shape = self.model.shape
        rows, to_rows = around(top, self.rows, shape.height, HALO)
        columns, to_columns = around(left, self.columns, shape.width, HALO)
        maps = maps_of(self.model, rows, columns)
        values = np.zeros(self.values.shape, np.int32)
        values[to_rows, to_columns] = maps.transpose(1, 2, 0)
        inside = np.zeros(self.inside.shape, np.int32)
        inside[to_rows, to_columns] = 1
        self.values.write(values)
        self.inside.write(inside)

    def _step(self) -> dict[str, Tensor]:
        rows, columns, inputs = self.values.shape
        x = self.values.reshape(rows * columns, inputs)
        for number in range(2):
            x = activate(self._sums(x, f"synthesis.{number}"))
        y = self._sums(x, "synthesis.2").reshape(rows, columns, -1)
        y = y * self.inside
        y = y[1:-1, 1:-1] + activate(self._convolved(y, 0), PIXEL_BITS)
        y = _bounded(y) * self.inside[1:-1, 1:-1]
        return {"pixels": levels_of(y[1:-1, 1:-1] + self._convolved(y, 1))}

    def _parameters(self) -> dict[str, Tensor]:
        """No constants, so that kernels serve other files. Of each layer weights, biases in the
        unit of the sums that they join, int32, and what `rescale` takes.
        """
        found = {}
        for name in (*(f"synthesis.{n}" for n in range(3)), "residual.0", "residual.1"):
            weight, bias = self.networks[f"{name}.weight"], self.networks[f"{name}.bias"]
            dense = name.startswith("synthesis")
            bits = VALUE_BITS if dense else PIXEL_BITS
            finer = PIXEL_BITS - VALUE_BITS if name == "synthesis.2" else 0
            found[f"{name}.weight"] = weight.values.astype(np.float32) if dense else weight.values
            found[f"{name}.bias"] = bias.values << bits + weight.exponent - bias.exponent
            found[f"{name}.scale"] = scale_of(weight.exponent - finer)
        return {name: Tensor(array, self.device, name=name) for name, array in found.items()}

    def _sums(self, x: Tensor, name: str) -> Tensor:
        """int32 [rows, inputs] -> [rows, outputs], both in the unit of the layer's place."""
        weights, biases, scale = self._layer(name)
        low = (x & (1 << _LOW_BITS) - 1).cast(dtype.f32) @ weights
        high = (x >> _LOW_BITS).cast(dtype.f32) @ weights
        sums = low.cast(dtype.i32) + high.cast(dtype.i32) * (1 << _LOW_BITS) + biases
        return rescale(sums, scale)

    def _layer(self, name: str) -> list[Tensor]:
        return [self.parameters[f"{name}.{what}"] for what in ("weight", "bias", "scale")]

    def _convolved(self, y: Tensor, number: int) -> Tensor:
        """int32 [rows, columns, channels] in 2**-PIXEL_BITS, of all pixels with neighbours."""
        kernel, sums, scale = self._layer(f"residual.{number}")
        rows, columns, channels = y.shape
        for down, right, channel in np.ndindex(3, 3, channels):
            part = y[down : down + rows - 2, right : right + columns - 2, channel : channel + 1]
            sums = sums + part * kernel[down, right, channel]
        return rescale(sums, scale)


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


# --- on NumPy ---


def _by_numpy(model: LatentModel) -> Array:
    shape, exact = model.shape, _Exact(model)
    picture = np.empty((shape.height, shape.width, shape.channels), np.uint8)
    rows, columns = _longer(shape.width), _longer(shape.height)
    for top in range(0, shape.height, rows):
        for left in range(0, shape.width, columns):
            part = picture[top : top + rows, left : left + columns]
            part[...] = exact.piece(top, left, *part.shape[:2])
    return picture


def _longer(across: int) -> int:
    """Pixels along a piece of a picture with so many across: of a thin one as many in all."""
    return max(SIDE, SIDE**2 // (across + 2 * HALO))


def corner(model: LatentModel) -> Array:
    """uint8: some last rows and columns of the picture as NumPy makes them, on every device."""
    shape = model.shape
    rows, columns = min(CORNER, shape.height), min(CORNER, shape.width)
    return _Exact(model).piece(shape.height - rows, shape.width - columns, rows, columns)


class _Exact:
    """What makes pieces by NumPy alone, in less than half the time that operations take there."""

    def __init__(self, model: LatentModel) -> None:
        self._model = model
        dense = [layer(model.networks, f"synthesis.{number}") for number in range(3)]
        for hidden in dense[:2]:
            hidden[:, -1] += 2 * ONE  # where the table of activations begins
        dense[2] *= 1 << PIXEL_BITS - VALUE_BITS
        self._dense = dense
        self._residual = [layer(model.networks, f"residual.{n}", PIXEL_BITS) for n in range(2)]
        for weights in (*self._dense, *self._residual):
            weights[:, -1] += 0.5  # so that cutting off rounds

    def piece(self, top: int, left: int, rows: int, columns: int) -> Array:
        """uint8 [rows, columns, channels] anywhere in the picture."""
        shape = self._model.shape
        row_span, to_rows = around(top, rows, shape.height, HALO)
        column_span, to_columns = around(left, columns, shape.width, HALO)
        maps = maps_of(self._model, row_span, column_span)
        y = np.zeros((shape.channels, rows + 2 * HALO, columns + 2 * HALO))
        inside = (slice(None), to_rows, to_columns)
        y[inside] = self._answers(maps)
        bent = np.zeros_like(y)
        z = self._convolved(y, 0).astype(np.int64)
        bent[:, 1:-1, 1:-1] = _cut(y[:, 1:-1, 1:-1] + activated(z, PIXEL_BITS))
        y[inside] = bent[inside]  # outside of the picture it stays 0
        inner = y[:, 1:-1, 1:-1]
        return _samples(inner[:, 1:-1, 1:-1] + self._convolved(inner, 1)).transpose(1, 2, 0)

    def _answers(self, maps: Array) -> Array:
        """int32 [inputs, rows, columns] -> float64 [channels, rows, columns], in 2**-PIXEL_BITS."""
        values = maps.reshape(len(maps), -1)
        answers = np.empty((len(self._dense[-1]), values.shape[1]))
        for begin in range(0, values.shape[1], _AT_ONCE):
            part = values[:, begin : begin + _AT_ONCE]
            for weights in self._dense[:2]:
                found = (weights @ _and_one(part)).astype(np.intp)
                part = activations().take(found, mode="clip")
            answers[:, begin : begin + _AT_ONCE] = self._dense[2] @ _and_one(part)
        return _cut(answers).reshape(-1, *maps.shape[1:])

    def _convolved(self, y: Array, number: int) -> Array:
        """float64 [channels, rows, columns] -> two rows and columns less."""
        channels, rows, columns = y.shape
        rows, columns = rows - 2, columns - 2
        near = np.ones((9 * channels + 1, rows, columns))
        for at, (down, right) in enumerate(np.ndindex(3, 3)):
            part = y[:, down : down + rows, right : right + columns]
            near[at * channels : (at + 1) * channels] = part
        sums = self._residual[number] @ near.reshape(len(near), -1)
        return _cut(sums).reshape(channels, rows, columns)


def _and_one(values: Array) -> Array:
    """float64 [count + 1, pixels]: values, and a 1 for the bias."""
    found = np.empty((len(values) + 1, values.shape[1]))
    found[:-1], found[-1] = values, 1
    return found


def _cut(values: Array) -> Array:
    found: Array = np.clip(np.floor(values), -LIMIT, LIMIT)
    return found


def _samples(answers: Array) -> Array:
    """Answers around 0, in 2**-PIXEL_BITS, to samples: -1/2 is black, 1/2 white."""
    one = 1 << PIXEL_BITS
    value = np.clip(answers + one // 2, 0, one).astype(np.int64)
    samples: Array = (value * 255 + one // 2 >> PIXEL_BITS).astype(np.uint8)
    return samples


# --- maps ---


def maps_of(model: LatentModel, rows: Span, columns: Span) -> Array:
    """int32 [inputs, rows, columns], in 2**-VALUE_BITS: what synthesis sees of a part."""
    maps = upsample(model.seen, model.networks["upsampling"], rows, columns)
    if not model.shape.filtered and not model.extra:
        return maps
    filtered = [_filtered(model, rows, columns)] if model.shape.filtered else []
    there = slice(*rows), slice(*columns)
    extra = [grid[there].astype(np.int32) << VALUE_BITS for grid in model.extra]
    return np.concatenate([maps, np.stack([*filtered, *extra])])


def _filtered(model: LatentModel, rows: Span, columns: Span) -> Array:
    """int32 [rows, columns]: of a part, what the filter makes of the finest grid."""
    spans, finest = (rows, columns), model.latents[0]
    parts = [around(begin, end - begin, size, 1) for (begin, end), size
             in zip(spans, finest.shape, strict=True)]  # fmt: skip
    height, width = (end - begin for begin, end in spans)
    seen = np.zeros((height + 2, width + 2), np.int32)
    seen[tuple(there for _, there in parts)] = finest[tuple(slice(*span) for span, _ in parts)]
    weights = model.networks["filter"]
    sums = np.full((height, width), 1 << weights.exponent >> 1, np.int32)
    for down, right in np.ndindex(3, 3):
        part = seen[down : down + height, right : right + width]
        sums += part * (weights.values[down, right] << VALUE_BITS)
    found: Array = np.clip(sums >> weights.exponent, -LIMIT, LIMIT)
    return found


def upsample(latents: Sequence[Array], filters: Quantized, rows: Span, columns: Span) -> Array:
    """int32 [levels, rows, columns], in 2**-VALUE_BITS, of a part of the picture.

    `latents` are the grids, finest first, `filters` int32 [levels - 1, 4].
    """
    (top, bottom), (left, right) = rows, columns
    own = latents[0][None, top:bottom, left:right].astype(np.int32) << VALUE_BITS
    if len(latents) == 1:
        return own
    taps, exponent = filters.values[0], filters.exponent
    coarser = Quantized(filters.values[1:], exponent)
    (rows_there, rows_beyond), (columns_there, columns_beyond) = (
        _needed(span, size) for span, size in zip((rows, columns), latents[1].shape, strict=True)
    )
    maps = upsample(latents[1:], coarser, rows_there, columns_there)
    maps = np.pad(maps, ((0, 0), rows_beyond, columns_beyond), mode="edge")
    maps = doubled(maps, 2, columns, taps, exponent)
    maps = doubled(maps, 1, rows, taps, exponent)
    return np.concatenate([own, maps])


def around(begin: int, count: int, size: int, halo: int) -> tuple[Span, slice]:
    """Of a piece with its halo, the span that lies in the picture, and where that is in it."""
    first, end = max(0, begin - halo), min(size, begin + count + halo)
    return (first, end), slice(first - begin + halo, end - begin + halo)


def _needed(span: Span, size: int) -> tuple[Span, Span]:
    """The span of a coarser grid that a span needs, and how many are missing on either side."""
    begin, end = span[0] // 2 - _BEFORE, (span[1] - 1) // 2 + 1 + _AFTER
    there = max(begin, 0), min(end, size)
    return there, (there[0] - begin, end - there[1])


def doubled(maps: Array, axis: int, span: Span, taps: Array, exponent: int) -> Array:
    """int32: a span of an axis of twice as many samples, from what it needs of the coarser one."""
    count = maps.shape[axis] - _BEFORE - _AFTER
    shape = [*maps.shape]
    shape[axis] = 2 * count
    found = np.empty(shape, np.int32)
    for odd in range(2):
        order = taps[::-1] if odd else taps
        parts = (
            maps[_along(axis, slice(odd + n, odd + n + count))] * order[n] for n in range(_TAPS)
        )
        sums = sum(parts) + (1 << exponent >> 1) >> exponent
        found[_along(axis, slice(odd, None, 2))] = np.clip(sums, -LIMIT, LIMIT)
    first = span[0] % 2
    return found[_along(axis, slice(first, first + span[1] - span[0]))]


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    return (slice(None),) * axis + (part,)
