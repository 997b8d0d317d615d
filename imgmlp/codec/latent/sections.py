"""A latent model as the data of a file's sections, and back (docs/format-imlp.md).

Files come from strangers: sizes are compared with limits before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import numpy as np

from imgmlp.codec.bitstream import range_coder
from imgmlp.codec.latent import latents
from imgmlp.codec.latent.hyperlatents import HyperlatentMaps
from imgmlp.codec.latent.latents import GridReader
from imgmlp.codec.latent.latents_kernel import (
    KernelGridReader,
    KernelGridWriter,
    sequential_processor,
)
from imgmlp.codec.latent.model import (
    MAX_EXPONENT,
    MAX_EXTRA_GRIDS,
    NEIGHBOUR_OFFSETS,
    VALUE_BITS,
    LatentModel,
    ModelShape,
    Quantized,
    check_networks,
)
from imgmlp.codec.latent.pretrained import PretrainedNetworks, hidden_widths, pretrained_networks
from imgmlp.engine import AnyDevice, Device
from imgmlp.errors import DeviceError, OutOfMemoryError, check_format

Array = np.ndarray[Any, Any]
T = TypeVar("T")

MAX_LATENTS_PER_BYTE = 2**17  # the cheapest latent of all costs an 11,000th of a bit
MOST_BYTES = 3  # of a latent: the dearest has 22 bits; and of a stream's end
EXPONENTS = {"weight": 7, "bias": 7, "filter": 7, "upsampling": 8}  # of steps, usually
_SIZES = 6  # bytes before the tensors'
_STARTED = 128  # added to the first byte where networks have a start, which names their sizes
# Added to the grids that are coded where there is a filter, and where there are hyperlatents.
_FILTERED, _HYPER = 1 << 15, 1 << 14
_EXTRA = 12  # where the number of extra grids is, in two bits
_STARTED_SIZES = 4  # bytes of that section
# With a start, before a tensor's numbers: its exponent less the usual one, whether they are no
# differences, and the number of their distribution less _MIDDLE; and the distributions of these.
_BEFORE = np.array([17, 7, 27])
_MIDDLE = 15


def write(model: LatentModel, device: AnyDevice | None = None) -> tuple[bytes, bytes, bytes]:
    """The data of sections N, W and L: the same bytes from every device, and without one."""
    shape, start = model.shape, pretrained_networks(model.pretrained, model.shape)
    coded = sum(1 << level for level in model.coded_grids if level < shape.levels)
    flags = (
        _FILTERED * shape.has_filter | _HYPER * shape.has_hyperlatents | shape.extra_grids << _EXTRA
    )
    there = (coded | flags).to_bytes(2, "big")
    if start.number:
        head = bytes([_STARTED | shape.levels, start.number]) + there
    else:
        head = (
            bytes([shape.levels, shape.synthesis_width, shape.entropy_width, shape.neighbours])
            + there
        )
    symbols, scales = [], []
    for name, tensor in model.networks.items():
        base, number, _ = coding(name, tensor, start)
        if start.number:
            symbols.append(_before(name, tensor, base, number))
            scales.append(_BEFORE)
        else:
            head += bytes([tensor.exponent, number])
        symbols.append((tensor.values - base).ravel())
        scales.append(np.full(symbols[-1].shape, number))
    weights = range_coder.encode(np.concatenate(symbols), np.concatenate(scales))
    return head, weights, _coded(model, device)


def _coded(model: LatentModel, device: AnyDevice | None) -> bytes:
    def by_kernel(processor: Device) -> bytes:
        encoder = range_coder.Encoder()
        writer = KernelGridWriter(encoder, model.shape, model.networks, processor)
        for grid, above in latents.grids_in_file_order(model):
            writer.write(grid, above)
        return encoder.finish()

    return _by_processor(device, by_kernel, lambda: latents.encode(model))


def _by_processor(
    device: AnyDevice | None, by_kernel: Callable[[Device], T], by_numpy: Callable[[], T]
) -> T:
    """What a kernel makes on a processor: the device or, beside a GPU, another one, for which NumPy
    steps in, as it was nobody's choice, so that it is nobody's problem that it does not work."""
    processor = sequential_processor(device)
    if processor is not None:
        try:
            return by_kernel(processor)
        except (DeviceError, OutOfMemoryError):
            if processor is device:
                raise
    return by_numpy()


def coding(
    name: str, tensor: Quantized, start: PretrainedNetworks
) -> tuple[Array | int, int, float]:
    """How a tensor has few bits: what is taken away from it, and a distribution for the rest; and
    how many that are."""
    bases = [start.rounded(name, tensor.exponent), 0] if name in start.tensors else [0]
    ways = ((base, *range_coder.cheapest((tensor.values - base).ravel())) for base in bases)
    return min(ways, key=lambda way: way[2])


def _before(name: str, tensor: Quantized, base: Array | int, number: int) -> Array:
    """What is coded of a tensor before its numbers, if there is a start."""
    whole = isinstance(base, int)
    return np.array([tensor.exponent - usual_exponent(name), whole, number - _MIDDLE])


def network_bits(networks: Mapping[str, Quantized], start: PretrainedNetworks) -> float:
    """What `write` spends on networks, in bits, but for up to 3 bytes of the stream's end."""
    bits = 0.0
    for name, tensor in networks.items():
        base, number, own = coding(name, tensor, start)
        before = _before(name, tensor, base, number)
        bits += own + (_before_bits(*before.tolist()) if start.number else 16)
    return bits


@cache
def _before_bits(*before: int) -> float:
    return range_coder.bits(np.array(before), _BEFORE)


def usual_exponent(name: str) -> int:
    """Of a tensor's step."""
    return EXPONENTS[name.rpartition(".")[2]]


def read(
    parts: tuple[bytes, bytes, bytes], size: tuple[int, int], channels: int, device: AnyDevice
) -> LatentModel:
    """The model in sections N, W and L of a picture of a (width, height) size.

    Raises FormatError.
    """
    head, weights, coded = parts
    started = len(head) == _STARTED_SIZES and head[0] >= _STARTED
    check_format(started or len(head) >= _SIZES, "the network section is too short")
    number = head[1] if started else 0
    levels, widths = head[0], (head[1], head[2], head[3])
    if started:
        levels, widths = head[0] - _STARTED, (*hidden_widths(number), len(NEIGHBOUR_OFFSETS))
    there = int.from_bytes(head[2:4] if started else head[4:_SIZES], "big")
    has = there & _FILTERED > 0, there & _HYPER > 0, there >> _EXTRA & MAX_EXTRA_GRIDS
    there &= (1 << _EXTRA) - 1
    shape = ModelShape(size[1], size[0], channels, levels, *widths, *has)
    if started:
        networks = _from_start(shape, pretrained_networks(number, shape), weights)
    else:
        networks = _networks(shape, head[_SIZES:], weights)
    check_networks(shape, networks)
    check_format(there < 1 << levels, "latents are announced for a grid that is not there")
    grids = _latents(shape, networks, there, coded, device)
    return LatentModel(shape, grids, networks, number)


def _networks(shape: ModelShape, steps: bytes, data: bytes) -> dict[str, Quantized]:
    tensors = shape.tensor_shapes
    check_format(len(steps) == 2 * len(tensors), f"steps of the network take {len(steps)} bytes")
    decoder, networks = range_coder.Decoder(data), {}
    pairs = zip(steps[::2], steps[1::2], strict=True)
    for (name, size), (exponent, number) in zip(tensors.items(), pairs, strict=True):
        values = decoder.read(math.prod(size), number)
        networks[name] = Quantized(values.astype(np.int32).reshape(size), exponent)
    decoder.finish()
    return networks


def _from_start(shape: ModelShape, start: PretrainedNetworks, data: bytes) -> dict[str, Quantized]:
    decoder, networks = range_coder.Decoder(data), {}
    for name, size in shape.tensor_shapes.items():
        finer, whole, number = decoder.read(len(_BEFORE), _BEFORE).tolist()
        exponent = usual_exponent(name) + finer
        check_format(0 <= exponent <= MAX_EXPONENT + VALUE_BITS, f"{name} has no such step")
        check_format(whole in (0, 1), f"{name} is neither whole nor differences")
        values = decoder.read(math.prod(size), number + _MIDDLE).reshape(size)
        base = 0 if whole else start.rounded(name, exponent)
        networks[name] = Quantized((values + base).astype(np.int32), exponent)
    decoder.finish()
    return networks


def _latents(
    shape: ModelShape,
    networks: Mapping[str, Quantized],
    there: int,
    data: bytes,
    device: AnyDevice,
) -> tuple[Array, ...]:
    there |= -1 << shape.levels  # all that are no levels
    sizes = {number: size for number, size in enumerate(shape.grid_sizes) if there >> number & 1}
    count = sum(map(math.prod, sizes.values()))
    good = count <= MAX_LATENTS_PER_BYTE * (len(data) + 2)
    check_format(good, f"{count:,} latents cannot be in {len(data):,} bytes")
    good = len(data) <= MOST_BYTES * count + MOST_BYTES
    check_format(good, f"{count:,} latents cannot take {len(data):,} bytes")
    found = _read(shape, networks, sizes, data, device)
    return tuple(
        found[number] if number in found else np.zeros(size, np.int8)
        for number, size in enumerate(shape.grid_sizes)
    )


def _read(
    shape: ModelShape,
    networks: Mapping[str, Quantized],
    sizes: dict[int, tuple[int, int]],
    data: bytes,
    device: AnyDevice,
) -> dict[int, Array]:
    """Grids by number, the first of them last in the data."""
    of = shape, networks

    def found(
        make: Callable[[range_coder.Decoder], GridReader | KernelGridReader],
    ) -> dict[int, Array]:
        decoder = range_coder.Decoder(data)
        grids = _all_grids(make(decoder), shape, sizes)
        decoder.finish()
        return grids

    return _by_processor(
        device,
        lambda processor: found(lambda decoder: KernelGridReader(decoder, *of, processor)),
        lambda: found(lambda decoder: GridReader(decoder, *of)),
    )


def _all_grids(
    grids: GridReader | KernelGridReader, shape: ModelShape, sizes: Mapping[int, tuple[int, int]]
) -> dict[int, Array]:
    levels, found = shape.levels, dict[int, Array]()
    for number in reversed(range(levels, len(shape.grid_sizes))):
        found[number] = grids.read(sizes[number])
    own = [found[number] for number in range(levels, len(shape.grid_sizes))]
    maps = HyperlatentMaps(shape, own if shape.has_hyperlatents else ())
    for number in sorted(set(sizes) - set(found), reverse=True):
        found[number] = grids.read(
            sizes[number], maps.at(number) if shape.has_hyperlatents else None
        )
    return found
