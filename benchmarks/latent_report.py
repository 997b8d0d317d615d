"""Tables and curves of the latent codec and other codecs, as in docs/compression.md.

    python benchmarks/latent_report.py "effort 9=benchmarks/latent_points_effort9.csv" \
        --others points.csv --beside jpeg420 webp avif444 --plot curves.svg

Points are CSV files of latent_sweep.py and latent_limited.py. Those of other codecs have the
columns codec, image, bpp and psnr, as rate_distortion.py writes them. BD-rates are computed for
each picture that both codecs have, from whole files and the PSNR of 8-bit RGB. Each file is also
compared with the other codec's bytes at the same PSNR, interpolated between two of its files.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imgmlp.report.curves import Curve, bd_rate, monotone_cubic, rising

SEEN = "kodim01,kodim05,kodim09,kodim13,kodim17,kodim21"  # by the starts' training

Array = np.ndarray[Any, Any]
Curves = Mapping[str, Curve]  # of each picture
Row = Mapping[str, str]  # of a CSV file


def read(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def curves_of(rows: Iterable[Row]) -> dict[str, dict[str, Curve]]:
    """Codecs' curves of each picture; where a file names no codec it is ""."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        points[row.get("codec") or "", image_of(row)].append(
            (float(row["bpp"]), float(row["psnr"]))
        )
    found: dict[str, dict[str, Curve]] = defaultdict(dict)
    for (codec, image), pairs in points.items():
        curve = rising(sorted(pairs))
        if curve is not None:
            found[codec][image] = curve
    return found


def image_of(row: Row) -> str:
    return row["image"].removesuffix(".png")


def differences(own: Curves, other: Curves) -> dict[str, float]:
    """BD-rate of each picture that both have, %."""
    found = {
        image: bd_rate(own[image], other[image]) for image in sorted(own.keys() & other.keys())
    }
    return {image: 100 * share for image, share in found.items() if share is not None}


def single_files(rows: Iterable[Row], other: Curves) -> dict[str, list[float]]:
    """How many % more bytes files have than the other codec needs for their PSNR, by λ; nothing of
    those out of its reach."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        beside = other.get(image_of(row))
        at = float(row["psnr"])
        if beside is not None and beside.quality[0] <= at <= beside.quality[-1]:
            needs = monotone_cubic(np.array(beside.quality), np.log(beside.bpp), np.array([at]))
            found[row["lambda"]].append(100 * float(np.expm1(np.log(float(row["bpp"])) - needs[0])))
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


def by_file(ours: Mapping[str, Sequence[Row]], other: Curves) -> str:
    """What single files have more, mean and worst, by λ."""
    found = {name: single_files(rows, other) for name, rows in ours.items()}
    lmbdas = sorted(set().union(*found.values()), key=float)
    lines = [f"| % | {' | '.join(lmbdas)} |", "|---" * (len(lmbdas) + 1) + "|"]
    for name, files in found.items():
        cells = [
            f"{signed(np.mean(files[lmbda]))} ({signed(max(files[lmbda]))})"
            if lmbda in files
            else "–"
            for lmbda in lmbdas
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


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
    count = len(others[against])
    curves.set(xscale="log", xlabel="bits per pixel", ylabel=f"PSNR, dB; means of {count} pictures")
    ticks = [0.1, 0.2, 0.4, 0.8, 1.6]
    curves.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    curves.minorticks_off()
    shares.axhline(0, color="gray", linewidth=0.8)
    shares.set_ylabel(f"BD-rate beside {against}, %")
    shares.tick_params(axis="x", rotation=90)
    for axes in (curves, shares):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, loc="upper left" if axes is curves else "lower left")
    shares.set_ylim(bottom=shares.get_ylim()[0] - 7)  # where its legend is
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def common(*groups: Mapping[str, Curves]) -> list[dict[str, Curves]]:
    """The same of the pictures that all codecs have."""
    images = set.intersection(*(set(of) for group in groups for of in group.values()))
    return [
        {name: {image: of[image] for image in sorted(images)} for name, of in group.items()}
        for group in groups
    ]


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
    known = curves_of(row for path in chosen.others for row in read(path))
    named = [text.partition("=") for text in chosen.beside or known]
    missing = [codec or name for name, _, codec in named if (codec or name) not in known]
    if missing:
        parser.error(f"no points of {', '.join(missing)}; there are: {', '.join(known)}")
    others = {name: known[codec or name] for name, _, codec in named}
    against = chosen.against or list(others)[-1]
    if against not in others:
        parser.error(f"--against {against}: not among {', '.join(others)}")
    rows = {name: read(Path(path)) for name, _, path in (t.partition("=") for t in chosen.points)}
    ours = {name: curves_of(of)[""] for name, of in rows.items()}
    print(f"{summary(ours, others)}\n\nbeside {against}:\n")
    print(by_picture(ours, others[against], chosen.seen.split(",")))
    print(f"\nsingle files:\n\n{by_file(rows, others[against])}")
    if chosen.plot:
        drawn, beside = common(ours, others)
        plot(drawn, beside, against, chosen.plot)


if __name__ == "__main__":
    main()
