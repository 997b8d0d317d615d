"""`imgmlp info`: what a file says of itself. Loads next to nothing."""

from __future__ import annotations

from pathlib import Path

from imgmlp import facts
from imgmlp.text import print_data


def run(path: Path, as_json: bool) -> None:
    """Print what a file says of itself."""
    print_data(facts.text(path, as_json))
