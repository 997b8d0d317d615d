"""A picture as several codecs decode it from files of equal size, side by side, for the docs.

    python benchmarks/side_by_side.py assets/mandrill.png side-by-side.png --bpp 0.3

Each panel shows the same part of the picture, enlarged without smoothing, with the codec's name,
the size of the whole file and its PSNR over the whole picture (RGB, 8 bits). The other codecs get
the size nearest to imgmlp's, which is encoded for this purpose even if it is not shown.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

import imgmlp
from imgmlp import image as pictures
from imgmlp.report import classic

Array = np.ndarray[Any, Any]

DEFAULT = "jpeg420,webp,avif444,imgmlp"
TEXT, MARGIN = 15, 4  # pixels


@dataclass(frozen=True)
class Panel:
    """A picture, uint8 [height, width, channels], and the words below it."""

    pixels: Array
    words: str


def panels(path: Path, codecs: list[str], bpp: float, effort: int, device: str) -> list[Panel]:
    """The original, and what each codec makes of it."""
    original = pictures.load(path).pixels
    ours = imgmlp.encode(path, bpp=bpp, effort=effort, device=device)
    found = [Panel(original, "original")]
    for key in codecs:
        if key == "imgmlp":
            name, size, decoded = "imgmlp", len(ours.bytes), ours.pixels
        else:
            codec = classic.usable()[key]
            coded = classic.SizeSearch(codec, original).nearest(len(ours.bytes))
            name, size, decoded = codec.name, len(coded.bytes), coded.pixels
        quality = pictures.psnr(original, decoded)
        found.append(Panel(decoded, f"{name}, {size:,} bytes, {quality:.2f} dB"))
    return found


def joined(
    found: list[Panel], box: tuple[int, int, int, int], scale: int, columns: int
) -> Image.Image:
    """The part `box` (left, upper, right, lower) of all, by rows of so many."""
    width, height = scale * (box[2] - box[0]), scale * (box[3] - box[1])
    cell = width + MARGIN, height + TEXT + 2 * MARGIN
    rows = -(-len(found) // columns)
    sheet = Image.new("RGB", (columns * cell[0] - MARGIN, rows * cell[1]), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(TEXT - 2)
    for n, panel in enumerate(found):
        left, upper = n % columns * cell[0], n // columns * cell[1]
        part = pictures.to_image(panel.pixels).convert("RGB").crop(box)
        sheet.paste(part.resize((width, height), Image.Resampling.NEAREST), (left, upper))
        draw.text((left + MARGIN, upper + height + 1), panel.words, "black", font)
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("out", type=Path, help="JPEG, PNG or WebP")
    parser.add_argument("--codecs", default=DEFAULT, help="imgmlp, " + ", ".join(classic.CODECS))
    parser.add_argument("--bpp", type=float, default=0.3)
    parser.add_argument("--effort", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--box", type=int, nargs=4, help="left upper right lower; all without it")
    parser.add_argument("--scale", type=int, default=1, help="times as large")
    parser.add_argument("--columns", type=int, default=3)
    chosen = parser.parse_args()
    unknown = set(chosen.codecs.split(",")) - {"imgmlp", *classic.usable()}
    if unknown:
        parser.error(f"not to be had here: {', '.join(sorted(unknown))}")
    given = chosen.codecs.split(","), chosen.bpp, chosen.effort, chosen.device
    found = panels(chosen.picture, *given)
    height, width = found[0].pixels.shape[:2]
    box = tuple(chosen.box or (0, 0, width, height))
    sheet = joined(found, box, chosen.scale, chosen.columns)
    sheet.save(chosen.out, quality=90, subsampling=0)
    print("\n".join(panel.words for panel in found))


if __name__ == "__main__":
    main()
