"""Messages that libtiff writes to stderr are hidden, and noted if they report damage."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import save
from hostile import refusal
from PIL import Image

from imgmlp import image as pictures
from imgmlp.image_io.library_messages import silent_libraries


def test_libtiff_does_not_write_to_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (40, 40, 3), np.uint8)
    path = save(Image.fromarray(noise), tmp_path / "a.tif", compression="tiff_adobe_deflate")
    data = bytearray(path.read_bytes())
    data[100:3000] = bytes(2900)
    path.write_bytes(data)
    assert "damaged" in str(refusal(path))
    os.write(2, b"still there")
    assert capfd.readouterr() == ("", "still there")


def test_stderr_of_other_threads_is_forwarded(capfd: pytest.CaptureFixture[str]) -> None:
    """Another thread writes while a TIFF is decoded; libtiff's messages are hidden."""
    with silent_libraries(True) as first:
        os.write(2, b"one\nFax4Decode: Bad code word.\ntempfile.tif: Too short.\nKeyError: 5\nlast")
        assert first() == "Fax4Decode: Bad code word."
    assert capfd.readouterr().err == "one\nKeyError: 5\nlast"


def test_libtiffs_report_of_damage_that_pillow_ignores_is_noted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    image, path = Image.new("1", (300, 200), 1), tmp_path / "a.tif"
    for row in range(0, 200, 7):
        image.paste(0, (row, row, row + 40, row + 3))
    image.save(path, "TIFF", compression="group4")
    assert pictures.load(path).notes == ()
    with Image.open(path) as again:
        (begin,), (count,) = again.tag_v2[273], again.tag_v2[279]
    data = bytearray(path.read_bytes())
    data[begin + 20 : begin + count] = bytes(count - 20)  # an invalid code
    path.write_bytes(data)
    (note,) = pictures.load(path).notes
    assert "damaged" in note
    assert "Fax4Decode" in note
    assert capfd.readouterr().err == ""
