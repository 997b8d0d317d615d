"""What says whether results agree must not agree with everything."""

from __future__ import annotations

import numpy as np
import pytest
from reference import close

INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("found", "wanted", "magnitude", "same"),
    [
        (1.0, 1.0 + 2**-20, None, True),
        (1.0, 1.0 + 2**-10, None, False),
        (1.0, 1.0 + 2**-10, 1000.0, True),  # what was added on the way was larger
        (INF, INF, INF, True),
        (1.0, INF, INF, False),
        (-INF, INF, INF, False),
        (NAN, INF, INF, False),
        (INF, 1.0, 1.0, False),
        (NAN, NAN, None, True),
        (1.0, NAN, INF, False),
    ],
)
def test_floats_agree_within_their_roundings(
    found: float, wanted: float, magnitude: float | None, same: bool
) -> None:
    assert close(np.float32([found, 1]), [wanted, 1], magnitude) == same
    wide = magnitude if magnitude is None else np.array([magnitude, 1])
    assert close(np.float32([found, 1]), [wanted, 1], wide) == same
