"""`imgmlp bench kernels`: single kernels over a sweep of sizes, here, in NumPy and in PyTorch.

All providers compute the same in turns of one run, so that whatever else the machine does hits
all of them. A kernel that only moves data is measured in GB/s, each byte that must be read or
written counted once, and can be no faster than the device copies as many bytes; a product is
measured in GFLOP/s.
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
TURN = 0.02  # seconds that a turn should take at least

Array = np.ndarray[Any, Any]
Run = Callable[[int], None]  # computes so many times, and waits
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """What is computed from a square matrix x of float32, by each provider."""

    name: str
    unit: str  # GB/s or GFLOP/s
    amount: Callable[[int], float]  # bytes or operations, from the side of x
    ours: Callable[[Tensor], Tensor]
    by_numpy: Callable[[Array, Array], object]  # (x, out), out as large as x
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
    """Something that can compute the cases."""

    name: str

    def prepare(self, case: Case, side: int) -> Run | None:
        """Compiled or allocated whatever it takes; None if this provider has no such case."""


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
    """The ceiling of whatever moves data: as many bytes copied by the driver."""

    name = COPY

    def __init__(self, device: AnyDevice) -> None:
        self.device = device

    def prepare(self, case: Case, side: int) -> Run | None:
        if case.unit != "GB/s":
            return None
        half = int(case.amount(side)) // 2  # is read, and written again
        source, target = (self.device.alloc(half) for _ in range(2))
        self.device.write(source, np.zeros(half, np.uint8))

        def run(times: int) -> None:
            for _ in range(times):
                self.device.copy(source, target)
            self.device.finish()

        return run


class ByNumpy:
    """NumPy, into arrays that exist already."""

    name = "NumPy"

    def prepare(self, case: Case, side: int) -> Run:
        x, out = _matrix(side), np.empty((side, side), np.float32)

        def run(times: int) -> None:
            for _ in range(times):
                case.by_numpy(x, out)

        return run


class ByTorch:
    """PyTorch, eager, on a graphics card if imgmlp computes on one too."""

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
    """One case at one size: seconds of each turn, by provider."""

    case: Case
    side: int
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def speed(self, provider: str) -> float:
        """Median over the turns, in units of 10^9 a second."""
        return self.case.amount(self.side) / statistics.median(self.seconds[provider]) / 1e9

    def share(self, provider: str, peak: float | None) -> float | None:
        """Of the ceiling: the driver's copy, or for a product the device's peak in GFLOP/s."""
        ceiling = self.speed(COPY) if COPY in self.seconds else peak
        return self.speed(provider) / ceiling if ceiling else None


def providers(device: AnyDevice) -> list[Provider]:
    """imgmlp first, the ceiling last, and whoever is installed between them."""
    present: list[Provider] = [Ours(device), ByNumpy()]
    if find_spec("torch") is not None:
        present.append(ByTorch(gpu=device.info.kind == "gpu"))
    return [*present, DriversCopy(device)]


def sweep(
    device: AnyDevice, sides: Mapping[str, Sequence[int]], turns: int, tell: Tell
) -> Iterator[Point]:
    """Every case at every size that its unit has, as soon as it is measured."""
    there = providers(device)
    for case in CASES:
        for side in sides[case.unit]:
            tell(f"{case.name}, {side} × {side}")
            yield measure(case, side, there, turns)


def measure(case: Case, side: int, there: Sequence[Provider], turns: int) -> Point:
    """So many turns of each provider."""
    runs = {p.name: run for p in there if (run := p.prepare(case, side)) is not None}
    counts = {name: _count(run) for name, run in runs.items()}
    point = Point(case, side, {name: [] for name in runs})
    for _ in range(turns):
        for name, run in runs.items():
            point.seconds[name].append(_seconds(run, counts[name]) / counts[name])
    return point


def _count(run: Run) -> int:
    """How often it runs in a turn; the first time may compile."""
    run(1)
    taken = max(_seconds(run, 1), 1e-6)
    return max(1, min(1000, round(TURN / taken)))


def _seconds(run: Run, times: int) -> float:
    begin = time.perf_counter()
    run(times)
    return time.perf_counter() - begin


COLUMNS = ("case", "side", "bytes", "provider", "microseconds", "least", "speed", "unit", "share")


def rows(points: Sequence[Point], peak: float | None) -> list[dict[str, Any]]:
    """One row for each provider and size, as COLUMNS names its values."""
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
            "share": p.share(name, peak),
        }
        for p in points
        for name, seconds in p.seconds.items()
    ]
