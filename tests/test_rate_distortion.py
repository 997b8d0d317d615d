"""The benchmark of rate and distortion goes on where it stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import small_pixels
from PIL import Image

from benchmarks import rate_distortion


def without_seconds(line: str) -> str:
    return line.rpartition(",")[0]


def test_it_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(small_pixels()).save(tmp_path / "small.png")
    out = tmp_path / "out"
    arguments = ["x", str(tmp_path), "--out", str(out), "--codecs", "jpeg420,webp"]
    monkeypatch.setattr(sys, "argv", arguments)
    rate_distortion.main()
    lines = (out / "points.csv").read_text("utf-8").splitlines()
    (out / "points.csv").write_text("\n".join(lines[:5]) + "\n", "utf-8")
    capsys.readouterr()
    rate_distortion.main()
    shown = capsys.readouterr().out
    assert shown.count("jpeg420  small") == 9 - 4
    again = (out / "points.csv").read_text("utf-8").splitlines()
    assert {without_seconds(line) for line in again} == {without_seconds(line) for line in lines}
    assert len(again) == len(lines)
    assert "| jpeg420 | 1 |" in (out / "summary.md").read_text("utf-8")
    assert "+0.0%" in shown
