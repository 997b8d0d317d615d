"""Damaged files and sections are refused, or never decode to another picture."""

from __future__ import annotations

import random

import mutations
import numpy as np
import pytest
from latent_models import TINY, file_of_model, read_sections
from networks import small_latent_model, started_latent_model

from imgmlp.codec.latent import sections
from imgmlp.codec.latent.model import LatentModel
from imgmlp.engine import open_device
from imgmlp.errors import FormatError, ImgmlpError


def test_too_long_latent_stream_is_refused_before_decoding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_latent_model(4, 4, 1, **TINY)
    head, weights, coded = sections.write(model)
    monkeypatch.setattr(sections, "_read_coded_grids", lambda *_: pytest.fail("they are decoded"))
    with pytest.raises(FormatError, match="latents cannot take"):
        read_sections((head, weights, coded + bytes(1000)), model.shape)


def test_every_truncation_and_flipped_bit_is_refused() -> None:
    data = file_of_model(small_latent_model(5, 7, 1, **TINY))
    for size in range(len(data)):
        with pytest.raises(FormatError):
            mutations.decode(data[:size])
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            mutations.decode(bytes(changed))


def test_flipped_bits_of_sections_with_valid_checksums_are_refused() -> None:
    """Most files are refused early; the digest of the picture reveals the rest."""
    pieces = mutations.parts(file_of_model(small_latent_model(5, 7, 1, **TINY)))
    for at, piece in enumerate(pieces):
        for bit in range(8 * (1 if at else len(piece)), 8 * len(piece), 5):
            changed = bytearray(piece)
            changed[bit // 8] ^= 1 << bit % 8
            with pytest.raises(FormatError):
                mutations.decode(
                    mutations.joined([*pieces[:at], bytes(changed), *pieces[at + 1 :]])
                )


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (small_latent_model(9, 14, **TINY), 1_000),
        (small_latent_model(9, 14, has_filter=True, **TINY), 500),
        (started_latent_model(9, 14), 500),
        (small_latent_model(3, 34, has_hyperlatents=True, **TINY), 500),
    ],
    ids=["plain", "filtered", "started", "hyper"],
)
def test_damaged_files_never_decode_to_another_picture(model: LatentModel, count: int) -> None:
    data = file_of_model(model)
    good = mutations.decode(data)
    for damaged in mutations.mutants(data, count, seed=5):
        try:
            decoded = mutations.decode(damaged)
        except ImgmlpError as error:
            assert error.hint  # noqa: PT017 - nearly all files end here
        else:
            np.testing.assert_array_equal(decoded, good)


@pytest.mark.parametrize("mapping", ["numpy", "one"])
def test_damaged_latent_stream_is_refused_or_gives_other_latents(mapping: str) -> None:
    model = small_latent_model(16, 24)
    head, weights, coded = sections.write(model)
    chance = random.Random(1)
    refused = 0
    for _ in range(100):
        damaged = mutations.damage(coded, chance)
        try:
            result = read_sections((head, weights, damaged), model.shape, mapping)
        except FormatError:
            refused += 1
        else:
            assert any((a != b).any() for a, b in zip(result.latents, model.latents, strict=True))
    assert refused > 50


def test_more_latents_than_bytes_can_hold_are_refused_before_allocation() -> None:
    head, weights, coded = sections.write(small_latent_model(4, 4, 1, **TINY))
    with pytest.raises(FormatError, match="latents cannot be in"):
        sections.read((head, weights, coded), (2**14, 2**14), 1, open_device("numpy"))


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (0, 0, "0 grids"),
        (0, 13, "13 grids"),
        (1, 0, "0 wide"),
        (2, 129, "129 wide"),
        (3, 25, "25 neighbours"),
        (4, 15, "a grid that is not there"),
        (4, 64, "grids have no hyperlatents"),
        (4, 191, "steps of the network take"),  # with those of a filter among them
        (6, 16, "no such step"),
        (7, 88, "a distribution that does not exist"),
    ],
)
def test_header_values_beyond_the_limits_are_refused(at: int, value: int, problem: str) -> None:
    model = small_latent_model(5, 7, 1, **TINY)
    head, weights, coded = sections.write(model)
    changed = bytearray(head)
    changed[at] = value
    with pytest.raises(FormatError, match=problem):
        read_sections((bytes(changed), weights, coded), model.shape)


@pytest.mark.parametrize("length", [0, 5, 6, 39])
def test_truncated_network_section_is_refused(length: int) -> None:
    model = small_latent_model()
    head, weights, coded = sections.write(model)
    with pytest.raises(FormatError, match=r"too short|take"):
        read_sections((head[:length], weights, coded), model.shape)
