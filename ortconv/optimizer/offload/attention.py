"""Attention as products and a Softmax, which NNAPI supports."""

from __future__ import annotations

from ortconv.ir.types import DType
from ortconv.optimizer.conditions import broadcasts_into, numbers
from ortconv.optimizer.engine import NewInput, Replacement, rule
from ortconv.optimizer.offload.parts import add, div, mul, only_first, op, shape_of, transpose
from ortconv.optimizer.pattern import Match, P

_SWAP = (0, 1, 3, 2)
_ATTRIBUTES = {
    "scale", "softcap", "is_causal", "qk_matmul_output_mode", "softmax_precision", "q_num_heads", "kv_num_heads",
}  # fmt: skip


@rule("AttentionToProducts", P("Attention", "q", "k", "v", "mask?"))
def attention(m: Match) -> Replacement:
    """Attention(q, k, v, mask)  ->  MatMul(Softmax(MatMul(q * scale, Transpose(k)) + mask), v)

    For heads that no queries share, and masks of numbers.
    """
    shape = _scores(m)
    if shape is None or not _is_plain(m):
        return None
    if m.mask is not None and (not broadcasts_into(shape_of(m.mask), shape) or m.mask.dim(-1) != shape[-1]):
        return None  # no numbers for all keys
    size, cap = numbers(m.q.dim(3))[0], m.root.attr("softcap", 0.0)
    scale = m.root.attr("scale", 0.0) or size**-0.5
    scores: NewInput = op("MatMul", mul(m.q, scale), transpose(m.k, _SWAP))
    if cap:
        scores = mul(op("Tanh", div(scores, cap)), cap)
    weights = op("Softmax", scores if m.mask is None else add(scores, m.mask), axis=-1)
    return op("MatMul", weights, m.v)


def _scores(m: Match) -> tuple[int, ...] | None:
    """The shape of the scores; None unless queries, keys and values have as many heads, all of known sizes."""
    q, k, v = map(shape_of, (m.q, m.k, m.v))
    if q is None or k is None or v is None or {len(q), len(k), len(v)} != {4}:
        return None
    return (*q[:3], k[2]) if q[:2] == k[:2] == v[:2] else None


def _is_plain(m: Match) -> bool:
    """True if every query sees all keys, one result is used, and the softmax has the type of the heads."""
    node = m.root
    is_float = node.attr("softmax_precision", int(DType.FLOAT)) == DType.FLOAT
    return only_first(node) and is_float and not node.attr("is_causal", 0) and node.attrs.keys() <= _ATTRIBUTES
