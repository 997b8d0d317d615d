"""Metadata in a file come back as they were, and older decoders pass over them."""

from __future__ import annotations

import zlib

import imlp_reference
import pytest
from conftest import GOLDEN
from hypothesis import given
from hypothesis import strategies as st

from imgmlp.codec.bitstream import container, metadata_sections
from imgmlp.codec.bitstream.container import Container, Header, Section
from imgmlp.errors import FormatError
from imgmlp.metadata import MAX_BYTES, NOTHING, Metadata

HEADER = Header(9, 7, 3, bytes(8))
some = st.none() | st.binary(max_size=300)
dots = st.integers(1, 10**9).map(lambda n: n / 1000)


def stored(*sections: Section) -> Container:
    return container.parse(container.write(HEADER, [Section("N", b""), *sections]))


@given(st.builds(Metadata, some, some, some, st.none() | st.tuples(dots, dots)))
def test_what_was_written_is_read(found: Metadata) -> None:
    sections = metadata_sections.sections(found)
    assert metadata_sections.read(stored(*sections)) == found
    assert not any(section.is_critical for section in sections)
    assert len(sections) == len(found.names())


def test_the_document_tells_how_to_read_them() -> None:
    found = Metadata(b"profile" * 99, b"II*\0 EXIF", b"<xmp/>", (300.0, 150.012))
    data = container.write(HEADER, [Section("N", b""), *metadata_sections.sections(found)])
    _, parts = imlp_reference.container(data)
    again = (imlp_reference.inflated(parts, kind) for kind in "cex")
    assert Metadata(*again, imlp_reference.resolution(parts)) == found


def test_a_program_that_does_not_know_them_passes_over_them() -> None:
    """They have small letters, of which the container says just that."""
    found = stored(*metadata_sections.sections(Metadata(b"a", b"b", b"c", (1.0, 1.0))))
    assert [section.type for section in found.sections] == ["N", "c", "e", "x", "d"]
    assert {section.type for section in found.sections if section.is_critical} == {"N"}


def test_a_file_that_exists_is_read_for_ever() -> None:
    found = container.parse((GOLDEN / "metadata.imlp").read_bytes())
    expected = Metadata(b"a colour profile", b"II*\0EXIF data", b"<x:xmpmeta/>", (300.0, 150.012))
    assert metadata_sections.read(found) == expected


@given(st.sampled_from("cexd"), st.binary(max_size=99))
def test_any_bytes_are_metadata_or_damage(kind: str, data: bytes) -> None:
    damaged = False
    try:
        found = metadata_sections.read(stored(Section(kind, data)))
    except FormatError:
        damaged = True
    assert damaged or len(found.names()) == 1


def test_a_profile_that_is_there_twice_is_refused() -> None:
    (deflated,) = metadata_sections.sections(Metadata(icc=b"a"))
    plain = Section(container.ICC, b"b")
    assert metadata_sections.read(stored(plain)).icc == b"b"
    with pytest.raises(FormatError, match="two colour profiles"):
        metadata_sections.read(stored(deflated, plain))


def test_nothing_takes_nothing() -> None:
    assert metadata_sections.sections(NOTHING) == ()
    assert metadata_sections.size(NOTHING) == 0


def test_repetition_is_compressed_and_its_size_known() -> None:
    found = Metadata(b"profile " * 1000, b"II*\0" * 1000, b"<x/>" * 1000, (300.0, 300.0))
    added = stored(*metadata_sections.sections(found)).size - stored().size
    assert added < 200
    assert abs(metadata_sections.size(found) - added) < 20


def test_a_profile_as_it_used_to_be_is_still_read() -> None:
    assert metadata_sections.read(stored(Section("i", b"old"))) == Metadata(b"old")


@pytest.mark.parametrize("kind", "cex")
@pytest.mark.parametrize("data", [b"", b"\xff", b"\x03", zlib.compress(b"with a header")])
def test_damage_is_noticed(kind: str, data: bytes) -> None:
    with pytest.raises(FormatError, match=f"section '{kind}'"):
        metadata_sections.read(stored(Section(kind, data)))


def test_bytes_behind_the_end_are_noticed() -> None:
    (section,) = metadata_sections.sections(Metadata(b"profile"))
    with pytest.raises(FormatError):
        metadata_sections.read(stored(Section(section.type, section.data + b"\0")))


def test_what_inflates_to_too_much_is_refused() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(bytes(MAX_BYTES + 1)) + packer.flush()
    with pytest.raises(FormatError):
        metadata_sections.read(stored(Section("x", data)))


@pytest.mark.parametrize(
    "data",
    [b"", bytes(8), bytes(7), b"\xff" * 8, b"\0\0\0\1" * 3, b"\0\0\0\1" + bytes(4),
     bytes(7) + b"\1"],
)  # fmt: skip
def test_a_resolution_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="section 'd'"):
        metadata_sections.read(stored(Section("d", data)))
