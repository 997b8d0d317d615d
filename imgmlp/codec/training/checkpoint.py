"""Checkpoints: hidden files beside an output, from which an interrupted run is resumed.

The key of a checkpoint is a digest of the picture, the options and the version of this program.
Checkpoints with another key and damaged ones are ignored. The file's name contains the beginning of
the key, so that several runs for one output can be interrupted and each of them resumed.
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

# Characters of the output's name in the name of a checkpoint, which suits every file system.
MAX_NAME_LENGTH = 50
MAX_BYTES = 2**33  # of a checkpoint; the latent codec needs less for the largest picture
_ARRAY_OVERHEAD_BYTES = 400  # of an archive per array, at most, without the array's name
SAVE_INTERVAL = 15.0  # seconds between two checkpoints of a run
STALE_SECONDS = 30 * 86_400.0  # age at which the checkpoint of another run is removed
_SUFFIX = ".checkpoint"
# Names in the archive, which are part of the file format.
_VALUES = "values"  # the host's values as JSON
_KEY = "key"  # among the values: the key of the run
_RESULT = "finished"  # the encoded file of a finished run; among the values: its figures
# Among the figures of a result: the name of the checkpoint that its training had.
TRAINING_CHECKPOINT = "state"

Array = np.ndarray[Any, Any]


@dataclass
class Snapshot:
    """The state of a run: arrays of the device, and values of the host that fit into JSON."""

    arrays: dict[str, Array] = field(repr=False)
    values: dict[str, Any]

    @staticmethod
    def of_result(data: bytes, figures: dict[str, Any]) -> Snapshot:
        """The snapshot of a finished run: its encoded file and the file's figures."""
        return Snapshot({_RESULT: np.frombuffer(data, np.uint8)}, {_RESULT: figures})

    def result(self) -> tuple[bytes, dict[str, Any]] | None:
        """The encoded file and its figures if the run is finished, else None."""
        if _RESULT not in self.values:
            return None
        return self.arrays[_RESULT].tobytes(), self.values[_RESULT]


class Resumable(ABC):
    """A training step whose state on the device can be read and restored."""

    program: Program
    count: Tensor  # uint32: steps done
    steps_at_once = 0  # steps that are enqueued together; 0 if their speed may decide

    @property
    def done(self) -> int:
        """The number of steps done, after waiting for those that are enqueued."""
        return int(self.count.item())

    def run(self, count: int, enough: Callable[[], bool] = lambda: False) -> bool:
        """Take `count` steps and wait for them; returns whether all were taken.

        Slow steps ask `enough` in between whether to stop early.
        """
        self.program.run(count)
        self.program.wait()
        return True

    @abstractmethod
    def _moving(self) -> dict[str, Tensor]:
        """All tensors that a step changes, by name."""

    def state(self) -> dict[str, Array]:
        """The arrays that a step changes, after waiting for the enqueued steps."""
        return {name: tensor.numpy() for name, tensor in self._moving().items()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Return to an earlier state, bit for bit. Raises ValueError if the shapes differ."""
        for name, tensor in self._moving().items():
            tensor.write(arrays[name])


def run_key(picture: Picture, options: str) -> str:
    """The key of a run: a digest of its picture and options."""
    sha256 = hashlib.sha256(f"{picture.pixels.shape} {options}\n".encode())
    sha256.update(np.ascontiguousarray(picture.pixels).data)  # a buffer: no copy of large ones
    sha256.update(repr(picture.metadata).encode())
    return sha256.hexdigest()


def path_beside(target: Path, key: str) -> Path:
    """The checkpoint beside an output, for the run with a key."""
    return target.parent / f"{_name_prefix(target)}{key[:8]}{_SUFFIX}"


def _name_prefix(target: Path) -> str:
    """How the names of an output's checkpoints begin; it is unique for long names, too."""
    name = target.name
    if len(name) > MAX_NAME_LENGTH:
        name = f"{name[:MAX_NAME_LENGTH]}-{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"
    return f".{name}."


def of_training(target: Path, picture: Picture, device: AnyDevice, options: str) -> Checkpoint:
    """The checkpoint of a training on a picture for an output.

    Any device of the same kind and driver may resume it, but no other version of this program.
    """
    info = device.info
    computed_by = f"{info.describe()} {info.driver} {info.version} {source_digest()}"
    key = run_key(picture, f"{options} {computed_by}")
    return Checkpoint(path_beside(target, key), key)


def of_result(target: Path, picture: Picture, options: str) -> Checkpoint:
    """The checkpoint that holds the encoded file of a picture until the output is written.

    It does not depend on the device or the version of this program.
    """
    key = run_key(picture, f"{options} finished")
    return Checkpoint(path_beside(target, key), key)


def names_in(folder: Path) -> list[str]:
    """The names of all checkpoints in a folder."""
    try:
        return [name for name in os.listdir(folder) if name.endswith(_SUFFIX)]
    except OSError:
        return []


def left_beside(target: Path, names: list[str] | None = None) -> list[Path]:
    """All checkpoints of an output; `names` are those of all checkpoints in its folder."""
    names = names_in(target.parent) if names is None else names
    pattern = re.compile(rf"{re.escape(_name_prefix(target))}[0-9a-f]{{8}}{re.escape(_SUFFIX)}")
    return sorted(target.parent / name for name in names if pattern.fullmatch(name))


def of_written_result(target: Path, digest: str, names: list[str]) -> list[Path]:
    """The checkpoints of an output that hold a result with this SHA-256 digest, and those of the
    trainings that led to it. They are of no use once the output has these bytes."""
    paths, of_result = left_beside(target, names), list[Path]()
    for path in paths:
        result = _read_result(path)
        if result is not None and hashlib.sha256(result[0]).hexdigest() == digest:
            trained_in = result[1].get(TRAINING_CHECKPOINT)
            of_result += [one for one in paths if one == path or one.name == trained_in]
    return of_result


def note_on_others(target: Path, own: Checkpoint) -> str | None:
    """A note for users if other runs have left checkpoints for an output."""
    names = [str(path) for path in left_beside(target) if path != own.path]
    if not names:
        return None
    # It does not promise that they can be resumed: an older version may have written them.
    what = "another run" if len(names) == 1 else f"{len(names)} other runs"
    advice = "delete it if it is not wanted"
    return f"{what} for {target} left a state to go on from; {advice}: {', '.join(names)}"


def remove_stale(target: Path) -> None:
    """Remove old checkpoints of an output, and results that differ from the output by now."""
    remove_old(target)
    for path in left_beside(target):
        with contextlib.suppress(OSError):  # runs with other keys ignore the file
            result = _read_result(path)
            if result is not None and result[0] != target.read_bytes():
                path.unlink(missing_ok=True)


def remove_old(target: Path, names: list[str] | None = None) -> None:
    """Remove checkpoints of an output that no run has updated for STALE_SECONDS; `names` as for
    `left_beside`."""
    for path in left_beside(target, names):
        with contextlib.suppress(OSError):  # runs with other keys ignore the file
            if path.stat().st_mtime < time.time() - STALE_SECONDS:
                path.unlink(missing_ok=True)


def _read_result(path: Path) -> tuple[bytes, dict[str, Any]] | None:
    """The encoded file in a checkpoint and its figures, or None."""
    snapshot = _read(path, required_array=_RESULT)
    return None if snapshot is None else snapshot.result()


def _read(path: Path, required_array: str | None = None) -> Snapshot | None:
    """The snapshot in a file; None if it is damaged or lacks the required array."""
    try:
        if not 0 < path.stat().st_size <= MAX_BYTES:
            return None
        with np.load(path, allow_pickle=False) as archive:
            if required_array is not None and required_array not in archive.files:
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
        """The snapshot of this run, or None."""
        snapshot = _read(self.path)
        if snapshot is None or snapshot.values.pop(_KEY, None) != self.key:
            return None
        return snapshot

    def save(self, snapshot: Snapshot, replace: bool = True) -> None:
        """Write a snapshot atomically.

        Raises OutputError, also for a snapshot of more than MAX_BYTES and, without `replace`, if
        the file exists.
        """
        values = json.dumps({**snapshot.values, _KEY: self.key})
        arrays = {**snapshot.arrays, _VALUES: np.array(values)}
        size = sum(array.nbytes + _ARRAY_OVERHEAD_BYTES for array in arrays.values())
        if size > MAX_BYTES:
            problem = f"a state of {size:,} bytes is too large to keep; the limit is {MAX_BYTES:,}"
            raise OutputError(problem, hint="use a smaller network")

        def write(stream: BinaryIO) -> None:  # array by array, to save memory
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as part:
                        np.lib.format.write_array(part, array, allow_pickle=False)

        write_atomically(self.path, write, replace)

    def add(self, values: dict[str, Any]) -> None:
        """Add values to the saved snapshot, if there is one. Raises OutputError."""
        if (saved := self.load()) is not None:
            self.save(Snapshot(saved.arrays, saved.values | values))

    def remove(self, target: Path) -> None:
        """Remove the file, and stale checkpoints of the output, which is written by now."""
        with contextlib.suppress(OSError):  # runs with other keys ignore the file
            self.path.unlink(missing_ok=True)
            remove_leftovers(self.path, relist=False)
        remove_stale(target)
