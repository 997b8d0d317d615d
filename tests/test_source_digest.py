"""The digest of the program's own source covers all of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import imgmlp
from imgmlp.source_digest import source_digest

PACKAGE = Path(imgmlp.__file__).parent


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    source_digest.cache_clear()
    yield
    source_digest.cache_clear()


@pytest.mark.parametrize(
    "part",
    [
        "__init__.py",
        "engine/__init__.py",
        "codec/mlp/encode.py",
        "codec/latent/start-1.bin",
        "kernels/scalar.cl",
    ],
)
def test_it_stands_for_all_of_the_program(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, seen = Path.read_bytes, []
    before = source_digest()
    source_digest.cache_clear()

    def changed(path: Path) -> bytes:
        seen.append(path)
        return read(path) + b" " * (path == PACKAGE / part)

    monkeypatch.setattr(Path, "read_bytes", changed)
    assert source_digest() != before
    assert len(seen) == len(set(seen))
    assert all(path.is_relative_to(PACKAGE) for path in seen)


def test_it_knows_where_one_file_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    before = source_digest()
    source_digest.cache_clear()
    content = {path: path.read_bytes() for path in sorted(PACKAGE.rglob("*.cl"))}
    one, other = list(content)[:2]
    content[one], content[other] = content[one] + content[other][:9], content[other][9:]
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: content.get(path) or read(path))
    assert source_digest() != before
