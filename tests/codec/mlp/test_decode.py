"""Compact files decode to the encoded picture, in every version and on every device."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import imlp_reference as reference
import mutations
import numpy as np
import pytest
from conftest import GOLDEN, MAPPINGS, environment, open_mapping
from networks import small_network

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Header, Section
from imgmlp.codec.mlp import integer_inference
from imgmlp.engine import open_device
from imgmlp.errors import FormatError, ImgmlpError

GOLDEN = sorted(GOLDEN.glob("*.imlp"))


def small_file(width: int = 19, height: int = 14, channels: int = 3, icc: bytes = b"") -> bytes:
    """A compact file of a network with random weights."""
    network = small_network(channels)
    pixels = integer_inference.decode(network, width, height, open_device("numpy"))
    head, coded = network.sections()
    sections = [Section(container.NETWORK, head), Section(container.WEIGHTS, coded)]
    sections += [Section(container.ICC, icc)] if icc else []
    return container.write(Header(width, height, channels, container.digest(pixels)), sections)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_files_decode_to_their_pictures(path: Path) -> None:
    """NumPy decodes all of them, other devices two, as they compile for every size of picture."""
    for mapping in MAPPINGS if path.stem in ("rgb", "gray-alpha") else ("numpy",):
        file = container.parse(path.read_bytes())
        decoder.decode(file, open_mapping(mapping))  # compares the digest


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_reference_decoder_of_the_format_document_decodes_golden_files(path: Path) -> None:
    decoded = decoder.decode(container.parse(path.read_bytes()), open_device("numpy"))
    assert reference.picture(path.read_bytes()) == decoded.tolist()


def test_golden_files_have_every_number_of_channels() -> None:
    assert {container.parse(path.read_bytes()).header.channels for path in GOLDEN} == {1, 2, 3, 4}


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_file_decodes_to_its_picture(channels: int) -> None:
    file = container.parse(small_file(channels=channels))
    decoded = decoder.decode(file, open_device("numpy"))
    assert decoded.shape == (14, 19, channels)
    assert container.digest(decoded) == file.header.digest


def test_decoding_to_another_picture_than_the_encoded_one_is_an_error() -> None:
    file = container.parse(small_file())
    wrong = replace(file, header=replace(file.header, digest=bytes(8)))
    with pytest.raises(FormatError, match="another picture") as caught:
        decoder.decode(wrong, open_device("numpy"))
    assert "--device numpy" in caught.value.hint


@pytest.mark.parametrize("remaining", ["N", "W", "i"])
def test_file_without_its_network_is_refused(remaining: str) -> None:
    file = container.parse(small_file(icc=b"profile"))
    sections = tuple(section for section in file.sections if section.type == remaining)
    with pytest.raises(FormatError, match="is missing"):
        decoder.decode(replace(file, sections=sections), open_device("numpy"))


def test_ten_thousand_damaged_files_give_the_right_picture_or_an_error() -> None:
    data = mutations.sample()
    good, same = mutations.decode(data), 0
    for damaged in mutations.mutants(data, 10_000, seed=3):
        try:
            decoded = mutations.decode(damaged)
        except ImgmlpError as error:
            assert error.hint  # noqa: PT017 - most files end here
        else:
            np.testing.assert_array_equal(decoded, good)
            same += 1
    assert (
        0 < same < 2_000
    )  # those in which the colour profile was changed, with a correct checksum


@pytest.mark.soak
def test_a_million_damaged_files_stay_within_memory_and_time() -> None:
    script = [sys.executable, mutations.__file__, "1000000", "1"]
    done = subprocess.run(script, env=environment(), check=True, stdout=subprocess.PIPE, text=True)
    assert "files were refused" in done.stdout
