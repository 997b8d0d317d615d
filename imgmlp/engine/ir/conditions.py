"""Conditions, which are expressions with the value 0 or 1, and exclusive or.

They are simplified when they are built, too: a comparison is `x < n` with all constants in `n`, a
conjunction has each limit once, and no operand of an exclusive or is another's complement.
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
    linear_parts,
    single_quotient,
)

Operator = Literal["^", "<", "&"]


class Logic(Expr):
    """A comparison, a conjunction, or an exclusive or, with a constant n.

    - `<`: 1 where the only source is less than n, else 0. The source has no constant term.
    - `&`: 1 where all sources, which are two or more conditions, are 1, else 0.
    - `^`: exclusive or of distinct sources and n >= 0.
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
        self._initialise({"^": 5, "<": 6, "&": 7}[op], lo, hi, sources, n=n, op=op)

    @property
    def x(self) -> Expr:
        return self.sources[0]

    def apply(self, *sources: Any) -> Any:
        symbolic = any(isinstance(s, Expr) for s in sources)
        if self.op == "<":
            (x,) = sources
            return less(x, self.n) if symbolic else (x < self.n) * 1
        if self.op == "&":
            return all_of(*sources) if symbolic else reduce(operator.and_, sources)
        join: Callable[[Any, Any], Any] = xor if symbolic else operator.xor
        return reduce(join, sources, Const(self.n) if symbolic else self.n)

    def render(self, division: Division = "//") -> str:
        if self.op == "<" and isinstance(self.x, Sum) and max(self.x.coefficients) < 0:
            return f"({(-self.x).render(division)}>={1 - self.n})"
        parts = [x.render(division) for x in self.sources]
        alone = self.op == "&" or (self.op == "^" and self.n == 0)
        return f"({self.op.join(parts if alone else [*parts, str(self.n)])})"


def is_logic(x: Expr, op: Operator) -> TypeGuard[Logic]:
    """Whether an expression is a Logic with this operation."""
    return isinstance(x, Logic) and x.op == op


def less(x: Expr, n: int) -> Expr:
    """1 where x < n, else 0."""
    n = operator.index(n)
    constant, terms = linear_parts(x)
    if not terms:
        return Const(int(constant < n))
    g = math.gcd(*(c for _, c in terms))
    x, n = linear(0, [(t, c // g) for t, c in terms]), -((constant - n) // g)
    if x.hi < n:
        return ONE
    if x.lo >= n:
        return ZERO
    if (inner := single_quotient(x, 1)) is not None:  # y//d + z < n where y + d*z < d*n
        return less(inner.x + (x - inner) * inner.n, n * inner.n)
    if (inner := single_quotient(x, -1)) is not None:  # z - y//d <= n-1 where d*z - y <= d*(n-1)
        return less((x + inner) * inner.n - inner.x, (n - 1) * inner.n + 1)
    return Logic("<", n, x)


def at_least(x: Expr, n: int) -> Expr:
    """1 where x >= n, else 0."""
    return less(-x, 1 - operator.index(n))


def all_of(*conditions: Expr) -> Expr:
    """1 where all conditions are 1, else 0."""
    limits: dict[Expr, int] = {}
    others: set[Expr] = set()
    for condition in conditions:
        if condition.lo < 0 or condition.hi > 1:
            raise ValueError(f"all_of: {condition!r} is no condition, which is 0 or 1")
        for part in condition.sources if is_logic(condition, "&") else (condition,):
            if part is ZERO:
                return ZERO
            if is_logic(part, "<"):
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
    flipped = constant < 0  # then the result is the complement -x-1, a sum
    positive = ~constant if flipped else constant
    if not operands:
        return Const(constant)
    x = operands[0] if len(operands) == 1 and not positive else Logic("^", positive, *operands)
    return -x - 1 if flipped else x


def _xor_parts(x: Expr) -> tuple[int, frozenset[Expr]]:
    """x as the exclusive or of a constant and operands, none of which is another's complement."""
    if x.lo == x.hi:  # a constant, or a variable with a single value
        return x.lo, frozenset()
    if is_logic(x, "^"):
        return x.n, frozenset(x.sources)
    if linear_parts(x)[0] < 0:  # of x and its complement -x-1, the one with a constant >= 0 is used
        constant, operands = _xor_parts(-x - 1)
        return ~constant, operands
    return 0, frozenset((x,))
