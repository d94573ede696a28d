"""Attention of transformers: positions, shared heads, packed projections, and the fused operators."""

from __future__ import annotations

from ortconv.optimizer.extended.attention import fusion, packed_heads, repeat, rotary

PASSES = (*rotary.PASSES, *repeat.PASSES, *packed_heads.PASSES, *fusion.PASSES)
