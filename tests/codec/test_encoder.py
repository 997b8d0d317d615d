"""Encoding with any codec: verified files, estimated times, and files of one colour."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, open_opencl, small_pixels

from imgmlp.codec import encoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.bitstream.container import Codec
from imgmlp.codec.encoder import encode
from imgmlp.codec.latent.training import buckets, forms
from imgmlp.codec.mlp import estimate, rate_model
from imgmlp.codec.mlp.rounding_search import Rounding, paid_weights
from imgmlp.codec.training.compile_times import (
    CPU_COMPILE_SECONDS,
    DEFAULT_COMPILE_SECONDS,
    CompileTimes,
)
from imgmlp.codec.training.draft import Draft
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload, workload
from imgmlp.codec.training.time_estimate import SETUP_SECONDS
from imgmlp.codec.training.trainer import Trainer
from imgmlp.engine import open_device
from imgmlp.errors import ImgmlpError
from imgmlp.image import Picture

CODECS: tuple[Codec, ...] = ("mlp", "latent")
SOUND = (GOLDEN / "rgb-alpha.imlp").read_bytes()


def encoded(data: bytes, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The pixels that `encode` returns if its codec makes a file of these bytes."""
    draft = Draft(data, {"psnr": 30.0})
    monkeypatch.setattr("imgmlp.codec.mlp.encode.encode", lambda *_: draft)
    picture, wanted = Picture(small_pixels()), Goal("psnr", 31)
    result = encode(picture, wanted, Workload(1), open_device("numpy"), codec="mlp")
    assert result.bytes == data
    assert result.missed == "30.00 dB instead of 31"
    return result.pixels


def test_encoded_pixels_are_those_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = encoded(SOUND, monkeypatch)
    assert container.digest(pixels) == container.parse(SOUND).header.digest


def test_file_of_another_picture_or_of_none_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = container.parse(SOUND)
    header = container.Header(24, 7, sound.header.channels, bytes(8))
    for bad in (SOUND[:-1], container.write(header, sound.sections)):
        with pytest.raises(ImgmlpError, match="what was written is no sound file") as caught:
            encoded(bad, monkeypatch)
        assert caught.value.exit_code == 1
        assert "fault in imgmlp" in caught.value.hint


def _uneven(height: int, width: int) -> np.ndarray:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[-1, -1, -1] = 1
    return pixels


@pytest.mark.parametrize("codec", ["mlp", "latent"])
def test_stop_requests_are_not_polled_before_training_begins(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then a signal ends the command immediately, however long a compiler takes."""
    polls, polls_before_training = [0], list[int]()
    run_trainer = Trainer.run

    def run(self: Trainer[Any, Any], *args: Any) -> Any:
        polls_before_training.append(polls[0])
        return run_trainer(self, *args)

    def stopping() -> bool:
        polls[0] += 1
        return False

    monkeypatch.setattr(Trainer, "run", run)
    picture, wanted = Picture(small_pixels()[:9, :9]), Goal("lambda", 1e-3)
    device = open_device("numpy")
    encode(picture, wanted, Workload(4), device, Run(should_stop=stopping), codec)
    assert polls_before_training[0] == 0
    assert polls[0] > 0


@pytest.mark.parametrize("codec", ["mlp", "latent"])
def test_expected_seconds_grow_with_the_work(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imgmlp.codec.training.time_estimate.estimate_speed", lambda _: 1e10)
    small, large = (Picture(_uneven(n, n)) for n in (64, 512))
    device = open_device("numpy")

    def expected_seconds(picture: Picture, level: int, wanted: Goal) -> float:
        work = encoder.workload(codec, level, None)
        return encoder.expected_seconds(picture, wanted, work, device, codec)

    lmbda, quality = Goal("lambda", 1e-3), Goal("psnr", 30.0)
    assert (
        0
        < expected_seconds(small, 1, lmbda)
        < expected_seconds(large, 1, lmbda)
        < expected_seconds(large, 4, lmbda)
    )
    assert expected_seconds(large, 4, lmbda) < expected_seconds(large, 4, Goal("psnr", 31.5))
    limited = encoder.workload(codec, None, 7.0)
    assert encoder.expected_seconds(small, quality, limited, device, codec) == 7.0
    uniform = Picture(np.full((512, 512, 3), 9, np.uint8))  # no training is needed
    untrained_seconds = SETUP_SECONDS + encoder.SINGLE_COLOUR_SECONDS_PER_PIXEL * 512 * 512
    assert expected_seconds(uniform, 4, lmbda) == untrained_seconds
    assert encoder.expected_seconds(uniform, quality, limited, device, codec) == untrained_seconds


def test_expected_seconds_on_numpy_have_a_minimum_per_step() -> None:
    tiny, work = Picture(_uneven(8, 8)), encoder.workload("mlp", 1, None)
    wanted, device = Goal("bytes", 200), open_device("numpy")
    seconds = encoder.expected_seconds(tiny, wanted, work, device, "mlp")
    assert seconds > 1e-3 * work.steps


def _cpu() -> Any:
    """A device that compiles nothing: tests set how long it did."""
    names = {"platform": "p", "name": "n", "driver": "d", "version": "v", "compiled_for": "c"}
    info = SimpleNamespace(**names, kind="cpu", compute_units=2, memory=1 << 30)
    return SimpleNamespace(info=info, lanes="one", compiling=0.0, lowering=0.0)


def test_expected_seconds_exclude_programs_that_were_compiled_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.codec.training.compile_times.cache_folder", lambda: tmp_path)
    monkeypatch.setattr("imgmlp.codec.training.time_estimate.estimate_speed", lambda _: 1e10)
    device = _cpu()

    def expected_seconds(picture: Picture) -> float:
        work = encoder.workload("mlp", 1, None)
        return encoder.expected_seconds(picture, Goal("bytes", 3000), work, device, "mlp")

    picture = Picture(_uneven(64, 64))
    cold, times = expected_seconds(picture), CompileTimes(device)
    middle = rate_model.network_shape(paid_weights(picture, 3000), 3)
    shapes = rate_model.neighbours(middle, 1, 1)  # the rivals of attempts that take a while
    steps = {estimate.step_program(shape, 1, device, 0) for shape in shapes}
    decoding = {estimate.decoding_program(shape, device, 64 * 64) for shape in shapes}
    for programs, seconds in ((steps, 6.0), (decoding, 3.0)):
        for program in programs:
            device.compiling += seconds
            times.record(program)
    warm = expected_seconds(picture)
    assert cold - warm == pytest.approx(len(steps | decoding) * DEFAULT_COMPILE_SECONDS)
    larger = Picture(_uneven(640, 64))
    assert expected_seconds(larger) - warm < 2  # the same network, with the same programs
    device.info.driver = "another"
    assert expected_seconds(picture) == cold


def test_pictures_of_similar_sizes_share_compiled_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.codec.training.compile_times.cache_folder", lambda: tmp_path)
    device = _cpu()

    def compiling(height: int, width: int) -> float:
        picture, work = Picture(_uneven(height, width)), Workload(0, 10.0)
        return encoder.compiling_seconds(picture, Goal("lambda", 1e-3), work, device, "latent")

    times = CompileTimes(device)
    assert compiling(80, 96) == CPU_COMPILE_SECONDS["latent step"]
    device.compiling += 20.0
    times.record(
        buckets.TrainingSetup((80, 96, 3), device, True).step_program(
            forms.widths((80, 96, 3), 1e9)
        )
    )
    assert compiling(80, 96) == compiling(100, 112) == 0.0
    assert compiling(256, 384) == 20.0  # the time of the other program of its kind
    device.compiling += 30.0
    widths = forms.widths((400, 400, 3), 1e9, quick=True)
    times.record(buckets.TrainingSetup((400, 400, 3), device, True).step_program(widths))
    assert compiling(256, 400) == compiling(700, 600) == 0.0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wanted", [Goal("lambda", 2e-2), Goal("bytes", 64)], ids=str)
def test_file_of_one_colour_is_chosen_if_it_is_nearer_to_the_target(
    codec: Codec, wanted: Goal
) -> None:
    """It is, for a picture of nearly one colour at a lambda, and for any picture in few bytes."""
    pixels = small_pixels()
    if wanted.kind == "lambda":
        pixels = 128 + pixels % 2
    result = encode(Picture(pixels), wanted, Workload(8), open_device("numpy"), codec=codec)
    assert result.missed is None
    assert len(result.bytes) < 64
    colours = np.unique(result.pixels.reshape(-1, 3), axis=0)
    assert colours.tolist() == [np.rint(pixels.mean((0, 1))).tolist()]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_is_trained_for_fewer_bytes_than_the_smallest_file_has(
    codec: Codec, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"imgmlp.codec.{codec}.encode.encode", lambda *_: pytest.fail("trained"))
    arguments = Picture(small_pixels(channels)), Goal("bytes", 9), Workload(8)
    device = open_device("numpy")
    result = encode(*arguments, device, codec=codec)
    assert result.missed is not None
    assert len(result.bytes) < 64
    assert encoder.expected_seconds(*arguments, device, codec) == pytest.approx(
        SETUP_SECONDS, rel=0.01
    )


def test_diverged_and_resumed_runs_say_so_even_if_one_colour_is_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draft = Draft(b"", {"psnr": 1.0, "bpp": 9.0}, diverged=True, resumed=7)
    monkeypatch.setattr("imgmlp.codec.latent.encode.encode", lambda *_: draft)
    result = encode(
        Picture(small_pixels()), Goal("lambda", 1e-2), Workload(9), open_device("numpy")
    )
    assert len(result.bytes) < 64
    assert (result.diverged, result.resumed) == (True, 7)


def test_search_ends_though_a_network_reproduces_every_pixel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A PSNR of infinity must not lead to an infinite change of the weights."""
    monkeypatch.setattr(Rounding, "one_colour", lambda *_: None)
    x = np.arange(40) % 2 * 255
    pixels = np.repeat(np.broadcast_to(x, (40, 40)).astype(np.uint8)[:, :, None], 3, 2)
    result = encode(
        Picture(pixels), Goal("psnr", 30), workload(1, None), open_opencl(), codec="mlp"
    )
    assert result.missed is None
    assert len(result.bytes) < 150
