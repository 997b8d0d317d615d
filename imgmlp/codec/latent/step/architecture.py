"""Which model a training step trains: the sizes of its networks, and its grids."""

from __future__ import annotations

from dataclasses import dataclass

from imgmlp.codec.latent.model import ModelShape, default_levels
from imgmlp.codec.latent.plane import MIN_SIDE

# Default widths of hidden layers.
SYNTHESIS_WIDTH, ENTROPY_WIDTH = 32, 24
# Synthesis networks of this width and more see the finest grid through a learned filter as well,
# whose weights would cost small pictures too much.
FILTERED_FROM_WIDTH = 32
SMALLEST_BUCKET_LEVELS = 6  # grids of all pictures in the smallest bucket


@dataclass(frozen=True)
class Architecture:
    """What the networks are like, for pictures of any size."""

    synthesis_width: int = SYNTHESIS_WIDTH  # of the hidden layers
    entropy_width: int = ENTROPY_WIDTH  # of the hidden layers
    pretrained: int = 0  # number of the pretrained networks that training begins from; 0: none
    has_hyperlatents: bool = False
    extra_grids: int = 0  # grids as large as the finest, beside it

    def model_shape(self, height: int, width: int, channels: int, levels: int) -> ModelShape:
        """The shape, as a file has it, for pictures of one size."""
        return ModelShape(
            height,
            width,
            channels,
            levels,
            self.synthesis_width,
            self.entropy_width,
            has_filter=self.synthesis_width >= FILTERED_FROM_WIDTH,
            has_hyperlatents=self.has_hyperlatents,
            extra_grids=self.extra_grids,
        )


DEFAULT_ARCHITECTURE = Architecture()


def levels_of(height: int, width: int, bucket: tuple[int, int] | None) -> int:
    """How many grids the pyramid of a picture has that is trained in a bucket.

    All pictures in the smallest bucket have as many, so that they share its programs; a grid that
    would be smaller than one value has one as well.
    """
    return max(
        default_levels(height, width),
        SMALLEST_BUCKET_LEVELS if bucket == (MIN_SIDE, MIN_SIDE) else 0,
    )
