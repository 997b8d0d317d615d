"""Optimizers: state Tensors and the assignments that move them, all inside the step.

The number of steps, the corrections of biased moments and whatever the learning rate depends on are
state on the device, so a compiled step needs nothing from the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.ir.graph import toposort
from imgmlp.engine.ir.usage_errors import misuse

Form = Literal["standard", "seed"]


def _trainable(parameters: Sequence[Tensor], optimizer: str) -> list[Tensor]:
    """The parameters, if they can be assigned."""
    found = list(parameters)
    if not found:
        raise misuse(ValueError, f"{optimizer}: there are no parameters to train")
    for p in found:
        if not p.realized or not p.dtype.is_float:
            raise misuse(
                ValueError, f"{optimizer}: {p!r} is no realized Tensor of floats; call realize()"
            )
    return found


def _gradients(loss: Tensor, parameters: Sequence[Tensor], optimizer: str) -> list[Tensor]:
    """Gradients by every parameter; zeros by some of them may be meant, by all are not."""
    used = set(toposort([loss.node]))
    if not any(p.node in used for p in parameters):
        text = "no parameter leads to this loss; realize() ends gradients"
        raise misuse(ValueError, f"{optimizer}: {text}")
    return loss.gradient(parameters)


def _zeros_like(parameter: Tensor, name: str) -> Tensor:
    return Tensor(np.zeros(parameter.shape, parameter.dtype.np), parameter.device, name=name)


class SGD:
    """Gradient descent: p <- p - lr * g. Raises ValueError for what cannot be assigned."""

    def __init__(self, parameters: Sequence[Tensor], lr: float | Tensor) -> None:
        self.parameters, self.lr = _trainable(parameters, "SGD"), lr

    def step(self, loss: Tensor) -> None:
        """Assign the parameters what they are after one step down the loss's gradient."""
        gradients = _gradients(loss, self.parameters, "SGD")
        for p, g in zip(self.parameters, gradients, strict=True):
            p.assign(p - g * self.lr)


class AdamW:
    """AdamW in one of two forms.

    standard: Loshchilov and Hutter (2019): bias-corrected moments, p <- p (1 - lr decay)
    - lr m^ / (sqrt(v^) + epsilon). seed: no bias correction, the spread of the gradient
    around its mean in the denominator, sqrt(|v - m^2|) + epsilon, and the decay applied to
    what the gradient step left.

    `lr` may be a Tensor of one element, such as a schedule computed from a step counter.
    Raises ValueError for parameters that cannot be assigned.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.01,
        epsilon: float = 1e-8,
        form: Form = "standard",
    ) -> None:
        self.parameters = _trainable(parameters, type(self).__name__)
        self.lr, self.betas = lr, betas
        self.weight_decay, self.epsilon, self.form = weight_decay, epsilon, form
        self.first = [_zeros_like(p, "first_moment") for p in self.parameters]
        self.second = [_zeros_like(p, "second_moment") for p in self.parameters]
        # 1 - beta ** step, not the power itself, from which float32 would subtract with a loss
        device = self.parameters[0].device
        names = ("first_correction", "second_correction")
        self.corrections = [Tensor(np.float32(0), device, name=name) for name in names]

    def state(self) -> list[Tensor]:
        """Everything but the parameters that a resumed run needs."""
        return [*self.first, *self.second, *self.corrections]

    def step(self, loss: Tensor) -> None:
        """Assign parameters and moments what they are after one step."""
        self.apply(_gradients(loss, self.parameters, type(self).__name__))

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """The same, with a gradient for each parameter that was found elsewhere."""
        grown = [c * b + (1 - b) for c, b in zip(self.corrections, self.betas, strict=True)]
        if self.form == "standard":
            for correction, value in zip(self.corrections, grown, strict=True):
                correction.assign(value)
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            new_m = m * self.betas[0] + g * (1 - self.betas[0])
            new_v = v * self.betas[1] + g * g * (1 - self.betas[1])
            m.assign(new_m)
            v.assign(new_v)
            p.assign(self._moved(p, new_m, new_v, grown))

    def _moved(self, p: Tensor, m: Tensor, v: Tensor, grown: Sequence[Tensor]) -> Tensor:
        if self.form == "seed":
            spread = (v - m * m).abs().sqrt() + self.epsilon
            left = p - m / spread * self.lr
            return left - left * self.lr * self.weight_decay
        first, second = (1.0 / correction for correction in grown)
        direction = m * first / ((v * second).sqrt() + self.epsilon)
        return p * (1.0 - self.weight_decay * self.lr) - direction * self.lr


class Adam(AdamW):
    """Adam, Kingma and Ba (2015): AdamW that lets nothing decay."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(parameters, lr, betas, 0.0, epsilon)
