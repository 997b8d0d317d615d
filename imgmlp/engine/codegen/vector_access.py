"""Vectorised memory access on a GPU: a lane loads or stores two or four neighbours at once.

In an unrolled loop over two or four elements, each load is written as a vector load of all of them,
which the driver's compiler does only once. Stores are collected and written after the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from imgmlp.engine.codegen.matrix_units import element_index
from imgmlp.engine.ir.dtype import DType, f16, f32
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.symbolic import Expr, linear_parts
from imgmlp.engine.ir.uops import Code, Range, U

VECTOR_LENGTHS = (2, 4)


@dataclass
class VectorAccess:
    """A loop over neighbours while its text is written."""

    code: Code
    number: int  # of its RANGE
    loop: Range
    declared: list[str] = field(default_factory=list)  # before the loop
    stores: list[str] = field(default_factory=list)  # after it

    @staticmethod
    def of(code: Code, number: int) -> VectorAccess | None:
        """The loop of a RANGE, if it is an innermost loop over two or four neighbours; or None."""
        loop: Range = code.uops[number].arg
        if loop.kind != "vector" or loop.count not in VECTOR_LENGTHS or loop.limit is not None:
            return None
        rest = code.uops[number + 1 :]
        inner = next(u.op for u in rest if u.op in (U.RANGE, U.END))
        return VectorAccess(code, number, loop) if inner is U.END else None

    def load(self, data: int, offset: Expr, is_masked: bool = False) -> str | None:
        """The expression for one element of a vector load; None if there can be no such load.

        `is_masked` says that only some of the elements may be wanted. Then all of them must still
        lie within the Buffer.
        """
        target, (space, dtype) = self._aligned_address(data, offset), self._memory(data)
        if target is None or dtype is None:
            return None
        if is_masked and self._elements(data) % self.loop.count:
            return None
        count, words = self.loop.count, self.loop.count // (2 if dtype is f16 else 1)
        kind = f"{'uint' if dtype is f16 else 'float'}{words if words > 1 else ''}"
        name = "HALF" if dtype is f16 else "FLOAT"
        return f"{name}_OF_{count}(*({space} const {kind} *)({target}), {self.loop.name})"

    def store(self, data: int, offset: Expr, value: int) -> str | None:
        """The statement that keeps an element for a vector store; None if there can be none."""
        target, (space, dtype) = self._aligned_address(data, offset), self._memory(data)
        if target is None or dtype is None:
            return None
        count, name = self.loop.count, f"side{self.number}_{len(self.stores)}"
        self.declared.append(f"float {name}[{count}];")
        sides = ", ".join(f"{name}[{n}]" for n in range(count))
        if dtype is f32:
            self.stores.append(f"*({space} float{count} *)({target}) = (float{count})({sides});")
        else:
            kind = "uint" if count == 2 else "uint2"
            self.stores.append(f"*({space} {kind} *)({target}) = halves_{count}({sides});")
        return f"{name}[{self.loop.name}] = v{value};"

    def _memory(self, data: int) -> tuple[str, DType | None]:
        """The address space of a parameter, and its dtype if vectors of it can be loaded: float32,
        or half in local memory."""
        u = self.code.uops[data]
        space = "__local" if u.op is U.LOCAL_BUFFER else "__global"
        return space, u.dtype if u.dtype is f32 or (
            u.op is U.LOCAL_BUFFER and u.dtype is f16
        ) else None

    def _elements(self, data: int) -> int:
        """The number of elements of a GLOBAL or a LOCAL_BUFFER."""
        u = self.code.uops[data]
        storage: Buffer = u.arg if u.op is U.LOCAL_BUFFER else u.arg[0]
        return storage.size

    def _aligned_address(self, data: int, offset: Expr) -> str | None:
        """The address of the first neighbour, if it is a multiple of their number; else None."""
        name, count = self.loop.name, self.loop.count
        constant, terms = linear_parts(offset)
        own = [t for t, n in terms if n == 1 and [v.name for v in t.variables()] == [name]]
        others = [n for t, n in terms if t not in own]
        inside = any(v.name == name for t, _ in terms if t not in own for v in t.variables())
        if len(own) != 1 or own[0].variables() != (own[0],) or inside:
            return None
        if any(n % count for n in (constant, *others)):
            return None
        return f"data{data} + {element_index(self.code, data, offset - own[0]).render('/')}"
