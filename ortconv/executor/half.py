"""Plans of float16 nodes compute in float32, as onnxruntime does on CPUs.

Such nodes pass float32 on to each other. Numbers are rounded to float16 at the outputs of a plan, before nodes that
need float16, and by the model's own Casts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ortconv.ir.graph import Attribute, Graph, Node, Value
from ortconv.ir.operators import MICROSOFT, Trait, finds_values_by_name, named
from ortconv.ir.types import DType, TensorType, ValueType

_NUMBERS = (Trait.ELEMENTWISE, Trait.BROADCASTS, Trait.REDUCES, Trait.MOVES, Trait.PICKS, Trait.JOINS)

_WIDE = frozenset({
    *(("", op) for op in named(*_NUMBERS, but=("BitCast", "Cast", "CastLike", "Unique"))),
    *((MICROSOFT, op) for op in named(*_NUMBERS, domain=MICROSOFT)),
    *(("", op) for op in (
        "ArgMax", "ArgMin", "Attention", "AveragePool", "BatchNormalization", "CenterCropPad", "Col2Im", "Conv", "ConvTranspose",
        "CumProd", "CumSum", "DeformConv", "Einsum", "GRU", "Gemm", "GlobalAveragePool", "GlobalLpPool", "GridSample",
        "GroupNormalization", "Hardmax", "InstanceNormalization", "LRN", "LSTM", "LayerNormalization", "LogSoftmax",
        "LpNormalization", "LpPool", "MatMul", "MeanVarianceNormalization", "Pad", "RMSNormalization", "RNN", "Resize",
        "RoiAlign", "RotaryEmbedding", "ScatterElements", "ScatterND", "Shape", "SimplifiedLayerNormalization", "Size", "Softmax",
        "SwiGLU", "TensorScatter", "Trilu", "Upsample",
    )),
    *((MICROSOFT, op) for op in (
        "Attention", "BiasSoftmax", "EmbedLayerNormalization", "FusedConv", "FusedGemm", "FusedMatMul", "GroupQueryAttention",
        "MatMulNBits", "MultiHeadAttention", "NhwcFusedConv", "NhwcMaxPool", "RotaryEmbedding", "SimplifiedLayerNormalization",
        "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "TransposeMatMul",
    )),
})  # fmt: skip
"""Operators that accept float32 in place of float16."""


def widened(
    nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]
) -> tuple[list[Node], list[Value], list[Value]]:
    """Nodes that compute the same in float32, in a separate graph, and their inputs and outputs, with unchanged types.

    Returns the given nodes if no value is float16.
    """
    tensors = {v for node in nodes for v in (*node.inputs, *node.outputs) if v is not None}
    if not any(map(_is_half, tensors)) or any(node.subgraphs and finds_values_by_name(node) for node in nodes):
        return list(nodes), list(inputs), list(outputs)
    graph = _Wide(nodes[0].graph, inputs)
    for node in nodes:
        graph.add(node)
    ends = [graph.own(v) for v in outputs]
    return list(graph.graph), graph.graph.inputs, ends


class _Wide:
    """A graph in which each float16 value exists in its own type, in float32, or in both."""

    def __init__(self, model: Graph | None, inputs: Iterable[Value]) -> None:
        self.graph = Graph()
        self.graph.opsets = {"": 13, **(model.opsets if model is not None else {})}  # models may import none of ONNX
        made = {v: self.graph.add_input(v.name, v.type) for v in inputs}
        self._own = {v: own for v, own in made.items() if v.constant is None}  # others are constants that a body reads
        self._wide: dict[Value, Value] = {}

    def own(self, value: Value) -> Value:
        """The value in its own type."""
        if value not in self._own:
            if value in self._wide:
                self._own[value] = self._cast(self._wide[value], value.type, DType.FLOAT16)
            else:
                assert value.const is not None, f"{value} is made by no node before"
                self._own[value] = self.graph.add_initializer(self.graph.fresh(value.name), value.const)
        return self._own[value]

    def _floats(self, value: Value) -> Value:
        """The value in float32 if it is of float16."""
        if not _is_half(value):
            return self.own(value)
        if value not in self._wide:
            self._wide[value] = self._cast(self.own(value), _float32_type(value.type), DType.FLOAT)
        return self._wide[value]

    def add(self, node: Node) -> None:
        """Add nodes that compute the node's outputs."""
        if node.is_op("Cast") and _is_half(node.out) and (x := node.inputs[0]) is not None and _is_half(x):
            self._wide[node.out] = self._floats(x)
            return
        is_wide = _computes_in_float32(node)
        take = self._floats if is_wide else self.own
        types = [None if v is None else _float32_type(v.type) if is_wide else v.type for v in node.outputs]
        attrs = self._attributes(node, {})
        for given, made in _added(self.graph, node, take, types, attrs):
            known = self._wide if is_wide and _is_half(given) else self._own
            known[given] = made

    def _attributes(self, node: Node, known: Mapping[Value, Value]) -> dict[str, Attribute]:
        """The attributes of the node, with copies of its subgraphs."""
        copies = {name: self._copy(body, known) for name, body in node.attrs.items() if isinstance(body, Graph)}
        return {**node.attrs, **copies}

    def _copy(self, body: Graph, outer: Mapping[Value, Value]) -> Graph:
        """A copy of a subgraph that reads values of this graph. Its plan also computes in float32."""
        copy = Graph(body.name, parent=self.graph)
        known = {**outer, **{v: copy.add_input(v.name, v.type) for v in body.inputs}}
        for v in body.initializers.values():
            assert v.const is not None
            known[v] = copy.add_initializer(v.name, v.const, known.get(v))
        for node in body:
            types = [None if v is None else v.type for v in node.outputs]
            attrs = self._attributes(node, known)
            known.update(_added(copy, node, lambda v: known[v] if v in known else self.own(v), types, attrs))
        copy.set_outputs(known[v] for v in body.outputs)
        return copy

    def _cast(self, x: Value, type: ValueType | None, to: DType) -> Value:
        return self.graph.add_node("Cast", [x], 1, {"to": int(to)}, types=[type]).out


def _added(
    to: Graph, node: Node, get: Callable[[Value], Value], types: Sequence[ValueType | None], attrs: dict[str, Attribute]
) -> list[tuple[Value, Value]]:
    """Add a copy of a node to a graph. Returns pairs of an output of the node and the output of the copy."""
    inputs = [None if v is None else get(v) for v in node.inputs]
    names = [None if v is None else v.name for v in node.outputs]
    new = to.add_node(node.op, inputs, names, attrs, domain=node.domain, name=node.name, types=types)
    made = zip(node.outputs, new.outputs, strict=True)
    return [(old, value) for old, value in made if old is not None and value is not None]


def _computes_in_float32(node: Node) -> bool:
    if node.is_op("Cast"):
        return not _is_half(node.out)
    if node.is_op("Clip") and None in (node.attr("min", node.input(1)), node.attr("max", node.input(2))):
        return False  # the type gives the bound
    return (node.domain, node.op) in _WIDE and all(v is None or v.type is not None for v in node.outputs)


def _is_half(value: Value) -> bool:
    return value.dtype is DType.FLOAT16


def _float32_type(type: ValueType | None) -> ValueType | None:
    return replace(type, dtype=DType.FLOAT) if isinstance(type, TensorType) and type.dtype is DType.FLOAT16 else type
