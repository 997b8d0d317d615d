"""What a run needs to go on after it was stopped, in a file beside its target.

A checkpoint belongs to one picture, one set of choices and one version of this program, which its
key stands for. Another one's, or a damaged one, counts as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from imgmlp.engine import Tensor
from imgmlp.errors import OutputError
from imgmlp.files import sweep, write_atomically
from imgmlp.image import Picture

MAX_BYTES = 2**30
KEEP_SECONDS = 15.0  # between two states that a run saves
_FACTS = "facts"

Array = np.ndarray[Any, Any]


@dataclass
class State:
    """Where a run is: arrays of the device, and what the host decided so far."""

    arrays: dict[str, Array] = field(repr=False)
    facts: dict[str, Any]


class Resumable(ABC):
    """What moves on the device, to be read and continued from."""

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


@cache
def program() -> str:
    """A digest of imgmlp's own source: another one would not go on as the run began."""
    found, package = hashlib.sha256(), Path(__file__).parent.parent
    for path in sorted(package.rglob("*.py")) + sorted(package.rglob("*.cl")):
        found.update(path.read_bytes())
    return found.hexdigest()


def key(picture: Picture, choices: str) -> str:
    """Stands for a picture, everything that was chosen for it, and the program that computes."""
    found = hashlib.sha256(f"{program()} {picture.pixels.shape} {choices}\n".encode())
    found.update(picture.pixels.tobytes())
    found.update(picture.icc or b"")
    return found.hexdigest()


def beside(target: Path) -> Path:
    """Where the checkpoint of a run that writes this file is."""
    return target.parent / f".{target.name[:80]}.checkpoint"


class Checkpoint:
    """The checkpoint of one run."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self._key = path, key

    def load(self) -> State | None:
        """What this run left, if there is anything."""
        try:
            if not 0 < self.path.stat().st_size <= MAX_BYTES:
                return None
            with np.load(self.path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            facts = json.loads(str(arrays.pop(_FACTS)[()]))
        except Exception:  # zipfile and NumPy raise anything on damaged files
            return None
        if not isinstance(facts, dict) or facts.pop("key", None) != self._key:
            return None
        return State(arrays, facts)

    def save(self, state: State) -> None:
        """Replace what is there, as a whole. Raises OutputError."""
        facts = json.dumps({**state.facts, "key": self._key})
        content = io.BytesIO()
        arrays = {**state.arrays, _FACTS: np.array(facts)}
        with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                data = io.BytesIO()
                np.lib.format.write_array(data, array, allow_pickle=False)
                archive.writestr(f"{name}.npy", data.getvalue())
        write_atomically(self.path, lambda stream: stream.write(content.getvalue()))

    def keeping(self, note: Callable[[str], None]) -> Callable[[State], None]:
        """Saves states until one cannot be written, which is noted: no reason to lose the run."""
        broken = False

        def keep(state: State) -> None:
            nonlocal broken
            if broken:
                return
            try:
                self.save(state)
            except OutputError as error:
                broken = True
                note(f"no checkpoints: {error}")

        return keep

    def remove(self) -> None:
        """Once the file that it was for is there."""
        with contextlib.suppress(OSError):  # what is left is ignored by any other run
            self.path.unlink(missing_ok=True)
            sweep(self.path)
