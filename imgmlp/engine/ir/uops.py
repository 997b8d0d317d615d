"""Instructions: immutable UOps in order, each named by its position, and their printer.

Index arithmetic stays symbolic inside the UOps that use it. A Builder puts each value into
the outermost loop that knows its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from imgmlp.engine.ir.dtype import DType, i32
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.local_memory import LocalBuffer
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import Expr, Var
from imgmlp.engine.ir.target import MIN_VECTOR_WIDTH, NARROW_TILE_COLUMNS, SLIM_TILE_COLUMNS


class U(Enum):
    """Kinds of instruction; the comment gives `arg`."""

    GLOBAL = auto()  # (Buffer, written)
    SCRATCH = auto()  # LocalBuffer: every group has one; stands for a GLOBAL
    GUARD = auto()  # whether src, a bool, must be true: the kernel ends here if it is not so
    RANGE = auto()  # Range
    END = auto()  # None: closes the last open RANGE
    CONST = auto()  # number
    INDEX = auto()  # Expr: an index as a value
    DEFINE = auto()  # name: a value as an index variable
    LOAD = auto()  # (offset, validity); src: the global, then values that define index variables
    ALU = auto()  # Op
    STORE = auto()  # offset; src: global, value
    ADD = auto()  # offset; src: global, value: a store that adds to what is there
    PREFETCH = auto()  # (offset, whether it will be written); src: global, of what comes soon
    BARRIER = auto()  # None: all lanes see what any of them stored
    ACC = auto()  # (lanes, initial value or None): accumulators
    LOCAL = auto()  # count: elements that all lanes of a group see, after a BARRIER
    ACCUMULATE = auto()  # (Op, lane); src: accumulators, value
    KEEP = auto()  # lane; src: accumulators or LOCAL, value: takes the place of one of them
    COMBINE = auto()  # Op: all accumulators into one value; src: accumulators
    LANE = auto()  # lane: one accumulator; src: accumulators or LOCAL
    GROUP = auto()  # (Op, n): lanes' values into n, lane i has the i % n th then; src: value
    PANEL = auto()  # Product: the columns of its right factor, side by side; src: right
    TILE = auto()  # (rows, columns): zeros, which a group's lanes share in registers
    PRODUCT = auto()  # Product: a tile of a matrix product; src: left, right or PANEL; TILE to add
    SPREAD = auto()  # Product: all lanes see the TILE's elements, until the next PRODUCT; src: TILE
    ELEMENT = auto()  # (row, column) of the tile; src: the PRODUCT or SPREAD, or TILE, where the
    # lane's own elements are: (row, column, which of them)
    COLUMNS = auto()  # Product: column sums of its right factor; src: right, the TILE if there is


@dataclass(frozen=True, slots=True)
class UOp:
    op: U
    dtype: DType | None
    src: tuple[int, ...]
    arg: Any


@dataclass(frozen=True, slots=True)
class Range:
    """A loop variable in [0, count), and less than `limit` if there is one.

    kind: `share` of a work-group, `item` of the whole launch, `group`: one group each,
    `lane`-strided, `loop`, `vector` (short, innermost), `row` and `column` of a CPU's tile: if
    that is in registers they are unrolled, and a vector of columns goes at once. A `member` is what
    so many work-groups from `first` on do, as if they were a launch of their own; a `phase`, which
    has that number, is what as many groups of a launch would do, for whichever groups take them.
    """

    name: str
    count: int
    kind: str = "loop"
    limit: Expr | None = None
    first: int = 0


@dataclass(frozen=True, slots=True)
class Product:
    """Which tile: offsets of its first elements, strides (in elements), and sizes."""

    rows: Expr | None  # rows left from the tile's first, if the last tile has fewer
    columns: Expr | None
    inner: int
    left: Expr
    left_row: int
    left_inner: int
    right: Expr
    right_inner: int
    right_column: int
    tile_rows: int
    tile_columns: int
    left_aligned: bool  # whether all rows, or all columns, begin on 32 bytes and lie together
    right_aligned: bool
    vector: int = MIN_VECTOR_WIDTH  # columns that a CPU takes at once
    registers: bool = False  # whether a CPU has the tile there until it is stored
    along: bool = False  # whether a CPU takes neighbouring terms at once, of both factors
    summed: bool = False  # whether the right factor's column sums are wanted too

    @property
    def direct(self) -> bool:
        """Whether the right factor's rows can be read as aligned vectors."""
        return self.right_aligned and self.columns is None and self.right_column == 1

    @property
    def name(self) -> str:
        """That of its tile's shape, in the building blocks for lanes of a group."""
        if self.tile_columns == NARROW_TILE_COLUMNS:
            return "narrow"
        return str(self.tile_rows // 8) + (
            "_slim" if self.tile_columns == SLIM_TILE_COLUMNS else ""
        )

    def __str__(self) -> str:
        left = f"left at {self.left} by {self.left_row}m {self.left_inner}k"
        right = f"right at {self.right} by {self.right_inner}k {self.right_column}n"
        way = " along" if self.along else " direct" if self.direct else " packed"
        return f"{self.inner} terms, {left}, {right}{way}"


@dataclass(frozen=True)
class Code:
    """UOps of a kernel, the Buffers of its parameters, and the size of its launch."""

    name: str
    uops: tuple[UOp, ...]
    buffers: tuple[Buffer, ...]
    global_size: int
    local_size: int
    turns: tuple[int, ...] = ()  # units of each phase of a step, where groups stay for several


def render_uops(code: Code) -> str:
    """Numbered listing: number, instruction, dtype, sources, argument."""
    lines, depth = [], 0
    for i, u in enumerate(code.uops):
        depth -= u.op is U.END
        arg = "" if u.arg is None else _show(u.arg)
        kind = u.dtype.name if u.dtype else ""
        sources = str(list(u.src)) if u.src else ""
        text = f"{i:4d} {'  ' * depth}{u.op.name:<10} {kind:<5} {sources:<12} {arg}"
        lines.append(text.rstrip())
        depth += u.op is U.RANGE
    return "\n".join(lines)


def _show(arg: Any) -> str:
    if isinstance(arg, Range):
        if arg.kind == "member":
            return f"groups {arg.first} to {arg.first + arg.count - 1}"
        if arg.kind == "phase":
            return f"phase {arg.first} of {arg.count} groups"
        limit = f" below {arg.limit}" if arg.limit is not None else ""
        return f"{arg.name} {arg.kind} of {arg.count}{limit}"
    if isinstance(arg, Op):
        return arg.name
    if isinstance(arg, tuple) and isinstance(arg[0], Buffer):
        return f"{arg[0]}{' written' if arg[1] else ''}"
    if isinstance(arg, tuple):
        return ", ".join(_show(a) for a in arg)
    return str(arg)


class Builder:
    """UOps under construction. A value is emitted in the outermost loop that knows its inputs."""

    def __init__(self) -> None:
        self.scopes: list[list[tuple[int, UOp]]] = [[]]
        self.holding = [0]  # by scope: the innermost that no load leaves
        self.depth: dict[int, int] = {}  # of each UOp
        self.variables: dict[str, tuple[int, int | None]] = {}  # name -> depth, defining UOp
        self.known: dict[UOp, int] = {}
        self.live: set[int] = set()  # numbers that may still be used
        self.parameters: dict[Buffer, int] = {}  # GLOBALs and SCRATCHs
        self.overwritten: set[int] = set()  # globals
        self.count = 0

    def emit(
        self,
        op: U,
        dtype: DType | None = None,
        src: Sequence[int] = (),
        arg: Any = None,
        exprs: Sequence[Expr] = (),
    ) -> int:
        """A pure instruction: the same one twice is emitted once.

        What is overwritten is loaded in the innermost loop, by the lane that overwrites it:
        other lanes may be late, and no barrier in between orders their loads before its store.
        """
        names = sorted({v.name for e in exprs for v in e.variables()})
        defined = [self.variables[n][1] for n in names]
        sources = (*src, *(d for d in defined if d is not None))
        uop = UOp(op, dtype, sources, arg)
        if uop in self.known:
            return self.known[uop]
        depth = max((self.depth[s] for s in sources), default=0)
        depth = max([depth, *(self.variables[n][0] for n in names)])
        if op is U.LOAD:
            late = src[0] in self.overwritten
            depth = max(depth, len(self.scopes) - 1 if late else self.holding[-1])
        self.known[uop] = number = self._append(uop, depth)
        self.live.add(number)
        return number

    def effect(self, op: U, src: Sequence[int], arg: Any = None, dtype: DType | None = None) -> int:
        """An instruction that must stay where it is."""
        return self._append(UOp(op, dtype, tuple(src), arg), len(self.scopes) - 1)

    def _append(self, uop: UOp, depth: int) -> int:
        number = self.count
        self.count += 1
        self.depth[number] = depth
        self.scopes[depth].append((number, uop))
        return number

    def define(self, name: str, value: int, depth: int) -> None:
        number = self._append(UOp(U.DEFINE, i32, (value,), name), depth)
        self.variables[name] = (depth, number)

    def open(self, loop: Range, holds: bool = False) -> Var:
        """Begin a loop. No load leaves it if it `holds` them: if its limit says whether outer
        variables are such that there is anything to load."""
        self.scopes.append([])
        self.holding.append(len(self.scopes) - 1 if holds else self.holding[-1])
        self.effect(U.RANGE, (), loop, i32)
        self.variables[loop.name] = (len(self.scopes) - 1, None)
        return Var(loop.name, 0, loop.count - 1)

    def close(self, count: int = 1) -> None:
        """End the innermost loops."""
        for _ in range(count):
            inner = self.scopes.pop()
            self.holding.pop()
            self.scopes[-1].extend(inner)
            self.effect(U.END, ())
        gone = len(self.scopes)
        self.known = {u: n for u, n in self.known.items() if self.depth[n] < gone}
        self.live = set(self.known.values())

    def parameter(self, storage: Buffer, written: bool = False) -> int:
        """The GLOBAL or the SCRATCH of a Buffer; whoever asks first says whether it is written."""
        if storage in self.parameters:
            return self.parameters[storage]
        uop = UOp(U.GLOBAL, storage.dtype, (), (storage, written))
        if isinstance(storage, LocalBuffer):
            uop, written = UOp(U.SCRATCH, storage.stored, (), storage), True
        number = self.parameters[storage] = self._append(uop, 0)
        if written:
            self.overwritten.add(number)
        return number

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Those in memory of the device."""
        return tuple(b for b in self.parameters if not isinstance(b, LocalBuffer))

    def finish(self) -> tuple[UOp, ...]:
        """All in order, numbered by position."""
        ordered = self.scopes[0]
        place = {number: i for i, (number, _) in enumerate(ordered)}
        return tuple(UOp(u.op, u.dtype, tuple(place[s] for s in u.src), u.arg) for _, u in ordered)
