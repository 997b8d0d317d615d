"""Python processes that run a module of this package, also from a checkout not installed."""

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

# The environment variable that says how many processes, at most, compile beside one that does.
COMPILERS = "IMGMLP_COMPILERS"
LOOKED = 0.02  # seconds between looks at a process
HELD = 10.0  # seconds that one may take to end which was killed


def command(module: str, *arguments: str) -> list[str]:
    """`python -m module arguments`, which looks for no modules in the current folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """This process's, with the package where the child finds it."""
    here = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}


def cores_here() -> int:
    """Processors that this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(timeout: float, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What became of such a process, and what it said. Raises TimeoutExpired or OSError."""
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


def ended_by(code: int) -> str:
    """What a process's return code says of how it ended."""
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"exit code {code}"


class Helper:
    """`python -m module arguments`, until it has ended or is left; it ends with this process.

    It compiles what this process needs, and leaves it in caches on disk. Whatever becomes of it,
    what is not there is compiled where it is needed.
    """

    _answers = subprocess.DEVNULL

    def __init__(
        self, module: str, *arguments: str, helped: bool = False, **variables: str
    ) -> None:
        """With environment variables besides this process's, and helped by processes of its own
        only if cores have nothing to do meanwhile."""
        nothing = subprocess.DEVNULL
        alone = {} if helped else {COMPILERS: "0"}
        self._process: subprocess.Popen[bytes] | None = None
        # Where no more processes may be started, for one, or Python does not know its own program.
        with suppress(OSError, TypeError):
            self._process = subprocess.Popen(
                command(module, *arguments),
                env=environment() | alone | variables,
                stdin=subprocess.PIPE,  # which ends when this process does, however that ends
                stdout=self._answers,
                stderr=nothing,
            )

    @property
    def working(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def done(self) -> bool:
        """Whether it has compiled all."""
        return self._process is not None and self._process.poll() == 0

    def wait(self, enough: Callable[[], bool]) -> None:
        """Until it has ended, or it is `enough`."""
        while self.working and not enough():
            time.sleep(LOOKED)

    def kill(self) -> None:
        """Have it end, whatever it is doing."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> None:
        """The same, and wait for it; not for one that a driver holds."""
        self.kill()
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(HELD)
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):  # what was still to be written
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
    """One that is told what to do, a line for each, and says a line when it is ready for the next.

    It ends where its own input does; others call end_with_parent() for that.
    """

    _answers = subprocess.PIPE

    def tell(self, line: str) -> None:
        """What to do next; of one that has ended hear() says so."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # the latter where end() was called meanwhile
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def hear(self) -> bool:
        """Wait until it is ready; whether it has not ended."""
        if self._process is None:
            return False
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            return bool(self._process.stdout.readline())
        return False


def end_with_parent(before: Callable[[], object] = lambda: None) -> None:
    """In a Helper: end when the process that started it has, which may have had no time to say so,
    and whose signals are not for this one; do something `before`."""

    def end() -> None:
        while os.read(sys.stdin.fileno(), 1):  # a lock of sys.stdin's would outlive Python's end
            pass
        before()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
