"""Sums of centered codes must be those of QLinearAdd, for all pairs of codes."""

import numpy as np

from ortconv.executor.fusion.int8_steps import Quantization, qlinear_sum
from ortconv.executor.kernels.quantize import qlinear_add


def parameters(seed):
    """How two operands and a sum are quantized: some with a sum of ties, some with scales far apart."""
    rng = np.random.default_rng(seed)
    lowest, dtype = ((0, np.uint8), (-128, np.int8))[seed % 2]
    scales = np.exp(rng.uniform(-5, -2, 3)).astype(np.float32)
    if seed % 5 == 0:
        scales[:] = 0.025, 0.025, 0.05
    if seed % 7 == 0:
        scales[2] /= 5000
    zeros = rng.integers(lowest, lowest + 255, 3, endpoint=True).astype(dtype)
    return [Quantization(np.asarray(s), np.asarray(z)) for s, z in zip(scales, zeros, strict=True)]


def pairs(p, q):
    """All codes of both, and these centered."""
    codes = [np.arange(256, dtype=np.uint8).view(v.zero_point.dtype) for v in (p, q)]
    codes = [np.ascontiguousarray(v) for v in np.broadcast_arrays(codes[0][:, None], codes[1])]
    return codes, [c.astype(np.float32) - np.float32(v.zero_point) for c, v in zip(codes, (p, q), strict=True)]


def of_operator(p, q, y):
    (a, b), _ = pairs(p, q)
    made = qlinear_add(a, p.scale, p.zero_point, b, q.scale, q.zero_point, y.scale, y.zero_point)
    return made.astype(np.float32) - np.float32(y.zero_point)


def test_sums_of_all_codes():
    for seed in range(40):
        p, q, y = parameters(seed)
        _, (a, b) = pairs(p, q)
        np.testing.assert_array_equal(
            qlinear_sum(p, q, y)(a, b).clip(*y.limits), of_operator(p, q, y), err_msg=str(seed)
        )
