"""Links between the documents, the code, the tests and the examples lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SEEDS = (ROOT / "docs" / "seeds.md").read_text("utf-8")

Link = tuple[str, str]  # what is shown, and where it leads


def links(text: str) -> list[Link]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\[([^\]]+)\]\(([^)\s]+)\)", prose)


def faults(text: str, folder: Path) -> list[str]:
    """Links to what is not there, and names that are not defined where they lead."""
    found = []
    for shown, target in links(text):
        if re.match(r"[a-z]+:|#", target):  # the web, or this page
            continue
        path = folder / target.partition("#")[0]
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


def done(text: str) -> list[str]:
    """The ideas that are ticked, with the lines that belong to them."""
    return [
        item for item in re.split(r"^(?=- |#)", text, flags=re.MULTILINE) if item[:5] == "- [x]"
    ]


def test_each_idea_has_code_a_test_and_an_example() -> None:
    ideas = done(SEEDS)
    assert len(ideas) > 40
    for idea in ideas:
        targets = " ".join(target for _, target in links(idea))
        for folder in ("../imgmlp/", "../tests/", "../examples/"):
            assert folder in targets, idea


def test_each_example_shows_an_idea() -> None:
    shown = {target for _, target in links(SEEDS)}
    assert {f"../examples/{p.name}" for p in (ROOT / "examples").glob("*.py")} <= shown
