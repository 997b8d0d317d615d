"""The live view of a training: a preview of the picture, and beside it a page with curves.

Both are rewritten atomically every few seconds. If that fails, a note is printed and the training
goes on without a live view.
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

MIN_INTERVAL = 3.0  # seconds between two updates
# The interval is at least this factor of the time that an update takes, to leave time for training.
MIN_INTERVAL_FACTOR = 10.0
PAGE_EXTENSION = ".html"


@dataclass(frozen=True)
class Live:
    """The request for a live view: the name of the preview, or None."""

    picture: Path | None = None
    force: bool = False  # whether to replace existing files

    def paths(self) -> list[Path]:
        return files_of(self.picture)

    def check(self, run: str | None = None, of: Picture | None = None) -> None:
        """Check that the files can be written.

        Existing files may be replaced with `force`, or if the run with the key `run` has written
        them and nobody has changed them since. Raises OutputError, and UsageError for an extension
        whose format cannot hold the picture `of`.
        """
        kind = () if of is None else (of.channels, (of.width, of.height))
        own = [] if run is None else left_by(self.picture, run)
        for path in self.paths():
            if path == self.picture and not output_files.is_special(path):
                pictures.check_extension(path, *kind)
            hint = "--force replaces it; or choose another name for --live"
            output_files.check_output(path, self.force or path in own, hint)

    def view(self, title: str, of: Picture, note: Callable[[str], None], run: str) -> LiveView:
        return LiveView(self.picture, title, of.metadata, note, run)


def files_of(picture: Path | None) -> list[Path]:
    """The files of a live view: the preview and, unless that is a pipe or a device, the page.

    Raises UsageError for an extension that is not a picture's.
    """
    if picture is None:
        return []
    if output_files.is_special(picture):
        return [picture]
    pictures.check_extension(picture)
    return [picture, picture.with_suffix(PAGE_EXTENSION)]


def left_by(picture: Path | None, run: str) -> list[Path]:
    """The files of a live view that the run with a key has written and nobody has changed since.

    The last line of the page has a digest of the key and the page, the line before it the digest of
    the preview.
    """
    for page in files_of(picture)[1:]:
        with contextlib.suppress(OSError):  # it does not exist or is unreadable
            data = page.read_bytes() if page.is_file() else b""
            text = data[: -len(_last_line("", b""))]
            if text and data == text + _last_line(run, text):
                assert picture is not None
                digests = text.splitlines()[-1].decode().split()
                return [page, picture] if _digest_of(picture) in digests else [page]
    return []


def _last_line(run: str, text: bytes) -> bytes:
    """The last line of a page, with a digest of the run's key and the rest of the page."""
    return f"<!-- run {hashlib.sha256(run.encode() + text).hexdigest()} -->\n".encode()


def _digest_of(path: Path) -> str | None:
    """The digest of a file, or None if it cannot be read."""
    with contextlib.suppress(OSError):
        return output_files.digest(path) if path.is_file() else None
    return None


class LiveView:
    """Writes the live view of one training, if one is wanted; as a context it also writes its end.

    `run` is the key of the training, by which a resumed run recognises its files.
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
        self._digest: str | None = None  # of the preview on disk
        self._history = History()
        self._latest: Progress | None = None
        self._size: tuple[int, int] | None = None  # width and height of the preview
        self._next, self._began = 0.0, time.monotonic()
        self._has_failed = self._ended = False

    def __enter__(self) -> LiveView:
        if self._picture is not None:  # an earlier run's, or one that --force replaces
            self._digest = _digest_of(self._picture)
        self._write(None, None)
        self._next = time.monotonic() + MIN_INTERVAL
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not self._ended:
            self.end(f"Ended early: {str(error) or 'interrupted'}" if error else "Ended")

    def update(self, progress: Progress) -> None:
        """Note the progress, and write the files if it is time."""
        self._latest = progress
        self._history.add(progress)
        began = time.monotonic()
        if self._picture is None or self._has_failed or began < self._next:
            return
        self._write(None, progress.preview)
        now = time.monotonic()
        self._next = now + max(MIN_INTERVAL, MIN_INTERVAL_FACTOR * (now - began))

    def end(self, message: str, pixels: Array | None = None) -> None:
        """Write the last page with a message, and the final `pixels` as the preview."""
        self._ended = True
        self._write(message, None if pixels is None else lambda: pixels)

    def after(self, show: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """A function that passes progress to `show`, then to this view."""

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
        except (ImgmlpError, MemoryError) as error:  # the training goes on
            if not self._has_failed:
                self._note(f"no more previews: {error}")
            self._has_failed = True

    def _write_page(self, ended: str | None, next_digest: str | None = None) -> None:
        """Write the page, with the digests of the preview and of its imminent replacement."""
        assert self._picture is not None
        for page in files_of(self._picture)[1:]:
            text = live_page.render(self._view(self._picture.name, ended))
            text += f"<!-- picture {self._digest} {next_digest} -->\n"
            data = text.encode()
            data += _last_line(self._run, data)
            output_files.write_atomically(page, partial(_fill, data))

    def _save(self, path: Path, pixels: Array) -> None:
        def announce(digest: str) -> None:  # the process may be killed between page and preview
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
