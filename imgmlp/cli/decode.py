"""`imgmlp decode`: writes the pictures that files hold, at their own size or another."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from imgmlp import facts, output_files
from imgmlp import image as pictures
from imgmlp.batch import store, stored
from imgmlp.batch.find import Search
from imgmlp.batch.plan import Rules
from imgmlp.batch.stored import DecodeFile
from imgmlp.cli import devices, files, folders, parsing
from imgmlp.cli.files import STANDARD, Entry, Job
from imgmlp.cli.folders import Request
from imgmlp.codec.decoder import Stored
from imgmlp.ending import keep_open
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import UsageError
from imgmlp.metadata import Metadata
from imgmlp.terminal import Terminal
from imgmlp.text import duration, enumeration, quoted

FORCE_HINT = "--force replaces it; -o and --out choose other names"


@dataclass(frozen=True)
class Outputs:
    """Where pictures are written, and their size."""

    file: Path | None = None
    folder: Path | None = None
    scale: float | None = None
    size: str | None = None
    force: bool = False

    def check_choices(self) -> None:
        """Raise UsageError for options that contradict each other."""
        files.check_single_output(self.file, self.folder)
        parsing.check_scale(self.scale)
        if self.scale is not None and parsing.parse_size(self.size) is not None:
            raise UsageError("--scale and --size are both given", hint="choose one of them")

    def check(self, sources: list[Path], as_json: bool) -> None:
        """Raise UsageError if the files cannot be decoded with these options."""
        files.check_names(sources, self.file)
        if (self.file or sources[0]) == STANDARD:
            source = "-" if sources[0] == STANDARD else quoted(sources[0])
            files.check_not_terminal("PNG data", f"imgmlp decode {source} -o - > picture.png")
            files.check_json(as_json, "picture")

    def of(self, source: Path, stored: Stored) -> Path:
        """The picture to write. Raises UsageError or OutputError if it cannot be written."""
        ending = ".decoded.png" if stored.exact else ".png"
        target = files.output_of(source, self.file, ending)
        if target != STANDARD:
            dimensions = self.dimensions(stored) or (stored.width, stored.height)
            output_files.check_free(target, self.force, FORCE_HINT)
            if not output_files.is_special(target):
                pictures.check_extension(target, stored.channels, dimensions)
            output_files.check_output(target, self.force, FORCE_HINT)
        return target

    def dimensions(self, stored: Stored) -> tuple[int, int] | None:
        """The requested (width, height); None for those of the file. Raises UsageError."""
        if self.scale is not None:
            return pictures.scaled(stored.width, stored.height, self.scale)
        return parsing.parse_size(self.size)


def run(terminal: Terminal, request: Request, outputs: Outputs) -> int:
    """Write the pictures that files hold; to stdout if an output is `-`. Returns the exit code."""
    outputs.check_choices()
    if outputs.folder is not None or request.is_batch:
        return _decode_into_folder(terminal, request, outputs)
    sources = request.sources
    outputs.check(sources, request.as_json)
    device = cache(lambda: _open_device(terminal, request.single_device))
    claimed: list[Path] = []
    tasks = [_Task(terminal, source, outputs, device, claimed) for source in sources]
    jobs = [Job(task.entry, task.decode, task.check) for task in tasks]
    return files.run_jobs(terminal, jobs, request.as_json)


def _decode_into_folder(terminal: Terminal, request: Request, outputs: Outputs) -> int:
    """Decode files to PNGs in a folder."""
    folders.check_out(request, outputs.folder)
    if outputs.folder is not None and store.is_stored(outputs.folder):
        hint = "give a local folder: only encode writes to object stores"
        raise UsageError(f"{store.url(outputs.folder)} is in an object store", hint=hint)
    work = DecodeFile(outputs.scale, parsing.parse_size(outputs.size))
    rules = Rules(
        outputs.folder,
        naming=stored.decoded_name,
        settings=repr(work),
        force=outputs.force,
        weigh=stored.weigh,
    )
    search = Search(stored.ENDINGS, request.recursive)
    return folders.run(terminal, request, search, rules, work)


def _open_device(terminal: Terminal, spec: str) -> AnyDevice:
    device = keep_open(open_device(spec))
    terminal.detail(devices.details(device))
    return device


@dataclass(eq=False)
class _Task:
    """The decoding of one file."""

    terminal: Terminal
    source: Path
    outputs: Outputs
    device: Callable[[], AnyDevice]
    claimed: list[Path]  # outputs of all files of this command
    stream_content: Stored | None = None  # of a stream, which can be read only once

    def __post_init__(self) -> None:
        self.entry: Entry = {"file": str(self.source), "output": None, "problem": None}
        self.entry["notes"] = self.notes = list[str]()

    def check(self) -> None:
        """Raise ImgmlpError, before any work begins, for what cannot be done."""
        stored = files.open_file(self.source)
        self.stream_content = stored if files.is_stream(self.source) else None
        self.target = self.outputs.of(self.source, stored)
        self.entry["output"] = str(self.target)
        self.dimensions = self.outputs.dimensions(stored)
        others = [self.source, *self.claimed]
        if self.target != STANDARD:
            hint = "decode it separately, with -o and another name"
            output_files.check_distinct([self.target], others, hint)
            self.claimed.append(self.target)

    def decode(self) -> None:
        """Write the picture. Raises ImgmlpError."""
        began, target = time.perf_counter(), self.target
        file = self.stream_content or files.open_file(self.source)
        pixels = file.decode(self.device(), self.dimensions)
        if (note := stored.inexact(file, self.dimensions)) is not None:
            self._note(note)
        self._save(pixels, file.metadata)
        height, width, channels = pixels.shape
        self.entry |= {"width": width, "height": height, "channels": channels}
        if target != STANDARD:
            size = facts.dimensions(width, height, channels)
            took = duration(time.perf_counter() - began)
            self.terminal.done(f"{target}  {size}   {took}")

    def _save(self, pixels: Any, metadata: Metadata) -> None:
        if self.target == STANDARD:
            png = io.BytesIO()
            lost = pictures.save_png(pixels, png, metadata)
            files.write_standard(png.getvalue())
        else:
            lost = pictures.save_named(pixels, self.target, metadata, self.outputs.force)
        if lost:
            name = "a PNG" if self.target == STANDARD else self.target
            self._note(f"{name} cannot hold the {enumeration(lost)}")

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.terminal.note(text)
