"""What all optimizers share: checks of their arguments, gradients, and Adam's moments."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence

import numpy as np

from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.graph import toposort
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import check_tensor


def trainable(parameters: Sequence[Tensor], optimizer: str) -> list[Tensor]:
    """The parameters as a list, checked to be distinct realized Tensors of floats."""
    if isinstance(parameters, Tensor):  # iterating over it would yield its rows
        raise misuse(TypeError, f"{optimizer}: takes a list of Tensors, not Tensor")
    if not isinstance(parameters, Iterable):
        text = f"takes a list of Tensors, not {type(parameters).__name__}"
        raise misuse(TypeError, f"{optimizer}: {text}; those of a network are net.parameters()")
    checked = list(parameters)
    if not checked:
        raise misuse(ValueError, f"{optimizer}: there are no parameters to train")
    for p in checked:
        if not isinstance(p, Tensor):
            text = f"{optimizer}: takes a list of Tensors, not of {type(p).__name__}"
            raise misuse(TypeError, text)
        if not p.realized or not p.dtype.is_float:
            remedy = "call realize()" if p.dtype.is_float else "use cast(f32).realize()"
            raise misuse(
                ValueError, f"{optimizer}: {p!r} is no realized Tensor of floats; {remedy}"
            )
    if len({p.node for p in checked}) < len(checked):
        text = "a parameter is given twice, and would be moved twice; give each once"
        raise misuse(ValueError, f"{optimizer}: {text}")
    return checked


def check_hyperparameters(
    optimizer: str,
    lr: object,
    betas: object = (0.0, 0.0),
    shampoo_beta: object = 0.0,
    **others: object,
) -> None:
    """Check that the learning rate and `others` are not negative, and that all betas are in [0, 1).

    Raises TypeError for another type and for betas that are no pair, ValueError for a value out of
    range. Of Tensors only the shape is checked.
    """
    if not isinstance(betas, Sequence) or len(betas) != 2:
        raise misuse(TypeError, f"{optimizer}: betas must be two numbers, not {betas!r}")
    for beta in betas:
        if isinstance(beta, Tensor | np.ndarray) and math.prod(beta.shape) != 1:
            text = f"each of betas is one element, not a Tensor of shape {beta.shape}"
            raise misuse(ValueError, f"{optimizer}: {text}")
    non_negative = ((name, value, math.inf) for name, value in {"lr": lr, **others}.items())
    fractions = (("each of betas", beta, 1.0) for beta in betas)
    for name, value, end in (*non_negative, *fractions, ("shampoo_beta", shampoo_beta, 1.0)):
        if isinstance(value, Tensor):
            continue
        if not isinstance(value, numbers.Real | np.ndarray):
            text = f"{name} must be a number or a Tensor, not {value!r}"
            raise misuse(TypeError, f"{optimizer}: {text}")
        values = np.asarray(value, np.float64)
        if not ((values >= 0) & (values < end)).all():
            raise misuse(ValueError, f"{optimizer}: {name} must be in [0, {end:g}), not {value}")


def as_scalar(value: float | Tensor) -> float | Tensor:
    """A Tensor of one element with shape (), so that its axes never change a parameter's shape.

    Everything else is returned as it is.
    """
    is_single = (
        isinstance(value, Tensor | np.ndarray) and value.shape and math.prod(value.shape) == 1
    )
    return value.reshape(()) if is_single else value  # type: ignore[union-attr]


def matching_gradients(
    gradients: Sequence[Tensor], parameters: Sequence[Tensor], optimizer: str
) -> list[Tensor]:
    """The gradients as a list, checked to have the shapes of the parameters, one for each."""
    if isinstance(gradients, Tensor):  # iterating over it would yield its rows
        raise misuse(TypeError, f"{optimizer}: apply takes a list of Tensors, not Tensor")
    checked = list(gradients)
    if not all(isinstance(g, Tensor) for g in checked):
        kinds = ", ".join(type(g).__name__ for g in checked)
        raise misuse(TypeError, f"{optimizer}: apply takes a list of Tensors, not of {kinds}")
    shapes, wanted = ([t.shape for t in several] for several in (checked, parameters))
    if shapes != wanted:
        text = f"gradients of shapes {shapes} for parameters of shapes {wanted}"
        raise misuse(ValueError, f"{optimizer}: {text}; give one for each, in their order")
    return checked


def gradients_of(loss: Tensor, parameters: Sequence[Tensor], optimizer: str) -> list[Tensor]:
    """Gradients of the loss with respect to every parameter.

    Zeros for some of the parameters may be intended. Raises ValueError if the loss depends on none.
    """
    check_tensor(f"{optimizer}: step", loss)
    used = set(toposort([loss.node]))
    if not any(p.node in used for p in parameters):
        text = "no parameter leads to this loss; realize() ends gradients"
        raise misuse(ValueError, f"{optimizer}: {text}")
    return loss.gradient(parameters)


def zero_moment(parameter: Tensor, name: str) -> Tensor:
    """Zeros of a parameter's shape, always in f32: squares of small gradients underflow in f16."""
    return Tensor(np.zeros(parameter.shape, np.float32), parameter.device, name=name)


def updated_moments(
    g: Tensor, m: Tensor, v: Tensor, betas: Sequence[float | Tensor]
) -> tuple[Tensor, Tensor]:
    """Both moments after a step with gradient g: running means of g and of g squared."""
    g = g.cast(f32)
    return m * betas[0] + g * (1 - betas[0]), v * betas[1] + g * g * (1 - betas[1])


def adam_direction(m: Tensor, v: Tensor, corrections: Sequence[Tensor], epsilon: float) -> Tensor:
    """Adam's update before the learning rate, from the moments and their bias corrections."""
    first, second = (1.0 / correction for correction in corrections)
    return m * first / ((v * second).sqrt() + epsilon)
