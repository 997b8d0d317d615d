"""What is advised where a target was missed is what may help."""

from __future__ import annotations

import pytest

from imgmlp.batch.shortfall import shortfall
from imgmlp.codec.training.target import Goal

MORE, NONE = "a higher --effort or more --time", "a file of this picture cannot be smaller"


@pytest.mark.parametrize(
    ("goal", "steps", "advice"),
    [
        (Goal("bytes", 50), 300, MORE),
        (Goal("bytes", 50), None, NONE),  # of one colour
        (Goal("psnr", 40), 300, MORE),
        (Goal("psnr", 40), None, MORE),
    ],
)
def test_what_a_file_of_one_colour_lacks_in_quality_training_may_bring(
    goal: Goal, steps: int | None, advice: str
) -> None:
    facts = {"missed": goal.misses(60, 30.0)} | ({} if steps is None else {"steps": steps})
    error = shortfall("a.imlp", facts)
    assert error is not None
    assert error.hint.endswith(advice)
