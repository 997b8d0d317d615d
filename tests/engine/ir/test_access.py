"""Accesses: movement operations equal NumPy's, without copies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_view import Shape, buffer_of, gather

from imgmlp.engine.ir.access import Access
from imgmlp.engine.ir.symbolic import ONE, Var
from imgmlp.engine.ir.view import View


def test_access_to_a_whole_buffer_is_contiguous() -> None:
    access = Access.of((2, 3, 4))
    assert access.views == (View((2, 3, 4), (12, 4, 1)),)
    assert access.contiguous
    assert (access.shape, access.size) == ((2, 3, 4), 24)


def test_inverse_movements_cancel() -> None:
    x = Access.of((4, 6))
    assert x.permute((1, 0)).permute((1, 0)) == x
    assert x.flip((0, 1)).flip((1, 0)) == x
    assert x.reshape((24,)).reshape((4, 6)) == x
    assert x.pad(((1, 2), (3, 0))).shrink(((1, 5), (3, 9))) == x
    assert x.permute((1, 0)).reshape((24,)).reshape((6, 4)).permute((1, 0)) == x


def test_access_to_the_beginning_of_a_buffer_is_not_contiguous() -> None:
    x = Access.of((10,)).shrink(((0, 5),))
    assert x.views == (View((5,), (1,)),)
    assert not x.contiguous


@pytest.mark.parametrize(
    "moved",
    [
        Access.of((4, 6)).permute((1, 0)),
        Access.of((4, 6)).flip((0,)),
        Access.of((4, 6)).pad(((0, 1), (0, 0))),
        Access.of((4, 1)).expand((4, 6)),
        Access.of((4, 6)).shrink(((1, 4), (0, 6))),
        Access.of((4, 6)).permute((1, 0)).reshape((24,)),
    ],
)
def test_moved_elements_are_not_contiguous(moved: Access) -> None:
    assert not moved.contiguous


# --- accesses of several views, and merging them ---


@pytest.mark.parametrize(
    ("moved", "shape"),
    [
        (Access.of((4, 6)).permute((1, 0)), (24,)),
        (Access.of((4, 6)).shrink(((0, 4), (0, 5))), (20,)),
        (Access.of((4, 6)).flip((1,)), (24,)),
        (Access.of((4, 6)).pad(((0, 0), (1, 1))), (32,)),
        (Access.of((24,)).pad(((5, 7),)), (6, 6)),  # the mask is no box
    ],
)
def test_reshapes_of_moved_elements_add_a_second_view(moved: Access, shape: Shape) -> None:
    reshaped = moved.reshape(shape)
    assert reshaped.views == (*moved.views, View.of(shape))
    assert reshaped.simplify() == reshaped
    buffer = buffer_of((moved.size,))
    assert np.array_equal(gather(reshaped, buffer), gather(moved, buffer).reshape(shape))


def test_flattened_transpose_has_the_simplest_index() -> None:
    x = Access.of((10, 10)).permute((1, 0)).reshape((5, 2, 5, 2)).reshape((100,))
    offset, valid = x.index([Var("idx0", 0, 99)])
    assert str(offset) == "(((idx0%10)*10)+(idx0//10))"
    assert valid is ONE


def test_views_are_merged_if_one_view_can_express_them() -> None:
    transposed = Access.of((4, 6)).permute((1, 0))
    flat = transposed.reshape((24,)).shrink(((0, 4),))
    assert len(flat.views) == 2
    assert flat.simplify().views == (View((4,), (6,)),)
    column = Access.of((4, 6)).flip((1,)).reshape((24,)).stride((6,))
    assert column.simplify().views == (View((4,), (6,), 5),)


def test_merging_views_keeps_the_mask_of_the_inner_one() -> None:
    padded = Access.of((4, 6)).pad(((0, 0), (1, 1))).reshape((32,)).shrink(((8, 16),))
    assert len(padded.views) == 2
    assert padded.simplify().views == (View((8,), (1,), 5, ((1, 7),)),)
    empty_view = Access.of((4, 6)).pad(((0, 0), (2, 2))).reshape((40,)).shrink(((8, 10),))
    assert empty_view.simplify().views == (View((2,), (0,), 0, ((0, 0),)),)


def test_views_are_printed_in_the_order_of_reading() -> None:
    x = Access.of((4, 6)).permute((1, 0)).pad(((0, 0), (1, 0)))
    assert str(x) == "(6,5):(1,6)-6 in [0:6, 1:5]"
    assert str(x.reshape((30,))) == "(6,5):(1,6)-6 in [0:6, 1:5] -> (30,):(1,)"


# --- invalid arguments ---

x46 = Access.of((4, 6))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Access.of((3, -1)), r"shape \(3, -1\): no dimension may be negative"),
        (lambda: Access.of((100,)).permute((1, 0)), r"invalid permute \(1, 0\) for shape \(100,\)"),
        (lambda: x46.permute((0, 0)), r"invalid permute \(0, 0\) for shape \(4, 6\)"),
        (lambda: x46.reshape((5, 5)), r"invalid reshape \(5, 5\) for shape \(4, 6\): 24 elements"),
        (lambda: x46.reshape((-1, 7)), r"invalid reshape \(-1, 7\) for shape \(4, 6\): 24 elem"),
        (lambda: x46.reshape((-1, -1)), r"invalid reshape \(-1, -1\) .* one -1"),
        (lambda: x46.reshape((0, -1)), r"invalid reshape \(0, -1\) .* any size"),
        (lambda: x46.reshape(()), r"invalid reshape \(\) for shape \(4, 6\)"),
        (lambda: x46.expand((4, 12)), r"invalid expand \(4, 12\) .* of size 1"),
        (lambda: Access.of((1,)).expand((-2,)), r"invalid expand \(-2,\) for shape \(1,\)"),
        (lambda: x46.expand((2, 4, 6)), r"invalid expand \(2, 4, 6\) .* per dimension"),
        (lambda: x46.shrink(((0, 5), (0, 6))), r"invalid shrink \(\(0, 5\), \(0, 6\)\) for shape"),
        (lambda: x46.shrink(((3, 2), (0, 6))), r"invalid shrink .* begin <= end"),
        (lambda: x46.shrink(((0, 4),)), r"invalid shrink \(\(0, 4\),\) .* per dimension"),
        (lambda: x46.pad(((0, -1), (0, 0))), r"invalid pad .* for shape \(4, 6\): .* negative"),
        (lambda: x46.pad(((0, 1),)), r"invalid pad \(\(0, 1\),\) .* per dimension"),
        (lambda: x46.flip((2,)), r"invalid flip \(2,\) for shape \(4, 6\)"),
        (lambda: x46.stride((0, 1)), r"invalid stride \(0, 1\) for shape \(4, 6\)"),
        (lambda: x46.stride((1,)), r"invalid stride \(1,\) .* per dimension"),
    ],
)
def test_movement_arguments_that_do_not_fit_the_shape_are_refused(
    call: Callable[[], Access], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_shape_sizes_must_be_integers() -> None:
    assert type(Access.of((np.int64(3),)).shape[0]) is int
    with pytest.raises(TypeError):
        Access.of((2.5,))


# --- random chains of operations ---

LARGEST = 400  # elements, so that thousands of chains stay quick


@st.composite
def factors(draw: st.DrawFn, size: int) -> Shape:
    """A shape with this number of elements."""
    shape = []
    for _ in range(draw(st.integers(0, 3))):
        divisor = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
        shape.append(divisor)
        size //= divisor
    return tuple([*shape, size] if size > 1 or draw(st.booleans()) else shape)


def draw_argument(draw: st.DrawFn, operation: str, shape: Shape) -> Any:
    """A valid argument of a movement operation for a shape."""

    def each(choose: Callable[[int], st.SearchStrategy[Any]]) -> tuple[Any, ...]:
        return tuple(draw(choose(n)) for n in shape)

    small = math.prod(shape) <= LARGEST
    if operation == "reshape":
        return draw(factors(math.prod(shape)))
    if operation == "permute":
        return tuple(draw(st.permutations(range(len(shape)))))
    if operation == "expand":
        return each(lambda n: st.integers(1, 4) if n == 1 and small else st.just(n))
    if operation == "pad":
        width = st.sampled_from([0, 0, 1, 3]) if small else st.just(0)
        return each(lambda n: st.tuples(width, width))
    if operation == "shrink":
        return each(
            lambda n: st.sets(st.integers(0, n), min_size=2, max_size=2).map(
                lambda cuts: tuple(sorted(cuts))
            )
        )
    if operation == "flip":
        return tuple(axis for axis in range(len(shape)) if draw(st.booleans()))
    return each(lambda n: st.sampled_from([1, 1, -1, 2, -2, 3]))


NUMPY: dict[str, Callable[[np.ndarray, Any], np.ndarray]] = {
    "reshape": np.reshape,
    "permute": np.transpose,
    "expand": np.broadcast_to,
    "pad": lambda x, widths: np.pad(x, widths) if widths else x,
    "shrink": lambda x, box: x[tuple(slice(begin, end) for begin, end in box)],
    "flip": np.flip,
    "stride": lambda x, steps: x[tuple(slice(None, None, step) for step in steps)],
}


@st.composite
def chains(draw: st.DrawFn) -> tuple[Access, np.ndarray, np.ndarray]:
    """A random chain of movement operations: its access, its buffer, and NumPy's answer."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=4)))
    buffer = buffer_of(shape)
    access, array = Access.of(shape), buffer.reshape(shape)
    for operation in draw(st.lists(st.sampled_from(sorted(NUMPY)), min_size=1, max_size=7)):
        argument = draw_argument(draw, operation, array.shape)
        access = getattr(access, operation)(argument)
        array = NUMPY[operation](array, argument)
    return access, buffer, array


@settings(max_examples=2000)
@given(chains())
def test_chains_of_movements_agree_with_numpy(
    chain: tuple[Access, np.ndarray, np.ndarray],
) -> None:
    access, buffer, array = chain
    assert access.shape == array.shape
    assert np.array_equal(gather(access, buffer), array)
    simple = access.simplify()
    assert len(simple.views) <= len(access.views)
    assert simple.simplify() == simple
    assert np.array_equal(gather(simple, buffer), array)


@settings(max_examples=500)
@given(chains())
def test_contiguous_is_true_exactly_for_the_whole_buffer(
    chain: tuple[Access, np.ndarray, np.ndarray],
) -> None:
    access, buffer, array = chain
    unmoved = array.size == buffer.size and np.array_equal(array.ravel(), buffer)
    assert access.simplify().contiguous == unmoved
    assert not access.contiguous or unmoved
