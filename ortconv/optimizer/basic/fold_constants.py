"""Constant folding: nodes with constant results, shapes known in full or in part, and branches with constant conditions.

A single walk in topological order propagates new constants and their types.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortconv.errors import OrtconvError
from ortconv.ir.graph import Graph, Node, Value, captures
from ortconv.ir.kernels import has_kernel
from ortconv.ir.operands import only_reader, producer_of, scalar
from ortconv.ir.operators import Trait, traits
from ortconv.ir.schema import is_deterministic
from ortconv.ir.tensor import Array, Tensor
from ortconv.ir.types import DType
from ortconv.optimizer.engine import Context
from ortconv.optimizer.quantizers import QUANTIZERS
from ortconv.optimizer.shapes import static_elements


def fold(graph: Graph, context: Context) -> int:
    """Fold every node with a constant result, partly known shapes, and branches with constant conditions.

    Returns the number of folded nodes of this graph.

    Counterpart: ConstantFolding
    Differs: elements of partly known shapes fold, and arithmetic on them, and float16 nodes without a kernel, in float32;
        limited by the net growth of the model (--fold-limit), while ONNX Runtime limits each output to 1 GiB and skips
        those of unknown size.
    Also: IfInlining
    """
    changes = 0
    exact: Exact = {}
    fresh: set[Value | None] = set()
    since = context.since
    for node in graph:
        if node.touched < since or not context.may_touch(node):
            continue
        if not fresh.isdisjoint(node.inputs) and _update_types(node):
            fresh.update(node.present_outputs)
        made = _folded(node, context, exact)
        if made is not None:
            fresh.update(made)
            context.mark_touched()
            changes += 1
    return changes


def _folded(node: Node, context: Context, exact: Exact) -> list[Value] | None:
    """Fold a node, or inline the branch that it selects. Return the values that replace its outputs; None for neither."""
    results = _known(node, context, exact)
    if results is not None:
        return _replace(node, results, context)
    branch = _decided(node) if node.is_op("If") else None
    return None if branch is None else _inline(node, branch, context)


Exact = dict[Tensor, Array]
"""Constants in float16 that were computed in float32, and their elements before they were rounded."""


def _update_types(node: Node) -> bool:
    from ortconv.onnxio.infer import update_types

    if all(v is None or v.static_shape is not None for v in node.outputs):
        return False
    return update_types(node)


# ---------------------------------------------------------------------- known values


def _known(node: Node, context: Context, exact: Exact) -> list[Tensor | None] | None:
    """The constant outputs of a node; None if they are unknown or should not become constants."""
    if (node.domain != "" and (node.domain, node.op) not in QUANTIZERS) or not node.outputs:
        return None
    if not all(v is None or v.constant is not None for v in node.inputs):
        return _known_shape(node)
    if node.subgraphs or not is_deterministic(node) or _is_weight(node):
        return None
    if node.op == "Identity" and (value := node.inputs[0]) is not None and value.constant is not None:
        return [value.constant] if _fits(node, value.constant.nbytes, context) else None
    return _evaluate(node, context, exact) if _fits(node, _static_bytes(node), context) else None


def _known_shape(node: Node) -> list[Tensor | None] | None:
    """The output of a shape computation that does not depend on the inputs of the model."""
    elements = static_elements(node)
    if elements is None or node.out.rank is None:
        return None
    shape = () if node.out.rank == 0 else (len(elements),)
    return [Tensor.of(np.asarray(elements).reshape(shape), node.out.dtype)]


def _evaluate(node: Node, context: Context, exact: Exact) -> list[Tensor | None] | None:
    from ortconv.executor.kernels.evaluate import evaluate

    widened = DType.FLOAT16 in {v.dtype for v in node.present_outputs} and not has_kernel(node)
    try:
        found = _evaluated_in_float32(node, exact) if widened else evaluate(node)
        tensors = [None if v is None else _tensor(result, v.dtype) for v, result in zip(node.outputs, found)]
    except (OrtconvError, ArithmeticError, ValueError, TypeError, IndexError, MemoryError):
        return None
    if widened:
        exact |= {t: result for t, result in zip(tensors, found) if t is not None}
    read = [t for v, t in zip(node.outputs, tensors) if v is not None and t is not None and v.is_used]
    return tensors if _fits(node, sum(t.nbytes for t in read), context) else None


def _evaluated_in_float32(node: Node, exact: Exact) -> tuple[Array, ...]:
    """The outputs of a node that onnxruntime computes in float32, between Casts. It does not round between two such nodes."""
    from ortconv.executor.kernels.evaluate import run_kernel

    constants = [None if v is None else v.constant for v in node.inputs]
    operands = [None if t is None else exact[t] if t in exact else t.numpy() for t in constants]
    wide = [x.astype(np.float32) if x is not None and x.dtype == np.float16 else x for x in operands]
    result = run_kernel(node, wide)
    return result if isinstance(result, tuple) else (result,)


def _tensor(result: object, dtype: DType | None) -> Tensor:
    """A result as a constant. Raises TypeError for sequences and for elements of less than a byte."""
    with np.errstate(over="ignore"):
        tensor = Tensor.of(result, dtype) if isinstance(result, (np.ndarray, np.generic)) else None
    if tensor is None or 0 < tensor.dtype.bits < 8:
        raise TypeError("a folded constant is a tensor of whole bytes")
    return tensor


def _is_weight(node: Node) -> bool:
    """True for a DequantizeLinear, unless its readers compute with constants alone: numbers, integers, or other stored weights."""
    if node.op != "DequantizeLinear":
        return False
    readers = node.out.consumers
    return node.out.is_output or not readers or not all(map(_computes_constants, readers))


def _computes_constants(node: Node) -> bool:
    """True for an operator on constants, perhaps dequantized, whose result is one number, or integers, or quantized."""
    if node.subgraphs or len(node.outputs) != 1 or not all(map(_is_stored, node.present_inputs)):
        return False
    if node.out.rank == 0 or node.out.dtype in (DType.INT32, DType.INT64):
        return True
    after = only_reader(node.out)
    return after is not None and after.op == "QuantizeLinear"


def _is_stored(value: Value) -> bool:
    dq = producer_of(value, "DequantizeLinear")
    return value.constant is not None or (dq is not None and all(v.constant is not None for v in dq.present_inputs))


def _static_bytes(node: Node) -> int | None:
    """Bytes of the outputs if all shapes are known, else None."""
    if node.op == "Range" and node.domain == "":
        return _range_bytes(node)
    total = 0
    for value in node.present_outputs:
        if value.is_used:
            shape, dtype = value.static_shape, value.dtype
            if shape is None or dtype is None:
                return None
            total += math.prod(shape) * max(8, dtype.bits) // 8
    return total


def _range_bytes(node: Node) -> int | None:
    """Bytes of a Range of constants, for which shape inference succeeds only on scalars; None if it is infinite."""
    start, limit, delta = (scalar(v) for v in node.inputs)
    if start is None or limit is None or not delta:
        return None
    steps = (limit - start) / delta
    return max(0, math.ceil(steps)) * 8 if math.isfinite(steps) else None


def _fits(node: Node, size: int | None, context: Context) -> bool:
    """True if the growth by `size` bytes, minus the constants that become unused, is within the fold limit.

    If the size is unknown, operators whose outputs may be much larger than their inputs do not fit.
    """
    if size is None:
        return not traits(node).has(Trait.GROWS)
    return context.grown + size - _freed_by(node) <= context.settings.fold_limit


def _freed_by(node: Node) -> int:
    """Bytes of the constants that only this node reads."""
    read = {v for v in node.present_inputs if not v.is_output and all(user is node for user, _ in v.uses)}
    return sum(v.constant.nbytes for v in read if v.constant is not None)


# ---------------------------------------------------------------------- taking the place


def _replace(node: Node, tensors: Sequence[Tensor | None], context: Context) -> list[Value]:
    """Replace the outputs of a node by constants. Return the new constants."""
    graph = node.parent
    before = len(graph)
    growth, label = -_freed_by(node), node.label
    made: list[Value] = []
    for old, tensor in zip(node.outputs, tensors, strict=False):
        if old is not None and tensor is not None and old.is_used:
            growth += tensor.nbytes
            made.append(_constant_named(graph, old, tensor))
    context.grown += growth
    if growth > 0:
        context.folds.append((growth, label))
    graph.remove_dead(node)
    context.record("ConstantFolding", label, before - len(graph), 0)
    return made


def _constant_named(graph: Graph, old: Value, tensor: Tensor) -> Value:
    """A constant that takes over the name and the readers of a node's output, also as a graph output."""
    name = old.name
    graph.rename(old, graph.fresh(name))
    new = graph.add_initializer(name, tensor)
    graph.replace_uses(old, new)
    if old.is_output:
        graph.set_outputs([new if v is old else v for v in graph.outputs])
    return new


def _decided(node: Node) -> Graph | None:
    """The branch selected by an If with a constant condition; None for any other node."""
    condition = node.constant(0)
    if condition is None or condition.size != 1 or condition.dtype is not DType.BOOL:
        return None
    branch = node.attrs["then_branch" if condition.item() else "else_branch"]
    return branch if isinstance(branch, Graph) and not branch.inputs else None


def _inline(node: Node, branch: Graph, context: Context) -> list[Value]:
    """Move the nodes of a branch before the If, and replace the If's outputs by the branch's.

    Types that follow from outer values are inferred again: these may be known better now, and exporters declare shapes of branches
    wrongly.
    """
    from ortconv.onnxio.infer import update_types

    graph = node.parent
    label, before, inner, learned = node.label, len(graph), list(branch), {*captures(node)}
    moved = graph.absorb(branch, before=node)
    for made in inner:
        if not learned.isdisjoint(made.reads) and update_types(made):
            learned.update(made.present_outputs)
    for old, new in zip(node.outputs, moved, strict=False):
        if old is not None:
            graph.replace(old, new)
    graph.remove_dead(node)
    context.record("IfInlining", label, 1, len(graph) - before + 1)
    return list(moved)
