"""Links between the documents, the code, the tests and the examples lead somewhere.

So do the names of files, in the maps of engine and codec, in the recipes for adding to them, and
wherever else a document names one.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from test_layers import BELOW

from imgmlp import engine

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("*.md")),
]
ENGINE = (ROOT / "docs" / "engine.md").read_text("utf-8")
FEATURES = (ROOT / "docs" / "features.md").read_text("utf-8")

Link = tuple[str, str]  # what is shown, and where it leads


def links(text: str) -> list[Link]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\[([^\]]+)\]\(([^)\s]+)\)", prose)


def anchors(text: str) -> list[str]:
    """What leads to a page's headings, as forges name it, and mkdocs.yml too."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", one).strip().lower().replace(" ", "-") for one in headings]


def faults(text: str, folder: Path) -> list[str]:
    """Links to what is not there, and names that are not defined where they lead."""
    found = []
    for shown, target in links(text):
        if re.match(r"[a-z]+:", target):  # the web
            continue
        target, _, anchor = target.partition("#")
        path = folder / target
        page = text if not target else path.read_text("utf-8") if path.suffix == ".md" else ""
        if anchor and anchor not in anchors(page):
            found.append(f"{target}#{anchor} is no heading")
        if not target:
            continue
        name = shown.strip("`")
        if not path.exists():
            found.append(f"{target} does not exist")
        elif path.suffix == ".py" and re.fullmatch(r"\w+", name):
            defined = rf"^\s*(def|class) {name}\b"
            if not re.search(defined, path.read_text("utf-8"), re.MULTILINE):
                found.append(f"{target} does not define {name}")
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_what_it_names(path: Path) -> None:
    assert faults(path.read_text("utf-8"), path.parent) == []


def test_a_link_that_leads_nowhere_is_noticed() -> None:
    text = (
        "[a](missing.py) [`Expr`](imgmlp/engine/ir/symbolic.py) [Xpr](imgmlp/engine/ir/symbolic.py)"
    )
    assert faults(text, ROOT) == [
        "missing.py does not exist",
        "imgmlp/engine/ir/symbolic.py does not define Xpr",
    ]


def test_a_link_to_no_heading_is_noticed() -> None:
    text = "## 2 + 3, `x`\n[a](#2--3-x) [b](#2-3) [c](README.md#use) [d](README.md#usage)"
    assert faults(text, ROOT) == ["#2-3 is no heading", "README.md#usage is no heading"]


def test_the_page_of_the_engine_has_all_of_its_public_names() -> None:
    """With their docstrings, or in backticks; other names of the page are there too."""
    page = (ROOT / "docs" / "engine-api.md").read_text("utf-8")
    filled = re.findall(r"^::: imgmlp\.engine\.(\w+)$", page, re.MULTILINE)
    assert len(set(filled)) == len(filled)
    assert set(filled) <= set(engine.__all__)
    assert set(engine.__all__) <= {*filled, *re.findall(r"`(\w+)`", page)}
    assert all(hasattr(engine, name) for name in engine.__all__)


def items(text: str) -> list[str]:
    """The items of a page's lists, with the lines that belong to them."""
    return [part for part in re.split(r"^(?=- |#)", text, flags=re.MULTILINE) if part[:2] == "- "]


def test_each_feature_has_code_a_test_and_an_example() -> None:
    features = items(FEATURES)
    assert len(features) > 40
    for feature in features:
        targets = " ".join(target for _, target in links(feature))
        for folder in ("../imgmlp/", "../tests/", "../examples/"):
            assert folder in targets, feature


def test_each_example_shows_a_feature() -> None:
    shown = {target for _, target in links(FEATURES)}
    assert {f"../examples/{p.name}" for p in (ROOT / "examples").glob("*.py")} <= shown


def rows(text: str, head: str) -> list[list[str]]:
    """The cells of the table whose first cell is `head`, without its head."""
    (table,) = re.findall(rf"^\| {head} \|.*\n\|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_page_of_the_format_knows_the_start_files() -> None:
    """Their size and digest, as a decoder that is written from the page needs these numbers."""
    page = (ROOT / "docs" / "format-imlp.md").read_text("utf-8")
    told = {(row[1], row[2], row[-1]) for row in rows(page, "start")}
    assert told == {
        (
            f"[{path.name}](../{path.relative_to(ROOT).as_posix()})",
            f"{path.stat().st_size:,}",
            f"`{hashlib.sha256(path.read_bytes()).hexdigest()}`",
        )
        for path in (ROOT / "imgmlp" / "codec" / "latent").glob("start-*.bin")
    }


def short(place: str) -> str:
    """As the map names a folder of the engine or the codec."""
    return re.sub(r"^(engine|codec)\.", "", place).replace(".", "/")


def test_the_map_says_what_may_be_imported() -> None:
    found = {}
    for package, head in (("engine", "place"), ("codec", "codec's place")):
        for place, _, below in rows(ENGINE, head):
            name = place.strip("`").removesuffix("/").removesuffix(".py").replace("/", ".")
            found[f"{package}.{name}"] = set() if below == "nothing" else set(below.split(", "))
    assert found.pop("codec.encoder.py`, `decoder") == {"the folders below"}
    assert found == {
        place: {
            "ir/target.py" if name == "engine.ir.target" else short(name) for name in below.split()
        }
        for place, below in BELOW.items()
    }


def test_files_that_the_map_names_are_there() -> None:
    """A file without a folder is in that of the file before it."""
    named = []
    for _, _, files in rows(ENGINE, "form"):
        folder = ""
        for file in re.findall(r"[\w/]+\.py", files):
            folder, _, name = file.rpartition("/") if "/" in file else (folder, "", file)
            named.append(ROOT / "imgmlp" / "engine" / folder / name)
    assert len(named) > 40
    assert [path for path in named if not path.exists()] == []


def test_the_page_of_many_files_names_every_file_of_it() -> None:
    page = (ROOT / "docs" / "scale.md").read_text("utf-8")
    files = (ROOT / "imgmlp" / "batch").glob("[!_]*.py")
    assert [path.name for path in files if f"`imgmlp/batch/{path.name}`" not in page] == []


# Where a name in backticks begins: at the top, in the package, or in one of its large folders.
ROOTS = [ROOT / folder for folder in (".", "imgmlp", "imgmlp/engine", "imgmlp/codec", "imgmlp/cli")]


def missing(text: str) -> list[str]:
    """Files in backticks that are nowhere; `*` stands for any part of a name."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = re.findall(r"`([^`]+)`", prose)
    named = [name for span in spans for name in re.findall(r"[\w./*-]+\.(?:py|cl)\b", span)]
    return [name for name in named if not any(any(root.glob(name)) for root in ROOTS)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_documents_name_are_there(path: Path) -> None:
    assert missing(path.read_text("utf-8")) == []


def test_a_file_that_is_nowhere_is_noticed() -> None:
    text = "`engine/device/probe.py`, `engine/probe.py`, `python tools/none.py`, `kernels/*.cl`\n"
    assert missing(text) == ["engine/probe.py", "tools/none.py"]


def test_files_that_recipes_name_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    named = re.findall(r"`((?:imgmlp|tests|examples)/[\w/.]+)`", text)
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_hooks_before_a_commit_are_what_is_checked_before_the_tests() -> None:
    hooks = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    before, _, _ = (ROOT / ".ci" / "run").read_text("utf-8").partition("pytest")
    checks = re.findall(r"^\.venv/bin/(?!pip).*", before, re.MULTILINE)
    assert hooks == checks
