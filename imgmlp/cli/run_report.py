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
from imgmlp.terminal import ShowFiles, Terminal
from imgmlp.text import duration, print_data, quoted


@dataclass(eq=False)
class RunReport:
    """Prints the report of a run and counts what it has printed."""

    terminal: Terminal
    plan: Plan
    as_json: bool
    show_progress: ShowFiles = lambda *_: None
    seats: Callable[[], list[Seat]] = list
    processed: int = 0  # tasks that have ended
    processed_weight: int = 0  # the sum of their weights
    # Files that were reported, whether or not they were processed by this run:
    reported: int = 0
    succeeded: int = 0
    failed: int = 0
    missed: int = 0  # the output was written but misses its target
    missed_before: int = 0  # an earlier run wrote the output, which misses its target
    advice_for_missed_before: set[str] = field(default_factory=set)
    disk_full: bool = False
    exit_code: int = 0  # of the last file that failed or missed its target
    began: float = field(default_factory=time.perf_counter)

    def note_skipped(self, search: Search) -> None:
        """Report what was skipped, and what needs no work."""
        note, plan = self.terminal.note, self.plan
        if plan.unchanged:
            note(f"{_files(plan.unchanged)} done before, and unchanged since")
        if self.missed_before:  # also with -q, as it determines the exit code
            advice = self.advice_for_missed_before
            hint = f"the best files were written; {advice.pop() if len(advice) == 1 else ADVICE}"
            problem = f"{_files(self.missed_before)} done before missed the target"
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

    def add_processed(self, record: Record) -> None:
        """Report a file that was processed and record its output in the journal."""
        if record.interrupted:
            return
        self.processed += 1
        self.processed_weight += record.task.weight
        self.disk_full = self.disk_full or record.disk_full
        if record.written:
            try:
                self.plan.remember(record)
                forget(record.state)
            except OutputError as error:  # the next run recognises it by its hidden file
                record.notes.append(f"{record.task.output} could not be recorded as done: {error}")
        else:
            record = self.plan.recheck_output(record)
        self.add(record)
        self.update_progress()

    def add(self, record: Record) -> None:
        """Report a file, whether or not there was anything to do."""
        self.reported += 1
        for note in record.notes:
            self.terminal.note(note)
        if record.problem is not None:
            self._add_problem(record)
        elif record.line:
            self.succeeded += 1
            self.terminal.done(record.line)
        if self.as_json:
            print_data(json.dumps(_entry(record)))

    def _add_problem(self, record: Record) -> None:
        self.exit_code = record.exit_code
        if record.facts.get("unchanged"):  # it was reported when it was done
            self.missed_before += 1
            self.advice_for_missed_before.add(record.hint.partition("; ")[2])
            return
        self.missed += record.written
        if not record.written:
            self.failed += 1
            self.plan.failed(record.task.source)
        if self.terminal.verbosity > 1:
            for line in record.trace.splitlines():
                self.terminal.note(line)
        self.terminal.problem(ImgmlpError(record.problem or "", record.hint))

    def update_progress(self) -> None:
        fraction = self.processed_weight / max(1, self.plan.weight)
        self.show_progress(self.processed, self.failed, fraction, self.seats())

    def finish(self, stopped: bool, has_list: bool, recursive: bool) -> int:
        """Print the summary; returns the exit code. Raises ImgmlpError if the run ended early.

        `has_list` says that the files came from a list, `recursive` that subfolders were searched.
        """
        left = self.plan.count - self.processed
        is_complete = self.plan.whole and not left
        failed_list = self._list_failed(is_complete) if is_complete or not self.disk_full else None
        if is_complete and not self.reported:
            return self._report_no_files(has_list, recursive)
        if self.processed > 1 or (self.failed and self.reported > 1):
            self._summarise()
        # If all files failed, or some are left to do, the same command does just these.
        if failed_list is not None and is_complete and self.failed < self.reported:
            note = f"to retry only the files that failed, add --files-from {quoted(failed_list)}"
            self.terminal.note(note)
        if stopped and (left or not self.plan.whole):
            what = f"{_files(left)} left to do" if left else "some files not examined yet"
            hint = "the same command continues with the others"
            raise Interrupted(f"stopped with {what}", hint=hint)
        if left:
            raise self._ended_early(left)
        if self.reported == 1:
            return self.exit_code
        return int(self.failed + self.missed + self.missed_before > 0)

    def _report_no_files(self, has_list: bool, recursive: bool) -> int:
        """Report that there is nothing to do. Raises UsageError unless an empty list says so."""
        if has_list:  # a list of new files may well be empty
            self.terminal.note("the list names no files: there is nothing to do")
            return 0
        hint = "to use a file of any extension, name the file itself"
        if not recursive:
            hint = "--recursive also searches subfolders"
        raise UsageError("no files were found", hint=hint)

    def _list_failed(self, is_complete: bool) -> Path | None:
        """Write the list of failed files; returns its path, or None if there is none."""
        try:
            return self.plan.list_failed(is_complete)
        except (OutputError, OSError) as error:
            self.terminal.note(f"the list of failed files could not be written: {error}")
            return None

    def _summarise(self) -> None:
        parts = [f"{_files(self.succeeded)} done"]
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
