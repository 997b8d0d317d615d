"""An .imlp file is read as it was written, or refused."""

from __future__ import annotations

import hashlib
import io
import tracemalloc
from dataclasses import replace
from pathlib import Path

import imlp_reference as reference
import mutations
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imgmlp import image
from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Header, Section
from imgmlp.errors import FormatError

DIGEST = bytes(range(8))
HEADER = Header(512, 300, 3, DIGEST)
SECTIONS = [Section("N", b"network"), Section("W", bytes(range(200))), Section("i", b"profile")]
GOLDEN = (
    "89494d4c0d0a1a0a018004ac0203080100030001020304050607d02cb62d4e076e6574776f726b07"
    "749de057c801000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f2021"
    "22232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f40414243444546474849"
    "4a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768696a6b6c6d6e6f7071"
    "72737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f90919293949596979899"
    "9a9b9c9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1"
    "c2c3c4c5c6c73026b9ee690770726f66696c6500375f39"
)

HEADERS = st.builds(
    Header,
    st.integers(1, 2**14),
    st.integers(1, 2**14),
    st.sampled_from(list(container.CHANNELS)),
    st.binary(min_size=8, max_size=8),
)
LISTS = st.lists(
    st.builds(Section, st.sampled_from("NWiabcxyz"), st.binary(max_size=200)),
    min_size=1,
    max_size=5,
    unique_by=lambda section: section.type,
)


def file(header: bytes = b"", *sections: bytes, claimed: int | None = None) -> bytes:
    """A file with right checksums; `header` replaces the bytes from the width to the flags."""
    header = header or bytes([8, 8, 3, 8, 1, 0])
    count = len(sections) if claimed is None else claimed
    start = container.SIGNATURE + bytes([container.VERSION]) + header + bytes([count]) + DIGEST
    return mutations.joined([start, *sections])


# Writing and reading


@given(HEADERS, LISTS)
def test_what_is_written_is_read(header: Header, sections: list[Section]) -> None:
    data = container.write(header, sections)
    found = container.parse(data)
    assert found.header == header
    assert found.sections == tuple(sections)
    assert found.size == len(data)
    assert container.write(found.header, found.sections) == data


@given(HEADERS, LISTS)
def test_the_document_is_enough_to_read_it(header: Header, sections: list[Section]) -> None:
    facts, found = reference.container(container.write(header, sections))
    assert found == {section.type: section.data for section in sections}
    assert facts == {name: getattr(header, name) for name in facts}


def test_the_bytes_have_never_changed() -> None:
    assert container.write(HEADER, SECTIONS).hex() == GOLDEN


def test_a_golden_file_is_read() -> None:
    found = container.parse(bytes.fromhex(GOLDEN))
    assert (found.header, list(found.sections)) == (HEADER, SECTIONS)


@pytest.mark.parametrize(("width", "height"), [(512, 512), (2**14, 2**14), (2**28, 1)])
def test_all_but_the_data_of_three_sections_takes_at_most_64_bytes(width: int, height: int) -> None:
    header = replace(HEADER, width=width, height=height)
    sections = [Section(kind, bytes(2**24)) for kind in "NWi"]
    data = container.write(header, sections)
    assert len(data) - sum(len(section.data) for section in sections) <= 64


def test_sections_are_found_by_their_type() -> None:
    found = container.parse(container.write(HEADER, SECTIONS[:2]))
    assert found.require("N") == b"network"
    assert found.get("i") is None
    with pytest.raises(FormatError, match="section 'i' is missing"):
        found.require("i")


def test_unknown_sections_are_kept_where_they_can_be_skipped() -> None:
    sections = [Section("t", b"text"), *SECTIONS]
    assert container.parse(container.write(HEADER, sections)).sections == tuple(sections)


def test_a_file_is_read_whole_wherever_its_stream_stands() -> None:
    data = container.write(HEADER, SECTIONS)
    stream = io.BytesIO(data)
    stream.seek(5)
    assert container.read(stream) == container.parse(data)


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.imlp"
    with path.open("wb") as stream:
        stream.truncate(container.MAX_FILE_BYTES + 1)  # takes no place on the disk
    tracemalloc.start()
    try:
        with path.open("rb") as stream, pytest.raises(FormatError, match="bytes are too many"):
            container.read(stream)
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()


# The digest


def test_the_digest_is_that_of_the_samples_in_their_order() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    expected = hashlib.sha256(bytes(range(24))).digest()[:8]
    assert container.digest(pixels) == expected
    assert container.digest(np.asfortranarray(pixels)) == expected
    assert container.digest(pixels[::-1]) != expected


@pytest.mark.parametrize("pixels", [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3), np.int16)])
def test_a_digest_of_anything_else_is_refused(pixels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="not uint8 of three axes"):
        container.digest(pixels)


# Damage


def test_every_truncation_is_noticed() -> None:
    data = container.write(HEADER, SECTIONS)
    for size in range(len(data)):
        with pytest.raises(FormatError):
            container.parse(data[:size])


def test_every_flipped_bit_is_noticed() -> None:
    data = container.write(HEADER, SECTIONS)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with pytest.raises(FormatError):
                container.parse(bytes(flipped))


def test_ten_thousand_damaged_files_are_refused_and_no_more() -> None:
    """Those with right checksums may be sound: only what a section holds has changed."""
    count = mutations.refused(container.parse, mutations.mutants(mutations.sample(), 10_000))
    assert 5_000 <= count < 10_000


def section(kind: bytes, size: bytes, data: bytes = b"") -> bytes:
    return kind + size + data


SOUND = section(b"N", b"\x02", b"ab")
FIELDS = {  # from the width to the flags
    "a width of 0": (bytes([0, 8, 3, 8, 1, 0]), "are no picture"),
    "a height of 0": (bytes([8, 0, 3, 8, 1, 0]), "are no picture"),
    "too many pixels": (b"\x80\x80\x01\x81\x80\x01\x03\x08\x01\x00", "pixels are too many"),
    "the largest numbers": (b"\xff\xff\xff\xff\x7f" * 2 + b"\x03\x08\x01\x00", "too many"),
    "a number of 6 bytes": (b"\xff\xff\xff\xff\xff\x01\x08\x03\x08\x01\x00", "too long"),
    "a padded number": (b"\x88\x00\x08\x03\x08\x01\x00", "longer than it needs"),
    "no channels": (bytes([8, 8, 0, 8, 1, 0]), "0 channels"),
    "five channels": (bytes([8, 8, 5, 8, 1, 0]), "5 channels"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_header_with_right_checksum_and_wrong_values_is_refused(name: str) -> None:
    header, problem = FIELDS[name]
    with pytest.raises(FormatError, match=problem):
        container.parse(file(header, SOUND))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (file(bytes([8, 8, 3, 16, 1, 0]), SOUND), "16 bits a sample"),
        (file(bytes([8, 8, 3, 8, 3, 0]), SOUND), "codec 3"),
        (file(bytes([8, 8, 3, 8, 1, 4]), SOUND), "flags 0x4"),
        (file(b"", SOUND, section(b"Q", b"\x00")), "section 'Q'"),
        (container.SIGNATURE + b"\x02 and whatever comes", "version 2 is newer than 1"),
    ],
)
def test_what_is_too_new_is_refused_with_the_advice_to_update(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        container.parse(data)
    assert caught.value.hint == "update imgmlp"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "truncated"),
        (b"\x89IM", "truncated"),
        (b"PK\x03\x04 another kind of file", "not an .imlp file"),
        (container.SIGNATURE.replace(b"\r\n", b"\n") + bytes(50), "line ends were changed"),
        (container.SIGNATURE + b"\x00" + bytes(50), "version 0"),
        (file(b"", claimed=0), "0 sections"),
        (file(b"", claimed=33), "33 sections"),
        (file(b"", SOUND, claimed=2), r"truncated: of at least \d+ bytes \d+ are there"),
        (file(b"", SOUND) + b"\x00", r"of its \d+ bytes only \d+ are"),
        (file(b"", SOUND, SOUND), "section 'N' is there twice"),
        (file(b"", section(b"1", b"\x00")), "no type of a section"),
        (file(b"", section(b"\xc4", b"\x00")), "no type of a section"),
        (file(b"", section(b"N", b"\x82\x00", b"ab")), "longer than it needs"),
    ],
)
def test_what_contradicts_itself_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        container.parse(data)
    assert caught.value.hint


@pytest.mark.parametrize("kind", [b"N", b"W", b"i", b"q", b"Q"])
@pytest.mark.parametrize("size", [1000, 2**24, 2**28, 2**35 - 1])
def test_a_small_file_never_takes_much_memory(kind: bytes, size: int) -> None:
    claim = kind + container._varint(size)
    data = file(b"\x80\x80\x01\x80\x80\x01\x03\x08\x01\x00", claim + bytes(20 - len(claim)))
    assert len(data) <= 64
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="truncated"):
            container.parse(data)
        assert tracemalloc.get_traced_memory()[1] < 2**16
    finally:
        tracemalloc.stop()


# What cannot be written


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"width": 0}, "no picture"),
        ({"height": -1}, "no picture"),
        ({"width": 2**28}, "too many"),
        ({"channels": 5}, "5 channels"),
        ({"digest": b"short"}, "5 bytes"),
        ({"codec": "other"}, "'other'"),
        ({"depth": 16}, "16 bits"),
        ({"flags": 1}, "flags 0x1"),
    ],
)
def test_a_header_that_could_not_be_read_is_not_made(
    changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(FormatError, match=problem):
        replace(HEADER, **changes)


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ([], "0 sections"),
        ([Section(kind, b"") for kind in "abcdefghijklmnopqrstuvwxyNW"] * 2, "54 sections"),
        ([SECTIONS[0], SECTIONS[0]], "twice"),
        ([Section("Q", b"")], "not known"),
        ([Section("N", bytes(container.MAX_FILE_BYTES))], "too many for a file"),
    ],
)
def test_sections_that_could_not_be_read_are_not_written(
    sections: list[Section], problem: str
) -> None:
    with pytest.raises(FormatError, match=problem):
        container.write(HEADER, sections)


@pytest.mark.parametrize(("kind", "size"), [("", 0), ("ab", 0), ("7", 0), ("é", 0), ("i", 2**25)])
def test_a_section_of_no_type_or_too_large_is_not_made(kind: str, size: int) -> None:
    with pytest.raises(FormatError):
        Section(kind, bytes(size))


def test_every_picture_that_can_be_loaded_can_be_written() -> None:
    assert container.MAX_PIXELS == image.MAX_PIXELS


def test_a_file_begins_unlike_any_text_and_names_its_version() -> None:
    assert bytes.fromhex(GOLDEN)[:9] == b"\x89IML\r\n\x1a\n\x01"
