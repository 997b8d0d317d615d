"""Which kernels: a Node graph becomes a Procedure.

A kernel computes an expression over its leaves for every element of one shape, with at
most one reduction or product inside; so elementwise chains fuse with each other, with
the reduction before them and with the reads after it. What must stand in memory gets a
place: a view of a Buffer that a kernel fills. Assigned values are placed straight into
the state they replace where every reader of the old value can run before.

This module knows neither devices nor instructions.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from imgmlp.engine.graph import (
    ELEMENTWISE,
    MOVEMENT,
    REDUCE,
    Buffer,
    Node,
    Op,
    Shape,
    apply_movement,
    buffer,
    dot,
    move,
    rebuild,
    reduce,
    substitute,
    toposort,
)
from imgmlp.engine.view import Access

Update = tuple[Buffer, Node]
CORES = REDUCE | {Op.DOT}
COSTS = {Op.HASH: 6, Op.EXP2: 8, Op.LOG2: 8, Op.SIN: 12, Op.SQRT: 4, Op.DIV: 2, Op.GATHER: 4}
RECOMPUTE_LIMIT = 32  # cost up to which a shared elementwise value is computed again
LONG_REDUCTION = 1 << 14  # elements from which a full reduction takes two stages
PARTS = 64  # partial results of the first stage
PART_TERMS = 64  # least terms of each part of a split product
MOST_PARTS = 512  # work-groups that a split product is spread over


@dataclass(frozen=True)
class Store:
    """One value that a kernel leaves in memory: `place` is movements over a BUFFER."""

    place: Node
    value: Node

    @property
    def target(self) -> Buffer:
        return storage(self.place)


@dataclass(frozen=True)
class Kernel:
    """One launch: every store's value, for each element of `shape`."""

    name: str
    shape: Shape
    stores: tuple[Store, ...]
    core: Node | None  # the reduction or product inside, if there is one
    sums: Store | None = None  # column sums of a product's right factor, a second output

    def all_stores(self) -> tuple[Store, ...]:
        return self.stores if self.sums is None else (*self.stores, self.sums)

    def reads(self) -> list[Buffer]:
        nodes = toposort(s.value for s in self.all_stores())
        return list(dict.fromkeys(n.arg for n in nodes if n.op is Op.BUFFER))

    def writes(self) -> list[Buffer]:
        return list(dict.fromkeys(s.target for s in self.all_stores()))


@dataclass(frozen=True)
class Procedure:
    """Kernels in the order in which they run."""

    kernels: tuple[Kernel, ...]

    def intermediates(self) -> list[Buffer]:
        """Buffers that exist only while the Procedure runs, in order of first writing."""
        written = dict.fromkeys(b for k in self.kernels for b in k.writes())
        return [b for b in written if b.device is None]


@dataclass
class _Draft:
    """A kernel while kernels are still being merged and ordered."""

    order: int
    shape: Shape
    stores: list[Store]
    core: Node | None
    needs: set[Buffer]  # places read
    old: set[Buffer]  # state read as it was before the step
    after: set[int] = field(default_factory=set)  # drafts that must run before
    sums: Store | None = None


def storage(place: Node) -> Buffer:
    """The Buffer under a chain of movements."""
    while place.op in MOVEMENT:
        place = place.src[0]
    found: Buffer = place.arg
    return found


def access(place: Node) -> Access:
    """Where each element of a chain of movements lies in its Buffer."""
    if place.op in MOVEMENT:
        return apply_movement(access(place.src[0]), place.op, place.arg)
    return Access.of(place.shape)


def is_plain(place: Node) -> bool:
    """Whether strides and an offset say where the elements are: one view without a mask."""
    views = access(place).views
    return len(views) == 1 and views[0].mask is None


def schedule(updates: Sequence[Update], split_products: bool = False) -> Procedure:
    """Kernels that give each Buffer its new value, all computed from the old ones.

    `split_products` also spreads a product with few results and many terms over work-groups,
    as a device with many compute units needs.
    """
    roots = _prepare([value for _, value in updates], split_products)
    targets = [(state, root) for (state, _), root in zip(updates, roots, strict=True)]
    graph = _Graph(roots)
    places, in_place, copied = _choose_places(graph, targets)
    drafts = graph.drafts(places)
    _order_after_readers(drafts, in_place)
    drafts = _attach_sums(_merge(drafts))
    drafts += _copies_at_the_end(drafts, places, copied)
    return Procedure(tuple(_freeze(d, i) for i, d in enumerate(_ordered(drafts))))


# --- rewriting before scheduling ---


def _prepare(roots: Sequence[Node], split_products: bool) -> list[Node]:
    """Functions give way to their answers; long reductions and products get two stages."""
    done: dict[Node, Node] = {}
    for node in toposort(roots):
        if node.op is Op.FUNCTION:
            done[node] = done[node.src[0]]
            continue
        new = rebuild(node, tuple(done[s] for s in node.src))
        if new.op in REDUCE:
            new = _two_stages(new)
        if split_products and new.op is Op.DOT:
            new = _split_product(new)
        elif split_products and new.op is Op.SUM and new.arg == (0,):
            new = _split_sum(new)
        done[node] = new
    return [done[r] for r in roots]


def _two_stages(node: Node) -> Node:
    source = node.src[0]
    if node.size > 1 or source.size < LONG_REDUCTION:
        return node
    flat = move(Op.RESHAPE, source, (source.size,))
    rest = -source.size % PARTS
    if rest and node.op is not Op.SUM:
        return node  # zeros would not be neutral
    if rest:
        flat = move(Op.PAD, flat, ((0, rest),))
    parts = reduce(node.op, move(Op.RESHAPE, flat, (PARTS, -1)), (1,))
    return move(Op.RESHAPE, reduce(node.op, parts, (0,)), node.shape)


def _split_product(node: Node) -> Node:
    """A sum of products over parts of the inner axis, if that axis is by far the longest."""
    left, right = node.src
    rows, inner, columns = *left.shape[-2:], right.shape[-1]
    parts = _parts(inner)
    if len(node.shape) != 2 or parts == 1 or rows * columns > inner * PART_TERMS:
        return node
    left = move(Op.PERMUTE, move(Op.RESHAPE, left, (rows, parts, inner // parts)), (1, 0, 2))
    right = move(Op.RESHAPE, right, (parts, inner // parts, columns))
    return reduce(Op.SUM, dot(left, right), (0,))


def _split_sum(node: Node) -> Node:
    """Column sums [inner, columns] -> [columns] over the same parts as products."""
    source = node.src[0]
    parts = _parts(source.shape[0])
    if len(source.shape) != 2 or parts == 1:
        return node
    inner = move(Op.RESHAPE, source, (parts, source.shape[0] // parts, source.shape[1]))
    return reduce(Op.SUM, reduce(Op.SUM, inner, (1,)), (0,))


def _parts(terms: int) -> int:
    """Into how many equal parts so many terms are split; 1 if that does not pay."""
    most = min(MOST_PARTS, terms // PART_TERMS)
    return next((p for p in range(most, 3, -1) if terms % p == 0), 1)


# --- what stands in memory, and where ---


class _Graph:
    """The live Nodes, who uses them, and which of them are materialised."""

    def __init__(self, roots: Sequence[Node]) -> None:
        self.nodes = toposort(roots)
        self.roots = set(roots)
        self.users: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for node in self.nodes:
            for source in dict.fromkeys(node.src):
                self.users[source].append(node)
        self.kept: set[Node] = set()
        self._costs: dict[Node, int] = {}
        for node in self.nodes:
            self._keep_for(node)
        self.kept |= {r for r in roots if r.op is not Op.BUFFER}

    def _keep_for(self, node: Node) -> None:
        if node.op in CORES:
            self.kept.add(self._tip(node))
        if node.op is Op.DOT:
            for source in node.src:
                self._keep(_base(source) if is_plain_chain(source) else source)
        elif node.op is Op.CONCAT:
            for part in (node, *node.src):
                self._keep(part)
        elif node.op is Op.CONTIGUOUS or self._worth_keeping(node):
            self._keep(node)

    def _keep(self, node: Node) -> None:
        if node.op is not Op.BUFFER:
            self.kept.add(node)

    def _worth_keeping(self, node: Node) -> bool:
        if node.op not in ELEMENTWISE and node.op is not Op.GATHER:
            return False
        users, cost = self.users[node], self._cost_of(node)
        if any(_repeats_outer(u) for u in users) and cost >= COSTS[Op.HASH]:
            return True
        return len(users) > 1 and cost > RECOMPUTE_LIMIT and self._tip(node) is node

    def _cost_of(self, node: Node) -> int:
        """Operations from materialised values to this one; shared ones count each time."""
        if node in self.kept:
            return 0
        if node not in self._costs:
            own = COSTS.get(node.op, 1 if node.op in ELEMENTWISE else 0)
            inner = 0 if node.op in CORES else sum(self._cost_of(s) for s in node.src)
            self._costs[node] = min(own + inner, 10 * RECOMPUTE_LIMIT)
        return self._costs[node]

    def _tip(self, start: Node) -> Node:
        """The last elementwise Node that alone receives what becomes of `start`."""
        tip = start
        while (found := self._meeting_point(tip)) is not None:
            tip = found
        return tip

    def _meeting_point(self, start: Node) -> Node | None:
        """The nearest elementwise Node through which every use of `start` goes."""
        if start in self.roots:
            return None
        inside = {start}
        pending = [(u.number, u) for u in self.users[start]]
        heapq.heapify(pending)
        while pending:
            _, node = heapq.heappop(pending)
            if node in inside:
                continue
            if node.op not in ELEMENTWISE or node.shape != start.shape or len(inside) > 64:
                return None
            inside.add(node)
            if all(n is node for _, n in pending):
                return node
            if node in self.roots:
                return None
            for user in self.users[node]:
                heapq.heappush(pending, (user.number, user))
        return None

    # --- places and kernels ---

    def places(self, given: dict[Node, Node]) -> dict[Node, Node]:
        """A place for every materialised Node; some are given.

        Consumers choose first: a part of a concatenation is placed inside it, and what is
        only reshaped is placed where the reshaped value goes.
        """
        places = dict(given)
        self.copies: list[Store] = []
        for node in sorted(self.kept, key=lambda n: -n.number):
            if node not in places:
                name = f"t{len(places)}"
                places[node] = buffer(Buffer(node.shape, node.dtype, name=name))
            if node.op is Op.RESHAPE and self._unplaced(node.src[0], places):
                back = move(Op.RESHAPE, places[node], node.src[0].shape)
                if is_plain(back):
                    places[node.src[0]] = back
            elif node.op is Op.CONCAT:
                self._place_parts(node, places)
        return places

    def _unplaced(self, node: Node, places: dict[Node, Node]) -> bool:
        return node in self.kept and node not in places

    def _place_parts(self, node: Node, places: dict[Node, Node]) -> None:
        begin = 0
        for part in node.src:
            ranges = [(0, n) for n in node.shape]
            ranges[node.arg] = (begin, begin + part.shape[node.arg])
            begin = ranges[node.arg][1]
            piece = move(Op.SHRINK, places[node], tuple(ranges))
            if self._unplaced(part, places):
                places[part] = piece
            else:
                self.copies.append(Store(piece, part))

    def drafts(self, places: dict[Node, Node]) -> list[_Draft]:
        """A draft for every place that some kernel must fill, after all that it reads."""
        drafts: list[_Draft] = []
        for node in sorted(self.kept, key=lambda n: n.number):
            if not self._filled_by_sources(node, places):
                top = node.src[0] if node.op is Op.CONTIGUOUS else node
                drafts.append(_draft(len(drafts), Store(places[node], top), node, places))
        drafts += [_draft(len(drafts) + i, c, None, places) for i, c in enumerate(self.copies)]
        writers: dict[Buffer, set[int]] = {}
        for draft in drafts:
            writers.setdefault(draft.stores[0].target, set()).add(draft.order)
        for draft in drafts:
            sources = (writers.get(b, set()) for b in draft.needs)
            draft.after = set().union(*sources) - {draft.order}
        return drafts

    def _filled_by_sources(self, node: Node, places: dict[Node, Node]) -> bool:
        """Whether the kernels of its sources already write every element of this place."""
        if node.op is not Op.RESHAPE:
            return node.op is Op.CONCAT
        source = places.get(node.src[0])
        return source is not None and storage(source) is storage(places[node])


def _draft(order: int, job: Store, own: Node | None, places: dict[Node, Node]) -> _Draft:
    """The kernel that fills a place, its expression cut where values stand in memory."""
    needs: set[Buffer] = set()
    old: set[Buffer] = set()
    done: dict[Node, Node] = {}

    def visit(node: Node) -> Node:
        if node not in done:
            if node in places and node is not own:
                done[node] = places[node]
                needs.add(storage(places[node]))
            else:
                if node.op is Op.BUFFER:
                    old.add(node.arg)
                done[node] = rebuild(node, tuple(visit(s) for s in node.src))
        return done[node]

    value = visit(job.value)
    core = next((n for n in toposort([value]) if n.op in CORES), None)
    return _Draft(order, value.shape, [Store(job.place, value)], core, needs, old)


def _base(node: Node) -> Node:
    while node.op in MOVEMENT:
        node = node.src[0]
    return node


def is_plain_chain(node: Node) -> bool:
    """Whether movements alone lead to a value, and strides can follow them."""
    stand_in = buffer(Buffer(_base(node).shape, node.dtype))

    def over(n: Node) -> Node:
        return move(n.op, over(n.src[0]), n.arg) if n.op in MOVEMENT else stand_in

    return is_plain(over(node))


def _repeats_outer(node: Node) -> bool:
    """Whether an EXPAND repeats along an axis outside of one that varies."""
    if node.op is not Op.EXPAND:
        return False
    source = node.src[0].shape
    repeated = [i for i, (a, b) in enumerate(zip(source, node.shape, strict=True)) if a != b]
    varying = [i for i, n in enumerate(source) if n > 1]
    return bool(repeated and varying) and repeated[0] < varying[-1]


# --- state that is replaced in place ---


def read_at_element_only(values: Iterable[Node], target: Buffer, leaf: Node | None = None) -> bool:
    """Whether a Buffer is read only at the element being computed (`leaf`: as this view of it)."""
    seen: set[Node] = set()
    direct = list(values)
    indirect: list[Node] = []
    while direct:
        node = direct.pop()
        if node is leaf or node in seen:
            continue
        seen.add(node)
        if node.op in ELEMENTWISE:
            direct.extend(node.src)
        elif node.op is not Op.BUFFER or (leaf is not None and node.arg is target):
            indirect.append(node)
    return all(n.op is not Op.BUFFER or n.arg is not target for n in toposort(indirect))


def _choose_places(
    graph: _Graph, updates: Sequence[Update]
) -> tuple[dict[Node, Node], set[Buffer], list[Update]]:
    """All places; the states that are overwritten directly; updates to copy at the end.

    A state may be overwritten by the kernel of its new value if every other kernel that
    reads the old value can run before, and that kernel reads it element by element.
    """
    trial = graph.places({})
    drafts = graph.drafts(trial)
    edges = {d.order: set(d.after) for d in drafts}
    direct: dict[Node, Node] = {}
    copied: list[Update] = []
    for state, value in updates:
        writers = [
            d for d in drafts if value in trial and d.stores[0].target is storage(trial[value])
        ]
        fits = len(writers) == 1 and value not in direct and trial[value].op is Op.BUFFER
        if fits and _can_overwrite(state, value, writers[0], drafts, edges):
            direct[value] = buffer(state)
        else:
            copied.append((state, value))
    return graph.places(direct), {storage(p) for p in direct.values()}, copied


def _can_overwrite(
    state: Buffer, value: Node, writer: _Draft, drafts: list[_Draft], edges: dict[int, set[int]]
) -> bool:
    if value.shape != state.shape or value.dtype is not state.dtype:
        return False
    readers = {d.order for d in drafts if state in d.old and d is not writer}
    if readers & _later(edges, writer.order):
        return False
    if not read_at_element_only([s.value for s in writer.stores], state):
        return False
    edges[writer.order] |= readers
    return True


def _later(edges: dict[int, set[int]], start: int) -> set[int]:
    """Every draft that must run after `start`."""
    found = {start}
    grew = True
    while grew:
        more = {order for order, before in edges.items() if order not in found and before & found}
        found |= more
        grew = bool(more)
    return found - {start}


def _order_after_readers(drafts: list[_Draft], in_place: set[Buffer]) -> None:
    """Whoever overwrites a state runs after all who read what it was."""
    for writer in drafts:
        for state in in_place & {s.target for s in writer.stores}:
            writer.after |= {d.order for d in drafts if state in d.old and d is not writer}


def _copies_at_the_end(
    drafts: list[_Draft], places: dict[Node, Node], copied: Sequence[Update]
) -> list[_Draft]:
    """Updates that could not be made in place: after everything else, from where they stand.

    A new value may itself be the old value of another state, so all are first set aside.
    """
    found: list[_Draft] = []
    order = max((d.order for d in drafts), default=-1) + 1
    before = {d.order for d in drafts}
    moves = [(buffer(state), places.get(value, value)) for state, value in copied]
    states = {state for state, _ in copied}
    for i, (target, source) in enumerate(moves):
        if storage(source) in states:
            aside = buffer(Buffer(source.shape, source.dtype, name=f"aside{i}"))
            found.append(
                _Draft(order, source.shape, [Store(aside, source)], None, set(), set(), set(before))
            )
            moves[i] = (target, aside)
            order += 1
    before |= {d.order for d in found}
    for target, source in moves:
        found.append(
            _Draft(order, source.shape, [Store(target, source)], None, set(), set(), set(before))
        )
        order += 1
    return found


# --- several outputs of one kernel ---


def _merge(drafts: list[_Draft]) -> list[_Draft]:
    """Kernels of one shape become one with several stores, where nothing must run between."""
    alive = {d.order: d for d in drafts}
    merged = True
    while merged:
        merged = False
        for second in sorted(alive.values(), key=lambda d: d.order):
            first = next(
                (f for f in _partners(second, alive) if _mergeable(f, second, alive)), None
            )
            if first is not None:
                _absorb(first, second, alive)
                merged = True
    return list(alive.values())


def _partners(second: _Draft, alive: dict[int, _Draft]) -> list[_Draft]:
    same = [d for d in alive.values() if d.shape == second.shape and d.order < second.order]
    return sorted(same, key=lambda d: -d.order)


def _mergeable(first: _Draft, second: _Draft, alive: dict[int, _Draft]) -> bool:
    if first.core is not None and second.core is not None:
        return False
    related = first.order in second.after or second.order in first.after
    if not related and (first.core or second.core) and len(first.shape) > 0:
        return False
    edges = {order: d.after for order, d in alive.items()}
    through = _later(
        {o: a - {first.order} if o == second.order else a for o, a in edges.items()}, first.order
    )
    back = _later(
        {o: a - {second.order} if o == first.order else a for o, a in edges.items()}, second.order
    )
    if second.order in through or first.order in back:
        return False
    return _harmless(first, second) and _harmless(second, first)


def _harmless(writer: _Draft, reader: _Draft) -> bool:
    """Whether the reader meets what the writer stores only at the element being computed."""
    values = [s.value for s in reader.stores]
    return all(read_at_element_only(values, s.target, s.place) for s in writer.stores)


def _absorb(first: _Draft, second: _Draft, alive: dict[int, _Draft]) -> None:
    """The second's stores join the first's; it takes the first's values from registers."""
    known = {s.place: s.value for s in first.stores if s.target in second.needs}
    values = substitute([s.value for s in second.stores], known)
    pairs = zip(second.stores, values, strict=True)
    first.stores += [Store(s.place, v) for s, v in pairs]
    first.core = first.core or second.core
    first.needs |= second.needs
    first.old |= second.old
    first.after = (first.after | second.after) - {first.order, second.order}
    _forget(second, first, alive)


def _forget(second: _Draft, first: _Draft, alive: dict[int, _Draft]) -> None:
    """Whoever waited for the second waits for the first instead."""
    del alive[second.order]
    for other in alive.values():
        if second.order in other.after:
            other.after = (other.after - {second.order}) | {first.order}


def _attach_sums(drafts: list[_Draft]) -> list[_Draft]:
    """Column sums of a product's right factor become a second output of that product.

    So a bias gradient comes with the weight gradient, whose kernel reads the same rows.
    """
    alive = {d.order: d for d in drafts}
    for second in drafts:
        for first in [p for p in alive.values() if _sums_right_factor(p, second)]:
            edges = {order: d.after for order, d in alive.items()}
            if second.order in _later(edges, first.order) | {first.order}:
                continue
            if first.order in _later(edges, second.order):
                continue
            (first.sums,) = second.stores
            first.needs |= second.needs
            first.after |= second.after
            _forget(second, first, alive)
            break
    return list(alive.values())


def _sums_right_factor(product: _Draft, second: _Draft) -> bool:
    if product.sums is not None or product.core is None or product.core.op is not Op.DOT:
        return False
    core = second.core
    if core is None or core.op is not Op.SUM or [s.value for s in second.stores] != [core]:
        return False
    return core.src[0] is product.core.src[1] and core.arg == (len(product.shape) - 2,)


# --- order ---


def _ordered(drafts: list[_Draft]) -> list[_Draft]:
    """Each draft after those it waits for, otherwise in the order of the graph."""
    by_order = {d.order: d for d in drafts}
    waiting = {d.order: set(d.after) for d in drafts}
    ready = [o for o, before in waiting.items() if not before]
    heapq.heapify(ready)
    found = []
    while ready:
        order = heapq.heappop(ready)
        found.append(by_order[order])
        for other, before in waiting.items():
            if order in before:
                before.remove(order)
                if not before:
                    heapq.heappush(ready, other)
    if len(found) != len(drafts):
        raise AssertionError("kernels wait for each other in a circle")
    return found


def _freeze(draft: _Draft, index: int) -> Kernel:
    kind = {None: "map", Op.DOT: "product"}.get(draft.core.op if draft.core else None, "reduce")
    return Kernel(f"k{index}_{kind}", draft.shape, tuple(draft.stores), draft.core, draft.sums)
