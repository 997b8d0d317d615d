"""Python processes that run a module of this package, also from a checkout not installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

# The environment variable that says how many processes, at most, compile beside one that does.
COMPILERS = "IMGMLP_COMPILERS"


def command(module: str, *arguments: str) -> list[str]:
    """`python -m module arguments`, which looks for no modules in the current folder."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """This process's, with the package where the child finds it."""
    here = str(Path(__file__).parent.parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}


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


def end_with_parent() -> None:
    """In a process that was started with a pipe: end when the one that started it has, which may
    have had no time to say so, and whose signals are not for this one."""

    def end() -> None:
        while os.read(sys.stdin.fileno(), 1):  # a lock of sys.stdin's would outlive Python's end
            pass
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
