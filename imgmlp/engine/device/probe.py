"""Whether a device works, tried once in a process that may be lost, and remembered.

A driver that is installed need not work: its compiler may not know the processor, its libraries may
be missing, and some drivers end the process that they fail in. So a device's first use is a tiny
kernel in a process of its own (trial.py). What comes of it is kept beside the compiled kernels, for
this processor, this device, this driver and this program; a failure only for a day, as what was in
the way may be gone, and no answer for some minutes, as the machine may only have been busy. Nothing
is kept of what says more of the machine's state than of the driver.
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
from imgmlp.engine.device.kernel_cache import choose_cache, current, locked, mend, write_whole
from imgmlp.engine.device.pocl import read_memory, unfit

WORKS = "works"
PASSING = 75  # how a trial exits whose problem may be gone the next time; EX_TEMPFAIL of sysexits.h
CRASHES = (signal.SIGILL, signal.SIGSEGV, signal.SIGABRT)  # other signals come from outside
TIMEOUT = 180.0  # seconds on an idle machine; cold it takes under one, emulated ten
BUSIEST = 10.0  # processes to a core, for which that is waited at most as many times as long
LONGEST = TIMEOUT * BUSIEST + 10  # seconds in which whoever tries is done, and has kept it
DAY = 86400.0  # seconds for which a failure is believed
WHILE = 600.0  # seconds for which no answer is; enough for commands that follow one another
PREFIX = "probe-"
# What decides, and may change.
SOURCES = ("probe", "trial", "discover", "opencl", "building", "driver", "driver_errors", "pocl")
MAPS = Path("/proc/self/maps")
LINKERS = ("ld", "gcc")  # PoCL runs the one, with files of the other; small systems lack both
NOT_LINKED = "linker command failed"  # what its compiler says then
INSTALL_LINKER = "install gcc and libc6-dev, or what your system calls them"
_working: set[str] = set()  # what this process knows of, where nothing can be kept


class Outcome(NamedTuple):
    """Of trying a device."""

    problem: str = ""  # "" if it works, which is believed until something changes
    believed: float = 0.0  # seconds for which a problem is


def problem_of(handle: int, info: DeviceInfo) -> str:
    """Why a device does not work, "" if it does; `handle` is the address of its cl_device_id."""
    if info.kind == "simulator":  # for tests, and slow; never chosen unless asked for
        return ""
    if problem := unfit(info.platform, info.compiled_for):
        return problem
    key = _key(handle, info)
    if key in _working:
        return ""
    place = current()
    problem = _found(_path(place, key), info) if place else _tried(info).problem
    if not problem:
        _working.add(key)
    return problem


def doubt(handle: int, info: DeviceInfo) -> None:
    """Have a device tried again when it is next used."""
    key, place = _key(handle, info), current()
    _working.discard(key)
    with suppress(OSError):
        if place is not None:
            _path(place, key).unlink(missing_ok=True)


def forget() -> None:
    """Have every device tried again when it is next used, without what is damaged of kernels."""
    _working.clear()
    mend_kernels()
    place = current()
    with suppress(OSError):
        for path in place.glob(f"{PREFIX}*.json") if place else ():
            path.unlink(missing_ok=True)


def mend_kernels() -> None:
    """Remove what is damaged of the kernels that are kept."""
    choose_cache()
    _mend()


def _mend() -> None:
    place = current()
    if place is not None:
        with suppress(OSError):
            mend(place)


# What is kept


def _path(place: Path, key: str) -> Path:
    return place / f"{PREFIX}{key}.json"


def _key(handle: int, info: DeviceInfo) -> str:
    """Differs where the outcome may: kernel_cache.py keeps processors apart."""
    told = [info.spec, info.platform, info.name, info.driver, info.version, info.compiled_for]
    path = os.environ.get("PATH", "")  # nothing is found without it, though which() would look
    told += [shutil.which(name, path=path) or "" for name in LINKERS]  # nobody waits for a day then
    program = [str(Path(__file__).with_name(f"{name}.py")) for name in SOURCES]
    told += [_stamp(path) for path in (_library_of(handle), *program)]
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


def _stamp(path: str) -> str:
    """A file and what changes with it; of no name nothing, which would be the present folder."""
    with suppress(OSError):
        state = os.stat(path)  # refuses ""
        return f"{path} {state.st_size} {state.st_mtime_ns}"
    return path


def _found(path: Path, info: DeviceInfo) -> str:
    """The problem that is kept, or else what is found out now."""
    problem = _kept(path)
    if problem is None:
        holder = f"another process, which tries whether {info.describe()} works"
        with locked(path.with_name("imgmlp-probe.lock"), LONGEST, holder):
            problem = _kept(path)  # whoever waited here finds what it waited for
            if problem is None:
                problem = _keep(path, _tried(info))
    return problem


def _kept(path: Path) -> str | None:
    """The problem that was found before, "" for none; None if it is to be found out."""
    try:
        problem, believed = Outcome(**json.loads(path.read_text("utf-8")))
        age = abs(time.time() - path.stat().st_mtime)
        return None if problem and age > believed else str(problem)
    except (OSError, ValueError, TypeError):
        return None


def _keep(path: Path, outcome: Outcome) -> str:
    """The problem, which the next process finds, if it is to be believed."""
    if outcome.problem and not outcome.believed:
        return outcome.problem
    with suppress(OSError):  # the next process tries again
        write_whole(path, json.dumps(outcome._asdict()))
    return outcome.problem


# Trying


def _patience() -> float:
    """Seconds to wait for an answer: more where other work waits for the cores too."""
    try:
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    except (AttributeError, OSError):  # Windows says nothing of it
        return TIMEOUT
    return TIMEOUT * min(max(1.0, waiting), BUSIEST)


def _tried(info: DeviceInfo, mended: bool = False) -> Outcome:
    """What comes of using the device in another process; if that crashes, also of a second one,
    without what is damaged of kernels."""
    limit = _patience()
    try:
        done = child.run(limit, "imgmlp.engine.device.trial", info.spec)
    except subprocess.TimeoutExpired:
        return Outcome(f"no answer within {limit:.0f} s; the machine may be busy", WHILE)
    except OSError as error:
        return Outcome(f"no process can be started to try it ({error.strerror})")
    said = done.stdout.strip().splitlines()
    if done.returncode in (0, PASSING) and said:
        believed = 0.0 if done.returncode else DAY
        return Outcome() if said[-1] == WORKS else Outcome(said[-1], believed)
    if NOT_LINKED in done.stderr:
        advice = INSTALL_LINKER if os.environ.get("PATH") else "set PATH, in which to look for ld"
        return Outcome(f"it cannot link what it compiles: {advice}", DAY)
    last = (done.stderr.strip().splitlines() or ["without a word"])[-1]
    problem = f"trying it ended by {child.describe_exit(done.returncode)}: {last}"
    if -done.returncode not in CRASHES:
        return Outcome(problem)
    if mended:
        return Outcome(problem, DAY)
    _mend()
    return _tried(info, mended=True)
