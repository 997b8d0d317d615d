"""What `import imgmlp` offers, what it costs, and that the documents' words are those that run."""

from __future__ import annotations

import inspect
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import python_page
from conftest import environment, small_pixels
from PIL import Image

import imgmlp
from imgmlp import api
from imgmlp.codec.bitstream import container
from imgmlp.errors import PictureError, UsageError

ROOT = Path(__file__).parent.parent
QUICK = {"steps": 20, "batch": 64, "hidden": 8, "layers": 1, "features": 8, "device": "numpy"}
HEAVY = {"numpy", "pyopencl", "PIL"}


def modules_after(code: str) -> set[str]:
    """Top-level modules that Python has loaded after some code."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_the_public_names_are_these() -> None:
    assert set(imgmlp.__all__) == {
        "ImgmlpError",
        "__version__",
        "decode",
        "devices",
        "encode",
        "info",
        "train",
    }
    assert set(imgmlp.__all__) <= set(dir(imgmlp))
    for name in imgmlp.__all__:
        assert getattr(imgmlp, name) is not None


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="encoder"):
        _ = imgmlp.encoder  # type: ignore[attr-defined]


@pytest.mark.parametrize("function", [imgmlp.encode, imgmlp.train])
def test_what_is_compressed_already_is_refused_as_such(
    tmp_path: Path, function: Callable[..., object]
) -> None:
    path = tmp_path / "a.imlp"
    path.write_bytes(container.SIGNATURE)
    with pytest.raises(PictureError, match="is compressed already") as caught:
        function(path)
    assert "decode" in caught.value.hint


@pytest.mark.parametrize("function", [imgmlp.encode, imgmlp.train])
def test_a_name_that_is_too_long_is_told(function: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: File name too long"):
        function(5000 * "a")


def test_the_errors_are_there_without_an_import_of_their_own() -> None:
    code = "import imgmlp; assert issubclass(imgmlp.errors.UsageError, imgmlp.ImgmlpError)"
    assert not modules_after(code) & HEAVY


def test_importing_is_light() -> None:
    assert not modules_after("import imgmlp") & {*HEAVY, "rich", "typer"}


@pytest.mark.parametrize("option", ["--help", "--version", "train --help"])
def test_help_needs_neither_numpy_nor_opencl(option: str) -> None:
    code = f"""
import sys
from imgmlp.cli import main
sys.argv = ["imgmlp", *{option!r}.split()]
try:
    main()
except SystemExit as end:
    assert end.code == 0
"""
    assert not modules_after(code) & HEAVY


def test_encoding_and_decoding_agree() -> None:
    seen: list[int] = []
    found = imgmlp.encode(
        small_pixels(),
        size=400,
        seconds=3,  # enough on a halting machine: after a few steps one colour would be nearer
        codec="mlp",
        device="numpy",
        on_step=lambda p: seen.append(p.step),
    )
    assert len(found.bytes) == found.metrics["bytes"] <= 400
    decoded = imgmlp.decode(found.bytes, device="numpy")
    np.testing.assert_array_equal(np.asarray(decoded), found.pixels)
    assert seen[-1] == found.metrics["steps"]


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(imgmlp.ImgmlpError, match="seconds is"):
        imgmlp.encode(small_pixels(), seconds=seconds, device="numpy")


WRONG: list[dict[str, object]] = [
    {"effort": 2.5},
    {"effort": True},
    {"effort": "3"},
    {"effort": 0},
    {"effort": 5, "seconds": 1},
    {"seconds": "1"},
    {"seconds": True},
    {"quality": "60"},
    {"quality": True},
    {"quality": math.nan},
    {"bpp": None, "psnr": "30"},
    {"lmbda": [1]},
    {"size": 400.0},
    {"size": "400"},
    {"size": -1},
    {"codec": "jpeg"},
    {"codec": ["mlp"]},
    {"frame": 1},
    {"device": 0},
    {"strip": "no"},
    {"on_step": 3},
]


@pytest.mark.parametrize("codec", ["mlp", "latent"])
@pytest.mark.parametrize("choices", WRONG, ids=str)
def test_an_argument_that_is_none_is_refused(codec: str, choices: dict[str, object]) -> None:
    name = next(name for name, value in choices.items() if value is not None)
    with pytest.raises(imgmlp.ImgmlpError) as caught:
        imgmlp.encode(small_pixels(), **{"codec": codec, "device": "numpy"} | choices)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert name in str(caught.value)
    assert "--" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize(
    ("choices", "said"),
    [
        ({"preset": []}, "no preset"),
        ({"output": 3}, "3 is not a file name"),
        ({"output": "a\0.npz"}, "null character"),
        ({"output": "a.png"}, "a picture's extension"),
        ({"output": "a.imlp"}, "another kind of file"),
        ({"on_step": 3}, "on_step is 3"),
        ({"frame": 1}, "frame is for files only"),
        ({"strip": "no"}, "strip is 'no'"),
        ({"lr": "x"}, "lr is 'x'"),
        ({"steps": "x"}, "steps is 'x'"),
        ({"colour": 1, "betas": 2}, "no setting colour, betas"),
    ],
)
def test_an_argument_of_train_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choices: dict[str, object], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(imgmlp.ImgmlpError, match=said) as caught:
        imgmlp.train(small_pixels(), **QUICK | choices)
    assert caught.value.exit_code == 2
    assert caught.value.hint
    assert "--" not in f"{caught.value} {caught.value.hint}"
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_no_file_can_have_is_refused() -> None:
    for use in (imgmlp.encode, imgmlp.train, imgmlp.decode, imgmlp.info):
        with pytest.raises(imgmlp.ImgmlpError, match="null character"):
            use("a\0b")
        with pytest.raises(imgmlp.ImgmlpError, match="not a valid file name"):
            use("a\ud800b")
        with pytest.raises(imgmlp.ImgmlpError, match="file name is empty"):
            use("")


def test_notes_say_what_of_the_picture_was_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(np.zeros((9, 7), np.uint16)).save(path)
    notes = ("samples of 16 bits are reduced to their upper 8 bits",)
    assert imgmlp.encode(path, device="numpy").notes == notes
    assert imgmlp.train(path, **QUICK).notes == notes
    assert imgmlp.train(small_pixels(), **QUICK).notes == ()


def test_of_several_frames_one_is_trained_on_and_a_profile_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    first, second = Image.new("L", (9, 7), 0), Image.new("L", (9, 7), 255)
    first.save(path, save_all=True, append_images=[second], icc_profile=b"any")
    trained = imgmlp.train(path, frame=2, strip=True, **QUICK)
    assert trained.pixels.mean() > 200
    assert trained.weights.icc is None
    plain = imgmlp.train(path, **QUICK)
    assert plain.pixels.mean() < 50
    assert plain.weights.icc == b"any"


def test_numbers_of_numpy_are_numbers() -> None:
    choices = {"effort": np.int64(1), "lmbda": np.float32(0.5), "device": "numpy"}
    assert imgmlp.encode(np.zeros((9, 7), np.uint8), **choices).metrics["psnr"] == math.inf


@pytest.mark.parametrize(
    "target", [{"psnr": Fraction(30)}, {"lmbda": Fraction(1, 1000)}, {"quality": Fraction(60)}]
)
def test_fractions_are_numbers_as_well(target: dict[str, Fraction]) -> None:
    """Also in a file's digest and metrics."""
    choices = {"seconds": Fraction(1, 2), "codec": "mlp", "device": "numpy"} | target
    found = imgmlp.encode(small_pixels()[:9, :9], **choices)
    assert json.dumps(found.metrics)
    (name,) = target
    with pytest.raises(imgmlp.ImgmlpError, match=f"{name} is inf"):
        imgmlp.encode(small_pixels(), **{name: Fraction(10**400)})


def test_hints_name_arguments_that_there_are() -> None:
    with pytest.raises(UsageError, match="only its own size") as told:
        imgmlp.decode(ROOT / "tests" / "golden" / "latent" / "start-1.imlp", size=(9, 9))
    assert told.value.hint == "leave out size"


@pytest.mark.parametrize("source", [None, 3, b"bytes", [[1]], small_pixels().astype(int)])
def test_what_is_no_picture_at_all_is_refused(source: object) -> None:
    for use in (imgmlp.encode, imgmlp.train):
        with pytest.raises(imgmlp.ImgmlpError, match="not a picture"):
            use(source, device="numpy")


@pytest.mark.parametrize("size", ["9x7", 9, (9,), (9, 7.0), (True, 7), ("9", "7"), (1, 2, 3)])
def test_a_size_to_decode_to_is_two_whole_numbers(size: object) -> None:
    path = ROOT / "tests" / "golden" / "gray.imlp"
    with pytest.raises(imgmlp.ImgmlpError, match="size is"):
        imgmlp.decode(path, size=size, device="numpy")


def test_what_is_no_file_at_all_is_refused() -> None:
    for use in (imgmlp.decode, imgmlp.info):
        with pytest.raises(imgmlp.ImgmlpError, match="type int is not a file"):
            use(3)


def test_bytes_of_a_file_may_be_of_any_kind() -> None:
    data = (ROOT / "tests" / "golden" / "gray.imlp").read_bytes()
    expected = np.asarray(imgmlp.decode(data, device="numpy"))
    for kind in (bytearray, memoryview):
        found = np.asarray(imgmlp.decode(kind(data), device="numpy"))
        np.testing.assert_array_equal(found, expected)
        assert imgmlp.info(kind(data)) == imgmlp.info(data)


@pytest.mark.parametrize("colours", [1, 3])
def test_an_opaque_array_loses_its_alpha_as_an_image_does(colours: int) -> None:
    pixels = np.dstack([np.zeros((9, 7, colours), np.uint8), np.full((9, 7), 255, np.uint8)])
    for source in (pixels, Image.fromarray(pixels)):
        found = imgmlp.encode(source, lmbda=0.5, effort=1, codec="mlp", device="numpy")
        assert found.metrics["channels"] == colours
    assert imgmlp.train(pixels, **QUICK).pixels.shape[2] == colours
    pixels[0, 0, -1] = 0
    with pytest.raises(imgmlp.ImgmlpError, match="transparent"):
        imgmlp.train(pixels, **QUICK)


def test_training_and_decoding_agree(tmp_path: Path) -> None:
    path, steps = tmp_path / "weights.npz", []
    trained = imgmlp.train(small_pixels(), on_step=steps.append, output=path, **QUICK)
    assert [type(progress).__name__ for progress in steps[:1]] == ["Progress"]
    assert trained.steps == 20
    for file in (path, str(path), path.read_bytes()):
        decoded = imgmlp.decode(file, device="numpy")
        assert isinstance(decoded, Image.Image)
        np.testing.assert_array_equal(np.asarray(decoded), trained.pixels)
    assert imgmlp.decode(path, size=(5, 7), device="numpy").size == (5, 7)
    assert imgmlp.info(path)["width"] == 31
    assert imgmlp.info(path.read_bytes()) == imgmlp.info(path)


def test_a_compact_file_is_decoded_from_its_name_or_its_bytes() -> None:
    path = ROOT / "tests" / "golden" / "gray-alpha.imlp"
    found = container.parse(path.read_bytes())
    for file in (path, str(path), path.read_bytes()):
        decoded = imgmlp.decode(file, device="numpy")
        assert decoded.mode == "LA"
        assert container.digest(np.asarray(decoded)) == found.header.digest
    for own in (decoded.size, list(decoded.size)):  # exact, as without
        assert imgmlp.decode(path, size=own, device="numpy") == decoded  # type: ignore[arg-type]
    assert imgmlp.decode(path, size=(10, 46), device="numpy").size == (10, 46)
    with pytest.raises(imgmlp.ImgmlpError, match=r"not an \.imlp file"):
        imgmlp.decode(b"neither", device="numpy")


@pytest.mark.parametrize("size", [(0, 3), (3, -1), (2**15, 2**15)])
def test_a_size_that_no_picture_has_is_refused(size: tuple[int, int]) -> None:
    path = ROOT / "tests" / "golden" / "gray.imlp"
    with pytest.raises(imgmlp.ImgmlpError, match=f"{size[0]}x{size[1]}"):
        imgmlp.decode(path, size=size, device="numpy")


def test_a_picture_may_be_a_file_an_image_or_an_array(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    image = Image.fromarray(small_pixels(1)[:, :, 0])
    image.save(path)
    results = [
        imgmlp.train(source, **QUICK).pixels
        for source in (path, str(path), image, small_pixels(1), small_pixels(1)[:, :, 0])
    ]
    for pixels in results[1:]:  # the same seed gives the same bits
        np.testing.assert_array_equal(pixels, results[0])


def test_an_array_of_another_class_is_its_samples() -> None:
    pixels = small_pixels(1)[:, :, 0]
    found = imgmlp.train(pixels.view(np.matrix), **QUICK)
    np.testing.assert_array_equal(found.pixels, imgmlp.train(pixels, **QUICK).pixels)


def test_a_masked_array_is_refused() -> None:
    pixels = np.ma.masked_array(small_pixels(), small_pixels() > 9)
    for use in (imgmlp.encode, imgmlp.train):
        with pytest.raises(imgmlp.ImgmlpError, match="masked") as caught:
            use(pixels, device="numpy")
        assert "filled" in caught.value.hint


def test_weights_go_where_their_name_led_when_training_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = tmp_path / "later"
    later.mkdir()
    monkeypatch.chdir(tmp_path)
    imgmlp.train(small_pixels(1), **QUICK, output="a.npz", on_step=lambda _: os.chdir(later))
    assert (tmp_path / "a.npz").is_file()
    assert not list(later.iterdir())


def test_progress_can_be_sent_to_another_process() -> None:
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader:
        with writer:
            imgmlp.train(small_pixels(1), **QUICK, on_step=writer.send)
        found = reader.recv()
    assert (found.steps, found.preview) == (20, None)


def test_settings_may_be_numbers_of_numpy() -> None:
    numpys = {name: np.int64(value) for name, value in QUICK.items() if isinstance(value, int)}
    assert numpys
    numpys["lr"] = np.float32(2**-7)
    found = imgmlp.train(small_pixels(1), **QUICK | numpys).pixels
    expected = imgmlp.train(small_pixels(1), **QUICK | {"lr": 2**-7}).pixels
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (small_pixels().astype(np.float32), {}),
        (small_pixels()[:, :, :2], {}),
        (small_pixels()[:0], {}),
        ("missing.png", {}),
        (small_pixels(), {"steps": 0}),
        (small_pixels(), {"colour": 1}),
        (small_pixels(), {"preset": "other"}),
        (small_pixels(), {"device": "9:9"}),
        (small_pixels(), {"output": "/proc/weights.npz"}),
    ],
)
def test_what_cannot_work_is_an_imgmlp_error(source: object, settings: dict[str, object]) -> None:
    with pytest.raises(imgmlp.ImgmlpError) as caught:
        imgmlp.train(source, **QUICK | settings)
    assert caught.value.hint


def test_damaged_bytes_are_an_imgmlp_error() -> None:
    with pytest.raises(imgmlp.ImgmlpError):
        imgmlp.decode(b"PK\x03\x04 and nothing more", device="numpy")


def test_numpy_is_always_among_the_devices() -> None:
    assert "numpy" in [device.spec for device in imgmlp.devices()]


# README, manual and what runs


def commands_of(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_the_readmes_set_up_and_test_commands_are_those_of_the_check_script() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    install, tests = commands_of("README.md")[:2]
    assert "pip install" in install
    assert "train assets/mandrill.png" in install
    assert "pytest" in tests
    assert install in script
    assert tests in script


def test_every_option_is_an_argument_or_in_the_table_of_those_that_are_called_otherwise() -> None:
    import typer

    from imgmlp.cli.commands import app

    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    cells = re.findall(r"^\| (`-.*) \| (.*) \|$", page, re.MULTILINE)
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    taken, told = (
        {"quiet", "verbose", "no-progress", "version"},
        " ".join(cell for cell, _ in cells),
    )
    taken |= set(re.findall(r"--([a-z-]+)", told))
    arguments, options = set(api._TRAINING_SETTINGS), set()
    for name in ("train", "encode", "decode", "info"):
        arguments |= set(inspect.signature(getattr(imgmlp, name)).parameters)
        options |= {
            option for p in commands[name].params for option in p.opts if option[:2] == "--"
        }
    options = {option[2:] for option in options}
    assert options <= taken | arguments
    assert taken <= options
    assert set(re.findall(r"`(\w+)=", " ".join(cell for _, cell in cells))) <= arguments
    for option, argument in api._ARGUMENTS_BY_OPTION.items():
        assert re.search(rf"^\| `--{option} .*\| `{argument}=", page, re.MULTILINE)


def test_the_page_of_the_api_says_what_the_code_does() -> None:
    page = (ROOT / "docs" / "python.md").read_text("utf-8")
    assert page == python_page.filled(page), "run python tools/python_page.py"
    assert all(f"### {name}\n" in page for name in api.__all__)


@pytest.mark.parametrize("document", ["README.md", "docs/manual.md"])
def test_the_commands_of_documents_exist(document: str) -> None:
    from imgmlp.cli.commands import app

    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {group.name for group in app.registered_groups}
    lines = commands_of(document)
    used = [match for line in lines for match in re.findall(r"\bimgmlp (\w+)", line)]
    assert used
    assert set(used) <= known


def test_the_package_carries_its_type_information_and_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (ROOT / "imgmlp" / "py.typed").exists()
    assert project["license"] == "MIT"
    assert "imgmlp contributors" in (ROOT / "LICENSE").read_text(encoding="utf-8")
