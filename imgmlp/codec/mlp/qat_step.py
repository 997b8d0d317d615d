"""The quantisation-aware training step of a network: one program for all three phases.

The step minimises the mean squared error on [0, 1] plus lambda times bits per pixel. First the
weights are free. Then uniform noise, as wide as each tensor's step size, is added to its weights,
and the step size is learned: the noise shows what it costs, the rate what it saves. Finally step
sizes are fixed and weights are rounded. `Control` says which of these holds, as data, so that one
compiled program serves all three. Features and activation are those of integer_inference.py, in
floats.

The program may be that of a bucket, a wider network (buckets.py). The additional parameters are 0
and stay 0: their gradients are 0, and no noise is added to them.
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

BATCH = 1024  # pixels of a training step, unless an effort or a time limit asks for more
# The learning rate of a network of REFERENCE_WIDTH, in batches of BATCH pixels, in runs of up to
# REFERENCE_STEPS. It falls with the square root of the width, grows with the batch, and falls with
# the steps of longer runs, to these powers.
LEARNING_RATE = 6e-3
REFERENCE_WIDTH = 88
REFERENCE_STEPS = 60_000
_LR_BATCH_EXPONENT = 0.3
_LR_LENGTH_EXPONENT = 0.25
STEP_SIZE_LR_FACTOR = 3.0  # the learning rate of the step sizes' logarithms, in that of weights
# The learning rate rises during this many steps, or the first 1 / RUN_PER_WARM_UP of a short run.
MAX_WARM_UP_STEPS = 200
RUN_PER_WARM_UP = 20
BETAS = (0.9, 0.99)  # of Adam
EPSILON = 1e-12  # of Adam; gradients of single weights can be as small as 1e-8
# Without weight decay, weights and the values of layers grow until units die.
WEIGHT_DECAY = 0.01
INVISIBLE = -1  # marks a sample under alpha 0, which has no error
_MAGNITUDE_OFFSET = 0.2  # step sizes added to the mean magnitude when the rate is estimated


class Steering(NamedTuple, Generic[T]):
    """The values of `Control` in the form that the program reads: one float32 array on the device,
    in this order."""

    noise: T  # 0 or 1, as in Control
    rounding: T  # 0 or 1, as in Control
    lmbda: T  # lambda of a bit in the whole picture
    lr_factor: T  # factor of all learning rates
    per_run: T  # 1 / steps of the run
    per_warm_up: T  # 1 / steps of the warm-up
    weight_lr: T  # peak learning rate of the weights
    step_size_lr: T  # peak learning rate of the step sizes' logarithms


@dataclass
class Control:
    """What the host decides between steps."""

    steps: int  # of the whole run, in which the learning rate falls by half a cosine
    noise: bool = False  # adds noise to weights and learns step sizes
    rounding: bool = False  # rounds weights
    lmbda: float = 0.0  # lambda of a bit per pixel
    lr_factor: float = 1.0  # factor of all learning rates

    def array(self, pixels: int, peak: float) -> Array:
        """float32 [8]: the Steering for a picture of `pixels` and a peak learning rate."""
        steering = Steering(
            noise=float(self.noise),
            rounding=float(self.rounding),
            lmbda=self.lmbda / pixels,
            lr_factor=self.lr_factor
            * min(1.0, REFERENCE_STEPS / self.steps) ** _LR_LENGTH_EXPONENT,
            per_run=1 / self.steps,
            per_warm_up=1 / max(1.0, min(MAX_WARM_UP_STEPS, self.steps / RUN_PER_WARM_UP)),
            weight_lr=peak,
            step_size_lr=peak * STEP_SIZE_LR_FACTOR,
        )
        return np.array(steering, np.float32)


def forward(flat: Tensor, shape: Shape, features: Tensor) -> Tensor:
    """The network: [rows, features] -> [rows, channels]; black is -1/2, white 1/2."""
    return perceptron(features, nn.slices(flat, shape.shapes))


def feature_table(count: int, samples: int) -> Array:
    """float32 [samples, 2 * count]: the features of decoding, as floats."""
    table = integer_inference.features(count, samples, 0, samples)
    return (table / integer_inference.ONE).astype(np.float32)


class LearningStep(Resumable):
    """The training state on a device, and the program that updates it.

    Each tensor of the network, W0, b0, W1, b1 ..., has one step size. Parameters are padded to
    those of `bucket`, if it is given.
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
        self._load_picture(pixels)
        self._lay_out_parameters()
        self._create_state()
        self._create_optimisers()
        self.program: Program = compile(self._step, device)

    # --- what the program reads and writes ---

    def _load_picture(self, pixels: Array) -> None:
        """The picture and the features of its rows and columns, which do not change."""
        tables = (self._table(n) for n in (self.width, self.height))
        self.x, self.y = (
            Tensor(table, self.device, name=f"{axis}_table")
            for table, axis in zip(tables, "xy", strict=True)
        )
        marked = _marked(pixels).reshape(-1, self.channels)
        self.pixels = Tensor(marked, self.device, name="pixels")
        self.visible_fraction: float = visible_fraction(pixels)
        self.size = size_of(self.height, self.width, self.device)

    def _lay_out_parameters(self) -> None:
        """The positions of the network's parameters among those of the bucket, and the relation
        between parameters and their tensors; none of them changes."""
        self.parameter_indices = buckets.parameter_indices(self.shape, self.bucket)
        bucket_counts = [math.prod(size) for size in self.bucket.shapes]
        owner = np.repeat(np.arange(len(bucket_counts), dtype=np.int32), bucket_counts)
        self.tensor_of_parameter = Tensor(owner, self.device, name="owner")
        # Parameters draw noise by their positions in the network, whatever the bucket is.
        numbers = self._in_bucket(np.arange(self.shape.parameters, dtype=np.int32))
        self.draw_numbers = Tensor(numbers, self.device, name="numbers")
        # float32 [parameters of the bucket]: 1 for those of the network, 0 for padding
        is_used = self._in_bucket(np.ones(self.shape.parameters, np.float32))
        self.is_used = Tensor(is_used, self.device, name="is_used")
        self.tensor_parameters = Tensor(self._tensor_parameters(), self.device, name="members")

    def _create_state(self) -> None:
        """What training changes, except the state of the optimisers."""
        tensors = len(self.counts)
        ones = np.ones(tensors, np.float32)
        # [tensors]: the mean magnitude of the parameters of each tensor
        self.mean_magnitudes = Tensor(ones, self.device, name="means")
        self.flat = self._initial()
        self.log_step_sizes = Tensor(np.zeros(tensors, np.float32), self.device, name="log2_steps")
        counts = np.array(self.counts, np.float32)
        self.parameter_counts = Tensor(counts, self.device, name="counts")
        control = np.zeros(len(Steering._fields), np.float32)
        self.control = Tensor(control, self.device, name="control")
        self.count = Tensor(np.uint32(0), self.device, name="count")
        self.smooth = Tensor(np.float32(0), self.device, name="smooth")

    def _create_optimisers(self) -> None:
        """Adam for the parameters and for the step sizes, with their learning rates."""
        self.peak = (
            LEARNING_RATE
            * math.sqrt(REFERENCE_WIDTH / self.shape.width)
            * (self.batch / BATCH) ** _LR_BATCH_EXPONENT
        )
        steering = self.steering
        self.adam = optim.AdamW(
            [self.flat], self._learning_rate(steering.weight_lr), BETAS, WEIGHT_DECAY, EPSILON
        )
        step_size_lr = self._learning_rate(steering.step_size_lr) * steering.noise
        self.adam_step_sizes = optim.Adam([self.log_step_sizes], step_size_lr, BETAS, EPSILON)

    def _table(self, samples: int) -> Array:
        """float32 [samples, features of the bucket], padded with zeros.

        It has at least as many rows as the batch, since the compiler treats smaller tables
        differently, and pictures of all sizes should share kernels.
        """
        table = feature_table(self.shape.frequencies, samples)
        more_rows = max(0, self.batch - samples)
        more_features = 2 * (self.bucket.frequencies - self.shape.frequencies)
        return np.pad(table, ((0, more_rows), (0, more_features)))

    def _initial(self) -> Tensor:
        """Initial parameters: weights of variance 2 / inputs, or half of it in the last layer, and
        zero biases.

        NumPy draws them, as a kernel that runs once would take longer to compile.
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
        """[parameters of the network] -> [parameters of the bucket], padded with zeros."""
        padded = np.zeros(self.bucket.parameters, values.dtype)
        padded[self.parameter_indices] = values
        return padded

    @property
    def steering(self) -> Steering[Tensor]:
        """The current Control, on the device."""
        return Steering(*(self.control[n] for n in range(len(Steering._fields))))

    def _learning_rate(self, peak: Tensor) -> Tensor:
        """The learning rate of the current step: a warm-up, and half a cosine down to 0."""
        steering, done = self.steering, self.count.cast(dtype.f32)
        cosine_factor = ((done * steering.per_run * math.pi).cos() + 1.0) * 0.5
        warm_up_factor = ((done + 1.0) * steering.per_warm_up).minimum(1.0)
        return warm_up_factor * cosine_factor * steering.lr_factor * peak

    def _step(self) -> dict[str, Tensor]:
        """One training step on random pixels; outputs the smoothed loss."""
        steering = self.steering
        row, column = random_places(self.batch, self.size, self.seed, self.count)
        features = pixel_features(self.x, self.y, column, row)  # [batch, features]
        samples = self.pixels.gather(row * self.size[1] + column).cast(dtype.f32)
        step = self.log_step_sizes.exp2().gather(self.tensor_of_parameter)  # [parameters]
        uniform = Tensor.uniform(self.flat.shape, (self.seed, self.count, 2))
        noise = (uniform.contiguous().gather(self.draw_numbers) - 0.5) * self.is_used
        rounding = (_rounded(self.flat / step) * step - self.flat) * steering.rounding
        used = self.flat + step * noise * steering.noise + rounding
        output = forward(used, self.bucket, features)
        difference = output - (samples * (1 / 255) - 0.5)
        if self.channels in (2, 4):
            difference = difference * (samples - INVISIBLE).minimum(1.0)
        per_sample = 1 / math.prod(difference.shape)
        # Not mean(), which rounds differently: files depend on the bits of this product.
        error = difference.square().sum() * per_sample
        (gradient,) = error.gradient([used])
        rate_by_weight, rate_by_size = self._rate_gradients(step, steering.lmbda)
        self.adam.apply([gradient + rate_by_weight])
        error_by_size = self._sums(gradient * (used - self.flat)) * math.log(2)
        self.adam_step_sizes.apply([error_by_size + rate_by_size])
        smooth = self.smooth * SMOOTHING + error * (1 - SMOOTHING)
        self.smooth.assign(smooth)
        self.count.assign(self.count + 1)
        return {"smooth": smooth}

    def _rate_gradients(self, step: Tensor, lmbda: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of lambda times bits, by the parameters and by the step sizes' logarithms.

        A weight of a tensor of mean magnitude m costs about log2(m / step size + offset) bits;
        `measure_magnitudes` has updated m.
        """
        mean = self.mean_magnitudes + self.log_step_sizes.exp2() * _MAGNITUDE_OFFSET  # [tensors]
        rate_by_weight = (
            self.flat.sign() * (lmbda / math.log(2)) / mean.gather(self.tensor_of_parameter)
        )
        return rate_by_weight, self.parameter_counts * (self.mean_magnitudes / mean) * -lmbda

    def _tensor_parameters(self) -> Array:
        """int32 [tensors, largest tensor of the bucket]: the parameters of each tensor, then -1."""
        most = max(math.prod(size) for size in self.bucket.shapes)
        rows = np.full((len(self.counts), most), -1, np.int32)
        for row, indices in zip(rows, self._parts(self.parameter_indices), strict=True):
            row[: len(indices)] = indices
        return rows

    def _sums(self, values: Tensor) -> Tensor:
        """[parameters] -> [tensors]: sums over each tensor, in a single reduction."""
        rows = values.contiguous().gather(self.tensor_parameters.maximum(0))
        return Tensor.where(self.tensor_parameters < 0, 0.0, rows).sum(axis=1)

    # --- from and to the host ---

    def steer(self, control: Control) -> None:
        """Set the Control of the following steps."""
        self.control.write(control.array(self.width * self.height, self.peak))

    def measure_magnitudes(self) -> None:
        """Update the mean magnitudes that the rate is estimated with; they change slowly."""
        means = [np.abs(array).mean(dtype=np.float64) for array in self.split(self.flat.numpy())]
        self.mean_magnitudes.write(np.array(means, np.float32) + np.float32(1e-9))

    def _moving(self) -> dict[str, Tensor]:
        named = {"flat": self.flat, "sizes": self.log_step_sizes, "means": self.mean_magnitudes}
        named |= {"count": self.count, "smooth": self.smooth}
        for prefix, adam in (("weights", self.adam), ("sizes", self.adam_step_sizes)):
            named |= {f"{prefix}_{n}": tensor for n, tensor in enumerate(adam.state())}
        return named

    def state(self) -> dict[str, Array]:
        """The state without padding, so that a step with another bucket can continue from it."""
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
        """Padded flat parameters -> the arrays W0, b0, W1, b1 ... of the network."""
        parts = self._parts(flat[self.parameter_indices])
        return [part.reshape(size) for part, size in zip(parts, self.shape.shapes, strict=True)]

    def load(self, arrays: Sequence[Array]) -> None:
        """Replace the parameters by these arrays, as `split` returns them."""
        self.flat.write(self._in_bucket(np.concatenate([array.ravel() for array in arrays])))

    def _parts(self, values: Array) -> list[Array]:
        """[parameters of the network] -> the part of each tensor."""
        return np.split(values, np.cumsum(self.counts)[:-1])


def too_large(
    error: OutOfMemoryError,
    pixels: Array,
    shape: Shape,
    device: AnyDevice,
    batch: int = BATCH,
    bucket: Shape | None = None,
) -> OutOfMemoryError:
    """The error for a step that exceeds a device's memory; it names a size of picture that fits."""
    height, width, channels = pixels.shape

    def build(width: int, height: int, device: AnyDevice) -> LearningStep:
        empty = np.zeros((height, width, channels), np.uint8)
        return LearningStep(empty, shape, 0, device, batch, bucket)

    what = f"training network {shape} on {width}×{height} pixels"
    ways = (smaller_picture(width, height, build),)
    return explain(error, what, device, partial(build, width, height), ways)


def _marked(pixels: Array) -> Array:
    """Pixels [height, width, channels] with INVISIBLE for colours under alpha 0, if there is alpha.

    A mark in the samples themselves needs no additional kernel, as separate weights would.
    """
    if not has_alpha(pixels):
        return pixels
    marked = pixels.astype(np.int32)
    marked[pixels[:, :, -1] == 0, :-1] = INVISIBLE
    return marked


def _rounded(x: Tensor) -> Tensor:
    """Rounded to the nearest integer, halves away from 0."""
    return (x.abs() + 0.5).cast(dtype.i32).cast(dtype.f32).copysign(x)
