"""Ctrl-C, kill and the end of a terminal as a polite request first, as an order the second time.

Knows neither files nor training; signals belong to the main thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

HANGUP = getattr(signal, "SIGHUP", None)  # which Windows does not have
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([] if HANGUP is None else [HANGUP]))
# Signals that were to end this process. The exception that says so is lost where it meets a
# finaliser or a driver's callback, from which Python takes none.
_ordered: list[int] = []


def raise_on_signals() -> None:
    """Make a kill end this process as Ctrl-C does, so that no half-written file stays behind."""
    _ordered.clear()
    for number in _heard():
        signal.signal(number, _interrupt)


def _heard() -> list[signal.Signals]:
    """Those that are not ignored on purpose, as `nohup` has the terminal's end, and not a host's.

    A handler that Python did not set, of a program that Python is embedded in, Python can only
    replace, never put back. It is that program's to say what a signal does.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    ignored = HANGUP is not None and before[HANGUP] is signal.SIG_IGN
    return [
        number
        for number, handler in before.items()
        if handler is not None and not (ignored and number == HANGUP)
    ]


def shield_children() -> None:
    """From now on programs that this process starts do not hear of Ctrl-C, which is for it alone.

    A driver starts compilers and linkers by itself, and takes the process down if one of them ends.
    They inherit what the thread blocks that starts them; another one hears the signals instead.
    """
    if hasattr(signal, "pthread_sigmask"):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


@contextmanager
def shielding() -> Iterator[None]:
    """Threads that are started in the meantime, and processes that these start, do not hear of
    Ctrl-C."""
    with _masked("SIG_BLOCK"):
        yield


@contextmanager
def hearing() -> Iterator[None]:
    """Let signals end what waits for others: a stream that nobody writes or reads."""
    with _masked("SIG_UNBLOCK"):
        yield


@contextmanager
def _masked(how: str) -> Iterator[None]:
    """Block the signals in this thread, or let it hear them, where there is such a thing."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(getattr(signal, how), SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """From here on the process ends by itself, with the exit code that it chose."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _ordered.append(number)
    _end()


def _end() -> NoReturn:
    ignore_signals()  # so that cleaning up is not interrupted in its turn
    raise KeyboardInterrupt


class StopRequest:
    """While it is open, the first signal is only noted; the second raises KeyboardInterrupt.

    So does the first one before anybody has asked for it: what is compiled until then, perhaps for
    half a minute, is nothing to be saved. An order that was lost is given again by the next look.
    """

    def __init__(self) -> None:
        self._noted = self._asked = self._ordered = False
        self._before: dict[signal.Signals, Any] = {}

    def requested(self) -> bool:
        """Whether a signal has come. Raises KeyboardInterrupt if an order has, which was lost."""
        self._asked = True
        if self._ordered or _ordered:
            raise KeyboardInterrupt
        return self._noted

    def begin(self) -> None:
        """From here on until the next look there is nothing to be saved."""
        self._asked = False

    def __enter__(self) -> StopRequest:
        self.begin()
        self._ordered = False
        self._before = {number: signal.signal(number, self._note) for number in _heard()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # One order ends the process: no later one shall find it telling that.
            if not (self._ordered and handler is _interrupt):
                signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._noted or not self._asked:
            self._ordered = True
            _end()
        self._noted = True
