"""Hidden files beside outputs, which hold what was written until the journal records it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from imgmlp.batch.work import Record
from imgmlp.codec.training import checkpoint
from imgmlp.output_files import remove_leftovers


def forget(state: Path | None) -> None:
    """Remove the hidden file of an output that is recorded, and unfinished versions of it."""
    if state is not None:
        with contextlib.suppress(OSError):  # it does no harm
            state.unlink(missing_ok=True)
        remove_leftovers(state, relist=False)


def forget_remembered(output: Path, digest: str, names: list[str] | None = None) -> None:
    """Remove hidden files that hold just an output with this digest, which is recorded.

    `names` are the hidden files in its folder, if they are known.
    """
    names = checkpoint.names_in(output.parent) if names is None else names
    for path in checkpoint.remembered(output, digest, names):
        forget(path)


class Leftovers:
    """Removes hidden files of outputs that are recorded.

    A run that is killed between recording an output and removing its hidden file leaves one. When a
    later run skips the output, it removes that file. It also removes old ones: if two runs made the
    same output at once, the second may have left one with other content.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None  # whose hidden files are listed in _names
        self._names: list[str] = []

    def remove(self, record: Record) -> None:
        """Remove those of an unchanged output."""
        output = record.task.output
        if output is None or not record.made:
            return
        if output.parent != self._folder:
            self._folder, self._names = output.parent, checkpoint.names_in(output.parent)
        forget_remembered(output, record.made, self._names)
        checkpoint.remove_old(output, self._names)
