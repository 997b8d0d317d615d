"""Horizontal fusion: which kernels share a launch, and that it changes no value."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import EMULATED, open_mapping
from reference import close
from test_schedule import NUMPY, state, values
from warps import LOCAL, local_bytes

from imgmlp.engine import AnyDevice, Tensor, compile, cond, loop, open_device
from imgmlp.engine.ir.graph import Node, buffer, concat, dot, move, reduce
from imgmlp.engine.ir.kernel import Fused, Kernel, Launch, Loop, Procedure, Update
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import Lanes, Target
from imgmlp.engine.lowering.linearize import linearize
from imgmlp.engine.oracle.emulate_uops import run_code
from imgmlp.engine.passes import horizontal_fusion as fusion
from imgmlp.engine.passes.horizontal_fusion import fuse
from imgmlp.engine.passes.schedule import schedule


@pytest.fixture(scope="module", params=["one", *EMULATED])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def launches(*updates: Update) -> list[int]:
    """The number of kernels in each launch."""
    before = schedule(updates)
    fused = fuse(before).kernels
    counts = [len(members(k)) for k in fused]
    assert sum(counts) == len(before.kernels)
    return counts


def members(launch: Launch) -> tuple[Launch, ...]:
    return launch.members if isinstance(launch, Fused) else (launch,)


def outputs(*nodes: Node) -> list[Update]:
    return [(state(*n.shape, name=f"y{i}"), n) for i, n in enumerate(nodes)]


# --- what is fused ---


def test_independent_kernels_are_one_launch() -> None:
    x = values(5, 7)
    assert launches(*outputs(x * 2.0, reduce(Op.SUM, x, (1,)), dot(x, values(7, 3)))) == [3]


def test_kernel_that_reads_a_result_is_a_later_launch() -> None:
    x = values(5, 7)
    total = reduce(Op.SUM, x * x, (0, 1))
    product = dot(x, values(7, 3))
    assert launches(*outputs(dot(product, values(3, 2)), total)) == [2, 1]


def test_state_is_overwritten_in_a_launch_after_its_readers() -> None:
    a = state(5, 7)
    replaced = (a, buffer(a) + 1.0)
    assert launches(replaced, *outputs(reduce(Op.SUM, buffer(a), (0,)))) == [1, 1]


def test_kernels_that_fill_disjoint_parts_of_a_buffer_are_fused() -> None:
    """The parts are consecutive in memory, or columns side by side."""
    x, y = values(5, 7), values(7, 5)
    first, second = dot(x, y), dot(y, x)
    flat = (move(Op.RESHAPE, n, (n.size,)) for n in (first, second))
    assert launches(*outputs(concat(list(flat), 0))) == [2]
    columns = [first, dot(x, values(7, 3))]
    assert launches(*outputs(concat(columns, 1))) == [2]


def elements(box: fusion.Box) -> set[int]:
    begin, axes = box
    offsets = {begin}
    for step, count in axes:
        offsets = {place + step * i for place in offsets for i in range(count)}
    return offsets


def test_box_overlap_test_is_conservative_and_finds_most_disjoint_boxes() -> None:
    """Boxes with a common element are always reported; most disjoint ones are not.

    A disjoint box may be reported where an axis extends beyond the next stride. Strides need not
    divide one another.
    """
    generator = np.random.default_rng(0)
    disjoint = found_disjoint = 0
    for _ in range(4000):
        boxes: list[fusion.Box] = []
        for _ in range(2):
            steps = generator.choice([1, 2, 3, 4, 5, 7, 10, 12, 24], 2, replace=False)
            axes = [(int(s), int(generator.integers(1, 5))) for s in steps]
            boxes.append((int(generator.integers(0, 30)), tuple(axes)))
        together = bool(elements(boxes[0]) & elements(boxes[1]))
        reported = fusion._boxes_overlap(*boxes)
        assert reported or not together, boxes
        begin, axes = boxes[0]
        assert elements((begin, fusion._merge_axes(axes))) == elements(boxes[0])
        disjoint, found_disjoint = disjoint + (not together), found_disjoint + (not reported)
    assert disjoint > found_disjoint > disjoint // 2


def test_box_overlap_test_separates_rows_columns_and_parities() -> None:
    rows = 12, ((12, 3), (1, 4))  # three rows of 12, four columns from the first
    assert not fusion._boxes_overlap(rows, (16, ((12, 3), (1, 8))))  # the columns beside them
    assert fusion._boxes_overlap(rows, (15, ((12, 3), (1, 8))))
    assert not fusion._boxes_overlap((0, ((2, 9),)), (1, ((2, 9),)))  # even and odd places
    assert not fusion._boxes_overlap(
        (0, ((7, 2), (3, 2))), (1, ((7, 2),))
    )  # 0, 3, 7 and 10; 1 and 8


def test_concatenated_parts_of_several_axes_are_filled_in_one_launch() -> None:
    x = values(4, 5, 6, 7)
    sums = [reduce(Op.SUM, x, axes) for axes in ((2, 3), (1,))]  # [4, 5] and [4, 6, 7]
    flat = [move(Op.RESHAPE, n, (4, -1)) for n in sums]
    assert launches(*outputs(concat(flat, 1))) == [2]


def test_large_kernels_are_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "MIN_LARGE_KERNEL_OPERATIONS", 100)
    x = values(11, 11)
    large, other = dot(x, x), reduce(Op.SUM, x, (1,))
    assert launches(*outputs(large, other)) == [1, 1]
    assert launches(*outputs(large, values(3) * 2.0)) == [2]


def test_fused_launch_stays_within_the_maximum_buffer_count() -> None:
    many = [values(n) * 2.0 for n in range(1, 41)]
    counts = launches(*outputs(*many))
    assert len(counts) == 2
    assert max(counts) * 2 <= fusion.MAX_LAUNCH_BUFFERS


def test_kernels_in_loop_bodies_are_fused() -> None:
    x = Tensor(np.ones((5, 7)), NUMPY)

    def turned(i: Tensor, v: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        return (v @ v.transpose()).sin() @ v, total + v.sum(0)

    first, second = loop(3, turned, x, x[0])
    procedure = fuse(schedule(outputs(first.node, second.node)))
    (cycle,) = (i for i in procedure.items if isinstance(i, Loop))
    assert any(isinstance(k, Fused) for k in cycle.body.kernels)
    names = [k.name for k in procedure.kernels]
    assert [n.split("_")[0] for n in names] == [f"k{i}" for i in range(len(names))]


# --- results ---


def test_fused_launch_of_every_kind_of_kernel_equals_numpy(device: AnyDevice) -> None:
    """Maps, reductions and products of different sizes, some of them guarded and not taken."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((70, 130), (130, 33)))
    x, y, c = Tensor(a, device), Tensor(b, device), Tensor(np.int32(1), device)

    def step() -> dict[str, Tensor]:
        chosen = {
            "yes": cond(c > 0, lambda: x.max(1), lambda: x[:, 0]),
            "no": cond(c < 0, lambda: y.sum(0), lambda: y[1]),
        }
        x.assign(x + 1)
        plain = {"map": y.sin(), "rows": x.sum(1), "columns": x.sum(0), "one": x.square().sum()}
        return plain | chosen | {"product": x @ y}

    program = compile(step, device)
    assert any(isinstance(k, Fused) for k in program.stages.procedure.kernels)
    program.run()
    expected = {
        "map": np.sin(b), "rows": a.sum(1), "columns": a.sum(0), "one": (a * a).sum(),
        "product": a @ b, "yes": a.max(1), "no": b[1],
    }  # fmt: skip
    for name, value in expected.items():
        assert close(program.read(name), value), name
    assert np.array_equal(x.numpy(), a + 1)


# --- dependent kernels ---


@pytest.mark.parametrize("lanes", ["one", "group"])
@pytest.mark.parametrize("dependence", ["read", "write"])
def test_members_that_touch_the_same_elements_are_reported_as_a_race(
    lanes: Lanes, dependence: str
) -> None:
    x, one, other = state(300), state(300, name="one"), state(300, name="other")
    second = buffer(one) + 1.0 if dependence == "read" else buffer(x) * 3.0
    target = other if dependence == "read" else one
    (first,) = schedule([(one, buffer(x) * 2.0)]).kernels
    (then,) = schedule([(target, second)]).kernels
    assert isinstance(first, Kernel)
    assert isinstance(then, Kernel)
    code = linearize(Fused("together", (first, then)), Target(lanes, 2))
    memory = {b: np.ones(b.size, np.float32) for b in code.buffers}
    with pytest.raises(ValueError, match=r"together: .* element 0 of .*one"):
        run_code(code, memory)
    assert len(fuse(Procedure((first, then))).kernels) == 2


def test_kernels_of_one_launch_share_local_memory() -> None:
    device, rng = open_device("numpy:uops-group"), np.random.default_rng(0)
    arrays = [rng.normal(size=(64, 33 + n)).astype(np.float32) for n in range(14)]
    given = [Tensor(a, device) for a in arrays]
    program = compile(lambda: {str(n): t.transpose() * 2.0 for n, t in enumerate(given)}, device)
    assert 0 < local_bytes(program.stages.source) <= LOCAL
    program.run()
    for n, array in enumerate(arrays):
        assert np.array_equal(program.read(str(n)), array.T * 2), n
