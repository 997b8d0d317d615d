"""The commands' options as annotated types, and the layout of their help.

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
from imgmlp.cli.arguments import first_device
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.float_mlp.presets import usual
from imgmlp.interrupt import raise_on_signals, shield_children
from imgmlp.terminal import Terminal
from imgmlp.text import print_data, standard_output

# Arguments and options of several commands

FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help=".imlp or .npz files; - is standard input."),
]
FilesOrFoldersArgument = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE", help=".imlp or .npz files, or folders of them; - is standard input."
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print_data(f"imgmlp {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
VerboseOption = Annotated[
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
NoProgressOption = Annotated[bool, typer.Option("--no-progress", help="Show no progress.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace existing outputs.")]
OutFolderOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Mirror the folder tree of the inputs into this folder. Outputs that are up to date "
        "are skipped.",
    ),
]
RecursiveOption = Annotated[
    bool, typer.Option("--recursive", "-r", help="Also search folders inside folders.")
]
FilesFromOption = Annotated[
    Path | None,
    typer.Option(
        "--files-from",
        metavar="LIST",
        help="Take the files that LIST names, one per line; - is standard input. Their places in "
        "the tree are relative to the given folders, or to the current one.",
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Files at once on each device. Default: by picture size."),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="tcp://…|local",
        help="Run on Dask workers: those of the scheduler at this address, or local ones. "
        "Folders may then be in object stores, such as s3://bucket/folder.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FrameOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Frame or page, if the file has several; 1 is the first."),
]
StripOption = Annotated[
    bool,
    typer.Option("--strip", help="Leave out colour profile, EXIF, XMP and resolution."),
]
LiveOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PICTURE",
        help="Preview, rewritten every few seconds, with a page of curves beside it.",
    ),
]
DevicesOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="auto|gpu|cpu|numpy|P:D|all|gpus|P:D,P:D",
        help="Device to compute on, or several for many files. `imgmlp devices` lists them. "
        "[env var: IMGMLP_DEVICE; default: auto]",
    ),
]


def _one_device(context: typer.Context, option: typer.CallbackParam, value: str) -> str:
    """The device of a command that uses one; the environment variable may name several."""
    source = context.get_parameter_source(option.name or "")
    return first_device(value) if source is not None and source.name == "ENVIRONMENT" else value


DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        envvar="IMGMLP_DEVICE",
        callback=_one_device,
        metavar="auto|gpu|cpu|numpy|P:D",
        help="Device to compute on; `imgmlp devices` lists them.",
    ),
]


# The network that `train` trains and `graph` compiles

PresetOption = Annotated[
    Literal["default", "seed"],
    typer.Option(metavar="default|seed", help="Source of the values that are not given."),
]
StepsOption = Annotated[
    int | None, typer.Option(metavar="N", help=f"Training steps.  {usual('steps')}")
]
BatchOption = Annotated[
    int | None, typer.Option(metavar="N", help=f"Pixels per step.  {usual('batch')}")
]
LearningRateOption = Annotated[
    float | None, typer.Option("--lr", metavar="RATE", help=f"Learning rate.  {usual('lr')}")
]
HiddenOption = Annotated[
    int | None, typer.Option(metavar="N", help=f"Width of each hidden layer.  {usual('hidden')}")
]
LayersOption = Annotated[
    int | None, typer.Option(metavar="N", help=f"Number of hidden layers.  {usual('layers')}")
]
FeaturesOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help=f"Frequency features per pixel, a multiple of 4.  {usual('features')}",
    ),
]
SeedOption = Annotated[
    int | None, typer.Option(metavar="N", help=f"Seed of the random numbers.  {usual('seed')}")
]
PrecisionOption = Annotated[
    Literal["float32", "half"],
    typer.Option(
        metavar="float32|half", help="Of matrix products; half needs a GPU with matrix units."
    ),
]

# Outputs of `train`

WeightsOption = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="NPZ", help="The weights to write; - is standard output."
    ),
]
PngOption = Annotated[
    Path | None,
    typer.Option(
        "--png",
        metavar="PICTURE",
        help="What the weights decode to. Default: reconstruction.png, or none with -o -.",
    ),
]
StripProfileOption = Annotated[
    bool,
    typer.Option("--strip", help="Leave out the colour profile; .npz files keep nothing else."),
]

# Targets and effort of `encode` and `compare`

EffortOption = Annotated[
    int | None,
    typer.Option(
        metavar="1-9",
        help="Training effort. Default: what about 25 s allow, or 5 with --codec mlp.",
    ),
]
CodecOption = Annotated[
    Codec, typer.Option("--codec", metavar="latent|mlp", help="The file's codec.")
]
QualityOption = Annotated[
    float | None,
    typer.Option(
        metavar="0-100",
        help="Target quality; higher is better and larger. 60 if there is no target.",
    ),
]
BppOption = Annotated[float | None, typer.Option(metavar="BITS", help="Target: bits per pixel.")]
BytesOption = Annotated[
    str | None,
    typer.Option(
        "--bytes", metavar="N", help="Target: bytes of the file, such as 20000, 20k or 1.5M."
    ),
]
PsnrOption = Annotated[float | None, typer.Option(metavar="DB", help="Target: PSNR in dB.")]
LambdaOption = Annotated[
    float | None,
    typer.Option(
        "--lambda",
        metavar="LAMBDA",
        help="Target: the encoder minimises MSE + LAMBDA * bits per pixel.",
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option(
        metavar="T",
        help="Approximate time limit, such as 60s, 5m or 2h; not with --effort. Of several "
        "pictures, the limit of each.",
    ),
]


def open_terminal(
    context: typer.Context,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    no_progress: NoProgressOption = False,
) -> Terminal:
    """The terminal, set up as the common options say. From now on, Ctrl-C raises KeyboardInterrupt.

    Commands call it after their imports, as an exception could leave a module half imported.
    """
    raise_on_signals()
    shield_children()
    terminal = context.obj
    assert isinstance(terminal, Terminal)
    terminal.quiet, terminal.verbosity, terminal.progress = quiet, verbose, not no_progress
    return terminal


# The layout of help, in columns. The options' names stand left of their descriptions.
_MAX_HELP_WIDTH = 80
_MIN_HELP_WIDTH = 38
_RIGHT_MARGIN = 2
_MAX_NAMES_WIDTH = 30
_MIN_DESCRIPTION_WIDTH = 23
_COMMAND_SUMMARY_WIDTH = 65  # of a command's description in the list of all commands
_PYTHON_TYPE = re.compile(r" <[\w\[\]]+>$")  # Typer appends it to an option's metavar

if TYPE_CHECKING:
    _TyperBase = TyperCommand
else:
    _TyperBase = object  # subclasses add TyperCommand or TyperGroup


class _ImgmlpCommand(_TyperBase):
    """Help that fits narrow terminals and names no Python types.

    It also attaches the command to usage errors, whose hint names the help of that command.
    """

    def get_help(self, ctx: Any) -> str:
        ctx.terminal_width = max(
            min(get_terminal_size().columns, _MAX_HELP_WIDTH) - _RIGHT_MARGIN, _MIN_HELP_WIDTH
        )
        with standard_output():  # raises OutputError if stdout is closed, which Typer ignores
            return super().get_help(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write, max_width = formatter.write_dl, formatter.width - _RIGHT_MARGIN
        names_width = min(_MAX_NAMES_WIDTH, formatter.width - _MIN_DESCRIPTION_WIDTH)

        def write_without_types(rows: list[tuple[str, str]]) -> None:
            untyped = [(_PYTHON_TYPE.sub("", name), text) for name, text in rows]
            write([(_wrapped_name(name, max_width), text) for name, text in untyped], names_width)

        formatter.write_dl = write_without_types
        super().format_options(ctx, formatter)

    def get_short_help_str(self, limit: int = 0) -> str:
        return super().get_short_help_str(max(limit, _COMMAND_SUMMARY_WIDTH))  # it is wrapped later

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:  # Typer sets `ctx` for some errors only
            error.ctx = getattr(error, "ctx", None) or ctx  # type: ignore[attr-defined]
            raise


class Command(_ImgmlpCommand, TyperCommand):
    """A single command with the help of `_ImgmlpCommand`."""


class CommandGroup(_ImgmlpCommand, TyperGroup):
    """A group of commands with the help of `_ImgmlpCommand`."""


def _wrapped_name(name: str, max_width: int) -> str:
    """An option's name and values, wrapped between two values where it is too wide."""
    lines = [""]
    for part in re.findall(r"[^|]+[|]?", name):
        if len(lines[-1]) + len(part) > max_width:
            lines.append("    ")
        lines[-1] += part
    return "\n  ".join(lines)  # the indentation of all options


OpenTerminal = Callable[[], Terminal]


def with_common_options(run: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all commands have, such as --quiet, to a command's own.

    `run` gets a function as its first argument, which sets up and returns the Terminal. Typer takes
    a command's options from its signature, so the result has a signature with all of them.
    """
    terminal_options = inspect.signature(open_terminal, eval_str=True).parameters
    _, *own_options = inspect.signature(run, eval_str=True).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    version = inspect.Parameter("version", kind, default=False, annotation=VersionOption)
    options = {one.name: one for one in (*own_options, *terminal_options.values(), version)}

    @wraps(run)
    def command(**values: Any) -> None:
        terminal = partial(open_terminal, **{name: values[name] for name in terminal_options})
        run(terminal, **{option.name: values[option.name] for option in own_options})

    parameters = [option.replace(kind=kind) for option in options.values()]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command
