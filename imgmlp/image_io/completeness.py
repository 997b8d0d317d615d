"""Whether JPEG, JPEG 2000 and PCX files hold all of their pixels.

Bytes tell that as far as they can before anything is decoded; of a JPEG the pixels have the last
word. Pillow tells none of it: it fills what a JPEG lacks with gray, and walks through any number of
scans.
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
from imgmlp.image_io.png import missing
from imgmlp.image_io.structure import END, MOST_PARTS, SCAN, Segment, segments, tile_parts, tiles
from imgmlp.text import by_command

SCANS = 64  # of a JPEG; an encoder writes some ten
SEGMENTS = 2**14  # of all of it
JPEG_END = b"\xff\xd9"
_INTERVAL, _RESTART = 0xDD, re.compile(rb"\xff[\xd0-\xd7]")
# Bits of a JPEG's block, by the marker of how it is coded: two codes, or one in the first scan of a
# progressive one. An arithmetic coder needs next to nothing.
_LEAST = {0xC0: 2, 0xC1: 2, 0xC2: 1, 0xC3: 1, 0xC9: 0, 0xCA: 0, 0xCB: 0}
_PROGRESSIVE = (0xC2, 0xCA)
_WHOLE = b"\0\x3f\0"  # what a scan has that is not progressive: all of 64 coefficients
# What no two JPEGs that lack pixels decode alike: no bit is the same at first, where but a few may
# be missing, and no pattern later, which codes that begin one bit later soon read alike.
_FILLERS = (
    b"\x55" * 64 + bytes(97 * i % 251 for i in range(4096)),
    b"\xaa" * 64 + bytes(59 * i % 241 for i in range(4096)),
)
_AHEAD = 16  # bytes; a decoder takes up to 8 more than it needs
_TRIED = 32  # bytes that are offered to it one by one
_BAND = 2**20  # pixels that are compared at a time
# Bytes of a PCX's head, and of the colours at its end; where the head says what they are.
_PCX_HEAD, PCX_COLOURS, _PCX_KIND, _PCX_GRAY = 128, 769, 68, 2

Open = Callable[[bytes], ImageFile.ImageFile]


@dataclass(frozen=True)
class _Scan:
    """A scan of a JPEG, and where it is."""

    names: bytes  # of its components
    band: bytes  # its first and last coefficient, and which bits of them it has (T.81, B.2.3)
    begin: int
    end: int
    interval: int  # of its restart markers, in MCUs; 0 if it has none

    def finished(self) -> set[tuple[int, int]]:
        """The coefficients, by component and number, whose last bits it has."""
        if not self.names or self.band[2] & 15:
            return set()
        numbers = range(self.band[0], self.band[1] + 1)
        return {(name, number) for name in self.names for number in numbers}


@dataclass(frozen=True)
class Jpeg:
    """A JPEG's bytes up to its end marker, if it has one."""

    body: bytes
    has_end: bool
    segments: int  # SEGMENTS + 1 if there are more, and then nothing else counts
    scans: int
    coded: int  # bytes of its scans
    kind: int  # the marker of how it is coded
    frame: bytes  # its header's bits, size and components (T.81, B.2.2)

    @property
    def names(self) -> bytes:
        """Of its components."""
        return self.frame[6:-2:3]

    def check(self, size: tuple[int, int], path: Path) -> None:
        """Refuse, as a PictureError, what is too short for its size, or takes far too long."""
        width, height = size
        hint = by_command("rewrite it", path, "magick {} converted.png")
        if self.segments > SEGMENTS:
            raise PictureError(f"{path} has more than {SEGMENTS:,} segments", hint=hint)
        if 8 * self.coded < _LEAST.get(self.kind, 1) * -(-width // 8) * -(-height // 8):
            problem = f"{path} is damaged or truncated: its {self.coded:,} coded bytes cannot hold "
            problem += f"{width}×{height} pixels"
            raise PictureError(problem, hint="get the file again")
        if self.scans > SCANS:
            problem = f"{path} has {self.scans:,} scans, and {SCANS} are the limit"
            raise PictureError(problem, hint=hint)

    def complete(self, image: ImageFile.ImageFile, opened: Open) -> Image.Image:
        """The picture, loaded, if its pixels are the same whatever follows. Raises OSError.

        Where restart markers are missing a decoder leaves gaps or moves what follows, in silence.
        """
        lacks = any(self._lacks_restarts(scan) for scan in self._scans())
        if not lacks and (self.has_end or not self._is_cut(opened)):
            body = self.body.rstrip(b"\xff")
            first, second = (opened(body + filler + JPEG_END) for filler in _FILLERS)
            first = image if self.has_end else first
            first.load()
            if _same(first, second):
                return first
        raise OSError("some of its pixels are missing")

    def _is_cut(self, opened: Open) -> bool:
        """Whether one without an end lacks more than that, as far as it shows before decoding.

        An encoder may leave out the last bits of coefficients, but then only the end tells so.
        """
        lacking = {(name, number) for name in self.names for number in range(64)}
        scans = []
        for one in self._scans():
            scans.append(one)
            lacking -= one.finished()
            if not lacking:
                break
        if lacking:
            return True
        return bool(scans) and self._starves(scans, opened)

    def _scans(self) -> Iterator[_Scan]:
        behind, interval = Segment(END, 0, len(self.body) + 2, 0), 0
        for one, then in pairwise(chain(segments(self.body), (behind,))):
            said = self.body[one.begin + 2 : one.begin + one.size]
            if one.kind == _INTERVAL:
                interval = int.from_bytes(said[:2])
            if one.kind == SCAN:
                band = said[-3:] if self.kind in _PROGRESSIVE else _WHOLE
                yield _Scan(said[1:-3:2][:4], band, one.marker, then.marker, interval)

    def _lacks_restarts(self, scan: _Scan) -> bool:
        """Whether a scan has fewer restart markers than its size and their interval tell, or these
        do not count from 0 to 7, again and again (T.81, E.1.3)."""
        if not scan.interval:
            return False
        count = 1  # of its MCUs (T.81, A.2): blocks, if it has one component
        for at, shift in ((1, 0), (3, 4)):
            side = int.from_bytes(self.frame[at : at + 2])
            pairs = zip(self.names, self.frame[7::3], strict=False)
            factors = {name: both >> shift & 15 for name, both in pairs}
            own = factors.get(scan.names[0], 1) if len(scan.names) == 1 else 1
            count *= -(-side * own // (8 * max([1, *factors.values()])))
        least = max(0, -(-count // scan.interval) - 1)
        marks = islice(_RESTART.finditer(self.body, scan.begin, scan.end), least)
        markers = b"".join(mark[0] for mark in marks)
        return markers[1::2] != (bytes(range(0xD0, 0xD8)) * -(-least // 8))[:least]

    def _starves(self, scans: list[_Scan], opened: Open) -> bool:
        """Whether one without an end lacks some of its last scan.

        The decoder is offered more, byte by byte. It takes that for the blocks that are missing,
        and soon leaves a byte, as it needs the next one as well to make a block. When none is
        missing, it skips whatever is no marker, or is done if there is only one scan.
        """
        get = getattr(Image, "_getdecoder", None)
        if get is None:
            return False  # the pixels tell
        image, filler = opened(self.body), _FILLERS[0]
        size = max(1, image.width // 8), max(1, image.height // 8)
        image.draft(image.mode, size)  # of a block its mean, at most
        image.load_prepare()
        name, extents, _, options = image.tile[0]
        decoder = get(image.mode, name, options, image.decoderconfig)
        try:
            decoder.setimage(image.im, extents)
            start = b"".join([*self._last(scans), filler[:_AHEAD]])
            for piece in chain((start,), (filler[at : at + 1] for at in range(_AHEAD, _TRIED))):
                used, _ = decoder.decode(piece)
                if used != len(piece):
                    return bool(used >= 0)  # or it is done, or has failed
            return False
        finally:
            decoder.cleanup()

    def _last(self, scans: list[_Scan]) -> Iterator[memoryview]:
        """The body without scans of other components than the last one's: it needs none of them."""
        body, at = memoryview(self.body.rstrip(b"\xff")), 0
        for one in scans:
            if one.names != scans[-1].names:
                yield body[at : one.begin]
                at = one.end
        yield body[at:]


def jpeg(data: bytes) -> Jpeg:
    """What there is of a JPEG."""
    count, scans, coded, kind, frame, scan = 0, 0, 0, 0, b"", None
    for count, one in enumerate(islice(segments(data), SEGMENTS + 1), 1):
        coded += 0 if scan is None else one.gap
        if one.kind == END:
            return Jpeg(data[: one.marker], True, count, scans, coded, kind, frame)
        scan = one.begin + one.size if one.kind == SCAN else None
        scans += one.kind == SCAN
        if one.kind in _LEAST and not kind:
            kind, frame = one.kind, data[one.begin + 2 : one.begin + one.size]
    coded += 0 if scan is None else max(0, len(data) - scan)
    return Jpeg(data, False, count, scans, coded, kind, frame)


def _same(first: Image.Image, second: Image.Image) -> bool:
    """Whether two pictures have the same pixels: a few rows at a time, as they may be large."""
    step = max(1, _BAND // first.width)
    tops = range(0, first.height, step)
    boxes = ((0, top, first.width, min(top + step, first.height)) for top in tops)
    return all(first.crop(box).tobytes() == second.crop(box).tobytes() for box in boxes)


def check_jpeg2000(stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a JPEG 2000 that ends within the part of a tile, or lacks tiles,
    for which Pillow takes anything."""
    parts = list(tile_parts(stream))
    count = max((one.end for one in parts), default=0) - stream.seek(0, io.SEEK_END)
    if count > 0:
        problem = f"{path} is truncated: {missing(count)}"
        raise PictureError(problem, hint="get the file again")
    lacking = tiles(stream) - len({one.tile for one in parts})
    if lacking > 0 and len(parts) < MOST_PARTS:
        problem = f"{path} is damaged or truncated: {lacking:,} of its tiles are missing"
        raise PictureError(problem, hint="get the file again")


def check_pcx(image: Image.Image, stream: BinaryIO, path: Path) -> None:
    """Refuse, as a PictureError, a PCX of numbered colours without them, which Pillow takes for
    gray if the file does not end with them."""
    stream.seek(0)
    head = stream.read(_PCX_HEAD)
    says_gray = head[_PCX_KIND] == _PCX_GRAY
    stream.seek(-min(PCX_COLOURS, stream.seek(0, io.SEEK_END)), io.SEEK_END)
    if image.mode == "L" and not says_gray and stream.read(1) != b"\x0c":
        problem = f"{path} is truncated: its colours, which should be its end, are missing"
        raise PictureError(problem, hint="get the file again")
