"""Results to make pages of, without any training."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
from conftest import small_pixels

from imgmlp.report import copies
from imgmlp.report.classic import CODECS, SizeSearch
from imgmlp.report.copies import Shown
from imgmlp.report.measure import OURS, Measured, Result
from imgmlp.report.metrics import compare
from imgmlp.report.page import About

RATES = (1.0, 2.0, 4.0)
SIDE = 192  # pixels, so that MS-SSIM is known
ABOUT = About(
    codec="mlp",
    effort=1,
    device="a device <of ours>",
    others={key: CODECS[key] for key in ("jpeg420", "webp", "avif")},
    rates=RATES,
    version="9.9.9",
    made=datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
)


def pixels(turn: int) -> np.ndarray:
    tiled = np.tile(np.roll(small_pixels(), turn, axis=1), (8, 7, 1))[:SIDE, : SIDE + 20]
    return np.ascontiguousarray(tiled)


def measured(name: str, turn: int = 0, better: float = 1.0) -> Measured:
    """A picture by other codecs; imgmlp's files are JPEG's with so many times the bytes."""
    original, results = pixels(turn), []
    sized = {key: SizeSearch(codec, original) for key, codec in ABOUT.others.items()}
    for rate in RATES:
        wanted = round(rate * original.shape[0] * original.shape[1] / 8)
        for number, (key, one) in enumerate([(OURS, sized["jpeg420"]), *sized.items()]):
            made = one.nearest(wanted)
            size = len(made.bytes)
            bpp = 8 * size / (original.shape[0] * original.shape[1])
            if key == OURS:
                shown = copies.of(made.pixels, copies.QUALITIES)
            else:
                shown = Shown.own(ABOUT.others[key].media or "", made.bytes)
            results.append(
                Result(
                    key,
                    rate,
                    f"quality {made.quality}",
                    size,
                    bpp,
                    compare(original, made.pixels),
                    0.5 + number,
                    0.001 * (1 + number),
                    shown,
                    "a <note>" if number == 1 else None,
                )
            )
            if key == OURS:
                results[-1] = replace(results[-1], size=round(size * better), bpp=bpp * better)
    height, width, _ = original.shape
    return Measured(name, width, height, copies.of(original, copies.ORIGINAL_QUALITIES), results)
