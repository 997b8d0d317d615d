"""Optimizers follow their formulas in float64 and fit a quadratic; random numbers; refusals."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
from conftest import EMULATED, open_mapping
from reference import close

from imgmlp.codec.float_mlp.config import PRESETS
from imgmlp.codec.float_mlp.fit import LearningRate
from imgmlp.engine import AnyDevice, Program, Tensor, compile, dtype, nn, open_device, optim
from imgmlp.engine.oracle.interpret import lowbias32

RNG = np.random.default_rng(0)
START = RNG.standard_normal((5, 3))
GOAL = RNG.standard_normal((5, 3))
LR, BETAS, DECAY, EPSILON = 0.05, (0.92, 0.95), 0.1, 1e-8


@pytest.fixture(scope="module", params=["numpy", "one", *EMULATED])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def noise_gradient(seed: Tensor | int, device: AnyDevice) -> Tensor:
    """Gradients that differ from step to step: the form "seed" divides by their spread."""
    return Tensor.uniform((5, 3), seed, device) - 0.3


def adamw_reference(
    form: str, gradients: list[np.ndarray], decay: float = DECAY
) -> tuple[np.ndarray, np.ndarray]:
    """The parameters after all steps, and the size of the terms whose rounding counts."""
    p, m, v = START.copy(), np.zeros((5, 3)), np.zeros((5, 3))
    absolute, size = np.zeros((5, 3)), np.abs(p)
    for step, g in enumerate(gradients, 1):
        m = BETAS[0] * m + (1 - BETAS[0]) * g
        v = BETAS[1] * v + (1 - BETAS[1]) * g * g
        absolute = BETAS[0] * absolute + (1 - BETAS[0]) * np.abs(g)
        if form == "seed":
            spread = np.abs(v - m * m)
            move, lost = LR / (np.sqrt(spread) + EPSILON), (v + m * m) / spread
            p = p - m * move
            p = p - p * decay * LR
            size += (absolute + np.abs(m) * lost) * move
        else:
            move = LR / (1 - BETAS[0] ** step) / (np.sqrt(v / (1 - BETAS[1] ** step)) + EPSILON)
            p = p - LR * decay * p - m * move
            size += absolute * move
    return p, size


@pytest.mark.parametrize("form", ["standard", "seed"])
def test_adamw_follows_its_formula(device: AnyDevice, form: str) -> None:
    p, count = Tensor(START, device), Tensor(np.uint32(0), device)
    optimizer = optim.AdamW([p], LR, BETAS, DECAY, EPSILON, form)  # type: ignore[arg-type]

    def step() -> dict[str, Tensor]:
        loss = (p * noise_gradient(count, device)).sum()
        optimizer.step(loss)
        count.assign(count + 1)
        return {"loss": loss}

    compile(step, device).run(20)
    numpy = open_device("numpy")
    gradients = [noise_gradient(i, numpy).numpy().astype(np.float64) for i in range(20)]
    other = "standard" if form == "seed" else "seed"
    assert close(p.numpy(), *adamw_reference(form, gradients))
    assert not close(p.numpy(), *adamw_reference(other, gradients))


@pytest.mark.parametrize("as_tensors", [False, True])
def test_adam_equals_standard_adamw_without_weight_decay(
    device: AnyDevice, as_tensors: bool
) -> None:
    p, count = Tensor(START, device), Tensor(np.uint32(0), device)
    betas_on_device = Tensor(np.float32(BETAS), device, name="betas")
    betas = (betas_on_device[0], betas_on_device[1]) if as_tensors else BETAS
    optimizer = optim.Adam([p], LR, betas, EPSILON)

    def step() -> dict[str, Tensor]:
        optimizer.step((p * noise_gradient(count, device)).sum())
        count.assign(count + 1)
        return {}

    compile(step, device).run(20)
    numpy = open_device("numpy")
    gradients = [noise_gradient(i, numpy).numpy().astype(np.float64) for i in range(20)]
    assert close(p.numpy(), *adamw_reference("standard", gradients, decay=0.0))
    assert not close(p.numpy(), *adamw_reference("standard", gradients))


def test_first_adam_steps_are_one_learning_rate_long_for_any_slope(device: AnyDevice) -> None:
    """With bias correction each step is one learning rate long; 0.999 is not exact in float32."""
    p = Tensor(np.zeros(4, np.float32), device)
    slope = Tensor([3.0, -0.7, 0.01, -20.0], device)
    optimizer = optim.Adam([p], lr=1.0)

    def step() -> dict[str, Tensor]:
        optimizer.step((p * slope).sum())
        return {}

    program = compile(step, device)
    program.run()
    assert np.allclose(p.numpy(), [-1, 1, -1, 1], rtol=2e-6)  # epsilon is 1e-6 of 0.01
    program.run(9)
    assert np.allclose(p.numpy(), [-10, 10, -10, 10], rtol=2e-6)


def test_soap_without_epsilon_updates_matrices_of_unequal_sizes_without_nan(
    device: AnyDevice,
) -> None:
    small, large = (Tensor(np.ones(s, np.float32), device) for s in ((3, 2), (5, 5)))
    optimizer = optim.SOAP([small, large], lr=1.0, epsilon=0.0)
    compile(lambda: optimizer.step((small.sum() + large.sum()) * 1.5) or {}, device).run()
    assert np.allclose(small.numpy(), 0)
    assert np.allclose(large.numpy(), 0)


@pytest.mark.parametrize("make", [optim.Adam, optim.AdamW, optim.SOAP])
def test_float16_parameters_move_by_the_learning_rate(
    device: AnyDevice, make: Callable[..., optim.AdamW | optim.SOAP]
) -> None:
    """The slope is 0.004, whose square loses most digits in float16."""
    p = Tensor(np.ones((2, 3), np.float16), device)
    optimizer = make([p], lr=1e-3)
    compile(lambda: optimizer.step((p - 0.998).square().sum()) or {}, device).run()
    assert p.dtype is dtype.f16
    assert np.allclose(p.numpy(), 0.999, atol=5e-4)


def test_soap_follows_float16_gradients_whose_square_overflows(device: AnyDevice) -> None:
    p, slope = (Tensor(np.full((2, 3), value, np.float16), device) for value in (1, 300))
    optimizer = optim.SOAP([p], lr=1e-2)
    compile(lambda: optimizer.step((p * slope).sum()) or {}, device).run()
    assert np.isfinite(optimizer.factors.numpy()).all()
    assert np.allclose(p.numpy(), 0.99, atol=1e-3)


def test_optimizers_refuse_parameters_that_are_no_realized_floats(device: AnyDevice) -> None:
    whole, computed = Tensor([1, 2], device), Tensor([1.0, 2.0], device) * 2
    for make in (lambda p: optim.SGD(p, 0.1), optim.Adam, optim.AdamW):
        with pytest.raises(ValueError, match="no parameters"):
            make([])
        for p, remedy in ((whole, r"use cast\(f32\).realize\(\)"), (computed, r"call realize\(\)")):
            with pytest.raises(ValueError, match=f"realized Tensor of floats; {remedy}"):
                make([p])


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.AdamW, optim.SOAP])
def test_optimizers_refuse_invalid_rates_betas_and_parameters(make: Callable[..., object]) -> None:
    p, name = Tensor(np.zeros((2, 3)), open_device("numpy")), make.__name__
    for lr in (-1e-3, math.nan, math.inf):
        with pytest.raises(ValueError, match=rf"{name}: lr must be in \[0, inf\), not {lr}"):
            make([p], lr)
    for lr in (np.array(-0.1), np.float32([0.1, np.nan])):
        with pytest.raises(ValueError, match=rf"{name}: lr must be in \[0, inf\), not "):
            make([p], lr)
    for lr in ("1e-3", None):
        with pytest.raises(TypeError, match=f"{name}: lr must be a number or a Tensor, not {lr!r}"):
            make([p], lr)
    with pytest.raises(ValueError, match=f"{name}: a parameter is given twice"):
        make([p, p], 0.1)
    if make is not optim.SGD:
        for betas in ((1.0, 0.9), (0.9, -0.1), (np.array([1.0]), 0.9)):
            with pytest.raises(ValueError, match=rf"{name}: each of betas must be in \[0, 1\)"):
                make([p], 0.1, betas)
        for betas in (0.9, (0.9,)):
            with pytest.raises(TypeError, match=rf"{name}: betas must be two numbers, not"):
                make([p], 0.1, betas)
        with pytest.raises(ValueError, match=rf"{name}: epsilon must be in \[0, inf\), not -1"):
            make([p], epsilon=-1.0)
    make([p], np.float32(0))
    with pytest.raises(TypeError, match=rf"{name}: step: takes a Tensor, not int"):
        make([p], 0.1).step(3)  # type: ignore[attr-defined]
    net = nn.Linear(p)
    for wrong in (net, net.parameters):
        with pytest.raises(TypeError, match=rf"{name}: takes a list .* net\.parameters\(\)"):
            make(wrong, 0.1)


def test_weight_decay_and_shampoo_beta_out_of_range_are_refused() -> None:
    p = Tensor(np.zeros((2, 3)), open_device("numpy"))
    with pytest.raises(ValueError, match=r"AdamW: weight_decay must be in \[0, inf\), not -1"):
        optim.AdamW([p], weight_decay=-1.0)
    with pytest.raises(ValueError, match=r"SOAP: shampoo_beta must be in \[0, 1\), not 1"):
        optim.SOAP([p], shampoo_beta=1.0)


OPTIMIZERS: dict[str, Callable[..., optim.SGD | optim.AdamW | optim.SOAP]] = {
    "SGD": lambda p, lr, beta: optim.SGD(p, lr),
    "AdamW": lambda p, lr, beta: optim.AdamW(p, lr, (beta, 0.9)),
    "SOAP": lambda p, lr, beta: optim.SOAP(p, lr, (beta, 0.9)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_learning_rate_of_one_element_leaves_parameter_shapes_unchanged(
    device: AnyDevice, name: str
) -> None:
    """The learning rate has shape (), (1,) or (1, 1); parameters are matrices, vectors, scalars."""
    results = []
    for shape in ((), (1,), (1, 1)):
        parts = [Tensor(np.ones(s, np.float32), device) for s in ((3, 2), (), (1,))]
        lr, beta = (Tensor(np.full(shape, n, np.float32), device) for n in (0.1, 0.8))
        OPTIMIZERS[name](parts, lr, beta).step(
            sum((p.square().sum() for p in parts), start=Tensor(0.0))
        )
        assert [p.shape for p in parts] == [(3, 2), (), (1,)]
        results.append([p.numpy().ravel().tolist() for p in parts])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_learning_rate_can_be_written_through_the_optimizer(device: AnyDevice, name: str) -> None:
    part, lr = Tensor(np.ones((3, 2), np.float32), device), Tensor(np.float32([0.1]), device)
    optimizer = OPTIMIZERS[name]([part], lr, 0.8)
    optimizer.lr.write(np.float32([0.0]))
    optimizer.step(part.square().sum())
    assert (part.numpy() == 1).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_apply_needs_one_gradient_of_the_same_shape_per_parameter(name: str) -> None:
    x = Tensor(np.ones((3, 2), np.float32), open_device("numpy"))
    optimizer = OPTIMIZERS[name]([x], 0.1, 0.8)
    with pytest.raises(TypeError, match=rf"{name}: apply takes a list of Tensors, not Tensor"):
        optimizer.apply(x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=rf"{name}: .* not of ndarray"):
        optimizer.apply([x.numpy()])  # type: ignore[list-item]
    for wrong in ([], [x, x], [x[0]]):
        with pytest.raises(ValueError, match=rf"{name}: gradients of shapes \["):
            optimizer.apply(wrong)
    optimizer.apply([x])


def test_betas_of_several_elements_are_refused() -> None:
    x = Tensor(np.ones(2, np.float32), open_device("numpy"))
    with pytest.raises(ValueError, match=r"AdamW: each of betas is one element.*\(2,\)"):
        optim.AdamW([x], betas=(x * 0.5, 0.9))


def test_sgd_follows_its_formula(device: AnyDevice) -> None:
    p, goal, expected = Tensor(START, device), Tensor(GOAL, device), START.copy()

    def step() -> dict[str, Tensor]:
        loss = ((p - goal) ** 4).sum()
        optim.SGD([p], 0.01).step(loss)
        return {"loss": loss}

    compile(step, device).run(10)
    for _ in range(10):
        expected -= 0.01 * 4 * (expected - GOAL) ** 3
    assert close(p.numpy(), expected)


@pytest.mark.parametrize("preset", ["default", "seed"])
def test_learning_rate_schedule_is_computed_on_the_device(device: AnyDevice, preset: str) -> None:
    settings = dataclasses.replace(PRESETS[preset], steps=1000)
    done = np.array([0.0, 1.0, 500.0, 999.0])
    actual = LearningRate(settings, device).after(Tensor(done, device)).numpy()
    if preset == "seed":
        expected = 0.000533 * 0.99999**done
    else:
        expected = settings.lr * 0.5 * (1 + np.cos(math.pi * done / 1000))
    sizes = (
        expected if preset == "seed" else settings.lr * math.pi
    )  # the rounding of an angle of up to pi
    assert close(actual, expected, sizes, roundings=4)


SHAPES = [(5, 3), (4,), (2, 6), (49, 2)]  # the last one is too large for SOAP
SIZES = [math.prod(shape) for shape in SHAPES]
INITIAL_VALUES = np.split(RNG.standard_normal(sum(SIZES)), np.cumsum(SIZES)[:-1])
SHAMPOO_BETA, REFRESH_INTERVAL = 0.9, 8


def soap_reference(drawn: list[np.ndarray], every: int) -> list[np.ndarray]:
    """SOAP in float64, for one parameter of SHAPES after another.

    A gradient is the parameter plus the noise of `drawn`.
    """
    results, gradients = [], [np.split(each, np.cumsum(SIZES)[:-1]) for each in drawn]
    for shape, start, noises in zip(
        SHAPES, INITIAL_VALUES, zip(*gradients, strict=True), strict=True
    ):
        p = start.reshape(shape) if len(shape) == 2 else start.reshape(-1, 1)
        bases = [np.eye(n) for n in p.shape]
        factors = [np.zeros((n, n)) for n in p.shape]
        m, v = np.zeros_like(p), np.zeros_like(p)
        for step, noise_gradient in enumerate(noises, 1):
            g = p + noise_gradient.reshape(p.shape)
            squares = g @ g.T, g.T @ g
            pairs = zip(factors, squares, strict=True)
            factors = [SHAMPOO_BETA * f + (1 - SHAMPOO_BETA) * s for f, s in pairs]
            turned = bases[0].T @ g @ bases[1]
            m = BETAS[0] * m + (1 - BETAS[0]) * turned
            v = BETAS[1] * v + (1 - BETAS[1]) * turned**2
            spread = np.sqrt(v / (1 - BETAS[1] ** step)) + EPSILON
            p = p - LR * bases[0] @ (m / (1 - BETAS[0] ** step) / spread) @ bases[1].T
            if step % every == 0 and len(shape) == 2 and max(shape) <= 48:
                now = [np.linalg.eigh(f)[1] for f in factors]
                a, b = (new.T @ old for new, old in zip(now, bases, strict=True))
                m, v, bases = a @ m @ b.T, a**2 @ v @ (b**2).T, now
        results.append(p.reshape(shape))
    return results


def soap_program(device: AnyDevice, flat: bool) -> tuple[Program, optim.SOAP, list[Tensor], Tensor]:
    """Steps on noise and a quadratic, with separate parameters or one flat one of all."""
    arrays = [start.reshape(shape) for start, shape in zip(INITIAL_VALUES, SHAPES, strict=True)]
    parameters = [Tensor(a, device) for a in ([np.concatenate(INITIAL_VALUES)] if flat else arrays)]
    count = Tensor(np.uint32(0), device)
    options = {"shapes": SHAPES} if flat else {}
    optimizer = optim.SOAP(parameters, LR, BETAS, SHAMPOO_BETA, EPSILON, **options)

    def step() -> dict[str, Tensor]:
        drawn = Tensor.uniform((sum(SIZES),), count, device) - 0.3
        values = Tensor.concat([p.reshape(-1) for p in parameters], 0)
        loss = (values * drawn).sum() + values.square().sum() * 0.5
        optimizer.step(loss)
        count.assign(count + 1)
        return {"loss": loss}

    return compile(step, device), optimizer, parameters, count


@pytest.mark.parametrize("flat", [False, True])
def test_soap_follows_its_formula(device: AnyDevice, flat: bool) -> None:
    program, optimizer, parameters, _ = soap_program(device, flat)
    for _ in range(3):
        program.run(REFRESH_INTERVAL)
        optimizer.refresh()
    program.run(REFRESH_INTERVAL)
    numpy = open_device("numpy")
    drawn = [
        np.float64(Tensor.uniform((sum(SIZES),), n, numpy).numpy()) - 0.3
        for n in range(4 * REFRESH_INTERVAL)
    ]
    expected = soap_reference(drawn, REFRESH_INTERVAL)
    actual = np.concatenate([p.numpy().ravel() for p in parameters])
    # Eigenvectors amplify the rounding of the factors.
    assert np.allclose(actual, np.concatenate([p.ravel() for p in expected]), atol=1e-4)
    unturned = soap_reference(drawn, 10**6)
    away = [np.abs(a - b).max() for a, b in zip(expected, unturned, strict=True)]
    assert min(away[0], away[2]) > 0.01
    assert max(away[1], away[3]) == 0


def test_soap_continues_bit_for_bit_from_restored_state(device: AnyDevice) -> None:
    first, second = (soap_program(device, True) for _ in range(2))
    for program, optimizer, _, _ in (first, first, second):
        program.run(3)
        optimizer.refresh()
    kept = [t.numpy() for t in (*second[1].state(), *second[2], second[3])]
    second[0].run(5)
    second[1].refresh()
    for tensor, value in zip((*second[1].state(), *second[2], second[3]), kept, strict=True):
        tensor.write(value)
    second[0].run(3)
    second[1].refresh()
    for mine, other in zip(first[1].state(), second[1].state(), strict=True):
        assert np.array_equal(mine.numpy(), other.numpy())
    assert np.array_equal(first[2][0].numpy(), second[2][0].numpy())
    assert not np.array_equal(first[2][0].numpy(), np.concatenate(INITIAL_VALUES, dtype=np.float32))


def test_soap_keeps_its_bases_when_factors_are_nan() -> None:
    _, optimizer, _, _ = soap_program(open_device("numpy"), True)
    before = optimizer.bases.numpy()
    optimizer.factors.write(np.full_like(before, np.nan))
    optimizer.refresh()
    assert np.array_equal(optimizer.bases.numpy(), before)


def test_soap_refuses_parameters_that_it_cannot_train() -> None:
    numpy = open_device("numpy")
    matrix, wide = (Tensor(np.zeros(s), numpy) for s in ((2, 3), (49, 2)))
    with pytest.raises(ValueError, match="no parameters"):
        optim.SOAP([])
    with pytest.raises(ValueError, match="realized Tensor of floats"):
        optim.SOAP([matrix * 2])
    with pytest.raises(ValueError, match=r"\[\(2, 2\)\] have 4 elements, and the parameters 6"):
        optim.SOAP([matrix], shapes=[(2, 2)])
    with pytest.raises(ValueError, match="no matrix of at most 48 by 48"):
        optim.SOAP([wide])
    with pytest.raises(ValueError, match="no parameter leads to this loss"):
        optim.SOAP([matrix]).step(wide.sum())


def test_number_of_soap_launches_is_independent_of_the_matrix_count() -> None:
    """With the mapping of a GPU, where a launch takes time: at most six more than Adam."""
    device = open_mapping("group")

    def launches(count: int) -> float:
        flat = Tensor(np.ones(81 * count), device)
        optimizer = optim.SOAP([flat], shapes=[(9, 9)] * count)

        def step() -> dict[str, Tensor]:
            optimizer.apply([flat * 2])
            return {}

        return compile(step, device).stages.figures()["launches"]

    assert launches(2) == launches(7) <= 1 + 6


@pytest.mark.parametrize("device", ["numpy", "one"], indirect=True)  # long
def test_adamw_recovers_the_coefficients_of_a_quadratic(device: AnyDevice) -> None:
    """Learns A and B of x^2 A + B from random x; the inputs are squared beforehand."""
    factor, shift = np.array([1.777, 1.333, 0.333]), np.array([1.55, 0.0, -1.666])
    matrix = Tensor(np.zeros((3, 3)), device)
    offset = Tensor(np.zeros((1, 3)), device)
    count = Tensor(np.uint32(0), device)
    a, b = Tensor(factor, device), Tensor(shift, device)

    def step() -> dict[str, Tensor]:
        x = Tensor.uniform((32, 3), count, device).square()
        error = (x @ matrix + offset - (x * a + b)).square().sum()
        optim.AdamW([matrix, offset], lr=0.02, weight_decay=0.0).step(error)
        count.assign(count + 1)
        return {"error": error}

    program = compile(step, device)
    program.run(1500)
    assert program.read("error") < 1e-2
    assert np.allclose(matrix.numpy(), np.diag(factor), atol=0.05)
    assert np.allclose(offset.numpy(), shift, atol=0.02)


def test_random_bits_equal_the_hash_of_a_counter(device: AnyDevice) -> None:
    counter = np.arange(1000, dtype=np.uint32)
    with np.errstate(over="ignore"):
        mixed = lowbias32(np.array([7], np.uint32) + np.uint32(0x9E3779B9))
        expected = lowbias32(lowbias32(counter) + mixed)
    assert np.array_equal(Tensor.random_bits((1000,), 7, device).numpy(), expected)
    assert not np.array_equal(Tensor.random_bits((1000,), 8, device).numpy(), expected)


def test_uniform_and_normal_samples_have_the_expected_moments(device: AnyDevice) -> None:
    """40,000 draws: four standard errors."""
    u = Tensor.uniform((40_000,), 1, device).numpy().astype(np.float64)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 4 * 0.289 / 200
    n = Tensor.normal((40_000,), 2, mean=3.0, variance=0.25, device=device).numpy()
    assert np.isfinite(n).all()
    assert abs(n.mean() - 3) < 4 * 0.5 / 200
    assert abs(n.var() - 0.25) < 4 * 0.25 * math.sqrt(2) / 200
    assert abs(float(np.mean(((n - 3) / 0.5) ** 4)) - 3) < 0.2


def test_nn_slices_splits_a_flat_tensor_in_order(device: AnyDevice) -> None:
    flat = Tensor(np.arange(11.0), device)
    matrix, vector = nn.slices(flat, [(2, 4), (3,)])
    assert np.array_equal(matrix.numpy(), np.arange(8.0).reshape(2, 4))
    assert np.array_equal(vector.numpy(), [8, 9, 10])
    with pytest.raises(ValueError, match="11"):
        nn.slices(flat, [(2, 4)])
