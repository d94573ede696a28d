"""Idioms of tf2onnx, Keras, Paddle, CNTK, scikit-learn and of models with functions."""

from __future__ import annotations

from rows import Row


def _exporters() -> list[Row]:
    rows: list[Row] = []
    nchw, nhwc = "Transpose<perm = [0, 3, 1, 2]>", "Transpose<perm = [0, 2, 3, 1]>"
    norm = "float[4] S, float[4] H, float[4] M, float[4] V"
    for level in ("basic", "extended"):
        for opset in (9, 11, 13, 17):
            clip = {9: "b = Clip<min = 0.0, max = 6.0>(a)"}.get(opset, "b = Clip(a, lo, hi)")
            rows.append(
                Row(
                    "tf2onnx: Conv, BatchNormalization, Relu6, channels last",
                    f"""g (float[N,6,6,3] x, float[4,3,3,3] W, {norm}, float[5,4,1,1] U) => (float y) <float lo =
            {{0}}, float hi = {{6}}> {{
                t = {nchw}(x) c = Conv(t, W) a = BatchNormalization(c, S, H, M, V) {clip} d =
            {nhwc}(b) e = {nchw}(d) f = Conv(e, U) y = {nhwc}(f) }}""",
                    level,
                    opset,
                )
            )
    rows.append(
        Row(
            "tf2onnx: bias over the last axis",
            f"g (float[N,6,6,3] x, float[4,3,3,3] W, float[4] B) => (float y) {{ t = {nchw}(x) c = "
            f"Conv(t, W) d = {nhwc}(c) e = Add(d, B) f = {nchw}(e) g = Relu(f) y = {nhwc}(g) }}",
            "extended",
        )
    )
    rows.append(
        Row(
            "tf2onnx: depthwise, scale and shift",
            f"g (float[N,6,6,4] x, float[4,1,3,3] W, float[4] K, float[4] B) => (float y) {{ t = "
            f"{nchw}(x) c = Conv<group = 4>(t, W) d = {nhwc}(c) m = Mul(d, K) e = Add(m, B) y = Relu(e) }}",
            "extended",
            same=True,
        )
    )
    rows.append(
        Row(
            "tf2onnx: residual in channels last",
            f"""g (float[N,6,6,3] x, float[3,3,1,1] W, float[3] B, float[3,3,1,1] U) => (float y) {{
        t = {nchw}(x) c = Conv(t, W, B) d = {nhwc}(c) e = {nchw}(x) f = Conv(e, U, B) g = {nhwc}(f)
            a = Add(d, g) r = Relu(a) h = {nchw}(r) i = Conv(h, U) y = {nhwc}(i) }}""",
            "all",
        )
    )
    rows.append(
        Row(
            "tf2onnx: Conv1D with bias, Relu, BatchNormalization, causal Pad and residual",
            """g (float[N,6,3] x, float[4,3,1,3] W, float[4,4,1,3] U, float[4] S, float[4] V) => (float y) <int64[1] one = {1},
            int64[1] two = {2}, int64[6] p = {0, 0, 2, 0, 0, 0}, float[1,4,1] B = {1, 2, 3, 4}> {
                a = Unsqueeze(x, one) b = Transpose<perm = [0, 3, 1, 2]>(a) c = Conv<pads = [0, 1, 0, 1]>(b, W)
                d = Squeeze(c, two) e = Add(d, B) f = Relu(e) g = BatchNormalization(f, S, V, V, S) h = Pad(g, p)
                i = Unsqueeze(h, two) j = Conv(i, U) k = Squeeze(j, two) l = Add(k, B) m = Add(l, g)
                y = Transpose<perm = [0, 2, 1]>(m) }""",
            "extended",
            13,
        )
    )
    rows.append(
        Row(
            "tf2onnx: attention of Keras over Gemms",
            """g (float[N,6,8] x, float[8,8] Q, float[8,8] K, float[8,8] V) => (float y) <int64[2] flat = {-1, 8},
            int64[4] heads = {-1, 6, 2, 4}, int64[4] whole = {-1, 2, 6, 6}, int64[3] stack = {-1, 6, 4},
            int64[3] turned = {-1, 4, 6},
            int64[3] square = {-1, 6, 6}, int64[4] parts = {-1, 2, 6, 4}, int64[3] rows = {-1, 6, 8}, float[2,4] b = {1, 2, 3, 4, 5,
            6, 7, 8}, float scale = {0.5}> {
                r = Reshape(x, flat) q = Gemm(r, Q) qh = Reshape(q, heads) qb = Add(qh, b) qs = Mul(qb, scale)
                k = Gemm(r, K) kh = Reshape(k, heads) kb = Add(kh, b) v = Gemm(r, V) vh = Reshape(v, heads) vb = Add(vh, b)
                qt = Transpose<perm = [0, 2, 3, 1]>(qs) qf = Reshape(qt, turned)
                kt = Transpose<perm = [0, 2, 1, 3]>(kb) kf = Reshape(kt, stack)
                vt = Transpose<perm = [0, 2, 1, 3]>(vb) vf = Reshape(vt, stack)
                s = MatMul(kf, qf) t = Reshape(s, whole) p = Softmax<axis = 2>(t) u = Transpose<perm = [0, 1, 3, 2]>(p)
                w = Reshape(u, square) o = MatMul(w, vf) z = Reshape(o, parts) n = Transpose<perm = [0, 2, 1, 3]>(z)
                y = Reshape(n, rows) }""",
            "extended",
            13,
        )
    )
    rows.append(
        Row(
            "tf2onnx: global mean",
            f"g (float[N,6,6,3] x, float[4,3,1,1] W) => (float y) {{ t = {nchw}(x) c = Conv(t, W) d = "
            f"{nhwc}(c) m = ReduceMean<axes = [1, 2], keepdims = 0>(d) y = Softmax(m) }}",
        )
    )
    rows.append(
        Row(
            "tf2onnx: concat of towers",
            f"g (float[N,6,6,3] x, float[4,3,1,1] W, float[2,3,1,1] U) => (float y) {{ t = {nchw}(x) "
            f"c = Conv(t, W) d = {nhwc}(c) e = Conv(t, U) f = {nhwc}(e) a = Concat<axis = 3>(d, f) b "
            f"= {nchw}(a) r = Relu(b) y = {nhwc}(r) }}",
        )
    )
    rows.append(
        Row(
            "tf2onnx: pad, depthwise",
            f"g (float[N,6,6,3] x, float[3,1,3,3] W) => (float y) <int64[8] p = {{0, 0, 0, 0, 0, 1, "
            f"1, 0}}> {{ a = Pad(x, p) t = {nchw}(a) c = Conv<group = 3>(t, W) y = {nhwc}(c) }}",
            same=True,
        )
    )
    rows.append(
        Row(
            "tf2onnx: Squeeze behind a pool",
            f"g (float[N,6,6,3] x) => (float y) <int64[2] ax = {{1, 2}}> {{ t = {nchw}(x) p = "
            f"GlobalAveragePool(t) d = {nhwc}(p) y = Squeeze(d, ax) }}",
        )
    )
    rows.append(
        Row(
            "Keras: Dense over a sequence",
            "g (float[N,5,3] x, float[3,4] W, float[4] B) => (float y) { m = MatMul(x, W) a = Add(m, B) y = Relu(a) }",
            "extended",
            same=True,
        )
    )
    rows.append(
        Row(
            "Keras: flatten by shape",
            "g (float[N,2,3] x, float[6,4] W, float[4] B) => (float y) <int64[2] s = {-1, 6}> { r = "
            "Reshape(x, s) m = MatMul(r, W) a = Add(m, B) y = Sigmoid(a) }",
            "extended",
        )
    )
    rows.append(
        Row(
            "Keras: normalization of pixels",
            "g (float[N,6,6,3] x, float[4,3,3,3] W) => (float y) <float k = {127.5}, float o = "
            "{1.0}> { d = Div(x, k) s = Sub(d, o) t = Transpose<perm = [0, 3, 1, 2]>(s) y = Conv(t, W) }",
            same=True,
        )
    )
    rows.append(
        Row(
            "Paddle: hard sigmoid, hard swish",
            "g (float[1,3,6,6] x, float[4,3,3,3] W, float[1,4,1,1] B) => (float y) { c = Conv(x, W) "
            "a = Add(c, B) s = HardSigmoid<alpha = 0.16667, beta = 0.5>(a) y = Mul(a, s) }",
            "extended",
            opset=11,
        )
    )
    rows.append(
        Row(
            "Paddle: hard swish by Clip",
            "g (float[1,3,6,6] x, float[4,3,3,3] W, float[4,1,1] B) => (float y) <float three = {3}, "
            "float zero = {0}, float six = {6}> { c = Conv(x, W) a = Add(c, B) p = Add(a, three) q = "
            "Clip(p, zero, six) r = Mul(a, q) y = Div(r, six) }",
            "extended",
            opset=11,
        )
    )
    rows.append(
        Row(
            "Paddle: Scale as Mul and Add",
            "g (float[N,4] x, float[4,5] W) => (float y) <float[1] k = {1.0}, float[1] z = {0.0}> { "
            "m = MatMul(x, W) a = Mul(m, k) b = Add(a, z) y = Softmax(b) }",
        )
    )
    rows.append(
        Row(
            "Paddle: shape by Cast",
            "g (float[N,2,3] x) => (float y) <int64[1] z = {0}, int64[1] one = {1}, int64[1] n = "
            "{-1}> { s = Shape(x) i = Cast<to = 6>(s) b = Slice(i, z, one) j = Cast<to = 7>(b) c = "
            "Concat<axis = 0>(j, n) y = Reshape(x, c) }",
        )
    )
    rows.append(
        Row(
            "CNTK: Times over a Reshape",
            "g (float[1,2,3,4] x, float[2,3,4,5] W, float[1,5] B) => (float y) <int64[2] s = {1, "
            "24}, int64[2] t = {24, 5}> { a = Reshape(x, s) b = Reshape(W, t) m = MatMul(a, b) y = Add(m, B) }",
            opset=9,
        )
    )
    rows.append(
        Row(
            "dynamo: axes as constants, two Transposes",
            "g (float[N,3,4] x) => (float y) <int64[1] ax = {0}> { a = Unsqueeze(x, ax) b = "
            "Transpose<perm = [0, 1, 3, 2]>(a) c = Transpose<perm = [0, 1, 3, 2]>(b) d = Relu(c) y = "
            "Squeeze(d, ax) }",
            opset=18,
            same=True,
        )
    )
    rows.append(
        Row(
            "scikit-learn: Scaler, LinearClassifier",
            """g (float[N,3] x) => (int64 y, float p) {
        a = ai.onnx.ml.Scaler<offset = [0.1, 0.2, 0.3], scale = [1.0, 2.0, 3.0]>(x)
        i = Identity(a) y, q = ai.onnx.ml.LinearClassifier<classlabels_ints = [0, 1], coefficients
            = [0.1, 0.2, 0.3, -0.1, -0.2, -0.3], intercepts = [0.1, -0.1], multi_class = 1, post_transform =
            "SOFTMAX">(i)
        p = ai.onnx.ml.Normalizer<norm = "L1">(q) }""",
            ml=1,
        )
    )
    rows.append(
        Row(
            "scikit-learn: Cast to the same type, trees",
            """g (float[N,2] x) => (float y) { c = Cast<to = 1>(x)
        y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_falsenodeids = [2, 0, 0],
            nodes_featureids = [0, 0, 0], nodes_hitrates = [1.0, 1.0, 1.0], nodes_missing_value_tracks_true =
            [0, 0, 0],
            nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_nodeids = [0, 1, 2], nodes_treeids
            = [0, 0, 0], nodes_truenodeids = [1, 0, 0], nodes_values = [0.0, 0.0, 0.0],
            target_ids = [0, 0], target_nodeids = [1, 2], target_treeids = [0, 0], target_weights =
            [1.0, 2.0]>(c) }""",
            ml=1,
        )
    )
    rows.append(
        Row(
            "scikit-learn: ArrayFeatureExtractor and casts",
            """g (int64[1,3] x) => (float y) <int64[2] i = {0, 2}> {
        a = ai.onnx.ml.ArrayFeatureExtractor(x, i) b = Cast<to = 1>(a) c = Cast<to = 1>(b) y =
            Reshape(c, s) }""".replace("<int64[2]", "<int64[2] s = {1, 2}, int64[2]"),
            ml=1,
        )
    )
    return rows


ROWS = tuple(_exporters())
