"""Rewrites of QuantizeLinear and DequantizeLinear nodes: exact ones only."""

from __future__ import annotations

import numpy as np
import pytest
from golden import passes_in
from rewriting import check, ops, optimized, parse

from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context

DOUBLE, _, PROPAGATION, UNIQUE, _ = ((p,) for p in passes_in("basic.qdq"))
ALL = (*DOUBLE, *PROPAGATION, *UNIQUE)

Q, D = "QuantizeLinear", "DequantizeLinear"
PARAMS = (
    "<float s = {0.05}, uint8 z = {128}, float t = {0.1}, uint8 u = {3}, int8 i = {0}, int8 j = {-5}, uint8 o = {0}>"
)


def double(first: str, second: str) -> str:
    return f"g (float[3,4] x) => (float y) {PARAMS} {{ {first} {second} }}"


QD = f"a = {Q}(x, s, z) b = {D}(a, s, z)"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (double(QD, f"c = {Q}(b, s, z) y = {D}(c, s, z)"), 2),
        (double(f"a = {Q}(x, s) b = {D}(a, s)", f"c = {Q}(b, s, o) y = {D}(c, s, o)"), 2),
        (double(f"a = {Q}(x, s, i) b = {D}(a, s, i)", f"c = {Q}(b, s, i) y = {D}(c, s, i)"), 2),
        (double(QD, f"c = {Q}(b, s, u) y = {D}(c, s, u)"), 4),
        (double(QD, f"c = {Q}(b, t, z) y = {D}(c, t, z)"), 4),
        (double(f"a = {Q}(x, s, o) b = {D}(a, s, o)", f"c = {Q}(b, s, i) y = {D}(c, s, i)"), 4),
        (double(QD, f"e = Relu(b) c = {Q}(e, s, z) y = {D}(c, s, z)"), 5),
    ],
)
def test_double_pairs(text: str, left: int) -> None:
    assert len(check(text, DOUBLE)[0]) == left


def test_every_integer_survives() -> None:
    params = "<float s = {0.0123}, uint8 z = {77}>"
    text = f"g (uint8[256] x) => (uint8 y) {params} {{ b = {D}(x, s, z) c = {Q}(b, s, z) y = Max(c, c) }}"
    assert len(check(text, DOUBLE, feeds={"x": np.arange(256, dtype=np.uint8)})[0]) == 1


@pytest.mark.parametrize("scale", ["0.0", "1e-40", "inf", "-0.1"])
def test_scale_that_loses_integers_is_refused(scale: str) -> None:
    text = double(QD, f"c = {Q}(b, s, z) y = {D}(c, s, z)").replace("float s = {0.05}", "float s = {1.0}")
    proto = parse(text)
    proto.graph.initializer[0].float_data[0] = float(scale)
    assert not optimized(proto, DOUBLE)[1].trace


MOVERS = {
    "MaxPool": "MaxPool<kernel_shape = [2, 2]>({})",
    "Reshape": "Reshape({}, shape)",
    "Transpose": "Transpose<perm = [0, 2, 3, 1]>({})",
    "Squeeze": "Squeeze({}, zero)",
    "Unsqueeze": "Unsqueeze({}, zero)",
    "Slice": "Slice({}, one, two, two)",
}
MOVER_PARAMS = PARAMS[:-1] + ", int64[2] shape = {3, -1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}>"


@pytest.mark.parametrize("op", MOVERS)
def test_forward(op: str) -> None:
    text = f"g (uint8[1,3,4,5] x) => (float y) {MOVER_PARAMS} {{ b = {D}(x, s, z) m = {MOVERS[op].format('b')} y = Neg(m) }}"
    graph, _ = check(text, PROPAGATION)
    assert [n.op for n in graph] == [D, op, Q, D, "Neg"]


def test_forward_to_several_readers() -> None:
    """As behind the pooling of a residual network, whose result a convolution and an addition read."""
    text = f"""g (uint8[1,3,4,5] x) => (float y) {MOVER_PARAMS} {{
        b = {D}(x, s, z) m = {MOVERS["MaxPool"].format("b")} k = Neg(m) q = {Q}(k, t, u) e = {D}(q, t, u) y = Sub(m, e) }}"""
    graph, _ = check(text, PROPAGATION)
    assert [n.op for n in graph] == [D, "MaxPool", Q, D, "Neg", Q, D, "Sub"]


@pytest.mark.parametrize("op", MOVERS)
def test_backward(op: str) -> None:
    text = f"g (float[1,3,4,5] x) => (uint8 y) {MOVER_PARAMS} {{ w = Neg(x) m = {MOVERS[op].format('w')} y = {Q}(m, s, z) }}"
    graph, _ = check(text, PROPAGATION)
    assert [n.op for n in graph] == ["Neg", Q, D, op, Q]


@pytest.mark.parametrize("zero", ["", ", i", ", j"])
def test_signed_and_missing_zero_points(zero: str) -> None:
    text = f"""g (int8[1,3,4,5] x) => (float y) {PARAMS} {{
        b = {D}(x, s{zero}) m = Transpose(b) n = Transpose<perm = [1, 0, 2, 3]>(m) y = Neg(n) }}"""
    graph, _ = check(text, PROPAGATION)
    assert [n.op for n in graph] == [D, "Transpose", Q, D, "Transpose", Q, D, "Neg"]


@pytest.mark.parametrize(
    "body",
    [
        f"b = {D}(x, s, z) y = Transpose(b)",
        f"b = {D}(x, s, z) m = Transpose(b) k = Neg(m) y = Sub(m, k)",
        f"b = {D}(x, s, z) m = Transpose(b) k = Neg(m) q = {Q}(m, t, u) e = {D}(q, t, u) y = Sub(e, k)",
        f"b = {D}(x, s, z) m = Transpose(b) c = Greater(r, t) y = If(c) <then_branch = t () => (float o) {{ o = Neg(m) }}, "
        "else_branch = e () => (float o) { o = Abs(m) }>",
        f"b = {D}(x, s, z) m = Transpose(b) n = Transpose(b) y = Sub(m, n)",
        f"b = {D}(x, s, z) m = Relu(b) y = Neg(m)",
        f"b = {D}(x, s, z) m = Flatten(b) y = Neg(m)",
        f"b = {D}(x, s, z) m = Transpose(b) q = {Q}(m, t, u) y = {D}(q, t, u)",
        f"b = {D}(x, r, z) m = Transpose(b) y = Neg(m)",
        f"b = {D}(x, s, z) m, idx = MaxPool<kernel_shape = [2, 2]>(b) k = Cast<to = 1>(idx) y = Add(m, k)",
    ],
)
def test_propagation_refused(body: str) -> None:
    text = f"g (uint8[2,2,4,4] x, float r) => (float y) {PARAMS} {{ {body} }}"
    assert not optimized(parse(text), PROPAGATION)[1].trace


RESIDUAL = f"""g (uint8[1,4,6,6] x, uint8[4,4,1,1] w) => (uint8 y) {PARAMS} {{
    d = {D}(x, s, z) v = {D}(w, t, u) c = Conv(d, v) q = {Q}(c, t, u) e = {D}(q, t, u)
    a = Add(d, e) y = {Q}(a, s, z) }}"""


def test_residual_block_gets_one_more() -> None:
    graph, context = check(RESIDUAL, UNIQUE)
    assert context.counts() == {"EnsureUniqueDQForNodeUnit": 1}
    assert all(len(n.out.uses) == 1 for n in graph if n.op == D)
    assert any(n.out.name == "d/duplicated" for n in graph if n.op == D)


def test_all_together_reach_a_fixpoint() -> None:
    graph, _ = check(RESIDUAL, ALL)
    assert ops(graph) == {D: 4, Q: 2, "Conv": 1, "Add": 1}


def test_nodes_of_another_provider_stay() -> None:
    for only_cpu in (True, False):
        graph = from_proto(parse(RESIDUAL)).graph
        for node in graph:
            node.ep = "nnapi"
        changes = sum(p.run(graph, Context(only_cpu=only_cpu)) for p in ALL)
        assert bool(changes) != only_cpu
        assert all(node.ep == "nnapi" for node in graph)
