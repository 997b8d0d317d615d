"""The latent codec's training step: its operations, and what a file makes of what it learned."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from latent_steps import bits_of_latents, draw, grids_of
from networks import latent_programs

from imgmlp.codec.latent import sections
from imgmlp.codec.latent.model import (
    BICUBIC_TAPS,
    HYPERLATENT_LEVELS,
    MAX_CODABLE_WEIGHT,
    NEAREST_BELOW_LEVEL,
    NEIGHBOUR_RADIUS,
    LatentModel,
    Quantized,
    default_levels,
    quantized,
)
from imgmlp.codec.latent.plane import MIN_SIDE, SIDE_MULTIPLE, Extent, Plane, bucket_side
from imgmlp.codec.latent.pretrained import pretrained_networks
from imgmlp.codec.latent.step import (
    architecture,
    control,
    forward_pass,
    latent_step,
    operations,
    upsampling,
)
from imgmlp.codec.latent.step.architecture import DEFAULT_ARCHITECTURE, Architecture
from imgmlp.codec.latent.step.control import Control, Steering
from imgmlp.codec.latent.step.latent_step import PARTS, LatentStep, Part
from imgmlp.codec.latent.step.parameters import (
    flat_of,
    networks_of,
    parameter_shapes,
    random_parameters,
)
from imgmlp.codec.latent.synthesis import synthesize
from imgmlp.codec.latent.training import (
    latent_trainer,
    progressive_quantisation,
    schedule,
)
from imgmlp.codec.latent.training.bit_allocation import MAX_WEIGHT, Refinement, Search, part_of
from imgmlp.codec.latent.training.buckets import Bucket
from imgmlp.codec.latent.training.latent_trainer import LatentTrainer, LatentTrainerState
from imgmlp.codec.latent.training.lmbdas import forecast
from imgmlp.codec.latent.training.windows import WindowedStep
from imgmlp.codec.training.perceptron import Activation
from imgmlp.codec.training.run import Run
from imgmlp.codec.training.trainer import MIN_LMBDA
from imgmlp.engine import AnyDevice, Tensor, compile, open_device
from imgmlp.engine.ir.kernel import Block, Tiled
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import Lanes
from imgmlp.engine.ir.uops import U
from imgmlp.engine.oracle.index_bounds import export_bounds
from imgmlp.engine.runtime.outline import Outline
from imgmlp.engine.runtime.program_cache import identify
from imgmlp.engine.tiling import block

HEIGHT, WIDTH = 21, 30
NARROW = Architecture(8, 4)  # networks where any will do


def picture() -> np.ndarray:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    shades = np.stack([x * 255 / WIDTH, y * 255 / HEIGHT, 127 + 100 * np.sin(x * y / 40)], -1)
    return shades.astype(np.uint8)


def tiny_picture() -> np.ndarray:
    """Of few levels, for what a trainer decides whatever the picture is."""
    return picture()[:5, :7]


def dot(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.sum(a.astype(np.float64) * b))


@pytest.mark.parametrize(
    ("axis", "wanted", "first"),
    [(1, 14, 0), (1, 13, 0), (2, 10, 0), (2, 9, 0), (2, 16, 0), (1, 6, 4), (1, 5, 4), (1, 10, 2),
     (2, 2, 4), (2, 1, 4), (2, 8, 2), (2, 3, 8)],
)  # fmt: skip
def test_what_doubling_sends_back_is_its_transpose(axis: int, wanted: int, first: int) -> None:
    """It is linear in values and in taps, so products with a gradient agree on both sides."""
    device = open_device("numpy")
    x, taps = Tensor(draw(2, 7, 5), device), Tensor(draw(4, seed=1), device)
    y = upsampling.AxisUpsampling.apply(x, taps, axis, wanted, first)
    every = upsampling.AxisUpsampling.apply(x, taps, axis, first + wanted, 0).numpy()
    assert np.array_equal(y.numpy(), every[(slice(None),) * axis + (slice(first, None),)])
    g = draw(*y.shape, seed=2)
    by_x, by_taps = (y * Tensor(g, device)).sum().gradient([x, taps])
    assert dot(g, y.numpy()) == pytest.approx(dot(by_x.numpy(), x.numpy()), rel=1e-4)
    assert dot(g, y.numpy()) == pytest.approx(dot(by_taps.numpy(), taps.numpy()), rel=1e-4)


@pytest.mark.parametrize("size", [(7, 5), (1, 2), (3, 1)])
@pytest.mark.parametrize("less", [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("halo", [0, 2])
def test_both_axes_at_once_are_doubled_as_one_after_the_other(
    size: tuple[int, int], less: tuple[int, int], halo: int
) -> None:
    device = open_device("numpy")
    size = size[0] + 2 * halo, size[1] + 2 * halo
    x, taps = Tensor(draw(2, *size), device), Tensor(draw(4, seed=1), device)
    height, width = (2 * (n - halo) - m for n, m in zip(size, less, strict=True))
    g, found = Tensor(draw(2, height, width, seed=2), device), list[list[Tensor]]()
    wanted = height + 2 * halo, width + 2 * halo
    known = upsampling.upsampling_tables(2, [(0, n) for n in size], wanted)
    tables = upsampling.Tables(*(Tensor(values, device) for values in known))
    for those in (None, tables):
        y = upsampling.upsample(x, taps, height, width, those, halo)
        found.append([y, *(y * g).sum().gradient([x, taps])])
    for one, both in zip(*found, strict=True):
        assert np.allclose(one.numpy(), both.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(
    ("first", "end"), [(None, 1), (None, 3), (None, 4), (None, 5), (0, 5), (1, 2), (3, 4), (4, 5)]
)
@pytest.mark.parametrize("form", ["numpy", "cpu"])
def test_places_behind_the_last_one_and_before_the_first_one_repeat_it(
    form: str, axis: int, first: int | None, end: int
) -> None:
    device = open_device(form)
    values = draw(2, 5, 5)
    x, ends = Tensor(values, device), Tensor(np.array([end], np.int32), device)
    begin = None if first is None else Tensor(np.array([first], np.int32), device)
    y = upsampling.EdgeReplication.apply(x, begin, ends, axis)
    expected = np.take(values, np.clip(np.arange(5), first or 0, end - 1), axis)
    beyond = [n for n in range(5) if n >= end + 2 or n < (first or 0) - 2]
    expected[(slice(None),) * axis + (beyond,)] = 0
    assert np.array_equal(y.numpy(), expected)
    g = draw(*y.shape, seed=2)
    (by_x,) = (y * Tensor(g, device)).sum().gradient([x])
    assert dot(g, expected) == pytest.approx(dot(by_x.numpy(), values), rel=1e-4)


def test_a_room_is_little_larger_than_a_picture_and_serves_many() -> None:
    buckets = {side: bucket_side(side) for side in range(1, 1025)}
    for side, bucket in buckets.items():
        assert side <= bucket < side + SIDE_MULTIPLE
        assert side <= MIN_SIDE or bucket < 2 * side
    assert len(set(buckets.values())) < 20


@pytest.mark.parametrize("size", [(1, 40), (64, 64), (33, 70), (512, 768)])
@pytest.mark.parametrize("halo", [0, 4])
@pytest.mark.parametrize("extra", [0, 2])
def test_what_is_around_a_grid_in_a_plane_is_zero(
    size: tuple[int, int], halo: int, extra: int
) -> None:
    plane = Plane.of(*size, default_levels(*size), halo, (0,) * extra)
    assert [grid.level for grid in plane.grids[len(plane.grids) - extra :]] == [0] * extra
    for grid in plane.grids:
        if grid.level == 0:  # so that it is seen as a map is, in the columns of pixels
            assert grid.column == 0
            assert grid.row + plane.pixel_rows <= plane.rows
    owners = np.zeros((plane.rows + NEIGHBOUR_RADIUS, plane.pitch + NEIGHBOUR_RADIUS), int)
    for grid in plane.grids:
        row, column = grid.row + NEIGHBOUR_RADIUS, grid.column + NEIGHBOUR_RADIUS
        owners[row : row + grid.height, column : column + grid.width] += 1
    for grid in plane.grids:
        row, column = grid.row + NEIGHBOUR_RADIUS, grid.column + NEIGHBOUR_RADIUS
        around = owners[
            row - NEIGHBOUR_RADIUS : row + grid.height,
            column - NEIGHBOUR_RADIUS : column + grid.width + NEIGHBOUR_RADIUS,
        ]
        assert around.sum() == grid.height * grid.width
        assert column + grid.width <= plane.pitch  # so that what is left of a row is zero as well
    assert owners.max() == 1


def test_what_a_convolution_sends_back_is_its_transpose() -> None:
    device, plane = open_device("numpy"), Plane.of(HEIGHT, WIDTH, 3)
    x = Tensor(draw(3, plane.pixels), device)
    weights = Tensor(draw(27, 3, seed=1), device)
    y = operations.Convolution.apply(x, weights, plane, None)
    g = draw(*y.shape, seed=2)
    by_x, by_weights = (y * Tensor(g, device)).sum().gradient([x, weights])
    assert dot(g, y.numpy()) == pytest.approx(dot(by_x.numpy(), x.numpy()), rel=1e-4)
    assert dot(g, y.numpy()) == pytest.approx(dot(by_weights.numpy(), weights.numpy()), rel=1e-4)


def test_a_filter_is_a_convolution_of_one_channel() -> None:
    device, plane = open_device("numpy"), Plane.of(HEIGHT, WIDTH, 3)
    values = draw(1, plane.pixels) * np.resize(np.arange(plane.pitch) < WIDTH, plane.pixels)
    x, weights = Tensor(values, device), Tensor(draw(9, seed=1), device)
    g, found = Tensor(draw(1, plane.pixels, seed=2), device), list[list[Tensor]]()
    for y in (
        operations.Filter.apply(x, weights, plane),
        operations.Convolution.apply(x, weights.reshape(9, 1), plane, None),
    ):
        found.append([y, *(y * g).sum().gradient([x, weights])])
    for one, other in zip(*found, strict=True):
        assert np.allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-4)


def test_what_a_convolution_is_sent_is_not_computed_again_for_each_of_its_taps() -> None:
    """For a GPU no kernel, and none of those that a launch does one after the other in tiles,
    multiplies much more than 3 by 3 taps of 3 channels by their weights."""
    step = LatentStep(picture(), 1, open_device("numpy:uops-group"))
    counts = []
    for kernel, code in zip(
        step.program.stages.procedure.kernels, step.program.stages.codes, strict=True
    ):
        counts.append(0)
        for u in code.uops:
            counts[-1] += u.arg is Op.MUL
            if isinstance(kernel, Tiled) and u.op is U.BARRIER:
                counts.append(0)
    weights = 3 * 27
    assert sum(n >= weights for n in counts) >= 4  # two layers, there and back
    assert max(counts) < 1.5 * weights


def test_gradients_of_bits_are_differences() -> None:
    device = open_device("numpy")
    values = [draw(400, seed=s) * 3 for s in range(2)] + [draw(400, seed=2) * 2 + 4]
    tensors = [Tensor(v, device) for v in values]
    found = [g.numpy() for g in operations.Bits.apply(*tensors).sum().gradient(tensors)]

    def bits(changed: list[np.ndarray]) -> np.ndarray:
        value, mean, s = (c.astype(np.float64) for c in changed)
        scale = np.exp(np.clip(s - 4, operations.MIN_LOG_SCALE, operations.MAX_LOG_SCALE))

        def below(x: np.ndarray) -> np.ndarray:
            tail = 0.5 * np.exp(-np.abs(x - mean) / scale)
            return np.where(x < mean, tail, 1 - tail)

        return -np.log2(
            np.maximum(below(value + 0.5) - below(value - 0.5), operations.MIN_PROBABILITY)
        )

    likely = bits(values) < 12  # nearer to the floor there is no slope, and cancellation in `below`
    for n, g in enumerate(found):
        step = 1e-4
        up, down = ([v + step * sign * (i == n) for i, v in enumerate(values)] for sign in (1, -1))
        differences = (bits(up) - bits(down)) / (2 * step)
        off = np.abs(g - differences)[likely] / (1e-2 + np.abs(differences[likely]))
        assert np.quantile(off, 0.97) < 0.02  # others are within a step of a bend


def reference(
    step: LatentStep, pixels: np.ndarray, grids: list[np.ndarray], flat: np.ndarray, lmbda: float
) -> float:
    """The loss of a step without noise, in float64 and value by value."""
    ends = np.cumsum([int(np.prod(s)) for s in step.parameter_shapes.tensors])[:-1]
    arrays = [
        a.reshape(s)
        for a, s in zip(np.split(flat, ends), step.parameter_shapes.tensors, strict=True)
    ]
    synthesis, (w, b, w2, b2), entropy = arrays[:6], arrays[6:10], arrays[10:16]
    every = [softened(softened(g)) for g in grids]
    seen, own = every[: step.levels], every[step.levels :]
    hyper = own if step.shape.has_hyperlatents else []
    bits = sum(float(np.sum(bits_of(g, entropy, maps_above(hyper, seen, n))))
               for n, g in enumerate(seen))  # fmt: skip
    bits += sum(float(np.sum(bits_of(g, entropy, np.zeros((3, *g.shape))))) for g in own)
    maps = seen[-1][None]
    for level in range(step.levels - 2, -1, -1):
        for axis, wanted in ((1, grids[level].shape[0]), (2, grids[level].shape[1])):
            maps = doubled(maps, arrays[16 + level], axis, wanted)
        maps = np.concatenate([seen[level][None], maps])
    if step.shape.has_filter:
        of_finest = convolved(seen[0][..., None], arrays[-1].reshape(9, 1))
        maps = np.concatenate([maps, of_finest.transpose(2, 0, 1)])
    if step.shape.extra_grids:
        maps = np.concatenate([maps, np.stack(own)])
    y = network(maps.transpose(1, 2, 0), synthesis)
    y = y + activated(convolved(y, w) + b)
    y = y + convolved(y, w2) + b2
    error = np.sum((y - (pixels / 255 - 0.5)) ** 2) / 3
    return float(error) + lmbda * bits


def softened(x: np.ndarray, t: float = 0.3) -> np.ndarray:
    whole = np.floor(x)
    return whole + 0.5 + 0.5 / np.tanh(0.5 / t) * np.tanh((x - whole - 0.5) / t)


def activated(x: np.ndarray) -> np.ndarray:
    u = np.clip(x / 4 + 0.5, 0, 1)
    return x * u * u * (3 - 2 * u)


def network(x: np.ndarray, layers: list[np.ndarray]) -> np.ndarray:
    for n in range(0, len(layers), 2):
        x = (activated(x) if n else x) @ layers[n] + layers[n + 1]
    return x


def maps_above(own: list[np.ndarray], grids: list[np.ndarray], level: int) -> np.ndarray:
    """[hyperlatents, h, w]: what they are where a grid's values are."""
    found = np.zeros((len(own), *grids[level].shape))
    for maps, values, first in zip(found, own, HYPERLATENT_LEVELS, strict=False):
        apart = 1 << max(level - first, 0)
        one = values[None, ::apart, ::apart]
        for n in range(first - 1, level - 1, -1):
            h, w = grids[n].shape
            if n < NEAREST_BELOW_LEVEL:
                one = one.repeat(2, 1).repeat(2, 2)[:, :h, :w]
            else:
                one = doubled(
                    doubled(one, np.array(BICUBIC_TAPS), 1, h), np.array(BICUBIC_TAPS), 2, w
                )
        maps[:] = one[0]
    return found


def bits_of(grid: np.ndarray, layers: list[np.ndarray], above: np.ndarray) -> np.ndarray:
    h, w = grid.shape
    framed = np.pad(grid, ((3, 0), (3, 3)))
    shifted = [framed[k // 7 : k // 7 + h, k % 7 : k % 7 + w] for k in range(24)]
    shifted += list(above[: len(layers[0]) - 24])
    mean, s = np.moveaxis(network(np.stack(shifted, -1), layers), -1, 0)
    scale, away = (
        np.exp(np.clip(s - 4, operations.MIN_LOG_SCALE, operations.MAX_LOG_SCALE)),
        np.abs(grid - mean),
    )
    near, far = np.exp(-np.abs(away - 0.5) / scale) / 2, np.exp(-(away + 0.5) / scale) / 2
    return -np.log2(
        np.maximum(np.where(away < 0.5, 1 - near - far, near - far), operations.MIN_PROBABILITY)
    )


def doubled(x: np.ndarray, taps: np.ndarray, axis: int, wanted: int) -> np.ndarray:
    places, found = np.arange(wanted), 0.0
    for j in range(4):
        tap = np.where(places % 2, taps[3 - j], taps[j]).reshape((-1, 1) if axis == 1 else -1)
        at = np.clip(places // 2 + places % 2 + j - 2, 0, x.shape[axis] - 1)
        found = found + np.take(x, at, axis) * tap
    return np.asarray(found)


def convolved(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    framed = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    h, w, channels = x.shape
    near = [framed[y : y + h, z : z + w] for y in range(3) for z in range(3)]
    return np.stack(near, -1).reshape(h, w, channels * 9) @ weights


STARTED = Architecture(16, 12, pretrained=1)
BUCKET = (32, 48)


@pytest.mark.parametrize(
    ("spec", "sizes", "bucket"),
    [
        ("numpy", DEFAULT_ARCHITECTURE, None),
        ("numpy", STARTED, None),
        ("numpy", STARTED, BUCKET),
        ("numpy", replace(STARTED, has_hyperlatents=True), None),
        ("numpy:uops", DEFAULT_ARCHITECTURE, None),
        ("numpy:uops-group", DEFAULT_ARCHITECTURE, None),
        ("numpy:uops-group", replace(STARTED, has_hyperlatents=True), None),
        ("numpy", replace(STARTED, extra_grids=1), None),
        ("numpy:uops", replace(STARTED, extra_grids=2), None),
        ("numpy:uops-group", replace(STARTED, extra_grids=3), None),
    ],
)
def test_gradients_of_a_whole_step_are_differences(
    spec: str, sizes: Architecture, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam's first moments hold after one step what momentum leaves of the gradient."""
    monkeypatch.setattr(control, "MAX_GRADIENT_NORM", 1e9)
    pixels = picture().repeat(2 if sizes.has_hyperlatents else 1, 1)
    step = LatentStep(pixels, 1, open_device(spec), sizes, bucket)
    start = step.rate_anchor.numpy() if sizes.pretrained else 0.0
    dearer = (
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
        of_weights = dearer * float(
            np.sum(np.log2(1 + np.abs(flat - start) / latent_step.WEIGHT_STEP_SIZE))
        )
        return reference(step, pixels, step.extent.parts(plane), flat, 1e-2) + 1e-2 * of_weights

    exact = plane.astype(np.float64), flat.astype(np.float64)
    found = float(step.program.read("error")) / 3 + 1e-2 * float(step.program.read("bits"))
    assert found == pytest.approx(
        reference(step, pixels, step.extent.parts(exact[0]), exact[1], 1e-2), rel=1e-5
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
def test_the_gradient_of_networks_has_at_most_the_norm_that_is_for_a_pixel(
    size: tuple[int, int],
) -> None:
    """Times the pixels, which it is summed over; a smaller one stays as it is."""
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
def test_a_room_for_more_changes_nothing_that_a_file_would_have(
    hyper: bool, lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(architecture, "FILTERED_FROM_WIDTH", STARTED.synthesis_width)
    device, pixels = open_device("numpy"), picture().repeat(2 if hyper else 1, 1)
    device.lanes = lanes
    bucket = 2 * BUCKET[0], 2 * BUCKET[1]
    own, roomy = (
        LatentStep(pixels, 1, device, replace(STARTED, has_hyperlatents=hyper), one)
        for one in (None, bucket)
    )
    grids = [np.rint(2 * draw(*grid.shape, seed=n)) for n, grid in enumerate(own.grids())]
    flat = own.flat.numpy() + np.float32(0.02) * draw(*own.flat.shape)
    found = []
    for step in (own, roomy):
        step.write_grids(grids)
        step.flat.write(flat)
        found.append((*step.judge(step.flat.numpy()), step.picture()))
        assert all(map(np.array_equal, step.grids(), grids))
    assert found[0][:2] == pytest.approx(found[1][:2], rel=1e-6)
    assert np.array_equal(found[0][2], found[1][2])
    slopes = []
    for step in (own, roomy):
        step.steer(Control(1e-2, noise_scale=0.0))
        step.program.run(1)
        by_flat, by_latents = (adam.first[0].numpy() for adam in (step.adam, step.adam_latents))
        slopes.append([by_flat, *step.extent.parts(by_latents)])
    for alone, in_room in zip(*slopes, strict=True):
        assert np.allclose(alone, in_room, rtol=1e-4, atol=1e-5 * np.abs(alone).max())


@pytest.mark.parametrize("lanes", ["one", "group"])
def test_pictures_that_share_a_room_share_their_programs(lanes: Lanes) -> None:
    device, sizes = open_device("numpy"), ((21, 30), (32, 17), (25, 32))
    device.lanes = lanes
    steps = [LatentStep(picture()[:1, :1].repeat(h, 0).repeat(w, 1), 1, device, bucket=(32, 32))
             for h, w in sizes]  # fmt: skip
    for programs in zip(*map(latent_programs, steps), strict=True):
        assert len({program._identity[0] for program in programs}) == 1


def launches_on_a_card(pixels: np.ndarray, bucket: Bucket = None) -> int:
    device = open_device("numpy")
    device.lanes, device.has_matrix_units = "group", True
    step = LatentStep(pixels, 1, device, Architecture(16, 16), bucket=bucket)
    return len(step.program.stages.procedure.kernels)


def test_a_graphics_card_takes_a_step_in_few_launches() -> None:
    """Of 5 levels: upsampling a level is one launch forward and one back, and what follows a
    convolution is none."""
    assert launches_on_a_card(picture()[:16, :16]) <= 24


def test_in_a_room_a_graphics_card_takes_no_more_launches() -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    assert launches_on_a_card(pixels[:27, :19], (32, 32)) == launches_on_a_card(pixels)


def test_networks_come_back_as_they_were() -> None:
    step = LatentStep(picture(), 1, open_device("numpy"))
    flat = draw(step.flat.shape[0])
    assert np.array_equal(flat_of(networks_of(flat, step.parameter_shapes)), flat)


def test_random_layers_keep_the_variance_and_all_else_begins_neutral() -> None:
    """He's initialisation before activations, half its variance in last layers; the weights of 100
    seeds say so within 3%."""
    model = DEFAULT_ARCHITECTURE.model_shape(64, 64, 3, 6)
    shapes = parameter_shapes(model)
    drawn = [networks_of(random_parameters(shapes, seed), shapes) for seed in range(100)]
    first = drawn[0]
    for name, shape in model.tensor_shapes.items():
        if name.startswith(("synthesis", "entropy")) and name.endswith("weight"):
            gain = 1 if name.split(".")[1] == "2" else 2
            deviation = np.std([networks[name] for networks in drawn])
            assert deviation == pytest.approx(math.sqrt(gain / shape[0]), rel=0.03), name
        elif name == "upsampling":
            assert np.array_equal(first[name], np.tile(np.float32(BICUBIC_TAPS), (5, 1)))
        elif name == "filter":
            assert np.allclose(first[name], 1 / 9)
        else:
            assert not first[name].any(), name


def test_networks_begin_from_a_start() -> None:
    """All of them but the weights of alpha, which are drawn, and cost least where they are 0."""
    step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
    start = pretrained_networks(1, step.shape).floats()
    for name, values in networks_of(step.flat.numpy(), step.parameter_shapes).items():
        assert np.array_equal(values, start[name]), name
    wide = LatentStep(picture(), 1, open_device("numpy"), Architecture(pretrained=3))
    found = networks_of(wide.flat.numpy(), wide.parameter_shapes)
    assert not found["synthesis.0.weight"][-1].any()
    assert found["filter"].any()  # or neither of the two would ever move
    gray = LatentStep(picture()[:, :, :1], 1, open_device("numpy"), STARTED)
    found = networks_of(gray.flat.numpy(), gray.parameter_shapes)
    begun = pretrained_networks(1, gray.shape).floats()
    assert all(np.array_equal(values, begun[name]) for name, values in found.items())
    with_alpha = picture()[:, :, [0, 1, 2, 0]]
    both = LatentStep(with_alpha, 1, open_device("numpy"), STARTED)
    found = networks_of(both.flat.numpy(), both.parameter_shapes)
    assert np.array_equal(found["synthesis.2.weight"][:, :3], start["synthesis.2.weight"])
    assert found["synthesis.2.weight"][:, 3].any()
    assert not networks_of(both.rate_anchor.numpy(), both.parameter_shapes)["synthesis.2.weight"][
        :, 3
    ].any()
    hidden = np.concatenate([picture(), np.uint8(255) * (picture()[:, :, :1] > 200)], 2)
    cut_out = LatentStep(hidden, 1, open_device("numpy"), STARTED)
    found = networks_of(cut_out.flat.numpy(), cut_out.parameter_shapes)
    assert np.array_equal(found["synthesis.1.weight"], start["synthesis.1.weight"])
    assert not np.array_equal(found["synthesis.2.weight"][:, :3], start["synthesis.2.weight"])
    assert not networks_of(cut_out.rate_anchor.numpy(), cut_out.parameter_shapes)[
        "synthesis.2.weight"
    ].any()


def test_finer_steps_leave_the_picture_as_it_is_and_cost_the_bits_of_finer_numbers() -> None:
    """And what is trained then goes on with as many times the rate of latents."""
    step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
    step.write_grids([np.rint(4 * draw(*grid.shape)) for grid in step.grids()])
    before, grids = step.judge(step.flat.numpy()), step.grids()
    latent_trainer.scale_latents(step, 2.0)
    error, rate = step.judge(step.flat.numpy())
    assert error == pytest.approx(before[0], rel=1e-4)
    count = sum(grid.size for grid in grids) / step.pixels  # a bit for each, about
    assert before[1] + 0.5 * count < rate < before[1] + 1.5 * count
    for grid, finer in zip(grids, step.grids(), strict=True):
        assert np.array_equal(finer, 2 * grid)
    latent_trainer.scale_latents(step, 0.5)
    assert step.judge(step.flat.numpy()) == pytest.approx(before, rel=1e-4)


def test_steps_are_as_fine_as_the_lambda_asks_and_the_picture_can_pay() -> None:
    lmbdas = [1e-7, 1e-5, 1e-4, 4e-4, 8e-4, 10.0]
    found = [schedule.latent_scale(lmbda, 100_000, 300, 6) for lmbda in lmbdas]
    assert found == sorted(found, reverse=True)
    assert found[0] == schedule.MAX_LATENT_SCALE
    assert found[4:] == [1.0, 1.0]
    small = [schedule.latent_scale(lmbda, 256, 300, 6) for lmbda in lmbdas]
    assert small == [*found[:2], 1.0, 1.0, 1.0, 1.0]
    assert all(schedule.latent_scale(lmbda, 100_000, 299, 6) == 1.0 for lmbda in lmbdas)
    low = [schedule.latent_scale(lmbda, 100_000, 300, 7) for lmbda in lmbdas]
    assert low[0] == pytest.approx(100**schedule.LATENT_SCALE_EXPONENT)
    assert low[1:] == [1.0] * 5  # which that start was trained for, or dearer ones


@pytest.mark.parametrize(("largest", "finer"), [(2.0, 4.0), (20.0, 1.5), (50.0, 1.0)])
def test_steps_are_no_finer_than_leaves_room_for_more_of_the_largest_latents(
    largest: float, finer: float
) -> None:
    step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
    grids = step.grids()
    grids[-1][0, 0] = -largest
    step.write_grids(grids)
    trainer = LatentTrainer(step, LatentTrainerState(400, 1e-5))
    trainer.rescale(4.0)
    assert trainer.state.latent_scale == pytest.approx(finer)
    assert step.grids()[-1][0, 0] == pytest.approx(-largest * finer)


def test_latents_of_finer_steps_have_higher_rates_and_a_pass_does_not_go_far_at_once() -> None:
    step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
    trainer = LatentTrainer(step, LatentTrainerState(400, 1e-5))
    trainer.rescale()
    trainer.run(Run(should_stop=lambda: True))
    finer = schedule.latent_scale(1e-5, step.pixels, 400, step.pretrained.number)
    first = schedule.control(0, 400, 1e-5).latent_lr
    assert Steering(*step.control.numpy()).latent_lr == pytest.approx(first * finer, rel=0.2)
    assert trainer.state.latent_scale == finer > 4
    networks = Search(step).run(1e-3)
    trainer.begin_pass(1e-3, networks)
    assert trainer.state.latent_scale == finer
    assert np.array_equal(step.flat.numpy(), flat_of({n: q.floats() for n, q in networks.items()}))
    trainer.begin_pass(1e-7, networks)
    assert trainer.state.latent_scale == finer * latent_trainer.MAX_RESCALING


def test_gradients_are_no_smaller_beside_epsilon_where_bits_are_cheap() -> None:
    """A step of latents is as long where it is by bits alone, whatever these cost."""
    moved = []
    for lmbda in (1e-3, 1e-6):
        step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
        networks = networks_of(step.flat.numpy().copy(), step.parameter_shapes)
        networks["synthesis.0.weight"][:] = 0  # so that bits alone move latents
        step.flat.write(flat_of(networks))
        step.write_grids([np.full(grid.shape, 1.3, np.float32) for grid in step.grids()])
        step.steer(Control(lmbda, noise_scale=0.0, latent_lr=0.1))
        step.program.run(1)
        moved.append(max(float(np.abs(grid - np.float32(1.3)).max()) for grid in step.grids()))
    assert moved[0] > 1e-3
    assert moved[1] == pytest.approx(moved[0], rel=0.01)


def test_slopes_are_differences_of_what_is_judged() -> None:
    step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
    step.write_grids([np.rint(2 * draw(*grid.shape)) for grid in step.grids()])
    flat = step.flat.numpy()
    step.steer(Control(1e-3))
    before, steered = step.state(), step.control.numpy()
    for seed, lmbda in enumerate((1e-4, 1e-2, 1.0)):
        way = draw(*flat.shape, seed=seed)
        slopes = step.slopes(flat, lmbda)
        up, down = (
            error + lmbda * rate
            for error, rate in (
                step.judge((flat + s * way).astype(np.float32)) for s in (1e-3, -1e-3)
            )
        )
        assert dot(slopes, way) == pytest.approx((up - down) / 2e-3, rel=2e-2)
        assert np.array_equal(step.control.numpy(), steered)  # by which it goes on
    for name, array in before.items():
        assert np.array_equal(array, step.state()[name]), name


@pytest.mark.parametrize("size", [1e3, 1e6, np.nan])
def test_networks_that_exploded_still_have_a_file(size: float) -> None:
    step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
    step.flat.write(np.full(step.flat.shape, size, np.float32))
    networks = Search(step).run(1e-3)
    LatentModel(step.shape, grids_of(step), networks)  # which checks all bounds


def test_no_number_is_no_low_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
    monkeypatch.setattr(step, "answer", lambda: math.nan)
    search = Search(step)
    assert search._cost(search._rounded(search.exponents), 1e-3) == math.inf
    LatentModel(step.shape, grids_of(step), search.run(1e-3))  # which ends


@pytest.mark.parametrize("size", [1e2, 1e8])
def test_networks_whose_error_is_no_number_end_the_search(size: float) -> None:
    """Where latents are large, weights of MAX_WEIGHT may still give none."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (100, 100, 3)).astype(np.uint8)
    step = LatentStep(pixels, 0, open_device("numpy"))
    step.write_grids([random.integers(-63, 64, grid.shape) for grid in step.grids()])
    step.flat.write(step.flat.numpy() * np.float32(size))
    networks = Search(step).run(1e-3)
    LatentModel(step.shape, grids_of(step), networks)  # which checks all bounds
    assert max(abs(one.floats()).max() for one in networks.values()) <= MAX_WEIGHT


def test_a_refinement_minds_what_the_search_does_where_samples_do_not_count() -> None:
    pixels = np.concatenate([picture(), np.zeros_like(picture()[:, :, :1])], axis=2)
    pixels[:, ::2, 3] = 255  # the rest is invisible
    step = LatentStep(pixels, 1, open_device("numpy"), STARTED)
    assert step.visible_fraction < 1
    search = Search(step)
    networks, lmbda = search.run(1e-3, rounds=1), 1e-3
    found = search._cost(networks, lmbda)
    bits = search._network_bits(networks)
    own = Refinement(step, networks, lmbda)
    assert sum(map(own._cost, PARTS)) + lmbda * bits / step.pixels == pytest.approx(found)


@pytest.mark.parametrize("sizes", [Architecture(8, 4), STARTED])
def test_refined_networks_make_a_better_file(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LatentStep(picture(), 1, open_device("numpy"), sizes)
    lmbda = 1e-3
    LatentTrainer(step, LatentTrainerState(60, lmbda)).run()
    search = Search(step)
    rounded = search.run(lmbda)
    assert search.refined(rounded, lmbda) is not rounded
    refinement = Refinement(step, rounded, lmbda)
    refinement.run(200, lambda: False)
    costs = []
    for networks in (rounded, refinement.networks()):
        model = LatentModel(step.shape, grids_of(step), networks, step.pretrained.number)
        error = np.mean((synthesize(model, step.device) - picture().astype(np.float64)) ** 2)
        bits = 8 * sum(map(len, sections.write(model)))
        costs.append(error / 255**2 + lmbda * bits / step.pixels)
    assert costs[1] < costs[0]
    monkeypatch.setattr(LatentStep, "ahead", 3)  # which tries some in vain
    ahead = Refinement(step, rounded, lmbda)
    ahead.run(200, lambda: False)
    for name, tensor in ahead.networks().items():
        assert np.array_equal(tensor.values, refinement.networks()[name].values), name
    refinement = Refinement(step, rounded, lmbda)
    refinement.run(200, lambda: True)
    for name, tensor in refinement.networks().items():
        assert np.array_equal(tensor.values, rounded[name].values), name


def test_a_weight_moves_where_its_bits_are_worth_more_than_what_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every network that is tried is a little worse than the first; most save bits."""
    step = LatentStep(picture(), 1, open_device("numpy"), NARROW)
    networks = Search(step).run(1e-3, rounds=1)
    monkeypatch.setattr(step, "slopes", lambda flat, _: np.zeros_like(flat))
    monkeypatch.setattr(step, "ask", lambda *_: None)
    for lost, moved in ((1e-7, True), (1e3, False)):
        answers = iter([0.0, 0.0])
        monkeypatch.setattr(step, "answer", lambda a=answers, lost=lost: next(a, lost))
        refinement = Refinement(step, networks, 1e-3)
        refinement.run(20, lambda: False)
        found = refinement.networks()
        same = [np.array_equal(one.values, found[n].values) for n, one in networks.items()]
        assert all(same) is not moved


def test_what_was_seen_of_a_move_decides_whether_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No gradient says that any of them costs anything; all of them do, but the first one's."""
    step = LatentStep(picture(), 1, open_device("numpy"), NARROW)
    networks = Search(step).run(1e-3, rounds=1)
    monkeypatch.setattr(step, "slopes", lambda flat, _: np.zeros_like(flat))
    asked: list[bytes] = []
    monkeypatch.setattr(step, "ask", lambda flat, _: asked.append(flat.tobytes()))
    answers = iter([0.0, 0.0, -1.0])
    monkeypatch.setattr(step, "answer", lambda: next(answers, 1e3))
    refinement = Refinement(step, networks, 1e-3)
    refinement.run(10_000, lambda: False)
    first = len(PARTS)
    assert len(asked) > first + 10
    assert len(set(asked[first:])) == len(asked[first:])
    changed = sum(
        int(np.abs(one.values - networks[name].values).sum())
        for name, one in refinement.networks().items()
    )
    assert changed == 1


@pytest.mark.parametrize("form", ["numpy", "cpu"])
def test_weights_that_are_left_make_up_for_those_that_were_rounded(form: str) -> None:
    """Each stays as it was rounded; latents stay as they are."""
    step, lmbda = LatentStep(picture(), 1, open_device(form), STARTED), 1e-3
    LatentTrainer(step, LatentTrainerState(60, lmbda)).run()
    step.write_grids([np.floor(grid + np.float32(0.5)) for grid in step.grids()])
    search = Search(step)
    networks = search.run(lmbda)
    exponents = {name: tensor.exponent - 2 for name, tensor in networks.items()}
    floats, grids = step.flat.numpy(), step.grids()
    at_once = {
        n: quantized(a, exponents[n]) for n, a in networks_of(floats, step.parameter_shapes).items()
    }
    found = progressive_quantisation.quantise(step, exponents, lmbda, 60, lambda: False)
    before = Steering(*step.control.numpy())
    step.steer(schedule.control(59, 60, lmbda))
    after = Steering(*step.control.numpy())
    assert (
        before.tile_subsampling == after.tile_subsampling == control.TILE_SUBSAMPLING
    )  # by whose pace it is timed
    assert {name: tensor.exponent for name, tensor in found.items()} == exponents
    assert search._cost(found, lmbda) < search._cost(at_once, lmbda)
    same = np.concatenate(
        [(one.values == at_once[name].values).ravel() for name, one in found.items()]
    )
    assert progressive_quantisation.ROUNDED_FRACTIONS[0] <= same.mean() < 1
    assert np.array_equal(
        step.flat.numpy(), flat_of({name: one.floats() for name, one in found.items()})
    )
    assert all(map(np.array_equal, step.grids(), grids))
    assert step.trainable.numpy().all()  # for whatever comes then
    step.flat.write(floats)
    stopped = progressive_quantisation.quantise(step, exponents, lmbda, 60, lambda: True)
    for name, tensor in stopped.items():
        assert np.array_equal(tensor.values, at_once[name].values), name


def test_networks_that_hardened_are_taken_where_they_are_better(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, lmbda = LatentStep(picture(), 1, open_device("numpy"), STARTED), 1e-3
    search = Search(step)
    networks = search.run(lmbda, rounds=1)
    worse = {n: Quantized(t.values + 9, t.exponent) for n, t in networks.items()}
    better, counts, begun = networks, list[int](), list[np.ndarray]()
    before, floats = dict(search.exponents), step.flat.numpy()

    def made(step: LatentStep, exponents: dict[str, int], lmbda: float, count: int, _: Any) -> Any:
        counts.append(count)
        begun.append(step.flat.numpy())
        step.flat.write(np.zeros_like(floats))
        return worse if len(counts) == 1 else better

    monkeypatch.setattr(progressive_quantisation, "quantise", made)
    assert search.quantised(networks, lmbda, 0) is networks
    assert search.quantised(networks, lmbda, 40) is networks
    assert counts == [40]
    assert search.exponents == before
    counts.clear()
    better = {n: Quantized(t.values // 2, t.exponent - 1) for n, t in networks.items()}
    foreseen = {n: t.exponent - 3 for n, t in networks.items()}
    monkeypatch.setattr(search, "_predicted_exponents", lambda *_: foreseen)
    monkeypatch.setattr(search, "_cost", lambda one, _: 1.0 if one is better else 2.0)
    assert (
        search.quantised(networks, lmbda, progressive_quantisation.MIN_STEPS_TO_TRY_TWICE) is better
    )
    assert counts == [
        progressive_quantisation.MIN_STEPS_TO_TRY_TWICE,
        progressive_quantisation.MIN_STEPS_TO_TRY_TWICE,
    ]
    assert all(np.array_equal(one, floats) for one in begun)  # each from what was trained
    usual = progressive_quantisation.coarser_exponents(networks)
    assert search.exponents == usual
    for name, tensor in networks.items():
        assert usual[name] == tensor.exponent - (
            tensor.values.size > progressive_quantisation.MIN_WEIGHTS_TO_COARSEN
        )
    assert (
        search.quantised(networks, lmbda, progressive_quantisation.MIN_STEPS_TO_TRY_TWICE) is better
    )
    assert search.exponents == foreseen  # as these were better at once
    assert len(counts) == 3


def test_networks_that_harden_without_a_search_have_one_only_where_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
    search, done, helps = Search(step), list[str](), [False]
    usual = search._rounded(search.exponents)
    looked_for, hard = dict(usual), dict(usual)

    def run(*_: object) -> dict[str, Quantized]:
        done.append("looked for")
        return looked_for

    def hardened(networks: dict[str, Quantized], _lmbda: float, count: int) -> Any:
        done.append(f"{count} from {'usual' if networks is not looked_for else 'found'} ones")
        return hard if helps[0] else networks

    monkeypatch.setattr(search, "run", run)
    monkeypatch.setattr(search, "quantised", hardened)
    monkeypatch.setattr(search, "_bits_with", lambda _: math.inf)
    for searching, helps[0], found, expected in (
        (False, True, hard, ["9 from usual ones"]),
        (False, False, looked_for, ["9 from usual ones", "looked for"]),
        (True, True, hard, ["looked for", "9 from found ones"]),
        (True, False, looked_for, ["looked for", "9 from found ones"]),
    ):
        done.clear()
        assert search.best_networks(1e-3, 9, searching) is found
        assert done == expected


@pytest.mark.parametrize("cheaper", [False, True])
def test_networks_that_are_much_of_a_file_are_looked_for_as_well(
    monkeypatch: pytest.MonkeyPatch, cheaper: bool
) -> None:
    step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
    search, lmbda = Search(step), 1e-3
    before = dict(search.exponents)
    coarser, finer = ({name: n + by for name, n in before.items()} for by in (-1, 1))
    without, other = search._rounded(coarser), search._rounded(finer)
    begun = list[bool]()  # whether the one to harden was searched for

    def hardened(networks: dict[str, Quantized], _lmbda: float, _count: int) -> Any:
        begun.append(networks is looked_for)
        search.exponents = finer if begun[-1] else coarser
        return other if begun[-1] else without

    def judged(networks: Mapping[str, Quantized], bits: float) -> None:
        each = (networks[name].floats().tobytes() for name in networks if part_of(name) == "bits")
        search._judged["bits", b"".join(each)] = bits / step.pixels

    def run(_: float) -> dict[str, Quantized]:
        assert search.exponents == before  # from where a search begins
        return looked_for

    looked_for = dict(without)
    monkeypatch.setattr(search, "run", run)
    monkeypatch.setattr(search, "quantised", hardened)
    monkeypatch.setattr(search, "_cost", lambda one, _: 1.0 + ((one is other) != cheaper))
    own = search._network_bits(without)
    judged(without, 3.01 * own)
    assert search.best_networks(lmbda, 9, False) is without
    assert begun == [False]
    judged(without, 2.99 * own)
    search.exponents = before
    assert search.best_networks(lmbda, 9, False, hurried=lambda: True) is without
    assert begun == [False, False]
    search.exponents = before
    assert search.best_networks(lmbda, 9, False) is (other if cheaper else without)
    assert begun == [False, False, False, True]
    assert search.exponents == (finer if cheaper else coarser)


def test_steps_are_foreseen_by_what_hardening_leaves_of_the_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step, lmbda = LatentStep(picture(), 1, open_device("numpy"), STARTED), 1e-3
    LatentTrainer(step, LatentTrainerState(60, lmbda)).run()
    search = Search(step)
    networks = search.run(lmbda)
    before, cost, floats = dict(search.exponents), search._cost(networks, lmbda), step.flat.numpy()
    totals = []
    for left in (1.0, 0.1):
        monkeypatch.setattr(progressive_quantisation, "REMAINING_COST_FRACTION", left)
        totals.append(sum(search._predicted_exponents(lmbda, floats).values()))
    assert totals[0] > totals[1]  # the less it costs, the coarser they are
    assert search.exponents == before
    assert search._cost(networks, lmbda) == cost


def test_rows_of_high_windows_are_no_longer_than_their_finest_grid() -> None:
    halo = 4
    high, square = (Plane.of(*size, 6, halo) for size in ((512, 32), (256, 256)))
    assert high.pitch == 48  # 32 + 2 * 4 + NEIGHBOUR_RADIUS, and what PITCH_MULTIPLE adds
    assert {grid.column for grid in high.grids} == {0}
    assert len({grid.column for grid in square.grids}) > 1


def test_what_no_step_reaches_is_furthest_and_nan_is_0() -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1e30, 1.5, -0.125], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = quantized(values, 2).values.tolist()
    assert found == [0, MAX_CODABLE_WEIGHT, -MAX_CODABLE_WEIGHT, MAX_CODABLE_WEIGHT, 6, 0]


@pytest.mark.parametrize("ample", [10, 11])
def test_networks_that_exploded_harden_from_what_the_search_made_of_them(
    ample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progressive_quantisation, "MIN_STEPS_TO_TRY_TWICE", ample)
    step = LatentStep(picture(), 1, open_device("numpy"), STARTED)
    step.flat.write(np.full(step.flat.shape, 1e6, np.float32))
    search, grids = Search(step), grids_of(step)
    networks = search.run(1e-3)
    monkeypatch.setattr(step, "judge", lambda _: (math.inf, math.inf))
    found = search.quantised(networks, 1e-3, 10)
    LatentModel(step.shape, grids, found)  # which checks all bounds
    assert math.isfinite(search._cost(found, 1e-3))


@pytest.mark.parametrize("sizes", [STARTED, Architecture(32, 24, pretrained=5)])
def test_a_tensor_changes_only_what_it_is_judged_by(sizes: dict[str, int]) -> None:
    """That of the filter as well."""
    step = LatentStep(picture(), 1, open_device("numpy"), sizes)
    step.write_grids([3 * draw(*grid.shape) for grid in step.grids()])
    flat = step.flat.numpy()
    networks = networks_of(flat, step.parameter_shapes)
    first = step.judge(flat)
    seen = set()
    for name, values in networks.items():
        moved = step.judge(flat_of(networks | {name: values + np.float32(0.5)}))
        changed = [part for part, a, b in zip(PARTS, first, moved, strict=True) if a != b]
        assert changed == [part_of(name)], name
        step.ask(flat, part_of(name))
        assert step.answer() == first[PARTS.index(part_of(name))]
        seen.add(part_of(name))
    assert seen == set(PARTS)


def test_a_search_asks_for_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor's step says nothing of what it does not change."""
    step = LatentStep(picture(), 1, open_device("numpy"), Architecture(8, 4))
    asked: list[tuple[str, bytes]] = []
    ask = step.ask

    def noted(flat: np.ndarray, part: Part) -> None:
        names = [name for name in networks_of(flat, step.parameter_shapes) if part_of(name) == part]
        own = b"".join(networks_of(flat, step.parameter_shapes)[name].tobytes() for name in names)
        asked.append((part, own))
        ask(flat, part)

    monkeypatch.setattr(step, "ask", noted)
    search = Search(step)
    search.run(1e-3)
    assert len(asked) > 10
    assert len(set(asked)) == len(asked)


def test_a_file_has_the_picture_and_the_bits_that_training_saw() -> None:
    device = open_device("numpy")
    step = LatentStep(picture(), 1, device)
    lmbda = 1e-3
    assert LatentTrainer(step, LatentTrainerState(60, lmbda)).run() == "done"
    search = Search(step)
    networks = search._rounded(dict.fromkeys(search.floats, 8))
    model = LatentModel(step.shape, grids_of(step), networks)
    error, bits = step.judge(flat_of({n: q.floats() for n, q in networks.items()}))
    seen = synthesize(model, device).astype(np.float64)
    assert np.mean((seen - picture()) ** 2) / 255**2 == pytest.approx(error, rel=0.03)
    assert bits_of_latents(model) / step.pixels == pytest.approx(bits, rel=0.03)


@pytest.mark.parametrize("has", [{}, {"has_hyperlatents": True}, {"extra_grids": 2}])
def test_a_stream_takes_the_bits_that_training_counted(has: dict[str, Any]) -> None:
    """Within half a percent, and the end of a stream; of thousands of them."""
    noise = np.random.default_rng(2).normal(128, 40, (40, 56, 1)).clip(0, 255).astype(np.uint8)
    sizes = Architecture(16, 12, pretrained=4)
    step = LatentStep(noise, 1, open_device("numpy"), replace(sizes, **has))
    LatentTrainer(step, LatentTrainerState(25, 1e-4)).run()
    own = [np.rint(20 * draw(*grid.shape)) for grid in step.grids()[step.levels :]]
    step.write_grids([*step.grids()[: step.levels], *own])
    networks = Search(step)._rounded(dict.fromkeys(step.shape.tensor_shapes, 8))
    model = LatentModel(step.shape, grids_of(step), networks, step.pretrained.number)
    _, rate = step.judge(flat_of({name: tensor.floats() for name, tensor in networks.items()}))
    counted, written = rate * step.pixels, 8 * len(sections.write(model)[2])
    assert counted > 3000
    assert abs(written - counted) <= 0.005 * counted + 24


@pytest.mark.parametrize(
    ("name", "has", "rows"),
    [
        ("entropy.0.weight", {"has_hyperlatents": True}, 3),
        ("synthesis.0.weight", {"extra_grids": 2}, 2),
    ],
)
def test_weights_that_no_start_has_begin_where_they_tell_something_and_are_coded_as_from_0(
    name: str, has: dict[str, Any], rows: int
) -> None:
    """So that there is something for hyperlatents and extra grids to move by, from nothing."""
    step = LatentStep(picture().repeat(2, 1), 1, open_device("numpy"), replace(STARTED, **has))
    start = step.pretrained.tensors[name] / 2.0**11
    begun, cheapest = (
        networks_of(flat.numpy(), step.parameter_shapes)[name]
        for flat in (step.flat, step.rate_anchor)
    )
    assert np.array_equal(begun[:-rows], start[:-rows])
    assert begun[-rows:].all()
    assert np.array_equal(cheapest, start)
    assert not start[-rows:].any()
    step.steer(Control(1e-3))
    step.run(3)
    assert all(grid.all() for grid in step.grids()[step.levels :])


def test_every_second_step_sees_the_noise_before_it_with_the_other_sign(device: AnyDevice) -> None:
    step = LatentStep(picture(), 1, device, NARROW)

    def at(count: int) -> np.ndarray:
        step.count.write(np.uint32(count))
        return step._soft_rounded()[0].numpy()

    for apart in (1, 3):
        control = Control(1e-3, latent_lr=0.0, network_lr=0.0)
        step.control.write(control.array(3, step.pixels, 0.0, apart))
        first, second, third = (at(turn * apart) for turn in range(3))
        assert np.abs(first).max() > 0.1
        assert np.allclose(second, -first, atol=1e-6)  # as latents are 0, soft rounding is odd
        alike = np.isclose(np.abs(third), np.abs(first), rtol=1e-3)[first != 0]
        assert alike.mean() < 0.05
        assert np.array_equal(at(apart - 1), first)


def test_latents_remember_less_than_networks() -> None:
    """As their noise turns round in every second step, and is further from uniform in the end."""
    device = open_device("numpy")
    step = LatentStep(picture(), 1, device, NARROW)
    step.steer(schedule.control(0, 60, 1e-3))
    assert cast(Tensor, step.adam_latents.betas[0]).numpy() == np.float32(0.8)
    assert (step.adam_latents.betas[1], step.adam.betas[0]) == (0.98, 0.9)
    several = WindowedStep(picture(), 1, device, NARROW, window=(32, 32))
    several.steer(schedule.control(0, 60, 1e-3, windows=2))
    several.run(1)
    assert cast(Tensor, several.adam_latents.betas[0]).numpy() == np.float32(0.6)
    momenta = [schedule.control(0, n, 1e-3, 2).latent_beta1 for n in (10, 60, 134, 300, 36_000)]
    assert momenta == pytest.approx([0.6, 0.6, 0.7, 0.8, 0.8], abs=1e-3)
    first, last = (schedule.control(done, 1000, 1e-3).noise_shape for done in (0, 969))
    assert (first, last) == pytest.approx((0.63, 0.77), abs=1e-3)


def test_short_runs_forget_networks_squared_gradients_sooner() -> None:
    memories = [schedule.control(3, steps, 1e-3).network_beta2 for steps in (20, 300, 900, 36_000)]
    assert memories == pytest.approx([0.93, 0.93, 0.98, 0.98])
    assert (
        0.95 < schedule.control(540, 550, 1e-3).network_beta2 < 0.96
    )  # with rounded latents as well
    found = []
    for memory in (0.5, 0.9):
        step = LatentStep(picture(), 1, open_device("numpy"), NARROW)
        step.steer(Control(1e-3, noise_scale=0.0, network_beta2=memory))
        step.run(1)
        found.append(step.adam.second[0].numpy() / (1 - np.float32(memory)))
    assert np.allclose(*found, rtol=1e-5)
    assert found[0].any()


def test_one_of_four_tiles_tells_what_networks_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of four steps, in each of which other tiles tell them, are those of all tiles in
    the mean; latents have the same as ever."""
    # Sums of many more round by 1e-5 themselves.
    monkeypatch.setattr(forward_pass, "MIN_SUBSAMPLED_POSITIONS", 2**12)
    side = int(math.sqrt(forward_pass.MIN_SUBSAMPLED_POSITIONS))
    pixels = np.random.default_rng(3).integers(0, 256, (side, side, 3), np.uint8)
    step = LatentStep(pixels, 1, open_device("numpy"), NARROW)
    step.write_grids([draw(*size, seed=n) for n, size in enumerate(step.shape.grid_sizes)])
    before, found, moved = step.state(), list[np.ndarray](), list[list[np.ndarray]]()
    for turn, tiles in enumerate([1, 4, 4, 4, 4]):
        step.restore(before)
        step.count.write(np.uint32(turn))
        step.steer(Control(1e-3, noise_scale=0.0, tile_subsampling=tiles))
        step.run(1)
        found.append(networks_of(step.program.read("slopes"), step.parameter_shapes))
        moved.append(step.grids())
    every, *parts = found
    for name, values in every.items():
        mean = np.mean([part[name] for part in parts], 0)
        assert np.abs(mean - values).max() <= 1e-5 * np.abs(values).max(), name
        apart = max(np.abs(part[name] - values).max() for part in parts)
        kind, _, part = name.partition(".")  # sums of so few biases are no products
        sampled = kind in ("entropy", "synthesis") or (kind == "residual" and "weight" in part)
        assert (apart > 1e-3 * np.abs(values).max()) == sampled, name
    for grids in moved[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(grids, moved[0], strict=True))


def test_what_tells_networks_weights_is_guarded_in_their_blocks() -> None:
    """Of all layers of the entropy network, and of all of synthesis and both convolutions."""
    side = int(math.sqrt(forward_pass.MIN_SUBSAMPLED_POSITIONS))
    pixels = np.zeros((side, side, 3), np.uint8)
    step = LatentStep(pixels, 1, open_device("numpy:procedure"), NARROW)
    launches = step.program.stages.procedure.phases
    blocks = [phase for phase in launches if isinstance(phase, Block)]
    sums = [
        sum(bool(k.guards) and any(s.adds for s in k.all_stores()) for k in block.kernels)
        for block in blocks
    ]
    assert sorted(sums)[-2:] == [3, 5]


def test_a_gpu_and_small_pictures_take_all_tiles() -> None:
    """Whose program does not ask, which has no more sums than another's."""
    small = LatentStep(picture(), 1, open_device("numpy"), NARROW)
    assert small._subsample(forward_pass.MIN_SUBSAMPLED_POSITIONS - 1) is None
    assert small._subsample(forward_pass.MIN_SUBSAMPLED_POSITIONS) is not None
    small.device = cast(AnyDevice, SimpleNamespace(lanes="group"))
    assert small._subsample(forward_pass.MIN_SUBSAMPLED_POSITIONS) is None


def test_a_run_that_stopped_goes_on_bit_for_bit() -> None:
    device = open_device("numpy")
    whole, parted, rest = (LatentStep(tiny_picture(), 1, device, NARROW) for _ in range(3))
    LatentTrainer(whole, LatentTrainerState(40, 1e-3)).run()
    trainer = LatentTrainer(parted, LatentTrainerState(40, 1e-3))
    assert trainer.run(Run(should_stop=lambda: int(parted.count.item()) >= 20)) == "interrupted"
    rest.restore(trainer.snapshot().arrays)
    LatentTrainer(rest, LatentTrainerState(40, 1e-3)).run()
    for name, array in whole.state().items():
        assert np.array_equal(array, rest.state()[name]), name


def too_many(_bits: float, _quality: float) -> float:
    return 1000.0  # times lambda, as often as it is looked at


def test_what_a_run_ends_with_is_foreseen_by_what_is_left_of_it() -> None:
    """kodim15, 128x128 pixels, after a sixth of 600 steps, ended with 0.26 bits a pixel of latents
    and 1,056 bits of networks at a lambda of 4e-3, with 37.7 dB at 2e-4 and 42.8 at 4e-5.
    """
    assert forecast(1.0, 800.0, 30.0, left=0.0, lmbda=1e-3) == (1.0, 800.0, 30.0)
    dear, networks, _ = forecast(0.34, 1350.0, 29.4, left=0.83, lmbda=4e-3)
    assert 0.24 < dear < 0.28
    assert 1000 < networks < 1100
    *_, usual = forecast(1.4, 3200.0, 36.9, left=0.83, lmbda=2e-4)
    *_, high = forecast(2.7, 4000.0, 40.5, left=0.83, lmbda=4e-5)
    assert 37.5 < usual < 38
    assert 42.4 < high < 43


@pytest.mark.parametrize("times", [1000.0, 1e-3])
def test_a_run_with_a_lambda_far_from_its_target_begins_anew_but_not_for_ever(times: float) -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    beginning, reached, lmbdas = step.state(), list[int](), list[float]()

    def anew(lmbda: float) -> None:
        step.restore(beginning)
        lmbdas.append(lmbda)

    state = LatentTrainerState(40, 1e-3)
    trainer = LatentTrainer(step, state, lambda *_: times, restart=anew)  # whenever it is asked
    assert trainer.run(Run(lambda progress: reached.append(progress.step))) == "done"
    back = sum(later < before for before, later in pairwise(reached))
    assert back == len(lmbdas) == state.restarts == latent_trainer.MAX_RESTARTS
    assert abs(math.log(lmbdas[-1] / 1e-3)) > 2 * abs(math.log(latent_trainer.RESTART_OUTSIDE[0]))
    assert step.done == 40
    step.restore(beginning)
    calm = LatentTrainer(step, LatentTrainerState(40, 1e-3), lambda *_: 1.0, restart=anew)
    assert calm.run() == "done"
    assert calm.state.restarts == 0


@pytest.mark.parametrize(("times", "anew"), [(1.2, 1), (1.05, 0), (1 / 1.2, 0), (1 / 1.4, 1)])
def test_a_lambda_too_low_is_begun_again_with_sooner_than_one_too_high(
    times: float, anew: int
) -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    beginning, lmbdas = step.state(), list[float]()
    asked = iter([times ** (1 / latent_trainer.FIRST_CHANGE_EXPONENT)])

    def again(lmbda: float) -> None:
        step.restore(beginning)
        lmbdas.append(lmbda)

    state = LatentTrainerState(40, 1e-3)
    trainer = LatentTrainer(step, state, lambda *_: next(asked, 1.0), restart=again)
    trainer.run()
    assert lmbdas == pytest.approx([1e-3 * times] * anew)
    assert trainer.state.lmbda == pytest.approx(1e-3 * times)


@pytest.mark.parametrize(("times", "anew"), [(1.7, 0), (1 / 1.7, 0), (3.0, 1), (1 / 3.0, 1)])
def test_a_limit_leaves_time_to_begin_anew_once_in_the_steps_that_are_left(
    times: float, anew: int
) -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    beginning, lmbdas, done = step.state(), list[float](), list[int]()

    def again(lmbda: float) -> None:
        done.append(step.done)
        step.restore(beginning)
        lmbdas.append(lmbda)

    # At the first look of either run
    asked = iter([times ** (1 / latent_trainer.FIRST_CHANGE_EXPONENT)] * (1 + anew))
    state = LatentTrainerState(40, 1e-3)
    limit = time.perf_counter() + 1000
    trainer = LatentTrainer(step, state, lambda *_: next(asked, 1.0), limit, restart=again)
    assert trainer.run() == "done"
    assert lmbdas == pytest.approx([1e-3 * times] * anew)
    assert state.steps == step.done == 40 - sum(done)
    assert (0 < sum(done) < 10) is bool(anew)


def test_a_run_whose_lambda_was_too_low_at_first_is_done_again_at_one_that_stays() -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    beginning, asked = step.state(), list[float]()

    def dearer(*_: float) -> float:
        asked.append(trainer.state.lmbda)
        return 1.0 if len(asked) == 1 else 2.0

    trainer = LatentTrainer(
        step, LatentTrainerState(40, 1e-3), dearer, restart=lambda _: step.restore(beginning)
    )
    assert trainer.run() == "done"
    risen = trainer.state.lmbda
    assert risen > 1e-3
    assert trainer.lmbda_was_too_low(1.26e-3)
    assert not trainer.lmbda_was_too_low(1.24e-3)
    asked.clear()
    assert not trainer.state.is_repetition
    trainer.repeat_run(2e-3)
    assert trainer.state.is_repetition
    assert (step.done, trainer.done, trainer.state.exponents) == (0, 0, {})
    assert trainer.run() == "done"
    assert not asked
    assert trainer.state.lmbda == 2e-3
    assert step.done == trainer.state.steps == 40


@pytest.mark.parametrize("held", [False, True])
def test_bits_of_few_colours_are_dear_at_first_where_their_lambda_stays(
    held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    steer, lmbdas, asked = step.steer, list[float](), list[float]()

    def steered(control: Control) -> None:
        lmbdas.append(control.lmbda)
        steer(control)

    def pricing(bits: float, _: float) -> float:
        asked.append(bits)
        return 1.0

    monkeypatch.setattr(step, "steer", steered)
    state = LatentTrainerState(20, 1e-3)
    if held:
        state.fix_lmbda(1e-4)
    assert (
        LatentTrainer(
            step, state, pricing, first_lmbda_factor=latent_trainer.GRAPHIC_LMBDA_FACTOR
        ).run()
        == "done"
    )
    if not held:
        assert set(lmbdas) == {1e-3}
        assert asked
        return
    assert lmbdas == sorted(lmbdas, reverse=True)
    assert lmbdas[0] == pytest.approx(1e-4 * latent_trainer.GRAPHIC_LMBDA_FACTOR)
    assert lmbdas[-1] == state.lmbda == 1e-4
    assert not asked


@pytest.mark.parametrize(
    ("fitting", "anew"), [(schedule.SHORT_RUN - 1, 0), (schedule.SHORT_RUN, 1)]
)
def test_a_run_does_not_begin_anew_for_the_few_steps_that_a_limit_leaves(
    fitting: int, anew: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LatentTrainer, "_steps_until", lambda *_: fitting)
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    beginning, state = step.state(), LatentTrainerState(40, 1e-3)
    asked = iter([3.0])
    limit = time.perf_counter() + 1000
    trainer = LatentTrainer(
        step, state, lambda *_: next(asked, 1.0), limit, restart=lambda _: step.restore(beginning)
    )
    assert trainer.run() == "done"
    assert state.restarts == anew
    assert state.lmbda > 1e-3  # for the rest of the run


@pytest.mark.parametrize("make", [LatentStep, partial(WindowedStep, window=(32, 32))])
@pytest.mark.parametrize(("each", "least", "most"), [(0.04, 10, 12), (0.2, 3, 4)])
def test_a_limit_that_is_over_leaves_ten_steps_or_what_half_a_second_does(
    make: Any, each: float, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on with every step."""
    step = make(picture(), 1, open_device("numpy"), NARROW)
    trainer = LatentTrainer(step, LatentTrainerState(40, 1e-3), None, 99.0)
    monkeypatch.setattr("time.perf_counter", lambda: 100 + each * step.done)
    assert trainer.run() == "done"
    assert least <= step.done <= most


@pytest.mark.parametrize(
    ("steps", "rate"), [(300, 0.2), (1897, 0.25), (12_000, 0.3), (36_000, 0.3)]
)
def test_latents_of_long_runs_move_faster(steps: int, rate: float) -> None:
    assert schedule.control(0, steps, 1e-3).latent_lr == pytest.approx(rate, rel=1e-4)


def test_a_lambda_that_can_go_no_further_begins_nothing_anew() -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    begun: list[float] = []
    state = LatentTrainerState(40, MIN_LMBDA)
    LatentTrainer(step, state, lambda *_: 1e-3, restart=begun.append).run()
    assert (begun, state.lmbda) == ([], MIN_LMBDA)


@pytest.mark.parametrize("again", [False, True])
def test_no_lambda_of_a_run_is_below_the_cheapest_that_makes_sense(again: bool) -> None:
    step = LatentStep(tiny_picture(), 1, open_device("numpy"), NARROW)
    beginning, state = step.state(), LatentTrainerState(40, 1e-3)
    anew = (lambda _: step.restore(beginning)) if again else None
    LatentTrainer(step, state, lambda *_: 1e-3, restart=anew, min_lmbda=9e-4).run()
    assert state.lmbda == pytest.approx(9e-4)


def test_a_run_that_began_anew_goes_on_bit_for_bit_after_a_stop() -> None:
    device = open_device("numpy")
    whole, parted, rest = (LatentStep(tiny_picture(), 1, device, NARROW) for _ in range(3))
    beginning = whole.state()

    def trainer_of(step: LatentStep, state: LatentTrainerState) -> LatentTrainer:
        return LatentTrainer(step, state, too_many, restart=lambda _: step.restore(beginning))

    trainer_of(whole, LatentTrainerState(40, 1e-3)).run()
    trainer = trainer_of(parted, LatentTrainerState(40, 1e-3))

    def stop() -> bool:
        return trainer.state.restarts == 1 and trainer.done >= 4

    assert trainer.run(Run(should_stop=stop)) == "interrupted"
    saved = trainer.snapshot()
    rest.restore(saved.arrays)
    state = LatentTrainerState.of(saved.values)
    trainer_of(rest, state).run()
    for name, array in whole.state().items():
        assert np.array_equal(array, rest.state()[name]), name


@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_of_the_worst_picture_are_no_infinite_halves(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Black and white at random, bits for next to nothing; before anything is learned, with
    latents that mean nothing, and later. Gradients of what layers give are what products round.
    """
    outputs: list[Tensor] = []

    def recorded(x: Tensor, layers: list[Tensor], *some: Any) -> Tensor:
        for n in range(0, len(layers), 2):
            outputs.append((Activation.apply(x) if n else x) @ layers[n] + layers[n + 1])
            x = outputs[-1]
        return x

    noise = 255 * np.random.default_rng(1).integers(0, 2, (HEIGHT, WIDTH, channels))
    sizes = Architecture(16, 12, pretrained=4)
    step = LatentStep(noise.astype(np.uint8), 1, open_device("numpy"), sizes)
    monkeypatch.setattr(forward_pass, "perceptron", recorded)

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


def test_blocks_give_what_the_graph_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both networks' forward and backward passes are blocks of a large picture's step."""
    monkeypatch.setattr(block, "MIN_PRODUCT_OPERATIONS", 1 << 10)
    found = []
    for spec in ("numpy", "numpy:procedure"):
        step = LatentStep(picture(), 1, open_device(spec))
        step.steer(Control(1e-3))
        step.program.run(3)
        found.append(step.state())
    phases = step.program.stages.procedure.phases
    assert sum(isinstance(phase, Block) for phase in phases) == 3
    for name, array in found[0].items():
        assert np.allclose(array, found[1][name], rtol=2e-3, atol=2e-4), name


@pytest.mark.parametrize("lanes", ["one", "group"])
def test_steps_that_are_known_by_the_same_are_the_same(lanes: str) -> None:
    """What is kept of one stands for the other, which is not traced."""
    own, trained, bucket = Architecture(4, 4), Architecture(16, 12), (8, 8)
    small = picture()[:5, :7]
    wide = small.swapaxes(0, 1)
    variants: list[tuple[np.ndarray, int, Architecture, Bucket]] = [
        (small, 1, own, bucket), (wide, 1, own, bucket), (small[:, :, :1], 1, own, bucket),
        (np.dstack([small, small[:, :, :1]]), 1, own, bucket), (small, 2, own, bucket),
        (small, 1, own, None),
        (small, 1, trained, bucket), (small, 1, STARTED, bucket), (wide, 1, STARTED, bucket),
    ]  # fmt: skip
    device, found = open_device("numpy"), dict[str, set[str]]()
    device.lanes = lanes
    for pixels, seed, sizes, one in variants:
        program = LatentStep(pixels, seed, device, sizes, one).program
        assert program._traceable is not None
        graph, given = identity = identify(program.updates)
        assigned, states = {state for state, _ in program.updates}, program._traceable.states
        limits = export_bounds(states)
        assert limits is not None
        given_too = program.outputs, program.inputs, assigned, limits, states
        assert Outline.of(identity, *given_too) is not None
        assert {*given} - {*program.outputs.values()} <= {*program._traceable.states}
        found.setdefault(program._traceable.identification(), set()).add(graph)
    assert [len(graphs) for graphs in found.values()] == [1] * (len(variants) - 3)


@pytest.mark.parametrize(("side", "start", "times"), [
    (32, 4, 3.0), (128, 4, 3.0), (256, 4, 1.106), (512, 4, 0.407), (512, 0, 1.0),
])  # fmt: skip
def test_differences_are_cheaper_in_larger_pictures(side: int, start: int, times: float) -> None:
    weights = cast(property, LatentStep.weight_rate_factor).fget
    assert weights is not None
    found = weights(SimpleNamespace(pretrained=SimpleNamespace(number=start), pixels=side * side))
    assert found == pytest.approx(times, rel=2e-3)


def test_gradients_by_contexts_reach_all_of_a_windows_own_values() -> None:
    """Though bits are computed of no other rows than those that have such values."""
    device = open_device("numpy")
    plane = Plane.of(32, 48, 4, halo=4)
    own = Extent(plane, (32, 48), (0, 0), (32, 48), 4).value_mask().reshape(-1)
    coded = slice(plane.first_coded, plane.first_coded + plane.coded_positions)
    assert own[coded].sum() == own.sum()
    assert plane.coded_rows < plane.rows
    framed = Tensor(draw(plane.rows + 2 * operations.NEIGHBOUR_ROWS, plane.pitch), device)
    slopes = draw(operations.NEIGHBOURS, plane.coded_positions, seed=1) * own[coded]
    contexts = operations.Contexts.apply(framed, plane)
    (found,) = (contexts * Tensor(slopes, device)).sum().gradient([framed])
    wanted, seen = np.zeros(framed.shape).reshape(-1), contexts.numpy()
    places = np.flatnonzero(own) + operations.NEIGHBOUR_ROWS * plane.pitch
    for k, (y, x) in enumerate((k // 7 - 3, k % 7 - 3) for k in range(operations.NEIGHBOURS)):
        users = places + y * plane.pitch + x
        of_own = slopes[k][own[coded] == 1]
        assert np.array_equal(framed.numpy().reshape(-1)[users], seen[k][own[coded] == 1])
        np.add.at(wanted, users, of_own)
    assert np.allclose(found.numpy().reshape(-1)[places], wanted[places], atol=1e-5)


def test_gradients_by_contexts_are_halves_where_products_are() -> None:
    """Each of them, not their sum, and what is too large for a half is the largest one."""
    device = open_device("numpy")
    plane = Plane.of(9, 20, 3)
    around = plane.rows + 2 * operations.NEIGHBOUR_ROWS
    framed = Tensor(np.zeros((around, plane.pitch), np.float32), device)
    rng = np.random.default_rng(0)
    slopes = rng.uniform(-1, 1, (operations.NEIGHBOURS, plane.coded_positions)).astype(np.float32)
    slopes[:, 7] = 1e6

    def found(has_matrix_units: bool, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        device.has_matrix_units = has_matrix_units
        contexts = operations.Contexts.apply(framed, plane)
        (slope,) = (contexts * Tensor(values, device)).sum().gradient([framed])
        return slope.numpy()

    halves = slopes.clip(-65504, 65504).astype(np.float16).astype(np.float32)
    assert np.array_equal(found(True, slopes), found(False, halves))
    assert not np.array_equal(halves, slopes)


def test_small_pictures_share_one_program() -> None:
    """Whatever their grids would be."""
    device, sizes = open_device("numpy"), [(3, 3), (7, 5), (13, 9), (20, 30)]
    steps = [
        LatentStep(
            picture()[:h, :w], 0, device, Architecture(16, 12, pretrained=4), bucket=(32, 32)
        )
        for h, w in sizes
    ]
    assert len({step.program._identity[0] for step in steps}) == 1
    assert [step.levels for step in steps] == [6] * 4
    for step, size in zip(steps, sizes, strict=True):
        step.steer(Control(1e-3))
        step.run(3)
        assert step.grids()[-1].shape == (1, 1)
        assert step.picture().shape == (*size, 3)
