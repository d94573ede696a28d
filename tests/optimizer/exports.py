"""Small transformers, node by node as today's exporters write them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

Dim = int | str
LOWEST = float(np.finfo(np.float32).min)


@dataclass
class Export:
    """A graph in the making. `batch` and `rows` are numbers or symbols; symbols are computed as TorchScript exports do."""

    batch: Dim = "batch"
    rows: Dim = "rows"
    hidden: int = 32
    heads: int = 4
    opset: int = 17
    layers: int = 2
    guard: bool = False
    """Whether NaN in the weights of attention is replaced by zero, as dynamo exports do."""
    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)
    inputs: list[onnx.ValueInfoProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.known: dict[Dim, str] = {}

    @property
    def size(self) -> int:
        return self.hidden // self.heads

    def input(self, name: str, dims: list[Dim], type: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, type, dims))
        for axis, dim in enumerate(dims):
            if isinstance(dim, str) and dim not in self.known:
                self.known[dim] = self("Gather", self("Shape", name), self.const(axis), axis=0)
        return name

    def const(self, content: ArrayLike, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.asarray(content, dtype), name)
        return name

    def f32(self, content: ArrayLike) -> str:
        return self.const(content, np.float32)

    def weight(self, *shape: int, scale: float = 0.2) -> str:
        return self.f32(self.rng.normal(size=shape) * scale)

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        names = [f"{op}_{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attrs))
        return names[0]

    def several(self, op: str, *inputs: str, outputs: int, **attrs: Any) -> list[str]:
        first = self(op, *inputs, outputs=outputs, **attrs)
        return [first, *(f"{first}_{i}" for i in range(1, outputs))]

    def model(self, *results: str) -> onnx.ModelProto:
        outputs = [helper.make_tensor_value_info(r, TensorProto.FLOAT, None) for r in results]
        graph = helper.make_graph(self.nodes, "g", self.inputs, outputs, list(self.constants.values()))
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    # ------------------------------------------------------------------ pieces

    def dims(self, *dims: Dim) -> str:
        """A shape: constant where all is known, else a Concat of dimensions."""
        if all(isinstance(d, int) for d in dims):
            return self.const(dims)
        axis = self.const([0])
        parts = [self.const([d]) if isinstance(d, int) else self("Unsqueeze", self.known[d], axis) for d in dims]
        return self("Concat", *parts, axis=0)

    def reshape(self, x: str, *dims: Dim) -> str:
        return self("Reshape", x, self.dims(*dims))

    def linear(self, x: str, inputs: int, outputs: int, *, bias: bool = True) -> str:
        product = self("MatMul", x, self.weight(inputs, outputs))
        return self("Add", self.weight(outputs), product) if bias else product

    def conv1d(self, x: str, inputs: int, outputs: int) -> str:
        """GPT-2's linear layer: rows flattened, Gemm, rows restored."""
        flat = self("Reshape", x, self.const([-1, inputs]))
        y = self("Gemm", flat, self.weight(inputs, outputs), self.weight(outputs))
        return self.reshape(y, self.batch, self.rows, outputs)

    def norm(self, x: str) -> str:
        return self("LayerNormalization", x, self.weight(self.hidden), self.weight(self.hidden), axis=-1)

    def root_mean_square(self, x: str) -> str:
        mean = self("ReduceMean", self("Pow", x, self.f32(2.0)), *self.axes(-1), **self.axes_attribute(-1))
        root = self("Sqrt", self("Add", mean, self.f32(1e-6)))
        normal = self("Mul", x, self("Div", self.f32(1.0), root))
        return self("Mul", self.weight(self.hidden), normal)

    def axes(self, axis: int) -> list[str]:
        return [self.const([axis])] if self.opset >= 18 else []

    def axes_attribute(self, axis: int) -> dict[str, Any]:
        return {} if self.opset >= 18 else {"axes": [axis]}

    def split_heads(self, x: str, heads: int | None = None, rows: Dim | None = None) -> str:
        rows = self.rows if rows is None else rows
        return self("Transpose", self.reshape(x, self.batch, rows, heads or self.heads, self.size), perm=[0, 2, 1, 3])

    def merge_heads(self, x: str) -> str:
        return self.reshape(self("Transpose", x, perm=[0, 2, 1, 3]), self.batch, self.rows, self.hidden)

    def attend(self, q: str, k: str, v: str, mask: str | None = None, scale: str = "after") -> str:
        factor = 1 / np.sqrt(self.size)
        if scale == "before":
            q = self("Mul", q, self.f32(factor))
        keys = self("Transpose", k, perm=[0, 1, 3, 2])
        if scale == "roots":
            q, keys = self("Mul", q, self.f32(np.sqrt(factor))), self("Mul", keys, self.f32(np.sqrt(factor)))
        scores = self("MatMul", q, keys)
        if scale == "after":
            scores = self("Mul", scores, self.f32(factor))
        if scale == "div":
            scores = self("Div", scores, self.f32(1 / factor))
        scores = self("Add", scores, mask) if mask else scores
        return self("MatMul", self.softmax(scores), v)

    def softmax(self, scores: str) -> str:
        weights = self("Softmax", scores, axis=-1)
        return self("Where", self("IsNaN", weights), self.f32(0.0), weights) if self.guard else weights

    def silu(self, x: str) -> str:
        return self("Mul", x, self("Sigmoid", x))

    def slice(self, x: str, start: int, end: int, axis: int) -> str:
        return self("Slice", x, self.const([start]), self.const([end]), self.const([axis]), self.const([1]))

    def causal(self, rows: int) -> str:
        return self.f32(np.triu(np.full((1, 1, rows, rows), LOWEST), 1))


END = 2**63 - 1


def timm(e: Export, *, unbind: str = "gather") -> onnx.ModelProto:
    """A vision transformer of timm: query, key and value come from one product."""
    x = e.input("x", [e.batch, e.rows, e.hidden])
    for _ in range(e.layers):
        packed = e.linear(e.norm(x), e.hidden, 3 * e.hidden)
        q, k, v = _unbound(e, packed, unbind)
        x = e("Add", x, e.linear(e.merge_heads(e.attend(q, k, v, scale="before")), e.hidden, e.hidden))
        y = e.linear(e.norm(x), e.hidden, 4 * e.hidden)
        y = e("Mul", e("Mul", y, e("Add", e("Erf", e("Div", y, e.f32(np.sqrt(2)))), e.f32(1.0))), e.f32(0.5))
        x = e("Add", x, e.linear(y, 4 * e.hidden, e.hidden))
    return e.model(e.norm(x))


def _unbound(e: Export, packed: str, how: str) -> list[str]:
    """Query, key and value, selected along an axis of their own: before the rows, between rows and heads, or in each head."""
    if how == "in heads":
        x = e.reshape(packed, e.batch, e.rows, e.heads, 3, e.size)
    else:
        x = e.reshape(packed, e.batch, e.rows, 3, e.heads, e.size)
    if how in ("in heads", "between"):
        axis = 3 if how == "in heads" else 2
        return [e("Transpose", e("Gather", x, e.const(i), axis=axis), perm=[0, 2, 1, 3]) for i in range(3)]
    if how == "before transposes":
        parts = e.several("Split", x, e.const([1, 1, 1]), outputs=3, axis=2)
        return [e("Squeeze", e("Transpose", p, perm=[2, 0, 3, 1, 4]), e.const([0])) for p in parts]
    x = e("Transpose", x, perm=[2, 0, 3, 1, 4])
    if how == "gather":
        return [e("Gather", x, e.const(i), axis=0) for i in range(3)]
    if how == "split":
        return [e("Squeeze", p, e.const([0])) for p in e.several("Split", x, e.const([1, 1, 1]), outputs=3, axis=0)]
    parts = [e.slice(x, i, i + 1, 0) for i in range(3)]
    if how == "chunk":
        return [e("Gather", p, e.const(0), axis=0) for p in parts]
    return [e("Squeeze", p, e.const([0])) for p in parts]


def gpt2(e: Export, *, past: bool = False, add: bool = False, limit: int = 64) -> onnx.ModelProto:
    """GPT-2: packed projection, causal mask cut out of a buffer, which replaces scores or, with `add`, is added to them."""
    x = e.input("x", [e.batch, e.rows, e.hidden])
    buffer = e.const(np.tril(np.ones((1, 1, limit, limit), bool)), np.bool_)
    results = []
    for i in range(e.layers):
        packed = e.conv1d(e.norm(x), e.hidden, 3 * e.hidden)
        parts = e.several("Split", packed, e.const([e.hidden] * 3), outputs=3, axis=2)
        q, k, v = (e.split_heads(p) for p in parts)
        if past:
            k = e("Concat", e.input(f"past_key_{i}", [e.batch, e.heads, "past", e.size]), k, axis=2)
            v = e("Concat", e.input(f"past_value_{i}", [e.batch, e.heads, "past", e.size]), v, axis=2)
            results += [k, v]
        scores = e("MatMul", q, e("Transpose", k, perm=[0, 1, 3, 2]))
        scores = e("Div", scores, e.f32(np.sqrt(e.size)))
        keys, queries = (e("Gather", e("Shape", t), e.const([2]), axis=0) for t in (k, q))
        seen = e("Slice", buffer, e("Sub", keys, queries), keys, e.const([2]), e.const([1]))
        seen = e("Slice", seen, e.const([0]), keys, e.const([3]), e.const([1]))
        scores = (
            e("Add", scores, e("Where", seen, e.f32(0.0), e.f32(LOWEST)))
            if add
            else e("Where", seen, scores, e.f32(LOWEST))
        )
        weights = e.softmax(scores)
        x = e("Add", x, e.conv1d(e.merge_heads(e("MatMul", weights, v)), e.hidden, e.hidden))
        y = e.conv1d(e.norm(x), e.hidden, 4 * e.hidden)
        cubic = e("Add", y, e("Mul", e("Pow", y, e.f32(3.0)), e.f32(0.044715)))
        y = e(
            "Mul", e("Mul", y, e.f32(0.5)), e("Add", e("Tanh", e("Mul", cubic, e.f32(np.sqrt(2 / np.pi)))), e.f32(1.0))
        )
        x = e("Add", x, e.conv1d(y, 4 * e.hidden, e.hidden))
    return e.model(e.norm(x), *results)


def llama(e: Export, *, kv_heads: int = 2, past: bool = False, expand: str = "where") -> onnx.ModelProto:
    """Llama: normalization by the root mean square, rotary positions, shared key and value heads, gated SiLU."""
    x = e.input("x", [e.batch, e.rows, e.hidden])
    positions = e.input("position_ids", [e.batch, e.rows], TensorProto.INT64)
    columns: Dim = "columns" if past else e.rows
    mask = e.input("mask", [e.batch, 1, e.rows, columns])
    frequencies = 1 / 10000 ** (np.arange(0, e.size, 2) / e.size)
    angles = e("Cast", e("Unsqueeze", positions, e.const([1])), to=TensorProto.FLOAT)
    angles = e("Transpose", e("MatMul", e.f32(frequencies[None, :, None]), angles), perm=[0, 2, 1])
    twice = e("Concat", angles, angles, axis=-1)
    cos, sin = (e("Unsqueeze", e(op, twice), e.const([1])) for op in ("Cos", "Sin"))
    results = []
    for i in range(e.layers):
        y = e.root_mean_square(x)
        q = e.split_heads(e.linear(y, e.hidden, e.hidden, bias=False))
        k, v = (e.split_heads(e.linear(y, e.hidden, kv_heads * e.size, bias=False), kv_heads) for _ in range(2))
        q, k = (e("Add", e("Mul", t, cos), e("Mul", _rotated_half(e, t), sin)) for t in (q, k))
        if past:
            k = e("Concat", e.input(f"past_key_{i}", [e.batch, kv_heads, "past", e.size]), k, axis=-2)
            v = e("Concat", e.input(f"past_value_{i}", [e.batch, kv_heads, "past", e.size]), v, axis=-2)
            results += [k, v]
        k, v = (_repeated(e, t, kv_heads, columns, expand) for t in (k, v))
        x = e("Add", x, e.linear(e.merge_heads(e.attend(q, k, v, mask)), e.hidden, e.hidden, bias=False))
        y = e.root_mean_square(x)
        gate, up = (e.linear(y, e.hidden, 2 * e.hidden, bias=False) for _ in range(2))
        x = e("Add", x, e.linear(e("Mul", e.silu(gate), up), 2 * e.hidden, e.hidden, bias=False))
    return e.model(e.root_mean_square(x), *results)


def _rotated_half(e: Export, x: str) -> str:
    half = e.size // 2
    return e("Concat", e("Neg", e.slice(x, half, END, 3)), e.slice(x, 0, half, 3), axis=-1)


def _repeated(e: Export, x: str, heads: int, rows: Dim, expand: str) -> str:
    copies = e.heads // heads
    if copies == 1:
        return x
    shape = e.dims(e.batch, heads, copies, rows, e.size)
    if expand == "where":
        shape = e("Where", e("Equal", shape, e.const([-1] * 5)), e.const([1] * 5), shape)
    wide = e("Expand", e("Unsqueeze", x, e.const([2])), shape)
    return e.reshape(wide, e.batch, e.heads, rows, e.size)


def clip_text(e: Export, *, flat: bool = False) -> onnx.ModelProto:
    """The text tower of CLIP: scaled queries, a constant causal mask, QuickGelu; heads in the batch if `flat`."""
    x = e.input("x", [e.batch, e.rows, e.hidden])
    assert isinstance(e.rows, int)
    causal = e.causal(e.rows)
    for _ in range(e.layers):
        y = e.norm(x)
        q, k, v = (e.linear(y, e.hidden, e.hidden) for _ in range(3))
        q = e("Mul", q, e.f32(1 / np.sqrt(e.size)))
        q, k, v = (e.split_heads(t) for t in (q, k, v))
        if flat:
            y = _attend_flat(e, q, k, v, causal)
        else:
            scores = e("Add", e("MatMul", q, e("Transpose", k, perm=[0, 1, 3, 2])), causal)
            y = e("MatMul", e("Softmax", scores, axis=-1), v)
        x = e("Add", x, e.linear(e.merge_heads(y), e.hidden, e.hidden))
        y = e.linear(e.norm(x), e.hidden, 4 * e.hidden)
        y = e("Mul", y, e("Sigmoid", e("Mul", y, e.f32(1.702))))
        x = e("Add", x, e.linear(y, 4 * e.hidden, e.hidden))
    return e.model(e.norm(x))


def _attend_flat(e: Export, q: str, k: str, v: str, mask: str) -> str:
    """Attention over (batch * heads, rows, size), unflattened for the sake of the mask."""
    q, k, v = (e("Reshape", t, e.const([-1, e.rows, e.size])) for t in (q, k, v))
    scores = e("MatMul", q, e("Transpose", k, perm=[0, 2, 1]))
    scores = e("Add", e.reshape(scores, e.batch, e.heads, e.rows, e.rows), mask)
    scores = e("Reshape", scores, e.const([-1, e.rows, e.rows]))
    y = e("MatMul", e("Softmax", scores, axis=-1), v)
    return e.reshape(y, e.batch, e.heads, e.rows, e.size)


def t5(e: Export) -> onnx.ModelProto:
    """The encoder of T5: no scale, a bias by relative position that all layers share, normalization without mean."""
    x = e.input("x", [e.batch, e.rows, e.hidden])
    bias = e.input("position_bias", [1, e.heads, e.rows, e.rows])
    mask = e("Add", bias, e.input("mask", [e.batch, 1, 1, e.rows]))
    for _ in range(e.layers):
        y = e.root_mean_square(x)
        q, k, v = (e.split_heads(e.linear(y, e.hidden, e.hidden, bias=False)) for _ in range(3))
        y = e.merge_heads(e.attend(q, k, v, mask, scale="none"))
        x = e("Add", x, e.linear(y, e.hidden, e.hidden, bias=False))
        y = e("Relu", e.linear(e.root_mean_square(x), e.hidden, 2 * e.hidden, bias=False))
        x = e("Add", x, e.linear(y, 2 * e.hidden, e.hidden, bias=False))
    return e.model(e.root_mean_square(x))


def whisper_decoder(e: Export, *, frames: int = 10, past: bool = False) -> onnx.ModelProto:
    """Whisper's decoder: causal attention to itself, attention to the encoder, keys without bias, past as heads."""
    x = e.input("x", [e.batch, e.rows, e.hidden])
    memory = e.input("memory", [e.batch, frames, e.hidden])
    mask = e.input("mask", [e.batch, 1, e.rows, "columns" if past else e.rows])
    results = []
    for i in range(e.layers):
        y = e.norm(x)
        q = e.split_heads(e("Mul", e.linear(y, e.hidden, e.hidden), e.f32(1 / np.sqrt(e.size))))
        k, v = (e.split_heads(e.linear(y, e.hidden, e.hidden, bias=b)) for b in (False, True))
        if past:
            k = e("Concat", e.input(f"past_key_{i}", [e.batch, e.heads, "past", e.size]), k, axis=2)
            v = e("Concat", e.input(f"past_value_{i}", [e.batch, e.heads, "past", e.size]), v, axis=2)
            results += [k, v]
        x = e("Add", x, e.linear(e.merge_heads(e.attend(q, k, v, mask, scale="none")), e.hidden, e.hidden))
        q = e.split_heads(e("Mul", e.linear(e.norm(x), e.hidden, e.hidden), e.f32(1 / np.sqrt(e.size))))
        k, v = (e.split_heads(e.linear(memory, e.hidden, e.hidden, bias=b), rows=frames) for b in (False, True))
        x = e("Add", x, e.linear(e.merge_heads(e.attend(q, k, v, scale="none")), e.hidden, e.hidden))
    return e.model(e.norm(x), *results)
