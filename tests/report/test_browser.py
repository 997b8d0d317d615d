"""The pages in a real browser: Chromium, if it is installed, without a window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright
from results import ABOUT, RATES, measured
from test_live import PIXELS, progress

from imgmlp.metadata import NOTHING
from imgmlp.report import page
from imgmlp.report.live import LiveView

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = next(filter(None, map(shutil.which, NAMES)), None)
        # Its sandbox needs rights that containers do not have.
        options = {"executable_path": found, "args": ["--no-sandbox"] if os.name == "posix" else []}
        try:
            started = playwright.chromium.launch(**options)
        except Error as error:
            if found is not None:
                raise
            pytest.skip(f"no Chromium here: {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page.render([measured("one.png"), measured("two.png", 9)], ABOUT), "utf-8")
    return path


@pytest.fixture
def shown(browser: Browser, report: Path) -> Iterator[Page]:
    """The report, which must not complain about anything, nor ask for anything else."""
    found = browser.new_page(viewport={"width": 1200, "height": 900})
    complaints, asked = [], []
    found.on("console", lambda message: complaints.append(message.text))
    found.on("pageerror", lambda error: complaints.append(str(error)))
    found.on("request", lambda request: asked.append(request.url))
    found.goto(report.as_uri())
    wait_for(found, "right", "0/1/imgmlp")
    yield found
    assert complaints == []
    assert all(url == report.as_uri() or url.startswith("data:") for url in asked)
    found.close()


def wait_for(shown: Page, side: str, key: str) -> None:
    """Until a side of the slider shows the picture with this key."""
    told = f"() => document.getElementById('stage').dataset.{side} === '{key}'"
    shown.wait_for_function(told)
    width = shown.evaluate(f"document.querySelector('.stage .{side} img').naturalWidth")
    assert width == 212


def variable(shown: Page, name: str) -> float:
    value = shown.evaluate(f"document.getElementById('stage').style.getPropertyValue('--{name}')")
    return float(value.removesuffix("px").removesuffix("%"))


def scale_of(shown: Page, side: str) -> str:
    return shown.evaluate(f"getComputedStyle(document.querySelector('.{side} img')).transform")


def test_the_slider_is_there_with_the_middle_rate(shown: Page) -> None:
    assert shown.locator("#look").is_visible()
    assert shown.locator("#rate input:checked").get_attribute("value") == str(len(RATES) // 2)
    assert shown.locator("#said-left").inner_text() == "Original"
    assert shown.locator("#said-right").inner_text().startswith("imgmlp ")


def test_the_border_follows_keys_slider_and_mouse(shown: Page) -> None:
    slide = shown.locator("#slide")
    slide.focus()
    for _ in range(20):
        slide.press("ArrowLeft")
    assert variable(shown, "at") == 40
    box = shown.locator("#stage").bounding_box()
    shown.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 50)
    shown.mouse.down()
    shown.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 50)
    shown.mouse.up()
    assert variable(shown, "at") == pytest.approx(75, abs=0.5)
    assert float(slide.input_value()) == pytest.approx(75, abs=0.5)
    stage = shown.locator("#stage")
    stage.focus()
    stage.press("ArrowRight")
    assert variable(shown, "at") == pytest.approx(77, abs=0.5)
    cut = "getComputedStyle(document.querySelector('.stage .left')).clipPath"
    assert "23" in shown.evaluate(cut)  # percent of it that are not shown


def test_every_picture_codec_and_rate_can_be_chosen(shown: Page) -> None:
    shown.select_option("#picture", "1")
    wait_for(shown, "left", "1/original")
    shown.locator("#rate label").nth(2).click()
    wait_for(shown, "right", "1/2/imgmlp")
    shown.select_option("#right", "webp")
    wait_for(shown, "right", "1/2/webp")
    assert shown.locator("#said-right").inner_text().startswith("WebP ")
    shown.select_option("#left", "jpeg420")
    wait_for(shown, "left", "1/2/jpeg420")
    shown.locator("#stage").press("]")
    wait_for(shown, "right", "1/2/avif")


def test_zoom_moves_both_sides(shown: Page) -> None:
    shown.locator("[data-zoom=in]").click()
    assert variable(shown, "z") == 1.5
    assert scale_of(shown, "left") == scale_of(shown, "right") != "none"
    stage = shown.locator("#stage")
    stage.focus()
    before = variable(shown, "x")
    stage.press("ArrowLeft")
    assert variable(shown, "x") == pytest.approx(before + 40)
    stage.press("+")
    assert variable(shown, "z") == 2.25
    box = stage.bounding_box()
    x = variable(shown, "x")
    shown.mouse.move(box["x"] + 60, box["y"] + 60)  # away from the border
    shown.mouse.down()
    shown.mouse.move(box["x"] + 30, box["y"] + 60)
    shown.mouse.up()
    assert variable(shown, "x") == pytest.approx(x - 30, abs=1)
    assert variable(shown, "at") == 50
    assert scale_of(shown, "left") == scale_of(shown, "right")
    stage.press("0")
    assert [variable(shown, name) for name in "xyz"] == [0, 0, 1]
    shown.locator("[data-zoom=one]").click()
    assert shown.locator("#zoom").inner_text().endswith("%")


def test_a_double_click_zooms_into_its_place(shown: Page) -> None:
    box = shown.locator("#stage").bounding_box()
    shown.locator("#stage").dblclick(position={"x": box["width"] / 4, "y": box["height"] / 4})
    zoom = variable(shown, "z")
    assert zoom >= 3
    assert variable(shown, "x") == pytest.approx(box["width"] / 4 * (1 - zoom), abs=1)


def column(shown: Page, number: int) -> list[str]:
    return shown.locator(f"table.files tbody tr :nth-child({number})").all_inner_texts()


def test_columns_are_sorted_by_their_buttons(shown: Page) -> None:
    button = shown.locator("table.files th button", has_text="Bytes")
    button.focus()
    button.press("Enter")
    sizes = [int(text.replace(",", "")) for text in column(shown, 5)]
    assert sizes == sorted(sizes)
    head = shown.locator("table.files thead th").nth(4)
    assert head.get_attribute("aria-sort") == "ascending"
    button.press("Space")
    assert head.get_attribute("aria-sort") == "descending"
    assert [int(t.replace(",", "")) for t in column(shown, 5)] == sorted(sizes, reverse=True)
    shown.locator("table.files th button", has_text="Codec").click()
    codecs = column(shown, 3)
    assert codecs == sorted(codecs, key=str.lower)
    assert head.get_attribute("aria-sort") is None


def test_rows_are_found_by_words(shown: Page) -> None:
    shown.fill("#filter", "two webp")
    visible = shown.locator("table.files tbody tr:visible")
    assert visible.count() == len(RATES)
    assert shown.locator("#count").inner_text() == f"3 of {2 * 4 * len(RATES)}"
    shown.fill("#filter", "")
    assert visible.count() == 2 * 4 * len(RATES)


def test_all_can_be_reached_by_the_tab_key(shown: Page) -> None:
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(60):
        shown.keyboard.press("Tab")
        reached.add(shown.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"picture", "left", "right", "stage", "slide", "filter", "BUTTON", "SUMMARY"} <= reached


@pytest.mark.parametrize("width", [400, 800, 1400])
def test_nothing_is_wider_than_the_window(browser: Browser, report: Path, width: int) -> None:
    shown = browser.new_page(viewport={"width": width, "height": 900})
    shown.goto(report.as_uri())
    for one in shown.locator("summary").all():
        one.click()
    assert shown.evaluate("document.documentElement.scrollWidth") == width
    shown.close()


def contrast(shown: Page, selector: str) -> float:
    """Of an element's text and the page, as WCAG 2 counts it."""
    script = """selector => {
      const rgb = c => c.match(/[0-9.]+/g).slice(0, 3).map(Number);
      const light = c => { const [r, g, b] = rgb(c).map(v => v / 255).map(
        v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const element = document.querySelector(selector), style = getComputedStyle(element);
      const ink = element.closest('svg') ? style.fill : style.color;
      const panel = element.closest('.charts figure, .scroll') || document.body;
      const a = light(ink), b = light(getComputedStyle(panel).backgroundColor);
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }"""
    return float(shown.evaluate(script, selector))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(browser: Browser, report: Path, scheme: str) -> None:
    shown = browser.new_page(color_scheme=scheme)
    shown.goto(report.as_uri())
    paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(paper.split("(")[1].split(",")[0]) < 100) == (scheme == "dark")
    names = [f".name.s-{key} text" for key in ("imgmlp", *ABOUT.others)]
    for selector in ("h1", ".meta", ".tick", ".axis", "thead th", "td", "td small", *names):
        assert contrast(shown, selector) >= 4.5, selector
    shown.close()


def test_without_scripts_all_is_there_but_the_slider(browser: Browser, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    shown = context.new_page()
    shown.goto(report.as_uri())
    assert shown.locator("#look").is_hidden()
    assert shown.locator("noscript .note").is_visible()
    assert shown.locator(".charts svg").first.is_visible()
    assert shown.locator("table.files tbody tr").count() == 2 * 4 * len(RATES)
    assert shown.locator("th button").count() == 0
    shown.locator("summary").first.click()
    first = shown.locator("details figure[data-key] img").first
    first.scroll_into_view_if_needed()
    assert first.is_visible()
    context.close()


def test_a_live_page_goes_on_by_itself_until_the_end(browser: Browser, tmp_path: Path) -> None:
    told: list[str] = []
    view = LiveView(tmp_path / "a b.png", "photo", NOTHING, told.append)
    context = browser.new_context(java_script_enabled=False)  # it needs none
    shown = context.new_page()
    with view:
        shown.goto((tmp_path / "a b.html").as_uri())
        assert "Preparing" in shown.locator("main").inner_text()
        view._next = 0.0
        view.update(progress(10))
        view._next = 0.0
        view.update(progress(20))
        shown.locator("text=20 of 1,000 steps").wait_for(timeout=20_000)
        image = shown.locator("figure img")
        assert image.evaluate("image => image.complete && image.naturalWidth") == 31
        view.end("Done: 1,000 steps", PIXELS)
        shown.locator("text=Done: 1,000 steps").wait_for(timeout=20_000)
    assert shown.locator("svg").count() == 1
    assert told == []
    context.close()
