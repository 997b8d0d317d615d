"""What a file says of itself is found without decoding it, and without heavy modules."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from test_public_api import HEAVY, modules_after

from imgmlp import api
from imgmlp.cli import info
from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Header, Section
from imgmlp.codec.decoder import open_stored
from imgmlp.errors import FormatError, UsageError
from imgmlp.terminal import Terminal


@pytest.fixture
def compact(tmp_path: Path) -> Path:
    """A compact file whose sections hold nothing of use."""
    path = tmp_path / "a.imlp"
    sections = [Section("N", bytes(9)), Section("W", bytes(900)), Section("i", bytes(30))]
    path.write_bytes(container.write(Header(40, 30, 4, bytes(range(8))), sections))
    return path


def test_facts_of_a_compact_file(compact: Path) -> None:
    size = compact.stat().st_size
    assert open_stored(compact).facts == {
        "format": "imgmlp-compact",
        "version": 1,
        "width": 40,
        "height": 30,
        "channels": 4,
        "codec": "mlp",
        "digest": "0001020304050607",
        "sections": [
            {"type": "N", "bytes": 9, "critical": True},
            {"type": "W", "bytes": 900, "critical": True},
            {"type": "i", "bytes": 30, "critical": False},
        ],
        "icc_bytes": 30,
        "exif_bytes": 0,
        "xmp_bytes": 0,
        "dpi": None,
        "container_bytes": size - 939,
        "bytes": size,
        "bits_per_pixel": size * 8 / 1200,
    }
    assert api.info(str(compact)) == open_stored(compact).facts
    assert api.info(compact.read_bytes()) == open_stored(compact).facts
    with pytest.raises(FormatError, match=r"not an \.imlp file"):
        api.info(b"neither")


def test_facts_for_people(compact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info.run(Terminal(), [compact], as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "format    imgmlp-compact, version 1",
        "picture   40×30 RGB and alpha",
        "codec     mlp",
        "digest    0001020304050607",
        "sections  N 9 B, W 900 B, i 30 B, around them 47 B",
        "profile   30 B",
        "size      986 B, 6.573 bits per pixel",
    ]
    info.run(Terminal(), [compact], as_json=True)
    assert json.loads(capsys.readouterr().out) == open_stored(compact).facts


def test_looking_at_a_compact_file_is_light(compact: Path) -> None:
    code = f"""
import sys
from imgmlp.cli import main
sys.argv = ["imgmlp", "info", {str(compact)!r}, "--json"]
try:
    main()
except SystemExit as end:
    assert end.code == 0
"""
    assert not modules_after(code) & HEAVY


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.imlp"
    for data in (b"hello", b"\x89PNG\r\n\x1a\n"):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"a\.imlp is neither"):
            open_stored(path)
    path.write_bytes(b"\x89I")
    with pytest.raises(FormatError, match=r"a\.imlp: truncated"):
        open_stored(path)
    with pytest.raises(UsageError, match="does not exist"):
        open_stored(tmp_path / "b.imlp")
    with pytest.raises(UsageError, match="is not a file"):
        open_stored(tmp_path)


def test_a_pipe_is_refused_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe.imlp"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="is not a file"):
        open_stored(path)
