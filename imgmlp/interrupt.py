"""Signals that interrupt: Ctrl-C, kill and a closed terminal.

The first signal asks the work to stop once its state is saved; the second ends it at once. This
module knows neither files nor training. Only the main thread receives signals.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([] if HANGUP is None else [HANGUP]))
# Signals that raised KeyboardInterrupt. Python drops an exception that is raised within a finaliser
# or a driver's callback, so StopRequest.requested() raises it once more.
_interrupting_signals: list[int] = []


def raise_on_signals() -> None:
    """Make every signal raise KeyboardInterrupt, so that no half-written file stays behind."""
    _interrupting_signals.clear()
    for number in _handled_signals():
        signal.signal(number, _interrupt)


def _handled_signals() -> list[signal.Signals]:
    """The signals to handle.

    SIGHUP is left out if it is ignored, as under `nohup`. Signals with a handler that Python did
    not set are left out as well: it belongs to a program that embeds Python, and could not be
    restored.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ignored = HANGUP is not None and before[HANGUP] is signal.SIG_IGN
    return [
        number
        for number, handler in before.items()
        if handler is not None and not (ignored and number == HANGUP)
    ]


def shield_children() -> None:
    """From now on, keep Ctrl-C from programs that this process starts.

    A driver starts compilers and linkers by itself and aborts the process if one of them is killed.
    Child processes inherit the signals that the starting thread blocks, so this thread blocks them,
    and an idle thread receives them instead.
    """
    if hasattr(signal, "pthread_sigmask"):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


@contextmanager
def blocked_for_new_threads() -> Iterator[None]:
    """Keep Ctrl-C from threads that are started in the meantime, and from their child processes."""
    with _masked("SIG_BLOCK"):
        yield


@contextmanager
def unblocked() -> Iterator[None]:
    """Let signals interrupt a read or write that waits for another program."""
    with _masked("SIG_UNBLOCK"):
        yield


@contextmanager
def _masked(how: str) -> Iterator[None]:
    """Block or unblock the signals in this thread, on systems that can (not on Windows)."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(getattr(signal, how), SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """From now on the process ends with the exit code that it has chosen."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _interrupting_signals.append(number)
    _raise_interrupt()


def _raise_interrupt() -> NoReturn:
    ignore_signals()  # so that cleaning up is not interrupted in turn
    raise KeyboardInterrupt


class StopRequest:
    """A context in which the first signal only requests a stop; the second raises
    KeyboardInterrupt.

    Before the first call of `requested` there is nothing to save, as kernels still compile, perhaps
    for half a minute. Until then even the first signal raises KeyboardInterrupt. If Python has
    dropped that exception, the next call of `requested` raises it again.
    """

    def __init__(self) -> None:
        self._is_requested = False
        self._is_polled = False  # whether `requested` was called since `begin`
        self._is_interrupted = False  # whether KeyboardInterrupt was raised
        self._previous_handlers: dict[signal.Signals, Any] = {}

    def requested(self) -> bool:
        """Whether a signal asked to stop. Raises a KeyboardInterrupt that Python has dropped."""
        self._is_polled = True
        if self._is_interrupted or _interrupting_signals:
            raise KeyboardInterrupt
        return self._is_requested

    def begin(self) -> None:
        """Say that nothing needs to be saved until the next call of `requested`."""
        self._is_polled = False

    def __enter__(self) -> StopRequest:
        self.begin()
        self._is_interrupted = False
        self._previous_handlers = {
            number: signal.signal(number, self._handle) for number in _handled_signals()
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            # Once interrupted, the process ends; another signal must not disturb its last message.
            if not (self._is_interrupted and handler is _interrupt):
                signal.signal(number, handler)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_requested or not self._is_polled:
            self._is_interrupted = True
            _raise_interrupt()
        self._is_requested = True
