"""The file that a codec makes of a picture, and its figures; nobody has decoded it yet."""

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
    """A file's bytes, and figures of just these bytes."""

    bytes: bytes = field(repr=False)
    metrics: dict[str, Any]
    diverged: bool = False  # training could not go on; the best state is in the bytes
    resumed: int = 0  # steps that an interrupted run had done
    # A faster way to what the file decodes to than the usual one, where much is known of it.
    decode: Callable[[Container], np.ndarray[Any, Any]] | None = field(default=None, repr=False)

    @staticmethod
    def kept(best: Draft | None, snapshot: Snapshot) -> Snapshot:
        """A run's snapshot with the best file so far, if there is one."""
        if best is None:
            return Snapshot(snapshot.arrays, snapshot.values | {"best": None})
        data = {"best_file": np.frombuffer(best.bytes, np.uint8)}
        return Snapshot(snapshot.arrays | data, snapshot.values | {"best": best.metrics})

    @staticmethod
    def of(saved: Snapshot) -> Draft | None:
        """That file."""
        metrics = saved.values["best"]
        return None if metrics is None else Draft(saved.arrays["best_file"].tobytes(), metrics)

    def distance(self, wanted: Goal, picture: Picture) -> tuple[bool, float]:
        """The smaller, the better a file is."""
        return distance(len(self.bytes), self.metrics["psnr"], wanted, picture)


def distance(size: int, psnr: float, wanted: Goal, picture: Picture) -> tuple[bool, float]:
    """The smaller, the better a file of `size` bytes with such a PSNR is; by D + lambda R, where
    that is what is wanted."""
    if wanted.kind != "lambda":
        return wanted.distance(size, psnr)
    bpp = 8 * size / (picture.width * picture.height)
    return False, math.pow(10, -psnr / 10) * visible_fraction(picture.pixels) + wanted.value * bpp


def written(picture: Picture, codec: Codec, sections: Sequence[Section], digest: bytes) -> bytes:
    """The file of a picture that a codec's sections decode to; its metadata go along."""
    height, width, channels = picture.pixels.shape
    beside = metadata_sections.sections(picture.metadata)
    return container.write(Header(width, height, channels, digest, codec), [*sections, *beside])


def size(picture: Picture, codec: Codec, sections: Sequence[Section]) -> int:
    """Bytes of the file, whatever its sections decode to."""
    return len(written(picture, codec, sections, bytes(8)))


def draft(
    picture: Picture,
    wanted: Goal,
    codec: Codec,
    sections: Sequence[Section],
    pixels: np.ndarray[Any, Any],
    own: dict[str, Any],
) -> Draft:
    """The file of sections that decode to these pixels, uint8 [height, width, channels].

    `own` are figures that only the codec knows.
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
    return Draft(data, metrics | own)
