"""A process that compiles kernels to machine code for the process that started it
(compile_beside.py).

As PoCL does not lock its cache, this process has its own, inside of the shared one. It links the
program's bitcode from the shared cache, launches the kernels on memory of zeros, and moves the
machine code of each kernel to the shared cache.
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
from imgmlp.engine.device.compile_beside import REQUEST_FILE, Task
from imgmlp.engine.device.discover import open_untried
from imgmlp.engine.device.kernel_cache import has_space
from imgmlp.engine.device.opencl import Device

# PoCL's layout: a program is two folders deep, named by a digest, with a folder for each kernel.
PROGRAM_FOLDERS = "[A-Z][A-Z]/*"
BITCODE_FILE, OPENED_MARK = "program.bc", "last_accessed"
# Programs whose bitcode is linked, the newest first: the parent has built its program just now, but
# other processes may have built theirs since.
MAX_LINKED_PROGRAMS = 4
COMPILE_TIMEOUT = 10.0  # seconds that the current kernel may take after the parent has ended


def run(own: Path, enough: Callable[[], bool]) -> None:
    """Do what REQUEST_FILE in the process's own cache asks for, until `enough()` is true."""
    shared, request = own.parent, json.loads((own / REQUEST_FILE).read_text("utf-8"))
    if not has_space(own) or enough():
        return
    link_bitcode(shared, own)
    device = open_untried(request["spec"])
    assert isinstance(device, Device)
    tasks = [Task(**task) for task in request["tasks"]]
    handles = device.build(request["source"], [task.kernel for task in tasks], request["options"])
    for program in opened(own):
        target = shared / program.relative_to(own)
        if not target.is_dir():
            continue  # it was built to another program than the parent's
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


def link_bitcode(shared: Path, own: Path) -> None:
    """Link the bitcode of the newest programs of a cache into another cache of the same disk."""
    newest = heapq.nlargest(MAX_LINKED_PROGRAMS, shared.glob(PROGRAM_FOLDERS), key=_changed)
    for program in newest:
        copy = own / program.relative_to(shared)
        with contextlib.suppress(OSError):  # what cannot be linked is built again
            copy.mkdir(parents=True, exist_ok=True)
            os.link(program / BITCODE_FILE, copy / BITCODE_FILE)


def opened(own: Path) -> list[Path]:
    """The programs of a cache that PoCL has opened; linked bitcode alone has no OPENED_MARK."""
    return [mark.parent for mark in own.glob(f"{PROGRAM_FOLDERS}/{OPENED_MARK}")]


def hand_over(code: Path, target: Path) -> None:
    """Move a kernel's machine code atomically, unless another process has put some there."""
    with contextlib.suppress(OSError):
        code.rename(target)


def _changed(path: Path) -> int:
    """When a folder last got another entry, in ns; 0 if it was removed."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _argument(device: Device, argument: Any) -> Any:
    if not isinstance(argument, int):
        return np.dtype(argument[0]).type(argument[1])
    allocation = device.alloc(argument)
    device.write(allocation, np.zeros(argument, np.uint8))
    return allocation


def main(own: Path) -> None:
    """`run`, which removes the process's own cache if the parent ends meanwhile."""
    gone, over = threading.Event(), threading.Event()

    def leave() -> None:  # after the current kernel: PoCL crashes if its cache goes
        gone.set()
        over.wait(COMPILE_TIMEOUT)
        shutil.rmtree(own, ignore_errors=True)

    child.end_with_parent(leave)
    try:
        run(own, gone.is_set)
    finally:
        over.set()
        if gone.is_set():
            threading.Event().wait()  # until leave() has removed the cache and this process ends


if __name__ == "__main__":
    main(Path(sys.argv[1]))
