"""Blocks: which computations they contain, how they are tiled, and that results are equal."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from conftest import EMULATED, open_mapping, with_units

from imgmlp.engine import AnyDevice, Program, Tensor, cond, nn, open_device
from imgmlp.engine import dtype as dt
from imgmlp.engine.ir.graph import Buffer, Node, toposort
from imgmlp.engine.ir.kernel import Block, Procedure, Update
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.target import Target
from imgmlp.engine.ir.uops import Range, U
from imgmlp.engine.lowering.map_kernels import MAX_VALUES_PER_LANE
from imgmlp.engine.oracle.interpret import evaluate
from imgmlp.engine.passes.simplify import simplify
from imgmlp.engine.runtime.buffers import read_buffer
from imgmlp.engine.tiling.block import block_procedure

Activation = Callable[[Tensor], Tensor]


@pytest.fixture(scope="module", params=["one", *EMULATED])
def device(request: pytest.FixtureRequest) -> AnyDevice:
    return open_mapping(request.param)


def cases(compiled: list[int], emulated: list[int]) -> list[tuple[str, int]]:
    """(device, number) pairs; few for the driver, whose compiler takes seconds for each block."""
    others = [(name, number) for name in EMULATED for number in emulated]
    return [("one", number) for number in compiled] + others


lowered_only = pytest.mark.parametrize("device", EMULATED[:1], indirect=True)


def filled(device: AnyDevice, *shape: int) -> Tensor:
    rng = np.random.default_rng(shape)
    return Tensor(
        rng.uniform(-1, 1, shape).astype(np.float32), device, name="x".join(map(str, shape))
    )


def gradients(loss: Tensor, *parameters: Tensor) -> dict[str, Node]:
    """The loss and its gradients as named outputs."""
    slopes = loss.gradient(list(parameters))
    return {"loss": loss.node} | {f"g{i}": g.node for i, g in enumerate(slopes)}


def network(
    device: AnyDevice, batch: int, sizes: list[int], activation: Activation
) -> dict[str, Node]:
    """The gradients of a fully connected network's squared error."""
    h, parameters = filled(device, batch, sizes[0]), []
    for inputs, outputs in itertools.pairwise(sizes[:-1]):
        weight, bias = filled(device, inputs, outputs) * 0.3, filled(device, outputs) * 0.1
        weight, bias = weight.realize(), bias.realize()
        parameters += [weight, bias]
        h = activation(h @ weight + bias)
    parameters.append((filled(device, sizes[-2], sizes[-1]) * 0.3).realize())
    error = h @ parameters[-1] - filled(device, batch, sizes[-1]) * 0.5
    return gradients(error.square().mean(), *parameters)


def lowered(outputs: dict[str, Node], lanes: str = "one", units: int = 2) -> Procedure:
    updates: list[Update] = [(Buffer(n.shape, n.dtype, name=k), n) for k, n in outputs.items()]
    nodes = simplify([value for _, value in updates])
    step = [(state, value) for (state, _), value in zip(updates, nodes, strict=True)]
    return block_procedure(step, Target("group" if lanes == "group" else "one", units))


def blocks(procedure: Procedure) -> list[Block]:
    return [launch for launch in procedure.phases if isinstance(launch, Block)]


def check(
    device: AnyDevice, outputs: dict[str, Node], rtol: float = 1e-5, taken: bool = True
) -> None:
    """Asserts that results with and without a block equal NumPy's in float64."""
    expected = evaluate(list(outputs.values()), leaf_values(outputs), wide=True)
    for general in (False, True):
        program = Program(device, outputs, [], general)
        assert bool(blocks(program.stages.procedure)) == (taken and not general)
        program.run(2)
        for name, value in zip(outputs, expected, strict=True):
            scale = max(float(np.abs(value).max()), 1e-30)
            error = float(np.abs(program.read(name) - value).max())
            assert error <= rtol * scale, f"{name}, general={general}: {error / scale:.1e}"


def leaf_values(outputs: dict[str, Node]) -> dict[Buffer, np.ndarray]:
    """The leaves' values, read back from the device, as float64 where they are floats."""
    leaves = [n.arg for n in toposort(outputs.values()) if n.op is Op.BUFFER]
    return {b: read_buffer(b.device, b) for b in leaves}


# --- lanes ---


@pytest.mark.parametrize(
    "features",
    [4, 32, 5, 12],  # a lane loads its whole share at once; 5 and 12 make uneven tiles
)
def test_lanes_load_all_gathered_values_before_storing(features: int) -> None:
    device = with_units(open_device("numpy:uops-group"), 1)  # so that tiles have many rows
    table, weight = filled(device, 50, features), filled(device, features, 7)
    rng = np.random.default_rng(1)
    rows = Tensor(rng.integers(0, 50, 300).astype(np.int32), device)
    loss = ((table.gather(rows) * 2) @ weight).square().sum()
    outputs = gradients(loss, weight)
    check(device, outputs)
    (code,) = [c for c in Program(device, outputs, []).stages.codes if "block" in c.name]
    storage = next(
        n for n, u in enumerate(code.uops) if u.op is U.GLOBAL and table.node.arg in u.arg
    )
    gathers = [n for n, u in enumerate(code.uops) if u.op is U.LOAD and u.src[0] == storage]
    assert gathers
    ends = [n for n, u in enumerate(code.uops) if u.op is U.BARRIER]
    for first, last in itertools.pairwise([0, *ends]):
        gathered = [n for n in gathers if first < n < last]
        stored = [n for n in range(first, last) if code.uops[n].op is U.STORE]
        assert not gathered or all(max(gathered) < n for n in stored)
        for n in gathered:  # no loop both gathers and stores
            inner = [m for m in range(n, last) if code.uops[m].op is U.END]
            assert all(code.uops[m].op is not U.STORE for m in range(n, inner[0]))


@pytest.mark.parametrize(("features", "stores"), [(37, 1), (37, 3), (40, 3)])
def test_lanes_hold_their_values_in_a_limited_number_of_registers(
    features: int, stores: int
) -> None:
    """Their number is limited, and only unrolled loops access them."""
    device = with_units(open_device("numpy:uops-group"), 1)  # so that tiles have many rows
    x, weight = filled(device, 512, features), filled(device, features, 7)
    outputs = gradients((x.sin() @ weight).square().sum(), weight)
    outputs |= {f"rows{n}": (x.sin() * (n + 2.0)).node for n in range(stores - 1)}
    program = Program(device, outputs, [])
    (code,) = [c for c in program.stages.codes if "block" in c.name]
    taken: list[list[int]] = []  # for each kernel, the registers of each store
    loops: list[Range] = []
    for u in code.uops:
        if u.op is U.RANGE:
            loops.append(u.arg)
            taken += [[]] if u.arg.kind == "lane" else []
        elif u.op is U.END:
            loops.pop()
        elif u.op is U.ACC and u.arg[1] is None:
            taken[-1].append(u.arg[0])
        elif u.op in (U.SET, U.GET):
            assert all(
                loop.count <= Target().vector_pair_width for loop in loops if loop.kind == "vector"
            )
    most = max(taken, key=sum)
    assert len(most) == stores
    assert MAX_VALUES_PER_LANE // 4 < sum(most) <= MAX_VALUES_PER_LANE


def test_lanes_beyond_a_tile_load_nothing() -> None:
    """Each lane loads two times four elements of 64 rows of 12 features, the last lanes once.

    The indices of the last tile are at the end of their buffer, so that the emulator would report
    a read beyond them.
    """
    device = with_units(open_device("numpy:uops-group"), 1)
    table, weight = filled(device, 50, 12), filled(device, 12, 7)
    places = np.random.default_rng(1).integers(0, 50, 256).astype(np.int32)
    rows = table.gather(Tensor(places, device))
    outputs = gradients(((rows * 2) @ weight).square().sum(), weight)
    (block,) = blocks(Program(device, outputs, []).stages.procedure)
    assert (block.tiles, block.rows) == (4, 64)
    check(device, outputs)


@pytest.mark.parametrize(("hidden", "once"), [(64, True), (72, False)])
def test_sums_kept_in_registers_are_stored_once_at_the_end(hidden: int, once: bool) -> None:
    """Sums of more than 64 columns are not kept in registers but added to cleared memory."""
    device = with_units(open_device("numpy:uops-group"), 1)  # so that groups have several tiles
    device.has_matrix_units = True
    outputs = network(device, 700, [8, hidden, 3], Tensor.relu)
    program = Program(device, outputs, [], precision="half")
    (block,) = blocks(program.stages.procedure)
    assert block.tiles > block.groups
    (code,) = [c for c in program.stages.codes if "block" in c.name]
    sums = {
        n for n, u in enumerate(code.uops) if u.op is U.GLOBAL and u.arg[0].name == "partial_sums"
    }
    adds = [u for u in code.uops if u.op is U.STORE_ADD and u.src[0] in sums]
    begin = next(n for n, u in enumerate(code.uops) if u.op is U.RANGE and u.arg.name == "tile")
    cleared = [u for u in code.uops[:begin] if u.op is U.STORE and u.src[0] in sums]
    assert (not adds, not cleared) == (once, once)


# --- results ---


@pytest.mark.parametrize(
    ("device", "batch"), cases([13, 521], [13, 64, 65, 130, 521]), indirect=["device"]
)
def test_batches_of_partial_tiles_are_right(device: AnyDevice, batch: int) -> None:
    check(device, network(device, batch, [6, 16, 16, 3], lambda x: x.leaky_relu(0.1)))


@pytest.mark.parametrize(("device", "width"), cases([17], [1, 3, 17]), indirect=["device"])
def test_networks_of_any_width_are_right(device: AnyDevice, width: int) -> None:
    check(device, network(device, 70, [5, width, width, 2], nn.sigmoid))


@pytest.mark.parametrize("device", ["one", "numpy:uops"], indirect=True)
def test_networks_wider_than_a_tile_are_right(device: AnyDevice) -> None:
    check(device, network(device, 70, [5, 256, 256, 2], nn.sigmoid))


@pytest.mark.parametrize(("device", "depth"), cases([4], [1, 8]), indirect=["device"])
def test_networks_of_any_depth_are_right(device: AnyDevice, depth: int) -> None:
    check(device, network(device, 66, [8, *[12] * depth, 3], nn.gelu))


@pytest.mark.parametrize(("device", "batch"), cases([], [1, 7]), indirect=["device"])
def test_batches_of_few_rows_are_left_to_the_general_scheduler(
    device: AnyDevice, batch: int
) -> None:
    outputs = network(device, batch, [6, 16, 16, 3], lambda x: x.leaky_relu(0.1))
    check(device, outputs, taken=False)


def test_batch_along_the_last_axis_is_tiled_correctly(device: AnyDevice) -> None:
    x, y = filled(device, 6, 130), filled(device, 3, 130)
    w, v = filled(device, 16, 6), filled(device, 3, 16)
    hidden = (w @ x).leaky_relu(0.1)
    loss = (v @ hidden - y).square().sum()
    check(device, gradients(loss, w, v) | {"hidden": hidden.node})


def test_row_softmax_and_weighted_sums_in_a_block_are_right(device: AnyDevice) -> None:
    x, u = filled(device, 150, 12), filled(device, 12, 12)
    w, v = filled(device, 12, 9), filled(device, 9)
    scores = nn.softmax((x @ u).leaky_relu(0.1) @ w)
    weighted = (scores * v).sum(axis=1)
    check(device, gradients(weighted.square().sum(), u, w, v) | {"weighted": weighted.node})


def test_rows_normalised_by_the_batch_mean_are_right(device: AnyDevice) -> None:
    """The mean over the batch is a sum over rows; what depends on it follows the block."""
    x, w, v = filled(device, 130, 8), filled(device, 8, 8), filled(device, 8, 3)
    hidden = ((x @ w).leaky_relu(0.1) @ w).leaky_relu(0.1)
    centred = hidden - hidden.mean(axis=0)
    check(device, {"centred": centred.node, "answer": (centred @ v).node, "hidden": hidden.node})


def test_concatenated_input_rows_in_a_block_are_right(device: AnyDevice) -> None:
    x = Tensor.concat([filled(device, 40, 6), filled(device, 60, 6) * 2.0], axis=0)
    w, v = filled(device, 6, 7), filled(device, 7, 3)
    loss = (((x @ w).leaky_relu(0.1) @ v).square()).sum()
    check(device, gradients(loss, w, v))


def test_rows_padded_by_their_own_number_are_right(device: AnyDevice) -> None:
    """The width of the padding equals the number of rows."""
    x = filled(device, 5, 3)
    wide = x.pad((0, 5), (0, 0))
    outputs = {"square": wide.square(), "sum": (x * 2.0).sum(0), "next": wide.pad((5, 0), (0, 3))}
    check(device, {name: t.node for name, t in outputs.items()}, taken=False)


def test_gathered_rows_and_integer_sums_in_a_block_are_right(device: AnyDevice) -> None:
    table, w = filled(device, 20, 6), filled(device, 6, 9)
    index = Tensor.random_bits((200,), 5, device) % 20
    hidden = (table.gather(index.cast(dt.i32)) @ w).leaky_relu(0.1)
    large = (hidden > 0.5).cast(dt.i32).sum(axis=0)
    check(device, {"large": large.node, "sum": (hidden @ filled(device, 9, 4)).sum(axis=0).node})


# --- what a block contains, and its note ---


@lowered_only
def test_note_describes_the_block_and_its_tiles(device: AnyDevice) -> None:
    procedure = lowered(network(device, 512, [6, 16, 16, 3], lambda x: x.leaky_relu(0.1)))
    assert procedure.note.startswith("block: 512 rows in 2 tiles of 256, 2 groups; ")
    assert len(blocks(procedure)) == 1


@lowered_only
def test_little_work_is_left_to_the_general_scheduler(device: AnyDevice) -> None:
    procedure = lowered({"y": (filled(device, 512, 8) * 2.0).sum(axis=0).node})
    assert not blocks(procedure)
    assert procedure.note.startswith("no block: ")


@lowered_only
def test_columns_of_an_image_are_not_taken_as_the_batch(device: AnyDevice) -> None:
    x, w, g = (filled(device, *shape) for shape in ((1, 3, 64, 64), (3, 3, 3, 3), (1, 3, 64, 64)))
    procedure = lowered(gradients((x.conv2d(w, padding=1) * g).sum(), x, w))
    assert not blocks(procedure)
    assert procedure.note == "no block: the busiest axis has no products"


@lowered_only
def test_each_group_has_its_own_partial_sums(device: AnyDevice) -> None:
    """No addition is atomic; a later kernel adds the sums of all groups in order."""
    outputs = network(device, 1024, [6, 16, 16, 3], lambda x: x.leaky_relu(0.1))
    (block,) = blocks(lowered(outputs, units=3))
    assert block.groups == 3
    (partial,) = [b for b in block.writes() if b.name == "partial_sums"]
    assert partial.shape[0] == 3


@lowered_only
@pytest.mark.parametrize(
    ("rows", "width", "units", "groups"),
    [
        (256 * 64, 16, 2, 8),  # groups of eight tiles
        (256 * 71, 16, 2, 8),  # groups of nine tiles, and one of eight
        (256 * 400, 16, 2, 16),  # no more of them
        (256 * 4000, 16, 5, 40),
        (256 * 4000, 16, 20, 160),
        (256 * 400, 8, 5, 20),  # a short step, which may become persistent
        (256 * 400, 8, 20, 20),
        (256 * 400, 128, 2, 14),  # more would have too many partial sums
        (256 * 400, 512, 2, 2),
        (256 * 7, 16, 2, 2),
    ],
)
def test_number_of_groups_balances_threads_against_partial_sums(
    device: AnyDevice, rows: int, width: int, units: int, groups: int
) -> None:
    outputs = network(device, rows, [6, width, width, 3], lambda x: x.leaky_relu(0.1))
    (block,) = blocks(lowered(outputs, units=units))
    assert block.groups == groups


@lowered_only
def test_wide_rows_have_smaller_tiles(device: AnyDevice) -> None:
    outputs = network(device, 512, [512, 1024, 1024, 3], lambda x: x.leaky_relu(0.1))
    (block,) = blocks(lowered(outputs))
    assert block.rows < 64
    assert block.rows * block.tiles == 512
    assert lowered(outputs).note.endswith("; larger tiles take too much memory")


def test_rerun_of_a_block_gives_identical_bits(device: AnyDevice) -> None:
    outputs = network(device, 300, [6, 16, 16, 3], lambda x: x.leaky_relu(0.1))
    program = Program(device, outputs, [])
    runs = []
    for _ in range(3):
        program.run()
        runs.append([program.read(name).tobytes() for name in outputs])
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize(("batch", "width", "kept"), [(512, 16, 3), (1111, 16, 3), (512, 80, 0)])
def test_sums_kept_in_registers_across_tiles_are_right(batch: int, width: int, kept: int) -> None:
    """In half precision each gradient is one tile. The emulator multiplies without rounding."""
    device = with_units(open_device("numpy:uops-group"), 1)  # so that groups have several tiles
    device.has_matrix_units = True
    square = filled(device, width, width)  # a product that is stored as it is, and not added
    outputs = network(device, batch, [6, width, width, 3], lambda x: (x @ square).sin())
    program = Program(device, outputs, [], precision="half")
    (block,) = blocks(program.stages.procedure)
    assert block.tiles >= 2 * block.groups
    (code,) = [c for c in program.stages.codes if any(u.op is U.BARRIER for u in c.uops)]
    tiles = next(i for i, u in enumerate(code.uops) if u.op is U.RANGE and u.arg.kind == "share")
    assert len([u for u in code.uops[:tiles] if u.op is U.TILE]) == kept
    expected = evaluate(list(outputs.values()), leaf_values(outputs), wide=True)
    for _ in range(2):  # the second run finds what the first left in memory
        program.run()
        for name, value in zip(outputs, expected, strict=True):
            error = float(np.abs(program.read(name) - value).max())
            assert error <= 1e-5 * float(np.abs(value).max()), name


@lowered_only
def test_computation_inside_cond_makes_no_block(device: AnyDevice) -> None:
    x, w = filled(device, 128, 8), filled(device, 8, 8)
    hidden = x @ w
    for _ in range(4):
        hidden = hidden.leaky_relu(0.1) @ w
    chosen = cond(filled(device, 1).sum() > 0.0, lambda: hidden.sum(axis=0), lambda: hidden[0])
    assert not blocks(lowered({"y": chosen.node}))


def test_reshaped_rows_are_right_without_a_block(device: AnyDevice) -> None:
    x, w, v = filled(device, 128, 8), filled(device, 8, 9), filled(device, 9, 3)
    picture = ((x @ w).leaky_relu(0.1) @ v).sin().reshape(8, 16, 3)
    outputs = {"picture": picture.node}
    check(device, outputs, taken=False)


@lowered_only
def test_concatenated_gradients_are_also_computed_in_the_block(device: AnyDevice) -> None:
    """No product over the rows is computed again after the block."""
    x, w, v = filled(device, 128, 8), filled(device, 8, 9), filled(device, 9, 3)
    loss = ((x @ w).leaky_relu(0.1) @ v).square().sum()
    by_w, by_v = loss.gradient([w, v])
    flat = Tensor.concat([by_w.reshape(-1), by_v.reshape(-1)])
    outputs = {"flat": flat.node, "twice": (by_w * 2.0).node}
    check(device, outputs)
    after = [k for k in lowered(outputs).kernels if not isinstance(k, Block)]
    assert not any(k.core is not None and k.core.op is Op.DOT for k in after)


@lowered_only
def test_wide_layers_keep_tiles_of_many_rows(device: AnyDevice) -> None:
    """Partial sums as large as all weights must not lead to tiles of few rows."""
    (block,) = blocks(lowered(network(device, 512, [64, 256, 256, 256, 3], Tensor.relu)))
    assert block.rows >= 16
