"""Conditions as expressions that are 0 or 1, and exclusive or: what has no arithmetic form.

They are in simplest form too: a comparison is `x < n` with all constants in `n`, a conjunction
names each limit once, and nothing is xored with its own complement.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, Literal, TypeGuard

from imgmlp.engine.ir.symbolic import (
    ONE,
    ZERO,
    Const,
    Division,
    Expr,
    Sum,
    as_expr,
    linear,
    only_quotient,
    split,
)

Operator = Literal["^", "<", "&"]


class Logic(Expr):
    """An operation on one source x or on several, and a constant n.

    `<`: 1 where x, which has no constant of its own, is less than n, else 0. `&`: 1 where two or
    more conditions are all 1. `^`: exclusive or of distinct sources and n >= 0.
    """

    __slots__ = ("n", "op")
    n: int
    op: Operator

    def __init__(self, op: Operator, n: int, *sources: Expr) -> None:
        lo, hi = 0, 1
        if op == "^":
            bits = max(n, *(max(x.hi, ~x.lo) for x in sources)).bit_length()
            lo = -(1 << bits) if any(x.lo < 0 for x in sources) else 0
            hi = (1 << bits) - 1
        self._set({"^": 5, "<": 6, "&": 7}[op], lo, hi, sources, n=n, op=op)

    @property
    def x(self) -> Expr:
        return self.sources[0]

    def apply(self, *sources: Any) -> Any:
        symbolic = any(isinstance(s, Expr) for s in sources)
        if self.op == "<":
            (x,) = sources
            return less(x, self.n) if symbolic else (x < self.n) * 1
        if self.op == "&":
            return conj(*sources) if symbolic else reduce(operator.and_, sources)
        join: Callable[[Any, Any], Any] = xor if symbolic else operator.xor
        return reduce(join, sources, Const(self.n) if symbolic else self.n)

    def render(self, division: Division = "//") -> str:
        if self.op == "<" and isinstance(self.x, Sum) and max(self.x.coefficients) < 0:
            return f"({(-self.x).render(division)}>={1 - self.n})"
        parts = [x.render(division) for x in self.sources]
        alone = self.op == "&" or (self.op == "^" and self.n == 0)
        return f"({self.op.join(parts if alone else [*parts, str(self.n)])})"


def is_op(x: Expr, op: Operator) -> TypeGuard[Logic]:
    """Whether an expression is this operation."""
    return isinstance(x, Logic) and x.op == op


def less(x: Expr, n: int) -> Expr:
    """1 where x < n, else 0."""
    n = operator.index(n)
    constant, terms = split(x)
    if not terms:
        return Const(int(constant < n))
    g = math.gcd(*(c for _, c in terms))
    x, n = linear(0, [(t, c // g) for t, c in terms]), -((constant - n) // g)
    if x.hi < n:
        return ONE
    if x.lo >= n:
        return ZERO
    if (inner := only_quotient(x, 1)) is not None:  # y//d + z < n where y + d*z < d*n
        return less(inner.x + (x - inner) * inner.n, n * inner.n)
    if (inner := only_quotient(x, -1)) is not None:  # z - y//d <= n-1 where d*z - y <= d*(n-1)
        return less((x + inner) * inner.n - inner.x, (n - 1) * inner.n + 1)
    return Logic("<", n, x)


def at_least(x: Expr, n: int) -> Expr:
    """1 where x >= n, else 0."""
    return less(-x, 1 - operator.index(n))


def conj(*conditions: Expr) -> Expr:
    """1 where all conditions are 1, else 0; each has bounds within [0, 1]."""
    limits: dict[Expr, int] = {}
    others: set[Expr] = set()
    for condition in conditions:
        if condition.lo < 0 or condition.hi > 1:
            raise ValueError(f"conj: {condition!r} is no condition, which is 0 or 1")
        for part in condition.sources if is_op(condition, "&") else (condition,):
            if part is ZERO:
                return ZERO
            if is_op(part, "<"):
                limits[part.x] = min(part.n, limits.get(part.x, part.n))
            elif part is not ONE:
                others.add(part)
    for x, n in limits.items():
        if -x in limits and n + limits[-x] <= 1:  # x <= n-1 and x >= 1-m leave nothing
            return ZERO
    limiting = (Logic("<", n, x) for x, n in limits.items())
    parts = sorted([*others, *limiting], key=lambda e: e.key)
    return Logic("&", 0, *parts) if len(parts) > 1 else parts[0] if parts else ONE


def xor(a: Expr, b: Expr | int) -> Expr:
    """Exclusive or of two expressions, in two's complement."""
    (constant, ours), (other, theirs) = _xor_parts(a), _xor_parts(as_expr(b))
    constant ^= other
    operands = sorted(ours ^ theirs, key=lambda e: e.key)
    flipped = constant < 0  # kept outside as -x-1, which sums and bounds understand
    positive = ~constant if flipped else constant
    if not operands:
        return Const(constant)
    x = operands[0] if len(operands) == 1 and not positive else Logic("^", positive, *operands)
    return -x - 1 if flipped else x


def _xor_parts(x: Expr) -> tuple[int, frozenset[Expr]]:
    """x as a constant and operands, none of which is the complement of another's."""
    if x.lo == x.hi:  # a variable of one value, too
        return x.lo, frozenset()
    if is_op(x, "^"):
        return x.n, frozenset(x.sources)
    if split(x)[0] < 0:  # one of x and ~x = -x-1 has a constant >= 0
        constant, operands = _xor_parts(-x - 1)
        return ~constant, operands
    return 0, frozenset((x,))
