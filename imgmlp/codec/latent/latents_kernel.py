"""Streams of latents by a kernel written by hand, for OpenCL on CPUs: kernels/latents.cl.

Every latent needs those before it, so there is nothing for a device to do side by side; but a
kernel spends a small part of the time that `codec.latent.latents` does with Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from threading import Lock, Thread
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.range_coder import Decoder, Encoder, make_tables
from imgmlp.codec.latent import probabilities
from imgmlp.codec.latent.latents import (
    MARGIN,
    max_wave_size,
    neighbour_offsets,
    pad,
    pad_maps,
    wave_count,
)
from imgmlp.codec.latent.model import VALUE_BITS, ModelShape, Quantized
from imgmlp.engine import AnyDevice, Device, RawKernel, Tensor, list_devices, open_unasked
from imgmlp.errors import DeviceError, OutOfMemoryError

Array = np.ndarray[Any, Any]

AT_ONCE = 1 << 22  # latents of a launch, about, so that an interrupt is heard
_LANES = 8  # of the kernel's vectors
MOST_WORDS = 2  # that a latent makes: the least likely one has 22 bits
_opening = Lock()


def sequential_processor(device: AnyDevice | None) -> Device | None:
    """A device on which one work-item is fast: this one or, beside a GPU, the processor.

    None where NumPy was asked for, or the processor has no driver that works.
    """
    if not isinstance(device, Device):
        return None
    return device if device.lanes == "one" else _processor()


def has_sequential_processor(device: AnyDevice) -> bool:
    """Whether `sequential_processor` should find one, without opening it, which takes a moment."""
    if not isinstance(device, Device):
        return False
    return device.lanes == "one" or any(info.kind == "cpu" for info in list_devices())


def prepare(shape: ModelShape, device: AnyDevice) -> Thread | None:
    """Begin to have the processor ready for latents while a GPU beside it is busy; gives who does
    it, if there is a GPU."""
    if not isinstance(device, Device) or device.lanes == "one":
        return None
    thread = Thread(target=_prepare, args=(shape,))
    try:
        thread.start()
    except RuntimeError:  # no thread is left: whoever reads latents does it then
        return None
    return thread


def _prepare(shape: ModelShape) -> None:
    make_tables()
    networks = {
        n: Quantized(np.zeros(size, np.int32), 0) for n, size in shape.tensor_shapes.items()
    }
    # What does not work is told, or done without, where latents are read.
    with suppress(DeviceError, OutOfMemoryError):
        if (alone := _processor()) is not None:
            encoder = Encoder()  # of one latent, as some drivers compile at the first launch
            KernelGridWriter(encoder, shape, networks, alone).write(np.zeros((1, 1), np.int8))
            KernelGridReader(Decoder(encoder.finish()), shape, networks, alone).read((1, 1))


def _processor() -> Device | None:
    with _opening:
        return _open_cpu()


@cache
def _open_cpu() -> Device | None:
    return open_unasked("cpu")


class _Kernel:
    """What goes through the latents of grids, one after the other."""

    def __init__(
        self, shape: ModelShape, networks: Mapping[str, Quantized], device: Device, writing: bool
    ) -> None:
        self._shape, self._device = shape, device
        vectors = -(-shape.entropy_width // _LANES)
        source = resources.files("imgmlp.kernels").joinpath("latents.cl").read_text("utf-8")
        above = len(shape.hyperlatent_levels)
        sizes = {"NEIGHBOURS": shape.neighbours, "ABOVE": above, "VECTORS": vectors}
        sizes["WRITING"] = int(writing)
        self._kernel = RawKernel(device, source, "imgmlp_latents", **sizes)
        weights = self._placed(_packed(networks, vectors * _LANES))
        shifts = [networks[f"entropy.{number}.weight"].exponent for number in range(3)]
        tails = (self._placed(table.astype(np.uint32)) for table in probabilities.tails())
        self._network: list[Tensor | int] = [weights, *shifts, *tails]

    def _placed(self, values: Array) -> Tensor:
        """On the device, for all launches."""
        return Tensor(values, self._device).realize()

    def _through(
        self, grid: Array, above: Array | None, state: Array, words: Array
    ) -> Iterator[Tensor]:
        """The padded grid after each launch, which has changed `state` and read or made `words`."""
        beside = _constant(np.zeros(1, np.int32))
        if hyper := len(self._shape.hyperlatent_levels):
            maps = np.zeros((hyper, *grid.shape), np.int32) if above is None else above
            beside = _constant(pad_maps(maps))
        padded = self._placed(pad(grid))
        offsets = _constant(neighbour_offsets(self._shape, padded.shape[1]).astype(np.int32))
        count, step = wave_count(*grid.shape), max(1, AT_ONCE // max_wave_size(*grid.shape))
        for begin in range(0, count, step):
            place = padded, *grid.shape, begin, min(begin + step, count)
            stream = state, words, len(words)
            self._kernel(1, 1, *stream, *place, offsets, beside, *self._network)
            yield padded


class KernelGridReader(_Kernel):
    """Reads grids as `latents.Grids` does."""

    def __init__(
        self, decoder: Decoder, shape: ModelShape, networks: Mapping[str, Quantized], device: Device
    ) -> None:
        super().__init__(shape, networks, device, writing=False)
        self._decoder = decoder

    def read(self, size: tuple[int, int], above: Array | None = None) -> Array:
        """int8 of a (height, width) size: the next grid, which has hyperlatents above it or not.

        Raises FormatError.
        """
        words, code, width, taken = self._decoder.suspend()
        state = np.array([code, width, taken, 0], np.uint64)
        *_, padded = self._through(np.zeros(size, np.int8), above, state, _constant(words))
        self._decoder.resume(*state.tolist())
        return padded.numpy()[MARGIN:, MARGIN:-MARGIN]


class KernelGridWriter(_Kernel):
    """Writes grids as `latents.encode` does."""

    def __init__(
        self, encoder: Encoder, shape: ModelShape, networks: Mapping[str, Quantized], device: Device
    ) -> None:
        super().__init__(shape, networks, device, writing=True)
        self._encoder = encoder

    def write(self, grid: Array, above: Array | None = None) -> None:
        """int8 [height, width], which has hyperlatents above it or not."""
        at_once = min(grid.size, AT_ONCE + max_wave_size(*grid.shape))  # of a launch, at most
        words = np.zeros(MOST_WORDS * at_once + 1, np.uint32)
        state = np.array([*self._encoder.suspend(), 0, 0], np.uint64)
        for _ in self._through(grid, above, state, words):
            low, width, made, _ = state.tolist()
            self._encoder.resume(low, width, words[:made])
            state[2] = 0


def _constant(array: Array) -> Array:
    """One that is not copied back from the device."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


def _packed(networks: Mapping[str, Quantized], width: int) -> Array:
    """int32: the network as the kernel reads it, hidden layers `width` wide."""
    parts = []
    for number in range(3):
        weight, bias = (networks[f"entropy.{number}.{what}"] for what in ("weight", "bias"))
        sums = bias.values << VALUE_BITS + weight.exponent - bias.exponent
        values = weight.values
        inputs = width if number else len(values)
        if number == 2:
            values = np.pad(values, ((0, inputs - len(values)), (0, 0))).T
        else:
            more = width - values.shape[1]
            values = np.pad(values, ((0, inputs - len(values)), (0, more)))
            sums = np.pad(sums, (0, more))
        parts += [values.ravel(), sums]
    return np.concatenate(parts).astype(np.int32)
