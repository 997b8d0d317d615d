"""The page of a comparison: whole, self-contained, and readable without scripts."""

from __future__ import annotations

import base64
import io
import math
import re
from collections import Counter
from dataclasses import replace

import pytest
from html_document import Document
from PIL import Image
from results import ABOUT, RATES, SIDE, measured

from imgmlp.report import copies, page, summary
from imgmlp.report.document import asset
from imgmlp.report.measure import OURS, Measured
from imgmlp.report.tables import signed

CODECS = [OURS, *ABOUT.others]


@pytest.fixture(scope="module")
def two() -> list[Measured]:
    return [measured("folder/one.png"), measured("other/t<wo>&.png", 5, 0.8)]


@pytest.fixture(scope="module")
def text(two: list[Measured]) -> str:
    return page.render(two, ABOUT)


def test_page_loads_nothing_from_elsewhere(text: str) -> None:
    document = Document(text)
    for _, attributes in document.elements:
        for name in ("src", "href", "data", "action", "srcset", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/", "#")), value
    policies = [m for m in document.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policies[0]["content"].startswith("default-src 'none'; img-src data:;")
    assert not re.search(r"url\(|@import|https?://", text)


def test_page_has_each_file_once_with_the_bytes_of_the_codec(
    two: list[Measured], text: str
) -> None:
    document = Document(text)
    keys = [f["data-key"] for f in document.all("figure") if "data-key" in f]
    wanted = [f"{n}/original" for n in range(2)]
    wanted += [f"{n}/{step}/{codec}" for n in range(2) for step in range(3) for codec in CODECS]
    assert Counter(keys) == Counter(wanted)
    shown = dict(zip(keys, document.all("img")[2:], strict=True))  # the first two are the slider's
    for step in range(len(RATES)):
        result = next(r for r in two[1].results if (r.codec, r.rate) == ("webp", RATES[step]))
        head, _, data = shown[f"1/{step}/webp"]["src"].partition(",")
        assert head == "data:image/webp;base64"
        assert base64.b64decode(data) == result.shown.files[0]
    for image in shown.values():
        data = base64.b64decode(image["src"].partition(",")[2])
        with Image.open(io.BytesIO(data)) as opened:
            assert opened.size == (two[0].width, two[0].height)
        assert (image["loading"], image["decoding"]) == ("lazy", "async")
        assert image["alt"]


def test_tables_have_all_figures_and_values_to_sort_by(two: list[Measured], text: str) -> None:
    document = Document(text)
    assert len(document.all("tr")) == 1 + len(CODECS) + 1 + 2 * len(RATES) * len(CODECS)
    assert all("data-v" in cell for cell in document.all("td"))
    shown = document.text()
    for one in two:
        for result in one.results:
            assert f"{result.size:,}" in shown
            assert f"{result.quality.psnr:.2f}" in shown
            assert f"{result.quality.ms_ssim:.4f}" in shown


def test_names_and_notes_are_escaped(text: str) -> None:
    shown = Document(text).text()
    assert "t<wo>&" in shown
    assert "a device <of ours>" in shown
    assert "a <note>" in shown
    assert "one.png" not in shown  # the stems differ, so that no extension is needed


def test_short_names_keep_folders_of_pictures_with_equal_names() -> None:
    assert page.short_names(["a/x.png", "b/x.png"]) == ["a/x.png", "b/x.png"]
    assert page.short_names(["a/x.png", "b/\ny.png"]) == ["x", "\\ny"]


def test_page_hides_only_the_slider_without_scripts(text: str) -> None:
    document = Document(text)
    (look,) = [s for s in document.all("section") if s.get("id") == "look"]
    assert "hidden" in look
    assert len(document.all("noscript")) == 1
    assert len(document.all("svg")) == 3 * 3
    assert len(document.all("details")) == 2
    assert len([t for t in document.all("th") if t.get("scope") == "col"]) == 8 + 11
    script = text.partition("<script>")[2].partition("</script>")[0]
    assert '"use strict"' in script


def test_finding_is_the_mean_saving(two: list[Measured], text: str) -> None:
    saving = summary.saving(two, "jpeg420", summary.psnr)
    assert saving.least == pytest.approx(-0.2, abs=0.005)
    assert saving.most == pytest.approx(0, abs=0.005)
    assert "10% fewer" in Document(text).text()
    assert "−10%" in Document(text).text()


def test_page_says_that_a_saving_is_unknown_for_some_pictures(two: list[Measured]) -> None:
    results = [
        replace(r, quality=replace(r.quality, psnr=90 + r.quality.psnr / 100))
        if r.codec == "webp"
        else r
        for r in two[1].results
    ]  # WebP is far better than any other file, so that the curves have no common range
    shown = Document(page.render([two[0], replace(two[1], results=results)], ABOUT)).text()
    assert "of 1 of 2 pictures" in shown
    assert "Beside WebP that is not known of every picture" in shown
    assert "fewer bytes than JPEG" in " ".join(shown.split())


def test_page_uses_the_best_copies_that_fit_its_size_limit(
    two: list[Measured], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "AVIF" in Document(text).text()
    sizes = []
    for max_bytes in (copies.MAX_PAGE_BYTES, len(text.encode()) - 1, 0):
        monkeypatch.setattr(page, "MAX_PAGE_BYTES", max_bytes)
        sizes.append(len(page.render(two, ABOUT).encode()))
    assert sizes[0] == len(text.encode())
    assert sizes[0] > sizes[1] > sizes[2]
    worst = min(r.shown.psnr[-1] for one in two for r in one.results if r.shown.psnr)
    originals = min(one.original.psnr[-1] for one in two)
    sentence = (
        f"from what was decoded by {worst:.1f} dB or more, originals by {originals:.1f} dB or"
    )
    assert sentence in sentences(page.render(two, ABOUT))  # with the smallest copies


def sentences(text: str) -> str:
    return " ".join(Document(text).text().split())


def with_quality(one: Measured, *codecs: str, **quality: float | None) -> Measured:
    """The picture with other figures of quality for its files by these codecs."""
    results = [
        replace(r, quality=replace(r.quality, **quality)) if r.codec in codecs else r
        for r in one.results
    ]
    return replace(one, results=results)


def test_page_of_lossless_files_says_that_they_are_lossless(
    two: list[Measured],
) -> None:
    lossless = with_quality(two[0], *CODECS, psnr=math.inf)
    shown = sentences(page.render([lossless], ABOUT))
    assert shown.count("All files are lossless.") == 1
    assert shown.count("At every size a file is lossless.") == 2  # instead of charts
    assert "No PSNR" not in shown
    assert "not known" not in shown
    assert "PSNR without 3 of 3 sizes, at which a file is lossless" in shown
    assert "nan" not in shown
    assert two[0].height == SIDE


def test_page_says_that_pictures_are_too_small_for_ssim(two: list[Measured]) -> None:
    small = with_quality(two[0], *CODECS, ssim=None, ms_ssim=None)
    shown = sentences(page.render([small], ABOUT))
    assert shown.count("No SSIM of pictures so small.") == 2
    assert shown.count("No MS-SSIM of pictures so small.") == 2
    assert "nan" not in shown


def test_page_says_which_files_its_means_leave_out(two: list[Measured], text: str) -> None:
    assert "lossless" not in sentences(text)
    one = with_quality(two[0], "webp", psnr=math.inf)
    shown = sentences(page.render([one, two[1]], ABOUT))
    left_out = "PSNR without 3 of 6 sizes, at which a file is lossless"
    assert f"which have the same bytes, {left_out}; times" in shown
    assert f"mean of all pictures, whole files, {left_out}." in shown
    assert "All files" not in shown.replace("All files together", "")
    assert "Beside WebP that is not known of every picture" in shown


def test_page_says_that_lossless_copies_differ_in_nothing(two: list[Measured]) -> None:
    """Copies of a flat picture are lossless, for instance."""
    shown = replace(two[0].original, psnr=tuple(math.inf for _ in two[0].original.psnr))
    results = [
        replace(r, shown=replace(r.shown, psnr=tuple(math.inf for _ in r.shown.psnr)))
        for r in two[0].results
    ]
    shown_text = sentences(page.render([replace(two[0], original=shown, results=results)], ABOUT))
    assert "they differ from what was decoded in nothing, originals in nothing." in shown_text
    assert "inf " not in shown_text


@pytest.mark.parametrize("element", ["summary", ".shots figcaption"])
def test_style_sheet_lets_long_names_wrap(element: str) -> None:
    """A name may be a single word that is wider than the page."""
    rules = re.findall(r"^(.+?) \{ (.*?)\}", asset("report.css"), re.MULTILINE)
    assert any(name == element and "overflow-wrap: anywhere" in rule for name, rule in rules)


def test_percentage_that_rounds_to_zero_has_no_sign() -> None:
    fractions = (-0.224, -0.004, 0.0, 0.004, 0.06)
    assert [signed(fraction) for fraction in fractions] == ["−22%", "0%", "0%", "0%", "+6%"]
