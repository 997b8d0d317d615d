"""Small models of whole numbers that several tests decode, and what trains them."""

from __future__ import annotations

import numpy as np

from imgmlp.codec.bitstream.quantize import nearest_step
from imgmlp.codec.latent.model import (
    BICUBIC_TAPS,
    LatentModel,
    ModelShape,
    Quantized,
    default_levels,
    quantized,
)
from imgmlp.codec.latent.pretrained import hidden_widths, pretrained_networks
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.mlp.network import MAX_LAST_LAYER_STEP, Layer, Network, Shape
from imgmlp.engine import Program


def small_network(channels: int = 3, width: int = 8, frequencies: int = 3) -> Network:
    """A network of random weights whose pictures have some contrast."""
    generator = np.random.default_rng(7)
    shape = Shape(frequencies, 2, width, channels)
    layers = []
    for inputs, outputs in zip(shape.sizes, shape.sizes[1:], strict=False):
        deviation = np.sqrt(2 / inputs)
        weights = np.rint(generator.normal(0, 60, (inputs, outputs))).astype(np.int32)
        biases = np.rint(generator.normal(0, 40, outputs)).astype(np.int32)
        layers.append(Layer(weights, biases, nearest_step(deviation / 60, MAX_LAST_LAYER_STEP), 2))
    return Network(shape, tuple(layers))


def started_latent_model(
    height: int = 21, width: int = 26, channels: int = 3, number: int = 1, **has: int
) -> LatentModel:
    """A model whose networks begin from a start and differ in few of their weights; one tensor is
    another altogether, and steps are finer and coarser than the start's. It has a filter,
    hyperlatents or extra grids if `has` says so.
    """
    hidden, entropy = hidden_widths(number)
    model = small_latent_model(
        height, width, channels, synthesis_width=hidden, entropy_width=entropy, **has
    )
    start, chance = pretrained_networks(number, model.shape), np.random.default_rng(number)
    networks = dict(model.networks)
    for at, (name, tensor) in enumerate(networks.items()):
        if name in start.tensors and name != "synthesis.1.weight":
            exponent = 12 if name.endswith("bias") else 5 + at % 4
            differences = chance.poisson(0.05, tensor.values.shape).astype(np.int32)
            values = start.rounded(name, exponent) + differences
            if name == "entropy.0.weight":  # to whose rows for hyperlatents a start adds nothing
                own = values[model.shape.neighbours :]
                own += chance.integers(-9, 10, own.shape, np.int32)
            if name == "synthesis.0.weight":  # nor to those for extra grids
                own = values[len(values) - model.shape.extra_grids :]
                own += chance.integers(-9, 10, own.shape, np.int32)
            networks[name] = Quantized(values, exponent)
    return LatentModel(model.shape, model.latents, networks, number)


def small_latent_model(
    height: int = 21, width: int = 26, channels: int = 3, spread: float = 1.5,
    has_filter: bool = False, has_hyperlatents: bool = False, **sizes: int,
) -> LatentModel:  # fmt: skip
    """A model of random latents and weights; its picture has many grays."""
    chance = np.random.default_rng([height, width, channels])
    levels = default_levels(height, width)
    shape = ModelShape(
        height,
        width,
        channels,
        levels,
        has_filter=has_filter,
        has_hyperlatents=has_hyperlatents,
        **sizes,
    )
    networks = {}
    for name, size in shape.tensor_shapes.items():
        deviation = 0.1 if name.endswith("bias") else 1 / np.sqrt(max(1, np.prod(size[:-1])))
        networks[name] = quantized(chance.normal(0, deviation, size), 6)
    networks["upsampling"] = quantized(np.tile(BICUBIC_TAPS, (shape.levels - 1, 1)), 7)
    networks["entropy.2.bias"] = quantized(np.array([0.1, 4.0]), 8)
    grids = tuple(
        np.clip(np.rint(chance.laplace(0, spread, size)), -64, 63).astype(np.int8)
        for size in shape.grid_sizes
    )
    return LatentModel(shape, grids, networks)


def latent_programs(step: LatentStep) -> list[Program]:
    """All that it runs."""
    return [step.program, step._showing, *step._judging.values()]
