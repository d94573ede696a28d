"""Rewrites of QuantizeLinear and DequantizeLinear nodes: exact ones only."""

from __future__ import annotations

import numpy as np
import pytest
from golden import passes_in
from rewriting import check, ops, optimized, parse, random_feeds

from ortconv.onnxio.load import from_proto
from ortconv.optimizer.engine import Context

DOUBLE, PROPAGATION, UNIQUE, _ = ((p,) for p in passes_in("basic.qdq"))
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


def test_pair_between_integers() -> None:
    text = f"g (uint8[3,4] x) => (uint8 y) {PARAMS} {{ b = {D}(x, s, z) y = {Q}(b, s, z) }}"
    assert ops(check(text, DOUBLE)[0]) == {"Identity": 1}


def test_every_integer_survives() -> None:
    params = "<float s = {0.0123}, uint8 z = {77}>"
    text = f"g (uint8[256] x) => (uint8 y) {params} {{ b = {D}(x, s, z) c = {Q}(b, s, z) y = Max(c, c) }}"
    assert len(check(text, DOUBLE, feeds={"x": np.arange(256, dtype=np.uint8)})[0]) == 1


def test_shared_dequantize_stays_for_others() -> None:
    text = double(QD, f"c = {Q}(b, s, z) d = {D}(c, s, z) y = Sub(b, d)")
    assert ops(check(text, DOUBLE)[0]) == {Q: 1, D: 2, "Sub": 1}


def test_double_pairs_per_axis() -> None:
    params = "<float[3] s = {0.05, 0.1, 0.2}, uint8[3] z = {128, 3, 0}>"
    for axis, left in ((0, 2), (-2, 2)):
        text = f"""g (float[3,4] x) => (float y) {params} {{ a = {Q}<axis = 0>(x, s, z) b = {D}<axis = {axis}>(a, s, z)
            c = {Q}<axis = 0>(b, s, z) y = {D}<axis = 0>(c, s, z) }}"""
        assert len(check(text, DOUBLE)[0]) == left
    text = f"""g (float[3,3] x) => (float y) {params} {{ a = {Q}<axis = 0>(x, s, z) b = {D}<axis = 0>(a, s, z)
        c = {Q}<axis = 1>(b, s, z) y = {D}<axis = 1>(c, s, z) }}"""
    assert len(check(text, DOUBLE)[0]) == 4


@pytest.mark.parametrize("scale", ["0.0", "1e-40", "inf", "-0.1"])
def test_scale_that_loses_integers_is_refused(scale: str) -> None:
    text = double(QD, f"c = {Q}(b, s, z) y = {D}(c, s, z)").replace("float s = {0.05}", "float s = {1.0}")
    proto = parse(text)
    proto.graph.initializer[0].float_data[0] = float(scale)
    assert not optimized(proto, DOUBLE)[1].trace


def test_overridable_scale_is_refused() -> None:
    text = f"g (float[3,4] x, float s = {{0.05}}) => (float y) <uint8 z = {{128}}> {{ {QD} c = {Q}(b, s, z) y = {D}(c, s, z) }}"
    assert not optimized(parse(text), DOUBLE)[1].trace


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


def test_chain_backward_from_an_input() -> None:
    text = f"""g (float[1,3,4,5] x) => (uint8 y) {PARAMS} {{
        m = Transpose(x) n = Transpose<perm = [1, 0, 2, 3]>(m) y = {Q}(n, s, z) }}"""
    graph, _ = check(text, PROPAGATION)
    assert [n.op for n in graph] == [Q, D, "Transpose", Q, D, "Transpose", Q]


@pytest.mark.parametrize(
    "body",
    [
        f"b = {D}(x, s, z) y = Transpose(b)",
        f"b = {D}(x, s, z) m = Transpose(b) k = Neg(m) y = Sub(m, k)",
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


def test_per_axis_is_not_propagated() -> None:
    text = f"""g (uint8[2,3] x) => (float y) <float[2] s = {{0.1, 0.2}}, uint8[2] z = {{0, 3}}> {{
        b = {D}<axis = 0>(x, s, z) m = Transpose(b) y = Neg(m) }}"""
    assert not optimized(parse(text), PROPAGATION)[1].trace


def test_max_pool_before_opset_12_is_not_propagated() -> None:
    text = f"g (uint8[1,3,4,5] x) => (float y) {PARAMS} {{ b = {D}(x, s, z) m = MaxPool<kernel_shape = [2, 2]>(b) y = Neg(m) }}"
    assert not optimized(parse(text, 11), PROPAGATION)[1].trace


RESIDUAL = f"""g (uint8[1,4,6,6] x, uint8[4,4,1,1] w) => (uint8 y) {PARAMS} {{
    d = {D}(x, s, z) v = {D}(w, t, u) c = Conv(d, v) q = {Q}(c, t, u) e = {D}(q, t, u)
    a = Add(d, e) y = {Q}(a, s, z) }}"""


def test_residual_block_gets_one_more() -> None:
    graph, context = check(RESIDUAL, UNIQUE)
    assert context.counts() == {"EnsureUniqueDQForNodeUnit": 1}
    assert all(len(n.out.uses) == 1 for n in graph if n.op == D)
    assert any(n.out.name == "d/duplicated" for n in graph if n.op == D)


def test_both_operands_of_one_node() -> None:
    text = f"g (uint8[3] x) => (uint8 y) {PARAMS} {{ d = {D}(x, s, z) a = Add(d, d) y = {Q}(a, s, z) }}"
    assert ops(check(text, UNIQUE)[0]) == {D: 2, "Add": 1, Q: 1}


def test_returned_dequantized_value_keeps_the_original() -> None:
    text = f"g (uint8[3] x) => (uint8 y, float d) {PARAMS} {{ d = {D}(x, s, z) a = Relu(d) y = {Q}(a, s, z) }}"
    graph, _ = check(text, UNIQUE)
    assert ops(graph) == {D: 2, "Relu": 1, Q: 1}
    assert not graph.outputs[1].uses


def test_float_readers_share_the_original() -> None:
    text = f"""g (uint8[3] x) => (uint8 y, float a, float b) {PARAMS} {{
        d = {D}(x, s, z) a = Erf(d) b = Cosh(d) r = Relu(d) y = {Q}(r, s, z) }}"""
    graph, _ = check(text, UNIQUE)
    assert ops(graph)[D] == 2


def test_float_readers_alone_need_no_copy() -> None:
    text = f"g (uint8[3] x) => (float a, float b) {PARAMS} {{ d = {D}(x, s, z) a = Erf(d) b = Relu(d) }}"
    assert not check(text, UNIQUE)[1].trace


def test_reader_in_a_subgraph_keeps_the_original() -> None:
    text = f"""g (uint8[3] x, bool p) => (uint8 y, float k) {PARAMS} {{
        d = {D}(x, s, z) r = Relu(d) y = {Q}(r, s, z)
        k = If (p) < then_branch = g1 () => (float t1) {{ t1 = Neg(d) }}, else_branch = g2 () => (float e1) {{ e1 = Abs(d) }} >
    }}"""
    graph, context = check(text, UNIQUE)
    assert context.counts() == {"EnsureUniqueDQForNodeUnit": 1}
    assert ops(graph)[D] == 2


def test_shared_weights() -> None:
    text = f"""g (uint8[1,4,6,6] x, uint8[1,4,6,6] v) => (uint8 y, uint8 k) <float s = {{0.05}}, uint8[4,4,1,1] w> {{
        dw = {D}(w, s) dx = {D}(x, s) dv = {D}(v, s) a = Conv(dx, dw) b = Conv(dv, dw) y = {Q}(a, s) k = {Q}(b, s) }}"""
    proto = parse(
        text.replace(", uint8[4,4,1,1] w", "").replace("uint8[1,4,6,6] v)", "uint8[1,4,6,6] v, uint8[4,4,1,1] w)")
    )
    graph, _ = check(proto, UNIQUE, feeds=random_feeds(proto))
    assert ops(graph)[D] == 4


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
