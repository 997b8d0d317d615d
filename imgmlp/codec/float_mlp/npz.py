"""weights.npz: a trained picture as plain NumPy arrays (docs/format-npz.md).

The archive's directory and every array's header are checked against what the network needs
before memory is allocated for them, because files come from strangers. Never unpickles, and
knows neither the engine nor how to decode.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from imgmlp.codec.float_mlp.config import (
    MAX_LAYERS,
    MAX_PARAMETERS,
    MAX_WIDTH,
    Architecture,
    Encoding,
    Weights,
)
from imgmlp.errors import FormatError, ImgmlpError

FORMAT = "imgmlp-weights"
VERSION = 1
ACTIVATION = "leaky_relu"
MAX_ICC = 2**24  # bytes
MAX_DIRECTORY = 2**16  # bytes of the zip directory; 32 layers need under 5,000
MAX_FILE = 4 * MAX_PARAMETERS + MAX_ICC + 2**20  # bytes

_END = b"PK\x05\x06"  # end-of-directory record of a zip archive: 22 bytes without a comment
_END_BYTES = 22
_ZIP64_LOCATOR = b"PK\x06\x07"  # 20 bytes before it in archives over 4 GiB
_MAX_HEADER = 256  # bytes of an array header; ours take 128
_HEADER = re.compile(
    rb"\{'descr': '([^']{1,8})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,9},?(?: \d{1,9},?)*)?)\), \} *\n"
)
# What a damaged or hostile archive makes zipfile and zlib raise.
_DAMAGE = zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, OverflowError


def save(weights: Weights, stream: BinaryIO) -> None:
    """Write weights as an npz archive. The same weights give the same bytes."""
    archive = io.BytesIO()  # zipfile needs a stream that can seek
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as out:
        for name, array in _members(weights).items():
            data = io.BytesIO()
            np.lib.format.write_array(data, array, version=(1, 0), allow_pickle=False)
            # ZipInfo's own date is fixed: 1980-01-01
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            out.writestr(entry, data.getvalue())
    stream.write(archive.getvalue())


def _members(weights: Weights) -> dict[str, np.ndarray]:
    architecture, encoding = weights.architecture, weights.encoding
    members = {
        "format": np.array(FORMAT),
        "version": np.array(VERSION, np.int32),
        "size": np.array([weights.width, weights.height], np.int32),
        "layers": np.array(architecture.sizes, np.int32),
        "activation": np.array(ACTIVATION),
        "slope": np.array(architecture.slope, np.float32),
        "frequencies_x": np.array(encoding.x, np.float32),
        "frequencies_y": np.array(encoding.y, np.float32),
        "origin": np.array(encoding.origin, np.float32),
    }
    names = _parameter_names(len(architecture.sizes) - 1)
    members |= dict(zip(names, weights.arrays(), strict=True))
    if weights.icc:
        members["icc"] = np.frombuffer(weights.icc, np.uint8)
    return members


def _parameter_names(layers: int) -> list[str]:
    return [f"{kind}_{i}" for i in range(layers) for kind in ("weight", "bias")][:-1]


def facts(weights: Weights, size: int) -> dict[str, object]:
    """The facts about a file of `size` bytes."""
    pixels = weights.width * weights.height
    frequencies = (*weights.encoding.x, *weights.encoding.y)
    return {
        "format": FORMAT,
        "version": VERSION,
        "width": weights.width,
        "height": weights.height,
        "channels": weights.channels,
        "network": str(weights.architecture),
        "parameters": weights.architecture.parameters,
        "features": weights.encoding.features,
        "lowest_frequency": min(frequencies),
        "highest_frequency": max(frequencies),
        "icc_bytes": len(weights.icc or b""),
        "bytes": size,
        "bits_per_pixel": 8 * size / pixels,
    }


def load(stream: BinaryIO) -> Weights:
    """The weights in a file, which must be able to seek and begin as a zip archive does.

    Raises FormatError for anything that is not a whole and consistent archive of a version that
    this program knows.
    """
    _check_ends(stream)
    return _read(stream)


def _check_ends(stream: BinaryIO) -> None:
    """Bound what zipfile will read: the file, then the directory that its last bytes announce."""
    size = stream.seek(0, io.SEEK_END)
    if size > MAX_FILE:
        raise FormatError(f"{size:,} bytes are too many; the limit is {MAX_FILE:,}")
    stream.seek(max(0, size - _END_BYTES - 20))
    tail = stream.read()
    end = tail[-_END_BYTES:]
    if len(end) < _END_BYTES or end[:4] != _END or end[-2:] != b"\0\0":
        raise FormatError("truncated: the archive's directory is missing")
    directory = int.from_bytes(end[12:16], "little")
    if directory > MAX_DIRECTORY or tail[:4] == _ZIP64_LOCATOR:
        raise FormatError("the archive's directory is too large")
    stream.seek(0)


@dataclass(frozen=True)
class _Member:
    """An array that the archive claims to hold, and where its values begin."""

    name: str
    entry: zipfile.ZipInfo
    descr: str  # NumPy's name of a dtype, "<f4"
    shape: tuple[int, ...]
    begin: int  # bytes of the header before the values


class _Archive:
    """An npz archive whose directory and headers are known to be sound; values unread."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._known: set[str] = set()
        self.members: dict[str, _Member] = {}
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            if entry.comment:  # a damaged length can hide the entries that follow
                raise FormatError("the archive's directory is damaged")
            if name in self.members or name == entry.filename:
                shown = ascii(entry.filename[:40])
                problem = "is there twice" if name in self.members else "is no array"
                raise FormatError(f"member {shown} {problem}")
            self.members[name] = self._header(name, entry)

    def _header(self, name: str, entry: zipfile.ZipInfo) -> _Member:
        shown = ascii(name[:40])
        if entry.flag_bits & 1 or entry.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise FormatError(f"member {shown} is encrypted or compressed oddly")
        with self._archive.open(entry) as stream:
            start = stream.read(_MAX_HEADER)
        length = 10 + int.from_bytes(start[8:10], "little")
        match = _HEADER.fullmatch(start[10:length])
        if start[:8] != b"\x93NUMPY\x01\x00" or length > len(start) or match is None:
            raise FormatError(f"member {shown} has no plain array header")
        descr, fortran, extents = (group.decode("latin-1") for group in match.groups())
        if "O" in descr:
            problem = f"member {shown} holds pickled Python objects, which could run any code"
            raise FormatError(problem, hint="do not trust this file")
        if fortran == "True":
            problem = f"member {shown} is in Fortran order"
            raise FormatError(problem, hint="store it in C order")
        shape = tuple(int(n) for n in re.findall(r"\d+", extents))
        return _Member(name, entry, descr, shape, length)

    def read(self, name: str, dtype: str, shape: tuple[int, ...] | None, limit: int) -> np.ndarray:
        """The values of a member of exactly this dtype and shape (None: any vector), at most
        `limit` of them. What the header promises is compared with the directory before reading.
        """
        self._known.add(name)
        member = self.members.get(name)
        if member is None:
            raise FormatError(f"member {name!r} is missing")
        expected = member.shape if shape is None and len(member.shape) == 1 else shape
        if member.descr != dtype or expected is None or member.shape != expected:
            want = "vector" if expected is None else list(expected)
            actual = f"{member.descr!a} {list(member.shape)}"
            raise FormatError(f"member {name!r} is {actual}, not {dtype!r} {want}")
        count = math.prod(expected)
        if not 0 < count <= limit:
            raise FormatError(f"member {name!r} has {count:,} values; at most {limit:,}")
        size = member.begin + count * np.dtype(dtype).itemsize
        if member.entry.file_size != size:
            actual = f"{member.entry.file_size:,} bytes"
            raise FormatError(f"member {name!r} has {actual}, its shape needs {size:,}")
        with self._archive.open(member.entry) as stream:
            data = stream.read(size + 1)  # one more: only at the end is the checksum compared
        if len(data) != size:
            raise FormatError(f"member {name!r} is truncated")
        values = np.frombuffer(data, dtype, offset=member.begin).reshape(expected)
        if dtype == "<f4" and not np.isfinite(values).all():
            bad = values[~np.isfinite(values)].flat[0]
            raise FormatError(f"member {name!r} holds {bad}")
        return values

    def text(self, name: str, expected: str) -> None:
        """Refuse a file whose text member is anything else."""
        actual = str(self.read(name, f"<U{len(expected)}", (), 1)[()])
        if actual != expected:
            raise FormatError(f"member {name!r} is {actual!a}, not {expected!r}")

    def refuse_others(self, known: set[str]) -> None:
        """Refuse a file with members that are neither these nor were read."""
        others = sorted(self.members.keys() - self._known - known)
        if others:
            raise FormatError(f"unknown member {others[0][:40]!a}")

    def number(self, name: str, dtype: str) -> float:
        return self.read(name, dtype, (), 1).item()  # type: ignore[no-any-return]


def _read(stream: BinaryIO) -> Weights:
    try:
        with zipfile.ZipFile(stream) as zipped:
            return _weights(_Archive(zipped))
    except FormatError:
        raise
    except ImgmlpError as error:  # values that contradict each other
        raise FormatError(str(error)) from error
    except _DAMAGE as error:
        raise FormatError(f"damaged archive: {error}") from error


def _weights(archive: _Archive) -> Weights:
    archive.text("format", FORMAT)
    version = archive.number("version", "<i4")
    if version > VERSION:
        problem = f"format version {version} is newer than {VERSION}, the newest known here"
        raise FormatError(problem, hint="update imgmlp")
    if version < 1:
        raise FormatError(f"member 'version' is {version}")
    archive.text("activation", ACTIVATION)
    width, height = (int(n) for n in archive.read("size", "<i4", (2,), 2))
    sizes = tuple(int(n) for n in archive.read("layers", "<i4", None, MAX_LAYERS + 1))
    architecture = Architecture(sizes, archive.number("slope", "<f4"))
    frequencies = [
        tuple(map(float, archive.read(f"frequencies_{axis}", "<f4", None, MAX_WIDTH // 4)))
        for axis in "xy"
    ]
    encoding = Encoding(frequencies[0], frequencies[1], archive.number("origin", "<f4"))
    names = _parameter_names(len(sizes) - 1)
    archive.refuse_others({*names, "icc"})
    arrays = [
        archive.read(name, "<f4", shape, MAX_PARAMETERS).ravel()
        for name, shape in zip(names, architecture.shapes, strict=True)
    ]
    icc = None
    if "icc" in archive.members:
        icc = archive.read("icc", "|u1", None, MAX_ICC).tobytes()
    return Weights(architecture, encoding, width, height, np.concatenate(arrays), icc)
