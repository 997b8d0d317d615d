"""The documented format suffices to decode every kind of file, golden ones included."""

from __future__ import annotations

import latent_reference as reference
import numpy as np
import pytest
from conftest import GOLDEN
from latent_models import extreme_model, file_of_model, shared_device
from networks import small_latent_model, started_latent_model

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.latent import decode as latent_decode
from imgmlp.codec.latent.hyperlatents import HyperlatentMaps
from imgmlp.codec.latent.model import MAX_VALUE, ModelShape
from imgmlp.codec.latent.pretrained import HIDDEN_WIDTHS, newest_pretrained
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.codec.latent.upsampling import upsample
from imgmlp.engine import open_device

GOLDEN_FILES = {
    "without-start": (0, "4e87d6f1a1848efe"),
    "start-1": (1, "b7b44fda5500cd50"),
    "start-2": (2, "ed0c170aafcb8446"),
    "start-3": (3, "bdbd736bdc8cad5d"),
    "start-3-filtered": (3, "123c8224708a680e"),
    "start-4": (4, "a8e368279554f0a7"),
    "start-5": (5, "023aeae1a6b0f74e"),
    "start-6": (6, "2acf1a64860b77bb"),
    "start-7": (7, "1938eb35b8754b78"),
    "start-8": (8, "b298196b3f01041e"),
    "start-9": (9, "88d64ea68e2b3c3f"),
    "start-4-extra": (4, "652bd161c0907598"),
    "start-5-hyper": (5, "a1d135792ef33e2e"),
    "start-5-hyper-all": (5, "686b3da225dc4a6e"),  # with a weight for every kind of hyperlatents
    "start-4-gray": (4, "34bdc45da9c67198"),
    "start-6-gray-alpha": (6, "3a2717ab75daf923"),
    "start-5-alpha": (5, "6fcb7c8c3e83409f"),
}  # the number of the file's pretrained networks and the digest of its pixels


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_golden_files_decode_to_their_recorded_pictures(name: str) -> None:
    """NumPy decodes all; other devices only those of the newest pretrained networks."""
    data = (GOLDEN / "latent" / f"{name}.imlp").read_bytes()
    parsed = container.parse(data)
    number, digest = GOLDEN_FILES[name]
    assert latent_decode.read(parsed, open_device("numpy")).pretrained == number
    newest = {newest_pretrained(w, lmbda) for w in HIDDEN_WIDTHS.values() for lmbda in (1e-3, 1e-5)}
    for mapping in ("numpy", "one") if number in newest else ("numpy",):
        decoded = decoder.decode(parsed, shared_device(mapping))
        assert container.digest(decoded).hex() == digest
    assert reference.picture(data) == decoded.tolist()


def test_golden_files_cover_all_pretrained_networks() -> None:
    """Every file in their folder is decoded."""
    assert {number for number, _ in GOLDEN_FILES.values()} == {0, *HIDDEN_WIDTHS}
    assert {path.stem for path in (GOLDEN / "latent").iterdir()} == GOLDEN_FILES.keys()


@pytest.mark.parametrize("size", [(1, 1), (1, 6), (6, 1), (13, 22)])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_documented_format_suffices_to_decode_a_file(size: tuple[int, int], channels: int) -> None:
    for filtered in (False, True):
        model = small_latent_model(
            *size, channels, synthesis_width=8, entropy_width=6, has_filter=filtered
        )
        decoded = synthesize(model, open_device("numpy"))
        assert reference.picture(file_of_model(model)) == decoded.tolist()


@pytest.mark.parametrize("size", [(33, 5), (2, 70), (21, 45)])
@pytest.mark.parametrize("started", [False, True])
def test_documented_format_suffices_to_decode_hyperlatents(
    size: tuple[int, int], started: bool
) -> None:
    make = started_latent_model if started else small_latent_model
    model = make(*size, 1, has_hyperlatents=True)
    decoded = synthesize(model, open_device("numpy"))
    assert reference.picture(file_of_model(model)) == decoded.tolist()


@pytest.mark.parametrize("size", [(1, 1), (13, 22)])
@pytest.mark.parametrize("extra", [1, 3])
def test_documented_format_suffices_to_decode_extra_grids(
    size: tuple[int, int], extra: int
) -> None:
    for make in (small_latent_model, started_latent_model):
        for filtered in (False, True):
            model = make(*size, 3, has_filter=filtered, extra_grids=extra)
            decoded = synthesize(model, open_device("numpy"))
            assert reference.picture(file_of_model(model)) == decoded.tolist()


@pytest.mark.parametrize("levels", [7, 9])
def test_documented_hyperlatent_maps_match_the_decoder(levels: int) -> None:
    """There are grids finer than those of hyperlatents, coarser ones and ones of equal size."""
    shape = ModelShape(75, 261, 1, levels, has_hyperlatents=True)
    chance = np.random.default_rng(levels)
    grids = [chance.integers(-64, 64, size) for size in shape.grid_sizes[levels:]]
    above = HyperlatentMaps(shape, [grid.astype(np.int8) for grid in grids])
    lists = [grid.tolist() for grid in grids]
    for level in reversed(range(levels)):
        assert above.at(level).tolist() == reference.maps_above(lists, level, (75, 261))
    assert above.at(0).shape == (3, 75, 261)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (13, 22), (2, 300)])
def test_documented_format_suffices_to_decode_pretrained_networks(
    size: tuple[int, int], channels: int
) -> None:
    for filtered in (False, True):
        model = started_latent_model(*size, channels, has_filter=filtered)
        decoded = synthesize(model, open_device("numpy"))
        assert reference.picture(file_of_model(model)) == decoded.tolist()


def test_documented_format_suffices_to_decode_large_latents() -> None:
    model = small_latent_model(9, 14, spread=100.0)
    assert (
        reference.picture(file_of_model(model)) == synthesize(model, open_device("numpy")).tolist()
    )


def test_documented_clamping_matches_the_decoder() -> None:
    model = extreme_model()
    maps = upsample(model.latents, model.networks["upsampling"], (0, 9), (0, 14))
    assert (maps.min(), maps.max()) == (-MAX_VALUE, MAX_VALUE)
    decoded = synthesize(model, open_device("numpy"))
    assert reference.picture(file_of_model(model)) == decoded.tolist()
