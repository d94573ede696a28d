"""Int8 steps: QLinear operators, and float products between DequantizeLinear and QuantizeLinear.

Their functions accept centered values and return them in a new array: 8-bit values minus their zero point, stored as float32.
Float32 sums of products of these are exact up to `EXACT_SUM`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.blockwise import blockwise
from ortconv.executor.algorithms.conv import convolution
from ortconv.executor.algorithms.gemm_exact import EXACT_SUM, INPUT_REACH, IntegerWeights, less_zero_point, one_sided
from ortconv.executor.algorithms.rounding import quantize_centered
from ortconv.executor.fusion.elementwise_ops import Code, Temporary, clip_bounds
from ortconv.executor.fusion.elementwise_program import BlockProgram
from ortconv.executor.fusion.group import Scope
from ortconv.executor.replay.numerics import clip_to, f32
from ortconv.executor.replay.work import Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_CONVOLUTIONS = frozenset({"Conv", "QLinearConv"})

_RESULT_AND_BIAS = {"QLinearConv": (6, 8), "QLinearMatMul": (6, 8), "QGemm": (7, 6)}
"""Slots of the scale of the result, and of the bias."""

Limits = tuple[Array, Array]
"""The lowest and the highest centered value."""


class Quantization(NamedTuple):
    """The quantization of an 8-bit tensor; scale and zero point are scalars."""

    scale: Array
    zero_point: Array

    @property
    def is_sound(self) -> bool:
        """True for bytes with a finite, positive scale of float32."""
        has_types = self.scale.dtype == np.float32 and self.zero_point.dtype in (np.uint8, np.int8)
        return has_types and 0 < self.scale.item() < inf

    @property
    def limits(self) -> Limits:
        info = np.iinfo(self.zero_point.dtype)
        return f32(info.min - int(self.zero_point)), f32(info.max - int(self.zero_point))

    @property
    def to_bytes(self) -> Function:
        """The quantized values of centered values."""
        zero = f32(self.zero_point)
        return blockwise(lambda part, out: np.add(part, zero, out, casting="unsafe"), self.zero_point.dtype)

    @property
    def quantize(self) -> Function:
        """Function from float32 to centered values, as QuantizeLinear computes them. NaN becomes the lowest."""
        (low, high), scale = self.limits, self.scale
        return blockwise(lambda part, out: quantize_centered(part, scale, low, high, out))

    @property
    def dequantize(self) -> Function:
        """The float32 numbers of centered values."""
        scale, zero = self.scale, f32(0)  # quantized values have no negative zero
        return blockwise(lambda part, out: np.add(np.multiply(part, scale, out), zero, out))


def rounded(sums: Function, bias: Array | None, factor: Array, limits: Limits) -> Function:
    """rint((sums + bias) * factor) within limits, in the memory of the sums. Bias and factor broadcast to the sums."""
    given, code = Temporary(), Code()
    made = given if bias is None or not bias.any() else code.add(np.add, given, f32(bias))
    code.add(clip_to, code.add(np.rint, code.add(np.multiply, made, f32(factor))), *limits)
    program = BlockProgram(code.instructions, given, ())

    def run(work: Work, x: Array) -> Array | None:
        y: Array | None = work.call(sums, x)
        return program.run(work, y, ()) if y is not None and y.size else y

    return recordable(run)


def matrix_product(w: Array) -> Function:
    """A function of centered values (..., K) that multiplies by integer weights (K, N)."""
    weights = IntegerWeights(w)

    def run(work: Work, x: Array) -> Array:
        if x.shape[-1] != len(w):
            raise GraphError(f"the weights have {len(w)} rows, the input is {list(x.shape)}")
        return weights.multiply(work, x)

    return recordable(run)


def qlinear_sum(p: Quantization, q: Quantization, y: Quantization) -> Function:
    """QLinearAdd of centered values, which broadcast: two fused multiply-adds, that of the second operand first. float64
    represents their products exactly.
    """
    zero_a, zero_b, zero_y = (f32(v.zero_point) for v in (p, q, y))
    ratio_a, ratio_b = (f32(v.scale / y.scale) for v in (p, q))
    offset = np.asarray(zero_y - (ratio_a * zero_a + ratio_b * zero_b), np.float64)
    wide_a, wide_b, limits = ratio_a.astype(np.float64), ratio_b.astype(np.float64), y.limits

    def block(a: Array, b: Array, out: Array) -> None:
        addend = ((b + zero_b) * wide_b + offset).astype(np.float32)
        np.copyto(out, (a + zero_a) * wide_a + addend, "same_kind")
        clip_to(np.rint(out) - zero_y, *limits, out)

    add = blockwise(block)
    return recordable(lambda work, a, b: work.call(add, *np.broadcast_arrays(a, b)))


class Int8Step(NamedTuple):
    """An operator that computes quantized values, from quantized values or from float32."""

    nodes: tuple[Node, ...]
    """The last node computes the result."""
    reads: tuple[tuple[Value | None, Quantization], ...]
    makes: Quantization
    function: Function
    bypassed: tuple[Node, ...] = ()
    """DequantizeLinear nodes whose inputs the step reads instead of their outputs."""
    enters: bool = False
    """True if it computes quantized values from float32."""


def is_dequantize(node: Node) -> bool:
    return node.op == "DequantizeLinear" and node.domain in ("", MICROSOFT)


def is_of_weights(node: Node) -> bool:
    """True for a DequantizeLinear that a step may not need: its output is used only as weights of products."""
    return is_dequantize(node) and all(user.op in _PRODUCTS and slot == 1 for user, slot in node.out.uses)


class Int8Steps:
    """The int8 steps of a scope, by their last node."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.found: dict[Node, Int8Step] = {}
        self._made: set[Value] = set()
        self._parameters: dict[tuple[Value | None, Value | None], Quantization | None] = {}
        for node in scope.nodes:
            match = _MATCHES.get((node.domain, node.op))
            step = None if match is None else match(self, node) or self._entry(node)
            if step is not None:
                self.found[node] = step
                self._made.add(node.out)

    def _entry(self, node: Node) -> Int8Step | None:
        """The step that quantizes float32 values that no other step has computed."""
        x = node.inputs[0] if node.op == "QuantizeLinear" else None
        made = None if x is None or x.dtype is not DType.FLOAT else self.quantization(node)
        return None if made is None else Int8Step((node,), ((x, made),), made, made.quantize, enters=True)

    def quantization(self, node: Node, scale: int = 1, zero_point: int = 2) -> Quantization | None:
        """The constant quantization parameters of a tensor with one scale."""
        if any(node.attr(name, 0) for name in ("block_size", "output_dtype", "precision")):
            return None
        values = node.input(scale), node.input(zero_point)
        if values not in self._parameters:
            known = map(self.scope.constant, values)
            scalars = [v.reshape(()) for v in known if v is not None and v.size == 1]
            found = Quantization(*scalars) if len(scalars) == 2 else None
            self._parameters[values] = found if found is not None and found.is_sound else None
        return self._parameters[values]

    def _constants(self, node: Node, *slots: int) -> list[Array | None] | None:
        """The arrays of some inputs, None for absent ones. None if one of them is not constant."""
        values = [node.input(slot) for slot in slots]
        known = [*map(self.scope.constant, values)]
        return known if all((k is None) == (v is None) for k, v in zip(known, values, strict=True)) else None

    def _dequantized(self, value: Value | None) -> tuple[Node, Quantization] | None:
        """The DequantizeLinear that computes a value, and its quantization."""
        node = None if value is None else value.producer
        if node is None or node not in self.scope.index or not is_dequantize(node):
            return None
        found = self.quantization(node)
        return None if found is None else (node, found)

    def of_quantize(self, node: Node) -> Int8Step | None:
        """A float product between DequantizeLinear and this QuantizeLinear."""
        made = self.quantization(node)
        if made is None:
            return None
        nodes, limits = [node], made.limits
        before = self.scope.maker(node.inputs[0], nodes)
        while before is not None and before.op in ("Relu", "Clip") and not before.domain:
            narrower = self._narrowed(before, limits, made)
            if narrower is None:
                return None
            nodes, limits = [before, *nodes], narrower
            before = self.scope.maker(before.inputs[0], (before,))
        if before is None or before.op not in _PRODUCTS or before.domain:
            return None
        return self._float_product(before, [before, *nodes], made, limits)

    def _narrowed(self, node: Node, limits: Limits, made: Quantization) -> Limits | None:
        """The limits of centered values, combined with those of a preceding Relu or Clip."""
        bounds = clip_bounds(node, self.scope.constant) if node.op == "Clip" else (f32(0), f32(np.inf))
        if bounds is None or np.isnan(bounds).any():
            return None
        low, high = (f32(np.rint(bound / made.scale).clip(*limits)) for bound in bounds)
        return low, high

    def _float_product(self, node: Node, nodes: list[Node], made: Quantization, limits: Limits) -> Int8Step | None:
        source, weights, known = self._dequantized(node.inputs[0]), self._weights(node), self._constants(node, 2)
        if source is None or weights is None or known is None:
            return None
        (dequantize, x), (of_weights, w, w_scale), (b,) = source, weights, known
        if not _suit(node, w, b):
            return None
        unit = x.scale.astype(np.float64) * w_scale
        factor, shift = f32(unit / made.scale), None if b is None else f32(b.reshape(-1) / unit)
        if not all(v is None or np.isfinite(v).all() for v in (factor, shift)):
            return None
        function = _product(node, w, shift, factor, limits, is_exact=False)
        return Int8Step(tuple(nodes), ((dequantize.inputs[0], x),), made, function, (dequantize, of_weights))

    def _weights(self, product: Node) -> tuple[Node, Array, Array] | None:
        """The node that dequantizes the weights of a product; the weights as integers minus their zero points, with the
        output channels first; and their scales, one or one per channel.
        """
        value = product.inputs[1]
        node = None if value is None else value.producer
        if node is None or not is_dequantize(node) or node.attr("block_size", 0) or node.attr("output_dtype", 0):
            return None
        q, scale, zero = self._constants(node, 0, 1, 2) or (None,) * 3
        if q is None or scale is None or not _are_weights(q, scale):
            return None
        axis = 0 if product.op == "Conv" or product.attr("transB", 0) else 1
        is_per_channel = scale.size == q.shape[axis] and node.attr("axis", 1) % q.ndim == axis
        if scale.size > 1 and not is_per_channel:
            return None
        return node, _centered_weights(q.T if axis else q, zero), scale.reshape(-1).astype(np.float64)

    def of_qlinear_product(self, node: Node) -> Int8Step | None:
        """A product with constant weights whose sums are exact in float32."""
        y, bias_slot = _RESULT_AND_BIAS[node.op]
        x, made = self.quantization(node, 1, 2), self.quantization(node, y, y + 1)
        known = self._constants(node, 3, 4, 5, bias_slot)
        if x is None or made is None or known is None:
            return None
        q, scale, zero, bias = known
        if q is None or scale is None or zero is None or not _are_weights(q, scale):
            return None
        q = q if node.op == "QLinearConv" or node.attr("transB", 0) else q.T
        if zero.size not in (1, len(q)):
            return None
        w = _centered_weights(q, zero)
        fits = all(v is None or v.size in (1, len(w)) for v in (scale, bias))
        largest = 0 if bias is None else np.abs(bias.astype(np.float64)).max(initial=0)
        if not _suit(node, w, bias) or not fits or INPUT_REACH * one_sided(w) + largest > EXACT_SUM:
            return None
        function = _product(node, w, bias, x.scale * scale / made.scale, made.limits, is_exact=True)
        return Int8Step((node,), ((node.inputs[0], x),), made, function)

    def of_qlinear_add(self, node: Node) -> Int8Step | None:
        a, b, y = (self.quantization(node, i, i + 1) for i in (1, 4, 6))
        reads = (node.inputs[0], node.inputs[3])
        if a is None or b is None or y is None or not any(v in self._made for v in reads):
            return None
        return Int8Step((node,), ((reads[0], a), (reads[1], b)), y, qlinear_sum(a, b, y))


_MATCHES: dict[tuple[str, str], Callable[[Int8Steps, Node], Int8Step | None]] = {
    ("", "QuantizeLinear"): Int8Steps.of_quantize, (MICROSOFT, "QuantizeLinear"): Int8Steps.of_quantize,
    ("", "QLinearConv"): Int8Steps.of_qlinear_product, (MICROSOFT, "QLinearConv"): Int8Steps.of_qlinear_product,
    ("", "QLinearMatMul"): Int8Steps.of_qlinear_product, (MICROSOFT, "QGemm"): Int8Steps.of_qlinear_product,
    (MICROSOFT, "QLinearAdd"): Int8Steps.of_qlinear_add,
}  # fmt: skip


def _are_weights(q: Array, scale: Array) -> bool:
    return q.ndim > 1 and q.dtype in (np.uint8, np.int8) and scale.dtype == np.float32


def _centered_weights(q: Array, zero: Array | None) -> Array:
    """(M, C, kernel...) as integers, minus one or M zero points."""
    return less_zero_point(q, None if zero is None else zero.reshape(-1, *(1,) * (q.ndim - 1)))


def _suit(node: Node, w: Array, bias: Array | None) -> bool:
    """True for weights (M, C / group, kernel...) of a convolution, or (N, K) of a product without factors whose bias is that of
    all rows. Weights that the kernel refuses, and empty ones, do not suit.
    """
    if node.op in _CONVOLUTIONS:
        group = node.attr("group", 1)
        return w.size > 0 and w.ndim > 2 and group > 0 and len(w) % group == 0
    given = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0} | dict(node.attrs)
    is_plain = given.pop("transB") in (0, 1) and given == {"alpha": 1.0, "beta": 1.0, "transA": 0}
    fits = bias is None or bias.size == 1 or bias.shape in ((len(w),), (1, len(w)))
    return w.size > 0 and w.ndim == 2 and is_plain and fits


def _product(node: Node, w: Array, bias: Array | None, factor: Array, limits: Limits, is_exact: bool) -> Function:
    """The function that computes a product and rounds it. Bias and factor have one number, or one per output of the weights."""
    along = (-1, *(1,) * (w.ndim - 2))
    is_convolution = node.op in _CONVOLUTIONS
    sums = convolution(w, node.attr("group", 1), node.attrs, is_exact) if is_convolution else matrix_product(w.T)
    function = rounded(sums, None if bias is None else bias.reshape(along), factor.reshape(along), limits)
    if not node.attr("channels_last", 0):
        return function
    return recordable(lambda work, x: np.moveaxis(work.call(function, np.moveaxis(x, -1, 1)), 1, -1))
