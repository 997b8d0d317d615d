"""Models decode to the same picture on every device, in pieces of any size."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import MAPPINGS
from latent_models import (
    assert_models_equal,
    extreme_model,
    file_of_model,
    read_sections,
    shared_device,
)
from networks import small_latent_model

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.latent import sections, synthesis
from imgmlp.codec.latent.model import BICUBIC_TAPS, ModelShape, quantized
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.codec.latent.upsampling import upsample
from imgmlp.engine import open_device
from imgmlp.errors import UsageError


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_model_decodes_to_the_same_picture_on_every_device(mapping: str) -> None:
    model = small_latent_model()
    decoded = synthesize(model, shared_device(mapping))
    np.testing.assert_array_equal(decoded, synthesize(model, open_device("numpy")), strict=True)
    assert decoded.shape == (21, 26, 3)
    assert len(np.unique(decoded)) > 100


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (5, 3)])
def test_file_decodes_to_the_picture_of_its_digest(size: tuple[int, int], channels: int) -> None:
    parsed = container.parse(file_of_model(small_latent_model(*size, channels)))
    decoded = decoder.decode(parsed, open_device("numpy"))
    assert decoded.shape == (*size, channels)
    assert container.digest(decoded) == parsed.header.digest


def test_decoding_at_another_size_is_refused() -> None:
    parsed = container.parse(file_of_model(small_latent_model()))
    device = open_device("numpy")
    assert decoder.decode(parsed, device, (26, 21)).shape == (21, 26, 3)
    with pytest.raises(UsageError, match="only its own size, 26×21"):
        decoder.decode(parsed, device, (52, 42))


def test_upsampled_part_equals_that_part_of_the_whole() -> None:
    model = small_latent_model(37, 45)
    filters = model.networks["upsampling"]
    whole = upsample(model.latents, filters, (0, 37), (0, 45))
    for rows, columns in [((0, 1), (0, 45)), ((13, 22), (7, 8)), ((36, 37), (31, 45))]:
        part = upsample(model.latents, filters, rows, columns)
        np.testing.assert_array_equal(part, whole[:, slice(*rows), slice(*columns)])


def test_upsampling_preserves_constants() -> None:
    """The quantised taps add up to exactly 1."""
    shape = ModelShape(19, 30, 1, 5)
    grids = tuple(np.full(size, 5 * (n == 4), np.int8) for n, size in enumerate(shape.grid_sizes))
    filters = quantized(np.tile(BICUBIC_TAPS, (4, 1)), 9)
    assert filters.values.sum() == 4 * 512
    maps = upsample(grids, filters, (0, 19), (0, 30))
    assert (maps[:4] == 0).all()
    assert (maps[4] == 5 << 10).all()


def test_synthesis_does_not_depend_on_pixels_per_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_latent_model()
    whole = synthesize(model, open_device("numpy"))
    monkeypatch.setattr(
        "imgmlp.codec.latent.synthesis._DENSE_PIXELS", 37
    )  # divides no number of pixels here
    np.testing.assert_array_equal(synthesize(model, open_device("numpy")), whole, strict=True)


@pytest.mark.parametrize("size", [(5000, 1), (1, 5000), (3, 4000)])
def test_thin_picture_is_synthesized_in_few_pieces(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pieces, make = (
        small_latent_model(*size),
        list[tuple[int, int]](),
        synthesis._NumpySynthesis.piece,
    )

    def piece(
        self: synthesis._NumpySynthesis, top: int, left: int, rows: int, columns: int
    ) -> np.ndarray:
        pieces.append((rows + 2 * synthesis.HALO, columns + 2 * synthesis.HALO))
        return make(self, top, left, rows, columns)

    monkeypatch.setattr(synthesis._NumpySynthesis, "piece", piece)
    picture = synthesize(model, open_device("numpy"))
    assert len(pieces) == 2
    assert max(rows * columns for rows, columns in pieces) <= (synthesis.NUMPY_PIECE_SIDE + 4) ** 2
    monkeypatch.setattr(synthesis, "_piece_side", lambda across: synthesis.NUMPY_PIECE_SIDE)
    np.testing.assert_array_equal(synthesize(model, open_device("numpy")), picture, strict=True)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_values_out_of_bounds_are_clamped_alike_on_every_device(mapping: str) -> None:
    model = extreme_model()
    assert_models_equal(read_sections(sections.write(model), model.shape, mapping), model)
    result = synthesize(model, shared_device(mapping))
    np.testing.assert_array_equal(result, synthesize(model, open_device("numpy")))
