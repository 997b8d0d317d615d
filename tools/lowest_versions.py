"""Print the lowest versions of the dependencies that pyproject.toml allows, for pip.

python tools/lowest_versions.py > lowest.txt
pip install -r lowest.txt '.[test]'
"""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main() -> None:
    """Print a line for each dependency."""
    for needed in tomllib.loads(PROJECT.read_text())["project"]["dependencies"]:
        print(needed.replace(">=", "=="))


if __name__ == "__main__":
    main()
