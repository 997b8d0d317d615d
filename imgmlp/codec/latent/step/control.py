"""What the host decides between training steps: learning rates, noise, rounding, lambda.

The device reads it from one small array, so that one program serves all phases of a run and all
lambdas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]
T = TypeVar("T")

# Adam. Latents see noise of alternating sign in successive steps, hence their lower beta1.
NETWORK_BETA1, LATENT_BETA1, BETA2 = 0.9, 0.8, 0.98
# Epsilon is meant for gradients of the loss summed over pixels, at this lambda and higher ones; at
# lower ones gradients are smaller, and are scaled up.
ADAM_EPSILON, EPSILON_LMBDA = 4e-3, 1e-3
MAX_GRADIENT_NORM = 0.1  # of the networks' gradient, for a loss that is a mean over pixels
# Gradients are computed in half precision, so the loss is scaled: lambda times the scale is at
# least this, and the scale at most that for each channel. The latter is because an error of 1, of
# black for white, then has a gradient of 1024 in a sample, and halves end at 64 times that, which
# leaves room for what the networks make of it.
MIN_SCALED_LMBDA, MAX_LOSS_SCALE = 0.25, 2.0**9
TILE_SUBSAMPLING = 4  # of gradients of networks, for steps in which an estimate is enough
FLAT_TEMPERATURE = 1e3  # at which soft rounding is the identity
# Of soft rounding and its noise at the end of training, before latents are rounded.
LAST_TEMPERATURE, LAST_NOISE_SHAPE = 0.1, 0.77


class Steering(NamedTuple, Generic[T]):
    """What the device is given for a step, from `Control`: float32, in this order."""

    inverse_temperature: T
    rounding_gain: T  # with which soft rounding maps whole numbers to themselves
    noise_shape: T
    noise_scale: T
    latent_lr: T
    network_lr: T
    lmbda: T
    hard_rounding: T  # 1 or 0
    loss_scale: T
    max_norm: T  # of the networks' gradient
    weight_rate_factor: T  # times lambda that bits of weights cost
    gradient_gain: T  # of gradients beside Adam's epsilon
    update_interval: T  # steps from one update of a latent to its next
    tile_subsampling: T
    network_beta2: T
    latent_beta1: T


@dataclass
class Control:
    """What the host decides anew while the program is replayed."""

    lmbda: float  # squared error on [0, 1] that a bit a pixel is worth
    temperature: float = 0.3  # of soft rounding
    noise_shape: float = 0.63  # 1 is uniform noise, 1/2 has most around 0
    noise_scale: float = 1.0
    latent_lr: float = 0.2  # in quantisation steps
    network_lr: float = 1e-2
    hard_rounding: bool = False
    tile_subsampling: int = 1  # one in so many tiles counts in the networks' gradients
    network_beta2: float = BETA2
    latent_beta1: float = LATENT_BETA1

    def array(
        self, channels: int, pixels: int, weight_rate_factor: float, update_interval: int = 1
    ) -> Array:
        """float32 [16], the Steering of a step of a picture of so many channels and pixels."""
        steering = Steering(
            inverse_temperature=1 / self.temperature,
            rounding_gain=0.5 / math.tanh(0.5 / self.temperature),
            noise_shape=self.noise_shape,
            noise_scale=self.noise_scale,
            latent_lr=self.latent_lr,
            network_lr=self.network_lr,
            lmbda=self.lmbda,
            hard_rounding=float(self.hard_rounding),
            loss_scale=self.loss_scale(channels),
            max_norm=MAX_GRADIENT_NORM * pixels,
            weight_rate_factor=weight_rate_factor,
            gradient_gain=max(EPSILON_LMBDA / max(self.lmbda, 1e-9), 1.0),
            update_interval=update_interval,
            tile_subsampling=self.tile_subsampling,
            network_beta2=self.network_beta2,
            latent_beta1=self.latent_beta1,
        )
        return np.array(steering, np.float32)

    def loss_scale(self, channels: int) -> float:
        """What the loss of a picture of so many channels is multiplied by."""
        scale = max(MIN_SCALED_LMBDA / max(self.lmbda, 1e-9), 1.0)
        return min(scale, MAX_LOSS_SCALE * channels)


def gradient_only(lmbda: float, is_noisy: bool = False) -> Control:
    """A step that moves nothing but Adam's means, which are the gradient.

    Latents are rounded, or have noise as they do before they are rounded in training.
    """
    temperature = LAST_TEMPERATURE if is_noisy else FLAT_TEMPERATURE
    return Control(
        lmbda,
        temperature=temperature,
        noise_shape=LAST_NOISE_SHAPE,
        noise_scale=float(is_noisy),
        latent_lr=0.0,
        network_lr=0.0,
        hard_rounding=not is_noisy,
        latent_beta1=0.0,
    )
