"""What latents are at the beginning of a run.

A prediction from the pixels spares a run the steps in which latents would only become something
like the picture. Nothing here trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from imgmlp.codec.latent.initial_latents import predict_latents
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.schedule import VERY_SHORT_RUN
from imgmlp.image import has_alpha

Array = np.ndarray[Any, Any]

# Mean squared error on [0, 1] of the prediction, above which only very short runs begin from it.
MAX_ERROR = 0.025
MAX_GRAPHIC_COLOURS = 4  # of what counts as text and line art
# Every doubling of lambda beyond the first brings predicted latents this much nearer to zero, in
# quantisation steps, in runs of so many steps: what does not pay hardly goes away again.
UNSHRUNK_LMBDA, SHRINKAGES, SHRINKAGES_AT = 3e-4, (0.05, 0.125, 0.25), (20, 200, 30_000)
FINEST_GRID_FACTOR = 3.0  # times that in the finest grid, most of whose latents pay least


def initialise(step: LatentStep, pixels: Array, lmbda: float, steps: int) -> None:
    """Write predicted latents into the step if a run of so many steps gains from them.

    Text and line art are not what the predictor was trained on: a few steps from its latents are
    better than from zeros, but longer runs do not get away from them. Cut-outs have no pretrained
    networks that would make a picture of predicted latents.
    """
    predicted = None
    if step.is_mostly_visible and not is_graphic(pixels, steps):
        predicted = predict_latents(pixels, step.shape, step.pretrained.number)
    if predicted is None:
        return
    zeros = step.grids()
    if steps >= VERY_SHORT_RUN:
        step.write_grids(predicted)
        step.ask(step.flat.numpy(), "error")
        if not step.answer() < MAX_ERROR:
            step.write_grids(zeros)
            return
    step.write_grids(shrunk(predicted, lmbda, steps))


def is_graphic(pixels: Array, steps: int) -> bool:
    """Whether pixels [height, width, channels] have no alpha and at most MAX_GRAPHIC_COLOURS
    colours, and the run is long enough to treat them apart."""
    if steps < VERY_SHORT_RUN or has_alpha(pixels):
        return False
    colours = np.zeros(0, np.uint32)
    for row in pixels:  # a photograph exceeds the limit in its first row
        packed = sum(row[:, n].astype(np.uint32) << 8 * n for n in range(row.shape[1]))
        colours = np.union1d(colours, packed[~np.isin(packed, colours)])
        if colours.size > MAX_GRAPHIC_COLOURS:
            return False
    return True


def shrunk(grids: Sequence[Array], lmbda: float, steps: int) -> list[Array]:
    """Predicted latents, soft-thresholded for lambda and a run of so many steps.

    At a high lambda few latents remain other than zero in the end.
    """
    shrinkage = float(np.interp(math.log(max(steps, 1)), np.log(SHRINKAGES_AT), SHRINKAGES))
    usual = shrinkage * math.log2(max(lmbda, UNSHRUNK_LMBDA) / UNSHRUNK_LMBDA)
    thresholds = [np.float32(usual * FINEST_GRID_FACTOR), *[np.float32(usual)] * (len(grids) - 1)]
    return [
        np.sign(grid) * np.maximum(np.abs(grid) - threshold, 0)
        for grid, threshold in zip(grids, thresholds, strict=True)
    ]
