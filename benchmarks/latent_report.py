"""Tables and curves of the latent codec's points beside other codecs', as in docs/compression.md.

    python benchmarks/latent_report.py "effort 9=benchmarks/latent_points_effort9.csv" \
        --others points.csv --beside jpeg420 webp avif444 --plot curves.svg

Points are CSV files of latent_sweep.py and latent_limited.py; those of the others have columns
codec, image, bpp and psnr, as rate_distortion.py writes them. BD-rates are each picture's own, of
whole files and RGB PSNR on 8 bits, of the pictures that both have. Files are compared with others
of their PSNR as well, between two of these.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imgmlp.report.curves import Curve, bd_rate, monotone_cubic

SEEN = "kodim01,kodim05,kodim09,kodim13,kodim17,kodim21"  # by the starts' training

Array = np.ndarray[Any, Any]
Curves = Mapping[str, Curve]  # of each picture


def read_curves(path: Path) -> dict[str, dict[str, Curve]]:
    """Codecs' curves of each picture, of a CSV file; where it names no codec it is ""."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            key = row.get("codec") or "", row["image"].removesuffix(".png")
            points[key].append((float(row["bpp"]), float(row["psnr"])))
    found: dict[str, dict[str, Curve]] = defaultdict(dict)
    for (codec, image), pairs in points.items():
        rising = [
            p for n, p in enumerate(sorted(pairs)) if all(p[1] > q[1] for q in sorted(pairs)[:n])
        ]
        if len(rising) > 1:
            rates, quality = zip(*rising, strict=True)
            found[codec][image] = Curve(rates, quality)
    return found


def differences(own: Curves, other: Curves) -> dict[str, float]:
    """BD-rate of each picture that both have, %."""
    found = {
        image: bd_rate(own[image], other[image]) for image in sorted(own.keys() & other.keys())
    }
    return {image: 100 * share for image, share in found.items() if share is not None}


def single_files(own: Curves, other: Curves) -> list[list[float]]:
    """How many % more bytes each file has than the other codec needs for its PSNR, by pictures,
    the largest file first; nothing for those out of the other's reach."""
    found = []
    for image in sorted(own.keys() & other.keys()):
        curve, beside = own[image], other[image]
        at = np.array(curve.quality[::-1])
        needs = monotone_cubic(np.array(beside.quality), np.log(beside.bpp), at)
        within = (at >= beside.quality[0]) & (at <= beside.quality[-1])
        more = 100 * np.expm1(np.log(curve.bpp[::-1]) - needs)
        found.append([float(x) if ok else float("nan") for x, ok in zip(more, within, strict=True)])
    return found


def summary(ours: Mapping[str, Curves], others: Mapping[str, Curves]) -> str:
    """BD-rates beside each codec: mean over pictures, the best and the worst of them."""
    lines = [f"| against | {' | '.join(ours)} |", "|---" * (len(ours) + 1) + "|"]
    for name, other in others.items():
        by_image = [list(differences(own, other).values()) for own in ours.values()]
        cells = [
            f"{signed(np.mean(v))}% ({signed(min(v))} to {signed(max(v))})" if v else "–"
            for v in by_image
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_picture(ours: Mapping[str, Curves], other: Curves, seen: Sequence[str]) -> str:
    """Each picture's BD-rate, and means of those that starts were trained on and of the rest."""
    images = sorted(set().union(*ours.values()) & other.keys())
    lines = [
        f"| % | {' | '.join(images)} | seen by the start | others |",
        "|---" * (len(images) + 3) + "|",
    ]
    for name, own in ours.items():
        found = differences(own, other)
        kinds = [[v for i, v in found.items() if (i in seen) is known] for known in (True, False)]
        means = [signed(np.mean(kind)) if kind else "–" for kind in kinds]
        cells = [signed(found[image]) if image in found else "–" for image in images]
        lines.append(f"| {name} | {' | '.join([*cells, *means])} |")
    return "\n".join(lines)


def by_file(own: Curves, other: Curves) -> str:
    """What single files have more, mean and worst, the largest first."""
    files = np.array(single_files(own, other))
    pairs = zip(np.nanmean(files, axis=0), np.nanmax(files, axis=0), strict=True)
    return ", ".join(f"{signed(mean)} ({signed(worst)})" for mean, worst in pairs)


def signed(percent: float | np.floating[Any]) -> str:
    return f"{percent:+.1f}".replace("-", "−")


def plot(
    ours: Mapping[str, Curves], others: Mapping[str, Curves], against: str, path: Path
) -> None:
    """Curves of mean rate and PSNR, and each picture's BD-rate. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = path.name
    from matplotlib import pyplot

    figure, (curves, shares) = pyplot.subplots(1, 2, figsize=(10, 4.2))
    for codec, of in ours.items():
        curves.plot(*means(of), linewidth=2, label=codec)
    for codec, of in others.items():
        curves.plot(*means(of), "--", linewidth=1, label=codec)
    for codec, of in ours.items():
        found = differences(of, others[against])
        shares.plot(list(found), list(found.values()), "o", markersize=4, label=codec)
    curves.set(xscale="log", xlabel="bits per pixel", ylabel="PSNR, dB; means of all pictures")
    ticks = [0.1, 0.2, 0.4, 0.8, 1.6]
    curves.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    curves.minorticks_off()
    shares.axhline(0, color="gray", linewidth=0.8)
    shares.set_ylabel(f"BD-rate beside {against}, %")
    shares.tick_params(axis="x", rotation=90)
    for axes in (curves, shares):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="best" if axes is shares else "lower right")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def means(of: Curves) -> tuple[Array, Array]:
    """Mean rates and PSNRs of all pictures, from where each curve begins to where it ends."""
    share = np.linspace(0.0, 1.0, 41)
    rates, quality = [], []
    for curve in of.values():
        logs = np.log(curve.bpp)
        at = logs[0] + share * (logs[-1] - logs[0])
        rates.append(np.exp(at))
        quality.append(monotone_cubic(logs, np.array(curve.quality), at))
    return np.mean(rates, axis=0), np.mean(quality, axis=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("points", nargs="+", help="NAME=FILE.csv")
    parser.add_argument("--others", type=Path, nargs="+", required=True, help="as CSV")
    parser.add_argument("--beside", nargs="+", help="NAME or NAME=CODEC of those; without it all")
    parser.add_argument("--against", help="by pictures, of these; without it the last")
    parser.add_argument("--seen", default=SEEN, help="pictures that starts were trained on")
    parser.add_argument("--plot", type=Path, help="an SVG file")
    chosen = parser.parse_args()
    known = {name: of for path in chosen.others for name, of in read_curves(path).items()}
    named = [text.partition("=") for text in chosen.beside or known]
    others = {name: known[codec or name] for name, _, codec in named}
    against = chosen.against or list(others)[-1]
    split = [text.partition("=") for text in chosen.points]
    ours = {name: read_curves(Path(path))[""] for name, _, path in split}
    print(f"{summary(ours, others)}\n\nbeside {against}:\n")
    print(by_picture(ours, others[against], chosen.seen.split(",")))
    for name, own in ours.items():
        print(f"\nsingle files, {name}: {by_file(own, others[against])}")
    if chosen.plot:
        plot(ours, others, against, chosen.plot)


if __name__ == "__main__":
    main()
