"""Operators on strings, which are object arrays of str, and counts of n-grams."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ortconv.errors import GraphError
from ortconv.executor.algorithms.steps import EndlessLoopError
from ortconv.executor.kernels.registry import built, kernel, table
from ortconv.ir.operators import MICROSOFT
from ortconv.ir.tensor import Array

_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


@kernel("StringNormalizer")
def string_normalizer(
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] = (),
) -> Array:
    key = str if is_case_sensitive else str.lower
    stops = {key(s) for s in stopwords}
    kept = [_CASES[case_change_action](s) for s in x.reshape(-1) if key(s) not in stops] or [""]
    return np.array(kept, object).reshape([1] * (x.ndim - 1) + [len(kept)])


table({"StringConcat": lambda x, y: np.add(x, y, out=np.empty(np.broadcast(x, y).shape, object))})


@kernel("StringSplit")
def string_split(x: Array, *, delimiter: str | None = None, maxsplit: int = -1) -> tuple[Array, Array]:
    rows = [(s if delimiter else s.strip()).split(delimiter or None, maxsplit) if s else [] for s in x.reshape(-1)]
    return _stacked(rows, x.shape, ""), np.array([*map(len, rows)], np.int64).reshape(x.shape)


def _stacked(rows: Sequence[Sequence[str]], shape: tuple[int, ...], fill: str) -> Array:
    """One array (shape..., longest row), with `fill` after the shorter rows."""
    columns = list(zip_longest(*rows, fillvalue=fill))
    return np.array(columns, object).reshape(len(columns), len(rows)).T.reshape(*shape, len(columns))


@kernel("RegexFullMatch")
def regex_full_match(x: Array, *, pattern: str) -> Array:
    match: Any = re.compile(pattern).fullmatch
    return np.array([match(s) is not None for s in x.reshape(-1)], dtype=bool).reshape(x.shape)


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
    weight = np.asarray(weights if weights and mode != "TF" else [1] * len(column), np.float32)

    def vectorize(x: Array) -> Array:
        out = np.zeros((*x.shape[:-1], width), np.float32)
        for row, target in zip(np.atleast_2d(x).tolist(), np.atleast_2d(out)):
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


@kernel("NGramRepeatBlock", domain=MICROSOFT)
def ngram_repeat_block(ids: Array, scores: Array, *, ngram_size: int) -> Array:
    """The score of a token that would repeat an n-gram of its row becomes -inf."""
    y = scores.copy()
    for row, target in zip(ids.tolist(), y):
        grams, last = zip(*(row[i:] for i in range(ngram_size))), row[len(row) - ngram_size + 1 :]
        target[[gram[-1] for gram in grams if [*gram[:-1]] == last]] = -np.inf
    return y


@kernel("Tokenizer", domain=MICROSOFT)
def tokenizer(
    x: Array,
    *,
    mark: int = 0,
    mincharnum: int = 1,
    pad_value: str = "",
    separators: Sequence[str] = (),
    tokenexp: str = "",
) -> Array:
    """The tokens of each text, padded to the number of the longest one: the matches of `tokenexp`, or what is between separators;
    single characters if the separator is empty. `mark` puts tokens of control characters around each text.
    """
    rows = [[t for t in _tokens(text, separators, tokenexp) if len(t) >= mincharnum] for text in x.reshape(-1)]
    rows = [["\x02", *row, "\x03"] for row in rows] if mark and any(rows) else rows
    return _stacked(rows, x.shape, pad_value)


def _tokens(text: str, separators: Sequence[str], expression: str) -> list[str]:
    if expression:
        return [match[0] for match in re.finditer(expression, text, re.ASCII)]
    if list(separators) == [""]:
        return list(text)
    parts = [text]
    for separator in separators:
        parts = [piece for part in parts for piece in _between(part, re.compile(separator, re.ASCII))]
    return parts


def _between(text: str, separator: re.Pattern[str]) -> list[str]:
    """The parts of a text between matches of a separator."""
    spans = [match.span() for match in separator.finditer(text) if match[0]]
    starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
    return [text[a:b] for a, b in zip(starts, ends)]
