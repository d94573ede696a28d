"""Recognizes int8 operators: QLinear nodes, and float nodes between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.conv import EXACT_SUM
from ortconv.executor.algorithms.gemm_exact import INPUT_REACH, one_sided
from ortconv.executor.algorithms.gemm_int8 import less_zero_point
from ortconv.executor.fusion.conv import has_input_in_every_window
from ortconv.executor.fusion.elementwise_ops import Clip
from ortconv.executor.fusion.elementwise_program import BlockProgram, Instruction
from ortconv.executor.fusion.group import Bind, Constant
from ortconv.executor.fusion.int8_add import dequantized_sum, exact_sum, factors, qlinear_sum
from ortconv.executor.fusion.int8_ops import (
    Convolution,
    Limits,
    Quantization,
    Rounding,
    convolution,
    global_average,
    matrix_product,
)
from ortconv.executor.replay.work import AT_ONCE, Function, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import Trait, named
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

_MS = "com.microsoft"
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_MOVES = frozenset({*named(Trait.ORDERED), "MaxPool", "Transpose"})
"""Operators whose results are some of the values that they read."""
_POOLS = frozenset({"MaxPool", "NhwcMaxPool"})


class Int8Step(NamedTuple):
    """An operator that makes quantized values, of quantized values or of float32."""

    nodes: tuple[Node, ...]
    """The last one makes the result."""
    reads: tuple[tuple[Value | None, Quantization], ...]
    makes: Quantization
    function: Function
    bypassed: tuple[Node, ...] = ()
    """The DequantizeLinear nodes whose inputs it reads instead of their outputs."""
    enters: bool = False
    """True where it makes quantized values of float32."""
    moves: bool = False
    """True where its results are some of the values that it reads."""
    pool: Function | None = None
    """A MaxPool, of any numbers."""
    convolution: Convolution | None = None


def is_dequantize(node: Node) -> bool:
    return node.op == "DequantizeLinear" and node.domain in ("", _MS)


def is_of_weights(node: Node) -> bool:
    """True for a DequantizeLinear that a step may not need: all that it makes is weights of products."""
    return is_dequantize(node) and all(user.op in _PRODUCTS and slot == 1 for user, slot in node.out.uses)


class Int8Steps:
    """The steps among some nodes, by their last node. `kept` are read outside."""

    def __init__(self, nodes: Sequence[Node], constant: Constant, bind: Bind, kept: set[Value]) -> None:
        self._constant, self._bind, self._kept = constant, bind, kept
        self.inside = set(nodes)
        self.found: dict[Node, Int8Step] = {}
        self._made: set[Value] = set()
        self._parameters: dict[tuple[Node, int], Quantization | None] = {}
        for node in nodes:
            match = _MATCHES.get((node.domain, node.op))
            step = None if match is None else match(self, node) or self._entry(node)
            if step is not None:
                self.found[node] = step
                self._made.add(node.out)

    def _entry(self, node: Node) -> Int8Step | None:
        """The quantized values that a QuantizeLinear makes of float32 that no step has made."""
        x = node.inputs[0] if node.op == "QuantizeLinear" else None
        codes = None if x is None or x.dtype is not DType.FLOAT else self.codes(node)
        return None if codes is None else Int8Step((node,), ((x, codes),), codes, codes.quantize, enters=True)

    def codes(self, node: Node, scale: int = 1, zero_point: int = 2) -> Quantization | None:
        """The constant parameters of a tensor that is quantized with one scale."""
        key = node, scale
        if key not in self._parameters:
            self._parameters[key] = self._read_quantization(node, scale, zero_point)
        return self._parameters[key]

    def _read_quantization(self, node: Node, scale: int, zero_point: int) -> Quantization | None:
        known = [None if v is None else self._constant(v) for v in (node.input(scale), node.input(zero_point))]
        if known[0] is None or known[1] is None or known[0].size != 1 or known[1].size != 1:
            return None
        codes = Quantization(known[0].reshape(()), known[1].reshape(()))
        if codes.scale.dtype != np.float32 or codes.zero_point.dtype not in (np.uint8, np.int8):
            return None
        if any(node.attr(name, 0) for name in ("block_size", "output_dtype", "precision")):
            return None
        return codes if np.isfinite(codes.scale) and codes.scale > 0 else None

    def _dequantized(self, value: Value | None) -> tuple[Node, Quantization] | None:
        """The DequantizeLinear that makes a value."""
        node = None if value is None else value.producer
        codes = None if node not in self.inside or not is_dequantize(node) else self.codes(node)
        return None if codes is None or node is None else (node, codes)

    def _alone(self, value: Value | None) -> Node | None:
        """The node that makes a value with one reader."""
        if value is None or value.producer not in self.inside or value in self._kept or len(value.uses) != 1:
            return None
        return value.producer

    def of_quantize(self, node: Node) -> Int8Step | None:
        """Float operators between DequantizeLinear and this QuantizeLinear."""
        codes = self.codes(node)
        if codes is None:
            return None
        nodes, limits = [node], codes.limits
        before = self._alone(node.inputs[0])
        while before is not None and before.op in ("Relu", "Clip") and not before.domain:
            narrower = self._narrowed(before, limits, codes)
            if narrower is None:
                return None
            nodes, limits = [before, *nodes], narrower
            before = self._alone(before.inputs[0])
        if before is None or before.domain or len(before.outputs) != 1:
            return None
        nodes = [before, *nodes]
        if before.op in _PRODUCTS:
            return self._float_product(before, nodes, codes, limits)
        if before.op == "Add":
            return self._float_sum(before, nodes, codes, limits)
        if before.op in _MOVES and len(nodes) == 2:
            source = self._dequantized(before.inputs[0])
            if source is not None and source[1].same(codes):
                return self._moved(before, nodes, source[0].inputs[0], codes, (source[0],))
        return None

    def _narrowed(self, node: Node, limits: Limits, codes: Quantization) -> Limits | None:
        """The limits of centered values with those of a Relu or Clip before them."""
        low, high = np.zeros((), np.float32), np.asarray(np.inf, np.float32)
        if node.op == "Clip":
            largest = np.finfo(np.float32).max
            bounds = [np.asarray(node.attr(name, d), np.float32) for name, d in (("min", -largest), ("max", largest))]
            for i, value in enumerate(node.inputs[1:]):
                known = None if value is None else self._constant(value)
                if value is not None and (known is None or known.size != 1 or known.dtype != np.float32):
                    return None
                bounds[i] = bounds[i] if known is None else known.reshape(())
            low, high = bounds
        if np.isnan(low) or np.isnan(high):
            return None
        first, last = (np.rint(bound / codes.scale).clip(*limits) for bound in (low, high))
        return np.asarray(first, np.float32), np.asarray(last, np.float32)

    def _float_product(self, node: Node, nodes: list[Node], codes: Quantization, limits: Limits) -> Int8Step | None:
        source = self._dequantized(node.inputs[0])
        weights = None if source is None else self._weights(node)
        bias = node.input(2)
        b = None if bias is None else self._constant(bias)
        if source is None or weights is None or (bias is not None and b is None):
            return None
        (dequantize, x), (of_weights, w, w_scale) = source, weights
        is_convolution = node.op == "Conv"
        if not (_is_sound(node, w) if is_convolution else _is_plain_product(node, w, b)):
            return None
        unit = x.scale.astype(np.float64) * w_scale
        factor = np.asarray(unit / codes.scale, np.float32)
        shift = None if b is None else np.broadcast_to(np.asarray(b.reshape(-1) / unit, np.float32), len(w))
        if not (np.isfinite(factor).all() and (shift is None or np.isfinite(shift).all())):
            return None
        finish = Rounding(shift, factor, limits, len(w))
        reads, bypassed = ((dequantize.inputs[0], x),), (dequantize, of_weights)
        if is_convolution:
            return _of_convolution(tuple(nodes), reads, codes, _convolution(node, w, finish, None), bypassed)
        return Int8Step(tuple(nodes), reads, codes, matrix_product(w.T, finish), bypassed)

    def _weights(self, product: Node) -> tuple[Node, Array, Array] | None:
        """The node that dequantizes the weights of a product, these as integers less their zero points with the output channels
        first, and their scales, one or one per channel.
        """
        value = product.inputs[1]
        node = None if value is None else value.producer
        if node is None or not is_dequantize(node) or node.attr("block_size", 0) or node.attr("output_dtype", 0):
            return None
        q, scale, zero = (None if v is None else self._constant(v) for v in (*node.inputs, None)[:3])
        if q is None or scale is None or q.dtype not in (np.uint8, np.int8) or scale.dtype != np.float32:
            return None
        if (q.ndim < 3) if product.op == "Conv" else (q.ndim != 2):
            return None
        axis = 0 if product.op == "Conv" or product.attr("transB", 0) else 1
        if (node.input(2) is not None and zero is None) or scale.size not in (1, q.shape[axis]):
            return None
        if scale.size > 1 and node.attr("axis", 1) % q.ndim != axis:
            return None
        return node, _centered_weights(q.T if axis else q, zero), scale.reshape(-1).astype(np.float64)

    def _float_sum(self, node: Node, nodes: list[Node], codes: Quantization, limits: Limits) -> Int8Step | None:
        a, b = (self._dequantized(v) for v in node.inputs)
        if a is None or b is None:
            return None
        reads = ((a[0].inputs[0], a[1]), (b[0].inputs[0], b[1]))
        if not any(value in self._made for value, _ in reads):
            return None
        usual = _blocks(_sum(a[1].scale, b[1].scale, codes.scale, limits))
        total = dequantized_sum(a[1], b[1], codes)
        function = _by_factors(usual, partial(factors, total, a[1], b[1], codes), limits)
        return Int8Step(tuple(nodes), reads, codes, function, (a[0], b[0]))

    def of_qlinear_conv(self, node: Node) -> Int8Step | None:
        x, y = self.codes(node, 1, 2), self.codes(node, 6, 7)
        known = [None if v is None else self._constant(v) for v in (node.input(i) for i in (3, 4, 5, 8))]
        q, w_scale, w_zero, bias = known
        if x is None or y is None or q is None or w_scale is None or w_zero is None or q.dtype.itemsize != 1:
            return None
        if bias is None and node.input(8) is not None:
            return None
        w = _centered_weights(q, w_zero)
        finish = _exact_rounding(w, bias, x, w_scale, y) if _is_sound(node, w) else None
        if finish is None:
            return None
        reads = ((node.inputs[0], x),)
        return _of_convolution((node,), reads, y, _convolution(node, w, finish, float(x.limits[0])))

    def of_qlinear_product(self, node: Node) -> Int8Step | None:
        """QLinearMatMul, or QGemm to codes."""
        is_gemm = node.op == "QGemm"
        x, y = self.codes(node, 1, 2), self.codes(node, *((7, 8) if is_gemm else (6, 7)))
        bias = node.input(6) if is_gemm else None
        known = [None if v is None else self._constant(v) for v in (*(node.input(i) for i in (3, 4, 5)), bias)]
        q, w_scale, w_zero, b = known
        if x is None or y is None or q is None or w_scale is None or w_zero is None or (b is None and bias is not None):
            return None
        q = q if node.attr("transB", 0) else q.T
        if q.ndim != 2 or q.dtype.itemsize != 1 or w_zero.size not in (1, len(q)):
            return None
        w = _centered_weights(q, w_zero)
        finish = _exact_rounding(w, b, x, w_scale, y) if _is_plain_product(node, w, b) else None
        if finish is None:
            return None
        return Int8Step((node,), ((node.inputs[0], x),), y, matrix_product(w.T, finish))

    def of_qlinear_average(self, node: Node) -> Int8Step | None:
        x, y = self.codes(node, 1, 2), self.codes(node, 3, 4)
        if x is None or y is None or node.inputs[0] not in self._made:
            return None
        function = global_average(x, y)
        if node.attr("channels_last", 0):
            function = of_channels_last(function)
        return Int8Step((node,), ((node.inputs[0], x),), y, function)

    def of_qlinear_add(self, node: Node) -> Int8Step | None:
        a, b, y = (self.codes(node, i, i + 1) for i in (1, 4, 6))
        reads = (node.inputs[0], node.inputs[3])
        if a is None or b is None or y is None or not any(v in self._made for v in reads):
            return None
        total = qlinear_sum(a, b, y)
        function = _by_factors(exact_sum(total, a, b, y), partial(factors, total, a, b, y), y.limits)
        return Int8Step((node,), ((reads[0], a), (reads[1], b)), y, function)

    def of_move(self, node: Node) -> Int8Step | None:
        value = node.inputs[0]
        step = None if value is None or value.producer is None else self.found.get(value.producer)
        return None if step is None else self._moved(node, [node], value, step.makes, ())

    def _moved(
        self, node: Node, nodes: list[Node], value: Value | None, codes: Quantization, bypassed: tuple[Node, ...]
    ) -> Int8Step | None:
        others = [None if v is None else self._constant(v) for v in node.inputs[1:]]
        if (
            value not in self._made
            or len(node.outputs) != 1
            or any(known is None and v is not None for known, v in zip(others, node.inputs[1:], strict=True))
        ):
            return None
        if node.op in _POOLS and not has_input_in_every_window(node):
            return None
        function, _ = self._bind(node)

        def move(work: Work, x: Array) -> Any:
            if node.op in _POOLS:
                return work.call(function, x, *others)
            return work.arranged(lambda x: function(x, *others), x)

        def run(work: Work, x: Array) -> Array | None:
            y: Array | None = move(work, x)
            # Only where there is no input at all can a window consist of padding, the lowest of its type.
            return y if x.size or y is None else np.full_like(y, codes.limits[0])

        pool = recordable(move) if node.op in _POOLS else None
        return Int8Step(tuple(nodes), ((value, codes),), codes, recordable(run), bypassed, moves=True, pool=pool)


_MATCHES: dict[tuple[str, str], Callable[[Int8Steps, Node], Int8Step | None]] = {
    ("", "QuantizeLinear"): Int8Steps.of_quantize, (_MS, "QuantizeLinear"): Int8Steps.of_quantize,
    ("", "QLinearConv"): Int8Steps.of_qlinear_conv, (_MS, "QLinearConv"): Int8Steps.of_qlinear_conv,
    ("", "QLinearMatMul"): Int8Steps.of_qlinear_product, (_MS, "QGemm"): Int8Steps.of_qlinear_product,
    (_MS, "QLinearGlobalAveragePool"): Int8Steps.of_qlinear_average,
    (_MS, "QLinearAdd"): Int8Steps.of_qlinear_add, (_MS, "NhwcMaxPool"): Int8Steps.of_move,
    **{("", op): Int8Steps.of_move for op in _MOVES},
}  # fmt: skip


def _centered_weights(q: Array, zero: Array | None) -> Array:
    """(M, C, kernel...) as integers, less zero points of which there are one or M."""
    return less_zero_point(q, None if zero is None else zero.reshape(-1, *(1,) * (q.ndim - 1)))


def _exact_rounding(w: Array, bias: Array | None, x: Quantization, w_scale: Array, y: Quantization) -> Rounding | None:
    """The rounding of sums for weights (M, ...); None where float32 might not hold a sum, or where scales do not fit."""
    largest = 0 if bias is None else np.abs(bias.astype(np.float64)).max(initial=0)
    reach = INPUT_REACH * one_sided(w, tuple(range(1, w.ndim))) + largest
    fits = all(v is None or v.size in (1, len(w)) for v in (w_scale, bias))
    if reach > EXACT_SUM or not fits or w_scale.dtype != np.float32:
        return None
    bias = None if bias is None else np.broadcast_to(bias.reshape(-1), len(w))
    return Rounding(bias, (x.scale * w_scale / y.scale).reshape(-1), y.limits, len(w))


def _is_sound(node: Node, w: Array) -> bool:
    """False for weights that are left to the kernel, to be refused or to make nothing."""
    return w.size > 0 and node.attr("group", 1) > 0 and len(w) % node.attr("group", 1) == 0


def _is_plain_product(node: Node, w: Array, bias: Array | None) -> bool:
    """True for a Gemm or MatMul of rows and weights (N, K) with no factors, and a bias for all rows."""
    given = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0} | dict(node.attrs)
    is_plain = given.pop("transB") in (0, 1) and given == {"alpha": 1.0, "beta": 1.0, "transA": 0}
    return w.size > 0 and is_plain and (bias is None or bias.size == 1 or bias.shape in ((len(w),), (1, len(w))))


def _convolution(node: Node, w: Array, finish: Rounding, lowest: float | None) -> Convolution:
    geometry: dict[str, Any] = {
        name: node.attrs[name] for name in ("auto_pad", "dilations", "pads", "strides") if name in node.attrs
    }
    return Convolution(w, node.attr("group", 1), geometry, finish, lowest, bool(node.attr("channels_last", 0)))


def _of_convolution(
    nodes: tuple[Node, ...],
    reads: tuple[tuple[Value | None, Quantization], ...],
    makes: Quantization,
    made: Convolution,
    bypassed: tuple[Node, ...] = (),
) -> Int8Step:
    function = convolution(made)
    if made.is_channels_last:
        function = of_channels_last(function)
    return Int8Step(nodes, reads, makes, function, bypassed, convolution=made)


def of_channels_last(function: Function) -> Function:
    """A function of an image with its channels first for one whose channels come last, as those of the result."""
    return recordable(lambda work, x: np.moveaxis(work.call(function, np.moveaxis(x, -1, 1)), 1, -1))


_OPERANDS = object(), object()


def _sum(first: Array, second: Array, divisor: Array | None, limits: Limits) -> list[Instruction]:
    """rint((a * first + b * second) / divisor) within limits."""
    a, b, total, ratio, rounded, made = (object() for _ in range(6))
    divided = [] if divisor is None else [Instruction(np.divide, (total, divisor), ratio)]
    return [
        Instruction(np.multiply, (_OPERANDS[0], first), a),
        Instruction(np.multiply, (_OPERANDS[1], second), b),
        Instruction(np.add, (a, b), total),
        *divided,
        Instruction(np.rint, (ratio if divided else total,), rounded),
        Instruction(Clip(*limits), (rounded,), made),
    ]


def _by_factors(usual: Function, known: Callable[[], tuple[Array, Array] | None], limits: Limits) -> Function:
    """The usual sum, and where it is recorded the same by factors: to look for them takes as long as some runs save."""

    @cache
    def lasting() -> Function:
        found = known()
        return usual if found is None else _blocks(_sum(*found, None, limits))

    return recordable(lambda work, *operands: work.call(usual if work is AT_ONCE else lasting(), *operands))


def _blocks(instructions: list[Instruction]) -> Function:
    """Instructions on two arrays as a function of any two that broadcast."""
    program = BlockProgram(instructions, None, _OPERANDS)

    def run(work: Work, *operands: Array) -> Any:
        y = program.run(work, None, operands)
        return work.call(laid_out_alike, *operands) if y is None else y

    def laid_out_alike(*operands: Array) -> Any:
        alike = [np.ascontiguousarray(v) for v in np.broadcast_arrays(*operands)]
        return program.run(AT_ONCE, None, alike) if alike[0].size else alike[0]

    return recordable(run)
