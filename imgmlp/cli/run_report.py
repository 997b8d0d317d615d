"""Reports a run over many files: each file as it ends, the progress, and a summary."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from imgmlp.batch.find import Search
from imgmlp.batch.leftovers import forget
from imgmlp.batch.plan import Plan
from imgmlp.batch.pool import Seat
from imgmlp.batch.shortfall import ADVICE
from imgmlp.batch.store import url
from imgmlp.batch.work import Record
from imgmlp.cli.files import Entry
from imgmlp.errors import (
    DeviceError,
    ImgmlpError,
    Interrupted,
    OutputError,
    TargetError,
    UsageError,
)
from imgmlp.terminal import FilesShown, Terminal
from imgmlp.text import duration, print_data, quoted


@dataclass(eq=False)
class RunReport:
    """Prints the report of a run and counts what it has printed."""

    terminal: Terminal
    plan: Plan
    as_json: bool
    show: FilesShown = lambda *_: None
    seats: Callable[[], list[Seat]] = list
    files: int = 0  # that were reported
    done: int = 0  # tasks that have ended
    weight: int = 0  # of these tasks
    good: int = 0
    failed: int = 0
    missed: int = 0  # whose output was written but misses the target
    known: int = 0  # the same, of files that were done in an earlier run
    advice: set[str] = field(default_factory=set)  # for these files
    disk_full: bool = False
    code: int = 0  # exit code of the last file that failed or missed
    began: float = field(default_factory=time.perf_counter)

    def passed_over(self, search: Search) -> None:
        """Report what was skipped, and what needs no work."""
        note, plan = self.terminal.note, self.plan
        if plan.unchanged:
            note(f"{_files(plan.unchanged)} done before, and unchanged since")
        if self.known:  # also with -q, as it determines the exit code
            same = self.advice.pop() if len(self.advice) == 1 else ADVICE
            hint = f"the best files were written; {same}"
            problem = f"{_files(self.known)} done before missed the target"
            self.terminal.problem(TargetError(problem, hint=hint))
        if plan.skipped:
            note(f"{_files(plan.skipped)} skipped, as their output exists")
        if search.folders:
            note(f"subfolders that were skipped: {search.folders:,}; see --recursive")
        if search.links:
            note(f"links to folders that were not followed: {search.links:,}")
        if search.left_out:
            note("the output folder is inside the inputs and was skipped")
        if search.others:
            self.terminal.detail(f"{_files(search.others)} with other extensions skipped")
        if plan.journal is not None and plan.journal.damaged:
            problem = f"{plan.journal.damaged:,} lines of {plan.journal.path} cannot be read"
            note(f"{problem}; the outputs that they record count as unknown")

    def finished(self, record: Record) -> None:
        """Report an ended task and record its output."""
        if record.interrupted:
            return
        self.done += 1
        self.weight += record.task.weight
        self.disk_full = self.disk_full or record.disk_full
        if record.written:
            try:
                self.plan.remember(record)
                forget(record.state)
            except OutputError as error:  # the next run recognises it by its hidden file
                record.notes.append(f"{record.task.output} could not be recorded as done: {error}")
        else:
            record = self.plan.again(record)
        self.tell(record)
        self.draw()

    def tell(self, record: Record) -> None:
        """Report a file, whether or not there was anything to do."""
        self.files += 1
        for note in record.notes:
            self.terminal.note(note)
        if record.problem is not None:
            self._problem(record)
        elif record.line:
            self.good += 1
            self.terminal.done(record.line)
        if self.as_json:
            print_data(json.dumps(_entry(record)))

    def _problem(self, record: Record) -> None:
        self.code = record.exit_code
        if record.facts.get("unchanged"):  # it was reported when it was done
            self.known += 1
            self.advice.add(record.hint.partition("; ")[2])
            return
        self.missed += record.written
        if not record.written:
            self.failed += 1
            self.plan.failed(record.task.source)
        if self.terminal.verbosity > 1:
            for line in record.trace.splitlines():
                self.terminal.note(line)
        self.terminal.problem(ImgmlpError(record.problem or "", record.hint))

    def draw(self) -> None:
        share = self.weight / max(1, self.plan.weight)
        self.show(self.done, self.failed, share, self.seats())

    def end(self, stopped: bool, listed: bool, recursive: bool) -> int:
        """Print the summary; returns the exit code. Raises ImgmlpError if the run ended early.

        `listed` says that the files came from a list, `recursive` that subfolders were searched.
        """
        left = self.plan.count - self.done
        whole = self.plan.whole and not left
        again = self._list_failed(whole) if whole or not self.disk_full else None
        if self.plan.whole and not self.files and not left:
            if listed:  # a list of new files may well be empty
                self.terminal.note("the list names no files: there is nothing to do")
                return 0
            hint = "to use a file of any extension, name the file itself"
            if not recursive:
                hint = "--recursive also searches subfolders"
            raise UsageError("no files were found", hint=hint)
        if self.done > 1 or (self.failed and self.files > 1):
            self._sum_up()
        # Not if all files failed, or if files are left: then the same command does just that.
        if again is not None and whole and self.failed < self.files:
            note = f"to retry only the files that failed, add --files-from {quoted(again)}"
            self.terminal.note(note)
        if stopped and (left or not self.plan.whole):
            hint = "the same command continues with the others"
            what = f"{_files(left)} left to do" if left else "some files not examined yet"
            raise Interrupted(f"stopped with {what}", hint=hint)
        if left:
            raise self._ended_early(left)
        if self.files == 1:
            return self.code
        return int(self.failed + self.missed + self.known > 0)

    def _list_failed(self, whole: bool) -> Path | None:
        try:
            return self.plan.list_failed(whole)
        except (OutputError, OSError) as error:
            self.terminal.note(f"the list of failed files could not be written: {error}")
            return None

    def _sum_up(self) -> None:
        parts = [f"{_files(self.good)} done"]
        parts += [f"{self.failed:,} failed"] if self.failed else []
        parts += [f"{self.missed:,} missed the target"] if self.missed else []
        self.terminal.note(f"{', '.join(parts)}   {duration(time.perf_counter() - self.began)}")

    def _ended_early(self, left: int) -> ImgmlpError:
        if self.disk_full:
            problem = f"the disk is full: {_files(left)} left to do"
            return OutputError(problem, hint="free some space; then the same command continues")
        problem = f"no device is left to work on: {_files(left)} left to do"
        hint = "`imgmlp devices --check` tests them; then the same command continues"
        return DeviceError(problem, hint=hint)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _entry(record: Record) -> Entry:
    """The entry of a file in the JSON output."""
    task = record.task
    entry: Entry = {"file": url(task.source)}
    if task.output is not None:
        entry["output"] = url(task.output)
    entry |= {"problem": record.problem} | record.facts
    if task.output is not None:  # without the file's name, which the entry has
        name = f"{url(task.source)}: "
        entry["notes"] = [note.removeprefix(name) for note in record.notes]
    if record.problem is not None:
        entry |= {"hint": record.hint, "exit_code": record.exit_code}
    if record.device:
        entry["device"] = record.device
    return entry
