"""Views: movement operations that one View can express."""

from __future__ import annotations

import math

import numpy as np
import pytest

from imgmlp.engine.ir.access import Access
from imgmlp.engine.ir.symbolic import ONE, ZERO, Var
from imgmlp.engine.ir.view import View

Shape = tuple[int, ...]


def gather(access: Access, buffer: np.ndarray) -> np.ndarray:
    """What a kernel reads: the element at each index, zero where it is not valid."""
    variables = [Var(f"i{axis}", 0, n - 1) for axis, n in enumerate(access.shape)]
    offset, valid = access.index(variables)
    env = {v.name: index for v, index in zip(variables, np.indices(access.shape), strict=True)}
    offsets = np.broadcast_to(offset.evaluate(env), access.shape)
    inside = np.broadcast_to(valid.evaluate(env), access.shape) == 1
    assert np.all((offsets[inside] >= 0) & (offsets[inside] < buffer.size))
    return np.where(inside, buffer[np.where(inside, offsets, 0)], 0)


def buffer_of(shape: Shape) -> np.ndarray:
    """Distinct elements, none of which is the zero of a padding."""
    return np.arange(1, math.prod(shape) + 1)


def test_scalar_view_has_one_element() -> None:
    scalar = Access.of(())
    assert scalar.index([]) == (ZERO, ONE)
    assert scalar.reshape((1, 1)).expand((2, 3)).views == (View((2, 3), (0, 0)),)


def test_each_movement_of_a_buffer_is_one_view() -> None:
    x = Access.of((4, 6))
    assert x.permute((1, 0)).views == (View((6, 4), (1, 6)),)
    assert x.reshape((2, 2, 6)).views == (View((2, 2, 6), (12, 6, 1)),)
    assert x.reshape((3, -1)).views == (View((3, 8), (8, 1)),)
    assert x.shrink(((1, 3), (2, 6))).views == (View((2, 4), (6, 1), 8),)
    assert x.flip((1,)).views == (View((4, 6), (6, -1), 5),)
    assert x.stride((2, -3)).views == (View((2, 2), (12, -3), 5),)
    assert x.pad(((1, 0), (0, 2))).views == (View((5, 8), (6, 1), -6, ((1, 5), (0, 6))),)
    assert Access.of((4, 1)).expand((-1, 3)).views == (View((4, 3), (1, 0)),)


def test_repeated_padding_is_one_mask() -> None:
    x = Access.of((3,)).pad(((1, 0),)).pad(((0, 2),))
    assert x.views == (View((6,), (1,), -1, ((1, 4),)),)
    offset, valid = x.index([Var("i", 0, 5)])
    assert (str(offset), str(valid)) == ("(i-1)", "((i<4)&(i>=1))")


def test_views_of_padding_alone_are_empty() -> None:
    x = Access.of((3,)).pad(((2, 2),)).shrink(((0, 1),))
    for access in (x, x.reshape(()), x.reshape((1, 1)).expand((2, 3)), x.reshape(()).reshape((1,))):
        assert not gather(access, buffer_of((3,))).any()
        assert access.index([ZERO] * len(access.shape))[1] is ZERO


@pytest.mark.parametrize(
    ("moved", "shape"),
    [
        (Access.of((4, 6)).permute((1, 0)), (2, 3, 2, 2)),  # dimensions split
        (Access.of((4, 6, 5)).permute((2, 0, 1)), (5, 24)),  # neighbours in order merge
        (Access.of((4, 1)).expand((4, 6)), (2, 2, 3, 2)),
        (Access.of((1, 1)).expand((4, 6)), (24,)),  # stride 0 throughout
        (Access.of((4, 6)).shrink(((1, 3), (0, 6))), (12,)),
        (Access.of((4, 6)).flip((0, 1)), (24,)),
        (Access.of((4, 6)).permute((1, 0)), (6, 1, 4, 1)),  # size 1 anywhere
        (Access.of((4, 6)).pad(((1, 1), (0, 0))), (36,)),  # a mask of whole rows
        (Access.of((24,)).pad(((6, 6),)), (6, 6)),
        (Access.of((1, 5)).pad(((1, 1), (0, 0))).pad(((0, 0), (2, 0))), (21,)),
    ],
)
def test_compatible_reshapes_stay_one_view(moved: Access, shape: Shape) -> None:
    reshaped = moved.reshape(shape)
    assert len(reshaped.views) == 1
    buffer = buffer_of((moved.size,))
    assert np.array_equal(gather(reshaped, buffer), gather(moved, buffer).reshape(shape))
