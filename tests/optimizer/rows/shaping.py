"""Constant folding, equal nodes, arithmetic with shapes, Reshape."""

from __future__ import annotations

from rows import Row, over

OPSETS = (9, 11, 13, 17, 20, 23)


def _folding() -> list[Row]:
    rows: list[Row] = []
    rows += over(
        OPSETS,
        "Add of constants",
        "g (float[2,3] x, float[3] A, float[3] B) => (float y) { k = Add(A, B) y = Mul(x, k) }",
    )
    rows += over(
        (9, 11, 13, 15, 19, 21, 23),
        "Shape",
        "g (float[2,3] x) => (float y) { s = Shape(x) a = Abs(x) y = Reshape(a, s) }",
    )
    rows.append(
        Row(
            "Shape from start to end",
            "g (float[N,3,4] x) => (int64 y) { s = Shape<start = 1, end = -1>(x) y = Add(s, s) }",
            opset=15,
            same=False,
        )
    )
    rows.append(Row("Shape at an output", "g (float[2,3] x) => (int64 y) { y = Shape(x) }"))
    rows.append(Row("Size", "g (float[2,3] x) => (int64 y) { a = Size(x) y = Add(a, a) }"))
    rows.append(
        Row(
            "Shape, Gather, Unsqueeze, Concat",
            """g (float[2,3,4] x) => (float y) <int64 i = {1}, int64[1] ax = {0}, int64[1] n = {-1}> {
        s = Shape(x) d = Gather(s, i) u = Unsqueeze(d, ax) c = Concat<axis = 0>(n, u) y = Reshape(x, c) }""",
        )
    )
    rows.append(
        Row(
            "ConstantOfShape, Expand",
            """g (float[2,3] x) => (float y) { s = Shape(x) z = ConstantOfShape<value = float[1] {1.5}>(s) y =
            Add(x, z) }""",
        )
    )
    rows.append(
        Row(
            "Range",
            """g (int64[3] x) => (int64 y) <int64 a = {0}, int64 b = {3}, int64 c = {1}> { r = Range(a, b, c) y
            = Add(x, r) }""",
        )
    )
    rows.append(
        Row("NonZero", "g (int64[1,2] x) => (int64 y) <float[3] k = {1, 0, 2}> { r = NonZero(k) y = Add(x, r) }")
    )
    rows += over(
        (12, 13, 15, 16, 23),
        "GreaterOrEqual",
        "g (bool[3] x) => (bool y) <float[3] k = {1, 0, 2}, float t = {1}> { r = GreaterOrEqual(k, t) y = And(x, r) }",
    )
    rows.append(
        Row(
            "Cast of a constant",
            "g (float[2,3] x) => (float y) <int64[3] k = {1, 2, 3}> { r = Cast<to = 1>(k) y = Mul(x, r) }",
        )
    )
    rows.append(
        Row("Transpose of a constant", "g (float[2,3] x, float[3,2] K) => (float y) { k = Transpose(K) y = Mul(x, k) }")
    )
    rows.append(
        Row(
            "Concat, Slice, Gather, Where of constants",
            """g (float[2] x, float[3] A, float[3] B) => (float y)
        <int64[1] s = {1}, int64[1] e = {5}, int64[2] i = {0, 2}, bool[2] c = {1, 0}> {
        j = Concat<axis = 0>(A, B) k = Slice(j, s, e) l = Gather(k, i) m = Where(c, l, x) n =
            Abs(l) y = Add(m, n) }""",
        )
    )
    rows.append(Row("a constant output", "g (float[3] x, float[3] A) => (float y, float z) { y = Abs(x) z = Neg(A) }"))
    rows.append(
        Row(
            "QuantizeLinear of a constant",
            "g (int8[3] x, float[3] A) => (int8 y) <float s = {0.1}, int8 z = {0}> { q = "
            "QuantizeLinear(A, s, z) y = Max(x, q) }",
        )
    )
    rows.append(
        Row(
            "com.microsoft QuantizeLinear of a constant",
            "g (int8[3] x, float[3] A) => (int8 y) <float s = {0.1}, int8 z = {0}> { q = "
            "com.microsoft.QuantizeLinear(A, s, z) y = Max(x, q) }",
        )
    )
    for value in (0, 1):
        rows.append(
            Row(
                f"If {value}",
                f"""g (float[2] x) => (float y) <bool c = {{{value}}}> {{
            z = If(c) <then_branch = t () => (float[2] p) {{ a = Neg(x) p = Abs(a) }}, else_branch
            = e () => (float[2] q) {{ q = Exp(x) }}>
            y = Neg(z) }}""",
            )
        )
    rows.append(
        Row(
            "If on a computed constant",
            """g (float[2] x) => (float y) <float k = {1}> { c = Cast<to = 9>(k)
            y = If(c) <then_branch = t () => (float[2] p) { p = Abs(x) }, else_branch = e () =>
            (float[2] q) { q = Exp(x) }> }""",
        )
    )
    rows.append(
        Row(
            "If on a rank",
            """g (float[1,2] x) => (float y) <int64 i = {0}, int64 one = {1}> { s = Shape(x) d = Gather(s, i) c
            = Equal(d, one)
            y = If(c) <then_branch = t () => (float[2] p) { ax = Constant<value_ints = [0]>() p =
            Squeeze(x, ax) }, else_branch = e () => (float[1,2] q) { q = Identity(x) }> }""",
        )
    )
    rows.append(
        Row(
            "constants in a branch",
            """g (bool c, float[3] x, float[3] A, float[3] B) => (float y) {
            y = If(c) <then_branch = t () => (float[3] p) { k = Add(A, B) p = Mul(x, k) },
            else_branch = e () => (float[3] q) { q = Sub(x, A) }> }""",
        )
    )
    rows.append(
        Row(
            "chain of Constant nodes",
            """g (float[2] x) => (float y) { a = Constant<value_float = 2.0>() b = Constant<value_float = 3.0>()
            c = Mul(a, b) d = Sqrt(c) e = Div(d, a) y = Mul(x, e) }""",
        )
    )
    rows.append(
        Row(
            "OneHot, CumSum, Trilu, Einsum of constants",
            """g (float[3,3] x, float[3,3] A) => (float y) <int64[3] i = {0, 2, 1}, int64 d = {3}, float[2] v =
            {0.0, 1.0}, int64 ax = {0}> {
            o = OneHot(i, d, v) c = CumSum(A, ax) t = Trilu(c) e = Einsum<equation =
            "ij,jk->ik">(o, t) y = Add(x, e) }""",
            opset=14,
        )
    )
    rows.append(
        Row(
            "Loop-free control: Squeeze and Unsqueeze of a constant",
            "g (float[2,3] x, float[1,3] A) => (float y) <int64[1] ax = {0}> { a = Squeeze(A, ax) b "
            "= Unsqueeze(a, ax) y = Mul(x, b) }",
        )
    )
    return rows


def _equal_nodes() -> list[Row]:
    rows: list[Row] = []
    rows += over((9, 13, 23), "equal nodes", "g (float[2,3] x) => (float y) { a = Exp(x) b = Exp(x) y = Mul(a, b) }")
    rows.append(
        Row(
            "equal chains",
            "g (float[2,3] x, float[3] K) => (float y) { a = Exp(x) b = Exp(x) c = Mul(a, K) d = "
            "Mul(b, K) y = Sub(c, d) }",
        )
    )
    rows.append(
        Row(
            "defaults stated and left out",
            "g (float[2,3] x) => (float y) { a = Softmax(x) b = Softmax<axis = -1>(x) y = Mul(a, b) }",
        )
    )
    rows.append(
        Row(
            "equal TopK",
            "g (float[2,3] x) => (float y, int64 z) <int64[1] k = {2}> { a, i = TopK(x, k) b, j = "
            "TopK(x, k) y = Add(a, b) z = Add(i, j) }",
        )
    )
    rows.append(
        Row("one of two is an output", "g (float[2,3] x) => (float y, float z) { y = Exp(x) a = Exp(x) z = Neg(a) }")
    )
    rows.append(Row("both are outputs", "g (float[2,3] x) => (float y, float z) { y = Exp(x) z = Exp(x) }", same=True))
    rows.append(
        Row(
            "equal nodes over equal constants",
            "g (float[2,3] x) => (float y) <float p = {2.0}, float q = {2.0}> { a = Mul(x, p) b = "
            "Mul(x, q) y = Sub(a, b) }",
        )
    )
    rows.append(
        Row(
            "equal nodes over equal int64 constants",
            "g (float[2,3] x) => (float y) <int64[1] p = {6}, int64[1] q = {6}> { a = Reshape(x, p) "
            "b = Reshape(x, q) y = Sub(a, b) }",
        )
    )
    rows.append(
        Row(
            "equal nodes over equal double constants",
            "g (double[2,3] x) => (double y) <double p = {2}, double q = {2}> { a = Mul(x, p) b = "
            "Mul(x, q) y = Sub(a, b) }",
        )
    )
    rows.append(
        Row(
            "equal nodes in a branch",
            """g (bool c, float[2] x) => (float y) {
            y = If(c) <then_branch = t () => (float[2] p) { a = Exp(x) b = Exp(x) p = Add(a, b) },
            else_branch = e () => (float[2] q) { q = Neg(x) }> }""",
        )
    )
    rows.append(
        Row(
            "equal Shapes",
            "g (float[N,3] x, float[N,3] z) => (float y, float w) { s = Shape(x) t = Shape(x) y = "
            "Expand(z, s) w = Expand(x, t) }",
            opset=13,
        )
    )
    return rows


def _reshapes() -> list[Row]:
    rows: list[Row] = []
    rows += over(
        (9, 13, 14, 19, 21, 23),
        "Reshape twice",
        "g (float[2,3,4] x) => (float y) <int64[2] s = {6, 4}, int64[2] t = {8, -1}> { a = "
        "Reshape(x, s) y = Reshape(a, t) }",
    )
    rows += over(
        (9, 11),
        "Reshape, Squeeze, Unsqueeze",
        "g (float[2,3,4] x) => (float y) <int64[3] s = {6, 1, 4}> { a = Reshape(x, s) b = "
        "Squeeze<axes = [1]>(a) y = Unsqueeze<axes = [0, 3]>(b) }",
    )
    rows += over(
        (13, 21, 23),
        "Reshape, Squeeze, Unsqueeze",
        """g (float[2,3,4] x) => (float y) <int64[3] s = {6, 1, 4}, int64[1] a1 = {1}, int64[2] a2 = {0, -1}> {
        a = Reshape(x, s) b = Squeeze(a, a1) y = Unsqueeze(b, a2) }""",
    )
    rows.append(
        Row(
            "Reshape three times",
            "g (float[2,3,4] x) => (float y) <int64[1] s = {24}, int64[2] t = {4, 6}, int64[3] u = "
            "{0, 2, 3}> { a = Reshape(x, s) b = Reshape(a, t) y = Reshape(b, u) }",
        )
    )
    rows.append(
        Row(
            "Reshape of int64",
            "g (int64[2,6] x) => (int64 y) <int64[1] s = {12}, int64[2] t = {4, 3}> { a = Reshape(x, "
            "s) y = Reshape(a, t) }",
        )
    )
    rows.append(
        Row(
            "Flatten, Reshape",
            "g (float[2,3,4] x) => (float y) <int64[3] t = {2, 4, 3}> { a = Flatten(x) y = Reshape(a, t) }",
        )
    )
    rows.append(
        Row(
            "Unsqueeze, Squeeze",
            "g (float[N,3] x) => (float y) <int64[1] i = {1}> { a = Neg(x) b = Unsqueeze(a, i) c = "
            "Squeeze(b, i) y = Neg(c) }",
        )
    )
    rows.append(
        Row(
            "Reshape to the same shape",
            "g (float[N,3] x) => (float y) <int64[2] s = {-1, 3}> { a = Neg(x) b = Reshape(a, s) y = Neg(b) }",
        )
    )
    dims = (
        "<int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}, int64[1] ax = {0}, int64[1] heads = "
        "{2}, int64[1] rest = {-1}>"
    )
    rows.append(
        Row(
            "Reshape by its own batch",
            f"""g (float[N,3,4] x) => (float y) {dims} {{
        s = Shape(x) d = Gather(s, i0) u = Unsqueeze(d, ax) c = Concat<axis = 0>(u, rest) y =
            Reshape(x, c) }}""",
        )
    )
    rows.append(
        Row(
            "Reshape by two of its own dims",
            f"""g (float[N,L,4] x) => (float y) {dims} {{
        s = Shape(x) d = Gather(s, i0) u = Unsqueeze(d, ax) t = Shape(x) e = Gather(t, i1) v =
            Unsqueeze(e, ax) c = Concat<axis = 0>(u, v, heads, heads) y = Reshape(x, c) }}""",
        )
    )
    rows.append(
        Row(
            "Reshape by an unknown quotient",
            """g (float[N,L,M] x) => (float y) <int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}, int64[1]
            ax = {0}, int64 k = {1}, int64[1] one = {1}> {
        s = Shape(x) d = Gather(s, i0) u = Unsqueeze(d, ax) e = Gather(s, i1) v = Unsqueeze(e, ax)
            f = Gather(s, i2) h = Div(f, k) w = Unsqueeze(h, ax)
        c = Concat<axis = 0>(u, v, one, w) y = Reshape(x, c) }""",
        )
    )
    for opset in (9, 11):
        rows.append(
            Row(
                "Reshape by its own batch, axes as attribute",
                """g (float[N,3,4] x) => (float y) <int64 i0 = {0}, int64[1] rest = {-1}> {
        s = Shape(x) d = Gather(s, i0) u = Unsqueeze<axes = [0]>(d) c = Concat<axis = 0>(u, rest) y
            = Reshape(x, c) }""",
                opset=opset,
            )
        )
    rows.append(
        Row(
            "Reshape by a Slice of its shape",
            """g (float[N,3,4] x) => (float y) <int64[1] b = {0}, int64[1] e = {1}, int64[1] rest = {-1}> {
        s = Shape(x) u = Slice(s, b, e) c = Concat<axis = 0>(u, rest) y = Reshape(x, c) }""",
        )
    )
    rows.append(
        Row(
            "Reshape by the shape of what it was",
            f"""g (float[N,3,4] x, float[4,5] W) => (float y) {dims} {{
        s = Shape(x) d = Gather(s, i0) u = Unsqueeze(d, ax) m = MatMul(x, W) c = Concat<axis =
            0>(u, rest) y = Reshape(m, c) }}""",
        )
    )
    return rows


ROWS = (*_folding(), *_equal_nodes(), *_reshapes())
