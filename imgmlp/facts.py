"""What `imgmlp info` prints: a description of a file from its header, without decoding it.

For an .imlp file no NumPy is imported, so that this takes hardly longer than starting Python.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from imgmlp.codec.bitstream import container
from imgmlp.codec.decoder import open_stored
from imgmlp.text import size


def text(path: Path, as_json: bool) -> str:
    """A file's description as lines of text or as JSON. Raises what `open_stored` raises."""
    facts = open_stored(path).facts
    return json.dumps(facts, indent=2) if as_json else lines(facts)


def lines(facts: dict[str, Any]) -> str:
    """A file's description as lines of text."""
    rows = {
        "format": f"{facts['format']}, version {facts['version']}",
        "picture": dimensions(facts["width"], facts["height"], facts["channels"]),
    }
    if "codec" in facts:
        sections = (f"{part['type']} {size(part['bytes'])}" for part in facts["sections"])
        rows["codec"] = facts["codec"]
        rows["digest"] = facts["digest"]
        rows["sections"] = f"{', '.join(sections)}, around them {size(facts['container_bytes'])}"
    else:
        low, high = facts["lowest_frequency"], facts["highest_frequency"]
        rows["network"] = f"{facts['network']}, {facts['parameters']:,} parameters"
        rows["features"] = f"{facts['features']}, {low:g} to {high:g} cycles per picture"
    icc = facts["icc_bytes"]
    rows["profile"] = size(icc) if icc else "none"
    if metadata := _metadata(facts):
        rows["metadata"] = metadata
    rows["size"] = f"{size(facts['bytes'])}, {facts['bits_per_pixel']:.3f} bits per pixel"
    return "\n".join(f"{name:<10}{value}" for name, value in rows.items())


def _metadata(facts: dict[str, Any]) -> str:
    kinds = ("EXIF", facts.get("exif_bytes")), ("XMP", facts.get("xmp_bytes"))
    parts = [f"{name} {size(count)}" for name, count in kinds if count]
    if dpi := facts.get("dpi"):
        parts.append(f"{'×'.join(f'{n:g}' for n in dict.fromkeys(dpi))} dpi")
    return ", ".join(parts)


def dimensions(width: int, height: int, channels: int) -> str:
    """A picture's size and channels, such as 512×300 RGB."""
    return f"{width}×{height} {container.CHANNELS[channels]}"
