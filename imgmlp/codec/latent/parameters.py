"""From the flat parameters that training moves to the tensors of a file, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from imgmlp.codec.latent.model import NEIGHBOURS
from imgmlp.codec.latent.operations import WIDTH
from imgmlp.codec.latent.plane import REACH

Array = np.ndarray[Any, Any]


def networks_of(flat: Array, shapes: Sequence[tuple[int, ...]]) -> dict[str, Array]:
    """Flat parameters, which are arrays of these shapes, as a file's tensors."""
    parts = np.split(flat, np.cumsum([int(np.prod(s)) for s in shapes])[:-1])
    arrays = [p.reshape(s) for p, s in zip(parts, shapes, strict=True)]
    synthesis, residual, context = arrays[:6], arrays[6:10], arrays[10:16]
    found = dict(zip(_names("entropy"), context, strict=True))
    found["entropy.0.weight"] = found["entropy.0.weight"][_order()]
    found["upsampling"] = np.array(arrays[16:]).reshape(-1, 4)
    found |= dict(zip(_names("synthesis"), synthesis, strict=True))
    for number in range(2):
        weight, bias = residual[2 * number : 2 * number + 2]
        kernel = weight.reshape(bias.size, 3, 3, bias.size).transpose(1, 2, 0, 3)
        found[f"residual.{number}.weight"] = kernel
        found[f"residual.{number}.bias"] = bias
    return found


def flat_of(networks: Mapping[str, Array]) -> Array:
    """The other way around; float32 [parameters]."""
    context = [networks[name] for name in _names("entropy")]
    back = np.empty_like(context[0])
    back[_order()] = context[0]
    found = [networks[name] for name in _names("synthesis")]
    for number in range(2):
        bias = networks[f"residual.{number}.bias"]
        weight = networks[f"residual.{number}.weight"].transpose(2, 0, 1, 3)
        found += [weight.reshape(-1, bias.size), bias]
    found += [back, *context[1:], networks["upsampling"]]
    return np.concatenate([np.ravel(a) for a in found]).astype(np.float32)


def _names(network: str) -> list[str]:
    return [f"{network}.{n}.{kind}" for n in range(3) for kind in ("weight", "bias")]


def _order() -> list[int]:
    """Which row of the trained first layer is each neighbour's."""
    return [(up + REACH) * WIDTH + right + REACH for up, right in NEIGHBOURS]
