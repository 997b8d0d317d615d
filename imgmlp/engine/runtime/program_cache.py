"""A cache on disk of lowered steps, so that the next process need not lower the same step again.

An entry's name is a digest of the step's graph, of the target that it is compiled for, and of
imgmlp's source, so that no other version reads it. Outlines of graphs (outline.py) are cached in
the same way, by what a step is said to depend on. An entry is a text file: a digest of the rest in
the first line, then JSON, so that reading it executes nothing. A damaged entry is ignored and
replaced. If nothing can be written, each process lowers for itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from imgmlp.engine.device.kernel_cache import MAX_LEFTOVER_AGE, cache_folder, write_whole
from imgmlp.engine.ir.graph import Buffer, Node, toposort
from imgmlp.engine.ir.kernel import Update
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import Target
from imgmlp.source_digest import source_digest

T = TypeVar("T")

FOLDER = "programs"  # beside compiled kernels
MAX_ENTRIES = 2000
MAX_TOTAL_BYTES = 64 << 20  # an entry of a large step has half a MiB
MAX_ENTRY_BYTES = MAX_TOTAL_BYTES // 8

source_digest()  # computed now, as the source files may be replaced while this process runs


# Names of entries


def identify(updates: Sequence[Update]) -> tuple[str, list[Buffer]]:
    """A digest of a step's graph, and the graph's Buffers in the order of their first use.

    Steps that compute the same in the same order have the same digest. It covers the operations,
    shapes and dtypes, and which Buffer is used where, but not the Buffers' contents.
    """
    numbers: dict[Node, int] = {}
    buffers: dict[Buffer, int] = {}
    digest = hashlib.sha256()
    for node in _walk(toposort(value for _, value in updates)):
        argument = node.arg
        if node.op is Op.BUFFER:
            argument = buffers.setdefault(node.arg, len(buffers))
        elif node.op is Op.FUNCTION:  # its gradient, which the graph has already
            argument = None
        elif node.op is Op.LOOP:
            inside = (*argument.parameters, *argument.values)
            argument = argument.count, len(argument.values), [numbers[n] for n in inside]
        sources = [numbers[s] for s in node.src]
        numbers[node] = len(numbers)
        line = (node.op._value_, sources, argument, node.shape, node.dtype.name)
        digest.update(f"{line}\n".encode())
    for state, value in updates:
        place = buffers.setdefault(state, len(buffers))
        digest.update(f"{place} {state.shape} {state.dtype.name} {numbers[value]}\n".encode())
    return digest.hexdigest(), list(buffers)


def _walk(roots: Sequence[Node]) -> Iterator[Node]:
    """Each Node once, after its sources, including those of loops' bodies."""
    done: set[Node] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        below = node.src if node.op is not Op.LOOP else _sources_of_loop(node)
        missing = [s for s in below if s not in done] if node not in done else ()
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        if node not in done:
            done.add(node)
            yield node


def _sources_of_loop(loop: Node) -> tuple[Node, ...]:
    return (*loop.src, *loop.arg.parameters, *loop.arg.values)


def key(graph: str, target: Target, general: bool) -> str:
    """The name of a step's entry. It depends on NumPy's version, because NumPy folds constants."""
    text = f"{source_digest()} {np.__version__} {target} {general} {graph}"
    return hashlib.sha256(text.encode()).hexdigest()


# Entries


def load(key: str, parse: Callable[[str], T]) -> T | None:
    """The parsed entry; None if there is none, or if it is damaged."""
    path = _path(key)
    if path is None:
        return None
    try:
        digest, _, text = path.read_text("utf-8").partition("\n")
        stored = parse(text) if digest == _digest(key, text) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # so that it is removed last
    return stored


def store(key: str, text: str) -> None:
    """Store an entry; the least recently used ones are removed if there are too many."""
    path = _path(key)
    if path is None or len(text) > MAX_ENTRY_BYTES:
        return
    with contextlib.suppress(OSError):  # the next process lowers the step again
        path.parent.mkdir(exist_ok=True)
        write_whole(path, f"{_digest(key, text)}\n{text}")
        _remove_oldest(path.parent)


def _path(key: str) -> Path | None:
    place = cache_folder()
    return place and place / FOLDER / f"{key}.json"


def _digest(key: str, text: str) -> str:
    return hashlib.sha256(f"{key}\n{text}".encode()).hexdigest()


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest entries if there are too many, and files that killed processes left."""
    entries = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process has removed it
            state = path.stat()
            if path.suffix == ".json":
                entries.append((state.st_mtime, state.st_size, path))
            elif state.st_mtime < time.time() - MAX_LEFTOVER_AGE:
                path.unlink()
    total = 0
    for count, (_, size, path) in enumerate(sorted(entries, reverse=True), 1):
        total += size
        if count > MAX_ENTRIES or total > MAX_TOTAL_BYTES:
            path.unlink(missing_ok=True)
