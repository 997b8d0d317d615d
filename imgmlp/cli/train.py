"""`imgmlp train`: train a network on a picture; write its weights and what they decode to.

If the weights go to a file, an interrupted run is resumed and replaces what it has written itself.
"""

from __future__ import annotations

import contextlib
import io
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from imgmlp import image as pictures
from imgmlp import output_files
from imgmlp.cli import devices, files, parsing
from imgmlp.cli.files import STANDARD
from imgmlp.codec.float_mlp import npz, pipeline
from imgmlp.codec.float_mlp.config import Settings
from imgmlp.codec.float_mlp.pipeline import Trained
from imgmlp.codec.training import checkpoint
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Progress, Run
from imgmlp.ending import keep_open
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import Interrupted, OutputError, TrainingError
from imgmlp.facts import dimensions
from imgmlp.image import Picture
from imgmlp.interrupt import StopRequest
from imgmlp.report import live
from imgmlp.report.live import LiveView
from imgmlp.terminal import Terminal
from imgmlp.text import duration, quoted, size

FORCE_HINT = "--force replaces it; -o, --png and --live choose other names"
RESUME_HINT = "move it away, and the same command continues; --force replaces it"


@dataclass(frozen=True)
class Outputs:
    """The files that a training writes."""

    weights: Path
    png: Path | None
    live: Path | None = None

    @staticmethod
    def of_options(weights: Path, png: Path | None, live: Path | None) -> Outputs:
        """The outputs that options name; by default no picture beside standard output."""
        default_png = None if weights == STANDARD else Path("reconstruction.png")
        return Outputs(weights, png or default_png, live)

    def final_files(self) -> list[Path]:
        """The files that are written at the end, without standard output."""
        return [path for path in (self.weights, self.png) if path not in (None, STANDARD)]

    def preview_files(self) -> list[Path]:
        """The files that are rewritten during training."""
        return live.files_of(self.live)

    def paths(self) -> list[Path]:
        return [*self.final_files(), *self.preview_files()]

    def check(self, source: Path, replaced: list[Path], hint: str = FORCE_HINT) -> None:
        """Refuse, as an OutputError, files that cannot be written or must not be replaced."""
        if self.weights == STANDARD:
            files.check_not_terminal("weights", "imgmlp train photo.png -o - > weights.npz")
        regular = [path for path in self.paths() if not output_files.is_special(path)]
        output_files.check_distinct(regular, [source], "give each file a different name")
        for path in self.paths():
            output_files.check_output(path, path in replaced, hint)

    def check_formats(self, picture: Picture | None = None) -> None:
        """Raise UsageError if the name of an output has an unsuitable extension.

        With a picture, also if the file format cannot hold it.
        """
        if self.weights != STANDARD:
            pictures.check_ending(self.weights, ".npz")
        layout = () if picture is None else (picture.channels, (picture.width, picture.height))
        for path in filter(None, (self.png, self.live)):
            if not output_files.is_special(path):
                pictures.check_extension(path, *layout)


def run(
    terminal: Terminal,
    source: Path,
    outputs: Outputs,
    settings: Settings,
    device_spec: str,
    force: bool,
    frame: int | None = None,
    strip: bool = False,
) -> None:
    """Train a network on a picture; write its weights and what they decode to.

    Raises Interrupted or TrainingError after the best weights so far are written.
    """
    files.check_picture(source)
    replaced = force or checkpoint.left_beside(outputs.weights)
    outputs.check(source, outputs.paths() if replaced else [])
    outputs.check_formats()
    picture = parsing.load_picture(terminal, source, False, frame, strip)
    outputs.check_formats(picture)
    _announce(terminal, source, picture, settings)
    device = keep_open(open_device(device_spec))
    training = _Training(terminal, source, outputs, picture, settings, device, force)
    training.check()
    training.describe()
    training.report(training.train())


def _size_and_time(path: Path) -> tuple[int, int] | None:
    """The bytes of a file and its modification time, or None."""
    status = path.stat() if path.is_file() else None
    return None if status is None else (status.st_size, status.st_mtime_ns)


def _announce(terminal: Terminal, source: Path, picture: Picture, settings: Settings) -> None:
    """Print picture and network before a device is opened, which may take seconds."""
    architecture = settings.architecture(picture.channels)
    size_and_channels = dimensions(picture.width, picture.height, picture.channels)
    network = f"MLP {architecture}, {architecture.parameters:,} parameters"
    name = files.display_name(source)
    terminal.note(f"{name}  {size_and_channels}   {network}   {settings.steps:,} steps")


@dataclass(eq=False)
class _Training:
    """The training of one picture."""

    terminal: Terminal
    source: Path
    outputs: Outputs
    picture: Picture
    settings: Settings
    device: AnyDevice
    force: bool

    def __post_init__(self) -> None:
        choices = f"train {self.settings!r}"
        self.state_file: Checkpoint | None = None
        if not files.is_stream(self.outputs.weights):  # a stream has no folder for a checkpoint
            self.state_file = checkpoint.of_training(
                self.outputs.weights, self.picture, self.device, choices
            )
        self.run = Run(note=self.terminal.note, checkpoint=self.state_file)
        # Digests of what this run has written, by the files' resolved paths. Modification times do
        # not identify a file, since users may move older files there.
        self.written: dict[str, list[str]] = {}
        if self.run.saved is not None:
            self.written = self.run.saved.values.get("written", {})
        self.run.values["written"] = self.written

    def own_outputs(self) -> list[Path]:
        """The outputs that an interrupted run has written and nobody has changed since."""
        if self.state_file is None or self.run.saved is None:
            return []
        final_files = [path for path in self.outputs.final_files() if self._has_written(path)]
        return final_files + live.left_by(self.outputs.live, self.state_file.key)

    def _has_written(self, path: Path) -> bool:
        """Whether a file is as this run has written it."""
        digests = self.written.get(str(output_files.resolved(path)), [])
        with contextlib.suppress(OSError):  # it does not exist or is unreadable
            return path.is_file() and output_files.digest(path) in digests
        return False

    def _save_digest(self, path: Path, digest: str) -> None:
        """Store the digest of a file about to be written, so that a resumed run may replace it.

        Earlier digests are kept, as this process may be killed before the file is replaced.
        """
        digests = self.written.setdefault(str(output_files.resolved(path)), [])
        if digest not in digests:
            digests.append(digest)
        if self.state_file is not None:
            with contextlib.suppress(OutputError):  # a resumed run then refuses to replace the file
                self.state_file.add({"written": self.written})

    def check(self) -> None:
        """Raise OutputError for files that must not be replaced."""
        replaced = self.outputs.paths() if self.force else self.own_outputs()
        hint = FORCE_HINT if self.run.saved is None else RESUME_HINT
        self.outputs.check(self.source, replaced, hint)
        self._status_at_check = {path: _size_and_time(path) for path in self.outputs.final_files()}

    def _check_unchanged(self, path: Path) -> None:
        """Raise OutputError if another program has written the file since `check`."""
        if self.force or _size_and_time(path) == self._status_at_check[path]:
            return
        resume_hint = "the same command with --force replaces it and continues"
        problem = f"{path} was written by another program in the meantime"
        raise OutputError(problem, hint=FORCE_HINT if self.state_file is None else resume_hint)

    def describe(self) -> None:
        """Print the device, the settings and an estimate of the time."""
        terminal, settings, device = self.terminal, self.settings, self.device
        terminal.note(device.info.describe())
        if self.state_file is not None:
            note = checkpoint.note_on_others(self.outputs.weights, self.state_file)
            if note is not None:
                terminal.note(note)
        devices.note_precision(terminal, settings, device)
        terminal.detail(devices.details(device))
        terminal.detail("  ".join(f"{name} {value}" for name, value in asdict(settings).items()))
        steps_done = 0
        if self.run.saved is not None:
            steps_done = int(self.run.saved.arrays["count"])
            terminal.note(f"continuing after {steps_done:,} of {settings.steps:,} steps")
        work = pipeline.work(self.picture, settings, steps_done)
        terminal.note(f"about {duration(work.seconds(device))}")

    def train(self) -> Trained:
        """Train, and write the outputs. Before the first step, Ctrl-C raises KeyboardInterrupt."""
        with StopRequest() as stop, self._view() as view:
            with self.terminal.training(self.settings.steps) as show:

                def show_progress(progress: Progress) -> None:
                    stop.requested()  # from now on there is something to save
                    show(progress)

                self.run.on_progress = view.after(show_progress)
                self.run.should_stop = stop.requested
                trained = pipeline.train(self.picture, self.settings, self.device, self.run)
            self._write(trained)
            outcome = "Done" if trained.stopped is None else trained.stopped.capitalize()
            steps = f"{trained.steps:,} of {self.settings.steps:,} steps"
            view.end(f"{outcome}: {steps}, {trained.psnr:.2f} dB", trained.pixels)
        if self.state_file is not None and trained.stopped != "interrupted":
            self.state_file.remove(self.outputs.weights)
        return trained

    def _write(self, trained: Trained) -> None:
        archive, path = io.BytesIO(), self.outputs.weights
        npz.save(trained.weights, archive)
        data = archive.getbuffer()
        self._weights_bytes = len(data)
        if path == STANDARD:
            files.write_standard(data)
        else:
            self._check_unchanged(path)
            announce = partial(self._save_digest, path)
            output_files.write_atomically(path, lambda out: out.write(data), True, announce)
        if self.outputs.png is not None:
            self._write_reconstruction(trained, self.outputs.png)

    def _write_reconstruction(self, trained: Trained, path: Path) -> None:
        weights = self.outputs.weights
        try:
            self._check_unchanged(path)
            announce = partial(self._save_digest, path)
            pictures.save_named(trained.pixels, path, self.picture.metadata, True, announce)
        except OutputError as error:
            if weights == STANDARD:
                raise
            command = f"imgmlp decode {quoted(weights)} -o picture.png"
            hint = f"the weights are in {weights}; `{command}` writes the picture to another place"
            raise OutputError(str(error), hint=hint) from error

    def _view(self) -> LiveView:
        title = files.display_name(self.source)
        run_key = "" if self.state_file is None else self.state_file.key
        metadata = self.picture.metadata
        return LiveView(self.outputs.live, title, metadata, self.terminal.note, run_key)

    def report(self, trained: Trained) -> None:
        """Print the result. Raises Interrupted or TrainingError if training ended early."""
        output, settings = self.outputs.weights, self.settings
        name = "standard output" if output == STANDARD else str(output)
        progress = f"{trained.steps:,} of {settings.steps:,} steps"
        weights_hint = f"the best weights so far are in {name}"
        if trained.stopped == "interrupted":
            resume = "the same command continues from there"
            if self.state_file is None:
                resume = "start it again"
            raise Interrupted(f"stopped after {progress}", hint=f"{weights_hint}; {resume}")
        if trained.stopped == "diverged":
            problem = f"the loss diverged after {progress}, even at an eighth of the learning rate"
            hint = f"{weights_hint}; try a smaller --lr than {settings.lr:g}"
            raise TrainingError(problem, hint=hint)
        png = "" if self.outputs.png is None else f"{self.outputs.png} "
        figures = f"{size(self._weights_bytes)}   {png}{trained.psnr:.1f} dB"
        self.terminal.done(f"{name} {figures}   {duration(trained.seconds)}")
