"""The data of Buffers on a device: upload, write and read. It knows no Programs."""

from __future__ import annotations

import numpy as np

from imgmlp.engine.device.base import Allocation
from imgmlp.engine.device.discover import AnyDevice
from imgmlp.engine.ir.dtype import Array
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.oracle.index_bounds import check_written


def upload(storage: Buffer) -> None:
    """Give a Buffer its data on its device: initial values, or memory for what a step writes."""
    if storage.data is not None:
        return
    allocation: Allocation = storage.device.alloc(max(1, storage.nbytes))
    if storage.host is not None:
        storage.device.write(allocation, storage.host)
        storage.is_from_host = True
    storage.data, storage.host = allocation, None


def check_like(storage: Buffer, array: Array) -> None:
    """Raise ValueError for an array that cannot replace the data of a Buffer."""
    if array.shape != storage.shape or array.dtype != storage.dtype.np:
        text = f"{storage!r} cannot take {array.dtype}{list(array.shape)}"
        wanted = np.dtype(storage.dtype.np)
        cast = f".astype(np.{wanted})" if array.dtype != wanted else ""
        moved = f".reshape{storage.shape}" if array.size == storage.size else ""
        remedy = cast + (moved if array.shape != storage.shape else "")
        raise misuse(ValueError, f"{text}; use {remedy}" if remedy else text)
    check_written(storage, array)


def write_buffer(storage: Buffer, array: Array) -> None:
    """Replace the data of a Buffer from the host; shape and dtype must agree."""
    check_like(storage, array)
    upload(storage)
    storage.device.write(storage.data, array)
    storage.is_from_host = True


def read_buffer(device: AnyDevice, storage: Buffer) -> Array:
    """The data of a Buffer, after all enqueued work."""
    if storage.device is None:
        storage.device = device
    upload(storage)
    array = np.empty(storage.shape, storage.dtype.np)
    if array.size:
        device.read(storage.data, array)
    return array
