"""Fusions for transformers: normalizations, Gelu and its kin, skip connections, splits, attention."""

from __future__ import annotations

import numpy as np
import pytest
from golden import passes_in
from rewriting import check, ops, optimized, parse, random_feeds

from tests.batches import batched, sampled

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

NORM = passes_in("extended.layer_norm")
GELU = passes_in("extended.gelu")
SPLIT = passes_in("extended.split")
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e20, -1e20, 100.0], np.float32)


def special_feeds(proto) -> dict[str, np.ndarray]:
    """Feeds that hold NaN, infinities, zeros of both signs and large numbers."""
    feeds = random_feeds(proto)
    for value in feeds.values():
        if value.dtype == np.float32 and value.size >= 8:
            value.reshape(-1)[:8] = SPECIAL
    return feeds


# ---------------------------------------------------------------------- normalizations

NORM_CONSTANTS = (
    "float two = {2.0}, float three = {3.0}, float one = {1.0}, float eps = {1e-5}, float negative = {-1.0}"
)


def layer_norm_text(kind: str = "float", **steps: str) -> str:
    parts = {
        "mean": "m = ReduceMean<axes = [-1]>(x)", "sub": "d = Sub(x, m)", "square": "p = Pow(d, two)",
        "variance": "v = ReduceMean<axes = [-1]>(p)", "add": "e = Add(v, eps)", "sqrt": "s = Sqrt(e)",
        "div": "n = Div(d, s)", "mul": "k = Mul(n, g)", "bias": "y = Add(k, b)",
    } | steps  # fmt: skip
    constants = NORM_CONSTANTS.replace("float ", f"{kind} ")
    return f"g ({kind}[2,s,8] x, {kind}[8] g, {kind}[8] b) => ({kind} y) <{constants}> {{ {' '.join(parts.values())} }}"


@pytest.mark.parametrize("opset", [9, 11, 13, 16, 17])
def test_layer_norm_below_opset_17(opset: int) -> None:
    graph, _ = check(layer_norm_text(), NORM, opset=opset)
    assert ops(graph) == {"LayerNormalization": 1}


def test_layer_norm_refused() -> None:
    for text in (
        layer_norm_text(square="p = Pow(d, three)"),
        layer_norm_text("double"),
        layer_norm_text(div="n = Div(s, d)"),
    ):
        assert not optimized(parse(text, 13), NORM)[1].trace


def rms(kind: str = "float", x: str = "2,s,8", g: str = "8", **steps: str) -> str:
    parts = {
        "square": "p = Pow(x, two)", "mean": "v = ReduceMean<axes = [-1]>(p)", "add": "e = Add(v, eps)", "sqrt": "s = Sqrt(e)",
        "div": "n = Div(x, s)", "mul": "y = Mul(g, n)",
    } | steps  # fmt: skip
    constants = NORM_CONSTANTS.replace("float ", f"{kind} ")
    return f"g ({kind}[{x}] x, {kind}[{g}] g) => ({kind} y) <{constants}> {{ {' '.join(parts.values())} }}"


@sampled(4)
@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("square", ["p = Pow(x, two)", "p = Mul(x, x)"])
@pytest.mark.parametrize(
    "div",
    [
        "n = Div(x, s)",
        "r = Reciprocal(s) n = Mul(x, r)",
        "r = Reciprocal(s) n = Mul(r, x)",
        "r = Div(one, s) n = Mul(x, r)",
    ],
)
def test_root_mean_square(opset: int, square: str, div: str) -> None:
    for mul in ("y = Mul(g, n)", "y = Mul(n, g)"):
        for add in ("e = Add(v, eps)", "e = Add(eps, v)"):
            graph, _ = check(rms(square=square, div=div, mul=mul, add=add), NORM, opset=opset)
            assert ops(graph) == {"SimplifiedLayerNormalization": 1}


@pytest.mark.parametrize(
    "text",
    [
        rms(square="p = Pow(x, three)"),
        rms(square="q = Neg(x) p = Mul(x, q)"),
        rms(mean="v = ReduceMean<axes = [1]>(p)"),
        rms(mean="v = ReduceMean<axes = [1, 2]>(p)"),
        rms(mean="v = ReduceSum<axes = [-1]>(p)"),
        rms(add="e = Add(v, negative)"),
        rms(add="e = Sub(v, eps)"),
        rms(div="n = Div(s, x)"),
        rms(div="r = Div(two, s) n = Mul(x, r)"),
        rms("double"),
    ],
)  # fmt: skip
def test_root_mean_square_refused(text: str) -> None:
    assert not optimized(parse(text, 11), NORM)[1].trace


@pytest.mark.parametrize("shape", ["1", "1,8"])
def test_a_scale_of_another_shape_stays(shape: str) -> None:
    graph, _ = check(rms(g=shape), NORM, opset=11)
    assert ops(graph) == {"SimplifiedLayerNormalization": 1, "Mul": 1}


# ---------------------------------------------------------------------- Gelu

CONSTANTS = (
    "float half = {0.5}, float one = {1.0}, float root = {1.4142135381698608}, float three = {3.0}, float two = {2.0}, "
    "float cubic = {0.044715}, float slope = {0.7978845608}, float off = {0.05}, float[1,1,1,1] wide = {0.5}, float alpha = {1.702}"
)


def unary(body: str, x: str = "float[3,4]", more: str = "") -> str:
    return f"g ({x} x{more}) => (float y) <{CONSTANTS}> {{ {body} }}"


ERF = "t = Div(x, root) e = Erf(t) a = Add(e, one) h = Mul(x, a) y = Mul(h, half)"
CUBICS = {
    "pow": "p = Pow(x, three) c = Mul(cubic, p) s = Add(x, c) t = Mul(s, slope)",
    "product": "q = Mul(x, x) p = Mul(q, x) c = Mul(p, cubic) s = Add(c, x) t = Mul(slope, s)",
    "fast": "k = Mul(x, slope) c = Mul(x, cubic) d = Mul(c, x) s = Add(d, one) t = Mul(k, s)",
    "square": "q = Pow(x, two) c = Mul(q, cubic) s = Add(one, c) k = Mul(x, s) t = Mul(k, slope)",
}
FINAL = [
    "h = Mul(x, half) y = Mul(h, a)",
    "h = Mul(half, x) y = Mul(a, h)",
    "h = Mul(x, a) y = Mul(half, h)",
    "h = Mul(a, half) y = Mul(x, h)",
]


@pytest.mark.parametrize("opset", [11, 13, 19, 20])
def test_gelu(opset: int) -> None:
    proto = parse(unary(ERF), opset)
    graph, _ = check(proto, GELU, feeds=special_feeds(proto), rtol=1e-6)
    assert ops(graph) == {"com.microsoft.Gelu": 1}


@batched
@pytest.mark.parametrize("cubic", CUBICS)
@pytest.mark.parametrize("final", FINAL)
def test_fast_gelu(cubic: str, final: str) -> None:
    proto = parse(unary(f"{CUBICS[cubic]} u = Tanh(t) a = Add(u, one) {final}"))
    graph, _ = check(proto, GELU, feeds=special_feeds(proto), rtol=1e-4)
    assert ops(graph) == {"com.microsoft.FastGelu": 1}


@pytest.mark.parametrize(
    "text",
    [
        unary(ERF.replace("Div(x, root)", "Div(x, two)")),
        unary(ERF.replace("Add(e, one)", "Sub(e, one)")),
        unary(ERF.replace("Mul(h, half)", "Mul(h, wide)")),
        unary(ERF).replace("(float y)", "(float y, float e)"),
        unary(f"{CUBICS['pow']} u = Tanh(t) a = Add(u, one) {FINAL[0]}").replace("Pow(x, three)", "Pow(x, two)"),
        unary(f"{CUBICS['pow']} u = Tanh(t) a = Add(u, one) {FINAL[0]}").replace("Mul(cubic, p)", "Mul(off, p)"),
        unary(f"{CUBICS['pow']} u = Tanh(t) a = Add(u, one) {FINAL[0]}").replace("Add(x, c)", "Sub(x, c)"),
        unary(f"{CUBICS['pow']} u = Tanh(t) a = Add(u, one) {FINAL[0]}").replace("(float y)", "(float y, float c)"),
        unary(f"{CUBICS['pow']} u = Tanh(t) a = Add(u, one) {FINAL[0]}").replace("Mul(s, slope)", "Mul(s, wide)"),
        unary("s = Sigmoid(x) y = Mul(s, s)"),
        unary("s = Sigmoid(x) y = Mul(x, s)").replace("(float y)", "(float y, float s)"),
        unary("m = Mul(x, wide) s = Sigmoid(m) y = Mul(x, s)"),
    ],
)
def test_gelu_refused(text: str) -> None:
    assert not optimized(parse(text), GELU)[1].trace


@pytest.mark.parametrize("kind", ["double", "float16"])
def test_only_float(kind: str) -> None:
    bodies = [ERF, f"{CUBICS['pow']} u = Tanh(t) a = Add(u, one) {FINAL[0]}", "s = Sigmoid(x) y = Mul(x, s)"]
    for body in bodies:
        text = unary(body).replace("float", kind)
        if kind == "float16":
            text = text.split("<")[0] + "{" + body.replace("root", "x").replace("one", "x") + "}"
            text = text.replace("half", "x").replace("three", "x").replace("cubic", "x").replace("slope", "x")
        assert not optimized(parse(text), GELU)[1].trace


@pytest.mark.parametrize("body", ["s = Sigmoid(x) y = Mul(x, s)", "s = Sigmoid(x) y = Mul(s, x)"])
def test_silu_is_exact(body: str) -> None:
    proto = parse(unary(body))
    graph, _ = check(proto, GELU, feeds=special_feeds(proto), rtol=0, atol=0)
    (node,) = graph
    assert (node.op, node.attrs) == ("QuickGelu", {"alpha": 1.0})


def test_quick_gelu() -> None:
    for body in ("m = Mul(x, alpha) s = Sigmoid(m) y = Mul(x, s)", "m = Mul(alpha, x) s = Sigmoid(m) y = Mul(s, x)"):
        proto = parse(unary(body))
        (node,) = check(proto, GELU, feeds=special_feeds(proto), rtol=1e-6)[0]
        assert node.attrs["alpha"] == pytest.approx(1.702)


TANH = f"{CUBICS['pow']} u = Tanh(t) a = Add(u, one) {FINAL[0]}"


@pytest.mark.parametrize(("body", "op"), [(ERF, "BiasGelu"), (TANH, "FastGelu")])
def test_bias(body: str, op: str) -> None:
    for add in ("x = Add(z, b)", "x = Add(b, z)"):
        text = unary(f"{add} {body}", "float[2,s,4]", ", float[4] b").replace("] x,", "] z,")
        graph, _ = check(text, GELU)
        assert ops(graph) == {f"com.microsoft.{op}": 1}


@pytest.mark.parametrize("b", ["1", "1,4", "n"])
def test_bias_refused(b: str) -> None:
    text = f"g (float[3,4] z, float[{b}] b) => (float y) {{ x = Add(z, b) y = com.microsoft.Gelu(x) }}"
    assert not optimized(parse(text), GELU)[1].trace


# ---------------------------------------------------------------------- skip connections

SKIP = passes_in("extended.skip_layer_norm")


def skip(body: str, x: str = "b,s,8", s: str = "b,s,8", outputs: str = "float y", kind: str = "float") -> str:
    norm = "y = LayerNormalization<epsilon = 0.001>(t, g, h)"
    return (
        f"g ({kind}[{x}] x, {kind}[{s}] s) => ({outputs}) <"
        f"{kind}[8] g = {{1, 2, 3, 4, 5, 6, 7, 8}}, {kind}[8] h = {{8, 7, 6, 5, 4, 3, 2, 1}},"
        f" {kind}[8] b = {{1, 0, 1, 2, 1, 0, 1, 2}}, {kind}[1] one = {{1}}> {{ {body} {'' if 'Layer' in body else norm} }}"
    )


@pytest.mark.parametrize("dims", ["b,s,8", "2,3,8", "3,8"])
def test_skip_layer_norm(dims: str) -> None:
    graph, _ = check(skip("t = Add(x, s)", dims, dims), SKIP, opset=17)
    assert ops(graph) == {"com.microsoft.SkipLayerNormalization": 1}
    (node,) = graph
    assert len(node.outputs) == 1
    assert node.attrs == {"epsilon": pytest.approx(0.001)}


@pytest.mark.parametrize(
    "body", ["i = Add(x, b) t = Add(i, s)", "i = Add(b, s) t = Add(x, i)", "i = Add(b, x) t = Add(s, i)"]
)
def test_skip_with_bias(body: str) -> None:
    graph, _ = check(skip(body), SKIP, opset=17)
    (node,) = graph
    assert len(node.inputs) == 5


@pytest.mark.parametrize(
    "text",
    [
        skip("t = Add(x, s)", "2,3,8", "1,3,8"),
        skip("t = Add(x, s)", "b,s,8", "b,t,8"),
        skip("t = Add(x, s)", "1,2,3,8", "1,2,3,8"),
        skip("t = Add(x, one)"),
        skip("t = Sub(x, s)"),
        skip("t = Add(x, s)", kind="double", outputs="double y"),
        skip("t = Add(x, s) y = LayerNormalization<axis = 1>(t, x)", "8,2", "8,2"),
        skip("t = Add(x, s) y = LayerNormalization(t, one, one)"),
        skip("t = Add(x, s) g2 = Relu(g) y = LayerNormalization(t, g2)"),
        skip("t = Add(x, s) y, m = LayerNormalization(t, g, h)", outputs="float y, float m"),
    ],
)
def test_skip_refused(text: str) -> None:
    assert not optimized(parse(text, 17), SKIP)[1].trace


# ---------------------------------------------------------------------- splits


def picks(body: str, outputs: str, x: str = "float[2,6,s]") -> str:
    numbers = {"i0": 0, "i1": 1, "im": -1}
    vectors = {"v0": 0, "v1": 1, "v2": 2, "v3": 3, "v6": 6, "far": 2**63 - 1, "back": -3, "last": -1}
    given = ", ".join(f"int64 {name} = {{{number}}}" for name, number in numbers.items())
    given += (
        "".join(f", int64[1] {name} = {{{number}}}" for name, number in vectors.items()) + ", int64[2] both = {0, 1}"
    )
    kind = x.split("[")[0]
    returned = ", ".join(f"{kind} {name}" for name in outputs.split())
    return f"g ({x} x) => ({returned}) <{given}> {{ {body} }}"


HALVES = "a = Slice(x, v0, v3, v1) b = Slice(x, v3, far, v1)"


@pytest.mark.parametrize(
    ("body", "outputs", "wanted"),
    [
        (HALVES, "a b", {"Split": 1}),
        ("b = Slice(x, back, far, v1, v1) a = Slice(x, v0, back, v1)", "b a", {"Split": 1}),
        (f"{HALVES} c = Relu(x)", "a b c", {"Split": 1, "Relu": 1}),
        (
            "a = Gather<axis = 1>(x, v0) b = Gather<axis = 1>(x, im) c = Slice(x, v1, last, v1)",
            "a b c",
            {"Split": 1, "Squeeze": 1},
        ),
        ("a = Gather(x, v0) b = Gather(x, v1)", "a b", {"Split": 1}),
        (
            "a = Slice(x, v1, v2, v1) b = Slice(x, v2, v3, v1) c = Slice(x, v3, last, v1)",
            "a b c",
            {"Slice": 1, "Split": 1},
        ),
        ("a = Gather<axis = -3>(x, v0) b = Slice(x, v1, far)", "a b", {"Split": 1}),
        ("a = Slice(x, v0, v1, v1) b = Slice(x, v1, v2, v1) c = Slice(x, v2, v6, v1)", "a b c", {"Split": 1}),
    ],
)
def test_split(body: str, outputs: str, wanted: dict[str, int]) -> None:
    for opset in (11, 13, 18):
        for kind in ("float", "int64"):
            if kind == "int64" and "Relu" in body and opset < 14:
                continue
            graph, _ = check(picks(body, outputs, f"{kind}[2,6,s]"), SPLIT, opset=opset, rtol=0, atol=0)
            assert ops(graph) == wanted


@pytest.mark.parametrize(
    "body",
    [
        "a = Slice(x, v0, v3, v1) b = Slice(x, v2, far, v1)",
        "a = Slice(x, v0, v2, v1) b = Slice(x, v3, far, v1)",
        "a = Slice(x, v1, v3, v1) b = Slice(x, v3, far, v1)",
        "a = Slice(x, v0, v3, v1) b = Slice(x, v3, far, v2)",
        "a = Slice(x, v0, v3, v1, v2) b = Slice(x, v3, far, v1)",
        "a = Slice(x, v0, v1, v2) b = Slice(x, v1, far, v2)",
        "a = Gather(x, i0) b = Gather(x, both)",
        "a = Gather(x, i0) b = Gather(x, i0)",
        "a = Gather(x, i0) b = Relu(x)",
        "a = Gather(x, i0) b = Gather(x, i1)",
        "a = Gather(x, im) b = Gather(x, v0)",
    ],
)
def test_split_refused(body: str) -> None:
    assert not optimized(parse(picks(body, "a b"), 14), SPLIT)[1].trace


@pytest.mark.parametrize(("start", "step"), [(0, 1), (1, 2)])
def test_range(start: int, step: int) -> None:
    text = f"""g (float[8,4] x, float[n] z) => (float y) <int64 a = {{{start}}}, int64 s = {{{step}}}> {{
        l = Shape(z) k = Squeeze(l) r = Range(a, k, s) y = Gather(x, r) }}"""
    for n in (0, 1, 5, 8):
        proto = parse(text, 13)
        graph, _ = check(proto, SPLIT, feeds=random_feeds(proto, n=n), rtol=0, atol=0)
        assert ops(graph) == {"Shape": 1, "Slice": 1}


@pytest.mark.parametrize("text", ["a = {-3}", "a = {0}, int64 t = {-1}"])
def test_range_refused(text: str) -> None:
    step = "t" if " t " in text else "s"
    body = f"l = Shape(z) k = Squeeze(l) r = Range(a, k, {step}) y = Gather(x, r)"
    model = f"g (float[8,4] x, float[n] z) => (float y) <int64 s = {{1}}, int64 {text}> {{ {body} }}"
    assert not optimized(parse(model), SPLIT)[1].trace
    body = "k = Sub(s, i) r = Range(a, k, s) y = Gather(x, r)"
    model = f"g (float[8,4] x, int64 i) => (float y) <int64 s = {{1}}, int64 {text}> {{ {body} }}"
    assert not optimized(parse(model), SPLIT)[1].trace
