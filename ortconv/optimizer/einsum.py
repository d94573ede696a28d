"""The equations of Einsum."""

from __future__ import annotations

from typing import NamedTuple

from ortconv.ir.graph import Ints, Node

ELLIPSIS = "..."

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class ProductAxes(NamedTuple):
    """The axes of a product: those of the stack, of the rows of its first operand, those that are summed, and of the columns."""

    batch: str
    rows: str
    summed: str
    columns: str


class Equation(NamedTuple):
    """The axes of the operands and of the result, one letter each."""

    operands: list[str]
    out: str

    @property
    def is_plain(self) -> bool:
        """True if no tensor has an axis twice, and the result has only axes of operands."""
        known = set("".join(self.operands))
        repeats = any(len(set(term)) < len(term) for term in (*self.operands, self.out))
        return not repeats and known.issuperset(self.out) and known.issubset(LETTERS)

    @property
    def product(self) -> ProductAxes | None:
        """The axes of a product of two operands; None if one is summed in one operand alone, or without two operands."""
        if len(self.operands) != 2:
            return None
        left, right = self.operands
        rows, columns = ("".join(c for c in a if c not in b) for a, b in ((left, right), (right, left)))
        batch, summed = ("".join(c for c in left if c in right and (c in self.out) is kept) for kept in (True, False))
        return ProductAxes(batch, rows, summed, columns) if {*batch, *rows, *columns} == {*self.out} else None

    @property
    def order(self) -> Ints | None:
        """The order of the first operand's axes in the result, if the equation does nothing else."""
        first, *others = self.operands
        if others or set(first) != set(self.out):
            return None
        return Ints(first.index(c) for c in self.out)


def equation_of(node: Node) -> Equation | None:
    """The equation of an Einsum; the axes of an ellipsis have letters of their own, and those of the result are stated.

    None if it repeats an axis within one tensor, or if the rank of an operand is unknown.
    """
    stated = str(node.attr("equation", "")).replace(" ", "")
    left, arrow, out = stated.partition("->")
    operands = left.split(",")
    if not arrow:  # the axes that only one operand has, in alphabetical order
        letters = left.replace(",", "").replace(ELLIPSIS, "")
        out = ELLIPSIS + "".join(sorted(c for c in letters if letters.count(c) == 1))
    hidden = _hidden(node, operands, "".join(c for c in LETTERS if c not in stated))
    if hidden is None:
        return None
    shown = [term.replace(ELLIPSIS, own) for term, own in zip(operands, hidden)]
    equation = Equation(shown, out.replace(ELLIPSIS, max(hidden, key=len)))
    return equation if equation.is_plain else None


def _hidden(node: Node, operands: list[str], spare: str) -> list[str] | None:
    """The letters of each operand's ellipsis, the last of those of the longest one; None if a rank is unknown."""
    counts = []
    for value, term in zip(node.inputs, operands, strict=False):
        rank = None if value is None else value.rank
        if rank is None:
            return None
        counts.append(max(0, rank - len(term) + len(ELLIPSIS)) if ELLIPSIS in term else 0)
    most = max(counts, default=0)
    return [spare[most - count : most] for count in counts] if counts and most <= len(spare) else None
