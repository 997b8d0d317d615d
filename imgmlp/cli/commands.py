"""The commands' names, options and help.

The module of a command's name does its work and is imported when the command runs, so that help
needs neither NumPy nor OpenCL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from imgmlp.cli.options import (
    BatchOption,
    BppOption,
    BytesOption,
    ClusterOption,
    CodecOption,
    Command,
    CommandGroup,
    DeviceOption,
    DevicesOption,
    EffortOption,
    FeaturesOption,
    FilesArgument,
    FilesFromOption,
    FilesOrFoldersArgument,
    ForceOption,
    FrameOption,
    HiddenOption,
    JobsOption,
    JsonOption,
    LambdaOption,
    LayersOption,
    LearningRateOption,
    LiveOption,
    OpenTerminal,
    OutFolderOption,
    PngOption,
    PrecisionOption,
    PresetOption,
    PsnrOption,
    QualityOption,
    RecursiveOption,
    SeedOption,
    StepsOption,
    StripOption,
    StripProfileOption,
    TimeOption,
    VersionOption,
    WeightsOption,
    with_common_options,
)
from imgmlp.codec.bitstream.container import DEFAULT_CODEC
from imgmlp.errors import UsageError
from imgmlp.text import print_data

app = typer.Typer(
    name="imgmlp",
    cls=CommandGroup,
    help="Compress a picture by training a small neural network on it.",
    epilog="Exit codes: 0 done, 1 training or some files failed, 2 usage error, 3 bad picture, "
    "4 bad file, 5 target missed, 6 no device, 7 out of memory, 8 output exists or cannot be "
    "written, 130 interrupted.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut names on narrow terminals
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench_app = typer.Typer(cls=CommandGroup, invoke_without_command=True, rich_markup_mode=None)
app.add_typer(bench_app, name="bench")


@app.callback()
def _root(context: typer.Context, version: VersionOption = False) -> None:
    if context.invoked_subcommand is None:
        print_data(context.get_help())
        raise typer.Exit(UsageError.exit_code)


@app.command(cls=Command, help="Train a network on IMAGE; write its weights and reconstruction.")
@with_common_options
def train(
    open_terminal: OpenTerminal,
    image: Annotated[
        Path, typer.Argument(metavar="IMAGE", help="The picture; - is standard input.")
    ],
    output: WeightsOption = Path("weights.npz"),
    png: PngOption = None,
    preset: PresetOption = "default",
    steps: StepsOption = None,
    batch: BatchOption = None,
    lr: LearningRateOption = None,
    hidden: HiddenOption = None,
    layers: LayersOption = None,
    features: FeaturesOption = None,
    seed: SeedOption = None,
    precision: PrecisionOption = "float32",
    live: LiveOption = None,
    frame: FrameOption = None,
    strip: StripProfileOption = False,
    device: DeviceOption = "auto",
    force: ForceOption = False,
) -> None:
    from imgmlp.cli import parsing
    from imgmlp.cli.train import Outputs, run

    terminal = open_terminal()
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
    run(terminal, image, outputs, settings, device, force, frame, strip)


@app.command(
    cls=Command,
    help="Compress pictures to compact .imlp files, each to one target.\n\n"
    "The same command resumes a run that was interrupted.",
)
@with_common_options
def encode(
    open_terminal: OpenTerminal,
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
    folder: OutFolderOption = None,
    recursive: RecursiveOption = False,
    files_from: FilesFromOption = None,
    quality: QualityOption = None,
    bpp: BppOption = None,
    size: BytesOption = None,
    psnr: PsnrOption = None,
    lmbda: LambdaOption = None,
    effort: EffortOption = None,
    time: TimeOption = None,
    codec: CodecOption = DEFAULT_CODEC,
    live: LiveOption = None,
    frame: FrameOption = None,
    strip: StripOption = False,
    device: DevicesOption = None,
    jobs: JobsOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
    force: ForceOption = False,
    skip: Annotated[
        bool, typer.Option("--skip-existing", help="Skip pictures whose output exists.")
    ] = False,
) -> None:
    from imgmlp.batch.encode_options import EncodeOptions
    from imgmlp.cli.encode import Outputs, run
    from imgmlp.cli.folders import Request

    options = EncodeOptions(
        quality, bpp, size, psnr, lmbda, effort, time, codec, frame=frame, strip=strip
    )
    outputs = Outputs(output, folder, force, skip, live)
    request = Request(images or [], files_from, recursive, device, jobs, as_json, cluster)
    raise typer.Exit(run(open_terminal(), request, outputs, options))


@app.command(cls=Command, help="Decode files to pictures.")
@with_common_options
def decode(
    open_terminal: OpenTerminal,
    files: FilesOrFoldersArgument = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PICTURE",
            help="The picture to write; - is standard output. Default: beside FILE.",
        ),
    ] = None,
    folder: OutFolderOption = None,
    recursive: RecursiveOption = False,
    files_from: FilesFromOption = None,
    scale: Annotated[
        float | None,
        typer.Option(metavar="FACTOR", help="Factor of the original size; not for latent files."),
    ] = None,
    size: Annotated[
        str | None, typer.Option(metavar="WxH", help="Size in pixels; not for latent files.")
    ] = None,
    device: DevicesOption = None,
    jobs: JobsOption = None,
    as_json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    from imgmlp.cli.decode import Outputs, run
    from imgmlp.cli.folders import Request

    outputs = Outputs(output, folder, scale, size, force)
    request = Request(files or [], files_from, recursive, device, jobs, as_json)
    raise typer.Exit(run(open_terminal(), request, outputs))


@app.command(cls=Command, help="Describe files from their headers, without decoding them.")
@with_common_options
def info(
    open_terminal: OpenTerminal,
    files: FilesArgument,
    as_json: JsonOption = False,
) -> None:
    from imgmlp.cli.info import run

    raise typer.Exit(run(open_terminal(), files, as_json))


@app.command(cls=Command, help="Check that files are intact and decode to what was encoded.")
@with_common_options
def verify(
    open_terminal: OpenTerminal,
    files: FilesOrFoldersArgument = None,
    recursive: RecursiveOption = False,
    files_from: FilesFromOption = None,
    as_json: JsonOption = False,
    device: DevicesOption = None,
    jobs: JobsOption = None,
) -> None:
    from imgmlp.cli.folders import Request
    from imgmlp.cli.verify import run

    request = Request(files or [], files_from, recursive, device, jobs, as_json)
    raise typer.Exit(run(open_terminal(), request))


@app.command(
    cls=Command,
    help="Write an HTML report: imgmlp against JPEG, WebP, AVIF, JPEG XL.\n\n"
    "The same command resumes a run that was interrupted.",
)
@with_common_options
def compare(
    open_terminal: OpenTerminal,
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
    effort: EffortOption = None,
    codec: CodecOption = DEFAULT_CODEC,
    frame: FrameOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
    force: ForceOption = False,
) -> None:
    from imgmlp.cli.compare import CompareOptions, run

    options = CompareOptions(tuple(bpp or ()), effort, codec, frame)
    raise typer.Exit(run(open_terminal(), images, output, options, device, force, as_json))


@app.command(cls=Command, help="List, test or prepare the devices that --device takes.")
@with_common_options
def devices(
    open_terminal: OpenTerminal,
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
    as_json: JsonOption = False,
) -> None:
    if prepare:
        from imgmlp.cli import prepare as preparing

        preparing.run(open_terminal(), as_json, device, check)
        return
    from imgmlp.cli.devices import run

    run(open_terminal(), as_json, check, device)


@app.command(cls=Command, help="Print the compiled training step, from its graph to its times.")
@with_common_options
def graph(
    open_terminal: OpenTerminal,
    form: Annotated[
        Literal[
            "summary", "dot", "nodes", "tree", "procedure", "memory", "uops", "source", "times"
        ],
        typer.Option(
            metavar="summary|dot|nodes|tree|procedure|memory|uops|source|times",
            help="What to print; dot is for Graphviz, times runs the step.",
        ),
    ] = "summary",
    preset: PresetOption = "default",
    batch: BatchOption = None,
    hidden: HiddenOption = None,
    layers: LayersOption = None,
    features: FeaturesOption = None,
    precision: PrecisionOption = "float32",
    size: Annotated[str, typer.Option(metavar="WxH", help="Size of the picture.")] = "512x512",
    general: Annotated[
        bool,
        typer.Option(
            "--general",
            help="Leave out the block program; show the general scheduler's result.",
        ),
    ] = False,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    from imgmlp.cli import parsing
    from imgmlp.cli.graph import run

    terminal = open_terminal()
    settings = parsing.training_settings(
        preset, batch=batch, hidden=hidden, layers=layers, features=features, precision=precision
    )
    run(terminal, settings, size, device, form, as_json, general)


@bench_app.callback(
    help="Measure how fast this machine trains and decodes.\n\n"
    "NumPy and, if it is installed, PyTorch are measured too.",
)
@with_common_options
def bench(
    open_terminal: OpenTerminal,
    context: typer.Context,
    quick: Annotated[
        bool, typer.Option("--quick", help="A rough measurement, in seconds.")
    ] = False,
    as_json: JsonOption = False,
    device: DeviceOption = "auto",
) -> None:
    if subcommand := context.invoked_subcommand:
        sources = map(context.get_parameter_source, context.params)
        if any(source is not None and source.name == "COMMANDLINE" for source in sources):
            hint = f"put options after it; `imgmlp bench {subcommand} --help` lists them"
            raise UsageError(f"options were given before {subcommand!r}", hint=hint)
        return
    from imgmlp.bench import report

    report.bench(open_terminal(), device, quick, as_json)


@bench_app.command(
    "kernels",
    cls=Command,
    help="Measure single kernels over several sizes.\n\n"
    "Map, sum, softmax, transpose, matrix product.",
)
@with_common_options
def bench_kernels(
    open_terminal: OpenTerminal,
    quick: Annotated[bool, typer.Option("--quick", help="Two sizes, few repetitions.")] = False,
    side: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Measure N × N matrices instead; repeat it for a sweep."),
    ] = None,
    as_json: JsonOption = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write the results as CSV.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="PNG|SVG", help="Also plot the results; needs the extra `plot`."),
    ] = None,
    device: DeviceOption = "auto",
    force: ForceOption = False,
) -> None:
    from imgmlp.bench import kernels_report

    kernels_report.bench_kernels(
        open_terminal(), device, quick, side or [], as_json, csv, plot, force
    )
