"""A process that makes machine code of kernels for the one that started it (compile_beside.py).

It has a cache of its own inside of the shared one, as PoCL guards none. There it finds the bitcode
of the program, launches kernels on memory of its own, which is all zeros, and moves what PoCL has
kept of each kernel out of it.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from imgmlp import child
from imgmlp.engine.device.compile_beside import TOLD, Task
from imgmlp.engine.device.discover import open_untried
from imgmlp.engine.device.kernel_cache import has_room
from imgmlp.engine.device.opencl import Device

# As PoCL has it: a program is in two folders named by a digest, and has a folder of each kernel.
PROGRAMS = "[A-Z][A-Z]/*"
BITCODE, OPENED = "program.bc", "last_accessed"
# Programs in which kernels were compiled last: the parent has compiled one just now, and others may
# have as well.
NEWEST = 4
PATIENCE = 10.0  # seconds for the kernel that is being compiled when the parent ends


def run(own: Path, enough: Callable[[], bool]) -> None:
    """Do what a file in the process's own cache tells, until it is `enough`."""
    shared, told = own.parent, json.loads((own / TOLD).read_text("utf-8"))
    if not has_room(own) or enough():
        return
    lend(shared, own)
    device = open_untried(told["spec"])
    assert isinstance(device, Device)
    tasks = [Task(**task) for task in told["tasks"]]
    handles = device.build(told["source"], [task.kernel for task in tasks], told["options"])
    for program in opened(own):
        target = shared / program.relative_to(own)
        if not target.is_dir():
            continue  # it was built into something else, which serves nobody
        for task in tasks:
            if enough():
                return
            if (target / task.kernel).exists():
                continue
            arguments = [_argument(device, one) for one in task.arguments]
            sizes = tuple(task.global_size), tuple(task.local_size) or None
            device.launch_all([device.bind(handles[task.kernel], arguments, *sizes)])
            device.finish()
            hand_over(program / task.kernel, target / task.kernel)


def lend(shared: Path, own: Path) -> None:
    """Have the bitcode of a cache's newest programs in another one of the same disk as well."""
    newest = heapq.nlargest(NEWEST, shared.glob(PROGRAMS), key=_changed)
    for program in newest:
        copy = own / program.relative_to(shared)
        with contextlib.suppress(OSError):  # what cannot be lent is built again
            copy.mkdir(parents=True, exist_ok=True)
            os.link(program / BITCODE, copy / BITCODE)


def opened(own: Path) -> list[Path]:
    """The programs that were opened in a cache: what is lent alone has no mark of that."""
    return [mark.parent for mark in own.glob(f"{PROGRAMS}/{OPENED}")]


def hand_over(code: Path, target: Path) -> None:
    """Move a kernel's machine code, all at once, unless some has come to its place meanwhile."""
    with contextlib.suppress(OSError):
        code.rename(target)


def _changed(path: Path) -> int:
    """When a folder last got another entry, 0 if it is not there any more."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _argument(device: Device, told: Any) -> Any:
    if not isinstance(told, int):
        return np.dtype(told[0]).type(told[1])
    allocation = device.alloc(told)
    device.write(allocation, np.zeros(told, np.uint8))
    return allocation


def main(own: Path) -> None:
    """The same in this process, which leaves nothing of its own behind where its parent ends."""
    gone, over = threading.Event(), threading.Event()

    def leave() -> None:  # PoCL ends a process from whose cache files go while it compiles
        gone.set()
        over.wait(PATIENCE)
        shutil.rmtree(own, ignore_errors=True)

    child.end_with_parent(leave)
    try:
        run(own, gone.is_set)
    finally:
        over.set()
        if gone.is_set():
            threading.Event().wait()  # for all that to be removed, with which this process ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
