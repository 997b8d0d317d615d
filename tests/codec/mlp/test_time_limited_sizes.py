"""Which network is best in a limited time, told from one short run."""

from __future__ import annotations

import pytest

from imgmlp.codec.mlp.rate_model import FEW_STEPS, MARGIN, Seen, best_weights, predicted
from imgmlp.codec.training.target import Goal

SAMPLES = 768 * 512
WITHIN = 500.0, 100_000.0


def steps(weights: float) -> float:
    """That two cores take in some ten seconds."""
    return 1e8 / weights


def test_what_was_seen_is_what_is_predicted_for_the_same_run() -> None:
    seen = Seen(5_643, 2_284, 18.94)
    assert predicted(5_643, 2_284, SAMPLES, seen) == pytest.approx(18.94)


@pytest.mark.parametrize(
    ("samples", "short", "weights", "length", "reached"),
    [
        (SAMPLES, Seen(5_643, 2_284, 18.94), 14_563, 6_126, 21.31),  # kodim05
        (SAMPLES, Seen(5_643, 2_284, 26.34), 14_563, 6_126, 29.57),  # kodim23
        (128**2, Seen(3_083, 2_284, 24.40), 3_083, 17_135, 26.52),  # a piece of kodim05
        (128**2, Seen(3_083, 2_284, 29.34), 9_283, 6_126, 36.88),  # of kodim15
    ],
)
def test_photographs_came_near_to_what_is_predicted(
    samples: int, short: Seen, weights: float, length: float, reached: float
) -> None:
    assert predicted(weights, length, samples, short) == pytest.approx(reached, abs=1.6)


def test_more_steps_and_no_change_of_the_weights_never_bring_less() -> None:
    seen = Seen(5_643, 2_284, 18.94)
    found = [predicted(5_643, 2.0**n, SAMPLES, seen) for n in range(10, 20)]
    assert found == sorted(found)


def test_a_quality_has_the_fewest_weights_that_reach_it() -> None:
    seen = [Seen(5_643, 2_284, 18.94)]
    few = best_weights(Goal("psnr", 19), SAMPLES, WITHIN, steps, seen)
    more = best_weights(Goal("psnr", 20.5), SAMPLES, WITHIN, steps, seen)
    assert few < more
    expected = predicted(more, steps(more), SAMPLES, seen[0])
    assert expected == pytest.approx(20.5 + MARGIN, abs=0.2)


def test_a_quality_out_of_reach_has_the_best_network_rather_than_the_largest() -> None:
    """The largest one would hardly be trained in the time that there is."""
    seen = [Seen(5_643, 2_284, 18.94)]
    found = best_weights(Goal("psnr", 40), SAMPLES, WITHIN, steps, seen)
    assert 5_643 < found < WITHIN[1] / 2
    assert steps(found) >= FEW_STEPS


def test_the_dearer_bits_are_the_fewer_weights_are_worth_them() -> None:
    seen = [Seen(5_643, 2_284, 18.94)]
    found = [best_weights(Goal("lambda", p), SAMPLES, WITHIN, steps, seen) for p in (1e-3, 1e-2)]
    assert found[0] > found[1]
