"""A range coder for integers, exact to the last bit on every machine.

Part of the file format (docs/format-imlp.md). A range coder keeps an interval of integers. Every
symbol narrows it to the part that belongs to that symbol, in proportion to the symbol's frequency;
the result is the shortest number in the interval that remains. It uses integer arithmetic only and
does not know what the symbols mean.

The coder is a plain loop over Python's integers, because each step depends on the one before. NumPy
would be faster only with many interleaved streams, and each of those costs bytes.
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
    "encode_parts",
    "make_tables",
]

MAX_MAGNITUDE = 2**30  # of a symbol
MAX_SYMBOLS_PER_BYTE = 2**13  # the most probable symbol of all costs 1/4,625 byte
MAX_TABULATED = 1024  # magnitude of the symbols whose costs are tabulated
MAX_HISTOGRAM_RANGE = 2**12  # up to this range, counting with a histogram is faster than sorting

# The interval is a low end below 2**_STATE_BITS, beside a carry, and a width of at most that.
# Whenever the width falls below _MIN_WIDTH, the top word of the low end is written, and both are
# shifted up by a word.
_WORD_BITS = 16
_LOW_BITS = 40
_STATE_BITS = _LOW_BITS + _WORD_BITS
_STATE_BYTES = _STATE_BITS // 8
_MIN_WIDTH = 1 << _LOW_BITS
_LOW_MASK = _MIN_WIDTH - 1
_HALF = 1 << TOTAL_BITS - 1  # the frequency of either value of a raw bit

Array = np.ndarray[Any, Any]
# (start, frequency) of a symbol: the part of [0, 2**TOTAL_BITS) that belongs to it.
Part = tuple[int, int]
# For every slot of a distribution: end and start of its part, its frequency, and its symbol, or
# None for an escape. A slot is the index of a symbol, as in `Distribution`.
DecodingTable = tuple[list[int], list[int], list[int], list[int | None], Distribution]


def encode(symbols: Array, scales: Array | int) -> bytes:
    """The bytes of integers [count], each coded with the distribution that `scales` numbers.

    `scales` is one number from 0 to 87 for all symbols, or one for each (bitstream.probabilities).
    Raises ValueError unless the symbols are a vector of integers up to 2**30 in magnitude.
    """
    symbols, scales = _checked(symbols, scales)
    clipped, starts, frequencies = _parts(symbols, scales)
    parts = zip(starts.tolist(), frequencies.tolist(), strict=True)
    escaped = np.flatnonzero(clipped != symbols).tolist()
    if not escaped:
        return encode_parts(parts)
    escapes = {at: _escape_parts(int(symbols[at]), int(scales[at])) for at in escaped}
    return encode_parts(_with_escapes(parts, escapes))


def decode(data: bytes, count: int, scales: Array | int) -> Array:
    """The symbols that `encode` turned into these bytes with the same `scales`: int64 [count].

    Raises FormatError for bytes that `encode` does not make.
    """
    decoder = Decoder(data)
    symbols = decoder.read(count, scales)
    decoder.finish()
    return symbols


def bits(symbols: Array, scales: Array | int) -> float:
    """The bits that `encode` needs for these symbols, without up to 3 bytes at the end."""
    return float(np.sum(costs(symbols, scales)))


def costs(symbols: Array, scales: Array | int) -> Array:
    """The length of the code of each symbol, in bits: float64 [count]."""
    return _costs(*_checked(symbols, scales))


def cheapest(symbols: Array) -> tuple[int, float]:
    """A distribution that suits these integers [count]: its number, and the bits that they take.

    Only distributions around the scales that the mean magnitude and the variance suggest are tried.
    """
    symbols, _ = _checked(symbols, 0)
    if not symbols.size:
        return 0, 0.0
    values, counts = _histogram(symbols)
    mean = float(np.abs(values) @ counts) / symbols.size
    variance = float(np.square(values.astype(np.float64)) @ counts) / symbols.size
    largest = max(-int(values[0]), int(values[-1]))
    fitting = (_scale_number(mean, 15), _scale_number(math.sqrt(variance), LAPLACES + 7))
    nearby = {number + step for number in fitting for step in range(-4, 5)}
    candidates = sorted({min(max(number, 0), DISTRIBUTIONS - 1) for number in nearby})
    if largest <= MAX_TABULATED:
        costs = _tabulated_costs()[np.array(candidates)[:, None], values + MAX_TABULATED]
    else:
        costs = np.array([_value_costs(values, number) for number in candidates])
    sums = costs @ counts
    best = int(sums.argmin())
    return candidates[best], float(sums[best])


def _histogram(symbols: Array) -> tuple[Array, Array]:
    """The distinct integers, ascending, and how often each occurs."""
    low, high = int(symbols.min()), int(symbols.max())
    if high - low > MAX_HISTOGRAM_RANGE:
        return np.unique(symbols, return_counts=True)
    counts = np.bincount(symbols - low)
    occurring = np.flatnonzero(counts)
    return occurring + low, counts[occurring]


def make_tables() -> None:
    """Compute the tables of `cheapest` ahead of its first call."""
    _tabulated_costs()


@cache
def _tabulated_costs() -> Array:
    """The bits of every integer up to MAX_TABULATED in magnitude, with every distribution.

    float64 [DISTRIBUTIONS, 2 * MAX_TABULATED + 1].
    """
    values = np.arange(-MAX_TABULATED, MAX_TABULATED + 1)
    return np.array([_value_costs(values, number) for number in range(DISTRIBUTIONS)])


def _value_costs(values: Array, number: int) -> Array:
    """The bits of these integers, escapes included: float64 [count]."""
    chosen = distribution(number)
    slots = np.clip(values + chosen.reach + 1, 0, 2 * chosen.reach + 2)
    costs: Array = _slot_costs(number)[slots]
    is_escaped = np.abs(values) > chosen.reach
    rest = np.abs(values[is_escaped]) - chosen.reach - 1 + (1 << chosen.order)
    costs[is_escaped] += 2 * (np.frexp(rest)[1] - 1) - chosen.order + 1  # see `_escape_parts`
    return costs


@cache
def _slot_costs(number: int) -> Array:
    """The bits of every slot of a distribution: float64 [slots]."""
    costs: Array = TOTAL_BITS - np.log2(np.diff(_edges(number)))
    return costs


@cache
def _edges(number: int) -> Array:
    """The starts of a distribution's parts, and the end of the last: int64 [slots + 1]."""
    return np.array(distribution(number).starts, np.int64)


def _distinct(numbers: Array) -> list[int]:
    """The distinct numbers, ascending. The first call of `np.unique` would load more of NumPy."""
    distinct: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return distinct


def _scale_number(scale: float, unit_number: int) -> int:
    """The number of the distribution nearest to a scale; number `unit_number` has a scale of 1."""
    return unit_number + round(4 * math.log2(max(scale, 2**-4)))


def _checked(symbols: Array, scales: Array | int) -> tuple[Array, Array]:
    """Symbols and distribution numbers as int64 [count]. Raises ValueError."""
    symbols = np.asarray(symbols)
    if symbols.ndim != 1 or (symbols.size and symbols.dtype.kind not in "iu"):
        raise ValueError(f"symbols are {symbols.dtype}{list(symbols.shape)}, not integers [count]")
    if symbols.size:
        low, high = int(symbols.min()), int(symbols.max())
        if max(-low, high) > MAX_MAGNITUDE:
            raise ValueError(f"symbols from {low} to {high} are beyond ±2**30")
    return symbols.astype(np.int64), _numbers(scales, symbols.size)


def _numbers(scales: Array | int, count: int) -> Array:
    """Distribution numbers as int64 [count]. Raises ValueError."""
    scales = np.asarray(scales)
    if scales.shape not in ((), (count,)) or (scales.size and scales.dtype.kind not in "iu"):
        found = f"{scales.dtype}{list(scales.shape)}"
        raise ValueError(f"scales are {found}, not one integer or [{count}] of them")
    if scales.size and not (scales.min() >= 0 and scales.max() < DISTRIBUTIONS):
        found = f"{scales.min()} to {scales.max()}"
        raise ValueError(f"scales are {found}, not 0 to {DISTRIBUTIONS - 1}")
    return np.broadcast_to(scales.astype(np.int64), (count,))


def _parts(symbols: Array, scales: Array) -> tuple[Array, Array, Array]:
    """Symbols clipped to the reach of their distributions, and starts and frequencies of parts."""
    clipped, starts, frequencies = (np.empty_like(symbols) for _ in range(3))
    for number in _distinct(scales):
        reach, edges = distribution(number).reach, _edges(number)
        at = np.flatnonzero(scales == number)
        slots = np.clip(symbols[at] + reach + 1, 0, edges.size - 2)
        starts[at], frequencies[at] = edges[slots], edges[slots + 1] - edges[slots]
        clipped[at] = np.clip(symbols[at], -reach, reach)
    return clipped, starts, frequencies


def _costs(symbols: Array, scales: Array) -> Array:
    clipped, _, frequencies = _parts(symbols, scales)
    costs = TOTAL_BITS - np.log2(frequencies)
    for at in np.flatnonzero(clipped != symbols):
        costs[at] += len(_escape_parts(int(symbols[at]), int(scales[at])))
    return costs


def _escape_parts(symbol: int, number: int) -> list[Part]:
    """What follows an escape: the distance of the symbol beyond the reach, as raw bits.

    The bits are an Exp-Golomb code of the distribution's order.
    """
    chosen = distribution(number)
    value = abs(symbol) - chosen.reach - 1 + (1 << chosen.order)
    length = value.bit_length() - 1
    code = "1" * (length - chosen.order) + "0" + format(value, "b")[1:]
    return [(_HALF if bit == "1" else 0, _HALF) for bit in code]


def _with_escapes(parts: Iterable[Part], escapes: dict[int, list[Part]]) -> Iterator[Part]:
    """Parts of symbols, with those of the raw bits inserted after each escape."""
    for at, part in enumerate(parts):
        yield part
        if at in escapes:
            yield from escapes[at]


def encode_parts(parts: Iterable[Part]) -> bytes:
    """The bytes of symbols that are given by their parts."""
    encoder = Encoder()
    encoder.encode_parts(parts)
    return encoder.finish()


class Encoder:
    """Encodes symbols, given by their parts, in batches of any size."""

    def __init__(self) -> None:
        self._low, self._width = 0, 1 << _STATE_BITS
        self._words: list[int] = []  # bit 16 of each is a carry into the word before

    def encode_parts(self, parts: Iterable[Part]) -> None:
        low, width, words = self._low, self._width, self._words
        for start, frequency in parts:
            unit = width >> TOTAL_BITS
            low += start * unit
            width = frequency * unit
            while width < _MIN_WIDTH:
                words.append(low >> _LOW_BITS)
                low = (low & _LOW_MASK) << _WORD_BITS
                width <<= _WORD_BITS
        self._low, self._width = low, width

    def suspend(self) -> tuple[int, int]:
        """The state for a kernel that continues: low end and width of the interval."""
        return self._low, self._width

    def resume(self, low: int, width: int, words: Array) -> None:
        """Take over the state from a kernel, with the words (and carries) that it wrote."""
        self._low, self._width = low, width
        self._words += words.tolist()

    def finish(self) -> bytes:
        """All bytes, which end with the shortest number in the remaining interval."""
        # The interval is at least _MIN_WIDTH wide: some number in it has 40 low bits of 0.
        words = [*self._words, self._low + _LOW_MASK >> _LOW_BITS]
        carry = 0
        for at in range(len(words) - 1, -1, -1):
            carry, words[at] = divmod(words[at] + carry, 1 << _WORD_BITS)
        return np.array(words, ">u2").tobytes()


class Decoder:
    """Decodes symbols in batches of any size, so that distributions may depend on earlier symbols.

    Raises FormatError for bytes that `encode` does not produce, at the latest in `finish`.
    """

    def __init__(self, data: bytes) -> None:
        padded = data + bytes(_STATE_BYTES)
        rest = padded[_STATE_BYTES:]
        words = np.frombuffer(rest, ">u2", len(rest) // 2).astype(np.uint16)
        self._words = array("H", words.tobytes())
        self._position = 0  # of the next word to read
        # The coded number, relative to the interval's low end.
        self._code = int.from_bytes(padded[:_STATE_BYTES], "big")
        self._width = 1 << _STATE_BITS
        self._byte_count = len(data)
        self._remaining = MAX_SYMBOLS_PER_BYTE * (len(data) + 2)

    def read(self, count: int, scales: Array | int) -> Array:
        """The next symbols: int64 [count]. `scales` are as for `encode`."""
        if not 0 <= count <= self._remaining:
            problem = f"{count:,} coded values cannot be in {self._byte_count:,} bytes"
            raise FormatError(problem)
        self._remaining -= count
        try:
            tables = _decoding_tables(scales, count)
        except ValueError:  # the numbers of distributions may come from a damaged file
            problem = "the coded values name a distribution that does not exist"
            raise FormatError(problem) from None
        try:
            return np.array(self._symbols(tables), np.int64)
        except IndexError:  # beyond the last word, or beyond the part of the last symbol
            raise _damaged() from None

    def read_slots(
        self, numbers: Iterable[int], near: Mapping[int, list[int]], first: int,
        rows: Mapping[int, list[int]],
    ) -> list[int]:  # fmt: skip
        """The next slots, one from each of the distributions with these numbers.

        `rows` hold the edges of all slots of a distribution, from 0 to 2**26. `near` holds only
        some of them, from edge `first` on; most slots are found there without a whole row.
        """
        code, width, position = self._code, self._width, self._position
        words, slots = self._words, []
        try:
            for number in numbers:
                unit = width >> TOTAL_BITS
                row, before, value = near[number], first - 1, code // unit
                edge = bisect_right(row, value)
                if not 0 < edge < len(row):
                    row, before = rows[number], -1
                    edge = bisect_right(row, value)
                start = row[edge - 1]
                code -= start * unit
                width = (row[edge] - start) * unit
                while width < _MIN_WIDTH:
                    code = code << _WORD_BITS | words[position]
                    position += 1
                    width <<= _WORD_BITS
                slots.append(edge + before)
        except IndexError:  # beyond the last word, or beyond the last slot
            raise _damaged() from None
        self._code, self._width, self._position = code, width, position
        return slots

    def suspend(self) -> tuple[Array, int, int, int]:
        """The state for a kernel that continues: uint16 words, code, width and position."""
        words = np.frombuffer(self._words, np.uint16)
        return words, self._code, self._width, self._position

    def resume(self, code: int, width: int, position: int, damaged: int) -> None:
        """Take over the state from a kernel. Raises FormatError if that found no symbol."""
        if damaged:
            raise _damaged()
        self._code, self._width, self._position = code, width, position

    def finish(self) -> None:
        """Raise FormatError unless the bytes end where the symbols do."""
        if self._byte_count != 2 * self._position + 2 or self._code >= _MIN_WIDTH:
            raise _damaged()

    def _symbols(self, tables: Iterable[DecodingTable]) -> list[int]:
        code, width, position = self._code, self._width, self._position
        words, decoded = self._words, []
        for ends, starts, frequencies, symbols, chosen in tables:
            unit = width >> TOTAL_BITS
            slot = bisect_right(ends, code // unit)
            code -= starts[slot] * unit
            width = frequencies[slot] * unit
            while width < _MIN_WIDTH:
                code = code << _WORD_BITS | words[position]
                position += 1
                width <<= _WORD_BITS
            symbol = symbols[slot]
            if symbol is None:  # an escape, in the first slot for a negative symbol
                self._code, self._width, self._position = code, width, position
                magnitude = self._escaped_magnitude(chosen)
                symbol = magnitude if slot else -magnitude
                code, width, position = self._code, self._width, self._position
            decoded.append(symbol)
        self._code, self._width, self._position = code, width, position
        return decoded

    def _escaped_magnitude(self, chosen: Distribution) -> int:
        """The magnitude of a symbol beyond its distribution's reach, by an Exp-Golomb code."""
        length = chosen.order
        while self._bit():
            length += 1
            if 1 << length > MAX_MAGNITUDE:  # else a stream of ones would never end
                raise _damaged()
        value = 1
        for _ in range(length):
            value = value << 1 | self._bit()
        magnitude = chosen.reach + 1 + value - (1 << chosen.order)
        if magnitude > MAX_MAGNITUDE:
            raise _damaged()
        return magnitude

    def _bit(self) -> int:
        self._width = (self._width >> TOTAL_BITS) * _HALF
        bit = int(self._code >= self._width)
        self._code -= bit * self._width
        if self._code >= self._width:
            raise _damaged()
        if self._width < _MIN_WIDTH:
            self._code = self._code << _WORD_BITS | self._words[self._position]
            self._position += 1
            self._width <<= _WORD_BITS
        return bit


def _decoding_tables(scales: Array | int, count: int) -> Iterable[DecodingTable]:
    """The table of each symbol; if all are the same, without memory for `count` of them."""
    numbers = _numbers(scales, count)
    if np.ndim(scales) == 0:
        return repeat(_decoding_table(int(np.asarray(scales))), count)
    tables = {number: _decoding_table(number) for number in _distinct(numbers)}
    return map(tables.__getitem__, numbers.tolist())


@cache
def _decoding_table(number: int) -> DecodingTable:
    chosen = distribution(number)
    starts, ends = chosen.starts[:-1], chosen.starts[1:]
    frequencies = [end - start for start, end in zip(starts, ends, strict=True)]
    symbols = [None, *range(-chosen.reach, chosen.reach + 1), None]
    return list(ends), list(starts), frequencies, symbols, chosen


def _damaged() -> FormatError:
    return FormatError("the coded values are damaged")
