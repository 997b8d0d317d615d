"""Optimizers: state Tensors and the assignments that move them, all inside the step.

The number of steps, the corrections of biased moments and whatever the learning rate depends on are
state on the device, so a compiled step needs nothing from the host. Outside of one, too, all that
an optimizer moves is computed from the values before.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from imgmlp.engine.frontend.tensor import Tensor, assign_all
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.graph import toposort
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import check_tensor

Array = np.ndarray[Any, Any]
Form = Literal["standard", "seed"]


def _trainable(parameters: Sequence[Tensor], optimizer: str) -> list[Tensor]:
    """The parameters, if they can be assigned."""
    if isinstance(parameters, Tensor):  # whose rows would be found otherwise
        raise misuse(TypeError, f"{optimizer}: takes a list of Tensors, not Tensor")
    if not isinstance(parameters, Iterable):
        text = f"takes a list of Tensors, not {type(parameters).__name__}"
        raise misuse(TypeError, f"{optimizer}: {text}; those of a network are net.parameters()")
    found = list(parameters)
    if not found:
        raise misuse(ValueError, f"{optimizer}: there are no parameters to train")
    for p in found:
        if not isinstance(p, Tensor):
            text = f"{optimizer}: takes a list of Tensors, not of {type(p).__name__}"
            raise misuse(TypeError, text)
        if not p.realized or not p.dtype.is_float:
            remedy = "call realize()" if p.dtype.is_float else "use cast(f32).realize()"
            raise misuse(
                ValueError, f"{optimizer}: {p!r} is no realized Tensor of floats; {remedy}"
            )
    if len({p.node for p in found}) < len(found):
        text = "a parameter is given twice, and would be moved twice; give each once"
        raise misuse(ValueError, f"{optimizer}: {text}")
    return found


def _check_rates(
    optimizer: str, lr: object, betas: object = (0.0, 0.0), memory: object = 0.0, **others: object
) -> None:
    """Refuse a learning rate or `others` below 0, betas that are no pair, or a memory or betas
    outside of [0, 1). Of Tensors only the shape is known.
    """
    if not isinstance(betas, Sequence) or len(betas) != 2:
        raise misuse(TypeError, f"{optimizer}: betas must be two numbers, not {betas!r}")
    for beta in betas:
        if isinstance(beta, Tensor | np.ndarray) and math.prod(beta.shape) != 1:
            text = f"each of betas is one element, not a Tensor of shape {beta.shape}"
            raise misuse(ValueError, f"{optimizer}: {text}")
    rates = ((name, value, math.inf) for name, value in {"lr": lr, **others}.items())
    shares = (("each of betas", beta, 1.0) for beta in betas)
    for name, value, end in (*rates, *shares, ("memory", memory, 1.0)):
        if isinstance(value, Tensor):
            continue
        if not isinstance(value, numbers.Real | np.ndarray):
            text = f"{name} must be a number or a Tensor, not {value!r}"
            raise misuse(TypeError, f"{optimizer}: {text}")
        given = np.asarray(value, np.float64)
        if not ((given >= 0) & (given < end)).all():
            raise misuse(ValueError, f"{optimizer}: {name} must be in [0, {end:g}), not {value}")


def _alone(value: float | Tensor) -> float | Tensor:
    """What a step multiplies by; one element whose own axes leave the shape of all else."""
    one = isinstance(value, Tensor | np.ndarray) and value.shape and math.prod(value.shape) == 1
    return value.reshape(()) if one else value  # type: ignore[union-attr]


def _matching(
    gradients: Sequence[Tensor], parameters: Sequence[Tensor], optimizer: str
) -> list[Tensor]:
    """The gradients, if there is one of its shape for each parameter."""
    if isinstance(gradients, Tensor):  # whose rows would be taken
        raise misuse(TypeError, f"{optimizer}: apply takes a list of Tensors, not Tensor")
    found = list(gradients)
    if not all(isinstance(g, Tensor) for g in found):
        kinds = ", ".join(type(g).__name__ for g in found)
        raise misuse(TypeError, f"{optimizer}: apply takes a list of Tensors, not of {kinds}")
    shapes, wanted = ([t.shape for t in several] for several in (found, parameters))
    if shapes != wanted:
        text = f"gradients of shapes {shapes} for parameters of shapes {wanted}"
        raise misuse(ValueError, f"{optimizer}: {text}; give one for each, in their order")
    return found


def _gradients(loss: Tensor, parameters: Sequence[Tensor], optimizer: str) -> list[Tensor]:
    """Gradients by every parameter; zeros by some of them may be meant, by all are not."""
    check_tensor(f"{optimizer}: step", loss)
    used = set(toposort([loss.node]))
    if not any(p.node in used for p in parameters):
        text = "no parameter leads to this loss; realize() ends gradients"
        raise misuse(ValueError, f"{optimizer}: {text}")
    return loss.gradient(parameters)


def _moment(parameter: Tensor, name: str) -> Tensor:
    """Zeros in f32, whatever the parameter: halves have no place for squares of small gradients."""
    return Tensor(np.zeros(parameter.shape, np.float32), parameter.device, name=name)


def _new_moments(
    g: Tensor, m: Tensor, v: Tensor, betas: Sequence[float | Tensor]
) -> tuple[Tensor, Tensor]:
    """What a gradient makes of both moments."""
    g = g.cast(f32)
    return m * betas[0] + g * (1 - betas[0]), v * betas[1] + g * g * (1 - betas[1])


def _direction(m: Tensor, v: Tensor, corrections: Sequence[Tensor], epsilon: float) -> Tensor:
    """Adam's, from moments and what corrects their bias."""
    first, second = (1.0 / correction for correction in corrections)
    return m * first / ((v * second).sqrt() + epsilon)


class SGD:
    """Gradient descent: p <- p - lr * g.

    Raises ValueError for what cannot be assigned, or is given twice, and for a rate below 0.
    """

    def __init__(self, parameters: Sequence[Tensor], lr: float | Tensor) -> None:
        self.parameters = _trainable(parameters, "SGD")
        _check_rates("SGD", lr)
        self.lr = lr

    def step(self, loss: Tensor) -> None:
        """Assign the parameters what they are after one step down the loss's gradient."""
        self.apply(_gradients(loss, self.parameters, "SGD"))

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """The same, with a gradient for each parameter that was found elsewhere.

        Raises TypeError for what are no Tensors, ValueError for other numbers or shapes of them.
        """
        pairs = zip(self.parameters, _matching(gradients, self.parameters, "SGD"), strict=True)
        lr = _alone(self.lr)
        assign_all((p, p - g * lr) for p, g in pairs)


class AdamW:
    """AdamW in one of two forms.

    standard: Loshchilov and Hutter (2019): bias-corrected moments, p <- p (1 - lr decay)
    - lr m^ / (sqrt(v^) + epsilon). seed: no bias correction, the spread of the gradient
    around its mean in the denominator, sqrt(|v - m^2|) + epsilon, and the decay applied to
    what the gradient step left.

    `lr` may be a Tensor of one element, such as a schedule computed from a step counter, or one
    of a parameter's shape, whose elements move at rates of their own; betas may be Tensors of one
    element.
    Raises ValueError for parameters that cannot be assigned, or are given twice, for a rate, a
    decay or an epsilon below 0, for betas outside of [0, 1), and for another form.
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
        self.parameters = _trainable(parameters, type(self).__name__)
        if form not in get_args(Form):
            known = " or ".join(map(repr, get_args(Form)))
            raise misuse(ValueError, f"{type(self).__name__}: form {form!r} is not {known}")
        decay = {"weight_decay": weight_decay, "epsilon": epsilon}
        _check_rates(type(self).__name__, lr, betas, **decay)
        self.lr, self.betas = lr, betas
        self.weight_decay, self.epsilon, self.form = weight_decay, epsilon, form
        self.first = [_moment(p, "first_moment") for p in self.parameters]
        self.second = [_moment(p, "second_moment") for p in self.parameters]
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
        """The same, with a gradient for each parameter that was found elsewhere.

        Raises TypeError for what are no Tensors, ValueError for other numbers or shapes of them.
        """
        assign_all(self._news(_matching(gradients, self.parameters, type(self).__name__)))

    def _news(self, gradients: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """What all state and the parameters become."""
        betas = tuple(map(_alone, self.betas))
        grown = [c * b + (1 - b) for c, b in zip(self.corrections, betas, strict=True)]
        if self.form == "standard":
            yield from zip(self.corrections, grown, strict=True)
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second, strict=True):
            before, moments = p.cast(f32), _new_moments(g, m, v, betas)
            yield from zip((m, v), moments, strict=True)
            yield p, self._moved(before, *moments, grown)

    def _moved(self, p: Tensor, m: Tensor, v: Tensor, grown: Sequence[Tensor]) -> Tensor:
        lr = _alone(self.lr)
        if self.form == "seed":
            spread = (v - m * m).abs().sqrt() + self.epsilon
            left = p - m / spread * lr
            return left - left * lr * self.weight_decay
        direction = _direction(m, v, grown, self.epsilon)
        return p * (1.0 - self.weight_decay * lr) - direction * lr


class Adam(AdamW):
    """Adam, Kingma and Ba (2015): AdamW that lets nothing decay."""

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(parameters, lr, betas, 0.0, epsilon)


LARGEST_SIDE = 48  # of matrices whose eigenbases SOAP keeps


class SOAP:
    """SOAP, Vyas et al. (2024, arXiv 2409.11321): Adam in the eigenbases of Shampoo's factors.

    For a matrix of gradients G [m, n] with sides of at most 48, L [m, m] and R [n, n] are running
    means of G G^T and G^T G, P and Q their eigenvectors. Adam's moments are those of P^T G Q, and
    the step that it would take there is turned back. All other parameters are Adam's.

    P and Q are what `refresh()` made of L and R last, and at first identities, so that SOAP begins
    as Adam. All matrices go through one batch of squares with zeros around them, so that a step has
    about six launches more than Adam's, however many there are.

    `shapes` are those of the arrays that the parameters hold one after the other, as `nn.slices`
    takes them: by default the parameters' own. `lr` may be a Tensor of one element. `memory` is
    what is left of L and R in each step. Raises ValueError as AdamW does, for a memory outside of
    [0, 1), for shapes that do not fit the parameters, and where there is no such matrix.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        memory: float = 0.95,
        epsilon: float = 1e-8,
        shapes: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        self.parameters = _trainable(parameters, "SOAP")
        _check_rates("SOAP", lr, betas, memory, epsilon=epsilon)
        self.lr, self.betas = lr, betas
        self.memory, self.epsilon = memory, epsilon
        shapes = [p.shape for p in self.parameters] if shapes is None else list(shapes)
        count = sum(math.prod(p.shape) for p in self.parameters)
        if sum(map(math.prod, shapes)) != count:
            text = f"shapes {shapes} have {sum(map(math.prod, shapes))} elements"
            raise misuse(ValueError, f"SOAP: {text}, and the parameters {count}")
        self._sizes = [shape for shape in shapes if _is_small_matrix(shape)]
        if not self._sizes:
            text = f"no matrix of at most {LARGEST_SIDE} by {LARGEST_SIDE} among shapes {shapes}"
            raise misuse(ValueError, f"SOAP: {text}; use Adam")
        squares, others = _places(shapes)
        back = np.zeros(count, np.int32)
        back[squares[squares >= 0]] = np.flatnonzero(squares >= 0)
        back[others] = squares.size + np.arange(len(others))
        both = np.stack([squares, squares.swapaxes(1, 2)])  # G, and G^T
        tables = (both, "squares"), (others, "others"), (back, "back")
        device = self.parameters[0].device
        self._both, self._others, self._back = (Tensor(t, device, name=n) for t, n in tables)

        def state(name: str, value: Array) -> Tensor:
            return Tensor(np.array(value, np.float32), device, name=name)

        zeros, eye = np.zeros(both.shape), np.broadcast_to(np.eye(both.shape[-1]), both.shape)
        self.factors, self.bases = state("factors", zeros), state("bases", eye)  # L, then R
        parts = zeros[0], np.zeros(len(others))  # matrices, and what is Adam's
        self.first, self.second = (
            [state(f"{name}_moment", part) for part in parts] for name in ("first", "second")
        )
        self.corrections = [
            state(f"{name}_correction", np.zeros(())) for name in ("first", "second")
        ]

    def state(self) -> list[Tensor]:
        """Everything but the parameters that a resumed run needs."""
        return [*self.first, *self.second, *self.corrections, self.factors, self.bases]

    def step(self, loss: Tensor) -> None:
        """Assign parameters and state what they are after one step."""
        self.apply(_gradients(loss, self.parameters, "SOAP"))

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """The same, with a gradient for each parameter that was found elsewhere.

        Raises TypeError for what are no Tensors, ValueError for other numbers or shapes of them.
        """
        assign_all(self._news(_matching(gradients, self.parameters, "SOAP")))

    def _news(self, gradients: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """What all state and the parameters become."""
        flat = Tensor.concat([g.cast(f32).reshape(-1) for g in gradients], 0)
        # [2, matrices, side, side]: G and G^T with zeros around them
        both = Tensor.where(self._both < 0, 0.0, flat._gathered(self._both.maximum(0)))
        squared = _product(both, both.transpose())
        yield self.factors, self.factors * self.memory + squared * (1 - self.memory)
        left, right = self.bases[0], self.bases[1]
        turned = _product(left.transpose(), _product(both[0], right))
        lr, betas = _alone(self.lr), tuple(map(_alone, self.betas))
        grown = [c * b + (1 - b) for c, b in zip(self.corrections, betas, strict=True)]
        yield from zip(self.corrections, grown, strict=True)
        directions = []
        parts = (turned, flat.gather(self._others)), self.first, self.second
        for g, m, v in zip(*parts, strict=True):
            moments = _new_moments(g, m, v, betas)
            yield from zip((m, v), moments, strict=True)
            directions.append(_direction(*moments, grown, self.epsilon))
        inner, rest = directions
        inner = Tensor.where(self._both[0] < 0, 0.0, inner)  # also where epsilon is 0
        found = _product(left, _product(inner, right.transpose()))
        moves = Tensor.concat([found.reshape(-1), rest], 0).gather(self._back)
        begin = 0
        for p in self.parameters:
            end = begin + math.prod(p.shape)
            yield p, p - moves[begin:end].reshape(*p.shape) * lr
            begin = end

    def refresh(self) -> None:
        """Make P and Q those of today's L and R, on the host; between steps, every 10 to 100.

        Moments are turned with them, the second ones as if entries of P^T G Q were independent.
        Where numbers have exploded P and Q stay.
        """
        factors = self.factors.numpy().astype(np.float64)
        if not np.isfinite(factors).all():
            return
        now = np.stack([self._eigenvectors(f, axis) for axis, f in enumerate(factors)])
        a, b = now.swapaxes(2, 3) @ self.bases.numpy().astype(np.float64)
        for moment, p, q in ((self.first[0], a, b), (self.second[0], a * a, b * b)):
            turned = p @ moment.numpy().astype(np.float64) @ q.swapaxes(1, 2)
            moment.write(turned.astype(np.float32))
        self.bases.write(now.astype(np.float32))

    def _eigenvectors(self, factors: Array, axis: int) -> Array:
        """[matrices, side, side]: of all L or all R, where `axis` is that of their sides."""
        found = np.broadcast_to(np.eye(factors.shape[-1]), factors.shape).copy()
        for number, size in enumerate(self._sizes):
            own = slice(0, size[axis])
            found[number, own, own] = np.linalg.eigh(factors[number, own, own])[1]
        return found


def _is_small_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and 0 < max(shape) <= LARGEST_SIDE and min(shape) > 0


def _places(shapes: Sequence[tuple[int, ...]]) -> tuple[Array, Array]:
    """Where in the flat gradient the matrices' elements are, i32 [matrices, side, side] with -1
    around them, and where all others are, i32 [others]."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    all_of_them = np.split(np.arange(ends[-1], dtype=np.int32), ends[:-1])
    matrices, others = list[Array](), [np.empty(0, np.int32)]
    side = max(max(shape) for shape in shapes if _is_small_matrix(shape))
    for places, shape in zip(all_of_them, shapes, strict=True):
        if _is_small_matrix(shape):
            around = [(0, side - n) for n in shape]
            matrices.append(np.pad(places.reshape(shape), around, constant_values=-1))
        else:
            others.append(places)
    return np.stack(matrices), np.concatenate(others)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """[..., m, n], [..., n, p] -> [..., m, p]; also where a GPU's products are in half precision,
    which ends at gradients of 65,504, in float32."""
    if a.device is not None and a.device.lanes == "group":
        return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)
    return a @ b
