"""From a compact file to the picture that was encoded, and to no other."""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.codec import container, integer, network
from imgmlp.codec.container import Container
from imgmlp.engine import AnyDevice
from imgmlp.errors import FormatError, UsageError


def decode(
    found: Container, device: AnyDevice, size: tuple[int, int] | None = None
) -> np.ndarray[Any, Any]:
    """uint8 [height, width, channels], the same bits on every device.

    Raises FormatError if the sections hold no network, or one of another picture. At another
    (width, height) `size` than its own there is no picture to compare with.
    """
    header = found.header
    if size not in (None, (header.width, header.height)):
        problem = f"the picture is {header.width}×{header.height}"
        hint = "decode it at that size, and scale what comes out"
        raise UsageError(problem, hint=hint)
    head, coded = found.require(container.NETWORK), found.require(container.WEIGHTS)
    pixels = header.width * header.height
    parsed = network.parse(head, coded, pixels, header.channels)
    decoded = integer.decode(parsed, header.width, header.height, device)
    if container.digest(decoded) != header.digest:
        problem = "it decodes to another picture than the one that was encoded"
        raise FormatError(problem, hint=f"try --device numpy; else {container.DAMAGED}")
    return decoded
