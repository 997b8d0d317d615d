"""What tests of several modules share: devices, small pictures, and the command as a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

# Before NumPy is loaded: threads of several workers' products wait for each other more than they
# compute.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from imgmlp import child
from imgmlp.codec import encoder
from imgmlp.codec.latent.step import architecture
from imgmlp.codec.latent.training import effort
from imgmlp.codec.training import passes, search, target
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.trainer import Trainer
from imgmlp.engine import AnyDevice, Device, Tensor, compile, open_device
from imgmlp.engine.compiler import Stages
from imgmlp.engine.device.pocl import PLATFORM, SKIP_HEADER_OPTION
from imgmlp.engine.runtime import program_cache

# A run of the trainer that takes a moment: 20 steps of 96 parameters.
QUICK = ("--steps", "20", "--batch", "64", "--hidden", "8", "--layers", "1", "--features", "8")

# NumPy's interpreter, and OpenCL with both mappings: one work-item a group, and a group of lanes.
MAPPINGS = ("numpy", "one", "group")
# NumPy on what kernels are compiled from: nothing to compile, and faults are reported.
EMULATED = ("numpy:procedure", "numpy:uops", "numpy:uops-group")
FORMS = (*MAPPINGS, *EMULATED)

# Of the environment of commands: what changes how text is shown, or where it is computed.
LEFT_OUT = ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM", "IMGMLP_DEVICE", "DEBUG")

OPENCL = {"device": "cpu"}  # where tests of OpenCL run; --device names another place

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Lowered = Callable[[Callable[[], dict[str, Tensor]]], Stages]


def small_pixels(channels: int = 3) -> np.ndarray:
    """A picture of 31 × 24 pixels with smooth parts and edges, uint8 [24, 31, channels]."""
    y, x = np.mgrid[:24, :31]
    planes = [x * 8, y * 10, ((x // 4 + y // 3) % 2) * 200][:channels]
    return np.stack(planes, axis=-1).astype(np.uint8)


def save(image: Image.Image, path: Path, **options: object) -> Path:
    """The path, where the image is now."""
    image.save(path, **options)
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "where tests of OpenCL run, as `imgmlp devices` lists it (default: cpu)"
    parser.addoption("--device", default=OPENCL["device"], metavar="SPEC", help=told)


def pytest_configure(config: pytest.Config) -> None:
    # Of hypothesis: a busy machine takes the time that it takes.
    settings.register_profile("imgmlp", settings.default, deadline=None)
    settings.load_profile("imgmlp")
    OPENCL["device"] = config.getoption("--device")
    os.environ.setdefault(child.COMPILERS_VARIABLE, "0")  # as tests take all cores
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):  # who share kernels compile in turn
        usual = config.rootpath / ".pytest_cache" / "pocl"
        os.environ["POCL_CACHE_DIR"] = str(Path(os.environ.get("POCL_CACHE_DIR", usual)) / worker)


def open_opencl() -> Device:
    """The OpenCL device that the tests are to run on."""
    found = open_device(OPENCL["device"])
    assert isinstance(found, Device), "--device names an OpenCL device"
    return found


def open_pocl() -> Device:
    """The same for tests of what only PoCL needs or can do; they are skipped on other drivers."""
    found = open_opencl()
    if found.info.platform != PLATFORM:
        pytest.skip("this is of PoCL's only")
    return found


D = TypeVar("D", bound=AnyDevice)


def with_units(device: D, count: int) -> D:
    """The device as if it had so many compute units, whatever this machine has: how many rows tiles
    have, and what is kept for each unit, follows their number."""
    device.info = replace(device.info, compute_units=count)
    return device


def roundings(device: AnyDevice) -> float:
    """Units in the last place that quotients and square roots may be away from correctly rounded
    ones: as many as OpenCL allows on GPUs, which take them faster."""
    return 3.0 if isinstance(device, Device) and device.info.kind == "gpu" else 0.0


def open_mapping(name: str) -> AnyDevice:
    """A device that runs kernels as one of FORMS says; a GPU has the mapping for lanes only, what
    asks for the other one is skipped there."""
    if name.startswith("numpy"):
        return open_device(name)
    found = open_opencl()
    if name == "group":
        found.lanes = "group"
    elif found.lanes != name:
        pytest.skip("this is of processors only")
    return found


@pytest.fixture(scope="session", autouse=True)
def _lowered_anew() -> Iterator[None]:
    """What the compiler makes of a step is tested, not what it once made."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(program_cache, "cache_folder", lambda: None)
        yield


BUILT_TWICE = "// built twice"  # in sources that may need more than kernels/declarations.cl has


@pytest.fixture(scope="session", autouse=True)
def _declared() -> Iterator[None]:
    """What is generated needs nothing else, so that PoCL's own header is never read for it."""
    built = Device._built

    def once(device: Device, source: str, options: Sequence[str]) -> Any:
        try:
            return built(device, source, options)
        except Exception as error:
            if SKIP_HEADER_OPTION in options and BUILT_TWICE not in source:
                pytest.fail(f"kernels/declarations.cl lacks something: {error}")
            raise

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Device, "_built", once)
        yield


@pytest.fixture
def pocl() -> Device:
    """A newly opened PoCL device, or no test."""
    return open_pocl()


@pytest.fixture(scope="module", params=FORMS)
def device(request: pytest.FixtureRequest) -> AnyDevice:
    """NumPy and OpenCL in every form that runs programs."""
    return open_mapping(request.param)


@pytest.fixture(scope="module", params=MAPPINGS[1:])
def kernels(request: pytest.FixtureRequest) -> Device:
    """A device that runs kernels."""
    found = open_mapping(request.param)
    assert isinstance(found, Device)
    return found


@pytest.fixture(params=MAPPINGS[1:])
def lowered(request: pytest.FixtureRequest) -> Lowered:
    """What steps become for a mapping, without a driver."""
    device = open_mapping("numpy")
    device.lanes = request.param
    return lambda step: compile(step, device).stages


ClockOfSteps = Callable[[Callable[[int], float]], list[float]]


@pytest.fixture
def clock_of_steps(monkeypatch: pytest.MonkeyPatch) -> ClockOfSteps:
    """Has a clock that only steps of trainers move, by the seconds that each takes; the time is its
    only element."""

    def clock_of(seconds: Callable[[int], float]) -> list[float]:
        clock, replay = [0.0], Trainer._replay

        def timed(trainer: Trainer[Any, Any], run: Run) -> bool:
            before = trainer.done
            whole = replay(trainer, run)
            clock[0] += sum(map(seconds, range(before, trainer.done)))
            return whole

        monkeypatch.setattr(Trainer, "_replay", timed)
        monkeypatch.setattr("time.perf_counter", lambda: clock[0])
        return clock

    return clock_of


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little files are trained, none of one colour takes their place."""
    monkeypatch.setattr(encoder, "_nearer_to_target", lambda trained, *_: trained)


@pytest.fixture
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit encoding to two passes and three trials of lambda."""
    monkeypatch.setattr(passes, "MAX_PASSES", 2)
    monkeypatch.setattr(search, "MAX_TRIALS", 3)


@pytest.fixture
def four_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every picture four grids, with which a window may be only 8 pixels high."""
    monkeypatch.setattr(architecture, "default_levels", lambda *_: 4)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A small RGB picture, alone in its folder."""
    folder = tmp_path / "run"
    folder.mkdir()
    path = folder / "small.png"
    Image.fromarray(small_pixels()).save(path)
    return path


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoders of this process take a moment: few steps, and few trials for a target.

    For what is tested around them, whatever their files look like.
    """
    monkeypatch.setattr(target, "DEFAULT_EFFORT_STEPS", 480)
    monkeypatch.setattr(effort, "MIN_EFFORT_STEPS", 20)
    monkeypatch.setattr(passes, "MAX_PASSES", 1)
    monkeypatch.setattr(search, "MAX_TRIALS", 3)


@pytest.fixture
def imgmlp(picture: Path) -> Command:
    """Runs `imgmlp ...` in the picture's folder, on NumPy unless told otherwise."""

    def run(
        *args: str | Path, env: dict[str, str] | None = None, check: int = 0
    ) -> subprocess.CompletedProcess[str]:
        command = imgmlp_command(args)
        done = subprocess.run(
            command,
            cwd=picture.parent,
            env=environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=600,
            check=False,
        )
        assert done.returncode == check, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture
def in_process(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs `imgmlp ...` likewise, but in this process, as it takes half a second to load modules.

    For whatever needs no process of its own: no signals are heard, the streams are pytest's, and
    what libraries read from the environment as they are loaded they have read.
    """
    from imgmlp import cli
    from imgmlp.cli import fast_decode, options

    monkeypatch.chdir(picture.parent)
    for name in LEFT_OUT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("IMGMLP_DEVICE", "numpy")
    for module in (options, fast_decode):
        monkeypatch.setattr(module, "raise_on_signals", lambda: None)
        monkeypatch.setattr(module, "shield_children", lambda: None)
    monkeypatch.setattr(cli, "ignore_signals", lambda: None)
    monkeypatch.setattr(cli.ending, "leave", sys.exit)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command has its own

    def run(
        *args: str | Path, env: dict[str, str] | None = None, check: int = 0
    ) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["imgmlp", *map(str, args)])
        with monkeypatch.context() as changed:
            for name, value in (env or {}).items():
                changed.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        shown = capsys.readouterr()
        assert ended.value.code == check, f"{ended.value.code}\n{shown.out}\n{shown.err}"
        return subprocess.CompletedProcess(args, check, shown.out, shown.err)

    return run


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the small picture and what `imgmlp train` writes beside it."""
    folder = tmp_path_factory.mktemp("trained")
    Image.fromarray(small_pixels()).save(folder / "small.png")
    command = imgmlp_command(["train", "small.png", *QUICK, "-q"])
    subprocess.run(command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, check=True)
    return folder


@pytest.fixture
def weights(trained_once: Path, picture: Path) -> Path:
    """Weights of the small picture, and its reconstruction, beside it."""
    shutil.copytree(trained_once, picture.parent, dirs_exist_ok=True)
    return picture.parent / "weights.npz"


@pytest.fixture
def compact(picture: Path) -> Path:
    """A compact file with an alpha channel and a colour profile."""
    path = picture.parent / "a.imlp"
    path.write_bytes((GOLDEN / "rgb-alpha.imlp").read_bytes())
    return path


def stops_after(looks: int) -> Callable[[], bool]:
    """What a Run asks whether to stop: so many times not yet."""
    left = iter(range(looks))
    return lambda: next(left, None) is None


def imgmlp_command(args: Sequence[str | Path]) -> list[str]:
    return [sys.executable, "-m", "imgmlp", *map(str, args)]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what changes how text is shown."""
    kept = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    # The tests also run on a checkout that is not installed.
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
    fixed = {"PYTHONPATH": path, "IMGMLP_DEVICE": "numpy", "PYTHONIOENCODING": "utf-8"}
    return kept | fixed | changes
