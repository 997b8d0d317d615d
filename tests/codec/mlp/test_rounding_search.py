"""Networks of one colour, the smallest that there are."""

from __future__ import annotations

import numpy as np

from imgmlp.codec.mlp import integer_inference
from imgmlp.codec.mlp.rounding_search import even
from imgmlp.engine import open_device


def test_one_colour_can_be_any() -> None:
    device = open_device("numpy")
    for level in range(0, 256, 4):
        levels = np.arange(level, level + 4)
        decoded = integer_inference.decode(even(levels), 3, 2, device)
        assert (decoded == levels.astype(np.uint8)).all()
