"""Compiles kernels to machine code in parallel processes, for PoCL.

PoCL compiles a kernel to machine code at its first launch, on a single thread of the process. If a
program has many new kernels, other processes (compile_for.py) compile some of those that will be
launched later, the last one first, and move the result into the cache that all processes share.
This process finds it there at the launch, and compiles itself what is missing. Nothing is lost if
these processes fail.
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
from imgmlp.engine.device.kernel_cache import PRIVATE_PREFIX, cache_folder

DEFAULT_MAX_PROCESSES = 3  # unless the environment says otherwise; each takes some 200 MB
MIN_KERNELS_PER_PROCESS = 4  # for which a process pays, as it takes half a second to start
# Memory of a kernel's arguments; this process compiles kernels with more, as it has the memory.
MAX_TASK_BYTES = 1 << 27
MODULE = "imgmlp.engine.device.compile_for"
REQUEST_FILE = "request.json"


@dataclass(frozen=True)
class Task:
    """A launch to be compiled. Arguments are bytes of memory, or [dtype, value] of numbers."""

    kernel: str
    global_size: Sequence[int]
    local_size: Sequence[int]
    arguments: Sequence[Any]

    @staticmethod
    def of(launch: Launch) -> Task:
        arguments: list[Any] = [
            one.nbytes if isinstance(one, Allocation) else [one.dtype.str, one.item()]
            for one in launch.kept
            if isinstance(one, (Allocation, np.generic))
        ]
        return Task(launch.handle.name, launch.global_size, launch.local_size or (), arguments)

    @property
    def nbytes(self) -> int:
        return sum(one for one in self.arguments if isinstance(one, int))


def max_processes(cores: int, default: int = DEFAULT_MAX_PROCESSES) -> int:
    """How many further processes may compile on so many cores: what the environment variable
    COMPILERS_VARIABLE says, or else `default`; at most one for each core but this process's."""
    try:
        count = int(os.environ.get(child.COMPILERS_VARIABLE, default))
    except ValueError:
        count = default
    return max(0, min(count, cores - 1))


def process_count(kernels: int, cores: int) -> int:
    """How many further processes to start for so many new kernels."""
    return min(max_processes(cores), kernels // MIN_KERNELS_PER_PROCESS)


@contextlib.contextmanager
def compiling_processes(
    spec: str, source: str, options: Sequence[str], tasks: Sequence[Task], count: int
) -> Iterator[list[child.Helper]]:
    """Within this context, `count` processes compile the launches of one program.

    `spec` names the device; `source` and `options` are what the program was built from.
    """
    shared, helpers = cache_folder(), list[child.Helper]()
    small = [task for task in reversed(tasks) if task.nbytes <= MAX_TASK_BYTES]
    with contextlib.ExitStack() as stack:
        for number in range(count if shared else 0):
            own = [asdict(task) for task in small[number::count]]
            request = {"spec": spec, "source": source, "options": list(options), "tasks": own}
            with contextlib.suppress(OSError):  # such as a full disk
                place = tempfile.mkdtemp(prefix=PRIVATE_PREFIX, dir=shared)
                stack.callback(shutil.rmtree, place, ignore_errors=True)
                (Path(place) / REQUEST_FILE).write_text(json.dumps(request), "utf-8")
                helper = child.Helper(MODULE, place, POCL_CACHE_DIR=place)
                helpers.append(stack.enter_context(helper))
        yield helpers
