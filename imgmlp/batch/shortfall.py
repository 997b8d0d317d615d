"""The error of a file that was written although it misses its target.

It depends on the file's facts only, so that it is the same for a new file and for one that is known
from the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from imgmlp.errors import ImgmlpError, TargetError, TrainingError

BESIDE = "colour profile and metadata, which --strip leaves out"
ADVICE = "try another target, a higher --effort or more --time"


def shortfall(name: str, facts: Mapping[str, Any], beside: int = 0) -> ImgmlpError | None:
    """The TargetError or TrainingError of a file that is only the best one; None if it is good.

    `beside` are the bytes of metadata that could be left out if there are too many.
    """
    if facts.get("diverged"):
        problem = f"training of {name} was given up: its loss kept diverging"
        return TrainingError(problem, hint="the best state is in the file; try another target")
    if not facts.get("missed"):
        return None
    missed = str(facts["missed"])
    advice = ADVICE
    if not facts.get("steps") and "bytes" in missed:  # a file of one colour, the smallest possible
        advice = "a file of this picture cannot be smaller"
    if beside:
        advice = f"{beside:,} bytes of it are taken by {BESIDE}"
    hint = f"the best file was written; {advice}"
    return TargetError(f"{name} has {missed}", hint=hint)
