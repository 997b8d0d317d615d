"""From a latent file's sections to its picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from imgmlp.codec import container
from imgmlp.codec.container import Container
from imgmlp.codec.latent import sections
from imgmlp.codec.latent.model import LatentModel
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.codec.latent.upsampling import upsample
from imgmlp.engine import AnyDevice

Array = np.ndarray[Any, Any]


def decode(model: LatentModel, device: AnyDevice) -> Array:
    """uint8 [height, width, channels], the same bits on every device."""
    maps = upsample(model.latents, model.networks["upsampling"])
    return synthesize(maps, model.networks, device)


def read(found: Container, device: AnyDevice) -> LatentModel:
    """The model in a file. Raises FormatError if its sections hold none."""
    head, weights, coded = (
        found.require(kind) for kind in (container.NETWORK, container.WEIGHTS, container.LATENTS)
    )
    header = found.header
    size = header.width, header.height
    return sections.read((head, weights, coded), size, header.channels, device)
