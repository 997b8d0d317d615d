"""Networks rounded a share at a time, while the weights that are left make up for it.

To round all weights at once costs more than their steps have to: what one of them loses, others
can give back (incremental quantisation: Zhou et al. 2017, arXiv 1702.03044). So steps may be
coarser for the same picture, and networks cost fewer bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from imgmlp.codec.latent.model import Quantized, networks_of, quantized
from imgmlp.codec.latent.step.latent_step import TILES, Control, LatentStep
from imgmlp.codec.training.replay import next_chunk

# Weights of a tensor, above which its step is twice as coarse, where they are too few to look for
# the best steps.
MANY_WEIGHTS, AMPLE = 100, 600
LEFT = 0.1  # share of what rounding all weights at once costs that is left, about
# Of all weights, that are rounded one after the other.
ROUNDED_SHARES = 0.5, 0.75, 0.875, 0.94, 0.97, 1.0
RATE, FALLING = 1.5e-3, 0.7  # learning rate of those that are left, and what it falls by each time
# The power of how many windows there are by which it is less, as networks move with each.
RATE_BY_WINDOWS = 1 / 3
STEPS_OF_A_RATE = 5  # steps between two rates


def coarser(networks: Mapping[str, Quantized]) -> dict[str, int]:
    """Exponents of steps that any networks can have then."""
    return {n: one.exponent - (one.values.size > MANY_WEIGHTS) for n, one in networks.items()}


def hardened(
    step: LatentStep,
    exponents: Mapping[str, int],
    lmbda: float,
    count: int,
    enough: Callable[[], bool],
) -> dict[str, Quantized]:
    """Networks in steps of these exponents, from those that a step has, by so many steps of it.

    The latents, whole numbers, stay as they are. Once it is `enough`, all weights that are left are
    rounded at once. The step's networks are those that were found then, its count is higher.
    """
    floats = step.flat.numpy()
    places = networks_of(np.arange(len(floats)), step.shapes)
    exponent = np.empty(len(floats), np.intc)
    for name, at in places.items():
        exponent[at] = exponents[name]
    order = np.random.Generator(np.random.PCG64(step.seed)).permutation(len(floats))
    free = np.ones(len(floats), np.float32)
    ends = np.round(np.linspace(0, count, len(ROUNDED_SHARES))).astype(int).tolist()
    try:
        for number, share in enumerate(ROUNDED_SHARES):
            floats = step.flat.numpy()
            now = order[: round(share * len(order))]
            whole = np.floor(np.ldexp(floats[now].astype(np.float64), exponent[now]) + 0.5)
            floats[now], free[now] = np.ldexp(whole, -exponent[now]), 0
            step.flat.write(floats)
            step.free.write(free)
            if share < 1:
                _learn(step, lmbda, ends[number + 1] - ends[number], enough)
    finally:
        step.free.write(np.ones_like(free))
    found = networks_of(floats, step.shapes)
    return {name: quantized(values, exponents[name]) for name, values in found.items()}


def _learn(step: LatentStep, lmbda: float, count: int, enough: Callable[[], bool]) -> None:
    """Have the weights that are free make up for the others."""
    chunk, highest = 1, RATE / len(step.windows) ** RATE_BY_WINDOWS
    for done in range(0, count, STEPS_OF_A_RATE):
        rate = highest * (1 - FALLING * done / count)
        step.steer(Control(lmbda, latents=0.0, networks=rate, rounding=True, tiles=TILES))
        left = min(STEPS_OF_A_RATE, count - done)
        while left:
            taken = min(step.together or chunk, left)
            began = time.perf_counter()
            if enough() or not step.run(taken, enough):
                return
            chunk = next_chunk(chunk, time.perf_counter() - began)
            left -= taken
