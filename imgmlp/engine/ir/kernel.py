"""A scheduled step: a Procedure of Kernels, of launches that contain several, and of Loops.

A Kernel evaluates expressions for each element of one shape, with at most one reduction or product
inside, or with reductions of whole rows. It stores values at places. A place is a Node: movements
over a BUFFER, or over a PART of one, that strides and an offset can express.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

from imgmlp.engine.ir.access import Access
from imgmlp.engine.ir.graph import Buffer, Node, Shape, apply_movement, base, label, toposort
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.op import ELEMENTWISE, MOVEMENT, REDUCE, Op
from imgmlp.engine.ir.symbolic import Const, Expr, Var

Update = tuple[Buffer, Node]  # a state and its new value
CORE_OPS = REDUCE | {Op.DOT}  # operations that the core of a Kernel can be
PLACE_OPS = MOVEMENT | {Op.PART}  # operations between a place and its BUFFER


@dataclass(frozen=True)
class Store:
    """A value that a kernel stores at a place."""

    place: Node
    value: Node
    adds: bool = False  # whether the value is added to what the place holds

    @property
    def target(self) -> Buffer:
        return storage(self.place)


@dataclass(frozen=True)
class Guard:
    """A condition without which a kernel does nothing.

    It is the place of a bool in memory. In a Block it is an expression that must be true for the
    tile.
    """

    condition: Node
    expected: bool

    def __str__(self) -> str:
        return f"{'if' if self.expected else 'unless'} {_expression(self.condition)}"


@dataclass(frozen=True)
class Kernel:
    """Computes the values of its stores for each element of `shape`.

    A Kernel is a launch, unless it is part of one that contains several.
    """

    name: str
    shape: Shape
    stores: tuple[Store, ...]
    core: Node | None  # the reduction or product inside, if there is one
    column_sums: Store | None = None  # of a product's right factor, as a second output
    guards: tuple[Guard, ...] = ()
    # Reductions of rows, instead of a core. Each comes after those that it needs.
    row_reductions: tuple[Node, ...] = ()
    row_stores: tuple[Store, ...] = ()  # of one value for each row

    def all_stores(self) -> tuple[Store, ...]:
        column_sums = [] if self.column_sums is None else [self.column_sums]
        return (*self.stores, *self.row_stores, *column_sums)

    def adding_to(self, targets: Set[Buffer]) -> Kernel:
        """The same kernel, whose stores to these Buffers add to what is there; others do not."""

        def store(s: Store) -> Store:
            return replace(s, adds=s.target in targets)

        return replace(
            self,
            stores=tuple(map(store, self.stores)),
            row_stores=tuple(map(store, self.row_stores)),
            column_sums=None if self.column_sums is None else store(self.column_sums),
        )

    def reads(self) -> list[Buffer]:
        nodes = toposort(
            [*(guard.condition for guard in self.guards), *(s.value for s in self.all_stores())]
        )
        return list(dict.fromkeys(n.arg for n in nodes if n.op is Op.BUFFER))

    def writes(self) -> list[Buffer]:
        return list(dict.fromkeys(s.target for s in self.all_stores()))


@dataclass(frozen=True)
class Loop:
    """A Procedure that runs `count` times. Each iteration overwrites the carried values."""

    count: int
    body: Procedure
    # Carried values, and what the body reads from outside: live in more than one iteration.
    buffers_across_iterations: frozenset[Buffer]


class _CompositeLaunch:
    """A launch of several kernels, or of several such launches."""

    @property
    def parts(self) -> Sequence[Launch]:
        raise NotImplementedError

    def reads(self) -> list[Buffer]:
        return self._in_global_memory(b for part in self.parts for b in part.reads())

    def writes(self) -> list[Buffer]:
        return self._in_global_memory(b for part in self.parts for b in part.writes())

    @staticmethod
    def _in_global_memory(buffers: Iterable[Buffer]) -> list[Buffer]:
        return [b for b in dict.fromkeys(buffers) if not isinstance(b, LocalBuffer)]


@dataclass(frozen=True)
class Block(_CompositeLaunch):
    """One launch over tiles of the rows of a batch: all kernels run for one tile after another.

    Each work-group runs a share of the tiles. The tiles have at least as many rows together as the
    batch. PART Nodes say which elements of a Buffer belong to the "tile", or to the "group".
    """

    name: str
    batch: int  # rows
    tiles: int
    rows: int  # of a tile
    groups: int  # work-groups
    prologue: tuple[Kernel, ...]  # run once for each group; none reads what another one stores
    kernels: tuple[Kernel, ...]  # run for each tile

    @property
    def shape(self) -> Shape:
        return (self.tiles, self.rows)

    @property
    def parts(self) -> tuple[Kernel, ...]:
        return (*self.prologue, *self.kernels)


@dataclass(frozen=True)
class Fused(_CompositeLaunch):
    """One launch of independent kernels, each in work-groups of its own."""

    name: str
    members: tuple[Kernel, ...]

    @property
    def shape(self) -> Shape:
        return (sum(math.prod(k.shape) for k in self.members),)

    @property
    def parts(self) -> tuple[Kernel, ...]:
        return self.members


@dataclass(frozen=True)
class Tiled(_CompositeLaunch):
    """One launch of kernels that read only neighbouring elements of each other.

    All kernels have the same elements, in rows of `pitch`. A work-group has a tile of them. It runs
    one kernel after the other for its tile and a halo around it, which is as wide as the following
    kernels need. Values that these read are in local memory. Of the results, each group stores its
    tile.
    """

    name: str
    members: tuple[Kernel, ...]
    pitch: int
    halos: tuple[int, ...]  # of each member: rows above and below, and columns on both sides
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
class Persistent(_CompositeLaunch):
    """One launch of all launches of a step, whose work-groups stay for up to `steps` steps.

    Each former launch is a phase, which begins when the one before is done.
    """

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
class SideQueue:
    """Which launches of a Procedure run in a second queue: numbers `begin` to `end`, excluded.

    They may run at the same time as the launches from `end` to `join`. The launch with number
    `join` waits for both.
    """

    begin: int
    end: int
    join: int


@dataclass(frozen=True)
class Procedure:
    """Launches and Loops in the order in which they run."""

    items: tuple[Launch | Loop, ...]
    note: str = ""  # for the printer: what the block is, or why there is none
    side: SideQueue | None = None

    @cached_property
    def kernels(self) -> tuple[Launch, ...]:
        """Every launch once, also those in loops. A launch's position here is its number."""
        groups = (i.body.kernels if isinstance(i, Loop) else (i,) for i in self.items)
        return tuple(kernel for group in groups for kernel in group)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Every launch once, with the phases of a Persistent one in its place."""
        groups = (k.phases if isinstance(k, Persistent) else (k,) for k in self.kernels)
        return tuple(phase for group in groups for phase in group)

    def order(self, first: int = 0) -> Iterator[int]:
        """The numbers of all launches in the order in which they run, counted from `first`."""
        for item in self.items:
            if isinstance(item, Loop):
                for _ in range(item.count):
                    yield from item.body.order(first)
                first += len(item.body.kernels)
            else:
                yield first
                first += 1

    def loops(self, first: int = 0) -> Iterator[tuple[int, int, Loop]]:
        """The numbers of the first and last launch of each Loop, and the Loop; inner ones first."""
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


def storage(place: Node) -> Buffer:
    """The Buffer of a place."""
    buffer: Buffer = base(place, PLACE_OPS).arg
    return buffer


def part_begin(place: Node) -> Expr:
    """The offset in its Buffer of the PART that a place is in; 0 if there is none."""
    place = base(place)
    if place.op is not Op.PART:
        return Const(0)
    variable, count, axis = place.arg
    return Var(variable, 0, count - 1) * math.prod(place.shape[axis:])


_accesses: WeakKeyDictionary[Node, Access] = WeakKeyDictionary()


def access(place: Node) -> Access:
    """The Access of a chain of movements: to what is below it, and to a PART from its begin on."""
    movements, result = list[Node](), None
    while place.op in MOVEMENT and (result := _accesses.get(place)) is None:
        movements.append(place)
        place = place.src[0]
    if result is None:
        result = Access.of(place.shape)
        if place.op is Op.PART:  # the first part; `part_begin` is added to its offsets
            result = Access.of(place.src[0].shape).shrink([(0, n) for n in place.shape])
    for movement in reversed(movements):
        result = _accesses[movement] = apply_movement(result, movement.op, movement.arg)
    return result


def is_plain(place: Node) -> bool:
    """Whether strides and an offset express the place: it is one view without a mask."""
    views = access(place).views
    return len(views) == 1 and views[0].mask is None


def read_at_element_only(
    values: Iterable[Node], target: Buffer, leaves: Set[Node] = frozenset()
) -> bool:
    """Whether values read a Buffer only at the element that is computed.

    `leaves` are reads that count as such, although they are views.
    """
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
    """The inputs of the elementwise operations in stores' values, in the order of reading.

    Constants are left out.
    """
    inputs: dict[Node, None] = {}
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
            inputs[node] = None
    return list(inputs)


# --- printing ---


def render_procedure(procedure: Procedure) -> str:
    """A line for each kernel with its shape, followed by a line for each of its stores."""
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
    cores = kernel.row_reductions if kernel.core is None else (kernel.core,)
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
    """An expression as text. Reads of Buffers, also through movements, have their offsets."""
    if _leads_to_buffer(node):
        return _element(node)
    if node.op is Op.CONST:
        return f"{node.arg:.6g}"
    inner = ", ".join(_expression(s) for s in node.src)
    return f"{label(node).lower()}({inner})"


def _leads_to_buffer(place: Node) -> bool:
    return base(place, PLACE_OPS).op is Op.BUFFER
