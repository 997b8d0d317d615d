"""The page of `imgmlp compare`: one self-contained HTML file that also works without scripts.

It holds every picture once. With scripts there are a slider, a zoom and sortable tables, which take
what they show from the page itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from pathlib import PurePath

from imgmlp.report import chart, copies, summary, tables
from imgmlp.report.chart import MARKERS, Line
from imgmlp.report.classic import Classic
from imgmlp.report.copies import MAX_PAGE_BYTES, Shown
from imgmlp.report.document import asset, filled, head
from imgmlp.report.measure import OURS, Measured, Result
from imgmlp.report.metrics import PACKAGE
from imgmlp.text import printable, size

# Nothing is loaded from elsewhere, so that nobody learns who opens the page.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
LOSSLESS = "All files are lossless."
CHARTS = (  # name, unit, measure, and the message if there are no points
    ("PSNR", "dB", summary.psnr, "At every size a file is lossless."),
    ("SSIM", "", summary.ssim, "No SSIM of pictures so small."),
    ("MS-SSIM", "", summary.ms_ssim, "No MS-SSIM of pictures so small."),
)


@dataclass(frozen=True)
class About:
    """How the results were made."""

    codec: str
    effort: int | None
    device: str
    others: Mapping[str, Classic]
    rates: Sequence[float]
    version: str  # of imgmlp
    made: datetime

    def names(self) -> dict[str, str]:
        """The names of all codecs by key, imgmlp first."""
        return {OURS: OURS} | {key: codec.name for key, codec in self.others.items()}

    def options(self) -> str:
        effort = "usual effort" if self.effort is None else f"effort {self.effort}"
        return f"codec {self.codec}, {effort}"


def render(measured: Sequence[Measured], about: About) -> str:
    """The whole page, with the best copies of pictures for which it has space."""
    copied = [r.shown for one in measured for r in one.results if len(r.shown.files) > 1]
    copied += [one.original for one in measured]
    last = len(copies.QUALITIES) - 1
    smallest = _page(measured, about, last)
    other_bytes = len(smallest.encode()) - sum(one.length(last) for one in copied)
    level = copies.best_level(copied, MAX_PAGE_BYTES - other_bytes)
    return smallest if level == last else _page(measured, about, level)


def _page(measured: Sequence[Measured], about: About, level: int) -> str:
    title = f"imgmlp beside {joined([c.name for c in about.others.values()])}"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
    names = short_names([one.name for one in measured])
    parts = [
        head(title, asset("base.css") + asset("report.css"), policy),
        '<body>\n<a class="skip" href="#numbers">To the numbers</a>\n',
        _header(measured, about),
        "<main>\n",
        _summary(measured, about),
        _look(measured, names, about),
        _curves(measured, about),
        tables.files(measured, names, about.names()),
        _pictures(measured, names, about, level),
        _method(measured, about, level),
        f"</main>\n<script>\n{asset('report.js')}</script>\n</body>\n</html>\n",
    ]
    return "".join(parts)


def joined(names: Sequence[str]) -> str:
    """Names as a list in a sentence."""
    *others, last = names or ["nothing"]
    return f"{', '.join(others)} and {last}" if others else last


def short_names(names: Sequence[str]) -> list[str]:
    """Names without folders and extensions, if they still differ."""
    stems = [PurePath(name).stem or name for name in names]
    chosen = stems if len(set(stems)) == len(stems) else names
    return [printable(name) for name in chosen]


def _header(measured: Sequence[Measured], about: About) -> str:
    count = "One picture" if len(measured) == 1 else f"{len(measured)} pictures"
    others = joined([escape(c.name) for c in about.others.values()])
    return (
        f'<header>\n<p class="eyebrow">imgmlp compare</p>\n'
        f"<h1>What a byte buys</h1>\n"
        f'<p class="lede">{count} by imgmlp at {len(about.rates)} sizes each, and by {others} '
        f"with the same number of bytes.</p>\n"
        f'<p class="meta">{escape(about.options())} · {escape(about.device)} · '
        f'<time datetime="{about.made.isoformat()}">{about.made:%Y-%m-%d %H:%M}</time></p>\n'
        "</header>\n"
    )


def _summary(measured: Sequence[Measured], about: About) -> str:
    findings, unknown = [], []
    for key, codec in about.others.items():
        saving = summary.saving(measured, key, summary.psnr)
        if saving is None or saving.pictures < len(measured):
            unknown.append(escape(codec.name))
            continue
        words = summary.in_words(saving.mean)
        findings.append(f"<strong>{words}</strong> {tables.than(words)} {escape(codec.name)}")
    sentence = f"For the same PSNR imgmlp takes {joined(findings)}. " if findings else ""
    if all(summary.lossless(r) for one in measured for r in one.results):
        sentence = LOSSLESS
    elif unknown:
        sentence += (
            f"Beside {joined(unknown)} that is not known of every picture, as not all curves reach "
            "the same PSNR."
        )
    return (
        '<section aria-labelledby="h-sum">\n<h2 id="h-sum">In short</h2>\n'
        f'<p class="finding">{sentence}</p>\n'
        + tables.codecs(measured, about.names())
        + "</section>\n"
    )


def lines(measured: Sequence[Measured], about: About, measure: summary.Measure) -> list[Line]:
    """The line of each codec that has points."""
    drawn = []
    for number, (key, name) in enumerate(about.names().items()):
        points = summary.means(measured, key, about.rates, measure)
        marker = MARKERS[number % len(MARKERS)]
        if points:
            drawn.append(Line(key, name, sorted(points), key == OURS, marker))
    return drawn


def charts(measured: Sequence[Measured], about: About, of: str) -> str:
    parts = []
    for name, unit, measure, message in CHARTS:
        drawn = chart.rate_chart(name, unit, of, lines(measured, about, measure), about.rates)
        parts.append(f"<figure>{drawn or f'<p class=none>{message}</p>'}</figure>\n")
    return f'<div class="charts">\n{"".join(parts)}</div>\n'


def _curves(measured: Sequence[Measured], about: About) -> str:
    several = len(measured) > 1
    of = "mean of all pictures" if several else "one picture"
    left_out = summary.without_lossless(measured) if several else ""
    return (
        '<section aria-labelledby="h-curves">\n<h2 id="h-curves">Rate and distortion</h2>\n'
        f"<p>Higher is better, and so is further to the left; {of}, whole files{left_out}.</p>\n"
        f"{charts(measured, about, of)}</section>\n"
    )


def _look(measured: Sequence[Measured], names: Sequence[str], about: About) -> str:
    """The slider, which is hidden without scripts."""
    pictures = "".join(
        f'<option value="{n}">{escape(name)}</option>' for n, name in enumerate(names)
    )
    rates = "".join(
        f'<label><input type="radio" name="rate" value="{n}"'
        f"{' checked' if n == len(about.rates) // 2 else ''}><span>{rate:g}</span></label>"
        for n, rate in enumerate(about.rates)
    )
    sides = [("original", "Original"), *about.names().items()]
    left, right = (
        "".join(
            f'<option value="{key}"{" selected" if key == chosen else ""}>{escape(name)}</option>'
            for key, name in sides
        )
        for chosen in ("original", OURS)
    )
    values = {"pictures": pictures, "rates": rates, "left": left, "right": right}
    return filled("look.html", values)


def _pictures(measured: Sequence[Measured], names: Sequence[str], about: About, level: int) -> str:
    every = "".join(
        _picture(number, one, name, about, level)
        for number, (one, name) in enumerate(zip(measured, names, strict=True))
    )
    return (
        '<section aria-labelledby="h-every">\n<h2 id="h-every">Every picture</h2>\n'
        "<p>Each with its own curves, and all of its files.</p>\n"
        f'<noscript><p class="note">Without scripts there is no slider; all that it would show '
        f"is here, and the tables are sorted by picture.</p></noscript>\n{every}</section>\n"
    )


def _picture(number: int, one: Measured, name: str, about: About, level: int) -> str:
    codecs, blocks = about.names(), []
    for step, rate in enumerate(about.rates):
        shown = [
            _file(f"{number}/{step}/{r.codec}", codecs[r.codec], name, one, r, level)
            for r in one.results
            if r.rate == rate
        ]
        blocks.append(
            f'<h4>{rate:g} bits per pixel</h4>\n<div class="shots">{"".join(shown)}</div>\n'
        )
    original = _shot(
        f"{number}/original", "Original", f"{name}, the original", one, one.original, level
    )
    size = f'data-width="{one.width}" data-height="{one.height}"'
    return (
        f'<details data-name="{escape(name)}" {size}>\n'
        f"<summary><b>{escape(name)}</b> <span>{one.width}×{one.height}</span></summary>\n"
        f"{charts([one], about, name)}"
        f'<div class="shots first">{original}</div>\n{"".join(blocks)}</details>\n'
    )


def _file(key: str, codec: str, name: str, one: Measured, result: Result, level: int) -> str:
    caption = f"{result.size:,} bytes · {result.bpp:.3f} bpp · {tables.quality(result)}"
    if result.note is not None:
        caption += f" · {result.note}"
    alt = f"{name} by {codec} at {result.rate:g} bits per pixel"
    return _shot(key, codec, alt, one, result.shown, level, caption)


def _shot(
    key: str, title: str, alt: str, one: Measured, shown: Shown, level: int, caption: str = ""
) -> str:
    details = f" <span>{escape(caption)}</span>" if caption else ""
    return (
        f'<figure data-key="{key}"><img loading="lazy" decoding="async" width="{one.width}" '
        f'height="{one.height}" alt="{escape(alt)}" src="{shown.url(level)}">'
        f"<figcaption><b>{escape(title)}</b>{details}</figcaption></figure>\n"
    )


def _method(measured: Sequence[Measured], about: About, level: int) -> str:
    every = [r for one in measured for r in one.results]
    copied = [r.shown.psnr[level] for r in every if r.shown.psnr]
    originals = [one.original.psnr[min(level, len(one.original.psnr) - 1)] for one in measured]
    others = "".join(
        f"<li><b>{escape(c.name)}</b>: {escape(c.how)}.</li>" for c in about.others.values()
    )
    copied_codecs = ", ".join(
        ["imgmlp's", *(f"{c.name}'s" for c in about.others.values() if c.media is None)]
    )
    values = {
        "others": others,
        "asked": escape(about.options()),
        "device": escape(about.device),
        "package": PACKAGE,
        "copies": escape(copied_codecs),
        "kind": "AVIF" if "avif" in measured[0].original.media else "WebP",
        "worst": _difference(min(copied)),
        "originals": _difference(min(originals)),
        "version": about.version,
        "bytes": size(sum(r.size for r in every)),
    }
    return filled("method.html", values)


def _difference(psnr: float) -> str:
    """The difference of copies from their pictures, as part of a sentence."""
    return "in nothing" if math.isinf(psnr) else f"by {psnr:.1f} dB or more"
