"""`imgmlp bench`: training and decoding of all contenders, in turns, and what follows from it.

What else a machine does hits whoever has his turn: so that it hits all alike, turns are short
and many, and medians are told.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from imgmlp.bench.by_hand import ByHand
from imgmlp.bench.job import Contender, Job, Ours
from imgmlp.bench.peak import Peak
from imgmlp.bench.pytorch import PyTorch, is_installed
from imgmlp.engine import AnyDevice, Device

PAUSE = 0.1  # seconds before a turn: threads of others wait busily for a while after their work
WARM = 4  # a turn begins with a quarter as much untimed: rested cores need some 10 ms
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Turns:
    """How much is measured."""

    count: int  # of every contender, for each figure
    seconds: float  # that a turn should take
    starts: int  # processes


FULL = Turns(count=9, seconds=0.25, starts=5)
QUICK = Turns(count=3, seconds=0.05, starts=2)


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
    left_out: list[str] = field(default_factory=list)  # who, and why
    peak: dict[int, list[float]] = field(default_factory=dict)  # GFLOP/s, beside each batch
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
        values = [value for turns in self.peak.values() for value in turns]
        return max(values, default=None)

    def share_of_peak(self, name: str) -> dict[int, float]:
        return {b: self.gflops(name)[b] / max(turns) for b, turns in self.peak.items()}


def others(job: Job, device: AnyDevice) -> dict[str, Callable[[], Contender]]:
    """Whoever is there beside imgmlp, still to be made ready."""
    gpu = device.info.kind == "gpu"
    contenders: dict[str, Callable[[], Contender]] = {"NumPy by hand": lambda: ByHand(job)}
    if is_installed():
        contenders["PyTorch eager"] = lambda: PyTorch(job, False, gpu)
        contenders["PyTorch compiled"] = lambda: PyTorch(job, True, gpu)
    return contenders


def measure(
    job: Job, device: AnyDevice, batches: Sequence[int], turns: Turns, show: Tell
) -> Measured:
    """Steps of each batch size and decoding, by all contenders in turns.

    One that cannot do it, as PyTorch compiled where there is no compiler, is left out.
    """
    show("preparing")
    there: dict[str, Contender] = {"imgmlp": Ours(job, device)}
    left_out = []
    for name, make in others(job, device).items():
        try:
            contender = make()
            contender.steps(batches[0], 1)
            contender.decode()
        except Exception as error:  # of any kind: it is none of imgmlp's
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            left_out.append(f"{name} failed: {reason}")
        else:
            there[name] = contender
    measured = Measured(job, {name: Times() for name in there}, left_out)
    peak = Peak(device) if isinstance(device, Device) else None
    for batch in batches:
        show(f"{batch:,} rows")
        step = {name: _Turn(partial(c.steps, batch), turns.seconds) for name, c in there.items()}
        for _ in range(turns.count):
            for name in there:
                measured.times[name].step.setdefault(batch, []).append(step[name].time() * 1e6)
            if peak is not None:
                time.sleep(PAUSE)
                measured.peak.setdefault(batch, []).append(peak.gflops())
    show("decoding")
    decode = {name: _Turn(partial(_pictures, c), turns.seconds) for name, c in there.items()}
    for _ in range(turns.count):
        for name in there:
            measured.times[name].decode.append(decode[name].time() * 1e3)
    return measured


def _pictures(contender: Contender, count: int) -> None:
    for _ in range(count):
        contender.decode()


class _Turn:
    """As many runs of the same as fill some seconds; what is compiled at first is compiled here."""

    def __init__(self, run: Callable[[int], object], seconds: float) -> None:
        self._run = run
        run(1)
        count = 1
        while (taken := self._seconds(count)) < seconds / 4:
            count *= 2
        self._count = max(1, round(count * seconds / taken))

    def time(self) -> float:
        """Seconds of a run, after a pause and, untimed, what warms the cores."""
        time.sleep(PAUSE)
        self._run(max(1, self._count // WARM))
        return self._seconds(self._count) / self._count

    def _seconds(self, count: int) -> float:
        begin = time.perf_counter()
        self._run(count)
        return time.perf_counter() - begin


def as_json(measured: Measured, device: AnyDevice) -> dict[str, Any]:
    """Everything that was measured, as medians; batch sizes are keys of text."""
    ours, *others = measured.times

    def figures(name: str) -> dict[str, Any]:
        return {
            "us_per_step": _keyed(measured.us_per_step(name)),
            "rows_per_second": _keyed(measured.rows_per_second(name)),
            "gflops": _keyed(measured.gflops(name)),
            "decode_ms": measured.decode_ms(name),
        }

    return {
        "device": device.info.describe(),
        "driver": f"{device.info.driver}, {device.info.version}",
        "system": platform.platform(),
        **figures(ours),
        "start_s": median(measured.start) if measured.start else None,
        "peak_gflops": measured.peak_gflops(),
        "share_of_peak": _keyed(measured.share_of_peak(ours)),
        "left_out": measured.left_out,
        "others": {name: figures(name) for name in others},
    }


def _keyed(values: dict[int, float]) -> dict[str, float]:
    return {str(batch): value for batch, value in values.items()}
