"""A training as it goes: the picture so far, and beside it a page with its curves.

Both are rewritten every few seconds, each as a whole. Nothing here may harm the training: what
cannot be made or written is told, and that is the end of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from imgmlp import image as pictures
from imgmlp import output_files
from imgmlp.codec.training.run import Progress
from imgmlp.errors import ImgmlpError
from imgmlp.image import Picture
from imgmlp.metadata import Metadata
from imgmlp.report import live_page
from imgmlp.report.live_page import History, View

Array = np.ndarray[Any, Any]

EVERY = 3.0  # seconds between two of them
SPARED = 10.0  # times as long as one of them took, at least: training gets most of the time
ENDING = ".html"


@dataclass(frozen=True)
class Live:
    """What was asked to be shown of a training: nothing, or a preview of this name."""

    picture: Path | None = None
    force: bool = False  # whether files that exist are replaced

    def paths(self) -> list[Path]:
        return files_of(self.picture)

    def check(self, run: str | None = None, of: Picture | None = None) -> None:
        """Refuse what cannot be written, or must not be replaced: all but what is still as the run
        of this key has left it, which goes on.

        Raises UsageError, also for a name that cannot hold a picture like this one, or OutputError.
        """
        what = () if of is None else (of.channels, (of.width, of.height))
        own = [] if run is None else left_by(self.picture, run)
        for path in self.paths():
            if path == self.picture and not output_files.is_special(path):
                pictures.check_extension(path, *what)
            hint = "--force replaces it; or choose another name for --live"
            output_files.check_output(path, self.force or path in own, hint)

    def view(self, title: str, of: Picture, note: Callable[[str], None], run: str) -> LiveView:
        return LiveView(self.picture, title, of.metadata, note, run)


def files_of(picture: Path | None) -> list[Path]:
    """What a live view writes: the picture and, unless that is no file, the page beside it.

    Raises UsageError for a name that is no picture's, as the page's would be.
    """
    if picture is None:
        return []
    if output_files.is_special(picture):
        return [picture]
    pictures.check_extension(picture)
    return [picture, picture.with_suffix(ENDING)]


def left_by(picture: Path | None, run: str) -> list[Path]:
    """Those files of a live view that are still as the run of this key has left them.

    The page tells, as its own end has a mark of the run, and the picture's digest.
    """
    for page in files_of(picture)[1:]:
        with contextlib.suppress(OSError):  # there is none, or nobody may read it
            data = page.read_bytes() if page.is_file() else b""
            text = data[: -len(_mark("", b""))]
            if text and data == text + _mark(run, text):
                assert picture is not None
                known = text.splitlines()[-1].decode().split()
                return [page, picture] if _digest_of(picture) in known else [page]
    return []


def _mark(run: str, text: bytes) -> bytes:
    """The last line of a page: a run's key and the rest of the page have come to it."""
    return f"<!-- run {hashlib.sha256(run.encode() + text).hexdigest()} -->\n".encode()


def _digest_of(path: Path) -> str | None:
    """That of a file, if there is one that can be read."""
    with contextlib.suppress(OSError):
        return output_files.digest(path) if path.is_file() else None
    return None


class LiveView:
    """The files of one training, if there are to be any; its end is told however it ends.

    `run` is the key of the training, by which it knows them when it goes on.
    """

    def __init__(
        self,
        picture: Path | None,
        title: str,
        metadata: Metadata,
        note: Callable[[str], None],
        run: str = "",
    ) -> None:
        self._picture, self._title, self._metadata, self._note = picture, title, metadata, note
        self._run = run
        self._digest: str | None = None  # of the picture that is there
        self._history = History()
        self._latest: Progress | None = None
        self._size: tuple[int, int] | None = None  # of the picture that was written
        self._next, self._began = 0.0, time.monotonic()
        self._broken = self._ended = False

    def __enter__(self) -> LiveView:
        if self._picture is not None:  # of a run before, or somebody's who had it replaced
            self._digest = _digest_of(self._picture)
        self._write(None, None)
        self._next = time.monotonic() + EVERY
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not self._ended:
            self.end(f"Ended early: {str(error) or 'interrupted'}" if error else "Ended")

    def update(self, progress: Progress) -> None:
        """What is true now; written if it is time."""
        self._latest = progress
        self._history.add(progress)
        began = time.monotonic()
        if self._picture is None or self._broken or began < self._next:
            return
        self._write(None, progress.preview)
        now = time.monotonic()
        self._next = now + max(EVERY, SPARED * (now - began))

    def end(self, told: str, pixels: Array | None = None) -> None:
        """Say on the page that it is the last one; `pixels` are what became of the picture."""
        self._ended = True
        self._write(told, None if pixels is None else lambda: pixels)

    def after(self, show: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """What tells somebody else first."""

        def tell(progress: Progress) -> None:
            show(progress)
            self.update(progress)

        return tell

    def _write(self, ended: str | None, preview: Callable[[], Array] | None) -> None:
        if self._picture is None:
            return
        try:
            if preview is not None:
                self._save(self._picture, preview())
            self._write_page(ended)
        except (ImgmlpError, MemoryError) as error:  # not worth losing the training for
            if not self._broken:
                self._note(f"no more previews: {error}")
            self._broken = True

    def _write_page(self, ended: str | None, following: str | None = None) -> None:
        """The page, which names the picture's digest, and that of one that is about to follow."""
        assert self._picture is not None
        for page in files_of(self._picture)[1:]:
            text = live_page.render(self._view(self._picture.name, ended))
            text += f"<!-- picture {self._digest} {following} -->\n"
            data = text.encode()
            data += _mark(self._run, data)
            output_files.write_atomically(page, partial(_fill, data))

    def _save(self, path: Path, pixels: Array) -> None:
        def announce(digest: str) -> None:  # a kill may come between the page and the picture
            self._write_page(None, digest)
            self._digest = digest

        pictures.save_named(pixels, path, self._metadata, True, announce)
        self._size = pixels.shape[1], pixels.shape[0]

    def _view(self, name: str, ended: str | None) -> View:
        return View(
            title=self._title,
            picture=name,
            size=self._size,
            history=self._history,
            latest=self._latest,
            now=datetime.now().astimezone(),
            seconds=time.monotonic() - self._began,
            ended=ended,
        )


def _fill(data: bytes, stream: BinaryIO) -> None:
    stream.write(data)
