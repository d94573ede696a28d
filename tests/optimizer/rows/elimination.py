"""Nodes that do nothing."""

from __future__ import annotations

from rows import OPSETS, Row, over


def unary(body: str, x: str = "float[2,3,4]", y: str = "float", more: str = "") -> str:
    """A graph of x with a Neg at either end, so that nothing in between is an input or output."""
    return f"g ({x} x{more}) => ({y} y) {{ a = Neg(x) {body} y = Neg(b) }}"


def _binary() -> list[Row]:
    rows = []
    for dtype, literal in (("float", "1.0"), ("double", "1.0"), ("float16", "1.0"), ("int32", "1"), ("int64", "1")):
        zero = literal.replace("1", "0")
        for op, k in (("Add", zero), ("Sub", zero), ("Mul", literal), ("Div", literal)):
            for shape in ("", "[1]"):
                if dtype == "float16":
                    text = (
                        f"g (float16[2,3] x) => (float16 y) <float{shape} f = {{{k}}}> {{ k = Cast<to = 10>(f) a "
                        f"= Neg(x) b = {op}(a, k) y = Neg(b) }}"
                    )
                else:
                    text = (
                        f"g ({dtype}[2,3] x) => ({dtype} y) <{dtype}{shape} k = {{{k}}}> {{ a = Neg(x) b = "
                        f"{op}(a, k) y = Neg(b) }}"
                    )
                casts = dtype == "float16"
                rows.append(Row(f"noop {op} {dtype}{shape}", text, same=casts))
                if op in ("Add", "Mul"):
                    rows.append(Row(f"noop {op} {dtype}{shape} first", text.replace("(a, k)", "(k, a)"), same=casts))
    return rows


ROWS = (
    *over(OPSETS, "Identity", unary("c = Identity(a) b = Identity(c)")),
    Row("Identity of an input", "g (float[2] x) => (float y) { a = Identity(x) y = Neg(a) }"),
    Row("Identity at an output", "g (float[2] x) => (float y) { a = Neg(x) y = Identity(a) }"),
    Row("Identity between ends", "g (float[2] x) => (float y) { y = Identity(x) }", same=True),
    Row("Identity of an output", "g (float[2] x) => (float y, float z) { y = Neg(x) z = Identity(y) }", same=True),
    Row(
        "Identity in a branch",
        """g (bool c, float[2] x) => (float y) {
            y = If(c) <then_branch = t () => (float[2] p) { a = Neg(x) p = Identity(a) },
                       else_branch = e () => (float[2] q) { a2 = Identity(x) q = Abs(a2) }>
        }""",
    ),
    Row(
        "Slice by attributes",
        unary("b = Slice<starts = [0, 0], ends = [9223372036854775807, 9223372036854775807]>(a)"),
        opset=9,
    ),
    *over(
        (11, 13, 17, 23),
        "Slice to the end",
        """g (float[2,3,4] x) => (float y)
        <int64[1] s = {0}, int64[1] e = {9223372036854775807}, int64[1] ax = {1}> { a = Neg(x) b =
            Slice(a, s, e, ax) y = Neg(b) }""",
    ),
    Row(
        "Slice to the end, symbolic",
        """g (float[N,3,4] x) => (float y)
        <int64[1] s = {0}, int64[1] e = {9223372036854775807}, int64[1] ax = {-3}, int64[1] st =
            {1}> { a = Neg(x) b = Slice(a, s, e, ax, st) y = Neg(b) }""",
    ),
    Row(
        "Slice with int32",
        """g (float[N,3,4] x) => (float y)
        <int32[1] s = {0}, int32[1] e = {2147483647}> { a = Neg(x) b = Slice(a, s, e) y = Neg(b) }""",
    ),
    *over(
        (9, 11),
        "Unsqueeze of a constant",
        "g (float[4,2,3] x, float[3] K) => (float y) { k = Unsqueeze<axes = [0, 1]>(K) y = Add(x, k) }",
    ),
    *over(
        (13, 17, 23),
        "Unsqueeze of a constant",
        "g (float[4,2,3] x, float[3] K) => (float y) <int64[2] ax = {0, 1}> { k = Unsqueeze(K, ax) y = Add(x, k) }",
    ),
    *over((9, 10), "Dropout", unary("b = Dropout<ratio = 0.3>(a)")),
    *over(
        (12, 13, 17, 22, 23),
        "Dropout",
        "g (float[2,3] x) => (float y) <float r = {0.3}> { a = Neg(x) b = Dropout(a, r) y = Neg(b) }",
    ),
    *over(
        (13, 22),
        "Dropout, training off",
        "g (float[2,3] x) => (float y) <float r = {0.3}, bool t = {0}> { a = Neg(x) b, m = "
        "Dropout(a, r, t) y = Neg(b) }",
    ),
    Row("Dropout without ratio", unary("b = Dropout(a)")),
    Row(
        "Dropout in double",
        "g (double[2,3] x) => (double y) <float r = {0.5}> { a = Neg(x) b = Dropout(a, r) y = Neg(b) }",
    ),
    *over(
        (9, 13, 17, 23),
        "Expand",
        "g (float[2,3] x) => (float y) <int64[2] s = {1, 3}> { a = Neg(x) b = Expand(a, s) y = Neg(b) }",
    ),
    Row(
        "Expand, lower rank",
        "g (float[2,3] x) => (float y) <int64[1] s = {1}> { a = Neg(x) b = Expand(a, s) y = Neg(b) }",
    ),
    Row(
        "Expand, symbolic",
        "g (float[N,3] x) => (float y) <int64[2] s = {1, 3}> { a = Neg(x) b = Expand(a, s) y = Neg(b) }",
    ),
    *over((9, 13, 19, 21, 23), "Cast to the same type", unary("b = Cast<to = 1>(a)")),
    Row("Cast to the same type, int64", unary("b = Cast<to = 7>(a)", "int64[2,3]", "int64")),
    Row("Cast to the same type, float16", unary("b = Cast<to = 10>(a)", "float16[2,3]", "float16"), same=True),
    *over(
        (9, 13, 15, 19, 21, 23),
        "Cast before Shape",
        "g (float[N,3] x) => (int64 y) { a = Cast<to = 7>(x) y = Shape(a) }",
    ),
    Row(
        "Cast before two Shapes",
        "g (float[N,3] x) => (int64 y, int64 z) { a = Cast<to = 7>(x) y = Shape(a) z = Shape<start = 0, end = 1>(a) }",
        opset=15,
    ),
    *_binary(),
    *over(
        (9, 11, 17, 23),
        "noop Add",
        "g (float[N,3] x) => (float y) <float k = {0.0}> { a = Neg(x) b = Add(a, k) y = Neg(b) }",
    ),
    Row(
        "noop by Constant node",
        "g (float[N,3] x) => (float y) { k = Constant<value = float {1.0}>() a = Neg(x) b = Mul(k, a) y = Neg(b) }",
    ),
    Row(
        "noop chain",
        "g (float[N,3] x) => (float y) <float o = {1.0}, float z = {0.0}> { a = Neg(x) b = "
        "Mul(a, o) c = Add(b, z) d = Div(c, o) e = Sub(d, z) y = Neg(e) }",
    ),
    *over(
        (9, 13, 17, 23),
        "Div 1, Mul",
        "g (float[2,3] x, float[2,3] z) => (float y) <float one = {1.0}> { a = Div(one, x) y = Mul(a, z) }",
    ),
    Row(
        "Div 1, Mul behind",
        "g (float[N,3] x, float[3] z) => (float y) <float[1] one = {1.0}> { a = Div(one, x) y = Mul(z, a) }",
    ),
    Row(
        "Div 1, Mul in double",
        "g (double[2,3] x, double[2,3] z) => (double y) <double one = {1.0}> { a = Div(one, x) y = Mul(a, z) }",
    ),
    Row(
        "Div 1, Mul in float16",
        "g (float16[2,3] x, float16[2,3] z) => (float16 y) <float f = {1.0}> { one = Cast<to = "
        "10>(f) a = Div(one, x) y = Mul(a, z) }",
        atol=0.1,
        same=True,
    ),
    *over((9, 10), "Relu, Clip", unary("c = Relu(a) b = Clip<min = 0.0, max = 1.5>(c)")),
    Row("Relu, Clip to below 0", unary("c = Relu(a) b = Clip<min = -1.0, max = 1.5>(c)"), opset=9),
    *over(
        (11, 12, 13, 17, 23),
        "Relu, Clip",
        "g (float[2,3] x) => (float y) <float lo = {-1.0}, float hi = {1.5}> { a = Neg(x) b = "
        "Relu(a) c = Clip(b, lo, hi) y = Neg(c) }",
    ),
    Row(
        "Relu, Clip from above 0",
        "g (float[2,3] x) => (float y) <float lo = {0.5}, float hi = {1.5}> { a = Relu(x) y = Clip(a, lo, hi) }",
    ),
    Row(
        "Relu, Clip without minimum",
        "g (float[2,3] x) => (float y) <float hi = {1.5}> { a = Relu(x) y = Clip(a, , hi) }",
    ),
    Row("Relu, bare Clip", "g (float[2,3] x) => (float y) { a = Relu(x) y = Clip(a) }"),
    Row(
        "Relu, Clip in float16",
        "g (float16[2,3] x) => (float16 y) <float l = {-1.0}, float h = {1.5}> { lo = Cast<to = "
        "10>(l) hi = Cast<to = 10>(h) a = Relu(x) y = Clip(a, lo, hi) }",
    ),
    Row(
        "Relu, Clip in double",
        "g (double[2,3] x) => (double y) <double lo = {-1.0}, double hi = {1.5}> { a = Relu(x) y = Clip(a, lo, hi) }",
        wrong=True,
    ),
    *over(
        (9, 13, 16, 23),
        "Not, Where",
        "g (bool[2,3] c, float[2,3] p, float[2,3] q) => (float y) { n = Not(c) y = Where(n, p, q) }",
    ),
    Row(
        "Not, two Wheres",
        "g (bool[2,3] c, float[2,3] p, float[2,3] q) => (float y, float z) { n = Not(c) y = "
        "Where(n, p, q) z = Where(n, q, p) }",
    ),
    Row(
        "Not, Where of int64",
        "g (bool[2,1] c, int64[2,3] p, int64[3] q) => (int64 y) { n = Not(c) y = Where(n, p, q) }",
    ),
    Row("Cast there and back", unary("c = Cast<to = 11>(a) b = Cast<to = 1>(c)")),
    Row("Cast int32 to int64 and back", unary("c = Cast<to = 7>(a) b = Cast<to = 6>(c)", "int32[2,3]", "int32")),
    Row(
        "Cast bool to float and back",
        "g (bool[2,3] x) => (bool y) { a = Not(x) b = Cast<to = 1>(a) c = Cast<to = 9>(b) y = Not(c) }",
    ),
    Row("Cast chain", "g (float[2,3] x) => (float16 y) { a = Neg(x) b = Cast<to = 11>(a) y = Cast<to = 10>(b) }"),
    *(
        Row(
            f"LabelEncoder twice, {version}",
            """g (string[3] x) => (string y) {
            a = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b", "c"], values_int64s = [0, 1, 2],
            default_int64 = 9>(x)
            y = ai.onnx.ml.LabelEncoder<keys_int64s = [0, 1, 2], values_strings = ["p", "q", "r"],
            default_string = "none">(a)
        }""",
            ml=version,
        )
        for version in (2, 3, 4)
    ),
    Row(
        "LabelEncoder twice, integers",
        """g (int64[3] x) => (float y) {
            a = ai.onnx.ml.LabelEncoder<keys_int64s = [0, 1, 2], values_int64s = [5, 6, 7],
            default_int64 = 5>(x)
            y = ai.onnx.ml.LabelEncoder<keys_int64s = [5, 6, 7], values_floats = [0.5, 1.5, 2.5],
            default_float = -1.0>(a)
        }""",
        ml=4,
    ),
)
