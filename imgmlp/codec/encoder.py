"""Encodes a picture as an .imlp file with one of the codecs, and verifies the result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import DEFAULT_CODEC, Codec
from imgmlp.codec.latent import encode as latent
from imgmlp.codec.mlp import encode as mlp
from imgmlp.codec.mlp import estimate
from imgmlp.codec.mlp.rounding_search import smallest_size
from imgmlp.codec.training import target
from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.codec.training.draft import Draft
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.codec.training.time_estimate import Work
from imgmlp.engine import AnyDevice
from imgmlp.errors import FormatError, ImgmlpError
from imgmlp.image import Picture

Array = np.ndarray[Any, Any]

# Pictures of a single colour need no training. Their files are only decoded and compared.
SINGLE_COLOUR_SECONDS_PER_PIXEL = 9e-8


@dataclass(frozen=True, eq=False)
class Encoded:
    """The bytes of a file, the pixels that they decode to, and measurements of both.

    `metrics` has width, height, channels, bytes, bpp (bits per pixel), psnr (dB, infinite for equal
    pictures), target, steps, seconds, and the measurements that the codec adds.
    """

    bytes: bytes = field(repr=False)
    pixels: Array = field(repr=False)  # uint8 [height, width, channels]
    metrics: dict[str, Any]
    missed: str | None = None  # how the target was missed, if it was
    diverged: bool = False  # whether training diverged; the file then has its best state
    resumed: int = 0  # training steps that were taken over from an interrupted run
    notes: tuple[str, ...] = ()  # messages about changes to the picture before it was encoded


def workload(codec: Codec, level: int | None, seconds: float | None) -> Workload:
    """The training for an effort level from 1 to 9, or for the codec's default.

    Raises UsageError.
    """
    if codec == "latent":
        return latent.workload(level, seconds)
    return target.workload(level, seconds)


def expected_seconds(
    picture: Picture,
    wanted: Goal,
    workload: Workload,
    device: AnyDevice,
    codec: Codec,
) -> float:
    """An estimate of the time that `encode` will take, or its time limit.

    The estimate takes some tenths of a second. It assumes a picture of average complexity and idle
    cores and may be off by a factor of two or three. Compilation times are known once similar
    programs have been compiled on the device.
    """
    work = _work(codec, picture, wanted, workload, device)
    if workload.seconds is not None and work.programs:
        return workload.seconds
    return work.seconds(device)


def compiling_seconds(
    picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, codec: Codec
) -> float:
    """The part of `expected_seconds` that compiles programs not yet in the cache."""
    programs = _work(codec, picture, wanted, workload, device).programs
    return CompileTimes(device).expected_seconds(programs)


def _work(
    codec: Codec, picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice
) -> Work:
    if _has_single_colour(picture) or (
        wanted.kind == "bytes" and wanted.value < smallest_size(picture)
    ):
        pixels = picture.width * picture.height
        return Work(0, 0, fixed_seconds=SINGLE_COLOUR_SECONDS_PER_PIXEL * pixels)  # no training
    estimate_work = estimate.work if codec == "mlp" else latent.estimate_work
    return estimate_work(picture, wanted, workload, device)


def _has_single_colour(picture: Picture) -> bool:
    """Whether the picture has a single colour. The first rows settle this for most pictures."""
    first = picture.pixels[0, 0]
    return all(np.all(row == first) for row in picture.pixels)


def encode(
    picture: Picture,
    wanted: Goal,
    workload: Workload,
    device: AnyDevice,
    run: Run | None = None,
    codec: Codec = DEFAULT_CODEC,
) -> Encoded:
    """Encode a picture with a codec, and decode the result to verify it.

    With a checkpoint, an interrupted run is resumed. Raises Interrupted, once the state is saved,
    if `run` is asked to stop.
    """
    draft = mlp.untrained(picture, wanted, device)  # None if training is needed
    if draft is None:
        train = mlp.encode if codec == "mlp" else latent.encode
        trained = train(picture, wanted, workload, device, run or Run())
        draft = _nearer_to_target(trained, picture, wanted, device)
    pixels = _decoded(draft, device)
    missed = wanted.misses(len(draft.bytes), draft.metrics["psnr"])
    return Encoded(draft.bytes, pixels, draft.metrics, missed, draft.diverged, draft.resumed)


def _nearer_to_target(trained: Draft, picture: Picture, wanted: Goal, device: AnyDevice) -> Draft:
    """The trained file, or a file of a single colour if that is nearer to the target.

    This happens for targets of very few bytes, and at any lambda for pictures of nearly one colour.
    """
    untrained = mlp.untrained(picture, wanted, device, trained)
    if untrained is None:
        return trained
    return replace(untrained, diverged=trained.diverged, resumed=trained.resumed)


def _decoded(draft: Draft, device: AnyDevice) -> Array:
    """Decode a new file and compare the pixels with its digest."""
    try:
        file = container.parse(draft.bytes)
        if draft.decode is None:
            return decoder.decode(file, device)
        return decoder.checked(file, draft.decode(file))
    except FormatError as error:
        hint = "this is a fault in imgmlp or in the device's driver; try --device numpy"
        raise ImgmlpError(f"what was written is no sound file: {error}", hint=hint) from error
