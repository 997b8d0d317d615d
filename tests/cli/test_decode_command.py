"""`imgmlp decode`: sizes, formats, existing outputs and refused options."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import Command, environment, imgmlp_command
from outputs import assert_error, pixels_of
from PIL import Image

from imgmlp.cli import parsing
from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container
from imgmlp.engine import open_device
from imgmlp.errors import UsageError


def test_decode_equals_the_reconstruction_of_train(imgmlp: Command, weights: Path) -> None:
    done = imgmlp("decode", weights.name)
    assert done.stdout == ""
    decoded = pixels_of(weights.with_suffix(".png"))
    np.testing.assert_array_equal(decoded, pixels_of(weights.parent / "reconstruction.png"))


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (("--size", "5x7"), (5, 7)),
        (("--scale", "2"), (62, 48)),
        (("--scale", "0.001"), (1, 1)),
    ],
)
def test_weights_decode_at_any_size(
    in_process: Command, weights: Path, options: tuple[str, ...], size: tuple[int, int]
) -> None:
    in_process("decode", weights.name, *options, "-o", "other.webp")
    with Image.open(weights.parent / "other.webp") as image:
        assert image.size == size


@pytest.mark.parametrize(
    ("text", "size"), [("640x480", (640, 480)), ("1X2", (1, 2)), ("16384×16384", (2**14, 2**14))]
)
def test_parse_size_reads_width_by_height(text: str, size: tuple[int, int]) -> None:
    assert parsing.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5", "5x", "0x5", "-1x5", "5x5x5", "1.5x2", "16385x16384"])
def test_parse_size_refuses_invalid_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parsing.parse_size(text)


def test_output_dash_writes_png_to_stdout(imgmlp: Command, weights: Path) -> None:
    target = weights.parent / "out.png"
    with target.open("wb") as stream:
        subprocess.run(
            imgmlp_command(["decode", weights, "-o", "-"]),
            env=environment(),
            stdout=stream,
            check=True,
        )
    np.testing.assert_array_equal(
        pixels_of(target), pixels_of(weights.parent / "reconstruction.png")
    )


def test_imlp_file_decodes_to_a_png_beside_it(in_process: Command, compact: Path) -> None:
    done = in_process("decode", compact.name)
    assert done.stderr.startswith("✓ a.decoded.png  24×7 RGB and alpha   ")
    with Image.open(compact.with_name("a.decoded.png")) as image:
        assert image.info["icc_profile"] == b"not a real profile"
        pixels = np.asarray(image)
    expected = decoder.decode(container.parse(compact.read_bytes()), open_device("numpy"))
    np.testing.assert_array_equal(pixels, expected)
    in_process("decode", compact.name, "-o", "b.webp", "-q")
    np.testing.assert_array_equal(pixels_of(compact.with_name("b.webp")), expected)


def test_damaged_file_or_format_without_transparency_is_refused(
    in_process: Command, compact: Path
) -> None:
    before = set(compact.parent.iterdir())
    assert_error(in_process("decode", compact.name, "-o", "b.jpg", check=2).stderr, "transparency")
    compact.write_bytes(compact.read_bytes()[:-1])
    assert_error(in_process("decode", compact.name, check=4).stderr, "a.imlp: truncated")
    assert set(compact.parent.iterdir()) == before


def test_name_too_long_for_the_decoded_extension_is_reported(
    in_process: Command, compact: Path
) -> None:
    source = compact.rename(compact.with_name(f"{'a' * 245}.imlp"))
    done = in_process("decode", source.name, check=8)
    assert_error(done.stderr, "cannot write", "decoded.png", "too long")


@pytest.mark.parametrize(
    "options",
    [
        ("--scale", "0"),
        ("--scale", "-1"),
        ("--scale", "nan"),
        ("--scale", "1e300"),
        ("--size", "5"),
        ("--size", "99999x99999"),
        ("--size", "5x5", "--scale", "2"),
        ("-o", "picture.xyz"),
        ("-o", "picture"),
    ],
    ids=" ".join,
)
def test_invalid_option_of_decode_is_exit_2(
    in_process: Command, weights: Path, options: tuple[str, ...]
) -> None:
    before = set(weights.parent.iterdir())
    assert_error(in_process("decode", weights.name, *options, check=2).stderr)
    assert set(weights.parent.iterdir()) == before


def test_decode_into_an_object_store_is_refused(in_process: Command, weights: Path) -> None:
    done = in_process("decode", weights.name, "--out", "s3://bucket/x", check=2)
    assert_error(done.stderr, "s3://bucket/x is in an object store")
    assert not (weights.parent / "s3:").exists()


def test_decode_onto_a_folder_is_refused(in_process: Command, weights: Path) -> None:
    (weights.parent / "dd").mkdir()
    assert_error(in_process("decode", weights.name, "-o", "dd", check=8).stderr, "dd is a folder")


def test_decode_does_not_replace_an_existing_picture(in_process: Command, weights: Path) -> None:
    target = weights.with_suffix(".png")
    target.write_bytes(b"old")
    assert_error(in_process("decode", weights.name, check=8).stderr, "weights.png")
    assert target.read_bytes() == b"old"
