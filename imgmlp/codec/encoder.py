"""From a picture to the bytes of an .imlp file: by which codec, and the check of the result."""

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
from imgmlp.codec.mlp.rounding_search import smallest
from imgmlp.codec.training import target
from imgmlp.codec.training.compile_times import CompileTimes
from imgmlp.codec.training.draft import Draft
from imgmlp.codec.training.pace import Work
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import AnyDevice
from imgmlp.errors import FormatError, ImgmlpError
from imgmlp.image import Picture

Array = np.ndarray[Any, Any]

PLAIN = 9e-8  # seconds for each pixel of a picture of one colour: it is decoded and compared


@dataclass(frozen=True, eq=False)
class Encoded:
    """A file's bytes, what they decode to, and figures of just these bytes.

    `metrics` has width, height, channels, bytes, bpp (bits for each pixel), psnr (dB, infinite for
    equal pictures), target, steps and seconds, and what the codec adds.
    """

    bytes: bytes = field(repr=False)
    pixels: Array = field(repr=False)  # uint8 [height, width, channels]
    metrics: dict[str, Any]
    missed: str | None = None  # how the target was missed
    diverged: bool = False  # training could not go on; the best state is in the bytes
    resumed: int = 0  # steps that an interrupted run had done
    notes: tuple[str, ...] = ()  # what of the picture was changed before, for people


def workload(codec: Codec, level: int | None, seconds: float | None) -> Workload:
    """Training of an effort from 1 to 9, or of the codec's own choice. Raises UsageError."""
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
    """About how long `encode` will take, or its time limit: a guess, found in some tenths of one.

    What is known of pictures of the middling kind stands for this one, so that it may be off by two
    or three times on idle cores; how long programs take to compile is known once some of their kind
    were.
    """
    work = _work(codec, picture, wanted, workload, device)
    if workload.seconds is not None and work.programs:
        return workload.seconds
    return work.seconds(device)


def compiling_seconds(
    picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice, codec: Codec
) -> float:
    """About how much of that goes to compiling what no picture has needed yet."""
    programs = _work(codec, picture, wanted, workload, device).programs
    return CompileTimes(device).expected(programs)


def _work(
    codec: Codec, picture: Picture, wanted: Goal, workload: Workload, device: AnyDevice
) -> Work:
    if _is_even(picture) or (wanted.kind == "bytes" and wanted.value < smallest(picture)):
        pixels = picture.width * picture.height
        return Work(0, 0, beside=PLAIN * pixels)  # as nothing is trained
    of = estimate.work if codec == "mlp" else latent.estimate_work
    return of(picture, wanted, workload, device)


def _is_even(picture: Picture) -> bool:
    """Whether it has one colour; by rows, as the first of them tell of most pictures."""
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
    """Have a codec make a file of a picture, and decode what was coded.

    With a checkpoint, a run that was stopped goes on where it was. Raises Interrupted once the
    state is saved, if `run` is asked to stop.
    """
    found = mlp.untrained(picture, wanted, device)  # the smallest file of one colour there is
    if found is None:
        train = mlp.encode if codec == "mlp" else latent.encode
        trained = train(picture, wanted, workload, device, run or Run())
        found = _nearer(trained, picture, wanted, device)
    pixels = _decoded(found, device)
    missed = wanted.misses(len(found.bytes), found.metrics["psnr"])
    return Encoded(found.bytes, pixels, found.metrics, missed, found.diverged, found.resumed)


def _nearer(found: Draft, picture: Picture, wanted: Goal, device: AnyDevice) -> Draft:
    """A trained file, or one of a single colour, if that is nearer to the target.

    As it may be for few bytes, and of what is nearly of one colour at any lambda.
    """
    plain = mlp.untrained(picture, wanted, device, found)
    if plain is None:
        return found
    return replace(plain, diverged=found.diverged, resumed=found.resumed)


def _decoded(draft: Draft, device: AnyDevice) -> Array:
    """What a file that was just made decodes to, which its digest is compared with."""
    try:
        found = container.parse(draft.bytes)
        if draft.decode is None:
            return decoder.decode(found, device)
        return decoder.checked(found, draft.decode(found))
    except FormatError as error:
        hint = "this is a fault in imgmlp or in the device's driver; try --device numpy"
        raise ImgmlpError(f"what was written is no sound file: {error}", hint=hint) from error
