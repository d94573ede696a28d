"""RANDOM_MULTINOMIAL: random classes with the probabilities of a softmax."""

from __future__ import annotations

import secrets

import numpy as np

from ortconv.ir.tensor import Array
from ortconv.nnapi.errors import op_failed
from ortconv.nnapi.operations.shapes import integers
from ortconv.nnapi.operations.table import Dims, OperationCall, operation

# Philox4x32-10: multipliers and key increments (Salmon et al., SC11)
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
INCREMENTS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
ROUNDS = 10
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(seeds: list[int], blocks: int) -> Array:
    """Random 32-bit numbers, [blocks, 4] as uint64; the first seed is the key, the second the high half of the counter."""
    key, high = (np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint64) for seed in seeds)
    count = np.arange(blocks, dtype=np.uint64)
    a, b = count & LOW, count >> HALF
    c, d = np.full(blocks, high[0]), np.full(blocks, high[1])
    k, j = key
    for _ in range(ROUNDS):
        ab, cd = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b, c, d = (cd >> HALF) ^ b ^ k, cd & LOW, (ab >> HALF) ^ d ^ j, ab & LOW
        k, j = k + INCREMENTS[0] & LOW, j + INCREMENTS[1] & LOW
    return np.stack([a, b, c, d], axis=1)


def uniform(seeds: list[int], count: int) -> Array:
    """Doubles in [0, 1) with 52 random bits each."""
    pairs = philox(seeds, -(-count // 2)).reshape(-1, 2)[:count]
    bits = (pairs[:, 0] & np.uint64(0xFFFFF)) << HALF | pairs[:, 1]
    return bits.astype(np.float64) * 2.0**-52


def multinomial_dims(c: OperationCall) -> Dims:
    if c.x.rank != 2 or c.samples <= 0:
        raise op_failed(f"logits {list(c.x.dims)} must be [batch, classes], and samples {c.samples} positive")
    return c.x.dims[0], c.samples


@operation("RANDOM_MULTINOMIAL", "x:T samples:i seeds:I", outputs="out:I", level=3, types="F H", infer=multinomial_dims)
def random_multinomial(c: OperationCall) -> Array:
    """If both seeds are 0, random seeds are used."""
    seeds = integers(c.seeds, 2)
    if not any(seeds):
        seeds = [secrets.randbits(64), secrets.randbits(64)]
    logits = c.x.array.astype(np.float64)
    finite = np.isfinite(logits)
    top = np.max(np.where(finite, logits, -np.inf), axis=1, keepdims=True)
    sums = np.cumsum(np.where(finite, np.exp(logits - top), 0.0), axis=1)
    targets = uniform(seeds, c.x.dims[0] * c.samples).reshape(-1, c.samples) * sums[:, -1:]
    found = [np.searchsorted(one, target, side="right") for one, target in zip(sums, targets)]
    return np.minimum(np.stack(found), c.x.dims[1] - 1).astype(np.int32)
