"""A second decoder of .imlp, written from docs/format-imlp.md alone.

Shares nothing with imgmlp and does not care for speed, so that an error in either of the two, or
in what the document says, shows in the tests that compare them.
"""

from __future__ import annotations

import hashlib
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


def container(data: bytes, codec: int = 1) -> tuple[dict[str, int | bytes], dict[str, bytes]]:
    """(what the header says, the data of each section)."""
    assert data[:9] == bytes.fromhex("89494D4C0D0A1A0A01")
    header: dict[str, int | bytes] = {}
    header["width"], at = varint(data, 9)
    header["height"], at = varint(data, at)
    header["channels"], depth, found, flags, count = data[at : at + 5]
    assert (depth, found, flags) == (8, codec, 0)
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


def inflated(sections: dict[str, bytes], kind: str) -> bytes | None:
    """What a section of deflated data holds."""
    if kind not in sections:
        return None
    stream = zlib.decompressobj(wbits=-15)
    found = stream.decompress(sections[kind])
    assert stream.eof
    assert not stream.unused_data
    assert len(found) <= 2**24
    return found


def resolution(sections: dict[str, bytes]) -> tuple[float, float] | None:
    """Dots an inch along rows and along columns."""
    if "d" not in sections:
        return None
    assert len(sections["d"]) == 8
    across, down = (int.from_bytes(sections["d"][n : n + 4], "big") / 1000 for n in (0, 4))
    assert 0 < across <= 10**6
    assert 0 < down <= 10**6
    return across, down


C, S = 4611599204741358747, 28296773447188932


@cache
def sines() -> list[int]:
    sine, c, d = [0] * 1024, 2**62, 0
    for a in range(257):
        sine[a] = d + 2**51 >> 52
        c, d = c * C - d * S >> 62, c * S + d * C >> 62
    for a in range(257):
        sine[512 - a] = sine[a]
    for a in range(512):
        sine[512 + a] = -sine[a]
    return sine


@cache
def frequency(k: int, K: int, n: int) -> int:
    """The largest f with f**D * n**(D - k) <= 2**(31 * D)."""
    D = max(1, K - 1)
    f = 0
    for bit in reversed(range(33)):
        larger = f + 2**bit
        if larger**D * n ** (D - k) <= 2 ** (31 * D):
            f = larger
    return f


@cache
def axis(K: int, n: int, i: int) -> list[int]:
    """K sines and K cosines of sample i of n."""
    phases = [(2 * i + 1) * frequency(k, K, n) >> 1 for k in range(K)]
    entries = [(p + 2**21 >> 22) % 1024 for p in phases]
    return [sines()[(a + turn) % 1024] for turn in (0, 256) for a in entries]


def layers(N: bytes, W: bytes, channels: int) -> tuple[int, list[tuple]]:
    """(K, for each layer: weights as rows, biases B, m, e)."""
    K, L, width = N[0], N[1], int.from_bytes(N[2:4], "big")
    sizes = [4 * K] + [width] * L + [channels]
    heads = [N[4 + 4 * i : 8 + 4 * i] for i in range(L + 1)]
    numbers: list[int] = []
    for (_, _, of_weights, of_biases), a, b in zip(heads, sizes, sizes[1:], strict=False):
        numbers += [of_weights] * (a * b) + [of_biases] * b
    symbols = iter(integers(W, numbers))
    found = []
    for (s, t, _, _), a, b in zip(heads, sizes, sizes[1:], strict=False):
        rows = [[next(symbols) for _ in range(b)] for _ in range(a)]
        B = [next(symbols) * 2 ** (10 - t) for _ in range(b)]
        found.append((rows, B, 4 + s % 4, 24 - s // 4))
    return K, found


def sample(z: int) -> int:
    return min(16384, max(0, z + 8192)) * 255 + 8192 >> 14


def activation(z: int) -> int:
    x = min(32767, max(-32767, z))
    u = min(4096, max(0, x + 2048))
    v = (u * u >> 12) * (12288 - 2 * u) >> 12
    return x * v + 2048 >> 12


def picture(data: bytes) -> list[list[list[int]]]:
    """The samples of a file, as rows of pixels."""
    header, sections = container(data)
    width, height = header["width"], header["height"]
    K, found = layers(sections["N"], sections["W"], header["channels"])
    pixels = []
    for y in range(height):
        pixels.append([])
        for x in range(width):
            values = axis(K, width, x) + axis(K, height, y)
            for number, (rows, B, m, e) in enumerate(found):
                last = number == len(found) - 1
                weighted = [[v * w for w in row] for v, row in zip(values, rows, strict=True)]
                sums = [sum(column) for column in zip(B, *weighted, strict=True)]
                q = e - 7 if last else e - 3
                z = [((A + 4 >> 3) * m + 2 ** (q - 1)) >> q for A in sums]
                values = [sample(n) if last else activation(n) for n in z]
            pixels[-1].append(values)
    samples = bytes(v for row in pixels for pixel in row for v in pixel)
    assert hashlib.sha256(samples).digest()[:8] == header["digest"]
    return pixels
