"""A process that makes machine code of kernels for the one that started it (compile_beside.py).

It has a cache of its own inside of the shared one, as PoCL guards none. There it finds the bitcode
of the program, launches kernels on memory of its own, which is all zeros, and moves what PoCL has
kept of each kernel out of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from imgmlp import child
from imgmlp.engine.device.compile_beside import TOLD, Task
from imgmlp.engine.device.discover import open_untried
from imgmlp.engine.device.opencl import Device

# As PoCL has it: a program is in two folders named by a digest, and has a folder of each kernel.
PROGRAMS = "[A-Z][A-Z]/*"
BITCODE, OPENED = "program.bc", "last_accessed"


def run(own: Path) -> None:
    """Do what a file in the process's own cache tells."""
    shared, told = own.parent, json.loads((own / TOLD).read_text("utf-8"))
    lend(shared, own)
    device = open_untried(told["spec"])
    assert isinstance(device, Device)
    tasks = [Task(**task) for task in told["tasks"]]
    handles = device.build(told["source"], [task.kernel for task in tasks], told["options"])
    for task in tasks:
        if is_kept(shared, own, task.kernel):
            continue
        arguments = [_argument(device, one) for one in task.arguments]
        sizes = tuple(task.global_size), tuple(task.local_size) or None
        device.launch_all([device.bind(handles[task.kernel], arguments, *sizes)])
        device.finish()
        if not hand_over(own, shared, task.kernel):
            return  # it was built into something else, which serves nobody


def lend(shared: Path, own: Path) -> None:
    """Have the bitcode that is in a cache in another one of the same disk as well."""
    for bitcode in shared.glob(f"{PROGRAMS}/{BITCODE}"):
        copy = own / bitcode.relative_to(shared)
        with contextlib.suppress(OSError):  # what cannot be lent is built again
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(bitcode, copy)


def is_kept(shared: Path, own: Path, kernel: str) -> bool:
    """Whether a program that was opened in a cache has a kernel's machine code in the other one."""
    opened = (file.parent.relative_to(own) for file in own.glob(f"{PROGRAMS}/{OPENED}"))
    return any((shared / program / kernel).is_dir() for program in opened)


def hand_over(own: Path, shared: Path, kernel: str) -> bool:
    """Move a kernel's machine code to another cache, all at once, if it is not there yet; whether
    that has its program."""
    known = False
    for found in own.glob(f"{PROGRAMS}/{kernel}"):
        target = shared / found.relative_to(own)
        if target.parent.is_dir():
            known = True
            with contextlib.suppress(OSError):  # it has come there meanwhile
                found.rename(target)
    return known


def _argument(device: Device, told: Any) -> Any:
    if not isinstance(told, int):
        return np.dtype(told[0]).type(told[1])
    found = device.alloc(told)
    device.write(found, np.zeros(told, np.uint8))
    return found


if __name__ == "__main__":
    child.end_with_parent()
    run(Path(sys.argv[1]))
