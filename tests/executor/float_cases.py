"""Random cases of operators on floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from draw import F32, Case, Draw, Operator, Tolerance, geometry, trimmed


def fused_conv(d: Draw) -> Case:
    rank, group = d.number(1, 3), d.pick(1, 1, 2, 3)
    kernel = [d.number(1, 3) for _ in range(rank)]
    per_group, out = d.number(1, 4), group * d.number(1, 4)
    x = d.floats([d.number(1, 2), group * per_group, *(d.number(6, 8) for _ in range(rank))])
    w = d.floats([out, per_group, *kernel])
    kind, parameters = activation(d)
    attributes = {"group": group, **geometry(d, rank, kernel), "activation": kind, "activation_params": parameters}
    return Case(trimmed([x, w, d.optional(d.floats((out,)))]), {k: v for k, v in attributes.items() if v != []})


def activation(d: Draw) -> tuple[str, list[float]]:
    choices: tuple[tuple[str, list[float]], ...] = (
        ("Relu", []), ("Tanh", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.7]), ("HardSigmoid", [0.3, 0.4]),
    )  # fmt: skip
    name, parameters = d.pick(*choices)
    return name, parameters


def fused_gemm(d: Draw) -> Case:
    m, k, n = d.number(1, 9), d.number(1, 20), d.number(1, 9)
    trans_a, trans_b = d.pick(0, 1), d.pick(0, 1)
    c = d.floats(d.pick((n,), (1, n), (m, n), (m, 1), (1, 1), (1,), ()))
    inputs = [d.floats((k, m) if trans_a else (m, k)), d.floats((n, k) if trans_b else (k, n)), d.optional(c, 0.8)]
    kind = d.pick("Relu", "Tanh", "Sigmoid", "LeakyRelu")
    attributes = {"alpha": d.pick(1.0, 0.5), "beta": d.pick(1.0, 2.0), "transA": trans_a, "transB": trans_b}
    attributes["activation"] = kind
    if kind == "LeakyRelu":
        attributes["activation_alpha"] = 0.2
    return Case(trimmed(inputs), attributes)


def fused_matmul(d: Draw) -> Case:
    m, k, n, dtype = d.number(1, 9), d.number(1, 20), d.number(1, 9), d.pick(F32, F32, np.float64)
    batch = d.shape(1, 2, 3)
    flags = {name: d.pick(0, 1) for name in ("transA", "transB", "transBatchA", "transBatchB")}

    def operand(rows: int, columns: int, transposed: int, moved: int) -> Any:
        shape = [columns, rows] if transposed else [rows, columns]
        return d.floats([shape[0], *batch, shape[1]] if moved else [*batch, *shape], dtype)

    a = operand(m, k, flags["transA"], flags["transBatchA"])
    b = operand(k, n, flags["transB"], flags["transBatchB"])
    return Case([a, b], {**flags, "alpha": d.pick(1.0, 0.125, -2.0)})


def transpose_matmul(d: Draw) -> Case:
    attributes = {"alpha": d.pick(1.0, 0.5), "transA": d.pick(0, 1), "transB": d.pick(0, 1)}
    m, k, n = d.number(1, 9), d.number(1, 20), d.number(1, 9)
    shapes = [(k, m) if attributes["transA"] else (m, k), (n, k) if attributes["transB"] else (k, n)]
    return Case([d.floats(s) for s in shapes], attributes)


def unary(attributes: Callable[[Draw], dict[str, Any]] = lambda d: {}) -> Callable[[Draw], Case]:
    return lambda d: Case([d.floats(d.shape(0, 4), spread=d.pick(1.0, 10.0))], attributes(d))


def biased(share: float) -> Callable[[Draw], Case]:
    def draw(d: Draw) -> Case:
        shape = d.shape(1, 4)
        return Case(trimmed([d.floats(shape, spread=3.0), d.optional(d.floats(shape[-1:]), share)]))

    return draw


def skip_inputs(d: Draw, dtype: Any) -> tuple[Any, Any, int]:
    shape = (d.number(1, 3), d.number(1, 5), d.number(1, 40))
    x = d.floats(shape[1:] if d.chance(0.2) else shape, dtype)
    skip = (
        d.floats(d.pick(x.shape, x.shape, x.shape[-2:], (1, *x.shape[-2:])), dtype)
        if x.ndim == 3
        else d.floats(x.shape, dtype)
    )
    return x, skip, shape[-1]


def skip_layer_normalization(d: Draw) -> Case:
    dtype = d.pick(F32, F32, np.float16)
    x, skip, n = skip_inputs(d, dtype)
    inputs = [x, skip, d.floats((n,), dtype), d.optional(d.floats((n,), dtype)), d.optional(d.floats((n,), dtype))]
    return Case(trimmed(inputs), {"epsilon": d.pick(1e-5, 1e-3)}, 1)


def skip_simplified_layer_normalization(d: Draw) -> Case:
    dtype = d.pick(F32, F32, np.float16)
    x, skip, n = skip_inputs(d, dtype)
    inputs = [x, skip, d.floats((n,), dtype), d.optional(d.floats((n,), dtype))]
    return Case(trimmed(inputs), {"epsilon": d.pick(1e-5, 1e-3)}, 1)


def simplified_layer_normalization(d: Draw) -> Case:
    shape = d.shape(2, 4, 9)
    axis = d.number(-len(shape), -1)
    attributes = {"axis": axis, "epsilon": d.pick(1e-5, 1e-3), "stash_type": 1}
    return Case([d.floats(shape), d.floats(shape[axis:])], attributes)


def embed_layer_normalization(d: Draw) -> Case:
    batch, length, n = d.number(1, 3), d.number(1, 6), d.number(2, 20)
    shape = (batch, length)

    def ids(most: int) -> Any:
        return d.rng.integers(0, most, shape).astype(np.int32)

    segments = d.chance()
    positions = ids(9) if d.chance() else None
    inputs = [ids(11), ids(2) if segments else None, d.floats((11, n)), d.floats((9, n)),
              d.floats((2, n)) if segments else None, d.floats((n,)), d.floats((n,)),
              d.optional(d.rng.integers(0, 2, shape).astype(np.int32)), positions]  # fmt: skip
    return Case(trimmed(inputs), {"epsilon": 1e-6, "mask_index_type": d.pick(0, 1)}, d.pick(2, 3))


def rotary_embedding(d: Draw) -> Case:
    batch, length, heads, half = d.number(1, 3), d.number(1, 6), d.number(1, 3), d.number(1, 6)
    dtype, whole = d.pick(F32, np.float16), 2 * half
    size = whole + 2 * d.number(0, 3) if d.chance(0.3) else whole
    partial = size != whole
    by_head = d.chance(0.4)
    x = d.floats((batch, heads, length, size) if by_head else (batch, length, heads * size), dtype)
    places = 2 * length + 3
    positions = d.rng.integers(0, places, (batch, length)) if d.chance() else np.array([d.number(0, 3)])
    attributes = {"interleaved": d.pick(0, 1)}
    if partial:
        attributes["rotary_embedding_dim"] = whole
    if partial or d.chance():
        attributes["num_heads"] = heads
    return Case(
        [x, positions.astype(np.int64), d.floats((places, half), dtype), d.floats((places, half), dtype)], attributes
    )


def multi_head_attention(d: Draw) -> Case:
    batch, heads, queries, size = d.number(1, 3), d.number(1, 3), d.number(1, 5), 2 * d.number(1, 4)
    past = d.number(0, 3) if d.chance(0.3) else 0
    keys = queries if past or d.chance() else d.number(1, 7)
    value_size = size if past or d.chance(0.7) else 2 * d.number(1, 4)
    q, k, v = (d.floats((batch, n, heads * s)) for n, s in ((queries, size), (keys, size), (keys, value_size)))
    inputs: list[Any] = [q, k, v, d.optional(d.floats((heads * (2 * size + value_size),)))]
    total = past + keys
    masks = (None, None, d.rng.integers(1, total + 1, batch), d.rng.integers(0, 2, (batch, total)),
             d.rng.integers(0, 2, (batch, queries, total)))  # fmt: skip
    mask = d.pick(*masks)
    inputs.append(None if mask is None or past else mask.astype(np.int32))
    inputs.append(d.optional(d.floats((d.pick(1, batch), d.pick(1, heads), queries, total)), 0.4))
    if past:
        room = d.number(0, 3) if d.chance(0.3) else None
        length = past if room is None else total + room
        inputs += [d.floats((batch, heads, length, size)), d.floats((batch, heads, length, size))]
        if room is not None:
            beams = d.rng.integers(0, batch, (1, batch, length)).astype(np.int32)
            inputs += [
                np.array([past], np.int32),
                d.optional(beams) if inputs[5] is None or len(inputs[5]) == 1 else None,
            ]
    attributes = {"num_heads": heads, "unidirectional": d.pick(0, 1)}
    if d.chance(0.3):
        attributes["scale"] = 0.3
    if d.chance(0.3):
        attributes["mask_filter_value"] = -100.0
    return Case(trimmed(inputs), attributes, 3 if past else d.pick(1, 1, 3))


def attention(d: Draw) -> Case:
    batch, heads, length, size = d.number(1, 3), d.number(1, 3), d.number(1, 5), d.number(1, 5)
    width, hidden = d.number(1, 9), heads * size
    past = d.number(1, 3) if d.chance(0.3) else 0
    value = hidden if past or d.chance(0.7) else heads * d.number(1, 5)
    total = past + length
    masks = (None, d.rng.integers(1, total + 1, batch), d.rng.integers(0, 2, (batch, total)),
             d.rng.integers(0, 2, (batch, length, total)))  # fmt: skip
    mask = d.pick(*masks)
    # Without a bias onnxruntime may end the process.
    inputs = [d.floats((batch, length, width)), d.floats((width, 2 * hidden + value)), d.floats((2 * hidden + value,)),
              None if mask is None else mask.astype(np.int32)]  # fmt: skip
    inputs.append(d.floats((2, batch, heads, past, size)) if past else None)
    inputs.append(None if past else d.optional(d.floats((d.pick(1, batch), d.pick(1, heads), length, total)), 0.3))
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": d.pick(0, 1)}
    if value != hidden:
        attributes["qkv_hidden_sizes"] = [hidden, hidden, value]
    if d.chance(0.3):
        attributes["scale"] = 0.3
    if d.chance(0.3):
        attributes["mask_filter_value"] = -100.0
    return Case(trimmed(inputs), attributes, 2 if past else 1)


def group_query_attention(d: Draw) -> Case:
    batch, shared, rotary = d.number(1, 3), d.number(1, 2), d.chance()
    size = d.pick(16, 32) if rotary else d.number(1, 9) * 8
    heads, dtype = shared * d.number(1, 3), d.pick(F32, F32, np.float16)
    past = d.number(1, 5) if d.chance() else 0
    length = 1 if past and batch > 1 else d.number(1, 5)
    # Entries of a batch may be shorter than the longest.
    totals = [past + length - (d.number(0, past or length - 1) if d.chance(0.3) else 0) for _ in range(batch)]
    totals[0] = past + length
    packed = d.chance(0.3)
    q, k, v = (d.floats((batch, length, n * size), dtype) for n in (heads, shared, shared))
    inputs = [np.concatenate([q, k, v], axis=2), None, None] if packed else [q, k, v]
    inputs += [d.floats((batch, shared, past, size), dtype) for _ in range(2)] if past else [None, None]
    inputs += [np.array(totals, np.int32) - 1, np.array(past + length, np.int32)]
    inputs += [d.floats((past + length + 2, size // 2), dtype) for _ in range(2)] if rotary else [None, None]
    places = d.rng.integers(0, past + length, (batch, length)).astype(np.int64)
    inputs.append(d.optional(places, 0.3) if rotary and (past or length == 1) else None)
    inputs.append(d.optional(d.floats((d.pick(1, batch), d.pick(1, heads), length, past + length), dtype), 0.3))
    inputs.append(d.optional(d.floats((heads,), dtype), 0.2))
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared}
    if rotary:
        attributes |= {"do_rotary": 1, "rotary_interleaved": d.pick(0, 1)}
    for name, value in (("scale", 0.3), ("softcap", 2.0), ("local_window_size", d.number(1, 4))):
        if d.chance(0.3):
            attributes[name] = value
    if inputs[-1] is None and d.chance(0.2):
        attributes["smooth_softmax"] = 1
    if d.chance(0.2) and "local_window_size" not in attributes:
        attributes["causal"] = 0
    if not past and len(set(totals)) > 1:
        attributes.pop("local_window_size", None)  # rows behind an entry's end would see nothing
    return Case(trimmed(inputs), attributes, 3)


def cdist(d: Draw) -> Case:
    features, dtype = d.number(1, 20), d.pick(F32, np.float64)
    a, b = (d.floats((d.number(1, 9), features), dtype) for _ in range(2))
    return Case([a, b], {"metric": d.pick("euclidean", "sqeuclidean")})


def tokenizer(d: Draw) -> Case:
    texts = [
        d.pick("a cat, a dog", "", "one", "x  y;z", "\u00e9t\u00e9 \u00e0 a1_b", ";;", "ab;cd ef")
        for _ in range(d.number(1, 6))
    ]
    x = np.array(texts, object).reshape(d.pick((-1,), (-1, 1), (1, -1)))
    split, shortest = d.pick(
        ({"tokenexp": "[a-z0-9_]+"}, 2), ({"tokenexp": "."}, 1), ({"separators": [" "]}, 2), ({"separators": [";", " +"]}, 2),
        ({"separators": [""]}, 1),
    )  # fmt: skip
    return Case([x], {**split, "mark": d.pick(0, 1), "mincharnum": d.pick(1, shortest), "pad_value": d.pick("#", "")})


OPERATORS: dict[str, Operator] = {
    "Attention": Operator(attention, Tolerance(1e-3, 1e-3)),
    "BiasGelu": Operator(biased(1.0)),
    "CDist": Operator(cdist, Tolerance(1e-3, 1e-3)),
    "EmbedLayerNormalization": Operator(embed_layer_normalization, Tolerance(1e-4, 1e-4)),
    "FastGelu": Operator(biased(0.5)),
    "FusedConv": Operator(fused_conv, Tolerance(1e-4, 1e-4)),
    "FusedGemm": Operator(fused_gemm, Tolerance(1e-4, 1e-5)),
    "FusedMatMul": Operator(fused_matmul, Tolerance(1e-4, 1e-5)),
    "Gelu": Operator(unary()),
    "GroupQueryAttention": Operator(group_query_attention, Tolerance(3e-3, 3e-3)),
    "MultiHeadAttention": Operator(multi_head_attention, Tolerance(1e-3, 1e-3)),
    "QuickGelu": Operator(unary(lambda d: {"alpha": d.pick(1.702, 1.0, -0.5)})),
    "RotaryEmbedding": Operator(rotary_embedding, Tolerance(2e-3, 2e-3)),
    "SimplifiedLayerNormalization": Operator(simplified_layer_normalization, domain=""),
    "SkipLayerNormalization": Operator(skip_layer_normalization, Tolerance(3e-3, 3e-3)),
    "SkipSimplifiedLayerNormalization": Operator(skip_simplified_layer_normalization, Tolerance(3e-3, 3e-3)),
    "Tokenizer": Operator(tokenizer),
    "TransposeMatMul": Operator(transpose_matmul, Tolerance(1e-4, 1e-5)),
}
