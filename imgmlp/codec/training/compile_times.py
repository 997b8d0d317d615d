"""How long programs took to compile on a device, and how fast they were, kept from one command to
the next.

So that how long a command will take can be told before anything is compiled: what was compiled here
before, from the same source, is found in the driver's cache; what was not takes about as long as
others of its kind. Lies beside the compiled kernels, and goes with them. Knows of networks only
which kind takes long: codecs name their programs, "kind: which".
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

NAME = "compile-times.json"
UNKNOWN = 4.0  # seconds of a program on a device of which nothing is known
# Likewise, of a kind that drivers of processors take longer for: 10 to 31 s were seen on two cores
# of AMD EPYCs, family 25, idle and busy ones.
PROCESSORS = {"latent step": 16.0}
FOUND = 0.5  # seconds that a program may take which the driver found in its cache
SPEED = "speed of a {}"  # how a kind's is named: in operations a second
OF, DIGITS = " of ", 12  # of the source's digest, in names of programs
ALIKE = 1.2  # times another speed, or a part of it, that is not worth writing down


class CompileTimes:
    """Of one device. Nothing is known, and nothing kept, where there is no place to keep it."""

    def __init__(self, device: AnyDevice) -> None:
        self._device, self._seen = device, device.compiling + device.lowering
        info, folder = device.info, cache_folder()
        told = info.platform, info.name, info.driver, info.version, info.compiled_for
        self._key = ", ".join(each for each in told if each)
        self._path = None if folder is None else folder / NAME

    def expected(self, programs: Iterable[str]) -> float:
        """Seconds that compiling them will take, about."""
        if isinstance(self._device, NumpyDevice):
            return 0.0
        known = self._known()
        return sum(0.0 if _now(one) in known else self._usual(known, one) for one in programs)

    def note(self, program: str) -> None:
        """What was compiled since this was made, or called, belongs to a program."""
        before, self._seen = self._seen, self._device.compiling + self._device.lowering
        taken = self._seen - before
        if isinstance(self._device, NumpyDevice) or self._path is None:
            return
        if taken > FOUND or _now(program) not in self._known():
            kept = _read(self._path)
            programs = kept.get(self._key, {})
            others = {n: each for n, each in programs.items() if not n.startswith(program + OF)}
            kept[self._key] = others | {_now(program): round(taken, 3)}
            _write(self._path, kept)

    def speed(self, kind: str) -> float | None:
        """Operations a second of programs of a kind, as they were last."""
        return self._known().get(SPEED.format(kind))

    def note_speed(self, kind: str, found: float) -> None:
        before = self.speed(kind)
        if self._path is None or (before and 1 / ALIKE < found / before < ALIKE):
            return
        kept = _read(self._path)
        kept.setdefault(self._key, {})[SPEED.format(kind)] = found
        _write(self._path, kept)

    def _known(self) -> dict[str, float]:
        """Seconds of the programs that were compiled on this device, and speeds."""
        return {} if self._path is None else _read(self._path).get(self._key, {})

    def _usual(self, known: dict[str, float], program: str) -> float:
        """Seconds of others of its kind."""
        kind = program.partition(":")[0]
        alike = [
            seconds
            for name, seconds in known.items()
            if name.partition(":")[0] == kind and seconds > FOUND
        ]
        if alike:
            return median(alike)
        return PROCESSORS.get(kind, UNKNOWN) if self._device.info.kind == "cpu" else UNKNOWN


def _now(program: str) -> str:
    """How a program is named that is compiled from this source: other versions' differ."""
    return program + OF + source_digest()[:DIGITS]


def _read(path: Path) -> dict[str, dict[str, float]]:
    try:
        found: Any = json.loads(path.read_text("utf-8"))
        return {
            str(device): {str(name): float(seconds) for name, seconds in programs.items()}
            for device, programs in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):  # nothing is lost with it
        return {}


def _write(path: Path, kept: dict[str, dict[str, float]]) -> None:
    with suppress(OutputError):  # guesses stay as they were
        write_atomically(path, lambda stream: stream.write(json.dumps(kept).encode()))
