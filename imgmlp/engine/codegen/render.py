"""Code generation: UOps become OpenCL C 1.2.

In: the Codes of a step, and the Target. Out: one source, and the name of each kernel's function.

Only this folder writes OpenCL C. What UOps cannot express is written by hand in kernels/*.cl and
called from here. Vectors come from the driver's compiler, which vectorises innermost loops, from
the building blocks of products, and from register_vectors.py and sum_vectors.py. The same step must
always give the same source, by which drivers and program caches know it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from imgmlp.engine.codegen.c_syntax import (
    PERSISTENT_PARAMETERS,
    combine,
    larger_of,
    literal,
    local_declarations,
    open_phase,
    open_phase_loop,
    operation_text,
    register_type,
    smaller_of,
)
from imgmlp.engine.codegen.matmul_calls import ProductCalls
from imgmlp.engine.codegen.matrix_units import (
    element_index,
    local_buffer_declarations,
    slice_declarations,
)
from imgmlp.engine.codegen.register_vectors import (
    is_difference_of_products,
    is_scattered_loop,
    loops_around_register_products,
    memory_stride,
    products_fused_into_sums,
    vectorise_columns,
)
from imgmlp.engine.codegen.sum_vectors import EVERY_OTHER, vectorise_outputs, vectorise_sums
from imgmlp.engine.codegen.vector_access import VectorAccess
from imgmlp.engine.ir.dtype import DType, bool_, f16, f32
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.symbolic import ONE, Const, Expr, Var
from imgmlp.engine.ir.target import (
    FACTOR_DTYPES,
    GPU_TILE_SIDE,
    LANES_PER_GROUP,
    MIN_VECTOR_WIDTH,
    Target,
)
from imgmlp.engine.ir.uops import Code, Range, U, UOp

# UOps of loops that a driver's compiler can vectorise.
VECTORISABLE_UOPS = {U.CONST, U.INDEX, U.DEFINE, U.LOAD, U.ALU, U.STORE, U.SET, U.GET}
PARAMETER_UOPS = {U.GLOBAL, U.LOCAL_BUFFER, U.LOCAL_ARRAY}  # declared at the beginning of a kernel
PRODUCT_UOPS = {U.PRODUCT, U.TILE, U.SHARE_TILE, U.PANEL, U.COLUMN_SUMS}


def size_definitions(target: Target) -> str:
    """Definitions of the sizes that building blocks depend on."""
    sizes = {
        "VECTOR": target.vector_pair_width,  # columns of a tile on a CPU: two vectors
        "NARROW": target.vector_width,  # elements of a vector; columns of a narrow tile on a GPU
        "TILE": GPU_TILE_SIDE,  # columns of a tile on a GPU
        "LANES": LANES_PER_GROUP,
    }
    factor = FACTOR_DTYPES.get(target.product_mode)
    if factor is not None:
        sizes["FACTOR_BYTES"] = factor.itemsize
    return "".join(f"#define {name} {size}\n" for name, size in sizes.items())


@cache
def building_block(name: str) -> str:
    """The text of kernels/`name`.cl."""
    return resources.files("imgmlp.kernels").joinpath(f"{name}.cl").read_text("utf-8")


def render(codes: Sequence[Code], target: Target) -> tuple[str, list[str]]:
    """One source with all kernels, and the name of each kernel's function.

    Kernels that differ only in their Buffers share a function: layers repeat, and PoCL 3 keeps 128
    functions loaded, and loads any other one again at every launch, which takes 50 us.
    """
    used = {u.op for c in codes for u in c.uops}
    has_products = U.PRODUCT in used
    has_halves = any(u.op is U.ALU and u.dtype is f16 for c in codes for u in c.uops)
    product = (
        "product_matrix" if target.product_mode in FACTOR_DTYPES else f"product_{target.lanes}"
    )
    needed = {
        "scalar": True,
        "vectors": target.lanes == "one",
        "half": has_halves,
        "reduce": U.GROUP_REDUCE in used,
        "factor": has_products and target.lanes == "group",
        product: has_products,
        "persistent": any(c.phase_units for c in codes),
    }
    blocks = (building_block(name) for name, is_needed in needed.items() if is_needed)
    heads = [size_definitions(target), *blocks]
    functions: dict[tuple[str, str], str] = {}  # text around the name -> name
    writers = [_KernelWriter(c, target) for c in codes]
    names = [functions.setdefault(w.parts(), f"imgmlp_{w.code.name}") for w in writers]
    texts = (f"{before}{name}{after}" for (before, after), name in functions.items())
    return "\n".join([*heads, *texts]), names


def _c_index(expr: Expr) -> str:
    return expr.render("/")


class _KernelWriter:
    """Writes the text of one kernel, by a method for each kind of UOp. UOps are known by number."""

    def __init__(self, code: Code, target: Target) -> None:
        self.code, self.lanes = code, target.lanes
        self.vector, self.wide = target.vector_width, target.vector_pair_width
        # The dtype of factors in local memory for matrix units; None without matrix units.
        self.matrix_unit_dtype = FACTOR_DTYPES.get(target.product_mode)
        self.lines: list[str] = []
        # RANGEs that take several elements at once, and values that are vectors; with the widths.
        self.loop_widths, self.vector_widths = vectorise_columns(code)
        self.sum_accumulators: set[int] = set()  # ACCs that are vectors of terms
        self.output_accumulators: set[int] = set()  # ACCs that are vectors of outputs
        if self.lanes == "one":
            self.sum_accumulators, loops, values = vectorise_sums(code, self.vector)
            self.loop_widths, self.vector_widths = (
                self.loop_widths | loops,
                self.vector_widths | values,
            )
            self.output_accumulators, loops, values = vectorise_outputs(code, self.vector)
            self.loop_widths, self.vector_widths = (
                self.loop_widths | loops,
                self.vector_widths | values,
            )
        self.long_counters = loops_around_register_products(code)  # RANGEs that count in 64 bits
        self.fused_products = products_fused_into_sums(code) if self.lanes == "one" else set()
        self.products = ProductCalls(code, target, self.vector_widths)
        self.open_loops: list[tuple[int, int]] = []  # RANGEs, and the line where each body begins
        self.group = "get_group_id(0)"  # the running group, or in a phase the one that a unit runs
        self.groups: str | None = None  # number of groups that share a kernel; None: all of them
        self.vector_access: VectorAccess | None = None  # of the innermost open loop

    def parts(self) -> tuple[str, str]:
        """The text before and after the kernel's name."""
        parameters = list(PERSISTENT_PARAMETERS) if self.code.phase_units else []
        for i, u in enumerate(self.code.uops):
            if u.op is U.GLOBAL:
                parameters.append((self.code.buffers.index(u.arg[0]), self._parameter(i, u)))
        signature = ", ".join(p for _, p in sorted(parameters))
        local = self.code.local_size
        self._locals()
        if self.code.phase_units:
            self.lines += open_phase_loop(self.code.phase_units)
        for i, u in enumerate(self.code.uops):
            self._write(i, u)
        if self.code.phase_units:
            self.lines.append("}")
        head = f"__kernel __attribute__((reqd_work_group_size({local}, 1, 1)))\nvoid "
        body = "\n".join("  " + line for line in self.lines)
        return head, f"({signature}) {{\n{body}\n}}\n"

    def _write(self, i: int, u: UOp) -> None:
        """Write a UOp by the method here, or in `ProductCalls`, that has its name."""
        name = u.op.name.lower()
        if u.op is U.ELEMENT:
            self._declare(i, u, self.products.element(i, u))
        elif u.op in PRODUCT_UOPS:
            self.lines += getattr(self.products, name)(i, u)
        elif u.op not in PARAMETER_UOPS:
            getattr(self, f"_{name}")(i, u)

    def _locals(self) -> None:
        """Declare local memory, which is allowed only at the beginning of a kernel."""
        if self.lanes == "one":
            return
        products = any(u.op is U.PRODUCT for u in self.code.uops)
        if products and not self.matrix_unit_dtype:
            self.lines.append("__local float workspace[TILE_FLOATS] __attribute__((aligned(16)));")
        self.lines += [
            *local_buffer_declarations(self.code),
            *(
                slice_declarations(self.code, self.matrix_unit_dtype)
                if self.matrix_unit_dtype
                else ()
            ),
        ]
        self.lines += local_declarations(self.code)

    def _parameter(self, i: int, u: UOp) -> str:
        storage, written = u.arg
        constant = "" if written else "const "
        return f"__global {constant}{storage.dtype.cl} *restrict data{i}"

    def _declare(self, i: int, u: UOp, value: str) -> None:
        assert u.dtype is not None
        kind = register_type(u.dtype)
        if i in self.vector_widths:
            kind = f"{'int' if u.dtype is bool_ else kind}{self.vector_widths[i]}"
        self.lines.append(f"const {kind} v{i} = {value};")

    # --- a method for each UOp ---

    def _range(self, i: int, u: UOp) -> None:
        loop: Range = u.arg
        if loop.kind == "phase":
            self._phase(i, loop)
            return
        opening = self._loop_opening(i, loop)
        if self.lanes == "group":
            self.vector_access = VectorAccess.of(self.code, i)
        self._loop_pragma(i, loop)
        if i not in self.loop_widths and not self._has_vector_columns(i):
            self.lines.append(opening)
        self.open_loops.append((i, len(self.lines)))

    def _loop_opening(self, i: int, loop: Range) -> str:
        """The line that opens a loop, or what stands for one."""
        n, name = loop.count, loop.name
        limit = f" && {name} < {_c_index(loop.limit)}" if loop.limit is not None else ""
        stride, loop_over = self.code.local_size, f"for (int {name}"
        # A loop that each lane enters once at most is no loop to NVIDIA's compiler if it ends by
        # assignment. PoCL's compiler gets that wrong.
        runs_once = n <= stride and self.matrix_unit_dtype
        step = f"= {n}" if runs_once else f"+= {stride}"
        lane = f"{loop_over} = get_local_id(0); {name} < {n}{limit}; {name} {step}) {{"
        if n == stride and not limit:
            lane = f"{{ const int {name} = get_local_id(0);"
        group, item, share = self.group, "get_global_id(0)", f"share_{{}}({n})"
        if loop.kind == "member":
            self.groups = "groups"
        elif self.groups:
            group = "group" if self.groups == "groups" else group
            item = f"{group} * {stride} + get_local_id(0)"
            share = f"group_{{}}({n}, {group}, {self.groups})"
        begin, end = share.format("begin"), share.format("end")
        counter = "long" if i in self.long_counters else "int"
        return {
            "member": self._member(loop, group),
            "share": f"for ({counter} {name} = {begin}; {name} < {end}; ++{name}) {{",
            "item": f"const int {name} = {item}; if ({name} < {n}) {{",
            "group": f"{{ const int {name} = {group};",
            "lane": lane,
        }.get(loop.kind, f"for ({counter} {name} = 0; {name} < {n}{limit}; ++{name}) {{")

    def _loop_pragma(self, i: int, loop: Range) -> None:
        """Tell the driver's compiler how to unroll or vectorise a loop."""
        is_short = loop.count <= self.wide and (self.lanes == "group" or self._accumulates(i))
        if loop.kind == "vector" and loop.limit is None and is_short and i not in self.loop_widths:
            self.lines.append("#pragma unroll")  # so that accumulators stay in registers
        if self.lanes == "one" and is_scattered_loop(self.code, i):
            # Gathering vectors element by element takes half a second to compile and gains nothing.
            self.lines.append("#pragma clang loop vectorize(disable) interleave(disable)")
        elif self.vector > MIN_VECTOR_WIDTH and loop.count >= self.vector and self._only_stores(i):
            # LLVM prefers vectors of 8 for most processors that have vectors of 16.
            self.lines.append(f"#pragma clang loop vectorize_width({self.vector})")

    def _phase(self, i: int, loop: Range) -> None:
        """Open the loop over those work-groups of a phase that one unit runs."""
        self.lines += open_phase(loop, self.code.phase_units)
        self.open_loops.append((i, len(self.lines)))
        self.group, self.groups = "unit", "units"

    def _member(self, loop: Range, group: str) -> str:
        """The condition for the groups of a Fused launch that run a member."""
        end = loop.first + loop.count
        own = f"const int group = {group} - {loop.first}, groups = {loop.count};"
        return f"if ({group} >= {loop.first} && {group} < {end}) {{ {own}"

    def _accumulates(self, i: int) -> bool:
        """Whether the innermost loop of a RANGE accumulates, and reads unconditionally.

        Unrolled loops with conditional reads take seconds to compile, and are not vectorised.
        """
        uops = self.code.uops
        end = next(j for j in range(i, len(uops)) if uops[j].op is U.END)
        masked = any(u.op is U.LOAD and u.arg[1] is not ONE for u in uops[i:end])
        return not masked and any(u.op is U.ACCUMULATE for u in uops[i:end])

    def _only_stores(self, i: int) -> bool:
        """Whether an innermost loop has no sums, whose order a vectorised loop might change."""
        uops = self.code.uops
        if uops[i].arg.kind not in ("loop", "share"):
            return False
        end = next(j for j in range(i + 1, len(uops)) if uops[j].op in (U.END, U.RANGE))
        return uops[end].op is U.END and {u.op for u in uops[i + 1 : end]} <= VECTORISABLE_UOPS

    def _has_vector_columns(self, i: int) -> bool:
        """Whether a RANGE is over the rows of a tile whose columns are vectors."""
        if self.code.uops[i].arg.kind != "row":
            return False
        inner = (j for j in range(i + 1, len(self.code.uops)) if self.code.uops[j].op is U.RANGE)
        return next(inner, -1) in self.loop_widths

    def _guard(self, i: int, u: UOp) -> None:
        self.lines.append(f"if ({'!' if u.arg else ''}v{u.src[0]}) return;")

    def _end(self, i: int, u: UOp) -> None:
        begin, first = self.open_loops.pop()
        if self.vector_access is not None:
            first -= 2  # before the `#pragma unroll` and the loop
            self.lines[first:first] = self.vector_access.declared
            self.lines += ["}", *self.vector_access.stores]
            self.vector_access = None
        elif begin in self.loop_widths or self._has_vector_columns(begin):
            self.lines[first:] = self._unrolled(begin, self.lines[first:])
        else:
            self.lines.append("}")

    def _unrolled(self, begin: int, body: list[str]) -> list[str]:
        """An unrolled loop over the vectors of a row, or over rows: so values stay in registers."""
        loop: Range = self.code.uops[begin].arg
        if begin in self.loop_widths:
            places = range(0, loop.count, self.loop_widths[begin])
            return [s for n in places for s in (f"{{ const int {loop.name} = {n};", *body, "}")]
        guard = "" if loop.limit is None else f"if ({loop.name} < {_c_index(loop.limit)}) "
        macro = [f"#define ROW{begin}({loop.name}, ...) {guard}{{", *body, "}"]
        return [*" \\\n".join(macro).split("\n"), f"REPEAT({loop.count}, ROW{begin}, )"]

    def _const(self, i: int, u: UOp) -> None:
        assert u.dtype is not None
        self._declare(i, u, literal(u.arg, u.dtype))

    def _index(self, i: int, u: UOp) -> None:
        self._declare(i, u, _c_index(u.arg))

    def _define(self, i: int, u: UOp) -> None:
        self.lines.append(f"const int {u.arg} = (int)v{u.src[0]};")

    def _load(self, i: int, u: UOp) -> None:
        offset, valid = u.arg
        data = f"data{u.src[0]}"
        where = _c_index(element_index(self.code, u.src[0], offset))
        half = self.code.uops[u.src[0]].dtype is f16
        value = f"vload_half({where}, {data})" if half else f"{data}[{where}]"
        if self.vector_access is not None:
            value = self.vector_access.load(u.src[0], offset, valid != Const(1)) or value
        if i in self.vector_widths:
            value = self._vector_load(i, u, f"{data} + {where}")
        if valid != Const(1):
            value = f"({_c_index(valid)}) ? {value} : ({register_type(u.dtype)})0"
        self._declare(i, u, value)

    def _vector_load(self, i: int, u: UOp, place: str) -> str:
        """A vector load of neighbours in memory, or of every other element."""
        kind, (begin, _) = self._vector_type(u.dtype, self.vector_widths[i]), self.open_loops[-1]
        loop: Range = self.code.uops[begin].arg
        if memory_stride(u.arg[0], Var(loop.name, 0, loop.count - 1)) == EVERY_OTHER:
            return f"EVERY_OTHER({register_type(u.dtype)}, {self.vector_widths[i]}, {place})"
        return f"*(__global const {kind} *)({place})"

    def _store(self, i: int, u: UOp) -> None:
        data, value = u.src[:2]
        where = _c_index(element_index(self.code, data, u.arg))
        if self.vector_access and (kept := self.vector_access.store(data, u.arg, value)):
            self.lines.append(kept)
        elif self.code.uops[data].dtype is f16:
            self.lines.append(f"vstore_half_rte(v{value}, {where}, data{data});")
        else:
            self.lines.append(f"{self._place(data, u.arg)} = {self._stored(value)};")

    def _place(self, data: int, offset: Expr) -> str:
        """The destination of a store: an element, or a vector in a loop over vectors."""
        if (width := self._loop_width()) > 1:
            kind = self._vector_type(self.code.uops[data].dtype, width)
            return f"*(__global {kind} *)(data{data} + {_c_index(offset)})"
        return f"data{data}[{_c_index(element_index(self.code, data, offset))}]"

    def _stored(self, value: int) -> str:
        """The value to store, as a vector in a loop over vectors."""
        width, dtype = self._loop_width(), self.code.uops[value].dtype
        if width > 1 and value not in self.vector_widths:
            return f"({register_type(dtype)}{width})v{value}"
        return f"v{value}"

    def _loop_width(self) -> int:
        """How many columns or terms the innermost open loop takes at once."""
        return self.loop_widths.get(self.open_loops[-1][0], 1) if self.open_loops else 1

    def _vector_type(self, dtype: DType | None, width: int) -> str:
        """The type of a vector in memory, which need not be aligned."""
        return f"unaligned_{register_type(dtype)}{width}"

    def _store_add(self, i: int, u: UOp) -> None:
        data, value = u.src[:2]
        self.lines.append(f"{self._place(data, u.arg)} += {self._stored(value)};")

    def _prefetch(self, i: int, u: UOp) -> None:
        offset, written = u.arg
        self.lines.append(f"prefetch_line(data{u.src[0]} + {_c_index(offset)}, {int(written)});")

    def _barrier(self, i: int, u: UOp) -> None:
        self.lines.append("barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);")

    def _alu(self, i: int, u: UOp) -> None:
        if i in self.fused_products:
            return
        args = [self._operand(s) for s in u.src]
        assert u.dtype is not None
        if i in self.vector_widths and u.arg in (Op.WHERE, Op.MAX):
            numbers = range(int(u.arg is Op.WHERE), len(args))
            for s in (s for s in numbers if u.src[s] not in self.vector_widths):
                args[s] = f"({register_type(u.dtype)}{self.vector_widths[i]}){args[s]}"
        if i in self.vector_widths and u.arg is Op.CAST:
            self._declare(i, u, f"to_{register_type(u.dtype)}{self.vector_widths[i]}({args[0]})")
            return
        last = self.code.uops[u.src[-1]]
        assert last.dtype is not None
        if (kept := self._minimum_with_constant(u)) is not None:
            value, limit = f"v{kept[0]}", literal(kept[1], u.dtype)
            if i in self.vector_widths:
                limit = f"({register_type(u.dtype)}{self.vector_widths[i]}){limit}"
            self._declare(i, u, smaller_of(value, limit))
        elif u.arg is Op.MAX and last.op is U.CONST and last.arg == last.arg:
            self._declare(i, u, larger_of(*args))
        elif self.lanes == "group" and is_difference_of_products(self.code, u):
            self._declare(i, u, f"difference_of_products({', '.join(args)})")
        else:
            vector = i in self.vector_widths
            self._declare(i, u, operation_text(u.arg, args, last.dtype, u.dtype, vector))

    def _minimum_with_constant(self, u: UOp) -> tuple[int, float] | None:
        """(value, number) of a minimum, which Nodes write as -max(-value, -number); else None."""
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
        """A value by name, or a product written out, to become a multiply-add with its sum."""
        if i not in self.fused_products:
            return f"v{i}"
        return "({} * {})".format(*(f"v{s}" for s in self.code.uops[i].src))

    def _acc(self, i: int, u: UOp) -> None:
        count, start = u.arg
        assert u.dtype is not None
        if i in self.sum_accumulators | self.output_accumulators:
            parts = count // self.vector
            self.lines.append(f"float{self.vector} v{i}[{parts}];")
            self.lines += [f"v{i}[{n}] = 0.f;" for n in range(parts)]
        if i in self.output_accumulators:
            return
        if i in self.sum_accumulators:
            self.lines += [f"float8 v{i}_by_8 = 0.f;"] if self.vector > MIN_VECTOR_WIDTH else []
            self.lines.append(f"float v{i}_by_1 = 0.f;")
            return
        self.lines.append(f"{register_type(u.dtype)} v{i}[{count}];")
        if start is not None:
            value = literal(start, u.dtype)
            self.lines.append(f"for (int a = 0; a < {count}; ++a) v{i}[a] = {value};")

    def _accumulate(self, i: int, u: UOp) -> None:
        (acc, term), (op, lane) = u.src, u.arg
        cell = f"v{acc}[{_c_index(lane)}]"
        if acc in self.output_accumulators:
            cell = f"v{acc}[{_c_index(lane)} / {self.vector}]"
        elif acc in self.sum_accumulators:
            width = self._loop_width()
            whole = width == self.vector
            cell = f"v{acc}[{_c_index(lane)} / {width}]" if whole else f"v{acc}_by_{width}"
        dtype = self.code.uops[acc].dtype
        self.lines.append(f"{cell} = {combine(op, cell, self._operand(term), dtype)};")

    def _set(self, i: int, u: UOp) -> None:
        self.lines.append(f"v{u.src[0]}[{_c_index(u.arg)}] = v{u.src[1]};")

    def _combine(self, i: int, u: UOp) -> None:
        acc = u.src[0]
        count = self.code.uops[acc].arg[0]
        assert u.dtype is not None
        if acc in self.sum_accumulators:
            self._vector_sum(i, acc, count // self.vector)
            return
        joined = combine(u.arg, f"v{i}", f"v{acc}[a]", u.dtype)
        self.lines.append(f"{register_type(u.dtype)} v{i} = v{acc}[0];")
        self.lines.append(f"for (int a = 1; a < {count}; ++a) v{i} = {joined};")

    def _vector_sum(self, i: int, acc: int, parts: int) -> None:
        """Write the sum of vector accumulators: halves are added until one element is left."""
        eights = range(parts * self.vector // MIN_VECTOR_WIDTH)
        terms = [f"((const float8 *)v{acc})[{n}]" for n in eights]
        terms += [f"v{acc}_by_8"] if self.vector > MIN_VECTOR_WIDTH else []
        for width in (8, 4, 2):
            self.lines.append(f"const float{width} v{i}_of_{width} = {' + '.join(terms)};")
            terms = [f"v{i}_of_{width}.lo", f"v{i}_of_{width}.hi"]
        self.lines.append(f"const float v{i} = {' + '.join(terms)} + v{acc}_by_1;")

    def _get(self, i: int, u: UOp) -> None:
        own = self.lanes == "group" and self.code.uops[u.src[0]].op is U.COLUMN_SUMS
        array = (
            f"((const float *)v{u.src[0]})"
            if u.src[0] in self.output_accumulators
            else f"v{u.src[0]}"
        )
        self._declare(i, u, f"{array}[{'0' if own else _c_index(u.arg)}]")

    def _group_reduce(self, i: int, u: UOp) -> None:
        op, results = u.arg
        name = "sum" if op is Op.SUM else "max"
        assert u.dtype is not None
        kind, sizes = register_type(u.dtype), f"{self.code.local_size}, {results}"
        self._declare(i, u, f"group_{name}_{kind}(scratch_{kind}, v{u.src[0]}, {sizes})")
