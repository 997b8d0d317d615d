"""Checks that JPEG, JPEG 2000 and PCX files contain all of their pixels.

Pillow does not report what is missing: it fills missing parts of a JPEG with gray, and reads any
number of scans. Most checks read the file's bytes before anything is decoded; of a JPEG two decoded
images are compared at last.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import BinaryIO

from PIL import Image, ImageFile

from imgmlp.errors import PictureError
from imgmlp.image_io.png import missing_bytes
from imgmlp.image_io.structure import (
    JPEG_EOI,
    JPEG_SOS,
    MAX_TILE_PARTS,
    Segment,
    segments,
    tile_count,
    tile_parts,
)
from imgmlp.text import by_command

MAX_SCANS = 64  # of a JPEG; encoders write about ten
MAX_JPEG_SEGMENTS = 2**14  # of the whole file
EOI_MARKER = b"\xff\xd9"
_JPEG_DRI = 0xDD  # defines the restart interval
_RESTART_MARKER = re.compile(rb"\xff[\xd0-\xd7]")
# The fewest coded bits of a block of 8x8 coefficients, by the SOF marker (ITU T.81, table B.1): two
# Huffman codes, one in the first scan of a progressive JPEG. Arithmetic coding needs almost none.
_MIN_BITS_PER_BLOCK = {0xC0: 2, 0xC1: 2, 0xC2: 1, 0xC3: 1, 0xC9: 0, 0xCA: 0, 0xCB: 0}
_PROGRESSIVE = (0xC2, 0xCA)  # SOF markers
_ALL_COEFFICIENTS = b"\0\x3f\0"  # Ss, Se, Ah and Al of a sequential scan
# Two continuations of the coded data that an incomplete JPEG decodes differently. They differ in
# every bit at first, in case only a few bits are missing. Later they are irregular: of a repeated
# pattern, Huffman decoders that start one bit apart soon read the same codes.
_FILLERS = (
    b"\x55" * 64 + bytes(97 * i % 251 for i in range(4096)),
    b"\xaa" * 64 + bytes(59 * i % 241 for i in range(4096)),
)
# Bytes of filler for the decoder: at once, as it reads up to 8 bytes ahead; then one by one, up to.
_LOOKAHEAD_BYTES = 16
_MAX_PROBE_BYTES = 32
_PIXELS_PER_COMPARISON = 2**20
_PCX_HEADER_BYTES = 128
PCX_PALETTE_BYTES = 769  # at the end of the file: a marker byte (12) and 256 colours
_PCX_PALETTE_TYPE_OFFSET = 68
_PCX_GRAYSCALE = 2  # a palette type

OpenImage = Callable[[bytes], ImageFile.ImageFile]


@dataclass(frozen=True)
class _Scan:
    """A scan of a JPEG (ITU T.81, B.2.3)."""

    components: bytes  # their identifiers
    coefficients: bytes  # Ss, Se: the first and last one; Ah, Al: which of their bits
    start: int  # offset of its SOS marker
    end: int  # offset of the following marker
    restart_interval: int  # MCUs; 0 without restart markers

    def completed_coefficients(self) -> set[tuple[int, int]]:
        """(component, index) of the coefficients whose lowest bit is in this scan."""
        if not self.components or self.coefficients[2] & 15:
            return set()
        indices = range(self.coefficients[0], self.coefficients[1] + 1)
        return {(component, index) for component in self.components for index in indices}


@dataclass(frozen=True)
class Jpeg:
    """A JPEG's bytes up to its EOI marker, if it has one."""

    body: bytes
    has_end: bool
    segments: int  # MAX_JPEG_SEGMENTS + 1 if there are more; the following is then incomplete
    scans: int
    coded_bytes: int  # of all scans
    frame_marker: int  # the SOF marker: the coding process
    frame_header: bytes  # precision, height, width and components (ITU T.81, B.2.2)

    @property
    def components(self) -> bytes:
        """The identifiers of the components."""
        return self.frame_header[6:-2:3]

    def check(self, size: tuple[int, int], path: Path) -> None:
        """Refuse, as a PictureError, a JPEG that is too short for its (width, height), or that
        takes far too long to decode."""
        width, height = size
        hint = by_command("rewrite it", path, "magick {} converted.png")
        if self.segments > MAX_JPEG_SEGMENTS:
            raise PictureError(f"{path} has more than {MAX_JPEG_SEGMENTS:,} segments", hint=hint)
        min_bits_per_block = _MIN_BITS_PER_BLOCK.get(self.frame_marker, 1)
        if 8 * self.coded_bytes < min_bits_per_block * -(-width // 8) * -(-height // 8):
            problem = f"{path} is damaged or truncated: its {self.coded_bytes:,} coded bytes cannot"
            problem += f" hold {width}×{height} pixels"
            raise PictureError(problem, hint="get the file again")
        if self.scans > MAX_SCANS:
            problem = f"{path} has {self.scans:,} scans, and {MAX_SCANS} are the limit"
            raise PictureError(problem, hint=hint)

    def load_complete(self, image: ImageFile.ImageFile, open_image: OpenImage) -> Image.Image:
        """The loaded image, if its pixels do not depend on what follows the data.

        Raises OSError if pixels are missing. Restart markers are checked as well: where one is
        missing, decoders leave gaps or shift what follows, without an error.
        """
        lacks_restarts = any(self._lacks_restarts(scan) for scan in self._scans())
        if not lacks_restarts and (self.has_end or not self._is_cut(open_image)):
            body = self.body.rstrip(b"\xff")
            first, second = (open_image(body + filler + EOI_MARKER) for filler in _FILLERS)
            first = image if self.has_end else first
            first.load()
            if _has_same_pixels(first, second):
                return first
        raise OSError("some of its pixels are missing")

    def _is_cut(self, open_image: OpenImage) -> bool:
        """Whether a JPEG without an EOI marker lacks more than the marker, as far as can be told
        before the whole is decoded.

        An encoder may leave out the lowest bits of coefficients on purpose, but without EOI such a
        file cannot be told from a truncated one.
        """
        missing = {(component, index) for component in self.components for index in range(64)}
        scans = []
        for scan in self._scans():
            scans.append(scan)
            missing -= scan.completed_coefficients()
            if not missing:
                break
        if missing:
            return True
        return bool(scans) and self._last_scan_is_cut(scans, open_image)

    def _scans(self) -> Iterator[_Scan]:
        end, restart_interval = Segment(JPEG_EOI, 0, len(self.body) + 2, 0), 0
        for segment, following in pairwise(chain(segments(self.body), (end,))):
            payload = self.body[segment.start + 2 : segment.start + segment.length]
            if segment.marker == _JPEG_DRI:
                restart_interval = int.from_bytes(payload[:2])
            if segment.marker == JPEG_SOS:
                is_progressive = self.frame_marker in _PROGRESSIVE
                coefficients = payload[-3:] if is_progressive else _ALL_COEFFICIENTS
                components = payload[1:-3:2][:4]
                start, stop = segment.marker_offset, following.marker_offset
                yield _Scan(components, coefficients, start, stop, restart_interval)

    def _lacks_restarts(self, scan: _Scan) -> bool:
        """Whether a scan has fewer restart markers than its MCUs and the restart interval require,
        or they do not count cyclically from RST0 to RST7 (ITU T.81, E.1.3)."""
        if not scan.restart_interval:
            return False
        # Number of MCUs (ITU T.81, A.2). In a scan of one component, each is one block.
        mcus = 1
        # Offset of the side in the frame header, and shift of its sampling factor: height, width.
        for offset, shift in ((1, 0), (3, 4)):
            side = int.from_bytes(self.frame_header[offset : offset + 2])
            pairs = zip(self.components, self.frame_header[7::3], strict=False)
            factors = {component: both >> shift & 15 for component, both in pairs}
            own = factors.get(scan.components[0], 1) if len(scan.components) == 1 else 1
            mcus *= -(-side * own // (8 * max([1, *factors.values()])))
        required = max(0, -(-mcus // scan.restart_interval) - 1)
        matches = islice(_RESTART_MARKER.finditer(self.body, scan.start, scan.end), required)
        markers = b"".join(match[0] for match in matches)
        return markers[1::2] != (bytes(range(0xD0, 0xD8)) * -(-required // 8))[:required]

    def _last_scan_is_cut(self, scans: list[_Scan], open_image: OpenImage) -> bool:
        """Whether a JPEG without an EOI marker lacks blocks of its last scan.

        The decoder is fed filler byte by byte. If blocks are missing, it decodes them from the
        filler, and soon leaves a byte unused, as it needs the following one to complete a block. If
        none is missing, it skips everything but a marker, or is done in a JPEG of one scan.
        """
        get_decoder = getattr(Image, "_getdecoder", None)
        if get_decoder is None:
            return False  # load_complete compares the pixels anyway
        image, filler = open_image(self.body), _FILLERS[0]
        size = max(1, image.width // 8), max(1, image.height // 8)
        image.draft(image.mode, size)  # decodes at most the mean of each block, which is faster
        image.load_prepare()
        name, extents, _, options = image.tile[0]
        decoder = get_decoder(image.mode, name, options, image.decoderconfig)
        try:
            decoder.setimage(image.im, extents)
            start = b"".join([*self._without_other_components(scans), filler[:_LOOKAHEAD_BYTES]])
            offsets = range(_LOOKAHEAD_BYTES, _MAX_PROBE_BYTES)
            for piece in chain((start,), (filler[offset : offset + 1] for offset in offsets)):
                used, _ = decoder.decode(piece)
                if used != len(piece):
                    return bool(used >= 0)  # a negative number: it is done or has failed
            return False
        finally:
            decoder.cleanup()

    def _without_other_components(self, scans: list[_Scan]) -> Iterator[memoryview]:
        """The parts of the body other than scans of components that the last scan does not have:
        its decoding does not depend on them."""
        body, offset = memoryview(self.body.rstrip(b"\xff")), 0
        for scan in scans:
            if scan.components != scans[-1].components:
                yield body[offset : scan.start]
                offset = scan.end
        yield body[offset:]


def parse_jpeg(data: bytes) -> Jpeg:
    """The parts of a JPEG, up to its EOI marker or the end of the data."""
    count, scans, coded_bytes, frame_marker, frame_header = 0, 0, 0, 0, b""
    scan_data: int | None = None  # offset of the coded data if the last segment began a scan
    for count, segment in enumerate(islice(segments(data), MAX_JPEG_SEGMENTS + 1), 1):
        coded_bytes += 0 if scan_data is None else segment.gap
        if segment.marker == JPEG_EOI:
            body = data[: segment.marker_offset]
            return Jpeg(body, True, count, scans, coded_bytes, frame_marker, frame_header)
        end = segment.start + segment.length
        scan_data = end if segment.marker == JPEG_SOS else None
        scans += segment.marker == JPEG_SOS
        if segment.marker in _MIN_BITS_PER_BLOCK and not frame_marker:
            frame_marker, frame_header = segment.marker, data[segment.start + 2 : end]
    coded_bytes += 0 if scan_data is None else max(0, len(data) - scan_data)
    return Jpeg(data, False, count, scans, coded_bytes, frame_marker, frame_header)


def _has_same_pixels(first: Image.Image, second: Image.Image) -> bool:
    """Whether two images of one size have equal pixels. Compares a few rows at a time, to save
    memory."""
    rows = max(1, _PIXELS_PER_COMPARISON // first.width)
    tops = range(0, first.height, rows)
    boxes = ((0, top, first.width, min(top + rows, first.height)) for top in tops)
    return all(first.crop(box).tobytes() == second.crop(box).tobytes() for box in boxes)


def check_jpeg2000(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a JPEG 2000 that ends within a tile-part or lacks tiles: Pillow
    fills them with arbitrary pixels."""
    parts = list(tile_parts(stream))
    lacking_bytes = max((part.end for part in parts), default=0) - stream.seek(0, io.SEEK_END)
    if lacking_bytes > 0:
        problem = f"{path} is truncated: {missing_bytes(lacking_bytes)}"
        raise PictureError(problem, hint="get the file again")
    lacking_tiles = tile_count(stream) - len({part.tile for part in parts})
    if lacking_tiles > 0 and len(parts) < MAX_TILE_PARTS:
        problem = f"{path} is damaged or truncated: {lacking_tiles:,} of its tiles are missing"
        raise PictureError(problem, hint="get the file again")


def check_pcx(image: Image.Image, stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a PCX of 8-bit palette indices without the palette at its end:
    Pillow takes the indices for gray."""
    stream.seek(0)
    header = stream.read(_PCX_HEADER_BYTES)
    is_grayscale = header[_PCX_PALETTE_TYPE_OFFSET] == _PCX_GRAYSCALE
    stream.seek(-min(PCX_PALETTE_BYTES, stream.seek(0, io.SEEK_END)), io.SEEK_END)
    if image.mode == "L" and not is_grayscale and stream.read(1) != b"\x0c":
        problem = f"{path} is truncated: its colours, which should be its end, are missing"
        raise PictureError(problem, hint="get the file again")
