# ruff: noqa: E501 (a step of the random graphs is a line)
"""The schedule: what shares a kernel, what is stored, and that values do not depend on the order."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import EMULATED, open_mapping
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import close

from imgmlp.engine import AnyDevice, Tensor, compile, open_device
from imgmlp.engine.ir.dtype import bool_, f32
from imgmlp.engine.ir.graph import Buffer, Node, alu, buffer, concat, dot, move, reduce
from imgmlp.engine.ir.kernel import Guard, Kernel, Store, Update
from imgmlp.engine.ir.op import Op
from imgmlp.engine.oracle.interpret import evaluate
from imgmlp.engine.passes.drafts import KernelDraft
from imgmlp.engine.passes.memory_plan import plan_memory
from imgmlp.engine.passes.schedule import freeze, schedule
from imgmlp.engine.runtime.buffers import read_buffer
from imgmlp.engine.runtime.program import Program

NUMPY = open_device("numpy")


def state(*shape: int, name: str = "") -> Buffer:
    return Buffer(shape, f32, NUMPY, name=name)


def values(*shape: int, name: str = "") -> Node:
    return buffer(state(*shape, name=name))


def kernels(*updates: Update) -> list[Kernel]:
    return list(schedule(updates).kernels)


def outputs(*nodes: Node) -> list[Kernel]:
    return kernels(*((state(*n.shape, name="out"), n) for n in nodes))


def test_elementwise_chain_is_one_kernel() -> None:
    x = values(5, 7)
    assert len(outputs(alu(Op.SIN, x * 2.0 + 1.0) * x)) == 1


def test_value_read_by_one_kernel_only_is_not_stored() -> None:
    x = values(5, 7)
    costly = x
    for _ in range(5):
        costly = alu(Op.SIN, costly)
    (kernel,) = outputs(costly + 1.0, costly * 2.0)
    assert [b.name for b in kernel.writes()] == ["out", "out"]


def test_reader_of_a_concatenated_part_reads_its_source() -> None:
    x = values(5, 7, name="x")
    half = move(Op.SHRINK, x, ((0, 5), (0, 3)))
    scheduled = outputs(concat([half, values(5, 2)], 1), reduce(Op.SUM, half, (0,)))
    (total,) = (k for k in scheduled if k.core is not None)
    assert [b.name for b in total.reads()] == ["x"]


def test_product_bias_and_activation_are_one_kernel() -> None:
    bias = move(Op.EXPAND, move(Op.RESHAPE, values(9), (1, 9)), (5, 9))
    z = dot(values(5, 7), values(7, 9)) + bias
    assert len(outputs(alu(Op.MAX, z, z * 0.1))) == 1


def test_product_reshape_and_activation_are_one_kernel() -> None:
    x, weight = Tensor(np.ones((2, 3, 5)), NUMPY), Tensor(np.ones((5, 7)), NUMPY)
    program = compile(lambda: {"y": (x.reshape(-1, 5) @ weight).reshape(2, 3, 7).relu()}, NUMPY)
    (kernel,) = program.stages.procedure.kernels
    assert kernel.core is not None


def test_factor_and_its_transpose_share_one_contiguous_copy() -> None:
    """Joined attention heads have no strides; one copy serves both x @ w and x^T @ g."""
    heads = values(3, 2, 4, 5)
    joined = move(Op.RESHAPE, move(Op.PERMUTE, heads, (0, 2, 1, 3)), (12, 10))
    turned = move(Op.PERMUTE, joined, (1, 0))
    scheduled = outputs(dot(joined, values(10, 7)), dot(turned, values(12, 6)))
    assert sum(k.core is None for k in scheduled) == 1
    assert len(scheduled) == 3


def test_reduction_and_following_elementwise_operations_are_one_kernel() -> None:
    total = reduce(Op.SUM, values(5, 7) * 2.0, (1,))
    assert len(outputs(alu(Op.SQRT, total * total + 1.0))) == 1


def test_order_of_the_guards_of_a_kernel_is_deterministic() -> None:
    """The order of a set would not be."""
    job = Store(values(3), values(3))
    for _ in range(20):
        condition = buffer(Buffer((), bool_, NUMPY))
        guards = frozenset(Guard(condition, expected) for expected in (True, False))
        kernel = freeze(KernelDraft(0, (3,), [job], None, set(), set()), 0, guards)
        assert [guard.expected for guard in kernel.guards] == [False, True]


def test_sum_of_two_reductions_is_one_kernel_only_if_both_are_of_rows() -> None:
    x = values(7, 7)
    assert len(outputs(reduce(Op.SUM, x, (1,)) + reduce(Op.REDUCE_MAX, x, (0,)))) == 2
    assert len(outputs(reduce(Op.SUM, x, (1,)) + reduce(Op.REDUCE_MAX, x, (1,)))) == 1


def test_outputs_of_one_shape_share_a_kernel() -> None:
    x, y = values(5, 7), values(5, 7)
    (kernel,) = outputs(x + y, x * y, alu(Op.MAX, x, y))
    assert len(kernel.stores) == 3


def test_column_sums_of_a_factor_are_fused_into_the_product() -> None:
    x, g = values(20, 7), values(20, 9)
    weight = dot(move(Op.PERMUTE, x, (1, 0)), g)
    (kernel,) = outputs(weight, reduce(Op.SUM, g, (0,)))
    assert kernel.column_sums is not None


def test_cheap_shared_value_is_recomputed_and_costly_one_stored() -> None:
    x, other = values(5, 7), values(5, 7)
    cheap, costly = x * 2.0, x
    for _ in range(6):
        costly = alu(Op.SIN, costly + 1.0)

    def readers(shared: Node) -> list[Kernel]:
        return outputs(reduce(Op.SUM, shared * other, (0,)), reduce(Op.SUM, shared, (1,)))

    assert len(readers(cheap)) == 2
    assert len(readers(costly)) == 3


def test_parts_of_a_concatenation_are_written_in_place() -> None:
    x = values(5, 7)
    joined = concat([dot(x, values(7, 3)), dot(x, values(7, 4))], 1)
    scheduled = outputs(joined)
    assert [k.core.op for k in scheduled if k.core] == [Op.DOT, Op.DOT]
    assert {b.name for k in scheduled for b in k.writes()} == {"out"}


@pytest.mark.parametrize(("size", "parts"), [(1 << 14, 64), (1 << 20, 256), (1 << 26, 1024)])
def test_number_of_partial_sums_grows_with_the_length_for_many_units(size: int, parts: int) -> None:
    update = (state(), reduce(Op.SUM, values(size), (0,)))
    assert [k.shape for k in schedule([update], True).kernels] == [(parts,), ()]
    assert [k.shape for k in schedule([update]).kernels] == [(64,), ()]


def test_long_reduction_takes_two_stages() -> None:
    assert len(outputs(reduce(Op.SUM, values(1 << 13), (0,)))) == 1
    assert len(outputs(reduce(Op.SUM, values(1 << 15), (0,)))) == 2


def test_state_is_overwritten_in_place_when_its_readers_can_run_before() -> None:
    p = state(5, 7, name="p")
    scheduled = kernels((p, buffer(p) * 2.0), (state(7, name="s"), reduce(Op.SUM, buffer(p), (0,))))
    assert [b.name for k in scheduled for b in k.writes()] == ["s", "p"]
    assert not schedule([(p, buffer(p) * 2.0)]).intermediates()


def test_state_read_at_other_elements_is_copied_before_overwriting() -> None:
    p = state(5, 7, name="p")
    procedure = schedule([(p, move(Op.STRIDE, buffer(p), (-1, 1)) + 1.0)])
    assert len(procedure.kernels) == 2
    assert procedure.intermediates()


def test_assignments_see_the_states_before_the_step(device: AnyDevice) -> None:
    a, b, c = (Tensor(np.arange(6.0) + i, device) for i in (0, 10, 20))

    def step() -> dict[str, Tensor]:
        a.assign(b)
        b.assign(a)  # a swap
        c.assign(c.flip(0) + a)
        return {"sum": c.sum(), "old": c * 1.0, "state": c}

    program = compile(step, device)
    program.run(3)
    x, y, z = np.arange(6.0), np.arange(6.0) + 10, np.arange(6.0) + 20
    for _ in range(3):
        old = z
        x, y, z = y, x, z[::-1] + x
    assert np.array_equal(a.numpy(), x)
    assert np.array_equal(b.numpy(), y)
    assert np.array_equal(c.numpy(), z)
    assert program.read("sum") == old.sum()
    assert np.array_equal(program.read("old"), old)
    assert np.array_equal(program.read("state"), z)


def test_state_takes_the_old_value_of_another_that_changes(device: AnyDevice) -> None:
    a, b = Tensor(np.arange(6.0), device), Tensor(np.arange(6.0) + 10, device)

    def step() -> dict[str, Tensor]:
        b.assign(a)
        a.assign((a + b) * 0.5)
        return {"old": a * 1.0}

    compile(step, device).run(2)
    x, y = np.arange(6.0), np.arange(6.0) + 10
    for _ in range(2):
        x, y = (x + y) * 0.5, x
    assert np.array_equal(a.numpy(), x)
    assert np.array_equal(b.numpy(), y)


def check(device: AnyDevice, *roots: Node, start: dict[Buffer, np.ndarray]) -> None:
    """Asserts that a program on a device and the interpreter agree; sums are short."""
    program = Program(device, {f"o{i}": n for i, n in enumerate(roots)}, [])
    program.run()
    for i, expected in enumerate(evaluate(roots, start, wide=True)):
        assert close(program.read(f"o{i}"), expected), f"o{i}"


def filled(device: AnyDevice, *shape: int) -> tuple[Buffer, np.ndarray]:
    data = np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)
    return Buffer(shape, f32, device, data.copy()), data


def test_part_of_a_concatenation_may_depend_on_another_part(device: AnyDevice) -> None:
    """Both parts are written into one Buffer, with a kernel between them."""
    (x, x0), (w, w0) = filled(device, 5, 7), filled(device, 7, 7)
    first = dot(buffer(x), buffer(w))
    between = dot(first, buffer(w))
    joined = concat([first, dot(between, buffer(w))], 1)
    check(device, joined, joined * 2.0, start={x: x0, w: w0})


def test_part_shared_by_two_concatenations_is_read_correctly(device: AnyDevice) -> None:
    """One kernel fills both concatenations, so it must not read the shared part from the first."""
    (x, x0), (y, y0) = filled(device, 6, 5), filled(device, 6, 5)
    top, rest = ((0, 2), (0, 5)), ((2, 6), (0, 5))
    part, other = move(Op.SHRINK, buffer(x), top), move(Op.SHRINK, buffer(y), rest)
    first = concat([part, move(Op.SHRINK, buffer(x), rest)], 0)
    second = concat([part, other], 0)
    third = concat([move(Op.SHRINK, first, top), other], 0)
    check(device, first + buffer(y), second, third * 0.5, start={x: x0, y: y0})


def test_reshaped_part_of_a_concatenation_may_be_a_factor(device: AnyDevice) -> None:
    """A reshape of a part that lies between others has no strides."""
    (x, x0), (w, w0) = filled(device, 4, 6), filled(device, 4, 5)
    part = alu(Op.SIN, buffer(x))
    joined = concat([part, buffer(x) * 2.0], 1)
    check(device, joined, dot(move(Op.RESHAPE, part, (6, 4)), buffer(w)), start={x: x0, w: w0})


def test_factor_may_be_a_view_of_a_stored_view(device: AnyDevice) -> None:
    (x, x0), (w, w0) = filled(device, 4, 6), filled(device, 3, 5)
    turned = move(Op.PERMUTE, alu(Op.SIN, buffer(x)), (1, 0))
    back = move(Op.PERMUTE, move(Op.RESHAPE, turned, (1, 6, 4)), (0, 2, 1))
    factor = move(Op.RESHAPE, back, (8, 3))  # one view of the sine, two of `turned`
    check(device, turned, dot(factor, buffer(w)), start={x: x0, w: w0})


STEPS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 99), st.integers(0, 99)), min_size=3, max_size=14)  # fmt: skip
SIDE = 6


def grow(nodes: list[Node], kind: int, first: int, second: int) -> Node:
    """A new [SIDE, SIDE] value computed from two of the given ones."""
    a, b = nodes[first % len(nodes)], nodes[second % len(nodes)]
    whole = (SIDE, SIDE)
    column = move(Op.RESHAPE, reduce(Op.SUM, a, (1,)) * 0.3, (SIDE, 1))
    return [
        lambda: a + b,
        lambda: a * b * 0.5,
        lambda: alu(Op.MAX, a, b),
        lambda: alu(Op.SIN, a),
        lambda: dot(a, b) * 0.2,
        lambda: move(Op.PERMUTE, a, (1, 0)),
        lambda: move(Op.EXPAND, column, whole),
        lambda: a - move(Op.EXPAND, move(Op.RESHAPE, reduce(Op.REDUCE_MAX, b, (0,)), (1, SIDE)), whole),
        lambda: concat([move(Op.SHRINK, a, ((0, 2), (0, SIDE))), move(Op.SHRINK, b, ((2, SIDE), (0, SIDE)))], 0),
        lambda: move(Op.PAD, move(Op.SHRINK, a, ((1, SIDE), (0, SIDE))), ((0, 1), (0, 0))),
        lambda: move(Op.STRIDE, a, (-1, 1)),
        lambda: move(Op.RESHAPE, move(Op.RESHAPE, a, (4, 9)), whole),
    ][kind]()  # fmt: skip


ROOTS = st.lists(st.integers(0, 99), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, ROOTS, st.sampled_from(["one", "group"]))
def test_any_compiled_graph_equals_numpy(
    steps: list[tuple[int, int, int]], roots: list[int], mapping: str
) -> None:
    check_graph(open_mapping(mapping), steps, roots)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, ROOTS, st.sampled_from(EMULATED))
def test_any_lowered_graph_equals_numpy(
    steps: list[tuple[int, int, int]], roots: list[int], form: str
) -> None:
    """Emulated kernels need no compiler; races and indices out of bounds are detected as well."""
    check_graph(open_mapping(form), steps, roots)


def check_graph(device: AnyDevice, steps: list[tuple[int, int, int]], roots: list[int]) -> None:
    """Runs a graph that assigns two states and has some outputs twice."""
    rng = np.random.default_rng(len(steps))
    start = [rng.uniform(-1, 1, (SIDE, SIDE)).astype(np.float32) for _ in range(3)]
    states = [Buffer((SIDE, SIDE), f32, device, s.copy(), f"s{i}") for i, s in enumerate(start)]
    nodes = [buffer(s) for s in states]
    for kind, first, second in steps:
        nodes.append(grow(nodes, kind, first, second))
    chosen = [nodes[r % len(nodes)] for r in roots]
    updates = [(states[0], nodes[-1] * 0.5), (states[1], nodes[-2])]
    program = Program(device, {f"o{i}": n for i, n in enumerate(chosen)}, updates)
    program.run(2)

    held = dict(zip(states, [s.astype(np.float64) for s in start], strict=True))
    size = 1.0  # the largest value that any kernel adds
    for _ in range(2):
        size = max(size, *(np.abs(v).max() for v in evaluate(nodes, held, wide=True)))
        actual = evaluate([*chosen, updates[0][1], updates[1][1]], held, wide=True)
        held |= {states[0]: actual[-2], states[1]: actual[-1]}
    for i, node in enumerate(chosen):
        expected = held[node.arg] if node.op is Op.BUFFER else actual[i]
        assert close(program.read(f"o{i}"), expected, size, roundings=256), f"o{i}"
    for s in states:
        assert close(read_buffer(device, s), held[s], size, roundings=256), s.name

    found_plan = plan_memory(program.stages.procedure, device.align)
    for a, (begin, end) in found_plan.live_ranges.items():
        for b, (first_use, last_use) in found_plan.live_ranges.items():
            if a is not b and begin <= last_use and first_use <= end:  # alive together
                low, high = found_plan.offsets[a], found_plan.offsets[b]
                assert low + a.nbytes <= high or high + b.nbytes <= low
