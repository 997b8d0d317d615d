"""Tiles with the batch as last axis, like their inputs: equal results and vectorised terms."""

from __future__ import annotations

from itertools import product

import pytest
from conftest import EMULATED, open_mapping
from test_block import blocks, check, filled, gradients, lowered

from imgmlp.engine import AnyDevice, Tensor
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import Target
from imgmlp.engine.ir.uops import Product, U
from imgmlp.engine.lowering.linearize import linearize


@pytest.fixture(scope="module", params=["one", *EMULATED])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def channels_first(device: AnyDevice, batch: int, rows: bool = False) -> dict[str, Node]:
    """A network's gradients and its answer; the inputs are [channels, batch]."""
    x, y = filled(device, 7, batch), filled(device, 3, batch)
    w, b, v, u = (filled(device, *s) for s in ((7, 24), (24,), (24, 12), (12, 3)))
    hidden = (x.permute(1, 0) @ w + b).leaky_relu(0.1)
    narrow = hidden @ v
    # concatenated of two parts, the first of which is one column
    both = Tensor.concat([narrow[:, 0].reshape(-1, 1) * 2.0, narrow[:, 1:]], 1)
    answer = (both @ u).permute(1, 0)
    loss = (answer - y).square().sum() + (answer[0] * answer[0] + 1.0).log2().sum()
    kept = answer.permute(1, 0) if rows else answer
    return gradients(loss, w, b, v, u) | {"answer": kept.node}


# The driver takes seconds to compile each case, so it gets each batch and each layout once.
CASES = [("one", 256, True), ("one", 130, False), *product(EMULATED, (256, 130), (False, True))]


@pytest.mark.parametrize(("device", "batch", "rows"), CASES, indirect=["device"])
def test_tiles_with_the_batch_last_keep_all_values(
    device: AnyDevice, batch: int, rows: bool
) -> None:
    check(device, channels_first(device, batch, rows))


@pytest.mark.parametrize("device", EMULATED[:1], indirect=True)
def test_tiles_have_the_batch_last_if_inputs_have(device: AnyDevice) -> None:
    (block,) = blocks(lowered(channels_first(device, 1024)))
    shapes = [k.shape for k in block.kernels if k.core is not None and k.core.op is Op.DOT]
    forward = [(24, 256), (12, 256), (3, 256)]
    assert shapes[:3] == forward
    assert not any(shape[0] == 256 for shape in shapes)


@pytest.mark.parametrize("device", EMULATED[:1], indirect=True)
def test_weight_gradients_are_vectorised_along_the_batch(device: AnyDevice) -> None:
    (block,) = blocks(lowered(channels_first(device, 1024)))
    code = linearize(block, Target("one", 2))
    products: list[Product] = [u.arg for u in code.uops if u.op is U.PRODUCT]
    assert {p.runs_along_terms for p in products if p.terms == 256} == {True}
    assert {p.runs_along_terms for p in products if p.terms != 256} == {False}


@pytest.mark.parametrize("device", EMULATED[:1], indirect=True)
def test_inputs_with_features_last_keep_row_tiles(device: AnyDevice) -> None:
    x, w, v = filled(device, 1024, 7), filled(device, 7, 24), filled(device, 24, 3)
    loss = ((x @ w).leaky_relu(0.1) @ v).square().sum()
    (block,) = blocks(lowered(gradients(loss, w, v)))
    first = next(k for k in block.kernels if k.core is not None and k.core.op is Op.DOT)
    assert first.shape == (256, 24)


@pytest.mark.parametrize("device", EMULATED[:1], indirect=True)
def test_sum_of_logarithms_reads_values_stored_by_another_kernel(device: AnyDevice) -> None:
    (block,) = blocks(lowered(channels_first(device, 1024)))
    sums = [k.core for k in block.kernels if k.core is not None and k.core.op is Op.SUM]
    below = [n for core in sums for n in core.src]
    assert sums
    assert all(n.op is not Op.LOG2 for n in below)
