"""Rate-distortion measurements of imgmlp, and of JPEG, WebP and AVIF as Pillow writes them.

    python benchmarks/rate_distortion.py FOLDER --out results --effort 5

Every measured point is appended to results/points.csv immediately; a later call with the same
folder resumes the measurement. results/summary.md and, with matplotlib, results/curves.svg show all
points so far. Sizes are those of whole files, PSNR is that of 8-bit RGB.

Curves go through the mean rate and the mean PSNR of each setting over all pictures. A setting of
JPEG spends more on some pictures than on others, while imgmlp is given equal rates, so the mean of
the pictures' own BD-rates is given too. imgmlp/report/curves.py defines the BD-rate,
imgmlp/report/classic.py the settings of the other codecs.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import imgmlp
from imgmlp import image as pictures
from imgmlp.report import classic
from imgmlp.report.curves import Point, mean_bd_rate, mean_curve
from imgmlp.report.measure import RATES

REFERENCE = "jpeg420"
DEFAULT = "jpeg420,webp,avif,imgmlp"
COLUMNS = ("codec", "image", "setting", "bpp", "psnr", "seconds")

Key = tuple[str, str, str]  # codec, image, setting


def read_points(path: Path) -> list[Point]:
    """Points of a CSV file with columns codec, image, param or setting, bpp, psnr."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return [
            Point(
                row["codec"],
                row["image"],
                row.get("setting") or row["param"],
                float(row["bpp"]),
                float(row["psnr"]),
            )
            for row in csv.DictReader(stream)
        ]


class Store:
    """All points so far, on the disk as soon as they are known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points: dict[Key, Point] = {
            (p.codec, p.image, p.setting): p for p in read_points(path)
        }

    def add(self, point: Point, seconds: float) -> None:
        """A point, and how long its file took to make."""
        key = point.codec, point.image, point.setting
        self.points[key] = point
        fresh = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            if fresh:
                writer.writerow(COLUMNS)
            writer.writerow([*key, point.bpp, point.quality, round(seconds, 2)])


Timed = tuple[Point, float]


def classic_points(key: str, image: Path, done: Store) -> Iterator[Timed]:
    """What another codec makes of a picture, at the settings that are not done yet."""
    codec = classic.usable()[key]
    original = pictures.load(image).pixels
    for quality in codec.sweep:
        if (key, image.stem, str(quality)) in done.points:
            continue
        made = classic.encode(codec, original, quality)
        bpp = 8 * len(made.bytes) / (original.shape[0] * original.shape[1])
        found = pictures.psnr(original, made.pixels)
        yield Point(key, image.stem, str(quality), bpp, found), made.encode_seconds


def imgmlp_points(
    name: str, image: Path, done: Store, rates: Sequence[float], effort: int, device: str
) -> Iterator[Timed]:
    """What imgmlp makes of a picture, at the rates that are not done yet."""
    for rate in rates:
        if (name, image.stem, f"{rate:g}") in done.points:
            continue
        facts = imgmlp.encode(image, bpp=rate, effort=effort, device=device).metrics
        point = Point(name, image.stem, f"{rate:g}", facts["bpp"], facts["psnr"])
        yield point, facts["seconds"]


def summary(points: Sequence[Point]) -> str:
    """A table of all codecs over the pictures that each has, as Markdown."""
    lines = [
        "| codec | pictures | mean of each setting: bpp / dB | BD-rate against JPEG 4:2:0 "
        "| of each picture, mean |",
        "|---|---|---|---|---|",
    ]
    for codec in dict.fromkeys(point.codec for point in points):
        own = [point for point in points if point.codec == codec]
        images = {point.image for point in own}
        curve = mean_curve(own, images)
        if curve is None:
            continue
        beside = [point for point in points if point.codec == REFERENCE]
        share = mean_bd_rate(own, beside, images)
        pairs = zip(curve.bpp, curve.quality, strict=True)
        shown = ", ".join(f"{bpp:.3f} / {psnr:.2f}" for bpp, psnr in pairs)
        alone = [mean_bd_rate(own, beside, {image}) for image in sorted(images)]
        each = None if None in alone else float(np.mean([s for s in alone if s is not None]))
        told = " | ".join("–" if s is None else f"{s:+.1%}" for s in (share, each))
        lines.append(f"| {codec} | {len(images)} | {shown} | {told} |")
    return "\n".join(lines) + "\n"


def plot(points: Sequence[Point], path: Path) -> None:
    """Curves of all codecs, and each picture's BD-rate; nothing without matplotlib (`plot`)."""
    try:
        import matplotlib as mpl
    except ImportError:
        print(f"no {path.name}: install the extra `plot`")
        return
    mpl.use("svg")
    from matplotlib import pyplot

    figure, (curves, shares) = pyplot.subplots(1, 2, figsize=(10, 4.2))
    beside = [point for point in points if point.codec == REFERENCE]
    for codec in dict.fromkeys(point.codec for point in points):
        own = [point for point in points if point.codec == codec]
        images = sorted({point.image for point in own})
        curve = mean_curve(own, set(images))
        if curve is None:
            continue
        curves.plot(curve.bpp, curve.quality, marker="o", markersize=3, label=codec)
        found = [(image, mean_bd_rate(own, beside, {image})) for image in images]
        known = [(image, 100 * share) for image, share in found if share is not None]
        shares.plot(*zip(*known, strict=True), "o", markersize=4)
    curves.set(xscale="log", xlabel="bits per pixel", ylabel="PSNR, dB; mean of all pictures")
    shares.set_ylabel(f"BD-rate against {REFERENCE}, %")
    shares.tick_params(axis="x", rotation=90)
    for axes in (curves, shares):
        axes.grid(alpha=0.3)
    curves.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="of pictures: *.png")
    parser.add_argument("--out", type=Path, default=Path("rate-distortion"))
    parser.add_argument("--codecs", default=DEFAULT, help="of imgmlp, " + ", ".join(classic.CODECS))
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="of imgmlp, bpp")
    parser.add_argument("--effort", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--points", type=Path, action="append", default=[], help="more, as CSV")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    store = Store(chosen.out / "points.csv")
    rates = [float(rate) for rate in chosen.rates.split(",")]
    name = f"imgmlp effort {chosen.effort}"
    for image in sorted(chosen.folder.glob("*.png")):
        for codec in chosen.codecs.split(","):
            if codec == "imgmlp":
                found = imgmlp_points(name, image, store, rates, chosen.effort, chosen.device)
            else:
                found = classic_points(codec, image, store)
            for point, seconds in found:
                store.add(point, seconds)
                print(f"{point.codec}  {point.image}  {point.bpp:.4f} bpp  {point.quality:.2f} dB")
    others = [point for path in chosen.points for point in read_points(path)]
    points = [*store.points.values(), *others]
    (chosen.out / "summary.md").write_text(summary(points), encoding="utf-8")
    plot(points, chosen.out / "curves.svg")
    print(summary(points), end="")


if __name__ == "__main__":
    main()
