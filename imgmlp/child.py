"""Starts Python processes that run a module of this package, installed or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

# Environment variable: the maximum number of processes that may compile for one process.
COMPILERS_VARIABLE = "IMGMLP_COMPILERS"
POLL_INTERVAL = 0.02  # seconds
KILL_TIMEOUT = 10.0  # seconds that a killed process may take to end


def command(module: str, *arguments: str) -> list[str]:
    """`python -m module arguments`; -P keeps modules in the current folder from being imported."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """This process's environment variables, with a PYTHONPATH on which a child finds imgmlp."""
    package_parent = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}


def available_cores() -> int:
    """The number of CPU cores that this process may use, at most those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(timeout: float, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module until it ends and capture its output. Raises TimeoutExpired or OSError."""
    return subprocess.run(
        command(module, *arguments),
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout,
        check=False,
    )


def describe_exit(code: int) -> str:
    """How a process ended, from its return code: a signal or an exit code."""
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"exit code {code}"


class Helper:
    """A background process, `python -m module arguments`, that ends with this process at the
    latest.

    It compiles what this process will need and leaves it in the caches on disk. If it fails,
    nothing is lost: what is not in the caches is compiled by the process that needs it.
    """

    _stdout = subprocess.DEVNULL

    def __init__(
        self, module: str, *arguments: str, may_have_helpers: bool = False, **variables: str
    ) -> None:
        """Start it with additional environment variables.

        `may_have_helpers` lets it start helpers of its own, for when cores are idle meanwhile.
        """
        limit = {} if may_have_helpers else {COMPILERS_VARIABLE: "0"}
        self._process: subprocess.Popen[bytes] | None = None
        # OSError: no more processes may be started; TypeError: sys.executable is None.
        with suppress(OSError, TypeError):
            self._process = subprocess.Popen(
                command(module, *arguments),
                env=environment() | limit | variables,
                stdin=subprocess.PIPE,  # it is closed whenever and however this process ends
                stdout=self._stdout,
                stderr=subprocess.DEVNULL,
            )

    @property
    def working(self) -> bool:
        """Whether it has started and not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def done(self) -> bool:
        """Whether it has compiled everything."""
        return self._process is not None and self._process.poll() == 0

    def wait(self, enough: Callable[[], bool]) -> None:
        """Wait until it has ended, or until `enough()` is true."""
        while self.working and not enough():
            time.sleep(POLL_INTERVAL)

    def kill(self) -> None:
        """Kill it, without waiting for its end."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """Kill it and wait for its end, but not forever: a driver may keep a process from
        ending."""
        self.kill()
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_TIMEOUT)
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):  # the pipe is broken and had buffered data
                        stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class Worker(Helper):
    """A helper that takes tasks, one line each, and writes a line when it is ready for the next.

    It ends when its standard input does; other helpers call end_with_parent() for that.
    """

    _stdout = subprocess.PIPE

    def send(self, line: str) -> None:
        """Give it its next task. If it has ended, nothing happens, and wait_until_ready() says
        so."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # ValueError: end() was called meanwhile
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def wait_until_ready(self) -> bool:
        """Wait until it is ready for a task; False if it has ended instead."""
        if self._process is None:
            return False
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            return bool(self._process.stdout.readline())
        return False


def end_with_parent(before: Callable[[], object] = lambda: None) -> None:
    """In a Helper: call `before` and exit as soon as the parent process has ended.

    The parent may be killed without a chance to end its helpers, and its signals do not reach them.
    """

    def end() -> None:
        while os.read(sys.stdin.fileno(), 1):  # unlike sys.stdin.read, it holds no lock at exit
            pass
        before()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
