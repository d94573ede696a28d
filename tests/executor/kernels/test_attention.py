"""Attention against onnxruntime."""

import numpy as np
import pytest

from tests.arrays import normal
from tests.executor.single_node import assert_same, compare, run_kernel, run_onnxruntime

MS = "com.microsoft"
BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 3, 4, 6, 8


def heads(rng, length=KEYS, count=HEADS):
    return normal(rng, BATCH, count, length, SIZE)


MASKS = {
    "none": lambda rng: None,
    "bool": lambda rng: rng.random((QUERIES, KEYS)) > 0.3,
    "float": lambda rng: normal(rng, BATCH, 1, QUERIES, KEYS),
    "per head": lambda rng: normal(rng, 1, HEADS, QUERIES, KEYS),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("attributes", [{}, {"scale": 0.3}, {"softcap": 2.0}])
def test_attention(rng, mask, attributes):
    inputs = [heads(rng, QUERIES), heads(rng), heads(rng), MASKS[mask](rng)]
    compare("Attention", inputs, attributes, opset=23, atol=1e-5)


def test_attention_causal(rng):
    inputs = [heads(rng, QUERIES), heads(rng, QUERIES), heads(rng, QUERIES)]
    compare("Attention", inputs, {"is_causal": 1}, opset=23, atol=1e-5)


def test_attention_with_past_is_attention_over_all_keys(rng):
    q, k, v = heads(rng, QUERIES), heads(rng), heads(rng)
    got = run_kernel("Attention", [q, k[:, :, 2:], v[:, :, 2:], None, k[:, :, :2], v[:, :, :2]], opset=23, n_outputs=3)
    assert_same(got, [run_kernel("Attention", [q, k, v], opset=23)[0], k, v])
    causal = {"is_causal": 1}
    whole = run_kernel("Attention", [k, k, v], causal, opset=23)[0]
    last = run_kernel(
        "Attention", [k[:, :, 4:], k[:, :, 4:], v[:, :, 4:], None, k[:, :, :4], v[:, :, :4]], causal, opset=23
    )[0]
    assert_same(last, whole[:, :, 4:])


def test_attention_shares_key_heads(rng):
    q, k, v = heads(rng, QUERIES, 6), heads(rng, count=2), heads(rng, count=2)
    compare("Attention", [q, k, v], opset=23, atol=1e-5)
    packed = [x.swapaxes(1, 2).reshape(BATCH, x.shape[2], -1) for x in (q, k, v)]
    compare("Attention", packed, {"q_num_heads": 6, "kv_num_heads": 2}, opset=23, atol=1e-5)


def test_a_row_that_sees_nothing_is_zero(rng):
    mask = np.ones((QUERIES, KEYS), bool)
    mask[1] = False
    y = run_kernel("Attention", [heads(rng, QUERIES), heads(rng), heads(rng), mask], opset=23)[0]
    assert not y[:, :, 1].any()
    assert np.isfinite(y).all()


PADDING = {
    "none": None,
    "lengths": np.array([6, 3], np.int32),
    "raw": np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]], np.int32),
}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("attributes", [{}, {"scale": 0.3}])
def test_multi_head_attention(rng, padding, bias, attributes):
    hidden = HEADS * SIZE
    inputs = [normal(rng, BATCH, QUERIES, hidden), normal(rng, BATCH, KEYS, hidden), normal(rng, BATCH, KEYS, hidden)]
    inputs += [normal(rng, 3 * hidden) if bias else None, PADDING[padding]]
    compare("MultiHeadAttention", _trimmed(inputs), {"num_heads": HEADS, **attributes}, domain=MS, atol=1e-5)


def _trimmed(inputs):
    while inputs[-1] is None:
        inputs = inputs[:-1]
    return inputs


def test_multi_head_attention_forms(rng):
    hidden, attributes = HEADS * SIZE, {"num_heads": HEADS}
    qkv = normal(rng, BATCH, QUERIES, HEADS, 3, SIZE)
    q, k, v = (qkv[..., i, :].reshape(BATCH, QUERIES, hidden) for i in range(3))
    apart = run_kernel("MultiHeadAttention", [q, k, v], attributes, domain=MS)
    assert_same(run_kernel("MultiHeadAttention", [qkv], attributes, domain=MS), apart)
    assert_same(run_kernel("MultiHeadAttention", [q, qkv[..., 1:, :]], attributes, domain=MS), apart)
    by_head = [normal(rng, BATCH, QUERIES, hidden), heads(rng), heads(rng)]
    compare("MultiHeadAttention", by_head, attributes, domain=MS, atol=1e-5)
    causal = [normal(rng, BATCH, KEYS, hidden) for _ in range(3)]
    compare("MultiHeadAttention", causal, {**attributes, "unidirectional": 1}, domain=MS, atol=1e-5)


def test_multi_head_attention_with_past(rng):
    hidden = HEADS * SIZE
    inputs = [normal(rng, BATCH, QUERIES, hidden) for _ in range(3)]
    inputs += [None, None, normal(rng, 1, HEADS, QUERIES, QUERIES + 2), heads(rng, 2), heads(rng, 2)]
    compare("MultiHeadAttention", inputs, {"num_heads": HEADS}, domain=MS, n_outputs=3, atol=1e-5)


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}, {"scale": 0.3}, {"mask_filter_value": -3.0}])
def test_attention_of_microsoft(rng, padding, attributes):
    hidden = HEADS * SIZE
    inputs = [normal(rng, BATCH, KEYS, 5), normal(rng, 5, 3 * hidden), normal(rng, 3 * hidden), PADDING[padding]]
    compare("Attention", _trimmed(inputs), {"num_heads": HEADS, **attributes}, domain=MS, atol=1e-5)


def test_attention_of_microsoft_with_past_or_bias(rng):
    hidden = HEADS * SIZE
    inputs = [normal(rng, BATCH, QUERIES, 5), normal(rng, 5, 3 * hidden), normal(rng, 3 * hidden), None]
    past = [*inputs, normal(rng, 2, BATCH, HEADS, 2, SIZE)]
    compare("Attention", past, {"num_heads": HEADS, "unidirectional": 1}, domain=MS, n_outputs=2, atol=1e-5)
    bias = [*inputs, None, normal(rng, 1, HEADS, QUERIES, QUERIES)]
    compare("Attention", bias, {"num_heads": HEADS}, domain=MS, atol=1e-5)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("dim", [0, 4])
def test_rotary_embedding(rng, dim, interleaved):
    cos, sin = normal(rng, 10, (dim or SIZE) // 2), normal(rng, 10, (dim or SIZE) // 2)
    positions = rng.integers(0, 10, (BATCH, QUERIES))
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": dim, "num_heads": HEADS}
    x = normal(rng, BATCH, QUERIES, HEADS * SIZE)
    compare("RotaryEmbedding", [x, cos, sin, positions], attributes, opset=23)
    compare("RotaryEmbedding", [x, positions, cos, sin], attributes, domain=MS)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("window", "capacity"), [(0, 24), (3, 3), (3, 4), (2, 6)])
def test_group_query_attention_in_steps(rng, window, capacity, padded):
    """Caches for a window lose their oldest tokens; the rows behind the tokens that a cache holds are unspecified."""
    attributes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
    if window:
        attributes |= {"local_window_size": window, "sliding_window_cache": 1}
    past = [np.zeros((BATCH, 2, capacity, 16), np.float32)] * 2
    rotations = [normal(rng, 40, 8), normal(rng, 40, 8)]
    totals = np.zeros(BATCH, np.int32)
    for longest in (3, 1, 5, 2, 4) if padded else (3, 1, 1, 1, 1, 1):
        tokens = rng.integers(1, longest + 1, BATCH).astype(np.int32) if padded else np.full(BATCH, longest, np.int32)
        totals = totals + tokens
        most = np.array(max(totals.max(), longest), np.int32)
        inputs = [normal(rng, BATCH, longest, 8 * 16), None, None, *past, totals - 1, most, *rotations]
        inputs += [None] * 7 + [tokens] if padded else []
        want = run_onnxruntime("GroupQueryAttention", inputs, attributes, domain=MS, n_outputs=3)
        got = run_kernel("GroupQueryAttention", inputs, attributes, domain=MS, n_outputs=3)
        for b, (total, count) in enumerate(zip(totals, tokens)):
            room = capacity - window + 1
            held = total if total <= capacity else total - room * -(-(total - capacity) // room)
            np.testing.assert_allclose(got[0][b, :count], want[0][b, :count], rtol=1e-4, atol=1e-5)
            for mine, other in zip(got[1:], want[1:]):
                assert mine.shape == other.shape
                np.testing.assert_allclose(mine[b, :, :held], other[b, :, :held], rtol=1e-4, atol=1e-5)
        past = want[1:]
