"""What tests of encoding by the latent codec share: pictures, targets and short runs."""

from __future__ import annotations

import functools

import numpy as np
from conftest import small_pixels

from imgmlp.codec import encoder
from imgmlp.codec.encoder import Encoded
from imgmlp.codec.latent.training import cost_model, effort
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.image import Picture
from imgmlp.metadata import NOTHING, Metadata

SHORT = Workload(30)
PIXELS = small_pixels()[:10, :13]
METADATA = Metadata(b"a colour profile", b"II*\0 EXIF", b"<xmp/>", (300.0, 72.5))
TWO_COLOURS = np.repeat(np.random.default_rng(0).integers(0, 2, (10, 13, 1), np.uint8) * 255, 3, 2)


def encode_pixels(
    target: Goal,
    pixels: np.ndarray = PIXELS,
    workload: Workload = SHORT,
    run: Run | None = None,
    metadata: Metadata = NOTHING,
) -> Encoded:
    picture = Picture(pixels, metadata)
    return encoder.encode(picture, target, workload, open_device("numpy"), run, "latent")


@functools.cache
def uninterrupted_file(target: Goal) -> bytes:
    """The file of an uninterrupted run of few trials, cached."""
    return encode_pixels(target).bytes


class StopRun(Exception):
    """Raised by a test that has seen enough of a run."""


def rdoq_seconds(steps: int, pace: float, judging: float, pixels: int) -> float:
    """Seconds of the two rounds of RDOQ: a gradient step per sweep, and all judgements."""
    budget = effort.rdoq_budget(steps, "one")
    judging_seconds = budget.judged * (
        judging + cost_model.RDOQ_HOST_SECONDS + cost_model.RDOQ_HOST_SECONDS_PER_PIXEL * pixels
    )
    return 2 * (judging_seconds + budget.sweeps * pace)
