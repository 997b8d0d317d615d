"""One question for every file: what is in it? By its path or its bytes, with the same answer."""

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
def test_a_path_and_its_bytes_are_the_same_picture(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    device = open_device("numpy")
    found, again = open_stored(tmp_path / name), open_stored(FILES[name])
    assert found.facts == again.facts
    assert found.metadata == again.metadata
    assert found.facts["bytes"] == len(FILES[name])
    pixels = found.decode(device)
    assert pixels.shape == (found.height, found.width, found.channels)
    assert np.array_equal(pixels, again.decode(device))
    assert found.decode(device, (5, 7)).shape == (7, 5, found.channels)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_archive_is_looked_at_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes never lie in a file of their own."""

    def refuse(*_: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert open_stored(FILES["a.npz"]).width == 13


@pytest.mark.parametrize("name", FILES)
def test_damage_is_noticed_in_bytes_and_named_with_a_path(name: str, tmp_path: Path) -> None:
    damaged = FILES[name][:-1]
    with pytest.raises(FormatError, match=r"^truncated") as caught:
        open_stored(damaged)
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(FormatError) as named:
        open_stored(tmp_path / name)
    assert str(named.value) == f"{tmp_path / name}: {caught.value}"
    assert named.value.hint == caught.value.hint


def test_only_a_compact_file_is_exact() -> None:
    assert {name: open_stored(data).exact for name, data in FILES.items()} == {
        "a.npz": False,
        "a.imlp": True,
    }


def test_another_picture_than_was_encoded_is_noticed() -> None:
    found = container.parse(FILES["a.imlp"])
    other = container.write(
        container.Header(24, 7, found.header.channels, bytes(8)), found.sections
    )
    stored = open_stored(other)
    with pytest.raises(FormatError, match="another picture than the one that was encoded"):
        stored.decode(open_device("numpy"))


@pytest.mark.parametrize("size", [None, (5, 7)])
def test_what_is_wrong_with_its_picture_is_said_of_a_file(
    tmp_path: Path, size: tuple[int, int] | None
) -> None:
    """Its sections are read only when it is decoded."""
    found = container.parse(FILES["a.imlp"])
    network, *others = found.sections
    short = container.Section(network.type, network.data[:-1])
    path = tmp_path / "a.imlp"
    path.write_bytes(container.write(found.header, [short, *others]))
    with pytest.raises(FormatError) as caught:
        open_stored(path.read_bytes()).decode(open_device("numpy"), size)
    with pytest.raises(FormatError) as named:
        open_stored(path).decode(open_device("numpy"), size)
    assert str(named.value) == f"{path}: {caught.value}"
    assert named.value.hint == caught.value.hint
