"""Moves the expectation of a softmax along a middle axis, with which detectors compute box edges, to the last axis.

ONNX Runtime's Softmax transposes its input and output itself unless it operates along the last axis.
"""

from __future__ import annotations

from ortconv.ir.graph import Ints, Node
from ortconv.ir.operands import ints
from ortconv.ir.schema import since_version
from ortconv.ir.shape_rules import spatial_pads
from ortconv.ir.types import Dim, TensorType
from ortconv.optimizer.conditions import with_shape
from ortconv.optimizer.engine import New, Replacement, rule
from ortconv.optimizer.extended.fuse_conv import is_float
from ortconv.optimizer.pattern import C, Match, P
from ortconv.optimizer.permutation import transpose_perm


def _is_dot_product(node: Node) -> bool:
    """True for a Conv with one pixel and one output channel."""
    w = node.input(1)
    shape = None if w is None else w.static_shape
    if shape is None or len(shape) != 4 or shape[0] != 1 or shape[2:] != (1, 1) or node.attr("group", 1) != 1:
        return False
    return all(s == 1 for s in node.attr("strides", Ints())) and not any(spatial_pads(node, 2) or ())


_SWAP = P("Transpose", "x", where=lambda node: transpose_perm(node) == (0, 2, 1, 3))
_SOFTMAX = P("Softmax", _SWAP, name="softmax", where=lambda node: node.attr("axis", -1) in (1, -3))


_MEAN = P("Conv", _SOFTMAX, C("w"), name="conv", where=_is_dot_product)


@rule("SoftmaxExpectationFusion", P("Reshape", _MEAN, C("shape")))
def move_to_last_axis(m: Match) -> Replacement:
    """Conv(Softmax<1>(Transpose<0, 2, 1, 3>(x)), w)  ->  MatMul(Softmax(Transpose<0, 1, 3, 2>(x)), w), if a Reshape follows"""
    softmax = m.node("softmax")
    shape, x, wanted = m.x.shape, m.x, ints(m.shape)
    if shape is None or len(shape) != 4 or wanted is None or not is_float(x) or since_version(softmax) < 13:
        return None
    if any(d == 0 for d in wanted[1:]) or m.tensor("w").shape[1] != shape[2]:
        return None

    def typed(*dims: Dim) -> tuple[TensorType | None]:
        return (with_shape(x, dims),)

    n, rows, bins, columns = shape
    swapped = New("Transpose", [x], {"perm": Ints((0, 1, 3, 2))}, types=typed(n, rows, columns, bins))
    share = New("Softmax", [swapped], {"axis": -1}, like=softmax, types=typed(n, rows, columns, bins))
    weights = m.tensor("w").numpy().reshape(-1, 1)
    mean = New("MatMul", [share, weights], {}, like=m.node("conv"), types=typed(n, rows, columns, 1))
    return New("Reshape", [mean, m.shape], like=m.root)
