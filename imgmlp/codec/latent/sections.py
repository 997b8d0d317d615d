"""A latent model as the data of a file's sections, and back (docs/format-imlp.md).

Files come from strangers: sizes are compared with limits before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import range_coder
from imgmlp.codec.latent import latents
from imgmlp.codec.latent.latents import Grids
from imgmlp.codec.latent.latents_kernel import KernelGrids
from imgmlp.codec.latent.model import LatentModel, ModelShape, Quantized, check_networks
from imgmlp.engine import AnyDevice, Device
from imgmlp.errors import FormatError

Array = np.ndarray[Any, Any]

MAX_LATENTS_PER_BYTE = 2**17  # the cheapest latent of all costs an 11,000th of a bit
MAX_PRODUCTS = 2**44  # multiplications of a whole picture
_SIZES = 6  # bytes before the tensors'


def _check(good: bool, problem: str) -> None:
    if not good:
        raise FormatError(problem, hint=range_coder.HINT)


def write(model: LatentModel) -> tuple[bytes, bytes, bytes]:
    """The data of sections N, W and L."""
    shape = model.shape
    coded = sum(1 << level for level, grid in enumerate(model.latents) if grid.any())
    head = bytes([shape.levels, shape.synthesis, shape.entropy, shape.neighbours])
    head += coded.to_bytes(2, "big")
    numbers, symbols = [], []
    for tensor in model.networks.values():
        values = tensor.values.ravel()
        numbers.append(range_coder.choose(values))
        symbols.append(values)
        head += bytes([tensor.exponent, numbers[-1]])
    scales = np.repeat(np.array(numbers), [len(values) for values in symbols])
    return head, range_coder.encode(np.concatenate(symbols), scales), latents.encode(model)


def network_bits(networks: Mapping[str, Quantized]) -> float:
    """What `write` spends on networks, in bits, but for the 2 bytes of the stream's end."""
    return sum(
        16 + range_coder.bits(values := tensor.values.ravel(), range_coder.choose(values))
        for tensor in networks.values()
    )


def read(
    parts: tuple[bytes, bytes, bytes], size: tuple[int, int], channels: int, device: AnyDevice
) -> LatentModel:
    """The model in sections N, W and L of a picture of a (width, height) size.

    Raises FormatError.
    """
    head, weights, coded = parts
    _check(len(head) >= _SIZES, "the network section is too short")
    levels, synthesis, hidden, neighbours = head[:4]
    shape = ModelShape(size[1], size[0], channels, levels, synthesis, hidden, neighbours)
    networks = _networks(shape, head[_SIZES:], weights)
    there = int.from_bytes(head[4:_SIZES], "big")
    _check(there < 1 << levels, "latents are announced for a grid that is not there")
    grids = _latents(shape, networks, there, coded, device)
    return LatentModel(shape, grids, networks)


def _networks(shape: ModelShape, steps: bytes, data: bytes) -> dict[str, Quantized]:
    tensors = shape.tensors
    _check(len(steps) == 2 * len(tensors), f"steps of the network take {len(steps)} bytes")
    counts = {name: math.prod(size) for name, size in tensors.items()}
    pixels = shape.height * shape.width
    good = sum(counts.values()) * pixels <= MAX_PRODUCTS
    _check(good, "the networks are too large to decode a picture of this size")
    decoder = range_coder.Decoder(data)
    networks = {}
    pairs = zip(steps[::2], steps[1::2], strict=True)
    for (name, size), (exponent, number) in zip(tensors.items(), pairs, strict=True):
        values = decoder.read(counts[name], number)
        networks[name] = Quantized(values.astype(np.int32).reshape(size), exponent)
    decoder.finish()
    check_networks(shape, networks)
    return networks


def _latents(
    shape: ModelShape,
    networks: Mapping[str, Quantized],
    there: int,
    data: bytes,
    device: AnyDevice,
) -> tuple[Array, ...]:
    sizes = {level: size for level, size in enumerate(shape.grids) if there >> level & 1}
    count = sum(map(math.prod, sizes.values()))
    good = count <= MAX_LATENTS_PER_BYTE * (len(data) + 2)
    _check(good, f"{count:,} latents cannot be in {len(data):,} bytes")
    decoder = range_coder.Decoder(data)
    if isinstance(device, Device) and device.lanes == "one":
        grids: Grids | KernelGrids = KernelGrids(decoder, shape, networks, device)
    else:
        grids = Grids(decoder, shape, networks)
    found = {level: grids.read(size) for level, size in reversed(sizes.items())}
    decoder.finish()
    return tuple(
        found[level] if level in found else np.zeros(size, np.int8)
        for level, size in enumerate(shape.grids)
    )
