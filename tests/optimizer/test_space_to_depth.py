"""Slices and a Concat that spell out SpaceToDepth."""

from __future__ import annotations

import itertools

import pytest
from golden import passes_in
from rewriting import check, ops, optimized, parse

from tests.batches import batched

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

PASSES = passes_in("basic.space_to_depth")
BLOCKS = [(0, 0), (0, 1), (1, 0), (1, 1)]
YOLO = [0, 2, 1, 3]


def single(order: list[int], *, shape: str = "1,3,4,6", kind: str = "float", end: str = "9223372036854775807",
           axes: str = "2, 3", steps: str = "2, 2", axis: int = 1, tail: str = "") -> str:  # fmt: skip
    starts = "".join(f", int64[2] s{i} = {{{BLOCKS[b][0]}, {BLOCKS[b][1]}}}" for i, b in enumerate(order))
    slices = " ".join(f"p{i} = Slice(x, s{i}, e, a, t)" for i in range(4))
    return f"""g ({kind}[{shape}] x) => ({kind} y{tail}) <int64[2] e = {{{end}, {end}}}, int64[2] a = {{{axes}}},
        int64[2] t = {{{steps}}}{starts}> {{ {slices} y = Concat<axis = {axis}>(p0, p1, p2, p3) }}"""


def chained(order: list[int], shared: bool) -> str:
    lines = ["r0 = Slice(x, z, e, h, t)", "r1 = Slice(x, o, e, h, t)"] if shared else []
    for i, block in enumerate(order):
        row, column = ("zo"[start] for start in BLOCKS[block])
        source = f"r{BLOCKS[block][0]}" if shared else f"q{i}"
        if not shared:
            lines.append(f"q{i} = Slice(x, {row}, e, h, t)")
        lines.append(f"p{i} = Slice({source}, {column}, e, w, t)")
    return f"""g (float[1,3,4,6] x) => (float y) <int64[1] z = {{0}}, int64[1] o = {{1}}, int64[1] e = {{2147483647}},
        int64[1] h = {{2}}, int64[1] w = {{-1}}, int64[1] t = {{2}}> {{
        {" ".join(lines)} y = Concat<axis = -3>(p0, p1, p2, p3) }}"""


@batched
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_every_order(order: tuple[int, ...]) -> None:
    graph, _ = check(single(list(order)), PASSES)
    assert ops(graph) == ({"SpaceToDepth": 1} if order == (0, 1, 2, 3) else {"SpaceToDepth": 1, "Gather": 1})


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("order", [[0, 1, 2, 3], YOLO])
def test_two_slices_in_a_row(order: list[int], shared: bool) -> None:
    graph, _ = check(chained(order, shared), PASSES)
    assert ops(graph).get("Slice", 0) == 0


@pytest.mark.parametrize("options", [
    {"kind": "double"}, {"end": "6", "shape": "2,3,6,6"}, {"axes": "-2, -1"}, {"axis": -3}, {"shape": "N,3,H,W"},
    {"end": "2147483647"},
])  # fmt: skip
def test_other_types_axes_and_shapes_become_space_to_depth(options: dict[str, str]) -> None:
    from rewriting import random_feeds

    proto = parse(single(YOLO, **options))  # type: ignore[arg-type]
    assert ops(check(proto, PASSES, feeds=random_feeds(proto, H=4, W=6))[0]) == {"SpaceToDepth": 1, "Gather": 1}


def test_symbolic_channels_only_in_the_order_of_space_to_depth() -> None:
    from rewriting import random_feeds

    for order, fires in (([0, 1, 2, 3], True), (YOLO, False)):
        proto = parse(single(order, shape="1,C,4,6"))
        assert bool(check(proto, PASSES, feeds=random_feeds(proto))[1].trace) == fires


@pytest.mark.parametrize(
    "text",
    [
        single([0, 1, 2, 2]),
        single(YOLO, end="5", shape="N,3,H,W"),
        single(YOLO, end="-1", shape="N,3,H,W"),
        single(YOLO, steps="1, 1", shape="N,3,H,W"),
        single(YOLO, steps="2, 1", shape="N,3,H,W"),
        single(YOLO, axes="3, 2", shape="N,3,H,W").replace("p1 = Slice(x, s1, e, a, t)", "p1 = Slice(x, s1, e, a)"),
        single(YOLO, axis=2),
        single(YOLO, kind="int32"),
        single(YOLO, tail=", float p1"),
        single(YOLO).replace("p3)", "p3, p0)"),
        single(YOLO).replace("y = Concat<axis = 1>(p0, p1, p2, p3)", "n = Neg(p1) k = Concat<axis = 1>(p0, p1, p2, p3) y = Sum(k)"),
        single(YOLO).replace("p1 = Slice(x,", "k = Neg(x) p1 = Slice(k,"),
    ],
)  # fmt: skip
def test_refused(text: str) -> None:
    assert not optimized(parse(text), PASSES)[1].trace
