"""Functions of each element that follow from the primitives: rounding, powers, inverse functions.

Names and meaning are those of the Python array API standard, else NumPy's, else PyTorch's. A
function whose gradient is simpler than that of its formula brings its own. Each is exact to a few
roundings of float32; halves go through float32 and are rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from imgmlp.engine.ir import dtype as dt
from imgmlp.engine.ir import graph
from imgmlp.engine.ir.graph import Node
from imgmlp.engine.ir.op import Op
from imgmlp.engine.ir.usage_errors import misuse
from imgmlp.engine.operations.elementwise import Operand, aligned, dtype_of, in_f32
from imgmlp.engine.operations.reduction import Reduction

F = TypeVar("F", bound="Functions")
WHOLE = float(1 << 23)  # from here on every float32 is a whole number
SERIES = [2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(11)]
# erfc(z) exp(z^2) (1 + z / 2) as a polynomial in 1 / (1 + z / 2): Press et al., Numerical Recipes
# in C (1992), section 6.2
ERFC = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398,
        1.48851587, -0.82215223, 0.17087277]  # fmt: skip
# atan(x) / x - 1 as a polynomial in x^2 up to tan(pi / 8), times x^2: Moshier's Cephes, atanf
ATAN = [-3.33329491539e-1, 1.99777106478e-1, -1.38776856032e-1, 8.05374449538e-2]


def _no_gradient(g: Node, ans: Node, *inputs: Node) -> tuple[None, ...]:
    return (None,) * len(inputs)


def _division(op: Op, swapped: bool = False) -> Callable[[F, Operand], F]:
    return lambda self, other: self._divided(op, other, swapped)


class Functions(Reduction):
    """All that came before, and these functions."""

    __slots__ = ()

    def _own(self, answer: Self, *inputs: Self, vjp: Callable[..., Any]) -> Self:
        """An answer with a gradient rule of its own, by this Tensor and other inputs."""
        nodes = [self.node, *(t.node for t in inputs)]
        return answer._with(graph.function(answer.node, nodes, vjp))

    def detach(self) -> Self:
        """The same values, constant to gradients."""
        return self._own(self, vjp=_no_gradient) if self.dtype.is_float else self

    # --- rounding; gradients are zero ---

    def _whole_part(self, choose: Callable[[Self, Self], Self]) -> Self:
        """What is chosen given x and x without its fraction, where x may have one."""
        if not self.dtype.is_float:
            return self
        x = self.cast(dt.f32)
        whole = choose(x, x.cast(dt.i32).cast(dt.f32))
        return self._own(self.where(x.abs() < WHOLE, whole, x).cast(self.dtype), vjp=_no_gradient)

    def trunc(self) -> Self:
        """The nearest whole number towards zero, in the same dtype."""
        return self._whole_part(lambda x, t: t)

    def floor(self) -> Self:
        """The greatest whole number that is not above."""
        return self._whole_part(lambda x, t: t - (x < t).cast(dt.f32))

    def ceil(self) -> Self:
        """The least whole number that is not below."""
        return self._whole_part(lambda x, t: t + (x > t).cast(dt.f32))

    def round(self) -> Self:
        """The nearest whole number, of two the even one."""

        def nearest(x: Self, t: Self) -> Self:
            rest, odd = (x - t).abs(), (t.cast(dt.i32) & 1).eq(1)
            away = (rest > 0.5) | (rest.eq(0.5) & odd)
            return t + x.sign() * away.cast(dt.f32)

        return self._whole_part(nearest)

    def __round__(self, digits: int | None = None) -> Self:
        if digits is not None:
            text = f"to whole numbers only, not to {digits} digits"
            raise misuse(TypeError, f"round: {text}; (x * 100).round() / 100 keeps two")
        return self.round()

    # --- what they are ---

    def isnan(self) -> Self:
        """Whether it is no number."""
        return self != self

    def isinf(self) -> Self:
        """Whether it is infinite, of either sign."""
        return self._float().abs().eq(math.inf)

    def isfinite(self) -> Self:
        """Whether it is neither infinite nor NaN."""
        return self._float().abs() < math.inf

    def isclose(self, other: Operand, rtol: float = 1e-5, atol: float = 1e-8) -> Self:
        """|x - y| <= atol + rtol |y|; infinities are close if they are equal, NaN never."""
        x, y = _floats("isclose", self, other)
        near = (x - y).abs() <= y.abs() * rtol + atol
        return (x == y) | (near & y.isfinite())

    def clip(self, low: Operand | None = None, high: Operand | None = None) -> Self:
        """At least `low` and at most `high`, where these are given."""
        least = self if low is None else self.maximum(low)
        return least if high is None else least.minimum(high)

    # --- powers, division ---

    def __pow__(self, exponent: Operand) -> Self:
        """x to any power: by squaring for whole ones up to 64, else by exp2 and log2.

        That is off by about |y log2(x)| roundings. Finite negative numbers have whole powers only.
        Python's 0.5 and -0.5 are `sqrt` and `rsqrt`: NaN for -inf too, and signed for -0.0.
        """
        if isinstance(exponent, int) and not isinstance(exponent, bool) and 0 <= exponent <= 64:
            if exponent < 2:
                return self if exponent else self._with(graph.const(1, self.dtype, self.shape))
            if self.dtype is dt.f16:  # rounded once
                return (self.cast(dt.f32) ** exponent).cast(dt.f16)
            half = (self * self) ** (exponent // 2)
            return half * self if exponent % 2 else half
        if isinstance(exponent, int | float) and exponent in (-1, 0.5, -0.5):
            return {-1: self.reciprocal, 0.5: self.sqrt, -0.5: self.rsqrt}[exponent]()
        return _power(*_floats("**", self, exponent))

    @in_f32
    def _power_of(self, logarithm: float) -> Self:
        return (self * logarithm).exp2()

    def __rpow__(self, base: Operand) -> Self:
        """A number to the power of each element."""
        if isinstance(base, int | float) and 0 < base < math.inf and base != 1:  # see _power
            return self._power_of(math.log2(base))
        y, x = _floats("**", self, base)
        return _power(x, y)

    def _divided(self, op: Op, other: Operand, swapped: bool = False) -> Self:
        """Quotients that round towards minus infinity, or what they leave, exact and of y's sign.

        Both are NumPy's of floats: what is left is found first, and what is without it divided.
        """
        name = "//" if op is Op.DIV else "%"
        if not dt.promote(self.dtype, dtype_of(name, other)).is_float:
            return self._binary(op, other, swapped)
        x, y = _floats(name, self, other)
        if x.dtype is dt.f16:
            x, y = x.cast(dt.f32), y.cast(dt.f32)
            return x._divided(op, y, swapped).cast(dt.f16)
        x, y = (y, x) if swapped else (x, y)
        rest = x._binary(Op.FMOD, y)
        below = ((rest < 0) & (y > 0)) | ((rest > 0) & (y < 0))
        whole = (x - rest) / y - below.cast(dt.f32)
        low = whole.floor()
        quotient = self.where(y.eq(0.0), x / y, low + (whole - low > 0.5).cast(dt.f32))
        quotient = x._own(quotient, y, vjp=_no_gradient)
        if op is Op.DIV:
            return quotient
        left = self.where(below, rest + y, rest)
        return x._own(left, y, vjp=lambda g, ans, *_: (g, -(g * quotient.node)))

    __floordiv__, __rfloordiv__ = _division(Op.DIV), _division(Op.DIV, swapped=True)
    __mod__, __rmod__ = _division(Op.MOD), _division(Op.MOD, swapped=True)

    @in_f32
    def rsqrt(self) -> Self:
        """1 / sqrt(x); infinite at zero."""
        return 1.0 / self.sqrt()

    # --- exponentials and logarithms ---

    @in_f32
    def log1p(self) -> Self:
        """log(1 + x), as exact near 0.

        There it is x log(u) / (u - 1) with u = 1 + x as rounded: Goldberg, What Every Computer
        Scientist Should Know About Floating-Point Arithmetic (1991), theorem 4.
        """
        u = self + 1.0
        small = self.where(u.eq(1.0), self, u.log() * self / (u - 1.0))
        answer = self.where(self.abs() < 0.5, small, u.log())
        return self._own(answer, vjp=lambda g, ans, x: (g / (x + 1.0),))

    # --- trigonometry ---

    @in_f32
    def tan(self) -> Self:
        """Of radians."""
        return self.sin() / self.cos()

    @in_f32
    def atan(self) -> Self:
        """The angle in radians whose tangent it is, between -pi / 2 and pi / 2."""
        a = self.abs()
        far, middle = a > math.tan(3 * math.pi / 8), a > math.tan(math.pi / 8)
        z = self.where(far, -1.0 / a, self.where(middle, (a - 1.0) / (a + 1.0), a))
        begin = self.where(far, math.pi / 2, self.where(middle, math.pi / 4, 0.0))
        size = begin + (_polynomial(z * z, ATAN) * z * z * z + z)
        answer = self.where(self < 0, -size, size)
        return self._own(answer, vjp=lambda g, ans, x: (g / (x * x + 1.0),))

    @in_f32
    def asin(self) -> Self:
        """The angle in radians whose sine it is; NaN beyond -1 and 1."""
        cosine = ((1.0 - self) * (self + 1.0)).sqrt()
        answer = (self / (cosine + 1.0)).atan() * 2.0
        return self._own(answer, vjp=lambda g, ans, x: (g / cosine.node,))

    @in_f32
    def acos(self) -> Self:
        """The angle in radians whose cosine it is; NaN beyond -1 and 1."""
        cosine = ((1.0 - self) * (self + 1.0)).sqrt()
        answer = ((1.0 - self) / (self + 1.0)).sqrt().atan() * 2.0
        return self._own(answer, vjp=lambda g, ans, x: (-(g / cosine.node),))

    # --- of networks ---

    @in_f32
    def erf(self) -> Self:
        """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
        a = self.abs()
        size = self.where(a < 1.0, _polynomial(a * a, SERIES) * a, 1.0 - _erfc(a))
        answer = self.where(self < 0, -size, size)
        slope = (self * self * -1.0).exp() * (2 / math.sqrt(math.pi))
        return self._own(answer, vjp=lambda g, ans, x: (g * slope.node,))

    @in_f32
    def gelu(self, exact: bool = False) -> Self:
        """x times the share of a normal distribution below it: exactly, by erf, or within 1e-3 by
        the tanh form of Hendrycks and Gimpel (2016), which costs less.
        """
        if exact:
            z = self * math.sqrt(0.5)
            far = _erfc((-z).maximum(1.0))  # where little is left of 1 + erf(z)
            return self * 0.5 * self.where(z < -1.0, far, z.erf() + 1.0)
        near = self.maximum(-100.0).minimum(100.0)  # whose cubes are finite
        inner = (self + near * near * near * 0.044715) * math.sqrt(2 / math.pi)
        return self * (inner * 2.0).sigmoid()  # which is (tanh(inner) + 1) / 2

    @in_f32
    def silu(self) -> Self:
        """x sigmoid(x)."""
        return self * self.sigmoid()

    @in_f32
    def elu(self, alpha: float = 1.0) -> Self:
        """x where it is positive, alpha (exp(x) - 1) elsewhere."""
        return self.where(self > 0, self, self.where(self > 0, 0.0, self).expm1() * alpha)

    @in_f32
    def softplus(self) -> Self:
        """log(1 + exp(x)), finite for every finite x."""
        answer = self.maximum(0.0) + (-self.abs()).exp().log1p()
        return self._own(answer, vjp=lambda g, ans, x: (g * self.sigmoid().node,))


def _erfc(x: F) -> F:
    """1 - erf(x) of numbers that are not negative."""
    t = 1.0 / (x * 0.5 + 1.0)
    return t * (_polynomial(t, ERFC) - x * x).exp()


def _polynomial(x: F, coefficients: Sequence[float]) -> F:
    """The sum of coefficient[n] x^n, by Horner's rule."""
    found = x * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        found = found * x + c
    return found


def _floats(operation: str, first: F, other: Operand) -> tuple[F, F]:
    """Two operands as floats of one shape and dtype; any Python number is one already."""
    other = dt.as_float(other) if isinstance(other, int) else other
    (x, y), device = aligned(operation, first, other)
    made = type(first)
    return made(x, device)._float(), made(y, device)._float()


def _power(x: F, y: F) -> F:
    """x^y of two floats of one shape and dtype, with its gradient by the answer."""
    if x.dtype is dt.f16:
        return _power(x.cast(dt.f32), y.cast(dt.f32)).cast(dt.f16)
    one = y.eq(0.0) | x.abs().eq(1.0)
    size = x.where(one, 1.0, (y * x.abs().log2()).exp2())
    whole = y.eq(y.trunc())
    odd = whole & ((y * 0.5) != (y * 0.5).trunc())
    below = (x < 0) | (1.0 / x < 0)  # also of -0.0
    signed = x.where(odd & below, -size, size)
    answer = x.where((x < 0) & ~whole & (x > -math.inf), math.nan, signed)

    def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node, ...]:
        slope = x.where(y.eq(0.0), 0.0, y * _power(x, y - 1.0))
        along = x.where(x.abs() > 0, x._with(ans) * x.abs().log(), 0.0)
        return g * slope.node, g * along.node

    return x._own(answer, y, vjp=vjp)
