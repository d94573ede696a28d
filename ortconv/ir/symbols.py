"""Arithmetic on dimensions that may be symbols."""

from __future__ import annotations

import ast
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from ortconv.choices import natural
from ortconv.ir.types import Dim, Shape

if TYPE_CHECKING:
    from ortconv.ir.value import Value

ANONYMOUS = re.compile(r"\?|unk__\d+$|\w+_\d+_o\d+__d\d+$|.+_dim_\d+$")
"""Pattern of invented symbols, in ortconv, onnx, ONNX Runtime's tools (Slice_12_o0__d1) and torch (Gatherlogits_dim_1)."""

TIMES = "·"
"""Separator of the factors in the name of a dimension that is a product of others, a number first: 4·batch."""

LONGEST_EXPRESSION = 200
"""Longer names state no size."""

_OPERATORS = re.compile(r"(//|[+*%()]|\s-\s)")
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod
}  # fmt: skip


def is_anonymous(dim: object) -> bool:
    """True for a symbol that shape inference invented."""
    return isinstance(dim, str) and _is_invented(dim)


@lru_cache(4096)
def _is_invented(symbol: str) -> bool:
    return ANONYMOUS.match(symbol) is not None


def is_stated(dim: Dim) -> bool:
    """True if a file states a dimension: as a number, or by a name that is not invented."""
    return dim is not None and not (isinstance(dim, str) and dim.startswith("?"))


def open_dims(inputs: Iterable[Value]) -> list[str]:
    """The names of the dimensions of inputs that have no size, each once. One without a name of its own is called INPUT[AXIS]."""
    dims = ((d, f"{v.name}[{axis}]") for v in inputs for axis, d in enumerate(v.shape or ()) if not isinstance(d, int))
    return list(dict.fromkeys(d if d is not None and is_stated(d) else place for d, place in dims))


def symbols_of(inputs: Iterable[Value]) -> list[str]:
    """The symbolic dimensions of inputs, each once, in order."""
    return list(dict.fromkeys(d for v in inputs for d in v.shape or () if isinstance(d, str)))


def as_dim(element: object) -> Dim:
    """The dimension that an element of a shape states; None for another object, and for a negative number."""
    return element if isinstance(element, str) or (isinstance(element, int) and element >= 0) else None


def more_exact(a: Dim, b: Dim) -> Dim:
    """The more exact one of two equal dimensions: a number, or else a symbol. Of two alike, it is the first."""
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or a is None else a


def is_vague(shape: Shape | None) -> bool:
    """True if a shape, or one of its dimensions, is unknown or has no name."""
    return shape is None or any(type(d) is not int and (d is None or is_anonymous(d)) for d in shape)


def times(*dims: Dim) -> Dim:
    """The product of dimensions, as a number or a symbol; None unless all are known."""
    number, symbols = _factors(dims)
    return None if None in dims else _named(number, symbols)


def quotient(dims: Sequence[Dim], others: Sequence[Dim]) -> Dim:
    """The product of dimensions divided by the product of others; None if it is unknown or not exact."""
    if None in dims or None in others:
        return None
    (total, symbols), (divisor, taken) = _factors(dims), _factors(others)
    if divisor <= 0 or total % divisor or taken - symbols:
        return None
    return _named(total // divisor, symbols - taken)


def _factors(dims: Sequence[Dim]) -> tuple[int, Counter[str]]:
    """(product of the numbers, symbols with their multiplicity) of these dimensions."""
    number, symbols = 1, Counter[str]()
    for d in dims:
        if isinstance(d, int):
            number *= d
        elif d is not None:
            first, *others = d.split(TIMES)
            factor = natural(first) if others else None
            if factor is not None:
                number *= factor
            else:
                others.append(first)
            symbols.update(others)
    return number, symbols


def _named(number: int, symbols: Counter[str]) -> Dim:
    names = sorted(symbols.elements())
    if names and (number < 0 or any(map(str.isdecimal, names))):
        return None
    return number if not names or not number else TIMES.join([str(number)] * (number != 1) + names)


PLUS = " + "
"""Separator of the terms in the name of a dimension that is a sum of others, a number last: past + rows + 1. Optimum and torch name
sums in this way, too, so that the dimensions of inputs and the inferred ones have one name.
"""


def plus(*dims: Dim) -> Dim:
    """The sum of dimensions, as a number or a symbol; None unless all are known."""
    if None in dims:
        return None
    number = sum(d for d in dims if isinstance(d, int))
    names = sorted(d for d in dims if isinstance(d, str))
    return PLUS.join(names + [str(number)] * (number > 0)) if names and number >= 0 else None if names else number


def minus(whole: Dim, part: Dim) -> Dim:
    """A sum without some of its terms; None if `part` does not consist of its terms."""
    if part == 0 or whole is None or part is None:
        return whole if part == 0 else None
    if whole == part:
        return 0
    if isinstance(whole, int) and isinstance(part, int):
        return whole - part if whole > part else None
    present, subtracted = _terms(whole), _terms(part)
    return plus(*(present - subtracted).elements()) if subtracted <= present else None


def _terms(dim: int | str) -> Counter[Dim]:
    """The terms of a dimension with their multiplicity. A minimum is one term, even of a sum."""
    if isinstance(dim, int) or "(" in dim:
        return Counter([dim])
    return Counter(d if (number := natural(d)) is None else number for d in terms(dim))


def terms(name: str) -> list[str]:
    """The terms of a name that states a sum, with or without spaces; the name alone if it states none."""
    return [term.strip() for term in name.split("+")]


def stated_size(name: str, sizes: Mapping[str, int]) -> int | None:
    """The size that a name states by names of sizes and numbers, such as past + rows, or (s0//4) + 1 from torch; else None."""
    parts = [part.strip() for part in _OPERATORS.split(name)]
    if len(parts) == 1 or len(name) > LONGEST_EXPRESSION:
        return None
    try:
        size = _result(ast.parse("".join(str(sizes.get(part, part)) for part in parts), mode="eval").body)
    except (SyntaxError, LookupError, ValueError, ZeroDivisionError):
        return None
    return size if size >= 0 else None


def _result(part: ast.expr) -> int:
    """The value of an expression of integers. Raises LookupError for another one."""
    if isinstance(part, ast.Constant) and type(part.value) is int:
        return part.value
    if not isinstance(part, ast.BinOp):
        raise LookupError
    return _ARITHMETIC[type(part.op)](_result(part.left), _result(part.right))


def at_most(limit: Dim, dim: Dim) -> Dim:
    """The minimum of two dimensions; None if it cannot be expressed."""
    if limit == dim:
        return dim
    if isinstance(limit, int) and isinstance(dim, int):
        return min(limit, dim)
    if isinstance(limit, str) and isinstance(dim, int):
        limit, dim = dim, limit
    return f"min({limit},{dim})" if isinstance(limit, int) and limit > 0 and isinstance(dim, str) else None


def stretches_to(dim: object, whole: object) -> bool:
    """True if a dimension that broadcasts to another one equals it. This includes min(whole, number) for a number above 1."""
    return dim == whole or (is_minimum(dim, whole) and not str(dim).startswith("min(1,"))


def with_stated_sizes(sizes: dict[str, int], names: Iterable[str]) -> dict[str, int]:
    """The sizes, with those of each of these names that states it by others, such as past + rows, set accordingly."""
    return sizes | {name: size for name in names if (size := stated_size(name, sizes)) is not None}


# ---------------------------------------------------------------------- broadcasting


def broadcast_shapes(shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape to which these shapes broadcast; None if it is unknown. A dimension that is uncertain is None."""
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes) or not known:
        return None
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(s)) + s for s in known]
    return tuple(broadcast_dims(dims) for dims in zip(*padded))


def broadcast_dims(dims: Iterable[Dim]) -> Dim:
    """The dimension to which these dimensions broadcast; None if it is uncertain, or if there is none.

    All dimensions other than 1 must be equal, so a number determines the result. Next to a dimension n, min(n, number) is n or 1.
    """
    others = [d for d in dims if d != 1]
    if not others:
        return 1
    for d in others:
        if d is not None and all(d == e or is_minimum(e, d) for e in others):
            return d
    numbers = {d for d in others if isinstance(d, int)}
    return numbers.pop() if len(numbers) == 1 else None


def is_minimum(dim: object, whole: object) -> bool:
    """True for the minimum of a dimension and a number."""
    return isinstance(dim, str) and dim.startswith("min(") and dim.endswith(f",{whole})")
