"""Write the signatures, fields and docstrings of the public API into docs/python.md.

    python tools/python_page.py

The text between `<!-- NAME -->` and `<!-- end -->` is generated from the code of NAME, so that the
page can be read without the code, also on a code host. tests/test_public_api.py fails if the page
is out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import imgmlp.errors

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
PART = re.compile(r"(<!-- ([\w.]+) -->\n\n).*?<!-- end -->", re.DOTALL)


def filled(page: str) -> str:
    """The page with all generated parts up to date."""
    return PART.sub(lambda part: f"{part[1]}{described(part[2])}\n<!-- end -->", page)


def described(name: str) -> str:
    """The generated text for a function, a class, or the module of errors."""
    if name == "imgmlp.errors":
        return errors()
    module, _, last = name.rpartition(".")
    source = inspect.getsource(import_module(module))
    (found,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == last)
    assert isinstance(found, ast.FunctionDef | ast.ClassDef)
    return (
        f"### {last}\n\n```python\n{shown(found, source.splitlines())}\n```\n\n"
        f"{ast.get_docstring(found)}\n"
    )


def shown(found: ast.FunctionDef | ast.ClassDef, lines: list[str]) -> str:
    """A function's signature, or a class with its fields."""
    if isinstance(found, ast.FunctionDef):
        text = lines[found.lineno - 1 : found.body[0].lineno - 1]
        return "\n".join(text).removesuffix(":")
    fields = [node for node in found.body if isinstance(node, ast.AnnAssign)]
    text = [line for node in fields for line in lines[node.lineno - 1 : node.end_lineno]]
    return "\n".join([f"class {found.name}:", *(re.sub(r" = field\(.*?\)", "", t) for t in text)])


def errors() -> str:
    """A table of the errors that a caller may meet, with their exit codes."""
    rows = [
        f"| `{name}` | {error.exit_code} | {' '.join((error.__doc__ or '').split())} |"
        for name, error in vars(imgmlp.errors).items()
        if isinstance(error, type) and issubclass(error, imgmlp.errors.ImgmlpError)
    ]
    return "\n".join(["| error | exit code | meaning |", "|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
