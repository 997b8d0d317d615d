"""A range coder for integers, exact to the last bit on every machine.

Part of the file format (docs/format-imlp.md). A range coder narrows an interval to every
symbol's share of it, and writes the shortest number that lies in what is left. Integer
arithmetic only, and nothing known about what the integers mean.

The coder is a plain loop over Python's integers, because each step needs the one before. NumPy
would be faster only with many interleaved streams, and each of them costs bytes.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np

from imgmlp.codec.bitstream.probabilities import (
    DISTRIBUTIONS,
    LAPLACES,
    TOTAL_BITS,
    Distribution,
    distribution,
)
from imgmlp.errors import FormatError

__all__ = [
    "DISTRIBUTIONS",
    "MAX_MAGNITUDE",
    "Decoder",
    "Encoder",
    "bits",
    "cheapest",
    "costs",
    "decode",
    "encode",
    "make_tables",
    "narrow",
]

MAX_MAGNITUDE = 2**30  # of a symbol
SPREAD = 2**12  # between integers that are counted by place, which takes less time than sorting
MAX_SYMBOLS_PER_BYTE = 2**13  # the cheapest symbol of all costs a 4,625th of a byte

NEAR = 1024  # magnitude of values whose costs are looked up
_WORD_BITS = 16  # leave or enter the interval at a time
_LOW_BITS = 40
_STATE_BITS = _LOW_BITS + _WORD_BITS
_NARROWEST = 1 << _LOW_BITS  # width of the interval between two symbols; the widest is 2**56
_LOW = _NARROWEST - 1
_STATE_BYTES = _STATE_BITS // 8
_HALF = 1 << TOTAL_BITS - 1

Array = np.ndarray[Any, Any]
Share = tuple[int, int]  # where a symbol's part of 2**26 starts, and how wide it is
# Of each place: where its part ends and starts, how wide it is, and its symbol if not an escape.
Table = tuple[list[int], list[int], list[int], list[int | None], Distribution]


def encode(symbols: Array, scales: Array | int) -> bytes:
    """The bytes of integers [count], each coded with the distribution that `scales` names.

    `scales` is a number from 0 to 87 for all symbols, or one for each (bitstream.probabilities).
    Raises ValueError unless the symbols are a vector of integers up to 2**30 in magnitude.
    """
    symbols, scales = _checked(symbols, scales)
    clipped, starts, widths = _shares(symbols, scales)
    shares = zip(starts.tolist(), widths.tolist(), strict=True)
    escaped = np.flatnonzero(clipped != symbols).tolist()
    if not escaped:
        return narrow(shares)
    beyond = {at: _escape(int(symbols[at]), int(scales[at])) for at in escaped}
    return narrow(_with_escapes(shares, beyond))


def decode(data: bytes, count: int, scales: Array | int) -> Array:
    """int64 [count]: the symbols that `encode` made these bytes of, with the same scales.

    Raises FormatError for bytes that `encode` does not make.
    """
    decoder = Decoder(data)
    symbols = decoder.read(count, scales)
    decoder.finish()
    return symbols


def bits(symbols: Array, scales: Array | int) -> float:
    """What `encode` spends on these symbols, in bits, but for up to 3 bytes of its end."""
    return float(np.sum(costs(symbols, scales)))


def costs(symbols: Array, scales: Array | int) -> Array:
    """The same of each symbol, float64 [count]."""
    return _costs(*_checked(symbols, scales))


def cheapest(symbols: Array) -> tuple[int, float]:
    """The number of a distribution that codes these integers [count] in few bits, and how many."""
    symbols, _ = _checked(symbols, 0)
    if not symbols.size:
        return 0, 0.0
    values, counts = _counted(symbols)
    mean = float(np.abs(values) @ counts) / symbols.size
    variance = float(np.square(values.astype(np.float64)) @ counts) / symbols.size
    largest = max(-int(values[0]), int(values[-1]))
    fitting = (_nearest(mean, 15), _nearest(math.sqrt(variance), LAPLACES + 7))
    near = {number + step for number in fitting for step in range(-4, 5)}
    candidates = sorted({min(max(number, 0), DISTRIBUTIONS - 1) for number in near})
    if largest <= NEAR:
        costs = _near_costs()[np.array(candidates)[:, None], values + NEAR]
    else:
        costs = np.array([_value_costs(values, number) for number in candidates])
    sums = costs @ counts
    best = int(sums.argmin())
    return candidates[best], float(sums[best])


def _counted(symbols: Array) -> tuple[Array, Array]:
    """The integers that there are, ascending, and how often each is there."""
    low, high = int(symbols.min()), int(symbols.max())
    if high - low > SPREAD:
        return np.unique(symbols, return_counts=True)
    counts = np.bincount(symbols - low)
    found = np.flatnonzero(counts)
    return found + low, counts[found]


def make_tables() -> None:
    """All that `cheapest` looks up, which is made once, before somebody waits for it."""
    _near_costs()


@cache
def _near_costs() -> Array:
    """float64 [DISTRIBUTIONS, 2 * NEAR + 1]: the bits of each whole number from -NEAR to NEAR."""
    values = np.arange(-NEAR, NEAR + 1)
    return np.array([_value_costs(values, number) for number in range(DISTRIBUTIONS)])


def _value_costs(values: Array, number: int) -> Array:
    """float64 [count]: the bits of these integers, escapes included."""
    known = distribution(number)
    found: Array = _place_costs(number)[np.clip(values + known.reach + 1, 0, 2 * known.reach + 2)]
    beyond = np.abs(values) > known.reach
    rest = np.abs(values[beyond]) - known.reach - 1 + (1 << known.order)
    found[beyond] += 2 * (np.frexp(rest)[1] - 1) - known.order + 1  # as `_escape` has it
    return found


@cache
def _place_costs(number: int) -> Array:
    """float64 [places of a distribution], bits."""
    costs: Array = TOTAL_BITS - np.log2(np.diff(_edges(number)))
    return costs


@cache
def _edges(number: int) -> Array:
    """int64 [places of a distribution + 1]: where their shares begin, and the end."""
    return np.array(distribution(number).starts, np.int64)


def _used(numbers: Array) -> list[int]:
    """The numbers of distributions that are among these [count]; NumPy's own way loads more of it
    for the first time than that takes."""
    found: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return found


def _nearest(scale: float, one: int) -> int:
    """The number of a scale, where number `one` has a scale of 1."""
    return one + round(4 * math.log2(max(scale, 2**-4)))


def _checked(symbols: Array, scales: Array | int) -> tuple[Array, Array]:
    """Both as int64 [count]. Raises ValueError."""
    symbols = np.asarray(symbols)
    if symbols.ndim != 1 or (symbols.size and symbols.dtype.kind not in "iu"):
        raise ValueError(f"symbols are {symbols.dtype}{list(symbols.shape)}, not integers [count]")
    if symbols.size:
        low, high = int(symbols.min()), int(symbols.max())
        if max(-low, high) > MAX_MAGNITUDE:
            raise ValueError(f"symbols from {low} to {high} are beyond ±2**30")
    return symbols.astype(np.int64), _numbers(scales, symbols.size)


def _numbers(scales: Array | int, count: int) -> Array:
    """int64 [count]: numbers of distributions. Raises ValueError."""
    scales = np.asarray(scales)
    if scales.shape not in ((), (count,)) or (scales.size and scales.dtype.kind not in "iu"):
        found = f"{scales.dtype}{list(scales.shape)}"
        raise ValueError(f"scales are {found}, not one integer or [{count}] of them")
    if scales.size and not (scales.min() >= 0 and scales.max() < DISTRIBUTIONS):
        found = f"{scales.min()} to {scales.max()}"
        raise ValueError(f"scales are {found}, not 0 to {DISTRIBUTIONS - 1}")
    return np.broadcast_to(scales.astype(np.int64), (count,))


def _shares(symbols: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Symbols as far as their distributions reach, and the starts and widths of their shares."""
    clipped, starts, widths = (np.empty_like(symbols) for _ in range(3))
    for number in _used(scales):
        reach, edges = distribution(number).reach, _edges(number)
        mine = np.flatnonzero(scales == number)
        places = np.clip(symbols[mine] + reach + 1, 0, edges.size - 2)
        starts[mine], widths[mine] = edges[places], edges[places + 1] - edges[places]
        clipped[mine] = np.clip(symbols[mine], -reach, reach)
    return clipped, starts, widths


def _costs(symbols: Array, scales: Array) -> Array:
    """float64 [count], bits."""
    clipped, _, widths = _shares(symbols, scales)
    costs = TOTAL_BITS - np.log2(widths)
    for at in np.flatnonzero(clipped != symbols):
        costs[at] += len(_escape(int(symbols[at]), int(scales[at])))
    return costs


def _escape(symbol: int, number: int) -> list[Share]:
    """What follows an escape: how far the symbol lies beyond, as an Exp-Golomb code in bits."""
    known = distribution(number)
    value = abs(symbol) - known.reach - 1 + (1 << known.order)
    length = value.bit_length() - 1
    code = "1" * (length - known.order) + "0" + format(value, "b")[1:]
    return [(_HALF if bit == "1" else 0, _HALF) for bit in code]


def _with_escapes(shares: Iterable[Share], beyond: dict[int, list[Share]]) -> Iterator[Share]:
    for at, share in enumerate(shares):
        yield share
        if at in beyond:
            yield from beyond[at]


def narrow(shares: Iterable[Share]) -> bytes:
    """The bytes of shares (start, width) of 2**26: the shortest number in what they leave."""
    encoder = Encoder()
    encoder.narrow(shares)
    return encoder.finish()


class Encoder:
    """Writes shares (start, width) of 2**26, in parts of any size."""

    def __init__(self) -> None:
        self._low, self._width = 0, 1 << _STATE_BITS
        self._words: list[int] = []  # each with a carry into the one before, as bit 16

    def narrow(self, shares: Iterable[Share]) -> None:
        low, width, words = self._low, self._width, self._words
        for start, share in shares:
            unit = width >> TOTAL_BITS
            low += start * unit
            width = share * unit
            while width < _NARROWEST:
                words.append(low >> _LOW_BITS)
                low = (low & _LOW) << _WORD_BITS
                width <<= _WORD_BITS
        self._low, self._width = low, width

    def suspend(self) -> tuple[int, int]:
        """For a kernel that goes on writing: the interval's low end and its width."""
        return self._low, self._width

    def resume(self, low: int, width: int, words: Array) -> None:
        """After that, with the words that came out of the interval, integers with their carries."""
        self._low, self._width = low, width
        self._words += words.tolist()

    def finish(self) -> bytes:
        """All bytes: those of the shortest number in what is left of the interval."""
        words = [*self._words, self._low + _LOW >> _LOW_BITS]  # wide enough for one such number
        carry = 0
        for at in range(len(words) - 1, -1, -1):
            carry, words[at] = divmod(words[at] + carry, 1 << _WORD_BITS)
        return np.array(words, ">u2").tobytes()


class Decoder:
    """Reads symbols from the bytes that `encode` made, in parts of any size.

    So later distributions may depend on earlier symbols. Raises FormatError for bytes that
    `encode` does not make; that may be noticed only by `finish`, at their end.
    """

    def __init__(self, data: bytes) -> None:
        padded = data + bytes(_STATE_BYTES)
        rest = padded[_STATE_BYTES:]
        words = np.frombuffer(rest, ">u2", len(rest) // 2).astype(np.uint16)
        self._words = array("H", words.tobytes())
        self._position = 0  # of the next word
        self._code = int.from_bytes(padded[:_STATE_BYTES], "big")  # above the interval's low end
        self._width = 1 << _STATE_BITS
        self._bytes = len(data)
        self._left = MAX_SYMBOLS_PER_BYTE * (len(data) + 2)

    def read(self, count: int, scales: Array | int) -> Array:
        """int64 [count]: the next symbols; scales as for `encode`."""
        if not 0 <= count <= self._left:
            problem = f"{count:,} coded values cannot be in {self._bytes:,} bytes"
            raise FormatError(problem)
        self._left -= count
        try:
            tables = _tables(scales, count)
        except ValueError:  # numbers of distributions come from files, too
            problem = "the coded values name a distribution that does not exist"
            raise FormatError(problem) from None
        try:
            return np.array(self._symbols(tables), np.int64)
        except IndexError:  # past the end of the words, or in no symbol's share
            raise _damaged() from None

    def places(
        self, numbers: Iterable[int], near: Mapping[int, list[int]], first: int,
        rows: Mapping[int, list[int]],
    ) -> list[int]:  # fmt: skip
        """The next places, each in the row of a number: its places' edges, from 0 to 2**26.

        `near` has of every number some edges from the one at `first` on, between which most places
        are, so that few whole rows are looked into.
        """
        code, width, position = self._code, self._width, self._position
        words, found = self._words, []
        try:
            for number in numbers:
                unit = width >> TOTAL_BITS
                row, before, wanted = near[number], first - 1, code // unit
                place = bisect_right(row, wanted)
                if not 0 < place < len(row):
                    row, before = rows[number], -1
                    place = bisect_right(row, wanted)
                start = row[place - 1]
                code -= start * unit
                width = (row[place] - start) * unit
                while width < _NARROWEST:
                    code = code << _WORD_BITS | words[position]
                    position += 1
                    width <<= _WORD_BITS
                found.append(place + before)
        except IndexError:  # past the end of the words, or in no place
            raise _damaged() from None
        self._code, self._width, self._position = code, width, position
        return found

    def suspend(self) -> tuple[Array, int, int, int]:
        """For a kernel that goes on reading: uint16 words, and code, width, and words taken."""
        words = np.frombuffer(self._words, np.uint16)
        return words, self._code, self._width, self._position

    def resume(self, code: int, width: int, taken: int, damaged: int) -> None:
        """After that. Raises FormatError if the kernel found no symbol."""
        if damaged:
            raise _damaged()
        self._code, self._width, self._position = code, width, taken

    def finish(self) -> None:
        """Check that the bytes end where the symbols do."""
        if self._bytes != 2 * self._position + 2 or self._code >= _NARROWEST:
            raise _damaged()

    def _symbols(self, tables: Iterable[Table]) -> list[int]:
        code, width, position = self._code, self._width, self._position
        words, found = self._words, []
        for ends, starts, widths, symbols, known in tables:
            unit = width >> TOTAL_BITS
            place = bisect_right(ends, code // unit)
            code -= starts[place] * unit
            width = widths[place] * unit
            while width < _NARROWEST:
                code = code << _WORD_BITS | words[position]
                position += 1
                width <<= _WORD_BITS
            symbol = symbols[place]
            if symbol is None:
                self._code, self._width, self._position = code, width, position
                symbol = self._beyond(known) if place else -self._beyond(known)
                code, width, position = self._code, self._width, self._position
            found.append(symbol)
        self._code, self._width, self._position = code, width, position
        return found

    def _beyond(self, known: Distribution) -> int:
        """The magnitude of a symbol that is out of reach."""
        length = known.order
        while self._bit():
            length += 1
            if 1 << length > MAX_MAGNITUDE:  # or a stream of ones would go on and on
                raise _damaged()
        value = 1
        for _ in range(length):
            value = value << 1 | self._bit()
        magnitude = known.reach + 1 + value - (1 << known.order)
        if magnitude > MAX_MAGNITUDE:
            raise _damaged()
        return magnitude

    def _bit(self) -> int:
        self._width = (self._width >> TOTAL_BITS) * _HALF
        bit = int(self._code >= self._width)
        self._code -= bit * self._width
        if self._code >= self._width:
            raise _damaged()
        if self._width < _NARROWEST:
            self._code = self._code << _WORD_BITS | self._words[self._position]
            self._position += 1
            self._width <<= _WORD_BITS
        return bit


def _tables(scales: Array | int, count: int) -> Iterable[Table]:
    """That of each symbol, without memory for `count` of them where all are the same."""
    numbers = _numbers(scales, count)
    if np.ndim(scales) == 0:
        return repeat(_table(int(np.asarray(scales))), count)
    known = {number: _table(number) for number in _used(numbers)}
    return map(known.__getitem__, numbers.tolist())


@cache
def _table(number: int) -> Table:
    known = distribution(number)
    starts, ends = known.starts[:-1], known.starts[1:]
    widths = [end - start for start, end in zip(starts, ends, strict=True)]
    symbols = [None, *range(-known.reach, known.reach + 1), None]
    return list(ends), list(starts), widths, symbols, known


def _damaged() -> FormatError:
    return FormatError("the coded values are damaged")
