"""A second decoder of .imlp, written from docs/format-imlp.md alone.

Shares nothing with imgmlp and does not care for speed, so that an error in either of the two, or
in what the document says, shows in the tests that compare them.
"""

from __future__ import annotations

import re
import zlib
from functools import cache
from pathlib import Path

DOCUMENT = (Path(__file__).parent.parent / "docs" / "format-imlp.md").read_text("utf-8")
D = [int(n) for n in re.search(r"```\n([\d\s]+)```", DOCUMENT)[1].split()]


@cache
def distribution(i: int) -> tuple[list[int], int, int]:
    """(frequency of each place, reach, order of the escape code)."""
    T = {}
    if i < 48:
        d = D[i]
        order = max(0, (i - 15) // 4)
        T[1] = d << 30
        for k in range(1, 4000):
            T[k + 1] = T[k] * d * d >> 64
    else:
        j = i - 48
        d = D[2 * j + 1]
        order = max(0, (j - 7) // 4 - 2)
        w, r = [1 << 62], [d << 30]
        while w[-1]:
            w.append(w[-1] * r[-1] >> 62)
            r.append(r[-1] * d * d >> 64)
        S = [0]
        for density in reversed(w):
            S.insert(0, S[0] + density)
        T = {k: (2 * S[k] << 62) // (2 * S[0] - w[0]) for k in range(1, len(S))}
    R = max(k for k in T if T[k] >= 2**46)
    A = [(T[k + 1] * (2**25 - R - 1) >> 62) + R + 1 - k for k in range(R + 1)]
    side = [A[k - 1] - A[k] for k in range(1, R + 1)]
    return [A[R], *side[::-1], 2**26 - 2 * A[0], *side, A[R]], R, order


class Stream:
    def __init__(self, data: bytes) -> None:
        self.data, self.steps, self.W = data, 0, 2**56
        self.C = int.from_bytes((data + bytes(7))[:7], "big")

    def place(self, frequencies: list[int]) -> int:
        U = self.W >> 26
        p = F = 0
        while (F + frequencies[p]) * U <= self.C:
            F += frequencies[p]
            p += 1
            if p == len(frequencies):
                raise ValueError("in no place")
        self.C -= F * U
        self.W = frequencies[p] * U
        while self.W < 2**40:
            at = 7 + 2 * self.steps
            pair = (self.data + bytes(7))[at : at + 2]
            if len(pair) < 2:
                raise ValueError("past the end")
            self.W, self.C = self.W << 16, self.C << 16 | int.from_bytes(pair, "big")
            self.steps += 1
        return p

    def bit(self) -> int:
        return self.place([2**25, 2**25])

    def symbol(self, i: int) -> int:
        frequencies, R, m = distribution(i)
        place = self.place(frequencies)
        if 0 < place < 2 * R + 2:
            return place - R - 1
        n = m
        while self.bit():
            n += 1
            if n > 30:
                raise ValueError("too long")
        x = 0
        for _ in range(n):
            x = 2 * x + self.bit()
        magnitude = R + 1 + 2**n + x - 2**m
        if magnitude > 2**30:
            raise ValueError("too large")
        return magnitude if place else -magnitude

    def finish(self) -> None:
        if len(self.data) != 2 * self.steps + 2 or self.C >= 2**40:
            raise ValueError("wrong end")


def integers(data: bytes, numbers: list[int]) -> list[int]:
    """The integers of a stream, each coded with the distribution of its number."""
    if len(numbers) > 8192 * (len(data) + 2):
        raise ValueError("too many")
    stream = Stream(data)
    symbols = [stream.symbol(i) for i in numbers]
    stream.finish()
    return symbols


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, place after it)."""
    value = 0
    for group in range(5):
        byte = data[at + group]
        value |= (byte & 127) << 7 * group
        if byte < 128:
            if byte == 0 and group:
                raise ValueError("longer than it needs")
            return value, at + group + 1
    raise ValueError("too long")


def container(data: bytes) -> tuple[dict[str, int | bytes], dict[str, bytes]]:
    """(what the header says, the data of each section)."""
    assert data[:9] == bytes.fromhex("89494D4C0D0A1A0A01")
    header: dict[str, int | bytes] = {}
    header["width"], at = varint(data, 9)
    header["height"], at = varint(data, at)
    header["channels"], depth, codec, flags, count = data[at : at + 5]
    assert (depth, codec, flags) == (8, 1, 0)
    header["digest"] = data[at + 5 : at + 13]
    at += 13
    assert zlib.crc32(data[:at]).to_bytes(4, "big") == data[at : at + 4]
    at += 4
    sections: dict[str, bytes] = {}
    for _ in range(count):
        begin, kind = at, chr(data[at])
        size, at = varint(data, at + 1)
        assert kind not in sections
        sections[kind] = data[at : at + size]
        at += size
        assert zlib.crc32(data[begin:at]).to_bytes(4, "big") == data[at : at + 4]
        at += 4
    assert at == len(data)
    return header, sections
