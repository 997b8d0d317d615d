"""The search for the number of weights that a target needs."""

from __future__ import annotations

import json
import math

import pytest

from imgmlp.codec.mlp import rate_model
from imgmlp.codec.mlp.rate_model import RunResult
from imgmlp.codec.mlp.size_search import (
    MIN_BITS_PER_WEIGHT,
    MIN_PILOT_WEIGHTS,
    Attempt,
    SizeSearch,
    pilot_weights,
)
from imgmlp.codec.training.target import Goal


def size_search(goal: Goal, weights: float = 5000.0) -> SizeSearch:
    return SizeSearch(goal, 128 * 128, 3, 50_000.0, weights)


def steps(_: float) -> float:
    return 3750.0


def test_network_slightly_beyond_its_psnr_is_trained_again_with_fewer_bits() -> None:
    search = size_search(Goal("psnr", 30.0))
    network_weights = float(search.shape().parameters)
    search.attempts = [Attempt(5000.0, 30.4, network_weights)]
    assert search.resize_after_attempt(30.4, steps)
    assert search.shape().parameters == network_weights
    assert 4000 < search.weights < 5000


def test_network_far_beyond_its_psnr_is_replaced_by_a_smaller_one() -> None:
    search = size_search(Goal("psnr", 30.0))
    network_weights = float(search.shape().parameters)
    search.attempts = [Attempt(5000.0, 33.0, network_weights)]
    assert search.resize_after_attempt(33.0, steps)
    assert search.network_weights is None
    assert search.shape().parameters == pytest.approx(search.weights, rel=0.15)
    assert search.weights < network_weights / 2


def test_missed_psnr_is_followed_by_a_larger_network() -> None:
    search = size_search(Goal("psnr", 30.0))
    search.attempts = [Attempt(5000.0, 29.88, 4931.0)]
    assert search.resize_after_attempt(29.88, steps)
    assert search.weights >= 1.03 * 5000


def test_network_expected_far_from_its_psnr_has_a_replacement() -> None:
    search = size_search(Goal("psnr", 30.0))
    network_weights = search.shape().parameters
    for expected in (29.6, 31.3, math.nan):  # near the target, or unknown
        assert search.replacement(network_weights, expected) is None
    less, more = (search.replacement(network_weights, expected) for expected in (32.0, 28.5))
    assert less is not None
    assert more is not None
    assert network_weights / 2 < less < network_weights / 1.1
    assert 1.1 * network_weights < more < 2 * network_weights
    assert search.replacement(network_weights, 33.0) < less  # type: ignore[operator]
    assert search.replacement(network_weights, 27.0) > more  # type: ignore[operator]
    least = float(search.shape_of(1.0).parameters)
    assert search.replacement(network_weights, 90.0) == least
    assert search.replacement(network_weights, 1.0) == search.max_weights
    search.weights = least
    assert search.replacement(least, 90.0) is None


def test_only_first_networks_towards_a_psnr_of_small_pictures_are_checked_early() -> None:
    goal = Goal("psnr", 30.0)
    small, large = (SizeSearch(goal, n, 3, 50_000.0, 5000.0) for n in (2**14, 2**14 + 1))
    assert small.checks_early
    assert not large.checks_early
    assert not size_search(Goal("bytes", 3000)).checks_early
    assert not SizeSearch(goal, 2**14, 3, 50_000.0, 3000.0, network_weights=4267.0).checks_early
    assert not SizeSearch(goal, 2**14, 3, 50_000.0, 3000.0, was_replaced=True).checks_early


def test_no_further_attempt_follows_if_the_weights_cannot_grow() -> None:
    search = size_search(Goal("psnr", 30.0), 50_000.0)
    search.attempts = [Attempt(50_000.0, 29.0, 50_755.0)]
    assert not search.resize_after_attempt(29.0, steps)  # there are no more weights


def test_pilot_network_gets_a_minimum_of_bits_per_weight() -> None:
    search = size_search(Goal("psnr", 30.0), 1000.0)
    search.use_pilot_network()
    assert search.network_weights is None  # there was no pilot
    search.pilots = [RunResult(4000.0, 50.0, 30.0)]
    search.use_pilot_network()
    assert search.shape() == rate_model.network_shape(4000.0, 3)
    assert search.weights * rate_model.BITS_PER_WEIGHT == pytest.approx(MIN_BITS_PER_WEIGHT * 4000)


@pytest.mark.parametrize("goal", [Goal("bytes", 3400), Goal("lambda", 1e-3)])
def test_neighbouring_networks_are_tried_with_equal_bits(goal: Goal) -> None:
    search = size_search(goal)
    middle = search.shape()
    others = rate_model.neighbours(middle, 2, 2)[1:]
    assert [each.parameters for each in others] == [5643, 4267, 6403, 3651]
    tried = []
    search.attempts = [Attempt(4900.0, 28.0, float(middle.parameters))]
    while search.choose_rival(3):
        tried.append(search.shape())
        assert search.weights == 5000
        search.attempts.append(Attempt(4900.0, 28.0, float(search.shape().parameters)))
    assert tried == others[:3]
    assert not search.choose_rival(2)  # three were tried already
    assert search.choose_rival(5)
    assert search.shape() == others[3]
    search.attempts.append(Attempt(4900.0, 28.0, 3651.0))
    assert not search.choose_rival(5)


def test_towards_a_psnr_rivals_get_the_bits_that_the_best_network_needs() -> None:
    """The best of them is then trained with fewer bits until it misses the PSNR."""
    search = size_search(Goal("psnr", 30.0), 6000.0)

    def psnr(network_weights: float) -> float:
        offset = {5643.0: 0.4}.get(network_weights, 0.0)
        return 30.1 + offset + 2.2 * math.log2(search.weights / 5643)

    tried = []
    search.attempts = [Attempt(6000.0, psnr(6403.0), 6403.0)]
    while search.choose_rival(8):
        network_weights = float(search.shape().parameters)
        tried.append((network_weights, search.weights))
        search.attempts.append(Attempt(search.weights, psnr(network_weights), network_weights))
    sizes = [network_weights for network_weights, _ in tried]
    assert {4931.0, 5643.0} <= set(sizes)
    paid, best, network_weights = min(one for one in search.attempts if one.psnr >= 29.9)
    assert network_weights == 5643.0
    assert best < 29.96  # hardly more than the tolerance allows
    missed = [p for p, dB, other in search.attempts if other == network_weights and dB < 29.9]
    assert all(0.95 < p / paid < 1 for p in missed)
    assert len({weights for own, weights in tried if own == network_weights}) == sizes.count(
        network_weights
    )


def test_rivals_hardly_exceed_the_most_weights() -> None:
    search = SizeSearch(Goal("bytes", 3400), 2**16, 3, 5000.0, 5000.0)
    search.attempts = [Attempt(5000.0, 28.0, 4931.0)]
    tried = []
    while search.choose_rival(9):
        tried.append(search.shape().parameters)
        search.attempts.append(Attempt(5000.0, 28.0, float(tried[-1])))
    assert tried == [5643, 4267, 3651]


def test_towards_a_psnr_one_larger_and_two_smaller_rivals_are_tried() -> None:
    search = size_search(Goal("psnr", 30.0))
    middle = search.shape()
    others = rate_model.neighbours(middle, 1, 2)
    assert [each.parameters for each in others] == [4931, 5643, 4267, 3651]
    search.attempts, tried = [Attempt(5000.0, 30.0, float(middle.parameters))], []
    while search.choose_rival(3):
        tried.append(search.shape())
        search.attempts.append(Attempt(search.weights, 29.8, float(search.shape().parameters)))
    assert tried == others[1:]


def test_network_far_beyond_the_psnr_with_no_more_bits_becomes_the_best() -> None:
    search = size_search(Goal("psnr", 30.0))
    near, far = Attempt(5000.0, 30.1, 4931.0), Attempt(4990.0, 31.2, 4267.0)
    search.attempts = [near, far]
    assert search.choose_rival(4)
    assert search.weights < 4000
    assert search.shape().parameters <= 4267
    search = size_search(Goal("psnr", 30.0))
    search.attempts = [near, Attempt(6000.0, 31.2, 4267.0)]  # more bits than the first
    assert search.choose_rival(4)
    assert search.weights > 4500


def test_no_rival_is_tried_before_an_attempt_comes_near_the_psnr() -> None:
    search = size_search(Goal("psnr", 30.0))
    search.attempts = [Attempt(5000.0, 32.0, 4931.0)]
    assert not search.choose_rival(4)
    assert search.rivals_tried == 0


def test_size_search_is_restored_from_a_checkpoint() -> None:
    search = size_search(Goal("psnr", 30.0))
    search.pilots = [RunResult(500.0, 750.0, 25.0)] * 2
    search.attempts = [Attempt(5000.0, 30.4, 4931.0)]
    search.resize_after_attempt(30.4, steps)
    search.choose_rival(4)
    assert search.rivals_tried == 1
    other = size_search(Goal("psnr", 30.0), 1.0)
    other.restore(json.loads(json.dumps(search.values())))
    assert other == search


def test_pilot_networks_are_few_and_grow_with_the_picture() -> None:
    weights = [pilot_weights(1 << n) for n in range(29)]
    assert weights == sorted(weights)
    assert weights[0] == MIN_PILOT_WEIGHTS
    assert len(set(weights)) == 8
