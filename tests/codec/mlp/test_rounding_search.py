"""Networks of one colour, the smallest that there are, and what files have beside weights."""

from __future__ import annotations

import numpy as np
import pytest

from imgmlp.codec.mlp import integer_inference, rate_model
from imgmlp.codec.mlp.rounding_search import even, overhead, paid_weights
from imgmlp.engine import open_device
from imgmlp.image import Picture
from imgmlp.metadata import NOTHING, Metadata


def test_one_colour_can_be_any() -> None:
    device = open_device("numpy")
    for level in range(0, 256, 4):
        levels = np.arange(level, level + 4)
        decoded = integer_inference.decode(even(levels), 3, 2, device)
        assert (decoded == levels.astype(np.uint8)).all()


@pytest.mark.parametrize("size", [300, 700, 5000])
def test_what_bytes_pay_for_is_what_a_file_has_beside_the_rest(size: int) -> None:
    for found in (NOTHING, Metadata(b"a colour profile", b"II*\0 EXIF", b"<xmp/>", None)):
        picture = Picture(np.zeros((64, 64, 3), np.uint8), found)
        weights = paid_weights(picture, size)
        shape = rate_model.network_shape(weights, 3)
        assert overhead(picture, shape) + weights * rate_model.BITS / 8 == pytest.approx(size)
