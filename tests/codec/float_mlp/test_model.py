"""The network: its initial parameters, their layout, its forward pass and its gradient."""

from __future__ import annotations

import numpy as np
import pytest
from reference import close

from imgmlp.codec.float_mlp import model
from imgmlp.codec.float_mlp.config import Architecture, Encoding, Weights
from imgmlp.engine import AnyDevice, Tensor, open_device

ARCHITECTURE = Architecture((12, 7, 5, 3), float(np.float32(0.1)))


def parameters(seed: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(ARCHITECTURE.parameters).astype(np.float32)


def layer_by_layer(flat: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of the network in float64, from the arrays of its file, and sums of magnitudes."""
    encoding = Encoding((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), 0.5)
    w0, b0, w1, b1, w2 = Weights(ARCHITECTURE, encoding, 1, 1, flat).arrays()
    x, size = x.astype(np.float64), np.abs(x)
    for w, b in ((w0, b0), (w1, b1)):
        x, size = x @ w + b, size @ np.abs(w) + np.abs(b)
        x = np.where(x < 0, x * ARCHITECTURE.slope, x)
    return x @ w2, size @ np.abs(w2)


@pytest.mark.parametrize("rows", [1, 3, 65])
def test_forward_pass_is_that_of_the_arrays_in_float64(device: AnyDevice, rows: int) -> None:
    """The tolerance is for sums of at most 12 terms in three layers."""
    flat = parameters()
    x = np.random.default_rng(5).standard_normal((rows, 12)).astype(np.float32)
    outputs = model.forward(Tensor(flat, device), ARCHITECTURE, Tensor(x, device)).numpy()
    assert close(outputs, *layer_by_layer(flat, x), roundings=36)


def test_gradient_is_that_of_the_network_in_float64(device: AnyDevice) -> None:
    """It is compared with central differences of every parameter.

    Those of the same network of magnitudes are the sums of magnitudes, for the tolerance.
    """
    flat = parameters()
    x = np.random.default_rng(6).standard_normal((9, 12)).astype(np.float32)
    tensor = Tensor(flat, device)
    loss = model.forward(tensor, ARCHITECTURE, Tensor(x, device)).square().sum()
    (gradient,) = loss.gradient([tensor])
    wanted, sizes = differences(flat, x), differences(np.abs(flat), np.abs(x))
    assert close(gradient.numpy(), wanted, sizes, roundings=16)


def differences(flat: np.ndarray, x: np.ndarray) -> np.ndarray:
    gradient = np.empty(flat.size)
    for i in range(flat.size):
        ends = []
        for h in (-1e-6, 1e-6):
            moved = flat.astype(np.float64)
            moved[i] += h
            ends.append(np.square(_float64_network(moved, x)).sum())
        gradient[i] = (ends[1] - ends[0]) / 2e-6
    return gradient


def _float64_network(flat: np.ndarray, x: np.ndarray) -> np.ndarray:
    arrays = [flat[a:b].reshape(shape) for a, b, shape in ARCHITECTURE.spans()]
    values = x.astype(np.float64)
    for w, b in (arrays[:2], arrays[2:4]):
        values = values @ w + b
        values = np.where(values < 0, values * ARCHITECTURE.slope, values)
    return values @ arrays[4]


def test_initial_parameters_are_gaussian_with_the_documented_variances() -> None:
    """64 x 256 draws: the variance is off by 1.1% (one sigma), the mean by 0.8% of a sigma."""
    wide = Architecture((64, 256, 128, 3), 0.1)
    flat = model.initial(wide, 0, open_device("numpy")).numpy()
    for begin, end, shape in wide.spans():
        drawn = flat[begin:end].astype(np.float64)
        scaled = drawn * np.sqrt(shape[0])
        tolerance = 5 * np.sqrt(2 / drawn.size)  # five sigma of a variance
        assert scaled.var() == pytest.approx(1, abs=tolerance)
        assert abs(scaled.mean()) < tolerance


def test_initial_parameters_are_determined_by_the_seed(device: AnyDevice) -> None:
    first, second, other = (model.initial(ARCHITECTURE, s, device).numpy() for s in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.isclose(first, other).any()


def test_layers_draw_different_initial_parameters() -> None:
    square = Architecture((8, 8, 8, 8), 0.1)
    flat = model.initial(square, 0, open_device("numpy")).numpy()
    drawn = [flat[a:b].tobytes() for a, b, _ in square.spans()]
    assert len(set(drawn)) == len(drawn)
    assert len(np.unique(flat)) == flat.size
