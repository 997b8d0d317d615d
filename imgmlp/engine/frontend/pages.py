"""Pages: several values for one Tensor of a step, all of them in the device's memory."""

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
    is_from_host: bool  # whether the host has written the value
    limits: dict[Any, tuple[int, int]]  # ranges that its indices are known to be in


class Pages:
    """Alternative values of a Tensor on its device, of which one at a time is current.

    Programs read and assign the current page, and `Tensor.numpy`, `Tensor.write`, Feeders and
    Receivers see it. Turning to another page copies nothing: the launches get another address.
    Page 0 is the value that the Tensor had before. Raises ValueError for a Tensor that is not in
    memory and for a page number that does not exist, TypeError for an object that is no Tensor.
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
        first = _Page(self.storage.data, self.storage.is_from_host, self.storage.limits)
        self._pages, self._current = [first], 0

    def __len__(self) -> int:
        return len(self._pages)

    def add(self, array: Array) -> int:
        """Add a page with this value and return its number.

        Raises ValueError if the shape or the dtype differs, OutOfMemoryError if it does not fit.
        """
        array = np.asarray(array)
        check_like(self.storage, array)
        data = self.device.alloc(self.storage.nbytes)
        self.device.write(data, array)
        self._pages.append(_Page(data, True, self.storage.limits))
        return len(self) - 1

    def turn(self, number: int) -> None:
        """Make this page the Tensor's value, for everything that is enqueued from now on.

        Raises OutOfBoundsError, and changes nothing, if a step would index out of bounds with it.
        Indices are only checked if a step has set new limits since the last check, or if it
        combines them with values of another Tensor.
        """
        page, limits = self._page(number), self.storage.limits
        has_joint_limits = any(len(sources) > 1 for _, sources in limits)
        if page.is_from_host and (has_joint_limits or not limits.items() <= page.limits.items()):
            check_like(self.storage, self.read(number))
            page.limits = limits
        previous = self._pages[self._current]
        previous.is_from_host = self.storage.is_from_host
        previous.limits = limits  # which its current value is known to satisfy
        self.storage.data, self.storage.is_from_host = page.data, page.is_from_host
        self._current = number

    def write(self, number: int, array: Array) -> None:
        """Replace a page's value after all enqueued steps. Raises ValueError as `add` does."""
        page, array = self._page(number), np.asarray(array)
        check_like(self.storage, array)
        self.device.write(page.data, array)
        page.is_from_host, page.limits = True, self.storage.limits
        if number == self._current:
            self.storage.is_from_host = True

    def read(self, number: int) -> Array:
        """A page's value after all enqueued steps."""
        array = np.empty(self.storage.shape, self.storage.dtype.np)
        self.device.read(self._page(number).data, array)
        return array

    def _page(self, number: int) -> _Page:
        if not 0 <= number < len(self):
            raise misuse(ValueError, f"Pages: there are pages 0 to {len(self) - 1}, no {number}")
        return self._pages[number]
