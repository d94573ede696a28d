"""Transposes that meet or cross other operators, and strided Slices that are SpaceToDepth."""

from __future__ import annotations

from rows import Row, over


def _space_to_depth() -> list[Row]:
    rows: list[Row] = []
    for name, order in (("", ((0, 0), (0, 1), (1, 0), (1, 1))), (", other order", ((0, 0), (1, 0), (0, 1), (1, 1)))):
        for x in ("float[1,3,4,6]", "float[N,3,4,6]", "double[1,3,4,6]"):
            slices = " ".join(f"p{i} = Slice(x, s{r}{c}, e, ax, st)" for i, (r, c) in enumerate(order))
            starts = ", ".join(f"int64[2] s{r}{c} = {{{r}, {c}}}" for r, c in order)
            constants = (
                f"<{starts}, int64[2] e = {{9223372036854775807, 9223372036854775807}}, int64[2] ax = "
                f"{{2, 3}}, int64[2] st = {{2, 2}}>"
            )
            rows.append(
                Row(
                    f"SpaceToDepth{name} {x}",
                    f"g ({x} x) => ({x.split('[')[0]} y) {constants} {{ {slices} y = Concat<axis = 1>(p0, p1, p2, p3) }}",
                )
            )
    one = (
        "<int64[1] z = {0}, int64[1] o = {1}, int64[1] e = {9223372036854775807}, int64[1] h = "
        "{2}, int64[1] w = {3}, int64[1] st = {2}>"
    )
    halves = " ".join(
        f"r{i} = Slice(x, {'zo'[r]}, e, h, st) p{i} = Slice(r{i}, {'zo'[c]}, e, w, st)"
        for i, (r, c) in enumerate(((0, 0), (1, 0), (0, 1), (1, 1)))
    )
    rows.append(
        Row(
            "SpaceToDepth, two Slices each",
            f"g (float[1,3,4,6] x) => (float y) {one} {{ {halves} y = Concat<axis = 1>(p0, p1, p2, p3) }}",
        )
    )
    return rows


def _transposes() -> list[Row]:
    there, back = "t = Transpose<perm = [0, 2, 3, 1]>(x)", "y = Transpose<perm = [0, 3, 1, 2]>(u)"
    rows: list[Row] = []
    for op in (
        "Relu",
        "Neg",
        "Sigmoid",
        "Tanh",
        "Elu",
        "LeakyRelu",
        "Erf",
        "Sqrt",
        "Exp",
        "HardSigmoid",
        "Softplus",
        "Softsign",
        "Selu",
        "ThresholdedRelu",
        "Not",
    ):
        kind = "bool" if op == "Not" else "float"
        rows.append(
            Row(f"Transpose, {op}, Transpose", f"g ({kind}[1,3,4,5] x) => ({kind} y) {{ {there} u = {op}(t) {back} }}")
        )
    for opset in (9, 11, 17, 23):
        rows.append(
            Row(
                "Transpose, Relu, Transpose",
                f"g (float[N,3,4,5] x) => (float y) {{ {there} u = Relu(t) {back} }}",
                opset=opset,
            )
        )
    rows.append(
        Row("Transpose, Cast, Transpose", f"g (float[1,3,4,5] x) => (int64 y) {{ {there} u = Cast<to = 7>(t) {back} }}")
    )
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "PRelu"):
        rows.append(
            Row(
                f"Transpose, {op} a constant, Transpose",
                f"g (float[1,3,4,5] x, float[3] V) => (float y) {{ {there} u = {op}(t, V) {back} }}",
            )
        )
        if op != "PRelu":
            rows.append(
                Row(
                    f"two Transposes, {op}, Transpose",
                    f"g (float[1,3,4,5] x, float[1,3,4,5] z) => (float y) {{ {there} s = Transpose<perm = [0, "
                    f"2, 3, 1]>(z) u = {op}(t, s) {back} }}",
                )
            )
    rows.append(
        Row(
            "Transpose, Clip, Transpose",
            f"g (float[1,3,4,5] x) => (float y) <float lo = {{0}}, float hi = {{1}}> {{ {there} u = "
            f"Clip(t, lo, hi) {back} }}",
        )
    )
    rows.append(
        Row(
            "Transpose, Add a scalar, Transpose",
            f"g (float[1,3,4,5] x, float K) => (float y) {{ {there} u = Add(K, t) {back} }}",
        )
    )
    rows.append(
        Row(
            "Transposes, Where, Transpose",
            f"g (float[1,3,4,5] x, bool[1,3,4,5] c, float K) => (float y) {{ {there} d = "
            f"Transpose<perm = [0, 2, 3, 1]>(c) u = Where(d, t, K) {back} }}",
        )
    )
    rows.append(
        Row(
            "Transposes, Concat, Transpose",
            f"g (float[1,3,4,5] x, float[1,2,4,5] z) => (float y) {{ {there} s = Transpose<perm = [0, "
            f"2, 3, 1]>(z) u = Concat<axis = -1>(t, s) {back} }}",
        )
    )
    for axis in (1, 3, -2):
        rows.append(
            Row(
                f"Transpose, Softmax {axis}, Transpose",
                f"g (float[1,3,4,5] x) => (float y) {{ {there} u = Softmax<axis = {axis}>(t) {back} }}",
            )
        )
    rows.append(
        Row(
            "Transpose, Split, Transposes",
            f"g (float[1,4,4,5] x) => (float y, float z) {{ {there} u, v = Split<axis = 3>(t) {back} "
            f"z = Transpose<perm = [0, 3, 1, 2]>(v) }}",
        )
    )
    rows += over(
        (11, 13, 17),
        "Transpose, ReduceMean, Transpose",
        f"g (float[1,3,4,5] x) => (float y) {{ {there} u = ReduceMean<axes = [1, -2]>(t) {back} }}",
    )
    rows += over(
        (18, 23),
        "Transpose, ReduceMean, Transpose",
        f"g (float[1,3,4,5] x) => (float y) <int64[2] ax = {{1, -2}}> {{ {there} u = ReduceMean(t, ax) {back} }}",
    )
    rows.append(
        Row(
            "Transpose, ReduceMax without keepdims",
            f"g (float[1,3,4,5] x) => (float y) {{ {there} u = ReduceMax<axes = [1, 2], keepdims = 0>(t) y = Neg(u) }}",
            same=True,
        )
    )
    rows.append(
        Row(
            "Transpose, ArgMax, Transpose",
            f"g (float[1,3,4,5] x) => (int64 y) {{ {there} u = ArgMax<axis = 3>(t) {back} }}",
        )
    )
    rows.append(
        Row(
            "Transpose, Pad, Transpose",
            f"g (float[1,3,4,5] x) => (float y) <int64[8] p = {{0, 1, 2, 0, 0, 2, 1, 0}}> {{ {there} "
            f"u = Pad(t, p) {back} }}",
        )
    )
    rows.append(
        Row(
            "Transpose, Pad along axes, Transpose",
            f"g (float[1,3,4,5] x) => (float y) <int64[4] p = {{1, 2, 2, 1}}, int64[2] ax = {{1, 2}}> "
            f"{{ {there} u = Pad(t, p, , ax) {back} }}",
            opset=18,
            wrong=True,
        )
    )
    rows.append(
        Row(
            "Transpose, Slice, Transpose",
            f"g (float[1,3,4,5] x) => (float y) <int64[1] s = {{1}}, int64[1] e = {{3}}, int64[1] ax "
            f"= {{-1}}> {{ {there} u = Slice(t, s, e, ax) {back} }}",
        )
    )
    rows.append(
        Row(
            "Transpose, Squeeze",
            "g (float[1,3,4,5] x) => (float y) <int64[1] ax = {0}> { t = Transpose<perm = [0, 2, 3, "
            "1]>(x) u = Squeeze(t, ax) y = Transpose<perm = [2, 0, 1]>(u) }",
        )
    )
    rows.append(
        Row(
            "Transpose, Unsqueeze",
            "g (float[3,4,5] x) => (float y) <int64[1] ax = {0}> { t = Transpose<perm = [1, 2, "
            "0]>(x) u = Unsqueeze(t, ax) y = Transpose<perm = [0, 3, 1, 2]>(u) }",
        )
    )
    rows.append(
        Row(
            "Transpose, Tile, Transpose",
            f"g (float[1,3,4,5] x) => (float y) <int64[4] r = {{1, 2, 1, 3}}> {{ {there} u = Tile(t, r) {back} }}",
        )
    )
    rows.append(
        Row(
            "Transpose, Shape",
            f"g (float[N,3,4,5] x) => (int64 y, float z) {{ {there} y = Shape(t) u = Relu(t) z = "
            f"Transpose<perm = [0, 3, 1, 2]>(u) }}",
        )
    )
    rows.append(
        Row(
            "Transpose, Q, DQ, Transpose",
            f"g (float[1,3,4,5] x) => (float y) <float s = {{0.05}}, uint8 z = {{128}}> {{ {there} q "
            f"= QuantizeLinear(t, s, z) u = DequantizeLinear(q, s, z) {back} }}",
            atol=0.1,
        )
    )
    rows.append(
        Row(
            "Transpose twice",
            "g (float[2,3,4,5] x) => (float y) { t = Transpose<perm = [0, 2, 3, 1]>(x) y = "
            "Transpose<perm = [1, 0, 2, 3]>(t) }",
        )
    )
    rows.append(
        Row(
            "Transpose by default, twice",
            "g (float[2,3,4] x) => (float y) { t = Transpose(x) u = Transpose(t) y = Neg(u) }",
        )
    )
    rows.append(
        Row(
            "Transpose read by two",
            f"g (float[1,3,4,5] x) => (float y, float z) {{ {there} u = Relu(t) {back} v = Sigmoid(t) "
            f"z = Transpose<perm = [0, 3, 1, 2]>(v) }}",
        )
    )
    rows.append(
        Row(
            "Transpose, Reshape that moves ones",
            "g (float[1,3,4,5] x) => (float y) <int64[3] s = {4, 5, 3}> { t = Transpose<perm = [0, "
            "2, 3, 1]>(x) u = Reshape(t, s) y = Transpose<perm = [2, 0, 1]>(u) }",
            same=True,
        )
    )
    swap = "t = Transpose<perm = [3, 0, 1, 2]>(x) u = Reshape(t, s)"
    rows += [
        Row(
            f"Transpose, Reshape, {op}",
            f"g (float[1,2,3,2] x) => (float y) <int64[4] s = {{2, 2, 1, 3}}> {{ {swap} {tail} }}",
        )
        for op, tail in (("Transpose", "y = Transpose<perm = [3, 2, 1, 0]>(u)"), ("Relu", "y = Relu(u)"))
    ]
    rows.append(
        Row(
            "Reshape to a column, Transpose",
            "g (float[N,4] x) => (float y) <int64[4] s = {0, 1, 1, 4}> { u = Reshape(x, s) y = Transpose<perm = [0, 3, 1, 2]>(u) }",
        )
    )
    for opset in (9, 13, 23):
        rows.append(
            Row(
                "Transpose, Gathers",
                "g (float[4,N,3] x) => (float y) <int64 i = {0}, int64 j = {-1}> { t = Transpose<perm = [1, 0, 2]>(x) "
                "a = Gather<axis = 1>(t, i) b = Gather<axis = -2>(t, j) y = Sub(a, b) }",
                opset=opset,
            )
        )
    for index, first, last in (
        ("int64 i = {0}", "[3, 1, 2, 0]", "[2, 1, 0]"),
        ("int64[2] i = {1, 0}", "[0, 2, 3, 1]", "[0, 3, 1, 2]"),
    ):
        rows.append(
            Row(
                f"Transpose, Gather by {index.partition(' ')[0]}, Transpose",
                f"g (float[1,3,4,5] x) => (float y) <{index}> {{ t = Transpose<perm = {first}>(x) "
                f"u = Gather<axis = 1>(t, i) v = Relu(u) y = Transpose<perm = {last}>(v) }}",
            )
        )
    rows.append(
        Row(
            "channels-last islands",
            f"g (float[1,3,6,6] x, float[3,3,1,1] W) => (float y) {{ {there} a = Relu(t) b = "
            "Transpose<perm = [0, 3, 1, 2]>(a) c = Conv(b, W) u = Transpose<perm = [0, 2, 3, 1]>(c) "
            f"y = Transpose<perm = [0, 3, 1, 2]>(u) }}",
        )
    )
    rows.append(
        Row(
            "Transpose, Gelu, Transpose",
            f"g (float[1,3,4,5] x) => (float y) {{ {there} u = Gelu(t) {back} }}",
            opset=20,
        )
    )
    rows.append(
        Row(
            "Transpose, Max of three",
            f"g (float[1,3,4,5] x, float[1,3,4,5] z, float[3] K) => (float y) {{ {there} s = "
            f"Transpose<perm = [0, 2, 3, 1]>(z) u = Max(t, s, K) {back} }}",
        )
    )
    rows.append(
        Row(
            "Transpose, Greater, Transpose",
            f"g (float[1,3,4,5] x, float[3] K) => (bool y) {{ {there} u = Greater(t, K) {back} }}",
        )
    )
    return rows


ROWS = (*_space_to_depth(), *_transposes())
