"""The vocabulary of passes for quantized models: quantizers, and the integers before and after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ortconv.ir.graph import Attribute, Node, Value
from ortconv.ir.operands import clip_bounds, constant_of
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import INT32_MAX, DType
from ortconv.optimizer.conditions import array_of
from ortconv.optimizer.engine import New, NewInput, constant
from ortconv.optimizer.pattern import P

DOMAINS = ("", MICROSOFT)
"""Domains that have QuantizeLinear and DequantizeLinear."""

OPS = ("QuantizeLinear", "DequantizeLinear")
QUANTIZE, DEQUANTIZE = (tuple((domain, op) for domain in DOMAINS) for op in OPS)
QUANTIZERS = QUANTIZE + DEQUANTIZE

BYTES = frozenset({DType.UINT8, DType.INT8})
INTEGERS = BYTES | {DType.UINT16, DType.INT16}

SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e30
"""With a scale in this range nothing underflows or overflows: quantizing the dequantized x results in exactly x."""


def is_quantizer(node: Node | None, op: str) -> bool:
    return node is not None and node.op == op and node.domain in DOMAINS


def is_single(value: Value | None) -> bool:
    """True for an absent parameter, or one with a single element for the whole tensor: a scalar, or a constant that becomes one."""
    return value is None or value.static_shape == () or (value.static_shape == (1,) and value.constant is not None)


LIMITS: dict[DType | None, tuple[int, int]] = {
    DType.UINT8: (0, 255), DType.INT8: (-128, 127), DType.UINT16: (0, 65535), DType.INT16: (-32768, 32767),
    DType.UINT4: (0, 15), DType.INT4: (-8, 7), DType.UINT2: (0, 3), DType.INT2: (-2, 1),
}  # fmt: skip
"""The smallest and largest integer of a type."""


class Quantized(NamedTuple):
    """Integers that represent (value - zero_point) * scale, in float32, with one scale or one for each index of `axis`."""

    value: Value
    scale: Value
    zero_point: Value | None
    axis: int

    @property
    def dtype(self) -> DType | None:
        return self.value.dtype

    @property
    def zero(self) -> NewInput:
        """The zero point; if it is absent, one is created for each scale."""
        assert self.dtype is not None
        return np.zeros(self.scale.static_shape or (), self.dtype.numpy) if self.zero_point is None else self.zero_point

    @property
    def is_per_tensor(self) -> bool:
        return is_single(self.scale) and is_single(self.zero_point)

    @property
    def is_constant(self) -> bool:
        """True if scale and zero point are constant."""
        return self.scale.constant is not None and (self.zero_point is None or self.zero_point.constant is not None)

    @property
    def operand(self) -> list[NewInput]:
        """Tensor, scale and zero point: the form in which integer operators read a tensor."""
        return [self.value, *self.parameters]

    @property
    def parameters(self) -> list[NewInput]:
        """Scale and zero point: the form in which integer operators read the parameters of their output."""
        both: list[NewInput] = [self.scale, self.zero]
        keeps_axis = self.scale.constant is None and self.scale.static_shape == (1,)
        return both if keeps_axis else [_without_axis(part) for part in both]


def _without_axis(parameter: NewInput) -> NewInput:
    """A constant of shape (1,) as a scalar, because not all integer operators support the former."""
    content = parameter.constant if isinstance(parameter, Value) else parameter
    if not isinstance(content, (Tensor, np.ndarray)) or content.shape != (1,):
        return parameter
    return (content.numpy() if isinstance(content, Tensor) else content).reshape(())


def dequantized(value: Value | None, reader: Node) -> Quantized | None:
    """The integers that a DequantizeLinear, of the reader's graph and provider, converts to this float32 value; else None."""
    node = None if value is None else value.producer
    if node is None or not is_quantizer(node, "DequantizeLinear"):
        return None
    if node.graph is not reader.graph or node.ep != reader.ep:
        return None
    return quantized(node)


def quantizer(node: Node) -> Quantized | None:
    """The integers that a QuantizeLinear of a float32 value returns; None for any other node."""
    return quantized(node) if node.attr("precision", 0) in (0, DType.FLOAT) else None


def quantized(node: Node) -> Quantized | None:
    """The integers of a Q or DQ node whose reals are float32; None if constant scales are out of range, or for blocks."""
    integers, reals = (node.out, node.input(0)) if node.op == "QuantizeLinear" else (node.input(0), node.out)
    scale = node.input(1)
    if integers is None or reals is None or scale is None or node.attr("block_size", 0):
        return None
    if reals.dtype is not DType.FLOAT or integers.dtype is None or not _may_scale(scale):
        return None
    return Quantized(integers, scale, node.input(2), int(node.attr("axis", 1)))


def _may_scale(scale: Value) -> bool:
    """True for a float32 scale, unless it is known to be out of range."""
    known = elements(scale)
    fits = known is None or (known.size and known.min() > SMALLEST_SCALE and known.max() < LARGEST_SCALE)
    return scale.dtype is DType.FLOAT and bool(fits)


def elements(value: Value | None) -> Array | None:
    """A constant's elements as a vector of float64; None if it is not constant."""
    const = constant_of(value)
    return None if const is None else const.numpy().reshape(-1).astype(np.float64)


def zero_points(q: Quantized) -> Array | None:
    """The constant zero points as a vector of float64, a single 0 if they are absent; None if they are computed."""
    return np.zeros(1) if q.zero_point is None else elements(q.zero_point)


def same_parameters(a: Quantized, b: Quantized) -> bool:
    """True if both have the same type, and equal constants as scale and zero point of all elements."""
    scale, other = elements(a.scale), elements(b.scale)
    if scale is None or other is None or a.dtype is not b.dtype or not (a.is_per_tensor and b.is_per_tensor):
        return False
    zero, other_zero = zero_points(a), zero_points(b)
    return zero is not None and other_zero is not None and (scale[0], zero[0]) == (other[0], other_zero[0])


def is_scaled_along(q: Quantized, axis: int) -> bool:
    """True for one scale and zero point, or one for each index of `axis`."""
    if q.is_per_tensor:
        return True
    rank, zero = q.value.rank, zero_points(q)
    if rank is None or zero is None or not -rank <= q.axis < rank or q.axis % rank != axis % rank:
        return False
    length, scales = q.value.dim(axis), q.scale.static_shape
    return isinstance(length, int) and scales == (length,) and zero.size in (1, length)


def scale_of_sum(x: Quantized, w: Quantized) -> Array | None:
    """The scale of a sum of products in integers: one number, or one for each output channel; None if it is computed."""
    a, b = elements(x.scale), elements(w.scale)
    return None if a is None or b is None else a * b


FINE = 1 / 8
"""The largest scale of the sum, relative to the scale of the result, at which a float bias may be rounded to it."""


def rounded_bias(bias: Array, unit: Array, y: Quantized | None) -> Array | None:
    """A vector of reals as int32 with the scale `unit`; None if that rounds them, though it is not fine enough for the result y."""
    codes, step = as_int32(bias, unit), None if y is None else elements(y.scale)
    is_fine = step is not None and np.all(unit <= step[0] * FINE)
    return codes if codes is not None and (is_fine or np.array_equal(codes * unit, bias)) else None


def as_int32(reals: Array, unit: Array) -> Array | None:
    """A vector divided by one scale, or one for each element, and rounded; None if int32 cannot hold it."""
    if reals.ndim != 1 or unit.size not in (1, reals.size):
        return None
    codes = np.rint(reals.astype(np.float64) / unit)
    return codes.astype(np.int32) if np.all(np.abs(codes) < INT32_MAX) else None


def constant_reals(value: Value, reader: Node) -> Array | None:
    """A float32 constant, or one that is stored as integers with their scales; None for any other value."""
    const, q = value.constant, dequantized(value, reader)
    if q is not None:
        return _reals(q)
    return const.numpy() if const is not None and const.dtype is DType.FLOAT else None


def _reals(q: Quantized) -> Array | None:
    """Constant integers, or a vector with a scale for each, as float32; None for any others."""
    codes, scale, zero = q.value.constant, q.scale.constant, zero_points(q)
    if codes is None or scale is None or zero is None or codes.dtype not in INTEGERS | {DType.INT32}:
        return None
    if not q.is_per_tensor and not (codes.rank == 1 and scale.shape == codes.shape and zero.size in (1, scale.size)):
        return None
    integers, steps = codes.numpy().astype(np.float64), scale.numpy().reshape(-1)
    return (integers - (zero if codes.rank else zero[0])).astype(np.float32) * (steps if codes.rank else steps[0])


CLOSE = 1e-6
"""Relative tolerance for the scale of a bias to equal the scale of the sum."""


def is_in_unit(q: Quantized, unit: Array) -> bool:
    """True if a bias is int32 and has zero point 0 and, up to rounding, this scale."""
    scale, zero = elements(q.scale), zero_points(q)
    if q.dtype is not DType.INT32 or scale is None or zero is None or zero.any():
        return False
    length = q.value.dim(-1) if q.value.rank else 1
    if scale.size not in (1, length) or unit.size not in (1, length):
        return False
    if not q.is_per_tensor and q.value.rank != 1:
        return False
    return bool(np.all(np.abs(scale - unit) <= CLOSE * unit))


def _saturates(q: Node, number: float, *, low: bool) -> bool:
    """True if the number, quantized in float32, is the smallest or largest integer everywhere."""
    y = quantizer(q)
    if y is None or y.dtype not in LIMITS:
        return False
    if number == (-np.inf if low else np.inf):
        return True
    codes, (bottom, top) = codes_of(y, number), LIMITS[y.dtype]
    return codes is not None and bool(np.all(codes <= bottom) if low else np.all(codes >= top))


def is_implied(q: Node, clamp: Node) -> bool:
    """True if the integers of a QuantizeLinear imply the bounds of a Relu or Clip."""
    low, high = clip_bounds(clamp)
    return _saturates(q, low, low=True) and _saturates(q, high, low=False)


def codes_of(y: Quantized, number: float) -> Array | None:
    """A number, quantized in float32 with each scale, but not limited; None if that is not constant."""
    scale, zero = elements(y.scale), zero_points(y)
    if scale is None or zero is None or np.isnan(number):
        return None
    with np.errstate(over="ignore"):
        codes: Array = np.rint(np.float32(number) / scale.astype(np.float32)) + zero
    return codes


def raised_to_uint8(integers: Array) -> Array:
    """int8 integers as uint8, 128 higher: with the zero point raised as well, the reals stay the same."""
    return np.asarray(integers.view(np.uint8) ^ np.uint8(128))


def as_unsigned(q: Quantized, near: Node) -> Quantized:
    """An int8 constant as uint8, with the same real values."""
    zero = zero_points(q)
    assert zero is not None
    value = constant(near, raised_to_uint8(array_of(q.value)))
    return q._replace(value=value, zero_point=constant(near, np.array(zero[0] + 128, np.uint8)))


def quantize_patterns(*inner: P) -> tuple[P, ...]:
    """Patterns of QuantizeLinear, in either domain, with one of the given patterns as input."""
    return tuple(P("QuantizeLinear", p, "scale", "zero_point?", domain=d) for p in inner for d in DOMAINS)


def microsoft(op: str, inputs: list[NewInput], like: Node, attrs: Mapping[str, Attribute] | None = None) -> New:
    """A node of ONNX Runtime's own domain, with the name of the node that it replaces."""
    return New(op, inputs, attrs or {}, domain=MICROSOFT, like=like)


def scaled_axes(node: Node) -> tuple[int, ...] | None:
    """The axis along which a quantizer has different scales, as stated; () for one scale, None for blocks or an unknown scale."""
    scale = node.input(1)
    if scale is None or scale.rank is None or node.attr("block_size", 0):
        return None
    if scale.rank == 0 or scale.static_shape == (1,):
        return ()
    return (node.attr("axis", 1),) if scale.rank == 1 and node.domain == "" else None


def dequantizer_like(value: Value, inputs: list[NewInput], domain: str) -> New:
    """A DequantizeLinear of new constants, with the type of a value: integers, and one scale or one for each index of axis 0."""
    scales = inputs[1]
    attrs: dict[str, Attribute] = {"axis": 0} if isinstance(scales, np.ndarray) and scales.ndim else {}
    return New("DequantizeLinear", inputs, attrs, domain=domain, types=(value.type,))
