"""What a codec run is made of: settings, architecture, encoding, and the weights they lead to.

Frozen values that the rest of the codec shares. They check themselves when they are made, so
nothing below has to. Knows neither the engine nor files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from imgmlp.codec.float_mlp.presets import NUMBERS
from imgmlp.errors import UsageError
from imgmlp.image import MAX_PIXELS, check_size

MAX_WIDTH = 4096  # values in one layer
MAX_LAYERS = 32
MAX_PARAMETERS = 2**24
MAX_STEPS = 10**8
MAX_BATCH = 2**20
# The highest frequency that the Nyquist rate of the largest picture asks for.
MAX_FREQUENCY = float(MAX_PIXELS)
MAX_OCTAVES = MAX_PIXELS.bit_length()  # frequencies 1, 2, 4 ... up to that
# Of a learning rate, as a float32 value; smaller ones some devices take for 0.
LEAST_RATE, MOST_RATE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_USUAL = NUMBERS["default"]


def _check(ok: bool, problem: str, hint: str) -> None:
    if not ok:
        raise UsageError(problem, hint=hint)


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    _check(ok, f"{name} is {value!r}", f"use a whole number from {low:,} to {high:,}")


@dataclass(frozen=True)
class Encoding:
    """Frequencies that turn a pixel's place into features: sin and cos of each, along each axis.

    `x` and `y` are in cycles per width and per height of the picture, float32 values.
    Sample i of n lies at (i + origin) / n: an origin of 0.5 means pixel centres.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    origin: float

    def __post_init__(self) -> None:
        counts = f"{len(self.x)} frequencies along x and {len(self.y)} along y"
        _check(len(self.x) == len(self.y) > 0, counts, "both axes need the same number, not 0")
        for f in (*self.x, *self.y):
            good = math.isfinite(f) and 0 <= f <= MAX_FREQUENCY and float(np.float32(f)) == f
            hint = f"use float32 values from 0 to {MAX_FREQUENCY:.0f}"
            _check(good, f"{f!r} is no frequency in cycles per picture", hint)
        _check(0 <= self.origin < 1, f"the origin is {self.origin!r}", "use a value in [0, 1)")

    @property
    def features(self) -> int:
        return 4 * len(self.x)


@dataclass(frozen=True)
class Architecture:
    """Widths of a fully connected network, input first: every layer but the last has a bias
    and a leaky ReLU; the last has neither, and gives channel values where black is 0 and white 1.
    """

    sizes: tuple[int, ...]
    slope: float  # of the leaky ReLU below zero, a float32 value

    def __post_init__(self) -> None:
        count = len(self.sizes) - 1
        _check_whole("the number of layers", count, 1, MAX_LAYERS)
        for width in self.sizes:
            _check_whole("a layer's width", width, 1, MAX_WIDTH)
        hint = "use a value from 0 to 1"
        _check(0 <= self.slope <= 1, f"the leaky ReLU's slope is {self.slope!r}", hint)
        hint = f"use fewer or narrower layers: at most {MAX_PARAMETERS:,}"
        _check(self.parameters <= MAX_PARAMETERS, f"{self.parameters:,} parameters", hint)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of all parameters in the order of the flat array: W0, b0, W1, b1, ... W_last.

        A matrix is [inputs, outputs], so that a layer is `x @ W + b` on rows x.
        """
        shapes: list[tuple[int, ...]] = []
        for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False):
            shapes += [(inputs, outputs), (outputs,)]
        return tuple(shapes[:-1])

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def spans(self) -> Iterator[tuple[int, int, tuple[int, ...]]]:
        """(begin, end, shape) of every parameter in the flat array."""
        begin = 0
        for shape in self.shapes:
            end = begin + math.prod(shape)
            yield begin, end, shape
            begin = end

    def __str__(self) -> str:
        return "-".join(map(str, self.sizes))


@dataclass(frozen=True, eq=False)
class Weights:
    """A trained picture: everything that decoding needs. `flat` is float32 [parameters]."""

    architecture: Architecture
    encoding: Encoding
    width: int  # of the original, pixels
    height: int
    flat: np.ndarray
    icc: bytes | None = None

    def __post_init__(self) -> None:
        check_size(self.width, self.height)
        inputs, features = self.architecture.sizes[0], self.encoding.features
        hint = "encoding and network come from different files"
        _check(inputs == features, f"{features} features for {inputs} inputs", hint)
        _check(self.channels in (1, 3), f"{self.channels} output channels", "use 1 or 3")
        want = (self.architecture.parameters,)
        problem = f"weights are {self.flat.dtype}{list(self.flat.shape)}"
        good = self.flat.dtype == np.float32 and self.flat.shape == want
        _check(good, problem, f"float32{list(want)} fits {self.architecture}")
        _check(bool(np.isfinite(self.flat).all()), "weights are not finite", "train again")

    @property
    def channels(self) -> int:
        return self.architecture.sizes[-1]

    def arrays(self) -> list[np.ndarray]:
        """Views of `flat`: W0, b0, W1, b1, ... W_last, with the architecture's shapes."""
        return [self.flat[a:b].reshape(shape) for a, b, shape in self.architecture.spans()]


@dataclass(frozen=True)
class Settings:
    """How to train. Two kinds of network differ in their frequencies, see `features`."""

    preset: str
    steps: int = _USUAL.steps
    batch: int = _USUAL.batch  # pixels in a step
    lr: float = _USUAL.lr
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    schedule: Literal["cosine", "exponential"] = "cosine"
    decay: float = 1.0  # factor of the learning rate a step, exponential schedule
    optimizer: Literal["standard", "seed"] = "standard"
    frequencies: Literal["geometric", "octaves"] = "geometric"
    features: int = _USUAL.features
    hidden: int = _USUAL.hidden
    layers: int = _USUAL.layers  # hidden layers
    slope: float = 0.1
    seed: int = _USUAL.seed
    precision: Literal["float32", "half"] = "float32"  # half where the device multiplies it

    def __post_init__(self) -> None:
        _check_whole("--steps", self.steps, 1, MAX_STEPS)
        _check_whole("--batch", self.batch, 1, MAX_BATCH)
        _check_whole("--hidden", self.hidden, 1, MAX_WIDTH)
        _check_whole("--layers", self.layers, 1, MAX_LAYERS - 1)
        _check_whole("--seed", self.seed, 0, 2**32 - 1)
        _check_whole("--features", self.features, 4, MAX_WIDTH)
        hint = "use a multiple of 4: sine and cosine along two axes"
        _check(self.features % 4 == 0, f"--features is {self.features}", hint)
        if self.frequencies == "octaves":
            hint = f"use at most {4 * MAX_OCTAVES} with --preset seed, whose frequencies double"
            _check(self.features <= 4 * MAX_OCTAVES, f"--features is {self.features}", hint)
        real = isinstance(self.lr, float | int) and not isinstance(self.lr, bool)
        _check(
            real and LEAST_RATE <= self.lr <= MOST_RATE,
            f"--lr is {self.lr!r}",
            f"use a value from {LEAST_RATE:.2g} to {MOST_RATE:.2g}, like 0.01",
        )
        betas = all(0 <= beta < 1 for beta in self.betas)
        _check(betas, f"betas are {self.betas}", "use values in [0, 1)")
        decayed = 0 <= self.weight_decay < math.inf
        _check(decayed, f"weight decay is {self.weight_decay!r}", "use 0 or more")
        _check(0 < self.decay <= 1, f"decay is {self.decay!r}", "use a value in (0, 1]")
        for name, value, known in (
            ("schedule", self.schedule, ("cosine", "exponential")),
            ("optimizer", self.optimizer, ("standard", "seed")),
            ("precision", self.precision, ("float32", "half")),
            ("frequencies", self.frequencies, ("geometric", "octaves")),
        ):
            _check(value in known, f"{name} is {value!r}", f"use {' or '.join(known)}")
        self.architecture(3)  # refuses what is too large as a whole

    def architecture(self, channels: int) -> Architecture:
        """The network for a picture with these channels."""
        slope = float(np.float32(self.slope))
        return Architecture((self.features, *[self.hidden] * self.layers, channels), slope)


PRESETS = {
    "default": Settings("default"),
    "seed": Settings(
        "seed",
        **vars(NUMBERS["seed"]),
        betas=(0.92, 0.95),
        weight_decay=0.01,
        schedule="exponential",
        decay=0.99999,
        optimizer="seed",
        frequencies="octaves",
    ),
}
