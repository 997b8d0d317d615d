"""Reads and writes object stores, such as S3, through fsspec.

A file is written in one operation. Before it, a note is written that describes it, so that other
processes can tell how the file was made.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import uuid
from collections.abc import Collection, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from imgmlp.batch.find import Found
from imgmlp.errors import OutputError, UsageError

NOTES = ".imgmlp"  # the folder of the notes, beside the outputs
# The begin of an address as pathlib leaves it. A single letter would be a drive.
SCHEME = re.compile(r"\A([a-z][a-z0-9+.-]+):/+(?=[^/])")
LOCAL_SCHEMES = ("file", "local")
ACCESS_HINT = "check the bucket's name, your permissions and your credentials"


def is_stored(path: Path) -> bool:
    """Whether a path is an address in a store, such as s3://bucket/folder."""
    return SCHEME.match(path.as_posix()) is not None


def check_scheme(path: Path) -> None:
    """Raise UsageError for a URL of a local file, as pathlib may have changed its meaning."""
    scheme = SCHEME.match(path.as_posix())
    if scheme is not None and scheme[1] in LOCAL_SCHEMES:
        raise UsageError(
            f"{scheme[1]}:// is not an object store", hint="give a plain path, such as /a/folder"
        )


def url(path: Path) -> str:
    """The address of a path, with the slash that pathlib has removed; of a local path itself."""
    return SCHEME.sub(r"\1://", path.as_posix(), count=1)


def found(source: Path, endings: Collection[str], recursive: bool) -> Iterator[Found]:
    """The pictures in a folder of a store, or the one that is named itself."""
    try:
        files, top = _file_system(source)
        entries = {top: files.info(top)} if files.isfile(top) else _entries(files, top, recursive)
    except Exception as error:  # each kind of store raises its own errors
        problem = f"cannot read {url(source)}: {_reason(error)}"
        yield Found(source, Path(source.name), error=UsageError(problem, hint=ACCESS_HINT))
        return
    protocol = url(source).partition("://")[0]
    for name, entry in sorted(entries.items()):
        place = Path(posixpath.relpath(name, top) if name != top else posixpath.basename(name))
        hidden = any(part.startswith(".") for part in place.parts)
        if not hidden and (name == top or place.suffix.lower() in endings):
            path, refused = Path(f"{protocol}:/{name}"), _unreachable(protocol, name)
            yield Found(path, place, int(entry["size"] or 0), error=refused)


def _unreachable(protocol: str, name: str) -> UsageError | None:
    """The error for a name that cannot be a path, such as one with an empty part; else None."""
    if posixpath.normpath(name) == name:
        return None
    problem = f"{protocol}://{name.lstrip('/')} has a part that is empty, . or .. in its name"
    return UsageError(problem, hint="it cannot be a path; copy it to another name")


def _entries(files: Any, top: str, recursive: bool) -> dict[str, Any]:
    entries: dict[str, Any] = files.find(top, maxdepth=None if recursive else 1, detail=True)
    if not entries and not files.exists(top):
        raise FileNotFoundError("there is no such folder")
    return entries


def check_writable(folder: Path) -> None:
    """Raise OutputError if nothing can be written to a folder of a store."""
    try:
        files, top = _file_system(folder)
        # A unique name, as another process may remove its own probe at the same time.
        probe = posixpath.join(top, NOTES, f"probe-{uuid.uuid4()}")
        files.pipe_file(probe, b"")
        files.rm_file(probe)
    except Exception as error:
        problem = f"cannot write into {url(folder)}: {_reason(error)}"
        raise OutputError(problem, hint=ACCESS_HINT) from error


class Output:
    """An output in a store, and the notes about its possible contents."""

    def __init__(self, path: Path) -> None:
        self.url = url(path)
        self._files, self._name = _file_system(path)

    def read(self) -> bytes | None:
        """Its bytes; None if it does not exist. Raises OutputError."""
        try:
            return bytes(self._files.cat_file(self._name))
        except FileNotFoundError:
            return None
        except Exception as error:
            problem = f"cannot read {self.url}: {_reason(error)}"
            raise OutputError(problem, hint=ACCESS_HINT) from error

    def note(self, data: bytes) -> dict[str, Any] | None:
        """The note about an output with these bytes; None if there is none."""
        try:
            note = json.loads(self._files.cat_file(self._note(data)))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        whole = isinstance(note, dict) and {"source", "picture", "settings", "facts"} <= set(note)
        return note if whole and isinstance(note["facts"], dict) else None

    def write(self, data: bytes, note: dict[str, Any], replace: bool) -> bool:
        """Write the output and its note. Raises OutputError.

        Without `replace`, an existing output stays and False is returned. (Stores without an atomic
        creation may still overwrite one that is created at the same moment.)
        """
        try:
            self._files.pipe_file(self._note(data), json.dumps(note).encode())
            if not replace:
                with contextlib.suppress(Exception):  # it exists, or the store does not support it
                    self._files.pipe_file(self._name, data, mode="create")
                    return True
                if self._files.exists(self._name):
                    return False
            self._files.pipe_file(self._name, data)
        except Exception as error:
            problem = f"cannot write {self.url}: {_reason(error)}"
            raise OutputError(problem, hint=ACCESS_HINT) from error
        return True

    def _note(self, data: bytes) -> str:
        folder, name = posixpath.split(self._name)
        return posixpath.join(folder, NOTES, f"{name}.{sha256(data).hexdigest()[:32]}.json")


def fetched(source: Path) -> bytes:
    """The bytes of a local picture or one in a store. Raises UsageError."""
    try:
        if not is_stored(source):
            return source.read_bytes()
        files, name = _file_system(source)
        return bytes(files.cat_file(name))
    except Exception as error:
        problem = f"cannot read {url(source)}: {_reason(error)}"
        raise UsageError(problem, hint=ACCESS_HINT) from error


def _file_system(path: Path) -> tuple[Any, str]:
    """The fsspec file system of an address, without cached listings, and the name in it.

    fsspec's `url_to_fs` is not used, because it takes :: in a name for a chain of addresses.
    """
    import fsspec

    address = url(path)
    protocol = address.partition("://")[0]
    kind = fsspec.get_filesystem_class(protocol)
    options = kind._get_kwargs_from_urls(address) | {"use_listings_cache": False}
    return fsspec.filesystem(protocol, **options), str(kind._strip_protocol(address))


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
