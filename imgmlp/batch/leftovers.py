"""Removes the checkpoints of outputs that the journal has recorded."""

from __future__ import annotations

import contextlib
from pathlib import Path

from imgmlp.batch.work import Record
from imgmlp.codec.training import checkpoint
from imgmlp.output_files import remove_leftovers


def forget(state: Path | None) -> None:
    """Remove a checkpoint, and the temporary files of its writing."""
    if state is not None:
        with contextlib.suppress(OSError):  # it does no harm
            state.unlink(missing_ok=True)
        remove_leftovers(state, relist=False)


def forget_recorded(output: Path, digest: str, names: list[str] | None = None) -> None:
    """Remove the checkpoints that led to a recorded output with this digest.

    `names` are those of all checkpoints in its folder, if they are known.
    """
    names = checkpoint.names_in(output.parent) if names is None else names
    for path in checkpoint.of_written_result(output, digest, names):
        forget(path)


class Leftovers:
    """Removes checkpoints of recorded outputs.

    A run that is killed between recording an output and removing its checkpoint leaves that file. A
    later run removes it as it skips the output. It also removes old checkpoints: if two runs made
    the same output at once, the second may have left one with other content.
    """

    def __init__(self) -> None:
        self._folder: Path | None = None  # whose checkpoints are listed in _names
        self._names: list[str] = []

    def remove(self, record: Record) -> None:
        """Remove the checkpoints of an unchanged output."""
        output = record.task.output
        if output is None or not record.made:
            return
        if output.parent != self._folder:
            self._folder, self._names = output.parent, checkpoint.names_in(output.parent)
        forget_recorded(output, record.made, self._names)
        checkpoint.remove_old(output, self._names)
