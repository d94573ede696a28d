"""Random cases of operators on integers and packed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from draw import EIGHT_BITS, F32, Case, Draw, Operator, Tolerance, geometry, trimmed


def quantized_binary(d: Draw) -> Case:
    dtype = d.pick(*EIGHT_BITS)
    a = d.shape(0, 4)
    b = d.broadcastable(a)
    if d.chance():
        a, b = b, a
    parameters = [(d.positive((), 0.01, 0.2), d.zero(dtype)) for _ in range(3)]
    (sa, za), (sb, zb), (sc, zc) = parameters
    return Case([d.codes(a, dtype), sa, za, d.codes(b, dtype), sb, zb, sc, zc])


def quantized_unary(attributes: Callable[[Draw], dict[str, Any]] = lambda d: {}) -> Callable[[Draw], Case]:
    def draw(d: Draw) -> Case:
        dtype = d.pick(*EIGHT_BITS)
        inputs = [d.codes(d.shape(0, 4), dtype), d.positive((), 0.01, 0.2), d.optional(d.zero(dtype), 0.9)]
        # Without the last zero point onnxruntime ends the process.
        return Case([*inputs, d.positive((), 0.004, 0.1), d.zero(dtype)], attributes(d))

    return draw


def quantized_concat(d: Draw) -> Case:
    dtype, shape = d.pick(*EIGHT_BITS), list(d.shape(1, 4))
    axis = d.number(0, len(shape) - 1)
    parts = []
    for _ in range(d.number(1, 4)):
        shape[axis] = d.number(1, 5)
        parts += [d.codes(shape, dtype), d.positive((), 0.01, 0.2), d.zero(dtype)]
    attributes = {"axis": d.pick(axis, axis - len(shape))}
    return Case([d.positive((), 0.01, 0.2), d.zero(dtype), *parts], attributes)


def quantized_where(d: Draw) -> Case:
    dtype, shape = d.pick(*EIGHT_BITS), d.shape(1, 4)
    x, y = (d.codes(d.pick(shape, d.broadcastable(shape)), dtype) for _ in range(2))
    parameters = [v for _ in range(3) for v in (d.positive((), 0.02, 0.1), d.zero(dtype))]
    condition = d.rng.random(shape) > 0.5
    return Case([condition, x, *parameters[:2], y, *parameters[2:4], *parameters[4:]])


def quantized_softmax(d: Draw) -> Case:
    dtype, shape = d.pick(*EIGHT_BITS), [1 + n for n in d.shape(1, 4, 11)]
    lowest = np.iinfo(dtype).min
    scale, zero = d.pick((1 / 255, 0), (1 / 200, 50), (1 / 100, 150))
    inputs = [d.codes(shape, dtype), d.positive((), 0.01, 0.2), d.optional(d.zero(dtype))]
    inputs += [np.array(scale, F32), np.array(lowest + zero, dtype)]
    return Case(inputs, {"axis": d.number(-len(shape), len(shape) - 1), "opset": d.pick(9, 11, 13, 17)})


def quantized_pool(d: Draw) -> Case:
    dtype, rank = d.pick(*EIGHT_BITS), d.number(1, 3)
    kernel = [d.number(1, 3) for _ in range(rank)]
    last = d.pick(0, 1)
    spatial = [d.number(6, 9) for _ in range(rank)]
    x = d.codes([d.number(1, 2), *spatial, 3] if last else [d.number(1, 2), 3, *spatial], dtype)
    attributes = {"kernel_shape": kernel, **geometry(d, rank, kernel), "channels_last": last}
    attributes.pop("dilations", None)
    # With both, onnxruntime divides by the size of a window of which a part lies beyond the padding.
    attributes[d.pick("count_include_pad", "ceil_mode")] = d.pick(0, 1)
    parameters = [d.positive((), 0.02, 0.1), d.zero(dtype), d.positive((), 0.02, 0.1), d.zero(dtype)]
    return Case([x, *parameters], attributes)


def quantized_global_pool(d: Draw) -> Case:
    dtype, last = d.pick(*EIGHT_BITS), d.pick(0, 1)
    x = d.codes([d.number(1, 3) for _ in range(2)] + [d.number(1, 9) for _ in range(d.number(1, 3))], dtype)
    parameters = [d.positive((), 0.02, 0.1), d.zero(dtype), d.positive((), 0.02, 0.1), d.zero(dtype)]
    return Case([x, *parameters], {"channels_last": last})


def quantized_conv(d: Draw) -> Case:
    (tx, tw), rank = d.types(), d.number(1, 3)
    group, last = d.pick(1, 1, 2, 3), d.chance(0.3)
    kernel = [d.number(1, 3) for _ in range(rank)]
    per_group = d.number(1, 4)
    out = group * d.number(1, 4)
    shape = [d.number(1, 2), group * per_group, *(d.number(6, 8) for _ in range(rank))]
    x, w = d.codes(shape, tx), d.codes([out, per_group, *kernel], tw)
    if last:
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    scales = d.positive((out,) if d.chance() else (), 0.01, 0.1)
    zero = np.zeros(scales.shape, tw) if tw is np.int8 and d.chance() else np.full(scales.shape, d.zero(tw))
    y_scale = d.positive((), 1.0, 4.0) * np.sqrt(w[0].size, dtype=F32)
    bias = d.optional(d.rng.integers(-5000, 5000, out).astype(np.int32))
    inputs = [x, d.positive((), 0.02, 0.1), d.zero(tx), w, scales, zero, np.asarray(y_scale, F32), d.zero(tx), bias]
    return Case(trimmed(inputs), {"group": group, "channels_last": int(last), **geometry(d, rank, kernel)})


def quantized_gemm(d: Draw) -> Case:
    (ta, tb), (m, k, n) = d.types(), (d.number(1, 9), d.number(1, 70), d.number(1, 9))
    trans_a, trans_b = d.pick(0, 1), d.pick(0, 1)
    a, b = d.codes((k, m) if trans_a else (m, k), ta), d.codes((n, k) if trans_b else (k, n), tb)
    columns = (n,) if d.chance() else ()
    c = d.rng.integers(-5000, 5000, d.pick((n,), (1, n), (m, n), (m, 1), (1, 1))).astype(np.int32)
    inputs = [a, d.positive((), 0.02, 0.1), d.zero(ta), b, d.positive(columns, 0.01, 0.1), d.zero(tb, columns)]
    inputs.append(d.optional(c))
    if d.chance():
        inputs += [np.asarray(d.positive((), 1, 3) * np.sqrt(k), F32), d.zero(ta)]
    return Case(trimmed(inputs), {"alpha": d.pick(1.0, 0.5, 1.7), "transA": trans_a, "transB": trans_b})


def matmul_operands(d: Draw, low: int = 1, wide: int = 70) -> tuple[tuple[int, ...], tuple[int, ...]]:
    m, k, n = d.number(low, 9), d.number(1, wide), d.number(1, 9)
    batch = d.shape(0, 2, 3)
    return (*batch, m, k), (k, n) if d.chance() else (*batch, k, n)


def integer_to_float(d: Draw) -> Case:
    (ta, tb), (a, b) = d.types(), matmul_operands(d)
    columns = (b[-1],) if d.chance() and len(b) == 2 else ()
    inputs = [d.codes(a, ta), d.codes(b, tb), d.positive((), 0.01, 0.1), d.positive(columns, 0.01, 0.1)]
    inputs += [d.optional(d.zero(ta)), d.optional(d.zero(tb, columns)), d.optional(d.floats(b[-1:]))]
    return Case(trimmed(inputs))


def dynamic_quantize_matmul(d: Draw) -> Case:
    a, b = matmul_operands(d)
    tb = d.pick(*EIGHT_BITS)
    columns = (b[-1],) if d.chance() and len(b) == 2 else ()
    x = d.floats(a, spread=d.pick(0.1, 1.0, 30.0)) + F32(d.pick(0, 0, 5))
    inputs = [x, d.codes(b, tb), d.positive(columns, 0.01, 0.1), d.optional(d.zero(tb, columns))]
    return Case(trimmed([*inputs, d.optional(d.floats(b[-1:]))]))


def matmul_nbits(d: Draw) -> Case:
    bits, block = d.pick(2, 4, 4, 8), d.pick(16, 32, 64, 128)
    n, k, dtype = d.number(1, 9), d.number(1, 150), d.pick(F32, F32, np.float16)
    blocks = -(-k // block)
    a = d.floats((*d.shape(1, 2, 4), k), dtype)
    b = d.codes((n, blocks, block * bits // 8), np.uint8)
    scales = d.positive((n, blocks), 0.01, 0.1, dtype)
    packed = d.codes((n, -(-blocks * bits // 8)), np.uint8)
    zero = d.pick(None, packed, d.positive((n, blocks), 0, 1 << bits, dtype) if bits == 4 else packed)
    bias = d.optional(d.floats((n,), dtype), 0.3)
    return Case(trimmed([a, b, scales, zero, None, bias]), {"K": k, "N": n, "bits": bits, "block_size": block})


def qattention(d: Draw) -> Case:
    batch, heads, length, size, width = d.number(1, 3), d.number(1, 3), d.number(1, 5), d.number(1, 5), d.number(1, 9)
    tw, hidden = d.pick(*EIGHT_BITS), heads * size
    past = d.number(1, 3) if d.chance(0.3) else 0
    total = past + length
    mask = d.pick(None, d.rng.integers(1, total + 1, batch), d.rng.integers(0, 2, (batch, total)))
    columns = (3 * hidden,) if d.chance(0.3) else ()
    inputs = [d.codes((batch, length, width), np.uint8), d.codes((width, 3 * hidden), tw), d.floats((3 * hidden,))]
    inputs += [d.positive((), 0.005, 0.02), d.positive(columns, 0.005, 0.02)]
    inputs += [None if mask is None else mask.astype(np.int32), d.zero(np.uint8), d.zero(tw, columns)]
    inputs.append(d.floats((2, batch, heads, past, size)) if past else None)
    attributes = {"num_heads": heads, "unidirectional": d.pick(0, 1)}
    return Case(trimmed(inputs), attributes, 2 if past else 1)


def qembed_layer_normalization(d: Draw) -> Case:
    batch, length, n, dtype = d.number(1, 3), d.number(1, 6), d.number(2, 20), d.pick(*EIGHT_BITS)
    segments = d.chance()
    tables = [d.codes((11, n), dtype), d.codes((9, n), dtype), d.codes((2, n), dtype), *d.codes((2, n), dtype)]
    scales = [d.positive((), 0.01, 0.1) for _ in tables]
    zeros = [d.zero(dtype) for _ in tables]
    if not segments:
        tables[2] = scales[2] = zeros[2] = None
    ids, kinds = (d.rng.integers(0, most, (batch, length)).astype(np.int32) for most in (9, 2))
    mask = d.optional(d.rng.integers(0, 2, (batch, length)).astype(np.int32))
    return Case([ids, kinds if segments else None, *tables, mask, *scales, *zeros], {"epsilon": 1e-6}, 2)


def dynamic_quantize_lstm(d: Draw) -> Case:
    length, batch, width, hidden = d.number(1, 4), d.number(1, 3), d.number(1, 6), d.number(1, 6)
    direction = d.pick("forward", "reverse", "bidirectional")
    n, tw = 2 if direction == "bidirectional" else 1, d.pick(*EIGHT_BITS)
    columns = (n, 4 * hidden) if d.chance(0.4) else (n,)
    state = [d.optional(d.floats((n, batch, hidden))) for _ in range(2)]
    inputs = [
        d.floats((length, batch, width)),
        d.codes((n, width, 4 * hidden), tw),
        d.codes((n, hidden, 4 * hidden), tw),
    ]
    inputs += [d.optional(d.floats((n, 8 * hidden))), None, *state, d.optional(d.floats((n, 3 * hidden)), 0.3)]
    for _ in range(2):
        inputs += [d.positive(columns, 0.002, 0.01), np.zeros(columns, tw)]
    return Case(inputs, {"hidden_size": hidden, "direction": direction, "input_forget": d.pick(0, 0, 1)}, 3)


def gather_block_quantized(d: Draw) -> Case:
    bits, block, dtype = d.pick(2, 4, 4, 8), d.pick(16, 32), d.pick(F32, np.float16)
    rows, columns = d.number(1, 9), 8 * d.number(1, 9)
    blocks = -(-columns // block)
    data = d.codes((rows, columns * bits // 8), np.uint8)
    zero = d.optional(d.codes((rows, -(-blocks * bits // 8)), np.uint8))
    indices = d.rng.integers(-rows, rows, d.shape(0, 3, 4)).astype(d.pick(np.int32, np.int64))
    attributes = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": d.pick(1, -1)}
    return Case(trimmed([data, np.asarray(indices), d.positive((rows, blocks), 0.01, 0.1, dtype), zero]), attributes)


def matmul_bnb4(d: Draw) -> Case:
    n, k, block = d.number(1, 20), d.number(1, 40), d.pick(16, 32, 64)
    a = d.floats((*d.shape(1, 2, 4), k))
    b = d.codes((-(-n * k // 2),), np.uint8)
    attributes = {"K": k, "N": n, "block_size": block, "quant_type": d.pick(0, 1), "transB": 1}
    return Case([a, b, d.positive((-(-n * k // block),))], attributes)


def quantize(d: Draw) -> Case:
    shape, dtype = d.shape(1, 4), d.pick(np.uint8, np.int8, np.uint16, np.int16)
    axis = d.number(0, len(shape) - 1)
    size = (shape[axis],) if d.chance() else ()
    return Case([d.floats(shape, spread=5.0), d.positive(size, 0.01, 0.1), d.zero(dtype, size)], {"axis": axis})


def dequantize(d: Draw) -> Case:
    shape, dtype = d.shape(1, 4), d.pick(np.uint8, np.int8, np.uint16, np.int16, np.int32)
    axis = d.number(0, len(shape) - 1)
    size = (shape[axis],) if d.chance() else ()
    zero = np.zeros(size, dtype) if dtype is np.int32 else d.zero(dtype, size)
    return Case([d.codes(shape, dtype), d.positive(size, 0.01, 0.1), d.optional(zero, 0.8)], {"axis": axis})


def channels_last_max_pool(d: Draw) -> Case:
    rank = d.number(1, 3)
    kernel = [d.number(1, 3) for _ in range(rank)]
    x = d.codes([d.number(1, 2), *(d.number(6, 9) for _ in range(rank)), d.number(1, 5)], d.pick(*EIGHT_BITS))
    attributes = {"kernel_shape": kernel, **geometry(d, rank, kernel)}
    if d.chance(0.3):
        attributes["ceil_mode"] = 1
    return Case([x], attributes)


OPERATORS: dict[str, Operator] = {
    "DequantizeLinear": Operator(dequantize),
    "DynamicQuantizeLSTM": Operator(dynamic_quantize_lstm, Tolerance(1e-2, 1e-2)),
    "DynamicQuantizeMatMul": Operator(dynamic_quantize_matmul, Tolerance(1e-4, 1e-3)),
    "GatherBlockQuantized": Operator(gather_block_quantized),
    "MatMulBnb4": Operator(matmul_bnb4),
    "MatMulIntegerToFloat": Operator(integer_to_float, Tolerance(1e-4, 1e-3)),
    "MatMulNBits": Operator(matmul_nbits, Tolerance(2e-3, 2e-2)),
    "NhwcMaxPool": Operator(channels_last_max_pool),
    "QAttention": Operator(qattention, Tolerance(1e-3, 1e-3)),
    "QEmbedLayerNormalization": Operator(qembed_layer_normalization, Tolerance(1e-4, 1e-4)),
    "QGemm": Operator(quantized_gemm, Tolerance(1e-5, 1e-4)),
    "QLinearAdd": Operator(quantized_binary),
    "QLinearAveragePool": Operator(quantized_pool),
    "QLinearConcat": Operator(quantized_concat),
    "QLinearConv": Operator(quantized_conv),
    "QLinearGlobalAveragePool": Operator(quantized_global_pool),
    "QLinearLeakyRelu": Operator(quantized_unary(lambda d: {"alpha": d.pick(0.01, 0.3)})),
    "QLinearMul": Operator(quantized_binary),
    "QLinearSigmoid": Operator(quantized_unary()),
    "QLinearSoftmax": Operator(quantized_softmax),
    "QLinearWhere": Operator(quantized_where),
    "QuantizeLinear": Operator(quantize),
}
