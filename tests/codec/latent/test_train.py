"""The latent codec's training step: its operations, and what a file makes of what it learned."""

from __future__ import annotations

import numpy as np
import pytest

from imgmlp.codec.latent import latents, parts
from imgmlp.codec.latent.course import Course, Decided
from imgmlp.codec.latent.model import LatentModel
from imgmlp.codec.latent.plane import Plane
from imgmlp.codec.latent.settle import Search, flat_of, grids_of, networks_of, shape_of
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.codec.latent.train import Control, LatentStep
from imgmlp.codec.training.run import Run
from imgmlp.engine import Tensor, open_device

HEIGHT, WIDTH = 21, 30


def picture() -> np.ndarray:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    shades = np.stack([x * 255 / WIDTH, y * 255 / HEIGHT, 127 + 100 * np.sin(x * y / 40)], -1)
    return shades.astype(np.uint8)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dot(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sum(a.astype(np.float64) * b))


@pytest.mark.parametrize(("axis", "wanted"), [(1, 14), (1, 13), (2, 10), (2, 9), (2, 16)])
def test_what_doubling_sends_back_is_its_transpose(axis: int, wanted: int) -> None:
    """It is linear in values and in taps, so products with a gradient agree on both sides."""
    device = open_device("numpy")
    x, taps = Tensor(draw(2, 7, 5), device), Tensor(draw(4, seed=1), device)
    y = parts.Doubled.apply(x, taps, axis, wanted)
    g = draw(*y.shape, seed=2)
    by_x, by_taps = (y * Tensor(g, device)).sum().gradient([x, taps])
    assert dot(g, y.numpy()) == pytest.approx(dot(by_x.numpy(), x.numpy()), rel=1e-4)
    assert dot(g, y.numpy()) == pytest.approx(dot(by_taps.numpy(), taps.numpy()), rel=1e-4)


def test_what_a_convolution_sends_back_is_its_transpose() -> None:
    device, plane = open_device("numpy"), Plane.of(HEIGHT, WIDTH, 3)
    x = Tensor(draw(3, plane.pixels), device)
    weights = Tensor(draw(27, 3, seed=1), device)
    y = parts.Convolution.apply(x, weights, plane)
    g = draw(*y.shape, seed=2)
    by_x, by_weights = (y * Tensor(g, device)).sum().gradient([x, weights])
    assert dot(g, y.numpy()) == pytest.approx(dot(by_x.numpy(), x.numpy()), rel=1e-4)
    assert dot(g, y.numpy()) == pytest.approx(dot(by_weights.numpy(), weights.numpy()), rel=1e-4)


def test_gradients_of_bits_are_differences() -> None:
    device = open_device("numpy")
    values = [draw(400, seed=s) * 3 for s in range(2)] + [draw(400, seed=2) * 2 + 4]
    tensors = [Tensor(v, device) for v in values]
    found = [g.numpy() for g in parts.Bits.apply(*tensors).sum().gradient(tensors)]

    def bits(changed: list[np.ndarray]) -> np.ndarray:
        value, mean, s = (c.astype(np.float64) for c in changed)
        scale = np.exp(np.clip(s - 4, -5, 5))

        def below(x: np.ndarray) -> np.ndarray:
            tail = 0.5 * np.exp(-np.abs(x - mean) / scale)
            return np.where(x < mean, tail, 1 - tail)

        return -np.log2(np.maximum(below(value + 0.5) - below(value - 0.5), 2.0**-16))

    likely = bits(values) < 12  # nearer to the floor there is no slope, and cancellation in `below`
    for n, g in enumerate(found):
        step = 1e-4
        up, down = ([v + step * sign * (i == n) for i, v in enumerate(values)] for sign in (1, -1))
        differences = (bits(up) - bits(down)) / (2 * step)
        off = np.abs(g - differences)[likely] / (1e-2 + np.abs(differences[likely]))
        assert np.quantile(off, 0.97) < 0.02  # others are within a step of a bend


def test_networks_come_back_as_they_were() -> None:
    step = LatentStep(picture(), 1, open_device("numpy"))
    flat = draw(step.flat.shape[0])
    assert np.array_equal(flat_of(step, networks_of(step, flat)), flat)


def test_a_file_has_the_picture_and_the_bits_that_training_saw() -> None:
    device = open_device("numpy")
    step = LatentStep(picture(), 1, device)
    price = 1e-3
    assert Course(step, Decided(60, price)).run() == "done"
    search = Search(step)
    networks = search._rounded(dict.fromkeys(search.floats, 8))
    model = LatentModel(shape_of(step), grids_of(step), networks)
    error, bits = step.judge(flat_of(step, {n: q.floats() for n, q in networks.items()}))
    seen = synthesize(model, device).astype(np.float64)
    assert np.mean((seen - picture()) ** 2) / 255**2 == pytest.approx(error, rel=0.03)
    assert latents.bits(model) / step.pixels == pytest.approx(bits, rel=0.03)


def test_a_run_that_stopped_goes_on_bit_for_bit() -> None:
    device = open_device("numpy")
    whole, parted, rest = (LatentStep(picture(), 1, device) for _ in range(3))
    Course(whole, Decided(40, 1e-3)).run()
    course = Course(parted, Decided(40, 1e-3))
    assert course.run(Run(should_stop=lambda: int(parted.count.item()) >= 20)) == "interrupted"
    rest.restore(course.state().arrays)
    Course(rest, Decided(40, 1e-3)).run()
    for name, array in whole.state().items():
        assert np.array_equal(array, rest.state()[name]), name


def test_blocks_give_what_the_graph_means() -> None:
    found = []
    for spec in ("numpy", "numpy:procedure"):
        step = LatentStep(picture(), 1, open_device(spec))
        step.steer(Control(1e-3))
        step.program.run(3)
        found.append(step.state())
    for name, array in found[0].items():
        assert np.allclose(array, found[1][name], rtol=2e-3, atol=2e-4), name
