"""Training and decoding small pictures, end to end, on every device."""

from __future__ import annotations

import dataclasses
import io
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping, small_pixels

from imgmlp.codec.float_mlp import npz, pipeline
from imgmlp.codec.float_mlp.config import PRESETS, Settings
from imgmlp.codec.float_mlp.fit import CHECK_INTERVAL
from imgmlp.codec.training.chunked import max_piece_pixels
from imgmlp.codec.training.compile_times import DEFAULT_COMPILE_SECONDS, CompileTimes
from imgmlp.codec.training.run import Progress, Run
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import OutOfMemoryError, UsageError
from imgmlp.image import Picture, psnr
from imgmlp.metadata import Metadata


def settings(**changes: object) -> Settings:
    small = {"steps": 200, "batch": 100, "hidden": 12, "layers": 2, "features": 16}
    return dataclasses.replace(PRESETS["default"], **{**small, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["numpy", "one"])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


PICTURES = {
    "RGB": small_pixels(),
    "gray": small_pixels(1),
    "one row": small_pixels()[:1],
    "one column": small_pixels(1)[:, :1],
    "one pixel": small_pixels()[3:4, 5:6],
    "flat": np.full((7, 5, 3), 77, np.uint8),
}


@pytest.mark.parametrize("name", PICTURES)
def test_decoded_pixels_are_exactly_those_that_training_reported(
    device: AnyDevice, name: str
) -> None:
    picture = Picture(PICTURES[name], Metadata(b"profile"))
    trained = pipeline.train(picture, settings(), device)
    stream = io.BytesIO()
    npz.save(trained.weights, stream)
    loaded = npz.load(stream)
    assert loaded.icc == b"profile"
    assert np.array_equal(pipeline.decode(loaded, device), trained.pixels)
    assert trained.pixels.shape == picture.pixels.shape
    assert trained.psnr == psnr(picture.pixels, trained.pixels)
    assert trained.psnr > 12
    assert trained.stopped is None


def test_more_steps_give_a_higher_psnr(device: AnyDevice) -> None:
    picture = Picture(small_pixels())
    short, long = (pipeline.train(picture, settings(steps=n), device).psnr for n in (20, 600))
    assert long > short + 3


def test_same_seed_gives_the_same_weights(device: AnyDevice) -> None:
    picture = Picture(small_pixels())
    first, second, other = (
        pipeline.train(picture, settings(seed=s), device).weights.flat for s in (1, 1, 2)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_decoding_at_other_sizes_does_not_depend_on_pieces(
    device: AnyDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = pipeline.train(Picture(small_pixels()), settings(steps=50), device).weights
    whole = pipeline.decode(weights, device, (62, 48))
    monkeypatch.setattr(pipeline, "DECODED_PIXELS", 100)
    assert np.array_equal(pipeline.decode(weights, device, (62, 48)), whole)
    assert whole.shape == (48, 62, 3)
    small = pipeline.decode(weights, device)
    halved = whole.reshape(24, 2, 31, 2, 3).mean((1, 3))  # pixel centres do not move
    assert psnr(np.rint(halved).astype(np.uint8), small) > 25
    with pytest.raises(UsageError):
        pipeline.decode(weights, device, (0, 5))


@pytest.mark.parametrize(
    ("mapping", "pixels"), [("numpy", 1 << 12), ("one", 1 << 16), ("group", 1 << 20)]
)
def test_pieces_are_larger_on_gpus_and_smaller_for_numpy(mapping: str, pixels: int) -> None:
    assert max_piece_pixels(open_mapping(mapping), pipeline.DECODED_PIXELS) == pixels


def test_thin_pictures_need_memory_for_the_features_of_one_piece_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = open_device("numpy")
    weights = pipeline.train(Picture(small_pixels()), settings(steps=5), device).weights
    monkeypatch.setattr(pipeline, "DECODED_PIXELS", 1000)
    tracemalloc.start()
    thin = pipeline.decode(weights, device, (100_000, 1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert thin.shape == (1, 100_000, 3)
    assert peak < 3_000_000  # the features of all columns would take 3.2 MB, in float64 twice that
    monkeypatch.setattr(pipeline, "DECODED_PIXELS", 1 << 16)
    assert np.array_equal(pipeline.decode(weights, device, (100_000, 1)), thin)


def test_training_on_a_too_long_picture_is_refused() -> None:
    device = open_device("numpy")
    device.info = dataclasses.replace(device.info, memory=100_000)
    with pytest.raises(OutOfMemoryError, match="rows and columns"):
        pipeline.train(Picture(np.zeros((1, 5000, 1), np.uint8)), settings(), device)


def test_progress_is_in_order_and_has_decodable_previews(device: AnyDevice) -> None:
    reports: list[Progress] = []
    chosen = settings(steps=250)
    pipeline.train(Picture(small_pixels()), chosen, device, Run(reports.append))
    steps = [p.step for p in reports]
    assert steps == sorted(set(steps))
    assert steps[-1] == 250
    assert reports[-1].loss < reports[0].loss
    assert reports[-1].psnr == pytest.approx(-10 * np.log10(reports[-1].loss))
    assert reports[-1].preview is not None
    assert reports[-1].preview().shape == (24, 31, 3)


def test_interrupted_run_returns_its_best_weights(device: AnyDevice) -> None:
    steps: list[int] = []
    trained = pipeline.train(
        Picture(small_pixels()),
        settings(steps=100_000),
        device,
        Run(lambda p: steps.append(p.step), lambda: len(steps) > 0 and steps[-1] >= 300),
    )
    assert trained.stopped == "interrupted"
    assert 300 <= trained.steps < 100_000
    assert trained.psnr > 12


def test_diverging_run_ends_soon_with_finite_weights(device: AnyDevice) -> None:
    trained = pipeline.train(Picture(small_pixels()), settings(steps=5000, lr=1e30), device)
    assert trained.stopped == "diverged"
    assert trained.steps <= 4 * CHECK_INTERVAL
    assert np.isfinite(trained.weights.flat).all()


def test_devices_train_nearly_the_same_picture() -> None:
    """Rounding differs, after 200 steps by less than a level on average."""
    picture = Picture(small_pixels())
    one, two = (pipeline.train(picture, settings(), open_mapping(m)) for m in MAPPINGS[:2])
    difference = np.abs(one.pixels.astype(int) - two.pixels.astype(int))
    assert difference.mean() < 1
    assert one.psnr == pytest.approx(two.psnr, abs=0.1)


def test_expected_seconds_depend_on_remaining_steps_and_compiled_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.codec.training.compile_times.cache_folder", lambda: tmp_path)
    monkeypatch.setattr("imgmlp.codec.training.time_estimate.estimate_speed", lambda _: 1e9)
    info = SimpleNamespace(
        platform="p", name="n", driver="d", version="v", compiled_for="c", kind="cpu"
    )
    device: Any = SimpleNamespace(info=info, lanes="one", compiling=0.0, lowering=0.0)
    picture, wanted = Picture(small_pixels()), settings(steps=100_000)
    whole, half = (pipeline.work(picture, wanted, done) for done in (0, 50_000))
    assert half.steps == whole.steps / 2
    assert whole.operations / 2 == pytest.approx(half.operations, rel=0.01)
    before, times = whole.seconds(device), CompileTimes(device)
    device.compiling = 3.0
    times.record(whole.programs[0])
    assert before - whole.seconds(device) == pytest.approx(DEFAULT_COMPILE_SECONDS)
