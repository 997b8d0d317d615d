"""How many bytes for which quality: imgmlp beside JPEG, WebP and AVIF as Pillow writes them.

    python benchmarks/rate_distortion.py FOLDER --out results --effort 5

Every measured point is appended to results/points.csv at once, and a later call with the same
folder goes on where an earlier one stopped. results/summary.md and, with matplotlib, results/
curves.svg are made of all points that are there. Whole files count, RGB PSNR on 8 bits.

Curves go through the mean rate and the mean PSNR of each setting over all pictures. A setting of
JPEG spends more on some pictures than on others, a rate asked of imgmlp does not, so that the mean
of each picture's own BD-rate is given too. BD-rate is the mean difference of two curves' logarithms
of the rate, over the PSNR that both reach (Bjøntegaard 2001), with monotone cubic pieces (Fritsch
and Carlson 1980) between the points.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from PIL import Image

import imgmlp
from imgmlp import image as pictures

REFERENCE = "jpeg420"
# Pillow's format, its options, and the name and values of the option that is varied.
CLASSIC: dict[str, tuple[str, dict[str, object], tuple[int, ...]]] = {
    "jpeg420": ("JPEG", {"subsampling": 2, "optimize": True}, (5, 8, 12, 17, 25, 35, 50, 65, 75)),
    "webp": ("WEBP", {"method": 6}, (1, 5, 10, 20, 35, 50, 65, 75)),
    "avif": ("AVIF", {"speed": 6}, (10, 20, 30, 40, 50, 60, 70)),
}
RATES = (0.16, 0.24, 0.35, 0.5, 0.8)  # bits a pixel that imgmlp is asked for


@dataclass(frozen=True)
class Point:
    """One file of one picture."""

    codec: str
    image: str
    setting: str
    bpp: float
    psnr: float
    seconds: float = 0.0

    @property
    def key(self) -> tuple[str, str, str]:
        return self.codec, self.image, self.setting


@dataclass(frozen=True)
class Curve:
    """Mean points of a codec, ordered by rate."""

    bpp: tuple[float, ...]
    psnr: tuple[float, ...]


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
                float(row.get("seconds") or 0),
            )
            for row in csv.DictReader(stream)
        ]


class Store:
    """All points so far, on the disk as soon as they are known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points = {point.key: point for point in read_points(path)}

    def add(self, point: Point) -> None:
        self.points[point.key] = point
        fresh = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, [field.name for field in fields(Point)])
            if fresh:
                writer.writeheader()
            writer.writerow(asdict(point))


def classic_points(codec: str, image: Path, done: Store) -> Iterator[Point]:
    """What Pillow's encoder makes of a picture, at the settings that are not done yet."""
    form, options, qualities = CLASSIC[codec]
    original = pictures.load(image).pixels
    for quality in qualities:
        if (codec, image.stem, str(quality)) in done.points:
            continue
        stream = io.BytesIO()
        pictures.to_image(original).save(stream, form, quality=quality, **options)
        decoded = np.asarray(Image.open(stream).convert(pictures.to_image(original).mode))
        found = pictures.psnr(original, decoded.reshape(original.shape))
        bpp = 8 * stream.tell() / (original.shape[0] * original.shape[1])
        yield Point(codec, image.stem, str(quality), bpp, found)


def imgmlp_points(
    name: str, image: Path, done: Store, rates: Sequence[float], effort: int, device: str
) -> Iterator[Point]:
    """What imgmlp makes of a picture, at the rates that are not done yet."""
    for rate in rates:
        if (name, image.stem, f"{rate:g}") in done.points:
            continue
        found = imgmlp.encode(image, bpp=rate, effort=effort, device=device)
        facts = found.metrics
        yield Point(
            name, image.stem, f"{rate:g}", facts["bpp"], facts["psnr"], round(facts["seconds"], 2)
        )


def mean_curve(points: Sequence[Point], images: set[str]) -> Curve | None:
    """Through the settings that all these pictures have, if there are two at least."""
    by_setting: dict[str, dict[str, Point]] = defaultdict(dict)
    for point in points:
        if point.image in images:
            by_setting[point.setting][point.image] = point
    whole = [list(found.values()) for found in by_setting.values() if found.keys() == images]
    means = sorted(
        (float(np.mean([p.bpp for p in found])), float(np.mean([p.psnr for p in found])))
        for found in whole
    )
    rising = [means[n] for n in range(len(means)) if all(means[n][1] > m[1] for m in means[:n])]
    if len(rising) < 2:
        return None
    return Curve(tuple(m[0] for m in rising), tuple(m[1] for m in rising))


def bd_rate(curve: Curve, reference: Curve) -> float | None:
    """Mean difference of the rate at equal PSNR, as a share; None if no PSNR is common."""
    low = max(curve.psnr[0], reference.psnr[0])
    high = min(curve.psnr[-1], reference.psnr[-1])
    if high <= low:
        return None
    at = np.linspace(low, high, 1001)
    rates = [monotone_cubic(np.array(c.psnr), np.log(c.bpp), at) for c in (curve, reference)]
    difference = rates[0] - rates[1]
    mean = (difference[:-1] + difference[1:]).mean() / 2
    return math.expm1(float(mean))


def monotone_cubic(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Values at `at` of cubic pieces through points of rising x that never overshoot."""
    step, slope = np.diff(x), np.diff(y) / np.diff(x)
    tangent = np.empty_like(x)
    tangent[0], tangent[-1] = slope[0], slope[-1]
    for n in range(1, len(x) - 1):
        a, b = slope[n - 1], slope[n]
        w, v = 2 * step[n] + step[n - 1], step[n] + 2 * step[n - 1]
        tangent[n] = (w + v) / (w / a + v / b) if a * b > 0 else 0.0
    piece = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    t, h = (at - x[piece]) / step[piece], step[piece]
    return (
        (1 + 2 * t) * (1 - t) ** 2 * y[piece]
        + t * (1 - t) ** 2 * h * tangent[piece]
        + t * t * (3 - 2 * t) * y[piece + 1]
        + t * t * (t - 1) * h * tangent[piece + 1]
    )


def share_of(own: Sequence[Point], reference: Sequence[Point], images: set[str]) -> float | None:
    """BD-rate over some pictures, if both have curves there."""
    curves = mean_curve(own, images), mean_curve(reference, images)
    return None if curves[0] is None or curves[1] is None else bd_rate(curves[0], curves[1])


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
        share = share_of(own, beside, images)
        pairs = zip(curve.bpp, curve.psnr, strict=True)
        shown = ", ".join(f"{bpp:.3f} / {psnr:.2f}" for bpp, psnr in pairs)
        alone = [share_of(own, beside, {image}) for image in sorted(images)]
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
        curves.plot(curve.bpp, curve.psnr, marker="o", markersize=3, label=codec)
        found = [(image, share_of(own, beside, {image})) for image in images]
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
    parser.add_argument("--codecs", default="jpeg420,webp,avif,imgmlp")
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
            for point in found:
                store.add(point)
                print(f"{point.codec}  {point.image}  {point.bpp:.4f} bpp  {point.psnr:.2f} dB")
    others = [point for path in chosen.points for point in read_points(path)]
    points = [*store.points.values(), *others]
    (chosen.out / "summary.md").write_text(summary(points), encoding="utf-8")
    plot(points, chosen.out / "curves.svg")
    print(summary(points), end="")


if __name__ == "__main__":
    main()
