"""Decode a file of the latent codec: sections -> integer model -> picture.

`sections` reads networks and latents, `synthesis` turns them into pixels. Both compute with
integers, so that every device gives the same picture.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.codec.bitstream.container import LATENTS, NETWORK, WEIGHTS, Container
from imgmlp.codec.latent import sections
from imgmlp.codec.latent.model import LatentModel
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.engine import AnyDevice
from imgmlp.errors import UsageError

Array = np.ndarray[Any, Any]


def decode(container: Container, device: AnyDevice) -> Array:
    """uint8 [height, width, channels], the same bits on every device.

    Raises FormatError if the sections hold no model.
    """
    return synthesize(read(container, device), device)


def decode_at(container: Container, size: tuple[int, int], device: AnyDevice) -> Array:
    """Raises UsageError, as latents can be decoded at their own size only."""
    header = container.header
    problem = f"a picture of the latent codec has only its own size, {header.width}×{header.height}"
    raise UsageError(problem, hint="leave out --scale and --size")


def read(container: Container, device: AnyDevice) -> LatentModel:
    """The model in a file. Raises FormatError if its sections hold none."""
    network, weights, latents = (container.require(kind) for kind in (NETWORK, WEIGHTS, LATENTS))
    header = container.header
    size = header.width, header.height
    return sections.read((network, weights, latents), size, header.channels, device)
