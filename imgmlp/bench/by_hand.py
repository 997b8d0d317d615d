"""The benchmark job written by hand in NumPy: the speed that is possible without a compiler.

NumPy's matrix products run on as many threads as there are processors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.bench.job import Job
from imgmlp.codec.float_mlp.features import tables

ROWS_PER_CHUNK = 2048  # so few that their activations stay in a processor's cache
ADAM_EPSILON = 1e-8

Array = np.ndarray[Any, Any]


class ByHand:
    """A network trained with AdamW. Parameters, gradients and moments are flat arrays.

    Layers are views of these.
    """

    def __init__(self, job: Job) -> None:
        self.settings = job.settings
        self.architecture = job.architecture
        height, width, channels = job.pixels.shape
        x, y = tables(job.encoding, width, height)
        rows, columns = np.divmod(np.arange(height * width), width)
        self.features = np.concatenate([x[columns], y[rows]], axis=1)  # [pixels, features]
        self.targets = (job.pixels.reshape(-1, channels) / 255).astype(np.float32)
        self.random = np.random.default_rng(0)
        count = self.architecture.parameters
        self.flat = self._initial()
        self.gradient, self.chunk_gradient = np.zeros((2, count), np.float32)
        self.first_moments, self.second_moments = np.zeros((2, count), np.float32)
        self.scratch = np.empty((2, count), np.float32)
        self.steps_done = 0
        self._activations_by_count: dict[int, _Activations] = {}

    def _initial(self) -> Array:
        parts = [
            self.random.normal(0, shape[0] ** -0.5, end - begin)
            for begin, end, shape in self.architecture.spans()
        ]
        return np.concatenate(parts).astype(np.float32)

    def steps(self, batch: int, count: int) -> None:
        for _ in range(count):
            chosen = self.random.integers(0, len(self.features), batch)
            for begin in range(0, batch, ROWS_PER_CHUNK):
                target = self.chunk_gradient if begin else self.gradient
                self._gradients(chosen[begin : begin + ROWS_PER_CHUNK], target)
                if begin:
                    self.gradient += self.chunk_gradient
            self._adamw()

    def decode(self) -> Array:
        levels = np.empty(self.targets.shape, np.uint8)
        for begin in range(0, len(levels), ROWS_PER_CHUNK):
            rows = self._activations(len(levels[begin : begin + ROWS_PER_CHUNK]))
            self._forward(rows, self.features[begin : begin + ROWS_PER_CHUNK])
            np.clip(rows.output, 0, 1, out=rows.output)
            levels[begin : begin + ROWS_PER_CHUNK] = rows.output * 255 + 0.5
        return levels

    def views(self, flat: Array) -> list[Array]:
        """Matrices and biases of a flat array: W0, b0, W1, b1, ... W_last."""
        return [flat[a:b].reshape(shape) for a, b, shape in self.architecture.spans()]

    def _activations(self, count: int) -> _Activations:
        """The arrays for the activations of `count` rows, which are reused."""
        if count not in self._activations_by_count:
            self._activations_by_count[count] = _Activations(count, self.architecture.sizes)
        return self._activations_by_count[count]

    def _forward(self, rows: _Activations, features: Array) -> None:
        parameters = self.views(self.flat)
        inputs = features
        layers = zip(rows.hidden, parameters[:-1:2], parameters[1:-1:2], strict=True)
        for outputs, weight, bias in layers:
            np.matmul(inputs, weight, out=outputs)
            outputs += bias
            np.multiply(outputs, self.architecture.slope, out=rows.scratch)
            np.maximum(outputs, rows.scratch, out=outputs)
            inputs = outputs
        np.matmul(inputs, parameters[-1], out=rows.output)

    def _gradients(self, chosen: Array, target: Array) -> None:
        """Write the gradients of the sum of squared errors of the `chosen` pixels to `target`."""
        rows = self._activations(len(chosen))
        np.take(self.features, chosen, 0, out=rows.features, mode="clip")
        np.take(self.targets, chosen, 0, out=rows.targets, mode="clip")
        self._forward(rows, rows.features)
        np.subtract(rows.output, rows.targets, out=rows.output)
        rows.output *= 2
        parameters, gradients = self.views(self.flat), self.views(target)
        np.matmul(rows.hidden[-1].T, rows.output, out=gradients[-1])
        np.matmul(rows.output, parameters[-1].T, out=rows.hidden_gradients)
        slope = self.architecture.slope
        for layer in reversed(range(len(rows.hidden))):
            # The derivative of leaky ReLU, without a branch: 1 above zero, else the slope.
            np.copysign(np.float32((1 - slope) / 2), rows.hidden[layer], out=rows.scratch)
            rows.scratch += (1 + slope) / 2
            rows.hidden_gradients *= rows.scratch
            before = rows.hidden[layer - 1] if layer else rows.features
            np.matmul(before.T, rows.hidden_gradients, out=gradients[2 * layer])
            np.matmul(rows.ones, rows.hidden_gradients, out=gradients[2 * layer + 1])
            if layer:
                np.matmul(rows.hidden_gradients, parameters[2 * layer].T, out=rows.scratch)
                rows.hidden_gradients, rows.scratch = rows.scratch, rows.hidden_gradients

    def _adamw(self) -> None:
        self.steps_done += 1
        rate, (beta1, beta2) = self.settings.lr, self.settings.betas
        step, root = self.scratch
        np.multiply(self.gradient, 1 - beta1, out=step)
        self.first_moments *= beta1
        self.first_moments += step
        np.square(self.gradient, out=step)
        step *= 1 - beta2
        self.second_moments *= beta2
        self.second_moments += step
        np.multiply(self.second_moments, 1 / (1 - beta2**self.steps_done), out=root)
        np.sqrt(root, out=root)
        root += ADAM_EPSILON
        np.divide(self.first_moments, root, out=step)
        step *= rate / (1 - beta1**self.steps_done)
        self.flat *= 1 - rate * self.settings.weight_decay
        self.flat -= step


class _Activations:
    """Arrays for the activations and gradients of `count` rows. Hidden layers have equal widths."""

    def __init__(self, count: int, sizes: tuple[int, ...]) -> None:
        def empty(width: int) -> Array:
            return np.empty((count, width), np.float32)

        self.features = empty(sizes[0])
        self.hidden = [empty(width) for width in sizes[1:-1]]
        self.hidden_gradients, self.scratch = empty(sizes[1]), empty(sizes[1])
        self.output, self.targets = empty(sizes[-1]), empty(sizes[-1])
        self.ones = np.ones(count, np.float32)
