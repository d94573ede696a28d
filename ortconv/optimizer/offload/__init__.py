"""Rewrites into standard operators in forms that an accelerator supports, between the basic level and the partitioner.

All run only on request: by name, or if `ortconv.pipeline.maximize_offload` finds that they put more nodes on the accelerator.
"""

from __future__ import annotations

from importlib import import_module
from itertools import groupby

from ortconv.optimizer.passes import Pass, rules_of

_FAMILIES = (
    "activation", "arithmetic", "attention", "matmul", "einsum", "convolution", "rank", "movement", "resize", "quantization",
    "normalization", "masks",
)  # fmt: skip
_RULES = [r for family in _FAMILIES for r in rules_of(import_module(f"{__name__}.{family}"))]

OPT_IN = (
    Pass("Float16ToFloat32", "offload.float32:compute_in_float32"),
    Pass("SignedToUnsigned", "offload.unsigned:make_unsigned"),
    *(Pass(name, tuple(rules)) for name, rules in groupby(_RULES, lambda r: r.name)),
)
"""One pass for each name of the rules."""
