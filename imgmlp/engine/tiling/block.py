"""The block program: a step whose values belong to rows of a batch runs tile by tile in one launch.

In: the updates of a step, and the Target. Out: a Procedure that has most of the step in one Block,
or the general schedule where a block does not pay; its note says which and why.

batch_axis.py says what each value is relative to the batch. ROW and ACC values become the Block:
each work-group walks tiles of rows, keeps a tile's ROW values in memory of its own, and adds ACC
values to partial sums of its own. So nothing is atomic, and a rerun gives the same bits. WHOLE
values that are costly are computed before the block. AFTER values are computed after it, from the
totals of the partial sums. The graph of a tile is scheduled like any other.

A tile has as many rows as fit in MAX_TILE_BYTES, or fewer where more tiles keep more compute units
busy. A block must save at least one launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from imgmlp.engine.ir.graph import Buffer, Node, buffer, move, part, toposort
from imgmlp.engine.ir.kernel import CORE_OPS, Block, Kernel, Procedure, Update, storage
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.op import CONTROL, Op
from imgmlp.engine.ir.target import (
    FACTOR_DTYPES,
    MAX_BLOCK_TILE_ROWS,
    MAX_UNITS_PER_PHASE,
    ProductMode,
    Target,
)
from imgmlp.engine.passes.drafts import topological_order
from imgmlp.engine.passes.materialize import Graph
from imgmlp.engine.passes.merge import attach_column_sums, merge_drafts
from imgmlp.engine.passes.persistent import MAX_OPERATIONS_PER_LAUNCH
from imgmlp.engine.passes.row_fusion import fuse_rows
from imgmlp.engine.passes.schedule import freeze, schedule
from imgmlp.engine.passes.side_queue import MAX_SIDE_BLOCK_ROWS, side_block_rows
from imgmlp.engine.tiling.batch_axis import BatchKinds, Kind, choose_batch
from imgmlp.engine.tiling.batch_last import factors_batch_last
from imgmlp.engine.tiling.partial_sums import PartialSums
from imgmlp.engine.tiling.prologue import group_buffer
from imgmlp.engine.tiling.staging import stage_in_local_memory
from imgmlp.engine.tiling.tile import Tile, Tiling, tile_batch
from imgmlp.engine.tiling.tile_memory import share_buffers
from imgmlp.engine.tiling.tile_skipping import guard_kernels

# --- the size of a tile, by the lanes of a work-group ---
MAX_TILE_ROWS = {"one": MAX_BLOCK_TILE_ROWS, "group": 64}
MIN_TILE_ROWS = {"one": 64, "group": 8}  # where smaller tiles keep more compute units busy
MAX_TILE_BYTES = {"one": 1 << 19, "group": 1 << 18}  # of all ROW values of a tile
# Rows of a float32 tile from which matrix units pay, if local memory does not hold more. In half
# precision full tiles whose factors pass through local memory are faster than smaller tiles.
MIN_STAGED_ROWS = 24

# --- the number of work-groups (docs/performance-notes.md, "Steps of train") ---
GROUPS_PER_UNIT = {"one": 1, "group": 4}  # compute unit, unless one of the following rules applies
# On a CPU, threads take groups as they become free, while another program may use one of the cores.
# More groups balance the load, as long as each has enough tiles and partial sums do not pile up.
MAX_GROUPS_PER_CORE = 8
MIN_TILES_PER_GROUP = 8
MAX_PARTIAL_SUMS = 1 << 18  # elements, of all groups
# On matrix units, if groups have several tiles: groups per unit by the number of elements that are
# summed over rows. Few sums stay in registers. In float32 fewer groups leave more of the cache for
# the matrices that are read where they are.
GROUPS_PER_UNIT_BY_SUMS: dict[ProductMode, dict[int, int]] = {
    "half": {1 << 12: 4, 1 << 62: 2},
    "split": {1 << 12: 3, 1 << 62: 2},
}
# Of a block that runs beside other launches. On an H200 two took 3% longer than three, four 2%.
SIDE_GROUPS_PER_UNIT = 3

# --- whether a block pays ---
MIN_SAVED_LAUNCHES = 1
MIN_BATCH_ROWS = 8  # fewer do not outweigh partial sums as large as the parameters
MIN_PRODUCT_OPERATIONS = 1 << 20  # operations of products from which one more block pays
# Columns up to which a ROW value is stored for another block; wider ones are recomputed there.
MAX_STORED_COLUMNS = 8

FACTORS_ARE_SLICED = "a tile's factors have no room in local memory and pass through it in slices"


def block_procedure(updates: Sequence[Update], target: Target) -> Procedure:
    """Schedule a step, most of it in one Block if that pays.

    On a device with two queues, the block that runs in the second queue gets fewer work-groups.
    Which block that is is known only after scheduling. It is guessed to be the first one, which is
    mostly right and saves scheduling twice.
    """
    if not target.has_queues:
        return _schedule_blocks(updates, target)
    kinds = _first_block_kinds(updates)
    guessed_rows = 0
    if kinds is not None and kinds.other_product_operations() >= MIN_PRODUCT_OPERATIONS:
        guessed_rows = kinds.batch_size()
        guessed_rows *= guessed_rows <= MAX_SIDE_BLOCK_ROWS
    procedure = _schedule_blocks(
        updates, replace(target, side_block_rows=guessed_rows), first_kinds=kinds
    )
    side_rows = side_block_rows(procedure)
    if side_rows != guessed_rows:
        procedure = _schedule_blocks(
            updates, replace(target, side_block_rows=side_rows), first_kinds=kinds
        )
    return procedure


def _first_block_kinds(updates: Sequence[Update]) -> BatchKinds | None:
    """The Kinds for the first block of a step, or None if there can be none."""
    nodes = toposort(value for _, value in updates)
    if any(n.op in CONTROL for n in nodes):
        return None
    return choose_batch(nodes, {s for s, _ in updates})


def _schedule_blocks(
    updates: Sequence[Update],
    target: Target,
    min_products: int = 0,
    first_kinds: BatchKinds | None = None,
) -> Procedure:
    """Schedule a step in blocks; by the general scheduler alone if no block pays.

    A block must have `min_products` operations of products. `first_kinds` are the Kinds for the
    first block, if they are known.
    """
    general = cache(lambda: schedule(updates, target.lanes == "group"))  # slow, so only if needed

    def without_block(why: str) -> Procedure:
        return replace(general(), note=f"no block: {why}")

    nodes = toposort(value for _, value in updates)
    products = sum(n.op is Op.DOT for n in nodes)  # each is a launch at least
    few_launches = MIN_SAVED_LAUNCHES + 1
    if products <= few_launches and len(general().kernels) <= few_launches:
        return without_block(f"{len(general().kernels)} launches are few")
    if any(n.op in CONTROL for n in nodes):
        return without_block("the step has loops or choices")
    kinds = first_kinds or choose_batch(nodes, {s for s, _ in updates}, min_products)
    if kinds is None:
        return without_block("no axis has large products")
    if objection := _objection_to_batch(kinds, has_products=products > 0):
        return without_block(objection)
    plan = _BlockPlan(updates, nodes, kinds, target)
    if plan.block is None:
        return without_block("no value has rows of its own")
    updates_before = [(n.arg, value) for value, n in plan.tile.computed_before.items()]
    before = _schedule_blocks(updates_before, target, MIN_PRODUCT_OPERATIONS)
    items_before = (*before.items, *plan.tile.prologue.kernels_before())
    after = _schedule_blocks(plan.after, target, MIN_PRODUCT_OPERATIONS)
    items = (*items_before, plan.block, *after.items)
    notes = [p.note for p in (before, after) if any(isinstance(k, Block) for k in p.kernels)]
    procedure = Procedure(items, "; ".join([plan.note, *notes]))
    has_several_blocks = sum(isinstance(k, Block) for k in procedure.kernels) > 1
    if min_products or has_several_blocks:
        return procedure
    count, general_count = len(procedure.kernels), len(general().kernels)
    if count + MIN_SAVED_LAUNCHES > general_count:
        return without_block(f"a block would leave {count} of {general_count} launches")
    return procedure


def _objection_to_batch(kinds: BatchKinds, has_products: bool) -> str:
    """Why a batch axis is not worth a block; "" if it is."""
    if has_products and not kinds.product_operations():  # such as the columns of a picture
        return "the busiest axis has no products"
    if kinds.batch_size() < MIN_BATCH_ROWS:
        return f"{kinds.batch_size()} rows are few"
    return ""


class _BlockPlan:
    """The Block of a step, and the updates that come after it."""

    def __init__(
        self, updates: Sequence[Update], nodes: Sequence[Node], kinds: BatchKinds, target: Target
    ) -> None:
        self.updates, self.nodes, self.kinds, self.target = updates, nodes, kinds, target
        self.block: Block | None = None
        is_cpu = target.lanes == "one"
        self.batch_last = factors_batch_last(nodes, kinds) if is_cpu else set()
        after = [n for n in nodes if kinds.of[n] is Kind.AFTER]
        self.sums, self.rows = self._find_outputs(after)
        if not self.sums and not self.rows:
            return
        self.limits: list[str] = []  # why tiles are small, or their factors not staged
        tiling, kernels = self._largest_tiles(after)
        if target.product_mode == "split":
            tiling, kernels = self._fit_local_memory(tiling, kernels, after)
        if target.product_mode in FACTOR_DTYPES and not is_staged(kernels):
            self.limits.append(FACTORS_ARE_SLICED)
        cleared = self.partial_sums.clear() if tiling.tiles > tiling.groups else []
        prologue = (*cleared, *self.staging_kernels, *self.tile.prologue.kernels())
        self.block = Block(
            "block",
            tiling.batch,
            tiling.tiles,
            tiling.rows,
            tiling.groups,
            prologue,
            tuple(kernels),
        )
        self.note = self._describe(tiling, after)

    def _find_outputs(self, after: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """ACC values, and ROW values stored with all rows, that the step needs of the block."""
        kinds = self.kinds
        roots = {value for _, value in self.updates}
        used = roots | {s for n in after for s in n.src}
        sums = [n for n in self.nodes if kinds.of[n] is Kind.ACC and n in used]
        rows = [n for n in self.nodes if kinds.of[n] is Kind.ROW and n in used and n.src]
        in_another_block = kinds.computable_in_another_block(self.nodes)
        must_store = roots | {s for n in after if n not in in_another_block for s in n.src}
        stored = (n for n in rows if n in must_store or not self._is_recomputed(n))
        return sums, list(dict.fromkeys(n if n in roots else self._unsliced(n) for n in stored))

    def _largest_tiles(self, after: Sequence[Node]) -> tuple[Tiling, list[Kernel]]:
        """The tiling with most rows, and the kernels of its tiles."""
        lanes, batch = self.target.lanes, self.kinds.batch_size()
        rows = min(self.target.max_tile_rows, MAX_TILE_ROWS[lanes])
        while rows > MIN_TILE_ROWS[lanes] and batch < rows * self.target.compute_units:
            rows //= 2
        most_rows = rows = min(rows, batch)
        while True:
            tiling = self._choose_tiling(batch, rows)
            kernels = self._schedule_tile(tiling, after)
            if rows == 1 or self._tile_bytes(kernels) <= MAX_TILE_BYTES[lanes]:
                break
            rows //= 2
        if rows < most_rows:
            self.limits.append("larger tiles take too much memory")
        return tiling, kernels

    def _unsliced(self, node: Node) -> Node:
        """The ROW value of which this one is a slice: it is stored as a whole, once."""
        while node.op in (Op.SHRINK, Op.RESHAPE) and self.kinds.of[node.src[0]] is Kind.ROW:
            if not node.src[0].src:
                break
            node = node.src[0]
        return node

    def _is_recomputed(self, node: Node) -> bool:
        """Whether it is cheaper for another block to recompute a ROW value than to read it."""
        if node.size > MAX_STORED_COLUMNS * self.kinds.batch_size():
            return True
        below = (n for n in toposort([node]) if self.kinds.of[n] is Kind.ROW)
        return not any(n.op in CORE_OPS for n in below)

    def _choose_tiling(self, batch: int, rows: int) -> Tiling:
        """Tiles of at most `rows` rows, and how many work-groups share them."""
        target = self.target
        max_groups = target.compute_units * GROUPS_PER_UNIT[target.lanes]
        if target.product_mode in FACTOR_DTYPES and -(-batch // rows) > max_groups:
            sums = sum(n.size for n in self.sums)
            limits = GROUPS_PER_UNIT_BY_SUMS[target.product_mode].items()
            per_unit = next(count for max_sums, count in limits if sums <= max_sums)
            max_groups = target.compute_units * per_unit
        if batch == target.side_block_rows:
            max_groups = min(max_groups, target.compute_units * SIDE_GROUPS_PER_UNIT)
        tiling = tile_batch(batch, rows, max_groups)
        if target.lanes == "one":
            return replace(tiling, groups=self._count_cpu_groups(tiling))
        return tiling

    def _count_cpu_groups(self, tiling: Tiling) -> int:
        """Work-groups on a CPU, equally many for each core.

        A short step, which may become persistent, has no more groups than can stay.
        """
        sums = sum(n.size for n in self.sums)
        limits = [MAX_PARTIAL_SUMS // max(1, sums), tiling.tiles // MIN_TILES_PER_GROUP]
        if 2 * self.kinds.row_operations() <= MAX_OPERATIONS_PER_LAUNCH:
            limits.append(MAX_UNITS_PER_PHASE)
        per_core = min(MAX_GROUPS_PER_CORE, *(n // self.target.compute_units for n in limits))
        return max(tiling.groups, per_core * self.target.compute_units)

    def _fit_local_memory(
        self, tiling: Tiling, kernels: list[Kernel], after: Sequence[Node]
    ) -> tuple[Tiling, list[Kernel]]:
        """The largest tiles whose factors fit in local memory; if none do, the given ones."""
        rows = tiling.rows
        while not is_staged(kernels) and rows // 2 >= MIN_STAGED_ROWS:
            rows //= 2
            smaller = self._choose_tiling(tiling.batch, rows)
            smaller_kernels = self._schedule_tile(smaller, after)
            if is_staged(smaller_kernels):
                self.limits.append("larger tiles have no room in local memory")
                return smaller, smaller_kernels
        return tiling, kernels if rows == tiling.rows else self._schedule_tile(tiling, after)

    def _schedule_tile(
        self, tiling: Tiling, after: Sequence[Node], skips_tiles: bool | None = None
    ) -> list[Kernel]:
        """The kernels of one tile; also sets what comes before and after the block.

        With `skips_tiles`, tiles compute nothing for sums to which they add only zeros. By default
        they do so on a CPU whose groups have several tiles: the only tile of a group stores its sum
        instead of adding to it, so it cannot be skipped.
        """
        has_several_tiles = tiling.tiles > tiling.groups
        if skips_tiles is None:
            skips_tiles = self.target.lanes == "one" and has_several_tiles
        self.tile = Tile(self.kinds, tiling, self.target.lanes, self.batch_last, skips_tiles)
        self.partial_sums = PartialSums(self.sums, after, tiling.groups)
        places = {self.tile.value(n): self.partial_sums.place(n) for n in self.sums}
        self.whole_values: dict[Node, Node] = {}  # ROW values, and their places with all rows
        self.filled_states: set[Buffer] = set()  # states that the block itself stores
        for node in self.rows:
            self._place_whole_value(node, tiling, places)
        conditions = {self.partial_sums.place(n): c for n, c in self.tile.conditions.items()}
        has_equal_sums = len({self.tile.value(n) for n in self.sums}) < len(self.sums)
        scheduled = None
        if not (conditions and has_equal_sums):
            scheduled = _tile_kernels(places, tiling.groups, self.target, conditions)
        if scheduled is None:
            return self._schedule_tile(tiling, after, skips_tiles=False)
        kernels, self.staging_kernels = scheduled
        replaced = self.partial_sums.totals() | self.whole_values
        remaining = [(s, v) for s, v in self.updates if s not in self.filled_states]
        values = self.tile.read_stored([v for _, v in remaining], replaced)
        updates = [(s, v) for (s, _), v in zip(remaining, values, strict=True)]
        self.after = self.tile.prologue.save_states(updates, bool(self.tile.computed_before))
        if not has_several_tiles:
            return kernels
        sums = set(self.partial_sums.buffers.values())
        return [k.adding_to(sums) for k in kernels]

    def _tile_bytes(self, kernels: Sequence[Kernel]) -> int:
        """Bytes of the values of one tile, which are proportional to its rows."""
        written = {b for k in kernels for b in k.writes() if b.device is None}
        written = {b for b in written if not isinstance(b, LocalBuffer)}
        buffers = written - set(self.partial_sums.buffers.values())
        buffers -= {storage(whole) for whole in self.whole_values.values()}
        return sum(b.nbytes // b.shape[0] for b in buffers)

    def _place_whole_value(self, node: Node, tiling: Tiling, places: dict[Node, Node]) -> None:
        """Give a ROW value that is stored with all rows a place; tiles fill their rows of it."""
        axis, value = self.kinds.axis(node, len(node.shape)), self.tile.value(node)
        assert axis is not None
        order = value.arg if value.op is Op.PERMUTE else tuple(range(len(value.shape)))
        computed = value.src[0] if value.op is Op.PERMUTE else value
        if computed not in places:
            whole = self._free_state(node, tiling) if axis == 0 else None
            if whole is not None:
                self.filled_states.add(whole)
            shape = tuple(
                tiling.rows * tiling.tiles if a == axis else n for a, n in enumerate(node.shape)
            )
            whole = whole or Buffer(shape, node.dtype, name=f"rows{len(self.whole_values)}")
            rows = part(move(Op.RESHAPE, buffer(whole), shape), "tile", tiling.tiles, axis)
            places[computed] = move(Op.PERMUTE, rows, tuple(map(order.index, range(len(order)))))
        place = places[computed]
        if place.op is Op.PERMUTE:
            whole_of = move(Op.PERMUTE, place.src[0].src[0], place.arg)
        else:
            whole_of = place.src[0]
        full = tuple((0, n) for n in node.shape)
        self.whole_values[node] = move(Op.SHRINK, move(Op.PERMUTE, whole_of, order), full)

    def _free_state(self, node: Node, tiling: Tiling) -> Buffer | None:
        """A state whose new value this is, in any shape, and whose old value nobody reads."""
        read = {n.arg for n in self.nodes if n.op is Op.BUFFER}
        updated = [s for s, v in self.updates if node in (v, v.op is Op.RESHAPE and v.src[0])]
        states = [s for s in updated if s not in read]
        return states[0] if states and tiling.even else None

    def _describe(self, tiling: Tiling, after: Sequence[Node]) -> str:
        """The Procedure's note about this block."""
        assert self.block is not None
        rows = f"{tiling.batch} rows in {tiling.tiles} tiles of {tiling.rows}"
        inside = f"{len(self.block.kernels)} kernels in one launch, {len(self.sums)} sums over rows"
        outside = [n for n in after if any(self.kinds.of[s] is Kind.ROW for s in n.src)]
        left = f"; {len(outside)} values need all rows at once" if outside else ""
        return "; ".join(
            [f"block: {rows}, {tiling.groups} groups", f"{inside}{left}", *self.limits]
        )


def _tile_kernels(
    outputs: dict[Node, Node], groups: int, target: Target, conditions: dict[Node, Node]
) -> tuple[list[Kernel], list[Kernel]] | None:
    """The kernels of a tile, and those that each group runs once to stage values.

    `outputs` are values and the places that they go to; intermediates go to memory of the group's
    own. None if the kernels cannot be guarded by the `conditions` of their places.
    """
    buffers: dict[Buffer, Node] = {}  # Buffers of intermediates, and the running group's part
    places: dict[Buffer, Node] = {}  # likewise, and the place of the value

    def group_place(node: Node, name: str) -> Node:
        place = group_buffer(groups, node, name)
        buffers[storage(place)] = part(buffer(storage(place)), "group", groups)
        places[storage(place)] = place
        return place

    graph = Graph(list(outputs))
    drafts = graph.drafts(graph.places(outputs, group_place))
    lasting = {storage(place) for place in outputs.values()}
    drafts = fuse_rows(attach_column_sums(merge_drafts(drafts)), lasting)
    kernels = [freeze(d, i) for i, d in enumerate(topological_order(drafts))]
    if conditions:
        guarded = guard_kernels(kernels, conditions, set(buffers))
        if guarded is None:
            return None
        kernels = guarded
    if target.lanes == "group":
        staged = stage_in_local_memory(kernels, buffers, places, target.product_mode)
        if staged is not None:
            return staged
    return share_buffers(kernels, buffers), []


def is_staged(kernels: Sequence[Kernel]) -> bool:
    """Whether a tile's products, if there are any, read factors in local memory."""
    cores = [k.core for k in kernels if k.core is not None and k.core.op is Op.DOT]
    factors = {storage(s) for core in cores for s in core.src}
    return not factors or any(isinstance(b, LocalBuffer) for b in factors)
