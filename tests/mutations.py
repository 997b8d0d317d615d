"""Damaged copies of files, by chance but repeatable: what transfers, disks and strangers do.

As a script it decodes many of them under a memory limit and a time limit for each, and ends with
an error at the first that leads to anything but a picture or an ImgmlpError:

    python tests/mutations.py COUNT [SEED]
"""

from __future__ import annotations

import random
import resource
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from imgmlp.codec import decoder
from imgmlp.codec.bitstream import container, metadata_sections
from imgmlp.engine import open_device
from imgmlp.errors import FormatError, ImgmlpError

PIXELS = 1000
MEMORY = 256 * 2**20  # bytes beyond what the program itself needs
SECONDS = 2.0  # for one file
INTERESTING = (0, 1, 2, 127, 128, 129, 254, 255)


def sample() -> bytes:
    """A small sound file with three sections."""
    return (Path(__file__).parent / "golden" / "rgb-alpha.imlp").read_bytes()


def decode(data: bytes) -> np.ndarray:
    """The picture in a file that claims to have no more pixels than the sample.

    Others are refused here: a picture of 2**28 pixels may take memory and time.
    """
    found = container.parse(data)
    if found.header.width * found.header.height > PIXELS:
        raise FormatError("too many pixels for a test", hint="none")
    metadata_sections.read(found)
    return decoder.decode(found, open_device("numpy"))


def parts(data: bytes) -> list[bytes]:
    """Header and sections of a sound file, without their checksums."""
    found = container.parse(data)
    ends = [len(section.data) for section in found.sections]
    cut: list[bytes] = []
    for size in reversed(ends):
        body = data[: len(data) - 4]
        head = 1 + len(container._varint(size))
        cut.insert(0, body[len(body) - size - head :])
        data = data[: len(body) - size - head]
    return [data[:-4], *cut]


def joined(pieces: list[bytes]) -> bytes:
    """A file of these parts, with the right checksums."""
    return b"".join(part + zlib.crc32(part).to_bytes(4, "big") for part in pieces)


def damage(data: bytes, chance: random.Random) -> bytes:
    """The bytes after one to four small accidents."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(found) + 1)
        end = min(len(found), at + chance.choice((1, 1, 2, 4, 16)))
        what = chance.randrange(7)
        if what == 0 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif what == 1 and at < len(found):
            found[at] = chance.choice(INTERESTING)
        elif what == 2:
            found[at:end] = chance.randbytes(end - at)
        elif what == 3:
            del found[at:end]
        elif what == 4:
            found[at:at] = chance.randbytes(chance.choice((1, 2, 8)))
        elif what == 5:
            found[at:at] = found[at:end]
        else:
            del found[at:]
    return bytes(found)


def mutants(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Damaged copies of a file; every second has right checksums, to be believed for longer."""
    chance = random.Random(seed)
    pieces = parts(data)
    for number in range(count):
        if number % 2:
            yield damage(data, chance)
        else:
            at = chance.randrange(len(pieces))
            changed = [*pieces]
            changed[at] = damage(pieces[at], chance)
            yield joined(changed)


def refused(read: Callable[[bytes], object], files: Iterator[bytes]) -> int:
    """How many files `read` refuses with an ImgmlpError; any other error passes through."""
    count = 0
    for data in files:
        try:
            read(data)
        except ImgmlpError as error:
            if not (str(error) and error.hint):
                raise AssertionError("an error without words") from error
            count += 1
    return count


def limited(read: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """`read` with a limit on time for each file."""

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s for one file")

    def reading(data: bytes) -> object:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            return read(data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    signal.signal(signal.SIGALRM, late)
    return reading


def limit_memory() -> None:
    """Let this process have MEMORY bytes more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main() -> None:
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    decode(sample())  # whatever is loaded late is loaded now
    limit_memory()
    files = mutants(sample(), count, seed)
    print(f"{refused(limited(decode), files):,} of {count:,} files were refused")


if __name__ == "__main__":
    main()
