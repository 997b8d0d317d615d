"""Stored files of all kinds: opening by path or by bytes gives the same picture and errors."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN

from imgmlp.codec.bitstream import container
from imgmlp.codec.decoder import open_stored
from imgmlp.codec.float_mlp import npz
from imgmlp.codec.float_mlp.config import Architecture, Encoding, Weights
from imgmlp.engine import open_device
from imgmlp.errors import FormatError


def archive() -> bytes:
    network = Architecture((8, 6, 3), float(np.float32(0.1)))
    flat = np.linspace(-1, 1, network.parameters, dtype=np.float32)
    stream = io.BytesIO()
    npz.save(Weights(network, Encoding((1.0, 2.0), (1.0, 2.0), 0.5), 13, 9, flat, b"icc"), stream)
    return stream.getvalue()


FILES = {"a.npz": archive(), "a.imlp": (GOLDEN / "rgb-alpha.imlp").read_bytes()}


@pytest.mark.parametrize("name", FILES)
def test_path_and_its_bytes_give_the_same_picture(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    device = open_device("numpy")
    by_path, by_bytes = open_stored(tmp_path / name), open_stored(FILES[name])
    assert by_path.facts == by_bytes.facts
    assert by_path.metadata == by_bytes.metadata
    assert by_path.facts["bytes"] == len(FILES[name])
    pixels = by_path.decode(device)
    assert pixels.shape == (by_path.height, by_path.width, by_path.channels)
    assert np.array_equal(pixels, by_bytes.decode(device))
    assert by_path.decode(device, (5, 7)).shape == (7, 5, by_path.channels)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_archive_in_memory_is_read_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert open_stored(FILES["a.npz"]).width == 13


@pytest.mark.parametrize("name", FILES)
def test_error_of_a_damaged_file_names_its_path(name: str, tmp_path: Path) -> None:
    damaged = FILES[name][:-1]
    with pytest.raises(FormatError, match=r"^truncated") as caught:
        open_stored(damaged)
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(FormatError) as named:
        open_stored(tmp_path / name)
    assert str(named.value) == f"{tmp_path / name}: {caught.value}"
    assert named.value.hint == caught.value.hint


def test_only_compact_files_are_exact() -> None:
    assert {name: open_stored(data).exact for name, data in FILES.items()} == {
        "a.npz": False,
        "a.imlp": True,
    }


def test_decoding_to_another_picture_than_was_encoded_is_an_error() -> None:
    file = container.parse(FILES["a.imlp"])
    other = container.write(container.Header(24, 7, file.header.channels, bytes(8)), file.sections)
    stored = open_stored(other)
    with pytest.raises(FormatError, match="another picture than the one that was encoded"):
        stored.decode(open_device("numpy"))


@pytest.mark.parametrize("size", [None, (5, 7)])
def test_error_found_while_decoding_names_the_path(
    tmp_path: Path, size: tuple[int, int] | None
) -> None:
    """Sections are read only when the file is decoded."""
    file = container.parse(FILES["a.imlp"])
    network, *others = file.sections
    short = container.Section(network.type, network.data[:-1])
    path = tmp_path / "a.imlp"
    path.write_bytes(container.write(file.header, [short, *others]))
    with pytest.raises(FormatError) as caught:
        open_stored(path.read_bytes()).decode(open_device("numpy"), size)
    with pytest.raises(FormatError) as named:
        open_stored(path).decode(open_device("numpy"), size)
    assert str(named.value) == f"{path}: {caught.value}"
    assert named.value.hint == caught.value.hint
