"""What is wrong with a file that was written all the same: told of a new one, and of one that is
remembered. Knows its facts only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imgmlp.errors import ImgmlpError, TargetError, TrainingError

BESIDE = "colour profile and metadata, which --strip leaves out"
ADVICE = "try another target, a higher --effort or more --time"


def shortfall(name: str, facts: Mapping[str, Any], beside: int = 0) -> ImgmlpError | None:
    """A TargetError or TrainingError of a file that is only the best there was.

    `beside` are bytes that could be left out, where there are too many.
    """
    if facts.get("diverged"):
        problem = f"training of {name} was given up: its loss kept diverging"
        return TrainingError(problem, hint="the best state is in the file; try another target")
    if not facts.get("missed"):
        return None
    missed = str(facts["missed"])
    advice = ADVICE
    if not facts.get("steps") and "bytes" in missed:  # of one colour, the smallest that there is
        advice = "a file of this picture cannot be smaller"
    if beside:
        advice = f"{beside:,} bytes of it are taken by {BESIDE}"
    hint = f"the best file was written; {advice}"
    return TargetError(f"{name} has {missed}", hint=hint)
