"""Loops inside a step: their values, how they are compiled, and what loop and cond refuse."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import Lowered
from poison import run_poisoned
from reference import close
from small_programs import symmetric

from imgmlp.engine import AnyDevice, Device, Program, Tensor, compile, cond, loop, open_device
from imgmlp.engine import dtype as dt
from imgmlp.engine.ir.graph import toposort
from imgmlp.engine.ir.kernel import Loop
from imgmlp.engine.ir.op import Op


def power_iteration(matrix: Tensor, start: Tensor, steps: int) -> Tensor:
    """The unit eigenvector of the largest eigenvalue, [n]."""

    def body(i: Tensor, v: Tensor) -> Tensor:
        w = (matrix * 0.5) @ v  # matrix * 0.5 is the same in each iteration
        return w / w.square().sum().sqrt()

    return loop(steps, body, start)


# --- values ---


def test_loop_of_power_iterations_finds_largest_eigenvector(device: AnyDevice) -> None:
    a = symmetric(5)
    actual = power_iteration(Tensor(a, device), Tensor(np.ones(5), device), 200).numpy()
    largest = np.linalg.eigh(a)[1][:, -1]
    assert abs(actual @ largest) == pytest.approx(1, abs=1e-5)


def test_loop_of_newton_iterations_converges_to_square_root(device: AnyDevice) -> None:
    x = Tensor([0.25, 2.0, 100.0], device)
    actual = loop(12, lambda i, r: (r + x / r) * 0.5, Tensor([1.0, 1.0, 1.0], device))
    expected = np.sqrt([0.25, 2.0, 100.0])
    assert close(actual.numpy(), expected, expected, roundings=8)


def test_loop_body_indexes_table_by_iteration_number(device: AnyDevice) -> None:
    """Cumulative products of the rows of a table are stored in a carried table."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.5, 2, (6, 4)).astype(np.float32)
    table = Tensor(rows, device)
    places = Tensor.arange(6).reshape(6, 1)

    def body(i: Tensor, product: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        product = product * table.gather(i)
        return product, Tensor.where(places.eq(i), product, kept)

    start = Tensor(np.ones(4), device), Tensor(np.zeros((6, 4)), device)
    last, kept = loop(6, body, *start)
    expected = np.cumprod(rows.astype(np.float64), 0)
    assert close(kept.numpy(), expected, expected, roundings=8)
    assert close(last.numpy(), expected[-1], expected[-1], roundings=8)


def test_loop_updates_all_carried_values_from_the_previous_iteration(device: AnyDevice) -> None:
    """Fibonacci numbers: each value is computed from those before the iteration."""
    zero, one = Tensor(np.int32(0), device), Tensor(np.int32(1), device)
    a, b = loop(20, lambda i, a, b: (b, a + b), zero, one)
    assert (a.item(), b.item()) == (6765, 10946)


def test_nested_loop_body_uses_both_iteration_numbers(device: AnyDevice) -> None:
    x = np.arange(3)
    shift = Tensor(np.array([1, 5, 7]), device)

    def outer(i: Tensor, x: Tensor) -> Tensor:
        return loop(4, lambda j, y: y * 2 + shift * i + j, x) + 1

    actual = loop(3, outer, Tensor(x, device)).numpy()
    for i in range(3):
        for j in range(4):
            x = x * 2 + np.array([1, 5, 7]) * i + j
        x = x + 1
    assert np.array_equal(actual, x)


@pytest.mark.parametrize("count", [0, 1, np.int64(1), np.uint8(1)])
def test_loop_of_zero_or_one_iterations_builds_no_loop_node(device: AnyDevice, count: int) -> None:
    x = Tensor([1.0, 2.0], device)
    y = loop(count, lambda i, y: y * 3 + i, x)
    assert all(n.op is not Op.LOOP for n in (y.node, *y.node.src))
    assert np.array_equal(y.numpy(), [3.0**count, 2 * 3.0**count])


def test_every_replay_carries_the_state_through_the_loop(device: AnyDevice) -> None:
    """Gradient descent on (w - 3)²; a gradient inside of the body needs no unrolling."""
    w = Tensor([0.0, 10.0], device)
    before = Tensor([0.0, 0.0], device)

    def descend(i: Tensor, w: Tensor) -> Tensor:
        (slope,) = (w - 3.0).square().sum().gradient([w])
        return w - slope * 0.05

    def step() -> dict[str, Tensor]:
        before.assign(w)
        w.assign(loop(10, descend, w))
        return {"double": w * 2}  # twice the value before the step

    program = compile(step, device)
    expected = np.array([0.0, 10.0])
    for _ in range(3):
        old = expected.copy()
        program.run()
        expected = 3 + (expected - 3) * 0.9**10
        assert close(w.numpy(), expected, 10)
        assert close(before.numpy(), old, 10)
        assert close(program.read("double"), 2 * old, 20)


def test_second_loop_uses_results_of_the_first(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0], device)
    first = loop(3, lambda i, y: y * 2, x)
    second, total = loop(
        4, lambda i, y, s: (y + first, s + y), first + 1, Tensor.zeros(2, device=device)
    )
    joined = Tensor.concat([first, second, total]).numpy()
    f = np.array([8.0, 16.0])
    s = f + 1
    assert np.array_equal(joined, np.concatenate([f, s + 4 * f, 4 * s + 6 * f]))


# --- compilation ---


def test_loop_body_is_compiled_once_and_launched_each_iteration(lowered: Lowered) -> None:
    a, v = Tensor(symmetric(5)), Tensor(np.ones(5))
    stages = lowered(lambda: {"v": power_iteration(a, v, 50)})
    (cycle,) = (i for i in stages.procedure.items if isinstance(i, Loop))
    assert cycle.count == 50
    inside = len(cycle.body.kernels)
    assert inside <= 3
    before = len(stages.codes) - inside
    assert stages.figures()["launches"] == before + 50 * inside
    assert before == 1  # the halves of the matrix, and the first vector, side by side


def test_equal_loops_are_one_node(device: AnyDevice) -> None:
    a, v = Tensor(symmetric(5), device), Tensor(np.ones(5), device)
    assert power_iteration(a, v, 7).node is power_iteration(a, v, 7).node
    assert power_iteration(a, v, 7).node is not power_iteration(a, v, 8).node


def test_constants_are_folded_into_the_loop_body(lowered: Lowered) -> None:
    two = Tensor.full((3,), 1.0) + 1.0  # folded, but only after the loop was built
    stages = lowered(lambda: {"y": loop(5, lambda i, x: x * two, Tensor(np.ones(3)))})
    assert len(stages.codes) == 2


def memory_reuse_program(device: Device) -> Program:
    """Values that must outlive a loop's temporaries: carried, captured, read afterwards."""
    rng = np.random.default_rng(3)
    x = Tensor(rng.standard_normal((20, 20)).astype(np.float32) * 0.1, device)
    seed = Tensor(np.int32(0), device)

    def step() -> dict[str, Tensor]:
        early = (x @ x).softmax()  # read before, in and after the loop
        scale = x.max(0)

        def body(i: Tensor, y: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
            z = (y @ early).softmax() @ x  # temporaries of the carried values' size
            inner = loop(2, lambda j, w: (w @ early) * scale + j, z)
            return z + inner * 0.1, total + z.sum() * i

        y, total = loop(3, body, x @ early, Tensor.zeros(device=device))
        x.assign(x * 0.5 + y @ early * 0.01)
        seed.assign(seed + 1)
        return {"total": total, "late": early.sum(0) + y.sum(1)}

    return compile(step, device)


def test_values_that_a_loop_needs_outlive_its_temporary_buffers(kernels: Device) -> None:
    """Results stay equal when memory that the plan declares free is overwritten at every launch."""
    plain, poisoned = memory_reuse_program(kernels), memory_reuse_program(kernels)
    assert plain.stages.memory.arena_bytes < plain.stages.memory.separate_bytes
    for _ in range(2):
        plain.run()
        run_poisoned(poisoned)
        for name in ("total", "late"):
            assert np.array_equal(plain.read(name), poisoned.read(name))
            assert np.isfinite(plain.read(name)).all()


def test_loop_listing_numbers_carried_nodes_by_their_lines() -> None:
    x, y = Tensor([1.0, 2.0]), Tensor([3.0, 4.0])
    last, _ = loop(3, lambda i, p, q: (p + q, (q * 2.0).tanh()), x, y)
    body = next(n.arg for n in toposort([last.node]) if n.op is Op.LOOP)
    listing, _, carried = body.render().rpartition("\n")
    lines = [line.split() for line in listing.splitlines()]
    carried_lines = [lines[int(number)] for number in re.findall(r"\d+", carried)]
    assert [line[1] for line in carried_lines] == ["ADD", "FUNCTION"]


def test_listings_show_the_loop_body(lowered: Lowered) -> None:
    x = Tensor([1.0, 2.0])
    stages = lowered(lambda: {"y": loop(5, lambda i, y: y * x + i, x)})
    assert "LOOP 5 times" in stages.show("nodes")
    assert "        0 PARAMETER" in stages.show("nodes")
    assert "carries (" in stages.show("nodes")
    assert "loop 5 times\n  k" in stages.show("procedure")
    assert "subgraph cluster_n" in stages.show("dot")


def test_loop_overwrites_its_carried_state_in_place(lowered: Lowered) -> None:
    x = Tensor([1.0, 2.0])

    def step() -> dict[str, Tensor]:
        x.assign(loop(5, lambda i, x: x * 2, x))
        return {}

    assert len(lowered(step).codes) == 1


# --- refusals ---


def test_loop_body_must_return_the_carried_shapes_and_dtypes() -> None:
    x = Tensor([1.0, 2.0])
    with pytest.raises(ValueError, match=r"enters the body as f32\[2\] and leaves it as f32\[1\]"):
        loop(3, lambda i, y: y.sum(keepdims=True), x)
    with pytest.raises(ValueError, match=r"value 1 .* f32\[\] .* i32\[\]"):
        loop(3, lambda i, y, n: (y, i), x, Tensor.zeros())
    with pytest.raises(ValueError, match="takes 1 values, but returns 2"):
        loop(3, lambda i, y: (y, y), x)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="must return Tensors, not float"):
        loop(3, lambda i, y: (1.0,), x)  # type: ignore[arg-type, return-value]


def test_cond_refuses_wrong_conditions_and_branches() -> None:
    x, c = Tensor([1.0, 2.0]), Tensor(np.int32(1))
    for wrong in (Tensor([1, 0]), Tensor(1.0), True):
        with pytest.raises(TypeError, match="the condition must be one bool or integer"):
            cond(wrong, lambda: x, lambda: x)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"value 0 is f32\[2\] if true and f32\[\] if not"):
        cond(c, lambda: x, x.sum)
    with pytest.raises(ValueError, match="2 values if true, but 1 if not"):
        cond(c, lambda: (x, x), lambda: (x,))
    with pytest.raises(TypeError, match="must return Tensors, not int"):
        cond(c, lambda: x, lambda: 3)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="assigns a state"):
        cond(c, lambda: x.assign(x), lambda: x)
    with pytest.raises(TypeError, match="cond: takes functions that return Tensors, not Tensor"):
        cond(c, x, x)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="loop: takes functions that return Tensors, not NoneType"):
        loop(3, None, x)  # type: ignore[call-overload]


@pytest.mark.parametrize("count", [2.0, True, "3", Tensor(np.int32(3))])
def test_loop_count_must_be_an_int(count: object) -> None:
    with pytest.raises(TypeError, match="the count must be an int"):
        loop(count, lambda i, y: y, Tensor([1.0]))  # type: ignore[arg-type]


def test_loop_refuses_negative_count_and_no_carried_tensors() -> None:
    with pytest.raises(ValueError, match="-1 iterations"):
        loop(-1, lambda i, y: y, Tensor([1.0]))
    with pytest.raises(TypeError, match="needs Tensors to carry"):
        loop(3, lambda i: i)  # type: ignore[call-overload]


def test_assignment_in_a_loop_body_is_refused(device: AnyDevice) -> None:
    state = Tensor([1.0], device)
    with pytest.raises(ValueError, match="assigns a state"):
        loop(3, lambda i, y: state.assign(y), Tensor([1.0], device))
    assert state.item() == 1.0


def test_value_of_a_loop_body_cannot_be_read_outside(device: AnyDevice) -> None:
    inside: list[Tensor] = []

    def body(i: Tensor, y: Tensor) -> Tensor:
        inside.append(y * 2 + i)
        return y

    loop(3, body, Tensor([1.0], device))
    message = r"return it from the body, where numpy\(\) has none.*test_control\.py"
    with pytest.raises(ValueError, match=message):
        inside[0].numpy()
    with pytest.raises(ValueError, match=message):
        loop(3, lambda i, y: y + y.numpy(), Tensor([1.0], device))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_value_of_a_loop_body_cannot_be_used_in_another_loop(nested: bool, count: int) -> None:
    """A loop of the same shapes must not mistake the leaked parameter for its own."""
    start, leaked = Tensor(np.float32([0, 1]), open_device("numpy")), list[Tensor]()

    def leaking(i: Tensor, x: Tensor) -> Tensor:
        leaked.append(x * 2)
        return x + 1

    def taking(i: Tensor, x: Tensor) -> Tensor:
        return x + leaked[0]

    def both(i: Tensor, x: Tensor) -> Tensor:
        return loop(3, taking, loop(3, leaking, x))

    if nested:
        result = loop(count, both, start)
    else:
        loop(3, leaking, start)
        result = loop(count, taking, start)
    with pytest.raises(ValueError, match="no value outside of it"):
        result.numpy()


def test_loop_can_be_built_after_a_body_raised(device: AnyDevice) -> None:
    with pytest.raises(TypeError):
        loop(3, lambda i, y: y ^ 2, Tensor([1.0], device))
    x = Tensor([1], device, dtype=dt.i32)
    assert loop(3, lambda i, y: y + i, x).node is loop(3, lambda i, y: y + i, x).node


def test_threads_build_loops_independently() -> None:
    """One thread leaves its loop while the other is inside of two nested loops."""
    device = open_device("numpy")
    inside, other_inside, left = (threading.Event() for _ in range(3))
    start = Tensor(np.zeros(2, np.float32), device)

    def inner(i: Tensor, v: Tensor) -> Tensor:
        return loop(3, lambda j, w: w + (i * 10 + j).cast(dt.f32), v)

    def outer(i: Tensor, v: Tensor) -> Tensor:
        other_inside.set()
        assert left.wait(60)
        return inner(i, v)

    def body(i: Tensor, v: Tensor) -> Tensor:
        inside.set()
        assert other_inside.wait(60)
        return v + 1

    def both() -> np.ndarray:
        assert inside.wait(60)
        return loop(2, outer, start).numpy()

    with ThreadPoolExecutor(1) as thread:
        nested = thread.submit(both)
        loop(2, body, start)
        left.set()
        assert nested.result().tolist() == loop(2, inner, start).numpy().tolist() == [36, 36]
