"""Training a network that will be rounded: one step that knows noise, rounding and their lambda.

The step minimises the mean squared error on [0, 1] plus lambda times bits per pixel. First the
weights are free. Then each tensor's weights are moved by noise as wide as its step, and the step
itself is learned: the noise says what it costs, the rate what it saves. At last the steps stand
still and the weights are rounded. `Control` says which of these holds, so that one compiled
program serves all three. Features and activation are those of `integer_inference`, in floats.

A step may be made for a wider network than the one that it trains (buckets.py): what that has more
is 0 and stays so, as its gradients are 0, and noise is kept from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from imgmlp.codec.mlp import buckets, integer_inference
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.training.checkpoint import Resumable
from imgmlp.codec.training.memory_limits import explain, smaller_picture
from imgmlp.codec.training.perceptron import perceptron
from imgmlp.codec.training.pixels import check_tables, pixel_features, random_places, size_of
from imgmlp.codec.training.replay import SMOOTHING
from imgmlp.engine import AnyDevice, NumpyDevice, Program, Tensor, compile, dtype, nn, optim
from imgmlp.errors import OutOfMemoryError
from imgmlp.image import has_alpha, visible_fraction

Array = np.ndarray[Any, Any]
T = TypeVar("T")

BATCH = 1024  # pixels in a step, if nothing else is wanted
RATE = 6e-3  # learning rate of networks 88 wide; wider ones need a smaller one
USUAL_STEPS = 60_000  # longer runs need a smaller one too
_BY_BATCH, _BY_LENGTH = 0.3, 0.25  # powers by which it grows with the batch, falls with the length
STEP_RATE = 3.0  # times the learning rate: that of the steps' logarithms
WARM_UP = 200  # steps in which the learning rate rises, of a short run a twentieth
BETAS = (0.9, 0.99)
UNSEEN = -1  # a sample that does not count
DECAY = 0.01  # of weights: without it they grow, and with them the values of layers, which then die
EPSILON = 1e-12  # gradients of single weights can be as small as 1e-8
_LEAST = 0.2  # steps by which the mean magnitude is taken to be larger when rates are counted


class Steering(NamedTuple, Generic[T]):
    """What `Control` comes to for a step: one float32 array on the device, in this order."""

    noise: T  # as in Control, 0 or 1
    rounding: T
    lmbda: T  # lambda, for each pixel
    rate: T  # factor of the learning rates
    per_run: T  # part of the run that a step is
    per_warm_up: T  # and of the warm-up
    weights: T  # their learning rate at its peak
    sizes: T  # that of the steps' logarithms


@dataclass
class Control:
    """What the host decides while the step is replayed."""

    steps: int  # of the whole run: the learning rate falls as half a cosine
    noise: bool = False
    rounding: bool = False
    lmbda: float = 0.0  # lambda
    rate: float = 1.0  # factor of the learning rate

    def array(self, pixels: int, peak: float) -> Array:
        """float32 [8], the Steering of a step of so many pixels, whose weights have this learning
        rate at most."""
        steering = Steering(
            noise=float(self.noise),
            rounding=float(self.rounding),
            lmbda=self.lmbda / pixels,
            rate=self.rate * min(1.0, USUAL_STEPS / self.steps) ** _BY_LENGTH,
            per_run=1 / self.steps,
            per_warm_up=1 / max(1.0, min(WARM_UP, self.steps / 20)),
            weights=peak,
            sizes=peak * STEP_RATE,
        )
        return np.array(steering, np.float32)


def forward(flat: Tensor, shape: Shape, features: Tensor) -> Tensor:
    """[rows, features] -> [rows, channels]; black is -1/2, white 1/2."""
    return perceptron(features, nn.slices(flat, shape.shapes))


def feature_table(count: int, samples: int) -> Array:
    """float32 [samples, 2 * count]: the features that decoding will compute, as numbers."""
    table = integer_inference.features(count, samples, 0, samples)
    return (table / integer_inference.ONE).astype(np.float32)


class LearningStep(Resumable):
    """State on the device, and the program that moves it.

    Tensors of the network, W0, b0, W1, b1 ..., have one step size each. The program is that of a
    `bucket`, the network itself if none is given.
    """

    def __init__(
        self,
        pixels: Array,
        shape: Shape,
        seed: int,
        device: AnyDevice,
        batch: int = BATCH,
        bucket: Shape | None = None,
    ) -> None:
        self.height, self.width, self.channels = pixels.shape
        self.shape, self.seed, self.device = shape, seed, device
        self.bucket, self.batch = bucket or shape, batch
        self.counts = [math.prod(size) for size in shape.shapes]
        check_tables(self.width + self.height, self.bucket.sizes[0], device)
        tables = (self._table(n) for n in (self.width, self.height))
        self.x, self.y = (
            Tensor(t, device, name=f"{axis}_table") for t, axis in zip(tables, "xy", strict=True)
        )
        self.pixels = Tensor(_marked(pixels).reshape(-1, self.channels), device, name="pixels")
        self.counted: float = visible_fraction(pixels)
        self.size = size_of(self.height, self.width, device)
        self.parameter_indices = buckets.parameter_indices(shape, self.bucket)
        counts = [math.prod(size) for size in self.bucket.shapes]
        owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        self.owner = Tensor(owner, device, name="owner")  # the tensor of each parameter
        numbers = self._in_bucket(np.arange(shape.parameters, dtype=np.int32))
        self.numbers = Tensor(numbers, device, name="numbers")  # of draws, by the network alone
        is_used = self._in_bucket(np.ones(shape.parameters, np.float32))
        self.is_used = Tensor(is_used, device, name="is_used")
        self.members = Tensor(self._members(), device, name="members")
        ones = np.ones(len(self.counts), np.float32)
        self.means = Tensor(ones, device, name="means")  # magnitudes of each tensor's weights
        self.flat = self._initial()
        self.sizes = Tensor(np.zeros(len(self.counts), np.float32), device, name="log2_steps")
        self.sums_of = Tensor(np.array(self.counts, np.float32), device, name="counts")
        self.control = Tensor(np.zeros(len(Steering._fields), np.float32), device, name="control")
        self.count = Tensor(np.uint32(0), device, name="count")
        self.smooth = Tensor(np.float32(0), device, name="smooth")
        self.peak = RATE * math.sqrt(88 / shape.width) * (batch / BATCH) ** _BY_BATCH
        told = self.steering
        self.adam = optim.AdamW([self.flat], self._rate(told.weights), BETAS, DECAY, EPSILON)
        moving = self._rate(told.sizes) * told.noise
        self.adam_sizes = optim.Adam([self.sizes], moving, BETAS, EPSILON)
        self.program: Program = compile(self._step, device)

    def _table(self, samples: int) -> Array:
        """float32 [samples, features], and more rows where the compiler would treat so few apart.

        Then the kernels are those of any other picture. Features that only the bucket has are 0.
        """
        found = feature_table(self.shape.frequencies, samples)
        more = 2 * (self.bucket.frequencies - self.shape.frequencies)
        return np.pad(found, ((0, max(0, self.batch - samples)), (0, more)))

    def _initial(self) -> Tensor:
        """Weights of variance 2 / inputs, of the last layer half of it; biases 0.

        NumPy draws them: a kernel that is used once takes longer to compile.
        """
        parts, shapes, host = list[Tensor](), self.shape.shapes, NumpyDevice("numpy")
        for number, size in enumerate(shapes):
            if len(size) == 1:
                parts.append(Tensor.zeros(*size, device=host))
                continue
            variance = (2 if number < len(shapes) - 2 else 1) / size[0]
            stream = (self.seed, number)
            draw = Tensor.normal((math.prod(size),), stream, variance=variance, device=host)
            parts.append(draw)
        drawn = self._in_bucket(Tensor.concat(parts).numpy())
        return Tensor(drawn, self.device, name="parameters")

    def _in_bucket(self, values: Array) -> Array:
        """[parameters of the network] -> [those of the bucket], 0 where that has more."""
        found = np.zeros(self.bucket.parameters, values.dtype)
        found[self.parameter_indices] = values
        return found

    @property
    def steering(self) -> Steering[Tensor]:
        """What it is told, on the device."""
        return Steering(*(self.control[n] for n in range(len(Steering._fields))))

    def _rate(self, peak: Tensor) -> Tensor:
        told, done = self.steering, self.count.cast(dtype.f32)
        cosine = ((done * told.per_run * math.pi).cos() + 1.0) * 0.5
        warm = ((done + 1.0) * told.per_warm_up).minimum(1.0)
        return warm * cosine * told.rate * peak

    def _step(self) -> dict[str, Tensor]:
        told = self.steering
        row, column = random_places(self.batch, self.size, self.seed, self.count)
        features = pixel_features(self.x, self.y, column, row)  # [batch, features]
        samples = self.pixels.gather(row * self.size[1] + column).cast(dtype.f32)
        step = self.sizes.exp2().gather(self.owner)  # [parameters]
        drawn = Tensor.uniform(self.flat.shape, (self.seed, self.count, 2))
        draw = (drawn.contiguous().gather(self.numbers) - 0.5) * self.is_used
        rounded = (_rounded(self.flat / step) * step - self.flat) * told.rounding
        used = self.flat + step * draw * told.noise + rounded
        answer = forward(used, self.bucket, features)
        difference = answer - (samples * (1 / 255) - 0.5)
        if self.channels in (2, 4):
            difference = difference * (samples - UNSEEN).minimum(1.0)
        share = 1 / math.prod(difference.shape)  # files depend on this product, which no mean is
        error = difference.square().sum() * share
        (slope,) = error.gradient([used])
        by_weight, by_size = self._rate_gradients(step, told.lmbda)
        self.adam.apply([slope + by_weight])
        by_noise = self._sums(slope * (used - self.flat)) * math.log(2)
        self.adam_sizes.apply([by_noise + by_size])
        smooth = self.smooth * SMOOTHING + error * (1 - SMOOTHING)
        self.smooth.assign(smooth)
        self.count.assign(self.count + 1)
        return {"smooth": smooth}

    def _rate_gradients(self, step: Tensor, lmbda: Tensor) -> tuple[Tensor, Tensor]:
        """Of lambda times bits, by the weights and by the logarithms of the steps.

        Weights of a tensor with mean magnitude m cost about log2(m / step + a little) bits each;
        `weigh` has looked at m.
        """
        mean = self.means + self.sizes.exp2() * _LEAST  # [tensors]
        by_weight = self.flat.sign() * (lmbda / math.log(2)) / mean.gather(self.owner)
        return by_weight, self.sums_of * (self.means / mean) * -lmbda

    def _members(self) -> Array:
        """int32 [tensors, most of the bucket]: the parameters of each tensor, then -1."""
        most = max(math.prod(size) for size in self.bucket.shapes)
        rows = np.full((len(self.counts), most), -1, np.int32)
        for row, places in zip(rows, self._parts(self.parameter_indices), strict=True):
            row[: len(places)] = places
        return rows

    def _sums(self, values: Tensor) -> Tensor:
        """[parameters] -> [tensors], in a single reduction."""
        found = values.contiguous().gather(self.members.maximum(0))
        return Tensor.where(self.members < 0, 0.0, found).sum(axis=1)

    # --- from and to the host ---

    def steer(self, control: Control) -> None:
        """What the steps from now on obey."""
        self.control.write(control.array(self.width * self.height, self.peak))

    def weigh(self) -> None:
        """Look at how large weights are, on which their lambda depends: they change slowly."""
        means = [np.abs(array).mean(dtype=np.float64) for array in self.split(self.flat.numpy())]
        self.means.write(np.array(means, np.float32) + np.float32(1e-9))

    def _moving(self) -> dict[str, Tensor]:
        named = {"flat": self.flat, "sizes": self.sizes, "means": self.means}
        named |= {"count": self.count, "smooth": self.smooth}
        for prefix, adam in (("weights", self.adam), ("sizes", self.adam_sizes)):
            named |= {f"{prefix}_{n}": tensor for n, tensor in enumerate(adam.state())}
        return named

    def state(self) -> dict[str, Array]:
        """As it would be without a bucket, so that a step with another one can go on from there."""
        size = self.flat.shape
        return {
            name: array[self.parameter_indices] if array.shape == size else array
            for name, array in super().state().items()
        }

    def restore(self, arrays: dict[str, Array]) -> None:
        size = self.flat.shape
        super().restore(
            {
                name: self._in_bucket(arrays[name]) if tensor.shape == size else arrays[name]
                for name, tensor in self._moving().items()
            }
        )

    def split(self, flat: Array) -> list[Array]:
        """The bucket's flat parameters as the arrays that those of the network are."""
        parts = self._parts(flat[self.parameter_indices])
        return [part.reshape(size) for part, size in zip(parts, self.shape.shapes, strict=True)]

    def load(self, arrays: Sequence[Array]) -> None:
        """Go on with such arrays."""
        self.flat.write(self._in_bucket(np.concatenate([array.ravel() for array in arrays])))

    def _parts(self, values: Array) -> list[Array]:
        """[parameters of the network], cut into its tensors."""
        return np.split(values, np.cumsum(self.counts)[:-1])


def too_large(
    error: OutOfMemoryError,
    pixels: Array,
    shape: Shape,
    device: AnyDevice,
    batch: int = BATCH,
    bucket: Shape | None = None,
) -> OutOfMemoryError:
    """What to say where the step does not fit in a device's memory, and which picture would."""
    height, width, channels = pixels.shape

    def build(width: int, height: int, device: AnyDevice) -> LearningStep:
        empty = np.zeros((height, width, channels), np.uint8)
        return LearningStep(empty, shape, 0, device, batch, bucket)

    what = f"training network {shape} on {width}×{height} pixels"
    ways = (smaller_picture(width, height, build),)
    return explain(error, what, device, partial(build, width, height), ways)


def _marked(pixels: Array) -> Array:
    """Pixels [height, width, channels] with UNSEEN for colours under alpha 0, if there is alpha.

    A mark in the samples themselves costs no kernel of its own, as weights beside them would.
    """
    if not has_alpha(pixels):
        return pixels
    found = pixels.astype(np.int32)
    found[pixels[:, :, -1] == 0, :-1] = UNSEEN
    return found


def _rounded(x: Tensor) -> Tensor:
    """To the nearest whole number."""
    return (x.abs() + 0.5).cast(dtype.i32).cast(dtype.f32).copysign(x)
