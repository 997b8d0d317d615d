"""Hidden files beside outputs: what was written is kept there until it is remembered otherwise."""

from __future__ import annotations

import contextlib
from pathlib import Path

from imgmlp.batch.work import Record
from imgmlp.codec.training import checkpoint
from imgmlp.output_files import remove_leftovers


def forget(state: Path | None) -> None:
    """Remove a hidden file, or what is half written of it, whose output is remembered otherwise."""
    if state is not None:
        with contextlib.suppress(OSError):  # any other run passes over it
            state.unlink(missing_ok=True)
        remove_leftovers(state, relist=False)


def forget_remembered(output: Path, digest: str, names: list[str] | None = None) -> None:
    """Remove hidden files that hold no more than an output with this digest, which is remembered;
    of those with these names in its folder."""
    names = checkpoint.names_in(output.parent) if names is None else names
    for path in checkpoint.remembered(output, digest, names):
        forget(path)


class Leftovers:
    """Hidden files of outputs that are remembered: a run that was killed just between remembering
    and removing leaves one, and whoever passes over the output removes it. So it does what is old:
    of two that made one output at once, the second may have left what is in no file."""

    def __init__(self) -> None:
        self._folder: Path | None = None  # that was looked through
        self._names: list[str] = []

    def remove(self, record: Record) -> None:
        """Those of an output that is as it was."""
        output = record.task.output
        if output is None or not record.made:
            return
        if output.parent != self._folder:
            self._folder, self._names = output.parent, checkpoint.names_in(output.parent)
        forget_remembered(output, record.made, self._names)
        checkpoint.remove_old(output, self._names)
