"""Runs over folders of small pictures that this process encodes, for tests of them."""

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

LOSSLESS = EncodeOptions(psnr=40)  # of one colour, which takes no training
NAMES = ("a.png", "b.png", "sub/c.png")


class Here:
    """Stands for the processes of a run, and does their files in this one."""

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
            yield (record := attempt(self.work, task, lambda: open_device(self.device), Quiet()))
            tick()
            if record.disk_full:
                return


class Quiet:
    """Stands for the watch of a process."""

    def note(self, text: str) -> None: ...

    announce = note

    def stopping(self) -> bool:
        return False

    def saving(self) -> AbstractContextManager[None]:
        return nullcontext()

    def training(self, steps: int) -> AbstractContextManager[Callable[[object], None]]:
        return nullcontext(lambda _: None)


def make_tree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pictures of one colour each, in a folder of the current one, which is `folder`."""
    monkeypatch.setattr(folders, "Pool", Here)
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
    **more: Any,
) -> int:
    given = {"recursive": True, "device": "numpy"} | more
    request = Request([Path(source) for source in sources], **given)
    return encoding.run(
        Terminal(), request, encoding.Outputs(None, Path("out"), force, skip), options
    )


def made(folder: str = "out") -> set[str]:
    """The files of a folder, but the journal."""
    found = (path.relative_to(folder).as_posix() for path in Path(folder).rglob("*"))
    return {name for name in found if Path(folder, name).is_file()} - {NAME}


ALL = {"a.imlp", "b.imlp", "sub/c.imlp"}
Shown = pytest.CaptureFixture[str]


def lines(shown: Shown) -> dict[str, dict[str, Any]]:
    found = (json.loads(line) for line in shown.readouterr().out.splitlines())
    return {entry["file"]: entry for entry in found}
