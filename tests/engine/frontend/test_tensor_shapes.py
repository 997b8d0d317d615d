"""Shapes of Tensors: odd sizes, all layouts, broadcasting, and indices."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference import close
from small_programs import draw, results

from imgmlp.engine import AnyDevice, Tensor, open_device

Array = np.ndarray[Any, Any]
SIZES = (1, 2, 3, 7, 16, 17, 33, 64, 65, 130)


# --- sizes that are multiples of no tile size ---


def matrix_layouts(a: Array, device: AnyDevice) -> list[Tensor]:
    """One matrix stored in rows, transposed, flipped, and as a strided part of a larger one."""
    apart = np.full((2 * a.shape[0] + 1, 3 * a.shape[1]), 9, np.float32)
    apart[1::2, ::3] = a
    return [
        Tensor(a, device),
        Tensor(np.ascontiguousarray(a.T), device).transpose(),
        Tensor(a[::-1, ::-1], device).flip(0, 1),
        Tensor(apart, device)[1::2, ::3],
    ]


def test_matrix_products_of_all_sizes_and_layouts_equal_numpy(
    device: AnyDevice, rng: np.random.Generator
) -> None:
    outputs, expected = {}, {}
    for i in range(16):
        m, k, n = (int(v) for v in rng.choice(SIZES, 3))
        a, b = draw(rng, m, k), draw(rng, k, n)
        x, y = matrix_layouts(a, device)[i % 4], matrix_layouts(b, device)[i // 4 % 4]
        name = f"{m} x {k} x {n}, layouts {i % 4} {i // 4 % 4}"
        outputs[name], expected[name] = x @ y, (a.astype(np.float64) @ b, np.abs(a) @ np.abs(b))
    for name, value in results(outputs, device).items():
        assert close(value, *expected[name]), name


def test_leading_axes_of_matrix_products_broadcast(
    device: AnyDevice, rng: np.random.Generator
) -> None:
    shapes = [
        ((2, 1, 3, 5), (4, 5, 3)),
        ((5,), (2, 5, 3)),
        ((2, 3, 5), (5,)),
        ((1, 7, 3), (6, 3, 1)),
        ((3, 1, 1), (1, 1)),
    ]
    outputs, expected = {}, {}
    for s, t in shapes:
        a, b = draw(rng, *s), draw(rng, *t)
        outputs[f"{s} {t}"] = Tensor(a, device) @ Tensor(b, device)
        expected[f"{s} {t}"] = a.astype(np.float64) @ b, np.abs(a) @ np.abs(b)
    for name, value in results(outputs, device).items():
        assert close(value, *expected[name]), name


def subsets(rank: int) -> list[tuple[int, ...]]:
    return [s for n in range(rank + 1) for s in itertools.combinations(range(rank), n)]


@pytest.mark.parametrize("shape", [(3, 1, 7, 5), (2, 129, 131), (1, 1, 1)])
def test_reductions_over_every_subset_of_axes_equal_numpy(
    device: AnyDevice, rng: np.random.Generator, shape: tuple[int, ...]
) -> None:
    a = draw(rng, *shape)
    x = Tensor(a, device)
    wide, sizes = a.astype(np.float64), np.abs(a)
    outputs, expected = {}, {}
    for axes in subsets(len(shape)):
        outputs |= {f"sum {axes}": x.sum(axes), f"max {axes}": x.max(axes)}
        expected[f"sum {axes}"] = wide.sum(axes), sizes.sum(axes)
        expected[f"max {axes}"] = wide.max(axes), 0
        outputs[f"kept {axes}"] = x.mean(axes, keepdims=True)
        expected[f"kept {axes}"] = tuple(v.mean(axes, keepdims=True) for v in (wide, sizes))
    for name, value in results(outputs, device).items():
        assert close(value, *expected[name]), name


def test_long_reductions_of_computed_values_are_accurate(
    device: AnyDevice, rng: np.random.Generator
) -> None:
    a = draw(rng, 50_021)
    x = Tensor(a, device)
    wide = a.astype(np.float64)
    actual = results(
        {
            "sum": (x * x).sum(), "max": (-x).max(), "kept": x.reshape(1, -1).sum(1),
            "column": x.reshape(-1, 1).sum(0), "scalar": Tensor(np.float32(3), device).sum(),
            "integers": Tensor.arange(50_021, device=device).sum(),
            "slope": (x.square().sum() * 0.5).gradient([x])[0],
        },
        device,
    )  # fmt: skip
    exact = {"max": (-wide).max(), "scalar": 3, "integers": 50_021 * 50_020 // 2, "slope": a}
    for name, value in exact.items():
        assert np.array_equal(actual[name], value), name
    assert close(actual["sum"], (wide**2).sum())
    total, size = wide.sum(keepdims=True), np.abs(wide).sum()
    assert close(actual["kept"], total, size)
    assert close(actual["column"], total, size)


def test_shapes_broadcast_as_in_numpy(device: AnyDevice, rng: np.random.Generator) -> None:
    shapes = [(), (1,), (17,), (1, 17), (7, 1), (7, 17), (3, 1, 1), (3, 1, 17), (1, 7, 1)]
    arrays = {s: draw(rng, *s) for s in shapes}
    tensors = {s: Tensor(a, device) for s, a in arrays.items()}
    pairs = list(itertools.combinations_with_replacement(shapes, 2))
    actual = results({f"{s} {t}": tensors[s] - tensors[t] for s, t in pairs}, device)
    for s, t in pairs:
        assert np.array_equal(actual[f"{s} {t}"], arrays[s] - arrays[t]), (s, t)


# --- indices ---

KEYS: list[Any] = [
    -1, np.int64(2), slice(None, None, -1), slice(5, 1, -2), slice(-3, None), slice(2, 100),
    (slice(None), 3), (slice(1, 6, 3), slice(None, None, -4)), (-2, slice(9, 2, -1)),
    (slice(0, 1), slice(10, None)), (slice(6, None, -1), -11),
]  # fmt: skip


def test_slices_equal_numpys(device: AnyDevice) -> None:
    a = np.arange(77, dtype=np.float32).reshape(7, 11)
    x = Tensor(a, device)
    actual = results({str(i): x[key] + 0 for i, key in enumerate(KEYS)}, device)
    for i, key in enumerate(KEYS):
        assert np.array_equal(actual[str(i)], a[key]), key


def test_gather_equals_numpy_for_all_index_dtypes_and_table_layouts(device: AnyDevice) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    x = Tensor(table, device)
    moved = np.pad(table.T[::-1], ((1, 0), (0, 0)))
    lists: dict[str, Any] = {
        "number": np.int32(2),
        "bytes": np.array([3, 0, 3], np.uint8),
        "counts": np.array([[[1], [2]]], np.uint32),
    }
    indices = {name: Tensor(i, device) for name, i in lists.items()}
    outputs = {name: x.gather(i) for name, i in indices.items()}
    outputs |= {
        f"moved {n}": x.transpose().flip(0).pad((1, 0), (0, 0)).gather(i)
        for n, i in indices.items()
    }
    outputs |= {f"flat {n}": x.reshape(-1).gather(i * 2) for n, i in indices.items()}
    outputs["computed"] = (x * 2).gather(Tensor.arange(7, device=device) * 3 % 4)
    actual = results(outputs, device)
    for name, i in lists.items():
        assert np.array_equal(actual[name], table[i]), name
        assert np.array_equal(actual[f"moved {name}"], moved[i]), name
        assert np.array_equal(actual[f"flat {name}"], table.ravel()[i * 2]), name
    assert np.array_equal(actual["computed"], 2 * table[np.arange(7) * 3 % 4])


def test_concat_promotes_parts_of_several_dtypes(device: AnyDevice) -> None:
    a, b = np.arange(6, dtype=np.int32).reshape(2, 3), np.array([[0.5], [1.5]], np.float32)
    x, y = Tensor(a, device), Tensor(b, device)
    parts = [x, y, (x * 2)[:, ::-1], y.expand(2, 4)]
    expected = np.concatenate([a, b, (a * 2)[:, ::-1], np.broadcast_to(b, (2, 4))], -1)
    assert np.array_equal(Tensor.concat(parts, -1).numpy(), expected)


def test_scalar_can_be_padded_and_flipped_with_gradient(device: AnyDevice) -> None:
    x = Tensor(np.float32(3), device)
    assert x.pad().flip().item() == 3
    assert (x.flip() * x.pad()).gradient([x])[0].item() == 6


@pytest.mark.parametrize(
    "act", [lambda x: x.flip(0, 0), lambda x: x.sum((0, 0)), lambda x: x.max((1, -1))]
)
def test_repeated_axis_is_refused(act: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match="twice"):
        act(Tensor([[1, 2], [3, 4]]))


def test_bool_index_adds_an_axis() -> None:
    """NumPy does the same."""
    array = np.array([[1, 2], [3, 4]])
    x = Tensor(array, open_device("numpy"))
    assert np.array_equal(x[True].numpy(), array[True])
    assert np.array_equal(x[0, True].numpy(), array[0, True])
    assert x[False].shape == array[False].shape
    assert np.array_equal(x[np.array(True), [1]].numpy(), array[np.array(True), [1]])


def test_mixed_index_keys_equal_numpys() -> None:
    """The order of the result's axes is NumPy's for every combination of key parts."""
    array = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    x, every = Tensor(array, open_device("numpy")), slice(None)
    few: list[Any] = [0, None, ..., slice(None, None, -2), [0, -1], [[0], [1]], True]
    keys = [k for k in itertools.product(few, repeat=3) if k.count(...) < 2]
    for key in [*keys, (every, [0, 1], every, 0), (every, 1, [0, 1, 1]), ([1], every, True)]:
        try:
            expected = array[key]
        except IndexError:
            with pytest.raises((IndexError, ValueError)):
                x[key]
        else:
            actual = x[key]
            assert actual.shape == expected.shape, key
            assert np.array_equal(actual.numpy(), expected), key


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (np.array([0.5]), TypeError, "integers or bools"),
        (np.ones(2, bool), IndexError, "mask of shape"),
        ((slice(None), np.ones((3, 4), bool)), IndexError, "2 indices|3 indices"),
        (([0, 1], [0, 1, 2]), ValueError, "broadcast"),
        (Tensor([3]), IndexError, "out of bounds"),
        (Tensor([[-4]]).reshape(1), IndexError, "out of bounds"),
        ([3], IndexError, "out of bounds"),
    ],
)
def test_invalid_index_is_refused(key: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Tensor(np.ones((3, 4)))[key]


@pytest.mark.parametrize(
    "key",
    [
        (slice(None), slice(None), [0], ..., [1]), (slice(None), [0], slice(None), ..., [1]),
        ([0], ..., [1], 0, 0), (0, ..., [0, 1], [1], 0), (0, slice(None), [1], [2], ...),
    ],
)  # fmt: skip
def test_ellipsis_for_no_axis_separates_index_arrays_as_in_numpy(key: tuple[Any, ...]) -> None:
    x = np.arange(36).reshape(2, 2, 3, 3)
    assert np.array_equal(Tensor(x.astype(np.int32), open_device("numpy"))[key].numpy(), x[key])


def test_index_arrays_of_8_bits_reach_elements_beyond_their_range(device: AnyDevice) -> None:
    x = np.arange(90_000, dtype=np.float32).reshape(300, 300)
    rows, columns = np.uint8([1, 2, 100, 127]), np.int8([3, -1, 5, -128])
    i, j = Tensor(rows, device), Tensor(columns, device)
    assert np.array_equal(Tensor(x, device)[i, j].numpy(), x[rows, columns])
    assert np.array_equal(Tensor(x, device).take(np.int64(7)).numpy(), x[7])


def test_sizes_are_given_as_numbers_or_one_tuple() -> None:
    x = Tensor(np.arange(6.0).reshape(2, 3), open_device("numpy"))
    for make in (Tensor.zeros, Tensor.ones, Tensor.empty):
        assert make((2, 3)).shape == make([2, 3]).shape == make(2, 3).shape == (2, 3)
        assert make(4).shape == make((4,)).shape == (4,)
        assert make().shape == make(()).shape == ()
    assert x.reshape((3, -1)).numpy().tolist() == x.reshape(3, -1).numpy().tolist()
    assert x[:1, :1].reshape(()).shape == ()
    assert x.permute((1, 0)).numpy().tolist() == x.numpy().T.tolist()
    assert x[:1].expand([4, 3]).shape == (4, 3)


def test_flat_index_addresses_the_elements_of_numpys_ravel() -> None:
    x = Tensor(np.arange(24.0).reshape(2, 3, 4), open_device("numpy"))
    assert x.strides == (12, 4, 1)
    assert x.numpy().ravel()[x.flat_index(1, 2, 3)] == x[1, 2, 3].item() == 23
    with pytest.raises(IndexError, match="axis 1"):
        x.flat_index(0, 3, 0)
    with pytest.raises(IndexError, match="2 indices"):
        x.flat_index(0, 0)
