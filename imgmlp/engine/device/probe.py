"""Finds out whether a device works, by a trial in another process, and caches the outcome.

An installed driver may not work: its compiler may not know the processor, its libraries may be
missing, and some drivers crash when they fail. So a device's first use is a tiny kernel in a
process of its own (trial.py). The outcome is stored beside the compiled kernels, for this
processor, device, driver and version of imgmlp. A failure is valid for a day, as its cause may be
removed; a timeout for some minutes, as the machine may only have been busy. Failures due to
the state of the machine, such as a lack of memory, are not stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from imgmlp import child
from imgmlp.engine.device.base import DeviceInfo
from imgmlp.engine.device.kernel_cache import (
    cache_folder,
    choose_cache,
    locked,
    remove_damaged,
    write_whole,
)
from imgmlp.engine.device.pocl import read_memory, unsupported_reason

WORKS = "works"
TEMPORARY_FAILURE = (
    75  # how a trial exits whose problem may be gone the next time; EX_TEMPFAIL of sysexits.h
)
CRASH_SIGNALS = (signal.SIGILL, signal.SIGSEGV, signal.SIGABRT)  # other signals come from outside
TIMEOUT = 180.0  # seconds on an idle machine; cold it takes under one, emulated ten
MAX_LOAD = 10.0  # runnable processes per core; the timeout grows with the load up to this factor
MAX_TRIAL_SECONDS = (
    TIMEOUT * MAX_LOAD + 10
)  # in which any process has finished its trial and stored the outcome
FAILURE_LIFETIME = 86400.0  # seconds for which a failure is valid
TIMEOUT_LIFETIME = 600.0  # seconds for which a timeout is valid; enough for successive commands
PREFIX = "probe-"
# Modules on which the outcome depends.
SOURCE_MODULES = (
    "probe",
    "trial",
    "discover",
    "opencl",
    "building",
    "driver",
    "driver_errors",
    "pocl",
)
MAPS = Path("/proc/self/maps")
LINKERS = ("ld", "gcc")  # PoCL runs ld, with files of gcc; minimal systems lack both
LINKER_ERROR = "linker command failed"  # the message of PoCL's compiler without a linker
INSTALL_LINKER = "install gcc and libc6-dev, or what your system calls them"
_working: set[str] = set()  # keys of devices that work, for this process


class Outcome(NamedTuple):
    """The outcome of a trial."""

    problem: str = ""  # "" if the device works
    lifetime: float = 0.0  # seconds for which a problem is valid; 0: it is not stored


def problem_of(handle: int, info: DeviceInfo) -> str:
    """Why a device does not work, "" if it works; `handle` is the address of its cl_device_id."""
    if info.kind == "simulator":  # slow, and only for tests
        return ""
    if problem := unsupported_reason(info.platform, info.compiled_for):
        return problem
    key = _key(handle, info)
    if key in _working:
        return ""
    place = cache_folder()
    problem = _cached_problem(_path(place, key), info) if place else _try_device(info).problem
    if not problem:
        _working.add(key)
    return problem


def forget_outcome(handle: int, info: DeviceInfo) -> None:
    """Forget the outcome for a device, which is tried again when it is next used."""
    key, place = _key(handle, info), cache_folder()
    _working.discard(key)
    with suppress(OSError):
        if place is not None:
            _path(place, key).unlink(missing_ok=True)


def forget_all() -> None:
    """Forget all outcomes, and remove damaged kernels from the cache."""
    _working.clear()
    remove_damaged_kernels()
    place = cache_folder()
    with suppress(OSError):
        for path in place.glob(f"{PREFIX}*.json") if place else ():
            path.unlink(missing_ok=True)


def remove_damaged_kernels() -> None:
    """Remove damaged kernels from the cache."""
    choose_cache()
    _remove_damaged()


def _remove_damaged() -> None:
    place = cache_folder()
    if place is not None:
        with suppress(OSError):
            remove_damaged(place)


# The stored outcomes


def _path(place: Path, key: str) -> Path:
    return place / f"{PREFIX}{key}.json"


def _key(handle: int, info: DeviceInfo) -> str:
    """A digest of all that the outcome depends on. (Each processor has its own folder.)"""
    parts = [info.spec, info.platform, info.name, info.driver, info.version, info.compiled_for]
    path = os.environ.get("PATH", "")  # as which() would take a default if it were None
    parts += [shutil.which(name, path=path) or "" for name in LINKERS]  # tried anew once installed
    program = [str(Path(__file__).with_name(f"{name}.py")) for name in SOURCE_MODULES]
    parts += [_stamp(path) for path in (_library_of(handle), *program)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _library_of(handle: int) -> str:
    """The file that a driver was loaded from, "" if that is not known.

    A device of the OpenCL loader points to an object that begins with the driver's function table.
    """
    table = int.from_bytes(read_memory(handle, 8), sys.byteorder)
    with suppress(OSError):
        for line in MAPS.read_text("utf-8", "replace").splitlines():
            begin, _, end = line.split(maxsplit=1)[0].partition("-")
            if int(begin, 16) <= table < int(end, 16):
                return line[line.index("/") :] if "/" in line else ""
    return ""


def _stamp(path: str) -> str:
    """A file's path, size and time of change; just the path if there is no such file."""
    with suppress(OSError):
        state = os.stat(path)  # fails for "", unlike Path
        return f"{path} {state.st_size} {state.st_mtime_ns}"
    return path


def _cached_problem(path: Path, info: DeviceInfo) -> str:
    """The stored problem, or else that of a trial, which is stored."""
    problem = _read_problem(path)
    if problem is None:
        holder = f"another process, which tries whether {info.describe()} works"
        with locked(path.with_name("imgmlp-probe.lock"), MAX_TRIAL_SECONDS, holder):
            problem = _read_problem(path)  # another process may have stored it meanwhile
            if problem is None:
                problem = _store(path, _try_device(info))
    return problem


def _read_problem(path: Path) -> str | None:
    """The stored problem, "" if the device works; None if nothing valid is stored."""
    try:
        problem, lifetime = Outcome(**json.loads(path.read_text("utf-8")))
        age = abs(time.time() - path.stat().st_mtime)
        return None if problem and age > lifetime else str(problem)
    except (OSError, ValueError, TypeError):
        return None


def _store(path: Path, outcome: Outcome) -> str:
    """Store an outcome if it is valid for some time; returns its problem."""
    if outcome.problem and not outcome.lifetime:
        return outcome.problem
    with suppress(OSError):  # the next process tries again
        write_whole(path, json.dumps(outcome._asdict()))
    return outcome.problem


# The trial


def _timeout() -> float:
    """Seconds to wait for the trial: more on a busy machine."""
    try:
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):  # Windows has no load average
        return TIMEOUT
    return TIMEOUT * min(max(1.0, waiting), MAX_LOAD)


def _try_device(info: DeviceInfo, is_repeated: bool = False) -> Outcome:
    """The outcome of using the device in another process.

    If that process crashes, damaged kernels are removed from the cache and it is repeated once.
    """
    limit = _timeout()
    try:
        done = child.run(limit, "imgmlp.engine.device.trial", info.spec)
    except subprocess.TimeoutExpired:
        return Outcome(f"no answer within {limit:.0f} s; the machine may be busy", TIMEOUT_LIFETIME)
    except OSError as error:
        return Outcome(f"no process can be started to try it ({error.strerror})")
    lines = done.stdout.strip().splitlines()
    if done.returncode in (0, TEMPORARY_FAILURE) and lines:
        lifetime = 0.0 if done.returncode else FAILURE_LIFETIME
        return Outcome() if lines[-1] == WORKS else Outcome(lines[-1], lifetime)
    if LINKER_ERROR in done.stderr:
        advice = INSTALL_LINKER if os.environ.get("PATH") else "set PATH, in which to look for ld"
        return Outcome(f"it cannot link what it compiles: {advice}", FAILURE_LIFETIME)
    last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
    problem = f"trying it ended by {child.describe_exit(done.returncode)}: {last}"
    if -done.returncode not in CRASH_SIGNALS:
        return Outcome(problem)
    if is_repeated:
        return Outcome(problem, FAILURE_LIFETIME)
    _remove_damaged()
    return _try_device(info, is_repeated=True)
