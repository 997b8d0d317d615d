"""From a compact file to the picture that was encoded, and to no other."""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.codec import container, integer, network, render
from imgmlp.codec.container import Container
from imgmlp.codec.latent import decode as latent
from imgmlp.engine import AnyDevice
from imgmlp.errors import FormatError, UsageError

Array = np.ndarray[Any, Any]


def decode(found: Container, device: AnyDevice, size: tuple[int, int] | None = None) -> Array:
    """uint8 [height, width, channels], the same bits on every device.

    At another (width, height) `size` than its own, what its network gives there, in floats, which
    may differ by a level between devices; the latent codec has no other sizes. Raises FormatError
    if the sections hold no network, or one of another picture, UsageError for a size that it has
    not.
    """
    header = found.header
    own = header.width, header.height
    if header.codec == "latent":
        if size not in (None, own):
            problem = f"a picture of the latent codec has only its own size, {own[0]}×{own[1]}"
            raise UsageError(problem, hint="leave out --scale and --size")
        return _checked(found, latent.decode(latent.read(found, device), device))
    head, coded = found.require(container.NETWORK), found.require(container.WEIGHTS)
    pixels = header.width * header.height
    parsed = network.parse(head, coded, pixels, header.channels)
    if size is not None and size != own:
        return render.render(parsed, own, size, device)
    return _checked(found, integer.decode(parsed, *own, device))


def _checked(found: Container, decoded: Array) -> Array:
    """The decoded picture, if it is the one that was encoded."""
    if container.digest(decoded) != found.header.digest:
        problem = "it decodes to another picture than the one that was encoded"
        raise FormatError(problem, hint=f"try --device numpy; else {container.DAMAGED}")
    return decoded
