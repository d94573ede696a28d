"""Cubic Resize of images with antialias, for which ONNX Runtime has a faster kernel with the same results."""

from __future__ import annotations

import numpy as np

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.kernels import newest_opset
from ortconv.ir.operators import Trait, named
from ortconv.ir.schema import attribute, schema, schema_of, since_version
from ortconv.ir.types import DType
from ortconv.optimizer.conditions import same_dim, wide
from ortconv.optimizer.engine import Context, New, Replacement, rule
from ortconv.optimizer.pattern import Match, P

WITH_ANTIALIAS = 18
"""The operator set from which on a Resize may have antialias."""

OLDEST = 13
"""The oldest operator set that is compared with it."""

SAME = frozenset({
    *named(Trait.REDUCES), "Add", "BatchNormalization", "CumSum", "Div", "GRU", "GreaterOrEqual", "Identity", "If", "LSTM",
    "LeakyRelu", "LessOrEqual", "Loop", "Mul", "PRelu", "Pad", "Pow", "RNN", "Relu", "Reshape", "Resize", "Scan", "ScatterElements",
    "ScatterND", "Shape", "Split", "Sub", "Where",
})  # fmt: skip
"""Operators that differ between these sets only by types, and by attributes and inputs that may be absent."""


def raise_operator_set(graph: Graph, context: Context) -> int:
    """Resize<cubic>(x) that enlarges images, before operator set 18  ->  the model in set 18, if its operators are the same"""
    if graph.parent is not None or not OLDEST <= graph.opset() < WITH_ANTIALIAS:
        return 0
    nodes = list(graph.walk())
    cubic = next((node for node in nodes if node.is_op("Resize") and _gains_from_antialias(node)), None)
    lacks = context.settings.release is not None and newest_opset(context.settings.release) < WITH_ANTIALIAS
    if cubic is None or lacks or context.exhausted or any(node.ep for node in nodes):
        return 0
    if not all(map(_is_same_with_antialias, nodes)):
        return 0
    graph.opsets[""] = WITH_ANTIALIAS
    context.record("CubicOperatorSet", cubic.label, 0, 0)
    return 1


def _is_same_with_antialias(node: Node) -> bool:
    """True if a node means the same in the operator set with antialias."""
    before, after = schema_of(node), schema(node.domain, node.op, WITH_ANTIALIAS)
    if node.domain or (before is not None and after is not None and before.since == after.since):
        return True
    if node.op == "Split" and node.input(1) is None:
        return False
    if node.op == "BatchNormalization" and (len(node.outputs) > 1 or node.attr("training_mode", 0)):
        return False
    return node.op in SAME and "axes" not in node.attrs


@rule("CubicUpsampling", P("Resize", "x", ...))
def upsample_with_antialias(m: Match) -> Replacement:
    """Resize<cubic>(x) that enlarges images  ->  Resize<cubic, antialias=1>(x)

    Antialias changes the filter only where an image shrinks. Its kernel takes 1/4 to 1/30 of the time. It first adds the weights of
    pixels outside to those of the border: fewer infinities become NaN.
    """
    node = m.root
    if since_version(node) < WITH_ANTIALIAS or not _gains_from_antialias(node):
        return None
    return New("Resize", node.inputs, {**node.attrs, "antialias": 1}, like=node)


def _gains_from_antialias(node: Node) -> bool:
    """True for a cubic Resize that enlarges images."""
    x = node.inputs[0]
    if x is None or x.rank != 4 or x.dtype is not DType.FLOAT or node.attr("antialias", 0):
        return False
    if attribute(node, "mode") != "cubic" or attribute(node, "coordinate_transformation_mode") == "tf_crop_and_resize":
        return False
    return enlarges(node, x)


def enlarges(node: Node, x: Value) -> bool:
    """True if the scales of all axes are known to be at least 1."""
    scales = node.input(2)
    if scales is not None and scales.static_shape != (0,):
        return scales.constant is not None and bool(np.all(wide(scales) >= 1))
    if attribute(node, "keep_aspect_ratio_policy") not in (None, "stretch"):
        return False
    dims = zip(x.shape or (None,), node.out.shape or (None,))
    return all(same_dim(a, b) or (isinstance(a, int) and isinstance(b, int) and a <= b) for a, b in dims)
