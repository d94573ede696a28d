"""Elementwise operators on blocks: functions of contiguous float32 operands and of the result, which may be one of the operands.

`operations` says what a node does in these terms; chains of them run block by block, without leaving the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Self

import numpy as np

from ortconv.executor.algorithms.blockwise import dot_of_rows, erf_block, gelu_block, gelu_tanh_block, ones
from ortconv.executor.algorithms.exponential import fast_exponential
from ortconv.executor.algorithms.rounding import integer_range, quantize_centered
from ortconv.executor.fusion.group import Constant
from ortconv.executor.replay.numerics import clip_to, f32
from ortconv.executor.replay.work import AT_ONCE, Recordable, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.schema import since_version
from ortconv.ir.tensor import Array
from ortconv.ir.types import DType

Operand = Value | Array | int | None
"""What an operation reads: a value, a constant, or what the operation of this index made."""

Operation = tuple[Callable[..., Any], tuple[Operand, ...]]


_ZERO, _ONE, _INFINITY = f32(0), f32(1), f32(np.inf)
_ROOT, _HALF_ROOT = f32(math.sqrt(6)), f32(math.sqrt(1.5))


class Clip(Recordable):
    """Elements between two bounds."""

    def __new__(cls, low: Array, high: Array) -> Self:
        return super().__new__(cls, partial(_clip, low, high, AT_ONCE), partial(_clip, low, high))


def _clip(low: Array, high: Array, work: Work, x: Array, out: Array) -> None:
    work.do(clip_to, x, low, high, out)


class RowWise(Recordable):
    """A function of whole rows, the last axis of what it reads, that makes whole rows."""


_EXPONENTIAL, _UNIT = fast_exponential()
_MINUS_UNIT = f32(-_UNIT)


@recordable
def sigmoid(work: Work, x: Array, out: Array) -> None:
    work.do(np.multiply, x, _MINUS_UNIT, out)
    work.do(_EXPONENTIAL, out, out)
    work.do(np.add, out, _ONE, out)
    work.do(np.reciprocal, out, out)


@cache
def swish(alpha: float) -> Callable[..., Any]:
    """x * sigmoid(alpha * x)"""
    negative = f32(-alpha * _UNIT)

    def run(work: Work, x: Array, out: Array) -> None:
        exponent = work.like(x)
        work.do(np.multiply, x, negative, exponent)
        work.do(_EXPONENTIAL, exponent, exponent)
        work.do(np.add, exponent, _ONE, exponent)
        work.do(np.divide, x, exponent, out)

    return recordable(run)


def _hard_sigmoid(alpha: float, beta: float) -> Callable[..., Any]:
    slope, shift = f32(alpha), f32(beta)

    def run(work: Work, x: Array, out: Array) -> None:
        work.do(np.multiply, x, slope, out)
        work.do(np.add, out, shift, out)
        work.do(clip_to, out, _ZERO, _ONE, out)

    return recordable(run)


hard_gate = _hard_sigmoid(1 / 6, 0.5)
"""The HardSigmoid of HardSwish."""


@recordable
def hard_swish(work: Work, x: Array, out: Array) -> None:
    gate = work.like(x)
    work.do(hard_gate, x, gate)
    work.do(np.multiply, x, gate, out)


@recordable
def _swish_of_scaled(work: Work, x: Array, out: Array) -> None:
    divisor = work.like(x)
    work.do(_EXPONENTIAL, x, divisor)
    work.do(np.add, divisor, _ONE, divisor)
    work.do(np.multiply, divisor, _MINUS_UNIT, divisor)
    work.do(np.divide, x, divisor, out)


@recordable
def _hard_swish_of_scaled(work: Work, x: Array, out: Array) -> None:
    gate = work.like(x)
    work.do(np.add, x, _HALF_ROOT, gate)
    work.do(clip_to, gate, _ZERO, _ROOT, gate)
    work.do(np.multiply, x, gate, out)


OF_SCALED: dict[Callable[..., Any], tuple[float, Callable[..., Any]]] = {
    swish(1): (-_UNIT, _swish_of_scaled),
    hard_swish: (1 / math.sqrt(6), _hard_swish_of_scaled),
}
"""Functions of one operand that cost less where it comes multiplied by a factor: the factor, and what to do then."""


def _leaky_relu(alpha: float) -> Callable[..., Any]:
    slope, bent = f32(alpha), _bent(np.maximum if alpha <= 1 else np.minimum)
    return recordable(lambda work, x, out: bent(work, x, slope, out))


def _bent(limited: np.ufunc) -> Callable[..., None]:
    """x or x * slope, whichever is the limit."""

    def run(work: Work, x: Array, slope: Array, out: Array) -> None:
        sloping = work.like(x)
        work.do(np.multiply, x, slope, sloping)
        work.do(partial(limited, out=out), sloping, x)

    return run


def _prelu(slope: Array) -> Callable[..., Any]:
    if slope.max() <= 1 or slope.min() >= 1:
        return recordable(_bent(np.maximum if slope.max() <= 1 else np.minimum))

    def run(x: Array, slope: Array, out: Array) -> None:
        below = x.clip(-_INFINITY, _ZERO)
        np.multiply(below, slope, below)
        clip_to(x, _ZERO, _INFINITY, out)
        np.add(out, below, out)

    return run


@recordable
def square(work: Work, x: Array, _: Array, out: Array) -> None:
    work.do(np.multiply, x, x, out)


@cache
def _shares(n: int) -> Array:
    """What rows are multiplied by for their means."""
    return np.full((n, 1), 1 / n, np.float32)


@recordable
def row_mean(work: Work, x: Array, out: Array) -> None:
    work.do(np.matmul, x, _shares(x.shape[-1]), out)


def standardize(epsilon: float) -> Callable[..., Any]:
    """(x - mean) / sqrt(mean of squares + epsilon) of each row."""
    shift = f32(epsilon)

    def run(work: Work, x: Array, out: Array) -> None:
        mean, deviation = work.empty((*x.shape[:-1], 1)), work.empty(x.shape[:-1])
        work.do(row_mean, x, mean)
        work.do(np.subtract, x, mean, out)
        work.do(partial(dot_of_rows, out=deviation), out, out)
        work.do(np.multiply, deviation, _share(x.shape[-1]), deviation)
        work.do(np.add, deviation, shift, deviation)
        work.do(np.sqrt, deviation, deviation)
        work.do(np.divide, out, deviation[..., None], out)

    return RowWise(partial(run, AT_ONCE), run)


@cache
def _share(n: int) -> Array:
    return f32(1 / n)


@recordable
def _row_sum(work: Work, x: Array, out: Array) -> None:
    work.do(np.matmul, x, ones(x.shape[-1], x.dtype)[:, None], out)


@recordable
def _row_max(work: Work, x: Array, out: Array) -> None:
    work.do(np.maximum.reduce, x, -1, None, out, True)


ROW_REDUCTIONS = frozenset({row_mean, _row_sum, _row_max})
"""Functions of whole rows, the last axis of what they read, that make one element of each."""


def _through_integers(scale: Array, zero_point: Array) -> Callable[..., Any] | None:
    """QuantizeLinear and DequantizeLinear with the same parameters."""
    limits = integer_range(DType.of(zero_point.dtype))
    if limits is None or zero_point.dtype.itemsize > 2:
        return None
    low, high = (f32(limit - int(zero_point)) for limit in limits)

    def run(x: Array, out: Array) -> None:
        quantize_centered(x, scale, low, high, out)
        np.add(out, _ZERO, out)  # integers have no negative zero
        np.multiply(out, scale, out)

    return run


_UFUNCS: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Sqrt": np.sqrt, "Exp": np.exp, "Tanh": np.tanh,
    "Neg": np.negative, "Abs": np.abs, "Reciprocal": np.reciprocal, "Sigmoid": sigmoid, "HardSwish": hard_swish,
    "Erf": erf_block, "Relu": Clip(_ZERO, _INFINITY),
}  # fmt: skip
"""Operators without attributes: a function of their operands and of the result."""


def operations(node: Node, constant: Constant) -> list[Operation] | None:
    """What a node does to float32 elements; None if that cannot be said. DequantizeLinear includes the QuantizeLinear before it."""
    if node.domain:
        of_microsoft = _MICROSOFT.get(node.op) if node.domain == "com.microsoft" else None
        return None if of_microsoft is None else of_microsoft(node, constant)
    if node.op in _UFUNCS:
        return [(_UFUNCS[node.op], tuple(node.inputs))]
    special = _SPECIAL.get(node.op)
    return None if special is None else special(node, constant)


def fused_activation(node: Node) -> Callable[..., Any] | None:
    """What FusedConv does to its sums; None if that cannot be said."""
    parameters: tuple[float, ...] = tuple(node.attr("activation_params", ()))
    count, make = _ACTIVATIONS.get(node.attr("activation", ""), (0, None))
    return None if make is None or len(parameters) < count else make(*parameters[:count])


_ACTIVATIONS: dict[str, tuple[int, Callable[..., Callable[..., Any]]]] = {
    "Clip": (2, lambda low, high: Clip(f32(low), f32(high))), "LeakyRelu": (1, _leaky_relu),
    "HardSigmoid": (2, _hard_sigmoid), "Relu": (0, lambda: _UFUNCS["Relu"]), "HardSwish": (0, lambda: _UFUNCS["HardSwish"]),
    "Sigmoid": (0, lambda: _UFUNCS["Sigmoid"]), "Tanh": (0, lambda: _UFUNCS["Tanh"]),
}  # fmt: skip
"""Number of parameters, and the function that makes the function of them."""


def _of_clip(node: Node, constant: Constant) -> list[Operation] | None:
    largest = float(np.finfo(np.float32).max)
    low, high = node.attr("min", -largest), node.attr("max", largest)
    bounds = [f32(low), f32(high)]
    for i, value in enumerate(node.inputs[1:]):
        if value is not None:
            known = constant(value)
            if known is None or known.size != 1:
                return None
            bounds[i] = known.reshape(())
    return [(Clip(*bounds), (node.inputs[0],))]


def _of_hard_sigmoid(node: Node, constant: Constant) -> list[Operation]:
    alpha, beta = node.attr("alpha", 0.2), node.attr("beta", 0.5)
    is_gate = math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5
    return [(hard_gate if is_gate else _hard_sigmoid(alpha, beta), (node.inputs[0],))]


def _of_leaky_relu(node: Node, constant: Constant) -> list[Operation]:
    return [(_leaky_relu(node.attr("alpha", 0.01)), (node.inputs[0],))]


def _of_prelu(node: Node, constant: Constant) -> list[Operation] | None:
    slope = _known(node, 1, constant)
    if slope is None or not slope.size or not np.isfinite(slope).all():
        return None
    return [(_prelu(slope), (node.inputs[0], node.inputs[1]))]


def _of_pow(node: Node, constant: Constant) -> list[Operation] | None:
    exponent = _known(node, 1, constant)
    x = node.inputs[0]
    if exponent is None or exponent.size != 1 or exponent.reshape(()) not in (2, 3):
        return None
    if x is None or x.rank is None or exponent.ndim > x.rank:
        return None
    squared: Operation = (square, (x, _ONE))
    return [squared] if exponent.reshape(()) == 2 else [squared, (np.multiply, (0, x))]


def _of_batch_normalization(node: Node, constant: Constant) -> list[Operation] | None:
    known = [_known(node, i, constant) for i in range(1, 5)]
    if node.attr("training_mode", 0) or not node.attr("spatial", 1) or len([v for v in node.outputs if v]) != 1:
        return None
    if any(v is None or v.dtype != np.float32 for v in known) or not node.out.rank or node.out.rank < 2:
        return None
    scale, shift = channel_affine(*known, epsilon=node.attr("epsilon", 1e-5))  # type: ignore[arg-type]
    shape = (-1, *(1,) * (node.out.rank - 2))
    return [(np.multiply, (node.inputs[0], scale.reshape(shape))), (np.add, (0, shift.reshape(shape)))]


def channel_affine(scale: Array, b: Array, mean: Array, var: Array, *, epsilon: float) -> tuple[Array, Array]:
    """BatchNormalization as a factor and a summand per channel."""
    factor = np.asarray(scale / np.sqrt(var + var.dtype.type(epsilon)))
    return factor, np.asarray(b - mean * factor)


def _of_dequantize(node: Node, constant: Constant) -> list[Operation] | None:
    before = quantizer_before(node)
    if before is None or len(node.inputs) != len(before.inputs) or len(node.inputs) != 3:
        return None
    scale, zero_point = _known(node, 1, constant), _known(node, 2, constant)
    if scale is None or zero_point is None or scale.size != 1 or zero_point.size != 1 or scale.dtype != np.float32:
        return None
    for i, known in ((1, scale), (2, zero_point)):
        other = _known(before, i, constant)
        if other is None or other.dtype != known.dtype or other.size != 1 or other.reshape(()) != known.reshape(()):
            return None
    if zero_point.dtype not in (np.uint8, np.int8, np.uint16, np.int16) or before.attr("precision", 0):
        return None
    function = _through_integers(scale.reshape(()), zero_point.reshape(()))
    return None if function is None else [(function, (before.inputs[0],))]


def _of_sum(node: Node, constant: Constant) -> list[Operation] | None:
    first, *others = node.inputs
    sums: list[Operand] = [first, *range(len(others) - 1)]
    return [(np.add, (so_far, other)) for so_far, other in zip(sums, others)] or None


def _of_reduce_mean(node: Node, constant: Constant) -> list[Operation] | None:
    axes = node.attr("axes", ())
    if len(node.inputs) > 1:
        known = _known(node, 1, constant)
        axes = () if known is None else tuple(known.reshape(-1).tolist())
    if not node.attr("keepdims", 1) or not node.out.rank or tuple(axes) not in ((-1,), (node.out.rank - 1,)):
        return None
    return [(row_mean, (node.inputs[0],))]


def _of_softmax(node: Node, constant: Constant) -> list[Operation] | None:
    rank = node.out.rank
    if not rank or node.attr("axis", -1 if since_version(node) >= 13 else 1) not in (-1, rank - 1):
        return None
    x = node.inputs[0]
    return [(_row_max, (x,)), (np.subtract, (x, 0)), (np.exp, (1,)), (_row_sum, (2,)), (np.divide, (2, 3))]


def _of_layer_normalization(node: Node, constant: Constant) -> list[Operation] | None:
    if len(node.outputs) != 1 or not node.out.rank or node.attr("axis", -1) not in (-1, node.out.rank - 1):
        return None
    return _normalized([], node.inputs[0], node.input(1), node.input(2), node.attr("epsilon", 1e-5), constant)


def _of_skip_layer_normalization(node: Node, constant: Constant) -> list[Operation] | None:
    x, skip, scale, shift, bias = (node.input(i) for i in range(5))
    if len(node.outputs) != 1:
        return None
    summed: list[Operation] = [(np.add, (x, skip))]
    if bias is not None:
        summed.append((np.add, (0, bias)))
    return _normalized(summed, len(summed) - 1, scale, shift, node.attr("epsilon", 1e-5), constant)


def _normalized(
    before: list[Operation], x: Operand, scale: Value | None, shift: Value | None, epsilon: float, constant: Constant
) -> list[Operation] | None:
    known = None if scale is None else constant(scale)
    if known is None or known.ndim != 1:
        return None
    last = len(before)
    affine: list[Operation] = [(standardize(epsilon), (x,)), (np.multiply, (last, scale))]
    return [*before, *affine] + ([] if shift is None else [(np.add, (last + 1, shift))])


def _of_gelu(node: Node, constant: Constant) -> list[Operation]:
    return [(gelu_tanh_block if node.attr("approximate", "none") == "tanh" else gelu_block, (node.inputs[0],))]


def _of_bias_gelu(node: Node, constant: Constant) -> list[Operation]:
    block = gelu_tanh_block if node.op == "FastGelu" else gelu_block
    x, bias = node.inputs[0], node.input(1)
    return [(block, (x,))] if bias is None else [(np.add, (x, bias)), (block, (0,))]


def _of_swish(node: Node, constant: Constant) -> list[Operation]:
    return [(swish(node.attr("alpha", 1.702 if node.domain else 1.0)), (node.inputs[0],))]


def quantizer_before(node: Node) -> Node | None:
    """The QuantizeLinear whose only reader is this DequantizeLinear."""
    value = node.inputs[0] if node.is_op("DequantizeLinear") else None
    before = None if value is None else value.producer
    if value is None or before is None or not before.is_op("QuantizeLinear") or value.is_output or len(value.uses) != 1:
        return None
    return before


def _known(node: Node, slot: int, constant: Constant) -> Array | None:
    value = node.input(slot)
    return None if value is None else constant(value)


_SPECIAL: dict[str, Callable[[Node, Constant], list[Operation] | None]] = {
    "Clip": _of_clip, "HardSigmoid": _of_hard_sigmoid, "LeakyRelu": _of_leaky_relu, "PRelu": _of_prelu, "Pow": _of_pow,
    "BatchNormalization": _of_batch_normalization, "DequantizeLinear": _of_dequantize,
    "LayerNormalization": _of_layer_normalization, "ReduceMean": _of_reduce_mean, "Softmax": _of_softmax, "Gelu": _of_gelu,
    "Sum": _of_sum, "Swish": _of_swish,
}  # fmt: skip

_MICROSOFT: dict[str, Callable[[Node, Constant], list[Operation] | None]] = {
    "Gelu": _of_gelu, "BiasGelu": _of_bias_gelu, "FastGelu": _of_bias_gelu, "QuickGelu": _of_swish,
    "SkipLayerNormalization": _of_skip_layer_normalization,
}  # fmt: skip
