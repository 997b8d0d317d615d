"""Neighbouring elements that a lane of a GPU loads or stores at once.

In an unrolled loop over two or four elements each load becomes one of them all, which the
driver's compiler makes once, and stores are collected until after the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from imgmlp.engine.codegen.matrix_units import element
from imgmlp.engine.ir.dtype import DType, f16, f32
from imgmlp.engine.ir.graph import Buffer
from imgmlp.engine.ir.symbolic import Expr, split
from imgmlp.engine.ir.uops import Code, Range, U

COUNTS = (2, 4)


@dataclass
class Neighbours:
    """One such loop, while it is written."""

    code: Code
    number: int  # of its RANGE
    loop: Range
    declared: list[str] = field(default_factory=list)  # before the loop
    stores: list[str] = field(default_factory=list)  # after it

    @staticmethod
    def of(code: Code, number: int) -> Neighbours | None:
        """The loop that begins there, if it is innermost and of elements side by side."""
        loop: Range = code.uops[number].arg
        if loop.kind != "vector" or loop.count not in COUNTS or loop.limit is not None:
            return None
        rest = code.uops[number + 1 :]
        inner = next(u.op for u in rest if u.op in (U.RANGE, U.END))
        return Neighbours(code, number, loop) if inner is U.END else None

    def load(self, data: int, offset: Expr, some: bool = False) -> str | None:
        """This element, out of all that are loaded at once; None if they do not lie so.

        `some` says that others may be missing: then they must not lie behind the last element.
        """
        target, (space, dtype) = self._target(data, offset), self._kind(data)
        if target is None or dtype is None:
            return None
        if some and self._elements(data) % self.loop.count:
            return None
        count, words = self.loop.count, self.loop.count // (2 if dtype is f16 else 1)
        kind = f"{'uint' if dtype is f16 else 'float'}{words if words > 1 else ''}"
        name = "HALF" if dtype is f16 else "FLOAT"
        return f"{name}_OF_{count}(*({space} const {kind} *)({target}), {self.loop.name})"

    def store(self, data: int, offset: Expr, value: int) -> str | None:
        """Keep this element for later; None if they do not lie side by side."""
        target, (space, dtype) = self._target(data, offset), self._kind(data)
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

    def _kind(self, data: int) -> tuple[str, DType | None]:
        """Where it is, and the type of its elements, if several may move at once: float32, and
        halves that matrix units read."""
        u = self.code.uops[data]
        space = "__local" if u.op is U.SCRATCH else "__global"
        return space, u.dtype if u.dtype is f32 or (u.op is U.SCRATCH and u.dtype is f16) else None

    def _elements(self, data: int) -> int:
        """How many there are in a GLOBAL or a SCRATCH."""
        u = self.code.uops[data]
        storage: Buffer = u.arg if u.op is U.SCRATCH else u.arg[0]
        return storage.size

    def _target(self, data: int, offset: Expr) -> str | None:
        """Where the first of them lies, if that is on a multiple of their count."""
        name, count = self.loop.name, self.loop.count
        constant, terms = split(offset)
        own = [t for t, n in terms if n == 1 and [v.name for v in t.variables()] == [name]]
        others = [n for t, n in terms if t not in own]
        inside = any(v.name == name for t, _ in terms if t not in own for v in t.variables())
        if len(own) != 1 or own[0].variables() != (own[0],) or inside:
            return None
        if any(n % count for n in (constant, *others)):
            return None
        return f"data{data} + {element(self.code, data, offset - own[0]).render('/')}"
