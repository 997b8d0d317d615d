"""Pictures in a store are encoded into it once, whoever does it and however often."""

from __future__ import annotations

import errno
import io
import json
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from PIL import Image

from imgmlp.batch import encode as batch_encode
from imgmlp.batch import encode_in_store, store
from imgmlp.batch.encode import EncodeFile
from imgmlp.batch.encode_in_store import EncodeInStore
from imgmlp.batch.encode_options import EncodeOptions
from imgmlp.batch.plan import Plan, Rules
from imgmlp.batch.pool import run_here
from imgmlp.batch.store import found, is_stored, url
from imgmlp.batch.work import Record, Task, Watch, attempt_elsewhere
from imgmlp.cli.run_report import RunReport
from imgmlp.codec.decoder import open_stored
from imgmlp.engine import open_device
from imgmlp.errors import OutputError, TargetError
from imgmlp.terminal import Terminal


@pytest.mark.parametrize(
    ("given", "address"),
    [("s3://bucket/a b/c.png", "s3://bucket/a b/c.png"), ("gs:/bucket", "gs://bucket")],
)
def test_a_path_keeps_the_address_of_a_store(given: str, address: str) -> None:
    assert is_stored(Path(given))
    assert url(Path(given)) == address
    assert url(Path(given) / "d" / "e.png") == f"{address}/d/e.png"


@pytest.mark.parametrize("given", ["a.png", "/a/b", "a:b", "C:/a", "./s3:x", "x/s3://y"])
def test_other_paths_are_none(given: str) -> None:
    assert not is_stored(Path(given))
    assert url(Path(given)) == Path(given).as_posix()


def test_a_store_needs_a_cluster_and_a_place_for_the_outputs(in_process: Command) -> None:
    for arguments, problem in (
        (("s3://b/in", "--out", "s3://b/out"), "s3://b/out is in an object store"),
        (("mandrill.png", "--out", "s3://b/out"), "s3://b/out is in an object store"),
        (("s3://b/in", "--out", "out", "--cluster", "local"), "are encoded into an object store"),
        (
            ("s3://b/in", "--out", "s3://b/o", "--cluster", "local", "--skip-existing"),
            "--skip-existing is for local folders",
        ),
    ):
        assert problem in in_process("encode", *arguments, check=2).stderr


# With a store: fsspec's own in memory, and where moto is installed, which plays the part of S3,
# also that. moto and s3fs bring 35 packages and take longer to install than all else together.


@pytest.fixture(scope="module", params=["memory", "s3"])
def kind(request: pytest.FixtureRequest) -> str:
    """The scheme of a store's addresses."""
    if request.param == "s3":
        without = "needs moto and s3fs: pip install 'moto[server]' s3fs"
        pytest.importorskip("moto.server", reason=without)
        pytest.importorskip("s3fs", reason=without)
    else:
        pytest.importorskip("fsspec", reason="needs fsspec: pip install distributed fsspec s3fs")
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str) -> Iterator[str | None]:
    """The address of a store that is reached by one."""
    if kind == "memory":
        yield None
        return
    from moto.server import ThreadedMotoServer

    playing = ThreadedMotoServer(port=0, verbose=False)
    playing.start()
    host, port = playing.get_host_and_port()
    yield f"http://{host}:{port}"
    playing.stop()


@pytest.fixture
def bucket(kind: str, server: str | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file system with a.png, b.jpg, c.txt and deep/d.png in pictures/in, and made."""
    import fsspec

    encode_in_store._checked.cache_clear()
    if server is None:
        files = fsspec.filesystem(kind)
        files.store.clear()
        files.pseudo_dirs[:] = [""]
    else:
        for name, value in {
            "AWS_ENDPOINT_URL": server,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        post(f"{server}/moto-api/reset", b"")
        files = fsspec.filesystem(kind, use_listings_cache=False, skip_instance_cache=True)
        fsspec.get_filesystem_class(kind).clear_instance_cache()
    for one in ("pictures", "made"):
        files.mkdir(one)
    names = {"in/a.png": 10, "in/b.jpg": 20, "in/deep/d.png": 30, "in/.hidden.png": 40}
    for name, colour in names.items():
        files.pipe_file(f"pictures/{name}", picture(colour, "PNG" if "png" in name else "JPEG"))
    files.pipe_file("pictures/in/c.txt", b"no picture")
    return files


def post(address: str, data: bytes) -> None:
    headers = {"Content-Type": "text/plain"}
    with urllib.request.urlopen(urllib.request.Request(address, data, headers)):
        pass


def picture(colour: int, kind: str = "PNG") -> bytes:
    """Of one colour, which is encoded at once."""
    content = io.BytesIO()
    Image.new("RGB", (9, 7), (colour, 0, 0)).save(content, kind)
    return content.getvalue()


@pytest.fixture
def out(kind: str) -> Path:
    return Path(f"{kind}://made/x")


Encode = Callable[..., Record]


@pytest.fixture
def encode(kind: str, bucket: Any, out: Path) -> Encode:
    """Encodes one of the pictures."""

    def encode(
        name: str, quality: float = 60, force: bool = False, folder: str = "in", **more: Any
    ) -> Record:
        options = EncodeOptions(**more) if more else EncodeOptions(quality=quality)
        work = EncodeInStore(options, out, force)
        source = Path(f"{kind}://pictures/{folder}/{name}")
        task = Task(source, (out / name).with_suffix(".imlp"))
        (record,) = run_here(work, iter([task]), "numpy", Silent())
        return record

    return encode


class Silent:
    """A watch that looks away."""

    def announce(self, text: str) -> None:
        pass

    note = announce

    @contextmanager
    def training(self, steps: int) -> Iterator[Any]:
        yield lambda _: None

    def stopping(self) -> bool:
        return False

    def saving(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.mark.usefixtures("bucket")
def test_folders_of_a_store_are_searched_as_others_are(kind: str) -> None:
    endings, inputs = {".png", ".jpg"}, Path(f"{kind}://pictures/in")
    names = [(url(one.path), str(one.name)) for one in found(inputs, endings, False)]
    start = f"{kind}://pictures/in"
    assert names == [(f"{start}/a.png", "a.png"), (f"{start}/b.jpg", "b.jpg")]
    deep = [str(one.name) for one in found(inputs, endings, True)]
    assert deep == ["a.png", "b.jpg", "deep/d.png"]
    (single,) = found(inputs / "c.txt", endings, False)
    assert (str(single.name), single.bytes) == ("c.txt", 10)
    for nothing in (f"{kind}://pictures/out", f"{kind}://nobodys/in"):
        (refused,) = found(Path(nothing), endings, False)
        assert f"cannot read {nothing}" in str(refused.error)


def test_a_picture_is_encoded_once(bucket: Any, encode: Encode, out: Path) -> None:
    first = encode("a.png")
    assert (first.problem, first.written) == (None, True)
    data = bucket.cat_file("made/x/a.imlp")
    pixels = open_stored(data).decode(open_device("numpy"))
    assert (pixels == [10, 0, 0]).all()
    again = encode("a.png")
    assert again.line == f"{url(out)}/a.imlp   done before"
    assert again.facts == first.facts
    assert len(bucket.ls("made/x/.imgmlp")) == 1
    bucket.pipe_file("pictures/in/a.png", picture(99))
    changed = encode("a.png")
    assert "done before" not in changed.line
    assert bucket.cat_file("made/x/a.imlp") != data


def test_a_missed_target_is_told_again(encode: Encode) -> None:
    first, again = encode("a.png", size="1"), encode("a.png", size="1")
    for record in first, again:
        assert (record.exit_code, record.written) == (TargetError.exit_code, True)
    assert (again.problem, again.hint) == (first.problem, first.hint)
    assert again.facts == first.facts


@pytest.mark.parametrize("name", ["in", "out", "out.imlp"])
def test_a_picture_may_have_any_name(bucket: Any, encode: Encode, name: str) -> None:
    bucket.pipe_file(f"pictures/in/{name}", picture(50))
    assert encode(name).problem is None
    assert bucket.exists(f"made/x/{name.removesuffix('.imlp')}.imlp")


@pytest.fixture
def keys() -> Any:
    """A store whose names may be any, as those of S3 are."""
    pytest.importorskip("fsspec", reason="needs fsspec: pip install distributed fsspec s3fs")
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class Keys(MemoryFileSystem):
        store, pseudo_dirs = {}, [""]

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return f"/{path.removeprefix('keys://').strip('/')}".rstrip("/")

    fsspec.register_implementation("keys", Keys, clobber=True)
    encode_in_store._checked.cache_clear()
    return fsspec.filesystem("keys", use_listings_cache=False, skip_instance_cache=True)


def test_two_colons_in_a_name_are_part_of_it(keys: Any, tmp_path: Path) -> None:
    keys.pipe_file("/in/a::b.png", picture(10))
    (one,) = found(Path("keys://in"), {".png"}, False)
    local = tmp_path / "file::c.png"
    local.write_bytes(picture(20))
    tasks = [Task(source, Path(f"keys://out/{source.stem}.imlp")) for source in (one.path, local)]
    for again in ("", "done before"):
        records = list(
            run_here(
                EncodeInStore(EncodeOptions(), Path("keys://out")), iter(tasks), "numpy", Silent()
            )
        )
        assert [record.problem for record in records] == [None, None]
        assert all(again in record.line for record in records)
    assert {"/out/a::b.imlp", "/out/file::c.imlp"} <= set(keys.store)


@pytest.mark.parametrize("name", [f"{'L' * 300}.png", f"a.{'L' * 300}", "a\0.png", "a.p\0ng"])
def test_a_key_may_be_none_that_a_file_can_have(keys: Any, name: str) -> None:
    keys.pipe_file(f"/in/{name}", picture(10))
    task = Task(Path(f"keys://in/{name}"), Path(f"keys://out/{name}.imlp"))
    (record,) = run_here(
        EncodeInStore(EncodeOptions(psnr=40), Path("keys://out")), iter([task]), "numpy", Silent()
    )
    assert record.problem is None
    assert record.line.startswith(f"keys://out/{name}.imlp ")
    assert keys.exists(f"/out/{name}.imlp")


def test_a_full_temporary_folder_is_not_said_to_be_the_store(
    encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")

    def put(task: Task, *_: object) -> None:
        raise OutputError(f"cannot write {task.output}") from full

    def write_bytes(*_: object) -> None:
        raise full

    for place, name, refuse in ((batch_encode, "put", put), (Path, "write_bytes", write_bytes)):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, refuse)
            record = encode("a.png")
        assert (record.exit_code, record.disk_full, record.written) == (8, True, False)
        told = f"the worker's temporary folder {tempfile.gettempdir()}: No space left on device"
        assert told in (record.problem or "")
        assert "TMPDIR" in record.hint


def test_a_name_that_no_path_has_is_refused_and_the_others_are_found(keys: Any) -> None:
    for name in ("a//b.png", "c.png", "d/../e.png"):
        keys.pipe_file(f"/in/{name}", picture(10))
    looked = list(found(Path("keys://in"), {".png"}, True))
    assert [one.path for one in looked if one.error is None] == [Path("keys://in/c.png")]
    told = [str(one.error) for one in looked if one.error is not None]
    assert told == [
        f"keys://in/{name} has a part that is empty, . or .. in its name"
        for name in ("a//b.png", "d/../e.png")
    ]


def test_what_two_workers_write_at_once_is_known_whichever_is_last(bucket: Any, out: Path) -> None:
    output, looks = store.Output(out / "a.imlp"), {"source": "a", "picture": "p", "settings": "s"}
    notes = [looks | {"facts": {"bytes": n}} for n in (1, 2)]
    assert output.write(b"1", notes[0], replace=False)
    assert output.write(b"22", notes[1], replace=True)
    assert not output.write(b"1", notes[0], replace=False)
    assert output.read() == b"22"
    bucket.pipe_file("made/x/a.imlp", b"1")  # the first one's, after the second one's note
    assert output.note(b"1") == notes[0]
    assert output.note(b"22") == notes[1]
    assert output.note(b"333") is None


@pytest.mark.parametrize(
    "note", [b"5", b"null", b"{", b"\xff", b"[" * 50_000, b'{"source": "a"}', b'["source"]', None]
)
def test_a_note_that_is_none_counts_as_none(
    bucket: Any, encode: Encode, note: bytes | None
) -> None:
    assert encode("a.png").problem is None
    (name,) = bucket.find("made/x/.imgmlp")
    if note is None:
        note = json.dumps(json.loads(bucket.cat_file(name)) | {"facts": 5}).encode()
    bucket.pipe_file(name, note)
    assert (encode("a.png").exit_code, encode("a.png", force=True).problem) == (8, None)
    assert encode("a.png").line.endswith("done before")


def test_what_somebody_else_has_written_stays(bucket: Any, encode: Encode, out: Path) -> None:
    bucket.pipe_file("made/x/a.imlp", b"theirs")
    refused = encode("a.png")
    assert (refused.problem, refused.exit_code) == (f"{url(out)}/a.imlp exists already", 8)
    assert refused.hint == "--force replaces it"
    assert bucket.cat_file("made/x/a.imlp") == b"theirs"
    assert encode("a.png", force=True).problem is None
    assert encode("a.png").line.endswith("done before")


def test_what_was_made_of_another_picture_stays(bucket: Any, encode: Encode) -> None:
    assert encode("a.png").problem is None
    before = bucket.cat_file("made/x/a.imlp")
    bucket.pipe_file("pictures/other/a.png", picture(99))
    assert encode("a.png", folder="other").exit_code == 8
    assert bucket.cat_file("made/x/a.imlp") == before
    bucket.pipe_file("pictures/other/a.png", picture(10))  # one that was only moved is the same
    assert encode("a.png", folder="other").line.endswith("done before")
    for folder, quality in (("in", 50), ("other", 40)):  # which may have other settings, too
        assert encode("a.png", quality, folder=folder).problem is None


def test_what_another_worker_has_written_meanwhile_is_as_good(
    bucket: Any, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, turns = EncodeInStore._known, []

    def late(self: EncodeInStore, output: Any, there: bytes | None, record: Record) -> Any:
        turns.append(there)
        if len(turns) == 2:  # between the last look and the writing
            assert encode("a.png").written
        return known(self, output, there, record)

    monkeypatch.setattr(EncodeInStore, "_known", late)
    assert (encode("a.png").problem, turns[:2]) == (None, [None, None])


def test_what_another_run_of_other_settings_writes_meanwhile_stays(
    bucket: Any, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same picture, after the last look at what is there."""
    write = store.Output.write

    def late(self: store.Output, data: bytes, note: dict[str, Any], replace: bool) -> bool:
        assert write(self, b"theirs", note | {"settings": "other"}, replace=False)
        return write(self, data, note, replace)

    monkeypatch.setattr(store.Output, "write", late)
    refused = encode("a.png")
    assert (refused.exit_code, refused.written) == (8, False)
    assert bucket.cat_file("made/x/a.imlp") == b"theirs"


@pytest.mark.parametrize("old", [True, False])
def test_what_somebody_else_writes_meanwhile_stays(
    bucket: Any, encode: Encode, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an output of other settings was there, which was to be replaced, or nothing."""

    class Slow(EncodeFile):
        def __call__(self, *arguments: Any) -> None:
            super().__call__(*arguments)
            bucket.pipe_file("made/x/a.imlp", b"theirs")

    if old:
        assert encode("a.png", quality=50).written
    monkeypatch.setattr(encode_in_store, "EncodeFile", Slow)
    refused = encode("a.png")
    assert (refused.exit_code, refused.written) == (8, False)
    assert bucket.cat_file("made/x/a.imlp") == b"theirs"


def test_a_damaged_picture_is_named_by_its_address(encode: Encode, kind: str) -> None:
    refused = encode("c.txt")
    assert refused.problem == f"{kind}://pictures/in/c.txt is not a picture that Pillow can read"
    assert "imgmlp-" not in refused.hint
    missing = encode("z.png")
    assert f"cannot read {kind}://pictures/in/z.png" in (missing.problem or "")


@pytest.mark.parametrize("choices", [{"size": "1"}, {"psnr": 40}])
def test_notes_name_a_picture_by_its_address_also_where_the_target_was_missed(
    bucket: Any, encode: Encode, kind: str, choices: dict[str, Any]
) -> None:
    content = io.BytesIO()
    Image.new("CMYK", (9, 7)).save(content, "TIFF")
    bucket.pipe_file("pictures/in/e.tif", content.getvalue())
    record = encode("e.tif", **choices)
    assert record.written
    assert (record.problem is None) == ("psnr" in choices)
    (note,) = record.notes
    assert note.startswith(f"{kind}://pictures/in/e.tif: ")


def test_what_is_told_elsewhere_names_places_by_their_addresses(capsys: Any) -> None:
    def work(record: Record, device: object, watch: Watch) -> None:
        watch.note("no checkpoints")

    task = Task(Path("s3://b/in/a.png"), Path("s3://b/out/a.imlp"))
    record = attempt_elsewhere(work, task, pytest.fail, lambda: False)
    assert record.notes == ["s3://b/in/a.png: no checkpoints"]
    RunReport(Terminal(), Plan(Rules(None, Path)), as_json=True).add(record)
    entry = json.loads(capsys.readouterr().out)
    assert (entry["file"], entry["output"]) == ("s3://b/in/a.png", "s3://b/out/a.imlp")


def test_two_processes_may_try_at_once_whether_they_can_write(
    bucket: Any, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, tried = store._file_system, []

    def meanwhile(path: Path) -> tuple[Any, str]:
        files, name = opened(path)
        write = files.pipe_file

        def pipe_file(name: str, data: bytes) -> None:
            write(name, data)
            tried.append(name)
            if len(tried) == 1:
                store.check_writable(out)

        monkeypatch.setattr(files, "pipe_file", pipe_file)
        return files, name

    monkeypatch.setattr(store, "_file_system", meanwhile)
    store.check_writable(out)
    assert len(set(tried)) == 2
    assert bucket.find("made/x") == []


def test_a_bucket_without_rights_is_refused_before_any_work(
    bucket: Any, server: str | None, encode: Encode, out: Path
) -> None:
    if server is None:
        pytest.skip("a store in memory knows no rights")
    post(f"{server}/moto-api/reset-auth", b"0")  # from now on nobody has rights
    try:
        with pytest.raises(OutputError, match="cannot write into s3://made/x: ") as caught:
            store.check_writable(out)
        assert "rights" in caught.value.hint
        refused = encode("a.png")
        assert (refused.exit_code, refused.written) == (8, False)
        (unread,) = found(Path("s3://pictures/in"), {".png"}, False)
        assert "cannot read s3://pictures/in" in str(unread.error)
    finally:
        post(f"{server}/moto-api/reset-auth", b"inf")
    assert not bucket.exists("made/x/a.imlp")


def test_workers_encode_from_a_store_into_it(
    bucket: Any, server: str | None, imgmlp: Command, out: Path
) -> None:
    if server is None:
        pytest.skip("a store in memory is of one process")
    pytest.importorskip("distributed", reason="needs Dask: pip install distributed fsspec s3fs")
    command = ("encode", "-r", "s3://pictures/in", "--out", str(out), "--cluster", "local")
    imgmlp(*command)
    assert {one for one in bucket.find("made/x") if one.endswith(".imlp")} == {
        f"made/x/{name}.imlp" for name in ("a", "b", "deep/d")
    }
    assert imgmlp(*command).stderr.count("done before") == 3
