"""Which version of this program runs, for what is kept on disk and may be of another one.

Knows nothing else.
"""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

KINDS = (".py", ".cl", ".bin")


@cache
def source_digest() -> str:
    """A digest of imgmlp's own source: of each file's place and content."""
    found, package = hashlib.sha256(), Path(__file__).parent
    inside = (os.path.join(folder, n) for folder, _, names in os.walk(package) for n in names)
    for path in sorted(Path(p) for p in inside if p.endswith(KINDS)):
        content = path.read_bytes()
        found.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()
