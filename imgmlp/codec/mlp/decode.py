"""From the sections of a compact file to the picture that its network gives."""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Container
from imgmlp.codec.mlp import float_render, integer_inference, network
from imgmlp.codec.mlp.network import Network
from imgmlp.engine import AnyDevice

Array = np.ndarray[Any, Any]


def decode(found: Container, device: AnyDevice) -> Array:
    """uint8 [height, width, channels], the same bits on every device.

    Raises FormatError if the sections hold no network, or one of another picture.
    """
    header = found.header
    return integer_inference.decode(network_of(found), header.width, header.height, device)


def decode_at(found: Container, size: tuple[int, int], device: AnyDevice) -> Array:
    """What the network gives at another (width, height) than its own, in floats.

    Devices may differ by a level. Raises FormatError as `decode`.
    """
    own = found.header.width, found.header.height
    return float_render.render(network_of(found), own, size, device)


def network_of(found: Container) -> Network:
    """Raises FormatError as `decode`."""
    header = found.header
    head, coded = found.require(container.NETWORK), found.require(container.WEIGHTS)
    return network.parse(head, coded, header.width * header.height, header.channels)
