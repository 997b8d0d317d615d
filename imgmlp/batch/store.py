"""Places in a store, such as S3, and what is read and written there: through fsspec.

A file is written as a whole, and before it a note of what it is going to be, by which it is known
to whoever comes by. Knows no codec and no cluster.
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

NOTES = ".imgmlp"  # a folder beside the outputs
# As pathlib leaves it; one letter is a drive.
SCHEME = re.compile(r"\A([a-z][a-z0-9+.-]+):/+(?=[^/])")
HERE = ("file", "local")  # schemes of this machine's files
RIGHTS = "check the bucket's name, your permissions and your credentials"


def is_stored(path: Path) -> bool:
    """Whether it is a place in a store, such as s3://bucket/folder."""
    return SCHEME.match(path.as_posix()) is not None


def check_scheme(path: Path) -> None:
    """Refuse, as a UsageError, an address of this machine's files: what pathlib leaves of it could
    mean another place."""
    scheme = SCHEME.match(path.as_posix())
    if scheme is not None and scheme[1] in HERE:
        raise UsageError(
            f"{scheme[1]}:// is not an object store", hint="give a plain path, such as /a/folder"
        )


def url(path: Path) -> str:
    """The address that pathlib has taken a slash of; a plain path as it is."""
    return SCHEME.sub(r"\1://", path.as_posix(), count=1)


def found(source: Path, endings: Collection[str], recursive: bool) -> Iterator[Found]:
    """The pictures in a folder of a store, or one that is named itself."""
    try:
        files, top = _opened(source)
        entries = {top: files.info(top)} if files.isfile(top) else _entries(files, top, recursive)
    except Exception as error:  # each kind of store has errors of its own
        problem = f"cannot read {url(source)}: {_reason(error)}"
        yield Found(source, Path(source.name), error=UsageError(problem, hint=RIGHTS))
        return
    protocol = url(source).partition("://")[0]
    for name, entry in sorted(entries.items()):
        place = Path(posixpath.relpath(name, top) if name != top else posixpath.basename(name))
        hidden = any(part.startswith(".") for part in place.parts)
        if not hidden and (name == top or place.suffix.lower() in endings):
            path, refused = Path(f"{protocol}:/{name}"), _unreachable(protocol, name)
            yield Found(path, place, int(entry["size"] or 0), error=refused)


def _unreachable(protocol: str, name: str) -> UsageError | None:
    """Why a file is left out whose name no path can be, as that of a folder without a name."""
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
    """Refuse, as an OutputError, a place where nothing can be written."""
    try:
        files, top = _opened(folder)
        # Of a name that no other process has, which would remove it meanwhile.
        probe = posixpath.join(top, NOTES, f"probe-{uuid.uuid4()}")
        files.pipe_file(probe, b"")
        files.rm_file(probe)
    except Exception as error:
        problem = f"cannot write into {url(folder)}: {_reason(error)}"
        raise OutputError(problem, hint=RIGHTS) from error


class Output:
    """A file in a store, and the notes of those that wrote it or were about to."""

    def __init__(self, path: Path) -> None:
        self.url = url(path)
        self._files, self._name = _opened(path)

    def read(self) -> bytes | None:
        """Its bytes, if it is there. Raises OutputError."""
        try:
            return bytes(self._files.cat_file(self._name))
        except FileNotFoundError:
            return None
        except Exception as error:
            problem = f"cannot read {self.url}: {_reason(error)}"
            raise OutputError(problem, hint=RIGHTS) from error

    def note(self, data: bytes) -> dict[str, Any] | None:
        """Who wrote just these bytes, if somebody has noted it."""
        try:
            note = json.loads(self._files.cat_file(self._note(data)))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        whole = isinstance(note, dict) and {"source", "picture", "settings", "facts"} <= set(note)
        return note if whole and isinstance(note["facts"], dict) else None

    def write(self, data: bytes, note: dict[str, Any], replace: bool) -> bool:
        """Write it as a whole. Raises OutputError.

        Without `replace` whatever has come there stays, and False is returned, as far as the store
        can tell at that moment.
        """
        try:
            self._files.pipe_file(self._note(data), json.dumps(note).encode())
            if not replace:
                with contextlib.suppress(Exception):  # or it does not know how, and is asked
                    self._files.pipe_file(self._name, data, mode="create")
                    return True
                if self._files.exists(self._name):
                    return False
            self._files.pipe_file(self._name, data)
        except Exception as error:
            problem = f"cannot write {self.url}: {_reason(error)}"
            raise OutputError(problem, hint=RIGHTS) from error
        return True

    def _note(self, data: bytes) -> str:
        folder, name = posixpath.split(self._name)
        return posixpath.join(folder, NOTES, f"{name}.{sha256(data).hexdigest()[:32]}.json")


def fetched(source: Path) -> bytes:
    """The bytes of a picture, here or in a store. Raises UsageError."""
    try:
        if not is_stored(source):
            return source.read_bytes()
        files, name = _opened(source)
        return bytes(files.cat_file(name))
    except Exception as error:
        problem = f"cannot read {url(source)}: {_reason(error)}"
        raise UsageError(problem, hint=RIGHTS) from error


def _opened(path: Path) -> tuple[Any, str]:
    """The file system of a place in a store, and its name in there; listings are never old ones.

    Not by fsspec's `url_to_fs`, to which :: in a name separates the addresses of a chain.
    """
    import fsspec

    address = url(path)
    protocol = address.partition("://")[0]
    kind = fsspec.get_filesystem_class(protocol)
    options = kind._get_kwargs_from_urls(address) | {"use_listings_cache": False}
    return fsspec.filesystem(protocol, **options), str(kind._strip_protocol(address))


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
