"""Checks used by NNAPI rules only: feature levels, static shapes, quantized forms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortconv.ir.operands import scalar
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import DType
from ortconv.ir.units import NodeUnit, UnitOperand
from ortconv.partition.checks import CHANGED, Check, dtype, dynamic, role, type_name
from ortconv.partition.policy import NUMBERS, Objection, Objections, Target


def needs_level(what: str, level: int, target: Target) -> Objections:
    if target.feature_level < level:
        message = f"{what} needs feature level {level}: the target has {target.feature_level}"
        yield Objection("feature-level", message, f"raise the feature level to {level} if all your devices have it")


def static_shapes(unit: NodeUnit, target: Target) -> Objections:
    """Require static shapes for all inputs, scales and zero points included."""
    for value in (part for operand in unit.inputs if operand is not None for part in operand.parts):
        if value.static_shape is None:
            yield dynamic(value, "NNAPI", "every dimension")


float32 = dtype(DType.FLOAT)
float32_or_uint8 = dtype(DType.FLOAT, DType.UINT8)


def nchw_level(what: str) -> Check:
    """Require feature level 29 if the target keeps the NCHW layout."""

    def check(unit: NodeUnit, target: Target) -> Objections:
        if target.use_nchw:
            yield from needs_level(f"{what} in NCHW layout", 29, target)

    return check


def images(unit: NodeUnit, target: Target) -> Objections:
    """Require feature level 28 for images, which are transposed to NHWC and back, unless the target keeps NCHW."""
    if not target.use_nchw and unit.rank(0) == 4:
        yield from needs_level(f"{unit.op} between Transposes to NHWC and back", 28, target)


def window(unit: NodeUnit, size: Sequence[int]) -> Objections:
    """Require explicit padding smaller than the dilated window, and a padded image that is at least as large as the window."""
    shape, mode = unit.shape(0), unit.target.attr("auto_pad", "NOTSET")
    if shape is None or len(shape) != len(size) + 2 or mode not in ("NOTSET", "VALID"):
        return
    dilations: tuple[int, ...] = unit.target.attr("dilations", (1,) * len(size))
    spans = [(cells - 1) * by + 1 for cells, by in zip(size, dilations, strict=True)]
    stated: tuple[int, ...] = () if mode == "VALID" else unit.target.attr("pads", ())
    pads = stated or (0,) * (2 * len(size))
    if any(pad >= span for pad, span in zip(pads, spans * 2, strict=True)):
        message = f"pads are {list(pads)} around a window of {spans}: NNAPI accepts padding smaller than the window"
        yield Objection("attribute", message, "pad with Pad before")
    padded = [n + a + b for n, a, b in zip(shape[2:], pads[: len(size)], pads[len(size) :], strict=True)]
    if any(0 < n < span for n, span in zip(padded, spans, strict=True)):
        yield Objection("shape", f"a window of {spans} does not fit into an image of {padded} with its padding")


# ---------------------------------------------------------------------- quantization


def quantized(activations: tuple[int, ...] = (0,), weights: int | None = None) -> Check:
    """Require the quantized form: uint8 activations and output, uint8 or int8 weights, constant scales and zero points per tensor.

    Only int8 weights may have them per channel. `activations` and `weights` are input slots.
    """

    def check(unit: NodeUnit, target: Target) -> Objections:
        for slot in range(len(unit.inputs)) if activations == EVERY else activations:
            yield from _activation(unit.inputs[slot] if slot < len(unit.inputs) else None, role(unit, slot))
        if weights is not None:
            yield from _weights(unit, weights, target)
        yield from quantized_output(unit, target)

    return check


def quantized_input(unit: NodeUnit, target: Target) -> Objections:
    """Require that the first input is uint8 with a constant scale and zero point per tensor."""
    yield from _activation(unit.inputs[0], role(unit, 0))


def quantized_output(unit: NodeUnit, target: Target) -> Objections:
    """Require that the first output is uint8 with a constant scale and zero point per tensor."""
    output = unit.outputs[0]
    yield from _activation(output, "the output" if output is None else f"output '{output.value.name}'")


EVERY = (-1,)
"""Value of quantized()'s `activations` for all inputs."""


SIGNED = "quantize activations to uint8, with zero points greater by 128"


def _activation(operand: UnitOperand | None, what: str) -> Objections:
    if operand is None or operand.scale is None:
        yield Objection("quantization", f"{what} is not quantized: NNAPI needs all tensors of this operator as uint8")
        return
    if operand.value.dtype is not DType.UINT8:
        message = f"{what} is {type_name(operand.value.dtype)}: NNAPI accepts uint8"
        yield Objection("quantization", message, SIGNED if operand.value.dtype is DType.INT8 else "")
    for name, value in (("scale", operand.scale), ("zero point", operand.zero_point)):
        if value is not None and value.constant is None:
            yield Objection("quantization", f"the {name} of {what} is computed or fed: NNAPI needs a constant")
        elif value is not None and value.constant is not None and value.constant.size != 1:
            message = f"the {name} of {what} has {value.constant.size} elements: NNAPI accepts 1 here"
            yield Objection("quantization", message, f"quantize per tensor, {CHANGED}")


def _weights(unit: NodeUnit, slot: int, target: Target) -> Objections:
    operand = unit.inputs[slot] if slot < len(unit.inputs) else None
    what = role(unit, slot)
    if operand is None or operand.scale is None or operand.value.dtype is DType.UINT8:
        yield from _activation(operand, what)
    elif operand.value.dtype is not DType.INT8:
        message = f"{what} is {type_name(operand.value.dtype)}: NNAPI accepts uint8 or int8"
        yield Objection("quantization", message, f"quantize weights to int8, {CHANGED}")
    else:
        channels = (operand.value.static_shape or (1,))[0]
        yield from _int8_scale(unit, operand.scale.constant, channels, what, target)
        if operand.zero_point is not None:
            yield from _int8_zero_point(operand.zero_point.constant, channels, what)


def _int8_scale(unit: NodeUnit, scale: Tensor | None, channels: int, what: str, target: Target) -> Objections:
    if scale is None:
        yield Objection("quantization", f"the scale of {what} is computed or fed: NNAPI needs a constant")
        return
    if scale.size == 1:
        return
    has = f"the scale of {what} has {scale.size} elements"
    if unit.op in ("MatMul", "QLinearMatMul"):
        yield Objection("quantization", f"{has}: NNAPI accepts 1 here", f"quantize per tensor, {CHANGED}")
    else:
        yield from needs_level("per-channel quantization", 29, target)
    if scale.size != channels:
        yield Objection("quantization", f"{has}: dimension 0 of the weights is {channels}")


def _int8_zero_point(zero: Tensor | None, channels: int, what: str) -> Objections:
    if zero is None:
        yield Objection("quantization", f"the zero point of {what} is computed or fed: NNAPI needs a constant")
        return
    if zero.size not in (1, channels):
        yield Objection("quantization", f"the zero point of {what} has {zero.size} elements, not 1 or {channels}")
    worst = max(zero.numpy().ravel().tolist(), key=abs, default=0)
    if worst != 0:
        message = f"the zero point of int8 {what} is {worst}: NNAPI accepts 0"
        yield Objection("quantization", message, f"quantize the weights symmetrically, {CHANGED}")


def parameters(operand: UnitOperand | None) -> tuple[float, int] | None:
    """The scale and zero point of a tensor; None if they are not constants of one element."""
    if operand is None or operand.scale is None:
        return None
    scale, zero = scalar(operand.scale), scalar(operand.zero_point, 0)
    return None if scale is None or zero is None else (float(scale), int(zero))


def bias_scale(unit: NodeUnit, target: Target) -> Objections:
    """Require that the integers of a quantized bias count steps of the product of the scales of input and weights: NNAPI knows no
    other scale of a bias, and no zero point.
    """
    operands = unit.inputs[:3] if unit.is_group else ()
    scales = [operand.scale.constant for operand in operands if operand is not None and operand.scale is not None]
    bias = unit.constant(2)
    if bias is None or len(scales) < 3 or operands[2] is None:
        return
    x, w, own = (np.zeros(0) if scale is None else scale.numpy().astype(np.float64).ravel() for scale in scales)
    integers, zero = bias.numpy().astype(np.float64).ravel(), operands[2].zero_point
    zeros = np.zeros(1) if zero is None or zero.constant is None else zero.constant.numpy().ravel()
    if any(one.size not in (1, integers.size) for one in (x, w, own, zeros)):
        return
    real, step = (integers - zeros) * own, x * w
    if not np.all(np.abs(real - integers * step) <= step / 2 + CLOSE * np.abs(real)):
        message = f"{role(unit, 2)} has not the product of the scales of input and weights as its scale"
        advice = f"quantize the bias with this product, {CHANGED}"
        yield Objection(NUMBERS, f"{message}, or a zero point: NNAPI takes it so", advice)


CLOSE = 1e-5
"""Relative tolerance of the scale of a bias."""


def coarser_output(level: int | None = None) -> Check:
    """Require a quantized output's scale above the product of the first two input scales; below feature level `level`, if given."""

    def check(unit: NodeUnit, target: Target) -> Objections:
        found = [parameters(operand) for operand in (*unit.inputs[:2], unit.outputs[0])]
        if None in found or (level is not None and target.feature_level >= level):
            return
        a, b, out = (np.float32(p[0]) for p in found if p is not None)
        if out > a * b:
            return
        limit = "" if level is None else f" below feature level {level} (the target has {target.feature_level})"
        message = f"the output has scale {out:.9g}, the inputs {a:.9g} and {b:.9g}"
        needed = f"NNAPI needs a scale above {a * b:.9g}{limit}"
        yield Objection("quantization", f"{message}: {needed}", f"quantize the output with a wider range, {CHANGED}")

    return check


def is_quantized(unit: NodeUnit) -> bool:
    """True for QDQ groups and QLinear operators."""
    return unit.outputs[0] is not None and unit.outputs[0].scale is not None and unit.op != "QuantizeLinear"


def output_of_256ths(unit: NodeUnit, target: Target) -> Objections:
    found = parameters(unit.outputs[0]) if is_quantized(unit) else None
    if found is not None and found != (1 / 256, 0):
        message = f"the output has scale {found[0]:.9g} and zero point {found[1]}: NNAPI has scale 0.00390625 and 0"
        advice = f"quantize this output with scale 1/256 and zero point 0, {CHANGED}"
        yield Objection("quantization", message, advice)


def keeps_parameters(unit: NodeUnit, target: Target) -> Objections:
    """Require, in the quantized form, the same scale and zero point on all inputs and the output."""
    if not is_quantized(unit):
        return
    output = parameters(unit.outputs[0])
    for slot, operand in enumerate(unit.inputs):
        found = parameters(operand)
        if found is not None and output is not None and found != output:
            own = f"{role(unit, slot)} has scale {found[0]:.9g} and zero point {found[1]}"
            message = f"{own}, the output {output[0]:.9g} and {output[1]}: NNAPI needs them equal"
            yield Objection("quantization", message, f"quantize input and output with the same range, {CHANGED}")
