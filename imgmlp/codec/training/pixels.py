"""The pixels of a training step: which are drawn, and the features of their places."""

from __future__ import annotations

from imgmlp.engine import AnyDevice, Tensor, dtype
from imgmlp.errors import OutOfMemoryError


def random_places(
    batch: int, size: tuple[int, int], seed: int, count: Tensor
) -> tuple[Tensor, Tensor]:
    """A random pixel for each row of the batch: its row and its column, int32 [batch].

    `size` is (height, width), `count` the steps done.
    """
    height, width = size
    row = Tensor.random_bits((batch,), (seed, count, 0)) % height
    column = Tensor.random_bits((batch,), (seed, count, 1)) % width
    return row.cast(dtype.i32), column.cast(dtype.i32)


def pixel_features(x: Tensor, y: Tensor, column: Tensor, row: Tensor) -> Tensor:
    """Rows of both axes' tables side by side: int [n], int [n] -> [n, features]."""
    return Tensor.concat([x.gather(column), y.gather(row)], axis=1)


def check_tables(samples: int, features: int, device: AnyDevice) -> None:
    """Refuse a picture so thin that its axes' tables would not fit."""
    nbytes = samples * features // 2 * 4
    if nbytes > device.info.memory // 4:
        problem = f"the features of {samples:,} rows and columns take {nbytes:,} bytes"
        raise OutOfMemoryError(problem, hint="cut the picture into parts that are less thin")
