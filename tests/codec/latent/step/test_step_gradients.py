"""Gradients of a whole training step, compared with finite differences and references."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from latent_step_reference import reference_loss
from latent_steps import HEIGHT, NARROW, PRETRAINED_1, WIDTH, dot, draw, small_picture

from imgmlp.codec.latent.step import architecture, control, forward_pass, latent_step
from imgmlp.codec.latent.step.architecture import DEFAULT_ARCHITECTURE, Architecture
from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.step.parameters import flat_of, networks_of
from imgmlp.codec.latent.training.buckets import Bucket
from imgmlp.codec.training.perceptron import Activation
from imgmlp.engine import AnyDevice, Tensor, compile, open_device
from imgmlp.engine.ir.target import Lanes

BUCKET = (32, 48)


@pytest.mark.parametrize(
    ("spec", "sizes", "bucket"),
    [
        ("numpy", DEFAULT_ARCHITECTURE, None),
        ("numpy", PRETRAINED_1, None),
        ("numpy", PRETRAINED_1, BUCKET),
        ("numpy", replace(PRETRAINED_1, has_hyperlatents=True), None),
        ("numpy:uops", DEFAULT_ARCHITECTURE, None),
        ("numpy:uops-group", DEFAULT_ARCHITECTURE, None),
        ("numpy:uops-group", replace(PRETRAINED_1, has_hyperlatents=True), None),
        ("numpy", replace(PRETRAINED_1, extra_grids=1), None),
        ("numpy:uops", replace(PRETRAINED_1, extra_grids=2), None),
        ("numpy:uops-group", replace(PRETRAINED_1, extra_grids=3), None),
    ],
)
def test_gradients_of_a_step_match_finite_differences(
    spec: str, sizes: Architecture, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one step, Adam's first moments are the gradient times 1 - beta1."""
    monkeypatch.setattr(control, "MAX_GRADIENT_NORM", 1e9)
    pixels = small_picture().repeat(2 if sizes.has_hyperlatents else 1, 1)
    step = LatentStep(pixels, 1, open_device(spec), sizes, bucket)
    start = step.rate_anchor.numpy() if sizes.pretrained else 0.0
    rate_factor = (
        latent_step.DIFFERENCE_RATE_FACTOR if sizes.pretrained else latent_step.WEIGHT_RATE_FACTOR
    )
    flat = step.flat.numpy() + 0.05 * draw(*step.flat.shape)
    plane = np.zeros(step.latents.shape, np.float32)
    for n, part in enumerate(step.extent.parts(plane)):
        part[:] = 2 * draw(*part.shape, seed=n)
    step.flat.write(flat)
    step.latents.write(plane)
    step.steer(Control(1e-2, noise_scale=0.0))
    step.program.run(1)
    by_flat, by_plane = (
        a.first[0].numpy() / (1 - beta)
        for a, beta in ((step.adam, control.NETWORK_BETA1), (step.adam_latents, 0.8))
    )
    assert not by_plane[step.extent.value_mask() == 0].any()

    def loss(plane: np.ndarray, flat: np.ndarray) -> float:
        of_weights = rate_factor * float(
            np.sum(np.log2(1 + np.abs(flat - start) / latent_step.WEIGHT_STEP_SIZE))
        )
        return (
            reference_loss(step, pixels, step.extent.parts(plane), flat, 1e-2) + 1e-2 * of_weights
        )

    exact = plane.astype(np.float64), flat.astype(np.float64)
    result = float(step.program.read("error")) / 3 + 1e-2 * float(step.program.read("bits"))
    assert result == pytest.approx(
        reference_loss(step, pixels, step.extent.parts(exact[0]), exact[1], 1e-2), rel=1e-5
    )
    for seed in range(3):
        ways = (
            draw(*plane.shape, seed=seed) * step.extent.value_mask(),
            draw(*flat.shape, seed=seed),
        )
        for n, g in enumerate((by_plane, by_flat)):
            up, down = ([e + s * (i == n) * ways[i] for i, e in enumerate(exact)]
                        for s in (1e-6, -1e-6))  # fmt: skip
            slope = (loss(*up) - loss(*down)) / 2e-6
            assert dot(g, ways[n]) == pytest.approx(
                slope, rel=2e-3, abs=1e-3 * float(np.abs(g).max())
            )


@pytest.mark.parametrize("size", [(12, 20), (24, 40)])
def test_network_gradient_is_clipped_to_the_maximum_norm_per_pixel(
    size: tuple[int, int],
) -> None:
    """The maximum is multiplied by the pixels; a smaller gradient is not changed."""
    noise = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    step = LatentStep(noise, 1, open_device("numpy"), NARROW)
    most = control.MAX_GRADIENT_NORM * noise[:, :, 0].size
    for spread, is_clipped in ((30.0, True), (0.1, False)):
        step.write_grids([np.rint(spread * draw(*grid.shape)) for grid in step.grids()])
        step.adam.first[0].write(np.zeros(step.flat.shape, np.float32))
        step.steer(Control(1e-3, noise_scale=0.0))
        step.run(1)
        moved = float(np.linalg.norm(step.adam.first[0].numpy())) / (1 - control.NETWORK_BETA1)
        if is_clipped:
            assert moved == pytest.approx(most, rel=1e-4)
        else:
            assert moved < 0.9 * most


@pytest.mark.parametrize("lanes", ["one", "group"])
@pytest.mark.parametrize("hyper", [False, True])
def test_padding_to_a_bucket_changes_neither_cost_picture_nor_gradients(
    hyper: bool, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architecture, "FILTERED_FROM_WIDTH", PRETRAINED_1.synthesis_width)
    device, pixels = open_device("numpy"), small_picture().repeat(2 if hyper else 1, 1)
    device.lanes = lanes
    bucket = 2 * BUCKET[0], 2 * BUCKET[1]
    own, padded = (
        LatentStep(pixels, 1, device, replace(PRETRAINED_1, has_hyperlatents=hyper), one)
        for one in (None, bucket)
    )
    grids = [np.rint(2 * draw(*grid.shape, seed=n)) for n, grid in enumerate(own.grids())]
    flat = own.flat.numpy() + np.float32(0.02) * draw(*own.flat.shape)
    results = []
    for step in (own, padded):
        step.write_grids(grids)
        step.flat.write(flat)
        results.append((*step.judge(step.flat.numpy()), step.picture()))
        assert all(map(np.array_equal, step.grids(), grids))
    assert results[0][:2] == pytest.approx(results[1][:2], rel=1e-6)
    assert np.array_equal(results[0][2], results[1][2])
    slopes = []
    for step in (own, padded):
        step.steer(Control(1e-2, noise_scale=0.0))
        step.program.run(1)
        by_flat, by_latents = (adam.first[0].numpy() for adam in (step.adam, step.adam_latents))
        slopes.append([by_flat, *step.extent.parts(by_latents)])
    for alone, in_bucket in zip(*slopes, strict=True):
        assert np.allclose(alone, in_bucket, rtol=1e-4, atol=1e-5 * np.abs(alone).max())


def test_latent_updates_by_bits_alone_do_not_depend_on_lambda() -> None:
    """Adam's epsilon must not shrink the update where lambda is low."""
    moved = []
    for lmbda in (1e-3, 1e-6):
        step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
        networks = networks_of(step.flat.numpy().copy(), step.parameter_shapes)
        networks["synthesis.0.weight"][:] = 0  # so that only bits move latents
        step.flat.write(flat_of(networks))
        step.write_grids([np.full(grid.shape, 1.3, np.float32) for grid in step.grids()])
        step.steer(Control(lmbda, noise_scale=0.0, latent_lr=0.1))
        step.program.run(1)
        moved.append(max(float(np.abs(grid - np.float32(1.3)).max()) for grid in step.grids()))
    assert moved[0] > 1e-3
    assert moved[1] == pytest.approx(moved[0], rel=0.01)


def test_network_slopes_match_finite_differences_of_judged_cost() -> None:
    step = LatentStep(small_picture(), 1, open_device("numpy"), PRETRAINED_1)
    step.write_grids([np.rint(2 * draw(*grid.shape)) for grid in step.grids()])
    flat = step.flat.numpy()
    step.steer(Control(1e-3))
    before, steered = step.state(), step.control.numpy()
    for seed, lmbda in enumerate((1e-4, 1e-2, 1.0)):
        direction = draw(*flat.shape, seed=seed)
        with step.gradients(lmbda) as gradient_at:
            slopes = gradient_at(flat)
        up, down = (
            error + lmbda * rate
            for error, rate in (
                step.judge((flat + s * direction).astype(np.float32)) for s in (1e-3, -1e-3)
            )
        )
        assert dot(slopes, direction) == pytest.approx((up - down) / 2e-3, rel=2e-2)
        assert np.array_equal(step.control.numpy(), steered)  # training continues with it
    for name, array in before.items():
        assert np.array_equal(array, step.state()[name]), name


def test_tile_subsampled_network_gradients_average_to_those_of_all_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four steps use one of four tiles each; their mean gradient is that of all tiles.

    Latents get the same gradients with and without subsampling.
    """
    # Rounding of longer sums alone reaches 1e-5.
    monkeypatch.setattr(forward_pass, "MIN_SUBSAMPLED_POSITIONS", 2**12)
    side = int(math.sqrt(forward_pass.MIN_SUBSAMPLED_POSITIONS))
    pixels = np.random.default_rng(3).integers(0, 256, (side, side, 3), np.uint8)
    step = LatentStep(pixels, 1, open_device("numpy"), NARROW)
    step.write_grids([draw(*size, seed=n) for n, size in enumerate(step.shape.grid_sizes)])
    before, results, moved = step.state(), list[np.ndarray](), list[list[np.ndarray]]()
    for turn, tiles in enumerate([1, 4, 4, 4, 4]):
        step.restore(before)
        step.count.write(np.uint32(turn))
        step.steer(Control(1e-3, noise_scale=0.0, tile_subsampling=tiles))
        step.run(1)
        results.append(networks_of(step.program.read("slopes"), step.parameter_shapes))
        moved.append(step.grids())
    every, *parts = results
    for name, values in every.items():
        mean = np.mean([part[name] for part in parts], 0)
        assert np.abs(mean - values).max() <= 1e-5 * np.abs(values).max(), name
        deviation = max(np.abs(part[name] - values).max() for part in parts)
        kind, _, part = name.partition(".")  # biases of the residual are summed without products
        sampled = kind in ("entropy", "synthesis") or (kind == "residual" and "weight" in part)
        assert (deviation > 1e-3 * np.abs(values).max()) == sampled, name
    for grids in moved[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(grids, moved[0], strict=True))


def test_gpus_and_small_pictures_use_no_tile_subsampling() -> None:
    """Their programs contain no subsampling at all."""
    small = LatentStep(small_picture(), 1, open_device("numpy"), NARROW)
    assert small._subsample(forward_pass.MIN_SUBSAMPLED_POSITIONS - 1) is None
    assert small._subsample(forward_pass.MIN_SUBSAMPLED_POSITIONS) is not None
    small.device = cast(AnyDevice, SimpleNamespace(lanes="group"))
    assert small._subsample(forward_pass.MIN_SUBSAMPLED_POSITIONS) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_of_the_worst_picture_stay_within_half_precision(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random black and white samples at a very low lambda are the worst case.

    Gradients by the outputs of layers, which products round to halves, are checked with zero
    latents, with random ones and after training.
    """
    outputs: list[Tensor] = []

    def recording_perceptron(x: Tensor, layers: list[Tensor], *some: Any) -> Tensor:
        for n in range(0, len(layers), 2):
            outputs.append((Activation.apply(x) if n else x) @ layers[n] + layers[n + 1])
            x = outputs[-1]
        return x

    noise = 255 * np.random.default_rng(1).integers(0, 2, (HEIGHT, WIDTH, channels))
    sizes = Architecture(16, 12, pretrained=4)
    step = LatentStep(noise.astype(np.uint8), 1, open_device("numpy"), sizes)
    monkeypatch.setattr(forward_pass, "perceptron", recording_perceptron)

    def slopes() -> dict[str, Tensor]:
        error, bits = (costs.sum() for costs in step._forward(step.latents, step.flat))
        loss = (error * (1 / channels) + bits * step.steering.lmbda) * step.steering.loss_scale
        return {f"{n}": g for n, g in enumerate(loss.gradient(outputs))}

    program = compile(slopes, step.device)
    step.steer(Control(1e-6))
    for spread, steps in [(0.0, 0), (20.0, 0), (0.0, 30)]:
        step.write_grids([np.rint(spread * draw(*grid.shape)) for grid in step.grids()])
        step.program.run(steps)
        program.run()
        halves = [program.read(name).astype(np.float16) for name in program.outputs]
        assert max(float(np.abs(h).max()) for h in halves) < np.finfo(np.float16).max / 5
        assert all(np.count_nonzero(h) for h in halves)
