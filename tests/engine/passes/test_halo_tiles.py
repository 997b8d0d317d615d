"""Kernels that read neighbours of their predecessors' outputs become one launch of halo tiles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import open_mapping

from imgmlp.engine import Program, Tensor, compile, open_device
from imgmlp.engine.ir.kernel import Tiled, render_procedure
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.passes import halo_tiles
from imgmlp.engine.passes.halo_tiles import row_column_distance

GROUP = "numpy:uops-group"
CHANNELS = 2

Step = Callable[[Tensor, Tensor], dict[str, Tensor]]
MarginFunction = Callable[[Tensor, int], Tensor]


def zero_margin_view(x: Tensor, margin: int) -> Tensor:
    """x with a margin of zeros by a view: they are not stored."""
    return x.pad((0, 0), (margin, margin))


def zero_margin_copy(x: Tensor, margin: int) -> Tensor:
    """x with a margin of zeros that are stored."""
    zeros = Tensor.zeros(x.shape[0], margin)
    return Tensor.concat([zeros, x, zeros], 1)


def stencil(
    x: Tensor, weights: Tensor, pitch: int, way: MarginFunction = zero_margin_view, reach: int = 1
) -> Tensor:
    """Weighted sums of the neighbours of each element, within `reach` rows and columns.

    x is [channels, size], a flat image of `pitch` columns; weights are [channels, channels * taps].
    """
    size, margin = x.shape[1], reach * (pitch + 1)
    around, steps = way(x, margin), range(-reach, reach + 1)
    taps = [
        around[c, margin + a * pitch + b : margin + a * pitch + b + size].reshape(1, size)
        for c in range(x.shape[0])
        for a in steps
        for b in steps
    ]
    return Tensor.weighted_sums(taps, weights)


def weights(reach: int = 1, channels: int = CHANNELS) -> np.ndarray:
    taps = channels * (2 * reach + 1) ** 2
    return np.random.default_rng(1).uniform(-0.3, 0.3, (channels, taps)).astype(np.float32)


def consecutive_stencils(
    count: int, pitch: int, way: MarginFunction = zero_margin_view, reach: int = 1
) -> Step:
    """`count` consecutive stencils, each added to its input."""

    def step(x: Tensor, w: Tensor) -> dict[str, Tensor]:
        for _ in range(count):
            x = (x + stencil(x, w, pitch, way, reach)).maximum(-0.5).contiguous()
        return {"y": x}

    return step


def run(step: Step, x: np.ndarray, w: np.ndarray) -> tuple[Program, list[np.ndarray]]:
    """The program for groups of lanes, and the results of NumPy and of that program."""
    results = []
    for device in (open_device("numpy"), open_mapping(GROUP)):
        tensors = Tensor(x, device), Tensor(w, device)
        program = compile(lambda t=tensors: step(*t), device)  # type: ignore[misc]
        program.run()
        results.append(program.read("y"))
    return program, results


def tiled_launches(program: Program) -> list[Tiled]:
    return [k for k in program.stages.procedure.kernels if isinstance(k, Tiled)]


def picture(rows: int, pitch: int, channels: int = CHANNELS) -> np.ndarray:
    shape = channels, rows * pitch
    return np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("way", [zero_margin_view, zero_margin_copy])
@pytest.mark.parametrize(("rows", "pitch"), [(40, 48), (37, 53), (9, 130), (70, 17)])
def test_consecutive_stencils_are_one_tiled_launch(
    rows: int, pitch: int, way: MarginFunction
) -> None:
    program, (expected, got) = run(
        consecutive_stencils(3, pitch, way), picture(rows, pitch), weights()
    )
    np.testing.assert_allclose(got, expected, atol=2e-6)
    (launch,) = tiled_launches(program)
    assert launch.pitch == pitch
    assert launch.halos in ((3, 2, 1, 0), (2, 1, 0))  # with or without a copy of the input
    kernels = program.stages.procedure.kernels
    assert sum(k.shape == launch.members[-1].shape for k in kernels) == 0


def test_value_read_again_by_a_later_stencil_is_kept_in_the_tile() -> None:
    """The backward pass of two convolutions needs the slope of the first activation again."""
    pitch = 32

    def step(x: Tensor, w: Tensor) -> dict[str, Tensor]:
        before = stencil(x, w, pitch)
        error = (stencil(before.sin().contiguous(), w, pitch) - x).contiguous()
        back = (stencil(error, w, pitch) + error) * before.cos()
        return {"y": stencil(back.contiguous(), w, pitch)}

    program, (expected, got) = run(step, picture(24, pitch), weights())
    np.testing.assert_allclose(got, expected, atol=1e-5)
    (launch,) = tiled_launches(program)
    assert launch.size == 24 * pitch
    assert launch.halos[-4:] == (3, 2, 1, 0)


def test_stencils_reaching_two_rows_and_columns_are_tiled() -> None:
    program, (expected, got) = run(
        consecutive_stencils(2, 40, reach=2), picture(30, 40), weights(2)
    )
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert [launch.halos[-2:] for launch in tiled_launches(program)] == [(2, 0)]


def test_halos_wider_than_the_maximum_begin_another_launch() -> None:
    most = halo_tiles.MAX_HALO
    program, (expected, got) = run(consecutive_stencils(most + 3, 40), picture(30, 40), weights())
    np.testing.assert_allclose(got, expected, atol=2e-5)
    launches = tiled_launches(program)
    assert [max(launch.halos) <= most for launch in launches] == [True, True]
    assert [len([k for k in one.members if k.name != "copy"]) for one in launches] == [most + 1, 2]


def test_intermediate_values_of_a_tile_are_in_local_memory_only() -> None:
    program, _ = run(consecutive_stencils(3, 48), picture(40, 48), weights())
    (launch,) = tiled_launches(program)
    own = [s.target for k in launch.members for s in k.stores]
    assert {b.name for b in launch.writes()} == {"y"}
    assert all(isinstance(b, LocalBuffer) for b in own if b.name != "y")
    assert "halos of" in render_procedure(program.stages.procedure)


@pytest.mark.parametrize(
    ("room", "members"), [(1 << 9, 0), (1 << 11, 2), (1 << 12, 3), (1 << 13, 4)]
)
def test_tiles_fit_into_the_available_local_memory(
    monkeypatch: pytest.MonkeyPatch, room: int, members: int
) -> None:
    """With less memory tiles are smaller, inputs are not copied, or kernels are not joined."""
    monkeypatch.setattr(halo_tiles, "LOCAL_MEMORY_BYTES", room)
    program, (expected, got) = run(consecutive_stencils(3, 48), picture(40, 48), weights())
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert [len(launch.members) for launch in tiled_launches(program)] == [members] * (members > 0)
    for code, kernel in zip(program.stages.codes, program.stages.procedure.kernels, strict=True):
        if isinstance(kernel, Tiled):
            taken = [u.arg for u in code.uops if u.op.name == "LOCAL_ARRAY"]
            assert 0 < 4 * sum(taken) <= room


def test_tiled_launch_stays_within_the_maximum_buffer_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(halo_tiles, "MAX_LAUNCH_BUFFERS", 4)
    program, (expected, got) = run(consecutive_stencils(3, 48), picture(40, 48), weights())
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert [
        len([k for k in one.members if k.name != "copy"]) for one in tiled_launches(program)
    ] == [2]


def test_padded_addends_are_added_within_the_tiled_launch() -> None:
    pitch, size = 40, 40 * 30

    def step(x: Tensor, w: Tensor) -> dict[str, Tensor]:
        y = stencil(stencil(x, w, pitch).sin().contiguous(), w, pitch)
        first = w.reshape(-1)[3:4].pad((0, size - 1)).reshape(1, size)
        row = w[:1, :1].expand(1, pitch).pad((0, 0), (pitch, size - 2 * pitch))
        return {"y": y + first + row}

    program, (expected, got) = run(step, picture(30, pitch), weights())
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert len(tiled_launches(program)) == 1


def reversed_between(x: Tensor, w: Tensor) -> Tensor:
    return stencil(stencil(x, w, 40).flip(1), w, 40)


def distant_neighbours(x: Tensor, w: Tensor) -> Tensor:
    y = stencil(x, w, 40)
    return stencil(y, w, 40) + zero_margin_view(y, 300)[:, 600:]


def margin_of_ones(x: Tensor, w: Tensor) -> Tensor:
    """A stencil whose margin is not zero."""
    y, ones = stencil(x, w, 40), Tensor.ones(CHANNELS, 41)
    around = Tensor.concat([ones, y, ones], 1)
    taps = [
        around[c, 41 + n : 41 + n + x.shape[1]].reshape(1, x.shape[1])
        for c in range(CHANNELS)
        for n in (-41, -40, -39, -1, 0, 1, 39, 40, 41)
    ]
    return Tensor.weighted_sums(taps, w)


def across_channels(x: Tensor, w: Tensor) -> Tensor:
    """A stencil that reads from the end of a channel into the next one."""
    y, size = stencil(x, w, 40).contiguous().reshape(-1), x.shape[1]
    taps = [y[n : n + size].reshape(1, size) for n in (0, 1, 40, 41)]
    return Tensor.weighted_sums(taps, w[:, :4])


@pytest.mark.parametrize(
    "step", [reversed_between, distant_neighbours, margin_of_ones, across_channels]
)
def test_reversed_distant_or_nonzero_neighbours_are_not_tiled(
    step: Callable[[Tensor, Tensor], Tensor],
) -> None:
    program, (expected, got) = run(lambda x, w: {"y": step(x, w)}, picture(30, 40), weights())
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert tiled_launches(program) == []


@pytest.mark.parametrize("way", [zero_margin_view, zero_margin_copy])
def test_taps_masked_by_row_and_column_are_tiled(way: MarginFunction) -> None:
    """Only elements outside of the first column and in even rows read their neighbours."""
    pitch = 24

    def step(x: Tensor, w: Tensor) -> dict[str, Tensor]:
        y = stencil(x, w, pitch, way).contiguous()
        place = Tensor.arange(x.shape[1]).reshape(1, x.shape[1])
        around, chosen = way(y, pitch + 1), (place % pitch > 0) & (place // pitch % 2).eq(0)
        ways = [(c, n) for c in range(CHANNELS) for n in (0, pitch, pitch + 1, 2 * pitch + 2)]
        seen = [around[c : c + 1, n : n + x.shape[1]] for c, n in ways]
        taps = [Tensor.where(chosen, one, 0.0) for one in seen]
        return {"y": Tensor.weighted_sums(taps, w[:, : len(taps)])}

    program, (expected, got) = run(step, picture(22, pitch), weights())
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert len(tiled_launches(program)) == 1


def test_stencil_that_overwrites_its_input_state_is_not_tiled() -> None:
    results = []
    for device in (open_device("numpy"), open_mapping(GROUP)):
        x, w = Tensor(picture(30, 40), device), Tensor(weights(), device)

        def step(x: Tensor = x, w: Tensor = w) -> dict[str, Tensor]:
            y = stencil(x, w, 40)
            x.assign(y + stencil(y, w, 40))
            return {}

        program = compile(step, device)
        program.run()
        results.append(x.numpy())
    np.testing.assert_allclose(results[1], results[0], atol=2e-6)
    assert tiled_launches(program) == []


def test_mapping_of_one_work_item_per_group_has_no_tiles() -> None:
    device = open_mapping("numpy:uops")
    x, w = Tensor(picture(30, 40), device), Tensor(weights(), device)
    program = compile(lambda: consecutive_stencils(3, 40)(x, w), device)
    program.run()
    assert tiled_launches(program) == []
    _, (expected, _) = run(consecutive_stencils(3, 40), picture(30, 40), weights())
    np.testing.assert_allclose(program.read("y"), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("away", "wanted"),
    [(0, (0, 0)), (1, (0, 1)), (-1, (0, -1)), (39, (1, -1)), (41, (1, 1)), (-41, (-1, -1)),
     (-39, (-1, 1)), (80, (2, 0)), (-82, (-2, -2))],
)  # fmt: skip
def test_row_column_distance_of_flat_offsets(away: int, wanted: tuple[int, int]) -> None:
    assert row_column_distance(away, 40) == wanted
