"""Steps of quantized graphs: convolutions, sums and what lies between them hand on centred codes instead of bytes.

A step is an operator on quantized tensors, or the float operators between DequantizeLinear and QuantizeLinear that amount to one.
Readers that are no such step get bytes, or the float values that the codes stand for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.convolutions import has_input_in_every_window
from ortconv.executor.fusion import Unit
from ortconv.executor.heads import Bind
from ortconv.executor.kernels.blocks import Clip, Constant
from ortconv.executor.kernels.conv import EXACT_SUM
from ortconv.executor.kernels.integer_products import codes_less, leave
from ortconv.executor.kernels.integer_steps import (
    Codes,
    Convolution,
    Limits,
    Rounding,
    can_expand,
    convolution,
    exact_sum,
    expanded,
    global_average,
    matrix_product,
)
from ortconv.executor.kernels.matmul import INPUT_REACH, centred, one_sided
from ortconv.executor.kernels.quantize import dynamic_centred_codes
from ortconv.executor.kernels.windows import channels_first, to_last
from ortconv.executor.program import BlockProgram, Line
from ortconv.executor.registry import Function
from ortconv.executor.work import AT_ONCE, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

_MS = "com.microsoft"
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_MOVES = frozenset({"Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that put out some of the codes that they read."""
_POOLS = frozenset({"MaxPool", "NhwcMaxPool"})


class _Step(NamedTuple):
    nodes: tuple[Node, ...]
    """The last one makes the result."""
    reads: tuple[tuple[Value | None, Codes], ...]
    makes: Codes
    function: Function
    bypassed: tuple[Node, ...] = ()
    """The DequantizeLinear nodes whose inputs it reads instead of their outputs."""
    enters: bool = False
    """True where it makes codes of float32."""
    moves: bool = False
    """True where it puts out some of the codes that it reads."""
    pool: Function | None = None
    """A MaxPool, of any numbers."""
    convolution: Convolution | None = None


def quantized_units(
    nodes: Sequence[Node], constant: Constant, bind: Bind, kept: Iterable[Value]
) -> dict[Node, Unit | None]:
    """Units by their last node, None for the other nodes of a unit and for those that no step needs. `kept` are read outside."""
    outside, inside = set(kept), set(nodes)
    steps = _Steps(nodes, constant, bind, outside)
    units = steps.units() if steps.found else {}
    for node in nodes:
        if node.is_op("DynamicQuantizeLinear") and node.outputs[0] is not None and node.outputs[0] not in outside:
            users = [user for user, _ in node.outputs[0].uses]
            if all(user in inside and _multiplies_codes(user, node, constant) for user in users):
                units[node] = Unit((node,), list(node.inputs), dynamic_centred_codes, node.outputs)
    return units


_ZERO_POINTS = {("", "MatMulInteger"): (2, 3), (_MS, "MatMulIntegerToFloat"): (4, 5)}
"""Where products of codes have the zero points of their operands."""


def _multiplies_codes(node: Node, quantize: Node, constant: Constant) -> bool:
    """True for a product of what a DynamicQuantizeLinear makes, and of constant weights."""
    of_a, of_b = _ZERO_POINTS.get((node.domain, node.op), (0, 0))
    if not of_a or node.inputs[0] is not quantize.outputs[0] or node.input(of_a) is not quantize.outputs[2]:
        return False
    b, b_zero_point = (None if v is None else constant(v) for v in (node.input(1), node.input(of_b)))
    return b is not None and b.ndim == 2 and (b_zero_point is not None or node.input(of_b) is None)


def _is_dequantize(node: Node) -> bool:
    return node.op == "DequantizeLinear" and node.domain in ("", _MS)


def is_of_weights(node: Node) -> bool:
    """True for a DequantizeLinear that a step may not need: all that it makes is weights of products."""
    return _is_dequantize(node) and all(user.op in _PRODUCTS and slot == 1 for user, slot in node.out.uses)


class _Steps:
    def __init__(self, nodes: Sequence[Node], constant: Constant, bind: Bind, kept: set[Value]) -> None:
        self._nodes, self._constant, self._bind, self._kept = nodes, constant, bind, kept
        self._inside = set(nodes)
        self.found: dict[Node, _Step] = {}
        self._made: set[Value] = set()
        self._parameters: dict[tuple[Node, int], Codes | None] = {}
        for node in nodes:
            match = _MATCHES.get((node.domain, node.op))
            step = None if match is None else match(self, node) or self._entry(node)
            if step is not None:
                self.found[node] = step
                self._made.add(node.out)

    def units(self) -> dict[Node, Unit | None]:
        self._drop_entries()
        handed = {node.out for node, step in self.found.items() if self._all_take(node.out, step.makes)}
        units: dict[Node, Unit | None] = {}
        self._join(handed)
        for node, step in self.found.items():
            units |= dict.fromkeys(step.nodes)
            function = _on_codes(step, None if node.out in handed else step.makes)
            units[node] = Unit(step.nodes, [v for v, _ in step.reads], function, node.outputs)
        bypassed = {(node, reader) for step in self.found.values() for node in step.bypassed for reader in step.nodes}
        for node in filter(_is_dequantize, self._nodes):
            codes = self._codes(node)
            if node.out not in self._kept and all((node, user) in bypassed for user, _ in node.out.uses):
                units[node] = None
            elif node.inputs[0] in handed and codes is not None:
                units[node] = Unit((node,), [node.inputs[0]], codes.dequantize, node.outputs)
        return units

    def _entry(self, node: Node) -> _Step | None:
        """The codes that a QuantizeLinear makes of float32 that no step has made."""
        x = node.inputs[0] if node.op == "QuantizeLinear" else None
        codes = None if x is None or x.dtype is not DType.FLOAT else self._codes(node)
        return None if codes is None else _Step((node,), ((x, codes),), codes, codes.quantize, enters=True)

    def _drop_entries(self) -> None:
        """Leave bytes what no other step reads, or not only steps."""
        entered = set[Value]()
        for node, step in self.found.items():
            if step.enters or (step.moves and step.reads[0][0] in entered):
                entered.add(node.out)
        read = {v for node, step in self.found.items() if node.out not in entered for v, _ in step.reads}
        for node in [node for node in reversed(self._nodes) if node in self.found and node.out in entered]:
            step = self.found[node]
            if node.out in read and self._all_take(node.out, step.makes):
                read.add(step.reads[0][0])
            else:
                del self.found[node]

    def _join(self, handed: set[Value]) -> None:
        """Make one step of a convolution and of what alone reads it: a depthwise convolution or a pool."""
        readers = Counter(value for step in self.found.values() for value, _ in step.reads)
        for node, step in list(self.found.items()):
            value = step.reads[0][0]
            before = None if value is None or value.producer is None else self.found.get(value.producer)
            if value is None or before is None or value not in handed or readers[value] > 1:
                continue
            users = [user for user, _ in value.uses if user not in step.nodes]
            inside = all(user in step.bypassed and self._is_inside(user.out, step.nodes) for user in users)
            joined = (_expanded(before, step) or _pooled(before, step)) if inside else None
            if joined is not None:
                del self.found[before.nodes[-1]]
                self.found[node] = joined

    def _is_inside(self, value: Value, nodes: Sequence[Node]) -> bool:
        return value not in self._kept and all(user in nodes for user, _ in value.uses)

    def _all_take(self, value: Value, codes: Codes) -> bool:
        """True if every reader of a quantized value can do with centred codes."""
        return value not in self._kept and all(self._takes(user, value, codes) for user, _ in value.uses)

    def _takes(self, user: Node, value: Value, codes: Codes) -> bool:
        step = self.found.get(user)
        if step is not None:
            taken = [other for v, other in step.reads if v is value]
        else:
            own = self._codes(user) if _is_dequantize(user) and user in self._inside else None
            taken = [] if own is None or user.inputs[0] is not value else [own]
        return bool(taken) and all(other.zero_point == codes.zero_point for other in taken)

    def _codes(self, node: Node, scale: int = 1, zero_point: int = 2) -> Codes | None:
        """The constant parameters of a tensor that is quantized with one scale."""
        key = node, scale
        if key not in self._parameters:
            self._parameters[key] = self._read_codes(node, scale, zero_point)
        return self._parameters[key]

    def _read_codes(self, node: Node, scale: int, zero_point: int) -> Codes | None:
        known = [None if v is None else self._constant(v) for v in (node.input(scale), node.input(zero_point))]
        if known[0] is None or known[1] is None or known[0].size != 1 or known[1].size != 1:
            return None
        codes = Codes(known[0].reshape(()), known[1].reshape(()))
        if codes.scale.dtype != np.float32 or codes.zero_point.dtype not in (np.uint8, np.int8):
            return None
        if any(node.attr(name, 0) for name in ("block_size", "output_dtype", "precision")):
            return None
        return codes if np.isfinite(codes.scale) and codes.scale > 0 else None

    def _dequantized(self, value: Value | None) -> tuple[Node, Codes] | None:
        """The DequantizeLinear that makes a value."""
        node = None if value is None else value.producer
        codes = None if node not in self._inside or not _is_dequantize(node) else self._codes(node)
        return None if codes is None or node is None else (node, codes)

    def _alone(self, value: Value | None) -> Node | None:
        """The node that makes a value with one reader."""
        if value is None or value.producer not in self._inside or value in self._kept or len(value.uses) != 1:
            return None
        return value.producer

    def of_quantize(self, node: Node) -> _Step | None:
        """Float operators between DequantizeLinear and this QuantizeLinear."""
        codes = self._codes(node)
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

    def _narrowed(self, node: Node, limits: Limits, codes: Codes) -> Limits | None:
        """The limits of centred codes with those of a Relu or Clip before them."""
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

    def _float_product(self, node: Node, nodes: list[Node], codes: Codes, limits: Limits) -> _Step | None:
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
            return _of_convolution(tuple(nodes), reads, codes, _convolution(node, w, finish, exactly=False), bypassed)
        return _Step(tuple(nodes), reads, codes, matrix_product(w.T, finish), bypassed)

    def _weights(self, product: Node) -> tuple[Node, Array, Array] | None:
        """The node that dequantizes the weights of a product, these as integers less their zero points with the output channels
        first, and their scales, one or one per channel.
        """
        value = product.inputs[1]
        node = None if value is None else value.producer
        if node is None or not _is_dequantize(node) or node.attr("block_size", 0) or node.attr("output_dtype", 0):
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
        return node, _centred_weights(q.T if axis else q, zero), scale.reshape(-1).astype(np.float64)

    def _float_sum(self, node: Node, nodes: list[Node], codes: Codes, limits: Limits) -> _Step | None:
        a, b = (self._dequantized(v) for v in node.inputs)
        if a is None or b is None:
            return None
        reads = ((a[0].inputs[0], a[1]), (b[0].inputs[0], b[1]))
        if not any(value in self._made for value, _ in reads):
            return None
        function = _blocks(_float_sum(a[1], b[1], codes, limits))
        return _Step(tuple(nodes), reads, codes, function, (a[0], b[0]))

    def of_qlinear_conv(self, node: Node) -> _Step | None:
        x, y = self._codes(node, 1, 2), self._codes(node, 6, 7)
        known = [None if v is None else self._constant(v) for v in (node.input(i) for i in (3, 4, 5, 8))]
        q, w_scale, w_zero, bias = known
        if x is None or y is None or q is None or w_scale is None or w_zero is None or q.dtype.itemsize != 1:
            return None
        if bias is None and node.input(8) is not None:
            return None
        w = _centred_weights(q, w_zero)
        finish = _exact_rounding(w, bias, x, w_scale, y) if _is_sound(node, w) else None
        if finish is None:
            return None
        reads = ((node.inputs[0], x),)
        return _of_convolution((node,), reads, y, _convolution(node, w, finish, exactly=True))

    def of_qlinear_product(self, node: Node) -> _Step | None:
        """QLinearMatMul, or QGemm to codes."""
        is_gemm = node.op == "QGemm"
        x, y = self._codes(node, 1, 2), self._codes(node, *((7, 8) if is_gemm else (6, 7)))
        bias = node.input(6) if is_gemm else None
        known = [None if v is None else self._constant(v) for v in (*(node.input(i) for i in (3, 4, 5)), bias)]
        q, w_scale, w_zero, b = known
        if x is None or y is None or q is None or w_scale is None or w_zero is None or (b is None and bias is not None):
            return None
        q = q if node.attr("transB", 0) else q.T
        if q.ndim != 2 or q.dtype.itemsize != 1 or w_zero.size not in (1, len(q)):
            return None
        w = _centred_weights(q, w_zero)
        finish = _exact_rounding(w, b, x, w_scale, y) if _is_plain_product(node, w, b) else None
        if finish is None:
            return None
        return _Step((node,), ((node.inputs[0], x),), y, matrix_product(w.T, finish))

    def of_qlinear_average(self, node: Node) -> _Step | None:
        x, y = self._codes(node, 1, 2), self._codes(node, 3, 4)
        if x is None or y is None or node.inputs[0] not in self._made:
            return None
        function = global_average(x, y)
        if node.attr("channels_last", 0):
            function = _of_channels_last(function)
        return _Step((node,), ((node.inputs[0], x),), y, function)

    def of_qlinear_add(self, node: Node) -> _Step | None:
        a, b, y = (self._codes(node, i, i + 1) for i in (1, 4, 6))
        reads = (node.inputs[0], node.inputs[3])
        if a is None or b is None or y is None or not any(v in self._made for v in reads):
            return None
        return _Step((node,), ((reads[0], a), (reads[1], b)), y, exact_sum(a, b, y))

    def of_move(self, node: Node) -> _Step | None:
        value = node.inputs[0]
        step = None if value is None or value.producer is None else self.found.get(value.producer)
        return None if step is None else self._moved(node, [node], value, step.makes, ())

    def _moved(
        self, node: Node, nodes: list[Node], value: Value | None, codes: Codes, bypassed: tuple[Node, ...]
    ) -> _Step | None:
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

        def move(work: Work, x: Array) -> Array | None:
            return work.call(function, x, *others)  # type: ignore[no-any-return]

        def run(work: Work, x: Array) -> Array | None:
            y = move(work, x)
            # Only where there is no input at all can a window consist of padding, the lowest of its type.
            return y if x.size or y is None else np.full_like(y, codes.limits[0])

        pool = recordable(move) if node.op in _POOLS else None
        return _Step(tuple(nodes), ((value, codes),), codes, recordable(run), bypassed, moves=True, pool=pool)


_MATCHES: dict[tuple[str, str], Callable[[_Steps, Node], _Step | None]] = {
    ("", "QuantizeLinear"): _Steps.of_quantize, (_MS, "QuantizeLinear"): _Steps.of_quantize,
    ("", "QLinearConv"): _Steps.of_qlinear_conv, (_MS, "QLinearConv"): _Steps.of_qlinear_conv,
    ("", "QLinearMatMul"): _Steps.of_qlinear_product, (_MS, "QGemm"): _Steps.of_qlinear_product,
    (_MS, "QLinearGlobalAveragePool"): _Steps.of_qlinear_average,
    (_MS, "QLinearAdd"): _Steps.of_qlinear_add, (_MS, "NhwcMaxPool"): _Steps.of_move,
    **{("", op): _Steps.of_move for op in _MOVES},
}  # fmt: skip


def _centred_weights(q: Array, zero: Array | None) -> Array:
    """(M, C, kernel...) as integers, less zero points of which there are one or M."""
    return codes_less(q, None if zero is None else zero.reshape(-1, *(1,) * (q.ndim - 1)))


def _exact_rounding(w: Array, bias: Array | None, x: Codes, w_scale: Array, y: Codes) -> Rounding | None:
    """What makes codes of the sums for weights (M, ...); None where float32 might not hold a sum, or scales do not go with them."""
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


def _convolution(node: Node, w: Array, finish: Rounding, exactly: bool) -> Convolution:
    geometry: dict[str, Any] = {
        name: node.attrs[name] for name in ("auto_pad", "dilations", "pads", "strides") if name in node.attrs
    }
    return Convolution(w, node.attr("group", 1), geometry, finish, exactly, bool(node.attr("channels_last", 0)))


def _of_convolution(
    nodes: tuple[Node, ...],
    reads: tuple[tuple[Value | None, Codes], ...],
    makes: Codes,
    made: Convolution,
    bypassed: tuple[Node, ...] = (),
) -> _Step:
    function = convolution(made)
    if made.is_channels_last:
        function = _of_channels_last(function)
    return _Step(nodes, reads, makes, function, bypassed, convolution=made)


def _expanded(first: _Step, second: _Step) -> _Step | None:
    """Two convolutions as one step, where that is worth it."""
    a, b = first.convolution, second.convolution
    if a is None or b is None or a.is_channels_last != b.is_channels_last or not can_expand(a, b):
        return None
    function = _of_channels_last(expanded(a, b)) if a.is_channels_last else expanded(a, b)
    return _Step(first.nodes + second.nodes, first.reads, second.makes, function, first.bypassed + second.bypassed)


def _pooled(first: _Step, second: _Step) -> _Step | None:
    """A convolution and a pool as one step, which rounds only the largest sums: they make the largest codes."""
    c, pool = first.convolution, second.pool
    if c is None or pool is None or not isinstance(c.finish, Rounding) or not c.finish.rises:
        return None
    finish, convolve = c.finish, convolution(c._replace(finish=leave))
    if c.is_channels_last:
        convolve = _of_channels_last(convolve)

    def run(work: Work, x: Array) -> Array:
        y = work.call(pool, work.call(convolve, x))
        rows = work.contiguous(y if c.is_channels_last else to_last(y))
        finish(work, rows)
        return rows if c.is_channels_last else channels_first(rows)

    nodes, bypassed = first.nodes + second.nodes, first.bypassed + second.bypassed
    return _Step(nodes, first.reads, second.makes, recordable(run), bypassed)


def _of_channels_last(function: Function) -> Function:
    """A function of an image with its channels first for one whose channels come last, as those of the result."""
    return recordable(lambda work, x: np.moveaxis(work.call(function, np.moveaxis(x, -1, 1)), 1, -1))


def _on_codes(step: _Step, as_bytes: Codes | None) -> Function:
    """A step's function of codes or bytes."""
    function, zeros = step.function, [codes.zero_point for _, codes in step.reads]
    finish = None if as_bytes is None else as_bytes.to_bytes

    def run(work: Work, *operands: Array) -> Array | None:
        codes = [
            x if x.dtype == np.float32 else work.arranged(partial(centred, zero_point=z), x)
            for x, z in zip(operands, zeros, strict=True)
        ]
        y: Array | None = work.call(function, *codes)
        return y if y is None or finish is None else work.call(finish, y)

    return recordable(run)


_OPERANDS = object(), object()


def _float_sum(p: Codes, q: Codes, y: Codes, limits: Limits) -> list[Line]:
    """Add between DequantizeLinear and QuantizeLinear, of centred codes."""
    a, b, total, ratio, rounded, made = (object() for _ in range(6))
    return [
        Line(np.multiply, (_OPERANDS[0], p.scale), a),
        Line(np.multiply, (_OPERANDS[1], q.scale), b),
        Line(np.add, (a, b), total),
        Line(np.divide, (total, y.scale), ratio),
        Line(np.rint, (ratio,), rounded),
        Line(Clip(*limits), (rounded,), made),
    ]


def _blocks(lines: list[Line]) -> Function:
    """Lines on two arrays as a function of any two that broadcast."""
    program = BlockProgram(lines, None, _OPERANDS)

    def run(work: Work, *operands: Array) -> Any:
        y = program.run(work, None, operands)
        return work.call(laid_out_alike, *operands) if y is None else y

    def laid_out_alike(*operands: Array) -> Any:
        alike = [np.ascontiguousarray(v) for v in np.broadcast_arrays(*operands)]
        return program.run(AT_ONCE, None, alike) if alike[0].size else alike[0]

    return recordable(run)
