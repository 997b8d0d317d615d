"""Opens and decodes files. Only this module knows which kinds of files exist.

Inspecting an .imlp file needs neither NumPy nor the engine and takes hardly longer than starting
Python. Modules that need them are imported where they are used.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, BinaryIO

from imgmlp.codec.bitstream import container, metadata_sections
from imgmlp.codec.bitstream.container import Container
from imgmlp.errors import DAMAGED, FormatError, PictureError, UsageError
from imgmlp.metadata import Metadata
from imgmlp.text import quoted

if TYPE_CHECKING:
    import numpy as np

    from imgmlp.engine import AnyDevice

ZIP = b"PK\x03\x04"  # the first bytes of an .npz archive

Size = tuple[int, int]  # width, height


@dataclass(frozen=True)
class Stored:
    """A picture in a file with valid checksums."""

    width: int
    height: int
    channels: int
    metadata: Metadata = field(repr=False)
    facts: dict[str, Any] = field(repr=False)  # properties of the file for `imgmlp info`
    exact: bool  # whether decoding at its own size is bit-exact, verified by a digest
    _decode: Callable[[AnyDevice, Size | None], np.ndarray[Any, Any]] = field(repr=False)

    def decode(self, device: AnyDevice, size: Size | None = None) -> np.ndarray[Any, Any]:
        """uint8 [height, width, channels], at another (width, height) `size` if one is given.

        Raises FormatError if the file is damaged or does not match its digest.
        """
        return self._decode(device, size)


def open_stored(file: str | PathLike[str] | bytes, name: str = "") -> Stored:
    """The picture in an .imlp or .npz file, given by its path or as its bytes.

    `name` names bytes in error messages. Raises UsageError if the file cannot be read, FormatError
    if it is of neither kind or damaged.
    """
    if isinstance(file, bytes) and not name:
        return _read(io.BytesIO(file))
    name = name or str(file)
    with io.BytesIO(file) if isinstance(file, bytes) else _opened(Path(file)) as stream:
        start = stream.read(len(ZIP))
        if start != ZIP and not container.SIGNATURE.startswith(start):
            hint = "give a file that imgmlp wrote"
            raise FormatError(f"{name} is neither an .imlp nor an .npz file", hint=hint)
        with _named(name):
            stored = _read(stream)

    def decode(device: AnyDevice, size: Size | None) -> np.ndarray[Any, Any]:
        with _named(name):
            return stored.decode(device, size)

    return replace(stored, _decode=decode)


def check_not_compressed(path: Path, name: str, start: bytes) -> None:
    """Raise PictureError if a file with this name and beginning was written by imgmlp."""
    archive = start.startswith(ZIP) and path.suffix.lower() == ".npz"
    if archive or start.startswith(container.SIGNATURE):
        hint = f"`imgmlp decode {quoted(path)}` gives the picture"
        raise PictureError(f"{name} is compressed already", hint=hint)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Prefix the messages of FormatErrors with the name of the file."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"{name}: {error}", hint=error.hint) from error.__cause__


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading. Raises UsageError, also for a pipe, which is not seekable."""
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is not a file", hint="give a file")
        with path.open("rb") as stream:
            yield stream
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", hint="check the name") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="check the file") from error


def _read(stream: BinaryIO) -> Stored:
    stream.seek(0)
    archive = stream.read(len(ZIP)) == ZIP
    stream.seek(0)
    return _archive(stream) if archive else _compact(container.read(stream))


def _archive(stream: BinaryIO) -> Stored:
    from imgmlp.codec.float_mlp import npz

    archive = npz.load(stream)
    facts = npz.facts(archive, stream.seek(0, io.SEEK_END))

    def decode(device: AnyDevice, size: Size | None) -> np.ndarray[Any, Any]:
        from imgmlp.codec.float_mlp import pipeline

        return pipeline.decode(archive, device, size)

    size_and_channels = archive.width, archive.height, archive.channels
    return Stored(*size_and_channels, Metadata(archive.icc), facts, False, decode)


def _compact(file: Container) -> Stored:
    header, metadata = file.header, metadata_sections.read(file)
    facts = container.facts(file) | metadata_sections.facts(metadata)
    size_and_channels = header.width, header.height, header.channels
    return Stored(*size_and_channels, metadata, facts, True, partial(decode, file))


def decode(file: Container, device: AnyDevice, size: Size | None = None) -> np.ndarray[Any, Any]:
    """Decode the picture: uint8 [height, width, channels], bit-exact on every device.

    At another (width, height) `size` than its own, samples may differ by one level between
    devices. Raises FormatError if the sections are invalid or the picture does not match the
    digest.
    """
    header = file.header
    codec: ModuleType
    match header.codec:
        case "mlp":
            from imgmlp.codec.mlp import decode as codec
        case "latent":
            from imgmlp.codec.latent import decode as codec
    if size not in (None, (header.width, header.height)):
        rendered: np.ndarray[Any, Any] = codec.decode_at(file, size, device)
        return rendered
    return checked(file, codec.decode(file, device))


def checked(file: Container, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The decoded pixels at the file's own size. Raises FormatError if the digest differs."""
    if container.digest(pixels) != file.header.digest:
        problem = "it decodes to another picture than the one that was encoded"
        raise FormatError(problem, hint=f"try --device numpy; else {DAMAGED}")
    return pixels
