"""The pretrained networks: their stored values, their derived tensors and their coding."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import latent_reference as reference
import numpy as np
import pytest
from latent_models import assert_models_equal, read_sections
from networks import started_latent_model

from imgmlp.codec.latent import sections
from imgmlp.codec.latent.model import NEIGHBOUR_OFFSETS, ModelShape
from imgmlp.codec.latent.pretrained import (
    HIDDEN_WIDTHS,
    WITH_FILTER,
    pretrained_networks,
    stored_networks,
)
from imgmlp.errors import FormatError


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (21, 26), (1000, 1001)])
def test_model_with_pretrained_networks_survives_coding_and_is_smaller(
    size: tuple[int, int], channels: int
) -> None:
    model = started_latent_model(*size, channels)
    model = replace(model, latents=tuple(np.zeros_like(grid) for grid in model.latents))
    parts = sections.write(model)
    result = read_sections(parts, model.shape)
    assert_models_equal(result, model)
    assert result.pretrained == 1
    bits = sections.network_bits(model.networks, pretrained_networks(1, model.shape))
    assert 0 <= 8 * len(parts[1]) - bits <= 24
    plain = sections.write(replace(model, pretrained=0))
    assert sum(map(len, parts)) < sum(map(len, plain))


def test_differences_from_pretrained_tensors_are_coded_only_where_shorter() -> None:
    model = started_latent_model()
    start = pretrained_networks(1, model.shape)
    for name, tensor in model.networks.items():
        base, *_ = sections.cheapest_coding(name, tensor, start)
        assert np.any(base) == (name != "synthesis.1.weight"), name


def test_pretrained_tensors_are_shared_by_models_of_all_shapes() -> None:
    whole = pretrained_networks(1, ModelShape(512, 512, 3, 7, 16, 12))
    assert list(whole.tensors) == list(ModelShape(512, 512, 3, 7, 16, 12).tensor_shapes)
    small = pretrained_networks(1, ModelShape(5, 5, 3, 4, 16, 12)).tensors
    large = pretrained_networks(1, ModelShape(2000, 2000, 3, 9, 16, 12)).tensors
    for name in ("synthesis.0.weight", "upsampling"):
        first, last = whole.tensors[name], whole.tensors[name][-1:]
        np.testing.assert_array_equal(small[name], first[: len(small[name])])
        np.testing.assert_array_equal(large[name], np.concatenate([first, last, last]))
    filtered = pretrained_networks(1, ModelShape(5, 5, 3, 4, 16, 12, has_filter=True)).tensors
    np.testing.assert_array_equal(filtered["synthesis.0.weight"][:-1], small["synthesis.0.weight"])
    assert not filtered["synthesis.0.weight"][-1].any()
    hyper = pretrained_networks(
        1, ModelShape(512, 512, 3, 7, 16, 12, has_hyperlatents=True)
    ).tensors
    first, last = np.split(hyper["entropy.0.weight"], [24])
    np.testing.assert_array_equal(first, whole.tensors["entropy.0.weight"])
    assert last.shape == (3, 12)
    assert not last.any()


@pytest.mark.parametrize("number", HIDDEN_WIDTHS)
def test_pretrained_networks_agree_for_gray_colour_and_alpha(number: int) -> None:
    """Colours do not depend on whether there is alpha; alpha starts opaque."""
    widths, filtered = HIDDEN_WIDTHS[number], number in WITH_FILTER
    shapes = [
        ModelShape(40, 50, channels, 6, *widths, has_filter=filtered) for channels in range(1, 5)
    ]
    gray, with_alpha, colours, both = (
        pretrained_networks(number, shape).tensors for shape in shapes
    )
    for one, shape in zip((gray, with_alpha, colours, both), shapes, strict=True):
        assert {name: values.shape for name, values in one.items()} == shape.tensor_shapes
    weight, bias = (colours[f"synthesis.2.{kind}"] for kind in ("weight", "bias"))
    assert np.abs(gray["synthesis.2.weight"][:, 0] - weight.mean(1)).max() <= 0.5
    assert np.abs(gray["synthesis.2.bias"][0] - bias.mean()) <= 0.5
    for layer in ("residual.0", "residual.1"):
        kernels = colours[f"{layer}.weight"].sum(2).mean(2)
        assert np.abs(gray[f"{layer}.weight"][:, :, 0, 0] - kernels).max() <= 0.5
        for fewer, more in ((gray, with_alpha), (colours, both)):
            own, seen = fewer[f"{layer}.weight"], more[f"{layer}.weight"]
            np.testing.assert_array_equal(seen[:, :, :-1, :-1], own)
            assert not seen[:, :, -1].any()
            assert not seen[..., -1].any()
            np.testing.assert_array_equal(more[f"{layer}.bias"], [*fewer[f"{layer}.bias"], 0])
    for fewer, more in ((gray, with_alpha), (colours, both)):
        np.testing.assert_array_equal(
            more["synthesis.2.weight"][:, :-1], fewer["synthesis.2.weight"]
        )
        assert not more["synthesis.2.weight"][:, -1].any()
        np.testing.assert_array_equal(more["synthesis.2.bias"], [*fewer["synthesis.2.bias"], 1024])


def test_pretrained_values_round_halves_up() -> None:
    start = replace(
        pretrained_networks(1, ModelShape(9, 9, 3, 5, 16, 12)), tensors={"a": np.array([-3, 3])}
    )
    assert start.rounded("a", 10).tolist() == [-1, 2]
    assert start.rounded("a", 11).tolist() == [-3, 3]
    assert start.rounded("a", 13).tolist() == [-12, 12]
    assert start.floats()["a"].tolist() == [-3 / 2048, 3 / 2048]


def test_stored_networks_clamp_values_to_16_bits() -> None:
    stored = stored_networks({"a": np.array([[17.2, -1.5]]), "b": np.array([-99.0])})
    assert np.frombuffer(stored, ">i2").tolist() == [2**15 - 1, -3072, -(2**15)]


DIGESTS = {
    1: "558aefba5494",
    2: "1f505bc3c348",
    3: "55a320eaffa7",
    4: "88ee25e96a84",
    5: "6c4f5eb73e08",
    6: "6a51aebbb362",
    7: "08bb154ec7a1",
    8: "36576b109449",
    9: "1132fb6cfb7a",
}


def test_pretrained_files_never_change_and_are_all_documented() -> None:
    """Files hold differences from them."""
    assert {
        number: (*widths, len(NEIGHBOUR_OFFSETS), number in WITH_FILTER)
        for number, widths in HIDDEN_WIDTHS.items()
    } == reference.STARTS
    for number, digest in DIGESTS.items():
        data = (reference.PACKAGE / "codec" / "latent" / f"start-{number}.bin").read_bytes()
        assert hashlib.sha256(data).hexdigest().startswith(digest)
    assert DIGESTS.keys() == HIDDEN_WIDTHS.keys()


def test_unknown_pretrained_networks_are_refused() -> None:
    model = started_latent_model(5, 7)
    head, *others = sections.write(model)
    for number in (0, 99):
        changed = head[:1] + bytes([number]) + head[2:]
        with pytest.raises(FormatError, match=f"start {number} is not known") as caught:
            read_sections((changed, *others), model.shape)
        assert "update" in caught.value.hint
