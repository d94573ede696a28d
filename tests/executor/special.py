"""Nodes of every family of kernels, for operands of no usual kind: NaN, infinities, -0, no elements, no axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tests.arrays import f32, i64

F32 = np.float32
NAN, INF = np.nan, np.inf
TINY, HUGE = 1e-42, 3e38

LINE = np.array([NAN, INF, -INF, -0.0, 0.0, 1.0, -1.0, 0.5, -2.5, HUGE, -HUGE, TINY], F32)
GRID = np.stack([LINE, np.roll(LINE, 1), np.ones_like(LINE), np.full_like(LINE, -INF), np.full_like(LINE, NAN)])
PAIRS = tuple(np.ascontiguousarray(v) for v in np.broadcast_arrays(LINE[:, None], LINE))
FINITE = np.array([-0.0, 0.0, 1.0, -1.0, 0.5, -2.5], F32)
EMPTY = np.zeros((2, 0, 3), F32)
SCALAR = np.array(-2.5, F32)


def one(value: Any, dtype: Any = F32) -> Any:
    return np.array(value, dtype)


def zeros(*shape: int) -> Any:
    return np.zeros(shape, F32)


def ones(*shape: int) -> Any:
    return np.ones(shape, F32)


U3 = np.array(3, np.uint8)


def image(*plane: float) -> Any:
    """(1, 1, 3, n) of a column of values between ones."""
    row = np.array(plane, F32)
    return np.stack([np.ones_like(row), row, np.ones_like(row)])[None, None]


class Node(NamedTuple):
    op: str
    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = MappingProxyType({})
    domain: str = ""
    opset: int = 22
    n_outputs: int = 1

    def __repr__(self) -> str:
        shapes = ",".join("x".join(map(str, np.shape(x))) or "scalar" for x in self.inputs if x is not None)
        return f"{self.op}-{self.opset}-{shapes}-{','.join(f'{k}={v}' for k, v in self.attributes.items())}".strip("-")


UNARY = ("Abs", "Neg", "Sign", "Reciprocal", "Ceil", "Floor", "Round", "Sqrt", "Exp", "Log", "Sin", "Cos", "Tan", "Asin",
         "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Erf", "IsNaN", "IsInf", "Relu", "LeakyRelu",
         "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "ThresholdedRelu", "Shrink",
         "Gelu", "Mish", "Identity", "Clip")  # fmt: skip
MICROSOFT_UNARY = ("Gelu", "QuickGelu", "FastGelu")
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Equal", "Less", "LessOrEqual", "Greater",
          "GreaterOrEqual", "PRelu")  # fmt: skip
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
              "ReduceLogSumExp", "ReduceSumSquare")  # fmt: skip
ROWS = ("Softmax", "LogSoftmax", "Hardmax")
MS = "com.microsoft"

ELEMENTWISE = [
    *(Node(op, [x]) for op in UNARY for x in (LINE, EMPTY, SCALAR)),
    *(Node(op, [x], domain=MS) for op in MICROSOFT_UNARY for x in (LINE, EMPTY, SCALAR[None])),
    *(Node(op, list(pair)) for op in BINARY for pair in (PAIRS, (EMPTY, SCALAR), (SCALAR, SCALAR), (EMPTY, EMPTY[:1]))),
    *(Node("Mod", list(pair), {"fmod": 1}) for pair in (PAIRS, (EMPTY, SCALAR), (SCALAR, SCALAR))),
    *(
        Node("Clip", [x, low, high])
        for x in (LINE, EMPTY, SCALAR)
        for low, high in ((one(-1), one(1)), (None, one(1)), (one(-1), None), (one(1), one(-1)), (one(-INF), one(INF)))
    ),
    *(Node("Clip", [x], {"min": -1.0, "max": 1.0}, opset=6) for x in (LINE, EMPTY, SCALAR)),
    *(
        Node("Where", [c, x, np.asarray(x / 2)])
        for x in (LINE, EMPTY, SCALAR)
        for c in (np.asarray(np.isnan(x)), one(True, bool))
    ),
    *(Node("IsInf", [LINE], {"detect_negative": n, "detect_positive": p}) for n in (0, 1) for p in (0, 1)),
    *(Node("LeakyRelu", [LINE], {"alpha": a}) for a in (0.0, -1.0, 2.0)),
    *(Node("PRelu", [LINE, one(a)]) for a in (0.0, -1.0, 2.0, INF, NAN)),
    *(Node("Elu", [LINE], {"alpha": a}) for a in (0.0, -1.0)),
    Node("BiasGelu", [GRID, LINE], domain=MS),
    *(Node("Gelu", [x], {"approximate": "tanh"}) for x in (LINE, EMPTY, SCALAR)),
]

REDUCED = [
    *(
        Node(op, [x, i64(*axes)], {"keepdims": k})
        for op in REDUCTIONS
        for k in (0, 1)
        for x, axes in ((GRID, (1,)), (GRID, (0,)), (GRID, (0, 1)), (EMPTY, (0,)), (EMPTY, (2,)), (EMPTY, (1,)))
        if not (op == "ReduceProd" and k)
        and not (op in ("ReduceMax", "ReduceMin", "ReduceMean") and axes == (1,) and x is EMPTY)
    ),
    *(Node(op, [SCALAR], {"keepdims": k}) for op in REDUCTIONS for k in (0, 1)),
    *(
        Node(op, [x], {"axis": a, "select_last_index": last})
        for op in ("ArgMax", "ArgMin")
        for last in (0, 1)
        for x, a in ((GRID, 1), (GRID[2:4], 0), (EMPTY, 0), (EMPTY, 2))
    ),
    *(Node(op, [x], {"axis": a}) for op in ROWS for x, a in ((GRID, 1), (GRID, 0), (EMPTY, 0), (EMPTY, 1), (EMPTY, 2))),
    *(Node(op, [x], {"axis": a}, opset=11) for op in ROWS for x, a in ((GRID, 1), (EMPTY, 1), (EMPTY, 2))),
    *(
        Node("CumSum", [x, one(a, np.int64)], {"exclusive": e, "reverse": r})
        for e in (0, 1)
        for r in (0, 1)
        for x, a in ((GRID, 1), (EMPTY, 1), (EMPTY, 0))
    ),
    *(
        Node("TopK", [x, i64(k)], {"axis": a, "largest": big}, n_outputs=2)
        for big in (0, 1)
        for x, k, a in ((FINITE, 6, 0), (EMPTY, 0, 1), (EMPTY, 1, 0), (f32([INF, -INF, 1]), 3, 0))
    ),
]

MOVED = [
    *(Node("Transpose", [x]) for x in (GRID, EMPTY, SCALAR)),
    *(
        Node("Reshape", [x, i64(*s)], a)
        for x, s, a in (
            (EMPTY, (0, 0, 3), {}),
            (EMPTY, (3, 0), {"allowzero": 1}),
            (SCALAR, (1, 1), {}),
            (one([5]), (), {}),
            (SCALAR, (-1,), {}),
        )
    ),
    *(Node("Flatten", [x], {"axis": a}) for x, a in ((EMPTY, 1), (EMPTY, 2), (EMPTY, 0), (EMPTY, 3), (SCALAR, 0))),
    *(Node("Concat", xs, {"axis": 1}) for xs in ([EMPTY, EMPTY], [EMPTY, ones(2, 1, 3)])),
    *(Node("Squeeze", xs) for xs in ([SCALAR], [ones(1, 0), i64(0)])),
    *(Node("Unsqueeze", [x, i64(*a)]) for x, a in ((SCALAR, (0, 1)), (EMPTY, (-1,)))),
    *(
        Node("Expand", [x, i64(*s)])
        for x, s in ((SCALAR, ()), (SCALAR, (2, 0)), (EMPTY, (4, 2, 0, 3)), (one([7]), (0,)))
    ),
    *(Node("Tile", [x, i64(*r)]) for x, r in ((EMPTY, (2, 2, 1)), (GRID, (0, 2)), (GRID, (1, 2)))),
    *(
        Node("Pad", [x, i64(*p), v], {"mode": "constant"})
        for x, p, v in ((EMPTY, (0, 1, 0, 0, 1, 0), one(NAN)), (GRID, (0, -2, 0, -3), one(-0.0)))
    ),
    *(
        Node("Slice", [x, i64(*s), i64(*e), i64(*a), i64(*t)])
        for x, s, e, a, t in (
            (EMPTY, (0,), (5,), (1,), (1,)),
            (GRID, (3,), (1,), (1,), (1,)),
            (GRID, (-1,), (-99,), (1,), (-2,)),
            (GRID, (9,), (9,), (0,), (1,)),
        )
    ),
    Node("Split", [EMPTY], {"axis": 0, "num_outputs": 2}, n_outputs=2),
    Node("Split", [GRID, i64(0, 12)], {"axis": 1}, n_outputs=2),
    *(
        Node("Gather", [x, i], {"axis": a})
        for x, i, a in (
            (GRID, one(-1, np.int64), 1),
            (GRID, np.zeros((0, 2), np.int64), 0),
            (EMPTY, i64(1, 0), 0),
            (EMPTY, i64(), 1),
        )
    ),
    *(
        Node("GatherElements", [x, i], {"axis": 0})
        for x, i in ((GRID, np.zeros((2, 3), np.int64)), (EMPTY, np.zeros((2, 0, 3), np.int64)))
    ),
    *(Node("GatherND", [x, i]) for x, i in ((GRID, np.zeros((0, 2), np.int64)), (GRID, i64(-1)), (EMPTY, i64(1)))),
    *(Node("ScatterElements", [GRID, np.zeros(s, np.int64), zeros(*s)], {"axis": 1}) for s in ((5, 1), (0, 0))),
    *(
        Node("ScatterND", [x, i, u])
        for x, i, u in ((GRID, i64(0, 0)[None], LINE[:1]), (GRID, np.zeros((0, 1), np.int64), zeros(0, 12)))
    ),
    *(
        Node("ScatterElements", [LINE[:4], i64(0, 1, 2, 3), LINE[4:8]], {"reduction": r}, opset=18)
        for r in ("add", "mul", "max", "min")
    ),
    *(Node(op, [x]) for op in ("Shape", "Size") for x in (EMPTY, SCALAR)),
    *(Node("NonZero", [x]) for x in (LINE, GRID, EMPTY)),
    *(Node("Trilu", [x]) for x in (GRID, EMPTY)),
    *(Node("Compress", [x, c], {"axis": 0}) for x, c in ((GRID, np.zeros(5, bool)), (EMPTY, np.ones(2, bool)))),
    *(Node("OneHot", [i, one(3, np.int64), LINE[:2]]) for i in (i64(0, 5, -1), i64())),
    Node("ReverseSequence", [GRID[:, :3].T.copy(), i64(1, 1, 2, 3, 3)]),
    *(Node("Unique", [x], {"sorted": 1}, n_outputs=4) for x in (FINITE[2:], np.zeros(0, F32))),
    Node("DepthToSpace", [zeros(0, 4, 2, 3)], {"blocksize": 2}),
    Node("SpaceToDepth", [zeros(0, 4, 2, 4)], {"blocksize": 2}),
    *(Node("Cast", [x], {"to": t}) for t in (1, 10, 11, 9) for x in (LINE, EMPTY, SCALAR)),
    *(
        Node("Range", [one(a, d), one(b, d), one(c, d)])
        for a, b, c, d in ((0, 0, 1, np.int64), (3, 0, 1, F32), (0, -3, -1, np.int32))
    ),
]

PRODUCTS = [
    *(
        Node("MatMul", [a, b])
        for a, b in (
            (GRID, GRID.T.copy()),
            (LINE, GRID.T.copy()),
            (zeros(2, 0), zeros(0, 3)),
            (zeros(0, 3), ones(3, 2)),
            (zeros(2, 3, 0), zeros(0, 4)),
            (zeros(0, 2, 3), ones(3, 4)),
            (LINE[5:8], LINE[5:8]),
        )
    ),
    *(
        Node("Gemm", [a, b, c], {"alpha": 0.5, "beta": 2.0})
        for a, b, c in (
            (GRID, GRID.T.copy(), LINE[:5]),
            (zeros(2, 0), zeros(0, 3), LINE[:3]),
            (zeros(0, 3), ones(3, 2), one(1)),
        )
    ),
    Node("Gemm", [ones(1, 1)] * 2 + [one([[NAN]])], {"beta": 0.0}),
    Node("FusedMatMul", [GRID, GRID], {"transB": 1, "alpha": 0.5}, domain=MS),
    *(
        Node("Einsum", [a, b], {"equation": "ij,jk->ik"})
        for a, b in ((GRID, GRID.T.copy()), (zeros(2, 0), zeros(0, 3)))
    ),
    *(Node("Conv", [image(1, v, 1, 1), ones(2, 1, 2, 2)]) for v in (NAN, INF, -INF, -0.0)),
    *(Node("Conv", [image(1, v, 1, 1), f32([[[[1, 0], [0, 0]]]])], {"pads": [1, 1, 1, 1]}) for v in (NAN, INF, HUGE)),
    Node("Conv", [zeros(0, 1, 4, 4), ones(2, 1, 3, 3)]),
    *(Node("Conv", [ones(1, 2, 9, 9), np.full((2, 2, 3, 3), v, F32)], {"pads": [1, 1, 1, 1]}) for v in (INF, NAN)),
    *(Node("Conv", [image(1, v, 1, 1), ones(1, 1, 1, 1)]) for v in (NAN, INF, -0.0)),
    *(Node("ConvTranspose", [image(1, v, 1), ones(1, 1, 2, 2)]) for v in (NAN, INF)),
    *(
        Node("MatMulInteger", [np.zeros(a, np.uint8), np.zeros(b, np.uint8)])
        for a, b in (((2, 0), (0, 3)), ((0, 3), (3, 2)))
    ),
]

POOLS = [
    *(
        Node(op, [image(1, v, 2, -INF)], {"kernel_shape": [2, 2]})
        for op in ("MaxPool", "AveragePool", "LpPool")
        for v in (NAN, INF, -INF, -0.0)
    ),
    *(Node(op, [image(1, v, 2, -INF)]) for op in ("GlobalMaxPool", "GlobalAveragePool") for v in (NAN, INF, -INF)),
    *(Node("GlobalLpPool", [image(1, v, 2, -INF)], opset=13) for v in (NAN, INF, -INF)),
    *(
        Node("MaxPool", [np.full((1, 1, 3, 3), v, F32)], {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}, n_outputs=2)
        for v in (-INF, NAN, -HUGE)
    ),
    *(Node(op, [zeros(0, 2, 4, 4)], {"kernel_shape": [2, 2]}) for op in ("MaxPool", "AveragePool", "LpPool")),
    *(Node(op, [zeros(0, 2, 4, 4)]) for op in ("GlobalMaxPool", "GlobalAveragePool")),
]

CHANNELS = tuple(np.array(v, F32) for v in ([1, 2], [0.5, -0.5], [0, 1], [1, 4]))
NORMALIZED = [
    *(
        Node("BatchNormalization", [x, *CHANNELS])
        for x in (np.stack([LINE, LINE])[None], zeros(0, 2, 3), zeros(2, 2, 0))
    ),
    Node("BatchNormalization", [ones(1, 2, 3), *CHANNELS[:3], f32([0, -1])]),
    *(
        Node("InstanceNormalization", [x, *CHANNELS[:2]])
        for x in (np.stack([LINE, LINE[3:9].repeat(2)])[None], ones(1, 2, 1))
    ),
    *(Node("LayerNormalization", [x, ones(n), ones(n)]) for x, n in ((GRID, 12), (zeros(2, 0, 3), 3), (ones(2, 1), 1))),
    *(Node("SimplifiedLayerNormalization", [x, ones(n)]) for x, n in ((GRID, 12), (zeros(2, 3), 3))),
    *(Node("SkipLayerNormalization", [x, x, ones(n)], domain=MS) for x, n in ((GRID[None], 12), (zeros(1, 2, 3), 3))),
    *(Node("LpNormalization", [x], {"axis": 1, "p": p}) for p in (1, 2) for x in (GRID, zeros(2, 3), zeros(0, 3))),
    *(Node("LRN", [x], {"size": 3}) for x in (np.stack([LINE, LINE])[None, :, None], zeros(0, 2, 3, 3))),
    *(Node("MeanVarianceNormalization", [x]) for x in (image(1, NAN, 1), ones(1, 2, 2, 2))),
    Node("GroupNormalization", [np.stack([LINE, LINE])[None], *CHANNELS[:2]], {"num_groups": 2}, opset=21),
]

QUANTIZED = [
    *(
        Node("QuantizeLinear", [x, one(0.5), one(z, t)])
        for t, z in ((np.uint8, 3), (np.int8, -3))
        for x in (LINE, EMPTY, SCALAR)
    ),
    *(Node("QuantizeLinear", [x, one(0.5), U3], domain=MS) for x in (LINE, EMPTY)),
    *(
        Node("DequantizeLinear", [np.zeros(s, np.uint8), one(v), U3])
        for s, v in (((2, 0), 1), ((), 1), ((2,), NAN), ((2,), INF))
    ),
    *(Node("DynamicQuantizeLinear", [x], n_outputs=3) for x in (SCALAR, zeros(2, 3), f32([-0.0]), f32([1, 1e-38]))),
    *(Node("QLinearAdd", [np.zeros(s, np.uint8), one(1), U3] * 2 + [one(1), U3], domain=MS) for s in ((2, 0), ())),
    *(Node("QLinearSigmoid", [np.zeros(s, np.uint8), one(1), U3, one(0.004), U3], domain=MS) for s in ((2, 0), ())),
    *(
        Node("QLinearMatMul", [np.zeros(a, np.uint8), one(1), U3, np.zeros(b, np.uint8), one(1), U3, one(1), U3])
        for a, b in (((0, 3), (3, 2)), ((2, 3), (3, 0)))
    ),
]

SAMPLED = [
    *(
        Node("Resize", [image(1, v, 2, 3), None, f32([1, 1, 1, 2])], {"mode": m})
        for m in ("nearest", "linear", "cubic")
        for v in (NAN, INF)
    ),
    *(Node("Resize", [zeros(0, 1, 2, 2), None, f32([1, 1, 2, 2])], {"mode": m}) for m in ("nearest", "linear")),
    *(
        Node("GridSample", [image(1, 2, 3), np.full((1, 2, 2, 2), v, F32)], {"padding_mode": p})
        for v in (9.0, -9.0)
        for p in ("zeros", "border", "reflection")
    ),
]

CORNERS = f32([[[0, 0, 1, 1], [0, 0, 1, 1.1], [2, 2, 3, 3]]])
DETECTED = [
    *(
        Node("NonMaxSuppression", [b, s, i64(n), one(0.5), one(t)])
        for b, s, n, t in (
            (CORNERS, f32([[[0.9, 0.8, 0.7]]]), 3, 0),
            (CORNERS, f32([[[-INF, INF, 0.7]]]), 3, -1),
            (zeros(1, 0, 4), zeros(1, 1, 0), 3, 0),
            (CORNERS, f32([[[0.9, 0.8, 0.7]]]), 0, 0),
            (zeros(1, 2, 4), ones(1, 1, 2), 3, 0),
        )
    ),
    *(
        Node(
            "RoiAlign",
            [image(1, 2, 3), zeros(n, 4), np.zeros(n, np.int64)],
            {"output_height": 2, "output_width": 2},
            opset=16,
        )
        for n in (0, 1)
    ),
]

HEADS = {"num_heads": 1}
ATTENTION = [
    *(
        Node("MultiHeadAttention", [q, k, k], HEADS, domain=MS)
        for q, k in ((np.full((1, 2, 2), INF, F32), ones(1, 3, 2)), (ones(1, 2, 2), np.full((1, 3, 2), NAN, F32)))
    ),
    *(
        Node(
            "MultiHeadAttention",
            [ones(1, 2, 2)] * 3 + [None, np.zeros((1, 2), np.int32)],
            {**HEADS, "mask_filter_value": v},
            domain=MS,
        )
        for v in (-1e4, -INF)
    ),
    Node(
        "MultiHeadAttention", [ones(1, 2, 2)] * 3 + [None, None, f32([[[[-INF, -INF], [0, -INF]]]])], HEADS, domain=MS
    ),
    *(
        Node(
            "RotaryEmbedding",
            [np.full((1, 2, 4), v, F32), np.zeros((1, 2), np.int64), ones(3, 2), zeros(3, 2)],
            HEADS,
            domain=MS,
        )
        for v in (INF, NAN, -0.0)
    ),
    *(
        Node("Attention", [ones(1, 1, 2, 2)] * 3 + [m], opset=23)
        for m in (np.zeros((2, 2), bool), np.full((2, 2), -INF, F32), np.eye(2, dtype=bool))
    ),
]

LOSSES = [
    *(
        Node("NegativeLogLikelihoodLoss", [x, t], {"ignore_index": 0, "reduction": r})
        for r in ("mean", "sum", "none")
        for x, t in ((f32([[NAN, 1], [2, INF]]), i64(1, 1)), (ones(2, 2), i64(0, 0)))
    ),
    *(
        Node("SoftmaxCrossEntropyLoss", [x, t], {"reduction": r})
        for r in ("mean", "sum")
        for x, t in ((f32([[HUGE, 1], [2, -HUGE]]), i64(1, 1)), (f32([[INF, 1]]), i64(0)), (f32([[NAN, 1]]), i64(0)))
    ),
]

MACHINE_LEARNING = [
    *(
        Node(op, [x], a, domain="ai.onnx.ml", opset=3)
        for x in (GRID[:, :3].copy(), zeros(0, 3), zeros(2, 3))
        for op, a in (
            ("Scaler", {"offset": (1.0, 0.0, 1.0), "scale": (0.0, 1.0, 2.0)}),
            ("Imputer", {"imputed_value_floats": (7.0,), "replaced_value_float": NAN}),
            ("Imputer", {"imputed_value_floats": (7.0,), "replaced_value_float": INF}),
            ("Normalizer", {"norm": "L1"}),
            ("Normalizer", {"norm": "L2"}),
            ("Normalizer", {"norm": "MAX"}),
            ("LinearRegressor", {"coefficients": (1.0, 2.0, 3.0), "intercepts": (0.5,)}),
        )
    )
]


def layer(op: str, gates: int, x: Any, batch: int = 1, h: Any = None) -> Node:
    rng = np.random.default_rng(3)
    w, r = rng.standard_normal((1, gates * 2, x.shape[2])), rng.standard_normal((1, gates * 2, 2))
    return Node(
        op, [x, w.astype(F32), r.astype(F32), None, None, *([] if h is None else [h])], {"hidden_size": 2}, n_outputs=2
    )


RECURRENT = [
    *(
        layer(op, g, np.full((2, 1, 3), v, F32))
        for op, g in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
        for v in (NAN, INF, -INF, HUGE)
    ),
    *(layer(op, g, ones(2, 1, 3), h=np.full((1, 1, 2), INF, F32)) for op, g in (("RNN", 1), ("GRU", 3), ("LSTM", 4))),
    layer("RNN", 1, ones(2, 0, 3)),
]

NODES: dict[str, list[Node]] = {
    "elementwise": ELEMENTWISE,
    "reduction": REDUCED,
    "movement": MOVED,
    "product": PRODUCTS,
    "pool": POOLS,
    "normalization": NORMALIZED,
    "quantization": QUANTIZED,
    "sampling": SAMPLED,
    "recurrent": RECURRENT,
    "detection": DETECTED,
    "attention": ATTENTION,
    "loss": LOSSES,
    "machine learning": MACHINE_LEARNING,
}
