"""From a latent file's sections to its picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Container
from imgmlp.codec.latent import sections
from imgmlp.codec.latent.model import LatentModel
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.engine import AnyDevice
from imgmlp.errors import UsageError

Array = np.ndarray[Any, Any]


def decode(found: Container, device: AnyDevice) -> Array:
    """uint8 [height, width, channels], the same bits on every device.

    Raises FormatError if the sections hold no model.
    """
    return synthesize(read(found, device), device)


def decode_at(found: Container, size: tuple[int, int], device: AnyDevice) -> Array:
    """Raises UsageError: latents have their own size alone."""
    header = found.header
    problem = f"a picture of the latent codec has only its own size, {header.width}×{header.height}"
    raise UsageError(problem, hint="leave out --scale and --size")


def read(found: Container, device: AnyDevice) -> LatentModel:
    """The model in a file. Raises FormatError if its sections hold none."""
    head, weights, coded = (
        found.require(kind) for kind in (container.NETWORK, container.WEIGHTS, container.LATENTS)
    )
    header = found.header
    size = header.width, header.height
    return sections.read((head, weights, coded), size, header.channels, device)
