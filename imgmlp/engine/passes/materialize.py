"""What stands in memory, and where.

Decides which Nodes are materialised, gives each a place, and drafts the kernel that fills
it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Sequence, Set

from imgmlp.engine.ir.control_flow import results
from imgmlp.engine.ir.graph import Buffer, Node, base, buffer, move, rebuild, toposort
from imgmlp.engine.ir.kernel import (
    CORES,
    Guard,
    Iteration,
    KernelDraft,
    Store,
    is_plain,
    storage,
)
from imgmlp.engine.ir.op import CONTROL, ELEMENTWISE, LOAD, MOVEMENT, Op
from imgmlp.engine.passes.drafts import DEEPEST

COSTS = {
    Op.HASH: 6, Op.EXP2: 8, Op.LOG2: 8, Op.SIN: 12, Op.COS: 12, Op.SQRT: 4, Op.FMOD: 12, Op.DIV: 2,
    Op.GATHER: 4,
}  # fmt: skip
# values that are not computed by an expression
FILLED = {Op.CONCAT, Op.CONTIGUOUS, Op.RESULT, Op.COND}
RECOMPUTE_LIMIT = 32  # cost up to which a shared elementwise value is computed again


Choice = tuple[Node, bool]  # a condition, and which of its values makes something needed


def whole_buffer(node: Node, name: str) -> Node:
    """The place of a value: a Buffer of its own."""
    return buffer(Buffer(node.shape, node.dtype, name=name))


class Graph:
    """The live Nodes, who uses them, and which of them are materialised."""

    def __init__(self, roots: Sequence[Node], first_name: int = 0) -> None:
        self.first_name = first_name  # number of the first place, which names it in listings
        self.loops = [n for n in toposort(roots) if n.op is Op.LOOP]
        self.nodes = toposort([*roots, *(r for loop in self.loops for r in results(loop))])
        self._numbers = {node: number for number, node in enumerate(self.nodes)}
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
        factors = {s for n in self.nodes if n.op is Op.DOT for s in n.src}
        for factor in self._sorted(factors):
            if not is_plain_chain(factor, self.kept):
                self.kept.add(factor)
        for node in self._sorted(self.kept):
            self.kept.update(self._cores_below(node)[:-1])
        self.kept -= {n for n in self.nodes if self._only_moves(n)}
        self._keep_deep()
        self.guards = self._find_guards()

    def _sorted(self, nodes: Iterable[Node]) -> list[Node]:
        return sorted(nodes, key=self._numbers.__getitem__)

    def _keep_deep(self) -> None:
        """Keep what is DEEPEST operations from memory, so that no kernel's expression is deeper."""
        depths: dict[Node, int] = {}
        for node in self.nodes:
            depths[node] = 0
            if node not in self.kept and node.op not in LOAD | CONTROL:
                depths[node] = 1 + max((depths[s] for s in node.src), default=0)
            if depths[node] == DEEPEST:
                self.kept.add(node)
                depths[node] = 0

    def _only_moves(self, node: Node) -> bool:
        """Whether a value is computed straight into what a loop or a COND makes of it."""
        if node.op in FILLED or node in self.roots or len(self.users[node]) != 1:
            return False
        (user,) = self.users[node]
        return user.op in (Op.LOOP, Op.COND) and node not in _read_as_is(user)

    def _find_guards(self) -> dict[Node, frozenset[Choice]]:
        """Choices that every use of a value depends on: where one fails it is not needed."""
        found: dict[Node, frozenset[Choice]] = {root: frozenset() for root in self.roots}
        for node in reversed(self.nodes):
            if node not in found:  # what a loop carries and nobody uses
                continue
            for i, source in enumerate(node.src):
                choice = {(node.src[0], i == 1)} if node.op is Op.COND and i else set()
                needed = found[node] | choice
                found[source] = found[source] & needed if source in found else needed
        return found

    def _cores_below(self, top: Node) -> list[Node]:
        """Cores in the expression that a kernel for `top` would compute; it can have one."""
        seen: set[Node] = set()
        stack = [top]
        while stack:
            node = stack.pop()
            if node not in seen and (node is top or node not in self.kept):
                seen.add(node)
                stack.extend(node.src if node.op not in CORES else ())
        return self._sorted(n for n in seen if n.op in CORES)

    def _keep_for(self, node: Node) -> None:
        if node.op in CORES:
            self.kept.add(self._tip(node))
        if node.op is Op.DOT:
            for source in node.src:
                self._keep(_plain_base(source))
        elif node.op is Op.CONCAT:
            self._keep(node)
            for part in node.src:
                if base(part).op is not Op.BUFFER:  # which stands in memory, and is copied
                    self._keep(part)
        elif node.op is Op.REDUCE_MAX and any(u.op is Op.EQ for u in self.users[node.src[0]]):
            # Kernels may each round it otherwise: none of its values might be the largest.
            if (compared := base(node.src[0])).op in ELEMENTWISE:
                self._keep(compared)
        elif node.op in (Op.LOOP, Op.COND):
            for source in node.src:
                if source.op not in LOAD or source in _read_as_is(node):
                    self._keep(base(source) if is_plain_chain(source) else source)
        if node.op in (Op.CONTIGUOUS, Op.RESULT, Op.COND) or self._worth_keeping(node):
            self._keep(node)

    def _keep(self, node: Node) -> None:
        if node.op not in (Op.BUFFER, Op.PART):
            self.kept.add(node)

    def _worth_keeping(self, node: Node) -> bool:
        if node.op not in ELEMENTWISE and node.op is not Op.GATHER:
            return False
        users, cost = self.users[node], self._cost_of(node)
        if any(_repeats_outer(u) for u in users) and cost >= COSTS[Op.HASH]:
            return True
        costly = cost > RECOMPUTE_LIMIT and self._reads(node) > 1
        return costly and self._meeting_point(node) is None

    def _reads(self, node: Node) -> int:
        """How many times others read a value, as it is or through movements, each by itself."""
        count, views = 0, [node]
        while views:
            for user in self.users[views.pop()]:
                if user.op in MOVEMENT:
                    views.append(user)
                else:
                    count += 1
        return count

    def _cost_of(self, node: Node) -> int:
        """Operations from materialised values to this one; shared ones count each time."""

        def known(n: Node) -> int | None:
            return 0 if n in self.kept else self._costs.get(n)

        for n in toposort(
            [node], lambda n: n.src if known(n) is None and n.op not in CORES else ()
        ):
            if known(n) is None:
                own = COSTS.get(n.op, 1 if n.op in ELEMENTWISE else 0)
                inner = 0 if n.op in CORES else sum(known(s) or 0 for s in n.src)
                self._costs[n] = min(own + inner, 10 * RECOMPUTE_LIMIT)
        return known(node) or 0

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

    def places(
        self, given: dict[Node, Node], make: Callable[[Node, str], Node] = whole_buffer
    ) -> dict[Node, Node]:
        """A place for every materialised Node: some are given, `make` gives the others.

        Consumers choose first: a part of a concatenation is placed inside it, and what is
        only reshaped is placed where the reshaped value goes.
        """
        places = dict(given)
        self.copies: list[tuple[Store, frozenset[Choice]]] = []
        for node in reversed(self._sorted(self.kept)):
            if node not in places:
                places[node] = make(node, f"t{self.first_name + len(places)}")
            if node.op is Op.RESHAPE and self._unplaced(node.src[0], places):
                back = move(Op.RESHAPE, places[node], node.src[0].shape)
                if is_plain(back) and self._products_follow(node.src[0], back):
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
        """Compute a value into a place, unless it stands there already."""
        if value is not place:
            self.copies.append((Store(place, value), guards))

    def _unplaced(self, node: Node, places: dict[Node, Node]) -> bool:
        """Whether a place may still be chosen; what a loop carries has a Buffer of its own."""
        return node in self.kept and node not in places and node.op is not Op.RESULT

    def _place_parts(self, node: Node, places: dict[Node, Node]) -> None:
        for part, piece in zip(node.src, _pieces(node, places[node]), strict=True):
            if self._unplaced(part, places) and self._products_follow(part, piece):
                places[part] = piece
            else:
                self._copy(part, piece, self.guards[node])

    def _products_follow(self, node: Node, place: Node) -> bool:
        """Whether strides lead every product to its factors if a value is placed there."""
        pending = [(node, place)]
        while pending:
            node, place = pending.pop()
            for user in self.users[node]:
                if user.op is Op.DOT and not is_plain(place):
                    return False
                if user.op in MOVEMENT and user not in self.kept:
                    pending.append((user, move(user.op, place, user.arg)))
        return True

    def drafts(self, places: dict[Node, Node]) -> list[KernelDraft]:
        """A draft for every place that some kernel must fill, after all that it reads."""
        drafts: list[KernelDraft] = []
        for node in self._sorted(self.kept):
            if not self._filled_by_sources(node, places):
                top = node.src[0] if node.op is Op.CONTIGUOUS else node
                job = Store(places[node], top)
                drafts.append(_draft(len(drafts), job, node, places, self.guards[node]))
        for job, guards in self.copies:
            drafts.append(_draft(len(drafts), job, None, places, guards))
        for loop in self.loops:
            drafts.append(_loop(len(drafts), loop, places, self.guards[loop]))
        fillers = self._fillers(drafts, places)
        for draft in drafts:
            draft.after |= set().union(*(fillers[p] for p in draft.needs))
        return drafts

    def _fillers(self, drafts: list[KernelDraft], places: dict[Node, Node]) -> dict[Node, set[int]]:
        """Which drafts fill each place. Parts of a concatenation share its Buffer only.

        What a loop carries is filled twice: the loop waits for the first value, readers for it.
        """
        found: dict[Node, set[int]] = {}
        for draft in drafts:
            for store in draft.stores:
                if draft.loop is not None:
                    draft.after |= found.get(store.place, set())
                    found[store.place] = set()
                found.setdefault(store.place, set()).add(draft.order)
        for node in self._sorted(self.kept):
            place = places[node]
            if node.op is Op.CONCAT:
                parts = [places[part] for part in node.src if part in places]
                pieces = [*parts, *_pieces(node, place)]
                found[place] = set().union(*(found.get(p, set()) for p in pieces))
            elif node.op is Op.RESHAPE and self._filled_by_sources(node, places):
                found[place] = found[places[node.src[0]]]
        return found

    def _filled_by_sources(self, node: Node, places: dict[Node, Node]) -> bool:
        """Whether the kernels of its sources already write every element of this place."""
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
    """The kernel that fills a place, its expression cut where values stand in memory."""
    conditions = [condition for condition, _ in choices]
    (value, *found), needs, old = _cut_all([job.value, *conditions], own, places)
    core = next((n for n in toposort([value]) if n.op in CORES), None)
    guards = _guards(found, choices)
    return KernelDraft(
        order, value.shape, [Store(job.place, value)], core, needs, old, guards=guards
    )


def _loop(
    order: int, loop: Node, places: dict[Node, Node], choices: frozenset[Choice]
) -> KernelDraft:
    """All iterations of a LOOP, whose first values others put where it carries them."""
    stores = [Store(places[r], r) for r in results(loop)]
    conditions = [condition for condition, _ in choices]
    captured = _read_as_is(loop)
    found, needs, old = _cut_all([*captured, *conditions], None, places)
    iteration = Iteration(loop.arg, (*(s.place for s in stores), *found[: len(captured)]))
    guards = _guards(found[len(captured) :], choices)
    return KernelDraft(order, (), stores, None, needs, old, loop=iteration, guards=guards)


def _guards(places: Sequence[Node], choices: frozenset[Choice]) -> frozenset[Guard]:
    return frozenset(Guard(p, wanted) for p, (_, wanted) in zip(places, choices, strict=True))


def _read_as_is(node: Node) -> Sequence[Node]:
    """The sources of a LOOP or COND that must stand in memory: captured values, the condition."""
    return node.src[:1] if node.op is Op.COND else node.src[len(node.arg.values) :]


def _cut_all(
    nodes: Sequence[Node], own: Node | None, places: dict[Node, Node]
) -> tuple[list[Node], set[Node], set[Buffer]]:
    """Expressions that read what stands in memory, the places they read, and the states."""
    done: dict[Node, Node] = {}
    found = [_cut(node, own, places, done) for node in nodes]
    standing = {node for node in done if node in places and node is not own}
    needs = {places[node] for node in standing}
    return found, needs, {n.arg for n in done if n.op is Op.BUFFER and n not in standing}


def _cut(node: Node, own: Node | None, places: dict[Node, Node], done: dict[Node, Node]) -> Node:
    """The expression that reads what stands in memory, but for `own`; `done` has every step."""

    def stands(n: Node) -> bool:
        return n in done or (n in places and n is not own)

    for n in toposort([node], lambda n: () if stands(n) else n.src):
        if n not in done:
            done[n] = places[n] if stands(n) else rebuild(n, tuple(done[s] for s in n.src))
    return done[node]


def _pieces(node: Node, place: Node) -> list[Node]:
    """Where each part of a concatenation lies in its place."""
    ends = list(itertools.accumulate(part.shape[node.arg] for part in node.src))
    whole = [(0, n) for n in node.shape]
    return [
        move(Op.SHRINK, place, (*whole[: node.arg], (begin, end), *whole[node.arg + 1 :]))
        for begin, end in itertools.pairwise([0, *ends])
    ]


def is_plain_chain(node: Node, kept: Set[Node] = frozenset()) -> bool:
    """Whether movements alone lead to a value, a kept one if any, and strides can follow them."""
    moves = []
    while node.op in MOVEMENT and node not in kept:
        moves.append(node)
        node = node.src[0]
    stand_in = buffer(Buffer(node.shape, node.dtype))
    for moved in reversed(moves):
        stand_in = move(moved.op, stand_in, moved.arg)
    return is_plain(stand_in)


def _plain_base(node: Node) -> Node:
    """The value furthest below, of no more elements, from which strides lead to this one.

    So that a factor and its transpose, of a view that strides cannot follow, share one copy.
    """
    found = below = node
    while below.op in MOVEMENT:
        below = below.src[0]
        if below.size <= node.size and is_plain_chain(node, {below}):
            found = below
    return base(node) if is_plain_chain(node) else found


def _repeats_outer(node: Node) -> bool:
    """Whether an EXPAND repeats along an axis outside of one that varies."""
    if node.op is not Op.EXPAND:
        return False
    source = node.src[0].shape
    repeated = [i for i, (a, b) in enumerate(zip(source, node.shape, strict=True)) if a != b]
    varying = [i for i, n in enumerate(source) if n > 1]
    return bool(repeated and varying) and repeated[0] < varying[-1]
