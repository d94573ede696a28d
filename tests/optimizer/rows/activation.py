"""Gelu, normalizations and Split."""

from __future__ import annotations

from rows import Row, over

ROOT_TWO = 1.4142135381698608
SLOW_SKIP = "SkipLayerNormalization is slower than Add and LayerNormalization"


def _gelus() -> list[Row]:
    rows: list[Row] = []
    numbers = f"<float r = {{{ROOT_TWO}}}, float one = {{1.0}}, float h = {{0.5}}>"
    exact = "d = Div(x, r) e = Erf(d) a = Add(e, one)"
    tails = {
        "half of x": "m = Mul(x, h) y = Mul(m, a)",
        "half of the product": "m = Mul(x, a) y = Mul(m, h)",
        "reversed": "m = Mul(h, x) y = Mul(a, m)",
    }
    for name, tail in tails.items():
        rows += over((20, 23), f"Gelu, {name}", f"g (float[2,3,4] x) => (float y) {numbers} {{ {exact} {tail} }}")
        rows += over(
            (9, 11, 13, 17, 20, 23),
            f"Gelu, {name}",
            f"g (float[N,3,4] x) => (float y) {numbers} {{ {exact} {tail} }}",
            "extended",
        )
    rows.append(
        Row(
            "Gelu, constants of rank 1",
            f"g (float[2,3,4] x) => (float y) {numbers.replace('float ', 'float[1] ')} {{ {exact} "
            f"{tails['half of x']} }}",
            "extended",
        )
    )
    rows.append(
        Row(
            "Gelu, rounded root",
            f"g (float[2,3,4] x) => (float y) {numbers.replace(str(ROOT_TWO), '1.41420996')} {{ "
            f"{exact} {tails['half of x']} }}",
            "extended",
        )
    )
    rows.append(
        Row(
            "Gelu by a product",
            f"g (float[2,3,4] x) => (float y) {numbers.replace(str(ROOT_TWO), '0.70710678')} {{ d = "
            f"Mul(x, r) e = Erf(d) a = Add(e, one) f = Mul(a, h) y = Mul(x, f) }}",
            "extended",
        )
    )
    for order in ("x, B", "B, x"):
        rows.append(
            Row(
                f"Add {order}, Gelu",
                f"g (float[2,3,4] x, float[4] B) => (float y) {numbers} {{ s = Add({order}) "
                f"{exact.replace('(x', '(s')} {tails['half of x'].replace('(x', '(s')} }}",
                "extended",
            )
        )
        for approximate in ("none", "tanh"):
            rows.append(
                Row(
                    f"Add {order}, Gelu {approximate}",
                    f"g (float[2,3,4] x, float[4] B) => (float y) {{ s = Add({order}) y = Gelu<approximate = "
                    f'"{approximate}">(s) }}',
                    "extended",
                    20,
                )
            )
    rows.append(
        Row(
            "MatMul, Add, Gelu",
            f"g (float[N,3,4] i, float[4,5] W, float[5] B) => (float y) {numbers} {{ j = MatMul(i, W) "
            f"x = Add(j, B) {exact} {tails['half of x']} }}",
            "extended",
        )
    )
    cubic = "<float c = {0.044715}, float k = {0.7978845608}, float one = {1.0}, float h = {0.5}, float three = {3.0}>"
    first = "a = Mul(x, x) b = Mul(a, c) d = Add(b, one) e = Mul(x, k) i = Mul(e, d)"
    second = "p = Pow(x, three) b = Mul(p, c) d = Add(x, b) i = Mul(d, k)"
    third = "q = Mul(x, c) a = Mul(q, x) d = Add(a, one) e = Mul(x, k) i = Mul(d, e)"
    for name, body in (("x * x", first), ("Pow", second), ("c * x * x", third)):
        for opset in (9, 13, 20, 23):
            rows.append(
                Row(
                    f"tanh Gelu by {name}",
                    f"g (float[2,3,4] x) => (float z) {cubic} {{ {body} t = Tanh(i) u = Add(t, one) v = "
                    f"Mul(x, h) y = Mul(v, u) z = Neg(y) }}",
                    "extended",
                    opset,
                )
            )
    rows.append(
        Row(
            "Add, tanh Gelu",
            f"g (float[2,3,4] w, float[4] B) => (float z) {cubic} {{ x = Add(w, B) {second} t = "
            f"Tanh(i) u = Add(t, one) v = Mul(x, h) y = Mul(v, u) z = Neg(y) }}",
            "extended",
        )
    )
    for opset in (9, 13, 23):
        rows.append(Row("SiLU", "g (float[2,3,4] x) => (float y) { s = Sigmoid(x) y = Mul(x, s) }", "extended", opset))
        rows.append(
            Row(
                "QuickGelu",
                "g (float[2,3,4] x) => (float y) <float a = {1.702}> { p = Mul(a, x) s = Sigmoid(p) y = Mul(s, x) }",
                "extended",
                opset,
            )
        )
    rows.append(
        Row(
            "QuickGelu, alpha of rank 1",
            "g (float[N,4] x) => (float y) <float[1] a = {1.702}> { p = Mul(x, a) s = Sigmoid(p) y = Mul(x, s) }",
            "extended",
        )
    )
    return rows


def _norms() -> list[Row]:
    rows: list[Row] = []
    inputs = "float[2,3,4] x, float[4] S, float[4] B"
    numbers = "<float two = {2.0}, float e = {0.00001}>"
    tail = "v = {mean}(p) w = Add(v, e) r = Sqrt(w) n = Div(d, r) o = Mul(n, S) y = Add(o, B)"
    mean = "ReduceMean<axes = [-1]>"
    body = f"m = {mean}(x) d = Sub(x, m) p = Pow(d, two) {tail.format(mean=mean)}"
    for opset in (9, 11, 13, 17):
        rows += [
            Row("LayerNormalization", f"g ({inputs}) => (float y) {numbers} {{ {body} }}", level, opset)
            for level in ("basic", "extended")
            if level == "extended" or opset > 16
        ]
    late = body.replace(mean + "(x)", "ReduceMean(x, ax)").replace(mean + "(p)", "ReduceMean(p, ax)")
    for opset in (18, 20, 23):
        rows += [
            Row(
                "LayerNormalization",
                f"g ({inputs}) => (float y) {numbers[:-1]}, int64[1] ax = {{-1}}> {{ {late} }}",
                level,
                opset,
            )
            for level in ("basic", "extended")
        ]
    rows.append(
        Row(
            "LayerNormalization, positive axis",
            f"g ({inputs}) => (float y) {numbers} {{ {body.replace('[-1]', '[2]')} }}",
            "extended",
        )
    )
    rows.append(
        Row(
            "LayerNormalization, symbolic",
            f"g ({inputs.replace('2,3,4', 'N,L,4')}) => (float y) {numbers} {{ {body} }}",
            "extended",
        )
    )
    rows.append(
        Row(
            "LayerNormalization, other orders",
            f"g ({inputs}) => (float y) {numbers} {{ "
            f"{body.replace('Mul(n, S)', 'Mul(S, n)').replace('Add(o, B)', 'Add(B, o)')} }}",
            "extended",
        )
    )
    rows.append(
        Row(
            "LayerNormalization, two differences",
            f"g ({inputs}) => (float y) {numbers} {{ "
            f"{body.replace('Div(d', 'Div(d2').replace('p = ', 'd2 = Sub(x, m) p = ')} }}",
            "extended",
        )
    )
    rows.append(
        Row(
            "LayerNormalization in double",
            f"g ({inputs.replace('float', 'double')}) => (double y) <double two = {{2.0}}, double e = "
            f"{{0.0009765625}}> {{ {body} }}",
            opset=17,
        )
    )
    rows.append(
        Row(
            "LayerNormalization, cubed",
            f"g ({inputs}) => (float y) {numbers.replace('2.0', '4.0')} {{ {body} }}",
            "extended",
            wrong=True,
        )
    )
    rows.append(
        Row(
            "LayerNormalization, epsilon first",
            f"g ({inputs}) => (float y) {numbers.replace('0.00001', '0.5')} {{ "
            f"{body.replace('Add(v, e)', 'Add(e, v)')} }}",
            "extended",
            wrong=True,
            until="1.31",
        )
    )
    rows.append(
        Row(
            "LayerNormalization, mean minus x",
            f"g ({inputs}) => (float y) {numbers} {{ {body.replace('Sub(x, m)', 'Sub(m, x)')} }}",
            "extended",
            wrong=True,
        )
    )
    unknown = inputs.replace("2,3,4", "N,3,one")
    rows.append(
        Row(
            "LayerNormalization, one broadcast",
            f"g ({unknown}) => (float y) {numbers} {{ {body} }}",
            "extended",
            wrong=True,
        )
    )
    rms = f"p = Pow(x, two) v = {mean}(p) w = Add(v, e) r = Sqrt(w)"
    for name, tail in (
        ("Div", "n = Div(x, r) y = Mul(n, S)"),
        ("scale first", "n = Div(x, r) y = Mul(S, n)"),
        ("Div of one", "i = Div(one, r) n = Mul(x, i) y = Mul(n, S)"),
    ):
        for opset in (9, 13, 17):
            rows.append(
                Row(
                    f"root mean square, {name}",
                    f"g (float[N,3,4] x, float[4] S) => (float y) {numbers[:-1]}, float one = {{1.0}}> {{ "
                    f"{rms} {tail} }}",
                    "extended",
                    opset,
                )
            )
    rows.append(
        Row(
            "root mean square",
            f"g (float[N,3,4] x, float[4] S) => (float y) {numbers[:-1]}, int64[1] ax = {{-1}}> {{ "
            f"{rms.replace(mean + '(p)', 'ReduceMean(p, ax)')} n = Div(x, r) y = Mul(n, S) }}",
            "extended",
            18,
        )
    )
    for opset in (17, 23):
        rows.append(
            Row(
                "Add, LayerNormalization",
                "g (float[2,3,4] x, float[2,3,4] s, float[4] S, float[4] B) => (float y) { a = Add(x, s) "
                "y = LayerNormalization(a, S, B) }",
                "extended",
                opset,
                dearer=SLOW_SKIP,
            )
        )
    rows.append(
        Row(
            "LayerNormalization stays",
            "g (float[2,3,4] x, float[4] S, float[4] B) => (float y) { a = Neg(x) y = LayerNormalization(a, S, B) }",
            "extended",
            17,
            same=True,
        )
    )
    return rows


def _splits() -> list[Row]:
    rows: list[Row] = []
    gathers = "a = Gather<axis = 1>(x, i) b = Gather<axis = 1>(x, j) c = Gather<axis = 1>(x, k)"
    use = "y = Sum(a, b, c)"
    for opset in (13, 18, 23):
        rows.append(
            Row(
                "Gathers share out",
                f"g (float[2,3,4] x) => (float y) <int64[1] i = {{0}}, int64[1] j = {{1}}, int64[1] k = "
                f"{{-1}}> {{ {gathers} {use} }}",
                "extended",
                opset,
            )
        )
        rows.append(
            Row(
                "Slices share out",
                f"g (float[2,6] x) => (float y) <int64[1] p = {{0}}, int64[1] q = {{2}}, int64[1] r = "
                f"{{4}}, int64[1] t = {{6}}, int64[1] ax = {{1}}> {{ a = Slice(x, p, q, ax) b = Slice(x, "
                f"q, r, ax) c = Slice(x, r, t, ax) {use} }}",
                "extended",
                opset,
            )
        )
    rows.append(
        Row(
            "scalar Gathers share out",
            f"g (float[2,3,4] x) => (float y) <int64 i = {{0}}, int64 j = {{1}}, int64 k = {{2}}> {{ "
            f"{gathers} {use} }}",
            "extended",
            same=True,
        )
    )
    rows.append(
        Row(
            "Slice and Gather share out",
            "g (float[2,4] x) => (float y) <int64[1] p = {0}, int64[1] q = {3}, int64[1] i = {3}, "
            "int64[1] ax = {1}> { a = Slice(x, p, q, ax) b = Gather<axis = 1>(x, i) y = Mul(a, b) }",
            "extended",
        )
    )
    for opset in (11, 13, 23):
        rows.append(
            Row(
                "Gather by a Range",
                "g (float[6,4] x, int64 n) => (float y) <int64 z = {0}, int64 one = {1}> { r = Range(z, "
                "n, one) y = Gather(x, r) }",
                "extended",
                opset,
                same=True,
            )
        )
    rows.append(
        Row(
            "Gather by a Range along axis 1",
            "g (float[6,4] x, int64 n) => (float y) <int64 z = {1}, int64 one = {2}> { r = Range(z, "
            "n, one) y = Gather<axis = 1>(x, r) }",
            "extended",
            same=True,
        )
    )
    return rows


ROWS = (*_gelus(), *_norms(), *_splits())
