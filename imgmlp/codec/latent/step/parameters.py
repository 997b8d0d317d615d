"""The weights of all networks as one flat array: its layout, and its values before training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from imgmlp.codec.latent.model import (
    BICUBIC_TAPS,
    FILTER_SHAPE,
    NEIGHBOUR_OFFSETS,
    NEIGHBOUR_RADIUS,
    ModelShape,
    Quantized,
)
from imgmlp.codec.latent.pretrained import OUTPUT_LAYERS, PretrainedNetworks
from imgmlp.codec.latent.step import operations, upsampling

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
T = TypeVar("T")

HYPERLATENT_WEIGHT_SCALE = 0.4  # of random first-layer weights of hyperlatents


class Networks(NamedTuple, Generic[T]):
    """The tensors of a model in the order of the flat array, or the shapes of these."""

    synthesis: list[T]  # weight [inputs, outputs] and bias [outputs] of each layer
    convolutions: list[T]  # weight [9 * channels, channels] and bias [channels] of both
    entropy: list[T]  # as synthesis
    taps: list[T]  # upsampling [4] to each level but the coarsest; then the filter [9], if any

    @property
    def tensors(self) -> list[T]:
        """All of them."""
        return list(chain(*self))


def parameter_shapes(shape: ModelShape) -> Networks[Shape]:
    """The shapes of the tensors in the flat array."""
    channels = shape.channels
    synthesis, entropy = shape.synthesis_width, shape.entropy_width
    contexts = operations.NEIGHBOURS + len(shape.hyperlatent_levels)
    return Networks(
        _layer_shapes(shape.synthesis_inputs, synthesis, synthesis, channels),
        [(9 * channels, channels), (channels,)] * 2,
        _layer_shapes(contexts, entropy, entropy, 2),
        [*[(upsampling.TAPS,)] * (shape.levels - 1), *[FILTER_SHAPE] * shape.has_filter],
    )


def _layer_shapes(*widths: int) -> list[Shape]:
    shapes = list[Shape]()
    for inputs, outputs in pairwise(widths):
        shapes += [(inputs, outputs), (outputs,)]
    return shapes


def grouped(tensors: Sequence[T], shapes: Networks[Shape]) -> Networks[T]:
    """Tensors in the order of the flat array, by network."""
    rest = iter(tensors)
    return Networks(*([next(rest) for _ in network] for network in shapes))


# --- conversion to a file's tensors and back ---


def networks_of(flat: Array, shapes: Networks[Shape]) -> dict[str, Array]:
    """A file's tensors, as views or copies, from a flat array [parameters]."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.tensors])[:-1]
    parts = zip(np.split(flat, ends), shapes.tensors, strict=True)
    networks = grouped([part.reshape(shape) for part, shape in parts], shapes)
    tensors = dict(zip(_dense_names("entropy"), networks.entropy, strict=True))
    first = tensors["entropy.0.weight"]
    tensors["entropy.0.weight"] = first[trained_order(len(first))]
    kernels = [taps for taps in networks.taps if taps.shape != FILTER_SHAPE]
    tensors["upsampling"] = np.array(kernels).reshape(-1, upsampling.TAPS)
    tensors |= dict(zip(_dense_names("synthesis"), networks.synthesis, strict=True))
    for number in range(2):
        weight, bias = networks.convolutions[2 * number : 2 * number + 2]
        kernel = weight.reshape(bias.size, 3, 3, bias.size).transpose(1, 2, 0, 3)
        tensors[f"residual.{number}.weight"] = kernel
        tensors[f"residual.{number}.bias"] = bias
    if len(kernels) < len(networks.taps):
        tensors["filter"] = networks.taps[-1].reshape(3, 3)
    return tensors


def flat_of(networks: Mapping[str, Array]) -> Array:
    """The inverse of `networks_of`: float32 [parameters]."""
    first, *entropy = (networks[name] for name in _dense_names("entropy"))
    reordered = np.empty_like(first)
    reordered[trained_order(len(first))] = first
    arrays = [networks[name] for name in _dense_names("synthesis")]
    for number in range(2):
        bias = networks[f"residual.{number}.bias"]
        weight = networks[f"residual.{number}.weight"].transpose(2, 0, 1, 3)
        arrays += [weight.reshape(-1, bias.size), bias]
    arrays += [reordered, *entropy, networks["upsampling"]]
    if "filter" in networks:
        arrays.append(networks["filter"])
    return np.concatenate([np.ravel(a) for a in arrays]).astype(np.float32)


def flat_of_quantized(networks: Mapping[str, Quantized]) -> Array:
    """float32 [parameters]: the weights that a file's tensors stand for."""
    return flat_of({name: tensor.floats() for name, tensor in networks.items()})


def _dense_names(network: str) -> list[str]:
    return [f"{network}.{n}.{kind}" for n in range(3) for kind in ("weight", "bias")]


def trained_order(rows: int) -> list[int]:
    """For every input of the entropy network, its row in the first layer as training has it.

    Training orders neighbours by position; the inputs from hyperlatents come last in both.
    """
    width = 2 * NEIGHBOUR_RADIUS + 1
    by_position = [
        (down + NEIGHBOUR_RADIUS) * width + right + NEIGHBOUR_RADIUS
        for down, right in NEIGHBOUR_OFFSETS
    ]
    return [*by_position, *range(len(by_position), rows)]


# --- values before training ---


def random_parameters(shapes: Networks[Shape], seed: int) -> Array:
    """float32 [parameters]: He-initialised layers; convolutions and biases are zero, upsampling is
    bicubic, and the filter a mean."""
    generator = np.random.Generator(np.random.PCG64(seed))
    arrays = [
        *_random_layers(shapes.synthesis, generator),
        *map(np.zeros, shapes.convolutions),
        *_random_layers(shapes.entropy, generator),
        *(np.full(s, 1 / 9) if s == FILTER_SHAPE else np.array(BICUBIC_TAPS) for s in shapes.taps),
    ]
    return np.concatenate([array.ravel() for array in arrays]).astype(np.float32)


def _random_layers(shapes: Sequence[Shape], generator: np.random.Generator) -> list[Array]:
    arrays = list[Array]()
    for number, shape in enumerate(shapes):
        if len(shape) == 1:
            arrays.append(np.zeros(shape))
            continue
        gain = 1 if number == len(shapes) - 2 else 2  # 2 before an activation
        arrays.append(generator.standard_normal(shape) * math.sqrt(gain / shape[0]))
    return arrays


def with_pretrained(
    flat: Array, shape: ModelShape, pretrained: PretrainedNetworks, has_output_layers: bool
) -> Array:
    """float32 [parameters]: pretrained weights where there are any, the others as given.

    Unless it `has_output_layers`, those layers stay as given that have an output for each channel.
    """
    given, weights = networks_of(flat, parameter_shapes(shape)), pretrained.floats()
    if not has_output_layers:
        weights = {n: v for n, v in weights.items() if n.rpartition(".")[0] not in OUTPUT_LAYERS}
    colours = shape.channels - (shape.channels in (2, 4))
    # Pretrained networks lack the weights of hyperlatents, of extra grids and of alpha, which
    # noise alone would have to move from 0. From these rows and columns on, the given weights are
    # taken, times a scale.
    missing = (
        ("entropy.0.weight", operations.NEIGHBOURS, 0, HYPERLATENT_WEIGHT_SCALE),
        ("synthesis.0.weight", shape.synthesis_inputs - shape.extra_grids, 0, 1.0),
        ("synthesis.2.weight", 0, colours, 1.0),
    )
    for name, row, column, scale in missing:
        if name in weights:
            weights[name][row:, column:] = scale * given[name][row:, column:]
    return flat_of(given | weights)
