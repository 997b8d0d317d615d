"""What single latents and pixels cost, and the gradient of that cost by rounded latents."""

from __future__ import annotations

import math
from typing import Any

import latent_step_reference
import numpy as np
import pytest
from latent_step_reference import hyperlatents_above, latent_bits, reference_loss
from latent_steps import (
    LMBDA,
    PRETRAINED_4,
    Array,
    costs_of_picture,
    draw,
    fill_step,
    patterned_picture,
    whole_step,
    windowed_step,
)

from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.windows import WindowedStep, WindowStep
from imgmlp.engine import AnyDevice, compile, open_device


@pytest.mark.parametrize(
    ("size", "channels", "has"),
    [
        ((66, 70), 3, {}),
        ((20, 130), 4, {"has_hyperlatents": True}),
        ((66, 70), 3, {"extra_grids": 2}),
    ],
)
def test_costs_of_windows_and_whole_picture_sum_to_the_judged_cost(
    size: tuple[int, int], channels: int, has: dict[str, Any]
) -> None:
    pixels = patterned_picture(*size, channels)
    step, windows = whole_step(pixels, **has), windowed_step(pixels, (64, 64), **has)
    flat, results = step.flat.numpy(), list[list[Array]]()
    assert len(windows.windows) in (3, 4)
    assert (step.visible_fraction < 1) is (channels == 4)
    for each in (step, windows):
        errors, bits = costs_of_picture(each, flat)
        error, rate = each.judge(flat)
        samples = each.pixels * channels * each.visible_fraction
        assert errors.sum(dtype=np.float64) == pytest.approx(error * samples, rel=1e-5)
        own = sum(float(part.sum(dtype=np.float64)) for part in bits)
        assert own == pytest.approx(rate * each.pixels, rel=1e-5)
        results.append([errors, *bits])
    assert len(results[0]) == 1 + step.levels + len(step.shape.additional_levels)
    for one, other in zip(*results, strict=True):
        assert np.allclose(one, other, rtol=1e-3, atol=1e-4)


# Each form of a step: compiled for one mapping, emulated instructions of the other.
MAPPED = [
    *[("one", "whole"), ("numpy:uops-group", "whole"), ("numpy:procedure", "whole")],
    *[("group", "in windows"), ("numpy:uops", "in windows")],
]


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize(("device", "form"), MAPPED, indirect=["device"])
def test_costs_and_slopes_match_numpy_on_every_device(device: AnyDevice, form: str) -> None:
    pixels, results = patterned_picture(20, 28), list[list[Array]]()
    for each in (open_device("numpy"), device):
        step: LatentStep
        if form == "whole":
            step = fill_step(LatentStep(pixels, 0, each, PRETRAINED_4))
        else:
            step = fill_step(WindowedStep(pixels, 0, each, PRETRAINED_4, window=(16, 16)))
        flat, values = step.flat.numpy(), list[Array]()
        for extent in step.windows:
            values += step.latent_slopes(extent, flat, LMBDA)
            errors, bits = step.costs(extent, flat)
            values += [errors, *bits]
        results.append([part.copy() for part in values])
    for one, other in zip(*results, strict=True):
        assert np.allclose(one, other, rtol=1e-2, atol=2e-3 * np.abs(one).max())


@pytest.mark.parametrize("extra", [0, 2])
def test_padding_to_a_bucket_changes_neither_costs_nor_slopes(extra: int) -> None:
    """Nor do the margins around a window."""
    pixels, results, bucket = patterned_picture(20, 28), list[list[Array]](), (32, 64)
    steps = [whole_step(pixels, one, extra_grids=extra) for one in (None, bucket)]
    architecture = steps[0].architecture
    steps.append(fill_step(WindowStep(pixels, 0, open_device("numpy"), architecture, bucket)))
    for step in steps:
        flat, (extent,) = step.flat.numpy(), step.windows
        errors, bits = step.costs(extent, flat)
        results.append([errors, *bits, *step.latent_slopes(extent, flat, LMBDA)])
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            assert np.allclose(one, same, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("has", [{}, {"has_hyperlatents": True}, {"extra_grids": 2}])
def test_bits_are_at_the_position_of_their_latent(has: dict[str, Any]) -> None:
    """They equal those of plain NumPy; hyperlatents and extra grids follow the levels."""
    step = whole_step(patterned_picture(12, 40), **has)
    flat = step.flat.numpy()
    _, bits = step.costs(step.windows[0], flat)
    every = np.split(
        flat.astype(np.float64), np.cumsum([math.prod(s) for s in step.parameter_shapes.tensors])
    )
    layers = [a.reshape(s) for a, s in zip(every, step.parameter_shapes.tensors, strict=False)][
        10:16
    ]
    grids = [np.floor(grid.astype(np.float64) + 0.5) for grid in step.grids()]
    seen, own = grids[: step.levels], grids[step.levels :]
    for n, (grid, result) in enumerate(zip(grids, bits, strict=True)):
        above = np.zeros((3, *grid.shape))
        if step.shape.has_hyperlatents and n < len(seen):
            above = hyperlatents_above(own, seen, n)
        assert np.allclose(result, latent_bits(grid, layers, above), rtol=1e-3, atol=1e-3), n


def test_error_is_at_the_position_of_its_pixel() -> None:
    pixels = patterned_picture(21, 30)
    other = pixels.copy()
    other[13, 27] ^= 64
    (errors, _), (result, _) = (
        step.costs(step.windows[0], step.flat.numpy()) for step in map(whole_step, (pixels, other))
    )
    assert [tuple(place) for place in np.argwhere(errors != result)] == [(13, 27)]
    assert errors.shape == (21, 30)


def test_costs_follow_the_given_networks_and_the_latents_put_last() -> None:
    """Costs also follow latents that were put since."""
    step = whole_step(patterned_picture(21, 30))
    flat, (extent,) = step.flat.numpy(), step.windows
    before = costs_of_picture(step, flat)
    errors, bits = step.costs(extent, (flat * np.float32(1.1)).astype(np.float32))
    assert not np.allclose(errors, before[0])
    assert not np.allclose(bits[0], before[1][0])
    grids = step.grids()
    step.put(extent, 1, grids[1] + 3)
    assert np.array_equal(step.grids()[1], grids[1] + 3)
    assert all(np.array_equal(*both) for both in zip(step.grids()[2:], grids[2:], strict=True))
    assert not np.allclose(step.costs(extent, flat)[1][1], before[1][1])


@pytest.mark.usefixtures("four_grids")
def test_latents_put_into_a_window_change_the_costs_of_its_neighbours() -> None:
    step = windowed_step(patterned_picture(20, 28), (16, 16))
    flat, extent = step.flat.numpy(), step.windows[0]
    grids = [grid.copy() for grid in step.grids()]
    before = [step.costs(window, flat) for window in step.windows]
    step.put(extent, 0, np.full((16, 16), 9, np.float32))
    assert (step.grids()[0][:16, :16] == 9).all()
    grids[0][:16, :16] = 9
    assert all(map(np.array_equal, step.grids(), grids))
    for (old, _), window in zip(before, step.windows, strict=True):
        assert not np.allclose(step.costs(window, flat)[0], old)


def assert_slopes_match_differences(
    step: LatentStep, ways: list[Array], slopes: list[Array], loss: Any
) -> None:
    """Check slopes by latents of all grids against finite differences of a loss of these grids."""
    grids = [np.floor(grid.astype(np.float64) + 0.5) for grid in step.grids()]
    up, down = (
        loss([g + sign * way for g, way in zip(grids, ways, strict=True)]) for sign in (1e-6, -1e-6)
    )
    result = sum(float((s.astype(np.float64) * w).sum()) for s, w in zip(slopes, ways, strict=True))
    assert result == pytest.approx((up - down) / 2e-6, rel=2e-3)


@pytest.mark.parametrize(
    ("sizes", "lmbda"),
    [
        ({}, 1e-4),
        ({}, 3e-2),
        ({"bucket": (32, 48)}, 3e-2),
        ({"has_hyperlatents": True}, 1e-3),
        ({"extra_grids": 2}, 1e-3),
    ],
)
def test_latent_slopes_match_finite_differences_of_the_rounded_cost(
    sizes: dict[str, Any], lmbda: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each grid is checked by itself, in float64."""
    monkeypatch.setattr(latent_step_reference, "soft_rounded", lambda x: x)
    pixels = patterned_picture(12, 40) if "has_hyperlatents" in sizes else patterned_picture(21, 30)
    step = whole_step(pixels, **sizes)
    flat = step.flat.numpy() * np.float32(0.9)  # not the parameters of the step itself
    slopes = step.latent_slopes(step.windows[0], flat, lmbda)
    assert [part.shape for part in slopes] == list(step.shape.grid_sizes)

    def loss(grids: list[Array]) -> float:
        return reference_loss(step, pixels, grids, flat.astype(np.float64), lmbda)

    for level, size in enumerate(step.shape.grid_sizes):
        ways = [np.zeros(each) for each in step.shape.grid_sizes]
        ways[level] = np.sign(slopes[level]) + 0.5 * draw(*size, seed=9)
        assert_slopes_match_differences(step, ways, slopes, loss)


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("number", range(4))
def test_latent_slopes_of_a_window_match_differences_of_its_own_cost(number: int) -> None:
    """Only latents that belong to the window vary."""
    step, lmbda = windowed_step(patterned_picture(20, 28), (16, 16)), 1e-2
    extent, flat = step.windows[number], step.flat.numpy() * np.float32(0.9)
    slopes = step.latent_slopes(extent, flat, lmbda)
    step.write_grids([np.floor(grid + np.float32(0.5)) for grid in step.grids()])
    step.flat.write(flat)
    step._enter(extent)
    plane, own = step.latents.numpy(), extent.value_mask()

    def summed() -> dict[str, Any]:
        errors, bits = step._forward(step.latents, step.flat)
        return {"cost": errors.sum() * (1 / step.channels) + bits.sum() * lmbda}

    program, costs = compile(summed, step.device), list[float]()
    way = 0.5 * draw(*plane.shape) * own
    for part, slope in zip(extent.parts(way), slopes, strict=True):
        part += np.sign(slope)
    for sign in (2e-3, -2e-3):
        step.latents.write((plane + np.float32(sign) * way).astype(np.float32))
        program.run()
        costs.append(float(program.read("cost")))
    result = sum(
        float((s * w).sum(dtype=np.float64)) for s, w in zip(slopes, extent.parts(way), strict=True)
    )
    assert result == pytest.approx((costs[0] - costs[1]) / 4e-3, rel=1e-2)


def test_latent_slopes_are_taken_at_rounded_latents() -> None:
    step = whole_step(patterned_picture(21, 30))
    flat, (extent,) = step.flat.numpy(), step.windows
    result = step.latent_slopes(extent, flat, LMBDA)
    step.write_grids([np.floor(grid + np.float32(0.5)) for grid in step.grids()])
    for one, other in zip(result, step.latent_slopes(extent, flat, LMBDA), strict=True):
        assert np.allclose(one, other, rtol=1e-4, atol=1e-5 * float(np.abs(other).max()))


@pytest.mark.usefixtures("four_grids")
@pytest.mark.parametrize("form", ["whole", "in windows"])
def test_asking_for_slopes_and_costs_does_not_change_training(form: str) -> None:
    """Latents, networks, moments, the step count and the control stay as they were."""
    pixels, results = patterned_picture(20, 28), list[dict[str, Array]]()
    for asks in (False, True):
        step = whole_step(pixels) if form == "whole" else windowed_step(pixels, (16, 16))
        step.steer(Control(LMBDA))
        step.run(3)
        before = step.state()
        for extent in step.windows if asks else ():
            step.latent_slopes(extent, step.flat.numpy() * np.float32(1.5), 1e-2)
            step.costs(extent, step.flat.numpy() * np.float32(0.5))
        if asks:
            flat = step.flat.numpy() * np.float32(1.5)
            with step.gradients(1e-2) as gradient_at:
                gradient_at(flat)
                step.judge(flat)
                gradient_at(flat, True)
        for name, array in step.state().items():
            assert np.array_equal(array, before[name]), name
        step.run(2)
        results.append(step.state())
    for name, array in results[0].items():
        assert np.array_equal(array, results[1][name]), name
