"""Layers against NumPy in float64, and that they can be trained."""

from __future__ import annotations

import numpy as np
import pytest
from reference import Array, cross_entropy, encoder, linear, normed, softmax

from imgmlp.engine import AnyDevice, Tensor, compile, nn, open_device, optim

RNG = np.random.default_rng(4)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # float32 through a few layers of products


@pytest.fixture(scope="module", params=["numpy", "cpu"])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_device(request.param)


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def values(tensors: list[Tensor]) -> list[Array]:
    return [t.numpy().astype(np.float64) for t in tensors]


def test_linear_maps_the_last_axis(device: AnyDevice) -> None:
    layer = nn.Linear(Tensor(draw(5, 3), device), Tensor(draw(3), device))
    plain = nn.Linear(layer.weight)
    w, b = values(layer.parameters())
    for shape in ((7, 5), (2, 3, 5), (1, 5)):
        x = draw(*shape)
        assert np.allclose(layer(Tensor(x, device)).numpy(), x @ w + b, **CLOSE)
        assert np.allclose(plain(Tensor(x, device)).numpy(), x @ w, **CLOSE)
    assert plain.parameters() == [layer.weight]


def test_random_weights_keep_the_variance_of_their_input(device: AnyDevice) -> None:
    layer = nn.Linear.random(100, 60, seed=3, device=device)
    weight, bias = values(layer.parameters())
    assert abs(weight.var() - 0.01) < 4 * 0.01 * np.sqrt(2 / 6000)  # four standard errors
    assert not bias.any()
    again, other = (nn.Linear.random(100, 60, s, device, bias=False) for s in (3, 4))
    assert np.array_equal(again.weight.numpy(), layer.weight.numpy())
    assert not np.array_equal(other.weight.numpy(), layer.weight.numpy())


def test_layer_norm_and_sequence(device: AnyDevice) -> None:
    norm = nn.LayerNorm(17, device)
    norm.scale.assign(Tensor(draw(17), device))
    norm.shift.assign(Tensor(draw(17), device))
    first = nn.Linear.random(17, 5, 1, device)
    net = nn.Sequential(norm, first, Tensor.relu)
    assert net.parameters() == [norm.scale, norm.shift, first.weight, first.bias]
    x = draw(3, 17)
    scale, shift, w, b = values(net.parameters())
    wanted = np.maximum(linear(normed(x.astype(np.float64), scale, shift), w, b), 0)
    assert np.allclose(net(Tensor(x, device)).numpy(), wanted, **CLOSE)


def test_an_encoder_layer_is_that_of_the_paper(device: AnyDevice) -> None:
    layer = nn.TransformerEncoder(6, 2, 7, 10, device)
    x = draw(2, 5, 6)
    v = values(layer.parameters())
    assert len(v) == 12
    wanted = encoder(x.astype(np.float64), 2, v)
    assert np.allclose(layer(Tensor(x, device)).numpy(), wanted, **CLOSE)
    with pytest.raises(ValueError, match=r"7 features.*2 heads"):
        nn.SelfAttention(7, 2, 0, device)


def test_cross_entropy_and_its_gradient(device: AnyDevice) -> None:
    logits, target = draw(7, 5) * 10, np.array([0, 4, 2, 2, 1, 3, 0])
    x = Tensor(logits, device)
    loss = nn.cross_entropy(x, Tensor(target, device))
    wide = logits.astype(np.float64)
    assert loss.numpy() == pytest.approx(cross_entropy(wide, target), rel=1e-5)
    slope = (softmax(wide) - np.eye(5)[target]) / 7
    assert np.allclose(loss.gradient([x])[0].numpy(), slope, rtol=1e-4, atol=1e-6)


def test_a_small_network_learns_exclusive_or(device: AnyDevice) -> None:
    x = Tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]], device)
    target = Tensor([0, 1, 1, 0], device)
    net = nn.Sequential(
        nn.Linear.random(2, 8, 1, device), Tensor.tanh, nn.Linear.random(8, 2, 2, device)
    )
    optimizer = optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.0)

    def step() -> dict[str, Tensor]:
        loss = nn.cross_entropy(net(x), target)
        optimizer.step(loss)
        return {"loss": loss}

    program = compile(step, device)
    program.run(300)
    assert program.read("loss") < 0.05
    assert net(x).numpy().argmax(1).tolist() == [0, 1, 1, 0]
