"""Names, folders, patterns and lists lead to files; what cannot be read stops nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from imgmlp.batch.find import Found, Search, is_pattern_of_any, names_in
from imgmlp.errors import UsageError

TREE = ("a.png", "b.JPG", "notes.txt", "sub/c.png", "sub/deep/d.png", ".hidden/e.png", ".f.png")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    top = tmp_path / "in"
    for name in TREE:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(name.encode())
    monkeypatch.chdir(tmp_path)
    return Path("in")


def search(**choices: object) -> Search:
    return Search({".png", ".jpg"}, **choices)  # type: ignore[arg-type]


def names(found: list[Found]) -> list[str]:
    assert all(one.error is None for one in found)
    return sorted(one.name.as_posix() for one in found)


def test_a_folder_stands_for_its_pictures(tree: Path) -> None:
    looking = search()
    found = list(looking.find([tree]))
    assert names(found) == ["a.png", "b.JPG"]
    assert (looking.others, looking.folders) == (1, 1)
    one = next(one for one in found if one.name.name == "a.png")
    status = (tree / "a.png").stat()
    assert one == Found(tree / "a.png", Path("a.png"), status.st_size, status.st_mtime_ns)


def test_recursively_for_those_of_folders_inside_too(tree: Path) -> None:
    found = list(search(recursive=True).find([tree]))
    assert names(found) == ["a.png", "b.JPG", "sub/c.png", "sub/deep/d.png"]


def test_patterns_keep_the_places_below_their_fixed_part(tree: Path) -> None:
    assert names(list(search().find([tree / "**" / "*.png"]))) == [
        "a.png",
        "sub/c.png",
        "sub/deep/d.png",
    ]
    assert names(list(search().find([tree / "s*"]))) == ["sub/c.png"]
    (refused,) = search().find([tree / "*.gif"])
    assert isinstance(refused.error, UsageError)
    (tree / "x[1].png").write_bytes(b"")  # a name that looks like a pattern
    assert names(list(search().find([tree / "x[1].png"]))) == ["x[1].png"]


@pytest.mark.parametrize("pattern", ["s*", "**/s*", "**/sub"])
def test_a_folder_that_a_pattern_stands_for_stands_for_its_pictures(
    tree: Path, pattern: str
) -> None:
    (tree / "sub" / "notes.txt").touch()
    looking = search()
    found = list(looking.find([tree / pattern]))
    assert [one.path.resolve() for one in found] == [(tree / "sub" / "c.png").resolve()]
    assert (looking.others, looking.folders) == (1, 1)
    found = list(search(recursive=True).find([tree / pattern]))
    assert {one.path.name for one in found} == {"c.png", "d.png"}


@pytest.mark.parametrize("pattern", ["**", "**/*", "**/**"])
def test_a_pattern_that_stands_for_all_stands_for_each_file_once(tree: Path, pattern: str) -> None:
    (tree / "notes.txt").unlink()
    looking = search()
    assert names(list(looking.find([tree / pattern]))) == [
        "a.png",
        "b.JPG",
        "sub/c.png",
        "sub/deep/d.png",
    ]
    assert (looking.others, looking.folders) == (0, 0)


def test_links_to_folders_are_not_followed_and_loops_end(tree: Path) -> None:
    (tree / "sub" / "round").symlink_to(tree.resolve())
    (tree / "self.png").symlink_to("self.png")
    (tree / "gone.png").symlink_to("nothing.png")
    (tree / "good.png").symlink_to("a.png")
    looking = search(recursive=True)
    found = list(looking.find([tree]))
    refused = {one.path.name for one in found if one.error is not None}
    assert refused == {"self.png", "gone.png"}
    assert looking.links == 1
    assert "good.png" in names([one for one in found if one.error is None])
    (tree / "deep").symlink_to(tree.resolve())  # two, which would be taken in every order
    assert names(list(search().find([tree / "**" / "d.p**"]))) == ["sub/deep/d.png"]
    (tree / "sub" / "round").unlink()
    assert names(list(search().find([tree / "sub" / "**"]))) == ["c.png", "deep/d.png"]


def test_an_unreadable_folder_is_told_and_the_others_are_read(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for source in (tree, tree / "**" / "*.*[gG]", tree / "**"):
        found = list(search(recursive=True).find([source]))
        (refused,) = (one for one in found if one.error is not None)
        assert "cannot read the folder in/sub: Permission denied" in str(refused.error)
        read = names([one for one in found if one.error is None])
        assert [name for name in read if name != "notes.txt"] == ["a.png", "b.JPG"]
    assert is_pattern_of_any(tree / "*" / "c.png")
    (missing,) = search().find([Path("nowhere/*.png")])
    assert str(missing.error) == "nothing matches nowhere/*.png"


def test_no_pattern_leads_out_of_the_folder_before_it(tree: Path) -> None:
    """Whose tree is mirrored: the outputs would be written somewhere else."""
    for pattern in ("in/*/../a.png", "in/**/../../in/a.png", "*/.."):
        assert is_pattern_of_any(Path(pattern))
        (refused,) = search().find([Path(pattern)])
        assert isinstance(refused.error, UsageError)
        assert str(refused.error) == f"{pattern} has .. after its first wildcard"
    assert names(list(search().find([Path("in/sub/../*.png")]))) == ["a.png"]


def test_what_is_hidden_is_passed_over_unless_a_pattern_names_it(tree: Path) -> None:
    (refused,) = search().find([tree / "*" / "e.png"])
    assert "nothing matches" in str(refused.error)
    assert names(list(search().find([tree / ".h*" / "*.png"]))) == [".hidden/e.png"]
    assert names(list(search().find([tree / "**" / ".f*"]))) == [".f.png"]


def test_a_pattern_finds_each_file_once_however_it_matches(tree: Path) -> None:
    found = list(search().find([tree / "**" / "*" / "**" / "*.png"]))
    assert names(found) == ["sub/c.png", "sub/deep/d.png"]
    assert not is_pattern_of_any(tree / "*.gif")
    assert not is_pattern_of_any(tree / "a.png")


def test_the_folder_of_the_outputs_is_left_out(tree: Path) -> None:
    looking = search(recursive=True, leave_out=(tree / "sub").resolve())
    assert names(list(looking.find([tree]))) == ["a.png", "b.JPG"]
    assert looking.left_out


@pytest.mark.parametrize("pattern", ["**/*.png", "s*", "*/c.png", "**"])
def test_patterns_leave_it_out_too_unless_they_begin_in_it(tree: Path, pattern: str) -> None:
    out = (tree / "sub").resolve()
    looking = search(recursive=True, leave_out=out)
    found = names(list(looking.find([tree / pattern])))
    assert not [name for name in found if name.startswith("sub")]
    assert looking.left_out
    assert names(list(search(leave_out=out).find([tree / "sub" / "*.png"]))) == ["c.png"]


def test_names_need_not_be_utf_8(tree: Path) -> None:
    name = os.fsdecode(b"caf\xe9\n.png")
    (tree / name).write_bytes(b"")
    assert name in names(list(search().find([tree])))
    (listed,) = search().listed(names_in(os.fsencode(tree / name) + b"\0"), [tree])
    assert listed.name == Path(name)


def test_a_missing_file_is_an_error_of_its_own(tree: Path) -> None:
    missing, there = search().find([tree / "missing.png", tree / "a.png"])
    assert isinstance(missing.error, UsageError)
    assert str(missing.error) == f"{tree / 'missing.png'} does not exist"
    assert there.error is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_is_no_file(tree: Path) -> None:
    """Named itself it is refused, and in a folder passed over: whoever read it would wait."""
    os.mkfifo(tree / "pipe.png")
    (named,) = search().find([tree / "pipe.png"])
    assert isinstance(named.error, UsageError)
    assert str(named.error) == f"{tree / 'pipe.png'} is not a file"
    looking = search()
    assert names(list(looking.find([tree]))) == ["a.png", "b.JPG"]
    assert looking.others == 2  # with the notes


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a.png\nb c.png\r\n\nd.png", ["a.png", "b c.png", "d.png"]),
        (b"a\n.png\0b.png\0", ["a\n.png", "b.png"]),
        (b"\xef\xbb\xbfa.png\r\nb.png\r\n", ["a.png", "b.png"]),
        ("\ufeffa.png\r\né.png\r\n".encode("utf-16-le"), ["a.png", "é.png"]),
        ("\ufeffa.png\n".encode("utf-16-be") + b"\0", ["a.png", "\ufffd"]),  # and cut
        (b"\xff\xfe.png\n", [os.fsdecode(b"\xff\xfe.png")]),
        (b"", []),
    ],
)
def test_lists_have_a_name_in_each_line_or_before_each_zero(
    data: bytes, expected: list[str]
) -> None:
    assert [str(path) for path in names_in(data)] == expected


def test_a_listed_file_keeps_its_place_in_its_folder(tree: Path) -> None:
    listed = [tree / "sub" / "c.png", tree / "notes.txt", Path("/elsewhere.png")]
    first, second, third = search().listed(iter(listed), [tree])
    assert (first.name, second.name) == (Path("sub/c.png"), Path("notes.txt"))
    assert "is not in in" in str(third.error)
    (again,) = search().listed(iter([tree / "a.png"]), [])
    assert again.name == Path("in/a.png")  # from the current folder on
    assert names(list(search().listed(iter([tree / "sub"]), [tree]))) == ["sub/c.png"]
    assert names(list(search().listed(iter([tree]), [tree]))) == ["a.png", "b.JPG"]
    for roots in ([tree, tree / "sub"], [tree / "sub", tree]):  # the innermost one
        assert names(list(search().listed(iter([tree / "sub" / "c.png"]), roots))) == ["c.png"]


def test_a_list_never_means_all_of_the_current_folder(tree: Path) -> None:
    """As `find .` prints it first, of a folder that has something new."""
    refused, taken = search().listed(names_in(b".\n./in/a.png\n"), [])
    assert isinstance(refused.error, UsageError)
    assert "the current folder itself" in str(refused.error)
    assert taken.name == Path("in/a.png")


@pytest.mark.parametrize("given", ["in/sub/c.png", "in/**/c.png", "in/s*"])
def test_what_was_named_or_matched_keeps_its_place_when_it_is_listed(
    tree: Path, given: str
) -> None:
    """As those are that failed, which the same sources are given with."""
    (found,) = search().find([Path(given)])
    assert list(search().listed(iter([found.path]), [Path(given)])) == [found]
    others = list(search().listed(iter([Path("b.png"), Path("c.png")]), [Path(given)]))
    assert ["is not in" in str(other.error) for other in others] == [True, True]
