"""ArgMax and Cast, which the NeuralNetwork format supports only as a pair, and operators that select elements by index."""

from __future__ import annotations

from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import all_of, attribute_is, constant, dtype, dynamic, no_objection, rank, type_name
from ortconv.partition.coreml.checks import MAX_RANK, by_format, float16_version, rank_within_limit, static, typed
from ortconv.partition.coreml.row import ML_PROGRAM, CoremlRow, judge
from ortconv.partition.policy import Objection, Objections, Target
from ortconv.partition.units import plain_unit

CASTS = (DType.FLOAT, DType.FLOAT16, DType.INT32, DType.INT64, DType.BOOL)


def alone_or_without_cast(unit: NodeUnit, target: Target) -> Objections:
    """Require that a Cast to int32 is the only reader of the ArgMax: the two are fused."""
    readers = [user for user, _ in unit.target.out.uses]
    if len(readers) > 1 and any(user.is_op("Cast") and user.attr("to", 0) == DType.INT32 for user in readers):
        message = f"{len(readers)} nodes read the result, one of them a Cast to int32: {target.name} needs that alone"
        yield Objection("outputs", message, "have all of them read the Cast")


ARGMAX = CoremlRow(
    "ArgMax", check=all_of(attribute_is("select_last_index", 0), by_format(alone_or_without_cast, no_objection))
)


def after_argmax(unit: NodeUnit, target: Target) -> Objections:
    """Require a Cast of an ArgMax to int32: the NeuralNetwork format has no casts, but an ArgMax that returns int32."""
    to = DType(unit.target.attr("to", 0))
    value = unit.input(0)
    maker = None if value is None else value.producer
    advice = "choose the format that has it: --coreml-format MLProgram"
    if maker is None or not maker.is_op("ArgMax"):
        yield Objection("operator", f"{target.name} casts only the result of ArgMax", advice)
    elif any(judge(ARGMAX, plain_unit(maker), target)):
        yield Objection("operator", f"{target.name} casts only the result of ArgMax, and refuses {maker.label}", advice)
    if to is not DType.INT32:
        yield Objection("attribute", f"to is {type_name(to)}: {target.name} casts to int32", advice)


def cast(unit: NodeUnit, target: Target) -> Objections:
    to = DType(unit.target.attr("to", 0))
    if to not in CASTS:
        known = ", ".join(map(type_name, CASTS))
        yield Objection("attribute", f"to is {type_name(to)}: {target.name} casts to {known}")


def gather(unit: NodeUnit, target: Target) -> Objections:
    """Limit the rank and require a static shape for a scalar index, which becomes Reshape, Gather and Squeeze."""
    data, indices = unit.input(0), unit.rank(1)
    if data is None or data.rank is None or indices is None:
        return
    yield from rank_within_limit("the result", data.rank + indices - 1, target)
    if indices == 0:
        yield from static(unit, target)
        if data.rank == 5:
            message = f"'{data.name}' has rank 5 and the index is a scalar: {target.name} accepts rank 4 at most then"
            yield Objection("rank", message, "index with a list of 1 and Squeeze")


def indexed(unit: NodeUnit, target: Target) -> Objections:
    """Require that the dimensions that the indices count are known."""
    data, indices = unit.input(0), unit.shape(1)
    yield from rank(1, MAX_RANK, 1)(unit, target)
    if data is None or data.shape is None or not indices or target.coreml_static_inputs:
        return
    if not all(isinstance(d, int) for d in data.shape[: indices[-1]]):
        yield dynamic(data, target.name, "every dimension that is indexed")


ROWS = (
    ARGMAX,
    CoremlRow("Cast", types=by_format(dtype(DType.INT64), dtype(*CASTS)), check=by_format(after_argmax, cast)),
    CoremlRow("Gather", types=typed(DType.FLOAT, DType.INT64), check=all_of(float16_version, gather)),
    CoremlRow("GatherND", formats=ML_PROGRAM, types=dtype(*CASTS),
        check=all_of(attribute_is("batch_dims", 0), constant(1), indexed)),
)  # fmt: skip
