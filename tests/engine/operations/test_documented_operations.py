"""Every row of docs/operations.md: its values equal NumPy's, its gradients finite differences.

test_values_and_gradients.py does the same with the elementary operations, also broadcast, in
other layouts and in longer sums.
"""

from __future__ import annotations

import inspect
import re

import numpy as np
import operations
import pytest
from conftest import ROOT, open_mapping
from differences import Case, expected, inputs_of
from reference import close

from imgmlp.engine import AnyDevice, Tensor, compile, dtype, nn

TITLES = list(operations.ROWS)


def case_of(row: operations.Row) -> Case:
    def tensors(*xs: Tensor) -> Tensor:
        result: Tensor = operations.evaluated(row.tensor, list(xs))
        return result

    def arrays(*xs: np.ndarray) -> np.ndarray:
        return np.array(operations.evaluated(row.array, list(xs)))  # no view: x changes

    return Case(row.tensor, tensors, arrays, row.shapes, row.low, row.high, row.between)


CASES = {title: [case_of(r) for r in rows] for title, rows in operations.ROWS.items()}


@pytest.mark.parametrize("title", TITLES)
def test_documented_operation_equals_its_numpy_expression_with_gradient(
    device: AnyDevice, title: str
) -> None:
    cases = CASES[title]
    tensors = {c.name: [Tensor(a, device) for a in inputs_of(c)] for c in cases}

    def step() -> dict[str, Tensor]:
        outputs = {}
        for c in cases:
            answer = outputs[c.name] = c.tensors(*tensors[c.name])
            if answer.dtype.is_float:
                weights = np.cos(np.arange(answer.node.size)).reshape(answer.shape)
                slopes = (answer * Tensor(weights, device)).sum().gradient(tensors[c.name])
                outputs |= {f"{c.name}, gradient {i}": g for i, g in enumerate(slopes)}
        return outputs

    program = compile(step, device)
    program.run()
    for c in cases:
        if not program.outputs[c.name].dtype.is_float:
            wanted = c.arrays(*(a.astype(np.float64) for a in inputs_of(c)))
            assert np.array_equal(program.read(c.name), wanted), c.name
            continue
        for name, (value, magnitude) in expected(c).items():
            assert close(program.read(name), value, magnitude), name


@pytest.mark.parametrize("kind", operations.STORED[:-1], ids=lambda k: k.name)
def test_documented_operations_equal_numpy_for_every_accepted_dtype(kind: dtype.DType) -> None:
    """Inputs are small integers or True; float16 inputs are drawn from the range of the row.

    The test above checks float32, on every device and form.
    """
    device, rng, outputs, wanted = open_mapping("numpy"), np.random.default_rng(0), {}, {}
    for row in (r for rows in operations.ROWS.values() for r in rows):
        end = 2 if kind is dtype.bool_ or row.high < 2 else 4
        drawn = [rng.integers(1, end, s) for s in row.shapes]
        if kind is dtype.f16:
            drawn = [rng.uniform(row.low, row.high, s) for s in row.shapes]
        arrays = [np.asarray(a, kind.np) for a in drawn]
        try:
            answer = operations.evaluated(row.tensor, [Tensor(a, device) for a in arrays])
        except (TypeError, ValueError):
            continue  # the page lists the dtypes that a row accepts
        wide = [a.astype(np.float64) for a in arrays]
        outputs[row.tensor] = answer
        wanted[row.tensor] = np.asarray(operations.evaluated(row.array, wide))
    assert len(outputs) > 100
    program = compile(lambda: outputs, device)
    program.run()
    for name, array in wanted.items():
        value = program.read(name)
        assert value.dtype.kind == "f" or value.dtype == outputs[name].dtype.np
        if value.dtype.kind == "f":
            unit = np.finfo(kind.np if kind is dtype.f16 else value.dtype).eps
            tolerance = 8 * float(unit) * max(1, np.abs(array).max())
            assert np.allclose(value, array, rtol=0, atol=tolerance), name
        else:
            whole = array if value.dtype.kind == "b" else array.astype(np.int64)
            assert np.array_equal(value, whole.astype(value.dtype)), name


def test_every_operation_is_documented() -> None:
    """The methods without a row create a Tensor, evaluate or assign one, or are synonyms."""
    rows = " ".join(r.tensor for rows in operations.ROWS.values() for r in rows)
    named = set(re.findall(r"\.(\w+)", rows))
    not_operations = (
        "assign backward empty flat_index full gradient item numpy ones realize write zeros"
    )
    without_row = {*not_operations.split(" "), "zero_grad", "eq", "variance", "weighted_sums"}
    ours = {n for n in dir(Tensor) if n[0] != "_" and inspect.isroutine(getattr(Tensor, n))}
    functions = inspect.getmembers(nn, inspect.isfunction)
    layers = {n for n, f in functions if f.__module__ == nn.__name__ and n[0] != "_"}
    assert ours - named == without_row
    assert layers - named == {"slices", "variance"}  # variance is a synonym here, too
    signs = "+ - * / // % ** @ & | ^ << >> == != < > <= >="
    assert [s for s in re.split(" ", signs) if f" {s} " not in rows] == []


def test_operations_page_is_the_output_of_its_tool() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    assert page == operations.page(), "run python tools/operations.py > docs/operations.md"


def test_omitted_arguments_have_defaults() -> None:
    device, a = open_mapping("numpy"), np.arange(12, dtype=np.float32).reshape(3, 4)
    x = Tensor(a, device)
    assert np.array_equal(x.flip().numpy(), np.flip(a))
    assert [t.shape for t in x.topk(0)] == [(3, 0), (3, 0)]
    masks = np.tri(3, dtype=bool), np.where(np.tri(3), 0, -np.inf).astype(np.float32)
    for mask in masks:
        actual = nn.attention(x, x, x, mask=mask).numpy()
        assert np.array_equal(actual, nn.attention(x, x, x, causal=True).numpy())


def test_cross_entropy_takes_class_probabilities(device: AnyDevice) -> None:
    rng = np.random.default_rng(0)
    logits, shares = rng.normal(size=(5, 7)), rng.uniform(size=(5, 7))
    wanted = -(shares * (logits - np.log(np.exp(logits).sum(1, keepdims=True)))).sum() / 5
    actual = nn.cross_entropy(Tensor(logits, device), Tensor(shares, device))
    assert close(actual.numpy(), wanted, 40)
    target = np.array([0, 6, 3, 3, 1])
    loss = nn.nll_loss(Tensor(logits, device), Tensor(target, device))
    assert close(loss.numpy(), -logits[range(5), target].mean(), 4)
