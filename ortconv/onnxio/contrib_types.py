"""Type and shape rules for the operators of ONNX Runtime's own domains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ortconv.ir.graph import Node
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.shape_rules import joined, multiplied, window_shape
from ortconv.ir.symbols import broadcast_shapes, times
from ortconv.ir.types import Dim, DType, Shape, TensorType, ValueType
from ortconv.onnxio.attention_types import ATTENTION_TYPES
from ortconv.onnxio.standard_types import STANDARD_TYPES
from ortconv.onnxio.type_rules import TypeRule, like, shape_of, shaped, tensor


def broadcast(slots: Sequence[int], dtype_slot: int) -> TypeRule:
    return shaped(lambda node: broadcast_shapes([shape_of(node, s) for s in slots]), dtype_slot)


def _fused_matmul(node: Node) -> Shape | None:
    return multiplied(*(_operand(shape_of(node, slot), node, side) for slot, side in enumerate("AB")))


def _operand(shape: Shape | None, node: Node, side: str) -> Shape | None:
    """The shape of an operand of FusedMatMul after its transposition."""
    if shape and node.attr(f"transBatch{side}", 0):
        shape = (*shape[1:-1], shape[0], shape[-1])
    if shape and len(shape) > 1 and node.attr(f"trans{side}", 0):
        shape = (*shape[:-2], shape[-1], shape[-2])
    return shape


def _gemm(dtype_slot: int, b_slot: int = 1) -> TypeRule:
    def shape(node: Node) -> Shape | None:
        a, b = shape_of(node, 0), shape_of(node, b_slot)
        if a is None or b is None or len(a) != 2 or len(b) != 2:
            return None
        return a[1 if node.attr("transA", 0) else 0], b[0 if node.attr("transB", 0) else 1]

    return shaped(shape, dtype_slot, DType.FLOAT)


def _product(node: Node) -> Shape | None:
    return multiplied(shape_of(node, 0), shape_of(node, 1))


def _nbits_matmul(node: Node) -> Shape | None:
    shape = shape_of(node, 0)
    n: Any = node.attr("N", None)
    return None if shape is None else (*shape[:-1], n)


def _conv(weight_slot: int, dtype_slot: int) -> TypeRule:
    def shape(node: Node) -> Shape | None:
        x, w = shape_of(node, 0), shape_of(node, weight_slot)
        if x is None or w is None or len(x) != len(w):
            return None
        last = bool(node.attr("channels_last", 0)) or node.op.startswith("Nhwc")
        out = window_shape(node, x[1:-1] if last else x[2:], w[2:])
        return (x[0], *out, w[0]) if last else (x[0], w[0], *out)

    return shaped(shape, dtype_slot)


def _pool(node: Node) -> list[ValueType | None]:
    """The types of the result and of MaxPool's indices."""
    x = shape_of(node, 0)
    dtype = node.dtype(0)
    if x is None or len(x) < 3:
        return [tensor(dtype, None)]
    last = bool(node.attr("channels_last", 0)) or node.op.startswith("Nhwc")
    spatial, channels = (x[1:-1], x[-1]) if last else (x[2:], x[1])
    if "Global" in node.op:
        out: tuple[Dim, ...] = (1,) * len(spatial)
    else:
        out = window_shape(node, spatial, node.attr("kernel_shape", (None,) * len(spatial)))
    shape = (x[0], *out, channels) if last else (x[0], channels, *out)
    return [tensor(dtype, shape), TensorType(DType.INT64, shape)]


def _concat(node: Node) -> list[ValueType | None]:
    slots = range(2, len(node.inputs), 3)
    shapes = [shape for slot in slots if (shape := shape_of(node, slot)) is not None]
    return [tensor(node.dtype(1), None if len(shapes) < len(slots) else joined(shapes, node.attr("axis", 0)))]


def _skip_layer_norm(node: Node) -> Iterable[ValueType | None]:
    row = shape_of(node, 0)
    whole, stat = tensor(node.dtype(0), row), tensor(DType.FLOAT, None if row is None else (*row[:-1], 1))
    return [whole, stat, stat, whole]


def _layer_norm(node: Node) -> Iterable[ValueType | None]:
    x = shape_of(node, 0)
    axis = node.attr("axis", -1)
    stat = None if x is None else tuple(1 if i >= axis % max(1, len(x)) else d for i, d in enumerate(x))
    return [tensor(node.dtype(0), x), tensor(DType.FLOAT, stat), tensor(DType.FLOAT, stat)]


def _embed_layer_norm(dtype_slot: int) -> TypeRule:
    def rule(node: Node) -> list[ValueType | None]:
        ids, words = shape_of(node, 0), shape_of(node, 2)
        whole = tensor(node.dtype(dtype_slot), None if ids is None or words is None else (*ids, words[1]))
        return [whole, tensor(DType.INT32, None if ids is None else ids[:1]), whole]

    return rule


def _gather_block_quantized(node: Node) -> Shape | None:
    data, indices = shape_of(node, 0), shape_of(node, 1)
    if data is None or indices is None:
        return None
    axis = node.attr("gather_axis", 0) % max(1, len(data))
    if node.dtype(0) is DType.UINT8 and data:
        data = (*data[:-1], times(data[-1], 8 // node.attr("bits", 4)))
    return (*data[:axis], *indices, *data[axis + 1 :])


def _lstm(node: Node) -> list[ValueType | None]:
    x = shape_of(node, 0)
    length, batch = x[:2] if x is not None and len(x) == 3 else (None, None)
    directions = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    hidden: Dim = node.attr("hidden_size", None)
    state = tensor(node.dtype(0), (directions, batch, hidden))
    return [tensor(node.dtype(0), (length, directions, batch, hidden)), state, state]


def _unfold(node: Node) -> Shape | None:
    x = shape_of(node, 0)
    size: Dim = node.attr("size", None)
    if not x or not isinstance(size, int):
        return None
    axis = node.attr("dim", -1) % len(x)
    length = x[axis]
    windows = (length - size) // max(1, node.attr("step", 1)) + 1 if isinstance(length, int) else None
    return (*x[:axis], windows, *x[axis + 1 :], size)


def _unique(node: Node) -> list[ValueType | None]:
    x = shape_of(node, 0)
    return [
        tensor(node.dtype(0), (None,)),
        TensorType(DType.INT64, (None,) if x is None else x[:1]),
        TensorType(DType.INT64, (None,)),
    ]


def _tokenizer(node: Node) -> list[ValueType | None]:
    x = shape_of(node, 0)
    return [TensorType(DType.STRING, None if x is None else (*x, None))]


def _expand_dims(node: Node) -> Shape | None:
    x, axis = shape_of(node, 0), node.inputs[1]
    if x is None or axis is None:
        return None
    if axis.constant is None:
        return (None,) * (len(x) + 1)
    at = int(axis.constant.numpy().reshape(-1)[0]) % (len(x) + 1)
    return (*x[:at], 1, *x[at:])


def _same_rank(node: Node) -> Shape | None:
    x = shape_of(node, 0)
    return None if x is None else (None,) * len(x)


def _beam_search(node: Node) -> list[ValueType | None]:
    """Sequences (int32), their scores, and the scores of each step (both float), unless an input determines other types."""
    dtype = node.dtype(5) or node.dtype(6) or DType.FLOAT
    known = [TensorType(DType.INT32), tensor(dtype, None), tensor(dtype, None)]
    return [*known, None, tensor(dtype, None)]


def _grid_sample(node: Node) -> Shape | None:
    x, grid = shape_of(node, 0), shape_of(node, 1)
    return (*x[:2], *grid[1:-1]) if x and grid and len(x) == len(grid) else None


_LIKE_FIRST = (
    "BiasGelu", "BiasSoftmax", "BranchwiseRMSNorm", "FastGelu", "GatedAdd", "GatedRMSNorm", "Gelu", "Inverse", "MRotaryEmbedding",
    "MoE", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "QMoE", "QuickGelu", "RotaryEmbedding", "SampleOp", "ScaledSiLU",
    "Trilu",
)  # fmt: skip
"""Operators whose output has the type and shape of the first input."""

_MICROSOFT_TYPES: dict[str, TypeRule] = {
    **dict.fromkeys(_LIKE_FIRST, like(0)),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), broadcast((0, 3), 0)),
    "QLinearWhere": broadcast((0, 1, 4), 1),
    "QLinearConcat": _concat,
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool", "NhwcMaxPool"), _pool),
    "QLinearConv": _conv(3, 7),
    **dict.fromkeys(("FusedConv", "NhwcFusedConv", "NhwcConv"), _conv(1, 0)),
    "FusedGemm": _gemm(0),
    "QGemm": _gemm(8, 3),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), shaped(_fused_matmul)),
    "MatMulIntegerToFloat": shaped(_product, 2),
    "DynamicQuantizeMatMul": shaped(_product, default=DType.FLOAT),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), shaped(_nbits_matmul)),
    "QuantizeLinear": like(0, 2, DType.UINT8),
    "DequantizeLinear": like(0, 1, DType.FLOAT),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_layer_norm),
    "EmbedLayerNormalization": _embed_layer_norm(2),
    "QEmbedLayerNormalization": _embed_layer_norm(8),
    **ATTENTION_TYPES,
    **dict.fromkeys(("AttnLSTM", "DynamicQuantizeLSTM"), _lstm),
    **dict.fromkeys(("BeamSearch", "WhisperBeamSearch"), _beam_search),
    "DynamicTimeWarping": lambda node: [TensorType(DType.INT32, (2, None))],
    "ExpandDims": shaped(_expand_dims),
    "GatherBlockQuantized": shaped(_gather_block_quantized, 2),
    "GatherND": STANDARD_TYPES["", "GatherND"],
    "GatherPacked": lambda node: [TensorType(DType(node.attr("output_dtype", int(DType.BFLOAT16))))],
    "GridSample": shaped(_grid_sample),
    "MatMulInteger16": lambda node: [TensorType(DType.INT32, _product(node))],
    "MaxpoolWithMask": _pool,
    "MurmurHash3": lambda n: [TensorType(DType.UINT32 if n.attr("positive", 1) else DType.INT32, shape_of(n, 0))],
    "NGramRepeatBlock": like(1),
    "Pad": shaped(_same_rank),
    "Range": shaped(lambda node: (None,)),
    "Tokenizer": _tokenizer,
    "UnfoldTensor": shaped(_unfold),
    "Unique": _unique,
}

REMOVED = ("Affine", "ImageScaler", "ParametricSoftplus", "Scale", "ScaledTanh")
"""Operators that ONNX has removed and ONNX Runtime keeps. The output of each has the shape of its input."""

CONTRIB_TYPES: dict[tuple[str, str], TypeRule] = {
    **{(MICROSOFT, op): rule for op, rule in _MICROSOFT_TYPES.items()},
    ("", "SimplifiedLayerNormalization"): _layer_norm,
    ("", "LayerNormalization"): _layer_norm,
    **{("", op): like(0) for op in REMOVED},
    **{("", op): shaped(_same_rank) for op in ("Crop", "DynamicSlice")},
    **{("", op): _pool for op in ("AveragePool", "LpPool", "MaxPool")},
    **STANDARD_TYPES,
}
"""Rules for the output types of a node, by (domain, operator)."""
