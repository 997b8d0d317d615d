"""Integer expressions over bounded variables: where an element lies, and whether it exists.

Every expression knows inclusive bounds [lo, hi] and is in simplest form from the moment that
it is built; there is no separate pass. Equal expressions are one object, so `is` compares and
hashing costs nothing. Canonical forms:

- a sum is flat: each term once, with an integer coefficient, and one constant;
- `//` and `%` round towards minus infinity, by positive constants, and what they divide is
  never negative, so that they mean the same in C.

Comparisons are in conditions.py. This module knows nothing of shapes beyond `row_major` and
`unravel`, and nothing of kernels.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeGuard
from weakref import WeakValueDictionary

Value = Any  # int or integer ndarray; operations on either look alike
Division = Literal["//", "/"]
INT, LONG = (1 << 31) - 1, (1 << 63) - 1  # what an int and a long of C can hold


_alive: WeakValueDictionary[tuple[Any, ...], Expr] = WeakValueDictionary()


class _Interned(type):
    """Calling a class with the same arguments again gives the same object."""

    def __call__(cls, *args: Any) -> Any:
        key = (cls, *args)
        found = _alive.get(key)
        if found is None:
            found = _alive[key] = super().__call__(*args)
        return found


class Expr(metaclass=_Interned):
    """An integer expression. Build it with Var, Const and operators, never a subclass itself."""

    __slots__ = ("__weakref__", "hi", "key", "lo", "sources")

    lo: int
    hi: int
    sources: tuple[Expr, ...]  # the expressions that this one is made of
    key: tuple[Any, ...]  # structure as nested tuples: an order that is the same in every run

    def _set(
        self, rank: int, lo: int, hi: int, sources: tuple[Expr, ...] = (), **fields: Any
    ) -> None:
        key = (rank, tuple(s.key for s in sources), tuple(fields.values()), lo, hi)
        for name, value in {"lo": lo, "hi": hi, "sources": sources, "key": key, **fields}.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an expression is immutable; cannot set {name}")

    def __add__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            return _more(self, other)
        return linear(0, ((self, 1), (as_expr(other), 1)))

    def __sub__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            return _more(self, -other)
        return linear(0, ((self, 1), (as_expr(other), -1)))

    def __rsub__(self, other: int) -> Expr:
        return _more(_times(self, -1), other)

    def __neg__(self) -> Expr:
        return _times(self, -1)

    def __mul__(self, other: Expr | int) -> Expr:
        for x, factor in ((self, as_expr(other)), (as_expr(other), self)):
            if isinstance(factor, Const):
                return _times(x, factor.value)
        raise TypeError(f"cannot multiply {self} by {other}: one of them must be constant")

    def __floordiv__(self, divisor: int) -> Expr:
        return _divmod(self, _positive(divisor))[0]

    def __mod__(self, divisor: int) -> Expr:
        return _divmod(self, _positive(divisor))[1]

    __radd__, __rmul__ = __add__, __mul__

    def apply(self, *sources: Any) -> Any:
        """The same operation on other sources: integers, arrays of them, or expressions."""
        return self

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        """The value where variables have the values of `env`: ints, or arrays that broadcast."""
        return self.apply(*(s.evaluate(env) for s in self.sources))

    def substitute(self, replaced: Mapping[str, Expr | int]) -> Expr:
        """The expression with variables replaced by name, simplified anew."""
        return as_expr(self.apply(*(s.substitute(replaced) for s in self.sources)))

    def variables(self) -> tuple[Var, ...]:
        """The variables it depends on, in a fixed order."""
        found = {v for s in self.sources for v in s.variables()}
        return tuple(sorted(found, key=lambda v: v.key))

    def render(self, division: Division = "//") -> str:
        """Fully parenthesised text, valid in Python, and in C with division="/"."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        return f"{self} in [{self.lo}, {self.hi}]"


class Const(Expr):
    __slots__ = ("value",)
    value: int

    def __init__(self, value: int) -> None:
        self._set(0, value, value, value=value)

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        return self.value

    def render(self, division: Division = "//") -> str:
        return str(self.value)


class Var(Expr):
    """A variable with inclusive bounds. `evaluate` and `substitute` know it by its name."""

    __slots__ = ("name",)
    name: str

    def __init__(self, name: str, lo: int, hi: int) -> None:
        if lo > hi:
            raise ValueError(f"variable {name}: no integer lies in [{lo}, {hi}]")
        self._set(1, operator.index(lo), operator.index(hi), name=name)

    def evaluate(self, env: Mapping[str, Value]) -> Value:
        return env[self.name]

    def substitute(self, replaced: Mapping[str, Expr | int]) -> Expr:
        return as_expr(replaced.get(self.name, self))

    def variables(self) -> tuple[Var, ...]:
        return (self,)

    def render(self, division: Division = "//") -> str:
        return self.name


class Sum(Expr):
    """constant + sum of coefficient * source; built by `linear` alone."""

    __slots__ = ("coefficients", "constant")
    coefficients: tuple[int, ...]
    constant: int

    def __init__(self, constant: int, *terms: tuple[Expr, int]) -> None:
        sources, coefficients = zip(*terms, strict=True)
        bounds = _bounds(constant, terms)
        self._set(4, *bounds, sources, constant=constant, coefficients=coefficients)

    @property
    def terms(self) -> tuple[tuple[Expr, int], ...]:
        return tuple(zip(self.sources, self.coefficients, strict=True))

    def apply(self, *sources: Any) -> Any:
        products = map(operator.mul, sources, self.coefficients)
        return sum(products, start=self.constant)

    def render(self, division: Division = "//") -> str:
        # products with a long are long, and so are sums with one
        kind = "L" if division == "/" and _reach(self.constant, self.terms) > INT else ""
        texts = ((c, t.render(division)) for t, c in self.terms)
        parts = [
            (c > 0, t if abs(c) == 1 and not kind else f"({t}*{abs(c)}{kind})") for c, t in texts
        ]
        if self.constant:
            # a positive constant leads where every term is subtracted: (9-a), not (-a+9)
            place = 0 if self.constant > 0 and not parts[0][0] else len(parts)
            parts.insert(place, (self.constant > 0, str(abs(self.constant))))
        text = "".join(("+" if positive else "-") + part for positive, part in parts)
        text = text.removeprefix("+")
        return text if text == parts[0][1] else f"({text})"


class Quotient(Expr):
    """x `//` n or x `%` n of x >= 0, rounded towards minus infinity, so that 0 <= x % n < n."""

    __slots__ = ("n", "op")
    n: int
    op: Literal["//", "%"]

    def __init__(self, op: Literal["//", "%"], x: Expr, n: int) -> None:
        bounds, rank = ((x.lo // n, x.hi // n), 2) if op == "//" else ((0, n - 1), 3)
        self._set(rank, *bounds, (x,), n=n, op=op)

    @property
    def x(self) -> Expr:
        return self.sources[0]

    def apply(self, *sources: Any) -> Any:
        (x,) = sources
        return x // self.n if self.op == "//" else x % self.n

    def render(self, division: Division = "//") -> str:
        x, n = self.x.render(division), self.n
        if division == "/" and n & (n - 1) == 0:  # a compiler for C does not know that x >= 0
            return f"({x}>>{n.bit_length() - 1})" if self.op == "//" else f"({x}&{n - 1})"
        return f"({x}{division if self.op == '//' else self.op}{n})"


def _is(x: Expr, op: Literal["//", "%"]) -> TypeGuard[Quotient]:
    return isinstance(x, Quotient) and x.op == op


ZERO: Expr = Const(0)
ONE: Expr = Const(1)


# --- sums ---


def as_expr(value: Expr | int) -> Expr:
    return value if isinstance(value, Expr) else Const(operator.index(value))


def split(x: Expr) -> tuple[int, tuple[tuple[Expr, int], ...]]:
    """Any expression as a constant and (term, coefficient) pairs: the inverse of `linear`."""
    if isinstance(x, Sum):
        return x.constant, x.terms
    return (x.lo, ()) if x.lo == x.hi else (0, ((x, 1),))


def linear(constant: int, terms: Iterable[tuple[Expr, int]]) -> Expr:
    """constant + sum of coefficient * term, in simplest form."""
    merged: dict[Expr, int] = {}
    pending = terms
    while pending:
        for term, coefficient in pending:
            inner_constant, inner_terms = split(term)
            constant += coefficient * inner_constant
            for t, c in inner_terms:
                merged[t] = merged.get(t, 0) + coefficient * c
        merged = {t: c for t, c in merged.items() if c}
        pending = _rejoin(merged)
    return _sum(constant, _in_order(merged.items()))


def _in_order(terms: Iterable[tuple[Expr, int]]) -> Sequence[tuple[Expr, int]]:
    return sorted(terms, key=lambda tc: (tc[1] < 0, -abs(tc[1]), tc[0].key))


def _sum(constant: int, ordered: Sequence[tuple[Expr, int]]) -> Expr:
    """That of terms in simplest form and in order."""
    if not ordered:
        return Const(constant)
    if len(ordered) == 1 and ordered[0][1] == 1 and constant == 0:
        return ordered[0][0]
    return Sum(constant, *ordered)


def _more(x: Expr, constant: int) -> Expr:
    """x + constant, for which no terms change."""
    own, terms = split(x)
    return _sum(own + constant, terms)


def _times(x: Expr, factor: int) -> Expr:
    """x * factor, for which all terms change alike."""
    if factor == 0:
        return ZERO
    constant, terms = split(x)
    scaled = [(t, c * factor) for t, c in terms]
    return _sum(constant * factor, _in_order(scaled) if factor < 0 else scaled)


def _rejoin(terms: Mapping[Expr, int]) -> list[tuple[Expr, int]]:
    """What to add, worth zero in total, so that a remainder and its quotient become one term."""
    for mod, c in terms.items():
        if not _is(mod, "%"):
            continue
        x, n = mod.x, mod.n
        quotient = x // n
        parts = split(quotient)[1]
        if all(terms.get(t) == c * n * k for t, k in parts):
            return [(x, c), (mod, -c), (quotient, -c * n)]  # x = x%n + n*(x//n)
        for outer, k in terms.items():
            if _is(outer, "%") and k == c * n and set(parts) <= set(split(outer.x)[1]):
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


def _reach(constant: int, terms: Iterable[tuple[Expr, int]]) -> int:
    """The largest magnitude that adding up terms meets, in whatever order."""
    ends = [(constant, constant), *((c * t.lo, c * t.hi) for t, c in terms)]
    return max(sum(max(0, *e) for e in ends), -sum(min(0, *e) for e in ends))


@lru_cache(maxsize=1 << 14)
def reach(x: Expr) -> int:
    """The largest magnitude that computing an expression meets on the way to its value."""
    own = _reach(*split(x)) if isinstance(x, Sum) else max(x.hi, -x.lo)
    return max(own, *map(reach, x.sources)) if x.sources else own


# --- quotients and remainders ---


def _positive(divisor: int) -> int:
    if isinstance(divisor, Expr) or divisor <= 0:
        raise ValueError(f"cannot divide by {divisor}: the divisor must be a positive constant")
    return operator.index(divisor)


@lru_cache(maxsize=1 << 14)
def _divmod(x: Expr, n: int) -> tuple[Expr, Expr]:
    """(x // n, x % n). Both come from one decomposition, so that `_rejoin` can undo it."""
    whole, rest = _multiples(x, n)
    if rest is not x:
        quotient, remainder = _divmod(rest, n)
        return whole + quotient, remainder
    if x.lo // n == x.hi // n:
        return Const(x.lo // n), x - x.lo // n * n
    return _split_factor(x, n) or _unnest(x, n) or (Quotient("//", x, n), Quotient("%", x, n))


def _multiples(x: Expr, n: int) -> tuple[Expr, Expr]:
    """(q, r) with x = n*q + r, r >= 0, and in r no coefficient of n or more."""
    constant, terms = split(x)
    wholes = [(t, c // n if c > 0 else -(-c // n)) for t, c in terms]
    rest = [(t, c - n * w) for (t, c), (_, w) in zip(terms, wholes, strict=True)]
    lowest = _bounds(constant % n, rest)[0]
    # the smallest constant of the same remainder that keeps r from being negative
    shifted = constant % n + n * max(0, -(lowest // n))
    return linear((constant - shifted) // n, wholes), linear(shifted, rest)


def _split_factor(x: Expr, n: int) -> tuple[Expr, Expr] | None:
    """With x = g*y + r, 0 <= r < g and n = g*m: x//n = y//m and x%n = g*(y%m) + r."""
    constant, terms = split(x)
    for g in sorted({math.gcd(n, c) for _, c in terms} - {1}, reverse=True):
        rest = [(t, c) for t, c in terms if c % g]
        lo, hi = _bounds(constant, rest)
        if lo // g == hi // g:
            y = linear(lo // g, [(t, c // g) for t, c in terms if c % g == 0])
            quotient, remainder = _divmod(y, n // g)
            return quotient, remainder * g + linear(constant - lo // g * g, rest)
    return None


def _unnest(x: Expr, n: int) -> tuple[Expr, Expr] | None:
    """A quotient of a quotient is one quotient; so is a remainder of a remainder, if n divides."""
    if _is(x, "%") and x.n % n == 0:
        return (x.x // n) % (x.n // n), x.x % n
    inner = only_quotient(x, 1)
    if inner is None:
        return None
    quotient = (inner.x + (x - inner) * inner.n) // (inner.n * n)
    return quotient, x - quotient * n if isinstance(quotient, Const) else Quotient("%", x, n)


def only_quotient(x: Expr, coefficient: int) -> Quotient | None:
    """The one quotient among the terms of x, if there is exactly one with this coefficient."""
    found = [t for t, c in split(x)[1] if _is(t, "//") and c == coefficient]
    return found[0] if len(found) == 1 else None


# --- flat and multi-dimensional indices ---


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """How far apart neighbours along each dimension lie when the last one varies fastest."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides)) if shape else ()


def unravel(flat: Expr, shape: Sequence[int]) -> list[Expr]:
    """One index for each dimension of a flat index in [0, product of shape)."""
    indices: list[Expr] = []
    outermost = True  # needs no remainder, since flat is in range
    for n, stride in zip(shape, row_major(shape), strict=True):
        quotient = flat // stride
        indices.append(ZERO if n == 1 else quotient if outermost else quotient % n)
        outermost &= n == 1
    return indices
