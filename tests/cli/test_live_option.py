"""`--live`: what the preview shows, and that files have the same bytes with and without it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from conftest import small_pixels
from html_document import Document
from outputs import pixels_of
from PIL import Image

from imgmlp.batch.encode_options import EncodeOptions
from imgmlp.cli import encode as encoding
from imgmlp.cli.encode import Outputs
from imgmlp.cli.folders import Request
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.decoder import open_stored
from imgmlp.codec.latent.training import effort
from imgmlp.codec.training import passes, target
from imgmlp.engine import open_device
from imgmlp.errors import Interrupted, OutputError, UsageError
from imgmlp.image import psnr
from imgmlp.interrupt import StopRequest
from imgmlp.report import live
from imgmlp.report.live import LiveView
from imgmlp.terminal import Terminal

CODECS = pytest.mark.parametrize("codec", get_args(Codec))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A picture that encodes quickly, with previews as often as possible."""
    monkeypatch.setattr(target, "DEFAULT_EFFORT_STEPS", 16 * 200)
    monkeypatch.setattr(effort, "MIN_EFFORT_STEPS", 30)
    monkeypatch.setattr(passes, "MAX_PASSES", 1)
    monkeypatch.setattr(live, "MIN_INTERVAL", 0.0)
    monkeypatch.setattr(live, "MIN_INTERVAL_FACTOR", 0.0)
    Image.fromarray(small_pixels()).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def run(sources: list[Path], codec: Codec, file: str, **outputs: object) -> int:
    options = EncodeOptions(lmbda=0.01, effort=1, codec=codec)
    all_outputs = Outputs(sources[0].parent / file, **outputs)
    return encoding.run(Terminal(), Request(sources, device="numpy"), all_outputs, options)


@CODECS
def test_preview_improves_and_does_not_change_the_file(
    source: Path, codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    previews: list[np.ndarray] = []
    save = LiveView._save

    def save_and_record(self: LiveView, path: Path, pixels: np.ndarray) -> None:
        previews.append(pixels)
        save(self, path, pixels)

    monkeypatch.setattr(LiveView, "_save", save_and_record)
    folder = source.parent
    assert run([source], codec, "plain.imlp") == 0
    assert previews == []
    assert run([source], codec, "shown.imlp", live=folder / "live.png") == 0
    assert (folder / "plain.imlp").read_bytes() == (folder / "shown.imlp").read_bytes()
    decoded = open_stored(folder / "shown.imlp").decode(open_device("numpy"))
    np.testing.assert_array_equal(pixels_of(folder / "live.png"), decoded)
    assert len(previews) > 5
    first, *_, last, file = previews
    np.testing.assert_array_equal(file, decoded)
    assert psnr(decoded, last) > psnr(decoded, first) + 3  # previews approach the file
    assert psnr(decoded, last) > 20
    document = Document((folder / "live.html").read_text("utf-8"))
    assert "Done: " in document.text()
    assert len(document.all("svg")) == (2 if codec == "latent" else 1)


def test_resumed_encode_replaces_only_its_own_preview(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = source.parent
    polls = iter(range(9))
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "requested", lambda _: next(polls, None) is None)
        with pytest.raises(Interrupted):
            run([source], "mlp", "a.imlp", live=folder / "live.png")
    assert "Ended early: stopped after" in (folder / "live.html").read_text("utf-8")
    (folder / "other.html").write_text("somebody's")
    assert run([source], "mlp", "a.imlp", live=folder / "other.png") == 8
    assert (folder / "other.html").read_text() == "somebody's"
    for name in ("live.png", "live.html"):  # other programs have replaced them since
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(b"mine")
        assert run([source], "mlp", "a.imlp", live=folder / "live.png") == 8
        assert (folder / name).read_bytes() == b"mine"
        (folder / name).write_bytes(content)
    assert run([source], "mlp", "a.imlp", live=folder / "live.png") == 0
    assert "Done: " in (folder / "live.html").read_text("utf-8")


def test_live_option_is_refused_for_several_pictures_or_wrong_names(source: Path) -> None:
    folder = source.parent
    Image.fromarray(small_pixels()).save(folder / "b.png")
    options, shown = EncodeOptions(lmbda=0.01, effort=1), folder / "live.png"
    for sources, out in (
        ([source, folder / "b.png"], None),
        ([folder], folder),
        ([source], folder),
    ):
        request, outputs = Request(sources, device="numpy"), Outputs(None, out, live=shown)
        with pytest.raises(UsageError, match="--live shows one picture only"):
            encoding.run(Terminal(), request, outputs, options)
    for name in ("live.txt", "live.html"):  # the name of the page
        with pytest.raises(UsageError, match=f"{name} has the extension"):
            run([source], "mlp", "a.imlp", live=folder / name)
    with pytest.raises(OutputError, match="another file"):
        run([source], "mlp", "a.imlp", live=source)
