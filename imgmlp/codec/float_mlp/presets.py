"""The numbers of each preset that a user may choose, so that help can show them: loads no NumPy.

Knows nothing of what else a preset is made of, which `config` does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Numbers:
    """Values of a preset, those of the default one where it says nothing else."""

    steps: int = 10_000
    batch: int = 3072  # pixels in a step
    lr: float = 2e-2
    hidden: int = 64  # values in a hidden layer
    layers: int = 3  # hidden layers
    features: int = 64
    seed: int = 0  # of the random numbers


NUMBERS = {"default": Numbers(), "seed": Numbers(batch=512, lr=0.000533)}


def usual(name: str) -> str:
    """What a number is if nobody chooses one, as help shows it of an option's value."""
    default, *others = ((preset, getattr(NUMBERS[preset], name)) for preset in NUMBERS)
    differing = [f"; --preset {preset}: {value}" for preset, value in others if value != default[1]]
    return f"[default: {default[1]}{''.join(differing)}]"
