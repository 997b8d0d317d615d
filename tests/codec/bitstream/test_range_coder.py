"""The range coder restores symbols exactly, close to their entropy, and refuses damaged bytes."""

from __future__ import annotations

import hashlib
import tracemalloc

import imlp_reference as reference
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_symbols import (
    CODED_PAIRS,
    DISTRIBUTION_NUMBERS,
    SMALL_SYMBOLS,
    laplace,
    symbols_and_scales,
)

from imgmlp.codec.bitstream import range_coder, symbol_parts
from imgmlp.codec.bitstream.probabilities import DISTRIBUTIONS, distribution
from imgmlp.codec.bitstream.symbol_parts import MAX_MAGNITUDE
from imgmlp.errors import FormatError

# Round trips


@given(CODED_PAIRS)
def test_decoding_restores_the_encoded_symbols(pairs: list[tuple[int, int]]) -> None:
    symbols, scales = symbols_and_scales(pairs)
    data = range_coder.encode(symbols, scales)
    np.testing.assert_array_equal(range_coder.decode(data, len(pairs), scales), symbols)


@given(st.lists(SMALL_SYMBOLS, max_size=300), DISTRIBUTION_NUMBERS)
def test_one_scale_for_all_symbols_gives_the_bytes_of_equal_scales(
    symbols: list[int], scale: int
) -> None:
    data = range_coder.encode(np.array(symbols, np.int64), scale)
    assert range_coder.decode(data, len(symbols), scale).tolist() == symbols
    same = np.full(len(symbols), scale)
    assert range_coder.encode(np.array(symbols, np.int64), same) == data


@given(CODED_PAIRS.filter(lambda pairs: len(pairs) <= 12))
def test_decoder_written_from_the_format_document_reads_the_bytes(
    pairs: list[tuple[int, int]],
) -> None:
    symbols, scales = symbols_and_scales(pairs)
    data = range_coder.encode(symbols, scales)
    assert reference.integers(data, scales.tolist()) == symbols.tolist()


@pytest.mark.parametrize("scale", range(DISTRIBUTIONS))
def test_symbols_at_and_beyond_the_reach_of_each_distribution_are_restored(scale: int) -> None:
    reach = distribution(scale).reach
    symbols = np.array([-reach - 1, -reach, -1, 0, 1, reach, reach + 1, MAX_MAGNITUDE])
    data = range_coder.encode(symbols, scale)
    np.testing.assert_array_equal(range_coder.decode(data, symbols.size, scale), symbols)


def test_carries_propagate_through_any_number_of_words() -> None:
    """The symbol above the middle first, then always the lowest: the number 0.1000…"""
    symbols = np.array([1] + [-1] * 400)
    for scale in range(DISTRIBUTIONS):
        for some in (symbols, -symbols):
            data = range_coder.encode(some, scale)
            np.testing.assert_array_equal(range_coder.decode(data, some.size, scale), some)


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.uint8, np.uint16])
def test_symbols_of_any_integer_dtype_are_coded(kind: type) -> None:
    symbols = np.array([0, 1, 100, 127], kind)
    decoded = range_coder.decode(range_coder.encode(symbols, np.uint8(40)), 4, np.uint8(40))
    assert decoded.dtype == np.int64
    np.testing.assert_array_equal(decoded, symbols)


def test_decoder_reads_symbols_in_batches_of_any_size() -> None:
    scales = np.arange(1000) % DISTRIBUTIONS
    symbols = laplace(3.0, 1000)
    decoder = range_coder.Decoder(range_coder.encode(symbols, scales))
    parts = np.split(np.arange(1000), [0, 1, 7, 500])
    decoded = np.concatenate([decoder.read(part.size, scales[part]) for part in parts])
    decoder.finish()
    np.testing.assert_array_equal(decoded, symbols)


# Size


@pytest.mark.parametrize("count", [0, 1, 100, 20_000])
@pytest.mark.parametrize("index", [0, 5, 15, 31, 47])
def test_size_is_within_a_thousandth_and_eight_bytes_of_the_entropy(index: int, count: int) -> None:
    b = 2 ** ((index - 15) / 4)
    symbols = laplace(b, count)
    k = np.abs(symbols)
    p = np.where(k == 0, -np.expm1(-0.5 / b), np.sinh(0.5 / b) * np.exp(-k / b))
    ideal = -float(np.log2(p).sum()) / 8
    assert len(range_coder.encode(symbols, index)) <= 1.001 * ideal + 8


# Invalid input


@pytest.mark.parametrize(
    ("symbols", "scales", "problem"),
    [
        (np.array([0.5]), 3, "float64"),
        (np.zeros((2, 2), np.int64), 3, "integers"),
        (np.array([2**31]), 3, "beyond"),
        (np.array([-(2**63)]), 3, "beyond"),
        (np.array([1]), 88, "not 0 to 87"),
        (np.array([1]), -1, "not 0 to 87"),
        (np.array([1, 2]), np.array([1]), "one integer"),
        (np.array([1]), 1.5, "one integer"),
    ],
)
def test_encoding_invalid_symbols_or_scales_raises_value_error(
    symbols: np.ndarray, scales: np.ndarray | int, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        range_coder.encode(symbols, scales)


@pytest.mark.parametrize("scale", [-1, DISTRIBUTIONS])
def test_decoding_with_an_unknown_distribution_raises_format_error(scale: int) -> None:
    with pytest.raises(FormatError, match="a distribution that does not exist"):
        range_coder.decode(bytes(2), 1, scale)


def test_truncated_or_extended_bytes_raise_format_error() -> None:
    symbols = laplace(9.0, 200)
    data = range_coder.encode(symbols, 28)
    wrong = [data[:size] for size in range(len(data))]
    wrong += [data + bytes(1), data + b"\xff", data + bytes(8), data * 2]
    for damaged in wrong:
        with pytest.raises(FormatError):
            range_coder.decode(damaged, 200, 28)


@pytest.mark.parametrize("count", [0, 100, 190, 1000])
def test_decoding_another_number_of_symbols_raises_format_error(count: int) -> None:
    data = range_coder.encode(laplace(9.0, 200), 28)
    with pytest.raises(FormatError, match="damaged"):
        range_coder.decode(data, count, 28)


def test_only_the_smallest_number_in_the_last_interval_is_accepted() -> None:
    """`encode` writes the smallest number, so that symbols have a single encoding."""
    data = range_coder.encode(np.zeros(3, np.int64), 0)
    larger = (int.from_bytes(data, "big") + 1).to_bytes(len(data), "big")
    decoder = range_coder.Decoder(larger)
    assert decoder.read(3, 0).tolist() == [0] * 3
    with pytest.raises(FormatError, match="damaged"):
        decoder.finish()


@pytest.mark.parametrize("scale", [0, 20, 87])
def test_decoding_a_symbol_beyond_the_largest_magnitude_raises_format_error(
    scale: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused even if its Exp-Golomb code is no longer than that of the largest."""
    largest = MAX_MAGNITUDE
    with monkeypatch.context() as patch:
        patch.setattr(symbol_parts, "MAX_MAGNITUDE", largest + 1)
        data = range_coder.encode(np.array([largest + 1]), scale)
    with pytest.raises(FormatError, match="damaged"):
        range_coder.decode(data, 1, scale)


def test_code_beyond_the_intervals_of_both_values_of_a_bit_raises_format_error() -> None:
    decoder = range_coder.Decoder(bytes(8))
    decoder._width, decoder._code = 2**40 + 2**25, 2**40  # both halves together: 2**40
    with pytest.raises(FormatError, match="damaged"):
        decoder._bit()


def check_against_reference(data: bytes, count: int, scale: int) -> bool:
    """Check that `range_coder` decodes or refuses these bytes as the reference does.

    Returns whether they are valid.
    """
    try:
        expected = reference.integers(data, [scale] * count)
    except ValueError:
        with pytest.raises(FormatError):
            range_coder.decode(data, count, scale)
        return False
    assert range_coder.decode(data, count, scale).tolist() == expected
    return True


@given(st.binary(max_size=80), st.integers(0, 200), DISTRIBUTION_NUMBERS)
def test_arbitrary_bytes_are_decoded_or_refused_as_by_the_reference(
    data: bytes, count: int, scale: int
) -> None:
    check_against_reference(data, count, scale)


def test_bytes_with_one_changed_are_decoded_or_refused_as_by_the_reference() -> None:
    """Each byte takes all 256 values. Some of the results are valid, but fewer than half."""
    symbols, are_valid = laplace(2.0, 40), list[bool]()
    data = range_coder.encode(symbols, 20)
    for place in range(len(data)):
        for other in range(256):
            changed = data[:place] + bytes([other]) + data[place + 1 :]
            are_valid.append(check_against_reference(changed, symbols.size, 20))
    assert len(data) < sum(are_valid) < len(are_valid) / 2


def test_impossible_symbol_count_is_refused_before_memory_is_allocated() -> None:
    tracemalloc.start()
    try:
        for count in (-1, 64 * 2**14, 2**28, 2**62):
            with pytest.raises(FormatError, match="cannot be in 64 bytes"):
                range_coder.decode(bytes(64), count, 0)
        with pytest.raises(FormatError, match="damaged"):
            range_coder.decode(bytes(64), 64 * 2**13, 30)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**16


def test_symbol_count_beyond_what_remains_is_refused() -> None:
    data = range_coder.encode(np.zeros(1000, np.int64), 0)
    decoder = range_coder.Decoder(data)
    decoder.read(1000, 0)
    with pytest.raises(FormatError, match="coded values cannot be in"):
        decoder.read(range_coder.MAX_SYMBOLS_PER_BYTE * (len(data) + 2) - 999, 0)


def test_count_limit_allows_symbols_of_the_shortest_code() -> None:
    symbols = np.zeros(100_000, np.int64)
    data = range_coder.encode(symbols, 0)
    assert len(data) < 25
    np.testing.assert_array_equal(range_coder.decode(data, symbols.size, 0), symbols)


# Bytes of the file format


def golden_symbols() -> tuple[np.ndarray, np.ndarray]:
    """Integers and scales of all sizes from a fixed formula, escapes among them."""
    n = np.arange(5000)
    hashed = (n * 2654435761) % 2**32
    scales = (hashed >> 8) % DISTRIBUTIONS
    return ((hashed >> 20) % 41 - 20) * (n % 13), scales


def test_bytes_of_a_few_symbols_never_change() -> None:
    symbols = np.array([0, 1, -1, 2, -40, 7, 1000, -(2**30)])
    scales = np.array([0, 15, 15, 20, 33, 48, 60, 87])
    assert range_coder.encode(symbols, scales).hex() == "bebe3957f4fc3ce561df9ff0478f590270af095d"


def test_bytes_of_many_symbols_never_change() -> None:
    symbols, scales = golden_symbols()
    data = range_coder.encode(symbols, scales)
    assert (len(data), hashlib.sha256(data).hexdigest()) == (
        11324,
        "4aa8d9a8c6641d176ff5a840aa2eeebce63840f1f9900fc2769c59376cffe26c",
    )
