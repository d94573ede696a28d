"""Random cases of operators of com.microsoft: forms of standard operators, and parts of decoders of language models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from draw import F32, Case, Draw, Operator, Tolerance, trimmed

from tests.arrays import i64

HALF = (F32, np.float16)


# ---------------------------------------------------------------------- forms of standard operators


def pad(d: Draw) -> Case:
    shape = d.shape(1, 4, 5)
    mode = d.pick("constant", "constant", "reflect", "edge")
    pads = [d.number(-1 if mode == "constant" and n > 2 else 0, min(2, n - 1)) for n in (*shape, *shape)]
    amounts = i64(*pads)
    value = d.optional(d.floats(d.pick((), (1,)))) if mode == "constant" else None
    return Case(trimmed([d.floats(shape), amounts[None] if d.chance() else amounts, value]), {"mode": mode})


def trilu(d: Draw) -> Case:
    x = d.floats((*d.shape(0, 2, 3), d.number(0, 4), d.number(1, 4)), d.pick(F32, np.float64))
    x = x if d.chance(0.7) else (9 * x).astype(np.int64)
    return Case(trimmed([x, d.optional(np.array(d.number(-5, 5), np.int64))]), {"upper": d.pick(0, 1)})


def gather_nd(d: Draw) -> Case:
    shape, dtype = d.shape(1, 4, 5), d.pick(F32, np.float16, np.uint8, np.int64, bool)
    depth = d.number(1, len(shape))
    indices = [d.rng.integers(-n, n, d.pick((), (3,), (0,), (2, 2))) for n in shape[:depth]]
    at = np.stack(np.broadcast_arrays(indices[0], *[i.reshape(-1)[:1] if i.size else 0 for i in indices[1:]]), axis=-1)
    return Case([(9 * d.floats(shape)).astype(dtype), at.astype(d.pick(np.int32, np.int64))])


def range_(d: Draw) -> Case:
    dtype, shape = d.pick(F32, np.float64, np.int16, np.int32, np.int64), d.pick((), (1,))
    start, limit, delta = (np.full(shape, n, dtype) for n in (d.number(-5, 5), d.number(-9, 9), d.pick(-2, -1, 1, 3)))
    return Case(trimmed([start, limit, d.optional(delta)]))


def grid_sample(d: Draw) -> Case:
    x = d.floats((d.number(1, 2), d.number(1, 3), d.number(1, 5), d.number(1, 5)))
    grid = d.rng.uniform(-1.5, 1.5, (len(x), d.number(1, 3), d.number(1, 3), 2)).astype(F32)
    mode, padding = d.pick("bilinear", "nearest", "bicubic"), d.pick("zeros", "border", "reflection")
    return Case([x, grid], {"mode": mode, "padding_mode": padding, "align_corners": d.pick(0, 1)})


def expand_dims(d: Draw) -> Case:
    x = d.floats(d.shape(0, 4), d.pick(*HALF, np.float64))
    return Case([x, np.array(d.number(-x.ndim - 1, x.ndim), np.int32).reshape(d.pick((), (1,)))])


def inverse(d: Draw) -> Case:
    n = d.number(1, 4)
    x = d.floats((*d.shape(0, 2, 3), n, n), F32, 0.2) + 2 * np.eye(n)
    return Case([x.astype(d.pick(*HALF, np.float64))])


def unique(d: Draw) -> Case:
    return Case([d.rng.integers(0, 9, d.number(0, 20)).astype(F32)], {}, 3)


def unfold_tensor(d: Draw) -> Case:
    shape = d.shape(1, 4)
    dim = d.number(-len(shape), len(shape) - 1)
    x = d.floats(shape, d.pick(F32, np.float64))
    return Case([x], {"dim": dim, "size": d.number(1, shape[dim]), "step": d.number(1, 3)})


def matmul_integer16(d: Draw) -> Case:
    m, k, n = d.number(1, 5), d.number(1, 50), d.number(1, 5)
    return Case([d.codes((*d.shape(0, 2, 3), m, k), np.int16), d.codes((k, n), np.int16)])


def conv_transpose(d: Draw) -> Case:
    group, kernel = d.pick(1, 1, 2), (d.number(1, 3), d.number(1, 3))
    channels, each = group * d.number(1, 3), d.number(1, 3)
    x = d.floats((d.number(1, 2), channels, d.number(3, 5), d.number(3, 5)))
    pads = i64(*(d.number(0, k - 1) for k in (*kernel, *kernel)))
    attributes = {"group": group, "kernel_shape": kernel, "strides": [d.number(1, 2), d.number(1, 2)]}
    return Case(
        trimmed([x, d.floats((channels, each, *kernel)), pads, d.optional(d.floats((group * each,)))]), attributes
    )


# ---------------------------------------------------------------------- decoders of language models


def decoder_masked_attention(d: Draw) -> Case:
    beams, heads, size, past = d.number(1, 2), d.number(1, 3), 2 * d.number(1, 4), d.number(0, 4)
    batch, total = beams * d.number(1, 2), past + 1
    most = total + d.number(0, 3)
    q, k, v = (d.floats((batch, 1, heads * size)) for _ in range(3))
    bias = d.optional(d.floats((3 * heads * size,)), 0.3)
    attributes: dict[str, Any] = {"num_heads": heads}
    if d.chance(0.3):
        attributes |= {"scale": 0.3, "mask_filter_value": -100.0}
    if d.chance(0.2):
        keys, values = (d.floats((batch, heads, total, size)) for _ in range(2))
        mask = d.optional(d.rng.integers(0, 2, (batch, total)).astype(np.int32))
        return Case(trimmed([q, keys, values, mask, None, None, None, None, None, None, bias]), attributes)
    mask = d.rng.integers(0, 2, (batch, total)).astype(np.int32)
    scores = d.floats(
        (1, d.pick(1, heads), 1, total)
    )  # of several batch entries, beams read the wrong ones in onnxruntime
    cache = [d.floats((batch, heads, most, size)) for _ in range(2)]
    inputs = [q, k, v, mask, scores, *cache, np.array([past], np.int32)]
    if beams == 1:
        inputs[3], inputs[4] = d.optional(mask), d.optional(scores)
    else:
        from_beams = d.rng.integers(0, beams, (batch // beams, beams, most)).astype(np.int32)
        inputs += [np.array([beams], np.int32), from_beams]
    inputs += [None] * (10 - len(inputs)) + [bias]
    return Case(trimmed(inputs), {**attributes, "past_present_share_buffer": 1}, 3)


def causal_conv(d: Draw) -> Case:
    batch, channels, length, taps = d.number(1, 2), 2 * d.number(1, 3), d.number(1, 5), d.number(1, 4)
    dilation, last = d.number(1, 2), d.pick(0, 1)
    state = (taps - 1) * dilation
    shapes = [(batch, n, 2, channels // 2) if last else (batch, channels, n) for n in (length, state)]
    inputs = [d.floats(shapes[0]), d.floats((channels, 1, taps)), d.optional(d.floats((channels,)))]
    activation = d.pick("none", "silu", "swish")
    attributes = {"activation": activation, "channels_last": last, "dilation": dilation}
    return Case(trimmed([*inputs, d.optional(d.floats(shapes[1]))]), attributes, 2)


def linear_attention(d: Draw) -> Case:
    batch, length, width, size = d.number(1, 2), d.number(1, 4), d.number(1, 4), d.number(1, 4)
    queries, keys, values = d.pick((2, 2, 2), (4, 2, 2), (2, 2, 4), (1, 1, 3), (2, 1, 2))
    rule = d.pick("linear", "gated", "delta", "gated_delta")
    by_key, by_head = d.pick(1, width), d.pick(1, values)
    inputs = [d.floats((batch, length, n)) for n in (queries * width, keys * width, values * size)]
    inputs.append(d.optional(d.floats((batch, values, width, size))))
    inputs.append(-d.positive((batch, length, values * by_key)) if "gated" in rule else None)
    inputs.append(d.positive((batch, length, by_head)) if "delta" in rule else None)
    attributes = {"q_num_heads": queries, "kv_num_heads": values, "update_rule": rule, "scale": d.pick(0.0, 0.7)}
    return Case(trimmed(inputs), attributes, 2)


def gated_delta_net(d: Draw) -> Case:
    dtype, rule, activation = d.pick(*HALF), d.pick("linear", "gated", "delta", "gated_delta"), "none"
    batch, shared, width, size = d.number(1, 3), d.number(1, 2), d.number(1, 4), d.number(1, 4)
    heads, by_key = shared * d.number(1, 2), d.pick(1, width)
    lengths = [d.number(1, 4)] * batch if d.chance() else [d.number(1, 4) for _ in range(batch)]
    tokens, state = sum(lengths), d.floats((batch, heads, size, width))
    parts = [d.floats((tokens, n, k), dtype) for n, k in ((shared, width), (shared, width), (heads, size))]
    inputs: list[Any] = [*parts, np.cumsum([0, *lengths]).astype(np.int32), None, None, state]
    if d.chance(0.3):
        inputs[:3] = [np.concatenate([x.reshape(tokens, -1) for x in parts], axis=-1), None, None]
    if "gated" in rule:
        inputs[4] = -d.positive((tokens, heads, by_key) if by_key > 1 else (tokens, heads))
        activation = d.pick("none", "softplus", "sigmoid")
    if "delta" in rule:
        inputs[5] = d.positive((tokens, heads))
    if activation != "none":
        inputs += [d.floats((heads,)), d.floats((heads, by_key) if by_key > 1 else (heads,))]
    attributes = {"update_rule": rule, "gate_activation": activation, "beta_activation": d.pick("none", "sigmoid")}
    return Case(inputs, {**attributes, "qk_l2_norm": 1 if "delta" in rule else d.pick(0, 1)}, 2)


def linear_attention_gate(d: Draw) -> Case:
    dtype, shape = d.pick(*HALF), (d.number(1, 2), d.number(1, 4), d.number(1, 5))
    inputs = [d.floats(shape, dtype, 5.0), d.floats(shape[-1:]), d.floats(shape[-1:])]
    return Case([*inputs, d.floats(shape, dtype)], {}, 2) if d.chance() else Case(inputs)


def m_rotary_embedding(d: Draw) -> Case:
    batch, length, heads, sections = d.number(1, 2), d.number(1, 4), d.number(1, 3), [d.number(0, 3) for _ in range(3)]
    layout, dtype = d.pick(0, 1), d.pick(*HALF)
    sections = sections if not layout else [d.number(1, 3)] * 3
    half = sum(sections)
    if not half:
        sections, half = [0, 2, 0], 2
    size = 2 * half + d.pick(0, 2)
    x = d.floats((batch, heads, length, size) if d.chance() else (batch, length, heads * size), dtype)
    caches = [d.floats((9, half), dtype) for _ in range(2)]
    attributes = {"mrope_section": sections, "mrope_layout": layout, "interleaved": d.pick(0, 1), "num_heads": heads}
    attributes |= {"rotary_embedding_dim": 2 * half, "scale": d.pick(1.0, 2.0)}
    return Case([x, d.rng.integers(0, 9, (3, batch, length)), *caches], attributes)


def gated_rms_norm(d: Draw) -> Case:
    dtype, size = d.pick(*HALF), d.number(1, 5)
    shape = (*d.shape(1, 2, 4), size * d.number(1, 3))
    kind = d.pick("silu", "swish", "sigmoid")
    return Case([d.floats(shape, dtype), d.floats((size,), dtype), d.floats(shape, dtype)], {"activation": kind})


def gated_add(d: Draw) -> Case:
    dtype, shape = d.pick(*HALF), d.shape(1, 4)
    return Case([d.floats(shape, dtype), d.floats(shape, dtype), d.floats((*shape[:-1], 1), dtype)])


def experts(d: Draw, width: int, inner: int) -> tuple[Any, Any, int, dict[str, Any]]:
    """Tokens, scores of the router, the rows of the first weights, and attributes."""
    tokens, count = d.pick((5,), (2, 3)), d.number(2, 5)
    kind = d.pick("relu", "gelu", "silu", "identity", "swiglu")
    attributes = {"activation_type": kind, "k": d.number(1, 2), "normalize_routing_weights": d.pick(0, 1)}
    if kind == "swiglu":
        attributes |= {"swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 0.5, "swiglu_limit": 1.0}
    rows = 2 * inner if kind == "swiglu" else inner
    return d.floats((*tokens, width)), d.floats((int(np.prod(tokens)), count)), rows, attributes


def moe(d: Draw) -> Case:
    width, inner = d.number(1, 6), d.number(1, 6)
    x, router, rows, attributes = experts(d, width, inner)
    count = router.shape[1]
    biases = [d.optional(d.floats((count, n))) for n in (rows, width)]
    weights = [d.floats((count, rows, width)), d.floats((count, width, inner))]
    return Case(trimmed([x, router, weights[0], biases[0], weights[1], biases[1]]), attributes)


def qmoe(d: Draw) -> Case:
    width, inner, bits, block = 32, 64, d.pick(2, 4, 8), d.pick(0, 0, 16, 32)
    x, router, rows, attributes = experts(d, width, inner)
    count, dtype = router.shape[1], d.pick(*HALF)
    shapes, zeros = ((rows, width), (width, inner)), d.chance()

    def packed(n: int, k: int) -> Any:
        return d.codes((count, n, k * bits // 8), np.uint8)

    def scale(n: int, k: int) -> Any:
        return d.positive((count, n, k // block) if block else (count, n), 0.01, 0.05, dtype)

    def zero(n: int, k: int) -> Any:
        return d.codes((count, n, -(-k // block * bits // 8)) if block else (count, -(-n * bits // 8)), np.uint8)

    inputs = [x.astype(dtype), router.astype(dtype)]
    for shape in shapes:
        inputs += [packed(*shape), scale(*shape), d.optional(d.floats((count, shape[0]), dtype))]
    inputs += [None] * 3 + ([zero(*shape) for shape in shapes] if zeros else [None] * 2) + [None]
    inputs.append(d.optional(d.positive(router.shape, dtype=dtype)))
    return Case(trimmed(inputs), {**attributes, "expert_weight_bits": bits, **({"block_size": block} if block else {})})


def ngram_repeat_block(d: Draw) -> Case:
    batch, words = d.number(1, 3), d.number(2, 5)
    ids = d.rng.integers(0, words, (batch, d.number(1, 12)))
    return Case([ids, d.floats((batch, words))], {"ngram_size": d.number(1, 3)})


def of_half(draw: Callable[[Draw], Case]) -> Operator:
    return Operator(draw, Tolerance(3e-3, 3e-3))


OPERATORS: dict[str, Operator] = {
    "CausalConvWithState": Operator(causal_conv),
    "ConvTransposeWithDynamicPads": Operator(conv_transpose),
    "DecoderMaskedMultiHeadAttention": Operator(decoder_masked_attention, Tolerance(1e-3, 1e-3)),
    "ExpandDims": Operator(expand_dims),
    "GatedAdd": Operator(gated_add),
    "GatedDeltaNet": of_half(gated_delta_net),
    "GatedRMSNorm": of_half(gated_rms_norm),
    "GatherND": Operator(gather_nd),
    "GridSample": Operator(grid_sample),
    "Inverse": of_half(inverse),
    "LinearAttention": Operator(linear_attention),
    "LinearAttentionGate": of_half(linear_attention_gate),
    "MRotaryEmbedding": of_half(m_rotary_embedding),
    "MatMulInteger16": Operator(matmul_integer16),
    "MoE": Operator(moe),
    "NGramRepeatBlock": Operator(ngram_repeat_block),
    "Pad": Operator(pad),
    "QMoE": Operator(qmoe, Tolerance(1e-2, 1e-2)),
    "Range": Operator(range_),
    "Trilu": Operator(trilu),
    "UnfoldTensor": Operator(unfold_tensor),
    "Unique": Operator(unique),
}
