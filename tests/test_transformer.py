"""examples/transformer.py: its network equals NumPy's, learns, and checks its results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from conftest import EMULATED, MAPPINGS, open_mapping
from reference import Array, close, cross_entropy, encoder, linear

from examples import transformer
from examples.transformer import Sizes, Sorter, compile_step, draw, loss_of, losses
from imgmlp.engine import Tensor, compile, open_device

TINY = Sizes(layers=2, batch=3, time=4, digits=5, features=6, heads=2, hidden=7)


def reference_loss(values: Sequence[Array], sequences: Array) -> float:
    """The loss in float64, from the parameters in the order of the network."""
    x = values[0][sequences] + values[1]
    for i in range(TINY.layers):
        x = encoder(x, TINY.heads, values[2 + 12 * i : 14 + 12 * i])
    scores = linear(x, *values[-2:])
    return cross_entropy(scores.reshape(-1, TINY.digits), np.sort(sequences, -1).reshape(-1))


def finite_differences(values: list[Array], sequences: Array, number: int) -> Array:
    """The gradient of the reference loss for one parameter, by central differences."""
    gradient, step = np.zeros_like(values[number]), 1e-6
    for index in np.ndindex(gradient.shape):
        shifted_losses = []
        for sign in (1, -1):
            shifted = [v.copy() for v in values]
            shifted[number][index] += sign * step
            shifted_losses.append(reference_loss(shifted, sequences))
        gradient[index] = (shifted_losses[0] - shifted_losses[1]) / (2 * step)
    return gradient


def test_loss_and_gradients_equal_the_reference() -> None:
    """Two layers in float32 differ from float64 by at most 1e-4 of the largest gradient."""
    device = open_device("numpy")
    net, sequences = Sorter(TINY, device), draw(TINY, 1, seed=5)[0]
    inputs = Tensor(sequences, device), Tensor(np.sort(sequences, -1), device)
    parameters = net.parameters()

    def step() -> dict[str, Tensor]:
        loss = loss_of(net, *inputs)
        gradients = {str(i): g for i, g in enumerate(loss.gradient(parameters))}
        return {"loss": loss, **gradients}

    program = compile(step, device)
    program.run()
    values = [p.numpy().astype(np.float64) for p in parameters]
    assert len(values) == 4 + 12 * TINY.layers
    assert program.read("loss") == pytest.approx(reference_loss(values, sequences), rel=1e-5)
    slopes = [finite_differences(values, sequences, i) for i in range(len(values))]
    largest = max(np.abs(s).max() for s in slopes)
    for i, slope in enumerate(slopes):
        assert close(program.read(str(i)), slope, largest, roundings=1024)


def test_losses_fall_and_agree_on_all_mappings() -> None:
    numpy, *mappings = (losses(TINY, open_mapping(name), 20) for name in MAPPINGS)
    assert numpy[-5:].mean() < 0.8 * numpy[:5].mean()
    for mapping_losses in mappings:
        assert close(np.float32(mapping_losses), numpy, roundings=1024)
    for name in EMULATED:
        assert close(np.float32(losses(TINY, open_mapping(name), 2)), numpy[:2])


def test_training_step_saves_most_of_the_memory_of_its_intermediates() -> None:
    sizes, device = Sizes(layers=1), open_device("numpy")
    figures = compile_step(Sorter(sizes, device), sizes, device).stages.figures()
    assert figures["saved"] >= 0.7


@pytest.mark.parametrize(("steps", "status"), [(250, 0), (2, 1)])
def test_example_exits_with_1_if_it_has_not_learned(
    capsys: pytest.CaptureFixture[str], steps: int, status: int
) -> None:
    assert transformer.main(["--device", "numpy", "--steps", str(steps)]) == status
    shown = capsys.readouterr()
    assert "sorted right" in shown.out
    assert ("wrong" in shown.err) == bool(status)


def test_example_exits_with_1_if_losses_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer, "TOLERANCE", -1.0)
    monkeypatch.setattr(transformer, "LEAST_RIGHT", 0.0)
    assert transformer.main(["--device", "numpy", "--steps", "1"]) == 1
    assert "losses should not differ" in capsys.readouterr().err
