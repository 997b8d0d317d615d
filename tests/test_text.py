"""Numbers are written as people read them."""

from __future__ import annotations

import pytest

from imgmlp.text import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (59.94, "59.9 s"), (59.96, "1:00"), (60, "1:00"), (125, "2:05"),
     (3599.6, "1:00:00"), (3725, "1:02:05"), (float("nan"), "unknown time")],
)  # fmt: skip
def test_durations_have_the_largest_unit_that_they_fill(seconds: float, text: str) -> None:
    assert duration(seconds) == text
