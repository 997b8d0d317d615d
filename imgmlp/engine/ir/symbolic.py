"""Integer expressions over bounded variables: the offset of an element, and whether it exists.

Every expression has inclusive bounds [lo, hi] and is simplified when it is built; there is no
separate pass. Equal expressions are one object, so `is` compares them and hashing costs nothing.
Canonical forms:

- A sum is flat. It has one constant, and each term once, with an integer coefficient.
- `//` and `%` divide by positive constants and round towards minus infinity. Dividends are never
  negative, so that both mean the same in C.

Comparisons are in conditions.py. Of shapes, this module knows only `row_major_strides` and
`unravel`; of kernels it knows nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeGuard
from weakref import WeakValueDictionary

Value = Any  # an int or an integer ndarray; the operations are written alike
Division = Literal["//", "/"]  # how a quotient is written: in Python, or in C
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1  # the greatest int and long of OpenCL C

_alive: WeakValueDictionary[tuple[Any, ...], Expr] = WeakValueDictionary()


class _Interned(type):
    """Calling a class with the same arguments again gives the same object."""

    def __call__(cls, *args: Any) -> Any:
        key = (cls, *args)
        expression = _alive.get(key)
        if expression is None:
            expression = _alive[key] = super().__call__(*args)
        return expression


class Expr(metaclass=_Interned):
    """An integer expression. Build it from Var and Const with operators, not by other classes."""

    __slots__ = ("__weakref__", "hi", "key", "lo", "sources")

    lo: int
    hi: int
    sources: tuple[Expr, ...]  # the operands
    key: tuple[Any, ...]  # the structure as nested tuples; it orders expressions alike in every run

    def _initialise(
        self, rank: int, lo: int, hi: int, sources: tuple[Expr, ...] = (), **fields: Any
    ) -> None:
        key = (rank, tuple(s.key for s in sources), tuple(fields.values()), lo, hi)
        for name, value in {"lo": lo, "hi": hi, "sources": sources, "key": key, **fields}.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an expression is immutable; cannot set {name}")

    def __add__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            return _add_constant(self, other)
        return linear(0, ((self, 1), (as_expr(other), 1)))

    def __sub__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            return _add_constant(self, -other)
        return linear(0, ((self, 1), (as_expr(other), -1)))

    def __rsub__(self, other: int) -> Expr:
        return _add_constant(_multiply(self, -1), other)

    def __neg__(self) -> Expr:
        return _multiply(self, -1)

    def __mul__(self, other: Expr | int) -> Expr:
        for x, factor in ((self, as_expr(other)), (as_expr(other), self)):
            if isinstance(factor, Const):
                return _multiply(x, factor.value)
        raise TypeError(f"cannot multiply {self} by {other}: one of them must be constant")

    def __floordiv__(self, divisor: int) -> Expr:
        return _divmod(self, _positive(divisor))[0]

    def __mod__(self, divisor: int) -> Expr:
        return _divmod(self, _positive(divisor))[1]

    __radd__, __rmul__ = __add__, __mul__

    def apply(self, *sources: Any) -> Any:
        """The result of the operation for other sources: integers, integer arrays, expressions."""
        return self

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        """The value for values of the variables by name: integers, or arrays that broadcast."""
        return self.apply(*(s.evaluate(env) for s in self.sources))

    def substitute(self, replaced: Mapping[str, Expr | int]) -> Expr:
        """The simplified expression with some variables, by name, replaced by expressions."""
        return as_expr(self.apply(*(s.substitute(replaced) for s in self.sources)))

    def variables(self) -> tuple[Var, ...]:
        """The variables that the expression depends on, in a fixed order."""
        variables = {v for s in self.sources for v in s.variables()}
        return tuple(sorted(variables, key=lambda v: v.key))

    def render(self, division: Division = "//") -> str:
        """The expression as fully parenthesised text: Python, or with division="/" OpenCL C."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        return f"{self} in [{self.lo}, {self.hi}]"


class Const(Expr):
    __slots__ = ("value",)
    value: int

    def __init__(self, value: int) -> None:
        self._initialise(0, value, value, value=value)

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        return self.value

    def render(self, division: Division = "//") -> str:
        return str(self.value)


class Var(Expr):
    """A variable with inclusive bounds; `evaluate` and `substitute` identify it by name."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str, lo: int, hi: int) -> None:
        if lo > hi:
            raise ValueError(f"variable {name}: no integer lies in [{lo}, {hi}]")
        self._initialise(1, operator.index(lo), operator.index(hi), name=name)

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        return env[self.name]

    def substitute(self, replaced: Mapping[str, Expr | int]) -> Expr:
        return as_expr(replaced.get(self.name, self))

    def variables(self) -> tuple[Var, ...]:
        return (self,)

    def render(self, division: Division = "//") -> str:
        return self.name


class Sum(Expr):
    """constant + sum of coefficient * source. Only `linear` and its helpers build it."""

    __slots__ = ("coefficients", "constant")
    coefficients: tuple[int, ...]
    constant: int

    def __init__(self, constant: int, *terms: tuple[Expr, int]) -> None:
        sources, coefficients = zip(*terms, strict=True)
        bounds = _bounds(constant, terms)
        self._initialise(4, *bounds, sources, constant=constant, coefficients=coefficients)

    @property
    def terms(self) -> tuple[tuple[Expr, int], ...]:
        return tuple(zip(self.sources, self.coefficients, strict=True))

    def apply(self, *sources: Any) -> Any:
        products = map(operator.mul, sources, self.coefficients)
        return sum(products, start=self.constant)

    def render(self, division: Division = "//") -> str:
        # In C a product with a long is a long, and so is a sum with one.
        kind = (
            "L"
            if division == "/" and _max_sum_magnitude(self.constant, self.terms) > INT_MAX
            else ""
        )
        texts = ((c, t.render(division)) for t, c in self.terms)
        parts = [
            (c > 0, t if abs(c) == 1 and not kind else f"({t}*{abs(c)}{kind})") for c, t in texts
        ]
        if self.constant:
            # If every term is subtracted, a positive constant comes first: (9-a), not (-a+9).
            place = 0 if self.constant > 0 and not parts[0][0] else len(parts)
            parts.insert(place, (self.constant > 0, str(abs(self.constant))))
        text = "".join(("+" if positive else "-") + part for positive, part in parts)
        text = text.removeprefix("+")
        return text if text == parts[0][1] else f"({text})"


class Quotient(Expr):
    """x `//` n or x `%` n, where x >= 0 and n > 0."""

    __slots__ = ("n", "op")
    n: int
    op: Literal["//", "%"]

    def __init__(self, op: Literal["//", "%"], x: Expr, n: int) -> None:
        bounds, rank = ((x.lo // n, x.hi // n), 2) if op == "//" else ((0, n - 1), 3)
        self._initialise(rank, *bounds, (x,), n=n, op=op)

    @property
    def x(self) -> Expr:
        return self.sources[0]

    def apply(self, *sources: Any) -> Any:
        (x,) = sources
        return x // self.n if self.op == "//" else x % self.n

    def render(self, division: Division = "//") -> str:
        x, n = self.x.render(division), self.n
        # C compilers do not know that x >= 0, and would not divide by shifting.
        if division == "/" and n & (n - 1) == 0:
            return f"({x}>>{n.bit_length() - 1})" if self.op == "//" else f"({x}&{n - 1})"
        return f"({x}{division if self.op == '//' else self.op}{n})"


def _is_quotient(x: Expr, op: Literal["//", "%"]) -> TypeGuard[Quotient]:
    return isinstance(x, Quotient) and x.op == op


ZERO: Expr = Const(0)
ONE: Expr = Const(1)


# --- sums ---


def as_expr(value: Expr | int) -> Expr:
    return value if isinstance(value, Expr) else Const(operator.index(value))


def linear_parts(x: Expr) -> tuple[int, tuple[tuple[Expr, int], ...]]:
    """An expression as (constant, [(term, coefficient), ...]): the inverse of `linear`."""
    if isinstance(x, Sum):
        return x.constant, x.terms
    return (x.lo, ()) if x.lo == x.hi else (0, ((x, 1),))


def linear(constant: int, terms: Iterable[tuple[Expr, int]]) -> Expr:
    """constant + sum of coefficient * term, simplified."""
    merged: dict[Expr, int] = {}
    pending = terms
    while pending:
        for term, coefficient in pending:
            inner_constant, inner_terms = linear_parts(term)
            constant += coefficient * inner_constant
            for t, c in inner_terms:
                merged[t] = merged.get(t, 0) + coefficient * c
        merged = {t: c for t, c in merged.items() if c}
        pending = _rejoin(merged)
    return _sum(constant, _in_order(merged.items()))


def _in_order(terms: Iterable[tuple[Expr, int]]) -> Sequence[tuple[Expr, int]]:
    return sorted(terms, key=lambda tc: (tc[1] < 0, -abs(tc[1]), tc[0].key))


def _sum(constant: int, ordered: Sequence[tuple[Expr, int]]) -> Expr:
    """The sum of simplified terms, which are in order."""
    if not ordered:
        return Const(constant)
    if len(ordered) == 1 and ordered[0][1] == 1 and constant == 0:
        return ordered[0][0]
    return Sum(constant, *ordered)


def _add_constant(x: Expr, constant: int) -> Expr:
    """x + constant, faster than by `linear`, since the terms stay."""
    own, terms = linear_parts(x)
    return _sum(own + constant, terms)


def _multiply(x: Expr, factor: int) -> Expr:
    """x * factor, faster than by `linear`, since only coefficients change."""
    if factor == 0:
        return ZERO
    constant, terms = linear_parts(x)
    scaled = [(t, c * factor) for t, c in terms]
    return _sum(constant * factor, _in_order(scaled) if factor < 0 else scaled)


def _rejoin(terms: Mapping[Expr, int]) -> list[tuple[Expr, int]]:
    """Terms that are zero in total and join a remainder with its quotient when they are added.

    Empty if nothing can be joined.
    """
    for mod, c in terms.items():
        if not _is_quotient(mod, "%"):
            continue
        x, n = mod.x, mod.n
        quotient = x // n
        parts = linear_parts(quotient)[1]
        if all(terms.get(t) == c * n * k for t, k in parts):
            return [(x, c), (mod, -c), (quotient, -c * n)]  # x = x%n + n*(x//n)
        for outer, k in terms.items():
            if (
                _is_quotient(outer, "%")
                and k == c * n
                and set(parts) <= set(linear_parts(outer.x)[1])
            ):
                # x%n + n*((x//n + y) % m) = (x + n*y) % (n*m)
                joined = (x + (outer.x - quotient) * n) % (n * outer.n)
                return [(joined, c), (mod, -c), (outer, -k)]
    return []


def _bounds(constant: int, terms: Iterable[tuple[Expr, int]]) -> tuple[int, int]:
    lo = hi = constant
    for t, c in terms:
        lo += c * (t.lo if c > 0 else t.hi)
        hi += c * (t.hi if c > 0 else t.lo)
    return lo, hi


def _max_sum_magnitude(constant: int, terms: Iterable[tuple[Expr, int]]) -> int:
    """The largest magnitude of any partial sum of terms, whatever their order."""
    ends = [(constant, constant), *((c * t.lo, c * t.hi) for t, c in terms)]
    return max(sum(max(0, *e) for e in ends), -sum(min(0, *e) for e in ends))


@lru_cache(maxsize=1 << 14)
def max_magnitude(x: Expr) -> int:
    """The largest magnitude of any intermediate result when an expression is computed."""
    own = _max_sum_magnitude(*linear_parts(x)) if isinstance(x, Sum) else max(x.hi, -x.lo)
    return max(own, *map(max_magnitude, x.sources)) if x.sources else own


# --- quotients and remainders ---


def _positive(divisor: int) -> int:
    if isinstance(divisor, Expr) or divisor <= 0:
        raise ValueError(f"cannot divide by {divisor}: the divisor must be a positive constant")
    return operator.index(divisor)


@lru_cache(maxsize=1 << 14)
def _divmod(x: Expr, n: int) -> tuple[Expr, Expr]:
    """(x // n, x % n), from one decomposition, so that `_rejoin` can undo it."""
    whole, rest = _multiples(x, n)
    if rest is not x:
        quotient, remainder = _divmod(rest, n)
        return whole + quotient, remainder
    if x.lo // n == x.hi // n:
        return Const(x.lo // n), x - x.lo // n * n
    return _split_factor(x, n) or _unnest(x, n) or (Quotient("//", x, n), Quotient("%", x, n))


def _multiples(x: Expr, n: int) -> tuple[Expr, Expr]:
    """(q, r) with x = n*q + r and r >= 0, where no coefficient in r is n or more."""
    constant, terms = linear_parts(x)
    wholes = [(t, c // n if c > 0 else -(-c // n)) for t, c in terms]
    rest = [(t, c - n * w) for (t, c), (_, w) in zip(terms, wholes, strict=True)]
    lowest = _bounds(constant % n, rest)[0]
    # The smallest constant with the same remainder for which r is not negative.
    shifted = constant % n + n * max(0, -(lowest // n))
    return linear((constant - shifted) // n, wholes), linear(shifted, rest)


def _split_factor(x: Expr, n: int) -> tuple[Expr, Expr] | None:
    """(x // n, x % n) by a common factor g of n and of most terms; None if there is none.

    With x = g*y + r, 0 <= r < g and n = g*m: x//n = y//m and x%n = g*(y%m) + r.
    """
    constant, terms = linear_parts(x)
    for g in sorted({math.gcd(n, c) for _, c in terms} - {1}, reverse=True):
        rest = [(t, c) for t, c in terms if c % g]
        lo, hi = _bounds(constant, rest)
        if lo // g == hi // g:
            y = linear(lo // g, [(t, c // g) for t, c in terms if c % g == 0])
            quotient, remainder = _divmod(y, n // g)
            return quotient, remainder * g + linear(constant - lo // g * g, rest)
    return None


def _unnest(x: Expr, n: int) -> tuple[Expr, Expr] | None:
    """(x // n, x % n) if x contains a quotient, or is a remainder modulo a multiple of n; or None.

    A quotient of a quotient is one quotient, and a remainder of such a remainder is one remainder.
    """
    if _is_quotient(x, "%") and x.n % n == 0:
        return (x.x // n) % (x.n // n), x.x % n
    inner = single_quotient(x, 1)
    if inner is None:
        return None
    quotient = (inner.x + (x - inner) * inner.n) // (inner.n * n)
    return quotient, x - quotient * n if isinstance(quotient, Const) else Quotient("%", x, n)


def single_quotient(x: Expr, coefficient: int) -> Quotient | None:
    """The quotient among the terms of x with this coefficient, if there is exactly one."""
    quotients = [t for t, c in linear_parts(x)[1] if _is_quotient(t, "//") and c == coefficient]
    return quotients[0] if len(quotients) == 1 else None


# --- flat and multi-dimensional indices ---


def row_major_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous array, whose last dimension varies fastest."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides)) if shape else ()


def unravel(flat: Expr, shape: Sequence[int]) -> list[Expr]:
    """The index along each dimension for a flat index in [0, product of shape)."""
    indices: list[Expr] = []
    outermost = True  # its index needs no remainder, since `flat` is in range
    for n, stride in zip(shape, row_major_strides(shape), strict=True):
        quotient = flat // stride
        indices.append(ZERO if n == 1 else quotient if outermost else quotient % n)
        outermost &= n == 1
    return indices
