"""What tests of several commands ask of their outputs."""

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


def names(picture: Path, states: bool = True) -> set[str]:
    """What lies beside the picture, temporary files included, and checkpoints if wanted."""
    found = {path.name for path in picture.parent.iterdir()} - {picture.name}
    return {name for name in found if states or not name.endswith(".checkpoint")}


def assert_whole(picture: Path) -> None:
    """The weights can be decoded, and the reconstruction is what they decode to."""
    folder = picture.parent
    assert names(picture, states=False) == set(OUTPUTS)
    decoded = open_stored(folder / "weights.npz").decode(open_device("numpy"))
    np.testing.assert_array_equal(pixels_of(folder / "reconstruction.png"), decoded)


def assert_error(text: str, *expected: str) -> None:
    """The last two lines are an error and a hint, and nothing is a traceback."""
    *_, error, hint = text.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    assert "Traceback" not in text
    for part in expected:
        assert part in error + hint
