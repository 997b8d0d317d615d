"""The Python API: what the commands do, without files where none are needed.

`import imgmlp` offers these names and loads this module when one of them is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from imgmlp import image as pictures
from imgmlp import output_files
from imgmlp.codec import encoder
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.decoder import open_stored
from imgmlp.codec.encoder import Encoded
from imgmlp.codec.float_mlp import npz, pipeline
from imgmlp.codec.float_mlp.config import PRESETS
from imgmlp.codec.float_mlp.pipeline import Trained
from imgmlp.codec.training import target
from imgmlp.codec.training.run import Progress, Run
from imgmlp.engine import DeviceInfo, list_devices, open_device
from imgmlp.errors import PictureError, UsageError
from imgmlp.image import Picture

__all__ = ["decode", "devices", "encode", "info", "train"]

Source = str | PathLike[str] | Image.Image | np.ndarray[Any, Any]


def train(
    image: Source,
    *,
    on_step: Callable[[Progress], None] | None = None,
    output: str | PathLike[str] | None = None,
    preset: str = "default",
    device: str = "auto",
    **settings: Any,
) -> Trained:
    """Fit a network to a picture: a file, a Pillow image, or uint8 [height, width, 1 or 3].

    `settings` replace values of the preset: steps, batch, lr, hidden, layers, features, seed,
    precision. `on_step(progress)` is called every few steps. `output` is a file for the weights,
    replaced if it exists. Raises ImgmlpError.
    """
    if preset not in PRESETS:
        hint = f"use {' or '.join(map(repr, PRESETS))}"
        raise UsageError(f"there is no preset {preset!r}", hint=hint)
    try:
        chosen = replace(PRESETS[preset], **settings)
    except TypeError:
        known = "steps, batch, lr, hidden, layers, features, seed and precision"
        problem = f"unknown setting among {', '.join(settings)}"
        raise UsageError(problem, hint=f"there are {known}") from None
    if output is not None:
        output_files.check_output(Path(output), force=True)
    picture = _picture(image)
    trained = pipeline.train(picture, chosen, open_device(device), Run(on_step))
    if output is not None:
        output_files.write_atomically(
            Path(output), lambda stream: npz.save(trained.weights, stream)
        )
    return trained


def encode(
    image: Source,
    *,
    quality: float | None = None,
    bpp: float | None = None,
    size: int | None = None,
    psnr: float | None = None,
    price: float | None = None,
    effort: int | None = None,
    seconds: float | None = None,
    codec: Codec = "mlp",
    on_step: Callable[[Progress], None] | None = None,
    device: str = "auto",
) -> Encoded:
    """Compress a picture to the `bytes` of an .imlp file; `metrics` are figures of just these.

    One target at most: quality from 0 to 100 (60 if none is given), bits for each pixel, bytes,
    dB, or a price, the squared error that a bit a pixel is worth. `effort` is 1 to 9, or training
    takes about so many `seconds`. `missed` says how the target was missed, if it was. A picture is
    a file, a Pillow image, or uint8 [height, width, 1 to 4]. Raises ImgmlpError.
    """
    if seconds is not None and not 0 < seconds <= 10**6:
        raise UsageError(f"seconds is {seconds!r}", hint="use a number above 0, up to a million")
    picture = _picture(image, alpha=True)
    pixels = picture.width * picture.height
    count = None if size is None else str(size)
    wanted = target.choose(pixels, quality, bpp, count, psnr, price)
    work = encoder.workload(codec, effort, seconds)
    return encoder.encode(picture, wanted, work, open_device(device), Run(on_step), codec)


def _picture(image: Source, alpha: bool = False) -> Picture:
    if isinstance(image, Image.Image):
        return pictures.from_image(image, alpha=alpha)
    if not isinstance(image, np.ndarray):
        return pictures.load(Path(image), alpha)
    channels = (1, 2, 3, 4) if alpha else (1, 3)
    pixels = image[:, :, None] if image.ndim == 2 else image
    good = pixels.ndim == 3 and pixels.shape[2] in channels and pixels.dtype == np.uint8
    if not good or not 0 < pixels.shape[0] * pixels.shape[1] <= pictures.MAX_PIXELS:
        problem = f"an array of {image.dtype}{list(image.shape)} is no picture"
        hint = f"give uint8 [height, width, {'1 to 4' if alpha else '1 or 3'}]"
        raise PictureError(problem, hint=hint)
    return Picture(pixels)


def decode(
    file: str | PathLike[str] | bytes,
    *,
    size: tuple[int, int] | None = None,
    device: str = "auto",
) -> Image.Image:
    """The picture in an .imlp or .npz file (a path, or its bytes), at (width, height) `size`.

    Raises ImgmlpError.
    """
    if size is not None:
        pictures.check_size(*size)
    stored = open_stored(file)
    return pictures.to_image(stored.decode(open_device(device), size), stored.icc)


def info(file: str | PathLike[str] | bytes) -> dict[str, Any]:
    """What an .imlp or .npz file (a path, or its bytes) says of itself, without decoding it.

    Raises ImgmlpError.
    """
    return open_stored(file).facts


def devices() -> list[DeviceInfo]:
    """Everything that `device` may name here; the NumPy interpreter is always there."""
    return list_devices()
