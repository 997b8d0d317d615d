"""The page beside a live picture: where a training is, and how it came there.

It loads itself again every few seconds, without scripts and from a plain file, until it says that
the training ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from urllib.parse import quote

from imgmlp.codec.training.replay import decibels
from imgmlp.codec.training.run import Progress
from imgmlp.report import chart
from imgmlp.report.chart import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, Axis, Line, Scale
from imgmlp.report.document import asset, head
from imgmlp.text import duration, printable

AGAIN = 3  # seconds until the page is loaded again
MOST_POINTS = 400  # of a curve, above which every second one is left out
SHOWN = (".png", ".webp", ".jpg", ".jpeg", ".bmp")  # pictures that browsers show
SCALE_RIGHT = 52  # room for a second scale

Moment = tuple[int, float, float | None]  # steps, dB, bits per pixel


@dataclass
class Part:
    """One of the runs that a training may consist of."""

    steps: int  # of the whole run
    moments: list[Moment] = field(default_factory=list)
    every: int = 1  # of what was told, one in so many is kept
    told: int = 0


class History:
    """All that was told of a training, as far as it can be seen in a curve."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def add(self, progress: Progress) -> None:
        if not self.parts or progress.step <= self.parts[-1].moments[-1][0]:
            self.parts.append(Part(progress.steps))
        part = self.parts[-1]
        part.steps = progress.steps
        if part.told % part.every == 0:
            part.moments.append((progress.step, progress.psnr, progress.bpp))
        part.told += 1
        if len(part.moments) > MOST_POINTS:
            part.moments[:] = part.moments[::2]
            part.every *= 2


@dataclass(frozen=True)
class View:
    """What a page is to show."""

    title: str
    picture: str  # the file beside it
    size: tuple[int, int] | None  # width, height, once it is there
    history: History
    latest: Progress | None
    now: datetime
    seconds: float  # since it began
    ended: str | None  # how, if it did


def render(view: View) -> str:
    again = "" if view.ended else f'<meta http-equiv="refresh" content="{AGAIN}">\n'
    title = printable(view.title)
    state = "ended" if view.ended else "training"
    styles = asset("base.css") + asset("live.css")
    parts = [
        head(f"{title}: {state}", styles, again),
        f'<body class="{state}">\n<main>\n<header>\n',
        f'<p class="eyebrow">imgmlp, {state}</p>\n<h1>{escape(title)}</h1>\n',
        _state(view),
        "</header>\n",
        f'<div class="live">\n{_picture(view)}{_charts(view.history)}</div>\n</main>\n',
        "" if view.ended else f"<script>\n{asset('live.js')}</script>\n",
        "</body>\n</html>\n",
    ]
    return "".join(parts)


def _state(view: View) -> str:
    clock = f'<time datetime="{view.now.isoformat()}">{view.now:%H:%M:%S}</time>'
    if view.ended:
        told = escape(printable(view.ended))
        return f'<p class="lede">{told}</p>\n<p class="meta">{clock}, {_took(view)}</p>\n'
    if (now := view.latest) is None:
        return f'<p class="lede">Preparing</p>\n<p class="meta">{clock}</p>\n'
    figures = [f"{now.psnr:.2f} dB", f"loss {now.loss:.3g}"]
    if now.bpp is not None and now.cost is not None:
        figures += [f"{now.bpp:.3f} bits per pixel", f"D+λR {now.cost:.3g}"]
    rate = f"{now.steps_per_second:,.0f} steps/s"
    return (
        f'<p class="lede">{" · ".join(figures)}</p>\n'
        f'<progress max="{now.steps}" value="{now.step}"></progress>\n'
        f'<p class="meta">{now.step:,} of {now.steps:,} steps, {rate}, '
        f"{duration(now.seconds_left)} left · as of {clock}"
        '<span id="stale" hidden> · no news since: has it been stopped?</span></p>\n'
    )


def _took(view: View) -> str:
    return f"after {duration(view.seconds)}"


def _picture(view: View) -> str:
    name = printable(view.picture)
    if view.size is None:
        return '<figure><p class="none">The picture follows.</p></figure>\n'
    link = quote(view.picture.encode("utf-8", "surrogateescape"))
    if not view.picture.lower().endswith(SHOWN):
        told = f'The picture is in <a href="{link}">{escape(name)}</a>, which browsers do not show.'
        return f'<figure><p class="none">{told}</p></figure>\n'
    width, height = view.size
    fresh = f"{link}?{view.now.timestamp():.0f}"  # so that no browser shows the one before
    return (
        f'<figure><img src="{fresh}" width="{width}" height="{height}" '
        f'alt="What the network gives so far"><figcaption>{escape(name)}</figcaption></figure>\n'
    )


def _charts(history: History) -> str:
    if not any(len(part.moments) > 1 for part in history.parts):
        return ""
    drawn = [_chart("PSNR, dB", "loss", history, lambda moment: moment[1])]
    if any(moment[2] is not None for part in history.parts for moment in part.moments):
        drawn.append(_chart("bits per pixel", "", history, lambda moment: moment[2]))
    figures = "".join(f"<figure>{one}</figure>\n" for one in drawn)
    return f'<div class="charts">\n{figures}</div>\n'


def _chart(
    name: str, second: str, history: History, value: Callable[[Moment], float | None]
) -> str:
    """Values over steps; the curve of the present run stands out from those before it."""
    curves = [
        [(float(m[0]), v) for m in part.moments if (v := value(m)) is not None]
        for part in history.parts
    ]
    every = [v for curve in curves for _, v in curve]
    x = Scale(0, max(part.steps for part in history.parts), LEFT, WIDTH - SCALE_RIGHT)
    y = Scale(*chart.padded(every), HEIGHT - BOTTOM, TOP)
    ticks = chart.nice_ticks(y.low, y.high)
    steps = [t for t in chart.nice_ticks(0, x.high, 4) if t == round(t)]  # also of short runs
    below = Axis("steps", [(t, f"{t:,.0f}") for t in steps])
    parts = [chart.grid(x, y, below, Axis(name, [(t, f"{t:g}") for t in ticks]))]
    if second:
        parts.append(_losses(x, y, second))
    for number, curve in enumerate(curves):
        if curve:
            now = number == len(curves) - 1
            parts.append(_curve(Line(f"run{' now' if now else ''}", "", curve, strong=now), x, y))
    step, latest = next(curve[-1] for curve in reversed(curves) if curve)
    dot = chart.marked("circle", x.at(step), y.at(latest), 4)
    parts.append(f'<path class="mark now" d="{dot}"/>')
    told = f"{latest:.4g} after {step:,.0f} steps."
    return chart.figure(f"{name} over steps", told, parts)


def _curve(line: Line, x: Scale, y: Scale) -> str:
    path = "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in line.points)
    kind = f"line {line.key}" + (" strong" if line.strong else "")
    return f'<g class="{kind}"><path class="path" d="M{path}"/></g>'


def _losses(x: Scale, y: Scale, name: str) -> str:
    """The mean squared errors that the decibels are, along the other side."""
    parts = [chart.label(WIDTH - 2, 12, name, "end", "title")]
    for loss in _spaced([digit * 10.0**n for n in range(-9, 2) for digit in (1, 2, 5)], y):
        parts.append(chart.label(x.end + 8, y.at(decibels(loss)) + 4, f"{loss:g}", "start"))
    return "".join(parts)


def _spaced(losses: Sequence[float], y: Scale) -> list[float]:
    """Those that are on the chart, and not too near to each other."""
    spaced: list[float] = []
    for loss in losses:
        at = y.at(decibels(loss))
        inside = y.end <= at <= y.begin
        if inside and (not spaced or abs(at - y.at(decibels(spaced[-1]))) >= chart.SPACING + 4):
            spaced.append(loss)
    return spaced
