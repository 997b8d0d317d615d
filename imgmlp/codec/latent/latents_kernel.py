"""Streams of latents by a hand-written OpenCL kernel on a CPU: kernels/latents.cl.

Every latent depends on the ones before it, so that coding is sequential and one work-item does it.
Still, the kernel takes a small fraction of the time of `codec.latent.latents`, which does the same
with NumPy and Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from threading import Lock, Thread
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.code_lengths import prepare_tables
from imgmlp.codec.bitstream.range_coder import Decoder, Encoder
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
from imgmlp.engine import AnyDevice, Device, RawKernel, Tensor, list_devices, open_quietly
from imgmlp.errors import DeviceError, OutOfMemoryError

Array = np.ndarray[Any, Any]

LATENTS_PER_LAUNCH = 1 << 22  # about; an interrupt takes effect between launches
MAX_WORDS_PER_LATENT = 2  # 16-bit words that coding one emits: the least likely latent has 22 bits
_VECTOR_WIDTH = 8  # elements of the kernel's vectors
_cpu_lock = Lock()


def sequential_processor(device: AnyDevice | None) -> Device | None:
    """A device that runs one work-item fast: the device itself or, beside a GPU, the CPU.

    None for NumPy, or if there is no OpenCL driver for the CPU that works.
    """
    if not isinstance(device, Device):
        return None
    return device if device.lanes == "one" else _cpu()


def has_sequential_processor(device: AnyDevice) -> bool:
    """Whether `sequential_processor` should find one, without the time that opening it takes."""
    if not isinstance(device, Device):
        return False
    return device.lanes == "one" or any(info.kind == "cpu" for info in list_devices())


def prepare(shape: ModelShape, device: AnyDevice) -> Thread | None:
    """If the device is a GPU, compile the CPU's kernels in a thread while the GPU is busy.

    Returns the thread. Nothing depends on it: whoever codes latents compiles what is missing.
    """
    if not isinstance(device, Device) or device.lanes == "one":
        return None
    thread = Thread(target=_prepare, args=(shape,))
    try:
        thread.start()
    except RuntimeError:  # the system has no more threads
        return None
    return thread


def _prepare(shape: ModelShape) -> None:
    prepare_tables()
    networks = {
        name: Quantized(np.zeros(size, np.int32), 0) for name, size in shape.tensor_shapes.items()
    }
    # Coding the latents reports these errors or works without the kernel.
    with suppress(DeviceError, OutOfMemoryError):
        if (cpu := _cpu()) is not None:
            encoder = Encoder()  # for one latent, because some drivers compile at the first launch
            KernelGridWriter(encoder, shape, networks, cpu).write(np.zeros((1, 1), np.int8))
            KernelGridReader(Decoder(encoder.finish()), shape, networks, cpu).read((1, 1))


def _cpu() -> Device | None:
    with _cpu_lock:
        return _open_cpu()


@cache
def _open_cpu() -> Device | None:
    return open_quietly("cpu")


class _LatentsKernel:
    """The kernel with the entropy network of one model, for one grid after the other."""

    def __init__(
        self, shape: ModelShape, networks: Mapping[str, Quantized], device: Device, writing: bool
    ) -> None:
        self._shape, self._device = shape, device
        vectors = -(-shape.entropy_width // _VECTOR_WIDTH)
        source = resources.files("imgmlp.kernels").joinpath("latents.cl").read_text("utf-8")
        constants = {
            "NEIGHBOURS": shape.neighbours,
            "MAPS": len(shape.hyperlatent_levels),
            "VECTORS": vectors,
            "WRITING": int(writing),
        }
        self._kernel = RawKernel(device, source, "imgmlp_latents", **constants)
        weights = self._upload(_packed(networks, vectors * _VECTOR_WIDTH))
        shifts = [networks[f"entropy.{number}.weight"].exponent for number in range(3)]
        tails = (self._upload(table.astype(np.uint32)) for table in probabilities.tails())
        self._network: list[Tensor | int] = [weights, *shifts, *tails]

    def _upload(self, values: Array) -> Tensor:
        """The values in the device's memory, where they stay for all launches."""
        return Tensor(values, self._device).realize()

    def _launches(
        self, grid: Array, maps: Array | None, state: Array, words: Array
    ) -> Iterator[Tensor]:
        """Launch the kernel until it has coded the whole grid.

        Yields the padded grid after each launch, which has updated `state` and read or filled
        `words`.
        """
        map_values = _read_only(np.zeros(1, np.int32))
        if map_count := len(self._shape.hyperlatent_levels):
            padded_maps = np.zeros((map_count, *grid.shape), np.int32) if maps is None else maps
            map_values = _read_only(pad_maps(padded_maps))
        padded = self._upload(pad(grid))
        offsets = neighbour_offsets(self._shape, padded.shape[1]).astype(np.int32)
        inputs = _read_only(offsets), map_values
        count = wave_count(*grid.shape)
        waves_per_launch = max(1, LATENTS_PER_LAUNCH // max_wave_size(*grid.shape))
        for begin in range(0, count, waves_per_launch):
            waves = padded, *grid.shape, begin, min(begin + waves_per_launch, count)
            self._kernel(1, 1, state, words, len(words), *waves, *inputs, *self._network)
            yield padded


class KernelGridReader(_LatentsKernel):
    """Decodes grids as `latents.GridReader` does."""

    def __init__(
        self, decoder: Decoder, shape: ModelShape, networks: Mapping[str, Quantized], device: Device
    ) -> None:
        super().__init__(shape, networks, device, writing=False)
        self._decoder = decoder

    def read(self, size: tuple[int, int], maps: Array | None = None) -> Array:
        """The next grid: int8 of a (height, width) size.

        `maps` are the hyperlatent maps that the entropy network sees of this grid, if any. Raises
        FormatError for damaged data.
        """
        words, code, width, position = self._decoder.suspend()
        state = np.array([code, width, position, 0], np.uint64)
        *_, padded = self._launches(np.zeros(size, np.int8), maps, state, _read_only(words))
        self._decoder.resume(*state.tolist())
        return padded.numpy()[MARGIN:, MARGIN:-MARGIN]


class KernelGridWriter(_LatentsKernel):
    """Codes grids as `latents.encode` does."""

    def __init__(
        self, encoder: Encoder, shape: ModelShape, networks: Mapping[str, Quantized], device: Device
    ) -> None:
        super().__init__(shape, networks, device, writing=True)
        self._encoder = encoder

    def write(self, grid: Array, maps: Array | None = None) -> None:
        """Code the next grid, int8 [height, width]; `maps` are as for `KernelGridReader.read`."""
        max_latents = min(grid.size, LATENTS_PER_LAUNCH + max_wave_size(*grid.shape))  # of a launch
        words = np.zeros(MAX_WORDS_PER_LATENT * max_latents + 1, np.uint32)
        state = np.array([*self._encoder.suspend(), 0, 0], np.uint64)
        for _ in self._launches(grid, maps, state, words):
            low, width, word_count, _ = state.tolist()
            self._encoder.resume(low, width, words[:word_count])
            state[2] = 0


def _read_only(array: Array) -> Array:
    """The array with a flag that saves copying it back from the device."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


def _packed(networks: Mapping[str, Quantized], width: int) -> Array:
    """The entropy network in the kernel's layout, with hidden layers `width` wide: int32."""
    parts = []
    for number in range(3):
        weight, bias = (networks[f"entropy.{number}.{kind}"] for kind in ("weight", "bias"))
        biases = bias.values << VALUE_BITS + weight.exponent - bias.exponent
        weights = weight.values
        inputs = width if number else len(weights)
        if number == 2:
            weights = np.pad(weights, ((0, inputs - len(weights)), (0, 0))).T
        else:
            missing = width - weights.shape[1]
            weights = np.pad(weights, ((0, inputs - len(weights)), (0, missing)))
            biases = np.pad(biases, (0, missing))
        parts += [weights.ravel(), biases]
    return np.concatenate(parts).astype(np.int32)
