"""Masks that are looked up position by position, in the forms that exporters give them."""

from __future__ import annotations

import pytest
from golden import passes_in
from rewriting import check, ops, random_feeds
from rewriting import parse as parsed

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

PASSES = 3 * (*passes_in("propagation"), *passes_in("basic.reshape"), *passes_in("basic.mask_index"))
CONSTANTS = (
    "int64 zero = {0}, int64 one = {1}, int64 minus = {-1}, int64[1] ax0 = {0}, int64[1] ax1 = {1}, int64[1] last = {-1}, "
    "int64[3] to_b = {1, 2, 3}, int64[3] to_q = {0, 1, 3}, int64[3] to_k = {0, 1, 2}, bool true = {1}"
)
SIZES = "sh = Shape(m) b = Gather(sh, zero) s = Gather(sh, one) rb = Range(zero, b, one) rs = Range(zero, s, one)"
INDICES = f"{SIZES} ib = Unsqueeze(rb, to_b) ik = Unsqueeze(rs, to_k) iq = Unsqueeze(rs, to_q)"
FLAT = "f = Flatten<axis = 2>(m) n = Unsqueeze(s, ax0)"
PAIRS = (
    "big = Max(ib, ik) to = Shape(big) eb = Expand(ib, to) ek = Expand(ik, to) ub = Unsqueeze(eb, last)"
    " uk = Unsqueeze(ek, last)"
)


def text(body: str, mask: str = "bool[batch,seq] m") -> str:
    return f"g ({mask}) => (bool y) <{CONSTANTS}> {{ {body} }}"


@pytest.mark.parametrize("sizes", [{}, {"batch": 1, "seq": 4}, {"batch": 4, "seq": 1}])
def test_torchscript(sizes: dict[str, int]) -> None:
    body = (
        f"{INDICES} {FLAT} ge = GreaterOrEqual(iq, zero) a = And(true, ge) row = Mul(ib, n) i = Add(row, ik)"
        " g = Gather(f, i) o = Squeeze(g, last) y = And(a, o)"
    )
    proto = parsed(text(body), 16)
    graph, _ = check(proto, PASSES, feeds=random_feeds(proto, **sizes))
    assert {"Flatten", "Mul", "Add"}.isdisjoint(ops(graph))
    assert ops(graph)["And"] == 1


@pytest.mark.parametrize("sizes", [{}, {"batch": 1, "seq": 4}, {"batch": 4, "seq": 1}, {"batch": 0, "seq": 2}])
def test_dynamo(sizes: dict[str, int]) -> None:
    proto = parsed(text(f"{INDICES} {PAIRS} i = Concat<axis = -1>(ub, uk) y = GatherND(m, i)"), 18)
    graph, _ = check(proto, PASSES, feeds=random_feeds(proto, **sizes))
    assert {"GatherND", "Max", "Concat"}.isdisjoint(ops(graph))


SQUARE = "bool[seq,seq] m"


@pytest.mark.parametrize(
    ("body", "mask"),
    [
        (f"{INDICES} {PAIRS} i = Concat<axis = -1>(uk, ub) y = GatherND(m, i)", SQUARE),
        (f"{INDICES} {PAIRS} i = Concat<axis = -1>(ub, ub) y = GatherND(m, i)", SQUARE),
        (f"{INDICES} {FLAT} row = Mul(ib, b) i = Add(row, ik) y = Gather(f, i)", "bool[2,3] m"),
        (f"{INDICES} {FLAT} row = Mul(ik, n) i = Add(row, ib) y = Gather(f, i)", SQUARE),
        (f"{INDICES} {FLAT} i = Add(ik, iq) y = Gather(f, i)", "bool[batch,3] m"),
        ("sh = Shape(m) s = Squeeze(sh, ax0) r = Range(minus, s, one) f = Flatten<axis = 1>(m) y = Gather(f, r)", "bool[seq] m"),
        ("sh = Shape(m) s = Squeeze(sh, ax0) r = Range(zero, s, one) t = GreaterOrEqual(r, one) y = And(t, m)", "bool[seq] m"),
        (f"{SIZES} u = Unsqueeze(rs, ax1) t = GreaterOrEqual(u, zero) y = And(t, m)", "bool[1,seq] m"),
        (f"{SIZES} n = Neg(rs) t = GreaterOrEqual(n, zero) y = And(t, m)", "bool[1,seq] m"),
    ],
    ids=["swapped", "diagonal", "other rows", "columns first", "sum", "from minus one", "not all", "enlarged", "falling"],
)  # fmt: skip
def test_refused(body: str, mask: str) -> None:
    _, context = check(text(body, mask), PASSES, opset=18)
    assert {"IndexedMaskFusion", "AndElimination"}.isdisjoint(context.counts())


def test_what_is_known_to_be_true() -> None:
    graph, _ = check(text(f"{SIZES} t = GreaterOrEqual(rs, zero) y = And(m, t)"), PASSES, opset=18)
    assert "And" not in ops(graph)


def test_batch_that_was_one_axis_with_the_heads() -> None:
    """As in BLOOM, where it is divided out of the stacked results of a product."""
    body = (
        "sh = Shape(x) n = Gather(sh, zero) rows = Mul(n, heads) rows1 = Unsqueeze(rows, ax0)"
        " flat = Concat<axis = 0>(rows1, last, four) f = Reshape(x, flat) r = Relu(f) sr = Shape(r) nr = Gather(sr, zero)"
        " b = Div(nr, heads) b1 = Unsqueeze(b, ax0) to = Concat<axis = 0>(b1, six, last, four) y = Reshape(r, to)"
    )
    sizes = "int64 heads = {6}, int64[1] six = {6}, int64[1] four = {4}"
    graph, _ = check(parsed(f"g (float[batch,6,seq,4] x) => (float y) <{CONSTANTS}, {sizes}> {{ {body} }}", 17), PASSES)
    assert "Div" not in ops(graph)
