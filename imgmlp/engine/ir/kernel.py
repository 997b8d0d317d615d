"""What a schedule is made of: Kernels with their stores, and Loops of them, in a Procedure.

A kernel computes an expression over its leaves for every element of one shape, with at
most one reduction or product inside. What it leaves in memory goes to a place: movements
over a BUFFER Node, which strides and an offset can follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from weakref import WeakKeyDictionary

from imgmlp.engine.ir.access import Access
from imgmlp.engine.ir.control_flow import Body
from imgmlp.engine.ir.graph import Buffer, Node, Shape, apply_movement, base, label, toposort
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, REDUCE, Op
from imgmlp.engine.ir.symbolic import Const, Expr, Var

Update = tuple[Buffer, Node]  # a state and its new value
CORES = REDUCE | {Op.DOT}
PLACED = MOVEMENT | {Op.PART}  # leads to a place in a Buffer


@dataclass(frozen=True)
class Store:
    """One value that a kernel leaves in memory: `place` is movements over a BUFFER."""

    place: Node
    value: Node
    adds: bool = False  # to what stands there

    @property
    def target(self) -> Buffer:
        return storage(self.place)


@dataclass(frozen=True)
class Guard:
    """A kernel does nothing unless a bool is as wanted, which stands at a place; in a Block it does
    nothing for a tile unless an expression for that is true."""

    condition: Node
    wanted: bool

    def __str__(self) -> str:
        return f"{'if' if self.wanted else 'unless'} {_expression(self.condition)}"


@dataclass(frozen=True)
class Kernel:
    """One launch: every store's value, for each element of `shape`."""

    name: str
    shape: Shape
    stores: tuple[Store, ...]
    core: Node | None  # the reduction or product inside, if there is one
    sums: Store | None = None  # column sums of a product's right factor, a second output
    guards: tuple[Guard, ...] = ()
    rows: tuple[Node, ...] = ()  # instead of a core: reductions of rows, each after those it needs
    totals: tuple[Store, ...] = ()  # what is stored once a row

    def all_stores(self) -> tuple[Store, ...]:
        return (*self.stores, *self.totals, *([] if self.sums is None else [self.sums]))

    def adding_to(self, targets: Set[Buffer]) -> Kernel:
        """The same, with stores that add to what is there where they store to one of these."""

        def store(s: Store) -> Store:
            return replace(s, adds=s.target in targets)

        stores, totals = (tuple(map(store, found)) for found in (self.stores, self.totals))
        sums = None if self.sums is None else store(self.sums)
        return replace(self, stores=stores, totals=totals, sums=sums)

    def reads(self) -> list[Buffer]:
        nodes = toposort(
            [*(guard.condition for guard in self.guards), *(s.value for s in self.all_stores())]
        )
        return list(dict.fromkeys(n.arg for n in nodes if n.op is Op.BUFFER))

    def writes(self) -> list[Buffer]:
        return list(dict.fromkeys(s.target for s in self.all_stores()))


@dataclass(frozen=True)
class Loop:
    """A Procedure that runs `count` times; what it carries is overwritten by every iteration."""

    count: int
    body: Procedure
    lasting: frozenset[Buffer]  # carried or read from outside: more than one iteration's own


class _Several:
    """A launch of several kernels."""

    @property
    def parts(self) -> Sequence[Launch]:
        raise NotImplementedError

    def reads(self) -> list[Buffer]:
        return self._global(b for part in self.parts for b in part.reads())

    def writes(self) -> list[Buffer]:
        return self._global(b for part in self.parts for b in part.writes())

    @staticmethod
    def _global(found: Iterable[Buffer]) -> list[Buffer]:
        return [b for b in dict.fromkeys(found) if not isinstance(b, LocalBuffer)]


@dataclass(frozen=True)
class Block(_Several):
    """One launch that walks tiles of rows: every kernel inside runs for one tile after another.

    Each of `groups` work-groups takes its share of `tiles`, of `rows` rows each, which are those of
    the `batch` or some more. PART Nodes say which elements of a Buffer belong to the "tile", or to
    the "group" alone.
    """

    name: str
    batch: int
    tiles: int
    rows: int
    groups: int
    prologue: tuple[Kernel, ...]  # once a group; none reads what another one stores
    kernels: tuple[Kernel, ...]  # once a tile

    @property
    def shape(self) -> Shape:
        return (self.tiles, self.rows)

    @property
    def parts(self) -> tuple[Kernel, ...]:
        return (*self.prologue, *self.kernels)


@dataclass(frozen=True)
class Fused(_Several):
    """One launch of kernels that do not wait for each other, each in work-groups of its own."""

    name: str
    members: tuple[Kernel, ...]

    @property
    def shape(self) -> Shape:
        return (sum(math.prod(k.shape) for k in self.members),)

    @property
    def parts(self) -> tuple[Kernel, ...]:
        return self.members


@dataclass(frozen=True)
class Tiled(_Several):
    """One launch of kernels of the same elements, each of which reads what those before it leave
    around its own element, and no further away.

    Elements are rows of `pitch`. Every work-group has a tile of them, and runs one kernel after the
    other for it: each for as many elements around the tile as the next ones read, its halo. What
    these read is in local memory; of what a kernel stores, groups store their tiles.
    """

    name: str
    members: tuple[Kernel, ...]
    pitch: int
    halos: tuple[int, ...]  # rows above and below, and columns on both sides, of each member
    tile: tuple[int, int]  # rows and columns

    @property
    def size(self) -> int:
        """Elements of each member."""
        return math.prod(self.members[0].shape)

    @property
    def shape(self) -> Shape:
        return (len(self.members), self.size)

    @property
    def parts(self) -> tuple[Kernel, ...]:
        return self.members


Phase = Kernel | Block | Fused | Tiled


@dataclass(frozen=True)
class Persistent(_Several):
    """One launch of what would be several: each is a phase, which begins when the one before is
    done. The work-groups stay for as many steps as are wanted, at most `steps`."""

    name: str
    phases: tuple[Phase, ...]
    steps: int

    @property
    def shape(self) -> Shape:
        return (len(self.phases),)

    @property
    def parts(self) -> tuple[Phase, ...]:
        return self.phases


Launch = Phase | Persistent


@dataclass(frozen=True)
class Side:
    """Launches from number `begin` up to `end`, which may run at the same time as those behind
    them, up to `join`: all that begins there waits for both."""

    begin: int
    end: int
    join: int


@dataclass(frozen=True)
class Procedure:
    """Launches in the order in which they run, and loops of them; why there is a block, or none;
    what of them may have a queue of its own."""

    items: tuple[Launch | Loop, ...]
    note: str = ""
    side: Side | None = None

    @cached_property
    def kernels(self) -> tuple[Launch, ...]:
        """Every kernel once, those of loops too. Its position here is its number."""
        groups = (i.body.kernels if isinstance(i, Loop) else (i,) for i in self.items)
        return tuple(kernel for group in groups for kernel in group)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Every launch, and every phase of one, once."""
        groups = (k.phases if isinstance(k, Persistent) else (k,) for k in self.kernels)
        return tuple(phase for group in groups for phase in group)

    def order(self, first: int = 0) -> Iterator[int]:
        """The position of each kernel as it runs, as often as it runs; counted from `first`."""
        for item in self.items:
            if isinstance(item, Loop):
                for _ in range(item.count):
                    yield from item.body.order(first)
                first += len(item.body.kernels)
            else:
                yield first
                first += 1

    def loops(self, first: int = 0) -> Iterator[tuple[int, int, Loop]]:
        """Positions of the first and the last kernel of each loop, and the loop."""
        for item in self.items:
            if isinstance(item, Loop):
                yield from item.body.loops(first)
                yield first, first + len(item.body.kernels) - 1, item
                first += len(item.body.kernels)
            else:
                first += 1

    def intermediates(self) -> list[Buffer]:
        """Buffers that exist only while the Procedure runs, in order of first writing."""
        written = dict.fromkeys(b for k in self.kernels for b in k.writes())
        return [b for b in written if b.device is None]


@dataclass
class KernelDraft:
    """A kernel while kernels are still being merged and ordered."""

    order: int
    shape: Shape
    stores: list[Store]
    core: Node | None
    needs: set[Node]  # places read
    old: set[Buffer]  # state read as it was before the step
    after: set[int] = field(default_factory=set)  # drafts that must run before
    sums: Store | None = None
    loop: Iteration | None = None  # instead of a kernel
    guards: frozenset[Guard] = frozenset()
    rows: tuple[Node, ...] = ()
    totals: list[Store] = field(default_factory=list)


@dataclass(frozen=True)
class Iteration:
    """A LOOP's body, and where its parameters stand: carried ones first, then captured."""

    body: Body
    places: tuple[Node, ...]


def storage(place: Node) -> Buffer:
    """The Buffer under a chain of movements."""
    found: Buffer = base(place, PLACED).arg
    return found


def part_begin(place: Node) -> Expr:
    """Where the PART under a chain of movements, if there is one, begins in its Buffer."""
    place = base(place)
    if place.op is not Op.PART:
        return Const(0)
    variable, count, axis = place.arg
    return Var(variable, 0, count - 1) * math.prod(place.shape[axis:])


_accesses: WeakKeyDictionary[Node, Access] = WeakKeyDictionary()


def access(place: Node) -> Access:
    """Where each element of a chain of movements lies in its Buffer."""
    moves, found = list[Node](), None
    while place.op in MOVEMENT and (found := _accesses.get(place)) is None:
        moves.append(place)
        place = place.src[0]
    if found is None:
        found = Access.of(place.shape)
        if place.op is Op.PART:  # the first one
            found = Access.of(place.src[0].shape).shrink([(0, n) for n in place.shape])
    for moved in reversed(moves):
        found = _accesses[moved] = apply_movement(found, moved.op, moved.arg)
    return found


def is_plain(place: Node) -> bool:
    """Whether strides and an offset say where the elements are: one view without a mask."""
    views = access(place).views
    return len(views) == 1 and views[0].mask is None


def read_at_element_only(
    values: Iterable[Node], target: Buffer, leaves: Set[Node] = frozenset()
) -> bool:
    """Whether a Buffer is read only at the element being computed (`leaves`: as these views)."""
    seen: set[Node] = set()
    direct = list(values)
    indirect: list[Node] = []
    while direct:
        node = direct.pop()
        if node in leaves or node in seen:
            continue
        seen.add(node)
        if node.op in ELEMENTWISE:
            direct.extend(node.src)
        elif node.op is not Op.BUFFER or (leaves and node.arg is target):
            indirect.append(node)
    return all(n.op is not Op.BUFFER or n.arg is not target for n in toposort(indirect))


def leaves(stores: Iterable[Store]) -> list[Node]:
    """What the elementwise operations of stores' values begin with, but for constants: in the order
    in which it is read."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack = [s.value for s in stores][::-1]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op in ELEMENTWISE:
            stack += reversed(node.src)
        elif node.op is not Op.CONST:
            found[node] = None
    return list(found)


def waits(edges: Mapping[int, Set[int]], starts: Iterable[int], target: int) -> bool:
    """Whether a draft of `starts` is the target or runs after it; edges lead to those before."""
    stack = list(starts)
    seen = set(stack)
    while stack and target not in seen:
        more = edges[stack.pop()] - seen
        seen |= more
        stack.extend(more)
    return target in seen


# --- printing ---


def render_procedure(procedure: Procedure) -> str:
    """A line a kernel with its shape, then what it stores where, expression by expression."""
    has_block = any(isinstance(phase, Block) for phase in procedure.phases)
    lines = [f"# {procedure.note}"] if has_block else []
    for item in procedure.items:
        if isinstance(item, Persistent):
            lines.append(f"{item.name}: up to {item.steps} steps of {len(item.phases)} phases")
            inner = render_procedure(Procedure(item.phases)).splitlines()
            lines += [f"  {line}" for line in inner if not line.startswith("#")]
        elif isinstance(item, Loop):
            lines.append(f"loop {item.count} times")
            lines += [f"  {line}" for line in render_procedure(item.body).splitlines()]
        elif isinstance(item, Block):
            lines.append(f"{item.name}: {item.groups} groups, {item.tiles} tiles of {item.rows}")
            lines += [f"  {line}" for k in item.prologue for line in _kernel_lines(k)]
            lines.append("  for each tile")
            lines += [f"    {line}" for k in item.kernels for line in _kernel_lines(k)]
        elif isinstance(item, Fused | Tiled):
            several = "side by side"
            if isinstance(item, Tiled):
                rows, columns = item.tile
                several = f"in tiles of {rows} by {columns}, with halos of "
                several += ", ".join(map(str, item.halos))
            lines.append(f"{item.name}: {len(item.members)} kernels {several}")
            lines += [f"  {line}" for k in item.members for line in _kernel_lines(k)]
        else:
            lines += _kernel_lines(item)
    return "\n".join(lines)


def _kernel_lines(kernel: Kernel) -> list[str]:
    cores = kernel.rows if kernel.core is None else (kernel.core,)
    inside = f"  around {', '.join(map(label, cores))}" if cores else ""
    stores = [
        f"    {_element(s.place)} {'+=' if s.adds else '='} {_expression(s.value)}"
        for s in kernel.all_stores()
    ]
    guards = "".join(f"  {guard}" for guard in kernel.guards)
    return [f"{kernel.name} {list(kernel.shape)}{inside}{guards}", *stores]


def _element(place: Node) -> str:
    indices = [Var(f"i{axis}", 0, n - 1) for axis, n in enumerate(place.shape)]
    offset, valid = access(place).index(indices)
    offset = offset + part_begin(place)
    guard = "" if valid.lo == 1 else f" if {valid}"
    return f"{storage(place).name or 'state'}[{offset}]{guard}"


def _expression(node: Node) -> str:
    """The expression as text; below a movement that is not a plain read, as its Nodes."""
    if _leads_to_buffer(node):
        return _element(node)
    if node.op is Op.CONST:
        return f"{node.arg:.6g}"
    inner = ", ".join(_expression(s) for s in node.src)
    return f"{label(node).lower()}({inner})"


def _leads_to_buffer(place: Node) -> bool:
    return base(place, PLACED).op is Op.BUFFER
