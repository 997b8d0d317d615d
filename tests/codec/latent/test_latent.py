"""Latent models become bytes and models again, and decode to the same picture on every device."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import random
import tracemalloc
from dataclasses import replace
from typing import Any

import latent_reference as reference
import mutations
import numpy as np
import pytest
from conftest import GOLDEN, MAPPINGS, open_mapping, open_opencl
from latent_steps import bits_of_latents
from networks import small_latent_model, started_latent_model

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Header, Section
from imgmlp.codec.latent import decode as latent_decode
from imgmlp.codec.latent import latents, latents_kernel, sections, synthesis
from imgmlp.codec.latent.hyperlatents import HyperlatentMaps
from imgmlp.codec.latent.model import (
    BICUBIC_TAPS,
    MAX_EXPONENT,
    MAX_EXTRA_GRIDS,
    MAX_HIDDEN_WIDTH,
    MAX_LEVELS,
    MAX_VALUE,
    NEIGHBOUR_OFFSETS,
    VALUE_BITS,
    LatentModel,
    ModelShape,
    Quantized,
    quantized,
)
from imgmlp.codec.latent.pretrained import (
    HIDDEN_WIDTHS,
    WITH_FILTER,
    newest_pretrained,
    pretrained_networks,
    stored_networks,
)
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.codec.latent.upsampling import upsample
from imgmlp.codec.mlp.network import MAX_PRODUCTS
from imgmlp.engine import AnyDevice, Device, open_device
from imgmlp.errors import DeviceError, FormatError, ImgmlpError, OutOfMemoryError, UsageError

SIZES = [(1, 1), (1, 9), (9, 1), (2, 2), (3, 5), (4, 4), (33, 31), (17, 64)]  # height, width


@functools.cache
def shared_device(mapping: str) -> AnyDevice:
    """A device of this module, so that kernels that several tests run are compiled once."""
    return open_mapping(mapping)


def read(
    parts: tuple[bytes, bytes, bytes], shape: ModelShape, mapping: str = "numpy"
) -> LatentModel:
    size = shape.width, shape.height
    # Not of "group", beside which some tests forbid to open a processor.
    device = open_mapping(mapping) if mapping == "group" else shared_device(mapping)
    return sections.read(parts, size, shape.channels, device)


def assert_same(found: LatentModel, wanted: LatentModel) -> None:
    assert found.shape == wanted.shape
    for a, b in zip(found.latents, wanted.latents, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    assert list(found.networks) == list(wanted.networks)
    for name, tensor in found.networks.items():
        other = wanted.networks[name]
        np.testing.assert_array_equal(tensor.values, other.values, strict=True)
        assert tensor.exponent == other.exponent


def file_of(model: LatentModel) -> bytes:
    shape = model.shape
    pixels = synthesize(model, open_device("numpy"))
    header = Header(
        shape.width, shape.height, shape.channels, container.digest(pixels), codec="latent"
    )
    return container.write(header, map(Section, "NWL", sections.write(model)))


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize("size", SIZES)
def test_a_model_comes_back_from_its_sections(size: tuple[int, int], mapping: str) -> None:
    model = small_latent_model(*size)
    assert_same(read(sections.write(model), model.shape, mapping), model)


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"neighbours": 1},
        {"neighbours": 14, "entropy_width": 16},
        {"synthesis_width": 7, "entropy_width": 1},
    ],
)
def test_networks_may_have_other_widths(sizes: dict[str, int], mapping: str) -> None:
    model = small_latent_model(**sizes)
    assert_same(read(sections.write(model), model.shape, mapping), model)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (21, 26), (1000, 1001)])
def test_networks_may_begin_from_a_start(size: tuple[int, int], channels: int) -> None:
    model = started_latent_model(*size, channels)
    model = replace(model, latents=tuple(np.zeros_like(grid) for grid in model.latents))
    parts = sections.write(model)
    found = read(parts, model.shape)
    assert_same(found, model)
    assert found.pretrained == 1
    bits = sections.network_bits(model.networks, pretrained_networks(1, model.shape))
    assert 0 <= 8 * len(parts[1]) - bits <= 24
    plain = sections.write(replace(model, pretrained=0))
    assert sum(map(len, parts)) < sum(map(len, plain))


def test_differences_from_a_start_are_coded_only_where_they_are_shorter() -> None:
    model = started_latent_model()
    start = pretrained_networks(1, model.shape)
    for name, tensor in model.networks.items():
        base, *_ = sections.cheapest_coding(name, tensor, start)
        assert np.any(base) == (name != "synthesis.1.weight"), name


def test_a_start_is_the_same_for_all_models_as_far_as_they_have_its_tensors() -> None:
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
def test_a_start_makes_the_same_of_gray_whether_it_has_one_channel_or_three(number: int) -> None:
    """And of colours, whether there is alpha or not, of which it makes an opaque one."""
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


def test_a_start_rounds_halves_up() -> None:
    start = replace(
        pretrained_networks(1, ModelShape(9, 9, 3, 5, 16, 12)), tensors={"a": np.array([-3, 3])}
    )
    assert start.rounded("a", 10).tolist() == [-1, 2]
    assert start.rounded("a", 11).tolist() == [-3, 3]
    assert start.rounded("a", 13).tolist() == [-12, 12]
    assert start.floats()["a"].tolist() == [-3 / 2048, 3 / 2048]


def test_what_a_start_cannot_hold_becomes_the_nearest_that_it_can() -> None:
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


def test_the_document_has_every_start_and_none_ever_changes() -> None:
    """As files hold differences from them."""
    assert {
        number: (*widths, len(NEIGHBOUR_OFFSETS), number in WITH_FILTER)
        for number, widths in HIDDEN_WIDTHS.items()
    } == reference.STARTS
    for number, digest in DIGESTS.items():
        data = (reference.PACKAGE / "codec" / "latent" / f"start-{number}.bin").read_bytes()
        assert hashlib.sha256(data).hexdigest().startswith(digest)
    assert DIGESTS.keys() == HIDDEN_WIDTHS.keys()


def test_a_start_that_is_not_known_is_refused() -> None:
    model = started_latent_model(5, 7)
    head, *others = sections.write(model)
    for number in (0, 99):
        changed = head[:1] + bytes([number]) + head[2:]
        with pytest.raises(FormatError, match=f"start {number} is not known") as caught:
            read((changed, *others), model.shape)
        assert "update" in caught.value.hint


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
    "start-5-hyper-all": (5, "686b3da225dc4a6e"),  # with a weight for every hyperlatent
    "start-4-gray": (4, "34bdc45da9c67198"),
    "start-6-gray-alpha": (6, "3a2717ab75daf923"),
    "start-5-alpha": (5, "6fcb7c8c3e83409f"),
}  # the start that a file's networks begin from, and the digest of its pixels


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_golden_files_decode_to_their_pictures(name: str) -> None:
    """On NumPy all of them; elsewhere those of the starts that files are written with."""
    data = (GOLDEN / "latent" / f"{name}.imlp").read_bytes()
    found = container.parse(data)
    number, digest = GOLDEN_FILES[name]
    assert latent_decode.read(found, open_device("numpy")).pretrained == number
    newest = {newest_pretrained(w, lmbda) for w in HIDDEN_WIDTHS.values() for lmbda in (1e-3, 1e-5)}
    for mapping in ("numpy", "one") if number in newest else ("numpy",):
        decoded = decoder.decode(found, shared_device(mapping))
        assert container.digest(decoded).hex() == digest
    assert reference.picture(data) == decoded.tolist()


def test_there_are_golden_files_of_every_start() -> None:
    """And no file in their folder that nobody decodes."""
    assert {number for number, _ in GOLDEN_FILES.values()} == {0, *HIDDEN_WIDTHS}
    assert {path.stem for path in (GOLDEN / "latent").iterdir()} == GOLDEN_FILES.keys()


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize("size", [(1, 40), (70, 33), (130, 90)])
def test_hyperlatents_come_back_and_change_what_is_expected(
    size: tuple[int, int], mapping: str
) -> None:
    for model in (
        small_latent_model(*size, has_hyperlatents=True),
        started_latent_model(*size, has_hyperlatents=True),
    ):
        own = [np.where(grid, grid, np.int8(1)) for grid in model.latents[-3:]]
        model = replace(model, latents=(*model.pyramid, *own))
        parts = sections.write(model)
        found = read(parts, model.shape, mapping)
        assert_same(found, model)
        first = model.networks["entropy.0.weight"]
        for row in (-3, -2, -1):  # of weights that hyperlatents themselves have nothing for
            values = first.values.copy()
            values[row] = 0
            changed = {"entropy.0.weight": replace(first, values=values)}
            without = replace(model, networks={**model.networks, **changed})
            assert bits_of_latents(without) != bits_of_latents(model), row


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize("extra", [1, 2, 3])
def test_extra_grids_come_back_and_are_seen_by_synthesis(extra: int, mapping: str) -> None:
    for make in (small_latent_model, started_latent_model):
        # a kernel is compiled for each of them: with these any two meet in every way
        model = make(
            21, 26, has_filter=(make is small_latent_model) == (extra == 2), extra_grids=extra
        )
        found = read(sections.write(model), model.shape, mapping)
        assert_same(found, model)
        picture = synthesize(found, shared_device(mapping))
        np.testing.assert_array_equal(picture, synthesize(model, open_device("numpy")))
        for number in range(extra):
            grids = [*model.latents]
            grids[len(model.pyramid) + number] = np.zeros_like(grids[0])
            other = replace(model, latents=tuple(grids))
            assert (synthesize(other, open_device("numpy")) != picture).any(), number
            assert_same(read(sections.write(other), model.shape, mapping), other)


def test_more_extra_grids_than_a_file_can_have_are_refused() -> None:
    for extra in (-1, 4):
        with pytest.raises(FormatError, match="extra grids"):
            ModelShape(40, 40, 3, 7, extra_grids=extra)
    with pytest.raises(FormatError, match="extra grids and hyperlatents"):
        ModelShape(90, 70, 3, 7, has_hyperlatents=True, extra_grids=1)


def test_hyperlatents_of_zeros_are_coded() -> None:
    """So that who has them is told by them being there."""
    model = small_latent_model(40, 40, has_hyperlatents=True)
    empty = replace(model, latents=tuple(np.zeros_like(grid) for grid in model.latents))
    assert len(sections.write(empty)[2]) > 2
    assert_same(read(sections.write(empty), model.shape), empty)


def test_hyperlatents_are_refused_where_they_would_be_too_large_or_too_small() -> None:
    for size in ((4096, 4097, 3, 9), (32, 32, 3, 6)):
        with pytest.raises(FormatError, match="no hyperlatents"):
            ModelShape(*size, has_hyperlatents=True)
    ModelShape(4096, 4096, 3, 9, has_hyperlatents=True)
    head, *others = sections.write(started_latent_model(32, 32))
    announced = head[:2] + bytes([head[2] | 1 << 6]) + head[3:]
    with pytest.raises(FormatError, match="6 grids have no hyperlatents"):
        read((announced, *others), ModelShape(32, 32, 3, 6, 16, 12))


def test_what_is_above_a_grid_is_the_same_where_coarser_ones_are_not_coded() -> None:
    """Every level's maps are made of the next coarser one's, whether anybody asks for these."""
    shape = ModelShape(90, 70, 3, 7, has_hyperlatents=True)
    chance = np.random.default_rng(0)
    grids = [chance.integers(-9, 9, size).astype(np.int8) for size in shape.grid_sizes[7:]]
    at_once, one_by_one = HyperlatentMaps(shape, grids), HyperlatentMaps(shape, grids)
    all_levels = [one_by_one.at(level) for level in range(6, -1, -1)]
    assert np.array_equal(at_once.at(0), all_levels[-1])


@pytest.mark.parametrize("mapping", ["numpy", "one"])
def test_latents_may_be_anything_from_64_below_0_to_63(mapping: str) -> None:
    model = small_latent_model(spread=100.0)
    assert (model.latents[0].min(), model.latents[0].max()) == (-64, 63)
    assert_same(read(sections.write(model), model.shape, mapping), model)


@pytest.mark.parametrize("mapping", ["numpy", "one"])
@pytest.mark.parametrize("value", [-65, 64])
def test_latents_beyond_that_are_refused(value: int, mapping: str) -> None:
    model = small_latent_model()
    model.latents[0][3, 5] = value
    with pytest.raises(FormatError, match=r"are not from -64 to 63|are damaged"):
        read(sections.write(model), model.shape, mapping)


def pairwise_launches() -> list[tuple[tuple[int, int], float, int]]:
    """Sizes, spreads and latents per launch, any two of which meet in every way."""
    spreads, at_once = (0.1, 0.3, 100.0), (1, 100, latents_kernel.LATENTS_PER_LAUNCH)
    sizes = [*SIZES, (70, 65), (60, 80)]
    return [
        (size, spread, at_once[(first + second) % 3])
        for first, size in enumerate(sizes)
        for second, spread in enumerate(spreads)
    ]


@pytest.mark.parametrize(("size", "spread", "at_once"), pairwise_launches())
def test_a_kernel_writes_the_bytes_that_numpy_does_and_reads_them(
    size: tuple[int, int], spread: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many launches they take; unlikely latents, which have many bits, and those among
    zeros alone as well."""
    monkeypatch.setattr(latents_kernel, "LATENTS_PER_LAUNCH", at_once)
    model = small_latent_model(*size, spread=spread, has_hyperlatents=min(size) > 64)
    found = sections.write(model, shared_device("one"))
    assert found == sections.write(model)
    assert_same(read(found, model.shape, "one"), model)


def test_high_pictures_take_no_more_launches_than_wide_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a column there is one latent in every fourth wave."""
    monkeypatch.setattr(latents_kernel, "LATENTS_PER_LAUNCH", 1000)
    launch, launches = latents_kernel.RawKernel.__call__, list[int]()

    def counted(*arguments: Any) -> None:
        launches[-1] += 1
        launch(*arguments)

    monkeypatch.setattr(latents_kernel.RawKernel, "__call__", counted)
    for size in ((1, 800), (800, 1)):
        model, device = small_latent_model(*size, spread=0.3), open_opencl()
        launches.append(0)
        parts = sections.write(model, device)
        assert_same(read(parts, model.shape, "one"), model)
    wide, high = launches
    assert high <= 4 * wide


def test_more_bytes_than_latents_can_take_are_refused_before_they_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_latent_model(4, 4, 1, **TINY)
    head, weights, coded = sections.write(model)
    monkeypatch.setattr(sections, "_read_coded_grids", lambda *_: pytest.fail("they are decoded"))
    with pytest.raises(FormatError, match="latents cannot take"):
        read((head, weights, coded + bytes(1000)), model.shape)


def test_a_grid_of_zeros_costs_nothing() -> None:
    model = small_latent_model()
    empty = replace(model, latents=tuple(np.zeros_like(grid) for grid in model.latents))
    assert sections.write(empty)[2] == bytes(2)
    assert_same(read(sections.write(empty), model.shape), empty)
    half = replace(model, latents=(np.zeros_like(model.latents[0]), *model.latents[1:]))
    assert_same(read(sections.write(half), model.shape), half)


def test_bits_are_those_that_are_written() -> None:
    model = small_latent_model(64, 96)
    _, coded, stream = sections.write(model)
    assert 0 <= 8 * len(stream) - bits_of_latents(model) <= 24
    of_steps = 16 * len(model.networks)
    assert (
        0
        <= 8 * len(coded)
        + of_steps
        - sections.network_bits(model.networks, pretrained_networks(0, model.shape))
        <= 24
    )


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_model_decodes_to_the_same_picture_everywhere(mapping: str) -> None:
    model = small_latent_model()
    decoded = synthesize(model, shared_device(mapping))
    np.testing.assert_array_equal(decoded, synthesize(model, open_device("numpy")), strict=True)
    assert decoded.shape == (21, 26, 3)
    assert len(np.unique(decoded)) > 100


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (5, 3)])
def test_a_file_decodes_to_its_picture(size: tuple[int, int], channels: int) -> None:
    found = container.parse(file_of(small_latent_model(*size, channels)))
    decoded = decoder.decode(found, open_device("numpy"))
    assert decoded.shape == (*size, channels)
    assert container.digest(decoded) == found.header.digest


def test_another_size_is_refused() -> None:
    found = container.parse(file_of(small_latent_model()))
    device = open_device("numpy")
    assert decoder.decode(found, device, (26, 21)).shape == (21, 26, 3)
    with pytest.raises(UsageError, match="only its own size, 26×21"):
        decoder.decode(found, device, (52, 42))


def test_a_model_whose_sums_need_more_than_32_bits_is_refused() -> None:
    model = small_latent_model(has_filter=True)
    for name in ("entropy.1.weight", "synthesis.0.weight", "residual.1.weight", "upsampling",
                 "filter"):  # fmt: skip
        old = model.networks[name]
        large = Quantized(np.full_like(old.values, 2**14), old.exponent)
        with pytest.raises(FormatError, match="more than 32 bits"):
            replace(model, networks={**model.networks, name: large})


@pytest.mark.parametrize("more", [0, 1])
def test_magnitudes_of_a_column_may_come_right_up_to_that(more: int) -> None:
    model = small_latent_model()
    old, bias = (model.networks[f"entropy.1.{what}"] for what in ("weight", "bias"))
    most = (2**31 - 2 ** (MAX_EXPONENT + VALUE_BITS) - 1) // MAX_VALUE
    values = np.zeros_like(old.values)
    values[:, 0] = most // len(values)
    values[0, 0] += most % len(values) + more
    values[1::2] *= -1
    changed = {
        "entropy.1.weight": Quantized(values, old.exponent),
        "entropy.1.bias": Quantized(np.zeros_like(bias.values), bias.exponent),
    }
    with pytest.raises(FormatError, match="32 bits") if more else contextlib.nullcontext():
        replace(model, networks={**model.networks, **changed})


TINY = {"synthesis_width": 3, "entropy_width": 2, "neighbours": 4}


def test_every_truncation_and_every_flipped_bit_is_noticed() -> None:
    data = file_of(small_latent_model(5, 7, 1, **TINY))
    for size in range(len(data)):
        with pytest.raises(FormatError):
            mutations.decode(data[:size])
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            mutations.decode(bytes(changed))


def test_every_flipped_bit_of_a_section_is_noticed_behind_right_checksums() -> None:
    """Every decoded picture is compared with its digest; most files are refused long before."""
    pieces = mutations.parts(file_of(small_latent_model(5, 7, 1, **TINY)))
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
def test_damaged_files_lead_to_no_other_picture(model: LatentModel, count: int) -> None:
    data = file_of(model)
    good = mutations.decode(data)
    for damaged in mutations.mutants(data, count, seed=5):
        try:
            decoded = mutations.decode(damaged)
        except ImgmlpError as error:
            assert error.hint  # noqa: PT017 - nearly all files end here
        else:
            np.testing.assert_array_equal(decoded, good)


@pytest.mark.parametrize("mapping", ["numpy", "one"])
def test_a_damaged_stream_of_latents_is_refused_or_other_latents(mapping: str) -> None:
    model = small_latent_model(16, 24)
    head, weights, coded = sections.write(model)
    chance = random.Random(1)
    refused = 0
    for _ in range(100):
        damaged = mutations.damage(coded, chance)
        try:
            found = read((head, weights, damaged), model.shape, mapping)
        except FormatError:
            refused += 1
        else:
            assert any((a != b).any() for a, b in zip(found.latents, model.latents, strict=True))
    assert refused > 50


def test_more_latents_than_bytes_can_hold_are_refused_before_there_is_memory_for_them() -> None:
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
        (4, 191, "steps of the network take"),  # which those of a filter would be among
        (6, 16, "no such step"),
        (7, 88, "a distribution that does not exist"),
    ],
)
def test_sizes_beyond_the_limits_are_refused(at: int, value: int, problem: str) -> None:
    model = small_latent_model(5, 7, 1, **TINY)
    head, weights, coded = sections.write(model)
    changed = bytearray(head)
    changed[at] = value
    with pytest.raises(FormatError, match=problem):
        read((bytes(changed), weights, coded), model.shape)


def test_the_largest_networks_decode_the_largest_picture_in_as_many_products_as_others_may() -> (
    None
):
    """So that no file has to be refused for them."""
    sizes = {"synthesis_width": MAX_HIDDEN_WIDTH, "entropy_width": MAX_HIDDEN_WIDTH}
    shape = ModelShape(
        2**14, 2**14, 4, MAX_LEVELS, **sizes, has_filter=True, extra_grids=MAX_EXTRA_GRIDS
    )
    weights = sum(math.prod(size) for size in shape.tensor_shapes.values())
    assert shape.height * shape.width == container.MAX_PIXELS
    assert weights * container.MAX_PIXELS <= MAX_PRODUCTS


@pytest.mark.parametrize("kept", [0, 5, 6, 39])
def test_a_cut_network_section_is_refused(kept: int) -> None:
    model = small_latent_model()
    head, weights, coded = sections.write(model)
    with pytest.raises(FormatError, match=r"too short|take"):
        read((head[:kept], weights, coded), model.shape)


@pytest.mark.parametrize("size", SIZES)
def test_latents_come_in_waves_from_the_top(size: tuple[int, int]) -> None:
    waves = latents.Waves(*size)
    found = [divmod(int(place), waves.stride) for n in range(waves.count) for place in waves[n]]
    wanted = [(x + 4 * y, y, x) for y in range(size[0]) for x in range(size[1])]
    assert [(y - 3, x - 3) for y, x in found] == [(y, x) for _, y, x in sorted(wanted)]
    for least in (1, 7, 10_000):
        blocks = np.concatenate(list(waves.blocks(least)))
        assert [divmod(int(place), waves.stride) for place in blocks] == found
    assert all(map(len, waves.blocks(0)))


@pytest.mark.parametrize(
    ("size", "hyper", "most"), [((2**16, 1), False, 2.5), ((300, 400), True, 15)]
)
def test_a_kernel_is_given_latents_without_copies_of_copies(
    size: tuple[int, int], hyper: bool, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`most` bytes of the host for each place of a padded grid, at a time."""
    monkeypatch.setattr(latents_kernel.RawKernel, "__call__", lambda *_: None)
    model, state = small_latent_model(65, 9, 1, has_hyperlatents=hyper), np.zeros(4, np.uint64)
    kernel = latents_kernel._LatentsKernel(
        model.shape, model.networks, open_opencl(), writing=False
    )
    grid, maps = np.zeros(size, np.int8), np.zeros((3, *size), np.int32)
    tracemalloc.start()
    try:
        list(kernel._launches(grid, maps if hyper else None, state, state))
        assert tracemalloc.get_traced_memory()[1] < most * (size[0] + 3) * (size[1] + 6)
    finally:
        tracemalloc.stop()


def test_a_part_of_the_upsampled_maps_is_that_part_of_all() -> None:
    model = small_latent_model(37, 45)
    filters = model.networks["upsampling"]
    whole = upsample(model.latents, filters, (0, 37), (0, 45))
    for rows, columns in [((0, 1), (0, 45)), ((13, 22), (7, 8)), ((36, 37), (31, 45))]:
        part = upsample(model.latents, filters, rows, columns)
        np.testing.assert_array_equal(part, whole[:, slice(*rows), slice(*columns)])


def test_upsampling_keeps_what_is_constant() -> None:
    """But for rounding: the taps add up to 1."""
    shape = ModelShape(19, 30, 1, 5)
    grids = tuple(np.full(size, 5 * (n == 4), np.int8) for n, size in enumerate(shape.grid_sizes))
    filters = quantized(np.tile(BICUBIC_TAPS, (4, 1)), 9)
    assert filters.values.sum() == 4 * 512
    maps = upsample(grids, filters, (0, 19), (0, 30))
    assert (maps[:4] == 0).all()
    assert (maps[4] == 5 << 10).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 6), (6, 1), (13, 22)])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_the_document_is_enough_to_decode_a_file(size: tuple[int, int], channels: int) -> None:
    for filtered in (False, True):
        model = small_latent_model(
            *size, channels, synthesis_width=8, entropy_width=6, has_filter=filtered
        )
        decoded = synthesize(model, open_device("numpy"))
        assert reference.picture(file_of(model)) == decoded.tolist()


def test_pixels_are_the_same_however_many_go_through_the_layers_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = small_latent_model()
    whole = synthesize(model, open_device("numpy"))
    monkeypatch.setattr("imgmlp.codec.latent.synthesis._DENSE_PIXELS", 37)  # which divides nothing
    np.testing.assert_array_equal(synthesize(model, open_device("numpy")), whole, strict=True)


@pytest.mark.parametrize("size", [(5000, 1), (1, 5000), (3, 4000)])
def test_a_thin_picture_is_made_in_few_pieces(
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
    long = synthesize(model, open_device("numpy"))
    assert len(pieces) == 2
    assert max(rows * columns for rows, columns in pieces) <= (synthesis.NUMPY_PIECE_SIDE + 4) ** 2
    monkeypatch.setattr(synthesis, "_piece_side", lambda across: synthesis.NUMPY_PIECE_SIDE)
    np.testing.assert_array_equal(synthesize(model, open_device("numpy")), long, strict=True)


@pytest.mark.parametrize("size", [(33, 5), (2, 70), (21, 45)])
@pytest.mark.parametrize("started", [False, True])
def test_the_document_is_enough_to_decode_hyperlatents(
    size: tuple[int, int], started: bool
) -> None:
    make = started_latent_model if started else small_latent_model
    model = make(*size, 1, has_hyperlatents=True)
    decoded = synthesize(model, open_device("numpy"))
    assert reference.picture(file_of(model)) == decoded.tolist()


@pytest.mark.parametrize("size", [(1, 1), (13, 22)])
@pytest.mark.parametrize("extra", [1, 3])
def test_the_document_is_enough_to_decode_extra_grids(size: tuple[int, int], extra: int) -> None:
    for make in (small_latent_model, started_latent_model):
        for filtered in (False, True):
            model = make(*size, 3, has_filter=filtered, extra_grids=extra)
            decoded = synthesize(model, open_device("numpy"))
            assert reference.picture(file_of(model)) == decoded.tolist()


@pytest.mark.parametrize("levels", [7, 9])
def test_the_document_says_what_is_above_latents(levels: int) -> None:
    """Where there are grids finer, coarser and as large as those of hyperlatents."""
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
def test_the_document_is_enough_to_begin_from_a_start(size: tuple[int, int], channels: int) -> None:
    for filtered in (False, True):
        model = started_latent_model(*size, channels, has_filter=filtered)
        decoded = synthesize(model, open_device("numpy"))
        assert reference.picture(file_of(model)) == decoded.tolist()


def test_the_document_is_enough_to_decode_large_latents() -> None:
    model = small_latent_model(9, 14, spread=100.0)
    assert reference.picture(file_of(model)) == synthesize(model, open_device("numpy")).tolist()


def extreme_model() -> LatentModel:
    """One whose values and means run into their bounds everywhere."""
    model = small_latent_model(9, 14, spread=60.0, has_filter=True)
    networks = dict(model.networks)
    for name, factor in [
        ("entropy.1", 8),
        ("entropy.2", 16),
        ("synthesis.1", 8),
        ("residual.1", 9),
    ]:
        old = networks[f"{name}.weight"]
        networks[f"{name}.weight"] = Quantized(old.values * factor, old.exponent)
    taps = networks["upsampling"]
    networks["upsampling"] = Quantized(taps.values * np.array([[3], [-2], [2], [3]], np.int32), 7)
    networks["filter"] = Quantized(np.array([[9, -9, 9], [-9, 9, -9], [9, -9, 9]], np.int32), 0)
    return replace(model, networks=networks)


def test_the_document_says_what_becomes_of_values_out_of_bounds() -> None:
    model = extreme_model()
    maps = upsample(model.latents, model.networks["upsampling"], (0, 9), (0, 14))
    assert (maps.min(), maps.max()) == (-MAX_VALUE, MAX_VALUE)
    decoded = synthesize(model, open_device("numpy"))
    assert reference.picture(file_of(model)) == decoded.tolist()


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_values_out_of_bounds_are_the_same_everywhere(mapping: str) -> None:
    model = extreme_model()
    assert_same(read(sections.write(model), model.shape, mapping), model)
    found = synthesize(model, shared_device(mapping))
    np.testing.assert_array_equal(found, synthesize(model, open_device("numpy")))


# --- one latent after the other, beside a GPU ---


def test_a_processor_reads_latents_for_a_device_of_many_lanes() -> None:
    alone = latents_kernel.sequential_processor(open_mapping("group"))
    assert alone is not None
    assert (alone.lanes, alone.info.kind) == ("one", "cpu")
    assert latents_kernel.sequential_processor(alone) is alone
    assert latents_kernel.sequential_processor(open_device("numpy")) is None


def test_whether_there_is_a_processor_is_known_without_opening_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside, alone = open_mapping("group"), open_mapping("one")
    monkeypatch.setattr(latents_kernel, "open_quietly", lambda _: pytest.fail("opened"))
    devices = [beside, alone, open_device("numpy")]
    assert [latents_kernel.has_sequential_processor(one) for one in devices] == [True, True, False]
    monkeypatch.setattr(latents_kernel, "list_devices", list)
    assert [latents_kernel.has_sequential_processor(one) for one in devices] == [False, True, False]


def test_numpy_reads_latents_where_the_processor_has_no_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latents_kernel, "open_quietly", lambda _: None)
    latents_kernel._open_cpu.cache_clear()
    try:
        model = small_latent_model(13, 21, 3)
        assert latents_kernel.sequential_processor(open_mapping("group")) is None
        assert_same(read(sections.write(model), model.shape, "group"), model)
    finally:
        latents_kernel._open_cpu.cache_clear()


def test_the_processor_is_made_ready_while_a_gpu_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    latents_kernel._open_cpu.cache_clear()
    model, one, group = small_latent_model(13, 21, 3), open_mapping("one"), open_mapping("group")
    for device in (one, open_device("numpy")):
        assert latents_kernel.prepare(model.shape, device) is None
    ready = latents_kernel.prepare(model.shape, group)
    assert ready is not None
    ready.join()
    monkeypatch.setattr(Device, "_compile", lambda *_: pytest.fail("it was not ready"))
    assert_same(read(sections.write(model, group), model.shape, "group"), model)


def test_what_is_made_ready_and_fails_is_told_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def fails(*made: object) -> None:
        asked.append(made)
        raise OutOfMemoryError("there is none")

    monkeypatch.setattr(latents_kernel, "KernelGridReader", fails)
    latents_kernel._prepare(small_latent_model().shape)
    assert len(asked) == 1


@pytest.mark.parametrize("error", [DeviceError, OutOfMemoryError])
def test_numpy_writes_latents_where_the_processor_fails(
    error: type[ImgmlpError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error("it does not run")

    model, one, group = small_latent_model(13, 21, 3), open_mapping("one"), open_mapping("group")
    wanted = sections.write(model)
    monkeypatch.setattr(sections.KernelGridWriter, "write", fails)
    assert sections.write(model, group) == wanted
    monkeypatch.setattr(one, "lanes", "one")
    with pytest.raises(error):
        sections.write(model, one)


@pytest.mark.parametrize("error", [DeviceError, OutOfMemoryError])
def test_numpy_reads_latents_where_the_processor_fails(
    error: type[ImgmlpError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error("it does not build")

    monkeypatch.setattr(sections, "KernelGridReader", fails)
    model = small_latent_model(13, 21, 3)
    parts, one = sections.write(model), open_opencl()
    assert_same(read(parts, model.shape, "group"), model)
    monkeypatch.setattr(one, "lanes", "one")
    with pytest.raises(error):
        sections.read(parts, (model.shape.width, model.shape.height), model.shape.channels, one)
