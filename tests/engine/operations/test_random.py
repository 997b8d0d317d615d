"""Random numbers equal the documented hash on every device, and are statistically sound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import open_mapping, open_opencl
from reference import close

from imgmlp.engine import AnyDevice, Tensor, compile

PHI = 0x9E3779B9
SEEDS: list[int | tuple[int, ...]] = [0, 7, 2**32 - 1, -1, (1, 2), (2, 1), (0, 0), (5, 0, 1)]


def lowbias32(x: int) -> int:
    """The hash in Python's unbounded integers."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * factor % 2**32
    return x ^ (x >> 16)


def reference_bits(count: int, seed: int | tuple[int, ...]) -> list[int]:
    mixed = 0
    for part in seed if isinstance(seed, tuple) else (seed,):
        mixed = lowbias32((mixed + part + PHI) % 2**32)
    return [lowbias32((lowbias32(i) + mixed) % 2**32) for i in range(count)]


def test_random_bits_equal_the_documented_hash_on_every_device(device: AnyDevice) -> None:
    program = compile(
        lambda: {str(s): Tensor.random_bits((3, 67), s, device) for s in SEEDS}, device
    )
    program.run()
    for seed in SEEDS:
        actual = program.read(str(seed))
        assert actual.dtype == np.uint32
        assert actual.ravel().tolist() == reference_bits(201, seed), seed


@pytest.mark.parametrize(
    ("seed", "words"),
    [(2**32, (0, 1)), (2**64 + 7, (7, 0, 1)), (-(2**33), (0, -2)), (-5, (-5,)), (5, (5,))],
)
def test_seed_beyond_32_bits_equals_a_tuple_of_its_words(seed: int, words: tuple[int, ...]) -> None:
    device = open_mapping("numpy")
    actual = Tensor.random_bits((7,), seed, device).numpy()
    assert actual.tolist() == reference_bits(7, tuple(word % 2**32 for word in words))
    assert reference_bits(9, -1) == reference_bits(9, 2**32 - 1)


def test_seed_that_is_no_integer_is_refused() -> None:
    for seed in (3.7, Tensor(np.float32(-3), open_mapping("numpy"))):
        with pytest.raises(TypeError, match="is no whole number"):
            Tensor.random_bits((2,), seed)  # type: ignore[arg-type]


def test_different_seeds_give_disjoint_streams() -> None:
    """Among 7 * 300 random words of 32 bits any two are equal with a probability of 0.0005."""
    different = [s for s in SEEDS if s != -1]
    drawn = [b for seed in different for b in reference_bits(300, seed)]
    assert len(set(drawn)) == len(drawn)


def test_seeds_may_be_computed_on_the_device(device: AnyDevice) -> None:
    count = Tensor(np.uint32(5), device)

    def step() -> dict[str, Tensor]:
        drawn = Tensor.random_bits((33,), (9, count), device)
        count.assign(count + 1)
        return {"bits": drawn}

    program = compile(step, device)
    for step_number in (5, 6):
        program.run()
        assert program.read("bits").tolist() == reference_bits(33, (9, step_number))


def test_uniform_samples_are_the_upper_24_bits_of_the_hash(device: AnyDevice) -> None:
    actual = Tensor.uniform((257,), 3, device).numpy()
    expected = [(b >> 8) / 2**24 for b in reference_bits(257, 3)]
    assert actual.dtype == np.float32
    assert actual.tolist() == expected  # 24 bits fit a float32: no rounding
    assert min(expected) >= 0
    assert max(expected) < 1


def test_normal_samples_equal_the_box_muller_transform(device: AnyDevice) -> None:
    """The rounding of the angle is an error relative to the radius."""
    actual = Tensor.normal((257,), 3, mean=1.0, variance=4.0, device=device).numpy()
    for value, b in zip(actual, reference_bits(257, 3), strict=True):
        u, v = (b >> 8) / 2**24, (lowbias32(b) >> 8) / 2**24
        radius, angle = 2 * math.sqrt(-2 * math.log(1 - u)), 2 * math.pi * v
        size = 1 + radius * (1 + angle)
        assert close(value, 1 + radius * math.cos(angle), size, roundings=16)


def test_random_tensors_are_on_the_device_of_the_seed_by_default(device: AnyDevice) -> None:
    seed = Tensor(np.uint32(5), device)
    for draw in (Tensor.random_bits, Tensor.uniform, Tensor.normal):
        assert draw((3,), (1, seed)).device is device
        assert np.array_equal(
            draw((3,), (1, seed)).numpy(), draw((3,), (1, 5), device=device).numpy()
        )
        assert draw((3,), 5).device is None


def test_extreme_normal_samples_are_finite() -> None:
    """The largest u is 1 - 2**-24: the radius is at most sqrt(48 ln 2), and 0 at u = 0."""
    actual = Tensor.normal((1 << 20,), 11, device=open_opencl()).numpy()
    assert np.isfinite(actual).all()
    assert 4.2 < np.abs(actual).max() <= math.sqrt(48 * math.log(2))


def test_neighbouring_samples_seeds_and_bits_are_uncorrelated() -> None:
    """Correlations of n pairs have a standard error of n ** -0.5; five of them are allowed."""
    n = 1 << 16
    device = open_mapping("numpy")
    a, b = (Tensor.uniform((n,), s, device).numpy().astype(float) - 0.5 for s in (1, 2))
    spread = a.std() * b.std()
    for first, second in ((a[:-1], a[1:]), (a[:-64], a[64:]), (a, b), (a[:-1], b[1:])):
        assert abs((first * second).mean() / spread) < 5 * n**-0.5
    raw = Tensor.random_bits((n,), 1, device).numpy()
    for bit in range(32):
        share = ((raw >> bit) & 1).mean()
        assert abs(share - 0.5) < 5 * 0.5 * n**-0.5, bit
