"""Many values for one Tensor of a step, all of them in the device's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from imgmlp.engine.device.base import Allocation
from imgmlp.engine.frontend.tensor import Tensor
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import check_tensor
from imgmlp.engine.runtime.buffers import check_like, upload


@dataclass
class _Page:
    data: Allocation
    given: bool  # by the host
    limits: dict[Any, tuple[int, int]]  # within which its indices are known to be


class Pages:
    """Values of a Tensor that lie side by side on its device, of which one at a time has its turn.

    What Programs read and assign is that one, and so is what `Tensor.numpy` and `write`, Feeders
    and Receivers see. To turn to another copies nothing: launches are told where it is. Page 0 is
    what the Tensor had before. Raises ValueError for a Tensor that is not in memory, and a number
    that is no page's, TypeError for what is no Tensor.
    """

    def __init__(self, tensor: Tensor) -> None:
        check_tensor("Pages", tensor)
        if not tensor.realized or tensor.device is None or not tensor.node.size:
            text = f"{tensor!r} has no memory that could have pages; call realize()"
            raise misuse(ValueError, f"Pages: {text}")
        self.storage, self.device = tensor.node.arg, tensor.device
        if self.storage.device is None:
            self.storage.device = self.device
        upload(self.storage)
        first = _Page(self.storage.data, self.storage.given, self.storage.limits)
        self._all, self._now = [first], 0

    def __len__(self) -> int:
        return len(self._all)

    def add(self, array: Array) -> int:
        """One more page with this value; returns its number. Raises ValueError if shape or dtype
        differ, OutOfMemoryError where there is no room for it."""
        array = np.asarray(array)
        check_like(self.storage, array)
        data = self.device.alloc(self.storage.nbytes)
        self.device.write(data, array)
        self._all.append(_Page(data, True, self.storage.limits))
        return len(self) - 1

    def turn(self, number: int) -> None:
        """Have this page be the Tensor's value, for all that is enqueued from now on.

        Raises OutOfBoundsError for indices that steps cannot take, and changes nothing then. They
        are looked at where steps were made meanwhile, or take them by way of another Tensor too.
        """
        page, limits = self._page(number), self.storage.limits
        joined = any(len(sources) > 1 for _, sources in limits)
        if page.given and (joined or not limits.items() <= page.limits.items()):
            check_like(self.storage, self.read(number))
            page.limits = limits
        left = self._all[self._now]
        left.given, left.limits = self.storage.given, limits  # which its value of now is within
        self.storage.data, self.storage.given, self._now = page.data, page.given, number

    def write(self, number: int, array: Array) -> None:
        """Replace a page's value once all enqueued steps are done. Raises ValueError as `add`."""
        page, array = self._page(number), np.asarray(array)
        check_like(self.storage, array)
        self.device.write(page.data, array)
        page.given, page.limits = True, self.storage.limits
        if number == self._now:
            self.storage.given = True

    def read(self, number: int) -> Array:
        """A page's value once all enqueued steps are done."""
        found = np.empty(self.storage.shape, self.storage.dtype.np)
        self.device.read(self._page(number).data, found)
        return found

    def _page(self, number: int) -> _Page:
        if not 0 <= number < len(self):
            raise misuse(ValueError, f"Pages: there are pages 0 to {len(self) - 1}, no {number}")
        return self._all[number]
