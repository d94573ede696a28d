"""Changes int8 activations to uint8: the integer kernels support more pairs of types with it, and run faster on x86-64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operands import only_reader
from ortconv.ir.types import DType, Shape, TensorType
from ortconv.optimizer.engine import Context, constant
from ortconv.optimizer.extended.qdq import product
from ortconv.optimizer.extended.qdq.drop import with_integer_clip
from ortconv.optimizer.passes import Worklist
from ortconv.optimizer.quantizers import (
    Quantized,
    dequantized,
    elements,
    is_quantizer,
    quantized,
    quantizer,
    zero_points,
)


def shift_activations(graph: Graph, context: Context) -> int:
    """Q -> DQ pairs of int8 with one scale become uint8 with the zero point 128 higher: exactly the same reals.

    Counterpart: QDQS8ToU8Transformer
    Differs: not for the platform arm, as with session.qdqisint8allowed.
    """
    return _shift_where(graph, context, "QDQS8ToU8Transformer", _have_one_reader)


def _have_one_reader(readers: list[Node]) -> bool:
    """True if one node reads the reals, or those of one HardSwish."""
    users = [user for r in readers for user, _ in r.out.uses]
    if len(users) == 2 and len(readers) == 1 and {user.op for user in users} == {"HardSigmoid", "Mul"}:
        sigmoid, product = sorted(users, key=lambda user: user.op)
        users = [product] if only_reader(sigmoid.out) is product else users
    return len(users) + sum(r.out.is_output for r in readers) == 1


def shift_shared_activations(graph: Graph, context: Context) -> int:
    """Q -> DQ pairs of int8 become uint8 even if several nodes read the reals: integer kernels run the whole network.

    Counterpart: none: ONNX Runtime leaves the operators around such tensors in float32
    Opt-in: integer kernels are 2 to 7 times as fast, but round differently from the float operators: at ties, values
        change by one step of their scale.
    """
    return _shift_where(graph, context, "QDQS8ToU8Shared", lambda readers: True)


def _shift_where(graph: Graph, context: Context, name: str, fits: Callable[[list[Node]], bool]) -> int:
    if context.settings.target_platform == "arm":
        return 0
    changes = 0
    shared: dict[tuple[int, Shape], Value] = {}
    for node in graph:
        readers = _readers(node)
        if readers and fits(readers) and context.may_touch(node, *readers):
            _shift(node, readers, shared)
            context.record(name, node.label, 0, 0)
            changes += 1
    return changes


def _readers(node: Node) -> list[Node]:
    """The DequantizeLinear nodes after an int8 QuantizeLinear with its parameters; [] if there are other readers."""
    y = _int8_result(node)
    if y is None:
        return []
    readers = [reader for reader, slot in node.out.uses if slot == 0 and reader.op == "DequantizeLinear"]
    return readers if len(readers) == len(node.out.uses) and all(_has_zero(r, node, y) for r in readers) else []


def _int8_result(node: Node) -> Quantized | None:
    """The int8 result of a QuantizeLinear with constant scales and one zero point, unless the graph returns it; else None."""
    if not is_quantizer(node, "QuantizeLinear") or node.out.dtype is not DType.INT8:
        return None
    y = None if node.out.is_output else quantizer(node)
    zeros = None if y is None else zero_points(y)
    return None if y is None or zeros is None or elements(y.scale) is None or np.any(zeros != zeros[0]) else y


def _has_zero(reader: Node, node: Node, y: Quantized) -> bool:
    """True if a reader of a QuantizeLinear, in its graph, has constant parameters per tensor, with the zero point of y."""
    x = dequantized(reader.out, node)
    if x is None or not x.is_per_tensor or elements(x.scale) is None:
        return False
    zero, other = zero_points(y), zero_points(x)
    return zero is not None and other is not None and bool(zero[0] == other[0])


def _shift(node: Node, readers: list[Node], shared: dict[tuple[int, Shape], Value]) -> None:
    for user in (node, *readers):
        q = quantized(user)
        assert q is not None
        zeros, like = zero_points(q), q.zero_point or q.scale
        assert zeros is not None
        old, shape = int(zeros[0]), like.static_shape or ()
        new = shared.get((old, shape)) or constant(node, np.full(shape, old + 128, np.uint8))
        shared[old, shape] = new
        user.parent.set_input(user, 2, new)
    node.attrs.pop("output_dtype", None)
    node.out.retype(TensorType(DType.UINT8, node.out.shape))


SIGNED = [product.with_signed(r) for r in product.RULES]
PRODUCTS = (
    Worklist((*SIGNED, *map(with_integer_clip, SIGNED))),
    Worklist(map(product.with_signed, product.FLOAT_RULES)),
)


def fuse_products(graph: Graph, context: Context) -> int:
    """On ARM, Conv and MatMul of int8 become QLinearConv, QLinearMatMul and MatMulIntegerToFloat."""
    return sum(p.run(graph, context) for p in PRODUCTS) if context.settings.target_platform == "arm" else 0
