"""What a run needs to go on after it was stopped, in a file beside its target.

A checkpoint belongs to one picture, one set of choices and one version of this program, which its
key stands for. Another one's, or a damaged one, counts as none. Its name has the key's beginning,
so that several runs for one target can be stopped and each of them goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from imgmlp.engine import AnyDevice, Program, Tensor
from imgmlp.errors import OutputError
from imgmlp.image import Picture
from imgmlp.output_files import remove_leftovers, write_atomically
from imgmlp.source_digest import source_digest

LONGEST = 50  # characters of a file's name in that of its checkpoint, for any file system
MAX_BYTES = 2**33  # of the largest picture's state in the latent codec, and more
_BESIDE = 400  # bytes of an archive for each array, at most, but for its name
KEEP_SECONDS = 15.0  # between two states that a run saves
STALE_AFTER = 30 * 86_400.0  # seconds after which another run's is removed
STATE = "state"  # of a finished run's values: the name of the checkpoint that it came from
_END = ".checkpoint"
_VALUES, _KEY, _FINISHED = "values", "key", "finished"

Array = np.ndarray[Any, Any]


@dataclass
class Snapshot:
    """Where a run is: arrays of the device, and what the host decided so far."""

    arrays: dict[str, Array] = field(repr=False)
    values: dict[str, Any]

    @staticmethod
    def of_finished(data: bytes, values: dict[str, Any]) -> Snapshot:
        """Of a run that has come to a file, with what there is to tell of it."""
        return Snapshot({_FINISHED: np.frombuffer(data, np.uint8)}, {_FINISHED: values})

    def finished(self) -> tuple[bytes, dict[str, Any]] | None:
        """The file and what there is to tell of it, if the run has come to one."""
        if _FINISHED not in self.values:
            return None
        return self.arrays[_FINISHED].tobytes(), self.values[_FINISHED]


class Resumable(ABC):
    """A training step: what moves on the device, to be read and continued from."""

    program: Program
    count: Tensor  # uint32: steps done
    together = 0  # steps that are taken at once; 0 if that may depend on how fast they are

    @property
    def done(self) -> int:
        """Steps, once the enqueued ones are done."""
        return int(self.count.item())

    def run(self, count: int, enough: Callable[[], bool] = lambda: False) -> bool:
        """Take so many steps, and wait for them; whether all were taken.

        Steps that take long ask meanwhile whether it is `enough`, and can be continued.
        """
        self.program.run(count)
        self.program.wait()
        return True

    @abstractmethod
    def _moving(self) -> dict[str, Tensor]:
        """Everything that a step changes, by name."""

    def state(self) -> dict[str, Array]:
        """Everything that moves, as it is once the enqueued steps are done."""
        return {name: tensor.numpy() for name, tensor in self._moving().items()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Continue from an earlier state, bit for bit. Raises ValueError if it does not fit."""
        for name, tensor in self._moving().items():
            tensor.write(arrays[name])


def key(picture: Picture, choices: str) -> str:
    """Stands for a picture and everything that was chosen for it."""
    found = hashlib.sha256(f"{picture.pixels.shape} {choices}\n".encode())
    found.update(np.ascontiguousarray(picture.pixels).data)  # a buffer: no copy of large ones
    found.update(repr(picture.metadata).encode())
    return found.hexdigest()


def beside(target: Path, key: str) -> Path:
    """Where the checkpoint of the run with this key is that writes this file."""
    return target.parent / f"{_beginning(target)}{key[:8]}{_END}"


def _beginning(target: Path) -> str:
    """Of the names of all checkpoints of a file: of two long names they differ as well."""
    name = target.name
    if len(name) > LONGEST:
        name = f"{name[:LONGEST]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"
    return f".{name}."


def of(target: Path, picture: Picture, device: AnyDevice, choices: str) -> Checkpoint:
    """The checkpoint of the run that makes this file of a picture.

    Devices of one kind count as one: whichever of them is free goes on. Another version of this
    program would not go on as the run began.
    """
    info = device.info
    computes = f"{info.describe()} {info.driver} {info.version} {source_digest()}"
    own = key(picture, f"{choices} {computes}")
    return Checkpoint(beside(target, own), own)


def of_finished(target: Path, picture: Picture, choices: str) -> Checkpoint:
    """Where what was made of a picture is kept until it is in its file, whatever made it."""
    own = key(picture, f"{choices} finished")
    return Checkpoint(beside(target, own), own)


def names_in(folder: Path) -> list[str]:
    """The checkpoints of all runs that write files of a folder."""
    try:
        return [name for name in os.listdir(folder) if name.endswith(_END)]
    except OSError:
        return []


def left_beside(target: Path, names: list[str] | None = None) -> list[Path]:
    """The checkpoints of all runs that write this file, of these names in its folder."""
    names = names_in(target.parent) if names is None else names
    wanted = re.compile(rf"{re.escape(_beginning(target))}[0-9a-f]{{8}}{re.escape(_END)}")
    return sorted(target.parent / name for name in names if wanted.fullmatch(name))


def remembered(target: Path, digest: str, names: list[str]) -> list[Path]:
    """Of these checkpoints, those that only say that the file has the bytes with this digest, and
    what came to them. For a file of which that is known otherwise."""
    left, found = left_beside(target, names), []
    for path in left:
        snapshot = _read(path, only=_FINISHED)
        finished = None if snapshot is None else snapshot.finished()
        if finished is not None and hashlib.sha256(finished[0]).hexdigest() == digest:
            found += [one for one in left if one == path or one.name == finished[1].get(STATE)]
    return found


def others(target: Path, own: Checkpoint) -> str | None:
    """What a user should know of the other runs that write this file."""
    names = [str(path) for path in left_beside(target) if path != own.path]
    if not names:
        return None
    # Not that they can go on: an older version of this program may have left them.
    what = "another run" if len(names) == 1 else f"{len(names)} other runs"
    advice = "delete it if it is not wanted"
    return f"{what} for {target} left a state to go on from; {advice}: {', '.join(names)}"


def remove_stale(target: Path) -> None:
    """Remove what runs for a file left, once nobody has gone on with it for long, or has written
    another file in its place."""
    remove_old(target)
    for path in left_beside(target):
        with contextlib.suppress(OSError):  # what is left is ignored by any other run
            if _is_replaced(path, target):
                path.unlink(missing_ok=True)


def remove_old(target: Path, names: list[str] | None = None) -> None:
    """Remove what nobody has gone on with for long, of these names in the file's folder."""
    for path in left_beside(target, names):
        with contextlib.suppress(OSError):  # likewise
            if path.stat().st_mtime < time.time() - STALE_AFTER:
                path.unlink(missing_ok=True)


def _is_replaced(path: Path, target: Path) -> bool:
    """Whether a checkpoint only says what a file was that is another one by now."""
    snapshot = _read(path, only=_FINISHED)
    finished = None if snapshot is None else snapshot.finished()
    return finished is not None and finished[0] != target.read_bytes()


def _read(path: Path, only: str | None = None) -> Snapshot | None:
    """What a file holds, if it is a checkpoint; of others than those with an array `only`, None."""
    try:
        if not 0 < path.stat().st_size <= MAX_BYTES:
            return None
        with np.load(path, allow_pickle=False) as archive:
            if only is not None and only not in archive.files:
                return None
            arrays = {name: archive[name] for name in archive.files}
        values = json.loads(str(arrays.pop(_VALUES)[()]))
    except Exception:  # zipfile and NumPy raise anything on damaged files
        return None
    return Snapshot(arrays, values) if isinstance(values, dict) else None


class Checkpoint:
    """The checkpoint of one run."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    def load(self) -> Snapshot | None:
        """What this run left, if there is anything."""
        found = _read(self.path)
        return found if found is not None and found.values.pop(_KEY, None) == self.key else None

    def save(self, snapshot: Snapshot, replace: bool = True) -> None:
        """Replace what is there, as a whole. Raises OutputError, also for what `load` refuses.

        Without `replace`, it is also raised where somebody else has saved one.
        """
        values = json.dumps({**snapshot.values, _KEY: self.key})
        arrays = {**snapshot.arrays, _VALUES: np.array(values)}
        size = sum(array.nbytes + _BESIDE for array in arrays.values())
        if size > MAX_BYTES:
            problem = f"a state of {size:,} bytes is too large to keep; the limit is {MAX_BYTES:,}"
            raise OutputError(problem, hint="use a smaller network")

        def write(stream: BinaryIO) -> None:  # array by array, as all together may be large
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as part:
                        np.lib.format.write_array(part, array, allow_pickle=False)

        write_atomically(self.path, write, replace)

    def add(self, values: dict[str, Any]) -> None:
        """Put values into what is saved, if anything is. Raises OutputError."""
        if (saved := self.load()) is not None:
            self.save(Snapshot(saved.arrays, saved.values | values))

    def remove(self, target: Path) -> None:
        """Once the file that it was for is there; also others' that nobody has gone on with."""
        with contextlib.suppress(OSError):  # what is left is ignored by any other run
            self.path.unlink(missing_ok=True)
            remove_leftovers(self.path, relist=False)
        remove_stale(target)
