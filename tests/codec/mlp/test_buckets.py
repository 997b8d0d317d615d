"""Programs that networks of many sizes share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from conftest import MAPPINGS, open_mapping, open_opencl, small_pixels

from imgmlp.codec.encoder import Encoded, encode
from imgmlp.codec.mlp import (
    buckets,
    estimate,
    float_render,
    integer_inference,
    opening,
    rate_model,
)
from imgmlp.codec.mlp.bit_allocation import Choice
from imgmlp.codec.mlp.bit_allocation import network as rounded
from imgmlp.codec.mlp.network import Network, Shape
from imgmlp.codec.mlp.qat_step import BATCH, LearningStep
from imgmlp.codec.training.checkpoint import Checkpoint
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.target import Goal, Workload
from imgmlp.engine import open_device
from imgmlp.errors import Interrupted
from imgmlp.image import Picture

PROCESSOR: Any = SimpleNamespace(lanes="one", info=SimpleNamespace(memory=1 << 30))
CARD: Any = SimpleNamespace(lanes="group", info=SimpleNamespace(memory=1 << 33))
OPENING_STEPS = buckets.opening_steps
TINY: Any = SimpleNamespace(lanes="one", info=SimpleNamespace(memory=1 << 25))


def random_network(shape: Shape, seed: int = 0) -> Network:
    generator = np.random.default_rng(seed)
    arrays = [generator.normal(0.0, 0.3, size) for size in shape.shapes]
    return rounded(arrays, [Choice(40, 1)] * (shape.hidden + 1), shape)


def test_few_programs_serve_all_networks_that_are_chosen() -> None:
    chosen = rate_model.shapes(3)
    found = {buckets.shared_shape(shape) for shape in chosen}
    assert len(chosen) > 50
    assert len(found) == 1 + len(buckets.WIDTHS)
    small = [shape for shape in chosen if shape.parameters < 20_000]
    assert len({buckets.shared_shape(shape) for shape in small}) == 3
    for shape in chosen:
        bucket = buckets.shared_shape(shape)
        assert (bucket.hidden, bucket.channels) == (shape.hidden, shape.channels)
        assert bucket.width >= shape.width
        assert bucket.frequencies >= shape.frequencies
        assert bucket.parameters < 3 * shape.parameters or bucket.width <= buckets.WIDTHS[0]


def test_every_network_of_a_file_has_a_bucket() -> None:
    for shape in (Shape(1, 1, 1, 1), Shape(64, 16, 1024, 4), Shape(33, 2, 5, 2)):
        bucket = buckets.shared_shape(shape)
        assert len(set(buckets.parameter_indices(shape, bucket))) == shape.parameters


def test_a_networks_numbers_have_the_places_of_their_inputs_and_outputs() -> None:
    shape, bucket = Shape(1, 1, 2, 1), Shape(2, 1, 3, 1)
    indices = buckets.parameter_indices(shape, bucket)
    # features of x are those of rows 0 to 3, of y 4 to 7; 3 values in a row, biases after them
    assert indices.tolist() == [0, 1, 3, 4, 12, 13, 15, 16, 24, 25, 27, 28, 30]


def test_buckets_are_where_something_is_compiled_and_has_memory() -> None:
    shape = Shape(16, 5, 104, 3)
    for device in (TINY, open_device("numpy")):
        assert (
            buckets.training_shape(shape, device)
            == buckets.decoding_shape(shape, device, 10**4)
            == shape
        )
        assert buckets.opening_steps(shape, device, 10**9, BATCH) == 0
    for device in (PROCESSOR, CARD):
        assert buckets.training_shape(shape, device).width == 128
        assert buckets.decoding_shape(shape, device, 10**4).width == 128


def test_long_runs_go_over_to_a_program_of_their_own() -> None:
    def opening_of(width: int, steps: int) -> int:
        return buckets.opening_steps(Shape(16, 5, width, 3), PROCESSOR, steps, BATCH)

    assert opening_of(72, 3750) == opening_of(28, 30_000) == opening_of(128, 10**6) == 0
    assert 500 < opening_of(104, 60_000) == opening_of(104, 10**6) < 1000
    assert opening_of(104, 7500) == opening_of(120, 60_000)
    many, few = (
        buckets.decoding_shape(Shape(16, 5, 104, 3), PROCESSOR, n).width for n in (10**7, 10**5)
    )
    assert (few, many) == (128, 104)


def test_longer_ones_have_it_at_once_on_graphics_cards() -> None:
    def begins_in(width: int, steps: int) -> int:
        shape = Shape(16, 5, width, 3)
        assert buckets.opening_steps(shape, CARD, steps, BATCH) == 0
        return buckets.training_shape(shape, CARD, steps, BATCH).width

    assert [begins_in(144, steps) for steps in (0, 60_000, 180_000)] == [192, 192, 144]
    assert begins_in(28, 480_000) == 32
    shape = Shape(16, 5, 104, 3)
    widths = [buckets.decoding_shape(shape, CARD, n).width for n in (10**5, 10**7, 10**9, 10**10)]
    assert widths == [128, 128, 128, 104]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_bucket_decodes_the_same_bits(mapping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, found = open_mapping(mapping), []
    networks = [random_network(Shape(3, 3, 6, 3)), random_network(Shape(4, 3, 14, 3), 1)]
    for bucket in (lambda shape, *_: shape, lambda shape, *_: buckets.shared_shape(shape)):
        monkeypatch.setattr(buckets, "decoding_shape", bucket)
        decoder = integer_inference.Decoder(13, 9, device)
        found.append([decoder.decode(network) for network in networks])
    for alone, shared in zip(*found, strict=True):
        assert alone.std() > 1
        assert (alone == shared).all()


def test_a_bucket_renders_the_same_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    device, network, found = open_device("numpy"), random_network(Shape(3, 3, 6, 3)), []
    for bucket in (lambda shape, *_: shape, lambda shape, *_: buckets.shared_shape(shape)):
        monkeypatch.setattr(buckets, "decoding_shape", bucket)
        found.append(float_render.render(network, (13, 9), (26, 18), device).astype(int))
    assert found[0].std() > 1
    assert np.abs(found[0] - found[1]).max() <= 1


def test_the_second_network_of_a_bucket_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither to train nor to decode, of a picture of another size."""
    device = open_opencl()
    monkeypatch.setattr(buckets, "training_shape", lambda shape, *_: buckets.shared_shape(shape))
    sources, built = set[str](), device._compile

    def compiled(source: str, options: Any) -> Any:
        sources.add(source)
        return built(source, options)

    monkeypatch.setattr(device, "_compile", compiled)
    monkeypatch.setattr(device, "_programs", {})
    counts = []
    for size, shape in (((40, 50), Shape(7, 3, 15, 3)), ((60, 33), Shape(5, 3, 11, 3))):
        pixels, bucket = np.zeros((*size, 3), np.uint8), buckets.training_shape(shape, device)
        LearningStep(pixels, shape, 0, device, bucket=bucket).run(1)
        integer_inference.decode(random_network(shape), size[1], size[0], device)
        counts.append(len(sources))
    assert counts[0] == counts[1] > 1


class Compiler:
    """In the place of the other process, which has not ended before it was waited for."""

    made: ClassVar[list[Compiler]] = []

    def __init__(self, *_: object) -> None:
        self.working, self.waited = True, 0
        Compiler.made.append(self)

    @property
    def done(self) -> bool:
        return not self.working

    def wait(self, enough: Callable[[], bool]) -> None:
        self.waited += 1
        self.working = enough()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Shape, int]]:
    """Buckets in which steps were made, and how many were done there; runs go over after 50, and
    nobody has time for more than one network."""
    made: list[tuple[Shape, int]] = []
    taken = LearningStep.run

    def run(step: LearningStep, count: int, enough: Callable[[], bool] = lambda: False) -> bool:
        if not made or made[-1][0] != step.bucket:
            made.append((step.bucket, 0))
        made[-1] = step.bucket, made[-1][1] + count
        return taken(step, count, enough)

    monkeypatch.setattr(LearningStep, "run", run)
    monkeypatch.setattr(buckets, "are_used_on", lambda _: True)
    monkeypatch.setattr(buckets, "opening_steps", lambda *run: 50 if run[2] else 0)
    monkeypatch.setattr(opening, "compiler", Compiler)
    monkeypatch.setattr(estimate, "MAX_BRIEF_OPERATIONS", 0.0)
    Compiler.made.clear()
    return made


WANTED, PICTURE = Goal("bytes", 300), Picture(small_pixels())


def made_by(run: Run | None = None, seconds: float | None = None, lanes: Any = "one") -> Encoded:
    workload, device = Workload(120, seconds), open_device("numpy")
    device.lanes = lanes
    return encode(PICTURE, WANTED, workload, device, run or Run(), codec="mlp")


def test_a_long_run_begins_in_a_bucket_and_goes_over(begun: list[tuple[Shape, int]]) -> None:
    found = made_by()
    (shared, first), (alone, rest) = begun
    assert (first, rest) == (50, 70)
    assert shared == buckets.shared_shape(alone) != alone
    assert [one.waited for one in Compiler.made] == [1]
    assert found.metrics["steps"] == 120
    assert found.metrics["network"] == str(alone)
    assert made_by().bytes == found.bytes


@pytest.mark.parametrize("steps", [30, 50, 90])  # before it, as it waits, and after it
def test_a_run_that_was_stopped_goes_over_where_one_does_that_was_not(
    steps: int, begun: list[tuple[Shape, int]], tmp_path: Path
) -> None:
    whole = made_by()
    begun.clear()
    checkpoint = Checkpoint(tmp_path / "c", "k")

    def stop() -> bool:
        return sum(count for _, count in begun) >= steps

    with pytest.raises(Interrupted, match="stopped after"):
        made_by(Run(should_stop=stop, checkpoint=checkpoint))
    begun.clear()
    found = made_by(Run(checkpoint=checkpoint))
    assert found.bytes == whole.bytes
    assert steps <= found.resumed < steps + 4
    assert [bucket for bucket, _ in begun][-1] == Shape(4, 3, 9, 3)


def test_with_a_time_limit_a_run_stays_as_it_began(begun: list[tuple[Shape, int]]) -> None:
    found = made_by(seconds=6)
    assert not Compiler.made
    assert len({bucket for bucket, _ in begun}) == 1
    assert found.metrics["steps"] > 50


@pytest.mark.parametrize("seconds", [None, 6])
def test_on_a_card_a_long_run_without_a_limit_begins_in_its_own(
    seconds: float | None, begun: list[tuple[Shape, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "opening_steps", OPENING_STEPS)
    monkeypatch.setattr(buckets, "MIN_OPERATIONS_SAVED", {"group": 1.0})
    found = made_by(seconds=seconds, lanes="group")
    assert not Compiler.made
    ((bucket, _),) = begun
    own = Shape(4, 3, 9, 3)
    assert found.metrics["network"] == str(own)
    assert bucket == (own if seconds is None else buckets.shared_shape(own))


def test_the_other_process_compiles_what_a_run_goes_over_to() -> None:
    device = open_device("numpy")
    step = LearningStep(np.zeros((5, 6, 3), np.uint8), Shape(3, 2, 6, 3), 0, device, batch=64)
    with opening.compiler(step) as compiler:
        assert compiler.working
        compiler.wait(lambda: False)
        assert compiler.done
