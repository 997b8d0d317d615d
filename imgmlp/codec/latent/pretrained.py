"""Pretrained networks, which a picture's networks begin from and files store differences from.

The file format calls them starts. This module knows which there are and adapts them to the shape of
a model; it knows no file format and no device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from imgmlp.codec.latent.model import DEFAULT_LEVELS, Array, ModelShape
from imgmlp.errors import FormatError

EXPONENT = 11  # stored values are multiples of 2**-EXPONENT
TRAINING_CHANNELS = 3  # of the pictures that all of them were trained on
# By number: widths of the hidden layers of the synthesis network and of the entropy network.
HIDDEN_WIDTHS = {
    1: (16, 12), 2: (32, 24), 3: (32, 24), 4: (16, 12), 5: (32, 24), 6: (16, 16),
    7: (16, 16), 8: (32, 24), 9: (16, 12),
}  # fmt: skip
WITH_FILTER = {5, 8}  # numbers of those whose synthesis sees the finest grid through a filter
OPAQUE_BIAS = 1 << EXPONENT - 1  # an alpha of 1, the sample +1/2, in stored units
OUTPUT_LAYERS = {"synthesis.2", "residual.0", "residual.1"}  # one output for each channel
# The lambda for which the networks suit the step sizes of latents: DEFAULT_LMBDA, or a lower one
# for those that serve a lambda of MAX_LOW_LMBDA or less.
DEFAULT_LMBDA = 8e-4
LOW_LMBDAS = {7: 1e-5, 8: 1e-5, 9: 1e-5}
MAX_LOW_LMBDA = 4e-5


@dataclass(frozen=True, eq=False)
class PretrainedNetworks:
    """Networks trained on many pictures, adapted to one model shape.

    Files store differences from them, so a shipped set never changes; better ones get a new number.
    benchmarks/latent_pretrained.py trains them.
    """

    number: int
    tensors: Mapping[str, Array]  # int32, a subset of the shape's tensors

    def rounded(self, name: str, exponent: int) -> Array | int:
        """int32: a tensor in multiples of 2**-exponent, halves up; 0 if there is no such tensor."""
        if name not in self.tensors:
            return 0
        shift = EXPONENT - exponent
        values = self.tensors[name]
        if shift <= 0:
            return values << -shift
        return values + (1 << shift - 1) >> shift

    def floats(self) -> dict[str, Array]:
        """The tensors as real numbers, exactly: float32."""
        return {
            name: np.ldexp(values.astype(np.float32), -EXPONENT)
            for name, values in self.tensors.items()
        }


def newest_pretrained(widths: tuple[int, int], lmbda: float = DEFAULT_LMBDA) -> int:
    """The number of the newest networks of these widths for a lambda; 0 if there are none."""
    is_low = lmbda <= MAX_LOW_LMBDA
    fitting = (number for number, known in HIDDEN_WIDTHS.items() if known == widths)
    return max((number for number in fitting if (number in LOW_LMBDAS) == is_low), default=0)


def training_lmbda(number: int) -> float:
    """The lambda for which these networks suit the step sizes of latents."""
    return LOW_LMBDAS.get(number, DEFAULT_LMBDA)


def hidden_widths(number: int) -> tuple[int, int]:
    """Hidden widths of synthesis and entropy network. Raises FormatError for an unknown number."""
    if number not in HIDDEN_WIDTHS:
        raise FormatError(f"start {number} is not known here", hint="update imgmlp")
    return HIDDEN_WIDTHS[number]


def pretrained_networks(number: int, shape: ModelShape) -> PretrainedNetworks:
    """The networks of a number, adapted to a shape. Number 0 stands for none, without tensors.

    Raises FormatError for an unknown number.
    """
    if number == 0:
        return PretrainedNetworks(0, {})
    tensors, shapes = {}, shape.tensor_shapes
    for name, values in _stored(number).items():
        if name == "synthesis.0.weight":
            of_levels, of_filter = np.split(values, [DEFAULT_LEVELS])
            if not len(of_filter):
                of_filter = np.zeros_like(of_levels[:1])
            rows = [_first_rows(of_levels, shape.levels), of_filter[: shape.has_filter]]
            tensors[name] = np.pad(np.concatenate(rows), ((0, shape.extra_grids), (0, 0)))
        elif name == "upsampling":
            tensors[name] = _first_rows(values, shape.levels - 1)
        elif name == "entropy.0.weight":  # inputs from hyperlatents begin with weights of 0
            tensors[name] = np.pad(values, ((0, len(shape.hyperlatent_levels)), (0, 0)))
        elif name in shapes:
            tensors[name] = _for_channels(name, values, shape.channels)
    return PretrainedNetworks(number, tensors)


def _for_channels(name: str, values: Array, channels: int) -> Array:
    """A tensor for pictures of this many channels.

    Gray becomes the mean of the three trained colours of a gray picture. Alpha has weights of 0 and
    begins opaque.
    """
    if name.rpartition(".")[0] not in OUTPUT_LAYERS:
        return values
    is_kernel = values.ndim == 4
    if channels < TRAINING_CHANNELS:
        channel_axes = (2, 3) if is_kernel else -1
        values = (values.sum(channel_axes, np.int32, keepdims=True) + 1) // TRAINING_CHANNELS
    alpha = (0, channels - values.shape[-1])
    before = [(0, 0)] * (values.ndim - 1 - is_kernel)
    fill = OPAQUE_BIAS if name == "synthesis.2.bias" else 0
    return np.pad(values, [*before, *[alpha] * (1 + is_kernel)], constant_values=fill)


def _first_rows(values: Array, count: int) -> Array:
    """One row for each of `count` grids; the last stored row serves all coarser ones."""
    return values[np.minimum(np.arange(count), len(values) - 1)]


@cache
def _stored(number: int) -> dict[str, Array]:
    """The tensors of a shipped file: int32."""
    data = resources.files("imgmlp.codec.latent").joinpath(f"start-{number}.bin").read_bytes()
    values, tensors = np.frombuffer(data, ">i2").astype(np.int32), {}
    for name, size in _stored_shape(number).tensor_shapes.items():
        tensor, values = np.split(values, [math.prod(size)])
        tensors[name] = tensor.reshape(size)
    return tensors


def _stored_shape(number: int) -> ModelShape:
    """The model shape of stored networks, for any picture: tensors do not depend on its size."""
    widths, has_filter = hidden_widths(number), number in WITH_FILTER
    return ModelShape(1, 1, TRAINING_CHANNELS, DEFAULT_LEVELS, *widths, has_filter=has_filter)


def stored_networks(networks: Mapping[str, Array]) -> bytes:
    """The content of a start-N.bin file, from real-valued tensors in the file's order.

    Values are rounded to multiples of 2**-EXPONENT and clipped to 16 bits.
    """
    numbers = np.concatenate([values.astype(np.float64).ravel() for values in networks.values()])
    whole = np.rint(np.ldexp(numbers, EXPONENT)).clip(-(2**15), 2**15 - 1)
    data: bytes = whole.astype(">i2").tobytes()
    return data
