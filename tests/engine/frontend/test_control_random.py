"""Random steps of nested loops and conds that read and replace states.

The reference interprets their Nodes. The Procedure and the UOps run in one arena of uninitialised
bytes, so that a wrong order, a wrong lifetime or a kernel that should not have run changes the
values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from reference import close

from imgmlp.engine import Program, Tensor, compile, cond, loop, open_device
from imgmlp.engine import dtype as dt
from imgmlp.engine.operations.autograd import gradient
from imgmlp.engine.oracle.interpret import evaluate

SHAPES = [(4, 3), (3,), (), (3, 3), (4,)]
RUNS_PER_STEP = 3  # the flag counts down from 2 through 0


def fit(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A value of this shape that depends on all elements of x."""
    return x if x.shape == shape else (x.sum() * 0.1).broadcast_to(shape)


class RandomStepBuilder:
    """Builds random values from a pool of values, determined by the seed."""

    def __init__(self, seed: int, form: str) -> None:
        self.rng = np.random.default_rng(seed)
        device = open_device(form)
        self.states = [Tensor(self.rng.standard_normal(s), device, dt.f32) for s in SHAPES]
        self.flag = Tensor(np.int32(2), device)

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def pick(self, pool: Sequence[Tensor], shape: tuple[int, ...] | None = None) -> Tensor:
        matching = [t for t in pool if shape in (None, t.shape)]
        return matching[self.below(len(matching))]

    def grow(self, pool: Sequence[Tensor], depth: int, count: int) -> list[Tensor]:
        """The pool and `count` new values."""
        values = list(pool)
        for _ in range(count):
            made = self.make(values, depth)
            values += [made] if isinstance(made, Tensor) else made
        return values

    def make(self, pool: Sequence[Tensor], depth: int) -> Tensor | tuple[Tensor, ...]:
        """New values, which stay small whatever their operands are."""
        a = self.pick(pool)
        b = fit(self.pick(pool), a.shape)
        match self.below(11 if depth < 2 else 9):
            case 0:
                return (a + b) * 0.5
            case 1:
                return (a * b).sin()
            case 2:
                return Tensor.where(a < b, a * 0.5, b)
            case 3:
                return a.max(0) * 0.5 if a.shape else a.sin()
            case 4:
                return a.sum(-1) * 0.3 if a.shape else a * 0.7
            case 5:
                return (self.pick(pool, (4, 3)) @ self.pick(pool, (3, 3))) * 0.3
            case 6:
                return (self.pick(pool, (4, 3)).transpose() @ self.pick(pool, (4, 3))) * 0.2
            case 7:
                return Tensor.concat([self.pick(pool, (3, 3)), self.pick(pool, (3,)).reshape(1, 3)])
            case 8:
                return self.pick(pool, (3, 3)).transpose().flip(0).exp2() * 0.3
            case 9:
                return self.loop(pool, depth)
        return self.cond(pool, depth)

    def loop(self, pool: Sequence[Tensor], depth: int) -> tuple[Tensor, ...]:
        start = [self.pick(pool) for _ in range(2 + self.below(2))]

        def body(i: Tensor, *carried: Tensor) -> tuple[Tensor, ...]:
            values = self.grow([*pool, *carried, *carried], depth + 1, 1 + self.below(5))
            values.append(i.cast(dt.f32) * 0.1)
            return tuple(fit(self.pick(values[-5:]), s.shape) for s in start)

        return loop(self.below(5), body, *start)

    def cond(self, pool: Sequence[Tensor], depth: int) -> tuple[Tensor, ...]:
        shapes = [SHAPES[self.below(len(SHAPES))] for _ in range(1 + self.below(2))]
        conditions = [self.flag > 0, self.pick(pool).sum() < 0.1, self.flag % 2]

        def either() -> tuple[Tensor, ...]:
            values = self.grow(pool, depth + 1, self.below(5))
            return tuple(fit(self.pick(values[-4:]), shape) for shape in shapes)

        return cond(conditions[self.below(3)], either, either)

    def step(self) -> dict[str, Tensor]:
        pool = self.grow(self.states, 0, 3 + self.below(6))
        for state in self.states:
            state.assign(self.successor(state, fit(self.pick(pool), state.shape)))
        self.flag.assign(self.flag - 1)
        return {f"y{i}": pool[-1 - i] for i in range(3)}

    def successor(self, state: Tensor, value: Tensor) -> Tensor:
        match self.below(4):
            case 0:
                return cond(self.flag > 1, lambda: value, lambda: state)
            case 1:
                return loop(3, lambda i, x: (x * 0.5 + value).sin(), state)
            case 2:
                return value
        return state


def results(seed: int, form: str) -> list[np.ndarray]:
    builder = RandomStepBuilder(seed, form)
    program: Program = compile(builder.step, builder.flag.device)
    arrays = []
    for _ in range(RUNS_PER_STEP):
        program.run()
        arrays += [program.read(name) for name in program.outputs]
        arrays += [state.numpy() for state in builder.states]
    return arrays


@pytest.mark.parametrize(
    ("form", "first", "count"),
    [("numpy:procedure", 0, 60), ("numpy:uops", 100, 15), ("numpy:uops-group", 200, 15)],
)
def test_random_steps_agree_with_the_interpreter_of_nodes(
    form: str, first: int, count: int
) -> None:
    """Intermediate values, whose rounding counts, are about as large as inputs and outputs."""
    for seed in range(first, first + count):
        expected = results(seed, "numpy")
        size = max(np.abs(value).max() for value in expected)
        for i, (actual, value) in enumerate(zip(results(seed, form), expected, strict=True)):
            assert close(actual, value, size, roundings=1024), f"seed {seed}, value {i}"


def test_random_gradients_agree_with_finite_differences() -> None:
    """Differences are taken in float64 along a random direction; some losses are constant."""
    moving = 0
    for seed in range(60):
        actual, expected, size = directional_slopes(RandomStepBuilder(seed, "numpy"), h=1e-6)
        assert actual == pytest.approx(expected, rel=0, abs=size), f"seed {seed}"
        moving += bool(actual)
    assert moving > 50


def directional_slopes(builder: RandomStepBuilder, h: float) -> tuple[float, float, float]:
    """The slope of a loss along a random direction, by its gradient and by central differences.

    Third is the tolerance: 1e-5 of the terms that are added, and the loss's rounding over h.
    """
    pool = builder.grow(builder.states, 0, 3 + builder.below(6))
    loss = (fit(pool[-1], ()) + fit(pool[-2], ())).node
    leaves = [state.node for state in builder.states]
    flag = {builder.flag.node.arg: builder.flag.node.arg.host}
    at = {n.arg: n.arg.host.astype(np.float64) for n in leaves}
    along = {b: builder.rng.standard_normal(b.shape) for b in at}

    def value(step: float) -> float:
        moved = {b: x + step * along[b] for b, x in at.items()}
        return float(evaluate([loss], moved | flag, True)[0])

    parts = evaluate(gradient(loss, leaves), at | flag, True)
    terms = np.concatenate([(g * along[n.arg]).ravel() for g, n in zip(parts, leaves, strict=True)])
    near = 1e-5 * np.abs(terms).sum() + 64 * 2**-53 * abs(value(0)) / h
    return float(terms.sum()), (value(h) - value(-h)) / (2 * h), float(near)
