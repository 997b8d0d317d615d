"""A range coder for integers, exact to the last bit on every machine.

Part of the file format (docs/format-imlp.md). A range coder keeps an interval of integers. Every
symbol narrows it to the part that belongs to that symbol, in proportion to the symbol's frequency;
the result is the shortest number in the interval that remains. It uses integer arithmetic only and
does not know what the symbols mean.

The coder is a plain loop over Python's integers, because each step depends on the one before. NumPy
would be faster only with many interleaved streams, and each of those costs bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import repeat

import numpy as np

from imgmlp.codec.bitstream.probabilities import TOTAL_BITS, Distribution, distribution
from imgmlp.codec.bitstream.symbol_parts import (
    MAX_MAGNITUDE,
    RAW_BIT_FREQUENCY,
    Array,
    Part,
    check_symbols,
    distinct,
    distribution_numbers,
    escape_parts,
    symbol_parts,
)
from imgmlp.errors import FormatError

MAX_SYMBOLS_PER_BYTE = 2**13  # the most probable symbol of all costs 1/4,625 byte

# The interval is a low end below 2**_STATE_BITS, beside a carry, and a width of at most that.
# Whenever the width falls below _MIN_WIDTH, the top word of the low end is written, and both are
# shifted up by a word.
_WORD_BITS = 16
_LOW_BITS = 40
_STATE_BITS = _LOW_BITS + _WORD_BITS
_STATE_BYTES = _STATE_BITS // 8
_MIN_WIDTH = 1 << _LOW_BITS
_LOW_MASK = _MIN_WIDTH - 1

# For every slot of a distribution: end and start of its part, its frequency, and its symbol, or
# None for an escape. A slot is the index of a symbol, as in `Distribution`.
DecodingTable = tuple[list[int], list[int], list[int], list[int | None], Distribution]


def encode(symbols: Array, scales: Array | int) -> bytes:
    """The bytes of integers [count], each coded with the distribution that `scales` numbers.

    `scales` is one number from 0 to 87 for all symbols, or one for each (bitstream.probabilities).
    Raises ValueError unless the symbols are a vector of integers up to 2**30 in magnitude.
    """
    symbols, scales = check_symbols(symbols, scales)
    clipped, starts, frequencies = symbol_parts(symbols, scales)
    parts = zip(starts.tolist(), frequencies.tolist(), strict=True)
    escaped = np.flatnonzero(clipped != symbols).tolist()
    if not escaped:
        return encode_parts(parts)
    escapes = {at: escape_parts(int(symbols[at]), int(scales[at])) for at in escaped}
    return encode_parts(_with_escapes(parts, escapes))


def decode(data: bytes, count: int, scales: Array | int) -> Array:
    """The symbols that `encode` turned into these bytes with the same `scales`: int64 [count].

    Raises FormatError for bytes that `encode` does not make.
    """
    decoder = Decoder(data)
    symbols = decoder.read(count, scales)
    decoder.finish()
    return symbols


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
        self._width = (self._width >> TOTAL_BITS) * RAW_BIT_FREQUENCY
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
    numbers = distribution_numbers(scales, count)
    if np.ndim(scales) == 0:
        return repeat(_decoding_table(int(np.asarray(scales))), count)
    tables = {number: _decoding_table(number) for number in distinct(numbers)}
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
