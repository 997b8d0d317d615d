"""The numbers of each preset that options can replace. `config` has the rest of the presets.

It does not import NumPy, so that help stays quick.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Numbers:
    """Numbers of a preset; the defaults are those of the default preset."""

    steps: int = 10_000
    batch: int = 3072  # pixels per step
    lr: float = 2e-2
    hidden: int = 64  # values in a hidden layer
    layers: int = 3  # hidden layers
    features: int = 64
    seed: int = 0  # of the random numbers


NUMBERS = {"default": Numbers(), "seed": Numbers(batch=512, lr=0.000533)}


def usual(name: str) -> str:
    """The default of an option, in the form that help shows."""
    default, *others = ((preset, getattr(NUMBERS[preset], name)) for preset in NUMBERS)
    differing = [f"; --preset {preset}: {value}" for preset, value in others if value != default[1]]
    return f"[default: {default[1]}{''.join(differing)}]"
