"""What lowering gave, on disk: the next process that compiles the same step need not lower it.

An entry's name is a digest of the step's graph, of what it is compiled for, and of this program's
source, so that another version never reads it. Outlines of graphs are kept likewise, by what their
makers say that they depend on. An entry is text, a digest of the rest in a line and then
JSON, so that to read one runs nothing; one that is damaged, or of something else, counts as none
and is replaced. Where nothing can be written, each process lowers for itself.
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
MOST = 2000  # entries
MOST_BYTES = 64 << 20  # of all of them; one of a large step has half a MiB
MOST_OF_ONE = MOST_BYTES // 8

source_digest()  # now, of the files that this process runs: later there may be others


# What a step is known by


def identify(updates: Sequence[Update]) -> tuple[str, list[Buffer]]:
    """A digest that steps share if they compute the same in the same order, and their Buffers.

    Buffers count by place, shape and dtype, Nodes by what they do and to what.
    """
    numbers: dict[Node, int] = {}
    buffers: dict[Buffer, int] = {}
    digest = hashlib.sha256()
    for node in _walk(toposort(value for _, value in updates)):
        told = node.arg
        if node.op is Op.BUFFER:
            told = buffers.setdefault(node.arg, len(buffers))
        elif node.op is Op.FUNCTION:  # its gradient, which the graph has already
            told = None
        elif node.op is Op.LOOP:
            inside = (*told.parameters, *told.values)
            told = told.count, len(told.values), [numbers[n] for n in inside]
        sources = [numbers[s] for s in node.src]
        numbers[node] = len(numbers)
        line = (node.op._value_, sources, told, node.shape, node.dtype.name)
        digest.update(f"{line}\n".encode())
    for state, value in updates:
        place = buffers.setdefault(state, len(buffers))
        digest.update(f"{place} {state.shape} {state.dtype.name} {numbers[value]}\n".encode())
    return digest.hexdigest(), list(buffers)


def _walk(roots: Sequence[Node]) -> Iterator[Node]:
    """Every Node once, after what it needs, those of loops' bodies too."""
    done: set[Node] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        below = node.src if node.op is not Op.LOOP else _around(node)
        missing = [s for s in below if s not in done] if node not in done else ()
        if missing:
            stack.extend(reversed(missing))
            continue
        stack.pop()
        if node not in done:
            done.add(node)
            yield node


def _around(loop: Node) -> tuple[Node, ...]:
    return (*loop.src, *loop.arg.parameters, *loop.arg.values)


def key(graph: str, target: Target, general: bool) -> str:
    """The name of a step's entry. NumPy's version counts, as it folds constants."""
    told = f"{source_digest()} {np.__version__} {target} {general} {graph}"
    return hashlib.sha256(told.encode()).hexdigest()


# What is kept


def load(key: str, parse: Callable[[str], T]) -> T | None:
    """What was stored, if it is whole."""
    path = _path(key)
    if path is None:
        return None
    try:
        told, _, text = path.read_text("utf-8").partition("\n")
        stored = parse(text) if told == _seal(key, text) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # as the last to be removed
    return stored


def store(key: str, text: str) -> None:
    """Keep it for others, in the place of what was used least lately."""
    path = _path(key)
    if path is None or len(text) > MOST_OF_ONE:
        return
    with contextlib.suppress(OSError):  # the next process lowers the step again
        path.parent.mkdir(exist_ok=True)
        write_whole(path, f"{_seal(key, text)}\n{text}")
        _sweep(path.parent)


def _path(key: str) -> Path | None:
    place = cache_folder()
    return place and place / FOLDER / f"{key}.json"


def _seal(key: str, text: str) -> str:
    return hashlib.sha256(f"{key}\n{text}".encode()).hexdigest()


def _sweep(folder: Path) -> None:
    """Remove the oldest entries of too many, and what killed processes left."""
    entries = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process removed it
            state = path.stat()
            if path.suffix == ".json":
                entries.append((state.st_mtime, state.st_size, path))
            elif state.st_mtime < time.time() - MAX_LEFTOVER_AGE:
                path.unlink()
    total = 0
    for count, (_, size, path) in enumerate(sorted(entries, reverse=True), 1):
        total += size
        if count > MOST or total > MOST_BYTES:
            path.unlink(missing_ok=True)
