"""MkDocs hook that adds pages for linked files outside docs/ to the site.

On a code host, `../imgmlp/engine/compiler.py` leads to the file; the site would have no such page.
Every file that a document links to therefore becomes a page, and links are rewritten to it:
documents at the top of the repository become ordinary pages, code is shown with highlighting, and
binary files can be downloaded. This module does not import imgmlp.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
TOP = {  # documents outside docs/, and the names of their pages
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
BINARY = {".bin"}
LANGUAGES = {".py": "python", ".cl": "c", ".toml": "toml", ".yaml": "yaml"}
FENCED = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each of TOP, and for each file that one of these or of docs/ links to."""
    for name, uri in TOP.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text("utf-8")))
    documents = [file for file in files if file.src_uri.endswith(".md")]
    for document in documents:
        for _, link in LINK.findall(_prose(document.content_string)):
            _add_source(_repository_path(document.src_uri, link), files, config)
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Rewrite the links of a page relative to its position in the site."""
    if page.file.src_uri.startswith("source/"):
        return markdown
    parts = FENCED.split(markdown)
    return "".join(
        part if part.startswith("```") else LINK.sub(lambda m: _relinked(m, page), part)
        for part in parts
    )


def _relinked(link: re.Match[str], page: Page) -> str:
    path = _repository_path(page.file.src_uri, link[2])
    start = posixpath.dirname(page.file.src_uri) or "."
    return link[1] + posixpath.relpath(_page_uri(path), start)


def _repository_path(uri: str, link: str) -> str:
    """The target of a link, relative to the repository's top; `uri` is the page's own."""
    top = next((name for name, page in TOP.items() if page == uri), None)
    own = top or posixpath.join("docs", uri)
    return posixpath.normpath(posixpath.join(posixpath.dirname(own), link))


def _page_uri(path: str) -> str:
    """The page of a file of the repository, or the file itself, if it is in docs/."""
    if path in TOP:
        return TOP[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" + ".md" * (posixpath.splitext(path)[1] not in BINARY)


def _add_source(path: str, files: Files, config: MkDocsConfig) -> None:
    """Add a page that shows a file. A missing file is left to the strict build, which fails."""
    uri, file = _page_uri(path), ROOT / path
    if not uri.startswith("source/") or files.get_file_from_path(uri) or not file.is_file():
        return
    if file.suffix in BINARY:
        files.append(File.generated(config, uri, abs_src_path=str(file)))
        return
    text = file.read_text("utf-8")
    language = LANGUAGES.get(file.suffix, "text")
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    head = "---\nhide: [toc, navigation]\nsearch: {exclude: true}\n---\n"
    page = f'{head}# {path}\n\n{fence} {{.{language} linenums="1"}}\n{text}{fence}\n'
    files.append(File.generated(config, uri, content=page, inclusion=InclusionLevel.NOT_IN_NAV))


def _prose(text: str) -> str:
    return FENCED.sub("", text)
