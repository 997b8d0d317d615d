"""Large pictures of the latent codec: trained window by window, from latents that were guessed."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import stops_after
from networks import latent_programs

from imgmlp.codec import decoder, encoder
from imgmlp.codec.bitstream import container
from imgmlp.codec.latent import encode as latent
from imgmlp.codec.latent import initial_latents, pretrained
from imgmlp.codec.latent.initial_latents import predict_latents
from imgmlp.codec.latent.model import ModelShape, default_levels
from imgmlp.codec.latent.step import architecture
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.control import Control, Steering
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import (
    buckets,
    cost_model,
    effort,
    forms,
    initialisation,
    latent_trainer,
    progressive_quantisation,
    rounding_search,
    run_plan,
    schedule,
    windows,
)
from imgmlp.codec.latent.training.bit_allocation import Search
from imgmlp.codec.latent.training.buckets import TrainingSetup
from imgmlp.codec.latent.training.forms import Forms
from imgmlp.codec.latent.training.initialisation import initialise, is_graphic, shrunk
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.lmbdas import Lambdas
from imgmlp.codec.latent.training.windows import WindowedStep, WindowStep
from imgmlp.codec.training import passes
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import AnyDevice, Tensor, memory_needed, open_device
from imgmlp.engine.ir.target import Lanes
from imgmlp.errors import Interrupted, OutOfMemoryError
from imgmlp.image import Picture, psnr

WINDOW = 64, 64
STARTED = Architecture(16, 12, pretrained=4)


def picture(height: int, width: int, channels: int = 3) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    shades = [x * 255 / width, y * 255 / height, 127 + 100 * np.sin(x * y / 40), x % 256]
    return np.stack(shades[:channels], -1).astype(np.uint8)


def whole_numbers(step: LatentStep) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [np.rint(2 * generator.standard_normal(size)) for size in step.shape.grid_sizes]


def assert_alike(found: np.ndarray, expected: np.ndarray) -> None:
    """But for the rounding of products of other shapes, which libraries add up in other orders."""
    apart = np.abs(found.astype(int) - expected)
    assert apart.max() <= 1
    assert np.mean(apart > 0) < 1e-3


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
def test_windows_are_judged_as_the_whole_picture_is(
    size: tuple[int, int], channels: int, has: dict[str, Any], lanes: Lanes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Where lanes of a GPU look up what doubling takes, by tables that differ in each window."""
    monkeypatch.setattr(architecture, "FILTERED_FROM_WIDTH", STARTED.synthesis_width)
    pixels, device = picture(*size, channels), open_device("numpy")
    device.lanes = lanes
    step = LatentStep(pixels, 0, device, replace(STARTED, **has))
    parted = WindowedStep(pixels, 0, device, replace(STARTED, **has), window=WINDOW)
    assert len(parted.windows) in (3, 4)
    assert step.shape.has_filter
    away = np.random.default_rng(1).standard_normal(step.flat.shape)
    flat = (step.flat.numpy() + 0.02 * away).astype(np.float32)
    for each in (step, parted):
        each.write_grids(whole_numbers(step))
        each.flat.write(flat)
    assert parted.judge(flat) == pytest.approx(step.judge(flat), rel=1e-5)
    expected = step.slopes(flat, 1e-3)
    assert np.abs(parted.slopes(flat, 1e-3) - expected).max() < 1e-5 * np.abs(expected).max()
    assert_alike(parted.picture(), step.picture())


@pytest.mark.parametrize(  # in which any two of them meet in every way
    ("kind", "window", "extra", "lanes"),
    [
        (WindowStep, (128, 128), 0, "one"),
        (WindowStep, (80, 320), 2, "group"),
        (WindowedStep, (128, 128), 2, "group"),
        (WindowedStep, (80, 320), 0, "group"),
        (WindowedStep, (80, 320), 2, "one"),
    ],
)
def test_one_window_is_trained_as_the_whole_picture_is(
    kind: type[WindowStep], window: tuple[int, int], extra: int, lanes: Lanes
) -> None:
    pixels, device = picture(75, 101), open_device("numpy")
    device.lanes = lanes
    step = LatentStep(pixels, 0, device, replace(STARTED, extra_grids=extra))
    parted = kind(pixels, 0, device, step.architecture, window=window)
    for each in (step, parted):
        each.steer(Control(1e-3, noise_scale=0.0))
        each.run(2)
        assert each.done == 2
    assert parted.figures() == pytest.approx(step.figures(), rel=1e-5)
    assert np.allclose(parted.flat.numpy(), step.flat.numpy(), atol=1e-5)
    for found, expected in zip(parted.grids(), step.grids(), strict=True):
        assert np.allclose(found, expected, atol=1e-4)
    flat = step.flat.numpy()
    parted.write_grids(step.grids())
    assert parted.judge(flat) == pytest.approx(step.judge(flat), rel=1e-5)
    expected = step.slopes(flat, 1e-3)
    assert np.abs(parted.slopes(flat, 1e-3) - expected).max() < 1e-5 * np.abs(expected).max()
    assert parted.pace(1e-6) > 0
    for each in (step, parted):
        each.flat.write(flat)
    assert_alike(parted.picture(), step.picture())


@pytest.mark.parametrize("kind", [WindowStep, WindowedStep])
def test_making_a_step_computes_nothing_and_reads_nothing_back(
    kind: type[WindowStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its masks are parts of an array on the device, which a program of their own would cut out."""
    monkeypatch.setattr(Tensor, "numpy", lambda _: pytest.fail("read"))
    kind(picture(40, 50), 0, open_device("numpy"), STARTED, window=WINDOW)


def test_every_latent_belongs_to_one_window() -> None:
    step = WindowedStep(picture(130, 200), 0, open_device("numpy"), STARTED, window=WINDOW)
    owners = [np.zeros(size, int) for size in step.shape.grid_sizes]
    for extent in step.windows:
        for part in extent.cut(owners):
            part += 1
    assert all((count == 1).all() for count in owners)
    assert sum(extent.pixels for extent in step.windows) == step.pixels


def test_where_little_time_is_wanted_sizes_need_no_program_of_their_own() -> None:
    info = SimpleNamespace(kind="cpu")
    device: Any = SimpleNamespace(info=info, lanes="one")

    def form(height: int, width: int, short: bool) -> tuple[bool, tuple[int, int] | None]:
        shape = height, width, 3
        setup = TrainingSetup(shape, device, short)
        return setup.uses_windows, setup.bucket

    assert all(form(*size, True)[0] for size in ((300, 200), (512, 768), (200, 900), (130, 131)))
    assert not any(form(*size, False)[0] for size in ((300, 200), (512, 768), (200, 900)))
    assert form(2000, 3000, False)[0]
    # what would hardly fill the usual ones
    assert all(form(*size, True)[0] for size in ((20, 1000), (100, 150), (9000, 60), (1, 129)))
    assert form(20, 1000, False) == (False, (32, 1024)) != form(31, 700, False)
    assert form(60_000, 60, False)[0]
    assert form(1, 200_000, False)[0]  # whose bucket would have 32 times as many pixels
    assert form(1, 50_000, False) == (False, (32, 50_048))
    assert form(20, 100, True) == form(128, 70, True) == (False, (128, 128))
    assert form(20, 100, False) == (False, (32, 128))
    assert form(32, 192, False) == (False, None)
    info.kind = "numpy"  # which compiles nothing
    assert form(512, 768, True) == (False, None)


def test_thin_pictures_have_windows_of_few_kinds_that_know_no_length() -> None:
    device: Any = SimpleNamespace(info=SimpleNamespace(kind="cpu"), lanes="one")

    def kind(height: int, width: int) -> tuple[int, int]:
        return TrainingSetup((height, width, 3), device).window_size

    assert kind(20, 200) == kind(60, 256) == kind(40, 700) == kind(60, 90_000) == (64, 256)
    assert kind(3, 400) == kind(30, 600) == kind(1, 10_000) == (32, 512)
    assert kind(100, 150) == kind(80, 400) == (128, 256)
    assert kind(200, 20) == (256, 64)
    assert kind(600, 30) == (512, 32)
    assert kind(150, 100) == (256, 128)
    assert kind(130, 131) == kind(90, 700) == kind(100, 70) == (256, 256)
    assert kind(512, 768) == kind(257, 513) == (512, 768) == kind(768, 512)[::-1]
    assert kind(512, 512) == kind(512, 769) == kind(256, 768) == kind(513, 700) == (256, 256)
    sides = [*range(1, 40), *range(40, 300, 13), *range(300, 3000, 171)]
    for height, width in product(sides, sides):
        window = kind(height, width)
        if max(window) == 768:  # one instead of six
            assert sorted([-(-height // 256), -(-width // 256)]) == [2, 3]
            assert (window[0] > window[1]) == (height > width)
        elif window != (256, 256):
            assert min(height, width) <= min(window)  # so that they stand in a row
            longer, length = max(height, width), max(window)
            assert math.prod(window) * -(-longer // length) < 128 * (longer + 256)


def test_few_programs_serve_pictures_of_all_sizes() -> None:
    device: Any = SimpleNamespace(info=SimpleNamespace(kind="cpu"), lanes="one")
    sides = [*range(1, 34), *range(40, 600, 31), *range(600, 3001, 97), 3000]

    def programs(most: int, *lengths: bool) -> set[str]:
        return {
            TrainingSetup(shape, device, short).step_program(forms.widths(shape, np.inf, short))
            for shape in product(sides, sides, (3,))
            for short in lengths
            if max(shape) <= most
        }

    assert len(programs(128, True, False)) == 3
    assert len(programs(300, True, False)) == 3 + 1 + 6
    # large pictures have more grids; and larger networks, if their runs are long
    assert len(programs(3000, True)) == 3 + 1 + 6 + 2 + 2
    assert len(programs(3000, True, False)) == 3 + 1 + 6 + 2 + 2 + 3 + 4 + 2


def test_from_the_only_window_runs_go_over_for_what_that_spares_alone() -> None:
    device: Any = SimpleNamespace(info=SimpleNamespace(kind="cpu"), lanes="one")

    def over(height: int, width: int, steps: int) -> bool:
        shape = height, width, 3
        each = forms.operations_of(shape)
        setup = TrainingSetup(shape, device)
        opening = setup.opening_steps(each)
        assert opening > 0
        return setup.switches_program(steps, opening, each)

    assert not over(512, 768, 2000)  # where only a halo is spared
    assert over(512, 768, 20_000)
    assert over(300, 520, 2000)  # which fills half of it
    assert over(300, 300, 2000)  # and in many windows
    assert over(700, 700, 2000)
    assert not over(300, 300, 300)


def test_networks_harden_by_the_parts_that_a_run_stays_in() -> None:
    told = dict.fromkeys(("platform", "name", "driver", "version", "compiled_for"), "")
    info = SimpleNamespace(kind="cpu", compute_units=2, **told)
    device: Any = SimpleNamespace(info=info, lanes="one", compiling=0.0, lowering=0.0)
    picture = Picture(np.zeros((300, 300, 3), np.uint8))
    found = run_plan.RunPlan(picture, Goal("lambda", 1e-3), latent.workload(2, None), device, Run())
    assert not found.setup.is_short
    found.costs.is_opening = True
    few, many = 600, 6000
    assert not found.costs.switches_program(few)
    assert found.costs.switches_program(many)
    assert found.costs.quantisation_steps(few) == round(effort.QUANTISATION_FRACTION * few)
    assert found.costs.quantisation_steps(many) == effort.MAX_QUANTISATION_STEPS
    found.costs.is_opening = False  # as it has gone over
    assert found.costs.quantisation_steps(few) == round(
        effort.WHOLE_PICTURE_FACTOR * effort.QUANTISATION_FRACTION * few
    )


def test_runs_of_few_steps_are_short_whoever_asks_for_them() -> None:
    device: Any = SimpleNamespace(info=SimpleNamespace(kind="cpu", compute_units=2), lanes="one")

    def short(workload: Workload, height: int = 512, width: int = 768) -> bool:
        return effort.is_short((height, width, 3), workload, device)

    assert short(latent.workload(1, None))
    assert not short(latent.workload(2, None))
    assert short(latent.workload(None, None))
    assert not short(latent.workload(None, None), 64, 64)
    assert short(latent.workload(4, None), 100, 40)  # where other sizes compute little more
    assert not short(latent.workload(4, None), 20, 900)  # which has windows
    assert not short(latent.workload(7, None), 100, 40)
    assert short(latent.workload(9, None), 100, 70)  # where other sizes compute nothing more
    assert not short(latent.workload(9, None), 20, 999)
    assert short(latent.workload(1, None), 20, 999)
    assert short(latent.workload(5, None), 64, 20)
    assert not short(latent.workload(4, None), 256, 256)
    assert short(latent.workload(None, 30.0))
    assert not short(latent.workload(None, 300.0))
    device.info.compute_units = 200  # which take many in that time
    assert short(latent.workload(1, None))
    assert not short(latent.workload(None, 30.0))


def test_networks_move_less_with_each_of_many_windows_the_longer_a_run_is() -> None:
    none, few, more, many = (schedule.window_exponent(n) for n in (0, 20, 200, 300))
    assert none == few < more < many == schedule.window_exponent(3000)
    device, steered = open_device("numpy"), list[Control]()
    step = WindowedStep(picture(130, 200), 0, device, STARTED, window=WINDOW)
    whole = LatentStep(picture(130, 200), 0, device, STARTED)
    for each in (whole, step):
        each.steer = steered.append  # type: ignore[method-assign]
        LatentTrainer(each, LatentTrainerState(200, 1e-3))._steer()
    alone, slower = (each.network_lr for each in steered)
    assert slower == pytest.approx(alone / 12**more)
    assert steered[0].latent_beta1 == 0.8 > steered[1].latent_beta1


def test_steps_of_a_window_are_as_many_of_the_program_apart_as_there_are_windows() -> None:
    """Or one, where a window takes some of them before the next one's turn."""
    step = WindowedStep(picture(130, 200), 0, open_device("numpy"), STARTED, window=WINDOW)
    for together, apart in ((1, 12), (8, 1)):
        step.steps_at_once = together
        step.steer(Control(1e-3))
        step._enter(step.windows[0])
        assert Steering(*step.control.numpy()).update_interval == apart


def test_another_pass_shares_as_the_first_one_did(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its own length is; and a run that its limit ended before a step was whole."""
    asked: list[int] = []
    step = WindowedStep(picture(70, 70), 0, open_device("numpy"), STARTED, window=WINDOW)
    monkeypatch.setattr(latent_trainer, "window_exponent", lambda steps: asked.append(steps) or 0.5)
    trainer = LatentTrainer(step, LatentTrainerState(200, 1e-3))
    trainer._steer()
    trainer.begin_pass(1e-3, Search(step).run(1e-3, rounds=1))
    trainer.done = 200
    trainer._steer()
    trainer.state.steps = 200  # as long as no step of the pass is whole
    trainer._steer()
    assert asked == [200] * 3


def test_weights_that_harden_move_less_with_each_of_many_windows() -> None:
    rates: list[float] = []
    for count in (1, 8):
        step: Any = SimpleNamespace(
            windows=[0] * count, together=1, run=lambda *_: True,
            steer=lambda control: rates.append(control.network_lr),
        )  # fmt: skip
        progressive_quantisation._learn(step, 1e-3, 1, lambda: False)
    assert rates == pytest.approx(
        [progressive_quantisation.LEARNING_RATE, progressive_quantisation.LEARNING_RATE / 2]
    )


def test_a_trial_of_the_pace_moves_nothing() -> None:
    step = WindowedStep(picture(70, 70), 0, open_device("numpy"), STARTED, window=WINDOW)
    before = step.state()
    step.steer(Control(1e-3))
    assert step.pace(1e-6) > 0
    for name, array in step.state().items():
        assert np.array_equal(array, before[name]), name


@pytest.mark.parametrize("lanes", ["one", "group"])
def test_the_program_of_a_window_does_not_depend_on_the_pictures_size(lanes: Lanes) -> None:
    """And so neither does the memory that it takes."""
    device, sizes = open_device("numpy"), ((65, 66), (300, 500))
    device.lanes = lanes
    steps = [WindowedStep(picture(*size), 0, device, STARTED, window=WINDOW) for size in sizes]
    steps.append(WindowStep(picture(40, 64), 0, device, STARTED, window=WINDOW))
    for programs in zip(*map(latent_programs, steps), strict=True):
        assert len({program._identity[0] for program in programs}) == 1
    first, second, _ = ({n: t.shape for n, t in step._moving().items()} for step in steps)
    assert first == second


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """And few grids, with which a window may be as small."""
    monkeypatch.setattr(architecture, "default_levels", lambda *_: 4)
    limits = buckets.CPU._replace(max_whole_pixels=0, window_size=(8, 8))
    monkeypatch.setattr(buckets, "CPU", limits)
    monkeypatch.setattr(windows, "JUDGED_PIXELS", 8 * 8)


SMALL = picture(10, 12)  # four windows of those


def encoded(run: Run | None = None, target: Goal | None = None) -> encoder.Encoded:
    wanted = target or Goal("lambda", 3e-3)
    device = open_device("numpy")
    return encoder.encode(Picture(SMALL), wanted, Workload(4), device, run, "latent")


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("target", [Goal("lambda", 3e-3), Goal("bytes", 200)])
def test_what_windows_made_is_in_a_sound_file(
    target: Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "MAX_PASSES", 0)
    monkeypatch.setattr(rounding_search, "MAX_FILES", 2)
    found = encoded(target=target)
    decoded = decoder.decode(container.parse(found.bytes), open_device("numpy"))
    assert np.array_equal(decoded, found.pixels)
    assert found.metrics["psnr"] == psnr(SMALL, decoded)


@pytest.mark.usefixtures("small_windows")
def test_a_run_in_windows_that_stopped_gives_the_bytes_of_one_that_was_not(tmp_path: Path) -> None:
    turns = []
    for stop in (1, 5):
        kept = Checkpoint(tmp_path / "state", "key")
        with pytest.raises(Interrupted):
            encoded(Run(None, stops_after(stop), checkpoint=kept))
        state = kept.load()
        assert state is not None
        turns.append((int(state.arrays["steps"]), int(state.arrays["turn"])))
    assert turns == [(0, 2), (2, 0)]  # the second after all of a step's four windows
    rest = encoded(Run(checkpoint=Checkpoint(tmp_path / "state", "key")))
    assert rest.resumed > 0
    assert rest.bytes == encoded().bytes


def test_a_step_that_takes_more_than_the_time_left_ends_between_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a clock that only windows move, in the second step three times as far."""
    clock, begin = [0.0], WindowedStep._begin
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def slowly(step: WindowedStep, *made: Any) -> None:
        begin(step, *made)
        clock[0] += 3.0 if step.done else 1.0

    monkeypatch.setattr(WindowedStep, "_begin", slowly)
    step = WindowedStep(picture(66, 70), 0, open_device("numpy"), STARTED, window=WINDOW)
    trainer = LatentTrainer(step, LatentTrainerState(10, 1e-3), None, 9.0)
    assert trainer.run() == "done"
    assert (step.done, step._visited, trainer.state.steps) == (1, 2, 1)
    assert clock[0] == 10.0


@pytest.mark.parametrize("start", sorted(initial_latents.PREDICTORS))
def test_a_guess_is_something_like_the_picture(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    y, x = np.mgrid[:90, :120]
    shade = 120 + 60 * np.sin(x / 15) * np.cos(y / 9)
    pixels = np.stack([shade, shade + 8, shade - 12], -1).astype(np.uint8)
    hidden, entropy = pretrained.hidden_widths(start)
    step = LatentStep(pixels, 0, open_device("numpy"), Architecture(hidden, entropy, start))
    nothing, _ = step.judge(step.flat.numpy())
    found = predict_latents(pixels, step.shape, start)
    assert found is not None
    step.write_grids(found)
    error, _ = step.judge(step.flat.numpy())
    assert error < min(nothing / 2, initialisation.MAX_ERROR)
    monkeypatch.setattr(initial_latents, "PIXELS_PER_BAND", 1)
    again = predict_latents(pixels, step.shape, start)
    assert again is not None
    for once, twice in zip(found, again, strict=True):
        assert np.allclose(once, twice, atol=1e-4)


def test_a_guess_is_nearer_to_zero_the_dearer_bits_are() -> None:
    grids = [np.float32([[-2.0, -0.3, 0.0, 0.3, 5.0]])] * 3
    cases = (3e-4, 300, 0), (6e-4, 200, 1 / 8), (1.2e-3, 30_000, 0.5), (0, 9, 0)
    for lmbda, steps, less in cases:
        finest, *others = shrunk(grids, lmbda, steps)
        for found, by in ((finest, 3 * less), *((other, less) for other in others)):
            assert found.dtype == np.float32
            wanted = [by - 2, min(by - 0.3, 0), 0, max(0.3 - by, 0), 5 - by]
            assert np.allclose(found, [wanted], atol=1e-6)
        assert len(others) == 2


@pytest.mark.parametrize(
    ("size", "steps", "error", "begins"),
    [
        ((20, 30), 3, 0.9, True),
        ((20, 30), 300, 0.9, False),  # as of text
        ((320, 320), 40_000, 0.01, True),
    ],
)
def test_runs_of_any_length_begin_from_a_guess_that_is_like_the_picture(
    size: tuple[int, int], steps: int, error: float, begins: bool
) -> None:
    pixels = picture(*size)
    hidden = forms.widths(pixels.shape, np.inf)
    start = pretrained.newest_pretrained(hidden)
    shape = ModelShape(*pixels.shape, default_levels(*size), *hidden)
    grids = [np.zeros(size, np.float32) for size in shape.grid_sizes]
    judged: list[np.ndarray] = []

    def ask(_flat: np.ndarray, part: str) -> None:
        assert part == "error"
        judged[:] = step.grids()

    begun = SimpleNamespace(number=start)
    step = SimpleNamespace(shape=shape, pretrained=begun, ask=ask, is_mostly_visible=True)
    step.answer = lambda: error
    step.flat, step.grids = SimpleNamespace(numpy=lambda: np.zeros(1)), lambda: list(grids)
    step.write_grids = lambda found: grids.__setitem__(slice(None), found)
    initialise(step, pixels, 1e-3, steps)  # type: ignore[arg-type]
    found = predict_latents(pixels, shape, start)
    assert found is not None
    assert bool(judged) is (steps >= schedule.VERY_SHORT_RUN)  # where that decides
    assert all(map(np.array_equal, judged, found))
    wanted = shrunk(found, 1e-3, steps) if begins else [np.zeros_like(grid) for grid in found]
    assert all(map(np.array_equal, grids, wanted))


@pytest.mark.parametrize(("colours", "channels", "wanted"), [
    (2, 1, True), (4, 3, True), (5, 3, False), (2, 2, False), (4, 4, False),
])  # fmt: skip
def test_pictures_of_few_colours_are_no_photos(colours: int, channels: int, wanted: bool) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (colours, channels), np.uint8)
    y, x = np.mgrid[:9, :20]
    assert is_graphic(levels[(x + 3 * y) % colours], schedule.VERY_SHORT_RUN) is wanted
    assert not is_graphic(levels[(x + 3 * y) % colours], schedule.VERY_SHORT_RUN - 1)
    assert not is_graphic(picture(9, 20), 999)


def test_those_begin_from_nothing_unless_in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a guess would be like the picture."""
    monkeypatch.setattr(initialisation, "MAX_ERROR", 1.0)
    pixels = np.repeat((picture(24, 31)[:, :, :1] > 99) * np.uint8(255), 3, 2)
    numpy = open_device("numpy")
    for steps, nothing in ((schedule.VERY_SHORT_RUN, True), (schedule.VERY_SHORT_RUN - 1, False)):
        step = Forms(pixels, TrainingSetup(pixels.shape, numpy, is_short=True), np.inf).first(None)
        initialise(step, pixels, 1e-3, steps)
        assert all(not grid.any() for grid in step.grids()) is nothing


def test_their_lambda_falls_to_the_one_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first half of a run whose lambda stays, and in no pass after it."""
    steered: list[tuple[int, float]] = []
    steer = LatentStep.steer

    def noted(self: LatentStep, control: Control) -> None:
        steered.append((self.done, control.lmbda))
        steer(self, control)

    monkeypatch.setattr(LatentStep, "steer", noted)
    pixels = np.repeat((picture(12, 13)[:, :, :1] > 99) * np.uint8(255), 3, 2)
    encoder.encode(Picture(pixels), Goal("lambda", 1e-3), Workload(60), open_device("numpy"))
    first = next(n for n, (done, _) in enumerate(steered) if done and done < 10)
    run = steered[first:]
    assert 5e-3 < run[0][1] < latent_trainer.GRAPHIC_LMBDA_FACTOR * 1e-3
    before = [lmbda for done, lmbda in run if done < 30]
    assert all(a > b for a, b in pairwise(before[: before.index(min(before)) + 1]))
    assert {lmbda for done, lmbda in run if done >= 30} == {1e-3}
    steered.clear()
    monkeypatch.setattr(passes, "MAX_PASSES", 0)
    wanted = Goal("bytes", 300)
    encoder.encode(Picture(pixels), wanted, Workload(60), open_device("numpy"))
    earliest = next(lmbda for done, lmbda in steered if done)
    assert earliest == Lambdas(Picture(pixels), wanted).initial()


def test_nothing_is_guessed_where_nobody_knows() -> None:
    assert predict_latents(picture(9, 9), ModelShape(9, 9, 3, 4), 2) is None


@pytest.mark.parametrize("colours", [1, 3])
def test_gray_is_guessed_as_three_of_the_same_and_alpha_does_not_count(colours: int) -> None:
    pixels = picture(9, 13, colours)
    alpha = np.arange(1, 9 * 13 + 1, dtype=np.uint8).reshape(9, 13, 1)
    wanted = predict_latents(np.repeat(pixels, 3 // colours, 2), ModelShape(9, 13, 3, 5), 4)
    assert wanted is not None
    for given in (pixels, np.concatenate([pixels, alpha], 2)):
        found = predict_latents(given, ModelShape(*given.shape, 5), 4)
        assert found is not None
        for one, other in zip(found, wanted, strict=True):
            assert np.abs(other).max() > 0.1
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_small_pictures_have_more_steps_where_these_are_few() -> None:
    assert effort.steps_for_pixels(300, 256 * 256) == 300
    assert effort.steps_for_pixels(300, 128 * 128) == effort.steps_for_pixels(300, 9) == 600
    assert effort.steps_for_pixels(100_000, 128 * 128) < 101_000
    steps = [effort.steps_for_pixels(300, n * 2**10) for n in range(1, 80)]
    assert all(a >= b for a, b in pairwise(steps))


def test_larger_pictures_have_fewer_steps_but_never_too_few() -> None:
    assert effort.steps_for_pixels(300, 768 * 512) == 300
    assert effort.steps_for_pixels(300, 10_000_000) < 15
    steps = [effort.steps_for_pixels(300, n * 2**20) for n in range(1, 60)]
    assert all(a >= b for a, b in pairwise(steps))
    assert steps[-1] == 9


def test_short_runs_in_many_windows_have_fewer_steps() -> None:
    """Of effort 1 on processors, on which no other run has them, unless their steps are quick."""
    device = open_device("numpy")
    device.info = replace(device.info, kind="cpu")  # which compiles

    def trained(height: int, width: int, short: bool = True) -> int:
        return effort.steps_for_setup(300, TrainingSetup((height, width, 3), device, short))

    assert trained(512, 768) == trained(768, 512) == 300
    assert trained(256, 256) == trained(512, 768, short=False) == 300
    assert 196 < trained(300, 300) < trained(256, 290) < 300
    assert trained(40, 700) == trained(40, 700, short=False) == effort.steps_for_pixels(300, 28_000)


def test_samples_stay_on_a_device_that_has_room_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    step = WindowedStep(picture(70, 70), 0, open_device("numpy"), STARTED, window=WINDOW)
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


def test_short_runs_on_graphics_cards_have_coarse_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buckets, "is_gpu", lambda _: True)
    monkeypatch.setattr(effort, "is_gpu", lambda _: True)
    card: Any = SimpleNamespace(info=SimpleNamespace(kind="gpu"), lanes="group")

    def both(height: int, width: int) -> tuple[Any, Any]:
        return tuple(
            TrainingSetup((height, width, 3), card, short).bucket for short in (True, False)
        )

    assert both(500, 700) == ((512, 768), (512, 704))
    assert both(700, 500) == ((768, 512), (704, 512))
    assert both(512, 768) == ((512, 768), (512, 768))
    assert both(100, 60) == ((128, 128), (128, 64))
    assert both(300, 200)[0] == (384, 256)
    assert both(130, 3000) == ((192, 3008), (192, 3008))  # which fills too little of others
    assert both(3100, 4096)[0] == (3136, 4096)  # the largest is too small
    kinds = {both(*size)[0] for size in product(range(150, 1025, 25), range(150, 1537, 25))}
    filled = {
        sides
        for sides in kinds
        if sides in buckets.COARSE_BUCKETS or sides[::-1] in buckets.COARSE_BUCKETS
    }
    assert len(filled) < 12

    def short(height: int, width: int, steps: int, seconds: float | None = None) -> bool:
        return effort.is_short((height, width, 3), Workload(steps, seconds), card)

    assert short(500, 700, 300)
    assert short(500, 700, 10_000)  # a tenth of the pixels more
    assert not short(500, 700, 40_000)
    assert short(520, 780, 1000)
    assert not short(520, 780, 3000)  # more than twice as many
    assert short(512, 768, 100_000)  # which is the same either way
    assert not short(500, 700, 0)
    assert not short(500, 700, 0, 30.0)
    assert short(1900, 2900, 0)
    assert not short(1600, 2100, 0, 60.0)


@pytest.mark.parametrize(
    ("extra", "short", "whole", "parted"),
    [
        (0, True, (3000, 4000), (3600, 3600)),
        (0, False, (3580, 3580), (3600, 3600)),
        (1, True, (2000, 3000), (2100, 3000)),  # whose coarse bucket is twice as large
        (1, False, (3100, 3100), (3140, 3140)),
        (2, False, (2800, 2800), (2900, 2900)),
        (3, True, (2000, 3000), (2100, 2100)),
    ],
)
def test_on_graphics_cards_pictures_whose_bucket_is_too_large_are_in_windows(
    extra: int, short: bool, whole: tuple[int, int], parted: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of less pixels with extra grids, which take memory; what is told goes by that too."""
    for module in (buckets, effort, run_plan):
        monkeypatch.setattr(module, "is_gpu", lambda _: True)
    for module in (cost_model, run_plan):
        monkeypatch.setattr(module, "is_short", lambda *_: short)
    for module in (cost_model, run_plan):
        monkeypatch.setattr(module, "hyperlatents_and_extra_grids", lambda *_: (False, extra))
    numpy = open_device("numpy")
    card: Any = SimpleNamespace(
        info=replace(numpy.info, kind="gpu"), lanes="group", compiling=0.0, lowering=0.0
    )
    for size, parts in (whole, False), (parted, True):
        picture = Picture(np.broadcast_to(np.uint8(0), (*size, 3)))
        made = picture, Goal("lambda", 1e-3), Workload(30_000), card
        most = forms.Forms(picture.pixels, TrainingSetup((*size, 3), card, short, extra), math.inf)
        assert (forms.WHOLE not in most._all()) is parts
        found = run_plan.RunPlan(*made, Run())
        assert (found.costs.windows(300) > 1) is parts
        trained = effort.steps_for_setup(30_000, found.setup)
        assert (trained < effort.steps_for_pixels(30_000, found.pixels)) is (parts and short)
        told = cost_model.estimate_work(*made)
        assert told.kind == "latent step" + ", in windows" * parts
        assert ("windows of 512x512" in told.programs[0]) is parts
        own = math.prod(TrainingSetup((*size, 3), card, short).bucket or size)
        each = told.operations / (told.steps * effort.operations_of((*size, 3), extra_grids=extra))
        computed = TrainingSetup((*size, 3), card).window_pixels if parts else own
        assert 1 < each / computed < 1.2


@pytest.mark.parametrize("size", [(500, 500), (700, 3000)])
def test_memory_is_planned_for_the_windows_that_a_device_has(size: tuple[int, int]) -> None:
    """By a dry run, which is a NumPy device that says that it is another one."""
    card = open_device("numpy")
    card.info, card.lanes = replace(card.info, kind="gpu"), "group"
    planned: list[tuple[int, int]] = []

    def build(device: AnyDevice) -> None:
        planned.append(TrainingSetup((*size, 3), device).window_size)

    memory_needed(build, card)
    assert planned == [TrainingSetup((*size, 3), card).window_size] == [buckets.GPU.window_size]


@pytest.mark.parametrize(
    ("size", "has"), [((512, 768), True), ((512, 768), False), ((60, 90), True)]
)
def test_advice_on_memory_knows_of_hyperlatents_where_a_picture_has_them(
    size: tuple[int, int], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smaller pictures that would fit may be too small for any."""
    asked: list[bool] = []

    def explained(
        error: OutOfMemoryError, _what: str, device: AnyDevice, build: Any, _: Any
    ) -> Any:
        build(device)
        return error

    monkeypatch.setattr(forms, "explain", explained)
    for kind in ("LatentStep", "WindowedStep"):
        monkeypatch.setattr(forms, kind, lambda *told: asked.append(told[3].has_hyperlatents))
    setup, error = (
        TrainingSetup((*size, 3), open_device("numpy")),
        OutOfMemoryError("full", hint="less"),
    )
    assert forms.too_large(setup, has, error) is error
    assert asked == [has and size == (512, 768)]


@pytest.mark.parametrize(
    ("size", "bucket", "noted"),
    [((480, 700), (512, 768), 512 * 768), ((512, 512), None, 512 * 512), ((20, 20), (32, 32), 0)],
)
def test_a_graphics_card_tells_how_fast_it_is_by_pictures_that_are_large_enough(
    size: tuple[int, int], bucket: buckets.Bucket, noted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And by the pixels that its step computes; in windows it is another speed."""
    found, device = list[tuple[str, float]](), open_device("numpy")
    picture = Picture(np.zeros((*size, 3), np.uint8))
    made = run_plan.RunPlan(picture, Goal("lambda", 1e-3), Workload(300), device, Run())
    times: Any = SimpleNamespace(record_speed=lambda *told: found.append(told))
    monkeypatch.setattr(made, "_compile_times", times)
    step: Any = SimpleNamespace(bucket=bucket, windows=[0])
    made.costs.step_seconds = 1e-3
    made._note_speed(step)
    assert found == []  # of a processor
    monkeypatch.setattr(run_plan, "is_gpu", lambda _: True)
    each = effort.operations_of((*size, 3))
    made._note_speed(step)
    assert found == [("latent step", noted * each / 1e-3)] * bool(noted)
    step.windows, step.bucket = [0] * 6, (512, 512)
    made._note_speed(step)
    assert found[-1] == ("latent step, in windows", 6 * 512 * 512 * each / 1e-3)


def test_a_short_run_does_not_keep_its_state_after_every_step() -> None:
    step = LatentStep(picture(16, 16), 0, open_device("numpy"), STARTED)
    apart = {
        n: LatentTrainer(step, LatentTrainerState(n, 1e-3))._snapshot_interval for n in (3, 9, 300)
    }
    assert apart == {3: 4, 9: 4, 300: 30}


def test_a_picture_begins_from_a_start_for_what_bits_cost_unless_it_is_tiny() -> None:
    device = open_device("numpy")

    def start(side: int, lmbda: float) -> int:
        pixels = np.zeros((side, side, 3), np.uint8)
        setup = TrainingSetup(pixels.shape, device, is_short=True)
        return forms.Forms(pixels, setup, np.inf, lmbda=lmbda).first().pretrained.number

    assert [start(64, lmbda) for lmbda in (1e-3, 4.1e-5, 4e-5, 1e-7)] == [4, 4, 9, 9]
    assert start(70, 1e-5) == 7
    assert start(63, 1e-5) == 4
    assert pretrained.newest_pretrained(forms.LARGE_WIDTHS, 1e-5) == 8
    assert pretrained.newest_pretrained((8, 8), 1e-5) == 0
