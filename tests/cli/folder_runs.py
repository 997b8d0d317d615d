"""Helpers for tests of runs over folders, which encode small pictures in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from imgmlp.batch.encode_options import EncodeOptions
from imgmlp.batch.journal import NAME
from imgmlp.batch.pool import Seat
from imgmlp.batch.work import Record, Task, Work, attempt
from imgmlp.cli import encode as encoding
from imgmlp.cli import folders
from imgmlp.cli.folders import Request
from imgmlp.engine import open_device
from imgmlp.terminal import Terminal

LOSSLESS = EncodeOptions(psnr=40)  # pictures of one colour need no training
NAMES = ("a.png", "b.png", "sub/c.png")


class InProcessPool:
    """Replaces the process pool of a run: files are processed in this process."""

    def __init__(self, work: Work, devices: list[str], note: object) -> None:
        self.work, self.device = work, devices[0]

    def seats(self) -> list[Seat]:
        return [Seat(self.device)]

    def run(
        self, tasks: Iterator[Task], stopping: Callable[[], bool], tick: Callable[[], None]
    ) -> Iterator[Record]:
        for task in tasks:
            if stopping():
                return
            yield (
                record := attempt(self.work, task, lambda: open_device(self.device), SilentWatch())
            )
            tick()
            if record.disk_full:
                return


class SilentWatch:
    """A watch that shows nothing and never stops."""

    def note(self, text: str) -> None: ...

    announce = note

    def stopping(self) -> bool:
        return False

    def saving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def training(self, steps: int) -> AbstractContextManager[Callable[[object], None]]:
        return nullcontext(lambda _: None)


def make_tree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to `folder` and write three pictures of one colour each into a folder `in`."""
    monkeypatch.setattr(folders, "Pool", InProcessPool)
    monkeypatch.chdir(folder)
    for number, name in enumerate(NAMES):
        path = Path("in") / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (8 + number, 8), (number, 20, 30)).save(path)
    return Path("in")


def encode(
    *sources: Path | str,
    options: EncodeOptions = LOSSLESS,
    force: bool = False,
    skip: bool = False,
    **request_fields: Any,
) -> int:
    fields = {"recursive": True, "device": "numpy"} | request_fields
    request = Request([Path(source) for source in sources], **fields)
    return encoding.run(
        Terminal(), request, encoding.Outputs(None, Path("out"), force, skip), options
    )


def output_names(folder: str = "out") -> set[str]:
    """The names of all files in a folder except the journal."""
    paths = (path.relative_to(folder).as_posix() for path in Path(folder).rglob("*"))
    return {name for name in paths if Path(folder, name).is_file()} - {NAME}


ALL_OUTPUTS = {"a.imlp", "b.imlp", "sub/c.imlp"}
Captured = pytest.CaptureFixture[str]


def json_entries(shown: Captured) -> dict[str, dict[str, Any]]:
    entries = (json.loads(line) for line in shown.readouterr().out.splitlines())
    return {entry["file"]: entry for entry in entries}
