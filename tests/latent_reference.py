"""A second decoder of the latent codec, written from docs/format-imlp.md alone.

Shares nothing with imgmlp and does not care for speed, as imlp_reference.py, whose container and
streams it uses.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from itertools import pairwise
from math import prod
from pathlib import Path

from imlp_reference import DOCUMENT, Stream, container, integers

Q = [int(n) for n in re.findall(r"```\n([\d\s]+)```", DOCUMENT)[1].split()]
NEIGHBOURS = [
    (int(down.replace("−", "-")), int(right.replace("−", "-")))
    for down, right in re.findall(r"\((−?\d), (−?\d)\)", DOCUMENT)
]
STARTS = {
    int(start): (int(S), int(E), int(K), own == "yes")
    for start, S, E, K, own in re.findall(
        r"\[start-(\d+)\.bin\]\S+ \| [\d,]+ \| (\d+) \| (\d+) \| (\d+) \| (yes|no)", DOCUMENT
    )
}
PACKAGE = Path(__file__).parent.parent / "imgmlp"
LIMIT = 2**18 - 1

Grid = list[list[int]]


def tensors(N: bytes, W: bytes, channels: int) -> dict[str, tuple[list[int], int]]:
    """Numbers and exponent of each."""
    L, S, E, K = sizes(N)
    filtered, has_hyper = coded(N) >= 2**15, hyper(N)
    found = shapes(L, S, E, K, channels, filtered, has_hyper, extra(N))
    if N[0] >= 128:
        return started(found, N[1], W, extra(N))
    steps = list(N[6:])
    if len(steps) != 2 * len(found):
        raise ValueError("wrong length")
    of_each = zip(found.values(), steps[1::2], strict=True)
    symbols = iter(integers(W, [number for size, number in of_each for _ in range(prod(size))]))
    return {
        name: ([next(symbols) for _ in range(prod(size))], exponent)
        for (name, size), exponent in zip(found.items(), steps[::2], strict=True)
    }


def coded(N: bytes) -> int:
    return int.from_bytes(N[2:4] if N[0] >= 128 else N[4:6], "big")


def hyper(N: bytes) -> bool:
    return coded(N) >> 14 & 1 == 1


def extra(N: bytes) -> int:
    """X."""
    return coded(N) >> 12 & 3


def sizes(N: bytes) -> tuple[int, int, int, int]:
    """L, S, E and K."""
    return (N[0] - 128, *STARTS[N[1]][:3]) if N[0] >= 128 else (N[0], N[1], N[2], N[3])


def shapes(
    L: int, S: int, E: int, K: int, C: int,
    filtered: bool = False, hyper: bool = False, X: int = 0,
) -> dict[str, tuple[int, ...]]:  # fmt: skip
    return {
        "entropy.0.weight": (K + 3 * hyper, E), "entropy.0.bias": (E,),
        "entropy.1.weight": (E, E), "entropy.1.bias": (E,),
        "entropy.2.weight": (E, 2), "entropy.2.bias": (2,),
        "upsampling": (L - 1, 4),
        "synthesis.0.weight": (L + filtered + X, S), "synthesis.0.bias": (S,),
        "synthesis.1.weight": (S, S), "synthesis.1.bias": (S,),
        "synthesis.2.weight": (S, C), "synthesis.2.bias": (C,),
        "residual.0.weight": (3, 3, C, C), "residual.0.bias": (C,),
        "residual.1.weight": (3, 3, C, C), "residual.1.bias": (C,),
    } | ({"filter": (3, 3)} if filtered else {})  # fmt: skip


def started(
    found: dict[str, tuple[int, ...]], start: int, W: bytes, X: int
) -> dict[str, tuple[list[int], int]]:
    stream, first = Stream(W), numbers_of_start(start)
    answer = {}
    for name, size in found.items():
        finer, whole, number = (stream.symbol(n) for n in (17, 7, 27))
        e = (8 if name == "upsampling" else 7) + finer
        if whole not in (0, 1) or not 0 <= e <= 25:
            raise ValueError("no tensor")
        numbers = [stream.symbol(number + 15) for _ in range(prod(size))]
        of_grids = name in ("upsampling", "synthesis.0.weight", "entropy.0.weight")
        of_pixels = name.startswith(("synthesis.2.", "residual."))
        if not whole and (of_grids or of_pixels or len(first.get(name, [])) == len(numbers)):
            row, s = size[-1], first[name]
            if name == "synthesis.0.weight":
                own = s[7 * row :] or [0] * row  # the filter's
                grids = len(numbers) // row - ("filter" in found) - X
                s = [s[min(n, 6) * row + at] for n in range(grids) for at in range(row)]
                s += own * ("filter" in found) + [0] * (X * row)
            elif name == "entropy.0.weight":
                s = s + [0] * (len(numbers) - len(s))  # those for hyperlatents
            elif name == "upsampling":
                s = [s[min(n, 5) * row + at] for n in range(size[0]) for at in range(row)]
            elif of_pixels:
                s = of_channels(name, s, found["synthesis.2.bias"][0])
            for at in range(len(numbers)):
                numbers[at] += s[at] << e - 11 if e >= 11 else s[at] + 2 ** (10 - e) >> 11 - e
        answer[name] = numbers, e
    stream.finish()
    return answer


def of_channels(name: str, s: list[int], C: int) -> list[int]:
    inputs = 3 if name.startswith("residual") and name.endswith("weight") else 1
    answer = []
    for place in range(len(s) // inputs // 3):
        rows = [s[(place * inputs + i) * 3 :][:3] for i in range(inputs)]
        if C < 3:
            rows = [[(sum(map(sum, rows)) + 1) // 3]]
        for i in range(C if inputs == 3 else 1):
            row = rows[i] if i < len(rows) else [0] * C
            alpha = 1024 if name == "synthesis.2.bias" else 0
            answer += row + [alpha] * (C - len(row))
    return answer


def numbers_of_start(start: int) -> dict[str, list[int]]:
    data = (PACKAGE / "codec" / "latent" / f"start-{start}.bin").read_bytes()
    values = iter([int.from_bytes(data[at : at + 2], "big", signed=True)
                   for at in range(0, len(data), 2)])  # fmt: skip
    S, E, K, filtered = STARTS[start]
    return {
        name: [next(values) for _ in range(prod(size))]
        for name, size in shapes(7, S, E, K, 3, filtered).items()
    }


def bounded(value: int) -> int:
    return min(LIMIT, max(-LIMIT, value))


def R(A: int, q: int) -> int:
    return bounded(A if q == 0 else A + 2 ** (q - 1) >> q)


def activation(x: int, f: int) -> int:
    n = min(x, 2 ** (f + 1))
    u = max(0, (n >> f - 10) + 2048)
    v = (u * u >> 12) * (12288 - 2 * u) >> 12
    return (n * v + 2048 >> 12) + x - n


class Network:
    def __init__(self, name: str, found: dict[str, tuple[list[int], int]]) -> None:
        self.layers = []
        for number in range(3):
            w, e = found[f"{name}.{number}.weight"]
            b, t = found[f"{name}.{number}.bias"]
            columns = [w[o :: len(b)] for o in range(len(b))]
            self.layers.append((columns, [n * 2 ** (10 + e - t) for n in b], e))

    def sums(self, values: list[int]) -> tuple[list[int], int]:
        """The sums of the last layer, and its exponent."""
        for number, (columns, B, e) in enumerate(self.layers):
            A = [
                bias + sum(v * w for v, w in zip(values, column, strict=True))
                for column, bias in zip(columns, B, strict=True)
            ]
            if number < 2:
                values = [activation(R(one, e), 10) for one in A]
        return A, e


@cache
def powers(factor: int, count: int) -> list[int]:
    found = [2**31]
    for _ in range(count):
        found.append(found[-1] * factor >> 31)
    return found


@cache
def frequencies(i: int, p: int) -> list[int]:
    F = powers(Q[i], 64)
    G = powers(F[64], 128)
    before = [0]
    for d in range(-127, 128):
        share = G[-d] * F[p] >> 31 if d <= 0 else 2**32 - (G[d - 1] * F[64 - p] >> 31)
        before.append((share * (2**26 - 4096) >> 32) + 16 * (d + 128))
    before.append(2**26)
    return [b - a for a, b in pairwise(before)]


def grid(
    stream: Stream, network: Network, K: int, rows: int, columns: int, above: list[Grid]
) -> Grid:
    found = [[0] * columns for _ in range(rows)]

    def at(y: int, x: int) -> int:
        return found[y][x] if 0 <= y < rows and 0 <= x < columns else 0

    places = [(x + 4 * y, y, x) for y in range(rows) for x in range(columns)]
    for _, y, x in sorted(places):
        values = [1024 * at(y + down, x + right) for down, right in NEIGHBOURS[:K]]
        values += [one[y][x] for one in above]
        (A0, A1), e = network.sums(values)
        mean = min(4032, max(-4096, A0 + 2 ** (e + 3) >> e + 4))
        i = min(255, max(0, (A1 + 2 ** (e + 4) >> e + 5) - 16))
        m = mean + 32 >> 6
        latent = m + stream.place(frequencies(i, mean + 32 - 64 * m)) - 128
        if not -64 <= latent <= 63:
            raise ValueError("no latent")
        found[y][x] = latent
    return found


def thinned(one: Grid, n: int, level: int) -> Grid:
    apart = 2 ** (level - n)
    return [[1024 * value for value in row[::apart]] for row in one[::apart]]


def maps_above(hyperlatents: list[Grid], level: int, size: tuple[int, int]) -> list[Grid]:
    """Of grids 4, 5 and 6."""
    found = []
    for n, own in zip((4, 5, 6), hyperlatents, strict=True):
        one = thinned(own, n, max(n, level))
        for at in range(n - 1, level - 1, -1):
            rows, columns = (-(-side // 2**at) for side in size)
            if at < 2:
                one = [[one[y // 2][x // 2] for x in range(columns)] for y in range(rows)]
            else:
                taps = [-3, 29, 111, -9]
                wide = transposed([doubled(row, taps, 7, columns) for row in one])
                one = transposed([doubled(column, taps, 7, rows) for column in wide])
        found.append(one)
    return found


def doubled(v: list[int], f: list[int], e: int, count: int) -> list[int]:
    def at(i: int) -> int:
        return v[min(len(v) - 1, max(0, i))]

    found = []
    for i in range(len(v)):
        found.append(R(sum(f[n] * at(i - 2 + n) for n in range(4)), e))
        found.append(R(sum(f[3 - n] * at(i - 1 + n) for n in range(4)), e))
    return found[:count]


def transposed(values: Grid) -> Grid:
    return [list(column) for column in zip(*values, strict=True)]


def upsampled(grids: list[Grid], taps: list[int], e: int) -> list[Grid]:
    maps: list[Grid] = []
    for level in reversed(range(len(grids))):
        f, own = taps[4 * level : 4 * level + 4], grids[level]
        wide = [[doubled(row, f, e, len(own[0])) for row in values] for values in maps]
        maps = [
            transposed([doubled(column, f, e, len(own)) for column in transposed(values)])
            for values in wide
        ]
        maps.insert(0, [[1024 * latent for latent in row] for row in own])
    return maps


def through(finest: Grid, w: list[int], e: int) -> Grid:
    rows, columns = len(finest), len(finest[0])
    answers = [[0] * columns for _ in range(rows)]
    for row in range(rows):
        for column in range(columns):
            for i in range(3):
                for j in range(3):
                    y, x = row + i - 1, column + j - 1
                    if 0 <= y < rows and 0 <= x < columns:
                        answers[row][column] += w[3 * i + j] * finest[y][x] * 1024
    return [[R(A, e) for A in row] for row in answers]


def convolved(y: list[list[list[int]]], number: int, found: dict) -> list[list[list[int]]]:
    """R(A, e) of every pixel."""
    w, e = found[f"residual.{number}.weight"]
    b, t = found[f"residual.{number}.bias"]
    C = len(b)
    rows, columns = len(y), len(y[0])
    answers = []
    for row in range(rows):
        answers.append([])
        for column in range(columns):
            A = [n * 2 ** (14 + e - t) for n in b]
            for i in range(3):
                for j in range(3):
                    if 0 <= row + i - 1 < rows and 0 <= column + j - 1 < columns:
                        for c, value in enumerate(y[row + i - 1][column + j - 1]):
                            for o in range(C):
                                A[o] += w[((3 * i + j) * C + c) * C + o] * value
            answers[-1].append([R(one, e) for one in A])
    return answers


def picture(data: bytes) -> list[list[list[int]]]:
    """The samples of a file, as rows of pixels."""
    header, sections = container(data, codec=2)
    N, height, width = sections["N"], header["height"], header["width"]
    found = tensors(N, sections["W"], header["channels"])
    stream, network = Stream(sections["L"]), Network("entropy", found)
    L, _, _, K = sizes(N)
    there = coded(N) % 2**12
    grids, hyperlatents, others = [], [], list[Grid]()
    for _ in range(extra(N)):
        others.insert(0, grid(stream, network, K, height, width, []))
    for level in (6, 5, 4) if hyper(N) else ():
        size = -(-height // 2**level), -(-width // 2**level)
        zeros = [[[0] * size[1]] * size[0]] * 3
        hyperlatents.insert(0, grid(stream, network, K, *size, zeros))
    for level in reversed(range(L)):
        size = -(-height // 2**level), -(-width // 2**level)
        if there >> level & 1:
            above = maps_above(hyperlatents, level, (height, width)) if hyperlatents else []
            grids.insert(0, grid(stream, network, K, *size, above))
        else:
            grids.insert(0, [[0] * size[1] for _ in range(size[0])])
    stream.finish()
    maps = upsampled(grids, *found["upsampling"])
    if "filter" in found:
        maps.append(through(grids[0], *found["filter"]))
    maps += [[[1024 * latent for latent in row] for row in one] for one in others]
    network = Network("synthesis", found)
    y = []
    for row in range(height):
        sums = [network.sums([values[row][column] for values in maps]) for column in range(width)]
        y.append([[R(one, e - 4) for one in A] for A, e in sums])
    for number in range(2):
        z = convolved(y, number, found)
        for row in range(height):
            for column in range(width):
                pairs = zip(y[row][column], z[row][column], strict=True)
                y[row][column] = [
                    a + b if number else bounded(a + activation(b, 14)) for a, b in pairs
                ]
    pixels = [[[sample(one) for one in pixel] for pixel in row] for row in y]
    samples = bytes(v for row in pixels for pixel in row for v in pixel)
    assert hashlib.sha256(samples).digest()[:8] == header["digest"]
    return pixels


def sample(y: int) -> int:
    return min(16384, max(0, y + 8192)) * 255 + 8192 >> 14
