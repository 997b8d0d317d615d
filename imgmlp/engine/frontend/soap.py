"""SOAP: Adam in slowly changing eigenbases of each small weight matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from imgmlp.engine.frontend.optimizer_arguments import (
    adam_direction,
    as_scalar,
    check_hyperparameters,
    gradients_of,
    matching_gradients,
    trainable,
    updated_moments,
)
from imgmlp.engine.frontend.tensor import Tensor, assign_all
from imgmlp.engine.ir.dtype import f32
from imgmlp.engine.ir.usage_errors import misuse

Array = np.ndarray[Any, Any]
MAX_SIDE = 48  # rows or columns; larger matrices are left to Adam


class SOAP:
    """SOAP, Vyas et al. (2024, arXiv 2409.11321): Adam in the eigenbases of Shampoo's factors.

    For a gradient matrix G [m, n] with sides of at most 48, L [m, m] and R [n, n] are running means
    of G G^T and G^T G, and P and Q are their eigenvectors. Adam runs on the rotated gradient
    P^T G Q, and its update is rotated back. All other parameters are updated by plain Adam.

    P and Q start as identities, so that SOAP starts as Adam; `refresh()` recomputes them from L and
    R. All matrices are zero-padded to squares of one size and handled as one batch. So a step has
    about six launches more than Adam's, however many matrices there are.

    `shapes` are those of the arrays that the parameters hold one after the other, as for
    `nn.slices`; by default the parameters' own. `lr` may be a Tensor of one element.
    `shampoo_beta` is the decay of the running means L and R. Raises ValueError as AdamW does, for a
    shampoo_beta outside of [0, 1), for shapes that do not fit the parameters, and if no matrix is
    small enough.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float = 0.95,
        epsilon: float = 1e-8,
        shapes: Sequence[tuple[int, ...]] | None = None,
    ) -> None:
        self.parameters = trainable(parameters, "SOAP")
        check_hyperparameters("SOAP", lr, betas, shampoo_beta, epsilon=epsilon)
        self.lr, self.betas = lr, betas
        self.shampoo_beta, self.epsilon = shampoo_beta, epsilon
        shapes = [p.shape for p in self.parameters] if shapes is None else list(shapes)
        count = sum(math.prod(p.shape) for p in self.parameters)
        _check_shapes(shapes, count)
        self._matrix_shapes = [shape for shape in shapes if _is_small_matrix(shape)]
        squares, others = _flat_positions(shapes)
        # Where each element of the flat update stands after the padded matrices and the others.
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
        parts = zeros[0], np.zeros(len(others))  # the matrices, and the elements left to Adam
        self.first, self.second = (
            [state(f"{name}_moment", part) for part in parts] for name in ("first", "second")
        )
        self.corrections = [
            state(f"{name}_correction", np.zeros(())) for name in ("first", "second")
        ]

    def state(self) -> list[Tensor]:
        """All Tensors, besides the parameters, that a checkpoint must hold to resume training."""
        return [*self.first, *self.second, *self.corrections, self.factors, self.bases]

    def step(self, loss: Tensor) -> None:
        """Update the parameters and the state by one step."""
        self.apply(gradients_of(loss, self.parameters, "SOAP"))

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """As `step`, with gradients that were computed elsewhere, one for each parameter.

        Raises TypeError if they are not Tensors, ValueError for another number or other shapes.
        """
        assign_all(self._updates(matching_gradients(gradients, self.parameters, "SOAP")))

    def _updates(self, gradients: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of a state or parameter and its new value."""
        flat = Tensor.concat([g.cast(f32).reshape(-1) for g in gradients], 0)
        # [2, matrices, side, side]: G and G^T with zeros around them
        both = Tensor.where(self._both < 0, 0.0, flat._gathered(self._both.maximum(0)))
        squared = _product(both, both.transpose())
        yield self.factors, self.factors * self.shampoo_beta + squared * (1 - self.shampoo_beta)
        left, right = self.bases[0], self.bases[1]  # P and Q
        rotated = _product(left.transpose(), _product(both[0], right))
        lr, betas = as_scalar(self.lr), tuple(map(as_scalar, self.betas))
        corrections = [c * b + (1 - b) for c, b in zip(self.corrections, betas, strict=True)]
        yield from zip(self.corrections, corrections, strict=True)
        directions = []
        parts = (rotated, flat.gather(self._others)), self.first, self.second
        for g, m, v in zip(*parts, strict=True):
            moments = updated_moments(g, m, v, betas)
            yield from zip((m, v), moments, strict=True)
            directions.append(adam_direction(*moments, corrections, self.epsilon))
        of_matrices, of_others = directions
        # The padding is masked, because it is 0 / 0 where epsilon is 0.
        of_matrices = Tensor.where(self._both[0] < 0, 0.0, of_matrices)
        of_matrices = _product(left, _product(of_matrices, right.transpose()))
        flat_update = Tensor.concat([of_matrices.reshape(-1), of_others], 0).gather(self._back)
        begin = 0
        for p in self.parameters:
            end = begin + math.prod(p.shape)
            yield p, p - flat_update[begin:end].reshape(*p.shape) * lr
            begin = end

    def refresh(self) -> None:
        """Recompute P and Q from the current L and R, on the host. Call it every 10 to 100 steps.

        The moments are rotated to the new bases, the second ones as if the entries of P^T G Q were
        independent. P and Q stay as they are if L or R is not finite, as after a divergence.
        """
        factors = self.factors.numpy().astype(np.float64)
        if not np.isfinite(factors).all():
            return
        bases = np.stack([self._eigenvectors(f, axis) for axis, f in enumerate(factors)])
        # The rotations from the old to the new bases, on the left and on the right.
        a, b = bases.swapaxes(2, 3) @ self.bases.numpy().astype(np.float64)
        for moment, p, q in ((self.first[0], a, b), (self.second[0], a * a, b * b)):
            rotated = p @ moment.numpy().astype(np.float64) @ q.swapaxes(1, 2)
            moment.write(rotated.astype(np.float32))
        self.bases.write(bases.astype(np.float32))

    def _eigenvectors(self, factors: Array, axis: int) -> Array:
        """Eigenvectors [matrices, side, side] of all L (axis 0) or all R (axis 1)."""
        eigenvectors = np.broadcast_to(np.eye(factors.shape[-1]), factors.shape).copy()
        for number, shape in enumerate(self._matrix_shapes):
            inside = slice(0, shape[axis])  # of the padding
            eigenvectors[number, inside, inside] = np.linalg.eigh(factors[number, inside, inside])[
                1
            ]
        return eigenvectors


def _check_shapes(shapes: Sequence[tuple[int, ...]], count: int) -> None:
    """Refuse shapes that do not have `count` elements together, or with no small matrix."""
    if sum(map(math.prod, shapes)) != count:
        text = f"shapes {shapes} have {sum(map(math.prod, shapes))} elements"
        raise misuse(ValueError, f"SOAP: {text}, and the parameters {count}")
    if not any(map(_is_small_matrix, shapes)):
        text = f"no matrix of at most {MAX_SIDE} by {MAX_SIDE} among shapes {shapes}"
        raise misuse(ValueError, f"SOAP: {text}; use Adam")


def _is_small_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and 0 < max(shape) <= MAX_SIDE and min(shape) > 0


def _flat_positions(shapes: Sequence[tuple[int, ...]]) -> tuple[Array, Array]:
    """Positions in the flat gradient: of the small matrices' elements, i32 [matrices, side, side]
    padded with -1, and of all other elements, i32 [others]."""
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    by_array = np.split(np.arange(ends[-1], dtype=np.int32), ends[:-1])
    matrices, others = list[Array](), [np.empty(0, np.int32)]
    side = max(max(shape) for shape in shapes if _is_small_matrix(shape))
    for positions, shape in zip(by_array, shapes, strict=True):
        if _is_small_matrix(shape):
            padding = [(0, side - n) for n in shape]
            matrices.append(np.pad(positions.reshape(shape), padding, constant_values=-1))
        else:
            others.append(positions)
    return np.stack(matrices), np.concatenate(others)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product [..., m, n], [..., n, p] -> [..., m, p], always in float32.

    On a GPU it is written as a sum, because products of a program in half precision overflow at
    65,504, which squared gradients reach.
    """
    if a.device is not None and a.device.lanes == "group":
        return (a.unsqueeze(-1) * b.unsqueeze(-3)).sum(-2)
    return a @ b
