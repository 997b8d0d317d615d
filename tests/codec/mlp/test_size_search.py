"""Which network is trained next."""

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


def search(goal: Goal, weights: float = 5000.0) -> SizeSearch:
    return SizeSearch(goal, 128 * 128, 3, 50_000.0, weights)


def steps(_: float) -> float:
    return 3750.0


def test_a_network_with_more_than_the_quality_is_taken_again_with_fewer_bits() -> None:
    found = search(Goal("psnr", 30.0))
    size = float(found.shape().parameters)
    found.attempts = [Attempt(5000.0, 30.4, size)]
    assert found.again(30.4, steps)
    assert found.shape().parameters == size
    assert 4000 < found.weights < 5000


def test_a_network_that_is_much_too_large_is_not() -> None:
    found = search(Goal("psnr", 30.0))
    size = float(found.shape().parameters)
    found.attempts = [Attempt(5000.0, 33.0, size)]
    assert found.again(33.0, steps)
    assert found.size is None
    assert found.shape().parameters == pytest.approx(found.weights, rel=0.15)
    assert found.weights < size / 2


def test_what_missed_the_quality_is_followed_by_more_weights() -> None:
    found = search(Goal("psnr", 30.0))
    found.attempts = [Attempt(5000.0, 29.88, 4931.0)]
    assert found.again(29.88, steps)
    assert found.weights >= 1.03 * 5000


def test_a_network_that_begins_too_well_or_too_badly_makes_room_for_another_one() -> None:
    found = search(Goal("psnr", 30.0))
    size = found.shape().parameters
    for expected in (29.6, 31.3, math.nan):  # other bits will do, or nobody knows
        assert found.replacement(size, expected) is None
    less, more = (found.replacement(size, expected) for expected in (32.0, 28.5))
    assert less is not None
    assert more is not None
    assert size / 2 < less < size / 1.1
    assert 1.1 * size < more < 2 * size
    assert found.replacement(size, 33.0) < less  # type: ignore[operator]
    assert found.replacement(size, 27.0) > more  # type: ignore[operator]
    least = float(found.shape_of(1.0).parameters)
    assert found.replacement(size, 90.0) == least
    assert found.replacement(size, 1.0) == found.most
    found.weights = least
    assert found.replacement(least, 90.0) is None


def test_a_run_for_dB_of_a_small_picture_may_exchange_its_network_once() -> None:
    goal = Goal("psnr", 30.0)
    small, large = (SizeSearch(goal, n, 3, 50_000.0, 5000.0) for n in (2**14, 2**14 + 1))
    assert small.checks_early
    assert not large.checks_early
    assert not search(Goal("bytes", 3000)).checks_early
    assert not SizeSearch(goal, 2**14, 3, 50_000.0, 3000.0, size=4267.0).checks_early
    assert not SizeSearch(goal, 2**14, 3, 50_000.0, 3000.0, exchanged=True).checks_early


def test_nothing_is_tried_that_would_be_the_same() -> None:
    found = search(Goal("psnr", 30.0), 50_000.0)
    found.attempts = [Attempt(50_000.0, 29.0, 50_755.0)]
    assert not found.again(29.0, steps)  # there are no more weights


def test_too_large_a_network_keeps_some_bits_for_each_weight() -> None:
    found = search(Goal("psnr", 30.0), 1000.0)
    found.use_compiled()
    assert found.size is None  # nothing is compiled
    found.pilots = [RunResult(4000.0, 50.0, 30.0)]
    found.use_compiled()
    assert found.shape() == rate_model.network_shape(4000.0, 3)
    assert found.weights * rate_model.BITS_PER_WEIGHT == pytest.approx(MIN_BITS_PER_WEIGHT * 4000)


@pytest.mark.parametrize("goal", [Goal("bytes", 3400), Goal("lambda", 1e-3)])
def test_networks_beside_the_first_one_are_tried_with_as_many_bits(goal: Goal) -> None:
    found = search(goal)
    middle = found.shape()
    others = rate_model.neighbours(middle, 2, 2)[1:]
    assert [each.parameters for each in others] == [5643, 4267, 6403, 3651]
    tried = []
    found.attempts = [Attempt(4900.0, 28.0, float(middle.parameters))]
    while found.challenge(3):
        tried.append(found.shape())
        assert found.weights == 5000
        found.attempts.append(Attempt(4900.0, 28.0, float(found.shape().parameters)))
    assert tried == others[:3]
    assert not found.challenge(2)  # though there have been more
    assert found.challenge(5)
    assert found.shape() == others[3]
    found.attempts.append(Attempt(4900.0, 28.0, 3651.0))
    assert not found.challenge(5)


def test_those_beside_it_are_tried_for_a_quality_with_the_bits_that_the_best_needs() -> None:
    """And the best of them goes on with fewer bits until it misses the quality."""
    found = search(Goal("psnr", 30.0), 6000.0)

    def quality(size: float) -> float:
        luck = {5643.0: 0.4}.get(size, 0.0)
        return 30.1 + luck + 2.2 * math.log2(found.weights / 5643)

    tried = []
    found.attempts = [Attempt(6000.0, quality(6403.0), 6403.0)]
    while found.challenge(8):
        size = float(found.shape().parameters)
        tried.append((size, found.weights))
        found.attempts.append(Attempt(found.weights, quality(size), size))
    sizes = [size for size, _ in tried]
    assert {4931.0, 5643.0} <= set(sizes)
    paid, best, size = min(one for one in found.attempts if one.psnr >= 29.9)
    assert size == 5643.0
    assert best < 29.96  # hardly more than will do
    missed = [p for p, dB, other in found.attempts if other == size and dB < 29.9]
    assert all(0.95 < p / paid < 1 for p in missed)
    assert len({weights for own, weights in tried if own == size}) == sizes.count(size)


def test_none_is_tried_that_is_much_larger_than_it_may_be() -> None:
    found = SizeSearch(Goal("bytes", 3400), 2**16, 3, 5000.0, 5000.0)
    found.attempts = [Attempt(5000.0, 28.0, 4931.0)]
    tried = []
    while found.challenge(9):
        tried.append(found.shape().parameters)
        found.attempts.append(Attempt(5000.0, 28.0, float(tried[-1])))
    assert tried == [5643, 4267, 3651]


def test_for_a_quality_two_smaller_ones_are_tried_as_well() -> None:
    found = search(Goal("psnr", 30.0))
    middle = found.shape()
    others = rate_model.neighbours(middle, 1, 2)
    assert [each.parameters for each in others] == [4931, 5643, 4267, 3651]
    found.attempts, tried = [Attempt(5000.0, 30.0, float(middle.parameters))], []
    while found.challenge(3):
        tried.append(found.shape())
        found.attempts.append(Attempt(found.weights, 29.8, float(found.shape().parameters)))
    assert tried == others[1:]


def test_one_that_has_far_more_than_a_quality_for_no_more_bits_takes_the_place_of_the_best() -> (
    None
):
    found = search(Goal("psnr", 30.0))
    near, far = Attempt(5000.0, 30.1, 4931.0), Attempt(4990.0, 31.2, 4267.0)
    found.attempts = [near, far]
    assert found.challenge(4)
    assert found.weights < 4000
    assert found.shape().parameters <= 4267
    found = search(Goal("psnr", 30.0))
    found.attempts = [near, Attempt(6000.0, 31.2, 4267.0)]  # it took more
    assert found.challenge(4)
    assert found.weights > 4500


def test_nothing_beside_it_is_tried_before_a_quality_is_near() -> None:
    found = search(Goal("psnr", 30.0))
    found.attempts = [Attempt(5000.0, 32.0, 4931.0)]
    assert not found.challenge(4)
    assert found.rivals == 0


def test_what_is_kept_in_a_checkpoint_goes_on_from_there() -> None:
    found = search(Goal("psnr", 30.0))
    found.pilots = [RunResult(500.0, 750.0, 25.0)] * 2
    found.attempts = [Attempt(5000.0, 30.4, 4931.0)]
    found.again(30.4, steps)
    found.challenge(4)
    assert found.rivals == 1
    other = search(Goal("psnr", 30.0), 1.0)
    other.restore(json.loads(json.dumps(found.values())))
    assert other == found


def test_first_networks_are_few_and_grow_with_the_picture() -> None:
    found = [pilot_weights(1 << n) for n in range(29)]
    assert found == sorted(found)
    assert found[0] == MIN_PILOT_WEIGHTS
    assert len(set(found)) == 8
