"""Elementwise operators on blocks: functions of contiguous float32 operands and of the result, which may be one of the
operands.

`instructions_of` translates a node to such functions. Chains of them run block by block, and stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.blockwise import dot_of_rows, erf_block, gelu_block, gelu_tanh_block
from ortconv.executor.fusion.group import Constant
from ortconv.executor.replay.numerics import clip_to, f32, fast_exponential
from ortconv.executor.replay.work import AT_ONCE, Recordable, Work, recordable
from ortconv.ir.graph import Node, Value
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array


class Temporary:
    """The result of an instruction that is not a value of the graph."""


class Literal:
    """A constant operand."""

    def __init__(self, array: Array) -> None:
        self.array = array


Name = Value | Temporary
Operand = Name | Literal


class Instruction(NamedTuple):
    """`function(*operands, made)`, on blocks of float32 elements."""

    function: Callable[..., Any]
    operands: tuple[Operand, ...]
    made: Name

    @property
    def is_row_wise(self) -> bool:
        """True for a function of whole rows whose results are whole rows."""
        return isinstance(self.function, RowWise)


class Code:
    """Builds the instructions of one node. Operands are constants if they are known."""

    def __init__(self, node: Node, constant: Constant) -> None:
        self.node, self.constant = node, constant
        self.instructions: list[Instruction] = []

    def known(self, slot: int) -> Array | None:
        value = self.node.input(slot)
        return None if value is None else self.constant(value)

    def operand(self, slot: int) -> Operand | None:
        """The input at a slot; None if it is absent."""
        known = self.known(slot)
        return self.node.input(slot) if known is None else Literal(known)

    def add(self, function: Callable[..., Any], *operands: Operand | None) -> Temporary | None:
        """Append an instruction, and return its result. None if an operand is missing."""
        given = tuple([o for o in operands if o is not None])
        if len(given) < len(operands):
            return None
        made = Temporary()
        self.instructions.append(Instruction(function, given, made))
        return made

    def making(self, value: Value) -> list[Instruction]:
        """The instructions, with `value` as the result of the last one."""
        return [*self.instructions[:-1], *(last._replace(made=value) for last in self.instructions[-1:])]


_ZERO, _ONE, _INFINITY = f32(0), f32(1), f32(np.inf)


def _clip(low: Array, high: Array) -> Callable[..., Any]:
    """Elements between two bounds."""
    return recordable(lambda work, x, out: work.do(clip_to, x, low, high, out))


class RowWise(Recordable):
    """A function of whole rows, along the last axis, whose results are whole rows."""


_EXPONENTIAL, _UNIT = fast_exponential()
_MINUS_UNIT = f32(-_UNIT)


@recordable
def sigmoid(work: Work, x: Array, out: Array) -> None:
    work.do(np.multiply, x, _MINUS_UNIT, out)
    work.do(_EXPONENTIAL, out, out)
    work.do(np.add, out, _ONE, out)
    work.do(np.reciprocal, out, out)


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


_GATE = _hard_sigmoid(1 / 6, 0.5)


@recordable
def hard_swish(work: Work, x: Array, out: Array) -> None:
    gate = work.like(x)
    work.do(_GATE, x, gate)
    work.do(np.multiply, x, gate, out)


def _leaky_relu(alpha: float) -> Callable[..., Any]:
    """x or x * alpha: the maximum of the two, or the minimum for a large alpha."""
    slope, limited = f32(alpha), np.maximum if alpha <= 1 else np.minimum

    def run(work: Work, x: Array, out: Array) -> None:
        sloping = work.like(x)
        work.do(np.multiply, x, slope, sloping)
        work.do(partial(limited, out=out), sloping, x)

    return recordable(run)


@recordable
def _prelu(work: Work, x: Array, slope: Array, out: Array) -> None:
    below = work.like(x)
    work.do(clip_to, x, -_INFINITY, _ZERO, below)
    work.do(np.multiply, below, slope, below)
    work.do(clip_to, x, _ZERO, _INFINITY, out)
    work.do(np.add, out, below, out)


@recordable
def square(work: Work, x: Array, out: Array) -> None:
    work.do(np.multiply, x, x, out)


@cache
def _shares(n: int) -> Array:
    """(n, 1): a product of rows with this gives their means."""
    return np.full((n, 1), 1 / n, np.float32)


@recordable
def row_mean(work: Work, x: Array, out: Array) -> None:
    work.do(np.matmul, x, _shares(x.shape[-1]), out)


def standardize(epsilon: float, centers: bool = True) -> Callable[..., Any]:
    """x / sqrt(mean of squares + epsilon) for each row; with `centers`, the mean is subtracted from x first."""
    shift = f32(epsilon)

    def run(work: Work, x: Array, out: Array) -> None:
        rows, deviation = x, work.empty(x.shape[:-1])
        if centers:
            mean = work.empty((*x.shape[:-1], 1))
            work.do(row_mean, x, mean)
            work.do(np.subtract, x, mean, out)
            rows = out
        work.do(partial(dot_of_rows, out=deviation), rows, rows)
        work.do(np.multiply, deviation, _share(x.shape[-1]), deviation)
        work.do(np.add, deviation, shift, deviation)
        work.do(np.sqrt, deviation, deviation)
        work.do(np.divide, rows, deviation[..., None], out)

    return RowWise(partial(run, AT_ONCE), run)


@cache
def _share(n: int) -> Array:
    return f32(1 / n)


_UFUNCS: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Div": np.divide, "Sqrt": np.sqrt, "Exp": np.exp, "Tanh": np.tanh,
    "Neg": np.negative, "Abs": np.abs, "Reciprocal": np.reciprocal, "Sigmoid": sigmoid, "HardSwish": hard_swish,
    "Erf": erf_block, "Relu": _clip(_ZERO, _INFINITY),
}  # fmt: skip
"""Operators without attributes: a function of their operands and of the result."""


_PARAMETRIC: dict[tuple[str, str], Callable[[Node], Callable[..., Any]]] = {
    ("", "HardSigmoid"): lambda node: _hard_sigmoid(node.attr("alpha", 0.2), node.attr("beta", 0.5)),
    ("", "LeakyRelu"): lambda node: _leaky_relu(node.attr("alpha", 0.01)),
    ("", "Swish"): lambda node: swish(node.attr("alpha", 1.0)),
    (MICROSOFT, "QuickGelu"): lambda node: swish(node.attr("alpha", 1.702)),
    ("", "Gelu"): lambda node: gelu_tanh_block if node.attr("approximate", "none") == "tanh" else gelu_block,
    (MICROSOFT, "Gelu"): lambda _: gelu_block,
}
"""Operators of one operand with attributes: the function of the operand and of the result."""


def instructions_of(node: Node, constant: Constant) -> list[Instruction] | None:
    """The instructions of a node on float32 elements, of which the last computes its output; None if there are none."""
    code = Code(node, constant)
    if node.op in _UFUNCS and not node.domain:
        made = code.add(_UFUNCS[node.op], *map(code.operand, range(len(node.inputs))))
    elif (node.domain, node.op) in _PARAMETRIC:
        made = code.add(_PARAMETRIC[node.domain, node.op](node), code.operand(0))
    else:
        write = _WRITERS.get((node.domain, node.op))
        made = None if write is None else write(code)
    return None if made is None else code.making(node.out)


def fused_activation(node: Node) -> Callable[..., Any] | None:
    """The activation that FusedConv applies to its sums; None if there is no block function for it."""
    parameters: tuple[float, ...] = tuple(node.attr("activation_params", ()))
    count, make = _ACTIVATIONS.get(node.attr("activation", ""), (0, None))
    return None if make is None or len(parameters) < count else make(*parameters[:count])


_ACTIVATIONS: dict[str, tuple[int, Callable[..., Callable[..., Any]]]] = {
    "Clip": (2, lambda low, high: _clip(f32(low), f32(high))), "LeakyRelu": (1, _leaky_relu),
    "HardSigmoid": (2, _hard_sigmoid), "Relu": (0, lambda: _UFUNCS["Relu"]), "HardSwish": (0, lambda: _UFUNCS["HardSwish"]),
    "Sigmoid": (0, lambda: _UFUNCS["Sigmoid"]), "Tanh": (0, lambda: _UFUNCS["Tanh"]),
}  # fmt: skip
"""For each activation, the number of parameters, and the function that creates it from them."""


def clip_bounds(node: Node, constant: Constant) -> tuple[Array, Array] | None:
    """The constant bounds of a Clip, as attributes or inputs."""
    largest = float(np.finfo(np.float32).max)
    bounds = [f32(node.attr("min", -largest)), f32(node.attr("max", largest))]
    for i, value in enumerate(node.inputs[1:]):
        if value is not None:
            known = constant(value)
            if known is None or known.size != 1 or known.dtype != np.float32:
                return None
            bounds[i] = known.reshape(())
    return bounds[0], bounds[1]


def _clip_by_node(code: Code) -> Temporary | None:
    bounds = clip_bounds(code.node, code.constant)
    return None if bounds is None else code.add(_clip(*bounds), code.operand(0))


def _prelu_by_node(code: Code) -> Temporary | None:
    slope = code.known(1)
    if slope is None or not slope.size or not np.isfinite(slope).all():
        return None
    return code.add(_prelu, code.operand(0), code.operand(1))


def _pow_by_node(code: Code) -> Temporary | None:
    exponent, value, x = code.known(1), code.node.inputs[0], code.operand(0)
    if exponent is None or exponent.size != 1 or exponent.reshape(()) not in (2, 3):
        return None
    if value is None or value.rank is None or exponent.ndim > value.rank:
        return None
    squared = code.add(square, x)
    return squared if exponent.reshape(()) == 2 else code.add(np.multiply, squared, x)


def _batch_normalization_by_node(code: Code) -> Temporary | None:
    node, rank = code.node, code.node.out.rank or 0
    known = [v for v in map(code.known, range(1, 5)) if v is not None and v.dtype == np.float32]
    is_plain = not node.attr("training_mode", 0) and node.attr("spatial", 1) and not any(node.outputs[1:])
    if not is_plain or len(known) < 4 or rank < 2 or {v.shape for v in known} != {(node.out.dim(1),)}:
        return None
    scale, b, mean, var = (v.reshape(-1, *(1,) * (rank - 2)) for v in known)
    factor = scale / np.sqrt(var + var.dtype.type(node.attr("epsilon", 1e-5)))
    scaled = code.add(np.multiply, code.operand(0), Literal(factor))
    return code.add(np.add, scaled, Literal(b - mean * factor))


def _mul_by_node(code: Code) -> Temporary | None:
    """x * Sigmoid(x) is computed from x. The result of the Sigmoid then has one reader less."""
    for slot, gate in (0, code.node.inputs[1]), (1, code.node.inputs[0]):
        before = None if gate is None else gate.producer
        if before is not None and before.is_op("Sigmoid") and before.inputs[0] is code.node.inputs[slot]:
            return code.add(swish(1), code.operand(slot))
    return code.add(np.multiply, code.operand(0), code.operand(1))


def _sum_by_node(code: Code) -> Temporary | None:
    first, *others = map(code.operand, range(len(code.node.inputs)))
    made = None
    for other in others:
        made = code.add(np.add, first if made is None else made, other)
    return made


def _normalization_by_node(code: Code) -> Temporary | None:
    """A normalization along the last axis with no other outputs."""
    node, rank = code.node, code.node.out.rank
    if len(node.outputs) != 1 or not rank or node.attr("axis", -1) not in (-1, rank - 1):
        return None
    return _normalized(code, code.operand(0), 1, 2, centers=node.op == "LayerNormalization")


def _skip_layer_normalization_by_node(code: Code) -> Temporary | None:
    if len(code.node.outputs) != 1:
        return None
    total = code.add(np.add, code.operand(0), code.operand(1))
    if code.node.input(4) is not None:
        total = code.add(np.add, total, code.operand(4))
    return _normalized(code, total, 2, 3)


def _normalized(code: Code, x: Operand | None, scale: int, shift: int, centers: bool = True) -> Temporary | None:
    known = code.known(scale)
    if known is None or known.ndim != 1:
        return None
    standard = code.add(standardize(code.node.attr("epsilon", 1e-5), centers), x)
    made = code.add(np.multiply, standard, code.operand(scale))
    return made if code.node.input(shift) is None else code.add(np.add, made, code.operand(shift))


def _bias_gelu_by_node(code: Code) -> Temporary | None:
    x = code.operand(0) if code.node.input(1) is None else code.add(np.add, code.operand(0), code.operand(1))
    return code.add(gelu_tanh_block if code.node.op == "FastGelu" else gelu_block, x)


_WRITERS: dict[tuple[str, str], Callable[[Code], Temporary | None]] = {
    ("", "Clip"): _clip_by_node, ("", "Mul"): _mul_by_node,
    ("", "PRelu"): _prelu_by_node, ("", "Pow"): _pow_by_node, ("", "BatchNormalization"): _batch_normalization_by_node,
    ("", "LayerNormalization"): _normalization_by_node, ("", "RMSNormalization"): _normalization_by_node,
    ("", "SimplifiedLayerNormalization"): _normalization_by_node,
    (MICROSOFT, "SimplifiedLayerNormalization"): _normalization_by_node, ("", "Sum"): _sum_by_node,
    (MICROSOFT, "BiasGelu"): _bias_gelu_by_node,
    (MICROSOFT, "FastGelu"): _bias_gelu_by_node,
    (MICROSOFT, "SkipLayerNormalization"): _skip_layer_normalization_by_node,
}  # fmt: skip
"""Operators whose instructions depend on attributes or constants."""
