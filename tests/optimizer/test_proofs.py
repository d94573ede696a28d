"""Every rewrite computes what it replaces, in exact arithmetic; docs/proofs.json says how nearly.

`UPDATE_GOLDEN=1 pytest tests/optimizer/test_proofs.py` writes that file again.
"""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest
from golden import ROOT, read
from proofs import table
from proofs.evaluate import WrongShapeError
from proofs.faults import FAULTS, Fault
from proofs.prove import prove
from proofs.real import Real, lifted

from ortconv.ir.graph import Graph
from ortconv.ir.types import DType, TensorType
from tests.batches import slow_except


@pytest.mark.slow
def test_table() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        table.store()
    assert table.table() == table.stored()


def test_nothing_is_unproved() -> None:
    assert [name for name, verdict in table.stored().items() if verdict.startswith("not proved")] == []


def test_approximations_are_rewrites() -> None:
    assert {name for name, v in table.stored().items() if v.startswith("approximate")} == set(table.APPROXIMATE)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=[f"{f.case} {f.what}" for f in FAULTS])
def test_planted_fault(fault: Fault) -> None:
    """What is wrong after a rewrite is no rounding of constants."""
    case = read(ROOT / f"{fault.case}.txt")
    *_, right = prove(case)
    try:
        *_, wrong = prove(case, fault.plant)
    except WrongShapeError:
        return
    assert wrong.digits < min(right.digits, 6) or wrong.steps > right.steps


@pytest.mark.parametrize("dim", slow_except(["M"], (1, "M")))
def test_shapes_that_do_not_hold(dim: int | str) -> None:
    """Neither a number that differs, nor a symbol of another dimension."""

    def plant(graph: Graph) -> None:
        (y,) = graph.outputs
        y.retype(TensorType(DType.FLOAT, (dim, "M", 3, 3)))

    with pytest.raises(WrongShapeError, match="'y' is declared as"):
        prove(read(ROOT / "layout/nchwc/pooled.txt"), plant)


def test_numbers_are_exact() -> None:
    third = lifted(np.array([1, 2])) / lifted(np.array([3, 3]))
    assert [x.value for x in third] == [Fraction(1, 3), Fraction(2, 3)]
    assert (third.sum() - 1).value == 0
    assert abs(np.exp(lifted(np.array([1])))[0] - Real(np.e)) < 1e-15
    assert Real(Fraction(5, 2)).rint().value == 2
    assert np.sqrt(lifted(np.array([0.25])))[0].value == Fraction(1, 2)
