"""Networks of one colour, the smallest that there are."""

from __future__ import annotations

import numpy as np

from imgmlp.codec import integer
from imgmlp.codec.rounding import even
from imgmlp.engine import open_device


def test_one_colour_can_be_any() -> None:
    device = open_device("numpy")
    for level in range(0, 256, 4):
        levels = np.arange(level, level + 4)
        decoded = integer.decode(even(levels), 3, 2, device)
        assert (decoded == levels.astype(np.uint8)).all()
