"""Line charts as SVG: axes with their units, and names at the ends of the lines.

The style sheet has the colours, by the class of each line. A chart should be shown at about its own
width, so that its text is as large as the text around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 84, 36, 44  # margins for ticks, names, the title, and ticks
MIN_SPACING = 15.0  # between two names
MARKERS = "circle", "square", "diamond", "triangle", "down", "cross"

Pair = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """A named line through points (x, y); a `strong` one is emphasised."""

    key: str
    name: str
    points: Sequence[Pair]
    strong: bool = False
    marker: str = ""


@dataclass(frozen=True)
class Scale:
    """Maps values to coordinates, linearly or logarithmically."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)


@dataclass(frozen=True)
class Axis:
    """The labels of one side: its name, and ticks with their text."""

    name: str
    ticks: Sequence[tuple[float, str]]


def nice_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """At most `most` round values in a range: multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / most
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def padded(values: Sequence[float], fraction: float = 0.06) -> Pair:
    """The range of values, extended by a fraction on both sides."""
    low, high = min(values), max(values)
    margin = (high - low) * fraction or abs(high) * fraction or 1.0
    return low - margin, high + margin


def spread(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Coordinates near the wanted ones, MIN_SPACING apart, and within bounds if they fit."""
    order = sorted(range(len(wanted)), key=lambda n: wanted[n])
    places = [min(max(wanted[n], low), high) for n in order]
    for n in range(1, len(places)):
        places[n] = max(places[n], places[n - 1] + MIN_SPACING)
    limit = high
    for n in reversed(range(len(places))):
        places[n] = min(places[n], limit)
        limit = places[n] - MIN_SPACING
    return [place for _, place in sorted(zip(order, places, strict=True))]


def rate_chart(name: str, unit: str, of: str, lines: Sequence[Line], rates: Sequence[float]) -> str:
    """A chart of quality over bits per pixel with ticks at `rates`; empty without any points."""
    every = [point for line in lines for point in line.points]
    if not every:
        return ""
    bpp = [x for x, _ in every] + list(rates)
    x = Scale(min(bpp) * 0.94, max(bpp) * 1.04, LEFT, WIDTH - RIGHT, log=True)
    y = Scale(*padded([value for _, value in every]), HEIGHT - BOTTOM, TOP)
    ticks = nice_ticks(y.low, y.high)
    digits = max(0, -math.floor(math.log10(ticks[1] - ticks[0]) + 1e-9)) if len(ticks) > 1 else 2
    below = Axis("bits per pixel, logarithmic", sparse([(r, f"{r:g}") for r in rates], x, 30))
    beside = Axis(f"{name}, {unit}" if unit else name, [(t, f"{t:.{digits}f}") for t in ticks])
    parts = [grid(x, y, below, beside)]
    parts += [
        drawn(line, x, y, unit or name) for line in sorted(lines, key=lambda line: line.strong)
    ]
    parts.append(names(lines, x, y))
    best = max(every, key=lambda point: point[1])
    description = f"{len(lines)} lines from {min(bpp):.2g} to {max(bpp):.2g} bits per pixel; "
    description += f"the highest value is {best[1]:.4g} {unit}".strip() + "."
    return figure(f"{name} over bits per pixel, {of}", description, parts)


def sparse(
    ticks: Sequence[tuple[float, str]], scale: Scale, min_distance: float
) -> list[tuple[float, str]]:
    """The ticks without those nearer than `min_distance` to the one before."""
    spaced: list[tuple[float, str]] = []
    for value, text in ticks:
        if not spaced or abs(scale.at(value) - scale.at(spaced[-1][0])) >= min_distance:
            spaced.append((value, text))
    return spaced


def figure(title: str, description: str, parts: Sequence[str]) -> str:
    inner = "".join(parts)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{inner}</svg>"
    )


def grid(x: Scale, y: Scale, below: Axis, beside: Axis) -> str:
    """Grid lines at the ticks of y, a base line with the ticks of x, and the names of both axes."""
    parts = []
    for value, text in beside.ticks:
        at = y.at(value)
        parts.append(f'<path class="grid" d="M{x.begin:.1f} {at:.1f}H{x.end:.1f}"/>')
        parts.append(label(x.begin - 8, at + 4, text, "end"))
    parts.append(f'<path class="base" d="M{x.begin:.1f} {y.begin:.1f}H{x.end:.1f}"/>')
    for value, text in below.ticks:
        at = x.at(value)
        parts.append(f'<path class="base" d="M{at:.1f} {y.begin:.1f}v4"/>')
        parts.append(label(at, y.begin + 17, text, "middle"))
    middle = (x.begin + x.end) / 2
    parts.append(label(middle, y.begin + 37, below.name, "middle", "axis"))
    parts.append(label(2, 12, beside.name, "start", "title"))
    return "".join(parts)


def label(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def drawn(line: Line, x: Scale, y: Scale, unit: str) -> str:
    """A line and its markers, whose titles have their values."""
    places = [(x.at(a), y.at(b)) for a, b in line.points]
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    kind = f"line s-{line.key}" + (" strong" if line.strong else "")
    parts = [f'<g class="{kind}"><path class="path" d="M{path}"/>']
    for (a, b), (bpp, value) in zip(places, line.points, strict=True):
        title = f"{line.name}: {value:.4g} {unit} at {bpp:.3f} bits per pixel"
        shape = marked(line.marker, a, b, 4.2 if line.strong else 3.4)
        parts.append(f'<path class="mark" d="{shape}"><title>{escape(title)}</title></path>')
    return "".join(parts) + "</g>"


def marked(kind: str, x: float, y: float, r: float) -> str:
    """The outline of a marker with radius r around a point, as an SVG path."""
    match kind:
        case "square":
            return f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z"
        case "diamond":
            r *= 1.35
            return f"M{x:.1f} {y - r:.1f}l{r:.1f} {r:.1f} {-r:.1f} {r:.1f} {-r:.1f} {-r:.1f}z"
        case "triangle":
            r *= 1.25
            return f"M{x:.1f} {y - r:.1f}L{x + r:.1f} {y + 0.8 * r:.1f}H{x - r:.1f}z"
        case "down":
            r *= 1.25
            return f"M{x:.1f} {y + r:.1f}L{x + r:.1f} {y - 0.8 * r:.1f}H{x - r:.1f}z"
        case "cross":
            r *= 1.3
            half = 0.35 * r  # of an arm's width
            steps = ((half, half), (half, r), (-half, r))
            corners = [*steps, *((-b, a) for a, b in steps)]  # of two arms, in turn
            corners += [(-a, -b) for a, b in corners]
            return "M" + "L".join(f"{x + a:.1f} {y + b:.1f}" for a, b in corners) + "z"
    return f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r:.1f} 0a{r} {r} 0 1 0 {-2 * r:.1f} 0z"


def names(lines: Sequence[Line], x: Scale, y: Scale) -> str:
    """The name of each line at its end, with a thin line to a name that had to move."""
    ended = [line for line in lines if line.points]
    last = [max(line.points) for line in ended]
    wanted = [y.at(value) for _, value in last]
    parts = []
    for line, (bpp, _), at, place in zip(
        ended, last, wanted, spread(wanted, y.end, y.begin - 4), strict=True
    ):
        end, begin = x.at(bpp) + 6, x.end + 10
        kind = f"name s-{line.key}" + (" strong" if line.strong else "")
        lead = f'<path class="lead" d="M{end:.1f} {at:.1f}L{begin - 3:.1f} {place:.1f}"/>'
        parts.append(f'<g class="{kind}">{lead if begin - end > 8 or abs(at - place) > 3 else ""}')
        parts.append(f'<text x="{begin:.1f}" y="{place + 4:.1f}">{escape(line.name)}</text></g>')
    return "".join(parts)
