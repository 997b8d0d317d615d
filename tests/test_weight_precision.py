"""benchmarks/weight_precision.py: PSNR with float32 and with integer weights."""

from __future__ import annotations

from conftest import small_pixels

from benchmarks import weight_precision
from imgmlp.engine import open_device
from imgmlp.image import Picture


def test_weight_precision_trains_both_ways_and_counts_bits() -> None:
    picture, device = Picture(small_pixels()), open_device("numpy")
    psnr = weight_precision.trained(picture, 300, 60, device)
    integer_psnr, bits_per_weight = weight_precision.coded(picture, 300, 6.9, 60, device)
    assert min(psnr, integer_psnr) > 10
    assert 5 < bits_per_weight < 9
