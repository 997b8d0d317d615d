"""Options that most commands have, and what follows from them. Loads neither NumPy nor OpenCL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from imgmlp.errors import UsageError
from imgmlp.terminal import Terminal

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
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no bar and no lines of it.")]
Force = Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")]
Precision = Annotated[
    Literal["float32", "half"],
    typer.Option(help="Of matrix products; half on GPUs with matrix units only."),
]
Frame = Annotated[
    int | None,
    typer.Option(metavar="N", help="Of a file with several frames or pages; 1 is the first."),
]
Strip = Annotated[
    bool,
    typer.Option("--strip", help="Leave out colour profile, EXIF, XMP and resolution."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeviceSpec = Annotated[
    str,
    typer.Option(
        "--device",
        envvar="IMGMLP_DEVICE",
        metavar="auto|gpu|cpu|numpy|P:D",
        help="Where to compute; `imgmlp devices` lists what there is.",
    ),
]


def terminal_of(
    context: typer.Context, quiet: bool, verbose: int, no_progress: bool = False
) -> Terminal:
    terminal = context.obj
    assert isinstance(terminal, Terminal)
    terminal.quiet, terminal.verbosity, terminal.progress = quiet, verbose, not no_progress
    return terminal


def check_picture(path: Path) -> None:
    """Refuse, as a UsageError, what is no file, before other pictures take their time."""
    try:
        folder, there = path.is_dir(), path.exists()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="check the file") from error
    if folder:
        raise UsageError(f"{path} is no file", hint="give a file")
    if not there:
        raise UsageError(f"{path} does not exist", hint="check the name")
