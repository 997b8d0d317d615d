"""Reductions: sums that wrap, means that are exact, scalars, NaN, and logical reductions."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import open_mapping
from reference import close

from imgmlp.engine import AnyDevice, Tensor, compile


def test_long_sums_of_8_bit_integers_wrap_as_numpys(device: AnyDevice) -> None:
    """Each reduction is long enough to be shared by the lanes of a group."""
    signed = np.arange(-90, 90).reshape(2, 90).astype(np.int8)
    unsigned, truth = (signed + 90).astype(np.uint8), signed == 7
    parts = {"i8": signed, "u8": unsigned, "bool": truth}
    program = compile(
        lambda: {
            f"{name} {what}": getattr(Tensor(array, device), what)(1)
            for name, array in parts.items()
            for what in ("sum", "max")
        },
        device,
    )
    program.run()
    for name, array in parts.items():
        total = array.sum(1, dtype=np.int32 if name == "bool" else array.dtype)
        assert np.array_equal(program.read(f"{name} sum"), total)
        assert np.array_equal(program.read(f"{name} max"), array.max(1))


def test_mean_of_equal_numbers_is_that_number(device: AnyDevice) -> None:
    counts = [3, 41, 49, 55]
    xs = [Tensor(np.full((2, n), 7, np.float32), device) for n in counts]

    def step() -> dict[str, Tensor]:
        outputs = {}
        for n, x in zip(counts, xs, strict=True):
            outputs |= {f"{n}": x.mean(1), f"{n}, std": x.std(1)}
            (outputs[f"{n}, gradient"],) = x.mean().gradient([x])
        return outputs

    program = compile(step, device)
    program.run()
    # OpenCL allows a quotient an error of 2.5 units in the last place; GPUs make use of that.
    ulps = 2.5 if device.info.kind == "gpu" else 0.0
    tolerance = ulps * float(np.spacing(np.float32(7)))
    for n in counts:
        assert np.abs(program.read(f"{n}") - 7).max() <= tolerance
        assert program.read(f"{n}, std").max() <= 2 * tolerance
        assert close(program.read(f"{n}, gradient"), np.full((2, n), 0.5 / n))


def test_gradient_of_max_finds_the_maximum_despite_fused_rounding(device: AnyDevice) -> None:
    """The kernels may fuse the product with an addition, and round it differently."""
    draw = np.random.default_rng(0).normal
    shapes = (500, 17), (500, 17), (17,)
    a, b, c = (Tensor(draw(size=shape).astype(np.float32), device) for shape in shapes)

    def step() -> dict[str, Tensor]:
        product = a * b
        largest = (product + c).max(1).sum() + (product * product).sum() * 1e-9
        return {"slope": largest.gradient([a])[0]}

    program = compile(step, device)
    program.run()
    chosen = (a.numpy() * b.numpy() + c.numpy()).argmax(1)[:, None] == np.arange(17)
    assert np.allclose(program.read("slope"), b.numpy() * chosen, atol=1e-6)
    places = compile(lambda: {"at": (a * b + c).argmax(1)}, device)
    places.run()
    assert np.array_equal(places.read("at"), chosen.argmax(1))


def test_all_and_any_equal_numpys() -> None:
    device = open_mapping("numpy")
    a = np.array([[0, 0, np.nan], [1, -2, 0.5], [0, 0, 0]], np.float32)
    for array in (a, a[:2], a[:0], a[:, :0], a > 0, np.uint8([[0, 255, 255]])):
        x = Tensor(array, device)
        for axis in (None, 0, 1, (0, 1)):
            assert np.array_equal(x.all(axis).numpy(), array.all(axis))
            assert np.array_equal(x.any(axis).numpy(), array.any(axis))
    with pytest.raises(ValueError, match=r"^any: axis 5"):
        x.any(5)
    with pytest.raises(ValueError, match=r"T: shape \(1, 1, 3\) has not two axes"):
        _ = x.unsqueeze(0).T
    assert x.ndim == 2


def test_float16_means_and_deviations_are_rounded_once() -> None:
    device = open_mapping("numpy")
    big = Tensor(np.full((1, 1, 3, 3), 60000, np.float16), device)
    assert big.avg_pool2d(3).numpy() == 60000
    a = np.random.default_rng(0).normal(size=(500, 7)).astype(np.float16)
    expected = a.astype(np.float64).std(1).astype(np.float16)
    assert np.array_equal(Tensor(a, device).std(1).numpy(), expected)


def test_reductions_and_softmax_take_scalars(device: AnyDevice) -> None:
    x = Tensor(np.float32(3), device)
    assert x.sum(-1).item() == x.max(0).item() == x.mean().item() == x.logsumexp().item() == 3
    assert x.argmax(0).item() == x.argmin(-1).item() == 0
    assert x.softmax().item() == 1
    assert x.std().item() == x.log_softmax().item() == 0
