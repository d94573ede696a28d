"""Rotary positions whose cosines and sines are copies of angles, or of something that is nearly the same."""

from __future__ import annotations

import pytest
from golden import passes_in
from rewriting import check, ops

from tests.batches import sampled

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

PASSES = passes_in("extended.attention.rotary")

CONSTANTS = """int64[1] a0 = {0}, int64[1] a1 = {1}, int64[1] a2 = {2}, int64[1] a3 = {3}, int64[2] a01 = {0, 1},
    int64[1] two = {2}, int64[1] end = {9223372036854775807}, float half = {0.5}, float[1] pair = {0.5}, float[1,1] plane = {0.5},
    float[4] row = {1, 2, 3, 4}, int64[4] fours = {0, 1, -2, -1}, int64[4] others = {0, 1, 1, 0}, int64[3] rows = {2, 0, 1},
    int64[3] twice = {1, 2, 1}, int64[4,2] picked = {0, 0, 1, 0, 0, 1, 1, 1}, int64[4,2] turned = {0, 0, 1, 0, 1, 1, 0, 1},
    int64[4,3] points = {0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0}, int64[4] heads = {2, 1, 3, 4},
    float[4,2] table = {1, 2, 3, 4, 5, 6, 7, 8},
    int64[2,3] places = {0, 2, 1, 3, 0, 2}, int64[1,3] shared = {3, 0, 1}, int64[2,3] back = {0, -2, 1, -1, -4, 2},
    int32[2,3] short = {0, 2, 1, 3, 0, 2}"""

PLAIN = "f = Concat<axis = -1>(a, a)"
HEADS = "$0 = FN(f) $ = Unsqueeze($0, a1)"
COPIED = "u = Unsqueeze(a, a1) e = Expand(u, twice)"
FLAT = "$0 = FN(f) $ = Unsqueeze($0, a01)"

# The shapes of x and the angles a, f made of a, functions of f, and whether it is a rotation by these angles.
CASES: dict[str, tuple[str, str, str, str, bool]] = {
    "plain": ("2,2,3,4", "2,3,2", PLAIN, HEADS, True),
    "other angles": ("2,2,3,4", "2,3,2", "b = Neg(a) f = Concat<axis = -1>(a, b)", HEADS, False),
    "copies of rows": ("2,2,6,4", "2,3,4", "f = Concat<axis = 1>(a, a)", HEADS, False),
    "five axes": ("2,2,3,4", "2,3,2", PLAIN, "$0 = FN(f) $1 = Unsqueeze($0, a1) $ = Unsqueeze($1, a0)", False),
    "two axes": ("2,2,3,4", "3,2", PLAIN, "$ = FN(f)", True),
    "one axis": ("2,2,1,4", "2", PLAIN, "$ = FN(f)", True),
    "angles for one row": ("2,2,3,4", "2", PLAIN, "$ = FN(f)", False),
    "angles of more batches": ("1,2,3,4", "2,3,2", PLAIN, HEADS, False),
    "angles of more rows": ("2,2,1,4", "2,3,2", PLAIN, HEADS, False),
    "gathered columns": ("2,2,3,4", "2,3,2", "f = Gather<axis = -1>(a, fours)", HEADS, True),
    "other columns": ("2,2,3,4", "2,3,2", "f = Gather<axis = -1>(a, others)", HEADS, False),
    "gathered rows": ("2,2,3,4", "2,3,2", "b = Gather<axis = 1>(a, rows) f = Concat<axis = -1>(b, b)", HEADS, True),
    "sliced columns": ("2,2,3,4", "2,3,4", "b = Slice(a, a1, a3, a2) f = Concat<axis = -1>(b, b)", HEADS, True),
    "sliced rows": ("2,2,3,4", "2,4,4", "f = Slice(a, a1, end, a1)", HEADS, False),
    "number": ("2,2,3,4", "2,3,2", PLAIN, "$0 = FN(f) $1 = Mul($0, half) $ = Unsqueeze($1, a1)", True),
    "number with an axis": ("2,2,3,4", "2,3,2", PLAIN, "$0 = FN(f) $1 = Mul($0, pair) $ = Unsqueeze($1, a1)", True),
    "number with two axes": ("2,2,3,4", "2,3,2", PLAIN, "$0 = FN(f) $1 = Mul($0, plane) $ = Unsqueeze($1, a1)", False),
    "scaled angles": ("2,2,3,4", "2,3,2", "b = Mul(half, a) f = Concat<axis = -1>(b, b)", HEADS, True),
    "row": ("2,2,3,4", "2,3,2", PLAIN, "$0 = FN(f) $1 = Mul($0, row) $ = Unsqueeze($1, a1)", False),
    "picked columns": ("2,2,3,4", "2,3", f"{COPIED} g = GatherND(e, picked) f = Transpose(g)", FLAT, True),
    "picked otherwise": ("2,2,3,4", "2,3", f"{COPIED} g = GatherND(e, turned) f = Transpose(g)", FLAT, False),
    "picked points": ("2,2,1,4", "2,3", f"{COPIED} g = GatherND(e, points) f = Unsqueeze(g, a01)", "$ = FN(f)", False),
    "picked in batches": ("4,2,1,4", "4,2", f"{COPIED} g = GatherND<batch_dims = 1>(e, picked) f = Unsqueeze(g, a0)",
                          "$ = FN(f)", False),
    "reshaped": ("2,2,3,4", "2,3,2", PLAIN, "$0 = FN(f) $ = Reshape($0, heads)", True),
    "batches and rows swapped": ("2,2,3,4", "3,2,2", PLAIN, "$0 = FN(f) $ = Reshape($0, heads)", False),
    "transposed": ("2,2,3,4", "3,2,2", "t = Transpose<perm = [1, 0, 2]>(a) f = Concat<axis = -1>(t, t)", HEADS, True),
    "as many rows as heads": ("2,3,3,4", "2,3,2", PLAIN, HEADS, True),
    "as many heads as rows": ("2,3,3,4", "2,3,2", PLAIN, "$0 = FN(f) $ = Unsqueeze($0, a2)", True),
    "looked up": ("2,2,3,4", "1", "b = Gather(table, places) f = Concat<axis = -1>(b, b)", "$ = Unsqueeze(f, a1)", True),
    "looked up for all": ("2,2,3,4", "1", "b = Gather(table, shared) f = Concat<axis = -1>(b, b)", "$ = Unsqueeze(f, a1)", True),
    "looked up from the end": ("2,2,3,4", "1", "b = Gather(table, back) f = Concat<axis = -1>(b, b)", "$ = Unsqueeze(f, a1)", True),
    "looked up by int32": ("2,2,3,4", "1", "b = Gather(table, short) f = Concat<axis = -1>(b, b)", "$ = Unsqueeze(f, a1)", True),
}  # fmt: skip


def rotation(x: str, a: str, angles: str, functions: str, halves: str = "x") -> str:
    """The rotation of x by angles, or what results if the halves are those of another tensor z."""
    factors = [functions.replace("FN", op).replace("$", value) for op, value in (("Cos", "c"), ("Sin", "s"))]
    return f"""g (float[{x}] x, float[{x}] z, float[{a}] a) => (float y) <{CONSTANTS}> {{ {angles} {" ".join(factors)}
        h = Slice({halves}, two, end, a3) l = Slice({halves}, a0, two, a3) n = Neg(h) r = Concat<axis = -1>(n, l)
        p = Mul(x, c) q = Mul(r, s) y = Add(p, q) }}"""


@sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_copies_of_angles(name: str) -> None:
    *parts, fires = CASES[name]
    graph, _ = check(rotation(*parts), PASSES)
    assert ("com.microsoft.RotaryEmbedding" in ops(graph)) == fires


def test_halves_of_another_tensor() -> None:
    x, a, angles, functions, _ = CASES["plain"]
    graph, _ = check(rotation(x, a, angles, functions, "z"), PASSES)
    assert "com.microsoft.RotaryEmbedding" not in ops(graph)
