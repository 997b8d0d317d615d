"""What both kinds of pages share: their head, and files with pieces of HTML, CSS and JavaScript."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files


def asset(name: str) -> str:
    """A style sheet, a script or a piece of a page."""
    return files("imgmlp.report").joinpath("assets", name).read_text("utf-8")


def filled(name: str, values: Mapping[str, str]) -> str:
    """A piece of HTML in which values replace the comments with their names."""
    text = asset(name)
    for key, value in values.items():
        text = text.replace(f"<!-- {key} -->", value)
    return text


def head(title: str, styles: str, more: str = "") -> str:
    """The beginning of a page; `more` is additional HTML in its head."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"{more}<title>{escape(title)}</title>\n<style>\n{styles}</style>\n</head>\n"
    )
