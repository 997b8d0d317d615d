"""From a compact file to the picture that was encoded, and to no other."""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Container
from imgmlp.codec.mlp import float_render, integer_inference, network
from imgmlp.engine import AnyDevice
from imgmlp.errors import FormatError


def decode(
    found: Container, device: AnyDevice, size: tuple[int, int] | None = None
) -> np.ndarray[Any, Any]:
    """uint8 [height, width, channels], the same bits on every device.

    At another (width, height) `size` than its own, what its network gives there, in floats, which
    may differ by a level between devices. Raises FormatError if the sections hold no network, or
    one of another picture.
    """
    header = found.header
    own = header.width, header.height
    head, coded = found.require(container.NETWORK), found.require(container.WEIGHTS)
    pixels = header.width * header.height
    parsed = network.parse(head, coded, pixels, header.channels)
    if size is not None and size != own:
        return float_render.render(parsed, own, size, device)
    decoded = integer_inference.decode(parsed, *own, device)
    if container.digest(decoded) != header.digest:
        problem = "it decodes to another picture than the one that was encoded"
        raise FormatError(problem, hint=f"try --device numpy; else {container.DAMAGED}")
    return decoded
