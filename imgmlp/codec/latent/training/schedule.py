"""The schedule of a run: what holds at each of its steps.

For most of a run latents are rounded softly, with noise that stands for what rounding will do to
them, while temperature and learning rates anneal. Then they are truly rounded and stand still, and
only the networks go on. Plain numbers; nothing here knows a picture or a device.

How the values were found is told in docs/compression-trials.md, "Steps".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from imgmlp.codec.latent.pretrained import training_lmbda
from imgmlp.codec.latent.step.control import (
    BETA2,
    LAST_NOISE_SHAPE,
    LAST_TEMPERATURE,
    LATENT_BETA1,
    TILE_SUBSAMPLING,
    Control,
)

ROUNDED_FROM = 0.97  # fraction of a run after which latents are rounded

# Runs of fewer steps than the first have no time to move far: latents move faster, networks, which
# are pretrained, more slowly. In those of fewer than the second there is less noise as well, and
# networks hardly move.
SHORT_RUN, VERY_SHORT_RUN = 300, 40
# The factor by which latents are faster and networks slower in a short run: a power of how many
# times fewer steps it has, and its maximum.
SHORT_RUN_EXPONENT, MAX_SHORT_RUN_FACTOR = 0.43, 2.0

TEMPERATURES = 0.3, LAST_TEMPERATURE  # of soft rounding: first and last
# Runs of fewer steps begin at a higher temperature, by the fourth root of how many times fewer.
FULL_ANNEALING, MAX_TEMPERATURE = 2000, 1.0
NOISE_SHAPES = 0.63, LAST_NOISE_SHAPE  # as in Control: first and last

LATENT_LR, NETWORK_LR = 0.2, 7e-3  # learning rates at the beginning; both fall by a cosine
ROUNDED_NETWORK_LR = 1e-3  # of networks once latents are rounded; falls to a tenth of it
# Factor of LATENT_LR in runs of so many steps.
LATENT_LR_FACTORS, LATENT_LR_FACTORS_AT = (1.0, 1.5), (SHORT_RUN, 12_000)
# What Adam keeps of the networks' squared gradients in runs of so many steps: in short ones, early
# gradients soon tell little about later ones.
NETWORK_BETA2S, NETWORK_BETA2S_AT = (0.93, BETA2), (SHORT_RUN, 900)
# What Adam keeps of the latents' gradients, in runs of so many steps, where several windows share
# these: with few steps for each window, older gradients are of less use.
WINDOWED_BETA1S, WINDOWED_BETA1S_AT = (0.6, LATENT_BETA1), (60, SHORT_RUN)
# With n windows, networks move n times as often. In runs of so many steps their learning rate is
# divided by n to this power.
WINDOW_EXPONENTS, WINDOW_EXPONENTS_AT = (1 / 3, 0.6), (100, SHORT_RUN)

# Pretrained networks suit the step sizes of latents at the lambda that they were trained at. At a
# lower one latents are scaled up, and so coded in finer steps, by this power of the ratio.
LATENT_SCALE_EXPONENT, MAX_LATENT_SCALE = 0.4, 16.0
# But only where that is more than this factor, and more yet in pictures of fewer pixels than the
# second, as networks that differ from the pretrained ones cost bits.
MIN_LATENT_SCALE, SMALL_PICTURE_PIXELS = 1.2, 4096


def control(done: int, steps: int, lmbda: float, windows: int = 1) -> Control:
    """What holds after `done` of `steps` steps, in one window or several."""
    shared = windows > 1
    usual = Control(
        lmbda,
        tile_subsampling=TILE_SUBSAMPLING,
        network_beta2=_for_length(steps, NETWORK_BETA2S_AT, NETWORK_BETA2S),
        latent_beta1=_for_length(steps, WINDOWED_BETA1S_AT, WINDOWED_BETA1S)
        if shared
        else LATENT_BETA1,
    )
    end = ROUNDED_FROM * steps
    if done >= end:
        left = (steps - done) / max(steps - end, 1)
        rate = ROUNDED_NETWORK_LR * 0.1 ** (1 - left)
        return replace(usual, latent_lr=0.0, network_lr=rate, hard_rounding=True)
    progress = done / end
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    hurry = min(max(SHORT_RUN / steps, 1.0) ** SHORT_RUN_EXPONENT, MAX_SHORT_RUN_FACTOR)
    calm = min(steps / VERY_SHORT_RUN, 1.0)
    first, last = TEMPERATURES
    first = min(MAX_TEMPERATURE, first * max(1.0, FULL_ANNEALING / steps) ** 0.25)
    temperature, noise_shape = (a + (b - a) * progress for a, b in ((first, last), NOISE_SHAPES))
    faster = _for_length(steps, LATENT_LR_FACTORS_AT, LATENT_LR_FACTORS)
    return replace(
        usual,
        temperature=temperature * math.sqrt(calm),
        noise_shape=noise_shape,
        noise_scale=calm,
        latent_lr=LATENT_LR * hurry * faster * cosine,
        network_lr=NETWORK_LR / hurry * calm * cosine,
    )


def window_exponent(steps: int) -> float:
    """The power of the number of windows that divides the networks' learning rate."""
    return _for_length(steps, WINDOW_EXPONENTS_AT, WINDOW_EXPONENTS)


def latent_scale(lmbda: float, pixels: int, steps: int, pretrained: int) -> float:
    """The factor by which latents should be larger than the pretrained networks of that number
    expect them, in a run of so many steps."""
    if steps < SHORT_RUN:
        return 1.0  # too few steps to make use of finer ones and to hit a target then
    scale = min(
        math.pow(training_lmbda(pretrained) / lmbda, LATENT_SCALE_EXPONENT), MAX_LATENT_SCALE
    )
    smallness = max(SMALL_PICTURE_PIXELS / pixels, 1.0)
    worthwhile = MIN_LATENT_SCALE * math.pow(smallness, LATENT_SCALE_EXPONENT)
    return scale if scale > worthwhile else 1.0


def _for_length(steps: int, at: Sequence[float], values: Sequence[float]) -> float:
    """Interpolated by the logarithm of a run's length; beyond the ends, the value there."""
    return float(np.interp(math.log(max(steps, 1)), np.log(at), values))
