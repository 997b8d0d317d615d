"""The bytes of an .imlp file: signature, header, sections, checksums (docs/format-imlp.md).

Files come from strangers: nothing is believed before its checksum and its limits were compared.
Knows nothing of what a section holds, and needs no NumPy, so that looking at a file is quick.
"""

from __future__ import annotations

import hashlib
import io
import string
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from imgmlp.errors import FormatError, check_format

if TYPE_CHECKING:
    import numpy as np

SIGNATURE = b"\x89IML\r\n\x1a\n"
VERSION = 1
Codec = Literal["mlp", "latent"]
CODECS: dict[Codec, int] = {"mlp": 1, "latent": 2}  # their numbers in a file
USUAL_CODEC: Codec = "latent"  # of new files if nobody chooses
CHANNELS = {1: "gray", 2: "gray and alpha", 3: "RGB", 4: "RGB and alpha"}
DEPTH = 8  # bits a sample

NETWORK, WEIGHTS, LATENTS, ICC = "N", "W", "L", "i"
# Types that a picture of each codec may have; others that are critical cannot be decoded.
CRITICAL: dict[Codec, set[str]] = {
    "mlp": {NETWORK, WEIGHTS},
    "latent": {NETWORK, WEIGHTS, LATENTS},
}

MAX_FILE = 2**27  # bytes
MAX_PIXELS = 2**28
MAX_SECTIONS = 32
MAX_ICC = 2**24  # bytes
_MAX_VARINT = 5  # bytes
_DIGEST = 8  # bytes of a picture's SHA-256

_NEWER = "update imgmlp"


@dataclass(frozen=True)
class Header:
    """What a file says of its picture. Raises FormatError for values that no file may have."""

    width: int
    height: int
    channels: int  # 1 gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha
    digest: bytes  # of the decoded picture, see `digest`
    codec: Codec = "mlp"
    depth: int = DEPTH
    flags: int = 0

    def __post_init__(self) -> None:
        size = f"{self.width}×{self.height}"
        check_format(self.width >= 1 and self.height >= 1, f"{size} pixels are no picture")
        within = self.width * self.height <= MAX_PIXELS
        check_format(within, f"{size} pixels are too many; the limit is {MAX_PIXELS:,} in all")
        check_format(
            self.channels in CHANNELS, f"{self.channels} channels are neither gray nor RGB"
        )
        check_format(len(self.digest) == _DIGEST, f"the digest has {len(self.digest)} bytes")
        check_format(self.codec in CODECS, f"codec {self.codec!r} is not known here", _NEWER)
        check_format(self.depth == DEPTH, f"{self.depth} bits a sample are not known here", _NEWER)
        check_format(self.flags == 0, f"flags {self.flags:#x} are not known here", _NEWER)


@dataclass(frozen=True)
class Section:
    """A typed part of a file. The type is a letter; a capital one cannot be ignored."""

    type: str
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        letter = len(self.type) == 1 and self.type in string.ascii_letters
        check_format(letter, f"{self.type!a} is no type of a section")
        problem = f"an ICC profile of {len(self.data):,} bytes is too large"
        check_format(self.type != ICC or len(self.data) <= MAX_ICC, problem)

    @property
    def critical(self) -> bool:
        """Whether the picture cannot be decoded without understanding it."""
        return self.type.isupper()


@dataclass(frozen=True)
class Container:
    """A file whose checksums are right; what its sections hold is not checked."""

    header: Header
    sections: tuple[Section, ...]  # in the file's order, unknown ones that may be skipped too
    size: int  # bytes of the file

    def get(self, kind: str) -> bytes | None:
        """The data of the section of this type, if there is one."""
        return next((section.data for section in self.sections if section.type == kind), None)

    def require(self, kind: str) -> bytes:
        """The data of a section without which there is no picture. Raises FormatError."""
        data = self.get(kind)
        if data is None:
            raise FormatError(f"section {kind!r} is missing")
        return data


def facts(found: Container) -> dict[str, Any]:
    """What a file says of itself."""
    header = found.header
    data = sum(len(section.data) for section in found.sections)
    return {
        "format": "imgmlp-compact",
        "version": VERSION,
        "width": header.width,
        "height": header.height,
        "channels": header.channels,
        "codec": header.codec,
        "digest": header.digest.hex(),
        "sections": [
            {"type": section.type, "bytes": len(section.data), "critical": section.critical}
            for section in found.sections
        ],
        "container_bytes": found.size - data,
        "bytes": found.size,
        "bits_per_pixel": 8 * found.size / (header.width * header.height),
    }


def digest(pixels: np.ndarray[Any, Any]) -> bytes:
    """The 8 bytes by which a decoded picture, uint8 [height, width, channels], is known again."""
    if pixels.dtype != "u1" or pixels.ndim != 3:
        raise ValueError(f"pixels are {pixels.dtype}{list(pixels.shape)}, not uint8 of three axes")
    rows = (row.tobytes() for row in pixels)  # one at a time: whole pictures may be large
    whole = hashlib.sha256()
    for row in rows:
        whole.update(row)
    return whole.digest()[:_DIGEST]


def write(header: Header, sections: Iterable[Section]) -> bytes:
    """The bytes of a file. The same arguments give the same bytes.

    Raises FormatError for what `parse` would refuse.
    """
    sections = tuple(sections)
    _check_count(len(sections))
    for at, section in enumerate(sections):
        _check_new(section, sections[:at], header.codec)
    fields = bytes([header.channels, header.depth, CODECS[header.codec], header.flags])
    start = SIGNATURE + bytes([VERSION]) + _varint(header.width) + _varint(header.height)
    parts = [start + fields + bytes([len(sections)]) + header.digest]
    for section in sections:
        kind = section.type.encode("ascii")
        parts.append(kind + _varint(len(section.data)) + section.data)
    data = b"".join(part + zlib.crc32(part).to_bytes(4, "big") for part in parts)
    check_format(len(data) <= MAX_FILE, f"{len(data):,} bytes are too many for a file")
    return data


def read(stream: BinaryIO) -> Container:
    """The container in a file, not read if it is too large. Raises FormatError as `parse` does."""
    size = stream.seek(0, io.SEEK_END)
    _check_size(size)
    stream.seek(0)
    return parse(stream.read(size))


def parse(data: bytes) -> Container:
    """The container in these bytes. Raises FormatError unless all of them are as they should be."""
    _check_size(len(data))
    if not data.startswith(SIGNATURE):
        raise _foreign(data)
    reader = _Reader(data, len(SIGNATURE))
    version = reader.byte()
    if version > VERSION:
        problem = f"format version {version} is newer than {VERSION}, the newest known here"
        raise FormatError(problem, hint=_NEWER)
    check_format(version == VERSION, f"format version {version} never was")
    header, count = _header(reader)
    sections: list[Section] = []
    for _ in range(count):
        section = _section(reader)
        _check_new(section, sections, header.codec)
        sections.append(section)
    end = reader.position
    check_format(end == len(data), f"of its {len(data):,} bytes only {end:,} are the picture's")
    return Container(header, tuple(sections), len(data))


def _header(reader: _Reader) -> tuple[Header, int]:
    """The header, and the number of sections that it announces."""
    width, height = reader.varint(), reader.varint()
    channels, depth, codec, flags, count = (reader.byte() for _ in range(5))
    found = reader.take(_DIGEST)
    reader.check(0, "the header")
    names = {number: name for name, number in CODECS.items()}
    check_format(codec in names, f"codec {codec} is not known here", _NEWER)
    _check_count(count)
    return Header(width, height, channels, found, names[codec], depth, flags), count


def _section(reader: _Reader) -> Section:
    begin = reader.position
    letter = chr(reader.byte())
    data = reader.take(reader.varint())
    reader.check(begin, f"section {letter!a}")
    return Section(letter, data)


def _check_count(count: int) -> None:
    check_format(1 <= count <= MAX_SECTIONS, f"there are {count} sections, not 1 to {MAX_SECTIONS}")


def _check_new(section: Section, earlier: Sequence[Section], codec: Codec) -> None:
    """Refuse a section that is there twice, or that is too new to be understood."""
    kind = section.type
    check_format(all(other.type != kind for other in earlier), f"section {kind!r} is there twice")
    known = kind in CRITICAL[codec] or not section.critical
    check_format(known, f"section {kind!r} is not known here", _NEWER)


class _Reader:
    """Takes values from bytes, and never more than there are."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self.position = data, position

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self._data):
            raise FormatError(f"truncated: of at least {end:,} bytes {len(self._data):,} are there")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        """A whole number: 7 bits a byte, least significant first, bit 7 where more follow."""
        value = 0
        for group in range(_MAX_VARINT):
            byte = self.byte()
            value |= (byte & 127) << 7 * group
            if byte < 128:
                check_format(byte > 0 or group == 0, "a number is longer than it needs to be")
                return value
        raise FormatError("a number is too long")

    def check(self, begin: int, what: str) -> None:
        """Compare the checksum that comes next with that of everything from `begin` on."""
        found = zlib.crc32(memoryview(self._data)[begin : self.position])
        good = self.take(4) == found.to_bytes(4, "big")
        check_format(good, f"{what} is damaged: its checksum is wrong")


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def _foreign(data: bytes) -> FormatError:
    """What to say about bytes that do not begin as they should."""
    if SIGNATURE.startswith(data):
        return FormatError("truncated: the file has hardly begun")
    if data.startswith(SIGNATURE[:4]):
        hint = "transfer it again as binary data"
        return FormatError("line ends were changed on the way", hint=hint)
    return FormatError("not an .imlp file", hint="give a file that imgmlp encode wrote")


def _check_size(size: int) -> None:
    check_format(size <= MAX_FILE, f"{size:,} bytes are too many; the limit is {MAX_FILE:,}")
