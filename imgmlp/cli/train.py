"""`imgmlp train`: a network for a picture, and the files of it.

A run that was stopped goes on, over what it has written itself, where its weights are in a file.
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

REPLACING = "--force replaces it; -o, --png and --live choose other names"
GOING_ON = "move it away, and the same command continues; --force replaces it"


@dataclass(frozen=True)
class Outputs:
    """The files that a training writes."""

    weights: Path
    png: Path | None
    live: Path | None = None

    @staticmethod
    def chosen(weights: Path, png: Path | None, live: Path | None) -> Outputs:
        """Those that were asked for, and the usual picture; but none beside standard output."""
        usual = None if weights == STANDARD else Path("reconstruction.png")
        return Outputs(weights, png or usual, live)

    def lasting(self) -> list[Path]:
        """The files that are written in the end."""
        return [path for path in (self.weights, self.png) if path not in (None, STANDARD)]

    def shown(self) -> list[Path]:
        """Those that are rewritten while the training goes on."""
        return live.files_of(self.live)

    def paths(self) -> list[Path]:
        return [*self.lasting(), *self.shown()]

    def check(self, source: Path, replaced: list[Path], hint: str = REPLACING) -> None:
        """Refuse, as an OutputError, files that cannot be written or must not be replaced."""
        if self.weights == STANDARD:
            files.check_terminal("weights", "imgmlp train photo.png -o - > weights.npz")
        own = [path for path in self.paths() if not output_files.is_special(path)]
        output_files.check_distinct(own, [source], "give each file a different name")
        for path in self.paths():
            output_files.check_output(path, path in replaced, hint)

    def check_formats(self, picture: Picture | None = None) -> None:
        """Refuse, as a UsageError, names of pictures that cannot hold this one, or none at all."""
        if self.weights != STANDARD:
            pictures.check_ending(self.weights, ".npz")
        what = () if picture is None else (picture.channels, (picture.width, picture.height))
        for path in filter(None, (self.png, self.live)):
            if not output_files.is_special(path):
                pictures.check_extension(path, *what)


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
    """Fit a network to a picture; write its weights and what they decode to.

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
    training.introduce()
    training.report(training.train())


def _look(path: Path) -> tuple[int, int] | None:
    """Bytes and time of change of a file, if there is one."""
    status = path.stat() if path.is_file() else None
    return None if status is None else (status.st_size, status.st_mtime_ns)


def _announce(terminal: Terminal, source: Path, picture: Picture, settings: Settings) -> None:
    """Say what was understood. At once: looking for a device may take seconds."""
    network = settings.architecture(picture.channels)
    what = dimensions(picture.width, picture.height, picture.channels)
    parameters = f"MLP {network}, {network.parameters:,} parameters"
    name = files.named(source)
    terminal.note(f"{name}  {what}   {parameters}   {settings.steps:,} steps")


@dataclass(eq=False)
class _Training:
    """A picture on its way to its files."""

    terminal: Terminal
    source: Path
    outputs: Outputs
    picture: Picture
    settings: Settings
    device: AnyDevice
    force: bool

    def __post_init__(self) -> None:
        choices = f"train {self.settings!r}"
        self.kept: Checkpoint | None = None
        if not files.is_stream(self.outputs.weights):  # beside which there is no place for a state
            self.kept = checkpoint.of(self.outputs.weights, self.picture, self.device, choices)
        self.run = Run(note=self.terminal.note, checkpoint=self.kept)
        # Digests of what this run has written, by the files' places. Dates would tell nothing: what
        # somebody moves there may be of any.
        self.written: dict[str, list[str]] = {}
        if self.run.saved is not None:
            self.written = self.run.saved.values.get("written", {})
        self.run.values["written"] = self.written

    def written_before(self) -> list[Path]:
        """The outputs that are still as an interrupted run has left them."""
        if self.kept is None or self.run.saved is None:
            return []
        kept = [path for path in self.outputs.lasting() if self._is_own(path)]
        return kept + live.left_by(self.outputs.live, self.kept.key)

    def _is_own(self, path: Path) -> bool:
        digests = self.written.get(str(output_files.resolved(path)), [])
        with contextlib.suppress(OSError):  # it is not there, or nobody may read it
            return path.is_file() and output_files.digest(path) in digests
        return False

    def _announce(self, path: Path, digest: str) -> None:
        """Keep what is about to be written, so that the same command knows it as its own.

        Beside what was there before, which stays if this process is killed right now.
        """
        digests = self.written.setdefault(str(output_files.resolved(path)), [])
        if digest not in digests:
            digests.append(digest)
        if self.kept is not None:
            with contextlib.suppress(OutputError):  # then the same command refuses to replace it
                self.kept.add({"written": self.written})

    def check(self) -> None:
        """Refuse files that must not be replaced. Raises OutputError."""
        replaced = self.outputs.paths() if self.force else self.written_before()
        hint = REPLACING if self.run.saved is None else GOING_ON
        self.outputs.check(self.source, replaced, hint)
        self._before = {path: _look(path) for path in self.outputs.lasting()}

    def _check_again(self, path: Path) -> None:
        """Refuse, as an OutputError, to replace what somebody has written since `check`."""
        if self.force or _look(path) == self._before[path]:
            return
        goes_on = "the same command with --force replaces it and continues"
        problem = f"{path} was written by another program in the meantime"
        raise OutputError(problem, hint=REPLACING if self.kept is None else goes_on)

    def introduce(self) -> None:
        """Say what is going to be done, and where."""
        terminal, settings, device = self.terminal, self.settings, self.device
        terminal.note(device.info.describe())
        if self.kept is not None:
            others = checkpoint.others(self.outputs.weights, self.kept)
            if others is not None:
                terminal.note(others)
        devices.tell_precision(terminal, settings, device)
        terminal.detail(devices.details(device))
        terminal.detail("  ".join(f"{name} {value}" for name, value in asdict(settings).items()))
        done = 0
        if self.run.saved is not None:
            done = int(self.run.saved.arrays["count"])
            terminal.note(f"continuing after {done:,} of {settings.steps:,} steps")
        work = pipeline.work(self.picture, settings, done)
        terminal.note(f"about {duration(work.seconds(device))}")

    def train(self) -> Trained:
        """Train, and write the outputs. Raises KeyboardInterrupt before there is a first step."""
        with StopRequest() as stop, self._view() as view:
            with self.terminal.training(self.settings.steps) as show:

                def tell(progress: Progress) -> None:
                    stop.requested()  # a signal after what is told finds something to be saved
                    show(progress)

                self.run.tell, self.run.should_stop = view.after(tell), stop.requested
                trained = pipeline.train(self.picture, self.settings, self.device, self.run)
            self._write(trained)
            how = "Done" if trained.stopped is None else trained.stopped.capitalize()
            done = f"{trained.steps:,} of {self.settings.steps:,} steps"
            view.end(f"{how}: {done}, {trained.psnr:.2f} dB", trained.pixels)
        if self.kept is not None and trained.stopped != "interrupted":
            self.kept.remove(self.outputs.weights)
        return trained

    def _write(self, trained: Trained) -> None:
        archive, target = io.BytesIO(), self.outputs.weights
        npz.save(trained.weights, archive)
        data = archive.getbuffer()
        self._bytes = len(data)
        if target == STANDARD:
            files.write_standard(data)
        else:
            self._check_again(target)
            announce = partial(self._announce, target)
            output_files.write_atomically(target, lambda out: out.write(data), True, announce)
        if (png := self.outputs.png) is None:
            return
        try:
            self._check_again(png)
            announce = partial(self._announce, png)
            pictures.save_named(trained.pixels, png, self.picture.metadata, True, announce)
        except OutputError as error:
            if target == STANDARD:
                raise
            command = f"imgmlp decode {quoted(target)} -o picture.png"
            hint = f"the weights are in {target}; `{command}` writes the picture to another place"
            raise OutputError(str(error), hint=hint) from error

    def _view(self) -> LiveView:
        title = files.named(self.source)
        run = "" if self.kept is None else self.kept.key
        return LiveView(self.outputs.live, title, self.picture.metadata, self.terminal.note, run)

    def report(self, trained: Trained) -> None:
        """Say how it went. Raises Interrupted or TrainingError if it ended early."""
        output, settings = self.outputs.weights, self.settings
        name = "standard output" if output == STANDARD else str(output)
        at = f"{trained.steps:,} of {settings.steps:,} steps"
        kept = f"the best weights so far are in {name}"
        if trained.stopped == "interrupted":
            more = (
                "start it again" if self.kept is None else "the same command continues from there"
            )
            raise Interrupted(f"stopped after {at}", hint=f"{kept}; {more}")
        if trained.stopped == "diverged":
            problem = f"the loss diverged after {at}, even at an eighth of the learning rate"
            raise TrainingError(problem, hint=f"{kept}; try a smaller --lr than {settings.lr:g}")
        png = "" if self.outputs.png is None else f"{self.outputs.png} "
        figures = f"{size(self._bytes)}   {png}{trained.psnr:.1f} dB"
        self.terminal.done(f"{name} {figures}   {duration(trained.seconds)}")
