"""Settings, architecture, encoding and weights check themselves when they are made."""

import dataclasses
import math

import numpy as np
import pytest

from imgmlp.codec.float_mlp.config import (
    MAX_FREQUENCY,
    PRESETS,
    Architecture,
    Encoding,
    Settings,
    Weights,
)
from imgmlp.codec.float_mlp.features import encoding
from imgmlp.errors import UsageError


def test_both_presets_train_the_same_network_of_12672_parameters() -> None:
    for preset in PRESETS.values():
        network = preset.architecture(3)
        assert str(network) == "64-64-64-64-3"
        assert network.parameters == 12_672
        assert preset.steps == 10_000


def test_presets_know_their_names() -> None:
    assert {name: settings.preset for name, settings in PRESETS.items()} == {
        "default": "default",
        "seed": "seed",
    }


def test_last_layer_has_no_bias() -> None:
    assert Architecture((8, 5, 3), 0.1).shapes == ((8, 5), (5,), (5, 3))


def test_spans_cover_the_flat_array_without_gaps() -> None:
    network = Architecture((8, 5, 4, 1), 0.1)
    spans = list(network.spans())
    assert [begin for begin, _, _ in spans] == [0, *[end for _, end, _ in spans[:-1]]]
    assert spans[-1][1] == network.parameters
    assert all(end - begin == math.prod(shape) for begin, end, shape in spans)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"steps": 0}, "--steps is 0"),
        ({"steps": 1.5}, "--steps is 1.5"),
        ({"steps": True}, "--steps is True"),
        ({"batch": 0}, "--batch"),
        ({"batch": 2**40}, "--batch"),
        ({"lr": 0.0}, "--lr"),
        ({"lr": math.nan}, "--lr is nan"),
        ({"lr": math.inf}, "--lr is inf"),
        ({"lr": 1e39}, "--lr is 1e+39"),  # infinity in float32
        ({"lr": 1e-300}, "--lr is 1e-300"),  # 0
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"weight_decay": -1.0}, "weight decay"),
        ({"decay": 0.0}, "decay"),
        ({"features": 6}, "--features is 6"),
        ({"features": 0}, "--features"),
        ({"features": 120, "frequencies": "octaves"}, "--features is 120"),
        ({"hidden": 0}, "--hidden"),
        ({"layers": 0}, "--layers"),
        ({"layers": 32}, "--layers"),
        ({"seed": -1}, "--seed"),
        ({"slope": 2.0}, "slope"),
        ({"schedule": "linear"}, "schedule is 'linear'"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd'"),
        ({"frequencies": "random"}, "frequencies is 'random'"),
        ({"hidden": 4096, "layers": 3}, "parameters"),
    ],
)
def test_error_for_invalid_settings_names_the_value(change: dict, named: str) -> None:
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(PRESETS["default"], **change)
    assert named in str(refused.value)
    assert refused.value.hint
    assert refused.value.exit_code == 2


def test_octaves_end_at_the_highest_frequency_of_the_format() -> None:
    settings = dataclasses.replace(PRESETS["seed"], features=116)
    assert max(encoding(settings, 9, 7).x) == MAX_FREQUENCY
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(settings, features=120)
    assert "at most 116" in refused.value.hint


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings("default").steps = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("x", "y", "origin"),
    [
        ((1.0,), (1.0, 2.0), 0.5),
        ((), (), 0.5),
        ((math.nan,), (1.0,), 0.5),
        ((-1.0,), (1.0,), 0.5),
        ((1.0,), (1e30,), 0.5),
        ((0.1,), (1.0,), 0.5),  # not a float32 value: the file would hold another one
        ((1.0,), (1.0,), 1.0),
        ((1.0,), (1.0,), math.nan),
    ],
)
def test_encoding_beyond_the_format_is_refused(x: tuple, y: tuple, origin: float) -> None:
    with pytest.raises(UsageError):
        Encoding(x, y, origin)


def _weights(**change: object) -> Weights:
    network = Architecture((4, 2, 3), 0.1)
    values: dict = {
        "architecture": network,
        "encoding": Encoding((1.0,), (1.0,), 0.5),
        "width": 5,
        "height": 7,
        "flat": np.arange(network.parameters, dtype=np.float32),
    }
    return Weights(**(values | change))


def test_weights_are_laid_out_layer_by_layer_from_the_input() -> None:
    first, bias, last = _weights().arrays()
    np.testing.assert_array_equal(first, np.arange(8, dtype=np.float32).reshape(4, 2))
    np.testing.assert_array_equal(bias, [8, 9])
    np.testing.assert_array_equal(last, np.arange(10, 16, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    "change",
    [
        {"flat": np.zeros(15, np.float32)},
        {"flat": np.zeros(16, np.float64)},
        {"flat": np.full(16, np.nan, np.float32)},
        {"encoding": Encoding((1.0, 2.0), (1.0, 2.0), 0.5)},
        {"architecture": Architecture((4, 2, 2), 0.1), "flat": np.zeros(14, np.float32)},
        {"width": 0},
    ],
)
def test_inconsistent_weights_are_refused(change: dict) -> None:
    with pytest.raises(UsageError):
        _weights(**change)
