"""`imgmlp bench`: times training steps and decoding of all contenders, and derives figures.

Other load on the machine slows down whichever contender is running. So that it affects all alike,
they alternate in many short turns, and medians over the turns are reported.
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

PAUSE_SECONDS = 0.1  # before a turn; the threads of other contenders keep spinning for a while
WARM_UP_DIVISOR = 4  # a turn begins with an untimed quarter: idle cores need some 10 ms to speed up
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Turns:
    """How many turns are measured, and how long they take."""

    count: int  # turns of each contender for each figure
    seconds: float  # of a turn, approximately
    starts: int  # processes whose start-up is timed


FULL = Turns(count=9, seconds=0.25, starts=5)
QUICK = Turns(count=3, seconds=0.05, starts=2)


@dataclass
class Times:
    """The times of all turns of a contender."""

    step: dict[int, list[float]] = field(default_factory=dict)  # µs per step, by batch size
    decode: list[float] = field(default_factory=list)  # milliseconds per picture


@dataclass
class Measured:
    """The times of all contenders. The first is imgmlp."""

    job: Job
    times: dict[str, Times]
    left_out: list[str] = field(default_factory=list)  # messages about contenders that failed
    peak: dict[int, list[float]] = field(
        default_factory=dict
    )  # GFLOP/s in each turn, by batch size
    start: list[float] = field(default_factory=list)  # seconds from process start to first step

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

    def fraction_of_peak(self, name: str) -> dict[int, float]:
        return {b: self.gflops(name)[b] / max(turns) for b, turns in self.peak.items()}


def others(job: Job, device: AnyDevice) -> dict[str, Callable[[], Contender]]:
    """Functions that make the other contenders that are available, by name."""
    gpu = device.info.kind == "gpu"
    contenders: dict[str, Callable[[], Contender]] = {"NumPy by hand": lambda: ByHand(job)}
    if is_installed():
        contenders["PyTorch eager"] = lambda: PyTorch(job, False, gpu)
        contenders["PyTorch compiled"] = lambda: PyTorch(job, True, gpu)
    return contenders


def measure(
    job: Job, device: AnyDevice, batches: Sequence[int], turns: Turns, show: Tell
) -> Measured:
    """Time training steps of each batch size and decoding, with all contenders in turns.

    A contender that fails is left out, such as compiled PyTorch if there is no compiler.
    """
    show("preparing")
    contenders: dict[str, Contender] = {"imgmlp": Ours(job, device)}
    left_out = []
    for name, make in others(job, device).items():
        try:
            contender = make()
            contender.steps(batches[0], 1)
            contender.decode()
        except Exception as error:  # of any kind, since it comes from other packages
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            left_out.append(f"{name} failed: {reason}")
        else:
            contenders[name] = contender
    measured = Measured(job, {name: Times() for name in contenders}, left_out)
    peak = Peak(device) if isinstance(device, Device) else None
    for batch in batches:
        show(f"{batch:,} rows")
        step = {
            name: _Turn(partial(c.steps, batch), turns.seconds) for name, c in contenders.items()
        }
        for _ in range(turns.count):
            for name in contenders:
                measured.times[name].step.setdefault(batch, []).append(step[name].time() * 1e6)
            if peak is not None:
                time.sleep(PAUSE_SECONDS)
                measured.peak.setdefault(batch, []).append(peak.gflops())
    show("decoding")
    decode = {
        name: _Turn(partial(_decode_repeatedly, c), turns.seconds) for name, c in contenders.items()
    }
    for _ in range(turns.count):
        for name in contenders:
            measured.times[name].decode.append(decode[name].time() * 1e3)
    return measured


def _decode_repeatedly(contender: Contender, count: int) -> None:
    for _ in range(count):
        contender.decode()


class _Turn:
    """A timed turn: as many calls as take about `seconds`. Compilation is done when it is made."""

    def __init__(self, run: Callable[[int], object], seconds: float) -> None:
        self._run = run
        run(1)
        count = 1
        while (taken := self._seconds(count)) < seconds / 4:
            count *= 2
        self._count = max(1, round(count * seconds / taken))

    def time(self) -> float:
        """Seconds per call, after a pause and an untimed warm-up."""
        time.sleep(PAUSE_SECONDS)
        self._run(max(1, self._count // WARM_UP_DIVISOR))
        return self._seconds(self._count) / self._count

    def _seconds(self, count: int) -> float:
        begin = time.perf_counter()
        self._run(count)
        return time.perf_counter() - begin


def as_json(measured: Measured, device: AnyDevice) -> dict[str, Any]:
    """All figures for JSON, as medians. Batch sizes become strings."""
    ours, *others = measured.times

    def figures(name: str) -> dict[str, Any]:
        return {
            "us_per_step": _with_string_keys(measured.us_per_step(name)),
            "rows_per_second": _with_string_keys(measured.rows_per_second(name)),
            "gflops": _with_string_keys(measured.gflops(name)),
            "decode_ms": measured.decode_ms(name),
        }

    return {
        "device": device.info.describe(),
        "driver": f"{device.info.driver}, {device.info.version}",
        "system": platform.platform(),
        **figures(ours),
        "start_s": median(measured.start) if measured.start else None,
        "peak_gflops": measured.peak_gflops(),
        "share_of_peak": _with_string_keys(measured.fraction_of_peak(ours)),
        "left_out": measured.left_out,
        "others": {name: figures(name) for name in others},
    }


def _with_string_keys(values: dict[int, float]) -> dict[str, float]:
    return {str(batch): value for batch, value in values.items()}
