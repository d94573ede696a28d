"""Masks of attention that are nearly in a form which the fused operator has: two heads, and as many queries as keys."""

from __future__ import annotations

import pytest
from golden import passes_in
from rewriting import check, ops

from tests.batches import batched

pytestmark = pytest.mark.slow  # the golden cases of these rules are fast

FUSION = (*passes_in("basic.nan_guard"), *passes_in("extended.attention.fusion"))
FUSED = "com.microsoft.MultiHeadAttention"

CONSTANTS = """int64[3] rows = {0, 0, -1}, int64[2] of_keys = {1, 2}, int64[2] of_queries = {1, 3}, int64[4] whole = {2, 1, 3, 3},
    float zero = {0}, float one = {1}, float low = {-10000}, float lowest = {-1e38}, float none = {-inf}, float all = {inf}"""

ATTENTION = """
    shape{n} = Constant<value = int64[4] {{0, 0, {heads}, {size}}}>()
    qr{n} = Reshape(q, shape{n}) qt{n} = Transpose<perm = [0, 2, 1, 3]>(qr{n})
    kr{n} = Reshape(k, shape{n}) kt{n} = Transpose<perm = [0, 2, 3, 1]>(kr{n})
    vr{n} = Reshape(v, shape{n}) vt{n} = Transpose<perm = [0, 2, 1, 3]>(vr{n})
    s{n} = MatMul(qt{n}, kt{n}) {mask} p{n} = Softmax<axis = -1>(t{n}) {guard}
    o{n} = MatMul({weights}, vt{n}) r{n} = Transpose<perm = [0, 2, 1, 3]>(o{n}) y{n} = Reshape(r{n}, rows)
"""
"""Attention over q, k and v, with a mask that turns scores s into t, and a guard of the weights p."""

MASKS = {
    # an input, the mask, whether attention is fused, and whether the mask is one of keys
    "keys": ("bool[2,3] c", "x = Unsqueeze(c, of_keys) m = Where(x, zero, low) t = Add(s, m)", True, True),
    "queries": ("bool[2,3] c", "x = Unsqueeze(c, of_queries) m = Where(x, zero, low) t = Add(s, m)", True, False),
    "keys, expanded": ("bool[2,3] c", "x = Unsqueeze(c, of_keys) e = Expand(x, whole) m = Where(e, zero, low) t = Add(s, m)",
                       True, True),
    "queries, expanded": ("bool[2,3] c", "x = Unsqueeze(c, of_queries) e = Expand(x, whole) m = Where(e, zero, low) t = Add(s, m)",
                          True, False),
    "keys of one batch": ("bool[1,3] c", "x = Unsqueeze(c, of_keys) e = Expand(x, whole) m = Where(e, zero, low) t = Add(s, m)",
                          True, False),
    "one key": ("bool[2,1] c", "x = Unsqueeze(c, of_keys) e = Expand(x, whole) m = Where(e, zero, low) t = Add(s, m)", True, False),
    "replaced for queries": ("bool[2,3] c", "x = Unsqueeze(c, of_queries) t = Where(x, s, none)", True, False),
    "replaced by infinity": ("bool[2,3] c", "x = Unsqueeze(c, of_keys) t = Where(x, s, all)", False, False),
    "blended": ("bool[2,3] c", "x = Unsqueeze(c, of_keys) n = Not(x) f = Cast<to = 1>(x) g = Cast<to = 1>(n)"
                " h = Mul(f, s) l = Mul(g, lowest) t = Add(l, h)", True, True),
    "blended with a number that scores change": ("bool[2,3] c", "x = Unsqueeze(c, of_keys) n = Not(x) f = Cast<to = 1>(x)"
                " g = Cast<to = 1>(n) h = Mul(f, s) l = Mul(g, low) t = Add(l, h)", False, True),
    "blended with other keys": ("bool[2,3] c, bool[2,3] d", "x = Unsqueeze(c, of_keys) z = Unsqueeze(d, of_keys) n = Not(z)"
                " f = Cast<to = 1>(x) g = Cast<to = 1>(n) h = Mul(f, s) l = Mul(g, lowest) t = Add(l, h)", False, True),
    "blended constants": ("bool u", "f = Constant<value = float[1,1,3,3] {1, 0, 0, 1, 1, 0, 1, 1, 1}>() h = Mul(s, f)"
                " l = Constant<value = float[1,1,3,3] {0, -1e38, -1e38, 0, 0, -1e38, 0, 0, 0}>() t = Add(h, l)", True, False),
    "blended constants that do not fit": ("bool u", "f = Constant<value = float[1,1,3,3] {1, 0, 0, 1, 1, 1, 1, 1, 1}>()"
                " l = Constant<value = float[1,1,3,3] {0, -1e38, -1e38, 0, 0, -1e38, 0, 0, 0}>() h = Mul(s, f) t = Add(h, l)",
                False, False),
    "rows": ("float[2,1,3,1] m", "t = Add(s, m)", True, False),
    "batches of a constant": ("bool[2,3] c", "m = Constant<value = float[2,1,1,3] {1, 2, 3, 4, 5, 6}>() t = Add(s, m)",
                              False, False),
}  # fmt: skip


@batched
@pytest.mark.parametrize("name", MASKS)
def test_mask(name: str) -> None:
    given, mask, fused, of_keys = MASKS[name]
    nodes = ATTENTION.format(n="", heads=2, size=4, mask=mask, guard="", weights="p")
    text = f"g (float[2,3,8] q, float[2,3,8] k, float[2,3,8] v, {given}) => (float y) <{CONSTANTS}> {{ {nodes} }}"
    found = ops(check(text, FUSION)[0])
    assert (FUSED in found, "Cast" in found) == (fused, of_keys)


@pytest.mark.parametrize("heads", [(4, 1), (1, 4)])
def test_mask_of_heads_that_another_attention_repeats(heads: tuple[int, int]) -> None:
    """By the mask, the scores of one head become those of four, for which attention has no form."""
    parts = [
        ATTENTION.format(n=n, heads=count, size=8 // count, mask=f"t{n} = Add(s{n}, m)", guard="", weights=f"p{n}")
        for n, count in enumerate(heads)
    ]
    text = f"""g (float[2,3,8] q, float[2,3,8] k, float[2,3,8] v) => (float y0, float y1)
        <{CONSTANTS}, float[1,4,1,3] m = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}> {{ {" ".join(parts)} }}"""
    assert ops(check(text, FUSION)[0])[FUSED] == 1


@pytest.mark.parametrize(
    ("mask", "fused"),
    [
        ("x = Unsqueeze(c, of_keys) m = Where(x, zero, low)", True),
        ("x = Unsqueeze(c, of_keys) m = Where(x, zero, none)", True),
        ("x = Unsqueeze(c, of_keys) m = Where(x, none, zero)", True),
        ("x = Unsqueeze(c, of_keys) e = Where(x, one, zero) m = Log(e)", False),
        ("m = Constant<value = float[3,3] {0, 0, inf, 0, 0, 0, 0, 0, 0}>()", False),
        ("m = Constant<value = float[3,3] {0, -inf, -inf, 0, 0, -inf, 0, 0, 0}>()", True),
        ("m = Constant<value = float[3,3] {-inf, -inf, -inf, 0, 0, 0, 0, 0, 0}>()", False),
    ],
)
def test_guard_of_rows_without_a_key(mask: str, *, fused: bool) -> None:
    """Without the guard, such rows would be NaN. Query, key and value come from one tensor, and the mask may be one of keys."""
    weights = " ".join(
        f"w{side} = Constant<value = float[2,8] {{{', '.join(map(str, range(i, 16 + i)))}}}>()"
        for i, side in enumerate("qkv")
    )
    products = " ".join(f"{side} = MatMul(u, w{side})" for side in "qkv")
    nodes = ATTENTION.format(
        n="", heads=2, size=4, mask=f"{mask} t = Add(s, m)", guard="g = IsNaN(p) w = Where(g, zero, p)", weights="w"
    )
    text = f"g (float[2,3,2] u, bool[2,3] c) => (float y) <{CONSTANTS}> {{ {weights} {products} {nodes} }}"
    graph, _ = check(text, (*passes_in("basic.fold_constants"), *FUSION), rtol=1e-4)
    assert ("IsNaN" not in ops(graph)) == fused
