"""TfIdfVectorizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.steps import EndlessLoopError
from ortconv.executor.kernels.registry import built
from ortconv.ir.tensor import Array

MOST_SKIPS = 1 << 27
"""Largest max_skip_count. onnxruntime tries each number of skips, however short the rows are: 5 nanoseconds each."""

_MODES = ("TF", "IDF", "TFIDF")


@built("TfIdfVectorizer")
def tfidf_vectorizer(
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Sequence[int],
    ngram_indexes: Sequence[int],
    pool_int64s: Sequence[int] | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Callable[[Array], Array]:
    """[C] to [D], [N, C] to [N, D] with D the largest of `ngram_indexes` + 1."""
    if mode not in _MODES:
        raise GraphError(f"TfIdfVectorizer has no mode '{mode}', only {', '.join(_MODES)}")
    if max_skip_count > MOST_SKIPS:
        raise EndlessLoopError(
            f"max_skip_count is {max_skip_count}, the limit is {MOST_SKIPS}",
            hint="set max_skip_count to the length of a row",
        )
    pool = _pool(pool_strings or pool_int64s or (), ngram_counts, min_gram_length, max_gram_length)
    column = np.asarray(ngram_indexes, np.int64)
    width = int(column.max(initial=-1)) + 1
    weight = np.ones(len(column), np.float32)
    if mode != "TF" and weights:
        weight = np.asarray(weights, np.float32)

    def vectorize(x: Array) -> Array:
        out = np.zeros((*x.shape[:-1], width), np.float32)
        for row, target in zip(x.reshape(-1, x.shape[-1]).tolist(), out.reshape(-1, width)):
            counts = np.zeros(len(column), np.float32)
            for gram in _grams(row, min_gram_length, max_gram_length, max_skip_count):
                if gram in pool:
                    counts[pool[gram]] += 1
            if mode == "IDF":
                counts = np.minimum(counts, 1)
            np.add.at(target, column, counts * weight)
        return out

    return vectorize


def _pool(items: Sequence[Any], starts: Sequence[int], shortest: int, longest: int) -> dict[tuple[Any, ...], int]:
    """n-gram to its number in the pool. n-grams of unused lengths have numbers, too."""
    pool: dict[tuple[Any, ...], int] = {}
    number = 0
    ends = [*starts[1:], len(items)]
    if any(not 0 <= start <= end for start, end in zip(starts, ends)):
        raise GraphError(f"ngram_counts {list(starts)} do not rise, or lead beyond a pool of {len(items)} items")
    for n, (start, end) in enumerate(zip(starts, ends), 1):
        for at in range(start, end, n):
            if shortest <= n <= longest:
                pool.setdefault(tuple(items[at : at + n]), number)
            number += 1
    return pool


def _grams(row: list[Any], shortest: int, longest: int, skips: int) -> Any:
    """Every n-gram of a row at every distance between its items; single items once."""
    for n in range(max(shortest, 1), min(longest, len(row)) + 1):
        for distance in range(1, min(skips + 1, (len(row) - 1) // (n - 1)) + 1 if n > 1 else 2):
            yield from zip(*(row[i * distance :] for i in range(n)))
