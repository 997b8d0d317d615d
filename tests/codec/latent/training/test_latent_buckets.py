"""Buckets and windows: which shapes share a program."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imgmlp.codec.latent.training import buckets, cost_model, effort, forms, run_plan
from imgmlp.codec.latent.training.buckets import TrainingSetup
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import AnyDevice, memory_needed, open_device
from imgmlp.image import Picture


def test_short_runs_use_windows_or_shared_buckets() -> None:
    info = SimpleNamespace(kind="cpu")
    device: Any = SimpleNamespace(info=info, lanes="one")

    def form(height: int, width: int, short: bool) -> tuple[bool, tuple[int, int] | None]:
        shape = height, width, 3
        setup = TrainingSetup(shape, device, short)
        return setup.uses_windows, setup.bucket

    assert all(form(*size, True)[0] for size in ((300, 200), (512, 768), (200, 900), (130, 131)))
    assert not any(form(*size, False)[0] for size in ((300, 200), (512, 768), (200, 900)))
    assert form(2000, 3000, False)[0]
    # pictures that would hardly fill the usual windows
    assert all(form(*size, True)[0] for size in ((20, 1000), (100, 150), (9000, 60), (1, 129)))
    assert form(20, 1000, False) == (False, (32, 1024)) != form(31, 700, False)
    assert form(60_000, 60, False)[0]
    assert form(1, 200_000, False)[0]  # its bucket would have 32 times as many pixels
    assert form(1, 50_000, False) == (False, (32, 50_048))
    assert form(20, 100, True) == form(128, 70, True) == (False, (128, 128))
    assert form(20, 100, False) == (False, (32, 128))
    assert form(32, 192, False) == (False, None)
    info.kind = "numpy"  # NumPy compiles nothing
    assert form(512, 768, True) == (False, None)


def test_thin_pictures_share_few_window_sizes() -> None:
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
        if max(window) == 768:  # one window instead of six
            assert sorted([-(-height // 256), -(-width // 256)]) == [2, 3]
            assert (window[0] > window[1]) == (height > width)
        elif window != (256, 256):
            assert min(height, width) <= min(window)  # so that the windows form a row
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
    # large pictures have more grids, and larger networks in long runs
    assert len(programs(3000, True)) == 3 + 1 + 6 + 2 + 2
    assert len(programs(3000, True, False)) == 3 + 1 + 6 + 2 + 2 + 3 + 4 + 2


def test_run_leaves_its_window_program_only_if_that_saves_enough() -> None:
    device: Any = SimpleNamespace(info=SimpleNamespace(kind="cpu"), lanes="one")

    def over(height: int, width: int, steps: int) -> bool:
        shape = height, width, 3
        each = forms.operations_of(shape)
        setup = TrainingSetup(shape, device)
        opening = setup.opening_steps(each)
        assert opening > 0
        return setup.switches_program(steps, opening, each)

    assert not over(512, 768, 2000)  # only a halo would be saved
    assert over(512, 768, 20_000)
    assert over(300, 520, 2000)  # it fills half of the window
    assert over(300, 300, 2000)  # it takes many windows
    assert over(700, 700, 2000)
    assert not over(300, 300, 300)


def test_short_runs_on_gpus_use_coarse_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buckets, "is_gpu", lambda _: True)
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
    assert both(130, 3000) == ((192, 3008), (192, 3008))  # it fills too little of coarse buckets
    assert both(3100, 4096)[0] == (3136, 4096)  # the largest coarse bucket is too small
    kinds = {both(*size)[0] for size in product(range(150, 1025, 25), range(150, 1537, 25))}
    filled = {
        sides
        for sides in kinds
        if sides in buckets.COARSE_BUCKETS or sides[::-1] in buckets.COARSE_BUCKETS
    }
    assert len(filled) < 12


def test_runs_on_gpus_are_short_unless_steps_outweigh_the_larger_bucket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (buckets, effort):
        monkeypatch.setattr(module, "is_gpu", lambda _: True)
    card: Any = SimpleNamespace(info=SimpleNamespace(kind="gpu"), lanes="group")

    def short(height: int, width: int, steps: int, seconds: float | None = None) -> bool:
        return effort.is_short((height, width, 3), Workload(steps, seconds), card)

    assert short(500, 700, 300)
    assert short(500, 700, 10_000)  # the shared bucket has only a tenth more pixels
    assert not short(500, 700, 40_000)
    assert short(520, 780, 1000)
    assert not short(520, 780, 3000)  # more than twice as many pixels
    assert short(512, 768, 100_000)  # both buckets are the same
    assert not short(500, 700, 0)
    assert not short(500, 700, 0, 30.0)
    assert short(1900, 2900, 0)
    assert not short(1600, 2100, 0, 60.0)


@pytest.mark.parametrize(
    ("extra", "short", "whole", "windowed"),
    [
        (0, True, (3000, 4000), (3600, 3600)),
        (0, False, (3580, 3580), (3600, 3600)),
        (1, True, (2000, 3000), (2100, 3000)),  # its coarse bucket is twice as large
        (1, False, (3100, 3100), (3140, 3140)),
        (2, False, (2800, 2800), (2900, 2900)),
        (3, True, (2000, 3000), (2100, 2100)),
    ],
)
def test_gpus_use_windows_if_the_bucket_is_too_large(
    extra: int, short: bool, whole: tuple[int, int], windowed: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Extra grids take memory and lower the limit; the estimate of work follows it."""
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
    for size, parts in (whole, False), (windowed, True):
        picture = Picture(np.broadcast_to(np.uint8(0), (*size, 3)))
        arguments = picture, Goal("lambda", 1e-3), Workload(30_000), card
        most = forms.Forms(picture.pixels, TrainingSetup((*size, 3), card, short, extra), math.inf)
        assert (forms.WHOLE not in most._all()) is parts
        plan = run_plan.RunPlan(*arguments, Run())
        assert (plan.costs.windows(300) > 1) is parts
        trained = effort.steps_for_setup(30_000, plan.setup)
        assert (trained < effort.steps_for_pixels(30_000, plan.pixels)) is (parts and short)
        estimate = cost_model.estimate_work(*arguments)
        assert estimate.kind == "latent step" + ", in windows" * parts
        assert ("windows of 512x512" in estimate.programs[0]) is parts
        own = math.prod(TrainingSetup((*size, 3), card, short).bucket or size)
        each = estimate.operations / (
            estimate.steps * effort.operations_of((*size, 3), extra_grids=extra)
        )
        computed = TrainingSetup((*size, 3), card).window_pixels if parts else own
        assert 1 < each / computed < 1.2


@pytest.mark.parametrize("size", [(500, 500), (700, 3000)])
def test_memory_plan_uses_the_window_size_of_the_device(size: tuple[int, int]) -> None:
    """A dry run is a NumPy device that claims to be another one."""
    card = open_device("numpy")
    card.info, card.lanes = replace(card.info, kind="gpu"), "group"
    planned: list[tuple[int, int]] = []

    def build(device: AnyDevice) -> None:
        planned.append(TrainingSetup((*size, 3), device).window_size)

    memory_needed(build, card)
    assert planned == [TrainingSetup((*size, 3), card).window_size] == [buckets.GPU.window_size]
