"""Progressive quantisation: networks are rounded part by part while the rest is trained on.

Rounding all weights at once costs more than their step sizes require, since what one weight loses
others can make up for (incremental network quantisation: Zhou et al. 2017, arXiv 1702.03044). With
it, step sizes may be coarser for the same picture, so that networks cost fewer bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from imgmlp.codec.latent.model import Quantized, quantized
from imgmlp.codec.latent.step.control import TILE_SUBSAMPLING, Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.step.parameters import networks_of
from imgmlp.codec.training.replay import next_chunk

MIN_WEIGHTS_TO_COARSEN = 100  # of a tensor, above which its step size is doubled
MIN_STEPS_TO_TRY_TWICE = 600  # from which on step sizes that were searched for are tried first
REMAINING_COST_FRACTION = 0.1  # of what rounding all weights at once costs, about
ROUNDED_FRACTIONS = 0.5, 0.75, 0.875, 0.94, 0.97, 1.0  # of all weights, one stage after the other
LEARNING_RATE = 1.5e-3  # of the weights that are still free, at the beginning of a stage
LEARNING_RATE_DECAY = 0.7  # fraction by which that falls during a stage
# Networks move with each window: the rate is divided by their number to this power.
RATE_WINDOWS_EXPONENT = 1 / 3
STEPS_PER_LEARNING_RATE = 5


def coarser_exponents(networks: Mapping[str, Quantized]) -> dict[str, int]:
    """Step exponents that any networks can take with progressive quantisation."""
    return {
        n: one.exponent - (one.values.size > MIN_WEIGHTS_TO_COARSEN) for n, one in networks.items()
    }


def quantise(
    step: LatentStep,
    exponents: Mapping[str, int],
    lmbda: float,
    count: int,
    enough: Callable[[], bool],
) -> dict[str, Quantized]:
    """Quantise the networks of a training step to these step exponents, in `count` training steps.

    The latents stay the whole numbers that they are. Once `enough` says so, all weights that are
    still free are rounded at once. Afterwards the step has the quantised networks and a higher
    count.
    """
    floats = step.flat.numpy()
    places = networks_of(np.arange(len(floats)), step.parameter_shapes)
    exponent = np.empty(len(floats), np.intc)
    for name, at in places.items():
        exponent[at] = exponents[name]
    order = np.random.Generator(np.random.PCG64(step.seed)).permutation(len(floats))
    free = np.ones(len(floats), np.float32)
    ends = np.round(np.linspace(0, count, len(ROUNDED_FRACTIONS))).astype(int).tolist()
    try:
        for number, fraction in enumerate(ROUNDED_FRACTIONS):
            floats = step.flat.numpy()
            now = order[: round(fraction * len(order))]
            whole = np.floor(np.ldexp(floats[now].astype(np.float64), exponent[now]) + 0.5)
            floats[now], free[now] = np.ldexp(whole, -exponent[now]), 0
            step.flat.write(floats)
            step.trainable.write(free)
            if fraction < 1:
                _learn(step, lmbda, ends[number + 1] - ends[number], enough)
    finally:
        step.trainable.write(np.ones_like(free))
    networks = networks_of(floats, step.parameter_shapes)
    return {name: quantized(values, exponents[name]) for name, values in networks.items()}


def _learn(step: LatentStep, lmbda: float, count: int, enough: Callable[[], bool]) -> None:
    """Train the free weights, which make up for the rounded ones."""
    chunk, highest = 1, LEARNING_RATE / len(step.windows) ** RATE_WINDOWS_EXPONENT
    for done in range(0, count, STEPS_PER_LEARNING_RATE):
        rate = highest * (1 - LEARNING_RATE_DECAY * done / count)
        step.steer(
            Control(
                lmbda,
                latent_lr=0.0,
                network_lr=rate,
                hard_rounding=True,
                tile_subsampling=TILE_SUBSAMPLING,
            )
        )
        left = min(STEPS_PER_LEARNING_RATE, count - done)
        while left:
            taken = min(step.steps_at_once or chunk, left)
            began = time.perf_counter()
            if enough() or not step.run(taken, enough):
                return
            chunk = next_chunk(chunk, time.perf_counter() - began)
            left -= taken
