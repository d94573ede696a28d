"""The shape of the result of an operator that broadcasts its operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortconv.ir.types import Dim, Shape


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

    All dimensions other than 1 must be equal, so a number determines the result. Next to a dimension n, min(n, number)
    is n or 1.
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
