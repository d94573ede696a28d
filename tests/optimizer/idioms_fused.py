"""Steps of random models near the fusions: convolutions, products, normalizations, Gelus, attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from typed_graphs import Builder, ImpossibleError, clipped, padded, reduced, sliced, split, squeezed

# ---------------------------------------------------------------------- convolutions


def convolved(b: Builder, x: str, out: int | None = None) -> str:
    """A Conv or ConvTranspose of x."""
    shape = b.shape(x)
    spatial, channels = len(shape) - 2, shape[1]
    group = channels if b.chance(0.15) and channels else 1
    out = out or b.pick(1, 2, 4) * group
    size = b.pick(1, 1, 2, 3)
    attrs: dict[str, Any] = {"group": group} if group > 1 else {}
    if b.chance(0.3):
        attrs["pads"] = [b.pick(0, 1) for _ in range(2 * spatial)]
    elif b.chance(0.15):
        attrs["auto_pad"] = b.pick("SAME_UPPER", "SAME_LOWER", "VALID")
    if b.chance(0.15):
        attrs["strides"] = [2] * spatial
    if b.chance(0.1):
        attrs["dilations"] = [2] * spatial
    if b.chance(0.1):
        attrs.pop("auto_pad", None)  # onnxruntime takes nothing away where the kernel is smaller than the stride
        weights = b.weight(channels, out // group, *[size] * spatial)
        return b.op("ConvTranspose", x, weights, *([b.weight(out)] if b.chance(0.5) else []), **attrs)
    w = b.near(b.weight(out, channels // group, *[size] * spatial), b.x(out, channels // group, *[size] * spatial))
    bias = [b.near(b.weight(out), b.x(out))] if b.chance(0.6) else []
    return b.op("Conv", x, w, *bias, **attrs)


def image(b: Builder) -> str:
    found = b.known(lambda a: a.dtype == b.dtype and a.ndim in (3, 4) and 0 < a.shape[1] <= 8 and min(a.shape[2:]) > 0)
    if found and b.chance(0.6):
        return str(b.pick(*found[-3:]))
    return b.input(b.pick((1, 2, 4, 4), (2, 3, 5, 4), (1, 4, 6), (1, 1, 3, 3), (0, 2, 4, 4)))


def along_channels(b: Builder, y: str) -> str:
    """A constant that has one element for each channel of y, or is beside that."""
    shape = b.shape(y)
    ones = [1] * (len(shape) - 2)
    dims = b.near(
        [shape[1], *ones], [1, shape[1], *ones], [], [1] * len(shape), [shape[-1]], list(shape), [2, shape[1], *ones]
    )
    return b.weight(*dims)


def conv_chain(b: Builder) -> None:
    """Operators before and behind a convolution that may go into it."""
    x = image(b)
    if b.chance(0.2):
        x = batch_norm(b, x)
    if b.chance(0.2):
        rank = len(b.shape(x))
        amounts = [0, 0, *[b.pick(0, 1) for _ in range(rank - 2)]] * 2
        x = padded(b, x, amounts, b.near(0.0, 1.0), b.near("constant", "reflect"))
    y = convolved(b, x) if b.chance(0.85) else pooled(b, x)
    for _ in range(b.pick(0, 1, 1, 2, 3)):
        kind = b.pick("Add", "Mul", "Sub", "Div", "bn", "act", "act", "residual")
        if kind == "bn":
            y = batch_norm(b, y)
        elif kind == "act":
            y = activated(b, y)
        elif kind == "residual":
            z = b.x(*b.near(b.shape(y), [1, *b.shape(y)[1:]], [1] * len(b.shape(y))))
            y = b.op("Add", *b.pick((y, z), (z, y)))
        else:
            k = along_channels(b, y)
            y = b.op(kind, *b.pick((y, k), (y, k), (k, y)))


def pooled(b: Builder, x: str) -> str:
    size = len(b.shape(x)) - 2
    op = b.pick("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    if op.startswith("Global"):
        return b.op(op, x)
    if min(b.shape(x)[2:]) < 2:
        raise ImpossibleError
    pads = [b.pick(0, 1) for _ in range(2 * size)] if b.chance(0.4) else None
    counted = b.pick(None, 1, 0) if op == "AveragePool" else None
    return b.op(op, x, kernel_shape=[2] * size, pads=pads, count_include_pad=counted, strides=b.pick(None, [2] * size))


def pooling(b: Builder) -> None:
    x = image(b)
    if b.chance(0.5):
        amounts = [0, 0, *[b.pick(0, 1) for _ in range(len(b.shape(x)) - 2)]] * 2
        x = padded(b, b.near(x, b.op("Relu", x)), amounts, b.pick(0.0, -np.inf))
    pooled(b, x)


def shifted_norm(b: Builder) -> None:
    """A BatchNormalization that stands alone, with constants behind it."""
    y = batch_norm(b, image(b))
    for _ in range(b.pick(1, 2)):
        k = along_channels(b, y)
        y = b.op(b.pick("Add", "Sub", "Mul", "Div"), *b.near((y, k), (k, y)))


def rows_norm(b: Builder) -> None:
    """A product of matrices or a stack of them, normalized by columns."""
    x = b.x(b.pick(2, 3), 4) if b.chance(0.6) else b.x(2, 3, 4)
    y = b.op("MatMul", x, b.weight(4, 3))
    if len(b.shape(x)) == 3 or b.chance(0.3):
        y = b.op("Reshape", y, b.ints(-1, b.near(3, 1)))
    batch_norm(b, y)


def batch_norm(b: Builder, x: str) -> str:
    c = b.shape(x)[1]
    variance = np.arange(1, c + 1) / 2
    if b.chance(0.03):
        variance[-1:] = b.pick(0, -1, np.nan)
    epsilon = b.near(1e-5, 0.0, 0.5)
    return b.op("BatchNormalization", x, b.weight(c), b.weight(c), b.weight(c), b.const(variance), epsilon=epsilon)


def activated(b: Builder, y: str) -> str:
    """An activation behind a convolution or product, decomposed ones among them."""
    kind = b.pick("Relu", "Relu", "LeakyRelu", "Tanh", "Sigmoid", "HardSigmoid", "Clip", "silu", "hard swish", "Elu")
    if kind == "Clip":
        return clipped(b, y, b.near(0.0, None, -1.0), b.near(6.0, None))
    if kind == "silu":
        return b.op("Mul", *b.pick((y, b.op("Sigmoid", y)), (b.op("Sigmoid", y), y)))
    if kind == "hard swish":
        if b.opset >= 14 and b.chance(0.3):
            return b.op("HardSwish", y)
        gate = b.op("HardSigmoid", y, alpha=b.near(1 / 6, 0.2), beta=b.near(0.5, 0.4))
        if b.chance(0.4):
            gate = b.op("Div", clipped(b, b.op("Add", y, b.number(3.0)), 0.0, 6.0), b.number(6.0))
        return b.op("Mul", y, gate)
    attrs = {"alpha": b.pick(0.25, 0.1)} if kind in ("LeakyRelu", "Elu") else {}
    return b.op(kind, y, **attrs)


# ---------------------------------------------------------------------- products


def product_chain(b: Builder) -> None:
    """MatMul or Gemm with what may go into it."""
    a = b.float(b.near((2, 3), (1, 2, 3, 4)))
    inner, columns = b.shape(a)[-1], b.pick(1, 2, 4)
    if len(b.shape(a)) >= 2 and b.chance(0.25):
        order = list(range(len(b.shape(a))))
        order = b.near([*order[:-2], order[-1], order[-2]], b.permutation(len(order)))
        a = b.op("Transpose", a, perm=order)
        inner = b.shape(a)[-1]
    if b.chance(0.15):
        a = b.op(b.pick("Mul", "Div"), a, b.number(0.5))
    batch = b.shape(a)[:-2] if b.chance(0.3) else ()
    w = b.pick(b.weight(inner, columns), b.x(*batch, inner, columns))
    if b.chance(0.3):
        order = list(range(len(b.shape(w))))
        flipped = b.pick(b.weight, b.x)(*b.shape(w)[:-2], columns, inner)
        w = b.op("Transpose", flipped, perm=b.near([*order[:-2], order[-1], order[-2]], order))
    if len(b.shape(a)) == 2 and len(b.shape(w)) == 2 and b.chance(0.4):
        y = gemm(b, a, w)
    else:
        y = b.op("MatMul", a, w)
    for _ in range(b.pick(0, 1, 1, 2)):
        y = after_product(b, y)


def gemm(b: Builder, a: str, w: str) -> str:
    if not b.values[a].size:
        raise ImpossibleError  # onnxruntime forgets beta where there is nothing to sum
    flip_a, flip_b = b.pick(0, 0, 1), b.pick(0, 0, 1)
    a = b.op("Transpose", a) if flip_a else a
    w = b.op("Transpose", w) if flip_b else w
    rows, columns = b.shape(a)[flip_a], b.shape(w)[1 - flip_b]
    bias = [b.weight(*b.pick((columns,), (1, columns), (), (rows, columns), (rows, 1)))] if b.chance(0.5) else []
    if not bias and b.opset < 11:
        bias = [b.weight(columns)]
    alpha, beta = b.near(1.0, 0.5), b.near(1.0, 2.0, 0.0)
    return b.op("Gemm", a, w, *bias, transA=flip_a, transB=flip_b, alpha=alpha, beta=beta)


def after_product(b: Builder, y: str) -> str:
    shape = b.shape(y)
    kind = b.pick("Add", "Add", "bn", "act", "scale", "Transpose", "Reshape", "Sum")
    if kind == "bn" and len(shape) >= 2:
        return batch_norm(b, y)
    if kind == "act":
        return activated(b, y)
    if kind == "scale":
        k = b.near(b.number(0.125), b.weight(*shape[-1:]))
        return b.op(b.pick("Mul", "Div"), *b.near((y, k), (k, y)))
    if kind == "Transpose":
        return b.op("Transpose", y)
    if kind == "Reshape":
        return b.op("Reshape", y, b.ints(-1, *shape[-1:]))
    dims = b.near(shape[-1:], (), (1, *shape[-1:]), shape, (2, *shape), (1,))
    k = b.weight(*dims) if b.chance(0.8) else b.x(*dims)
    return b.op("Sum" if kind == "Sum" else "Add", *b.pick((y, k), (k, y)))


def matrix_transpose(b: Builder) -> None:
    x = b.input(b.pick((2, 3, 4, 5), (2, 3, 4), (1, 2, 3, 4)))
    rows, columns = b.shape(x)[-2:]
    stacked = b.op("Reshape", x, b.ints(-1, *b.near((rows, columns), (columns, rows))))
    turned = b.op("Transpose", stacked, perm=b.near([0, 2, 1], [2, 0, 1]))
    b.op("Reshape", turned, b.ints(*b.shape(x)[:-2], *b.near((columns, rows), (rows, columns))))


# ---------------------------------------------------------------------- normalizations and Gelus


def layer_norm(b: Builder) -> None:
    x = b.float((2, 3))
    width = b.shape(x)[-1]
    axes = b.near([-1], [1], [len(b.shape(x)) - 1], [-2, -1])
    if b.chance(0.25):
        x = b.op("Add", x, b.pick(b.x(*b.shape(x)), b.weight(width)))
    rms = b.chance(0.35)
    centered = x if rms else b.op("Sub", x, reduced(b, "ReduceMean", x, axes))
    again = b.op("Sub", x, reduced(b, "ReduceMean", x, axes)) if not rms and b.chance(0.1) else centered
    squared = b.pick(b.op("Pow", again, b.number(2.0, 3.0)), b.op("Mul", again, again))
    variance = reduced(b, b.near("ReduceMean", "ReduceSum"), squared, axes, b.near(1, 0))
    root = b.op("Sqrt", b.op("Add", *b.pick((variance, k := b.number(b.near(1e-5, 0.1))), (k, variance))))
    if b.chance(0.25):
        y = b.op("Mul", centered, b.near(b.op("Reciprocal", root), b.op("Div", b.number(1.0), root)))
    else:
        y = b.op("Div", *b.near((centered, root), (root, centered)))
    if b.chance(0.9):
        scale = b.near(b.weight(width), b.x(width), b.weight(1), b.weight(2, 1, width), b.weight(1, width))
        y = b.op("Mul", *b.pick((y, scale), (scale, y)))
    if b.chance(0.7):
        shift = b.near(b.weight(width), b.x(width), b.weight(), b.weight(1, width))
        b.op("Add", *b.pick((y, shift), (shift, y)))


def normalized(b: Builder) -> None:
    """LayerNormalization as one node, with what may go into it."""
    x = b.float((2, 3))
    width = b.shape(x)[-1]
    x = b.op("Add", x, b.pick(b.x(*b.shape(x)), b.weight(width)))
    y = b.op(
        "LayerNormalization", x, b.weight(width), *([b.weight(width)] if b.chance(0.5) else []), axis=b.near(-1, 1)
    )
    b.op("Add", *b.pick((y, k := b.weight(width)), (k, y)))


def gelu(b: Builder) -> None:
    x = b.float((1, 2, 3))
    if b.chance(0.5):
        bias = b.near(b.weight(*b.shape(x)[-1:]), b.weight(), b.x(*b.shape(x)))
        x = b.op("Add", *b.pick((x, bias), (bias, x)))
    if b.chance(0.1) and b.opset >= 20:
        b.op("Gelu", x, approximate=b.pick("none", "tanh"))
        return
    kind = b.pick("erf", "erf", "tanh", "tanh", "quick")
    if kind == "quick":
        alpha = b.near(1.702, 1.0)
        inner = b.op("Mul", x, b.number(alpha)) if b.chance(0.8) else x
        gate = b.op("Sigmoid", inner)
        b.op("Mul", *b.pick((x, gate), (gate, x)))
        return
    inner = erf_of(b, x) if kind == "erf" else tanh_of(b, x)
    gate = b.op("Add", *b.pick((inner, one := b.number(1.0)), (one, inner)))
    half = b.number(0.5, 0.25)
    form = b.pick(0, 1, 2)
    if form == 0:
        b.op("Mul", b.op("Mul", x, gate), half)
    elif form == 1:
        b.op("Mul", b.op("Mul", half, x), gate)
    else:
        b.op("Mul", x, b.op("Mul", gate, half))


def erf_of(b: Builder, x: str) -> str:
    root = b.near(math.sqrt(2), 1.41421, 1.5)
    scaled = b.op("Div", x, b.number(root)) if b.chance(0.6) else b.op("Mul", x, b.number(1 / root))
    return b.op("Erf", scaled)


def tanh_of(b: Builder, x: str) -> str:
    c = b.number(0.044715)
    if b.chance(0.5):
        cube = b.op("Pow", x, b.number(3.0)) if b.chance(0.6) else b.op("Mul", x, b.op("Mul", x, x))
        inner = b.op("Add", x, b.op("Mul", *b.pick((c, cube), (cube, c))))
        return b.op("Tanh", b.op("Mul", inner, b.number(math.sqrt(2 / math.pi))))
    square = b.op("Mul", x, x) if b.chance(0.6) else b.op("Pow", x, b.number(2.0))
    gate = b.op("Add", b.number(1.0), b.op("Mul", square, c))
    return b.op("Tanh", b.op("Mul", b.op("Mul", x, b.number(math.sqrt(2 / math.pi))), gate))


# ---------------------------------------------------------------------- attention

HEADS, SIZE = 2, 4


def attention(b: Builder) -> None:
    batch, rows = b.pick((1, 3), (2, 3), (2, 5))
    hidden = HEADS * SIZE
    x = b.x(batch, rows, hidden)
    memory = b.near(x, b.x(batch, rows + 1, hidden))
    joint = b.chance(0.2)
    if joint:
        q, k, v = split(b, project(b, x, 3 * hidden), 2, [hidden] * 3)
    else:
        q, k, v = (project(b, m, hidden) for m in (x, memory, memory))
    factor = 1 / math.sqrt(SIZE)
    where = b.pick("query", "scores", "scores", "both", "none")
    if where == "query":
        q = b.op("Mul", q, b.number(factor))
    query = heads(b, q, [0, 2, 1, 3])
    keys, value = heads(b, k, b.near([0, 2, 3, 1], [0, 2, 1, 3])), heads(b, v, [0, 2, 1, 3])
    past = False
    if b.shape(keys)[-2] != SIZE:
        past = b.chance(0.4)
        if past:
            keys, value = with_past(b, keys), with_past(b, value)
        keys = b.op("Transpose", keys, perm=[0, 1, 3, 2])
    if where == "both":
        query, keys = (b.op("Mul", part, b.number(math.sqrt(factor))) for part in (query, keys))
    stack = b.chance(0.25)
    if stack:
        query, keys, value = (stacked(b, part) for part in (query, keys, value))
    scores = b.op("MatMul", query, keys)
    if where == "scores":
        scores = b.op(*b.pick(("Div", scores, b.number(1 / factor)), ("Mul", scores, b.number(factor))))
    if stack and b.chance(0.6):
        scores = stacked(b, masked(b, b.op("Reshape", scores, b.ints(batch, HEADS, *b.shape(scores)[1:])), past))
    elif not stack:
        scores = masked(b, scores, past)
    weights = b.op("Softmax", scores, axis=b.near(-1, len(b.shape(scores)) - 1, 1))
    if b.chance(0.2):
        weights = b.op("Where", b.op("IsNaN", weights), b.number(0), weights)
    product = b.op("MatMul", weights, value)
    if stack:
        product = b.op("Reshape", product, b.ints(*b.near((batch, HEADS, rows, SIZE), (HEADS, batch, rows, SIZE))))
    context = b.op("Transpose", product, perm=b.near([0, 2, 1, 3], [0, 2, 3, 1]))
    merged = b.op("Reshape", context, b.ints(*b.pick((0, 0, hidden), (batch, rows, hidden), (0, 0, -1))))
    if b.chance(0.6):
        b.op("MatMul", merged, b.weight(hidden, 3))


def with_past(b: Builder, heads: str) -> str:
    """Heads behind those of earlier steps."""
    batch, count, _, size = b.shape(heads)
    earlier = b.x(batch, count, 2, size)
    return b.op("Concat", *b.near((earlier, heads), (heads, earlier)), axis=b.pick(2, -2))


def stacked(b: Builder, x: str) -> str:
    """Heads with the batch and their number made one axis."""
    batch, count, rows, columns = b.shape(x)
    spec = b.pick((-1, rows, columns), (batch * count, -1, columns), (batch * count, rows, columns))
    return b.op("Reshape", x, b.ints(*spec))


def project(b: Builder, x: str, width: int) -> str:
    y = b.op("MatMul", x, b.weight(b.shape(x)[-1], width))
    return b.op("Add", *b.pick((y, k := b.weight(width)), (k, y))) if b.chance(0.7) else y


def heads(b: Builder, x: str, perm: list[int]) -> str:
    batch, rows, _ = b.shape(x)
    spec = b.pick((0, 0, HEADS, SIZE), (batch, rows, HEADS, SIZE), (0, 0, -1, SIZE), (batch, -1, HEADS, SIZE))
    return b.op("Transpose", b.op("Reshape", x, b.ints(*spec)), perm=perm)


def masked(b: Builder, scores: str, past: bool) -> str:
    """Scores with one of the usual masks. Earlier keys may be NaN where values are not, which hides behind a condition only."""
    batch, _, rows, columns = b.shape(scores)
    if b.chance(0.2) and not past:
        columns_seen = b.const(np.tril(np.ones((1, 1, rows, columns))), bool)
        scores = b.op("Where", columns_seen, scores, b.number(b.near(float(np.finfo(b.dtype).min), -10.0), 0.0))
    kind = b.pick("none", "bias", "causal", "padding", *(["where"] * (not past)))
    if kind == "none":
        return scores
    if kind == "bias":
        mask = b.x(
            *b.near(
                (batch, 1, 1, columns), (batch, 1, rows, columns), (1, 1, rows, columns), (batch, HEADS, rows, columns)
            )
        )
        return b.op("Add", *b.pick((scores, mask), (mask, scores)))
    lowest = b.near(-10000.0, -65504.0, float(np.finfo(np.float16).min))
    if kind == "causal":
        band = np.triu(np.full((rows, columns), b.near(lowest, -np.inf)), 1)
        return b.op("Add", scores, b.const(band.reshape(b.pick((1, 1, rows, columns), (rows, columns)))))
    if kind == "where":
        allowed = b.near(b.const(np.tril(np.ones((1, 1, rows, columns))), bool), b.x(batch, 1, 1, columns, dtype=bool))
        return b.op("Where", allowed, scores, b.const(b.near(lowest, -np.inf)))
    kept = b.op("Cast", b.x(batch, columns, dtype=np.int64), to={"f2": 10, "f4": 1, "f8": 11}[b.dtype.str[1:]])
    kept = squeezed(b, "Unsqueeze", squeezed(b, "Unsqueeze", kept, 1), 2)
    mask = b.op("Mul", b.op("Sub", b.number(1.0), kept), b.number(lowest))
    return b.op("Add", scores, mask)


EQUATIONS = (
    "ij,jk->ik", "ij,jk", "bij,bkj->bik", "bhid,bhjd->bhij", "aecd,abcd->acbe", "bqhd,bkhd->bhqk", "acbe,aecd->abcd",
    "ibnd,jbnd->bnij", "ij,kj->ki", "bhij,bhjd->bihd", "bij,bij->b", "bi,bj->bij", "ijl,jk->ik", "bji,jb->bi",
)  # fmt: skip


def einsum(b: Builder) -> None:
    """A sum of products, by constant weights at times, and what follows a projection."""
    if b.opset < 12:
        raise ImpossibleError
    if b.chance(0.4):
        count = b.pick(1, 2)
        x = b.x(2, 3, *(HEADS, SIZE)[2 - count :])
        columns = b.pick((HEADS, SIZE), (5,))
        names = "abcdefg"[: 2 + count + len(columns)]
        terms = names[: 2 + count], names[2:], names[:2] + names[2 + count :]
        y = b.op(
            "Einsum", x, b.weight(*(HEADS, SIZE)[2 - count :], *columns), equation=f"{terms[0]},{terms[1]}->{terms[2]}"
        )
        for op in b.pick(("Add",), ("Add", "Mul"), ("Div",), ()):
            k = b.near(b.weight(*columns), b.number(0.5), b.weight(columns[-1])) if op == "Add" else b.number(0.5)
            y = b.op(op, y, k)
        return
    equation = b.pick(*EQUATIONS)
    sizes = {c: b.pick(1, 2, 3, 4) for c in equation if c.isalpha()}
    first, second = equation.partition("->")[0].split(",")
    b.op("Einsum", *(b.x(*(sizes[c] for c in term)) for term in (first, second)), equation=equation)


def grouped(b: Builder) -> None:
    """A product with matrices that several of a stack share."""
    batch, groups, copies = b.pick(1, 2), b.pick(1, 2), b.near(2, 1, 3)
    x = b.x(batch, groups, 5, SIZE)
    wide = b.op("Expand", squeezed(b, "Unsqueeze", x, 2), b.ints(batch, groups, copies, 5, SIZE))
    x = b.op("Reshape", wide, b.ints(*b.near((batch, groups * copies, 5, SIZE), (batch, groups, 5 * copies, SIZE))))
    if b.chance(0.5):
        x = b.op("Transpose", x, perm=b.near([0, 1, 3, 2], [0, 2, 1, 3]))
    if b.chance(0.3):
        x = b.op(b.pick("Mul", "Div"), x, b.number(0.5))
    left = b.x(b.near(batch, 1), b.near(b.shape(x)[1], 1), b.pick(1, 3), b.shape(x)[2])
    b.op("MatMul", left, x)


def rotary(b: Builder) -> None:
    """x * cos + rotated x * sin, half of x negated and swapped, perhaps without the first row."""
    rest, x = "", b.x(b.pick(1, 2), HEADS, b.near(3, 4), SIZE)
    if b.shape(x)[2] == 4:
        rest, x = split(b, b.op("MatMul", x, b.weight(SIZE, SIZE)), 2, [1, 3])
    first, second = (
        sliced(b, x, b.near(3, -1), s, e) for s, e in ((0, SIZE // 2), (SIZE // 2, b.near(SIZE, 2**31 - 1)))
    )
    turned = b.op("Concat", b.op("Neg", second), first, axis=-1)
    cos, sin = (
        b.pick(paired(b, b.weight(1, 1, 3, SIZE // 2)), b.near(b.weight(1, 1, 3, SIZE), b.x(1, 1, 3, SIZE)))
        for _ in range(2)
    )
    y = b.op("Add", b.op("Mul", x, cos), b.op("Mul", turned, sin))
    if rest:
        y = b.op("Concat", rest, y, axis=b.near(2, -2))
        if b.chance(0.5):
            b.op("MatMul", y, b.weight(SIZE, 2))


def paired(b: Builder, half: str) -> str:
    """A constant with the columns of another one twice."""
    array = b.values[half]
    return b.const(np.concatenate([array, array], axis=-1), array.dtype)


STEPS = (
    conv_chain, conv_chain, conv_chain, shifted_norm, rows_norm, pooling, product_chain, product_chain, product_chain,
    matrix_transpose, layer_norm,
    layer_norm, normalized, gelu, gelu, attention, grouped, einsum, rotary,
)  # fmt: skip
