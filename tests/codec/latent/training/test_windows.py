"""Training of large pictures in windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import stops_after
from latent_steps import PRETRAINED_4, patterned_picture
from networks import latent_programs

from imgmlp.codec import decoder, encoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.latent.step import architecture
from imgmlp.codec.latent.step.control import Control, Steering
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import buckets, latent_trainer, rounding_search, schedule, windows
from imgmlp.codec.latent.training.bit_allocation import Search
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.windows import WindowedStep, WindowStep
from imgmlp.codec.training import passes
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import Tensor, open_device
from imgmlp.engine.ir.target import Lanes
from imgmlp.errors import Interrupted
from imgmlp.image import Picture, psnr

WINDOW = 64, 64


def integer_latents(step: LatentStep) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [np.rint(2 * generator.standard_normal(size)) for size in step.shape.grid_sizes]


def assert_equal_up_to_rounding(actual: np.ndarray, expected: np.ndarray) -> None:
    """Libraries sum products of other shapes in other orders: few pixels may differ by one."""
    difference = np.abs(actual.astype(int) - expected)
    assert difference.max() <= 1
    assert np.mean(difference > 0) < 1e-3


@pytest.mark.parametrize(
    ("size", "channels", "has", "lanes"),
    [
        *[((66, 70), 3, {}, "one"), ((20, 130), 4, {}, "group")],
        *[
            ((66, 70), 3, {"has_hyperlatents": True}, "group"),
            ((20, 130), 4, {"has_hyperlatents": True}, "one"),
        ],
        *[((66, 70), 3, {"extra_grids": 2}, "one"), ((20, 130), 4, {"extra_grids": 2}, "group")],
    ],
)
def test_windows_are_judged_like_the_whole_picture(
    size: tuple[int, int], channels: int, has: dict[str, Any], lanes: Lanes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Lanes of a GPU upsample by tables, which differ from window to window."""
    monkeypatch.setattr(architecture, "FILTERED_FROM_WIDTH", PRETRAINED_4.synthesis_width)
    pixels, device = patterned_picture(*size, channels), open_device("numpy")
    device.lanes = lanes
    step = LatentStep(pixels, 0, device, replace(PRETRAINED_4, **has))
    parted = WindowedStep(pixels, 0, device, replace(PRETRAINED_4, **has), window=WINDOW)
    assert len(parted.windows) in (3, 4)
    assert step.shape.has_filter
    away = np.random.default_rng(1).standard_normal(step.flat.shape)
    flat = (step.flat.numpy() + 0.02 * away).astype(np.float32)
    for each in (step, parted):
        each.write_grids(integer_latents(step))
        each.flat.write(flat)
    assert parted.judge(flat) == pytest.approx(step.judge(flat), rel=1e-5)
    with step.gradients(1e-3) as whole, parted.gradients(1e-3) as in_windows:
        expected = whole(flat)
        assert np.abs(in_windows(flat) - expected).max() < 1e-5 * np.abs(expected).max()
    assert_equal_up_to_rounding(parted.picture(), step.picture())


@pytest.mark.parametrize(  # which cover all pairs of values
    ("kind", "window", "extra", "lanes"),
    [
        (WindowStep, (128, 128), 0, "one"),
        (WindowStep, (80, 320), 2, "group"),
        (WindowedStep, (128, 128), 2, "group"),
        (WindowedStep, (80, 320), 0, "group"),
        (WindowedStep, (80, 320), 2, "one"),
    ],
)
def test_single_window_trains_like_the_whole_picture(
    kind: type[WindowStep], window: tuple[int, int], extra: int, lanes: Lanes
) -> None:
    pixels, device = patterned_picture(75, 101), open_device("numpy")
    device.lanes = lanes
    step = LatentStep(pixels, 0, device, replace(PRETRAINED_4, extra_grids=extra))
    parted = kind(pixels, 0, device, step.architecture, window=window)
    for each in (step, parted):
        each.steer(Control(1e-3, noise_scale=0.0))
        each.run(2)
        assert each.done == 2
    assert parted.figures() == pytest.approx(step.figures(), rel=1e-5)
    assert np.allclose(parted.flat.numpy(), step.flat.numpy(), atol=1e-5)
    for actual, expected in zip(parted.grids(), step.grids(), strict=True):
        assert np.allclose(actual, expected, atol=1e-4)
    flat = step.flat.numpy()
    parted.write_grids(step.grids())
    assert parted.judge(flat) == pytest.approx(step.judge(flat), rel=1e-5)
    with step.gradients(1e-3) as whole, parted.gradients(1e-3) as in_windows:
        expected = whole(flat)
        assert np.abs(in_windows(flat) - expected).max() < 1e-5 * np.abs(expected).max()
    assert parted.pace(1e-6) > 0
    for each in (step, parted):
        each.flat.write(flat)
    assert_equal_up_to_rounding(parted.picture(), step.picture())


@pytest.mark.parametrize("kind", [WindowStep, WindowedStep])
def test_constructing_a_window_step_reads_nothing_back(
    kind: type[WindowStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its masks are parts of an array on the device; copies would take another program."""
    monkeypatch.setattr(Tensor, "numpy", lambda _: pytest.fail("read"))
    kind(patterned_picture(40, 50), 0, open_device("numpy"), PRETRAINED_4, window=WINDOW)


def test_every_latent_belongs_to_exactly_one_window() -> None:
    step = WindowedStep(
        patterned_picture(130, 200), 0, open_device("numpy"), PRETRAINED_4, window=WINDOW
    )
    owners = [np.zeros(size, int) for size in step.shape.grid_sizes]
    for extent in step.windows:
        for part in extent.cut(owners):
            part += 1
    assert all((count == 1).all() for count in owners)
    assert sum(extent.pixels for extent in step.windows) == step.pixels


def test_network_learning_rate_falls_with_windows_and_run_length() -> None:
    none, few, more, many = (schedule.window_exponent(n) for n in (0, 20, 200, 300))
    assert none == few < more < many == schedule.window_exponent(3000)
    device, steered = open_device("numpy"), list[Control]()
    step = WindowedStep(patterned_picture(130, 200), 0, device, PRETRAINED_4, window=WINDOW)
    whole = LatentStep(patterned_picture(130, 200), 0, device, PRETRAINED_4)
    for each in (whole, step):
        each.steer = steered.append  # type: ignore[method-assign]
        LatentTrainer(each, LatentTrainerState(200, 1e-3))._steer()
    alone, slower = (each.network_lr for each in steered)
    assert slower == pytest.approx(alone / 12**more)
    assert steered[0].latent_beta1 == 0.8 > steered[1].latent_beta1


def test_update_interval_of_a_window_is_the_number_of_windows() -> None:
    """The interval is one if a window takes several steps before the next window's turn."""
    step = WindowedStep(
        patterned_picture(130, 200), 0, open_device("numpy"), PRETRAINED_4, window=WINDOW
    )
    for steps_at_once, update_interval in ((1, 12), (8, 1)):
        step.steps_at_once = steps_at_once
        step.steer(Control(1e-3))
        step._enter(step.windows[0])
        assert Steering(*step.control.numpy()).update_interval == update_interval


def test_noisy_gradients_of_windows_have_another_noise_in_every_call() -> None:
    """This holds although the judged windows are fewer than those that share a training step."""
    step = WindowedStep(
        patterned_picture(130, 200), 0, open_device("numpy"), PRETRAINED_4, window=WINDOW
    )
    step.steps_at_once = 1
    step._judged_windows = step.windows[:2]
    step.write_grids(integer_latents(step))
    flat = step.flat.numpy()
    with step.gradients(1e-3) as gradient_at:
        gradients = [gradient_at(flat, True).tobytes() for _ in range(4)]
        rounded = [gradient_at(flat).tobytes() for _ in range(2)]
    assert len(set(gradients)) == 4
    assert rounded[0] == rounded[1]


def test_pass_keeps_the_window_exponent_of_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the length of the pass nor a limit that ends it within its first step matters."""
    requests: list[int] = []
    step = WindowedStep(
        patterned_picture(70, 70), 0, open_device("numpy"), PRETRAINED_4, window=WINDOW
    )
    monkeypatch.setattr(
        latent_trainer, "window_exponent", lambda steps: requests.append(steps) or 0.5
    )
    trainer = LatentTrainer(step, LatentTrainerState(200, 1e-3))
    trainer._steer()
    trainer.begin_pass(1e-3, Search(step).run(1e-3, rounds=1))
    trainer.done = 200
    trainer._steer()
    trainer.state.steps = 200  # while no step of the pass is complete
    trainer._steer()
    assert requests == [200] * 3


def test_timing_a_step_changes_no_state() -> None:
    step = WindowedStep(
        patterned_picture(70, 70), 0, open_device("numpy"), PRETRAINED_4, window=WINDOW
    )
    before = step.state()
    step.steer(Control(1e-3))
    assert step.pace(1e-6) > 0
    for name, array in step.state().items():
        assert np.array_equal(array, before[name]), name


@pytest.mark.parametrize("lanes", ["one", "group"])
def test_window_programs_do_not_depend_on_picture_size(lanes: Lanes) -> None:
    """Nor does the memory that they take."""
    device, sizes = open_device("numpy"), ((65, 66), (300, 500))
    device.lanes = lanes
    steps = [
        WindowedStep(patterned_picture(*size), 0, device, PRETRAINED_4, window=WINDOW)
        for size in sizes
    ]
    steps.append(WindowStep(patterned_picture(40, 64), 0, device, PRETRAINED_4, window=WINDOW))
    for programs in zip(*map(latent_programs, steps), strict=True):
        assert len({program._identity[0] for program in programs}) == 1
    first, second, _ = ({n: t.shape for n, t in step._moving().items()} for step in steps)
    assert first == second


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 8x8 pixels, which need as few as four grids."""
    monkeypatch.setattr(architecture, "default_levels", lambda *_: 4)
    limits = buckets.CPU._replace(max_whole_pixels=0, window_size=(8, 8))
    monkeypatch.setattr(buckets, "CPU", limits)
    monkeypatch.setattr(windows, "JUDGED_PIXELS", 8 * 8)


SMALL = patterned_picture(10, 12)  # four windows of `small_windows`


def encode_small(run: Run | None = None, target: Goal | None = None) -> encoder.Encoded:
    goal = target or Goal("lambda", 3e-3)
    device = open_device("numpy")
    return encoder.encode(Picture(SMALL), goal, Workload(4), device, run, "latent")


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("target", [Goal("lambda", 3e-3), Goal("bytes", 200)])
def test_file_of_a_run_in_windows_decodes_to_its_pixels(
    target: Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "MAX_PASSES", 0)
    monkeypatch.setattr(rounding_search, "MAX_FILES", 2)
    encoded = encode_small(target=target)
    decoded = decoder.decode(container.parse(encoded.bytes), open_device("numpy"))
    assert np.array_equal(decoded, encoded.pixels)
    assert encoded.metrics["psnr"] == psnr(SMALL, decoded)


@pytest.mark.usefixtures("small_windows")
def test_run_interrupted_between_windows_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    turns = []
    for stop in (1, 5):
        saved = Checkpoint(tmp_path / "state", "key")
        with pytest.raises(Interrupted):
            encode_small(Run(None, stops_after(stop), checkpoint=saved))
        state = saved.load()
        assert state is not None
        turns.append((int(state.arrays["steps"]), int(state.arrays["turn"])))
    assert turns == [(0, 2), (2, 0)]  # the second stop is after all four windows of a step
    rest = encode_small(Run(checkpoint=Checkpoint(tmp_path / "state", "key")))
    assert rest.resumed > 0
    assert rest.bytes == encode_small().bytes


def test_time_limit_ends_a_step_between_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock advances with windows only, three times as far in the second step."""
    clock, begin = [0.0], WindowedStep._begin
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def begin_slowly(step: WindowedStep, *arguments: Any) -> None:
        begin(step, *arguments)
        clock[0] += 3.0 if step.done else 1.0

    monkeypatch.setattr(WindowedStep, "_begin", begin_slowly)
    step = WindowedStep(
        patterned_picture(66, 70), 0, open_device("numpy"), PRETRAINED_4, window=WINDOW
    )
    trainer = LatentTrainer(step, LatentTrainerState(10, 1e-3), None, 9.0)
    assert trainer.run() == "done"
    assert (step.done, step._visited, trainer.state.steps) == (1, 2, 1)
    assert clock[0] == 10.0


def test_samples_stay_on_the_device_if_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    step = WindowedStep(
        patterned_picture(70, 70), 0, open_device("numpy"), PRETRAINED_4, window=WINDOW
    )
    pixels, info = 70 * 70, step.device.info
    nbytes = 4 * 3 * step.plane.pixels * len(step.windows)

    def keeps(gpu: bool, kept: int, on_gpus: int, memory: float) -> bool:
        monkeypatch.setattr(windows, "is_gpu", lambda _: gpu)
        monkeypatch.setattr(windows, "MAX_RESIDENT_PIXELS", kept)
        monkeypatch.setattr(windows, "MAX_RESIDENT_PIXELS_ON_GPUS", on_gpus)
        monkeypatch.setattr(step.device, "info", replace(info, memory=int(memory)))
        return step._keeps_samples

    memory = nbytes / windows.MAX_RESIDENT_MEMORY_FRACTION
    assert keeps(False, pixels, 0, 0)
    assert not keeps(False, pixels - 1, pixels, memory)
    assert keeps(True, pixels, 0, 0)
    assert keeps(True, 0, pixels, memory)
    assert not keeps(True, 0, pixels - 1, memory)
    assert not keeps(True, 0, pixels, memory - 1)
