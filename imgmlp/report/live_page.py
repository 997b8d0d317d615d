"""The page of a live view: the state of a training, and its curves.

It reloads itself every few seconds, without scripts and from a plain file, until the training has
ended.
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

RELOAD_SECONDS = 3  # between two loads of the page
MAX_POINTS = 400  # of a curve; with more, every second one is dropped
BROWSER_EXTENSIONS = (".png", ".webp", ".jpg", ".jpeg", ".bmp")  # of pictures that browsers show
RIGHT_MARGIN = 52  # for the ticks of a second scale

Moment = tuple[int, float, float | None]  # steps, dB, bits per pixel


@dataclass
class Part:
    """One of the runs of a training, which may begin again."""

    steps: int  # of the whole run
    moments: list[Moment] = field(default_factory=list)
    keep_every: int = 1  # of the reports, one in so many becomes a moment
    reports: int = 0


class History:
    """The progress of a training, with enough points for its curves."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def add(self, progress: Progress) -> None:
        if not self.parts or progress.step <= self.parts[-1].moments[-1][0]:
            self.parts.append(Part(progress.steps))
        part = self.parts[-1]
        part.steps = progress.steps
        if part.reports % part.keep_every == 0:
            part.moments.append((progress.step, progress.psnr, progress.bpp))
        part.reports += 1
        if len(part.moments) > MAX_POINTS:
            part.moments[:] = part.moments[::2]
            part.keep_every *= 2


@dataclass(frozen=True)
class View:
    """The content of a page."""

    title: str
    picture: str  # the name of the preview beside the page
    size: tuple[int, int] | None  # width and height of the preview, once it exists
    history: History
    latest: Progress | None
    now: datetime
    seconds: float  # since the training began
    ended: str | None  # the message of a training that has ended


def render(view: View) -> str:
    reload = "" if view.ended else f'<meta http-equiv="refresh" content="{RELOAD_SECONDS}">\n'
    title = printable(view.title)
    state = "ended" if view.ended else "training"
    styles = asset("base.css") + asset("live.css")
    parts = [
        head(f"{title}: {state}", styles, reload),
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
        message = escape(printable(view.ended))
        return f'<p class="lede">{message}</p>\n<p class="meta">{clock}, {_took(view)}</p>\n'
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
    if not view.picture.lower().endswith(BROWSER_EXTENSIONS):
        note = f'The picture is in <a href="{link}">{escape(name)}</a>, which browsers do not show.'
        return f'<figure><p class="none">{note}</p></figure>\n'
    width, height = view.size
    fresh = f"{link}?{view.now.timestamp():.0f}"  # keeps browsers from using their cache
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
    """A chart of values over steps, with the curve of the present run emphasised."""
    curves = [
        [(float(m[0]), v) for m in part.moments if (v := value(m)) is not None]
        for part in history.parts
    ]
    values = [v for curve in curves for _, v in curve]
    x = Scale(0, max(part.steps for part in history.parts), LEFT, WIDTH - RIGHT_MARGIN)
    y = Scale(*chart.padded(values), HEIGHT - BOTTOM, TOP)
    ticks = chart.nice_ticks(y.low, y.high)
    steps = [t for t in chart.nice_ticks(0, x.high, 4) if t == round(t)]  # also of short runs
    below = Axis("steps", [(t, f"{t:,.0f}") for t in steps])
    parts = [chart.grid(x, y, below, Axis(name, [(t, f"{t:g}") for t in ticks]))]
    if second:
        parts.append(_losses(x, y, second))
    for number, curve in enumerate(curves):
        if curve:
            is_last = number == len(curves) - 1
            key = f"run{' now' if is_last else ''}"
            parts.append(_curve(Line(key, "", curve, strong=is_last), x, y))
    step, latest = next(curve[-1] for curve in reversed(curves) if curve)
    dot = chart.marked("circle", x.at(step), y.at(latest), 4)
    parts.append(f'<path class="mark now" d="{dot}"/>')
    description = f"{latest:.4g} after {step:,.0f} steps."
    return chart.figure(f"{name} over steps", description, parts)


def _curve(line: Line, x: Scale, y: Scale) -> str:
    path = "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in line.points)
    kind = f"line {line.key}" + (" strong" if line.strong else "")
    return f'<g class="{kind}"><path class="path" d="M{path}"/></g>'


def _losses(x: Scale, y: Scale, name: str) -> str:
    """Ticks with mean squared errors on the right, beside those in dB on the left."""
    parts = [chart.label(WIDTH - 2, 12, name, "end", "title")]
    for loss in _spaced([digit * 10.0**n for n in range(-9, 2) for digit in (1, 2, 5)], y):
        parts.append(chart.label(x.end + 8, y.at(decibels(loss)) + 4, f"{loss:g}", "start"))
    return "".join(parts)


def _spaced(losses: Sequence[float], y: Scale) -> list[float]:
    """The losses that lie within the chart, without those too near to the one before."""
    spaced: list[float] = []
    for loss in losses:
        at = y.at(decibels(loss))
        is_inside = y.end <= at <= y.begin
        if is_inside and (
            not spaced or abs(at - y.at(decibels(spaced[-1]))) >= chart.MIN_SPACING + 4
        ):
            spaced.append(loss)
    return spaced
