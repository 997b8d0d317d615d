"""What files say of themselves, without decoding them: `imgmlp info`.

Looking at a compact file needs no NumPy, and so takes hardly longer than starting Python.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Any

from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Container
from imgmlp.errors import FormatError, UsageError
from imgmlp.text import print_data, size

ZIP = b"PK\x03\x04"  # how an .npz archive begins

Facts = dict[str, Any]


def info(path: Path, as_json: bool) -> None:
    """Print what a file says of itself."""
    print_data(text(path, as_json))


def text(path: Path, as_json: bool) -> str:
    """What a file says of itself, as lines or JSON. Raises as `describe`."""
    facts = describe(path)
    return json.dumps(facts, indent=2) if as_json else _lines(facts)


def describe(path: str | PathLike[str]) -> Facts:
    """Facts about an .imlp or .npz file whose checksums are right.

    Raises UsageError if it cannot be read, FormatError if it is neither or is damaged.
    """
    path = Path(path)
    if is_archive(path):
        from imgmlp.codec.float_mlp import npz

        return npz.describe(path)
    return compact(container.read(path))


def is_archive(path: Path) -> bool:
    """Whether a file is an .npz archive; if not, it begins like an .imlp file.

    Raises FormatError if it is neither, UsageError also for a pipe, which cannot be read twice.
    """
    start = _start(path, len(ZIP))
    if start != ZIP and not container.SIGNATURE.startswith(start):
        hint = "give a file that imgmlp wrote"
        raise FormatError(f"{path} is neither an .imlp nor an .npz file", hint=hint)
    return start == ZIP


def _start(path: Path, count: int) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no file", hint="give a file")
        with path.open("rb") as stream:
            return stream.read(count)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", hint="check the name") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="check the file") from error


def compact(found: Container) -> Facts:
    """Facts about a compact file."""
    header = found.header
    data = sum(len(section.data) for section in found.sections)
    return {
        "format": "imgmlp-compact",
        "version": container.VERSION,
        "width": header.width,
        "height": header.height,
        "channels": header.channels,
        "codec": header.codec,
        "digest": header.digest.hex(),
        "sections": [
            {"type": section.type, "bytes": len(section.data), "critical": section.critical}
            for section in found.sections
        ],
        "icc_bytes": len(found.get(container.ICC) or b""),
        "container_bytes": found.size - data,
        "bytes": found.size,
        "bits_per_pixel": 8 * found.size / (header.width * header.height),
    }


def _lines(facts: Facts) -> str:
    """Facts as lines for people."""
    rows = {
        "format": f"{facts['format']}, version {facts['version']}",
        "picture": dimensions(facts["width"], facts["height"], facts["channels"]),
    }
    if "codec" in facts:
        sections = (f"{one['type']} {size(one['bytes'])}" for one in facts["sections"])
        rows["codec"] = facts["codec"]
        rows["digest"] = facts["digest"]
        rows["sections"] = f"{', '.join(sections)}, around them {size(facts['container_bytes'])}"
    else:
        low, high = facts["lowest_frequency"], facts["highest_frequency"]
        rows["network"] = f"{facts['network']}, {facts['parameters']:,} parameters"
        rows["features"] = f"{facts['features']}, {low:g} to {high:g} cycles per picture"
    icc = facts["icc_bytes"]
    rows["profile"] = size(icc) if icc else "none"
    rows["size"] = f"{size(facts['bytes'])}, {facts['bits_per_pixel']:.3f} bits per pixel"
    return "\n".join(f"{name:<10}{value}" for name, value in rows.items())


def dimensions(width: int, height: int, channels: int) -> str:
    """A picture's size and kind, as 512×300 RGB."""
    return f"{width}×{height} {container.CHANNELS[channels]}"
