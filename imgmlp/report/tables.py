"""The tables of a page. Each cell has a value by which scripts can sort its column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from imgmlp.report import summary
from imgmlp.report.measure import OURS, Measured, Result
from imgmlp.report.summary import Saving

NO_VALUE = "–"

Cell = tuple[str, float | str | None]  # HTML, and the value to sort by


def quality(result: Result) -> str:
    """A file's PSNR and, if the picture is large enough, its SSIM and MS-SSIM."""
    figures = result.quality
    parts = ["lossless" if summary.lossless(result) else f"{figures.psnr:.2f} dB"]
    if figures.ssim is not None:
        parts.append(f"SSIM {figures.ssim:.4f}")
    if figures.ms_ssim is not None:
        parts.append(f"MS-SSIM {figures.ms_ssim:.4f}")
    return " · ".join(parts)


def than(words: str) -> str:
    """The words that follow `6% more` or `as many`."""
    return "bytes as" if words.startswith("as") else "bytes than"


def seconds(value: float) -> str:
    if value < 0.0995:
        return f"{1000 * value:.2g} ms"
    return f"{value:.2f} s" if value < 9.995 else f"{value:,.0f} s"


def codecs(measured: Sequence[Measured], names: Mapping[str, str]) -> str:
    """The table of codecs: what imgmlp saves against each, and means over all files."""
    rows = []
    for key, name in names.items():
        encode, decode = summary.seconds(measured, key)
        ours = key == OURS
        savings = [
            ("", None) if ours else saved(summary.saving(measured, key, measure), len(measured))
            for measure in (summary.psnr, summary.ms_ssim_decibels)
        ]
        values = [
            number(summary.mean(measured, key, measure), form)
            for measure, form in (
                (summary.psnr, ".2f"),
                (summary.ssim, ".4f"),
                (summary.ms_ssim, ".4f"),
            )
        ]
        head: Cell = (f'<span class="key s-{key}"></span>{escape(name)}', name.lower())
        times = [(seconds(t), t) for t in (encode, decode)]
        rows.append(row([head, *savings, *values, *times], "ours" if ours else ""))
    columns = (
        "Codec",
        "imgmlp’s bytes, same PSNR",
        "imgmlp’s bytes, same MS-SSIM",
        "PSNR, dB",
        "SSIM",
        "MS-SSIM",
        "Encoding",
        "Decoding",
    )
    left_out = summary.without_lossless(measured)
    caption = (
        "Bytes are the mean of each picture’s BD-rate, with the range over pictures, of those "
        "in which both curves reach some quality in common; qualities are "
        f"means over all files, which have the same bytes{left_out}; times are medians."
    )
    return table(columns, rows, caption, "codecs")


def saved(saving: Saving | None, pictures: int) -> Cell:
    """A saving with a bar that extends to the left if imgmlp takes fewer bytes.

    If it cannot be computed for all pictures, the cell says for how many.
    """
    if saving is None:
        return NO_VALUE, None
    reach = min(abs(saving.mean), 1.0) * 50
    side = "right" if saving.mean < 0 else "left"
    bar = (
        f'<span class="bar" aria-hidden="true"><i style="{side}:50%;width:{reach:.1f}%"></i></span>'
    )
    spread = f"{signed(saving.least)} to {signed(saving.most)}" if saving.pictures > 1 else ""
    if saving.pictures < pictures:
        spread = f"of {saving.pictures} of {pictures} pictures{', ' if spread else ''}{spread}"
    words = f'<span class="share">{signed(saving.mean)}</span>{bar}<small>{spread}</small>'
    return words, saving.mean


def signed(fraction: float) -> str:
    percent = round(100 * fraction)
    return f"{percent:+}%".replace("-", "−") if percent else "0%"  # without a sign


def number(value: float | None, form: str) -> Cell:
    return (NO_VALUE, None) if value is None else (f"{value:{form}}", value)


def files(measured: Sequence[Measured], names: Sequence[str], codecs: Mapping[str, str]) -> str:
    """The table of files."""
    rows = []
    for one, name in zip(measured, names, strict=True):
        for result in one.results:
            rows.append(row(_file(name, codecs[result.codec], result)))
    columns = (
        "Picture",
        "Asked, bpp",
        "Codec",
        "Setting",
        "Bytes",
        "bpp",
        "PSNR, dB",
        "SSIM",
        "MS-SSIM",
        "Encoding",
        "Decoding",
    )
    caption = f"All {len(rows)} files. Others have the setting whose bytes are nearest to imgmlp’s."
    return (
        '<section aria-labelledby="numbers">\n<h2 id="numbers">The numbers</h2>\n'
        '<p class="filter" hidden><label>Show only rows with <input type="search" id="filter" '
        'placeholder="a picture, a codec"></label> <output id="count"></output></p>\n'
        + table(columns, rows, caption, "files")
        + "</section>\n"
    )


def _file(name: str, codec: str, result: Result) -> list[Cell]:
    quality = result.quality
    note = "" if result.note is None else f"<br><small>{escape(result.note)}</small>"
    lossless: Cell = ("lossless", 1e9)
    return [
        (escape(name), name.lower()),
        (f"{result.rate:g}", result.rate),
        (f'<span class="key s-{result.codec}"></span>{escape(codec)}', codec.lower()),
        (escape(result.setting) + note, result.setting),
        (f"{result.size:,}", result.size),
        (f"{result.bpp:.3f}", result.bpp),
        lossless if summary.lossless(result) else number(quality.psnr, ".2f"),
        number(quality.ssim, ".4f"),
        number(quality.ms_ssim, ".4f"),
        (seconds(result.encode_seconds), result.encode_seconds),
        (seconds(result.decode_seconds), result.decode_seconds),
    ]


def row(cells: Sequence[Cell], kind: str = "") -> str:
    (first, value), *others = cells
    inner = f'<th scope="row" data-v="{sorted_by(value)}">{first}</th>' + "".join(
        f'<td data-v="{sorted_by(value)}">{text}</td>' for text, value in others
    )
    return f'<tr class="{kind}">{inner}</tr>\n' if kind else f"<tr>{inner}</tr>\n"


def sorted_by(value: float | str | None) -> str:
    return "" if value is None else escape(str(value))


def table(columns: Sequence[str], rows: Sequence[str], caption: str, kind: str) -> str:
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    return (
        f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{escape(columns[0])}: '
        f'table">\n<table class="{kind}" aria-describedby="about-{kind}">\n'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{''.join(rows)}</tbody>\n</table>\n</div>\n"
        f'<p class="below" id="about-{kind}">{caption}</p>\n'
    )
