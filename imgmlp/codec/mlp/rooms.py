"""Which network a program is made for: a room, as wide as the widest of many that share it.

Compiling takes seconds, and networks are of some sixty sizes. A narrower network trains in a room,
and is decoded there, with zeros for what it has not: that changes no number but by the order of
sums, and sums of whole numbers not at all. So few programs serve all networks. Long runs without a
time limit have one of the network's own size: on processors they go over to it (opening.py).

Knows no program.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from imgmlp.codec.mlp.network import MAX_FREQUENCIES, MAX_WIDTH, Layer, Shape
from imgmlp.engine import AnyDevice, NumpyDevice

Array = np.ndarray[Any, Any]

# Values of hidden layers that programs are made for: above the first one a step takes up to half as
# long again as in a program of the network's own size. Those of few layers have few weights.
WIDTHS = (32, 64, 96, 128, 192, 256, 384, 512, 768, MAX_WIDTH)
LEAST, FEW_LAYERS = 16, 3
LEAST_MEMORY = 1 << 26  # bytes of a device, with less than which nothing is made wider
# Operations before a run goes over to a program of its own: what two cores do in the 3 seconds that
# another process compiles for it.
MEANWHILE = 2.5e11
# That such a program must spare a run, and decoding a picture once: about as many as a device does
# in the time that compiling takes.
SPARED = {"one": 2 * MEANWHILE, "group": 5e13}
SPARED_DECODING = {"one": 2e11, "group": 5e13}


def are_on(device: AnyDevice) -> bool:
    """Whether networks share programs there: if it compiles, and has memory for more than a
    network's own numbers."""
    return not isinstance(device, NumpyDevice) and device.info.memory >= LEAST_MEMORY


def shared(shape: Shape) -> Shape:
    """The room for a network that it shares with many others."""
    widths = (LEAST, *WIDTHS) if shape.hidden <= FEW_LAYERS else WIDTHS
    width = next(width for width in widths if width >= shape.width)
    usual = usual_frequencies(width)
    while usual < shape.frequencies:
        usual = min(2 * usual, MAX_FREQUENCIES)
    return replace(shape, frequencies=usual, width=width)


def usual_frequencies(width: int) -> int:
    """Of networks so wide."""
    return min(max(4, width // 2), 16)


def training(shape: Shape, device: AnyDevice, steps: int = 0, batch: int = 0) -> Shape:
    """The room that a run of so many steps begins in, or of 0 that a time limit ends: by these and
    the network alone, so that files do not depend on what is compiled."""
    own_at_once = device.lanes == "group" and _own_pays(shape, device, steps, batch)
    return shared(shape) if are_on(device) and not own_at_once else shape


def opening_steps(shape: Shape, device: AnyDevice, steps: int, batch: int) -> int:
    """Of a run's steps, those before it goes over to a program of its own; 0 if it never does."""
    room = training(shape, device, steps, batch)
    if room == shape or not _own_pays(shape, device, steps, batch):
        return 0
    return math.ceil(MEANWHILE / (6 * batch * room.parameters))


def _own_pays(shape: Shape, device: AnyDevice, steps: int, batch: int) -> bool:
    """Whether so many steps should have a program for just this network."""
    spared = 6 * batch * steps * (shared(shape).parameters - shape.parameters)
    return spared >= SPARED[device.lanes]


def decoding(shape: Shape, device: AnyDevice, pixels: int) -> Shape:
    """The room that so many pixels are decoded in."""
    if not are_on(device):
        return shape
    room = shared(shape)
    spared = 2 * pixels * (room.parameters - shape.parameters)
    return room if spared < SPARED_DECODING[device.lanes] else shape


def places(shape: Shape, room: Shape) -> Array:
    """int64 [parameters]: where those of a network are among a room's."""
    found, begin = [], 0
    for number, (size, there) in enumerate(zip(shape.shapes, room.shapes, strict=True)):
        index = np.arange(begin, begin + math.prod(there)).reshape(there)
        begin += index.size
        if number == 0:  # features of either axis are followed by those that are none
            halves = np.split(index, 2)
            index = np.concatenate([half[: size[0] // 2] for half in halves])
        found.append(index[tuple(slice(n) for n in size)].ravel())
    return np.concatenate(found)


def padded(layer: Layer, inputs: int, outputs: int) -> Layer:
    """A layer with more inputs and outputs, all of them 0."""
    more, wider = inputs - layer.weights.shape[0], outputs - layer.biases.size
    weights = np.pad(layer.weights, ((0, more), (0, wider)))
    return replace(layer, weights=weights, biases=np.pad(layer.biases, (0, wider)))
