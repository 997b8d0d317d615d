"""Another process that compiles what this one will need: caches on disk keep it for both.

Knows no program: codecs have a module that compiles one, and calls `child.end_with_parent` before.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from imgmlp import child

LOOKED = 0.02  # seconds between looks at it


class CompileAhead:
    """`python -m module arguments`, until it has ended or is left.

    Whatever becomes of it, what it has not compiled is compiled where it is needed.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        nothing = subprocess.DEVNULL
        self._process: subprocess.Popen[bytes] | None = None
        # Where no more processes may be started, for one, or Python does not know its own program.
        with suppress(OSError, TypeError):
            self._process = subprocess.Popen(
                child.command(module, *arguments),
                # On one core: the others have something to do meanwhile.
                env=child.environment() | {child.COMPILERS: "0"},
                stdin=subprocess.PIPE,  # which ends when this process does, however that ends
                stdout=nothing,
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()
