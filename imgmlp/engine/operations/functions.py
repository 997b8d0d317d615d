"""Elementwise functions composed of primitives: rounding, powers, inverse functions, activations.

Names and meaning are those of the Python array API standard, else NumPy's, else PyTorch's. A
function has a gradient rule of its own if that is simpler than the gradient of its formula. The
error of each is a few roundings of float32. Halves are computed in float32 and rounded once.
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
from imgmlp.engine.operations.elementwise import Operand, align_operands, computed_in_f32, dtype_of
from imgmlp.engine.operations.reduction import Reduction

F = TypeVar("F", bound="Functions")
MIN_WHOLE_FLOAT = float(1 << 23)  # every float32 from here on is a whole number
# erf(x) / x as a polynomial in x^2: its Taylor series.
ERF_COEFFICIENTS = [
    2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(11)
]
# log(erfc(z) exp(z^2) (1 + z / 2)) as a polynomial in 1 / (1 + z / 2): Press et al., Numerical
# Recipes in C (1992), section 6.2.
ERFC_COEFFICIENTS = [
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398,
    1.48851587, -0.82215223, 0.17087277,
]  # fmt: skip
# (atan(x) / x - 1) / x^2 as a polynomial in x^2, for |x| up to tan(pi / 8): Cephes, atanf, by
# Moshier.
ATAN_COEFFICIENTS = [-3.33329491539e-1, 1.99777106478e-1, -1.38776856032e-1, 8.05374449538e-2]


def _no_gradient(g: Node, ans: Node, *inputs: Node) -> tuple[None, ...]:
    return (None,) * len(inputs)


def _division(op: Op, swapped: bool = False) -> Callable[[F, Operand], F]:
    return lambda self, other: self._floor_divmod(op, other, swapped)


class Functions(Reduction):
    """Reductions and all before them, and elementwise functions composed of primitives."""

    __slots__ = ()

    def _with_vjp(self, result: Self, *inputs: Self, vjp: Callable[..., Any]) -> Self:
        """A result with its own gradient rule with respect to this Tensor and other inputs."""
        nodes = [self.node, *(t.node for t in inputs)]
        return result._wrap(graph.function(result.node, nodes, vjp))

    def detach(self) -> Self:
        """The same values, which gradients treat as constants."""
        return self._with_vjp(self, vjp=_no_gradient) if self.dtype.is_float else self

    # --- rounding; gradients are zero ---

    def _round_with(self, choose: Callable[[Self, Self], Self]) -> Self:
        """`choose(x, x without its fraction)` for floats that can have a fraction, else x."""
        if not self.dtype.is_float:
            return self
        x = self.cast(dt.f32)
        whole = choose(x, x.cast(dt.i32).cast(dt.f32))
        return self._with_vjp(
            self.where(x.abs() < MIN_WHOLE_FLOAT, whole, x).cast(self.dtype), vjp=_no_gradient
        )

    def trunc(self) -> Self:
        """Rounded towards zero, in the same dtype."""
        return self._round_with(lambda x, t: t)

    def floor(self) -> Self:
        """Rounded down, in the same dtype."""
        return self._round_with(lambda x, t: t - (x < t).cast(dt.f32))

    def ceil(self) -> Self:
        """Rounded up, in the same dtype."""
        return self._round_with(lambda x, t: t + (x > t).cast(dt.f32))

    def round(self) -> Self:
        """Rounded to the nearest whole number, of two the even one."""

        def nearest(x: Self, t: Self) -> Self:
            rest, odd = (x - t).abs(), (t.cast(dt.i32) & 1).eq(1)
            away = (rest > 0.5) | (rest.eq(0.5) & odd)
            return t + x.sign() * away.cast(dt.f32)

        return self._round_with(nearest)

    def __round__(self, digits: int | None = None) -> Self:
        if digits is not None:
            text = f"to whole numbers only, not to {digits} digits"
            raise misuse(TypeError, f"round: {text}; (x * 100).round() / 100 keeps two")
        return self.round()

    # --- kinds of numbers ---

    def isnan(self) -> Self:
        """Whether elements are NaN."""
        return self != self

    def isinf(self) -> Self:
        """Whether elements are infinite, with either sign."""
        return self._as_float().abs().eq(math.inf)

    def isfinite(self) -> Self:
        """Whether elements are neither infinite nor NaN."""
        return self._as_float().abs() < math.inf

    def isclose(self, other: Operand, rtol: float = 1e-5, atol: float = 1e-8) -> Self:
        """Whether |x - y| <= atol + rtol |y|, or both are the same infinity."""
        x, y = _floats("isclose", self, other)
        near = (x - y).abs() <= y.abs() * rtol + atol
        return (x == y) | (near & y.isfinite())

    def clip(self, low: Operand | None = None, high: Operand | None = None) -> Self:
        """Limited to the range from `low` to `high`; None is no limit."""
        least = self if low is None else self.maximum(low)
        return least if high is None else least.minimum(high)

    # --- powers, division ---

    def __pow__(self, exponent: Operand) -> Self:
        """x to the power of the exponent, elementwise.

        Integers from 0 to 64 are computed by repeated squaring, other exponents by exp2 and log2
        with an error of about |y log2(x)| roundings. For finite negative x and an exponent that is
        not whole the result is NaN. The numbers 0.5 and -0.5 are `sqrt` and `rsqrt`, which give NaN
        for -inf and keep the sign of -0.0.
        """
        if isinstance(exponent, int) and not isinstance(exponent, bool) and 0 <= exponent <= 64:
            if exponent < 2:
                return self if exponent else self._wrap(graph.const(1, self.dtype, self.shape))
            if self.dtype is dt.f16:  # computed in f32, to be rounded once
                return (self.cast(dt.f32) ** exponent).cast(dt.f16)
            half = (self * self) ** (exponent // 2)
            return half * self if exponent % 2 else half
        if isinstance(exponent, int | float) and exponent in (-1, 0.5, -0.5):
            return {-1: self.reciprocal, 0.5: self.sqrt, -0.5: self.rsqrt}[exponent]()
        return _power(*_floats("**", self, exponent))

    @computed_in_f32
    def _power_of(self, logarithm: float) -> Self:
        return (self * logarithm).exp2()

    def __rpow__(self, base: Operand) -> Self:
        """A base to the power of each element."""
        if isinstance(base, int | float) and 0 < base < math.inf and base != 1:  # see _power
            return self._power_of(math.log2(base))
        y, x = _floats("**", self, base)
        return _power(x, y)

    def _floor_divmod(self, op: Op, other: Operand, swapped: bool = False) -> Self:
        """`x // y` for Op.DIV and `x % y` for Op.MOD, as NumPy's for floats.

        Quotients are rounded towards minus infinity; remainders are exact and have the sign of y.
        The remainder is computed first, and the quotient from the dividend without it.
        """
        name = "//" if op is Op.DIV else "%"
        if not dt.promote(self.dtype, dtype_of(name, other)).is_float:
            return self._binary(op, other, swapped)
        x, y = _floats(name, self, other)
        if x.dtype is dt.f16:
            x, y = x.cast(dt.f32), y.cast(dt.f32)
            return x._floor_divmod(op, y, swapped).cast(dt.f16)
        x, y = (y, x) if swapped else (x, y)
        rest = x._binary(Op.FMOD, y)
        below = ((rest < 0) & (y > 0)) | ((rest > 0) & (y < 0))
        whole = (x - rest) / y - below.cast(dt.f32)
        low = whole.floor()
        quotient = self.where(y.eq(0.0), x / y, low + (whole - low > 0.5).cast(dt.f32))
        quotient = x._with_vjp(quotient, y, vjp=_no_gradient)
        if op is Op.DIV:
            return quotient
        left = self.where(below, rest + y, rest)
        return x._with_vjp(left, y, vjp=lambda g, ans, *_: (g, -(g * quotient.node)))

    __floordiv__, __rfloordiv__ = _division(Op.DIV), _division(Op.DIV, swapped=True)
    __mod__, __rmod__ = _division(Op.MOD), _division(Op.MOD, swapped=True)

    @computed_in_f32
    def rsqrt(self) -> Self:
        """1 / sqrt(x); infinite at zero."""
        return 1.0 / self.sqrt()

    # --- exponentials and logarithms ---

    @computed_in_f32
    def log1p(self) -> Self:
        """log(1 + x), accurate near 0 as well.

        There it is x log(u) / (u - 1), where u is 1 + x as rounded: Goldberg, What Every Computer
        Scientist Should Know About Floating-Point Arithmetic (1991), theorem 4.
        """
        u = self + 1.0
        small = self.where(u.eq(1.0), self, u.log() * self / (u - 1.0))
        result = self.where(self.abs() < 0.5, small, u.log())
        return self._with_vjp(result, vjp=lambda g, ans, x: (g / (x + 1.0),))

    # --- trigonometry ---

    @computed_in_f32
    def tan(self) -> Self:
        """The tangent of radians."""
        return self.sin() / self.cos()

    @computed_in_f32
    def atan(self) -> Self:
        """The inverse of `tan`, in radians between -pi / 2 and pi / 2."""
        a = self.abs()
        far, middle = a > math.tan(3 * math.pi / 8), a > math.tan(math.pi / 8)
        z = self.where(far, -1.0 / a, self.where(middle, (a - 1.0) / (a + 1.0), a))
        begin = self.where(far, math.pi / 2, self.where(middle, math.pi / 4, 0.0))
        size = begin + (_polynomial(z * z, ATAN_COEFFICIENTS) * z * z * z + z)
        result = self.where(self < 0, -size, size)
        return self._with_vjp(result, vjp=lambda g, ans, x: (g / (x * x + 1.0),))

    @computed_in_f32
    def asin(self) -> Self:
        """The inverse of `sin`, in radians; NaN outside of [-1, 1]."""
        cosine = ((1.0 - self) * (self + 1.0)).sqrt()
        result = (self / (cosine + 1.0)).atan() * 2.0
        return self._with_vjp(result, vjp=lambda g, ans, x: (g / cosine.node,))

    @computed_in_f32
    def acos(self) -> Self:
        """The inverse of `cos`, in radians; NaN outside of [-1, 1]."""
        cosine = ((1.0 - self) * (self + 1.0)).sqrt()
        result = ((1.0 - self) / (self + 1.0)).sqrt().atan() * 2.0
        return self._with_vjp(result, vjp=lambda g, ans, x: (-(g / cosine.node),))

    # --- activations ---

    @computed_in_f32
    def erf(self) -> Self:
        """2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""
        a = self.abs()
        size = self.where(a < 1.0, _polynomial(a * a, ERF_COEFFICIENTS) * a, 1.0 - _erfc(a))
        result = self.where(self < 0, -size, size)
        slope = (self * self * -1.0).exp() * (2 / math.sqrt(math.pi))
        return self._with_vjp(result, vjp=lambda g, ans, x: (g * slope.node,))

    @computed_in_f32
    def gelu(self, exact: bool = False) -> Self:
        """x times the cumulative distribution function of the normal distribution.

        With `exact` by erf, else by the tanh form of Hendrycks and Gimpel (2016), which takes fewer
        operations and has an error of up to 1e-3.
        """
        if exact:
            z = self * math.sqrt(0.5)
            far = _erfc((-z).maximum(1.0))  # accurate where 1 + erf(z) cancels
            return self * 0.5 * self.where(z < -1.0, far, z.erf() + 1.0)
        near = self.maximum(-100.0).minimum(100.0)  # so that cubes are finite
        inner = (self + near * near * near * 0.044715) * math.sqrt(2 / math.pi)
        return self * (inner * 2.0).sigmoid()  # sigmoid(2 a) = (tanh(a) + 1) / 2

    @computed_in_f32
    def silu(self) -> Self:
        """x * sigmoid(x)."""
        return self * self.sigmoid()

    @computed_in_f32
    def elu(self, alpha: float = 1.0) -> Self:
        """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
        return self.where(self > 0, self, self.where(self > 0, 0.0, self).expm1() * alpha)

    @computed_in_f32
    def softplus(self) -> Self:
        """log(1 + exp(x)), finite for every finite x."""
        result = self.maximum(0.0) + (-self.abs()).exp().log1p()
        return self._with_vjp(result, vjp=lambda g, ans, x: (g * self.sigmoid().node,))


def _erfc(x: F) -> F:
    """1 - erf(x) for x >= 0."""
    t = 1.0 / (x * 0.5 + 1.0)
    return t * (_polynomial(t, ERFC_COEFFICIENTS) - x * x).exp()


def _polynomial(x: F, coefficients: Sequence[float]) -> F:
    """The sum of coefficients[n] * x^n, by Horner's rule."""
    result = x * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        result = result * x + c
    return result


def _floats(operation: str, first: F, other: Operand) -> tuple[F, F]:
    """Two operands as Tensors of floats, of one shape and dtype."""
    other = dt.as_float(other) if isinstance(other, int) else other
    (x, y), device = align_operands(operation, first, other)
    made = type(first)
    return made(x, device)._as_float(), made(y, device)._as_float()


def _power(x: F, y: F) -> F:
    """x^y of floats of one shape and dtype; the gradient is computed from the result."""
    if x.dtype is dt.f16:
        return _power(x.cast(dt.f32), y.cast(dt.f32)).cast(dt.f16)
    one = y.eq(0.0) | x.abs().eq(1.0)
    size = x.where(one, 1.0, (y * x.abs().log2()).exp2())
    whole = y.eq(y.trunc())
    odd = whole & ((y * 0.5) != (y * 0.5).trunc())
    below = (x < 0) | (1.0 / x < 0)  # also for -0.0
    signed = x.where(odd & below, -size, size)
    result = x.where((x < 0) & ~whole & (x > -math.inf), math.nan, signed)

    def vjp(g: Node, ans: Node, *inputs: Node) -> tuple[Node, ...]:
        slope = x.where(y.eq(0.0), 0.0, y * _power(x, y - 1.0))
        along = x.where(x.abs() > 0, x._wrap(ans) * x.abs().log(), 0.0)
        return g * slope.node, g * along.node

    return x._with_vjp(result, y, vjp=vjp)
