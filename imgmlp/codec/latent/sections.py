"""Serialises a latent model as the data of a file's sections (docs/format-imlp.md).

Files are untrusted input: sizes are compared with limits before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np

from imgmlp.codec.bitstream import code_lengths, range_coder
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

# Limits of the stream of latents: the most likely latent costs 1/11,000 bit, the least likely 22.
MAX_LATENTS_PER_BYTE = 2**17
MAX_BYTES_PER_LATENT = 3
MAX_STREAM_END_BYTES = 3

# Section N begins with sizes: without pretrained networks six bytes, followed by two bytes for each
# tensor; with pretrained networks four bytes in all, as these determine the widths.
_SIZES_BYTES = 6
_PRETRAINED_SIZES_BYTES = 4
_PRETRAINED_FLAG = 128  # of the first byte, which otherwise is the number of levels
# The last two bytes of the sizes: one bit for each pyramid level that is coded, and these fields.
_FILTER_FLAG = 1 << 15
_HYPERLATENTS_FLAG = 1 << 14
_EXTRA_GRIDS_SHIFT = 12  # position of the number of extra grids, which has two bits

# With pretrained networks, section W has three integers before the values of each tensor: its
# exponent minus the default one, whether the values are absolute instead of differences, and the
# number of their distribution minus _DEFAULT_DISTRIBUTION.
_PREFIX_DISTRIBUTIONS = np.array([17, 7, 27])  # of these integers
_DEFAULT_DISTRIBUTION = 15
_DEFAULT_EXPONENTS = {"weight": 7, "bias": 7, "filter": 7, "upsampling": 8}  # by kind of tensor


class TensorCoding(NamedTuple):
    """How the values of a tensor are coded in the fewest bits."""

    base: Array | int  # subtracted from the values: pretrained values, or 0
    distribution: int  # number of the distribution of the rest
    bits: float


def write(model: LatentModel, device: AnyDevice | None = None) -> tuple[bytes, bytes, bytes]:
    """The data of sections N, W and L, which are the same whatever the device.

    Without a device, NumPy codes the latents.
    """
    pretrained = pretrained_networks(model.pretrained, model.shape)
    sizes = _sizes(model)
    symbols, distributions = [], []
    for name, tensor in model.networks.items():
        coding = cheapest_coding(name, tensor, pretrained)
        if pretrained.number:
            symbols.append(_prefix(name, tensor, coding))
            distributions.append(_PREFIX_DISTRIBUTIONS)
        else:
            sizes += bytes([tensor.exponent, coding.distribution])
        symbols.append((tensor.values - coding.base).ravel())
        distributions.append(np.full(symbols[-1].shape, coding.distribution))
    weights = range_coder.encode(np.concatenate(symbols), np.concatenate(distributions))
    return sizes, weights, _write_latents(model, device)


def _sizes(model: LatentModel) -> bytes:
    """The beginning of section N."""
    shape = model.shape
    fields = sum(1 << level for level in model.coded_grids if level < shape.levels)
    fields |= _FILTER_FLAG * shape.has_filter | _HYPERLATENTS_FLAG * shape.has_hyperlatents
    fields |= shape.extra_grids << _EXTRA_GRIDS_SHIFT
    if model.pretrained:
        sizes = [_PRETRAINED_FLAG | shape.levels, model.pretrained]
    else:
        sizes = [shape.levels, shape.synthesis_width, shape.entropy_width, shape.neighbours]
    return bytes(sizes) + fields.to_bytes(2, "big")


def _write_latents(model: LatentModel, device: AnyDevice | None) -> bytes:
    def write_by_kernel(processor: Device) -> bytes:
        encoder = range_coder.Encoder()
        writer = KernelGridWriter(encoder, model.shape, model.networks, processor)
        for grid, maps in latents.grids_in_file_order(model):
            writer.write(grid, maps)
        return encoder.finish()

    return _by_kernel_or_numpy(device, write_by_kernel, lambda: latents.encode(model))


def _by_kernel_or_numpy(
    device: AnyDevice | None, by_kernel: Callable[[Device], T], by_numpy: Callable[[], T]
) -> T:
    """The result of a kernel on a sequential processor or, if there is none, of NumPy.

    If the processor is not the device itself but was picked beside a GPU, its errors are not the
    user's concern: NumPy takes over.
    """
    processor = sequential_processor(device)
    if processor is not None:
        try:
            return by_kernel(processor)
        except (DeviceError, OutOfMemoryError):
            if processor is device:
                raise
    return by_numpy()


def cheapest_coding(name: str, tensor: Quantized, pretrained: PretrainedNetworks) -> TensorCoding:
    """The coding of a tensor with the fewest bits: as differences, if they are cheaper."""
    bases: list[Array | int] = [0]
    if name in pretrained.tensors:
        bases.insert(0, pretrained.rounded(name, tensor.exponent))
    codings = (
        TensorCoding(base, *code_lengths.best_distribution((tensor.values - base).ravel()))
        for base in bases
    )
    return min(codings, key=lambda coding: coding.bits)


def _prefix(name: str, tensor: Quantized, coding: TensorCoding) -> Array:
    """The integers before a tensor's values, if there are pretrained networks."""
    finer = tensor.exponent - default_exponent(name)
    is_absolute = isinstance(coding.base, int)
    return np.array([finer, is_absolute, coding.distribution - _DEFAULT_DISTRIBUTION])


def network_bits(networks: Mapping[str, Quantized], pretrained: PretrainedNetworks) -> float:
    """The bits that `write` spends on networks, without up to 3 bytes at the stream's end."""
    bits = 0.0
    for name, tensor in networks.items():
        coding = cheapest_coding(name, tensor, pretrained)
        prefix = _prefix(name, tensor, coding)
        bits += coding.bits + (_prefix_bits(*prefix.tolist()) if pretrained.number else 16)
    return bits


@cache
def _prefix_bits(*prefix: int) -> float:
    return code_lengths.total_bits(np.array(prefix), _PREFIX_DISTRIBUTIONS)


def default_exponent(name: str) -> int:
    """The usual exponent of a tensor's step size."""
    return _DEFAULT_EXPONENTS[name.rpartition(".")[2]]


def read(
    sections: tuple[bytes, bytes, bytes],
    size: tuple[int, int],
    channels: int,
    device: AnyDevice,
) -> LatentModel:
    """The model in sections N, W and L of a picture of a (width, height) size.

    Raises FormatError.
    """
    head, weights, stream = sections
    is_pretrained = len(head) == _PRETRAINED_SIZES_BYTES and head[0] >= _PRETRAINED_FLAG
    check_format(is_pretrained or len(head) >= _SIZES_BYTES, "the network section is too short")
    if is_pretrained:
        levels, number = head[0] - _PRETRAINED_FLAG, head[1]
        widths = *hidden_widths(number), len(NEIGHBOUR_OFFSETS)
        fields = int.from_bytes(head[2:4], "big")
    else:
        levels, number = head[0], 0
        widths = head[1], head[2], head[3]
        fields = int.from_bytes(head[4:_SIZES_BYTES], "big")
    has_filter, has_hyperlatents = fields & _FILTER_FLAG > 0, fields & _HYPERLATENTS_FLAG > 0
    extra_grids = fields >> _EXTRA_GRIDS_SHIFT & MAX_EXTRA_GRIDS
    coded_levels = fields & (1 << _EXTRA_GRIDS_SHIFT) - 1
    shape = ModelShape(
        size[1], size[0], channels, levels, *widths, has_filter, has_hyperlatents, extra_grids
    )
    if is_pretrained:
        networks = _read_differences(shape, pretrained_networks(number, shape), weights)
    else:
        networks = _read_networks(shape, head[_SIZES_BYTES:], weights)
    check_networks(shape, networks)
    check_format(coded_levels < 1 << levels, "latents are announced for a grid that is not there")
    grids = _read_latents(shape, networks, coded_levels, stream, device)
    return LatentModel(shape, grids, networks, number)


def _read_networks(shape: ModelShape, codings: bytes, data: bytes) -> dict[str, Quantized]:
    """Networks without pretrained ones; `codings` has an exponent and a distribution per tensor."""
    shapes = shape.tensor_shapes
    is_complete = len(codings) == 2 * len(shapes)
    check_format(is_complete, f"steps of the network take {len(codings)} bytes")
    decoder, networks = range_coder.Decoder(data), {}
    pairs = zip(codings[::2], codings[1::2], strict=True)
    for (name, size), (exponent, distribution) in zip(shapes.items(), pairs, strict=True):
        values = decoder.read(math.prod(size), distribution)
        networks[name] = Quantized(values.astype(np.int32).reshape(size), exponent)
    decoder.finish()
    return networks


def _read_differences(
    shape: ModelShape, pretrained: PretrainedNetworks, data: bytes
) -> dict[str, Quantized]:
    """Networks that are coded relative to pretrained ones."""
    decoder, networks = range_coder.Decoder(data), {}
    for name, size in shape.tensor_shapes.items():
        prefix = decoder.read(len(_PREFIX_DISTRIBUTIONS), _PREFIX_DISTRIBUTIONS)
        finer, is_absolute, distribution = prefix.tolist()
        exponent = default_exponent(name) + finer
        check_format(0 <= exponent <= MAX_EXPONENT + VALUE_BITS, f"{name} has no such step")
        check_format(is_absolute in (0, 1), f"{name} is neither whole nor differences")
        values = decoder.read(math.prod(size), distribution + _DEFAULT_DISTRIBUTION).reshape(size)
        base = 0 if is_absolute else pretrained.rounded(name, exponent)
        networks[name] = Quantized((values + base).astype(np.int32), exponent)
    decoder.finish()
    return networks


def _read_latents(
    shape: ModelShape,
    networks: Mapping[str, Quantized],
    coded_levels: int,
    data: bytes,
    device: AnyDevice,
) -> tuple[Array, ...]:
    """All grids; bit l of `coded_levels` says whether the stream holds pyramid level l."""
    coded_grids = coded_levels | -1 << shape.levels  # additional grids are always coded
    sizes = {
        number: size for number, size in enumerate(shape.grid_sizes) if coded_grids >> number & 1
    }
    count = sum(map(math.prod, sizes.values()))
    is_plausible = count <= MAX_LATENTS_PER_BYTE * (len(data) + 2)
    check_format(is_plausible, f"{count:,} latents cannot be in {len(data):,} bytes")
    is_plausible = len(data) <= MAX_BYTES_PER_LATENT * count + MAX_STREAM_END_BYTES
    check_format(is_plausible, f"{count:,} latents cannot take {len(data):,} bytes")
    grids = _read_coded_grids(shape, networks, sizes, data, device)
    return tuple(
        grids[number] if number in grids else np.zeros(size, np.int8)
        for number, size in enumerate(shape.grid_sizes)
    )


def _read_coded_grids(
    shape: ModelShape,
    networks: Mapping[str, Quantized],
    sizes: dict[int, tuple[int, int]],
    data: bytes,
    device: AnyDevice,
) -> dict[int, Array]:
    """The grids of these sizes by number. The stream holds them from the last number on."""

    def read_by_kernel(processor: Device) -> dict[int, Array]:
        decoder = range_coder.Decoder(data)
        reader = KernelGridReader(decoder, shape, networks, processor)
        grids = _read_in_order(reader, shape, sizes)
        decoder.finish()
        return grids

    def read_by_numpy() -> dict[int, Array]:
        decoder = range_coder.Decoder(data)
        grids = _read_in_order(GridReader(decoder, shape, networks), shape, sizes)
        decoder.finish()
        return grids

    return _by_kernel_or_numpy(device, read_by_kernel, read_by_numpy)


def _read_in_order(
    reader: GridReader | KernelGridReader,
    shape: ModelShape,
    sizes: Mapping[int, tuple[int, int]],
) -> dict[int, Array]:
    additional = range(shape.levels, len(shape.grid_sizes))
    grids = {number: reader.read(sizes[number]) for number in reversed(additional)}
    hyperlatents = [grids[number] for number in additional] if shape.has_hyperlatents else []
    maps = HyperlatentMaps(shape, hyperlatents)
    for number in sorted(set(sizes) - set(grids), reverse=True):
        level_maps = maps.at(number) if shape.has_hyperlatents else None
        grids[number] = reader.read(sizes[number], level_maps)
    return grids
