"""Many values for one Tensor of a step, all of them in the device's memory."""

from __future__ import annotations

import numpy as np

from imgmlp.engine.device.base import Allocation
from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.runtime.buffers import check_like, upload


class Pages:
    """Values of a Tensor that lie side by side on its device, of which one has its turn.

    What Programs read and assign is that one, and so is what `Tensor.numpy` and `write`, Feeders
    and Receivers see. To turn to another copies nothing: launches are told where it is. Page 0 is
    what the Tensor had before. Raises ValueError for a Tensor that is not in memory.
    """

    def __init__(self, tensor: Tensor) -> None:
        if not tensor.realized or tensor.device is None or not tensor.node.size:
            text = f"{tensor!r} has no memory that could have pages; call realize()"
            raise misuse(ValueError, f"Pages: {text}")
        self.storage, self.device = tensor.node.arg, tensor.device
        if self.storage.device is None:
            self.storage.device = self.device
        upload(self.storage)
        self._all: list[Allocation] = [self.storage.data]

    def __len__(self) -> int:
        return len(self._all)

    def add(self, array: Array) -> int:
        """One more page with this value; returns its number. Raises ValueError if shape or dtype
        differ, OutOfMemoryError where there is no room for it."""
        check_like(self.storage, array)
        self._all.append(self.device.alloc(max(1, self.storage.nbytes)))
        self.write(len(self) - 1, array)
        return len(self) - 1

    def turn(self, number: int) -> None:
        """Have this page be the Tensor's value, for all that is enqueued from now on."""
        self.storage.data = self._all[number]

    def write(self, number: int, array: Array) -> None:
        """Replace a page's value once all enqueued steps are done. Raises ValueError as `add`."""
        check_like(self.storage, array)
        self.device.write(self._all[number], array)

    def read(self, number: int) -> Array:
        """A page's value once all enqueued steps are done."""
        found = np.empty(self.storage.shape, self.storage.dtype.np)
        self.device.read(self._all[number], found)
        return found
