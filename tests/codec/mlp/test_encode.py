"""From a picture to a file: targets, attempts, metrics, and resuming after an interruption."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import small_pixels, stops_after

from imgmlp.codec import decoder
from imgmlp.codec import encoder as any_codec
from imgmlp.codec.bitstream import container, metadata_sections
from imgmlp.codec.encoder import Encoded
from imgmlp.codec.mlp import encode as mlp
from imgmlp.codec.mlp import estimate, integer_inference, rate_model, size_search
from imgmlp.codec.mlp.encode import MAX_ATTEMPTS, _Encoder
from imgmlp.codec.mlp.network import Network, Shape
from imgmlp.codec.mlp.rounding_search import MIN_BYTES_FRACTION, Rounding, Trial, overhead
from imgmlp.codec.mlp.size_search import PILOT_RATE, Attempt
from imgmlp.codec.mlp.training_phases import Phase
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.draft import Draft
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.errors import ImgmlpError, Interrupted
from imgmlp.image import Picture, psnr
from imgmlp.metadata import NOTHING, Metadata

encode = partial(any_codec.encode, codec="mlp")
SHORT = Workload(120)
METADATA = Metadata(b"a colour profile", b"II*\0 EXIF", b"<xmp/>", (300.0, 72.5))


def run(target: Goal, picture: Picture | None = None, workload: Workload = SHORT) -> Encoded:
    return encode(picture or Picture(small_pixels()), target, workload, open_device("numpy"))


@pytest.mark.parametrize("count", [250, 700])
def test_file_keeps_and_uses_the_wanted_bytes(count: int) -> None:
    encoded = run(Goal("bytes", count))
    assert 0.97 * count <= len(encoded.bytes) <= count
    assert encoded.missed is None


def test_only_results_of_attempts_are_decoded_towards_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded, decode = [], integer_inference.Decoder.decode

    def counted(*args: Any) -> np.ndarray:
        decoded.append(args[1])
        return decode(*args)

    monkeypatch.setattr(integer_inference.Decoder, "decode", counted)
    run(Goal("bytes", 260), workload=Workload(20))
    assert len(decoded) == 1 + estimate.MAX_MOMENT_RIVALS  # for the digests in their files


@pytest.mark.parametrize("what", ["weight", "bias", "step", "pixels"])
def test_file_that_does_not_hold_the_network_is_an_error(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of coding and of a device are noticed, though pixels are decoded only once."""
    decode, sections = integer_inference.Decoder.decode, Network.sections

    def wrong(network: Network) -> tuple[bytes, bytes]:
        first, *others = network.layers
        weights = first.weights.copy()
        weights[-1, -1] += what == "weight"
        biases = first.biases + (what == "bias")
        step = first.step + (what == "step")
        layer = replace(first, weights=weights, biases=biases, step=step)
        return sections(Network(network.shape, (layer, *others)))

    if what == "pixels":
        monkeypatch.setattr(integer_inference.Decoder, "decode", lambda *a: decode(*a) ^ 1)
    else:
        monkeypatch.setattr(Network, "sections", wrong)
    with pytest.raises(ImgmlpError, match="what was written is no sound file: it"):
        run(Goal("bytes", 400), workload=Workload(3))


@pytest.mark.parametrize(("wanted", "count"), [(Goal("bytes", 400), 5), (Goal("lambda", 2e-3), 4)])
def test_best_of_several_short_attempts_with_similar_networks_is_the_file(
    wanted: Goal, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rivals are tried, except for the second one above the 2,000 weights that so few steps
    can train."""
    drafts: list[Draft] = []
    attempt = _Encoder.attempt

    def recorded(encoder: _Encoder) -> Draft:
        drafts.append(attempt(encoder))
        return drafts[-1]

    monkeypatch.setattr(_Encoder, "attempt", recorded)
    result = run(wanted)
    assert len({one.metrics["parameters"] for one in drafts}) == count
    lmbda = wanted.value if wanted.kind == "lambda" else 0.0
    costs = [10 ** (-one.metrics["psnr"] / 10) + lmbda * one.metrics["bpp"] for one in drafts]
    assert result.bytes == drafts[costs.index(min(costs))].bytes
    drafts.clear()
    monkeypatch.setattr(estimate, "MAX_BRIEF_OPERATIONS", 0.0)
    run(wanted)
    assert len(drafts) == 1


def test_other_step_sizes_than_the_trained_ones_are_compared_by_psnr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Finer step sizes once gave larger files with a lower PSNR, which were taken for better."""
    picture, device = Picture(small_pixels()), open_device("numpy")
    encoder = _Encoder(picture, Goal("bytes", 500), SHORT, device, Run())
    trainer = encoder._begin_or_resume(encoder.planner.attempt_state)
    encoder._run(trainer)
    trained = trainer.arrays(), trainer.choices(), trainer.step.shape
    first = encoder.rounding._rounded(*trained)
    rounding = Rounding(
        picture, Goal("bytes", math.ceil(first.size / MIN_BYTES_FRACTION) - 1), device
    )
    assert rounding.best(*trained)[0].sections == first.sections  # nearly the wanted bytes
    rounding = Rounding(picture, Goal("bytes", 2 * first.size), device)
    trials: list[Trial] = []
    make_trial = Rounding._trial

    def recorded(self: Rounding, *args: Any) -> Trial:
        trials.append(make_trial(self, *args))
        return trials[-1]

    monkeypatch.setattr(Rounding, "_trial", recorded)
    best, _ = rounding.best(*trained)
    small_enough = [one for one in trials if one.size <= 2 * first.size]
    assert len(small_enough) > 1
    psnrs = [psnr(picture.pixels, rounding.decoded(one.network)) for one in small_enough]
    assert psnr(picture.pixels, rounding.decoded(best.network)) == max(psnrs)


@pytest.mark.parametrize(("seconds", "steps"), [(1e-3, 10), (1e-3, 0), (None, 10)])
def test_too_little_time_is_reported(
    seconds: float | None, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = list[str]()
    monkeypatch.setattr(mlp, "MIN_SENSIBLE_STEPS", steps)
    work = Workload(0 if seconds else 5, seconds)
    arguments = Picture(small_pixels()), Goal("bytes", 200.0), work, open_device("numpy")
    any_codec.encode(*arguments, Run(note=notes.append), "mlp")
    warnings = [text for text in notes if "too little time" in text]
    assert len(warnings) == (seconds is not None and steps > 0)


def test_psnr_is_met() -> None:
    y, x = np.mgrid[:40, :56]
    pixels = np.stack([x * 4, y * 6, x * y % 256 // 2 + 60], axis=-1).astype(np.uint8)
    encoded = run(Goal("psnr", 20), Picture(pixels), Workload(160))
    assert encoded.missed is None
    assert abs(encoded.metrics["psnr"] - 20) <= 0.1


def test_unreachable_psnr_gives_the_best_file_and_is_reported_as_missed() -> None:
    encoded = run(Goal("psnr", 45), Picture(small_pixels()[:9, :9]), Workload(2))
    assert encoded.missed is not None
    assert encoded.missed.endswith("instead of 45")
    assert decoder.decode(container.parse(encoded.bytes), open_device("numpy")).any()


def test_too_few_bytes_give_the_smallest_file_and_are_reported_as_missed() -> None:
    encoded = run(Goal("bytes", 50), workload=Workload(20))
    assert encoded.missed == f"{len(encoded.bytes)} bytes instead of 50"


@pytest.mark.parametrize("weights", [918.0, 2320.0])
def test_bytes_and_lambda_lead_to_the_same_network_for_equal_weights(weights: float) -> None:
    """The weights are just above the boundary between two shapes, closer to it than an error in
    the overhead of a file would be."""
    picture, device = Picture(np.resize(small_pixels(), (128, 128, 3))), open_device("numpy")
    towards_lambda = _Encoder(picture, Goal("lambda", 1e-3), SHORT, device, Run())
    towards_lambda.sizes.weights = weights
    shape = towards_lambda.sizes.shape()
    size = math.ceil(
        rate_model.BITS_PER_WEIGHT * weights / 8 + towards_lambda.rounding.overhead(shape)
    )
    encoder = _Encoder(picture, Goal("bytes", size), SHORT, device, Run())
    assert encoder.sizes.shape() == shape
    assert encoder.sizes.weights == pytest.approx(weights, rel=2e-3)
    fewer = _Encoder(picture, Goal("bytes", size - 20), SHORT, device, Run())
    assert fewer.sizes.shape() != shape


def test_network_is_never_larger_than_the_pixels() -> None:
    """Not even if more bytes are allowed: training it would take too long."""
    picture = Picture(small_pixels()[:12, :12])
    encoded = run(Goal("bytes", 1_000_000), picture, Workload(2))
    assert encoded.missed is None
    overhead_bytes = overhead(picture, rate_model.network_shape(encoded.metrics["parameters"], 3))
    assert len(encoded.bytes) - overhead_bytes < 2 * picture.pixels.nbytes


def test_higher_lambda_gives_a_smaller_file() -> None:
    low_lambda, high_lambda = (run(Goal("lambda", lmbda)) for lmbda in (3e-4, 1e-2))
    assert len(high_lambda.bytes) < len(low_lambda.bytes)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_metrics_describe_the_bytes_of_the_file(channels: int) -> None:
    pixels = np.concatenate([small_pixels(), small_pixels()[::-1]], axis=2)[:, :, :channels]
    picture = Picture(pixels, METADATA if channels == 3 else NOTHING)
    encoded = run(Goal("lambda", 3e-3), picture, Workload(20))
    parsed = container.parse(encoded.bytes)
    decoded = decoder.decode(parsed, open_device("numpy"))
    assert (decoded == encoded.pixels).all()
    assert decoded.shape == pixels.shape
    assert metadata_sections.read(parsed) == picture.metadata
    assert encoded.metrics["bytes"] == len(encoded.bytes)
    assert encoded.metrics["psnr"] == psnr(pixels, decoded)
    assert encoded.metrics["bpp"] == 8 * len(encoded.bytes) / (31 * 24)


def test_encoding_is_deterministic() -> None:
    first, second = (run(Goal("bytes", 300), workload=Workload(40)) for _ in range(2))
    assert first.bytes == second.bytes


@functools.cache
def uninterrupted(target: Goal) -> bytes:
    """The file of an uninterrupted run."""
    return run(target).bytes


@pytest.mark.parametrize(
    ("target", "checks"),
    [
        (Goal("bytes", 300), (7, 9)),
        (Goal("psnr", 10), (100, 9)),  # while it trains
        (Goal("psnr", 10), (5, 33, 11)),  # in the first pilot, and in the second
    ],
)
def test_resumed_run_gives_the_bytes_of_an_uninterrupted_one(
    target: Goal, checks: tuple[int, int], tmp_path: Path
) -> None:
    checkpoint = Checkpoint(tmp_path / "c", "k")
    picture, device = Picture(small_pixels()), open_device("numpy")
    notes: list[str] = []
    for count in checks:
        stop = stops_after(count)
        with pytest.raises(Interrupted, match="stopped after"):
            encode(picture, target, SHORT, device, Run(None, stop, notes.append, checkpoint))
    encoded = encode(picture, target, SHORT, device, Run(note=notes.append, checkpoint=checkpoint))
    assert encoded.bytes == uninterrupted(target)
    assert encoded.resumed > 0
    assert len(notes) == len(checks)
    assert all(note.startswith("continuing after") for note in notes)


def test_best_file_from_before_an_interruption_counts_as_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if no later attempt was better."""
    before, after = Draft(b"1", {}), Draft(b"12", {}, resumed=7)

    def begun(*_: object) -> SimpleNamespace:
        never: dict[str, Any] = {"search": lambda: None, "plan_next_attempt": lambda: False}
        results = {"attempt": lambda: after, "distance": lambda draft: len(draft.bytes)}
        return SimpleNamespace(best=before, resumed=7, **never, **results)

    monkeypatch.setattr(mlp, "_Encoder", begun)
    picture, device = Picture(small_pixels()), open_device("numpy")
    encoded = mlp.encode(picture, Goal("bytes", 1), SHORT, device, Run())
    assert (encoded.bytes, encoded.resumed) == (b"1", 7)


def test_interrupted_pilot_is_resumed(tmp_path: Path) -> None:
    steps: list[int] = []
    checkpoint = Checkpoint(tmp_path / "c", "k")

    def run() -> Run:
        return Run(
            lambda progress: steps.append(progress.step),
            lambda: len(steps) == 33,
            checkpoint=checkpoint,
        )

    arguments = Picture(small_pixels()), Goal("psnr", 10), SHORT, open_device("numpy")
    with pytest.raises(Interrupted, match="stopped after 3 of 60 steps of a short run"):
        encode(*arguments, run())
    assert [*range(1, 31), 1, 2, 3] == steps
    encode(*arguments, run())
    assert steps[33:90] == [*range(4, 61)]


@pytest.mark.parametrize("target", [Goal("psnr", 40), Goal("bytes", 5000), Goal("lambda", 1e-3)])
def test_picture_of_one_colour_gives_a_small_lossless_file(target: Goal) -> None:
    pixels = np.broadcast_to(np.array([3, 128, 250, 77], np.uint8), (20, 33, 4))
    encoded = run(target, Picture(np.ascontiguousarray(pixels)))
    assert encoded.metrics["psnr"] == math.inf
    assert encoded.missed is None
    assert len(encoded.bytes) < 64
    decoded = decoder.decode(container.parse(encoded.bytes), open_device("numpy"))
    assert (decoded == pixels).all()


def test_one_colour_is_the_file_if_it_reaches_the_psnr() -> None:
    pixels = np.full((20, 33, 3), 90, np.uint8)
    pixels[::7, ::5, 1] += 1
    encoded = run(Goal("psnr", 50), Picture(pixels))
    assert encoded.metrics["psnr"] == psnr(pixels, np.full_like(pixels, 90)) > 60
    assert encoded.missed is None
    assert len(encoded.bytes) < 64


def test_network_far_beyond_its_psnr_is_followed_by_smaller_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[float] = []
    best = Rounding.best

    def recorded(self: Rounding, *args: Any) -> tuple[Trial, Trial]:
        tried.append(args[2].parameters)
        trial, first = best(self, *args)
        return replace(trial, psnr=60.0), replace(first, psnr=60.0)

    monkeypatch.setattr(Rounding, "best", recorded)
    monkeypatch.setattr("imgmlp.codec.training.draft.psnr", lambda *_: 60.0)
    encoded = run(Goal("psnr", 30), workload=Workload(20))
    assert encoded.missed is None
    assert encoded.metrics["parameters"] == min(tried)


def test_smallest_network_is_enlarged_after_it_missed_its_psnr() -> None:
    """If it were treated as if it had one weight, lambda would be so high that every attempt
    would give one colour."""
    device = open_device("numpy")
    encoder = _Encoder(Picture(small_pixels()), Goal("psnr", 30), SHORT, device, Run())
    encoder.sizes.attempts = [Attempt(200.0, 70.0, 300.0)]
    encoder.sizes.resize(encoder.planner.effort_steps)
    assert encoder.sizes.weights == encoder.sizes.shape().parameters
    small = encoder.sizes.shape()
    encoder.sizes.attempts = [Attempt(encoder.sizes.weights, 28.0, encoder.sizes.weights)]
    encoder.sizes.resize(encoder.planner.effort_steps)
    assert encoder.sizes.shape() != small


def test_pictures_of_many_sizes_share_the_networks_of_their_pilots() -> None:
    device, wanted = open_device("numpy"), Goal("lambda", 1e-3)

    def first(width: int, height: int) -> Shape:
        picture = Picture(np.zeros((height, width, 3), np.uint8))
        return _Encoder(picture, wanted, Workload(60_000), device, Run()).sizes.shape()

    alike = {first(768, 512), first(700, 500), first(640, 480), first(1024, 768)}
    assert len(alike) == 1
    sizes = {int(64 * 1.1**n) for n in range(36)}
    assert len({first(n, n) for n in sizes}) <= 6


def test_small_pictures_may_have_as_many_bits_of_weights_as_of_pixels() -> None:
    """With fewer weights, a PSNR that targets in bytes reach would be out of reach."""
    picture = Picture(small_pixels())
    encoder = _Encoder(picture, Goal("psnr", 50), Workload(3750), open_device("numpy"), Run())
    encoder.sizes.attempts = [Attempt(700.0, 30.0, 700.0)]
    encoder.sizes.resize(encoder.planner.effort_steps)
    assert encoder.sizes.weights == picture.pixels.nbytes * 8 / rate_model.BITS_PER_WEIGHT


def result_of_model(wanted: float, steps: int, monkeypatch: pytest.MonkeyPatch) -> Encoded:
    """The result of the search if the PSNR is a simple function of weights, steps and bits."""

    def quality(shape: Shape, steps: int) -> float:
        return 20 + 2.5 * math.log2(shape.parameters / 500) - 3200 / steps

    def start(self: _Encoder, begin: Any) -> Any:
        shape = self.sizes.shape()
        state = replace(begin(shape), phase=Phase.ROUNDING)
        step = SimpleNamespace(shape=shape, done=state.steps)
        budget, reached = self.planner.bit_budget(shape), quality(shape, state.steps)
        others = {"arrays": lambda: (state.steps, budget), "choices": list, "quality": reached}
        return SimpleNamespace(step=step, state=state, **others)

    def best(self: Rounding, trained: Any, choices: Any, shape: Shape) -> Any:
        steps, budget = trained
        fewer = math.log2(budget / rate_model.BITS_PER_WEIGHT / shape.parameters)
        psnr = quality(shape, steps) + 2 * fewer
        first = SimpleNamespace(psnr=psnr, network=SimpleNamespace(shape=shape))
        first.size = self.overhead(shape) + round(budget / 8)
        coarser = min(max(first.psnr - self.wanted.value, -0.3), 6.0)  # dB, at 6 to a bit
        size = first.size - round(coarser / 6 * shape.parameters / 8)
        return SimpleNamespace(size=size, psnr=first.psnr - coarser), first

    def draft(self: _Encoder, trial: Any, state: Any, *_: Any) -> Draft:
        metrics = {"psnr": trial.psnr, "steps": state.steps}
        return Draft(bytes(trial.size), metrics)

    monkeypatch.setattr(_Encoder, "_begin_or_resume", start)
    monkeypatch.setattr(_Encoder, "_run", lambda *_: "done")
    monkeypatch.setattr(_Encoder, "_draft", draft)
    monkeypatch.setattr(Rounding, "best", best)
    picture = Picture(np.resize(small_pixels(), (128, 128, 3)))
    goal = Goal("psnr", wanted)
    return mlp.encode(picture, goal, Workload(steps), open_device("numpy"), Run())


@pytest.mark.parametrize("steps", [3_750, 15_000, 60_000])
@pytest.mark.parametrize("wanted", [20.0, 25.0, 31.0, 34.0])
def test_search_ends_with_the_fewest_weights_that_reach_the_psnr(
    wanted: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is not a network that is too large, rounded until its advantage is lost."""
    encoded = result_of_model(wanted, steps, monkeypatch)
    weights = 500 * 2 ** ((wanted + 3200 / steps - 20) / 2.5)
    assert abs(encoded.metrics["psnr"] - wanted) <= 0.1
    picture = Picture(np.resize(small_pixels(), (128, 128, 3)))
    overhead_bytes = overhead(picture, rate_model.network_shape(weights, 3))
    assert len(encoded.bytes) < 1.05 * (weights * rate_model.BITS_PER_WEIGHT / 8 + overhead_bytes)


@pytest.mark.parametrize(
    ("size", "quality", "more"), [(6615, 29.39, True), (3605, 29.33, True), (3700, 29.4, False)]
)
def test_attempts_go_on_until_one_comes_near_the_target(
    size: int, quality: float, more: bool
) -> None:
    """They go on if the best file misses the PSNR, or only a network far too large reaches it."""
    picture = Picture(np.resize(small_pixels(), (128, 128, 3)))
    encoder = _Encoder(picture, Goal("psnr", 29.44), Workload(60_000), open_device("numpy"), Run())
    tried = [10_513.0, 34.04], [2534.0, 25.65], [4895.0, 28.92], [5363.0, 29.33]
    encoder.sizes.attempts = [Attempt(*attempt, attempt[0]) for attempt in tried]
    encoder.sizes.weights, encoder.best = 5363.0, Draft(bytes(size), {"psnr": quality})
    assert encoder.plan_next_attempt() is more
    encoder.sizes.attempts += [Attempt(5500.0, 29.36, 5500.0)] * (MAX_ATTEMPTS - len(tried))
    assert not encoder.plan_next_attempt()


def test_run_resumed_in_a_later_attempt_remembers_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_model, "weights_for_psnr", lambda _, results: results[-1].weights / 2)
    monkeypatch.setattr("imgmlp.codec.mlp.size_search.PILOT_RATE", 40 * PILOT_RATE)
    begun: list[int] = []
    attempt = _Encoder.attempt

    def counted(encoder: _Encoder) -> Draft:
        begun.append(len(encoder.sizes.attempts))
        return attempt(encoder)

    monkeypatch.setattr(_Encoder, "attempt", counted)
    wanted, picture, device = Goal("psnr", 50), Picture(small_pixels()), open_device("numpy")
    whole = run(wanted, workload=Workload(40))  # the first of its networks is the best
    checkpoint = Checkpoint(tmp_path / "c", "k")
    begun.clear()

    def stop() -> bool:
        return 1 in begun

    with pytest.raises(Interrupted, match="stopped after"):
        encode(picture, wanted, Workload(40), device, Run(should_stop=stop, checkpoint=checkpoint))
    assert begun == [0, 1]
    encoded = encode(picture, wanted, Workload(40), device, Run(checkpoint=checkpoint))
    assert begun == [0, 1, *range(1, MAX_ATTEMPTS)]
    assert encoded.bytes == whole.bytes
    assert encoded.missed == whole.missed
    assert (encoded.pixels == whole.pixels).all()


def test_shorter_attempts_have_more_rivals() -> None:
    short, long = estimate.MAX_MOMENT_OPERATIONS, estimate.MAX_BRIEF_OPERATIONS
    for kind, count in (("bytes", 2), ("lambda", 2), ("psnr", 10)):
        assert estimate.rivals(kind, short) == max(count, 4)  # type: ignore[arg-type]
        assert estimate.rivals(kind, 1.01 * short) == count  # type: ignore[arg-type]
        assert estimate.rivals(kind, long) == count  # type: ignore[arg-type]
        assert estimate.rivals(kind, 1.01 * long) == 0  # type: ignore[arg-type]


def test_limited_runs_have_no_rivals() -> None:
    limited = _Encoder(
        Picture(small_pixels()), Goal("bytes", 300), Workload(3, 60.0), open_device("numpy"), Run()
    )
    limited.sizes.attempts.append(Attempt(500.0, 30.0, 500.0))
    assert limited._max_rivals() == 0


@pytest.mark.parametrize("goal", [Goal("bytes", 700), Goal("psnr", 40.0), Goal("lambda", 1e-4)])
def test_estimate_counts_the_programs_of_all_rivals(goal: Goal) -> None:
    picture, device = Picture(small_pixels()), open_device("numpy")
    programs = estimate.work(picture, goal, SHORT, device).programs
    middle = rate_model.network_shape(estimate.usual_weights(picture, goal, SHORT), 3)
    tried = size_search.neighbours_to_try(middle, goal.kind)
    assert len(tried) > 3
    for shape in tried:
        assert estimate.step_program(shape, 1, device, 0) in programs


def test_estimate_counts_the_own_program_of_a_pilot() -> None:
    """On a GPU the pilot uses a bucket, whereas the long run has its own program."""
    gpu: Any = SimpleNamespace(
        lanes="group", info=SimpleNamespace(kind="gpu", memory=1 << 33, clock=0, compute_units=64)
    )
    picture, long = Picture(np.zeros((1200, 1200, 3), np.uint8)), Workload(60_000, None, 8)
    programs = estimate.work(picture, Goal("psnr", 30.0), long, gpu).programs
    weights = size_search.pilot_weights(picture.width * picture.height)
    pilot = partial(estimate.step_program, rate_model.network_shape(weights, 3), 8, gpu)
    assert pilot(6_000) != pilot(60_000)
    assert pilot(6_000) in programs
