"""Optimizers: their state on the device, and the assignments that update it inside of a step.

Everything that changes from step to step, such as the bias corrections of the moments and the
learning rate, is state or an expression on the device, so a compiled step needs nothing from the
host. Outside of a step, an optimizer also computes all new values before it assigns any of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import numpy as np

from imgmlp.engine.frontend.optimizer_arguments import (
    adam_direction,
    as_scalar,
    check_hyperparameters,
    gradients_of,
    matching_gradients,
    trainable,
    updated_moments,
    zero_moment,
)
from imgmlp.engine.frontend.soap import SOAP
from imgmlp.engine.frontend.tensor import Tensor, assign_all
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.usage_errors import misuse

__all__ = ["SGD", "SOAP", "Adam", "AdamW"]

Form = Literal["standard", "seed"]


class SGD:
    """Stochastic gradient descent: p <- p - lr * g.

    Raises ValueError for parameters that are not realized or are listed twice, and for a negative
    learning rate.
    """

    def __init__(self, parameters: Sequence[Tensor], lr: float | Tensor) -> None:
        self.parameters = trainable(parameters, "SGD")
        check_hyperparameters("SGD", lr)
        self.lr = lr

    def step(self, loss: Tensor) -> None:
        """Update the parameters by one step along the negative gradient of the loss."""
        self.apply(gradients_of(loss, self.parameters, "SGD"))

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """As `step`, with gradients that were computed elsewhere, one for each parameter.

        Raises TypeError if they are not Tensors, ValueError for another number or other shapes.
        """
        pairs = zip(
            self.parameters, matching_gradients(gradients, self.parameters, "SGD"), strict=True
        )
        lr = as_scalar(self.lr)
        assign_all((p, p - g * lr) for p, g in pairs)


class AdamW:
    """AdamW: Adam with decoupled weight decay, in one of two forms.

    With moments m <- beta1 m + (1 - beta1) g and v <- beta2 v + (1 - beta2) g^2, and bias-corrected
    moments m^ = m / (1 - beta1^t) and v^ = v / (1 - beta2^t):

    "standard", Loshchilov and Hutter (2019): p <- p (1 - lr decay) - lr m^ / (sqrt(v^) + epsilon).
    "seed": p <- q (1 - lr decay) with q = p - lr m / (sqrt(|v - m^2|) + epsilon): without bias
    correction, divided by the gradient's standard deviation, and decayed after the gradient step.

    `lr` may be a Tensor of one element, such as a schedule computed from a step counter, or a
    Tensor of a parameter's shape, with a learning rate for each element. Betas may be Tensors of
    one element. Raises ValueError for parameters that are not realized or are listed twice, for a
    negative learning rate, decay or epsilon, for betas outside of [0, 1), and for another form.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        weight_decay: float = 0.01,
        epsilon: float = 1e-8,
        form: Form = "standard",
    ) -> None:
        self.parameters = trainable(parameters, type(self).__name__)
        if form not in get_args(Form):
            choices = " or ".join(map(repr, get_args(Form)))
            raise misuse(ValueError, f"{type(self).__name__}: form {form!r} is not {choices}")
        decay = {"weight_decay": weight_decay, "epsilon": epsilon}
        check_hyperparameters(type(self).__name__, lr, betas, **decay)
        self.lr, self.betas = lr, betas
        self.weight_decay, self.epsilon, self.form = weight_decay, epsilon, form
        self.first = [zero_moment(p, "first_moment") for p in self.parameters]
        self.second = [zero_moment(p, "second_moment") for p in self.parameters]
        # The state is 1 - beta^t itself, because subtracting the power from 1 would lose digits.
        device = self.parameters[0].device
        names = ("first_correction", "second_correction")
        self.corrections = [Tensor(np.float32(0), device, name=name) for name in names]

    def state(self) -> list[Tensor]:
        """All Tensors, besides the parameters, that a checkpoint must hold to resume training."""
        return [*self.first, *self.second, *self.corrections]

    def step(self, loss: Tensor) -> None:
        """Update the parameters and the moments by one step."""
        self.apply(gradients_of(loss, self.parameters, type(self).__name__))

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """As `step`, with gradients that were computed elsewhere, one for each parameter.

        Raises TypeError if they are not Tensors, ValueError for another number or other shapes.
        """
        assign_all(
            self._updates(matching_gradients(gradients, self.parameters, type(self).__name__))
        )

    def _updates(self, gradients: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of a state or parameter and its new value."""
        betas = tuple(map(as_scalar, self.betas))
        corrections = [c * b + (1 - b) for c, b in zip(self.corrections, betas, strict=True)]
        if self.form == "standard":
            yield from zip(self.corrections, corrections, strict=True)
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            p_f32, moments = p.cast(f32), updated_moments(g, m, v, betas)
            yield from zip((m, v), moments, strict=True)
            yield p, self._updated_parameter(p_f32, *moments, corrections)

    def _updated_parameter(
        self, p: Tensor, m: Tensor, v: Tensor, corrections: Sequence[Tensor]
    ) -> Tensor:
        lr = as_scalar(self.lr)
        if self.form == "seed":
            deviation = (v - m * m).abs().sqrt() + self.epsilon
            p = p - m / deviation * lr
            return p - p * lr * self.weight_decay
        direction = adam_direction(m, v, corrections, self.epsilon)
        return p * (1.0 - self.weight_decay * lr) - direction * lr


class Adam(AdamW):
    """Adam, Kingma and Ba (2015): AdamW without weight decay."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(parameters, lr, betas, 0.0, epsilon)
