"""`imgmlp bench kernels`: times single kernels of imgmlp, NumPy and PyTorch at several sizes.

All providers compute the same in alternating turns, so that other load on the machine affects them
all. The speed of kernels that only move data is in GB/s, where each byte that must be read or
written counts once; their ceiling is the speed at which the device copies as many bytes. The speed
of a matrix product is in GFLOP/s.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from imgmlp.engine import AnyDevice, Tensor, compile

COPY = "driver's copy"
MIN_TURN_SECONDS = 0.02

Array = np.ndarray[Any, Any]
Run = Callable[[int], None]  # computes a case this many times, and waits for the end
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """A computation on a square matrix x of float32, written for each provider."""

    name: str
    unit: str  # GB/s or GFLOP/s
    work: Callable[[int], float]  # bytes or operations, from the side of x
    ours: Callable[[Tensor], Tensor]
    by_numpy: Callable[[Array, Array], object]  # (x, out); out has the shape of x
    by_torch: Callable[[Any, Any, Any], object]  # (torch, x, out)


def _numpy_softmax(x: Array, out: Array) -> None:
    np.subtract(x, x.max(axis=1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(axis=1, keepdims=True)


CASES = (
    Case(
        "map",
        "GB/s",
        lambda n: 8 * n * n,
        lambda x: x + 1,
        lambda x, out: np.add(x, np.float32(1), out=out),
        lambda torch, x, out: torch.add(x, 1, out=out),
    ),
    Case(
        "sum",
        "GB/s",
        lambda n: 4 * n * n,
        lambda x: x.sum(),
        lambda x, out: x.sum(),
        lambda torch, x, out: torch.sum(x),
    ),
    Case(
        "row softmax",
        "GB/s",
        lambda n: 8 * n * n,
        lambda x: x.softmax(-1),
        _numpy_softmax,
        lambda torch, x, out: torch.softmax(x, 1, out=out),
    ),
    Case(
        "transpose",
        "GB/s",
        lambda n: 8 * n * n,
        lambda x: x.transpose().contiguous(),
        lambda x, out: np.copyto(out, x.T),
        lambda torch, x, out: out.copy_(x.T),
    ),
    Case(
        "product",
        "GFLOP/s",
        lambda n: 2 * n**3,
        lambda x: x @ x,
        lambda x, out: np.matmul(x, x, out=out),
        lambda torch, x, out: torch.mm(x, x, out=out),
    ),
)
SIDES = {"GB/s": (256, 512, 1024, 2048, 4096), "GFLOP/s": (128, 256, 512, 1024)}
QUICK_SIDES = {"GB/s": (512, 2048), "GFLOP/s": (256, 512)}


class Provider(Protocol):
    """A library that computes the cases."""

    name: str

    def prepare(self, case: Case, side: int) -> Run | None:
        """Compile and allocate what a case needs. None if this provider does not have the case."""


class Ours:
    """The engine on a device."""

    name = "imgmlp"

    def __init__(self, device: AnyDevice) -> None:
        self.device = device

    def prepare(self, case: Case, side: int) -> Run:
        x = Tensor(_matrix(side), self.device)
        program = compile(lambda: {"y": case.ours(x)}, self.device)

        def run(times: int) -> None:
            program.run(times)
            program.wait()

        return run


class DriversCopy:
    """The ceiling for kernels that move data: the driver copies as many bytes."""

    name = COPY

    def __init__(self, device: AnyDevice) -> None:
        self.device = device

    def prepare(self, case: Case, side: int) -> Run | None:
        if case.unit != "GB/s":
            return None
        half = int(case.work(side)) // 2  # the copy reads and writes each byte
        source, target = (self.device.alloc(half) for _ in range(2))
        self.device.write(source, np.zeros(half, np.uint8))

        def run(times: int) -> None:
            for _ in range(times):
                self.device.copy(source, target)
            self.device.finish()

        return run


class ByNumpy:
    """NumPy, which writes to existing arrays."""

    name = "NumPy"

    def prepare(self, case: Case, side: int) -> Run:
        x, out = _matrix(side), np.empty((side, side), np.float32)

        def run(times: int) -> None:
            for _ in range(times):
                case.by_numpy(x, out)

        return run


class ByTorch:
    """Eager PyTorch, on a GPU if imgmlp runs on one and PyTorch can."""

    name = "PyTorch"

    def __init__(self, gpu: bool) -> None:
        self.torch: Any = import_module("torch")
        self.cuda = gpu and bool(self.torch.cuda.is_available())

    def prepare(self, case: Case, side: int) -> Run:
        x = self.torch.from_numpy(_matrix(side)).to("cuda" if self.cuda else "cpu")
        out = self.torch.empty_like(x)

        def run(times: int) -> None:
            for _ in range(times):
                case.by_torch(self.torch, x, out)
            if self.cuda:
                self.torch.cuda.synchronize()

        return run


def _matrix(side: int) -> Array:
    return np.random.default_rng(side).random((side, side), np.float32)


@dataclass
class Point:
    """The times of one case at one size."""

    case: Case
    side: int
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of each turn, by provider

    def speed(self, provider: str) -> float:
        """The median over the turns, in GB/s or GFLOP/s."""
        return self.case.work(self.side) / statistics.median(self.seconds[provider]) / 1e9

    def fraction_of_ceiling(self, provider: str, peak: float | None) -> float | None:
        """The fraction of the ceiling: the driver's copy, or the peak in GFLOP/s of a product."""
        ceiling = self.speed(COPY) if COPY in self.seconds else peak
        return self.speed(provider) / ceiling if ceiling else None


def providers(device: AnyDevice) -> list[Provider]:
    """imgmlp, then NumPy and, if it is installed, PyTorch; the driver's copy is the last."""
    present: list[Provider] = [Ours(device), ByNumpy()]
    if find_spec("torch") is not None:
        present.append(ByTorch(gpu=device.info.kind == "gpu"))
    return [*present, DriversCopy(device)]


def sweep(
    device: AnyDevice, sides: Mapping[str, Sequence[int]], turns: int, tell: Tell
) -> Iterator[Point]:
    """Measure every case at all `sides` for its unit."""
    all_providers = providers(device)
    for case in CASES:
        for side in sides[case.unit]:
            tell(f"{case.name}, {side} × {side}")
            yield measure(case, side, all_providers, turns)


def measure(case: Case, side: int, all_providers: Sequence[Provider], turns: int) -> Point:
    """Measure a case at one size, with this number of turns for each provider."""
    runs = {p.name: run for p in all_providers if (run := p.prepare(case, side)) is not None}
    counts = {name: _calls_per_turn(run) for name, run in runs.items()}
    point = Point(case, side, {name: [] for name in runs})
    for _ in range(turns):
        for name, run in runs.items():
            point.seconds[name].append(_elapsed(run, counts[name]) / counts[name])
    return point


def _calls_per_turn(run: Run) -> int:
    """The number of calls in a turn. The first call is not timed, since it may compile."""
    run(1)
    taken = max(_elapsed(run, 1), 1e-6)
    return max(1, min(1000, round(MIN_TURN_SECONDS / taken)))


def _elapsed(run: Run, times: int) -> float:
    begin = time.perf_counter()
    run(times)
    return time.perf_counter() - begin


COLUMNS = ("case", "side", "bytes", "provider", "microseconds", "least", "speed", "unit", "share")


def rows(points: Sequence[Point], peak: float | None) -> list[dict[str, Any]]:
    """A row with the values of COLUMNS for each provider and size."""
    return [
        {
            "case": p.case.name,
            "side": p.side,
            "bytes": 4 * p.side * p.side,
            "provider": name,
            "microseconds": statistics.median(seconds) * 1e6,
            "least": min(seconds) * 1e6,
            "speed": p.speed(name),
            "unit": p.case.unit,
            "share": p.fraction_of_ceiling(name, peak),
        }
        for p in points
        for name, seconds in p.seconds.items()
    ]
