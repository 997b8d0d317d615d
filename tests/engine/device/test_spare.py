"""Freed buffers are cached for later allocations, within limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import open_opencl

from imgmlp.engine import open_device
from imgmlp.engine.device import driver
from imgmlp.engine.device import opencl as opencl_module


def test_freed_buffers_are_reused_for_allocations_of_equal_size() -> None:
    device = open_opencl()
    device.spare.most = 8192
    kept = device.alloc(4096)
    first = kept.handle
    del kept
    assert device.usage.live_bytes == 0
    other, again = device.alloc(4097), device.alloc(4096)
    assert again.handle is first is not other.handle
    assert device.alloc(4096).handle is not first  # that buffer is in use


def test_cached_buffers_stay_within_the_limit() -> None:
    device = open_opencl()
    device.info = replace(device.info, memory=2**24)  # free_memory() allocates all of it
    device.spare.most = 8192
    for nbytes in (4096, 16384, 4096, 8192):
        device.alloc(nbytes)
        assert sum(n * len(kept) for n, kept in device.spare._kept.items()) <= 8192
    assert list(device.spare._kept) == [8192]
    assert device.free_memory().total > 0
    assert not device.spare.clear()


def test_buffer_cache_limit_is_a_small_fraction_of_gpu_memory() -> None:
    small = replace(open_device("numpy").info, kind="gpu", memory=2**32)
    assert opencl_module.spare(small) == 2**26
    assert opencl_module.spare(replace(small, memory=2**40)) == 2**28
    assert opencl_module.spare(replace(small, kind="cpu")) == 0


def test_cached_buffers_are_freed_before_out_of_memory_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_opencl()
    device.spare.most = 8192
    device.alloc(4096)
    real, requested_sizes = driver.cl.Buffer, []

    def buffer(*arguments: object, size: int) -> object:
        requested_sizes.append(size)
        if device.spare._kept:
            raise driver.cl.MemoryError("clCreateBuffer failed: OUT_OF_RESOURCES")
        return real(*arguments, size=size)

    monkeypatch.setattr(driver.cl, "Buffer", buffer)
    assert device.alloc(2048).nbytes == 2048
    assert requested_sizes == [2048, 2048]
