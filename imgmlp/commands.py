"""What each command does, once its options are parsed: check, compute, write, tell.

No numerics: pictures come from `image`, everything else from the codec and from the engine's
public names. Loaded only when a command runs, so that help stays quick.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from imgmlp import facts, files, selftest
from imgmlp import image as pictures
from imgmlp.codec import checkpoint, compact, container, npz, pipeline
from imgmlp.codec.checkpoint import Checkpoint, State
from imgmlp.codec.config import PRESETS, Settings, check_size
from imgmlp.engine import (
    AnyDevice,
    DeviceInfo,
    check_device,
    forget_problems,
    list_devices,
    missing_drivers,
    open_device,
    open_untried,
)
from imgmlp.errors import DeviceError, Interrupted, OutputError, TrainingError, UsageError
from imgmlp.image import Picture
from imgmlp.interrupt import StopRequest
from imgmlp.terminal import Terminal
from imgmlp.text import duration, print_data, size, standard_output

STDOUT = Path("-")
LIVE_EVERY = 3.0  # seconds between two previews

Array = np.ndarray[Any, Any]


# train


def train(
    terminal: Terminal,
    source: Path,
    output: Path,
    png: Path,
    live: Path | None,
    settings: Settings,
    device_spec: str,
    force: bool,
) -> None:
    """Fit a network to a picture; write its weights and what they decode to.

    A run that was stopped goes on, over what it has written itself. Raises Interrupted or
    TrainingError after the best weights so far are written.
    """
    outputs = [output, png] if live is None else [output, png, live]
    _check_outputs(source, outputs, outputs if force or checkpoint.left_beside(output) else [])
    picture = pictures.load(source)
    device = open_device(device_spec)
    kept = _checkpoint(output, picture, settings, device)
    saved = kept.load()
    _check_outputs(source, outputs, outputs if force else _own(outputs, kept, saved))
    for note in picture.notes:
        terminal.note(f"{source.name}: {note}")
    terminal.note(_header(source, picture, settings, device))
    if (others := checkpoint.others(output, kept)) is not None:
        terminal.note(others)
    _tell_precision(terminal, settings, device)
    terminal.detail(_device_details(device))
    terminal.detail("  ".join(f"{name} {value}" for name, value in asdict(settings).items()))
    if saved is not None:
        terminal.note(
            f"continuing after {int(saved.arrays['count']):,} of {settings.steps:,} steps"
        )
    preview = _LivePreview(live, picture.icc, terminal) if live else None
    with StopRequest() as stop:
        with terminal.training(settings.steps) as show:

            def tell(progress: pipeline.Progress) -> None:
                show(progress)
                if preview is not None and progress.preview is not None:
                    preview.update(progress.preview)

            keep = kept.keeping(terminal.note, {"outputs": _names(outputs)})
            trained = pipeline.train(picture, settings, device, tell, stop.requested, saved, keep)
        files.write_atomically(output, lambda stream: npz.save(trained.weights, stream))
        pictures.save_png(trained.pixels, png, picture.icc)
        if preview is not None:
            preview.write(trained.pixels)
    if trained.stopped == "interrupted":
        kept.touch()
    else:
        kept.remove(output)
    _report(terminal, trained, settings, output, png)


def _tell_precision(terminal: Terminal, settings: Settings, device: AnyDevice) -> None:
    if settings.precision == "half" and not device.has_matrix_units:
        terminal.note(f"{device.info.name} has no matrix units for half precision: using float32")


def training_settings(preset: str, **chosen: float | str | None) -> Settings:
    """A preset with what the user chose in place of its values. Raises UsageError."""
    given: dict[str, Any] = {name: value for name, value in chosen.items() if value is not None}
    return replace(PRESETS[preset], **given)


def _own(outputs: list[Path], kept: Checkpoint, saved: State | None) -> list[Path]:
    """The outputs that the run which a checkpoint is of has written, and nothing else since.

    A preview is younger than the checkpoint if the run was killed.
    """
    if saved is None:
        return []
    named = zip(outputs, _names(outputs), strict=True)
    known = [path for path, name in named if name in saved.facts["outputs"]]
    return [path for path in known if path in outputs[2:] or not kept.is_older_than(path)]


def _names(outputs: list[Path]) -> list[str]:
    return [str(path.resolve()) for path in outputs]


def _check_outputs(source: Path, outputs: list[Path], replaced: list[Path]) -> None:
    for path in outputs:
        files.check_output(path, path in replaced)
    seen = [source.resolve()]
    for path in outputs:
        if path.resolve() in seen:
            hint = "give every file a name of its own"
            raise OutputError(f"{path} would be written over another file of this run", hint=hint)
        seen.append(path.resolve())


def _checkpoint(
    output: Path, picture: Picture, settings: Settings, device: AnyDevice
) -> Checkpoint:
    choices = f"train {settings!r} {device.info.spec} {device.info.describe()}"
    key = checkpoint.key(picture, choices)
    return Checkpoint(checkpoint.beside(output, key), key)


def _header(source: Path, picture: Picture, settings: Settings, device: AnyDevice) -> str:
    network = settings.architecture(picture.channels)
    what = f"{source.name}  {facts.dimensions(picture.width, picture.height, picture.channels)}"
    return f"{what}   MLP {network}, {network.parameters:,} parameters   {device.info.describe()}"


def _device_details(device: AnyDevice) -> str:
    info = device.info
    return f"device {info.spec}: {info.describe()}, driver {info.driver}, {info.version}"


def _report(
    terminal: Terminal, trained: pipeline.Trained, settings: Settings, output: Path, png: Path
) -> None:
    at = f"{trained.steps:,} of {settings.steps:,} steps"
    kept = f"the best weights so far are in {output}"
    if trained.stopped == "interrupted":
        raise Interrupted(
            f"stopped after {at}", hint=f"{kept}; the same command goes on from there"
        )
    if trained.stopped == "diverged":
        problem = f"the loss is no longer finite after {at}, also at an eighth of the learning rate"
        raise TrainingError(problem, hint=f"{kept}; try a smaller --lr than {settings.lr:g}")
    weights, quality = size(output.stat().st_size), f"{trained.psnr:.1f} dB"
    terminal.done(f"{output} {weights}   {png} {quality}   {duration(trained.seconds)}")


class _LivePreview:
    """A PNG of the best weights so far, rewritten every few seconds while training goes on."""

    def __init__(self, path: Path, icc: bytes | None, terminal: Terminal) -> None:
        self._path, self._icc, self._terminal = path, icc, terminal
        self._next = time.monotonic() + LIVE_EVERY
        self._broken = False

    def update(self, decode: Callable[[], Array]) -> None:
        if not self._broken and time.monotonic() >= self._next:
            self.write(decode())
            self._next = time.monotonic() + LIVE_EVERY

    def write(self, pixels: Array) -> None:
        try:
            pictures.save_png(pixels, self._path, self._icc)
        except OutputError as error:  # not worth losing the training for
            self._terminal.note(f"no more previews: {error}")
            self._broken = True


# decode


def decode(
    terminal: Terminal,
    source: Path,
    output: Path | None,
    scale: float | None,
    wanted: str | None,
    device_spec: str,
    force: bool,
) -> None:
    """Write the picture that a file holds; to stdout if output is `-`."""
    began = time.perf_counter()
    parse_scale(scale)
    dimensions = parse_size(wanted)
    if scale is not None and dimensions is not None:
        raise UsageError("--scale and --size are both given", hint="choose one of them")
    archive = facts.is_archive(source)
    target = output or source.with_suffix(".png" if archive else ".decoded.png")
    _check_decoded(target, force)
    stored = _weights(source) if archive else _compact(source)
    if target != STDOUT:
        pictures.check_extension(target, stored.channels)
    if scale is not None:
        dimensions = scaled(stored.width, stored.height, scale)
    device = open_device(device_spec)
    terminal.detail(_device_details(device))
    pixels = stored.decode(device, dimensions)
    if not archive and dimensions not in (None, (stored.width, stored.height)):
        terminal.note("another size than its own: rendered in floats, not the exact picture")
    if target == STDOUT:
        with standard_output() as stdout:
            pictures.save_png(pixels, stdout.buffer, stored.icc)
        return
    pictures.save_picture(pixels, target, stored.icc)
    height, width, channels = pixels.shape
    seconds = duration(time.perf_counter() - began)
    terminal.done(f"{target}  {facts.dimensions(width, height, channels)}   {seconds}")


@dataclass(frozen=True)
class _Stored:
    """A picture in a file, and how it is decoded at (width, height) or at its own size."""

    width: int
    height: int
    channels: int
    icc: bytes | None
    decode: Callable[[AnyDevice, tuple[int, int] | None], Array]


def _weights(source: Path) -> _Stored:
    found = npz.load(source)
    decode = partial(pipeline.decode, found)
    return _Stored(found.width, found.height, found.channels, found.icc, decode)


def _compact(source: Path) -> _Stored:
    found = container.read(source)
    header, icc = found.header, found.get(container.ICC)
    decode = partial(compact.decode, found)
    return _Stored(header.width, header.height, header.channels, icc, decode)


def _check_decoded(target: Path, force: bool) -> None:
    if target != STDOUT:
        pictures.check_extension(target)
        files.check_output(target, force)
    elif sys.stdout is not None and sys.stdout.isatty():
        hint = "send it somewhere: imgmlp decode weights.npz -o - > picture.png"
        raise UsageError("a PNG is nothing that a terminal can show", hint=hint)


def parse_scale(scale: float | None) -> None:
    """Refuse, as a UsageError, a factor that is not above 0 and finite."""
    if scale is not None and not 0 < scale < math.inf:
        raise UsageError(f"--scale is {scale:g}", hint="use a number above 0, like 2 or 0.5")


def parse_size(text: str | None) -> tuple[int, int] | None:
    """(width, height) of text such as 640x480. Raises UsageError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,10})[xX×](\d{1,10})", text, re.ASCII)
    if match is None:
        raise UsageError(f"--size is {text!r}", hint="use WIDTHxHEIGHT in pixels, like 640x480")
    width, height = int(match[1]), int(match[2])
    check_size(width, height)
    return width, height


def scaled(width: int, height: int, scale: float) -> tuple[int, int]:
    """(width, height) of a picture made larger or smaller. Raises UsageError."""
    limit = float(2**40)  # so that no factor leads to numbers beyond a float's range
    width, height = (max(1, round(min(n * scale, limit))) for n in (width, height))
    check_size(width, height)
    return width, height


# devices


def devices(
    terminal: Terminal, as_json: bool, check: bool = False, spec: str | None = None
) -> None:
    """Print the devices that --device takes; say how to mend it if none runs OpenCL.

    `check` runs the self-test of each, or of the one that `spec` names. Raises DeviceError
    if one fails.
    """
    if check:
        _check_devices(terminal, as_json, spec)
        return
    found = list_devices() if spec is None else [open_device(spec).info]
    print_data(json.dumps([asdict(d) for d in found], indent=2) if as_json else _table(found))
    if spec is None and all(device.kind in ("numpy", "simulator") for device in found):
        for advice in missing_drivers(found):
            terminal.note(advice)


def _check_devices(terminal: Terminal, as_json: bool, spec: str | None) -> None:
    forget_problems()
    if spec is None:
        tested = [(info, selftest.examine(info)) for info in list_devices()]
    else:
        device = open_untried(spec)
        tested = [(device.info, check_device(device))]
    failed = [info.spec for info, checks in tested if not all(c.passed for c in checks)]
    if as_json:
        print_data(json.dumps([selftest.report(*one) for one in tested], indent=2))
    else:
        print_data("\n".join(selftest.render(*one) for one in tested))
    for advice in missing_drivers([info for info, _ in tested]) if spec is None else ():
        terminal.note(advice)
    if failed:
        problem = f"the self-test failed on {', '.join(failed)}"
        raise DeviceError(problem, hint="the list above says what is wrong, and what to try")


def _table(found: list[DeviceInfo]) -> str:
    rows = [("--device", "kind", "memory", "name", "driver")]
    rows += [(d.spec, d.kind, size(d.memory), d.describe(), d.driver) for d in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


# graph


def graph(
    terminal: Terminal,
    settings: Settings,
    wanted: str,
    device_spec: str,
    form: str,
    as_json: bool,
    general: bool,
) -> None:
    """Print a form of the training step for an RGB picture of a size; JSON gives its figures."""
    width, height = parse_size(wanted) or (0, 0)
    if as_json and form != "summary":
        raise UsageError("--json gives the step's figures only", hint="leave out --form or --json")
    device = open_device(device_spec)
    _tell_precision(terminal, settings, device)
    program = pipeline.training_step(settings, device, width, height, 3, general)
    if as_json:
        figures = program.stages.figures() | {"note": program.stages.procedure.note}
        print_data(json.dumps(figures, indent=2))
    elif form == "summary":
        print_data(_figures(program.stages.figures(), program.stages.procedure.note))
    elif form == "times":
        print_data(program.render_times())
    else:
        print_data(program.stages.show(form))


def _figures(figures: dict[str, int | float], note: str) -> str:
    saved, packing = figures["saved"], figures["saved_by_packing"]
    unfused = size(int(figures["intermediate_bytes"]))
    rows = {
        "launches": f"{figures['launches']}, of {figures['kernels']} different kernels",
        "memory": f"{size(int(figures['arena_bytes']))} of {unfused} unfused, {saved:.0%} saved",
        "packing": f"saves {packing:.0%} of what fusion leaves",
    }
    kind, _, why = (note or "no block: left out").partition(": ")
    rows[kind] = why
    return "\n".join(f"{name:<10}{value}" for name, value in rows.items())
