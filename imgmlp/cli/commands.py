"""The commands' names, options and help. Each is done by the file of its name, loaded when it runs.

Importing this module needs neither NumPy nor OpenCL, so that help stays quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from imgmlp.cli.options import (
    AsJson,
    Batch,
    Devices,
    DeviceSpec,
    Effort,
    Features,
    Files,
    Folder,
    Force,
    Frame,
    Held,
    Hidden,
    Jobs,
    Layers,
    Listed,
    Live,
    OnCluster,
    Opening,
    PlainHelp,
    PlainHelps,
    Precision,
    Preset,
    Rate,
    Reconstruction,
    Recursive,
    Seed,
    Steps,
    StoredFiles,
    Strip,
    StripProfile,
    Version,
    Weights,
    with_terminal,
)
from imgmlp.codec.bitstream.container import DEFAULT_CODEC
from imgmlp.errors import UsageError
from imgmlp.text import print_data

app = typer.Typer(
    name="imgmlp",
    cls=PlainHelps,
    help="Compress a picture by training a small neural network on it.",
    epilog="Exit codes: 0 done, 1 training or some files failed, 2 usage error, 3 bad picture, "
    "4 bad file, 5 target missed, 6 no device, 7 out of memory, 8 output exists or cannot be "
    "written, 130 interrupted.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # whose tables cut names where the terminal is narrow
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(cls=PlainHelps, invoke_without_command=True, rich_markup_mode=None)
app.add_typer(bench_app, name="bench")


@app.callback()
def _root(context: typer.Context, version: Version = False) -> None:
    if context.invoked_subcommand is None:
        print_data(context.get_help())
        raise typer.Exit(UsageError.exit_code)


@app.command(cls=PlainHelp, help="Train a network on IMAGE; write its weights and reconstruction.")
@with_terminal
def train(
    terminal: Opening,
    image: Annotated[
        Path, typer.Argument(metavar="IMAGE", help="The picture; - is standard input.")
    ],
    output: Weights = Path("weights.npz"),
    png: Reconstruction = None,
    preset: Preset = "default",
    steps: Steps = None,
    batch: Batch = None,
    lr: Rate = None,
    hidden: Hidden = None,
    layers: Layers = None,
    features: Features = None,
    seed: Seed = None,
    precision: Precision = "float32",
    live: Live = None,
    frame: Frame = None,
    strip: StripProfile = False,
    device: DeviceSpec = "auto",
    force: Force = False,
) -> None:
    from imgmlp.cli import parsing
    from imgmlp.cli.train import Outputs, run

    opened = terminal()
    settings = parsing.training_settings(
        preset,
        steps=steps,
        batch=batch,
        lr=lr,
        hidden=hidden,
        layers=layers,
        features=features,
        seed=seed,
        precision=precision,
    )
    outputs = Outputs.of_options(output, png, live)
    run(opened, image, outputs, settings, device, force, frame, strip)


@app.command(
    cls=PlainHelp,
    help="Compress pictures to compact .imlp files, each to one target.\n\n"
    "The same command resumes a run that was interrupted.",
)
@with_terminal
def encode(
    terminal: Opening,
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="IMAGE", help="Pictures, or folders of them; - is standard input."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="IMLP",
            help="The file to write; - is standard output. Default: beside IMAGE.",
        ),
    ] = None,
    folder: Folder = None,
    recursive: Recursive = False,
    listed: Listed = None,
    quality: Annotated[
        float | None,
        typer.Option(
            metavar="0-100",
            help="Target quality; higher is better and larger. 60 if there is no target.",
        ),
    ] = None,
    bpp: Annotated[
        float | None, typer.Option(metavar="BITS", help="Target: bits per pixel.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            "--bytes", metavar="N", help="Target: bytes of the file, such as 20000, 20k or 1.5M."
        ),
    ] = None,
    psnr: Annotated[float | None, typer.Option(metavar="DB", help="Target: PSNR in dB.")] = None,
    lmbda: Annotated[
        float | None,
        typer.Option(
            "--lambda",
            metavar="LAMBDA",
            help="Target: the encoder minimises MSE + LAMBDA * bits per pixel.",
        ),
    ] = None,
    effort: Effort = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="Approximate time limit, such as 60s, 5m or 2h; not with --effort. Of several "
            "pictures, the limit of each.",
        ),
    ] = None,
    codec: Held = DEFAULT_CODEC,
    live: Live = None,
    frame: Frame = None,
    strip: Strip = False,
    device: Devices = None,
    jobs: Jobs = None,
    cluster: OnCluster = None,
    as_json: AsJson = False,
    force: Force = False,
    skip: Annotated[
        bool, typer.Option("--skip-existing", help="Skip pictures whose output exists.")
    ] = False,
) -> None:
    from imgmlp.batch.wanted import Wanted
    from imgmlp.cli.encode import Outputs, run
    from imgmlp.cli.folders import Request

    wanted = Wanted(quality, bpp, size, psnr, lmbda, effort, time, codec, frame, strip)
    outputs = Outputs(output, folder, force, skip, live)
    request = Request(images or [], listed, recursive, device, jobs, as_json, cluster)
    raise typer.Exit(run(terminal(), request, outputs, wanted))


@app.command(cls=PlainHelp, help="Decode files to pictures.")
@with_terminal
def decode(
    terminal: Opening,
    files: StoredFiles = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PICTURE",
            help="The picture to write; - is standard output. Default: beside FILE.",
        ),
    ] = None,
    folder: Folder = None,
    recursive: Recursive = False,
    listed: Listed = None,
    scale: Annotated[
        float | None,
        typer.Option(metavar="FACTOR", help="Factor of the original size; not for latent files."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="WxH", help="Size in pixels; not for latent files.")
    ] = None,
    device: Devices = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
    force: Force = False,
) -> None:
    from imgmlp.cli.decode import Outputs, run
    from imgmlp.cli.folders import Request

    outputs = Outputs(output, folder, scale, size, force)
    request = Request(files or [], listed, recursive, device, jobs, as_json)
    raise typer.Exit(run(terminal(), request, outputs))


@app.command(cls=PlainHelp, help="Describe files from their headers, without decoding them.")
@with_terminal
def info(
    terminal: Opening,
    files: Files,
    as_json: AsJson = False,
) -> None:
    from imgmlp.cli.info import run

    raise typer.Exit(run(terminal(), files, as_json))


@app.command(cls=PlainHelp, help="Check that files are intact and decode to what was encoded.")
@with_terminal
def verify(
    terminal: Opening,
    files: StoredFiles = None,
    recursive: Recursive = False,
    listed: Listed = None,
    as_json: AsJson = False,
    device: Devices = None,
    jobs: Jobs = None,
) -> None:
    from imgmlp.cli.folders import Request
    from imgmlp.cli.verify import run

    request = Request(files or [], listed, recursive, device, jobs, as_json)
    raise typer.Exit(run(terminal(), request))


@app.command(
    cls=PlainHelp,
    help="Write an HTML report: imgmlp against JPEG, WebP, AVIF, JPEG XL.\n\n"
    "The same command resumes a run that was interrupted.",
)
@with_terminal
def compare(
    terminal: Opening,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", help="Pictures; - is standard input.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="HTML", help="The HTML report to write.")
    ] = Path("report.html"),
    bpp: Annotated[
        list[float] | None,
        typer.Option(
            metavar="BITS", help="Bits per pixel; repeat it for more rates. Default: 0.16 to 0.8."
        ),
    ] = None,
    effort: Effort = None,
    codec: Held = DEFAULT_CODEC,
    frame: Frame = None,
    device: DeviceSpec = "auto",
    as_json: AsJson = False,
    force: Force = False,
) -> None:
    from imgmlp.cli.compare import Wanted, run

    wanted = Wanted(tuple(bpp or ()), effort, codec, frame)
    raise typer.Exit(run(terminal(), images, output, wanted, device, force, as_json))


@app.command(cls=PlainHelp, help="List, test or prepare the devices that --device takes.")
@with_terminal
def devices(
    terminal: Opening,
    check: Annotated[
        bool, typer.Option("--check", help="Test each against NumPy; say how to fix what fails.")
    ] = False,
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Compile in advance, in minutes, what short runs on common RGB pictures need.",
        ),
    ] = False,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="auto|gpu|cpu|numpy|P:D", help="Only this device."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    if prepare:
        from imgmlp.cli import prepare as preparing

        preparing.run(terminal(), as_json, device, check)
        return
    from imgmlp.cli.devices import run

    run(terminal(), as_json, check, device)


@app.command(cls=PlainHelp, help="Print the compiled training step, from its graph to its times.")
@with_terminal
def graph(
    terminal: Opening,
    form: Annotated[
        Literal[
            "summary", "dot", "nodes", "tree", "procedure", "memory", "uops", "source", "times"
        ],
        typer.Option(
            metavar="summary|dot|nodes|tree|procedure|memory|uops|source|times",
            help="What to print; dot is for Graphviz, times runs the step.",
        ),
    ] = "summary",
    preset: Preset = "default",
    batch: Batch = None,
    hidden: Hidden = None,
    layers: Layers = None,
    features: Features = None,
    precision: Precision = "float32",
    size: Annotated[str, typer.Option(metavar="WxH", help="Size of the picture.")] = "512x512",
    general: Annotated[
        bool,
        typer.Option(
            "--general",
            help="Leave out the block program; show the general scheduler's result.",
        ),
    ] = False,
    as_json: AsJson = False,
    device: DeviceSpec = "auto",
) -> None:
    from imgmlp.cli import parsing
    from imgmlp.cli.graph import run

    opened = terminal()
    settings = parsing.training_settings(
        preset, batch=batch, hidden=hidden, layers=layers, features=features, precision=precision
    )
    run(opened, settings, size, device, form, as_json, general)


@bench_app.callback(
    help="Measure how fast this machine trains and decodes.\n\n"
    "NumPy and, if it is installed, PyTorch are measured too.",
)
@with_terminal
def bench(
    terminal: Opening,
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="A rough measurement, in seconds.")
    ] = False,
    as_json: AsJson = False,
    device: DeviceSpec = "auto",
) -> None:
    if command := context.invoked_subcommand:
        sources = map(context.get_parameter_source, context.params)
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            hint = f"put options after it; `imgmlp bench {command} --help` lists them"
            raise UsageError(f"options were given before {command!r}", hint=hint)
        return
    from imgmlp.bench import report

    report.bench(terminal(), device, quick, as_json)


@bench_app.command(
    "kernels",
    cls=PlainHelp,
    help="Measure single kernels over several sizes.\n\n"
    "Map, sum, softmax, transpose, matrix product.",
)
@with_terminal
def bench_kernels(
    terminal: Opening,
    quick: Annotated[bool, typer.Option("--quick", help="Two sizes, few repetitions.")] = False,
    side: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Measure N × N matrices instead; repeat it for a sweep."),
    ] = None,
    as_json: AsJson = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write the results as CSV.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="PNG|SVG", help="Also plot the results; needs the extra `plot`."),
    ] = None,
    device: DeviceSpec = "auto",
    force: Force = False,
) -> None:
    from imgmlp.bench import kernels_report

    kernels_report.bench_kernels(terminal(), device, quick, side or [], as_json, csv, plot, force)
