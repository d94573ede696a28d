"""Random cases of operators of com.microsoft: shapes, types and attributes within what onnxruntime's CPU kernels take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

F32 = np.float32
EIGHT_BITS = (np.uint8, np.int8)


class Case(NamedTuple):
    """One node: its inputs (None for one left out), its attributes and how many outputs it has."""

    inputs: Sequence[Any]
    attributes: Mapping[str, Any] = MappingProxyType({})
    n_outputs: int = 1


class Tolerance(NamedTuple):
    """Floats within rtol and atol; integers off by `integer` in at most `share` of the elements."""

    rtol: float = 1e-4
    atol: float = 1e-5
    integer: int = 0
    share: float = 0.0


class Operator(NamedTuple):
    draw: Callable[[Draw], Case]
    tolerance: Tolerance = Tolerance()
    domain: str = "com.microsoft"
    why: str = ""
    """Why integers may differ."""


class Draw:
    """Random choices."""

    def __init__(self, seed: Any) -> None:
        self.rng = np.random.default_rng(seed)

    def number(self, low: int, high: int) -> int:
        """Both inclusive."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, *choices: Any) -> Any:
        return choices[self.number(0, len(choices) - 1)]

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def shape(self, low: int = 1, high: int = 4, size: int = 7) -> tuple[int, ...]:
        return tuple(self.number(1, size) for _ in range(self.number(low, high)))

    def floats(self, shape: Sequence[int] = (), dtype: Any = F32, spread: float = 1.0) -> Any:
        return np.asarray(self.rng.standard_normal(shape) * spread).astype(dtype)

    def positive(self, shape: Sequence[int] = (), low: float = 0.1, high: float = 1.0, dtype: Any = F32) -> Any:
        return np.asarray(self.rng.uniform(low, high, shape)).astype(dtype)

    def codes(self, shape: Sequence[int], dtype: Any) -> Any:
        """Integers over the whole range of the type."""
        info = np.iinfo(dtype)
        return np.asarray(self.rng.integers(info.min, info.max, tuple(shape), endpoint=True)).astype(dtype)

    def zero(self, dtype: Any, shape: Sequence[int] = ()) -> Any:
        return self.codes(shape, dtype)

    def optional(self, value: Any, share: float = 0.5) -> Any:
        return value if self.chance(share) else None

    def broadcastable(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to another."""
        cut = shape[self.number(0, len(shape)) :]
        return tuple(1 if self.chance(0.25) else n for n in cut)

    def types(self) -> tuple[Any, Any]:
        """Of activations and weights."""
        return self.pick((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))


def trimmed(inputs: Sequence[Any]) -> list[Any]:
    """Without the trailing ones that are left out."""
    found = list(inputs)
    while found and found[-1] is None:
        found.pop()
    return found


def geometry(d: Draw, rank: int, kernel: Sequence[int]) -> dict[str, Any]:
    """Strides, dilations and padding of a window over axes that are at least twice its extent."""
    attributes: dict[str, Any] = {}
    if d.chance():
        attributes["strides"] = [d.number(1, 3) for _ in range(rank)]
    if d.chance(0.3):
        attributes["dilations"] = [d.number(1, 2) for _ in range(rank)]
    match d.pick("none", "pads", "pads", "SAME_UPPER", "SAME_LOWER", "VALID"):
        case "pads":
            attributes["pads"] = [d.number(0, k - 1) for k in (*kernel, *kernel)]
        case "none":
            pass
        case auto:
            attributes["auto_pad"] = auto
            attributes.pop("dilations", None)
            # A stride beyond the window makes padding negative, which onnxruntime refuses or reads out of place.
            attributes["strides"] = [d.number(1, min(k, 2)) for k in kernel]
    return attributes


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
    # onnxruntime gives the lowest value for what saturates, and zero for rows of a single element.
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
        inputs += [d.floats((batch, heads, past, size)), d.floats((batch, heads, past, size))]
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


_TIES = "the order in which onnxruntime averages floats decides what lies halfway between two integers"
_TABLE = "onnxruntime adds exponentials that its table rounds to integers"

OPERATORS: dict[str, Operator] = {
    "Attention": Operator(attention, Tolerance(1e-3, 1e-3)),
    "BiasGelu": Operator(biased(1.0)),
    "DequantizeLinear": Operator(dequantize),
    "DynamicQuantizeMatMul": Operator(dynamic_quantize_matmul, Tolerance(1e-4, 1e-3)),
    "EmbedLayerNormalization": Operator(embed_layer_normalization, Tolerance(1e-4, 1e-4)),
    "FastGelu": Operator(biased(0.5)),
    "FusedConv": Operator(fused_conv, Tolerance(1e-4, 1e-4)),
    "FusedGemm": Operator(fused_gemm, Tolerance(1e-4, 1e-5)),
    "FusedMatMul": Operator(fused_matmul, Tolerance(1e-4, 1e-5)),
    "Gelu": Operator(unary()),
    "GroupQueryAttention": Operator(group_query_attention, Tolerance(3e-3, 3e-3)),
    "MatMulIntegerToFloat": Operator(integer_to_float, Tolerance(1e-4, 1e-3)),
    "MatMulNBits": Operator(matmul_nbits, Tolerance(2e-3, 2e-2)),
    "MultiHeadAttention": Operator(multi_head_attention, Tolerance(1e-3, 1e-3)),
    "NhwcMaxPool": Operator(channels_last_max_pool),
    "QGemm": Operator(quantized_gemm, Tolerance(1e-5, 1e-4)),
    "QLinearAdd": Operator(quantized_binary),
    "QLinearAveragePool": Operator(quantized_pool, Tolerance(integer=1, share=0.02), why=_TIES),
    "QLinearConcat": Operator(quantized_concat),
    "QLinearConv": Operator(quantized_conv),
    "QLinearGlobalAveragePool": Operator(quantized_global_pool),
    "QLinearLeakyRelu": Operator(quantized_unary(lambda d: {"alpha": d.pick(0.01, 0.3)})),
    "QLinearMul": Operator(quantized_binary),
    "QLinearSigmoid": Operator(quantized_unary()),
    "QLinearSoftmax": Operator(quantized_softmax, Tolerance(integer=1, share=1.0), why=_TABLE),
    "QLinearWhere": Operator(quantized_where),
    "QuantizeLinear": Operator(quantize),
    "QuickGelu": Operator(unary(lambda d: {"alpha": d.pick(1.702, 1.0, -0.5)})),
    "RotaryEmbedding": Operator(rotary_embedding, Tolerance(2e-3, 2e-3)),
    "SimplifiedLayerNormalization": Operator(simplified_layer_normalization, domain=""),
    "SkipLayerNormalization": Operator(skip_layer_normalization, Tolerance(3e-3, 3e-3)),
    "SkipSimplifiedLayerNormalization": Operator(skip_simplified_layer_normalization, Tolerance(3e-3, 3e-3)),
    "TransposeMatMul": Operator(transpose_matmul, Tolerance(1e-4, 1e-5)),
}  # fmt: skip
