"""Tables of the latent codec's points beside other codecs'."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import latent_report
from imgmlp.report.curves import Curve

RATES, QUALITY = (0.1, 0.2, 0.4, 0.8), (28.0, 31.0, 34.0, 37.0)


def written(path: Path, heading: str, lines: list[str]) -> str:
    path.write_text("\n".join([heading, *lines]) + "\n", "utf-8")
    return str(path)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Points of two pictures, of which one needs 20% fewer bytes than AVIF and one 10%."""
    pairs = list(zip(RATES, QUALITY, strict=True))
    shares = {"a": 0.8, "b": 0.9}
    others = [f"avif,{image}.png,{bpp},{psnr}" for image in shares for bpp, psnr in pairs]
    own = [
        f"{image},1e-3,{share * bpp:.6f},{psnr}"
        for image, share in shares.items()
        for bpp, psnr in pairs
    ]
    others += [f"avif,only theirs.png,{bpp},{psnr}" for bpp, psnr in pairs]
    given = written(tmp_path / "own.csv", "image,lambda,bpp,psnr", own)
    beside = written(tmp_path / "others.csv", "codec,image,bpp,psnr", others)
    return ["x", f"mine={given}", "--others", beside, "--beside", "AVIF=avif", "--seen", "a"]


def test_fewer_bytes_are_told_as_so_many_percent(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    latent_report.main()
    shown = capsys.readouterr().out
    assert "| AVIF | −15.0% (−20.0 to −10.0) |" in shown
    assert "| % | a | b | seen by the start | others |" in shown
    assert "| mine | −20.0 | −10.0 | −20.0 | −10.0 |" in shown
    assert "| % | 1e-3 |" in shown
    assert "| mine | −15.0 (−10.0) |" in shown


def test_curves_name_the_codecs(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    chart = tmp_path / "curves.svg"
    monkeypatch.setattr(sys, "argv", [*arguments, "--plot", str(chart)])
    latent_report.main()
    drawn = chart.read_text("utf-8")
    assert "<!-- AVIF -->" in drawn
    assert "<!-- mine -->" in drawn
    assert "means of 2 pictures" in drawn


def test_curves_are_of_the_pictures_that_all_have() -> None:
    one, two = Curve(RATES, QUALITY), Curve(RATES[1:], QUALITY[1:])
    ours, others = latent_report.common({"mine": {"a": one}}, {"avif": {"a": two, "b": one}})
    assert ours == {"mine": {"a": one}}
    assert others == {"avif": {"a": two}}


def test_files_out_of_the_other_codecs_reach_say_nothing() -> None:
    row = {"image": "a", "bpp": "0.16"}
    rows = [row | {"lambda": "1e-3", "psnr": "31"}, row | {"lambda": "2e-4", "psnr": "50"}]
    beside = {"a": Curve(RATES, QUALITY)}
    assert latent_report.single_files(rows, beside)["1e-3"] == pytest.approx([-20.0])
    shown = latent_report.by_file({"mine": rows, "other": rows[1:]}, beside)
    assert shown.splitlines()[2:] == ["| mine | −20.0 (−20.0) |", "| other | – |"]


def test_a_codec_without_points_is_refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*arguments, "--beside", "jpeg"])
    with pytest.raises(SystemExit):
        latent_report.main()
    assert "no points of jpeg; there are: avif" in capsys.readouterr().err
