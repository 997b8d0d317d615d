"""Assertions on outputs that tests of several commands share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from imgmlp.codec.decoder import open_stored
from imgmlp.engine import open_device

OUTPUTS = ("weights.npz", "reconstruction.png")


def pixels_of(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def names_beside(picture: Path, with_checkpoints: bool = True) -> set[str]:
    """The names of all other files in a picture's folder, with or without checkpoints."""
    paths = {path.name for path in picture.parent.iterdir()} - {picture.name}
    return {name for name in paths if with_checkpoints or not name.endswith(".checkpoint")}


def assert_whole(picture: Path) -> None:
    """Assert that both outputs are complete and the weights decode to the reconstruction."""
    folder = picture.parent
    assert names_beside(picture, with_checkpoints=False) == set(OUTPUTS)
    decoded = open_stored(folder / "weights.npz").decode(open_device("numpy"))
    np.testing.assert_array_equal(pixels_of(folder / "reconstruction.png"), decoded)


def assert_error(text: str, *expected: str) -> None:
    """Assert that the last two lines are an error and a hint with these texts; no traceback."""
    *_, error, hint = text.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert "Traceback" not in text
    for part in expected:
        assert part in error + hint
