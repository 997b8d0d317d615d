"""Works that need no device, for processes that are started to do them: they import this module."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import util
from pathlib import Path

from imgmlp import child
from imgmlp.batch import pool
from imgmlp.batch.output import put
from imgmlp.batch.work import Record, Watch
from imgmlp.ending import keep_open
from imgmlp.engine import AnyDevice
from imgmlp.errors import DeviceError, Interrupted, OutputError, PictureError

WAIT = 120.0  # seconds for what takes one or two


def tries(path: Path) -> int:
    """How often a file was begun, by whichever process."""
    return len(list(path.parent.glob(f"{path.name}.try*")))


@dataclass(frozen=True)
class Acting:
    """Does with each file what its content says, and leaves a note that it was begun."""

    def __call__(self, record: Record, device: Callable[[], AnyDevice], watch: Watch) -> None:
        path = record.task.source
        said = path.read_text()
        path.with_name(f"{path.name}.try-{os.getpid()}-{time.monotonic_ns()}").touch()
        if said == "die" or (said == "die once" and tries(path) == 1):
            os.kill(os.getpid(), signal.SIGKILL)
        elif said == "no device" or (said == "no device once" and tries(path) == 1):
            raise DeviceError("it is gone")
        elif said == "bad":
            raise PictureError("no picture", hint="give another")
        elif said == "fault":
            raise ZeroDivisionError
        elif said == "threads":
            raise PictureError(os.environ["OPENBLAS_NUM_THREADS"])
        elif said == "compilers":
            raise PictureError(os.environ.get(child.COMPILERS_VARIABLE, "as usual"))
        elif said == "full":
            raise OutputError("cannot write") from OSError(28, "No space left on device")
        elif said == "somebody writes it" and record.task.output is not None:
            record.task.output.write_bytes(b"theirs")
            put(record.task, b"ours", "--force replaces it")
        elif said == "wait":
            deadline = time.monotonic() + 3 * WAIT
            while not watch.stopping() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise Interrupted("stopped")
        elif said == "compile":
            with watch.training(100):
                time.sleep(3 * WAIT)
        record.line, record.written = f"{path.name} done", True


def fail_between_files() -> None:
    """What a fault of a process itself comes to, in a process of its own."""
    keep_open(object())
    util.Finalize(None, pool.exit_quickly, exitpriority=-100)
    raise ZeroDivisionError
