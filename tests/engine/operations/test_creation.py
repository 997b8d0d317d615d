"""Functions that create Tensors: values, dtypes and devices."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
from conftest import open_mapping
from reference import close

from imgmlp.engine import (
    Tensor,
    dtype,
    open_device,
)

NUMPY = open_device("numpy")


def test_arange_eye_and_full_like_equal_numpys() -> None:
    device = open_mapping("numpy")
    for arguments in [(5,), (2, 9), (2, 9, 3), (9, 2, -2), (0.5, 2.1, 0.4), (1.0,)]:
        created = Tensor.arange(*arguments, device=device)
        assert close(created.numpy(), np.arange(*arguments), roundings=4), arguments
    assert Tensor.arange(5, dtype=dtype.u8, device=device).dtype is dtype.u8
    assert np.array_equal(Tensor.eye(3, 5, 1, device=device), np.eye(3, 5, 1))
    x = Tensor([[1, 2]], device)
    assert x.full_like(7).numpy().tolist() == [[7, 7]]
    assert x.full_like(0.5, dtype.f16).dtype is dtype.f16


def test_creation_functions_give_the_values_and_dtypes_of_numpy() -> None:
    device = open_mapping("numpy")
    made = {
        "full": (Tensor.full((2, 3), 2.5, device=device), np.full((2, 3), 2.5, np.float32)),
        "zeros": (Tensor.zeros(3, dtype=dtype.u8, device=device), np.zeros(3, np.uint8)),
        "ones": (Tensor.ones(device=device), np.ones((), np.float32)),
        "arange": (Tensor.arange(4, device=device), np.arange(4, dtype=np.int32)),
        "empty": (Tensor.empty(2, 1, dtype=dtype.f16, device=device), np.zeros((2, 1), np.float16)),
    }
    for name, (tensor, expected) in made.items():
        assert tensor.realized == (name == "empty")
        assert tensor.numpy().dtype == expected.dtype, name
        assert np.array_equal(tensor, expected), name
    storage = made["empty"][0]
    assert storage.write(np.array([[1], [2]], np.float16)).numpy().tolist() == [[1], [2]]


def test_tensor_copies_its_array_once_and_shares_no_memory() -> None:
    array = np.arange(6, dtype=np.float32)
    kept = [Tensor(array, NUMPY), Tensor(array[::2], NUMPY), Tensor(array.reshape(2, 3), NUMPY)]
    kept += [Tensor(memoryview(array), NUMPY)]  # type: ignore[arg-type]
    before = [t.numpy().tolist() for t in kept]
    host = [t.node.arg for t in (*kept, Tensor(array[0], NUMPY))]
    array[:] = -1
    assert [t.numpy().tolist() for t in kept] == before
    assert all(buffer.host is None or not np.shares_memory(buffer.host, array) for buffer in host)
    tracemalloc.start()
    try:
        made = Tensor.empty(1 << 20, device=NUMPY)
        assert tracemalloc.get_traced_memory()[1] < 2.1 * made.node.arg.nbytes
        tracemalloc.reset_peak()
        before_it = tracemalloc.get_traced_memory()[0]
        wide = Tensor(np.zeros(1 << 20), NUMPY)
        most = tracemalloc.get_traced_memory()[1] - before_it
        assert most < 3.1 * wide.node.arg.nbytes  # the array itself twice as many bytes
    finally:
        tracemalloc.stop()


def test_integers_beyond_64_bits_become_floats_or_infinity() -> None:
    device = open_device("numpy")
    for data in ([2**70, 1], np.array([2.0**70, 1], object)):
        assert Tensor(data, device, dtype.f32).numpy().tolist() == [2.0**70, 1]
    assert Tensor(2**70, device, dtype.f32).item() == 2.0**70
    assert Tensor([-(10**400), 1.5], device).numpy().tolist() == [-math.inf, 1.5]
