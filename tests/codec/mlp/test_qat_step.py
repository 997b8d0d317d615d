"""The quantisation-aware training step of a network."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from conftest import open_mapping, small_pixels
from reference import close

from imgmlp.codec.mlp import integer_inference, qat_step
from imgmlp.codec.mlp.network import Shape
from imgmlp.codec.mlp.qat_step import Control, LearningStep
from imgmlp.codec.training import replay
from imgmlp.codec.training.perceptron import Activation
from imgmlp.engine import Tensor, open_device

SHAPE = Shape(3, 2, 6, 3)


def make(mapping: str = "numpy") -> LearningStep:
    return LearningStep(small_pixels(), SHAPE, 0, open_mapping(mapping))


def losses(step: LearningStep, control: Control, count: int) -> float:
    """The smoothed loss after so many steps from the beginning."""
    step.steer(control)
    step.program.run(count)
    return replay.mean_loss(float(step.smooth.item()), int(step.count.item()))


def test_activation_is_near_that_of_the_decoder() -> None:
    x = np.linspace(-4, 4, 401).astype(np.float32)
    device = open_device("numpy")
    floats = Activation.apply(Tensor(x, device)).numpy()
    integers = integer_inference.activate(Tensor((x * 1024).astype(np.int32), device)).numpy()
    # The decoder truncates the argument, where the slope is at most 1.5, and the gate, which is
    # multiplied by up to 4, and rounds the result once.
    assert np.abs(floats - integers / 1024).max() <= (1.5 + 2 + 0.5) / 1024


def test_opencl_agrees_with_numpy() -> None:
    control = Control(50, noise=True, lmbda=1e-3)
    step, reference = make("one"), make()
    for one in (step, reference):
        one.log_step_sizes.write(np.full(6, -4, np.float32))
        losses(one, control, 3)
    for name, array in reference.state().items():
        assert close(step.state()[name], array, roundings=1024), name


def test_training_lowers_the_loss() -> None:
    step = make()
    first = losses(step, Control(60), 1)
    assert losses(step, Control(60), 59) < first / 2


def test_learning_rate_grows_with_the_batch_and_falls_with_long_runs() -> None:
    def largest_change(batch: int, steps: int) -> float:
        step = LearningStep(small_pixels(), SHAPE, 0, open_device("numpy"), batch)
        before = step.flat.numpy()
        losses(step, Control(steps), 1)
        return float(np.abs(step.flat.numpy() - before).max())

    change = largest_change(64, 60_000)  # Adam's first step moves weights by the learning rate
    assert largest_change(128, 60_000) / change == pytest.approx(2**0.3, rel=1e-2)
    assert largest_change(64, 240_000) / change == pytest.approx(0.25**0.25, rel=1e-2)


def test_weights_without_gradient_decay() -> None:
    step = make()
    arrays = step.split(step.flat.numpy())
    bias, weights = arrays[3], arrays[2]
    bias[0] = -100  # far below the end of the activation, so that there is no gradient
    before = np.abs(weights[:, 0]).sum()
    step.load(arrays)
    losses(step, Control(60), 60)
    after = np.abs(step.split(step.flat.numpy())[2][:, 0]).sum()
    peak = qat_step.LEARNING_RATE * np.sqrt(qat_step.REFERENCE_WIDTH / SHAPE.width)
    assert (
        1 - 60 * peak * qat_step.WEIGHT_DECAY
        < after / before
        < 1 - 10 * peak * qat_step.WEIGHT_DECAY
    )


def test_rounding_computes_with_multiples_of_the_step_sizes() -> None:
    sizes = np.full(6, -3, np.float32)
    rounded, plain = make(), make()
    rounded.log_step_sizes.write(sizes)
    plain.flat.write(np.rint(plain.flat.numpy() * 8) / np.float32(8))
    frozen = Control(10, rounding=True, lr_factor=0.0)
    assert losses(rounded, frozen, 1) == pytest.approx(losses(plain, Control(10, lr_factor=0.0), 1))


def test_step_sizes_grow_with_lambda() -> None:
    def moved(lmbda: float) -> float:
        step = make()
        step.log_step_sizes.write(np.full(6, -4, np.float32))
        losses(step, Control(1000, noise=True, lmbda=lmbda), 60)
        return float((step.log_step_sizes.numpy()[:5:2] + 4).mean())

    assert moved(1.0) > 0.05
    assert moved(0.0) < 0.6 * moved(1.0)


def test_gradient_of_step_sizes_is_that_of_the_noisy_error() -> None:
    def error(sizes: np.ndarray) -> tuple[LearningStep, float]:
        step = make()
        step.log_step_sizes.write(sizes.astype(np.float32))
        return step, losses(step, Control(10, noise=True, lr_factor=0.0), 1)

    sizes = np.array([-3, -2, -3, -2, -3, -2], np.float64)
    first_moment = error(sizes)[0].adam_step_sizes.first[0].numpy()
    for n in range(6):
        delta = np.eye(6)[n] / 16
        slope = (error(sizes + delta)[1] - error(sizes - delta)[1]) * 8
        assert first_moment[n] / (1 - qat_step.BETAS[0]) == pytest.approx(slope, rel=0.02)


def test_step_sizes_do_not_change_without_noise() -> None:
    step = make()
    step.log_step_sizes.write(np.full(6, -4, np.float32))
    losses(step, Control(1000, rounding=True, lmbda=1.0), 5)
    assert (step.log_step_sizes.numpy() == -4).all()


def test_restored_state_continues_with_the_same_bits() -> None:
    control = Control(40, noise=True, lmbda=1e-3)
    whole, part, other = make(), make(), make()
    losses(whole, control, 12)
    losses(part, control, 5)
    other.restore(part.state())
    losses(other, control, 7)
    for name, array in whole.state().items():
        assert (other.state()[name] == array).all(), name


def test_features_equal_those_of_the_decoder() -> None:
    table = qat_step.feature_table(4, 10)
    assert (table * 1024 == integer_inference.features(4, 10, 0, 10)).all()
    assert np.abs(table).max() <= 1


def test_source_does_not_depend_on_the_size_of_the_picture() -> None:
    """So pictures of all sizes share kernels."""
    device = open_device("numpy:uops")
    sizes = [(7, 5), (40, 300), (300, 41), (1, 2000)]
    steps = [LearningStep(np.zeros((*s, 3), np.uint8), SHAPE, 0, device) for s in sizes]
    assert len({step.program.stages.source for step in steps}) == 1


def test_bucket_trains_like_the_network_alone() -> None:
    """Its padding stays 0, gets no noise, and costs no bits."""
    bucket, start = Shape(4, 2, 16, 3), np.array([-4, -3, -5, -4, -4, -3], np.float32)
    for control in (Control(50, noise=True, lmbda=1e-2), Control(50, rounding=True, lmbda=1e-2)):
        alone, wide = (
            LearningStep(small_pixels(), SHAPE, 0, open_device("numpy"), bucket=each)
            for each in (None, bucket)
        )
        for step in (alone, wide):
            step.log_step_sizes.write(start)
            step.measure_magnitudes()
            losses(step, control, 20)
        assert (np.delete(wide.flat.numpy(), wide.parameter_indices) == 0).all()
        expected, state = alone.state(), wide.state()
        for name, array in expected.items():
            assert state[name].shape == array.shape
            assert close(state[name], array, roundings=2048), name
        assert state["sizes"] != pytest.approx(start, abs=1e-3) or control.rounding


def test_state_of_one_bucket_continues_in_another() -> None:
    device = open_device("numpy")
    buckets = [Shape(4, 2, 16, 3), None, Shape(3, 2, 8, 3)]
    steps = [LearningStep(small_pixels(), SHAPE, 0, device, bucket=bucket) for bucket in buckets]
    control = Control(40, noise=True, lmbda=1e-3)
    losses(steps[0], control, 5)
    for before, step in pairwise(steps):
        step.restore(before.state())
        for name, array in before.state().items():
            assert (step.state()[name] == array).all(), name
        losses(step, control, 5)
    whole = LearningStep(small_pixels(), SHAPE, 0, device)
    losses(whole, control, 15)
    assert np.allclose(
        steps[-1].split(steps[-1].flat.numpy())[2], whole.split(whole.flat.numpy())[2], atol=1e-4
    )
    arrays = whole.split(whole.flat.numpy())
    steps[0].load(arrays)
    for loaded, array in zip(steps[0].split(steps[0].flat.numpy()), arrays, strict=True):
        assert (loaded == array).all()


def test_networks_of_a_bucket_share_one_program() -> None:
    device, bucket = open_device("numpy:uops"), Shape(16, 5, 32, 3)
    shapes = [Shape(6, 5, 12, 3), Shape(14, 5, 28, 3), Shape(16, 5, 32, 3)]
    steps = [LearningStep(small_pixels(), shape, 0, device, bucket=bucket) for shape in shapes]
    assert len({step.program.stages.source for step in steps}) == 1
