"""An elementwise operation on a concatenation joins the kernel that computes its parts."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import EMULATED, open_mapping
from reference import close

from imgmlp.engine import Tensor, compile, open_device
from imgmlp.engine.ir.kernel import Kernel

CHANNELS, PIXELS = 3, 40


def follow(x: Tensor, bias: Tensor, reach: int) -> dict[str, Tensor]:
    """Three outputs of costly terms that each of two others reads, and a map over all of them."""
    terms = [x[c, k : k + PIXELS].sin() * (c + k + 1.0) for c in range(CHANNELS) for k in range(3)]
    sums = [sum(terms[o:], terms[o] * 0.5).reshape(1, 8, 5) for o in range(CHANNELS)]
    z = Tensor.concat(sums, 0).reshape(CHANNELS, PIXELS)
    seen = z.pad((0, 0), (reach, 0))[:, :PIXELS]
    y = (seen + bias.reshape(CHANNELS, 1)).maximum(0.0)
    return {"z": z, "y": Tensor.concat([Tensor.zeros(CHANNELS, 2), y], 1)}


@pytest.mark.parametrize("reach", [0, 1])
@pytest.mark.parametrize("form", EMULATED)
def test_elementwise_follower_of_a_concatenation_joins_its_writers(form: str, reach: int) -> None:
    """A reader of neighbours does not join: another group may compute them."""
    rng = np.random.default_rng(0)
    values = [rng.uniform(-1, 1, s).astype(np.float32) for s in ((CHANNELS, PIXELS + 2), (3,))]
    results = []
    for device in (open_device("numpy"), open_mapping(form)):
        x, bias = (Tensor(v, device) for v in values)
        program = compile(lambda x=x, bias=bias: follow(x, bias, reach), device)  # type: ignore[misc]
        program.run()
        results.append([program.read(name) for name in ("z", "y")])
    for expected, got in zip(*results, strict=True):
        assert close(got, expected, np.abs(expected) + 10)
    writers = [
        {b.name for b in k.writes()}
        for k in program.stages.procedure.phases
        for k in getattr(k, "members", (k,))
        if isinstance(k, Kernel)
    ]
    assert any({"z", "y"} <= names for names in writers) == (reach == 0)
