"""UOps to OpenCL C 1.2: with c_syntax.py, matmul_calls.py, matrix_units.py and vector_access.py the
only place that writes it.

What instructions cannot say stands in kernels/*.cl and is called from here. Vectors come
from the driver's compiler, out of innermost loops, from the product's building block, and where
register_vectors.py and sum_vectors.py find them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from imgmlp.engine.codegen.c_syntax import (
    TURN_PARAMETERS,
    exchanged,
    join,
    literal,
    not_above,
    not_below,
    operation,
    phase,
    register,
    turn_after_turn,
)
from imgmlp.engine.codegen.matmul_calls import ProductCalls
from imgmlp.engine.codegen.matrix_units import element, local_buffers, slices
from imgmlp.engine.codegen.register_vectors import (
    apart,
    around_registers,
    in_vectors,
    products_in_sums,
    step,
    subtracts_products,
)
from imgmlp.engine.codegen.sum_vectors import EVERY_OTHER, outputs_in_vectors, sums_in_vectors
from imgmlp.engine.codegen.vector_access import Neighbours
from imgmlp.engine.ir.dtype import DType, bool_, f16, f32
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, Var
from imgmlp.engine.ir.target import FACTORS, GPU_LANES, GPU_TILE, NARROW, Target
from imgmlp.engine.ir.uops import Code, Range, U, UOp

# Instructions that a compiler can make vectors of in a loop.
PLAIN = {U.CONST, U.INDEX, U.DEFINE, U.LOAD, U.ALU, U.STORE, U.KEEP, U.LANE}
PARAMETERS = {U.GLOBAL, U.SCRATCH, U.LOCAL}  # declared at the top
PRODUCTS = {U.PRODUCT, U.TILE, U.SPREAD, U.PANEL, U.COLUMNS}


def sizes(target: Target) -> str:
    """What building blocks know of a device."""
    found = {
        "VECTOR": target.wide, "NARROW": target.vector, "TILE": GPU_TILE, "LANES": GPU_LANES,
    }  # fmt: skip
    factor = FACTORS.get(target.multiply)
    if factor is not None:
        found["FACTOR_BYTES"] = factor.itemsize
    return "".join(f"#define {name} {size}\n" for name, size in found.items())


@cache
def building_block(name: str) -> str:
    """The text of kernels/`name`.cl."""
    return resources.files("imgmlp.kernels").joinpath(f"{name}.cl").read_text("utf-8")


def render(codes: Sequence[Code], target: Target) -> tuple[str, list[str]]:
    """One source with all kernels, and the name of the function that each of them calls.

    Products that are not of lanes' float32 are for groups on NVIDIA's matrix units.

    Kernels that differ in their buffers only share a function: layers repeat, and PoCL 3
    keeps 128 functions loaded and loads the others again, 50 us, at every launch.
    """
    used = {u.op for c in codes for u in c.uops}
    product = "product_matrix" if target.multiply in FACTORS else f"product_{target.lanes}"
    products = U.PRODUCT in used
    halves = any(u.op is U.ALU and u.dtype is f16 for c in codes for u in c.uops)
    wanted = {"scalar": True, "vectors": target.lanes == "one", "half": halves}
    wanted |= {"reduce": U.GROUP in used}
    wanted |= {"factor": products and target.lanes == "group", product: products}
    wanted["persistent"] = any(c.turns for c in codes)
    heads = [sizes(target), *(building_block(b) for b, needed in wanted.items() if needed)]
    functions: dict[tuple[str, str], str] = {}  # text around the name -> name
    writers = [_Writer(c, target) for c in codes]
    names = [functions.setdefault(w.parts(), f"imgmlp_{w.code.name}") for w in writers]
    texts = (f"{before}{name}{after}" for (before, after), name in functions.items())
    return "\n".join([*heads, *texts]), names


def _index(expr: Expr) -> str:
    return expr.render("/")


class _Writer:
    """One kernel's text."""

    def __init__(self, code: Code, target: Target) -> None:
        self.code, self.lanes = code, target.lanes
        self.factors = FACTORS.get(target.multiply)  # as what matrix units have their elements
        self.lines: list[str] = []
        self.columns, self.vectors = in_vectors(code)  # loops and values: columns at once
        self.vector, self.wide = target.vector, target.wide
        self.sums: set[int] = set()  # accumulators that are vectors
        self.outputs: set[int] = set()  # likewise, each place of which is an output
        if self.lanes == "one":
            self.sums, loops, values = sums_in_vectors(code, self.vector)
            self.columns, self.vectors = self.columns | loops, self.vectors | values
            self.outputs, loops, values = outputs_in_vectors(code, self.vector)
            self.columns, self.vectors = self.columns | loops, self.vectors | values
        self.around = around_registers(code)
        self.terms = products_in_sums(code) if self.lanes == "one" else set()
        self.products = ProductCalls(code, target, self.vectors)
        self.opened: list[tuple[int, int]] = []  # loops, and the line where the body of each begins
        self.group = "get_group_id(0)"  # number of the running group, in a phase its unit's
        self.groups: str | None = None  # count of those that share what follows; None: all
        self.neighbours: Neighbours | None = None  # whose loop is open

    def parts(self) -> tuple[str, str]:
        """The text before the kernel's name and after it."""
        parameters = list(TURN_PARAMETERS) if self.code.turns else []
        for i, u in enumerate(self.code.uops):
            if u.op is U.GLOBAL:
                parameters.append((self.code.buffers.index(u.arg[0]), self._parameter(i, u)))
        signature = ", ".join(p for _, p in sorted(parameters))
        local = self.code.local_size
        self._locals()
        if self.code.turns:
            self.lines += turn_after_turn(self.code.turns)
        for i, u in enumerate(self.code.uops):
            self._write(i, u)
        if self.code.turns:
            self.lines.append("}")
        head = f"__kernel __attribute__((reqd_work_group_size({local}, 1, 1)))\nvoid "
        body = "\n".join("  " + line for line in self.lines)
        return head, f"({signature}) {{\n{body}\n}}\n"

    def _write(self, i: int, u: UOp) -> None:
        """One instruction: a method here has its name, or one of those about products."""
        name = u.op.name.lower()
        if u.op is U.ELEMENT:
            self._declare(i, u, self.products.element(i, u))
        elif u.op in PRODUCTS:
            self.lines += getattr(self.products, name)(i, u)
        elif u.op not in PARAMETERS:
            getattr(self, f"_{name}")(i, u)

    def _locals(self) -> None:
        """Local memory may only be declared at the top of a kernel."""
        if self.lanes == "one":
            return
        products = any(u.op is U.PRODUCT for u in self.code.uops)
        if products and not self.factors:
            self.lines.append("__local float workspace[TILE_FLOATS] __attribute__((aligned(16)));")
        self.lines += [
            *local_buffers(self.code),
            *(slices(self.code, self.factors) if self.factors else ()),
        ]
        self.lines += exchanged(self.code)

    def _parameter(self, i: int, u: UOp) -> str:
        storage, written = u.arg
        constant = "" if written else "const "
        return f"__global {constant}{storage.dtype.cl} *restrict data{i}"

    def _declare(self, i: int, u: UOp, value: str) -> None:
        assert u.dtype is not None
        kind = register(u.dtype)
        if i in self.vectors:
            kind = f"{'int' if u.dtype is bool_ else kind}{self.vectors[i]}"
        self.lines.append(f"const {kind} v{i} = {value};")

    # --- one method an instruction ---

    def _range(self, i: int, u: UOp) -> None:
        loop: Range = u.arg
        if loop.kind == "phase":
            self._phase(i, loop)
            return
        n, name = loop.count, loop.name
        limit = f" && {name} < {_index(loop.limit)}" if loop.limit is not None else ""
        stride, loop_over = self.code.local_size, f"for (int {name}"
        once = n <= stride and self.factors  # no loop to NVIDIA's compiler then; PoCL mistakes it
        step = f"= {n}" if once else f"+= {stride}"
        lane = f"{loop_over} = get_local_id(0); {name} < {n}{limit}; {name} {step}) {{"
        if n == stride and not limit:
            lane = f"{{ const int {name} = get_local_id(0);"
        group, item, share = self.group, "get_global_id(0)", f"share_{{}}({n})"
        if loop.kind == "member":
            self.groups = "groups"
        elif self.groups:
            group = "group" if self.groups == "groups" else group
            item = f"{group} * {stride} + get_local_id(0)"
            share = f"{{}}_of({n}, {group}, {self.groups})"
        begin, end = share.format("begin"), share.format("end")
        kind = "long" if i in self.around else "int"
        opening = {
            "member": self._member(loop, group),
            "share": f"for ({kind} {name} = {begin}; {name} < {end}; ++{name}) {{",
            "item": f"const int {name} = {item}; if ({name} < {n}) {{",
            "group": f"{{ const int {name} = {group};",
            "lane": lane,
        }.get(loop.kind, f"for ({kind} {name} = 0; {name} < {n}{limit}; ++{name}) {{")
        if self.lanes == "group":
            self.neighbours = Neighbours.of(self.code, i)
        in_registers = n <= self.wide and (self.lanes == "group" or self._accumulates(i))
        if loop.kind == "vector" and not limit and in_registers and i not in self.columns:
            self.lines.append("#pragma unroll")  # so that accumulators are in registers
        if self.lanes == "one" and apart(self.code, i):
            # gathered one by one, which compiles for half a second and gains nothing
            self.lines.append("#pragma clang loop vectorize(disable) interleave(disable)")
        elif self.vector > NARROW and n >= self.vector and self._only_stores(i):
            # LLVM prefers 8 for most processors that have vectors of 16
            self.lines.append(f"#pragma clang loop vectorize_width({self.vector})")
        if i not in self.columns and not self._has_vectors(i):
            self.lines.append(opening)
        self.opened.append((i, len(self.lines)))

    def _phase(self, i: int, loop: Range) -> None:
        """The groups of a launch that a unit of a phase stands for."""
        self.lines += phase(loop, self.code.turns)
        self.opened.append((i, len(self.lines)))
        self.group, self.groups = "unit", "units"

    def _member(self, loop: Range, group: str) -> str:
        """What the groups of a member do; all items of a group take the same way."""
        end = loop.first + loop.count
        own = f"const int group = {group} - {loop.first}, groups = {loop.count};"
        return f"if ({group} >= {loop.first} && {group} < {end}) {{ {own}"

    def _accumulates(self, i: int) -> bool:
        """Whether the innermost loop that begins here adds to accumulators, of plain reads.

        Written out, reads under conditions take seconds to compile, and are branches, no vectors.
        """
        uops = self.code.uops
        end = next(j for j in range(i, len(uops)) if uops[j].op is U.END)
        masked = any(u.op is U.LOAD and u.arg[1] is not ONE for u in uops[i:end])
        return not masked and any(u.op is U.ACCUMULATE for u in uops[i:end])

    def _only_stores(self, i: int) -> bool:
        """Whether an innermost loop adds nothing up: as told, sums may change their order."""
        uops = self.code.uops
        if uops[i].arg.kind not in ("loop", "share"):
            return False
        end = next(j for j in range(i + 1, len(uops)) if uops[j].op in (U.END, U.RANGE))
        return uops[end].op is U.END and {u.op for u in uops[i + 1 : end]} <= PLAIN

    def _has_vectors(self, i: int) -> bool:
        """Whether these are rows of a tile whose columns go in vectors."""
        if self.code.uops[i].arg.kind != "row":
            return False
        inner = (j for j in range(i + 1, len(self.code.uops)) if self.code.uops[j].op is U.RANGE)
        return next(inner, -1) in self.columns

    def _guard(self, i: int, u: UOp) -> None:
        self.lines.append(f"if ({'!' if u.arg else ''}v{u.src[0]}) return;")

    def _end(self, i: int, u: UOp) -> None:
        begin, first = self.opened.pop()
        if self.neighbours is not None:
            first -= 2  # before the loop and how it is to be unrolled
            self.lines[first:first] = self.neighbours.declared
            self.lines += ["}", *self.neighbours.stores]
            self.neighbours = None
        elif begin in self.columns or self._has_vectors(begin):
            self.lines[first:] = self._written_out(begin, self.lines[first:])
        else:
            self.lines.append("}")

    def _written_out(self, begin: int, body: list[str]) -> list[str]:
        """A tile's row for each of its vectors, or all rows: what is no loop stays in registers."""
        loop: Range = self.code.uops[begin].arg
        if begin in self.columns:
            places = range(0, loop.count, self.columns[begin])
            return [s for n in places for s in (f"{{ const int {loop.name} = {n};", *body, "}")]
        guard = "" if loop.limit is None else f"if ({loop.name} < {_index(loop.limit)}) "
        macro = [f"#define ROW{begin}({loop.name}, ...) {guard}{{", *body, "}"]
        return [*" \\\n".join(macro).split("\n"), f"REPEAT({loop.count}, ROW{begin}, )"]

    def _const(self, i: int, u: UOp) -> None:
        assert u.dtype is not None
        self._declare(i, u, literal(u.arg, u.dtype))

    def _index(self, i: int, u: UOp) -> None:
        self._declare(i, u, _index(u.arg))

    def _define(self, i: int, u: UOp) -> None:
        self.lines.append(f"const int {u.arg} = (int)v{u.src[0]};")

    def _load(self, i: int, u: UOp) -> None:
        offset, valid = u.arg
        data = f"data{u.src[0]}"
        where = _index(element(self.code, u.src[0], offset))
        half = self.code.uops[u.src[0]].dtype is f16
        value = f"vload_half({where}, {data})" if half else f"{data}[{where}]"
        if self.neighbours is not None:
            value = self.neighbours.load(u.src[0], offset, valid != Const(1)) or value
        if i in self.vectors:
            value = self._neighbours(i, u, f"{data} + {where}")
        if valid != Const(1):
            value = f"({_index(valid)}) ? {value} : ({register(u.dtype)})0"
        self._declare(i, u, value)

    def _neighbours(self, i: int, u: UOp, place: str) -> str:
        """A vector of neighbours in memory, or of every other one."""
        kind, (begin, _) = self._vector(u.dtype, self.vectors[i]), self.opened[-1]
        loop: Range = self.code.uops[begin].arg
        if step(u.arg[0], Var(loop.name, 0, loop.count - 1)) == EVERY_OTHER:
            return f"EVERY_OTHER({register(u.dtype)}, {self.vectors[i]}, {place})"
        return f"*(__global const {kind} *)({place})"

    def _store(self, i: int, u: UOp) -> None:
        data, value = u.src[:2]
        where = _index(element(self.code, data, u.arg))
        if self.neighbours and (kept := self.neighbours.store(data, u.arg, value)):
            self.lines.append(kept)
        elif self.code.uops[data].dtype is f16:
            self.lines.append(f"vstore_half_rte(v{value}, {where}, data{data});")
        else:
            self.lines.append(f"{self._place(data, u.arg)} = {self._stored(value)};")

    def _place(self, data: int, offset: Expr) -> str:
        """Where a value is stored, which is several elements where a loop takes several at once."""
        if (width := self._at_once()) > 1:
            kind = self._vector(self.code.uops[data].dtype, width)
            return f"*(__global {kind} *)(data{data} + {_index(offset)})"
        return f"data{data}[{_index(element(self.code, data, offset))}]"

    def _stored(self, value: int) -> str:
        """What is written there; what is the same for all columns stands in each of them."""
        width, dtype = self._at_once(), self.code.uops[value].dtype
        if width > 1 and value not in self.vectors:
            return f"({register(dtype)}{width})v{value}"
        return f"v{value}"

    def _at_once(self) -> int:
        """Columns or terms that the loop which is open takes at once."""
        return self.columns.get(self.opened[-1][0], 1) if self.opened else 1

    def _vector(self, dtype: DType | None, width: int) -> str:
        """The type of so many neighbours in memory, wherever they begin."""
        return f"unaligned_{register(dtype)}{width}"

    def _add(self, i: int, u: UOp) -> None:
        data, value = u.src[:2]
        self.lines.append(f"{self._place(data, u.arg)} += {self._stored(value)};")

    def _prefetch(self, i: int, u: UOp) -> None:
        offset, written = u.arg
        self.lines.append(f"fetch_early(data{u.src[0]} + {_index(offset)}, {int(written)});")

    def _barrier(self, i: int, u: UOp) -> None:
        self.lines.append("barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);")

    def _alu(self, i: int, u: UOp) -> None:
        if i in self.terms:
            return
        args = [self._operand(s) for s in u.src]
        assert u.dtype is not None
        if i in self.vectors and u.arg in (Op.WHERE, Op.MAX):
            numbers = range(int(u.arg is Op.WHERE), len(args))
            for s in (s for s in numbers if u.src[s] not in self.vectors):
                args[s] = f"({register(u.dtype)}{self.vectors[i]}){args[s]}"
        if i in self.vectors and u.arg is Op.CAST:
            self._declare(i, u, f"to_{register(u.dtype)}{self.vectors[i]}({args[0]})")
            return
        last = self.code.uops[u.src[-1]]
        assert last.dtype is not None
        if (kept := self._kept_below(u)) is not None:
            value, limit = f"v{kept[0]}", literal(kept[1], u.dtype)
            if i in self.vectors:
                limit = f"({register(u.dtype)}{self.vectors[i]}){limit}"
            self._declare(i, u, not_above(value, limit))
        elif u.arg is Op.MAX and last.op is U.CONST and last.arg == last.arg:
            self._declare(i, u, not_below(*args))
        elif self.lanes == "group" and subtracts_products(self.code, u):
            self._declare(i, u, f"difference_of_products({', '.join(args)})")
        else:
            vector = i in self.vectors
            self._declare(i, u, operation(u.arg, args, last.dtype, u.dtype, vector))

    def _kept_below(self, u: UOp) -> tuple[int, float] | None:
        """The value and the number of which this is the smaller, as it is written without MIN."""
        uops = self.code.uops
        if u.arg is not Op.NEG or u.dtype is not f32:
            return None
        larger = uops[u.src[0]]
        if (larger.op, larger.arg) != (U.ALU, Op.MAX):
            return None
        turned, limit = (uops[s] for s in larger.src)
        number = limit.op is U.CONST and limit.arg == limit.arg
        return (turned.src[0], -limit.arg) if number and turned.arg is Op.NEG else None

    def _operand(self, i: int) -> str:
        """A value, or the product that a sum is to be rounded with at once."""
        if i not in self.terms:
            return f"v{i}"
        return "({} * {})".format(*(f"v{s}" for s in self.code.uops[i].src))

    def _acc(self, i: int, u: UOp) -> None:
        count, start = u.arg
        assert u.dtype is not None
        if i in self.sums | self.outputs:
            parts = count // self.vector
            self.lines.append(f"float{self.vector} v{i}[{parts}];")
            self.lines += [f"v{i}[{n}] = 0.f;" for n in range(parts)]
        if i in self.outputs:
            return
        if i in self.sums:
            self.lines += [f"float8 v{i}_by_8 = 0.f;"] if self.vector > NARROW else []
            self.lines.append(f"float v{i}_by_1 = 0.f;")
            return
        self.lines.append(f"{register(u.dtype)} v{i}[{count}];")
        if start is not None:
            value = literal(start, u.dtype)
            self.lines.append(f"for (int a = 0; a < {count}; ++a) v{i}[a] = {value};")

    def _accumulate(self, i: int, u: UOp) -> None:
        (acc, term), (op, lane) = u.src, u.arg
        cell = f"v{acc}[{_index(lane)}]"
        if acc in self.outputs:
            cell = f"v{acc}[{_index(lane)} / {self.vector}]"
        elif acc in self.sums:
            width = self._at_once()
            whole = width == self.vector
            cell = f"v{acc}[{_index(lane)} / {width}]" if whole else f"v{acc}_by_{width}"
        dtype = self.code.uops[acc].dtype
        self.lines.append(f"{cell} = {join(op, cell, self._operand(term), dtype)};")

    def _keep(self, i: int, u: UOp) -> None:
        self.lines.append(f"v{u.src[0]}[{_index(u.arg)}] = v{u.src[1]};")

    def _combine(self, i: int, u: UOp) -> None:
        acc = u.src[0]
        count = self.code.uops[acc].arg[0]
        assert u.dtype is not None
        if acc in self.sums:
            self._total(i, acc, count // self.vector)
            return
        joined = join(u.arg, f"v{i}", f"v{acc}[a]", u.dtype)
        self.lines.append(f"{register(u.dtype)} v{i} = v{acc}[0];")
        self.lines.append(f"for (int a = 1; a < {count}; ++a) v{i} = {joined};")

    def _total(self, i: int, acc: int, parts: int) -> None:
        """The sum of accumulators that are vectors, half of them added to the other half."""
        eights = range(parts * self.vector // NARROW)
        terms = [f"((const float8 *)v{acc})[{n}]" for n in eights]
        terms += [f"v{acc}_by_8"] if self.vector > NARROW else []
        for width in (8, 4, 2):
            self.lines.append(f"const float{width} v{i}_of_{width} = {' + '.join(terms)};")
            terms = [f"v{i}_of_{width}.lo", f"v{i}_of_{width}.hi"]
        self.lines.append(f"const float v{i} = {' + '.join(terms)} + v{acc}_by_1;")

    def _lane(self, i: int, u: UOp) -> None:
        own = self.lanes == "group" and self.code.uops[u.src[0]].op is U.COLUMNS
        array = f"((const float *)v{u.src[0]})" if u.src[0] in self.outputs else f"v{u.src[0]}"
        self._declare(i, u, f"{array}[{'0' if own else _index(u.arg)}]")

    def _group(self, i: int, u: UOp) -> None:
        op, results = u.arg
        name = "sum" if op is Op.SUM else "max"
        assert u.dtype is not None
        kind, sizes = register(u.dtype), f"{self.code.local_size}, {results}"
        self._declare(i, u, f"group_{name}_{kind}(scratch_{kind}, v{u.src[0]}, {sizes})")
