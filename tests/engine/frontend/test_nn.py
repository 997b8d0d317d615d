"""Layers equal NumPy in float64, and can be trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import EMULATED, open_mapping
from reference import Array, close, cross_entropy, encoder, linear, normed, softmax

from imgmlp.engine import AnyDevice, Tensor, compile, dtype, nn, open_device, optim

RNG = np.random.default_rng(4)


@pytest.fixture(scope="module", params=["numpy", "one", *EMULATED])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def values(tensors: list[Tensor]) -> list[Array]:
    return [t.numpy().astype(np.float64) for t in tensors]


def test_linear_layer_maps_the_last_axis(device: AnyDevice) -> None:
    layer = nn.Linear(Tensor(draw(5, 3), device), Tensor(draw(3), device))
    plain = nn.Linear(layer.weight)
    w, b = values(layer.parameters())
    for shape in ((7, 5), (2, 3, 5), (1, 5)):
        x = draw(*shape)
        assert close(layer(Tensor(x, device)).numpy(), x @ w + b)
        assert close(plain(Tensor(x, device)).numpy(), x @ w)
    assert plain.parameters() == [layer.weight]


def test_nn_functions_compute_what_their_names_say(device: AnyDevice) -> None:
    x = draw(4, 9) * 3
    wide, given = x.astype(np.float64), Tensor(x, device)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    assert close(nn.sigmoid(given).numpy(), 1 / (1 + np.exp(-wide)))
    assert np.array_equal(nn.relu(given).numpy(), np.maximum(x, 0))
    assert close(nn.gelu(given).numpy(), wide / 2 * (1 + np.tanh(inner)))
    assert close(nn.softmax(given).numpy(), softmax(wide))
    assert close(nn.softmax(given, 0).numpy(), softmax(wide.T).T)
    assert close(nn.variance(given, 1).numpy(), wide.var(1))


def test_softmax_gradients_equal_the_whole_jacobian(device: AnyDevice) -> None:
    """Compared with the Jacobian of softmax, diag(s) - s s^T, and of its logarithm, I - 1 s^T."""
    x, g = draw(3, 5), draw(3, 5)
    given, weights = Tensor(x, device), Tensor(g, device)
    for axis in (-1, 0):
        turn = np.transpose if axis == 0 else np.asarray
        rows, slopes = softmax(turn(x).astype(np.float64)), turn(g).astype(np.float64)
        jacobian = [np.diag(r) - np.outer(r, r) for r in rows]
        expected = turn(np.array([j @ s for j, s in zip(jacobian, slopes, strict=True)]))
        actual = (nn.softmax(given, axis) * weights).sum().gradient([given])[0]
        assert close(actual.numpy(), expected)
        jacobian = [np.eye(len(r)) - r for r in rows]
        expected = turn(np.array([s @ j for j, s in zip(jacobian, slopes, strict=True)]))
        actual = (given.log_softmax(axis) * weights).sum().gradient([given])[0]
        assert close(actual.numpy(), expected)


def test_softmax_and_its_gradient_stay_finite_for_huge_logits() -> None:
    x = Tensor([[1e30, 0.0, -1e30], [-1e4, -1e4, -1e4]], open_device("numpy"))
    assert close(x.softmax().numpy(), [[1, 0, 0], [1 / 3] * 3], roundings=4)
    assert np.isfinite(x.log_softmax().numpy()).all()
    assert np.isfinite((x.log_softmax() * x.softmax()).sum().gradient([x])[0].numpy()).all()


def test_linear_layer_without_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="Linear: needs at least one input, not 0"):
        nn.Linear.random(0, 3, 1, open_device("numpy"))


def test_random_linear_weights_have_variance_one_over_inputs(device: AnyDevice) -> None:
    layer = nn.Linear.random(100, 60, seed=3, device=device)
    weight, bias = values(layer.parameters())
    assert abs(weight.var() - 0.01) < 4 * 0.01 * np.sqrt(2 / 6000)  # four standard errors
    assert not bias.any()
    again, other = (nn.Linear.random(100, 60, s, device, bias=False) for s in (3, 4))
    assert np.array_equal(again.weight.numpy(), layer.weight.numpy())
    assert not np.array_equal(other.weight.numpy(), layer.weight.numpy())


def test_sequential_layer_norm_linear_and_relu_equal_numpy(device: AnyDevice) -> None:
    norm = nn.LayerNorm(17, device)
    norm.scale.assign(Tensor(draw(17), device))
    norm.shift.assign(Tensor(draw(17), device))
    first = nn.Linear.random(17, 5, 1, device)
    net = nn.Sequential(norm, first, Tensor.relu)
    assert net.parameters() == [norm.scale, norm.shift, first.weight, first.bias]
    x = draw(3, 17)
    scale, shift, w, b = values(net.parameters())
    expected = np.maximum(linear(normed(x.astype(np.float64), scale, shift), w, b), 0)
    assert close(net(Tensor(x, device)).numpy(), expected)


def test_transformer_encoder_layer_equals_the_reference(device: AnyDevice) -> None:
    layer = nn.TransformerEncoder(6, 2, 7, 10, device)
    x = draw(2, 5, 6)
    v = values(layer.parameters())
    assert len(v) == 12
    expected = encoder(x.astype(np.float64), 2, v)
    assert close(layer(Tensor(x, device)).numpy(), expected)
    layer.activation = nn.gelu
    assert not close(layer(Tensor(x, device)).numpy(), expected)


NUMPY = open_device("numpy")
CALLS_WITH_ARRAYS: dict[str, Callable[[Any], Tensor]] = {
    "Linear": nn.Linear.random(4, 2, 0, NUMPY),
    "LayerNorm": nn.LayerNorm(4, NUMPY),
    "SelfAttention": lambda x: nn.SelfAttention(4, 2, 0, NUMPY)(x[None]),
    "TransformerEncoder": lambda x: nn.TransformerEncoder(4, 2, 3, 0, NUMPY)(x[None]),
    "Sequential": nn.Sequential(nn.relu, nn.sigmoid, nn.LayerNorm(4, NUMPY)),
    "layer_norm": lambda x: nn.layer_norm(x, x[0], Tensor(np.ones(4), NUMPY)),
    "attention": lambda x: nn.attention(Tensor(np.ones((1, 3, 4)), NUMPY), x[None], x[None]),
    "nll_loss": lambda x: nn.nll_loss(x, Tensor([1, 0, 3], NUMPY)),
    "cross_entropy": lambda x: nn.cross_entropy(x, Tensor([1, 0, 3], NUMPY)),
    **{
        name: lambda x, name=name: getattr(nn, name)(x) + Tensor(0.0, NUMPY)
        for name in ("sigmoid", "relu", "gelu", "softmax", "variance")
    },
}


@pytest.mark.parametrize("name", CALLS_WITH_ARRAYS)
def test_layers_and_losses_take_arrays_as_tensors(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    actual, expected = (CALLS_WITH_ARRAYS[name](given).numpy() for given in (x, Tensor(x, NUMPY)))
    assert np.array_equal(actual, expected)


def test_layers_and_losses_refuse_mismatched_shapes_and_dtypes() -> None:
    device = open_device("numpy")
    with pytest.raises(ValueError, match=r"7 features.*2 heads"):
        nn.SelfAttention(7, 2, 0, device)
    with pytest.raises(ValueError, match=r"layer_norm: scale \(4,\).*\(2, 5\)"):
        nn.LayerNorm(4, device)(Tensor.ones(2, 5, device=device))
    with pytest.raises(ValueError, match=r"dot.*5.*4"):
        nn.Linear.random(4, 3, 0, device)(Tensor.ones(2, 5, device=device))
    scores = Tensor.ones(2, 3, device=device)
    with pytest.raises(ValueError, match=r"cross_entropy.*\(2, 3\) and \(3,\)"):
        nn.cross_entropy(scores, Tensor([0, 1, 2], device))
    with pytest.raises(TypeError, match=r"must be int, not f32"):
        nn.cross_entropy(scores, Tensor([0.0, 1.0], device))


def test_wrong_weights_layers_and_inputs_are_refused_with_advice() -> None:
    device = open_device("numpy")
    with pytest.raises(TypeError, match=r"Linear: takes a weight, not 3; nn\.Linear\.random"):
        nn.Linear(3, 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Linear: .* \[inputs, outputs\], not \(3,\)"):
        nn.Linear(Tensor.ones(3, device=device))
    with pytest.raises(TypeError, match=r"Sequential: .* one by one, not list; \*layers"):
        nn.Sequential([nn.relu])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Linear: needs .*, not a Tensor of shape"):
        nn.Linear.random(1, 2, 0, device)(Tensor(1.0, device))
    with pytest.raises(ValueError, match=r"SelfAttention: .*, not \(3, 4\); x\.unsqueeze"):
        nn.SelfAttention(4, 2, 0, device)(Tensor.ones(3, 4, device=device))


def test_cross_entropy_and_its_gradient_equal_numpy(device: AnyDevice) -> None:
    logits, target = draw(7, 5) * 10, np.array([0, 4, 2, 2, 1, 3, 0])
    x = Tensor(logits, device)
    loss = nn.cross_entropy(x, Tensor(target, device))
    wide = logits.astype(np.float64)
    assert loss.numpy() == pytest.approx(cross_entropy(wide, target), rel=1e-5)
    slope = (softmax(wide) - np.eye(5)[target]) / 7
    assert close(loss.gradient([x])[0].numpy(), slope)


def test_attention_of_a_fully_masked_query_is_nan(device: AnyDevice) -> None:
    """A large negative additive mask gives the mean of all values instead."""
    x = draw(3, 4)
    mask = np.tril(np.ones((3, 3), bool))
    mask[0] = False
    q = Tensor(x, device)
    actual = nn.attention(q, q, q, mask=mask).numpy()
    assert np.isnan(actual[0]).all()
    assert np.isfinite(actual[1:]).all()
    added = np.where(mask, 0, -1e9).astype(np.float32)
    assert np.allclose(nn.attention(q, q, q, mask=added).numpy()[0], x.mean(0), atol=1e-6)


def test_float16_cross_entropy_over_many_rows_is_finite(device: AnyDevice) -> None:
    """The sum over the rows overflows float16, their mean does not."""
    zeros = Tensor(np.zeros((20_000, 32), np.float16), device)
    shares = Tensor(np.full((20_000, 32), 1 / 32, np.float16), device)
    for target in (np.zeros(20_000, np.int32), shares):
        loss = nn.cross_entropy(zeros, target)
        assert loss.dtype.name == "f16"
        assert float(loss.numpy()) == pytest.approx(np.log(32), rel=2e-3)


def test_float16_layer_norm_does_not_overflow(device: AnyDevice) -> None:
    x = np.float16([[300, -300], [6e4, 2e4], [1, 2]])
    ones, zeros = (Tensor(np.full(2, n, np.float16), device) for n in (1, 0))
    actual = nn.layer_norm(Tensor(x, device), ones, zeros)
    assert actual.dtype is dtype.f16
    expected = normed(x.astype(np.float64), np.ones(2), np.zeros(2))
    assert np.allclose(actual.numpy(), expected, rtol=2e-3)
    assert nn.layer_norm(Tensor(x, device), ones, zeros.cast(dtype.f32)).dtype is dtype.f32


def test_float16_attention_does_not_overflow(device: AnyDevice) -> None:
    x = Tensor(np.full((3, 64), 40, np.float16), device)
    for mask in (None, Tensor(np.zeros((3, 3), np.float16), device)):
        actual = nn.attention(x, x, x, mask)
        assert actual.dtype is dtype.f16
        assert np.all(actual.numpy() == 40)
    assert nn.attention(x, x, x, np.zeros((3, 3), np.float32)).dtype is dtype.f32


def test_layers_with_neighbouring_seeds_share_no_weights() -> None:
    device = open_device("numpy")
    layers = [nn.TransformerEncoder(4, 2, 4, seed, device) for seed in range(4)]
    begins = [
        float(p.numpy().flat[0] * np.sqrt(len(p)))
        for layer in layers
        for p in layer.parameters()
        if p.ndim == 2
    ]
    assert len({round(n, 4) for n in begins}) == len(begins) == 16
    again = nn.TransformerEncoder(4, 2, 4, 2, device).parameters()
    for one, other in zip(again, layers[2].parameters(), strict=True):
        assert np.array_equal(one.numpy(), other.numpy())
    parts = [nn.SelfAttention(4, 2, seed, device) for seed in ((2, 0), (2, 1))]
    assert not np.array_equal(*(p.projection_in.weight.numpy() for p in parts))


@pytest.mark.parametrize("device", ["numpy", "one"], indirect=True)  # long
def test_small_network_learns_exclusive_or(device: AnyDevice) -> None:
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


@pytest.mark.parametrize("name", ["sigmoid", "relu", "gelu", "softmax", "variance"])
def test_nn_functions_have_module_and_qualified_names_for_pickling(name: str) -> None:
    function = getattr(nn, name)
    assert (function.__module__, function.__qualname__) == (nn.__name__, name)
