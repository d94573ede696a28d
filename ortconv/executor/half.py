"""Plans of float16 nodes compute in float32: tensors stay in float32, and are rounded where float16 rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ortconv.ir.graph import Graph, Node, Value
from ortconv.ir.operators import INTERNAL, MICROSOFT, Trait, named
from ortconv.ir.schema import since_version
from ortconv.ir.types import DType, TensorType, ValueType

_NUMBERS = (Trait.ELEMENTWISE, Trait.BROADCASTS, Trait.REDUCES)

_COMPUTED = frozenset({
    *(("", op) for op in named(*_NUMBERS, but=("BitCast", "Cast", "CastLike"))),
    *((MICROSOFT, op) for op in named(*_NUMBERS, domain=MICROSOFT)),
    *(("", op) for op in (
        "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "CumSum", "Einsum", "GRU", "Gemm", "GlobalAveragePool",
        "GlobalLpPool", "GroupNormalization", "InstanceNormalization", "LRN", "LSTM", "LayerNormalization", "LogSoftmax",
        "LpNormalization", "LpPool", "MatMul", "MeanVarianceNormalization", "RMSNormalization", "RNN", "Resize", "Softmax",
        "Upsample",
    )),
    *((MICROSOFT, op) for op in (
        "Attention", "FusedConv", "FusedGemm", "FusedMatMul", "MultiHeadAttention", "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    )),
})  # fmt: skip
"""Operators that compute in float32 where their operands are float16, and round the result once."""

_EXACT = frozenset({
    *named(Trait.MOVES, Trait.PICKS, Trait.JOINS, but=("Unique",)), "Abs", "Ceil", "Clip", "Floor", "Max", "Min", "Neg", "Pad",
    "Relu", "Round", "Sign", "Where",
})  # fmt: skip
"""Operators whose results are float16 numbers if their operands are."""


def in_float32(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
) -> tuple[list[Node], list[Value], list[Value]]:
    """Nodes that compute the same without float16 between them, and their inputs and outputs, of the same types.

    The given ones, where none is of float16. The new ones are in a graph of their own.
    """
    tensors = {v for node in nodes for v in (*node.inputs, *node.outputs) if v is not None}
    if not nodes or any(node.subgraphs for node in nodes) or not any(map(_is_half, tensors)):
        return list(nodes), list(inputs), list(outputs)
    graph = _Wide(nodes[0].graph, inputs)
    for node in nodes:
        graph.add(node)
    ends = [graph.own(v) for v in outputs]
    return list(graph.graph), graph.graph.inputs, ends


class _Wide:
    """A graph in which each float16 value stands in its own type, in float32, or both."""

    def __init__(self, model: Graph | None, inputs: Iterable[Value]) -> None:
        self.graph = Graph()
        self.graph.opsets = {**(model.opsets if model is not None else {}), INTERNAL: 1}
        self._own = {v: self.graph.add_input(v.name, v.type) for v in inputs}
        self._wide: dict[Value, Value] = {}

    def own(self, value: Value) -> Value:
        """The value in its own type."""
        if value not in self._own:
            if value in self._wide:
                self._own[value] = self._new("Cast", self._wide[value], value.type, to=DType.FLOAT16)
            else:
                assert value.const is not None, f"{value} is made by no node before"
                self._own[value] = self.graph.add_initializer(value.name, value.const)
        return self._own[value]

    def _floats(self, value: Value) -> Value:
        """The value in float32 if it is of float16."""
        if not _is_half(value):
            return self.own(value)
        if value not in self._wide:
            self._wide[value] = self._new("Cast", self.own(value), _widened(value.type), to=DType.FLOAT)
        return self._wide[value]

    def add(self, node: Node) -> None:
        """Add what computes the node's outputs."""
        is_cast, is_computed = node.is_op("Cast"), (node.domain, node.op) in _COMPUTED
        is_exact = not node.domain and node.op in _EXACT and (node.op != "Clip" or None not in _bounds(node))
        is_wide = is_cast or is_computed or is_exact
        take = self._floats if is_wide else self.own
        attrs, op, domain = dict(node.attrs), node.op, node.domain
        if node.is_op("Softmax") and since_version(node) >= 13 and _is_half(node.out):
            op, domain = "SoftmaxOfHalf", INTERNAL
        if is_cast and attrs["to"] == DType.FLOAT16:
            attrs["to"] = int(DType.FLOAT)
        types = [None if v is None else _widened(v.type) if is_wide else v.type for v in node.outputs]
        new = self.graph.add_node(
            op,
            [None if v is None else take(v) for v in node.inputs],
            [None if v is None else v.name for v in node.outputs],
            attrs,
            domain=domain,
            name=node.name,
            types=types,
        )
        for given, made in zip(node.outputs, new.outputs, strict=True):
            if given is not None and made is not None:
                if is_wide and _is_half(given):
                    self._wide[given] = made if is_exact else self._new("RoundToHalf", made, made.type, domain=INTERNAL)
                else:
                    self._own[given] = made

    def _new(self, op: str, x: Value, type: ValueType | None, domain: str = "", **attrs: int) -> Value:
        return self.graph.add_node(op, [x], 1, attrs, domain=domain, types=[type]).out


def _bounds(node: Node) -> tuple[object, object]:
    """Those of a Clip; None for one that the type has to give."""
    return node.attr("min", node.input(1)), node.attr("max", node.input(2))


def _is_half(value: Value) -> bool:
    return value.dtype is DType.FLOAT16


def _widened(type: ValueType | None) -> ValueType | None:
    return replace(type, dtype=DType.FLOAT) if isinstance(type, TensorType) and type.dtype is DType.FLOAT16 else type
