"""Options that several commands share, and the form of their help.

It imports neither NumPy nor OpenCL, so that help stays quick.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from imgmlp import __version__
from imgmlp.cli.words import first_of
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.float_mlp.presets import usual
from imgmlp.interrupt import raise_on_signals, shield_children
from imgmlp.terminal import Terminal
from imgmlp.text import print_data, standard_output


def _print_version(wanted: bool) -> None:
    if wanted:
        print_data(f"imgmlp {__version__}")
        raise typer.Exit


Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help=".imlp or .npz files; - is standard input."),
]
StoredFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE", help=".imlp or .npz files, or folders of them; - is standard input."
    ),
]
Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Verbose = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        metavar="",
        show_default=False,
        help="Print more; twice, also tracebacks.",
    ),
]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing outputs.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Mirror the folder tree of the inputs into this folder. Outputs that are up to date "
        "are skipped.",
    ),
]
Recursive = Annotated[
    bool, typer.Option("--recursive", "-r", help="Also search folders inside folders.")
]
Listed = Annotated[
    Path | None,
    typer.Option(
        "--files-from",
        metavar="LIST",
        help="Take the files that LIST names, one per line; - is standard input. Their places in "
        "the tree are relative to the given folders, or to the current one.",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(metavar="N", help="Files at once on each device. Default: by picture size."),
]
OnCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="tcp://…|local",
        help="Run on Dask workers: those of the scheduler at this address, or local ones. "
        "Folders may then be in object stores, such as s3://bucket/folder.",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="auto|gpu|cpu|numpy|P:D|all|gpus|P:D,P:D",
        help="Device to compute on, or several for many files. `imgmlp devices` lists them. "
        "[env var: IMGMLP_DEVICE; default: auto]",
    ),
]
Weights = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="NPZ", help="The weights to write; - is standard output."
    ),
]
Reconstruction = Annotated[
    Path | None,
    typer.Option(
        "--png",
        metavar="PICTURE",
        help="What the weights decode to. Default: reconstruction.png, or none with -o -.",
    ),
]
Preset = Annotated[
    Literal["default", "seed"],
    typer.Option(metavar="default|seed", help="Source of the values that are not given."),
]
Steps = Annotated[int | None, typer.Option(metavar="N", help=f"Training steps.  {usual('steps')}")]
Batch = Annotated[int | None, typer.Option(metavar="N", help=f"Pixels per step.  {usual('batch')}")]
Rate = Annotated[
    float | None, typer.Option("--lr", metavar="RATE", help=f"Learning rate.  {usual('lr')}")
]
Hidden = Annotated[
    int | None, typer.Option(metavar="N", help=f"Width of each hidden layer.  {usual('hidden')}")
]
Layers = Annotated[
    int | None, typer.Option(metavar="N", help=f"Number of hidden layers.  {usual('layers')}")
]
Features = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help=f"Frequency features per pixel, a multiple of 4.  {usual('features')}",
    ),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help=f"Seed of the random numbers.  {usual('seed')}")
]
Effort = Annotated[
    int | None,
    typer.Option(
        metavar="1-9",
        help="Training effort. Default: what about 25 s allow, or 5 with --codec mlp.",
    ),
]
Held = Annotated[Codec, typer.Option("--codec", metavar="latent|mlp", help="The file's codec.")]
Precision = Annotated[
    Literal["float32", "half"],
    typer.Option(
        metavar="float32|half", help="Of matrix products; half needs a GPU with matrix units."
    ),
]
Frame = Annotated[
    int | None,
    typer.Option(metavar="N", help="Frame or page, if the file has several; 1 is the first."),
]
Strip = Annotated[
    bool,
    typer.Option("--strip", help="Leave out colour profile, EXIF, XMP and resolution."),
]
StripProfile = Annotated[
    bool,
    typer.Option("--strip", help="Leave out the colour profile; .npz files keep nothing else."),
]
Live = Annotated[
    Path | None,
    typer.Option(
        metavar="PICTURE",
        help="Preview, rewritten every few seconds, with a page of curves beside it.",
    ),
]
_PYTHON_TYPE = re.compile(r" <[\w\[\]]+>$")  # Typer appends it to an option's metavar
# The layout of help, in columns.
_MAX_HELP_WIDTH = 80
_MIN_HELP_WIDTH = 38
_RIGHT_MARGIN = 2
_MAX_NAMES_WIDTH = 30  # of the options' names
_MIN_TEXT_WIDTH = 23  # of the options' descriptions, which stand beside the names
_SHORT_HELP_WIDTH = 65  # of a command's description in the list of all commands

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _one_device(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """The device of a command that uses one; the environment variable may name several."""
    source = context.get_parameter_source(option.name or "")
    return first_of(value) if source is not None and source.name == "ENVIRONMENT" else value


DeviceSpec = Annotated[
    str,
    typer.Option(
        "--device",
        envvar="IMGMLP_DEVICE",
        callback=_one_device,
        metavar="auto|gpu|cpu|numpy|P:D",
        help="Device to compute on; `imgmlp devices` lists them.",
    ),
]


def terminal_of(
    context: typer.Context,
    quiet: Quiet = False,
    verbose: Verbose = 0,
    no_progress: NoProgress = False,
) -> Terminal:
    """The terminal of a command. From here on, Ctrl-C raises KeyboardInterrupt for its clean-up.

    It is called once all modules are imported, as an exception could leave one half imported.
    """
    raise_on_signals()
    shield_children()
    terminal = context.obj
    assert isinstance(terminal, Terminal)
    terminal.quiet, terminal.verbosity, terminal.progress = quiet, verbose, not no_progress
    return terminal


if TYPE_CHECKING:
    _Command = TyperCommand
else:
    _Command = object  # subclasses add TyperCommand or TyperGroup


class _Plain(_Command):
    """A command whose help fits narrow terminals and names no Python types, and whose usage errors
    know the command that they belong to."""

    def get_help(self, ctx: Any) -> str:
        ctx.terminal_width = max(
            min(get_terminal_size().columns, _MAX_HELP_WIDTH) - _RIGHT_MARGIN, _MIN_HELP_WIDTH
        )
        with standard_output():  # raises OutputError if stdout is closed, which Typer ignores
            return super().get_help(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write, max_width = formatter.write_dl, formatter.width - _RIGHT_MARGIN
        names_width = min(_MAX_NAMES_WIDTH, formatter.width - _MIN_TEXT_WIDTH)

        def write_without_types(rows: list[tuple[str, str]]) -> None:
            named = [(_PYTHON_TYPE.sub("", name), text) for name, text in rows]
            write([(_wrapped_name(name, max_width), text) for name, text in named], names_width)

        formatter.write_dl = write_without_types
        super().format_options(ctx, formatter)

    def get_short_help_str(self, limit: int = 0) -> str:
        return super().get_short_help_str(max(limit, _SHORT_HELP_WIDTH))  # it is wrapped later

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:  # not all of them know their command
            error.ctx = getattr(error, "ctx", None) or ctx  # type: ignore[attr-defined]
            raise


class PlainHelp(_Plain, TyperCommand):
    """A single command with such help."""


class PlainHelps(_Plain, TyperGroup):
    """A group of commands with such help."""


def _wrapped_name(name: str, max_width: int) -> str:
    """An option's name and values, wrapped between two values where it is too wide."""
    lines = [""]
    for part in re.findall(r"[^|]+[|]?", name):
        if len(lines[-1]) + len(part) > max_width:
            lines.append("    ")
        lines[-1] += part
    return "\n  ".join(lines)  # the indentation of all options


Opening = Callable[[], Terminal]


def with_terminal(run: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all commands have, such as --quiet, to a command's own.

    `run` gets a function as its first argument, which sets up and returns the Terminal. Typer takes
    a command's options from its signature, so the result has a signature with all of them.
    """
    shown = inspect.signature(terminal_of, eval_str=True).parameters
    _, *own = inspect.signature(run, eval_str=True).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    version = inspect.Parameter("version", kind, default=False, annotation=Version)
    together = {one.name: one for one in (*own, *shown.values(), version)}

    @wraps(run)
    def command(**given: Any) -> None:
        opening = partial(terminal_of, **{name: given[name] for name in shown})
        run(opening, **{one.name: given[one.name] for one in own})

    keywords = [one.replace(kind=one.KEYWORD_ONLY) for one in together.values()]
    command.__annotations__ = {one.name: one.annotation for one in keywords}
    command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return command
