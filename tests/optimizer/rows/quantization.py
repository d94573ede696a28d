"""Quantized units, dynamic quantization, and weights of four bits."""

from __future__ import annotations

from rows import Row

U8 = "float s = {0.05}, uint8 z = {128}"
I8 = "float s = {0.05}, int8 z = {3}"


def unit(
    op: str, x: str = "2,3,4", *, more: str = "", constants: str = "", quantized: str = U8, operands: int = 1
) -> str:
    """DQ, an operator, Q: the operator's own further inputs follow the names of what is dequantized."""
    kind = "uint8" if "uint8" in quantized else "int8"
    names = ("p", "q", "r")[:operands]
    inputs = ", ".join(f"{kind}[{x}] {n}" for n in names)
    reads = " ".join(f"d{n} = DequantizeLinear({n}, s, z)" for n in names)
    body = op.replace("@", ", ".join(f"d{n}" for n in names))
    return (
        f"g ({inputs}{more}) => ({kind} y) <{quantized}{constants}> {{ {reads} e = {body} y = "
        f"QuantizeLinear(e, s, z) }}"
    )


MOVES = {
    "Transpose": ("Transpose<perm = [1, 0, 2]>(@)", ""),
    "Reshape": ("Reshape(@, i)", ", int64[2] i = {6, 4}"),
    "Squeeze": ("Squeeze(@, i)", ", int64[1] i = {0}"),
    "Unsqueeze": ("Unsqueeze(@, i)", ", int64[1] i = {0}"),
    "Flatten": ("Flatten(@)", ""),
    "Gather": ("Gather(@, i)", ", int64[2] i = {1, 0}"),
    "GatherElements": ("GatherElements(@, i)", ", int64[1,1,2] i = {0, 0}"),
    "Slice": ("Slice(@, i, j)", ", int64[1] i = {0}, int64[1] j = {1}"),
    "Expand": ("Expand(@, i)", ", int64[4] i = {2, 1, 1, 1}"),
    "Tile": ("Tile(@, i)", ", int64[3] i = {1, 2, 1}"),
    "Identity": ("Identity(@)", ""),
}
UNARY = (
    "GlobalAveragePool",
    "AveragePool<kernel_shape = [2, 2]>",
    "MaxPool<kernel_shape = [2, 2]>",
    "LeakyRelu",
    "Sigmoid",
    "Softmax",
    "DepthToSpace<blocksize = 2>",
)
UNCHANGED = ("Sub", "Div", "Max")


def _units() -> list[Row]:
    rows: list[Row] = []
    for quantized in (U8, I8):
        kind = "u8" if quantized is U8 else "i8"
        for name, (op, constants) in MOVES.items():
            x = "1,2,4" if name in ("Squeeze", "Identity") else "2,3,4"
            rows.append(
                Row(f"{kind} {name}", unit(op, x, constants=constants, quantized=quantized), "extended", atol=1)
            )
        for op in UNARY:
            rows.append(
                Row(
                    f"{kind} {op.partition('<')[0]}",
                    unit(f"{op}(@)", "1,4,4,4", quantized=quantized),
                    "extended",
                    atol=1,
                )
            )
        for op in ("Add", "Mul", "Concat<axis = 1>"):
            rows.append(
                Row(
                    f"{kind} {op.partition('<')[0]}",
                    unit(f"{op}(@)", operands=2, quantized=quantized),
                    "extended",
                    atol=1,
                )
            )
        rows.append(
            Row(
                f"{kind} Concat of three",
                unit("Concat<axis = -1>(@)", operands=3, quantized=quantized),
                "extended",
                atol=1,
            )
        )
        rows.append(
            Row(
                f"{kind} Where",
                unit("Where(c, @)", more=", bool[2,3,4] c", operands=2, quantized=quantized),
                "extended",
                atol=1,
            )
        )
        rows.append(
            Row(
                f"{kind} MatMul",
                unit("MatMul(@)", "2,4,4", operands=2, quantized=quantized),
                "extended",
                atol=1,
                same=quantized is I8,
            )
        )
        rows.append(
            Row(
                f"{kind} Resize",
                unit(
                    'Resize<mode = "nearest">(@, , k)',
                    "1,2,3,4",
                    constants=", float[4] k = {1, 1, 2, 2}",
                    quantized=quantized,
                ),
                "extended",
                atol=1,
            )
        )
        rows += [
            Row(f"{kind} {op} stays", unit(f"{op}(@)", operands=2, quantized=quantized), "extended", atol=1, same=True)
            for op in UNCHANGED
        ]
    for opset in (10, 13, 19, 21, 23):
        rows.append(Row("u8 Add", unit("Add(@)", operands=2), "all", opset, atol=1))
        rows.append(Row("u8 Transpose", unit("Transpose<perm = [1, 0, 2]>(@)"), "all", opset, atol=1))
    rows.append(
        Row(
            "u8 Split",
            f"g (uint8[4,3] p) => (uint8 y, uint8 w) <{U8}> {{ d = DequantizeLinear(p, s, z) a, b = "
            f"Split(d) y = QuantizeLinear(a, s, z) w = QuantizeLinear(b, s, z) }}",
            "extended",
            atol=1,
        )
    )
    rows.append(
        Row(
            "u8 ArgMax",
            f"g (uint8[4,3] p) => (int64 y) <{U8}> {{ d = DequantizeLinear(p, s, z) y = ArgMax<axis = 1>(d) }}",
            "extended",
        )
    )
    rows.append(Row("u8 ReduceMax", unit("ReduceMax<axes = [1]>(@)"), "extended", 13, atol=1))
    for kind in ("uint16", "int16"):
        rows.append(
            Row(
                f"{kind} Transpose",
                f"g ({kind}[2,3] p) => ({kind} y) <float s = {{0.05}}, {kind} z = {{0}}> {{ d = "
                f"DequantizeLinear(p, s, z) e = Transpose(d) y = QuantizeLinear(e, s, z) }}",
                "extended",
                21,
            )
        )
    return rows


def _products() -> list[Row]:
    rows: list[Row] = []
    weights = "float t = {0.02}, int8 n = {0}"
    conv = "d = DequantizeLinear(p, s, z) w = DequantizeLinear(W, t, n)"
    bias = "int32[4] b = {10, -20, 30, 40}, float bs = {0.001}, int32 bz = {0}"
    for opset in (10, 13, 19, 21):
        rows.append(
            Row(
                "u8 Conv",
                f"g (uint8[1,3,6,6] p, int8[4,3,3,3] W) => (uint8 y) <{U8}, {weights}> {{ {conv} e = "
                f"Conv(d, w) y = QuantizeLinear(e, s, z) }}",
                "extended",
                opset,
                atol=1,
            )
        )
    rows.append(
        Row(
            "u8 Conv with bias",
            f"g (uint8[1,3,6,6] p, int8[4,3,3,3] W) => (uint8 y) <{U8}, {weights}, {bias}> {{ {conv} "
            f"v = DequantizeLinear(b, bs, bz) e = Conv(d, w, v) y = QuantizeLinear(e, s, z) }}",
            "extended",
            atol=1,
        )
    )
    for act in ("Relu(e)", "Clip(e, lo, hi)"):
        rows.append(
            Row(
                f"u8 Conv, {act[:4]}",
                f"g (uint8[1,3,6,6] p, int8[4,3,3,3] W) => (uint8 y) <float s = {{0.02352941}}, uint8 z = "
                f"{{0}}, {weights}, float lo = {{0}}, float hi = {{6}}> {{ {conv} e = Conv(d, w) r = "
                f"{act} y = QuantizeLinear(r, s, z) }}",
                "extended",
                atol=1,
            )
        )
    rows.append(
        Row(
            "u8 Conv, channels",
            "g (uint8[1,3,6,6] p, int8[4,3,3,3] W) => (uint8 y) <float s = {0.05}, uint8 z = {128}, "
            "float[4] t = {0.01, 0.02, 0.03, 0.04}, int8[4] n = {0, 0, 0, 0}> { d = "
            "DequantizeLinear(p, s, z) w = DequantizeLinear<axis = 0>(W, t, n) e = Conv(d, w) y = "
            "QuantizeLinear(e, s, z) }",
            "extended",
            atol=1,
        )
    )
    matrix = "d = DequantizeLinear(p, s, z) w = DequantizeLinear(W, t, n)"
    heading = f"g (uint8[2,4] p, int8[4,3] W) => (uint8 y) <{U8}, {weights}"
    rows.append(
        Row(
            "u8 MatMul by weights",
            f"{heading}> {{ {matrix} e = MatMul(d, w) y = QuantizeLinear(e, s, z) }}",
            "extended",
            atol=1,
        )
    )
    rows.append(
        Row(
            "u8 MatMul to float",
            f"{heading}> {{ {matrix} y = MatMul(d, w) }}".replace("(uint8 y)", "(float y)"),
            "extended",
            atol=0.01,
        )
    )
    rows.append(
        Row("u8 Gemm", f"{heading}> {{ {matrix} e = Gemm(d, w) y = QuantizeLinear(e, s, z) }}", "extended", 13, atol=1)
    )
    rows.append(
        Row(
            "u8 Gemm with bias",
            f"{heading}, int32[3] b = {{10, -20, 30}}, float bs = {{0.001}}, int32 bz = {{0}}> {{ "
            f"{matrix} v = DequantizeLinear(b, bs, bz) e = Gemm(d, w, v) y = QuantizeLinear(e, s, z) }}",
            "extended",
            13,
            atol=1,
        )
    )
    rows.append(
        Row(
            "u8 Gemm to float",
            f"{heading}> {{ {matrix} y = Gemm(d, w) }}".replace("(uint8 y)", "(float y)"),
            "extended",
            atol=0.01,
        )
    )
    rows.append(
        Row(
            "u8 Conv chain",
            f"""g (float[1,3,6,6] x, int8[4,3,3,3] W, int8[4,4,1,1] U) => (float y) <{U8}, {weights}> {{ q =
            QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) w = DequantizeLinear(W, t, n)
        e = Conv(d, w) f = QuantizeLinear(e, s, z) h = DequantizeLinear(f, s, z) u =
            DequantizeLinear(U, t, n) i = Conv(h, u) j = QuantizeLinear(i, s, z) y = DequantizeLinear(j, s, z)
            }}""",
            "all",
            atol=0.2,
        )
    )
    return rows


def _pairs() -> list[Row]:
    rows: list[Row] = []
    for kind, lowest in (("uint8", 0), ("int8", -128)):
        rows.append(
            Row(
                f"Relu, Q of {kind}",
                f"g (float[2,3] x) => ({kind} y) <float s = {{0.05}}, {kind} z = {{{lowest}}}> {{ a = "
                f"Relu(x) y = QuantizeLinear(a, s, z) }}",
                "extended",
            )
        )
        rows.append(
            Row(
                f"Clip, Q of {kind}",
                f"g (float[2,3] x) => ({kind} y) <float s = {{0.02}}, {kind} z = {{{lowest}}}, float lo = "
                f"{{0}}, float hi = {{6}}> {{ a = Clip(x, lo, hi) y = QuantizeLinear(a, s, z) }}",
                "extended",
            )
        )
    rows.append(
        Row(
            "Q, DQ twice",
            f"g (float[2,3] x) => (float y) <{U8}> {{ q = QuantizeLinear(x, s, z) d = "
            f"DequantizeLinear(q, s, z) r = QuantizeLinear(d, s, z) y = DequantizeLinear(r, s, z) }}",
        )
    )
    rows.append(
        Row(
            "DQ, Q of the same parameters",
            f"g (uint8[2,3] p) => (uint8 y) <{U8}> {{ a = Max(p, p) d = DequantizeLinear(a, s, z) q = "
            f"QuantizeLinear(d, s, z) y = Min(q, q) }}",
            "extended",
        )
    )
    for op in ("MaxPool<kernel_shape = [1, 1]>", "Reshape", "Transpose"):
        call = "Reshape(d, i)" if op == "Reshape" else f"{op}(d)"
        rows.append(
            Row(
                f"propagation through {op.partition('<')[0]}",
                f"g (uint8[1,3,4,4] p) => (uint8 y) <{U8}, int64[2] i = {{3, 16}}> {{ d = "
                f"DequantizeLinear(p, s, z) e = {call} f = Transpose(e) y = QuantizeLinear(f, s, z) }}",
                "extended",
                atol=1,
            )
        )
    rows.append(
        Row(
            "a DQ read by two units",
            f"g (uint8[2,3] p) => (uint8 y, uint8 w) <{U8}> {{ d = DequantizeLinear(p, s, z) a = "
            f"Add(d, d) y = QuantizeLinear(a, s, z) t = Transpose(d) w = QuantizeLinear(t, s, z) }}",
            "extended",
            atol=1,
        )
    )
    rows.append(
        Row(
            "int8 pairs",
            f"g (float[2,3] x, float[2,3] v) => (float y) <{I8}> {{ q = QuantizeLinear(x, s, z) d = "
            f"DequantizeLinear(q, s, z) y = Add(d, v) }}",
            "extended",
            atol=0.06,
            same=True,
        )
    )
    return rows


def _dynamic() -> list[Row]:
    rows: list[Row] = []
    body = "q, qs, qz = DynamicQuantizeLinear(x) m = MatMulInteger(q, W, qz, n) c = Cast<to = 1>(m) k = Mul(qs, t)"
    heading = "g (float[2,4] x, int8[4,3] W, float[3] B) => (float y) <float t = {0.02}, int8 n = {0}> {"
    for opset in (11, 13, 21, 23):
        rows.append(Row("dynamic MatMul", f"{heading} {body} y = Mul(c, k) }}", "extended", opset, atol=0.02))
        rows.append(
            Row("dynamic MatMul, Add", f"{heading} {body} o = Mul(c, k) y = Add(o, B) }}", "extended", opset, atol=0.02)
        )
    rows.append(
        Row("dynamic MatMul, Add before", f"{heading} {body} o = Mul(k, c) y = Add(B, o) }}", "extended", atol=0.02)
    )
    rows.append(
        Row(
            "two dynamic MatMuls",
            f"{heading[:-1]}{{ {body} o = Mul(c, k) m2 = MatMulInteger(q, W, qz, n) c2 = Cast<to = "
            f"1>(m2) k2 = Mul(qs, t) o2 = Mul(c2, k2) y = Sub(o, o2) }}".replace("float[3] B", "int8[4,3] U").replace(
                "m2 = MatMulInteger(q, W", "m2 = MatMulInteger(q, U"
            ),
            "extended",
            atol=0.05,
        )
    )
    rows.append(
        Row(
            "dynamic MatMul, channels",
            f"{heading.replace('float t = {0.02}', 'float[3] t = {0.02, 0.01, 0.03}')} {body} y = Mul(c, k) }}",
            "extended",
            atol=0.02,
        )
    )
    rows.append(
        Row(
            "MatMulInteger to float",
            "g (uint8[2,4] q, int8[4,3] W, float[3] B, float qs) => (float y) <float t = {0.02}, "
            "uint8 qz = {128}, int8 n = {0}> { m = MatMulInteger(q, W, qz, n) c = Cast<to = 1>(m) k "
            "= Mul(qs, t) o = Mul(c, k) y = Add(o, B) }",
            "extended",
            atol=0.02,
        )
    )
    return rows


ROWS = (*_units(), *_products(), *_pairs(), *_dynamic())
