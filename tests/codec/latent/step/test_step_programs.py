"""Programs of the training step: how many launches they take, and which pictures share them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from latent_steps import NARROW, PRETRAINED_1, small_picture
from networks import latent_programs

from imgmlp.codec.latent.step import forward_pass
from imgmlp.codec.latent.step.architecture import Architecture
from imgmlp.codec.latent.step.control import Control
from imgmlp.codec.latent.step.latent_step import LatentStep
from imgmlp.codec.latent.training.buckets import Bucket
from imgmlp.engine import open_device
from imgmlp.engine.ir.kernel import Block, Tiled
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import Lanes
from imgmlp.engine.ir.uops import U
from imgmlp.engine.oracle.index_bounds import export_bounds
from imgmlp.engine.runtime.outline import Outline
from imgmlp.engine.runtime.program_cache import identify
from imgmlp.engine.tiling import block


def test_convolution_gradients_are_not_recomputed_for_each_tap() -> None:
    """No kernel of a GPU multiplies by many more than one layer's 3x3 taps of 3x3 channels.

    The same holds for each of the kernels that one launch runs one after the other in tiles.
    """
    step = LatentStep(small_picture(), 1, open_device("numpy:uops-group"))
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
    assert sum(n >= weights for n in counts) >= 4  # two layers, forward and backward
    assert max(counts) < 1.5 * weights


@pytest.mark.parametrize("lanes", ["one", "group"])
def test_pictures_in_the_same_bucket_share_programs(lanes: Lanes) -> None:
    device, sizes = open_device("numpy"), ((21, 30), (32, 17), (25, 32))
    device.lanes = lanes
    steps = [
        LatentStep(small_picture()[:1, :1].repeat(h, 0).repeat(w, 1), 1, device, bucket=(32, 32))
        for h, w in sizes
    ]
    for programs in zip(*map(latent_programs, steps), strict=True):
        assert len({program._identity[0] for program in programs}) == 1


def launches_on_a_gpu(pixels: np.ndarray, bucket: Bucket = None) -> int:
    device = open_device("numpy")
    device.lanes, device.has_matrix_units = "group", True
    step = LatentStep(pixels, 1, device, Architecture(16, 16), bucket=bucket)
    return len(step.program.stages.procedure.kernels)


def test_step_on_a_gpu_takes_at_most_24_launches() -> None:
    """Each of 5 levels is upsampled in one launch forward and one backward.

    What follows a convolution takes no launch of its own.
    """
    assert launches_on_a_gpu(small_picture()[:16, :16]) <= 24


def test_padding_to_a_bucket_adds_no_launches_on_a_gpu() -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    assert launches_on_a_gpu(pixels[:27, :19], (32, 32)) == launches_on_a_gpu(pixels)


def test_weight_gradient_sums_in_blocks_are_guarded_for_subsampling() -> None:
    """All layers of the entropy network, of synthesis and of both convolutions are guarded."""
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


def test_step_compiled_to_blocks_matches_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both networks' forward and backward passes are blocks of a large picture's step."""
    monkeypatch.setattr(block, "MIN_PRODUCT_OPERATIONS", 1 << 10)
    results = []
    for spec in ("numpy", "numpy:procedure"):
        step = LatentStep(small_picture(), 1, open_device(spec))
        step.steer(Control(1e-3))
        step.program.run(3)
        results.append(step.state())
    phases = step.program.stages.procedure.phases
    assert sum(isinstance(phase, Block) for phase in phases) == 3
    for name, array in results[0].items():
        assert np.allclose(array, results[1][name], rtol=2e-3, atol=2e-4), name


@pytest.mark.parametrize("lanes", ["one", "group"])
def test_steps_with_the_same_program_identification_have_the_same_graph(lanes: str) -> None:
    """The cached program of one step serves the other, which is not traced."""
    own, trained, bucket = Architecture(4, 4), Architecture(16, 12), (8, 8)
    small = small_picture()[:5, :7]
    wide = small.swapaxes(0, 1)
    variants: list[tuple[np.ndarray, int, Architecture, Bucket]] = [
        (small, 1, own, bucket), (wide, 1, own, bucket), (small[:, :, :1], 1, own, bucket),
        (np.dstack([small, small[:, :, :1]]), 1, own, bucket), (small, 2, own, bucket),
        (small, 1, own, None),
        (small, 1, trained, bucket), (small, 1, PRETRAINED_1, bucket),
        (wide, 1, PRETRAINED_1, bucket),
    ]  # fmt: skip
    device, result = open_device("numpy"), dict[str, set[str]]()
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
        result.setdefault(program._traceable.identification(), set()).add(graph)
    assert [len(graphs) for graphs in result.values()] == [1] * (len(variants) - 3)


def test_small_pictures_share_one_program() -> None:
    """Their own sizes would give them different numbers of grids."""
    device, sizes = open_device("numpy"), [(3, 3), (7, 5), (13, 9), (20, 30)]
    steps = [
        LatentStep(
            small_picture()[:h, :w], 0, device, Architecture(16, 12, pretrained=4), bucket=(32, 32)
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
