"""The perceptron that codecs train: the gradient of its activation, and its layers."""

from __future__ import annotations

import numpy as np
from reference import close

from imgmlp.codec.training.perceptron import Activation, perceptron
from imgmlp.engine import Tensor, open_device


def plain_activation(v: np.ndarray) -> np.ndarray:
    u = np.clip(v / 4 + 0.5, 0, 1)
    return v * u * u * (3 - 2 * u)


def test_gradient_of_the_activation_is_its_slope() -> None:
    points = np.linspace(-3, 3, 61)
    x = Tensor(points.astype(np.float32), open_device("numpy"))
    (gradient,) = Activation.apply(x).sum().gradient([x])

    expected = (plain_activation(points + 1e-6) - plain_activation(points - 1e-6)) / 2e-6
    assert close(gradient.numpy(), expected, 1 + np.abs(points))


def test_all_layers_but_the_last_have_an_activation() -> None:
    rng = np.random.default_rng(3)
    x, w, b, w2, b2 = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((5, 4), (4, 3), 3, (3, 2), 2)
    )
    device = open_device("numpy")
    outputs = perceptron(Tensor(x, device), [Tensor(a, device) for a in (w, b, w2, b2)]).numpy()
    assert close(outputs, plain_activation(x.astype(np.float64) @ w + b) @ w2 + b2)
