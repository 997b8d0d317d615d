"""Programs of thousands of consecutive operations: no pass may recurse along them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from conftest import open_mapping
from reference import close

from imgmlp.engine import Tensor, compile
from imgmlp.engine.passes.drafts import MAX_EXPRESSION_DEPTH, depth

CHAIN_LENGTH = 1500
LINKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "elementwise": lambda y, w: y * 0.999 + 0.001,
    "used twice": lambda y, w: y + y.sin() * 1e-3,
    "chosen": lambda y, w: Tensor.where(y < 0.3, y * 1.001, y),
    "product": lambda y, w: (y.reshape(1, 3) @ w).reshape(3),
    "moved": lambda y, w: y.reshape(3, 1).pad((0, 0), (0, 1)).permute(1, 0)[0].flip(0),
    "side by side": lambda y, w: Tensor.concat([y[1:], y[:1]]) * 1.001,
    "reduced": lambda y, w: y / (y.max() + 0.01),
}


@pytest.fixture
def limited_stack() -> Iterator[None]:
    """Leaves 900 frames of Python's stack, as below a user's own functions."""
    before = sys.getrecursionlimit()
    frame, used = sys._getframe(), 0
    while frame is not None:  # type: ignore[comparison-overlap]
        frame, used = frame.f_back, used + 1  # type: ignore[assignment]
    sys.setrecursionlimit(used + 900)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("limited_stack")
@pytest.mark.parametrize("link", LINKS)
def test_long_chain_of_operations_compiles_with_its_gradient(link: str) -> None:
    start = np.float32([0.1, 0.5, 1.0])
    results = {}
    for name in ("numpy", "numpy:procedure"):
        device = open_mapping(name)
        x, w = Tensor(start, device), Tensor(np.eye(3, dtype=np.float32) * 0.999, device)

        def step(x: Tensor = x, w: Tensor = w) -> dict[str, Tensor]:
            y = x
            for _ in range(
                CHAIN_LENGTH if link in ("elementwise", "chosen") else CHAIN_LENGTH // 5
            ):
                y = LINKS[link](y, w)
            return {"y": y, "gradient": (y * y).sum().gradient([x])[0]}

        program = compile(step, device)
        program.run()
        results[name] = program.read("y"), program.read("gradient")
    for expected, lowered in zip(*results.values(), strict=True):
        assert np.isfinite(expected).all()
        assert close(lowered, expected, np.abs(expected), roundings=2 * CHAIN_LENGTH)


@pytest.mark.usefixtures("limited_stack")
@pytest.mark.parametrize("name", ["one", "numpy:procedure"])
def test_chain_of_20000_operations_compiles_in_limited_stack(name: str) -> None:
    device = open_mapping(name)
    x = Tensor(np.float32([0.1, 0.5, 1.0]), device)

    def step() -> dict[str, Tensor]:
        y = x
        for _ in range(20_000):
            y = y.sin()
        return {"y": y}

    program = compile(step, device)
    program.run()
    assert close(program.read("y"), np.full(3, np.sqrt(3 / 20_000)), roundings=1e6)
    kernels = program.stages.procedure.kernels
    assert all(depth([s.value for s in k.all_stores()]) <= MAX_EXPRESSION_DEPTH for k in kernels)  # type: ignore[union-attr]


@pytest.mark.usefixtures("limited_stack")
def test_chain_of_8000_operations_has_a_gradient() -> None:
    start = np.float32([0.1, 0.5, 1.0])
    device = open_mapping("numpy")
    x = Tensor(start, device)

    def step() -> dict[str, Tensor]:
        y = x
        for _ in range(8_000):
            y = y.sin()
        return {"gradient": y.sum().gradient([x])[0]}

    program = compile(step, device)
    program.run()
    value, slope = start.astype(np.float64), np.ones(3)
    for _ in range(8_000):
        value, slope = np.sin(value), slope * np.cos(value)
    assert close(program.read("gradient"), slope, roundings=16_000)


@pytest.mark.usefixtures("limited_stack")
def test_long_chain_of_row_operations_is_a_block() -> None:
    device = open_mapping("numpy:procedure")
    random = np.random.default_rng(0)
    x, w = (Tensor(random.uniform(0.1, 1, s).astype(np.float32), device) for s in ((64, 8), (8, 8)))

    def step() -> dict[str, Tensor]:
        y = x @ w
        for _ in range(CHAIN_LENGTH):
            y = y * 0.999 + 0.001
        return {"loss": (y @ w).square().sum(), "g": (y @ w).square().sum().gradient([w])[0]}

    program = compile(step, device)
    program.run()
    assert "block" in program.stages.procedure.note
    assert np.isfinite(program.read("g")).all()


@pytest.mark.parametrize("layer", ["convolution", "pool"])
def test_chained_windows_do_not_recompute_values_for_every_tap(layer: str) -> None:
    device = open_mapping("numpy")
    picture, weight = (Tensor(np.ones((1, 1, n, n), np.float32), device) for n in (16, 3))

    def instructions(count: int) -> int:
        def step() -> dict[str, Tensor]:
            y = picture
            for _ in range(count):
                pool = layer == "pool"
                y = y.max_pool2d(3, 1, 1) if pool else y.conv2d(weight, padding=1).relu()
            return {"y": y}

        return sum(len(code.uops) for code in compile(step, device).stages.codes)

    assert instructions(6) <= 3 * instructions(2)
