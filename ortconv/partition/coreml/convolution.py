"""Convolutions."""

from __future__ import annotations

from ortconv.ir.operators import MICROSOFT
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit
from ortconv.partition.checks import all_of, attribute_is, constant, dtype, rank
from ortconv.partition.coreml.checks import by_format, needs_version
from ortconv.partition.coreml.row import ML_PROGRAM, CoremlRow
from ortconv.partition.policy import Objection, Objections, Target

ACTIVATIONS = {"Relu": 0, "Sigmoid": 0, "Tanh": 0, "LeakyRelu": 1, "Clip": 2, "HardSigmoid": 2}
"""Activations of FusedConv, with the number of their parameters."""

MAX_DIM = 16384
"""Largest dimension: CoreML does not load convolutions with a larger one."""


def within_memory(unit: NodeUnit, target: Target) -> Objections:
    """Limit the dimensions of the image, the weights, and the result of a Conv."""
    results = () if unit.op == "ConvTranspose" else unit.target.present_outputs
    for value in (unit.input(0), unit.input(1), *results):
        longest = max((d for d in (value and value.shape) or () if isinstance(d, int)), default=0)
        if value is not None and longest > MAX_DIM:
            message = f"'{value.name}' has a dimension of {longest}: {target.name} accepts {MAX_DIM} at most here"
            yield Objection("dimension", message, "part it into several tensors")


def same_lower(unit: NodeUnit, target: Target) -> Objections:
    if unit.target.attr("auto_pad", "NOTSET") == "SAME_LOWER":
        yield from needs_version("auto_pad SAME_LOWER", 6, target)


def fused(unit: NodeUnit, target: Target) -> Objections:
    """Require an activation that CoreML has, with all its parameters, and no third operand to add."""
    yield from attribute_is("activation", *ACTIVATIONS)(unit, target)
    activation, given = unit.target.attr("activation", ""), len(unit.target.attr("activation_params", ()))
    if given != ACTIVATIONS.get(activation, given):
        message = f"{activation} has {given} activation_params: {target.name} needs {ACTIVATIONS[activation]}"
        yield Objection("attribute", message, "state them all")
    if unit.input(3) is not None:
        message = "the node adds input 3 before the activation: CoreML has convolution and activation only"
        yield Objection("inputs", message, "leave it in parts: convert --use-coreml")


def transposed(unit: NodeUnit, target: Target) -> Objections:
    """Require equal padding on all sides, no output_padding, and no output_shape."""
    node = unit.target
    pads: tuple[int, ...] = node.attr("pads", ())
    if len(set(pads)) > 1:
        message = f"pads are {list(pads)}: CoreML needs them equal"
        yield Objection("attribute", message, "pad equally and crop with Slice")
    extra: tuple[int, ...] = node.attr("output_padding", ())
    if any(extra):
        message = f"output_padding is {list(extra)}: CoreML accepts 0"
        yield Objection("attribute", message, "pad the result with Pad")
    if "output_shape" in node.attrs:
        message = f"output_shape is {list(node.attr('output_shape', ()))}: CoreML accepts none"
        yield Objection("attribute", message, "state pads instead")


PLAIN = all_of(rank(3, 4, 1), within_memory, by_format(constant(1, 2), all_of(constant(2), same_lower)))

ROWS = (
    CoremlRow("Conv", check=PLAIN),
    CoremlRow("FusedConv", formats=ML_PROGRAM, types=dtype(DType.FLOAT, DType.FLOAT16), check=all_of(PLAIN, fused),
        domains=(MICROSOFT,)),
    CoremlRow("ConvTranspose", formats=ML_PROGRAM,
        check=all_of(constant(1, 2), within_memory, attribute_is("auto_pad", "NOTSET", "VALID"), transposed)),
)  # fmt: skip
