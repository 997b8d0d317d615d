"""The kernel that codes latents, its processor beside a GPU, and the order of latents."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from conftest import open_mapping, open_opencl
from latent_models import SIZES, assert_models_equal, read_sections, shared_device
from networks import small_latent_model

from imgmlp.codec.latent import latents, latents_kernel, sections
from imgmlp.engine import Device, open_device
from imgmlp.errors import DeviceError, ImgmlpError, OutOfMemoryError


def pairwise_launches() -> list[tuple[tuple[int, int], float, int]]:
    """Sizes, spreads and latents per launch that cover all pairs of values."""
    spreads, at_once = (0.1, 0.3, 100.0), (1, 100, latents_kernel.LATENTS_PER_LAUNCH)
    sizes = [*SIZES, (70, 65), (60, 80)]
    return [
        (size, spread, at_once[(first + second) % 3])
        for first, size in enumerate(sizes)
        for second, spread in enumerate(spreads)
    ]


@pytest.mark.parametrize(("size", "spread", "at_once"), pairwise_launches())
def test_kernel_writes_the_bytes_of_numpy_and_reads_them(
    size: tuple[int, int], spread: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of launches does not matter, nor whether latents are unlikely or mostly zeros."""
    monkeypatch.setattr(latents_kernel, "LATENTS_PER_LAUNCH", at_once)
    model = small_latent_model(*size, spread=spread, has_hyperlatents=min(size) > 64)
    result = sections.write(model, shared_device("one"))
    assert result == sections.write(model)
    assert_models_equal(read_sections(result, model.shape, "one"), model)


def test_tall_pictures_take_at_most_4_times_the_launches_of_wide_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A column has one latent in every fourth wave only."""
    monkeypatch.setattr(latents_kernel, "LATENTS_PER_LAUNCH", 1000)
    launch, launches = latents_kernel.RawKernel.__call__, list[int]()

    def record_call(*arguments: Any) -> None:
        launches[-1] += 1
        launch(*arguments)

    monkeypatch.setattr(latents_kernel.RawKernel, "__call__", record_call)
    for size in ((1, 800), (800, 1)):
        model, device = small_latent_model(*size, spread=0.3), open_opencl()
        launches.append(0)
        parts = sections.write(model, device)
        assert_models_equal(read_sections(parts, model.shape, "one"), model)
    wide, high = launches
    assert high <= 4 * wide


@pytest.mark.parametrize("size", SIZES)
def test_waves_visit_latents_in_wavefront_order(size: tuple[int, int]) -> None:
    waves = latents.Waves(*size)
    results = [divmod(int(place), waves.stride) for n in range(waves.count) for place in waves[n]]
    expected = [(x + 4 * y, y, x) for y in range(size[0]) for x in range(size[1])]
    assert [(y - 3, x - 3) for y, x in results] == [(y, x) for _, y, x in sorted(expected)]
    for least in (1, 7, 10_000):
        blocks = np.concatenate(list(waves.blocks(least)))
        assert [divmod(int(place), waves.stride) for place in blocks] == results
    assert all(map(len, waves.blocks(0)))


@pytest.mark.parametrize(
    ("size", "hyper", "max_bytes"), [((2**16, 1), False, 2.5), ((300, 400), True, 15)]
)
def test_kernel_launches_need_little_host_memory(
    size: tuple[int, int], hyper: bool, max_bytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most `max_bytes` bytes of host memory are in use per position of the padded grid."""
    monkeypatch.setattr(latents_kernel.RawKernel, "__call__", lambda *_: None)
    model, state = small_latent_model(65, 9, 1, has_hyperlatents=hyper), np.zeros(4, np.uint64)
    kernel = latents_kernel._LatentsKernel(
        model.shape, model.networks, open_opencl(), writing=False
    )
    grid, maps = np.zeros(size, np.int8), np.zeros((3, *size), np.int32)
    tracemalloc.start()
    try:
        list(kernel._launches(grid, maps if hyper else None, state, state))
        assert tracemalloc.get_traced_memory()[1] < max_bytes * (size[0] + 3) * (size[1] + 6)
    finally:
        tracemalloc.stop()


def test_processor_codes_latents_for_a_device_of_many_lanes() -> None:
    alone = latents_kernel.sequential_processor(open_mapping("group"))
    assert alone is not None
    assert (alone.lanes, alone.info.kind) == ("one", "cpu")
    assert latents_kernel.sequential_processor(alone) is alone
    assert latents_kernel.sequential_processor(open_device("numpy")) is None


def test_presence_of_a_processor_is_known_without_opening_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu_like, alone = open_mapping("group"), open_mapping("one")
    monkeypatch.setattr(latents_kernel, "open_quietly", lambda _: pytest.fail("opened"))
    devices = [gpu_like, alone, open_device("numpy")]
    assert [latents_kernel.has_sequential_processor(one) for one in devices] == [True, True, False]
    monkeypatch.setattr(latents_kernel, "list_devices", list)
    assert [latents_kernel.has_sequential_processor(one) for one in devices] == [False, True, False]


def test_numpy_reads_latents_if_the_processor_has_no_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latents_kernel, "open_quietly", lambda _: None)
    latents_kernel._open_cpu.cache_clear()
    try:
        model = small_latent_model(13, 21, 3)
        assert latents_kernel.sequential_processor(open_mapping("group")) is None
        assert_models_equal(read_sections(sections.write(model), model.shape, "group"), model)
    finally:
        latents_kernel._open_cpu.cache_clear()


def test_processor_kernels_are_prepared_while_a_gpu_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    latents_kernel._open_cpu.cache_clear()
    model, one, group = small_latent_model(13, 21, 3), open_mapping("one"), open_mapping("group")
    for device in (one, open_device("numpy")):
        assert latents_kernel.prepare(model.shape, device) is None
    ready = latents_kernel.prepare(model.shape, group)
    assert ready is not None
    ready.join()
    monkeypatch.setattr(Device, "_compile", lambda *_: pytest.fail("it was not ready"))
    assert_models_equal(read_sections(sections.write(model, group), model.shape, "group"), model)


def test_failed_preparation_of_kernels_raises_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[object] = []

    def fail(*made: object) -> None:
        requests.append(made)
        raise OutOfMemoryError("there is none")

    monkeypatch.setattr(latents_kernel, "KernelGridReader", fail)
    latents_kernel._prepare(small_latent_model().shape)
    assert len(requests) == 1


@pytest.mark.parametrize("error", [DeviceError, OutOfMemoryError])
def test_numpy_writes_latents_if_the_processor_fails(
    error: type[ImgmlpError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error("it does not run")

    model, one, group = small_latent_model(13, 21, 3), open_mapping("one"), open_mapping("group")
    expected = sections.write(model)
    monkeypatch.setattr(sections.KernelGridWriter, "write", fail)
    assert sections.write(model, group) == expected
    monkeypatch.setattr(one, "lanes", "one")
    with pytest.raises(error):
        sections.write(model, one)


@pytest.mark.parametrize("error", [DeviceError, OutOfMemoryError])
def test_numpy_reads_latents_if_the_processor_fails(
    error: type[ImgmlpError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error("it does not build")

    monkeypatch.setattr(sections, "KernelGridReader", fail)
    model = small_latent_model(13, 21, 3)
    parts, one = sections.write(model), open_opencl()
    assert_models_equal(read_sections(parts, model.shape, "group"), model)
    monkeypatch.setattr(one, "lanes", "one")
    with pytest.raises(error):
        sections.read(parts, (model.shape.width, model.shape.height), model.shape.channels, one)
