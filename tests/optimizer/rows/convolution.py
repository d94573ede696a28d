"""Convolutions with what stands around them, and matrix products with what is added to them."""

from __future__ import annotations

from rows import Row, over

OPSETS = (9, 11, 13, 17, 22, 23)
BATCH_NORM = "BatchNormalization"


def conv(tail: str, x: str = "2,3,6,6", more: str = "", bias: bool = True, op: str = "Conv", attrs: str = "") -> str:
    """A graph of a Conv `c` with three input and four output channels, and what follows it."""
    rank = x.count(",") - 1
    kernel = ",3" * rank
    weights = f"float[{'4,3' if op == 'Conv' else '3,4'}{kernel}] W"
    inputs = f"float[{x}] x, {weights}" + (", float[4] B" if bias else "") + more
    pads = ", ".join(["1"] * (2 * rank))
    return f"g ({inputs}) => (float y) {{ c = {op}<pads = [{pads}]{attrs}>(x, W{', B' if bias else ''}) {tail} }}"


NORM = ", float[4] S, float[4] H, float[4] M, float[4] V"
NORMED = "y = BatchNormalization(c, S, H, M, V)"
PADS = "int64[8] p = {0, 0, 1, 2, 0, 0, 2, 1}"
ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu<alpha = 0.2>", "HardSigmoid<alpha = 0.3, beta = 0.6>")
GEMM_ACTIVATIONS = (*ACTIVATIONS, "Elu<alpha = 0.7>", "Softsign", "Softplus", "ThresholdedRelu<alpha = 0.6>", "Selu")


def _conv_rows() -> list[Row]:
    rows: list[Row] = []
    for shape in ("4,1,1", "1,4,1,1"):
        for op in ("Add", "Mul"):
            rows += over(OPSETS, f"Conv, {op} [{shape}]", conv(f"y = {op}(c, K)", more=f", float[{shape}] K"))
            rows.append(
                Row(
                    f"Conv, {op} [{shape}] without bias",
                    conv(f"y = {op}(c, K)", more=f", float[{shape}] K", bias=False),
                )
            )
    rows += over(OPSETS, "Conv, Mul scalar", conv("y = Mul(c, K)", more=", float K"))
    rows.append(Row("Conv, Add, 1-D", conv("y = Add(c, K)", "2,3,6", ", float[4,1] K")))
    rows.append(Row("Conv, Mul, 3-D", conv("y = Mul(c, K)", "2,3,4,4,4", ", float[4,1,1,1] K")))
    rows.append(Row("Conv, Add, dynamic batch", conv("y = Add(c, K)", "N,3,6,6", ", float[1,4,1,1] K")))
    rows.append(Row("Conv, Add, dynamic size", conv("y = Add(c, K)", "N,3,H,W", ", float[4,1,1] K")))
    rows.append(
        Row(
            "Conv, Mul, Add, BatchNormalization",
            conv(f"d = Mul(c, K) e = Add(d, K) y = {BATCH_NORM}(e, S, H, M, V)", more=f"{NORM}, float[4,1,1] K"),
        )
    )
    for bias in (True, False):
        rows += over(
            (9, 11, 13, 14, 15, 17, 22, 23), f"Conv, {BATCH_NORM}, bias {bias}", conv(NORMED, more=NORM, bias=bias)
        )
        rows += over(
            (9, 11, 15, 22),
            f"ConvTranspose, {BATCH_NORM}, bias {bias}",
            conv(NORMED, more=NORM, bias=bias, op="ConvTranspose"),
        )
    rows.append(Row(f"Conv, {BATCH_NORM}, 1-D", conv(NORMED, "2,3,6", NORM)))
    rows.append(Row(f"Conv, {BATCH_NORM}, 3-D", conv(NORMED, "2,3,4,4,4", NORM)))
    rows.append(Row(f"Conv, {BATCH_NORM}, dynamic", conv(NORMED, "N,3,h,w", NORM)))
    rows.append(
        Row(
            "depthwise Conv, BatchNormalization",
            f"g (float[2,4,6,6] x, float[4,1,3,3] W{NORM}) => (float y) {{ c = Conv<group = 4>(x, W) {NORMED} }}",
        )
    )
    rows.append(
        Row(
            "grouped ConvTranspose, BatchNormalization",
            f"g (float[2,4,6,6] x, float[4,2,3,3] W{NORM}) => (float y) {{ c = ConvTranspose<group = "
            f"2>(x, W) {NORMED} }}",
        )
    )
    rows.append(
        Row(
            "two Convs share weights",
            f"g (float[1,3,6,6] x, float[4,3,3,3] W{NORM}) => (float y, float z) {{ c = Conv(x, W) "
            f"{NORMED} z = Conv(x, W) }}",
        )
    )
    return rows


def _pad_rows() -> list[Row]:
    rows: list[Row] = []
    rows += over(
        (9, 10),
        "Pad, Conv",
        "g (float[1,3,6,6] x, float[4,3,3,3] W) => (float y) { a = Pad<pads = [0, 0, 1, 2, 0, 0, "
        "2, 1]>(x) y = Conv(a, W) }",
    )
    rows += over(
        (11, 13, 17, 19, 21),
        "Pad, Conv",
        f"g (float[1,3,6,6] x, float[4,3,3,3] W) => (float y) <{PADS}> {{ a = Pad(x, p) y = "
        f"Conv<pads = [1, 1, 0, 0]>(a, W) }}",
    )
    rows += over(
        (11, 13, 17, 19, 21),
        "Pad, AveragePool",
        f"g (float[N,3,6,6] x) => (float y) <{PADS}> {{ a = Pad(x, p) y = AveragePool<kernel_shape = [3, 3]>(a) }}",
    )
    rows.append(
        Row(
            "Pad by a stated zero, Conv",
            f"g (float[N,3,6,6] x, float[4,3,3,3] W) => (float y) <{PADS}, float v = {{0.0}}> {{ a = "
            f"Pad(x, p, v) y = Conv(a, W) }}",
        )
    )
    rows.append(
        Row(
            "Pad, Conv, 1-D",
            "g (float[1,3,6] x, float[4,3,3] W) => (float y) <int64[6] p = {0, 0, 1, 0, 0, 2}> { a = "
            "Pad(x, p) y = Conv(a, W) }",
        )
    )
    rows.append(
        Row(
            "Pad, AveragePool that counts its padding",
            f"g (float[1,3,6,6] x) => (float y) <{PADS}> {{ a = Pad(x, p) y = "
            f"AveragePool<kernel_shape = [4, 4], pads = [1, 1, 1, 1], count_include_pad = 1>(a) }}",
        )
    )
    rows.append(
        Row(
            "Pad, MaxPool",
            f"g (float[1,1,6,6] x) => (float y) <{PADS}> {{ s = Exp(x) a = Neg(s) b = Pad(a, p) y = "
            f"MaxPool<kernel_shape = [3, 3]>(b) }}",
            wrong=True,
            until="1.31",
        )
    )
    rows.append(
        Row(
            "Relu, Pad, MaxPool",
            f"g (float[1,1,6,6] x) => (float y) <{PADS}> {{ a = Relu(x) b = Pad(a, p) y = "
            f"MaxPool<kernel_shape = [3, 3]>(b) }}",
        )
    )
    rows.append(
        Row(
            "Pad, Conv, BatchNormalization, Relu",
            f"g (float[1,3,6,6] x, float[4,3,3,3] W{NORM}) => (float y) <{PADS}> {{ a = Pad(x, p) c = "
            f"Conv(a, W) {NORMED.replace('y', 'd', 1)} y = Relu(d) }}",
            "extended",
        )
    )
    return rows


def _activation_rows() -> list[Row]:
    rows = [Row(f"Conv, {a.partition('<')[0]}", conv(f"y = {a}(c)"), "extended") for a in ACTIVATIONS]
    rows += over((9, 11, 17, 22, 23), "Conv, Relu", conv("y = Relu(c)"), "extended")
    rows += over((9, 10), "Conv, Clip", conv("y = Clip<min = 0.0, max = 6.0>(c)"), "extended")
    bounds = "<float lo = {0.0}, float hi = {6.0}> {"
    rows += over((11, 13, 23), "Conv, Clip", conv("y = Clip(c, lo, hi)").replace("{", bounds, 1), "extended")
    rows.append(Row("Conv, Clip without minimum", conv("y = Clip(c, , hi)").replace("{", bounds, 1), "extended"))
    rows.append(
        Row(
            "Conv with dynamic weights, Relu",
            "g (float[1,3,6,6] x, float[4,3,3,3] w) => (float y) { c = Conv(x, w) y = Relu(c) }",
            "extended",
        )
    )
    rows.append(Row("Conv, Relu, 1-D", conv("y = Relu(c)", "N,3,6"), "extended"))
    rows.append(Row("Conv, Relu, 3-D", conv("y = Relu(c)", "1,3,4,4,4"), "extended"))
    rows.append(
        Row(
            "Conv, Relu, Conv, Sigmoid",
            conv("d = Relu(c) e = Conv(d, U) y = Sigmoid(e)", more=", float[2,4,1,1] U"),
            "extended",
        )
    )
    rows.append(Row("Conv, SiLU", conv("s = Sigmoid(c) y = Mul(c, s)"), "extended"))
    rows.append(Row("Conv, HardSwish", conv("y = HardSwish(c)"), "extended", 14, same=True))
    residual = "float[1,4,6,6] x, float[4,4,3,3] W, float[4] B, float[4,4,1,1] U, float[4] D"
    body = "c = Conv<pads = [1, 1, 1, 1]>(x, W, B) d = Conv(x, U, D) e = Add(c, d)"
    for tail in ("y = Neg(e)", "y = Relu(e)", "y = LeakyRelu(e)"):
        for level in ("layout", "all"):
            rows.append(Row(f"Conv, Add, {tail[4:]}", f"g ({residual}) => (float y) {{ {body} {tail} }}", level))
    rows.append(
        Row(
            "Conv, Add an input, Relu",
            f"g ({residual}) => (float y) {{ c = Conv<pads = [1, 1, 1, 1]>(x, W, B) e = Add(x, c) y = Relu(e) }}",
            "all",
        )
    )
    rows.append(
        Row(
            "Conv, Add, Relu, dynamic batch",
            f"g ({residual}) => (float y) {{ {body} y = Relu(e) }}".replace("[1,4,6,6]", "[N,4,6,6]"),
            "all",
        )
    )
    return rows


def _gemm_rows() -> list[Row]:
    rows: list[Row] = []
    ab = "float[2,3] a, float[3,4] W"
    for shape in ("[4]", "[1,4]", "[2,1]", "[2,4]"):
        rows += over(
            (9, 13, 17, 23),
            f"MatMul, Add {shape}",
            f"g ({ab}, float{shape} B) => (float y) {{ m = MatMul(a, W) y = Add(m, B) }}",
        )
        rows.append(
            Row(f"Add {shape}, MatMul", f"g ({ab}, float{shape} B) => (float y) {{ m = MatMul(a, W) y = Add(B, m) }}")
        )
    rows.append(
        Row(
            "MatMul, Add, dynamic",
            "g (float[N,3] a, float[3,4] W, float[4] B) => (float y) { m = MatMul(a, W) y = Add(m, B) }",
        )
    )
    rows.append(
        Row(
            "MatMul, Add of inputs",
            "g (float[2,3] a, float[3,4] w, float[4] b) => (float y) { m = MatMul(a, w) y = Add(b, m) }",
        )
    )
    rows.append(
        Row(
            "MatMul, Add in double",
            "g (double[2,3] a, double[3,4] W, double[4] B) => (double y) { m = MatMul(a, W) y = Add(m, B) }",
            same=True,
        )
    )
    rows.append(
        Row(
            "stacked MatMul, Add",
            "g (float[2,5,3] a, float[3,4] W, float[4] B) => (float y) { m = MatMul(a, W) y = Add(m, B) }",
            same=True,
        )
    )
    rows.append(
        Row(
            "Reshape, MatMul, Add, Reshape",
            "g (float[2,5,3] a, float[3,4] W, float[4] B) => (float y) <int64[3] s = {2, 5, 3}, "
            "int64[2] t = {10, 4}> { r = Reshape(a, s) m = MatMul(r, W) n = Add(m, B) y = Reshape(n, t) }",
        )
    )
    rows += [
        Row(
            f"Gemm, {a.partition('<')[0]}",
            f"g ({ab}, float[4] B) => (float y) {{ m = Gemm(a, W, B) y = {a}(m) }}",
            "extended",
        )
        for a in GEMM_ACTIVATIONS
    ]
    rows += over(
        (9, 11, 17, 23),
        "Gemm, Relu, scaled",
        f"g ({ab}, float[4] B) => (float y) {{ m = Gemm<alpha = 0.5, beta = 2.0>(a, W, B) y = Relu(m) }}",
        "extended",
    )
    rows += over(
        (9, 13, 23),
        "MatMul, Add, Relu",
        f"g ({ab}, float[4] B) => (float y) {{ m = MatMul(a, W) n = Add(m, B) y = Relu(n) }}",
        "extended",
    )
    for shape in ("[4]", "[2,4]", "[2,1]", "[1]", ""):
        rows.append(
            Row(
                f"Gemm, Sum {shape}",
                f"g ({ab}, float{shape} b) => (float y) {{ m = Gemm<alpha = 0.5>(a, W) y = Sum(m, b) }}",
            )
        )
        rows.append(
            Row(f"Sum {shape}, Gemm", f"g ({ab}, float{shape} B) => (float y) {{ m = Gemm(a, W) y = Sum(B, m) }}")
        )
    rows += over((11, 13, 23), "Gemm, Sum", f"g ({ab}, float[4] b) => (float y) {{ m = Gemm(a, W) y = Sum(m, b) }}")
    for flag in (0, 1):
        rows.append(
            Row(
                f"Transpose, Gemm {flag}",
                f"g (float[{'2,3' if flag else '3,2'}] x, float[3,4] W) => (float y) {{ a = "
                f"Transpose<perm = [1, 0]>(x) y = Gemm<transA = {flag}>(a, W) }}",
            )
        )
        rows.append(
            Row(
                f"Gemm, Transpose on B {flag}",
                f"g (float[2,3] a, float[{'3,4' if flag else '4,3'}] w) => (float y) {{ b = "
                f"Transpose<perm = [1, 0]>(w) y = Gemm<transB = {flag}>(a, b) }}",
            )
        )
        rows.append(
            Row(
                f"Gemm, Transpose {flag}",
                f"g (float[{'3,2' if flag else '2,3'}] a, float[3,4] W) => (float y) {{ m = Gemm<transA = "
                f"{flag}>(a, W) y = Transpose<perm = [1, 0]>(m) }}",
            )
        )
    rows.append(
        Row(
            "Gemm, Transpose without perm",
            "g (float[3,2] x, float[3,4] W) => (float y) { a = Transpose(x) y = Gemm(a, W) }",
        )
    )
    rows.append(
        Row(
            "Gemm in double",
            "g (double[3,2] x, double[3,4] W) => (double y) { a = Transpose<perm = [1, 0]>(x) y = Gemm(a, W) }",
        )
    )
    rows.append(
        Row(
            "Transposes all around a Gemm",
            "g (float[3,2] x, float[4,3] w) => (float y) { a = Transpose<perm = [1, 0]>(x) b = "
            "Transpose<perm = [1, 0]>(w) m = Gemm(a, b) y = Transpose<perm = [1, 0]>(m) }",
        )
    )
    for opset in (9, 11, 14, 15, 23):
        rows.append(
            Row(
                "MatMul, BatchNormalization",
                f"g (float[2,3] a, float[3,4] W{NORM}) => (float y) {{ c = MatMul(a, W) {NORMED} }}",
                opset=opset,
            )
        )
    rows.append(
        Row(
            "MatMul, Reshape, BatchNormalization",
            f"g (float[2,3] a, float[3,4] W{NORM}) => (float y) <int64[4] s = {{2, 4, 1, 1}}> {{ m = "
            f"MatMul(a, W) c = Reshape(m, s) {NORMED} }}",
        )
    )
    rows.append(
        Row(
            "MatMul, Reshape, Transpose, BatchNormalization",
            f"g (float[6,3] a, float[3,4] W{NORM}) => (float y) <int64[3] s = {{2, 3, 4}}> {{ m = "
            f"MatMul(a, W) r = Reshape(m, s) c = Transpose<perm = [0, 2, 1]>(r) {NORMED} }}",
        )
    )
    return rows


def _product_rows() -> list[Row]:
    rows: list[Row] = []
    for perm, shape in (("[0, 2, 1]", "2,5,3"), ("[1, 0, 2]", "3,2,5"), ("[1, 2, 0]", "5,2,3"), ("[0, 1, 2]", "2,3,5")):
        rows.append(
            Row(
                f"Transpose {perm}, MatMul",
                f"g (float[{shape}] x, float[2,5,4] b) => (float y) {{ a = Transpose<perm = {perm}>(x) y "
                f"= MatMul(a, b) }}",
                "extended",
            )
        )
    for perm, shape in (("[0, 2, 1]", "2,4,5"), ("[1, 0, 2]", "5,2,4")):
        rows.append(
            Row(
                f"MatMul, Transpose {perm}",
                f"g (float[2,3,5] a, float[{shape}] x) => (float y) {{ b = Transpose<perm = {perm}>(x) y "
                f"= MatMul(a, b) }}",
                "extended",
            )
        )
    rows += over(
        (9, 13, 21, 23),
        "Transpose, MatMul",
        "g (float[B,3,5] a, float[B,4,5] x) => (float y) { b = Transpose<perm = [0, 2, 1]>(x) y = MatMul(a, b) }",
        "extended",
    )
    rows.append(
        Row(
            "Transposes, MatMul in double",
            "g (double[2,5,3] a, double[2,4,5] x) => (double y) { c = Transpose<perm = [0, 2, 1]>(a) "
            "b = Transpose<perm = [0, 2, 1]>(x) y = MatMul(c, b) }",
            "extended",
        )
    )
    rows.append(
        Row(
            "Transpose of a matrix, MatMul",
            "g (float[5,3] a, float[5,4] b) => (float y) { c = Transpose(a) y = MatMul(c, b) }",
            "extended",
        )
    )
    rows.append(
        Row(
            "Transpose read twice, MatMul",
            "g (float[2,5,3] a, float[2,5,4] b) => (float y, float z) { c = Transpose<perm = [0, 2, "
            "1]>(a) y = MatMul(c, b) z = Relu(c) }",
            "extended",
            same=True,
        )
    )
    for op in ("Mul", "Div"):
        for shape in ("", "[1]"):
            rows.append(
                Row(
                    f"MatMul, {op} {shape}",
                    f"g (float[2,3,5] a, float[2,5,4] b, float{shape} K) => (float y) {{ m = MatMul(a, b) y = {op}(m, K) }}",
                    "extended",
                )
            )
            rows.append(
                Row(
                    f"{op} {shape}, MatMul",
                    f"g (float[2,3,5] a, float[2,5,4] b, float{shape} K) => (float y) {{ c = {op}(a, K) y = "
                    f"MatMul(c, b) }}",
                    "extended",
                )
            )
            rows.append(
                Row(
                    f"MatMul of {op} {shape}",
                    f"g (float[2,3,5] a, float[2,5,4] b, float{shape} K) => (float y) {{ c = {op}(b, K) y = "
                    f"MatMul(a, c) }}",
                    "extended",
                )
            )
    rows.append(
        Row(
            "Mul behind, MatMul",
            "g (float[2,3,5] a, float[2,5,4] b, float K) => (float y) { c = Mul(K, a) m = MatMul(c, b) y = Mul(K, m) }",
            "extended",
        )
    )
    rows.append(
        Row(
            "scaled product of queries and keys",
            "g (float[2,4,3,5] q, float[2,4,6,5] k, float K) => (float y) { t = Transpose<perm = [0, "
            "1, 3, 2]>(k) m = MatMul(q, t) s = Div(m, K) y = Softmax<axis = -1>(s) }",
            "extended",
        )
    )
    rows.append(
        Row(
            "MatMul in double, Mul",
            "g (double[2,3,5] a, double[2,5,4] b) => (double y) <double k = {0.25}> { m = MatMul(a, b) y = Mul(m, k) }",
            "extended",
        )
    )
    rows.append(
        Row(
            "MatMul in double, Mul by a third",
            "g (double[2,3,5] a, double[2,5,4] b, double K) => (double y) { m = MatMul(a, b) y = Mul(m, K) }",
            "extended",
            dearer="alpha is a float: eight digits are lost",
            until="1.31",
        )
    )
    moved = f"m = MatMul(a, W) r = Reshape(m, s) c = Transpose<perm = [0, 2, 1]>(r) {NORMED}"
    rows.append(
        Row(
            "MatMul, Reshape, Transpose, BatchNormalization over rows",
            f"g (float[8,3] a, float[3,4] W{NORM}) => (float y) <int64[3] s = {{2, 4, 4}}> {{ "
            f"{moved.replace('[0, 2, 1]', '[0, 1, 2]')} }}",
            wrong=True,
            until="1.31",
        )
    )
    return rows


ROWS = (*_conv_rows(), *_pad_rows(), *_activation_rows(), *_gemm_rows(), *_product_rows())
