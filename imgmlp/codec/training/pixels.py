"""The pixels of a training step: random positions, and the features of positions."""

from __future__ import annotations

import numpy as np

from imgmlp.engine import AnyDevice, Tensor, dtype
from imgmlp.errors import OutOfMemoryError


def size_of(height: int, width: int, device: AnyDevice) -> Tensor:
    """A picture's size, int32 [2], as data, so that pictures of all sizes share kernels."""
    return Tensor(np.array([height, width], np.int32), device, name="size")


def random_places(batch: int, size: Tensor, seed: int, count: Tensor) -> tuple[Tensor, Tensor]:
    """Random pixels: (rows, columns), int32 [batch] each.

    `size` is a tensor made by `size_of`, `count` the number of steps done. On sides longer than
    2**24 pixels, some positions are never drawn.
    """

    def along(axis: int) -> Tensor:
        fraction = Tensor.uniform((batch,), (seed, count, axis))
        return (fraction * size[axis].cast(dtype.f32)).cast(dtype.i32).minimum(size[axis] - 1)

    return along(0), along(1)


def pixel_features(x: Tensor, y: Tensor, column: Tensor, row: Tensor) -> Tensor:
    """The features of pixels, [n, features], from tables of both axes and positions, int [n]."""
    return Tensor.concat([x.gather(column), y.gather(row)], axis=1)


def check_tables(samples: int, features: int, device: AnyDevice) -> None:
    """Raise OutOfMemoryError for a picture so long that its tables would not fit."""
    nbytes = samples * features // 2 * 4
    if nbytes > device.info.memory // 4:
        problem = f"the features of {samples:,} rows and columns take {nbytes:,} bytes"
        raise OutOfMemoryError(problem, hint="cut the picture into parts that are less thin")
