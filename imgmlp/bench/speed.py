"""`imgmlp bench`: training and decoding of all contenders, in turns, and what follows from it.

What else a machine does hits whoever has his turn: so that it hits all alike, turns are short
and many, and medians are told.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from imgmlp.bench.by_hand import ByHand
from imgmlp.bench.job import Contender, Job, Ours
from imgmlp.bench.peak import Peak
from imgmlp.bench.pytorch import PyTorch, is_installed
from imgmlp.engine import AnyDevice, Device

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    turns: int  # of every contender, for each figure
    seconds: float  # that a turn should take
    starts: int  # processes


FULL = Effort(turns=9, seconds=0.25, starts=5)
QUICK = Effort(turns=3, seconds=0.05, starts=2)


@dataclass
class Times:
    """What was measured of one contender, each turn's."""

    step: dict[int, list[float]] = field(default_factory=dict)  # microseconds, by rows
    decode: list[float] = field(default_factory=list)  # milliseconds


@dataclass
class Measured:
    """All turns of all contenders, imgmlp first."""

    job: Job
    times: dict[str, Times]
    peak: list[float] = field(default_factory=list)  # GFLOP/s
    start: list[float] = field(default_factory=list)  # seconds

    def us_per_step(self, name: str) -> dict[int, float]:
        return {batch: median(t) for batch, t in self.times[name].step.items()}

    def rows_per_second(self, name: str) -> dict[int, float]:
        return {batch: batch / us * 1e6 for batch, us in self.us_per_step(name).items()}

    def decode_ms(self, name: str) -> float:
        return median(self.times[name].decode)

    def gflops(self, name: str) -> dict[int, float]:
        return {b: self.job.flops(b) / us / 1e3 for b, us in self.us_per_step(name).items()}

    def peak_gflops(self) -> float | None:
        return median(self.peak) if self.peak else None

    def share_of_peak(self, name: str) -> dict[int, float]:
        peak = self.peak_gflops()
        return {b: found / peak for b, found in self.gflops(name).items()} if peak else {}


def contenders(job: Job, device: AnyDevice) -> Iterator[Callable[[], Contender]]:
    """Who is there, to be made ready: PyTorch takes its time."""
    yield lambda: ByHand(job)
    if is_installed():
        gpu = device.info.kind == "gpu"
        yield lambda: PyTorch(job, False, gpu)
        yield lambda: PyTorch(job, True, gpu)


def measure(
    job: Job, device: AnyDevice, batches: Sequence[int], effort: Effort, show: Tell
) -> Measured:
    """Steps of each batch size and decoding, by all contenders in turns."""
    show("preparing")
    there: list[Contender] = [Ours(job, device), *(make() for make in contenders(job, device))]
    found = Measured(job, {c.name: Times() for c in there})
    peak = Peak(device) if isinstance(device, Device) else None
    for batch in batches:
        show(f"{batch:,} rows")
        counts = [_count(c, batch, effort.seconds) for c in there]
        for _ in range(effort.turns):
            for contender, count in zip(there, counts, strict=True):
                seconds = _seconds(partial(contender.steps, batch, count))
                times = found.times[contender.name].step.setdefault(batch, [])
                times.append(seconds / count * 1e6)
            if peak is not None:
                found.peak.append(peak.gflops())
    show("decoding")
    for turn in range(effort.turns + 1):
        for contender in there:
            seconds = _seconds(contender.decode)
            if turn:  # the first may compile
                found.times[contender.name].decode.append(seconds * 1e3)
    return found


def _count(contender: Contender, batch: int, seconds: float) -> int:
    """How many steps fill so many seconds; whatever is compiled at first is compiled here."""
    contender.steps(batch, 1)
    count = 1
    while (taken := _seconds(partial(contender.steps, batch, count))) < seconds / 4:
        count *= 2
    return max(1, round(count * seconds / taken))


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def as_json(found: Measured, device: AnyDevice) -> dict[str, Any]:
    """Everything that was measured, as medians; batch sizes are keys of text."""
    ours, *others = found.times

    def figures(name: str) -> dict[str, Any]:
        return {
            "us_per_step": _keyed(found.us_per_step(name)),
            "rows_per_second": _keyed(found.rows_per_second(name)),
            "gflops": _keyed(found.gflops(name)),
            "decode_ms": found.decode_ms(name),
        }

    return {
        "device": device.info.describe(),
        "driver": f"{device.info.driver}, {device.info.version}",
        "system": platform.platform(),
        **figures(ours),
        "start_s": median(found.start) if found.start else None,
        "peak_gflops": found.peak_gflops(),
        "share_of_peak": _keyed(found.share_of_peak(ours)),
        "others": {name: figures(name) for name in others},
    }


def _keyed(values: dict[int, float]) -> dict[str, float]:
    return {str(batch): value for batch, value in values.items()}
