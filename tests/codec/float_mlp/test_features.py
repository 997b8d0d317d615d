"""Frequency features: tables per axis that sample one continuous function at any size."""

import math

import numpy as np
import pytest

from imgmlp.codec.float_mlp.config import PRESETS, Encoding
from imgmlp.codec.float_mlp.features import encoding, geometric, octaves, table, tables

# float32 rounds sines and cosines to half of 2**-24 * 2
ROUNDING = 6e-8


def test_table_holds_sines_then_cosines_of_the_documented_phase() -> None:
    frequencies = (0.5, 3.0, 7.25)
    features = table(frequencies, 0.5, 9)
    assert features.shape == (9, 6)
    assert features.dtype == np.float32
    for i in range(9):
        for k, f in enumerate(frequencies):
            phase = 2 * math.pi * f * (i + 0.5) / 9
            assert features[i, k] == pytest.approx(math.sin(phase), abs=ROUNDING)
            assert features[i, 3 + k] == pytest.approx(math.cos(phase), abs=ROUNDING)


def test_seed_features_are_octaves_from_the_corner_of_the_picture() -> None:
    frequency_encoding = encoding(PRESETS["seed"], 512, 512)
    assert frequency_encoding == Encoding(octaves(16), octaves(16), 0.0)
    features = table(frequency_encoding.x, frequency_encoding.origin, 512)
    i, k = 37, 5
    phase = i * 2.0 ** (k + 1) * math.pi / 512
    assert features[i, k] == pytest.approx(math.sin(phase), abs=ROUNDING)


def test_octaves_that_alias_are_exact_constants() -> None:
    """512 samples cannot carry 2**15 cycles: without exact reduction they would carry noise."""
    features = table(octaves(16), 0.0, 512)
    np.testing.assert_array_equal(features[:, 15], 0)
    np.testing.assert_array_equal(features[:, 31], 1)


def test_high_frequencies_on_long_axes_lose_no_precision() -> None:
    samples, frequency = 2**20 - 3, float(np.float32(2**19 / 3))
    features = table((frequency,), 0.5, samples)
    for i in (0, 12_345, samples - 1):
        numerator, denominator = frequency.as_integer_ratio()
        twice = numerator * (2 * i + 1) % (2 * samples * denominator)  # whole numbers: exact
        phase = 2 * math.pi * (twice / (2 * samples * denominator))
        assert features[i, 0] == pytest.approx(math.sin(phase), abs=ROUNDING)


def test_default_frequencies_run_from_half_a_cycle_to_nyquist_of_each_axis() -> None:
    frequency_encoding = encoding(PRESETS["default"], 768, 512)
    assert (frequency_encoding.x[0], frequency_encoding.x[-1]) == (0.5, 384.0)
    assert (frequency_encoding.y[0], frequency_encoding.y[-1]) == (0.5, 256.0)
    assert frequency_encoding.origin == 0.5
    assert frequency_encoding.features == 64
    ratios = np.diff(np.log(frequency_encoding.x))
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-5)  # float32 rounding of each


@pytest.mark.parametrize("preset", ["default", "seed"])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 3), (1000, 7)])
def test_features_are_finite_for_any_size(preset: str, size: tuple[int, int]) -> None:
    x, y = tables(encoding(PRESETS[preset], *size), *size)
    assert x.shape == (size[0], 32)
    assert y.shape == (size[1], 32)
    assert np.isfinite(x).all()
    assert np.isfinite(y).all()


def test_single_frequency_is_the_lowest() -> None:
    assert geometric(1, 512) == (0.5,)


def test_table_of_three_times_the_size_samples_the_same_function() -> None:
    """With pixel centres, sample 3i + 1 of a threefold axis lies where sample i lay."""
    frequencies = geometric(16, 100)
    small, large = table(frequencies, 0.5, 100), table(frequencies, 0.5, 300)
    np.testing.assert_allclose(large[1::3], small, atol=ROUNDING)
