"""Instructions of a kernel: UOps in order, each named by its position; and their printer.

UOps are immutable. Index arithmetic stays symbolic in the UOps that use it. A Builder emits each
value in the outermost loop where its inputs exist.
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
    """Kinds of instructions. Comments give the UOp's `arg`, and its `src` where it has sources."""

    # parameters and loops
    GLOBAL = auto()  # (Buffer, whether it is written): an array in memory of the device
    LOCAL_BUFFER = auto()  # LocalBuffer: an array in local memory, used like a GLOBAL
    GUARD = auto()  # bool; src: a bool. The kernel ends here unless both are equal.
    RANGE = auto()  # Range: opens a loop
    END = auto()  # None: closes the innermost open RANGE
    BARRIER = auto()  # None: the lanes of a group wait for each other, and see all stores so far

    # values
    CONST = auto()  # number
    INDEX = auto()  # Expr: an index as a value
    DEFINE = auto()  # name; src: a value, which becomes an index variable
    ALU = auto()  # Op; src: its operands

    # memory; `data` is a GLOBAL or a LOCAL_BUFFER
    LOAD = auto()  # (offset, validity); src: data, then the values that define index variables
    STORE = auto()  # offset; src: data, value
    STORE_ADD = auto()  # offset; src: data, value, which is added to the element that is there
    PREFETCH = auto()  # (offset, whether it will be written); src: data that is needed soon

    # accumulators, and arrays that the lanes of a group share
    ACC = auto()  # (count, initial value or None): accumulators in registers
    LOCAL_ARRAY = auto()  # count: elements in local memory; other lanes see them after a BARRIER
    ACCUMULATE = auto()  # (Op, index); src: accumulators, term
    SET = auto()  # index; src: accumulators or LOCAL_ARRAY, the new value of the element
    GET = auto()  # index; src: accumulators, LOCAL_ARRAY or COLUMN_SUMS
    COMBINE = auto()  # Op; src: accumulators, all of which it combines into one value
    # (Op, n); src: a value of each lane. Combines them into n, of which lane i gets the (i % n)th.
    GROUP_REDUCE = auto()

    # matrix products
    PANEL = auto()  # Product; src: right factor, a tile of whose columns is copied side by side
    TILE = auto()  # (rows, columns): zeros, which the lanes of a group hold in their registers
    # Product: a tile of a matrix product. On a GPU it is added to the TILE.
    # src: left factor, right factor or PANEL; on a GPU also the TILE
    PRODUCT = auto()
    SHARE_TILE = auto()  # Product; src: TILE, which all lanes can read until the next PRODUCT
    # (row, column); src: PRODUCT or SHARE_TILE. For a TILE, which has the lane's own elements:
    # (row, column, number of the element among the lane's own)
    ELEMENT = auto()
    COLUMN_SUMS = auto()  # Product; src: right factor, whose columns are summed; on a GPU the TILE


@dataclass(frozen=True, slots=True)
class UOp:
    """One instruction. `src` has the numbers of the UOps whose values it uses."""

    op: U
    dtype: DType | None
    src: tuple[int, ...]
    arg: Any


@dataclass(frozen=True, slots=True)
class Range:
    """A loop: its variable is in [0, count), and less than `limit` if there is one.

    `kind` says how the iterations are divided:

    - `share`: each work-group runs its share of them, one after the other;
    - `item`: each work-item of the launch runs one;
    - `group`: each work-group runs one;
    - `lane`: the lanes of a group run one each, then the next ones, as many as there are;
    - `loop`: one after the other;
    - `vector`: likewise; it is short and innermost, for the compiler to vectorise;
    - `row`, `column`: of a CPU's tile. If that is in registers, both loops are unrolled, and each
      iteration over columns handles a vector of them;
    - `member`: `count` work-groups from number `first` on run the body as if they were a launch;
    - `phase`: phase number `first` of a persistent launch runs what `count` work-groups would do in
      a launch of its own. Whichever work-groups are there take a unit of it after the other.
    """

    name: str
    count: int
    kind: str = "loop"
    limit: Expr | None = None
    first: int = 0


@dataclass(frozen=True, slots=True)
class Product:
    """A tile of a matrix product [rows, terms] x [terms, columns]. Strides are in elements."""

    rows_left: Expr | None  # rows from the tile's first one on; None if every tile is full
    columns_left: Expr | None
    terms: int
    left_offset: Expr  # of the tile's first element in the left factor
    left_row_stride: int
    left_term_stride: int
    right_offset: Expr
    right_term_stride: int
    right_column_stride: int
    tile_rows: int
    tile_columns: int
    # Whether one stride of the factor is 1, and all its contiguous lines begin on 32 bytes.
    is_left_aligned: bool
    is_right_aligned: bool
    vector_width: int = MIN_VECTOR_WIDTH  # columns that a CPU computes at once
    is_in_registers: bool = False  # whether a CPU has the tile in registers until it is stored
    runs_along_terms: bool = False  # whether a CPU's vectors are neighbouring terms of both factors
    has_column_sums: bool = False  # whether a GPU also sums the right factor's columns

    @property
    def can_load_right_vectors(self) -> bool:
        """Whether rows of the right factor can be read as aligned vectors."""
        return self.is_right_aligned and self.columns_left is None and self.right_column_stride == 1

    @property
    def name(self) -> str:
        """The suffix of the building blocks for this size of a tile on a GPU."""
        if self.tile_columns == NARROW_TILE_COLUMNS:
            return "narrow"
        suffix = "_slim" if self.tile_columns == SLIM_TILE_COLUMNS else ""
        return f"{self.tile_rows // 8}{suffix}"

    def __str__(self) -> str:
        left = f"left at {self.left_offset} by {self.left_row_stride}m {self.left_term_stride}k"
        right = f"right at {self.right_offset} by {self.right_term_stride}k "
        right += f"{self.right_column_stride}n"
        way = "direct" if self.can_load_right_vectors else "packed"
        return f"{self.terms} terms, {left}, {right} {'along' if self.runs_along_terms else way}"


@dataclass(frozen=True)
class Code:
    """The UOps of a kernel, the Buffers of its parameters, and the size of its launch."""

    name: str
    uops: tuple[UOp, ...]
    buffers: tuple[Buffer, ...]
    global_size: int  # work-items
    local_size: int  # work-items of a work-group
    phase_units: tuple[int, ...] = ()  # units of work of each phase; empty unless it is persistent


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
    """UOps under construction. A value is emitted in the outermost loop where its inputs exist."""

    def __init__(self) -> None:
        self.scopes: list[list[tuple[int, UOp]]] = [[]]  # of open loops: (number, UOp) in order
        self.load_depths = [0]  # for each scope: the outermost one where it may emit a load
        self.depth: dict[int, int] = {}  # of the scope of each UOp
        self.variables: dict[str, tuple[int, int | None]] = {}  # name -> depth, defining UOp
        self.emitted: dict[UOp, int] = {}  # values that open loops can still use
        self.live: set[int] = set()  # their numbers, and those that lowering adds
        self.parameters: dict[Buffer, int] = {}  # GLOBALs and LOCAL_BUFFERs
        self.written: set[int] = set()  # parameters that the kernel writes to
        self.count = 0

    def emit(
        self,
        op: U,
        dtype: DType | None = None,
        src: Sequence[int] = (),
        arg: Any = None,
        exprs: Sequence[Expr] = (),
    ) -> int:
        """Emit an instruction without side effects and return its number; once if it is repeated.

        `exprs` are the index expressions in `arg`. A written parameter is loaded in the innermost
        loop, by the lane that overwrites the element: other lanes may be late, and no barrier
        orders their loads before its store.
        """
        names = sorted({v.name for e in exprs for v in e.variables()})
        defined = [self.variables[n][1] for n in names]
        sources = (*src, *(d for d in defined if d is not None))
        uop = UOp(op, dtype, sources, arg)
        if uop in self.emitted:
            return self.emitted[uop]
        depth = max((self.depth[s] for s in sources), default=0)
        depth = max([depth, *(self.variables[n][0] for n in names)])
        if op is U.LOAD:
            innermost = len(self.scopes) - 1
            depth = max(depth, innermost if src[0] in self.written else self.load_depths[-1])
        self.emitted[uop] = number = self._append(uop, depth)
        self.live.add(number)
        return number

    def effect(self, op: U, src: Sequence[int], arg: Any = None, dtype: DType | None = None) -> int:
        """Emit an instruction that must stay in the innermost loop and in order."""
        return self._append(UOp(op, dtype, tuple(src), arg), len(self.scopes) - 1)

    def _append(self, uop: UOp, depth: int) -> int:
        number = self.count
        self.count += 1
        self.depth[number] = depth
        self.scopes[depth].append((number, uop))
        return number

    def define(self, name: str, value: int, depth: int) -> None:
        """Make an index variable of a value, in the scope of some depth."""
        number = self._append(UOp(U.DEFINE, i32, (value,), name), depth)
        self.variables[name] = (depth, number)

    def open(self, loop: Range, keeps_loads: bool = False) -> Var:
        """Begin a loop and return its variable.

        With `keeps_loads` no load is moved out of it. That is needed if the loop's limit decides
        whether the elements exist.
        """
        self.scopes.append([])
        self.load_depths.append(len(self.scopes) - 1 if keeps_loads else self.load_depths[-1])
        self.effect(U.RANGE, (), loop, i32)
        self.variables[loop.name] = (len(self.scopes) - 1, None)
        return Var(loop.name, 0, loop.count - 1)

    def close(self, count: int = 1) -> None:
        """End the innermost `count` loops."""
        for _ in range(count):
            inner = self.scopes.pop()
            self.load_depths.pop()
            self.scopes[-1].extend(inner)
            self.effect(U.END, ())
        open_scopes = len(self.scopes)
        self.emitted = {u: n for u, n in self.emitted.items() if self.depth[n] < open_scopes}
        self.live = set(self.emitted.values())

    def parameter(self, storage: Buffer, written: bool = False) -> int:
        """The GLOBAL or LOCAL_BUFFER of a Buffer. The first call decides whether it is written."""
        if storage in self.parameters:
            return self.parameters[storage]
        uop = UOp(U.GLOBAL, storage.dtype, (), (storage, written))
        if isinstance(storage, LocalBuffer):
            uop, written = UOp(U.LOCAL_BUFFER, storage.stored, (), storage), True
        number = self.parameters[storage] = self._append(uop, 0)
        if written:
            self.written.add(number)
        return number

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The Buffers of the GLOBALs."""
        return tuple(b for b in self.parameters if not isinstance(b, LocalBuffer))

    def finish(self) -> tuple[UOp, ...]:
        """All UOps in order, numbered by position."""
        ordered = self.scopes[0]
        place = {number: i for i, (number, _) in enumerate(ordered)}
        return tuple(UOp(u.op, u.dtype, tuple(place[s] for s in u.src), u.arg) for _, u in ordered)
