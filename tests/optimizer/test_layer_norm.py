"""LayerNormalization and Gelu from their parts: every constant counts."""

from __future__ import annotations

import numpy as np
import pytest
from golden import passes_in
from rewriting import check, ops, optimized, parse, random_feeds

from tests.batches import batched, sampled

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

GELU, _, LAYER_NORM = passes_in("basic.layer_norm")
NORM = [LAYER_NORM]
PARTS = {
    "mean": "m = ReduceMean<axes = [-1]>(x)",
    "sub": "d = Sub(x, m)",
    "square": "p = Pow(d, two)",
    "variance": "v = ReduceMean<axes = [-1]>(p)",
    "add": "e = Add(v, eps)",
    "sqrt": "s = Sqrt(e)",
    "div": "n = Div(d, s)",
    "scale": "k = Mul(n, g)",
    "bias": "y = Add(k, b)",
}


def norm(x: str = "2,3,8", g: str = "8", b: str = "8", kind: str = "float", eps: str = "1e-5", **parts: str) -> str:
    body = " ".join((PARTS | parts).values())
    return f"""g ({kind}[{x}] x, {kind}[{g}] g, {kind}[{b}] b) => ({kind} y)
        <{kind} two = {{2.0}}, {kind} three = {{3.0}}, {kind} eps = {{{eps}}}, {kind}[1] eps1 = {{1e-3}},
        {kind}[1,1,1,1] eps4 = {{1e-5}}> {{ {body} }}"""


VARIANTS: dict[str, dict[str, str]] = {
    "plain": {},
    "epsilon first": {"add": "e = Add(eps, v)"},
    "epsilon of one element": {"add": "e = Add(v, eps1)"},
    "square by Mul": {"square": "p = Mul(d, d)"},
    "two Subs": {"square": "d2 = Sub(x, m) p = Pow(d2, two)"},
    "two means": {"square": "m2 = ReduceMean<axes = [2]>(x) d2 = Sub(x, m2) p = Pow(d2, two)"},
    "three Subs": {"square": "d2 = Sub(x, m) d3 = Sub(x, m) p = Mul(d2, d3)"},
    "scale first": {"scale": "k = Mul(g, n)"},
    "bias first": {"bias": "y = Add(b, k)"},
    "positive axis": {"mean": "m = ReduceMean<axes = [2]>(x)"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_layer_norm(variant: str) -> None:
    graph, _ = check(norm(**VARIANTS[variant]), NORM, opset=17, atol=1e-4)
    (node,) = graph
    assert (node.op, len(node.inputs), node.attrs["axis"]) == ("LayerNormalization", 3, -1)
    expected = 1e-3 if variant == "epsilon of one element" else 1e-5
    assert node.attrs["epsilon"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("opset", [18, 20])
def test_axes_as_input(opset: int) -> None:
    text = norm(mean="m = ReduceMean(x, axes)", variance="v = ReduceMean(p, axes)").replace(
        "> {", ", int64[1] axes = {-1}> {", 1
    )
    assert ops(check(text, NORM, opset=opset, atol=1e-4)[0]) == {"LayerNormalization": 1}


def test_nan_and_infinity() -> None:
    proto = parse(norm(), 17)
    feeds = random_feeds(proto)
    feeds["x"][0, 0, 0], feeds["x"][1, 1, 1] = np.nan, np.inf
    check(proto, NORM, feeds=feeds, atol=1e-4)


@batched
@pytest.mark.parametrize(
    "text",
    [
        norm(square="p = Pow(d, three)"),
        norm(sub="d = Sub(m, x)"),
        norm(div="n = Div(s, d)"),
        norm(mean="m = ReduceMean<axes = [1]>(x)"),
        norm(mean="m = ReduceMean<axes = [1]>(x)", variance="v = ReduceMean<axes = [1]>(p)"),
        norm(variance="v = ReduceMean<axes = [1, 2]>(p)"),
        norm(mean="m = ReduceMean(x)", variance="v = ReduceMean(p)"),
        norm(g="1", b="1"),
        norm(g="3,8"),
        norm(add="e = Add(v, eps4)", square="p = Pow(d, two)"),
        norm(eps="-1.0"),
        norm(add="e = Sub(v, eps)"),
        norm(sqrt="s = Exp(e)"),
        norm(square="d2 = Sub(m, x) p = Mul(d, d2)"),
        norm(square="z = Neg(x) d2 = Sub(z, m) p = Pow(d2, two)"),
        norm(bias="q = Add(k, b) y = Mul(q, d)"),
        norm(kind="float16", eps="1"),
    ],
)  # fmt: skip
def test_layer_norm_refused(text: str) -> None:
    if "float16" in text:
        text = text.replace("{2.0}", "{2}").replace("{3.0}", "{3}").replace("{1e-3}", "{1}").replace("{1e-5}", "{1}")
    assert not optimized(parse(text, 17), NORM)[1].trace


def gelu(body: str, **constants: str) -> str:
    values = {"half": "0.5", "one": "1.0", "root": "1.4142135381698608", "inv": "0.7071067690849304"} | constants
    given = ", ".join(f"float {name} = {{{value}}}" for name, value in values.items())
    return f"g (float[3,4] x) => (float y) <{given}, float[1] o1 = {{1.0}}, float[1,1,1] o3 = {{1.0}}> {{ {body} }}"


SCALED = ["t = Div(x, root)", "t = Mul(x, inv)", "t = Mul(inv, x)"]
ERF = "e = Erf(t) a = Add(e, one)"
FINAL = [
    "h = Mul(x, half) y = Mul(h, a)",
    "h = Mul(half, x) y = Mul(a, h)",
    "h = Mul(x, a) y = Mul(h, half)",
    "h = Mul(a, x) y = Mul(half, h)",
    "h = Mul(a, half) y = Mul(x, h)",
    "h = Mul(half, a) y = Mul(h, x)",
]


@sampled(4)
@pytest.mark.parametrize("scaled", SCALED)
@pytest.mark.parametrize("final", FINAL)
def test_gelu(scaled: str, final: str) -> None:
    for one in ("a = Add(e, one)", "a = Add(one, e)", "a = Add(e, o1)"):
        graph, _ = check(gelu(f"{scaled} e = Erf(t) {one} {final}"), [GELU], opset=20)
        assert ops(graph) == {"Gelu": 1}


@pytest.mark.parametrize("root", ["1.4142", "1.41420996", "1.41421356"])
def test_rounded_roots(root: str) -> None:
    assert ops(check(gelu(f"{SCALED[0]} {ERF} {FINAL[0]}", root=root), [GELU], opset=20)[0]) == {"Gelu": 1}


@pytest.mark.parametrize(
    "text",
    [
        gelu(f"{SCALED[0]} {ERF} {FINAL[0]}", root="1.4143"),
        gelu(f"{SCALED[1]} {ERF} {FINAL[0]}", inv="0.7"),
        gelu(f"{SCALED[0]} {ERF} {FINAL[0]}", half="0.51"),
        gelu(f"{SCALED[0]} {ERF} {FINAL[0]}", one="1.0001"),
        gelu(f"t = Div(root, x) {ERF} {FINAL[0]}"),
        gelu(f"{SCALED[0]} e = Erf(t) a = Add(e, o3) {FINAL[0]}"),
        gelu(f"{SCALED[0]} {ERF} z = Neg(x) h = Mul(z, half) y = Mul(h, a)"),
        gelu(f"{SCALED[0]} {ERF} h = Mul(x, half) k = Mul(h, a) y = Add(k, a)"),
        gelu(f"{SCALED[0]} {ERF} {FINAL[0]}").replace("(float y)", "(float y, float e)"),
    ],
)
def test_gelu_refused(text: str) -> None:
    assert not optimized(parse(text, 20), [GELU])[1].trace


def test_gelu_needs_opset_20() -> None:
    assert not optimized(parse(gelu(f"{SCALED[0]} {ERF} {FINAL[0]}"), 19), [GELU])[1].trace
