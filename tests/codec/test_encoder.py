"""Nobody gets a file that does not decode to what it was made of, whatever codec made it."""

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
    """What `encode` gives where its codec makes a file of these bytes."""
    made = Draft(data, {"psnr": 30.0})
    monkeypatch.setattr("imgmlp.codec.mlp.encode.encode", lambda *_: made)
    picture, wanted = Picture(small_pixels()), Goal("psnr", 31)
    found = encode(picture, wanted, Workload(1), open_device("numpy"), codec="mlp")
    assert found.bytes == data
    assert found.missed == "30.00 dB instead of 31"
    return found.pixels


def test_its_pixels_are_those_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = encoded(SOUND, monkeypatch)
    assert container.digest(pixels) == container.parse(SOUND).header.digest


def test_a_file_of_another_picture_or_of_none_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = container.parse(SOUND)
    header = container.Header(24, 7, found.header.channels, bytes(8))
    for bad in (SOUND[:-1], container.write(header, found.sections)):
        with pytest.raises(ImgmlpError, match="what was written is no sound file") as caught:
            encoded(bad, monkeypatch)
        assert caught.value.exit_code == 1
        assert "fault in imgmlp" in caught.value.hint


def _uneven(height: int, width: int) -> np.ndarray:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[-1, -1, -1] = 1
    return pixels


@pytest.mark.parametrize("codec", ["mlp", "latent"])
def test_nobody_asks_whether_to_stop_before_training_has_begun(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then a signal ends the command at once, however long a compiler takes."""
    asked, before = [0], list[int]()
    begun = Trainer.run

    def run(self: Trainer[Any, Any], *args: Any) -> Any:
        before.append(asked[0])
        return begun(self, *args)

    def stopping() -> bool:
        asked[0] += 1
        return False

    monkeypatch.setattr(Trainer, "run", run)
    picture, wanted = Picture(small_pixels()[:9, :9]), Goal("lambda", 1e-3)
    device = open_device("numpy")
    encode(picture, wanted, Workload(4), device, Run(should_stop=stopping), codec)
    assert before[0] == 0
    assert asked[0] > 0


@pytest.mark.parametrize("codec", ["mlp", "latent"])
def test_how_long_it_takes_is_guessed_from_what_there_is_to_do(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.codec.training.time_estimate.estimate_speed", lambda _: 1e10)
    small, large = (Picture(_uneven(n, n)) for n in (64, 512))
    device = open_device("numpy")

    def guessed(picture: Picture, level: int, wanted: Goal) -> float:
        work = encoder.workload(codec, level, None)
        return encoder.expected_seconds(picture, wanted, work, device, codec)

    lmbda, quality = Goal("lambda", 1e-3), Goal("psnr", 30.0)
    assert 0 < guessed(small, 1, lmbda) < guessed(large, 1, lmbda) < guessed(large, 4, lmbda)
    assert guessed(large, 4, lmbda) < guessed(large, 4, Goal("psnr", 31.5))
    limited = encoder.workload(codec, None, 7.0)
    assert encoder.expected_seconds(small, quality, limited, device, codec) == 7.0
    even = Picture(np.full((512, 512, 3), 9, np.uint8))  # which is not trained
    soon = SETUP_SECONDS + encoder.SINGLE_COLOUR_SECONDS_PER_PIXEL * 512 * 512
    assert guessed(even, 4, lmbda) == soon
    assert encoder.expected_seconds(even, quality, limited, device, codec) == soon


def test_a_small_network_takes_numpy_longer_than_its_operations() -> None:
    tiny, work = Picture(_uneven(8, 8)), encoder.workload("mlp", 1, None)
    wanted, device = Goal("bytes", 200), open_device("numpy")
    told = encoder.expected_seconds(tiny, wanted, work, device, "mlp")
    assert told > 1e-3 * work.steps


def _processor() -> Any:
    """One that compiles nothing: tests say how long it did."""
    told = {"platform": "p", "name": "n", "driver": "d", "version": "v", "compiled_for": "c"}
    info = SimpleNamespace(**told, kind="cpu", compute_units=2, memory=1 << 30)
    return SimpleNamespace(info=info, lanes="one", compiling=0.0, lowering=0.0)


def test_what_was_compiled_here_before_takes_no_time_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.codec.training.compile_times.cache_folder", lambda: tmp_path)
    monkeypatch.setattr("imgmlp.codec.training.time_estimate.estimate_speed", lambda _: 1e10)
    device = _processor()

    def guessed(picture: Picture) -> float:
        work = encoder.workload("mlp", 1, None)
        return encoder.expected_seconds(picture, Goal("bytes", 3000), work, device, "mlp")

    picture = Picture(_uneven(64, 64))
    cold, times = guessed(picture), CompileTimes(device)
    middle = rate_model.network_shape(paid_weights(picture, 3000), 3)
    shapes = rate_model.neighbours(middle, 1, 1)  # as attempts take more than a moment
    steps = {estimate.step_program(shape, 1, device, 0) for shape in shapes}
    decoding = {estimate.decoding_program(shape, device, 64 * 64) for shape in shapes}
    for programs, took in ((steps, 6.0), (decoding, 3.0)):
        for program in programs:
            device.compiling += took
            times.record(program)
    warm = guessed(picture)
    assert cold - warm == pytest.approx(len(steps | decoding) * DEFAULT_COMPILE_SECONDS)
    larger = Picture(_uneven(640, 64))
    assert guessed(larger) - warm < 2  # the same network, with the same programs
    device.info.driver = "another"
    assert guessed(picture) == cold


def test_pictures_of_nearly_one_size_are_compiled_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imgmlp.codec.training.compile_times.cache_folder", lambda: tmp_path)
    device = _processor()

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
    assert compiling(256, 384) == 20.0  # as what is of its kind took
    device.compiling += 30.0
    widths = forms.widths((400, 400, 3), 1e9, quick=True)
    times.record(buckets.TrainingSetup((400, 400, 3), device, True).step_program(widths))
    assert compiling(256, 400) == compiling(700, 600) == 0.0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("wanted", [Goal("lambda", 2e-2), Goal("bytes", 64)], ids=str)
def test_one_colour_is_the_file_where_it_is_nearer_to_the_target(
    codec: Codec, wanted: Goal
) -> None:
    """Of what is nearly of one colour at a lambda, and of anything in very few bytes."""
    pixels = small_pixels()
    if wanted.kind == "lambda":
        pixels = 128 + pixels % 2
    found = encode(Picture(pixels), wanted, Workload(8), open_device("numpy"), codec=codec)
    assert found.missed is None
    assert len(found.bytes) < 64
    colours = np.unique(found.pixels.reshape(-1, 3), axis=0)
    assert colours.tolist() == [np.rint(pixels.mean((0, 1))).tolist()]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("channels", [1, 3])
def test_nothing_is_trained_for_fewer_bytes_than_any_file_has(
    codec: Codec, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"imgmlp.codec.{codec}.encode.encode", lambda *_: pytest.fail("trained"))
    given = Picture(small_pixels(channels)), Goal("bytes", 9), Workload(8)
    device = open_device("numpy")
    found = encode(*given, device, codec=codec)
    assert found.missed is not None
    assert len(found.bytes) < 64
    assert encoder.expected_seconds(*given, device, codec) == pytest.approx(SETUP_SECONDS, rel=0.01)


def test_a_run_that_could_not_go_on_says_so_whatever_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Draft(b"", {"psnr": 1.0, "bpp": 9.0}, diverged=True, resumed=7)
    monkeypatch.setattr("imgmlp.codec.latent.encode.encode", lambda *_: made)
    found = encode(Picture(small_pixels()), Goal("lambda", 1e-2), Workload(9), open_device("numpy"))
    assert len(found.bytes) < 64
    assert (found.diverged, found.resumed) == (True, 7)


def test_no_quality_has_no_end_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that gives every pixel back needs no endless number of fewer weights."""
    monkeypatch.setattr(Rounding, "one_colour", lambda *_: None)
    x = np.arange(40) % 2 * 255
    pixels = np.repeat(np.broadcast_to(x, (40, 40)).astype(np.uint8)[:, :, None], 3, 2)
    found = encode(Picture(pixels), Goal("psnr", 30), workload(1, None), open_opencl(), codec="mlp")
    assert found.missed is None
    assert len(found.bytes) < 150
