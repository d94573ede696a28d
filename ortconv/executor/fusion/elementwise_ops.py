"""Elementwise operators as instructions: functions of contiguous float32 operands and of the result, which may be one of the
operands.

`instructions_of` translates a node to instructions. Chains of them run block by block, and stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from ortconv.executor.algorithms.blockwise import erf_block
from ortconv.executor.fusion.group import Constant
from ortconv.executor.replay.numerics import clip_to, f32, fast_exponential
from ortconv.executor.replay.work import AT_ONCE, Recordable, Work
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
    """Builds instructions, one after another."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []

    def add(self, function: Callable[..., Any], *operands: Operand | Array | float | None) -> Temporary | None:
        """Append an instruction, and return its result. None if an operand is missing. Arrays and numbers are literals."""
        given = []
        for o in operands:
            if o is None:
                return None
            given.append(
                Literal(f32(o)) if isinstance(o, float | int) else Literal(o) if isinstance(o, np.ndarray) else o
            )
        made = Temporary()
        self.instructions.append(Instruction(function, tuple(given), made))
        return made

    def making(self, value: Value) -> list[Instruction]:
        """The instructions, with `value` as the result of the last one."""
        return [*self.instructions[:-1], *(last._replace(made=value) for last in self.instructions[-1:])]


class NodeCode(Code):
    """Builds the instructions of one node. Inputs are literals if they are known."""

    def __init__(self, node: Node, constant: Constant) -> None:
        super().__init__()
        self.node, self.constant = node, constant

    def known(self, slot: int) -> Array | None:
        return self.constant(self.node.input(slot))

    def operand(self, slot: int) -> Operand | None:
        """The input at a slot; None if it is absent."""
        known = self.known(slot)
        return self.node.input(slot) if known is None else Literal(known)

    def operands(self) -> list[Operand | None]:
        return [self.operand(slot) for slot in range(len(self.node.inputs))]


Made = Temporary | None
"""The result of instructions that were added to a code; None if there are none for these operands."""

_INFINITY = float("inf")
_EXPONENTIAL, _UNIT = fast_exponential()


def _clip(code: Code, x: Operand | None, low: Array | float, high: Array | float) -> Made:
    return code.add(clip_to, x, low, high)


def _relu(code: Code, x: Operand | None) -> Made:
    return _clip(code, x, 0.0, _INFINITY)


def _one_plus_exponential(code: Code, exponent: Operand | None) -> Made:
    """1 + exp, for an exponent in the units of the fast exponential."""
    return code.add(np.add, code.add(_EXPONENTIAL, exponent), 1.0)


def _sigmoid(code: Code, x: Operand | None) -> Made:
    return code.add(np.reciprocal, _one_plus_exponential(code, code.add(np.multiply, x, -_UNIT)))


def _swish(code: Code, x: Operand | None, alpha: float = 1.0) -> Made:
    """x * sigmoid(alpha * x)"""
    return code.add(np.divide, x, _one_plus_exponential(code, code.add(np.multiply, x, -alpha * _UNIT)))


def _hard_sigmoid(code: Code, x: Operand | None, alpha: float, beta: float) -> Made:
    return _clip(code, code.add(np.add, code.add(np.multiply, x, alpha), beta), 0.0, 1.0)


def _leaky_relu(code: Code, x: Operand | None, alpha: float) -> Made:
    """x or x * alpha: the maximum of the two, or the minimum for a large alpha."""
    limited = np.maximum if alpha <= 1 else np.minimum
    return code.add(lambda x, y, out: limited(x, y, out=out), code.add(np.multiply, x, alpha), x)


# logit(Phi(x)) / -x as a polynomial in x^2, Phi the normal distribution function: fitted so that Phi is off by at most 7e-8.
_GELU = (-3.618727e-09, 2.6729376e-07, -7.946227e-06, 1.1055589e-04, 6.590951e-05, -7.266782e-02, -1.5957689)

# -2 sqrt(2 / pi) (x + 0.044715 x^3) over x, as a polynomial in x^2
_GELU_TANH = (-2 * sqrt(2 / pi) * 0.044715, -2 * sqrt(2 / pi))


def _gelu(code: Code, x: Operand | None, approximate: str = "none") -> Made:
    """x / (1 + exp(x P(x^2))), to 2e-7 of max(1, |x|)."""
    first, *others = (c * _UNIT for c in (_GELU_TANH if approximate == "tanh" else _GELU))
    square = code.add(np.multiply, x, x)
    polynomial = code.add(np.multiply, square, first)
    for c in others[:-1]:
        polynomial = code.add(np.multiply, code.add(np.add, polynomial, c), square)
    exponent = code.add(np.multiply, code.add(np.add, polynomial, others[-1]), x)
    return code.add(np.divide, x, _one_plus_exponential(code, exponent))


class RowWise(Recordable):
    """A function of whole rows, along the last axis, whose results are whole rows."""


def _standardize(epsilon: float, centers: bool) -> Callable[..., Any]:
    """x / sqrt(mean of squares + epsilon) for each row; with `centers`, the mean is subtracted from x first."""
    shift = f32(epsilon)

    def run(work: Work, x: Array, out: Array) -> None:
        rows, deviation = x, work.empty(x.shape[:-1])
        if centers:
            mean = work.empty((*x.shape[:-1], 1))
            work.do(np.matmul, x, _shares(x.shape[-1]), mean)
            work.do(np.subtract, x, mean, out)
            rows = out
        work.do(partial(np.vecdot, out=deviation), rows, rows)
        work.do(np.multiply, deviation, f32(1 / x.shape[-1]), deviation)
        work.do(np.add, deviation, shift, deviation)
        work.do(np.sqrt, deviation, deviation)
        work.do(np.divide, rows, deviation[..., None], out)

    return RowWise(partial(run, AT_ONCE), run)


@cache
def _shares(n: int) -> Array:
    """(n, 1): a product of rows with this gives their means."""
    return np.full((n, 1), 1 / n, np.float32)


def _prelu(code: NodeCode) -> Made:
    x, slope, known = code.operand(0), code.operand(1), code.known(1)
    if known is None or not known.size or not np.isfinite(known).all():
        return None
    below = code.add(np.multiply, _clip(code, x, -_INFINITY, 0.0), slope)
    return code.add(np.add, _relu(code, x), below)


def _pow(code: NodeCode) -> Made:
    exponent, value, x = code.known(1), code.node.inputs[0], code.operand(0)
    if exponent is None or exponent.size != 1 or exponent.reshape(()) not in (2, 3):
        return None
    if value is None or value.rank is None or exponent.ndim > value.rank:
        return None
    squared = code.add(np.multiply, x, x)
    return squared if exponent.reshape(()) == 2 else code.add(np.multiply, squared, x)


def _batch_normalization(code: NodeCode) -> Made:
    node, rank = code.node, code.node.out.rank or 0
    known = [v for v in map(code.known, range(1, 5)) if v is not None and v.dtype == np.float32]
    is_plain = not node.attr("training_mode", 0) and node.attr("spatial", 1) and not any(node.outputs[1:])
    if not is_plain or len(known) < 4 or rank < 2 or {v.shape for v in known} != {(node.out.dim(1),)}:
        return None
    scale, b, mean, var = (v.reshape(-1, *(1,) * (rank - 2)) for v in known)
    factor = scale / np.sqrt(var + var.dtype.type(node.attr("epsilon", 1e-5)))
    return code.add(np.add, code.add(np.multiply, code.operand(0), factor), b - mean * factor)


def _mul(code: NodeCode) -> Made:
    """x * Sigmoid(x) is computed from x. The result of the Sigmoid then has one reader less."""
    for slot, gate in (0, code.node.inputs[1]), (1, code.node.inputs[0]):
        before = None if gate is None else gate.producer
        if before is not None and before.is_op("Sigmoid") and before.inputs[0] is code.node.inputs[slot]:
            return _swish(code, code.operand(slot))
    return code.add(np.multiply, code.operand(0), code.operand(1))


def _sum(code: NodeCode) -> Made:
    first, *others = code.operands()
    made = None
    for other in others:
        made = code.add(np.add, first if made is None else made, other)
    return made


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


def _clip_of_node(code: NodeCode) -> Made:
    bounds = clip_bounds(code.node, code.constant)
    return None if bounds is None else _clip(code, code.operand(0), *bounds)


def _normalization(code: NodeCode) -> Made:
    """A normalization along the last axis with no other outputs."""
    node, rank = code.node, code.node.out.rank
    if len(node.outputs) != 1 or not rank or node.attr("axis", -1) not in (-1, rank - 1):
        return None
    return _normalized(code, code.operand(0), 1, 2, centers=node.op == "LayerNormalization")


def _skip_layer_normalization(code: NodeCode) -> Made:
    if len(code.node.outputs) != 1:
        return None
    total = code.add(np.add, code.operand(0), code.operand(1))
    if code.node.input(4) is not None:
        total = code.add(np.add, total, code.operand(4))
    return _normalized(code, total, 2, 3, centers=True, epsilon=1e-12)


def _normalized(
    code: NodeCode, x: Operand | None, scale: int, shift: int, *, centers: bool, epsilon: float = 1e-5
) -> Made:
    """The instructions of a normalization; `epsilon` is the default of the attribute."""
    known = code.known(scale)
    if known is None or known.ndim != 1:
        return None
    made = code.add(np.multiply, code.add(_standardize(code.node.attr("epsilon", epsilon), centers), x), known)
    return made if code.node.input(shift) is None else code.add(np.add, made, code.operand(shift))


def _bias_gelu(code: NodeCode) -> Made:
    x = code.operand(0) if code.node.input(1) is None else code.add(np.add, code.operand(0), code.operand(1))
    return _gelu(code, x, "tanh" if code.node.op == "FastGelu" else "none")


Writer = Callable[[NodeCode], Made]
"""Adds the instructions of a node."""


def _plain(function: Callable[..., Any]) -> Writer:
    """An operator without attributes: one function of its operands and of the result."""
    return lambda code: code.add(function, *code.operands())


def _of_x(write: Callable[..., Made], **defaults: Any) -> Writer:
    """An operator of one operand, with attributes that have these defaults."""
    return lambda code: write(code, code.operand(0), *(code.node.attr(name, v) for name, v in defaults.items()))


_ACTIVATIONS: dict[str, tuple[Callable[..., Made], dict[str, float]]] = {
    "Relu": (_relu, {}), "Sigmoid": (_sigmoid, {}), "Tanh": (lambda code, x: code.add(np.tanh, x), {}),
    "HardSwish": (lambda code, x: code.add(np.multiply, x, _hard_sigmoid(code, x, 1 / 6, 0.5)), {}),
    "LeakyRelu": (_leaky_relu, {"alpha": 0.01}), "HardSigmoid": (_hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
    "Clip": (_clip, {"low": -_INFINITY, "high": _INFINITY}),
}  # fmt: skip
"""For each activation, what adds its instructions, and the defaults of its parameters."""

_WRITERS: dict[tuple[str, str], Writer] = {
    **{("", op): _of_x(write, **defaults) for op, (write, defaults) in _ACTIVATIONS.items()},
    ("", "Add"): _plain(np.add), ("", "Sub"): _plain(np.subtract), ("", "Div"): _plain(np.divide), ("", "Mul"): _mul,
    ("", "Sqrt"): _plain(np.sqrt), ("", "Exp"): _plain(np.exp), ("", "Sum"): _sum,
    ("", "Neg"): _plain(np.negative), ("", "Abs"): _plain(np.abs), ("", "Reciprocal"): _plain(np.reciprocal),
    ("", "Erf"): _plain(erf_block), ("", "Pow"): _pow, ("", "Clip"): _clip_of_node, ("", "PRelu"): _prelu,
    ("", "Swish"): _of_x(_swish, alpha=1.0), (MICROSOFT, "QuickGelu"): _of_x(_swish, alpha=1.702),
    ("", "Gelu"): _of_x(_gelu, approximate="none"), (MICROSOFT, "Gelu"): _of_x(_gelu),
    (MICROSOFT, "BiasGelu"): _bias_gelu, (MICROSOFT, "FastGelu"): _bias_gelu,
    ("", "BatchNormalization"): _batch_normalization, ("", "LayerNormalization"): _normalization,
    ("", "RMSNormalization"): _normalization, ("", "SimplifiedLayerNormalization"): _normalization,
    (MICROSOFT, "SimplifiedLayerNormalization"): _normalization,
    (MICROSOFT, "SkipLayerNormalization"): _skip_layer_normalization,
}  # fmt: skip


def instructions_of(node: Node, constant: Constant) -> list[Instruction] | None:
    """The instructions of a node on float32 elements, of which the last computes its output; None if there are none."""
    write = _WRITERS.get((node.domain, node.op))
    if write is None:
        return None
    code = NodeCode(node, constant)
    return None if write(code) is None else code.making(node.out)


def fused_activation(node: Node) -> Callable[[Code, Operand | None], Made] | None:
    """The activation that FusedConv applies to its sums; None if there are no instructions for it."""
    parameters: tuple[float, ...] = tuple(node.attr("activation_params", ()))
    write, required = _ACTIVATIONS.get(node.attr("activation", ""), (None, {}))
    if write is None or len(parameters) < len(required):
        return None
    return lambda code, x: write(code, x, *parameters[: len(required)])
