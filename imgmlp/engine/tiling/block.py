"""The block program: a step whose values belong to rows runs tile by tile in one launch.

batch_axis.py says what each value is relative to the batch. ROW and ACC values become one Block:
each work-group walks tiles of rows, keeps a tile's ROW values in memory of its own and adds ACC
values to partial sums of its own, so nothing is atomic and a rerun gives the same bits. What is
WHOLE and not at hand is computed before; what remains is computed after, where a partial sum stands
for its ACC value. The tile's own graph, whose batch is as long as a tile, is scheduled like any
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from imgmlp.engine.ir.graph import Buffer, Node, buffer, move, part, toposort
from imgmlp.engine.ir.kernel import CORES, Block, Kernel, Procedure, Update, storage
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.op import CONTROL, Op
from imgmlp.engine.ir.target import BLOCK_ROWS, FACTORS, MOST_UNITS, Multiply, Target
from imgmlp.engine.passes.drafts import topological_order
from imgmlp.engine.passes.materialize import Graph
from imgmlp.engine.passes.merge import attach_column_sums, merge_drafts
from imgmlp.engine.passes.persistent import MAX_OPERATIONS_PER_LAUNCH
from imgmlp.engine.passes.row_fusion import fuse_rows
from imgmlp.engine.passes.schedule import freeze, schedule
from imgmlp.engine.passes.side_queue import MAX_SIDE_BLOCK_ROWS, side_block_rows
from imgmlp.engine.tiling.batch_axis import Kind, Kinds, best
from imgmlp.engine.tiling.batch_last import factors_batch_last
from imgmlp.engine.tiling.left_out import guarded
from imgmlp.engine.tiling.partial_sums import PartialSums
from imgmlp.engine.tiling.prologue import group_buffer
from imgmlp.engine.tiling.staging import bring
from imgmlp.engine.tiling.tile import Cut, Tile, cut_batch
from imgmlp.engine.tiling.tile_memory import share

MOST_ROWS = {"one": BLOCK_ROWS, "group": 64}
LEAST_ROWS = {"one": 64, "group": 8}  # of a tile, where more tiles keep more units busy
TILE_BYTES = {"one": 1 << 19, "group": 1 << 18}  # bytes that the rows of one tile may take
GROUPS_A_UNIT = {"one": 1, "group": 4}  # to begin with
# Of a CPU, whose threads take groups as they come while something else may have one of its cores:
# so many, where each has tiles enough and all of them keep no more partial sums.
TAKEN_IN_TURN, TILES_A_GROUP, MOST_SUMS = 8, 8, 1 << 18
# Instead, where matrix units have several tiles for each group: with so few sums, which lanes keep
# in registers, or with more. Float32's matrices are read where they are, from what is left of the
# cache.
GROUPS_OF_SEVERAL_TILES: dict[Multiply, dict[int, int]] = {
    "half": {1 << 12: 4, 1 << 62: 2},
    "split": {1 << 12: 3, 1 << 62: 2},
}
LEAST_SAVED = 1  # launches; below that a block is not worth it
# Rows of a tile of float32 from which matrix units pay, if local memory does not hold more. (Of
# halves, tiles with all rows whose factors pass by take less time than smaller ones.)
LEAST_STAGED = 24
# Of one that runs beside other launches. On an H200 two instead of three took 3% longer, four 2%.
GROUPS_ASIDE = 3
NOT_STAGED = "a tile's factors have no room in local memory and pass through it in slices"
MUCH = 1 << 20  # elementary operations of products that pay for one more block
WIDE = 8  # elements of a row from which to compute it again in another block, not to store it
FEW_ROWS = 8  # fewer do not outweigh partial sums as large as the parameters


def block_procedure(updates: Sequence[Update], target: Target) -> Procedure:
    """The launches of a step, most of it in one Block if it pays.

    The Procedure's note says what became of it and why. Where launches of two queues run at the
    same time, the block that does beside others leaves room for them. That it is the first of
    several is right for most, and spares cutting all of them twice.
    """
    if not target.queues:
        return _blocks(updates, target)
    first = _first(updates)
    guessed = first.rows() if first is not None and first.other_products() >= MUCH else 0
    guessed *= guessed <= MAX_SIDE_BLOCK_ROWS
    found = _blocks(updates, replace(target, aside=guessed), first=first)
    aside = side_block_rows(found)
    if aside != guessed:
        found = _blocks(updates, replace(target, aside=aside), first=first)
    return found


def _first(updates: Sequence[Update]) -> Kinds | None:
    """What values are relative to the batch of the first block, which there need not be."""
    nodes = toposort(value for _, value in updates)
    if any(n.op in CONTROL for n in nodes):
        return None
    return best(nodes, {s for s, _ in updates})


def _blocks(
    updates: Sequence[Update], target: Target, least: int = 0, first: Kinds | None = None
) -> Procedure:
    """The same; without a block if its products take less than `least` operations. `first` is what
    values are for the first block, if it is known."""
    general = cache(lambda: schedule(updates, target.lanes == "group"))  # takes long: if it must

    def without(why: str) -> Procedure:
        return replace(general(), note=f"no block: {why}")

    nodes = toposort(value for _, value in updates)
    products = sum(n.op is Op.DOT for n in nodes)  # a launch each, at least
    if products <= LEAST_SAVED + 1 and len(general().kernels) <= LEAST_SAVED + 1:
        return without(f"{len(general().kernels)} launches are few")
    if any(n.op in CONTROL for n in nodes):
        return without("the step has loops or choices")
    kinds = first or best(nodes, {s for s, _ in updates}, least)
    if kinds is None:
        return without("no axis has large products")
    if products and not kinds.products():  # a picture's columns, say: taps are no rows of its tile
        return without("the busiest axis has no products")
    if kinds.rows() < FEW_ROWS:
        return without(f"{kinds.rows()} rows are few")
    plan = _Plan(updates, nodes, kinds, target)
    if plan.block is None:
        return without("no value has rows of its own")
    before = _blocks([(n.arg, value) for value, n in plan.tile.before.items()], target, MUCH)
    ahead = (*before.items, *plan.tile.prologue.before())
    after = _blocks(plan.after, target, MUCH)
    notes = [p.note for p in (before, after) if any(isinstance(k, Block) for k in p.kernels)]
    found = Procedure((*ahead, plan.block, *after.items), "; ".join([plan.note, *notes]))
    several = sum(isinstance(k, Block) for k in found.kernels) > 1
    if least or several:
        return found
    launches = len(general().kernels)
    few = len(found.kernels) + LEAST_SAVED <= launches
    return (
        found
        if few
        else without(f"a block would leave {len(found.kernels)} of {launches} launches")
    )


class _Plan:
    """What goes into the block and what comes after it."""

    def __init__(
        self, updates: Sequence[Update], nodes: Sequence[Node], kinds: Kinds, target: Target
    ) -> None:
        self.updates, self.nodes, self.kinds, self.target = updates, nodes, kinds, target
        lanes, units = target.lanes, target.units
        self.block: Block | None = None
        self.last = factors_batch_last(nodes, kinds) if lanes == "one" else set()
        roots = {value for _, value in updates}
        after = [n for n in nodes if kinds.of[n] is Kind.AFTER]
        wanted = roots | {s for n in after for s in n.src}
        self.sums = [n for n in nodes if kinds.of[n] is Kind.ACC and n in wanted]
        self.rows = [n for n in nodes if kinds.of[n] is Kind.ROW and n in wanted and n.src]
        again = kinds.again(nodes)
        needed = roots | {s for n in after if n not in again for s in n.src}
        left = (n for n in self.rows if n in needed or not self._again(n))
        self.rows = list(dict.fromkeys(n if n in roots else self._uncut(n) for n in left))
        if not self.sums and not self.rows:
            return
        batch = kinds.rows()
        rows = min(target.block_rows, MOST_ROWS[lanes])
        while rows > LEAST_ROWS[lanes] and batch < rows * units:
            rows //= 2
        wanted_rows = rows = min(rows, batch)
        while True:
            cut = self._cut(batch, rows)
            kernels = self._scheduled(cut, after)
            if rows == 1 or self._tile_bytes(kernels) <= TILE_BYTES[lanes]:
                break
            rows //= 2
        self.limits = ["larger tiles take too much memory"] if rows < wanted_rows else []
        if target.multiply == "split":
            cut, kernels = self._nearer(cut, kernels, after)
        if target.multiply in FACTORS and not is_staged(kernels):
            self.limits.append(NOT_STAGED)
        cleared = self.partial.clear() if cut.tiles > cut.groups else []
        prologue = (*cleared, *self.ready, *self.tile.prologue.kernels())
        self.block = Block(
            "block", batch, cut.tiles, cut.rows, cut.groups, prologue, tuple(kernels)
        )
        self.note = self._told(cut, after)

    def _uncut(self, node: Node) -> Node:
        """The ROW value that a needed one is a piece of: it is left as a whole, once."""
        while node.op in (Op.SHRINK, Op.RESHAPE) and self.kinds.of[node.src[0]] is Kind.ROW:
            if not node.src[0].src:
                break
            node = node.src[0]
        return node

    def _again(self, node: Node) -> bool:
        """Whether another block had better compute a ROW value once more than read it."""
        below = (n for n in toposort([node]) if self.kinds.of[n] is Kind.ROW)
        return node.size > WIDE * self.kinds.rows() or not any(n.op in CORES for n in below)

    def _cut(self, batch: int, rows: int) -> Cut:
        """How the batch is cut."""
        target = self.target
        most = target.units * GROUPS_A_UNIT[target.lanes]
        if target.multiply in FACTORS and -(-batch // rows) > most:
            sums = sum(n.size for n in self.sums)
            groups = GROUPS_OF_SEVERAL_TILES[target.multiply].items()
            most = target.units * next(count for most, count in groups if sums <= most)
        if batch == target.aside:
            most = min(most, target.units * GROUPS_ASIDE)
        cut = cut_batch(batch, rows, most)
        return replace(cut, groups=self._in_turn(cut)) if target.lanes == "one" else cut

    def _in_turn(self, cut: Cut) -> int:
        """Groups of a CPU, a like number for each of its units; of short steps no more than may
        stay for several."""
        most = [MOST_SUMS // max(1, sum(n.size for n in self.sums)), cut.tiles // TILES_A_GROUP]
        if 2 * self.kinds.work() <= MAX_OPERATIONS_PER_LAUNCH:
            most.append(MOST_UNITS)
        each = min(TAKEN_IN_TURN, *(n // self.target.units for n in most))
        return max(cut.groups, each * self.target.units)

    def _nearer(
        self, cut: Cut, kernels: list[Kernel], after: Sequence[Node]
    ) -> tuple[Cut, list[Kernel]]:
        """The same with the most rows whose values local memory holds; if none are, as it is."""
        rows = cut.rows
        while not is_staged(kernels) and rows // 2 >= LEAST_STAGED:
            rows //= 2
            fewer = self._cut(cut.batch, rows)
            found = self._scheduled(fewer, after)
            if is_staged(found):
                self.limits.append("larger tiles have no room in local memory")
                return fewer, found
        return cut, kernels if rows == cut.rows else self._scheduled(cut, after)

    def _scheduled(
        self, cut: Cut, after: Sequence[Node], chooses: bool | None = None
    ) -> list[Kernel]:
        """The kernels of one tile; sets what comes before and after for this cut.

        Where it `chooses`, tiles are left out of sums to which they add nothing.
        """
        if chooses is None:  # what the only tile of a group leaves is its sum, so it must be there
            chooses = self.target.lanes == "one" and cut.tiles > cut.groups
        self.tile = Tile(self.kinds, cut, self.target.lanes, self.last, chooses)
        self.partial = PartialSums(self.sums, after, cut.groups)
        given = {self.tile.value(n): self.partial.place(n) for n in self.sums}
        self.finished: dict[Node, Node] = {}  # ROW values with all rows, in memory
        self.direct: set[Buffer] = set()  # states that the block itself fills
        for node in self.rows:
            self._finish(node, cut, given)
        when = {self.partial.place(n): found for n, found in self.tile.when.items()}
        alike = len({self.tile.value(n) for n in self.sums}) < len(self.sums)
        found = None if when and alike else _kernels(given, cut.groups, self.target, when)
        if found is None:
            return self._scheduled(cut, after, chooses=False)
        kernels, self.ready = found
        targets = set(self.partial.buffers.values())
        replaced = self.partial.totals() | self.finished
        left = [(s, v) for s, v in self.updates if s not in self.direct]
        values = self.tile.read_ahead([v for _, v in left], replaced)
        updates = [(s, v) for (s, _), v in zip(left, values, strict=True)]
        self.after = self.tile.prologue.set_aside(updates, bool(self.tile.before))
        if cut.tiles == cut.groups:  # what the only tile of a group leaves is its sum
            return kernels
        return [k.adding_to(targets) for k in kernels]

    def _tile_bytes(self, kernels: Sequence[Kernel]) -> int:
        """Bytes of the values of one tile, which fewer rows make fewer."""
        found = {b for k in kernels for b in k.writes() if b.device is None}
        found = {b for b in found if not isinstance(b, LocalBuffer)}
        buffers = found - set(self.partial.buffers.values())
        buffers -= {storage(whole) for whole in self.finished.values()}
        return sum(b.nbytes // b.shape[0] for b in buffers)

    def _finish(self, node: Node, cut: Cut, given: dict[Node, Node]) -> None:
        """Give the tile's rows of a value that is needed as a whole a place in memory."""
        axis, value = self.kinds.axis(node, len(node.shape)), self.tile.value(node)
        assert axis is not None
        order = value.arg if value.op is Op.PERMUTE else tuple(range(len(value.shape)))
        computed = value.src[0] if value.op is Op.PERMUTE else value
        if computed not in given:
            whole = self._free_state(node, cut) if axis == 0 else None
            if whole is not None:
                self.direct.add(whole)
            shape = tuple(
                cut.rows * cut.tiles if a == axis else n for a, n in enumerate(node.shape)
            )
            whole = whole or Buffer(shape, node.dtype, name=f"rows{len(self.finished)}")
            rows = part(move(Op.RESHAPE, buffer(whole), shape), "tile", cut.tiles, axis)
            given[computed] = move(Op.PERMUTE, rows, tuple(map(order.index, range(len(order)))))
        place = given[computed]
        if place.op is Op.PERMUTE:
            whole_of = move(Op.PERMUTE, place.src[0].src[0], place.arg)
        else:
            whole_of = place.src[0]
        full = tuple((0, n) for n in node.shape)
        self.finished[node] = move(Op.SHRINK, move(Op.PERMUTE, whole_of, order), full)

    def _free_state(self, node: Node, cut: Cut) -> Buffer | None:
        """A state that takes this value, in any shape, and whose old value nobody reads."""
        read = {n.arg for n in self.nodes if n.op is Op.BUFFER}
        takes = [s for s, v in self.updates if node in (v, v.op is Op.RESHAPE and v.src[0])]
        states = [s for s in takes if s not in read]
        return states[0] if states and cut.even else None

    def _told(self, cut: Cut, after: Sequence[Node]) -> str:
        assert self.block is not None
        taken = f"{cut.batch} rows in {cut.tiles} tiles of {cut.rows}, {cut.groups} groups"
        inside = f"{len(self.block.kernels)} kernels in one launch, {len(self.sums)} sums over rows"
        outside = [n for n in after if any(self.kinds.of[s] is Kind.ROW for s in n.src)]
        left = f"; {len(outside)} values need all rows at once" if outside else ""
        return "; ".join([f"block: {taken}", f"{inside}{left}", *self.limits])


def _kernels(
    given: dict[Node, Node], groups: int, target: Target, when: dict[Node, Node]
) -> tuple[list[Kernel], list[Kernel]] | None:
    """Kernels that fill the given places, intermediates in memory of the group's own, and those
    that a group needs to run before; None if no kernel fills those alone that have a bool which
    says `when`."""
    buffers: dict[Buffer, Node] = {}
    places: dict[Buffer, Node] = {}

    def own(node: Node, name: str) -> Node:
        place = group_buffer(groups, node, name)
        buffers[storage(place)] = part(buffer(storage(place)), "group", groups)
        places[storage(place)] = place
        return place

    graph = Graph(list(given))
    drafts = graph.drafts(graph.places(given, own))
    lasting = {storage(place) for place in given.values()}
    drafts = fuse_rows(attach_column_sums(merge_drafts(drafts)), lasting)
    kernels = [freeze(d, i) for i, d in enumerate(topological_order(drafts))]
    if when:
        left = guarded(kernels, when, set(buffers))
        if left is None:
            return None
        kernels = left
    on_lanes = target.lanes == "group"
    found = bring(kernels, buffers, places, target.multiply) if on_lanes else None
    return found or (share(kernels, buffers), [])


def is_staged(kernels: Sequence[Kernel]) -> bool:
    """Whether factors of a tile's products lie in local memory, if there are any products."""
    cores = [k.core for k in kernels if k.core is not None and k.core.op is Op.DOT]
    factors = {storage(s) for core in cores for s in core.src}
    return not factors or any(isinstance(b, LocalBuffer) for b in factors)
