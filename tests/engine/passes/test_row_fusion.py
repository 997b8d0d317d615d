"""Row fusion: when reductions of rows and the operations on their totals are one kernel."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import EMULATED, open_mapping
from reference import close, softmax

from imgmlp.engine import Program, Tensor, compile, open_device
from imgmlp.engine.ir.kernel import Kernel
from imgmlp.engine.ir.op import Op

NUMPY = open_device("numpy")


def row_program(
    f: Callable[[Tensor], dict[str, Tensor]], *shape: int, form: str = "numpy"
) -> Program:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    device = open_mapping(form)
    return compile(lambda: f(Tensor(x, device)), device, general=True)


def kernels(f: Callable[[Tensor], dict[str, Tensor]], *shape: int) -> list[Kernel]:
    return [k for k in row_program(f, *shape).stages.procedure.kernels if isinstance(k, Kernel)]


def normalise(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdims=True)) / (x.variance(-1, keepdims=True) + 1e-5).sqrt()


@pytest.mark.parametrize(
    ("f", "reductions"),
    [
        (lambda x: {"y": x.softmax(-1)}, [Op.REDUCE_MAX, Op.SUM]),
        (lambda x: {"y": x.log_softmax(-1)}, [Op.REDUCE_MAX, Op.SUM]),
        (lambda x: {"y": normalise(x)}, [Op.SUM, Op.SUM]),
        (lambda x: {"y": x.softmax(-1) * normalise(x)}, [Op.REDUCE_MAX, Op.SUM, Op.SUM, Op.SUM]),
        (lambda x: {"y": x.variance(-1)}, [Op.SUM, Op.SUM]),
    ],
    ids=["softmax", "log softmax", "normalized", "both", "variance"],
)
def test_reductions_of_rows_and_their_users_are_one_kernel(
    f: Callable[[Tensor], dict[str, Tensor]], reductions: list[Op]
) -> None:
    (kernel,) = kernels(f, 7, 90)
    assert sorted(r.op.name for r in kernel.row_reductions) == sorted(op.name for op in reductions)
    assert len(kernel.all_stores()) == 1  # no total is stored


def test_row_total_that_other_kernels_need_is_stored() -> None:
    def f(x: Tensor) -> dict[str, Tensor]:
        peak = x.max(-1, keepdims=True)
        return {"y": (x - peak).exp(), "peak": peak, "highest": peak.max()}

    scheduled = kernels(f, 7, 90)
    assert [len(k.row_reductions) for k in scheduled if k.row_reductions] == [1]
    assert sum(len(k.row_stores) for k in scheduled) == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x: {"y": x - x.max(-1, keepdims=True).flip(0)},  # totals of another row
        lambda x: {"y": x - x.max(0)},  # totals of columns
        lambda x: {"y": x - x.max(-1)},  # totals along the row of a square matrix
        lambda x: {"y": x @ x.softmax(-1)},  # a factor of a product must be stored
    ],
    ids=["other row", "columns", "along", "factor"],
)
def test_totals_used_across_rows_need_a_kernel_before(
    f: Callable[[Tensor], dict[str, Tensor]],
) -> None:
    program = row_program(f, 90, 90)
    assert len(program.stages.procedure.kernels) == 2
    for form in EMULATED:
        other = row_program(f, 90, 90, form=form)
        for each in (program, other):
            each.run()
        assert close(program.read("y"), other.read("y"))


def test_row_fusion_of_a_transpose_needs_an_intermediate_that_is_kept() -> None:
    def centred(x: Tensor) -> dict[str, Tensor]:
        return {"y": x.transpose() - x.transpose().mean(-1, keepdims=True)}

    assert [len(k.row_reductions) for k in kernels(centred, 90, 70)] == [0, 0]
    assert [
        len(k.row_reductions) for k in kernels(lambda x: {"y": x.transpose().softmax(-1)}, 90, 70)
    ] == [2]
    both = kernels(lambda x: {"y": normalise(x.transpose())}, 90, 70)
    assert [len(k.row_reductions) for k in both] == [2, 0]


@pytest.mark.parametrize(("rows", "length", "count"), [(3, 100, 1), (3, 8192, 3), (64, 8192, 1)])
def test_few_long_rows_are_not_fused_to_keep_groups_busy(
    rows: int, length: int, count: int
) -> None:
    assert len(kernels(lambda x: {"y": x.softmax(-1)}, rows, length)) == count


def test_state_assigned_from_its_row_softmax_is_right_after_two_runs() -> None:
    x = np.random.default_rng(0).standard_normal((70, 9)).astype(np.float32)
    for form in EMULATED:
        state = Tensor(x, open_mapping(form))

        def replaced(s: Tensor = state) -> dict[str, Tensor]:
            s.assign(s.softmax(-1))
            return {"s": s}

        program = compile(replaced, state.device)
        program.run(2)
        again = softmax(softmax(x.astype(np.float64)))
        assert close(program.read("s"), again, again)


def test_softmax_of_odd_sized_rows_is_one_kernel_without_intermediates() -> None:
    program = row_program(lambda x: {"y": x.softmax(-1)}, 1823, 781)
    (kernel,) = program.stages.procedure.kernels
    assert len(kernel.writes()) == 1
    assert not program.stages.procedure.intermediates()
