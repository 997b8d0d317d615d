"""Whether a device works, tried once in a process that may be lost, and remembered.

A driver that is installed need not work: its compiler may not know the processor, its libraries may
be missing, and some drivers end the process that they fail in. So a device's first use is a tiny
kernel in a process of its own (trial.py). What comes of it is kept beside the compiled kernels, for
this processor, this device, this driver and this program; a failure only for a day, as what was in
the way may be gone.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from imgmlp import child
from imgmlp.engine.device.base import DeviceInfo
from imgmlp.engine.device.kernel_cache import current, locked
from imgmlp.engine.device.pocl import read_memory

WORKS = "works"
TIMEOUT = 180.0  # seconds; cold it takes under one, emulated on a busy machine 77 were seen
DAY = 86400.0  # seconds for which a failure is believed
PREFIX = "probe-"
SOURCES = ("probe", "trial", "discover", "opencl", "pocl")  # what decides, and may change
MAPS = Path("/proc/self/maps")
_working: set[str] = set()  # what this process knows of, where nothing can be kept


def problem_of(handle: int, info: DeviceInfo) -> str:
    """Why a device does not work, "" if it does; `handle` is the address of its cl_device_id."""
    if info.kind == "simulator":  # for tests, and slow; never chosen unless asked for
        return ""
    key = _key(handle, info)
    if key in _working:
        return ""
    place = current()
    path = place and place / f"{PREFIX}{key}.json"
    found = _kept(path)
    if found is None and place is not None:
        with locked(place / "imgmlp-probe.lock"):  # whoever waited here finds what it waited for
            found = _kept(path)
            if found is None:
                found = _tried(info)
                _keep(path, found)
    elif found is None:
        found = _tried(info)
    if not found:
        _working.add(key)
    return found


def forget() -> None:
    """Have every device tried again when it is next used."""
    _working.clear()
    place = current()
    with suppress(OSError):
        for path in place.glob(f"{PREFIX}*.json") if place else ():
            path.unlink(missing_ok=True)


# What is kept


def _key(handle: int, info: DeviceInfo) -> str:
    """Differs where the outcome may: kernel_cache.py keeps processors apart."""
    told = [info.spec, info.platform, info.name, info.driver, info.version, info.compiled_for]
    program = [Path(__file__).with_name(f"{name}.py") for name in SOURCES]
    told += [_stamp(path) for path in (Path(_library_of(handle)), *program)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def _library_of(handle: int) -> str:
    """The file that a driver was loaded from, "" where nobody says.

    What a loader's device points to begins with the table of its driver's functions.
    """
    table = int.from_bytes(read_memory(handle, 8), sys.byteorder)
    with suppress(OSError):
        for line in MAPS.read_text("utf-8", "replace").splitlines():
            begin, _, end = line.split(maxsplit=1)[0].partition("-")
            if int(begin, 16) <= table < int(end, 16):
                return line[line.index("/") :] if "/" in line else ""
    return ""


def _stamp(path: Path) -> str:
    with suppress(OSError):
        state = os.stat(path)
        return f"{path} {state.st_size} {state.st_mtime_ns}"
    return str(path)


def _kept(path: Path | None) -> str | None:
    """The problem that was found before, "" for none; None if it is to be found out."""
    if path is None:
        return None
    try:
        problem = json.loads(path.read_text("utf-8"))["problem"]
        old = abs(time.time() - path.stat().st_mtime) > DAY
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if not isinstance(problem, str) or (problem and old) else problem


def _keep(path: Path | None, problem: str) -> None:
    if path is None:
        return
    part = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # then the next process tries again
        part.write_text(json.dumps({"problem": problem}), "utf-8")
        part.replace(path)


# Trying


def _tried(info: DeviceInfo) -> str:
    """What goes wrong in a process that uses the device, "" if nothing does."""
    try:
        done = child.run(TIMEOUT, "imgmlp.engine.device.trial", info.spec)
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT:.0f} s"
    except OSError as error:
        return f"no process can be started to try it ({error.strerror})"
    said = done.stdout.strip().splitlines()
    if done.returncode == 0 and said:
        return "" if said[-1] == WORKS else said[-1]
    last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
    return f"trying it ended by {child.ended_by(done.returncode)}: {last}"
