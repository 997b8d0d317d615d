"""Materialisation: which values are stored in memory, where, and by which kernels.

In: a Node graph without FUNCTIONs. Out: a place in memory for each materialised Node, and a draft
of the kernel that computes it; all other Nodes are computed inside the kernels that use them.

A reduction or product (a core) starts a kernel, which also computes the elementwise operations up
to the last one through which all uses of the core go. A shared elementwise value is recomputed by
each user up to a cost of MAX_RECOMPUTE_COST, and stored from there on. A kernel must have one core
at most, products must reach their factors by strides, and no expression may be deeper than
MAX_EXPRESSION_DEPTH.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence, Set

from imgmlp.engine.ir.control_flow import results
from imgmlp.engine.ir.graph import Buffer, Node, base, buffer, move, rebuild, toposort
from imgmlp.engine.ir.kernel import CORE_OPS, Guard, Store, is_plain, storage
from imgmlp.engine.ir.op import CONTROL, ELEMENTWISE, LOAD, MOVEMENT, Op
from imgmlp.engine.passes.drafts import MAX_EXPRESSION_DEPTH, KernelDraft, LoopDraft

# Cost of elementwise operations and gathers, relative to an addition; others cost 1.
OPERATION_COSTS = {
    Op.HASH: 6, Op.EXP2: 8, Op.LOG2: 8, Op.SIN: 12, Op.COS: 12, Op.SQRT: 4, Op.FMOD: 12, Op.DIV: 2,
    Op.GATHER: 4,
}  # fmt: skip
# Operations whose value is copied into its place instead of computed by an expression.
NOT_EXPRESSIONS = {Op.CONCAT, Op.CONTIGUOUS, Op.RESULT, Op.COND}
MAX_RECOMPUTE_COST = 32  # of an elementwise value with several users
MAX_FUSED_NODES = 64  # elementwise Nodes visited in search of a common user

Choice = tuple[Node, bool]  # a condition, and the value of it for which something is needed


def whole_buffer(node: Node, name: str) -> Node:
    """A place for a value: a whole new Buffer."""
    return buffer(Buffer(node.shape, node.dtype, name=name))


class Graph:
    """A graph's Nodes, their users, and which of them are materialised."""

    def __init__(self, roots: Sequence[Node], first_name: int = 0) -> None:
        self.first_name = first_name  # number in the name of the first place, as listings show it
        self.loops = [n for n in toposort(roots) if n.op is Op.LOOP]
        self.nodes = toposort([*roots, *(r for loop in self.loops for r in results(loop))])
        self._numbers = {node: number for number, node in enumerate(self.nodes)}
        self.roots = set(roots)
        self.users: dict[Node, list[Node]] = {n: [] for n in self.nodes}
        for node in self.nodes:
            for source in dict.fromkeys(node.src):
                self.users[source].append(node)
        self.materialized: set[Node] = set()
        self._costs: dict[Node, int] = {}
        for node in self.nodes:
            self._materialize_for(node)
        self.materialized |= {r for r in roots if r.op is not Op.BUFFER}
        factors = {s for n in self.nodes if n.op is Op.DOT for s in n.src}
        for factor in self._sorted(factors):
            if not is_strided_view(factor, self.materialized):
                self.materialized.add(factor)
        for node in self._sorted(self.materialized):
            self.materialized.update(self._cores_below(node)[:-1])
        self.materialized -= {n for n in self.nodes if self._only_moves(n)}
        self._limit_depth()
        self.guards = self._find_guards()

    def _sorted(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=self._numbers.__getitem__)

    def _limit_depth(self) -> None:
        """Materialise values MAX_EXPRESSION_DEPTH operations from memory, to bound expressions."""
        depths: dict[Node, int] = {}
        for node in self.nodes:
            depths[node] = 0
            if node not in self.materialized and node.op not in LOAD | CONTROL:
                depths[node] = 1 + max((depths[s] for s in node.src), default=0)
            if depths[node] == MAX_EXPRESSION_DEPTH:
                self.materialized.add(node)
                depths[node] = 0

    def _only_moves(self, node: Node) -> bool:
        """Whether a value is computed straight into the place of a loop's or COND's result."""
        if node.op in NOT_EXPRESSIONS or node in self.roots or len(self.users[node]) != 1:
            return False
        (user,) = self.users[node]
        return user.op in (Op.LOOP, Op.COND) and node not in _read_as_is(user)

    def _find_guards(self) -> dict[Node, frozenset[Choice]]:
        """For each value the conditions that all of its uses depend on: else it is not needed."""
        guards: dict[Node, frozenset[Choice]] = {root: frozenset() for root in self.roots}
        for node in reversed(self.nodes):
            if node not in guards:  # carried by a loop and never used
                continue
            for i, source in enumerate(node.src):
                choice = {(node.src[0], i == 1)} if node.op is Op.COND and i else set()
                needed = guards[node] | choice
                guards[source] = guards[source] & needed if source in guards else needed
        return guards

    def _cores_below(self, top: Node) -> list[Node]:
        """Cores in the expression that a kernel for `top` would compute; only one may stay."""
        seen: set[Node] = set()
        stack = [top]
        while stack:
            node = stack.pop()
            if node not in seen and (node is top or node not in self.materialized):
                seen.add(node)
                stack.extend(node.src if node.op not in CORE_OPS else ())
        return self._sorted(n for n in seen if n.op in CORE_OPS)

    def _materialize_for(self, node: Node) -> None:
        if node.op in CORE_OPS:
            self.materialized.add(self._last_fusible_user(node))
        if node.op is Op.DOT:
            for source in node.src:
                self._materialize(_lowest_strided_base(source))
        elif node.op is Op.CONCAT:
            self._materialize(node)
            for part in node.src:
                if base(part).op is not Op.BUFFER:  # a Buffer is in memory already, and is copied
                    self._materialize(part)
        elif node.op is Op.REDUCE_MAX and any(u.op is Op.EQ for u in self.users[node.src[0]]):
            # The maximum is compared with its terms. If two kernels computed the terms, with
            # different rounding, no term might equal the maximum.
            if (compared := base(node.src[0])).op in ELEMENTWISE:
                self._materialize(compared)
        elif node.op in (Op.LOOP, Op.COND):
            for source in node.src:
                if source.op not in LOAD or source in _read_as_is(node):
                    self._materialize(base(source) if is_strided_view(source) else source)
        if node.op in (Op.CONTIGUOUS, Op.RESULT, Op.COND) or self._is_worth_storing(node):
            self._materialize(node)

    def _materialize(self, node: Node) -> None:
        if node.op not in (Op.BUFFER, Op.PART):
            self.materialized.add(node)

    def _is_worth_storing(self, node: Node) -> bool:
        if node.op not in ELEMENTWISE and node.op is not Op.GATHER:
            return False
        users, cost = self.users[node], self._cost_of(node)
        if (
            any(_repeats_outside_varying_axis(u) for u in users)
            and cost >= OPERATION_COSTS[Op.HASH]
        ):
            return True
        costly = cost > MAX_RECOMPUTE_COST and self._count_reads(node) > 1
        return costly and self._elementwise_post_dominator(node) is None

    def _count_reads(self, node: Node) -> int:
        """How many Nodes read a value, directly or through movements."""
        count, views = 0, [node]
        while views:
            for user in self.users[views.pop()]:
                if user.op in MOVEMENT:
                    views.append(user)
                else:
                    count += 1
        return count

    def _cost_of(self, node: Node) -> int:
        """Cost of computing a value from materialised ones; shared operations count each time."""

        def cached(n: Node) -> int | None:
            return 0 if n in self.materialized else self._costs.get(n)

        def uncached_sources(n: Node) -> Sequence[Node]:
            return n.src if cached(n) is None and n.op not in CORE_OPS else ()

        for n in toposort([node], uncached_sources):
            if cached(n) is None:
                own = OPERATION_COSTS.get(n.op, 1 if n.op in ELEMENTWISE else 0)
                inner = 0 if n.op in CORE_OPS else sum(cached(s) or 0 for s in n.src)
                self._costs[n] = min(own + inner, 10 * MAX_RECOMPUTE_COST)
        return cached(node) or 0

    def _last_fusible_user(self, start: Node) -> Node:
        """The furthest elementwise Node through which every use of `start` goes."""
        tip = start
        while (dominator := self._elementwise_post_dominator(tip)) is not None:
            tip = dominator
        return tip

    def _elementwise_post_dominator(self, start: Node) -> Node | None:
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
            if node.op not in ELEMENTWISE or node.shape != start.shape:
                return None
            if len(inside) > MAX_FUSED_NODES:
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

    def places(
        self, fixed: dict[Node, Node], make: Callable[[Node, str], Node] = whole_buffer
    ) -> dict[Node, Node]:
        """A place for every materialised Node: some are fixed, `make` creates the others.

        Users get their places before sources: a part of a concatenation is placed inside it, and a
        value that is only reshaped gets the place of the reshaped value.
        """
        places = dict(fixed)
        self.copies: list[tuple[Store, frozenset[Choice]]] = []
        for node in reversed(self._sorted(self.materialized)):
            if node not in places:
                places[node] = make(node, f"t{self.first_name + len(places)}")
            if node.op is Op.RESHAPE and self._can_be_placed(node.src[0], places):
                back = move(Op.RESHAPE, places[node], node.src[0].shape)
                if is_plain(back) and self._strides_reach_products(node.src[0], back):
                    places[node.src[0]] = back
            elif node.op is Op.CONCAT:
                self._place_parts(node, places)
        for loop in self.loops:
            for start, carried in zip(loop.src, results(loop), strict=False):
                self._copy(start, places[carried], self.guards[loop])
        for node in self.nodes:
            if node.op is Op.COND:
                condition, *values = node.src
                for value, wanted in zip(values, (True, False), strict=True):
                    self._copy(value, places[node], self.guards[node] | {(condition, wanted)})
        return places

    def _copy(self, value: Node, place: Node, guards: frozenset[Choice]) -> None:
        """Note that a value is copied into a place, unless it is there already."""
        if value is not place:
            self.copies.append((Store(place, value), guards))

    def _can_be_placed(self, node: Node, places: dict[Node, Node]) -> bool:
        """Whether a place may still be chosen; a loop's results have Buffers of their own."""
        return node in self.materialized and node not in places and node.op is not Op.RESULT

    def _place_parts(self, node: Node, places: dict[Node, Node]) -> None:
        for part, piece in zip(node.src, _concat_pieces(node, places[node]), strict=True):
            if self._can_be_placed(part, places) and self._strides_reach_products(part, piece):
                places[part] = piece
            else:
                self._copy(part, piece, self.guards[node])

    def _strides_reach_products(self, node: Node, place: Node) -> bool:
        """Whether all products can read their factors by strides if a value is placed there."""
        pending = [(node, place)]
        while pending:
            node, place = pending.pop()
            for user in self.users[node]:
                if user.op is Op.DOT and not is_plain(place):
                    return False
                if user.op in MOVEMENT and user not in self.materialized:
                    pending.append((user, move(user.op, place, user.arg)))
        return True

    def drafts(self, places: dict[Node, Node]) -> list[KernelDraft]:
        """A draft for every place that a kernel must fill, with its dependencies."""
        drafts: list[KernelDraft] = []
        for node in self._sorted(self.materialized):
            if not self._is_written_by_sources(node, places):
                top = node.src[0] if node.op is Op.CONTIGUOUS else node
                job = Store(places[node], top)
                drafts.append(_draft(len(drafts), job, node, places, self.guards[node]))
        for job, guards in self.copies:
            drafts.append(_draft(len(drafts), job, None, places, guards))
        for loop in self.loops:
            drafts.append(_loop_draft(len(drafts), loop, places, self.guards[loop]))
        writers = self._writers(drafts, places)
        for draft in drafts:
            draft.predecessors |= set().union(*(writers[p] for p in draft.places_read))
        return drafts

    def _writers(self, drafts: list[KernelDraft], places: dict[Node, Node]) -> dict[Node, set[int]]:
        """Which drafts write each place; a concatenation is written by those of its parts.

        A carried value is written twice: by the draft of its initial value, on which the loop
        depends, and by the loop, on which readers depend.
        """
        writers: dict[Node, set[int]] = {}
        for draft in drafts:
            for store in draft.stores:
                if draft.loop is not None:
                    draft.predecessors |= writers.get(store.place, set())
                    writers[store.place] = set()
                writers.setdefault(store.place, set()).add(draft.order)
        for node in self._sorted(self.materialized):
            place = places[node]
            if node.op is Op.CONCAT:
                parts = [places[part] for part in node.src if part in places]
                pieces = [*parts, *_concat_pieces(node, place)]
                writers[place] = set().union(*(writers.get(p, set()) for p in pieces))
            elif node.op is Op.RESHAPE and self._is_written_by_sources(node, places):
                writers[place] = writers[places[node.src[0]]]
        return writers

    def _is_written_by_sources(self, node: Node, places: dict[Node, Node]) -> bool:
        """Whether the kernels of a Node's sources write every element of the Node's place."""
        if node.op is not Op.RESHAPE:
            return node.op in (Op.CONCAT, Op.RESULT, Op.COND)
        source = places.get(node.src[0])
        return source is not None and storage(source) is storage(places[node])


def _draft(
    order: int,
    job: Store,
    own: Node | None,
    places: dict[Node, Node],
    choices: frozenset[Choice],
) -> KernelDraft:
    """The kernel that fills a place; its expression reads materialised values from memory."""
    conditions = [condition for condition, _ in choices]
    (value, *cut_conditions), needs, old = _cut_at_materialized(
        [job.value, *conditions], own, places
    )
    core = next((n for n in toposort([value]) if n.op in CORE_OPS), None)
    guards = _guards(cut_conditions, choices)
    return KernelDraft(
        order, value.shape, [Store(job.place, value)], core, needs, old, guards=guards
    )


def _loop_draft(
    order: int, loop: Node, places: dict[Node, Node], choices: frozenset[Choice]
) -> KernelDraft:
    """All iterations of a LOOP; other drafts store the initial values where it carries them."""
    stores = [Store(places[r], r) for r in results(loop)]
    conditions = [condition for condition, _ in choices]
    captured = _read_as_is(loop)
    expressions, needs, old = _cut_at_materialized([*captured, *conditions], None, places)
    iteration = LoopDraft(loop.arg, (*(s.place for s in stores), *expressions[: len(captured)]))
    guards = _guards(expressions[len(captured) :], choices)
    return KernelDraft(order, (), stores, None, needs, old, loop=iteration, guards=guards)


def _guards(places: Sequence[Node], choices: frozenset[Choice]) -> frozenset[Guard]:
    return frozenset(Guard(p, wanted) for p, (_, wanted) in zip(places, choices, strict=True))


def _read_as_is(node: Node) -> Sequence[Node]:
    """The sources of a LOOP or COND that must be in memory: captured values, or the condition."""
    return node.src[:1] if node.op is Op.COND else node.src[len(node.arg.values) :]


def _cut_at_materialized(
    nodes: Sequence[Node], own: Node | None, places: dict[Node, Node]
) -> tuple[list[Node], set[Node], set[Buffer]]:
    """Expressions that read materialised values from memory, the places that they read, and the
    states that they read."""
    done: dict[Node, Node] = {}
    expressions = [_cut(node, own, places, done) for node in nodes]
    standing = {node for node in done if node in places and node is not own}
    needs = {places[node] for node in standing}
    return expressions, needs, {n.arg for n in done if n.op is Op.BUFFER and n not in standing}


def _cut(node: Node, own: Node | None, places: dict[Node, Node], done: dict[Node, Node]) -> Node:
    """The expression of a Node, which reads all materialised values but `own` from memory.

    `done` maps every Node of the expression to its replacement.
    """

    def is_available(n: Node) -> bool:
        return n in done or (n in places and n is not own)

    for n in toposort([node], lambda n: () if is_available(n) else n.src):
        if n not in done:
            done[n] = places[n] if is_available(n) else rebuild(n, tuple(done[s] for s in n.src))
    return done[node]


def _concat_pieces(node: Node, place: Node) -> list[Node]:
    """Where each part of a concatenation lies in its place."""
    ends = list(itertools.accumulate(part.shape[node.arg] for part in node.src))
    whole = [(0, n) for n in node.shape]
    return [
        move(Op.SHRINK, place, (*whole[: node.arg], (begin, end), *whole[node.arg + 1 :]))
        for begin, end in itertools.pairwise([0, *ends])
    ]


def is_strided_view(node: Node, materialized: Set[Node] = frozenset()) -> bool:
    """Whether strides can follow the movements from a value's base, or from a materialised one."""
    moves = []
    while node.op in MOVEMENT and node not in materialized:
        moves.append(node)
        node = node.src[0]
    stand_in = buffer(Buffer(node.shape, node.dtype))
    for moved in reversed(moves):
        stand_in = move(moved.op, stand_in, moved.arg)
    return is_plain(stand_in)


def _lowest_strided_base(node: Node) -> Node:
    """The lowest value of no more elements of which this one is a strided view.

    A factor and its transpose, both of a view that strides cannot follow, share one copy this way.
    """
    lowest = below = node
    while below.op in MOVEMENT:
        below = below.src[0]
        if below.size <= node.size and is_strided_view(node, {below}):
            lowest = below
    return base(node) if is_strided_view(node) else lowest


def _repeats_outside_varying_axis(node: Node) -> bool:
    """Whether an EXPAND repeats a value along an axis outside of one along which it varies."""
    if node.op is not Op.EXPAND:
        return False
    source = node.src[0].shape
    repeated = [i for i, (a, b) in enumerate(zip(source, node.shape, strict=True)) if a != b]
    varying = [i for i, n in enumerate(source) if n > 1]
    return bool(repeated and varying) and repeated[0] < varying[-1]
