"""Too little memory: smaller pieces, or an error that says what is needed and what would fit."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from conftest import open_mapping, open_opencl, small_pixels, with_units
from networks import small_network

from imgmlp.cli import decode, train
from imgmlp.cli.folders import Request
from imgmlp.cli.train import Outputs
from imgmlp.codec.encoder import encode
from imgmlp.codec.float_mlp import pipeline
from imgmlp.codec.float_mlp.config import PRESETS
from imgmlp.codec.mlp import integer_inference
from imgmlp.codec.training import memory_limits
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import Device, memory_needed, open_device
from imgmlp.errors import ImgmlpWarning, OutOfMemoryError
from imgmlp.image import Picture
from imgmlp.terminal import Terminal

SMALL = replace(PRESETS["default"], steps=2, batch=4_000, hidden=8, layers=1, features=8)
KILO = 1024


def small_device(nbytes: int, at_once: int | None = None) -> Device:
    """PoCL with `nbytes` of memory; it joins no kernels, so that batches take memory."""
    device = with_units(open_opencl(), 2)
    device.info = replace(device.info, memory=nbytes)
    device.max_allocation = at_once or nbytes
    return device


@pytest.fixture
def without_joined_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "joins_kernels", False)


@pytest.fixture
def counts_small_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts small allocations as well."""
    monkeypatch.setattr("imgmlp.engine.device.opencl.LARGE", 1)


@pytest.mark.parametrize("most", [100, 10**6])
@pytest.mark.parametrize(
    ("memory_fraction", "max_queries"),
    [
        (lambda count: count, 8),
        (lambda count: count**2, 6),
        (lambda count: 0.3 * count**2 + 0.4 * count + 0.3, 8),
        (lambda count: 0.7 + 0.3 * count, 10),  # a constant part
        (lambda count: math.inf if count > 1 else 1.0, 28),  # refused before the memory is known
        (lambda count: 2.0 * (count > 1), 28),
    ],
)
def test_largest_count_that_fits_is_found_with_few_queries(
    memory_fraction: Callable[[float], float], max_queries: int, most: int
) -> None:
    """Each query takes a second."""
    for limit in (0.3, 1, 1.4, 63, 100, 500, 12_121, 3e7):
        queries = list[int]()

        def query(count: int, limit: float = limit, queries: list[int] = queries) -> float:
            queries.append(count)
            return memory_fraction(count / limit)

        largest, best = memory_limits.largest(query, most), min(int(limit), most)
        assert best - max(0, best // 100) <= largest <= best
        assert len(queries) == len(set(queries)) <= max_queries


def number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, text
    return int(match[1].replace(",", ""))


@pytest.mark.usefixtures("without_joined_kernels", "counts_small_allocations")
def test_error_for_a_too_large_batch_names_the_largest_that_fits() -> None:
    device, pixels = small_device(100 * KILO), small_pixels()
    with pytest.raises(OutOfMemoryError) as raised:
        pipeline.train(Picture(pixels), SMALL, device)
    error = raised.value
    assert error.exit_code == 7
    assert number(r"needs ([\d,]+) bytes", str(error)) > 100 * KILO
    assert 80 * KILO < number(r"has ([\d,]+) bytes", str(error)) <= 100 * KILO
    batch = number(r"--batch of at most ([\d,]+)", error.hint)
    assert device.usage.live == 0  # all memory was freed
    assert 100 < batch < SMALL.batch

    def needed(batch: int) -> int:
        settings = replace(SMALL, batch=batch)
        return memory_needed(lambda d: pipeline.training_step(settings, d, 31, 24, 3), device).total

    left = device.free_memory().total
    assert needed(batch) <= left < needed(batch * 51 // 50)
    trained = pipeline.train(Picture(pixels), replace(SMALL, batch=batch), small_device(100 * KILO))
    assert trained.stopped is None


@pytest.mark.usefixtures("counts_small_allocations")
@pytest.mark.parametrize("codec", ["npz", "mlp", "latent"])
def test_error_for_a_too_large_picture_names_the_largest_that_fits(
    codec: Literal["npz", "mlp", "latent"],
) -> None:
    device = small_device(300 * KILO)
    pixels = np.zeros((1000, 500, 3), np.uint8)
    pixels[0] = 255  # one colour alone would need no training
    picture = Picture(pixels)

    def run() -> object:
        if codec == "npz":
            return pipeline.train(picture, replace(SMALL, batch=64), device)
        return encode(picture, Goal("bytes", 200.0), Workload(2), device, None, codec)

    with pytest.raises(OutOfMemoryError, match="500×1000 pixels") as raised:
        run()
    assert raised.value.exit_code == 7
    rows = number(r"at most \d+×(\d+) pixels", raised.value.hint)
    low, high = (5, 100) if codec == "latent" else (100, 500)  # latents take more memory
    assert low < rows < high
    assert device.usage.live == 0


@pytest.mark.usefixtures("counts_small_allocations")
def test_limit_of_a_single_allocation_counts_too() -> None:
    device = small_device(1 << 30, 200 * KILO)
    with pytest.raises(OutOfMemoryError, match="at once") as raised:
        pipeline.train(Picture(np.zeros((300, 300, 3), np.uint8)), replace(SMALL, batch=64), device)
    rows = number(r"×(\d+) pixels", raised.value.hint)
    assert 258 <= rows <= 261  # 261 * 261 * 3 bytes fit


@pytest.mark.parametrize(
    ("mapping", "nbytes", "pixels"),
    [("one", 60 * KILO, "512 .* instead of 1,024"), ("numpy", 5000, "600 .* instead of 1,200")],
)
def test_decoding_halves_its_pieces_with_a_warning_and_gives_the_same_picture(
    mapping: str, nbytes: int, pixels: str
) -> None:
    network, device = small_network(), open_mapping(mapping)
    whole = integer_inference.decode(network, 40, 30, open_device("numpy"))
    device.info = replace(device.info, memory=nbytes)
    with pytest.warns(ImgmlpWarning, match=f"going on with {pixels}"):
        assert np.array_equal(integer_inference.decode(network, 40, 30, device), whole)
    assert device.usage.live == 0


@pytest.mark.filterwarnings("ignore::imgmlp.errors.ImgmlpWarning")
def test_error_says_what_the_smallest_piece_needs_if_it_does_not_fit() -> None:
    with pytest.raises(OutOfMemoryError, match=r"decoding \d+ pixels at a time needs") as raised:
        integer_inference.decode(small_network(), 40, 30, small_device(2 * KILO))
    assert raised.value.hint == "use another device"


def test_decoding_is_not_repeated_on_a_lost_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device, tried = open_opencl(), []

    def fail(*_: object) -> None:
        tried.append(True)
        monkeypatch.setattr(type(device), "lost", True)
        raise OutOfMemoryError("the device ran out of memory while reading")

    monkeypatch.setattr(device, "read_async", fail)
    with pytest.raises(OutOfMemoryError, match="while reading"):
        integer_inference.decode(small_network(), 40, 30, device)
    assert tried == [True]


def test_command_prints_the_warning_about_smaller_pieces(
    picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, terminal = picture.parent, Terminal()
    outputs, settings = Outputs(folder / "w.npz", folder / "w.png"), replace(SMALL, batch=64)
    train.run(terminal, picture, outputs, settings, "numpy", False)
    device = open_device("numpy")
    device.info = replace(device.info, memory=3000)  # the picture alone takes 2,232
    monkeypatch.setattr(decode, "open_device", lambda _: device)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    terminal.show_warnings()
    decoded = folder / "decoded.png"
    request = Request([folder / "w.npz"], device="numpy")
    assert decode.run(terminal, request, decode.Outputs(decoded)) == 0
    stderr = capsys.readouterr().err
    assert "warning: " in stderr
    assert "372 pixels at a time instead of 744" in stderr
    assert decoded.read_bytes() == (folder / "w.png").read_bytes()


def test_numpy_refuses_what_exceeds_the_memory_of_the_machine(
    picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the system would kill the process without a message."""
    monkeypatch.setattr("imgmlp.engine.runtime.interpreted.host_memory", lambda: 1000)
    settings = replace(SMALL, batch=64)
    outputs = Outputs(picture.parent / "w.npz", picture.parent / "w.png")
    with pytest.raises(OutOfMemoryError, match=r"bytes at once, this machine has 1,000"):
        train.run(Terminal(), picture, outputs, settings, "numpy", False)
