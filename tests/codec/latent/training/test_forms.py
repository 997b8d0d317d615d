"""The forms of a step: networks, programs and windows that a run starts with."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from latent_encoding import PIXELS, SHORT

from imgmlp.codec.latent import encode as latent
from imgmlp.codec.latent import pretrained
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training import buckets, cost_model, forms, run_plan
from imgmlp.codec.latent.training.buckets import TrainingSetup
from imgmlp.codec.latent.training.windows import WindowedStep
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal
from imgmlp.engine import AnyDevice, open_device
from imgmlp.errors import OutOfMemoryError
from imgmlp.image import Picture


def test_picture_gets_its_own_program_if_the_bucket_is_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buckets: list[object] = []

    def fake_step(*told: object) -> str:
        bucket = told[-1]
        buckets.append(bucket)
        if bucket is not None:
            raise OutOfMemoryError("too little", hint="")
        return "a step"

    monkeypatch.setattr(forms, "LatentStep", fake_step)
    monkeypatch.setattr(forms.TrainingSetup, "bucket", (32, 32))
    arguments = Picture(PIXELS), Goal("lambda", 1e-3), SHORT, open_device("numpy"), Run()
    result: object = latent._Encoder(*arguments).forms.first()
    assert result == "a step"
    assert buckets == [(32, 32), None]


def test_small_pictures_and_few_bytes_get_small_pretrained_networks() -> None:
    large, small = (512, 768, 3), (128, 128, 3)
    assert forms.widths(small, math.inf) < forms.widths(large, math.inf)
    assert forms.widths(large, 1000) == forms.widths(small, math.inf)
    assert pretrained.newest_pretrained(forms.widths(small, math.inf)) > 0


def test_short_runs_on_processors_get_small_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They begin from pretrained networks 6, whose program serves small pictures too."""
    cpu = open_device("numpy")
    cpu.info = replace(cpu.info, kind="cpu")
    pixels = np.zeros((400, 300, 3), np.uint8)

    def widths(device: Any, short: bool) -> tuple[int, int]:
        setup = buckets.TrainingSetup(pixels.shape, device, short)
        architecture = forms.Forms(pixels, setup, math.inf).architecture
        return architecture.synthesis_width, architecture.entropy_width

    assert widths(cpu, short=True) == forms.SMALL_WIDTHS == pretrained.HIDDEN_WIDTHS[6]
    assert widths(cpu, short=False) == forms.LARGE_WIDTHS
    assert not forms.is_quick(open_device("numpy"), is_short=True)
    assert (
        forms.widths((200, 300, 3), math.inf) == forms.widths((65, 9, 3), 1) == forms.SMALL_WIDTHS
    )
    assert forms.widths((64, 64, 3), math.inf) == forms.ICON_WIDTHS == pretrained.HIDDEN_WIDTHS[4]
    picture, goal, work = Picture(pixels), Goal("lambda", 1e-3), latent.workload(1, None)
    plan, recorded_programs = run_plan.RunPlan(picture, goal, work, cpu, Run()), list[str]()
    plan._compile_times = SimpleNamespace(record=recorded_programs.append)  # type: ignore[assignment]
    flat = SimpleNamespace(numpy=lambda: None)
    nothing = lambda _: None  # noqa: E731
    step: Any = SimpleNamespace(flat=flat, judge=nothing, steer=nothing, pace=lambda _: 1.0)
    plan._timed(step, 1e-3)
    assert recorded_programs == list(cost_model.estimate_work(picture, goal, work, cpu).programs)
    monkeypatch.setattr(buckets, "is_gpu", lambda _: True)
    assert widths(cpu, short=True) == forms.LARGE_WIDTHS


@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_resumed_run_keeps_its_form_and_a_new_one_falls_back(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run keeps its form even without memory; a new run takes the next one that fits."""

    def too_large(*_: object) -> LatentStep:
        raise OutOfMemoryError("too large", hint="take less")

    monkeypatch.setattr(forms.Forms, "_whole", too_large)
    monkeypatch.setattr(forms.Forms, "_in_windows", lambda _: WindowedStep)
    picture, arguments = Picture(np.zeros((256, 256, 3), np.uint8)), Run()
    result = latent._Encoder(picture, Goal("lambda", 1e-3), SHORT, open_device("numpy"), arguments)
    assert result.forms.first() is WindowedStep
    assert result.forms.name == "in windows"
    if form == "whole":
        with pytest.raises(OutOfMemoryError):
            result.forms.first(form)
    else:
        assert result.forms.first(form) is WindowedStep


@pytest.mark.parametrize(
    ("size", "has"), [((512, 768), True), ((512, 768), False), ((60, 90), True)]
)
def test_memory_advice_counts_hyperlatents_only_where_possible(
    size: tuple[int, int], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smaller pictures that would fit may be too small for hyperlatents."""
    requests: list[bool] = []

    def fake_explain(
        error: OutOfMemoryError, _what: str, device: AnyDevice, build: Any, _: Any
    ) -> Any:
        build(device)
        return error

    monkeypatch.setattr(forms, "explain", fake_explain)
    for kind in ("LatentStep", "WindowedStep"):
        monkeypatch.setattr(
            forms, kind, lambda *arguments: requests.append(arguments[3].has_hyperlatents)
        )
    setup, error = (
        TrainingSetup((*size, 3), open_device("numpy")),
        OutOfMemoryError("full", hint="less"),
    )
    assert forms.too_large(setup, has, error) is error
    assert requests == [has and size == (512, 768)]


def test_pretrained_networks_follow_lambda_except_for_tiny_pictures() -> None:
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
