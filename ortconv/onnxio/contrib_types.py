"""Type and shape rules for the operators of ONNX Runtime's own domains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ortconv.ir.graph import Node
from ortconv.ir.tensor import Tensor
from ortconv.ir.types import Dim, DType, Shape, TensorType, ValueType

Rule = Callable[[Node], Iterable[ValueType | None]]

MICROSOFT = "com.microsoft"


def like(slot: int, dtype_slot: int | None = None) -> Rule:
    """Output 0 has the shape of one input and the element type of another."""

    def rule(node: Node) -> list[ValueType | None]:
        return [_tensor(_dtype(node, slot if dtype_slot is None else dtype_slot), _shape(node, slot))]

    return rule


def broadcast(slots: Sequence[int], dtype_slot: int) -> Rule:
    def rule(node: Node) -> list[ValueType | None]:
        return [_tensor(_dtype(node, dtype_slot), broadcast_shapes([_shape(node, s) for s in slots]))]

    return rule


def broadcast_shapes(shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape of an elementwise result; None if a rank is unknown or dimensions cannot agree."""
    if any(s is None for s in shapes):
        return None
    known = [s for s in shapes if s is not None]
    rank = max(map(len, known), default=0)
    out: list[Dim] = []
    for axis in range(-rank, 0):
        dims = [s[axis] for s in known if len(s) >= -axis]
        fixed = {d for d in dims if isinstance(d, int) and d != 1}
        symbols = {d for d in dims if not isinstance(d, int)}
        if len(fixed) > 1:
            return None
        if fixed:
            out.append(fixed.pop())
        elif not symbols:
            out.append(1)
        else:
            out.append(symbols.pop() if len(symbols) == 1 else None)
    return tuple(out)


def _matmul(a: Shape | None, b: Shape | None, *, trans_a: bool = False, trans_b: bool = False) -> Shape | None:
    if a is None or b is None or len(a) == 0 or len(b) == 0:
        return None
    if trans_a and len(a) > 1:
        a = (*a[:-2], a[-1], a[-2])
    if trans_b and len(b) > 1:
        b = (*b[:-2], b[-1], b[-2])
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    batch = broadcast_shapes([a[:-2], b[:-2]])
    return None if batch is None else (*batch, *rows, *columns)


def _fused_matmul(node: Node) -> list[ValueType | None]:
    a, b = _shape(node, 0), _shape(node, 1)
    if node.attr("transBatchA", 0) and a is not None:
        a = (*a[1:-1], a[0], a[-1])
    if node.attr("transBatchB", 0) and b is not None:
        b = (*b[1:-1], b[0], b[-1])
    shape = _matmul(a, b, trans_a=bool(node.attr("transA", 0)), trans_b=bool(node.attr("transB", 0)))
    return [_tensor(_dtype(node, 0), shape)]


def _gemm(dtype_slot: int, b_slot: int = 1) -> Rule:
    def rule(node: Node) -> list[ValueType | None]:
        a, b = _shape(node, 0), _shape(node, b_slot)
        dtype = _dtype(node, dtype_slot) or DType.FLOAT
        if a is None or b is None or len(a) != 2 or len(b) != 2:
            return [_tensor(dtype, None)]
        return [_tensor(dtype, (a[1 if node.attr("transA", 0) else 0], b[0 if node.attr("transB", 0) else 1]))]

    return rule


def _matmul_as(dtype: DType, b_slot: int = 1) -> Rule:
    def rule(node: Node) -> list[ValueType | None]:
        return [_tensor(dtype, _matmul(_shape(node, 0), _shape(node, b_slot)))]

    return rule


def _qlinear_matmul_like(node: Node) -> list[ValueType | None]:
    shape = _shape(node, 0)
    n: Any = node.attr("N", None)
    return [_tensor(_dtype(node, 0), None if shape is None else (*shape[:-1], n))]


def _conv(weight_slot: int, dtype_slot: int) -> Rule:
    def rule(node: Node) -> list[ValueType | None]:
        x, w = _shape(node, 0), _shape(node, weight_slot)
        dtype = _dtype(node, dtype_slot)
        if x is None or w is None or len(x) != len(w):
            return [_tensor(dtype, None)]
        last = bool(node.attr("channels_last", 0)) or node.op.startswith("Nhwc")
        spatial = x[1:-1] if last else x[2:]
        out = window_shape(node, spatial, w[2:])
        return [_tensor(dtype, (x[0], *out, w[0]) if last else (x[0], w[0], *out))]

    return rule


def _pool(node: Node) -> list[ValueType | None]:
    x = _shape(node, 0)
    dtype = _dtype(node, 0)
    if x is None or len(x) < 3:
        return [_tensor(dtype, None)]
    last = bool(node.attr("channels_last", 0)) or node.op.startswith("Nhwc")
    spatial, channels = (x[1:-1], x[-1]) if last else (x[2:], x[1])
    if "Global" in node.op:
        out: tuple[Dim, ...] = (1,) * len(spatial)
    else:
        out = window_shape(node, spatial, node.attr("kernel_shape", (None,) * len(spatial)))
    return [_tensor(dtype, (x[0], *out, channels) if last else (x[0], channels, *out))]


def window_shape(node: Node, spatial: Shape, kernel: Sequence[Dim]) -> tuple[Dim, ...]:
    """Spatial dimensions after a window operator with the node's pads, strides, dilations, auto_pad and ceil_mode."""
    n = len(spatial)
    strides = node.attr("strides", (1,) * n)
    dilations = node.attr("dilations", (1,) * n)
    pads = node.attr("pads", (0,) * (2 * n))
    auto = node.attr("auto_pad", "NOTSET")
    out: list[Dim] = []
    for i, size in enumerate(spatial):
        k = kernel[i]
        if not isinstance(size, int) or not isinstance(k, int):
            out.append(None)
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            out.append(-(-size // strides[i]))
        else:
            padded = size if auto == "VALID" else size + pads[i] + pads[n + i]
            room = padded - ((k - 1) * dilations[i] + 1)
            steps = -(-room // strides[i]) if node.attr("ceil_mode", 0) else room // strides[i]
            if node.attr("ceil_mode", 0) and steps * strides[i] >= size + pads[i]:
                steps -= 1
            out.append(steps + 1)
    return tuple(out)


def _concat(node: Node) -> list[ValueType | None]:
    shapes = [_shape(node, s) for s in range(2, len(node.inputs), 3)]
    dtype = _dtype(node, 1)
    if any(s is None for s in shapes) or not shapes:
        return [_tensor(dtype, None)]
    known = [s for s in shapes if s is not None]
    axis = node.attr("axis", 0) % max(1, len(known[0]))
    total: Dim = 0
    for shape in known:
        d = shape[axis]
        total = total + d if isinstance(d, int) and isinstance(total, int) else None
    return [_tensor(dtype, (*known[0][:axis], total, *known[0][axis + 1 :]))]


def _quantize(node: Node) -> list[ValueType | None]:
    return [_tensor(_dtype(node, 2) or DType.UINT8, _shape(node, 0))]


def _dequantize(node: Node) -> list[ValueType | None]:
    return [_tensor(_dtype(node, 1) or DType.FLOAT, _shape(node, 0))]


def _skip_layer_norm(node: Node) -> Iterable[ValueType | None]:
    whole = _tensor(_dtype(node, 0), _shape(node, 0))
    row = _shape(node, 0)
    stat = _tensor(DType.FLOAT, None if row is None else (*row[:-1], 1))
    return [whole, stat, stat, whole][: len(node.outputs)]


def _layer_norm(node: Node) -> Iterable[ValueType | None]:
    x = _shape(node, 0)
    axis = node.attr("axis", -1)
    stat = None if x is None else tuple(1 if i >= axis % max(1, len(x)) else d for i, d in enumerate(x))
    return [_tensor(_dtype(node, 0), x), _tensor(DType.FLOAT, stat), _tensor(DType.FLOAT, stat)][: len(node.outputs)]


def _attention(node: Node) -> list[ValueType | None]:
    x, w = _shape(node, 0), _shape(node, 1)
    hidden: Dim = None
    sizes: Any = node.attr("qkv_hidden_sizes", ())
    if sizes:
        hidden = sizes[2]
    elif w is not None and isinstance(w[1], int):
        hidden = w[1] // 3
    out = None if x is None else (x[0], x[1], hidden)
    return [_tensor(_dtype(node, 0), out), *[None] * (len(node.outputs) - 1)]


def _multi_head_attention(node: Node) -> list[ValueType | None]:
    q, v = _shape(node, 0), _shape(node, 2)
    if q is None or len(q) != 3:
        return [_tensor(_dtype(node, 0), None), *[None] * (len(node.outputs) - 1)]
    hidden = q[2] if v is None or len(v) != 3 else v[2]
    return [_tensor(_dtype(node, 0), (q[0], q[1], hidden)), *[None] * (len(node.outputs) - 1)]


def _embed_layer_norm(node: Node) -> Iterable[ValueType | None]:
    ids, words = _shape(node, 0), _shape(node, 2)
    dtype = _dtype(node, 2)
    out = None if ids is None or words is None else (*ids, words[1])
    mask = None if ids is None else (ids[0],)
    return [_tensor(dtype, out), _tensor(DType.INT32, mask), _tensor(dtype, out)][: len(node.outputs)]


def _dtype(node: Node, slot: int) -> DType | None:
    value = node.input(slot)
    return None if value is None else value.dtype


def _shape(node: Node, slot: int) -> Shape | None:
    value = node.input(slot)
    if value is None:
        return None
    if value.shape is None and isinstance(value.const, Tensor):
        return value.const.shape
    return value.shape


def _tensor(dtype: DType | None, shape: Shape | None) -> TensorType | None:
    return None if dtype is None else TensorType(dtype, shape)


_MICROSOFT_TYPES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "Gelu",
            "FastGelu",
            "BiasGelu",
            "QuickGelu",
            "BiasSoftmax",
            "QLinearSigmoid",
            "QLinearLeakyRelu",
            "QLinearSoftmax",
        ),
        like(0),
    ),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), broadcast((0, 3), 0)),
    "QLinearWhere": broadcast((0, 1, 4), 1),
    "QLinearConcat": _concat,
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool", "NhwcMaxPool"), _pool),
    "QLinearConv": _conv(3, 7),
    **dict.fromkeys(("FusedConv", "NhwcFusedConv", "NhwcConv"), _conv(1, 0)),
    "FusedGemm": _gemm(0),
    "QGemm": _gemm(8, 3),
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    **dict.fromkeys(("MatMulIntegerToFloat", "DynamicQuantizeMatMul"), _matmul_as(DType.FLOAT)),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), _qlinear_matmul_like),
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_layer_norm),
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "EmbedLayerNormalization": _embed_layer_norm,
    "RotaryEmbedding": like(0),
}

CONTRIB_TYPES: dict[tuple[str, str], Rule] = {
    **{(MICROSOFT, op): rule for op, rule in _MICROSOFT_TYPES.items()},
    ("", "SimplifiedLayerNormalization"): _layer_norm,
    ("", "LayerNormalization"): _layer_norm,
}
"""By (domain, operator): the types of a node's outputs."""
