"""The pixels of a training step: which are drawn, and the features of their places."""

from __future__ import annotations

import numpy as np

from imgmlp.engine import AnyDevice, Tensor, dtype
from imgmlp.errors import OutOfMemoryError


def size_of(height: int, width: int, device: AnyDevice) -> Tensor:
    """A picture's size, int32 [2], as what a step reads and no part of its kernels.

    So what was compiled for one picture serves those of other sizes.
    """
    return Tensor(np.array([height, width], np.int32), device, name="size")


def random_places(batch: int, size: Tensor, seed: int, count: Tensor) -> tuple[Tensor, Tensor]:
    """A random pixel for each row of the batch: its row and its column, int32 [batch].

    `size` is that of `size_of`, `count` the steps done. Along a side of more than 2**24 pixels some
    are never drawn.
    """

    def along(axis: int) -> Tensor:
        share = Tensor.uniform((batch,), (seed, count, axis))
        return (share * size[axis].cast(dtype.f32)).cast(dtype.i32).minimum(size[axis] - 1)

    return along(0), along(1)


def pixel_features(x: Tensor, y: Tensor, column: Tensor, row: Tensor) -> Tensor:
    """Rows of both axes' tables side by side: int [n], int [n] -> [n, features]."""
    return Tensor.concat([x.gather(column), y.gather(row)], axis=1)


def check_tables(samples: int, features: int, device: AnyDevice) -> None:
    """Refuse a picture so thin that its axes' tables would not fit."""
    nbytes = samples * features // 2 * 4
    if nbytes > device.info.memory // 4:
        problem = f"the features of {samples:,} rows and columns take {nbytes:,} bytes"
        raise OutOfMemoryError(problem, hint="cut the picture into parts that are less thin")
