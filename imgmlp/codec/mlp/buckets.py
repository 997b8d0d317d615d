"""Buckets: padded network shapes that many networks share, so that few programs are compiled.

Compiling takes seconds, and encoders choose among some sixty network shapes. A narrower network can
be trained and decoded in a bucket, a wider network whose additional parameters are 0. Training then
differs only by the order of floating-point sums, and decoding, which adds integers, not at all.

Long runs without a time limit use a program for exactly their network instead. On processors they
begin in a bucket and change to that program once it is compiled (opening.py).

This module computes shapes only. It compiles nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from imgmlp.codec.mlp.network import MAX_FREQUENCIES, MAX_WIDTH, Layer, Shape
from imgmlp.engine import AnyDevice, NumpyDevice

Array = np.ndarray[Any, Any]

# Widths of the hidden layers of buckets. Above the first of them, a training step takes up to half
# as long again as in a program for the network's own shape.
WIDTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, MAX_WIDTH)
# Networks of few layers have few weights, so that they get a narrower bucket as well.
MIN_WIDTH = 16
MAX_LAYERS_AT_MIN_WIDTH = 3
MIN_DEVICE_MEMORY = 1 << 26  # bytes; devices with less do not use buckets
# Operations that a run does in a bucket before it changes to a program for its own shape: what two
# cores do in the 3 seconds that another process takes to compile it.
OPENING_OPERATIONS = 2.5e11
# Such a program is worth its compilation if it saves at least as many operations, by the lanes of a
# device: in one training run, and in decoding one picture. That is about what a device does while
# it compiles.
MIN_OPERATIONS_SAVED = {"one": 2 * OPENING_OPERATIONS, "group": 5e13}
MIN_DECODING_OPERATIONS_SAVED = {"one": 2e11, "group": 5e13}


def are_used_on(device: AnyDevice) -> bool:
    """Whether networks share programs there: the device compiles, and its memory has space for
    padded parameters."""
    return not isinstance(device, NumpyDevice) and device.info.memory >= MIN_DEVICE_MEMORY


def shared_shape(shape: Shape) -> Shape:
    """The bucket of a network."""
    widths = (MIN_WIDTH, *WIDTHS) if shape.hidden <= MAX_LAYERS_AT_MIN_WIDTH else WIDTHS
    width = next(width for width in widths if width >= shape.width)
    frequencies = usual_frequencies(width)
    while frequencies < shape.frequencies:
        frequencies = min(2 * frequencies, MAX_FREQUENCIES)
    return replace(shape, frequencies=frequencies, width=width)


def usual_frequencies(width: int) -> int:
    """The number of frequencies that encoders give to networks of this width."""
    return min(max(4, width // 2), 16)


def training_shape(shape: Shape, device: AnyDevice, steps: int = 0, batch: int = 0) -> Shape:
    """The shape of the program that a run begins with: its bucket, or the network's own shape.

    `steps` is 0 for a run that a time limit ends. The result depends on the arguments alone, so
    that files do not depend on what happens to be compiled already.
    """
    own_at_once = device.lanes == "group" and _own_program_pays(shape, device, steps, batch)
    return shared_shape(shape) if are_used_on(device) and not own_at_once else shape


def opening_steps(shape: Shape, device: AnyDevice, steps: int, batch: int) -> int:
    """Steps of a run before it changes to a program for its own shape; 0 if it never does."""
    bucket = training_shape(shape, device, steps, batch)
    if bucket == shape or not _own_program_pays(shape, device, steps, batch):
        return 0
    return math.ceil(OPENING_OPERATIONS / (6 * batch * bucket.parameters))


def _own_program_pays(shape: Shape, device: AnyDevice, steps: int, batch: int) -> bool:
    """Whether a run of this many steps is worth compiling a program for just this network."""
    saved = 6 * batch * steps * (shared_shape(shape).parameters - shape.parameters)
    return saved >= MIN_OPERATIONS_SAVED[device.lanes]


def decoding_shape(shape: Shape, device: AnyDevice, pixels: int) -> Shape:
    """The shape of the program that decodes a picture of this many pixels."""
    if not are_used_on(device):
        return shape
    bucket = shared_shape(shape)
    saved = 2 * pixels * (bucket.parameters - shape.parameters)
    return bucket if saved < MIN_DECODING_OPERATIONS_SAVED[device.lanes] else shape


def parameter_indices(shape: Shape, bucket: Shape) -> Array:
    """int64 [parameters]: the positions of a network's flat parameters among those of a bucket."""
    indices, begin = [], 0
    for number, (size, padded_size) in enumerate(zip(shape.shapes, bucket.shapes, strict=True)):
        index = np.arange(begin, begin + math.prod(padded_size)).reshape(padded_size)
        begin += index.size
        if number == 0:  # the features of x, padding, the features of y, padding
            halves = np.split(index, 2)
            index = np.concatenate([half[: size[0] // 2] for half in halves])
        indices.append(index[tuple(slice(n) for n in size)].ravel())
    return np.concatenate(indices)


def padded(layer: Layer, inputs: int, outputs: int) -> Layer:
    """A layer padded with zeros to these numbers of inputs and outputs."""
    more_inputs = inputs - layer.weights.shape[0]
    more_outputs = outputs - layer.biases.size
    weights = np.pad(layer.weights, ((0, more_inputs), (0, more_outputs)))
    return replace(layer, weights=weights, biases=np.pad(layer.biases, (0, more_outputs)))
