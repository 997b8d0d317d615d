"""The live view of a training: its preview and page, and errors that do not end training."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import small_pixels
from html_document import Document
from PIL import Image

from imgmlp.codec.training.run import Progress
from imgmlp.errors import Interrupted, OutOfMemoryError, OutputError, UsageError
from imgmlp.image import from_array
from imgmlp.metadata import NOTHING
from imgmlp.report import chart, live, live_page
from imgmlp.report.chart import Axis
from imgmlp.report.live import LiveView
from imgmlp.report.live_page import MAX_POINTS, History, Part

PIXELS = small_pixels()


def progress(
    step: int, loss: float = 0.01, pixels: np.ndarray = PIXELS, **others: float
) -> Progress:
    first, last = (0, 0.0), (step, step / 100)
    default = Progress.between(first, last, 1000, loss, lambda: pixels)
    return Progress(**{**vars(default), **others})


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def view(tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch) -> LiveView:
    """A view that writes its files at every update."""
    monkeypatch.setattr(live, "MIN_INTERVAL", 0.0)
    monkeypatch.setattr(live, "MIN_INTERVAL_FACTOR", 0.0)
    return LiveView(tmp_path / "a b#.png", "photo <1>.png", NOTHING, notes.append)


def page_of(view: LiveView) -> str:
    (path,) = live.files_of(view._picture)[1:]
    return path.read_text("utf-8")


def test_page_shows_the_progress_of_training(view: LiveView, tmp_path: Path) -> None:
    with view:
        assert "Preparing" in Document(page_of(view)).text()
        assert "The picture follows" in page_of(view)
        for step in (100, 200, 300):
            view.update(progress(step, 1 / step))
        document = Document(page_of(view))
        shown = " ".join(document.text().split())
        assert "photo <1>.png" in shown
        assert "24.77 dB · loss 0.00333" in shown
        assert "300 of 1,000 steps, 100 steps/s, 7.0 s left" in shown
        assert {"PSNR, dB", "loss", "steps", "0.005"} <= {text for _, text in document.texts}
        (image,) = document.all("img")
        assert image["src"].startswith("a%20b%23.png?")
        assert (image["width"], image["height"]) == ("31", "24")
        (bar,) = document.all("progress")
        assert (bar["max"], bar["value"]) == ("1000", "300")
    with Image.open(tmp_path / "a b#.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), PIXELS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a b#.html", "a b#.png"]


def test_page_reloads_itself_until_training_ends(view: LiveView, tmp_path: Path) -> None:
    with view:
        view.update(progress(10))
        refreshing = [m for m in Document(page_of(view)).all("meta") if "http-equiv" in m]
        assert refreshing == [{"http-equiv": "refresh", "content": "3"}]
        view.end("Done: 1,000 steps", np.zeros_like(PIXELS))
    document = Document(page_of(view))
    assert not [m for m in document.all("meta") if "http-equiv" in m]
    assert not document.all("script")
    assert "Done: 1,000 steps" in document.text()
    with Image.open(tmp_path / "a b#.png") as picture:
        assert not np.asarray(picture).any()


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (Interrupted("stopped after 10 of 20 steps"), "Ended early: stopped after 10 of 20 steps"),
        (KeyboardInterrupt(), "Ended early: interrupted"),
    ],
)
def test_page_shows_why_training_ended_early(
    view: LiveView, error: BaseException, shown: str
) -> None:
    def train() -> None:
        with view:
            view.update(progress(10))
            raise error

    with pytest.raises(type(error)):
        train()
    assert shown in Document(page_of(view)).text()
    assert "refresh" not in page_of(view)


def test_estimated_bits_per_pixel_have_a_second_chart(view: LiveView) -> None:
    with view:
        for step in (10, 20):
            view.update(progress(step, bpp=0.5, cost=0.02))
        shown = Document(page_of(view))
    assert "0.500 bits per pixel · D+λR 0.02" in shown.text()
    assert len(shown.all("svg")) == 2


@pytest.mark.parametrize(
    ("steps", "ticks"),
    [(1, ["0", "1"]), (2, ["0", "1", "2"]), (3, ["0", "1", "2", "3"]), (10, ["0", "5", "10"])],
)
def test_ticks_of_short_runs_are_whole_steps(
    steps: int, ticks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Axis] = []
    monkeypatch.setattr(chart, "grid", lambda x, y, below, beside: shown.append(below) or "")
    part = Part(steps, [(0, 20.0, None), (steps, 30.0, None)])
    history = History()
    history.parts.append(part)
    assert live_page._charts(history)
    (axis,) = shown
    assert [text for _, text in axis.ticks] == ticks


@pytest.mark.parametrize("error", [OutputError("disk full"), OutOfMemoryError("no room")])
def test_failing_preview_is_noted_once_and_training_goes_on(
    view: LiveView, notes: list[str], error: Exception
) -> None:
    attempts = []

    def decode() -> np.ndarray:
        attempts.append(1)
        raise error

    with view:
        for step in (10, 20, 30):
            view.update(Progress.between((0, 0.0), (step, 1.0), 100, 0.1, decode))
    assert len(attempts) == 1
    assert notes == [f"no more previews: {error}"]
    assert "Ended" in page_of(view)


def test_missing_folder_is_noted_once(tmp_path: Path, notes: list[str]) -> None:
    with LiveView(tmp_path / "gone" / "a.png", "a", NOTHING, notes.append) as view:
        view.update(progress(10))
    assert len(notes) == 1
    assert "gone" in notes[0]


def test_previews_take_at_most_a_tenth_of_the_time(
    tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    preview_times = []

    def decode() -> np.ndarray:
        clock[0] += 2.0  # seconds that the preview takes
        preview_times.append(clock[0])
        return PIXELS

    with LiveView(tmp_path / "a.png", "a", NOTHING, notes.append) as view:
        for step in range(1, 101):
            clock[0] += 0.5
            view.update(Progress.between((0, 0.0), (step, 1.0), 100, 0.1, decode))
    assert preview_times == [105.0, 127.0, 149.0]


def test_view_without_a_path_writes_and_notes_nothing(notes: list[str]) -> None:
    received = []
    with LiveView(None, "a", NOTHING, notes.append) as view:
        view.after(received.append)(progress(10))
        view.end("Done", PIXELS)
    assert len(received) == 1
    assert notes == []


def test_live_view_in_a_pipe_has_no_page(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert live.files_of(tmp_path / "pipe") == [tmp_path / "pipe"]


def test_history_keeps_a_limited_number_of_evenly_spaced_points() -> None:
    history = History()
    for step in range(1, 5001):
        history.add(progress(step))
    (part,) = history.parts
    assert MAX_POINTS / 2 < len(part.moments) <= MAX_POINTS
    steps = [step for step, *_ in part.moments]
    assert len(set(np.diff(steps))) == 1
    history.add(progress(3))
    assert [part.moments[0][0] for part in history.parts] == [1, 3]


def test_page_links_a_preview_that_browsers_do_not_show(tmp_path: Path, notes: list[str]) -> None:
    with LiveView(tmp_path / "a.tif", "a", NOTHING, notes.append) as view:
        view.end("Done", PIXELS)
    document = Document(page_of(view))
    assert document.all("img") == []
    assert [a["href"] for a in document.all("a")] == ["a.tif"]


def test_check_refuses_files_of_others_and_unsuitable_extensions(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("somebody's")
    with pytest.raises(OutputError, match=r"a\.html exists already"):
        live.Live(tmp_path / "a.png").check()
    live.Live(tmp_path / "a.png", force=True).check()
    with pytest.raises(OutputError, match=r"a\.html exists already"):
        live.Live(tmp_path / "a.png").check(run="key")
    with pytest.raises(UsageError, match="extension"):
        live.Live(tmp_path / "a.txt").check()
    alpha = from_array(np.zeros((4, 4, 4), np.uint8), alpha=True)
    with pytest.raises(UsageError, match="transparency"):
        live.Live(tmp_path / "b.jpg").check(of=alpha)


def test_left_by_finds_the_files_of_a_run_until_they_are_changed(
    tmp_path: Path, notes: list[str]
) -> None:
    picture, page = tmp_path / "a.png", tmp_path / "a.html"
    assert live.left_by(picture, "key") == []
    with LiveView(picture, "a", NOTHING, notes.append, "key") as view:
        assert live.left_by(picture, "key") == [page]
        view.end("Done", PIXELS)
    assert live.left_by(picture, "key") == [page, picture]
    assert live.left_by(picture, "other") == []
    live.Live(picture).check(run="key")
    with LiveView(picture, "a", NOTHING, notes.append, "key"):  # the run is resumed, and killed
        assert live.left_by(picture, "key") == [page, picture]
    picture.write_bytes(b"mine")
    assert live.left_by(picture, "key") == [page]
    with pytest.raises(OutputError, match=r"a\.png exists already"):
        live.Live(picture).check(run="key")
    page.write_text(page.read_text("utf-8").replace("Ended", "My best"), "utf-8")
    assert live.left_by(picture, "key") == []
    page.unlink()
    page.mkdir()
    assert live.left_by(picture, "key") == []
    assert live.left_by(None, "key") == []


@pytest.mark.parametrize("new", [False, True], ids=["before", "after"])
def test_left_by_finds_both_files_of_a_run_killed_while_it_wrote_them(
    tmp_path: Path, notes: list[str], monkeypatch: pytest.MonkeyPatch, new: bool
) -> None:
    """The process is killed just before or just after it replaces the preview."""
    picture, page = tmp_path / "a.png", tmp_path / "a.html"
    replace = Path.replace

    def kill(self: Path, target: Path) -> Path:
        if new or target != picture:
            replace(self, target)
        if target == picture:
            raise KeyboardInterrupt
        return target

    view = LiveView(picture, "a", NOTHING, notes.append, "key")
    view.end("Done", PIXELS)
    monkeypatch.setattr(Path, "replace", kill)
    before = picture.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        view.end("Done", np.zeros_like(PIXELS))
    assert (picture.read_bytes() != before) == new
    assert live.left_by(picture, "key") == [page, picture]


def test_page_shows_and_links_names_that_are_not_utf_8() -> None:
    view = live_page.View(
        title="a\udcff",
        picture="b\udcff.png",
        size=(1, 1),
        history=History(),
        latest=None,
        now=live.datetime.now().astimezone(),
        seconds=1.0,
        ended="Done",
    )
    text = live_page.render(view)
    text.encode()
    assert "b%FF.png?" in text
