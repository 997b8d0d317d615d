"""Plans a run over many files: which of them have to be processed, and which are up to date.

All data about single files is in a temporary database on disk, so that memory does not grow with
their number. No device is opened, and no file is read whose size and mtime are unchanged.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Literal

from imgmlp.batch.find import Found, names_in
from imgmlp.batch.journal import Done, Journal
from imgmlp.batch.leftovers import forget_recorded
from imgmlp.batch.output import check
from imgmlp.batch.shortfall import shortfall
from imgmlp.batch.store import is_stored, url
from imgmlp.batch.work import Record, Task
from imgmlp.errors import OutputError, UsageError
from imgmlp.output_files import digest, is_special, write_atomically

TABLES = """
CREATE TABLE done (output BLOB PRIMARY KEY, line TEXT) WITHOUT ROWID;
CREATE TABLE found (output BLOB PRIMARY KEY, path BLOB, bytes INTEGER, mtime INTEGER) WITHOUT ROWID;
CREATE TABLE tasks (weight INTEGER, output BLOB, path BLOB, known TEXT);
CREATE TABLE failed (path BLOB);
CREATE TABLE before (path BLOB PRIMARY KEY) WITHOUT ROWID;
"""
FAILED = "imgmlp-failed.txt"  # the list of failed files, in the folder of the outputs
SEPARATE_HINT = "rename one of them, or give it separately with another --out"

Kind = Literal["do", "unchanged", "skipped"]


@dataclass(frozen=True)
class Rules:
    """Where outputs are written, with which settings, and what happens to existing ones."""

    folder: Path | None  # None if nothing is written
    naming: Callable[[Path], Path]  # from a file's name in its tree to that of its output
    settings: str = ""  # digest
    force: bool = False
    skip: bool = False
    journal: bool = True  # whether the folder has a journal
    weigh: Callable[[Path], int] = lambda _: 1


@dataclass(frozen=True)
class Decision:
    """What to do about a file, by the state of its output."""

    kind: Kind
    # The updated entry of the journal; for a file to be processed, the entry of the output that may
    # be replaced if it is unchanged.
    known: Done | None = None


def decide(file: Found, output: Path, known: Done | None, rules: Rules) -> Decision:
    """Whether a file is up to date. Raises OutputError, or OSError if it cannot be read."""
    try:
        there = output.stat()
    except FileNotFoundError:
        return Decision("do")
    except OSError as error:
        problem = f"cannot read {output}: {error.strerror}"
        raise OutputError(problem, hint="choose another place or name for it") from error
    unknown = Decision("skipped" if rules.skip else "do")
    if known is None:
        return unknown
    kept = there.st_size, there.st_mtime_ns
    if kept != (known.output_bytes, known.output_mtime) and (
        kept[0] != known.output_bytes or digest(output) != known.output_digest
    ):
        return unknown  # it was changed elsewhere
    source = os.path.abspath(file.path)
    looks = source, file.bytes, file.mtime
    same = looks == (known.source, known.bytes, known.mtime)
    same = same or (file.bytes == known.bytes and digest(file.path) == known.picture)
    now = replace(
        known, source=source, bytes=looks[1], mtime=looks[2], output_mtime=there.st_mtime_ns
    )
    if same and known.settings == rules.settings:
        return Decision("unchanged", now)
    if rules.skip or (source != known.source and not same):
        return unknown  # it was made of another picture
    return Decision("do", known=known)


@contextlib.contextmanager
def _database_errors() -> Iterator[None]:
    """Translate errors of the temporary database, such as a full disk, to OutputError."""
    try:
        yield
    except sqlite3.OperationalError as error:
        problem = f"cannot keep a list of the files in a temporary file: {error}"
        hint = "free some space there, or name another folder in SQLITE_TMPDIR"
        raise OutputError(problem, hint=hint) from error


class Plan:
    """The files of a run.

    Tasks come by decreasing size, but after all others those that failed in the previous run, as it
    may have ended early because of them.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.count = self.weight = 0  # of the tasks
        self.unchanged = self.skipped = 0
        self.whole = False  # whether `make` has finished
        kept = rules.folder if rules.journal else None
        self.journal = None if kept is None else Journal(kept)
        self._data = sqlite3.connect("")  # an unnamed temporary file
        weakref.finalize(self, self._data.close)
        self._data.executescript(TABLES)
        self._data.create_function("absolute", 1, os.path.abspath)
        self._data.create_function("there", 1, _may_be_there)

    def make(
        self, files: Iterable[Found], stopping: Callable[[], bool] = lambda: False
    ) -> Iterator[Record]:
        """Decide about all files; yields the records of those that need no processing.

        Ends early if it is asked to stop. Raises OutputError if the journal cannot be read or the
        disk is full.
        """
        with _database_errors():
            yield from self._make(files, stopping)

    def _make(self, files: Iterable[Found], stopping: Callable[[], bool]) -> Iterator[Record]:
        for done in () if self.journal is None else self.journal.read():
            self._learn(done)
        self._read_failed()
        for file in files:
            if stopping():
                return
            refused = _refused(file) if file.error is not None else self._add(file)
            if refused is not None:
                yield refused
        for output, path, count, mtime in self._data.execute("SELECT * FROM found"):
            if stopping():
                return
            name = Path(os.fsdecode(output))
            file = Found(Path(os.fsdecode(path)), name, count, mtime)
            if (record := self._decided(file)) is not None:
                yield record
        counted = "SELECT count(*), coalesce(sum(weight), 0) FROM tasks"
        self.count, self.weight = self._data.execute(counted).fetchone()
        self.whole = True

    def tasks(self) -> Iterator[Task]:
        """The tasks, in their order. Raises OutputError."""
        ordered = """
            SELECT weight, output, path, known FROM tasks
            ORDER BY path IN (SELECT path FROM before), weight DESC, path
        """
        with _database_errors():
            for weight, name, path, known in self._data.execute(ordered):
                output = self._output(Path(os.fsdecode(name)))
                yield Task(Path(os.fsdecode(path)), output, self.rules.force, weight, known)

    def _output(self, name: Path) -> Path | None:
        return None if self.rules.folder is None else self.rules.folder / name

    def _add(self, file: Found) -> Record | None:
        """Add a file. If two have the same output, returns a record of the one that is refused."""
        if self.rules.folder is None:
            path = os.fsencode(file.path)
            row = path, path, file.bytes, file.mtime
            self._data.execute("INSERT OR IGNORE INTO found VALUES (?, ?, ?, ?)", row)
            return None
        output = os.fsencode(self.rules.naming(file.name))
        row = output, os.fsencode(file.path), file.bytes, file.mtime
        before = self._data.execute("SELECT path FROM found WHERE output = ?", row[:1]).fetchone()
        if before is not None:
            if _absolute(before[0]) == _absolute(row[1]):
                return None  # the file was given twice
            known = self._known(output)
            paths = sorted(
                [before[0], row[1]]
            )  # an order that does not depend on which is found first
            paths.sort(key=lambda path: known is None or _absolute(path) != known.source)
            name = url(self.rules.folder / os.fsdecode(output))
            taken, other = (Path(os.fsdecode(path)) for path in paths)
            over = f"would overwrite another file of this run: {url(taken)}"
            problem = f"{name}, the output of {url(other)}, {over}"
            refused = _refused(
                replace(file, path=other, error=OutputError(problem, hint=SEPARATE_HINT))
            )
            if paths[0] == before[0]:
                return refused
        self._data.execute("INSERT OR REPLACE INTO found VALUES (?, ?, ?, ?)", row)
        return refused if before is not None else None

    def _learn(self, done: Done) -> None:
        row = os.fsencode(done.output), json.dumps(vars(done))
        self._data.execute("INSERT OR REPLACE INTO done VALUES (?, ?)", row)

    def _known(self, output: bytes) -> Done | None:
        query = "SELECT line FROM done WHERE output = ?"
        row = self._data.execute(query, (output,)).fetchone()
        return None if row is None else Done(**json.loads(row[0]))

    def _decided(self, file: Found) -> Record | None:
        """Decide about a file: store a task, or return its record if there is nothing to do."""
        output, known = self._output(file.name), self._known(os.fsencode(file.name))
        try:
            decision = Decision("do")
            if output is not None and not is_stored(output):  # for stores, the worker checks
                decision = decide(file, output, known, self.rules)
                if decision.kind == "do" and output.exists():
                    _check_other(output, file.path)
        except OutputError as error:
            return _refused(replace(file, error=error))
        except OSError as error:
            problem = f"cannot read {error.filename or file.path}: {error.strerror}"
            return _refused(replace(file, error=UsageError(problem, hint="check the file")))
        if decision.kind == "do":
            replaced = decision.known.output_digest if decision.known is not None else ""
            row = os.fsencode(file.name), os.fsencode(file.path), replaced
            weight = max(1, self.rules.weigh(file.path))
            self._data.execute("INSERT INTO tasks VALUES (?, ?, ?, ?)", (weight, *row))
            return None
        record = Record(Task(file.path, output), written=True)
        if decision.kind == "skipped":
            self.skipped += 1
            record.facts["skipped"] = True
            return record
        self.unchanged += 1
        assert decision.known is not None
        assert self.journal is not None
        record.facts = {"unchanged": True} | decision.known.facts
        record.made = decision.known.output_digest
        if (short := shortfall(str(output), decision.known.facts)) is not None:
            record.fail(short)
        if decision.known != known:
            with contextlib.suppress(OutputError):  # then the next run compares it again
                self.journal.add(decision.known)
        return record

    def recheck_output(self, record: Record) -> Record:
        """The record of a task whose output could not be written.

        If another run has made just that output since this one began, the task counts as done.
        Otherwise the record is returned as it is.
        """
        task, folder = record.task, self.rules.folder
        if self.journal is None or folder is None or task.output is None:
            return record
        if record.exit_code != OutputError.exit_code:
            return record
        try:
            for done in self.journal.read(news=True):
                if done.output != FAILED:  # the other run's list must not be replaced
                    self._learn(done)
            name, looks = task.output.relative_to(folder), task.source.stat()
            file = Found(task.source, name, looks.st_size, looks.st_mtime_ns)
            decision = decide(file, task.output, self._known(os.fsencode(name)), self.rules)
        except (
            OutputError,
            OSError,
            sqlite3.Error,
        ):  # such as a full disk, which is reported elsewhere
            return record
        if decision.kind != "unchanged" or decision.known is None:
            return record
        theirs = Record(task, decision.known.facts, f"{task.output}   done by another run")
        theirs.written, theirs.notes, theirs.device = True, record.notes, record.device
        theirs.made = decision.known.output_digest
        forget_recorded(task.output, theirs.made)
        if (short := shortfall(str(task.output), theirs.facts)) is not None:
            theirs.fail(short)
        return theirs

    def remember(self, record: Record) -> None:
        """Record an output in the journal. Raises OutputError."""
        task = record.task
        if self.journal is None or self.rules.folder is None or task.output is None:
            return
        try:
            source, output = record.source_status, task.output.stat()
            kept = output.st_size, output.st_mtime_ns, digest(task.output)
        except OSError as error:
            problem = f"cannot read {task.output}: {error.strerror}"
            raise OutputError(problem, hint="run the same command again") from error
        if kept[-1] != record.made:
            problem = f"{task.output} has changed since it was written here"
            raise OutputError(problem, hint="from now on only --force replaces it")
        name = str(task.output.relative_to(self.rules.folder))
        looks = os.path.abspath(task.source), *source, record.digest
        self.journal.add(Done(name, *looks, self.rules.settings, *kept, record.facts))

    def _remember(self, done: Done) -> None:
        if self.journal is not None:
            self.journal.add(done)
        self._learn(done)

    @_database_errors()
    def failed(self, source: Path) -> None:
        """Record that a file failed. Raises OutputError."""
        self._data.execute("INSERT INTO failed VALUES (?)", (os.fsencode(source),))

    def _read_failed(self) -> None:
        """Read the list of the previous run, if it exists and was not changed."""
        known = self._known(os.fsencode(FAILED))
        if known is None or self.rules.folder is None:
            return
        with contextlib.suppress(OSError):
            data = (self.rules.folder / FAILED).read_bytes()
            if sha256(data).hexdigest() == known.output_digest:
                rows = ((os.fsencode(name),) for name in names_in(data))
                self._data.executemany("INSERT OR IGNORE INTO before VALUES (?)", rows)

    @_database_errors()
    def list_failed(self, whole: bool = True) -> Path | None:
        """Write the list of failed files; returns its path, or None if no file failed.

        Files of the previous list stay in it if this run did not examine them and they still exist.
        If this run ended early (not `whole`), all of them stay. Raises OutputError, also for a list
        that was changed elsewhere.
        """
        folder = self.rules.folder
        if folder is None or not folder.is_dir():
            return None
        path, failed = folder / FAILED, self._failures()
        if not (failed or whole):
            return None  # the list is left as it is
        self._keep_others(whole)
        known = self._known(os.fsencode(FAILED))
        own, there = "" if known is None else known.output_digest, path.exists()
        if not self._failures():
            if path.is_file() and digest(path) == own:  # else it was changed elsewhere
                path.unlink(missing_ok=True)
            return None
        if is_special(path):  # writing might block for ever
            raise OutputError(f"{path} is a pipe or a device", hint="remove it")
        check(path, self.rules.force, own, "rename it, or give --force")
        write_atomically(path, self._write_failed, self.rules.force or there)
        status = path.stat()
        kept = status.st_size, status.st_mtime_ns, digest(path)
        self._remember(Done(FAILED, "", 0, 0, "", self.rules.settings, *kept))
        return path if failed else None

    def _failures(self) -> int:
        (count,) = self._data.execute("SELECT count(*) FROM failed").fetchone()
        return int(count)

    def _keep_others(self, whole: bool) -> None:
        """Add files of the previous list that are to stay in it to the failed ones."""
        kept = "SELECT path FROM before WHERE path NOT IN (SELECT path FROM failed)"
        if whole:
            looked = "SELECT absolute(path) FROM found"
            kept += f" AND there(path) AND absolute(path) NOT IN ({looked})"
        self._data.execute(f"INSERT INTO failed {kept}")

    def _write_failed(self, stream: BinaryIO) -> None:
        ends = (
            "instr(path, x'0a') OR instr(path, x'0d')"  # characters that end a line on some system
        )
        (odd,) = self._data.execute(f"SELECT count(*) FROM failed WHERE {ends}")
        end = b"\0" if odd[0] else b"\n"  # names cannot contain a zero byte
        for (name,) in self._data.execute("SELECT path FROM failed"):
            stream.write(name + end)


def _check_other(output: Path, source: Path) -> None:
    """Raise OutputError if an output would be written over its source."""
    if os.path.samefile(output, source):
        raise OutputError(f"{output} would overwrite itself", hint=SEPARATE_HINT)


def _may_be_there(path: bytes) -> bool:
    """Whether a file exists, relative to the current folder; True for all in object stores."""
    return is_stored(Path(os.fsdecode(path))) or os.path.lexists(path)


def _absolute(path: bytes) -> str:
    return os.path.abspath(os.fsdecode(path))


def _refused(file: Found) -> Record:
    record = Record(Task(file.path))
    assert file.error is not None
    record.fail(file.error)
    return record
