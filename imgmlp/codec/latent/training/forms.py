"""Which step trains a picture: the widths of its networks, and the form that its pixels are in.

A form is the whole picture at its exact size, the whole picture in a bucket, or windows; buckets.py
decides which of them are possible and preferred (`TrainingSetup`). Here the first is built for
which the device has memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import (
    HYPERLATENT_LEVELS,
    MAX_HYPERLATENT_PIXELS,
    ModelShape,
    default_levels,
)
from imgmlp.codec.latent.pretrained import DEFAULT_LMBDA, newest_pretrained
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.buckets import Bucket, TrainingSetup, compiles_slowly
from imgmlp.codec.latent.training.windows import WindowedStep, WindowStep
from imgmlp.codec.training.memory_limits import explain, smaller_picture, within_memory
from imgmlp.engine import AnyDevice
from imgmlp.errors import OutOfMemoryError

Array = np.ndarray[Any, Any]
Builders = dict[str, Callable[[], LatentStep]]  # by the name of a form

SEED = 0
# Names of forms, as checkpoints have them.
WHOLE = "whole"  # at the exact size of the picture
IN_BUCKET = "in a bucket"
IN_SHARED_BUCKET = "in a shared bucket"  # which only the opening of a run is in
IN_WINDOWS = "in windows"

MAX_ICON_SIDE = 64  # pixels of the longer side of an icon
MAX_SMALL_PIXELS = 100_000  # of a small picture, height times width
# Widths of the hidden layers of the synthesis and of the entropy network. Small ones also serve
# the short runs of larger pictures, which have nearly twice as many steps with them.
ICON_WIDTHS = 16, 12
SMALL_WIDTHS = 16, 16
LARGE_WIDTHS = 32, 24
# Pixels from which on a picture may begin with networks that were pretrained for low lambdas.
MIN_PIXELS_FOR_LOW_LMBDA = 4096
# Steps from which on hyperlatents pay; each step takes a quarter longer with them.
MIN_STEPS_FOR_HYPERLATENTS = 40_000
# Operations a pixel in a step beside the networks' layers, estimated by the time that they take.
OPERATIONS_BESIDE_LAYERS = 8_000


class Forms:
    """Builds the steps that may train a picture."""

    def __init__(
        self,
        pixels: Array,
        setup: TrainingSetup,
        max_weights: float,
        is_long: bool = False,
        lmbda: float = DEFAULT_LMBDA,
    ) -> None:
        """`pixels` are uint8 [height, width, channels]; `is_long` says that the run is long enough
        for hyperlatents; `lmbda` is the lambda that it begins with."""
        self.pixels, self.setup, self.device = pixels, setup, setup.device
        self.name = ""  # of the form that was built last; stored in checkpoints
        quick = is_quick(setup.device, setup.is_short)
        hidden = widths(pixels.shape, max_weights, quick)
        is_tiny = pixels.shape[0] * pixels.shape[1] < MIN_PIXELS_FOR_LOW_LMBDA
        self.architecture = Architecture(
            *hidden,
            pretrained=newest_pretrained(hidden, DEFAULT_LMBDA if is_tiny else lmbda),
            has_hyperlatents=is_long and hidden == widths(pixels.shape, math.inf),
            extra_grids=setup.extra_grids,
        )

    def first(self, name: str | None = None) -> LatentStep:
        """The step that a run begins with: of the form with that name, or else of the first form
        that the device has memory for. Raises OutOfMemoryError, which says what would fit."""
        forms = self._all()
        if name is None and self.has_opening and self.setup.starts_in_windows:
            name = IN_WINDOWS
        allowed = forms if name is None else {name: forms[name]}
        return within_memory(
            partial(self._build_first_fitting, allowed),
            partial(too_large, self.setup, self.architecture.has_hyperlatents),
        )

    def whole(self) -> LatentStep | None:
        """The step of the whole picture; None if the device lacks the memory."""
        before = self.name
        try:
            return self._build_first_fitting(self._whole_forms())
        except OutOfMemoryError:
            if self.device.lost:
                raise
            self.name = before
            return None

    @property
    def has_opening(self) -> bool:
        """Whether a run should begin in another form than the one it may switch to."""
        return self.setup.has_opening

    @property
    def is_in_opening(self) -> bool:
        """Whether the form that was built is that of the opening."""
        return self.has_opening and self.name in (IN_WINDOWS, IN_SHARED_BUCKET)

    def _all(self) -> Builders:
        """Forms that a run may begin in, by decreasing memory."""
        forms: Builders = {}
        if self.has_opening and not self.setup.starts_in_windows:
            forms[IN_SHARED_BUCKET] = partial(self._whole, self.setup.for_short_run.bucket)
        if not self.setup.uses_windows:
            forms |= self._whole_forms()
        if self.setup.can_use_windows:
            forms[IN_WINDOWS] = self._in_windows
        return forms

    def _whole_forms(self) -> Builders:
        forms: Builders = {}
        if bucket := self.setup.bucket:
            forms[IN_BUCKET] = partial(self._whole, bucket)
        forms[WHOLE] = partial(self._whole, None)
        return forms

    def _build_first_fitting(self, forms: Builders) -> LatentStep:
        """Try one form after the other; raises OutOfMemoryError where even the last is too
        large."""
        *larger, last = forms
        for self.name in larger:
            try:
                return forms[self.name]()
            except OutOfMemoryError:
                if self.device.lost:
                    raise
        self.name = last
        return forms[last]()

    def _whole(self, bucket: Bucket) -> LatentStep:
        return LatentStep(self.pixels, SEED, self.device, self.architecture, bucket)

    def _in_windows(self) -> LatentStep:
        kind = WindowedStep if self.setup.window_count > 1 else WindowStep
        return kind(self.pixels, SEED, self.device, self.architecture)


def has_hyperlatents(shape: tuple[int, ...], steps: float) -> bool:
    """Whether hyperlatents are worth their time and their weights' bits, for pixels of a shape in a
    run of so many steps."""
    height, width, _ = shape
    has_suitable_size = MAX_SMALL_PIXELS < height * width <= MAX_HYPERLATENT_PIXELS
    has_levels = default_levels(height, width) > HYPERLATENT_LEVELS[-1]
    return has_suitable_size and has_levels and steps >= MIN_STEPS_FOR_HYPERLATENTS


def is_quick(device: AnyDevice, is_short: bool) -> bool:
    """Whether a run has small networks for the sake of more steps.

    GPUs take enough steps anyway, and where nothing is compiled, runs of any length count as short.
    """
    return is_short and compiles_slowly(device)


def widths(shape: tuple[int, ...], max_weights: float, quick: bool = False) -> tuple[int, int]:
    """Widths of the hidden layers of synthesis and of the entropy network, for pixels of a shape.

    Large networks cost a small picture too many bits and a `quick` run too much time, and a target
    of few bytes allows for no more than `max_weights` weights.
    """
    height, width, channels = shape
    if max(height, width) <= MAX_ICON_SIDE:
        return ICON_WIDTHS
    is_small = height * width <= MAX_SMALL_PIXELS
    if quick or is_small or _weight_count(LARGE_WIDTHS, channels) > max_weights:
        return SMALL_WIDTHS
    return LARGE_WIDTHS


def operations_of(shape: tuple[int, ...], quick: bool = False, extra_grids: int = 0) -> int:
    """Operations a pixel in a training step, for pixels of a shape."""
    hidden, channels = widths(shape, math.inf, quick), shape[2]
    # An extra grid has as many latents as there are pixels, for each of which the entropy network
    # runs once more. Six operations a weight: two forward, four backward.
    weights = _weight_count(hidden, channels)
    weights += extra_grids * _weight_count(hidden, channels, "entropy")
    return 6 * weights + OPERATIONS_BESIDE_LAYERS


def _weight_count(hidden: tuple[int, int], channels: int, network: str = "") -> int:
    """Weights of all networks, or of the one with a name."""
    tensors = ModelShape(64, 64, channels, 7, *hidden).tensor_shapes.items()
    return sum(int(np.prod(size)) for name, size in tensors if name.startswith(network))


def too_large(
    setup: TrainingSetup, may_have_hyperlatents: bool, error: OutOfMemoryError
) -> OutOfMemoryError:
    """The error to raise where a step does not fit into the device's memory; it names the size of
    a smaller picture that would."""
    height, width, channels = setup.shape

    def build(width: int, height: int, device: AnyDevice) -> LatentStep:
        """The form that needs the least memory."""
        pixels = np.zeros((height, width, channels), np.uint8)
        architecture = Architecture(
            *widths(pixels.shape, math.inf),
            has_hyperlatents=may_have_hyperlatents and has_hyperlatents(pixels.shape, math.inf),
            extra_grids=setup.extra_grids,
        )
        windowed = TrainingSetup(pixels.shape, device).can_use_windows
        return (WindowedStep if windowed else LatentStep)(pixels, SEED, device, architecture)

    what = f"training a latent model of {width}×{height} pixels"
    ways = (smaller_picture(width, height, build),)
    return explain(error, what, setup.device, partial(build, width, height), ways)
