"""Python processes that run a module of this package, also from a checkout not installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


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
