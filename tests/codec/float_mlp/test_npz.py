"""weights.npz: written weights are read back, and all other files are refused."""

from __future__ import annotations

import io
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from imgmlp.codec.decoder import open_stored
from imgmlp.codec.float_mlp import npz, pipeline
from imgmlp.codec.float_mlp.config import Architecture, Encoding, Weights
from imgmlp.engine import open_device
from imgmlp.errors import FormatError, ImgmlpError, UsageError

ARCHITECTURE = Architecture((8, 5, 3), float(np.float32(0.1)))
ENCODING = Encoding((0.5, 3.0), (0.5, 2.5), 0.5)


def weights(icc: bytes | None = b"profile") -> Weights:
    rng = np.random.default_rng(3)
    flat = rng.standard_normal(ARCHITECTURE.parameters).astype(np.float32)
    return Weights(ARCHITECTURE, ENCODING, 13, 9, flat, icc)


def packed(value: Weights | None = None) -> bytes:
    stream = io.BytesIO()
    npz.save(value or weights(), stream)
    return stream.getvalue()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights.npz"
    path.write_bytes(packed())
    return path


def read(path: Path) -> Weights:
    with path.open("rb") as stream:
        return npz.load(stream)


def refused(path: Path, data: bytes, *words: str) -> None:
    path.write_bytes(data)
    with pytest.raises(FormatError) as raised:
        read(path)
    assert raised.value.exit_code == 4
    assert raised.value.hint
    for word in words:
        assert word in str(raised.value)


def changed(**members: np.ndarray | None) -> bytes:
    """The small file with members replaced or added, or removed where None is given."""
    arrays = dict(np.load(io.BytesIO(packed())))
    arrays |= {name: value for name, value in members.items() if value is not None}
    stream = io.BytesIO()
    np.savez(stream, **{n: a for n, a in arrays.items() if members.get(n, a) is not None})
    return stream.getvalue()


def test_written_weights_are_read_back(file: Path) -> None:
    wanted, loaded = weights(), read(file)
    assert np.array_equal(loaded.flat, wanted.flat)
    assert (loaded.architecture, loaded.encoding) == (wanted.architecture, wanted.encoding)
    assert (loaded.width, loaded.height, loaded.icc) == (13, 9, b"profile")


def test_file_is_deterministic_and_little_larger_than_its_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time that a zip file contains does not change."""
    today = packed()
    monkeypatch.setattr("time.time", lambda: 1.5e9)
    assert packed() == today
    assert len(packed()) < 4 * ARCHITECTURE.parameters + 6000


def test_numpy_reads_the_file(file: Path) -> None:
    arrays = np.load(file, allow_pickle=False)
    assert str(arrays["format"]) == "imgmlp-weights"
    assert int(arrays["version"]) == 1
    assert arrays["weight_0"].shape == (8, 5)
    assert "bias_1" not in arrays


def test_archives_written_by_numpy_are_read(file: Path) -> None:
    file.write_bytes(changed())
    assert np.array_equal(read(file).flat, weights().flat)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = packed()
    for length in range(len(data)):
        refused(tmp_path / "cut.npz", data[:length])


@pytest.mark.parametrize(
    "shift", [0, *(pytest.param(shift, marks=pytest.mark.soak) for shift in range(1, 8))]
)
def test_every_flipped_bit_is_refused_or_harmless(tmp_path: Path, shift: int) -> None:
    """A flip in a time stamp or an attribute of the zip directory changes nothing that is read."""
    data, wanted, path = packed(), weights(), tmp_path / "flipped.npz"
    refusals = 0
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place + shift) % 8
        path.write_bytes(flipped)
        try:
            loaded = read(path)
        except ImgmlpError as error:
            assert error.exit_code == 4  # noqa: PT017
            refusals += 1
        else:
            assert np.array_equal(loaded.flat, wanted.flat)
            assert (loaded.architecture, loaded.encoding) == (wanted.architecture, wanted.encoding)
            assert (loaded.width, loaded.height, loaded.icc) == (13, 9, b"profile")
    assert refusals > len(data) / 2


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"format": np.array("something")}, ["format"]),
        ({"version": np.array(2, np.int32)}, ["version", "2"]),
        ({"extra": np.zeros(3)}, ["extra"]),
        ({"weight_0": None}, ["weight_0"]),
        ({"weight_0": np.zeros((8, 4), np.float32)}, ["weight_0"]),
        ({"weight_0": np.zeros((8, 5))}, ["weight_0"]),
        ({"bias_0": np.full(5, np.nan, np.float32)}, ["bias_0", "nan"]),
        ({"weight_1": np.full((5, 3), np.inf, np.float32)}, ["weight_1", "inf"]),
        ({"layers": np.array([8, 5, 5, 3], np.int32)}, []),
        ({"layers": np.array([8, 5, 2], np.int32)}, []),
        ({"layers": np.array([8, 2**30, 3], np.int32)}, []),
        ({"size": np.array([0, 9], np.int32)}, ["0"]),
        ({"size": np.array([2**20, 2**20], np.int32)}, []),
        ({"frequencies_x": np.array([1.0], np.float32)}, []),
        ({"frequencies_y": np.array([1.0, np.nan], np.float32)}, []),
        ({"activation": np.array("relu")}, ["activation"]),
        ({"slope": np.array(np.nan, np.float32)}, []),
        ({"slope": np.array(3, np.float32)}, ["slope"]),
        ({"origin": np.array(-1, np.float32)}, ["origin"]),
        ({"origin": np.zeros(1, np.float32)}, ["origin"]),
        ({"version": np.array(1.0)}, ["version"]),
        ({"size": np.array([-13, 9], np.int32)}, ["-13x9"]),
        ({"layers": np.full(32, 4096, np.int32)}, ["parameters"]),
        ({"frequencies_x": np.ones((2, 1), np.float32)}, ["frequencies_x", "vector"]),
        ({"frequencies_y": np.array([1, -2], np.float32)}, ["-2.0"]),
        ({"weight_0": np.zeros((8, 5), ">f4")}, ["weight_0"]),
        ({"weight_0": np.zeros((8, 5), np.float32, order="F")}, ["weight_0", "Fortran"]),
        ({"bias_1": np.zeros(3, np.float32)}, ["bias_1"]),
        ({"icc": np.zeros((2, 2), np.uint8)}, ["icc", "vector"]),
        ({"icc": np.zeros(0, np.uint8)}, ["icc"]),
    ],
    ids=str,
)
def test_error_names_the_inconsistent_member(
    tmp_path: Path, members: dict[str, np.ndarray | None], words: list[str]
) -> None:
    refused(tmp_path / "bad.npz", changed(**members), *words)


def test_newer_version_is_refused_by_its_number_whatever_it_contains(tmp_path: Path) -> None:
    stream = io.BytesIO()
    newer = {"format": np.array("imgmlp-weights"), "version": np.array(7, np.int32)}
    np.savez(stream, grids=np.zeros(3, np.int8), **newer)
    refused(tmp_path / "newer.npz", stream.getvalue(), "version 7 is newer")


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return Path.touch, (ran,)

    refused(tmp_path / "trap.npz", changed(weight_0=np.array([Trap()], dtype=object)), "weight_0")
    assert not ran.exists()


@pytest.mark.parametrize(
    "data", [b"", b"PK\x05\x06" + bytes(18), b"\x89PNG\r\n\x1a\n" * 99, bytes(9999)]
)
def test_files_that_are_no_archives_are_refused(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path / "other.npz", data)


def test_duplicate_member_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO(packed())
    with zipfile.ZipFile(stream, "a") as archive, pytest.warns(UserWarning, match="bias_0"):
        archive.writestr("bias_0.npy", archive.read("bias_0.npy"))
    refused(tmp_path / "twice.npz", stream.getvalue(), "bias_0")


def test_decompression_bombs_are_refused_before_memory_is_allocated(tmp_path: Path) -> None:
    """One has 256 MiB of zeros in 256 kB, the other a header that claims 1 TB."""
    zeros = io.BytesIO()
    np.lib.format.write_array(zeros, np.zeros(5, np.float32))
    promise = (
        zeros.getvalue().replace(b"(5,)", b"(%d,)" % 2**38).replace(b"            \n", b"\n", 1)
    )
    bombs = {"zeros": zeros.getvalue() + bytes(2**28), "promise": promise}
    for name, content in bombs.items():
        stream = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(packed())) as source,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as target,
        ):
            for member in source.namelist():
                data = content if member == "bias_0.npy" else source.read(member)
                target.writestr(member, data)
        path = tmp_path / f"{name}.npz"
        path.write_bytes(stream.getvalue())
        del stream
        tracemalloc.start()
        with pytest.raises(FormatError, match="bias_0"):
            read(path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2**21


HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"


def array(descr: str, shape: str, values: int = 0) -> bytes:
    """The bytes of a .npy file whose header need not match the zeros that follow it."""
    header = (HEADER % (descr, shape)).ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(values)


@pytest.mark.parametrize(
    "content",
    [
        array("<f4", "(999999999, 999999999)"),
        array("<f4", "(5,)"),
        array("<f4", "(5,)", 19),
        array("<f4", "(5,)", 21),
        array("<f4", "(((((((5,)))))))", 20),
        array("<f4", "(-5,)", 20),
        array("<f4", "(%s,)" % ("9" * 70), 20),
        array("<U99999", "()", 20),
        b"\x93NUMPY\x01\x00\xff\xff{",
        b"\x93NUMPY\x03\x00" + array("<f4", "(5,)", 20)[8:],
        b"\x93NUM",
        b"",
    ],
)
def test_array_headers_that_do_not_match_their_data_are_refused(
    tmp_path: Path, content: bytes
) -> None:
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(packed())) as source,
        zipfile.ZipFile(stream, "w") as target,
    ):
        for member in source.namelist():
            target.writestr(member, content if member == "bias_0.npy" else source.read(member))
    refused(tmp_path / "promise.npz", stream.getvalue(), "bias_0")


def test_too_large_zip_directory_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for number in range(2000):
            archive.writestr(f"{number}.npy", b"")
    refused(tmp_path / "many.npz", stream.getvalue(), "directory is too large")
    # A zip64 record would replace the size that was looked at.
    locator = b"PK\x06\x07" + bytes(12) + b"\1\0\0\0"
    data = packed()
    refused(tmp_path / "zip64.npz", data[:-22] + locator + data[-22:], "directory is too large")


def test_too_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "large.npz"
    with path.open("wb") as stream:
        stream.write(packed())
        stream.truncate(npz.MAX_FILE + 1)
    with pytest.raises(FormatError, match="too many"):
        read(path)


def test_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        open_stored(tmp_path / "none.npz")


def test_decoder_of_the_format_document_gives_the_same_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They agree within one level, as sums may be added in any order."""
    page = (ROOT / "docs" / "format-npz.md").read_text("utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.npz").write_bytes(packed())
    names: dict[str, np.ndarray] = {}
    exec(compile(example, "format-npz.md", "exec"), names)
    ours = pipeline.decode(weights(), open_device("numpy"))
    assert names["pixels"].shape == ours.shape == (9, 13, 3)
    assert np.abs(names["pixels"].astype(int) - ours).max() <= 1
    assert len(np.unique(ours)) > 10
