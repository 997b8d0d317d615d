"""The range coder gives back what it got, in as few bytes as the distributions allow."""

from __future__ import annotations

import hashlib
import math
import tracemalloc

import imlp_reference as reference
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imgmlp.codec.bitstream import range_coder
from imgmlp.codec.bitstream.probabilities import DISTRIBUTIONS, distribution
from imgmlp.errors import FormatError

NUMBERS = st.integers(0, DISTRIBUTIONS - 1)
SMALL = st.integers(-300, 300)
LARGE = st.integers(-range_coder.MAX_MAGNITUDE, range_coder.MAX_MAGNITUDE)
PAIRS = st.lists(st.tuples(SMALL | LARGE, NUMBERS), max_size=60)


def laplace(scale: float, count: int, seed: int = 0) -> np.ndarray:
    return np.rint(np.random.default_rng(seed).laplace(0, scale, count)).astype(np.int64)


def normal(deviation: float, count: int, seed: int = 0) -> np.ndarray:
    return np.rint(np.random.default_rng(seed).normal(0, deviation, count)).astype(np.int64)


def columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    symbols, scales = np.array(pairs, np.int64).reshape(-1, 2).T
    return symbols, scales


# Round trips


@given(PAIRS)
def test_symbols_come_back(pairs: list[tuple[int, int]]) -> None:
    symbols, scales = columns(pairs)
    data = range_coder.encode(symbols, scales)
    np.testing.assert_array_equal(range_coder.decode(data, len(pairs), scales), symbols)


@given(st.lists(SMALL, max_size=300), NUMBERS)
def test_symbols_of_one_scale_come_back(symbols: list[int], scale: int) -> None:
    data = range_coder.encode(np.array(symbols, np.int64), scale)
    assert range_coder.decode(data, len(symbols), scale).tolist() == symbols
    same = np.full(len(symbols), scale)
    assert range_coder.encode(np.array(symbols, np.int64), same) == data


@given(PAIRS.filter(lambda pairs: len(pairs) <= 12))
def test_the_document_is_enough_to_decode(pairs: list[tuple[int, int]]) -> None:
    symbols, scales = columns(pairs)
    data = range_coder.encode(symbols, scales)
    assert reference.integers(data, scales.tolist()) == symbols.tolist()


@pytest.mark.parametrize("scale", range(DISTRIBUTIONS))
def test_the_ends_of_every_distribution_come_back(scale: int) -> None:
    reach = distribution(scale).reach
    symbols = np.array([-reach - 1, -reach, -1, 0, 1, reach, reach + 1, range_coder.MAX_MAGNITUDE])
    data = range_coder.encode(symbols, scale)
    np.testing.assert_array_equal(range_coder.decode(data, symbols.size, scale), symbols)


def test_carries_run_through_any_number_of_words() -> None:
    """The symbol above the middle first, then always the lowest: the number 0.1000…"""
    symbols = np.array([1] + [-1] * 400)
    for scale in range(DISTRIBUTIONS):
        for some in (symbols, -symbols):
            data = range_coder.encode(some, scale)
            np.testing.assert_array_equal(range_coder.decode(data, some.size, scale), some)


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.uint8, np.uint16])
def test_any_kind_of_integer_is_coded(kind: type) -> None:
    symbols = np.array([0, 1, 100, 127], kind)
    decoded = range_coder.decode(range_coder.encode(symbols, np.uint8(40)), 4, np.uint8(40))
    assert decoded.dtype == np.int64
    np.testing.assert_array_equal(decoded, symbols)


def test_symbols_can_be_read_in_parts() -> None:
    scales = np.arange(1000) % DISTRIBUTIONS
    symbols = laplace(3.0, 1000)
    decoder = range_coder.Decoder(range_coder.encode(symbols, scales))
    parts = np.split(np.arange(1000), [0, 1, 7, 500])
    found = np.concatenate([decoder.read(part.size, scales[part]) for part in parts])
    decoder.finish()
    np.testing.assert_array_equal(found, symbols)


# Size


@pytest.mark.parametrize("count", [0, 1, 100, 20_000])
@pytest.mark.parametrize("index", [0, 5, 15, 31, 47])
def test_the_size_is_within_a_thousandth_and_eight_bytes_of_the_ideal(
    index: int, count: int
) -> None:
    b = 2 ** ((index - 15) / 4)
    symbols = laplace(b, count)
    k = np.abs(symbols)
    p = np.where(k == 0, -np.expm1(-0.5 / b), np.sinh(0.5 / b) * np.exp(-k / b))
    ideal = -float(np.log2(p).sum()) / 8
    assert len(range_coder.encode(symbols, index)) <= 1.001 * ideal + 8


@pytest.mark.parametrize("deviation", [0.3, 1.0, 7.5, 60.0, 250.0])
def test_a_chosen_scale_is_within_a_hundredth_of_the_entropy(deviation: float) -> None:
    symbols = normal(deviation, 20_000)
    _, counts = np.unique(symbols, return_counts=True)
    empirical = -float(counts @ np.log2(counts / counts.sum())) / 8
    ideal = 20_000 * math.log2(deviation * math.sqrt(2 * math.pi * math.e)) / 8
    bound = 1.01 * max(ideal, empirical) + 8
    assert len(range_coder.encode(symbols, range_coder.cheapest(symbols)[0])) <= bound


@given(PAIRS)
def test_the_estimate_is_what_is_written(pairs: list[tuple[int, int]]) -> None:
    symbols, scales = columns(pairs)
    written = 8 * len(range_coder.encode(symbols, scales))
    assert 0 <= written - range_coder.bits(symbols, scales) <= 16.01


@pytest.mark.parametrize("scale", [0, 2, 15, 30, 47])
def test_the_scale_of_laplace_values_is_chosen(scale: int) -> None:
    symbols = laplace(2 ** ((scale - 15) / 4), 50_000)
    assert range_coder.cheapest(symbols)[0] == scale


@pytest.mark.parametrize("scale", [60, 75, 87])
def test_the_scale_of_normal_values_is_chosen(scale: int) -> None:
    symbols = normal(2 ** ((scale - 55) / 4), 50_000)
    assert range_coder.cheapest(symbols)[0] == scale


@pytest.mark.parametrize("scale", [0, 3, 20, 47, 48, 60, 87])
def test_a_choice_weighs_the_bits_of_each_value(scale: int) -> None:
    for reach in (range_coder.MAX_TABULATED, 5000):
        values = np.arange(-reach, reach + 1)
        found = range_coder._value_costs(values, scale)
        np.testing.assert_allclose(found, range_coder.costs(values, scale), rtol=1e-12)


@given(st.lists(SMALL, max_size=100))
def test_no_other_scale_is_much_better_than_the_chosen(symbols: list[int]) -> None:
    found = np.array(symbols, np.int64)
    best = min(range_coder.bits(found, scale) for scale in range(DISTRIBUTIONS))
    number, bits = range_coder.cheapest(found)
    assert bits == pytest.approx(range_coder.bits(found, number))
    assert bits <= 1.25 * best + 16


# What can be wrong


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
def test_what_cannot_be_coded_is_refused(
    symbols: np.ndarray, scales: np.ndarray | int, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        range_coder.encode(symbols, scales)


@pytest.mark.parametrize("scale", [-1, DISTRIBUTIONS])
def test_a_scale_that_is_not_there_is_the_files_fault(scale: int) -> None:
    with pytest.raises(FormatError, match="a distribution that does not exist"):
        range_coder.decode(bytes(2), 1, scale)


def test_every_truncation_and_every_added_byte_is_noticed() -> None:
    symbols = laplace(9.0, 200)
    data = range_coder.encode(symbols, 28)
    wrong = [data[:size] for size in range(len(data))]
    wrong += [data + bytes(1), data + b"\xff", data + bytes(8), data * 2]
    for damaged in wrong:
        with pytest.raises(FormatError):
            range_coder.decode(damaged, 200, 28)


@pytest.mark.parametrize("count", [0, 100, 190, 1000])
def test_another_number_of_symbols_is_noticed(count: int) -> None:
    data = range_coder.encode(laplace(9.0, 200), 28)
    with pytest.raises(FormatError, match="damaged"):
        range_coder.decode(data, count, 28)


def test_of_all_numbers_in_the_last_interval_one_is_no_error() -> None:
    """The least one, as `encode` makes it: what is coded has one form."""
    data = range_coder.encode(np.zeros(3, np.int64), 0)
    larger = (int.from_bytes(data, "big") + 1).to_bytes(len(data), "big")
    decoder = range_coder.Decoder(larger)
    assert decoder.read(3, 0).tolist() == [0] * 3
    with pytest.raises(FormatError, match="damaged"):
        decoder.finish()


@pytest.mark.parametrize("scale", [0, 20, 87])
def test_a_symbol_beyond_the_largest_is_damaged(
    scale: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has no more bits than that one."""
    largest = range_coder.MAX_MAGNITUDE
    with monkeypatch.context() as patch:
        patch.setattr(range_coder, "MAX_MAGNITUDE", largest + 1)
        data = range_coder.encode(np.array([largest + 1]), scale)
    with pytest.raises(FormatError, match="damaged"):
        range_coder.decode(data, 1, scale)


def test_what_no_bit_has_a_share_of_is_damaged() -> None:
    decoder = range_coder.Decoder(bytes(8))
    decoder._width, decoder._code = 2**40 + 2**25, 2**40  # of which two halves have 2**40
    with pytest.raises(FormatError, match="damaged"):
        decoder._bit()


def as_the_reference_says(data: bytes, count: int, scale: int) -> bool:
    """Decode as many symbols as another decoder does, or refuse what it does; whether there are
    any."""
    try:
        expected = reference.integers(data, [scale] * count)
    except ValueError:
        with pytest.raises(FormatError):
            range_coder.decode(data, count, scale)
        return False
    assert range_coder.decode(data, count, scale).tolist() == expected
    return True


@given(st.binary(max_size=80), st.integers(0, 200), NUMBERS)
def test_any_bytes_are_symbols_or_an_error(data: bytes, count: int, scale: int) -> None:
    as_the_reference_says(data, count, scale)


def test_a_stream_of_which_a_byte_changed_is_other_symbols_or_an_error() -> None:
    """Each byte, in 255 ways: some of all these are streams, and most are none."""
    symbols, found = laplace(2.0, 40), list[bool]()
    data = range_coder.encode(symbols, 20)
    for place in range(len(data)):
        for other in range(256):
            changed = data[:place] + bytes([other]) + data[place + 1 :]
            found.append(as_the_reference_says(changed, symbols.size, 20))
    assert len(data) < sum(found) < len(found) / 2


def test_a_claimed_count_that_cannot_be_true_is_refused_before_memory_is_taken() -> None:
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


def test_nor_can_one_be_true_that_is_more_than_is_left() -> None:
    data = range_coder.encode(np.zeros(1000, np.int64), 0)
    decoder = range_coder.Decoder(data)
    decoder.read(1000, 0)
    with pytest.raises(FormatError, match="coded values cannot be in"):
        decoder.read(range_coder.MAX_SYMBOLS_PER_BYTE * (len(data) + 2) - 999, 0)


def test_the_cheapest_symbols_are_not_refused() -> None:
    symbols = np.zeros(100_000, np.int64)
    data = range_coder.encode(symbols, 0)
    assert len(data) < 25
    np.testing.assert_array_equal(range_coder.decode(data, symbols.size, 0), symbols)


# What must never change


def golden_symbols() -> tuple[np.ndarray, np.ndarray]:
    """Integers and scales of all sizes from a fixed formula, escapes among them."""
    n = np.arange(5000)
    hashed = (n * 2654435761) % 2**32
    scales = (hashed >> 8) % DISTRIBUTIONS
    return ((hashed >> 20) % 41 - 20) * (n % 13), scales


def test_the_bytes_of_a_few_symbols_have_never_changed() -> None:
    symbols = np.array([0, 1, -1, 2, -40, 7, 1000, -(2**30)])
    scales = np.array([0, 15, 15, 20, 33, 48, 60, 87])
    assert range_coder.encode(symbols, scales).hex() == "bebe3957f4fc3ce561df9ff0478f590270af095d"


def test_the_bytes_of_many_symbols_have_never_changed() -> None:
    symbols, scales = golden_symbols()
    data = range_coder.encode(symbols, scales)
    assert (len(data), hashlib.sha256(data).hexdigest()) == (
        11324,
        "4aa8d9a8c6641d176ff5a840aa2eeebce63840f1f9900fc2769c59376cffe26c",
    )
