"""A record of how long programs took to compile on a device, and how fast they ran.

It tells how long a command will take before anything is compiled. A program that was compiled here
before, from the same source, is in the driver's cache and takes no time; another one takes about as
long as others of its kind did. The record lies in the folder of the compiled kernels and is removed
with them. Codecs name their programs "kind: variant".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from imgmlp.engine import AnyDevice, NumpyDevice, cache_folder
from imgmlp.errors import OutputError
from imgmlp.output_files import write_atomically
from imgmlp.source_digest import source_digest

FILE_NAME = "compile-times.json"
# Seconds to compile a program of a kind that is not in the record.
DEFAULT_COMPILE_SECONDS = 4.0
# The same for kinds that CPU drivers take longer for: 10 to 31 s were measured on two cores of AMD
# EPYCs of family 25, both idle and busy ones.
CPU_COMPILE_SECONDS = {"latent step": 16.0}
MAX_CACHE_HIT_SECONDS = 0.5  # for a program that the driver finds in its cache
SPEED_CHANGE_FACTOR = 1.2  # a speed that differs by less from the recorded one is not recorded

# How entries of the record are named: the speed of a kind, in operations per second, and a program
# with the beginning of the digest of the source that it was compiled from.
SPEED_ENTRY = "speed of a {}"
PROGRAM_ENTRY = "{} of {}"
DIGEST_DIGITS = 12


class CompileTimes:
    """The record of one device. It stays empty if there is no folder for compiled kernels."""

    def __init__(self, device: AnyDevice) -> None:
        self._device, self._recorded_until = device, device.compiling + device.lowering
        info, folder = device.info, cache_folder()
        names = info.platform, info.name, info.driver, info.version, info.compiled_for
        self._key = ", ".join(name for name in names if name)
        self._path = None if folder is None else folder / FILE_NAME

    def expected_seconds(self, programs: Iterable[str]) -> float:
        """About how long it will take to compile these programs."""
        if isinstance(self._device, NumpyDevice):
            return 0.0
        entries = self._entries()
        return sum(
            0.0 if _program_entry(program) in entries else self._typical_seconds(entries, program)
            for program in programs
        )

    def record(self, program: str) -> None:
        """Record the time compiled since this object was made or last recorded as a program's."""
        before, self._recorded_until = (
            self._recorded_until,
            self._device.compiling + self._device.lowering,
        )
        seconds = self._recorded_until - before
        if isinstance(self._device, NumpyDevice) or self._path is None:
            return
        if seconds > MAX_CACHE_HIT_SECONDS or _program_entry(program) not in self._entries():
            devices = _read(self._path)
            older = PROGRAM_ENTRY.format(program, "")  # from any version of the source
            entries = devices.get(self._key, {}).items()
            others = {name: value for name, value in entries if not name.startswith(older)}
            devices[self._key] = others | {_program_entry(program): round(seconds, 3)}
            _write(self._path, devices)

    def speed(self, kind: str) -> float | None:
        """Operations per second of the latest programs of a kind; None if there were none."""
        return self._entries().get(SPEED_ENTRY.format(kind))

    def record_speed(self, kind: str, speed: float) -> None:
        """Record the operations per second of programs of a kind."""
        before = self.speed(kind)
        is_close = before and 1 / SPEED_CHANGE_FACTOR < speed / before < SPEED_CHANGE_FACTOR
        if self._path is None or is_close:
            return
        devices = _read(self._path)
        devices.setdefault(self._key, {})[SPEED_ENTRY.format(kind)] = speed
        _write(self._path, devices)

    def _entries(self) -> dict[str, float]:
        """The seconds of programs compiled on this device, and speeds."""
        return {} if self._path is None else _read(self._path).get(self._key, {})

    def _typical_seconds(self, entries: dict[str, float], program: str) -> float:
        """The median over the programs of the same kind that the driver had to compile."""
        kind = program.partition(":")[0]
        seconds = [
            value
            for name, value in entries.items()
            if name.partition(":")[0] == kind and value > MAX_CACHE_HIT_SECONDS
        ]
        if seconds:
            return median(seconds)
        is_cpu = self._device.info.kind == "cpu"
        return (CPU_COMPILE_SECONDS if is_cpu else {}).get(kind, DEFAULT_COMPILE_SECONDS)


def _program_entry(program: str) -> str:
    """The name of the entry of a program that is compiled from the present source."""
    return PROGRAM_ENTRY.format(program, source_digest()[:DIGEST_DIGITS])


def _read(path: Path) -> dict[str, dict[str, float]]:
    """The entries of each device. Those of a damaged record are lost, which does no harm."""
    try:
        devices: Any = json.loads(path.read_text("utf-8"))
        return {
            str(device): {str(name): float(value) for name, value in entries.items()}
            for device, entries in devices.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(path: Path, devices: dict[str, dict[str, float]]) -> None:
    with suppress(OutputError):  # without the record, estimates are only less exact
        write_atomically(path, lambda stream: stream.write(json.dumps(devices).encode()))
