"""Copies of pictures: the best for which a page has room."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from imgmlp.image import psnr
from imgmlp.report import copies
from imgmlp.report.copies import QUALITIES, Shown, best_level


@pytest.mark.parametrize("channels", [1, 3])
def test_copies_say_how_good_they_are(channels: int) -> None:
    chance = np.random.default_rng(1)
    pixels = chance.integers(0, 256, (48, 64, channels), np.uint8)
    found = copies.of(pixels, QUALITIES)
    assert len(found.files[0]) > len(found.files[-1])
    assert found.psnr == sorted(found.psnr, reverse=True)
    with Image.open(io.BytesIO(found.files[-1])) as image:
        again = np.asarray(image.convert("RGB"))
    assert psnr(np.broadcast_to(pixels, again.shape), again) == pytest.approx(found.psnr[-1])


def test_the_best_for_which_there_is_room_are_taken() -> None:
    every = [Shown("image/x", [b"x" * n for n in (900, 600, 300, 90, 60)]) for _ in range(2)]
    lengths = [sum(len(one.url(n)) for one in every) for n in range(5)]
    assert lengths == [sum(one.length(n) for one in every) for n in range(5)]
    assert [best_level(every, room) for room in lengths] == [0, 1, 2, 3, 4]
    assert [best_level(every, room - 1) for room in lengths] == [1, 2, 3, 4, 4]


def test_an_own_file_is_shown_as_it_is() -> None:
    own = Shown.own("image/jpeg", b"bytes")
    assert own.url(3) == f"data:image/jpeg;base64,{base64.b64encode(b'bytes').decode()}"
