"""What a run over many compressed files does with each: decode it into a picture, or verify it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from imgmlp import image
from imgmlp.batch.journal import status_and_digest
from imgmlp.batch.output import EXTENSION, make_folder, put
from imgmlp.batch.work import Record, Watch
from imgmlp.codec.decoder import Size, Stored, open_stored
from imgmlp.engine import AnyDevice
from imgmlp.facts import dimensions
from imgmlp.text import duration, enumeration, size

ENDINGS = (EXTENSION, ".npz")
REPLACE = "--force replaces it"
PIXELS_PER_BYTE = 16  # of a file of half a bit per pixel


def decoded_name(name: Path) -> Path:
    """The name of the picture of a compressed file, by the extension of its name."""
    return name.with_suffix(".decoded.png" if name.suffix.lower() == EXTENSION else ".png")


def weigh(path: Path) -> int:
    """An estimate of a compressed file's pixels, by its size."""
    with contextlib.suppress(OSError):
        return path.stat().st_size * PIXELS_PER_BYTE
    return 1


def inexact(stored: Stored, size: Size | None) -> str | None:
    """A note if a picture at this size is not exactly the encoded one; else None."""
    if not stored.exact or size in (None, (stored.width, stored.height)):
        return None
    return "rendered at another size, in floating point: not the exact picture"


@dataclass(frozen=True)
class DecodeFile:
    """Decodes files into PNGs, at their own size or another: each task's source to its output."""

    scale: float | None = None
    size: Size | None = None

    def __call__(self, record: Record, device: Callable[[], AnyDevice], watch: Watch) -> None:
        """Raises ImgmlpError."""
        began, task = time.perf_counter(), record.task
        assert task.output is not None
        make_folder(task.output)
        record.source_status, record.digest = status_and_digest(task.source)
        stored = open_stored(task.source)
        size = self.size
        if self.scale is not None:
            size = image.scaled(stored.width, stored.height, self.scale)
        pixels = stored.decode(device(), size)
        if (note := inexact(stored, size)) is not None:
            record.notes.append(f"{task.source}: {note}")
        png = io.BytesIO()
        if lost := image.save_png(pixels, png, stored.metadata):
            record.notes.append(f"{task.source}: a PNG cannot hold the {enumeration(lost)}")
        put(task, png.getvalue(), REPLACE)
        record.made = hashlib.sha256(png.getvalue()).hexdigest()
        height, width, channels = pixels.shape
        record.written = True
        record.facts = {"width": width, "height": height, "channels": channels}
        seconds = duration(time.perf_counter() - began)
        record.line = f"{task.output}  {dimensions(width, height, channels)}   {seconds}"


def sound(stored: Stored, device: Callable[[], AnyDevice], name: str) -> str:
    """Verify a file, its pixels too if they are exact; returns a line that describes it.

    Raises FormatError if it is damaged, and what the device raises.
    """
    if stored.exact:
        stored.decode(device())
    facts = stored.facts
    picture = dimensions(facts["width"], facts["height"], facts["channels"])
    return f"{name}  {picture}   {size(facts['bytes'])}"


@dataclass(frozen=True)
class VerifyFile:
    """Verifies the checksums of files, and that .imlp files decode to the encoded pixels."""

    def __call__(self, record: Record, device: Callable[[], AnyDevice], watch: Watch) -> None:
        """Raises ImgmlpError for a damaged file."""
        source = record.task.source
        record.facts = {"sound": False}
        record.line = sound(open_stored(source), device, str(source))
        record.facts["sound"] = True
