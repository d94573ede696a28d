"""Matrix products."""

from __future__ import annotations

from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import all_of, attribute_is, constant, rank, role
from ortconv.partition.coreml.checks import by_format
from ortconv.partition.coreml.row import CoremlRow
from ortconv.partition.policy import Objection, Objections, Target


def gemm_bias(unit: NodeUnit, target: Target) -> Objections:
    """C must be a constant of one value or one row."""
    shape, weights = unit.shape(2), unit.shape(1)
    yield from constant(2)(unit, target)
    if shape is None or weights is None or len(weights) != 2:
        return
    columns = weights[0 if unit.target.attr("transB", 0) else 1]
    if shape not in ((), (1,), (columns,), (1, columns)):
        message = f"{role(unit, 2)} has shape {list(shape)}: CoreML accepts 1 value, [{columns}] or [1,{columns}]"
        yield Objection("shape", message, "add it with Add")


def no_vector(unit: NodeUnit, target: Target) -> Objections:
    """Refuse the product of a vector and a matrix, in which CoreML has a defect."""
    ranks = unit.rank(0), unit.rank(1)
    if None not in ranks and ranks.count(1) == 1:
        message = f"{role(unit, ranks.index(1))} has rank 1 and the other input {sum(r or 0 for r in ranks) - 1}"
        yield Objection("rank", f"{message}: {target.name} needs 2 at least", "add a dimension of 1 with a Reshape")


ONE_BETA = all_of(attribute_is("transA", 0), attribute_is("alpha", 1.0), attribute_is("beta", 1.0))

ROWS = (
    CoremlRow("Gemm", check=all_of(ONE_BETA, constant(1), gemm_bias)),
    CoremlRow("MatMul", check=by_format(all_of(rank(2, 2, 0, 1), constant(1)), no_vector)),
)
