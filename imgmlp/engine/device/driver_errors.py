"""What a driver's failure becomes: an error that says what happened and what to do."""

from __future__ import annotations

import tempfile
from pathlib import Path

from imgmlp.engine.device.base import DeviceInfo
from imgmlp.errors import DeviceError, OutOfMemoryError

LOG_LINES = 12  # of a compiler's log that are shown


class LastingError(DeviceError):
    """It comes again until the driver or the program is another one."""


class UnnamedError(DeviceError):
    """A program lacks a kernel that it was asked for."""


def failure(what: str, status: str, memory: bool) -> DeviceError | OutOfMemoryError:
    """The error for an OpenCL call; `status` is OpenCL's name for what happened."""
    if memory:
        return OutOfMemoryError(
            f"the device ran out of memory while {what} ({status})",
            hint="use a smaller picture or batch, or another device",
        )
    return DeviceError(
        f"{what} failed: {status}",
        hint="run the command again; `imgmlp devices` shows what else there is",
    )


def unnamed(name: str, error: object) -> UnnamedError:
    """The error for a kernel that its program lacks, which a damaged one does."""
    return UnnamedError(
        f"the built program has no kernel {name}: {error}",
        hint="`imgmlp devices --check` removes compiled kernels that are damaged; if it comes "
        "again, this is a fault in imgmlp: please report it",
    )


def fault(problem: str) -> DeviceError:
    """The error for what no user could have caused."""
    return DeviceError(problem, hint="this is a fault in imgmlp; please report it")


def lost(what: str, info: DeviceInfo) -> DeviceError:
    """The error for using a device whose queue has failed before."""
    return DeviceError(
        f"{info.describe()} is lost: it failed while {what}, and its memory may be half written",
        hint="open the device again, or run the command again; `imgmlp devices --check` tests it",
    )


def forked() -> DeviceError:
    """The error for using OpenCL in a process that was forked from one with a device."""
    return DeviceError(
        "this process was forked from one that had opened an OpenCL device",
        hint="start it by 'spawn' or 'forkserver' (multiprocessing.get_context), or open devices "
        "only after the fork; 'numpy' works in any process",
    )


def does_not_fit(nbytes: int, most: int, info: DeviceInfo) -> OutOfMemoryError:
    """The error for an allocation; `most` bytes is what the device gives at once."""
    return OutOfMemoryError(
        f"{nbytes:,} bytes do not fit on {info.describe()}, which has "
        f"{info.memory:,} bytes, at most {most:,} at once",
        hint="use a smaller picture or batch, or another device",
    )


def build_failure(source: str, log: str, info: DeviceInfo) -> DeviceError:
    """The error for a source that the driver refuses, which is saved for a closer look."""
    lines = [line for line in log.splitlines() if line.strip()]
    first = next((n for n, line in enumerate(lines) if "error:" in line), 0)
    refused = "BUILD_PROGRAM_FAILURE" in log  # and not for want of memory or of the device
    return (LastingError if refused else DeviceError)(
        f"a kernel does not compile on {info.describe()}",
        hint="\n".join([_saved(source), *lines[first : first + LOG_LINES]]),
    )


def disk_full(place: Path | None) -> DeviceError:
    """The error where compiled kernels cannot be written, which would end the process."""
    where = "anywhere" if place is None else f"to {place}"
    return DeviceError(
        f"what kernels are compiled to cannot be written {where}",
        hint="is the disk full, or is there a limit for files (ulimit -f)? Make room, or set "
        "POCL_CACHE_DIR to another folder; --device numpy compiles nothing",
    )


def removed(place: Path) -> DeviceError:
    """The error where compiled kernels are removed while a compiler writes them."""
    return DeviceError(
        f"{place} was removed while a kernel was compiled there",
        hint="run the command again, once nobody removes compiled kernels",
    )


def _saved(source: str) -> str:
    """Where the source is now, or why it is nowhere: compilers fail on full disks too."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="imgmlp-", suffix=".cl", delete=False
        ) as file:
            file.write(source)
    except OSError as error:
        return f"its source cannot be saved either ({error.strerror}): is the disk full?"
    return f"its source is in {file.name}"
