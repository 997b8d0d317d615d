"""Machine code of a program's kernels, a part of it made by other processes meanwhile.

PoCL makes a kernel's machine code at its first launch, on one thread of a process, whatever other
cores there are. So where many kernels are new, other processes (compile_for.py) make that of
kernels still to come, the last of all first, and move it into the cache that all processes share.
Whoever comes to such a kernel finds it there, and makes what is not there itself: nothing depends
on these processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from imgmlp import child
from imgmlp.engine.device.base import Allocation, Launch
from imgmlp.engine.device.kernel_cache import PRIVATE, current

MOST = 3  # processes, unless the environment says otherwise: each takes some 200 MB
EACH = 4  # kernels that are worth a process, which takes half a second to begin
LARGEST = 1 << 27  # bytes that a kernel reads and writes; others are for the process that has them
PROCESS = "imgmlp.engine.device.compile_for"
TOLD = "told.json"


@dataclass(frozen=True)
class Task:
    """A launch. Of each argument the bytes if it is memory, dtype and value if it is a number."""

    kernel: str
    global_size: Sequence[int]
    local_size: Sequence[int]
    arguments: Sequence[Any]

    @staticmethod
    def of(launch: Launch) -> Task:
        told: list[Any] = [
            one.nbytes if isinstance(one, Allocation) else [one.dtype.str, one.item()]
            for one in launch.kept
            if isinstance(one, (Allocation, np.generic))
        ]
        return Task(launch.handle.name, launch.global_size, launch.local_size or (), told)

    @property
    def nbytes(self) -> int:
        return sum(one for one in self.arguments if isinstance(one, int))


def most(cores: int, usual: int = MOST) -> int:
    """Processes that may compile beside one, on so many cores; `usual` if nobody says how many."""
    try:
        told = int(os.environ.get(child.COMPILERS_VARIABLE, usual))
    except ValueError:
        told = usual
    return max(0, min(told, cores - 1))


def wanted(kernels: int, cores: int) -> int:
    """Processes for so many kernels beside one that makes them as well."""
    return min(most(cores), kernels // EACH)


@contextlib.contextmanager
def beside(
    spec: str, source: str, options: Sequence[str], tasks: Sequence[Task], count: int
) -> Iterator[list[child.Helper]]:
    """So many processes for launches of one program, until this is left.

    `spec` names the device; `source` and `options` are what the program was built from.
    """
    shared, helpers = current(), list[child.Helper]()
    small = [task for task in reversed(tasks) if task.nbytes <= LARGEST]
    with contextlib.ExitStack() as stack:
        for number in range(count if shared else 0):
            own = [asdict(task) for task in small[number::count]]
            told = {"spec": spec, "source": source, "options": list(options), "tasks": own}
            with contextlib.suppress(OSError):  # as where the disk is full
                place = tempfile.mkdtemp(prefix=PRIVATE, dir=shared)
                stack.callback(shutil.rmtree, place, ignore_errors=True)
                (Path(place) / TOLD).write_text(json.dumps(told), "utf-8")
                helper = child.Helper(PROCESS, place, POCL_CACHE_DIR=place)
                helpers.append(stack.enter_context(helper))
        yield helpers
