"""Sorting of long axes: stable merging, gradients through the order, loops and conds."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from conftest import EMULATED

from imgmlp.engine import AnyDevice, Tensor, compile, cond, loop

# The compiled mappings check each dtype once: their kernels differ in the names of dtypes only.
DEVICES_AND_DTYPES = [
    *product(("numpy", *EMULATED), ("f4", "f2", "i1", "u4", "?")),
    *[("one", "f4"), ("group", "f2"), ("one", "i1"), ("group", "u4"), ("one", "?")],
]


@pytest.mark.parametrize(("device", "kind"), DEVICES_AND_DTYPES, indirect=["device"])
def test_sorting_long_axes_by_merging_is_stable(device: AnyDevice, kind: str) -> None:
    """Axes of 65, 130 and 200 elements, with equal elements, NaN and infinity.

    An axis of more than 64 elements is sorted in blocks that are merged.
    """
    expected, rng = {}, np.random.default_rng(0)
    outputs: dict[str, Tensor] = {}
    for shape, axis in [((2, 65), 1), ((3, 130, 2), -2), ((200,), 0)]:
        a = rng.integers(0, 2 if kind == "?" else 9, shape).astype(kind)
        if kind[0] == "f":
            a.flat[::7], a.flat[1::11], a.flat[2::13] = np.nan, np.inf, -np.inf
        x = Tensor(a, device)
        order = np.argsort(a, axis, kind="stable")
        # a stable descending order is the ascending one of the reversed axis, read from its end
        falling = a.shape[axis] - 1 - np.argsort(np.flip(a, axis), axis, kind="stable")
        falling = np.flip(falling, axis)
        for index, descending in ((order, False), (falling, True)):
            name = f"{shape} {descending}"
            outputs |= {f"{name} i": x.argsort(axis, descending), name: x.sort(axis, descending)}
            expected |= {f"{name} i": index, name: np.take_along_axis(a, index, axis)}
        outputs["topk"], outputs["topk i"] = x.topk(70, 0) if shape == (200,) else (x, x)
        expected |= {"topk": np.take_along_axis(a, falling, axis)[:70], "topk i": falling[:70]}
    program = compile(lambda: outputs, device)
    program.run()
    for name, array in expected.items():
        assert np.array_equal(program.read(name), array, equal_nan=kind[0] == "f"), name


def test_gradients_of_sort_and_topk_follow_the_order_on_long_axes(device: AnyDevice) -> None:
    rng = np.random.default_rng(0)
    a, weights = rng.permutation(200).reshape(2, 100) / 64, rng.integers(1, 9, (2, 100)) / 1.0
    x, w = Tensor(a, device), Tensor(weights, device)

    def step() -> dict[str, Tensor]:
        (once,) = (x.sort(1).square() * w).sum().gradient([x])
        (twice,) = (once * once).sum().gradient([x])
        (largest,) = (x.topk(3, 1)[0] * w[:, :3]).sum().gradient([x])
        return {"once": once, "twice": twice, "largest": largest}

    program = compile(step, device)
    program.run()
    ranks = np.argsort(np.argsort(a, 1), 1)
    slopes = np.take_along_axis(weights, ranks, 1)
    assert np.array_equal(program.read("once"), 2 * a * slopes)
    assert np.array_equal(program.read("twice"), 8 * a * slopes**2)
    kept = np.where(ranks > 96, np.take_along_axis(weights, np.maximum(99 - ranks, 0), 1), 0)
    assert np.array_equal(program.read("largest"), kept)


def test_long_axes_are_sorted_within_loops_and_conds(device: AnyDevice) -> None:
    """The enclosing loops carry values of the same shapes as the loop that merges."""
    a = np.random.default_rng(0).permutation(100).astype(np.float32)
    x, order = Tensor(a, device), Tensor(np.arange(100)[::-1].copy(), device)

    def body(i: Tensor, x: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        order = loop(2, lambda j, result: (x * result).argsort(), order)
        return (x + order).sort(descending=True), order

    def step() -> dict[str, Tensor]:
        result, places = loop(2, body, x, order)
        kept = cond(x[0] > 1e6, lambda: x, x.sort)
        (slope,) = (result * x.detach()).sum().gradient([x])
        return {"found": result, "places": places, "kept": kept, "slope": slope}

    program = compile(step, device)
    program.run()
    value, index, origin = a, np.arange(100)[::-1], np.arange(100)
    for _ in range(2):
        for _ in range(2):
            index = np.argsort(value * index, kind="stable")
        falling = np.argsort(-(value + index), kind="stable")
        value, origin = (value + index)[falling], origin[falling]
    slope = np.empty(100)
    slope[origin] = a
    results = {"found": value, "places": index, "kept": np.sort(a), "slope": slope}
    for name, array in results.items():
        assert np.array_equal(program.read(name), array), name
