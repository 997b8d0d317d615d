"""The bytes of an .imlp file: signature, header, sections, checksums (docs/format-imlp.md).

Files are untrusted input: no value is used before its checksum and its limits have been checked.
This module treats the contents of sections as opaque bytes. It needs no NumPy, so that inspecting a
file is fast.
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
CODECS: dict[Codec, int] = {"mlp": 1, "latent": 2}  # the number that a file stores for each
DEFAULT_CODEC: Codec = "latent"  # of new files
CHANNELS = {1: "gray", 2: "gray and alpha", 3: "RGB", 4: "RGB and alpha"}
BITS_PER_SAMPLE = 8  # the only depth that version 1 has

# Section types.
NETWORK = "N"  # sizes and quantisation steps of the networks
WEIGHTS = "W"  # entropy-coded weights
LATENTS = "L"  # entropy-coded latents
ICC = "i"  # an uncompressed ICC profile, which only older files have

# The critical section types that each codec understands. Any other critical type makes a file
# undecodable.
CRITICAL_TYPES: dict[Codec, set[str]] = {
    "mlp": {NETWORK, WEIGHTS},
    "latent": {NETWORK, WEIGHTS, LATENTS},
}

# Limits of the file format.
MAX_FILE_BYTES = 2**27
MAX_PIXELS = 2**28
MAX_SECTIONS = 32
MAX_ICC_BYTES = 2**24
_MAX_VARINT_BYTES = 5

_DIGEST_BYTES = 8  # the first bytes of a SHA-256
_CHECKSUM_BYTES = 4  # a CRC-32

_UPDATE_HINT = "update imgmlp"


@dataclass(frozen=True)
class Header:
    """The header of a file, describing its picture. Raises FormatError for invalid values."""

    width: int
    height: int
    channels: int  # 1 gray, 2 gray and alpha, 3 RGB, 4 RGB and alpha
    digest: bytes  # of the decoded picture; see the function `digest`
    codec: Codec = "mlp"
    depth: int = BITS_PER_SAMPLE
    flags: int = 0

    def __post_init__(self) -> None:
        size = f"{self.width}×{self.height}"
        check_format(self.width >= 1 and self.height >= 1, f"{size} pixels are no picture")
        is_small_enough = self.width * self.height <= MAX_PIXELS
        check_format(
            is_small_enough, f"{size} pixels are too many; the limit is {MAX_PIXELS:,} in all"
        )
        check_format(
            self.channels in CHANNELS, f"{self.channels} channels are neither gray nor RGB"
        )
        check_format(len(self.digest) == _DIGEST_BYTES, f"the digest has {len(self.digest)} bytes")
        check_format(self.codec in CODECS, f"codec {self.codec!r} is not known here", _UPDATE_HINT)
        check_format(
            self.depth == BITS_PER_SAMPLE,
            f"{self.depth} bits a sample are not known here",
            _UPDATE_HINT,
        )
        check_format(self.flags == 0, f"flags {self.flags:#x} are not known here", _UPDATE_HINT)


@dataclass(frozen=True)
class Section:
    """A typed part of a file. Its type is one letter; a capital letter marks a critical section."""

    type: str
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        is_letter = len(self.type) == 1 and self.type in string.ascii_letters
        check_format(is_letter, f"{self.type!a} is no type of a section")
        problem = f"an ICC profile of {len(self.data):,} bytes is too large"
        check_format(self.type != ICC or len(self.data) <= MAX_ICC_BYTES, problem)

    @property
    def is_critical(self) -> bool:
        """Whether decoding the picture requires understanding this section."""
        return self.type.isupper()


@dataclass(frozen=True)
class Container:
    """A file with valid checksums. The contents of its sections have not been checked."""

    header: Header
    sections: tuple[Section, ...]  # in the file's order, including unknown ancillary ones
    size: int  # bytes of the file

    def get(self, section_type: str) -> bytes | None:
        """The data of the section of this type, or None if there is none."""
        matching = (section.data for section in self.sections if section.type == section_type)
        return next(matching, None)

    def require(self, section_type: str) -> bytes:
        """The data of the section of this type. Raises FormatError if there is none."""
        data = self.get(section_type)
        if data is None:
            raise FormatError(f"section {section_type!r} is missing")
        return data


def facts(container: Container) -> dict[str, Any]:
    """The properties of a file that `imgmlp info` prints."""
    header = container.header
    section_bytes = sum(len(section.data) for section in container.sections)
    return {
        "format": "imgmlp-compact",
        "version": VERSION,
        "width": header.width,
        "height": header.height,
        "channels": header.channels,
        "codec": header.codec,
        "digest": header.digest.hex(),
        "sections": [
            {"type": section.type, "bytes": len(section.data), "critical": section.is_critical}
            for section in container.sections
        ],
        "container_bytes": container.size - section_bytes,
        "bytes": container.size,
        "bits_per_pixel": 8 * container.size / (header.width * header.height),
    }


def digest(pixels: np.ndarray[Any, Any]) -> bytes:
    """The first 8 bytes of the SHA-256 of a picture: uint8 [height, width, channels]."""
    if pixels.dtype != "u1" or pixels.ndim != 3:
        raise ValueError(f"pixels are {pixels.dtype}{list(pixels.shape)}, not uint8 of three axes")
    sha256 = hashlib.sha256()
    for row in pixels:  # row by row, because a copy of a whole picture may be large
        sha256.update(row.tobytes())
    return sha256.digest()[:_DIGEST_BYTES]


def write(header: Header, sections: Iterable[Section]) -> bytes:
    """The bytes of a file. Equal arguments give equal bytes.

    Raises FormatError for sections that `parse` would refuse.
    """
    sections = tuple(sections)
    _check_count(len(sections))
    for number, section in enumerate(sections):
        _check_section(section, sections[:number], header.codec)
    fields = bytes([header.channels, header.depth, CODECS[header.codec], header.flags])
    size = _varint(header.width) + _varint(header.height)
    parts = [SIGNATURE + bytes([VERSION]) + size + fields + bytes([len(sections)]) + header.digest]
    for section in sections:
        section_type = section.type.encode("ascii")
        parts.append(section_type + _varint(len(section.data)) + section.data)
    data = b"".join(part + _checksum(part) for part in parts)
    check_format(len(data) <= MAX_FILE_BYTES, f"{len(data):,} bytes are too many for a file")
    return data


def read(stream: BinaryIO) -> Container:
    """Parse a file; one that is too large is not read. Raises FormatError as `parse` does."""
    size = stream.seek(0, io.SEEK_END)
    _check_size(size)
    stream.seek(0)
    return parse(stream.read(size))


def parse(data: bytes) -> Container:
    """Parse the bytes of a file. Raises FormatError unless all of them form a valid container."""
    _check_size(len(data))
    if not data.startswith(SIGNATURE):
        raise _signature_error(data)
    reader = _Reader(data, len(SIGNATURE))
    version = reader.byte()
    if version > VERSION:
        problem = f"format version {version} is newer than {VERSION}, the newest known here"
        raise FormatError(problem, hint=_UPDATE_HINT)
    check_format(version == VERSION, f"format version {version} never was")
    header, section_count = _read_header(reader)
    sections: list[Section] = []
    for _ in range(section_count):
        section = _read_section(reader)
        _check_section(section, sections, header.codec)
        sections.append(section)
    end = reader.position
    check_format(end == len(data), f"of its {len(data):,} bytes only {end:,} are the picture's")
    return Container(header, tuple(sections), len(data))


def _read_header(reader: _Reader) -> tuple[Header, int]:
    """The header and the number of sections that follow it."""
    width, height = reader.varint(), reader.varint()
    channels, depth, codec_number, flags, section_count = (reader.byte() for _ in range(5))
    picture_digest = reader.take(_DIGEST_BYTES)
    reader.verify_checksum(0, "the header")
    codecs = {number: codec for codec, number in CODECS.items()}
    check_format(codec_number in codecs, f"codec {codec_number} is not known here", _UPDATE_HINT)
    _check_count(section_count)
    codec = codecs[codec_number]
    return Header(width, height, channels, picture_digest, codec, depth, flags), section_count


def _read_section(reader: _Reader) -> Section:
    begin = reader.position
    section_type = chr(reader.byte())
    data = reader.take(reader.varint())
    reader.verify_checksum(begin, f"section {section_type!a}")
    return Section(section_type, data)


def _check_count(count: int) -> None:
    check_format(1 <= count <= MAX_SECTIONS, f"there are {count} sections, not 1 to {MAX_SECTIONS}")


def _check_section(section: Section, earlier: Sequence[Section], codec: Codec) -> None:
    """Raise FormatError for a repeated type, or a critical one that the codec does not know."""
    name = f"section {section.type!r}"
    is_repeated = any(other.type == section.type for other in earlier)
    check_format(not is_repeated, f"{name} is there twice")
    is_decodable = section.type in CRITICAL_TYPES[codec] or not section.is_critical
    check_format(is_decodable, f"{name} is not known here", _UPDATE_HINT)


class _Reader:
    """Reads values from bytes one after the other. Raises FormatError at the end of the bytes."""

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
        """An unsigned LEB128 integer: 7 bits per byte, lowest first; bit 7 set if more follow."""
        value = 0
        for group in range(_MAX_VARINT_BYTES):
            byte = self.byte()
            value |= (byte & 127) << 7 * group
            if byte < 128:
                check_format(byte > 0 or group == 0, "a number is longer than it needs to be")
                return value
        raise FormatError("a number is too long")

    def verify_checksum(self, begin: int, name: str) -> None:
        """Read a checksum. Raises FormatError unless it is that of all bytes from `begin` on."""
        expected = _checksum(memoryview(self._data)[begin : self.position])
        is_intact = self.take(_CHECKSUM_BYTES) == expected
        check_format(is_intact, f"{name} is damaged: its checksum is wrong")


def _checksum(data: bytes | memoryview) -> bytes:
    return zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "big")


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def _signature_error(data: bytes) -> FormatError:
    """The error for data that does not begin with the signature."""
    if SIGNATURE.startswith(data):
        return FormatError("truncated: the file has hardly begun")
    if data.startswith(SIGNATURE[:4]):
        hint = "transfer it again as binary data"
        return FormatError("line ends were changed on the way", hint=hint)
    return FormatError("not an .imlp file", hint="give a file that imgmlp encode wrote")


def _check_size(size: int) -> None:
    check_format(
        size <= MAX_FILE_BYTES, f"{size:,} bytes are too many; the limit is {MAX_FILE_BYTES:,}"
    )
