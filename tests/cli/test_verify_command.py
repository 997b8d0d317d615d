"""`imgmlp verify`: intact files pass, damaged ones fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import mutations
import pytest

from imgmlp.cli import verify as verifying
from imgmlp.cli.folders import Request
from imgmlp.codec.bitstream import container
from imgmlp.terminal import Terminal


def verify(paths: list[Path], device: str = "numpy", as_json: bool = False) -> int:
    return verifying.run(Terminal(), Request(paths, device=device, as_json=as_json))


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "a.imlp"
    path.write_bytes(mutations.sample())
    return path


def test_intact_file_prints_one_line(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify([sound]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"✓ {sound}  24×7 RGB and alpha   287 B\n"
    assert shown.out == ""


def test_damaged_files_fail_and_intact_files_pass(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = sound.with_name("b.imlp")
    for data in [*mutations.mutants(sound.read_bytes(), 40, seed=2)][1::2]:
        bad.write_bytes(data)
        is_intact = data == sound.read_bytes()
        code = verify([bad], as_json=True)
        (report,) = json.loads(capsys.readouterr().out)
        assert (report["sound"], code) == (is_intact, 0 if is_intact else 4)
        assert (report["problem"] is None) == is_intact
    assert verify([sound, bad, sound]) == 1
    assert capsys.readouterr().err.count(f"✓ {sound}") == 2


def test_wrong_digest_of_the_pixels_fails(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = container.parse(sound.read_bytes())
    header = replace(file.header, digest=bytes(8))
    sound.write_bytes(container.write(header, file.sections))
    assert verify([sound]) == 4
    assert f"{sound}: it decodes to another picture" in capsys.readouterr().err


def test_missing_device_is_exit_6(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify([sound], "9:9") == 6
    assert "9:9" in capsys.readouterr().err
