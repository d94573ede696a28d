"""Numbers without rounding, as elements of numpy's object arrays: rationals, and `DIGITS` digits behind roots and exponentials.

numpy calls the method of an element that has the name of the function: `np.exp(array)` calls `element.exp()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from mpmath import mp, mpf

DIGITS = 50
mp.dps = DIGITS + 10

Element = Any
"""A Fraction or an mpf."""


def _element(value: Any) -> Element:
    """A number as it is, without rounding. TypeError if it is none."""
    if isinstance(value, Real):
        return value.value
    if isinstance(value, (int, np.integer, np.bool_)):
        return Fraction(int(value))
    if isinstance(value, (float, np.floating)) or getattr(type(value), "__module__", "") == "ml_dtypes":
        number = float(value)
        return Fraction(number) if math.isfinite(number) else mpf(number)
    if isinstance(value, (Fraction, mpf)):
        return value
    raise TypeError(f"{type(value).__name__} is no number")


def _float(value: Element) -> mpf:
    return mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _binary(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def call(a: Real, b: Any) -> Any:
        try:
            other = _element(b)
        except TypeError:
            return NotImplemented
        if type(a.value) is type(other):
            return Real(compute(a.value, other))
        return Real(compute(_float(a.value), _float(other)))

    return call


def _swapped(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: function(Real(b), a)


def _comparison(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def call(a: Real, b: Any) -> Any:
        try:
            other = _element(b)
        except TypeError:
            return NotImplemented
        exact = type(a.value) is type(other)
        return bool(compare(a.value, other) if exact else compare(_float(a.value), _float(other)))

    return call


def _unary(compute: Callable[[mpf], Any], low: float = -math.inf, high: float = math.inf) -> Callable[[Any], Any]:
    """A real function; NaN outside of [low, high]."""

    def call(a: Real) -> Real:
        x = _float(a.value)
        return Real(compute(x) if low <= x <= high else mpf("nan"))

    return call


def _divide(a: Element, b: Element) -> Element:
    """IEEE's quotient by zero."""
    if b:
        return a / b
    return mpf("nan") if not a or a != a else mpf("inf") if a > 0 else mpf("-inf")


def _power(a: Element, b: Element) -> Element:
    if isinstance(b, Fraction) and b.denominator == 1 and (a or b >= 0):
        return a ** int(b)
    x, y = _float(a), _float(b)
    if x < 0 and y != mp.floor(y):
        return mpf("nan")
    return mpf("inf") if not x and y < 0 else x**y


def _sqrt(x: Any) -> Real:
    """Exact for squares of rationals."""
    if isinstance(x.value, Fraction) and x.value >= 0:
        above, below = math.isqrt(x.value.numerator), math.isqrt(x.value.denominator)
        if above**2 == x.value.numerator and below**2 == x.value.denominator:
            return Real(Fraction(above, below))
    return Real(_root(x))


_root = _unary(mp.sqrt, low=0)


def _rounded(compute: Callable[[Fraction], int], x: Any) -> Any:
    if isinstance(x.value, Fraction):
        return Real(Fraction(compute(x.value)))
    return Real(Fraction(int(compute(Fraction(*mp.mpf(x.value).as_integer_ratio()))))) if mp.isfinite(x.value) else x


class Real:
    """A real number, an infinity or NaN. Mixed with Python's and numpy's numbers, it takes these as they are."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Element = _element(value)

    __add__ = _binary(lambda a, b: a + b)
    __sub__ = _binary(lambda a, b: a - b)
    __mul__ = _binary(lambda a, b: a * b)
    __truediv__ = _binary(_divide)
    __pow__ = _binary(_power)
    __mod__ = _binary(lambda a, b: a - b * math.floor(a / b))
    __floordiv__ = _binary(lambda a, b: Fraction(math.floor(a / b)))
    __radd__, __rmul__ = __add__, __mul__
    __rsub__, __rtruediv__, __rpow__ = _swapped(__sub__), _swapped(__truediv__), _swapped(__pow__)
    __lt__ = _comparison(lambda a, b: a < b)
    __le__ = _comparison(lambda a, b: a <= b)
    __gt__ = _comparison(lambda a, b: a > b)
    __ge__ = _comparison(lambda a, b: a >= b)
    __eq__ = _comparison(lambda a, b: a == b)
    __ne__ = _comparison(lambda a, b: a != b)

    def __hash__(self) -> int:
        return hash(self.value)

    def __neg__(self) -> Real:
        return Real(-self.value)

    def __pos__(self) -> Real:
        return self

    def __abs__(self) -> Real:
        return Real(abs(self.value))

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    __trunc__ = __int__

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        return f"Real({self.value})"

    def __floor__(self) -> Any:
        return _rounded(math.floor, self)

    def __ceil__(self) -> Any:
        return _rounded(math.ceil, self)

    def rint(self) -> Any:
        """The nearest integer, the even one of two."""
        return _rounded(round, self)

    def conjugate(self) -> Real:
        return self

    sqrt = _sqrt
    exp, expm1, log = _unary(mp.exp), _unary(mp.expm1), _unary(lambda x: mp.log(x) if x else mpf("-inf"), low=0)
    log1p = _unary(mp.log1p, low=-1)
    erf, tanh, sin, cos, tan = (_unary(f) for f in (mp.erf, mp.tanh, mp.sin, mp.cos, mp.tan))
    sinh, cosh, arctan, arcsinh = (_unary(f) for f in (mp.sinh, mp.cosh, mp.atan, mp.asinh))
    arcsin, arccos, arctanh = (_unary(f, -1, 1) for f in (mp.asin, mp.acos, mp.atanh))
    arccosh = _unary(mp.acosh, low=1)


lifted = np.frompyfunc(Real, 1, 1)
"""An array of numbers as an array of `Real`."""
