"""Buckets: programs that networks of many shapes share, and the change to a run's own program."""

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

CPU: Any = SimpleNamespace(lanes="one", info=SimpleNamespace(memory=1 << 30))
GPU: Any = SimpleNamespace(lanes="group", info=SimpleNamespace(memory=1 << 33))
REAL_OPENING_STEPS = buckets.opening_steps
SMALL_DEVICE: Any = SimpleNamespace(lanes="one", info=SimpleNamespace(memory=1 << 25))


def random_network(shape: Shape, seed: int = 0) -> Network:
    generator = np.random.default_rng(seed)
    arrays = [generator.normal(0.0, 0.3, size) for size in shape.shapes]
    return rounded(arrays, [Choice(40, 1)] * (shape.hidden + 1), shape)


def test_few_buckets_serve_all_networks_that_encoders_choose() -> None:
    chosen = rate_model.shapes(3)
    shared = {buckets.shared_shape(shape) for shape in chosen}
    assert len(chosen) > 50
    assert len(shared) == 1 + len(buckets.WIDTHS)
    small = [shape for shape in chosen if shape.parameters < 20_000]
    assert len({buckets.shared_shape(shape) for shape in small}) == 3
    for shape in chosen:
        bucket = buckets.shared_shape(shape)
        assert (bucket.hidden, bucket.channels) == (shape.hidden, shape.channels)
        assert bucket.width >= shape.width
        assert bucket.frequencies >= shape.frequencies
        assert bucket.parameters < 3 * shape.parameters or bucket.width <= buckets.WIDTHS[0]


def test_every_shape_of_the_format_has_a_bucket() -> None:
    for shape in (Shape(1, 1, 1, 1), Shape(64, 16, 1024, 4), Shape(33, 2, 5, 2)):
        bucket = buckets.shared_shape(shape)
        assert len(set(buckets.parameter_indices(shape, bucket))) == shape.parameters


def test_parameters_keep_their_inputs_and_outputs_in_a_bucket() -> None:
    shape, bucket = Shape(1, 1, 2, 1), Shape(2, 1, 3, 1)
    indices = buckets.parameter_indices(shape, bucket)
    # Rows 0 to 3 have the features of x, rows 4 to 7 those of y. A row has 3 weights, and biases
    # follow after all rows.
    assert indices.tolist() == [0, 1, 3, 4, 12, 13, 15, 16, 24, 25, 27, 28, 30]


def test_buckets_are_used_on_compiling_devices_with_enough_memory() -> None:
    shape = Shape(16, 5, 104, 3)
    for device in (SMALL_DEVICE, open_device("numpy")):
        assert (
            buckets.training_shape(shape, device)
            == buckets.decoding_shape(shape, device, 10**4)
            == shape
        )
        assert buckets.opening_steps(shape, device, 10**9, BATCH) == 0
    for device in (CPU, GPU):
        assert buckets.training_shape(shape, device).width == 128
        assert buckets.decoding_shape(shape, device, 10**4).width == 128


def test_long_runs_on_cpus_change_to_their_own_program() -> None:
    def opening_of(width: int, steps: int) -> int:
        return buckets.opening_steps(Shape(16, 5, width, 3), CPU, steps, BATCH)

    assert opening_of(72, 3750) == opening_of(28, 30_000) == opening_of(128, 10**6) == 0
    assert 500 < opening_of(104, 60_000) == opening_of(104, 10**6) < 1000
    assert opening_of(104, 7500) == opening_of(120, 60_000)
    many, few = (buckets.decoding_shape(Shape(16, 5, 104, 3), CPU, n).width for n in (10**7, 10**5))
    assert (few, many) == (128, 104)


def test_very_long_runs_on_gpus_begin_in_their_own_program() -> None:
    def begins_in(width: int, steps: int) -> int:
        shape = Shape(16, 5, width, 3)
        assert buckets.opening_steps(shape, GPU, steps, BATCH) == 0
        return buckets.training_shape(shape, GPU, steps, BATCH).width

    assert [begins_in(144, steps) for steps in (0, 60_000, 180_000)] == [192, 192, 144]
    assert begins_in(28, 480_000) == 32
    shape = Shape(16, 5, 104, 3)
    widths = [buckets.decoding_shape(shape, GPU, n).width for n in (10**5, 10**7, 10**9, 10**10)]
    assert widths == [128, 128, 128, 104]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_bucket_decodes_the_same_pixels(mapping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, pictures = open_mapping(mapping), []
    networks = [random_network(Shape(3, 3, 6, 3)), random_network(Shape(4, 3, 14, 3), 1)]
    for bucket in (lambda shape, *_: shape, lambda shape, *_: buckets.shared_shape(shape)):
        monkeypatch.setattr(buckets, "decoding_shape", bucket)
        decoder = integer_inference.Decoder(13, 9, device)
        pictures.append([decoder.decode(network) for network in networks])
    for alone, shared in zip(*pictures, strict=True):
        assert alone.std() > 1
        assert (alone == shared).all()


def test_bucket_renders_the_same_picture_within_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    device, network, pictures = open_device("numpy"), random_network(Shape(3, 3, 6, 3)), []
    for bucket in (lambda shape, *_: shape, lambda shape, *_: buckets.shared_shape(shape)):
        monkeypatch.setattr(buckets, "decoding_shape", bucket)
        pictures.append(float_render.render(network, (13, 9), (26, 18), device).astype(int))
    assert pictures[0].std() > 1
    assert np.abs(pictures[0] - pictures[1]).max() <= 1


def test_second_network_of_a_bucket_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for training nor for decoding, even if its picture has another size."""
    device = open_opencl()
    monkeypatch.setattr(buckets, "training_shape", lambda shape, *_: buckets.shared_shape(shape))
    sources, compile_source = set[str](), device._compile

    def compiled(source: str, options: Any) -> Any:
        sources.add(source)
        return compile_source(source, options)

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
    """Replaces the process that compiles; it ends once it is waited for."""

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
def bucket_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Shape, int]]:
    """The buckets of runs, and how many steps were run in each.

    Runs change to their own program after 50 steps, and have no rivals.
    """
    made: list[tuple[Shape, int]] = []
    run_steps = LearningStep.run

    def run(step: LearningStep, count: int, enough: Callable[[], bool] = lambda: False) -> bool:
        if not made or made[-1][0] != step.bucket:
            made.append((step.bucket, 0))
        made[-1] = step.bucket, made[-1][1] + count
        return run_steps(step, count, enough)

    monkeypatch.setattr(LearningStep, "run", run)
    monkeypatch.setattr(buckets, "are_used_on", lambda _: True)
    monkeypatch.setattr(buckets, "opening_steps", lambda *run: 50 if run[2] else 0)
    monkeypatch.setattr(opening, "compiler", Compiler)
    monkeypatch.setattr(estimate, "MAX_BRIEF_OPERATIONS", 0.0)
    Compiler.made.clear()
    return made


WANTED, PICTURE = Goal("bytes", 300), Picture(small_pixels())


def encoded(run: Run | None = None, seconds: float | None = None, lanes: Any = "one") -> Encoded:
    workload, device = Workload(120, seconds), open_device("numpy")
    device.lanes = lanes
    return encode(PICTURE, WANTED, workload, device, run or Run(), codec="mlp")


def test_long_run_begins_in_a_bucket_and_changes_to_its_own_program(
    bucket_steps: list[tuple[Shape, int]],
) -> None:
    result = encoded()
    (shared, first), (alone, rest) = bucket_steps
    assert (first, rest) == (50, 70)
    assert shared == buckets.shared_shape(alone) != alone
    assert [one.waited for one in Compiler.made] == [1]
    assert result.metrics["steps"] == 120
    assert result.metrics["network"] == str(alone)
    assert encoded().bytes == result.bytes


@pytest.mark.parametrize("steps", [30, 50, 90])  # before the change, while it waits, and after it
def test_resumed_run_changes_its_program_at_the_same_step(
    steps: int, bucket_steps: list[tuple[Shape, int]], tmp_path: Path
) -> None:
    uninterrupted = encoded()
    bucket_steps.clear()
    checkpoint = Checkpoint(tmp_path / "c", "k")

    def stop() -> bool:
        return sum(count for _, count in bucket_steps) >= steps

    with pytest.raises(Interrupted, match="stopped after"):
        encoded(Run(should_stop=stop, checkpoint=checkpoint))
    bucket_steps.clear()
    result = encoded(Run(checkpoint=checkpoint))
    assert result.bytes == uninterrupted.bytes
    assert steps <= result.resumed < steps + 4
    assert [bucket for bucket, _ in bucket_steps][-1] == Shape(4, 3, 9, 3)


def test_limited_run_stays_in_its_bucket(bucket_steps: list[tuple[Shape, int]]) -> None:
    result = encoded(seconds=6)
    assert not Compiler.made
    assert len({bucket for bucket, _ in bucket_steps}) == 1
    assert result.metrics["steps"] > 50


@pytest.mark.parametrize("seconds", [None, 6])
def test_unlimited_long_run_on_a_gpu_begins_in_its_own_program(
    seconds: float | None, bucket_steps: list[tuple[Shape, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "opening_steps", REAL_OPENING_STEPS)
    monkeypatch.setattr(buckets, "MIN_OPERATIONS_SAVED", {"group": 1.0})
    result = encoded(seconds=seconds, lanes="group")
    assert not Compiler.made
    ((bucket, _),) = bucket_steps
    own = Shape(4, 3, 9, 3)
    assert result.metrics["network"] == str(own)
    assert bucket == (own if seconds is None else buckets.shared_shape(own))


def test_compiler_process_compiles_the_own_program_of_a_run() -> None:
    device = open_device("numpy")
    step = LearningStep(np.zeros((5, 6, 3), np.uint8), Shape(3, 2, 6, 3), 0, device, batch=64)
    with opening.compiler(step) as compiler:
        assert compiler.working
        compiler.wait(lambda: False)
        assert compiler.done
