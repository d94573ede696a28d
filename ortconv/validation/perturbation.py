"""How far a model's own outputs move under rounding errors in inputs, constants and approximated functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ortconv.compare.gap import TIMES, Gap, gap_of_all, longer
from ortconv.compare.tolerance import largest_scale
from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import Trait, traits
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType

UNITS = {DType.FLOAT16: 2.0**-11, DType.BFLOAT16: 2.0**-8, DType.FLOAT: 2.0**-20, DType.DOUBLE: 2.0**-49}
"""Relative error of a sum that is added in another order."""

APPROXIMATED = ("Sigmoid", "Tanh", "Erf")
"""Functions that kernels approximate by polynomials. Their error is relative to 1, even if the result is near 0."""

ERRORS = {DType.FLOAT: 2.0**-23, DType.DOUBLE: 2.0**-52}
"""The error of these functions. In narrower types it is hidden by rounding."""


TIES = 2.0**-12
"""Error of a sum of products of quantized values before it is rounded, in quantization steps."""

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose sums fixed-point arithmetic rounds: those that NNAPI computes on quantized values, not all that sum."""

ACTIVATIONS = ("Relu", "Clip")
"""Operators that a quantized operator includes after its sums, before they are rounded."""

SHAPES = ("Shape", "Size")
"""Operators that read only the shape of their input."""

MOST_RUNS = 24
"""Maximum number of runs with such errors, when they may explain a difference."""

FIRST_RUNS = 2
"""Number of runs that are always made. The others follow only if these come close to an explanation."""

NEAR = 4.0
"""The remaining runs are made only if the difference is at most this many times as large as an explained one."""


class Perturbation:
    """Random signs and factors, seeded by a number. An odd number has those of the number before it with opposite sign.

    `is_uniform` is true for every other pair of numbers: then all elements that a node quantizes have the same error.
    """

    def __init__(self, number: int) -> None:
        self._rng, self.sign = np.random.default_rng(number // 2), 1 - 2 * (number % 2)
        self.is_uniform = number // 2 % 2 == 0

    def signs(self, shape: tuple[int, ...] = ()) -> Array:
        return np.asarray(self.sign * self._rng.choice((-1.0, 1.0), shape))

    def factors(self, shape: tuple[int, ...]) -> Array:
        """Random numbers from -1 to 1."""
        return np.asarray(self.sign * self._rng.uniform(-1, 1, shape))

    def seed(self) -> float:
        """A seed for numbers that a node of the graph draws."""
        return float(self._rng.integers(1 << 20))


def explains(found: Gap, want: Any, moved: Iterable[Any], others: Sequence[Any] = ()) -> bool:
    """True if the gap of a result to the source's output is explained by the movement of this output.

    `others` are the source's outputs on other engines: the elements that differ there are among those that may move. Runs with
    outputs of another length do not count.
    """
    runs: list[Any] = []
    for one in moved:
        if longer(want, one)[0] is not None:
            continue
        runs.append(one)
        widest = gap_of_all(want, runs, others)
        if found.explained_by(widest):
            return True
        if len(runs) == FIRST_RUNS and not replace(found, count=0).explained_by(widest, NEAR * TIMES):
            return False  # elements beyond the limit may come with later runs
    return False


def perturbed(value: Any, perturbation: Perturbation) -> Any:
    """An input or constant with errors in its floats that are about as large as the rounding of sums.

    Single zeros stay zeros, because many operators treat them differently. In an input of zeros alone they move: otherwise all
    elements would have the same errors, and differences between them none.
    """
    if isinstance(value, list):
        return [perturbed(v, perturbation) for v in value]
    if not isinstance(value, np.ndarray) or value.dtype == object:
        return value
    unit = UNITS.get(DType.of(value.dtype))
    if unit is None:
        return value
    exact = value.astype(np.float64)
    with np.errstate(all="ignore"):
        errors = unit * perturbation.signs(exact.shape) * (np.abs(exact) + 2.0**-3)
        return np.where((exact == 0) & exact.any(), exact, exact + errors).astype(value.dtype)


def perturb(graph: Graph, perturbation: Perturbation, fixed_point: bool = False) -> None:
    """Change float constants by about the rounding error of sums, and approximated or quantized results by their own error.

    The graph is changed in place. Quantized values at ties are then rounded the other way. Exponents are unchanged, since a
    negative number can only be raised to whole numbers, and so are constants that decide shapes, such as the scales of a
    Resize. With `fixed_point`, sums of quantized products change by the rounding error of fixed-point arithmetic.
    """
    kept = {node.input(1) for node in graph.walk() if node.is_op("Pow")} | _of_shapes(graph)
    for part in graph.graphs():
        for value in part.initializers.values():
            const = value.constant
            if value not in kept and const is not None and const.dtype in UNITS:
                value.const = _perturbed_tensor(const, perturbation)
        for node in list(part):
            if node.is_op("ConstantOfShape") and node.out not in kept:
                _perturb_filled(part, node, perturbation)
            _perturb_node(part, node, perturbation, fixed_point)


def _perturbed_tensor(const: Tensor, perturbation: Perturbation) -> Tensor:
    """The constant with its errors. The largest numbers, which masks consist of, do not become infinite."""
    exact = const.numpy().astype(np.float64)
    factor = 1 + UNITS[const.dtype] * perturbation.factors(exact.shape)
    with np.errstate(over="ignore"):
        moved = (exact * factor).astype(const.dtype.numpy)
    return Tensor.of(np.where(np.isinf(moved), const.numpy(), moved))


def _perturb_filled(graph: Graph, node: Node, perturbation: Perturbation) -> None:
    """Replace a ConstantOfShape of floats by a constant with errors. Such weights make equal sums, which rounding separates."""
    shape, fill = node.out.static_shape, node.attrs.get("value")
    if shape is not None and isinstance(fill, Tensor) and fill.dtype in UNITS:
        const = Tensor.of(np.full(shape, fill.numpy().reshape(())))
        graph.replace_uses(node.out, graph.constant(_perturbed_tensor(const, perturbation), "filled"))


def _of_shapes(graph: Graph) -> set[Value | None]:
    """The values from which shapes are computed, except those that a Shape or a product reads."""
    waiting = [node.input(slot) for node in graph.walk() for slot in traits(node).shaped_by]
    found: set[Value | None] = set()
    while waiting:
        value = waiting.pop()
        if value is None or value in found:
            continue
        found.add(value)
        maker = value.producer
        if maker is not None and maker.op not in SHAPES and not traits(maker).has(Trait.SUMS):
            waiting += maker.inputs
    return found


def _perturb_node(graph: Graph, node: Node, perturbation: Perturbation, fixed_point: bool) -> None:
    value, sign = node.input(0), perturbation.signs().item()
    if node.domain == "" and node.op in APPROXIMATED:
        result, error = node.out, ERRORS.get(node.out.dtype or DType.UNDEFINED, 0.0)
        if error:
            added = _add(graph, result, sign * error, node.next)
            graph.replace(result, added.out)
            graph.set_input(added, 0, result)
    elif node.is_op("QuantizeLinear") and value is not None and (step := _step(node)):
        error = max(step * TIES, _sum_unit(value) / 2 if fixed_point else 0.0)
        if perturbation.is_uniform:
            moved = _add(graph, value, sign * error, node)
        else:
            moved = _add_noise(graph, value, error, perturbation, node)
        graph.set_input(node, 0, moved.out)


def _add(graph: Graph, value: Value, amount: float, before: Node | None) -> Node:
    """Insert a node that adds a number to a value."""
    assert value.dtype is not None
    number = graph.constant(Tensor.of(np.array(amount, value.dtype.numpy)), "error")
    return graph.add_node("Add", [value, number], types=[value.type], before=before)


def _add_noise(graph: Graph, value: Value, most: float, perturbation: Perturbation, before: Node) -> Node:
    """Insert nodes that add a random number from -most to most to each element of a value."""
    attrs = {"low": -most, "high": most, "seed": perturbation.seed()}
    noise = graph.add_node("RandomUniformLike", [value], attrs=attrs, types=[value.type], before=before)
    op = "Add" if perturbation.sign > 0 else "Sub"
    return graph.add_node(op, [value, noise.out], types=[value.type], before=before)


def _step(node: Node) -> float:
    """The smallest scale of a QuantizeLinear of float32; 0 if it is not constant."""
    const = node.constant(1)
    if const is None or node.dtype(0) is not DType.FLOAT:
        return 0.0
    return float(np.abs(const.numpy().astype(np.float64)).min(initial=np.inf))


def _sum_unit(value: Value) -> float:
    """The scale of a sum of quantized products, at the output of its operator's activation; 0 for other values.

    Fixed-point arithmetic multiplies the sum by a number from 1/2 to 1 and rounds; then it divides by a power of 2 and rounds
    again. The first rounding changes a result by at most this scale, and by at most half of it on average.
    """
    node = value.producer
    while node is not None and node.op in ACTIVATIONS:
        before = node.input(0)
        node = None if before is None else before.producer
    if node is None or node.op not in PRODUCTS:
        return 0.0
    return _scale(node.input(0)) * _scale(node.input(1))


def _scale(value: Value | None) -> float:
    """The largest scale of a dequantized value; 0 for other values, or if the scale is not constant."""
    node = None if value is None else value.producer
    return (largest_scale(node) if node is not None and node.is_op("DequantizeLinear") else None) or 0.0


def near_poles(runs: Sequence[Array]) -> Array:
    """Elements that vary between the results by as much as the largest element of the first one, as near the pole of a function."""
    numbers = [np.where(np.isfinite(a), a, 0).astype(np.float64) for a in runs]
    swing = np.max(numbers, axis=0) - np.min(numbers, axis=0)
    return np.asarray((swing > 0) & (swing >= np.abs(numbers[0]).max(initial=0)))
