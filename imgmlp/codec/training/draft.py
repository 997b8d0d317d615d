"""The file that a codec makes of a picture, with its figures, before it is verified."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from imgmlp.codec.bitstream import container, metadata_sections
from imgmlp.codec.bitstream.container import Codec, Container, Header, Section
from imgmlp.codec.training.checkpoint import Snapshot
from imgmlp.codec.training.target import Goal
from imgmlp.image import Picture, psnr, visible_fraction


@dataclass(frozen=True, eq=False)
class Draft:
    """A file's bytes and its figures."""

    bytes: bytes = field(repr=False)
    metrics: dict[str, Any]
    diverged: bool = False  # whether training diverged; the file holds the best state
    resumed: int = 0  # steps that an interrupted run had done before
    # Decodes the file faster than usual, with the help of what the encoder knows.
    decode: Callable[[Container], np.ndarray[Any, Any]] | None = field(default=None, repr=False)

    @staticmethod
    def added_to(snapshot: Snapshot, best: Draft | None) -> Snapshot:
        """A run's snapshot with the best file so far, if there is one."""
        if best is None:
            return Snapshot(snapshot.arrays, snapshot.values | {"best": None})
        data = {"best_file": np.frombuffer(best.bytes, np.uint8)}
        return Snapshot(snapshot.arrays | data, snapshot.values | {"best": best.metrics})

    @staticmethod
    def in_snapshot(saved: Snapshot) -> Draft | None:
        """The best file in a snapshot, if there is one."""
        metrics = saved.values["best"]
        return None if metrics is None else Draft(saved.arrays["best_file"].tobytes(), metrics)

    def distance(self, wanted: Goal, picture: Picture) -> tuple[bool, float]:
        """How far the file is from the target, as a sort key."""
        return distance(len(self.bytes), self.metrics["psnr"], wanted, picture)


def distance(size: int, psnr: float, wanted: Goal, picture: Picture) -> tuple[bool, float]:
    """How far a file of `size` bytes and a PSNR is from the target, as a sort key.

    For a lambda it is D + lambda R.
    """
    if wanted.kind != "lambda":
        return wanted.distance(size, psnr)
    bpp = 8 * size / (picture.width * picture.height)
    return False, math.pow(10, -psnr / 10) * visible_fraction(picture.pixels) + wanted.value * bpp


def written(picture: Picture, codec: Codec, sections: Sequence[Section], digest: bytes) -> bytes:
    """The bytes of a file: the codec's sections and the picture's metadata."""
    height, width, channels = picture.pixels.shape
    metadata = metadata_sections.sections(picture.metadata)
    return container.write(Header(width, height, channels, digest, codec), [*sections, *metadata])


def size(picture: Picture, codec: Codec, sections: Sequence[Section]) -> int:
    """The number of bytes of the file."""
    return len(written(picture, codec, sections, bytes(8)))


def draft(
    picture: Picture,
    wanted: Goal,
    codec: Codec,
    sections: Sequence[Section],
    pixels: np.ndarray[Any, Any],
    figures: dict[str, Any],
) -> Draft:
    """The file whose sections decode to `pixels`, uint8 [height, width, channels].

    `figures` are those of the codec alone.
    """
    data = written(picture, codec, sections, container.digest(pixels))
    metrics = {
        "width": picture.width,
        "height": picture.height,
        "channels": picture.channels,
        "bytes": len(data),
        "bpp": 8 * len(data) / (picture.width * picture.height),
        "psnr": psnr(picture.pixels, pixels),
        "target": str(wanted),
    }
    return Draft(data, metrics | figures)
