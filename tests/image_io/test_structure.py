"""Iterators over the parts of JPEG, JPEG 2000, PNG and WebP files."""

from __future__ import annotations

import io
import struct

import hostile
import pytest

from imgmlp.image_io.structure import (
    JPEG_EOI,
    JPEG_SOS,
    Chunk,
    Segment,
    TilePart,
    boxes,
    chunks,
    segments,
    tile_count,
    tile_parts,
)


def test_jpeg_segments_are_found_behind_gaps_and_fill_bytes() -> None:
    scan = b"\xff\xda\0\3s" + b"abc\xff\0\xff\xd3d"  # its data contain no marker
    data = b"\xff\xd8" + b"\xff\xff\xe1\0\4xy" + b"?" + scan + b"\xff\xd9"
    assert list(segments(data)) == [
        Segment(0xD8, 0, 2, 0),
        Segment(0xE1, 1, 5, 4),
        Segment(JPEG_SOS, 1, 12, 3),
        Segment(JPEG_EOI, 8, 25, 0),
    ]
    assert data[segments_end(data) :] == b"\xff\xd9"


def segments_end(data: bytes) -> int:
    return next(one.marker_offset for one in segments(data) if one.marker == JPEG_EOI)


def test_chunks_end_with_iend_or_the_riff_size() -> None:
    png = hostile.png(9, 7, rows=7)
    png_chunks = list(chunks(io.BytesIO(png + b"abcd" * 9), png=True))
    assert [one.type for one in png_chunks] == [b"IHDR", b"IDAT", b"IEND"]
    assert png_chunks[0] == Chunk(b"IHDR", 13, 8 + 12 + 13)
    webp = b"RIFF\x16\0\0\0WEBP" + b"odd \1\0\0\0x\0" + b"even\0\0\0\0" + b"more\0\0\0\0"
    stream = io.BytesIO(webp)
    walk = chunks(stream, png=False)
    assert next(walk) == Chunk(b"odd ", 1, 22)
    assert stream.read(1) == b"x"
    assert list(walk) == [Chunk(b"even", 0, 30)]


def test_box_that_ends_beyond_the_file_is_the_last() -> None:
    data = b"\0\0\0\x08oneb" + b"\0\0\0\1last" + b"\xff" * 8 + b"more"
    expected = [(b"oneb", 8, 8), (b"last", 24, 8 + 2**64 - 1)]
    assert list(boxes(io.BytesIO(data), 0, len(data))) == expected


def test_tile_parts_are_found_behind_boxes_and_segments() -> None:
    segment = b"\xff\x52\0\4ab"
    tile = b"\xff\x90\0\x0a\0\0" + (14).to_bytes(4) + b"\0\1" + b"\xff\x93"
    stream = b"\xff\x4f\xff\x51\0\4ab" + segment + 2 * tile + b"\xff\xd9"
    assert list(tile_parts(io.BytesIO(stream))) == [TilePart(0, 28), TilePart(0, 42)]
    boxes = (
        b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0\0\0\x0aonee12" + b"\0\0\0\1more" + bytes(7) + b"\x12ab"
    )
    for head in (b"\0\0\0\0jp2c", b"\0\0\0\1jp2c" + bytes(8)):
        data = boxes + head + stream
        begin = len(boxes + head)
        ends = [begin + 28, begin + 42]
        assert list(tile_parts(io.BytesIO(data))) == [TilePart(0, end) for end in ends]


def test_data_without_tiles_have_no_tile_parts() -> None:
    for data in (
        b"",
        bytes(99),
        b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(99),
        b"\xff\x4f\xff\x51" + bytes(99),
        b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0\0\0\1more" + b"\xff" * 8 + bytes(99),  # too long
    ):
        assert list(tile_parts(io.BytesIO(data))) == []


def test_tile_part_of_length_0_ends_where_it_begins() -> None:
    untold = b"\xff\x90\0\x0a\0\7" + bytes(6) + b"\xff\x93abc"
    data = b"\xff\x4f\xff\x51\0\4ab" + untold
    assert list(tile_parts(io.BytesIO(data))) == [TilePart(7, 8)]


@pytest.mark.parametrize(
    ("image", "offset", "tile", "start", "count"),
    [
        ((9, 7), (0, 0), (9, 7), (0, 0), 1),
        ((9, 7), (0, 0), (4, 4), (0, 0), 6),
        ((9, 7), (3, 2), (4, 4), (0, 0), 9),
        ((9, 7), (3, 2), (4, 4), (3, 1), 6),
        ((9, 7), (0, 0), (0, 4), (0, 0), 0),
    ],
)
def test_tile_count_follows_from_the_sizes_in_the_siz_segment(
    image: tuple[int, int],
    offset: tuple[int, int],
    tile: tuple[int, int],
    start: tuple[int, int],
    count: int,
) -> None:
    ends = [side + before for side, before in zip(image, offset, strict=True)]
    size = struct.pack(">8I", *ends, *offset, *tile, *start)
    data = b"\xff\x4f\xff\x51\0\x2f\0\0" + size + bytes(9)
    assert tile_count(io.BytesIO(data)) == count
    assert tile_count(io.BytesIO(data[:30])) == 0
