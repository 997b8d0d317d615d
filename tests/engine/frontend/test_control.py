"""Loops and choices inside a step: values against NumPy's, memory, gradients, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import FORMS, MAPPINGS, open_mapping
from reference import close

from imgmlp.engine import AnyDevice, Context, Device, Function, Program, Tensor, compile, cond, loop
from imgmlp.engine import dtype as dt
from imgmlp.engine.compiler import Stages
from imgmlp.engine.frontend.autograd import MOST_UNROLLED
from imgmlp.engine.ir.kernel import Fused, Loop
from imgmlp.engine.ir.op import Op
from imgmlp.engine.oracle import interpret
from imgmlp.engine.runtime.poison import run_poisoned


@pytest.fixture(scope="module", params=FORMS)
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


@pytest.fixture(scope="module", params=MAPPINGS[1:])
def kernels(request: pytest.FixtureRequest) -> Device:
    """A device that runs kernels."""
    found = open_mapping(request.param)
    assert isinstance(found, Device)
    return found


Lowered = Callable[[Callable[[], dict[str, Tensor]]], Stages]


@pytest.fixture(params=MAPPINGS[1:])
def lowered(request: pytest.FixtureRequest) -> Lowered:
    """What steps become for a mapping, without a driver."""
    device = open_mapping("numpy")
    device.lanes = request.param
    return lambda step: compile(step, device).stages


def symmetric(n: int) -> np.ndarray:
    a = np.random.default_rng(n).standard_normal((n, n)).astype(np.float32)
    return a @ a.T


def power_iteration(matrix: Tensor, start: Tensor, steps: int) -> Tensor:
    """The unit eigenvector of the largest eigenvalue, [n]."""

    def body(i: Tensor, v: Tensor) -> Tensor:
        w = (matrix * 0.5) @ v  # the halves are the same in each iteration
        return w / w.square().sum().sqrt()

    return loop(steps, body, start)


# --- values ---


def test_power_iteration_finds_the_largest_eigenvector(device: AnyDevice) -> None:
    a = symmetric(5)
    found = power_iteration(Tensor(a, device), Tensor(np.ones(5), device), 200).numpy()
    largest = np.linalg.eigh(a)[1][:, -1]
    assert abs(found @ largest) == pytest.approx(1, abs=1e-5)


def test_newton_steps_converge_to_the_square_root(device: AnyDevice) -> None:
    x = Tensor([0.25, 2.0, 100.0], device)
    found = loop(12, lambda i, r: (r + x / r) * 0.5, Tensor([1.0, 1.0, 1.0], device))
    wanted = np.sqrt([0.25, 2.0, 100.0])
    assert close(found.numpy(), wanted, wanted, roundings=8)


def test_the_number_of_the_iteration_picks_a_row(device: AnyDevice) -> None:
    """Cumulative products of the rows of a table, kept in a carried table."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.5, 2, (6, 4)).astype(np.float32)
    table = Tensor(rows, device)
    places = Tensor.arange(6).reshape(6, 1)

    def body(i: Tensor, product: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        product = product * table.gather(i)
        return product, Tensor.where(places.eq(i), product, kept)

    start = Tensor(np.ones(4), device), Tensor(np.zeros((6, 4)), device)
    last, kept = loop(6, body, *start)
    wanted = np.cumprod(rows.astype(np.float64), 0)
    assert close(kept.numpy(), wanted, wanted, roundings=8)
    assert close(last.numpy(), wanted[-1], wanted[-1], roundings=8)


def test_carried_values_change_places_at_once(device: AnyDevice) -> None:
    """Fibonacci's numbers: each value is computed from those before the iteration."""
    zero, one = Tensor(np.int32(0), device), Tensor(np.int32(1), device)
    a, b = loop(20, lambda i, a, b: (b, a + b), zero, one)
    assert (a.item(), b.item()) == (6765, 10946)


def test_a_loop_in_a_loop_sees_both_numbers(device: AnyDevice) -> None:
    x = np.arange(3)
    shift = Tensor(np.array([1, 5, 7]), device)

    def outer(i: Tensor, x: Tensor) -> Tensor:
        return loop(4, lambda j, y: y * 2 + shift * i + j, x) + 1

    found = loop(3, outer, Tensor(x, device)).numpy()
    for i in range(3):
        for j in range(4):
            x = x * 2 + np.array([1, 5, 7]) * i + j
        x = x + 1
    assert np.array_equal(found, x)


@pytest.mark.parametrize("count", [0, 1])
def test_no_iteration_and_one(device: AnyDevice, count: int) -> None:
    x = Tensor([1.0, 2.0], device)
    y = loop(count, lambda i, y: y * 3 + i, x)
    assert all(n.op is not Op.LOOP for n in (y.node, *y.node.src))
    assert np.array_equal(y.numpy(), [3.0**count, 2 * 3.0**count])


def test_a_state_goes_through_a_loop_in_every_replay(device: AnyDevice) -> None:
    """Gradient descent on (w - 3)²: gradients inside of the body cost no unrolling."""
    w = Tensor([0.0, 10.0], device)
    before = Tensor([0.0, 0.0], device)

    def descend(i: Tensor, w: Tensor) -> Tensor:
        (slope,) = (w - 3.0).square().sum().gradient([w])
        return w - slope * 0.05

    def step() -> dict[str, Tensor]:
        before.assign(w)
        w.assign(loop(10, descend, w))
        return {"double": w * 2}  # of the value before the step

    program = compile(step, device)
    wanted = np.array([0.0, 10.0])
    for _ in range(3):
        old = wanted.copy()
        program.run()
        wanted = 3 + (wanted - 3) * 0.9**10
        assert close(w.numpy(), wanted, 10)
        assert close(before.numpy(), old, 10)
        assert close(program.read("double"), 2 * old, 20)


def test_one_loop_after_another(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0], device)
    first = loop(3, lambda i, y: y * 2, x)
    second, total = loop(
        4, lambda i, y, s: (y + first, s + y), first + 1, Tensor.zeros(2, device=device)
    )
    joined = Tensor.concat([first, second, total]).numpy()
    f = np.array([8.0, 16.0])
    s = f + 1
    assert np.array_equal(joined, np.concatenate([f, s + 4 * f, 4 * s + 6 * f]))


# --- how it runs ---


def test_the_body_is_compiled_once_and_replayed(lowered: Lowered) -> None:
    a, v = Tensor(symmetric(5)), Tensor(np.ones(5))
    stages = lowered(lambda: {"v": power_iteration(a, v, 50)})
    (cycle,) = (i for i in stages.procedure.items if isinstance(i, Loop))
    assert cycle.count == 50
    inside = len(cycle.body.kernels)
    assert inside <= 3
    before = len(stages.codes) - inside
    assert stages.figures()["launches"] == before + 50 * inside
    assert before == 1  # the halves of the matrix, and the first vector, side by side


def test_the_same_loop_is_one_node(device: AnyDevice) -> None:
    a, v = Tensor(symmetric(5), device), Tensor(np.ones(5), device)
    assert power_iteration(a, v, 7).node is power_iteration(a, v, 7).node
    assert power_iteration(a, v, 7).node is not power_iteration(a, v, 8).node


def test_constants_are_the_bodys_own(lowered: Lowered) -> None:
    two = Tensor.full((3,), 1.0) + 1.0  # folded, but only after the loop was built
    stages = lowered(lambda: {"y": loop(5, lambda i, x: x * two, Tensor(np.ones(3)))})
    assert len(stages.codes) == 2


def reused_memory(device: Device) -> Program:
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


def test_what_a_loop_needs_outlives_its_temporaries(kernels: Device) -> None:
    """The bits do not change when memory that the plan says is free is spoilt at every launch."""
    plain, poisoned = reused_memory(kernels), reused_memory(kernels)
    assert plain.stages.memory.arena_bytes < plain.stages.memory.separate_bytes
    for _ in range(2):
        plain.run()
        run_poisoned(poisoned)
        for name in ("total", "late"):
            assert np.array_equal(plain.read(name), poisoned.read(name))
            assert np.isfinite(plain.read(name)).all()


def test_listings_show_the_body(lowered: Lowered) -> None:
    x = Tensor([1.0, 2.0])
    stages = lowered(lambda: {"y": loop(5, lambda i, y: y * x + i, x)})
    assert "LOOP 5 times" in stages.show("nodes")
    assert "        0 PARAMETER" in stages.show("nodes")
    assert "carries (" in stages.show("nodes")
    assert "loop 5 times\n  k" in stages.show("procedure")
    assert "subgraph cluster_n" in stages.show("dot")


# --- choices ---


def chosen(device: AnyDevice) -> tuple[Program, Tensor]:
    """A step whose condition is a state: it counts down, and through 0 to the other branch."""
    a = Tensor(symmetric(5), device)
    left = Tensor(np.int32(2), device)
    state = Tensor(np.ones((5, 5)), device)
    heard = Tensor(np.zeros(5), device)

    def step() -> dict[str, Tensor]:
        c = left > 0
        y, total = cond(
            c,
            lambda: ((a @ a + 1.0).softmax(), (a @ state).sum()),
            lambda: (a * 2.0, a.sum() * 0.5),
        )
        state.assign(cond(c, lambda: state * 2.0 + y, lambda: state))
        heard.assign(cond(left, lambda: y.sum(0), lambda: heard))
        left.assign(left - 1)
        return {"y": y, "total": total, "joined": Tensor.concat([y, state])}

    return compile(step, device), state


def test_the_condition_may_change_between_replays(device: AnyDevice) -> None:
    program, state = chosen(device)
    a, wanted = symmetric(5).astype(np.float64), np.ones((5, 5))
    e = np.exp(a @ a + 1 - (a @ a + 1).max(1, keepdims=True))
    sizes = np.abs(wanted)
    for left in (2, 1, 0, -1):
        program.run()
        y = e / e.sum(1, keepdims=True) if left > 0 else a * 2
        total = (a @ wanted).sum() if left > 0 else a.sum() * 0.5
        assert close(program.read("y"), y, roundings=256)
        assert close(program.read("total"), total, (np.abs(a) @ sizes).sum(), roundings=256)
        assert close(program.read("joined"), np.concatenate([y, wanted]), roundings=256)
        wanted = wanted * 2 + y if left > 0 else wanted
        sizes = sizes * 2 + np.abs(y)
        assert close(state.numpy(), wanted, sizes, roundings=256)


def test_only_the_chosen_branch_computes(kernels: Device) -> None:
    """What the other branch would leave in memory is not there."""
    a, c = Tensor(symmetric(5), kernels), Tensor(np.int32(0), kernels)
    choice = cond(c, lambda: (a @ a).softmax() + 1.0, lambda: a * 2.0)
    program = compile(lambda: {"y": choice}, kernels)
    plan, (arena,) = program.stages.memory, program.arena
    assert len(plan.offsets) >= 2  # the product in the branch, and the condition
    kernels.write(arena, np.full(arena.nbytes, 0x55, np.uint8))
    for taken in (False, True):
        c.write(np.array(taken, np.int32))
        program.run()
        found = np.empty(arena.nbytes, np.uint8)
        kernels.read(arena, found)
        for storage, begin in plan.offsets.items():
            untouched = (found[begin : begin + storage.nbytes] == 0x55).all()
            assert untouched == (not taken and storage.dtype is not dt.bool_)


def test_guards_are_kept_by_memory_in_reuse(kernels: Device) -> None:
    plain, poisoned = chosen(kernels)[0], chosen(kernels)[0]
    for _ in range(3):
        plain.run()
        run_poisoned(poisoned)
        for name in ("y", "total", "joined"):
            assert np.array_equal(plain.read(name), poisoned.read(name))


def test_a_state_that_stays_is_not_copied(lowered: Lowered) -> None:
    x, c = Tensor([1.0, 2.0]), Tensor([True])

    def step() -> dict[str, Tensor]:
        x.assign(cond(c, lambda: x * 2, lambda: x))
        return {}

    assert len(lowered(step).codes) == 1


def test_a_loop_overwrites_the_state_that_it_carries(lowered: Lowered) -> None:
    x = Tensor([1.0, 2.0])

    def step() -> dict[str, Tensor]:
        x.assign(loop(5, lambda i, x: x * 2, x))
        return {}

    assert len(lowered(step).codes) == 1


def test_newton_stops_once_it_is_there(device: AnyDevice) -> None:
    """A choice in a loop: iterations after the first small step change nothing."""
    two = Tensor([2.0], device)

    def body(i: Tensor, x: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        better = (x + two / x) * 0.5
        near = ((better - x).abs() < 1e-3).cast(dt.i32).sum()
        return cond(near, lambda: (x, steps), lambda: (better, steps + 1))

    x, steps = loop(30, body, Tensor([1.0], device), Tensor(np.int32(0), device))
    assert x.item() == pytest.approx(np.sqrt(2), abs=1e-3)
    assert steps.item() == 3


def test_choices_in_choices_and_loops_in_them(device: AnyDevice) -> None:
    x = Tensor([1.0, 2.0], device)
    number = Tensor(np.int32(0), device)

    def step() -> dict[str, Tensor]:
        inner = cond(number < 2, lambda: loop(3, lambda i, y: y * x + i, x), lambda: x * 7)
        y = cond(number < 1, lambda: -x, lambda: inner + 1)
        number.assign(number + 1)
        return {"y": y}

    program = compile(step, device)
    for wanted in ([-1.0, -2.0], [5.0, 21.0], [8.0, 15.0]):
        program.run()
        assert np.array_equal(program.read("y"), wanted)


def test_numpy_computes_only_the_chosen_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(interpret.TABLE, Op.SIN, None)
    x = Tensor([1.0, 2.0], open_mapping("numpy"))
    true = Tensor(np.bool_(True), x.device)
    assert cond(true, x.sum, lambda: x.sin().sum()).item() == 3
    with pytest.raises(TypeError):
        cond(true.logical_not(), x.sum, lambda: x.sin().sum()).item()


def test_a_choice_that_is_known_is_made_at_once(lowered: Lowered) -> None:
    x = Tensor([1.0, 2.0])
    yes = Tensor.full((), 3) > 2
    stages = lowered(lambda: {"y": cond(yes, lambda: x * 3, x.sin)})
    assert [n.op for n in stages.nodes] == [Op.MUL]
    assert len(stages.codes) == 1


def test_listings_show_guards(lowered: Lowered) -> None:
    x, c = Tensor([1.0, 2.0]), Tensor(np.int32(1))
    stages = lowered(lambda: {"y": cond(c, lambda: x * 2, lambda: x + 1)})
    assert "COND" in stages.show("nodes")
    assert "[label=true]" in stages.show("dot")
    assert "  if t" in stages.show("procedure")
    assert "  unless t" in stages.show("procedure")
    assert "GUARD" in stages.show("uops")
    assert stages.source.count("return;") == 2


# --- gradients ---


def computed(*tensors: Tensor) -> list[np.ndarray]:
    """Several values, by one program."""
    device = tensors[0].device
    assert device is not None
    program = compile(lambda: {str(i): t for i, t in enumerate(tensors)}, device)
    program.run()
    return [program.read(str(i)) for i in range(len(tensors))]


def gradients(run: Callable[..., Tensor], device: AnyDevice) -> list[np.ndarray]:
    a = Tensor(symmetric(3) * 0.2, device)
    x = Tensor([1.0, -0.5, 2.0], device)

    def body(i: Tensor | int, y: Tensor) -> Tensor:
        return (a @ y) * 0.5 + (y * x).sin() * i

    loss = (run(3, body, x) * x).sum()
    return computed(*loss.gradient([x, a]))


def in_python(count: int, body: Callable[..., Tensor], x: Tensor) -> Tensor:
    for i in range(count):
        x = body(i, x)
    return x


def test_gradients_are_those_of_the_unrolled_loop(device: AnyDevice) -> None:
    wanted = gradients(in_python, open_mapping("numpy"))
    for found, want in zip(gradients(loop, device), wanted, strict=True):
        assert np.abs(want).max() > 0.1
        assert close(found, want)


def test_gradients_of_a_nested_loop(device: AnyDevice) -> None:
    """y = x·3^(2·3), so that the slope is 729."""
    x = Tensor([2.0], device)
    y = loop(2, lambda i, y: loop(3, lambda j, z: z * 3, y), x)
    (slope,) = y.sum().gradient([x])
    assert slope.numpy() == [729.0]


class Scaled(Function):
    """x·a², with a saved product."""

    @staticmethod
    def forward(ctx: Context, x: Tensor, a: Tensor) -> Tensor:
        ctx.save_for_backward(x * a, a)
        return x * a * a

    @staticmethod
    def backward(ctx: Context, g: Tensor) -> tuple[Tensor, Tensor]:
        product, a = ctx.saved_tensors
        return g * a * a, g * product * 2


def test_a_function_saves_what_each_iteration_computed(device: AnyDevice) -> None:
    """y = x·a^(2·6), so that the slopes are a^12 and 12·x·a^11; one loop is in the other."""
    x, a = Tensor([2.0, 3.0], device), Tensor([1.1, 0.9], device)

    def body(i: Tensor, y: Tensor) -> Tensor:
        return loop(2, lambda j, z: Scaled.apply(z, a), y)

    by_x, by_a = computed(*loop(3, body, x).sum().gradient([x, a]))
    scale = np.array([1.1, 0.9])
    wanted = 12 * np.array([2, 3]) * scale**11
    assert close(by_x, scale**12, scale**12)
    assert close(by_a, wanted, wanted)


def test_gradients_reach_expressions_that_only_a_body_uses(device: AnyDevice) -> None:
    w = Tensor([1.0, 2.0, 3.0, 4.0], device)
    square, double = w.reshape(2, 2), w[:2] * 2
    y = loop(2, lambda i, y: y + square.sum(0) * double, Tensor([0.0, 0.0], device))
    by_square, by_double = computed(*y.sum().gradient([square, double]))
    assert np.array_equal(by_square, [[4.0, 8.0], [4.0, 8.0]])
    assert np.array_equal(by_double, [8.0, 12.0])


def test_gradients_of_gradients_through_a_loop(device: AnyDevice) -> None:
    """y = x^8: the second derivative is 56·x^6."""
    x = Tensor([1.5], device)
    (slope,) = loop(3, lambda i, y: y * y, x).sum().gradient([x])
    (curvature,) = slope.sum().gradient([x])
    assert curvature.numpy() == pytest.approx(56 * 1.5**6, rel=1e-5)


@pytest.mark.parametrize("way", [0, 1])
def test_gradients_go_through_the_chosen_value(device: AnyDevice, way: int) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((3, 3)).astype(np.float32) for _ in range(2))
    w, v = Tensor(a, device), Tensor(b, device)
    c = Tensor(np.int32(way), device)
    x = (w * 0.5).sin()  # of both ways
    y = cond(c, lambda: (x @ v) ** 2, lambda: x * 3)
    by_w, by_v = computed(*(y.sum() + x.sum()).gradient([w, v]))
    g = 2 * (np.sin(a / 2) @ b) @ b.T if way else np.full((3, 3), 3.0)
    assert close(by_w, (g + 1) * np.cos(a / 2) / 2)
    wanted = np.sin(a / 2).T @ (2 * np.sin(a / 2) @ b) if way else np.zeros((3, 3))
    assert close(by_v, wanted)


def test_the_gradient_of_what_is_not_chosen_is_not_computed(lowered: Lowered) -> None:
    x, w, c = Tensor(symmetric(4)), Tensor(symmetric(4)), Tensor(np.int32(0))

    def step() -> dict[str, Tensor]:
        y = cond(c, lambda: ((x @ w).softmax() @ w) ** 2, lambda: x * 2)
        return {"slope": y.sum().gradient([w])[0]}

    launches = lowered(step).procedure.kernels
    kernels = [m for k in launches for m in (k.members if isinstance(k, Fused) else [k])]
    products = [k for k in kernels if k.core and k.core.op is Op.DOT]
    assert len(products) >= 4
    assert all(k.guards for k in products)


def test_gradients_through_a_choice_in_a_loop(device: AnyDevice) -> None:
    """x doubles, and doubles, and then is squared: 16·x², whose slope is 32·x."""
    x = Tensor([1.5], device)
    y = loop(3, lambda i, y: cond(i < 2, lambda: y * 2, lambda: y * y), x)
    (slope,) = y.sum().gradient([x])
    assert slope.numpy() == pytest.approx(48.0)


@pytest.mark.parametrize("device", MAPPINGS, indirect=True)  # long
def test_a_loop_that_does_not_depend_on_the_parameters_stays_a_loop(device: AnyDevice) -> None:
    x, w = Tensor([2.0], device), Tensor([5.0], device)
    y = loop(MOST_UNROLLED, lambda i, y: y * 0.5 + 1.0, x)
    (slope,) = (y * w).sum().gradient([w])
    assert slope.numpy() == [2.0]
    (slope,) = (y * w).sum().gradient([y])  # up to the loop's result, not through it
    assert slope.numpy() == [5.0]


def test_a_gradient_through_too_many_iterations_is_refused() -> None:
    x = Tensor([2.0], open_mapping("numpy"))
    y = loop(1_000_000, lambda i, y: y * 0.5 + x, x)
    with pytest.raises(ValueError, match=r"1,000,000 iterations.*take the gradient inside"):
        y.sum().gradient([x])


# --- refusals ---


def test_what_a_body_returns_is_checked() -> None:
    x = Tensor([1.0, 2.0])
    with pytest.raises(ValueError, match=r"enters the body as f32\[2\] and leaves it as f32\[1\]"):
        loop(3, lambda i, y: y.sum(keepdims=True), x)
    with pytest.raises(ValueError, match=r"value 1 .* f32\[\] .* i32\[\]"):
        loop(3, lambda i, y, n: (y, i), x, Tensor.zeros())
    with pytest.raises(ValueError, match="takes 1 values, but returns 2"):
        loop(3, lambda i, y: (y, y), x)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="must return Tensors, not float"):
        loop(3, lambda i, y: (1.0,), x)  # type: ignore[arg-type, return-value]


def test_what_a_choice_is_made_of_is_checked() -> None:
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


@pytest.mark.parametrize("count", [2.0, True, "3", Tensor(np.int32(3))])
def test_the_count_is_a_whole_number(count: object) -> None:
    with pytest.raises(TypeError, match="the count must be an int"):
        loop(count, lambda i, y: y, Tensor([1.0]))  # type: ignore[arg-type]


def test_a_loop_carries_something_forwards() -> None:
    with pytest.raises(ValueError, match="-1 iterations"):
        loop(-1, lambda i, y: y, Tensor([1.0]))
    with pytest.raises(TypeError, match="needs Tensors to carry"):
        loop(3, lambda i: i)  # type: ignore[call-overload]


def test_a_body_assigns_nothing(device: AnyDevice) -> None:
    state = Tensor([1.0], device)
    with pytest.raises(ValueError, match="assigns a state"):
        loop(3, lambda i, y: state.assign(y), Tensor([1.0], device))
    assert state.item() == 1.0


def test_values_inside_of_a_loop_stay_there(device: AnyDevice) -> None:
    inside: list[Tensor] = []

    def body(i: Tensor, y: Tensor) -> Tensor:
        inside.append(y * 2 + i)
        return y

    loop(3, body, Tensor([1.0], device))
    with pytest.raises(ValueError, match="return it from the body"):
        inside[0].numpy()
    with pytest.raises(ValueError, match="return it from the body"):
        loop(3, lambda i, y: y + y.numpy(), Tensor([1.0], device))


def test_a_body_that_fails_leaves_nothing_behind(device: AnyDevice) -> None:
    with pytest.raises(TypeError):
        loop(3, lambda i, y: y % 2.0, Tensor([1.0], device))
    x = Tensor([1], device, dtype=dt.i32)
    assert loop(3, lambda i, y: y + i, x).node is loop(3, lambda i, y: y + i, x).node
