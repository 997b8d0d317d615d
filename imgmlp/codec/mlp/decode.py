"""Decodes the network in the sections of an .imlp file, and the picture that it represents."""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Container
from imgmlp.codec.mlp import float_render, integer_inference, network
from imgmlp.codec.mlp.network import Network
from imgmlp.engine import AnyDevice

Array = np.ndarray[Any, Any]


def decode(file: Container, device: AnyDevice) -> Array:
    """uint8 [height, width, channels], the same bits on every device.

    Raises FormatError if the sections hold no network, or one of another picture.
    """
    header = file.header
    return integer_inference.decode(network_of(file), header.width, header.height, device)


def decode_at(file: Container, size: tuple[int, int], device: AnyDevice) -> Array:
    """The picture at another (width, height) than its own, computed in floating point.

    Devices may differ by a level. Raises FormatError as `decode` does.
    """
    original = file.header.width, file.header.height
    return float_render.render(network_of(file), original, size, device)


def network_of(file: Container) -> Network:
    """The network in a file. Raises FormatError as `decode` does."""
    header = file.header
    head, coded = file.require(container.NETWORK), file.require(container.WEIGHTS)
    return network.parse(head, coded, header.width * header.height, header.channels)
