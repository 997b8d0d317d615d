"""The Python API: functions that do what the commands do, but need no files.

`import imgmlp` offers these names and loads this module when one of them is used.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from os import PathLike, fsencode, fspath
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from PIL import Image

from imgmlp import image as pictures
from imgmlp import output_files
from imgmlp.codec import encoder
from imgmlp.codec.bitstream.container import CODECS, DEFAULT_CODEC, MAX_FILE_BYTES, SIGNATURE, Codec
from imgmlp.codec.decoder import Stored, check_not_compressed, open_stored
from imgmlp.codec.encoder import Encoded
from imgmlp.codec.float_mlp import npz, pipeline
from imgmlp.codec.float_mlp.config import PRESETS
from imgmlp.codec.float_mlp.pipeline import Trained
from imgmlp.codec.training import target
from imgmlp.codec.training.run import Progress, Run
from imgmlp.engine import AnyDevice, DeviceInfo, list_devices, open_device
from imgmlp.errors import UsageError
from imgmlp.image import Picture

__all__ = ["decode", "devices", "encode", "info", "train"]

_TRAINING_SETTINGS = "steps", "batch", "lr", "hidden", "layers", "features", "seed", "precision"
_COMMAND_LINE_OPTION = re.compile(r"(?<![\w./-])--([a-z]+)\b")
# Options of the command line -> arguments here, where the names differ.
_ARGUMENTS_BY_OPTION = {"bytes": "size", "lambda": "lmbda", "time": "seconds"}

P = ParamSpec("P")
R = TypeVar("R")

Source = str | PathLike[str] | Image.Image | np.ndarray[Any, Any]


def _errors_name_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: errors name the function's arguments instead of the command line's options."""

    @wraps(function)
    def decorated(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except UsageError as error:
            error.args = (_with_argument_names(str(error)),)
            error.hint = _with_argument_names(error.hint)
            raise

    return decorated


def _with_argument_names(text: str) -> str:
    text = text.replace("--scale and --size", "--size")  # `decode` has no scale here
    return _COMMAND_LINE_OPTION.sub(
        lambda match: _ARGUMENTS_BY_OPTION.get(match[1], match[1]), text
    )


@_errors_name_arguments
def train(
    image: Source,
    *,
    on_step: Callable[[Progress], None] | None = None,
    output: str | PathLike[str] | None = None,
    preset: str = "default",
    frame: int | None = None,
    strip: bool = False,
    device: str = "auto",
    **settings: Any,
) -> Trained:
    """Train a network on a picture: a file, a Pillow image, or uint8 [height, width, 1 or 3].

    `settings` replace values of the preset: steps, batch, lr, hidden, layers, features, seed,
    precision. The preset "default" has 10000 steps, a batch of 3072 pixels, an lr (learning rate)
    of 0.02, 3 hidden layers of 64 values behind 64 features, seed 0 and precision "float32". The
    preset "seed" is a simpler, well-known setup: it has a batch of 512 and an lr of 0.000533, and
    other frequencies, another schedule and another optimiser. `on_step(progress)` is called every
    few steps. The weights are written to the file `output`, which is replaced if it exists.
    `frame` is the number of a frame in a file with several, from 1; the default is the first.
    `strip` leaves out the colour profile. The `notes` of the result say what was changed when the
    picture was read, such as samples of 16 bits.

    Raises ImgmlpError: PictureError if `image` is not a picture or has transparency; UsageError for
    an invalid setting; OutputError if `output` cannot be written; DeviceError and OutOfMemoryError.
    """
    if preset not in list(PRESETS):  # a list, as an unhashable value must be refused too
        hint = f"use {' or '.join(map(repr, PRESETS))}"
        raise UsageError(f"there is no preset {preset!r}", hint=hint)
    if unknown := [name for name in settings if name not in _TRAINING_SETTINGS]:
        problem = f"there is no setting {', '.join(unknown)}"
        raise UsageError(problem, hint=f"use {', '.join(_TRAINING_SETTINGS)}")
    python_values: dict[str, Any] = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in settings.items()
    }
    all_settings = replace(PRESETS[preset], **python_values)
    path = None if output is None else _path(output)
    if path is not None:
        pictures.check_ending(path, ".npz")
        output_files.check_output(path, force=True)
        path = path.absolute()  # as `on_step` may change the working folder
    run = _run(on_step)
    picture = _picture(image, frame=frame, strip=strip)
    trained = pipeline.train(picture, all_settings, _device(device), run)
    if path is not None:
        output_files.write_atomically(path, lambda stream: npz.save(trained.weights, stream))
    return replace(trained, notes=picture.notes)


@_errors_name_arguments
def encode(
    image: Source,
    *,
    quality: float | None = None,
    bpp: float | None = None,
    size: int | None = None,
    psnr: float | None = None,
    lmbda: float | None = None,
    effort: int | None = None,
    seconds: float | None = None,
    codec: Codec = DEFAULT_CODEC,
    frame: int | None = None,
    strip: bool = False,
    on_step: Callable[[Progress], None] | None = None,
    device: str = "auto",
) -> Encoded:
    """Compress a picture to the `bytes` of an .imlp file; `metrics` are figures of this file.

    A picture is a file, a Pillow image, or uint8 [height, width, 1 to 4]. At most one target may be
    given: `quality` from 0 to 100, `bpp` in bits per pixel, `size` in bytes, `psnr` in dB, or
    `lmbda`, with which the encoder minimises MSE + lmbda * bits per pixel, for samples from 0 to 1.
    Without a target, the quality is 60. `effort` is 1 to 9; `seconds`, which may be given instead,
    is the approximate time of the call.
    `frame` is the number of a frame in a file with several, from 1; the default is the first.
    `strip` leaves out colour profile, EXIF data, XMP data and resolution. `missed` says how the
    target was missed, if it was; `notes` say what was changed when the picture was read, such as
    samples of 16 bits.

    Raises ImgmlpError: PictureError if `image` is not a picture, UsageError for an invalid
    argument, TrainingError, DeviceError and OutOfMemoryError. A missed target raises nothing.
    """
    quality, bpp, psnr = _real("quality", quality), _real("bpp", bpp), _real("psnr", psnr)
    lmbda, seconds = _real("lmbda", lmbda), _real("seconds", seconds)
    for name, count in {"size": size, "effort": effort}.items():
        if count is not None:
            _check_number(name, count, int)
    if seconds is not None and not 0 < seconds <= 10**6:
        raise UsageError(f"seconds is {seconds!r}", hint="use a number above 0, up to a million")
    if size is not None and not 1 <= size <= MAX_FILE_BYTES:
        raise UsageError(f"size is {size!r}", hint=f"use bytes from 1 to {MAX_FILE_BYTES:,}")
    if seconds is not None and effort is not None:
        raise UsageError("effort and seconds are both given", hint="choose one of them")
    if codec not in list(CODECS):  # a list, as an unhashable value must be refused too
        hint = f"use {' or '.join(map(repr, CODECS))}"
        raise UsageError(f"there is no codec {codec!r}", hint=hint)
    run = _run(on_step)
    picture = _picture(image, alpha=True, frame=frame, strip=strip)
    pixels = picture.width * picture.height
    goal = target.choose(pixels, quality, bpp, None if size is None else str(size), psnr, lmbda)
    workload = encoder.workload(codec, effort, seconds)
    encoded = encoder.encode(picture, goal, workload, _device(device), run, codec)
    return replace(encoded, notes=picture.notes)


def _picture(
    image: Source, alpha: bool = False, frame: int | None = None, strip: bool = False
) -> Picture:
    if frame is not None:
        _check_number("frame", frame, int)
    if not isinstance(strip, bool):
        raise UsageError(f"strip is {strip!r}", hint="use True or False")
    if isinstance(image, str | PathLike):
        path = _path(image)
        with suppress(OSError):  # `load` reports it
            if path.is_file():  # not a pipe, which can be read only once
                with path.open("rb") as stream:
                    start = stream.read(len(SIGNATURE))
                check_not_compressed(path, str(path), start)
        return pictures.load(path, alpha, frame=frame, strip=strip)
    if frame is not None:
        hint = "seek to it in the Pillow image, or give the file's name"
        raise UsageError("frame is for files only", hint=hint)
    if isinstance(image, Image.Image):
        return pictures.from_image(image, alpha=alpha, strip=strip)
    if isinstance(image, np.ndarray):
        return pictures.from_array(image, alpha)
    hint = "give a file's name, a Pillow image or an array"
    raise UsageError(f"an object of type {type(image).__name__} is not a picture", hint=hint)


def _path(name: str | PathLike[str]) -> Path:
    """A file's name as a Path. Raises UsageError for an invalid name."""
    if not isinstance(name, str | PathLike) or not isinstance(fspath(name), str):
        raise UsageError(f"{name!r} is not a file name", hint="give a string or a path")
    if not fspath(name):
        raise UsageError("the file name is empty", hint="give a string or a path")
    if "\0" in fspath(name):
        raise UsageError(f"{name!r} contains a null character", hint="check the name")
    try:
        fsencode(name)
    except UnicodeEncodeError:
        raise UsageError(f"{name!r} is not a valid file name here", hint="check the name") from None
    return Path(name)


def _run(on_step: Callable[[Progress], None] | None) -> Run:
    if on_step is not None and not callable(on_step):
        raise UsageError(f"on_step is {on_step!r}", hint="give a function of one argument")
    return Run(on_step)


def _check_number(name: str, value: object, kind: type[float]) -> None:
    """Raise UsageError for a value that is not a number, or not a whole one if `kind` is int."""
    is_number = isinstance(value, numbers.Integral if kind is int else numbers.Real)
    if not is_number or isinstance(value, bool):
        expected = "a whole number" if kind is int else "a number"
        raise UsageError(f"{name} is {value!r}", hint=f"use {expected}")


def _real(name: str, value: float | None) -> float | None:
    """A number as a float, as JSON cannot hold NumPy's types. Raises UsageError."""
    if value is None:
        return None
    _check_number(name, value, float)
    try:
        return float(value)
    except OverflowError:  # an int beyond the range of float
        return math.inf if value > 0 else -math.inf


@_errors_name_arguments
def decode(
    file: str | PathLike[str] | bytes | bytearray | memoryview,
    *,
    size: tuple[int, int] | None = None,
    device: str = "auto",
) -> Image.Image:
    """Decode an .imlp or .npz file, given as a path or as its bytes.

    `size` is (width, height); the default is the picture's own size. Files of the latent codec can
    be decoded at that size only.

    Raises ImgmlpError: FormatError for a file that is damaged, foreign or too new; UsageError if
    the file does not exist, or for a size that is not available; DeviceError and OutOfMemoryError.
    """
    if size is not None:
        _check_pair(size)
        size = int(size[0]), int(size[1])  # it may be a list, or hold NumPy's integers
        pictures.check_size(*size)
    stored = _stored(file)
    return pictures.to_image(stored.decode(_device(device), size), stored.metadata)


def _device(spec: object) -> AnyDevice:
    if not isinstance(spec, str):
        raise UsageError(f"device is {spec!r}", hint="use 'auto' or a name from devices()")
    return open_device(spec)


def _stored(file: object) -> Stored:
    if isinstance(file, bytes | bytearray | memoryview):
        return open_stored(bytes(file))
    if not isinstance(file, str | PathLike):
        hint = "give its name, or its bytes"
        raise UsageError(f"an object of type {type(file).__name__} is not a file", hint=hint)
    return open_stored(_path(file))


def _check_pair(size: object) -> None:
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise UsageError(f"size is {size!r}", hint="give (width, height) in pixels")
    for number in size:
        _check_number("size", number, int)


def info(file: str | PathLike[str] | bytes | bytearray | memoryview) -> dict[str, Any]:
    """Describe an .imlp or .npz file, given as a path or as its bytes, without decoding it.

    The result is what `imgmlp info --json` prints. Raises FormatError for a file that is damaged,
    foreign or too new, and UsageError if it does not exist.
    """
    return _stored(file).facts


def devices() -> list[DeviceInfo]:
    """The devices that `device` may name on this machine, always with the NumPy interpreter."""
    return list_devices()
