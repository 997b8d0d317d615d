"""What there is to do for the files of a run, and what is done and unchanged since.

Everything about single files lies in a temporary database on the disk, so that memory does not grow
with their number. Opens no device, and reads no file whose size and time are as they were.
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
from imgmlp.batch.leftovers import forget_remembered
from imgmlp.batch.output import check
from imgmlp.batch.shortfall import shortfall
from imgmlp.batch.store import is_stored, url
from imgmlp.batch.work import Record, Task
from imgmlp.errors import OutputError, UsageError
from imgmlp.output_files import digest, is_special, write_atomically

TABLES = """
CREATE TABLE done (output BLOB PRIMARY KEY, line TEXT) WITHOUT ROWID;
CREATE TABLE found (output BLOB PRIMARY KEY, path BLOB, bytes INTEGER, mtime INTEGER) WITHOUT ROWID;
CREATE TABLE todo (weight INTEGER, output BLOB, path BLOB, known TEXT);
CREATE TABLE failed (path BLOB);
CREATE TABLE before (path BLOB PRIMARY KEY) WITHOUT ROWID;
"""
FAILED = "imgmlp-failed.txt"  # a list in the folder of the outputs
APART = "rename one of them, or give it separately with another --out"

Kind = Literal["do", "unchanged", "skipped"]


@dataclass(frozen=True)
class Rules:
    """Where outputs go, what makes them what they are, and what becomes of those that exist."""

    folder: Path | None  # None where nothing is written
    naming: Callable[[Path], Path]  # from a file's name in its tree to its output's
    settings: str = ""  # digest
    force: bool = False
    skip: bool = False
    journal: bool = True  # whether what was written is remembered in the folder
    weigh: Callable[[Path], int] = lambda _: 1


@dataclass(frozen=True)
class Decision:
    """What to do about a file whose output has a name."""

    kind: Kind
    # What the journal ought to say of it from now on; of what is to be done, the output that is
    # replaced if it is still as it says.
    known: Done | None = None


def decide(file: Found, output: Path, known: Done | None, rules: Rules) -> Decision:
    """Whether a file is done already. Raises OutputError, or OSError where it cannot be read."""
    try:
        there = output.stat()
    except FileNotFoundError:
        return Decision("do")
    except OSError as error:
        problem = f"cannot read {output}: {error.strerror}"
        raise OutputError(problem, hint="choose another place or name for it") from error
    theirs = Decision("skipped" if rules.skip else "do")
    if known is None:
        return theirs
    kept = there.st_size, there.st_mtime_ns
    if kept != (known.output_bytes, known.output_mtime) and (
        kept[0] != known.output_bytes or digest(output) != known.output_digest
    ):
        return theirs  # somebody else has written it since
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
        return theirs  # made of another picture
    return Decision("do", known=known)


@contextlib.contextmanager
def _room() -> Iterator[None]:
    """Around what uses the temporary database, whose disk may be full."""
    try:
        yield
    except sqlite3.OperationalError as error:
        problem = f"cannot keep a list of the files in a temporary file: {error}"
        hint = "free some space there, or name another folder in SQLITE_TMPDIR"
        raise OutputError(problem, hint=hint) from error


class Plan:
    """The files of a run. Those to do are given largest first, but after all others what failed in
    the run before, which may have ended early for them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.count = self.weight = 0  # of what is to be done
        self.unchanged = self.skipped = 0
        self.whole = False  # whether all files were decided on
        kept = rules.folder if rules.journal else None
        self.journal = None if kept is None else Journal(kept)
        self._data = sqlite3.connect("")  # a file that has no name
        weakref.finalize(self, self._data.close)
        self._data.executescript(TABLES)
        self._data.create_function("absolute", 1, os.path.abspath)
        self._data.create_function("there", 1, _may_be_there)

    def make(
        self, files: Iterable[Found], stopping: Callable[[], bool] = lambda: False
    ) -> Iterator[Record]:
        """Decide on files; gives a record of each of which there is nothing to do.

        Ends early where it is asked to stop. Raises OutputError if the journal cannot be read, or
        there is no room for what is found.
        """
        with _room():
            yield from self._made(files, stopping)

    def _made(self, files: Iterable[Found], stopping: Callable[[], bool]) -> Iterator[Record]:
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
        counted = "SELECT count(*), coalesce(sum(weight), 0) FROM todo"
        self.count, self.weight = self._data.execute(counted).fetchone()
        self.whole = True

    def tasks(self) -> Iterator[Task]:
        """What is to be done, in its order. Raises OutputError."""
        ordered = """
            SELECT weight, output, path, known FROM todo
            ORDER BY path IN (SELECT path FROM before), weight DESC, path
        """
        with _room():
            for weight, name, path, known in self._data.execute(ordered):
                output = self._output(Path(os.fsdecode(name)))
                yield Task(Path(os.fsdecode(path)), output, self.rules.force, weight, known)

    def _output(self, name: Path) -> Path | None:
        return None if self.rules.folder is None else self.rules.folder / name

    def _add(self, file: Found) -> Record | None:
        """Take a file in; of two with one output, the one that is not taken."""
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
                return None  # it was given twice
            known = self._known(output)
            paths = sorted([before[0], row[1]])  # in the same order whenever they are found
            paths.sort(key=lambda path: known is None or _absolute(path) != known.source)
            name = url(self.rules.folder / os.fsdecode(output))
            taken, other = (Path(os.fsdecode(path)) for path in paths)
            over = f"would overwrite another file of this run: {url(taken)}"
            problem = f"{name}, the output of {url(other)}, {over}"
            refused = _refused(replace(file, path=other, error=OutputError(problem, hint=APART)))
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
        """Note what to do about a file; its record if that is nothing."""
        output, known = self._output(file.name), self._known(os.fsencode(file.name))
        try:
            decision = Decision("do")
            if output is not None and not is_stored(output):  # else its worker has a look
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
            self._data.execute("INSERT INTO todo VALUES (?, ?, ?, ?)", (weight, *row))
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
            with contextlib.suppress(OutputError):  # then it is compared again the next time
                self.journal.add(decision.known)
        return record

    def again(self, record: Record) -> Record:
        """The record of a file whose output must not be written: as it is, or of a file that is
        done, if another run has remembered just that output since this one began."""
        task, folder = record.task, self.rules.folder
        if self.journal is None or folder is None or task.output is None:
            return record
        if record.exit_code != OutputError.exit_code:
            return record
        try:
            for done in self.journal.read(news=True):
                if done.output != FAILED:  # whose list is that run's, not this one's to replace
                    self._learn(done)
            name, looks = task.output.relative_to(folder), task.source.stat()
            file = Found(task.source, name, looks.st_size, looks.st_mtime_ns)
            decision = decide(file, task.output, self._known(os.fsencode(name)), self.rules)
        except (OutputError, OSError, sqlite3.Error):  # as of a full disk, which is told anyhow
            return record
        if decision.kind != "unchanged" or decision.known is None:
            return record
        theirs = Record(task, decision.known.facts, f"{task.output}   done by another run")
        theirs.written, theirs.notes, theirs.device = True, record.notes, record.device
        theirs.made = decision.known.output_digest
        forget_remembered(task.output, theirs.made)
        if (short := shortfall(str(task.output), theirs.facts)) is not None:
            theirs.fail(short)
        return theirs

    def remember(self, record: Record) -> None:
        """Note in the journal that an output is there. Raises OutputError."""
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

    @_room()
    def failed(self, source: Path) -> None:
        """Note that a file has no output. Raises OutputError."""
        self._data.execute("INSERT INTO failed VALUES (?)", (os.fsencode(source),))

    def _read_failed(self) -> None:
        """Learn what the list of the run before names, if it is there and nobody changed it."""
        known = self._known(os.fsencode(FAILED))
        if known is None or self.rules.folder is None:
            return
        with contextlib.suppress(OSError):
            data = (self.rules.folder / FAILED).read_bytes()
            if sha256(data).hexdigest() == known.output_digest:
                rows = ((os.fsencode(name),) for name in names_in(data))
                self._data.executemany("INSERT OR IGNORE INTO before VALUES (?)", rows)

    @_room()
    def list_failed(self, whole: bool = True) -> Path | None:
        """Write the list of those that failed; returns it, or None if none did.

        The list keeps what it has of files that this run did not look at, as it was of others, and
        that are there still. If the run ended early, which is not `whole`, it keeps all, which may
        be left to do. Raises OutputError, also for a list that is somebody else's.
        """
        folder = self.rules.folder
        if folder is None or not folder.is_dir():
            return None
        path, failed = folder / FAILED, self._failures()
        if not (failed or whole):
            return None  # it stays as it is
        self._keep_others(whole)
        known = self._known(os.fsencode(FAILED))
        own, there = "" if known is None else known.output_digest, path.exists()
        if not self._failures():
            if path.is_file() and digest(path) == own:  # else it is somebody else's
                path.unlink(missing_ok=True)
            return None
        if is_special(path):  # which would be written into, and may wait for ever
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
        """Let those of the list before count as failed that are to stay in it."""
        kept = "SELECT path FROM before WHERE path NOT IN (SELECT path FROM failed)"
        if whole:
            looked = "SELECT absolute(path) FROM found"
            kept += f" AND there(path) AND absolute(path) NOT IN ({looked})"
        self._data.execute(f"INSERT INTO failed {kept}")

    def _write_failed(self, stream: BinaryIO) -> None:
        ends = "instr(path, x'0a') OR instr(path, x'0d')"  # of lines, for one system or another
        (odd,) = self._data.execute(f"SELECT count(*) FROM failed WHERE {ends}")
        end = b"\0" if odd[0] else b"\n"  # a name may hold anything but a zero
        for (name,) in self._data.execute("SELECT path FROM failed"):
            stream.write(name + end)


def _check_other(output: Path, source: Path) -> None:
    """Refuse, as an OutputError, to write a file over itself."""
    if os.path.samefile(output, source):
        raise OutputError(f"{output} would overwrite itself", hint=APART)


def _may_be_there(path: bytes) -> bool:
    """Whether there is a file of this name, told from the folder that this is run in; of what is in
    a store nobody asks."""
    return is_stored(Path(os.fsdecode(path))) or os.path.lexists(path)


def _absolute(path: bytes) -> str:
    return os.path.abspath(os.fsdecode(path))


def _refused(file: Found) -> Record:
    record = Record(Task(file.path))
    assert file.error is not None
    record.fail(file.error)
    return record
