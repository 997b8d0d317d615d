"""The job as one writes it by hand in NumPy: what a machine gives without any compiler.

NumPy's products run on as many threads as there are processors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.bench.job import Job
from imgmlp.codec.float_mlp.features import tables

CHUNK = 2048  # rows at once: their activations stay in a processor's cache
EPSILON = 1e-8

Array = np.ndarray[Any, Any]


class ByHand:
    """A network, its gradients and AdamW's moments as flat arrays, layers as views of them."""

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
        self.gradient, self.partial, self.first, self.second = np.zeros((4, count), np.float32)
        self.scratch = np.empty((2, count), np.float32)
        self.done = 0
        self._rows: dict[int, _Rows] = {}

    def _initial(self) -> Array:
        parts = [
            self.random.normal(0, shape[0] ** -0.5, end - begin)
            for begin, end, shape in self.architecture.spans()
        ]
        return np.concatenate(parts).astype(np.float32)

    def steps(self, batch: int, count: int) -> None:
        for _ in range(count):
            chosen = self.random.integers(0, len(self.features), batch)
            for begin in range(0, batch, CHUNK):
                target = self.partial if begin else self.gradient
                self._gradients(chosen[begin : begin + CHUNK], target)
                if begin:
                    self.gradient += self.partial
            self._adamw()

    def decode(self) -> Array:
        levels = np.empty(self.targets.shape, np.uint8)
        for begin in range(0, len(levels), CHUNK):
            rows = self.rows(len(levels[begin : begin + CHUNK]))
            self._forward(rows, self.features[begin : begin + CHUNK])
            np.clip(rows.answer, 0, 1, out=rows.answer)
            levels[begin : begin + CHUNK] = rows.answer * 255 + 0.5
        return levels

    def views(self, flat: Array) -> list[Array]:
        """Matrices and biases of a flat array: W0, b0, W1, b1, ... W_last."""
        return [flat[a:b].reshape(shape) for a, b, shape in self.architecture.spans()]

    def rows(self, count: int) -> _Rows:
        """Room for the activations of so many rows."""
        if count not in self._rows:
            self._rows[count] = _Rows(count, self.architecture.sizes)
        return self._rows[count]

    def _forward(self, rows: _Rows, features: Array) -> None:
        parameters = self.views(self.flat)
        kept = features
        layers = zip(rows.hidden, parameters[:-1:2], parameters[1:-1:2], strict=True)
        for after, weight, bias in layers:
            np.matmul(kept, weight, out=after)
            after += bias
            np.multiply(after, self.architecture.slope, out=rows.spare)
            np.maximum(after, rows.spare, out=after)
            kept = after
        np.matmul(kept, parameters[-1], out=rows.answer)

    def _gradients(self, chosen: Array, target: Array) -> None:
        """Gradients of the sum of squared errors over some pixels, int [rows], into `target`."""
        rows = self.rows(len(chosen))
        np.take(self.features, chosen, 0, out=rows.features, mode="clip")
        np.take(self.targets, chosen, 0, out=rows.wanted, mode="clip")
        self._forward(rows, rows.features)
        np.subtract(rows.answer, rows.wanted, out=rows.answer)
        rows.answer *= 2
        parameters, gradients = self.views(self.flat), self.views(target)
        np.matmul(rows.hidden[-1].T, rows.answer, out=gradients[-1])
        np.matmul(rows.answer, parameters[-1].T, out=rows.back)
        slope = self.architecture.slope
        for layer in reversed(range(len(rows.hidden))):
            # 1 above zero and the slope below it, without a branch
            np.copysign(np.float32((1 - slope) / 2), rows.hidden[layer], out=rows.spare)
            rows.spare += (1 + slope) / 2
            rows.back *= rows.spare
            before = rows.hidden[layer - 1] if layer else rows.features
            np.matmul(before.T, rows.back, out=gradients[2 * layer])
            np.matmul(rows.ones, rows.back, out=gradients[2 * layer + 1])
            if layer:
                np.matmul(rows.back, parameters[2 * layer].T, out=rows.spare)
                rows.back, rows.spare = rows.spare, rows.back

    def _adamw(self) -> None:
        self.done += 1
        rate, (beta1, beta2) = self.settings.lr, self.settings.betas
        step, root = self.scratch
        np.multiply(self.gradient, 1 - beta1, out=step)
        self.first *= beta1
        self.first += step
        np.square(self.gradient, out=step)
        step *= 1 - beta2
        self.second *= beta2
        self.second += step
        np.multiply(self.second, 1 / (1 - beta2**self.done), out=root)
        np.sqrt(root, out=root)
        root += EPSILON
        np.divide(self.first, root, out=step)
        step *= rate / (1 - beta1**self.done)
        self.flat *= 1 - rate * self.settings.weight_decay
        self.flat -= step


class _Rows:
    """Arrays for a number of rows; hidden layers are all of one width."""

    def __init__(self, count: int, sizes: tuple[int, ...]) -> None:
        def empty(width: int) -> Array:
            return np.empty((count, width), np.float32)

        self.features = empty(sizes[0])
        self.hidden = [empty(width) for width in sizes[1:-1]]
        self.back, self.spare = empty(sizes[1]), empty(sizes[1])
        self.answer, self.wanted = empty(sizes[-1]), empty(sizes[-1])
        self.ones = np.ones(count, np.float32)
