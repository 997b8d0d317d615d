"""From a picture to a file: targets, what is kept, and going on after a stop."""

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
BESIDE = Metadata(b"a colour profile", b"II*\0 EXIF", b"<xmp/>", (300.0, 72.5))


def run(target: Goal, picture: Picture | None = None, workload: Workload = SHORT) -> Encoded:
    return encode(picture or Picture(small_pixels()), target, workload, open_device("numpy"))


@pytest.mark.parametrize("count", [250, 700])
def test_bytes_are_kept_and_used(count: int) -> None:
    found = run(Goal("bytes", count))
    assert 0.97 * count <= len(found.bytes) <= count
    assert found.missed is None


def test_for_bytes_only_results_of_attempts_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, decode = [], integer_inference.Decoder.decode

    def counted(*args: Any) -> np.ndarray:
        decoded.append(args[1])
        return decode(*args)

    monkeypatch.setattr(integer_inference.Decoder, "decode", counted)
    run(Goal("bytes", 260), workload=Workload(20))
    assert len(decoded) == 1 + estimate.MAX_MOMENT_RIVALS  # whose digests files have


@pytest.mark.parametrize("what", ["weight", "bias", "step", "pixels"])
def test_what_is_no_file_of_the_network_is_a_fault(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever coding or a device got wrong, though the network's pixels are made once."""
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
def test_of_short_attempts_with_networks_of_nearly_one_size_the_best_is_the_file(
    wanted: Goal, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that there are but for the second above 2,000 weights, which so few steps teach."""
    found: list[Draft] = []
    attempt = _Encoder.attempt

    def noted(encoder: _Encoder) -> Draft:
        found.append(attempt(encoder))
        return found[-1]

    monkeypatch.setattr(_Encoder, "attempt", noted)
    result = run(wanted)
    assert len({one.metrics["parameters"] for one in found}) == count
    lmbda = wanted.value if wanted.kind == "lambda" else 0.0
    costs = [10 ** (-one.metrics["psnr"] / 10) + lmbda * one.metrics["bpp"] for one in found]
    assert result.bytes == found[costs.index(min(costs))].bytes
    found.clear()
    monkeypatch.setattr(estimate, "MAX_BRIEF_OPERATIONS", 0.0)
    run(wanted)
    assert len(found) == 1


def test_steps_that_a_network_was_not_trained_with_are_judged_by_their_quality(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Finer ones made larger files, which were taken for better ones, with less quality."""
    picture, device = Picture(small_pixels()), open_device("numpy")
    encoder = _Encoder(picture, Goal("bytes", 500), SHORT, device, Run())
    trainer = encoder._start(encoder.lengths.beginning)
    encoder._run(trainer)
    given = trainer.arrays(), trainer.choices(), trainer.step.shape
    first = encoder.rounding._rounded(*given)
    rounding = Rounding(
        picture, Goal("bytes", math.ceil(first.size / MIN_BYTES_FRACTION) - 1), device
    )
    assert rounding.best(*given)[0].sections == first.sections  # hardly less than wanted
    rounding = Rounding(picture, Goal("bytes", 2 * first.size), device)
    made: list[Trial] = []
    trial = Rounding._trial

    def noted(self: Rounding, *args: Any) -> Trial:
        made.append(trial(self, *args))
        return made[-1]

    monkeypatch.setattr(Rounding, "_trial", noted)
    found, _ = rounding.best(*given)
    kept = [one for one in made if one.size <= 2 * first.size]
    assert len(kept) > 1
    qualities = [psnr(picture.pixels, rounding.decoded(one.network)) for one in kept]
    assert psnr(picture.pixels, rounding.decoded(found.network)) == max(qualities)


@pytest.mark.parametrize(("seconds", "steps"), [(1e-3, 10), (1e-3, 0), (None, 10)])
def test_too_little_time_is_told(
    seconds: float | None, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    monkeypatch.setattr(mlp, "MIN_SENSIBLE_STEPS", steps)
    work = Workload(0 if seconds else 5, seconds)
    made = Picture(small_pixels()), Goal("bytes", 200.0), work, open_device("numpy")
    any_codec.encode(*made, Run(note=said.append), "mlp")
    told = [text for text in said if "too little time" in text]
    assert len(told) == (seconds is not None and steps > 0)


def test_a_quality_is_met() -> None:
    y, x = np.mgrid[:40, :56]
    pixels = np.stack([x * 4, y * 6, x * y % 256 // 2 + 60], axis=-1).astype(np.uint8)
    found = run(Goal("psnr", 20), Picture(pixels), Workload(160))
    assert found.missed is None
    assert abs(found.metrics["psnr"] - 20) <= 0.1


def test_a_quality_out_of_reach_is_missed_with_the_best_file() -> None:
    found = run(Goal("psnr", 45), Picture(small_pixels()[:9, :9]), Workload(2))
    assert found.missed is not None
    assert found.missed.endswith("instead of 45")
    assert decoder.decode(container.parse(found.bytes), open_device("numpy")).any()


def test_too_few_bytes_are_missed_with_the_smallest_file() -> None:
    found = run(Goal("bytes", 50), workload=Workload(20))
    assert found.missed == f"{len(found.bytes)} bytes instead of 50"


@pytest.mark.parametrize("weights", [918.0, 2320.0])
def test_bytes_have_the_network_of_a_quality_that_has_as_many(weights: float) -> None:
    """Which is the larger of two by less than what files have beside weights is about wrong."""
    picture, device = Picture(np.resize(small_pixels(), (128, 128, 3))), open_device("numpy")
    quality = _Encoder(picture, Goal("lambda", 1e-3), SHORT, device, Run())
    quality.sizes.weights = weights
    shape = quality.sizes.shape()
    size = math.ceil(rate_model.BITS_PER_WEIGHT * weights / 8 + quality.rounding.overhead(shape))
    encoder = _Encoder(picture, Goal("bytes", size), SHORT, device, Run())
    assert encoder.sizes.shape() == shape
    assert encoder.sizes.weights == pytest.approx(weights, rel=2e-3)
    fewer = _Encoder(picture, Goal("bytes", size - 20), SHORT, device, Run())
    assert fewer.sizes.shape() != shape


def test_no_network_is_larger_than_the_pixels() -> None:
    """Whatever is allowed: training it would take for ever."""
    picture = Picture(small_pixels()[:12, :12])
    found = run(Goal("bytes", 1_000_000), picture, Workload(2))
    assert found.missed is None
    beside = overhead(picture, rate_model.network_shape(found.metrics["parameters"], 3))
    assert len(found.bytes) - beside < 2 * picture.pixels.nbytes


def test_dearer_bits_give_smaller_files() -> None:
    cheap, dear = (run(Goal("lambda", lmbda)) for lmbda in (3e-4, 1e-2))
    assert len(dear.bytes) < len(cheap.bytes)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_figures_are_those_of_the_bytes(channels: int) -> None:
    pixels = np.concatenate([small_pixels(), small_pixels()[::-1]], axis=2)[:, :, :channels]
    picture = Picture(pixels, BESIDE if channels == 3 else NOTHING)
    found = run(Goal("lambda", 3e-3), picture, Workload(20))
    parsed = container.parse(found.bytes)
    decoded = decoder.decode(parsed, open_device("numpy"))
    assert (decoded == found.pixels).all()
    assert decoded.shape == pixels.shape
    assert metadata_sections.read(parsed) == picture.metadata
    assert found.metrics["bytes"] == len(found.bytes)
    assert found.metrics["psnr"] == psnr(pixels, decoded)
    assert found.metrics["bpp"] == 8 * len(found.bytes) / (31 * 24)


def test_the_same_choices_give_the_same_bytes() -> None:
    first, second = (run(Goal("bytes", 300), workload=Workload(40)) for _ in range(2))
    assert first.bytes == second.bytes


@functools.cache
def whole(target: Goal) -> bytes:
    """The file of a run that is not stopped."""
    return run(target).bytes


@pytest.mark.parametrize(
    ("target", "looks"),
    [
        (Goal("bytes", 300), (7, 9)),
        (Goal("psnr", 10), (100, 9)),  # while it trains
        (Goal("psnr", 10), (5, 33, 11)),  # in the first short run, and in the second
    ],
)
def test_a_stopped_run_gives_the_bytes_of_one_that_was_not(
    target: Goal, looks: tuple[int, int], tmp_path: Path
) -> None:
    checkpoint = Checkpoint(tmp_path / "c", "k")
    picture, device = Picture(small_pixels()), open_device("numpy")
    notes: list[str] = []
    for count in looks:
        stop = stops_after(count)
        with pytest.raises(Interrupted, match="stopped after"):
            encode(picture, target, SHORT, device, Run(None, stop, notes.append, checkpoint))
    found = encode(picture, target, SHORT, device, Run(note=notes.append, checkpoint=checkpoint))
    assert found.bytes == whole(target)
    assert found.resumed > 0
    assert len(notes) == len(looks)
    assert all(note.startswith("continuing after") for note in notes)


def test_a_file_from_before_the_stop_is_one_of_a_run_that_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where what came after it was no better."""
    before, after = Draft(b"1", {}), Draft(b"12", {}, resumed=7)

    def begun(*_: object) -> SimpleNamespace:
        never: dict[str, Any] = {"search": lambda: None, "again": lambda: False}
        made = {"attempt": lambda: after, "distance": lambda draft: len(draft.bytes)}
        return SimpleNamespace(best=before, resumed=7, **never, **made)

    monkeypatch.setattr(mlp, "_Encoder", begun)
    picture, device = Picture(small_pixels()), open_device("numpy")
    found = mlp.encode(picture, Goal("bytes", 1), SHORT, device, Run())
    assert (found.bytes, found.resumed) == (b"1", 7)


def test_a_short_run_that_was_stopped_is_not_begun_again(tmp_path: Path) -> None:
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
def test_a_picture_of_one_colour_is_a_small_lossless_file(target: Goal) -> None:
    pixels = np.broadcast_to(np.array([3, 128, 250, 77], np.uint8), (20, 33, 4))
    found = run(target, Picture(np.ascontiguousarray(pixels)))
    assert found.metrics["psnr"] == math.inf
    assert found.missed is None
    assert len(found.bytes) < 64
    decoded = decoder.decode(container.parse(found.bytes), open_device("numpy"))
    assert (decoded == pixels).all()


def test_where_one_colour_has_the_quality_wanted_it_is_the_file() -> None:
    pixels = np.full((20, 33, 3), 90, np.uint8)
    pixels[::7, ::5, 1] += 1
    found = run(Goal("psnr", 50), Picture(pixels))
    assert found.metrics["psnr"] == psnr(pixels, np.full_like(pixels, 90)) > 60
    assert found.missed is None
    assert len(found.bytes) < 64


def test_a_network_that_is_too_good_for_a_quality_makes_room_for_a_smaller_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[float] = []
    best = Rounding.best

    def noted(self: Rounding, *args: Any) -> tuple[Trial, Trial]:
        tried.append(args[2].parameters)
        found, first = best(self, *args)
        return replace(found, psnr=60.0), replace(first, psnr=60.0)

    monkeypatch.setattr(Rounding, "best", noted)
    monkeypatch.setattr("imgmlp.codec.training.draft.psnr", lambda *_: 60.0)
    found = run(Goal("psnr", 30), workload=Workload(20))
    assert found.missed is None
    assert found.metrics["parameters"] == min(tried)


def test_the_smallest_network_is_lambdad_and_enlarged_by_the_weights_that_it_has() -> None:
    """As if it had one weight, bits were so dear that it answered with one colour, to the end."""
    device = open_device("numpy")
    encoder = _Encoder(Picture(small_pixels()), Goal("psnr", 30), SHORT, device, Run())
    encoder.sizes.attempts = [Attempt(200.0, 70.0, 300.0)]
    encoder.sizes.resize(encoder.lengths.whole)
    assert encoder.sizes.weights == encoder.sizes.shape().parameters
    small = encoder.sizes.shape()
    encoder.sizes.attempts = [Attempt(encoder.sizes.weights, 28.0, encoder.sizes.weights)]
    encoder.sizes.resize(encoder.lengths.whole)
    assert encoder.sizes.shape() != small


def test_pictures_of_other_sizes_begin_with_a_network_that_is_compiled_already() -> None:
    device, wanted = open_device("numpy"), Goal("lambda", 1e-3)

    def first(width: int, height: int) -> Shape:
        picture = Picture(np.zeros((height, width, 3), np.uint8))
        return _Encoder(picture, wanted, Workload(60_000), device, Run()).sizes.shape()

    alike = {first(768, 512), first(700, 500), first(640, 480), first(1024, 768)}
    assert len(alike) == 1
    sizes = {int(64 * 1.1**n) for n in range(36)}
    assert len({first(n, n) for n in sizes}) <= 6


def test_small_pictures_may_have_more_weights_than_pixels() -> None:
    """As many bits as the pixels have; else a quality that bytes reach was out of reach."""
    picture = Picture(small_pixels())
    encoder = _Encoder(picture, Goal("psnr", 50), Workload(3750), open_device("numpy"), Run())
    encoder.sizes.attempts = [Attempt(700.0, 30.0, 700.0)]
    encoder.sizes.resize(encoder.lengths.whole)
    assert encoder.sizes.weights == picture.pixels.nbytes * 8 / rate_model.BITS_PER_WEIGHT


def modelled(wanted: float, steps: int, monkeypatch: pytest.MonkeyPatch) -> Encoded:
    """What is found where dB are a plain function of weights, steps and bits of a weight."""

    def quality(shape: Shape, steps: int) -> float:
        return 20 + 2.5 * math.log2(shape.parameters / 500) - 3200 / steps

    def start(self: _Encoder, begin: Any) -> Any:
        shape = self.sizes.shape()
        state = replace(begin(shape), phase=Phase.ROUNDING)
        step = SimpleNamespace(shape=shape, done=state.steps)
        budget, reached = self.lengths.budget(shape), quality(shape, state.steps)
        made = {"arrays": lambda: (state.steps, budget), "choices": list, "quality": reached}
        return SimpleNamespace(step=step, state=state, **made)

    def best(self: Rounding, trained: Any, choices: Any, shape: Shape) -> Any:
        steps, budget = trained
        fewer = math.log2(budget / rate_model.BITS_PER_WEIGHT / shape.parameters)
        psnr = quality(shape, steps) + 2 * fewer
        first = SimpleNamespace(psnr=psnr, network=SimpleNamespace(shape=shape))
        first.size = self.overhead(shape) + round(budget / 8)
        coarser = min(max(first.psnr - self.wanted.value, -0.3), 6.0)  # dB, at 6 to a bit
        size = first.size - round(coarser / 6 * shape.parameters / 8)
        return SimpleNamespace(size=size, psnr=first.psnr - coarser), first

    def draft(self: _Encoder, found: Any, state: Any, *_: Any) -> Draft:
        facts = {"psnr": found.psnr, "steps": state.steps}
        return Draft(bytes(found.size), facts)

    monkeypatch.setattr(_Encoder, "_start", start)
    monkeypatch.setattr(_Encoder, "_run", lambda *_: "done")
    monkeypatch.setattr(_Encoder, "_draft", draft)
    monkeypatch.setattr(Rounding, "best", best)
    picture = Picture(np.resize(small_pixels(), (128, 128, 3)))
    goal = Goal("psnr", wanted)
    return mlp.encode(picture, goal, Workload(steps), open_device("numpy"), Run())


@pytest.mark.parametrize("steps", [3_750, 15_000, 60_000])
@pytest.mark.parametrize("wanted", [20.0, 25.0, 31.0, 34.0])
def test_a_quality_takes_the_fewest_weights_that_have_it(
    wanted: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a network that is too large, rounded until nothing is left of its advantage."""
    found = modelled(wanted, steps, monkeypatch)
    weights = 500 * 2 ** ((wanted + 3200 / steps - 20) / 2.5)
    assert abs(found.metrics["psnr"] - wanted) <= 0.1
    picture = Picture(np.resize(small_pixels(), (128, 128, 3)))
    beside = overhead(picture, rate_model.network_shape(weights, 3))
    assert len(found.bytes) < 1.05 * (weights * rate_model.BITS_PER_WEIGHT / 8 + beside)


@pytest.mark.parametrize(
    ("size", "quality", "more"), [(6615, 29.39, True), (3605, 29.33, True), (3700, 29.4, False)]
)
def test_there_are_more_attempts_where_none_came_near(
    size: int, quality: float, more: bool
) -> None:
    """Where the best file misses the quality, or only a network far too large has it."""
    picture = Picture(np.resize(small_pixels(), (128, 128, 3)))
    encoder = _Encoder(picture, Goal("psnr", 29.44), Workload(60_000), open_device("numpy"), Run())
    tried = [10_513.0, 34.04], [2534.0, 25.65], [4895.0, 28.92], [5363.0, 29.33]
    encoder.sizes.attempts = [Attempt(*attempt, attempt[0]) for attempt in tried]
    encoder.sizes.weights, encoder.best = 5363.0, Draft(bytes(size), {"psnr": quality})
    assert encoder.again() is more
    encoder.sizes.attempts += [Attempt(5500.0, 29.36, 5500.0)] * (MAX_ATTEMPTS - len(tried))
    assert not encoder.again()


def test_a_run_that_was_stopped_in_a_later_attempt_knows_the_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_model, "weights_for_psnr", lambda _, known: known[-1].weights / 2)
    monkeypatch.setattr("imgmlp.codec.mlp.size_search.PILOT_RATE", 40 * PILOT_RATE)
    begun: list[int] = []
    attempt = _Encoder.attempt

    def counted(encoder: _Encoder) -> Draft:
        begun.append(len(encoder.sizes.attempts))
        return attempt(encoder)

    monkeypatch.setattr(_Encoder, "attempt", counted)
    wanted, picture, device = Goal("psnr", 50), Picture(small_pixels()), open_device("numpy")
    whole = run(wanted, workload=Workload(40))  # of its networks the first is the best
    checkpoint = Checkpoint(tmp_path / "c", "k")
    begun.clear()

    def stop() -> bool:
        return 1 in begun

    with pytest.raises(Interrupted, match="stopped after"):
        encode(picture, wanted, Workload(40), device, Run(should_stop=stop, checkpoint=checkpoint))
    assert begun == [0, 1]
    found = encode(picture, wanted, Workload(40), device, Run(checkpoint=checkpoint))
    assert begun == [0, 1, *range(1, MAX_ATTEMPTS)]
    assert found.bytes == whole.bytes
    assert found.missed == whole.missed
    assert (found.pixels == whole.pixels).all()


def test_the_shorter_an_attempt_is_the_more_networks_are_tried_beside_its_own() -> None:
    short, long = estimate.MAX_MOMENT_OPERATIONS, estimate.MAX_BRIEF_OPERATIONS
    for kind, some in (("bytes", 2), ("lambda", 2), ("psnr", 10)):
        assert estimate.rivals(kind, short) == max(some, 4)  # type: ignore[arg-type]
        assert estimate.rivals(kind, 1.01 * short) == some  # type: ignore[arg-type]
        assert estimate.rivals(kind, long) == some  # type: ignore[arg-type]
        assert estimate.rivals(kind, 1.01 * long) == 0  # type: ignore[arg-type]


def test_where_time_is_limited_there_are_none() -> None:
    limited = _Encoder(
        Picture(small_pixels()), Goal("bytes", 300), Workload(3, 60.0), open_device("numpy"), Run()
    )
    limited.sizes.attempts.append(Attempt(500.0, 30.0, 500.0))
    assert limited._rivals() == 0


@pytest.mark.parametrize("goal", [Goal("bytes", 700), Goal("psnr", 40.0), Goal("lambda", 1e-4)])
def test_programs_of_all_networks_that_may_be_tried_are_counted(goal: Goal) -> None:
    picture, device = Picture(small_pixels()), open_device("numpy")
    programs = estimate.work(picture, goal, SHORT, device).programs
    middle = rate_model.network_shape(estimate.usual_weights(picture, goal, SHORT), 3)
    tried = size_search.neighbours_to_try(middle, goal.kind)
    assert len(tried) > 3
    for shape in tried:
        assert estimate.step_program(shape, 1, device, 0) in programs


def test_a_short_run_before_a_long_one_is_counted_with_the_program_that_it_has() -> None:
    """On a card, where of these two runs the long one alone has its own."""
    card: Any = SimpleNamespace(
        lanes="group", info=SimpleNamespace(kind="gpu", memory=1 << 33, clock=0, compute_units=64)
    )
    picture, long = Picture(np.zeros((1200, 1200, 3), np.uint8)), Workload(60_000, None, 8)
    programs = estimate.work(picture, Goal("psnr", 30.0), long, card).programs
    weights = size_search.pilot_weights(picture.width * picture.height)
    pilot = partial(estimate.step_program, rate_model.network_shape(weights, 3), 8, card)
    assert pilot(6_000) != pilot(60_000)
    assert pilot(6_000) in programs
